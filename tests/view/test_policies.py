"""A policy's pipeline in the page: it opens on Robots, joints have names, episodes are listed, keys go through them."""

import json
import re

import numpy as np
import pytest
from helpers.lerobot_folders import write_dataset
from helpers.traceable_robots import LENGTHS, WORDS, keys, write_all_formats, write_robot

from bushel import MapDataset, sources
from bushel._src.view.episode_lookup import EpisodeLists, find_episode_step
from bushel._src.view.panels import describe_session
from bushel._src.view.panels import robots as panel
from bushel._src.view.robot_elements import JointNames
from bushel._src.view.session import Query, Session
from bushel.trajectory import (
    LeRobotSource,
    TrajectoryDataset,
    make_dataset_from_lerobot,
    make_interleaved_dataset,
    open_episodes,
)

JOINTS = ["shoulder", "gripper"]
STATES = ["robot", "episode", "step"]


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    return write_all_formats(tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def named(formats, tmp_path_factory):
    """A LeRobot data set (version 3) whose numbers have names."""
    name, folder = formats["lerobot"]
    write_names(f"{folder}/{name}", {"action": JOINTS, "observation.state": {"motors": STATES}})
    return f"{folder}/{name}"


def write_names(folder, names):
    with open(f"{folder}/meta/info.json", encoding="utf-8") as file:
        info = json.load(file)
    for feature, own in names.items():
        info["features"][feature]["names"] = own
    with open(f"{folder}/meta/info.json", "w", encoding="utf-8") as file:
        json.dump(info, file)


def show(session, **query):
    return panel.routes(session)["show"](Query({name: str(value) for name, value in query.items()}))


def list_all(ds):
    lists = EpisodeLists(Session(ds))
    return lists.list(0, 500)


# Joint names.


def test_rows_of_lerobot_have_the_names_of_joints(named, tmp_path):
    source = LeRobotSource(named, cache_dir=tmp_path)
    assert source.features["action"].names == tuple(JOINTS)
    assert source.features["observation.state"].names == tuple(STATES)
    assert source.features["timestamp"].names == ()
    session = Session(MapDataset.source(source).seed(1).shuffle().map(lambda row: row).batch(4))
    answer = show(session, index=1, row=2)
    assert (answer["actions"][0]["names"], answer["states"][0]["names"]) == (JOINTS, STATES)
    curves = panel.routes(session)["episode"](Query({"index": "1", "row": "2"}))["curves"]
    assert {curve["name"]: curve["names"] for curve in curves} == {"action": JOINTS, "state": STATES}


def test_version_2_has_them_too(tmp_path):
    write_dataset(tmp_path / "set", (3, 2), version=2, cameras=())
    with open(tmp_path / "set" / "meta" / "info.json", encoding="utf-8") as file:
        width = json.load(file)["features"]["action"]["shape"][0]
    names = [f"joint {n}" for n in range(width)]
    write_names(tmp_path / "set", {"action": names})
    session = Session(MapDataset.source(LeRobotSource(tmp_path / "set", cache_dir=tmp_path / "cache")))
    assert JointNames(session).find("action", width) == tuple(names)
    assert JointNames(session).find("action", width + 1) == ()


def make_samples(folder, cache, **more):
    ds, _ = make_dataset_from_lerobot(
        "arm",
        folder,
        train=True,
        train_split="train",
        image_obs_keys={"primary": "images.front"},
        proprio_obs_keys={"arm": "state"},
        language_key="language_instruction",
        cache_dir=str(cache),
        **more,
    )
    return ds.flatten().dataset


def test_samples_have_the_names_of_the_columns_that_they_equal(named, tmp_path):
    ds = make_samples(named, tmp_path / "cache")
    names = JointNames(Session(ds))
    assert names.find("action", 2) == tuple(JOINTS)
    assert names.find("proprio_arm", 3) == tuple(STATES)


def swap(trajectory):
    return trajectory | {"action": trajectory["action"][:, ::-1]}


def test_a_function_that_orders_joints_anew_gets_no_names(named, tmp_path):
    names = JointNames(Session(make_samples(named, tmp_path / "cache", standardize_fn=swap)))
    assert names.find("action", 2) == () and names.find("proprio_arm", 3) == tuple(STATES)


@pytest.mark.parametrize("names", [None, [], ["one"], [1, 2], {"motors": "two"}, {"a": ["x"], "b": ["y"]}, "ab"])
def test_names_of_any_form_are_read_or_left_out(named, tmp_path, names):
    write_names(named, {"action": names})
    try:
        found = LeRobotSource(named, cache_dir=tmp_path).features["action"].names
    finally:
        write_names(named, {"action": JOINTS})
    assert found == (("x", "y") if isinstance(names, dict) and "a" in names else ())


# The list of episodes.


@pytest.mark.parametrize("kind", ["rlds", "npz", "aloha", "robomimic", "lerobot"])
def test_whole_episodes_of_each_format_are_listed(formats, kind):
    name, folder = formats[kind]
    ds = MapDataset.source(open_episodes(name, folder, format=kind).episodes("all"))
    found = list_all(ds.seed(3).shuffle())
    assert found["total"] == len(LENGTHS)
    assert [(one["episode"], one["length"]) for one in found["episodes"]] == list(enumerate(LENGTHS))
    assert {one["text"] for one in found["episodes"]} <= {WORDS, None, ""}
    for one in found["episodes"]:
        place = find_episode_step(ds.seed(3).shuffle()._node, one["index"])
        assert place is not None and (place.episode, place.dataset) == (one["episode"], one["dataset"])


def check_starts(ds):
    """Each listed episode leads to its earliest element."""
    session = Session(ds)
    found = EpisodeLists(session).list(0, 500)["episodes"]
    length = session.step(found[0]["step"]).length
    node = session.step(found[0]["step"]).node
    earliest = {}
    for index in range(length or 60):
        place = find_episode_step(node, index)
        key = (place.dataset, place.episode)
        if key not in earliest or place.time < earliest[key][1]:
            earliest[key] = index, place.time
    for one in found:
        assert earliest[one["dataset"], one["episode"]][0] == one["index"]
    return found


def test_rows_and_samples_lead_to_the_beginnings_of_episodes(named, tmp_path):
    rows = MapDataset.source(LeRobotSource(named, cache_dir=tmp_path / "rows"))
    for ds in (rows, rows.seed(4).shuffle().batch(3), make_samples(named, tmp_path / "cache").seed(2).shuffle()):
        found = check_starts(ds)
        assert [one["length"] for one in found] == list(LENGTHS) and {one["text"] for one in found} == {WORDS}


def test_trajectories_of_the_users_are_listed():
    episodes = [
        {
            "observation": {"x": np.zeros(n)},
            "action": np.zeros((n, 2)),
            "language_instruction": np.array([text] * n, object),
        }
        for n, text in ((3, b"push"), (5, b""), (2, b"pull"))
    ]
    found = check_starts(TrajectoryDataset.from_trajectories(episodes).flatten().dataset.seed(0).shuffle())
    assert [(one["length"], one["text"]) for one in found] == [(3, "push"), (5, ""), (2, "pull")]


def test_mixtures_list_the_episodes_of_each_data_set(tmp_path):
    both = [
        keys("arm", write_robot(tmp_path / "data", "arm", 0), tmp_path / "cache"),
        keys("gripper", write_robot(tmp_path / "data", "gripper", 1, (4, 6)), tmp_path / "cache"),
    ]
    ds = make_interleaved_dataset(both, sample_weights=[1, 1], train=True, batch_size=4).dataset
    found = list_all(ds)
    assert found["total"] == len(LENGTHS) + 2
    assert [one["dataset"] for one in found["episodes"]] == ["arm"] * 3 + ["gripper"] * 2
    session = Session(ds)
    for one in found["episodes"]:
        place = find_episode_step(session.step(one["step"]).node, one["index"])
        assert place is not None and (place.dataset, place.episode) == (one["dataset"], one["episode"])
    pages = [EpisodeLists(session).list(first, 2)["episodes"] for first in (0, 2, 4)]
    assert [one for part in pages for one in part] == found["episodes"]


def test_a_stream_whose_order_is_not_known_lists_episodes_without_elements(named, tmp_path):
    rows = MapDataset.source(LeRobotSource(named, cache_dir=tmp_path))
    found = list_all(rows.to_iter_dataset().filter(lambda row: True))
    assert [one["index"] for one in found["episodes"]] == [None] * len(LENGTHS)
    assert list_all(MapDataset.range(5)) == {"total": 0, "first": 0, "episodes": []}


# The page.


def test_which_panel_opens_first(formats, named, tmp_path):
    name, folder = formats["rlds"]
    episodes = MapDataset.source(open_episodes(name, folder).episodes("all"))
    rows = MapDataset.source(LeRobotSource(named, cache_dir=tmp_path)).seed(0).shuffle().map(lambda row: row).batch(2)
    columns = {"action": np.zeros((4, 2)), "observation": {"x": np.zeros((4, 3))}}
    frames = MapDataset.source(sources.ArrayDataSource(columns))
    for ds in (episodes, rows, frames):
        assert describe_session(Session(ds))["first"] == "robots"
    assert describe_session(Session(MapDataset.range(5)))["first"] == "elements"


def selected(page):
    return page.locator(".episode-row[aria-selected='true']").get_attribute("data-episode")


def wait_for_episode(page, episode):
    page.locator(".episode-number", has_text=re.compile(f"^episode {episode}$")).wait_for()
    page.wait_for_selector(f".episode-row[data-episode='{episode}'][aria-selected='true']")


def test_a_policys_pipeline_opens_on_robots_and_keys_go_through_it(open_page, named, tmp_path):
    source = LeRobotSource(named, delta_timestamps={"action": [0.0, 0.1, 0.2]}, cache_dir=tmp_path)
    page = open_page(MapDataset.source(source))
    assert page.get_by_role("tab", name="Robots").get_attribute("aria-selected") == "true"
    wait_for_episode(page, 0)
    assert page.locator(".action .legend span").all_inner_texts() == JOINTS
    assert page.locator(".state dt").all_inner_texts() == STATES
    rows = page.locator(".episode-row").all_inner_texts()
    assert len(rows) == len(LENGTHS)
    for row, length in zip(rows, LENGTHS):
        assert f"{length} steps" in row and WORDS in row
    page.keyboard.press("ArrowRight")
    page.locator(".clock", has_text="step 1 of 4").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.locator(".clock", has_text="step 1 of 4").wait_for()
    page.keyboard.press("Shift+ArrowRight")
    wait_for_episode(page, 1)
    page.locator(".clock", has_text="step 0 of 2").wait_for()
    page.locator(".episode-row").nth(1).focus()
    page.keyboard.press("ArrowDown")
    wait_for_episode(page, 2)
    page.keyboard.press("ArrowUp")
    wait_for_episode(page, 1)
    page.get_by_label("element").focus()
    page.keyboard.press("ArrowRight")  # the cursor of a text
    assert selected(page) == "1"


def test_cameras_are_large_and_fit(open_page, named, tmp_path):
    ds = MapDataset.source(LeRobotSource(named, cache_dir=tmp_path))
    for width, least in ((1180, 300), (390, 150)):
        page = open_page(ds, width=width)
        page.wait_for_selector(".camera img")
        sizes = page.eval_on_selector_all(".camera img", "all => all.map(img => img.getBoundingClientRect().width)")
        assert len(sizes) == 2 and min(sizes) >= least
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_data_that_turn_out_to_be_no_robots_open_on_elements(open_page, named, tmp_path):
    ds = MapDataset.source(LeRobotSource(named, cache_dir=tmp_path)).map(lambda row: {"index": row["index"]})
    page = open_page(ds)
    page.wait_for_selector(".panel.elements .shown[data-index='0']:not([aria-busy])")
    assert page.get_by_role("tab", name="Elements").get_attribute("aria-selected") == "true"
    page.get_by_role("tab", name="Robots").click()
    page.wait_for_selector(".panel.robots .shown .quiet")
    assert "are not samples of a robot" in page.locator(".panel.robots .shown").inner_text()
