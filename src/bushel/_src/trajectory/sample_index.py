"""The numbers of samples: which (episode, time) each number is, and a dataset of these numbers.

Random numbers are a function of an index, a seed and a purpose. There is no generator to advance.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base.state_names import in_states
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.datasets.map_dataset import MapDataset, MapPipeline
from bushel._src.graph.node import Computed, Leaf, Origin, Plan
from bushel._src.index import int64
from bushel._src.trajectory.traj_transforms import choose_steps

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_numbers(numbers: np.ndarray, key: int) -> np.ndarray:
    """Return a random 64-bit word for each of `numbers`. Different numbers have different words. `key` is a seed."""
    offset = np.uint64((key * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & 0xFFFFFFFFFFFFFFFF)
    with np.errstate(over="ignore"):
        z = (np.asarray(numbers).astype(np.uint64) + np.uint64(1)) * _GOLDEN ^ _mix_bits(np.atleast_1d(offset))
        return _mix_bits(z + _GOLDEN)


def _mix_bits(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def draw_for_numbers(numbers: np.ndarray, key: int) -> np.ndarray:
    """Return a float64 in [0, 1) for each of `numbers`."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class SampleSpace:
    """Numbers in [0, len) for the pairs (episode, time) that are samples, episode by episode.

    >>> space = SampleSpace(np.array([3, 5]), np.array([1, 0]))
    >>> len(space), [part.tolist() for part in space.locate(np.array([0, 4, 5]), np.zeros(3, int))]
    (8, [[1, 1, 0], [0, 4, 0]])

    Args:
      lengths: how many frames each episode has.
      chosen: which episodes have samples, in this order.
      kept: one bool per frame of all episodes: which frames may be samples. None: all of them.
      limit: at most so many samples per episode, other ones in every epoch.
      seed: of the draws that choose them.
    """

    lengths: np.ndarray
    chosen: np.ndarray
    kept: np.ndarray | None = None
    limit: int | None = None
    seed: int = 0

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self.chosen) else 0

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths

    @functools.cached_property
    def _frames(self) -> tuple[np.ndarray, np.ndarray]:
        """The frames that may be samples, and where each episode's begin among them."""
        assert self.kept is not None
        frames = np.flatnonzero(self.kept)
        return frames, np.searchsorted(frames, [*self._starts, self.lengths.sum()])

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        """How many frames of each episode may be samples."""
        return self.lengths if self.kept is None else np.diff(self._frames[1])

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """How many samples each chosen episode has."""
        sizes = self._sizes[self.chosen]
        return sizes if self.limit is None else np.minimum(sizes, self.limit)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self._counts)

    def locate(self, numbers: np.ndarray, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return episode and time of the samples with these numbers, in these epochs."""
        place = np.searchsorted(self._ends, numbers, side="right")
        episode = self.chosen[place]
        rank = numbers - (self._ends[place] - self._counts[place])
        if self.limit is not None:
            orders = [self._draw_ranks(*pair) for pair in zip(episode.tolist(), epochs.tolist(), strict=True)]
            rank = np.array([order[at] for order, at in zip(orders, rank.tolist())], dtype=np.int64)
        return episode, self._times(episode, rank)

    def first_number(self, place: int) -> int:
        """Return the number of the first sample of the episode `chosen[place]`. The others of the episode follow it."""
        return int(self._ends[place] - self._counts[place])

    def times(self, episode: int, epoch: int) -> np.ndarray:
        """Return the times of all samples of an episode: in order, unless `limit` draws some of them."""
        ranks = self._draw_ranks(episode, epoch)
        return self._times(np.full(len(ranks), episode), ranks)

    def _times(self, episode: np.ndarray, rank: np.ndarray) -> np.ndarray:
        if self.kept is None:
            return rank
        frames, begins = self._frames
        return frames[begins[episode] + rank] - self._starts[episode]

    def _draw_ranks(self, episode: int, epoch: int) -> np.ndarray:
        """Return which of an episode's frames are samples in this epoch, in the order in which they were drawn."""
        size = int(self._sizes[episode])
        if self.limit is None or size <= self.limit:
            return np.arange(size)
        key = int(hash_numbers(np.array([epoch * len(self.lengths) + episode]), self.seed)[0])
        return choose_steps(hash_numbers(np.arange(size), key), self.limit)


@in_states("trajectory_samples")
@dataclasses.dataclass(frozen=True, eq=False)
class SampleIndex(Leaf):
    """The sample numbers [first, first + count) of `total`; in epoch e, e * total is added to each of them."""

    count: int
    first: int
    total: int
    describe_sample: Callable[[int, int], Origin] | None = dataclasses.field(metadata={"identity": False})
    """The frame that a sample is made of, by the sample's number and its epoch."""

    def find_length(self) -> int:
        return self.count

    def plan(self, indices: np.ndarray) -> Plan:
        epochs, numbers = int64.split(indices, self.count, to=self.total)
        return Computed(int64.narrowed(epochs * self.total + (numbers + self.first)))

    def origin(self, index: int) -> Origin:
        epoch, number = divmod(index, self.count)
        return Origin(self.call(), (number,)) if self.describe_sample is None else self.describe_sample(number, epoch)

    def element_spec(self) -> Any:
        return ShapeDtypeStruct(shape=(), dtype=np.int64)

    def call(self) -> str:
        return f"samples({self.count})"


def index_samples(
    count: int, first: int = 0, total: int | None = None, describe: Callable[[int, int], Origin] | None = None
) -> MapDataset[Any]:
    """Return the numbers of `count` samples, from `first` on, of the `total` samples that all data sets have together.

    >>> [int(number) for number in index_samples(2, first=3, total=5).repeat(2)]
    [3, 4, 8, 9]
    """
    return MapPipeline(SampleIndex(count, first, count if total is None else total, describe))
