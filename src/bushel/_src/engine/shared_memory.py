"""Slabs: shared memory in slots of one size, which workers write and a GPU may read by itself.

The consumer's arrays look into the slots.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import queue
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from bushel._src.base.background import start_thread
from bushel._src.base.memory import ALIGNMENT


def uses_temporary_file(*, portable: bool) -> bool:
    """Return whether shared memory is in a temporary file, because there is no memfd."""
    return portable or not hasattr(os, "memfd_create")


def make_anonymous_file(size: int, *, portable: bool = False) -> int:
    """Make shared memory without a name and return its file descriptor: a memfd, or else a deleted temporary file."""
    if not uses_temporary_file(portable=portable):
        descriptor = os.memfd_create("bushel", os.MFD_CLOEXEC)
    else:
        import tempfile  # here: a worker process begins sooner without it

        with tempfile.TemporaryFile(prefix="bushel-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def write_all(descriptor: int, data: Any, start: int) -> None:
    """Write all of a buffer into a file, from offset `start` on. Raise OSError if the file system has no room."""
    view, done = memoryview(data), 0
    while done < view.nbytes:
        # In chunks: Linux writes at most 2 GiB at a time, and macOS refuses more.
        done += os.pwrite(descriptor, view[done : done + (1 << 30)], start + done)


def _reserve(descriptor: int, start: int, size: int) -> None:
    """Make the file system set aside room for part of a file, or raise OSError.

    Without it, a process that writes into the mapped file when the disk is full is killed by SIGBUS.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
    else:
        write_all(descriptor, bytes(size), start)


