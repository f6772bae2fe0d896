"""Objects in shared memory: programs and rows on their way to worker processes."""

from __future__ import annotations

import functools
import mmap
import os
import pickle
import weakref
from typing import Any

from bushel._src.engine.pool import wire
from bushel._src.engine.pool.shipping import share
from bushel._src.engine.slabs import make_anonymous_file, write_all


class SharedObject:
    """An object in shared memory: its pickle and its large arrays, which workers map and do not copy."""

    def __init__(self, value: Any, *, portable: bool):
        pickled, buffers = wire.pickle_for_worker(value)
        self.size = len(pickled)
        self.places, end = wire.lay_out((buffer.raw().nbytes for buffer in buffers), self.size)
        self.descriptor = make_anonymous_file(max(end, 1), portable=portable)
        # Not at exit: the pool's thread may still be sending this descriptor, whose number another file could get.
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        write_all(self.descriptor, pickled, 0)
        for buffer, (start, _) in zip(buffers, self.places, strict=True):
            write_all(self.descriptor, buffer.raw(), start)


def load_shared(descriptor: int, size: int, places: list[tuple[int, int]]) -> Any:
    """The object of a `SharedObject`, in a worker. Closes the descriptor.

    The mapping is copy-on-write: workers share its pages, and a function that writes into an array changes only the
    page of its own worker.
    """
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    return pickle.loads(view[:size], buffers=[view[offset : offset + length] for offset, length in places])


def share_rows(rows: Any, *, portable: bool) -> SharedObject:
    """Rows for a task, in shared memory; or an error that says that they cannot be sent."""
    return share(functools.partial(SharedObject, portable=portable), rows, lambda: "Elements")
