"""Delivery of programs: those that start from the elements of a map node, and whole streams that one worker runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks
from bushel._src.base.blocks import Block
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import PositionOutOfRange
from bushel._src.base.options import DatasetOptions, ReadOptions
from bushel._src.engine.delivery import (
    BLOCK_S,
    MOST_POSITIONS,
    Delivery,
    Placement,
    Sizer,
    count_skipped,
    measure_result,
)
from bushel._src.engine.measurements import size_of
from bushel._src.engine.program import PlannedInput, Program, Result
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import Executor, Ledger, Task, Ticket, wait_and_check
from bushel._src.engine.where_to_run import MEASURED, SHORT_BLOCK_S, TriedThreads, WhereToRun
from bushel._src.graph.cursors import CLOSED, Cursor, Mark, Skips, State, read_field
from bushel._src.graph.node import Origin


class StreamDelivery(Cursor):
    """The rows of a stream that a worker runs. While the consumer uses a block, the worker computes the next one."""

    def __init__(self, program: StreamProgram, executor: Executor, skips: Skips | None):
        self._program, self._executor, self._skips = program, executor, skips
        self._sizer = Sizer(1, MOST_POSITIONS, executor.block_bytes)
        self._run = 0
        self._closed = False
        self._restart(None)

    def pull(self, count: int) -> Block:
        while True:
            result = self._result
            if result is not None and self._row < len(result.rows):
                low, self._row = self._row, min(self._row + count, len(result.rows))
                count_skipped(self._skips, result.skipped, int(result.marks[self._row - 1, 0]))
                return blocks.take_slice(result.rows, low, self._row)
            if result is not None:
                self._row = len(result.rows)
                count_skipped(self._skips, result.skipped, INFINITE)
                if result.failure is not None:
                    self._restart(self.mark())
                    raise result.failure
                if self._has_ended(result):
                    self._past_end = True
                    return []
            self._next_block()

    def _next_block(self) -> None:
        ticket = self._ticket or self._submit(self._state, 0)
        self._ticket = None
        try:
            result, seconds = wait_and_check(self._executor, ticket)
        except BaseException:
            if not self._closed:
                self._restart(self.mark())
            raise
        if self._closed:
            raise ValueError(CLOSED)
        assert result.states is not None
        self._result, self._row = result, 0
        self._sizer.learn(max(1, len(result.rows)), seconds, measure_result(result))
        if result.failure is None and not self._has_ended(result):
            self._ticket = self._submit(result.states[-1], ticket.task.high)

    def _submit(self, state: State | None, low: int) -> Ticket:
        high = low + self._sizer.choose_size()
        return self._executor.submit(Task(self._program, low, high, 0, [], Ledger([]), (self._run, state)))

    @staticmethod
    def _has_ended(result: Result) -> bool:
        assert result.states is not None
        return len(result.states) == len(result.rows) + 2

    def _restart(self, state: State | None) -> None:
        if getattr(self, "_ticket", None) is not None:
            self._executor.forget([self._ticket])
        self._run += 1
        self._state = state
        self._ticket: Any = None
        self._result: Result | None = None
        self._row = 0
        self._past_end = False

    def mark(self) -> Mark:
        if self._result is None:
            return self._state
        states = self._result.states
        assert states is not None
        return states[-1] if self._past_end else states[self._row]

    def rewind(self, mark: Mark) -> None:
        self._restart(mark)

    def state_of(self, mark: Mark) -> State:
        return self._program.get_first_state() if mark is None else mark

    def mark_of(self, state: State) -> Mark:
        return state

    def catch_up(self) -> None:
        if self._state is not None and self._result is None:
            self._next_block()  # the worker has the stream open, and only it can check the state

    def start_prefetch(self) -> None:
        if self._ticket is None and self._result is None:
            self._ticket = self._submit(self._state, 0)

    def close(self) -> None:
        self._closed = True
        if self._ticket is not None:
            self._executor.forget([self._ticket])
        self._program.close()


class PositionDelivery(Delivery):
    """The rows of a program over a map node.

    Args:
      start_threads: if given, this function returns threads and their placement. They are tried when that may help, and
        compute rows as long as it does (`Trials`). The consumer computes the others.
    """

    def __init__(
        self,
        program: Program,
        placement: Placement | None,
        options: DatasetOptions,
        skips: Skips | None,
        start_threads: Callable[[], tuple[TriedThreads, Placement]] | None = None,
        where: WhereToRun = MEASURED,
    ):
        assert program.node is not None
        self._start_threads = start_threads
        self._trials = None if start_threads is None else where.make_trials(ReadOptions().num_threads)
        self._clock = where.clock
        self._left = 0.0  # when the last pull ended that the consumer computed
        self._tried: tuple[TriedThreads, Placement] | None = None
        self._sparse = program.unit == 1 and program.sparse
        rows = PlannedInput(program.node, ahead=True)
        super().__init__(program, rows, placement, options, skips)

    def _pull_here(self, count: int) -> Block | None:
        trials = self._trials
        if trials is None:  # the same as `_compute`, without its call: this runs for every element
            low, high = self._position, self._position + count * self._program.unit
            if high > self._length:
                return self._compute(count)
            # If a filter drops elements, one block may go on until it has `count` rows. But not for long: filters that
            # drop nearly everything are judged from block to block.
            limit = min(low + 2 * count, self._length) if self._sparse else 0
            rows, self._position = self.make_here(low, high, limit)
            return rows
        first = self._position
        clock = self._clock
        waits = clock.count_waits() if trials.waits else None
        begun, busy = clock.perf_counter(), clock.thread_time()
        away_s = begun - self._left if self._left else 0.0
        rows = self._compute(min(count, trials.pull_size))
        self._left = clock.perf_counter()
        seconds, busy_s = self._left - begun, clock.thread_time() - busy
        waited = waits is None or _has_waited(waits, clock.count_waits())
        size = trials.record(self._position - first, seconds, busy_s, waited, away_s)
        if size and rows is not None:
            assert self._start_threads is not None
            self._tried = self._tried or self._start_threads()
            threads, placement = self._tried
            threads.begin_trial(size, trials.alone)
            # Of rows that compute, little is computed ahead: a job that ends has then computed little in vain.
            block_s = BLOCK_S if trials.waits else SHORT_BLOCK_S
            self._change_placement(dataclasses.replace(placement, block_s=block_s))
            self._sizer.learn(self._position - first, seconds, size_of(rows))
        return rows

    def _end_rows(self) -> None:
        if self._tried is None or self._tried[0].stretch() or self._position >= self._length:
            super()._end_rows()
            return
        assert self._trials is not None
        self._trials.end_trial(self._tried[0])
        self._change_placement(None)
        self._left = 0.0

    def _compute(self, count: int) -> Block | None:
        low, high = self._position, self._position + count * self._program.unit
        if high > self._length:
            high = self._length
            if low >= high:
                return None
        rows, self._position = self.make_here(low, high)
        return rows

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        marks = self._marks_of_pull()
        if self._program.unit > 1 or marks is None or row >= len(marks):
            return None
        position = int(marks[row, 0]) - 1
        return position, self._program.origins(position)

    def marks_of_rows(self) -> list[Mark] | None:
        marks = self._marks_of_pull()
        if marks is None or self._program.counting:
            return None if marks is None else [(position, counts) for position, *counts in marks.tolist()]
        return [(position, ()) for position in marks[:, 0].tolist()]

    def _marks_of_pull(self) -> np.ndarray | None:
        """Return a line for each row of the last pull, as in `Result.marks`; None if the placement has changed."""
        if self._placement is None:
            return self._runner.marks() if self._made is None else self._made.marks
        return None if self._result is None else self._result.marks[self._given_from : self._row]

    def _find_row(self, index: int) -> int:
        if not 0 <= index <= self._length:
            length = checks.show_length(self._length)
            raise IndexError(f"Checkpoint `next_index` {index} is out of range for dataset of length {length}.")
        return index

    def _state_of_rows(self, mark: Mark) -> State:
        return {"next_index": mark}

    def _mark_of_rows(self, state: State) -> int:
        index = read_field(state, "next_index", int)
        try:
            return self._find_row(index)
        except IndexError as error:
            raise PositionOutOfRange(str(error), "next_index") from None


def _has_waited(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Return whether a thread has waited between two calls of `count_waits`; True if the system does not tell."""
    return after == (0, 0) or after[0] != before[0]
