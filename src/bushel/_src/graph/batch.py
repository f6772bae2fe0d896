"""Batches of the elements of a map node. Rows are written straight into the batch; columns are only cut."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, memory, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import RowFailed, locate_error
from bushel._src.base.private_elements import make_private
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.base.transforms import short_name
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.graph.node import Epochs, InPlace, MadeOf, MapNode, OneParentMap, Plan, made_of_several, take_in_order
from bushel._src.index import epochs

BatchFn = Callable[[Sequence[Any]], Any]


def derive_batch_spec(spec: Any, batch_size: int, drop_remainder: bool, batch_fn: BatchFn | None) -> Any:
    """Return the element spec of batches; the batch axis is None where the last batch may be smaller."""
    if batch_fn is None:
        size = batch_size if drop_remainder else None
        return trees.map_leaves(lambda leaf: ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), spec)
    inner: Any = batch_fn.func if isinstance(batch_fn, functools.partial) else batch_fn
    if not hasattr(inner, "output_spec"):
        raise NotImplementedError(
            f"The shapes of batches made by {short_name(inner)} are not known: give it an "
            "`output_spec(input_spec, batch_size, drop_remainder)` method."
        )
    return inner.output_spec(spec, batch_size, drop_remainder)


def format_batch_call(batch_size: int, drop_remainder: bool, batch_fn: BatchFn | None) -> str:
    """Return how batching reads: `batch(128, drop_remainder=True)`."""
    shown = [str(batch_size)]
    if drop_remainder:
        shown.append("drop_remainder=True")
    if batch_fn is not None:
        shown.append(f"batch_fn={short_name(batch_fn)}")
    return f"batch({', '.join(shown)})"


def check_dense(node: MapNode) -> None:
    """Raise if an element of a node can be missing: a batch of the node's elements would have an unknown size."""
    culprit = _find_sparse_step(node)
    if culprit is not None:
        raise ValueError(
            f"`MapDataset.batch` can not follow `MapDataset.{culprit}` because it can discard elements. Convert "
            "`MapDataset` to `IterDataset` with `to_iter_dataset()` before calling `batch`."
        )


def _find_sparse_step(map_node: MapNode) -> str | None:
    """Return the name of the operation that drops elements; None if no element can be missing."""
    if not map_node.sparse:
        return None
    for parent in map_node.parents:
        step = _find_sparse_step(parent)
        if step is not None:
            return step
    return map_node.call().partition("(")[0]


def make_batch(block: Block, batch_fn: BatchFn | None) -> Any:
    """Make one batch of a block of elements."""
    if batch_fn is not None:
        return batch_fn(blocks.rows_of(block))
    if isinstance(block, Columns) and block.present is None:
        return trees.map_leaves(_restack, block.tree)
    return blocks.stack(blocks.rows_of(block))


def _restack(leaf: np.ndarray) -> np.ndarray:
    """Return a column as if its rows had been stacked: text as wide as the widest row, numbers in the machine's byte
    order.
    """
    return leaf if leaf.dtype.isnative and leaf.dtype.kind not in "SU" else np.stack(list(leaf))


def is_made_by_library(batch_fn: BatchFn | None) -> bool:
    """Return whether batches are made by the library alone."""
    inner: Any = batch_fn.func if isinstance(batch_fn, functools.partial) else batch_fn
    return inner is None or inner is batch_and_pad


class Batches(OneParentMap):
    """A node whose elements are made of several elements each. A subclass says of which, and how."""

    @abc.abstractmethod
    def members_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        """Return (edges, elements, kinds): batch n is made of the parent's `elements[edges[n]:edges[n + 1]]`."""

    @abc.abstractmethod
    def make(self, block: Block, kind: int) -> Any:
        """Return one batch of a block of elements; `kind` is the batch's entry of `kinds`."""

    @property
    @abc.abstractmethod
    def batch_function(self) -> BatchFn | None:
        """The user's function that makes a batch; None where the library does."""

    @abc.abstractmethod
    def full_size(self, kind: int) -> int:
        """Return how many elements a batch of this kind has, unless it is the last one and smaller."""

    def plan(self, indices: np.ndarray) -> Plan:
        return self.plan_members(indices, *self.members_of(indices))

    def plan_members(self, indices: np.ndarray, edges: np.ndarray, elements: np.ndarray, kinds: Sequence[int]) -> Plan:
        """Plan the batches at `indices` from the elements that are given, which may be some of those they have."""
        made_by_library, as_columns = (
            is_made_by_library(self.batch_function),
            self.parent.in_place is InPlace.AS_COLUMNS,
        )
        return _Batched(self, indices, edges.tolist(), kinds, self.parent.plan(elements), made_by_library, as_columns)

    def made_of(self, indices: np.ndarray) -> MadeOf:
        edges, elements, _ = self.members_of(indices)
        return made_of_several(edges, elements)

    @property
    def in_place(self) -> InPlace:
        return InPlace.AS_ROWS if is_made_by_library(self.batch_function) else InPlace.NEVER


