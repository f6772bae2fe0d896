"""`EpisodeBuilder`: a data set of episodes, whatever its format. `episode_formats.py` opens one."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bushel._src.base.contract import optional
from bushel._src.base.public import public
from bushel._src.trajectory.encoded_images import ImageParts


class EpisodeSource(Protocol):
    """Raw trajectories by position: trees of arrays with a leading axis of steps, and handles in place of images."""

    @property
    def parts(self) -> ImageParts:
        """The files that hold the images."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """The trajectories at `indices`."""
        ...

    def describe(self, index: int) -> str:
        """The episode and its file, for messages."""
        ...

    def fingerprint(self) -> Any:
        """Plain data that differ for sources that differ."""
        ...


@public("bushel.trajectory")
class EpisodeBuilder(abc.ABC):
    """A data set of episodes on disk or in a store.

    A raw trajectory has its observations under "observation" and its actions under "action". If the format has
    instructions, they are under "language_instruction", one for each step. Facts about the whole episode are under
    "traj_metadata", repeated for each step.
    """

    name: str
    """The name of the data set, for messages."""
    splits: Mapping[str, int]
    """The number of episodes of each split."""
    fps: float | None = None
    """Steps per second, if the files say it."""

    @abc.abstractmethod
    def episodes(self, split: str = "all") -> EpisodeSource:
        """The episodes of a split: "train", "all", "train[:95%]", "train[10:20]", "train+val" ..."""

    @abc.abstractmethod
    def positions(self, split: str) -> np.ndarray:
        """The positions of the episodes of a split among all episodes: int64."""

    @optional
    def default_splits(self) -> tuple[str, str]:
        """The splits for training and for validation, if the user names none."""
        return ("train", "val") if "val" in self.splits else ("train[:95%]", "train[95%:]")
