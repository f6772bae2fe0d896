"""Elements of any pipeline in files and back: the same trees, dtypes and values, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bushel
from bushel import DamagedFile, MapDataset
from bushel._src.sources import saved_elements
from bushel._src.sources.saved_elements import SavedDataSource
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

FORMATS = ["bag", "array_record", "bagz", "parquet", "tfrecord"]

scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(st.characters()),
    st.binary(),
    st.none(),
    hnp.arrays(hnp.scalar_dtypes(), ()).map(lambda array: array[()]),
    st.text(st.characters()).map(np.str_),
    st.binary().map(np.bytes_),
)
arrays = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), hnp.unicode_string_dtypes(endianness="<"), hnp.byte_string_dtypes()),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
trees = st.recursive(
    scalars | arrays,
    lambda inner: st.one_of(
        st.dictionaries(st.text(), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=6,
)


@given(trees)
def test_an_element_comes_back_as_it_was(element):
    layout = json.loads(json.dumps(saved_elements.infer_layout(element)))
    assert saved_elements.check_layout(layout, "here") == layout
    back = saved_elements.decode(saved_elements.encode(element, layout), layout)
    assert same(back, element)
    assert all(leaf.flags.writeable for leaf in bushel._src.base.trees.leaves(back) if isinstance(leaf, np.ndarray))


@given(trees, st.data())
def test_a_record_that_is_cut_or_changed_is_damaged_or_another_element(element, data):
    layout = saved_elements.infer_layout(element)
    record = bytearray(saved_elements.encode(element, layout))
    if not record:
        return
    if data.draw(st.booleans()):
        del record[data.draw(st.integers(0, len(record) - 1)) :]
    else:
        record[data.draw(st.integers(0, len(record) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(DamagedFile):  # and no other error
        saved_elements.decode(bytes(record), layout)


def rich(number):
    return {
        "image": np.full((number % 5, 3), number, np.float32),
        "nested": {"text": "ä" * (number % 4), "data": b"q" * number, "score": np.float32(number)},
        "label": number,
        "tokens": np.arange(number % 3),
        "flag": number % 2 == 0,
        "words": np.array(["a" * (number % 3), "b"]),
    }


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", ["map", "stream", "workers"])
def test_a_pipeline_is_saved_and_read_back(tmp_path, format, kind):
    ds = MapDataset.range(70).seed(1).shuffle().map(rich)
    expected = list(ds)
    options = bushel.MultiprocessingOptions(num_workers=2) if kind == "workers" else None
    files = (ds.to_iter_dataset() if kind == "stream" else ds).save(
        tmp_path / "saved", format=format, shards=3, workers=options
    )
    assert [os.path.basename(file) for file in files.files] == [f"part-0000{number}.{format}" for number in range(3)]
    source = bushel.sources.open(tmp_path / "saved")
    assert isinstance(source, SavedDataSource) and len(source) == 70
    assert same(list(MapDataset.source(source)), expected)
    assert same(source[-1], expected[-1]) and same(source.__getitems__([5, 0, 5]), [expected[n] for n in (5, 0, 5)])
    back = MapDataset.source(source).batch(2, batch_fn=list).to_iter_dataset()
    assert same(list(back.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1)))[3], expected[6:8])


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_pipeline_is_saved(tmp_path, format):
    assert MapDataset.range(0).save(tmp_path, format=format).files == ()
    assert len(bushel.sources.open(tmp_path)) == 0


def test_files_have_about_one_size_where_their_number_is_not_given(tmp_path, monkeypatch):
    monkeypatch.setattr("bushel._src.datasets.saving.SHARD_BYTES", 1000)
    files = MapDataset.range(50).filter(bool).map(lambda x: {"x": np.full(25, x)}).save(tmp_path)
    assert len(files.files) == 10  # 49 elements of 209 bytes: five fill a file
    assert [element["x"][0] for element in MapDataset.source(bushel.sources.open(tmp_path))] == list(range(1, 50))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(stop=st.integers(0, 39))
def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path_factory, stop):
    folder = tmp_path_factory.mktemp("saved")
    alive, calls = False, []

    def count(x):
        if x == stop and not alive:
            raise RuntimeError("stopped")
        calls.append(x)
        return x * x

    ds = MapDataset.range(40).map(count)
    with pytest.raises(RuntimeError, match="stopped"):
        ds.save(folder, format="bagz", shards=4)
    with pytest.raises(FileNotFoundError):
        SavedDataSource(folder)
    assert not [name for name in os.listdir(folder) if name.startswith(".part")]
    alive, before = True, len(calls)
    ds.save(folder, format="bagz", shards=4)
    assert len(calls) - before == 40 - stop // 10 * 10  # complete files are not written again
    assert list(MapDataset.source(bushel.sources.open(folder))) == [x * x for x in range(40)]
    assert ".saving.json" not in os.listdir(folder)


PROGRAM = """
import os, sys, time
import bushel

