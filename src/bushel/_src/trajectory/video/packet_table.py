"""Where the packets of video files lie, and from which packet on each frame is decoded: `PacketTables`.

A table is made once for each file, without decoding. The tables of many files are a few long arrays, in memory or
mapped from a folder, so that worker processes share them.
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import sealed
from bushel._src.base.errors import DamagedFile
from bushel._src.base.state_names import in_states
from bushel._src.sources import local_files
from bushel._src.sources.local_files import File
from bushel._src.sources.optional_packages import import_package
from bushel._src.sources.size_limits import check_pixels
from bushel._src.trajectory.video import mp4_index
from bushel._src.trajectory.video.mp4_index import Index, NotUnderstood


@in_states("video_stream")
@dataclasses.dataclass(frozen=True)
class Stream:
    """What a decoder must know of a video. Files of one camera usually have the same description."""

    codec: str
    extradata: bytes
    height: int
    width: int


@dataclasses.dataclass(frozen=True, eq=False)
class PacketTable:
    """The packets and frames of one file.

    Attributes:
      stream: the description of the video.
      times: when each frame is shown, in seconds, ascending: float64.
      packets: the number of the packet of each frame.
      starts: the number of the packet at which decoding must begin for each frame.
      offsets, sizes: where each packet lies in the file, in bytes, in the order of decoding.
    """

    stream: Stream
    times: np.ndarray
    packets: np.ndarray
    starts: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        """The number of frames."""
        return len(self.times)


def read_packet_table(file: File) -> PacketTable:
    """The table of a video file, from its own index, or by reading all packets where there is none that is understood.

    Raises DamagedFile, which names the file, if it is cut short or is not a video.
    """
    try:
        return _make_table(mp4_index.read_index(file), file)
    except NotUnderstood:
        return _make_table(demux(file), file)


def demux(file: File) -> Index:
    """The index of a video file by PyAV, which reads the whole file."""
    av: Any = import_package("av", "video", "Video files")
    try:
        # Names inside a damaged file need not be texts. PyAV 19 accepts any bytes, and has no such argument.
        lenient = {"metadata_errors": "replace"} if "metadata_errors" in (av.open.__doc__ or "") else {}
        with local_files.as_stream(file) as content, av.open(content, **lenient) as container:
            video = container.streams.video[0]
            if video.codec_context is None:
                raise DamagedFile(f"{file.name}: its video codec is not known, so it cannot be decoded.")
            packets = [packet for packet in container.demux(video) if packet.size and packet.pts is not None]
            context, scale = video.codec_context, fractions.Fraction(video.time_base)
            facts = [(packet.pts, packet.pos, packet.size, packet.is_keyframe) for packet in packets]
            same = not packets or bytes(packets[0]) == file.read(packets[0].pos or 0, packets[0].size)
    except (av.FFmpegError, IndexError, OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{file.name} cannot be read as a video: {type(error).__name__}: {error}") from error
    if not same or any(position is None for _, position, _, _ in facts):
        raise DamagedFile(
            f"{file.name}: the packets of this container ({container.format.name}) do not lie in the file as the "
            "decoder needs them. Convert it to MP4."
        )
    times, offsets, sizes, is_key = np.array(facts, np.int64).reshape(-1, 4).T
    return Index(
        context.name if context.name != "libdav1d" else "av1",
        context.extradata or b"",
        context.height,
        context.width,
        scale.denominator,
        times * scale.numerator,
        offsets,
        sizes,
        is_key.astype(bool),
    )


def _make_table(index: Index, file: File) -> PacketTable:
    check_pixels(index.height, index.width)
    if len(index.sizes) and int((index.offsets + index.sizes).max()) > file.size:
        raise DamagedFile(
            f"{file.name} is cut short: its index says that frames lie up to byte "
            f"{int((index.offsets + index.sizes).max())}, but the file has {file.size} bytes."
        )
    packets = np.argsort(index.times, kind="stable")
    times = index.times[packets]
    keys = np.flatnonzero(index.is_key)
    # The last key frame that is shown at or before a frame. A later one in the file may be shown after it: the frames
    # of an open group of pictures come after the next key frame in the file.
    if len(keys):
        starts = keys[np.maximum(np.searchsorted(index.times[keys], times, "right") - 1, 0)]
        starts = np.where(starts > packets, 0, starts)
    else:
        starts = np.zeros(len(packets), np.int64)
    return PacketTable(
        Stream(index.codec, index.extradata, index.height, index.width),
        times / index.timescale,
        packets.astype(np.int32),
        starts.astype(np.int32),
        index.offsets,
        index.sizes.astype(np.int32),
    )


@in_states("packet_tables")
@dataclasses.dataclass(frozen=True, eq=False)
class PacketTables:
    """The tables of many files, one after another in a few arrays.

    Attributes:
      streams: the distinct descriptions.
      files: for each file the number of its description (-1 if it has no table), and its first frame and packet among
        all; int64 [files + 1, 3].
      folder: the folder that the arrays are mapped from.
    """

    streams: tuple[Stream, ...]
    files: np.ndarray
    times: np.ndarray
    packets: np.ndarray
    starts: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    folder: str | None = None

    @staticmethod
    def of(tables: Sequence[PacketTable | None]) -> PacketTables:
        """The tables of files, None for those that have none."""
        streams: dict[Stream, int] = {}
        files = np.zeros((len(tables) + 1, 3), np.int64)
        for number, table in enumerate(tables):
            files[number, 0] = -1 if table is None else streams.setdefault(table.stream, len(streams))
            frames, packets = (0, 0) if table is None else (len(table.times), len(table.sizes))
            files[number + 1, 1:] = files[number, 1:] + (frames, packets)
        known = [table for table in tables if table is not None]
        arrays = {name: [getattr(table, name) for table in known] for name in _ARRAYS}
        joined: dict[str, Any] = {
            name: np.concatenate([np.zeros(0, kind), *arrays[name]]).astype(kind) for name, kind in _ARRAYS.items()
        }
        return PacketTables(tuple(streams), files, **joined)

    def __len__(self) -> int:
        return len(self.files) - 1

    def __getitem__(self, number: int) -> PacketTable:
        """The table of one file: views of the long arrays."""
        stream, frame, packet = self.files[number].tolist()
        _, last_frame, last_packet = self.files[number + 1].tolist()
        if stream < 0:
            raise IndexError(f"file {number} has no packet table")
        return PacketTable(
            self.streams[stream],
            self.times[frame:last_frame],
            self.packets[frame:last_frame],
            self.starts[frame:last_frame],
            self.offsets[packet:last_packet],
            self.sizes[packet:last_packet],
        )

    def save(self, folder: str) -> PacketTables:
        """Writes the tables into a folder, and returns them mapped from there."""
        os.makedirs(folder, exist_ok=True)
        for name in ("files", *_ARRAYS):
            sealed.write_array(os.path.join(folder, f"{name}.npy"), getattr(self, name))
        streams = [[s.codec, s.extradata.hex(), s.height, s.width] for s in self.streams]
        sealed.write_json(os.path.join(folder, "streams.json"), {"streams": streams})
        return PacketTables.load(folder)

    @staticmethod
    def load(folder: str, *, verify: bool = True) -> PacketTables:
        """Tables that `save` has written, mapped. A damaged file raises DamagedFile."""
        read = functools.partial(sealed.read_array, verify=verify)
        arrays = {name: read(os.path.join(folder, f"{name}.npy")) for name in ("files", *_ARRAYS)}
        streams = sealed.read_json(os.path.join(folder, "streams.json"))["streams"]
        described = tuple(Stream(codec, bytes.fromhex(data), *size) for codec, data, *size in streams)
        return PacketTables(described, **arrays, folder=folder)

    def __reduce__(self) -> Any:
        if self.folder is not None:
            return _load_unchecked, (self.folder,)
        arrays = [getattr(self, name) for name in _ARRAYS]
        return PacketTables, (self.streams, self.files, *arrays)


_ARRAYS = {"times": np.float64, "packets": np.int32, "starts": np.int32, "offsets": np.int64, "sizes": np.int32}


def _load_unchecked(folder: str) -> PacketTables:
    return PacketTables.load(folder, verify=False)
