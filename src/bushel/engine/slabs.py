"""Slabs: shared memory in slots of one size. Workers write results into them, the consumer sees them as arrays.

The memory has no name: it goes when the last process that maps it does, whatever the way of dying. A slot is free
again when the last array that looks into it is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import tempfile
import weakref
from typing import Any

from bushel.base.memory import ALIGNMENT


def is_a_file(*, portable: bool) -> bool:
    """Whether shared memory is a temporary file, for want of a memfd."""
    return portable or not hasattr(os, "memfd_create")


def anonymous_file(size: int, *, portable: bool = False) -> int:
    """A descriptor of shared memory without a name: a memfd, or an unlinked temporary file where there is none."""
    if not is_a_file(portable=portable):
        descriptor = os.memfd_create("bushel", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix="bushel-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def write(descriptor: int, data: Any, start: int) -> None:
    """Writes all of a buffer into a file, or says that there is no room."""
    view, done = memoryview(data), 0
    while done < view.nbytes:
        done += os.pwrite(descriptor, view[done : done + (1 << 30)], start + done)


def _reserve(descriptor: int, start: int, size: int) -> None:
    """Makes sure that part of a file has its room: a process that writes where there is none is killed."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
    else:
        write(descriptor, bytes(size), start)


class Arena:
    """Slots of shared memory with a free list. One thread grants and takes back; leases may end on any thread.

    Where it lies in a temporary file, whose file system may be small, a slot gets its room before its first use.
    If there is none for the first, that is an OSError; if there is none for another, there are so many slots.
    """

    def __init__(self, slot_bytes: int, slots: int, *, portable: bool = False):
        self.slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.slots = slots
        self.descriptor = anonymous_file(self.slot_bytes * slots, portable=portable)
        self._is_a_file = is_a_file(portable=portable)
        self._begun = 0  # those below were granted once
        self._free: list[int] = []  # of these: there may be far more slots than are ever used
        # A lease ends inside the garbage collector, on any thread: it may do no more than put a number here.
        self._returned: queue.SimpleQueue[int] = queue.SimpleQueue()
        try:
            self._make_ready(0)
            self._map = mmap.mmap(self.descriptor, self.slot_bytes * slots)
        except OSError:
            self.close()
            raise

    def _make_ready(self, slot: int) -> None:
        """Gets a slot its room."""
        if self._is_a_file:
            _reserve(self.descriptor, slot * self.slot_bytes, self.slot_bytes)

    def grant(self) -> int | None:
        """A free slot, for its next user alone; None where all are held."""
        while not self._returned.empty():
            self._free.append(self._returned.get())
        if self._free:
            return self._free.pop()  # the last one used: its pages are still in the cache
        if self._begun < self.slots:
            try:
                self._make_ready(self._begun)
            except OSError:
                self.slots = self._begun
            else:
                self._begun += 1
                return self._begun - 1
        return None

    def give_back(self, slot: int) -> None:
        """Takes back a slot that nobody looks into."""
        self._returned.put(slot)

    def lease(self, slot: int) -> memoryview:
        """The memory of a slot; the slot comes back by itself when nothing looks into that memory any more."""
        memory = (ctypes.c_char * self.slot_bytes).from_buffer(self._map, slot * self.slot_bytes)
        finalizer = weakref.finalize(memory, self._returned.put, slot)
        finalizer.atexit = False
        return memoryview(memory).cast("B")

    def held(self) -> int:
        """How many slots are granted or leased."""
        return self._begun - len(self._free) - self._returned.qsize()

    def close(self) -> None:
        """Lets go of the memory; what is leased stays until its last view is gone."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Slot:
    """One slot as a worker sees it: memory handed out from the start to the end, for one task.

    `used` counts what was handed out, and what was asked for in vain.
    """

    def __init__(self, memory: memoryview):
        self._memory = memory
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if len(memory) else 0
        self.used = 0

    def reset(self) -> None:
        self.used = 0

    def place(self, size: int) -> int | None:
        """The offset of `size` aligned bytes; None where they do not fit."""
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        self.used = offset + size
        return offset if self.used <= len(self._memory) else None

    def part(self, offset: int, size: int) -> memoryview:
        return self._memory[offset : offset + size]

    def offset_of(self, address: int, size: int) -> int | None:
        """Where in the slot an array lies that was made in it; None for memory from elsewhere."""
        offset = address - self._start
        return offset if offset >= 0 and offset + size <= len(self._memory) else None
