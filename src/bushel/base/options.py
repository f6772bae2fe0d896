"""Options of reading. What they mean is decided by the engine; they never change the output."""

from __future__ import annotations

import dataclasses
import logging

from bushel.base import checks

logger = logging.getLogger("bushel")


@dataclasses.dataclass(slots=True)
class ReadOptions:
    """How many threads read ahead, and how many elements they may hold ready.

    Zero of either means: no threads, each element is computed when it is asked for. That is the
    fastest choice for data in memory and for transformations written in plain Python; threads pay
    where the work releases the GIL (files, object stores, decoders).

    >>> ReadOptions(num_threads=4, prefetch_buffer_size=64)
    ReadOptions(num_threads=4, prefetch_buffer_size=64)
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500

    def __post_init__(self) -> None:
        for name in ("num_threads", "prefetch_buffer_size"):
            value = checks.integer(getattr(self, name), name)
            if value < 0:
                raise ValueError(f"{name} must be non-negative, got {value}")
        if 0 < self.prefetch_buffer_size < self.num_threads:
            logger.warning(
                "prefetch_buffer_size=%d is smaller than num_threads=%d: at most %d threads can work at a time.",
                self.prefetch_buffer_size,
                self.num_threads,
                self.prefetch_buffer_size,
            )

    @property
    def threaded(self) -> bool:
        return self.num_threads > 0 and self.prefetch_buffer_size > 0


@dataclasses.dataclass(slots=True)
class MultiprocessingOptions:
    """How many worker processes compute ahead, and within which bounds. The output is the same for all of them.

    Args:
      num_workers: worker processes; 0 computes in the process that asks.
      per_worker_buffer_size: how many blocks beyond the two at hand each worker may have under way.
      enable_profiling: accepted for Grain's sake; it changes nothing.
      budget_bytes: bounds the shared memory for results, 1 GiB by default. When arrays that you keep fill it,
        results go on as copies.
      timeout_s: an element that takes longer is given up with an error that names it; by default there is no limit.
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False
    budget_bytes: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if checks.integer(self.num_workers, "num_workers") < 0:
            raise ValueError(f"num_workers must be non-negative, got {self.num_workers}")
        checks.positive(self.per_worker_buffer_size, "per_worker_buffer_size")
        if self.budget_bytes is not None:
            checks.positive(self.budget_bytes, "budget_bytes")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {self.timeout_s}")
