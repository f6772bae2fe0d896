"""Epochs, slices and shards as index maps, on indices of 64 bits.

An endless data set may take Python integers past 64 bits. Also the rows of a global batch that the devices of one
process need.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base.checks import INFINITE


def array(numbers: Sequence[int]) -> np.ndarray:
    """Return integers as an int64 array; as an array of Python integers where one of them does not fit."""
    try:
        return np.array(numbers, dtype=np.int64)
    except OverflowError:
        return np.array(numbers, dtype=object)


def ranging(low: int, high: int) -> np.ndarray:
    """Return the integers [low, high), as `array` would hold them."""
    if max(abs(low), abs(high)) < INFINITE:
        return np.arange(low, high)
    return array(range(low, high))


def split(i: Any, length: int, to: int = 1) -> tuple[Any, Any]:
    """Return epoch and position in it, for epochs of `length`: the position in 64 bits, the epoch ready to be
    multiplied by `to`, in Python integers where that would not fit 64 bits. A single Python integer stays one.
    """
    if not isinstance(i, np.ndarray):
        return divmod(i, length)
    if i.dtype != object and i.size:
        low, high = (int(i.min()), int(i.max())) if i.size > 1 else (int(i[0]), int(i[0]))
        if (max(high // length, -(low // length)) + 1) * to <= INFINITE:
            return np.divmod(i, length)
        i = i.astype(object)
    return i // length, narrowed(i % length)


def narrowed(i: np.ndarray) -> np.ndarray:
    """Return `i` as int64, once it is known to fit."""
    return i if i.dtype != object else i.astype(np.int64)


def find_distinct(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different numbers of an array in ascending order, and for each entry, in its shape, which of them it
    is.

    As `np.unique`, which loads `numpy.ma` at its first call: 10 ms and more in the middle of an epoch.

    >>> different, back = find_distinct(np.array([5, 0, 5]))
    >>> different.tolist(), back.tolist()
    ([0, 5], [1, 0, 1])
    """
    flat = numbers.reshape(-1)
    order = np.argsort(flat, kind="stable")
    in_order = flat[order]
    starts = np.ones(len(flat), dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=starts[1:])
    back = np.empty(len(flat), dtype=np.intp)
    back[order] = np.cumsum(starts) - 1
    return in_order[starts], back.reshape(numbers.shape)


def group(which: np.ndarray) -> dict[int, np.ndarray]:
    """For each number that is in `which`, in ascending order, the rows where it is, in order.

    >>> {number: rows.tolist() for number, rows in group(np.array([5, 0, 5])).items()}
    {0: [1], 5: [0, 2]}
    """
    order = np.argsort(which.astype(np.uint16) if which.size and which.max() < 1 << 16 else which, kind="stable")
    in_order = which[order]
    starts = [0, *(np.flatnonzero(in_order[1:] != in_order[:-1]) + 1).tolist()]
    numbers = in_order[starts].tolist()
    return {n: order[low:high] for n, low, high in zip(numbers, starts, [*starts[1:], len(order)], strict=True)}


def first_epoch(i: Any, *, length: int) -> Any:
    """Return any position -> the position in the first epoch: a repeat that does not reseed."""
    return i % length


def strided(i: Any, *, start: int, step: int, length: int, parent_length: int) -> Any:
    """Return position in a slice of `length` elements -> position in the parent; epoch n of one is epoch n of the
    other.

    >>> strided(5, start=1, step=2, length=3, parent_length=7)
    12
    """
    epoch, offset = split(i, length, to=parent_length)
    return start + offset * step + epoch * parent_length


def shard(i: Any, *, index: int, count: int) -> Any:
    """Return i-th element of one shard -> position among all elements."""
    return i * count + index


def listed(i: Any, positions: Any, *, parent_length: int) -> Any:
    """Return position in a list of positions -> position in the parent, epoch by epoch."""
    epoch, offset = split(i, len(positions), to=parent_length)
    return positions[offset] + epoch * parent_length


def batched(i: Any, *, batch_size: int, length: int, parent_length: int) -> tuple[Any, Any]:
    """Return numbers of batches -> first and last-plus-one position of each in the parent; none straddles an epoch.

    >>> batched(5, batch_size=4, length=3, parent_length=10)
    (18, 20)
    """
    epoch, position = split(i, length, to=parent_length)
    first = position * batch_size
    left = parent_length - first
    size = np.minimum(left, batch_size) if isinstance(left, np.ndarray) else min(left, batch_size)
    offset = epoch * parent_length
    return first + offset, first + offset + size


def ranges(first: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ranges of positions one after the other, and where each of them begins in that list.

    >>> edges, positions = ranges(np.array([10, 3]), np.array([2, 3]))
    >>> edges.tolist(), positions.tolist()
    ([0, 2, 5], [10, 11, 3, 4, 5])
    """
    edges = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=edges[1:])
    return edges, np.repeat(first - edges[:-1], sizes) + np.arange(edges[-1])


@dataclasses.dataclass(frozen=True)
class DeviceRows:
    """The shards of a batch that the devices of one process hold under one sharding.

    >>> DeviceRows(count=4, shards=(0, 3)).rows(8).tolist()
    [0, 1, 6, 7]
    """

    count: int
    """Into how many equal shards the rows are cut; 1 where every device has all rows."""
    shards: tuple[int, ...]
    """The shards of this process, in order, each once."""

    def rows(self, size: int) -> np.ndarray:
        """Return the rows of these shards in a batch of `size` rows, which `count` must divide."""
        length = size // self.count
        return (np.array(self.shards, dtype=np.int64)[:, None] * length + np.arange(length)).ravel()


def divisor(device_rows: Sequence[DeviceRows]) -> int:
    """Return the number that must divide the rows of a batch, so that all of these shardings can cut it.

    >>> divisor([DeviceRows(4, (0,)), DeviceRows(6, (0,)), DeviceRows(1, (0,))])
    12
    """
    return math.lcm(*(rows.count for rows in device_rows))


def union_of_rows(device_rows: Sequence[DeviceRows], size: int) -> np.ndarray:
    """Return the rows of a batch that at least one of several shardings needs on this process, in order.

    >>> union_of_rows([DeviceRows(4, (1,)), DeviceRows(2, (1,))], 8).tolist()
    [2, 3, 4, 5, 6, 7]
    """
    needed = np.zeros(size, dtype=bool)
    for rows in device_rows:
        needed[rows.rows(size)] = True
    return np.flatnonzero(needed)


def slice_of(rows: np.ndarray, low: int, high: int) -> slice:
    """Return where the rows [low, high) of a batch are in `rows`, which is sorted and has all of them.

    >>> slice_of(np.array([2, 3, 6, 7]), 6, 8)
    slice(2, 4, None)
    """
    first = int(np.searchsorted(rows, low))
    return slice(first, first + high - low)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple
