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
