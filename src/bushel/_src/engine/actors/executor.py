"""`Actors`, the executor of a Ray cluster: what the consumer holds. Its thread is in supervisor.py."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping

from bushel._src.base.options import RayOptions
from bushel._src.engine.actors import cluster
from bushel._src.engine.actors.supervisor import ActorSupervisor
from bushel._src.engine.dma import DmaMapper
from bushel._src.engine.pool.autotune import Tuned
from bushel._src.engine.pool.executor import PooledExecutor, count_results
from bushel._src.engine.pool.jobs import PoolOptions
from bushel._src.engine.tasks import Executor

DEFAULT_BUDGET_BYTES = 1 << 30

STORE_SHARE = 1 / 3
"""How much of the smallest object store of the cluster our results may fill. The rest is for others."""


class Actors(PooledExecutor[ActorSupervisor]):
    """Runs tasks in actors of a Ray cluster, which send their results through Ray's object store.

    Args:
      num_workers: how many actors there are at most; as many as the cluster has room for, if it is None.
      at_first: how many there are until `resize` is called; all by default.
      init: called as init(actor index, actor count) in every actor before its first task.
      resources: what Ray reserves for each actor.
      budget_bytes: limits the memory of results that wait for the consumer.
      timeout_s: an element that takes longer is treated like an element that kills its actor; None waits for ever.
      mapper: maps the memory of results, so that a GPU can read them by itself.
    """

    kind = "actors"
    block_bytes = 32 << 20  # more than with processes: each object costs Ray about 2 ms of processor time

    def __init__(
        self,
        num_workers: int | None,
        *,
        at_first: int | None = None,
        init: Callable[[int, int], None] | None = None,
        resources: Mapping[str, float] | None = None,
        budget_bytes: int | None = None,
        timeout_s: float | None = None,
        mapper: DmaMapper | None = None,
    ):
        ray = cluster.connect()
        resources = {"CPU": 1} if resources is None else resources
        if num_workers is None:
            num_workers = max(1, cluster.count_room(ray, resources), at_first or 1)
        store_bytes = int(STORE_SHARE * cluster.measure_smallest_store(ray))
        budget_bytes = budget_bytes or min(DEFAULT_BUDGET_BYTES, store_bytes)
        block_bytes = min(self.block_bytes, min(budget_bytes, store_bytes) // count_results(num_workers))
        first = num_workers if at_first is None else min(at_first, num_workers)
        options = PoolOptions(num_workers, first, init, timeout_s, budget_bytes, block_bytes, mapper)
        super().__init__(options, ActorSupervisor(ray, options, resources, store_bytes))


def start_actors(
    options: RayOptions, init: Callable[[int, int], None] | None = None, mapper: DmaMapper | None = None
) -> Executor:
    """The actors that options ask for: a fixed number, or as many as make the pipeline faster."""
    chosen = options.num_workers is not None
    least = options.min_workers or 1
    actors = Actors(
        options.num_workers if chosen else options.max_workers,
        at_first=None if chosen else least,
        init=init,
        resources=options.resources_per_worker,
        budget_bytes=options.budget_bytes,
        timeout_s=options.timeout_s,
        mapper=mapper,
    )
    return actors if chosen else Tuned(actors, least)


_kept: contextvars.ContextVar[tuple[RayOptions, Executor] | None] = contextvars.ContextVar("kept", default=None)


@contextlib.contextmanager
def keeping_actors(options: RayOptions) -> Iterator[None]:
    """Starts actors that all iterators with these options use inside of this block; ends them after it."""
    executor = start_actors(options)
    before = _kept.set((options, executor))
    try:
        yield
    finally:
        _kept.reset(before)
        executor.close()


def find_kept(options: RayOptions) -> Executor | None:
    """The actors that a block of `keeping_actors` has started for these options."""
    kept = _kept.get()
    return kept[1] if kept is not None and kept[0] == options else None
