"""Chooses the job of a pool that begins next, and the worker that gets it. The supervisor sends it there.

No budget may stop a run. A job can wait for nothing but the counts of earlier blocks of its ledger, so three rules are
enough:

1. Blocks of one ledger begin in order. So when a block asks for counts, all blocks before it have begun, or had begun
   before their worker died.
2. A worker holds blocks that ask for counts in the order of their numbers.
3. If the result buffer is full, two kinds of jobs begin all the same: the job that the consumer waits for, and every
   block whose count is needed by a block that has begun or that the consumer waits for.

Take the block with the smallest number among those that ask for counts and have begun. By rule 2 only jobs that never
wait are before it in its worker. By rule 1 the blocks before it have ended, or they went back to the queue when their
worker died. Those may begin by rule 3, and the dead worker's replacement is free for them, since jobs are chosen in the
order of their numbers. So every block that begins ends, every worker becomes free again, and the job that the consumer
waits for begins.

A row at which a worker has died is tried again after a pause, by a worker that has done nothing else (blame.py). Until
then this worker, which has replaced the dead one, gets no other job. So it is free for the block that went back to the
queue, and what was said above still holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from bushel._src.engine.pool.blame import Suspicion
from bushel._src.engine.pool.jobs import Job, PoolWorker
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import Ledger

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
    """The first waiting job that may begin, and the worker for it; None if there is none.

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
    """The worker that should get a job; None if no worker can take it now.

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
