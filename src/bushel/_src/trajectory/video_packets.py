"""Where the packets of video files lie, and from which packet on each frame is decoded. Nothing is decoded here.

The index of an MP4 file is read by itself; PyAV reads the packets of other files.
"""

from __future__ import annotations

import dataclasses
import fractions
import functools
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checked_files
from bushel._src.base.errors import DamagedFile
from bushel._src.base.late_imports import import_package
from bushel._src.base.state_names import in_states
from bushel._src.sources import local_files
from bushel._src.sources.local_files import File
from bushel._src.sources.size_limits import check_pixels, check_record

_CODECS = {b"avc1": ("h264", b"avcC"), b"avc3": ("h264", b"avcC"), b"hvc1": ("hevc", b"hvcC")}
_CODECS |= {b"hev1": ("hevc", b"hvcC"), b"av01": ("av1", b"av1C")}
_VISUAL_BYTES = 78  # of a visual sample entry, before the boxes in it
_PARTS = {"stsz", "stsc", "stts", "stsd"}


class NotUnderstood(Exception):
    """The file may be a good video, but this module cannot index it."""


@dataclasses.dataclass(frozen=True)
class Index:
    """The samples of one video track, in the order of decoding.

    Attributes:
      codec: FFmpeg's name of the codec.
      extradata: what the decoder must know before the first sample.
      height, width: of the frames, in pixels.
      timescale: how many units of time a second has.
      times: when each sample is shown, in these units.
      offsets, sizes: where each sample lies in the file, in bytes.
      is_key: whether decoding can begin at a sample.
    """

    codec: str
    extradata: bytes
    height: int
    width: int
    timescale: int
    times: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    is_key: np.ndarray


def read_index(file: File) -> Index:
    """Return the index of an MP4 file.

    Raises NotUnderstood for other files, and DamagedFile for an MP4 file without index.
    """
    try:
        return _read_index(file)
    except (struct.error, IndexError, OverflowError) as error:  # a box that is shorter than its content
        raise NotUnderstood(str(error)) from error


def _read_index(file: File) -> Index:
    boxes = _Boxes(_read_moov(file))
    if boxes.find("mvex") is not None:
        raise NotUnderstood("the file is fragmented")
    movie_scale = _time_scale(boxes.need("mvhd"))
    for track in boxes.all("trak"):
        handler = _Boxes(track).need("mdia", "hdlr")
        if handler[8:12] == b"vide":
            return _index_track(_Boxes(track), movie_scale, file)
    raise DamagedFile(f"{file.name} has no video track.")


def _read_moov(file: File) -> bytes:
    offset, is_mp4 = 0, False
    while offset + 8 <= file.size:
        header = file.read(offset, min(16, file.size - offset))
        size, kind = struct.unpack(">I4s", header[:8])
        begin = 8
        if size == 1 and len(header) == 16:
            size, begin = struct.unpack(">Q", header[8:])[0], 16
        size = size or file.size - offset
        if not offset and kind not in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
            raise NotUnderstood("the file does not begin like an MP4 file")
        is_mp4 = is_mp4 or kind == b"ftyp"
        if size < begin:
            break
        if kind == b"moov" and offset + size <= file.size:
            check_record(size)
            return file.read(offset + begin, size - begin)
        offset += size
    if not is_mp4:
        raise NotUnderstood("the file has no box ftyp")
    raise DamagedFile(
        f"{file.name} has no complete index (its box 'moov'), so none of its frames can be found: the recording was "
        f"not finished, or the file of {file.size} bytes was cut short."
    )


class _Boxes:
    """The boxes inside a box."""

    def __init__(self, content: bytes):
        self._content = content

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        offset = 0
        while offset + 8 <= len(self._content):
            size, kind = struct.unpack_from(">I4s", self._content, offset)
            if size < 8 or offset + size > len(self._content):
                return
            yield kind.decode("latin-1"), self._content[offset + 8 : offset + size]
            offset += size

    def all(self, kind: str) -> list[bytes]:
        return [content for name, content in self if name == kind]

    def find(self, *path: str) -> bytes | None:
        content: bytes | None = self._content
        for kind in path:
            content = None if content is None else next(iter(_Boxes(content).all(kind)), None)
        return content

    def need(self, *path: str) -> bytes:
        content = self.find(*path)
        if content is None:
            raise NotUnderstood(f"there is no box {'/'.join(path)}")
        return content


def _time_scale(header: bytes) -> int:
    """Return the units per second of a box `mvhd` or `mdhd`."""
    scale = struct.unpack_from(">I", header, 20 if header[0] == 1 else 12)[0]
    if not scale:
        raise NotUnderstood("a time scale is zero")
    return int(scale)


def _index_track(track: _Boxes, movie_scale: int, file: File) -> Index:
    timescale = _time_scale(track.need("mdia", "mdhd"))
    table = _Boxes(track.need("mdia", "minf", "stbl"))
    codec, extradata, height, width = _describe(table.need("stsd"))
    sizes = _sample_sizes(table.need("stsz"), file.size)
    count = len(sizes)
    offsets = _sample_offsets(table, sizes)
    durations = _runs(table.need("stts"), count, ">u4")
    times = np.cumsum(durations) - durations
    shifts = table.find("ctts")
    if shifts is not None:
        times = times + _runs(shifts, count, ">i4")  # FFmpeg reads both versions as signed numbers
    times = times - _find_start(track.find("edts", "elst"), times, durations, timescale, movie_scale)
    is_key = np.ones(count, dtype=bool)
    keys = table.find("stss")
    if keys is not None:
        numbers = _numbers(keys, 8, ">u4", struct.unpack_from(">I", keys, 4)[0])
        is_key[:] = False
        is_key[numbers[(numbers >= 1) & (numbers <= count)] - 1] = True
    return Index(codec, extradata, height, width, timescale, times, offsets, sizes, is_key)


