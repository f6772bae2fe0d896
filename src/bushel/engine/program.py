"""Programs: the one place that runs per-element operations and batches, for all executors.

A program is a stretch of a stream that does not look at neighbours: the elements of a map node, or rows that are
given, then per-element operations, then perhaps batches. Running it on a block of positions is a pure function of
the positions. The result says for each row where the stream stands after it, so that delivery knows the state.
Errors, retries element by element, and skipping are here and nowhere else; ordered stages are in graph/.
"""

from __future__ import annotations

import abc
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
from bushel.base.contract import optional
from bushel.base.errors import RowFailed, add_note, describe_error, inside, locate_error
from bushel.base.memory import Allocator
from bushel.base.ownership import copy_block, own, own_block
from bushel.engine import tally
from bushel.engine.tally import Tally, Watched
from bushel.graph.batch import is_ours, make_batch
from bushel.graph.elementwise import Elementwise, Step
from bushel.graph.node import InPlace, MapNode, Node, Origin, Plan, describe_failure
from bushel.graph.operation import keep_rows
from bushel.graph.ordered import BatchStream
from bushel.graph.skips import SkipNote
from bushel.graph.state_fields import read_count, read_field
from bushel.graph.streams import Elements

CountBefore = Callable[[int, int], int]
"""(counting step, how many elements reach it in this block) -> how many reached it in all blocks before."""


@dataclasses.dataclass(eq=False)
class Program:
    """The elements of `node`, then `steps`. Where it is not `sparse`, all elements must be there (`Misfit`).

    It is not changed once it is made.
    """

    node: MapNode | None
    """None where each task brings its rows."""
    allow_nones: bool = False
    steps: tuple[Step, ...] = ()
    stacked_next: bool = False
    """Whether the receiver copies the rows, into batches or packed rows. It takes columns as well as rows."""
    may_miss: bool = False
    """Whether elements may be missing although no operation drops any: a `map` has returned None."""
    skip: bool = False
    """Whether an element that fails is skipped, and listed in `Result.skipped`."""
    reading: Elements | None = None
    """The stage under which reading the node's elements is timed in the consumer."""
    unit: int = dataclasses.field(default=1, init=False)
    """Positions that make one row, where none is missing: blocks hold whole multiples of it."""
    drops: bool = dataclasses.field(default=False, init=False)
    """Whether a step drops elements."""
    timed: bool = dataclasses.field(default=False, init=False)
    """Whether its stages are timed."""

    def __post_init__(self) -> None:
        self.counting: list[Step] = []
        """The steps that depend on how many elements came before."""
        self.unit_before_counting: list[int] = []
        """For each counting step, positions that make one of its elements."""
        for step in self.steps:
            self.unit *= step.gathers
            self.drops = self.drops or step.drops
            if step.count_key is not None:
                self.counting.append(step)
                self.unit_before_counting.append(self.unit)
        self.timed = type(self.node) is Watched or any(tally.number_of(step) is not None for step in self.steps)

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

    @property
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
            return node.in_place is InPlace.AS_COLUMNS or not self.stacked_next
        return node.in_place is InPlace.AS_COLUMNS and len(self.steps) == 1 and self.batches_in_place(self.steps[0])

    def batches_in_place(self, step: Step) -> bool:
        """Whether a step makes results that no function of the user's sees."""
        ours = type(step) is BatchStream and is_ours(step.batch_fn)
        return ours and step is self.steps[-1] and not self.stacked_next

    @property
    def droppers(self) -> list[Node]:
        """Where elements may go missing: the map node, then the steps that drop some."""
        steps: list[Node] = [step for step in self.steps if step.drops]
        return steps if self.node is None else [self.node, *steps]


def first_that_asks(steps: Sequence[Step], missing: bool, skip: bool) -> int:
    """The first step that depends on how many elements came before, where that is not known by arithmetic.

    Returns its place in `steps`, or their number if there is no such step.

    Args:
      missing: whether elements may be missing before the first step.
      skip: whether elements that fail in a step are left out.
    """
    for place, step in enumerate(steps):
        if step.count_key and missing:
            return place
        missing = missing or step.drops or (skip and type(step) is not BatchStream)
    return len(steps)


def _nodes(node: MapNode | None) -> list[MapNode]:
    return [] if node is None else [node, *(above for parent in node.parents for above in _nodes(parent))]


class Misfit(Exception):
    """Elements are missing where a program with batches or counts relied on all of them."""


