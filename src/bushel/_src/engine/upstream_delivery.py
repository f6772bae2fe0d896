"""Delivery of programs that start from the rows of another cursor: the steps after an ordered stage."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Sequence

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import PipelineNotSent
from bushel._src.base.options import DatasetOptions
from bushel._src.engine.delivery import Delivery, Placement, count_skipped, measure_result
from bushel._src.engine.program import Program, ProgramInput, Result
from bushel._src.engine.where_to_run import MEASURED, WhereToRun
from bushel._src.graph.cursors import Cursor, Mark, SkipNote, Skips, State, collect_skips, count_collected, pull_exactly
from bushel._src.graph.node import Origin

logger = logging.getLogger("bushel")

SHIP_BYTES_PER_S = 500e6
"""How many bytes of rows can be sent to a worker and back in a second."""


class UpstreamDelivery(Delivery):
    """The rows of a program whose rows are drawn from `parent`.

    With a placement, the first few rows are computed there and measured. If a row takes less than 0.2 ms, sending it
    to a worker costs more than computing it. The cursor then waits for the rows already sent and computes the rest
    here. The output does not change.

    While an executor computes rows ahead, a position is the number of rows drawn since the last restart. The cursor
    keeps the parent's mark after each of these rows, and the elements that the parent has skipped before it.
    """

    def __init__(
        self,
        parent: Cursor,
        program: Program,
        placement: Placement | None,
        options: DatasetOptions,
        skips: Skips | None,
        where: WhereToRun = MEASURED,
    ):
        self.parent = parent
        self._where = where
        self.parents = (parent,)
        self._marks: collections.deque[Mark] = collections.deque([parent.mark()])
        self._first = 0  # the position of the first of these marks
        self._skipped: collections.deque[list[SkipNote]] = collections.deque()
        self._uncounted = 0  # the position of the first of these lists
        self._failure: Exception | None = None  # of the parent, raised after the rows before it
        self._end: Mark = None  # the parent's mark at its end, once it is reached
        self._past_end = False
        self._later = self._whole = placement  # where rows are computed after the first few were measured
        self._tried: list[float] | None = []  # seconds of each row beyond those of sending it; None once decided
        self._draining = False  # whether no more rows are sent, because the consumer will compute the next ones
        self._before: Mark = None  # the parent's mark, if `mark` was called since the last pull
        self._drawn = _UpstreamInput(parent, skips)
        super().__init__(program, self._drawn, None, options, skips)

    # In the consumer.

    def _pull_here(self, count: int) -> Block | None:
        if self._later is not None:
            # Only now, and not in `__init__`: it reads rows of the parent, and nobody had asked for a row before.
            self.parent.start_prefetch()
            later, self._later = self._later, None
            self._begin_drawing()
            self._change_placement(dataclasses.replace(later, most=self._where.tried_rows))
            return []
        before, self._before = self._before, None
        if before is None:
            before = self.parent.mark()
        block = self.parent.pull(count)
        count = len(block)
        if not count:
            return None
        drawn = self._drawn
        drawn.before, drawn.block, drawn.count = before, block, count
        del block  # this name would count as a holder of the rows, and each row would be copied
        rows, used = self.make_here(0, count)
        if used < count:
            drawn.move_to(used)
        elif drawn.end is not None:
            drawn.move_to_end()
        return rows

    # In an executor.

    def _end_rows(self) -> None:
        if self._draining and self._failure is None and self._end is None:
            self._draining = False
            self._change_placement(None)  # all rows that were drawn are delivered: the parent's position is right
            return
        self._position, self._counts = self._length, self._after
        self._count_skipped(None, self._length + 1)  # what the parent has skipped before its end or its failure
        if self._failure is not None:
            failure = self._failure
            self._restart()
            raise failure
        self._past_end = True

    def _handle_not_sent(self, error: PipelineNotSent) -> None:
        calls = ", ".join(step.call() for step in self._program.steps)
        logger.warning("%s stays in this process: %s", calls, error)
        self._restart()
        self._change_placement(None)

    def _learn(self, result: Result, positions: int) -> None:
        if self._tried is None:
            return
        took = (result.work_s - measure_result(result) / SHIP_BYTES_PER_S) / positions
        self._tried += [took] * positions
        if len(self._tried) < self._where.tried_rows:
            return
        sends = self._where.sends_rows(self._tried)
        self._tried = None
        assert self._whole is not None
        if sends or self._whole.executor.keeps_all:
            self._placement = self._whole
            self._make_sizer(self._whole)
        else:
            self._draining = True

    def _draw(self, low: int, high: int) -> tuple[Block | None, int]:
        parts: list[Block] = []
        while low < high and not self._draining:
            block: Block = []
            with collect_skips(self._skips) as skipped:
                try:
                    block = self.parent.pull(1)
                except Exception as error:
                    self._failure, self._length = error, low
            self._skipped.append(skipped)
            if self._failure is not None:
                break
            if not len(block):
                self._length, self._end = low, self.parent.mark()
                break
            parts.append(block)
            self._marks.append(self.parent.mark())
            low += 1
        return (blocks.join(parts) if parts else []), low

    def _count_skipped(self, result: Result | None, before: int) -> None:
        by_program = [] if result is None else result.skipped
        while self._skipped and self._uncounted < before:
            count_skipped(self._skips, by_program, self._uncounted)
            count_collected(self._skips, self._skipped.popleft())
            self._uncounted += 1
        count_skipped(self._skips, by_program, before)

    # Positions.

    def mark(self) -> tuple[Mark, Sequence[int]]:
        if self._placement is None:
            self._before = self.parent.mark()
            return self._before, self._counts
        if self._past_end and self._end is not None:
            return self._end, self._counts
        self._forget_marks()
        return self._marks[0], self._counts

    def _forget_marks(self) -> None:
        """Drop the parent's marks before the row that was delivered last."""
        while self._first < self._position and len(self._marks) > 1:
            self._marks.popleft()
            self._first += 1

    def _rewind_rows(self, mark: Mark) -> None:
        self.parent.rewind(mark)
        self._begin_drawing()

    def _begin_drawing(self) -> None:
        """Set the position to zero at the present position of the parent."""
        self._before = None
        self._marks = collections.deque([self.parent.mark()])
        self._position = self._first = self._uncounted = 0
        self._skipped.clear()
        self._failure, self._end, self._past_end = None, None, False
        self._length = self._program.length

    def _get_row_index(self) -> int:
        if self._placement is None:
            return self.parent.get_next_index()
        self._forget_marks()
        return self.parent.get_next_index() - (len(self._marks) - 1)

    def _find_row(self, index: int) -> Mark:
        self.parent.set_next_index(index)
        return self.parent.mark()

    def _state_of_rows(self, mark: Mark) -> State:
        return self.parent.state_of(mark)

    def _mark_of_rows(self, state: State) -> Mark:
        return self.parent.mark_of(state)