@in_states("batch")
@dataclasses.dataclass(frozen=True, eq=False)
class BatchElements(Batches):
    """Batches of consecutive elements that never straddle epochs."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: BatchFn | None = None

    def find_length(self) -> int:
        whole, rest = divmod(self.parent.length, self.batch_size)
        return whole if self.drop_remainder or not rest else whole + 1

    @property
    def fan_in(self) -> int:
        return self.batch_size * self.parent.fan_in

    def members_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        length, parent_length = self.length, self.parent.length
        first, end = epochs.batched(indices, batch_size=self.batch_size, length=length, parent_length=parent_length)
        return *epochs.ranges(first, epochs.narrowed(end - first)), range(len(indices))

    def make(self, block: Block, kind: int) -> Any:
        return make_batch(block, self.batch_fn)

    def full_size(self, kind: int) -> int:
        return self.batch_size

    @property
    def batch_function(self) -> BatchFn | None:
        return self.batch_fn

    @property
    def epochs(self) -> Epochs:
        return self.parent.epochs.after_cutting()

    def element_spec(self) -> Any:
        return derive_batch_spec(self.parent.element_spec(), self.batch_size, self.drop_remainder, self.batch_fn)

    def call(self) -> str:
        return format_batch_call(self.batch_size, self.drop_remainder, self.batch_fn)


@dataclasses.dataclass(slots=True)
class _Batched(Plan):
    node: Batches
    indices: np.ndarray
    edges: list[int]
    kinds: Sequence[int]
    parent: Plan
    made_by_library: bool
    """Whether the library makes the batches."""
    as_columns: bool
    """Whether the parent's elements may be made where batches go."""

    def read(self, low: int, high: int, private: bool) -> Block:
        start = self.edges[low]
        read = (
            self.parent.look if self.made_by_library else self.parent.take
        )  # the library stacks rows, which copies them
        try:
            if self.as_columns:
                block = take_in_order(read, start, self.edges[high])
            else:
                block = memory.call_apart(take_in_order, read, start, self.edges[high])
        except RowFailed as failed:
            row = int(np.searchsorted(self.edges, start + failed.row, side="right")) - 1
            raise RowFailed(row - low, failed.error) from failed.error
        edges = [edge - start for edge in self.edges[low : high + 1]]
        parts = [blocks.slice_block(block, first, end) for first, end in itertools.pairwise(edges)]
        del block  # the gate counts who holds what a batch is made of
        parts.reverse()
        batches = []
        for row in range(low, high):
            try:
                batch = [self.node.make(parts.pop(), self.kinds[row])]
                batches += batch if self.made_by_library else make_private(batch)
            except Exception as error:
                where = self.node.describe_failure(int(self.indices[row]))
                raise RowFailed(row - low, locate_error(error, where)) from error
        return batches


@public("bushel.experimental")
def batch_and_pad(values: Sequence[Any], *, batch_size: int, pad_value: Any = 0) -> Any:
    """Return a batch of exactly `batch_size` rows, padded with `pad_value`: a `batch_fn` that keeps every shape static.

    >>> batch_and_pad([1, 2], batch_size=3)
    array([1, 2, 0])
    """
    if not values:
        raise ValueError("Cannot batch 0 values.")
    if len(values) > batch_size:
        raise ValueError(f"Cannot batch {len(values)} values to {batch_size}.")
    batch = blocks.stack(list(values))
    missing = batch_size - len(values)
    if not missing:
        return batch

    def pad(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.full((missing, *leaf.shape[1:]), pad_value, leaf.dtype)])

    return trees.map_leaves(pad, batch)
