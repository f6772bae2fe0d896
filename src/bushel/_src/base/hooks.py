"""Attributes that Grain gives to users' classes for its statistics, so that classes written for Grain run here.

They record nothing: the engine measures stages from outside.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any


class Stats:
    """Takes the calls of Grain's statistics of a dataset, and records nothing."""

    def record_self_time(
        self, *, num_elements: int = 1, offset_ns: float = 0
    ) -> contextlib.AbstractContextManager[None]:
        """A context that measures nothing."""
        return contextlib.nullcontext()

    def record_output_spec(self, element: Any) -> Any:
        """Returns the element."""
        return element

    record_output_spec_for_batch = record_bytes_consumed = record_bytes_produced = record_output_spec


@dataclasses.dataclass(frozen=True)
class ProcessContext:
    """The process that an iterator runs in, as Grain counts them: always the only one."""

    process_index: int = 0
    process_count: int = 1


@dataclasses.dataclass(frozen=True)
class IteratorContext:
    """The context that Grain gives to an iterator."""

    mp_context: ProcessContext = ProcessContext()
