"""Episodes in HDF5 files (robomimic, ALOHA) and `.npz` files, against the answers of the formats' own libraries."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bushel._src.base.errors import DamagedFile
from bushel._src.trajectory import episode_array_files
from bushel._src.trajectory.data_utils import flatten_tree
from bushel._src.trajectory.episode_array_files import StoredFrames
from bushel._src.trajectory.episode_builder import open_episodes
from bushel._src.trajectory.samples import window_frames
from bushel.trajectory import (
    Episodes,
    MixtureConfig,
    apply_frame_transforms,
    apply_trajectory_transforms,
    decode_image,
    get_dataloader,
    make_dataset_from_rlds,
    make_interleaved_dataset,
    write_rlds,
)

h5py = pytest.importorskip("h5py")

GOLDEN = Path(__file__).parent / "golden_hdf5"


def queries(name: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / "queries.json").read_text())["queries"][name]


def table_of(builder: Any, split: str = "all") -> Episodes:
    source = builder.episodes(split)
    return Episodes.of((source[i] for i in range(len(source))), parts=source.parts)


def pixels(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype != object:
        return array
    return np.stack([decode_image(image) for image in array.ravel()]).reshape(
        *array.shape, *decode_image(array.flat[0]).shape
    )


ROBOMIMIC = {"obs": "observation", "next_obs": "next_observation", "actions": "action"}


def test_episodes_of_robomimic_are_read_as_robomimic_reads_them():
    answers = np.load(GOLDEN / "robomimic.expected.npz")
    builder = open_episodes("robomimic", GOLDEN, format="robomimic")
    assert builder.fps == 20.0 and builder.splits == {"train": 3, "valid": 1}
    for query in queries("robomimic.hdf5"):
        table = table_of(builder, query.get("filter", "all"))
        names = [name.decode() for name in table.columns["traj_metadata"]["episode"].take(table.starts)]
        assert names == query["demos"], query["id"]
        before, length = query["frame_stack"] - 1, query["seq_length"]
        offsets = list(range(-before, length))
        wanted = {f"{part}/{key}" for part in ("observation", "next_observation") for key in query["obs_keys"]}
        wanted |= {ROBOMIMIC.get(key, key) for key in query["dataset_keys"]}
        windows = window_frames(table, dict.fromkeys(wanted, offsets))
        starts = np.arange(table.frames)
        if query.get("pad") is False:  # only the frames whose window lies in the episode
            times = starts - np.repeat(table.starts, table.lengths)
            left = np.repeat(table.lengths, table.lengths) - times
            starts = starts[(times >= before) & (left >= length)]
        assert len(starts) == query["len"], query["id"]
        place = int(starts[query["index"]])
        element = windows[place]
        assert element["traj_metadata"]["episode"].decode() == query["demo"]
        for key in query["keys"]:
            expected = answers[f"{query['id']}/{key}"]
            top, *rest = key.split("/")
            if key.endswith("pad_mask"):  # of rows; a goal has one row, which is always real
                mask = [True] if top == "goal_obs" else ~element["action_is_pad"][:, None]
                np.testing.assert_array_equal(mask, expected, err_msg=f"{query['id']}/{key}")
                continue
            if top == "goal_obs":
                episode = int(np.searchsorted(table.starts, place, side="right") - 1)
                end = table.starts[episode] + table.lengths[episode] - 1
                found = pixels(windows[int(end)]["next_observation"][rest[0]])[before]
            else:
                leaf: Any = element
                for name in (ROBOMIMIC.get(top, top), *rest):
                    leaf = leaf[name]
                found = pixels(leaf)
            assert found.dtype == expected.dtype, (query["id"], key)
            np.testing.assert_array_equal(found, expected.reshape(found.shape), err_msg=f"{query['id']}/{key}")


def test_episodes_of_act_are_read_as_act_reads_them():
    answers = np.load(GOLDEN / "aloha.expected.npz")
    tables = {}
    for name in ("sim", "real"):
        builder = open_episodes(f"aloha_{name}", GOLDEN, format="aloha")
        assert builder.fps == 50.0
        tables[name] = table_of(builder)
    for query in queries("aloha"):
        kind = query["id"].partition("_")[0]
        table = tables[kind]
        start, first = query["start"], int(table.starts[query["episode"]])
        images, action = answers[f"{query['id']}/images"], answers[f"{query['id']}/action"]
        # ACT takes the actions of a real robot from one step earlier on, and pads with zeros.
        begin = start if kind == "sim" else max(0, start - 1)
        windows = window_frames(table, {"action": range(len(action))})
        element, chunk = windows[first + start], windows[first + begin]
        is_pad = chunk["action_is_pad"]
        np.testing.assert_array_equal(np.where(is_pad[:, None], 0, chunk["action"]), action)
        np.testing.assert_array_equal(is_pad, answers[f"{query['id']}/is_pad"])
        np.testing.assert_array_equal(element["observation"]["qpos"], answers[f"{query['id']}/qpos"])
        found = np.stack([decode_image(element["observation"][camera]) for camera in query["cameras"]])
        np.testing.assert_array_equal(found, images)


def test_compressed_images():
    """Padded JPEG rows: what a JPEG decoder gives, or what OpenCV gives, which has the colours reversed."""
    answers = np.load(GOLDEN / "aloha.expected.npz")
    plain = open_episodes("aloha_real_compressed", GOLDEN, format="aloha").episodes()[0]["observation"]
    reverse = {"reverse_jpeg_colors": True}
    as_opencv = open_episodes("aloha_real_compressed", GOLDEN, format="aloha", format_options=reverse)
    reversed_ = as_opencv.episodes()[0]["observation"]
    sizes = answers["aloha_real_compressed/episode_0/compress_len"].astype(int)
    for number, camera in enumerate(("cam_high", "cam_left_wrist")):
        expected = answers[f"aloha_real_compressed/episode_0/images_as_cv2_imdecode/{camera}"]
        np.testing.assert_array_equal(pixels(reversed_[camera]), expected)
        assert [len(image) for image in plain[camera]] == sizes[number].tolist()
        assert all(bytes(image).endswith(b"\xff\xd9") for image in plain[camera])
        # The decoder of `decode_image` is the fast one of TensorFlow, so single values differ a little.
        assert np.abs(pixels(plain[camera])[..., ::-1].astype(int) - expected).max() <= 8


def write_robomimic(path: Path, lengths: dict[str, int], **changes: Any) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for demo, length in lengths.items():
            group = file.create_group(f"data/{demo}")
            group.attrs["num_samples"] = length
            group["actions"] = rng.normal(size=(length, 4))
            group["obs/state"] = rng.normal(size=(length, 3))
            group.create_dataset(
                "obs/front_image",
                data=rng.integers(0, 256, (length, 8, 12, 3), np.uint8),
                chunks=(1, 8, 12, 3) if length else None,
                compression="gzip" if length else None,
            )
            group["obs/front_depth"] = rng.random((length, 8, 12, 1), np.float32)
        for demo, text in changes.get("language", {}).items():
            file[f"data/{demo}"].attrs["ep_meta"] = json.dumps({"lang": text})
        for split, demos in changes.get("masks", {}).items():
            file[f"mask/{split}"] = np.array(demos, dtype="S")


def arm(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "name": "arm",
        "data_dir": str(folder),
        "format": "robomimic",
        "image_obs_keys": {"primary": "front_image", "wrist": None},
        "depth_obs_keys": {"primary": "front_depth"},
        "proprio_obs_keys": {"arm": "state"},
        "language_key": "language_instruction",
        "cache_dir": str(folder / "cache"),
        **more,
    }


LENGTHS = {"demo_0": 1, "demo_1": 2, "demo_2": 0, "demo_10": 6, "demo_3": 5}


def test_pipeline_over_hdf5(tmp_path, monkeypatch):
    """Statistics, windows, goals, masks and states over a robomimic file, with images read frame by frame."""
    masks = {"train": ["demo_0", "demo_1", "demo_2", "demo_10"], "valid": ["demo_3"]}
    write_robomimic(tmp_path / "arm.hdf5", LENGTHS, masks=masks, language={"demo_10": "lift the cup"})
    ds = make_interleaved_dataset(
        [arm(tmp_path)],
        train=True,
        batch_size=4,
        traj_transform_kwargs={"window_size": 2, "action_horizon": 3, "goal_relabeling_strategy": "uniform"},
        frame_transform_kwargs={"resize_size": {"primary": (4, 4), "wrist": (4, 4)}, "depth_resize_size": (4, 4)},
    )
    with h5py.File(tmp_path / "arm.hdf5") as file:
        actions = np.concatenate([file[f"data/{demo}/actions"] for demo in ("demo_0", "demo_1", "demo_10")])
    known = ds.dataset_statistics["arm"]
    assert known["num_transitions"] == 9 and known["num_trajectories"] == 3  # an empty episode is left out
    np.testing.assert_allclose(known["action"]["mean"], actions.astype(np.float32).mean(axis=0), rtol=1e-5)
    with ds.iterator() as here, ds.iterator(workers=1) as there:
        batches = [next(here) for _ in range(3)]
        for batch, other in zip(batches, [next(there) for _ in range(3)]):
            for path, leaf in flatten_tree(batch).items():
                np.testing.assert_array_equal(leaf, flatten_tree(other)[path], err_msg="/".join(path))
    batch = batches[0]
    assert batch["observation"]["image_primary"].shape == (4, 2, 4, 4, 3)
    assert batch["observation"]["depth_primary"].dtype == np.float32
    assert not batch["observation"]["pad_mask_dict"]["image_wrist"].any()
    spoken = batch["task"]["pad_mask_dict"]["language_instruction"]
    assert spoken.tolist() == [text == b"lift the cup" for text in batch["task"]["language_instruction"]]
    held_out, _ = make_dataset_from_rlds(**arm(tmp_path), train=False)
    assert [len(one["action"]) for one in held_out] == [5]  # the filter key "valid"


def test_only_needed_frames_are_read(tmp_path, monkeypatch):
    write_robomimic(tmp_path / "arm.hdf5", {"demo_0": 50})
    own = arm(tmp_path, train_split="train", image_obs_keys={"primary": "front_image"}, depth_obs_keys={})
    ds, _ = make_dataset_from_rlds(**own, shuffle=False, train=True)
    ds = apply_trajectory_transforms(ds, train=True, window_size=2).flatten()
    read: list[Any] = []
    real = StoredFrames._read_frames

    def counting(self: Any, record: int, frames: np.ndarray) -> np.ndarray:
        read.append(frames.tolist())
        return real(self, record, frames)

    monkeypatch.setattr(StoredFrames, "_read_frames", counting)
    ds[30]
    assert read == [[29, 30]]


def test_mixture_over_formats(tmp_path):
    """Data sets of four formats in one YAML file: exact shares, one state, missing cameras padded and masked."""
    rng = np.random.default_rng(1)
    write_robomimic(tmp_path / "arm.hdf5", {"demo_0": 7, "demo_1": 9})
    (tmp_path / "grid").mkdir()
    for number, length in enumerate((5, 6)):
        np.savez(
            tmp_path / "grid" / f"{number}.npz",
            state=rng.random((length, 3), np.float32),
            top_image=rng.integers(0, 256, (length, 6, 6, 3), np.uint8),
            action=rng.random((length, 2), np.float32),
            language_instruction=np.array("push"),
        )
    steps = {"observation": {"state": rng.random((6, 3), np.float32)}, "action": rng.random((6, 4), np.float32)}
    write_rlds({"train": [{"steps": steps}] * 2}, name="tfds", data_dir=tmp_path)
    common = {"data_dir": str(tmp_path), "train_split": "all", "proprio_obs_keys": {"arm": "state"}}
    datasets = [
        {"name": "arm", "format": "robomimic", "weight": 4, "image_obs_keys": {"primary": "front_image"}, **common},
        {"name": "grid", "format": "npz", "weight": 2, "language_key": "language_instruction", **common}
        | {"image_obs_keys": {"top": "top_image"}},
        {"name": "tfds", "weight": 1, **common},
        {
            "name": "aloha_real_compressed",
            "format": "aloha",
            "weight": 1,
            "data_dir": str(GOLDEN),
            "train_split": "all",
            "format_options": {"reverse_jpeg_colors": True},
            "image_obs_keys": {"primary": "cam_high"},
        },
    ]
    config = {
        "datasets": datasets,
        "batch_size": 8,
        "cache_dir": str(tmp_path / "cache"),
        "traj_transform_kwargs": {"window_size": 1, "action_horizon": 2},
        "frame_transform_kwargs": {"resize_size": {"primary": [4, 4], "top": [4, 4]}},
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(config))
    config = MixtureConfig.from_file(tmp_path / "mix.yaml")
    assert MixtureConfig.from_dict(config.to_dict()) == config
    loader = get_dataloader(config)
    with iter(loader) as batches:
        first = [next(batches) for _ in range(4)]
        state = json.loads(json.dumps(batches.get_state()))
        rest = [next(batches) for _ in range(2)]
    names = [name for batch in first for name in batch["dataset_name"]]
    assert [names.count(name) for name in (b"arm", b"grid", b"tfds", b"aloha_real_compressed")] == [16, 8, 4, 4]
    for batch in first:
        masks = batch["observation"]["pad_mask_dict"]
        of = batch["dataset_name"]
        assert masks["image_primary"][:, 0].tolist() == [name in (b"arm", b"aloha_real_compressed") for name in of]
        assert masks["image_top"][:, 0].tolist() == [name == b"grid" for name in of]
        assert masks["proprio_arm"][:, 0].tolist() == [name != b"aloha_real_compressed" for name in of]
        assert batch["action"].shape == (8, 1, 2, 14)
    with iter(loader) as batches:
        batches.set_state(state)
        for expected in rest:
            found = next(batches)
            np.testing.assert_array_equal(found["action"], expected["action"])
            np.testing.assert_array_equal(
                found["observation"]["image_primary"], expected["observation"]["image_primary"]
            )


@pytest.mark.parametrize("compressed", [False, True])
def test_episodes_in_npz_files_are_read(tmp_path, compressed):
    rng = np.random.default_rng(2)
    episodes = []
    for number, length in ((10, 4), (2, 3), (1, 0)):
        arrays = {
            "observation/state": rng.random((length, 3)),
            "observation/image": rng.integers(0, 256, (length, 5, 4, 3), np.uint8),
            "actions": rng.random((length, 2)),
            "reward": rng.random(length),
        }
        (np.savez_compressed if compressed else np.savez)(tmp_path / f"episode_{number}.npz", **arrays)
        episodes.insert(0, arrays)
    builder = open_episodes("mine", tmp_path, format="npz", format_options={"fps": 5})
    source = builder.episodes()
    assert builder.fps == 5 and len(source) == 3 and repr(builder) == "ArrayEpisodesBuilder(mine; train: 3)"
    for found, expected in zip([source[i] for i in range(3)], episodes):
        np.testing.assert_array_equal(found["action"], expected["actions"])
        np.testing.assert_array_equal(found["observation"]["state"], expected["observation/state"])
        images = [decode_image(image) for image in pickle.loads(pickle.dumps(found["observation"]["image"]))]
        np.testing.assert_array_equal(
            np.array(images).reshape(expected["observation/image"].shape), expected["observation/image"]
        )
    with pytest.raises(IndexError, match="out of range for 3 episodes"):
        source[3]


def test_episodes_are_read_from_a_store():
    """Files in a store are read by ranges."""
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for path in [*sorted(GOLDEN.glob("aloha_sim/*.hdf5")), GOLDEN / "robomimic.hdf5"]:
        store.pipe(f"/robots/{path.relative_to(GOLDEN)}", path.read_bytes())
    for name, kind in (("aloha_sim", "aloha"), ("robomimic", "robomimic")):
        there = open_episodes(name, "memory://robots", format=kind).episodes()
        here = open_episodes(name, GOLDEN, format=kind).episodes()
        assert len(there) == len(here)
        for found, expected in zip(there.__getitems__([0, 2]), here.__getitems__([0, 2])):
            for path, leaf in flatten_tree(found).items():
                other = flatten_tree(expected)[path]
                assert all(a == b for a, b in zip(leaf, other)) if leaf.dtype == object else (leaf == other).all()


def test_folders_of_npz_files_named_train_and_val_are_splits(tmp_path):
    for split, count in (("train", 2), ("val", 1)):
        (tmp_path / "mine" / split).mkdir(parents=True)
        for number in range(count):
            np.savez(tmp_path / "mine" / split / f"{number}.npz", x=np.arange(3), action=np.zeros((3, 1)))
    builder = open_episodes("mine", tmp_path, format="npz")
    assert builder.splits == {"train": 2, "val": 1} and builder.default_splits() == ("train", "val")
    assert builder.positions("val").tolist() == [2] and builder.positions("all").tolist() == [0, 1, 2]
    assert builder.positions("train[:50%]+val").tolist() == [0, 2]
    with pytest.raises(ValueError, match="There is no split 'test'"):
        builder.positions("test")


# Damage and odd data: the message names the episode, the key and the file.


def broken(tmp_path: Path, change: Any, **more: Any) -> Any:
    path = tmp_path / "arm.hdf5"
    write_robomimic(path, {"demo_0": 4, "demo_1": 5})
    with h5py.File(path, "a") as file:
        change(file["data/demo_1"])
    return make_dataset_from_rlds(**arm(tmp_path, train_split="all", shuffle=False, **more), train=True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda demo: demo.__delitem__("obs/state"), ValueError, "no 'state', which proprio_obs_keys names"),
        (lambda demo: demo.__delitem__("actions"), ValueError, "have no action"),
        (lambda demo: demo.__delitem__("obs/front_image"), ValueError, "has no 'obs/front_image'"),
        (lambda demo: demo.attrs.__setitem__("num_samples", -1), DamagedFile, "num_samples is .*-1"),
        (lambda demo: demo.attrs.__setitem__("num_samples", 9), DamagedFile, "has 5 steps, but the episode has 9"),
    ],
)
def test_damage_names_episode_key_and_file(tmp_path, change, error, message):
    with pytest.raises(error, match=message) as caught:
        broken(tmp_path, change)
    assert "data/demo_1 of " in str(caught.value) and "arm.hdf5" in str(caught.value)
    with pytest.warns(UserWarning, match="1 of 2 trajectories of arm could not be read"):
        ds, _ = make_dataset_from_rlds(
            **arm(tmp_path, train_split="all", shuffle=False, ignore_errors=True), train=True
        )
    assert [len(one["action"]) for one in ds] == [4]


def test_other_shapes_name_the_episode(tmp_path):
    def widen(demo: Any) -> None:
        del demo["obs/state"]
        demo["obs/state"] = np.zeros((5, 4))

    with pytest.raises(ValueError, match=r"episode 1 \(data/demo_1 of .*arm.hdf5\): observation/proprio_arm"):
        broken(tmp_path, widen)


def test_missing_camera_is_padding_if_asked(tmp_path):
    ds, _ = broken(tmp_path, lambda demo: demo.__delitem__("obs/front_image"), format_options={"missing_images": "pad"})
    frames = apply_trajectory_transforms(ds, train=True).flatten()
    masks = [bool(frames[i]["observation"]["pad_mask_dict"]["image_primary"][0]) for i in range(9)]
    assert masks == [True] * 4 + [False] * 5


def test_camera_of_another_size_is_resized(tmp_path):
    def shrink(demo: Any) -> None:
        del demo["obs/front_image"]
        demo["obs/front_image"] = np.zeros((5, 4, 4, 3), np.uint8)

    ds, _ = broken(tmp_path, shrink)
    ds = apply_trajectory_transforms(ds, train=False)
    resized = apply_frame_transforms(ds.flatten(), train=False, resize_size=(6, 6), depth_resize_size=(6, 6))
    assert {resized[i]["observation"]["image_primary"].shape for i in range(9)} == {(1, 6, 6, 3)}


@pytest.mark.parametrize("size", [100, 5000])
def test_truncated_episode_files_are_named(tmp_path, size):
    write_robomimic(tmp_path / "arm.hdf5", {"demo_0": 4})
    os.truncate(tmp_path / "arm.hdf5", size)
    with pytest.raises(DamagedFile, match=r"arm.hdf5 is not a complete HDF5 file"):
        open_episodes("arm", tmp_path, format="robomimic")
    np.savez(tmp_path / "0.npz", x=np.zeros((3, 1000)), action=np.zeros((3, 1)))
    os.truncate(tmp_path / "0.npz", size)
    with pytest.raises(DamagedFile, match=r"0.npz is not a complete .npz file"):
        open_episodes("x", tmp_path, format="npz")


def test_an_episode_file_that_was_replaced_is_noticed(tmp_path):
    write_robomimic(tmp_path / "arm.hdf5", {"demo_0": 4})
    source = pickle.loads(pickle.dumps(open_episodes("arm", tmp_path, format="robomimic").episodes()))
    handle = source[0]["observation"]["front_image"][1]
    write_robomimic(tmp_path / "new.hdf5", {"demo_0": 9})
    os.replace(tmp_path / "new.hdf5", tmp_path / "arm.hdf5")
    episode_array_files._shared = (
        episode_array_files._ArrayFilePool()
    )  # as in another process, which opens the file now
    with pytest.raises(DamagedFile, match="when the source was made"):
        bytes(handle)


def test_a_file_is_closed_with_its_last_reader(tmp_path):
    for length in (4, 6):  # HDF5 refuses to write to a file that is open
        write_robomimic(tmp_path / "arm.hdf5", {"demo_0": length})
        source = open_episodes("arm", tmp_path, format="robomimic").episodes()
        images = [decode_image(image) for image in source[0]["observation"]["front_image"]]
        assert len(images) == length
        del source


def test_a_reader_may_be_gone_while_another_file_is_opened(tmp_path, monkeypatch):
    """Python collects garbage at any line, also while the pool adds up the memory of its files."""
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=np.arange(3))
    readers = [episode_array_files.ArrayFile("npz", str(tmp_path / "a.npz"))]
    readers[0].open()
    key = next(key for key in episode_array_files._pool()._open if "a.npz" in key)

    def measure(self):
        readers.clear()
        return 0

    monkeypatch.setattr(episode_array_files._OpenArrayFile, "memory_bytes", property(measure))
    other = episode_array_files.ArrayFile("npz", str(tmp_path / "b.npz"))
    assert other.array("x").tolist() == [0, 1, 2]
    assert not readers and key not in episode_array_files._pool()._open


def test_unequal_lengths_in_aloha(tmp_path):
    for number, length in enumerate((3, 4)):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.zeros((3, 14), np.float32)
            file["observations/qpos"] = np.zeros((length, 14), np.float32)
    source = open_episodes("mine", tmp_path, format="aloha").episodes()
    assert source[0]["observation"]["qpos"].shape == (3, 14)
    with pytest.raises(DamagedFile, match=r"episode 1 \(.*episode_1.hdf5\): 'observations/qpos' has 4 steps"):
        source[1]


def test_wrong_arguments_of_array_episodes_are_named(tmp_path):
    write_robomimic(tmp_path / "arm.hdf5", {"demo_0": 4}, masks={"train": ["demo_7"]})
    with pytest.raises(ValueError, match="the filter key 'train' names 'demo_7'"):
        open_episodes("arm", tmp_path, format="robomimic")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(ValueError, match=re.escape("has no groups 'data/demo_0'")):
        open_episodes("other", tmp_path, format="robomimic")
    with pytest.raises(
        ValueError,
        match=r"The format 'aloha' of data set 'x' has no option 'reverse'. Did you mean 'reverse_jpeg_colors'",
    ):
        open_episodes("x", tmp_path, format="aloha", format_options={"reverse": True})
    with pytest.raises(ValueError, match='format must be "rlds", "robomimic"'):
        open_episodes("x", tmp_path, format="hdf6")
    with pytest.raises(FileNotFoundError, match="There is no data set 'gone'"):
        open_episodes("gone", tmp_path, format="robomimic")
    with pytest.raises(FileNotFoundError, match=r"has files that end in .npz"):
        open_episodes("gone", tmp_path / "nowhere", format="npz")
    with pytest.raises(ValueError, match="The episodes have no entry 'y'"):
        window_frames(Episodes.of([{"x": np.arange(3)}]), {"y": [0]})
