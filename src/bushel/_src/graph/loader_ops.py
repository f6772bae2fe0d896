"""The operations of a DataLoader as stream nodes: on plain data, or on records if an operation needs metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bushel._src.base import blocks, transforms
from bushel._src.base.blocks import Block
from bushel._src.base.errors import RowFailed, StateMismatch, locate_error
from bushel._src.base.ownership import own
from bushel._src.base.private_blocks import own_answer
from bushel._src.base.records import Record, RecordMetadata
from bushel._src.base.state_names import in_states
from bushel._src.graph import operation
from bushel._src.graph.batch import BatchFn
from bushel._src.graph.cursors import Cursor, Mark, Over
from bushel._src.graph.elementwise import Elementwise
from bushel._src.graph.operation import Kind, Operation, format_call
from bushel._src.graph.skips import Skips, collect_skips
from bushel._src.graph.state_fields import State, read_count
from bushel._src.graph.streams import OneParent, Opener, Ordered


@in_states("loader_map")
@dataclasses.dataclass(frozen=True, eq=False)
class MapData(Elementwise):
    """A Map transformation of plain data. None is data like any other here, as in Grain's DataLoader."""

    kind = operation.MAP_ALL


def _map_records(records: Iterator[Any], op: Operation, numbers: Sequence[int]) -> list[Any]:
    return [Record(record.metadata, op.function(record.data)) for record in records]


@in_states("loader_map_records")
@dataclasses.dataclass(frozen=True, eq=False)
class MapRecords(Elementwise):
    """A Map transformation of the data of records."""

    kind = Kind("map", operation.find_map, _map_records)


def _random_map_records(records: Iterator[Any], op: Operation, numbers: Sequence[int]) -> list[Any]:
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


def _filter_records(records: Iterator[Any], op: Operation, numbers: Sequence[int]) -> list[Any]:
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
        parts = blocks.rows_of(own_answer([self.transform.flat_map(element.data)]))
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
    """The data of a record."""
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
                made += own([next(self.output)])
            except StopIteration:
                break
            except RowFailed:
                raise
            except Exception as error:
                raise RowFailed(len(made), locate_error(error, f"bushel: {self.node.call()} failed.")) from error
        self.given += len(made)
        return made

    def _run_again(self) -> None:
        """Starts the operation, and drops the records that it had given before the state."""
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
