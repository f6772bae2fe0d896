"""`LeRobotImages`: the pictures of a LeRobot data set by their addresses, in videos and in rows of Parquet files.

The records are numbered: first the video files, then the features that are images in rows, then the faults. The start
of an address is the number of a frame in its video, or of a row among the rows of all files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checked_files, redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.index import epochs
from bushel._src.sources.parquet import ParquetDataSource
from bushel._src.sources.paths import Options
from bushel._src.trajectory.encoded_images import ImageFiles
from bushel._src.trajectory.lerobot.dataset_folder import DepthCode
from bushel._src.trajectory.pixels import pack_pixels
from bushel._src.trajectory.video_files import VideoFiles
from bushel._src.trajectory.video_packets import PacketTables

_KEPT_BYTES = 256 << 20


@in_states("lerobot_catalog")
@dataclasses.dataclass(frozen=True)
class Catalog:
    """What pictures a data set has, as plain data. Names of files are relative to the folder of the data set.

    Attributes:
      videos: the video files.
      sizes: their sizes in bytes.
      data_files: the Parquet files with rows, in order.
      images: the features that are images in rows.
      faults: sentences about pictures that cannot be read, each with the shape that the picture should have.
      depths: the fields of the `DepthCode` of each video with depth.
    """

    videos: list[str]
    sizes: list[int]
    data_files: list[str]
    images: list[str]
    faults: list[tuple[str, tuple[int, int, int]]]
    depths: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)


@in_states(
    "lerobot_images",
    {
        "_folder": "lerobot_images.folder",
        "_catalog": "lerobot_images.catalog",
        "_options": "lerobot_images.options",
        "_videos": "lerobot_images.videos",
        "_codes": "lerobot_images.codes",
        "_rows": None,
        "_lock": None,
    },
)
class LeRobotImages(ImageFiles):
    """Reads frames of videos and images in rows. An address is (record, start, size).

    `read` returns frames of videos as packed pixels (`pixels.py`); `read_into` decodes them into arrays. The
    size of an image in a row is not known before it is read: it is 1.

    The address of a fault raises DamagedFile when it is read, so that the other episodes can be used.
    """

    def __init__(self, folder: str, catalog: Catalog, tables: PacketTables, options: Options | None = None):
        self._folder, self._catalog, self._options = folder, catalog, redact.Options(options or {})
        self._videos = VideoFiles([f"{folder}/{name}" for name in catalog.videos], tables, catalog.sizes, options)
        self._codes = {catalog.videos.index(name): DepthCode(*facts) for name, facts in catalog.depths.items()}
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[int, ParquetDataSource] = {}
        self._lock = threading.Lock()

    def image_record(self, name: str) -> int:
        """Return the number of the record that stands for a feature with images in rows."""
        return len(self._catalog.videos) + self._catalog.images.index(name)

    def fault_record(self, number: int) -> int:
        """Return the number of the record that stands for a fault."""
        return len(self._catalog.videos) + len(self._catalog.images) + number

    def pixel_shape(self, record: int) -> tuple[int, int, int] | None:
        """Return the shape of the frames of a video, with one channel if it has depth; None for images in rows."""
        if record < len(self._catalog.videos):
            height, width, channels = self._videos.shape(record)
            return height, width, 1 if record in self._codes else channels
        fault = record - self.fault_record(0)
        return None if fault < 0 else self._catalog.faults[fault][1]

    def read(
        self, records: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, sizes: Sequence[int] | np.ndarray
    ) -> list[bytes]:
        """Return pictures in the given order: packed pixels of frames, images in rows as they are stored."""
        out: list[Any] = [b""] * len(records)
        frames: list[int] = []
        rows: dict[int, list[int]] = {}
        for place, (record, size) in enumerate(zip(records, sizes)):
            if size and self.pixel_shape(int(record)) is None:
                rows.setdefault(int(record), []).append(place)
            elif size:
                frames.append(place)
        shapes = [self.pixel_shape(int(records[place])) or () for place in frames]
        pixels = [np.empty(shape, pixel_dtype(shape)) for shape in shapes]
        self.read_into([records[place] for place in frames], [starts[place] for place in frames], pixels)
        for place, image in zip(frames, pixels):
            out[place] = pack_pixels(image)
        for record, places in rows.items():
            for place, data in zip(places, self._read_rows(record, [int(starts[place]) for place in places])):
                out[place] = data
        return out

    def read_into(
        self, records: Sequence[int] | np.ndarray, starts: Sequence[int] | np.ndarray, out: Sequence[np.ndarray]
    ) -> None:
        """Decode frames of videos into arrays, all in one plan: colours as uint8, depth in millimetres as uint16."""
        first = self.fault_record(0)
        for record in records:
            if record >= first:
                raise DamagedFile(self._catalog.faults[int(record) - first][0])
        self._videos.read_into(records, starts, out)
        for record, pixels in zip(records, out) if self._codes else ():
            if (code := self._codes.get(int(record))) is not None:
                pixels[...] = code.millimetres[pixels]

    def _open_rows(self, number: int) -> ParquetDataSource:
        """Return the rows of all files, with the images of one feature."""
        with self._lock:
            if number not in self._rows:
                paths = [f"{self._folder}/{file}" for file in self._catalog.data_files]
                self._rows[number] = ParquetDataSource(
                    paths,
                    columns=[self._catalog.images[number]],
                    cache_bytes=_KEPT_BYTES,
                    storage_options=self._options,
                )
            return self._rows[number]

    def _read_rows(self, record: int, rows: list[int]) -> list[bytes]:
        number = record - len(self._catalog.videos)
        name, source = self._catalog.images[number], self._open_rows(number)
        distinct, back = epochs.find_distinct(np.array(rows, np.int64))
        found: Any = source.__getitems__(distinct)
        contents = [self._get_content(found[place][name], record, row) for place, row in enumerate(distinct.tolist())]
        return [contents[place] for place in back.tolist()]

    def _get_content(self, value: Any, record: int, row: int) -> bytes:
        content = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(content, bytes) or not content:
            raise DamagedFile(f"{self.describe(record, row)}: there is no image, but {type(value).__name__}.")
        return content

    def select_file(self, record: int) -> tuple[ImageFiles, int]:
        """This reader itself: what is pickled of it is small, since its tables are mapped."""
        return self, record

    def for_other_machines(self) -> LeRobotImages:
        """Return a reader that is pickled with its tables, which are otherwise mapped from the cache of this
        machine.
        """
        tables = dataclasses.replace(self._videos.tables, folder=None)
        return LeRobotImages(self._folder, self._catalog, tables, self._options)

    def describe(self, record: int, start: int) -> str:
        """Return the video and the frame in it; or the Parquet file, the row in it, and the feature."""
        if record < len(self._catalog.videos):
            return f"{redact.show(f'{self._folder}/{self._catalog.videos[record]}')}, frame {start}"
        number = record - len(self._catalog.videos)
        if number >= len(self._catalog.images):
            return self._catalog.faults[number - len(self._catalog.images)][0]
        file, row = self._open_rows(number).locate(start)
        name = redact.show(f"{self._folder}/{self._catalog.data_files[file]}")
        return f"{name}, row {row} of {self._catalog.images[number]!r}"

    # Files.

    def save(self, folder: str) -> LeRobotImages:
        """Write the catalog and the packet tables into a folder, completely or not at all."""
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        temporary = tempfile.mkdtemp(dir=os.path.dirname(folder), prefix="writing-")
        try:
            self._videos.tables.save(temporary)
            checked_files.write_json(os.path.join(temporary, "catalog.json"), dataclasses.asdict(self._catalog))
            shutil.rmtree(folder, ignore_errors=True)  # a damaged one
            with contextlib.suppress(OSError):  # another process has written the same tables meanwhile
                os.rename(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return LeRobotImages.load(folder, self._folder, self._options)

    @staticmethod
    def load(folder: str, data: str, options: Options | None, *, verify: bool = True) -> LeRobotImages:
        """Return what `save` has written to `folder`, for the data set in the folder `data`."""
        content = checked_files.read_json(os.path.join(folder, "catalog.json"))
        faults = [(text, tuple(shape)) for text, shape in content["faults"]]
        catalog = Catalog(**{field.name: content[field.name] for field in dataclasses.fields(Catalog)})
        catalog = dataclasses.replace(catalog, faults=faults)
        return LeRobotImages(data, catalog, PacketTables.load(folder, verify=verify), options)

    def __reduce__(self) -> Any:
        folder = self._videos.tables.folder
        if folder is not None:
            return _load_unchecked, (folder, self._folder, self._options)
        return LeRobotImages, (self._folder, self._catalog, self._videos.tables, self._options)

    def __repr__(self) -> str:
        return f"LeRobotImages({redact.show(self._folder)}: {len(self._catalog.videos)} videos)"


def pixel_dtype(shape: tuple[int, ...]) -> type[np.uint8] | type[np.uint16]:
    """Return the dtype of frames of a shape: depth has one channel."""
    return np.uint16 if shape[-1:] == (1,) else np.uint8


def _load_unchecked(folder: str, data: str, options: Options) -> LeRobotImages:
    """Return the reader in a worker process. The process that built the pipeline has verified the checksums."""
    return LeRobotImages.load(folder, data, options, verify=False)
