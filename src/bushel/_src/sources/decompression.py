"""Decompression, within the limits of `size_limits.py`: of single records, and of files compressed as a whole.

Any thread may call it. The content says how a file is compressed, not its name: gzip, zstd, bzip2 or xz.
"""

from __future__ import annotations

import abc
import bz2
import functools
import lzma
import mmap
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.base.late_imports import import_package, install_command
from bushel._src.base.shown_text import Progress
from bushel._src.sources import protocol_buffers, size_limits
from bushel._src.sources.local_files import File, HandlePool

_IDLE_AT_MOST = 32
_CHUNK = 1 << 20
_ZSTD_MOST_BITS = 15  # 4 bytes can stand for 128 KiB at most: 2**15 bytes for each byte


def decompress_zstd(data: bytes | memoryview, size: int) -> bytes:
    """Decompress `data` to `size` bytes (0: as the frame says). Raises TooLarge beyond the limit of a record."""
    decoder = _zstd_decoders.take()  # threads must not share one: the data would be wrong
    decompressed = decoder.decompress(data, size)
    _zstd_decoders.give_back(decoder)
    return decompressed


class _ZstdDecoder:
    """Decompresses frames with the package `zstandard`, if a frame's stated size is within the limit."""

    def __init__(self) -> None:
        self._decompressor = _import_zstandard().ZstdDecompressor()
        self._content_size = _import_zstandard().frame_content_size
        self.decompress_small: Callable[[Any], bytes] = self._decompressor.decompress
        """For a frame so short that it cannot exceed the limit: its stated size is not compared."""

    def decompress(self, data: Any, size: int = 0) -> bytes:
        stated = self._content_size(data)
        if stated < 0:
            return _decompress_unstated(self._decompressor, data, size)
        if size and stated != size:
            raise ValueError(f"its frame states {stated} bytes instead of {size}")
        if stated > size_limits.get_limits().record_bytes:
            raise size_limits.record_too_large(stated)
        return self.decompress_small(data)


class _PythonZstdDecoder:
    """The same with Python's own module, from Python 3.14 on."""

    def decompress(self, data: Any, size: int = 0) -> bytes:
        from compression import zstd  # pyright: ignore

        return _decompress_bounded(zstd.ZstdDecompressor(), data, size)

    decompress_small = decompress


def _make_zstd_decoder() -> Any:
    return _PythonZstdDecoder() if sys.version_info >= (3, 14) else _ZstdDecoder()


def _decompress_bounded(decompressor: Any, data: bytes | memoryview, size: int) -> bytes:
    """Decompress a whole frame with one of Python's own decompressors, within the limit of a record."""
    size_limits.check_record(size)
    wanted = size or size_limits.get_limits().record_bytes
    found = decompressor.decompress(data, wanted + 1)
    if len(found) > wanted:
        raise ValueError(f"it has more than the stated {size} bytes") if size else size_limits.record_too_large()
    if not decompressor.eof:
        raise ValueError("the compressed data ends early")
    if size and len(found) != size:
        raise ValueError(f"it has {len(found)} bytes instead of {size}")
    return found


def _decompress_unstated(decompressor: Any, data: bytes | memoryview, size: int) -> bytes:
    """Decompress a frame that does not state its size, chunk by chunk."""
    wanted = size or size_limits.get_limits().record_bytes
    size_limits.check_record(wanted)
    chunks, got = [], 0
    with decompressor.stream_reader(data) as reader:
        while got <= wanted and (chunk := reader.read(min(_CHUNK, wanted + 1 - got))):
            chunks.append(chunk)
            got += len(chunk)
    if got > wanted:
        raise size_limits.record_too_large() if not size else ValueError(f"it has more than the stated {size} bytes")
    return b"".join(chunks)


_zstd_decoders = HandlePool(_make_zstd_decoder, _IDLE_AT_MOST)


