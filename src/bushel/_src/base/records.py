"""Records with metadata of their sampler, and the names of Grain's features beside the data of a record."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import numpy as np

from bushel._src.base.public import public

__all__ = ["DATASET_INDEX", "EPOCH", "INDEX", "META_FEATURES", "RECORD", "RECORD_KEY", "SEED"]

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
        """Return the same without `record_key`, for an element that was made of several records."""
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


INDEX = "_index"
"""The global index of a record, which counts on from epoch to epoch."""
RECORD_KEY = "_record_key"
"""The number of a record in its source."""
DATASET_INDEX = "_dataset_index"
"""The number of the dataset in a mixture."""
EPOCH = "_epoch"
"""The number of the epoch, from 0."""
SEED = "_seed"
"""The seed of the random numbers of a record."""
RECORD = "_record"
"""The record itself, as the source gave it."""
META_FEATURES = frozenset({INDEX, RECORD_KEY, DATASET_INDEX, EPOCH, SEED, RECORD})
"""All of these names."""
