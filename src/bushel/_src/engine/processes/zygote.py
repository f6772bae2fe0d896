"""The zygote: a clean process with numpy and Bushel loaded, but no JAX and no threads, that forks workers on request.

A fork of the zygote takes milliseconds, and it is safe whatever the consumer has loaded. A fork of the consumer would
not be safe: a lock that another thread holds stays locked for ever in the child. The zygote ends soon after the last
pool of workers. It also ends with the consumer, and its workers end with it. Where no fork is safe (the system
libraries of macOS do not allow it), each worker is a new Python process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from bushel._src.base import background
from bushel._src.base.background import describe_exit
from bushel._src.base.late_imports import Lazy
from bushel._src.engine.pool.results import KEPT_BYTES, LARGEST_KEPT, NO_ACCELERATOR, keeps_default_memory
from bushel._src.engine.processes import worker
from bushel._src.engine.processes.channel import Channel, Closed

if TYPE_CHECKING:
    import subprocess
else:
    subprocess = Lazy("subprocess")  # the zygote itself does not need it, and starts sooner without

THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""One thread per worker for linear algebra, unless the consumer's environment sets another number."""

_TUNABLES = "GLIBC_TUNABLES"
_BYPASS_CACHE = "glibc.cpu.x86_non_temporal_threshold=0x100000"
"""Copies of a megabyte and more bypass the CPU cache: a worker writes large rows into slabs and never reads them again.

That makes such copies up to twice as fast. glibc reads this variable when a process starts; others ignore it.
"""

_KEEP_FREED_MEMORY = f"glibc.malloc.trim_threshold={KEPT_BYTES}:glibc.malloc.mmap_threshold={LARGEST_KEPT}"

FORKS = sys.platform == "linux"
"""Whether workers are forked from the zygote by default."""

ANSWER_S = 60.0
"""How long the zygote may take to start and to answer before it is replaced."""

CHECK_S = 1.0
"""How often a zygote that does not answer is checked. One that somebody has stopped (SIGSTOP) is replaced early."""

MAX_STARTS = 10
"""How many zygotes in a row may be killed by a signal before that is an error."""

KEEP_S = 2.0
"""How long the zygote is kept after the last pool has ended, in case another pool begins."""

_DYING_S = 5.0
"""How long a process may take from the end of its channel to its end. On a busy machine, that can be a second."""

_IDLE_S = 0.01
_PR_SET_PDEATHSIG = 1


class _ZygoteLost(Exception):
    """The zygote is dead or useless. The text is a sentence that says what happened to it.

    Args:
      by_signal: whether a signal from outside has killed or stopped it.
    """

    def __init__(self, sentence: str, *, by_signal: bool):
        super().__init__(sentence)
        self.by_signal = by_signal


