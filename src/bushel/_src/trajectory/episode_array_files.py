"""Arrays of episodes in HDF5 and `.npz` files: where the files lie, and how arrays and single frames are read.

Each process keeps the files open that it has read last. What the arrays mean is said in `array_episodes.py`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, OtherFile
from bushel._src.base.late_imports import import_package
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access, local_files, paths
from bushel._src.sources.array_files import load_arrays
from bushel._src.sources.folders import join_path
from bushel._src.sources.hdf5 import check_chunks, check_inside
from bushel._src.trajectory.data_utils import to_objects
from bushel._src.trajectory.encoded_images import Encoded, ImageFiles
from bushel._src.trajectory.pixels import make_header, pack_pixels

_OPEN_FILES = 64
_KEPT_BYTES = 256 << 20

Kind = Literal["hdf5", "npz"]


@in_states("array_file")
@dataclasses.dataclass(frozen=True, eq=False)
class ArrayFile:
    """The address of a file with named arrays. It is opened when an array of it is read.

    Args:
      kind: the format.
      path: a path or URL.
      version: name, size and time, or the tag of the store. A file with another version is refused.
      options: the options of the store.
    """

    kind: Kind
    path: str
    version: Any = None
    options: redact.Options = dataclasses.field(default_factory=redact.Options)

    @property
    def shown(self) -> str:
        """What messages call the file."""
        return redact.show(self.path)

    def open(self) -> Any:
        """Return the open file: names lead to arrays, in an HDF5 file also to groups."""
        return _pool().open(self).content

    def array(self, name: str) -> Any:
        """Return an array of the file, which is read by slices. A name that is not there raises KeyError."""
        return _pool().open(self).array(name)


def list_datasets(group: Any, file: Any) -> dict[str, Any]:
    """Return all datasets of a group of an open HDF5 file, by their paths in it.

    One that lies in another file is an error.
    """
    found: dict[str, Any] = {}
    group.visititems(lambda name, item: found.__setitem__(name, item) if hasattr(item, "shape") else None)
    for name, item in found.items():
        check_inside(item, name, file)
    return found


def find_versions(kind: Kind, paths: list[str], options: redact.Options) -> list[ArrayFile]:
    """Return the files with the versions that they have now."""
    return [ArrayFile(kind, path, file_access.fingerprint_files([path], options)[0], options) for path in paths]


class _OpenArrayFile:
    """An open file, with those of its arrays that were read before."""

    def __init__(self, file: ArrayFile):
        self._is_hdf5 = file.kind == "hdf5"
        self._is_local_hdf5 = self._is_hdf5 and not paths.is_url(file.path)
        self._shown = file.shown
        self.content: Any = (
            _open_hdf5(file) if file.kind == "hdf5" else load_arrays(file.path, storage_options=file.options)
        )
        self._arrays: dict[str, Any] = {}

    def array(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            array = self.content[name]
            if not hasattr(array, "shape"):
                raise KeyError(f"{name!r} is a group")
            if self._is_hdf5:
                check_inside(array, name, self.content)
            if self._is_local_hdf5:
                with describing_damage(self._shown):
                    check_chunks(array, name)
            self._arrays[name] = array
        return array

    @property
    def memory_bytes(self) -> int:
        """The bytes of arrays that are in memory: those of a compressed `.npz` file."""
        if not isinstance(self.content, dict):
            return 0
        return sum(array.nbytes for array in self.content.values() if not isinstance(array, np.memmap))


def _open_hdf5(file: ArrayFile) -> Any:
    h5py = import_package("h5py", "hdf5", "HDF5 files")
    content = file_access.open_file(file.path, file.options)
    place = local_files.as_stream(content) if paths.is_url(file.path) else file.path
    with describing_damage(file.shown):
        return h5py.File(place, "r")


@contextlib.contextmanager
def describing_damage(shown: str, kind: str = "HDF5") -> Iterator[None]:
    """Turn whatever error a damaged file leads to into a `DamagedFile` that names the file."""
    try:
        yield
    except (ImportError, DamagedFile):
        raise
    except OtherFile as error:
        raise OtherFile(f"{shown}: {error}") from None
    except Exception as error:
        raise DamagedFile(f"{shown} is not a complete {kind} file: {error}") from error


class _ArrayFilePool:
    """The open files of this process, at most 64 of them, and at most 256 MiB of arrays that are not mapped.

    A file is closed when the last `ArrayFile` that has opened it is gone: HDF5 refuses to write to a file that the same
    process has open, and a user may want to make a data set again.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, _OpenArrayFile] = collections.OrderedDict()
        self._users: dict[str, set[int]] = {}
        self._released: collections.deque[tuple[str, int]] = collections.deque()
        """Users that are gone, and have not been taken out of `_users`."""

    def open(self, file: ArrayFile) -> _OpenArrayFile:
        key = json.dumps([file.kind, file.path, file.version, dict(file.options)], default=str)
        try:
            with self._lock:
                self._forget_released()  # this file may have got the id of one that is gone
                users = self._users.setdefault(key, set())
                if id(file) not in users:
                    users.add(id(file))
                    weakref.finalize(file, self._release, key, id(file)).atexit = False
                opened = self._open.pop(key, None)
                if opened is None:
                    _check_version(file)
                    opened = _OpenArrayFile(file)
                self._open[key] = opened
                while len(self._open) > 1 and (len(self._open) > _OPEN_FILES or self._memory_bytes() > _KEPT_BYTES):
                    self._open.popitem(last=False)  # it is closed when nobody reads it any more
                return opened
        finally:
            self._close_released()

    def _release(self, key: str, user: int) -> None:
        """Called when an `ArrayFile` is gone: at any time, also in a thread that is in the middle of `open`."""
        self._released.append((key, user))
        self._close_released()

    def _close_released(self) -> None:
        # If another call holds the lock, that call does this as soon as it has released the lock.
        while self._released and self._lock.acquire(blocking=False):
            try:
                self._forget_released()
            finally:
                self._lock.release()

    def _forget_released(self) -> None:
        while self._released:
            key, user = self._released.popleft()
            users = self._users.get(key, set())
            users.discard(user)
            if not users:
                self._users.pop(key, None)
                self._open.pop(key, None)

    def _memory_bytes(self) -> int:
        return sum(opened.memory_bytes for opened in self._open.values())


