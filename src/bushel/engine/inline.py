"""Elements of a map node computed when they are asked for. Only index arithmetic runs ahead."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, add_note, in_words
from bushel.base.options import DatasetOptions
from bushel.engine.delivery import Switched, check_position, position_of
from bushel.graph.elementwise import FilterWatch
from bushel.graph.node import MapNode, Origin, Plan
from bushel.graph.streams import Cursor, Elements, Skips, State

PLAN_AHEAD = 8192
"""So many source indices are worked out at once: index arithmetic costs nanoseconds in bulk, microseconds alone."""

_FIRST_PLAN = 64


class Inline:
    """Consecutive elements of one map node, from any position on; plans grow as they are used up."""

    def __init__(self, node: MapNode):
        self._node = node
        self._most = max(1, PLAN_AHEAD // node.fan_in)
        self._size = min(_FIRST_PLAN, self._most)
        self._plan: Plan | None = None
        self._start = self._end = 0

    def take(self, position: int, count: int, *, look: bool = False) -> Block:
        """`count` elements from `position` on. Raises RowFailed, with the row counted from `position`.

        Args:
          look: whether the caller only reads the elements and drops them; see `Plan.look`.
        """
        if self._plan is None or position < self._start or position + count > self._end:
            end = min(self._node.length, position + max(count, self._size))
            plan = self._node.plan(np.arange(position, end))
            self._plan, self._start, self._end = plan, position, end  # at once, whatever interrupts
            self._size = min(self._most, 2 * self._size)
        low = position - self._start
        return self._plan.look(low, low + count) if look else self._plan.take(low, low + count)


class ElementsCursor(Cursor):
    """The elements of a map node in order, computed when they are asked for. Its state is one number."""

    def __init__(self, node: Elements, options: DatasetOptions, skips: Skips | None):
        self._node = node
        self._skips = skips
        self._inline = Inline(node.parent)
        self._length = node.parent.length
        self._position = 0
        self._last: tuple[int, Block] = (0, [])
        self.watch = FilterWatch(node.parent.call(), options)

    def look(self, count: int) -> Block:
        return self.pull(count, look=True)

    def pull(self, count: int, look: bool = False) -> Block:
        while self._position < self._length:
            first = self._position
            block = self._taken(first, min(count, self._length - first), look)
            self._position = first + len(block)
            self._last = (first, block)
            kept = block if self._node.allow_nones else blocks.dense(block)
            stays = blocks.presence(block) if 0 < len(kept) < len(block) else None
            self.watch.count(len(block), len(kept), stays)
            if len(kept):
                return kept
        return []

    def _taken(self, first: int, count: int, look: bool) -> Block:
        try:
            return self._inline.take(first, count, look=look)
        except RowFailed as failed:
            if self._skips is not None and count > 1:
                return [row for at in range(first, first + count) for row in blocks.rows_of(self._taken(at, 1, look))]
            add_note(failed.error, f"bushel: this was element {first + failed.row} of the output.")
            if self._skips is None:
                raise
            self._skips.add(f"element {first} of the output", in_words(failed.error))
            return [None]

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        first, block = self._last
        index = first + (row if self._node.allow_nones else blocks.place_of(block, row))
        return index, self._node.parent.origins(index)

    def get_state(self) -> State:
        return {"next_index": self._position}

    def set_state(self, state: State) -> None:
        self._position = position_of(state, self._length)

    def get_next_index(self) -> int:
        return self._position

    def set_next_index(self, index: int) -> None:
        check_position(index, self._length)
        self._position = index


SLOW_S = 100e-6
"""An element that takes longer is worth a thread: handing one over costs about half as much."""

_IN_A_ROW = 3


class UntilSlow(Switched):
    """Elements computed when they are asked for, until that takes long: from then on threads compute them ahead.

    What comes out is the same. One slow element says little, several in a row are believed; the first of all, which
    may open files and load code, counts for nothing.
    """

    def __init__(self, here: ElementsCursor, in_threads: Callable[[], Cursor]):
        self._inner: Cursor = here
        self._here: ElementsCursor | None = here
        self._in_threads = in_threads
        self._pulls = self._slow = 0

    def look(self, count: int) -> Block:
        return self.pull(count, look=True)

    def pull(self, count: int, look: bool = False) -> Block:
        if self._slow == _IN_A_ROW and self._here is not None:  # now and not before: the last rows may be asked about
            position, self._here = self._here.get_next_index(), None
            self._inner = self._in_threads()
            self._inner.set_next_index(position)
        if self._here is None:
            return self._inner.pull(count)
        first = self._here.get_next_index()
        begun = time.perf_counter()
        # One by one as long as nothing is known: a batch of slow elements would be a long wait.
        count = count if self._pulls > _IN_A_ROW else 1
        block = self._here.look(count) if look else self._here.pull(count)
        seconds, computed = time.perf_counter() - begun, self._here.get_next_index() - first
        self._slow = self._slow + 1 if self._pulls and seconds > SLOW_S * computed and computed else 0
        self._pulls += 1
        return block
