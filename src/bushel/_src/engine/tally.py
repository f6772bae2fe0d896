"""Measures time, elements and bytes of stages, in the process that does the work. observe.py collects the figures.

To time the stages of a graph, the engine opens a copy of it in which each node has a number, and each map node is read
through `Watched`. Without that copy, nothing in this module runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.graph.node import InPlace, MapNode, Node, OneParentMap, Plan, replace_parents

Tally = dict[int, list[float]]
"""For the number of each stage: how many elements it made, the seconds of its own work, and the bytes it made."""

_NUMBER = "_stage"


class _Measurement:
    """The tally of a thread, and the time that stages inside the present stage have taken."""

    __slots__ = ("inner", "tally")

    def __init__(self, tally: Tally):
        self.tally = tally
        self.inner = 0.0
        """Seconds since the present stage began that are not its own."""


_current: contextvars.ContextVar[_Measurement | None] = contextvars.ContextVar("measurement", default=None)
"""What this thread measures. It holds plain numbers only: `sources/handle_pool.py` says why no object may belong to a
thread."""


@contextlib.contextmanager
def measure_into(tally: Tally) -> Iterator[None]:
    """Enter the stages that run on this thread inside this context into `tally`."""
    before = _current.set(_Measurement(tally))
    try:
        yield
    finally:
        _current.reset(before)


def exclude(seconds: float) -> None:
    """Take these seconds from the stage that runs now: it has waited."""
    measurement = _current.get()
    if measurement is not None:
        measurement.inner += seconds


def add(total: Tally, part: Tally) -> None:
    """Add one tally to another."""
    for number, entries in part.items():
        sums = total.setdefault(number, [0, 0.0, 0])
        for place, entry in enumerate(entries):
            sums[place] += entry


@contextlib.contextmanager
def timed(stage: Node | int | None) -> Iterator[list[Block]]:
    """Measure a stage, which is a node or its number, if this thread is measured and the stage has a number.

    Append the block that the stage has made to the list. The time of stages inside this context does not count.

        with timed(step) as made:
            made.append(run(step))
    """
    made: list[Block] = []
    measurement = _current.get()
    number = get_number(stage) if isinstance(stage, Node) else stage
    if measurement is None or number is None:
        yield made
        return
    outer_s, measurement.inner = measurement.inner, 0.0
    begun = time.perf_counter()
    try:
        yield made
    finally:
        entry = measurement.tally.setdefault(number, [0, 0.0, 0])
        entry[1] += time.perf_counter() - begun - measurement.inner
        for block in made:
            entry[0] += _count_present(block)
            entry[2] += size_of(block)
        # With the time that counting took: it belongs to no stage.
        measurement.inner = outer_s + time.perf_counter() - begun


def get_number(node: Node) -> int | None:
    """Return the number of a node as a stage; None if stages are not timed."""
    return vars(node).get(_NUMBER)


def number_stages(node: Node, stages: list[Node]) -> Any:
    """Return a copy of a graph in which every stage has a number. Appends the stages to `stages`, in that order."""
    copies: dict[int, Node] = {}

    def copy_node(node: Node) -> Node:
        if id(node) not in copies:
            copy = replace_parents(node, copy_node)
            if copy is not node and not copy.transparent and copy.seed_for_children is None:  # such nodes take no time
                vars(copy)[_NUMBER] = len(stages)
                stages.append(copy)
            copies[id(node)] = Watched(copy) if isinstance(copy, MapNode) else copy
        return copies[id(node)]

    return copy_node(node)


@dataclasses.dataclass(frozen=True, eq=False)
class Watched(OneParentMap):
    """A map node whose planning and reading are timed, under the number of its parent."""

    transparent = True
    takes_a_place = False
    one_to_one = True
    moves = True

    def plan(self, indices: np.ndarray) -> Plan:
        number = get_number(self.parent)
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
        with timed(self.number) as made:
            made.append(self.plan.read(low, high, private))
        return made[0]


def _count_present(block: Block) -> int:
    if isinstance(block, Columns):
        return block.dense().length
    return sum(row is not None for row in block)


def size_of(block: Block) -> int:
    """Return the bytes of the arrays, bytes and texts in a block. If it has many rows, a few of them are measured."""
    if isinstance(block, Columns):
        return sum(leaf.nbytes for leaf in trees.leaves(block.tree))
    some = block[:: -(-len(block) // 8) or 1]
    total = sum(_leaf_size(leaf) for row in some for leaf in trees.leaves(row))
    return total * len(block) // max(1, len(some))


def _leaf_size(leaf: Any) -> int:
    if isinstance(leaf, (bytes, bytearray, str)):
        return len(leaf)
    return getattr(leaf, "nbytes", 0)
