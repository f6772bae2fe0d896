"""`convert_episodes` and `reencode_videos`: the output is read by pyarrow, PyAV, Bushel and lerobot itself."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.waiting import wait_until

from bushel import testing
from bushel._src.base.errors import DamagedFile
from bushel._src.cli import main
from bushel._src.sources import folders
from bushel._src.trajectory import episodes as tables
from bushel._src.trajectory.conversion_table import build_table
from bushel._src.trajectory.episode_builder import FORMATS, detect_kind, open_episodes
from bushel._src.trajectory.episode_conversion import convert_episodes, reencode_videos
from bushel._src.trajectory.lerobot.metadata_files import sample_frames
from bushel._src.trajectory.video_encoding import Encoding, decode_all, encode_frames, verify_video
from bushel.trajectory import RLDSBuilder, decode_depth, decode_image, write_rlds

av = pytest.importorskip("av")
parquet = pytest.importorskip("pyarrow.parquet")
h5py = pytest.importorskip("h5py")

GOLDEN = Path(__file__).parent / "golden_hdf5"
LENGTHS = (4, 1, 2, 7)


def picture(episode: int, step: int, size: tuple[int, int] = (16, 24)) -> np.ndarray:
    """A picture that shows its episode and step as bright blocks."""
    pixels = np.full((*size, 3), 30, np.uint8)
    width = size[1] // 6
    for bit in range(6):
        if (episode * 8 + step) >> bit & 1:
            pixels[: size[0] // 2, bit * width : (bit + 1) * width] = 220
    pixels[size[0] // 2 :] = 20 * episode
    return pixels


def episodes(lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    made = []
    for number, length in enumerate(lengths):
        steps = {
            "observation": {
                "image": np.stack([picture(number, step) for step in range(length)]),
                "state": rng.random((length, 3), np.float32),
                "grid": rng.random((length, 2, 2), np.float32),
            },
            "action": rng.random((length, 2), np.float32),
            "reward": rng.random(length).astype(np.float32),
            "is_terminal": np.arange(length) == length - 1,
            "language_instruction": np.array([f"task {step // 5}".encode() for step in range(length)], object),
        }
        made.append({"steps": steps, "episode_metadata": {"number": number}})
    return made


@pytest.fixture
def rlds(tmp_path: Path) -> Path:
    write_rlds({"train": episodes()[:3], "val": episodes()[3:]}, name="arm", data_dir=tmp_path, shards=2)
    return tmp_path / "arm"


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for name, value in expected.items():
            same(found[name], value)
    elif np.asarray(expected).dtype == np.uint8 and np.ndim(expected) == 4:
        np.testing.assert_array_equal([decode_image(image) for image in found], expected)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("file_format", "workers"), [("tfrecord", 1), ("array_record", 1)])
def test_rlds_to_rlds(rlds, tmp_path, file_format, workers):
    shown: list[Any] = []
    done = convert_episodes(
        rlds,
        tmp_path / "new" / "robot",
        format="rlds",
        file_format=file_format,
        workers=workers,
        progress=lambda done, of: shown.append((done, of)),
    )
    assert (done.elements, done.skipped) == (4, 0) and shown[-1] == (14, 14)
    builder = RLDSBuilder("robot", tmp_path / "new")
    assert builder.splits == {"train": 3, "val": 1} and builder.file_format == file_format
    for found, expected in zip(builder.episodes(), episodes()):
        same(found, expected["steps"])
        assert set(found["traj_metadata"]["episode_metadata"]["number"]) == {expected["episode_metadata"]["number"]}
        assert found["is_first"].tolist() == [True] + [False] * (len(found["action"]) - 1)
    assert not list((tmp_path / "new").rglob(".converting"))
    with pytest.raises(FileExistsError, match="has a data set already"):
        convert_episodes(rlds, tmp_path / "new" / "robot", format="rlds")
    convert_episodes(rlds, tmp_path / "new" / "robot", format="rlds", split="train[:1]", overwrite=True)
    assert RLDSBuilder("robot", tmp_path / "new").splits == {"train": 1}


def test_the_number_of_files_does_not_depend_on_the_machine(rlds, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    convert_episodes(rlds, tmp_path / "new" / "arm", format="rlds", progress=False)
    names = sorted(path.name for path in (tmp_path / "new" / "arm" / "1.0.0").glob("*tfrecord*"))
    assert names == ["arm-train.tfrecord-00000-of-00001", "arm-val.tfrecord-00000-of-00001"]


def read_lerobot(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    info = json.loads((folder / "meta" / "info.json").read_text())
    files = sorted((folder / "meta" / "episodes").rglob("*.parquet"))
    found = [row for file in files for row in parquet.read_table(file).to_pylist()]
    rows = [
        row for file in sorted((folder / "data").rglob("*.parquet")) for row in parquet.read_table(file).to_pylist()
    ]
    return info, found, rows


def frames_of(folder: Path, info: dict[str, Any], camera: str, episode: dict[str, Any]) -> list[np.ndarray]:
    path = info["video_path"].format(
        video_key=camera,
        chunk_index=episode[f"videos/{camera}/chunk_index"],
        file_index=episode[f"videos/{camera}/file_index"],
    )
    low, high = (episode[f"videos/{camera}/{end}_timestamp"] for end in ("from", "to"))
    decoded = list(decode_all(str(folder / path), path))
    assert any(is_key for time, is_key, _ in decoded if abs(time - low) < 1e-6)  # an episode begins with a key frame
    return [pixels for time, _, pixels in decoded if low - 1e-6 < time < high - 1e-6]


@pytest.mark.parametrize(("codec", "workers", "fps"), [("h264", 2, 30), ("av1", 1, 12.5), ("hevc", 1, 10)])
def test_to_lerobot(rlds, tmp_path, codec, workers, fps):
    folder = tmp_path / "lerobot"
    convert_episodes(
        rlds, folder, format="lerobot", fps=fps, codec=codec, workers=workers, key_frame_interval=3, crf=20
    )
    info, found, rows = read_lerobot(folder)
    assert info["splits"] == {"train": "0:3", "val": "3:4"} and info["total_frames"] == 14 and info["fps"] == fps
    assert info["features"]["observation.images.image"]["info"]["video.codec"] == codec
    tasks = parquet.read_table(folder / "meta" / "tasks.parquet").to_pylist()
    assert [row["index"] for row in rows] == list(range(14))
    start = 0
    for number, (episode, expected) in enumerate(zip(found, episodes())):
        steps = expected["steps"]
        length = len(steps["action"])
        assert (episode["episode_index"], episode["length"]) == (number, length)
        assert (episode["dataset_from_index"], episode["dataset_to_index"]) == (start, start + length)
        own = rows[start : start + length]
        assert [row["frame_index"] for row in own] == list(range(length))
        np.testing.assert_array_equal(np.array([row["action"] for row in own], np.float32), steps["action"])
        np.testing.assert_array_equal(np.array([row["reward"] for row in own], np.float32), steps["reward"])
        np.testing.assert_array_equal(
            np.array([row["observation.grid"] for row in own], np.float32), steps["observation"]["grid"]
        )
        np.testing.assert_allclose([row["timestamp"] for row in own], np.arange(length) / fps, rtol=1e-6)
        texts = [tasks[row["task_index"]]["__index_level_0__"].encode() for row in own]
        assert texts == steps["language_instruction"].tolist()
        pictures = frames_of(folder, info, "observation.images.image", episode)
        assert len(pictures) == length
        for pixels, original in zip(pictures, steps["observation"]["image"]):
            assert np.abs(pixels.astype(int) - original).mean() < 12  # another frame differs by more than 30
        np.testing.assert_allclose(episode["stats/action/mean"], steps["action"].mean(axis=0), rtol=1e-5)
        start += length
    statistics = json.loads((folder / "meta" / "stats.json").read_text())
    actions = np.concatenate([episode["steps"]["action"] for episode in episodes()])
    np.testing.assert_allclose(statistics["action"]["std"], actions.std(axis=0), rtol=1e-5)
    np.testing.assert_allclose(statistics["action"]["q90"], np.quantile(actions, 0.9, axis=0), rtol=1e-5)
    images = np.concatenate([episode["steps"]["observation"]["image"] for episode in episodes()]) / 255
    np.testing.assert_allclose(
        np.ravel(statistics["observation.images.image"]["mean"]), images.mean(axis=(0, 1, 2)), atol=1e-6
    )
    assert statistics["observation.images.image"]["count"] == [14]


def test_without_videos_the_images_are_those_of_the_source(rlds, tmp_path):
    """Without videos the images are those of the source, bit for bit."""
    convert_episodes(rlds, tmp_path / "lerobot", format="lerobot", fps=10, codec=None, workers=1)
    info, found, rows = read_lerobot(tmp_path / "lerobot")
    assert info["features"]["observation.images.image"]["dtype"] == "image" and info["video_path"] is None
    images = np.concatenate([episode["steps"]["observation"]["image"] for episode in episodes()])
    decoded = [decode_image(row["observation.images.image"]["bytes"]) for row in rows]
    np.testing.assert_array_equal(decoded, images)
    assert not any(name.startswith("videos/") for name in found[0])
    statistics = json.loads((tmp_path / "lerobot" / "meta" / "stats.json").read_text())
    np.testing.assert_allclose(
        np.ravel(statistics["observation.images.image"]["mean"]), (images / 255).mean(axis=(0, 1, 2)), atol=1e-6
    )


@pytest.mark.skipif("lerobot" not in FORMATS, reason="LeRobot data sets are not read")
def test_a_conversion_to_lerobot_and_back_keeps_everything_but_videos(rlds, tmp_path):
    """RLDS to LeRobot and back: all numbers, texts, splits, and images that are not encoded as videos."""
    convert_episodes(rlds, tmp_path / "lerobot", format="lerobot", fps=10, codec=None)
    convert_episodes(tmp_path / "lerobot", tmp_path / "back" / "arm", format="rlds")
    builder = RLDSBuilder("arm", tmp_path / "back")
    assert builder.splits == {"train": 3, "val": 1}
    for found, expected in zip(builder.episodes(), episodes()):
        steps = expected["steps"]
        pictures = steps["observation"].pop("image")
        (camera,) = (name for name in found["observation"] if name.startswith("image"))
        np.testing.assert_array_equal([decode_image(image) for image in found["observation"][camera]], pictures)
        same(found, steps)


def test_hdf5_to_both(tmp_path):
    """robomimic and compressed ALOHA files; state entries joined; entries left out."""
    convert_episodes(
        GOLDEN / "robomimic.hdf5",
        tmp_path / "lerobot",
        format="lerobot",
        drop=["next_observation", "states"],
        state_keys=["robot0_eef_pos", "robot0_gripper_qpos"],
    )
    info, found, rows = read_lerobot(tmp_path / "lerobot")
    assert info["fps"] == 20 and [episode["length"] for episode in found] == [7, 12, 9, 4]  # "train", then "valid"
    assert info["features"]["observation.state"] == {"dtype": "float64", "shape": [5], "names": None}
    assert not any(name.startswith(("next_observation", "states")) for name in info["features"])
    with h5py.File(GOLDEN / "robomimic.hdf5") as file:
        expected = np.concatenate(
            [file["data/demo_2/obs"][key] for key in ("robot0_eef_pos", "robot0_gripper_qpos")], 1
        )
        np.testing.assert_array_equal([row["observation.state"] for row in rows[7:19]], expected)
    reverse = {"reverse_jpeg_colors": True}
    done = convert_episodes(GOLDEN / "aloha_real_compressed", tmp_path / "aloha", format="rlds", format_options=reverse)
    assert done.path == str(tmp_path / "aloha" / "1.0.0")
    answers = np.load(GOLDEN / "aloha.expected.npz")
    (episode,) = RLDSBuilder("aloha", tmp_path).episodes()
    for camera in ("cam_high", "cam_left_wrist"):
        pixels = [decode_image(image) for image in episode["observation"][camera]]
        np.testing.assert_array_equal(
            pixels, answers[f"aloha_real_compressed/episode_0/images_as_cv2_imdecode/{camera}"]
        )


def test_jpeg_bytes_stay(tmp_path):
    """Images that are encoded already are copied, and not encoded a second time."""
    convert_episodes(GOLDEN / "aloha_real_compressed", tmp_path / "aloha", format="rlds")
    (found,) = RLDSBuilder("aloha", tmp_path).episodes()
    (source,) = open_episodes("aloha_real_compressed", GOLDEN, format="aloha").episodes()
    assert all(
        bytes(a) == bytes(b) for a, b in zip(found["observation"]["cam_high"], source["observation"]["cam_high"])
    )


PROGRAM = """
import sys, time
from bushel._src.trajectory.episode_conversion import convert_episodes
def report(done, of):
    if done >= 5:
        print("held", flush=True)
        time.sleep(600)  # until it is killed
