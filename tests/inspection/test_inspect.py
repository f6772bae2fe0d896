"""`bushel inspect`: every format by its own writer, damage by name, and nothing large is read unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from helpers.example_datasets import EXAMPLES, RECORDS
from helpers.terminals import COMMAND, run_on_terminal
from hypothesis import given
from hypothesis import strategies as st

from bushel._src import cli
from bushel._src.base.late_imports import install_command
from bushel._src.inspection.facts import Histogram, describe, list_columns, show_histogram
from bushel._src.inspection.inspector import inspect_target

FACTS = {
    # target: format, unit, count, some entries with their types
    "a.array_record": ("ArrayRecord", "records", 60, {}),
    "e.tfrecord-*": ("TFRecord", "records", 60, {"x": "int64[2]", "image": "bytes", "y": "float32[1]"}),
    "b.bagz": ("Bagz", "records", 60, {}),
    "x.jsonl": ("lines of text", "records", 50, {"a": "int", "b/c": "str"}),
    "x.csv": ("lines of text", "records", 51, {"name": "", "age": ""}),
    "x.txt": ("lines of text", "records", 2, {}),
    "t.parquet": ("Parquet", "rows", 1000, {"id": "int64", "text": "string"}),
    "a.arrow": ("Arrow", "rows", 10, {"id": "int64"}),
    "l.lance": ("Lance", "rows", 100, {"id": "int64", "v": "float64"}),
    "x.npy": ("NumPy array", "rows", 10, {"": "float64[10, 3]"}),
    "x.npz": ("NumPy archive", "rows", 10, {"a": "float64[10, 3]", "b": "int8[10]"}),
    "w.safetensors": ("safetensors", "rows", 3, {"w": "float32[3, 4]"}),
    "h.h5": ("HDF5", "rows", 20, {"images": "uint8[20, 8, 8, 3]", "labels": "int64[20]"}),
    "z.zarr": ("Zarr", "rows", 30, {"x": "float32[30, 4]"}),
    "saved": ("saved by ds.save", "elements", 30, {"x": "int64[3]", "name": "str"}),
    "w.tar": ("WebDataset (tar)", "records", None, {"cls": "bytes", "png": "bytes"}),
    "c.tfrecord.gz": ("TFRecord, compressed", "records", None, {"x": "int64[2]"}),
    "pictures": ("one file per record", "files", 2, {}),
    "npz": ("npz episodes", "episodes", 4, {"observation/state": "float32[3]", "action": "float32[2]"}),
    "robomimic.hdf5": ("robomimic (HDF5)", "episodes", 4, {"observation/agentview_image": "image"}),
    "rlds/mine": ("RLDS", "episodes", 4, {"observation/state": "float32[3]", "language_instruction": "text"}),
    "rlds/mine/1.0.0": ("RLDS", "episodes", 4, {"action": "float32[2]"}),
    "lerobot": ("LeRobot", "episodes", 4, {"observation.state": "float32[3]", "action": "float32[2]"}),
}
COUNTED = {"w.tar": 6, "c.tfrecord.gz": 20}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("target", FACTS)
def test_inspect_names_the_format_the_count_and_the_types_of_every_format(target, scan, written):
    kind, unit, count, entries = FACTS[target]
    facts = inspect_target(str(written / target), scan=scan)
    assert (facts.format, facts.unit) == (kind, unit)
    assert facts.count == (COUNTED.get(target, count) if scan else count)
    types = {column.name: column.type for column in facts.schema}
    assert {name: types.get(name) for name in entries} == entries
    assert facts.damage == []
    text = describe(facts, width=100)
    assert all(histogram.name in text for histogram in facts.histograms)
    assert json.loads(json.dumps(facts.as_json()))["format"] == kind
    if target != "pictures":
        assert facts.size_bytes == sum(file.size_bytes for file in facts.files) > 0


def test_sizes_of_records_are_measured(written):
    facts = inspect_target(str(written / "a.array_record"), scan=True)
    (histogram,) = facts.histograms
    assert sum(histogram.counts) == len(RECORDS)
    assert (histogram.edges[0], histogram.edges[-1]) == (min(map(len, RECORDS)), max(map(len, RECORDS)))


@pytest.mark.parametrize("target", ["npz", "rlds/mine", "lerobot"])
def test_inspect_describes_robot_data_sets(target, written):
    facts = inspect_target(str(written / target))
    assert facts.splits == {"train": 4}
    assert facts.details["steps"] == 26 and facts.details["steps of an episode"] == "5 to 8, 6.5 on average"
    assert facts.details["instructions"] == 2
    assert "open the drawer" in describe(facts)
    assert [histogram.counts for histogram in facts.histograms] == [[1, 1, 1, 1]]
    if target == "lerobot":
        assert facts.details["robot"] == "arm" and facts.details["steps per second"] == 10


def test_the_command_prints_the_facts(written, capsys):
    assert cli.main(["inspect", str(written / "t.parquet")]) == 0
    text = capsys.readouterr().out
    assert "rows         1,000" in text and "rows of a row group\n  100  █" in text
    assert cli.main(["inspect", "--json", str(written / "t.parquet")]) == 0
    assert json.loads(capsys.readouterr().out)["details"]["row groups"] == 10


# Pipelines.

PIPELINE = """
import bushel, numpy as np
ds = bushel.MapDataset.range(10**9).seed(1).shuffle().map(lambda x: {"x": np.zeros(3), "n": x}).batch(8)
endless = bushel.MapDataset.range(7).repeat().batch(2)
class Config:
    data = [1, 2, 3]
