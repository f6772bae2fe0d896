"""The thread that runs a pool of actors: it sends jobs, receives results and replaces dead actors.

Ray reports everything by futures, whose callbacks put events into one queue. The thread takes them out, one after the
other, and never runs user code. The consumer only waits for results and unpacks them (executor.py).
"""

from __future__ import annotations

import collections
import contextlib
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
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from bushel.base import clean_python
from bushel.base.errors import WorkerDied, add_note
from bushel.base.transforms import short_name
from bushel.engine import shipping
from bushel.engine.actors import cluster, store
from bushel.engine.actors.members import Member, NodeFigures, describe_death
from bushel.engine.actors.worker import ActorWorker, Announcer, Setup, TaskParts
from bushel.engine.blame import Blame
from bushel.engine.dma import DmaMapper
from bushel.engine.pool import Job, ResultBuffer
from bushel.engine.program import Misfit
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tasks import FORKED, Aborted, Task, Ticket
from bushel.engine.zygote import NO_ACCELERATOR

logger = logging.getLogger("bushel")

JOBS_PER_ACTOR = 2
"""The job that an actor computes, and the next: so it need not wait for a message in between."""

_TICK_S = 1.0  # how often the thread looks whether Ray is still there, while nothing happens
_TICK_TIMEOUT_S = 0.2  # the same if elements have a time limit
_ANSWER_S = 10.0  # how long the announcer may take to answer


