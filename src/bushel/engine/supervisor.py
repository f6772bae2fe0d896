"""The thread that runs a pool of worker processes: it sends jobs, receives results and replaces dead workers.

One thread talks to all workers, and it never waits for one of them. It sends jobs as slots become free, so the memory
of results has a limit. The consumer only waits for results and unpacks them (processes.py).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

from bushel.base import clean_python
from bushel.base.errors import WorkerDied, add_note
from bushel.base.transforms import short_name
from bushel.engine import shipping, stall, wire
from bushel.engine.assigning import choose_job
from bushel.engine.blame import Blame
from bushel.engine.connections import Connections
from bushel.engine.dma import DmaMapper
from bushel.engine.pool import Job, ResultBuffer, Worker
from bushel.engine.program import Misfit
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tasks import FORKED, Aborted, Task, Ticket
from bushel.engine.zygote import FORKS, NO_ACCELERATOR, STARTER, THREADS, kill

logger = logging.getLogger("bushel")


class Supervisor:
    """A pool of workers and the thread that talks to them. `Processes` documents the arguments.

    The consumer and the pool's thread share it; `_lock` guards the jobs and the workers.
    """

    def __init__(
        self,
        num_workers: int,
        init: Any,
        budget_bytes: int,
        block_bytes: int,
        timeout_s: float | None,
        portable: bool,
        at_first: int,
        mapper: DmaMapper | None = None,
    ):
        self._owner = os.getpid()
        self._timeout_s = timeout_s
        self._portable = portable
        self._num_workers = num_workers
        self._active = at_first  # workers with an index below it get jobs
        self._init = shipping.pickle_for_workers(init, "worker_init_fn")
        self._init_name = None if init is None else short_name(init)
        # Taken once, so that a worker that starts later sees the same environment as the first ones.
        variables = {**THREADS, **os.environ, **NO_ACCELERATOR}
        self._environment = clean_python.folder(), clean_python.search_path(), variables
        self._lock = threading.RLock()
        self._connections = Connections()
        self._waiting: collections.deque[Job] = collections.deque()  # no worker has them, in the order of their numbers
        self._jobs: dict[int, Job] = {}  # all jobs without a result
        self._next_job = 0
        self._programs = shipping.ProgramTable(functools.partial(shipping.SharedObject, portable=portable))
        self.buffer = ResultBuffer(budget_bytes, block_bytes, num_workers, portable=portable, mapper=mapper)
        self.workers: list[Worker] = []
        self.deaths = 0
        self._deaths_in_a_row = 0
        self._blame = Blame(timeout_s)
        self._has_begun_a_job = False
        self._stopping = False
        self._ended_by: BaseException | None = None
        self._reraises = False  # whether `submit` raises that error itself, because it came from a worker
        self._stacks = stall.Stacks(portable=portable)
        self._thread = threading.Thread(target=self._run, name="bushel-pool", daemon=True)
        STARTER.add_pool()
        try:
            for index in range(at_first):
                self._start_worker(index)
            SUPERVISORS.add(self)
            self._thread.start()
        except BaseException:
            if self._thread.ident is None:
                self._end()
            else:  # the thread runs, and frees everything when it ends
                self.stop()
            raise

    # Called by the consumer.

    def submit(self, task: Task, *, row_by_row: bool = False) -> Job:
        self._check_owner()
        rows, start = None, None
        if isinstance(task.program, StreamProgram):
            run, state = task.given
            start = run, shipping.pickle_for_workers(state, f"The state of {task.program.node.describe()}")
        elif task.given is not None:
            rows = shipping.share_rows(task.given, portable=self._portable)
        with self._lock:
            if self._ended_by is not None:
                if self._reraises:
                    raise self._ended_by.with_traceback(None)
                raise RuntimeError("The worker processes of this iterator have ended.") from self._ended_by
            program = self._programs.add(task.program)
            job = Job(task, Future(), self._next_job, program, task.high, rows, start, row_by_row)
            self._next_job += 1
            self._jobs[job.number] = job
            self._waiting.append(job)
        self._connections.wake()
        return job

    def mark_urgent(self, job: Job) -> None:
        """Takes note that the consumer waits for this job: it begins even if the buffer is full."""
        self._check_owner()
        job.urgent = True
        if not job.assigned:
            self._connections.wake()

    def describe_progress(self, job: Job) -> str:
        """Says what each worker computes, and where in the code the worker is that has the job."""
        lines = []
        for worker in list(self.workers):
            jobs, since = list(worker.jobs), worker.busy_since  # copies: the worker may finish meanwhile
            if not jobs or since is None:
                continue
            what = jobs[0].task.program.which(*(jobs[0].announced or (jobs[0].task.low, jobs[0].high)))
            stack = f":\n{self._stacks.read(worker.pid)}" if job in jobs else "."
            process = f"Worker {worker.index} (process {worker.pid})"
            lines.append(f"{process} has been computing {what} for {time.monotonic() - since:.1f} s{stack}")
        return "\n".join(lines) or "No worker has begun to compute it."

    def forget(self, tickets: list[Ticket]) -> None:
        """Drops jobs. Takes no lock: closing an iterator must not wait while the thread starts a worker."""
        if self._owner != os.getpid():
            return
        for ticket in tickets:
            assert isinstance(ticket, Job)
            ticket.footprint.released = True
            ticket.settle(Aborted())  # another thread may wait for the result
        self._connections.wake()

    def resize(self, workers: int) -> None:
        with self._lock:
            self._active = max(1, min(workers, self._num_workers))
        self._connections.wake()

    def all_have_finished_one(self) -> bool:
        with self._lock:
            active = [worker for worker in self.workers if worker.index < self._active]
            return sum(worker.has_finished for worker in active) == self._active

    def stop(self) -> None:
        if self._owner != os.getpid():
            return
        self._stopping = True
        self._connections.wake()
        # The garbage collector may call this on any thread, also on the pool's own, which cannot join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=3)
            if self._thread.is_alive():  # it waits until the system has started a worker; the other workers end now
                for worker in list(self.workers):
                    kill(worker.pid)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError(FORKED)

    # Called by the pool's thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                for worker, died in self._connections.wait(0.2 if self._timeout_s is not None else None):
                    self._receive(worker, died=died)
                with self._lock:
                    if self._timeout_s is not None:
                        self._kill_slow_workers(self._timeout_s)
                    self._answer_counts()
                    self._start_missing_workers()
                    self._assign_jobs()
                    self._drop_programs()
        except BaseException as error:
            self._fail_all(error)
        finally:
            self._end()

    def _receive(self, worker: Worker, *, died: bool) -> None:
        try:
            messages = worker.channel.receive_nowait()
        except wire.Closed:
            messages, died = [], True
        with self._lock:
            for kind, *arguments in messages:
                getattr(self, f"_on_{kind}")(worker, *arguments)
            if died:  # after its messages: a result that it had sent is not computed again
                self._replace_worker(worker)

    def _start_missing_workers(self) -> None:
        """Starts the workers that `resize` has asked for, or as many of them as the system allows."""
        try:
            while len(self.workers) < self._active:
                self._start_worker(len(self.workers))
        except (OSError, RuntimeError) as error:
            if not self.workers:
                raise
            logger.warning("No more than %d worker processes could be started (%s).", len(self.workers), error)
            self._active = len(self.workers)

    def _assign_jobs(self) -> None:
        """Sends waiting jobs to workers, as long as a job may begin and a worker can take it."""
        for job in [job for job in self._waiting if job.footprint.released]:
            self._waiting.remove(job)
            self._jobs.pop(job.number, None)
        while self._waiting:
            full = self.buffer.is_full(sum(len(worker.jobs) for worker in self.workers))
            choice = choose_job(self._waiting, self._jobs.values(), full, self.workers, self._active)
            if choice is None:
                break
            job, worker = choice
            self._waiting.remove(job)
            running = sum(held.slot is not None for other in self.workers for held in other.jobs)
            job.slot = self.buffer.grant_slot(running)
            job.announced, job.count_request, job.counted, job.assigned = None, None, 0, True
            worker.jobs.append(job)
            self._blame.add_known_deaths(job)
            self._send_job(worker, job)

    def _send_job(self, worker: Worker, job: Job) -> None:
        if job.program not in worker.programs:
            program = self._programs.get(job.program)
            self._connections.send(
                worker, "program", job.program, program.size, program.places, descriptors=(program.descriptor,)
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
            given, descriptors = (job.rows.size, job.rows.places), (job.rows.descriptor,)
        numbers = (job.number, job.program, job.task.low, job.high)
        rest = (job.task.counts, slot, job.deaths > 0, job.row_by_row, given)
        self._connections.send(worker, "task", *numbers, *rest, descriptors=descriptors)

    def _drop_programs(self) -> None:
        for number in self._programs.remove_collected():
            for worker in self.workers:
                if worker.programs.pop(number, None) is not None:
                    self._connections.send(worker, "forget", number)

    # What workers send: `_on_<kind>` handles a message of that kind.

    def _on_begun(self, worker: Worker, number: int) -> None:
        worker.busy_since = time.monotonic()
        self._has_begun_a_job = True

    def _on_at(self, worker: Worker, number: int, low: int, high: int) -> None:
        self._jobs[number].announced = (low, high)
        worker.busy_since = time.monotonic()

    def _on_count(self, worker: Worker, number: int, step: int, count: int) -> None:
        job = self._jobs[number]
        job.task.ledger.report(step, job.task.number, count)
        job.count_request, job.counted = (step, count), step + 1

    def _on_done(
        self, worker: Worker, number: int, packed: wire.Packed, details: shipping.ResultDetails, seconds: float
    ) -> None:
        job = self._finish(worker, number)
        memory = self.buffer.add_result(job, packed)
        details.failure = details.failure or job.error_after_rows
        self._settle(job, (packed, details, memory, seconds))

    def _on_misfit(self, worker: Worker, number: int) -> None:
        self._settle(self._finish(worker, number), Misfit())

    def _on_aborted(self, worker: Worker, number: int) -> None:
        self._settle(self._finish(worker, number), Aborted())

    def _on_failed(self, worker: Worker, number: int, pickled: bytes, text: str) -> None:
        self._settle(self._finish(worker, number), shipping.unpack_error(pickled, text))

    def _on_broken(self, worker: Worker, what: str, pickled: bytes, text: str) -> None:
        error = shipping.unpack_error(pickled, text)
        add_note(error, f"bushel: {what}.")
        if worker.jobs and isinstance(error, ImportError):
            add_note(error, shipping.explain_import_error(worker.jobs[0].task.program, error))
        self._reraises = True
        self._fail_all(error)
        self._stopping = True

    def _answer_counts(self) -> None:
        """Answers the workers that wait for the count of the blocks before theirs, where the count is known."""
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

    def _finish(self, worker: Worker, number: int) -> Job:
        """Takes the job that a worker has finished from it."""
        job = worker.jobs.popleft()
        assert job.number == number, "workers answer in order"
        worker.busy_since, worker.has_finished = None, True
        self._deaths_in_a_row = 0
        job.rows = None  # frees their shared memory: the job will not run again
        return job

    def _settle(self, job: Job, outcome: Any) -> None:
        """Ends a job with its result or its error."""
        job.return_slot()
        # In this order: `_fail_all` tells the jobs in `_jobs` of the pool's end, so a job leaves only with an outcome.
        job.settle(outcome)
        self._jobs.pop(job.number, None)
        if job.task.asks:
            job.task.ledger.end(job.task.number)

    # Workers that die, that are killed, and that start.

    def _replace_worker(self, worker: Worker) -> None:
        """Starts a worker in the place of a dead one, whose jobs wait again. The first of them may have killed it."""
        self._connections.remove(worker)
        self.workers.remove(worker)
        how = STARTER.describe_end(worker.pid)
        self.deaths += 1
        self._deaths_in_a_row += 1
        for job in worker.jobs:
            job.return_slot()
            job.assigned = False
        guilty = self._blame.record_death(worker.running)
        if guilty is not None and (error := self._blame.shorten(guilty, how)) is not None:
            self._settle(guilty, error)
            worker.jobs.popleft()
        if self._deaths_in_a_row > 10 * self._num_workers + 10:
            where = "" if self._init_name is None or self._has_begun_a_job else f", in worker_init_fn={self._init_name}"
            what = f"Worker processes keep dying before they finish anything; the last one {how}{where}."
            self._fail_all(WorkerDied(what))
            self._stopping = True
            return
        # By number, so that the dead worker's jobs begin first: later blocks may wait for their counts.
        self._waiting = collections.deque(sorted([*worker.jobs, *self._waiting], key=lambda job: job.number))
        self._start_worker(worker.index)

    def _kill_slow_workers(self, timeout_s: float) -> None:
        now = time.monotonic()
        for worker in self.workers:
            job = worker.running
            if job is not None and worker.busy_since is not None and now - worker.busy_since > timeout_s:
                # A block may be slow although each of its elements is not. So the next attempt runs element by element,
                # and only a timeout of that attempt blames an element.
                job.overdue = job.timeouts > 0 and job.announced is not None
                job.timeouts += 1
                worker.busy_since = now  # its death arrives later; it is not killed twice until then
                kill(worker.pid)

    def _start_worker(self, index: int) -> None:
        worker = Worker(index, *STARTER.start(fork=FORKS and not self._portable))
        self._connections.add(worker)
        self._connections.send(worker, "stacks", descriptors=(self._stacks.descriptor,))
        self._connections.send(worker, "setup", *self._environment, self._init, index, self._num_workers)
        self.workers.append(worker)

    # The end of the pool.

    def _fail_all(self, error: BaseException) -> None:
        """Ends all jobs with an error. Later calls of `submit` raise it, too."""
        with self._lock:
            self._ended_by = self._ended_by or error
            for job in self._jobs.values():
                job.settle(error)
            self._jobs.clear()
            self._waiting.clear()

    def _end(self) -> None:
        with self._lock:
            for worker in self.workers:
                self._connections.remove(worker)
                kill(worker.pid)
            for worker in self.workers:  # after all were killed, so that they end side by side
                STARTER.reap(worker.pid)
            self.workers.clear()
            self._fail_all(RuntimeError("The worker processes of this iterator were closed."))
            self.buffer.close()
            self._programs.clear()
            self._connections.close()
        STARTER.remove_pool()


SUPERVISORS: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Closes the channels that a forked child has inherited.

    Workers end when their channel does. If a child held the channels open, workers would outlive this process.
    """
    for supervisor in SUPERVISORS:
        for worker in supervisor.workers:
            with contextlib.suppress(OSError):
                worker.channel.close()
    STARTER.reset_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