def make():
    return ds.to_iter_dataset()
def broken():
    raise RuntimeError("no data today")
"""


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    (tmp_path / "my_pipeline.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "my_pipeline.py"
    sys.modules.pop("my_pipeline", None)


@pytest.mark.parametrize("place", ["my_pipeline.py", "my_pipeline"])
def test_a_pipeline_of_a_file_and_of_a_module(place, pipeline):
    begun = time.process_time()
    facts = inspect_target(f"{place}:make")
    assert time.process_time() - begun < 5  # nothing is scanned
    assert facts.count == 125_000_000 and [step["length"] for step in facts.steps][-2:] == [
        "125,000,000",
        "125,000,000",
    ]
    assert facts.steps[3] == {
        "step": "map(<lambda>)",
        "length": "1,000,000,000",
        "element": "{'x': float64[3], 'n': int}",
    }
    assert "batch(8)" in describe(facts)


def test_an_endless_pipeline_and_a_list(pipeline):
    facts = inspect_target("my_pipeline.py:endless")
    assert facts.count is None and facts.details == {"length": "endless"}
    assert inspect_target("my_pipeline.py:Config.data").count == 3


def test_a_pipeline_that_fails(pipeline, capsys):
    with pytest.raises(RuntimeError, match="no data today"):
        inspect_target("my_pipeline.py:broken")
    for target, sentence in {
        "nowhere.py:make": "nowhere.py does not exist",
        "my_pipeline.py:Config.nothing": "my_pipeline.py has no 'Config.nothing'",
        "no_such_module:ds": "No module named 'no_such_module'",
    }.items():
        assert cli.main(["inspect", target]) == 1
        assert sentence in capsys.readouterr().err


# Damage.


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def test_a_file_that_was_cut_is_named_and_the_others_are_counted(copied, capsys):
    path = copied / "e.tfrecord-00001-of-00003"
    path.write_bytes(path.read_bytes()[:-7])
    facts = inspect_target(str(copied / "e.tfrecord-*"))
    assert facts.count == 40 and len(facts.damage) == 1 and "e.tfrecord-00001-of-00003 ends" in facts.damage[0]
    assert [bool(file.error) for file in facts.files] == [False, True, False]
    assert cli.main(["inspect", str(copied / "e.tfrecord-*")]) == 1
    assert "damaged" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["e.tfrecord-00000-of-00003", "a.array_record"])
def test_a_damaged_record_is_found_by_a_scan(name, copied):
    data = (copied / name).read_bytes()
    flip(copied / name, data.index(RECORDS[10]) + 5)
    facts = inspect_target(str(copied / name), scan=True)
    assert (
        len(facts.damage) == 1
        and name in facts.damage[0]
        and "record 10" in facts.damage[0].replace("records", "record")
    )
    assert facts.count is not None and sum(facts.histograms[0].counts) == facts.count - 1
    assert facts.files[0].error == f"1 of {facts.count} records cannot be read"


def test_other_files_that_are_damaged(copied):
    for name in ("t.parquet", "a.arrow", "x.npz", "h.h5", "w.tar", "c.tfrecord.gz", "b.bagz"):
        path = copied / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        facts = inspect_target(str(path), scan=True)
        assert facts.damage and any(name in line for line in facts.damage), name


def test_a_chunk_whose_checksum_is_wrong(copied):
    with h5py.File(copied / "h.h5") as file:
        place = file["images"].id.get_chunk_info(2).byte_offset
    flip(copied / "h.h5", place + 10)
    assert inspect_target(str(copied / "h.h5")).damage == []
    assert "the array 'images' cannot be read" in inspect_target(str(copied / "h.h5"), scan=True).damage[0]


def test_checksums_beside_a_file(copied):
    from bushel.sources import write_checksums

    write_checksums(copied / "x.jsonl")
    assert "beside 1 of 1 files" in inspect_target(str(copied / "x.jsonl")).details["checksums"]
    flip(copied / "x.jsonl", 3)
    assert "do not match their checksum" in inspect_target(str(copied / "x.jsonl"), scan=True).damage[0]


def test_robot_data_sets_with_files_missing(copied):
    (shard, *_) = sorted((copied / "rlds" / "mine" / "1.0.0").glob("*.tfrecord-00001*"))
    shard.unlink()
    facts = inspect_target(str(copied / "rlds" / "mine"))
    assert facts.splits == {"train": 4} and any(shard.name in line for line in facts.damage)
    data = next((copied / "lerobot" / "data").rglob("*.parquet"))
    data.write_bytes(data.read_bytes()[:100])
    facts = inspect_target(str(copied / "lerobot"), scan=True)
    assert facts.count == 4 and any(data.name in line for line in facts.damage)
    info = copied / "lerobot" / "meta" / "info.json"
    info.write_text("{")
    with pytest.raises(ValueError, match=r"info\.json"):
        inspect_target(str(copied / "lerobot"))


def test_a_saved_folder_whose_manifest_is_wrong(copied):
    manifest = copied / "saved" / "bushel.json"
    content = json.loads(manifest.read_text())
    content["counts"][0] += 1
    content.pop("crc32", None)
    manifest.write_text(json.dumps(content))
    try:
        assert "should have 16 elements" in inspect_target(str(copied / "saved")).damage[0]
    except ValueError as error:  # the manifest has a checksum of its own
        assert "bushel.json" in str(error)


# What is not a data set.


def test_paths_that_are_none(tmp_path, written):
    with pytest.raises(FileNotFoundError, match=r"nothing\.bagz does not exist"):
        inspect_target(str(tmp_path / "nothing.bagz"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "dataset_info.json").write_text('{"name": "x"}')
    with pytest.raises(ValueError, match=r"dataset_info\.json names no files"):
        inspect_target(str(tmp_path / "empty"))
    (tmp_path / "empty" / "dataset_info.json").unlink()
    with pytest.raises(FileNotFoundError, match="No file matches"):
        inspect_target(str(tmp_path / "*.bagz"))
    with pytest.raises(ValueError, match=r"has no files\. Name a file"):
        inspect_target(str(tmp_path))
    (tmp_path / "x.weights").write_bytes(b"")
    with pytest.raises(ValueError, match="Bushel does not know the format of"):
        inspect_target(str(tmp_path / "x.weights"))
    (tmp_path / "a.bagz").write_bytes(b"")
    (tmp_path / "a.jsonl").write_bytes(b"{}")
    with pytest.raises(ValueError, match="files of several formats"):
        inspect_target(str(tmp_path))


def test_a_large_tfrecord_file_is_not_read_unasked(tmp_path):
    path = tmp_path / "large.tfrecord"
    from helpers.record_formats import tfrecord

    tfrecord(path, EXAMPLES * 4)
    os.truncate(path, (1 << 30) + 1)  # zeros: a scan would say that it is damaged
    facts = inspect_target(str(path))
    assert facts.count is None and facts.damage == [] and "pass --scan" in facts.notes[0]
    assert {column.name for column in facts.schema} == {"x", "image", "y"}


# Progress, and texts.


def test_the_bar_of_a_scan_is_on_the_terminal_alone(written):
    code, out, screen = run_on_terminal("-c", COMMAND, "inspect", "--scan", written / "a.array_record")
    assert code == 0 and "60/60" in screen and "ArrayRecord" in out and "60/60" not in out
    command = [sys.executable, "-m", "bushel", "inspect", "--scan", str(written / "a.array_record")]
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert quiet.stdout == out and quiet.stderr == ""


@given(st.lists(st.floats(allow_nan=True, width=32) | st.integers(-1000, 1000)))
def test_histograms_count_every_finite_number(numbers):
    finite = [number for number in numbers if np.isfinite(number)]
    histogram = Histogram.of("x", numbers)
    if not finite:
        assert histogram is None
        return
    assert sum(histogram.counts) == len(finite) and len(histogram.counts) <= 10
    assert histogram.edges == sorted(set(histogram.edges)) and histogram.edges[0] == np.float64(min(finite))
    text = show_histogram(histogram, 60)
    assert len(text.splitlines()) == 1 + len(histogram.counts) and max(map(len, text.splitlines()[1:])) <= 100


def test_entries_of_any_tree():
    tree = {"a": (1, b"x", "y"), "b": {}, "c": [1, 2], "d": None, "e": np.str_("x")}
    found = {column.name: (column.type, column.note) for column in list_columns(tree)}
    assert found == {
        "a/0": ("int", ""),
        "a/1": ("bytes", "text"),
        "a/2": ("str", ""),
        "b": ("dict", ""),
        "c": ("list", ""),
        "d": ("null", ""),
        "e": ("str", ""),
    }


BARE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "h5py", "uvicorn", "starlette"):
            raise ImportError(f"No module named {name!r}", name=name.partition(".")[0])
sys.meta_path.insert(0, Missing())
from bushel._src import cli
sys.exit(max(cli.main(["inspect", path]) for path in sys.argv[1:]))
"""


def test_a_package_that_is_missing_is_not_damage(written):
    command = [sys.executable, "-c", BARE, *(str(written / name) for name in ("t.parquet", "h.h5"))]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 1 and child.stdout == ""
    assert install_command("parquet") in child.stderr and install_command("hdf5") in child.stderr
