"""Measures stages where the work is done; figures of stages, pools, transfers and skips as plain data."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.public import public
from bushel._src.graph.node import InPlace, MapNode, Node, OneParentMap, Plan, replace_parents

DELIVERY = "delivery"
"""The stage in the consumer that unpacks results and puts them in order."""

THREAD = "thread"
"""The thread of a ThreadPrefetchIterDataset, which reads a stream ahead. There is one for each."""

SMALL_WAIT_SHARE = 0.1
"""A consumer that waits for less than this share of its time would gain little from faster data."""

BUSY_SHARE = 0.7
"""If workers compute for this share of the time or more, they are the bottleneck."""


@public("bushel")
@dataclasses.dataclass(frozen=True)
class Stage:
    """One operation of a pipeline, where it ran, how much it gave, and the time of its own work.

    `number` is its place in the pipeline, counted from the sources. Two operations may print alike, but their numbers
    differ.
    """

    number: int
    call: str
    where: str
    elements: int
    self_s: float
    size_bytes: int
    marked: bool = False
    """Whether a prefetch follows it, and it runs in the consumer all the same, since it needs its elements in order."""


@public("bushel")
@dataclasses.dataclass(frozen=True)
class Pool:
    """Workers or threads that compute ahead. Figures of time are zero if stages are not timed."""

    kind: str
    size: int
    why: str
    """Why there are so many, if Bushel has chosen their number."""
    busy_s: float = 0.0
    """Seconds that its members computed, added up."""
    wait_s: float = 0.0
    """Seconds that the consumer waited for it, or a thread that reads ahead for the consumer."""
    ready_blocks: float = 0.0
    """How many blocks were ready when the next one was needed, on average."""
    ready_now: int = 0
    deaths: int = 0
    """How many of its members have died and were replaced. Also counted if stages are not timed."""
    nodes: tuple[str, ...] = ()
    """A line for each machine of a cluster: how many members it has, and what they have done."""

    def __str__(self) -> str:
        return f"{self.size} {self.kind}" if self.size != 1 else f"1 {self.kind.removesuffix('s')}"


@public("bushel")
@dataclasses.dataclass(frozen=True)
class Transfer:
    """Elements that `to_device` has put on devices. These figures are always taken."""

    place: str
    """The devices: how many, and their kind."""
    elements: int
    size_bytes: int
    elapsed_s: float
    """From the first `next` to the end of the last one."""
    waited_s: float
    """The part of it in which `next` waited for an element to be on the device."""
    input_s: float
    """How long the thread that feeds the device waited for elements, or computed them."""
    bytes_per_s: float
    """The speed of one transfer by itself: the median of those that were timed, which is one in 32."""
    mapped_bytes: int
    """How much memory is mapped for the GPU."""

    @property
    def waiting(self) -> float:
        """The share of its time that the step waited for data."""
        return self.waited_s / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def transfer_s(self) -> float:
        """How long all transfers took, at the speed of those that were timed."""
        return self.size_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    @property
    def limit(self) -> str:
        """What the step waits for: "step" if for nothing, else "transfer", or "input" for reading and computing."""
        if self.waiting < SMALL_WAIT_SHARE:
            return "step"
        return "transfer" if self.transfer_s >= BUSY_SHARE * self.elapsed_s else "input"

    def __str__(self) -> str:
        each = self.size_bytes / max(1, self.elements)
        speed = ""
        if self.bytes_per_s:
            mapped = "mapped" if self.mapped_bytes else "ordinary"
            speed = (
                f" A transfer takes {1e3 * each / self.bytes_per_s:.2f} ms ({self.bytes_per_s / 1e9:.1f} GB/s, from "
                f"{mapped} memory)."
            )
        return (
            f"To {self.place}: {self.elements:,} elements of {format_size(each)} in {self.elapsed_s:.2f} s; the step "
            f"waited {self.waited_s:.2f} s for data ({100 * self.waiting:.0f} %).{speed}"
        )


@public("bushel")
@dataclasses.dataclass(frozen=True)
class SkippedElements:
    """An element that failed and was skipped, or several that failed together."""

    which: str
    error: str
    count: int


def format_size(count: float) -> str:
    """Return a number of bytes with a unit: 1.5 MB."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def count_cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
"""What this thread measures. It holds plain numbers only: `sources/local_files.py` says why no object may belong to a
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
    """Return a copy of a graph in which every stage has a number. Append the stages to `stages`, in that order."""
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
    counts_for_seeds = False
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
