"""Delivery: hands out the rows of a program in order, wherever they are computed.

Also how many positions a block should hold, learned from the blocks before. Where the rows of a program come from is in
program_delivery.py and upstream_delivery.py.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import PipelineNotSent, WorkerDied, add_note, describe_error, inside
from bushel._src.base.options import DatasetOptions
from bushel._src.base.state_names import overridable
from bushel._src.engine.measurements import size_of
from bushel._src.engine.program import (
    FailedAt,
    Program,
    ProgramInput,
    Result,
    Runner,
    Skipped,
    make_state,
    read_counts,
    run_again,
)
from bushel._src.engine.tasks import Executor, Ledger, Task, Ticket, wait_and_check
from bushel._src.graph.cursors import CLOSED, Cursor, Mark, Skips, State
from bushel._src.graph.usage_warnings import FilterWatch

BLOCK_S = 20e-3
"""How long a block should take to compute: much longer than handing it over, much shorter than anyone notices."""

MOST_POSITIONS = 1 << 20
"""How many positions may be computed ahead, if nothing else sets a bound."""


class Sizer:
    """Chooses how many positions a block should hold. Small records are sent many at a time.

    Args:
      unit: positions that make one row. A block holds whole multiples of it.
      most: how many positions a block may hold.
      block_bytes: how many bytes the rows of a block should have at most.
      least: positions that are requested together, however long that takes, as far as `most` and `block_bytes` allow.
      block_s: how long a block should take to compute.
    """

    def __init__(self, unit: int, most: int, block_bytes: int, least: int = 1, block_s: float = BLOCK_S):
        self._unit = unit
        self._most = max(1, most // unit)  # in units
        self._block_bytes, self._block_s = block_bytes, block_s
        self._least = self._units = max(1, min(least // unit, self._most))
        self._bytes_each: float | None = None  # bytes of the rows of a position, once a block was seen

    def choose_size(self) -> int:
        """Return the number of positions of the next block."""
        return self._units * self._unit

    def count_within(self, budget_bytes: int) -> int | None:
        """Return how many positions fit into a budget; None before the first block has told their size."""
        return None if self._bytes_each is None else int(budget_bytes / max(self._bytes_each, 1e-9))

    def learn(self, positions: int, seconds: float, size_bytes: int | None) -> None:
        """Learn from a block. If it has no rows, it has no size, and blocks do not grow."""
        if size_bytes is not None or self._bytes_each is None:  # rows that were dropped hold no memory
            self._bytes_each = (size_bytes or 0) / positions
        units = max(1, positions // self._unit)
        by_time = self._block_s * units / max(seconds, 1e-9)
        by_bytes = self._units if size_bytes is None else self._block_bytes * units / max(size_bytes, 1)
        # At most eight times as large as the last one: the first block is not typical, because it loads code.
        wanted = int(min(max(by_time, self._least), by_bytes, 8 * self._units))
        self._units = max(1, min(wanted, self._most))


def measure_result(result: Result) -> int:
    """Return the bytes of the rows of a result: those that a worker has sent, or an estimate."""
    return size_of(result.rows) if result.size_bytes is None else result.size_bytes


@dataclasses.dataclass(frozen=True)
class Placement:
    """The executor that computes rows, and how far ahead of the consumer it works."""

    executor: Executor
    blocks_ahead: int
    """How many blocks may be computed or wait for the consumer at a time."""
    most: int = MOST_POSITIONS
    """How many positions all of these blocks may have together."""
    least: int = 1
    """How many positions a block should have at least, because their records are requested together."""
    budget_bytes: int | None = None
    """How large the rows of all blocks may be together; None: delivery sets no limit."""
    block_s: float = BLOCK_S
    """How long a block should take to compute, in seconds."""


class Delivery(Cursor):
    """The rows of a program in order.

    Args:
      program: what to run.
      rows: the rows that it starts from, if the consumer runs it.
      placement: the executor that runs it; None if the consumer computes rows when it needs them.
      options: those of the whole pipeline.
      skips: counts the elements that failed and were skipped.
    """

    def __init__(
        self,
        program: Program,
        rows: ProgramInput,
        placement: Placement | None,
        options: DatasetOptions,
        skips: Skips | None = None,
    ):
        self._program = program
        self._runner = Runner(program, rows, _unknown_count, here=True)
        self._skips = skips
        self._options = options
        self._unjudged = 0  # how many positions the consumer has computed before a filter dropped the first element
        self._watches: list[FilterWatch] | None = None  # one for each filter, once one of them has dropped an element
        self._length = program.length
        self._position = 0
        self._counts: Sequence[int] = (0,) * len(program.counting)
        self._tickets: collections.deque[Ticket] = collections.deque()
        self._ledger: Ledger | None = None  # while rows are computed ahead
        self._result: Result | None = None
        self._row = self._given_from = 0
        self._high = 0  # the position after the result
        self._made: Result | None = None  # the last result that the consumer computed, if an element of it failed
        self._failure_next: BaseException | None = None  # the error of the row after it, which the next pull raises
        self._closed = False
        self._placement: Placement | None = None
        self._change_placement(placement)

    # What depends on where rows come from. The defaults are for a program over a map node: a position is an index.

    @abc.abstractmethod
    def _pull_here(self, count: int) -> Block | None:
        """Compute up to `count` rows in the consumer, and move the position behind them. Return None at the end.

        The block is empty if a filter has dropped all rows.
        """

    @overridable
    def _draw(self, low: int, high: int) -> tuple[Block | None, int]:
        """Return the rows that a task for positions [low, high) brings along, by default none, and where they end."""
        return None, high

    @overridable
    def _end_rows(self) -> None:
        """Move to the end, after all rows were delivered; or raise the error that ended the rows."""
        self._position, self._counts = self._length, self._after

    @overridable
    def _handle_not_sent(self, error: PipelineNotSent) -> None:
        """Raise the error of a program that cannot be sent to workers, or let the consumer run it from now on."""
        raise error

    @overridable
    def _learn(self, result: Result, positions: int) -> None:
        """Decide from a block of so many positions where the next ones are computed. By default nothing changes."""

    @overridable
    def _count_skipped(self, result: Result | None, before: int) -> None:
        """Count the elements that were skipped before a position; by default those that the program has skipped."""
        if result is not None:
            count_skipped(self._skips, result.skipped, before)

    @overridable
    def mark(self) -> tuple[Mark, Sequence[int]]:
        """Return the position in the rows that the program starts from, and the counts of its counting steps."""
        return self._position, self._counts

    @overridable
    def _rewind_rows(self, mark: Mark) -> None:
        """Go to a position in the rows that the program starts from."""
        self._position = mark

    @overridable
    def _get_row_index(self) -> int:
        """Return the index of the next of these rows."""
        return self._position

    @abc.abstractmethod
    def _find_row(self, index: int) -> Mark:
        """Return the position of the row with this index."""

    @abc.abstractmethod
    def _state_of_rows(self, mark: Mark) -> State:
        """Return the state that describes a position in these rows."""

    @abc.abstractmethod
    def _mark_of_rows(self, state: State) -> Mark:
        """Return the position in these rows that a state describes."""

    # Pulling.

    def pull(self, count: int) -> Block:
        while True:  # a filter may drop all rows, and the placement may change meanwhile
            if self._failure_next is not None:
                failure, self._failure_next = self._failure_next, None
                raise failure
            if self._placement is None:
                rows = self._pull_here(count)
                if rows is None:
                    return []
                if len(rows):
                    return rows
            elif (rows := self._pull_ahead(count)) is not None:
                return rows

    def _pull_ahead(self, count: int) -> Block | None:
        """Return the next rows of the executor, none at the end; None if the consumer computes rows from now on."""
        while self._placement is not None:
            result = self._result
            if result is not None and self._row < len(result.rows):
                low = self._given_from = self._row
                self._row = min(low + count, len(result.rows))
                self._position, *self._counts = result.marks[self._row - 1].tolist()
                self._count_skipped(result, self._position)
                return blocks.take_slice(result.rows, low, self._row)
            if result is not None and result.failure is not None:
                if self._step_over(result.failure):
                    continue
                self._count_skipped(result, max([position + 1 for position, _ in result.skipped], default=0))
                self._restart()
                raise result.failure
            if result is not None:
                self._position, self._counts = self._high, self._after
                self._count_skipped(result, self._position)
            if not self._next_block() and self._placement is not None:
                self._end_rows()
                return [] if self._placement is not None else None
        return None

    def _next_block(self) -> bool:
        """Wait for the next block, and submit another one in its place. Return False at the end."""
        assert self._placement is not None
        self._result = None
        try:
            self._fill()
        except PipelineNotSent as error:
            self._handle_not_sent(error)
            return False
        if not self._tickets:
            return False
        ticket = self._tickets[0]
        try:
            result, seconds = wait_and_check(self._placement.executor, ticket)
        except BaseException as error:
            if self._step_over(error):
                return self._next_block()
            if not self._closed:
                self._restart()
            raise
        if self._closed:
            raise ValueError(CLOSED)
        self._tickets.popleft()
        if (failed := self._judge_filters(ticket.task.low, result.stays)) is not None:
            result = _cut(result, *failed)
        self._result, self._row, self._high = result, 0, ticket.task.high
        if result.failure is None:
            self._after = result.after
        positions = ticket.task.high - ticket.task.low
        expected = -(-positions // self._program.unit)
        # A worker also makes the rows that a filter drops later. So the bytes are counted as if all rows had stayed.
        size = measure_result(result) * expected // len(result.rows) if len(result.rows) else None
        self._sizer.learn(positions, seconds, size)
        self._learn(result, positions)
        self._fill()
        return True

    def _step_over(self, error: BaseException) -> bool:
        """Skip an element that kills workers, if the options say so. Return False for other errors."""
        if self._skips is None or not isinstance(error, WorkerDied) or error.at is None:
            return False
        low, high = error.at
        self._count_skipped(self._result, high)
        self._skips.add(self._program.describe_elements(low, high), describe_error(error))
        before = self._after if self._result is None else self._result.after
        # As if the element had raised an error: the counting steps that it has reached have counted it.
        self._counts = [count + (step < error.counted) for step, count in enumerate(before)]
        self._position = high
        self._restart()
        return True

    def make_here(self, low: int, high: int, limit: int = 0) -> tuple[Block, int]:
        """Compute the rows of positions [low, high) in the consumer. Return them, and the position after them.

        If a row fails, the rows before it are returned, and the next pull raises its error. If elements are missing,
        others may be computed in their place, from positions before `limit`.
        """
        runner = self._runner
        runner.counts, self._made = self._counts, None
        try:
            rows = runner.make(low, high, limit)
            high = runner.high
            if not runner.dropped and self._watches is None:
                self._unjudged += high - low  # saves time: a filter is judged only once it has dropped an element
                self._counts = runner.after
                return rows, high
            failed = self._judge_filters(low, runner.stays)
            if failed is None:
                self._counts = runner.after
                return rows, high
            result = _cut(runner.make_result(rows), *failed)
        except FailedAt as failure:
            result = run_again(runner, low, high, failure)
            if (failed := self._judge_filters(low, result.stays)) is not None:
                result = _cut(result, *failed)
        except BaseException as error:
            if not isinstance(error, (Exception, KeyboardInterrupt)):  # such as a function that calls sys.exit
                add_note(error, self._program.describe_interruption(low, high))
            raise
        position = high
        if result.failure is None:
            self._counts = result.after
        elif len(result.rows):
            position, *self._counts = result.marks[-1].tolist()
            self._failure_next = result.failure
        count_skipped(self._skips, result.skipped, position)
        if result.failure is not None and not len(result.rows):
            raise result.failure
        self._made = result
        return result.rows, position

    def is_ready(self) -> bool:
        if self._placement is None:
            return all(parent.is_ready() for parent in self.parents)
        if self._result is not None and self._row < len(self._result.rows):
            return True
        return bool(self._tickets) and self._tickets[0].done.done()

    @property
    def is_here(self) -> bool:
        """Whether the consumer computes rows when it needs them."""
        return self._placement is None

    def _judge_filters(self, low: int, stays: list[list[bool] | int]) -> tuple[int, ValueError] | None:
        """Return the first position at which a filter has dropped too many elements, and the error."""
        errors: list[tuple[int, ValueError]] = []
        if self._watches is None:
            self._watches = [FilterWatch(node, self._options, self._unjudged) for node in self._program.droppers]
        for number, (watch, kept) in enumerate(zip(self._watches, stays)):  # `stays` of an empty result is empty
            if type(kept) is int and not watch.dropped:
                watch.seen += kept
            elif (judged := watch.judge(kept)) is not None:
                place, error = judged
                for before in reversed(stays[:number]):
                    place = place if isinstance(before, int) else int(np.flatnonzero(before)[place])
                errors.append((low + place, error))
        return min(errors, key=lambda at: at[0]) if errors else None

    def _count_most(self, placement: Placement) -> int:
        """Return how many positions may be computed ahead."""
        if placement.budget_bytes is None:
            return placement.most
        fitting = self._sizer.count_within(placement.budget_bytes)
        # The first block is computed alone. Otherwise all threads would hold rows before the size of one is known.
        return self._sizer.choose_size() if fitting is None else min(placement.most, fitting)

    def _fill(self) -> None:
        """Submit tasks until the executor has as many as the placement allows."""
        placement = self._placement
        if placement is None:
            return
        assert self._ledger is not None
        executor, most = placement.executor, max(self._count_most(placement), self._program.unit)
        while len(self._tickets) < placement.blocks_ahead * executor.stretch() and self._next < self._length:
            high = min(self._length, self._next + self._sizer.choose_size())
            if self._tickets and high - self._position > most:
                break  # waits for room for a whole block: otherwise blocks would stay as small as the first ones
            if high < self._length:
                high -= (high - self._next) % self._program.unit
            given, high = self._draw(self._next, high)
            if high == self._next:
                break
            counts = self._compute_counts(self._next)
            task = Task(self._program, self._next, high, self._number, counts, self._ledger, given)
            self._tickets.append(executor.submit(task))
            self._next = high
            self._number += 1

    def _compute_counts(self, position: int) -> list[int] | None:
        """Return how many elements each counting step has seen at `position`; None if no arithmetic tells it."""
        if self._program.asks:
            return None
        units = self._program.unit_before_counting
        return [base + (position - self._base) // unit for base, unit in zip(self._base_counts, units, strict=True)]

    def _change_placement(self, placement: Placement | None) -> None:
        """Compute rows with another executor, or in the consumer, from the next row on."""
        self._forget_tickets()
        if placement is not None:
            self._make_sizer(placement)  # first: after Ctrl-C between two lines, a placement without sizer would fail
        self._placement = placement
        self._begin_again()

    def _make_sizer(self, placement: Placement) -> None:
        # Twice as many as can be computed at a time: while those are computed, others are handed out.
        at_once = max(1, min(placement.blocks_ahead, 2 * placement.executor.parallelism))
        most = max(1, max(placement.most, self._program.unit) // at_once)
        self._sizer = Sizer(
            self._program.unit, most, placement.executor.block_bytes, placement.least, placement.block_s
        )

    def _restart(self) -> None:
        """Throw away all that was computed ahead, and begin again after the row that was delivered last."""
        self.rewind(self.mark())

    def _forget_tickets(self) -> None:
        if self._tickets:
            assert self._placement is not None and self._ledger is not None
            self._ledger.abort()
            self._placement.executor.forget(list(self._tickets))
            self._tickets.clear()

    def _begin_again(self) -> None:
        self._result = None
        self._next = self._base = self._position
        self._after = self._base_counts = list(self._counts)
        self._number = 0
        self._ledger = None if self._placement is None else Ledger(self._base_counts)

    # Positions.

    def rewind(self, mark: Mark) -> None:
        rows_mark, self._counts = mark
        self._failure_next = None
        self._rewind_rows(rows_mark)
        self._forget_tickets()
        self._begin_again()

    def state_of(self, mark: Mark) -> State:
        rows_mark, counts = mark
        return make_state(self._program, self._state_of_rows(rows_mark), counts)

    def mark_of(self, state: State) -> Mark:
        inner, counts = read_counts(self._program, state)
        with inside(*["parent"] * len(counts)):
            return self._mark_of_rows(inner), counts

    def get_next_index(self) -> int:
        counts, sizes = list(self._counts), []
        index = None
        for step in reversed(self._program.steps):
            sizes.append(step.gathers)
            if step.count_key:
                index = counts.pop()
                break
            if step.drops:
                raise NotImplementedError(
                    "The index of the next element is not known: how many elements a filter drops is not known."
                )
        if index is None:
            index = self._get_row_index()
        for size in reversed(sizes):
            index = -(-index // size)
        return index

    def set_next_index(self, index: int) -> None:
        if self._program.drops:
            raise NotImplementedError(
                "This stream cannot seek to an index: what comes next depends on what came before."
            )
        counts: list[int] = []
        for step in reversed(self._program.steps):
            index *= step.gathers
            if step.count_key:
                counts.append(index)
        self.rewind((self._find_row(index), counts[::-1]))

    def start_prefetch(self) -> None:
        super().start_prefetch()
        self._fill()

    def close(self) -> None:
        self._closed = True
        self._result = None
        if self._ledger is not None:
            self._ledger.abort()
        if self._placement is not None:
            tickets: list[Ticket] = []
            with contextlib.suppress(IndexError):
                while True:  # one by one: another thread may add more meanwhile
                    tickets.append(self._tickets.popleft())
            self._placement.executor.forget(tickets)
        super().close()


def count_skipped(skips: Skips | None, skipped: list[Skipped], before: int) -> None:
    """Remove the skips before a position from a list, and count them."""
    while skipped and skipped[0][0] < before:
        assert skips is not None
        skips.add(*skipped.pop(0)[1])


def _unknown_count(step: int, count: int) -> int:
    raise AssertionError(f"The counts of step {step} are known in the consumer.")


def _cut(result: Result, position: int, error: Exception) -> Result:
    """Return the part of a result before a position, with `error` as its failure."""
    good = int(np.searchsorted(result.marks[:, 0], position, side="right"))
    skipped = [one for one in result.skipped if one[0] < position]
    return Result(blocks.slice_block(result.rows, 0, good), result.marks[:good], result.after, error, skipped)
