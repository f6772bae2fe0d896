"""Tasks and who runs them: the protocol between delivery and executors, and the executors of this process.

An executor takes tasks and gives back their results, in whatever order it likes to compute them. Everything else
(order, back-pressure, state, retries after an error) is delivery's business.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
import os
import queue
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import numpy as np

from bushel.base.contract import optional
from bushel.base.ending_threads import start_thread
from bushel.base.memory import Allocator
from bushel.base.progress import silence_worker
from bushel.engine import stall
from bushel.engine.program import Announce, CountBefore, GivenRows, PlannedRows, Program, Result, Rows, run
from bushel.engine.stream_program import StreamProgram


class Aborted(Exception):
    """A task gave up while it waited for the counts of blocks before it."""


class Ledger:
    """How many elements each block brought to each counting step: tells a block how many came before it."""

    def __init__(self, starts: list[int]):
        self._totals = [[start] for start in starts]  # totals[step][n]: elements before block n
        self._early: list[dict[int, int]] = [{} for _ in starts]
        self._changed = threading.Condition()
        self._lost_after: float = math.inf  # blocks with a larger number never learn their counts

    def report(self, step: int, number: int, count: int) -> None:
        """Block `number` brings `count` elements to `step`. Saying it again changes nothing."""
        with self._changed:
            totals, early = self._totals[step], self._early[step]
            if number + 1 >= len(totals):
                early[number] = count
            while len(totals) - 1 in early:
                totals.append(totals[-1] + early.pop(len(totals) - 1))
            self._changed.notify_all()

    def before(self, step: int, number: int) -> int | None:
        """How many elements came to `step` before block `number`; None while that is not known."""
        totals = self._totals[step]
        return totals[number] if number < len(totals) else None

    def wait(self, step: int, number: int, count: int) -> int:
        """Reports, and waits until the blocks before have reported too. Raises Aborted if they never will."""
        self.report(step, number, count)
        with self._changed:
            while (before := self.before(step, number)) is None:
                if self.is_lost(number):
                    raise Aborted
                self._changed.wait()
            return before

    def end(self, number: int) -> None:
        """Block `number` has ended, with rows or with an error.

        If an element failed before a counting step, the block never reports a count there. Later blocks then give up:
        delivery throws them away when it comes to the error, but until then they would hold workers that delivery may
        need for something else.
        """
        with self._changed:
            reported = all(
                number + 1 < len(totals) or number in early for totals, early in zip(self._totals, self._early)
            )
            if not reported:
                self._lost_after = min(self._lost_after, number)
                self._changed.notify_all()

    def is_lost(self, number: int) -> bool:
        """Whether block `number` may wait for ever: a block before it has ended without a count, or all are aborted."""
        return number > self._lost_after

    def abort(self) -> None:
        """Nobody needs the blocks any more: those that wait give up."""
        with self._changed:
            self._lost_after = -1
            self._changed.notify_all()


@dataclasses.dataclass(slots=True, eq=False)
class Task:
    """Positions [low, high) of a program. `counts` are known beforehand, or a ledger tells them on the way."""

    program: Program | StreamProgram
    low: int
    high: int
    number: int
    counts: list[int] | None
    ledger: Ledger
    given: Any = None
    """The rows for a program without a node; the state to go on from, for a stream that is run whole."""

    def __reduce__(self) -> Any:
        if self.asks:
            raise TypeError(
                "This task cannot leave its process: while it runs, it asks how many elements the blocks before it "
                "have brought to one of its steps. Set `shares_counts = False` in the class of the executor (it is the "
                "default), and no task will ask."
            )
        return _unpickled, (self.program, self.low, self.high, self.number, self.counts, self.given)

    def count_before(self, step: int, count: int) -> int:
        return self.counts[step] if self.counts is not None else self.ledger.wait(step, self.number, count)

    @property
    def asks(self) -> bool:
        """Whether it may wait for counts of the blocks before it."""
        return self.counts is None

    def run(self) -> Result:
        try:
            return run_task(self.program, self.low, self.high, self.count_before, None, self.given)
        finally:
            if self.asks:
                self.ledger.end(self.number)


def _unpickled(
    program: Program | StreamProgram, low: int, high: int, number: int, counts: list[int], given: Any
) -> Task:
    """A task in another process: its counts are known, so its ledger stays at home."""
    return Task(program, low, high, number, counts, Ledger([]), given)


def run_task(
    program: Program | StreamProgram,
    low: int,
    high: int,
    count_before: CountBefore,
    announce: Announce | None,
    given: Any,
    place: Allocator | None = None,
) -> Result:
    """Runs a task, wherever it is run; what can be made in `place` is."""
    if isinstance(program, StreamProgram):
        return program.run(low, high, given, announce)
    rows = GivenRows(given, low) if program.node is None else PlannedRows(program.node)
    try:
        return run(program, rows, low, high, count_before, announce, place)
    except (Exception, SystemExit):
        raise
    except BaseException:
        return _run_until_stopped(program, rows, low, high, count_before, announce)


def _run_until_stopped(
    program: Program, rows: Rows, low: int, high: int, count_before: CountBefore, announce: Announce | None
) -> Result:
    """Runs a block once more in which a function has raised what is no Exception: it comes after the rows before it."""
    at = low

    def note(first: int, last: int) -> None:
        nonlocal at
        at = first
        if announce is not None:
            announce(first, last)

    try:
        return run(program, rows, low, high, count_before, note)
    except (Exception, SystemExit):
        raise
    except BaseException as error:
        good = low + (at - low) // program.unit * program.unit
        made = Result([], np.zeros((0, 1 + len(program.counting)), dtype=np.int64), [])
        if good > low:
            made = run(program, rows, low, good, count_before)
        return dataclasses.replace(made, failure=made.failure or error)


@dataclasses.dataclass(slots=True, eq=False)
class Ticket:
    """A task under way. `done` holds its Result, or raises what stopped the executor itself."""

    task: Task
    done: Future[tuple[Result, float]]


def awaited(executor: Executor, ticket: Ticket) -> tuple[Result, float]:
    """What an executor answers, which may be one of a user's."""
    match executor.wait(ticket):
        case (Result() as result, int() | float() as seconds):
            return result, seconds
        case answer:
            raise TypeError(
                f"`wait` of {type(executor).__name__} must return the result of task.run() and the seconds it took, as "
                f"a tuple of these two; got {type(answer).__name__}."
            )


