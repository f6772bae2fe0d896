"""A pool of handles (decoders, open files) of which each may be used by one thread at a time.

We do not keep handles in a `threading.local`. Python destroys its content while it dismantles the state of a thread.
A native object that asks for the GIL at that moment hangs or crashes the process. Threads that Python did not start,
such as those of a tokenizer written in Rust, are dismantled after every call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class HandlePool(Generic[T]):
    """Idle handles. `take` returns an idle handle or makes one; `give_back` keeps it, up to `limit` handles.

    A handle that was in use when an error occurred is not given back, because its state is unknown.

    >>> pool = HandlePool(list, limit=1)
    >>> handle = pool.take()
    >>> pool.give_back(handle)
    >>> pool.take() is handle
    True
    """

    def __init__(self, make: Callable[[], T], limit: int):
        self._make, self._limit = make, limit
        # `pop` and `append` are atomic. A lock is not needed, and would hang in a child forked while it is held.
        self._idle: list[T] = []

    def take(self) -> T:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def give_back(self, handle: T) -> None:
        if len(self._idle) < self._limit:
            self._idle.append(handle)

    @contextlib.contextmanager
    def lend(self) -> Iterator[T]:
        """Take a handle for the block, and give it back unless the block raises an error."""
        handle = self.take()
        yield handle
        self.give_back(handle)