arguments = {"format": sys.argv[3], "shards": 4, "workers": int(sys.argv[4])}
if arguments["format"] == "lerobot":
    arguments["fps"] = 10
convert_episodes(sys.argv[1], sys.argv[2], **arguments, progress=report)
"""


@pytest.mark.parametrize(("to", "workers"), [("rlds", 1), ("lerobot", 2)])
def test_killed_and_continued(rlds, tmp_path, to, workers):
    """After a SIGKILL in the middle, the same call writes the missing shards only, and the result is the same."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    target = tmp_path / "target" / "arm"
    command = [sys.executable, str(program), str(rlds), str(target), to, str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        while not list(target.rglob("shard-*.json")):  # workers complete what they are at
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    place = target / "1.0.0" if to == "rlds" else target
    last = place / ("dataset_info.json" if to == "rlds" else "meta/info.json")
    done = sorted((place / ".converting").glob("shard-*.json"))
    assert done and not last.exists()
    ages = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.suffix in (".parquet", ".mp4")}
    shown: list[int] = []
    arguments: Any = {"format": to, "shards": 4, "workers": 1} | ({"fps": 10} if to == "lerobot" else {})
    with pytest.raises(FileExistsError, match="a part of another conversion"):
        convert_episodes(rlds, target, **{**arguments, "drop": ["reward"]})
    convert_episodes(rlds, target, **arguments, progress=lambda done, of: shown.append(done))
    assert last.exists() and not (place / ".converting").exists()
    assert shown[0] > 0
    kept = {path for path, age in ages.items() if path.stat().st_mtime_ns == age}
    assert to == "rlds" or len(kept) >= len(done)
    convert_episodes(rlds, tmp_path / "whole" / "arm", **arguments)
    other = tmp_path / "whole" / "arm"
    names = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file())
    for name in names:
        assert (target / name).read_bytes() == (other / name).read_bytes() or name.endswith(".mp4"), name


