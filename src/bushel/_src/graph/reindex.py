"""Index-only operations: shuffle, slice, repeat, seed on one parent; concatenate, mix and select on several; zip."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.state_names import in_states, overridable
from bushel._src.base.transforms import DatasetSelectionMap, short_name
from bushel._src.graph.many_plans import find_each, plan_each, plan_many
from bushel._src.graph.node import (
    Epochs,
    FindMany,
    MadeOf,
    MapNode,
    Moved,
    Plan,
    PlanMany,
    SeveralParents,
    call_for_each,
)
from bushel._src.index import epochs, mix, shuffle
from bushel._src.index.shuffle import ManyShuffles

_FEW_PARENTS = 16


class Reindex(Moved):
    """The elements of one parent at the positions that index arithmetic gives."""


@in_states("shuffle")
@dataclasses.dataclass(frozen=True, eq=False)
class Shuffle(Reindex):
    """Every epoch in an order of its own."""

    seed: int

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        return shuffle.shuffle(indices, length=self.parent.length, seed=self.seed)

    @classmethod
    def join_positions(cls, nodes: Sequence[Shuffle]) -> FindMany:
        return ManyShuffles([node.parent.length for node in nodes], [node.seed for node in nodes]).shuffle

    @property
    def epochs(self) -> Epochs:
        return min(self.parent.epochs, Epochs.SHUFFLED)

    def call(self) -> str:
        return f"shuffle(seed={self.seed})"


@in_states("window_shuffle")
@dataclasses.dataclass(frozen=True, eq=False)
class WindowShuffle(Reindex):
    """Every window of consecutive elements in an order of its own."""

    window_size: int
    seed: int

    def __post_init__(self) -> None:
        checks.positive(self.window_size, "window_size")
        checks.seed(self.seed, below=shuffle.SEED_LIMIT)

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        return shuffle.window_shuffle(indices, length=self.parent.length, window=self.window_size, seed=self.seed)

    @property
    def epochs(self) -> Epochs:
        return min(self.parent.epochs, Epochs.SHUFFLED)

    def call(self) -> str:
        return f"window_shuffle({self.window_size}, seed={self.seed})"


@in_states("slice")
@dataclasses.dataclass(frozen=True, eq=False)
class Slice(Reindex):
    """Every step-th position from start to stop."""

    start: int
    stop: int
    step: int

    def find_length(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        length, parent_length = self.length, self.parent.length
        return epochs.strided(indices, start=self.start, step=self.step, length=length, parent_length=parent_length)

    @classmethod
    def join_positions(cls, nodes: Sequence[Slice]) -> FindMany:
        starts, steps = np.array([node.start for node in nodes]), np.array([node.step for node in nodes])
        lengths, of_parents = (
            np.array([node.length for node in nodes]),
            np.array([node.parent.length for node in nodes]),
        )
        longest = int(of_parents.max())

        def find(which: np.ndarray, indices: np.ndarray) -> np.ndarray:
            epoch, offset = np.divmod(indices, lengths[which])
            if (int(np.abs(epoch).max(initial=0)) + 1) * longest > checks.INFINITE:
                return find_each(nodes, which, indices)  # some position may need more than 64 bits
            return starts[which] + offset * steps[which] + epoch * of_parents[which]

        return find

    @property
    def epochs(self) -> Epochs:
        return self.parent.epochs.after_cutting()

    def call(self) -> str:
        step = "" if self.step == 1 else f", {self.step}"
        stop = None if checks.is_endless(abs(self.stop)) else self.stop
        return f"slice(slice({self.start}, {stop}{step}))"


@in_states("listed")
@dataclasses.dataclass(frozen=True, eq=False)
class Listed(Reindex):
    """Just these positions, in this order."""

    positions: np.ndarray

    def find_length(self) -> int:
        return len(self.positions)

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        return epochs.listed(indices, self.positions, parent_length=self.parent.length)

    @property
    def epochs(self) -> Epochs:
        return self.parent.epochs.after_cutting()

    def call(self) -> str:
        return f"slice([{len(self.positions)} positions])"


def select_positions(node: MapNode, positions: slice | Sequence[int]) -> Slice | Listed:
    """Return the elements of a slice, or at a list of positions of one epoch. Negative positions count from the end."""
    if not isinstance(positions, slice):
        return Listed(node, _check_positions(positions, node.length))
    if positions.step == 0:
        raise ValueError(f"A slice needs a step other than zero, got {positions}.")
    return Slice(node, *positions.indices(node.length))


def _check_positions(positions: Any, length: int) -> np.ndarray:
    try:
        numbers = np.array([checks.integer(position, "a position") for position in positions], dtype=np.int64)
    except TypeError as error:
        raise TypeError(f"slice takes a slice or a sequence of integers; {error}") from None
    outside = numbers[(numbers < -length) | (numbers >= length)]
    if len(outside):
        raise IndexError(f"Position {outside[0]} is out of range for a dataset of length {length}.")
    return numbers % length if len(numbers) else numbers


@in_states("repeat")
@dataclasses.dataclass(frozen=True, eq=False)
class Repeat(Reindex):
    """Several epochs as one, or no end."""

    num_epochs: int | None
    reseed_each_epoch: bool

    def find_length(self) -> int:
        length = self.parent.length
        if self.num_epochs is None:
            return checks.INFINITE if length else 0
        return self.num_epochs * length

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        return indices if self.reseed_each_epoch else epochs.first_epoch(indices, length=self.parent.length)

    @classmethod
    def join_positions(cls, nodes: Sequence[Repeat]) -> FindMany | None:
        return _keep_indices if all(node.reseed_each_epoch for node in nodes) else None

    @property
    def epochs(self) -> Epochs:
        return self.parent.epochs if self.reseed_each_epoch else Epochs.SAME

    def call(self) -> str:
        count = "" if self.num_epochs is None else str(self.num_epochs)
        same = "" if self.reseed_each_epoch else "reseed_each_epoch=False"
        return f"repeat({', '.join(filter(None, (count, same)))})"


def repeat(node: MapNode, num_epochs: int | None, reseed_each_epoch: bool) -> Repeat:
    """Return several epochs of a node that has an end, or endlessly many."""
    if num_epochs is not None:
        num_epochs = checks.positive(num_epochs, "num_epochs")
    if node.length >= checks.INFINITE:
        raise ValueError(f"Repeating already infinite dataset {node.call()} does nothing.")
    return Repeat(node, num_epochs, reseed_each_epoch)


@in_states("seed")
@dataclasses.dataclass(frozen=True, eq=False)
class Seed(Reindex):
    """Changes nothing but the seeds of the operations after it."""

    seed: int

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        return indices

    @classmethod
    def join_positions(cls, nodes: Sequence[Seed]) -> FindMany:
        return _keep_indices

    @property
    def seed_for_children(self) -> int | None:
        return self.seed

    def call(self) -> str:
        return f"seed({self.seed})"


def _keep_indices(which: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return indices


_NOT_SENT = ("_plan_parts", "_sizes_and_ends")
"""What `Select` makes again in another process."""


class Select(SeveralParents):
    """Elements of several parents in one index space: a subclass says which element is whose."""

    one_to_one = True
    moves = True

    @property
    @overridable
    def whole_epochs(self) -> bool:
        """Whether one epoch has exactly one epoch of each parent; by default not."""
        return False

    @abc.abstractmethod
    def choose(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each element which parent it is of, and the position in that parent."""

    @functools.cached_property
    def lengths(self) -> tuple[int, ...]:
        """How long the parents are."""
        return tuple(part.length for part in self.parts)

    @overridable
    def plan(self, indices: np.ndarray) -> Plan:
        """By default all that follows from the indices is worked out at once."""
        return self.route(indices)

    def route(self, indices: np.ndarray) -> Plan:
        """Return plans of the parents, and which of them serves which element."""
        which, positions = self.choose(indices)
        used = which if len(which) == 1 else np.flatnonzero(np.bincount(which))
        if len(used) == 1:
            return self.parts[used[0]].plan(positions)
        if len(used) > _FEW_PARENTS and positions.dtype != object:
            return self._plan_parts(which, positions)
        return plan_each(self.parts, which, positions)

    @functools.cached_property
    def _plan_parts(self) -> PlanMany:
        return plan_many(self.parts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _NOT_SENT}

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return np.arange(len(indices)), *self.choose(indices)

    @property
    def epochs(self) -> Epochs:
        return min(part.epochs for part in self.parts) if self.whole_epochs else Epochs.DIFFERENT


