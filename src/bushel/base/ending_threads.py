"""Threads of ours end before Python does.

A daemon thread that needs the interpreter after it has gone is ended by the system wherever it is. In code written in
C++ that aborts the whole process, with a message and a core dump, after the user's program has ended well. JAX is such
code: it is enough that the thread holds the last reference to an array and lets go of it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

_EXIT_S = 1.0
"""How long the end of Python waits, for all threads together. They may be in the middle of the user's code."""

_stops: dict[threading.Thread, tuple[int, Callable[[], None]]] = {}
"""The threads that run, each with its process and the function that tells it to end."""


def start_thread(name: str, stop: Callable[[], None], run: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Starts a daemon thread, and ends it before Python exits.

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


def _end_all() -> None:
    deadline = time.monotonic() + _EXIT_S
    threads = {thread: stop for thread, (process, stop) in list(_stops.items()) if process == os.getpid()}
    try:
        for stop in threads.values():
            stop()
        _join(threads, deadline - _EXIT_S / 2)
        for thread in threads:
            if thread.is_alive():
                _raise_in(thread)
        _join(threads, deadline)
    except KeyboardInterrupt:
        pass  # somebody is in a hurry


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))


def _raise_in(thread: threading.Thread) -> None:
    """Raises SystemExit in another thread, where it is in Python code. Nobody waits for its result any more."""
    with contextlib.suppress(AttributeError):  # where Python is not CPython
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
