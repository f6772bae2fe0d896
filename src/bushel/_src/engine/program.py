"""Programs: what is computed for a block of positions of a stream, on every executor.

A program is a part of a stream whose operations do not look at neighbours. It starts from the elements of a map node,
or from rows that a task brings along. Then come per-element operations, then perhaps batches. The operations of the map
node itself run when its plan is read: see graph/map_ops.py. The result of a program is a pure function of a block of
positions. It has for each row the position after that row, so that delivery knows the state. Retries element by element
and skipping are here and nowhere else; ordered stages are in graph/.
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

from bushel._src.base import blocks, memory
from bushel._src.base.blocks import Block, Columns, copy_block
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import RowFailed, add_note, describe_error, inside, locate_error
from bushel._src.base.memory import Allocator
from bushel._src.base.private_elements import make_private
from bushel._src.base.read_only_calls import RowsOfKnownTypes
from bushel._src.base.state_names import overridable
from bushel._src.engine import measurements
from bushel._src.engine.measurements import Tally, Watched
from bushel._src.graph.batch import is_made_by_library, make_batch
from bushel._src.graph.cursors import SkipNote, read_count, read_field
from bushel._src.graph.node import InPlace, MapNode, Node, Origin, Plan, describe_failure
from bushel._src.graph.operation import keep_rows
from bushel._src.graph.stream_ops import BatchStream, Elementwise, Step
from bushel._src.graph.streams import Elements

CountBefore = Callable[[int, int], int]
"""(counting step, how many elements reach it in this block) -> how many reached it in all blocks before."""


@dataclasses.dataclass(eq=False)
class Program:
    """The elements of `node`, then `steps`. It never changes.

    If it is not `sparse`, all elements must be there. If one is missing all the same, running it raises `Misfit`.
    """

    node: MapNode | None
    """None if each task brings its rows."""
    allow_nones: bool = False
    steps: tuple[Step, ...] = ()
    stacked_next: bool = False
    """Whether the receiver copies the rows, into batches or packed rows. It takes columns as well as rows."""
    may_miss: bool = False
    """Whether elements may be missing although no operation drops any: a `map` has returned None."""
    skip: bool = False
    """Whether an element that fails is skipped, and listed in `Result.skipped`."""
    reading: Elements | None = None
    """The stage whose time is that of reading the node's elements in the consumer, if stages are timed."""
    unit: int = dataclasses.field(default=1, init=False)
    """How many positions make one row, if no element is missing. Blocks hold whole multiples of it."""
    drops: bool = dataclasses.field(default=False, init=False)
    """Whether a step drops elements."""
    timed: bool = dataclasses.field(default=False, init=False)
    """Whether its stages are timed."""

    def __post_init__(self) -> None:
        self.counting: list[Step] = []
        """The steps that depend on how many elements came before."""
        self.unit_before_counting: list[int] = []
        """For each counting step, how many positions make one of its elements."""
        for step in self.steps:
            self.unit *= step.gathers
            self.drops = self.drops or step.drops
            if step.count_key is not None:
                self.counting.append(step)
                self.unit_before_counting.append(self.unit)
        self.timed = type(self.node) is Watched or any(measurements.get_number(step) is not None for step in self.steps)

    @property
    def length(self) -> int:
        """The number of positions."""
        return INFINITE if self.node is None else self.node.length

    def origins(self, position: int) -> tuple[Origin, ...]:
        """Return the records of which the element at a position is made, if they are known."""
        return () if self.node is None else self.node.origins(position)

    def call(self) -> str:
        """Return the operation that a user sees first, as the user wrote it."""
        return self.steps[0].call() if self.node is None else self.node.call()

    def describe_elements(self, low: int, high: int) -> str:
        """Return words for the elements at positions [low, high). Rows that a task brings have no known position."""
        if self.node is None:
            return f"an element of {self.steps[0].describe()}"
        one = high == low + 1
        return f"{f'element {low}' if one else f'one of the elements {low} to {high - 1}'} of the output"

    def describe_interruption(self, low: int, high: int) -> str:
        """Return the note for what a function raised at these positions, and what is not an Exception."""
        return f"bushel: raised while {self.describe_elements(low, high)} was computed."

    def list_operations(self) -> list[Node]:
        """Return all nodes of this program, the last operation first."""
        return [*reversed(self.steps), *_list_nodes(self.node)]

    @property
    def sparse(self) -> bool:
        """Whether the number of rows of a block is known only after it has run."""
        holes = self.node is not None and self.node.sparse and not self.allow_nones
        return self.drops or self.may_miss or self.skip or holes

    @functools.cached_property
    def asks(self) -> bool:
        """Whether a block must ask the blocks before it how many elements have reached one of its steps."""
        missing = self.node is not None and self.sparse  # the rows that a task brings are all there
        return find_step_that_asks(self.steps, missing, self.skip) < len(self.steps)

    @functools.cached_property
    def takes_in_place(self) -> bool:
        """Whether the node's elements are the result as they are, or are only cut into batches.

        Then they can be read directly into the memory of the result.
        """
        node = self.node
        if node is None or node.in_place is InPlace.NEVER:
            return False
        if not self.steps:
            return node.in_place is InPlace.AS_COLUMNS or not self.stacked_next
        return node.in_place is InPlace.AS_COLUMNS and len(self.steps) == 1 and self.batches_in_place(self.steps[0])

    def batches_in_place(self, step: Step) -> bool:
        """Return whether a step makes the last batches, and no function of the user's sees them afterwards."""
        made_by_library = type(step) is BatchStream and is_made_by_library(step.batch_fn)
        return made_by_library and step is self.steps[-1] and not self.stacked_next

    @property
    def droppers(self) -> list[Node]:
        """The nodes that may drop elements: the map node, then the steps that drop some."""
        steps: list[Node] = [step for step in self.steps if step.drops]
        return steps if self.node is None else [self.node, *steps]


