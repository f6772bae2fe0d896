"""`Actors`, the executor of a Ray cluster.

It has what the consumer holds, the thread that runs the actors, and the way of programs and rows through Ray's object
store.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import logging
import os
import pickle
import platform
import queue
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from bushel._src.base import background
from bushel._src.base.errors import add_note
from bushel._src.base.options import RayOptions
from bushel._src.engine.actors import cluster
from bushel._src.engine.actors.worker import PRIVATE_BYTES, ActorLocation, ActorWorker, Announcer, Setup, TaskHeader
from bushel._src.engine.measurements import format_size
from bushel._src.engine.pool import program_table, wire
from bushel._src.engine.pool.autotune import Tuned
from bushel._src.engine.pool.executor import PooledExecutor, count_results
from bushel._src.engine.pool.jobs import Job, PoolOptions, PoolWorker, ResultBuffer
from bushel._src.engine.pool.program_table import pickle_or_explain
from bushel._src.engine.pool.results import NO_ACCELERATOR, unpack_error
from bushel._src.engine.pool.supervisor import PoolSupervisor
from bushel._src.engine.program import Misfit
from bushel._src.engine.shared_memory import DmaMapper
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import Doing, Executor, WorkerActivity

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


@dataclasses.dataclass(slots=True, eq=False)
class ActorHandle(PoolWorker):
    """An actor as the pool sees it."""

    name: str
    handle: Any
    location: ActorLocation | None = None
    """Where it runs; None until it has started."""
    loading: int = 0
    """How many programs it is receiving. Until it has them, it computes nothing."""
    alive: bool = True


@dataclasses.dataclass(slots=True)
class NodeFigures:
    """The work and the deaths of the actors on one machine."""

    node_id: str
    host: str
    blocks: int = 0
    size_bytes: int = 0
    busy_s: float = 0.0
    deaths: int = 0

    def describe(self, actors: int) -> str:
        """Return a line of a report, given how many actors the machine has now."""
        died = f", {self.deaths} died" if self.deaths else ""
        done = f"{self.blocks:,} blocks, {format_size(self.size_bytes)}, {self.busy_s:.2f} s of work"
        return f"Node {self.host} ({self.node_id[:8]}): {actors} {'actor' if actors == 1 else 'actors'}{died}; {done}."


def describe_death(error: BaseException, member: ActorHandle) -> str:
    """Return how an actor ended, as the end of a sentence, from what Ray says about it."""
    where = "" if member.location is None else f" on node {member.location.host}"
    text = str(error)
    _, label, detail = text.partition("Worker exit detail: ")
    if not label:
        detail = text.strip().splitlines()[-1] if text.strip() else type(error).__name__
    reason = detail.partition(" Some common causes")[0].strip().rstrip(".")
    return f"ended{where} ({reason})"


_TICK_S = 1.0  # how often the thread looks whether Ray is still there, while nothing happens
_TICK_TIMEOUT_S = 0.2  # the same if elements have a time limit
_ANSWER_S = 10.0  # how long the announcer may take to answer


class ActorSupervisor(PoolSupervisor[ActorHandle]):
    """A pool of actors and the thread that talks to them.

    Args:
      ray: the module.
      options: the size of the pool and its limits.
      resources: what Ray reserves for each actor.
      store_bytes: how many bytes of the smallest object store of the cluster this pool may use.
    """

    kind = "actors"
    stop_s = 10.0

    def __init__(self, ray: Any, options: PoolOptions, resources: Mapping[str, float], store_bytes: int):
        super().__init__(options, program_table.ProgramTable(SharedArrays(ray, store_bytes).put_program))
        self._ray = ray
        self._resources = dict(resources)
        self._setup = functools.partial(
            Setup,
            background.working_folder(),
            background.search_path(),
            {} if resources.get("GPU") else NO_ACCELERATOR,
            program_table.pickle_or_explain(wire.dumps, options.init, lambda: "worker_init_fn"),
            count=options.num_workers,
            version=cluster.read_version(),
        )
        self._pool_name = f"bushel-{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._names = itertools.count()
        self._events: queue.SimpleQueue[tuple[ActorHandle, Job | None, Future[Any]] | None] = queue.SimpleQueue()
        self._store_bytes = store_bytes
        self._largest_bytes = 0  # of the last results
        self.nodes: dict[str, NodeFigures] = {}
        self._announcer: Any = None
        self._ended = False
        for index in range(options.at_first):
            self._start_worker(index)
        self._thread.start()

    def _describe_worker(self, worker: ActorHandle) -> str:
        where = "" if worker.location is None else f" (process {worker.location.pid} on node {worker.location.host})"
        return f"Actor {worker.name}{where}"

    def _describe_start(self) -> list[str]:
        starting = sum(not member.is_ready for member in list(self.workers))
        if not starting:
            return []
        room = cluster.describe_room(self._ray, self._resources)
        return [f"{starting} actors wait until Ray starts them; each needs {self._resources} ({room})."]

    def describe_nodes(self) -> tuple[str, ...]:
        """Return a line for each machine that has computed something."""
        with self._lock:
            places = [member.location.node_id for member in self.workers if member.location is not None]
            return tuple(figures.describe(places.count(node)) for node, figures in self.nodes.items())

    def _wake(self) -> None:
        self._events.put(None)

    def _pack_rows(self, rows: Any) -> Any:
        return pack_rows(rows)

    def _handle_events(self) -> None:
        """Wait for an event and handles all that are there."""
        tick_s = _TICK_S if self._timeout_s is None else _TICK_TIMEOUT_S
        try:
            event = self._events.get(timeout=self._get_patience(tick_s))
        except queue.Empty:
            event = None
        # Any call of an actor after `ray.shutdown` would connect this process to another cluster, or start one.
        if not self._ray.is_initialized():
            self._give_up(RuntimeError("Ray was shut down while an iterator used its actors."))
            return
        with contextlib.suppress(queue.Empty):
            while not self._stopping:
                if event is not None:
                    with self._lock:
                        self._handle_answer(*event)
                event = self._events.get_nowait()

    def _call(self, member: ActorHandle, method: Any, *arguments: Any, job: Job | None = None) -> None:
        """Call a method of an actor. When it has answered, the thread calls `_handle_answer`."""

        def on_done(done: Future[Any]) -> None:
            self._events.put((member, job, done))
            if self._ended:
                self._drop_events()

        method.remote(*arguments).future().add_done_callback(on_done)

    def _update_workers(self) -> None:
        present = {member.index for member in self.workers}
        for index in range(self._active):
            if index not in present:
                self._start_worker(index)
        # Idle ones that `resize` does not want any more are ended.
        for member in [member for member in self.workers if member.index >= self._active and not member.jobs]:
            if not any(member.programs.values()):  # it may be the only one that has a stream open
                self._remove_worker(member)

    def _is_full(self, running_jobs: int) -> bool:
        fills_store = (running_jobs + 1) * self._largest_bytes > self._store_bytes
        return fills_store or self.buffer.is_full(running_jobs)

    def _send_job(self, worker: ActorHandle, job: Job) -> None:
        if job.program not in worker.programs:
            stored = self._programs.get(job.program)
            worker.programs[job.program] = isinstance(job.task.program, StreamProgram)
            worker.loading += 1
            self._call(worker, worker.handle.load, job.program, *stored.as_arguments())
        if worker.busy_since is None and not worker.loading:
            worker.busy_since = time.monotonic()
        counts = job.task.counts
        assert counts is not None, "shares_counts is False"
        task = TaskHeader(job.number, job.program, job.task.low, job.high, counts, job.row_by_row, job.start)
        # An actor has died over these positions. Now it announces each element, so that the pool knows which one kills.
        announcer = self._get_announcer() if job.careful else None
        self._call(worker, worker.handle.run, task, job.rows, announcer, job=job)

    def _send_forget(self, worker: ActorHandle, program: int) -> None:
        worker.handle.forget.remote(program)

    # Answers of actors: `_on_<kind>` handles an answer of that kind.

    def _handle_answer(self, member: ActorHandle, job: Job | None, future: Future[Any]) -> None:
        if not member.alive:
            return  # its jobs have gone to other actors
        error = future.exception()
        if error is None:
            kind, *rest = future.result()
            if job is None:
                getattr(self, f"_on_{kind}")(member, *rest)
            elif job in member.jobs:
                getattr(self, f"_on_{kind}")(member, job, *rest)
            return
        known = self._ray.exceptions
        died = isinstance(error, (known.RayActorError, known.WorkerCrashedError, known.OutOfMemoryError))
        lost = isinstance(error, (known.ObjectLostError, known.NodeDiedError))
        if getattr(error, "_actor_init_failed", False) or not (died or lost):
            add_note(error, "bushel: an actor could not be started. Is Bushel installed on every node of the cluster?")
            self._give_up(error)
        else:
            # If a result is lost, the machine that held it is gone, and the actor with it.
            self._replace_worker(member, error, computing=died)

    def _on_ready(self, member: ActorHandle, location: ActorLocation) -> None:
        member.location, member.is_ready = location, True
        self.nodes.setdefault(location.node_id, NodeFigures(location.node_id, location.host))
        if cluster.asks_for_token() and not location.asks_for_token:
            cluster.warn_of_open_node(location.host)

    def _on_loaded(self, member: ActorHandle) -> None:
        member.loading -= 1
        if not member.loading and member.jobs:
            member.busy_since = time.monotonic()

    def _on_done(
        self, member: ActorHandle, job: Job, pickled: Any, arrays: list[Any], details: bytes, seconds: float
    ) -> None:
        """Copy the rows out of the object store, whose memory is free again at once, and end the job."""
        packed, memory = take_out(self.buffer, job, pickled, arrays)
        self._largest_bytes = max(packed.size_bytes, int(0.9 * self._largest_bytes))
        assert member.location is not None
        figures = self.nodes[member.location.node_id]
        figures.blocks += 1
        figures.size_bytes += packed.size_bytes
        figures.busy_s += seconds
        self._finish_job(member, job, ([(packed, pickle.loads(details), memory)], seconds))

    def _on_misfit(self, member: ActorHandle, job: Job) -> None:
        self._finish_job(member, job, Misfit())

    def _on_failed(self, member: ActorHandle, job: Job, pickled: bytes, text: str) -> None:
        self._finish_job(member, job, _unpack_error(pickled, text))

    def _finish_job(self, member: ActorHandle, job: Job, outcome: Any) -> None:
        # Ray runs the next call of the actor at once.
        member.busy_since = time.monotonic() if len(member.jobs) > 1 else None
        self._finish(member, job, outcome)

    def _on_broken(self, member: ActorHandle, sentence: str, pickled: bytes, text: str) -> None:
        self._report_broken(member, sentence, _unpack_error(pickled, text))

    # Actors that start, that are killed, and that die.

    def _start_worker(self, index: int) -> None:
        name = f"{self._pool_name}-worker-{index}.{next(self._names)}"
        actor = self._ray.remote(ActorWorker).options(
            name=name,
            max_restarts=0,  # the pool itself starts another one, since it must know which element was to blame
            max_task_retries=0,
            scheduling_strategy="SPREAD",
            num_cpus=self._resources.get("CPU", 0),
            num_gpus=self._resources.get("GPU", 0),
            memory=self._resources.get("memory"),
            resources={key: amount for key, amount in self._resources.items() if key not in ("CPU", "GPU", "memory")},
        )
        member = ActorHandle(index, name, actor.remote(name), is_ready=False)
        self.workers.append(member)
        self._call(member, member.handle.setup, self._setup(index=index))

    def _kill(self, worker: ActorHandle) -> None:
        self._kill_actor(worker.handle)

    def _kill_actor(self, handle: Any) -> None:
        with contextlib.suppress(Exception):
            if self._ray.is_initialized():
                self._ray.kill(handle, no_restart=True)

    def _remove_worker(self, member: ActorHandle) -> None:
        member.alive = False
        self.workers.remove(member)
        self._kill(member)

    def _replace_worker(self, member: ActorHandle, error: BaseException, *, computing: bool) -> None:
        """Start an actor in the place of a dead one."""
        self._remove_worker(member)
        if member.location is not None:
            self.nodes[member.location.node_id].deaths += 1
        now, activity = time.monotonic(), WorkerActivity(Doing.NOTHING_ALONE)
        if computing and (job := member.running) is not None:
            activity = WorkerActivity(Doing.BLOCK, job.number)
            if job.careful:
                activity = self._read_announcements([member]).get(member.name, WorkerActivity(Doing.NOTHING_ALONE))
        pause_s = self._take_over_jobs(member, activity, describe_death(error, member), now)
        if pause_s is not None and member.index < self._active:  # no pause: Ray takes longer to start an actor
            self._start_worker(member.index)

    def _explain_deaths(self, worker: ActorHandle) -> str:
        where = "." if self._init_name is None else f", perhaps in worker_init_fn={self._init_name}."
        return where + (cluster.MIXED if worker.location is None and cluster.asks_for_token() else "")

    def _update_announcements(self) -> None:
        careful = [member for member in self.workers if member.running and member.running.careful]
        activities = self._read_announcements(careful)
        for member in careful:
            activity, job = activities.get(member.name), member.running
            if job is not None and activity is not None and activity.doing is Doing.ROW:
                job.announced, member.busy_since = activity.positions, activity.since

    def _get_announcer(self) -> Any:
        if self._announcer is None:
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            here = affinity(self._ray.get_runtime_context().get_node_id(), soft=True)
            self._announcer = (
                self._ray.remote(Announcer)
                .options(
                    name=f"{self._pool_name}-announcer-{next(self._names)}",
                    num_cpus=0,
                    scheduling_strategy=here,
                    max_restarts=-1,  # it may forget what it knew: workers announce each element anew
                    max_task_retries=-1,
                )
                .remote()
            )
        return self._announcer

    def _read_announcements(self, members: list[ActorHandle]) -> dict[str, WorkerActivity]:
        """Return what each of these actors does that runs row by row, or has done when it died, as far as it has said
        so.
        """
        if not members or self._announcer is None:
            return {}
        try:
            names = [member.name for member in members]
            answers = self._ray.get(self._announcer.read.remote(names), timeout=_ANSWER_S)
        except self._ray.exceptions.RayError:
            self._announcer = None  # its machine is dead: the next job that announces elements gets another one
            return {}
        activities: dict[str, WorkerActivity] = {}
        for member in members:
            number, low, high, ago_s = answers.get(member.name, (-1, 0, 0, 0.0))
            job = member.running
            if job is None or number != job.number:
                continue
            if low == high:  # it packs the block, which has many rows
                activities[member.name] = WorkerActivity(Doing.BLOCK, number)
                continue
            unit, since = job.task.program.unit, time.monotonic() - ago_s
            row = job.task.low + (low - job.task.low) // unit * unit
            activities[member.name] = WorkerActivity(
                Doing.ROW, number, (row, min(row + unit, job.high)), (low, high), 0, since, since
            )
        return activities

    def _drop_events(self) -> None:
        """Empty the queue after the thread has ended: events hold references to objects in the store."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.get_nowait()

    def _end_workers(self) -> None:
        self._ended = True
        self._drop_events()
        for member in list(self.workers):
            self._remove_worker(member)
        if self._announcer is not None:
            self._kill_actor(self._announcer)
            self._announcer = None


