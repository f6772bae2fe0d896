"""`Samples`: the trajectory transforms as arithmetic on rows (episode, time) of a table, for many rows at once.

Each sample has a number; this module also says which row a number is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, trees
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.datasets.map_dataset import MapDataset, MapPipeline
from bushel._src.graph.node import Computed, InTwoSteps, Leaf, Origin, Plan
from bushel._src.index.epochs import narrowed, split
from bushel._src.trajectory import normalization, task_augmentation, traj_transforms
from bushel._src.trajectory.data_utils import (
    Compat,
    Tree,
    flatten_tree,
    nest_leaves,
    not_empty,
    reproduces_faults,
    to_numpy,
    to_objects,
    tree_merge,
)
from bushel._src.trajectory.encoded_images import read_all
from bushel._src.trajectory.episodes import LANGUAGES, Episodes, Numbers, make_true, take_entries
from bushel._src.trajectory.normalization import NormalizationType
from bushel._src.trajectory.task_augmentation import Rephraser
from bushel._src.trajectory.traj_transforms import (
    Windows,
    add_head_action_mask,
    check_chunks,
    check_width,
    choose_steps,
    list_proprio_names,
    pad_actions_and_proprio,
)

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
        epochs, numbers = split(indices, self.count, to=self.total)
        return Computed(narrowed(epochs * self.total + (numbers + self.first)))

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


WORDS = "language_instruction"
_STRIDE = 1 << 16
_COPIED_BYTES = 16 << 20  # of actions, in each worker
_NO_ACTION = np.zeros((1, 1), dtype=np.float32)
_GOAL, _DELETE, _REPHRASE, _PHRASE, _LANGUAGE = range(5)  # purposes of draws


@in_states("trajectory_normalize")
@dataclasses.dataclass(frozen=True)
class Normalize:
    """Normalises actions and proprioception of one data set."""

    statistics: Mapping[str, Any]
    kind: NormalizationType
    names: frozenset[str]

    def __call__(self, values: np.ndarray, name: str, episode: np.ndarray) -> np.ndarray:
        """Return `values` of the entry `name`, normalised if `name` is one of `names`.

        Row i belongs to `episode[i]`.
        """
        if name not in self.names:
            return values
        return normalization.normalize(values, self.statistics[name], self.kind)


@in_states("trajectory_transforms")
@dataclasses.dataclass(frozen=True)
class Transforms:
    """The arguments of `apply_trajectory_transforms`, checked.

    Args:
      windows: which frames and actions a sample has.
      relabel_goals: whether a later frame becomes the goal, at most `max_goal_distance` steps away.
      keep_image_prob: the probability that a task keeps its goal images and loses its instruction, where it has both;
        else it keeps the instruction only. None: a task keeps both.
      rephraser, rephrase_prob: the paraphrases, and the probability that an instruction is replaced by one.
      subsample_length: at most so many samples per trajectory, other ones in each epoch.
      max_action_dim, max_proprio_dim: widths to which actions and proprioception are padded with zeros.
      head_to_dataset: which data sets train which head.
    """

    windows: Windows
    relabel_goals: bool = False
    max_goal_distance: int | None = None
    keep_image_prob: float | None = None
    rephraser: Rephraser | None = None
    rephrase_prob: float = 0.0
    subsample_length: int | None = None
    max_action_dim: int | None = None
    max_proprio_dim: int | None = None
    head_to_dataset: Mapping[str, Sequence[str]] | None = None

    def __post_init__(self) -> None:
        for name in ("max_goal_distance", "subsample_length", "max_action_dim", "max_proprio_dim"):
            if getattr(self, name) is not None:
                checks.positive(getattr(self, name), name)


@in_states("trajectory_sample")
@dataclasses.dataclass(frozen=True, eq=False)
class Samples(InTwoSteps):
    """The samples of a table of episodes, after the trajectory transforms.

    Args:
      episodes: the table.
      chosen: which of its episodes have samples, in this order.
      kept: one bool per frame of the table: which frames may be samples. None: all. Windows contain the other frames
        too.
      normalize: the function that normalises actions and proprioception; None for no normalisation.
      transforms: the transforms; None leaves trajectories as they are.
      row_functions: functions of a tree of rows, applied last. Each looks at every row by itself.
      seed: the seed of all draws.
      labelled_only: an episode draws only from those of its instructions that are not empty in all steps.
    """

    episodes: Episodes
    chosen: np.ndarray
    kept: np.ndarray | None = None
    normalize: Callable[[np.ndarray, str, np.ndarray], np.ndarray] | None = None
    transforms: Transforms | None = None
    row_functions: tuple[Callable[[Tree], Tree], ...] = ()
    seed: int = 0
    compat: Compat | None = None
    labelled_only: bool = False

    def __post_init__(self) -> None:
        if self.transforms is None:
            return
        self._check_actions(self.transforms)
        limit = self.transforms.max_proprio_dim
        if limit is not None:
            for name in list_proprio_names(self._observed, self.compat):
                column = self._observed[name]
                if column.is_numeric:
                    check_width((len(column), *column.entry_shape), limit, f"observation/{name}", "max_proprio_dim")

    def _check_actions(self, transforms: Transforms) -> None:
        column = self.episodes.columns.get("action")
        if column is None or not column.is_numeric:
            return
        shape = column.entry_shape
        if len(shape) not in (1, 2):
            raise ValueError(
                f"Actions must have the shape [A], or [N, A] in chunks, for each frame; got {list(shape)}."
            )
        if len(shape) == 2:
            check_chunks(shape[0], transforms.windows.action_horizon, self.compat)
        if transforms.max_action_dim is not None:
            check_width((len(column), *shape), transforms.max_action_dim, "action", "max_action_dim")

    def __getstate__(self) -> dict[str, Any]:
        # Rows of `_runs` overlap in memory, but not in a pickle, which would hold each action many times.
        return {name: value for name, value in vars(self).items() if name != "_runs"}

    def __len__(self) -> int:
        """Return the number of samples of one epoch."""
        return len(self.space)

    def __repr__(self) -> str:
        return f"Samples({len(self):,} of {len(self.chosen):,} episodes)"

    @functools.cached_property
    def space(self) -> SampleSpace:
        """The numbering of the samples."""
        limit = None if self.transforms is None else self.transforms.subsample_length
        return SampleSpace(self.episodes.lengths, self.chosen, self.kept, limit, self.seed)

    @functools.cached_property
    def name(self) -> str:
        """The name of the data set, for messages."""
        column = self.episodes.columns.get("dataset_name")
        return "the data set" if column is None else column.take(np.zeros(1, np.int64))[0].decode()

    def any_label(self) -> np.ndarray:
        """Return one bool per episode of the table: whether some step has an instruction that can be drawn."""
        if not self._languages:
            raise ValueError("skip_unlabeled=True but dataset does not have language labels. Give a language_key.")
        return np.logical_or.reduce(self._any_instruction)

    def largest(self, name: str) -> np.ndarray:
        """For each episode of the table the largest absolute value of `action`, or of an entry of the observation."""
        columns = self.episodes.columns
        column = columns["action"] if name == "action" else columns["observation"][name]
        maxima = np.empty(self.episodes.frames)
        for low in range(0, self.episodes.frames, _STRIDE):
            frames = np.arange(low, min(low + _STRIDE, self.episodes.frames))
            episode = np.searchsorted(self.episodes.starts, frames, side="right") - 1
            values = np.abs(self._normalize(column.take(frames), name, episode))
            maxima[frames] = values.reshape(len(frames), -1).max(axis=1, initial=0)  # 0 if an entry has no numbers
        return np.maximum.reduceat(maxima, self.episodes.starts)

    def trajectory(self, index: int, _: Any = None) -> Tree:
        """Return trajectory `index` after the transforms: all its samples in order, or a random choice if it is
        subsampled.
        """
        epoch, place = divmod(int(index), len(self.chosen))
        times = self.space.times(int(self.chosen[place]), epoch)
        same = np.zeros_like(times)
        return self.rows(same + self.chosen[place], times, Draws(self.seed, (index << 32) + times, same + int(index)))

    def ahead(self, values: np.ndarray) -> Tree:
        """Return which frames the samples `values` need. A value is the number of a sample + epoch * len."""
        epochs, numbers = np.divmod(values, len(self))
        episode, time = self.space.locate(numbers, epochs)
        return {**self._places(episode, time), "sample": values, "trajectory": epochs * len(self.episodes) + episode}

    def after(self, known: Tree) -> Tree:
        """Return the samples themselves, from what `ahead` has returned."""
        rows = self._rows(known, Draws(self.seed, known["sample"], known["trajectory"]))
        return read_images(rows) if self._has_images else rows

    @property
    def makes_new_arrays(self) -> bool:
        """True unless a user's function is applied to the rows: it may return what it keeps."""
        return not self.row_functions

    def rows(self, episode: np.ndarray, time: np.ndarray, chance: Draws) -> Tree:
        """Return the rows (episode, time) after the transforms. Encoded images are not read yet."""
        return self._rows(self._places(episode, time), chance)

    def _places(self, episode: np.ndarray, time: np.ndarray) -> Tree:
        """Return which frames the rows (episode, time) need, as far as that does not depend on draws."""
        start, length = self.episodes.starts[episode], self.episodes.lengths[episode]
        known = {"episode": episode, "time": time, "start": start, "length": length, "frame": start + time}
        if self.transforms is not None:
            windows = self.transforms.windows
            known["times"], known["real"] = windows.observations(time)
            known["frames"] = start[:, None] + known["times"]
            if not self._has_goals:
                known["reach"] = windows.reach(time, length)
                known["acted"] = known["reach"] * windows.acting(known["real"])
            if self._runs is not None:
                known["run"] = known["frames"] + ((windows.action_horizon - 1) * episode)[:, None]
        return known

    @functools.cached_property
    def _has_goals(self) -> bool:
        """Whether the goal of a task may lie before the end of its episode."""
        assert self.transforms is not None
        return self.transforms.relabel_goals or "timestep" in self.episodes.columns.get("task", {})

    @functools.cached_property
    def _has_images(self) -> bool:
        return bool(self.episodes._image_columns)

    def _rows(self, at: Tree, chance: Draws) -> Tree:
        episode, frames = at["episode"], at["frame"]
        columns = self.episodes.columns
        rows: Tree = {
            name: take_entries(column, frames)
            for name, column in columns.items()
            if name not in ("observation", "task", "action")
        }
        rows["task"] = self._task(episode, frames, chance)
        if self.transforms is None:
            rows["observation"] = self._observation(episode, frames, at["time"])
            if "action" in columns:
                rows["action"] = self._action(episode, frames)
        else:
            rows = self._transform(rows, at, chance)
        for function in self.row_functions:
            rows = trees.map_leaves(to_numpy, function(rows))
        return rows

    def _observation(self, episode: np.ndarray, frames: np.ndarray, time: np.ndarray) -> Tree:
        """Return the observations of `frames`, one or several per row. `time` are their times in their episodes."""
        columns = self._observed.items()
        observation = {name: self._normalize(take_entries(column, frames), name, episode) for name, column in columns}
        return {**observation, "timestep": time.astype(np.int32)}

    @functools.cached_property
    def _observed(self) -> Tree:
        columns = self.episodes.columns.get("observation", {})
        return {name: column for name, column in columns.items() if name != "timestep"}  # `_observation` adds it

    def _normalize(self, values: Any, name: str, episode: np.ndarray) -> Any:
        return values if self.normalize is None else self.normalize(values, name, episode)

    def _action(self, episode: np.ndarray, frames: np.ndarray) -> np.ndarray:
        return self._normalize(take_entries(self.episodes.columns["action"], frames), "action", episode)

    def _task(self, episode: np.ndarray, frames: np.ndarray, chance: Draws) -> Tree:
        columns = dict(self.episodes.columns.get("task", {}))
        several = columns.pop(LANGUAGES, None)
        task = {name: take_entries(column, frames) for name, column in columns.items()}
        if several is not None:
            texts = np.stack([column.take(frames) for column in self._languages])
            task[WORDS] = texts[self._draw_language(episode, chance), np.arange(len(frames))]
        return task

    @functools.cached_property
    def _languages(self) -> list[Any]:
        """The instructions of which each trajectory draws one. The original never draws the last of several."""
        task = self.episodes.columns.get("task", {})
        columns = list(task[LANGUAGES].values()) if LANGUAGES in task else [task[WORDS]] if WORDS in task else []
        return columns[:-1] if reproduces_faults(self.compat) and len(columns) > 1 else columns

    def _draw_language(self, episode: np.ndarray, chance: Draws) -> np.ndarray:
        """Return which of several instructions each row has. All rows of a trajectory have the same."""
        drawn = chance.per_trajectory(_LANGUAGE)
        if not self.labelled_only:
            return (drawn * len(self._languages)).astype(np.int64)
        present = self._any_instruction[:, episode]
        rank = (drawn * present.sum(axis=0)).astype(np.int64)  # among the instructions that the episode has
        return (present.cumsum(axis=0) > rank).argmax(axis=0)

    @functools.cached_property
    def _any_instruction(self) -> np.ndarray:
        """For each language and episode, whether at least one step has an instruction."""
        return np.stack([self.episodes._any_of(column) for column in self._languages])

    @functools.cached_property
    def _all_instructions(self) -> np.ndarray:
        """For each language and episode, whether all steps have an instruction."""
        return np.stack([self.episodes._all_of(column) for column in self._languages])

    @functools.cached_property
    def _any_goal_image(self) -> np.ndarray:
        """For each episode, whether at least one step has a goal image, or may get one by relabelling."""
        assert self.transforms is not None
        goals = self.episodes.columns.get("task", {}) | (self._observed if self.transforms.relabel_goals else {})
        pictures = [column for name, column in goals.items() if name.startswith(("image_", "depth_"))]
        none = np.zeros(len(self.episodes), dtype=bool)
        return np.logical_or.reduce([none, *(self.episodes._any_of(column) for column in pictures)])

    def _transform(self, rows: Tree, at: Tree, chance: Draws) -> Tree:
        transforms = self.transforms
        assert transforms is not None
        episode, time, start, length = at["episode"], at["time"], at["start"], at["length"]
        task = {**rows["task"], "pad_mask_dict": {name: _is_present(leaf) for name, leaf in rows["task"].items()}}
        if transforms.relabel_goals:
            goal = traj_transforms.choose_goals(time, length, chance.per_sample(_GOAL), transforms.max_goal_distance)
            task = tree_merge(task, self._masked_observation(episode, start + goal, goal))
        if transforms.rephraser is not None and WORDS in task:
            task[WORDS] = task_augmentation.rephrase(
                task[WORDS],
                chance.per_trajectory(_REPHRASE),
                chance.per_sample(_PHRASE),
                transforms.rephraser,
                transforms.rephrase_prob,
                firsts=self._task(episode, start, chance)[WORDS],
                labelled=self._all_instructions[self._draw_language(episode, chance), episode],
            )
        if transforms.keep_image_prob is not None:
            has_image = self._any_goal_image[episode] if reproduces_faults(self.compat) else None
            task = task_augmentation.delete_conditioning(
                task, chance.per_sample(_DELETE), length, transforms.keep_image_prob, has_image=has_image
            )
        windows = transforms.windows
        observation = self._masked_observation(episode, at["frames"], at["times"])
        if self._has_goals:
            reach = windows.reach(time, length, task["timestep"])
            acted = reach * windows.acting(at["real"])
        else:
            reach, acted = at["reach"], at["acted"]
        late = _make_masks(reach, windows.action_horizon)
        np.logical_not(late, out=late)
        rows |= {
            "observation": observation | {"timestep_pad_mask": at["real"].copy(), "task_completed": late},
            "task": task,
        }
        if "action" in self.episodes.columns:
            action = self._chunks(at)
            width = action.shape[-1]
            if transforms.max_action_dim is not None:
                action = self._pad(action, {})["action"]
            masks = _make_masks(acted, windows.action_horizon, action.shape[-1], filled=width)
            rows |= {"action": action, "action_pad_mask": masks.reshape(action.shape)}
        if "dataset_name" in rows:
            return add_head_action_mask(rows, transforms.head_to_dataset)
        return {**rows, "action_head_masks": {"action": make_true(time.shape)}}

    def _masked_observation(self, episode: np.ndarray, frames: np.ndarray, time: np.ndarray) -> Tree:
        masks = {name: column.is_present(frames) for name, column in self._observed.items()}
        masks["timestep"] = make_true(frames.shape)
        if reproduces_faults(self.compat):  # the original counts the zeros for what a robot does not have as data
            filled = [name for name, column in self._observed.items() if column.is_numeric]
            masks |= {name: make_true(frames.shape) for name in filled}
        observation = self._observation(episode, frames, time)
        if self.transforms is not None and self.transforms.max_proprio_dim is not None:
            observation = self._pad(_NO_ACTION, observation)["observation"]
        return {**observation, "pad_mask_dict": masks}

    def _pad(self, action: np.ndarray, observation: Tree) -> Tree:
        transforms = self.transforms
        assert transforms is not None
        return pad_actions_and_proprio(
            {"action": action, "observation": observation},
            transforms.max_action_dim,
            transforms.max_proprio_dim,
            compat=self.compat,
        )

    @functools.cached_property
    def _runs(self) -> np.ndarray | None:
        """All chunks of actions, as `list_runs` makes them, of an array that repeats the last action of each episode.

        The chunk that begins at frame f of episode e is number f + (horizon - 1) * e. It is copied at once, much
        faster than its actions one by one. None if there are no single actions, or the array would be too large.
        """
        assert self.transforms is not None
        column, more = self.episodes.columns.get("action"), self.transforms.windows.action_horizon - 1
        size = self.episodes.frames + more * len(self.episodes)
        if not isinstance(column, Numbers) or len(column.entry_shape) != 1 or not column.entry_shape[0]:
            return None
        if size * column.values[:1].nbytes > _COPIED_BYTES:
            return None
        times = np.ones(self.episodes.frames, dtype=np.int64)
        times[self.episodes.starts + self.episodes.lengths - 1] += more
        return list_runs(np.repeat(column.values, times, axis=0), more + 1)

    def _chunks(self, at: Tree) -> np.ndarray:
        """Return chunks of actions, [N, W, H, A], that begin at the frames of the rows. Chunks in the data are cut."""
        assert self.transforms is not None
        horizon = self.transforms.windows.action_horizon
        column, episode, firsts = self.episodes.columns["action"], at["episode"], at["frames"]
        if self._runs is not None:
            chunks = self._runs[at["run"]].view(column.values.dtype)
            return self._normalize(chunks.reshape(*firsts.shape, horizon, *column.entry_shape), "action", episode)
        if len(column.entry_shape) == 1:
            last = (at["start"] + at["length"] - 1)[:, None, None]
            return self._action(episode, np.minimum(firsts[:, :, None] + np.arange(horizon), last))
        return self._action(episode, firsts)[:, :, :horizon]


