"""Settings from a few samples: how many workers, and how many elements to read ahead."""

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

from bushel.base import checks, trees
from bushel.base.options import MultiprocessingOptions, ReadOptions
from bushel.dataset import IterDataset
from bushel.engine.opener import default_options
from bushel.engine.tasks import cores
from bushel.graph.node import Node, replace_parents
from bushel.graph.streams import Ahead, Elements, StreamNode
from bushel.iterator import PipelineIterator

logger = logging.getLogger("bushel")

HANDING_OVER_S = 20e-6
"""What it costs all sides together, roughly, to hand one element over."""

MOST_AHEAD = 1000
"""So many elements are read ahead at most, where nobody says otherwise: Grain's number."""


@dataclasses.dataclass(slots=True)
class PerformanceConfig:
    """What `pick_performance_config` recommends: for `mp_prefetch`, and for `to_iter_dataset`."""

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


def pick_performance_config(
    ds: IterDataset[Any],
    *,
    ram_budget_mb: float | None,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Settings that fit a memory budget, from the size and the time of a few elements.

    It computes the first elements here, without workers. As in Grain, there are as many workers as elements fit the
    budget, one per core at most, and as many records read ahead as fit it. Besides:

    - elements that are made faster than they could be handed over (20 µs) get no workers;
    - the budget also bounds the shared memory of the workers;
    - threads read ahead only where records come from outside memory.

    To have the number of workers found while training runs, use `mp_prefetch()` without options instead.

    Args:
      ds: the pipeline, with or without `mp_prefetch`.
      ram_budget_mb: in units of 2**20 bytes; None for no bound.
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
        raise ValueError(f"ram_budget_mb must be positive, or None for no bound; got {ram_budget_mb}.")
    most_workers = cores() if max_workers is None else _at_least_zero(max_workers, "max_workers")
    most_ahead = MOST_AHEAD if max_buffer_size is None else _at_least_zero(max_buffer_size, "max_buffer_size")
    samples = checks.positive(samples_to_check, "samples_to_check")
    budget = math.inf if ram_budget_mb is None else ram_budget_mb * 2**20
    node = _without_workers(ds._node)
    workers = min(_fitting(budget, *_measured(node, samples)), most_workers)
    ahead = min(_records_ahead(node, budget, samples), most_ahead)
    threads = min(ahead, max((default_options(part.parent).num_threads for part in _elements(node)), default=0))
    return PerformanceConfig(
        MultiprocessingOptions(
            num_workers=int(workers), budget_bytes=None if ram_budget_mb is None else max(1, int(budget))
        ),
        ReadOptions(num_threads=int(threads), prefetch_buffer_size=int(ahead)),
    )


def _fitting(budget: float, size: float, seconds: float) -> float:
    """How many workers: none where an element is made faster than handed over, else as many as elements fit."""
    if not size:
        return math.inf
    return 0 if seconds < HANDING_OVER_S else budget / size


def _measured(node: StreamNode, samples: int) -> tuple[float, float]:
    """Mean bytes and median seconds of the first elements; zero where there are none."""
    sizes, times = [], []
    with PipelineIterator(node, ReadOptions(0, 0)) as it:
        begun = time.perf_counter()
        for element in itertools.islice(it, samples):
            times.append(time.perf_counter() - begun)
            sizes.append(_size(element))
            begun = time.perf_counter()
    if not sizes:
        logger.warning("There is no element to measure: workers and read-ahead are the largest allowed.")
        return 0.0, 0.0
    return statistics.fmean(sizes), statistics.median(times)


def _records_ahead(node: StreamNode, budget: float, samples: int) -> float:
    """How many records of each stretch of a map fit the budget, if all of them read ahead."""
    parts = _elements(node)
    if not parts:
        return math.inf
    share = math.ceil(samples / len(parts))
    sizes = [size for part in parts if (size := _measured(part, share)[0])]
    return budget / (statistics.fmean(sizes) * len(parts)) if sizes else math.inf


def _elements(node: Node) -> list[Elements]:
    if isinstance(node, Elements):
        return [node]
    return [part for parent in node.parents for part in _elements(parent)]


def _without_workers(node: Any) -> Any:
    return _without_workers(node.parent) if isinstance(node, Ahead) else replace_parents(node, _without_workers)


def _size(element: Any) -> int:
    """Bytes of arrays as they say, of everything else as Python says."""
    leaves: Iterable[Any] = trees.leaves(element)
    return sum(leaf.nbytes if hasattr(leaf, "nbytes") else sys.getsizeof(leaf) for leaf in leaves)


def _at_least_zero(value: Any, what: str) -> int:
    number = checks.integer(value, what)
    if number < 0:
        raise ValueError(f"{what} must be non-negative, got {number}.")
    return number
