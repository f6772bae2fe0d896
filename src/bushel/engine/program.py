"""Programs: what is done to one block of positions, wherever it is done. A pure function of the positions.

A program is a run of a stream that needs no look at neighbours: the elements of a map node, or rows that are given,
then per-element operations, then perhaps batches. It says of each row it makes where the stream stands after it, so
that the one who delivers rows can tell the state without having run anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel.base import blocks, memory
from bushel.base.blocks import Block, Columns
from bushel.base.checks import INFINITE
from bushel.base.errors import RowFailed, add_note, in_words, located
from bushel.base.memory import Allocator
from bushel.base.ownership import copied_block, own, own_block
from bushel.engine import tally
from bushel.engine.tally import Tally, Watched
from bushel.graph.batch import is_ours, make_batch
from bushel.graph.elementwise import Elementwise
from bushel.graph.node import InPlace, MapNode, Node, Origin, describe_failure
from bushel.graph.ordered import BatchStream
from bushel.graph.streams import LeftOut

CountBefore = Callable[[int, int], int]
"""(counting step, how many elements reach it in this block) -> how many reached it in all blocks before."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The elements of `node`, then `steps`. Where it is not `sparse`, all elements must be there (`Misfit`)."""

    node: MapNode | None
    """None where each task brings its rows."""
    allow_nones: bool = False
    steps: tuple[Elementwise | BatchStream, ...] = ()
    as_columns: bool = False
    """Whether whoever receives the rows would rather have them as columns, for a batch of its own."""
    may_miss: bool = False
    """Whether elements may be missing although no operation drops any: a `map` has returned None."""
    skip: bool = False
    """Whether an element that fails is left out, and told in `Result.skipped`."""

    @property
    def length(self) -> int:
        """How many positions there are."""
        return INFINITE if self.node is None else self.node.length

    def origins(self, position: int) -> tuple[Origin, ...]:
        """The records of which the element at a position is made, where they are known."""
        return () if self.node is None else self.node.origins(position)

    def call(self) -> str:
        """The operation that is seen first, as it was written."""
        return self.steps[0].call() if self.node is None else self.node.call()

    def which(self, low: int, high: int) -> str:
        """The elements at positions [low, high), in words. Where rows are given, their number is not known here."""
        if self.node is None:
            return f"an element of {self.steps[0].describe()}"
        one = high == low + 1
        return f"{f'element {low}' if one else f'one of the elements {low} to {high - 1}'} of the output"

    def operations(self) -> list[Node]:
        """All that is done, the last first."""
        return [*reversed(self.steps), *_nodes(self.node)]

    @functools.cached_property
    def unit(self) -> int:
        """Positions that make one row, where none is missing: blocks hold whole multiples of it."""
        unit = 1
        for step in self.steps:
            unit *= step.batch_size if isinstance(step, BatchStream) else 1
        return unit

    @functools.cached_property
    def counting(self) -> tuple[Elementwise, ...]:
        """The steps that depend on how many elements came before."""
        return tuple(step for step in self.steps if isinstance(step, Elementwise) and step.count_key)

    @functools.cached_property
    def unit_before_counting(self) -> tuple[int, ...]:
        """For each counting step, positions that make one of its elements."""
        units, unit = [], 1
        for step in self.steps:
            if isinstance(step, BatchStream):
                unit *= step.batch_size
            elif step.count_key:
                units.append(unit)
        return tuple(units)

    @functools.cached_property
    def sparse(self) -> bool:
        """Whether the number of rows of a block is known only after it has run."""
        holes = self.node is not None and self.node.sparse and not self.allow_nones
        return self.drops or self.may_miss or self.skip or holes

    @functools.cached_property
    def asks(self) -> bool:
        """Whether a block must learn from the blocks before it how many elements have come to one of its steps."""
        missing = self.node is not None and self.sparse  # rows that are given are all there
        return first_that_asks(self.steps, missing, self.skip) < len(self.steps)

    @functools.cached_property
    def takes_in_place(self) -> bool:
        """Whether what is taken of the node is the result as it is, or is only cut into batches."""
        node = self.node
        if node is None or node.in_place is InPlace.NEVER:
            return False
        if not self.steps:
            return node.in_place is InPlace.AS_COLUMNS or not self.as_columns
        return node.in_place is InPlace.AS_COLUMNS and len(self.steps) == 1 and self.batches_in_place(self.steps[0])

    def batches_in_place(self, step: BatchStream | Elementwise) -> bool:
        """Whether a step makes results that no function of the user's sees."""
        ours = isinstance(step, BatchStream) and is_ours(step.batch_fn)
        return ours and step is self.steps[-1] and not self.as_columns

    @property
    def droppers(self) -> list[str]:
        """Where elements may go missing, as it is called: the map node, then the steps that drop some."""
        steps = [step.call() for step in self.steps if isinstance(step, Elementwise) and step.drops]
        return [*([] if self.node is None else [self.node.call()]), *steps]

    @functools.cached_property
    def timed(self) -> bool:
        """Whether its stages are timed."""
        return isinstance(self.node, Watched) or any(tally.number_of(step) is not None for step in self.steps)

    @property
    def drops(self) -> bool:
        """Whether a step drops elements."""
        return any(isinstance(step, Elementwise) and step.drops for step in self.steps)


