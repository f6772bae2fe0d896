"""The leaves of a graph: sources and ranges. Indices wrap around, so that every epoch reads the same records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.base.blocks import Block, Columns
from bushel.base.errors import RowFailed, locate_error
from bushel.base.ownership import IMMUTABLE, copy_value, own, own_block
from bushel.base.specs import ShapeDtypeStruct
from bushel.base.transforms import show_value
from bushel.graph.node import InPlace, Leaf, Origin, Plan, PlanMany, raise_for_row
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


_FIRST_READ = "_first_read"
"""Where a `Source` keeps a record and a copy of it, until `compare_reads` has another one to compare with."""


@dataclasses.dataclass(frozen=True, eq=False)
class Source(Leaf):
    """Records of anything with a length and `source[i]`, read many at a time where the source can."""

    source: Any

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != _FIRST_READ}
        return {**state, "source": pack_array(self.source) if isinstance(self.source, np.ndarray) else self.source}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, source=unpack_array(state["source"]))

    def find_length(self) -> int:
        return len(self.source)

    @functools.cached_property
    def gives_new(self) -> bool:
        """Whether the source makes a new object for each read."""
        return gives_new_records(self.source)

    @property
    def keeps_records(self) -> bool | None:
        """Whether a record stays as it is when the source reads the next one; None while that is not known.

        A source may use one buffer for all its records, so that each read overwrites the record before.
        """
        return True if self.gives_new or type(self.source) is list else vars(self).get("_keeps_records")

    def compare_reads(self, record: Any, position: int) -> None:
        """Finds out whether the source keeps records, from the first two that it is called with.

        Args:
          record: as the source has just returned it.
          position: where the source has it.
        """
        known = vars(self)
        seen = known.get(_FIRST_READ)
        if seen is None:  # another thread may be here, too
            seen = known.setdefault(_FIRST_READ, (position, record, copy_value(record)))
        before, first, values = seen
        if before != position:
            one_object = first is record and type(record) not in IMMUTABLE
            old, new = trees.leaves(values), trees.leaves(first)
            shared = _find_shared_arrays(first, record)
            known["_keeps_records"] = (
                not one_object
                and len(old) == len(new)
                and all(np.asarray(old[number]).tobytes() == new[number].tobytes() for number in shared)
            )
            known.pop(_FIRST_READ, None)

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
        keep_records = all(node.keeps_records for node in nodes)

        def plan(which: np.ndarray, indices: np.ndarray) -> Plan:
            return _SingleReadsOfMany(nodes, which.tolist(), (indices % lengths[which]).tolist(), keep_records)

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


def _find_shared_arrays(one: Any, other: Any) -> list[int]:
    """The numbers of the leaves that are arrays at the same address in two records."""
    pairs = enumerate(zip(trees.leaves(one), trees.leaves(other)))
    return [
        number
        for number, (left, right) in pairs
        if type(left) is type(right) is np.ndarray
        and left.size
        and left.__array_interface__["data"] == right.__array_interface__["data"]
    ]


@dataclasses.dataclass(slots=True)
class _SingleReads(Plan):
    node: Source
    positions: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        source, positions = self.node.source, self.positions[low:high]
        left = iter(positions)
        try:
            if self.node.gives_new or (not private and self.node.keeps_records):
                return [source[position] for position in left]
            if type(source) is list:  # it holds its records, so there is no need to count who does
                return [copy_value(source[position]) for position in left]
            if not private and self.node.keeps_records is None:
                return [self._read_and_compare(position) for position in left]
            # Record by record, since a source may use one buffer for all of them.
            return [own([source[position]])[0] for position in left]
        except Exception as error:
            raise_for_row(error, len(positions), left, lambda row: self.node.describe_read_failure([positions[row]]))

    def _read_and_compare(self, position: int) -> Any:
        record = self.node.source[position]
        if self.node.keeps_records is None:
            self.node.compare_reads(record, position)
        elif self.node.keeps_records:  # since a record before this one
            return record
        return copy_value(record)


@dataclasses.dataclass(slots=True)
class _SingleReadsOfMany(Plan):
    """Records of many sources that are read one by one."""

    nodes: Sequence[Source]
    which: list[int]
    positions: list[int]
    keep_records: bool
    """Whether it is known of all sources that they keep records: see `Source.keeps_records`."""

    def read(self, low: int, high: int, private: bool) -> Block:
        sources = [self.nodes[number].source for number in self.which[low:high]]
        records = list(zip(sources, self.positions[low:high], strict=True))
        left = iter(records)

        def where(row: int) -> str:
            return self.nodes[self.which[low + row]].describe_read_failure([self.positions[low + row]])

        try:
            if not private and self.keep_records:
                return [source[position] for source, position in left]
            # Record by record, since a source may use one buffer for all of them.
            return [own([source[position]])[0] for source, position in left]
        except Exception as error:
            raise_for_row(error, len(records), left, where)


@dataclasses.dataclass(slots=True)
class _ManyReads(Plan):
    node: Source
    positions: np.ndarray
    read_many: Any

    def entries(self, low: int, high: int, names: tuple[str | None, ...]) -> list[list[Any]]:
        source = self.node.source
        if not isinstance(source, RaggedDataSource) or not source.has(names):
            return Plan.entries(self, low, high, names)
        return list(source.entries(self.positions[low:high], names))

    def read(self, low: int, high: int, private: bool) -> Block:
        positions = self.positions[low:high]
        if not private and isinstance(self.node.source, RaggedDataSource):
            return self.node.source.look(positions)
        try:
            block = self.read_many(positions)
            if not isinstance(block, Columns):
                block = list(block)
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
        if self.node.gives_new or not len(block):
            return block
        if private or isinstance(block, Columns):
            return own_block(block)
        if self.node.keeps_records is None:
            self.node.compare_reads(block[0], int(positions[0]))
        return block if self.node.keeps_records else own_block(block)

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
