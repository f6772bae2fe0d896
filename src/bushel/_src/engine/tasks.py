"""Tasks and executors: the protocol between delivery and executors, and the executor that uses threads.

Also the warning when no result arrives for long: which worker or thread computes what, since when, and where in the
code.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import functools
import logging
import math
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from bushel._src.base.background import must_end, start_thread
from bushel._src.base.blocks import make_block_private
from bushel._src.base.errors import add_note
from bushel._src.base.memory import Allocator
from bushel._src.base.public import public
from bushel._src.base.shown_text import silence_worker
from bushel._src.base.state_names import overridable
from bushel._src.engine.program import (
    Announce,
    CountBefore,
    GivenInput,
    PlannedInput,
    Program,
    ProgramInput,
    Result,
    make_empty_result,
    run,
)
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.graph import hidden_randomness

logger = logging.getLogger("bushel")

STALL_S = 60.0
"""After this time without a result there is a warning, and again after each such time."""

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


def wait_for_result(done: Future[Any], describe: Callable[[], str | None]) -> Any:
    """Return the result of a future, however long it takes.

    Warns now and then with what `describe` returns, if anything.
    """
    waited_s = 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            return done.result(STALL_S)
        # The TimeoutError may be the result itself, raised by the user's function.
        if done.done():
            return done.result()
        waited_s += STALL_S
        warn(waited_s, describe())


def warn(waited_s: float, description: str | None) -> None:
    """Log for how long no result has arrived, unless there is no description."""
    if description is not None:
        logger.warning("No result has arrived for %.4g s. %s", waited_s, description)


def describe_threads(threads: Iterable[threading.Thread], idle: str) -> str | None:
    """Return where threads are in the code, without those whose innermost function is named `idle`.

    None if one of them is inside `wait_for_result`: then it warns itself, and knows more.
    """
    frames = sys._current_frames()
    lines = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if frame is None or frame.f_code.co_name == idle:
            continue
        import traceback

        stack = [outer for outer, _ in traceback.walk_stack(frame)]
        if any(outer.f_code is wait_for_result.__code__ for outer in stack):
            return None
        calls = [f'  File "{at.f_code.co_filename}", line {at.f_lineno} in {at.f_code.co_name}' for at in stack]
        lines.append(f"Thread {thread.name} is at:\n{hide_library(calls)}")
    return "\n".join(lines) or "No thread is computing it."


def hide_library(lines: list[str]) -> str:
    """Return the lines of a stack that are not in this library; all of them if there are no others."""
    return "\n".join([line for line in lines if _PACKAGE not in line] or lines)


class Doing(enum.IntEnum):
    """What a worker does. Only during the last two can a death be the fault of one thing that it does."""

    NOTHING_ALONE = 0
    """It starts, waits for a job or a count, receives a job, or sends a result."""
    BLOCK = 1
    """It computes a block of many rows, or packs it."""
    INIT = 2
    """It runs the user's `worker_init_fn`."""
    LOADING = 3
    """It loads a program, which may import the user's modules."""
    ROW = 4
    """It computes or pickles one row, and nothing else."""


class WorkerActivity(NamedTuple):
    """What a worker does, or has done when it died. It says so in memory that survives it. Times are monotonic."""

    doing: Doing
    job: int = -1
    """The number of the job; of the program, while it is being loaded."""
    row: tuple[int, int] = (0, 0)
    """The positions of the row."""
    positions: tuple[int, int] = (0, 0)
    """The positions in the row that it computes: those of one element, or of a batch."""
    counted: int = 0
    """How many counting steps the row has reached."""
    row_since: float = 0.0
    """When it began with the row, with loading, or with `worker_init_fn`."""
    since: float = 0.0
    """When it began with these positions."""


if TYPE_CHECKING:
    from bushel._src.engine.measurements import Pool


class Aborted(Exception):
    """A task gave up while it waited for the counts of blocks before it."""


