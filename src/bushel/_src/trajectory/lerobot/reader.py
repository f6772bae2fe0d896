"""Reads LeRobot data sets: as rows with windows of seconds (`LeRobotSource`), or as episodes (`LeRobotBuilder`)."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, memory, redact
from bushel._src.base.blocks import Columns
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources.paths import Options, Path
from bushel._src.trajectory.config_values import refuse_unknown
from bushel._src.trajectory.data_utils import to_objects
from bushel._src.trajectory.encoded_images import Encoded
from bushel._src.trajectory.episode_builder import EpisodeBuilder, parse_split
from bushel._src.trajectory.episodes import Episodes, Images, find_image_files
from bushel._src.trajectory.lerobot.dataset_folder import LeRobotFeature, LeRobotFolder
from bushel._src.trajectory.lerobot.image_parts import Catalog, LeRobotImages, pixel_dtype
from bushel._src.trajectory.lerobot.table import TASK, BadEpisodes, open_table
from bushel._src.trajectory.pixels import decode_image
from bushel._src.trajectory.video_packets import PacketTables

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
    """Return the episodes of a LeRobot data set: data_dir/name, or `data_dir` itself.

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
        listed = {split: [places[e] for e in numbers if e in places] for split, numbers in folder.splits.items()}
        folder.forget()
        self._positions = {split: np.array(numbers, np.int64) for split, numbers in listed.items()}
        if list(listed) == ["train"]:
            self._positions = {"train": np.arange(len(self._table))}  # rows may have episodes that `meta` lacks
        self.splits = {split: len(numbers) for split, numbers in self._positions.items()}

    def episodes(self, split: str = "all") -> LeRobotEpisodes:
        """Return the episodes of a split: "train", "all", "train[:95%]", "train[10:20]" ..."""
        positions = np.arange(len(self._table)) if split == "all" else self.positions(split)
        return LeRobotEpisodes(self.folder, self._table, positions)

    def positions(self, split: str) -> np.ndarray:
        """Return the positions of the episodes of a split among all episodes: int64."""
        shards = {name: [len(numbers)] for name, numbers in self._positions.items()}
        return np.concatenate([self._positions[name][low:high] for name, low, high in parse_split(split, shards)])

    def __repr__(self) -> str:
        counts = ", ".join(f"{split}: {count}" for split, count in self.splits.items())
        return f"LeRobotBuilder({self.name}; {counts})"


@in_states("LeRobotEpisodes")
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
        """The reader of pictures by their addresses."""
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
        """Return the episodes at `indices`. No picture is read."""
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
        """Return the episode and its data set, for messages."""
        return f"episode {self._number(int(self._positions[index]))} of {redact.show(self._folder.path)}"

    def fingerprint(self) -> Any:
        """Return the versions of the files of the data set, and the numbers of the episodes."""
        return ["lerobot", self._table.fingerprint, self._positions.tolist()]

    def __repr__(self) -> str:
        return f"LeRobotEpisodes({redact.base_name(self._folder.path)}: {len(self)} episodes)"


def _make_handles(column: Images, frames: np.ndarray) -> np.ndarray:
    """Handle of pictures, also of those that are masked: a trajectory has handles in all steps, or in none."""
    return to_objects([Encoded(column.parts, *address) for address in column.addresses[frames].tolist()])


