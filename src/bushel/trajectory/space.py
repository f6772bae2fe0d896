"""Which frames of which episodes are samples: one index space over all of them, and nothing but arithmetic."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from bushel.trajectory import draws


@dataclasses.dataclass(frozen=True, eq=False)
class Space:
    """Numbers in [0, len) for the pairs (episode, time) that are samples, episode by episode.

    >>> space = Space(np.array([3, 5]), np.array([1, 0]))
    >>> len(space), [found.tolist() for found in space.located(np.array([0, 4, 5]), np.zeros(3, int))]
    (8, [[1, 1, 0], [0, 4, 0]])

    Args:
      lengths: how many frames each episode has.
      chosen: which episodes take part, in this order.
      kept: one bool per frame of all episodes: which may be a sample; all, if None.
      limit: so many samples of an episode at most, drawn anew in every epoch.
      seed: of these draws.
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
        """How many samples each episode could give."""
        return self.lengths if self.kept is None else np.diff(self._frames[1])

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """How many samples each chosen episode gives."""
        sizes = self._sizes[self.chosen]
        return sizes if self.limit is None else np.minimum(sizes, self.limit)

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self._counts)

    def located(self, numbers: np.ndarray, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Episode and time of the samples with these numbers, of these epochs."""
        place = np.searchsorted(self._ends, numbers, side="right")
        episode = self.chosen[place]
        rank = numbers - (self._ends[place] - self._counts[place])
        if self.limit is not None:
            orders = [self._order(*pair) for pair in zip(episode.tolist(), epochs.tolist(), strict=True)]
            rank = np.array([order[at] for order, at in zip(orders, rank.tolist())], dtype=np.int64)
        return episode, self._times(episode, rank)

    def times(self, episode: int, epoch: int) -> np.ndarray:
        """The times of all samples of an episode: in order, but for those that were drawn."""
        ranks = self._order(episode, epoch)[: self.limit]
        return self._times(np.full(len(ranks), episode), ranks)

    def _times(self, episode: np.ndarray, rank: np.ndarray) -> np.ndarray:
        if self.kept is None:
            return rank
        frames, begins = self._frames
        return frames[begins[episode] + rank] - self._starts[episode]

    def _order(self, episode: int, epoch: int) -> np.ndarray:
        """In which order an episode's frames are drawn, if there are too many."""
        size = int(self._sizes[episode])
        if self.limit is None or size <= self.limit:
            return np.arange(size)
        key = int(draws.words(np.array([epoch * len(self.lengths) + episode]), self.seed)[0])
        return np.argsort(draws.words(np.arange(size), key), kind="stable")
