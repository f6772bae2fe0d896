"""Which share of the cells of batches holds data and not padding, leaf by leaf.

A step that pads is watched while it makes batches: its input has the real sizes. For other elements their masks and
segment ids say it. The plan of packed rows, and of buckets, is in `packing.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base.blocks import Block, rows_of
from bushel._src.base.state_names import in_states
from bushel._src.display.kinds import find_mask, find_segments, is_beside_tokens
from bushel._src.graph.batch import Batches, BatchFn
from bushel._src.graph.bucket import Bucket
from bushel._src.graph.node import Epochs, Moved, Node, replace_parents
from bushel._src.graph.ordered import BatchStream
from bushel._src.graph.portions import Limit, RepeatStream, Skip
from bushel._src.graph.streams import Ahead, Elements, Pulled, SeedStream, WithOptions

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
        """Counts the cells of an element, which may come from `watch_padding`. Returns the element itself."""
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
    """The arrays in dicts, with the dict in which each one lies."""
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        name = f"{path}/{key}" if path else str(key)
        if isinstance(value, np.ndarray) and value.ndim:
            yield name, value, tree
        else:
            yield from _list_with_neighbours(value, name)


def _find_real(name: str, value: np.ndarray, beside: Mapping[str, Any]) -> np.ndarray | None:
    """Which cells of an array are no padding, as the entries beside it say; None if they do not say it."""
    if is_beside_tokens(name, beside):
        return None
    segments, _ = find_segments(name, beside)
    if isinstance(segments, np.ndarray) and segments.ndim and segments.shape == value.shape[: segments.ndim]:
        return segments != 0
    mask = find_mask(name, value, beside)
    return mask[1] if mask is not None and any(word in mask[0] for word in _PADS) else None


def watch_padding(node: Node) -> Node | None:
    """The same pipeline, whose elements carry the cells of their leaves for a `PaddingCounter`; None if it cannot.

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
    """Whether a step makes batches that may be padded."""
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

    def parts_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        return self.batches.parts_of(indices)

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
    """The cells of a batch that was made of rows of some sizes, for each leaf with the axes of the rows and one more.

    >>> count_cells([{"x": (3,)}, {"x": (1,)}], {"x": np.zeros((2, 4))})
    {'x': Cells(real=4, total=8)}
    """
    found: dict[str, Cells] = {}
    for name, shape in _measure_leaves(batch).items():
        own = [row.get(name) for row in sizes]
        # Otherwise the function has made something else of the rows.
        if len(shape) and len(own) <= shape[0] and all(one is not None and len(one) == len(shape) - 1 for one in own):
            # A function that pads may also cut.
            real = sum(math.prod(map(min, one, shape[1:])) for one in own if one is not None)
            found[name] = Cells(real, math.prod(shape))
    return found


def _measure_leaves(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the leaves of an element. Leaves without a shape, such as uneven lists, are left out."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, leaf in list_leaves(tree):
        with contextlib.suppress(ValueError):
            shapes[name] = np.shape(leaf)
    return shapes


def list_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of an element, with their names: "observation/state"; "element" for an element that is one leaf.

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
