"""Delivery of programs that start from the elements of a map node: here a position is an index."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bushel.base import checks
from bushel.base.blocks import Block
from bushel.base.errors import PositionOutOfRange
from bushel.base.options import DatasetOptions
from bushel.engine.delivery import Delivery, Placement
from bushel.engine.program import PlannedRows, Program
from bushel.graph.cursors import Mark
from bushel.graph.node import Origin
from bushel.graph.skips import Skips
from bushel.graph.state_fields import State, read_field

SLOW_S = 100e-6
"""If elements take longer than this, threads compute them: handing over an element costs about half as much."""

_IN_A_ROW = 3

COMPUTED_S = 0.05
"""Elements that compute, and do not wait, must have taken this long before threads start: a small job is done by then,
and threads that share the GIL would only make it slower."""


class PositionDelivery(Delivery):
    """The rows of a program over a map node.

    Args:
      in_threads: if given, the consumer computes the first elements. When several pulls in a row were slow, this
        function is called, and its placement computes the next ones. Its argument says whether the pulls waited for
        most of their time, as for a disk or a server. A single slow pull says little. The first pull says nothing: it
        may open files and load code.
    """

    def __init__(
        self,
        program: Program,
        placement: Placement | None,
        options: DatasetOptions,
        skips: Skips | None,
        in_threads: Callable[[bool], Placement] | None = None,
    ):
        assert program.node is not None
        self._in_threads = in_threads
        self._pulls = 0
        self._slow = self._waiting = 0  # slow pulls in a row, and those of them that waited for most of their time
        self._slow_s = 0.0
        self._sparse = program.unit == 1 and program.sparse
        rows = PlannedRows(program.node, ahead=True)
        super().__init__(program, rows, placement, options, skips)

    def _pull_here(self, count: int) -> Block | None:
        if self._in_threads is None:  # the same as `_compute`, without its call: this runs for every element
            low, high = self._position, self._position + count * self._program.unit
            if high > self._length:
                return self._compute(count)
            # If a filter drops elements, one block may go on until it has `count` rows. But not for long: filters that
            # drop nearly everything are judged from block to block.
            limit = min(low + 2 * count, self._length) if self._sparse else 0
            rows, self._position = self.make_here(low, high, limit)
            return rows
        # One element at a time until the speed is known: a batch of slow elements would be a long wait.
        first, begun, busy = self._position, time.perf_counter(), time.thread_time()
        rows = self._compute(count if self._pulls > _IN_A_ROW else 1)
        seconds, computed = time.perf_counter() - begun, self._position - first
        if self._pulls and seconds > SLOW_S * computed and computed:
            self._slow += 1
            self._slow_s += seconds
            self._waiting = self._waiting + 1 if time.thread_time() - busy < seconds / 2 else 0
        else:
            self._slow, self._slow_s, self._waiting = 0, 0.0, 0
        self._pulls += 1
        waits = self._waiting >= _IN_A_ROW
        if waits or (self._slow >= _IN_A_ROW and self._slow_s >= COMPUTED_S):
            in_threads, self._in_threads = self._in_threads, None
            self._change_placement(in_threads(waits))
        return rows

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
