"""The book-keeping of a pool: its jobs, its workers, and the memory of finished results.

The limit of that memory is the pool's back-pressure.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import mmap
import os
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from typing import Any, NamedTuple

from bushel._src.base.errors import WorkerDied
from bushel._src.base.memory import ALIGNMENT
from bushel._src.engine.pool.results import Details
from bushel._src.engine.pool.wire import Packed
from bushel._src.engine.shared_memory import DmaMapper, Slab, uses_temporary_file
from bushel._src.engine.tasks import Ticket

logger = logging.getLogger("bushel")


@dataclasses.dataclass(frozen=True)
class PoolOptions:
    """The size of a pool and its limits."""

    num_workers: int
    """How many workers there are at most."""
    at_first: int
    """How many of them get jobs until `resize` is called."""
    init: Callable[[int, int], None] | None
    """The user's `worker_init_fn`."""
    timeout_s: float | None
    """An element that takes longer is treated like an element that kills its worker; None waits for ever."""
    budget_bytes: int
    """How many bytes all results may have that wait for the consumer."""
    block_bytes: int
    """How many bytes a result usually has at most. A result that is a single large row may be larger."""
    mapper: DmaMapper | None
    """Maps the slots that hold results, so that a GPU can read them by itself."""


class GrantedSlot(NamedTuple):
    """A slot of shared memory that a job may write its result into."""

    arena: Slab
    number: int


PackedResult = tuple[Packed, Details, "memoryview | None"]
"""The result of all rows of a task or of some: rows, all else, and the memory of the slot with the large arrays."""


@dataclasses.dataclass(slots=True, eq=False)
class Footprint:
    """The memory that a result takes until the consumer has released it."""

    arena: Slab | None = None
    """The arena in which the result holds a slot; None if it holds none."""
    heap_bytes: int = 0
    """How many bytes of the result are outside of the slot."""
    released: bool = False
    """Set by the consumer when it has the result, or when it will never ask for it."""