class Slab:
    """Slots of shared memory with a free list. One thread grants slots; leases may end on any thread.

    In a temporary file, whose file system may be small, room for a slot is reserved before its first use. If there is
    no room for the first slot, that is an OSError. If there is no room for a later one, the arena has fewer slots.
    """

    def __init__(self, slot_bytes: int, slots: int, *, portable: bool = False):
        self.slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.slots = slots
        self.descriptor = make_anonymous_file(self.slot_bytes * slots, portable=portable)
        self._is_in_file = uses_temporary_file(portable=portable)
        # Slots below `_touched` were granted before. The others use no memory yet, and there may be very many of them.
        self._touched = 0
        self._free: list[int] = []  # of the touched ones
        self._leased: set[int] = set()
        # A lease ends inside the garbage collector, on any thread, which may hold any lock. So `_end_lease` may take no
        # lock: it changes a set, and puts the number of the slot into this queue.
        self._returned: queue.SimpleQueue[int] = queue.SimpleQueue()
        try:
            self._reserve_slot(0)
            self._map = mmap.mmap(self.descriptor, self.slot_bytes * slots)
        except OSError:
            self.close()
            raise

    def _reserve_slot(self, slot: int) -> None:
        if self._is_in_file:
            _reserve(self.descriptor, slot * self.slot_bytes, self.slot_bytes)

    def grant(self) -> int | None:
        """Return the number of a free slot, which is then held; None if all are held."""
        while not self._returned.empty():
            self._free.append(self._returned.get())
        if self._free:
            return self._free.pop()  # the one used last: its pages are in memory, and perhaps in the cache
        if self._touched < self.slots:
            try:
                self._reserve_slot(self._touched)
            except OSError:
                self.slots = self._touched
            else:
                self._touched += 1
                return self._touched - 1
        return None

    def give_back(self, slot: int) -> None:
        """Free a slot that was granted and not leased."""
        self._returned.put(slot)

    def lease(self, slot: int) -> memoryview:
        """Return the memory of a slot that was granted.

        The slot is free again when nothing looks into that memory any more.

        Every array on the memory keeps the ctypes object alive, also through slices and views: so its end is the end of
        the last array.
        """
        memory = (ctypes.c_char * self.slot_bytes).from_buffer(self._map, slot * self.slot_bytes)
        self._leased.add(slot)
        finalizer = weakref.finalize(memory, self._end_lease, slot)
        finalizer.atexit = False  # at exit nobody needs the slot, and there may be many of these
        return memoryview(memory).cast("B")

    def _end_lease(self, slot: int) -> None:
        self._leased.discard(slot)
        self._returned.put(slot)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.descriptor < 0

    def locate(self, slot: int) -> int:
        """Return the address of a slot in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + slot * self.slot_bytes

    def count_leases(self) -> int:
        """Return how many slots arrays look into."""
        return len(self._leased)

    def count_held(self) -> int:
        """Return how many slots are granted or leased."""
        return self._touched - len(self._free) - self._returned.qsize()

    def close(self) -> None:
        """Close the descriptor. The memory itself stays mapped until the last leased slot is free."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Slot:
    """One slot in a worker: memory for the arrays of one task, allocated from its start to its end.

    `used` also counts an allocation that did not fit, so it says how large the slot should have been.
    """

    def __init__(self, memory: memoryview):
        self._memory = memory
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if len(memory) else 0
        self.used = 0

    def reset(self) -> None:
        """Free everything, for the next task."""
        self.used = 0

    def allocate(self, size: int) -> int | None:
        """Return the offset of `size` aligned bytes; None if they do not fit."""
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        self.used = offset + size
        return offset if self.used <= len(self._memory) else None

    def make_array(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> np.ndarray | None:
        """Return an array in this slot; None if it does not fit. See `bushel._src.base.memory.Allocator`."""
        offset = self.allocate(size)
        return None if offset is None else np.frombuffer(self.view(offset, size), dtype=dtype).reshape(shape)

    def view(self, offset: int, size: int) -> memoryview:
        return self._memory[offset : offset + size]

    def find_offset(self, address: int, size: int) -> int | None:
        """Return the offset of an array that was made in this slot; None for memory from elsewhere."""
        offset = address - self._start
        return offset if offset >= 0 and offset + size <= len(self._memory) else None


logger = logging.getLogger("bushel")

_POLL_S = 0.02
"""How often the thread checks whether the last array of a closed arena is deleted."""

_STOP = object()


class DmaMapper:
    """Maps slots of arenas for a client of JAX, and unmaps them when their arena is closed and unused.

    A slot may be unmapped only when no transfer out of it is under way: otherwise the GPU's context is lost. JAX keeps
    an array until its transfer is done, and an array holds the lease of its slot. So the thread waits until the arena
    has no lease left.

    Args:
      client: an object with `dma_map(address, size)` and `dma_unmap(address)`, such as `jax.devices()[0].client`.
    """

    def __init__(self, client: Any):
        self._client = client
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asked: dict[Slab, set[int]] = {}
        """The slots of each open arena that are mapped, or will be."""
        self._mapped: dict[Slab, list[int]] = {}
        """The addresses of the slots that are mapped. Only the thread changes it."""
        self._closed: set[Slab] = set()
        self._failed = False
        self._exiting = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def map(self, arena: Slab, slot: int) -> None:
        """Ask for a slot to be mapped, and return at once. Asking again changes nothing."""
        asked = self._asked.setdefault(arena, set())
        if slot not in asked and not self._failed and not arena.is_closed:
            asked.add(slot)
            self._start()
            self._requests.put((arena, slot))

    def close(self, arena: Slab) -> None:
        """Unmap the slots of an arena as soon as no array uses them."""
        if self._asked.pop(arena, None):
            self._requests.put(arena)

    def stop(self) -> None:
        """End the thread once all arenas are closed and unmapped. May be called from a finalizer."""
        self._requests.put(_STOP)

    def count_mapped_bytes(self) -> int:
        """Return how many bytes are mapped now."""
        return sum(arena.slot_bytes * len(addresses) for arena, addresses in list(self._mapped.items()))

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = start_thread("bushel-dma", self._exit, self._run)

    def _exit(self) -> None:
        """End the thread at once. Slots stay mapped until the process ends."""
        self._exiting = True
        self._requests.put(None)

    def _run(self) -> None:
        stopping = False
        while not self._exiting and not (stopping and not self._mapped):
            try:
                request = self._requests.get(timeout=_POLL_S if self._closed else None)
            except queue.Empty:
                request = None
            if request is _STOP:
                stopping = True
            elif isinstance(request, Slab):
                self._closed.add(request)
            elif request is not None:
                self._map_now(*request)
            request = None
            for arena in [arena for arena in self._closed if not arena.count_leases()]:
                self._closed.remove(arena)
                self._unmap_now(arena)

    def _map_now(self, arena: Slab, slot: int) -> None:
        address = arena.locate(slot)
        try:
            self._client.dma_map(address, arena.slot_bytes)
        except Exception as error:
            # For instance a limit on locked memory. Transfers work without it, only more slowly.
            logger.info("Memory cannot be mapped for the GPU (%s): transfers use ordinary memory.", error)
            self._failed = True
        else:
            self._mapped.setdefault(arena, []).append(address)

    def _unmap_now(self, arena: Slab) -> None:
        for address in self._mapped.pop(arena, []):
            try:
                self._client.dma_unmap(address)
            except Exception as error:
                logger.info("Memory cannot be unmapped from the GPU: %s", error)


def find_mapper(devices: Iterable[Any]) -> DmaMapper | None:
    """Return a mapper for devices of JAX; None for CPUs, and where JAX's client cannot map memory."""
    for device in devices:
        if device.platform != "cpu" and hasattr(device.client, "dma_map") and hasattr(device.client, "dma_unmap"):
            return DmaMapper(device.client)
    return None
