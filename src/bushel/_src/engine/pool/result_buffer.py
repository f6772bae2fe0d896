"""`ResultBuffer`: the memory of finished results, and its limit, which is the pool's back-pressure."""

from __future__ import annotations

import logging
import mmap
import os

from bushel._src.base.memory import ALIGNMENT
from bushel._src.engine.pool.jobs import Footprint, GrantedSlot, Job, PoolOptions
from bushel._src.engine.pool.wire import Packed
from bushel._src.engine.slabs import Arena, uses_temporary_file

logger = logging.getLogger("bushel")


class ResultBuffer:
    """The memory of finished results: an arena of shared memory, and a count of the bytes outside of it.

    The bytes of both together stay within one budget. A full buffer is the pool's back-pressure: workers get no new
    jobs until the consumer has released results.

    Args:
      options: the budget, the usual size of results, and how many workers write them.
      portable: uses a temporary file for the arena, which works on every system, and no memfd.
    """

    def __init__(self, options: PoolOptions, *, portable: bool = False):
        self.arena: Arena | None = None
        self._options = options
        self._portable = portable
        self._largest_bytes = 0
        self._latest_heap_bytes = 0
        self._old_arenas: list[Arena] = []  # their slots were too small, but arrays still look into them
        self._unreleased: list[Footprint] = []
        self._has_shared_memory = True
        self._has_warned = False

    def is_full(self, running_jobs: int) -> bool:
        """Whether only urgent jobs should begin, given how many jobs the workers have."""
        self._unreleased = [footprint for footprint in self._unreleased if not footprint.released]
        # A job that runs will need about as much heap as the latest result did.
        used_bytes = sum(footprint.heap_bytes for footprint in self._unreleased)
        used_bytes += running_jobs * self._latest_heap_bytes
        if self.arena is not None:
            held = self.arena.count_held()
            if held == self.arena.slots:
                return True
            used_bytes += held * self.arena.slot_bytes
        self._old_arenas = [arena for arena in self._old_arenas if arena.count_held()]
        used_bytes += sum(arena.count_held() * arena.slot_bytes for arena in self._old_arenas)
        return used_bytes > self._options.budget_bytes

    def grant_slot(self, running_jobs: int) -> GrantedSlot | None:
        """A slot for a result; None if there is no arena, or no free slot.

        Args:
          running_jobs: how many jobs have a slot and no result yet; only a warning needs it.
        """
        if self.arena is None and not self._largest_bytes and not uses_temporary_file(portable=self._portable):
            # Nobody knows yet how large results are. Memory that is not written to costs nothing, so each worker gets
            # as much as there is. In a temporary file room is reserved, so there the first results are sent as copies.
            self._make_arena(self._options.budget_bytes // (self._options.num_workers + 4))
        if self.arena is None:
            return None
        slot = self.arena.grant()
        if slot is None:
            self._warn_of_held_slots(self.arena, running_jobs)
            return None
        return GrantedSlot(self.arena, slot)

    def add_result(self, job: Job, packed: Packed) -> memoryview | None:
        """Adds a job's result to the account. Returns the memory of its slot, if the result has arrays there."""
        memory, slot = None, -1
        if packed.places and job.slot is not None:
            job.footprint.arena, slot = job.slot
            memory = job.footprint.arena.lease(slot)
            job.slot = None  # the end of the lease frees the slot
        job.return_slot()
        job.footprint.heap_bytes = self._latest_heap_bytes = packed.heap_bytes
        self._unreleased.append(job.footprint)
        self._largest_bytes = max(self._largest_bytes, packed.slot_bytes)
        self._fit_arena()
        if self._options.mapper is not None and self.arena is not None and job.footprint.arena is self.arena:
            self._options.mapper.map(
                self.arena, slot
            )  # now and not when it was granted: the worker has touched its pages
        return memory

    def add_part(self, job: Job, packed: Packed) -> None:
        """Adds a part of a job's result to the account. Parts are sent as copies, since they are small and rare."""
        if not job.parts:
            self._unreleased.append(job.footprint)
        job.footprint.heap_bytes += packed.heap_bytes

    def _fit_arena(self) -> None:
        """Replaces the arena if its slots are too small for a usual block and the largest result, or far too large.

        Large slots cost nothing: a page of memory that was never written to does not exist, and the arena grants the
        slot that was used last first. But there are fewer of them.
        """
        wanted = max(int(1.25 * self._options.block_bytes), int(1.25 * self._largest_bytes), ALIGNMENT)
        if self.arena is None or not wanted <= self.arena.slot_bytes <= max(2 * wanted, mmap.PAGESIZE):
            self._make_arena(wanted)

    def _make_arena(self, slot_bytes: int) -> None:
        """Makes an arena with slots of this size, in the place of the present one, if the budget has room for two."""
        self.close()
        slot_bytes = max(slot_bytes, ALIGNMENT)
        count = min(self._options.budget_bytes, _count_memory_bytes()) // slot_bytes
        if self._has_shared_memory and count >= 2:
            try:
                self.arena = Arena(slot_bytes, count, portable=self._portable)
            except OSError as error:
                logger.warning("No shared memory for results (%s): they are sent as copies.", error)
                self._has_shared_memory = False

    def _warn_of_held_slots(self, arena: Arena, running_jobs: int) -> None:
        waiting = sum(footprint.arena is arena and not footprint.released for footprint in self._unreleased)
        held = arena.count_held() - running_jobs - waiting
        if not self._has_warned and held > arena.slots // 2:
            self._has_warned = True
            logger.warning(
                "The shared memory for results is full: arrays that are still in use hold %d of its %d slots of %.1f "
                "MB, which budget_bytes=%d allows. Further results are sent as copies, which is slower. To avoid that, "
                "keep fewer batches, or raise budget_bytes in the options of the prefetch.",
                held,
                arena.slots,
                arena.slot_bytes / 1e6,
                self._options.budget_bytes,
            )

    def close(self) -> None:
        """Closes the arena. Its memory stays as long as arrays look into it."""
        if self.arena is not None:
            self.arena.close()
            if self._options.mapper is not None:
                self._options.mapper.close(self.arena)
            self._old_arenas.append(self.arena)
            self.arena = None


def _count_memory_bytes() -> int:
    """The size of this machine's memory. A budget above it would make an arena that the system refuses."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
