"""Which step of which episode an element shows. The data say it themselves: a state is (robot, episode, step)."""

import numpy as np
import pytest
from helpers.traceable_robots import LENGTHS, actions, keys, state, steps, write_all_formats, write_robot

from bushel import MapDataset
from bushel._src.view.episode_lookup import find_episode_step
from bushel.trajectory import (
    Episodes,
    LeRobotSource,
    TrajectoryDataset,
    apply_trajectory_transforms,
    make_interleaved_dataset,
    open_episodes,
    window_frames,
)

NAMES = ("arm", "gripper")


@pytest.fixture(scope="module")
def robots(tmp_path_factory):
    """Two robots in RLDS, as arguments of the pipelines."""
    folder = tmp_path_factory.mktemp("robots")
    both = []
    for number, name in enumerate(NAMES):
        data = write_robot(folder / "data", name, number, LENGTHS if number == 0 else (4, 6))
        both.append(keys(name, data, folder / "cache"))
    return both


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    return write_all_formats(tmp_path_factory.mktemp("formats"))


def mixture(robots, *, traj=None, frames=None, batch_size=None, **more):
    return make_interleaved_dataset(
        robots,
        sample_weights=[2, 1],
        train=True,
        traj_transform_kwargs={"window_size": 2, "action_horizon": 3, **(traj or {})},
        frame_transform_kwargs={"resize_size": (24, 32), **(frames or {})},
        batch_size=batch_size,
        **more,
    ).dataset


PIPELINES = {
    "plain": mixture,
    "unlike robots": lambda robots: mixture(
        [robots[0], {**robots[1], "image_obs_keys": {"primary": "front", "wrist": None}, "language_key": None}]
    ),
    "subsampled": lambda robots: mixture(robots, traj={"subsample_length": 2}),
    "augmented": lambda robots: mixture(
        robots, frames={"image_augment_kwargs": {"augment_order": ["random_brightness"], "random_brightness": [0.2]}}
    ),
    "sliced": lambda robots: mixture(robots)[3:60:2],
    "mapped": lambda robots: mixture(robots).map(lambda x: {**x, "more": 1}),
}


def truth(sample):
    """What the sample says of itself: robot, episode, step."""
    return tuple(int(x) for x in sample["observation"]["proprio_arm"][-1])


@pytest.mark.parametrize("name", PIPELINES)
def test_an_element_knows_its_episode(robots, name):
    ds = PIPELINES[name](robots)
    seen = set()
    for index in (0, 1, 2, 7, 16, 25, 27):  # of several epochs
        place = find_episode_step(ds._node, index)
        robot, episode, step = truth(ds[index])
        assert (place.dataset, place.episode, place.time) == (NAMES[robot], episode, step)
        (record,) = ds.origin(index).records
        assert (record.source, record.record) == (f"episode {episode} of {NAMES[robot]}", step)
        whole = place.read_episode()
        assert whole["observation"]["proprio_arm"].tolist() == state(robot, episode, len(whole["action"])).tolist()
        assert step in place.times.tolist() and sorted(place.times.tolist()) == place.times.tolist()
        for number, time in enumerate(place.times.tolist()):
            assert truth(place.read_step(number)) == (robot, episode, time)
        seen.add(robot)
    assert seen == {0, 1}


def test_another_step_is_read_as_the_stream_gives_it(robots):
    """Without random changes, a step that is read for its episode equals the element of the stream with that step."""
    ds = mixture(robots, traj={"goal_relabeling_strategy": "uniform"})
    elements = [ds[index] for index in range(24)]
    places = [find_episode_step(ds._node, index) for index in range(24)]
    compared = 0
    for place in places:
        for other, element in zip(places, elements):
            if (other.dataset, other.episode) == (place.dataset, place.episode):
                own = place.read_step(place.times.tolist().index(other.time))
                assert (own["action"] == element["action"]).all()
                assert own["observation"]["image_primary"].tolist() == element["observation"]["image_primary"].tolist()
                compared += 1
    assert compared > 24


def test_rows_of_batches_on_maps_and_streams(robots):
    ds = mixture(robots)
    for batches in (ds.batch(4), ds.to_iter_dataset().batch(4).map(lambda x: x)):
        for index, row in ((0, 0), (1, 3), (3, 2)):
            place = find_episode_step(batches._node, index, row)
            robot, episode, step = truth(ds[4 * index + row])
            assert (place.dataset, place.episode, place.time) == (NAMES[robot], episode, step)
            assert (place.row, place.rows) == (row, 4)
            assert truth(place.read_step(place.times.tolist().index(step))) == (robot, episode, step)


