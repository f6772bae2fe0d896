"""Programs and rows on their way into Ray's object store, and results on their way out of it."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import weakref
from typing import Any

import numpy as np

from bushel._src.engine.actors.worker import PRIVATE_BYTES
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.jobs import Job, ResultBuffer
from bushel._src.engine.pool.program_table import pickle_or_explain

logger = logging.getLogger("bushel")


@dataclasses.dataclass(eq=False)
class _StoredArray:
    """An array in the object store, and the array here: while it is kept, no other one can have its address."""

    ref: Any
    buffer: pickle.PickleBuffer


@dataclasses.dataclass
class StoredProgram:
    """A program in the object store: a reference to its pickle, and its arrays, of which the large ones are there."""

    pickled: Any
    arrays: list[np.ndarray | _StoredArray]

    def as_arguments(self) -> tuple[Any, ...]:
        """Return the arguments for `ActorWorker.load`. Ray replaces each reference by its object."""
        return self.pickled, *(array.ref if isinstance(array, _StoredArray) else array for array in self.arrays)


def pack_rows(rows: Any) -> tuple[bytes, list[np.ndarray]]:
    """Return rows for a task, as Ray takes them; or raise an error that says that they cannot be sent."""
    pickled, buffers = pickle_or_explain(wire.pickle_for_worker, rows, lambda: "Elements")
    return pickled, [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


class SharedArrays:
    """Programs in the object store. An array that several of them hold is there once.

    Args:
      ray: the module.
      store_bytes: how much may be there, beyond which a warning says that Ray will write it to disk.
    """

    def __init__(self, ray: Any, store_bytes: int):
        self._ray = ray
        self._store_bytes = store_bytes
        # By address and size. Programs hold the arrays: an array is freed with the last program that needs it.
        self._arrays: weakref.WeakValueDictionary[tuple[int, int], _StoredArray] = weakref.WeakValueDictionary()

    def put_program(self, program: Any) -> StoredProgram:
        """Put a program into the object store."""
        pickled, buffers = wire.pickle_for_worker(program)
        try:
            return StoredProgram(self._ray.put(pickled), [self._put(buffer) for buffer in buffers])
        except self._ray.exceptions.RayError as error:
            raise MemoryError(f"The pipeline does not fit into the object store of Ray: {error}") from error

    def _put(self, buffer: pickle.PickleBuffer) -> np.ndarray | _StoredArray:
        array = np.frombuffer(buffer.raw(), np.uint8)
        if array.nbytes < PRIVATE_BYTES:
            return array  # travels with the call, and each actor has a copy of its own
        key = array.__array_interface__["data"][0], array.nbytes
        stored = self._arrays.get(key)
        if stored is None:
            before = sum(size for _, size in self._arrays)
            if before <= self._store_bytes < before + array.nbytes:
                logger.warning(
                    "The arrays in memory of this pipeline have %.1f GB, which is more than a third of the smallest "
                    "object store of the Ray cluster. Ray may write objects to disk, which is slow. Give the nodes "
                    "larger object stores, or let the pipeline read its records from files that all nodes can read.",
                    (before + array.nbytes) / 1e9,
                )
            stored = self._arrays[key] = _StoredArray(self._ray.put(array), buffer)
        return stored


def take_out(buffer: ResultBuffer, job: Job, pickled: Any, arrays: list[np.ndarray]) -> tuple[wire.Packed, Any]:
    """Copy a result into memory of this process, and add it to the buffer. Return it, and the memory of its slot.

    The user may write into the copies, as into the arrays of worker processes. The object in Ray's store is free again
    at once, however long the consumer keeps its batches.
    """
    body = bytes(pickled.data) if isinstance(pickled, np.ndarray) else pickled
    extents, end = wire.lay_out(array.nbytes for array in arrays)
    size = len(body) + sum(array.nbytes for array in arrays)
    slot = buffer.grant_slot(0) if arrays else None
    if slot is not None and end <= slot.arena.slot_bytes:
        job.slot = slot
        packed = wire.Packed(body, extents, [], size, end)
        memory = buffer.add_result(job, packed)
        assert memory is not None
        for array, (start, length) in zip(arrays, extents, strict=True):
            np.frombuffer(memory[start : start + length], np.uint8)[:] = array
        return packed, memory
    if slot is not None:
        slot.arena.give_back(slot.number)
    copies = [wire.copy_aligned(array) for array in arrays]
    packed = wire.Packed(body, None if arrays else [], copies, size, end)
    buffer.add_result(job, packed)
    return packed, None
