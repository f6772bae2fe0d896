"""The operations of a DataLoader as stream nodes: on plain data, or on records if an operation needs metadata.

Also Grain's oldest operations, from an iterator of records to another.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from bushel._src.base import blocks, checks, transforms, trees
from bushel._src.base.blocks import Block, make_answer_private
from bushel._src.base.errors import BushelDeprecationWarning, RowFailed, StateMismatch, locate_error
from bushel._src.base.private_elements import make_private
from bushel._src.base.public import public
from bushel._src.base.records import Record, RecordMetadata
from bushel._src.base.state_names import in_states
from bushel._src.graph import operation
from bushel._src.graph.batch import BatchFn
from bushel._src.graph.cursors import Cursor, Mark, Over, Skips, State, collect_skips, read_count
from bushel._src.graph.operation import BlockOperation, Kind, format_call
from bushel._src.graph.pack_stream import as_sequence, fill_rows, leaves_up_to
from bushel._src.graph.stream_ops import Elementwise
from bushel._src.graph.streams import OneParent, Opener, Ordered
from bushel._src.index.packing import Bins, layout


@in_states("loader_map")
@dataclasses.dataclass(frozen=True, eq=False)
class MapData(Elementwise):
    """A Map transformation of plain data. None is data like any other here, as in Grain's DataLoader."""

    kind = operation.MAP_ALL


