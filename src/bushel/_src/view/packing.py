"""How full packed rows are, and how long the sequences in them: from the plan of a packing, or from rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bushel._src.graph.bucket import Bucket
from bushel._src.graph.node import Node
from bushel._src.graph.pack_plan import PackedRows

BINS = 40
SEGMENTS = "_segment_ids"


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of numbers between edges; the last edge is inside."""

    edges: list[float]
    counts: list[int]

    @staticmethod
    def of(values: np.ndarray, low: float = 0, high: float | None = None, bins: int = BINS) -> Histogram:
        """The histogram of some whole numbers. Where they have few different values, each gets a bin of its own.

        >>> Histogram.of(np.array([1, 1, 3]), high=4)
        Histogram(edges=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], counts=[0, 2, 0, 1, 0])
        """
        top = float(values.max()) if high is None and len(values) else float(high or 0)
        span = max(1.0, top - low)
        if span < bins:
            edges = np.arange(low, low + span + 2)
        else:  # bins of a whole width, so that no bin holds more numbers than its neighbours
            width = np.ceil((span + 1) / bins)
            edges = np.arange(low, top + width + 1, width)
        counts, _ = np.histogram(values, edges)
        return Histogram(edges.astype(np.float64).tolist(), counts.tolist())


@dataclasses.dataclass(frozen=True)
class FeaturePacking:
    """One feature of packed rows."""

    name: str
    capacity: int
    """How many tokens fit into a row."""
    rows: int
    tokens: int
    """The tokens of all rows together."""
    sequences: int
    cut: int
    """How many sequences are cut into several pieces."""
    lengths: Histogram
    """How long the sequences are."""
    filled: Histogram
    """How many tokens the rows have."""
    per_row: Histogram
    """How many sequences, or pieces of them, the rows have."""

    @property
    def efficiency(self) -> float:
        """Which part of all cells holds a token."""
        return self.tokens / max(1, self.rows * self.capacity)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Packed rows of a pipeline."""

    call: str
    exact: bool
    """Whether this is about all rows of an epoch. Else it is about the rows that were read."""
    features: list[FeaturePacking]


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The batches of a pipeline that has elements of similar length in each batch."""

    call: str
    boundaries: list[int]
    batch_sizes: list[int]
    elements: list[int]
    """How many elements of an epoch each bucket has."""
    real: list[float] | None
    """For each bucket, which share of its cells holds data, by the lengths of the elements; None if users pad."""
    efficiency: float | None
    """This share for all buckets together."""


def describe_packing(last: Node) -> list[Packing]:
    """Each `pack` of a pipeline over all rows of an epoch, from its plan alone.

    >>> from bushel import MapDataset
    >>> texts = MapDataset.source([np.arange(n) for n in (3, 5, 2, 6)])
    >>> (packing,) = describe_packing(texts.pack([3, 5, 2, 6], 8)._node)
    >>> (feature,) = packing.features
    >>> feature.efficiency, feature.rows, feature.sequences, feature.lengths.counts
    (1.0, 2, 4, [0, 0, 1, 1, 0, 1, 1])
    """
    return [
        Packing(node.call(), True, [_describe_feature(node, number) for number in range(len(node.options.capacities))])
        for node in find_nodes(last, PackedRows)
    ]


def describe_buckets(last: Node) -> list[Buckets]:
    """Each `bucket` of a pipeline, over all elements of an epoch.

    >>> from bushel import MapDataset
    >>> texts = MapDataset.source([np.arange(n) for n in (3, 5, 2, 6)])
    >>> (buckets,) = describe_buckets(texts.bucket([3, 5, 2, 6], [4, 8], 2, seed=0)._node)
    >>> buckets.real, buckets.efficiency
    ([0.625, 0.6875], 0.6666666666666666)
    """
    return list(map(_describe_buckets, find_nodes(last, Bucket)))


