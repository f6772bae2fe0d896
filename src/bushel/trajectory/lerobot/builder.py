"""`LeRobotBuilder`: the episodes of a LeRobot data set as raw trajectories, like those of the other formats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import checks, redact
from bushel.sources.paths import Options, Path
from bushel.trajectory.encoded_images import Encoded
from bushel.trajectory.episode_builder import EpisodeBuilder
from bushel.trajectory.episodes import Episodes
from bushel.trajectory.frame_columns import Images
from bushel.trajectory.lerobot.dataset_folder import LeRobotFolder
from bushel.trajectory.lerobot.image_parts import Catalog, LeRobotImages
from bushel.trajectory.lerobot.table import TASK, BadEpisodes, open_table
from bushel.trajectory.numpy_or_jax import to_objects
from bushel.trajectory.rlds.splits import parse_split
from bushel.trajectory.video.packet_table import PacketTables

_OBSERVATION = "observation."


def open_lerobot(
    name: str,
    data_dir: Path,
    storage_options: Options | None = None,
    *,
    tolerance_s: float = 1e-4,
    on_error: BadEpisodes = "raise",
    cache_dir: str | os.PathLike[str] | None = None,
) -> LeRobotBuilder:
    """The episodes of a LeRobot data set: data_dir/name, or `data_dir` itself.

    Args:
      name: the name of the data set.
      data_dir: a path or URL.
      storage_options: the options of the store.
      tolerance_s: the largest distance between the time of a row and that of its frame in a video, in seconds.
      on_error: what happens to episodes whose video is missing or does not fit, see `LeRobotSource`: "raise" when
        one of their frames is read, "mask" the camera, or "drop" the episode.
      cache_dir: the folder where the table of the data set is kept.
    """
    root = os.fspath(data_dir).rstrip("/")
    try:
        folder = LeRobotFolder(f"{root}/{name}", storage_options=storage_options)
    except FileNotFoundError:
        folder = LeRobotFolder(root, storage_options=storage_options)
    return LeRobotBuilder(folder, name=name, tolerance_s=tolerance_s, on_error=on_error, cache_dir=cache_dir)


class LeRobotBuilder(EpisodeBuilder):
    """A LeRobot data set as episodes. `open_lerobot` makes one.

    Attributes:
      folder: the description of the data set.
      splits: the number of episodes of each split.
    """

    def __init__(
        self,
        folder: LeRobotFolder,
        *,
        name: str = "lerobot",
        tolerance_s: float = 1e-4,
        on_error: BadEpisodes = "raise",
        cache_dir: str | os.PathLike[str] | None = None,
    ):
        self.folder, self.name, self.fps = folder, name, folder.fps
        self._table = open_table(folder, tolerance_s=tolerance_s, on_error=on_error, cache_dir=cache_dir)
        assert self._table.numbers is not None
        places = {episode: place for place, episode in enumerate(self._table.numbers.tolist())}
        listed = {split: [places[e] for e in own if e in places] for split, own in folder.splits.items()}
        folder.forget()
        self._positions = {split: np.array(own, np.int64) for split, own in listed.items()}
        if list(listed) == ["train"]:
            self._positions = {"train": np.arange(len(self._table))}  # rows may have episodes that `meta` lacks
        self.splits = {split: len(own) for split, own in self._positions.items()}

    def episodes(self, split: str = "all") -> LeRobotEpisodes:
        """The episodes of a split: "train", "all", "train[:95%]", "train[10:20]" ..."""
        positions = np.arange(len(self._table)) if split == "all" else self.positions(split)
        return LeRobotEpisodes(self.folder, self._table, positions)

    def positions(self, split: str) -> np.ndarray:
        """The positions of the episodes of a split among all episodes: int64."""
        shards = {name: [len(own)] for name, own in self._positions.items()}
        return np.concatenate([self._positions[name][low:high] for name, low, high in parse_split(split, shards)])

    def __repr__(self) -> str:
        counts = ", ".join(f"{split}: {count}" for split, count in self.splits.items())
        return f"LeRobotBuilder({self.name}; {counts})"


class LeRobotEpisodes:
    """Episodes of a LeRobot data set as raw trajectories, by position.

    `observation` has the features whose names begin with "observation.", without this prefix; pictures are handles.
    `language_instruction` is the text of each step's task. All other features are at the top: `action`, `next.reward`,
    `timestamp`, `frame_index` and others. The names of openpi's data sets are understood, too: pictures and `state`
    without a prefix are part of the observation, and `actions` counts as `action`.
    """

    def __init__(self, folder: LeRobotFolder, table: Episodes, positions: np.ndarray):
        self._folder, self._table, self._positions = folder, table, positions

    @property
    def parts(self) -> LeRobotImages:
        """The reader of pictures by their places."""
        for column in self._table._image_columns:
            if isinstance(column.parts, LeRobotImages):
                return column.parts
        return LeRobotImages(self._folder.path, Catalog([], [], [], [], []), PacketTables.of([]))

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = checks.integer(index, "index")
        if not -len(self) <= place < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} episodes")
        return self._read(int(self._positions[place]))

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """The episodes at `indices`. No picture is read."""
        return [self._read(int(self._positions[place])) for place in checks.positions(indices, len(self))]

    def _read(self, episode: int) -> dict[str, Any]:
        start, length = int(self._table.starts[episode]), int(self._table.lengths[episode])
        frames = np.arange(start, start + length)
        columns = self._table.columns
        action = "action" if "action" in columns else "actions"
        tree: dict[str, Any] = {"observation": {}}
        for name, column in columns.items():
            values = _make_handles(column, frames) if isinstance(column, Images) else column.take(frames)
            if name == TASK:
                tree["language_instruction"] = values
            elif name == action:
                tree["action"] = values
            elif name.startswith(_OBSERVATION) or isinstance(column, Images) or name == "state":
                tree["observation"][name.removeprefix(_OBSERVATION)] = values
            else:
                tree[name] = values
        tree["traj_metadata"] = {"episode_index": np.full(length, self._number(episode))}
        tree["_len"] = np.full(length, length, np.int32)
        tree["_traj_index"] = np.full(length, episode, np.int64)
        tree["_frame_index"] = np.arange(length, dtype=np.int32)
        return tree

    def _number(self, episode: int) -> int:
        assert self._table.numbers is not None
        return int(self._table.numbers[episode])

    def describe(self, index: int) -> str:
        """The episode and its data set, for messages."""
        return f"episode {self._number(int(self._positions[index]))} of {redact.show(self._folder.path)}"

    def fingerprint(self) -> Any:
        """The versions of the files of the data set, and the numbers of the episodes."""
        return ["lerobot", self._table.fingerprint, self._positions.tolist()]

    def __repr__(self) -> str:
        return f"LeRobotEpisodes({redact.base_name(self._folder.path)}: {len(self)} episodes)"


def _make_handles(column: Images, frames: np.ndarray) -> np.ndarray:
    """Handles of pictures, also of those that are masked: a trajectory has handles in all steps, or in none."""
    return to_objects([Encoded(column.parts, *place) for place in column.places[frames].tolist()])
