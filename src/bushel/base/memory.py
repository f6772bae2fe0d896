"""Memory for batches: aligned so that JAX on CPU takes an array over instead of copying it."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ALIGNMENT = 64
WORTH_ALIGNING = 4096
"""Bytes; below, a copy costs less than the care."""


Allocator = Callable[[tuple[int, ...], "np.dtype[Any]", int], "np.ndarray | None"]
"""(shape, dtype, bytes) -> an array, or None where it has no room."""

_allocator: Allocator | None = None


@contextlib.contextmanager
def allocating(allocator: Allocator) -> Iterator[None]:
    """Results of this process come from `allocator` meanwhile. For processes that do one thing at a time."""
    global _allocator
    _allocator = allocator
    try:
        yield
    finally:
        _allocator = None


def output(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like `empty`, for an array that is a result: it may lie in memory that others read."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if _allocator is not None and size >= WORTH_ALIGNING and (placed := _allocator(shape, dtype, size)) is not None:
        return placed
    return empty(shape, dtype)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array, aligned to 64 bytes when it is large enough to matter."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < WORTH_ALIGNING or dtype.hasobject:
        return np.empty(shape, dtype)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, raw, -ctypes.addressof(ctypes.c_char.from_buffer(raw.data)) % ALIGNMENT)
