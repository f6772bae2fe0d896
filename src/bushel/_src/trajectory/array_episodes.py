"""Episodes in files of plain arrays: HDF5 in the layouts of robomimic and ALOHA, and folders of `.npz` files.

An `EpisodeLayout` knows what a file holds, the builder has the episodes and their splits. `episode_array_files.py`
reads the arrays.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states, name_of
from bushel._src.sources.hdf5 import check_inside
from bushel._src.trajectory.data_utils import nest_leaves, to_objects
from bushel._src.trajectory.episode_array_files import (
    ArrayFile,
    StoredFrames,
    describing_damage,
    find_episode_files,
    find_file,
    find_versions,
    list_datasets,
    number_files,
    sort_by_number,
)
from bushel._src.trajectory.episode_builder import EpisodeBuilder, parse_split

Tree = dict[str, Any]


class EpisodeLayout(abc.ABC):
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
        """Return the raw trajectory of an episode. Images are handles."""

    def describe(self, number: int) -> str:
        """Return the episode and its file, for messages."""
        file, prefix = self.episodes[number]
        return f"episode {number} ({prefix.rstrip('/') + ' of ' if prefix else ''}{file.shown})"


@in_states("ArrayEpisodes")
class ArrayEpisodes:
    """Raw trajectories by position. `ArrayEpisodesBuilder.episodes` makes these objects.

    `_len`, `_traj_index` and `_frame_index` are added, as for RLDS.
    """

    def __init__(self, layout: EpisodeLayout, numbers: np.ndarray, name: str):
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
        numbers = {"_len": np.full(length, length, np.int32), "_traj_index": np.full(length, number, np.int64)}
        return {**trajectory, **numbers, "_frame_index": np.arange(length, dtype=np.int32)}

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Tree]:
        """Return the episodes at `indices`."""
        return [self[place] for place in checks.positions(indices, len(self)).tolist()]

    def describe(self, index: int) -> str:
        """Return the episode and its file, for messages."""
        return self._layout.describe(int(self._numbers[index]))

    def fingerprint(self) -> Any:
        """Return the layout, the versions of the files, and which episodes these are."""
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

    def __init__(self, layout: EpisodeLayout, name: str):
        self.name, self._layout, self.fps = name, layout, layout.fps
        self.splits = {split: len(numbers) for split, numbers in layout.splits.items()}

    def episodes(self, split: str = "all") -> ArrayEpisodes:
        """Return the episodes of a split: "train", "all", "train[:95%]", "train[10:20]", "train+val" ..."""
        return ArrayEpisodes(self._layout, self.positions(split), f"{self.name}/{split}")

    def positions(self, split: str) -> np.ndarray:
        """Return the positions of the episodes of a split among all episodes: int64."""
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
    """Return whether an array is one image per step: frames of uint8 with channels, or frames that are named so.

    Other arrays with three axes per step, such as rotation matrices, are numbers.
    """
    shape = array.shape
    if len(shape) == 4 and array.dtype == np.uint8:
        return shape[3] in (1, 3, 4)
    is_named = "image" in name or "depth" in name
    return is_named and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4)))


def repeat_text(text: str | bytes, length: int) -> np.ndarray:
    """Return a text, once for each step."""
    content = text.encode() if isinstance(text, str) else bytes(text)
    return to_objects([content] * length)


_ROBOMIMIC_NAMES = {"obs": "observation", "next_obs": "next_observation", "actions": "action"}


def open_robomimic(
    name: str, data_dir: Any, storage_options: Any = None, *, missing_images: Literal["raise", "pad"] = "raise"
) -> ArrayEpisodesBuilder:
    """Return the episodes of a robomimic file: data_dir/name, data_dir/name.hdf5, or `data_dir` itself.

    Episodes come in the order of their numbers. The filter keys of the file (`mask/train`) are its splits. If there is
    no "train", that split holds all episodes. `num_samples` is the length of an episode; arrays that are longer are
    cut.

    Args:
      name: the name of the data set.
      data_dir: a path or URL.
      storage_options: the options of the store.
      missing_images: "raise", or "pad" for padding, with a mask, if an episode lacks a camera of the first episode.
    """
    path = find_file(name, data_dir, storage_options, (".hdf5", ".h5"))
    (file,) = find_versions("hdf5", [path], redact.Options(storage_options or {}))
    return ArrayEpisodesBuilder(_Robomimic(file, pad=check_choice(missing_images)), name)


def check_choice(missing_images: str) -> bool:
    """Return whether missing images are padded."""
    return checks.choice(missing_images, ("raise", "pad"), "missing_images") == "pad"


@in_states("robomimic_layout")
class _Robomimic(EpisodeLayout):
    def __init__(self, file: ArrayFile, pad: bool):
        content = file.open()
        for name in ("data", "mask"):
            if name in content and not hasattr(content[name], "keys"):
                raise ValueError(f"{file.shown}: {name!r} must be a group, as robomimic has it, but it is an array.")
        with describing_damage(file.shown):
            groups = [
                name
                for name in content.get("data", {})
                if re.fullmatch(r".*\d+", name) and hasattr(content["data"][name], "keys")
            ]
            stored = dict(content.get("mask", {}).items())
            for split, names in stored.items():
                check_inside(names, f"mask/{split}", content)
            masks = {
                split: [_as_text(entry) for entry in np.ravel(names[()]).tolist()] for split, names in stored.items()
            }
            arguments = _parse_json(content["data"].attrs.get("env_args")) if groups else {}
        if not groups:
            raise ValueError(
                f"{file.shown} has no groups 'data/demo_0', 'data/demo_1' ... of robomimic; it has {sorted(content)}."
            )
        demos = sort_by_number(groups)
        self._file, self._pad, self.settings = file, pad, (pad,)
        self._demos = demos
        self.episodes = [(file, f"data/{demo}/") for demo in demos]
        self.splits = _number_splits(masks, demos, file)
        frequency = arguments.get("env_kwargs", {}).get("control_freq") if isinstance(arguments, dict) else None
        self.fps = float(frequency) if isinstance(frequency, (int, float)) else None
        with describing_damage(file.shown):
            first = list_datasets(content[f"data/{demos[0]}"], content)
        keys = [key for key, array in first.items() if _is_frame(key, array)]
        self.frames = StoredFrames(self.episodes, keys)
        self._keys = keys

    def read(self, number: int) -> Tree:
        where = self.describe(number)
        content = self._file.open()
        with describing_damage(self._file.shown):
            group = content[f"data/{self._demos[number]}"]
            arrays = list_datasets(group, content)
            stated = group.attrs.get("num_samples", len(arrays["actions"]) if "actions" in arrays else 0)
            words = _parse_json(group.attrs.get("ep_meta"))
        if not isinstance(stated, (int, np.integer)) or stated < 0:
            raise DamagedFile(f"{where}: num_samples is {stated!r}, and not a number of steps.")
        length = int(stated)
        leaves: dict[tuple[str, ...], Any] = {}
        for key, array in arrays.items():
            top, *rest = key.split("/")
            place = (_ROBOMIMIC_NAMES.get(top, top), *rest)
            if not array.shape:
                leaves[place] = np.repeat(np.asarray(array[()])[None], length)
                continue
            if len(array) < length:
                raise DamagedFile(f"{where}: {key!r} has {len(array)} steps, but the episode has {length}.")
            if key in self._keys:
                leaves[place] = self.frames.handles(number, key, length, array)
            elif not _is_frame(key, array):
                leaves[place] = read_numbers(array, length, key, where)
        for key in self._keys:
            if key not in arrays:
                if not self._pad:
                    raise ValueError(
                        f"{where} has no {key!r}, which the first episode has. missing_images='pad' makes it padding."
                    )
                top, *rest = key.split("/")
                leaves[_ROBOMIMIC_NAMES.get(top, top), *rest] = self.frames.padding(length)
        text = words.get("lang") if isinstance(words, dict) else None
        leaves["language_instruction",] = repeat_text(text if isinstance(text, str) else b"", length)
        leaves["traj_metadata", "episode"] = repeat_text(self._demos[number], length)
        return nest_leaves(leaves)


def read_numbers(array: Any, length: int, key: str, where: str) -> np.ndarray:
    """Return the first `length` entries of an array."""
    try:
        values = array[:length]
    except Exception as error:  # whatever the decoders of the files stumble over
        raise DamagedFile(f"{where}: {key!r} cannot be read: {error}") from error
    if values.dtype.kind in "OSU":
        return np.array([_as_text(value).encode() for value in values.ravel().tolist()], object).reshape(values.shape)
    return np.asarray(values)


def _number_splits(masks: dict[str, list[str]], demos: list[str], file: ArrayFile) -> dict[str, np.ndarray]:
    numbers = {demo: number for number, demo in enumerate(demos)}
    splits: dict[str, np.ndarray] = {}
    for split, names in masks.items():
        unknown = [name for name in names if name not in numbers]
        if unknown:
            raise ValueError(
                f"{file.shown}: the filter key {split!r} names {unknown[0]!r}, but there is no such episode."
            )
        splits[split] = np.array(sorted(numbers[name] for name in names), dtype=np.int64)
    if "train" not in splits:
        splits = {"train": np.arange(len(demos)), **splits}
    return splits


def _is_frame(key: str, array: Any) -> bool:
    return key.startswith(("obs/", "next_obs/")) and is_image(key, array)


def _parse_json(text: Any) -> Any:
    """Return JSON in an attribute.

    Other texts are not an error: nothing but the frequency and the instruction is read.
    """
    try:
        return json.loads(text) if isinstance(text, (str, bytes)) else {}
    except ValueError:
        return {}


def _as_text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


_IMAGES = "observations/images/"
_FPS = 50.0
"""The rate of the recorders of ALOHA, which is not in the files."""


def open_aloha(
    name: str,
    data_dir: Any,
    storage_options: Any = None,
    *,
    reverse_jpeg_colors: bool = False,
    missing_images: Literal["raise", "pad"] = "raise",
) -> ArrayEpisodesBuilder:
    """Return the episodes of a folder of ALOHA files: data_dir/name/episode_0.hdf5, ..., or `data_dir` itself.

    Episodes come in the order of the numbers in the names of their files. Folders inside are splits; files directly in
    the folder are the split "train".

    Args:
      name: the name of the data set.
      data_dir: a path or URL.
      storage_options: the options of the store.
      reverse_jpeg_colors: for compressed images. OpenCV, which has made the JPEG rows, takes arrays for blue, green,
        red. If the recorder gave it red, green, blue, a decoded image has reversed colours. True reverses them again,
        as `cv2.imdecode` does.
      missing_images: "raise", or "pad" for padding, with a mask, if an episode lacks a camera of the first episode.
    """
    paths, splits = number_files(find_episode_files(name, data_dir, storage_options, (".hdf5", ".h5")))
    files = find_versions("hdf5", paths, redact.Options(storage_options or {}))
    return ArrayEpisodesBuilder(_Aloha(files, splits, reverse_jpeg_colors, check_choice(missing_images)), name)


@in_states("aloha_layout")
class _Aloha(EpisodeLayout):
    def __init__(self, files: list[ArrayFile], splits: dict[str, np.ndarray], reverse: bool, pad: bool):
        self.episodes = [(file, "") for file in files]
        self.splits, self.fps, self._pad, self.settings = splits, _FPS, pad, (reverse, pad)
        content = files[0].open()
        with describing_damage(files[0].shown):
            self._keys = [f"{_IMAGES}{camera}" for camera in sorted(content.get("observations/images", {}))]
        self.frames = StoredFrames(self.episodes, self._keys, reverse)

    def read(self, number: int) -> Tree:
        file, where = self.episodes[number][0], self.describe(number)
        content = file.open()
        with describing_damage(file.shown):
            arrays = list_datasets(content, content)
            is_sim = bool(content.attrs.get("sim", False))
        if "action" not in arrays:
            raise ValueError(f"{where} has no 'action'; it has {sorted(arrays)}. Is it a file of ALOHA?")
        length = len(arrays["action"])
        sizes = self._read_sizes(arrays, length)
        leaves: dict[tuple[str, ...], Any] = {}
        for key, array in arrays.items():
            if key == "compress_len" or not array.shape:
                continue
            if len(array) != length:
                raise DamagedFile(f"{where}: {key!r} has {len(array)} steps, but 'action' has {length}.")
            if key.startswith(_IMAGES):
                if key in self._keys:
                    handles = self.frames.handles(number, key, length, array, sizes.get(key))
                    leaves["observation", key.removeprefix(_IMAGES)] = handles
            else:
                place = (
                    ("observation", *key.split("/")[1:]) if key.startswith("observations/") else tuple(key.split("/"))
                )
                leaves[place] = read_numbers(array, length, key, where)
        for key in self._keys:
            if key not in arrays:
                if not self._pad:
                    raise ValueError(
                        f"{where} has no {key!r}, which the first episode has. missing_images='pad' makes it padding."
                    )
                leaves["observation", key.removeprefix(_IMAGES)] = self.frames.padding(length)
        leaves["language_instruction",] = repeat_text(b"", length)
        leaves["traj_metadata", "is_sim"] = np.full(length, is_sim)
        return nest_leaves(leaves)

    def _read_sizes(self, arrays: dict[str, Any], length: int) -> dict[str, np.ndarray]:
        """Return the sizes of compressed images in bytes, for each camera, as far as the file says them.

        The rows of `compress_len` follow the sorted names of the cameras, without cameras of depth.
        """
        cameras = [key for key in sorted(arrays) if key.startswith(_IMAGES) and arrays[key].ndim == 2]
        stored = arrays.get("compress_len")
        if stored is None or stored.shape != (len(cameras), length):
            return {}
        sizes = np.rint(stored[()]).astype(np.int64)
        return {
            key: row for key, row in zip(cameras, sizes) if (row >= 0).all() and (row <= arrays[key].shape[1]).all()
        }


_NPZ_NAMES = {"obs": "observation", "observations": "observation", "actions": "action"}
_TOP = ("action", "language_instruction", "reward", "rewards", "done", "dones", "discount", "is_first", "is_last")
_TOP += ("is_terminal", "traj_metadata")


def open_npz(
    name: str,
    data_dir: Any,
    storage_options: Any = None,
    *,
    fps: float | None = None,
    missing_images: Literal["raise", "pad"] = "raise",
) -> ArrayEpisodesBuilder:
    """Return the episodes of a folder of `.npz` files: data_dir/name/0.npz, ..., or `data_dir` itself.

    Episodes come in the order of the numbers in the names of their files. Folders inside are splits; files directly in
    the folder are the split "train". A slash in the name of an array leads into the tree ("observation/state"). Arrays
    without one are observations, except actions, instructions and the usual marks of steps. An array without axes is
    the same for all steps.

    Args:
      name: the name of the data set.
      data_dir: a path or URL.
      storage_options: the options of the store.
      fps: steps per second, for conversions.
      missing_images: "raise", or "pad" for padding, with a mask, if an episode lacks a camera of the first episode.
    """
    paths, splits = number_files(find_episode_files(name, data_dir, storage_options, (".npz",)))
    files = find_versions("npz", paths, redact.Options(storage_options or {}))
    return ArrayEpisodesBuilder(_Npz(files, splits, fps, check_choice(missing_images)), name)


@in_states("npz_layout")
class _Npz(EpisodeLayout):
    def __init__(self, files: list[ArrayFile], splits: dict[str, np.ndarray], fps: float | None, pad: bool):
        self.episodes = [(file, "") for file in files]
        self.splits, self.fps, self._pad, self.settings = splits, fps, pad, (pad,)
        first: Mapping[str, np.ndarray] = files[0].open()
        self._keys = sorted(key for key, array in first.items() if is_image(key, array))
        self.frames = StoredFrames(self.episodes, self._keys)

    def read(self, number: int) -> Tree:
        file, where = self.episodes[number][0], self.describe(number)
        arrays: Mapping[str, np.ndarray] = file.open()
        lengths = {key: len(array) for key, array in arrays.items() if array.ndim}
        if not lengths:
            raise ValueError(f"{where} has no arrays with an axis of steps; it has {sorted(arrays)}.")
        main = next((key for key in arrays if _split_key(key) == ("action",) and key in lengths), next(iter(lengths)))
        length = lengths[main]
        leaves: dict[tuple[str, ...], Any] = {}
        for key, array in arrays.items():
            if array.ndim == 0:
                repeated = np.repeat(array[None], length)
                leaves[_split_key(key)] = read_numbers(repeated, length, key, where)
            elif len(array) != length:
                raise DamagedFile(f"{where}: {key!r} has {len(array)} steps, but {main!r} has {length}.")
            elif key in self._keys:
                leaves[_split_key(key)] = self.frames.handles(number, key, length, array)
            elif not is_image(key, array):
                leaves[_split_key(key)] = read_numbers(array, length, key, where)
        for key in self._keys:
            if key not in arrays:
                if not self._pad:
                    raise ValueError(
                        f"{where} has no {key!r}, which the first episode has. missing_images='pad' makes it padding."
                    )
                leaves[_split_key(key)] = self.frames.padding(length)
        leaves.setdefault(("language_instruction",), repeat_text(b"", length))
        return nest_leaves(leaves)


def _split_key(key: str) -> tuple[str, ...]:
    """Return where an array belongs in the tree of a trajectory."""
    top, *rest = key.split("/")
    top = _NPZ_NAMES.get(top, top)
    return (top, *rest) if rest or top in _TOP else ("observation", top)
