"""Windows of LeRobot data sets: laws, both versions of the format, and data sets that are damaged or odd."""

import json
import pickle
import shutil
import zlib
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_folders import CAMERAS, TASKS, picture, read_row, write_dataset, write_video
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base.errors import DamagedFile
from bushel._src.base.options import DatasetOptions
from bushel._src.datasets.iter_dataset import WithOptionsIterDataset
from bushel._src.trajectory.lerobot import table as tables
from bushel._src.trajectory.lerobot.dataset_folder import DepthCode, LeRobotFolder
from bushel._src.trajectory.lerobot.table import align_frames
from bushel.trajectory import (
    LeRobotSource,
    RLDSBuilder,
    TrajectoryDataset,
    convert_episodes,
    decode_depth,
    make_dataset_from_lerobot,
    open_episodes,
    reencode_videos,
)

LENGTHS = [7, 1, 2, 12, 5]
FRONT, WRIST = CAMERAS
STARTS = np.cumsum([0, *LENGTHS])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return {version: write_dataset(root / f"v{version}", LENGTHS, version=version) for version in (2, 3)}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("BUSHEL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture
def copy(folders, tmp_path):
    def make(version: int = 3) -> Path:
        return Path(shutil.copytree(folders[version], tmp_path / f"copy{version}"))

    return make


def rows_of(element):
    """The rows that the pictures of an element show."""
    return {key: [read_row(image) for image in np.atleast_1d(element[key]).reshape(-1, 48, 64, 3)] for key in CAMERAS}


# Laws.

steps = st.lists(st.integers(-15, 15), min_size=2, max_size=5)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    version=st.sampled_from([2, 3]),
    front=steps,
    action=steps,
    indices=st.lists(st.integers(0, STARTS[-1] - 1), min_size=1, max_size=6),
)
def test_a_window_is_the_rows_one_by_one_clamped_into_the_episode(folders, version, front, action, indices):
    plain = LeRobotSource(folders[version])
    deltas = {FRONT: [step / 10 for step in front], "action": [step / 10 for step in action]}
    source = LeRobotSource(folders[version], delta_timestamps=deltas)
    batch = source.__getitems__(indices).tree
    for place, index in enumerate(indices):
        episode = int(np.searchsorted(STARTS, index, "right")) - 1
        low, high = STARTS[episode], STARTS[episode + 1] - 1
        for key, asked in ((FRONT, index + np.array(front)), ("action", index + np.array(action))):
            clamped = np.clip(asked, low, high)
            assert batch[f"{key}_is_pad"][place].tolist() == (asked != clamped).tolist()
            for step, row in enumerate(clamped):
                np.testing.assert_array_equal(batch[key][place][step], plain[int(row)][key])
        assert read_row(batch[WRIST][place]) == index
        assert batch["task"][place] == TASKS[episode % 2]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_order_of_a_batch_does_not_matter(folders, data):
    source = LeRobotSource(folders[3], delta_timestamps={WRIST: [-0.3, 0.0, 0.1]})
    indices = data.draw(st.lists(st.integers(0, len(source) - 1), min_size=1, max_size=12))
    order = data.draw(st.permutations(range(len(indices))))
    first, second = source.__getitems__(indices).tree, source.__getitems__([indices[i] for i in order]).tree
    for key, values in first.items():
        np.testing.assert_array_equal(second[key], values[list(order)])


def test_workers_and_threads_do_not_matter(folders):
    source = LeRobotSource(folders[3], delta_timestamps={FRONT: [-0.2, -0.1, 0.0], "action": [0.0, 0.1]})
    ds = bushel.MapDataset.source(source).shuffle(seed=3).batch(4)

    def elements(stream):
        return [{key: value.tolist() for key, value in batch.items()} for batch in stream]

    expected = elements(ds.to_iter_dataset(bushel.ReadOptions(0, 0)))
    assert len(expected) == 7 and expected[0]["observation.images.front"] != expected[1]["observation.images.front"]
    assert elements(ds.to_iter_dataset(bushel.ReadOptions(4, 8))) == expected
    with iter(ds.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(2))) as stream:
        assert elements(stream) == expected


