"""The book-keeping of a pool of worker processes: what it has to do, who does it, and where results go."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from concurrent.futures import InvalidStateError
from typing import Any, NamedTuple

from bushel.base.errors import WorkerDied
from bushel.engine.shipping import Shared
from bushel.engine.slabs import Arena
from bushel.engine.tasks import Ticket
from bushel.engine.wire import Channel


class Place(NamedTuple):
    """A slot that was granted."""

    arena: Arena
    slot: int


@dataclasses.dataclass(slots=True, eq=False)
class Load:
    """What a result takes until the consumer is through with it."""

    arena: Arena | None = None
    """Where it holds a slot."""
    heap_bytes: int = 0
    """What it takes besides."""
    over: bool = False
    """Set by the consumer: it has the result, or will not ask for it."""


@dataclasses.dataclass(slots=True, eq=False)
class Job(Ticket):
    """A task on its way through the pool. But for `urgent` and `load.over` it is the talking thread's alone."""

    number: int
    program: int
    high: int
    rows: Shared | None = None
    """The rows that the task brings along."""
    start: tuple[int, bytes] | None = None
    """Where a stream that is run whole goes on: which run of it, and the state, pickled."""
    one_by_one: bool = False
    """Whether each row is pickled by itself."""
    urgent: bool = False
    """Set by the consumer: it waits for this one."""
    begun: bool = False
    """Whether a worker has it."""
    place: Place | None = None
    """The slot that its result is made for."""
    load: Load = dataclasses.field(default_factory=Load)
    asked: tuple[int, int] | None = None
    """The counting step and the number of elements for which the worker waits."""
    counted: int = 0
    """How many counting steps it has come to."""
    deaths: int = 0
    """How many workers have died while they were at work on it. After the first one it is run element by element."""
    at: tuple[int, int] | None = None
    """The positions that the worker is at, where it runs the task element by element."""
    killed_at: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Where workers were when they died, as far as they had said so."""
    timeouts: int = 0
    """How many workers were killed because it took too long."""
    overdue: bool = False
    """Whether a single element has taken too long."""
    verdict: WorkerDied | None = None
    """What is to be said after the rows before `high`, once an element has killed too many workers."""

    def settle(self, outcome: Any) -> None:
        """Sets the result, or the error, unless there is one: the consumer may have given it up meanwhile."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(outcome, BaseException):
                self.done.set_exception(outcome)
            else:
                self.done.set_result(outcome)

    def leave(self) -> None:
        """Gives its slot back, in which nobody has looked."""
        if self.place is not None:
            self.place.arena.give_back(self.place.slot)
            self.place = None


class Death(NamedTuple):
    """When a worker died, and at which positions of which program it was: -1 and none where it was not at work."""

    when: float
    program: int
    low: int
    high: int

    @staticmethod
    def of(job: Job | None) -> Death:
        """The death of a worker that was at work on a job, or on none."""
        now = time.monotonic()
        if job is None:
            return Death(now, -1, 0, 0)
        return Death(now, job.program, *(job.at or (job.task.low, job.high)))

    def may_be_of(self, job: Job) -> bool:
        """Whether the element at which workers last died in a job may have caused this death, too.

        The death may be one over another block with this element: after an error, delivery cuts its blocks anew.
        """
        low, high = job.killed_at[-1]
        return self.program == job.program and self.low < high and low < self.high


@dataclasses.dataclass(slots=True, eq=False)
class Peer:
    """A worker as the pool sees it."""

    index: int
    channel: Channel
    pid: int
    jobs: collections.deque[Job] = dataclasses.field(default_factory=collections.deque)
    programs: set[int] = dataclasses.field(default_factory=set)
    arena: Arena | None = None
    since: float | None = None
    """When it began what it works on, once it has said so."""
    watch: int = -1
    """A descriptor that tells of its death, where the system has such: a child of its own may keep its socket open."""
    served: bool = False
    """Whether it has finished anything."""
    listens: bool = True
    """Whether all that it was told has gone out."""
