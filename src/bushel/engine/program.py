"""Programs: what is done to one block of positions, wherever it is done. A pure function of the positions.

A program is a run of a stream that needs no look at neighbours: the elements of a map node, then per-element
operations, then perhaps batches. It says of each row it makes where the stream stands after it, so that the one
who delivers rows can tell the state without having run anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, located
from bushel.graph.batch import Batch, make_batch
from bushel.graph.elementwise import Elementwise
from bushel.graph.node import MapNode, told
from bushel.graph.ordered import BatchStream
from bushel.graph.reindex import Reindex

CountBefore = Callable[[int, int], int]
"""(counting step, how many elements reach it in this block) -> how many reached it in all blocks before."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The elements of `node`, then `steps`. Where it is not `sparse`, all elements must be there (`Misfit`)."""

    node: MapNode
    allow_nones: bool = False
    steps: tuple[Elementwise | BatchStream, ...] = ()
    as_columns: bool = False
    """Whether whoever receives the rows would rather have them as columns, for a batch of its own."""
    may_miss: bool = False
    """Whether elements may be missing although no operation drops any: a `map` has returned None."""

    @property
    def unit(self) -> int:
        """Positions that make one row, where none is missing: blocks hold whole multiples of it."""
        unit = 1
        for step in self.steps:
            unit *= step.batch_size if isinstance(step, BatchStream) else 1
        return unit

    @property
    def counting(self) -> tuple[Elementwise, ...]:
        """The steps that depend on how many elements came before."""
        return tuple(step for step in self.steps if isinstance(step, Elementwise) and step.count_key)

    @property
    def unit_before_counting(self) -> tuple[int, ...]:
        """For each counting step, positions that make one of its elements."""
        units, unit = [], 1
        for step in self.steps:
            if isinstance(step, BatchStream):
                unit *= step.batch_size
            elif step.count_key:
                units.append(unit)
        return tuple(units)

    @property
    def sparse(self) -> bool:
        """Whether the number of rows of a block is known only after it has run."""
        return self.drops or self.may_miss or (self.node.sparse and not self.allow_nones)

    @property
    def makes_results_in_place(self) -> bool:
        """Whether all that is stacked is a result that no user function sees: it may go into shared memory at once."""
        last = self.steps[-1] if self.steps else _undone(self.node)
        makers = [step for step in (*self.steps, *_nodes(self.node)) if isinstance(step, (Batch, BatchStream))]
        vectorized = any(getattr(step, "vectorized", False) for step in (*self.steps, *_nodes(self.node)))
        return not vectorized and (makers == [last] or (self.as_columns and not makers))

    @property
    def drops(self) -> bool:
        """Whether a step drops elements."""
        return any(isinstance(step, Elementwise) and step.drops for step in self.steps)


def _undone(node: MapNode) -> MapNode:
    """The node whose elements these are, elsewhere."""
    while isinstance(node, Reindex):
        node = node.parent
    return node


def _nodes(node: MapNode) -> list[MapNode]:
    return [node, *(above for parent in node.parents for above in _nodes(parent))]


class Misfit(Exception):
    """Elements are missing where a program with batches or counts relied on all of them."""


@dataclasses.dataclass(slots=True)
class Result:
    """What became of the positions [low, high): rows, and where the stream stands after each of them.

    `marks` has a line per row: the next position, then for each counting step how many elements it has seen.
    A `failure` belongs to the row after the last.
    """

    rows: Block
    marks: np.ndarray
    after: list[int]
    """How many elements each counting step has seen after the whole block, those dropped later included."""
    failure: Exception | None = None


def run(program: Program, low: int, high: int, count_before: CountBefore) -> Result:
    """Runs a program on positions [low, high). A failing element cuts the block short; those before it are there."""
    with contextlib.suppress(_FailedAt):
        return _run(program, low, high, count_before)
    # Made again in the smallest parts, up to the one that fails: functions are pure, and failure is rare.
    return run_in_units(program, low, high, count_before)


def run_in_units(
    program: Program,
    low: int,
    high: int,
    count_before: CountBefore,
    announce: Callable[[int, int], None] = lambda low, high: None,
) -> Result:
    """The same in the smallest parts, each announced before it is begun."""
    seen = [0] * len(program.counting)

    def count_before_part(step: int, count: int) -> int:
        before = count_before(step, count) + seen[step]
        seen[step] += count
        return before

    parts: list[Result] = []
    failure = None
    for start in range(low, high, program.unit):
        end = min(high, start + program.unit)
        announce(start, end)
        try:
            parts.append(_run(program, start, end, count_before_part))
        except _FailedAt as failed:
            failure = failed.error
            break
    rows = blocks.joined([part.rows for part in parts]) if parts else []
    empty = np.zeros((0, 1 + len(seen)), dtype=np.int64)
    marks = np.concatenate([empty, *(part.marks for part in parts)])
    return Result(rows, marks, parts[-1].after if parts else [], failure)


class _FailedAt(Exception):
    """An element could not be made because of `error`."""

    def __init__(self, error: Exception):
        super().__init__(error)
        self.error = error


def _run(program: Program, low: int, high: int, count_before: CountBefore) -> Result:
    node = program.node
    try:
        block: Block = node.take(np.arange(low, high))
    except RowFailed as failed:
        failed.error.add_note(f"bushel: this was element {low + failed.row} of the output.")
        raise _FailedAt(failed.error) from failed.error
    marks = np.arange(low + 1, high + 1)[:, None]
    if not program.allow_nones:
        dense = blocks.dense(block)
        if len(dense) != len(block):
            if program.unit > 1 or (program.counting and not program.sparse):
                raise Misfit
            marks = marks[[row is not None for row in blocks.rows_of(block)]]
            block = dense
    after: list[int] = []
    for step in program.steps:
        if isinstance(step, BatchStream):
            block, marks = _batched(step, block, marks)
            continue
        first = 0
        if step.count_key:
            first = count_before(len(after), len(block))
            marks = np.column_stack([marks, np.arange(first + 1, first + len(block) + 1)])
            after.append(first + len(block))
        if not len(block):
            continue
        try:
            block, kept = step.run(block, first, _where(step, node, marks))
        except RowFailed as failed:
            raise _FailedAt(failed.error) from failed.error
        if kept is not None:
            marks = marks[kept]
    if program.as_columns and len(block):
        block = blocks.as_columns(block) or block
    return Result(block, marks, after)


def _batched(step: BatchStream, block: Block, marks: np.ndarray) -> tuple[Block, np.ndarray]:
    batches, ends = [], []
    for start in range(0, len(block), step.batch_size):
        end = min(start + step.batch_size, len(block))
        if end - start < step.batch_size and step.drop_remainder:
            break
        try:
            batches.append(make_batch(blocks.part_of(block, start, end), step.batch_fn))
        except Exception as error:
            raise _FailedAt(located(error, f"bushel: {step.call()} failed.")) from error
        ends.append(end - 1)
    return batches, marks[ends]


def _where(step: Elementwise, node: MapNode, marks: np.ndarray) -> Callable[[int], str]:
    def where(row: int) -> str:
        position = int(marks[row, 0]) - 1
        return told(step.placed(), position, node.origins(position))

    return where


def state_of(program: Program, position: int, counts: list[int]) -> dict[str, Any]:
    """The state of the stream that a program stands for, in Grain's form."""
    state: dict[str, Any] = {"next_index": position}
    for step, count in zip(program.counting, counts, strict=True):
        assert step.count_key is not None
        state = {"parent": state, step.count_key: count}
    return state