def test_versions_2_and_3_give_the_same_elements(folders):
    second, third = (LeRobotSource(folders[version]).__getitems__(range(27)).tree for version in (2, 3))
    assert second.keys() == third.keys()
    for key in second.keys() - {*CAMERAS}:
        np.testing.assert_array_equal(second[key], third[key])
    assert rows_of(second) == rows_of(third) == {FRONT: list(range(27)), WRIST: list(range(27))}


# What is read.


def test_a_row_has_its_frames_episode_index_and_task(folders):
    row = LeRobotSource(folders[3])[9]
    assert rows_of(row) == {FRONT: [9], WRIST: [9]}
    assert (row["episode_index"], row["frame_index"], row["index"], row["task"]) == (2, 1, 9, TASKS[0])
    assert row["observation.state"].shape == (3,) and row["observation.state"].dtype == np.float32
    assert row[FRONT].dtype == np.uint8 and row[FRONT].shape == (48, 64, 3)
    assert (LeRobotSource(folders[3])[-1]["index"], len(LeRobotSource(folders[3]))) == (26, 27)
    with pytest.raises(IndexError, match="index 27 is out of range for 27 rows"):
        LeRobotSource(folders[3])[27]


def test_chosen_episodes_come_in_the_order_of_the_data_set_and_windows_stay_inside(folders):
    source = LeRobotSource(folders[3], episodes=[3, 1], delta_timestamps={FRONT: [-0.1, 0.0, 0.1]})
    assert (source.episodes, len(source), source.lengths.tolist()) == ([1, 3], 13, [1, 12])
    assert rows_of(source[0])[FRONT] == [7, 7, 7]
    assert rows_of(source[1])[FRONT] == [10, 10, 11]
    assert rows_of(source[12])[FRONT] == [20, 21, 21]
    with pytest.raises(ValueError, match=r"has no episode 9; it has 5, numbered from 0 to 4"):
        LeRobotSource(folders[3], episodes=[1, 9])


def test_windows_that_cannot_be(folders):
    with pytest.raises(
        ValueError, match=r"has 0\.13 s, which is not a multiple of 1 / fps = 1 / 10 s.*nearest is 0\.1"
    ):
        LeRobotSource(folders[3], delta_timestamps={"action": [0.13]})
    with pytest.raises(ValueError, match=r"no feature 'acton'. Did you mean 'action'\?"):
        LeRobotSource(folders[3], delta_timestamps={"acton": [0.0]})
    with pytest.raises(ValueError, match="is empty"):
        LeRobotSource(folders[3], delta_timestamps={"action": []})


def test_a_source_is_small_to_send_and_says_what_it_is(folders):
    source = LeRobotSource(folders[3])
    assert len(pickle.dumps(source)) < 6000
    again = pickle.loads(pickle.dumps(source))
    assert rows_of(again[11]) == rows_of(source[11])
    assert again.fingerprint() == source.fingerprint() != LeRobotSource(folders[3], episodes=[0]).fingerprint()
    assert repr(source) == "LeRobotSource(v3: 27 rows of 5 episodes)"


def test_the_table_is_kept_and_made_again_where_it_is_damaged(folders, tmp_path, monkeypatch):
    expected = LeRobotSource(folders[3], cache_dir=tmp_path)[5]
    calls = []
    monkeypatch.setattr(tables, "read_rows", lambda *given: calls.append(given))
    np.testing.assert_array_equal(LeRobotSource(folders[3], cache_dir=tmp_path)[5][FRONT], expected[FRONT])
    assert not calls
    monkeypatch.undo()
    (file,) = (tmp_path / "videos").glob("*/starts.npy")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="is damaged, so .* is read again"):
        again = LeRobotSource(folders[3], cache_dir=tmp_path)
    np.testing.assert_array_equal(again[5][FRONT], expected[FRONT])


def test_where_no_table_can_be_kept_it_stays_in_memory(folders, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="It stays in memory"):
        source = LeRobotSource(folders[3], cache_dir=tmp_path / "file")
    assert rows_of(pickle.loads(pickle.dumps(source))[3]) == {FRONT: [3], WRIST: [3]}


def test_splits_and_tasks_go_by_number(copy):
    folder = copy(3)
    tasks = pq.read_table(folder / "meta/tasks.parquet")
    pq.write_table(tasks.take(pa.array([1, 0])), folder / "meta/tasks.parquet")  # lerobot would take the n-th row
    change_info(folder, splits={"train": "0:3", "test": "3:99"}, total_episodes=50)
    assert LeRobotFolder(folder).splits == {"train": [0, 1, 2], "test": [3, 4]}
    assert LeRobotSource(folder)[0]["task"] == TASKS[0]


