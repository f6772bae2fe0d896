"""The executor of worker processes: tasks out, results back through slabs, dead workers replaced, nothing lost.

One thread does all the talking. It hands tasks to workers as slots come free, so that memory in flight has a bound;
the consumer only waits for results and takes them apart.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import queue
import selectors
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from bushel.base.errors import WorkerDied
from bushel.base.memory import ALIGNMENT
from bushel.engine import shipping, wire
from bushel.engine.program import Misfit, Program, Result
from bushel.engine.shipping import Shared, Told
from bushel.engine.slabs import Arena
from bushel.engine.tasks import Aborted, Executor, Task, Ticket
from bushel.engine.whole import StreamProgram
from bushel.engine.wire import Channel, Packed
from bushel.engine.zygote import FORKS, NO_ACCELERATOR, STARTER, THREADS
from bushel.graph.node import merged

logger = logging.getLogger("bushel")

DEFAULT_BUDGET_BYTES = 1 << 30
DEPTH = 2  # tasks a worker holds: the one it runs, and the next
CAREFUL_AFTER = 2  # deaths over one block, it is computed element by element
WATCHED_DEATHS = 6  # over one and the same element end the matter: so often no stray signal hits one


@dataclasses.dataclass(slots=True, eq=False)
class _Job:
    """A ticket on its way through the pool."""

    number: int
    ticket: Ticket
    program: int
    high: int
    rows: Shared | None = None
    """The rows that the task brings along."""
    slot: int | None = None
    arena: Arena | None = None
    urgent: bool = False
    forgotten: bool = False
    asked: tuple[int, int] | None = None
    """The counting step and the number of elements for which the worker waits."""
    deaths: int = 0
    at: tuple[int, int] | None = None
    killed_at: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    overdue: bool = False
    """Whether a single element has taken too long."""
    verdict: WorkerDied | None = None
    """What is to be said after the rows before `high`, once an element has killed too many workers."""


@dataclasses.dataclass(slots=True, eq=False)
class _Peer:
    """A worker as the pool sees it."""

    index: int
    channel: Channel
    pid: int
    jobs: collections.deque[_Job] = dataclasses.field(default_factory=collections.deque)
    programs: set[int] = dataclasses.field(default_factory=set)
    arena: Arena | None = None
    since: float | None = None
    """When it began what it works on, once it has said so."""
    watch: int = -1
    """A descriptor that tells of its death, where the system has such: a child of its own may keep its socket open."""
    served: bool = False
    """Whether it has finished anything."""


class Processes(Executor):
    """Worker processes with their shared memory.

    Args:
      num_workers: how many.
      init: called as init(worker index, worker count) in every worker before its first task.
      budget_bytes: bounds the shared memory for results.
      timeout_s: an element that takes longer counts as one that kills its worker; None waits for ever.
      portable: uses memory and a start of workers that any system has, without memfd and without fork.
      at_first: how many of them work until `resize`; all by default.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        init: Callable[[int, int], None] | None = None,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        timeout_s: float | None = None,
        portable: bool = False,
        at_first: int | None = None,
    ):
        self.parallelism = num_workers
        self.block_bytes = min(self.block_bytes, budget_bytes // (2 * _slots_for(num_workers)))
        self.limits_time = timeout_s is not None
        first = num_workers if at_first is None else at_first
        self._core = _Core(num_workers, init, budget_bytes, self.block_bytes, timeout_s, portable, first)
        self._finalizer = weakref.finalize(self, self._core.stop)

    def submit(self, task: Task) -> Ticket:
        return self._core.submit(task)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        packed, told, memory, seconds = self._core.wait(ticket)
        rows = wire.unpack(packed, memory)
        del memory
        return told.with_rows(rows), seconds

    def forget(self, tickets: list[Ticket]) -> None:
        self._core.forget(tickets)

    def close(self) -> None:
        self._finalizer()

    def resize(self, workers: int) -> None:
        """From now on so many of the workers get tasks; new ones start, others are parked when they have finished."""
        self._core.resize(workers)

    def all_have_served(self) -> bool:
        """Whether every worker that gets tasks has finished one."""
        return self._core.all_have_served()

    def pids(self) -> list[int]:
        """The process numbers of the workers."""
        return [peer.pid for peer in self._core.peers]


class _Core:
    """All of the pool but its handle: the talking thread holds it, so the handle can be collected."""

    def __init__(
        self,
        num_workers: int,
        init: Any,
        budget_bytes: int,
        block_bytes: int,
        timeout_s: float | None,
        portable: bool,
        at_first: int,
    ):
        self._owner = os.getpid()
        self._budget = budget_bytes
        self._block_bytes = block_bytes
        self._timeout_s = timeout_s
        self._portable = portable
        self._num_workers = num_workers
        self._active = at_first  # workers with an index below it get tasks
        self._init = shipping.dumped(init, "worker_init_fn")
        self._lock = threading.RLock()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._waiting: collections.deque[_Job] = collections.deque()
        self._jobs: dict[int, _Job] = {}
        self._of_ticket: dict[Ticket, _Job] = {}
        self._programs: dict[int, Shared] = {}
        self._program_numbers: weakref.WeakKeyDictionary[Program | StreamProgram, int] = weakref.WeakKeyDictionary()
        self._next_program = 0
        self._streams: set[int] = set()  # the programs among them that run a stream whole
        self._classes: list[type] = []
        self._unused: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._arena: Arena | None = None
        self._largest = 0
        self._warned = False
        self._deaths_in_a_row = 0
        self._stopping = False
        self._ended_by: BaseException | None = None
        self._broken = False  # whether that is an error of the user's
        self._next_job = 0
        self.peers: list[_Peer] = []
        try:
            for index in range(at_first):
                self._start(index)
        except BaseException:
            self._end()
            raise
        _CORES.add(self)
        self._thread = threading.Thread(target=self._talk, name="bushel-pool", daemon=True)
        self._thread.start()

    # Called by the consumer.

    def submit(self, task: Task) -> Ticket:
        self._check_owner()
        ticket = Ticket(task, Future())
        with self._lock:
            if self._ended_by is not None:
                if self._broken:
                    raise self._ended_by.with_traceback(None)
                raise RuntimeError("The worker processes of this iterator have ended.") from self._ended_by
            program = self._program(task.program)
            whole = isinstance(task.program, StreamProgram)
            rows = None if whole or task.given is None else shipping.shared_rows(task.given, portable=self._portable)
            job = _Job(self._next_job, ticket, program, task.high, rows)
            self._next_job += 1
            self._jobs[job.number] = self._of_ticket[ticket] = job
            self._waiting.append(job)
        self._wake()
        return ticket

    def wait(self, ticket: Ticket) -> tuple[Any, ...]:
        self._check_owner()
        with self._lock:
            job = self._of_ticket.get(ticket)
            if job is not None and not ticket.done.done():
                job.urgent = True
                if job in self._waiting:
                    self._wake()
        try:
            return ticket.done.result()
        finally:
            with self._lock:
                self._of_ticket.pop(ticket, None)

    def forget(self, tickets: list[Ticket]) -> None:
        if self._owner != os.getpid():
            return
        with self._lock:
            for ticket in tickets:
                job = self._of_ticket.pop(ticket, None)
                if job is not None:
                    job.forgotten = True
                    if not ticket.done.done():
                        ticket.done.set_exception(Aborted())  # somebody may wait for it
                    if job in self._waiting:
                        self._waiting.remove(job)
                        self._jobs.pop(job.number, None)
        self._wake()

    def resize(self, workers: int) -> None:
        with self._lock:
            self._active = max(1, min(workers, self._num_workers))
        self._wake()

    def all_have_served(self) -> bool:
        with self._lock:
            return sum(peer.served for peer in self.peers if peer.index < self._active) == self._active

    def stop(self) -> None:
        if self._owner != os.getpid():
            return
        self._stopping = True
        self._wake()
        if threading.current_thread() is not self._thread:  # the garbage collector runs on any thread
            self._thread.join(timeout=3)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError(
                "This iterator belongs to the process that forked this one. Make a new iterator here, or fork before."
            )

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_writer, b"x")

    def _program(self, program: Program | StreamProgram) -> int:
        number = self._program_numbers.get(program)
        if number is None:
            number = self._next_program
            self._programs[number] = shipping.shared_program(program, portable=self._portable)
            self._classes = wire.classes_sent()
            self._next_program += 1
            self._program_numbers[program] = number
            if isinstance(program, StreamProgram):
                self._streams.add(number)
            weakref.finalize(program, self._unused.put, number).atexit = False
        return number

    def _forget_programs(self) -> None:
        while not self._unused.empty():
            number = self._unused.get()
            del self._programs[number]
            self._streams.discard(number)
            for peer in self.peers:
                if number in peer.programs:
                    peer.programs.remove(number)
                    with contextlib.suppress(wire.Closed):
                        peer.channel.send(("forget", number))

    # Called by the talking thread.

    def _talk(self) -> None:
        try:
            while not self._stopping:
                timeout = 0.2 if self._timeout_s is not None else None
                for key, _ in self._selector.select(timeout):
                    if key.data is None:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wake_reader, 4096)
                    else:
                        peer: _Peer = key.data
                        self._hear(peer, died=key.fd == peer.watch)
                with self._lock:
                    if self._timeout_s is not None:
                        self._kill_the_slow(self._timeout_s)
                    self._answer_counts()
                    self._grow()
                    self._assign()
                    self._forget_programs()
        except BaseException as error:
            self._fail_all(error)
        finally:
            self._end()

    def _hear(self, peer: _Peer, *, died: bool) -> None:
        if peer not in self.peers:
            return  # buried a moment ago
        try:
            messages = peer.channel.arrived()
        except wire.Closed:
            messages, died = [], True
        with self._lock:
            for kind, *arguments in messages:
                getattr(self, f"_on_{kind}")(peer, *arguments)
            if died:
                self._bury(peer)

    def _grow(self) -> None:
        """Starts the workers that were asked for since; as many as the system allows will do."""
        try:
            while len(self.peers) < self._active:
                self._start(len(self.peers))
        except (OSError, RuntimeError) as error:
            if not self.peers:
                raise
            logger.warning("No more than %d worker processes could be started (%s).", len(self.peers), error)
            self._active = len(self.peers)

    def _assign(self) -> None:
        while (choice := self._choice()) is not None:
            job, peer = choice
            slot = self._arena.grant() if self._arena is not None else None
            if slot is None and self._arena is not None:
                self._warn_of_holding()
            self._waiting.remove(job)
            job.slot, job.arena, job.at, job.asked = slot, self._arena if slot is not None else None, None, None
            peer.jobs.append(job)
            with contextlib.suppress(wire.Closed):  # its end is heard next, and the job goes to another
                self._tell(peer, job)

    def _choice(self) -> tuple[_Job, _Peer] | None:
        """The first waiting job that can be begun, and who is to do it."""
        # While all slots are held, only what the consumer waits for goes on, by the heap.
        full = self._arena is not None and self._arena.held() == self._arena.slots
        for job in self._waiting:
            if (job.urgent or not full) and (peer := self._peer_for(job)) is not None:
                return job, peer
        return None

    def _peer_for(self, job: _Job) -> _Peer | None:
        """A worker with room, and none that holds a later job: that one may wait for the counts of this.

        A stream that is run whole stays with the worker that has it open, parked or not. Parked workers help out with
        a job that a dead one has left, if a later one is under way.
        """
        overtaken = any(peer.jobs and peer.jobs[-1].number > job.number for peer in self.peers)
        roomy = [
            peer
            for peer in self.peers
            if len(peer.jobs) < DEPTH and (not peer.jobs or peer.jobs[-1].number < job.number)
        ]
        able = [peer for peer in roomy if peer.index < self._active or overtaken]
        if isinstance(job.ticket.task.program, StreamProgram):
            holder = next((peer for peer in self.peers if job.program in peer.programs), None)
            if holder is not None:
                return holder if holder in roomy else None
            return min(able, key=lambda peer: (len(peer.programs & self._streams), len(peer.jobs)), default=None)
        return min(able, key=lambda peer: len(peer.jobs), default=None)

    def _tell(self, peer: _Peer, job: _Job) -> None:
        if job.program not in peer.programs:
            program = self._programs[job.program]
            peer.channel.send(("program", job.program, program.size, program.places), (program.descriptor,))
            peer.programs.add(job.program)
        if job.arena is not None and peer.arena is not job.arena:
            peer.channel.send(("arena", job.arena.slot_bytes), (job.arena.descriptor,))
            peer.arena = job.arena
        task = job.ticket.task
        careful = job.deaths >= CAREFUL_AFTER
        given, descriptors = task.given, ()
        if job.rows is not None:
            given, descriptors = (job.rows.size, job.rows.places), (job.rows.descriptor,)
        numbers = (job.number, job.program, task.low, job.high)
        peer.channel.send(("task", *numbers, task.counts, job.slot, careful, given), descriptors)

    def _on_done(self, peer: _Peer, number: int, packed: Packed, told: Told, seconds: float) -> None:
        job = self._finished(peer, number)
        self._largest = max(self._largest, packed.slot_bytes)
        memory = None
        if job.slot is not None and job.arena is not None:
            if packed.places and not job.forgotten:
                memory = job.arena.lease(job.slot)
            else:
                job.arena.give_back(job.slot)
        if packed.places is None or self._arena is None:
            self._make_room()
        if not job.forgotten:
            told.failure = told.failure or job.verdict
            job.ticket.done.set_result((packed, told, memory, seconds))  # type: ignore[arg-type]

    def _on_misfit(self, peer: _Peer, number: int) -> None:
        self._give_up(self._finished(peer, number), Misfit())

    def _on_aborted(self, peer: _Peer, number: int) -> None:
        self._give_up(self._finished(peer, number), Aborted())

    def _on_failed(self, peer: _Peer, number: int, pickled: bytes, shown: str) -> None:
        self._give_up(self._finished(peer, number), shipping.rebuilt(pickled, shown))

    def _on_count(self, peer: _Peer, number: int, step: int, count: int) -> None:
        job = self._jobs[number]
        task = job.ticket.task
        task.ledger.report(step, task.number, count)
        job.asked = (step, count)

    def _on_at(self, peer: _Peer, number: int, low: int, high: int) -> None:
        self._jobs[number].at = (low, high)
        peer.since = time.monotonic()

    def _on_begun(self, peer: _Peer, number: int) -> None:
        peer.since = time.monotonic()

    def _on_broken(self, peer: _Peer, what: str, pickled: bytes, shown: str) -> None:
        error = shipping.rebuilt(pickled, shown)
        error.add_note(f"bushel: {what}.")
        if peer.jobs and isinstance(error, ImportError):
            error.add_note(shipping.not_importable(peer.jobs[0].ticket.task.program, error))
        self._broken = True
        self._fail_all(error)
        self._stopping = True

    def _answer_counts(self) -> None:
        for peer in self.peers:
            job = peer.jobs[0] if peer.jobs else None
            if job is None or job.asked is None:
                continue
            task = job.ticket.task
            before = task.ledger.before(job.asked[0], task.number)
            if before is not None or job.forgotten:
                job.asked = None
                if peer.since is not None:
                    peer.since = time.monotonic()  # waiting was no work
                with contextlib.suppress(wire.Closed):
                    peer.channel.send(("abort",) if before is None else ("before", before))

    def _finished(self, peer: _Peer, number: int) -> _Job:
        job = peer.jobs.popleft()
        assert job.number == number, "workers answer in order"
        peer.since, peer.served = None, True
        self._jobs.pop(number, None)
        self._deaths_in_a_row = 0
        return job

    def _give_up(self, job: _Job, error: BaseException) -> None:
        if job.slot is not None and job.arena is not None:
            job.arena.give_back(job.slot)
        if not job.forgotten and not job.ticket.done.done():
            job.ticket.done.set_exception(error)

    def _bury(self, peer: _Peer) -> None:
        """A worker is dead: another takes its place and its tasks, the first of which may have killed it."""
        self._let_go(peer)
        how = STARTER.ended(peer.pid)
        self._deaths_in_a_row += 1
        for job in peer.jobs:
            if job.slot is not None and job.arena is not None:
                job.arena.give_back(job.slot)
            job.slot = job.arena = None
        if peer.jobs and peer.since is not None and peer.jobs[0].asked is None:  # it was at work, and did not wait
            culprit = peer.jobs[0]
            culprit.deaths += 1
            if culprit.at is not None:
                culprit.killed_at.append(culprit.at)
            again = culprit.killed_at[-WATCHED_DEATHS:]
            if culprit.overdue or (len(again) == WATCHED_DEATHS and len(set(again)) == 1):
                self._condemn(culprit, how)
                if culprit.ticket.done.done():
                    peer.jobs.popleft()
                    self._jobs.pop(culprit.number, None)
        if self._deaths_in_a_row > 10 * self._num_workers + 10:
            self._fail_all(WorkerDied(f"Worker processes keep dying before they finish anything; the last one {how}."))
            self._stopping = True
            return
        back = [job for job in peer.jobs if not job.forgotten]
        self._waiting = collections.deque(sorted([*back, *self._waiting], key=lambda job: job.number))
        self.peers.remove(peer)
        self._start(peer.index)

    def _condemn(self, job: _Job, how: str) -> None:
        """The block ends before the element that kills; what comes before it in the block is computed once more."""
        verdict, task = self._verdict(job, how), job.ticket.task
        good = task.low + (job.killed_at[-1][0] - task.low) // task.program.unit * task.program.unit
        if good == task.low:
            self._give_up(job, verdict)
        else:
            job.verdict, job.high, job.deaths, job.overdue = verdict, good, 0, False

    def _verdict(self, job: _Job, how: str) -> WorkerDied:
        low, high = job.killed_at[-1]
        program = job.ticket.task.program
        positions = range(low, min(high, low + 8))
        records = "; ".join(map(str, merged(origin for at in positions for origin in program.origins(at))))
        made_of = f" ({records})" if records else ""
        if job.overdue:
            what = f"took longer than timeout_s={self._timeout_s} s, twice."
        else:
            what = f"killed {job.deaths} worker processes one after the other; the last one {how}."
        died = WorkerDied(f"Computing {program.which(low, high)}{made_of} {what}")
        died.at = low, high
        return died

    def _kill_the_slow(self, timeout_s: float) -> None:
        now = time.monotonic()
        for peer in self.peers:
            job = peer.jobs[0] if peer.jobs else None
            if job is not None and job.asked is None and peer.since is not None and now - peer.since > timeout_s:
                # A block may be slow and each of its elements not: the next try goes element by element.
                job.overdue = job.deaths >= CAREFUL_AFTER and job.at is not None
                job.deaths = max(CAREFUL_AFTER - 1, job.deaths)
                peer.since = now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(peer.pid, signal.SIGKILL)

    def _start(self, index: int) -> None:
        channel, pid = STARTER.start(fork=FORKS and not self._portable)
        peer = _Peer(index, channel, pid)
        variables = {**THREADS, **os.environ, **NO_ACCELERATOR}
        with contextlib.suppress(wire.Closed):
            channel.send(("setup", os.getcwd(), list(sys.path), variables, self._init, index, self._num_workers))
        self._selector.register(channel.socket, selectors.EVENT_READ, peer)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it may be gone already: the end of its channel tells
                peer.watch = os.pidfd_open(pid)
                self._selector.register(peer.watch, selectors.EVENT_READ, peer)
        self.peers.append(peer)

    def _let_go(self, peer: _Peer) -> None:
        self._selector.unregister(peer.channel.socket)
        peer.channel.close()
        if peer.watch >= 0:
            self._selector.unregister(peer.watch)
            os.close(peer.watch)
            peer.watch = -1

    def _make_room(self) -> None:
        """An arena whose slots hold blocks of the usual size and the largest so far, as many as the budget allows.

        Memory that no one has written to does not exist yet, so slots may be larger than what they hold.
        """
        wanted = max(int(1.25 * self._block_bytes), int(1.25 * self._largest), ALIGNMENT)
        if self._arena is not None and self._arena.slot_bytes >= wanted:
            return
        count = min(_slots_for(self._num_workers), self._budget // wanted)
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        if count >= 2:
            try:
                self._arena = Arena(wanted, count, portable=self._portable)
            except OSError as error:  # results go on as copies
                logger.warning("No shared memory for results (%s): they are sent as copies.", error)
                self._budget = 0

    def _warn_of_holding(self) -> None:
        if self._warned or self._arena is None:
            return
        ours = sum(job.slot is not None for peer in self.peers for job in peer.jobs)
        ours += sum(ticket.done.done() for ticket in self._of_ticket)  # waiting to be handed over
        if self._arena.held() - ours > self._arena.slots // 2:
            self._warned = True
            held = (self._arena.held() - ours) * self._arena.slot_bytes
            logger.warning(
                "The shared memory for results is full: arrays that are still in use hold %.0f MB of it. Results go "
                "on as copies; to avoid them let go of batches, or raise MultiprocessingOptions.budget_bytes.",
                held / 1e6,
            )

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            self._ended_by = self._ended_by or error
            for ticket in self._of_ticket:
                if not ticket.done.done():
                    ticket.done.set_exception(error)
            self._jobs.clear()
            self._waiting.clear()

    def _end(self) -> None:
        with self._lock:
            for peer in self.peers:
                self._let_go(peer)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(peer.pid, signal.SIGKILL)
            for peer in self.peers:
                STARTER.reap(peer.pid)
            self.peers.clear()
            self._fail_all(RuntimeError("The worker processes of this iterator were closed."))
            if self._arena is not None:
                self._arena.close()
            self._programs.clear()
            self._selector.close()
            os.close(self._wake_reader)
            writer, self._wake_writer = self._wake_writer, -1
            os.close(writer)


_CORES: weakref.WeakSet[_Core] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A forked child lets go of all channels: as long as it held them, nobody would see this process end."""
    for core in _CORES:
        for peer in core.peers:
            with contextlib.suppress(OSError):
                peer.channel.close()
    STARTER.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _slots_for(num_workers: int) -> int:
    """Slots for what workers hold, what waits to be handed over, and what the consumer has in use."""
    return num_workers * (DEPTH + 2) + 8
