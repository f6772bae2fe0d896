"""Packing as an operation of Grain's DataLoader: on an iterator of records, without a state."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from bushel.base import checks, trees
from bushel.graph.fill import fill_rows
from bushel.graph.pack_stream import as_sequence, leaves_up_to
from bushel.index.packing import Bins, layout


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
        warnings.warn("Please use FirstFitPackIterDataset, then batch.", DeprecationWarning, stacklevel=3)
        checks.positive(self.batch_size, "batch_size")

    def __call__(self, input_iterator: Iterator[Any]) -> Iterator[Any]:
        bins, held, last = self._bins(), [], None
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
                bins, held = self._bins(), []
                bins.place(sizes)
            held.append(leaves)
            last = record
        if held:
            yield self._batch(bins, held, last)

    def _bins(self) -> Bins:
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
