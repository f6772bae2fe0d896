"""Memory for intermediate results, which is used again for the next image."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bushel._src.sources.handle_pool import HandlePool

_LARGEST = 32 << 20  # bytes. A larger array is not kept, so that a single huge image does not fill the memory


class Scratch:
    """Arrays by name, for results that no caller sees. One thread at a time may use them: see `SCRATCHES`.

    An image has hundreds of kilobytes. The C library takes memory of that size from the system and gives it back, and
    the system clears each page again, which takes longer than most operations on the pixels.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialised array. The next call with the same name returns the same memory.

        >>> scratch = Scratch()
        >>> scratch.get("rows", (2, 3), np.float32).shape
        (2, 3)
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            if size > _LARGEST:
                return np.empty(shape, dtype)
            buffer = self._buffers[name] = np.empty(size, np.uint8)
        return np.ndarray(shape, dtype, buffer)


SCRATCHES = HandlePool(Scratch, limit=16)
"""Who needs scratch memory takes one of these: `with SCRATCHES.lend() as scratch`."""