@public("bushel.trajectory")
class LeRobotSource:
    """Rows of a LeRobot data set (v2.0, v2.1, v3.0), each with the windows that `delta_timestamps` asks for.

    The entries are lerobot's: the features by name, `<name>_is_pad` for windows, and `task`. Two things differ.
    Pictures are uint8 (height, width, channels), which is a quarter of the memory; `float_images=True` gives lerobot's
    float32 (channels, height, width) between 0 and 1. Numbers are NumPy arrays: float32, int64 or bool, as in lerobot.
    `language_persistent` and `language_events` (lerobot 0.6) are lists of messages, which are dicts.

    A batch is read in one plan: `bushel.MapDataset.source(LeRobotSource(...)).shuffle(seed=0).batch(32)`.

    Args:
      path: the folder of the data set, or its URL. A web server cannot list files; there, files are numbered in order.
      delta_timestamps: for some features the times of the rows of their window, in seconds from the row itself. Times
        outside the episode repeat its first or last row, and `<name>_is_pad` is True there. A window of one time has an
        axis of time, except that of a video, as in lerobot.
      episodes: only these episodes. Rows come in the order of the data set, whatever the order here.
      tolerance_s: the largest distance between the time of a row and that of its frame in a video, in seconds. Cameras
        with another rate than the rows need half the time between their frames.
      float_images: pictures as lerobot returns them, see above.
      on_error: what happens to episodes whose video is missing, damaged, or does not fit to the rows. "raise":
        reading one of their frames raises an error that names episode, camera and file. "mask": such frames are black,
        and `<name>_is_pad` is True, also outside windows. "drop": the episodes are left out. Damaged rows raise an
        error at once, unless this is "mask" or "drop": then these episodes are left out.
      cache_dir: the local folder where the table of the data set is kept; by default the cache folder of Bushel.
      storage_options: options of the store, if `path` is a URL. With "cache_dir" in it, videos are copied to disk.
    """

    reads_in_place = True
    """`__getitems__` makes the arrays of pictures with `memory.output`: workers decode straight into shared memory."""

    def __init__(
        self,
        path: Path,
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        episodes: Sequence[int] | None = None,
        tolerance_s: float = 1e-4,
        float_images: bool = False,
        on_error: BadEpisodes = "raise",
        cache_dir: str | os.PathLike[str] | None = None,
        storage_options: Options | None = None,
    ):
        checks.choice(on_error, BadEpisodes, "on_error")
        self.folder = LeRobotFolder(path, storage_options=storage_options)
        deltas = {key: list(map(float, values)) for key, values in (delta_timestamps or {}).items()}
        self._steps = {key: _to_steps(key, values, self.folder, tolerance_s) for key, values in deltas.items()}
        self._table = open_table(self.folder, tolerance_s=tolerance_s, on_error=on_error, cache_dir=cache_dir)
        self._float_images, self._masked = bool(float_images), on_error == "mask"
        self._chosen = _choose_episodes(self._table, episodes, self.folder)
        self.folder.forget()
        self._ends = np.cumsum(self._table.lengths[self._chosen])

    @property
    def episodes(self) -> list[int]:
        """The `episode_index` of the episodes that have rows here, in order."""
        assert self._table.numbers is not None
        return self._table.numbers[self._chosen].tolist()

    @property
    def lengths(self) -> np.ndarray:
        """The number of rows of these episodes."""
        return self._table.lengths[self._chosen]

    @property
    def fps(self) -> float:
        """Rows per second."""
        return self.folder.fps

    @property
    def features(self) -> dict[str, LeRobotFeature]:
        """The features by name."""
        return self.folder.features

    @property
    def tasks(self) -> dict[int, str]:
        """The texts of tasks by `task_index`."""
        return self.folder.tasks

    def statistics(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the statistics that the data set has, by feature: min, max, mean, std, count."""
        return self.folder.statistics()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = checks.integer(index, "index")
        if not -len(self) <= row < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} rows")
        tree = self.__getitems__([row % len(self)]).tree
        return {name: values[0] for name, values in tree.items()}

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """Return the rows at `indices`. All pictures are read in one plan, and each is decoded once."""
        places = checks.positions(indices, len(self))
        episode = np.searchsorted(self._ends, places, side="right")
        owner = self._chosen[episode]
        first = self._table.starts[owner]
        row = first + places - (self._ends[episode] - self._table.lengths[owner])
        last = first + self._table.lengths[owner] - 1
        tree: dict[str, Any] = {}
        pictures: dict[str, np.ndarray] = {}
        for name, column in self._table.columns.items():
            rows, outside = row, None
            if name in self._steps:
                asked = row[:, None] + self._steps[name]
                rows = np.clip(asked, first[:, None], last[:, None])
                outside = rows != asked
            if name == TASK:
                continue
            if isinstance(column, Images):
                if self._masked:
                    missing = ~column.is_present(rows)
                    outside = missing if outside is None else outside | missing
                if self.folder.features[name].dtype == "video" and rows.shape[1:] == (1,):
                    rows = rows[:, 0]
                pictures[name] = rows
                tree[name] = None
            else:
                tree[name] = self._narrow(name, column.take(rows))
            if outside is not None:
                tree[f"{name}_is_pad"] = outside
        tree |= self._read_pictures(pictures)
        tree[TASK] = self._texts[self._table.columns[TASK].codes[row]]
        return Columns(tree, len(places))

    def _narrow(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return numbers with lerobot's dtypes: float32, int64 and bool. Texts as str, messages as lists of dicts."""
        if values.dtype.kind == "f":
            return values.astype(np.float32, copy=False)
        if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise ValueError(f"{name!r} has {values.max()}, which does not fit into int64, the type of integers here.")
        if values.dtype.kind in "iu":
            return values.astype(np.int64, copy=False)
        if values.dtype != object:
            return values
        read = json.loads if self.folder.features[name].dtype == "language" else bytes.decode
        return to_objects([read(value) for value in values.ravel()]).reshape(values.shape)

    @functools.cached_property
    def _texts(self) -> np.ndarray:
        return to_objects([text.decode() for text in self._table.columns[TASK].values])

    def _read_pictures(self, wanted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return arrays of pictures for rows of the table: frames of all cameras in one plan, then images in rows."""
        out: dict[str, np.ndarray] = {}
        records: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        for name, rows in wanted.items():
            column: Images = self._table.columns[name]
            addresses = column.addresses[rows.ravel()]
            shape = self._parts.pixel_shape(int(addresses[0, 0])) if len(addresses) else None
            if shape is None:
                out[name] = self._decode_rows(addresses, name, rows.shape)
                continue
            pixels = memory.output((len(addresses), *shape), pixel_dtype(shape))
            there = addresses[:, 2] != 0
            pixels[~there] = 0
            records.append(addresses[there, 0])
            starts.append(addresses[there, 1])
            targets += [pixels[row] for row in np.flatnonzero(there).tolist()]
            out[name] = pixels.reshape(*rows.shape, *shape)
        if targets:
            self._parts.read_into(np.concatenate(records), np.concatenate(starts), targets)
        if not self._float_images:
            return out
        return {name: _as_lerobot(pixels) for name, pixels in out.items()}

    @functools.cached_property
    def _parts(self) -> LeRobotImages:
        parts = find_image_files(self._table)
        assert isinstance(parts, LeRobotImages)
        return parts

    def _decode_rows(self, addresses: np.ndarray, name: str, axes: tuple[int, ...]) -> np.ndarray:
        """Return the pixels of images in rows, each decoded once."""
        distinct, back = np.unique(addresses, axis=0, return_inverse=True)
        pixels = []
        for (record, start, _), content in zip(distinct.tolist(), self._parts.read(*distinct.T)):
            try:
                pixels.append(decode_image(content))
            except ValueError as error:
                raise type(error)(f"{self._parts.describe(record, start)}: {error}") from error
        other = next((row for row, image in enumerate(pixels) if image.shape != pixels[0].shape), None)
        if other is not None:
            first, second = (
                f"{list(pixels[row].shape)} ({self._parts.describe(*distinct[row, :2].tolist())})" for row in (0, other)
            )
            raise ValueError(
                f"The images of {name!r} have different shapes and cannot be one array: {first}, {second}."
            )
        stacked = np.stack(pixels)
        return stacked[back.ravel()].reshape(*axes, *stacked.shape[1:])

    def fingerprint(self) -> Any:
        """Return the versions of the files of the data set, and what is read of it."""
        return ["lerobot", self._table.fingerprint, self.episodes, _describe_steps(self._steps), self._float_images]

    def __repr__(self) -> str:
        return f"LeRobotSource({redact.base_name(self.folder.path)}: {len(self)} rows of {len(self._chosen)} episodes)"


def _as_lerobot(pixels: np.ndarray) -> np.ndarray:
    """Return pictures in the form of lerobot: channels first, float32, colours between 0 and 1, depth in
    millimetres.
    """
    largest = np.float32(255 if pixels.dtype == np.uint8 else 1)
    return np.moveaxis(pixels, -1, -3).astype(np.float32) / largest


def _to_steps(key: str, deltas: Sequence[float], folder: LeRobotFolder, tolerance_s: float) -> np.ndarray:
    """Return times as numbers of rows. A time that is not a multiple of 1 / fps raises ValueError."""
    refuse_unknown([key], folder.features, "delta_timestamps", "feature")
    times = np.asarray(deltas, np.float64) * folder.fps
    if not len(times):
        raise ValueError(f"delta_timestamps[{key!r}] is empty. Leave the feature out for a single row.")
    steps = np.rint(times)
    off = np.abs(times - steps) / folder.fps
    if not np.all(off <= tolerance_s):
        worst = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
        raise ValueError(
            f"delta_timestamps[{key!r}] has {deltas[worst]} s, which is not a multiple of 1 / fps = 1 / "
            f"{folder.fps:g} s within tolerance_s = {tolerance_s:g}. The nearest is {steps[worst] / folder.fps:g}."
        )
    return steps.astype(np.int64)


def _choose_episodes(table: Episodes, episodes: Sequence[int] | None, folder: LeRobotFolder) -> np.ndarray:
    assert table.numbers is not None
    if episodes is None:
        return np.arange(len(table))
    wanted = sorted({checks.integer(episode, "An entry of episodes") for episode in episodes})
    missing = sorted(set(wanted) - set(table.numbers.tolist()) - set(folder.episode_facts))
    if missing or not wanted:
        raise ValueError(
            f"{redact.show(folder.path)} has no episode {', '.join(map(str, missing)) or 'of an empty list'}; it has "
            f"{len(table)}, numbered from {table.numbers[0]} to {table.numbers[-1]}."
        )
    return np.flatnonzero(np.isin(table.numbers, wanted))


def _describe_steps(steps: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    return {key: values.tolist() for key, values in steps.items()}
