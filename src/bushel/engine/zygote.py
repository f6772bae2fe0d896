"""The zygote: a clean process that has loaded numpy and Bushel, no JAX and no threads, and forks workers on request.

It makes starting a worker a matter of milliseconds, and forking safe whatever the consumer has loaded. It ends soon
after the last pool of workers, and, its workers with it, when the consumer does. Where forking is not safe at all
(macOS, whose system libraries may not be used after it), each worker is a Python of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from typing import Any, NoReturn

from bushel.base import clean_python
from bushel.base.clean_python import describe_exit
from bushel.engine import wire, worker
from bushel.engine.wire import Channel

NO_ACCELERATOR = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""One thread per worker for linear algebra, unless the consumer's environment says otherwise."""

_TUNABLES = "GLIBC_TUNABLES"
_PAST_THE_CACHE = "glibc.cpu.x86_non_temporal_threshold=0x100000"
"""Copies of a megabyte and more go past the cache: a worker writes large rows into slabs and never reads them again.
The C library reads this when a process starts; it makes such copies up to twice as fast. Elsewhere it means nothing."""

FORKS = sys.platform == "linux"
"""Whether workers are forked from the zygote, unless asked otherwise."""

ANSWER_S = 60.0
"""So long the zygote may take to start and to answer; then it is replaced."""

LOOK_S = 1.0
"""How often a zygote that does not answer is looked at: one that somebody has stopped (SIGSTOP) is replaced at once."""

MOST_STARTS = 10
"""So many zygotes in a row may be killed by a signal before one has started a worker; then that is an error."""

REST_S = 2.0
"""So long the zygote waits for another pool after the last one; then it ends."""

_IDLE_S = 0.01
_DYING_S = 1.0
_PR_SET_PDEATHSIG = 1


class _Lost(Exception):
    """The zygote is gone, or is of no use any more; the text continues "it ...".

    Args:
      by_signal: whether a signal from outside has ended or stopped it.
    """

    def __init__(self, what: str, *, by_signal: bool):
        super().__init__(what)
        self.by_signal = by_signal


class Starter:
    """Starts worker processes and tells how they ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._spawned: dict[int, subprocess.Popen[bytes]] = {}
        self._asked = 0
        self._owner = 0
        self._pools = 0
        self._counting = threading.Lock()  # not the other one: a start may hold that for long

    def begin(self) -> None:
        """A pool of workers begins."""
        with self._counting:
            self._pools += 1

    def rest(self) -> None:
        """A pool of workers has ended. After the last one the zygote is kept for a while, for the next one."""
        with self._counting:
            self._pools -= 1
            last = not self._pools and self._channel is not None
        if last:
            timer = threading.Timer(REST_S, self._end_unless_used, [self._asked])
            timer.name, timer.daemon = "bushel-rest", True
            with contextlib.suppress(RuntimeError):  # no more threads: this process ends
                timer.start()

    def _end_unless_used(self, asked: int) -> None:
        with self._lock:
            if not self._pools and self._asked == asked and self._owner == os.getpid():
                self._drop()

    def start(self, *, fork: bool) -> tuple[Channel, int]:
        """A new worker: the channel to it, and its process number."""
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            with self._lock, theirs:
                pid = self._fork(theirs.fileno()) if fork else self._spawn(theirs.fileno())
            unless_started.pop_all()
        return Channel(ours), pid

    def _spawn(self, descriptor: int) -> int:
        """Starts a worker as a new process of Python."""
        for pid in [pid for pid, process in self._spawned.items() if process.poll() is not None]:
            del self._spawned[pid]
        process = _python("zygote.spawned", descriptor)
        self._spawned[process.pid] = process
        return process.pid

    def _fork(self, descriptor: int) -> int:
        """Has the zygote fork a worker. If the zygote is lost meanwhile, a new one is asked."""
        for attempt in itertools.count(1):
            try:
                return self._ask("fork", descriptors=(descriptor,))
            except _Lost as lost:
                # One that a signal has ended says nothing about the next one. One that ends by itself will do so again.
                if attempt == (MOST_STARTS if lost.by_signal else 2):
                    times = f" It was started {attempt} times in a row."
                    raise RuntimeError(
                        f"Bushel cannot start the helper process that forks its workers: it {lost}.{times} Its error "
                        "messages, if it has printed any, are above."
                    ) from None
        raise AssertionError

    def _ask(self, kind: str, *arguments: Any, descriptors: tuple[int, ...] = ()) -> Any:
        """What the zygote answers.

        Where the answer does not come, be it for Ctrl-C, it is replaced: nobody takes a late answer for another's.
        """
        control = self._control()
        self._asked += 1
        try:
            control.send((kind, self._asked, *arguments), descriptors)
            self._wait_for_answer(control)
            (number, answer), _ = control.receive()
            if number != self._asked:
                raise _Lost(f"has answered request {number} and not {self._asked}", by_signal=False)
        except wire.Closed:
            code = self._drop(_DYING_S)
            raise _Lost(describe_exit(code), by_signal=code < 0) from None
        except BaseException:
            self._drop()
            raise
        return answer

    def _wait_for_answer(self, control: Channel) -> None:
        assert self._process is not None
        deadline, stopped = time.monotonic() + ANSWER_S, False
        while not control.has_news(LOOK_S):
            was_stopped, stopped = stopped, _is_stopped(self._process.pid)
            if was_stopped and stopped:  # not at the first look: all of this job may just be waking from a pause
                raise _Lost("was stopped by a signal", by_signal=True)
            if time.monotonic() > deadline:
                raise _Lost(f"has not answered for {ANSWER_S:.0f} s", by_signal=False)

    def _drop(self, patience_s: float = 0.0) -> int:
        """Ends the zygote, and with it the workers that it has forked. Returns its exit code.

        Args:
          patience_s: how long it may take to end by itself, before it is killed.
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

    def ended(self, pid: int) -> str:
        """How a worker ended, in words."""
        with self._lock:
            process = self._spawned.pop(pid, None)
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return describe_exit(process.wait(1.0))
                return "ended for an unknown reason"
            try:
                status = self._ask("status", pid)
            except _Lost:
                status = None
        return "ended for an unknown reason" if status is None else describe_exit(os.waitstatus_to_exitcode(status))

    def reap(self, pid: int) -> None:
        """Takes note that a worker was killed, so that nothing of it stays."""
        process = self._spawned.pop(pid, None)  # without the lock: a start may hold it for long
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    def let_go(self) -> None:
        """In a forked child: the zygote is the parent's."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._process = None
        self._spawned = {}
        self._pools = 0
        self._lock, self._counting = threading.Lock(), threading.Lock()

    def end(self) -> None:
        """Ends the zygote, at the exit of this process."""
        if self._channel is not None and self._process is not None and self._owner == os.getpid():
            self._channel.close()
            self._process.kill()
            self._process.wait()

    def _control(self) -> Channel:
        if self._channel is None or self._owner != os.getpid():
            ours, theirs = socket.socketpair()
            with contextlib.ExitStack() as unless_started:
                unless_started.callback(ours.close)
                with theirs:
                    self._process = _python("zygote.main", theirs.fileno())
                unless_started.pop_all()
            self._channel, self._owner = Channel(ours), os.getpid()
        return self._channel


def _python(function: str, descriptor: int) -> subprocess.Popen[bytes]:
    """A clean process that calls a function of this package with a descriptor."""
    variables = {**THREADS, **os.environ, **NO_ACCELERATOR, _TUNABLES: _tunables()}
    return clean_python.start(f"from bushel.engine import zygote; {function}({descriptor})", descriptor, variables)


def _is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a child of this process, where the system tells that."""
    if not hasattr(os, "waitid"):
        return False
    with contextlib.suppress(ChildProcessError):
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return found is not None and found.si_pid == pid
    return False