def test_depth_of_16_bits_is_not_put_into_a_video_of_8(tmp_path):
    (tmp_path / "mine").mkdir()
    depth = np.random.default_rng(0).integers(0, 1 << 16, (3, 16, 20, 1)).astype(np.uint16)
    np.savez(tmp_path / "mine" / "0.npz", depth=depth, action=np.zeros((3, 1)))
    with pytest.raises(
        ValueError, match=r"0\.npz\), observation\.images\.depth: the image of step 0 has 16 bits, .*--codec none"
    ):
        convert_episodes(tmp_path / "mine", tmp_path / "video", format="lerobot", fps=5)
    convert_episodes(tmp_path / "mine", tmp_path / "rows", format="lerobot", fps=5, codec=None)
    (episode,) = open_episodes("rows", tmp_path, format="lerobot").episodes()
    found = [decode_depth(image) for image in episode["observation"]["images.depth"]]
    np.testing.assert_array_equal(found, depth[..., 0].astype(np.float32) * np.float32(1 / 65535))


@pytest.mark.slow
@pytest.mark.parametrize(("to", "workers"), [("rlds", 1), ("lerobot", 2)])
def test_killed_and_continued_in_an_object_store(rlds, tmp_path, to, workers):
    """The same with a server that speaks S3: what is read there afterwards is what a local conversion has."""
    servers = pytest.importorskip("helpers.servers")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    target = f"s3://{servers.BUCKET}/sets/arm"
    with servers.s3(tmp_path):
        command = [sys.executable, str(program), str(rlds), target, to, str(workers)]
        folder = folders.open_folder(f"{target}/1.0.0" if to == "rlds" else target)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            wait_until(lambda: any("/shard-" in name for name in folder.names(deep=True)))
            process.send_signal(signal.SIGKILL)
        last = "dataset_info.json" if to == "rlds" else "meta/info.json"
        done = {name for name in folder.names(deep=True) if "/shard-" in name}
        assert done and not folder.exists(last)
        shown: list[int] = []
        arguments: dict[str, Any] = {"format": to, "shards": 4} | ({"fps": 10} if to == "lerobot" else {})
        with pytest.raises(FileExistsError, match="a part of another conversion"):
            convert_episodes(rlds, target, **{**arguments, "drop": ["reward"]})
        convert_episodes(rlds, target, **arguments, progress=lambda done, of: shown.append(done))
        assert shown[0] > 0, "it began anew"
        convert_episodes(rlds, tmp_path / "here" / "arm", **arguments)
        here = folders.open_folder(tmp_path / "here" / "arm" / ("1.0.0" if to == "rlds" else ""))
        assert sorted(folder.names(deep=True)) == sorted(here.names(deep=True))
        for name in here.names(deep=True):
            assert folder.read(name) == here.read(name) or name.endswith(".mp4"), name
        found = open_episodes("arm", f"s3://{servers.BUCKET}/sets", format=to).episodes()
        expected = open_episodes("arm", tmp_path / "here", format=to).episodes()
        assert len(found) == len(expected) == len(LENGTHS)
        for one, other in zip(found, expected):
            np.testing.assert_array_equal(one["action"], other["action"])