@pytest.mark.parametrize("version", [2, 3])
def test_without_tasks_instructions_are_empty_and_masked(copy, version):
    folder = copy(version)
    (folder / ("meta/tasks.parquet" if version == 3 else "meta/tasks.jsonl")).unlink()
    assert LeRobotSource(folder)[0]["task"] == ""
    keys = {"language_key": "language_instruction", "train_split": "train"}
    ds, _ = make_dataset_from_lerobot(folder.name, folder.parent, train=True, **keys)
    assert ds._samples is not None
    assert not ds._samples.episodes.columns["task"]["language_instruction"].is_present(np.arange(27)).any()


def test_images_in_rows_and_shapes_with_channels_first(tmp_path):
    folder = write_dataset(tmp_path / "set", [4, 3], cameras=(), version=2)
    change_info(
        folder, add={"image": {"dtype": "image", "shape": [3, 24, 32], "names": ["channel", "height", "width"]}}
    )
    for path in sorted((folder / "data").rglob("*.parquet")):
        rows = pq.read_table(path)
        images = [{"bytes": encode_png(picture(row, (24, 32))), "path": "x.png"} for row in rows["index"].to_pylist()]
        pq.write_table(rows.append_column("image", pa.array(images)), path)
    source = LeRobotSource(folder, delta_timestamps={"image": [-0.1, 0.0]})
    assert [read_row(image) for image in source[4]["image"]] == [4, 4]
    np.testing.assert_array_equal(source[6]["image"][1], picture(6, (24, 32)))
    assert source.features["image"].shape == (24, 32, 3)


@pytest.mark.parametrize(
    ("code", "digest"),
    [
        (DepthCode(), 1023702974),
        (DepthCode(0.01, 4.0, use_log=False), 360881333),
    ],
    ids=["log", "linear"],
)
def test_depth_codes_mean_what_they_mean_to_lerobot(code, digest):
    """The digests are those of `dequantize_depth` of lerobot with PyTorch 2.13, for all codes, in millimetres."""
    assert zlib.crc32(code.millimetres[:4096].astype("<u2").tobytes()) == digest


def add_depth(folder, **info):
    """Adds a depth camera to a data set of five episodes in three files, as lerobot writes it: HEVC of 12 bits."""
    codes = []
    for number, count in enumerate((8, 14, 5)):
        some = np.random.default_rng(number).integers(0, 4096, (count, 64, 80)).astype(np.uint16)
        codes.append(some)
        path = folder / f"videos/observation.depth/chunk-000/file-{number:03d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream("libx265", rate=10)
            stream.height, stream.width, stream.pix_fmt = 64, 80, "gray12le"
            stream.options = {"g": "2", "x265-params": "lossless=1:log-level=none"}
            for one in some:
                frame = av.VideoFrame(80, 64, "gray12le")
                plane = frame.planes[0]
                np.frombuffer(plane, np.uint16).reshape(64, -1)[:, :80] = one
                for packet in stream.encode(frame):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)
    for path in sorted((folder / "meta/episodes").rglob("*.parquet")):
        table = pq.read_table(path)
        for name in ("chunk_index", "file_index", "from_timestamp", "to_timestamp"):
            column = table[f"videos/{FRONT}/{name}"]
            table = table.append_column(f"videos/observation.depth/{name}", column)
        pq.write_table(table, path)
    facts = {"is_depth_map": True, "video.pix_fmt": "gray12le", **info}
    video = {"dtype": "video", "shape": [64, 80, 1], "names": ["height", "width", "channels"], "info": facts}
    change_info(folder, add={"observation.depth": video})
    return np.concatenate(codes)[..., None]


