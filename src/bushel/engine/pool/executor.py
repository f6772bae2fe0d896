"""`PooledExecutor`: what the executors of worker processes and of actors share: how the consumer waits for a result.

The threads that run the workers of a pool are in processes/supervisor.py and actors/supervisor.py.
"""

from __future__ import annotations

import abc
import pickle
import weakref
from typing import Any

from bushel.engine import stall
from bushel.engine.pool import wire
from bushel.engine.pool.jobs import Job
from bushel.engine.pool.results import ResultDetails, convert_rows, locate_rebuild_error
from bushel.engine.pool.supervisor import PoolSupervisor
from bushel.engine.program import Result
from bushel.engine.tasks import Resizable, Task, Ticket


class PooledExecutor(Resizable):
    """An executor whose workers a supervisor runs. What the consumer holds: it waits for results and unpacks them."""

    def _hold(self, supervisor: PoolSupervisor[Any]) -> None:
        """Takes the supervisor, which has started. The last step of `__init__`."""
        self._pool = supervisor
        # Ends the workers when this handle is collected. The pool's thread refers to the supervisor only, never to the
        # handle; otherwise an iterator that nobody closes would keep its workers for ever.
        self._finalizer = weakref.finalize(self, supervisor.stop)

    @abc.abstractmethod
    def _unpack(self, packed: wire.Packed, memory: memoryview | None) -> Any:
        """The rows of a result."""

    def submit(self, task: Task) -> Ticket:
        return self._pool.submit(task)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        assert isinstance(ticket, Job)
        packed, details, memory, seconds = self._wait_for_packed(ticket)
        try:
            rows = self._unpack(packed, memory)
        except Exception:
            # A class cannot rebuild one of its objects from the pickle. A worker computes the block again and pickles
            # each row by itself, so that only the rows that fail are lost.
            again = self._pool.submit(ticket.task, row_by_row=True)
            packed, details, memory, _ = self._wait_for_packed(again)
            pickles = details.to_result(self._unpack(packed, memory), packed.size_bytes)
            again.footprint.released = True
            program = ticket.task.program
            return convert_rows(pickle.loads, program, pickles, locate_rebuild_error), seconds
        finally:
            ticket.footprint.released = True
        return details.to_result(rows, packed.size_bytes), seconds

    def _wait_for_packed(self, job: Job) -> tuple[wire.Packed, ResultDetails, memoryview | None, float]:
        self._pool.mark_urgent(job)
        return stall.wait_for_result(job.done, lambda: self._pool.describe_progress(job))

    def forget(self, tickets: list[Ticket]) -> None:
        self._pool.forget(tickets)

    def close(self) -> None:
        self._finalizer()

    def resize(self, workers: int) -> None:
        self._pool.resize(workers)

    def all_have_finished_one(self) -> bool:
        return self._pool.all_have_finished_one()

    def deaths(self) -> int:
        return self._pool.deaths
