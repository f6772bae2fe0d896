"""The leaves of a graph: sources and ranges. Indices wrap around, so that every epoch reads the same records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.base.blocks import Block, Columns
from bushel.base.errors import RowFailed, locate_error
from bushel.base.ownership import copy_value, own
from bushel.base.private_blocks import own_answer
from bushel.base.specs import ShapeDtypeStruct
from bushel.base.state_names import in_states
from bushel.base.transforms import show_value
from bushel.graph.node import InPlace, Leaf, Origin, Plan, PlanMany, raise_for_row
from bushel.graph.unsteady_sources import SourceWatch, watch_source
from bushel.index import words
from bushel.sources.memory_sources import JoinedArrays, join_arrays, pack_array, unpack_array
from bushel.sources.protocol import get_batch_reader, gives_new_records
from bushel.sources.ragged_arrays import RaggedDataSource


def name_source(source: Any) -> str:
    """How a source reads in a pipeline: its own repr if it has one, a sequence by type and length."""
    kind = type(source)
    if isinstance(source, np.ndarray):
        return trees.describe(source)
    if isinstance(source, (list, tuple, str, bytes, dict)):
        return f"{kind.__name__} of {len(source)}"
    text = show_value(source)
    return text if len(text) <= 120 and "\n" not in text else kind.__name__


@in_states("source")
@dataclasses.dataclass(frozen=True, eq=False)
class Source(Leaf):
    """Records of anything with a length and `source[i]`, read many at a time where the source can."""

    source: Any

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_watch"}
        return {**state, "source": pack_array(self.source) if isinstance(self.source, np.ndarray) else self.source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, source=unpack_array(state["source"]))

    def find_length(self) -> int:
        return len(self.source)

    @functools.cached_property
    def gives_new(self) -> bool:
        """Whether the source makes a new object for each read."""
        return gives_new_records(self.source)

    @functools.cached_property
    def _watch(self) -> SourceWatch | None:
        return watch_source(self.source, lambda: name_source(self.source))

    @property
    def watch(self) -> SourceWatch | None:
        """What watches the first reads of the source; None if nothing does."""
        return None if self._watch is None or self._watch.ended else self._watch

    def read_single(self, positions: Iterable[int], private: bool) -> list[Any]:
        """Reads records one by one. If they are not `private`, they may belong to a source that never changes them."""
        source = self.source
        if type(source) is list and not private:
            return list(map(source.__getitem__, positions))
        rows: list[Any] = []
        if (watch := self.watch) is not None:
            for position in positions:
                read = [watch.read(source.__getitem__, position)]
                rows += read if self.gives_new else own(read)
                watch.compare((position,), rows[-1:])
            return rows
        if self.gives_new:
            return [source[position] for position in positions]
        if type(source) is list:  # it holds its records, so there is no need to count who does
            return [copy_value(source[position]) for position in positions]
        for position in positions:  # a source may use one buffer for all records
            rows += own([source[position]])
        return rows

    def plan(self, indices: np.ndarray) -> Plan:
        positions = words.narrowed(indices % self.length)
        many = get_batch_reader(self.source)
        if many is not None:
            return _ManyReads(self, positions, many)
        return _SingleReads(self, positions.tolist())

    @classmethod
    def join_plans(cls, nodes: Sequence[Source]) -> PlanMany | None:
        arrays = join_arrays([node.source for node in nodes])
        lengths = np.array([node.length for node in nodes])
        if arrays is not None:
            return lambda which, indices: _ArraysRead(arrays, which, indices % lengths[which])
        if any(get_batch_reader(node.source) is not None for node in nodes):
            return None

        def plan(which: np.ndarray, indices: np.ndarray) -> Plan:
            return _SingleReadsOfMany(nodes, which.tolist(), (indices % lengths[which]).tolist())

        return plan

    def origin(self, index: int) -> Origin:
        return Origin(name_source(self.source), (index % self.length,))

    @property
    def in_place(self) -> InPlace:
        # Asked of the class itself: a subclass may do other things with its arrays.
        return InPlace.AS_COLUMNS if vars(type(self.source)).get("reads_in_place", False) else InPlace.NEVER

    def element_spec(self) -> Any:
        spec = getattr(self.source, "element_spec", None)
        if spec is None:
            raise NotImplementedError(
                f"The shapes of {name_source(self.source)} are not known without reading it. "
                "Give the source an `element_spec()` method that returns a tree of ShapeDtypeStruct."
            )
        return spec()

    def call(self) -> str:
        return f"source({name_source(self.source)})"

    def describe_read_failure(self, positions: list[int]) -> str:
        """The note on an error of the source."""
        return f"bushel: reading {Origin(name_source(self.source), tuple(positions))} failed."


@dataclasses.dataclass(slots=True)
class _SingleReads(Plan):
    node: Source
    positions: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        positions = self.positions[low:high]
        left = iter(positions)
        try:
            return self.node.read_single(left, private)
        except Exception as error:
            raise_for_row(error, len(positions), left, lambda row: self.node.describe_read_failure([positions[row]]))


@dataclasses.dataclass(slots=True)
class _SingleReadsOfMany(Plan):
    """Records of many sources that are read one by one."""

    nodes: Sequence[Source]
    which: list[int]
    positions: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        nodes = [self.nodes[number] for number in self.which[low:high]]
        records = list(zip(nodes, self.positions[low:high], strict=True))
        left = iter(records)

        def where(row: int) -> str:
            return self.nodes[self.which[low + row]].describe_read_failure([self.positions[low + row]])

        rows: list[Any] = []
        try:
            for node, position in left:
                rows += node.read_single((position,), private)
        except Exception as error:
            raise_for_row(error, len(records), left, where)
        return rows


@dataclasses.dataclass(slots=True)
class _ManyReads(Plan):
    node: Source
    positions: np.ndarray
    read_many: Any

    def entries(self, low: int, high: int, names: tuple[str | None, ...]) -> list[list[Any]]:
        source = self.node.source
        if not isinstance(source, RaggedDataSource) or not source._has(names):
            return Plan.entries(self, low, high, names)
        return list(source._entries(self.positions[low:high], names))

    def read(self, low: int, high: int, private: bool) -> Block:
        positions = self.positions[low:high]
        if not private and type(self.node.source) is RaggedDataSource:
            return self.node.source._look(positions)
        try:
            watch = self.node.watch
            answer = [self.read_many(positions) if watch is None else watch.read(self.read_many, positions)]
            if not self.node.gives_new:
                # Inside `memory.allocating`, its own arrays look into memory that only they use.
                answer = [own_answer(answer, received=self.node.in_place is not InPlace.NEVER)]
            block = answer.pop()
            block = block if isinstance(block, Columns) else list(block)
            if watch is not None and isinstance(block, list):
                watch.compare(positions.tolist(), block)
        except RowFailed:
            raise
        except Exception as error:
            self._raise_for_single_record(positions.tolist())
            raise RowFailed(0, locate_error(error, self.node.describe_read_failure(positions.tolist()))) from error
        if len(block) != len(positions):
            wrong = ValueError(
                f"{name_source(self.node.source)} was asked for {len(positions)} records and gave {len(block)}: "
                "`__getitems__` must return one record per index."
            )
            raise RowFailed(0, wrong)
        return block

    def _raise_for_single_record(self, positions: list[int]) -> None:
        """Raises for the first record that cannot be read alone either, after a failure of several."""
        left = iter(positions if len(positions) > 1 else [])
        try:
            for position in left:
                self.read_many(np.array([position]))
        except Exception as error:
            raise_for_row(error, len(positions), left, lambda row: self.node.describe_read_failure([positions[row]]))


@dataclasses.dataclass(slots=True)
class _ArraysRead(Plan):
    arrays: JoinedArrays
    which: np.ndarray
    positions: np.ndarray

    def read(self, low: int, high: int, private: bool) -> Block:
        return self.arrays.gather(self.which[low:high], self.positions[low:high])


@in_states("range")
@dataclasses.dataclass(frozen=True, eq=False)
class Range(Leaf):
    """The integers of a `range`."""

    start: int
    stop: int
    step: int

    def find_length(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def plan(self, indices: np.ndarray) -> Plan:
        values = words.narrowed(indices % self.length)
        if self.start or self.step != 1:
            values = self.start + values * self.step
        return _Integers(values.tolist())

    def element_spec(self) -> Any:
        return ShapeDtypeStruct(shape=(), dtype=np.int64)

    def call(self) -> str:
        if self.step != 1:
            return f"range({self.start}, {self.stop}, {self.step})"
        return f"range({self.start}, {self.stop})" if self.start else f"range({self.stop})"


@dataclasses.dataclass(slots=True)
class _Integers(Plan):
    values: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        return self.values[low:high]
