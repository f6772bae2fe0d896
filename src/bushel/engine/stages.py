"""Work that follows something only the consumer can do: rows go out to workers again, or whole streams do."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Sequence
from typing import Any

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.checks import INFINITE
from bushel.base.errors import PipelineNotSent
from bushel.base.options import DatasetOptions
from bushel.engine.delivery import BlockCursor, Sizer, Switched, size_of
from bushel.engine.observe import Observer
from bushel.engine.program import Program, Result
from bushel.engine.tasks import Executor, Ledger, Task, Ticket
from bushel.engine.whole import StreamProgram
from bushel.graph.elementwise import Elementwise, ElementwiseCursor
from bushel.graph.streams import Cursor, Same, Skips, State

logger = logging.getLogger("bushel")

SHIP_S = 200e-6
"""Work on a row that takes longer than this is worth sending the row to a worker and back."""

SHIP_BYTES_PER_S = 500e6
"""Beyond that, so fast do rows travel."""

_TRIED_ROWS = 8
_TRIED_S = 50e-3


class StageCursor(Switched):
    """Per-element operations on rows that come from the consumer's side.

    They begin here, and are measured. If the work on a row is heavy, rows go to the executor from then on: what
    comes out is the same.
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
        self._timed = _Timed(parent)
        self._here: list[ElementwiseCursor] = []
        self._inner = self._begun_here()
        self._undecided = True
        self._rows = 0
        self._bytes = 0
        self._own_s = 0.0

    def _begun_here(self) -> Cursor:
        self._here.clear()
        cursor: Cursor = self._timed
        for step in self._steps:
            self._here.append(ElementwiseCursor(cursor, step, self._options, self._observer.skips))
            cursor = self._observer.cursor(step, self._here[-1])
        return cursor

    def pull(self, count: int) -> Block:
        if not self._undecided:
            try:
                return self._inner.pull(count)
            except PipelineNotSent as error:
                logger.warning("%s stays in this process: %s", ", ".join(step.call() for step in self._steps), error)
                state = self._inner.get_state()
                self._inner.set_state(state)  # what is under way there is not waited for
                self._inner = self._begun_here()
                self._inner.set_state(state)
                return self._inner.pull(count)
        begun, before = time.perf_counter(), self._timed.seconds
        block = self._inner.pull(count)
        self._own_s += time.perf_counter() - begun - (self._timed.seconds - before)
        self._rows += len(block)
        self._bytes += size_of(block)
        if self._rows >= _TRIED_ROWS or (self._rows and self._own_s > _TRIED_S):
            self._decide()
        return block

    def _decide(self) -> None:
        self._undecided = False
        if self._own_s / self._rows > SHIP_S + self._bytes / self._rows / SHIP_BYTES_PER_S:
            counts = [cursor.count for cursor in self._here if cursor.node.count_key]
            skips = self._observer.skips
            program = Program(None, allow_nones=True, steps=self._steps, skip=skips is not None)
            cursor = GivenCursor(self._parent, program, counts, self._executor, self._options, self._ahead, skips)
            self._inner = self._observer.delivery(cursor)


class _Timed(Same):
    """Knows how long its parent took."""

    def __init__(self, parent: Cursor):
        super().__init__(parent)
        self.seconds = 0.0

    def pull(self, count: int) -> Block:
        begun = time.perf_counter()
        try:
            return self.parent.pull(count)
        finally:
            self.seconds += time.perf_counter() - begun


class GivenCursor(BlockCursor):
    """The rows of a program whose tasks bring their rows along, drawn from another cursor.

    Positions count rows of that cursor from where it stood last. Its state after each row under way is kept.
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
        self._failure: Exception | None = None
        self._end: State | None = None  # where the parent stands after it was asked past its end
        self._past_end = False
        super().__init__(program, executor, options, ahead=ahead, skips=skips)
        self.parents = (parent,)
        self._counts = counts
        self._restart()

    def pull(self, count: int) -> Block:
        block = super().pull(count)
        if not len(block) and self._failure is not None:
            failure = self._failure
            self._restart()
            raise failure
        self._past_end = not len(block)
        return block

    def _given(self, low: int, high: int) -> tuple[Block | None, int]:
        parts: list[Block] = []
        while low < high:
            try:
                block = self._parent.pull(1)
            except Exception as error:
                self._failure, self._length = error, low  # told when its turn has come
                break
            if not len(block):
                self._length, self._end = low, self._parent.get_state()
                break
            parts.append(block)
            self._states.append(self._parent.get_state())
            low += 1
        return (blocks.joined(parts) if parts else []), low

    def _restart(self) -> None:
        if len(self._states) > 1 or self._failure is not None or self._end is not None:
            state = self._state_of_rows()
            self._parent.set_state(state)
            self._states = collections.deque([state])
        self._first, self._failure, self._length = self._position, None, self._program.length
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

    def get_next_index(self) -> int:
        raise NotImplementedError("This stream has no index of its next element: workers are ahead of it.")

    def set_next_index(self, index: int) -> None:
        raise NotImplementedError("This stream cannot seek to an index: what comes next depends on what came before.")

    def close(self) -> None:
        super().close()
        self._parent.close()


class WholeCursor(Cursor):
    """The rows of a stream that a worker runs, a block at a time, the next one always under way."""

    def __init__(self, program: StreamProgram, executor: Executor, skips: Skips | None):
        self._program, self._executor, self._skips = program, executor, skips
        self._sizer = Sizer(1, 1 << 20, executor.block_bytes)
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
            result, seconds = self._executor.wait(ticket)
        except BaseException:
            if not self._closed:
                self._restart(self.mark())
            raise
        if self._closed:
            raise ValueError("This iterator was closed while its next element was being computed.")
        assert result.states is not None
        self._result, self._row = result, 0
        self._sizer.learn(max(1, len(result.rows)), seconds, size_of(result.rows))
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
            position, error = result.skipped.pop(0)
            assert self._skips is not None
            self._skips.add(self._program.which(position, position + 1), error)

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
