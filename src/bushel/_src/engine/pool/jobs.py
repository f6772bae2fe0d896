"""The book-keeping of a pool: its jobs and its workers, of any kind.

No thread and no message is here: see supervisor.py for those, and assigning.py for which job runs where.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from typing import Any, NamedTuple

from bushel._src.base.errors import WorkerDied
from bushel._src.engine.dma import DmaMapper
from bushel._src.engine.pool.results import Details
from bushel._src.engine.pool.wire import Packed
from bushel._src.engine.slabs import Arena
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

    arena: Arena
    number: int


Part = tuple[Packed, Details, "memoryview | None"]
"""A result, or a part of one: the rows, all else, and the memory of the slot in which large arrays are."""


@dataclasses.dataclass(slots=True, eq=False)
class Footprint:
    """The memory that a result takes until the consumer has released it."""

    arena: Arena | None = None
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
    parts: list[Part] = dataclasses.field(default_factory=list)
    """The results before `at`, if a job that runs row by row sends each of them as soon as it has it."""
    counts: list[int] | None = None
    """How many elements each counting step has seen before `at`, if there are parts."""
    seconds: float = 0.0
    """How long the parts took."""
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
        """Sets the result or the error. Does nothing if there is one: the consumer may have forgotten the job."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self.done.set_exception(outcome)
            else:
                self.done.set_result(outcome)

    def return_slot(self) -> None:
        """Returns the slot to its arena. No array may look into it yet."""
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