@pytest.mark.parametrize(
    ("info", "code"),
    [({}, DepthCode()), ({"video.use_log": False, "video.depth_max": 4.0}, DepthCode(max_m=4.0, use_log=False))],
    ids=["log", "linear"],
)
def test_depth_in_videos_is_millimetres(copy, tmp_path, info, code):
    folder = copy(3)
    expected = code.millimetres[add_depth(folder, **info)]
    source = LeRobotSource(folder, cache_dir=tmp_path / "cache", delta_timestamps={"observation.depth": [0.0, 0.1]})
    assert source.features["observation.depth"].shape == (64, 80, 1)
    batch = source.__getitems__([20, 3, 0]).tree
    assert batch["observation.depth"].dtype == np.uint16
    np.testing.assert_array_equal(batch["observation.depth"], expected[[[20, 21], [3, 4], [0, 1]]])
    assert rows_of(source[15])[FRONT] == [15], "the cameras beside it"
    again = LeRobotSource(folder, cache_dir=tmp_path / "cache", float_images=True)  # from the table that was kept
    np.testing.assert_array_equal(again[9]["observation.depth"], np.moveaxis(expected[9], -1, 0).astype(np.float32))
    episodes = open_episodes("set", folder, format="lerobot", format_options={"cache_dir": str(tmp_path / "cache")})
    handles = episodes.episodes()[1]["observation"]["depth"]
    first = int(source.lengths[0])
    fractions = expected[first, ..., 0] * np.float32(1 / 65535)
    np.testing.assert_array_equal(decode_depth(handles[0]), fractions)
    convert_episodes(folder, tmp_path / "rlds" / "arm", format="rlds")  # as PNG of 16 bits
    converted = RLDSBuilder("arm", tmp_path / "rlds").episodes()[1]["observation"]["depth"]
    np.testing.assert_array_equal(decode_depth(converted[0]), fractions)


def test_depth_is_copied_when_other_videos_are_encoded_anew(copy, tmp_path):
    folder = copy(3)
    add_depth(folder)
    reencode_videos(folder, tmp_path / "new", key_frame_interval=1)
    for path in (folder / "videos/observation.depth").rglob("*.mp4"):
        assert (tmp_path / "new" / path.relative_to(folder)).read_bytes() == path.read_bytes()
    old, new = (LeRobotSource(one, cache_dir=tmp_path / "cache")[12] for one in (folder, tmp_path / "new"))
    np.testing.assert_array_equal(old["observation.depth"], new["observation.depth"])


def test_depth_of_8_bits_and_kinds_of_later_versions_are_left_out(copy):
    folder = copy(3)
    facts = {"video.is_depth_map": True, "video.pix_fmt": "yuv420p"}
    video = {"dtype": "video", "shape": [48, 64, 1], "names": None, "info": facts}
    change_info(folder, add={"observation.depth": video, "cloud": {"dtype": "pointcloud", "shape": [1]}})
    with pytest.warns(UserWarning) as caught:
        source = LeRobotSource(folder)
    depth, cloud = [str(warning.message) for warning in caught]
    assert "'observation.depth' is depth in a video of 8 bits" in depth and "it is left out" in depth
    assert "'cloud' has the dtype 'pointcloud', which is not known, so it is left out" in cloud
    assert {"observation.depth", "cloud"}.isdisjoint(source[0])


def test_a_depth_code_that_cannot_be_is_named(copy):
    folder = copy(3)
    facts = {"is_depth_map": True, "video.depth_min": 5.0, "video.depth_max": 1.0}
    change_info(folder, add={"observation.depth": {"dtype": "video", "shape": [48, 64, 1], "info": facts}})
    with pytest.raises(
        ValueError, match=r"the feature 'observation\.depth' cannot be decoded\. Its depth code cannot be right"
    ):
        LeRobotSource(folder)


def test_a_folder_whose_name_looks_like_a_pattern(folders, tmp_path):
    folder = shutil.copytree(folders[3], tmp_path / "arm [1]*")
    assert rows_of(LeRobotSource(folder)[26])[FRONT] == [26]


def encode_png(image):
    import io

    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(image).save(content, "png")
    return content.getvalue()


# Times.


@given(
    fps=st.sampled_from([5.0, 10.0, 24.0, 30.0, 29.97]),
    start=st.integers(0, 100_000),
    count=st.integers(1, 60),
    drift=st.floats(-0.09, 0.09),
)
def test_each_row_gets_its_own_frame_also_after_hours_and_with_a_start_that_drifts(fps, start, count, drift):
    times = (np.arange(start + count + 3)) / fps
    seconds = (np.arange(count) / fps).astype(np.float32)
    frames = align_frames(seconds, np.arange(count), fps, times[start] + drift / fps, times, 1e-4)
    np.testing.assert_array_equal(frames, start + np.arange(count))


