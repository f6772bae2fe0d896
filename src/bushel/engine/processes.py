"""`Processes`, the executor of worker processes: what the consumer holds. Its thread is in supervisor.py."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable

from bushel.engine import shipping, stall, wire
from bushel.engine.assigning import JOBS_PER_WORKER
from bushel.engine.dma import DmaMapper
from bushel.engine.pool import Job
from bushel.engine.program import Result
from bushel.engine.supervisor import Supervisor
from bushel.engine.tasks import Resizable, Task, Ticket

DEFAULT_BUDGET_BYTES = 1 << 30


class Processes(Resizable):
    """Runs tasks in worker processes, which send their results through shared memory.

    Args:
      num_workers: how many worker processes.
      init: called as init(worker index, worker count) in every worker before its first task.
      budget_bytes: limits the memory of results that wait for the consumer.
      timeout_s: an element that takes longer is treated like an element that kills its worker; None waits for ever.
      portable: starts workers and shares memory in ways that every system has, without fork and memfd.
      at_first: how many workers get tasks until `resize` is called; all by default.
      mapper: maps the memory of results for a GPU.
    """

    shares_counts = True

    def __init__(
        self,
        num_workers: int,
        *,
        init: Callable[[int, int], None] | None = None,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        timeout_s: float | None = None,
        portable: bool = False,
        at_first: int | None = None,
        mapper: DmaMapper | None = None,
    ):
        self.parallelism = num_workers
        self.block_bytes = min(self.block_bytes, budget_bytes // (2 * _count_results(num_workers)))
        self.keeps_all = timeout_s is not None or init is not None
        first = num_workers if at_first is None else at_first
        self._supervisor = Supervisor(
            num_workers, init, budget_bytes, self.block_bytes, timeout_s, portable, first, mapper
        )
        # Ends the workers when this handle is collected. The pool's thread refers to the supervisor only, never to the
        # handle; otherwise an iterator that nobody closes would keep its workers for ever.
        self._finalizer = weakref.finalize(self, self._supervisor.stop)

    def submit(self, task: Task) -> Ticket:
        return self._supervisor.submit(task)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        assert isinstance(ticket, Job)
        packed, details, memory, seconds = self._wait_for_packed(ticket)
        try:
            rows = wire.unpack(packed, memory)
        except Exception:
            # A class cannot rebuild one of its objects from the pickle. The worker computes the block again and pickles
            # each row by itself, so that only the rows that fail are lost.
            again = self._supervisor.submit(ticket.task, row_by_row=True)
            packed, details, memory, _ = self._wait_for_packed(again)
            pickles = details.to_result(wire.unpack(packed, memory), packed.size_bytes)
            again.footprint.released = True
            program = ticket.task.program
            result = shipping.convert_rows(pickle.loads, program, pickles, shipping.locate_rebuild_error)
            return result, seconds
        finally:
            ticket.footprint.released = True
        return details.to_result(rows, packed.size_bytes), seconds

    def _wait_for_packed(self, job: Job) -> tuple[wire.Packed, shipping.ResultDetails, memoryview | None, float]:
        self._supervisor.mark_urgent(job)
        return stall.wait_for_result(job.done, lambda: self._supervisor.describe_progress(job))

    def forget(self, tickets: list[Ticket]) -> None:
        self._supervisor.forget(tickets)

    def close(self) -> None:
        self._finalizer()

    def resize(self, workers: int) -> None:
        self._supervisor.resize(workers)

    def all_have_finished_one(self) -> bool:
        return self._supervisor.all_have_finished_one()

    def deaths(self) -> int:
        return self._supervisor.deaths

    def pids(self) -> list[int]:
        """The process numbers of the workers."""
        return [worker.pid for worker in self._supervisor.workers]


def _count_results(num_workers: int) -> int:
    """How many results may exist at a time: in the making, waiting for the consumer, and in use by the consumer."""
    return num_workers * (JOBS_PER_WORKER + 2) + 8
