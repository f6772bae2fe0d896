"""Grain's oldest operations, from an iterator of records to another. A DataLoader runs them as transformations."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from bushel._src.base import checks, trees
from bushel._src.base.errors import BushelDeprecationWarning
from bushel._src.base.public import public
from bushel._src.base.records import Record
from bushel._src.base.state_names import in_states
from bushel._src.graph.loader_ops import BatchRecords
from bushel._src.graph.pack_stream import as_sequence, fill_rows, leaves_up_to
from bushel._src.index.packing import Bins, layout

Records = Iterator[Record[Any]]


@public("bushel.python")
class Operation(Protocol):
    """An operation that a user writes. It has no state of its own: to restore it, it runs again from its beginning."""

    def __call__(self, input_iterator: Records, /) -> Records:
        """Returns the records that the operation makes of those in `input_iterator`."""
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

    def __call__(self, input_iterator: Records) -> Records:
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

    def __call__(self, input_iterator: Records) -> Records:
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

    def __call__(self, input_iterator: Records) -> Records:
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

    def __call__(self, input_iterator: Records) -> Records:
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

    def __call__(self, input_iterator: Records) -> Records:
        bins, held, last = self._make_bins(), [], None
        for record in input_iterator:
            leaves = [as_sequence(leaf) for leaf in leaves_up_to(self.length_struct, record.data)]
            sizes = [[len(leaf)] for leaf in leaves]
            if any(size > length for (size,), length in zip(sizes, trees.leaves(self.length_struct), strict=True)):
                raise ValueError(
                    f"A sequence is longer than its row: lengths {np.ravel(sizes)}, rows of {self.length_struct}. "
                    "Truncate it before packing."
                )
            if not bins.place(sizes):
                yield self._batch(bins, held, last)
                bins, held = self._make_bins(), []
                bins.place(sizes)
            held.append(leaves)
            last = record
        if held:
            yield self._batch(bins, held, last)

    def _make_bins(self) -> Bins:
        return Bins(trees.leaves(self.length_struct), self.batch_size, most=self.max_sequences_per_bin)

    def _batch(self, bins: Bins, held: list[list[np.ndarray]], last: Any) -> Any:
        placed = bins.placement()
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