def find_step_that_asks(steps: Sequence[Step], missing: bool, skip: bool) -> int:
    """Return the place of the first step that needs the number of elements before it, which no arithmetic gives.

    Returns the number of steps if there is no such step.

    Args:
      missing: whether elements may be missing before the first step.
      skip: whether elements that fail in a step are left out.
    """
    for place, step in enumerate(steps):
        if step.count_key and missing:
            return place
        missing = missing or step.drops or (skip and type(step) is not BatchStream)
    return len(steps)


def _list_nodes(node: MapNode | None) -> list[MapNode]:
    return [] if node is None else [node, *(above for parent in node.parents for above in _list_nodes(parent))]


class Misfit(Exception):
    """Elements are missing where a program with batches or counts relied on all of them."""


@dataclasses.dataclass(slots=True)
class Result:
    """The rows that a program has made of the positions [low, high), and the position of the stream after each row.

    `marks` has a line for each row: the next position, then for each counting step how many elements it has seen.
    `failure` is the error of the row after the last one.
    """

    rows: Block
    marks: np.ndarray
    after: list[int]
    """How many elements each counting step has seen after the whole block, with those that a later step drops."""
    failure: BaseException | None = None
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    """The elements that failed and were skipped, in order."""
    states: list[dict[str, Any]] | None = None
    """For a whole stream that a worker runs: its state before the first row, and after each row."""
    stays: list[list[bool] | int] = dataclasses.field(default_factory=list)
    """For each of `Program.droppers`, whether each element stayed; or the number of elements if all of them stayed."""
    tally: Tally | None = None
    """The time of each stage, if stages are timed."""
    work_s: float = 0.0
    """How many seconds the computation took, without sending rows to a worker and back."""
    size_bytes: int | None = None
    """How many bytes a worker has sent for the rows; None if they were computed in this process."""


Skipped = tuple[int, SkipNote]
"""The position of an element that was skipped, and the note that says why."""

Announce = Callable[[int, int], None]
"""A function that is called with the positions [low, high) before they are computed."""

