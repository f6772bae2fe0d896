"""Memory for batches that the consumer makes on their way to a device: slots that are used again, mapped for DMA.

New memory is slow: the system clears each page when it is first written to. A slot has its pages already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from bushel._src.base import memory
from bushel._src.base.blocks import Block
from bushel._src.engine.dma import DmaMapper
from bushel._src.engine.slabs import Arena, Slot
from bushel._src.graph.cursors import Cursor, Same

_WORTH_A_SLOT = 4 << 20
"""In bytes. Smaller elements are made in ordinary memory, which costs them nothing."""


class HostMemory:
    """Slots for the elements of one stream. An element holds its slot until its last array is gone.

    Args:
      budget_bytes: how large all slots may be together.
      slots: how many elements may hold a slot at a time. Further elements get ordinary memory.
      mapper: maps the slots for a GPU.
    """

    def __init__(self, budget_bytes: int, slots: int, mapper: DmaMapper | None = None):
        self._budget_bytes = budget_bytes
        self._slots = slots
        self._mapper = mapper
        self._arena: Arena | None = None
        self._closed = False

    @contextlib.contextmanager
    def for_element(self) -> Iterator[None]:
        """Return a context in which batches that this thread makes are in a slot, if one is free and they fit."""
        arena, number = self._arena, None
        if arena is not None:
            number = arena.grant()
        # The slot and the arrays in it hold the lease. If an element has no arrays in it, the lease ends at once.
        slot = Slot(memoryview(b"") if arena is None or number is None else arena.lease(number))
        with memory.allocating(slot.make_array):
            yield
        used = slot.used
        if arena is not None and number is not None and used <= arena.slot_bytes:
            if used and self._mapper is not None:
                self._mapper.map(arena, number)
        elif used >= _WORTH_A_SLOT and (arena is None or used > arena.slot_bytes):
            self._make_arena(int(1.25 * used))

    def _make_arena(self, slot_bytes: int) -> None:
        self._drop_arena()
        count = min(self._slots, self._budget_bytes // slot_bytes)
        if count and not self._closed:
            with contextlib.suppress(OSError):  # no shared memory: elements are then made in ordinary memory
                self._arena = Arena(slot_bytes, count)

    def close(self) -> None:
        """Close the arena. Its memory stays as long as arrays use it."""
        self._closed = True
        self._drop_arena()

    def _drop_arena(self) -> None:
        arena, self._arena = self._arena, None
        if arena is not None:
            arena.close()
            if self._mapper is not None:
                self._mapper.close(arena)


class InHostMemory(Same):
    """The elements of a cursor, one by one, each made in a slot."""

    def __init__(self, parent: Cursor, host_memory: HostMemory):
        super().__init__(parent)
        self._memory = host_memory

    def pull(self, count: int) -> Block:
        with self._memory.for_element():
            return self.parent.pull(1)

    def close(self) -> None:
        self.parent.close()
        self._memory.close()