STATEMENTS = [
    ["set", "action", ["concat", ["cols", "action", None, 1], ["invert", ["cols", "action", 1, None]]]],
    ["move", "observation|grid", "observation|map"],
    ["only", "observation", ["image", "map"]],
]


def standardize(trajectory: dict[str, Any]) -> dict[str, Any]:
    """What the statements say, as a function."""
    observation = {"image": trajectory["observation"]["image"], "map": trajectory["observation"]["grid"]}
    action = np.concatenate([trajectory["action"][:, :1], 1 - trajectory["action"][:, 1:]], axis=1)
    return trajectory | {"action": action, "observation": observation}


def test_statements_change_trajectories_as_functions_do(rlds, tmp_path):
    convert_episodes(rlds, tmp_path / "one" / "arm", format="rlds", standardize_fn=STATEMENTS)
    convert_episodes(rlds, tmp_path / "two" / "arm", format="rlds", standardize_fn=standardize)
    (tmp_path / "changes.json").write_text(json.dumps(STATEMENTS))
    arguments = ["--to", "rlds", "--standardize-fn", str(tmp_path / "changes.json"), "--quiet"]
    assert main(["convert", str(rlds), str(tmp_path / "three" / "arm"), *arguments]) == 0
    found = [list(RLDSBuilder("arm", tmp_path / name).episodes(unpack=True)) for name in ("one", "two", "three")]
    assert sorted(found[0][0]["observation"]) == ["image", "map"]
    assert testing.same(found[0], found[1]) and testing.same(found[0], found[2])
    with pytest.raises(ValueError, match=r"standardize_fn.*'mov'"):
        convert_episodes(rlds, tmp_path / "four", format="rlds", standardize_fn=[["mov", "a", "b"]])
    with pytest.raises(ValueError, match=r"episode 0 .*standardize_fn fails at .*nothing"):
        convert_episodes(rlds, tmp_path / "four", format="rlds", standardize_fn=[["move", "nothing", "b"]])
    (tmp_path / "changes.json").write_text("[[")
    assert main(["convert", str(rlds), str(tmp_path / "five"), *arguments]) == 1


