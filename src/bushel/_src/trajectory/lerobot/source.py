"""`LeRobotSource`: rows of a LeRobot data set with windows of seconds, as lerobot's `LeRobotDataset` returns them."""

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
from bushel._src.sources.paths import Options, Path
from bushel._src.trajectory.config_values import refuse_unknown
from bushel._src.trajectory.episodes import Episodes, find_parts
from bushel._src.trajectory.frame_columns import Images
from bushel._src.trajectory.lerobot.dataset_folder import Feature, LeRobotFolder
from bushel._src.trajectory.lerobot.image_parts import LeRobotImages, pixel_dtype
from bushel._src.trajectory.lerobot.table import TASK, BadEpisodes, open_table
from bushel._src.trajectory.numpy_or_jax import to_objects
from bushel._src.trajectory.pixels import decode_image


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
    def features(self) -> dict[str, Feature]:
        """The features by name."""
        return self.folder.features

    @property
    def tasks(self) -> dict[int, str]:
        """The texts of tasks by `task_index`."""
        return self.folder.tasks

    def statistics(self) -> dict[str, dict[str, np.ndarray]]:
        """The statistics that the data set has, by feature: min, max, mean, std, count."""
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
        """The rows at `indices`. All pictures are read in one plan, and each is decoded once."""
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
        """Numbers with lerobot's dtypes: float32, int64 and bool. Texts as str, messages as lists of dicts."""
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
        """Arrays of pictures for rows of the table: frames of all cameras in one plan, then images in rows."""
        out: dict[str, np.ndarray] = {}
        records: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        targets: list[np.ndarray] = []
        for name, rows in wanted.items():
            column: Images = self._table.columns[name]
            places = column.places[rows.ravel()]
            shape = self._parts.pixel_shape(int(places[0, 0])) if len(places) else None
            if shape is None:
                out[name] = self._decode_rows(places, name, rows.shape)
                continue
            pixels = memory.output((len(places), *shape), pixel_dtype(shape))
            there = places[:, 2] != 0
            pixels[~there] = 0
            records.append(places[there, 0])
            starts.append(places[there, 1])
            targets += [pixels[place] for place in np.flatnonzero(there).tolist()]
            out[name] = pixels.reshape(*rows.shape, *shape)
        if targets:
            self._parts.read_into(np.concatenate(records), np.concatenate(starts), targets)
        if not self._float_images:
            return out
        return {name: _as_lerobot(pixels) for name, pixels in out.items()}

    @functools.cached_property
    def _parts(self) -> LeRobotImages:
        parts = find_parts(self._table)
        assert isinstance(parts, LeRobotImages)
        return parts

    def _decode_rows(self, places: np.ndarray, name: str, axes: tuple[int, ...]) -> np.ndarray:
        """The pixels of images in rows, each decoded once."""
        distinct, back = np.unique(places, axis=0, return_inverse=True)
        pixels = []
        for (record, start, _), content in zip(distinct.tolist(), self._parts.read(*distinct.T)):
            try:
                pixels.append(decode_image(content))
            except ValueError as error:
                raise type(error)(f"{self._parts.describe(record, start)}: {error}") from error
        other = next((place for place, image in enumerate(pixels) if image.shape != pixels[0].shape), None)
        if other is not None:
            first, second = (
                f"{list(pixels[place].shape)} ({self._parts.describe(*distinct[place, :2].tolist())})"
                for place in (0, other)
            )
            raise ValueError(
                f"The images of {name!r} have different shapes and cannot be one array: {first}, {second}."
            )
        stacked = np.stack(pixels)
        return stacked[back.ravel()].reshape(*axes, *stacked.shape[1:])

    def fingerprint(self) -> Any:
        """The versions of the files of the data set, and what is read of it."""
        return ["lerobot", self._table.fingerprint, self.episodes, _describe_steps(self._steps), self._float_images]

    def __repr__(self) -> str:
        return f"LeRobotSource({redact.base_name(self.folder.path)}: {len(self)} rows of {len(self._chosen)} episodes)"


def _as_lerobot(pixels: np.ndarray) -> np.ndarray:
    """Pictures in the form of lerobot: channels first, float32, colours between 0 and 1, depth in millimetres."""
    largest = np.float32(255 if pixels.dtype == np.uint8 else 1)
    return np.moveaxis(pixels, -1, -3).astype(np.float32) / largest


def _to_steps(key: str, deltas: Sequence[float], folder: LeRobotFolder, tolerance_s: float) -> np.ndarray:
    """Times as numbers of rows. A time that is not a multiple of 1 / fps raises ValueError."""
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
