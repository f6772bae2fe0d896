"""Blocks of records copied from mapped memory, as long as the file lies in memory.

The map itself is in `stores.py`, and so is what happens to a file that is cut short under it.
"""

from __future__ import annotations

import mmap
import resource
import time
from collections.abc import Callable

import numpy as np

from bushel.sources.stores import LocalFile

_QUICK_S = 50e-6  # no disk has answered yet
_LEAST_PAUSE, _MOST_PAUSE = 16, 4096
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)  # macOS counts for the whole process


class Mapping:
    """Decides for each block of a file whether it is copied from mapped memory or read.

    A page that is not in memory is fetched alone, and while Python's lock is held, so that all threads wait. A read
    does neither. So a block that met such pages is followed by a pause of blocks that are read: 16 of them, twice as
    many each time it happens again, and one less for each block that found its pages in memory.
    """

    def __init__(self, file: LocalFile):
        self._file = file
        self._to_read = 0  # so many blocks before the map is tried again
        self._pause = _LEAST_PAUSE
        self._long = True  # whether the last block took so long that the next one is worth a look

    def copied(
        self, copy: Callable[[mmap.mmap, np.ndarray], list[bytes] | None], spans: np.ndarray
    ) -> list[bytes] | None:
        """The records that `copy` takes from memory at `spans`; None where the block should be read."""
        if self._to_read > 0:
            self._to_read -= 1
            return None
        memory = self._file.mapped()
        if memory is None:
            return None
        before = _fetched() if self._long else None
        begun = time.perf_counter()
        found = copy(memory, spans)
        self._long = time.perf_counter() - begun > _QUICK_S
        if before is not None:
            if _fetched() > before:
                self._to_read, self._pause = self._pause, min(2 * self._pause, _MOST_PAUSE)
            else:
                self._pause = max(self._pause - 1, _LEAST_PAUSE)
        return found


def _fetched() -> int:
    """How many pages had to be fetched from the disk so far."""
    return resource.getrusage(_WHOSE).ru_majflt
