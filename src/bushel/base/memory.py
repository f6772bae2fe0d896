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

_allocator: Allocator | None = None
_thread = 0  # the one that has set it, for which alone it works


@contextlib.contextmanager
def allocating(where: Allocator | None) -> Iterator[None]:
    """Results that this thread makes meanwhile come from `where`; None: from memory of their own.

    That memory is written again as soon as the consumer is through with them. So no function of the user's may run
    meanwhile, and nothing that keeps what it has seen.
    """
    global _allocator, _thread
    before = _allocator, _thread
    _allocator, _thread = where, threading.get_ident()
    try:
        yield
    finally:
        _allocator, _thread = before


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that makes no results, but what results are made of; a user's function may be among it."""
    if _allocator is None or _thread != threading.get_ident():
        return function(*arguments)
    with allocating(None):
        return function(*arguments)


def output(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like `empty`, for an array that is a result: it may lie in memory that others read."""
    dtype = np.dtype(dtype)
    if _allocator is not None and _thread == threading.get_ident() and not dtype.hasobject:
        size = math.prod(shape) * dtype.itemsize
        if size >= WORTH_ALIGNING and (placed := _allocator(shape, dtype, size)) is not None:
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