def _check_version(file: ArrayFile) -> None:
    if file.version is None:
        return
    now = file_access.fingerprint_files([file.path], file.options)[0]
    if now != file.version:
        raise local_files.changed_error(file.path, file.version, now)


_shared = _ArrayFilePool()


def _pool() -> _ArrayFilePool:
    global _shared
    if _shared.process != os.getpid():
        _shared = _ArrayFilePool()
    return _shared


def sort_by_number(names: Iterable[str]) -> list[str]:
    """Return names in the order of the numbers in them: "demo_2" comes before "demo_10".

    >>> sort_by_number(["demo_10", "demo_2"])
    ['demo_2', 'demo_10']
    """
    return sorted(names, key=lambda name: [int(p) if k % 2 else p for k, p in enumerate(re.split(r"(\d+)", name))])


def find_file(name: str, data_dir: Any, options: Any, endings: Sequence[str]) -> str:
    """Return the file of a data set: data_dir/name with or without an ending, or `data_dir` if that is a file."""
    above = paths.expand_path(data_dir)
    if redact.remove_query(above).endswith(tuple(endings)):
        candidates = [above]
    elif name.endswith(tuple(endings)):
        candidates = [join_path(above, name)]
    else:
        candidates = [join_path(above, name + ending) for ending in endings]
    for path in candidates:
        if _exists(path, options):
            return path
    raise FileNotFoundError(
        f"There is no data set {name!r}: there is no file {' or '.join(map(redact.show, candidates))}."
    )


def _exists(path: str, options: Any) -> bool:
    try:
        file_access.open_file(path, options)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


