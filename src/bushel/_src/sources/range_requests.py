"""Requests for many ranges of a remote file: merges ranges that are near each other, and distributes the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_MERGE_BYTES = 64 * 1024
"""Ranges that are nearer than this become one request: reading the gap costs less than a round trip."""
_MERGED_BYTES = 4 << 20
"""About how large a request of merged ranges becomes. Several requests at once are faster than a very large one,
because stores limit the speed of each connection."""


def merge_ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """Merges ranges that are near each other. Returns starts and ends, and for each given range its merged one."""
    order = np.argsort(starts, kind="stable")
    begins = starts[order]
    ends = begins + lengths[order]
    apart = np.append(0, np.flatnonzero(begins[1:] > np.maximum.accumulate(ends)[:-1] + _MERGE_BYTES) + 1)
    # A group of near ranges is cut where a range begins in another piece of the group than the range before it.
    group = apart.searchsorted(np.arange(len(order)), "right") - 1
    piece = (begins - begins[apart][group]) // _MERGED_BYTES
    first = np.append(0, np.flatnonzero(np.diff(group) | np.diff(piece)) + 1)
    which = np.empty(len(order), np.int64)
    which[order] = first.searchsorted(np.arange(len(order)), "right") - 1
    return begins[first].tolist(), np.maximum.reduceat(ends, first).tolist(), which.tolist()


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
