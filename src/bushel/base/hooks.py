"""What Grain gives to users' classes for its own bookkeeping, so that those written for it run: nothing is kept here.

Stages are timed from outside, and the number of workers changes nothing that an iterator could see.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any


class Stats:
    """Stands for Grain's statistics of a dataset: takes all and records none of it."""

    def record_self_time(
        self, *, num_elements: int = 1, offset_ns: float = 0
    ) -> contextlib.AbstractContextManager[None]:
        """Does nothing about the time inside."""
        return contextlib.nullcontext()

    def record_output_spec(self, element: Any) -> Any:
        """The element as it is."""
        return element

    record_output_spec_for_batch = record_bytes_consumed = record_bytes_produced = record_output_spec


@dataclasses.dataclass(frozen=True)
class ProcessContext:
    """Which of several processes an iterator runs in, as far as it can tell: the only one."""

    process_index: int = 0
    process_count: int = 1


@dataclasses.dataclass(frozen=True)
class IteratorContext:
    """What an iterator knows of its surroundings."""

    mp_context: ProcessContext = ProcessContext()
