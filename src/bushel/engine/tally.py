"""Time, elements and bytes of stages, taken where the work is done. What becomes of the figures: see observe.py.

A graph whose stages are timed is a copy of the user's: each node knows its number, and map nodes are read through
`Watched`. Without that copy nothing here runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.base.blocks import Block, Columns
from bushel.graph.node import InPlace, MapNode, Node, OneParentMap, Plan, replace_parents

Tally = dict[int, list[float]]
"""By the number of the stage: elements it gave, seconds that it took itself, bytes of what it gave."""

_NUMBER = "_stage"


class _Measurement:
    """What is being measured on a thread."""

    __slots__ = ("inner", "tally")

    def __init__(self, tally: Tally):
        self.tally = tally
        self.inner = 0.0
        """Seconds inside the stage at hand that are not its own."""


_current: contextvars.ContextVar[_Measurement | None] = contextvars.ContextVar("measurement", default=None)
"""What this thread measures. Plain numbers only: `sources/handle_pool.py` says why no object may belong to a thread."""


@contextlib.contextmanager
def taken(tally: Tally) -> Iterator[None]:
    """Stages that run on this thread meanwhile are entered into `tally`."""
    before = _current.set(_Measurement(tally))
    try:
        yield
    finally:
        _current.reset(before)


def set_aside(seconds: float) -> None:
    """These seconds belong to no stage: the one at hand has waited."""
    measurement = _current.get()
    if measurement is not None:
        measurement.inner += seconds


def add(total: Tally, part: Tally) -> None:
    """Adds one tally to another."""
    for number, entries in part.items():
        sums = total.setdefault(number, [0, 0.0, 0])
        for place, entry in enumerate(entries):
            sums[place] += entry


class Untimed:
    """Stands where no tally is taken."""

    def __enter__(self) -> Untimed:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def made(self, block: Block) -> None:
        pass


_UNTIMED = Untimed()


class _Timed:
    """Enters the time between begin and end, less that of stages inside, and what was made."""

    __slots__ = ("_begun", "_block", "_measurement", "_number", "_outer")

    def __init__(self, measurement: _Measurement, number: int):
        self._measurement, self._number = measurement, number
        self._block: Block = []

    def __enter__(self) -> _Timed:
        self._outer, self._measurement.inner = self._measurement.inner, 0.0
        self._begun = time.perf_counter()
        return self

    def made(self, block: Block) -> None:
        self._block = block

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        measurement = self._measurement
        seconds = time.perf_counter() - self._begun - measurement.inner
        entry = measurement.tally.setdefault(self._number, [0, 0.0, 0])
        entry[0] += _present(self._block)
        entry[1] += seconds
        entry[2] += size_of(self._block)
        measurement.inner = self._outer + time.perf_counter() - self._begun  # with what measuring took: it is nobody's


def timed(stage: Node | int | None) -> _Timed | Untimed:
    """A context that times a stage (a node or its number), if this thread is measured; tell it what was `made`."""
    measurement = _current.get()
    number = number_of(stage) if isinstance(stage, Node) else stage
    return _UNTIMED if measurement is None or number is None else _Timed(measurement, number)


def number_of(node: Node) -> int | None:
    """The number of a stage; None where stages are not timed."""
    return vars(node).get(_NUMBER)


def number_stages(node: Node, stages: list[Node]) -> Any:
    """A copy of a graph in which every stage knows its number, its place in `stages`, which grows here."""
    copies: dict[int, Node] = {}

    def copied(node: Node) -> Node:
        if id(node) not in copies:
            copy = replace_parents(node, copied)
            if copy is not node and not copy.transparent and copy.seed_for_children is None:  # those cost nothing
                vars(copy)[_NUMBER] = len(stages)
                stages.append(copy)
            copies[id(node)] = Watched(copy) if isinstance(copy, MapNode) else copy
        return copies[id(node)]

    return copied(node)


@dataclasses.dataclass(frozen=True, eq=False)
class Watched(OneParentMap):
    """A map node that is timed: planning and reading are entered under its number."""

    transparent = True
    takes_a_place = False
    one_to_one = True
    moves = True

    def plan(self, indices: np.ndarray) -> Plan:
        number = number_of(self.parent)
        with timed(number):
            plan = self.parent.plan(indices)
        return plan if number is None else _WatchedPlan(number, plan)

    @property
    def in_place(self) -> InPlace:
        return self.parent.in_place

    def call(self) -> str:
        return self.parent.call()


@dataclasses.dataclass(slots=True)
class _WatchedPlan(Plan):
    number: int
    plan: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        with timed(self.number) as stage:
            block = self.plan.read(low, high, private)
            stage.made(block)
        return block


def _present(block: Block) -> int:
    if isinstance(block, Columns):
        return block.dense().length
    return sum(row is not None for row in block)


def size_of(block: Block) -> int:
    """Bytes of the arrays, bytes and texts in a block; of many rows, a few stand for all."""
    if isinstance(block, Columns):
        return sum(leaf.nbytes for leaf in trees.leaves(block.tree))
    some = block[:: -(-len(block) // 8) or 1]
    total = sum(_leaf_size(leaf) for row in some for leaf in trees.leaves(row))
    return total * len(block) // max(1, len(some))


def _leaf_size(leaf: Any) -> int:
    if isinstance(leaf, (bytes, bytearray, str)):
        return len(leaf)
    return getattr(leaf, "nbytes", 0)
