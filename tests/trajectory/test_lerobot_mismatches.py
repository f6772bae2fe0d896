"""LeRobot data sets whose `meta` and files disagree: an error names the disagreement, or no value changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_folders import CAMERAS, TASKS, read_row, write_dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bushel._src.base.errors import DamagedFile
from bushel._src.trajectory.lerobot.dataset_folder import LeRobotFeature, LeRobotFolder, fill_template
from bushel._src.trajectory.lerobot.rows import cast_numbers, convert_column
from bushel._src.trajectory.lerobot.table import Span, find_overlaps
from bushel.trajectory import LeRobotSource, open_episodes

LENGTHS = [6, 3, 4, 5]
FRONT, WRIST = CAMERAS
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return {
        version: write_dataset(root / f"v{version}", LENGTHS, version=version, cameras=[FRONT]) for version in (2, 3)
    } | {"plain": write_dataset(root / "plain", LENGTHS, cameras=[])}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BUSHEL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def copy(folders, tmp_path):
    return lambda version="plain": Path(shutil.copytree(folders[version], tmp_path / f"copy{version}"))


def change_info(folder: Path, add: Any = None, **changes: Any) -> None:
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["features"] |= add or {}
    path.write_text(json.dumps(info | changes))


def change_rows(folder: Path, name: str, make: Any) -> None:
    """Replace or add a column in all files: `make(table)` returns its array."""
    for path in sorted((folder / "data").rglob("*.parquet")):
        table = pq.read_table(path)
        columns = {column: table[column] for column in table.column_names} | {name: make(table)}
        pq.write_table(pa.table(columns), path)


# ---------------------------------------------------------------------------------------------------------------------
# Types of numbers

DTYPES = ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
EDGES = [0, 1, -1, 2, 127, 128, 255, 256, 2**24 + 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]


@settings(max_examples=150)
@given(data=st.data(), source=st.sampled_from(DTYPES), target=st.sampled_from(DTYPES))
def test_a_number_that_counts_as_kept_is_the_same_number(data, source, target):
    raw = data.draw(hnp.arrays(source, st.integers(1, 4)))
    edge = data.draw(st.sampled_from(EDGES))
    if np.dtype(source).kind == "f" or (source != "bool" and np.iinfo(source).min <= edge <= np.iinfo(source).max):
        with np.errstate(over="ignore"):
            raw[0] = np.array(edge, source) if np.dtype(source).kind != "f" else np.dtype(source).type(edge)
    numbers, kept = cast_numbers(raw, np.dtype(target))
    assert numbers.dtype == target
    for before, after, same in zip(raw.tolist(), numbers.tolist(), kept.tolist(), strict=True):  # Python's numbers
        both_floats = isinstance(before, float) and isinstance(after, float)
        if both_floats:
            assert same == (np.isfinite(before) == np.isfinite(after))
        else:
            assert same == (before == after)  # exact between int and float, and False for NaN


STATED = ["bool", "int8", "uint8", "int64", "float32", "float64", "string"]
COLUMNS = {
    "half": pa.array([0.5] * 3, pa.float32()),
    "whole floats": pa.array([1.0, 0.0, 3.0], pa.float64()),
    "NaN": pa.array([1.0, float("nan"), 0.0]),
    "large": pa.array([2**63] * 3, pa.uint64()),
    "bools": pa.array([True, False, True]),
    "bits": pa.array([1, 0, 1], pa.int64()),
    "dates": pa.array([0, 1, 2], pa.timestamp("ns")),
    "durations": pa.array([0, 1, 2], pa.duration("s")),
    "texts": pa.array(["1", "2", "3"]),
    "bytes": pa.array([b"1", b"2", b"3"]),
    "nulls": pa.array([1.0, None, 2.0]),
    "null texts": pa.array(["a", None, "b"]),
    "lists of texts": pa.array([["1"], ["2"], ["3"]]),
    "decimals": pa.array([1, 2, 3]).cast(pa.decimal128(20, 0)),
    "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
    "pairs": pa.array([[1.0, 2.0]] * 3),
    "lists of one": pa.array([[1.0], [2.0], [3.0]]),
}


@pytest.mark.parametrize("stated", STATED)
@pytest.mark.parametrize("column", COLUMNS.values(), ids=list(COLUMNS))
def test_a_column_of_another_type_is_refused_or_gives_its_own_values(column, stated):
    chunked = pa.chunked_array([column])
    try:
        found = convert_column(chunked, LeRobotFeature("x", stated, (1,)), "rows.parquet", np.zeros(3, int))
    except DamagedFile as error:
        assert "rows.parquet has another schema than meta/info.json: 'x' should" in str(error)
        return
    given_values = [value[0] if isinstance(value, list) else value for value in column.to_pylist()]
    if stated == "string":
        assert found.tolist() == [value or "" for value in given_values]
        return
    assert found.dtype == stated
    np.testing.assert_array_equal(found.astype(np.float64), np.array(given_values, np.float64))


def test_actions_are_not_cut_to_integers(copy):
    folder = copy()
    change_info(folder, add={"action": {"dtype": "int64", "shape": [3], "names": None}})
    with pytest.raises(
        DamagedFile,
        match=r"file-000\.parquet has another schema than meta/info\.json: 'action' should be int64, but the column is "
        r"fixed_size_list<element: float>\[3\], and -1\.288\d+ in row 0 of episode 0 would become -1\. Correct",
    ):
        LeRobotSource(folder)
    change_rows(folder, "action", lambda table: pa.array([[1.0, -2.0, 3.0]] * len(table)))
    assert LeRobotSource(folder)[0]["action"].tolist() == [1, -2, 3]


def test_integers_beyond_int64_are_not_wrapped(copy):
    folder = copy()
    change_info(folder, add={"id": {"dtype": "uint64", "shape": [1], "names": None}})
    change_rows(folder, "id", lambda table: pa.array([2**63 + 1] * len(table), pa.uint64()))
    source = LeRobotSource(folder)
    with pytest.raises(ValueError, match="'id' has 9223372036854775809, which does not fit into int64"):
        source[0]


def test_columns_that_info_does_not_name_are_named_in_a_warning(copy):
    folder = copy()
    change_rows(folder, "note", lambda table: pa.array(["x"] * len(table)))
    with pytest.warns(UserWarning, match=r"have the columns 'note', which meta/info\.json does not name.* left out"):
        assert "note" not in LeRobotSource(folder)[0]


# ---------------------------------------------------------------------------------------------------------------------
# Tasks


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("number", [-1, 2, 7])
def test_a_task_that_does_not_exist_is_named(version, number, copy):
    folder = copy(version)
    change_rows(
        folder,
        "task_index",
        lambda table: pa.array([number if e == 1 else 0 for e in table["episode_index"].to_pylist()]),
    )
    file = "tasks.jsonl" if version == 2 else "tasks.parquet"
    with pytest.raises(
        DamagedFile, match=rf"Episode 1 has the task_index {number}, but .*meta/{file} has only the tasks 0 to 1\."
    ):
        LeRobotSource(folder)
    with pytest.warns(UserWarning, match=rf"1 faults in episodes.*the task_index {number}"):
        source = LeRobotSource(folder, on_error="drop")
    assert source.episodes == [0, 2, 3] and source[0]["task"] == TASKS[0]


def test_a_task_without_a_text_or_with_two_is_named(copy):
    folder = copy()
    pq.write_table(pa.table({"task_index": [0, 1], "task": ["pick", None]}), folder / "meta/tasks.parquet")
    with pytest.raises(DamagedFile, match=r"tasks\.parquet: the task with task_index 1 is None; each number needs one"):
        LeRobotSource(folder)
    pq.write_table(pa.table({"task_index": [0, 1, 1], "task": ["pick", "a", "b"]}), folder / "meta/tasks.parquet")
    with pytest.raises(DamagedFile, match=r"task_index 1 is 'b' and 'a'; each number needs one text"):
        LeRobotSource(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Names of files


@settings(max_examples=80)
@given(
    pieces=st.lists(
        st.one_of(
            st.text("ab/.-_0", max_size=4),
            st.sampled_from(["{chunk_index:03d}", "{file_index}", "{file_index:6d}", "{video_key}", "{{", "}}"]),
        ),
        max_size=6,
    )
)
def test_a_template_is_filled_as_format_does(pieces):
    template, values = "".join(pieces), {"chunk_index": 3, "file_index": 12, "video_key": "front"}
    expected = template.format(**values)
    if ".." in expected.split("/"):
        with pytest.raises(ValueError, match="leads out of the folder of the data set"):
            fill_template(template, **values)
    else:
        assert fill_template(template, **values) == expected


TEMPLATES = [
    ("{file_index:0999999999d}", r"formats 'file_index' by '0999999999d'; only a width of at most 99 digits"),
    ("{video_key:>999999999}", r"formats 'video_key' by '>999999999'"),
    ("{file_index:{file_index}}", r"formats 'file_index' by '\{file_index\}'"),
    ("{file_index!r}", r"formats 'file_index' by 'r'"),
    ("{file_index.__class__}", r"has the field 'file_index\.__class__'; it may have"),
    ("{video_key[0]}", r"has the field 'video_key\[0\]'"),
    ("{}", r"has the field ''"),
    ("{other}", r"has the field 'other'; it may have 'video_key', 'chunk_index', 'file_index'"),
    ("{file_index", r"cannot be read: "),
    ("../../secrets/{file_index}", r"leads out of the folder of the data set"),
    ("a" * 5000, r"makes a path of 5000 characters"),
    (7, r"cannot be read: "),
]


@pytest.mark.parametrize(("template", "sentence"), TEMPLATES, ids=[str(n) for n in range(len(TEMPLATES))])
def test_a_template_that_is_none_is_refused_when_the_data_set_is_opened(template, sentence, copy):
    folder = copy(3)
    change_info(folder, video_path=template)
    with pytest.raises(DamagedFile, match=rf"meta/info\.json, video_path: The template .*{sentence}"):
        LeRobotSource(folder)


@pytest.mark.parametrize("version", [2, 3])
def test_a_template_of_the_rows_is_refused_too(version, copy):
    folder = copy(version)
    change_info(folder, data_path="data/{episode_index:0999999999d}{chunk_index:0999999999d}.parquet")
    with pytest.raises(DamagedFile, match=r"meta/info\.json, data_path: The template"):
        LeRobotFolder(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Spans of episodes in one video


def change_spans(folder: Path, changes: dict[int, tuple[float, float | None]]) -> None:
    rows = pq.read_table(folder / EPISODES).to_pylist()
    for episode, (start, stop) in changes.items():
        rows[episode] |= {f"videos/{FRONT}/from_timestamp": start, f"videos/{FRONT}/to_timestamp": stop}
    pq.write_table(pa.Table.from_pylist(rows), folder / EPISODES)


# Episodes 0 (6 rows) and 1 (3 rows) share a file, with 10 rows in a second: 0 to 0.6 and 0.6 to 0.9.
SPANS = {
    "swapped": ({0: (0.3, 0.9), 1: (0.0, 0.3)}, "begins before the end of episode 0"),
    "swapped starts": ({0: (0.6, 0.6), 1: (0.0, 0.9)}, "is too short for 6 rows"),
    "the same start": ({1: (0.0, 0.3)}, "begins before the end of episode 0, at 0.6 s"),
    "one frame early": ({1: (0.5, 0.8)}, "begins before the end of episode 0, at 0.6 s"),
    "an end that overlaps": ({0: (0.0, 0.8)}, "begins before the end of episode 0, at 0.8 s"),
    "an end before the start": ({1: (0.6, 0.2)}, "is too short for 3 rows"),
    "an end that is short": ({0: (0.0, 0.5)}, "from 0 to 0.5 s is too short for 6 rows at 10 fps"),
    "without ends": ({0: (0.0, None), 1: (0.4, None)}, "begins before the end of episode 0"),
    "negative": ({0: (-0.2, 0.6)}, "begins at -0.2 s"),
}


@pytest.mark.parametrize(("changes", "sentence"), SPANS.values(), ids=list(SPANS))
def test_spans_that_overlap_are_refused_when_the_data_set_is_opened(changes, sentence, copy):
    folder = copy(3)
    change_spans(folder, changes)
    with pytest.raises(DamagedFile, match=rf"Episode [01], {FRONT} in .*file-000\.mp4: Its span .*") as caught:
        LeRobotSource(folder)
    assert "These episodes would get the frames of others. Correct from_timestamp" in str(caught.value)
    with pytest.warns(UserWarning, match="faults in episodes") as warned:
        source = LeRobotSource(folder, on_error="drop")
    assert sentence in str(caught.value) + str(warned[0].message)
    assert set(source.episodes) >= {2, 3} and set(source.episodes) != {0, 1, 2, 3}
    for row in range(len(source)):  # what is left shows its own frames
        assert read_row(source[row][FRONT]) == source[row]["index"]


@pytest.mark.parametrize("off_s", [0.0, 0.004, -0.004])
def test_spans_that_drift_by_less_than_half_a_row_are_read(off_s, copy):
    folder = copy(3)
    change_spans(folder, {0: (0.0, 0.6 + off_s), 1: (0.6 + off_s, 0.9 + off_s)})
    source = LeRobotSource(folder)
    assert [read_row(source[row][FRONT]) for row in range(9)] == list(range(9))


def test_a_video_that_two_episodes_of_version_2_share_is_refused(copy):
    folder = copy(2)
    change_info(folder, video_path="videos/chunk-{episode_chunk:03d}/{video_key}/episode_000000.mp4")
    with pytest.raises(DamagedFile, match=r"Episode 1.* in .*episode_000000\.mp4: Its span"):
        LeRobotSource(folder)


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8), fps=st.sampled_from([1.0, 10.0, 29.97, 50.0]))
@example(lengths=[1], fps=10.0)
def test_spans_one_after_the_other_are_right_and_moved_ones_are_not(lengths, fps):
    starts = np.cumsum([0, *lengths]) / fps
    spans = [Span(n, length, starts[n], starts[n + 1]) for n, length in enumerate(lengths)]
    assert not find_overlaps(spans, fps) and not find_overlaps(spans[::-1], fps)
    for number in range(1, len(spans)):
        moved = Span(number, lengths[number], spans[number].start_s - 1 / fps, spans[number].stop_s)
        assert {number - 1, number} <= set(find_overlaps([*spans[:number], moved], fps))


# ---------------------------------------------------------------------------------------------------------------------
# Language columns


def say(text: str, second: float) -> dict[str, Any]:
    call = [{"name": "grip", "arguments": {"force": 0.5}}] if second else None
    return {
        "role": "assistant",
        "content": text,
        "style": "subtask",
        "timestamp": second,
        "camera": None,
        "tool_calls": call,
    }


def test_language_columns_are_entries_of_records(copy):
    folder = copy()
    said = [[say("zugreifen \N{SNOWMAN}", 0.0), say("lift", 0.3)], [], None]
    language = {"dtype": "language", "shape": [1], "names": None}
    change_info(folder, add={"language_persistent": language, "language_events": language})
    kind = pa.array(said).type
    for name, shift in (("language_persistent", 0), ("language_events", 1)):
        change_rows(
            folder,
            name,
            lambda table, shift=shift: pa.array([said[(row + shift) % 3] for row in table["index"].to_pylist()], kind),
        )
    source = LeRobotSource(folder)
    for row in range(4):
        assert source[row]["language_persistent"] == (said[row % 3] or [])
        assert source[row]["language_events"] == (said[(row + 1) % 3] or [])
    first, again = source[0]["language_persistent"], source[0]["language_persistent"]
    first.clear()
    assert again == said[0]  # no two records share a list
    assert source.__getitems__([0, 1]).tree["language_persistent"].tolist() == [said[0], []]
    windows = LeRobotSource(folder, delta_timestamps={"language_persistent": [0.0, 0.1]})
    assert windows[0]["language_persistent"].tolist() == [said[0], []]
    episode = open_episodes(folder.name, folder.parent, format="lerobot").episodes()[0]
    assert json.loads(episode["language_persistent"][0]) == said[0]


def test_language_of_another_type_is_named(copy):
    folder = copy()
    change_info(folder, add={"language_events": {"dtype": "language", "shape": [1], "names": None}})
    with pytest.raises(DamagedFile, match="it has no column 'language_events'"):
        LeRobotSource(folder)
    change_rows(folder, "language_events", lambda table: pa.array([1] * len(table)))
    with pytest.raises(DamagedFile, match="'language_events' is language, which is a list of messages in each row"):
        LeRobotSource(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Extension types of Arrow

PROGRAM = """
import datasets, json, pathlib, sys
import pyarrow.parquet as pq
from datasets import Array2D, Dataset, Features

for path in sorted(pathlib.Path(sys.argv[1], "data").rglob("*.parquet")):
    given = pq.read_table(path)
    actions = [[[row, 1.5], [2.5, 3.5]] for row in given["index"].to_pylist()]
    own = Dataset.from_dict({"action": actions}, features=Features({"action": Array2D((2, 2), "float32")}))
    place = given.schema.get_field_index("action")
    pq.write_table(given.set_column(place, "action", own.data.table["action"]), path)

from bushel.trajectory import LeRobotSource
print(json.dumps(LeRobotSource(sys.argv[1])[4]["action"].tolist()))
"""


def test_features_of_two_dimensions_are_read_also_if_datasets_was_imported(copy):
    folder = copy()
    change_info(folder, add={"action": {"dtype": "float32", "shape": [2, 2], "names": None}})
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)]
    answer = subprocess.run(program, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    assert json.loads(answer) == [[4.0, 1.5], [2.5, 3.5]]
    here = LeRobotSource(folder)[4]["action"]
    assert here.dtype == np.float32 and here.tolist() == [[4.0, 1.5], [2.5, 3.5]]
