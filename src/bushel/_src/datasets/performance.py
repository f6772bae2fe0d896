"""Recommends settings from a few measured elements: how many workers, and how many elements to prefetch."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import statistics
import sys
import time
from collections.abc import Iterable
from typing import Any

from bushel._src.base import checks, trees
from bushel._src.base.options import MultiprocessingOptions, ReadOptions
from bushel._src.base.public import public
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.measurements import count_cores
from bushel._src.engine.opener import choose_read_options
from bushel._src.graph.node import Node, replace_parents
from bushel._src.graph.streams import Ahead, Elements, StreamNode

logger = logging.getLogger("bushel")

HANDING_OVER_S = 20e-6
"""About how long it takes to send one element from a worker to the consumer, in seconds."""

MOST_AHEAD = 1000
"""The largest number of elements to prefetch by default, as in Grain."""


@public("bushel.experimental")
@dataclasses.dataclass(slots=True)
class PerformanceConfig:
    """What `pick_performance_config` recommends: for `mp_prefetch`, and for `to_iter_dataset`."""

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


@public("bushel.experimental")
def pick_performance_config(
    ds: IterDataset[Any],
    *,
    ram_budget_mb: float | None,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Return settings that fit a memory budget, from the size and the time of a few elements.

    It computes the first elements in this process. As in Grain, it recommends as many workers as elements fit into the
    budget, at most one per core, and as many prefetched records as fit. In addition:

    - if an element takes less time than sending it (20 µs), there are no workers;
    - the budget also limits the shared memory of the workers;
    - threads prefetch only if records come from files or object stores.

    `mp_prefetch()` without options measures the best number of workers while training runs.

    Args:
      ds: the pipeline, with or without `mp_prefetch`.
      ram_budget_mb: in units of 2**20 bytes; None for no limit.
      max_workers: None for one per core.
      max_buffer_size: None for 1,000 records.
      samples_to_check: how many elements are computed.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(100).map(lambda x: time.sleep(0.001) or x).to_iter_dataset()
    >>> config = pick_performance_config(ds, ram_budget_mb=64, max_workers=2, max_buffer_size=None)
    >>> config.multiprocessing_options.num_workers
    2
    """
    if not isinstance(ds, IterDataset):
        raise TypeError(
            f"pick_performance_config takes an IterDataset, got {type(ds).__name__}: use to_iter_dataset()."
        )
    if ram_budget_mb is not None and not checks.number(ram_budget_mb, "ram_budget_mb") > 0:
        raise ValueError(f"ram_budget_mb must be positive, or None for no limit; got {ram_budget_mb}.")
    most_workers = count_cores() if max_workers is None else _check_not_negative(max_workers, "max_workers")
    most_ahead = MOST_AHEAD if max_buffer_size is None else _check_not_negative(max_buffer_size, "max_buffer_size")
    samples = checks.positive(samples_to_check, "samples_to_check")
    budget = math.inf if ram_budget_mb is None else ram_budget_mb * 2**20
    node = _remove_workers(ds._node)
    workers = min(_count_workers(budget, *_measure(node, samples)), most_workers)
    ahead = min(_count_prefetched_records(node, budget, samples), most_ahead)
    threads = max((choose_read_options(part.parent).num_threads for part in _find_elements(node)), default=0)
    return PerformanceConfig(
        MultiprocessingOptions(
            num_workers=int(workers), budget_bytes=None if ram_budget_mb is None else max(1, int(budget))
        ),
        ReadOptions(num_threads=int(min(ahead, threads)), prefetch_buffer_size=int(ahead)),
    )


def _count_workers(budget: float, size: float, seconds: float) -> float:
    """Return how many workers: none if sending an element takes longer than computing it, else as many as elements
    fit.
    """
    if not size:
        return math.inf
    return 0 if seconds < HANDING_OVER_S else budget / size


def _measure(node: StreamNode, samples: int) -> tuple[float, float]:
    """Mean bytes and median seconds of the first elements; zeros if there are no elements."""
    sizes, times = [], []
    with PipelineIterator(node, ReadOptions(0, 0)) as it:
        begun = time.perf_counter()
        for element in itertools.islice(it, samples):
            times.append(time.perf_counter() - begun)
            sizes.append(measure_bytes(element))
            begun = time.perf_counter()
    if not sizes:
        logger.warning("There is no element to measure: the most workers and the largest prefetch are recommended.")
        return 0.0, 0.0
    return statistics.fmean(sizes), statistics.median(times)


def _count_prefetched_records(node: StreamNode, budget: float, samples: int) -> float:
    """Return how many records of each MapDataset in the pipeline fit into the budget, if all of them prefetch."""
    parts = _find_elements(node)
    if not parts:
        return math.inf
    samples_each = math.ceil(samples / len(parts))
    sizes = [size for part in parts if (size := _measure(part, samples_each)[0])]
    return budget / (statistics.fmean(sizes) * len(parts)) if sizes else math.inf


def _find_elements(node: Node) -> list[Elements]:
    if isinstance(node, Elements):
        return [node]
    return [part for parent in node.parents for part in _find_elements(parent)]


def _remove_workers(node: Any) -> Any:
    return _remove_workers(node.parent) if isinstance(node, Ahead) else replace_parents(node, _remove_workers)


def measure_bytes(element: Any) -> int:
    """Return the size of an element in bytes: `nbytes` of arrays, `sys.getsizeof` of other leaves."""
    leaves: Iterable[Any] = trees.leaves(element)
    return sum(leaf.nbytes if hasattr(leaf, "nbytes") else sys.getsizeof(leaf) for leaf in leaves)


def _check_not_negative(value: Any, what: str) -> int:
    number = checks.integer(value, what)
    if number < 0:
        raise ValueError(f"{what} must be non-negative, got {number}.")
    return number
