"""The panel "Robots": what it finds in samples of each layout, and the page in a real Chromium."""

import base64
import io
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.traceable_robots import LENGTHS, SIZE, WORDS, actions, frame, keys, state, write_all_formats, write_robot
from PIL import Image

from bushel import MapDataset
from bushel._src.view.panels import robots as panel
from bushel._src.view.server import to_json
from bushel._src.view.session import BadQuery, Query, Session
from bushel._src.view.targets import open_session
from bushel.trajectory import LeRobotSource, make_interleaved_dataset, open_episodes

HORIZON = 4


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    return write_all_formats(tmp_path_factory.mktemp("formats"))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Two robots, of which the second has no wrist camera, in batches of 6."""
    folder = tmp_path_factory.mktemp("robots")
    both = [
        keys("arm", write_robot(folder / "data", "arm", 0), folder / "cache"),
        keys(
            "gripper",
            write_robot(folder / "data", "gripper", 1, (4, 6)),
            folder / "cache",
            image_obs_keys={"primary": "front", "wrist": None},
        ),
    ]
    return make_interleaved_dataset(
        both,
        sample_weights=[2, 1],
        train=True,
        traj_transform_kwargs={
            "window_size": 2,
            "action_horizon": HORIZON,
            "goal_relabeling_strategy": "uniform",
            "max_action_dim": 3,
        },
        frame_transform_kwargs={"resize_size": SIZE},
        batch_size=6,
    ).dataset


def ask(ds, name="show", **query):
    """What the panel answers, after it has been sent as JSON."""
    return json.loads(to_json(panel.routes(Session(ds))[name](Query({k: str(v) for k, v in query.items()}))))


def pixels(url):
    head, _, content = url.partition(",")
    assert head == "data:image/png;base64"
    return np.array(Image.open(io.BytesIO(base64.b64decode(content))))


def test_a_sample_shows_its_window_chunk_and_goal(mixture):
    for index in range(3):
        batch = mixture[index]
        for row in range(6):
            answer = ask(mixture, index=index, row=row)
            robot, episode, step = (int(x) for x in batch["observation"]["proprio_arm"][row, -1])
            assert (answer["row"], answer["rows"], answer["robot"]) == (row, 6, True)
            at = answer["place"]
            assert (at["dataset"], at["episode"], at["time"]) == (("arm", "gripper")[robot], episode, step)
            assert answer["instruction"] == WORDS
            primary, wrist = answer["cameras"]
            assert [one["time"] for one in primary["frames"]] == batch["observation"]["timestep"][row].tolist()
            for slot, one in enumerate(primary["frames"]):
                assert one["real"] == batch["observation"]["timestep_pad_mask"][row, slot]
                assert (pixels(one["url"]) == frame(robot, episode, one["time"])).all()
            assert [one["real"] for one in wrist["frames"]] == [not robot and x["real"] for x in primary["frames"]]
            (goal, _) = answer["goals"]
            (one,) = goal["frames"]
            assert one["time"] == batch["task"]["timestep"][row]
            assert (pixels(one["url"]) == frame(robot, episode, one["time"])).all()
            (chunk,) = answer["actions"]
            assert (chunk["width"], chunk["dimensions"], chunk["padded_dimensions"]) in (
                (3, [0, 1], 1),
                (3, [0, 1, 2], 0),
            )
            mask = batch["action_pad_mask"][row]
            assert chunk["real"] == mask.any(axis=-1).tolist()
            assert chunk["x"] == [
                [t + h for h in range(HORIZON)] for t in batch["observation"]["timestep"][row].tolist()
            ]
            assert np.allclose(np.array(chunk["y"])[:, 0], batch["action"][row, :, :, 0])
            (arm,) = answer["states"]
            assert arm["x"] == [[step - 1, step]]  # also before the episode, where the first frame is repeated
            assert arm["real"] == [batch["observation"]["timestep_pad_mask"][row].tolist()]
            assert (
                np.moveaxis(np.array(arm["y"]), 1, -1)[0].tolist() == batch["observation"]["proprio_arm"][row].tolist()
            )


def test_scrubbing_goes_over_the_whole_episode(mixture):
    first = ask(mixture, index=1, row=2)
    robot = ("arm", "gripper").index(first["place"]["dataset"])
    times = first["place"]["times"]
    assert times == list(range(len(times)))
    for time in times:
        answer = ask(mixture, index=1, row=2, time=time)
        assert answer["place"]["time"] == time and answer["place"]["own_time"] == first["place"]["time"]
        last = answer["cameras"][0]["frames"][-1]
        assert (pixels(last["url"]) == frame(robot, first["place"]["episode"], time)).all()
        goal = answer["goals"][0]["frames"][0]["time"]  # actions after the goal are padding
        assert answer["actions"][0]["real"][-1] == [time + h <= goal for h in range(HORIZON)]
    curves = {curve["name"]: curve for curve in ask(mixture, "episode", index=1, row=2)["curves"]}
    episode = first["place"]["episode"]
    assert curves["proprio_arm"]["y"] == state(robot, episode, len(times)).T.tolist()
    assert curves["action"]["y"][0] == actions(robot, episode, len(times))[:, 0].tolist()
    with pytest.raises(BadQuery, match="has no element for step 99"):
        panel.routes(Session(mixture))["show"](Query({"index": "1", "row": "2", "time": "99"}))


@pytest.mark.parametrize("kind", ["rlds", "npz", "aloha", "robomimic", "lerobot"])
def test_episodes_of_each_format(formats, kind):
    name, folder = formats[kind]
    ds = MapDataset.source(open_episodes(name, folder, format=kind).episodes("all"))
    assert panel.about(Session(ds)) == {"applies": True}
    for episode, time in ((0, 0), (2, 7), (1, 1)):
        answer = ask(ds, index=episode, time=time)
        assert answer["place"]["is_episode"] and answer["place"]["episode"] == episode
        assert answer["place"]["times"] == list(range(LENGTHS[episode])) and answer["place"]["time"] == time
        assert answer["instruction"] == ("" if kind == "aloha" else WORDS)
        front, wrist = (answer["cameras"][n]["frames"] for n in (0, 1))
        assert (pixels(front[0]["url"]) == frame(0, episode, time)).all()
        assert (pixels(wrist[0]["url"]) == frame(0, episode, time, 1)).all()
        assert answer["actions"][0]["y"] == [[[x] for x in actions(0, episode, 8)[time].tolist()]]
        curves = {curve["name"]: curve["y"] for curve in ask(ds, "episode", index=episode)["curves"]}
        assert curves["action"] == actions(0, episode, LENGTHS[episode]).T.tolist()
        assert curves["qpos" if kind == "aloha" else "state"] == state(0, episode, LENGTHS[episode]).T.tolist()


@pytest.mark.parametrize("kind", ["rlds", "npz", "aloha", "robomimic", "lerobot"])
def test_a_path_opens_each_format(formats, kind):
    name, folder = formats[kind]
    session = open_session(f"{folder}/{name}.hdf5" if kind == "robomimic" else f"{folder}/{name}")
    assert session.describe()["first"] == "robots" and panel.about(session) == {"applies": True}
    answer = panel.routes(session)["show"](Query({"index": "1", "time": "2"}))
    assert (pixels(answer["cameras"][0]["frames"][0]["url"]) == frame(0, 1, 2)).all()


@pytest.mark.parametrize("float_images", [False, True])
def test_a_row_of_lerobot_is_shown_with_its_window_of_frames(formats, float_images):
    name, folder = formats["lerobot"]
    windows = {"observation.images.front": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]}
    source = LeRobotSource(f"{folder}/{name}", delta_timestamps=windows, float_images=float_images)
    answer = ask(MapDataset.source(source), index=4)  # the last row of the first episode
    assert (answer["place"]["dataset"], answer["place"]["time"], answer["place"]["fps"]) == ("arm", 4, 10)
    cameras = {camera["name"]: camera["frames"] for camera in answer["cameras"]}
    assert [one["time"] for one in cameras["front"]] == [3, 4] and [one["time"] for one in cameras["wrist"]] == [4]
    assert (pixels(cameras["front"][0]["url"]) == frame(0, 0, 3)).all()
    (chunk,) = answer["actions"]
    assert chunk["x"] == [[4, 5, 6]] and chunk["real"] == [[True, False, False]]
    assert answer["instruction"] == WORDS
    first = ask(MapDataset.source(source), index=0)
    assert [one["real"] for one in first["cameras"][0]["frames"]] == [False, True]


def test_what_is_no_robot_data(mixture):
    assert panel.about(Session(MapDataset.range(5))) == {"applies": False}
    assert panel.about(Session(MapDataset.source([])))["applies"] is False
    assert ask(MapDataset.range(5), index=1)["robot"] is False
    numbers = Session(mixture)
    answer = panel.routes(numbers)["show"](Query({"step": "0", "index": "1"}))
    assert answer["robot"] is False and answer["call"].startswith("samples(")


def test_a_damaged_image_does_not_hide_the_others():
    steps = {
        "observation": {"image_primary": b"\x89PNG broken", "image_wrist": b""},
        "action": np.zeros(2, np.float32),
    }
    broken, empty = (camera["frames"][0] for camera in ask(MapDataset.source([steps]), index=0)["cameras"])
    assert broken["url"] is None and "Error" in broken["error"]
    assert empty["url"] is None and not empty["real"] and not empty["error"]


def test_leaves_of_all_kinds():
    """Numbers that are not finite, empty images, lists of rows, arrays of JAX: each is drawn or left out."""
    frame = {
        "observation": {
            "state": np.array([np.nan, np.inf]),
            "image_none": np.zeros((0, 0, 3), np.uint8),
            "other": None,
        },
        "action": {"arm": np.array([[1.0, np.nan], [2.0, 3.0]]), "hand": 1.5},
        "task": {"language_instruction": b"\xff lift"},
    }
    answer = ask(MapDataset.source([frame]), index=0)
    assert [chunk["name"] for chunk in answer["actions"]] == ["action/arm", "action/hand"]
    assert answer["actions"][0]["y"] == [[[1.0, 2.0], ["nan", 3.0]]] and answer["states"][0]["y"] == [
        [["nan"], ["inf"]]
    ]
    assert answer["cameras"] == [] and answer["instruction"] == "\ufffd lift"
    rows = MapDataset.range(8).map(lambda n: {"action": np.full(2, n), "observation": {"state": jnp.full(3, n)}})
    lists = rows.batch(4, batch_fn=lambda some: {"action": [row["action"] for row in some], "scale": 2.0})
    assert ask(lists, index=1, row=2)["actions"][0]["y"] == [[[6.0], [6.0]]]
    assert ask(rows, index=3)["states"][0]["y"] == [[[3.0], [3.0], [3.0]]]
    assert ask(rows.batch(5), index=1, row=9)["row"] == 2  # the last batch has three rows


def test_an_element_that_fails_is_an_answer():
    def fail(sample):
        raise ValueError("no such arm")

    answer = ask(MapDataset.range(3).map(fail), index=1)
    assert "no such arm" in answer["failure"]["message"] and not answer["robot"]


# The page.

PIXELS = """async (img) => {
  await img.decode();
  const canvas = new OffscreenCanvas(img.naturalWidth, img.naturalHeight);
  const context = canvas.getContext("2d");
  context.drawImage(img, 0, 0);
  return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
}"""

# Of a plot: its data, the colour of its canvas in the middle of two points of each curve, and that of the ground.
PLOT = """async (element) => {
  while (!element.plot || !element.plot.ctx) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  const plot = element.plot;
  const [x, ...curves] = plot.data;
  const { left, top, width, height } = plot.bbox;
  const color = (across, down) => [...plot.ctx.getImageData(Math.round(across), Math.round(down), 1, 1).data];
  const position = (value, axis) => plot.valToPos(value, axis, true);
  const middle = (values, n, axis) => (position(values[n], axis) + position(values[n + 1], axis)) / 2;
  const inside = (across) => Math.min(left + width - 2, Math.max(left + 2, across));
  return {
    data: plot.data,
    points: curves.map((y) => y.slice(1).map((_, n) => color(middle(x, n, "x"), middle(y, n, "y")))),
    colors: plot.series.slice(1).map((one) => one._stroke),
    ground: x.map((value) => color(inside(position(value, "x") + 4), top + height - 3)),
  };
}"""


def shown_image(page, camera, slot=-1):
    images = page.locator(f'.camera[data-name="{camera}"] img')
    data = images.nth(slot if slot >= 0 else images.count() - 1).evaluate(PIXELS)
    return np.array(data, np.uint8).reshape(*SIZE, 4)[..., :3]


def wait_for_step(page, step):
    page.locator(".robots .clock", has_text=f"step {step} of").wait_for()


def test_the_page_of_a_sample(open_page, mixture):
    # A row at the end of an episode, so that a part of its chunk is padding, and not all of it.
    place = next(
        (index, row)
        for index in range(9)
        for row in range(6)
        if 0 < mixture[index]["action_pad_mask"][row, -1, :, 0].sum() < HORIZON
    )
    index, row = place
    sample = {name: mixture[index][name][row] for name in ("action", "action_pad_mask")}
    robot, episode, step = (int(x) for x in mixture[index]["observation"]["proprio_arm"][row, -1])
    page = open_page(mixture, panel="robots", index=index, row=row)
    wait_for_step(page, step)
    assert (shown_image(page, "image_primary") == frame(robot, episode, step)).all()
    assert page.locator(".instruction").inner_text() == WORDS  # its HTML is text
    assert page.locator(".instruction b").count() == 0
    assert page.locator(".dataset").inner_text() == ("arm", "gripper")[robot]
    assert page.locator(".episode-number").inner_text() == f"episode {episode}"
    assert page.locator(".goal img").count() >= 1

    # The curve, and its shaded part.
    real = sample["action_pad_mask"][-1, :, 0]
    plot = page.locator(".action .plot").evaluate(PLOT)
    assert plot["data"][0] == [step + h for h in range(HORIZON)]
    assert np.allclose(plot["data"][1], sample["action"][-1, :, 0])
    for color, points in zip(plot["colors"], plot["points"]):
        wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
        # The curve goes through the middle of two points. Antialiasing may mix in some of the ground.
        assert all(np.abs(np.array(point[:3]) - wanted).max() < 90 for point in points)
    shaded = [ground[3] > 0 for ground in plot["ground"]]
    assert shaded == (~real).tolist() and any(shaded) and not all(shaded)
    assert f"{int((~real).sum())} of {HORIZON} steps are padding" in page.locator(".action figcaption").inner_text()

    # Another slot of the window has its own chunk.
    page.locator(".action .slots button").first.click()
    page.locator('.action .slots button:first-child[aria-pressed="true"]').wait_for()
    other = page.locator(".action .plot").evaluate(PLOT)
    assert np.allclose(other["data"][1], sample["action"][0, :, 0])


def test_scrubbing_changes_the_frame(open_page, formats):
    name, folder = formats["rlds"]
    ds = MapDataset.source(open_episodes(name, folder).episodes("all"))
    page = open_page(ds, panel="robots", index=2)
    wait_for_step(page, 0)
    assert (shown_image(page, "front") == frame(0, 2, 0)).all()
    slider = page.get_by_label("step of the episode")
    for step in (1, 2, 3):
        slider.press("ArrowRight")
        wait_for_step(page, step)
        assert (shown_image(page, "front") == frame(0, 2, step)).all()
        assert (shown_image(page, "wrist") == frame(0, 2, step, 1)).all()
    slider.press("End")
    wait_for_step(page, 7)
    assert (shown_image(page, "front") == frame(0, 2, 7)).all()
    plot = page.locator('.curves [data-name="action"] .plot').evaluate(PLOT)
    assert plot["data"][1] == actions(0, 2, 8)[:, 0].tolist()
    over = page.locator('.curves [data-name="action"] .u-over')
    size = over.bounding_box()
    over.click(position={"x": size["width"] * 2 / 7, "y": size["height"] / 2})  # of steps 0 to 7, step 2
    wait_for_step(page, 2)
    page.get_by_label("next").click()  # the next episode, from its beginning: epochs follow each other
    wait_for_step(page, 0)
    page.locator(".episode-number", has_text=re.compile("^episode 0$")).wait_for()
    page.get_by_label("play").click()  # plays to the end, and stops there
    wait_for_step(page, LENGTHS[0] - 1)
    page.locator(".robots .play", has_text="▶").wait_for()
    assert (shown_image(page, "front") == frame(0, 0, LENGTHS[0] - 1)).all()


def test_a_failing_element_is_shown_and_the_page_goes_on(open_page, mixture):
    def fail_at_one(index, batch):
        if index == 1:
            raise ValueError("no such arm")
        return batch

    page = open_page(mixture.map_with_index(fail_at_one), panel="robots", index=1)
    assert "no such arm" in page.locator(".robots .failure").inner_text()
    page.get_by_label("next").click()
    page.wait_for_selector(".camera img")
    assert page.locator(".robots .failure").count() == 0
