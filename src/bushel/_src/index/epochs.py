"""Epochs, slices and shards as index maps. Pure arithmetic on arrays or on Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from bushel._src.index import words


def first_epoch(i: Any, *, length: int) -> Any:
    """Any position -> the position in the first epoch: a repeat that does not reseed."""
    return i % length


def strided(i: Any, *, start: int, step: int, length: int, parent_length: int) -> Any:
    """Position in a slice of `length` elements -> position in the parent; epoch n of one is epoch n of the other.

    >>> strided(5, start=1, step=2, length=3, parent_length=7)
    12
    """
    epoch, offset = words.split(i, length, to=parent_length)
    return start + offset * step + epoch * parent_length


def shard(i: Any, *, index: int, count: int) -> Any:
    """i-th element of one shard -> position among all elements."""
    return i * count + index


def listed(i: Any, positions: Any, *, parent_length: int) -> Any:
    """Position in a list of positions -> position in the parent, epoch by epoch."""
    epoch, offset = words.split(i, len(positions), to=parent_length)
    return positions[offset] + epoch * parent_length


def batched(i: Any, *, batch_size: int, length: int, parent_length: int) -> tuple[Any, Any]:
    """Numbers of batches -> first and last-plus-one position of each in the parent; none straddles an epoch.

    >>> batched(5, batch_size=4, length=3, parent_length=10)
    (18, 20)
    """
    epoch, position = words.split(i, length, to=parent_length)
    first = position * batch_size
    left = parent_length - first
    size = np.minimum(left, batch_size) if isinstance(left, np.ndarray) else min(left, batch_size)
    offset = epoch * parent_length
    return first + offset, first + offset + size


def ranges(first: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of positions one after the other, and where each of them begins in that list.

    >>> edges, positions = ranges(np.array([10, 3]), np.array([2, 3]))
    >>> edges.tolist(), positions.tolist()
    ([0, 2, 5], [10, 11, 3, 4, 5])
    """
    edges = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=edges[1:])
    return edges, np.repeat(first - edges[:-1], sizes) + np.arange(edges[-1])
