"""How full packed rows and buckets are, by their plan, and which share of batches is data and not padding.

A step that pads is watched while it makes batches: its input has the real sizes. For other elements their masks and
segment ids say it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base.blocks import Block, rows_of
from bushel._src.base.state_names import in_states
from bushel._src.display.kinds import find_mask, find_segments, is_beside_tokens
from bushel._src.graph.batch import Batches, BatchFn
from bushel._src.graph.by_length import Bucket, PackedRows
from bushel._src.graph.limit_and_rebatch import Limit, RepeatStream, Skip
from bushel._src.graph.node import Epochs, Moved, Node, replace_parents
from bushel._src.graph.stream_ops import BatchStream
from bushel._src.graph.streams import Ahead, Elements, Pulled, SeedStream, WithOptions

BINS = 40
SEGMENTS = "_segment_ids"


@dataclasses.dataclass(frozen=True)
class LengthHistogram:
    """Counts of numbers between edges; the last edge is inside."""

    edges: list[float]
    counts: list[int]

    @staticmethod
    def of(values: np.ndarray, low: float = 0, high: float | None = None, bins: int = BINS) -> LengthHistogram:
        """Return the histogram of some whole numbers. Where they have few different values, each gets a bin of its own.

        >>> LengthHistogram.of(np.array([1, 1, 3]), high=4)
        LengthHistogram(edges=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], counts=[0, 2, 0, 1, 0])
        """
        top = float(values.max()) if high is None and len(values) else float(high or 0)
        span = max(1.0, top - low)
        if span < bins:
            edges = np.arange(low, low + span + 2)
        else:  # bins of a whole width, so that no bin holds more numbers than its neighbours
            width = np.ceil((span + 1) / bins)
            edges = np.arange(low, top + width + 1, width)
        counts, _ = np.histogram(values, edges)
        return LengthHistogram(edges.astype(np.float64).tolist(), counts.tolist())


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
    lengths: LengthHistogram
    """How long the sequences are."""
    filled: LengthHistogram
    """How many tokens the rows have."""
    per_row: LengthHistogram
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
    """Return each `pack` of a pipeline over all rows of an epoch, from its plan alone.

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
    """Return each `bucket` of a pipeline, over all elements of an epoch.

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
    """Return the nodes of one kind in a pipeline, the last one first.

    A node that several others read is listed once.
    """
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
    pieces, rows = node.row_plan, node.length
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
        lengths=LengthHistogram.of(lengths),
        filled=LengthHistogram.of(filled, high=capacity),
        per_row=LengthHistogram.of(pieces_of_row),
    )


def measure_packing(elements: Iterable[Any]) -> Packing | None:
    """Return the packing of rows, or batches of rows, that were read: from their `<name>_segment_ids`; None if there
    are none.

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
        lengths=LengthHistogram.of(sizes),
        filled=LengthHistogram.of(np.array(filled), high=capacity),
        per_row=LengthHistogram.of(np.array(per_row)),
    )


_PASSES_ON = (Moved, Elements, Ahead, Pulled, SeedStream, WithOptions, Limit, Skip, RepeatStream)
"""Steps whose elements are those of the step before."""
_ELEMENT, _CELLS = "bushel element", "bushel cells"
_PADS = ("pad", "attention", "valid")
"""A mask with one of these words says what is padding. Others, such as a loss mask, leave out real data, too."""


@dataclasses.dataclass
class Cells:
    """How many numbers the leaves of some elements have, and how many of them are not padding."""

    real: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """The share of real numbers; 1 where there is none at all."""
        return self.real / self.total if self.total else 1.0