def first_that_asks(steps: Sequence[Elementwise | BatchStream], missing: bool, skip: bool) -> int:
    """The first step that depends on how many elements came before, where that is not known by arithmetic.

    Returns its place in `steps`, or their number if there is no such step.

    Args:
      missing: whether elements may be missing before the first step.
      skip: whether elements that fail in a step are left out.
    """
    for place, step in enumerate(steps):
        if isinstance(step, Elementwise):
            if step.count_key and missing:
                return place
            missing = missing or step.drops or skip
    return len(steps)


def _nodes(node: MapNode | None) -> list[MapNode]:
    return [] if node is None else [node, *(above for parent in node.parents for above in _nodes(parent))]


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
    failure: BaseException | None = None
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    """The elements that failed and were left out, in order."""
    states: list[dict[str, Any]] | None = None
    """Of a stream that is run elsewhere: its state before the first row, and after each."""
    stays: list[np.ndarray | int] = dataclasses.field(default_factory=list)
    """Which elements stayed, for each of `Program.droppers`: one bool each, or their number where all did."""
    tally: Tally | None = None
    """What each stage took, where stages are timed."""
    work_s: float = 0.0
    """What all of it took, but for bringing rows there and back."""
    size_bytes: int | None = None
    """What the rows took to travel, if they did."""


Skipped = tuple[int, LeftOut]
"""A position, and what failed there."""

Announce = Callable[[int, int], None]
"""Hears which positions are worked on next."""


def run(
    program: Program,
    low: int,
    high: int,
    count_before: CountBefore,
    announce: Announce | None = None,
    given: Block | None = None,
    place: Allocator | None = None,
) -> Result:
    """Runs a program on positions [low, high). A failing element cuts the block short; those before it are there.

    With `announce` it goes element by element, each announced before it is begun. Where elements that fail are
    skipped, the block is not cut. What no function of the user's sees is made in `place`.
    """
    begun = time.perf_counter()
    spent: Tally | None = {} if program.timed else None
    with contextlib.nullcontext() if spent is None else tally.taken(spent):
        result = _tried(program, low, high, count_before, announce, given, place)
    result.tally, result.work_s = spent, time.perf_counter() - begun
    return result


