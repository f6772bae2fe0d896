"""Work that follows something only the consumer can do: rows go out to workers again, or whole streams do."""

from __future__ import annotations

import collections
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.checks import INFINITE
from bushel.base.errors import PipelineNotSent
from bushel.base.options import DatasetOptions
from bushel.engine.delivery import MOST_POSITIONS, BlockCursor, Sizer, Switched, size_of_result
from bushel.engine.observe import Observer
from bushel.engine.program import Program, Result
from bushel.engine.tasks import Executor, Ledger, Task, Ticket, awaited
from bushel.engine.whole import StreamProgram
from bushel.graph.elementwise import Elementwise, ElementwiseCursor
from bushel.graph.node import Origin
from bushel.graph.streams import Cursor, LeftOut, Skips, State, aside, count_listed

logger = logging.getLogger("bushel")

SHIP_S = 200e-6
"""Work on a row that takes longer than this, and than its bytes take, is worth sending the row there and back."""

SHIP_BYTES_PER_S = 500e6
"""Beyond that, so fast do rows travel."""

_TRIED_ROWS = 8


class StageCursor(Switched):
    """Per-element operations on rows that come from the consumer's side.

    They begin with the executor, and are measured there. If the work on a row is light, it comes home, once what is
    under way is there: what comes out is the same.
    """

    def __init__(
        self,
        parent: Cursor,
        steps: Sequence[Elementwise],
        executor: Executor,
        ahead: int,
        options: DatasetOptions,
        observer: Observer,
    ):
        self._parent, self._steps = parent, tuple(steps)
        self._executor, self._ahead = executor, ahead
        self._options, self._observer = options, observer
        self._here: list[ElementwiseCursor] = []
        self._inner = self._home()
        self._out: GivenCursor | None = None
        self._undecided = True

    def _home(self) -> Cursor:
        self._here.clear()
        cursor: Cursor = self._parent
        for step in self._steps:
            self._here.append(ElementwiseCursor(cursor, step, self._options, self._observer.skips))
            cursor = self._observer.cursor(step, self._here[-1], marked=True)
        return cursor

    def pull(self, count: int) -> Block:
        if self._undecided:
            self._decide()
        try:
            if self._out is None:
                return self._inner.pull(count)
            if not self._out.drained() and len(block := self._inner.pull(count)):
                return block
            if not self._out.drained():
                return []
            self._come_home(self._out)
            return self._inner.pull(count)
        except PipelineNotSent as error:
            logger.warning("%s stays in this process: %s", ", ".join(step.call() for step in self._steps), error)
            state = self._inner.get_state()
            self._inner.set_state(state)  # what is under way there is not waited for
            self._inner, self._out, self._undecided = self._home(), None, False
            self._inner.set_state(state)
            return self._inner.pull(count)

    def _decide(self) -> None:
        if self._out is None:  # not before the first row is wanted: it draws on the parent
            skips = self._observer.skips
            program = Program(None, allow_nones=True, steps=self._steps, skip=skips is not None)
            counts = [cursor.count for cursor in self._counting()]
            self._parent.start_prefetch()  # its state may be known only when all of its streams have begun
            self._out = GivenCursor(self._parent, program, counts, self._executor, self._options, self._ahead, skips)
            self._inner = self._observer.delivery(self._out)
        elif (seconds := self._out.seconds_per_row()) is not None:
            self._undecided = False
            if seconds > SHIP_S or self._executor.keeps_all:
                self._out.go_on()
            else:
                self._out.stop_drawing()

    def _come_home(self, out: GivenCursor) -> None:
        counts, home = out.end(), self._home()
        for cursor, number in zip(self._counting(), counts, strict=True):
            cursor.count = number
        self._inner, self._out = home, None

    def _counting(self) -> list[ElementwiseCursor]:
        return [cursor for cursor in self._here if cursor.node.count_key]

    def start_prefetch(self) -> None:
        self._parent.start_prefetch()


