"""`VideoFiles`: frames of many video files by (number of the file, number of the frame), each decoded once per call."""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options
from bushel._src.trajectory.video.decoding import decode_frames
from bushel._src.trajectory.video.packet_table import PacketTables

_KEPT_FILES = 512


@in_states("video_files", {"_options": "video_files.options", "_files": None, "_lock": None})
class VideoFiles:
    """Video files whose packets are known. Any thread may read.

    A pickled object opens its files in the process that unpickles it. A file that has another size than when its packet
    table was made is refused.

    Args:
      paths: paths or URLs.
      tables: the packet table of each file.
      sizes: the size of each file in bytes when its table was made.
      options: options of the store of URLs.
    """

    def __init__(
        self, paths: Sequence[str], tables: PacketTables, sizes: Sequence[int], options: Options | None = None
    ):
        self.paths, self.tables, self.sizes = list(paths), tables, list(sizes)
        self._options = redact.Options(options or {})
        self._open()

    def _open(self) -> None:
        self._files: collections.OrderedDict[int, File] = collections.OrderedDict()
        self._lock = threading.Lock()

    def shape(self, number: int) -> tuple[int, int, int]:
        """The shape of the frames of a file: (height, width, 3)."""
        stream = self.tables.streams[int(self.tables.files[number, 0])]
        return stream.height, stream.width, 3

    def file(self, number: int) -> File:
        """An open file. The last 512 are kept; of local files the store keeps at most 256 descriptors."""
        with self._lock:
            file = self._files.get(number)
            if file is not None:
                self._files.move_to_end(number)
                return file
        file = file_access.open_file(self.paths[number], self._options)
        if file.size != self.sizes[number]:
            raise DamagedFile(
                f"{file.name} has {file.size} bytes, and had {self.sizes[number]} when its frames were indexed. Remove "
                "the cached table of the data set, or choose another cache_dir."
            )
        with self._lock:
            self._files[number] = file
            while len(self._files) > _KEPT_FILES:
                self._files.popitem(last=False)
        return file

    def read_into(
        self, files: Sequence[int] | np.ndarray, frames: Sequence[int] | np.ndarray, out: Sequence[np.ndarray]
    ) -> None:
        """Decodes frames into arrays: frame `frames[i]` of file `files[i]` into `out[i]`.

        An array of uint8 (height, width, 3) gets colours. An array of uint16 (height, width, 1) gets grey of 12 bits.

        All frames are sorted by file and time first. Frames of one group of pictures are decoded in one pass, and a
        frame that is asked for several times is decoded once.
        """
        numbers, times = np.asarray(files, np.int64), np.asarray(frames, np.int64)
        order = np.lexsort((times, numbers))
        numbers, times = numbers[order], times[order]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (numbers[1:] != numbers[:-1]) | (times[1:] != times[:-1])
        firsts = np.flatnonzero(new)
        lasts = [*firsts[1:].tolist(), len(order)]
        places = order.tolist()
        for low, high in _split(numbers[firsts]):
            number = int(numbers[firsts[low]])

            def put(position: int, frame: Any, low: int = low) -> None:
                begin, end = int(firsts[low + position]), lasts[low + position]
                target = out[places[begin]]
                _copy_pixels(frame, target)
                for place in places[begin + 1 : end]:
                    out[place][...] = target

            table = self.tables[number]
            wanted = times[firsts[low:high]]
            if wanted[0] < 0 or wanted[-1] >= len(table):
                raise IndexError(f"{self.file(number).name} has {len(table)} frames; frame {wanted[-1]} was asked for.")
            is_grey = out[places[int(firsts[low])]].dtype == np.uint16
            decode_frames(self.file(number), table, wanted, put, "gray12le" if is_grey else "rgb24")

    def read(self, files: Sequence[int] | np.ndarray, frames: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Frames as new arrays, uint8 (height, width, 3), in the given order."""
        out = [np.empty(self.shape(int(number)), np.uint8) for number in files]
        self.read_into(files, frames, out)
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_files", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __repr__(self) -> str:
        return f"VideoFiles({len(self.paths)} files)"


def _split(values: np.ndarray) -> list[tuple[int, int]]:
    """The runs of equal values: pairs (first, last + 1)."""
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(itertools.pairwise(cuts)) if len(values) else []


def _copy_pixels(frame: Any, out: np.ndarray) -> None:
    """Copies the pixels of a frame whose channels lie together. Its rows may be padded."""
    if (frame.height, frame.width) != out.shape[:2]:
        raise DamagedFile(f"A frame has {frame.height} x {frame.width} pixels, but its file says {out.shape[:2]}.")
    plane = frame.planes[0]
    rows = np.frombuffer(plane, out.dtype).reshape(-1, plane.line_size // out.itemsize)
    out.reshape(out.shape[0], -1)[...] = rows[: out.shape[0], : out.shape[1] * out.shape[2]]