FORKED = "This iterator belongs to the process that forked this one. Make a new iterator here, or fork before."
"""Said in a forked child, which has none of the threads and workers of its parent."""


_is_worker = False


def become_worker() -> None:
    """From now on this process is a worker."""
    global _is_worker
    _is_worker = True
    silence_worker()


def in_worker() -> bool:
    """Whether this process is a worker. One starts none of its own, or they would multiply without a bound."""
    return _is_worker


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Executor(abc.ABC):
    """Runs tasks. To plug in another one, implement these four methods; results must be those of `task.run()`.

    Tasks and results can be pickled, so an executor may run tasks in other processes and on other machines: see
    "Tasks that leave the process" in docs/workers.md.
    """

    parallelism: int = 1
    """How many tasks it can work on at a time."""

    kind: str = "workers"
    """What its members are, in a report."""

    block_bytes: int = 8 << 20
    """How much a block should hold at most, unless a single row is larger."""

    keeps_all: bool = False
    """Whether all that it can do is left to it, however light: it was prepared for it, or gives up what takes long."""

    shares_counts: bool = False
    """Whether a task may ask, while it runs, how many elements the blocks before it have brought to one of its steps.

    The ledger that answers is in the memory of this process, so such a task cannot be pickled. It waits until all tasks
    before it have come as far, so tasks must begin in the order of submission. Where this is False no task asks:
    `random_map` or `map_with_index` after a `filter` is then a stage of its own, whose tasks bring their rows along.
    """

    @abc.abstractmethod
    def submit(self, task: Task) -> Ticket:
        """Takes a task; it should be begun in the order of submission."""

    @abc.abstractmethod
    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        """The result of a task and the seconds it took, once it is there."""

    @abc.abstractmethod
    def forget(self, tickets: list[Ticket]) -> None:
        """Nobody will ask for these results: drop them, run or not."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all work. Calling it again does nothing."""

    @optional
    def members(self) -> tuple[int, str]:
        """How many members work now, and why so many, where the executor has chosen that itself."""
        return self.parallelism, ""

    @optional
    def deaths(self) -> int:
        """How many of its members have died so far and were replaced."""
        return 0

    @optional
    def describe_nodes(self) -> tuple[str, ...]:
        """A line for each machine on which members work, for a report; none if all of them are on this one."""
        return ()

    @optional
    def stretch(self) -> int:
        """How many times further ahead than it would by itself delivery should work now."""
        return 1