def _describe_buckets(node: Bucket) -> Buckets:
    options, real, efficiency = node.options, None, None
    if options.batch_fn is None:
        filled, cells = node.count_cells()
        real = (filled / np.maximum(cells, 1)).tolist()
        efficiency = int(filled.sum()) / max(1, int(cells.sum()))
    return Buckets(
        node.call(), list(options.boundaries), list(options.batch_sizes), list(node.counts), real, efficiency
    )


def find_nodes(last: Node, kind: type[Any]) -> list[Any]:
    """The nodes of one kind in a pipeline, the last one first. A node that several others read is listed once."""
    found: dict[int, Node] = {}
    todo = [last]
    while todo:
        node = todo.pop(0)
        if id(node) not in found:
            found[id(node)] = node
            todo += node.parents
    return [node for node in found.values() if isinstance(node, kind)]


def _describe_feature(node: PackedRows, number: int) -> FeaturePacking:
    name, capacity = list(node.options.capacities.items())[number]
    pieces, rows = node.pieces, node.length
    sizes = pieces.sizes[:, number].astype(np.int64)
    pieces_of_row = np.diff(pieces.edges)
    filled = np.zeros(rows, dtype=np.int64)
    if rows:  # each row has at least one piece
        filled = np.add.reduceat(sizes, pieces.edges[:-1])
    _, first, count = np.unique(pieces.elements, return_index=True, return_counts=True)
    lengths = pieces.lengths[first, number]
    return FeaturePacking(
        name=name,
        capacity=capacity,
        rows=rows,
        tokens=int(sizes.sum()),
        sequences=len(first),
        cut=int((count > 1).sum()),
        lengths=Histogram.of(lengths),
        filled=Histogram.of(filled, high=capacity),
        per_row=Histogram.of(pieces_of_row),
    )


def measure_packing(elements: Iterable[Any]) -> Packing | None:
    """The packing of rows, or batches of rows, that were read: from their `<name>_segment_ids`; None if there are none.

    A segment id of 0 is padding. This is for the packers of streams, whose plan is not known ahead. Of a sequence that
    is cut at the end of a row each piece counts as one sequence.

    >>> row = {"tokens": np.array([5, 6, 7, 0]), "tokens_segment_ids": np.array([1, 1, 2, 0])}
    >>> (feature,) = measure_packing([row]).features
    >>> feature.efficiency, feature.sequences, feature.lengths.counts
    (0.75, 2, [0, 1, 1])
    """
    rows: dict[str, list[np.ndarray]] = {}
    for element in elements:
        if isinstance(element, Mapping):
            for name, ids in element.items():
                if isinstance(name, str) and name.endswith(SEGMENTS) and np.ndim(ids):
                    ids = np.asarray(ids)
                    rows.setdefault(name.removesuffix(SEGMENTS), []).append(ids.reshape(-1, ids.shape[-1]))
    if not rows:
        return None
    features = [_measure_feature(name, blocks) for name, blocks in rows.items()]
    return Packing("the rows that were read", False, features)


def _measure_feature(name: str, blocks: list[np.ndarray]) -> FeaturePacking:
    capacity = max(block.shape[1] for block in blocks)
    lengths, per_row, filled = [], [], []
    for block in blocks:
        for row in block:
            # A segment ends where the id changes, or where a row ends.
            edges = np.flatnonzero(np.diff(row, prepend=row[0] - 1, append=row[-1] + 1))
            sizes, ids = np.diff(edges), row[edges[:-1]]
            lengths.append(sizes[ids != 0])
            per_row.append(int((ids != 0).sum()))
            filled.append(int((row != 0).sum()))
    sizes = np.concatenate(lengths)
    return FeaturePacking(
        name=name,
        capacity=capacity,
        rows=len(filled),
        tokens=sum(filled),
        sequences=len(sizes),
        cut=0,
        lengths=Histogram.of(sizes),
        filled=Histogram.of(np.array(filled), high=capacity),
        per_row=Histogram.of(np.array(per_row)),
    )