def slow(x):
    if x == 25:
        os.kill(os.getpid(), 9)
    return {"x": x}

bushel.MapDataset.range(40).map(slow).save(sys.argv[1], format="bagz", shards=4)
"""


def test_a_run_that_was_killed_goes_on_in_another_process(tmp_path):
    folder = str(tmp_path / "saved")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    assert subprocess.run([sys.executable, script, folder], check=False).returncode == -9
    assert json.loads((tmp_path / "saved" / ".saving.json").read_text())["counts"] == [10, 10]
    script.write_text(PROGRAM.replace("x == 25", "x < 20 or x > 40"))  # another function: refused
    refused = subprocess.run([sys.executable, script, folder], check=False, stderr=subprocess.PIPE, text=True)
    assert "whose saving was interrupted. Pass overwrite=True to begin again." in refused.stderr
    script.write_text(PROGRAM.replace("sys.argv[1], ", "sys.argv[1], overwrite=True, ").replace("x == 25", "x == 99"))
    subprocess.run([sys.executable, script, folder], check=True)
    assert len(bushel.sources.open(folder)) == 40


def test_saving_again_does_nothing_and_another_pipeline_is_refused(tmp_path):
    ds = MapDataset.range(9)
    files = ds.save(tmp_path, shards=2)
    changed = [os.stat(file).st_mtime_ns for file in files.files]
    assert ds.save(tmp_path, shards=2) == files
    assert [os.stat(file).st_mtime_ns for file in files.files] == changed
    (tmp_path / "mine.txt").write_text("stays")
    with pytest.raises(
        FileExistsError, match="has elements of another pipeline, or of another format or number of shards"
    ):
        MapDataset.range(8).save(tmp_path, shards=2)
    MapDataset.range(8).save(tmp_path, shards=2, overwrite=True)
    assert len(bushel.sources.open(tmp_path)) == 8 and (tmp_path / "mine.txt").read_text() == "stays"


@pytest.mark.parametrize(
    ("ds", "error", "words"),
    [
        (MapDataset.range(3).repeat(), ValueError, "An endless dataset cannot be saved"),
        (MapDataset.range(3).map(lambda x: {x}), TypeError, "is of type set, which cannot be saved"),
        (MapDataset.range(3).map(lambda x: {1: x}), TypeError, "has the key 1: keys must be texts"),
        (MapDataset.range(3).map(lambda x: np.array([{}])), TypeError, "has the dtype object"),
        (MapDataset.range(3).map(lambda x: 2**70), ValueError, "does not fit into 64 bits"),
        (
            MapDataset.range(3).map(lambda x: {"a": x} if x < 2 else {"b": x}),
            ValueError,
            r"Element 2 cannot be saved with the others: the element is \{'b': int\}, but it was a dict with the keys",
        ),
        (
            MapDataset.range(3).map(lambda x: np.zeros(x, np.int8 if x < 2 else np.int16)),
            ValueError,
            r"is int16\[2\], but it was \|i1\[...\] in the first element",
        ),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path, ds, error, words):
    with pytest.raises(error, match=words):
        ds.save(tmp_path / "saved", format="bagz")
    assert list(tmp_path.glob("saved/*part*")) == []


@pytest.mark.parametrize(
    ("element", "words"),
    [
        (3, "names for Parquet columns"),
        ({"a": [1]}, "a is a list or a tuple"),
        ({"a": np.zeros(2, complex)}, "has the dtype complex128, which Parquet does not have"),
        ({"a.b": 1}, "has a dot"),
        ({}, "The element has no values: a Parquet file without columns has no rows"),
        ({"a": {}, "b": {"c": {}}}, "The element has no values"),
    ],
)
def test_what_parquet_cannot_hold_is_named(tmp_path, element, words):
    with pytest.raises(TypeError, match=words):
        MapDataset.range(3).map(lambda x: element).save(tmp_path, format="parquet")


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_at_the_end_of_texts_are_kept(tmp_path, format):
    element = {
        "bytes": np.bytes_(b"a\0"),
        "text": np.str_("a\0\0"),
        "zero": np.bytes_(b"\0"),
        "none": np.bytes_(b""),
        "": np.str_("\0"),
        "python": "b\0",
        "inner": {"": b"\0"},
    }
    options = bushel.MultiprocessingOptions(num_workers=1)
    MapDataset.range(2).map(lambda x: element).save(tmp_path, format=format, workers=options)
    assert same(bushel.sources.open(tmp_path)[1], element)


@pytest.mark.parametrize("format", [*FORMATS, "rlds"])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    "masked", [np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2]), np.ma.masked, np.ma.array([1], mask=[1])[0]]
)
def test_a_masked_array_is_refused_and_its_mask_is_not_dropped(tmp_path, format, at, masked):
    def f(x):
        value = masked if x == at else np.zeros(np.shape(masked), masked.dtype)
        return {"steps": {"x": np.zeros(2)}, "mask": value} if format == "rlds" else {"mask": value}

    with pytest.raises((TypeError, ValueError), match=r"mask.* mask"):
        MapDataset.range(2).map(f).save(tmp_path / "arm", format=format)


def test_a_text_that_is_not_unicode_is_refused_by_parquet(tmp_path):
    with pytest.raises(ValueError, match="a holds a text that is not valid Unicode"):
        MapDataset.range(2).map(lambda x: {"a": "\ud800"}).save(tmp_path, format="parquet")


def test_an_unknown_format_is_named(tmp_path):
    with pytest.raises(
        ValueError, match='format must be "bag", "array_record", "bagz", "tfrecord", "parquet" or "rlds", got \'zip\''
    ):
        MapDataset.range(3).save(tmp_path, format="zip")
    with pytest.raises(ValueError, match="shards can only be given if the length"):
        MapDataset.range(3).to_iter_dataset().filter(bool).save(tmp_path, shards=2)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"files": ["../secret.bagz"]},
        {"files": ["/etc/passwd"]},
        {"files": [7]},
        {"counts": [3, 4]},
        {"counts": [-1]},
        {"counts": [2]},
        {"format": "zip"},
        {"layout": {"array": "O"}},
        {"layout": {"array": "nothing"}},
        {"layout": {"dict": {"a": 7}}},
        {"layout": None},
        {"identity": 5},
    ],
)
def test_a_damaged_manifest_is_named(tmp_path, damage):
    MapDataset.range(3).save(tmp_path, format="bagz")
    manifest = tmp_path / "bushel.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | damage))
    with pytest.raises(DamagedFile, match=r"bushel\.json is damaged: its content does not fit its checksum"):
        SavedDataSource(tmp_path)
    del content["checksum"]
    manifest.write_text(json.dumps(content | damage))
    with pytest.raises(DamagedFile, match=r"bushel\.json"):
        SavedDataSource(tmp_path)
    manifest.write_text("{")
    with pytest.raises(DamagedFile, match=r"bushel\.json is damaged: it cannot be read as JSON"):
        SavedDataSource(tmp_path)


def test_other_elements_than_the_layout_says_are_damage(tmp_path):
    MapDataset.range(3).save(tmp_path, format="bagz")
    manifest = tmp_path / "bushel.json"
    content = json.loads(manifest.read_text()) | {"layout": {"array": "<f8"}}
    del content["checksum"]
    manifest.write_text(json.dumps(content))
    with pytest.raises(DamagedFile, match=r"Element 1 of SavedDataSource\(.*: 3 elements\) is damaged"):
        SavedDataSource(tmp_path)[1]


def test_a_path_is_opened_by_its_ending(tmp_path):
    np.save(tmp_path / "numbers.npy", np.arange(5))
    assert list(MapDataset.source(bushel.sources.open(tmp_path / "numbers.npy"))) == [0, 1, 2, 3, 4]
    (tmp_path / "lines.txt").write_text("a\nb\n")
    assert len(bushel.sources.open(tmp_path / "lines.txt")) == 2
    MapDataset.range(3).map(lambda x: {"x": x}).save(tmp_path / "saved", format="parquet")
    rows = bushel.sources.open(tmp_path / "saved" / "*.parquet")
    assert [row["x"] for row in MapDataset.source(rows)] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"Bushel does not know the format of .*nothing\.xyz"):
        bushel.sources.open(tmp_path / "nothing.xyz")
    with pytest.raises(ValueError, match="fsspec has no driver for zzz://"):
        bushel.sources.open("zzz://nowhere/saved")
