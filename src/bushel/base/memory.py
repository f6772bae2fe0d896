"""Memory for batches: aligned so that JAX on CPU takes an array over instead of copying it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

ALIGNMENT = 64
WORTH_ALIGNING = 4096
"""Bytes; below, a copy costs less than the care."""


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array, aligned to 64 bytes when it is large enough to matter."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < WORTH_ALIGNING or dtype.hasobject:
        return np.empty(shape, dtype)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.__array_interface__["data"][0] % ALIGNMENT)