def test_other_statements_are_another_conversion(rlds, tmp_path):
    """A conversion that was interrupted is not continued with other statements."""
    first = STATEMENTS[:1]

    def stop(done: int, of: int) -> None:
        if done >= 5:  # the first shard is complete
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_episodes(
            rlds, tmp_path / "new" / "arm", format="rlds", standardize_fn=first, shards=4, workers=1, progress=stop
        )
    with pytest.raises(FileExistsError, match="a part of another conversion"):
        convert_episodes(rlds, tmp_path / "new" / "arm", format="rlds", standardize_fn=STATEMENTS, shards=4)
    convert_episodes(rlds, tmp_path / "new" / "arm", format="rlds", standardize_fn=first, shards=4)


@pytest.mark.parametrize("kind", ["rlds", "lerobot"])
def test_a_table_for_other_machines_needs_no_cache_of_this_one(kind, rlds, tmp_path):
    if kind == "lerobot":
        convert_episodes(rlds, tmp_path / "lerobot" / "arm", format="lerobot", fps=10, codec="h264")
    above = tmp_path if kind == "rlds" else tmp_path / "lerobot"
    builder = open_episodes("arm", above, format=kind, cache_dir=tmp_path / "cache")
    built, _ = build_table(builder, {"train": builder.positions("all")}, None, (), 1)
    table = tables.save(built, str(tmp_path / "cache" / "table"))
    expected = [decode_image(image) for image in table._image_columns[0].take(np.arange(14))]
    sent = pickle.dumps(table._for_other_machines())
    del builder, built, table
    shutil.rmtree(tmp_path / "cache")
    found = pickle.loads(sent)
    images = [decode_image(image) for image in found._image_columns[0].take(np.arange(14))]
    np.testing.assert_array_equal(images, expected)
    assert found.lengths.tolist() == list(LENGTHS) and found.columns["action"].take(np.arange(14)).shape == (14, 2)