class GivenCursor(BlockCursor):
    """The rows of a program whose tasks bring their rows along, drawn from another cursor.

    Positions count rows of that cursor from where it stood last. Its state after each row under way is kept, and what
    was left out on the way to the row. At first only a few rows are under way, which are measured, until it is told to
    `go_on` or to `stop_drawing`.
    """

    def __init__(
        self,
        parent: Cursor,
        program: Program,
        counts: list[int],
        executor: Executor,
        options: DatasetOptions,
        ahead: int,
        skips: Skips | None,
    ):
        self._parent = parent
        self._states: collections.deque[State] = collections.deque([parent.get_state()])
        self._first = 0  # the position that the first of these states belongs to
        self._left_out: collections.deque[list[LeftOut]] = collections.deque()
        self._uncounted = 0  # the position that the first of these belongs to
        self._failure: Exception | None = None
        self._end: State | None = None  # where the parent stands after it was asked past its end
        self._past_end = False
        self._drawing = True
        self._tried: list[float] = []  # what each row took beyond what sending it would, until enough are known
        super().__init__(program, executor, options, ahead=ahead, most=_TRIED_ROWS, skips=skips)
        self.parents = (parent,)
        self._counts = counts
        self._restart()

    def seconds_per_row(self) -> float | None:
        """What the work on a row takes beyond the time that its bytes travel, once enough of them are done."""
        # The middle one: the first rows may load code and open files.
        return None if len(self._tried) < _TRIED_ROWS else float(np.median(self._tried))

    def go_on(self) -> None:
        """Works as far ahead as it may from now on."""
        self._most = MOST_POSITIONS
        self._sizer = self._new_sizer()

    def stop_drawing(self) -> None:
        """Draws no more rows: it is `drained` when those under way are delivered."""
        self._drawing = False

    def drained(self) -> bool:
        """Whether all that was drawn is delivered, and no more will be drawn."""
        result = self._result
        done = result is None or (self._row == len(result.rows) and result.failure is None)
        over = self._failure is not None or self._end is not None
        return not self._drawing and not self._tickets and done and not over

    def end(self) -> list[int]:
        """Leaves the parent where it stands. Returns how many elements each counting step has seen."""
        if self._result is not None:
            self._count_skipped(self._result, self._high)
        return list(self._after)

    def _next_block(self) -> bool:
        rows = self._tickets[0].task.high - self._tickets[0].task.low if self._tickets else 0
        there = super()._next_block()
        result = self._result
        if there and result is not None and rows and len(self._tried) < _TRIED_ROWS:
            took = (result.work_s - size_of_result(result) / SHIP_BYTES_PER_S) / rows
            self._tried += [took] * rows
        return there

    def pull(self, count: int) -> Block:
        block = super().pull(count)
        if not len(block):
            self._count_skipped(None, self._length + 1)  # what came before the end, or before the failure
        if not len(block) and self._failure is not None:
            failure = self._failure
            self._restart()
            raise failure
        self._past_end = not len(block)
        return block

    def _given(self, low: int, high: int) -> tuple[Block | None, int]:
        parts: list[Block] = []
        while low < high and self._drawing:
            block = []
            with aside(self._skips) as left_out:
                try:
                    block = self._parent.pull(1)
                except Exception as error:
                    self._failure, self._length = error, low  # told when its turn has come
            self._left_out.append(left_out)
            if self._failure is not None:
                break
            if not len(block):
                self._length, self._end = low, self._parent.get_state()
                break
            parts.append(block)
            self._states.append(self._parent.get_state())
            low += 1
        return (blocks.joined(parts) if parts else []), low

    def _count_skipped(self, result: Result | None, before: int) -> None:
        while self._left_out and self._uncounted < before:
            super()._count_skipped(result, self._uncounted)
            count_listed(self._skips, self._left_out.popleft())
            self._uncounted += 1
        super()._count_skipped(result, before)

    def _restart(self) -> None:
        if len(self._states) > 1 or self._failure is not None or self._end is not None:
            state = self._state_of_rows()
            self._parent.set_state(state)
            self._states = collections.deque([state])
        self._first, self._failure, self._length = self._position, None, self._program.length
        self._left_out.clear()
        self._uncounted = self._position
        self._end, self._past_end = None, False
        super()._restart()

    def _state_of_rows(self) -> State:
        if self._past_end and self._end is not None:
            return self._end
        while self._first < self._position and len(self._states) > 1:
            self._states.popleft()
            self._first += 1
        return self._states[0]

    def _set_state_of_rows(self, state: State, counts: list[int]) -> None:
        self._parent.set_state(state)
        self._states = collections.deque([state])
        self._position = self._first = 0
        self._counts = counts
        self._failure = self._end = None
        self._restart()

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return None

    def get_next_index(self) -> int:
        counts = list(self._counts)
        for step in reversed(self._program.steps):
            if isinstance(step, Elementwise) and step.drops:
                raise NotImplementedError(
                    "How many elements are left over by a filter is not known: there is no index."
                )
            if isinstance(step, Elementwise) and step.count_key:
                return counts.pop()
        self._state_of_rows()  # forgets the states of rows that were delivered
        return self._parent.get_next_index() - (len(self._states) - 1)

    def set_next_index(self, index: int) -> None:
        if self._program.drops:
            raise NotImplementedError(
                "This stream cannot seek to an index: what comes next depends on what came before."
            )
        self._parent.set_next_index(index)
        self._set_state_of_rows(self._parent.get_state(), [index] * len(self._counts))

    def close(self) -> None:
        super().close()
        self._parent.close()


