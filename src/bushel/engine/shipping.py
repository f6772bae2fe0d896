"""What is sent once: pipelines to workers, with their arrays in memory that all of them share; exceptions back."""

from __future__ import annotations

import os
import pickle
from typing import Any

import cloudpickle

from bushel.base.errors import PipelineNotSent
from bushel.base.memory import ALIGNMENT
from bushel.engine import wire
from bushel.engine.program import Program
from bushel.engine.slabs import anonymous_file
from bushel.graph.node import MapNode


def dumped(value: Any, what: str) -> bytes:
    """A small object for workers, or an error that says `what` cannot be sent."""
    try:
        return cloudpickle.dumps(value, protocol=5)
    except Exception as error:
        raise PipelineNotSent(f"{what} cannot be sent to worker processes: {error}") from error


def shared(program: Program, *, portable: bool) -> tuple[int, int, list[tuple[int, int]]]:
    """A program in a file that all workers map: (descriptor, size of the pickle, places of its arrays)."""
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < wire.IN_BAND_BYTES:
            return True
        buffers.append(buffer)
        return False

    try:
        pickled = cloudpickle.dumps(program, protocol=5, buffer_callback=keep)
    except Exception as error:
        raise PipelineNotSent(f"{_culprit(program)} cannot be sent to worker processes: {error}") from error
    places: list[tuple[int, int]] = []
    end = len(pickled)
    for buffer in buffers:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + buffer.raw().nbytes
        places.append((start, buffer.raw().nbytes))
    descriptor = anonymous_file(max(end, 1), portable=portable)
    os.pwrite(descriptor, pickled, 0)
    for buffer, (start, _) in zip(buffers, places, strict=True):
        raw, done = buffer.raw(), 0
        while done < raw.nbytes:
            done += os.pwrite(descriptor, raw[done : done + (1 << 30)], start + done)
    return descriptor, len(pickled), places


def _culprit(program: Program) -> str:
    """The first operation that cannot be pickled, as it was written."""
    queue: list[Any] = [*program.steps, program.node]
    for node in queue:
        for value in node.parameters().values():
            try:
                cloudpickle.dumps(value)
            except Exception:
                return node.call()
        if isinstance(node, MapNode):
            queue.extend(node.parents)
    return "The pipeline"


def rebuilt(pickled: bytes, shown: str) -> Exception:
    """An exception of a worker as it was, or its text where it could not travel."""
    if pickled:
        error, notes, cause = pickle.loads(pickled)
        for note in notes:
            if note not in getattr(error, "__notes__", []):
                error.add_note(note)
        error.__cause__ = cause
        return error
    return RuntimeError(f"An exception in a worker process could not be sent. It said:\n{shown}")
