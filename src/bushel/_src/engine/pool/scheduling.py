"""Chooses the job of a pool that begins next, and the worker that gets it.

Also decides when an element has killed workers. The supervisor sends jobs and replaces workers.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from bushel._src.base.errors import WorkerDied, WorkerTimeout
from bushel._src.engine.pool.jobs import Job, PoolWorker
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import Ledger
from bushel._src.graph.node import merge_origins

CHANCE = 1e-10
"""An element is blamed if its deaths have at most this chance to have come from outside."""

FEWEST_DEATHS = 4
"""An element is blamed after this many deaths at the earliest."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.64
"""The pause after the first death of an element alone. Each further pause is twice as long, up to the longest one.

No pause is shorter than the element has run before it died: otherwise the pauses of an element that takes a second
would say nothing about how often workers are killed.
"""

JITTER = 0.5
"""By which part of its length a pause is longer at most. Otherwise kills at a fixed rate could follow the attempts."""

SHORTEST_RUN_S = 1e-3
"""An element that dies sooner counts as one that has run this long: clocks and threads are no better than that."""

RECENT_S = 60.0
"""A death longer ago than this says nothing about the deaths of now."""

LOADING = -1, 0
"""The row that stands for loading a program."""

WHOLE = 0, 1
"""The row that stands for `worker_init_fn`, which belongs to no program."""


class Death(NamedTuple):
    """The death of a worker that did one thing alone."""

    when: float
    low: int
    high: int
    """The positions that it computed when it died: those of an element, or of a batch."""
    run_s: float
    """How long it had computed these positions."""
    row_s: float
    """How long it had computed the row that these positions are part of."""


@dataclasses.dataclass(slots=True, eq=False)
class Suspicion:
    """The deaths in a row of workers that did one thing alone, such as to compute one row."""

    program: int | None
    """The program whose row it is; None if it is no row."""
    low: int
    high: int
    """The positions of the row."""
    index: int | None
    """The place of the worker that died last. The worker that starts there tries the row again, and nothing else."""
    deaths: list[Death] = dataclasses.field(default_factory=list)
    others: int = 0
    """How many workers have died of something else since then."""
    quiet_s: float = 0.0
    """How many seconds have passed between each death and the next attempt, in all."""
    not_before: float = 0.0
    """When the next attempt may begin."""
    longest_pause_s: float = 0.0
    """The longest time between a death and the next attempt."""

    def find_killer(self) -> tuple[int, int, int] | None:
        """Return the positions of the element that has killed workers, and how many deaths prove that.

        Returns None if nothing is proven. The positions are those of the whole row if workers died at several of its
        elements.
        """
        last = self.deaths[-1]
        same = 1
        while same < len(self.deaths) and self.deaths[-same - 1][1:3] == last[1:3]:
            same += 1
        if self._is_proven([death.run_s for death in self.deaths[-same:]]):
            return last.low, last.high, same
        if self._is_proven([death.row_s for death in self.deaths]):
            return self.low, self.high, len(self.deaths)
        return None

    def _is_proven(self, runs_s: list[float]) -> bool:
        """Return whether deaths in a row, each after so many seconds, cannot come from outside."""
        if len(runs_s) < FEWEST_DEATHS:
            return False
        rate = (self.others + 2 * math.sqrt(self.others) + 3) / max(self.quiet_s, 1e-9)
        return _bound_poisson(rate * sum(max(run_s, SHORTEST_RUN_S) for run_s in runs_s[1:]), len(runs_s) - 1) <= CHANCE

    def describe(self, name: str, deaths: int, kind: str) -> str:
        """Return how it was proven that `name`, such as an element, kills workers: in whole sentences."""
        others = f"{self.others} other{'s' * (self.others != 1)}" if self.others else "no other worker"
        return (
            f"{name} killed {deaths} {kind} one after the other. Each of them died while it did nothing else. The "
            f"pauses between them grew to {self.longest_pause_s:.2f} s, and {others} died meanwhile, so no kill from "
            "outside is likely to be the cause."
        )


def _bound_poisson(mean: float, count: int) -> float:
    """Return an upper bound of the chance that something happens `count` times or more, if it happens `mean` times on
    average.

    >>> 0.018 < _bound_poisson(1.0, 4) < 0.02
    True
    """
    if mean >= count:
        return 1.0
    # The terms after the first one are smaller than those of a geometric series.
    first = count * math.log(mean) - mean - math.lgamma(count + 1)
    return min(1.0, math.exp(first) / (1 - mean / (count + 1)))


