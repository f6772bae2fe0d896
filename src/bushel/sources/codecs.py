"""Decompressors of the record formats, safe to call from any thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from bushel.sources.needs import package

_local = threading.local()


def unzstd(data: bytes | memoryview, size: int) -> bytes:
    """`data` decompressed to `size` bytes (0: as the frame says)."""
    return zstd_decoder()(data, size)


def zstd_decoder() -> Callable[[bytes | memoryview, int], bytes]:
    """What `unzstd` does, without looking for this thread's decompressor in every call."""
    decompress = getattr(_local, "zstd", None)
    if decompress is None:
        decompress = _local.zstd = _zstd()  # one per thread: a shared one gives wrong data
    return decompress


def _zstd() -> Callable[[bytes | memoryview, int], bytes]:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return lambda data, size: zstd.decompress(data)
    return package("zstandard", "zstd", "Files compressed with zstd").ZstdDecompressor().decompress


def unbrotli(data: bytes | memoryview, size: int) -> bytes:
    """`data` decompressed from Brotli."""
    del size
    return package("brotli", "brotli", "Files compressed with Brotli").decompress(bytes(data))


def unsnappy(data: bytes | memoryview, size: int) -> bytes:
    """`data` decompressed from Snappy, without framing."""
    del size
    return bytes(package("cramjam", "snappy", "Files compressed with Snappy").snappy.decompress_raw(data))
