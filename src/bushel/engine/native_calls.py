"""Calls of JAX on threads of ours. None of them may be under way when Python exits.

A daemon thread that returns from native code after the interpreter has gone cannot go on. In code written in C++ that
can abort the whole process, with a message and a core dump, after the user's program has ended well.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from types import TracebackType

_EXIT_S = 2.0
"""How long the end of Python waits for one call. A transfer takes milliseconds."""

_threads: weakref.WeakSet[NativeCalls] = weakref.WeakSet()


class NativeCalls:
    """A context for the calls of one thread. When Python exits, the thread stops before its next call.

    Make it after `import jax`: functions that run at exit run in reverse order, and JAX's own must come later.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        if not _threads:
            atexit.unregister(_stop_all)
            atexit.register(_stop_all)
        _threads.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lock.release()


def _stop_all() -> None:
    for calls in list(_threads):
        calls.lock.acquire(timeout=_EXIT_S)  # and never released: the thread waits here until the process is gone
