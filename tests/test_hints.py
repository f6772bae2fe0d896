"""Names and arguments of other libraries get a way out, and nothing else about a class changes."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import operator
import pickle
import pydoc
import threading
from collections.abc import Iterable
from typing import Any

import cloudpickle
import numpy as np
import pytest

import bushel
from bushel import IterDataset, MapDataset, jit
from bushel._src.base import code_inspection, hints
from bushel._src.engine.pool.program_table import find_unpicklable
from bushel.trajectory import TrajectoryDataset


def ten():
    return MapDataset.range(10)


def loader():
    return jit.DataLoader([jit.ArraySource(np.arange(8)), jit.BatchTransform(4)])


OWNERS = {
    "MapDataset": (ten, [hints.DATASET]),
    "IterDataset": (lambda: ten().to_iter_dataset(), [hints.DATASET, hints.ITER_DATASET]),
    "DatasetIterator": (lambda: iter(ten()), [hints.ITERATOR]),
    "DataLoader": (lambda: bushel.load([1, 2, 3]), [hints.LOADER]),
    "loader of jit": (loader, [hints.JIT_LOADER]),
    "TrajectoryDataset": (
        lambda: TrajectoryDataset.from_trajectories([{"action": np.zeros((3, 2))}]),
        [hints.TRAJECTORIES],
    ),
    "Column": (lambda: ten().column(float), [hints.COLUMN]),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_each_name_of_the_tables_is_missing_and_has_its_way_out(owner):
    build, tables = OWNERS[owner]
    value = build()
    ways_out = {name: way_out for table in tables for name, way_out in table.items()}
    for name, way_out in ways_out.items():
        assert name not in dir(value)
        with pytest.raises(AttributeError) as caught:
            getattr(value, name)
        assert way_out in str(caught.value)


@pytest.mark.parametrize("owner", OWNERS)
def test_a_name_that_nobody_knows_is_an_ordinary_error(owner):
    value = OWNERS[owner][0]()
    with pytest.raises(AttributeError, match=r"^'\w+' object has no attribute 'zzz'$"):
        value.zzz  # noqa: B018
    assert not hasattr(value, "_repr_mimebundle_") and getattr(value, "zzz", 1) == 1


@pytest.mark.parametrize("owner", OWNERS)
def test_every_public_name_is_found_although_misspelt(owner):
    value = OWNERS[owner][0]()
    for name in dir(value):
        if name[0] != "_" and len(name) > 4:
            assert hints.nearest(name[:-1], dir(value)) is not None


def test_what_is_not_there_is_not_said_to_be_there():
    """`__next__` of a dataset and `__getitem__` of a stream only explain: `hasattr` and `dir` leave them out."""
    ds, stream = ten(), ten().to_iter_dataset()
    for value, name in ((ds, "__next__"), (stream, "__next__"), (stream, "__getitem__"), (loader(), "__getitem__")):
        assert not hasattr(value, name) and name not in dir(value)
        assert not hasattr(type(value), name)
    assert isinstance(ds, Iterable) and bool(stream)
    assert list(bushel.IterDataset.source(ds)) == list(range(10))  # not an iterator, which is refused
    assert np.asarray(stream).tolist() == list(range(10))
    assert {"map", "batch", "__len__"} <= set(dir(ds))


def test_the_errors_are_those_that_python_raises():
    stream: Any = ten().to_iter_dataset()
    for wrong in (lambda: next(ten()), lambda: stream[0], lambda: next(loader())):
        with pytest.raises(TypeError) as caught:
            wrong()
        assert type(caught.value).__name__ == "TypeError"
        assert type(pickle.loads(pickle.dumps(caught.value))) is TypeError


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: operator.add(ten(), 1),
        lambda: operator.lt(ten(), ten()),
        lambda: ten()(),
        lambda: operator.add(ten().to_iter_dataset(), 1),
        lambda: ten().to_iter_dataset()(),
        lambda: iter(ten())(),
        lambda: len(iter(ten())),
        lambda: MapDataset.source(ten().to_iter_dataset()),
        lambda: MapDataset.concatenate(ten(), ten()),
        lambda: IterDataset.mix(1, 2, 3, 4),
        lambda: bushel.view(lambda: 3),
        lambda: jit.ArraySource(ten()),
        lambda: pickle.dumps(iter(ten())),
        lambda: iter(ten()).set_state(),  # type: ignore[call-arg]
        lambda: iter(ten()).get_state(3),  # type: ignore[call-arg]
        lambda: iter(ten()).close(1),  # type: ignore[call-arg]
        lambda: iter(ten()).__next__(1),  # type: ignore[call-arg]
        lambda: ten().__getitem__(),  # type: ignore[call-arg]
        lambda: ten().to_iter_dataset().__iter__(1),  # type: ignore[call-arg]
    ],
)
def test_python_says_the_public_names(wrong):
    with pytest.raises(TypeError) as caught:
        wrong()
    assert not any(name in str(caught.value) for name in ("Pipeline", "Cursor", "Meta"))


def test_help_shows_the_public_names():
    for value in (ten(), ten().to_iter_dataset(), iter(ten())):
        page = pydoc.plain(pydoc.render_doc(value))
        assert "Pipeline" not in page and "_Cursor" not in page


def test_a_dataset_and_its_class_show_the_public_names():
    for value, name in ((ten().map(str), "MapDataset"), (ten().to_iter_dataset(), "IterDataset")):
        assert repr(type(value)) == f"<class 'bushel.{name}'>" and type(value).__name__ == name
    assert type(iter(ten())).__name__ == "DatasetIterator"
    assert repr(type(iter(ten()))) == "<class 'bushel._src.datasets.iterator.DatasetIterator'>"


def test_datasets_are_pickled_and_copied_as_before():
    ds = ten().seed(1).shuffle().batch(3)
    for value in (ds, ds.to_iter_dataset()):
        for again in (pickle.loads(pickle.dumps(value)), cloudpickle.loads(cloudpickle.dumps(value)), copy.copy(value)):
            assert type(again) is type(value)
            assert all(np.array_equal(a, b) for a, b in zip(again, value, strict=True))
    assert pickle.loads(pickle.dumps(type(ds))) is type(ds)
    column = ten().column(float)
    assert np.array_equal(copy.copy(column).values, column.values)


def test_hints_leave_the_signatures_as_they_are():
    assert list(inspect.signature(MapDataset.batch).parameters) == ["self", "batch_size", "drop_remainder", "batch_fn"]
    assert list(inspect.signature(MapDataset).parameters) == ["parents"]
    assert list(inspect.signature(bushel.ReadOptions).parameters) == ["num_threads", "prefetch_buffer_size"]


def test_a_type_error_of_the_users_function_is_not_explained():
    def fail(ds):
        return ds.undefined(1)

    def add(rows):
        return rows + 1

    with pytest.raises(TypeError, match="unexpected keyword argument 'drop_last'"):
        ten().map(lambda x: (lambda y: y)(drop_last=x))[0]
    with pytest.raises(AttributeError, match="has no attribute 'undefined'"):
        ten().pipe(fail)
    with pytest.raises(TypeError, match="can only concatenate list"):
        ten().batch(2, batch_fn=add)[0]


def plain(x):
    return x


def nothing(x):
    x.append(1)


def one_branch(x):
    if x:
        return x


def both_none(x):
    if x:
        return None
    print(x)


def or_none(x):
    return x or None


def either(x):
    return None if x else x


def generates(x):
    yield x


def raises(x):
    raise ValueError(x)


def loops(x):
    while True:
        pass


class Method:
    def call(self, x):
        self.x = x


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, False),
        (nothing, True),
        (one_branch, False),
        (both_none, True),
        (or_none, False),
        (either, False),
        (generates, False),
        (raises, False),
        (loops, False),
        (print, False),
        (str, False),
        (functools.partial(nothing), True),
        (Method().call, True),
        (lambda x: None, True),
        (lambda x: print(x), False),
    ],
)
def test_which_functions_never_return_a_value(function, expected):
    assert code_inspection.never_returns(function) is expected


@pytest.mark.parametrize(
    ("function", "fits"),
    [
        (lambda x: x, True),
        (lambda x, y=1: x, True),
        (lambda *x: x, True),
        (lambda x, *, y=1: x, True),
        (lambda: 1, False),
        (lambda x, y: x, False),
        (lambda x, *, y: x, False),
        (Method().call, True),
        (Method.call, False),
        (print, True),
        (functools.partial(pow, 2), True),
        (functools.wraps(lambda x, y: x)(lambda x: x), True),
    ],
)
def test_which_functions_take_one_argument(function, fits):
    assert (code_inspection.explain_arguments(function, 1) is None) is fits


lock = threading.Lock()


def reads_global(x):
    with lock:
        return x


class Holder:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, x):
        return x


def closes_over():
    own = threading.Lock()

    def inner(x):
        return own.locked() or x

    return lambda x: inner(x)


def test_what_cannot_be_sent_is_named_with_its_line():
    line = reads_global.__code__.co_firstlineno + 1
    # A function of an importable module is sent by its name; one of a script by value, as here.
    by_value = type(reads_global)(reads_global.__code__, {"lock": lock, "__name__": "__main__"})
    assert find_unpicklable(by_value) == (
        f"the variable `lock`, which reads_global reads in line {line} of test_hints.py, is a lock"
    )
    assert find_unpicklable(Holder()) == "`self.lock` of Holder is a lock"
    assert find_unpicklable(functools.partial(max, threading.Lock())) == "argument 0 of partial(max) is a lock"
    line = closes_over.__code__.co_firstlineno + 4
    assert find_unpicklable(closes_over()) == (
        f"the variable `own`, which inner reads in line {line} of test_hints.py, is a lock"
    )
    assert find_unpicklable({"a": [1, io.TextIOWrapper(io.BytesIO())]}) == "item 1 is an open file"
    assert find_unpicklable(len) == ""


def test_the_map_without_a_return_is_blamed_and_not_a_filter(caplog):
    kept = {}
    list(ten().map(lambda x: kept.update(x=x)))
    list(ten().map(lambda x: kept.update(x=x)).batch(2))
    list(ten().filter(lambda x: False).map(str))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and all("returned None for the first 8 elements: forgot `return`?" in text for text in said)
    caplog.clear()
    list(ten().map(lambda x: x if x == 0 else None))
    assert not caplog.records
    list(MapDataset.range(2000).map(lambda x: x if x < 9 else None))
    assert "No filter did: your function returned None for them. Forgot `return`?" in caplog.text
    caplog.clear()
    list(MapDataset.range(2000).filter(lambda x: x < 9).map(plain).shuffle(seed=1))
    assert caplog.records[0].getMessage().startswith("filter(<lambda>) dropped ")


@pytest.mark.parametrize(
    ("call", "former", "name"),
    [
        (lambda ds, folder: ds.column(len, cache=folder), "cache", "cache_dir"),
        (lambda ds, folder: ds.column(len, options=None), "options", "workers"),
        (lambda ds, folder: ds.save(folder, options=None), "options", "workers"),
        (lambda ds, folder: ds.to_device(buffer=3), "buffer", "buffer_size"),
        (lambda ds, folder: ds.to_iter_dataset().to_device(where=None), "where", "device"),
    ],
)
def test_an_argument_that_had_another_name_still_works(call, former, name, tmp_path):
    ds = bushel.MapDataset.source(["a", "bc"])
    with pytest.warns(bushel.BushelDeprecationWarning, match=f"The argument `{former}` of .* is called `{name}` now"):
        assert call(ds, tmp_path / "folder") is not None


def test_both_names_of_one_argument_are_refused():
    with pytest.raises(TypeError, match="`buffer` and `buffer_size` of to_device are one"):
        bushel.MapDataset.range(3).to_device(buffer=3, buffer_size=2)
