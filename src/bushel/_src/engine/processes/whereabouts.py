"""A few words of shared memory in which a worker process writes what it does. The pool reads them when it has died.

No message would do: a worker that is killed may not have sent it. Writing these words takes less than a microsecond.
"""

from __future__ import annotations

import mmap
import os
import time

from bushel._src.engine.pool.activity import Activity, Doing
from bushel._src.engine.slabs import make_anonymous_file, write_all

_DOING, _JOB, _ROW, _ROW_END, _LOW, _HIGH, _COUNTED, _ROW_SINCE, _SINCE = range(9)
_SIZE_BYTES = 8 * 9


class Whereabouts:
    """What one worker does. Worker and pool map the same memory.

    The worker writes word by word, and may die between two of them. So while it changes the others, the first word says
    that it does nothing alone.

    Args:
      descriptor: of shared memory of another `Whereabouts`, which is closed; None makes new memory.
    """

    def __init__(self, descriptor: int | None = None, *, portable: bool = False):
        if descriptor is None:
            self.descriptor = make_anonymous_file(_SIZE_BYTES, portable=portable)
            # Without this, a write would end this worker if the file system of temporary files were full.
            write_all(self.descriptor, bytes(_SIZE_BYTES), 0)
        else:
            self.descriptor = descriptor
        self._map = mmap.mmap(self.descriptor, _SIZE_BYTES)
        self._words = memoryview(self._map).cast("q")
        if descriptor is not None:
            os.close(descriptor)
            self.descriptor = -1

    def read(self) -> Activity:
        """Return what the worker does. Torn values are possible while it lives, and never after it has died."""
        words = self._words.tolist()
        return Activity(
            Doing(words[_DOING]),
            words[_JOB],
            (words[_ROW], words[_ROW_END]),
            (words[_LOW], words[_HIGH]),
            words[_COUNTED],
            words[_ROW_SINCE] / 1e9,
            words[_SINCE] / 1e9,
        )

    def close(self) -> None:
        """Close the descriptor of the pool. What the worker does can still be read."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    # Called by the worker.

    def begin(self, doing: Doing, job: int = -1, low: int = 0, high: int = 0) -> None:
        """The worker begins with something, which may be a row or block at positions [low, high) of a job."""
        words, now = self._words, time.monotonic_ns()
        words[_DOING] = Doing.NOTHING_ALONE
        words[_JOB], words[_COUNTED] = job, 0
        words[_ROW], words[_ROW_END], words[_LOW], words[_HIGH] = low, high, low, high
        words[_ROW_SINCE] = words[_SINCE] = now
        words[_DOING] = doing

    def move(self, low: int, high: int) -> None:
        """The worker begins with positions [low, high) of the row that it computes."""
        words, now = self._words, time.monotonic_ns()
        doing, words[_DOING] = words[_DOING], Doing.NOTHING_ALONE
        words[_LOW], words[_HIGH], words[_SINCE] = low, high, now
        words[_DOING] = doing

    def count(self, steps: int) -> None:
        """The row has reached so many counting steps."""
        self._words[_COUNTED] = steps

    def pause(self) -> int:
        """The worker waits for something. Returns what `resume` takes."""
        doing, self._words[_DOING] = self._words[_DOING], Doing.NOTHING_ALONE
        return doing

    def resume(self, doing: int) -> None:
        """The worker goes on after `pause`."""
        self._words[_ROW_SINCE] = self._words[_SINCE] = time.monotonic_ns()
        self._words[_DOING] = doing

    def end(self) -> None:
        """The worker has ended what it did."""
        self._words[_DOING] = Doing.NOTHING_ALONE
