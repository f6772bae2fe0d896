"""Records with metadata of their sampler: the elements that the operations of a DataLoader get and return."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import numpy as np

from bushel._src.base.public import public

T = TypeVar("T")


@public("bushel")
@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """Position in the order of the sampler, position in the source, and a random generator of its own.

    >>> RecordMetadata(index=3, record_key=7).remove_record_key()
    RecordMetadata(index=3, record_key=None, rng=None)
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """The same without `record_key`, for an element that was made of several records."""
        return self if self.record_key is None else dataclasses.replace(self, record_key=None)

    def __str__(self) -> str:
        return f"RecordMetadata(index={self.index}, record_key={self.record_key}, rng={self.rng})"


@public("bushel")
@dataclasses.dataclass(slots=True)
class Record(Generic[T]):
    """Data, and the metadata of where they come from.

    >>> Record(RecordMetadata(index=0), data="pear").data
    'pear'
    """

    metadata: RecordMetadata
    data: T
