"""`Processes`, the executor of worker processes: what the consumer holds, and the thread that runs the workers.

The thread sends jobs, receives results and replaces dead workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import selectors
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from bushel._src.base import background
from bushel._src.engine.pool import program_table, wire
from bushel._src.engine.pool.executor import PooledExecutor, count_results
from bushel._src.engine.pool.jobs import Job, PoolOptions, PoolWorker
from bushel._src.engine.pool.results import NO_ACCELERATOR, Details, has_failed, unpack_error
from bushel._src.engine.pool.supervisor import PoolSupervisor
from bushel._src.engine.processes.channel import Channel, Closed
from bushel._src.engine.processes.shared_areas import SharedObject, Stacks, Whereabouts, put_rows
from bushel._src.engine.processes.zygote import FORKS, STARTER, THREADS, kill
from bushel._src.engine.program import Misfit, Program
from bushel._src.engine.shared_memory import DmaMapper, Slab
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import Aborted, Doing


@dataclasses.dataclass(slots=True, eq=False)
class ProcessHandle(PoolWorker):
    """A worker process."""

    channel: Channel
    pid: int
    whereabouts: Whereabouts
    """What it does, in memory that survives it."""
    arena: Slab | None = None
    """The arena it has mapped."""
    seen_since: float = 0.0
    """When it began with the element that the pool has last seen it at."""
    pidfd: int = -1
    """A file descriptor that becomes readable when the process dies; -1 where the system has none.

    The end of the channel is not enough: a child that the user's function has started may keep the socket open.
    """
    has_unsent: bool = False
    """Whether part of the messages for it is still to be sent, because its socket was full."""
    connected: bool = True
    """False once the pool has closed its channel, because it is dead or the pool has ended."""


class Connections:
    """The channels of workers in one selector, and a pipe with which other threads wake the pool's thread."""

    def __init__(self) -> None:
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)  # a full pipe must not block the consumer
        os.set_blocking(self._wake_reader, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def wake(self) -> None:
        """Make `wait` return. Any thread may call it, without a lock, and also after `close`."""
        with contextlib.suppress(BlockingIOError, OSError):  # the pipe is full, or closed
            os.write(self._wake_writer, b"x")

    def wait(self, timeout_s: float | None) -> Iterator[tuple[ProcessHandle, bool]]:
        """Wait until something happens. Yield the workers that have sent something, and whether each is dead.

        Messages that a full socket has kept back are sent meanwhile.
        """
        for key, events in self._selector.select(timeout_s):
            worker: ProcessHandle | None = key.data
            if worker is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reader, 4096)
            elif worker.connected:  # not if its other descriptor, in the same `select`, has said that it is dead
                if events & selectors.EVENT_WRITE:
                    self._send_rest(worker)
                if events & selectors.EVENT_READ:
                    yield worker, key.fd == worker.pidfd

    def add(self, worker: ProcessHandle) -> None:
        self._selector.register(worker.channel.socket, selectors.EVENT_READ, worker)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # the worker is dead already: the end of its channel says so
                worker.pidfd = os.pidfd_open(worker.pid)
                self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)

    def remove(self, worker: ProcessHandle) -> None:
        # First out of the selector: the system gives the number of a closed descriptor to the next file that is opened.
        worker.connected = False
        self._forget(worker.channel.socket)
        worker.channel.close()
        if worker.pidfd >= 0:
            self._forget(worker.pidfd)
            os.close(worker.pidfd)

    def _forget(self, descriptor: Any) -> None:
        with contextlib.suppress(KeyError):  # Ctrl-C came in `add`, before it was registered
            self._selector.unregister(descriptor)

    def send(self, worker: ProcessHandle, *message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message as far as the socket takes it. The rest follows when the socket has room again."""
        with contextlib.suppress(Closed):  # the worker is dead; `wait` reports that next
            worker.channel.send_nowait(message, descriptors)
            self._watch_for_room(worker)

    def _send_rest(self, worker: ProcessHandle) -> None:
        with contextlib.suppress(Closed):
            worker.channel.send_rest()
            self._watch_for_room(worker)

    def _watch_for_room(self, worker: ProcessHandle) -> None:
        """Make the selector report room in a worker's socket while something is unsent, and only then.

        A socket nearly always has room, so otherwise `select` would return at once each time.
        """
        if worker.has_unsent != worker.channel.has_unsent():
            worker.has_unsent = not worker.has_unsent
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.has_unsent else 0)
            self._selector.modify(worker.channel.socket, events, worker)

    def close(self) -> None:
        self._selector.close()
        os.close(self._wake_reader)
        # First the attribute: `wake` must not write into another file that gets this number next.
        writer, self._wake_writer = self._wake_writer, -1
        os.close(writer)


logger = logging.getLogger("bushel")


class ProcessSupervisor(PoolSupervisor[ProcessHandle]):
    """A pool of worker processes and the thread that talks to them."""

    kind = "worker processes"
    stop_s = 3.0  # the thread may wait until the system has started a worker; then the other workers are killed

    def __init__(self, options: PoolOptions, *, portable: bool):
        programs = program_table.ProgramTable(functools.partial(SharedObject, portable=portable))
        super().__init__(options, programs, portable=portable)
        self._portable = portable
        self._init = program_table.pickle_or_explain(wire.dumps, options.init, lambda: "worker_init_fn")
        # Taken once, so that a worker that starts later sees the same environment as the first ones.
        variables = {**THREADS, **os.environ, **NO_ACCELERATOR}
        self._environment = background.working_folder(), background.search_path(), variables
        self._connections = Connections()
        self._stacks = Stacks(portable=portable)
        STARTER.add_pool()
        try:
            for index in range(options.at_first):
                self._start_worker(index)
            SUPERVISORS.add(self)
            self._thread.start()
        except BaseException:
            if self._thread.ident is None:
                self._end()
            else:  # the thread runs, and frees everything when it ends
                self.stop()
            raise

    def _describe_worker(self, worker: ProcessHandle) -> str:
        return f"Worker {worker.index} (process {worker.pid})"

    def _read_stack(self, worker: ProcessHandle) -> str:
        return self._stacks.read(worker.pid)

    def _wake(self) -> None:
        self._connections.wake()

    def _pack_rows(self, rows: Any) -> Any:
        return put_rows(rows, portable=self._portable)

    def _handle_events(self) -> None:
        for worker, died in self._connections.wait(self._get_patience(0.2 if self._timeout_s is not None else None)):
            self._receive(worker, died=died)

    def _receive(self, worker: ProcessHandle, *, died: bool) -> None:
        try:
            messages = worker.channel.receive_nowait()
        except Closed:
            messages, died = [], True
        with self._lock:
            for kind, *arguments in messages:
                getattr(self, f"_on_{kind}")(worker, *arguments)
            # After its messages: a result that it had sent is not computed again. If the pool is ending, perhaps by one
            # of these messages, nobody needs another worker.
            if died and not self._stopping:
                self._replace_worker(worker)

    def _update_workers(self) -> None:
        self._answer_counts()
        self._start_missing_workers()

    def _answer_counts(self) -> None:
        """Answer the workers that wait for the count of the blocks before theirs, where the count is known."""
        for worker in self.workers:
            if not worker.jobs or (job := worker.jobs[0]).count_request is None:
                continue
            task = job.task
            before = task.ledger.before(job.count_request[0], task.number)
            if before is not None or job.footprint.released or task.ledger.is_lost(task.number):
                job.count_request = None
                if worker.busy_since is not None:
                    worker.busy_since = time.monotonic()  # the time that it waited does not count for `timeout_s`
                self._connections.send(worker, *(("abort",) if before is None else ("before", before)))

    def _start_missing_workers(self) -> None:
        """Start the workers whose pause is over, and those that `resize` wants, as far as the system allows."""
        now = time.monotonic()
        for index in [index for index, when in self._starts.items() if when <= now]:
            del self._starts[index]
            self._start_worker(index)
        try:
            while len(self.workers) + len(self._starts) < self._active:
                self._start_worker(len(self.workers) + len(self._starts))
        except (OSError, RuntimeError) as error:
            if not self.workers:
                raise
            logger.warning("No more than %d worker processes could be started (%s).", len(self.workers), error)
            self._active = len(self.workers)

    def _send_job(self, worker: ProcessHandle, job: Job) -> None:
        in_rows = job.careful and isinstance(job.task.program, Program)
        if not in_rows:
            job.slot = self.buffer.grant_slot(sum(held.slot is not None for one in self.workers for held in one.jobs))
        if job.program not in worker.programs:
            program = self._programs.get(job.program)
            self._connections.send(
                worker, "program", job.program, program.size, program.extents, descriptors=(program.descriptor,)
            )
            worker.programs[job.program] = isinstance(job.task.program, StreamProgram)
        slot = None
        if job.slot is not None:
            arena, slot = job.slot
            if worker.arena is not arena:
                self._connections.send(worker, "arena", arena.slot_bytes, descriptors=(arena.descriptor,))
                worker.arena = arena
        given, descriptors = job.start, ()
        if job.rows is not None:
            given, descriptors = (job.rows.size, job.rows.extents, job.task.low), (job.rows.descriptor,)
        numbers = (job.number, job.program, job.at, job.high)
        rest = (job.counts if job.results else job.task.counts, slot, job.careful, job.row_by_row, given)
        self._connections.send(worker, "task", *numbers, *rest, descriptors=descriptors)

    def _send_forget(self, worker: ProcessHandle, program: int) -> None:
        self._connections.send(worker, "forget", program)

    # What workers send: `_on_<kind>` handles a message of that kind.

    def _on_begun(self, worker: ProcessHandle, number: int) -> None:
        worker.busy_since = time.monotonic()
        self._note_start(worker, worker.jobs[0].program)

    def _on_count(self, worker: ProcessHandle, number: int, step: int, count: int) -> None:
        job = self._jobs[number]
        job.task.ledger.report(step, job.task.number, count)
        job.count_request = step, count

    def _on_ask(self, worker: ProcessHandle, number: int, step: int, count: int) -> None:
        self._jobs[number].count_request = step, count  # of one row: that of the block is reported when it has ended

    def _on_row(
        self,
        worker: ProcessHandle,
        number: int,
        end: int,
        packed: wire.Packed,
        details: Details,
        counts: list[int],
        seconds: float,
    ) -> None:
        job = worker.jobs[0]
        assert job.number == number, "workers answer in order"
        worker.busy_since = time.monotonic()
        self.buffer.add_result_of_rows(job, packed)
        job.results.append((packed, details, None))
        self._note_progress(job.program, job.at, end)
        job.at = job.high if has_failed(details) else end
        job.counts, job.seconds = counts, job.seconds + seconds

    def _on_rows(self, worker: ProcessHandle, number: int) -> None:
        job, task = worker.jobs[0], worker.jobs[0].task
        if task.asks and not has_failed(job.results[-1][1]):
            for step, after in enumerate(job.counts or ()):
                before = task.ledger.before(step, task.number)
                assert before is not None, "the first row has asked for it"
                task.ledger.report(step, task.number, after - before)
        self._finish_first(worker, number, (job.results, job.seconds))

    def _on_done(
        self, worker: ProcessHandle, number: int, packed: wire.Packed, details: Details, seconds: float
    ) -> None:
        memory = self.buffer.add_result(worker.jobs[0], packed)
        self._finish_first(worker, number, ([(packed, details, memory)], seconds))

    def _on_misfit(self, worker: ProcessHandle, number: int) -> None:
        self._finish_first(worker, number, Misfit())

    def _on_aborted(self, worker: ProcessHandle, number: int) -> None:
        self._finish_first(worker, number, Aborted())

    def _on_failed(self, worker: ProcessHandle, number: int, pickled: bytes, text: str) -> None:
        self._finish_first(worker, number, unpack_error(pickled, text))

    def _on_broken(self, worker: ProcessHandle, sentence: str, pickled: bytes, text: str) -> None:
        self._report_broken(worker, sentence, unpack_error(pickled, text))

    def _finish_first(self, worker: ProcessHandle, number: int, outcome: Any) -> None:
        assert worker.jobs[0].number == number, "workers answer in order"
        worker.busy_since = None
        self._finish(worker, worker.jobs[0], outcome)

    # Workers that start, that are killed, and that die.

    def _start_worker(self, index: int) -> None:
        whereabouts = Whereabouts(portable=self._portable)
        try:
            worker = ProcessHandle(index, *STARTER.start(fork=FORKS and not self._portable), whereabouts)
        except BaseException:
            whereabouts.close()
            raise
        self._connections.add(worker)
        self._connections.send(worker, "whereabouts", descriptors=(whereabouts.descriptor,))
        whereabouts.close()
        self._connections.send(worker, "stacks", descriptors=(self._stacks.descriptor,))
        self._connections.send(worker, "setup", *self._environment, self._init, index, self._num_workers)
        self.workers.append(worker)

    def _kill(self, worker: ProcessHandle) -> None:
        kill(worker.pid)

    def _replace_worker(self, worker: ProcessHandle) -> None:
        """Start a worker in the place of a dead one."""
        self._connections.remove(worker)
        self.workers.remove(worker)
        now = time.monotonic()  # before the exit code is known, which may take a while
        how = STARTER.describe_end(worker.pid)
        pause_s = self._take_over_jobs(worker, worker.whereabouts.read(), how, now, alone=worker.index)
        if pause_s is not None and pause_s > 0:
            self._starts[worker.index] = now + pause_s
        elif pause_s is not None:
            self._start_worker(worker.index)

    def _update_announcements(self) -> None:
        for worker in self.workers:
            self._update_announcement(worker)

    def _update_announcement(self, worker: ProcessHandle) -> None:
        activity, jobs = worker.whereabouts.read(), list(worker.jobs)
        if jobs and activity.doing is Doing.ROW and activity.job == jobs[0].number:
            jobs[0].announced = activity.positions
            if worker.seen_since != activity.since:  # it has begun with another element since the last look
                worker.seen_since, worker.busy_since = activity.since, time.monotonic()

    def _explain_deaths(self, worker: ProcessHandle) -> str:
        return ""

    def _end_workers(self) -> None:
        for worker in self.workers:
            self._connections.remove(worker)
            self._kill(worker)
        for worker in self.workers:  # after all were killed, so that they end side by side
            STARTER.reap(worker.pid)
        self.workers.clear()
        self._connections.close()
        STARTER.remove_pool()


SUPERVISORS: weakref.WeakSet[ProcessSupervisor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Close the channels that a forked child has inherited.

    Workers end when their channel does. If a child held the channels open, workers would outlive this process.
    """
    for supervisor in SUPERVISORS:
        for worker in supervisor.workers:
            with contextlib.suppress(OSError):
                worker.channel.close()
    STARTER.reset_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


DEFAULT_BUDGET_BYTES = 1 << 30


class Processes(PooledExecutor[ProcessSupervisor]):
    """Runs tasks in worker processes, which send their results through shared memory.

    Args:
      num_workers: how many worker processes.
      init: called as init(worker index, worker count) in every worker before its first task.
      budget_bytes: limits the memory of results that wait for the consumer.
      timeout_s: an element that takes longer is treated like an element that kills its worker; None waits for ever.
      portable: starts workers and shares memory in ways that every system has, without fork and memfd.
      at_first: how many workers get tasks until `resize` is called; all by default.
      mapper: maps the memory of results for a GPU.
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
        mapper: DmaMapper | None = None,
    ):
        block_bytes = min(self.block_bytes, budget_bytes // (2 * count_results(num_workers)))
        first = num_workers if at_first is None else at_first
        options = PoolOptions(num_workers, first, init, timeout_s, budget_bytes, block_bytes, mapper)
        super().__init__(options, ProcessSupervisor(options, portable=portable))

    def pids(self) -> list[int]:
        """Return the process numbers of the workers."""
        return [worker.pid for worker in self._supervisor.workers]
