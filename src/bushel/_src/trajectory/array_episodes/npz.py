"""Folders of `.npz` files: one file per episode, one array per entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.array_episodes.array_files import ArrayFile, find_versions
from bushel._src.trajectory.array_episodes.builder import ArrayEpisodesBuilder, Layout, Tree, is_image, repeat_text
from bushel._src.trajectory.array_episodes.finding import find_episode_files, number_files
from bushel._src.trajectory.array_episodes.robomimic import check_choice, read_numbers
from bushel._src.trajectory.array_episodes.stored_frames import StoredFrames
from bushel._src.trajectory.data_utils import nest_leaves

_NAMES = {"obs": "observation", "observations": "observation", "actions": "action"}
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
    """The episodes of a folder of `.npz` files: data_dir/name/0.npz, ..., or `data_dir` itself.

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
class _Npz(Layout):
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
        main = next((key for key in arrays if _place(key) == ("action",) and key in lengths), next(iter(lengths)))
        length = lengths[main]
        leaves: dict[tuple[str, ...], Any] = {}
        for key, array in arrays.items():
            if array.ndim == 0:
                repeated = np.repeat(array[None], length)
                leaves[_place(key)] = read_numbers(repeated, length, key, where)
            elif len(array) != length:
                raise DamagedFile(f"{where}: {key!r} has {len(array)} steps, but {main!r} has {length}.")
            elif key in self._keys:
                leaves[_place(key)] = self.frames.handles(number, key, length, array)
            elif not is_image(key, array):
                leaves[_place(key)] = read_numbers(array, length, key, where)
        for key in self._keys:
            if key not in arrays:
                if not self._pad:
                    raise ValueError(
                        f"{where} has no {key!r}, which the first episode has. missing_images='pad' makes it padding."
                    )
                leaves[_place(key)] = self.frames.padding(length)
        leaves.setdefault(("language_instruction",), repeat_text(b"", length))
        return nest_leaves(leaves)


def _place(key: str) -> tuple[str, ...]:
    """Where an array belongs in the tree of a trajectory."""
    top, *rest = key.split("/")
    top = _NAMES.get(top, top)
    return (top, *rest) if rest or top in _TOP else ("observation", top)
