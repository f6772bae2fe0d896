"""Delivery: hands over the rows of a program in order, whoever computes them.

An executor computes blocks ahead of the consumer, in any order; or, without one, rows are computed here when they are
asked for. The cursor keeps the position of the last row that it gave and nothing else: what was computed ahead can be
thrown away at any time. So the executor can be changed between two rows. Where rows come from: positions.py, drawn.py.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.contract import optional
from bushel.base.errors import PipelineNotSent, WorkerDied, describe_error, inside
from bushel.base.options import DatasetOptions
from bushel.engine.block_size import MOST_POSITIONS, Sizer, size_of_result
from bushel.engine.program import FailedAt, Program, Result, Rows, Runner, Skipped, counts_of, run_again, state_of
from bushel.engine.tasks import Executor, Ledger, Task, Ticket, awaited
from bushel.graph.cursors import Cursor, Mark
from bushel.graph.filter_watch import FilterWatch
from bushel.graph.skips import Skips
from bushel.graph.state_fields import State


@dataclasses.dataclass(frozen=True)
class Placement:
    """Who computes rows, and how far ahead of the consumer."""

    executor: Executor
    blocks_ahead: int
    """How many blocks may be under way or wait to be handed over."""
    most: int = MOST_POSITIONS
    """How many positions may be in all of them, at most."""


class Source(Protocol):
    """What the rows of a program are made of, as far as delivery moves in it: another cursor, or the positions of a
    map node.
    """

    def mark(self) -> Mark: ...

    def state_of(self, mark: Mark) -> State: ...

    def mark_of(self, state: State) -> Mark: ...

    def set_next_index(self, index: int) -> None: ...


class Delivery(Cursor):
    """The rows of a program in order.

    Args:
      program: what to run.
      source: what its rows are made of.
      rows: what it starts from when it is run here.
      placement: who runs it; None computes rows here when they are asked for.
      options: those of the whole pipeline.
      skips: counts the elements that failed and were skipped.
    """

    def __init__(
        self,
        program: Program,
        source: Source,
        rows: Rows,
        placement: Placement | None,
        options: DatasetOptions,
        skips: Skips | None = None,
    ):
        self._program, self._source = program, source
        self._runner = Runner(program, rows, _unknown_count, here=True)
        self._skips = skips
        self._options = options
        self._unjudged = 0  # positions that were computed here while no filter had dropped any
        self._watches: list[FilterWatch] | None = None  # of the program's droppers, once one of them has dropped some
        self._length = program.length
        self._position = 0
        self._counts: Sequence[int] = (0,) * len(program.counting)
        self._tickets: collections.deque[Ticket] = collections.deque()
        self._ledger: Ledger | None = None  # while rows are computed ahead
        self._result: Result | None = None
        self._row = self._given_from = 0
        self._high = 0  # the position after the result
        self._made: Result | None = None  # what was made here last, if it was not made in one go
        self._failure_next: BaseException | None = None  # of the row after the last one that was computed here
        self._closed = False
        self._placement: Placement | None = None
        self._run_at(placement)

    # Where rows come from. The defaults are those of a program over a map node, whose positions are indices.

    @abc.abstractmethod
    def _pull_here(self, count: int) -> Block | None:
        """Computes up to `count` rows here and moves behind them; None at the end. All rows may have been dropped."""

    @optional
    def _draw(self, low: int, high: int) -> tuple[Block | None, int]:
        """The rows that a task for positions [low, high) brings along, by default none, and where they end."""
        return None, high

    @optional
    def _end_rows(self) -> None:
        """All rows are delivered: moves to the end. Otherwise it raises the error that ended the rows."""
        self._position, self._counts = self._length, self._after

    @optional
    def _not_sent(self, error: PipelineNotSent) -> None:
        """The executor cannot run this program: raises, or runs it here from now on."""
        raise error

    @optional
    def _learn(self, result: Result, positions: int) -> None:
        """Learns from a block of so many positions where the next ones should be computed; by default nothing."""

    @optional
    def _count_skipped(self, result: Result | None, before: int) -> None:
        """Counts the elements that were skipped before a position; by default those that the program skipped."""
        self.count_skipped_in(result, before)

    @optional
    def mark(self) -> tuple[Mark, Sequence[int]]:
        """The position of the rows that the program starts from, and how many elements its counting steps have seen."""
        return self._position, self._counts

    @optional
    def _rewind_source(self, mark: Mark) -> None:
        """Goes to a position of the rows that the program starts from."""
        self._position = mark

    @optional
    def _source_index(self) -> int:
        """The index of the next of these rows."""
        return self._position

    # Pulling.

    def pull(self, count: int) -> Block:
        while True:  # rows may be dropped, and the placement may change meanwhile
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
        """The next rows of the executor's; none at the end. None if rows are computed here from now on."""
        while self._placement is not None:
            result = self._result
            if result is not None and self._row < len(result.rows):
                low = self._given_from = self._row
                self._row = min(low + count, len(result.rows))
                self._position, *self._counts = result.marks[self._row - 1].tolist()
                self._count_skipped(result, self._position)
                return blocks.part_of(result.rows, low, self._row)
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
        """Takes the next block; False at the end."""
        assert self._placement is not None
        self._result = None
        try:
            self._fill()
        except PipelineNotSent as error:
            self._not_sent(error)
            return False
        if not self._tickets:
            return False
        ticket = self._tickets[0]
        try:
            result, seconds = awaited(self._placement.executor, ticket)
        except BaseException as error:
            if self._step_over(error):
                return self._next_block()
            if not self._closed:
                self._restart()
            raise
        if self._closed:
            raise ValueError("This iterator was closed while its next element was being computed.")
        self._tickets.popleft()
        if (failed := self._judge_filters(ticket.task.low, result.stays)) is not None:
            result = _cut(result, *failed)
        self._result, self._row, self._high = result, 0, ticket.task.high
        if result.failure is None:
            self._after = result.after
        positions = ticket.task.high - ticket.task.low
        expected = -(-positions // self._program.unit)
        # A worker also makes the rows that a filter drops later: bytes are counted as if all of them had stayed.
        size = size_of_result(result) * expected // len(result.rows) if len(result.rows) else None
        self._sizer.learn(positions, seconds, size)
        self._learn(result, positions)
        self._fill()
        return True

    def _step_over(self, error: BaseException) -> bool:
        """Skips an element that kills workers, if elements that fail are skipped; False for other errors."""
        if self._skips is None or not isinstance(error, WorkerDied) or error.at is None:
            return False
        low, high = error.at
        self._count_skipped(self._result, high)
        self._skips.add(self._program.which(low, high), describe_error(error))
        before = self._after if self._result is None else self._result.after
        # As if it had raised: the steps that it came to have seen it.
        self._counts = [count + (step < error.counted) for step, count in enumerate(before)]
        self._position = high
        self._restart()
        return True

    def make_here(self, low: int, high: int, limit: int = 0) -> tuple[Block, int]:
        """Computes the rows of positions [low, high) here. Also returns the position after them.

        If a row fails, those before it are delivered first. Its error is raised by the next pull. If elements are
        missing, others may be computed in their place, from positions before `limit`.
        """
        runner = self._runner
        runner.counts, self._made = self._counts, None
        try:
            rows = runner.make(low, high, limit)
            high = runner.high
            if not runner.dropped and self._watches is None:
                self._unjudged += high - low  # filters that have dropped nothing are not judged block by block
                self._counts = runner.after
                return rows, high
            failed = self._judge_filters(low, runner.stays)
            if failed is None:
                self._counts = runner.after
                return rows, high
            result = _cut(runner.result_of(rows), *failed)
        except FailedAt as failure:
            result = run_again(runner, low, high, failure)
            if (failed := self._judge_filters(low, result.stays)) is not None:
                result = _cut(result, *failed)
        position = high
        if result.failure is None:
            self._counts = result.after
        elif len(result.rows):
            position, *self._counts = result.marks[-1].tolist()
            self._failure_next = result.failure
        self.count_skipped_in(result, position)
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
        """Whether rows are computed here when they are asked for."""
        return self._placement is None

    def count_skipped_in(self, result: Result | None, before: int) -> None:
        """Counts the elements that the program skipped before a position."""
        if result is not None:
            count_skipped(self._skips, result.skipped, before)

    def _judge_filters(self, low: int, stays: list[list[bool] | int]) -> tuple[int, ValueError] | None:
        """The first position at which a filter had dropped too many elements, and the error that says so."""
        errors: list[tuple[int, ValueError]] = []
        if self._watches is None:
            self._watches = [FilterWatch(node, self._options, self._unjudged) for node in self._program.droppers]
        for number, (watch, kept) in enumerate(zip(self._watches, stays)):  # none for an empty result
            if type(kept) is int and not watch.dropped:
                watch.seen += kept
            elif (judged := watch.judge(kept)) is not None:
                place, error = judged
                for before in reversed(stays[:number]):
                    place = place if isinstance(before, int) else int(np.flatnonzero(before)[place])
                errors.append((low + place, error))
        return min(errors, key=lambda at: at[0]) if errors else None

    def _fill(self) -> None:
        """Submits tasks until enough of them are under way."""
        placement = self._placement
        if placement is None:
            return
        assert self._ledger is not None
        executor, most = placement.executor, max(placement.most, self._program.unit)
        while len(self._tickets) < placement.blocks_ahead * executor.stretch() and self._next < self._length:
            high = min(self._length, self._next + self._sizer.positions())
            if self._tickets and high - self._position > most:
                break  # until there is room for a whole block: else blocks would stay as small as the first ones
            if high < self._length:
                high -= (high - self._next) % self._program.unit
            given, high = self._draw(self._next, high)
            if high == self._next:
                break
            counts = self._counts_at(self._next)
            task = Task(self._program, self._next, high, self._number, counts, self._ledger, given)
            self._tickets.append(executor.submit(task))
            self._next = high
            self._number += 1

    def _counts_at(self, position: int) -> list[int] | None:
        """How many elements each counting step has seen at `position`, if that is arithmetic."""
        if self._program.asks:
            return None
        units = self._program.unit_before_counting
        return [base + (position - self._base) // unit for base, unit in zip(self._base_counts, units, strict=True)]

    def _run_at(self, placement: Placement | None) -> None:
        """From the next row on, rows are computed elsewhere, or here."""
        self._forget_tickets()
        if placement is not None:
            self._new_sizer(placement)  # first: an interrupt may come between any two lines
        self._placement = placement
        self._begin_again()

    def _new_sizer(self, placement: Placement) -> None:
        # Twice as many as can be under way: while those are computed, others are handed over.
        at_once = max(1, min(placement.blocks_ahead, 2 * placement.executor.parallelism))
        most = max(1, max(placement.most, self._program.unit) // at_once)
        self._sizer = Sizer(self._program.unit, most, placement.executor.block_bytes)

    def _restart(self) -> None:
        """Throws away all that was computed ahead, and begins again after the row that was delivered last."""
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
        source, self._counts = mark
        self._failure_next = None
        self._rewind_source(source)
        self._forget_tickets()
        self._begin_again()

    def state_of(self, mark: Mark) -> State:
        source, counts = mark
        return state_of(self._program, self._source.state_of(source), counts)

    def mark_of(self, state: State) -> Mark:
        inner, counts = counts_of(self._program, state)
        with inside(*["parent"] * len(counts)):
            return self._source.mark_of(inner), counts

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
            index = self._source_index()
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
        self._source.set_next_index(index)
        self.rewind((self._source.mark(), counts[::-1]))

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
                while True:  # one by one: another thread may be about to add more
                    tickets.append(self._tickets.popleft())
            self._placement.executor.forget(tickets)
        super().close()


def count_skipped(skips: Skips | None, skipped: list[Skipped], before: int) -> None:
    """Takes the skips before a position out of a list, and counts them."""
    while skipped and skipped[0][0] < before:
        assert skips is not None
        skips.add(*skipped.pop(0)[1])


def _unknown_count(step: int, count: int) -> int:
    raise AssertionError(f"The counts of step {step} are known in the consumer.")


def _cut(result: Result, position: int, error: Exception) -> Result:
    """A result up to a position at which `error` belongs."""
    good = int(np.searchsorted(result.marks[:, 0], position, side="right"))
    skipped = [one for one in result.skipped if one[0] < position]
    return Result(blocks.part_of(result.rows, 0, good), result.marks[:good], result.after, error, skipped)
