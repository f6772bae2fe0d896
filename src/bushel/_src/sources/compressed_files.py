"""Files that are compressed as a whole, decompressed into memory: gzip, zstd, bzip2, xz.

The content says how a file is compressed, not its name. `decompression.py` decompresses single records.
"""

from __future__ import annotations

import abc
import bz2
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, TooLarge
from bushel._src.base.progress import Progress
from bushel._src.sources import size_limits
from bushel._src.sources.local_files import File
from bushel._src.sources.optional_packages import import_package

ENDINGS = (".gz", ".zst", ".bz2", ".xz")
"""What follows the ending of the format in the names of compressed files."""

_WINDOW = 4 << 20
_PIECE = 4 << 20  # the most bytes that are decompressed at once
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
    """`file` itself if it is not compressed. Otherwise its decompressed content, as a file in memory.

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


class _Decoder(abc.ABC):
    """Decompresses one member of a file: a gzip member, a zstd frame, a stream of bzip2 or xz."""

    ended: bool = False
    rest: bytes = b""
    """What was given and is not yet decompressed, or lies behind the end."""

    @abc.abstractmethod
    def decompress(self, data: bytes) -> bytes:
        """Decompresses the rest and `data`, and returns at most a few megabytes. With b"" it goes on with the rest."""


class _Gzip(_Decoder):
    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes) -> bytes:
        found = self._inflate.decompress(self.rest + data, _PIECE)
        self.ended = self._inflate.eof
        self.rest = self._inflate.unused_data if self.ended else self._inflate.unconsumed_tail
        return found


class _Standard(_Decoder):
    """With a decompressor of Python's own: those of bz2, lzma and, from Python 3.14 on, zstd have one interface."""

    def __init__(self, decompressor: Any):
        self._decompressor = decompressor

    def decompress(self, data: bytes) -> bytes:
        found = self._decompressor.decompress(data, _PIECE)
        self.ended = self._decompressor.eof
        self.rest = self._decompressor.unused_data if self.ended else b""
        return found


class _Zstandard(_Decoder):
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


def _make_zstd() -> _Decoder:
    if sys.version_info >= (3, 14):
        from compression import zstd  # pyright: ignore

        return _Standard(zstd.ZstdDecompressor())
    return _Zstandard()


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": _Gzip,
    "zstd": _make_zstd,
    "bzip2": lambda: _Standard(bz2.BZ2Decompressor()),
    "xz": lambda: _Standard(
        lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=size_limits.get_limits().record_bytes + (64 << 20))
    ),
}


def _decompress(file: File, kind: str) -> bytes:
    """The content of a file with any number of members, one after the other."""
    limit = size_limits.get_limits().record_bytes
    pieces: list[bytes] = []
    size = place = 0
    decoder = _DECODERS[kind]()
    with Progress(f"decompressing {redact.base_name(file.name)}", file.size, unit="B", delay_s=1) as bar:
        given = b""
        while True:
            try:
                piece = decoder.decompress(given)
            except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, *_zstd_errors()) as error:
                if "memory" in str(error).lower():
                    raise TooLarge(
                        f"{file.name}: it cannot be decompressed within the limit of memory ({error})."
                    ) from error
                raise DamagedFile(
                    f"{file.name} is damaged: its {kind} data cannot be decompressed ({error})."
                ) from error
            given = b""
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                too_large = size_limits.record_too_large()
                raise TooLarge(
                    f"{file.name}: {too_large}. Or decompress it first: lines of such a file stay in memory."
                )
            if decoder.ended:
                rest = decoder.rest
                while not rest.strip(b"\0") and place < file.size:  # padding, or the end of the window
                    rest, place = _read_window(file, place)
                rest = rest.lstrip(b"\0")
                if not rest:
                    return b"".join(pieces)
                if len(rest) < 16 and place < file.size:
                    more, place = _read_window(file, place)
                    rest += more
                if not _MAGIC[kind].match(rest):
                    raise DamagedFile(
                        f"{file.name} is damaged: behind its {kind} data are bytes that are not {kind} data."
                    )
                decoder, given = _DECODERS[kind](), rest
            elif not piece and not decoder.rest:
                if place == file.size:
                    raise DamagedFile(f"{file.name} is damaged: its {kind} data end early. It may have been cut short.")
                given, place = _read_window(file, place)
                bar.show(place)


def _read_window(file: File, place: int) -> tuple[bytes, int]:
    """The next bytes of a file, and the place behind them."""
    length = min(_WINDOW, file.size - place)
    return file.read(place, length), place + length


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
