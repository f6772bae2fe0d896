"""Index-only operations: shuffle, slice, repeat, seed on one parent; concatenate, mix, select on several; zip."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.base import blocks, checks, trees
from bushel.base.blocks import Block, Columns
from bushel.base.errors import RowFailed, located
from bushel.base.transforms import DatasetSelectionMap, short_name
from bushel.graph.node import Epochs, InPlace, MadeOf, MapNode, Plan, Reckoned, one_each, told
from bushel.index import epochs, mix, shuffle, words


class IndexMap(abc.ABC):
    """A function from int64 arrays to int64 arrays: position in the child -> position in the parent."""

    @abc.abstractmethod
    def length(self, parent_length: int) -> int: ...

    @abc.abstractmethod
    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray: ...

    def epochs(self, parent: Epochs) -> Epochs:
        """How epochs compare after it, for a parent whose epochs compare as `parent` says."""
        return Epochs.DIFFERENT

    @abc.abstractmethod
    def call(self) -> str: ...


def _parameters(map: Any) -> dict[str, Any]:
    fields = {field.name: getattr(map, field.name) for field in dataclasses.fields(map)}
    return {"operation": type(map).__name__, **fields}


@dataclasses.dataclass(frozen=True)
class Shuffle(IndexMap):
    """Every epoch in an order of its own."""

    seed: int

    def length(self, parent_length: int) -> int:
        return parent_length

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

    def length(self, parent_length: int) -> int:
        return parent_length

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
        return parent if parent is Epochs.SAME else Epochs.DIFFERENT

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
        return parent if parent is Epochs.SAME else Epochs.DIFFERENT

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
    """Changes nothing but the seeds of what follows."""

    seed: int

    def length(self, parent_length: int) -> int:
        return parent_length

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        return indices

    def epochs(self, parent: Epochs) -> Epochs:
        return parent

    def call(self) -> str:
        return f"seed({self.seed})"


@dataclasses.dataclass(frozen=True, eq=False)
class Reindex(MapNode):
    """The elements of one parent, elsewhere."""

    parent: MapNode
    map: IndexMap

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return (self.parent,)

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return self.map.length(self.parent.length)

    def plan(self, indices: np.ndarray) -> Plan:
        return self.parent.plan(self.map(indices, self.parent.length))

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return one_each(self.map(indices, self.parent.length))

    @property
    def moves(self) -> bool:
        return True

    @property
    def epochs(self) -> Epochs:
        return self.map.epochs(self.parent.epochs)

    @property
    def in_place(self) -> InPlace:
        return self.parent.in_place

    def element_spec(self) -> Any:
        return self.parent.element_spec()

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
    def whole_epochs(self) -> bool:
        """Whether one epoch has one epoch of each parent, all of it."""
        return False

    @abc.abstractmethod
    def call(self) -> str: ...


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
    """A user's DatasetSelectionMap: asked index by index."""

    selection_map: DatasetSelectionMap

    def length(self, parent_lengths: tuple[int, ...]) -> int:
        return len(self.selection_map)

    def __call__(self, indices: np.ndarray, parent_lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        pairs = []
        for row, index in enumerate(indices.tolist()):
            try:
                which, position = self.selection_map[index]
                if not 0 <= which < len(parent_lengths):
                    raise IndexError(f"it chose dataset {which} of {len(parent_lengths)}")
            except Exception as error:
                raise RowFailed(row, located(error, told(self.call(), index, ()))) from error
            pairs.append((which, position))
        return words.array([which for which, _ in pairs]), words.array([position for _, position in pairs])

    def call(self) -> str:
        return f"select_from_datasets({short_name(self.selection_map)})"


@dataclasses.dataclass(frozen=True, eq=False)
class Select(MapNode):
    """Elements of several parents in one index space."""

    parts: tuple[MapNode, ...]
    map: SelectMap

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return self.parts

    @property
    def joins(self) -> bool:
        return True

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return self.map.length(self._lengths)

    @functools.cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(part.length for part in self.parts)

    def plan(self, indices: np.ndarray) -> Plan:
        return _SelectedLater(self, indices) if isinstance(self.map, SelectByUser) else self.routed(indices)

    def routed(self, indices: np.ndarray) -> Plan:
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
        values_of = [plan.values for plan in plans.values() if isinstance(plan, Reckoned)]
        reckoned = [values for values in values_of if isinstance(values, np.ndarray)]
        if len(reckoned) < len(plans):
            return _Selected(which, rows, plans)
        values = np.empty(len(indices), dtype=np.int64)
        for some, number in zip(reckoned, used):
            values[rows[number]] = some
        return Reckoned(values)

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return np.arange(len(indices)), *self.map(indices, self._lengths)

    @property
    def moves(self) -> bool:
        return True

    @property
    def epochs(self) -> Epochs:
        return min(part.epochs for part in self.parts) if self.map.whole_epochs else Epochs.DIFFERENT

    def element_spec(self) -> Any:
        return self.parts[0].element_spec()

    def parameters(self) -> dict[str, Any]:
        return _parameters(self.map)

    def call(self) -> str:
        return self.map.call()


@dataclasses.dataclass(slots=True)
class _SelectedLater(Plan):
    """Elements routed by a user's function, which runs for what is asked and not ahead."""

    node: Select
    indices: np.ndarray

    def take(self, low: int, high: int) -> Block:
        return self.node.routed(self.indices[low:high]).take(0, high - low)

    def look(self, low: int, high: int) -> Block:
        return self.node.routed(self.indices[low:high]).look(0, high - low)


@dataclasses.dataclass(slots=True)
class _Selected(Plan):
    which: np.ndarray
    rows: dict[int, np.ndarray]
    """For each parent that serves some, the rows that it serves, in order."""
    plans: dict[int, Plan]
    singles: tuple[list[int], list[int]] | None = None
    """For each row its parent and its place in the plan of that, once rows are taken one by one."""

    def take(self, low: int, high: int) -> Block:
        return self._read(lambda plan: plan.take, low, high)

    def look(self, low: int, high: int) -> Block:
        return self._read(lambda plan: plan.look, low, high)

    def _read(self, how: Callable[[Plan], Callable[[int, int], Block]], low: int, high: int) -> Block:
        if high - low == 1:
            if self.singles is None:
                self.singles = self._singles()
            which, places = self.singles
            place = places[low]
            return how(self.plans[which[low]])(place, place + 1)
        found: list[tuple[np.ndarray, Block]] = []
        edges = np.array((low, high))
        for number, rows in self.rows.items():
            first, last = rows.searchsorted(edges).tolist()
            if first == last:
                continue
            here = rows[first:last] - low
            try:
                found.append((here, how(self.plans[number])(first, last)))
            except RowFailed as failed:
                raise RowFailed(int(here[failed.row]), failed.error) from failed.error
        if len(found) == 1:
            return found[0][1]
        columns = [block for _, block in found if isinstance(block, Columns)]
        if len(columns) == len(found) and blocks.alike(columns) and all(c.present is None for c in columns):
            return _scattered(columns, [here for here, _ in found], high - low)
        merged: list[Any] = [None] * (high - low)
        for here, block in found:
            for place, row in zip(here.tolist(), blocks.rows_of(block), strict=True):
                merged[place] = row
        return merged

    def _singles(self) -> tuple[list[int], list[int]]:
        places = np.empty(len(self.which), dtype=np.int64)
        for rows in self.rows.values():
            places[rows] = np.arange(len(rows))
        return self.which.tolist(), places.tolist()


def _scattered(columns: list[Columns], places: list[np.ndarray], length: int) -> Columns:
    def scatter(*leaves: np.ndarray) -> np.ndarray:
        out = np.empty((length, *leaves[0].shape[1:]), leaves[0].dtype)
        for leaf, place in zip(leaves, places, strict=True):
            out[place] = leaf
        return out

    return Columns(trees.map_leaves(scatter, *(block.tree for block in columns)), length)


@dataclasses.dataclass(frozen=True, eq=False)
class Zip(MapNode):
    """Tuples of the elements of several parents at the same index."""

    parts: tuple[MapNode, ...]

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return self.parts

    @property
    def joins(self) -> bool:
        return True

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return self.parts[0].length

    def plan(self, indices: np.ndarray) -> Plan:
        return _Zipped([part.plan(indices) for part in self.parts])

    def made_of(self, indices: np.ndarray) -> MadeOf:
        count = len(self.parts)
        rows = np.repeat(np.arange(len(indices)), count)
        return rows, np.tile(np.arange(count), len(indices)), np.repeat(indices, count)

    @property
    def epochs(self) -> Epochs:
        return Epochs.SAME if all(part.epochs is Epochs.SAME for part in self.parts) else Epochs.DIFFERENT

    def element_spec(self) -> Any:
        return tuple(part.element_spec() for part in self.parts)

    def call(self) -> str:
        return "zip"


@dataclasses.dataclass(slots=True)
class _Zipped(Plan):
    plans: list[Plan]

    def take(self, low: int, high: int) -> Block:
        return self._zip([plan.take(low, high) for plan in self.plans], high - low)

    def look(self, low: int, high: int) -> Block:
        return self._zip([plan.look(low, high) for plan in self.plans], high - low)

    @staticmethod
    def _zip(found: list[Block], count: int) -> Block:
        columns = [block for block in found if isinstance(block, Columns) and block.present is None]
        if len(columns) == len(found):
            return Columns(tuple(block.tree for block in columns), count)
        return list(zip(*map(blocks.rows_of, found), strict=True))