class Blame:
    """The deaths of a pool's workers that say something about elements. All times are those of `time.monotonic`.

    Args:
      timeout_s: how long one element may take; only the error message needs it.
    """

    def __init__(self, timeout_s: float | None = None):
        self._timeout_s = timeout_s
        self._random = random.Random()  # not the user's
        self._suspicions: dict[tuple[int | None, int], Suspicion] = {}  # by program and first position of the row
        # (when, program, low, high) of blocks over which a worker has died. They are computed row by row from then on.
        self._blocks: list[tuple[float, int, int, int]] = []

    def record_other_death(self) -> None:
        """Record the death of a worker that did nothing alone: it started, waited, or packed a block."""
        for suspicion in self._suspicions.values():
            suspicion.others += 1

    def record_block_death(self, program: int, low: int, high: int, now: float) -> None:
        """Record the death of a worker that computed a block of many rows. One of them may be the cause."""
        self._blocks = [block for block in self._blocks if block[0] > now - RECENT_S]
        self._blocks.append((now, program, low, high))
        self.record_other_death()

    def record_death_alone(
        self,
        program: int | None,
        row: tuple[int, int],
        positions: tuple[int, int],
        begun: tuple[float, float],
        now: float,
        index: int | None = None,
    ) -> Suspicion:
        """Record the death of a worker that did one thing alone. Return the suspicion, which may have become proof.

        Args:
          program: the number of the program whose row it computed; None if it ran `worker_init_fn`.
          row: the positions of the row.
          positions: those that it computed when it died, of the elements that the row is made of.
          begun: when it had begun with the row, and with these positions.
          index: the place of the worker in the pool, if another worker will try the row there, alone.
        """
        key = program, row[0]
        suspicion = self._suspicions.get(key)
        if suspicion is not None and suspicion.deaths[-1].when < now - RECENT_S - suspicion.longest_pause_s:
            suspicion = None
        if suspicion is not None and begun[0] < suspicion.not_before:
            # It began before the pause was over, in another block or another worker. So it proves nothing.
            return suspicion
        if suspicion is None:
            self.record_other_death()  # but the death of an element that has killed before is explained by that element
            suspicion = self._suspicions[key] = Suspicion(program, *row, index)
        else:
            pause_s = begun[0] - suspicion.deaths[-1].when
            suspicion.quiet_s += pause_s
            suspicion.longest_pause_s = max(suspicion.longest_pause_s, pause_s)
        suspicion.deaths.append(Death(now, *positions, now - begun[1], now - begun[0]))
        suspicion.index = index
        usual = FIRST_PAUSE_S * 2 ** min(len(suspicion.deaths) - 1, 30)
        longest_run_s = max(death.row_s for death in suspicion.deaths)
        pause_s = max(min(usual, LONGEST_PAUSE_S), longest_run_s) * (1 + JITTER * self._random.random())
        suspicion.not_before = now + pause_s
        return suspicion

    def acquit(self, program: int | None, low: int, high: int) -> None:
        """Forget the deaths at positions [low, high), since a worker has now computed them and lives."""
        if self._suspicions:
            for key in [key for key in self._suspicions if key[0] == program and low <= key[1] < high]:
                del self._suspicions[key]
        if self._blocks:
            left = [
                (when, number, max(first, high) if number == program and low <= first else first, last)
                for when, number, first, last in self._blocks
            ]
            self._blocks = [block for block in left if block[2] < block[3]]

    def is_suspect(self, program: int, low: int, high: int, now: float) -> bool:
        """Return whether workers have died lately at any of these positions, in this job or another one.

        Positions are compared and not jobs: after an error, delivery cuts the stream into other blocks.
        """
        recent = now - RECENT_S
        return any(number == program and low <= row < high for number, row in self._suspicions) or any(
            when > recent and number == program and first < high and low < last
            for when, number, first, last in self._blocks
        )

    def find_attempts(self, waiting: Iterable[Job]) -> dict[Job, Suspicion]:
        """Return the jobs that have a suspected row: they wait for the end of its pause, and for a worker alone."""
        attempts: dict[Job, Suspicion] = {}
        for job in waiting if self._suspicions else ():
            suspected = [
                suspicion
                for (program, row), suspicion in self._suspicions.items()
                if program == job.program and job.at <= row < job.high
            ]
            if suspected:
                attempts[job] = max(suspected, key=lambda suspicion: suspicion.not_before)
        return attempts

    def make_error(
        self, job: Job, low: int, high: int, explain: Callable[[str], str] | None, counted: int
    ) -> WorkerDied:
        """Return the error that names the element at positions [low, high) of a job.

        Args:
          explain: makes sentences that say what the element has done, of its name; None if it took too long.
          counted: how many counting steps it has reached, if the job had to ask for the counts.
        """
        program = job.task.program
        positions = range(low, min(high, low + 8))
        records = "; ".join(map(str, merge_origins(origin for at in positions for origin in program.origins(at))))
        made_of = f" ({records})" if records else ""
        name = f"Computing {program.describe_elements(low, high)}{made_of}"
        if explain is None:
            error: WorkerDied = WorkerTimeout(f"{name} took longer than timeout_s={self._timeout_s} s, twice.")
        else:
            error = WorkerDied(explain(name))
        counts = job.task.counts  # if they were known beforehand, the element has reached all counting steps
        error.at, error.counted = (low, high), counted if counts is None else len(counts)
        return error


