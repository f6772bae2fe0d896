"""The numbers of samples: which (episode, time) each number is, and a dataset of these numbers.

The dataset is shuffled, filtered and mixed in place of the samples. `samples.py` computes the samples of the numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base.specs import ShapeDtypeStruct
from bushel._src.base.state_names import in_states
from bushel._src.datasets.map_dataset import MapDataset, MapPipeline
from bushel._src.graph.node import Computed, Leaf, Origin, Plan
from bushel._src.index import words
from bushel._src.trajectory import indexed_draws
from bushel._src.trajectory.traj_transforms import choose_steps


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
        """Episode and time of the samples with these numbers, in these epochs."""
        place = np.searchsorted(self._ends, numbers, side="right")
        episode = self.chosen[place]
        rank = numbers - (self._ends[place] - self._counts[place])
        if self.limit is not None:
            orders = [self._draw_ranks(*pair) for pair in zip(episode.tolist(), epochs.tolist(), strict=True)]
            rank = np.array([order[at] for order, at in zip(orders, rank.tolist())], dtype=np.int64)
        return episode, self._times(episode, rank)

    def first_number(self, place: int) -> int:
        """The number of the first sample of the episode `chosen[place]`. The others of the episode follow it."""
        return int(self._ends[place] - self._counts[place])

    def times(self, episode: int, epoch: int) -> np.ndarray:
        """The times of all samples of an episode: in order, unless `limit` draws some of them."""
        ranks = self._draw_ranks(episode, epoch)
        return self._times(np.full(len(ranks), episode), ranks)

    def _times(self, episode: np.ndarray, rank: np.ndarray) -> np.ndarray:
        if self.kept is None:
            return rank
        frames, begins = self._frames
        return frames[begins[episode] + rank] - self._starts[episode]

    def _draw_ranks(self, episode: int, epoch: int) -> np.ndarray:
        """Which of an episode's frames are samples in this epoch, in the order in which they were drawn."""
        size = int(self._sizes[episode])
        if self.limit is None or size <= self.limit:
            return np.arange(size)
        key = int(indexed_draws.hash_numbers(np.array([epoch * len(self.lengths) + episode]), self.seed)[0])
        return choose_steps(indexed_draws.hash_numbers(np.arange(size), key), self.limit)


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
        epochs, numbers = words.split(indices, self.count, to=self.total)
        return Computed(words.narrowed(epochs * self.total + (numbers + self.first)))

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
    """The numbers of `count` samples, from `first` on, of the `total` samples that all data sets have together.

    >>> [int(number) for number in index_samples(2, first=3, total=5).repeat(2)]
    [3, 4, 8, 9]
    """
    return MapPipeline(SampleIndex(count, first, count if total is None else total, describe))
