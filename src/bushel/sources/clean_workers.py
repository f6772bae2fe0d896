"""Work spread over processes of its own, for `bushel convert`. What the work is, and its files: see conversion.py.

The processes come from a clean Python, not from a fork or a copy of the user's program. The pool of the engine does
more (order, retries, shared memory), but it stands above the sources.
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

from bushel.base import clean_python
from bushel.base.errors import add_note

_REPORT_S = 0.2
_END_S = 5.0


class Job(Protocol):
    """Something to do that can be pickled."""

    def run(self) -> Iterator[int]:
        """Does it, and yields how much each step did."""
        ...

    def describe(self) -> str:
        """What is done, as it reads after "while it"."""
        ...


def run_all(jobs: Sequence[Job], workers: int, report: Callable[[int], None]) -> None:
    """Runs every job in one of `workers` processes, and returns when all are done.

    The first error ends all of the processes, and is raised. When this returns or raises, none of them is alive.

    Args:
      jobs: begun in this order.
      workers: how many processes at most.
      report: called now and then with the sum of what the jobs have done so far.
    """
    waiting, done = collections.deque(jobs), 0
    busy: dict[Connection, _Worker] = {}
    started: list[_Worker] = []
    try:
        for _ in range(min(workers, len(jobs))):
            worker = _Worker()
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


class _Worker:
    """One process, as the process that started it sees it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.connection = Connection(os.dup(ours.fileno()))
            code = f"from bushel.sources import clean_workers; clean_workers.serve({theirs.fileno()})"
            self._process: subprocess.Popen[bytes] = clean_python.start(code, theirs.fileno())
        self._job: Job | None = None

    def begin(self, job: Job) -> None:
        self._job = job
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is received next
            self.connection.send(job)

    def receive(self) -> int | None:
        """How much the worker has done since, or None when it has finished its job. Raises the job's error."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if kind == "failed":
            raise pickle.loads(content)
        return content

    def _death(self) -> ChildProcessError:
        how = "ended"
        with contextlib.suppress(subprocess.TimeoutExpired):
            how = clean_python.describe_exit(self._process.wait(_END_S))
        assert self._job is not None
        return ChildProcessError(
            f"Worker process {self._process.pid} {how} while it {self._job.describe()}. The system kills processes "
            "that need more memory than there is: if nobody else killed it, use fewer workers."
        )

    def end(self) -> None:
        self.connection.close()
        self._process.kill()

    def wait(self) -> None:
        self._process.wait()


def serve(descriptor: int) -> None:
    """In a worker process: does one job after the other, until the other end of the connection is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends without a word, and the other process says so
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, jobs), daemon=True).start()
    while True:
        try:
            for amount in jobs.get().run():
                connection.send(("done", amount))
            connection.send(("done", None))
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)
        except Exception as error:
            connection.send(("failed", _portable(error)))


def _listen(connection: Connection, jobs: queue.SimpleQueue[Any]) -> None:
    """Ends this process, whatever it is at, when the process that gave it the jobs is gone."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            jobs.put(connection.recv())
    os._exit(1)


def _portable(error: Exception) -> bytes:
    """An error, pickled, with the lines where it was raised. One that cannot be sent is told in words."""
    where = f"bushel: in a worker process:\n{''.join(traceback.format_exception(error))}"
    try:
        add_note(error, where)
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        told = RuntimeError(f"{type(error).__name__}: {error}")
        add_note(told, where)
        return pickle.dumps(told)
    return pickled