JOBS_PER_WORKER = 2  # the job that it computes, and the next: so a worker need not wait for a message in between


W = TypeVar("W", bound=PoolWorker)


def choose_job(
    waiting: Iterable[Job],
    unfinished: Iterable[Job],
    full: bool,
    workers: Sequence[W],
    active: int,
    attempts: Mapping[Job, Suspicion],
    now: float,
) -> tuple[Job, W] | None:
    """Return the first waiting job that may begin, and the worker for it; None if there is none.

    Args:
      waiting: jobs that have not begun, in the order of their numbers.
      unfinished: all jobs without a result.
      full: whether the result buffer is full.
      workers: all workers that can get jobs.
      active: workers with an index below it are not parked.
      attempts: the jobs that have a row at which workers have died.
      now: the time.
    """
    if all(len(worker.jobs) >= JOBS_PER_WORKER for worker in workers):
        return None  # the usual case: saves a look at every waiting job for every result
    needed = _find_needed_counts(unfinished) if full else {}
    held_back: set[Ledger] = set()
    kept = {attempt.index for attempt in attempts.values()}
    free = [worker for worker in workers if not (worker.is_new and worker.index in kept)] if kept else workers
    for job in waiting:
        ledger = job.task.ledger if job.task.asks else None
        if ledger in held_back:  # rule 1: an earlier block of this ledger has not begun
            continue
        may_begin = not full or job.urgent or (ledger is not None and job.number < needed.get(ledger, 0))
        attempt = attempts.get(job)
        if may_begin and attempt is not None:
            may_begin = attempt.not_before <= now
            present = next((worker for worker in workers if worker.index == attempt.index), None)
            if may_begin and present is not None and present.is_new:
                return job, present
            may_begin = may_begin and (attempt.index is None or present is not None)  # otherwise that one starts soon
        if may_begin and (worker := _choose_worker(job, free, active)) is not None:
            return job, worker
        if ledger is not None:
            held_back.add(ledger)
    return None


def _find_needed_counts(unfinished: Iterable[Job]) -> dict[Ledger, int]:
    """For each ledger, the number of its last job that a worker has or the consumer waits for."""
    last: dict[Ledger, int] = {}
    for job in unfinished:
        if job.task.asks and (job.assigned or job.urgent) and not job.footprint.released:
            last[job.task.ledger] = max(job.number, last.get(job.task.ledger, 0))
    return last


def _choose_worker(job: Job, workers: Sequence[W], active: int) -> W | None:
    """Return the worker that should get a job; None if no worker can take it now.

    A stream that is run whole stays with the worker that has it open, parked or not. Parked workers take a job that a
    dead worker has left if a later job has begun: that one may need the job's count.
    """
    asks = job.task.asks
    roomy = [
        worker
        for worker in workers
        if len(worker.jobs) < JOBS_PER_WORKER
        and not (asks and any(held.task.asks and held.number > job.number for held in worker.jobs))  # rule 2
    ]
    overtaken = any(held.number > job.number for worker in workers for held in worker.jobs)
    able = [worker for worker in roomy if worker.index < active or overtaken]
    if isinstance(job.task.program, StreamProgram):
        holder = next((worker for worker in workers if job.program in worker.programs), None)
        if holder is not None:
            return holder if holder in roomy else None
        return min(able, key=lambda worker: (sum(worker.programs.values()), len(worker.jobs)), default=None)
    return min(able, key=lambda worker: len(worker.jobs), default=None)