class PaddingCounter:
    """Adds up the cells of leaves, by the names of the leaves.

    >>> counter = PaddingCounter()
    >>> counter.add({"tokens": np.array([5, 6, 7, 0]), "tokens_segment_ids": np.array([1, 1, 2, 0])})
    {'tokens': array([5, 6, 7, 0]), 'tokens_segment_ids': array([1, 1, 2, 0])}
    >>> counter.leaves["tokens"].share
    0.75
    """

    def __init__(self) -> None:
        self.leaves: dict[str, Cells] = {}

    def add(self, element: Any) -> Any:
        """Count the cells of an element, which may come from `watch_padding`. Return the element itself."""
        found: dict[str, tuple[int, int]] = {}
        if isinstance(element, Mapping) and _CELLS in element:
            found = {name: (int(real), int(total)) for name, (real, total) in element[_CELLS].items()}
            element = element[_ELEMENT]
        for name, value, beside in _list_with_neighbours(element):
            real = _find_real(name.rpartition("/")[2], value, beside)
            if real is not None:  # rows that were padded or packed before they were batched
                found[name] = int(real.sum()) * (value.size // max(1, real.size)), value.size
        for name, (real, total) in found.items():
            cells = self.leaves.setdefault(name, Cells())
            cells.real += real
            cells.total += total
        return element


def _list_with_neighbours(tree: Any, path: str = "") -> Iterator[tuple[str, np.ndarray, Mapping[str, Any]]]:
    """Yield the arrays in dicts, with the dict in which each one lies."""
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        name = f"{path}/{key}" if path else str(key)
        if isinstance(value, np.ndarray) and value.ndim:
            yield name, value, tree
        else:
            yield from _list_with_neighbours(value, name)


def _find_real(name: str, value: np.ndarray, beside: Mapping[str, Any]) -> np.ndarray | None:
    """Return which cells of an array are no padding, as the entries beside it say; None if they do not say it."""
    if is_beside_tokens(name, beside):
        return None
    segments, _ = find_segments(name, beside)
    if isinstance(segments, np.ndarray) and segments.ndim and segments.shape == value.shape[: segments.ndim]:
        return segments != 0
    mask = find_mask(name, value, beside)
    return mask[1] if mask is not None and any(word in mask[0] for word in _PADS) else None


def watch_padding(node: Node) -> Node | None:
    """Return the same pipeline, whose elements carry the cells of their leaves for a `PaddingCounter`; None if it
    cannot.

    It can where the last step that makes elements batches them with a function that may pad: `bucket`, or `batch` with
    a `batch_fn`.
    """
    if isinstance(node, Batches):
        return _WatchedBatches(node.parent, node) if may_pad(node) else None
    if isinstance(node, BatchStream):
        return dataclasses.replace(node, batch_fn=_WatchedFunction(node.batch_fn)) if node.batch_fn else None
    if not isinstance(node, _PASSES_ON):
        return None
    (parent,) = node.parents
    watched = watch_padding(parent)
    return None if watched is None else replace_parents(node, lambda _: watched)


def may_pad(node: Node) -> bool:
    """Return whether a step makes batches that may be padded."""
    if isinstance(node, BatchStream):
        return node.batch_fn is not None
    return isinstance(node, Bucket) or (isinstance(node, Batches) and node.batch_function is not None)


@in_states("view_batches")
@dataclasses.dataclass(frozen=True, eq=False)
class _WatchedBatches(Batches):
    """The batches of another node, with their cells."""

    batches: Batches = dataclasses.field(metadata={"identity": False})

    def find_length(self) -> int:
        return self.batches.length

    @property
    def fan_in(self) -> int:
        return self.batches.fan_in

    @property
    def epochs(self) -> Epochs:
        return self.batches.epochs

    def members_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        return self.batches.members_of(indices)

    def make(self, block: Block, kind: int) -> Any:
        return _WatchedFunction(lambda rows: self.batches.make(list(rows), kind))(rows_of(block))

    @property
    def batch_function(self) -> BatchFn | None:
        return _WatchedFunction(list)  # not None, since batches are not what the library stacks

    def full_size(self, kind: int) -> int:
        return self.batches.full_size(kind)

    def element_spec(self) -> Any:
        return self.batches.element_spec()

    def call(self) -> str:
        return self.batches.call()


@in_states("view_function")
@dataclasses.dataclass(frozen=True)
class _WatchedFunction:
    """A function that makes batches, with the cells of each batch."""

    batch_fn: BatchFn

    def __call__(self, rows: Sequence[Any]) -> Any:
        sizes = list(map(_measure_leaves, rows))  # before the function, which may change its rows
        batch = self.batch_fn(rows)
        counted = count_cells(sizes, batch)
        return {_ELEMENT: batch, _CELLS: {name: np.array([cells.real, cells.total]) for name, cells in counted.items()}}


def count_cells(sizes: Sequence[Mapping[str, tuple[int, ...]]], batch: Any) -> dict[str, Cells]:
    """Return the cells of a batch that was made of rows of some sizes, for each leaf with the axes of the rows and one
    more.

    >>> count_cells([{"x": (3,)}, {"x": (1,)}], {"x": np.zeros((2, 4))})
    {'x': Cells(real=4, total=8)}
    """
    found: dict[str, Cells] = {}
    for name, shape in _measure_leaves(batch).items():
        real_shapes = [row.get(name) for row in sizes]
        # Otherwise the function has made something else of the rows.
        if (
            len(shape)
            and len(real_shapes) <= shape[0]
            and all(one is not None and len(one) == len(shape) - 1 for one in real_shapes)
        ):
            # A function that pads may also cut.
            real = sum(math.prod(map(min, one, shape[1:])) for one in real_shapes if one is not None)
            found[name] = Cells(real, math.prod(shape))
    return found


def _measure_leaves(tree: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the leaves of an element. Leave without a shape, such as uneven lists, are left out."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, leaf in list_leaves(tree):
        with contextlib.suppress(ValueError):
            shapes[name] = np.shape(leaf)
    return shapes


def list_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an element, with their names: "observation/state"; "element" for an element that is one leaf.

    A list of numbers or texts is one leaf.
    """
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from list_leaves(value, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, tuple) or (isinstance(tree, list) and any(map(_is_branch, tree))):
        for number, value in enumerate(tree):
            yield from list_leaves(value, f"{path}/{number}" if path else str(number))
    elif tree is not None:
        yield path or "element", tree


def _is_branch(value: Any) -> bool:
    return isinstance(value, (Mapping, tuple, list, np.ndarray))