class Starter:
    """Starts worker processes, and says how they ended. There is one, `STARTER`, for all pools of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._requests = 0
        self._owner = 0
        self._pools = 0
        self._pools_lock = threading.Lock()  # a lock of its own: a start may hold `_lock` for long
        self._timer: threading.Timer | None = None  # ends the zygote, if no pool begins before

    def add_pool(self) -> None:
        """Record that a pool of workers begins."""
        with self._pools_lock:
            self._pools += 1
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()  # otherwise a program with many short pools would have as many waiting threads

    def remove_pool(self) -> None:
        """Record that a pool of workers has ended. The zygote ends a while after the last one."""
        with self._pools_lock:
            self._pools -= 1
            last = not self._pools and self._channel is not None
        if last:
            timer = threading.Timer(KEEP_S, self._kill_if_unused, [self._requests])
            timer.name, timer.daemon = "bushel-rest", True
            with contextlib.suppress(RuntimeError):  # this process is exiting and can start no thread
                timer.start()
                self._timer = timer

    @contextlib.contextmanager
    def starting(self, *, fork: bool) -> Iterator[None]:
        """Start the zygote and does not wait for it: while it starts, the caller prepares a pool."""
        self.add_pool()
        try:
            if fork:
                with self._lock:
                    self._get_channel()
            yield
        finally:
            self.remove_pool()

    def _kill_if_unused(self, requests: int) -> None:
        with self._lock:
            if not self._pools and self._requests == requests and self._owner == os.getpid():
                self._kill_zygote()

    def start(self, *, fork: bool) -> tuple[Channel, int]:
        """Start a worker. Return the channel to it, and its process number."""
        consumers_end, workers_end = socket.socketpair()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(consumers_end.close)
            with self._lock, workers_end:
                pid = self._fork(workers_end.fileno()) if fork else self._spawn(workers_end.fileno())
            unless_started.pop_all()
        return Channel(consumers_end), pid

    def _spawn(self, descriptor: int) -> int:
        """Start a worker as a new process of Python."""
        for pid in [pid for pid, process in self._spawned.items() if process.poll() is not None]:
            del self._spawned[pid]
        process = _start_python("zygote.run_spawned_worker", descriptor)
        self._spawned[process.pid] = process
        return process.pid

    def _fork(self, descriptor: int) -> int:
        """Ask the zygote to fork a worker. Ask a new zygote if this one is lost meanwhile."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._request("fork", descriptors=(descriptor,))
            except _ZygoteLost as lost:
                # If a signal has killed the zygote, the next one may live. If it has ended by itself, the next one will
                # probably do so, too: there is one more attempt only.
                if attempt == (MAX_STARTS if lost.by_signal else 2):
                    raise RuntimeError(
                        f"Bushel cannot start the helper process that forks its workers. {lost} It was started "
                        f"{attempt} times in a row. Its error messages, if it has printed any, are above."
                    ) from None

    def _request(self, kind: str, *arguments: Any, descriptors: tuple[int, ...] = ()) -> Any:
        """Send the zygote a request and return its answer.

        If the answer does not come, also because of Ctrl-C, the zygote is killed. Otherwise a later request could
        receive the answer to this one.
        """
        control = self._get_channel()
        self._requests += 1
        try:
            control.send((kind, self._requests, *arguments), descriptors)
            self._wait_for_answer(control)
            (number, answer), _ = control.receive()
            if number != self._requests:
                raise _ZygoteLost(f"It has answered request {number} instead of {self._requests}.", by_signal=False)
        except Closed:
            code = self._kill_zygote(_DYING_S)
            raise _ZygoteLost(f"It {describe_exit(code)}.", by_signal=code < 0) from None
        except BaseException:
            self._kill_zygote()
            raise
        return answer

    def _wait_for_answer(self, control: Channel) -> None:
        assert self._process is not None
        deadline, stopped = time.monotonic() + ANSWER_S, False
        while not control.wait_for_data(CHECK_S):
            was_stopped, stopped = stopped, _is_stopped(self._process.pid)
            # Twice: at the first check, all processes of a paused job (Ctrl-Z) may just be waking up.
            if was_stopped and stopped:
                raise _ZygoteLost("It was stopped by a signal.", by_signal=True)
            if time.monotonic() > deadline:
                raise _ZygoteLost(f"It has not answered for {ANSWER_S:.0f} s.", by_signal=False)

    def _kill_zygote(self, patience_s: float = 0.0) -> int:
        """End the zygote, and with it the workers that it has forked. Return its exit code.

        Args:
          patience_s: how long the zygote may take to end by itself before it is killed.
        """
        channel, process = self._channel, self._process
        self._channel = self._process = None
        if channel is None or process is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            if patience_s:
                process.wait(patience_s)
        channel.close()
        process.kill()
        return process.wait()

    def describe_end(self, pid: int) -> str:
        """Return how a worker ended, in words that continue a sentence."""
        with self._lock:
            process = self._spawned.pop(pid, None)
            try:
                code = self._request("exit_code", pid) if process is None else process.wait(_DYING_S)
            except (subprocess.TimeoutExpired, _ZygoteLost):
                code = None
        return "ended for an unknown reason" if code is None else describe_exit(code)

    def reap(self, pid: int) -> None:
        """Wait for a spawned worker that was killed. Otherwise it would stay in the system as a zombie process.

        The zygote does the same for the workers that it has forked.
        """
        process = self._spawned.pop(pid, None)  # without the lock, which a start may hold for long
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DYING_S)

    def reset_in_child(self) -> None:
        """In a forked child: forgets the zygote, which belongs to the parent."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._process = None
        self._spawned = {}
        self._pools = 0
        self._timer = None
        # A thread of the parent may have held the old locks. It does not exist here, so nobody would release them.
        self._lock, self._pools_lock = threading.Lock(), threading.Lock()

    def stop(self) -> None:
        """End the zygote, at the exit of this process. Take no lock: a thread may hold it for ever at exit."""
        if self._owner == os.getpid():
            self._kill_zygote()

    def _get_channel(self) -> Channel:
        """Return the channel to the zygote, which is started if there is none."""
        if self._channel is None or self._owner != os.getpid():
            consumers_end, workers_end = socket.socketpair()
            with contextlib.ExitStack() as unless_started:
                unless_started.callback(consumers_end.close)
                with workers_end:
                    self._process = _start_python("zygote.main", workers_end.fileno())
                unless_started.pop_all()
            self._channel, self._owner = Channel(consumers_end), os.getpid()
        return self._channel


def _start_python(function: str, descriptor: int) -> subprocess.Popen[bytes]:
    """Start a clean process that calls a function of this package with a file descriptor."""
    # The user's own setting comes last: if both set the same name, glibc takes the last one.
    keep = _KEEP_FREED_MEMORY if keeps_default_memory() else None
    tunables = ":".join(filter(None, [_BYPASS_CACHE, keep, os.environ.get(_TUNABLES)]))
    variables = {**THREADS, **os.environ, **NO_ACCELERATOR, _TUNABLES: tunables}
    code = f"from bushel._src.engine.processes import zygote; {function}({descriptor})"
    return background.start_python(code, descriptor, variables)


def _is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a child of this process. False on systems that do not say."""
    if not hasattr(os, "waitid"):
        return False
    with contextlib.suppress(ChildProcessError):
        # WNOWAIT leaves the news for the next call: without it a process that stays stopped would be reported once.
        status = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return status is not None and status.si_pid == pid
    return False