class ActorSupervisor:
    """A pool of actors and the thread that talks to them. `Actors` documents the arguments.

    The consumer and the pool's thread share it; `_lock` guards the jobs and the members.
    """

    def __init__(
        self,
        ray: Any,
        num_workers: int,
        at_first: int,
        init: Any,
        resources: Mapping[str, float],
        budget_bytes: int,
        block_bytes: int,
        store_bytes: int,
        timeout_s: float | None,
        mapper: DmaMapper | None,
    ):
        self._ray = ray
        self._owner = os.getpid()
        self._num_workers, self._active = num_workers, at_first
        self._resources = dict(resources)
        self._timeout_s = timeout_s
        self._init_name = None if init is None else short_name(init)
        self._setup = functools.partial(
            Setup,
            clean_python.folder(),
            clean_python.search_path(),
            {} if resources.get("GPU") else NO_ACCELERATOR,
            shipping.pickle_for_workers(init, "worker_init_fn"),
            count=num_workers,
            version=cluster.read_version(),
        )
        self._pool_name = f"bushel-{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._names = itertools.count()
        self._lock = threading.RLock()
        self._events: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._waiting: collections.deque[Job] = collections.deque()  # no actor has them, in the order of their numbers
        self._jobs: dict[int, Job] = {}  # all jobs without a result
        self._rows: dict[int, tuple[bytes, list[np.ndarray]]] = {}  # of jobs that bring their rows along
        self._next_job = 0
        self._programs = shipping.ProgramTable(store.SharedArrays(ray, store_bytes).put_program)
        self._store_bytes = store_bytes
        self._largest_bytes = 0  # of the last results
        self.buffer = ResultBuffer(budget_bytes, block_bytes, num_workers, mapper=mapper)
        self.members: list[Member] = []
        self.nodes: dict[str, NodeFigures] = {}
        self.deaths = 0
        self._deaths_in_a_row = 0
        self._blame = Blame(timeout_s)
        self._announcer: Any = None
        self._stopping = False
        self._ended = False
        self._ended_by: BaseException | None = None
        self._reraises = False  # whether `submit` raises that error itself, because it came from an actor
        self._thread = threading.Thread(target=self._run, name="bushel-actors", daemon=True)
        for index in range(at_first):
            self._start_member(index)
        self._thread.start()

    # Called by the consumer.

    def submit(self, task: Task, *, row_by_row: bool = False) -> Job:
        self._check_owner()
        start, rows = None, None
        if isinstance(task.program, StreamProgram):
            run, state = task.given
            start = run, shipping.pickle_for_workers(state, f"The state of {task.program.node.describe()}")
        elif task.given is not None:
            rows = store.pack_rows(task.given)
        with self._lock:
            if self._ended_by is not None:
                if self._reraises:
                    raise self._ended_by.with_traceback(None)
                raise RuntimeError("The actors of this iterator have ended.") from self._ended_by
            program = self._programs.add(task.program)
            job = Job(task, Future(), self._next_job, program, task.high, None, start, row_by_row)
            self._next_job += 1
            self._jobs[job.number] = job
            if rows is not None:
                self._rows[job.number] = rows
            self._waiting.append(job)
        self._events.put(None)
        return job

    def mark_urgent(self, job: Job) -> None:
        """Takes note that the consumer waits for this job: it begins even if the buffer is full."""
        self._check_owner()
        job.urgent = True
        if not job.assigned:
            self._events.put(None)

    def forget(self, tickets: list[Ticket]) -> None:
        """Drops jobs. Takes no lock: closing an iterator must not wait for Ray."""
        if self._owner != os.getpid():
            return
        for ticket in tickets:
            assert isinstance(ticket, Job)
            ticket.footprint.released = True
            ticket.settle(Aborted())
        self._events.put(None)

    def resize(self, workers: int) -> None:
        with self._lock:
            self._active = max(1, min(workers, self._num_workers))
        self._events.put(None)

    def all_have_finished_one(self) -> bool:
        with self._lock:
            active = [member for member in self.members if member.index < self._active]
            return sum(member.has_finished for member in active) == self._active

    def describe_progress(self, job: Job) -> str:
        """Says what each actor computes, and since when; or why no actor has started."""
        with self._lock:
            lines = []
            for member in self.members:
                running = member.running
                if member.place is None or running is None or member.busy_since is None:
                    continue
                what = running.task.program.which(*(running.announced or (running.task.low, running.high)))
                where = f"Actor {member.name} (process {member.place.pid} on node {member.place.host})"
                lines.append(f"{where} has been computing {what} for {time.monotonic() - member.busy_since:.1f} s.")
            starting = sum(member.place is None for member in self.members)
        if starting:
            room = cluster.describe_room(self._ray, self._resources)
            lines.append(f"{starting} actors wait until Ray starts them; each needs {self._resources} ({room}).")
        return "\n".join(lines) or "No actor has begun to compute it."

    def describe_nodes(self) -> tuple[str, ...]:
        """A line for each machine that has computed something."""
        with self._lock:
            places = [member.place.node_id for member in self.members if member.place is not None]
            return tuple(figures.describe(places.count(node)) for node, figures in self.nodes.items())

    def stop(self) -> None:
        if self._owner != os.getpid():
            return
        self._stopping = True
        self._events.put(None)
        # The garbage collector may call this on any thread, also on the pool's own, which cannot join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError(FORKED)

    # Called by the pool's thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._handle_events()
                if self._stopping:
                    break
                with self._lock:
                    if self._timeout_s is not None:
                        self._kill_slow_actors(self._timeout_s)
                    self._change_members()
                    self._assign_jobs()
                    self._drop_programs()
        except BaseException as error:
            self._fail_all(error)
        finally:
            self._end()

    def _handle_events(self) -> None:
        """Waits for an event and handles all that are there."""
        timeout_s = _TICK_S if self._timeout_s is None else _TICK_TIMEOUT_S
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            event = None
        # Any call of an actor after `ray.shutdown` would connect this process to another cluster, or start one.
        if not self._ray.is_initialized():
            self._give_up(RuntimeError("Ray was shut down while an iterator used its actors."))
            return
        with contextlib.suppress(queue.Empty):
            while not self._stopping:
                if event is not None:
                    handle, arguments = event
                    with self._lock:
                        handle(*arguments)
                event = self._events.get_nowait()

    def _call(self, method: Any, arguments: tuple[Any, ...], handle: Callable[..., None], *context: Any) -> None:
        """Calls a method of an actor. The thread calls `handle(*context, future)` when there is an answer."""

        def on_done(done: Future[Any]) -> None:
            self._events.put((handle, (*context, done)))
            if self._ended:
                self._drop_events()

        method.remote(*arguments).future().add_done_callback(on_done)

    def _start_member(self, index: int) -> None:
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
        member = Member(index, name, actor.remote(name))
        self.members.append(member)
        self._call(member.handle.setup, (self._setup(index=index),), self._on_setup, member)

    def _change_members(self) -> None:
        """Starts the actors that `resize` has asked for, and ends idle ones that it does not want any more."""
        present = {member.index for member in self.members}
        for index in range(self._active):
            if index not in present:
                self._start_member(index)
        for member in [member for member in self.members if member.index >= self._active and not member.jobs]:
            if not any(member.programs.values()):  # it may be the only one that has a stream open
                self._remove_member(member)

    def _assign_jobs(self) -> None:
        """Sends waiting jobs to actors, as long as a job may begin and an actor can take it."""
        for job in [job for job in self._waiting if job.footprint.released]:
            self._waiting.remove(job)
            self._drop_job(job)
        running = sum(len(member.jobs) for member in self.members)
        for job in list(self._waiting):
            roomy = [one for one in self.members if one.place is not None and len(one.jobs) < JOBS_PER_ACTOR]
            full = self.buffer.is_full(running) or (running + 1) * self._largest_bytes > self._store_bytes
            if not roomy or (full and not any(job.urgent for job in self._waiting)):
                break
            if (job.urgent or not full) and (member := self._choose_member(job, roomy)) is not None:
                self._waiting.remove(job)
                self._send_job(member, job)
                running += 1

    def _choose_member(self, job: Job, roomy: list[Member]) -> Member | None:
        """The actor among `roomy` that should get a job; None if there is none. A stream stays where it is open."""
        able = [member for member in roomy if member.index < self._active]
        if isinstance(job.task.program, StreamProgram):
            holder = next((member for member in self.members if job.program in member.programs), None)
            if holder is not None:
                return holder if holder in roomy else None
            return min(able, key=lambda member: (sum(member.programs.values()), len(member.jobs)), default=None)
        return min(able, key=lambda member: len(member.jobs), default=None)

    def _send_job(self, member: Member, job: Job) -> None:
        if job.program not in member.programs:
            stored = self._programs.get(job.program)
            member.programs[job.program] = isinstance(job.task.program, StreamProgram)
            member.loading += 1
            self._call(member.handle.load, (job.program, *stored.as_arguments()), self._on_loaded, member)
        job.assigned, job.announced = True, None
        member.jobs.append(job)
        if member.busy_since is None and not member.loading:
            member.busy_since = time.monotonic()
        counts = job.task.counts
        assert counts is not None, "shares_counts is False"
        task = TaskParts(job.number, job.program, job.task.low, job.high, counts, job.row_by_row, job.start)
        self._blame.add_known_deaths(job)
        # An actor has died over these positions. Now it announces each element, so that the pool knows which one kills.
        announcer = self._get_announcer() if job.deaths else None
        self._call(member.handle.run, (task, self._rows.get(job.number), announcer), self._on_answer, member, job)

    def _drop_programs(self) -> None:
        for number in self._programs.remove_collected():
            for member in self.members:
                if member.programs.pop(number, None) is not None:
                    member.handle.forget.remote(number)

    # Answers of actors.

    def _read(self, member: Member, future: Future[Any]) -> tuple[Any, ...] | None:
        """The answer of an actor; None if it is dead, or nobody waits for it any more."""
        if not member.alive:
            return None
        error = future.exception()
        if error is None:
            return future.result()
        known = self._ray.exceptions
        died = isinstance(error, (known.RayActorError, known.WorkerCrashedError, known.OutOfMemoryError))
        lost = isinstance(error, (known.ObjectLostError, known.NodeDiedError))
        if getattr(error, "_actor_init_failed", False) or not (died or lost):
            add_note(error, "bushel: an actor could not be started. Is Bushel installed on every node of the cluster?")
            self._give_up(error)
        else:
            # If a result is lost, the machine that held it is gone, and the actor with it.
            self._replace_member(member, error, computing=died)
        return None

    def _on_setup(self, member: Member, future: Future[Any]) -> None:
        answer = self._read(member, future)
        if answer is None:
            return
        if answer[0] == "broken":
            self._on_broken(member, *answer[1:])
            return
        member.place = place = answer[1]
        self.nodes.setdefault(place.node_id, NodeFigures(place.node_id, place.host))
        if cluster.asks_for_token() and not place.asks_for_token:
            cluster.warn_of_open_node(place.host)

    def _on_loaded(self, member: Member, future: Future[Any]) -> None:
        answer = self._read(member, future)
        if answer is None:
            return
        if answer[0] == "broken":
            self._on_broken(member, *answer[1:])
            return
        member.loading -= 1
        if not member.loading and member.jobs:
            member.busy_since = time.monotonic()

    def _on_answer(self, member: Member, job: Job, future: Future[Any]) -> None:
        answer = self._read(member, future)
        if answer is None or job not in member.jobs:
            return
        member.jobs.remove(job)
        member.busy_since = time.monotonic() if member.jobs else None
        member.has_finished = True
        self._deaths_in_a_row = 0
        kind, *parts = answer
        if kind == "misfit":
            self._settle(job, Misfit())
        elif kind == "failed":
            self._settle(job, _unpack_error(*parts))
        else:
            pickled, arrays, details, seconds = parts
            self._settle_rows(member, job, pickled, arrays, pickle.loads(details), seconds)

    def _settle_rows(
        self, member: Member, job: Job, pickled: Any, arrays: list[Any], details: shipping.ResultDetails, seconds: float
    ) -> None:
        """Copies the rows out of the object store, whose memory is free again at once, and ends the job."""
        packed, memory = store.take_out(self.buffer, job, pickled, arrays)
        details.failure = details.failure or job.error_after_rows
        self._largest_bytes = max(packed.size_bytes, int(0.9 * self._largest_bytes))
        assert member.place is not None
        figures = self.nodes[member.place.node_id]
        figures.blocks += 1
        figures.size_bytes += packed.size_bytes
        figures.busy_s += seconds
        self._settle(job, (packed, details, memory, seconds))

    def _on_broken(self, member: Member, what: str, pickled: bytes, text: str) -> None:
        error = _unpack_error(pickled, text)
        add_note(error, f"bushel: {what}.")
        if member.jobs and isinstance(error, ImportError):
            add_note(error, shipping.explain_import_error(member.jobs[0].task.program, error))
        self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._reraises = True
        self._fail_all(error)
        self._stopping = True

    def _settle(self, job: Job, outcome: Any) -> None:
        """Ends a job with its result or its error."""
        job.settle(outcome)
        self._drop_job(job)

    def _drop_job(self, job: Job) -> None:
        self._jobs.pop(job.number, None)
        self._rows.pop(job.number, None)

    # Actors that die.

    def _remove_member(self, member: Member) -> None:
        member.alive = False
        self.members.remove(member)
        self._kill(member.handle)

    def _kill(self, handle: Any) -> None:
        with contextlib.suppress(Exception):
            if self._ray.is_initialized():
                self._ray.kill(handle, no_restart=True)

    def _replace_member(self, member: Member, error: BaseException, *, computing: bool) -> None:
        """Starts an actor in the place of a dead one, whose jobs wait again. The first of them may have killed it."""
        self._remove_member(member)
        self.deaths += 1
        self._deaths_in_a_row += 1
        if member.place is not None:
            self.nodes[member.place.node_id].deaths += 1
        running = member.running if computing else None
        if running is not None and running.deaths:
            self._read_announcements([member])
        for job in member.jobs:
            job.assigned = False
        guilty = self._blame.record_death(running)
        how = describe_death(error, member)
        if guilty is not None and (blamed := self._blame.shorten(guilty, how)) is not None:
            self._settle(guilty, blamed)
            member.jobs.remove(guilty)
        if self._deaths_in_a_row > 10 * self._num_workers + 10:
            where = "" if self._init_name is None else f", perhaps in worker_init_fn={self._init_name}"
            why = cluster.MIXED if member.place is None and cluster.asks_for_token() else ""
            self._give_up(WorkerDied(f"Actors keep dying before they finish anything; the last one {how}{where}.{why}"))
            return
        # By number, so that the dead actor's jobs begin first: the consumer needs them first.
        self._waiting = collections.deque(sorted([*member.jobs, *self._waiting], key=lambda job: job.number))
        if member.index < self._active:
            self._start_member(member.index)

    def _kill_slow_actors(self, timeout_s: float) -> None:
        self._read_announcements([member for member in self.members if member.running and member.running.deaths])
        now = time.monotonic()
        for member in self.members:
            job = member.running
            if job is not None and member.busy_since is not None and now - member.busy_since > timeout_s:
                # A block may be slow although each of its elements is not. So the next attempt runs element by element,
                # and only a timeout of that attempt blames an element.
                job.overdue = job.timeouts > 0 and job.announced is not None
                job.timeouts += 1
                member.busy_since = now  # its death arrives later; it is not killed twice until then
                self._kill(member.handle)

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
                    max_restarts=-1,  # what it knew may be lost: it is told anew before each element
                    max_task_retries=-1,
                )
                .remote()
            )
        return self._announcer

    def _read_announcements(self, members: list[Member]) -> None:
        """Finds out which element each of these actors computes, or has computed when it died."""
        if not members or self._announcer is None:
            return
        try:
            names = [member.name for member in members]
            answers = self._ray.get(self._announcer.read.remote(names), timeout=_ANSWER_S)
        except self._ray.exceptions.RayError:
            self._announcer = None  # its machine is gone: the next careful job gets another one
            return
        for member in members:
            number, low, high, ago_s = answers.get(member.name, (-1, 0, 0, 0.0))
            job = member.running
            if job is not None and number == job.number:
                job.announced, member.busy_since = (low, high), time.monotonic() - ago_s

    # The end of the pool.

    def _fail_all(self, error: BaseException) -> None:
        """Ends all jobs with an error. Later calls of `submit` raise it, too."""
        with self._lock:
            self._ended_by = self._ended_by or error
            for job in self._jobs.values():
                job.settle(error)
            self._jobs.clear()
            self._rows.clear()
            self._waiting.clear()

    def _drop_events(self) -> None:
        """Empties the queue once nobody takes events out of it: they hold references to objects."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.get_nowait()

    def _end(self) -> None:
        self._ended = True
        self._drop_events()
        with self._lock:
            for member in list(self.members):
                self._remove_member(member)
            if self._announcer is not None:
                self._kill(self._announcer)
                self._announcer = None
            self._fail_all(RuntimeError("The actors of this iterator were closed."))
            self.buffer.close()
            self._programs.clear()


def _unpack_error(pickled: bytes, text: str) -> BaseException:
    """The exception of an actor. It is rebuilt in a thread of its own.

    The frames of its traceback keep the frames of their callers alive, as long as the user keeps the exception. The
    frames of the pool's thread hold references to objects in the store.
    """
    errors: list[BaseException] = []
    thread = threading.Thread(target=lambda: errors.append(shipping.unpack_error(pickled, text)))
    thread.start()
    thread.join()
    return errors[0]