def _map_records(records: Iterator[Any], op: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    return [Record(record.metadata, op.function(record.data)) for record in records]


@in_states("loader_map_records")
@dataclasses.dataclass(frozen=True, eq=False)
class MapRecords(Elementwise):
    """A Map transformation of the data of records."""

    kind = Kind("map", operation.find_map, _map_records)


def _random_map_records(records: Iterator[Any], op: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    return [Record(record.metadata, op.function(record.data, record.metadata.rng)) for record in records]


def _find_random_map(transform: Any) -> Callable[..., Any]:
    if isinstance(transform, transforms.TfRandomMap):
        return transform.np_random_map
    return transforms.method(transform, transforms.RandomMap, "random_map")


@in_states("loader_random_map")
@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapRecords(Elementwise):
    """A RandomMap transformation of the data of records, each with the generator of its record."""

    kind = Kind("random_map", _find_random_map, _random_map_records)


def _filter_records(records: Iterator[Any], op: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    return [bool(op.function(record.data)) for record in records]


@in_states("loader_filter")
@dataclasses.dataclass(frozen=True, eq=False)
class FilterRecords(Elementwise):
    """A Filter transformation of the data of records."""

    kind = Kind("filter", operation.find_filter, _filter_records, drops=True)


@in_states("loader_split")
class SplitRecords(transforms.FlatMap):
    """A FlatMap transformation of the data of records."""

    def __init__(self, transform: transforms.FlatMap):
        self.transform = transform
        self.max_fan_out = transform.max_fan_out

    def flat_map(self, element: Record[Any]) -> Sequence[Record[Any]]:
        first = element.metadata.index * self.max_fan_out
        parts = blocks.rows_of(make_answer_private([self.transform.flat_map(element.data)]))
        return [Record(RecordMetadata(index=first + number), part) for number, part in enumerate(parts)]

    def __repr__(self) -> str:
        return transforms.short_name(self.transform)


@in_states("loader_batch")
@dataclasses.dataclass(frozen=True)
class BatchRecords:
    """Makes a batch of the data of records. Its metadata are those of the last record."""

    batch_fn: BatchFn | None

    def __call__(self, records: Sequence[Record[Any]]) -> Record[Any]:
        data = [record.data for record in records]
        batch = blocks.stack(data) if self.batch_fn is None else self.batch_fn(data)
        return Record(records[-1].metadata.remove_record_key(), batch)


@in_states("loader_data_of_record")
def data_of(record: Record[Any]) -> Any:
    """Return the data of a record."""
    return record.data


@in_states("loader_operation")
@dataclasses.dataclass(frozen=True, eq=False)
class Operate(OneParent, Ordered):
    """A user's own operation: a function from an iterator of records to another iterator of records."""

    transform: Any

    no_spec = "The shapes after an operation on records are not known without running it."

    def open(self, opener: Opener) -> Cursor:
        return _OperationCursor(opener.open(self.parent), self, opener.skips)

    def call(self) -> str:
        return format_call("operate", self.transform)


class _OperationCursor(Over[Operate]):
    """Runs a user's own operation, which may keep anything of the records it has read.

    So the state is the parent's when the operation began, and how many records it has given since. To restore it, the
    cursor runs the operation again from there.
    """

    def __init__(self, parent: Cursor, node: Operate, skips: Skips | None):
        super().__init__(parent, node, skips)
        self._begin(0)

    def _begin(self, replayed: int) -> None:
        self.before = self.parent.mark()
        self.given = replayed
        self.replay = replayed
        self.output: Iterator[Any] | None = None

    def _read_input(self) -> Iterator[Any]:
        while len(block := self.parent.pull(1)):
            yield from blocks.rows_of(block)

    def pull(self, count: int) -> Block:
        if self.output is None:
            self._run_again()
        assert self.output is not None
        made: list[Any] = []
        for _ in range(count):
            try:
                made += make_private([next(self.output)])
            except StopIteration:
                break
            except RowFailed:
                raise
            except Exception as error:
                raise RowFailed(len(made), locate_error(error, f"bushel: {self.node.call()} failed.")) from error
        self.given += len(made)
        return made

    def _run_again(self) -> None:
        """Start the operation, and drops the records that it had given before the state."""
        self.output = iter(self._check_records(self.node.transform(self._read_input())))
        with collect_skips(self.skips):
            for done in range(self.replay):
                if next(self.output, None) is None:
                    raise StateMismatch(
                        f"This state is after element {self.replay} of {self.node.call()}, which gives {done} here. "
                        "Was it saved with other data?",
                        "given",
                    )

    def catch_up(self) -> None:
        super().catch_up()
        if self.output is None and self.replay:
            self._run_again()

    def _check_records(self, output: Any) -> Iterator[Any]:
        for record in output:
            if not hasattr(record, "data") or not hasattr(record, "metadata"):
                raise TypeError(
                    f"{self.node.call()} must return records, with `metadata` and `data`; it returned {record!r}."
                )
            yield record

    def mark(self) -> Mark:
        return self.before, self.given

    def rewind(self, mark: Mark) -> None:
        before, given = mark
        self.parent.rewind(before)
        self._begin(given)

    def state_of(self, mark: Mark) -> State:
        before, given = mark
        return {"parent": self.parent.state_of(before), "given": given}

    def mark_of(self, state: State) -> Mark:
        if "given" not in state:  # Grain's: the operation begins anew there
            return self.parent.mark_of(state), 0
        return self.parent_mark_of(state), read_count(state, "given")


RecordIterator = Iterator[Record[Any]]


@public("bushel.python")
class Operation(Protocol):
    """An operation that a user writes. It has no state of its own: to restore it, it runs again from its beginning."""

    def __call__(self, input_iterator: RecordIterator, /) -> RecordIterator:
        """Return the records that the operation makes of those in `input_iterator`."""
        ...


def _warn_of_deprecation(name: str) -> None:
    warnings.warn(f"Please use {name} instead of this operation.", BushelDeprecationWarning, stacklevel=4)


@public("bushel.python")
@in_states("MapOperation")
@dataclasses.dataclass
class MapOperation:
    """`map_function` of the data of each record. Deprecated: `transforms.Map` does the same."""

    map_function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        _warn_of_deprecation("transforms.Map")

    def __call__(self, input_iterator: RecordIterator) -> RecordIterator:
        for record in input_iterator:
            yield Record(record.metadata.remove_record_key(), self.map_function(record.data))


@public("bushel.python")
@in_states("RandomMapOperation")
@dataclasses.dataclass
class RandomMapOperation:
    """`random_map_function` of the data and the generator of each record. Deprecated: see `transforms.RandomMap`."""

    random_map_function: Callable[[Any, np.random.Generator], Any]

    def __post_init__(self) -> None:
        _warn_of_deprecation("transforms.RandomMap")

    def __call__(self, input_iterator: RecordIterator) -> RecordIterator:
        function: Callable[[Any, Any], Any] = self.random_map_function
        for record in input_iterator:
            data = function(record.data, record.metadata.rng)
            yield Record(record.metadata.remove_record_key(), data)


@public("bushel.python")
@in_states("FilterOperation")
@dataclasses.dataclass
class FilterOperation:
    """The records for whose data `condition_function` returns True. Deprecated: see `transforms.Filter`."""

    condition_function: Callable[[Any], bool]

    def __post_init__(self) -> None:
        _warn_of_deprecation("transforms.Filter")

    def __call__(self, input_iterator: RecordIterator) -> RecordIterator:
        for record in input_iterator:
            if self.condition_function(record.data):
                yield Record(record.metadata.remove_record_key(), record.data)


@public("bushel.python")
@in_states("BatchOperation")
@dataclasses.dataclass
class BatchOperation:
    """Batches of consecutive records. Deprecated: `transforms.Batch` does the same."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self) -> None:
        checks.positive(self.batch_size, "batch_size")
        _warn_of_deprecation("transforms.Batch")

    def __call__(self, input_iterator: RecordIterator) -> RecordIterator:
        held: list[Record[Any]] = []
        for record in input_iterator:
            held.append(record)
            if len(held) == self.batch_size:
                yield self._batch(held)
                held = []
        if held and not self.drop_remainder:
            yield self._batch(held)

    def _batch(self, records: list[Record[Any]]) -> Record[Any]:
        if self.batch_fn is None:
            try:
                trees.map_leaves(lambda *_: None, *[record.data for record in records])
            except ValueError as error:
                raise TypeError(f"Record structures do not match: {error}.") from None
        return BatchRecords(self.batch_fn)(records)


@public("bushel.experimental")
@in_states("PackAndBatchOperation")
@dataclasses.dataclass
class PackAndBatchOperation:
    """Batches of packed rows as (data, segment ids, positions), each a tree like `length_struct`. Deprecated.

    It works on records with `data` and `metadata`, as the operations of a DataLoader do, and cannot be restored.
    FirstFitPackIterDataset, then `batch`, packs alike and can.

    Args:
      length_struct: how long the rows of each feature are.
      batch_size: rows of a batch.
      max_sequences_per_bin: so many sequences go into a row, at most.
    """

    length_struct: Any
    batch_size: int
    max_sequences_per_bin: int | None = None

    def __post_init__(self) -> None:
        checks.positive(self.batch_size, "batch_size")
        _warn_of_deprecation("FirstFitPackIterDataset, then batch,")

    def __call__(self, input_iterator: RecordIterator) -> RecordIterator:
        bins, held, last = self._make_bins(), [], None
        for record in input_iterator:
            leaves = [as_sequence(leaf) for leaf in leaves_up_to(self.length_struct, record.data)]
            sizes = [[len(leaf)] for leaf in leaves]
            if any(size > length for (size,), length in zip(sizes, trees.leaves(self.length_struct), strict=True)):
                raise ValueError(
                    f"A sequence is longer than its row: lengths {np.ravel(sizes)}, rows of {self.length_struct}. "
                    "Truncate it before packing."
                )
            if not bins.put(sizes):
                yield self._batch(bins, held, last)
                bins, held = self._make_bins(), []
                bins.put(sizes)
            held.append(leaves)
            last = record
        if held:
            yield self._batch(bins, held, last)

    def _make_bins(self) -> Bins:
        return Bins(trees.leaves(self.length_struct), self.batch_size, most=self.max_sequences_per_bin)

    def _batch(self, bins: Bins, held: list[list[np.ndarray]], last: Any) -> Any:
        placed = bins.positions()
        lengths, build = trees.flatten(self.length_struct)
        data, ids, positions = [], [], []
        for number, (length, some) in enumerate(zip(lengths, zip(*held, strict=True), strict=True)):
            sizes = np.array(list(map(len, some)), dtype=np.int64)
            starts = placed.starts[:, number]
            laid = layout(placed.rows, starts, sizes, placed.segments, count=self.batch_size, length=length)
            data.append(fill_rows(laid, some, some[0]))
            ids.append(laid.segment_ids())
            positions.append(laid.positions())
        metadata = last.metadata.remove_record_key()  # a batch has the index of its last record
        return dataclasses.replace(last, metadata=metadata, data=(build(data), build(ids), build(positions)))