def _unpack_error(pickled: bytes, text: str) -> BaseException:
    """Return the exception of an actor. It is rebuilt in a thread of its own.

    The frames of its traceback keep the frames of their callers alive, as long as the user keeps the exception. The
    frames of the pool's thread hold references to objects in the store.
    """
    errors: list[BaseException] = []
    thread = threading.Thread(target=lambda: errors.append(unpack_error(pickled, text)))
    thread.start()
    thread.join()
    return errors[0]


DEFAULT_BUDGET_BYTES = 1 << 30

STORE_SHARE = 1 / 3
"""How much of the smallest object store of the cluster our results may fill. The rest is for others."""


class Actors(PooledExecutor[ActorSupervisor]):
    """Runs tasks in actors of a Ray cluster, which send their results through Ray's object store.

    Args:
      num_workers: how many actors there are at most; as many as the cluster has room for, if it is None.
      at_first: how many there are until `resize` is called; all by default.
      init: called as init(actor index, actor count) in every actor before its first task.
      resources: what Ray reserves for each actor.
      budget_bytes: limits the memory of results that wait for the consumer.
      timeout_s: an element that takes longer is treated like an element that kills its actor; None waits for ever.
      mapper: maps the memory of results, so that a GPU can read them by itself.
    """

    kind = "actors"
    block_bytes = 32 << 20  # more than with processes: each object costs Ray about 2 ms of processor time

    def __init__(
        self,
        num_workers: int | None,
        *,
        at_first: int | None = None,
        init: Callable[[int, int], None] | None = None,
        resources: Mapping[str, float] | None = None,
        budget_bytes: int | None = None,
        timeout_s: float | None = None,
        mapper: DmaMapper | None = None,
    ):
        ray = cluster.connect()
        resources = {"CPU": 1} if resources is None else resources
        if num_workers is None:
            num_workers = max(1, cluster.count_room(ray, resources), at_first or 1)
        store_bytes = int(STORE_SHARE * cluster.measure_smallest_store(ray))
        budget_bytes = budget_bytes or min(DEFAULT_BUDGET_BYTES, store_bytes)
        block_bytes = min(self.block_bytes, min(budget_bytes, store_bytes) // count_results(num_workers))
        first = num_workers if at_first is None else min(at_first, num_workers)
        options = PoolOptions(num_workers, first, init, timeout_s, budget_bytes, block_bytes, mapper)
        super().__init__(options, ActorSupervisor(ray, options, resources, store_bytes))


def start_actors(
    options: RayOptions, init: Callable[[int, int], None] | None = None, mapper: DmaMapper | None = None
) -> Executor:
    """Return the actors that options ask for: a fixed number, or as many as make the pipeline faster."""
    chosen = options.num_workers is not None
    least = options.min_workers or 1
    actors = Actors(
        options.num_workers if chosen else options.max_workers,
        at_first=None if chosen else least,
        init=init,
        resources=options.resources_per_worker,
        budget_bytes=options.budget_bytes,
        timeout_s=options.timeout_s,
        mapper=mapper,
    )
    return actors if chosen else Tuned(actors, least)


_kept: contextvars.ContextVar[tuple[RayOptions, Executor] | None] = contextvars.ContextVar("kept", default=None)


@contextlib.contextmanager
def keeping_actors(options: RayOptions) -> Iterator[None]:
    """Start actors that all iterators with these options use inside of this block; ends them after it."""
    executor = start_actors(options)
    before = _kept.set((options, executor))
    try:
        yield
    finally:
        _kept.reset(before)
        executor.close()


def find_kept(options: RayOptions) -> Executor | None:
    """Return the actors that a block of `keeping_actors` has started for these options."""
    kept = _kept.get()
    return kept[1] if kept is not None and kept[0] == options else None
