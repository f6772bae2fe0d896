"""The sockets between a pool's thread and its workers. The thread waits for all of them at once, and for none alone."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Iterator
from typing import Any

from bushel._src.engine.processes.channel import Closed
from bushel._src.engine.processes.members import Member


class Connections:
    """The channels of workers in one selector, and a pipe with which other threads wake the pool's thread."""

    def __init__(self) -> None:
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)  # a full pipe must not block the consumer
        os.set_blocking(self._wake_reader, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)

    def wake(self) -> None:
        """Makes `wait` return. Any thread may call it, without a lock, and also after `close`."""
        with contextlib.suppress(BlockingIOError, OSError):  # the pipe is full, or closed
            os.write(self._wake_writer, b"x")

    def wait(self, timeout_s: float | None) -> Iterator[tuple[Member, bool]]:
        """Waits until something happens. Yields the workers that have sent something, and whether each is dead.

        Messages that a full socket has kept back are sent meanwhile.
        """
        for key, events in self._selector.select(timeout_s):
            worker: Member | None = key.data
            if worker is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reader, 4096)
            elif worker.connected:  # not if its other descriptor, in the same `select`, has said that it is dead
                if events & selectors.EVENT_WRITE:
                    self._send_rest(worker)
                if events & selectors.EVENT_READ:
                    yield worker, key.fd == worker.pidfd

    def add(self, worker: Member) -> None:
        self._selector.register(worker.channel.socket, selectors.EVENT_READ, worker)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # the worker is dead already: the end of its channel says so
                worker.pidfd = os.pidfd_open(worker.pid)
                self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)

    def remove(self, worker: Member) -> None:
        # First out of the selector: the system gives the number of a closed descriptor to the next file that is opened.
        worker.connected = False
        self._selector.unregister(worker.channel.socket)
        worker.channel.close()
        if worker.pidfd >= 0:
            self._selector.unregister(worker.pidfd)
            os.close(worker.pidfd)

    def send(self, worker: Member, *message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message as far as the socket takes it. The rest follows when the socket has room again."""
        with contextlib.suppress(Closed):  # the worker is dead; `wait` reports that next
            worker.channel.send_nowait(message, descriptors)
            self._watch_for_room(worker)

    def _send_rest(self, worker: Member) -> None:
        with contextlib.suppress(Closed):
            worker.channel.send_rest()
            self._watch_for_room(worker)

    def _watch_for_room(self, worker: Member) -> None:
        """Makes the selector report room in a worker's socket while something is unsent, and only then.

        A socket nearly always has room, so otherwise `select` would return at once each time.
        """
        if worker.has_unsent != worker.channel.has_unsent():
            worker.has_unsent = not worker.has_unsent
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.has_unsent else 0)
            self._selector.modify(worker.channel.socket, events, worker)

    def close(self) -> None:
        self._selector.close()
        os.close(self._wake_reader)
        # First the attribute: `wake` must not write into another file that gets this number next.
        writer, self._wake_writer = self._wake_writer, -1
        os.close(writer)