@in_states("concatenate")
class Concatenate(Select):
    """One parent after the other."""

    @property
    def whole_epochs(self) -> bool:
        return True

    def find_length(self) -> int:
        return sum(self.lengths)

    def choose(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return mix.concatenated(indices, *self._sizes_and_ends)

    @functools.cached_property
    def _sizes_and_ends(self) -> tuple[np.ndarray, np.ndarray]:
        sizes = np.array(self.lengths, dtype=np.int64)
        return sizes, np.cumsum(sizes)

    def call(self) -> str:
        return "concatenate"


def concatenate(parts: tuple[MapNode, ...]) -> Concatenate:
    """Return parts one after the other. None of them may be endless."""
    for part in parts:
        if part.length >= checks.INFINITE:
            raise ValueError(f"Cannot concatenate infinite datasets. {part.call()} is infinite.")
    return Concatenate(parts)


@in_states("mix")
@dataclasses.dataclass(frozen=True, eq=False)
class Mix(Select):
    """Parents in proportion to integer weights, in a fixed pattern."""

    weights: tuple[int, ...]

    def find_length(self) -> int:
        return mix.mixed_length(self.lengths, self.weights)

    def choose(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return mix.mixed(indices, self.weights)

    def call(self) -> str:
        return f"mix(weights={list(self.weights)})"


@in_states("select")
@dataclasses.dataclass(frozen=True, eq=False)
class SelectByUser(Select):
    """A user's DatasetSelectionMap, which is asked index by index, and not before rows are read."""

    selection_map: DatasetSelectionMap

    def find_length(self) -> int:
        return len(self.selection_map)

    def plan(self, indices: np.ndarray) -> Plan:
        return _SelectedLater(self, indices)

    def choose(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = call_for_each(self._choose_one, indices.tolist(), self.call())
        return epochs.array([which for which, _ in pairs]), epochs.array([position for _, position in pairs])

    def _choose_one(self, index: int) -> tuple[int, int]:
        which, position = self.selection_map[index]
        if not 0 <= which < len(self.parts):
            raise IndexError(f"The selection map chose dataset {which}, but there are {len(self.parts)} datasets.")
        return which, position

    def call(self) -> str:
        return f"select_from_datasets({short_name(self.selection_map)})"


@dataclasses.dataclass(slots=True)
class _SelectedLater(Plan):
    """Elements that a user's function selects. It runs when rows are read and not ahead of that."""

    node: Select
    indices: np.ndarray

    def read(self, low: int, high: int, private: bool) -> Block:
        return self.node.route(self.indices[low:high]).read(0, high - low, private)


@in_states("zip")
@dataclasses.dataclass(frozen=True, eq=False)
class Zip(SeveralParents):
    """Tuples of the elements of several parents at the same index."""

    def find_length(self) -> int:
        return self.parts[0].length

    def plan(self, indices: np.ndarray) -> Plan:
        return _Zipped([part.plan(indices) for part in self.parts])

    def made_of(self, indices: np.ndarray) -> MadeOf:
        count = len(self.parts)
        rows = np.repeat(np.arange(len(indices)), count)
        return rows, np.tile(np.arange(count), len(indices)), np.repeat(indices, count)

    @property
    def epochs(self) -> Epochs:
        return min(part.epochs for part in self.parts).after_cutting()

    def element_spec(self) -> Any:
        return tuple(part.element_spec() for part in self.parts)

    def call(self) -> str:
        return "zip"


def zip_parts(parts: tuple[MapNode, ...]) -> Zip:
    """Return tuples of the elements of several parts, which must have one length."""
    lengths = [part.length for part in parts]
    if len(set(lengths)) != 1:
        shown = ", ".join("endless" if checks.is_endless(length) else str(length) for length in lengths)
        raise ValueError(
            f"All parents must have the same length. Got lengths [{shown}]. Cut the longer ones: `ds[:length]`."
        )
    return Zip(parts)


@dataclasses.dataclass(slots=True)
class _Zipped(Plan):
    plans: list[Plan]

    def read(self, low: int, high: int, private: bool) -> Block:
        return zip_blocks([plan.read(low, high, private) for plan in self.plans], high - low)


def zip_blocks(parts: list[Block], count: int) -> Block:
    """Return tuples of the elements of several blocks of `count` elements; columns stay columns."""
    columns = [block.tree for block in parts if isinstance(block, Columns) and block.present is None]
    if len(columns) == len(parts):
        return Columns(tuple(columns), count)
    return list(zip(*map(blocks.rows_of, parts), strict=True))
