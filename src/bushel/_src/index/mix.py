"""Many data sets in one index space: position -> (which data set, index in it), for whole arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from bushel._src.base.checks import INFINITE
from bushel._src.index import int64

_TABULATED = 1 << 21
"""Periods up to this length are worked out once and looked up from then on. A thousand parts take 30 ms, ten thousand
0.7 s, which is as long as the recurrence takes for a few batches of random positions."""

_GROUP = 16  # so many parts at a time are taken out of the list of free positions

_LEAST = 100  # what the smallest weight becomes when weights are made integers


def integer_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return weights as integers, the smallest scaled to 100 and the rest cut off, as Grain does.

    >>> integer_weights([0.7, 0.3])
    (233, 100)
    """
    scale = _LEAST / min(weights)
    return tuple(int(weight * scale) for weight in weights)


def mixed_length(lengths: Sequence[int], weights: Sequence[int]) -> int:
    """Return how long the mixture runs before its first data set would repeat."""
    total = sum(weights)
    total_lengths = [length / (weight / total) for length, weight in zip(lengths, weights, strict=True)]
    return min(INFINITE, int(min(total_lengths)))


def mixed(k: Any, weights: Sequence[int], xp: ModuleType = np) -> tuple[Any, Any]:
    """Return positions of a mixture -> (which, index), by Grain's integer recurrence.

    The pattern repeats every sum(weights) positions, so the recurrence runs on the position within one period and
    never leaves 64 bits (32 under JAX) for any position.

    >>> which, index = mixed(np.arange(6), (233, 100))
    >>> which.tolist(), index.tolist()
    ([0, 0, 0, 1, 0, 0], [0, 1, 2, 0, 3, 4])
    """
    weights, total = _reduce(tuple(weights))
    if xp is not np and total > 1 << 15:
        raise ValueError(f"Under JAX a mixture has 32-bit words: weights must sum to at most 2**15, got {total}.")
    period, low = int64.split(k, total, to=total) if xp is np else divmod(k, total)
    if xp is np and total <= _TABULATED:
        table, ranks, per_period = _table(weights)
        which, inside = table[low], ranks[low]
        return which.astype(np.int64), period * per_period[which] + inside
    which, per_period, inside = _recurrence(low, weights, xp)
    index = period * per_period + inside
    return (int64.narrowed(which), index) if xp is np else (which, index)


@functools.lru_cache(maxsize=64)
def _reduce(weights: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the same proportions in the smallest integers, and their sum.

    The pattern is the same, its period is shorter.
    """
    divisor = math.gcd(*weights)
    reduced = tuple(weight // divisor for weight in weights)
    return reduced, sum(reduced)


@functools.lru_cache(maxsize=8)
def _table(weights: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each position of one period: which part it belongs to, and its rank among the part's; then all weights.

    Position x of the r that are left belongs to the next part, of weight w, if it is x = j * r // w, for some rank j.
    The others move up, to x * (r - w) // r. `free` lists the positions of the period that are left. Removing entries
    from it copies it, so it is done once for several parts: the ranks of a later one are moved back down through those
    before it in the group.
    """
    left = sum(weights)
    which, rank = np.empty(left, dtype=np.int32), np.empty(left, dtype=np.int32)
    free = np.arange(left, dtype=np.int32)
    for first in range(0, len(weights), _GROUP):
        stays = np.ones(left, dtype=bool)
        before: list[tuple[int, int]] = []
        for number, weight in enumerate(weights[first : first + _GROUP], start=first):
            ranks = np.arange(weight)
            places = ranks * left // weight
            for size, taken in reversed(before):
                places = ((places + 1) * size - 1) // (size - taken)
            stays[places] = False
            positions = free[places]
            which[positions], rank[positions] = number, ranks
            before.append((left, weight))
            left -= weight
        free = free[stays]
    return which, rank, np.array(weights)


def _recurrence(low: Any, weights: Sequence[int], xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return positions of one period -> (which, its weight, index in its elements of this period)."""
    remaining = sum(weights)
    if remaining > 3_000_000_000:  # its square would not fit 64 bits
        low = low.astype(object)
    high = low + 1
    which = per_period = inside = xp.zeros_like(low)
    for number, weight in enumerate(weights):
        next_low = low * (remaining - weight) // remaining
        next_high = high * (remaining - weight) // remaining
        count = high - next_high
        here = (low - next_low) != count
        which, per_period = xp.where(here, number, which), xp.where(here, weight, per_period)
        inside = xp.where(here, count - 1, inside)
        remaining -= weight
        low, high = next_low, next_high
    return which, per_period, inside


def concatenated(i: Any, sizes: np.ndarray, ends: np.ndarray) -> tuple[Any, Any]:
    """Return positions of a concatenation -> (which, index); epoch n of the whole is epoch n of each part.

    `sizes` are the lengths of the parts as int64, and `ends` their running sum. The caller keeps both: to make them for
    each call would cost far more than the rest, if there are many parts.
    """
    epoch, position = int64.split(i, int(ends[-1]), to=int(ends[-1]))
    which = np.searchsorted(ends, position, side="right")
    index = position - (ends - sizes)[which] + epoch * sizes[which]
    return which, index