@dataclasses.dataclass(frozen=True, eq=False)
class SampleOrigins:
    """Which episode and step the samples of one data set are.

    Args:
      samples: the samples of the data set.
      joined: the samples of several data sets, if its samples are computed with those of others.
      first: the number of its first sample among those of `joined`.
    """

    samples: Samples
    joined: Samples | None = None
    first: int = 0

    def locate(self, number: int, epoch: int) -> tuple[int, int]:
        """Return the episode in the table of the data set, and the step, of a sample."""
        (episode,), (time,) = self.samples.space.locate(np.array([number]), np.array([epoch]))
        if self.joined is not None:  # which steps are drawn for an epoch depends on the table that is drawn from
            _, (time,) = self.joined.space.locate(np.array([self.first + number]), np.array([epoch]))
        return int(episode), int(time)

    def list_steps(self, number: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers and the steps of all samples of the episode of a sample, in the order of the steps."""
        episode, _ = self.locate(number, epoch)
        first = self.samples.space.first_number(int(np.flatnonzero(self.samples.chosen == episode)[0]))
        numbers = first + np.arange(len(self.samples.space.times(episode, epoch)))
        joined = self.samples if self.joined is None else self.joined
        _, times = joined.space.locate(self.first + numbers, np.full(len(numbers), epoch))
        order = np.argsort(times, kind="stable")
        return numbers[order], times[order]

    def __call__(self, number: int, epoch: int) -> Origin:
        """Return the frame and the episode of a sample, for messages."""
        episode, time = self.locate(number, epoch)
        numbers, table = self.samples.episodes.numbers, self.samples.episodes.columns
        of = f" of {self.samples.name}" if "dataset_name" in table else ""
        return Origin(f"episode {episode if numbers is None else numbers[episode]}{of}", (time,))


def list_runs(line: np.ndarray, count: int) -> np.ndarray:
    """Return a view of raw bytes: item i holds the rows i, i + 1, ..., i + count - 1 of `line`, which overlap those of
    i + 1.

    NumPy copies an item of raw bytes faster than a row of numbers.

    >>> runs = list_runs(np.arange(8).reshape(4, 2), 3)
    >>> runs[[1]].view(np.int64)
    array([2, 3, 4, 5, 6, 7])
    """
    step = line.strides[0]
    return np.ndarray((len(line) - count + 1,), f"V{count * step}", line, strides=(step,))


def _make_masks(reach: np.ndarray, horizon: int, width: int = 1, filled: int = 1) -> np.ndarray:
    """Return bools [..., horizon * width]: true for the first `filled` numbers of each of the first `reach` actions."""
    masks = _list_masks(horizon, width, filled)[reach]
    return masks.view(bool).reshape(*reach.shape, horizon * width)


@functools.lru_cache(maxsize=64)
def _list_masks(horizon: int, width: int, filled: int) -> np.ndarray:
    """Return all possible masks, one item each, as `list_runs` makes them: in item i the first i actions are true."""
    line = np.zeros((2 * horizon, width), dtype=bool)
    line[:horizon, :filled] = True
    return list_runs(line, horizon)[::-1]


def _is_present(leaf: np.ndarray) -> np.ndarray:
    return not_empty(leaf) if leaf.dtype == object else make_true(leaf.shape[:1])


def _is_text(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype == object


@in_states("read_images")
def read_images(tree: Any) -> Any:
    """Return the tree with its encoded images as bytes, read all together and each once. Other arrays become NumPy's.

    >>> read_images({"x": np.zeros(2)})
    {'x': array([0., 0.])}
    """
    leaves, rebuild = trees.flatten(tree)
    leaves = [to_numpy(leaf) for leaf in leaves]
    textual = [leaf for leaf in leaves if _is_text(leaf)]
    contents = iter(read_all([value for leaf in textual for value in leaf.flat]))

    def read(leaf: Any) -> Any:
        if not _is_text(leaf):
            return leaf
        return to_objects([next(contents) for _ in range(leaf.size)]).reshape(leaf.shape)

    return rebuild([read(leaf) for leaf in leaves])


@public("bushel.trajectory")
def window_frames(episodes: Episodes, offsets: Mapping[str, Sequence[int]]) -> MapDataset[Any]:
    """Return a dataset with one element for each frame of a table: the frame, with windows of some of its entries.

    An entry with offsets has a leading axis, with one row for each offset. Offsets that lead out of the episode repeat
    its first or last frame. Beside the entry, `<name>_is_pad` is True for these rows. Entries without offsets are those
    of the frame itself.

    >>> table = Episodes.of([{"x": np.arange(3), "y": np.arange(3)}])
    >>> sample = window_frames(table, {"x": [-1, 0]})[0]
    >>> sample["x"], sample["x_is_pad"]
    (array([0, 0]), array([ True, False]))

    Args:
      episodes: the table.
      offsets: offsets in frames, by the name of the entry, such as "action" or "observation/state".
    """
    known = {"/".join(path) for path in flatten_tree(episodes.columns)}
    for name, steps in offsets.items():
        if name not in known:
            raise ValueError(f"The episodes have no entry {name!r}; they have {', '.join(sorted(known))}.")
        if not len(steps):
            raise ValueError(f"The entry {name!r} has no offsets. Leave it out, or give at least [0].")
        for step in steps:
            checks.integer(step, f"an offset of {name}")
    steps_of = {name: tuple(map(int, steps)) for name, steps in offsets.items()}
    windows: Any = _OffsetWindows(episodes, steps_of)
    return MapDataset.range(episodes.frames).map(windows, vectorized=True)


@in_states("offset_windows")
@dataclasses.dataclass(frozen=True, eq=False)
class _OffsetWindows:
    episodes: Episodes
    offsets: Mapping[str, tuple[int, ...]]

    def __call__(self, frames: np.ndarray) -> dict[str, Any]:
        table = self.episodes
        episode = np.searchsorted(table.starts, frames, side="right") - 1
        first = table.starts[episode][:, None]
        last = first + table.lengths[episode][:, None] - 1
        leaves: dict[tuple[str, ...], Any] = {}
        for path, column in flatten_tree(table.columns).items():
            steps = self.offsets.get("/".join(path))
            if steps is None:
                leaves[path] = column.take(frames)
                continue
            wanted = frames[:, None] + np.array(steps, np.int64)
            inside = np.clip(wanted, first, last)
            leaves[path] = column.take(inside)
            leaves[*path[:-1], f"{path[-1]}_is_pad"] = wanted != inside
        return read_images(nest_leaves(leaves))