PLAN_AHEAD = 8192
"""How many source indices are computed at once. Index arithmetic costs nanoseconds in bulk, microseconds alone."""

_SMALL_PLAN = 64


class ProgramInput(abc.ABC):
    """The rows that a program starts from."""

    @abc.abstractmethod
    def read(self, low: int, high: int, private: bool) -> Block:
        """Return the rows at positions [low, high). Raise RowFailed. After a failure, the program reads them again.

        If they are not `private`, the caller does not write into them, so they may belong to a source.
        """

    @overridable
    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        """Return index and record of row number `row` of the last read; by default they are not known."""
        return None


class PlannedInput(ProgramInput):
    """Elements of a map node. With `ahead`, indices are planned for more elements than are read, and plans grow."""

    def __init__(self, node: MapNode, *, ahead: bool = False):
        self._node = node
        self._ahead = ahead
        self._size = self._most = 0
        self._plan: Plan | None = None
        self._start = self._end = 0

    def read(self, low: int, high: int, private: bool) -> Block:
        if self._plan is None or low < self._start or high > self._end:
            if self._ahead:
                # The first plan has only the elements that are read: after a restore the first one should come soon.
                # But parts of one element are planned together: otherwise each part would split the element again.
                self._most = self._most or max(1, PLAN_AHEAD // self._node.fan_in)
                is_first = self._plan is None and not self._node.has_splits
                self._size = 0 if is_first else min(self._most, 2 * self._size or _SMALL_PLAN)
            end = max(high, min(self._node.length, low + self._size))
            plan = self._node.plan(np.arange(low, end))
            # In one statement: Ctrl-C between two statements would leave a plan with wrong bounds.
            self._plan, self._start, self._end = plan, low, end
        return self._plan.read(low - self._start, high - self._start, private)


class GivenInput(ProgramInput):
    """Rows that a task has brought along. The first one is at position `first`."""

    def __init__(self, block: Block, first: int):
        self._block, self._first = block, first

    def read(self, low: int, high: int, private: bool) -> Block:
        # A copy: a function may write into its rows, and after a failure the same rows are needed once more.
        return copy_block(blocks.slice_block(self._block, low - self._first, high - self._first))


def run(
    program: Program,
    rows: ProgramInput,
    low: int,
    high: int,
    count_before: CountBefore,
    announce: Announce | None = None,
    allocator: Allocator | None = None,
) -> Result:
    """Run a program on positions [low, high). If an element fails, the result has the rows before it, and its error.

    If the program skips elements that fail, the result goes on after them.

    Args:
      announce: if given, elements are computed one by one, and this function is called before each of them.
      allocator: allocates the memory of results that no function of the user's sees.
    """
    begun = time.perf_counter()
    spent: Tally | None = {} if program.timed else None
    runner = Runner(program, rows, count_before, allocator=allocator, announce=announce)
    with contextlib.nullcontext() if spent is None else measurements.measure_into(spent):
        try:
            result = runner.run(low, high)
        except FailedAt as failed:
            result = run_again(runner, low, high, failed)
    result.tally, result.work_s = spent, time.perf_counter() - begun
    return result


def run_again(runner: Runner, low: int, high: int, failed: FailedAt) -> Result:
    """Run a block again that has failed, and return the rows before the first element that fails, with its error."""
    program = runner.program
    # A function of whole columns, or a source that reads many records at once, does not say which element failed.
    if runner.announce is None and (program.skip or high - low > 1):
        try:
            result = runner.make_runner(program, announce=lambda low, high: None).run(low, high)
            if program.skip or not runner.here:
                return result
            # No element has failed this time. The consumer raises the error all the same, as for a single element.
        except FailedAt as failure:
            failed = failure
    # The rows before the failure are computed again, without the element that failed: functions are pure, and failures
    # are rare. One of these rows may fail, too, in a later step, since steps run one after the other. Then that failure
    # comes first, as if each element went through all steps alone, and each full batch were made before the elements
    # after it.
    nothing = make_empty_result(program)
    while True:
        result = nothing
        try:
            for part in _cut_before_batches(program):
                good = low + (failed.position - low) // part.unit * part.unit
                result = runner.make_runner(part).run(low, good) if good > low else nothing
            return dataclasses.replace(result, failure=failed.error)
        except FailedAt as failure:
            failed = failure


def make_empty_result(program: Program) -> Result:
    """Return a result without rows."""
    return Result([], np.zeros((0, 1 + len(program.counting)), dtype=np.int64), [])


def _cut_before_batches(program: Program) -> list[Program]:
    """Return the program up to each step that makes batches, then the whole program."""
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
      rows: the rows that it starts from.
      count_before: returns how many elements reached a counting step before this block, if `counts` is None.
      allocator: allocates the memory of results that no function of the user's sees.
      announce: if given, elements are computed one by one, and this function is called before each of them.
      here: whether the consumer runs it, and takes all rows of a block at once.
    """

    __slots__ = (
        "after", "allocator", "announce", "count_before", "counts", "current", "dropped", "here", "high", "low",
        "numbered", "private", "program", "rows", "skipped", "stays", "steps", "trail", "watched",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        rows: ProgramInput,
        count_before: CountBefore,
        *,
        allocator: Allocator | None = None,
        announce: Announce | None = None,
        here: bool = False,
    ):
        self.program, self.rows, self.count_before = program, rows, count_before
        self.allocator, self.announce, self.here = allocator, announce, here
        self.watched = program.timed or announce is not None
        """Whether steps are timed or announced."""
        self.low = self.high = 0
        self.private = self._must_be_private(0)
        self.dropped = False
        """Whether an element of the last block was missing or dropped."""
        self.numbered = True
        """Whether each row is the element at one position, so that messages may name this position."""
        self.after: list[int] = []
        self.stays: list[list[bool] | int] = []
        self.skipped: list[Skipped] = []
        self.trail: list[list[bool] | int | BatchStream] = []
        """What has happened to the rows so far: which stayed, the count before the first, how they were batched."""
        self.counts: Sequence[int] | None = None
        """How many elements reached each counting step before the block; None if `count_before` must be asked."""
        self.steps = [self._describe_step(number, step) for number, step in enumerate(program.steps)]
        self.current: Elementwise | None = None

    def _describe_step(self, number: int, step: Step) -> tuple[Any, Any, bool, bool, bool]:
        """Return what `make` needs of a step: the step; the function that runs it, None if it makes batches; whether it
        counts elements, and drops some; and whether its rows must be private.
        """
        if not isinstance(step, Elementwise):
            return step, None, False, False, True
        kind = step.operation.kind
        return step, step.operation.run, kind.count_key is not None, kind.drops, self._must_be_private(number + 1)

    def make_runner(self, program: Program, announce: Announce | None = None) -> Runner:
        """Return a runner for another program on the same rows."""
        other = Runner(
            program, self.rows, self.count_before, allocator=self.allocator, announce=announce, here=self.here
        )
        other.counts = self.counts
        return other

    def run(self, low: int, high: int) -> Result:
        """Run the program on positions [low, high), and return the rows with the position after each."""
        return self.make_result(self.make(low, high))

    def make_result(self, rows: Block) -> Result:
        """Return the result with the rows that `make` has just made."""
        self.skipped.sort(key=lambda skipped: skipped[0])
        return Result(rows, self.marks(), self.after, skipped=self.skipped, stays=self.stays)

    def make(self, low: int, high: int, limit: int = 0) -> Block:
        """Run the program on positions [low, high), and return the rows. Raise FailedAt if an element fails.

        Afterwards `after`, `stays` and `skipped` are as in Result. If the consumer asks for one element at a time, this
        runs for every element, so each function call in here costs time. With a `limit` beyond `high`, the block may go
        on for elements that are missing, but not beyond the limit; `self.high` says how far it went.
        """
        program = self.program
        self.low, self.high, self.numbered = low, high, program.node is not None
        self.trail, self.skipped, self.dropped = [], [], False
        if self.watched or self.allocator is not None:
            block = self._read()
        else:
            try:
                block = self.rows.read(low, high, self.private)
            except RowFailed as failed:
                raise self._failed(low + failed.row, failed.error) from failed.error
        self.stays = [len(block)] if self.numbered else []
        is_private = self.private or self.announce is not None
        if not program.allow_nones:
            there = block.dense() if isinstance(block, Columns) else [row for row in block if row is not None]
            if len(there) < len(block):
                if limit > high and isinstance(block, list) and isinstance(there, list) and not self.watched:
                    block, there = self._read_on(block, there, limit)
                self._note_missing(block)
                block = RowsOfKnownTypes(blocks.rows_of(there)) if type(block) is RowsOfKnownTypes else there
            there = None  # the gate counts who holds the rows
        self.after = after = []
        for step, run, counts, drops, private in self.steps:
            if run is None:
                block = self._timed(step, self._batch, block)
                self.trail.append(step)
                self.numbered, is_private = False, True
                continue
            count, numbers, kept = len(block), (), None
            if counts:
                counting_step = len(after)
                first = self.count_before(counting_step, count) if self.counts is None else self.counts[counting_step]
                after.append(first + count)
                self.trail.append(first)
                numbers = range(first, first + count)
            if count:
                self.current = step
                if self.watched:
                    block, kept = self._timed(step, self._step, block, numbers, is_private, private)
                else:
                    try:
                        block, kept = run(block, numbers, self._where, is_private=is_private, private=private)
                    except RowFailed as failed:
                        raise self._failed_in_step(failed) from failed.error
                    if kept is not None:
                        block = keep_rows(block, kept)
                if kept is not None:
                    self.trail.append(kept)
                    self.dropped = True
                is_private = private
            if drops:
                self.stays.append(count if kept is None else kept)
        if program.stacked_next and not self.here and len(block):
            with self._allocating():
                block = blocks.as_columns(block) or block
        return list(block) if type(block) is RowsOfKnownTypes else block

    def _read_on(self, block: list[Any], there: list[Any], limit: int) -> tuple[list[Any], list[Any]]:
        """Read as many positions more as elements are missing, and again for those that are missing among them.

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
        with measurements.timed(step) as made:
            result = run(step, block, *more)
            made.append(result[0] if isinstance(step, Elementwise) else result)
        return result

    def marks(self) -> np.ndarray:
        """Return for each row so far the next position, then for each counting step how many elements it has seen."""
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
                    # The last batch is complete only at the end of the stream, after the elements that an earlier
                    # batch step has dropped.
                    batches[-1, : len(end)] = end
                marks = batches
        return marks

    def _must_be_private(self, number: int) -> bool:
        """Return whether the rows before step `number` must be private. After the last step, it is those of the result.

        They need not be where the next step only reads or stacks them, nor where they are sent: the receiver makes them
        private. A filter returns the rows that it is given; it makes them private if the step after it needs that.
        """
        program = self.program
        if number == len(program.steps):
            return not program.stacked_next and self.allocator is None
        step = program.steps[number]
        if type(step) is BatchStream:
            return not is_made_by_library(step.batch_fn)
        return not isinstance(step, Elementwise) or step.operation.needs_private

    def _allocating(self, allowed: bool = True) -> contextlib.AbstractContextManager[None]:
        """Return a context in which new arrays are made in the memory of the result, if that is `allowed`."""
        return memory.allocating(self.allocator) if allowed and self.allocator is not None else contextlib.nullcontext()

    def _note_missing(self, block: Block) -> None:
        """Record which rows of a block are missing."""
        program = self.program
        if program.unit > 1 or (program.counting and not program.sparse):
            raise Misfit
        present = blocks.presence(block)
        self.trail.append(present)
        self.stays = [present]
        self.dropped = True

    def _read(self) -> Block:
        """Return the rows that the program starts from, if reading is timed or announced, or done in place."""
        if not (self.program.timed and self.here):
            return self._read_rows()
        with measurements.timed(self.program.reading) as made:
            made.append(self._read_rows())
        return made[0]

    def _read_rows(self) -> Block:
        low, high = self.low, self.high
        if self.announce is None or self.program.node is None:
            try:
                with self._allocating(self.program.takes_in_place):
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
        """Record that an element is skipped, or raise its error if the program does not skip elements."""
        program = self.program
        if not program.skip:
            raise failed from failed.error
        which = (
            "an element" if program.node is None else program.describe_elements(failed.position, failed.position + 1)
        )
        self.skipped.append((failed.position, (which, describe_error(failed.error), 1)))

    def _step(
        self, step: Elementwise, block: Block, numbers: Sequence[int], is_private: bool, private: bool
    ) -> tuple[Block, list[bool] | None]:
        """Run one per-element operation on all rows; one by one, if each is announced.

        Returns the rows that stay, and whether each row stays (None if all do).
        """
        run = step.operation.run
        if self.announce is None:
            try:
                block, kept = run(block, numbers, self._where, is_private=is_private, private=private)
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
                one, kept = run(
                    [element],
                    numbers[row : row + 1],
                    lambda _, row=row: self._where(row),
                    is_private=is_private,
                    private=private,
                )
            except RowFailed as failed:
                self._skip(FailedAt(positions[row], failed.error))
                kept = [False]
            stays.append(kept is None or kept[0])
            if stays[-1]:
                made.extend(blocks.rows_of(one))
        return made, None if all(stays) else stays

    def _batch(self, step: BatchStream, block: Block) -> list[Any]:
        size, count = step.batch_size, len(block)
        made_by_library = is_made_by_library(step.batch_fn)
        parts = [blocks.slice_block(block, start, min(start + size, count)) for start in range(0, count, size)]
        if isinstance(block, list):
            block.clear()  # the gate counts who holds what a batch is made of
        parts.reverse()
        batches: list[Any] = []
        with self._allocating(self.program.batches_in_place(step)):
            for start in range(0, count, size):
                end = min(start + size, count)
                if end - start < size and step.drop_remainder:
                    break
                if self.announce is not None:
                    marks = self.marks()
                    self.announce(int(marks[start, 0]) - 1, int(marks[end - 1, 0]))
                try:
                    batch = [make_batch(parts.pop(), step.batch_fn)]
                    batches += batch if made_by_library else make_private(batch)
                except Exception as error:
                    position = int(self.marks()[start, 0]) - 1
                    raise FailedAt(position, locate_error(error, f"bushel: {step.call()} failed.")) from error
        return batches

    def _where(self, row: int) -> str:
        """Return a note that says where row `row` failed in the step that runs now."""
        step = self.current
        assert step is not None
        if self.numbered:
            position = int(self.marks()[row, 0]) - 1
            return describe_failure(step.describe(), position, self.program.origins(position))
        known = self.rows.trace(int(self.marks()[row, 0]) - 1 - self.low) if self.program.node is None else None
        return f"bushel: {step.describe()} failed." if known is None else describe_failure(step.describe(), *known)


def get_user_error(error: BaseException) -> BaseException:
    """Return the error that the user should see: that of the element, if a cursor has wrapped it in a RowFailed."""
    return error.error if isinstance(error, RowFailed) else error


def make_state(program: Program, state: dict[str, Any], counts: Sequence[int]) -> dict[str, Any]:
    """Return the state of a program's stream in Grain's form. `state` is that of the rows that it starts from."""
    for step, count in zip(program.counting, counts, strict=True):
        assert step.count_key is not None
        state = {"parent": state, step.count_key: count}
    return state


def read_counts(program: Program, state: Any) -> tuple[Any, list[int]]:
    """Return the two arguments from which `make_state` has made this state: the state of the rows, and the counts."""
    counts: list[int] = []
    for step in reversed(program.counting):
        assert step.count_key is not None
        with inside(*["parent"] * len(counts)):
            counts.append(read_count(state, step.count_key))
            state = read_field(state, "parent", dict)
    return state, counts[::-1]
