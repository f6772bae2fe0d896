"""Damaged and odd episodes, the same damage in each format: an error that names episode, key and file, or masked.

What only one format can have is tested with it: videos in `test_lerobot.py`, features of TFDS in `test_rlds.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bushel._src.base.errors import DamagedFile
from bushel.trajectory import (
    LeRobotSource,
    apply_frame_transforms,
    apply_trajectory_transforms,
    convert_episodes,
    make_dataset_from_rlds,
    write_rlds,
)

h5py = pytest.importorskip("h5py")
simplejpeg = pytest.importorskip("simplejpeg")
pytest.importorskip("pyarrow.parquet")

Episode = dict[str, Any]


def episode(length: int, number: int = 0) -> Episode:
    rng = np.random.default_rng([length, number])
    pictures = rng.integers(0, 256, (length, 24, 32, 3), np.uint8)
    return {
        "image": [simplejpeg.encode_jpeg(picture, 90) for picture in pictures],
        "state": rng.random((length, 3), np.float32),
        "action": rng.random((length, 2), np.float32),
        "language": "pick it up",
    }


# How each format is written. A damage changes the second of three episodes, or its file.


def write_tfds(folder: Path, episodes: list[Episode], file_format: Any = "tfrecord") -> None:
    rows = []
    for one in episodes:
        steps = {"observation": {key: one[key] for key in ("image", "state") if key in one}, "action": one["action"]}
        steps["language_instruction"] = np.full(len(one["action"]), one.get("language", "").encode(), object)
        rows.append({"steps": steps})
    write_rlds({"train": rows}, name="arm", data_dir=folder, shards=len(rows), file_format=file_format)


def write_array_record(folder: Path, episodes: list[Episode]) -> None:
    pytest.importorskip("array_record")
    write_tfds(folder, episodes, "array_record")


def pixels_of(one: Episode) -> np.ndarray:
    pictures = [simplejpeg.decode_jpeg(image) for image in one["image"]]
    return np.stack(pictures) if pictures else np.zeros((0, 24, 32, 3), np.uint8)


def write_robomimic(folder: Path, episodes: list[Episode]) -> None:
    with h5py.File(folder / "arm.hdf5", "w") as file:
        for number, one in enumerate(episodes):
            demo = file.create_group(f"data/demo_{number}")
            demo.attrs["num_samples"] = len(one["action"])
            demo["actions"] = one["action"]
            if "state" in one:
                demo["obs/state"] = one["state"]
            if "image" in one:
                demo["obs/image"] = pixels_of(one)
            if "language" in one:
                demo.attrs["ep_meta"] = json.dumps({"lang": one["language"]})


def write_aloha(folder: Path, episodes: list[Episode]) -> None:
    (folder / "arm").mkdir()
    for number, one in enumerate(episodes):
        with h5py.File(folder / "arm" / f"episode_{number}.hdf5", "w") as file:
            file.attrs["compress"], file["action"] = True, one["action"]
            if "state" in one:
                file["observations/state"] = one["state"]
            if "image" in one:
                width = max(map(len, one["image"]), default=9)
                rows = [np.frombuffer(image.ljust(width, b"\0"), np.uint8) for image in one["image"]]
                file["observations/images/image"] = np.array(rows, np.uint8).reshape(-1, width)


def write_npz(folder: Path, episodes: list[Episode], name: str = "arm") -> None:
    (folder / name).mkdir()
    for number, one in enumerate(episodes):
        arrays = {key: one[key] for key in ("state", "action") if key in one}
        if "image" in one:
            arrays["image"] = pixels_of(one)
        if "language" in one:
            arrays["language_instruction"] = np.array(one["language"])
        np.savez(folder / name / f"{number}.npz", **arrays)


def write_lerobot(folder: Path, episodes: list[Episode]) -> None:
    write_npz(folder, episodes, "recorded")
    convert_episodes(folder / "recorded", folder / "arm", format="lerobot", source_format="npz", fps=10, codec=None)


FORMATS: dict[str, tuple[Callable[[Path, list[Episode]], None], str, str]] = {
    "tfrecord": (write_tfds, "rlds", "image"),
    "array_record": (write_array_record, "rlds", "image"),
    "robomimic": (write_robomimic, "robomimic", "image"),
    "aloha": (write_aloha, "aloha", "image"),
    "npz": (write_npz, "npz", "image"),
    "lerobot": (write_lerobot, "lerobot", "images.image"),
}
PLACES = {  # the second episode, as messages name it
    "tfrecord": r"episode 1 of arm/all \(record 0 of .*arm-train.tfrecord-00001-of-00003\)",
    "array_record": r"episode 1 of arm/all \(record 0 of .*arm-train.array_record-00001-of-00003\)",
    "robomimic": r"episode 1 \(data/demo_1 of .*arm\.hdf5\)",
    "aloha": r"episode 1 \(.*episode_1\.hdf5\)",
    "npz": r"episode 1 \(.*1\.npz\)",
    "lerobot": r"episode 1 of .*arm",
}


def write(name: str, folder: Path, damage: Callable[[list[Episode]], Any] | None = None) -> None:
    episodes = [episode(4, 0), episode(5, 1), episode(6, 2)]
    if damage is not None:
        damage(episodes)
    FORMATS[name][0](folder, episodes)


def read(name: str, folder: Path, **more: Any) -> list[dict[str, Any]]:
    """All frames after the usual transforms, decoded."""
    _, kind, camera = FORMATS[name]
    ds, _ = make_dataset_from_rlds(
        "arm",
        folder,
        train=True,
        format=kind,
        image_obs_keys={"primary": camera},
        proprio_obs_keys={"arm": "state"},
        language_key="language_instruction",
        train_split="train",
        cache_dir=folder / "cache",
        shuffle=False,
        **more,
    )
    frames = apply_frame_transforms(
        apply_trajectory_transforms(ds, train=False, window_size=2).flatten(), train=False, resize_size=(8, 8)
    )
    return [frames[place] for place in range(len(frames))]


all_formats = pytest.mark.parametrize("name", FORMATS)


def without(*names: str) -> Any:
    return pytest.mark.parametrize("name", [name for name in FORMATS if name not in names])


@all_formats
def test_episodes_of_no_step_are_left_out_and_short_ones_are_padded(tmp_path, name):
    FORMATS[name][0](tmp_path, [episode(4), episode(0), episode(1), episode(2)])
    frames = read(name, tmp_path)
    assert [int(frame["observation"]["timestep"][-1]) for frame in frames] == [0, 1, 2, 3, 0, 0, 1]
    assert [bool(frame["observation"]["timestep_pad_mask"][0]) for frame in frames] == [0, 1, 1, 1, 0, 0, 1]


@without("aloha")  # which has no instructions
def test_an_instruction_that_is_missing_is_masked(tmp_path, name):
    write(name, tmp_path, lambda episodes: episodes[1].pop("language"))
    masks = [bool(frame["task"]["pad_mask_dict"]["language_instruction"]) for frame in read(name, tmp_path)]
    assert masks == [True] * 4 + [False] * 5 + [True] * 6


def shrink(episodes: list[Episode]) -> None:
    small = [simplejpeg.decode_jpeg(image)[:12, :16] for image in episodes[1]["image"]]
    episodes[1]["image"] = [simplejpeg.encode_jpeg(np.ascontiguousarray(image)) for image in small]


@without("lerobot")  # whose writer refuses it
def test_a_camera_of_another_size_is_resized(tmp_path, name):
    write(name, tmp_path, shrink)
    assert {frame["observation"]["image_primary"].shape for frame in read(name, tmp_path)} == {(2, 8, 8, 3)}


# What the writers of RLDS and LeRobot refuse, and other programs have written into HDF5 and .npz files.


def cut_state(episodes: list[Episode]) -> None:
    episodes[1]["state"] = episodes[1]["state"][:-1]


def cut_images(episodes: list[Episode]) -> None:
    episodes[1]["image"].pop()


def narrow_state(episodes: list[Episode]) -> None:
    episodes[1]["state"] = episodes[1]["state"][:, :2]


def drop_state(episodes: list[Episode]) -> None:
    del episodes[1]["state"]


def drop_camera(episodes: list[Episode]) -> None:
    del episodes[1]["image"]


MISFITS = {
    cut_state: r"'(obs/|observations/)?state' has 4 steps, but .* has 5",
    cut_images: r"'(obs/|observations/images/)?image' has 4 steps, but .* has 5",
    narrow_state: r"proprio_arm of trajectory 1: it has float32\[2\] per frame here and float32\[3\] before",
    drop_state: r"no 'state', which proprio_obs_keys names",
    drop_camera: r"has no '(obs/|observations/images/)?image', which the first episode has",
}


@pytest.mark.parametrize("name", ["robomimic", "aloha", "npz"])
@pytest.mark.parametrize("damage", MISFITS, ids=lambda damage: damage.__name__)
def test_an_episode_that_does_not_fit_is_named_once(tmp_path, name, damage):
    write(name, tmp_path, damage)
    with pytest.raises((ValueError, DamagedFile), match=rf"^{PLACES[name]}.*{MISFITS[damage]}") as caught:
        read(name, tmp_path)
    assert "episode 0" not in str(caught.value), "it names an episode that is whole"


@pytest.mark.parametrize("damage", MISFITS, ids=lambda damage: damage.__name__)
def test_the_same_episode_is_named_by_a_conversion(tmp_path, damage):
    expected = (
        MISFITS[damage]
        .replace("proprio_arm", "state")
        .replace("no 'state', which proprio_obs_keys names", r"does not have the same entries .*observation/state")
    )
    with pytest.raises((ValueError, DamagedFile), match=rf"^{PLACES['npz']}.*{expected}"):
        write("lerobot", tmp_path, damage)


@all_formats
def test_numbers_that_are_none_are_named_with_their_file(tmp_path, name):
    def spoil(episodes: list[Episode]) -> None:
        episodes[1]["action"][2, 1] = np.nan

    write(name, tmp_path, spoil)
    with pytest.raises(ValueError, match=rf"{PLACES[name]}.*action: .*infinite or NaN, in the dimensions \[1\]"):
        read(name, tmp_path)


IMAGES = {  # the third image of the second episode, as messages name it
    "tfrecord": r"arm-train.tfrecord-00001-of-00003, record 0, from its byte \d+ on",
    "array_record": r"arm-train.array_record-00001-of-00003, record 0, from its byte \d+ on",
    "aloha": r"episode_1\.hdf5, frame 2 of 'observations/images/image'",
    "lerobot": r"file-000\.parquet, row 6 of 'observation\.images\.image'",
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_cannot_be_decoded_is_named_with_its_file(tmp_path, name):
    def spoil(episodes: list[Episode]) -> None:
        episodes[1]["image"][2] = episodes[1]["image"][2][:-300]

    if name == "lerobot":
        write(name, tmp_path)
        spoil_image_in_row(tmp_path / "arm/data/chunk-000/file-000.parquet", 6)
        with pytest.raises(ValueError, match=rf"{IMAGES[name]}: These \d+ bytes are not a complete image"):
            LeRobotSource(tmp_path / "arm")[6]
    else:
        write(name, tmp_path, spoil)
    with pytest.raises(ValueError, match=rf"^image_primary \(.*{IMAGES[name]}\): These \d+ bytes are not a complete"):
        read(name, tmp_path)


def spoil_image_in_row(path: Path, row: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    table = parquet.read_table(path)
    rows = table["observation.images.image"].to_pylist()
    rows[row]["bytes"] = rows[row]["bytes"][:-300]
    place = table.schema.get_field_index("observation.images.image")
    changed = pa.array(rows, table.schema.field(place).type)
    parquet.write_table(table.set_column(place, table.schema.field(place), changed), path)


FILES = {
    "tfrecord": "arm/1.0.0/arm-train.tfrecord-00001-of-00003",
    "array_record": "arm/1.0.0/arm-train.array_record-00001-of-00003",
    "robomimic": "arm.hdf5",
    "aloha": "arm/episode_1.hdf5",
    "npz": "arm/1.npz",
    "lerobot": "arm/data/chunk-000/file-000.parquet",
}


@all_formats
def test_a_file_that_was_cut_short_is_named(tmp_path, name):
    write(name, tmp_path)
    path = tmp_path / FILES[name]
    os.truncate(path, 2 * path.stat().st_size // 3)
    with pytest.raises(DamagedFile, match=path.name):
        read(name, tmp_path)


@without("aloha", "npz")  # the files that are there are the data set
def test_a_file_that_is_missing_is_named(tmp_path, name):
    write(name, tmp_path)
    (tmp_path / FILES[name]).unlink()
    with pytest.raises(
        (FileNotFoundError, DamagedFile), match=r"file in the folder data" if name == "lerobot" else FILES[name]
    ):
        read(name, tmp_path)
