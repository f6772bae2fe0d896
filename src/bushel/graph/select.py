"""Elements chosen by a column: dense filters, weighted draws, orders by value. Index arithmetic, with exact lengths.

The table of an epoch is made of the values in the order of that epoch. Where all epochs are the same, one table serves
all. After a shuffle each epoch has a table of its own, which is made when it is first needed and is in no state.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from bushel.base.checks import INFINITE
from bushel.base.contract import optional
from bushel.base.state_names import in_states, name_of
from bushel.graph.columns import Column
from bushel.graph.node import Epochs, MapNode, Moved
from bushel.graph.reindex import Repeat
from bushel.index import order, words

_KEPT_EPOCHS = 4


class EpochTables:
    """A table per epoch, of which the last few are kept. A table for all epochs is pickled with the pipeline."""

    def __init__(self, make: Callable[[int], Any], one_for_all: bool, tables: dict[int, Any] | None = None):
        self._make, self._one_for_all = make, one_for_all
        self._tables: dict[int, Any] = tables or {}
        self._lock = threading.Lock()

    def __call__(self, epoch: int) -> Any:
        epoch = 0 if self._one_for_all else epoch
        table = self._tables.get(epoch)
        if table is not None:
            return table
        with self._lock:
            if epoch not in self._tables:  # another thread may have made it meanwhile
                table = self._make(epoch)
                while len(self._tables) >= _KEPT_EPOCHS:
                    del self._tables[next(iter(self._tables))]
                self._tables[epoch] = table
            return self._tables[epoch]

    def __reduce__(self) -> Any:
        return EpochTables, (self._make, self._one_for_all, self._tables if self._one_for_all else None)


def pick_by_epoch(epoch: np.ndarray, offset: np.ndarray, pick: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """`pick(epoch, offsets)` of all offsets, each with its own epoch."""
    if not len(epoch):
        return offset
    first = int(epoch[0])
    if (epoch == first).all():
        return pick(first, offset)
    picked = np.empty_like(offset)
    for number in words.find_distinct(epoch)[0].tolist():
        here = epoch == number
        picked[here] = pick(number, offset[here])
    return picked


class Rule(abc.ABC):
    """How the positions of an epoch follow from the values of its elements."""

    steady_length: ClassVar[bool] = True
    """Whether an epoch after the rule is as long as the one before it, whatever the values are."""

    @abc.abstractmethod
    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        """The table of one epoch, which is kept: one entry per element after the rule."""

    @optional
    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        """Places in the epoch after the rule -> places in the epoch before it; by default the table lists them."""
        return table[offsets]

    @property
    @optional
    def reseeds(self) -> bool:
        """Whether the table differs from epoch to epoch although the values do not; by default not."""
        return False

    @abc.abstractmethod
    def epochs(self, parent: Epochs) -> Epochs:
        """How epochs compare after the rule if the parent's compare as `parent` says."""

    @abc.abstractmethod
    def call(self, column: Column, length: int) -> str:
        """The operation as it reads, over `length` elements."""


@in_states("where")
@dataclasses.dataclass(frozen=True)
class Where(Rule):
    """The elements with a true value, in order."""

    steady_length = False

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return np.flatnonzero(values)

    def epochs(self, parent: Epochs) -> Epochs:
        return parent

    def call(self, column: Column, length: int) -> str:
        return f"where(mask of {length})"


@in_states("sample")
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


@in_states("sample_without_replacement")
@dataclasses.dataclass(frozen=True)
class WeightedShuffle(Rule):
    """Each element with a value above zero once per epoch, those with large values early."""

    seed: int

    steady_length = False

    @property
    def reseeds(self) -> bool:
        return True

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return order.weighted_order(values, seed=self.seed, epoch=epoch)

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED)

    def call(self, column: Column, length: int) -> str:
        return f"sample(weights of {length}, seed={self.seed}, replacement=False)"


@in_states("order_by")
@dataclasses.dataclass(frozen=True)
class OrderBy(Rule):
    """Each epoch sorted by value, with some noise."""

    noise: float
    seed: int

    @property
    def reseeds(self) -> bool:
        return self.noise > 0

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return order.sorted_order(values, noise=self.noise, seed=self.seed, epoch=epoch)

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED) if self.noise else parent

    def call(self, column: Column, length: int) -> str:
        noise = f", noise={self.noise:g}, seed={self.seed}" if self.noise else ""
        return f"order_by({column.dtype} of {length}{noise})"


@in_states("chosen")
@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(Moved):
    """The elements of one parent as a rule on a column chooses them, epoch by epoch."""

    column: Column
    rule: Rule
    tables: EpochTables

    def find_length(self) -> int:
        return len(self.tables(0))

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        epoch, offset = words.split(indices, self.length, to=self.parent.length)
        places = pick_by_epoch(epoch, offset, lambda number, some: self.rule.pick(self.tables(number), some, number))
        return places + epoch * self.parent.length

    @property
    def epochs(self) -> Epochs:
        return self.rule.epochs(self.parent.epochs)

    def parameters(self) -> dict[str, Any]:
        return {"operation": name_of(type(self.rule)), **vars(self.rule), "column": self.column._digest}

    def call(self) -> str:
        return self.rule.call(self.column, self.parent.length)


def _make_table(node: MapNode, column: Column, rule: Rule, epoch: int) -> np.ndarray:
    """The table of an epoch. `node` is the one that the column was computed on: the pipeline's may be a copy."""
    return rule.table(column._of_epoch(node, epoch), epoch)


def under_endless_repeat(node: MapNode, build: Callable[[MapNode], MapNode]) -> MapNode:
    """`build(node)`. Where the node is an endless repeat, `build` gets one epoch of it, and the result is repeated."""
    if node.length < INFINITE:
        return build(node)
    if not isinstance(node, Repeat):
        raise ValueError(
            f"{node.call()} has no end, so it has no epochs to choose from. Choose before you mix or repeat."
        )
    epoch = node.parent if node.reseed_each_epoch else Repeat(node.parent, 1, False)
    return Repeat(build(epoch), None, True)


def choose(node: MapNode, column: Column, rule: Rule) -> MapNode:
    """The elements of a node that a rule on a column chooses. Raises if epochs would differ in length."""
    if not rule.steady_length and node.epochs is Epochs.DIFFERENT:
        raise ValueError(
            f"Epochs of {node.call()} are made of different records, so after `{rule.call(column, node.length)}` "
            "each would have another length. Do it earlier: before slicing a shuffled dataset, and on each part of a "
            "mixture before mixing."
        )
    same = node.epochs is Epochs.SAME and not rule.reseeds
    make = functools.partial(_make_table, node, column, rule)
    return Chosen(node, column, rule, EpochTables(make, one_for_all=same))
