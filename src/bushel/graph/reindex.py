"""Index-only operations: shuffle, slice, repeat, seed on one parent; concatenate, mix and select on several; zip."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any

import numpy as np

from bushel.base import blocks, checks, trees
from bushel.base.blocks import Block, Columns
from bushel.base.contract import optional
from bushel.base.errors import RowFailed
from bushel.base.transforms import DatasetSelectionMap, short_name
from bushel.graph.node import Computed, Epochs, MadeOf, Moved, Plan, SeveralParents, describe_failure, raise_for_row
from bushel.index import epochs, mix, shuffle, words


class IndexMap(abc.ABC):
    """A function from int64 arrays to int64 arrays: position in the child -> position in the parent."""

    @optional
    def length(self, parent_length: int) -> int:
        """How many elements the child has; by default as many as the parent."""
        return parent_length

    @abc.abstractmethod
    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray: ...

    @optional
    def epochs(self, parent: Epochs) -> Epochs:
        """How the child's epochs compare if the parent's compare as `parent` says; by default nothing is known."""
        return Epochs.DIFFERENT

    @abc.abstractmethod
    def call(self) -> str:
        """The map as the user wrote it."""


def _parameters(map: Any) -> dict[str, Any]:
    fields = {field.name: getattr(map, field.name) for field in dataclasses.fields(map)}
    return {"operation": type(map).__name__, **fields}


@dataclasses.dataclass(frozen=True)
class Shuffle(IndexMap):
    """Every epoch in an order of its own."""

    seed: int

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        return shuffle.shuffle(indices, length=parent_length, seed=self.seed)

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED)

    def call(self) -> str:
        return f"shuffle(seed={self.seed})"


@dataclasses.dataclass(frozen=True)
class WindowShuffle(IndexMap):
    """Every window of consecutive elements in an order of its own."""

    window_size: int
    seed: int

    def __post_init__(self) -> None:
        checks.positive(self.window_size, "window_size")
        checks.seed(self.seed, below=shuffle.SEED_LIMIT)

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        return shuffle.window_shuffle(indices, length=parent_length, window=self.window_size, seed=self.seed)

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED)

    def call(self) -> str:
        return f"window_shuffle({self.window_size}, seed={self.seed})"


@dataclasses.dataclass(frozen=True)
class Slice(IndexMap):
    """Every step-th position from start to stop."""

    start: int
    stop: int
    step: int

    def length(self, parent_length: int) -> int:
        return len(range(self.start, self.stop, self.step))

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        return epochs.strided(
            indices, start=self.start, step=self.step, length=self.length(parent_length), parent_length=parent_length
        )

    def epochs(self, parent: Epochs) -> Epochs:
        return parent.after_cutting()

    def call(self) -> str:
        step = "" if self.step == 1 else f", {self.step}"
        return f"slice(slice({self.start}, {self.stop}{step}))"


@dataclasses.dataclass(frozen=True, eq=False)
class Listed(IndexMap):
    """Just these positions, in this order."""

    positions: np.ndarray

    def length(self, parent_length: int) -> int:
        return len(self.positions)

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        return epochs.listed(indices, self.positions, parent_length=parent_length)

    def epochs(self, parent: Epochs) -> Epochs:
        return parent.after_cutting()

    def call(self) -> str:
        return f"slice([{len(self.positions)} positions])"


@dataclasses.dataclass(frozen=True)
class Repeat(IndexMap):
    """Several epochs as one, or no end."""

    num_epochs: int | None
    reseed_each_epoch: bool

    def length(self, parent_length: int) -> int:
        if self.num_epochs is None:
            return checks.INFINITE if parent_length else 0
        return self.num_epochs * parent_length

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        return indices if self.reseed_each_epoch else epochs.first_epoch(indices, length=parent_length)

    def epochs(self, parent: Epochs) -> Epochs:
        return parent if self.reseed_each_epoch else Epochs.SAME

    def call(self) -> str:
        count = "" if self.num_epochs is None else str(self.num_epochs)
        same = "" if self.reseed_each_epoch else "reseed_each_epoch=False"
        return f"repeat({', '.join(filter(None, (count, same)))})"


@dataclasses.dataclass(frozen=True)
class Seed(IndexMap):
    """Changes nothing but the seeds of the operations after it."""

    seed: int

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        return indices

    def epochs(self, parent: Epochs) -> Epochs:
        return parent

    def call(self) -> str:
        return f"seed({self.seed})"


@dataclasses.dataclass(frozen=True, eq=False)
class Reindex(Moved):
    """The elements of one parent at the positions that an index map gives."""

    map: IndexMap

    def find_length(self) -> int:
        return self.map.length(self.parent.length)

    def positions(self, indices: np.ndarray) -> np.ndarray:
        return self.map(indices, self.parent.length)

    @property
    def epochs(self) -> Epochs:
        return self.map.epochs(self.parent.epochs)

    @property
    def seed_for_children(self) -> int | None:
        return self.map.seed if isinstance(self.map, Seed) else None

    def parameters(self) -> dict[str, Any]:
        return _parameters(self.map)

    def call(self) -> str:
        return self.map.call()


class SelectMap(abc.ABC):
    """A function from positions to (which parent, position in it)."""

    @abc.abstractmethod
    def length(self, parent_lengths: tuple[int, ...]) -> int: ...

    @abc.abstractmethod
    def __call__(self, indices: np.ndarray, parent_lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]: ...

    @property
    @optional
    def whole_epochs(self) -> bool:
        """Whether one epoch has exactly one epoch of each parent; by default not."""
        return False

    @abc.abstractmethod
    def call(self) -> str:
        """The map as the user wrote it."""


@dataclasses.dataclass(frozen=True)
class Concatenate(SelectMap):
    """One parent after the other."""

    def length(self, parent_lengths: tuple[int, ...]) -> int:
        return sum(parent_lengths)

    def __call__(self, indices: np.ndarray, parent_lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return mix.concatenated(indices, parent_lengths)

    @property
    def whole_epochs(self) -> bool:
        return True

    def call(self) -> str:
        return "concatenate"


@dataclasses.dataclass(frozen=True)
class Mix(SelectMap):
    """Parents in proportion to integer weights, in a fixed pattern."""

    weights: tuple[int, ...]

    def length(self, parent_lengths: tuple[int, ...]) -> int:
        return mix.mixed_length(parent_lengths, self.weights)

    def __call__(self, indices: np.ndarray, parent_lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return mix.mixed(indices, self.weights)

    def call(self) -> str:
        return f"mix(weights={list(self.weights)})"


@dataclasses.dataclass(frozen=True, eq=False)
class SelectByUser(SelectMap):
    """A user's DatasetSelectionMap, which is asked index by index."""

    selection_map: DatasetSelectionMap

    def length(self, parent_lengths: tuple[int, ...]) -> int:
        return len(self.selection_map)

    def __call__(self, indices: np.ndarray, parent_lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        numbers = indices.tolist()
        left = iter(numbers)
        try:
            pairs = [self._choose(index, len(parent_lengths)) for index in left]
        except Exception as error:
            raise_for_row(error, len(numbers), left, lambda row: describe_failure(self.call(), numbers[row], ()))
        return words.array([which for which, _ in pairs]), words.array([position for _, position in pairs])

    def _choose(self, index: int, count: int) -> tuple[int, int]:
        which, position = self.selection_map[index]
        if not 0 <= which < count:
            raise IndexError(f"it chose dataset {which} of {count}")
        return which, position

    def call(self) -> str:
        return f"select_from_datasets({short_name(self.selection_map)})"


@dataclasses.dataclass(frozen=True, eq=False)
class Select(SeveralParents):
    """Elements of several parents in one index space."""

    map: SelectMap

    one_to_one = True
    moves = True

    def find_length(self) -> int:
        return self.map.length(self._lengths)

    @functools.cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(part.length for part in self.parts)

    def plan(self, indices: np.ndarray) -> Plan:
        return _SelectedLater(self, indices) if isinstance(self.map, SelectByUser) else self.route(indices)

    def route(self, indices: np.ndarray) -> Plan:
        """Plans of the parents, and which of them serves which element."""
        which, positions = self.map(indices, self._lengths)
        counts = np.bincount(which)
        used = np.flatnonzero(counts).tolist()
        if len(used) == 1:
            return self.parts[used[0]].plan(positions)
        order = np.argsort(which.astype(np.uint16) if len(counts) < 1 << 16 else which, kind="stable")
        ends = np.cumsum(counts).tolist()
        rows = {number: order[ends[number] - counts[number] : ends[number]] for number in used}
        plans = {number: self.parts[number].plan(positions[rows[number]]) for number in used}
        computed = [plan.values for plan in plans.values() if isinstance(plan, Computed)]
        numbers = [values for values in computed if isinstance(values, np.ndarray)]
        if len(numbers) < len(plans):
            return _Selected(which, rows, plans)
        merged = np.empty(len(indices), dtype=np.int64)
        for part, values in zip(used, numbers):
            merged[rows[part]] = values
        return Computed(merged)

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return np.arange(len(indices)), *self.map(indices, self._lengths)

    @property
    def epochs(self) -> Epochs:
        return min(part.epochs for part in self.parts) if self.map.whole_epochs else Epochs.DIFFERENT

    def parameters(self) -> dict[str, Any]:
        return _parameters(self.map)

    def call(self) -> str:
        return self.map.call()


@dataclasses.dataclass(slots=True)
class _SelectedLater(Plan):
    """Elements that a user's function selects. It runs when rows are read and not ahead of that."""

    node: Select
    indices: np.ndarray

    def read(self, low: int, high: int, private: bool) -> Block:
        return self.node.route(self.indices[low:high]).read(0, high - low, private)


@dataclasses.dataclass(slots=True)
class _Selected(Plan):
    which: np.ndarray
    rows: dict[int, np.ndarray]
    """For each parent that serves some rows, these rows, in order."""
    plans: dict[int, Plan]
    singles: tuple[list[int], list[int]] | None = None
    """For each row its parent and its place in that parent's plan, once rows are read one by one."""

    def read(self, low: int, high: int, private: bool) -> Block:
        if high - low == 1:
            if self.singles is None:
                self.singles = self._find_singles()
            which, places = self.singles
            place = places[low]
            return self.plans[which[low]].read(place, place + 1, private)
        parts: list[tuple[np.ndarray, Block]] = []
        edges = np.array((low, high))
        for number, rows in self.rows.items():
            first, last = rows.searchsorted(edges).tolist()
            if first == last:
                continue
            here = rows[first:last] - low
            try:
                parts.append((here, self.plans[number].read(first, last, private)))
            except RowFailed as failed:
                raise RowFailed(int(here[failed.row]), failed.error) from failed.error
        if len(parts) == 1:
            return parts[0][1]
        columns = [block for _, block in parts if isinstance(block, Columns)]
        if len(columns) == len(parts) and blocks.are_alike(columns) and all(c.present is None for c in columns):
            return _scatter(columns, [here for here, _ in parts], high - low)
        merged: list[Any] = [None] * (high - low)
        for here, block in parts:
            for place, row in zip(here.tolist(), blocks.rows_of(block), strict=True):
                merged[place] = row
        return merged

    def _find_singles(self) -> tuple[list[int], list[int]]:
        places = np.empty(len(self.which), dtype=np.int64)
        for rows in self.rows.values():
            places[rows] = np.arange(len(rows))
        return self.which.tolist(), places.tolist()


def _scatter(columns: list[Columns], places: list[np.ndarray], length: int) -> Columns:
    def scatter(*leaves: np.ndarray) -> np.ndarray:
        out = np.empty((length, *leaves[0].shape[1:]), leaves[0].dtype)
        for leaf, place in zip(leaves, places, strict=True):
            out[place] = leaf
        return out

    return Columns(trees.map_leaves(scatter, *(block.tree for block in columns)), length)


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


@dataclasses.dataclass(slots=True)
class _Zipped(Plan):
    plans: list[Plan]

    def read(self, low: int, high: int, private: bool) -> Block:
        parts = [plan.read(low, high, private) for plan in self.plans]
        columns = [block for block in parts if isinstance(block, Columns) and block.present is None]
        if len(columns) == len(parts):
            return Columns(tuple(block.tree for block in columns), high - low)
        return list(zip(*map(blocks.rows_of, parts), strict=True))
