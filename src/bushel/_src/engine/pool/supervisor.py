"""`PoolSupervisor`: what the threads that run worker processes and actors share: the jobs, and what a death means.

How a worker is started, how it gets a job and how its answer arrives is in processes/supervisor.py and in
actors/supervisor.py (actors of a Ray cluster).
"""

from __future__ import annotations

import abc
import collections
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar, Generic, TypeVar

from bushel._src.base.errors import WorkerDied, add_note
from bushel._src.base.state_names import overridable
from bushel._src.base.transforms import short_name
from bushel._src.engine.pool import program_table, wire
from bushel._src.engine.pool.jobs import Job, PoolOptions, PoolWorker, ResultBuffer
from bushel._src.engine.pool.scheduling import LOADING, WHOLE, Blame, choose_job
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import FORKED, Aborted, Doing, Task, Ticket, WorkerActivity

W = TypeVar("W", bound=PoolWorker)

STUCK_S = 60.0
"""For how long workers must have died without finishing anything before the pool gives up."""


class PoolSupervisor(abc.ABC, Generic[W]):
    """A pool of workers and the thread that talks to them.

    The consumer and the pool's thread share it; `_lock` guards the jobs and the workers. A subclass starts its first
    workers and then the thread, as the last steps of `__init__`.

    Args:
      options: the size of the pool and its limits.
      programs: the programs that workers have received, or will receive.
      portable: keeps results in a temporary file, which works on every system, and in no memfd.
    """

    kind: ClassVar[str]
    """The name of the workers in messages."""
    stop_s: ClassVar[float]
    """How long `stop` waits for the thread."""

    def __init__(self, options: PoolOptions, programs: program_table.ProgramTable[Any], *, portable: bool = False):
        self._owner = os.getpid()
        self._num_workers = options.num_workers
        self._active = options.at_first  # workers with an index below it get jobs
        self._init_name = None if options.init is None else short_name(options.init)
        self._timeout_s = options.timeout_s
        self._lock = threading.RLock()
        self._waiting: collections.deque[Job] = collections.deque()  # no worker has them, in the order of their numbers
        self._jobs: dict[int, Job] = {}  # all jobs without a result
        self._next_job = 0
        self._programs = programs
        self.buffer = ResultBuffer(options, portable=portable)
        self.workers: list[W] = []
        self.deaths = 0
        self._fruitless = 0  # deaths since anything was finished, while the consumer waited
        self._stuck_since = 0.0  # when the first of them was
        self._starts: dict[int, float] = {}  # when dead workers start again, by their place, if there is a pause
        self._due: float | None = None  # when the next pause ends
        self._blame = Blame(options.timeout_s)
        self._stopping = False
        self._ended_by: BaseException | None = None
        self._reraises = False  # whether `submit` raises that error itself, because it came from a worker
        self._thread = threading.Thread(target=self._run, name="bushel-pool", daemon=True)

    # Called by the consumer.

    def submit(self, task: Task, *, row_by_row: bool = False) -> Job:
        self._check_owner()
        rows, start = None, None
        if isinstance(task.program, StreamProgram):
            (run, state), node = task.given, task.program.node
            start = run, program_table.pickle_or_explain(wire.dumps, state, lambda: f"The state of {node.describe()}")
        elif task.given is not None:
            rows = self._pack_rows(task.given)
        with self._lock:
            if self._ended_by is not None:
                if self._reraises:
                    raise self._ended_by.with_traceback(None)
                raise RuntimeError(f"The {self.kind} of this iterator have ended.") from self._ended_by
            program = self._programs.add(task.program)
            job = Job(task, Future(), self._next_job, program, task.high, rows, start, row_by_row)
            self._next_job += 1
            self._jobs[job.number] = job
            self._waiting.append(job)
        self._wake()
        return job

    def mark_urgent(self, job: Job) -> None:
        """Record that the consumer waits for this job: it begins even if the buffer is full."""
        self._check_owner()
        job.urgent = True
        if not job.assigned:
            self._wake()

    def describe_progress(self, job: Job) -> str:
        """Return what each worker computes and since when, and the stack of the worker that has the job.

        Takes no lock: the thread may hold it for long while it starts a worker.
        """
        lines = []
        for worker in list(self.workers):
            self._update_announcement(worker)
            jobs, since = list(worker.jobs), worker.busy_since  # copies: the worker may finish meanwhile
            if jobs and since is not None:
                first, seconds = jobs[0], time.monotonic() - since
                what = first.task.program.describe_elements(*(first.announced or (first.task.low, first.high)))
                stack = self._read_stack(worker) if job in jobs else None
                line = f"{self._describe_worker(worker)} has been computing {what} for {seconds:.1f} s"
                lines.append(f"{line}." if stack is None else f"{line}:\n{stack}")
        return "\n".join([*lines, *self._describe_start()]) or "No worker has begun to compute it."

    def forget(self, tickets: list[Ticket]) -> None:
        """Drop jobs. Take no lock: closing an iterator must not wait while the thread starts a worker."""
        if self._owner != os.getpid():
            return
        for ticket in tickets:
            assert isinstance(ticket, Job)
            ticket.footprint.released = True
            ticket.settle(Aborted())  # another thread may wait for the result
        self._wake()

    def resize(self, workers: int) -> None:
        with self._lock:
            self._active = max(1, min(workers, self._num_workers))
        self._wake()

    def all_have_finished_one(self) -> bool:
        with self._lock:
            active = [worker for worker in self.workers if worker.index < self._active]
            return sum(worker.has_finished for worker in active) == self._active

    def stop(self) -> None:
        if self._owner != os.getpid():
            return
        self._stopping = True
        self._wake()
        # The garbage collector may call this on any thread, also on the pool's own, which cannot join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=self.stop_s)
            if self._thread.is_alive():
                for worker in list(self.workers):
                    self._kill(worker)

    def _check_owner(self) -> None:
        if self._owner != os.getpid():
            raise RuntimeError(FORKED)

    # What a subclass does in its own way.

    @abc.abstractmethod
    def _wake(self) -> None:
        """Make `_handle_events` return. Any thread may call it, without a lock, and also after the pool's end."""

    @abc.abstractmethod
    def _pack_rows(self, rows: Any) -> Any:
        """Return the rows that a task brings along, as workers receive them."""

    @abc.abstractmethod
    def _handle_events(self) -> None:
        """Wait until something happens, and handles it. Take the lock by itself."""

    @abc.abstractmethod
    def _update_workers(self) -> None:
        """Start the workers that `resize` has asked for. Called after events, before jobs are sent."""

    @overridable
    def _is_full(self, running_jobs: int) -> bool:
        """Return whether only urgent jobs should begin, given how many jobs the workers have."""
        return self.buffer.is_full(running_jobs)

    @abc.abstractmethod
    def _send_job(self, worker: W, job: Job) -> None:
        """Send a job to a worker, which may have to receive its program first."""

    @abc.abstractmethod
    def _send_forget(self, worker: W, program: int) -> None:
        """Tell a worker that it will not need a program again."""

    @abc.abstractmethod
    def _kill(self, worker: W) -> None:
        """Kill a worker. Its death is reported as an event."""

    @abc.abstractmethod
    def _start_worker(self, index: int) -> None:
        """Start a worker."""

    @abc.abstractmethod
    def _explain_deaths(self, worker: W) -> str:
        """Return the likely cause if workers die one after the other, as sentences; empty if it is not known."""

    @overridable
    def describe_nodes(self) -> tuple[str, ...]:
        """Return a line for each machine that has workers, for a report; none if all of them are on this machine."""
        return ()

    @overridable
    def _update_announcement(self, worker: W) -> None:
        """Find out which element a worker computes that runs row by row, if that is cheap. Any thread may call it."""

    @abc.abstractmethod
    def _update_announcements(self) -> None:
        """Find out which elements all workers compute that run row by row."""

    @abc.abstractmethod
    def _describe_worker(self, worker: W) -> str:
        """Return a worker's name and place, as the beginning of a sentence."""

    @overridable
    def _read_stack(self, worker: W) -> str | None:
        """Return where in the code a worker is. By default this is not known, which is None."""
        return None

    @overridable
    def _describe_start(self) -> list[str]:
        """Return what the pool waits for before it has all its workers; by default nothing."""
        return []

    @abc.abstractmethod
    def _end_workers(self) -> None:
        """Kill the workers and free what the subclass has."""

    # Called by the pool's thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._handle_events()
                if self._stopping:
                    break
                with self._lock:
                    if self._timeout_s is not None:
                        self._kill_slow_workers(self._timeout_s)
                    self._update_workers()
                    self._assign_jobs()
                    self._drop_programs()
        except BaseException as error:
            self._fail_all(error)
        finally:
            self._end()

    def _end(self) -> None:
        """End the workers and all jobs, and free what the pool has. The last thing that the thread does."""
        with self._lock:
            self._end_workers()
            self._fail_all(RuntimeError(f"The {self.kind} of this iterator were closed."))
            self.buffer.close()
            self._programs.clear()

    def _get_patience(self, usual_s: float | None) -> float | None:
        """Return how many seconds `_handle_events` may wait: until the end of the next pause; None for any time."""
        if self._due is None:
            return usual_s
        until_s = max(0.0, self._due - time.monotonic())
        return until_s if usual_s is None else min(usual_s, until_s)

    def _assign_jobs(self) -> None:
        """Send waiting jobs to workers, as long as a job may begin and a worker can take it."""
        for job in [job for job in self._waiting if job.footprint.released]:
            self._waiting.remove(job)
            self._drop_job(job)
        now = time.monotonic()
        attempts = self._blame.find_attempts(self._waiting)
        while self._waiting:
            full = self._is_full(sum(len(worker.jobs) for worker in self.workers))
            ready = [worker for worker in self.workers if worker.is_ready]
            choice = choose_job(self._waiting, self._jobs.values(), full, ready, self._active, attempts, now)
            if choice is None:
                break
            job, worker = choice
            self._waiting.remove(job)
            job.announced, job.count_request, job.assigned = None, None, True
            job.careful = job.careful or self._blame.is_suspect(job.program, job.at, job.high, now)
            worker.jobs.append(job)
            worker.is_new = False
            self._send_job(worker, job)
        pauses = [attempt.not_before for job, attempt in attempts.items() if not job.assigned]
        self._due = min((when for when in (*pauses, *self._starts.values()) if when > now), default=None)

    def _drop_programs(self) -> None:
        for number in self._programs.remove_collected():
            for worker in self.workers:
                if worker.programs.pop(number, None) is not None:
                    self._send_forget(worker, number)

    def _finish(self, worker: W, job: Job, outcome: Any) -> None:
        """Take a job from the worker that has finished it, and end the job with its result or its error."""
        worker.jobs.remove(job)
        worker.has_finished = True
        self._note_progress(job.program, job.at, job.high)
        self._settle(job, outcome)

    def _note_start(self, worker: W, program: int) -> None:
        """Record that a worker begins with a job: it has started, and has loaded the program."""
        self._blame.acquit(None, *WHOLE)
        self._blame.acquit(program, *LOADING)

    def _note_progress(self, program: int, low: int, high: int) -> None:
        """Record that a worker has computed positions [low, high)."""
        self._fruitless = 0
        self._blame.acquit(program, low, high)

    def _settle(self, job: Job, outcome: Any) -> None:
        """End a job with its result or its error."""
        job.return_slot()
        # In this order: `_fail_all` settles the jobs in `_jobs`. A job that had left it without an outcome would never
        # get one, and the consumer would wait for ever.
        job.settle(outcome)
        self._drop_job(job)
        if job.task.asks:
            job.task.ledger.end(job.task.number)

    def _drop_job(self, job: Job) -> None:
        self._jobs.pop(job.number, None)
        job.rows = None  # frees their memory: the job will not run again

    def _take_over_jobs(
        self, worker: W, activity: WorkerActivity, how: str, now: float, *, alone: int | None = None
    ) -> float | None:
        """Let the jobs of a dead worker wait again, and decides what its death means.

        Args:
          activity: what the worker did when it died.
          how: how it ended, in words.
          now: when it died.
          alone: the place of the worker, if its successor can be kept for the row at which it died.

        Returns:
          After how many seconds another worker should start in its place; None if the pool has given up.
        """
        self.deaths += 1
        for job in worker.jobs:
            job.return_slot()
            job.assigned = False
        pause_s = self._judge_death(worker, activity, how, now, alone)
        if not (worker.is_ready and not worker.jobs) and any(job.urgent for job in self._jobs.values()):
            pause_s = max(pause_s, self._count_fruitless(worker, how, now))
        if self._stopping:
            return None
        # By number, so that the dead worker's jobs begin first: later blocks may wait for their counts.
        self._waiting = collections.deque(sorted([*worker.jobs, *self._waiting], key=lambda job: job.number))
        return pause_s

    def _judge_death(self, worker: W, activity: WorkerActivity, how: str, now: float, alone: int | None) -> float:
        """Decide whether an element is to blame for a death. Return a pause before the next worker starts."""
        job = worker.jobs[0] if worker.jobs and worker.jobs[0].number == activity.job else None
        begun = activity.row_since, activity.since
        if worker.overdue:
            self._judge_timeout(worker, activity)
        elif activity.doing is Doing.ROW and job is not None:
            job.careful = True
            suspicion = self._blame.record_death_alone(job.program, activity.row, activity.positions, begun, now, alone)
            killer = suspicion.find_killer()
            # If the consumer has dropped the job, nobody would read the error. The deaths count for the job that has
            # the same positions now.
            if killer is not None and not job.footprint.released:
                low, high, deaths = killer
                self._blame.acquit(job.program, *activity.row)
                self._end_before(
                    worker,
                    job,
                    activity.row[0],
                    low,
                    high,
                    lambda name: f"{suspicion.describe(name, deaths, self.kind)} The last one {how}.",
                    activity.counted,
                )
        elif activity.doing is Doing.BLOCK and job is not None:
            job.careful = True
            self._blame.record_block_death(job.program, job.at, job.high, now)
        elif activity.doing in (Doing.INIT, Doing.LOADING):
            is_init = activity.doing is Doing.INIT
            program, row = (None, WHOLE) if is_init else (activity.job, LOADING)
            suspicion = self._blame.record_death_alone(program, row, row, begun, now)
            if (killer := suspicion.find_killer()) is not None:
                where = f"worker_init_fn={self._init_name}" if is_init else "loading the pipeline"
                self._give_up(
                    WorkerDied(
                        f"{self.kind.capitalize()} keep dying before they finish anything: "
                        f"{suspicion.describe(where, killer[2], self.kind)} The last one {how}."
                    )
                )
            return suspicion.not_before - now
        else:
            self._blame.record_other_death()
        return 0.0

    def _judge_timeout(self, worker: W, activity: WorkerActivity) -> None:
        """Handle the death of a worker that the pool itself has killed, because of `timeout_s`."""
        for job in [job for job in worker.jobs if job.timeouts]:
            job.careful = True
            positions, job.overdue = job.overdue, None
            if positions is not None and positions[0] >= job.at and not job.footprint.released:
                unit = job.task.program.unit
                row = job.task.low + (positions[0] - job.task.low) // unit * unit
                self._end_before(worker, job, row, *positions, None, activity.counted)

    def _end_before(
        self, worker: W, job: Job, row: int, low: int, high: int, explain: Callable[[str], str] | None, counted: int
    ) -> None:
        """End a job before the row that an element at positions [low, high) is part of, with the error that names it.

        If rows before it have no result yet, they are computed once more, and the error comes after them.
        """
        error = self._blame.make_error(job, low, high, explain, counted)
        if row > job.at:
            job.error_after_rows, job.high, job.careful, job.timeouts = error, row, False, 0
            return
        job.error_after_rows = error if job.results else None
        self._settle(job, (job.results, job.seconds) if job.results else error)
        worker.jobs.remove(job)

    def _count_fruitless(self, worker: W, how: str, now: float) -> float:
        """Give up if workers have died for long and have finished nothing. Return a pause before the next start."""
        self._stuck_since = self._stuck_since if self._fruitless else now
        self._fruitless += 1
        stuck_s = now - self._stuck_since
        is_busy = any(other.busy_since is not None and other.busy_since <= self._stuck_since for other in self.workers)
        if self._fruitless > 10 * self._num_workers + 10 and stuck_s > STUCK_S and not is_busy:
            self._give_up(
                WorkerDied(
                    f"{self.kind.capitalize()} keep dying before they finish anything ({self._fruitless} deaths in "
                    f"{stuck_s:.0f} s). No death is proven to be the fault of an element. Find out what kills them, "
                    "such as a limit of memory or another program, and make a new iterator from the last state. The "
                    f"last one {how}. {self._explain_deaths(worker)}".rstrip()
                )
            )
        few = 3 * self._num_workers + 3
        return 0.0 if self._fruitless <= few else min(0.01 * (self._fruitless - few), 0.5)

    def _kill_slow_workers(self, timeout_s: float) -> None:
        self._update_announcements()
        now = time.monotonic()
        for worker in self.workers:
            job = worker.running
            if job is not None and worker.busy_since is not None and now - worker.busy_since > timeout_s:
                # A block may be slow although each of its elements is not. So the next attempt runs element by element,
                # and only a timeout of that attempt blames an element.
                job.overdue = job.announced if job.timeouts else None
                job.timeouts += 1
                worker.overdue = True
                worker.busy_since = now  # its death arrives later; it is not killed twice until then
                self._kill(worker)

    def _report_broken(self, worker: W, sentence: str, error: BaseException) -> None:
        """End the pool with an error that any other worker would meet, too."""
        add_note(error, f"bushel: {sentence}")
        if worker.jobs and isinstance(error, ImportError):
            add_note(error, program_table.explain_import_error(worker.jobs[0].task.program, error))
        self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """End the pool with an error that `submit` raises from now on."""
        self._reraises = True
        self._fail_all(error)
        self._stopping = True

    def _fail_all(self, error: BaseException) -> None:
        """End all jobs with an error. Later calls of `submit` raise it, too."""
        with self._lock:
            self._ended_by = self._ended_by or error
            for job in self._jobs.values():
                job.settle(error)
                job.rows = None
            self._jobs.clear()
            self._waiting.clear()
