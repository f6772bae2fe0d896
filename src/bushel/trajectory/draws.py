"""Random numbers that belong to an index: arrays in, arrays out, nothing to advance."""

from __future__ import annotations

import dataclasses

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def words(numbers: np.ndarray, key: int) -> np.ndarray:
    """A random 64-bit word for each of `numbers`; another `key` gives other words."""
    offset = np.uint64((key * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF)
    with np.errstate(over="ignore"):
        z = (np.asarray(numbers).astype(np.uint64) + np.uint64(1)) * _GOLDEN ^ _mixed(np.atleast_1d(offset))
        return _mixed(z + _GOLDEN)


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(numbers: np.ndarray, key: int) -> np.ndarray:
    """A float64 in [0, 1) for each of `numbers`."""
    return (words(numbers, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclasses.dataclass(frozen=True)
class Draws:
    """Draws for some samples: each belongs to the sample's number, or to that of its trajectory, and to `seed`.

    A purpose is a small number of its own, so that two of them never share a draw.
    """

    seed: int
    samples: np.ndarray
    trajectories: np.ndarray

    def per_sample(self, purpose: int) -> np.ndarray:
        return uniform(self.samples, self.seed * 64 + 2 * purpose)

    def per_trajectory(self, purpose: int) -> np.ndarray:
        return uniform(self.trajectories, self.seed * 64 + 2 * purpose + 1)
