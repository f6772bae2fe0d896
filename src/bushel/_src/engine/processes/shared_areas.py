"""Memory that the consumer and a worker process share: programs and rows, what the worker does, and its stack."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import mmap
import os
import pickle
import re
import signal
import time
import weakref
from typing import Any

from bushel._src.engine.pool import wire
from bushel._src.engine.pool.program_table import pickle_or_explain
from bushel._src.engine.shared_memory import make_anonymous_file, write_all
from bushel._src.engine.tasks import Doing, WorkerActivity, hide_library

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

    def read(self) -> WorkerActivity:
        """Return what the worker does. Torn values are possible while it lives, and never after it has died."""
        words = self._words.tolist()
        return WorkerActivity(
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
        """The worker waits for something. Return what `resume` takes."""
        doing, self._words[_DOING] = self._words[_DOING], Doing.NOTHING_ALONE
        return doing

    def resume(self, doing: int) -> None:
        """The worker goes on after `pause`."""
        self._words[_ROW_SINCE] = self._words[_SINCE] = time.monotonic_ns()
        self._words[_DOING] = doing

    def end(self) -> None:
        """The worker has ended what it did."""
        self._words[_DOING] = Doing.NOTHING_ALONE


_ANSWER_S = 1.0
_STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
_LAST_LINES = (b" in <module>\n", b"  ...\n")  # of the outermost frame; of a stack with more than 100 frames


class Stacks:
    """A file into which workers write their stack, one worker at a time, when they are asked."""

    def __init__(self, *, portable: bool):
        self.descriptor = make_anonymous_file(0, portable=portable)
        weakref.finalize(self, os.close, self.descriptor).atexit = False  # the pool's thread may still be sending it

    def read(self, pid: int) -> str:
        """Return the stack of a worker, innermost frame first. Ask the worker and wait a moment for the answer."""
        os.ftruncate(self.descriptor, 0)
        # All processes share one offset into the file. Without this the worker would write behind the last answer.
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _STACK_SIGNAL)
        answer, deadline = b"", time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            before, answer = answer, os.pread(self.descriptor, 1 << 16, 0)
            # faulthandler writes line by line, and on a busy machine it may be interrupted for long. So it is not
            # enough that the file has stopped to grow: the last line must be that of the outermost frame.
            if answer == before and answer.endswith(_LAST_LINES):
                break
            time.sleep(0.02)
        lines = _unescape(answer.decode(errors="replace")).splitlines()
        return hide_library(lines[1:]) if lines else "  (the worker does not answer)"


def _unescape(text: str) -> str:
    """A stack with the letters of file names that are not ASCII. faulthandler writes them as \\xf6 or \\u6570."""
    escape = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"
    return re.sub(escape, lambda found: chr(int(found[found.lastindex or 0], 16)), text)


def write_stack_on_signal(descriptor: int) -> None:
    """In a worker: from now on the signal of `Stacks` makes it write its stack into the file.

    faulthandler writes it from C, so it works while the user's code holds the GIL. A handler written in Python would
    have to wait.
    """
    faulthandler.register(_STACK_SIGNAL, file=descriptor, all_threads=False, chain=False)


class SharedObject:
    """An object in shared memory: its pickle and its large arrays, which workers map and do not copy."""

    def __init__(self, value: Any, *, portable: bool):
        pickled, buffers = wire.pickle_for_worker(value)
        self.size = len(pickled)
        self.extents, end = wire.lay_out((buffer.raw().nbytes for buffer in buffers), self.size)
        self.descriptor = make_anonymous_file(max(end, 1), portable=portable)
        # Not at exit: the pool's thread may still be sending this descriptor, whose number another file could get.
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        write_all(self.descriptor, pickled, 0)
        for buffer, (start, _) in zip(buffers, self.extents, strict=True):
            write_all(self.descriptor, buffer.raw(), start)


def load_object(descriptor: int, size: int, extents: list[tuple[int, int]]) -> Any:
    """Return the object of a `SharedObject`, in a worker. Close the descriptor.

    The mapping is copy-on-write: workers share its pages, and a function that writes into an array changes only the
    page of its own worker.
    """
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    return pickle.loads(view[:size], buffers=[view[offset : offset + length] for offset, length in extents])


def put_rows(rows: Any, *, portable: bool) -> SharedObject:
    """Return rows for a task, in shared memory; or an error that says that they cannot be sent."""
    return pickle_or_explain(functools.partial(SharedObject, portable=portable), rows, lambda: "Elements")
