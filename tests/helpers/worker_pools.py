"""Pools of worker processes, and pipelines opened on them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor
from bushel._src.engine.where_to_run import MEASURED, WhereToRun

TWO = bushel.MultiprocessingOptions(num_workers=2)


@contextlib.contextmanager
def worker_pool(num_workers: int = 2, **options: Any) -> Iterator[Processes]:
    """An executor whose workers end with the block."""
    executor = Processes(num_workers, **options)
    try:
        yield executor
    finally:
        executor.close()


def open_on(ds: Any, executor: Executor | None = None, where: WhereToRun = MEASURED) -> PipelineIterator[Any]:
    """An iterator that runs on an executor; on the consumer's own thread without one."""
    return PipelineIterator(ds._node, bushel.ReadOptions(0, 0), executor, where)


def numbers(length: int) -> Any:
    """A stream of 0, 1, 2 ... that starts no threads."""
    return bushel.MapDataset.range(length).to_iter_dataset(bushel.ReadOptions(0, 0))


def image_of(x: int) -> dict[str, Any]:
    """An element with an array of 16 KiB."""
    return {"image": np.full((64, 64), x, np.int32), "label": x}


def jobs_of(executor: Processes) -> list[list[int]]:
    """The first elements of the blocks that each worker has before it."""
    with executor._supervisor._lock:
        return sorted([job.task.low for job in worker.jobs] for worker in executor._supervisor.workers)
