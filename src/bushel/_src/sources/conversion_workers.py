"""Worker processes of `bushel convert`. For the work itself see `conversion.py`.

Each process is a new Python, not a fork, and it does not run the user's script again. The pool of the engine does more
(order, retries, shared memory), but the engine is a layer above the sources, so this module cannot use it.
"""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from bushel._src.base import background
from bushel._src.base.errors import add_note

_REPORT_S = 0.2
_END_S = 5.0


class WorkerJob(Protocol):
    """Work that can be pickled."""

    def run(self) -> Iterator[int]:
        """Do the work. Yield the amount of each step."""
        ...

    @property
    def shown(self) -> str:
        """What the job writes, for messages: the name of a file, for example."""
        ...


def run_all(jobs: Sequence[WorkerJob], workers: int, report: Callable[[int], None]) -> None:
    """Run all jobs in at most `workers` processes, and return when all jobs are done.

    After the first error all processes are ended, and the error is raised. When this function returns or raises, no
    process is alive.

    Args:
      jobs: the jobs, which begin in this order.
      workers: the most processes at a time.
      report: called from time to time with the amount that all jobs have done so far.
    """
    waiting, done = collections.deque(jobs), 0
    busy: dict[Connection, _JobWorker] = {}
    started: list[_JobWorker] = []
    try:
        for _ in range(min(workers, len(jobs))):
            worker = _JobWorker()
            started.append(worker)
            worker.begin(waiting.popleft())
            busy[worker.connection] = worker
        while busy:
            for ready in wait(list(busy), _REPORT_S):
                worker = busy[ready]  # type: ignore[index]
                amount = worker.receive()
                if amount is not None:
                    done += amount
                elif waiting:
                    worker.begin(waiting.popleft())
                else:
                    del busy[worker.connection]
            report(done)
    finally:
        for worker in started:
            worker.end()
        for worker in started:
            worker.wait()


class _JobWorker:
    """One worker process, seen from the process that started it."""

    def __init__(self) -> None:
        parents_end, childs_end = socket.socketpair()
        with parents_end, childs_end:
            self.connection = Connection(os.dup(parents_end.fileno()))
            code = (
                f"from bushel._src.sources import conversion_workers; conversion_workers.serve({childs_end.fileno()})"
            )
            self._process: subprocess.Popen[bytes] = background.start_python(code, childs_end.fileno())
        self._job: WorkerJob | None = None

    def begin(self, job: WorkerJob) -> None:
        self._job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker has died: `receive` will notice
            self.connection.send(job)

    def receive(self) -> int | None:
        """Return the amount of the worker's last step; None if it has finished its job. Raise the error of the job."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            raise self._death_error() from None
        if kind == "failed":
            raise pickle.loads(content)
        return content

    def _death_error(self) -> ChildProcessError:
        how = "has ended"
        with contextlib.suppress(subprocess.TimeoutExpired):
            how = background.describe_exit(self._process.wait(_END_S))
        assert self._job is not None
        return ChildProcessError(
            f"Worker process {self._process.pid} {how} before it had written {self._job.shown}. The system kills "
            "processes if memory runs out: unless somebody else killed it, use fewer workers."
        )

    def end(self) -> None:
        self.connection.close()
        self._process.kill()

    def wait(self) -> None:
        self._process.wait()


def serve(descriptor: int) -> None:
    """Run in a worker process: does one job after the other, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback; the other process reports it
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    jobs: queue.SimpleQueue[WorkerJob] = queue.SimpleQueue()
    threading.Thread(target=_receive_jobs, args=(connection, jobs), daemon=True).start()
    while True:
        try:
            for amount in jobs.get().run():
                connection.send(("done", amount))
            connection.send(("done", None))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)
        except Exception as error:
            connection.send(("failed", _pickle_error(error)))


def _receive_jobs(connection: Connection, jobs: queue.SimpleQueue[Any]) -> None:
    """Receive jobs. End this process at once when the process that sends the jobs has ended."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            jobs.put(connection.recv())
    os._exit(1)


def _pickle_error(error: Exception) -> bytes:
    """Pickle an error, with its traceback as a note. An error that cannot be pickled becomes a RuntimeError."""
    where = f"bushel: in a worker process:\n{''.join(traceback.format_exception(error))}"
    try:
        add_note(error, where)
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        add_note(plain, where)
        return pickle.dumps(plain)
    return pickled
