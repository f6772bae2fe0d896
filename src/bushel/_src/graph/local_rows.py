"""Pipelines that read only the rows of a batch that one process needs. `bushel._src.datasets.global_arrays` says which.

A batch is made of elements of its parent, and which ones is arithmetic. So the other rows are not even planned. Each
element of such a pipeline is a pair: the rows of this process, and two numbers, (how many rows the batch has, how many
rows the global array has). They differ where the last batch is padded.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np

from bushel._src.base import blocks, checks, trees
from bushel._src.base.blocks import Block
from bushel._src.base.errors import StateMismatch
from bushel._src.graph import map_ops, operation, stream_ops
from bushel._src.graph.batch import BatchElements, Batches
from bushel._src.graph.cursors import Cursor, Mark, Same, State, read_count, read_field
from bushel._src.graph.limit_and_rebatch import RepeatStream, count_rows
from bushel._src.graph.node import InPlace, Node, Plan, Transparent, replace_parents, skip_transparent
from bushel._src.graph.reindex import Repeat, Seed, Shuffle, WindowShuffle
from bushel._src.graph.stream_ops import BatchStream, Elementwise
from bushel._src.graph.streams import Elements, OneParent, Opener, Ordered, SeedStream, StreamNode
from bushel._src.index import epochs
from bushel._src.index.epochs import DeviceRows

Remainder = Literal["drop", "pad"]

_KEEP_ALL = (Repeat, Seed, Shuffle, WindowShuffle, Elements, RepeatStream, SeedStream)
"""Operations that leave out no element of their parent."""


@dataclasses.dataclass(frozen=True)
class RowChoice:
    """Which rows of each batch this process needs, and what becomes of a smaller last batch."""

    device_rows: tuple[DeviceRows, ...]
    remainder: Remainder | None

    @property
    def multiple(self) -> int:
        """The number that must divide the rows of a batch."""
        return epochs.divisor(self.device_rows)

    def global_size(self, size: int, full: int) -> int:
        """Return how many rows the global array has for a batch of `size` rows, where `full` rows are usual."""
        return size if self.remainder is None else epochs.round_up(max(size, full), self.multiple)

    def rows(self, size: int, full: int) -> np.ndarray:
        """Return the rows to read of a batch of `size` rows. Rows that are padded read the first row again."""
        whole = self.global_size(size, full)
        if whole % self.multiple or (self.remainder == "drop" and whole != size):
            return np.zeros(1, dtype=np.int64)  # the batch is dropped or refused later, by its size
        rows = epochs.union_of_rows(self.device_rows, whole)
        return np.where(rows < size, rows, 0)


def restrict_rows(stream: StreamNode, choice: RowChoice) -> StreamNode | None:
    """Return the same stream with only the rows of this process in its batches.

    None where a batch must be computed whole.

    That is so where it does not end in `batch` or `bucket`: a function of a whole batch may look at all of its rows.
    """
    local = _restrict(stream, choice)
    if local is None or choice.remainder != "drop" or not _may_have_tail(local):
        return local
    return DropTail(local, is_whole)


def _restrict(node: Any, choice: RowChoice) -> Any:
    if isinstance(node, Batches):
        return LocalRows(node, choice) if _is_row_by_row(node) else None
    if isinstance(node, BatchStream):
        return RowsOfStream(node, choice) if _as_map_node(node) is not None else None
    if not node.moves or not node.parents:
        return None
    parents = {id(parent): _restrict(parent, choice) for parent in node.parents}
    return None if None in parents.values() else replace_parents(node, lambda parent: parents[id(parent)])


def _is_row_by_row(node: Node) -> bool:
    return isinstance(node, Batches) and node.batch_function is None


def find_batches(node: Node) -> list[BatchElements | BatchStream]:
    """Return the last `batch` on each path of a pipeline, through nodes that do not change what a batch is.

    A user's `batch_fn` decides how many rows its batches have, so it is left out.
    """
    if isinstance(node, (BatchElements, BatchStream)):
        return [node] if node.batch_fn is None else []
    parents = node.parents if node.moves or node.transparent else ()
    return [batch for parent in parents for batch in find_batches(parent)]


def find_obstacle(node: Node) -> Node:
    """Return the operation because of which `restrict_rows` gives None."""
    if isinstance(node, BatchStream) and node.batch_fn is None:
        steps, _ = _steps_before(node)
        return next((step for step in steps if type(step) not in _MAP_NODES and type(step) is not SeedStream), node)
    if not node.moves or not node.parents:
        return node
    obstacles = [find_obstacle(parent) for parent in node.parents]
    return next((found for found in obstacles if not _is_row_by_row(found)), obstacles[0])


def keeps_all_batches(node: Node) -> bool:
    """Return whether it is clear that no operation after the last `batch` leaves some batches out."""
    if isinstance(node, (BatchElements, BatchStream)):
        return True
    return (node.transparent or isinstance(node, _KEEP_ALL)) and all(map(keeps_all_batches, node.parents))


def tail_of(batch: BatchElements | BatchStream) -> int | None:
    """Return how many rows the last batch has; 0 if it has as many as the others or is dropped, None if that is not
    known.
    """
    elements = batch.parent.length
    if batch.drop_remainder or (elements is not None and elements >= checks.INFINITE):
        return 0
    return None if elements is None else elements % batch.batch_size


def _may_have_tail(node: Node) -> bool:
    batches = find_batches(node)
    return not batches or any(tail_of(batch) != 0 for batch in batches)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalRows(Transparent):
    """The rows of this process of each batch of the parent, which makes batches, and the sizes of the batch."""

    choice: RowChoice

    @property
    def _batches(self) -> Batches:
        batches = skip_transparent(self.parent)  # the parent itself, unless its stages are timed
        assert isinstance(batches, Batches)
        return batches

    def plan(self, indices: np.ndarray) -> Plan:
        batches = self._batches
        edges, elements, kinds = batches.members_of(indices)
        rows: dict[tuple[int, int], np.ndarray] = {}
        chosen, sizes = [], []
        for number, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist())):
            key = high - low, batches.full_size(kinds[number])
            if key not in rows:
                rows[key] = self.choice.rows(*key)
            chosen.append(elements[low:high][rows[key]])
            sizes.append((key[0], self.choice.global_size(*key)))
        local_edges = np.cumsum([0, *map(len, chosen)])
        local = batches.plan_members(indices, local_edges, np.concatenate([elements[:0], *chosen]), kinds)
        return _WithSizes(local, sizes)

    @property
    def in_place(self) -> InPlace:
        return self.parent.in_place


@dataclasses.dataclass(slots=True)
class _WithSizes(Plan):
    batches: Plan
    sizes: list[tuple[int, int]]

    def read(self, low: int, high: int, private: bool) -> Block:
        batches = blocks.rows_of(self.batches.read(low, high, private))
        return [(batch, np.array(sizes)) for batch, sizes in zip(batches, self.sizes[low:high], strict=True)]


@dataclasses.dataclass(frozen=True, eq=False)
class RowsOfStream(OneParent, Ordered):
    """The rows of this process of each batch of a stream in which no element can be missing.

    Batch n then has the elements [n * size, (n + 1) * size), as on the map side. The states are those of the stream.
    """

    choice: RowChoice

    transparent = True
    counts_for_seeds = False

    def open(self, opener: Opener) -> Cursor:
        batch = skip_transparent(self.parent)
        assert isinstance(batch, BatchStream)
        found = _as_map_node(batch)
        assert found is not None
        node, elements, around = found
        stream: StreamNode = Elements(LocalRows(node, self.choice), elements.read_options)
        for mark in around:
            stream = dataclasses.replace(mark, parent=stream)
        return _RowsOfStreamCursor(opener.open(stream), batch, node.parent.length)

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        return self.parent.call()


_MAP_NODES: dict[type[Elementwise], type[Any]] = {
    stream_ops.MapStream: map_ops.MapElements,
    stream_ops.MapWithIndexStream: map_ops.MapElementsWithIndex,
    stream_ops.RandomMapStream: map_ops.RandomMapElements,
}


def _as_map_node(batch: BatchStream) -> tuple[BatchElements, Elements, list[OneParent]] | None:
    """Return the batches of a stream as a map node, the elements that the stream begins from, and the nodes that say
    how to run it, the first one first.

    None where an element may be dropped, or depends on more than its index.
    """
    if batch.batch_fn is not None:
        return None
    steps, around = _steps_before(batch)
    elements = steps.pop() if steps else None
    if not isinstance(elements, Elements) or elements.parent.sparse:
        return None
    node = elements.parent
    for step in reversed(steps):
        if isinstance(step, SeedStream):
            continue
        make = _MAP_NODES.get(type(step))  # type: ignore[arg-type]
        if make is None:
            return None
        node = make(node, **step.parameters())
    return BatchElements(node, batch.batch_size, batch.drop_remainder), elements, around[::-1]


def _steps_before(batch: BatchStream) -> tuple[list[StreamNode], list[OneParent]]:
    """Return the steps before a batch, up to one that has no single parent, and the nodes that say how to run them.

    Both lists begin with the node next to the batch.
    """
    steps: list[StreamNode] = []
    around: list[OneParent] = []
    node: Node = batch.parent
    while isinstance(node, StreamNode):
        if isinstance(node, OneParent) and node.transparent and node.moves:
            around.append(node)
        else:
            steps.append(node)
        if isinstance(node, Elements) or len(node.parents) != 1:
            break
        (node,) = node.parents
    return steps, around


class _RowsOfStreamCursor(Same):
    """Translates between the number of a batch and the state of a stream, which counts elements."""

    def __init__(self, parent: Cursor, batch: BatchStream, length: int):
        super().__init__(parent)
        self._size, self._length = batch.batch_size, length
        steps = reversed(_steps_before(batch)[0])
        self._counts = [step.count_key for step in steps if isinstance(step, Elementwise) and step.count_key]

    def pull(self, count: int) -> Block:
        return self.parent.pull(count)

    def state_of(self, mark: Mark) -> State:
        batches = read_count(self.parent.state_of(mark), "next_index")
        elements = min(batches * self._size, self._length)
        state: State = {"next_index": elements}
        for key in self._counts:
            state = {"parent": state, key: elements}
        return state

    def mark_of(self, state: State) -> Mark:
        counts = []
        for key in reversed(self._counts):
            counts.append(read_count(state, key))
            state = read_field(state, "parent", dict)
        elements = read_count(state, "next_index", self._length)
        if any(count != elements for count in counts) or (elements % self._size and elements != self._length):
            raise StateMismatch(
                f"This state is after {elements} elements, in the middle of a batch of {self._size}, or after elements "
                "that were dropped. It was saved with another batch size or another pipeline.",
                "next_index",
            )
        return self.parent.mark_of({"next_index": -(-elements // self._size)})


# Batches that every process computes whole.


@dataclasses.dataclass(frozen=True, eq=False)
class DropTail(Elementwise):
    """Only the batches that have as many rows as their global arrays."""

    kind = operation.FILTER_ALL
    transparent = True
    counts_for_seeds = False


@dataclasses.dataclass(frozen=True, eq=False)
class MeasureTail(Elementwise):
    """Pairs of a batch, padded where that is asked for, and its sizes."""

    kind = operation.MAP_ALL
    transparent = True
    counts_for_seeds = False


def is_whole(element: tuple[Any, np.ndarray]) -> bool:
    """Return whether a batch has as many rows as its global array."""
    size, whole = element[1].tolist()
    return size == whole


def measure_batches(stream: StreamNode, choice: RowChoice) -> StreamNode:
    """Return the batches of a stream, whole, each with its sizes; without or with a padded last batch, as asked."""
    sizes = {batch.batch_size for batch in find_batches(stream)}
    measured = MeasureTail(stream, Measure(choice, sizes.pop() if len(sizes) == 1 else 0))
    return DropTail(measured, is_whole) if choice.remainder == "drop" else measured


@dataclasses.dataclass(frozen=True)
class Measure:
    """Finds the sizes of a batch, and pads it with copies of its first row."""

    choice: RowChoice
    full: int
    """How many rows a batch usually has; 0 where that is not known."""

    def __call__(self, batch: Any) -> tuple[Any, np.ndarray]:
        size = count_rows(batch)
        if size is None:
            raise ValueError(
                "`remainder` needs batches whose arrays all have the same number of rows, and at least one; got "
                f"{trees.describe(batch)}. Leave `remainder` out, or give each array a first axis for the rows."
            )
        whole = self.choice.global_size(size, self.full)
        if self.choice.remainder == "pad" and whole > size:
            batch = trees.map_leaves(lambda leaf: _pad(np.asarray(leaf), whole), batch)
        return batch, np.array((size, whole))


def _pad(leaf: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([leaf, np.repeat(leaf[:1], size - len(leaf), axis=0)])