def test_a_start_that_is_off_is_named_or_tolerated_as_asked():
    times, rows = np.arange(40) / 10, np.arange(5)
    seconds = (rows / 10).astype(np.float32)
    with pytest.raises(ValueError, match=r"0\.03 s away; tolerance_s is 0\.0001. The video has 10 frames per second"):
        align_frames(seconds, rows, 10, 1.03, times, 1e-4)
    np.testing.assert_array_equal(align_frames(seconds, rows, 10, 1.03, times, 0.04), rows + 10)
    with pytest.raises(ValueError, match=r"the video ends at 3\.9 s \(40 frames\)\. 2 of 5 frames"):
        align_frames(seconds, rows, 10, 3.7, times, 1e-4)


def test_cameras_of_other_rates_need_a_tolerance(copy):
    folder = copy(3)
    starts = {0: (0, 8), 1: (8, 22), 2: (22, 27)}
    for number, (low, high) in starts.items():  # every second frame, at half the rate
        images = [picture(row, (48, 64), 1) for row in range(low, high, 2)]
        write_video(folder / f"videos/{WRIST}/chunk-000/file-{number:03d}.mp4", images, 5)
    with pytest.warns(UserWarning, match="faults in episodes"):
        source = LeRobotSource(folder)
    with pytest.raises(DamagedFile, match=rf"Episode 0, {WRIST} in .*file-000\.mp4: Frame 1 should be shown at 0\.1 s"):
        source[0]
    source = LeRobotSource(folder, tolerance_s=0.1001)
    assert [read_row(source[row][WRIST]) for row in range(8)] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [read_row(source[row][FRONT]) for row in range(8)] == list(range(8))


# Damage and odd data.


def change_info(folder, add=None, **changes):
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"] |= add or {}
    path.write_text(json.dumps(info | changes))


def change_episode(folder, episode, **values):
    path = folder / "meta/episodes/chunk-000/file-000.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[episode] |= values
    pq.write_table(pa.Table.from_pylist(rows), path)


def remove(folder):
    (folder / f"videos/{FRONT}/chunk-000/file-001.mp4").unlink()


def truncate(folder):
    path = folder / f"videos/{FRONT}/chunk-000/file-001.mp4"
    path.write_bytes(path.read_bytes()[:900])


def other_size(folder):
    write_video(folder / f"videos/{FRONT}/chunk-000/file-001.mp4", [picture(row, (32, 48)) for row in range(14)], 10)


def too_short(folder):
    write_video(folder / f"videos/{FRONT}/chunk-000/file-001.mp4", [picture(row, (48, 64)) for row in range(8, 19)], 10)


def other_rate(folder):
    write_video(folder / f"videos/{FRONT}/chunk-000/file-001.mp4", [picture(row, (48, 64)) for row in range(14)], 12)


def not_a_number(folder):
    change_episode(folder, 3, **{f"videos/{FRONT}/from_timestamp": float("nan")})


def other_start(folder):
    change_episode(folder, 3, **{f"videos/{FRONT}/from_timestamp": 0.23})


VIDEO_FAULTS = {
    remove: r"file-001\.mp4: The file is missing\.",
    truncate: r"file-001\.mp4: .*has no complete index",
    other_size: r"file-001\.mp4: Its frames have 32 x 48 pixels, and those of other files of the camera 48 x 64",
    too_short: r"file-001\.mp4: Frame 9 should be shown at 1\.1 s, but the video ends at 1 s",
    other_rate: r"file-001\.mp4: Frame \d should be shown at .* The video has 12 frames per second, the rows 10",
    not_a_number: r"meta/episodes has the value nan for videos/observation\.images\.front/from_timestamp, which is not",
    other_start: r"file-001\.mp4: Frame 0 should be shown at 0\.23 s, and the nearest .* 0\.03 s away",
}


