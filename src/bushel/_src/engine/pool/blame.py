"""Decides when an element has killed workers, and makes the error that says so. The supervisor replaces the workers.

Somebody may be killing workers from outside: an operator, a job scheduler, the kernel when memory is short. Such a kill
hits whatever a worker happens to do. So an element is never blamed because workers died, but only if it was tried again
and again in workers that did nothing else, and no other cause is likely to have hit it each time.

1. A worker writes what it does into memory that survives it (`Activity`). Only a death *inside* an element that the
   worker ran alone counts against that element. No other death counts against anything.
2. Before each further attempt there is a pause, which grows. A worker that waits can be killed from outside, too. So
   the deaths of the pool during the pauses measure how often somebody kills workers.
3. As soon as the element is computed once, it is acquitted, and its deaths are forgotten.
4. The element is blamed if killers from outside would have hit it so many times in a row with a chance of at most
   `CHANCE`.

The arithmetic of rule 4: the pool has seen `others` deaths elsewhere in `quiet_s` seconds between the attempts. So
each worker is killed at most `r = (others + 2 * sqrt(others) + 3) / quiet_s` times a second (an upper bound: with no
death at all, three in `quiet_s`). The first death does not count, since it is why this element is looked at. The other
n attempts have run for `s` seconds in all, and each of them was hit. The length of each pause is random, so kills from
outside hit attempts at random moments: `r * s` times on average. The chance that they hit n times or more is that of a
Poisson distribution. It needs no guess of how long the element would have run.

An element that kills after 1 to 10 ms takes six to eight deaths and about two seconds, if no other worker dies. Ten
thousand kills from outside make at most ten thousand suspicions, and each becomes a wrong blame with a chance of at
most `CHANCE`. So one storm in a million of ten thousand kills each blames an innocent element.
`tests/engine/test_blame.py` simulates such storms.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterable
from typing import NamedTuple

from bushel._src.base.errors import WorkerDied, WorkerTimeout
from bushel._src.engine.pool.jobs import Job
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

    def describe(self, deaths: int, kind: str) -> str:
        """Return how it was proven, as the end of a sentence and one more."""
        others = f"{self.others} other{'s' * (self.others != 1)}" if self.others else "no other worker"
        return (
            f"killed {deaths} {kind} one after the other. Each of them died while it did nothing else. The "
            f"pauses between them grew to {self.longest_pause_s:.2f} s, and {others} died meanwhile, so no kill from "
            "outside is likely to be the cause"
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
        place: tuple[int, int],
        begun: tuple[float, float],
        now: float,
        index: int | None = None,
    ) -> Suspicion:
        """Record the death of a worker that did one thing alone. Returns the suspicion, which may have become proof.

        Args:
          program: the number of the program whose row it computed; None if it ran `worker_init_fn`.
          row: the positions of the row.
          place: those that it computed when it died, which are part of the row.
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
        suspicion.deaths.append(Death(now, *place, now - begun[1], now - begun[0]))
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

    def make_error(self, job: Job, low: int, high: int, what: str | None, counted: int) -> WorkerDied:
        """Return the error that names the element at positions [low, high) of a job.

        Args:
          what: what the element has done, as the end of a sentence; None if it took too long.
          counted: how many counting steps it has reached, if the job had to ask for the counts.
        """
        program = job.task.program
        positions = range(low, min(high, low + 8))
        records = "; ".join(map(str, merge_origins(origin for at in positions for origin in program.origins(at))))
        made_of = f" ({records})" if records else ""
        name = f"Computing {program.describe_elements(low, high)}{made_of}"
        if what is None:
            error: WorkerDied = WorkerTimeout(f"{name} took longer than timeout_s={self._timeout_s} s, twice.")
        else:
            error = WorkerDied(f"{name} {what}.")
        counts = job.task.counts  # if they were known beforehand, the element has reached all counting steps
        error.at, error.counted = (low, high), counted if counts is None else len(counts)
        return error