def kill(pid: int) -> None:
    """Kill a worker, which may be dead already."""
    if pid <= 1:  # for 0 and below, the system would kill whole groups of processes
        raise ValueError(f"There is no worker process {pid}.")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def run_spawned_worker(descriptor: int) -> None:
    """Run a worker in a new Python process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the consumer decides what ends
    _die_with(os.getppid())
    worker.main(descriptor)


def main(descriptor: int) -> None:
    """Run the zygote: forks a worker for every request, until the consumer has closed the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = Channel(socket.socket(fileno=descriptor))
    children: set[int] = set()
    exit_codes: dict[int, int] = {}
    # Otherwise a dead worker would stay a zombie until somebody asks for its exit code.
    signal.signal(signal.SIGCHLD, lambda *_: _reap(children, exit_codes))
    # Nearly all pipelines need these modules. Imported here, they take the time of one process and not of each worker.
    for name in (
        "bushel._src.graph.map_ops",
        "bushel._src.graph.batch",
        "bushel._src.graph.source_nodes",
        "bushel._src.graph.reindex",
    ):
        importlib.import_module(name)
    # Many pipelines need these, too. They are imported in idle moments: the first workers need not wait for them.
    later = ["bushel._src.datasets.map_dataset", "numpy.random"]
    while True:
        while children and later and not control.wait_for_data(_IDLE_S):
            importlib.import_module(later.pop(0))
        try:
            (kind, number, *arguments), descriptors = control.receive()
        except Closed:
            for pid in list(children):  # a copy: the SIGCHLD handler removes each child as it ends
                kill(pid)
            os._exit(0)
        _reap(children, exit_codes)
        if kind == "fork":
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _run_forked_worker(control, parent, descriptors[0])
            os.close(descriptors[0])
            children.add(pid)
            control.send((number, pid))
        else:
            deadline = time.monotonic() + _DYING_S  # a dying worker's channel is closed before its exit code is known
            while arguments[0] in children and time.monotonic() < deadline:
                _reap(children, exit_codes)
                time.sleep(0.001)
            control.send((number, exit_codes.pop(arguments[0], None)))


def _run_forked_worker(control: Channel, parent: int, descriptor: int) -> NoReturn:
    """Run a worker in a forked child. Never returns: otherwise the child would continue as a second zygote."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # children that the user's function starts are its own to reap
        control.close()  # otherwise the consumer would not notice when the zygote dies
        _die_with(parent)
        # All forks have the same random state, so all workers would draw the same numbers. `random` reseeds by itself.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        worker.main(descriptor)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(children: set[int], exit_codes: dict[int, int]) -> None:
    """Move the children that have ended to `exit_codes`."""
    for pid in list(children):
        with contextlib.suppress(ChildProcessError):  # the signal handler has run in between and has reaped this child
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                exit_codes[pid] = os.waitstatus_to_exitcode(status)


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies. On other systems the end of the channel ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before this call: no signal will come
            os._exit(1)


STARTER = Starter()
# Python calls finalizers at exit in the reverse order of their creation. So those of the pools, made later, come first.
weakref.finalize(STARTER, STARTER.stop)
