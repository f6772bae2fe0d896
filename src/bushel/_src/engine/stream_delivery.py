"""Delivery of whole streams that one worker runs: rows arrive in blocks, and each row with the state after it."""

from __future__ import annotations

from typing import Any

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.checks import INFINITE
from bushel._src.engine.delivery import MOST_POSITIONS, Sizer, count_skipped, measure_result
from bushel._src.engine.program import Result
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import Executor, Ledger, Task, Ticket, wait_and_check
from bushel._src.graph.cursors import CLOSED, Cursor, Mark, Skips, State


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
