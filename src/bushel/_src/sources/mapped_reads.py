"""Decides whether records are copied from mapped memory or read: mapped memory is faster if the file is in memory.

The memory map itself is in `local_files.py`, and so is the case of a file that is cut short while it is mapped.
"""

from __future__ import annotations

import mmap
import resource
import time
from collections.abc import Callable

import numpy as np

from bushel._src.sources.local_files import LocalFile

_QUICK_S = 50e-6  # a disk needs longer: all pages were in memory
_LEAST_PAUSE, _MOST_PAUSE = 16, 4096
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # macOS counts only for the whole process


class MappedReads:
    """Decides for each block of a file whether it is copied from mapped memory or read.

    If a page of mapped memory is not in memory, the system fetches this page alone, while this thread holds the GIL, so
    all threads wait. A read does neither. So after a block with such pages, the next 16 blocks are read instead. This
    pause doubles each time it happens again, and shrinks by one for each block whose pages were in memory.
    """

    def __init__(self, file: LocalFile):
        self._file = file
        self._to_read = 0  # how many blocks to read before the map is tried again
        self._pause = _LEAST_PAUSE
        self._long = True  # whether the last block took long, so that page faults of the next one are counted

    def copy_block(
        self, copy: Callable[[mmap.mmap, np.ndarray], list[bytes] | None], spans: np.ndarray
    ) -> list[bytes] | None:
        """The records that `copy` takes from memory at `spans`; None if the caller should read the block."""
        if self._to_read > 0:
            self._to_read -= 1
            return None
        memory = self._file.map_memory()
        if memory is None:
            return None
        before = _count_page_faults() if self._long else None
        begun = time.perf_counter()
        found = copy(memory, spans)
        self._long = time.perf_counter() - begun > _QUICK_S
        if before is not None:
            if _count_page_faults() > before:
                self._to_read, self._pause = self._pause, min(2 * self._pause, _MOST_PAUSE)
            else:
                self._pause = max(self._pause - 1, _LEAST_PAUSE)
        return found


def _count_page_faults() -> int:
    """The number of pages that were fetched from disk so far."""
    return resource.getrusage(_WHOSE).ru_majflt
