"""Batches of elements of similar length, by random access. Each bucket is cut into batches, which are then shuffled."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel.base import blocks, checks, exact, memory, trees
from bushel.base.blocks import Block
from bushel.base.state_names import in_states
from bushel.graph.batch import Batches, BatchFn
from bushel.graph.columns import Column
from bushel.graph.node import Epochs, MapNode
from bushel.graph.select import EpochTables, pick_by_epoch
from bushel.index import epochs, shuffle, words


@dataclasses.dataclass(frozen=True)
class BucketOptions:
    """How elements are put into buckets, and buckets into batches."""

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    seed: int
    drop_remainder: bool = False
    features: tuple[str, ...] | None = None
    padding: Any = 0
    batch_fn: BatchFn | None = None


@in_states("bucket")
@dataclasses.dataclass(frozen=True, eq=False)
class Bucket(Batches):
    """Batches whose elements are all of one bucket, in an order of their own in every epoch."""

    options: BucketOptions
    digest: str
    """Of the lengths."""
    counts: tuple[int, ...]
    """How many elements each bucket has. They are as many in every epoch, since all epochs have the same records."""
    orders: EpochTables
    """For each epoch, its elements by bucket."""
    lengths: Callable[[int], np.ndarray]
    """For each epoch, the lengths of its elements."""

    no_spec = "Batches of several buckets have several shapes: each its own boundary."

    def find_length(self) -> int:
        return len(self._batches[0])

    @property
    def fan_in(self) -> int:
        return max(self.options.batch_sizes) * self.parent.fan_in

    @property
    def epochs(self) -> Epochs:
        return Epochs.SHUFFLED if self.parent.epochs is Epochs.SAME else Epochs.DIFFERENT

    @functools.cached_property
    def _batches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First place of each batch among the elements sorted by bucket, its size, and its bucket."""
        options = self.options
        by_bucket = []
        begin = 0
        for bucket, (count, size) in enumerate(zip(self.counts, options.batch_sizes, strict=True)):
            starts = np.arange(begin, begin + (count // size * size if options.drop_remainder else count), size)
            sizes = np.minimum(size, begin + count - starts)
            by_bucket.append((starts, sizes, np.full(len(starts), bucket)))
            begin += count
        starts, sizes, buckets = (np.concatenate(arrays) for arrays in zip(*by_bucket, strict=True))
        return starts, sizes, buckets

    def parts_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        shuffled = shuffle.shuffle(indices, length=self.length, seed=self.options.seed)
        epoch, batch = words.split(shuffled, self.length, to=self.parent.length)
        first, sizes, buckets = (array[batch] for array in self._batches)
        edges, places = epochs.ranges(first, sizes)
        epoch = np.repeat(epoch, sizes)
        places = pick_by_epoch(epoch, places, lambda number, some: self.orders(number)[some])
        return edges, places + epoch * self.parent.length, buckets.tolist()

    def make(self, block: Block, kind: int) -> Any:
        options, rows = self.options, blocks.rows_of(block)
        if options.batch_fn is not None:
            return options.batch_fn(rows)
        fill = functools.partial(_stack, length=options.boundaries[kind], padding=options.padding)
        if options.features is None:
            return fill(rows)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return {n: fill(column) if n in options.features else blocks.stack(column) for n, column in columns.items()}

    def full_size(self, kind: int) -> int:
        return self.options.batch_sizes[kind]

    def count_cells(self, epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """For each bucket, how many cells of its batches hold data, by the lengths of the elements; and all cells."""
        starts, sizes, buckets = self._batches
        sums = np.concatenate([[0], np.cumsum(self.lengths(epoch)[self.orders(epoch)], dtype=np.int64)])
        real, cells = np.zeros((2, len(self.counts)), np.int64)
        np.add.at(real, buckets, sums[starts + sizes] - sums[starts])
        np.add.at(cells, buckets, sizes * np.array(self.options.boundaries)[buckets])
        return real, cells

    @property
    def batch_function(self) -> BatchFn | None:
        return self.options.batch_fn

    def parameters(self) -> dict[str, Any]:
        return {**vars(self.options), "lengths": self.digest}

    def call(self) -> str:
        return f"bucket({list(self.options.boundaries)}, {list(self.options.batch_sizes)}, seed={self.options.seed})"


def put_into_buckets(node: MapNode, column: Column, options: BucketOptions) -> Bucket:
    """Batches of the elements of a node by their lengths, which are the values of `column`."""
    # Tables of later epochs, too, are made from the node that the column was computed on: the pipeline's may be a copy.
    lengths = functools.partial(column._of_epoch, node)
    find_buckets = functools.partial(_find_buckets, lengths, options.boundaries)
    counts = np.bincount(find_buckets(0), minlength=len(options.boundaries)).tolist()
    orders = EpochTables(functools.partial(_sort_by_bucket, find_buckets), one_for_all=node.epochs is Epochs.SAME)
    return Bucket(node, options, column._digest, tuple(counts), orders, lengths)


def _find_buckets(lengths: Callable[[int], np.ndarray], boundaries: tuple[int, ...], epoch: int) -> np.ndarray:
    return np.searchsorted(boundaries, lengths(epoch))


def _sort_by_bucket(find_buckets: Callable[[int], np.ndarray], epoch: int) -> np.ndarray:
    return np.argsort(find_buckets(epoch), kind="stable")


def _stack(rows: list[Any], length: int, padding: Any) -> Any:
    """Stacks rows; the first axis of each leaf is padded to `length`."""
    parts = trees.parts_of(rows)
    if parts is not None:
        return parts[1](_stack(column, length, padding) for column in parts[0])
    if not all(isinstance(row, np.ndarray) and row.ndim for row in rows):
        return blocks.stack(rows)
    longest = max(map(len, rows))
    if longest > length:
        raise ValueError(
            f"An array with {longest} entries is in the bucket of lengths up to {length}. Name in `features` what has "
            "the length of the column, and compute the column on the very elements that are bucketed."
        )
    out = memory.output((len(rows), length, *rows[0].shape[1:]), np.result_type(*rows))
    out[...] = padding
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
        if row.dtype != out.dtype and not exact.same_values(out[place, : len(row)], row):
            raise ValueError(
                f"Arrays of {row.dtype} and of other dtypes become {out.dtype} in one batch, which changes values of "
                f"element {place} of the batch. Give all elements one dtype before `bucket`."
            )
    return out


def check_sizes(boundaries: Sequence[int], batch_sizes: int | Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns boundaries that grow and a batch size for each of them. Raises for any others."""
    bounds = tuple(checks.positive(boundary, "A boundary of a bucket") for boundary in boundaries)
    if not bounds or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValueError(f"Boundaries of buckets must grow, and there must be one, got {list(bounds)}.")
    sizes = [batch_sizes] * len(bounds) if isinstance(batch_sizes, int) else list(batch_sizes)
    if len(sizes) != len(bounds):
        raise ValueError(f"{len(bounds)} buckets need {len(bounds)} batch sizes, got {len(sizes)}: {sizes}.")
    return bounds, tuple(checks.positive(size, "A batch size") for size in sizes)
