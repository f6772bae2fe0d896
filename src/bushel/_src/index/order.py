"""Orders that follow values: weighted draws, weighted shuffles, sorted epochs with some noise. Arrays in and out.

Each is a function of the values, a seed and the epoch. What is random comes from a generator that belongs to both.
"""

from __future__ import annotations

import numpy as np

from bushel._src.index import shuffle

_WORD = 0xFFFFFFFF


def drawn(offsets: np.ndarray, heights: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
    """Places in an epoch of draws -> what is drawn, in proportion to weights whose running sum is `heights`.

    The epoch's draws are spread evenly over the weights, then shuffled. So an entry with a share of s of all weights
    comes floor(s * n) or ceil(s * n) times in every epoch of n draws.
    """
    count = len(heights)
    stratum = shuffle.permute(offsets, length=count, seed=(seed + epoch) & _WORD)
    within = _generator(seed, epoch).random()
    points = (stratum + within) * (heights[-1] / count)
    last = np.searchsorted(heights, heights[-1])  # rounding may not take a point past the last entry with a weight
    return np.minimum(np.searchsorted(heights, points, side="right"), last)


def weighted_order(weights: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
    """All entries with a weight above zero, once each, heavy ones early: as if drawn one by one without replacement."""
    there = np.flatnonzero(weights)
    # An exponential clock for each entry, as fast as its weight: they ring in the order of such draws.
    clocks = _generator(seed, epoch).standard_exponential(len(weights))[there] / weights[there]
    return there[np.argsort(clocks, kind="stable")]


def sorted_order(values: np.ndarray, *, noise: float, seed: int, epoch: int) -> np.ndarray:
    """Entries by value, small ones first; `noise` from 0 (sorted) to 1 (shuffled) says how much chance is in it.

    An entry's key is its rank as a fraction, weighed by 1 - noise, and a random fraction, weighed by noise.
    """
    order = np.argsort(values, kind="stable")
    if not noise:
        return order
    keys = np.empty(len(values))
    keys[order] = np.arange(len(values)) / max(1, len(values))
    keys = (1 - noise) * keys + noise * _generator(seed, epoch).random(len(values))
    return np.argsort(keys, kind="stable")


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=(seed & _WORD) | (epoch & ((1 << 96) - 1)) << 32))