@functools.cache
def _get_segment_class() -> Any:
    if sys.version_info >= (3, 14) or "buffer_types" not in _import_zstandard().backend_features:
        return None
    return _import_zstandard().BufferWithSegments


def _import_zstandard() -> Any:
    return import_package("zstandard", "zstd", "Files compressed with zstd")


def decompress_zstd_frames(memory: mmap.mmap, spans: np.ndarray, longest: int) -> list[bytes]:
    """Decompress the frames that lie in `memory` at `spans`, rows of (start, length).

    `longest` is the length of the longest frame of the file. If it is small, the lengths in `spans` are not compared.
    """
    # Views of the frames, without a copy. Those of `zstandard` take half the time of a memoryview.
    parts = (_get_segment_class() or _slice_memory)(memory, spans)
    limit = size_limits.get_limits().record_bytes >> _ZSTD_MOST_BITS
    small = longest <= limit or int(spans[:, 1].max(initial=0)) <= limit
    decoder = _zstd_decoders.take()  # `lend` would take 1 us more, as long as three records of 1 KB
    found = list(map(decoder.decompress_small if small else decoder.decompress, parts))
    _zstd_decoders.give_back(decoder)
    return found


def _slice_memory(memory: mmap.mmap, spans: np.ndarray) -> list[memoryview]:
    view = memoryview(memory)
    return [view[start : start + length] for start, length in spans.tolist()]


def decompress_brotli(data: bytes | memoryview, size: int) -> bytes:
    """Decompress Brotli data to `size` bytes."""
    size_limits.check_record(size)
    decompressor = import_package("brotli", "brotli", "Files compressed with Brotli").Decompressor()
    chunks, given, left = [], bytes(data), size + 1
    try:
        while left > 0:
            chunk = decompressor.process(given, output_buffer_limit=min(left, _CHUNK))
            if not chunk and decompressor.can_accept_more_data():
                break
            chunks.append(chunk)
            given, left = b"", left - len(chunk)
            if decompressor.is_finished():
                break
    except TypeError as error:
        raise ImportError(f"Files compressed with Brotli need brotli 1.2: {install_command('brotli')}") from error
    if left <= 0:
        raise ValueError(f"it has more than the stated {size} bytes")
    if not decompressor.is_finished():
        raise ValueError("the compressed data ends early")
    return b"".join(chunks)


def decompress_snappy(data: bytes | memoryview, size: int) -> bytes:
    """Decompress Snappy data (without framing) to `size` bytes."""
    size_limits.check_record(size)
    stated, _ = protocol_buffers.decode_varint(data, 0)
    if stated != size:
        raise ValueError(f"it states {stated} bytes instead of {size}")
    return bytes(import_package("cramjam", "snappy", "Files compressed with Snappy").snappy.decompress_raw(data))


def decompress_zlib(data: bytes | memoryview) -> bytes:
    """Decompress zlib data. Raises TooLarge beyond the limit of a record."""
    limit = size_limits.get_limits().record_bytes
    inflate = zlib.decompressobj()
    found = inflate.decompress(data, limit + 1)
    if len(found) > limit:
        raise size_limits.record_too_large()
    if not inflate.eof:
        raise zlib.error("incomplete or truncated stream")
    return found


ENDINGS = (".gz", ".zst", ".bz2", ".xz")
"""What follows the ending of the format in the names of compressed files."""

_WINDOW = 4 << 20
_FILE_CHUNK = 4 << 20  # the most bytes that are decompressed at once
_ZSTD_STEP = 4096  # the package `zstandard` knows no limit: so many bytes become 128 MiB at most
_LEVELS = 2  # a compressed file that a server has compressed once more

