"""Delivery: blocks are computed by an executor in any order, and handed over in one. The same for all executors.

The cursor knows what was delivered and nothing else: its state is that of the last row it gave. What was computed
ahead can be thrown away at any time.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import blocks, trees
from bushel.base.blocks import Block, Columns
from bushel.base.errors import PositionOutOfRange, WorkerDied, in_words, inside
from bushel.base.options import DatasetOptions
from bushel.engine.program import Program, Result, state_of
from bushel.engine.tasks import Executor, Ledger, Task, Ticket, awaited
from bushel.graph.elementwise import FilterWatch
from bushel.graph.node import Origin
from bushel.graph.ordered import BatchStream
from bushel.graph.streams import Cursor, Skips, State, counted, field

BLOCK_S = 20e-3
"""A block should take about so long to compute: much more than handing it over, much less than anyone notices."""


MOST_POSITIONS = 1 << 20
"""So many may be under way, where nothing else sets a bound."""


def check_position(position: int, length: int) -> None:
    """Raises IndexError where a position is not in the data."""
    if not 0 <= position <= length:
        raise IndexError(f"Checkpoint `next_index` {position} is out of range for dataset of length {length}.")


def position_of(state: State, length: int) -> int:
    """The position in a state, checked."""
    position = field(state, "next_index", int)
    try:
        check_position(position, length)
    except IndexError as error:
        raise PositionOutOfRange(str(error), "next_index") from None
    return position


class Sizer:
    """How many positions a block should hold, learned from the blocks before. Small records travel many at a time."""

    def __init__(self, unit: int, most: int, block_bytes: int):
        self._unit = unit
        self._most = max(1, most // unit)  # in units
        self._block_bytes = block_bytes
        self._units = 1

    def positions(self) -> int:
        return self._units * self._unit

    def learn(self, positions: int, seconds: float, size_bytes: int | None) -> None:
        """Learns from a block. Without a size, where it came back empty, blocks do not grow."""
        units = max(1, positions // self._unit)
        by_time = BLOCK_S * units / max(seconds, 1e-9)
        by_bytes = self._units if size_bytes is None else self._block_bytes * units / max(size_bytes, 1)
        wanted = int(min(by_time, by_bytes, 8 * self._units))  # grow by steps: the first block is no fair sample
        self._units = max(1, min(wanted, self._most))


class Switched(Cursor):
    """A cursor that another one does the work of; which one that is may change on the way. States are the same."""

    _inner: Cursor

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self._inner.trace(row)

    def get_state(self) -> State:
        return self._inner.get_state()

    def set_state(self, state: State) -> None:
        self._inner.set_state(state)

    def catch_up(self) -> None:
        self._inner.catch_up()

    def get_next_index(self) -> int:
        return self._inner.get_next_index()

    def set_next_index(self, index: int) -> None:
        self._inner.set_next_index(index)

    def start_prefetch(self) -> None:
        self._inner.start_prefetch()

    def close(self) -> None:
        self._inner.close()


class BlockCursor(Cursor):
    """The rows of a program in order, computed ahead by an executor.

    Args:
      program: what to run.
      options: those of the whole pipeline.
      ahead: how many blocks may be under way or waiting to be handed over.
      most: how many positions may be, at most.
      skips: counts the elements that failed and were left out.
      watches: those of `program.droppers`, where they have seen elements already.
    """

    def __init__(
        self,
        program: Program,
        executor: Executor,
        options: DatasetOptions,
        *,
        ahead: int,
        most: int = MOST_POSITIONS,
        skips: Skips | None = None,
        watches: Sequence[FilterWatch] | None = None,
    ):
        self._program = program
        self._executor = executor
        self._ahead = ahead
        self._most = max(most, program.unit)
        self._length = program.length
        self._sizer = self._new_sizer()
        self._watches = watches or [FilterWatch(what, options) for what in program.droppers]
        self._skips = skips
        self._position = 0
        self._counts = [0] * len(program.counting)
        self._tickets: collections.deque[Ticket] = collections.deque()
        self._result: Result | None = None
        self._row = 0
        self._high = 0  # the position after the result
        self._last: tuple[int, int] = (0, 0)
        self._closed = False
        self._restart()

    def _new_sizer(self) -> Sizer:
        # Twice as many as can be under way: while those are computed, others are handed over.
        most_in_one = max(1, self._most // max(1, min(self._ahead, 2 * self._executor.parallelism)))
        return Sizer(self._program.unit, most_in_one, self._executor.block_bytes)

    def pull(self, count: int) -> Block:
        while True:
            result = self._result
            if result is not None and self._row < len(result.rows):
                low = self._row
                high = min(low + count, len(result.rows))
                self._row = high
                self._position, *self._counts = result.marks[high - 1].tolist()
                self._last = (low, high)
                self._count_skipped(result, self._position)
                return blocks.part_of(result.rows, low, high)
            if result is not None and result.failure is not None:
                if self._steps_over(result.failure):
                    continue
                self._count_skipped(result, max([position + 1 for position, _ in result.skipped], default=0))
                self._restart()
                raise result.failure
            if result is not None:
                self._position, self._counts = self._high, list(self._after)
                self._count_skipped(result, self._position)
            if not self._next_block():
                self._position, self._counts = self._length, list(self._after)
                return []

    def _count_skipped(self, result: Result | None, before: int) -> None:
        """Counts what was left out before a position."""
        while result is not None and result.skipped and result.skipped[0][0] < before:
            assert self._skips is not None
            self._skips.add(*result.skipped.pop(0)[1])

    def _next_block(self) -> bool:
        self._result = None
        self._fill()
        if not self._tickets:
            return False
        ticket = self._tickets[0]
        try:
            result, seconds = awaited(self._executor, ticket)
        except BaseException as error:
            if self._steps_over(error):
                return self._next_block()
            if not self._closed:
                self._restart()
            raise
        if self._closed:
            raise ValueError("This iterator was closed while its next element was being computed.")
        self._tickets.popleft()
        self._result, self._row, self._high = self._watched(ticket.task.low, result), 0, ticket.task.high
        if result.failure is None:
            self._after = result.after
        expected = -(-(ticket.task.high - ticket.task.low) // self._program.unit)
        # A worker makes what a filter drops later, too: bytes are counted as if all of them had stayed.
        size = size_of_result(result) * expected // len(result.rows) if len(result.rows) else None
        self._sizer.learn(ticket.task.high - ticket.task.low, seconds, size)
        self._fill()
        return True

    def _steps_over(self, error: BaseException) -> bool:
        """Leaves out an element that kills workers, if elements that fail are left out."""
        if self._skips is None or not isinstance(error, WorkerDied) or error.at is None:
            return False
        low, high = error.at
        self._count_skipped(self._result, high)
        self._skips.add(self._program.which(low, high), in_words(error))
        before = self._after if self._result is None else self._result.after
        # As if it had raised: the steps that it came to have seen it.
        self._counts = [count + (step < error.counted) for step, count in enumerate(before)]
        self._position = high
        self._restart()
        return True

    def _watched(self, low: int, result: Result) -> Result:
        """The result, cut short before the first element at which a filter had dropped too many."""
        found: list[tuple[int, ValueError]] = []
        for number, (watch, stays) in enumerate(zip(self._watches, result.stays)):
            judged = watch.judge(stays)
            if judged is not None:
                place, error = judged
                for before in reversed(result.stays[:number]):
                    place = place if isinstance(before, int) else int(np.flatnonzero(before)[place])
                found.append((low + place, error))
        if not found:
            return result
        position, error = min(found, key=lambda at: at[0])
        good = int(np.searchsorted(result.marks[:, 0], position, side="right"))
        skipped = [left_out for left_out in result.skipped if left_out[0] < position]
        return Result(blocks.part_of(result.rows, 0, good), result.marks[:good], result.after, error, skipped)

    def _fill(self) -> None:
        while len(self._tickets) < self._ahead * self._executor.stretch() and self._next < self._length:
            high = min(self._length, self._next + self._sizer.positions())
            if self._tickets and high - self._position > self._most:
                break  # until there is room for a whole block: else blocks would stay as small as the first ones
            if high < self._length:
                high -= (high - self._next) % self._program.unit
            given, high = self._given(self._next, high)
            if high == self._next:
                break
            counts = self._counts_at(self._next)
            task = Task(self._program, self._next, high, self._number, counts, self._ledger, given)
            self._tickets.append(self._executor.submit(task))
            self._next = high
            self._number += 1

    def _given(self, low: int, high: int) -> tuple[Block | None, int]:
        """The rows that a task brings along, and where they end."""
        return None, high

    def _counts_at(self, position: int) -> list[int] | None:
        """How many elements each counting step has seen at `position`, where that is arithmetic."""
        if self._program.asks:
            return None
        units = self._program.unit_before_counting
        return [base + (position - self._base) // unit for base, unit in zip(self._base_counts, units, strict=True)]

    def _restart(self) -> None:
        """Forgets all that was computed ahead, and begins again after what was delivered."""
        if self._tickets:
            self._ledger.abort()
            self._executor.forget(list(self._tickets))
            self._tickets.clear()
        self._result = None
        self._next = self._base = self._position
        self._base_counts = list(self._counts)
        self._after = list(self._counts)
        self._number = 0
        self._ledger = Ledger(self._base_counts)

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        if self._result is None or self._program.unit > 1:
            return None
        position = int(self._result.marks[self._last[0] + row, 0]) - 1
        return position, self._program.origins(position)

    def get_state(self) -> State:
        return state_of(self._program, self._state_of_rows(), self._counts)

    def set_state(self, state: State) -> None:
        counts = []
        for step in reversed(self._program.counting):
            assert step.count_key is not None
            with inside(*["parent"] * len(counts)):
                counts.append(counted(state, step.count_key))
                state = field(state, "parent", dict)
        with inside(*["parent"] * len(counts)):
            self._set_state_of_rows(state, counts[::-1])

    def _state_of_rows(self) -> State:
        return {"next_index": self._position}

    def _set_state_of_rows(self, state: State, counts: list[int]) -> None:
        self._seek(position_of(state, self._length), counts)

    def get_next_index(self) -> int:
        index: int | None = self._position
        counts = iter(self._counts)
        for step in self._program.steps:
            if isinstance(step, BatchStream):
                index = None if index is None else -(-index // step.batch_size)
            elif step.count_key:
                index = next(counts)
            elif step.drops:
                index = None  # how many are left is known to no one
        return super().get_next_index() if index is None else index

    def set_next_index(self, index: int) -> None:
        if self._program.drops:
            super().set_next_index(index)
        counts: list[int] = []
        for step in reversed(self._program.steps):
            if isinstance(step, BatchStream):
                index *= step.batch_size
            elif step.count_key:
                counts.append(index)
        self._seek(index, counts[::-1])

    def _seek(self, position: int, counts: list[int]) -> None:
        check_position(position, self._length)
        self._position, self._counts = position, counts
        self._restart()

    def start_prefetch(self) -> None:
        self._fill()

    def close(self) -> None:
        self._closed = True
        self._result = None
        self._ledger.abort()
        tickets: list[Ticket] = []
        with contextlib.suppress(IndexError):
            while True:  # one by one: another thread may be about to add more
                tickets.append(self._tickets.popleft())
        self._executor.forget(tickets)


def size_of_result(result: Result) -> int:
    """Bytes of the rows of a result: what they took to travel, or what is seen of them."""
    return size_of(result.rows) if result.size_bytes is None else result.size_bytes


def size_of(rows: Block) -> int:
    """Bytes of the arrays, texts and bytes in a block; of many rows, the first few stand for all."""
    if isinstance(rows, Columns):
        return sum(leaf.nbytes for leaf in trees.leaves(rows.tree))
    some = rows[:4]
    total = sum(_size_of_leaf(leaf) for row in some for leaf in trees.leaves(row))
    return total * len(rows) // max(1, len(some))


def _size_of_leaf(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray):
        return leaf.nbytes
    return len(leaf) if isinstance(leaf, bytes | str) else 0