@dataclasses.dataclass(slots=True, eq=False)
class Job(Ticket):
    """A task on its way through the pool.

    The consumer sets `urgent` and `footprint.released`. Only the pool's thread touches the rest.
    """

    number: int
    program: int
    high: int
    """Where its positions end: before `task.high` once an element was blamed that is not the first one."""
    rows: Any = None
    """The rows that the task brings along, as workers receive them."""
    start: tuple[int, bytes] | None = None
    """For a stream that a worker runs whole: the number of the run, and the pickled state to continue from."""
    row_by_row: bool = False
    """Whether each row is pickled by itself."""
    urgent: bool = False
    """Whether the consumer waits for this job now."""
    assigned: bool = False
    """Whether a worker has it."""
    slot: GrantedSlot | None = None
    footprint: Footprint = dataclasses.field(default_factory=Footprint)
    count_request: tuple[int, int] | None = None
    """The counting step and the number of elements with which the worker has asked for a count, while it waits."""
    careful: bool = False
    """Whether it runs row by row, because a worker has died over its positions."""
    at: int = 0
    """The first position that has no result yet."""
    results: list[PackedResult] = dataclasses.field(default_factory=list)
    """The results before `at`, if a job that runs row by row sends each of them as soon as it has it."""
    counts: list[int] | None = None
    """How many elements each counting step has seen before `at`, if there are results before it."""
    seconds: float = 0.0
    """How long these results took."""
    announced: tuple[int, int] | None = None
    """The positions that the worker computes now, if the job runs row by row, and if the pool knows them."""
    timeouts: int = 0
    """How many workers were killed because the job took too long."""
    overdue: tuple[int, int] | None = None
    """The positions of a single element that has taken too long."""
    error_after_rows: WorkerDied | None = None
    """The error to raise after the rows before `high`, once an element was blamed for the deaths of workers."""

    def __post_init__(self) -> None:
        self.at = self.task.low

    def settle(self, outcome: Any) -> None:
        """Set the result or the error. Do nothing if there is one: the consumer may have forgotten the job."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self.done.set_exception(outcome)
            else:
                self.done.set_result(outcome)

    def return_slot(self) -> None:
        """Return the slot to its arena. No array may look into it yet."""
        if self.slot is not None:
            self.slot.arena.give_back(self.slot.number)
            self.slot = None


@dataclasses.dataclass(slots=True, eq=False)
class PoolWorker:
    """A worker of any kind as the pool sees it: a process here, or an actor of a cluster."""

    index: int
    jobs: collections.deque[Job] = dataclasses.field(default_factory=collections.deque, kw_only=True)
    """The jobs it has, in the order in which it computes them."""
    programs: dict[int, bool] = dataclasses.field(default_factory=dict, kw_only=True)
    """The numbers of the programs it has received, and whether each runs a stream whole."""
    busy_since: float | None = dataclasses.field(default=None, kw_only=True)
    """When it began to compute, as far as the pool knows; None while it is idle."""
    has_finished: bool = dataclasses.field(default=False, kw_only=True)
    """Whether it has finished any job."""
    is_new: bool = dataclasses.field(default=True, kw_only=True)
    """Whether it has not got any job yet."""
    overdue: bool = dataclasses.field(default=False, kw_only=True)
    """Whether the pool has killed it because an element or a block took too long."""
    is_ready: bool = dataclasses.field(default=True, kw_only=True)
    """Whether it can get jobs. An actor cannot until it has started."""

    @property
    def running(self) -> Job | None:
        """The job that it computes; None if it is idle, or waits for the count of another block."""
        job = self.jobs[0] if self.jobs else None
        return job if job is not None and self.busy_since is not None and job.count_request is None else None


class ResultBuffer:
    """The memory of finished results: an arena of shared memory, and a count of the bytes outside of it.

    The bytes of both together stay within one budget. A full buffer is the pool's back-pressure: workers get no new
    jobs until the consumer has released results.

    Args:
      options: the budget, the usual size of results, and how many workers write them.
      portable: uses a temporary file for the arena, which works on every system, and no memfd.
    """

    def __init__(self, options: PoolOptions, *, portable: bool = False):
        self.arena: Slab | None = None
        self._options = options
        self._portable = portable
        self._largest_bytes = 0
        self._latest_heap_bytes = 0
        self._old_arenas: list[Slab] = []  # their slots were too small, but arrays still look into them
        self._unreleased: list[Footprint] = []
        self._has_shared_memory = True
        self._has_warned = False

    def is_full(self, running_jobs: int) -> bool:
        """Return whether only urgent jobs should begin, given how many jobs the workers have."""
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
        """Return a slot for a result; None if there is no arena, or no free slot.

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
        """Add a job's result to the account. Return the memory of its slot, if the result has arrays there."""
        memory, slot = None, -1
        if packed.extents and job.slot is not None:
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

    def add_result_of_rows(self, job: Job, packed: Packed) -> None:
        """Add the result of some rows of a job to the account. It is sent as a copy, since it is small and rare."""
        if not job.results:
            self._unreleased.append(job.footprint)
        job.footprint.heap_bytes += packed.heap_bytes

    def _fit_arena(self) -> None:
        """Replace the arena if its slots are too small for a usual block and the largest result, or far too large.

        Large slots cost nothing: a page of memory that was never written to does not exist, and the arena grants the
        slot that was used last first. But there are fewer of them.
        """
        wanted = max(int(1.25 * self._options.block_bytes), int(1.25 * self._largest_bytes), ALIGNMENT)
        if self.arena is None or not wanted <= self.arena.slot_bytes <= max(2 * wanted, mmap.PAGESIZE):
            self._make_arena(wanted)

    def _make_arena(self, slot_bytes: int) -> None:
        """Make an arena with slots of this size, in the place of the present one, if the budget has room for two."""
        self.close()
        slot_bytes = max(slot_bytes, ALIGNMENT)
        count = min(self._options.budget_bytes, _count_memory_bytes()) // slot_bytes
        if self._has_shared_memory and count >= 2:
            try:
                self.arena = Slab(slot_bytes, count, portable=self._portable)
            except OSError as error:
                logger.warning("No shared memory for results (%s): they are sent as copies.", error)
                self._has_shared_memory = False

    def _warn_of_held_slots(self, arena: Slab, running_jobs: int) -> None:
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
        """Close the arena. Its memory stays as long as arrays look into it."""
        if self.arena is not None:
            self.arena.close()
            if self._options.mapper is not None:
                self._options.mapper.close(self.arena)
            self._old_arenas.append(self.arena)
            self.arena = None


def _count_memory_bytes() -> int:
    """Return the size of this machine's memory. A budget above it would make an arena that the system refuses."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
