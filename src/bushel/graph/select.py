"""Elements chosen by a column: dense filters, weighted draws, orders by value. Index arithmetic, with exact lengths.

A table for an epoch is made of the values in the order of that epoch. Where epochs are the same it is made once; after
a shuffle each epoch has its own, made when it is first asked for and never part of a state.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.base.checks import INFINITE
from bushel.graph.columns import Column
from bushel.graph.node import Epochs, MadeOf, MapNode, Plan, one_each
from bushel.graph.reindex import Reindex, Repeat
from bushel.index import order, words

_KEPT_EPOCHS = 4


class EpochTables:
    """A table per epoch, the last few of them kept. Where one table serves all epochs it travels with the pipeline."""

    def __init__(self, make: Callable[[int], Any], *, one_for_all: bool):
        self._make, self._one_for_all = make, one_for_all
        self._tables: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, epoch: int) -> Any:
        epoch = 0 if self._one_for_all else epoch
        found = self._tables.get(epoch)
        if found is None:
            with self._lock:
                found = self._tables.get(epoch)
                if found is None:
                    found = self._make(epoch)
                    while len(self._tables) >= _KEPT_EPOCHS:
                        del self._tables[next(iter(self._tables))]
                    self._tables[epoch] = found
        return found

    def __reduce__(self) -> Any:
        return _epoch_tables, (self._make, self._one_for_all, self._tables if self._one_for_all else {})


def _epoch_tables(make: Callable[[int], Any], one_for_all: bool, tables: dict[int, Any]) -> EpochTables:
    made = EpochTables(make, one_for_all=one_for_all)
    made._tables.update(tables)
    return made


def by_epoch(epoch: np.ndarray, offset: np.ndarray, pick: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """`pick(epoch, offsets)` of all offsets, each with its own epoch."""
    if not len(epoch):
        return offset
    first = int(epoch[0])
    if (epoch == first).all():
        return pick(first, offset)
    picked = np.empty_like(offset)
    for number in np.unique(epoch).tolist():
        here = epoch == number
        picked[here] = pick(number, offset[here])
    return picked


class Rule(abc.ABC):
    """How the positions of an epoch follow from the values of its elements."""

    @abc.abstractmethod
    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        """What is worth remembering of one epoch."""

    @abc.abstractmethod
    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        """Places in the epoch after the rule -> places in the epoch before it."""

    @property
    def reseeds(self) -> bool:
        """Whether the table differs from epoch to epoch although the values do not."""
        return False

    @property
    def steady_length(self) -> bool:
        """Whether an epoch is as long as its table whatever the values are."""
        return True

    @abc.abstractmethod
    def epochs(self, parent: Epochs) -> Epochs:
        """How epochs compare after it, for a parent whose epochs compare as `parent` says."""

    @abc.abstractmethod
    def call(self, column: Column, length: int) -> str:
        """How it reads, over `length` elements."""


@dataclasses.dataclass(frozen=True)
class Where(Rule):
    """The elements with a true value, in order."""

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return np.flatnonzero(values)

    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        return table[offsets]

    @property
    def steady_length(self) -> bool:
        return False

    def epochs(self, parent: Epochs) -> Epochs:
        return parent

    def call(self, column: Column, length: int) -> str:
        return f"where(mask of {length})"


@dataclasses.dataclass(frozen=True)
class Draw(Rule):
    """Elements drawn again and again, in proportion to their values."""

    seed: int

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return np.cumsum(values, dtype=np.float64)

    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        return order.drawn(offsets, table, seed=self.seed, epoch=epoch)

    def epochs(self, parent: Epochs) -> Epochs:
        return Epochs.DIFFERENT

    def call(self, column: Column, length: int) -> str:
        return f"sample(weights of {length}, seed={self.seed})"


@dataclasses.dataclass(frozen=True)
class WeightedShuffle(Rule):
    """Each element with a value above zero once per epoch, those with large values early."""

    seed: int

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return order.weighted_order(values, seed=self.seed, epoch=epoch)

    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        return table[offsets]

    @property
    def reseeds(self) -> bool:
        return True

    @property
    def steady_length(self) -> bool:
        return False

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED)

    def call(self, column: Column, length: int) -> str:
        return f"sample(weights of {length}, seed={self.seed}, replacement=False)"


@dataclasses.dataclass(frozen=True)
class OrderBy(Rule):
    """Each epoch sorted by value, with some noise."""

    noise: float
    seed: int

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return order.sorted_order(values, noise=self.noise, seed=self.seed, epoch=epoch)

    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        return table[offsets]

    @property
    def reseeds(self) -> bool:
        return self.noise > 0

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED) if self.noise else parent

    def call(self, column: Column, length: int) -> str:
        noise = f", noise={self.noise:g}, seed={self.seed}" if self.noise else ""
        return f"order_by({column.dtype} of {length}{noise})"


@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(MapNode):
    """The elements of one parent as a rule on a column chooses them, epoch by epoch."""

    parent: MapNode
    column: Column
    rule: Rule
    tables: EpochTables

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return (self.parent,)

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return len(self.tables(0))

    def _positions(self, indices: np.ndarray) -> np.ndarray:
        epoch, offset = words.split(indices, self.length, to=self.parent.length)
        return by_epoch(epoch, offset, lambda number, some: self.rule.pick(self.tables(number), some, number)) + (
            epoch * self.parent.length
        )

    def plan(self, indices: np.ndarray) -> Plan:
        return self.parent.plan(self._positions(indices))

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return one_each(self._positions(indices))

    @property
    def moves(self) -> bool:
        return True

    @property
    def epochs(self) -> Epochs:
        return self.rule.epochs(self.parent.epochs)

    def element_spec(self) -> Any:
        return self.parent.element_spec()

    def parameters(self) -> dict[str, Any]:
        return {"operation": type(self.rule).__name__, **vars(self.rule), "column": self.column.digest}

    def call(self) -> str:
        return self.rule.call(self.column, self.parent.length)


@dataclasses.dataclass(frozen=True, eq=False)
class _TableOf:
    """The table of an epoch. It keeps to the nodes that the column knows: those of the pipeline may be copies."""

    parent: MapNode
    column: Column
    rule: Rule

    def __call__(self, epoch: int) -> np.ndarray:
        return self.rule.table(self.column.of_epoch(self.parent, epoch), epoch)


def under_endless_repeat(node: MapNode, build: Callable[[MapNode], MapNode]) -> MapNode:
    """`build` of a node; of one epoch of it, repeated, where it is one epoch repeated without end."""
    if node.length < INFINITE:
        return build(node)
    if not isinstance(node, Reindex) or not isinstance(node.map, Repeat):
        raise ValueError(
            f"{node.call()} has no end, so it has no epochs to choose from. Choose before you mix or repeat."
        )
    epoch = node.parent if node.map.reseed_each_epoch else Reindex(node.parent, Repeat(1, False))
    return Reindex(build(epoch), Repeat(None, True))


def chosen(node: MapNode, column: Column, rule: Rule) -> MapNode:
    """A rule on a column over a node whose epochs it cannot make differ in length."""
    if not rule.steady_length and node.epochs is Epochs.DIFFERENT:
        raise ValueError(
            f"Epochs of {node.call()} are made of different records, so after `{rule.call(column, node.length)}` "
            "each would have another length. Do it earlier: before slicing a shuffled dataset, and on each part of a "
            "mixture before mixing."
        )
    same = node.epochs is Epochs.SAME and not rule.reseeds
    return Chosen(node, column, rule, EpochTables(_TableOf(node, column, rule), one_for_all=same))
