"""Samples out of episodes: the trajectory transforms as arithmetic on rows (episode, time), all of them at once.

A sample is what the original makes of one step of one trajectory. Since a row needs only the frames of its window, its
actions and its goal, any set of rows is made by a few gathers: a shuffled batch costs what a batch in order costs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel.base import trees
from bushel.trajectory import draws, normalization
from bushel.trajectory.compat import faithful
from bushel.trajectory.data_utils import tree_merge
from bushel.trajectory.draws import Draws
from bushel.trajectory.encoded import Encoded, read_all
from bushel.trajectory.episodes import LANGUAGES, Column, Episodes, object_array
from bushel.trajectory.normalization import NormalizationType
from bushel.trajectory.traj_transforms import add_head_action_mask, pad_actions_and_proprio
from bushel.trajectory.windows import Windows

Tree = dict[str, Any]

_GOAL, _DELETE, _REPHRASE, _PHRASE, _LANGUAGE, _SUBSAMPLE = range(6)  # purposes of draws


@dataclasses.dataclass(frozen=True)
class Normalize:
    """How actions and proprioception are normalised."""

    statistics: Mapping[str, Any]
    kind: NormalizationType
    skip: frozenset[str] = frozenset()

    def __call__(self, values: np.ndarray, name: str) -> np.ndarray:
        """`values` of the entry `name`, normalised where there are statistics for it."""
        if name in self.skip or name not in self.statistics:
            return values
        facts = self.statistics[name]
        return normalization.normalize(values, facts, self.kind, facts.get("mask"))


@dataclasses.dataclass(frozen=True)
class Transforms:
    """The arguments of `apply_trajectory_transforms`, checked."""

    windows: Windows
    train: bool
    goal_relabeling: Callable[..., np.ndarray] | None = None
    task_augment: Callable[..., Tree] | None = None
    subsample_length: int | None = None
    max_action_dim: int | None = None
    max_proprio_dim: int | None = None
    head_to_dataset: Mapping[str, Sequence[str]] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Rows of a table, as trajectory transforms make them.

    Args:
      episodes: the table.
      chosen: which of its episodes take part, in this order.
      kept: one bool per frame of the table: which may be a sample; all, if None. Windows see the others too.
      normalize: what is done to actions and proprioception.
      transforms: None leaves trajectories as they are.
      row_functions: functions of a tree of rows, after all others, that look at each row by itself.
      seed: of all draws.
    """

    episodes: Episodes
    chosen: np.ndarray
    kept: np.ndarray | None = None
    normalize: Normalize | None = None
    transforms: Transforms | None = None
    row_functions: tuple[Callable[[Tree], Tree], ...] = ()
    seed: int = 0
    compat: str | None = None

    def __len__(self) -> int:
        """How many samples one epoch has."""
        return int(self._ends[-1]) if len(self.chosen) else 0

    def fingerprint(self) -> Any:
        """What tells these samples from others, without reading them."""
        return self.episodes.fingerprint

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """How many samples each chosen episode gives."""
        counts = self.episodes.lengths[self.chosen]
        if self.kept is not None:
            sums = np.concatenate([[0], np.cumsum(self.kept)])
            starts = self.episodes.starts[self.chosen]
            counts = sums[starts + counts] - sums[starts]
        if self._limit is not None:
            counts = np.minimum(counts, self._limit)
        return counts

    @property
    def _limit(self) -> int | None:
        return self.transforms.subsample_length if self.transforms is not None and self.transforms.train else None

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(self._counts)

    @functools.cached_property
    def _kept_frames(self) -> tuple[np.ndarray, np.ndarray]:
        """Frames that may be samples, and where each episode's begin among them."""
        assert self.kept is not None
        frames = np.flatnonzero(self.kept)
        return frames, np.searchsorted(frames, self.episodes.starts)

    def located(self, numbers: np.ndarray, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Episode and time of the samples with these numbers in [0, len), of these epochs."""
        place = np.searchsorted(self._ends, numbers, side="right")
        rank = numbers - (self._ends[place] - self._counts[place])
        episode = self.chosen[place]
        if self._limit is not None:
            rank = self._subsampled(episode, rank, epochs)
        if self.kept is None:
            return episode, rank
        frames, begin = self._kept_frames
        return episode, frames[begin[episode] + rank] - self.episodes.starts[episode]

    def _subsampled(self, episode: np.ndarray, rank: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Ranks among the samples that are left -> ranks among all of the episode: other ones in every epoch."""
        found = rank.copy()
        for row, (number, epoch) in enumerate(zip(episode.tolist(), epochs.tolist(), strict=True)):
            size = self._frames_of(number)
            if self._limit is not None and size > self._limit:
                found[row] = self._order(number, epoch, size)[rank[row]]
        return found

    def _frames_of(self, episode: int) -> int:
        if self.kept is None:
            return int(self.episodes.lengths[episode])
        start = int(self.episodes.starts[episode])
        return int(self.kept[start : start + int(self.episodes.lengths[episode])].sum())

    def _order(self, episode: int, epoch: int, size: int) -> np.ndarray:
        key = int(draws.words(np.array([epoch * len(self.episodes) + episode]), self.seed * 64 + _SUBSAMPLE)[0])
        return np.argsort(draws.words(np.arange(size), key), kind="stable")

    def trajectory(self, index: int, _: Any = None) -> Tree:
        """Trajectory `index`, transformed: all its samples, in order (a random choice of them, when subsampled)."""
        epoch, place = divmod(int(index), len(self.chosen))
        episode = int(self.chosen[place])
        times = np.arange(int(self.episodes.lengths[episode]))
        if self.kept is not None:
            times = times[self.kept[self.episodes.starts[episode] + times]]
        if self._limit is not None and len(times) > self._limit:
            times = times[self._order(episode, epoch, len(times))[: self._limit]]
        samples = int(index) * (1 << 32) + times
        return self.rows(
            np.full(len(times), episode), times, Draws(self.seed, samples, np.full(len(times), int(index)))
        )

    def __call__(self, indices: np.ndarray, numbers: np.ndarray) -> Tree:
        """The samples with these numbers; `indices` also count epochs, and draws belong to them. Images are read."""
        epochs = indices // len(self)
        episode, time = self.located(numbers, epochs)
        trajectories = epochs * len(self.episodes) + episode
        return read_images(self.rows(episode, time, Draws(self.seed, indices, trajectories)))

    def rows(self, episode: np.ndarray, time: np.ndarray, chance: Draws) -> Tree:
        """The rows (episode, time), as the transforms make them. Encoded images are not read yet."""
        start, length = self.episodes.starts[episode], self.episodes.lengths[episode]
        columns = self.episodes.columns
        rows: Tree = {
            name: taken(column, start + time)
            for name, column in columns.items()
            if name not in ("observation", "task", "action")
        }
        rows["task"] = self._task(start + time, chance)
        if self.transforms is None:
            rows["observation"] = self._observation(start, time)
            if "action" in columns:
                rows["action"] = self._action(start + time)
        else:
            rows = self._transformed(rows, episode, time, start, length, chance)
        for function in self.row_functions:
            rows = function(rows)
        return rows

    def _observation(self, start: np.ndarray, time: np.ndarray) -> Tree:
        """Observations at `time`, of any shape; `start` has as many axes."""
        frames = start + time
        found = {name: self._normalized(taken(column, frames), name) for name, column in self._observed.items()}
        return {**found, "timestep": time.astype(np.int32)}

    @property
    def _observed(self) -> Tree:
        return self.episodes.columns.get("observation", {})

    def _normalized(self, values: Any, name: str) -> Any:
        return values if self.normalize is None else self.normalize(values, name)

    def _action(self, frames: np.ndarray) -> np.ndarray:
        return self._normalized(taken(self.episodes.columns["action"], frames), "action")

    def _task(self, frames: np.ndarray, chance: Draws) -> Tree:
        task = dict(self.episodes.columns.get("task", {}))
        languages = task.pop(LANGUAGES, None)
        found = {name: taken(column, frames) for name, column in task.items()}
        if languages is not None:
            found["language_instruction"] = self._spoken(languages, frames, chance)
        return found

    def _spoken(self, languages: Mapping[str, Column], frames: np.ndarray, chance: Draws) -> np.ndarray:
        """One of several instructions for each row: the same one for all rows of a trajectory."""
        drawable = list(languages.values())
        if faithful(self.compat) and len(drawable) > 1:
            drawable = drawable[:-1]  # the original never draws the last
        which = (chance.per_trajectory(_LANGUAGE) * len(drawable)).astype(np.int64)
        texts = np.stack([column.take(frames) for column in drawable])
        return texts[which, np.arange(len(frames))]

    def _transformed(
        self, rows: Tree, episode: np.ndarray, time: np.ndarray, start: np.ndarray, length: np.ndarray, chance: Draws
    ) -> Tree:
        transforms = self.transforms
        assert transforms is not None
        times, real = transforms.windows.observations(time)
        observation = self._masked_observation(start[:, None], times)
        task = {**rows["task"], "pad_mask_dict": {name: _there(leaf) for name, leaf in rows["task"].items()}}
        if transforms.goal_relabeling is not None:
            goal = transforms.goal_relabeling(time, length, chance.per_sample(_GOAL))
            task = tree_merge(task, self._masked_observation(start, goal))
        if transforms.train and transforms.task_augment is not None:
            task = transforms.task_augment(task, length, chance)
        rows |= {"observation": observation, "task": task}
        rows = add_head_action_mask(rows, transforms.head_to_dataset)
        goals = task["timestep"].astype(np.int64) if "timestep" in task else length - 1
        gathered, wanted = transforms.windows.actions(time, length, goals)
        observation |= {"timestep_pad_mask": real, "task_completed": ~wanted}
        if "action" in self.episodes.columns:
            action = self._chunks(start, times, gathered)
            padded = self._padded({"action": action, "observation": {}})
            rows["action"] = padded["action"]
            rows["action_pad_mask"] = padded["action_pad_mask"] & wanted[..., None]
        return rows

    def _masked_observation(self, start: np.ndarray, time: np.ndarray) -> Tree:
        frames = start + time
        masks = {name: column.there(frames) for name, column in self._observed.items()}
        masks["timestep"] = np.ones(frames.shape, dtype=bool)
        found = self._padded({"observation": self._observation(start, time)})["observation"]
        return {**found, "pad_mask_dict": masks}

    def _padded(self, rows: Tree) -> Tree:
        transforms = self.transforms
        assert transforms is not None
        return pad_actions_and_proprio(
            rows, transforms.max_action_dim, transforms.max_proprio_dim, compat=transforms.windows.compat
        )

    def _chunks(self, start: np.ndarray, times: np.ndarray, gathered: np.ndarray) -> np.ndarray:
        """Chunks of actions, [N, W, H, A]: of single actions, or cut from those that the data set holds."""
        if self.episodes.columns["action"].values.ndim < 3:
            return self._action(start[:, None, None] + gathered)
        horizon = gathered.shape[2]
        chunks = self._action(start[:, None] + times)
        if chunks.shape[2] < horizon:
            raise ValueError(
                f"Actions come in chunks of {chunks.shape[2]}, fewer than action_horizon={horizon}. Lower the horizon."
            )
        return chunks[:, :, :horizon]


def taken(column: Any, frames: np.ndarray) -> Any:
    """Entries of a column, or of a tree of columns."""
    if isinstance(column, dict):
        return {name: taken(entry, frames) for name, entry in column.items()}
    return column.take(frames)


def _there(leaf: np.ndarray) -> np.ndarray:
    if leaf.dtype != object:
        return np.ones(leaf.shape[:1], dtype=bool)
    return np.fromiter((len(value) != 0 for value in leaf), bool, len(leaf))


def read_images(tree: Any) -> Any:
    """The tree with its encoded images read: all of them together, each once."""
    leaves, rebuild = trees.flatten(tree)
    handles = {id(v): v for leaf in leaves if leaf.dtype == object for v in leaf.flat if isinstance(v, Encoded)}
    read = dict(zip(handles, read_all(list(handles.values())), strict=True))

    def content(leaf: np.ndarray) -> np.ndarray:
        if leaf.dtype != object:
            return leaf
        return object_array([read.get(id(value), value) for value in leaf.flat]).reshape(leaf.shape)

    return rebuild([content(leaf) for leaf in leaves]) if handles else tree
