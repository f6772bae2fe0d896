"""Handles that only one thread at a time may use, kept for the next one. What a handle is, the formats know.

No handle lives in a `threading.local`. Python destroys what is in there while it takes a thread's state apart, and a
native object that asks for Python's lock at that moment hangs or crashes the process. Threads that Python did not
start, such as those of a tokenizer written in Rust, end in this way after every call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class HandlePool(Generic[T]):
    """Idle handles. `take` gives an idle one or makes one; `give_back` keeps it, up to `limit` of them.

    A handle that was in use when an error came is not given back, since nobody knows in which state it is.

    >>> pool = HandlePool(list, limit=1)
    >>> handle = pool.take()
    >>> pool.give_back(handle)
    >>> pool.take() is handle
    True
    """

    def __init__(self, make: Callable[[], T], limit: int):
        self._make, self._limit = make, limit
        self._idle: list[
            T
        ] = []  # `pop` and `append` are atomic, so that no lock is needed, and none hangs after a fork

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
        """`take`, and `give_back` unless there was an error."""
        handle = self.take()
        yield handle
        self.give_back(handle)
