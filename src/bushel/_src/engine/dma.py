"""Memory that a GPU reads by itself: slots of arenas are mapped for DMA (direct memory access).

A GPU copies mapped memory at the speed of its link, without work for the CPU. Other memory is copied twice, and the
first of the two copies is made by the CPU. Mapping a slot takes about a millisecond, so it is done once, on a thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from typing import Any

from bushel._src.base.ending_threads import start_thread
from bushel._src.engine.slabs import Arena

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
        self._asked: dict[Arena, set[int]] = {}
        """The slots of each open arena that are mapped, or will be."""
        self._mapped: dict[Arena, list[int]] = {}
        """The addresses of the slots that are mapped. Only the thread changes it."""
        self._closed: set[Arena] = set()
        self._failed = False
        self._exiting = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def map(self, arena: Arena, slot: int) -> None:
        """Asks for a slot to be mapped, and returns at once. Asking again changes nothing."""
        asked = self._asked.setdefault(arena, set())
        if slot not in asked and not self._failed and not arena.is_closed:
            asked.add(slot)
            self._start()
            self._requests.put((arena, slot))

    def close(self, arena: Arena) -> None:
        """Unmap the slots of an arena as soon as no array uses them."""
        if self._asked.pop(arena, None):
            self._requests.put(arena)

    def stop(self) -> None:
        """Ends the thread once all arenas are closed and unmapped. May be called from a finalizer."""
        self._requests.put(_STOP)

    def count_mapped_bytes(self) -> int:
        """How many bytes are mapped now."""
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
            elif isinstance(request, Arena):
                self._closed.add(request)
            elif request is not None:
                self._map_now(*request)
            request = None
            for arena in [arena for arena in self._closed if not arena.count_leases()]:
                self._closed.remove(arena)
                self._unmap_now(arena)

    def _map_now(self, arena: Arena, slot: int) -> None:
        address = arena.locate(slot)
        try:
            self._client.dma_map(address, arena.slot_bytes)
        except Exception as error:
            # For instance a limit on locked memory. Transfers work without it, only more slowly.
            logger.info("Memory cannot be mapped for the GPU (%s): transfers use ordinary memory.", error)
            self._failed = True
        else:
            self._mapped.setdefault(arena, []).append(address)

    def _unmap_now(self, arena: Arena) -> None:
        for address in self._mapped.pop(arena, []):
            try:
                self._client.dma_unmap(address)
            except Exception as error:
                logger.info("Memory cannot be unmapped from the GPU: %s", error)


def find_mapper(devices: Iterable[Any]) -> DmaMapper | None:
    """A mapper for devices of JAX; None for CPUs, and where JAX's client cannot map memory."""
    for device in devices:
        if device.platform != "cpu" and hasattr(device.client, "dma_map") and hasattr(device.client, "dma_unmap"):
            return DmaMapper(device.client)
    return None
