"""An executor on the consumer's own thread that runs tasks in a random order: for tests of delivery."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future

from bushel._src.engine.program import Result
from bushel._src.engine.tasks import Executor, Task, Ticket


class Stepped(Executor):
    """Runs a task when the consumer waits for it, after other tasks in an order that a seed draws."""

    shares_counts = True

    def __init__(self, seed: int = 0, parallelism: int = 3):
        self.parallelism = parallelism
        self._random = random.Random(seed)
        self._pending: list[Ticket] = []
        self._lock = threading.RLock()  # a stream may be pulled by a thread of its own

    def submit(self, task: Task) -> Ticket:
        ticket = Ticket(task, Future())
        with self._lock:
            self._pending.append(ticket)
        return ticket

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        while not ticket.done.done():
            with self._lock:
                if not ticket.done.done():
                    self._step()
        return ticket.done.result()

    def _step(self) -> None:
        # Tasks that ask for counts must run in their order: none can wait here for another one.
        asking = [pending for pending in self._pending if pending.task.counts is None]
        free = [pending for pending in self._pending if pending.task.counts is not None]
        first: dict[int, Ticket] = {}
        for pending in asking:
            first.setdefault(id(pending.task.ledger), pending)
        chosen = self._random.choice([*free, *first.values()])
        self._pending.remove(chosen)
        begun = time.perf_counter()
        try:
            result = chosen.task.run()
        except BaseException as error:
            chosen.done.set_exception(error)
        else:
            chosen.done.set_result((result, time.perf_counter() - begun))

    def forget(self, tickets: list[Ticket]) -> None:
        with self._lock:
            self._pending = [ticket for ticket in self._pending if ticket not in tickets]

    def close(self) -> None:
        self._pending.clear()