def _tried(
    program: Program,
    low: int,
    high: int,
    count_before: CountBefore,
    announce: Announce | None,
    given: Block | None,
    place: Allocator | None,
) -> Result:
    failed: _FailedAt
    try:
        return _Run(program, low, high, count_before, announce, given, place).result()
    except _FailedAt as failure:
        failed = failure
    if announce is None:
        # A function of whole columns, or a source that reads many at once, does not tell which element it was.
        try:
            return _Run(program, low, high, count_before, lambda low, high: None, given, place).result()
        except _FailedAt as failure:
            failed = failure
    # The rows before are made again, now without it: functions are pure, and failure is rare. One of those may fail,
    # too, in a later step: steps run one after the other. Then it comes first, since it would if every element went
    # alone through all steps; and a batch that is full is made before the elements after it.
    nothing = Result([], np.zeros((0, 1 + len(program.counting)), dtype=np.int64), [])
    while True:
        made = nothing
        try:
            for part in _up_to_batches(program):
                good = low + (failed.position - low) // part.unit * part.unit
                made = _Run(part, low, good, count_before, None, given, place).result() if good > low else nothing
            return dataclasses.replace(made, failure=failed.error)
        except _FailedAt as failure:
            failed = failure


def _up_to_batches(program: Program) -> list[Program]:
    """What is done before each step that makes batches, then all of it."""
    cuts = [number for number, step in enumerate(program.steps) if isinstance(step, BatchStream)]
    return [*(dataclasses.replace(program, steps=program.steps[:cut]) for cut in cuts), program]


class _FailedAt(Exception):
    """The element at `position` could not be made because of `error`."""

    def __init__(self, position: int, error: Exception):
        super().__init__(position, error)
        self.position = position
        self.error = error