_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "bzip2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}
_BEGINNINGS = {
    ".gz": (b"\x1f\x8b\x08",),
    ".zst": (b"\x28\xb5\x2f\xfd",),
    ".bz2": tuple(b"BZh%d%s" % (level, end) for level in range(1, 10) for end in (b"1AY&SY", b"\x17rE8P\x90")),
    ".xz": (b"\xfd7zXZ\x00",),
}
"""What files of these names begin with. One that is a part of it was cut short."""
_NOT_READ = {
    "zip": re.compile(rb"PK(\x03\x04|\x05\x06)"),
    "lz4": re.compile(rb"\x04\x22\x4d\x18"),
    "7z": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "compress (.Z)": re.compile(rb"\x1f\x9d"),
    "lzip": re.compile(rb"LZIP[\x00\x01]"),
    "Snappy": re.compile(rb"\xff\x06\x00\x00sNaPpY"),
}
_NOT_READ_BY_NAME = {".br": "Brotli", ".lzma": "LZMA", ".zip": "zip", ".lz4": "lz4", ".7z": "7z"}


def decompress_file(file: File) -> File:
    """Return `file` itself if it is not compressed. Otherwise its decompressed content, as a file in memory.

    Raises DamagedFile if the compressed data are damaged or end early, TooLarge beyond the limit of a record, and
    ValueError for compressions that are not read.
    """
    content: File = file
    for _ in range(_LEVELS):
        kind = _find_compression(content)
        if kind is None:
            return content
        content = MemoryFile(file, _decompress(content, kind))
    if _find_compression(content) is not None:
        raise ValueError(f"{file.name} is compressed more than {_LEVELS} times. Decompress it first.")
    return content


def _find_compression(file: File) -> str | None:
    begin = file.read(0, min(16, file.size))
    for kind, magic in _MAGIC.items():
        if magic.match(begin):
            return kind
    ending = redact.remove_query(file.address).lower().rpartition(".")[2]
    is_cut = any(whole.startswith(begin) for whole in _BEGINNINGS.get(f".{ending}", ()))
    if begin and is_cut and not isinstance(file, MemoryFile):
        raise DamagedFile(f"{file.name} is damaged: it has only {len(begin)} bytes. It may have been cut short.")
    other = next((kind for kind, magic in _NOT_READ.items() if magic.match(begin)), None)
    if other is None and begin and not isinstance(file, MemoryFile):
        other = _NOT_READ_BY_NAME.get(f".{ending}")
    if other is not None:
        raise ValueError(
            f"{file.name} is compressed with {other}, which Bushel does not read as text. Decompress it first, or "
            "compress it with gzip, zstd, bzip2 or xz."
        )
    return None


class _MemberDecoder(abc.ABC):
    """Decompresses one member of a file: a gzip member, a zstd frame, a stream of bzip2 or xz."""

    ended: bool = False
    rest: bytes = b""
    """What was given and is not yet decompressed, or lies behind the end."""

    @abc.abstractmethod
    def decompress(self, data: bytes) -> bytes:
        """Decompress the rest and `data`, and return at most a few megabytes. With b"" it goes on with the rest."""


class _Gzip(_MemberDecoder):
    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes) -> bytes:
        found = self._inflate.decompress(self.rest + data, _FILE_CHUNK)
        self.ended = self._inflate.eof
        self.rest = self._inflate.unused_data if self.ended else self._inflate.unconsumed_tail
        return found


class _Standard(_MemberDecoder):
    """With a decompressor of Python's own: those of bz2, lzma and, from Python 3.14 on, zstd have one interface."""

    def __init__(self, decompressor: Any):
        self._decompressor = decompressor

    def decompress(self, data: bytes) -> bytes:
        found = self._decompressor.decompress(data, _FILE_CHUNK)
        self.ended = self._decompressor.eof
        self.rest = self._decompressor.unused_data if self.ended else b""
        return found


class _Zstandard(_MemberDecoder):
    """With the package `zstandard`."""

    def __init__(self) -> None:
        zstandard = import_package("zstandard", "zstd", "Files compressed with zstd")
        most = min(max(size_limits.get_limits().record_bytes, 1 << 27), 1 << 31)
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=most).decompressobj()

    def decompress(self, data: bytes) -> bytes:
        given = self.rest + data
        found = self._decompressor.decompress(given[:_ZSTD_STEP]) if given else b""
        self.ended = self._decompressor.eof
        self.rest = (self._decompressor.unused_data if self.ended else b"") + given[_ZSTD_STEP:]
        return found