def test_no_place_where_elements_depend_on_what_was_read(robots):
    ds = mixture(robots)
    assert find_episode_step(ds.filter(lambda x: True).to_iter_dataset()._node, 0) is None
    assert find_episode_step(ds.to_iter_dataset().filter(lambda x: True)._node, 0) is None
    assert find_episode_step(ds.batch(2).batch(2)._node, 0) is None
    assert find_episode_step(MapDataset.range(5)._node, 0) is None


def test_whole_trajectories_and_functions_of_them():
    episodes = [steps(0, episode, length) for episode, length in enumerate(LENGTHS)]
    ds = TrajectoryDataset.from_trajectories(episodes)
    place = find_episode_step(ds.dataset._node, 2)
    assert place.is_episode and place.episode == 2 and str(place) == "episode 2"
    # A function of whole trajectories: frames are cut out of what it returns.
    frames = ds.traj_map(lambda x: {**x, "action": x["action"] + 1}).flatten().shuffle(seed=1)
    for index in range(16):
        place, sample = find_episode_step(frames.dataset._node, index), frames[index]
        assert (0, place.episode, place.time) == tuple(sample["observation"]["state"].astype(int))
        assert (place.read_episode()["action"] == actions(0, place.episode, LENGTHS[place.episode]) + 1).all()
        other = place.read_step(0)
        assert tuple(other["observation"]["state"].astype(int)) == (0, place.episode, 0)


def test_windows_of_whole_trajectories_have_places_too(robots):
    ds = TrajectoryDataset.from_trajectories([steps(0, 0, 5)])
    windows = apply_trajectory_transforms(ds, train=True, window_size=2, action_horizon=4)
    assert find_episode_step(windows.dataset._node, 0).is_episode
    assert find_episode_step(windows.flatten().dataset._node, 3).time == 3


@pytest.mark.parametrize("kind", ["rlds", "npz", "aloha", "robomimic", "lerobot"])
def test_episodes_of_each_format(formats, kind):
    name, folder = formats[kind]
    source = open_episodes(name, folder, format=kind).episodes("all")
    ds = MapDataset.source(source).shuffle(seed=3)
    for index in range(3):
        place, tree = find_episode_step(ds._node, index), ds[index]
        assert place.is_episode and place.dataset.split("/")[0] == "arm"
        assert (tree["action"] == actions(0, place.episode, LENGTHS[place.episode])).all()
        assert place.fps == (10 if kind == "lerobot" else None)
        assert (place.read_episode()["action"] == tree["action"]).all()


@pytest.mark.parametrize("kind", ["npz", "robomimic", "lerobot"])
def test_episodes_of_a_split_keep_their_numbers(formats, kind):
    name, folder = formats[kind]
    ds = MapDataset.source(open_episodes(name, folder, format=kind).episodes("train[1:]"))
    assert [find_episode_step(ds._node, index).episode for index in range(2)] == [1, 2]


def test_rows_of_lerobot_and_windows_by_offsets(formats):
    name, folder = formats["lerobot"]
    source = LeRobotSource(f"{folder}/{name}", delta_timestamps={"action": [0, 0.1, 0.2]}, episodes=[1, 2])
    ds = MapDataset.source(source).shuffle(seed=2).map(lambda row: {**row, "more": 1})
    for index in range(11):
        place, row = find_episode_step(ds._node, index), ds[index]
        assert (place.episode, place.time) == (row["episode_index"], row["frame_index"])
        assert place.offsets["action"].tolist() == [0, 1, 2]
        assert place.read_step(0)["frame_index"] == 0 and place.read_step(0)["more"] == 1
        assert len(place.read_episode()["action"]) == LENGTHS[place.episode]
    table = Episodes.of(steps(0, episode, length) for episode, length in enumerate(LENGTHS))
    windows = window_frames(table, {"action": range(4)}).shuffle(seed=5)
    for index in range(16):
        place, sample = find_episode_step(windows._node, index), windows[index]
        assert (0, place.episode, place.time) == tuple(sample["observation"]["state"].astype(int))
        assert place.read_step(1)["observation"]["state"].tolist() == [0, place.episode, 1]
        assert np.array_equal(place.read_episode()["action"], actions(0, place.episode, LENGTHS[place.episode]))