@dataclasses.dataclass(slots=True)
class _Run:
    """One try of a program on a block."""

    program: Program
    low: int
    high: int
    count_before: CountBefore
    announce: Announce | None
    given: Block | None
    place: Allocator | None
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    last_mark: np.ndarray | None = None
    """Where the stream has ended, if a batch has dropped the elements that were left."""

    def result(self) -> Result:
        program = self.program
        block = self._taken()
        marks = np.arange(self.low + 1, self.high + 1)[:, None]
        stays: list[np.ndarray | int] = [] if program.node is None else [len(block)]
        if not program.allow_nones:
            dense = blocks.dense(block)
            if len(dense) != len(block):
                if program.unit > 1 or (program.counting and not program.sparse):
                    raise Misfit
                stays = [blocks.presence(block)]
                marks = marks[stays[0]]
                block = dense
        after: list[int] = []
        numbered = program.node is not None  # whether positions are those of the elements
        for number, step in enumerate(program.steps):
            if isinstance(step, BatchStream):
                with tally.timed(tally.number_of(step)) as stage:
                    with self._in_place(program.batches_in_place(step)):
                        block, marks = self._batched(step, block, marks)
                    stage.made(block)
                numbered = False
                continue
            first = 0
            if step.count_key:
                first = self.count_before(len(after), len(block))
                marks = np.column_stack([marks, np.arange(first + 1, first + len(block) + 1)])
                after.append(first + len(block))
            kept = None
            count = len(block)
            if count:
                with tally.timed(tally.number_of(step)) as stage:
                    block, kept = self._stepped(step, block, marks, first, numbered)
                    stage.made(block)
                if kept is not None:
                    marks = marks[kept]
                if step.shares and (isinstance(block, Columns) or not self._is_copied_before(number + 1)):
                    block = own_block(block)
            if step.drops:
                stays.append(count if kept is None else kept)
        if program.as_columns and len(block):
            with self._in_place():
                block = blocks.as_columns(block) or block
        skipped = sorted(self.skipped, key=lambda left_out: left_out[0])
        return Result(block, marks, after, skipped=skipped, stays=stays)

    def _is_copied_before(self, number: int) -> bool:
        """Whether rows are copied before step `number` or the consumer gets them: into a batch, or to be sent."""
        steps = self.program.steps
        if number < len(steps):
            step = steps[number]
            return isinstance(step, BatchStream) and is_ours(step.batch_fn)
        return self.program.as_columns or self.place is not None

    def _in_place(self, allowed: bool = True) -> contextlib.AbstractContextManager[None]:
        """What is made meanwhile is a result, if it is `allowed`: it goes where results go."""
        return memory.allocating(self.place) if allowed and self.place is not None else contextlib.nullcontext()

    def _taken(self) -> Block:
        node, low = self.program.node, self.low
        if node is None:
            assert self.given is not None
            # A copy: a function writes into what it is given, and after a failure the rows are needed once more.
            return copied_block(blocks.part_of(self.given, 0, self.high - low))
        if self.announce is None:
            try:
                plan = node.plan(np.arange(low, self.high))
                with self._in_place(self.program.takes_in_place):
                    return (plan.look if self._is_copied_before(0) else plan.take)(0, self.high - low)
            except RowFailed as failed:
                raise self._failed(low + failed.row, failed.error) from failed.error
        rows: list[Any] = []
        for position in range(low, self.high):
            self.announce(position, position + 1)
            try:
                rows.extend(blocks.rows_of(node.take(np.arange(position, position + 1))))
            except RowFailed as failed:
                self._skip(self._failed(position, failed.error))
                rows.append(None)
        return rows

    def _failed(self, position: int, error: Exception) -> _FailedAt:
        add_note(error, f"bushel: this was element {position} of the output.")
        return _FailedAt(position, error)

    def _skip(self, failed: _FailedAt) -> None:
        """Leaves an element out, if that is wanted."""
        if not self.program.skip:
            raise failed from failed.error
        known = self.program.node is not None
        which = self.program.which(failed.position, failed.position + 1) if known else "an element"
        self.skipped.append((failed.position, (which, in_words(failed.error), 1)))

    def _stepped(
        self, step: Elementwise, block: Block, marks: np.ndarray, first: int, numbered: bool
    ) -> tuple[Block, np.ndarray | None]:
        where = _where(step, self.program, marks, numbered)
        if self.announce is None:
            try:
                return step.run(block, first, where)
            except RowFailed as failed:
                raise _FailedAt(int(marks[failed.row, 0]) - 1, failed.error) from failed.error
        made: list[Any] = []
        stays = np.ones(len(block), dtype=bool)
        for row, element in enumerate(blocks.rows_of(block)):
            position = int(marks[row, 0]) - 1
            self.announce(position, position + 1)
            try:
                one, kept = step.run([element], first + row, lambda _, row=row: where(row))
            except RowFailed as failed:
                self._skip(_FailedAt(position, failed.error))
                stays[row] = False
                continue
            made.extend(blocks.rows_of(one))
            stays[row] = kept is None or bool(kept[0])
        return made, stays

    def _batched(self, step: BatchStream, block: Block, marks: np.ndarray) -> tuple[Block, np.ndarray]:
        batches, ends = [], []
        for start in range(0, len(block), step.batch_size):
            end = min(start + step.batch_size, len(block))
            if end - start < step.batch_size and step.drop_remainder:
                break
            if self.announce is not None:
                self.announce(int(marks[start, 0]) - 1, int(marks[end - 1, 0]))
            try:
                batches.append(make_batch(blocks.part_of(block, start, end), step.batch_fn))
            except Exception as error:
                raise _FailedAt(int(marks[start, 0]) - 1, located(error, f"bushel: {step.call()} failed.")) from error
            ends.append(end - 1)
        found = marks[ends]
        if len(block) % step.batch_size:  # the end of the stream
            if step.drop_remainder:
                self.last_mark = marks[-1]
            elif self.last_mark is not None:
                # This batch was filled only once the stream had ended, with what a batch before it has dropped.
                found[-1, : len(self.last_mark)] = self.last_mark
        return own(batches) if step.shares else batches, found


def _where(step: Elementwise, program: Program, marks: np.ndarray, numbered: bool) -> Callable[[int], str]:
    def where(row: int) -> str:
        if not numbered:
            return f"bushel: {step.describe()} failed."
        position = int(marks[row, 0]) - 1
        return describe_failure(step.describe(), position, program.origins(position))

    return where


def state_of(program: Program, state: dict[str, Any], counts: list[int]) -> dict[str, Any]:
    """The state of the stream that a program stands for, in Grain's form; `state` is that of its rows."""
    for step, count in zip(program.counting, counts, strict=True):
        assert step.count_key is not None
        state = {"parent": state, step.count_key: count}
    return state
