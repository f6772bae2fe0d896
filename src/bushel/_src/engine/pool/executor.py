"""`PooledExecutor`: how the consumer waits for the results of a pool, and how many workers it uses.

The number of workers may change while a pipeline runs. The output depends on neither.
"""

from __future__ import annotations

import pickle
import weakref
from typing import Any, Generic, TypeVar

from bushel._src.engine import tasks
from bushel._src.engine.measurements import Pool
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.jobs import Job, PackedResult, PoolOptions
from bushel._src.engine.pool.results import convert_rows, join_results, locate_rebuild_error, unpack_result
from bushel._src.engine.pool.scheduling import JOBS_PER_WORKER
from bushel._src.engine.pool.supervisor import PoolSupervisor
from bushel._src.engine.program import Result
from bushel._src.engine.tasks import Executor, Task, Ticket

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