def _tunables() -> str:
    given = os.environ.get(_TUNABLES)  # the last setting of a name wins: the user's
    return f"{_PAST_THE_CACHE}:{given}" if given else _PAST_THE_CACHE


def kill(pid: int) -> None:
    """Kills a worker, which may be gone already."""
    if pid <= 1:  # the system would take that for many processes
        raise ValueError(f"There is no worker process {pid}.")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def spawned(descriptor: int) -> None:
    """What a worker does that was not forked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(os.getppid())
    worker.main(descriptor)


def main(descriptor: int) -> None:
    """Forks a worker for every request, until the consumer is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = Channel(socket.socket(fileno=descriptor))
    children: set[int] = set()
    ended: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(children, ended))  # nobody need ask for what is gone
    later = ["bushel.dataset", "numpy.random"]  # of use to many pipelines; the first workers need not wait for it
    while True:
        while children and later and not control.has_news(_IDLE_S):
            importlib.import_module(later.pop(0))
        try:
            (kind, number, *arguments), descriptors = control.receive()
        except wire.Closed:
            for pid in list(children):  # each that ends is taken out of it at once
                kill(pid)
            os._exit(0)
        _reap(children, ended)
        if kind == "fork":
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _become_worker(control, parent, descriptors[0])
            os.close(descriptors[0])
            children.add(pid)
            control.send((number, pid))
        else:
            deadline = time.monotonic() + 1.0
            while arguments[0] in children and time.monotonic() < deadline:
                _reap(children, ended)
                time.sleep(0.001)
            control.send((number, ended.pop(arguments[0], None)))


def _become_worker(control: Channel, parent: int, descriptor: int) -> NoReturn:
    """What the forked child does, and never comes back from."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        _die_with(parent)
        if "numpy.random" in sys.modules:  # or all draw the same; the module `random` sees to that itself
            sys.modules["numpy.random"].seed()
        worker.main(descriptor)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(children: set[int], ended: dict[int, int]) -> None:
    for pid in list(children):
        with contextlib.suppress(ChildProcessError):  # a signal has come in between, and this is done
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                children.discard(pid)
                ended[pid] = status


def _die_with(parent: int) -> None:
    """Asks the system to end this process with its parent, where it can; elsewhere the end of the channel does."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


STARTER = Starter()
weakref.finalize(STARTER, STARTER.end)  # at exit the younger finalizers come first, those of the pools