class Ledger:
    """The number of elements of each block that have reached each counting step. A block asks it what came before."""

    def __init__(self, starts: list[int]):
        self._totals = [[start] for start in starts]  # totals[step][n]: elements before block n
        self._early: list[dict[int, int]] = [{} for _ in starts]
        self._changed = threading.Condition()
        self._lost_after: float = math.inf  # blocks with a larger number never learn their counts

    def report(self, step: int, number: int, count: int) -> None:
        """Record that `count` elements of block `number` reach `step`. Reporting it again changes nothing."""
        with self._changed:
            totals, early = self._totals[step], self._early[step]
            if number + 1 >= len(totals):
                early[number] = count
            while len(totals) - 1 in early:
                totals.append(totals[-1] + early.pop(len(totals) - 1))
            self._changed.notify_all()

    def before(self, step: int, number: int) -> int | None:
        """Return how many elements reached `step` before block `number`; None while that is not known."""
        totals = self._totals[step]
        return totals[number] if number < len(totals) else None

    def wait(self, step: int, number: int, count: int) -> int:
        """Report, and wait until all blocks before have reported, too. Raises Aborted if they never will."""
        self.report(step, number, count)
        with self._changed:
            while (before := self.before(step, number)) is None:
                if self.is_lost(number):
                    raise Aborted
                self._changed.wait()
            return before

    def end(self, number: int) -> None:
        """Record that block `number` has ended, with rows or with an error.

        If an element failed before a counting step, the block never reports a count there. Later blocks then give up.
        Delivery throws them away when it comes to the error. But until then they would hold workers that delivery may
        need for other blocks.
        """
        with self._changed:
            reported = all(
                number + 1 < len(totals) or number in early for totals, early in zip(self._totals, self._early)
            )
            if not reported:
                self._lost_after = min(self._lost_after, number)
                self._changed.notify_all()

    def is_lost(self, number: int) -> bool:
        """Return whether block `number` would wait for ever: a block before it has ended without a count, or all are
        aborted.
        """
        return number > self._lost_after

    def abort(self) -> None:
        """Make all blocks that wait for counts give up: nobody needs them any more."""
        with self._changed:
            self._lost_after = -1
            self._changed.notify_all()


@dataclasses.dataclass(slots=True, eq=False)
class Task:
    """Positions [low, high) of a program. `counts` is None if the task must ask the ledger for them while it runs."""

    program: Program | StreamProgram
    low: int
    high: int
    number: int
    counts: list[int] | None
    ledger: Ledger
    given: Any = None
    """For a program without a map node, its rows. For a whole stream, the run and the state to start at."""

    def __reduce__(self) -> Any:
        if self.asks:
            raise TypeError(
                "This task cannot leave its process: while it runs, it asks how many elements the blocks before it "
                "have brought to one of its steps. Set `shares_counts = False` in the class of the executor (it is the "
                "default), and no task will ask."
            )
        return _rebuild_task, (self.program, self.low, self.high, self.number, self.counts, self.given)

    def count_before(self, step: int, count: int) -> int:
        return self.counts[step] if self.counts is not None else self.ledger.wait(step, self.number, count)

    @property
    def asks(self) -> bool:
        """Whether the task may wait for the counts of the blocks before it."""
        return self.counts is None

    def run(self) -> Result:
        try:
            return run_task(self.program, self.low, self.high, self.count_before, None, self.given)
        finally:
            if self.asks:
                self.ledger.end(self.number)


def _rebuild_task(
    program: Program | StreamProgram, low: int, high: int, number: int, counts: list[int], given: Any
) -> Task:
    """Return a task in another process. Its counts are known, so it needs no ledger there."""
    return Task(program, low, high, number, counts, Ledger([]), given)


def run_task(
    program: Program | StreamProgram,
    low: int,
    high: int,
    count_before: CountBefore,
    announce: Announce | None,
    given: Any,
    allocator: Allocator | None = None,
) -> Result:
    """Run a task, in any process. Results that no function of the user's sees are made in the memory of `allocator`."""
    if isinstance(program, StreamProgram):
        return program.run(low, high, given, announce)
    rows = GivenInput(given, low) if program.node is None else PlannedInput(program.node)
    try:
        return run(program, rows, low, high, count_before, announce, allocator)
    except Exception:
        raise
    except BaseException as error:
        if must_end(error):
            raise
    return _run_until_stopped(program, rows, low, high, count_before, announce)