class _UpstreamInput(ProgramInput):
    """Rows that were pulled from a cursor. After a failure, they are pulled again."""

    def __init__(self, parent: Cursor, skips: Skips | None):
        self._parent, self._skips = parent, skips
        self.before: Mark = None
        """The parent's position before these rows."""
        self.block: Block | None = None
        """The rows, until they are read."""
        self.count = 0
        self._in_one_pull = True
        self.end: Mark = None
        """The parent's position after these rows were pulled first, if they were pulled again since."""

    def read(self, low: int, high: int, private: bool) -> Block:
        block, self.block = self.block, None
        if block is None:  # they are read again: functions may have written into the first ones
            if self.end is None:
                self.end = self._parent.mark()
            block = self.move_to(self.count)
        else:
            self.end, self._in_one_pull = None, True
        return block if high - low == len(block) else blocks.slice_block(block, low, high)

    def move_to(self, count: int) -> Block:
        """Pull the first `count` rows again. The parent's position is after them."""
        with collect_skips(self._skips):  # they were counted when the rows were read first
            self._parent.rewind(self.before)
            block = self._parent.pull(count)
            self._in_one_pull = len(block) == count
            if self._in_one_pull:
                return block
            return blocks.join([block, pull_exactly(self._parent, count - len(block))])

    def move_to_end(self) -> None:
        """Move the parent to its position after the rows were pulled first. Called only after they were pulled again.

        Without this, an element that the parent skipped after the last of these rows would be counted twice. It was
        counted with the rows, but the parent has not reached it when it pulled the rows again.
        """
        end, self.end = self.end, None
        with collect_skips(self._skips):
            self._parent.rewind(end)

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self._parent.trace(row) if self._in_one_pull else None
