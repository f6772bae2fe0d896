"""HDF5 files in the layout of robomimic: one group per episode, and lists of episodes as splits."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.sources.hdf5_links import check_inside
from bushel._src.trajectory.array_episodes.array_files import ArrayFile, describing_damage, find_versions, list_datasets
from bushel._src.trajectory.array_episodes.builder import ArrayEpisodesBuilder, Layout, Tree, is_image, repeat_text
from bushel._src.trajectory.array_episodes.finding import find_file, sort_by_number
from bushel._src.trajectory.array_episodes.stored_frames import StoredFrames
from bushel._src.trajectory.data_utils import nest_leaves

_NAMES = {"obs": "observation", "next_obs": "next_observation", "actions": "action"}


def open_robomimic(
    name: str, data_dir: Any, storage_options: Any = None, *, missing_images: Literal["raise", "pad"] = "raise"
) -> ArrayEpisodesBuilder:
    """The episodes of a robomimic file: data_dir/name, data_dir/name.hdf5, or `data_dir` itself.

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
    """Whether missing images are padded."""
    return checks.choice(missing_images, ("raise", "pad"), "missing_images") == "pad"


@in_states("robomimic_layout")
class _Robomimic(Layout):
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
            place = (_NAMES.get(top, top), *rest)
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
                leaves[_NAMES.get(top, top), *rest] = self.frames.padding(length)
        text = words.get("lang") if isinstance(words, dict) else None
        leaves["language_instruction",] = repeat_text(text if isinstance(text, str) else b"", length)
        leaves["traj_metadata", "episode"] = repeat_text(self._demos[number], length)
        return nest_leaves(leaves)


def read_numbers(array: Any, length: int, key: str, where: str) -> np.ndarray:
    """The first `length` entries of an array."""
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
    """JSON in an attribute. Other texts are not an error: nothing but the frequency and the instruction is read."""
    try:
        return json.loads(text) if isinstance(text, (str, bytes)) else {}
    except ValueError:
        return {}


def _as_text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
