"""Requests for many ranges of a remote file: merges ranges that are near each other, and distributes the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_MERGE_BYTES = 64 * 1024
"""Ranges that are nearer than this become one request: reading the gap costs less than a round trip."""


def merge_ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """Merges ranges that are near each other. Returns starts and ends, and for each given range its merged one."""
    order = np.argsort(starts, kind="stable")
    begins = starts[order]
    ends = np.maximum.accumulate(begins + lengths[order])
    apart = np.flatnonzero(begins[1:] > ends[:-1] + _MERGE_BYTES) + 1
    which = np.empty(len(order), np.int64)
    which[order] = apart.searchsorted(np.arange(len(order)), "right")
    return begins[np.append(0, apart)].tolist(), ends[np.append(apart, len(order)) - 1].tolist(), which.tolist()


def scatter(data: Any, buffers: Sequence[Any]) -> None:
    """Copies bytes into writable buffers, one after the other."""
    view = memoryview(data)
    for buffer, part in zip(buffers, _cut(view, buffers)):
        memoryview(buffer).cast("B")[:] = part


def _cut(view: memoryview, buffers: Sequence[Any]) -> Iterator[memoryview]:
    low = 0
    for buffer in buffers:
        yield view[low : low + len(buffer)]
        low += len(buffer)
