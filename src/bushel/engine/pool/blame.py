"""Finds the element that has killed workers, and makes the error that says so. The supervisor replaces the workers."""

from __future__ import annotations

import time
from typing import NamedTuple

from bushel.base.errors import WorkerDied
from bushel.engine.pool.jobs import Job
from bushel.graph.node import merge_origins

DEATHS_ALONE = 2
"""An element is blamed after this many deaths of workers that computed it, if no worker died of anything else.

A worker announces the element that it computes only after a first death over the block. So a block costs one death
more.
"""
DEATHS_AMONG_OTHERS = 6
"""The same while workers also die elsewhere: somebody may be killing workers, and the element may be innocent."""
RECENT_S = 60.0
"""A death longer ago than this says nothing about the deaths of now."""


class _Death(NamedTuple):
    """When a worker died, and which positions of which program it computed; program -1 if it was not computing."""

    when: float
    program: int
    low: int
    high: int
    announced: bool
    """Whether the worker had announced these positions; otherwise they are those of the whole job."""

    def may_have_cause_of(self, job: Job) -> bool:
        """Whether the element at which workers last died in a job may have caused this death, too.

        Positions are compared and not jobs: after an error, delivery cuts the stream into other blocks, so the same
        element may kill a worker in another job.
        """
        low, high = job.killed_at[-1]
        return self.program == job.program and self.low < high and low < self.high

    def is_within(self, job: Job) -> bool:
        """Whether an element of the job may have caused this death."""
        return self.program == job.program and self.low < job.high and job.task.low < self.high


class Blame:
    """Counts the deaths of a pool's workers and decides when an element has caused them.

    Args:
      timeout_s: how long one element may take; only the error message needs it.
    """

    def __init__(self, timeout_s: float | None):
        self._timeout_s = timeout_s
        self._unexplained: list[_Death] = []  # recent deaths that no element was blamed for

    def add_known_deaths(self, job: Job) -> None:
        """Adds the deaths at a job's positions that happened in other jobs. Called before a job begins.

        The consumer may have forgotten those jobs and submitted their positions again, in other blocks.
        """
        if not self._unexplained:
            return
        self._drop_old_deaths()
        known = [death for death in self._unexplained if death.is_within(job)]
        places = [(death.low, death.high) for death in known if death.announced]
        job.deaths = max(job.deaths, len(known))
        if len(places) > len(job.killed_at):
            job.killed_at = places

    def record_death(self, job: Job | None) -> Job | None:
        """Record the death of a worker that computed `job`. Returns the job if one of its elements is to blame."""
        now = time.monotonic()
        if job is None:
            self._unexplained.append(_Death(now, -1, 0, 0, announced=False))
            return None
        job.deaths += 1
        if job.announced is not None:
            job.killed_at.append(job.announced)
        low, high = job.announced or (job.task.low, job.high)
        self._unexplained.append(_Death(now, job.program, low, high, announced=job.announced is not None))
        if job.footprint.released:
            # The consumer has dropped this job, so nobody would read the error. The death stays in the list: it counts
            # for the job that has the same positions now.
            return None
        return job if job.overdue or self._is_guilty(job) else None

    def _drop_old_deaths(self) -> None:
        oldest = time.monotonic() - RECENT_S
        self._unexplained = [death for death in self._unexplained if death.when > oldest]

    def _is_guilty(self, job: Job) -> bool:
        """Whether one element of the job has killed so many workers that nothing else can be the cause."""
        if not job.killed_at:
            return False
        self._drop_old_deaths()
        alone = all(death.may_have_cause_of(job) for death in self._unexplained)
        needed = DEATHS_ALONE if alone else DEATHS_AMONG_OTHERS
        last = job.killed_at[-needed:]
        return len(last) == needed and len(set(last)) == 1

    def shorten(self, job: Job, how: str) -> WorkerDied | None:
        """Ends a job before the element that kills. Returns the error if no row is left before that element.

        Otherwise the rows before the element are computed once more, and the error comes after them.

        Args:
          how: how the last worker ended, in words.
        """
        error, task = self._describe(job, how), job.task
        # These deaths are explained now. Otherwise they would count as a sign that somebody is killing workers.
        self._unexplained = [death for death in self._unexplained if not death.may_have_cause_of(job)]
        end = task.low + (job.killed_at[-1][0] - task.low) // task.program.unit * task.program.unit
        if end == task.low:
            return error
        job.error_after_rows, job.high, job.deaths, job.overdue = error, end, 0, False
        job.killed_at.clear()
        return None

    def _describe(self, job: Job, how: str) -> WorkerDied:
        low, high = job.killed_at[-1]
        program = job.task.program
        positions = range(low, min(high, low + 8))
        records = "; ".join(map(str, merge_origins(origin for at in positions for origin in program.origins(at))))
        made_of = f" ({records})" if records else ""
        if job.overdue:
            what = f"took longer than timeout_s={self._timeout_s} s, twice."
        else:
            what = f"killed {job.deaths} worker processes one after the other; the last one {how}."
        error = WorkerDied(f"Computing {program.describe_elements(low, high)}{made_of} {what}")
        counts = job.task.counts  # if they were known beforehand, the element has reached all counting steps
        error.at, error.counted = (low, high), job.counted if counts is None else len(counts)
        return error
