"""Computing and saving columns: the same for any number of workers, resumable when killed, whole or not there."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from helpers.processes import run_script, start_script
from helpers.waiting import wait_until
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset, MultiprocessingOptions
from bushel._src.base import checked_files
from bushel._src.datasets import computed_columns as computing

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

TWO = MultiprocessingOptions(num_workers=2)
HERE = MultiprocessingOptions(num_workers=0)


def square(x):
    return x * x


@pytest.mark.parametrize("options", [None, HERE, TWO, MultiprocessingOptions(num_workers=3)])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1000])
def test_the_values_are_the_same_for_any_workers(options, length, tmp_path):
    ds = MapDataset.range(length)
    for cache in (None, tmp_path):
        found = ds.column(square, workers=options, cache_dir=cache)
        assert np.asarray(found).tolist() == [x * x for x in range(length)]


def test_what_takes_long_goes_to_workers(monkeypatch):
    monkeypatch.setattr(computing, "_INLINE_S", 0.0)
    column = MapDataset.range(500).column(lambda x: os.getpid())
    assert os.getpid() in np.asarray(column)[:64] and os.getpid() not in np.asarray(column)[64:]


def test_a_function_of_whole_columns():
    ds = MapDataset.source(bushel.sources.ArrayDataSource({"x": np.arange(300)}))
    assert np.asarray(ds.column(lambda tree: tree["x"] * 2, vectorized=True)).tolist() == list(range(0, 600, 2))


def test_values_of_several_types_become_one():
    ds = MapDataset.range(200)
    column = ds.column(lambda x: x if x < 150 else x + 0.5)
    assert column.dtype == np.float64 and np.asarray(column)[199] == 199.5
    words = ds.column(str)
    assert words.dtype == np.dtype("<U3") and np.asarray(words)[5] == "5"
    pairs = ds.column(lambda x: np.array([x, x]))
    assert np.asarray(pairs).shape == (200, 2)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda x: None, "<lambda> returned None; a column needs a value for each"),
        (lambda x: [x], r"A column needs a number, a small array of one shape, or a flat dict of them"),
        (lambda x: np.zeros(x), r"type and shape; element 0 has float64\[0\] and element 1 has float64\[1\]"),
        (lambda x: np.zeros(2 + (x >= 64)), r"element 0 has float64\[2\] and element 64 has float64\[3\]"),
        (lambda x: object(), "A column needs a number"),
        (lambda x: 1 // (x - 3), "by zero"),
    ],
)
def test_what_is_no_value_is_refused(function, sentence, tmp_path):
    for cache in (None, tmp_path):
        with pytest.raises((TypeError, ValueError, ZeroDivisionError), match=sentence):
            MapDataset.range(100).column(function, cache_dir=cache)
    assert not list(tmp_path.glob("*.npy"))


def test_a_failing_function_says_where():
    with pytest.raises(ZeroDivisionError) as raised:
        MapDataset.range(100).shuffle(1).column(lambda x: 1 // (x - 70))
    assert any("record 70 of range(100)" in note for note in raised.value.__notes__)


def test_a_saved_column_is_not_computed_again(tmp_path):
    calls = []

    def counted(x):
        calls.append(x)
        return x * 3

    ds = MapDataset.range(100)
    first = ds.column(counted, cache_dir=tmp_path, workers=HERE)
    calls.clear()
    again = ds.shuffle(4).column(counted, cache_dir=tmp_path, workers=HERE)
    assert not calls and np.array_equal(first, again)
    (file,) = tmp_path.iterdir()
    assert isinstance(again.values.base, np.memmap) and file.suffix == ".npy"
    ds.map(square).column(counted, cache_dir=tmp_path, workers=HERE)
    assert len(calls) == 100 and len(list(tmp_path.iterdir())) == 2


def test_a_mapped_column_goes_to_workers_by_name(tmp_path):
    ds = MapDataset.range(50_000).shuffle(2)
    column = ds.column(lambda x: x % 7 == 0, cache_dir=tmp_path)
    import cloudpickle

    assert len(cloudpickle.dumps(ds.where(column)._node)) < 10_000
    assert len(cloudpickle.dumps(ds.where(column & True)._node)) > 50_000
    kept = ds.where(column).batch(100)
    with iter(kept.to_iter_dataset().mp_prefetch(TWO)) as it:
        assert bushel.testing.same(list(it), list(kept))


def test_another_function_has_another_file(tmp_path):
    ds = MapDataset.range(10)
    one, two = (ds.column(lambda x, k=k: x + k, cache_dir=tmp_path) for k in (1, 2))
    assert not np.array_equal(one, two) and len(list(tmp_path.glob("*.npy"))) == 2


SCRIPT = """
import os, sys, time
from pathlib import Path
import numpy as np
import bushel

