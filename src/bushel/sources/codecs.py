"""Decompressors of the record formats, safe to call from any thread."""

from __future__ import annotations

import functools
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.sources.handles import HandlePool
from bushel.sources.needs import package

_IDLE_AT_MOST = 32


def unzstd(data: bytes | memoryview, size: int) -> bytes:
    """`data` decompressed to `size` bytes (0: as the frame says)."""
    decompress = _zstd_decoders.take()  # one per thread: a shared one gives wrong data
    decompressed = decompress(data, size)
    _zstd_decoders.give_back(decompress)
    return decompressed


def _zstd() -> Callable[..., bytes]:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return lambda data, size=0: zstd.decompress(data)
    return _zstandard().ZstdDecompressor().decompress


_zstd_decoders = HandlePool(_zstd, _IDLE_AT_MOST)


@functools.cache
def _segments() -> Any:
    if sys.version_info >= (3, 14) or "buffer_types" not in _zstandard().backend_features:
        return None
    return _zstandard().BufferWithSegments


def _zstandard() -> Any:
    return package("zstandard", "zstd", "Files compressed with zstd")


def unzstd_each(memory: mmap.mmap, spans: np.ndarray) -> list[bytes]:
    """Decompresses the frames that lie in `memory` at `spans`, rows of (start, length)."""
    # Parts without a copy: those of `zstandard` are made in half the time of a memoryview.
    parts = _segments() or _views
    with _zstd_decoders.lend() as decompress:
        return list(map(decompress, parts(memory, spans)))


def _views(memory: mmap.mmap, spans: np.ndarray) -> list[memoryview]:
    view = memoryview(memory)
    return [view[start : start + length] for start, length in spans.tolist()]


def unbrotli(data: bytes | memoryview, size: int) -> bytes:
    """`data` decompressed from Brotli."""
    del size
    return package("brotli", "brotli", "Files compressed with Brotli").decompress(bytes(data))


def unsnappy(data: bytes | memoryview, size: int) -> bytes:
    """`data` decompressed from Snappy, without framing."""
    del size
    return bytes(package("cramjam", "snappy", "Files compressed with Snappy").snappy.decompress_raw(data))