def _run_until_stopped(
    program: Program, rows: ProgramInput, low: int, high: int, count_before: CountBefore, announce: Announce | None
) -> Result:
    """Run a block again in which a function has raised a SystemExit or the like, which is not an Exception.

    The result has the rows before that element, and what it raised as its failure.
    """
    at = end = low

    def note(first: int, last: int) -> None:
        nonlocal at, end
        at, end = first, last
        if announce is not None:
            announce(first, last)

    try:
        return run(program, rows, low, high, count_before, note)
    except Exception:
        raise
    except BaseException as error:
        if must_end(error):
            raise
        add_note(error, program.describe_interruption(at, end))
        good = low + (at - low) // program.unit * program.unit
        before = run(program, rows, low, good, count_before) if good > low else make_empty_result(program)
        return dataclasses.replace(before, failure=before.failure or error)


@public("bushel.engine")
@dataclasses.dataclass(slots=True, eq=False)
class Ticket:
    """A task that was submitted. `done` gets its result and its seconds, or the error that stopped the executor."""

    task: Task
    done: Future[tuple[Result, float]]
    busy_s: float = dataclasses.field(default=0.0, kw_only=True)
    """For how much of these seconds its thread has run. Only threads tell."""


def wait_and_check(executor: Executor, ticket: Ticket) -> tuple[Result, float]:
    """Return the answer of `executor.wait`, after a check: a user may have written the executor.

    The rows are made private. A worker sends one object for a record that is in a block twice.
    """
    match executor.wait(ticket):
        case (Result() as result, int() | float() as seconds):
            result.rows = make_block_private(result.rows, received=True)
            return result, seconds
        case answer:
            raise TypeError(
                f"`wait` of {type(executor).__name__} must return the result of task.run() and the seconds it took, as "
                f"a tuple of these two; got {type(answer).__name__}."
            )


FORKED = "This iterator belongs to the process that forked this one. Make a new iterator here, or fork before."
"""The error in a forked child, which has none of the threads and workers of its parent."""


_is_worker = False


def become_worker() -> None:
    """Record that this process is a worker."""
    global _is_worker
    _is_worker = True
    hidden_randomness.collect_for_consumer()
    silence_worker()


def in_worker() -> bool:
    """Return whether this process is a worker. A worker starts no workers, or they would multiply without a bound."""
    return _is_worker


@public("bushel.engine")
class Executor(abc.ABC):
    """Runs tasks. An executor of your own implements the four abstract methods. Its results must be those of
    `task.run()`.

    Tasks and results can be pickled, so an executor may run tasks in other processes and on other machines: see
    "Tasks that leave the process" in docs/workers.md.
    """

    parallelism: int = 1
    """How many tasks it can work on at a time."""

    kind: str = "workers"
    """What its members are, in a report."""

    block_bytes: int = 8 << 20
    """How many bytes a block should have at most, unless a single row is larger."""

    keeps_all: bool = False
    """Whether it computes all rows, also those that take less time than sending them: it has a `worker_init_fn`, or a
    `timeout_s`, which hold only in workers.
    """

    shares_counts: bool = False
    """Whether a task may ask, while it runs, how many elements of the blocks before it have reached one of its steps.

    The ledger that answers is in the memory of this process, so such a task cannot be pickled. It waits until all tasks
    before it have reached that step, so tasks must begin in the order of submission. If this is False, no task asks:
    `random_map` or `map_with_index` after a `filter` is then a stage of its own, whose tasks bring their rows along.
    """

    @abc.abstractmethod
    def submit(self, task: Task) -> Ticket:
        """Take a task. Tasks should begin in the order of submission."""

    @abc.abstractmethod
    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        """Wait for a task, and return its result and the seconds that it took."""

    @abc.abstractmethod
    def forget(self, tickets: list[Ticket]) -> None:
        """Drop these tasks, whether they have run or not: nobody will ask for their results."""

    @abc.abstractmethod
    def close(self) -> None:
        """End all work. Calling it again does nothing."""

    @overridable
    def report(self) -> Pool:
        """Return the executor's figures for `iterator.report()`. By default these are its kind and its parallelism."""
        from bushel._src.engine.measurements import Pool  # here: a worker process starts sooner without it

        return Pool(self.kind, self.parallelism, "")

    @overridable
    def stretch(self) -> int:
        """Return how many times further ahead than usual delivery should work now; 0 if it should send no more tasks.

        With 0, the consumer computes rows once it has those already sent.
        """
        return 1