def slow(x):
    with open({log!r}, "a") as log:
        log.write(f"{{x}}\\n")
    time.sleep(0.002)
    return x * 2

ds = bushel.MapDataset.range({count})
column = ds.column(slow, cache_dir={cache!r}, workers=bushel.MultiprocessingOptions(num_workers={workers}))
assert np.array_equal(column, np.arange({count}) * 2)
"""


@pytest.mark.parametrize(("workers", "count"), [(0, 1500), (2, 4000)])
def test_killed_it_goes_on_where_it_was(tmp_path, workers, count):
    log, cache = tmp_path / "log", tmp_path / "cache"
    script = SCRIPT.format(log=str(log), cache=str(cache), workers=workers, count=count)
    for _ in range(2):  # killed twice
        before = len(list(cache.glob("*.parts/*.npy")))
        child = start_script(tmp_path, script)
        wait_until(lambda before=before: len(list(cache.glob("*.parts/*.npy"))) > before)
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        assert not list(cache.glob("*.npy"))
    saved = sum(len(np.load(path)) for path in cache.glob("*.parts/*.npy"))
    log.unlink()
    code, _, err = run_script(tmp_path, script)
    assert code == 0, err
    again = {int(line) for line in log.read_text().split()}
    assert saved >= 128 and again == set(range(saved, count))
    assert [path.suffix for path in cache.iterdir()] == [".npy"]
    assert "column" not in err  # no progress where nobody looks


def test_what_was_computed_before_an_error_is_kept(tmp_path):
    def function(x):
        if x == 700:
            raise OSError("a bad disk")
        return x

    with pytest.raises(OSError, match="a bad disk"):
        MapDataset.range(1000).column(function, cache_dir=tmp_path, workers=HERE)
    assert list(tmp_path.glob("*.parts/*.npy")) and not list(tmp_path.glob("*.npy"))


def test_two_processes_compute_it_once(tmp_path):
    log, cache = tmp_path / "log", tmp_path / "cache"
    script = SCRIPT.format(log=str(log), cache=str(cache), workers=0, count=500)
    children = [start_script(folder(tmp_path / str(n)), script) for n in range(2)]
    for child in children:
        _, err = child.communicate(timeout=250)
        assert child.returncode == 0, err
    assert len(log.read_text().split()) == 500


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_damaged_file_is_told_and_computed_again(tmp_path):
    ds = MapDataset.range(1000)
    ds.column(square, cache_dir=tmp_path)
    (file,) = tmp_path.glob("*.npy")
    data = file.read_bytes()
    for damaged in (data[:500], b"", b"nothing of ours", data[:-1], data[:600] + b"?" + data[601:]):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=f"{file} cannot be used and is computed again: .*damaged"):
            assert np.asarray(ds.column(square, cache_dir=tmp_path))[31] == 31 * 31
        assert file.read_bytes() == data
    checked_files.write_array(file, np.arange(5))
    with pytest.warns(UserWarning, match=r"It should hold 1000 values, and holds int64\[5\]"):
        assert np.asarray(ds.column(square, cache_dir=tmp_path))[3] == 9


def test_a_torn_part_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(computing, "_SAVE_EVERY_S", 0.0)

    def fails(x):
        if Path(tmp_path / "fail").exists() and x >= 500:
            raise OSError("gone")
        return x

    (tmp_path / "fail").touch()
    ds, cache = MapDataset.range(1000), tmp_path / "cache"
    with pytest.raises(OSError, match="gone"):
        ds.column(fails, cache_dir=cache, workers=HERE)
    parts = sorted(cache.glob("*.parts/*.npy"))
    assert len(parts) > 3
    parts[2].write_bytes(parts[2].read_bytes()[:-3])
    (tmp_path / "fail").unlink()
    monkeypatch.setattr(computing, "_SAVE_EVERY_S", 1.0)  # parts now have other bounds
    with pytest.warns(UserWarning, match=f"{parts[2].name} is damaged"):
        assert np.array_equal(ds.column(fails, cache_dir=cache, workers=HERE), np.arange(1000))


def test_progress_is_shown_on_a_terminal_alone(monkeypatch, capsys):
    MapDataset.range(500).column(square)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("bushel._src.base.shown_text.BAR_AFTER_S", 0)
    MapDataset.range(500).column(square)
    shown = capsys.readouterr().err
    assert "column square:" in shown and "500/500" in shown and shown.endswith("\n")


def test_what_cannot_be_sent_says_how_to_do_without(monkeypatch):
    import threading

    lock = threading.Lock()

    def function(x):
        with lock:
            return x

    with pytest.raises(bushel.PipelineNotSent) as raised:
        MapDataset.range(100).column(function, workers=TWO)
    assert "workers=0 computes it in this process" in raised.value.__notes__[0]
    assert len(MapDataset.range(100).column(function, workers=HERE)) == 100


class GoesMissing:
    """The identity, but for some numbers, in whose place it gives None."""

    def __init__(self, missing):
        self.missing = frozenset(missing)

    def __call__(self, x):
        return None if x in self.missing else x


def twice(x):
    return 2 * x


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.integers(1, 300),
    stretches=st.lists(st.tuples(st.integers(0, 299), st.sampled_from([1, 2, 63, 64, 65, 128, 300])), max_size=3),
    options=st.sampled_from([None, HERE, MultiprocessingOptions(num_workers=1), TWO]),
    vectorized=st.booleans(),
    shuffled=st.booleans(),
    saved=st.booleans(),
)
@example(length=256, stretches=[(64, 64)], options=None, vectorized=False, shuffled=False, saved=False)
@example(length=256, stretches=[(64, 64)], options=TWO, vectorized=True, shuffled=True, saved=True)
@example(length=100, stretches=[(64, 36)], options=None, vectorized=False, shuffled=False, saved=True)
@example(length=200, stretches=[(0, 64)], options=HERE, vectorized=False, shuffled=False, saved=False)
@example(length=64, stretches=[(0, 64)], options=TWO, vectorized=False, shuffled=False, saved=True)
def test_a_column_has_the_value_of_each_record_or_says_which_is_missing(
    tmp_path_factory, length, stretches, options, vectorized, shuffled, saved
):
    missing = sorted({x for low, count in stretches for x in range(low, low + count) if x < length})
    ds = MapDataset.range(length).map(GoesMissing(missing))
    if shuffled:
        ds = ds.shuffle(3)
    folder = tmp_path_factory.mktemp("columns") if saved else None

    def column():
        return ds.column(twice, workers=options, vectorized=vectorized, cache_dir=folder)

    if not missing:
        assert np.asarray(column()).tolist() == [2 * x for x in range(length)]
        assert sorted(ds.where(column() >= length)) == [x for x in range(length) if 2 * x >= length]
        return
    for _ in range(2):  # nothing is saved that a second computation would take for the column
        with pytest.raises(ValueError, match=rf"element {missing[0]} of map\(.*\) is missing: it is None") as raised:
            column()
        assert f"record {missing[0]} of range({length})" in "".join(raised.value.__notes__)
    assert folder is None or not list(folder.glob("*.npy"))


def test_an_empty_dict_is_no_value():
    with pytest.raises(TypeError, match="A column needs a number"):
        MapDataset.range(10).column(lambda x: {})


def test_a_column_saved_when_missing_elements_shifted_it_is_not_used(tmp_path, monkeypatch):
    ds = MapDataset.range(256)
    with monkeypatch.context() as before:
        before.setattr(computing, "_FORMAT", 1)
        ds.column(square, cache_dir=tmp_path)
    (file,) = tmp_path.glob("*.npy")
    np.save(file, np.zeros(256))
    assert np.asarray(ds.column(square, cache_dir=tmp_path))[255] == 255 * 255


def test_pieces_of_workers_do_not_fill_their_shared_memory(caplog):
    ds, options = MapDataset.range(40_000), MultiprocessingOptions(2, budget_bytes=1 << 20)
    with caplog.at_level("WARNING", logger="bushel"):
        values = ds.column(lambda x: np.stack([x] * 16, axis=1), vectorized=True, workers=options)
    assert np.array_equal(values, np.arange(40_000)[:, None].repeat(16, axis=1))
    assert not caplog.records
