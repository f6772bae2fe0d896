"""`ArrayEpisodesBuilder`: episodes in array files, with their splits. A `Layout` knows what a file holds."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks
from bushel._src.base.state_names import name_of
from bushel._src.trajectory.array_episodes.array_files import ArrayFile
from bushel._src.trajectory.array_episodes.stored_frames import StoredFrames
from bushel._src.trajectory.episode_builder import EpisodeBuilder
from bushel._src.trajectory.numpy_or_jax import to_objects
from bushel._src.trajectory.rlds.splits import parse_split

Tree = dict[str, Any]


class Layout(abc.ABC):
    """What the files of one format hold, and where."""

    episodes: Sequence[tuple[ArrayFile, str]]
    """The file of each episode, and what comes before the names of its arrays in it."""
    splits: Mapping[str, np.ndarray]
    """The numbers of the episodes of each split."""
    frames: StoredFrames
    """The reader of the images."""
    fps: float | None
    """Steps per second, if the files say it."""
    settings: Sequence[Any]
    """The options of the format on which trajectories depend."""

    @abc.abstractmethod
    def read(self, number: int) -> Tree:
        """The raw trajectory of an episode. Images are handles."""

    def describe(self, number: int) -> str:
        """The episode and its file, for messages."""
        file, prefix = self.episodes[number]
        return f"episode {number} ({prefix.rstrip('/') + ' of ' if prefix else ''}{file.shown})"


class ArrayEpisodes:
    """Raw trajectories by position. `ArrayEpisodesBuilder.episodes` makes these objects.

    `_len`, `_traj_index` and `_frame_index` are added, as for RLDS.
    """

    def __init__(self, layout: Layout, numbers: np.ndarray, name: str):
        self._layout, self._numbers, self._name = layout, numbers, name

    @property
    def parts(self) -> StoredFrames:
        """The reader of the images."""
        return self._layout.frames

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Tree:
        place = checks.integer(index, "index")
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} episodes")
        number = int(self._numbers[place])
        trajectory = self._layout.read(number)
        length = len(trajectory["language_instruction"])  # which every layout has
        own = {"_len": np.full(length, length, np.int32), "_traj_index": np.full(length, number, np.int64)}
        return {**trajectory, **own, "_frame_index": np.arange(length, dtype=np.int32)}

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Tree]:
        """The episodes at `indices`."""
        return [self[place] for place in checks.positions(indices, len(self)).tolist()]

    def describe(self, index: int) -> str:
        """The episode and its file, for messages."""
        return self._layout.describe(int(self._numbers[index]))

    def fingerprint(self) -> Any:
        """The layout, the versions of the files, and which episodes these are."""
        files = dict.fromkeys((file.path, str(file.version)) for file, _ in self._layout.episodes)
        versions = [version for _, version in files]
        return [name_of(type(self._layout)), versions, self._numbers.tolist(), list(self._layout.settings)]

    def __repr__(self) -> str:
        return f"ArrayEpisodes({self._name}: {len(self)} episodes)"


class ArrayEpisodesBuilder(EpisodeBuilder):
    """A data set of episodes in HDF5 or `.npz` files, on disk or in a store.

    Args:
      layout: what the files hold.
      name: the name of the data set, for messages.
    """

    def __init__(self, layout: Layout, name: str):
        self.name, self._layout, self.fps = name, layout, layout.fps
        self.splits = {split: len(numbers) for split, numbers in layout.splits.items()}

    def episodes(self, split: str = "all") -> ArrayEpisodes:
        """The episodes of a split: "train", "all", "train[:95%]", "train[10:20]", "train+val" ..."""
        return ArrayEpisodes(self._layout, self.positions(split), f"{self.name}/{split}")

    def positions(self, split: str) -> np.ndarray:
        """The positions of the episodes of a split among all episodes: int64."""
        everything = np.arange(len(self._layout.episodes))
        members = {"all": everything, **self._layout.splits}
        ranges = parse_split(split, {name: [len(numbers)] for name, numbers in members.items()})
        return np.concatenate([members[name][low:high] for name, low, high in ranges]).astype(np.int64)

    def default_splits(self) -> tuple[str, str]:
        """ "train" and "val" or "valid" if the data set has both; else the first 95 % of "train", and the rest."""
        held_out = next((split for split in ("val", "valid") if split in self.splits), None)
        return ("train[:95%]", "train[95%:]") if held_out is None else ("train", held_out)

    def __repr__(self) -> str:
        counts = ", ".join(f"{split}: {count}" for split, count in self.splits.items())
        return f"ArrayEpisodesBuilder({self.name}; {counts})"


def is_image(name: str, array: Any) -> bool:
    """Whether an array is one image per step: frames of uint8 with channels, or frames that are named so.

    Other arrays with three axes per step, such as rotation matrices, are numbers.
    """
    shape = array.shape
    if len(shape) == 4 and array.dtype == np.uint8:
        return shape[3] in (1, 3, 4)
    is_named = "image" in name or "depth" in name
    return is_named and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4)))


def repeat_text(text: str | bytes, length: int) -> np.ndarray:
    """A text, once for each step."""
    content = text.encode() if isinstance(text, str) else bytes(text)
    return to_objects([content] * length)
