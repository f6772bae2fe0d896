"""The code that runs in an actor: it receives programs and tasks, and returns results. supervisor.py calls it.

Ray calls the methods of an actor one after the other, in the order in which the consumer has called them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pickle
import platform
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from bushel._src.base import grain_names
from bushel._src.base.background import must_end
from bushel._src.base.errors import add_note
from bushel._src.engine.actors import cluster
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.results import (
    KEPT_BYTES,
    LARGEST_KEPT,
    call_init,
    forget_program,
    keeps_default_memory,
    pack_broken,
    pack_each_row,
    pack_error,
    pack_result,
)
from bushel._src.engine.program import Announce, Misfit, Program
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import become_worker, run_task

PRIVATE_BYTES = 1 << 20
"""An actor copies smaller arrays of the pipeline, so that functions may write into them. It shares larger ones."""

_BESIDE_BYTES = 1 << 16  # a longer pickle of rows travels like an array, and not inside of another pickle

Answer = tuple[Any, ...]
"""The return value of a method: the kind of the answer, as a str, and its parts."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """The environment of an actor, and the user's `worker_init_fn`."""

    folder: str
    search_path: list[str]
    variables: dict[str, str]
    init: bytes
    index: int
    count: int
    version: str


class ActorLocation(NamedTuple):
    """Where an actor runs."""

    node_id: str
    host: str
    pid: int
    asks_for_token: bool


class TaskHeader(NamedTuple):
    """A task without its program and its rows."""

    job: int
    program: int
    low: int
    high: int
    counts: list[int]
    row_by_row: bool
    start: tuple[int, bytes] | None


class ActorWorker:
    """The state of an actor. Its methods never raise: an error is an answer, so that Ray does not change it."""

    def __init__(self, name: str):
        self._name = name
        self._host = platform.node()
        self._programs: dict[int, Program | StreamProgram] = {}

    def __repr__(self) -> str:
        return self._name  # Ray shows it in its dashboard, and before what the actor prints

    def setup(self, setup: Setup) -> Answer:
        """Make this process ready for tasks, and call the user's `worker_init_fn`."""
        import ray

        become_worker()
        if keeps_default_memory():
            _keep_freed_memory()
        if (version := cluster.read_version()) != setup.version:
            sentence = f"Node {self._host} has Bushel {version}, and this process has Bushel {setup.version}."
            return "broken", sentence, *pack_error(RuntimeError("Install the same version of Bushel everywhere."))
        with contextlib.suppress(OSError):  # another machine may not have this folder
            os.chdir(setup.folder)
        sys.path.extend(entry for entry in setup.search_path if entry not in sys.path)
        os.environ.update(setup.variables)
        grain_names.install_where_asked()
        try:
            call_init(setup.init, setup.index, setup.count)
        except BaseException as error:
            return pack_broken(f"worker_init_fn failed on node {self._host}.", error)
        context = ray.get_runtime_context()
        return "ready", ActorLocation(context.get_node_id(), self._host, os.getpid(), cluster.asks_for_token())

    def load(self, number: int, pickled: bytes, *buffers: np.ndarray) -> Answer:
        """Receive a program. Its large arrays stay in the object store of this machine, for all actors there."""
        try:
            with wire.track_pipeline_classes():
                copied_if_small = [
                    bytearray(buffer.data) if buffer.nbytes < PRIVATE_BYTES else buffer.data for buffer in buffers
                ]
                self._programs[number] = pickle.loads(pickled, buffers=copied_if_small)
        except BaseException as error:
            return pack_broken(f"A worker on node {self._host} cannot load the pipeline.", error)
        return ("loaded",)

    def forget(self, number: int) -> None:
        """Drop a program that nobody needs any more."""
        forget_program(self._programs, number)

    def run(self, task: TaskHeader, rows: tuple[bytes, list[np.ndarray]] | None, announcer: Any) -> Answer:
        """Run a task. With an announcer, it says before each element which one it is."""
        start = time.perf_counter()
        program = self._programs[task.program]
        announce = None if announcer is None else self._make_announce(announcer, task.job)
        try:
            given: Any = None
            if rows is not None:  # copies: the object store allows no writing, and the user's functions may write
                given = pickle.loads(rows[0], buffers=[bytearray(part.data) for part in rows[1]])
            elif task.start is not None:
                given = task.start[0], pickle.loads(task.start[1])
            counts = task.counts
            result = run_task(program, task.low, task.high, lambda step, _: counts[step], announce, given)
            if announce is not None:
                pack_each_row(program, task.low, result, announce)
                announce(task.low, task.low)  # no row alone: from here on it packs the block
            if result.failure is not None:
                add_note(result.failure, f"bushel: on node {self._host}.")
            packed, details = pack_result(program, result, _pack_beside, row_by_row=task.row_by_row)
            return "done", *packed, pickle.dumps(details, protocol=5), time.perf_counter() - start
        except Misfit:
            return ("misfit",)
        except BaseException as error:
            if must_end(error):
                raise
            return "failed", *pack_error(error)

    def _make_announce(self, announcer: Any, job: int) -> Announce:
        import ray
        from ray.exceptions import RayError

        def announce(low: int, high: int) -> None:
            # Waits for the answer: if the element kills this process, the consumer must know which one it was. If
            # there is none, the block runs all the same: it is not the fault of the element.
            with contextlib.suppress(RayError):
                ray.get(announcer.announce.remote(self._name, job, low, high))

        return announce


def _keep_freed_memory() -> None:
    """Make the C library keep the memory of a block for the next block: see `KEPT_BYTES`. Nothing without glibc."""
    trim_threshold, mmap_threshold = -1, -3  # the names are macros of malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, KEPT_BYTES)
        mallopt(mmap_threshold, LARGEST_KEPT)


def _pack_beside(rows: Any) -> tuple[Any, list[np.ndarray]]:
    """Return rows as a pickle, and their large arrays beside it.

    Ray writes arrays into its object store without a pickle.
    """
    pickled, buffers = wire.pickle_for_consumer(rows)
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    return (np.frombuffer(pickled, np.uint8) if len(pickled) > _BESIDE_BYTES else pickled), arrays


class Announcer:
    """An actor that remembers which element each worker computes. There is none until a worker has died.

    Ray does not deliver what an actor says while it runs a task. So workers tell it this one.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int, int, float]] = {}

    def announce(self, name: str, job: int, low: int, high: int) -> None:
        """A worker begins with elements [low, high) of a job; with none of them alone, if there are none."""
        self._last[name] = job, low, high, time.monotonic()

    def read(self, names: list[str]) -> dict[str, tuple[int, int, int, float]]:
        """For each worker of these that has announced something: job, low, high, and how many seconds ago."""
        now = time.monotonic()
        announced = {name: self._last[name] for name in names if name in self._last}
        return {name: (job, low, high, now - when) for name, (job, low, high, when) in announced.items()}