@pytest.mark.parametrize("damage", VIDEO_FAULTS, ids=lambda damage: damage.__name__)
def test_a_video_that_does_not_fit_is_named_masked_or_dropped_as_asked(copy, damage):
    folder = copy(3)
    damage(folder)
    expected = rf"Episode 3, {FRONT}.*{VIDEO_FAULTS[damage]}"
    with pytest.warns(UserWarning, match=r"faults in episodes\. Reading their frames raises"):
        source = LeRobotSource(folder)
    assert len(source) == 27
    with pytest.raises(DamagedFile, match=expected):
        source[15]
    assert rows_of(source[0]) == {FRONT: [0], WRIST: [0]}
    stream = bushel.MapDataset.source(source).to_iter_dataset(bushel.ReadOptions(0, 0))
    skipping = WithOptionsIterDataset(stream, DatasetOptions(on_error="skip"))
    kept = [int(row["index"]) for row in skipping]
    assert set(range(27)) - set(range(8, 22)) <= set(kept) and 15 not in kept
    with pytest.warns(UserWarning, match="black, and masked"):
        masked = LeRobotSource(folder, on_error="mask", delta_timestamps={FRONT: [0.0, 0.1]})
    assert masked[15][f"{FRONT}_is_pad"].tolist() == [True, True] and not masked[15][FRONT].any()
    assert masked[0][f"{FRONT}_is_pad"].tolist() == [False, False]
    assert rows_of(masked[15])[WRIST] == [15]
    with pytest.warns(UserWarning, match="They are left out"):
        dropped = LeRobotSource(folder, on_error="drop")
    assert 3 not in dropped.episodes and {0, 1, 4} <= set(dropped.episodes)
    assert [read_row(dropped[row][FRONT]) for row in (0, -1)] == [0, 26]


def test_video_that_is_longer_than_the_rows_is_fine(copy):
    folder = copy(2)
    path = folder / f"videos/chunk-000/{FRONT}/episode_000000.mp4"
    write_video(path, [picture(row, (48, 64)) for row in range(20)], 10)
    assert rows_of(LeRobotSource(folder)[6])[FRONT] == [6]


def replace_rows(folder, file, change):
    path = folder / f"data/chunk-000/{file}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def set_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, pa.array(values))


ROW_FAULTS = {
    "a column is missing": (
        lambda table: table.drop_columns(["action"]),
        r"file-001\.parquet has another schema than meta/info\.json: it has no column 'action'",
    ),
    "a column has another width": (
        lambda table: set_column(table, "action", [[0.0, 1.0]] * table.num_rows),
        r"file-001\.parquet has another schema .*'action' should have 3 numbers in each row",
    ),
    "a row is shorter": (
        lambda table: set_column(table, "action", [[0.0] * (2 if row == 5 else 3) for row in range(table.num_rows)]),
        r"'action' should have 3 numbers .*\. The first such row is row 5 of episode 3\.",
    ),
    "a column has texts": (
        lambda table: set_column(table, "action", ["a"] * table.num_rows),
        r"file-001\.parquet has another schema .*'action'",
    ),
    "a row is missing": (
        lambda table: table.take(pa.array([row for row in range(table.num_rows) if row != 5])),
        r"Episode 3 in .*file-001\.parquet: frame_index is 4 where 3 should come",
    ),
    "a row is there twice": (
        lambda table: table.take(pa.array([*range(6), 5, *range(6, table.num_rows)])),
        r"Episode 3 in .*file-001\.parquet: frame_index is 3 where 4 should come",
    ),
    "another rate": (
        lambda table: set_column(table, "timestamp", [row / 8 for row in range(table.num_rows)]),
        r"Episode 2 in .*file-001\.parquet: timestamp goes from 0 to 0\.125 s, .*says 10 fps",
    ),
    "a time is not a number": (
        lambda table: set_column(table, "timestamp", [float("nan")] * table.num_rows),
        r"Episode 2 in .*file-001\.parquet: timestamp goes",
    ),
}


@pytest.mark.parametrize("fault", ROW_FAULTS)
@pytest.mark.filterwarnings("ignore:.*meta says that episode:UserWarning")
def test_rows_that_do_not_fit_are_named_or_dropped(copy, fault):
    folder = copy(3)
    change, message = ROW_FAULTS[fault]
    replace_rows(folder, "file-001", change)
    with pytest.raises(DamagedFile, match=message):
        LeRobotSource(folder)
    with pytest.warns(UserWarning, match=r"faults in episodes\. They are left out"):
        source = LeRobotSource(folder, on_error="drop")
    assert {0, 1, 4} <= set(source.episodes) < {0, 1, 2, 3, 4}
    assert rows_of(source[-1]) == {FRONT: [26], WRIST: [26]}


