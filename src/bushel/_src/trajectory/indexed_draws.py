"""Random numbers that are a function of an index, a seed and a purpose. There is no generator to advance."""

from __future__ import annotations

import dataclasses

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_numbers(numbers: np.ndarray, key: int) -> np.ndarray:
    """A random 64-bit word for each of `numbers`. Different numbers have different words. `key` is a seed."""
    offset = np.uint64((key * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF)
    with np.errstate(over="ignore"):
        z = (np.asarray(numbers).astype(np.uint64) + np.uint64(1)) * _GOLDEN ^ _mix_bits(np.atleast_1d(offset))
        return _mix_bits(z + _GOLDEN)


def _mix_bits(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw_for_numbers(numbers: np.ndarray, key: int) -> np.ndarray:
    """A float64 in [0, 1) for each of `numbers`."""
    return (hash_numbers(numbers, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclasses.dataclass(frozen=True)
class Draws:
    """The draws of some samples. Each is a function of the number of the sample or of its trajectory, and of `seed`.

    A purpose is a small number, one for each random function, so that two functions never share a draw.
    """

    seed: int
    samples: np.ndarray
    trajectories: np.ndarray

    def per_sample(self, purpose: int) -> np.ndarray:
        return draw_for_numbers(self.samples, self.seed * 64 + 2 * purpose)

    def per_trajectory(self, purpose: int) -> np.ndarray:
        return draw_for_numbers(self.trajectories, self.seed * 64 + 2 * purpose + 1)