class ExecutorAround(Executor):
    """An executor that gives its tasks to another one and looks at the results."""

    def __init__(self, executor: Executor):
        self._executor = executor
        self.kind = executor.kind
        self.parallelism = executor.parallelism
        self.block_bytes = executor.block_bytes
        self.keeps_all = executor.keeps_all
        self.shares_counts = executor.shares_counts

    @overridable
    def submit(self, task: Task) -> Ticket:
        """Submit the task to the other executor."""
        return self._executor.submit(task)

    @overridable
    def forget(self, tickets: list[Ticket]) -> None:
        """Let the other executor forget the tickets."""
        self._executor.forget(tickets)

    def close(self) -> None:
        self._executor.close()

    @overridable
    def stretch(self) -> int:
        """Return the stretch of the other executor."""
        return self._executor.stretch()


class Threads(Executor):
    """Runs tasks in threads of this process: for work that releases the GIL, or a Python without one."""

    kind = "threads"
    shares_counts = True

    def __init__(self, num_threads: int, at_first: int | None = None):
        """`at_first`: how many threads there are before the first call of `resize`; by default all of them."""
        self.parallelism = num_threads
        self.size = num_threads if at_first is None else at_first
        self._work: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._finalizer = weakref.finalize(self, _stop, self._work, num_threads)

    def submit(self, task: Task) -> Ticket:
        if len(self._threads) < self.size:
            self._start()
        ticket = Ticket(task, Future())
        self._work.put(ticket)
        if not self._finalizer.alive:  # another thread has closed this executor: no thread may be left for the task
            ticket.done.cancel()
        return ticket

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        return wait_for_result(ticket.done, lambda: describe_threads(self._threads, idle=_serve.__name__))

    def forget(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.done.cancel()

    def close(self) -> None:
        self._finalizer()

    def _start(self) -> None:
        with self._starting:  # several iterators may share this executor
            for number in range(len(self._threads), self.size):
                stop = functools.partial(_stop_now, self._work, self.parallelism)
                self._threads.append(start_thread(f"bushel-read-{number}", stop, _serve, self._work))

    def resize(self, size: int) -> None:
        """Have this many threads from now on. Threads that are too many end after the tasks that were submitted."""
        with self._starting:
            surplus = len(self._threads) - size
            self.size = size
            if surplus > 0:
                del self._threads[size:]
                _stop(self._work, surplus)


def _compute(ticket: Ticket) -> None:
    if not ticket.done.set_running_or_notify_cancel():
        return
    begun, busy = time.perf_counter(), time.thread_time()
    try:
        result = ticket.task.run()
    except BaseException as error:
        ticket.done.set_exception(error)
    else:
        ticket.busy_s = time.thread_time() - busy
        ticket.done.set_result((result, time.perf_counter() - begun))


def _serve(work: queue.SimpleQueue[Ticket | None]) -> None:
    while (ticket := work.get()) is not None:
        _compute(ticket)
        del ticket  # otherwise an idle thread would keep the last result alive


def _stop(work: queue.SimpleQueue[Ticket | None], num_threads: int) -> None:
    for _ in range(num_threads):
        work.put(None)


def _stop_now(work: queue.SimpleQueue[Ticket | None], num_threads: int) -> None:
    """Stop the threads like `_stop`, but drop the tasks that have not begun."""
    with contextlib.suppress(queue.Empty):
        while True:
            work.get_nowait()
    _stop(work, num_threads)
