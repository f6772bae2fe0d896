"""Records with what a sampler says of them: the elements that a DataLoader's operations pass on."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """Which record it is: its place in the sampler's order, its place in the source, a generator of its own.

    >>> RecordMetadata(index=3, record_key=7).remove_record_key()
    RecordMetadata(index=3, record_key=None, rng=None)
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """The same without `record_key`, for what is no longer a single record."""
        return self if self.record_key is None else dataclasses.replace(self, record_key=None)

    def __str__(self) -> str:
        return f"RecordMetadata(index={self.index}, record_key={self.record_key}, rng={self.rng})"


@dataclasses.dataclass(slots=True)
class Record(Generic[T]):
    """Data and where they come from.

    >>> Record(RecordMetadata(index=0), data="pear").data
    'pear'
    """

    metadata: RecordMetadata
    data: T
