"""Sources that say that each read returns new objects: ours keep the promise, and the check finds those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bushel
from bushel._src.graph.source_nodes import SourceNode
from bushel._src.sources.memory_sources import RaggedDataSource, RangeDataSource
from bushel._src.sources.user_sources import gives_new_records
from bushel.sources import ArrayDataSource, BagzDataSource, FixedRecords
from bushel.testing import check_gives_new_records


def make_objects() -> np.ndarray:
    objects = np.empty(4, object)
    for place in range(4):
        objects[place] = np.full(place + 1, 8.0)
    return objects


def make_fixed(folder: Path) -> FixedRecords:
    data = np.arange(12, dtype="<i4").tobytes()
    (folder / "x.bag").write_bytes(data + np.array([12, 24, 36, 48], "<u8").tobytes())
    return FixedRecords(BagzDataSource(str(folder / "x.bag")), dtype=np.int32, shape=(3,))


OURS = {
    "arrays": lambda folder: ArrayDataSource({"x": np.arange(8.0).reshape(4, 2), "y": np.arange(4)}),
    "large arrays": lambda folder: ArrayDataSource(np.zeros((4, 3000))),
    "arrays of objects": lambda folder: ArrayDataSource({"tokens": make_objects()}),
    "structured arrays": lambda folder: ArrayDataSource(np.zeros(4, [("a", "f4"), ("b", "i8")])),
    "ragged": lambda folder: RaggedDataSource({"tokens": np.arange(9)}, offsets=[0, 2, 2, 6, 9]),
    "ragged objects": lambda folder: RaggedDataSource(make_objects(), offsets=[0, 2, 4]),
    "range": lambda folder: RangeDataSource(0, 9, 2),
    "fixed records": make_fixed,
}


@pytest.mark.parametrize("name", OURS)
def test_our_sources_that_promise_new_records_keep_it(name, tmp_path):
    source = OURS[name](tmp_path)
    assert gives_new_records(source)
    check_gives_new_records(source)


class Base:
    gives_new_records = True

    def __init__(self) -> None:
        self.kept = [np.zeros(2) for _ in range(5)]
        self.buffer = np.zeros(2)
        self.items: list[int] = []
        self.big = np.zeros((5, 2))

    def __len__(self) -> int:
        return 5


class KeepsRecords(Base):
    def __getitem__(self, index: int) -> Any:
        return {"x": self.kept[index]}


class OneBuffer(Base):
    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = max(0, index - 2)  # the first records are equal
        return self.buffer


class BlackFrames(Base):
    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = 0  # all records are equal
        return {"image": self.buffer}


class OneList(Base):
    def __getitem__(self, index: int) -> Any:
        self.items[:] = [1, 2]
        return self.items


class OneInnerDict(Base):
    inner: dict[str, int] = {}  # noqa: RUF012

    def __getitem__(self, index: int) -> Any:
        return {"inner": self.inner}


class Views(Base):
    def __getitem__(self, index: int) -> Any:
        return self.big[index]


class OverlappingLeaves(Base):
    def __getitem__(self, index: int) -> Any:
        tokens = np.arange(4) + index
        return {"inputs": tokens[:-1], "targets": tokens[1:]}


class OneLeafTwice(Base):
    def __getitem__(self, index: int) -> Any:
        tokens = np.arange(4) + index
        return tokens, [tokens]


class CannotBeWritten(Base):
    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(bytes(8))


class OneBufferForBlocks(Base):
    def __getitem__(self, index: int) -> Any:
        return np.zeros(2)

    def __getitems__(self, indices: Any) -> Any:
        return bushel.sources.Columns(self.big[: len(indices)], len(indices))


class OneMaskedArray(Base):
    masked = np.ma.masked_array([1.0, 2.0])

    def __getitem__(self, index: int) -> Any:
        return self.masked


LIARS = [
    KeepsRecords, OneBuffer, BlackFrames, OneList, OneInnerDict, Views, OverlappingLeaves, OneLeafTwice,
    CannotBeWritten, OneBufferForBlocks, OneMaskedArray,
]  # fmt: skip


@pytest.mark.parametrize("kind", LIARS)
def test_a_source_that_breaks_the_promise_is_found(kind):
    with pytest.raises(AssertionError, match=r"source(\[|\.__getitems__)"):
        check_gives_new_records(kind())


def test_the_promise_is_that_of_the_class_itself():
    class Subclass(ArrayDataSource):
        pass

    assert gives_new_records(ArrayDataSource(np.zeros(2)))
    assert not gives_new_records(Subclass(np.zeros(2)))
    assert not SourceNode(Subclass(np.zeros(2))).gives_new


class Promises(KeepsRecords):
    gives_new_records = True


def test_a_promise_is_trusted_and_no_other_source_is():
    source, other = Promises(), KeepsRecords()
    assert bushel.MapDataset.source(source)[1]["x"] is source.kept[1]
    assert bushel.MapDataset.source(other)[1]["x"] is not other.kept[1]
