"""Leaves of the graph: sources and ranges. Indices wrap around, so that every epoch reads the same records."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.base.blocks import Block, Columns
from bushel.base.errors import RowFailed, located
from bushel.base.ownership import copied, own, own_columns
from bushel.base.specs import ShapeDtypeStruct
from bushel.base.transforms import shown
from bushel.graph.node import Epochs, InPlace, MapNode, Origin, Plan
from bushel.index import words
from bushel.sources.fixed import FixedRecords
from bushel.sources.memory import received, sent
from bushel.sources.protocol import gives_new_records, many_reads
from bushel.sources.ragged import RaggedDataSource


def source_name(source: Any) -> str:
    """How a source reads in a pipeline: its own repr if it has one, a sequence by type and length."""
    kind = type(source)
    if isinstance(source, np.ndarray):
        return trees.describe(source)
    if isinstance(source, (list, tuple, str, bytes, dict)):
        return f"{kind.__name__} of {len(source)}"
    text = shown(source)
    return text if len(text) <= 120 and "\n" not in text else kind.__name__


@dataclasses.dataclass(frozen=True, eq=False)
class Source(MapNode):
    """Records of anything with a length and `source[i]`, read many at a time where the source can."""

    source: Any

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "source": sent(self.source) if isinstance(self.source, np.ndarray) else self.source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, source=received(state["source"]))

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return ()

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return len(self.source)

    @functools.cached_property
    def gives_new(self) -> bool:
        """Whether the source makes a new object for each read."""
        return gives_new_records(self.source)

    def plan(self, indices: np.ndarray) -> Plan:
        positions = words.narrowed(indices % self.length)
        many = many_reads(self.source)
        if many is not None:
            return _ManyReads(self, positions, many)
        return _SingleReads(self, positions.tolist())

    def origins(self, index: int) -> tuple[Origin, ...]:
        return (Origin(source_name(self.source), (index % self.length,)),)

    @property
    def epochs(self) -> Epochs:
        return Epochs.SAME

    @property
    def in_place(self) -> InPlace:
        return InPlace.AS_COLUMNS if type(self.source) is FixedRecords else InPlace.NEVER

    def element_spec(self) -> Any:
        spec = getattr(self.source, "element_spec", None)
        if spec is None:
            raise NotImplementedError(
                f"The shapes of {source_name(self.source)} are not known without reading it. "
                "Give the source an `element_spec()` method that returns a tree of ShapeDtypeStruct."
            )
        return spec()

    def call(self) -> str:
        return f"source({source_name(self.source)})"

    def failed(self, row: int, positions: list[int], error: Exception) -> RowFailed:
        origin = Origin(source_name(self.source), tuple(positions))
        return RowFailed(row, located(error, f"bushel: reading {origin} failed."))


@dataclasses.dataclass(slots=True)
class _SingleReads(Plan):
    node: Source
    positions: list[int]

    def take(self, low: int, high: int) -> Block:
        return self._read(low, high, private=not self.node.gives_new)

    def look(self, low: int, high: int) -> Block:
        return self._read(low, high, private=False)

    def _read(self, low: int, high: int, private: bool) -> Block:
        source, positions = self.node.source, self.positions[low:high]
        left = iter(positions)
        try:
            if not private:
                return [source[position] for position in left]
            if type(source) is list:  # it holds its records, so there is no need to count who does
                return [copied(source[position]) for position in left]
            # One by one: a source may use one buffer for all records.
            return [own([source[position]])[0] for position in left]
        except RowFailed:
            raise
        except Exception as error:
            row = len(positions) - operator.length_hint(left) - 1
            raise self.node.failed(row, [positions[row]], error) from error


@dataclasses.dataclass(slots=True)
class _ManyReads(Plan):
    node: Source
    positions: np.ndarray
    read: Any

    def entries(self, low: int, high: int, names: tuple[str | None, ...]) -> list[list[Any]]:
        source = self.node.source
        if not isinstance(source, RaggedDataSource) or not source.has(names):
            return Plan.entries(self, low, high, names)
        return list(source.entries(self.positions[low:high], names))

    def take(self, low: int, high: int) -> Block:
        return self._read(low, high, private=not self.node.gives_new)

    def look(self, low: int, high: int) -> Block:
        return self._read(low, high, private=False)

    def _read(self, low: int, high: int, private: bool) -> Block:
        positions = self.positions[low:high]
        try:
            block = self.read(positions)
            if not isinstance(block, Columns):
                block = list(block)
        except RowFailed:
            raise
        except Exception as error:
            raise self._failed(positions.tolist(), error) from error
        if len(block) != len(positions):
            wrong = ValueError(
                f"{source_name(self.node.source)} was asked for {len(positions)} records and gave {len(block)}: "
                "`__getitems__` must return one record per index."
            )
            raise RowFailed(0, wrong)
        if isinstance(block, Columns):
            return block if self.node.gives_new else own_columns(block)
        return own(block) if private else block

    def _failed(self, positions: list[int], error: Exception) -> RowFailed:
        """The failure of the record that cannot be read alone either; of them all where each can."""
        for row, position in enumerate(positions) if len(positions) > 1 else ():
            try:
                self.read(np.array([position]))
            except Exception as alone:
                return self.node.failed(row, [position], alone)
        return self.node.failed(0, positions, error)


@dataclasses.dataclass(frozen=True, eq=False)
class Range(MapNode):
    """The integers of a `range`."""

    start: int
    stop: int
    step: int

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return ()

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return len(range(self.start, self.stop, self.step))

    def plan(self, indices: np.ndarray) -> Plan:
        values = words.narrowed(indices % self.length)
        if self.start or self.step != 1:
            values = self.start + values * self.step
        return _Integers(values.tolist())

    def origins(self, index: int) -> tuple[Origin, ...]:
        return (Origin(self.call(), (index % self.length,)),)

    @property
    def epochs(self) -> Epochs:
        return Epochs.SAME

    def element_spec(self) -> Any:
        return ShapeDtypeStruct(shape=(), dtype=np.int64)

    def call(self) -> str:
        if self.step != 1:
            return f"range({self.start}, {self.stop}, {self.step})"
        return f"range({self.start}, {self.stop})" if self.start else f"range({self.stop})"


@dataclasses.dataclass(slots=True)
class _Integers(Plan):
    values: list[int]

    def take(self, low: int, high: int) -> Block:
        return self.values[low:high]
