"""One-off jobs on a Ray cluster: columns, tables and statistics of trajectories, saved and converted data sets.

Iterating on a cluster needs nothing from here: see `IterDataset.ray_prefetch`. Ray itself is imported when it is used.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bushel._src.base.options import RayOptions, find_job_options, using_for_jobs
from bushel._src.base.public import public
from bushel._src.base.shown_text import Written
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.actors.executor import keeping_actors
from bushel._src.graph.map_ops import MapElements
from bushel._src.graph.source_nodes import SourceNode
from bushel._src.graph.streams import Ahead, Elements
from bushel._src.sources import conversion
from bushel._src.sources.conversion_workers import WorkerJob
from bushel._src.sources.paths import Path

__all__ = ["convert", "jobs_on_cluster"]


@public("bushel.ray")
@contextlib.contextmanager
def jobs_on_cluster(workers: int | RayOptions | None = None) -> Iterator[None]:
    """Inside this block, one-off jobs run on actors of a Ray cluster, and all jobs use the same actors.

    These are `ds.column`, `ds.save`, the tables and statistics of trajectories, `bushel.trajectory.convert_episodes`
    and `bushel.ray.convert`. Without the block they run in worker processes of this machine. The results are the same,
    bit for bit. A job that takes less than half a second stays in this process.

    Args:
      workers: how many actors, or their options; by default as many as are useful.

    >>> with jobs_on_cluster(64):  # doctest: +SKIP
    ...     lengths = ds.column(len, cache_dir="s3://bucket/columns")
    """
    chosen = _read_actors(workers) or RayOptions()
    with keeping_actors(chosen), using_for_jobs(chosen):
        yield


@public("bushel.ray")
def convert(
    sources: Path | Sequence[Path],
    target: Path,
    *,
    workers: int | RayOptions | None = None,
    shards: int,
    **arguments: Any,
) -> Written:
    """Convert record files on a Ray cluster, as `bushel convert` does on one machine.

    All machines must be able to read the sources and to write the target: both lie in a store, or on a shared disk.

    Args:
      sources: paths, patterns or URLs of record files.
      target: the file to make; with several shards, "name.ending" becomes "name-00000-of-00008.ending".
      workers: how many actors, or their options; by default those of the `jobs_on_cluster` block, or as many as are
        useful.
      shards: how many files. Each of them is written by one actor, so make more shards than there are actors.
      **arguments: those of `bushel._src.sources.conversion.convert`, such as `overwrite` and `progress`.
    """
    known = find_job_options()
    chosen = _read_actors(workers) or (known if isinstance(known, RayOptions) else RayOptions())
    run_all = functools.partial(run_jobs, chosen)
    return conversion.convert(sources, target, shards=shards, _run_all=run_all, **arguments)


def _read_actors(workers: int | RayOptions | None) -> RayOptions | None:
    if workers is None or isinstance(workers, RayOptions):
        return workers
    if isinstance(workers, bool) or not isinstance(workers, numbers.Integral):
        raise TypeError(f"workers must be a number of actors or bushel.RayOptions, got {workers!r}.")
    return RayOptions(num_workers=int(workers))


def run_jobs(options: RayOptions, jobs: Sequence[WorkerJob], workers: int, report: Callable[[int], None]) -> None:
    """Run jobs on actors. If an actor dies, another one runs its job from the beginning."""
    done = 0
    with PipelineIterator[int](Ahead(Elements(MapElements(SourceNode(list(jobs)), _run)), options)) as counts:
        for count in counts:
            done += count
            report(done)


def _run(job: WorkerJob) -> int:
    return sum(job.run())
