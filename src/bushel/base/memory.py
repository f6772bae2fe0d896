"""Memory for batches: aligned so that JAX on CPU takes an array over instead of copying it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

ALIGNMENT = 64
WORTH_ALIGNING = 4096
"""Bytes; below, a copy costs less than the care."""


Allocator = Callable[[tuple[int, ...], "np.dtype[Any]", int], "np.ndarray | None"]
"""(shape, dtype, bytes) -> an array, or None where it has no room."""

allocator: Allocator | None = None
"""Where the results of this process lie, if not in memory of its own. Of one thread alone: that which set it."""

_thread = 0


@contextlib.contextmanager
def allocating(where: Allocator | None) -> Iterator[None]:
    """Results that this thread makes meanwhile come from `where`; None: from memory of their own."""
    global allocator, _thread
    before = allocator, _thread
    allocator, _thread = where, threading.get_ident()
    try:
        yield
    finally:
        allocator, _thread = before


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function whose results are not those of this process: a pipeline inside of a user's function."""
    if allocator is None or _thread != threading.get_ident():
        return function(*arguments)
    with allocating(None):
        return function(*arguments)


def output(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like `empty`, for an array that is a result: it may lie in memory that others read."""
    dtype = np.dtype(dtype)
    if allocator is not None and _thread == threading.get_ident():
        size = math.prod(shape) * dtype.itemsize
        if size >= WORTH_ALIGNING and (placed := allocator(shape, dtype, size)) is not None:
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
