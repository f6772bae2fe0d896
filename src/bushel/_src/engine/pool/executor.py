"""`PooledExecutor`: how the consumer waits for the results of a pool, and how many workers it uses.

The number of workers may change while a pipeline runs. The output depends on neither.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import time
import weakref
from typing import Any, Generic, TypeVar

from bushel._src.engine import tasks
from bushel._src.engine.measurements import BUSY_SHARE, SMALL_WAIT_SHARE, Pool
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.jobs import Job, PackedResult, PoolOptions
from bushel._src.engine.pool.results import convert_rows, join_results, locate_rebuild_error, unpack_result
from bushel._src.engine.pool.scheduling import JOBS_PER_WORKER
from bushel._src.engine.pool.supervisor import PoolSupervisor
from bushel._src.engine.program import Result
from bushel._src.engine.tasks import Executor, ExecutorAround, Task, Ticket

S = TypeVar("S", bound=PoolSupervisor[Any])


class PooledExecutor(Executor, Generic[S]):
    """An executor whose workers a supervisor runs. The consumer holds it, waits for results and unpacks them.

    Args:
      options: the size of the pool and its limits.
      supervisor: has started its workers and its thread. It ends when this executor is closed or collected.
    """

    def __init__(self, options: PoolOptions, supervisor: S):
        self.parallelism = options.num_workers
        self.block_bytes = options.block_bytes
        self.keeps_all = options.timeout_s is not None or options.init is not None
        self._supervisor = supervisor
        # Ends the workers when this handle is collected. The pool's thread refers to the supervisor only, never to the
        # handle; otherwise an iterator that nobody closes would keep its workers for ever.
        self._finalizer = weakref.finalize(self, supervisor.stop)

    def submit(self, task: Task) -> Ticket:
        return self._supervisor.submit(task)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        assert isinstance(ticket, Job)
        results, seconds = self._wait_for_results(ticket)
        try:
            rows = [wire.unpack(packed, memory) for packed, _, memory in results]
        except Exception:
            # A class cannot rebuild one of its objects from the pickle. A worker computes the block again and pickles
            # each row by itself, so that only the rows that fail are lost.
            again = self._supervisor.submit(ticket.task, row_by_row=True)
            results, _ = self._wait_for_results(again)
            pickles = _join(results, [wire.unpack(packed, memory) for packed, _, memory in results])
            pickles.failure = pickles.failure or again.error_after_rows
            again.footprint.released = True
            program = ticket.task.program
            return convert_rows(pickle.loads, program, pickles, locate_rebuild_error), seconds
        finally:
            ticket.footprint.released = True
        result = _join(results, rows)
        result.failure = result.failure or ticket.error_after_rows
        return result, seconds

    def _wait_for_results(self, job: Job) -> tuple[list[PackedResult], float]:
        self._supervisor.mark_urgent(job)
        return tasks.wait_for_result(job.done, lambda: self._supervisor.describe_progress(job))

    def forget(self, tickets: list[Ticket]) -> None:
        self._supervisor.forget(tickets)

    def close(self) -> None:
        self._finalizer()

    def resize(self, workers: int) -> None:
        """Give tasks to this many workers from now on. Starts new workers; parks others when they have finished."""
        self._supervisor.resize(workers)

    def all_have_finished_one(self) -> bool:
        """Return whether every worker that gets tasks has finished one."""
        return self._supervisor.all_have_finished_one()

    def report(self) -> Pool:
        deaths, nodes = self._supervisor.deaths, self._supervisor.describe_nodes()
        return Pool(self.kind, self.parallelism, "", deaths=deaths, nodes=nodes)


def _join(results: list[PackedResult], rows: list[Any]) -> Result:
    """Return the result of a job, from its packed results and the rows of each."""
    return join_results(
        [
            unpack_result(one, packed.size_bytes, details)
            for one, (packed, details, _) in zip(rows, results, strict=True)
        ]
    )


def count_results(num_workers: int) -> int:
    """Return how many results may exist at a time: being computed, waiting, or used by the consumer."""
    return num_workers * (JOBS_PER_WORKER + 2) + 8


WINDOW_S = 0.5
"""How long a window of measurements is. It also lasts for two blocks of each worker at least."""

WARM_S = 10.0
"""How long measurements wait until all new workers have finished a block: their imports may take long."""

MAX_STRETCH = 4
"""Workers work at most this many times as far ahead as usual."""

_MOSTLY = 0.7
"""A consumer that waits for workers for this share of its time does little else."""

LEAST_GAIN = 1.1
"""Workers or threads are kept if they are at least this many times as fast as the consumer alone."""


class Tuner:
    """Decides from one window of measurements after the other how many workers get tasks.

    While the consumer waits, the tuner tries more workers and keeps those that make the pipeline faster. It parks
    workers that have nothing to do. After a try that gained nothing it pauses, twice as long each time. It tries again
    later, because the data may change. If workers are idle although the consumer waits, a slow block or a burst of
    demand is the cause, and the workers work further ahead.

    Args:
      max_workers: the largest number.
      min_workers: the smallest number.
      at_first: the first number; by default the smallest one.
      max_stretch: how many times further ahead than usual they may work.
      kind: what they are, in `why`.
      alone: if given, how many rows the consumer computes in a second by itself. If it waits for rows of the others
        nearly as long as it takes to compute them, the tuner decides for 0 workers, and has nothing to judge from then
        on.
      least_gain: how many times as fast as the consumer alone the workers must be.

    >>> tuner = Tuner(max_workers=8)
    >>> tuner.judge(rate=100, waiting=0.9, busy=1.0)
    2
    >>> tuner.judge(rate=195, waiting=0.02, busy=0.9)
    2
    >>> tuner.why
    '2 workers are 1.95 times as fast as 1; the consumer waits 2 % of its time'
    """

    def __init__(
        self,
        max_workers: int,
        min_workers: int = 1,
        at_first: int | None = None,
        max_stretch: int = MAX_STRETCH,
        kind: str = "workers",
        alone: float | None = None,
        least_gain: float = LEAST_GAIN,
    ):
        self._least_gain = least_gain
        self.max_workers, self._min_workers = max_workers, min_workers
        self.workers = min_workers if at_first is None else at_first
        self._max_stretch = max_stretch
        self._kind = kind
        self._alone = alone
        self.stretch = 1
        self.why = "nothing is measured yet"
        self._before_try: tuple[int, float] | None = None  # workers and rate, while more workers are tried
        self._finding = ""  # what the last try has shown
        self._pause = 0  # windows until the next try
        self._next_pause = 8
        self._idle_windows = 0

    def judge(self, *, rate: float, waiting: float, busy: float, least_gain: float = LEAST_GAIN) -> int:
        """Return the number of workers for the next window.

        Args:
          rate: rows per second in this window.
          waiting: the share of the window that the consumer waited.
          busy: the share of the window that the workers computed.
          least_gain: how many times as fast as the consumer alone the workers must be, if it waits for them most of the
            time. Threads that share the GIL may need twice the CPU time, and must gain more than that.
        """
        # The consumer takes `waiting / rate` seconds for a row, and alone `1 / alone`.
        gain = math.inf if self._alone is None else rate / max(self._alone * waiting, 1e-9)
        # Working further ahead helps a consumer that asks in bursts. One that only waits takes each row at once.
        in_bursts = waiting > SMALL_WAIT_SHARE and (self._alone is None or waiting < _MOSTLY)
        idle = in_bursts and busy < BUSY_SHARE and self.stretch < self._max_stretch
        # A consumer that waits for little of its time waits for something else, and has CPU time to spare.
        if self._before_try is None and not idle and gain < (least_gain if waiting > _MOSTLY else self._least_gain):
            self.why = (
                f"{self.workers} {self._kind} were {gain:.2f} times as fast as the consumer alone, too "
                "little for their CPU time, so the consumer computes elements itself"
            )
            self.workers = 0
            return 0
        self._pause = max(0, self._pause - 1)
        if self._before_try is not None:
            self._judge_try(rate)
        waits = f"the consumer waits {100 * waiting:.0f} % of its time"
        if waiting > SMALL_WAIT_SHARE:
            self._idle_windows = 0
            if idle:
                self.stretch *= 2
                self.why = f"{waits} although {self._kind} are idle, so they work further ahead"
                return self.workers
            if self.workers < self.max_workers and not self._pause:
                self._before_try = self.workers, rate
                # If twice the number was nearly twice as fast, four times the number is tried, and is there sooner.
                scales = self._alone is not None and gain >= 0.85 * self.workers
                self.workers = min(self.max_workers, (4 if scales else 2) * self.workers)
                self.why = f"{waits}, so more {self._kind} are tried"
                return self.workers
            none_left = "there are no more cores" if self._kind == "workers" else f"there may be no more {self._kind}"
            bound = none_left if self.workers == self.max_workers else self._finding
        else:
            # A fifth more than were busy, as a reserve. Three windows in a row, so that a quiet moment parks nobody.
            needed = max(self._min_workers, math.ceil(1.2 * busy * self.workers))
            self._idle_windows = self._idle_windows + 1 if needed < self.workers else 0
            if self._idle_windows >= 3:
                self._finding = f"{self.workers} {self._kind} were busy {100 * busy:.0f} % of the time"
                self.workers, self._idle_windows, self._pause = needed, 0, self._next_pause
            bound = self._finding
        self.why = "; ".join(dict.fromkeys(filter(None, [self._finding, bound, waits])))
        return self.workers

    def _judge_try(self, rate: float) -> None:
        """Keep as many workers as the gain justifies: each must add at least a tenth of what one gave before."""
        assert self._before_try is not None
        (count, before), self._before_try = self._before_try, None
        gain = rate / before
        useful = min(self.workers, max(count, math.ceil(count * gain - 0.1)))
        self._finding = f"{self.workers} {self._kind} are {gain:.2f} times as fast as {count}"
        if useful < self.workers:
            self._pause, self._next_pause = self._next_pause, 2 * self._next_pause
        self.workers = useful


class Tuned(ExecutorAround):
    """A pool of workers, with as many members as make the pipeline faster."""

    def __init__(self, pool: PooledExecutor, min_workers: int = 1):
        super().__init__(pool)
        self._pool = pool
        self._tuner = Tuner(pool.parallelism, min_workers)
        self._resized = math.inf
        self._begin_window(0.0)

    def _begin_window(self, now: float) -> None:
        self._window_start = now
        self._waited_s = self._busy_s = 0.0
        self._rows = self._blocks = 0

    def report(self) -> Pool:
        return dataclasses.replace(self._pool.report(), size=self._tuner.workers, why=self._tuner.why)

    def stretch(self) -> int:
        return self._tuner.stretch

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        start = time.perf_counter()
        result, seconds = self._pool.wait(ticket)
        now = time.perf_counter()
        starting = now - self._resized < WARM_S and not self._pool.all_have_finished_one()
        if starting or not self._window_start:
            # The first result, or one of a time when new workers still started, says nothing about the speed.
            self._begin_window(now)
            return result, seconds
        self._waited_s += now - start
        self._busy_s += seconds
        self._rows += len(result.rows)
        self._blocks += 1
        elapsed_s = now - self._window_start
        if elapsed_s >= WINDOW_S and self._blocks >= 2 * self._tuner.workers and self._rows:
            busy = min(1.0, self._busy_s / (elapsed_s * self._tuner.workers))
            workers = self._tuner.judge(rate=self._rows / elapsed_s, waiting=self._waited_s / elapsed_s, busy=busy)
            self._pool.resize(workers)
            self._resized = now
            self._begin_window(now)
        return result, seconds
