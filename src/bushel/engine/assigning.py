"""Which job of a pool begins next, and which worker gets it. Sending it there is the pool's business.

No budget may stop progress. A job can wait for nothing but the counts of earlier blocks of its ledger, so three rules
are enough:

1. Blocks of one ledger begin in order. So when a block asks for counts, all blocks before it have begun, or had begun
   before their worker died.
2. A worker holds blocks that ask for counts in the order of their numbers.
3. If there is no room, two kinds of jobs begin all the same: the job that the consumer waits for, and every block whose
   count is needed by a block that has begun or that the consumer waits for.

Take the block with the smallest number among those that ask for counts and have begun. By rule 2 only jobs that never
wait are before it in its worker. By rule 1 the blocks before it have ended, or they went back to the queue when their
worker died. Those may begin by rule 3, and the dead worker's replacement is free for them, since jobs are looked at in
the order of their numbers. So every block that begins ends, every worker gets free again, and the job that the consumer
waits for begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set

from bushel.engine.jobs import Job, Peer
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tasks import Ledger

DEPTH = 2  # tasks a worker holds: the one it runs, and the next


def choose(
    waiting: Iterable[Job], unfinished: Iterable[Job], full: bool, worker_for: Callable[[Job], Peer | None]
) -> tuple[Job, Peer] | None:
    """The first waiting job that may begin, and the worker for it; None if there is none.

    Args:
      waiting: jobs that have not begun, in the order of their numbers.
      unfinished: all jobs without a result.
      full: whether there is no room for results.
      worker_for: chooses a worker for a job; None if there is none now.
    """
    needed = _needed_counts(unfinished) if full else {}
    held_back: set[Ledger] = set()
    for job in waiting:
        ledger = job.task.ledger if job.task.asks else None
        if ledger in held_back:
            continue
        may_begin = not full or job.urgent or (ledger is not None and job.number < needed.get(ledger, 0))
        if may_begin and (peer := worker_for(job)) is not None:
            return job, peer
        if ledger is not None:
            held_back.add(ledger)
    return None


def _needed_counts(unfinished: Iterable[Job]) -> dict[Ledger, int]:
    """For each ledger, the number of its last job that a worker holds or the consumer waits for."""
    last: dict[Ledger, int] = {}
    for job in unfinished:
        if job.task.asks and (job.begun or job.urgent) and not job.load.over:
            last[job.task.ledger] = max(job.number, last.get(job.task.ledger, 0))
    return last


def worker_for(job: Job, peers: Sequence[Peer], active: int, streams: Set[int]) -> Peer | None:
    """The worker that should get a job; None if no worker can take it now.

    A stream that is run whole stays with the worker that has it open, parked or not. Parked workers help out with a job
    that a dead worker has left, if a later job is under way: that one may need its count.

    Args:
      peers: all workers.
      active: workers with an index below it are not parked.
      streams: the numbers of the programs that run a stream whole.
    """
    asks = job.task.asks
    roomy = [
        peer
        for peer in peers
        if len(peer.jobs) < DEPTH
        and not (asks and any(held.task.asks and held.number > job.number for held in peer.jobs))
    ]
    overtaken = any(held.number > job.number for peer in peers for held in peer.jobs)
    able = [peer for peer in roomy if peer.index < active or overtaken]
    if isinstance(job.task.program, StreamProgram):
        holder = next((peer for peer in peers if job.program in peer.programs), None)
        if holder is not None:
            return holder if holder in roomy else None
        return min(able, key=lambda peer: (len(peer.programs & streams), len(peer.jobs)), default=None)
    return min(able, key=lambda peer: len(peer.jobs), default=None)
