"""LeRobot data sets in the robot pipeline: mixtures with RLDS data, configurations, stores, and conversion."""

import json

import numpy as np
import pytest
import yaml
from helpers.lerobot_folders import CAMERAS, picture, read_row, write_dataset
from helpers.servers import BUCKET, Web, s3

from bushel._src.trajectory.lerobot.dataset_folder import LeRobotFolder
from bushel._src.trajectory.lerobot.reader import LeRobotBuilder
from bushel.trajectory import (
    LeRobotSource,
    convert_episodes,
    decode_image,
    get_dataloader,
    make_dataset_from_lerobot,
    make_interleaved_dataset,
    write_rlds,
)

LENGTHS = [7, 1, 2, 12, 5]
FRONT, WRIST = CAMERAS
KEYS = {
    "image_obs_keys": {"primary": "images.front", "wrist": "images.wrist"},
    "proprio_obs_keys": {"arm": "state"},
    "language_key": "language_instruction",
    "train_split": "train",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a LeRobot data set of two cameras and an RLDS data set of one."""
    folder = tmp_path_factory.mktemp("robots")
    write_dataset(folder / "video_arm", LENGTHS)
    rng = np.random.default_rng(1)

    def episode(length):
        steps = {
            "observation": {
                "image": np.stack([picture(100 + row, (48, 64)) for row in range(length)]),
                "state": rng.normal(size=(length, 3)).astype(np.float32),
            },
            "action": rng.normal(size=(length, 3)).astype(np.float32),
            "language_instruction": np.array([b"lift"] * length, object),
        }
        return {"steps": steps}

    write_rlds({"train": [episode(n) for n in (5, 6, 7)]}, name="rlds_arm", data_dir=str(folder))
    return folder


def mixture(root, tmp_path):
    own = {"name": "rlds_arm", "data_dir": str(root), **KEYS, "image_obs_keys": {"primary": "image"}}
    return {
        "datasets": [
            {"name": "video_arm", "data_dir": str(root), "format": "lerobot", "weight": 3, **KEYS},
            {**own, "weight": 1},
        ],
        "batch_size": 8,
        "cache_dir": str(tmp_path),
        "traj_transform_kwargs": {
            "window_size": 3,
            "action_horizon": 2,
            "goal_relabeling_strategy": "uniform",
            "task_augment_strategy": "delete_task_conditioning",
            "task_augment_kwargs": {"keep_image_prob": 0.5},
        },
        "frame_transform_kwargs": {"resize_size": {"primary": [48, 64], "wrist": [24, 32]}},
    }


def test_trajectories_have_the_frames_of_their_episodes(root, tmp_path):
    ds, statistics = make_dataset_from_lerobot("video_arm", root, train=True, shuffle=False, cache_dir=tmp_path, **KEYS)
    assert len(ds) == 5 and statistics["num_transitions"] == 27
    source = LeRobotSource(root / "video_arm", cache_dir=tmp_path)
    actions = source.__getitems__(range(27)).tree["action"]
    np.testing.assert_allclose(statistics["action"]["mean"], actions.mean(axis=0), rtol=1e-5)
    first = 0
    for trajectory, length in zip(ds, LENGTHS):
        images = list(map(decode_image, trajectory["observation"]["image_primary"]))
        assert [read_row(image) for image in images] == list(range(first, first + length))
        np.testing.assert_array_equal(images[0], source[first][FRONT])
        assert trajectory["task"]["language_instruction"][0] == source[first]["task"].encode()
        first += length


def test_a_mixture_of_rlds_and_lerobot_has_exact_shares_masks_and_one_state(root, tmp_path):
    path = tmp_path / "mixture.yaml"
    path.write_text(yaml.safe_dump(mixture(root, tmp_path)))
    loader = get_dataloader(path)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(4)]
    names = np.concatenate([batch["dataset_name"] for batch in batches])
    assert [int((names[:count] == b"video_arm").sum()) for count in (4, 8, 16, 32)] == [3, 6, 12, 24]
    for batch in batches:
        observation, is_video = batch["observation"], batch["dataset_name"] == b"video_arm"
        assert observation["image_primary"].shape == (8, 3, 48, 64, 3)
        assert observation["image_wrist"].shape == (8, 3, 24, 32, 3)
        assert observation["pad_mask_dict"]["image_wrist"].tolist() == [[own] * 3 for own in is_video]
        assert not observation["image_wrist"][~is_video].any()
        assert observation["pad_mask_dict"]["image_primary"].all()
        for row, own in enumerate(is_video):  # the three steps of a window are neighbours
            steps = [read_row(image) for image in observation["image_primary"][row]]
            times = observation["timestep"][row]
            assert (steps - times == steps[0] - times[0]).all()
            assert (steps[0] < 27) == own
    state = iterator.get_state()
    expected = [next(iterator) for _ in range(3)]
    again = iter(get_dataloader(path, workers=2))
    again.set_state(json.loads(json.dumps(state)) if isinstance(state, dict) else state)
    for batch in expected:
        other = next(again)
        np.testing.assert_array_equal(other["observation"]["image_primary"], batch["observation"]["image_primary"])
        np.testing.assert_array_equal(other["task"]["image_primary"], batch["task"]["image_primary"])
        np.testing.assert_array_equal(other["action"], batch["action"])
    again.close()
    iterator.close()


def test_two_lerobot_data_sets_are_one_table(root, tmp_path):
    write_dataset(tmp_path / "other", [4, 4], fps=5, codec="libx265")
    own = [{"name": name, "format": "lerobot", **KEYS} for name in ("video_arm", "other")]
    own = [{**one, "data_dir": str(folder)} for one, folder in zip(own, (root, tmp_path))]
    frames = {"resize_size": (48, 64)}
    ds = make_interleaved_dataset(own, train=True, batch_size=4, cache_dir=str(tmp_path), frame_transform_kwargs=frames)
    batch = next(ds.iterator())
    assert sorted(batch["dataset_name"].tolist()) == [b"other", b"other", b"video_arm", b"video_arm"]
    assert "join" not in repr(ds) and batch["observation"]["image_wrist"].any(axis=(1, 2, 3, 4)).all()


def test_raw_episodes_and_splits(root, tmp_path):
    builder = LeRobotBuilder(LeRobotFolder(root / "video_arm"), cache_dir=tmp_path)
    assert builder.splits == {"train": 5} and builder.fps == 10
    episodes = builder.episodes("train[2:4]")
    assert [len(episode["action"]) for episode in (episodes[0], episodes[1])] == [2, 12]
    raw = episodes[-1]
    assert sorted(raw["observation"]) == ["images.front", "images.wrist", "state"]
    assert raw["traj_metadata"]["episode_index"].tolist() == [3] * 12
    handle = raw["observation"]["images.wrist"][4]
    assert read_row(decode_image(handle)) == 14
    assert builder.positions("train[:40%]+train[4:]").tolist() == [0, 1, 4]


def test_what_bushel_writes_is_read_again(root, tmp_path):
    written = convert_episodes(root / "rlds_arm", tmp_path / "video", format="lerobot", fps=10, crf=10)
    assert written.elements == 3
    source = LeRobotSource(
        tmp_path / "video", cache_dir=tmp_path, delta_timestamps={"observation.images.image": [-0.1, 0]}
    )
    assert source.lengths.tolist() == [5, 6, 7]
    assert [read_row(image) for image in source[5]["observation.images.image"]] == [100, 100]
    assert [read_row(image) for image in source[17]["observation.images.image"]] == [105, 106]
    assert source[0]["task"] == "lift"
    back = convert_episodes(tmp_path / "video", tmp_path / "back" / "arm", format="rlds", source_format="lerobot")
    assert back.elements == 3


# Stores.


def list_files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", [2, 3])
def test_behind_a_web_server_only_what_is_needed_is_read(tmp_path, version):
    folder = write_dataset(tmp_path / "set", [40, 30, 20], version=version, size=(96, 128))
    expected = LeRobotSource(folder, cache_dir=tmp_path / "local")
    content = list_files(folder)
    with Web({f"/set/{name}": data for name, data in content.items()}) as web:
        source = LeRobotSource(f"{web.url}/set", cache_dir=tmp_path / "cache")
        web.ranges.clear()
        for row in (0, 55, 89):
            np.testing.assert_array_equal(source[row][FRONT], expected[row][FRONT])
            assert source[row]["task"] == expected[row]["task"]
        read = sum(high - low for low, high in web.ranges)
        videos = sum(len(data) for name, data in content.items() if name.endswith(".mp4"))
        assert read < videos / 2
        copied = LeRobotSource(
            f"{web.url}/set", cache_dir=tmp_path / "cache", storage_options={"cache_dir": str(tmp_path / "copies")}
        )
        np.testing.assert_array_equal(copied[70][WRIST], expected[70][WRIST])
        asked = web.requests
        np.testing.assert_array_equal(copied[71][WRIST], expected[71][WRIST])
        assert web.requests == asked  # the copy on disk has it


@pytest.mark.slow
def test_behind_s3_and_gcs(tmp_path):
    folder = write_dataset(tmp_path / "set", [6, 5])
    expected = LeRobotSource(folder, cache_dir=tmp_path / "local")
    with s3(tmp_path) as put:
        for name, data in list_files(folder).items():
            put(f"sets/arm/{name}", data)
        for scheme in ("s3", "gs"):
            source = LeRobotSource(f"{scheme}://{BUCKET}/sets/arm", cache_dir=tmp_path / scheme)
            batch = source.__getitems__([10, 0, 7]).tree
            np.testing.assert_array_equal(batch[FRONT], expected.__getitems__([10, 0, 7]).tree[FRONT])
