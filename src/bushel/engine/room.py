"""Room for results: how many may wait for the consumer, in shared memory and beside it, within one budget."""

from __future__ import annotations

import logging
import os

from bushel.base.memory import ALIGNMENT
from bushel.engine.jobs import Job, Load, Place
from bushel.engine.slabs import Arena
from bushel.engine.wire import Packed

logger = logging.getLogger("bushel")


class Room:
    """An arena as large as the budget, and an account of the results that wait outside of it.

    Args:
      budget_bytes: bounds both together.
      block_bytes: what a result should take at most; those that cannot be smaller are larger.
      portable: makes the arena of memory that any system has.
    """

    def __init__(self, budget_bytes: int, block_bytes: int, *, portable: bool):
        self.arena: Arena | None = None
        self._budget_bytes = budget_bytes
        self._block_bytes = block_bytes
        self._portable = portable
        self._largest = 0
        self._latest_heap_bytes = 0
        self._outgrown: list[Arena] = []  # smaller ones, in which somebody still looks
        self._waiting: list[Load] = []  # results that were not handed over yet
        self._is_possible = True
        self._warned = False

    def is_full(self, making: int) -> bool:
        """Whether nothing should be begun but what the consumer waits for, while so many results are in the making."""
        self._waiting = [load for load in self._waiting if not load.over]
        taken = sum(load.heap_bytes for load in self._waiting) + making * self._latest_heap_bytes
        if self.arena is not None:
            held = self.arena.held()
            if held == self.arena.slots:
                return True
            taken += held * self.arena.slot_bytes
        if self._outgrown:
            self._outgrown = [arena for arena in self._outgrown if arena.held()]
            taken += sum(arena.held() * arena.slot_bytes for arena in self._outgrown)
        return taken > self._budget_bytes

    def grant(self, making: int) -> Place | None:
        """A slot for a result; None where there is no arena, or all of it is held. `making` results have theirs."""
        if self.arena is None:
            return None
        slot = self.arena.grant()
        if slot is None:
            self._warn_of_holding(self.arena, making)
            return None
        return Place(self.arena, slot)

    def take_in(self, job: Job, packed: Packed) -> memoryview | None:
        """Takes account of a result; the memory of its slot, if it lies in one."""
        memory = None
        if packed.places and job.place is not None:
            job.load.arena, slot = job.place
            memory = job.load.arena.lease(slot)
            job.place = None
        job.leave()
        job.load.heap_bytes = self._latest_heap_bytes = packed.heap_bytes
        self._waiting.append(job.load)
        self._largest = max(self._largest, packed.slot_bytes)
        if packed.places is None or self.arena is None:
            self._grow()
        return memory

    def _grow(self) -> None:
        """Makes an arena whose slots hold blocks of the usual size and the largest so far.

        Memory that no one has written to does not exist yet, so slots may be larger than what they hold, and those
        used last are used next.
        """
        wanted = max(int(1.25 * self._block_bytes), int(1.25 * self._largest), ALIGNMENT)
        if not self._is_possible or (self.arena is not None and self.arena.slot_bytes >= wanted):
            return
        self.close()
        count = min(self._budget_bytes, _memory_bytes()) // wanted
        if count >= 2:
            try:
                self.arena = Arena(wanted, count, portable=self._portable)
            except OSError as error:  # results go on as copies
                logger.warning("No shared memory for results (%s): they are sent as copies.", error)
                self._is_possible = False

    def _warn_of_holding(self, arena: Arena, making: int) -> None:
        waiting = sum(load.arena is arena and not load.over for load in self._waiting)
        held = arena.held() - making - waiting
        if not self._warned and held > arena.slots // 2:
            self._warned = True
            logger.warning(
                "The shared memory for results is full: arrays that are still in use hold %d of its %d slots of %.1f "
                "MB, which budget_bytes=%d allows. Results go on as copies; to avoid them let go of batches, or raise "
                "MultiprocessingOptions.budget_bytes.",
                held,
                arena.slots,
                arena.slot_bytes / 1e6,
                self._budget_bytes,
            )

    def close(self) -> None:
        """Lets go of the arena; what is looked at stays."""
        if self.arena is not None:
            self.arena.close()
            self._outgrown.append(self.arena)
            self.arena = None


def _memory_bytes() -> int:
    """What this machine has: no budget is larger, whatever number stands for "no limit"."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
