"""`StoredFrames`: the images of episodes whose files hold them as arrays, read frame by frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.sources.optional_packages import import_package
from bushel._src.trajectory.array_episodes.array_files import ArrayFile
from bushel._src.trajectory.encoded_images import Encoded, ImageParts
from bushel._src.trajectory.numpy_or_jax import to_objects
from bushel._src.trajectory.stored_pixels import make_header, pack_pixels

_JPEG = b"\xff\xd8\xff"

Episode = tuple[ArrayFile, str]
"""The file of an episode, and what comes before the names of its arrays in it."""


@in_states(
    "stored_frames",
    {"_episodes": "stored_frames.episodes", "_keys": "stored_frames.keys", "_reverse": "stored_frames.reverse"},
)
class StoredFrames(ImageParts):
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
        """Handles of the images of an episode, one for each step.

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
        """Handles of images that an episode does not have."""
        return to_objects([Encoded(self, 0, 0, 0)] * length)

    def read(
        self, records: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """The images, in the given order. Neighbouring frames of an array are read together."""
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
        """Entries of an array. `frames` rise."""
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

    def select_file(self, record: int) -> tuple[ImageParts, int]:
        """The reader of the images of only one episode, and the number of the array for it."""
        episode, key = divmod(record, len(self._keys))
        if len(self._episodes) == 1:
            return self, record
        return StoredFrames([self._episodes[episode]], self._keys, self._reverse), key

    def describe(self, record: int, start: int) -> str:
        """The file, the array in it, and the frame."""
        episode, key = divmod(record, len(self._keys))
        file, prefix = self._episodes[episode]
        return f"{file.shown}, frame {start} of {prefix + self._keys[key]!r}"

    def __repr__(self) -> str:
        return f"StoredFrames({', '.join(self._keys)} of {len(self._episodes)} episodes)"


def _count_bytes(array: Any) -> int:
    """The size of one entry of an array of pixels with its header."""
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize + len(make_header("|u1", (1,)))


def _reverse_colors(image: bytes) -> bytes:
    """A JPEG image as pixels with reversed channels, with the decoder's settings of OpenCV. Others stay as they are."""
    if not image.startswith(_JPEG):
        return image
    simplejpeg: Any = import_package("simplejpeg", "robots", "JPEG images")
    try:
        return pack_pixels(simplejpeg.decode_jpeg(image, colorspace="BGR", fastdct=False, fastupsample=False))
    except ValueError as error:
        raise ValueError(f"These {len(image)} bytes are not a complete JPEG image: {error}") from error