def find_episode_files(name: str, data_dir: Any, options: Any, endings: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of a data set with one file per episode, for each split, in the order of the numbers in their
    names.

    They lie in data_dir/name, or in `data_dir` itself: all in one folder, which is then the split "train", or in one
    folder for each split. `data_dir` may also be a single file.
    """
    above = paths.expand_path(data_dir).rstrip("/")
    if redact.remove_query(above).endswith(tuple(endings)) and _exists(above, options):
        return {"train": [above]}
    for folder in (join_path(above, name), above):
        files = _list_files(folder, options, endings)
        if files:
            return {"train": files}
        below = {
            path.rpartition("/")[2]: _list_files(path, options, endings)
            for path in _list_folders(folder, options, endings)
        }
        splits = {split: found for split, found in below.items() if found}
        if splits:
            return splits
    raise FileNotFoundError(
        f"There is no data set {name!r}: neither {redact.show(join_path(above, name))} nor {redact.show(above)} has "
        f"files that end in {' or '.join(endings)}, or folders with such files."
    )


def _list_files(folder: str, options: Any, endings: Sequence[str]) -> list[str]:
    found: list[str] = []
    for ending in endings:
        if paths.is_url(folder):
            try:
                found += file_access.find_files(f"{folder}/*{ending}", options)
            except FileNotFoundError:
                continue
        elif os.path.isdir(folder):
            found += [entry.path for entry in os.scandir(folder) if entry.name.endswith(ending) and entry.is_file()]
    return sort_by_number(found)


def _list_folders(folder: str, options: Any, endings: Sequence[str]) -> list[str]:
    if not paths.is_url(folder):
        return sorted(entry.path for entry in os.scandir(folder) if entry.is_dir()) if os.path.isdir(folder) else []
    below: set[str] = set()
    for ending in endings:
        try:
            below |= {path.rpartition("/")[0] for path in file_access.find_files(f"{folder}/*/*{ending}", options)}
        except FileNotFoundError:
            continue
    return sorted(below)


def number_files(splits: dict[str, list[str]]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return all files of all splits, and the numbers of those of each split."""
    paths = [path for files in splits.values() for path in files]
    ends = np.cumsum([len(files) for files in splits.values()]).tolist()
    ranges = zip(splits, [0, *ends], ends)
    return paths, {split: np.arange(low, high) for split, low, high in ranges}


_JPEG = b"\xff\xd8\xff"

Episode = tuple[ArrayFile, str]
"""The file of an episode, and what comes before the names of its arrays in it."""


@in_states(
    "stored_frames",
    {"_episodes": "stored_frames.episodes", "_keys": "stored_frames.keys", "_reverse": "stored_frames.reverse"},
)
class StoredFrames(ImageFiles):
    """Images in arrays with one entry per step: pixels, or encoded images as rows of bytes, padded with zeros.

    The place of an image is (array, frame, size). The number of an array is the number of the episode times the number
    of keys, plus the number of the key.

    Args:
      episodes: the file of each episode, and what comes before the keys.
      keys: the names of the arrays of images, the same for all episodes.
      reverse_jpeg_colors: JPEG images are decoded and their channels reversed, as `cv2.imdecode` returns them.
    """

    def __init__(self, episodes: Sequence[Episode], keys: Sequence[str], reverse_jpeg_colors: bool = False):
        self._episodes, self._keys, self._reverse = tuple(episodes), tuple(keys), reverse_jpeg_colors

    def handles(self, episode: int, key: str, length: int, array: Any, sizes: np.ndarray | None = None) -> np.ndarray:
        """Handle of the images of an episode, one for each step.

        Args:
          episode: the number of the episode.
          key: the name of the array of images.
          length: the number of steps.
          array: the array itself.
          sizes: the sizes of encoded images in bytes; by default all of them fill their rows.
        """
        record = episode * len(self._keys) + self._keys.index(key)
        if array.ndim == 2:
            stored = np.full(length, array.shape[1]) if sizes is None else sizes[:length]
        else:
            stored = np.full(length, _count_bytes(array))
        return to_objects([Encoded(self, record, step, int(size)) for step, size in enumerate(stored.tolist())])

    def padding(self, length: int) -> np.ndarray:
        """Handle of images that an episode does not have."""
        return to_objects([Encoded(self, 0, 0, 0)] * length)

    def read(
        self, records: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """Return the images, in the given order. Neighbouring frames of an array are read together."""
        arrays, frames = np.asarray(records, np.int64), np.asarray(starts, np.int64)
        images: list[bytes] = [b""] * len(arrays)
        order = np.lexsort((frames, arrays))
        for rows in np.split(order, np.flatnonzero(np.diff(arrays[order])) + 1) if len(order) else ():
            record = int(arrays[rows[0]])
            content = self._read_frames(record, frames[rows])
            for row, image in zip(rows.tolist(), self._encode(content, np.asarray(sizes)[rows])):
                images[row] = image
        return images

    def _read_frames(self, record: int, frames: np.ndarray) -> np.ndarray:
        """Return entries of an array. `frames` rise."""
        episode, key = divmod(record, len(self._keys))
        file, prefix = self._episodes[episode]
        name = prefix + self._keys[key]
        try:
            array = file.array(name)
            low, high = int(frames[0]), int(frames[-1]) + 1
            if high - low <= 2 * len(frames):  # one read of a stretch is cheaper than many reads of single frames
                stretch = array[low:high]
                # Each frame is there once. A view of a mapped file is copied, which is faster than page by page later.
                is_whole = len(stretch) == len(frames) and stretch.base is None
                return stretch if is_whole else stretch[frames - low]
            return np.stack([array[frame] for frame in frames.tolist()])
        except (DamagedFile, ImportError, FileNotFoundError):
            raise
        except Exception as error:  # whatever the decoders of the files stumble over
            raise DamagedFile(f"{file.shown}: frames of {name!r} cannot be read: {error}") from error

    def _encode(self, content: np.ndarray, sizes: np.ndarray) -> list[bytes]:
        if content.ndim != 2:
            header = make_header(content.dtype.str, content.shape[1:])
            return [header + frame.tobytes() for frame in content]
        # Images that fill their rows may be padded; none of the usual formats ends in a zero.
        images = [row[:size].tobytes().rstrip(b"\0") for row, size in zip(content, sizes.tolist())]
        return [_reverse_colors(image) for image in images] if self._reverse else images

    def select_file(self, record: int) -> tuple[ImageFiles, int]:
        """Return the reader of the images of only one episode, and the number of the array for it."""
        episode, key = divmod(record, len(self._keys))
        if len(self._episodes) == 1:
            return self, record
        return StoredFrames([self._episodes[episode]], self._keys, self._reverse), key

    def describe(self, record: int, start: int) -> str:
        """Return the file, the array in it, and the frame."""
        episode, key = divmod(record, len(self._keys))
        file, prefix = self._episodes[episode]
        return f"{file.shown}, frame {start} of {prefix + self._keys[key]!r}"

    def __repr__(self) -> str:
        return f"StoredFrames({', '.join(self._keys)} of {len(self._episodes)} episodes)"


def _count_bytes(array: Any) -> int:
    """Return the size of one entry of an array of pixels with its header."""
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize + len(make_header("|u1", (1,)))


def _reverse_colors(image: bytes) -> bytes:
    """Return a JPEG image as pixels with reversed channels, with the decoder's settings of OpenCV.

    Others stay as they are.
    """
    if not image.startswith(_JPEG):
        return image
    simplejpeg: Any = import_package("simplejpeg", "robots", "JPEG images")
    try:
        return pack_pixels(simplejpeg.decode_jpeg(image, colorspace="BGR", fastdct=False, fastupsample=False))
    except ValueError as error:
        raise ValueError(f"These {len(image)} bytes are not a complete JPEG image: {error}") from error
