"""Indices as 64-bit integers, or as Python integers where an endless data set takes them past 64 bits."""

from __future__ import annotations

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
