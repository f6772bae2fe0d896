"""Delivery of programs that start from the elements of a map node: here a position is an index."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from bushel._src.base import checks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import PositionOutOfRange
from bushel._src.base.options import DatasetOptions, ReadOptions
from bushel._src.engine.delivery import BLOCK_S, Delivery, Placement
from bushel._src.engine.measurements import size_of
from bushel._src.engine.program import PlannedInput, Program
from bushel._src.engine.where_to_run import MEASURED, SHORT_BLOCK_S, TriedThreads, WhereToRun
from bushel._src.graph.cursors import Mark, Skips, State, read_field
from bushel._src.graph.node import Origin


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