class WholeCursor(Cursor):
    """The rows of a stream that a worker runs, a block at a time, the next one always under way."""

    def __init__(self, program: StreamProgram, executor: Executor, skips: Skips | None):
        self._program, self._executor, self._skips = program, executor, skips
        self._sizer = Sizer(1, MOST_POSITIONS, executor.block_bytes)
        self._serial = 0
        self._closed = False
        self._restart(None)

    def pull(self, count: int) -> Block:
        while True:
            result = self._result
            if result is not None and self._row < len(result.rows):
                low, self._row = self._row, min(self._row + count, len(result.rows))
                self._count_skipped(result, int(result.marks[self._row - 1, 0]))
                return blocks.part_of(result.rows, low, self._row)
            if result is not None:
                self._row = len(result.rows)
                self._count_skipped(result, INFINITE)
                if result.failure is not None:
                    self._restart(self.get_state())
                    raise result.failure
                if self._ended(result):
                    self._past_end = True
                    return []
            self._next_block()

    def _next_block(self) -> None:
        ticket = self._ticket or self._submit(self._state, 0)
        self._ticket = None
        try:
            result, seconds = awaited(self._executor, ticket)
        except BaseException:
            if not self._closed:
                self._restart(self.mark())
            raise
        if self._closed:
            raise ValueError("This iterator was closed while its next element was being computed.")
        assert result.states is not None
        self._result, self._row = result, 0
        self._sizer.learn(max(1, len(result.rows)), seconds, size_of_result(result))
        if result.failure is None and not self._ended(result):
            self._ticket = self._submit(result.states[-1], ticket.task.high)

    def _submit(self, state: State | None, low: int) -> Ticket:
        high = low + self._sizer.positions()
        return self._executor.submit(Task(self._program, low, high, 0, [], Ledger([]), (self._serial, state)))

    @staticmethod
    def _ended(result: Result) -> bool:
        assert result.states is not None
        return len(result.states) == len(result.rows) + 2

    def _count_skipped(self, result: Result, before: int) -> None:
        while result.skipped and result.skipped[0][0] < before:
            assert self._skips is not None
            self._skips.add(*result.skipped.pop(0)[1])

    def _restart(self, state: State | None) -> None:
        if getattr(self, "_ticket", None) is not None:
            self._executor.forget([self._ticket])
        self._serial += 1
        self._state = state
        self._ticket: Any = None
        self._result: Result | None = None
        self._row = 0
        self._past_end = False

    def get_state(self) -> State:
        if self._result is None and self._state is None:
            self._next_block()  # what the beginning looks like is known to the one who has opened it
        if self._result is None:
            assert self._state is not None
            return self._state
        states = self._result.states
        assert states is not None
        return states[-1] if self._past_end else states[self._row]

    def set_state(self, state: State) -> None:
        self._restart(state)

    def catch_up(self) -> None:
        if self._state is not None and self._result is None:
            self._next_block()  # the worker, which has the stream open, is the one that can tell

    def mark(self) -> Any:
        return self._state if self._result is None else self.get_state()

    def rewind(self, mark: Any) -> None:
        self._restart(mark)

    def state_of(self, mark: Any) -> State:
        return self._program.beginning() if mark is None else mark

    def start_prefetch(self) -> None:
        if self._ticket is None and self._result is None:
            self._ticket = self._submit(self._state, 0)

    def close(self) -> None:
        self._closed = True
        if self._ticket is not None:
            self._executor.forget([self._ticket])
        self._program.close()
