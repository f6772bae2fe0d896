"""`Processes`, the executor of worker processes: what the consumer holds. Its thread is in supervisor.py."""

from __future__ import annotations

from collections.abc import Callable

from bushel._src.engine.dma import DmaMapper
from bushel._src.engine.pool.executor import PooledExecutor, count_results
from bushel._src.engine.pool.jobs import PoolOptions
from bushel._src.engine.processes.supervisor import ProcessSupervisor

DEFAULT_BUDGET_BYTES = 1 << 30


class Processes(PooledExecutor[ProcessSupervisor]):
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
        block_bytes = min(self.block_bytes, budget_bytes // (2 * count_results(num_workers)))
        first = num_workers if at_first is None else at_first
        options = PoolOptions(num_workers, first, init, timeout_s, budget_bytes, block_bytes, mapper)
        super().__init__(options, ProcessSupervisor(options, portable=portable))

    def pids(self) -> list[int]:
        """The process numbers of the workers."""
        return [worker.pid for worker in self._supervisor.workers]
