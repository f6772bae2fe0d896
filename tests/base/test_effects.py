"""Whether a function may write into its argument, judged by its bytecode: it must never miss a function that does."""

from __future__ import annotations

import contextlib
import copy
import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bushel
from bushel._src.base import read_only_calls
from bushel._src.base.read_only_calls import find_reading
from bushel.testing import same


class Records:
    """A source that keeps what it gives."""

    def __init__(self, count: int):
        self.kept = [make_record(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> Any:
        return self.kept[index]


def make_record(number: int = 0) -> dict[str, Any]:
    return {
        "a": np.arange(6.0).reshape(2, 3) - number,
        "b": np.zeros(3) + number,
        "c": np.float64(number),
        "text": f"{number}, and more",
    }


def write_first(values: np.ndarray) -> np.ndarray:
    values[0] = 7
    return values


class OwnFunctions:
    """Functions of the user's with the names of methods of arrays."""

    clip = staticmethod(write_first)
    view = staticmethod(write_first)


def rename(function: Callable[[Any], Any]) -> Any:
    return types.SimpleNamespace(transpose=function)


OWN = rename(write_first)
OWN_BY_NAME = {"own": OWN}


def write_by_view(x):
    flat = x["a"].reshape(-1)
    flat[0] = 7
    return flat


def write_in_place(x):
    x["b"] += 1
    return x


READERS: list[Callable[[Any], Any]] = [
    lambda x: {"a": x["a"].astype(np.float32) / 255, "c": x["c"]},
    lambda x: x["a"].astype("f4", copy=False),
    lambda x: x["a"].sum(),
    lambda x: x["a"].sum(0),
    lambda x: x["a"].sum(axis=0, keepdims=True),
    lambda x: x["a"].mean(0, None) - x["b"].mean(),
    lambda x: x["a"].clip(0, 1).reshape(3, -1).transpose(),
    lambda x: x["a"].max() if x["b"].any() else x["a"].min(axis=None),
    lambda x: {**x, "text": x["text"].upper().split(",")[0]},
    lambda x: x.get("b"),
]

WRITERS: list[Callable[[Any], Any]] = [
    lambda x: x["b"].fill(7) or x["b"],
    lambda x: x["a"].sum(axis=0, out=x["b"]),
    lambda x: x["a"].sum(0, None, x["b"]),
    lambda x: x["a"].max(0, x["b"]),
    lambda x: x["b"].clip(5, 7, x["b"]),
    lambda x: x["b"].round(0, x["a"][0]),
    lambda x: x["a"].mean(*(0, None, x["b"])),
    lambda x: x["a"].mean(0, **{"out": x["b"]}),
    lambda x: x["b"].cumsum(x["a"].fill(7)),
    lambda x: OwnFunctions.clip(x["b"]),
    lambda x: OWN.transpose(x["b"]),
    lambda x: OWN_BY_NAME["own"].transpose(x["b"]),
    lambda x, own=OWN: own.transpose(x["b"]),
    lambda x: write_first(x["b"]).astype(np.float32),
    write_by_view,
    write_in_place,
]


class Strange:
    """Whatever is done with it may write."""


def may_write(function: Callable[..., Any]) -> bool:
    """Whether it is not proven that a function only reads such records."""
    reading = find_reading(function)
    return reading is None or not reading.proves([make_record(1), make_record(2)])


class WritesByMethod(bushel.transforms.Map):
    """A transformation whose own method has the name of a method of arrays."""

    def map(self, element):
        return self.view(element["b"])

    def view(self, values):
        return write_first(values)


@pytest.mark.parametrize("number", range(len(READERS)))
def test_a_function_that_only_reads_is_recognized_and_gets_no_copies(number):
    reader = READERS[number]
    record = make_record()
    reader(record)
    assert same(record, make_record())  # it does only read
    assert not may_write(reader)
    unknown = {**make_record(), "b": Strange(), "text": Strange()}
    assert not find_reading(reader).proves([make_record(), unknown])


@pytest.mark.parametrize("number", range(len(WRITERS) + 1))
def test_a_function_that_writes_is_recognized_and_the_data_stay(number):
    writer = [*WRITERS, WritesByMethod()][number]
    record = make_record(3)
    (writer if callable(writer) else writer.map)(record)
    assert not same(record, make_record(3))  # it does write
    assert may_write(writer if callable(writer) else writer.map)
    source = Records(4)
    batches = bushel.MapDataset.source(source).map(writer).batch(2)
    first = [copy.deepcopy(batches[0]), copy.deepcopy(batches[1])]
    assert same([batches[0], batches[1]], first)
    assert same(source.kept, Records(4).kept)


def test_methods_that_count_as_reading_do_not_change_their_object():
    tried = 0
    for name in read_only_calls._READING_METHODS:
        for make in (lambda: np.arange(6.0).reshape(2, 3), lambda: {"a": [1]}, lambda: "a,b", lambda: b"a,b"):
            value = make()
            method: Any = getattr(value, name, None)
            for count in range(4 if method else 0):
                for arguments in itertools.product((0, None, True, "a", np.float32), repeat=count):
                    with contextlib.suppress(Exception):  # most arguments make no sense
                        method(*arguments)
                        tried += 1
                    assert same(value, make()), name
    assert tried > 100


def test_a_keyword_can_make_a_method_write():
    assert not may_write(lambda x: x["a"].clip(0, 1))
    assert may_write(lambda x: x["a"].clip(0, 1, inplace=True))


TABLE = np.arange(6.0)


def test_a_method_may_write_into_an_array_that_the_function_keeps():
    kept = np.zeros(3)
    assert may_write(lambda x: x["a"].sum(0, None, TABLE[:3]))
    assert may_write(lambda x: x["a"].sum(0, None, kept))
    assert not may_write(lambda x: x["b"] + TABLE[:3] - kept)


def test_what_a_function_reads_beside_its_argument_is_looked_at_each_time():
    names: dict[str, Any] = {"offset": 3}
    function: Any = types.FunctionType((lambda x: x["b"] + offset).__code__, names)  # type: ignore[name-defined]  # noqa: F821
    assert not may_write(function)
    names["offset"] = Strange()
    assert may_write(function)
    names.pop("offset")
    assert may_write(function)


def test_objects_in_arrays_are_not_known():
    reading = find_reading(lambda x: x["b"] * 2)
    assert reading is not None
    assert not reading.proves([{"b": np.array([Strange()], object)}])
    assert not reading.proves([{"b": np.zeros(2)}, {"b": np.ma.masked_array([1, 2])}])
    assert reading.proves([{"b": np.zeros(2), "inner": {"c": [1, (2, np.zeros(1))]}}, None])


def test_an_object_beside_the_argument_is_not_asked_for_its_class():
    """Its `__class__` may be code that raises or writes."""

    class Closed:
        def __getattribute__(self, name):
            raise RuntimeError(name)

    strange = Closed()
    reading = find_reading(lambda x: (strange is None) + x)
    assert reading is not None and not reading.proves([1])
    assert list(bushel.MapDataset.range(2).map(lambda x: (strange is None) + x)) == [0, 1]
