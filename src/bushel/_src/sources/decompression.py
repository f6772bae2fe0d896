"""Decompressors of the record formats. Any thread may call them. They keep to the limit of `size_limits.py`."""

from __future__ import annotations

import functools
import mmap
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base.install import install_command
from bushel._src.sources import size_limits, varints
from bushel._src.sources.handle_pool import HandlePool
from bushel._src.sources.optional_packages import import_package

_IDLE_AT_MOST = 32
_PIECE = 1 << 20
_ZSTD_MOST_BITS = 15  # 4 bytes can stand for 128 KiB at most: 2**15 bytes for each byte


def decompress_zstd(data: bytes | memoryview, size: int) -> bytes:
    """Decompresses `data` to `size` bytes (0: as the frame says). Raises TooLarge beyond the limit of a record."""
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
    """Decompresses a whole frame with one of Python's own decompressors, within the limit of a record."""
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
    """Decompresses a frame that does not state its size, piece by piece."""
    wanted = size or size_limits.get_limits().record_bytes
    size_limits.check_record(wanted)
    pieces, got = [], 0
    with decompressor.stream_reader(data) as reader:
        while got <= wanted and (piece := reader.read(min(_PIECE, wanted + 1 - got))):
            pieces.append(piece)
            got += len(piece)
    if got > wanted:
        raise size_limits.record_too_large() if not size else ValueError(f"it has more than the stated {size} bytes")
    return b"".join(pieces)


_zstd_decoders = HandlePool(_make_zstd_decoder, _IDLE_AT_MOST)


@functools.cache
def _get_segment_class() -> Any:
    if sys.version_info >= (3, 14) or "buffer_types" not in _import_zstandard().backend_features:
        return None
    return _import_zstandard().BufferWithSegments


def _import_zstandard() -> Any:
    return import_package("zstandard", "zstd", "Files compressed with zstd")


def decompress_zstd_frames(memory: mmap.mmap, spans: np.ndarray, longest: int) -> list[bytes]:
    """Decompresses the frames that lie in `memory` at `spans`, rows of (start, length).

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
    """Decompresses Brotli data to `size` bytes."""
    size_limits.check_record(size)
    decompressor = import_package("brotli", "brotli", "Files compressed with Brotli").Decompressor()
    pieces, given, left = [], bytes(data), size + 1
    try:
        while left > 0:
            piece = decompressor.process(given, output_buffer_limit=min(left, _PIECE))
            if not piece and decompressor.can_accept_more_data():
                break
            pieces.append(piece)
            given, left = b"", left - len(piece)
            if decompressor.is_finished():
                break
    except TypeError as error:
        raise ImportError(f"Files compressed with Brotli need brotli 1.2: {install_command('brotli')}") from error
    if left <= 0:
        raise ValueError(f"it has more than the stated {size} bytes")
    if not decompressor.is_finished():
        raise ValueError("the compressed data ends early")
    return b"".join(pieces)


def decompress_snappy(data: bytes | memoryview, size: int) -> bytes:
    """Decompresses Snappy data (without framing) to `size` bytes."""
    size_limits.check_record(size)
    stated, _ = varints.decode(data, 0)
    if stated != size:
        raise ValueError(f"it states {stated} bytes instead of {size}")
    return bytes(import_package("cramjam", "snappy", "Files compressed with Snappy").snappy.decompress_raw(data))


def decompress_zlib(data: bytes | memoryview) -> bytes:
    """Decompresses zlib data. Raises TooLarge beyond the limit of a record."""
    limit = size_limits.get_limits().record_bytes
    inflate = zlib.decompressobj()
    found = inflate.decompress(data, limit + 1)
    if len(found) > limit:
        raise size_limits.record_too_large()
    if not inflate.eof:
        raise zlib.error("incomplete or truncated stream")
    return found
