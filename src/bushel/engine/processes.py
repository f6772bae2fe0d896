"""The executor of worker processes: tasks out, results back through slabs, dead workers replaced, nothing lost.

One thread does all the talking. It hands tasks to workers as slots come free, so that memory in flight has a bound;
the consumer only waits for results and takes them apart.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pickle
import queue
import selectors
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from bushel.base import clean_python
from bushel.base.errors import WorkerDied, add_note
from bushel.base.transforms import short_name
from bushel.engine import shipping, stall, wire
from bushel.engine.assigning import DEPTH, choose, worker_for
from bushel.engine.jobs import Death, Job, Peer
from bushel.engine.program import Misfit, Program, Result
from bushel.engine.room import Room
from bushel.engine.shipping import Shared, Told
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tasks import FORKED, Aborted, Executor, Task, Ticket
from bushel.engine.wire import Packed
from bushel.engine.zygote import FORKS, NO_ACCELERATOR, STARTER, THREADS, kill
from bushel.graph.node import merge_origins

logger = logging.getLogger("bushel")

DEFAULT_BUDGET_BYTES = 1 << 30
DEATHS_ALONE = 2
"""An element is blamed after so many deaths while a worker was at this element, if no worker died of anything else.

The worker says which element it is at only after a first death over the block, so a block costs one death more.
"""
DEATHS_AMONG_OTHERS = 6
"""The same where workers die of other things, too: somebody may be killing them, and the element may be innocent."""
RECENT_S = 60.0
"""A worker that died of something else longer ago says nothing about the deaths of now."""


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

    shares_counts = True

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
        self.block_bytes = min(self.block_bytes, budget_bytes // (2 * _in_flight(num_workers)))
        self.keeps_all = timeout_s is not None or init is not None
        first = num_workers if at_first is None else at_first
        self._core = _Core(num_workers, init, budget_bytes, self.block_bytes, timeout_s, portable, first)
        self._finalizer = weakref.finalize(self, self._core.stop)

    def submit(self, task: Task) -> Ticket:
        return self._core.submit(task)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        packed, told, memory, seconds = self._outcome(ticket)
        try:
            rows = wire.unpack(packed, memory)
        except Exception:  # a class that cannot build its elements again: once more, to see which of them
            again = self._core.submit(ticket.task, one_by_one=True)
            packed, told, memory, _ = self._outcome(again)
            pieces = told.with_rows(wire.unpack(packed, memory), packed.size_bytes)
            self._core.done_with(again)
            return shipping.those_that_pass(pickle.loads, ticket.task.program, pieces, shipping.not_rebuilt), seconds
        finally:
            self._core.done_with(ticket)
        return told.with_rows(rows, packed.size_bytes), seconds

    def _outcome(self, ticket: Ticket) -> tuple[Packed, Told, memoryview | None, float]:
        self._core.hurry(ticket)
        return stall.result(ticket.done, lambda: self._core.whereabouts(ticket))

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

    def deaths(self) -> int:
        return self._core.deaths

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
        self._timeout_s = timeout_s
        self._portable = portable
        self._num_workers = num_workers
        self._active = at_first  # workers with an index below it get tasks
        self._init = shipping.dumped(init, "worker_init_fn")
        self._init_name = None if init is None else short_name(init)
        # As they are now, also for workers that start later.
        variables = {**THREADS, **os.environ, **NO_ACCELERATOR}
        self._surroundings = clean_python.folder(), clean_python.search_path(), variables
        self._lock = threading.RLock()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._waiting: collections.deque[Job] = collections.deque()
        self._jobs: dict[int, Job] = {}  # all that have no result yet
        self._programs: dict[int, Shared] = {}
        self._program_numbers: weakref.WeakKeyDictionary[Program | StreamProgram, int] = weakref.WeakKeyDictionary()
        self._next_program = 0
        self._streams: set[int] = set()  # the programs among them that run a stream whole
        self._classes: list[type] = []
        self._unused: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.room = Room(budget_bytes, block_bytes, portable=portable)
        self.deaths = 0
        self._deaths_in_a_row = 0
        self._unexplained: list[Death] = []  # of the last minute
        self._begun = False  # whether a worker ever began a task
        self._stopping = False
        self._ended_by: BaseException | None = None
        self._broken = False  # whether that is an error of the user's
        self._next_job = 0
        self.peers: list[Peer] = []
        self._stacks = stall.Stacks(portable=portable)
        self._thread = threading.Thread(target=self._talk, name="bushel-pool", daemon=True)
        STARTER.begin()
        try:
            for index in range(at_first):
                self._start(index)
            _CORES.add(self)
            self._thread.start()
        except BaseException:
            if self._thread.ident is None:
                self._end()
            else:
                self.stop()
            raise

    # Called by the consumer.

    def submit(self, task: Task, *, one_by_one: bool = False) -> Ticket:
        self._check_owner()
        rows, start = None, None
        if isinstance(task.program, StreamProgram):
            serial, state = task.given
            start = serial, shipping.dumped(state, f"The state of {task.program.node.describe()}")
        elif task.given is not None:
            rows = shipping.shared_rows(task.given, portable=self._portable)
        with self._lock:
            if self._ended_by is not None:
                if self._broken:
                    raise self._ended_by.with_traceback(None)
                raise RuntimeError("The worker processes of this iterator have ended.") from self._ended_by
            job = Job(task, Future(), self._next_job, self._program(task.program), task.high, rows, start, one_by_one)
            self._next_job += 1
            self._jobs[job.number] = job
            self._waiting.append(job)
        self._wake()
        return job

    def hurry(self, ticket: Ticket) -> None:
        self._check_owner()
        assert isinstance(ticket, Job)
        ticket.urgent = True
        if not ticket.begun:
            self._wake()

    def whereabouts(self, ticket: Ticket) -> str:
        """What the workers are at, and where in the code the one is that has a task."""
        told = []
        for peer in list(self.peers):
            jobs, since = list(peer.jobs), peer.since  # the worker may finish meanwhile
            if not jobs or since is None:
                continue
            at = jobs[0].task.program.which(*(jobs[0].at or (jobs[0].task.low, jobs[0].high)))
            worker = f"Worker {peer.index} (process {peer.pid})"
            stack = f":\n{self._stacks.of(peer.pid)}" if ticket in jobs else "."
            told.append(f"{worker} has been at {at} for {time.monotonic() - since:.1f} s{stack}")
        return "\n".join(told) or "No worker has begun with it."

    def done_with(self, ticket: Ticket) -> None:
        assert isinstance(ticket, Job)
        ticket.load.over = True

    def forget(self, tickets: list[Ticket]) -> None:
        """Does not need the lock: closing must not wait for anybody who has it."""
        if self._owner != os.getpid():
            return
        for ticket in tickets:
            assert isinstance(ticket, Job)
            ticket.load.over = True
            ticket.settle(Aborted())  # somebody may wait for it
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
            if self._thread.is_alive():  # it waits for the system to start a worker; these at least are to end
                for peer in list(self.peers):
                    kill(peer.pid)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError(FORKED)

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
                    self._say(peer, "forget", number)

    # Called by the talking thread.

    def _talk(self) -> None:
        try:
            while not self._stopping:
                timeout = 0.2 if self._timeout_s is not None else None
                for key, events in self._selector.select(timeout):
                    peer: Peer | None = key.data
                    if peer is None:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wake_reader, 4096)
                    elif events & selectors.EVENT_WRITE:
                        self._say_on(peer)
                    if peer is not None and events & selectors.EVENT_READ:
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

    def _hear(self, peer: Peer, *, died: bool) -> None:
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

    def _say(self, peer: Peer, *message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Tells a worker something. What it does not take now goes on when it does: the thread never waits for one."""
        with contextlib.suppress(wire.Closed):  # its end is heard next
            peer.channel.offer(message, descriptors)
            self._watch_for_room(peer)

    def _say_on(self, peer: Peer) -> None:
        if peer in self.peers:
            with contextlib.suppress(wire.Closed):
                peer.channel.push()
                self._watch_for_room(peer)

    def _watch_for_room(self, peer: Peer) -> None:
        if peer.listens == peer.channel.is_stuck():
            peer.listens = not peer.listens
            events = selectors.EVENT_READ if peer.listens else selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(peer.channel.socket, events, peer)

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
        for job in [job for job in self._waiting if job.load.over]:
            self._waiting.remove(job)
            self._jobs.pop(job.number, None)
        while (choice := self._choice()) is not None:
            job, peer = choice
            self._waiting.remove(job)
            job.place = self.room.grant(sum(made.place is not None for peer in self.peers for made in peer.jobs))
            job.at, job.asked, job.counted, job.begun = None, None, 0, True
            peer.jobs.append(job)
            self._tell(peer, job)

    def _choice(self) -> tuple[Job, Peer] | None:
        if not self._waiting:
            return None
        full = self.room.is_full(sum(len(peer.jobs) for peer in self.peers))
        return choose(self._waiting, self._jobs.values(), full, self._worker_for)

    def _worker_for(self, job: Job) -> Peer | None:
        return worker_for(job, self.peers, self._active, self._streams)

    def _tell(self, peer: Peer, job: Job) -> None:
        if job.program not in peer.programs:
            program = self._programs[job.program]
            self._say(peer, "program", job.program, program.size, program.places, descriptors=(program.descriptor,))
            peer.programs.add(job.program)
        slot = None
        if job.place is not None:
            arena, slot = job.place
            if peer.arena is not arena:
                self._say(peer, "arena", arena.slot_bytes, descriptors=(arena.descriptor,))
                peer.arena = arena
        task = job.task
        careful = job.deaths > 0
        given, descriptors = job.start, ()
        if job.rows is not None:
            given, descriptors = (job.rows.size, job.rows.places), (job.rows.descriptor,)
        numbers = (job.number, job.program, task.low, job.high)
        self._say(peer, "task", *numbers, task.counts, slot, careful, job.one_by_one, given, descriptors=descriptors)

    def _on_done(self, peer: Peer, number: int, packed: Packed, told: Told, seconds: float) -> None:
        job = self._finished(peer, number)
        memory = self.room.take_in(job, packed)
        told.failure = told.failure or job.verdict
        self._settle(job, (packed, told, memory, seconds))

    def _on_misfit(self, peer: Peer, number: int) -> None:
        self._give_up(self._finished(peer, number), Misfit())

    def _on_aborted(self, peer: Peer, number: int) -> None:
        self._give_up(self._finished(peer, number), Aborted())

    def _on_failed(self, peer: Peer, number: int, pickled: bytes, shown: str) -> None:
        self._give_up(self._finished(peer, number), shipping.rebuilt(pickled, shown))

    def _on_count(self, peer: Peer, number: int, step: int, count: int) -> None:
        job = self._jobs[number]
        task = job.task
        task.ledger.report(step, task.number, count)
        job.asked, job.counted = (step, count), step + 1

    def _on_at(self, peer: Peer, number: int, low: int, high: int) -> None:
        self._jobs[number].at = (low, high)
        peer.since = time.monotonic()

    def _on_begun(self, peer: Peer, number: int) -> None:
        peer.since = time.monotonic()
        self._begun = True

    def _on_broken(self, peer: Peer, what: str, pickled: bytes, shown: str) -> None:
        error = shipping.rebuilt(pickled, shown)
        add_note(error, f"bushel: {what}.")
        if peer.jobs and isinstance(error, ImportError):
            add_note(error, shipping.not_importable(peer.jobs[0].task.program, error))
        self._broken = True
        self._fail_all(error)
        self._stopping = True

    def _answer_counts(self) -> None:
        for peer in self.peers:
            job = peer.jobs[0] if peer.jobs else None
            if job is None or job.asked is None:
                continue
            task = job.task
            before = task.ledger.before(job.asked[0], task.number)
            if before is not None or job.load.over or task.ledger.is_lost(task.number):
                job.asked = None
                if peer.since is not None:
                    peer.since = time.monotonic()  # waiting was no work
                self._say(peer, *(("abort",) if before is None else ("before", before)))

    def _finished(self, peer: Peer, number: int) -> Job:
        job = peer.jobs.popleft()
        assert job.number == number, "workers answer in order"
        peer.since, peer.served = None, True
        self._deaths_in_a_row = 0
        job.rows = None  # nobody will ask for them again
        return job

    def _give_up(self, job: Job, error: BaseException) -> None:
        job.leave()
        self._settle(job, error)

    def _settle(self, job: Job, outcome: Any) -> None:
        """Until then a job is among those that learn of the pool's end."""
        job.settle(outcome)
        self._jobs.pop(job.number, None)
        if job.task.asks:
            job.task.ledger.end(job.task.number)

    def _bury(self, peer: Peer) -> None:
        """A worker is dead: another takes its place and its tasks, the first of which may have killed it."""
        self._let_go(peer)
        self.peers.remove(peer)
        how = STARTER.ended(peer.pid)
        self.deaths += 1
        self._deaths_in_a_row += 1
        culprit = None
        for job in peer.jobs:
            job.leave()
            job.begun = False
        if peer.jobs and peer.since is not None and peer.jobs[0].asked is None:  # it was at work, and did not wait
            culprit = peer.jobs[0]
            culprit.deaths += 1
            if culprit.at is not None:
                culprit.killed_at.append(culprit.at)
        self._unexplained.append(Death.of(culprit))
        if culprit is not None and (culprit.overdue or self._is_guilty(culprit)):
            self._condemn(culprit, how)
            if culprit.done.done():
                peer.jobs.popleft()
        if self._deaths_in_a_row > 10 * self._num_workers + 10:
            where = "" if self._init_name is None or self._begun else f", in worker_init_fn={self._init_name}"
            what = f"Worker processes keep dying before they finish anything; the last one {how}{where}."
            self._fail_all(WorkerDied(what))
            self._stopping = True
            return
        self._waiting = collections.deque(sorted([*peer.jobs, *self._waiting], key=lambda job: job.number))
        self._start(peer.index)

    def _is_guilty(self, job: Job) -> bool:
        """Whether an element of the job has killed so many workers that it cannot be somebody else who kills them."""
        if not job.killed_at:
            return False
        now = time.monotonic()
        self._unexplained = [death for death in self._unexplained if now - death.when < RECENT_S]
        alone = all(death.may_be_of(job) for death in self._unexplained)
        needed = DEATHS_ALONE if alone else DEATHS_AMONG_OTHERS
        last = job.killed_at[-needed:]
        return len(last) == needed and len(set(last)) == 1

    def _condemn(self, job: Job, how: str) -> None:
        """The block ends before the element that kills; what comes before it in the block is computed once more."""
        verdict, task = self._verdict(job, how), job.task
        # Explained, they are no sign that somebody kills workers.
        self._unexplained = [death for death in self._unexplained if not death.may_be_of(job)]
        good = task.low + (job.killed_at[-1][0] - task.low) // task.program.unit * task.program.unit
        if good == task.low:
            self._give_up(job, verdict)
        else:
            job.verdict, job.high, job.deaths, job.overdue = verdict, good, 0, False
            job.killed_at.clear()

    def _verdict(self, job: Job, how: str) -> WorkerDied:
        low, high = job.killed_at[-1]
        program = job.task.program
        positions = range(low, min(high, low + 8))
        records = "; ".join(map(str, merge_origins(origin for at in positions for origin in program.origins(at))))
        made_of = f" ({records})" if records else ""
        if job.overdue:
            what = f"took longer than timeout_s={self._timeout_s} s, twice."
        else:
            what = f"killed {job.deaths} worker processes one after the other; the last one {how}."
        died = WorkerDied(f"Computing {program.which(low, high)}{made_of} {what}")
        counts = job.task.counts  # if they were known beforehand, the element came to all of these steps
        died.at, died.counted = (low, high), job.counted if counts is None else len(counts)
        return died

    def _kill_the_slow(self, timeout_s: float) -> None:
        now = time.monotonic()
        for peer in self.peers:
            job = peer.jobs[0] if peer.jobs else None
            if job is not None and job.asked is None and peer.since is not None and now - peer.since > timeout_s:
                # A block may be slow and each of its elements not: the next try goes element by element.
                job.overdue = job.timeouts > 0 and job.at is not None
                job.timeouts += 1
                peer.since = now
                kill(peer.pid)

    def _start(self, index: int) -> None:
        channel, pid = STARTER.start(fork=FORKS and not self._portable)
        peer = Peer(index, channel, pid)
        self._selector.register(channel.socket, selectors.EVENT_READ, peer)
        self._say(peer, "stacks", descriptors=(self._stacks.descriptor,))
        self._say(peer, "setup", *self._surroundings, self._init, index, self._num_workers)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # it may be gone already: the end of its channel tells
                peer.watch = os.pidfd_open(pid)
                self._selector.register(peer.watch, selectors.EVENT_READ, peer)
        self.peers.append(peer)

    def _let_go(self, peer: Peer) -> None:
        self._selector.unregister(peer.channel.socket)
        peer.channel.close()
        if peer.watch >= 0:
            self._selector.unregister(peer.watch)
            os.close(peer.watch)
            peer.watch = -1

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            self._ended_by = self._ended_by or error
            for job in self._jobs.values():
                job.settle(error)
            self._jobs.clear()
            self._waiting.clear()

    def _end(self) -> None:
        with self._lock:
            for peer in self.peers:
                self._let_go(peer)
                kill(peer.pid)
            for peer in self.peers:
                STARTER.reap(peer.pid)
            self.peers.clear()
            self._fail_all(RuntimeError("The worker processes of this iterator were closed."))
            self.room.close()
            self._programs.clear()
            self._selector.close()
            os.close(self._wake_reader)
            writer, self._wake_writer = self._wake_writer, -1
            os.close(writer)
        STARTER.rest()


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


def _in_flight(num_workers: int) -> int:
    """Results that workers make, that wait to be handed over, and that the consumer has in use."""
    return num_workers * (DEPTH + 2) + 8