@dataclasses.dataclass(slots=True)
class Result:
    """The rows that a program made of the positions [low, high), and where the stream stands after each of them.

    `marks` has a line per row: the next position, then for each counting step how many elements it has seen.
    A `failure` belongs to the row after the last one.
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
    stays: list[list[bool] | int] = dataclasses.field(default_factory=list)
    """Which elements stayed, for each of `Program.droppers`: one bool each, or their number where all did."""
    tally: Tally | None = None
    """What each stage took, where stages are timed."""
    work_s: float = 0.0
    """What all of it took, but for bringing rows there and back."""
    size_bytes: int | None = None
    """What the rows took to travel, if they did."""


Skipped = tuple[int, SkipNote]
"""A position, and what failed there."""

Announce = Callable[[int, int], None]
"""Is called with the positions that are worked on next."""

PLAN_AHEAD = 8192
"""How many source indices are computed at once. Index arithmetic costs nanoseconds in bulk, microseconds alone."""

_SMALL_PLAN = 64


class Rows(abc.ABC):
    """Where a program gets the rows that it starts from."""

    @abc.abstractmethod
    def read(self, low: int, high: int, private: bool) -> Block:
        """The rows at positions [low, high); after a failure they are asked for again. Raises RowFailed.

        If they are not `private`, the caller only reads them, and they may belong to somebody else, such as a source.
        """

    @optional
    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        """Index and records of a row that was read, counted from the first one; by default they are not known."""
        return None


class PlannedRows(Rows):
    """Elements of a map node. With `ahead`, indices are planned for more elements than are read; plans grow."""

    def __init__(self, node: MapNode, *, ahead: bool = False):
        self._node = node
        self._ahead = ahead
        self._size = self._most = 0
        self._plan: Plan | None = None
        self._start = self._end = 0

    def read(self, low: int, high: int, private: bool) -> Block:
        if self._plan is None or low < self._start or high > self._end:
            if self._ahead:
                # The first plan has what is asked for and no more: after a restore the first element should come soon.
                # But parts of one element are planned together, so that it is split once.
                self._most = self._most or max(1, PLAN_AHEAD // self._node.fan_in)
                is_first = self._plan is None and not self._node.has_splits
                self._size = 0 if is_first else min(self._most, 2 * self._size or _SMALL_PLAN)
            end = max(high, min(self._node.length, low + self._size))
            plan = self._node.plan(np.arange(low, end))
            self._plan, self._start, self._end = plan, low, end  # in one statement: an interrupt may come between two
        return self._plan.read(low - self._start, high - self._start, private)


class GivenRows(Rows):
    """Rows that a task brought along; the first one is at position `first`."""

    def __init__(self, block: Block, first: int):
        self._block, self._first = block, first

    def read(self, low: int, high: int, private: bool) -> Block:
        # A copy: a function writes into what it is given, and after a failure the rows are needed once more.
        return copy_block(blocks.part_of(self._block, low - self._first, high - self._first))


def run(
    program: Program,
    rows: Rows,
    low: int,
    high: int,
    count_before: CountBefore,
    announce: Announce | None = None,
    place: Allocator | None = None,
) -> Result:
    """Runs a program on positions [low, high). A failing element cuts the block short; the rows before it are there.

    With `announce` it goes element by element, each announced before it is begun. If elements that fail are
    skipped, the block is not cut. Results that no function of the user's sees are made in `place`.
    """
    begun = time.perf_counter()
    spent: Tally | None = {} if program.timed else None
    runner = Runner(program, rows, count_before, place=place, announce=announce)
    with contextlib.nullcontext() if spent is None else tally.taken(spent):
        try:
            result = runner.result(low, high)
        except FailedAt as failed:
            result = run_again(runner, low, high, failed)
    result.tally, result.work_s = spent, time.perf_counter() - begun
    return result


def run_again(runner: Runner, low: int, high: int, failed: FailedAt) -> Result:
    """Runs a block again that has failed, so that the failure is that of the first element that fails."""
    program = runner.program
    # A function of whole columns, or a source that reads many records at once, does not tell which element it was.
    if runner.announce is None and (program.skip or high - low > 1):
        try:
            result = runner.like(program, announce=lambda low, high: None).result(low, high)
            if program.skip or not runner.here:
                return result
            # In the consumer an error that comes and goes is raised all the same, as it is for a block of one.
        except FailedAt as failure:
            failed = failure
    # The rows before the failure are made again, now without it: functions are pure, and failures are rare. One of
    # these may fail, too, in a later step, since steps run one after the other. Then its failure comes first, as it
    # would if every element went alone through all steps; and a full batch is made before the elements after it.
    nothing = Result([], np.zeros((0, 1 + len(program.counting)), dtype=np.int64), [])
    while True:
        result = nothing
        try:
            for part in _up_to_batches(program):
                good = low + (failed.position - low) // part.unit * part.unit
                result = runner.like(part).result(low, good) if good > low else nothing
            return dataclasses.replace(result, failure=failed.error)
        except FailedAt as failure:
            failed = failure


def _up_to_batches(program: Program) -> list[Program]:
    """What is done before each step that makes batches, then all of it."""
    cuts = [number for number, step in enumerate(program.steps) if type(step) is BatchStream]
    return [*(dataclasses.replace(program, steps=program.steps[:cut]) for cut in cuts), program]


class FailedAt(Exception):
    """The element at `position` could not be made because of `error`. Never leaves the engine."""

    def __init__(self, position: int, error: Exception):
        super().__init__(position, error)
        self.position = position
        self.error = error


class Runner:
    """Runs a program on blocks of rows, one block after the other.

    Args:
      program: what to run.
      rows: what it starts from.
      count_before: asked how many elements came to a counting step before this block, where `counts` are not known.
      place: where results are made that no function of the user's sees.
      announce: if given, goes element by element and calls it before each.
      here: whether the consumer runs it and takes all rows of a block at once.
    """

    __slots__ = (
        "after", "announce", "count_before", "counts", "current", "dropped", "here", "high", "low",
        "numbered", "place", "private", "program", "rows", "skipped", "stays", "steps", "trail", "watched",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        rows: Rows,
        count_before: CountBefore,
        *,
        place: Allocator | None = None,
        announce: Announce | None = None,
        here: bool = False,
    ):
        self.program, self.rows, self.count_before = program, rows, count_before
        self.place, self.announce, self.here = place, announce, here
        self.watched = program.timed or announce is not None
        """Whether something is done before and after each step."""
        self.low = self.high = 0
        self.private = not self._is_copied(0)
        self.dropped = False
        """Whether an element of the last block was missing or dropped."""
        self.numbered = True
        """Whether the position of a row is that of an element, which messages may name."""
        self.after: list[int] = []
        self.stays: list[list[bool] | int] = []
        self.skipped: list[Skipped] = []
        self.trail: list[list[bool] | int | BatchStream] = []
        """What happened to the rows: which stayed, from where they were counted, how they were batched."""
        self.counts: Sequence[int] | None = None
        """How many elements came to each counting step before the block, if it is known; else `count_before` tells."""
        self.steps = [self._describe_step(number, step) for number, step in enumerate(program.steps)]
        self.current: Elementwise | None = None

    def _describe_step(self, number: int, step: Step) -> tuple[Any, Any, bool, bool, bool, bool]:
        """A step and how it runs on a block, None if it makes batches; whether it counts elements, or drops some.

        Then whether what it makes must be made private: columns, rows.
        """
        if not isinstance(step, Elementwise):
            return step, None, False, False, False, False
        operation = step.operation
        counts, shares = operation.kind.count_key is not None, operation.shares
        return step, operation.run, counts, operation.kind.drops, shares, shares and not self._is_copied(number + 1)

    def like(self, program: Program, announce: Announce | None = None) -> Runner:
        """A runner for another program on the same rows."""
        other = Runner(program, self.rows, self.count_before, place=self.place, announce=announce, here=self.here)
        other.counts = self.counts
        return other

    def result(self, low: int, high: int) -> Result:
        """Runs the program on positions [low, high), and says where the stream stands after each row."""
        return self.result_of(self.make(low, high))

    def result_of(self, rows: Block) -> Result:
        """The result of the rows that `make` has just made."""
        self.skipped.sort(key=lambda skipped: skipped[0])
        return Result(rows, self.marks(), self.after, skipped=self.skipped, stays=self.stays)

    def make(self, low: int, high: int, limit: int = 0) -> Block:
        """Runs the program on positions [low, high). Raises FailedAt if an element fails.

        `after`, `stays` and `skipped` are as in Result afterwards. This runs for every single element where the
        consumer asks for one at a time, so that each call counts. With a `limit` beyond `high`, it may go on for
        elements that are missing, but not beyond the limit; `self.high` says how far it went.
        """
        program = self.program
        self.low, self.high, self.numbered = low, high, program.node is not None
        self.trail, self.skipped, self.dropped = [], [], False
        if self.watched or self.place is not None:
            block = self._read()
        else:
            try:
                block = self.rows.read(low, high, self.private)
            except RowFailed as failed:
                raise self._failed(low + failed.row, failed.error) from failed.error
        self.stays = [len(block)] if self.numbered else []
        if not program.allow_nones:
            there = block.dense() if isinstance(block, Columns) else [row for row in block if row is not None]
            if len(there) < len(block):
                if limit > high and isinstance(block, list) and isinstance(there, list) and not self.watched:
                    block, there = self._read_on(block, there, limit)
                self._note_missing(block)
                block = there
        self.after = after = []
        for step, run, counts, drops, shares, rows_shared in self.steps:
            if run is None:
                block = self._timed(step, self._batch, block)
                self.trail.append(step)
                self.numbered = False
                continue
            count, numbers, kept = len(block), (), None
            if counts:
                place = len(after)
                first = self.count_before(place, count) if self.counts is None else self.counts[place]
                after.append(first + count)
                self.trail.append(first)
                numbers = range(first, first + count)
            if count:
                self.current = step
                if self.watched:
                    block, kept = self._timed(step, self._step, block, numbers)
                else:
                    try:
                        block, kept = run(block, numbers, self._where)
                    except RowFailed as failed:
                        raise self._failed_in_step(failed) from failed.error
                    if kept is not None:
                        block = keep_rows(block, kept)
                if kept is not None:
                    self.trail.append(kept)
                    self.dropped = True
                if rows_shared or (shares and isinstance(block, Columns)):
                    block = own_block(block)
            if drops:
                self.stays.append(count if kept is None else kept)
        if program.stacked_next and not self.here and len(block):
            with self._in_place():
                block = blocks.as_columns(block) or block
        return block

    def _read_on(self, block: list[Any], there: list[Any], limit: int) -> tuple[list[Any], list[Any]]:
        """Reads as many positions more as elements are missing, and again for those that are missing among them.

        So one block fills a batch after a filter. Nothing is read ahead: if no element were missing among those that
        are read, the consumer would get all of them.

        Args:
          block: the rows that were read.
          there: those of them that are not missing.
          limit: the position before which this ends.

        Returns:
          Both lists, with the rows that were read here.
        """
        wanted = len(block)
        while len(there) < wanted and self.high < limit:
            low, high = self.high, min(self.high + wanted - len(there), limit)
            try:
                rows = blocks.rows_of(self.rows.read(low, high, self.private))
            except RowFailed as failed:
                raise self._failed(low + failed.row, failed.error) from failed.error
            self.high = high
            block, there = block + rows, there + [row for row in rows if row is not None]
        return block, there

    def _timed(self, step: Step, run: Callable[..., Any], block: Block, *more: Any) -> Any:
        if not self.program.timed:
            return run(step, block, *more)
        with tally.timed(step) as stage:
            made = run(step, block, *more)
            stage.made(made[0] if isinstance(step, Elementwise) else made)
        return made

    def marks(self) -> np.ndarray:
        """For each row so far the next position, then for each counting step how many elements it has seen."""
        marks = np.arange(self.low + 1, self.high + 1)[:, None]
        end: np.ndarray | None = None
        for entry in self.trail:
            if isinstance(entry, list):
                marks = marks[np.array(entry, dtype=bool)]
            elif isinstance(entry, int):
                marks = np.column_stack([marks, np.arange(entry + 1, entry + 1 + len(marks))])
            else:
                size, count = entry.batch_size, len(marks)
                ends = np.arange(size - 1, count, size)
                if count % size and not entry.drop_remainder:
                    ends = np.append(ends, count - 1)
                batches = marks[ends]
                if count % size and entry.drop_remainder:
                    end = marks[-1]
                elif count % size and end is not None:
                    # The last batch was filled only once the stream had ended, with what a batch before has dropped.
                    batches[-1, : len(end)] = end
                marks = batches
        return marks

    def _is_copied(self, number: int) -> bool:
        """Whether rows before step `number` are copied, into a batch or to be sent, before anyone writes into them."""
        for step in self.program.steps[number:]:
            if type(step) is BatchStream:
                return is_ours(step.batch_fn)
            if isinstance(step, Elementwise) and step.operation.writes:
                return False
        return self.program.stacked_next or self.place is not None

    def _in_place(self, allowed: bool = True) -> contextlib.AbstractContextManager[None]:
        """While this is open, new arrays are made where results go, if that is `allowed`."""
        return memory.allocating(self.place) if allowed and self.place is not None else contextlib.nullcontext()

    def _note_missing(self, block: Block) -> None:
        """Takes note of the rows of a block that are missing, before they are left out."""
        program = self.program
        if program.unit > 1 or (program.counting and not program.sparse):
            raise Misfit
        present = blocks.presence(block)
        self.trail.append(present)
        self.stays = [present]
        self.dropped = True

    def _read(self) -> Block:
        """The rows that the program starts from, where this is timed or announced, or done in place."""
        if not (self.program.timed and self.here):
            return self._read_rows()
        with tally.timed(self.program.reading) as stage:
            block = self._read_rows()
            stage.made(block)
        return block

    def _read_rows(self) -> Block:
        low, high = self.low, self.high
        if self.announce is None or self.program.node is None:
            try:
                with self._in_place(self.program.takes_in_place):
                    return self.rows.read(low, high, self.private)
            except RowFailed as failed:
                raise self._failed(low + failed.row, failed.error) from failed.error
        read: list[Any] = []
        for position in range(low, high):
            self.announce(position, position + 1)
            try:
                read.extend(blocks.rows_of(self.rows.read(position, position + 1, True)))
            except RowFailed as failed:
                self._skip(self._failed(position, failed.error))
                read.append(None)
        return read

    def _failed_in_step(self, failed: RowFailed) -> FailedAt:
        return FailedAt(int(self.marks()[failed.row, 0]) - 1, failed.error)

    def _failed(self, position: int, error: Exception) -> FailedAt:
        add_note(error, f"bushel: this was element {position} of the output.")
        return FailedAt(position, error)

    def _skip(self, failed: FailedAt) -> None:
        """Notes that an element is skipped, or raises if elements are not skipped."""
        program = self.program
        if not program.skip:
            raise failed from failed.error
        which = "an element" if program.node is None else program.which(failed.position, failed.position + 1)
        self.skipped.append((failed.position, (which, describe_error(failed.error), 1)))

    def _step(self, step: Elementwise, block: Block, numbers: Sequence[int]) -> tuple[Block, list[bool] | None]:
        """One per-element operation on all rows, one by one if each is announced. Returns what stays, and which."""
        run = step.operation.run
        if self.announce is None:
            try:
                block, kept = run(block, numbers, self._where)
            except RowFailed as failed:
                raise self._failed_in_step(failed) from failed.error
            return block if kept is None else keep_rows(block, kept), kept
        positions = (self.marks()[:, 0] - 1).tolist()
        made: list[Any] = []
        stays: list[bool] = []
        one: Block = []
        for row, element in enumerate(blocks.rows_of(block)):
            self.announce(positions[row], positions[row] + 1)
            try:
                one, kept = run([element], numbers[row : row + 1], lambda _, row=row: self._where(row))
            except RowFailed as failed:
                self._skip(FailedAt(positions[row], failed.error))
                kept = [False]
            stays.append(kept is None or kept[0])
            if stays[-1]:
                made.extend(blocks.rows_of(one))
        return made, None if all(stays) else stays

    def _batch(self, step: BatchStream, block: Block) -> list[Any]:
        size, count = step.batch_size, len(block)
        batches: list[Any] = []
        with self._in_place(self.program.batches_in_place(step)):
            for start in range(0, count, size):
                end = min(start + size, count)
                if end - start < size and step.drop_remainder:
                    break
                if self.announce is not None:
                    marks = self.marks()
                    self.announce(int(marks[start, 0]) - 1, int(marks[end - 1, 0]))
                try:
                    batches.append(make_batch(blocks.part_of(block, start, end), step.batch_fn))
                except Exception as error:
                    position = int(self.marks()[start, 0]) - 1
                    raise FailedAt(position, locate_error(error, f"bushel: {step.call()} failed.")) from error
        return own(batches) if step.shares else batches

    def _where(self, row: int) -> str:
        """Says where row `row` failed in the step that runs now."""
        step = self.current
        assert step is not None
        if self.numbered:
            position = int(self.marks()[row, 0]) - 1
            return describe_failure(step.describe(), position, self.program.origins(position))
        known = self.rows.trace(int(self.marks()[row, 0]) - 1 - self.low) if self.program.node is None else None
        return f"bushel: {step.describe()} failed." if known is None else describe_failure(step.describe(), *known)


def state_of(program: Program, state: dict[str, Any], counts: Sequence[int]) -> dict[str, Any]:
    """The state of the stream that a program stands for, in Grain's form; `state` is that of its rows."""
    for step, count in zip(program.counting, counts, strict=True):
        assert step.count_key is not None
        state = {"parent": state, step.count_key: count}
    return state


def counts_of(program: Program, state: Any) -> tuple[Any, list[int]]:
    """The state of a program's rows and the counts of its steps, out of a state that `state_of` made."""
    counts: list[int] = []
    for step in reversed(program.counting):
        assert step.count_key is not None
        with inside(*["parent"] * len(counts)):
            counts.append(read_count(state, step.count_key))
            state = read_field(state, "parent", dict)
    return state, counts[::-1]
