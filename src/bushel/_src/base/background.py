"""Starts Python processes and threads of Bushel's, and ends them.

A process does not import the user's main module, so a script needs no `__main__` guard. A thread ends before Python
does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

SCRIPT_MODULE = "__bushel_script__"
"""The name of the module of a script that a command such as `bushel view train.py:ds` runs. No import finds it."""


def start_python(code: str, descriptor: int, variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a Python that runs `code` with this process's module search path, in a session of its own.

    Ctrl-C in the terminal does not reach the new process: the caller must end it.

    Args:
      code: Python statements. They never see the main module of this process.
      descriptor: a file descriptor that the new process inherits, under the same number.
      variables: the environment of the new process; this one's by default.
    """
    import subprocess  # here: the process that this starts imports this module, too

    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {search_path()!r}\n{code}"],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        cwd=working_folder(),
        env=None if variables is None else dict(variables),
        start_new_session=True,
    )


def working_folder() -> str:
    """Return the current folder; the root folder if the current one was deleted, since Python could not start there."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep


def search_path() -> list[str]:
    """Return the folders in which Python looks for modules. As Python does, it ignores entries that are not a str."""
    return [str(entry) for entry in sys.path if isinstance(entry, str)]


def describe_exit(code: int) -> str:
    """Return how a process ended, as the end of a sentence. `code` is as in `Popen.returncode`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


_EXIT_S = 1.0
"""How long the end of Python waits while the threads do nothing. They may be in the middle of the user's code."""

_BUSY_EXIT_S = 10.0
"""How long it waits at most while the threads compute. On a busy machine, letting go of their arrays takes long."""

_stops: dict[threading.Thread, tuple[int, Callable[[], None]]] = {}
"""The threads that run, each with its process and the function that tells it to end."""


def start_thread(name: str, stop: Callable[[], None], run: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a daemon thread, and ends it before Python exits.

    Args:
      name: of the thread.
      stop: tells the thread to end. It returns at once, and may be called again.
      run: what the thread does.
      arguments: of `run`.
    """

    def run_and_forget() -> None:
        try:
            run(*arguments)
        finally:
            _stops.pop(thread, None)

    thread = threading.Thread(target=run_and_forget, name=name, daemon=True)
    _stops[thread] = os.getpid(), stop
    # Functions that run at exit run in reverse order, and this one must run before JAX's own.
    atexit.unregister(_end_all)
    atexit.register(_end_all)
    try:
        thread.start()
    except BaseException:
        _stops.pop(thread, None)
        raise
    return thread


_has_begun_to_end = False
"""Whether Python is about to exit, so that `_raise_in` may raise SystemExit in a thread."""


def must_end(error: BaseException) -> bool:
    """Return whether an error asks this thread or process to end, and does not come from the code that it runs.

    A user's function may call `sys.exit`, and that is an error of the function. But a SystemExit is also what ends our
    threads, and what the handler of a signal raises wherever the process happens to be.
    """
    if not isinstance(error, SystemExit):
        return False
    handlers = (signal.getsignal(number) for number in signal.valid_signals())
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return _has_begun_to_end or trace is not None


def _end_all() -> None:
    global _has_begun_to_end
    _has_begun_to_end = True
    threads = {thread: stop for thread, (process, stop) in list(_stops.items()) if process == os.getpid()}
    try:
        for stop in threads.values():
            stop()
        _hide_system_exits()
        _join(threads)
    except KeyboardInterrupt:
        pass  # somebody is in a hurry


def _join(threads: Iterable[threading.Thread]) -> None:
    """Wait until the threads have ended. Give up when they stand still, or when they compute for too long."""
    begun = last_seen_busy = time.monotonic()
    raise_at, spent_s = begun + _EXIT_S / 2, time.process_time()
    while alive := [thread for thread in threads if thread.is_alive()]:
        now = time.monotonic()
        if time.process_time() > spent_s + 0.01:  # more than this loop needs, so a thread is at work
            last_seen_busy, spent_s = now, time.process_time()
        if now > last_seen_busy + _EXIT_S or now > begun + _BUSY_EXIT_S:
            return
        if now > raise_at:
            for thread in alive:
                _raise_in(thread)
            raise_at = now + _EXIT_S / 4  # again, since code that runs in a garbage collection swallows it
        alive[0].join(0.02)


def _hide_system_exits() -> None:
    """Print nothing if `_raise_in` has hit a thread in code whose errors Python cannot raise, such as `__del__`."""
    before = sys.unraisablehook

    def hide(unraisable: Any) -> None:
        if unraisable.exc_type is not SystemExit:
            before(unraisable)

    sys.unraisablehook = hide


def _raise_in(thread: threading.Thread) -> None:
    """Raise SystemExit in another thread, where it is in Python code. Nobody waits for its result any more."""
    with contextlib.suppress(AttributeError):  # where Python is not CPython
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
