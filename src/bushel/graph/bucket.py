"""Batches of like lengths, by random access: each bucket of lengths is cut into batches, and these are shuffled."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import blocks, checks, memory, trees
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, located
from bushel.graph.batch import BatchFn
from bushel.graph.columns import Column
from bushel.graph.node import Epochs, InPlace, MadeOf, MapNode, Plan, told
from bushel.graph.select import EpochTables
from bushel.index import shuffle, words


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


@dataclasses.dataclass(frozen=True, eq=False)
class Bucket(MapNode):
    """Batches whose elements are all of one bucket, in an order of their own in every epoch."""

    parent: MapNode
    options: BucketOptions
    digest: str
    """Of the lengths."""
    counts: tuple[int, ...]
    """How many elements each bucket has: as many in every epoch, since all have the same records."""
    orders: EpochTables
    """For each epoch, its elements by bucket."""

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return (self.parent,)

    @property
    def length(self) -> int:
        return len(self._batches[0])

    @property
    def fan_in(self) -> int:
        return max(self.options.batch_sizes) * self.parent.fan_in

    @property
    def epochs(self) -> Epochs:
        return Epochs.SHUFFLED if self.parent.epochs is Epochs.SAME else Epochs.DIFFERENT

    @functools.cached_property
    def _batches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First and last-plus-one place of each batch among the elements sorted by bucket, and its bucket."""
        options = self.options
        found = []
        begin = 0
        for bucket, (count, size) in enumerate(zip(self.counts, options.batch_sizes, strict=True)):
            starts = np.arange(begin, begin + (count // size * size if options.drop_remainder else count), size)
            ends = np.minimum(starts + size, begin + count)
            found.append((starts, ends, np.full(len(starts), bucket)))
            begin += count
        starts, ends, buckets = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return starts, ends, buckets

    def _elements(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where each batch begins among the elements of all of them, these elements, and the buckets of the batches."""
        shuffled = shuffle.shuffle(indices, length=self.length, seed=self.options.seed)
        epoch, batch = words.split(shuffled, self.length, to=self.parent.length)
        first, end, bucket = (array[batch] for array in self._batches)
        edges = np.zeros(len(indices) + 1, dtype=np.int64)
        np.cumsum(end - first, out=edges[1:])
        places = np.repeat(first - edges[:-1], end - first) + np.arange(edges[-1])
        epochs = np.repeat(epoch, end - first)
        elements = np.empty(len(places), dtype=epochs.dtype)
        for number in np.unique(epochs).tolist():
            here = epochs == number
            elements[here] = self.orders(number)[places[here]] + number * self.parent.length
        return edges, elements, bucket

    def plan(self, indices: np.ndarray) -> Plan:
        edges, elements, bucket = self._elements(indices)
        return _Bucketed(self, indices, edges.tolist(), bucket.tolist(), self.parent.plan(elements))

    def made_of(self, indices: np.ndarray) -> MadeOf:
        edges, elements, _ = self._elements(indices)
        return np.repeat(np.arange(len(indices)), np.diff(edges)), np.zeros(len(elements), dtype=np.int64), elements

    def batch(self, rows: list[Any], bucket: int) -> Any:
        """One batch of elements of a bucket."""
        options = self.options
        if options.batch_fn is not None:
            return options.batch_fn(rows)
        fill = functools.partial(_stacked, length=options.boundaries[bucket], padding=options.padding)
        if options.features is None:
            return fill(rows)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return {n: fill(column) if n in options.features else blocks.stack(column) for n, column in columns.items()}

    @property
    def in_place(self) -> InPlace:
        return InPlace.AS_ROWS if self.options.batch_fn is None else InPlace.NEVER

    def element_spec(self) -> Any:
        raise NotImplementedError("Batches of several buckets have several shapes: each its own boundary.")

    def parameters(self) -> dict[str, Any]:
        return {**vars(self.options), "lengths": self.digest}

    def call(self) -> str:
        return f"bucket({list(self.options.boundaries)}, {list(self.options.batch_sizes)}, seed={self.options.seed})"


def bucketed(node: MapNode, column: Column, options: BucketOptions) -> Bucket:
    """Batches of like lengths, which `column` has."""
    buckets = _BucketsOf(node, column, options.boundaries)
    counts = np.bincount(buckets(0), minlength=len(options.boundaries)).tolist()
    orders = EpochTables(buckets.order, one_for_all=node.epochs is Epochs.SAME)
    return Bucket(node, options, column.digest, tuple(counts), orders)


@dataclasses.dataclass(frozen=True, eq=False)
class _BucketsOf:
    """The buckets of an epoch. It keeps to the nodes that the column knows: those of the pipeline may be copies."""

    parent: MapNode
    column: Column
    boundaries: tuple[int, ...]

    def __call__(self, epoch: int) -> np.ndarray:
        return np.searchsorted(self.boundaries, self.column.of_epoch(self.parent, epoch))

    def order(self, epoch: int) -> np.ndarray:
        return np.argsort(self(epoch), kind="stable")


@dataclasses.dataclass(slots=True)
class _Bucketed(Plan):
    node: Bucket
    indices: np.ndarray
    edges: list[int]
    buckets: list[int]
    parent: Plan

    def take(self, low: int, high: int) -> Block:
        start = self.edges[low]
        try:
            rows = blocks.rows_of(memory.apart(self.parent.look, start, self.edges[high]))
        except RowFailed as failed:
            row = int(np.searchsorted(self.edges, start + failed.row, side="right")) - 1
            raise RowFailed(row - low, failed.error) from failed.error
        batches = []
        for row in range(low, high):
            part = rows[self.edges[row] - start : self.edges[row + 1] - start]
            try:
                batches.append(self.node.batch(part, self.buckets[row]))
            except Exception as error:
                index = int(self.indices[row])
                where = told(self.node.call(), index, self.node.origins(index))
                raise RowFailed(row - low, located(error, where)) from error
        return batches


def _stacked(rows: list[Any], length: int, padding: Any) -> Any:
    """Rows stacked, each leaf with a first axis filled up to `length`."""
    parts = trees.parts_of(rows)
    if parts is not None:
        return parts[1](_stacked(column, length, padding) for column in parts[0])
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
    return out


def checked_sizes(
    boundaries: Sequence[int], batch_sizes: int | Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Boundaries that grow, and a batch size for each of them."""
    bounds = tuple(checks.positive(boundary, "A boundary of a bucket") for boundary in boundaries)
    if not bounds or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValueError(f"Boundaries of buckets must grow, and there must be one, got {list(bounds)}.")
    sizes = [batch_sizes] * len(bounds) if isinstance(batch_sizes, int) else list(batch_sizes)
    if len(sizes) != len(bounds):
        raise ValueError(f"{len(bounds)} buckets need {len(bounds)} batch sizes, got {len(sizes)}: {sizes}.")
    return bounds, tuple(checks.positive(size, "A batch size") for size in sizes)
