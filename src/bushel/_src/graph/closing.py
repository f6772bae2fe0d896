"""Closing what another thread may be using: a user's iterator, or a reader of files."""

from __future__ import annotations

import contextlib
from typing import Any

CLOSED = "This iterator was closed while its next element was being computed."


class InUse:
    """Closes an iterator once, and never while it is in use: the thread that uses it closes it when it is done.

    One thread at a time uses an iterator. Any thread may close it, and so may a signal handler or the garbage collector
    in the middle of `__next__`. Python refuses to close a generator that is running ("generator already executing"),
    and a user's own `close` is not made for it. `close` returns at once and never waits for the user of the iterator.
    Using the iterator after that is a ValueError.

    >>> def numbers():
    ...     try:
    ...         yield 1
    ...     finally:
    ...         print("closed")
    >>> iterator = numbers()
    >>> in_use = InUse(iterator)
    >>> with in_use:
    ...     _ = next(iterator)
    ...     in_use.close()
    ...     print("still in use")
    still in use
    closed
    """

    __slots__ = ("_held", "is_closed", "users")

    def __init__(self, iterator: Any = None):
        self._held = [iterator]  # taken out by the thread that closes it: only one `pop` succeeds
        self.users = 0
        self.is_closed = False
        """Whether `close` was called: the iterator is closed, or will be when its user is done."""

    def hold(self, iterator: Any) -> None:
        """Holds another iterator from now on. Only for the thread that uses it."""
        self._held = [iterator]

    def __enter__(self) -> None:
        self.users += 1
        if self.is_closed:
            self.users -= 1
            raise ValueError(CLOSED)

    def __exit__(self, *_: object) -> None:
        self.users -= 1
        if self.is_closed and not self.users:
            self.close()

    def close(self) -> None:
        """Closes the iterator, now or when its user is done. Calling it again does nothing."""
        # This comes before the look at `users`. A thread that begins to use the iterator meanwhile either sees
        # `is_closed`, or is counted in `users`.
        self.is_closed = True
        iterator = None
        if not self.users:
            with contextlib.suppress(IndexError):
                iterator = self._held.pop()
        getattr(iterator, "close", lambda: None)()