def test_a_parquet_file_without_an_end_is_named(copy):
    folder = copy(3)
    path = folder / "data/chunk-000/file-002.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DamagedFile, match=r"file-002\.parquet is not a complete Parquet file.*finalize"):
        LeRobotSource(folder)


def test_numbers_of_files_in_meta_do_not_matter_and_lengths_are_those_of_the_rows(copy):
    folder = copy(3)
    for episode in (2, 4):  # the converter of lerobot 0.4 writes the file before
        change_episode(folder, episode, **{"data/file_index": 0, "dataset_from_index": 3, "dataset_to_index": 4})
    assert rows_of(LeRobotSource(folder)[8])[FRONT] == [8]
    change_episode(folder, 3, length=99)
    with pytest.warns(UserWarning, match=r"meta says that episode 3 has 99 rows, but there are 12\. The rows count"):
        assert LeRobotSource(folder).lengths.tolist() == LENGTHS


def test_files_in_another_order_give_the_same_rows(copy, folders):
    folder = copy(3)
    first, last = (folder / f"data/chunk-000/file-00{number}.parquet" for number in (0, 2))
    first.rename(folder / "data/chunk-000/x.parquet")
    last.rename(first)
    (folder / "data/chunk-000/x.parquet").rename(last)
    ours, expected = LeRobotSource(folder), LeRobotSource(folders[3])
    for row in (0, 8, 26):
        np.testing.assert_array_equal(ours[row]["action"], expected[row]["action"])
        np.testing.assert_array_equal(ours[row][FRONT], expected[row][FRONT])


@pytest.mark.parametrize("version", [2, 3])
def test_episodes_without_rows_are_left_out_and_short_ones_work(tmp_path, version):
    folder = write_dataset(tmp_path / "set", [3, 0, 1, 2], version=version)
    source = LeRobotSource(folder, delta_timestamps={FRONT: [-0.2, 0.0, 0.2]})
    assert (source.episodes, len(source)) == ([0, 2, 3], 6)
    assert rows_of(source[3])[FRONT] == [3, 3, 3]
    assert rows_of(source[4])[FRONT] == [4, 4, 5]


def test_folders_that_are_none(tmp_path, copy):
    with pytest.raises(FileNotFoundError, match=r"There is no LeRobot data set: .*holds no meta/info\.json"):
        LeRobotSource(tmp_path)
    folder = copy(3)
    for change, message in (
        ({"codebase_version": "v1.6"}, r"codebase_version is 'v1\.6'; v2\.0, v2\.1 and v3\.0 can be read"),
        ({"fps": 0}, "fps must be above 0"),
        ({"features": None}, "has no 'features'"),
    ):
        before = (folder / "meta/info.json").read_text()
        change_info(folder, **change)
        with pytest.raises(ValueError, match=message):
            LeRobotSource(folder)
        (folder / "meta/info.json").write_text(before)
    (folder / "meta/info.json").write_text("{")
    with pytest.raises(DamagedFile, match=r"info\.json cannot be read"):
        LeRobotSource(folder)
    with pytest.raises(ValueError, match='on_error must be "raise", "drop" or "mask"'):
        LeRobotSource(copy(2), on_error="skip")  # pyright: ignore[reportArgumentType]


def test_a_masked_camera_is_masked_in_the_pipeline(copy, tmp_path):
    folder = copy(3)
    remove(folder)
    keys = {"image_obs_keys": {"primary": "images.front", "wrist": "images.wrist"}, "train_split": "train"}
    keys |= {"cache_dir": str(tmp_path / "cache"), "on_error": "mask"}
    with pytest.warns(UserWarning, match="black, and masked"):
        ds, _ = make_dataset_from_lerobot("copy3", folder.parent, train=True, **keys)
    samples = ds._samples
    assert samples is not None and isinstance(ds, TrajectoryDataset)
    columns = samples.episodes.columns["observation"]
    present = [columns["image_primary"].is_present(np.arange(27)), columns["image_wrist"].is_present(np.arange(27))]
    assert present[0].tolist() == [not 8 <= row < 22 for row in range(27)] and present[1].all()