class Resizable(Executor):
    """An executor whose number of members can change while it runs: see autotune.py."""

    @abc.abstractmethod
    def resize(self, workers: int) -> None:
        """Gives tasks to this many workers from now on. Starts new workers; parks others when they have finished."""

    @abc.abstractmethod
    def all_have_finished_one(self) -> bool:
        """Whether every worker that gets tasks has finished one."""


class Stepped(Executor):
    """Runs tasks when asked for one, others before it in an order drawn from a seed: for tests of delivery."""

    shares_counts = True

    def __init__(self, seed: int = 0, parallelism: int = 3):
        self.parallelism = parallelism
        import random  # here: tests alone need it, and every worker imports this module

        self._random = random.Random(seed)
        self._pending: list[Ticket] = []
        self._lock = threading.RLock()  # a stream may be pulled by a thread of its own

    def submit(self, task: Task) -> Ticket:
        ticket = Ticket(task, Future())
        with self._lock:
            self._pending.append(ticket)
        return ticket

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        while not ticket.done.done():
            with self._lock:
                if not ticket.done.done():
                    self._step()
        return ticket.done.result()

    def _step(self) -> None:
        # Tasks that ask for counts must run in their order: one cannot step aside here and wait.
        asking = [pending for pending in self._pending if pending.task.counts is None]
        free = [pending for pending in self._pending if pending.task.counts is not None]
        first: dict[int, Ticket] = {}
        for pending in asking:
            first.setdefault(id(pending.task.ledger), pending)
        chosen = self._random.choice([*free, *first.values()])
        self._pending.remove(chosen)
        _compute(chosen)

    def forget(self, tickets: list[Ticket]) -> None:
        with self._lock:
            self._pending = [ticket for ticket in self._pending if ticket not in tickets]

    def close(self) -> None:
        self._pending.clear()


class Threads(Executor):
    """Runs tasks in threads of this process: for work that releases the GIL, or a Python without one."""

    kind = "threads"
    shares_counts = True

    def __init__(self, num_threads: int):
        self.parallelism = num_threads
        self._work: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._finalizer = weakref.finalize(self, _stop, self._work, num_threads)

    def submit(self, task: Task) -> Ticket:
        if len(self._threads) < self.parallelism:
            self._start()
        ticket = Ticket(task, Future())
        self._work.put(ticket)
        if not self._finalizer.alive:  # closed meanwhile by another thread: nobody may be there to run it
            ticket.done.cancel()
        return ticket

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        return stall.wait_for_result(ticket.done, lambda: stall.describe_threads(self._threads, idle=_serve.__name__))

    def forget(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.done.cancel()

    def close(self) -> None:
        self._finalizer()

    def _start(self) -> None:
        with self._starting:  # several iterators may share this executor
            for number in range(len(self._threads), self.parallelism):
                stop = functools.partial(_stop_now, self._work, self.parallelism)
                self._threads.append(start_thread(f"bushel-read-{number}", stop, _serve, self._work))


def _compute(ticket: Ticket) -> None:
    if not ticket.done.set_running_or_notify_cancel():
        return
    begun = time.perf_counter()
    try:
        result = ticket.task.run()
    except BaseException as error:
        ticket.done.set_exception(error)
    else:
        ticket.done.set_result((result, time.perf_counter() - begun))


def _serve(work: queue.SimpleQueue[Ticket | None]) -> None:
    while (ticket := work.get()) is not None:
        _compute(ticket)
        del ticket  # an idle thread keeps nothing alive


def _stop(work: queue.SimpleQueue[Ticket | None], num_threads: int) -> None:
    for _ in range(num_threads):
        work.put(None)


def _stop_now(work: queue.SimpleQueue[Ticket | None], num_threads: int) -> None:
    """Like `_stop`, but what waits to be run is dropped."""
    with contextlib.suppress(queue.Empty):
        while True:
            work.get_nowait()
    _stop(work, num_threads)
