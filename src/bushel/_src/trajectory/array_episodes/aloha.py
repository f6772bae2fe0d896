"""HDF5 files in the layout of ALOHA and ACT: one file per episode, with images as pixels or as padded JPEG rows."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.trajectory.array_episodes.array_files import ArrayFile, describing_damage, find_versions, list_datasets
from bushel._src.trajectory.array_episodes.builder import ArrayEpisodesBuilder, Layout, Tree, repeat_text
from bushel._src.trajectory.array_episodes.finding import find_episode_files, number_files
from bushel._src.trajectory.array_episodes.robomimic import check_choice, read_numbers
from bushel._src.trajectory.array_episodes.stored_frames import StoredFrames
from bushel._src.trajectory.data_utils import nest_leaves

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
    """The episodes of a folder of ALOHA files: data_dir/name/episode_0.hdf5, ..., or `data_dir` itself.

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
class _Aloha(Layout):
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
        """The sizes of compressed images in bytes, for each camera, as far as the file says them.

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