def _make_zstd() -> _MemberDecoder:
    if sys.version_info >= (3, 14):
        from compression import zstd  # pyright: ignore

        return _Standard(zstd.ZstdDecompressor())
    return _Zstandard()


_DECODERS: dict[str, Callable[[], _MemberDecoder]] = {
    "gzip": _Gzip,
    "zstd": _make_zstd,
    "bzip2": lambda: _Standard(bz2.BZ2Decompressor()),
    "xz": lambda: _Standard(
        lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=size_limits.get_limits().record_bytes + (64 << 20))
    ),
}


def _decompress(file: File, kind: str) -> bytes:
    """Return the content of a file with any number of members, one after the other."""
    limit = size_limits.get_limits().record_bytes
    chunks: list[bytes] = []
    size = position = 0
    decoder = _DECODERS[kind]()
    with Progress(f"decompressing {redact.base_name(file.name)}", file.size, unit="B", delay_s=1) as bar:
        given = b""
        while True:
            try:
                chunk = decoder.decompress(given)
            except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, *_zstd_errors()) as error:
                if "memory" in str(error).lower():
                    raise TooLarge(
                        f"{file.name}: it cannot be decompressed within the limit of memory ({error})."
                    ) from error
                raise DamagedFile(
                    f"{file.name} is damaged: its {kind} data cannot be decompressed ({error})."
                ) from error
            given = b""
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                too_large = size_limits.record_too_large()
                raise TooLarge(
                    f"{file.name} is not read: {too_large} Or decompress it first: lines of such a file stay in memory."
                )
            if decoder.ended:
                rest = decoder.rest
                while not rest.strip(b"\0") and position < file.size:  # padding, or the end of the window
                    rest, position = _read_window(file, position)
                rest = rest.lstrip(b"\0")
                if not rest:
                    return b"".join(chunks)
                if len(rest) < 16 and position < file.size:
                    more, position = _read_window(file, position)
                    rest += more
                if not _MAGIC[kind].match(rest):
                    raise DamagedFile(
                        f"{file.name} is damaged: behind its {kind} data are bytes that are not {kind} data."
                    )
                decoder, given = _DECODERS[kind](), rest
            elif not chunk and not decoder.rest:
                if position == file.size:
                    raise DamagedFile(f"{file.name} is damaged: its {kind} data end early. It may have been cut short.")
                given, position = _read_window(file, position)
                bar.show(position)


def _read_window(file: File, position: int) -> tuple[bytes, int]:
    """Return the next bytes of a file, and the place behind them."""
    length = min(_WINDOW, file.size - position)
    return file.read(position, length), position + length


def _zstd_errors() -> tuple[type[Exception], ...]:
    if sys.version_info >= (3, 14):
        from compression import zstd  # pyright: ignore

        return (zstd.ZstdError,)
    module = sys.modules.get("zstandard")
    return () if module is None else (module.ZstdError,)


class MemoryFile(File):
    """The content of a file that was decompressed. Its version is that of the file on disk."""

    costs_round_trip = False

    def __init__(self, origin: File, data: bytes):
        self.name, self.address, self.size = origin.name, origin.address, len(data)
        self._origin, self._data = origin, data

    def read(self, start: int, length: int) -> bytes:
        data = self._data[start : start + length]
        if len(data) != length:
            raise self.short_read_error(start, length, len(data))
        return data

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return [self.read(start, length) for start, length in zip(starts, lengths, strict=True)]

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        for buffer in buffers:
            buffer[:] = self.read(start, len(buffer))
            start += len(buffer)

    def version(self) -> list[Any]:
        return self._origin.version()

    def check_unchanged(self) -> None:
        self._origin.check_unchanged()