def _describe(box: bytes) -> tuple[str, bytes, int, int]:
    """Return the codec, its extradata, and the size of a frame."""
    if struct.unpack_from(">I", box, 4)[0] != 1:
        raise NotUnderstood("there are several descriptions of samples")
    ((kind, entry),) = list(_Boxes(box[8:]))[:1] or [("", b"")]
    if kind.encode("latin-1") not in _CODECS or len(entry) < _VISUAL_BYTES:
        raise NotUnderstood(f"the codec {kind!r} is not known")
    codec, name = _CODECS[kind.encode("latin-1")]
    width, height = struct.unpack_from(">HH", entry, 24)
    return codec, _Boxes(entry[_VISUAL_BYTES:]).need(name.decode()), height, width


def _numbers(box: bytes, begin: int, kind: str, count: int) -> np.ndarray:
    """Return `count` numbers of a box, as int64."""
    if begin + count * np.dtype(kind).itemsize > len(box):
        raise NotUnderstood("a table is shorter than it says")
    return np.frombuffer(box, kind, count, begin).astype(np.int64)


def _sample_sizes(box: bytes, file_bytes: int) -> np.ndarray:
    same, count = struct.unpack_from(">II", box, 4)
    if same:
        if count > file_bytes:
            raise NotUnderstood("there are more samples than bytes")
        return np.full(count, same, np.int64)
    return _numbers(box, 12, ">u4", count)


def _runs(box: bytes, count: int, kind: str) -> np.ndarray:
    """Return the values of a box with pairs (how many samples, value), one for each sample."""
    pairs = struct.unpack_from(">I", box, 4)[0]
    times = _numbers(box, 8, ">u4", 2 * pairs)[::2]
    if int(times.sum()) != count:
        raise NotUnderstood("a table has another number of samples")
    return np.repeat(_numbers(box, 8, kind, 2 * pairs)[1::2], times)


def _sample_offsets(table: _Boxes, sizes: np.ndarray) -> np.ndarray:
    """Return where each sample begins: samples lie one after another in chunks."""
    long = table.find("co64")
    box = table.need("stco") if long is None else long
    count = struct.unpack_from(">I", box, 4)[0]
    chunks = _numbers(box, 8, ">u4" if long is None else ">u8", count)
    box = table.need("stsc")
    entries = _numbers(box, 8, ">u4", 3 * struct.unpack_from(">I", box, 4)[0]).reshape(-1, 3)
    firsts = np.append(entries[:, 0] - 1, count)
    if len(entries) and (firsts[0] != 0 or np.any(np.diff(firsts) < 0)):
        raise NotUnderstood("the chunks are not in order")
    each = np.repeat(entries[:, 1], np.diff(firsts)) if len(entries) else np.zeros(0, np.int64)
    if int(each.sum()) != len(sizes):
        raise NotUnderstood("the chunks have another number of samples")
    ends = np.cumsum(sizes)
    firsts_in_chunks = np.cumsum(each) - each
    before = ends - sizes  # the bytes of all samples before each one
    return before + np.repeat(chunks - before[np.minimum(firsts_in_chunks, len(before) - 1)], each) if count else before


def _find_start(box: bytes | None, times: np.ndarray, durations: np.ndarray, timescale: int, movie_scale: int) -> int:
    """Return the time of the media that is shown at second 0. Edit lists that do more than shift are not understood."""
    if box is None or not len(times):
        return 0
    version, count = box[0], struct.unpack_from(">I", box, 4)[0]
    if count != 1:
        raise NotUnderstood("the edit list has several entries")
    duration, start = struct.unpack_from(">Qq" if version == 1 else ">Ii", box, 8)
    slack = int(durations.max()) + timescale // movie_scale + 1
    cut = duration and duration * timescale // movie_scale + slack < int((times + durations).max()) - start
    if start < 0 or cut or int(times.min()) < start:
        raise NotUnderstood("the edit list leaves out a part of the video")
    return int(start)


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
        """Return the number of frames."""
        return len(self.times)


def read_packet_table(file: File) -> PacketTable:
    """Return the table of a video file, from its own index, or by reading all packets where there is none that is
    understood.

    Raises DamagedFile, which names the file, if it is cut short or is not a video.
    """
    try:
        return _make_table(read_index(file), file)
    except NotUnderstood:
        return _make_table(demux(file), file)


def demux(file: File) -> Index:
    """Return the index of a video file by PyAV, which reads the whole file."""
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
        """Return the tables of files, None for those that have none."""
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
        """Return the table of one file: views of the long arrays."""
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
        """Write the tables into a folder, and return them mapped from there."""
        os.makedirs(folder, exist_ok=True)
        for name in ("files", *_ARRAYS):
            checked_files.write_array(os.path.join(folder, f"{name}.npy"), getattr(self, name))
        streams = [[s.codec, s.extradata.hex(), s.height, s.width] for s in self.streams]
        checked_files.write_json(os.path.join(folder, "streams.json"), {"streams": streams})
        return PacketTables.load(folder)

    @staticmethod
    def load(folder: str, *, verify: bool = True) -> PacketTables:
        """Return tables that `save` has written, mapped. A damaged file raises DamagedFile."""
        read = functools.partial(checked_files.read_array, verify=verify)
        arrays = {name: read(os.path.join(folder, f"{name}.npy")) for name in ("files", *_ARRAYS)}
        streams = checked_files.read_json(os.path.join(folder, "streams.json"))["streams"]
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