def test_reencoding_changes_the_videos_alone(rlds, tmp_path):
    """More or fewer key frames, another codec; rows and tasks as they were."""
    convert_episodes(rlds, tmp_path / "one", format="lerobot", fps=10, crf=20, key_frame_interval=250)
    assert main(["reencode", str(tmp_path / "one"), str(tmp_path / "two"), "--key-frame-interval", "2", "--quiet"]) == 0
    for name in ("data/chunk-000/file-000.parquet", "meta/tasks.parquet", "meta/stats.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    (video,) = (path for path in (tmp_path / "two").rglob("*.mp4") if "file-001" in path.name)
    with av.open(str(video)) as container:
        assert [packet.is_keyframe for packet in container.demux(video=0) if packet.size] == [True, False] * 3 + [True]
    info, found, _ = read_lerobot(tmp_path / "two")
    (first, *_) = frames_of(tmp_path / "two", info, "observation.images.image", found[3])
    assert np.abs(first.astype(int) - picture(3, 0)).mean() < 16
    assert not (tmp_path / "two" / ".converting" / "plan.json").exists()
    with pytest.raises(FileExistsError, match="has a data set already"):
        reencode_videos(tmp_path / "one", tmp_path / "two")
    with pytest.raises(FileNotFoundError, match=r"is no LeRobot data set"):
        reencode_videos(rlds, tmp_path / "three")
    with pytest.raises(ValueError, match="lies in the source"):
        reencode_videos(tmp_path / "one", tmp_path / "one" / "again")
    (tmp_path / "one" / "meta" / "info.json").write_text(json.dumps({**info, "fps": 11}))
    with pytest.raises(DamagedFile, match=r"file-000.mp4: frame 1 is shown at 0.1000 s"):
        reencode_videos(tmp_path / "one", tmp_path / "three", workers=1)


def test_truncated_video(rlds, tmp_path):
    convert_episodes(rlds, tmp_path / "one", format="lerobot", fps=10)
    (video, *_) = sorted((tmp_path / "one").rglob("*.mp4"))
    os.truncate(video, video.stat().st_size // 2)
    with pytest.raises(DamagedFile, match=r"file-000.mp4 is not a complete video"):
        reencode_videos(tmp_path / "one", tmp_path / "two", workers=1)


def test_verification_finds_what_differs(tmp_path):
    frames = [picture(1, step) for step in range(6)]
    data, prints = encode_frames(iter(frames), 10, Encoding(crf=20))
    path = tmp_path / "one.mp4"
    path.write_bytes(data)
    verify_video(str(path), "one.mp4", 10, prints)
    with pytest.raises(DamagedFile, match="does not show what was encoded"):
        verify_video(str(path), "one.mp4", 10, prints[::-1] * 0.5)
    with pytest.raises(DamagedFile, match=r"has 6 frames, and 5 were written"):
        verify_video(str(path), "one.mp4", 10, prints[:5])
    with pytest.raises(DamagedFile, match="no key frame"):
        verify_video(str(path), "one.mp4", 10, prints, [1])
    with pytest.raises(DamagedFile, match="should be at"):
        verify_video(str(path), "one.mp4", 11, prints)


def test_odd_frames_and_empty_episodes_are_written_left_out_or_named(tmp_path):
    """Frames of odd size, empty episodes, missing images, other sizes: written, left out, or an error with names."""
    folder = tmp_path / "mine"
    folder.mkdir()
    lengths = (2, 0, 1)
    for number, length in enumerate(lengths):
        image = np.zeros((length, 5, 7, 3), np.uint8)
        np.savez(folder / f"{number}.npz", image=image, action=np.zeros((length, 2)), note=np.array("x"))
    done = convert_episodes(folder, tmp_path / "lerobot", format="lerobot", fps=10)
    assert (done.elements, done.skipped) == (2, 1)
    info, found, rows = read_lerobot(tmp_path / "lerobot")
    assert info["features"]["observation.images.image"]["shape"] == [5, 7, 3] and rows[0]["observation.note"] == "x"
    assert [len(frames_of(tmp_path / "lerobot", info, "observation.images.image", one)) for one in found] == [2, 1]
    np.savez(folder / "2.npz", image=np.zeros((1, 6, 8, 3), np.uint8), action=np.zeros((1, 2)), note=np.array("x"))
    with pytest.raises(ValueError, match=r"episode 2 .*2.npz\), .*images.image: frame 0 has the size \[6, 8\]"):
        convert_episodes(folder, tmp_path / "other", format="lerobot", fps=10)
    np.savez(folder / "2.npz", action=np.zeros((1, 2)), note=np.array("x"))
    with pytest.raises(ValueError, match=r"episode 2 .*2.npz.* has no 'image'"):
        convert_episodes(folder, tmp_path / "third", format="lerobot", fps=10)
    with pytest.raises(ValueError, match=r"episode 2 .*2.npz\), observation.images.image: step 0 has no image"):
        convert_episodes(folder, tmp_path / "third", format="lerobot", fps=10, format_options={"missing_images": "pad"})
    np.savez(folder / "2.npz", image=np.zeros((1, 5, 7, 3), np.uint8), action=np.zeros((1, 3)), note=np.array("x"))
    with pytest.raises(ValueError, match=r"episode 2 .*2.npz\): action of trajectory 1: it has float64\[3\]"):
        convert_episodes(folder, tmp_path / "fourth", format="rlds")


def test_wrong_arguments_of_a_conversion_are_named(rlds, tmp_path, capsys):
    assert detect_kind(str(rlds)) == "rlds" and detect_kind(str(GOLDEN / "aloha_sim")) == "aloha"
    assert detect_kind(str(GOLDEN / "robomimic.hdf5")) == "robomimic"
    with pytest.raises(ValueError, match="does not say how many steps a second has"):
        convert_episodes(rlds, tmp_path / "x", format="lerobot")
    with pytest.raises(ValueError, match='codec must be "h264", "hevc" or "av1"'):
        convert_episodes(rlds, tmp_path / "x", format="lerobot", fps=10, codec="vp9")
    with pytest.raises(ValueError, match='format must be "rlds" or "lerobot"'):
        convert_episodes(rlds, tmp_path / "x", format="zarr")
    with pytest.raises(ValueError, match="have no numbers 'gripper' for the state"):
        convert_episodes(rlds, tmp_path / "x", format="lerobot", fps=10, state_keys=["state", "gripper"])
    with pytest.raises(ValueError, match="have a 'state' already"):
        convert_episodes(rlds, tmp_path / "x", format="lerobot", fps=10, state_keys=["grid"])
    with pytest.raises(ValueError, match="lies in the source, or contains it"):
        convert_episodes(rlds, rlds, format="rlds", overwrite=True)
    assert (rlds / "1.0.0" / "dataset_info.json").exists()
    with pytest.raises(ValueError, match="is no data set of a known format"):
        (tmp_path / "empty").mkdir()
        convert_episodes(tmp_path / "empty", tmp_path / "x", format="rlds")
    assert main(["convert", str(rlds), str(tmp_path / "new"), "--to", "rlds", "--workers", "1", "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("4 episodes in 4 files in ")
    assert sample_frames(50).tolist() == list(range(50)) and len(sample_frames(10_000)) == 1000


def test_overwrite_removes_only_a_data_set(rlds, tmp_path):
    """Files that look like those of a data set stay, unless there is a data set."""
    (tmp_path / "x" / "videos" / "holiday" / "chunk-000").mkdir(parents=True)
    holiday = tmp_path / "x" / "videos" / "holiday" / "chunk-000" / "file-000.mp4"
    holiday.write_bytes(b"mine")
    (tmp_path / "x" / "notes.txt").write_text("mine")
    convert_episodes(rlds, tmp_path / "x", format="lerobot", fps=10, overwrite=True, drop=["observation/image"])
    assert holiday.read_bytes() == b"mine"
    convert_episodes(
        rlds, tmp_path / "x", format="lerobot", fps=10, overwrite=True, drop=["observation/image", "reward"]
    )
    assert (tmp_path / "x" / "notes.txt").read_text() == "mine"
    info, _, rows = read_lerobot(tmp_path / "x")
    assert info["video_path"] is None and len(rows) == 14 and "reward" not in rows[0]


def test_float_frames_become_numbers(tmp_path):
    """Depth of floats: no image format of TFDS holds it, so RLDS gets arrays; a video cannot hold it."""
    (tmp_path / "mine").mkdir()
    depth = np.random.default_rng(0).random((3, 4, 5, 1), np.float32)
    matrices = np.random.default_rng(1).random((3, 2, 3, 3))
    np.savez(tmp_path / "mine" / "0.npz", depth=depth, poses=matrices, action=np.full((3, 1), np.nan))
    convert_episodes(tmp_path / "mine", tmp_path / "new" / "mine", format="rlds")
    (episode,) = RLDSBuilder("mine", tmp_path / "new").episodes(unpack=True)
    np.testing.assert_array_equal(episode["observation"]["depth"], depth)
    np.testing.assert_array_equal(episode["observation"]["poses"], matrices.astype(np.float32))
    with pytest.raises(
        ValueError,
        match=r"episode 0 .*0.npz\), .*images.depth: the image of step 0 cannot be decoded\. .*depth image\?.*drop",
    ):
        convert_episodes(tmp_path / "mine", tmp_path / "video", format="lerobot", fps=5)
    convert_episodes(tmp_path / "mine", tmp_path / "video", format="lerobot", fps=5, drop=["observation/depth"])


def test_into_a_store(rlds):
    pytest.importorskip("fsspec")
    done = convert_episodes(rlds, "memory://converted/arm", format="lerobot", fps=10)
    names = folders.open_folder("memory://converted/arm").names(deep=True)
    assert done.elements == 4 and "meta/info.json" in names and not any(".converting" in name for name in names)
    content = folders.open_folder("memory://converted/arm").read(next(name for name in names if name.endswith(".mp4")))
    assert len(list(decode_all(io.BytesIO(content), "video"))) > 0


JUDGE = """
import json, sys, types
import numpy as np, torch
# A build of torchvision for other hardware cannot register its kernels. Nothing here needs them.
sys.modules["torchvision._meta_registrations"] = types.ModuleType("none")
from lerobot.datasets.lerobot_dataset import LeRobotDataset
root, deltas, out = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
ds = LeRobotDataset("bushel/test", root=root, delta_timestamps=deltas or None)
arrays = {}
for i in range(len(ds)):
    for key, value in ds[i].items():
        arrays[f"{i}/{key}"] = np.asarray(value if isinstance(value, str) else value.numpy())
np.savez(out, **arrays)
"""


def link_ffmpeg(folder: Path) -> str:
    """A search path with FFmpeg, for torchcodec: the wheel of PyAV has it, under names that others do not find."""
    folder.mkdir(exist_ok=True)
    find = "import importlib.util as u; print(u.find_spec('av').origin)"
    av_package = subprocess.check_output([os.environ["BUSHEL_LEROBOT_PYTHON"], "-c", find], text=True)
    for library in (Path(av_package.strip()).parent.parent / "av.libs").glob("lib*.so.*"):
        name, _, version = library.name.partition(".so.")
        link = folder / f"{name.rpartition('-')[0]}.so.{version.split('.')[0]}"
        if not link.exists():
            link.symlink_to(library)
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


@pytest.mark.slow
@pytest.mark.skipif(
    "BUSHEL_LEROBOT_PYTHON" not in os.environ, reason="$BUSHEL_LEROBOT_PYTHON names a Python with lerobot"
)
@pytest.mark.parametrize("codec", ["h264", "av1", None])
def test_lerobot_reads_it(rlds, tmp_path, codec):
    """lerobot's own reader on what `convert_episodes` wrote: frames, rows, tasks, windows with masks."""
    convert_episodes(rlds, tmp_path / "lerobot", format="lerobot", fps=10, codec=codec, crf=20, workers=2)
    (tmp_path / "judge.py").write_text(JUDGE)
    deltas = {"observation.images.image": [-0.1, 0.0, 0.2], "action": [0.0, 0.1]}
    found: dict[str, Any] = {}
    for number, asked in enumerate(({}, deltas)):
        out = str(tmp_path / f"{number}.npz")
        command = [os.environ["BUSHEL_LEROBOT_PYTHON"], "judge.py", "lerobot", json.dumps(asked), out]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "LD_LIBRARY_PATH": link_ffmpeg(tmp_path / "ffmpeg")}
        subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        found[str(number)] = np.load(out)
    single, windows = found["0"], found["1"]
    frame = 0
    for number, expected in enumerate(episodes()):
        steps = expected["steps"]
        length = len(steps["action"])
        for step in range(length):
            image = single[f"{frame}/observation.images.image"].transpose(1, 2, 0) * 255
            assert np.abs(image - picture(number, step)).mean() < 12
            np.testing.assert_array_equal(single[f"{frame}/action"], steps["action"][step])
            np.testing.assert_array_equal(single[f"{frame}/observation.grid"], steps["observation"]["grid"][step])
            assert str(single[f"{frame}/task"]) == steps["language_instruction"][step].decode()
            assert int(single[f"{frame}/episode_index"]) == number
            times = [min(max(step + shift, 0), length - 1) for shift in (-1, 0, 2)]
            for slot, shown in enumerate(times):
                image = windows[f"{frame}/observation.images.image"][slot].transpose(1, 2, 0) * 255
                assert np.abs(image - picture(number, shown)).mean() < 12
            is_pad = [not 0 <= step + shift < length for shift in (-1, 0, 2)]
            assert windows[f"{frame}/observation.images.image_is_pad"].tolist() == is_pad
            frame += 1
    assert frame == 14
    shutil.rmtree(tmp_path / "lerobot")
