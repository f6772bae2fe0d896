"""The index of an MP4 file: where each sample of its video track lies and when it is shown. Nothing is decoded.

Only the box `moov` is read, so a remote file costs a few small reads. `packet_table.py` falls back to PyAV's demuxer
for files that this module does not understand.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.sources.local_files import File
from bushel._src.sources.size_limits import check_record

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
    """The index of an MP4 file. Raises NotUnderstood for other files, and DamagedFile for an MP4 file without index."""
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
    place, is_mp4 = 0, False
    while place + 8 <= file.size:
        header = file.read(place, min(16, file.size - place))
        size, kind = struct.unpack(">I4s", header[:8])
        begin = 8
        if size == 1 and len(header) == 16:
            size, begin = struct.unpack(">Q", header[8:])[0], 16
        size = size or file.size - place
        if not place and kind not in (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip"):
            raise NotUnderstood("the file does not begin like an MP4 file")
        is_mp4 = is_mp4 or kind == b"ftyp"
        if size < begin:
            break
        if kind == b"moov" and place + size <= file.size:
            check_record(size)
            return file.read(place + begin, size - begin)
        place += size
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
        place = 0
        while place + 8 <= len(self._content):
            size, kind = struct.unpack_from(">I4s", self._content, place)
            if size < 8 or place + size > len(self._content):
                return
            yield kind.decode("latin-1"), self._content[place + 8 : place + size]
            place += size

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
    """The units per second of a box `mvhd` or `mdhd`."""
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
    """The codec, its extradata, and the size of a frame."""
    if struct.unpack_from(">I", box, 4)[0] != 1:
        raise NotUnderstood("there are several descriptions of samples")
    ((kind, entry),) = list(_Boxes(box[8:]))[:1] or [("", b"")]
    if kind.encode("latin-1") not in _CODECS or len(entry) < _VISUAL_BYTES:
        raise NotUnderstood(f"the codec {kind!r} is not known")
    codec, name = _CODECS[kind.encode("latin-1")]
    width, height = struct.unpack_from(">HH", entry, 24)
    return codec, _Boxes(entry[_VISUAL_BYTES:]).need(name.decode()), height, width


def _numbers(box: bytes, begin: int, kind: str, count: int) -> np.ndarray:
    """`count` numbers of a box, as int64."""
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
    """The values of a box with pairs (how many samples, value), one for each sample."""
    pairs = struct.unpack_from(">I", box, 4)[0]
    times = _numbers(box, 8, ">u4", 2 * pairs)[::2]
    if int(times.sum()) != count:
        raise NotUnderstood("a table has another number of samples")
    return np.repeat(_numbers(box, 8, kind, 2 * pairs)[1::2], times)


def _sample_offsets(table: _Boxes, sizes: np.ndarray) -> np.ndarray:
    """Where each sample begins: samples lie one after another in chunks."""
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
    """The time of the media that is shown at second 0. Edit lists that do more than shift are not understood."""
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
