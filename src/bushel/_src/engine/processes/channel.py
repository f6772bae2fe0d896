"""Messages between the consumer and a worker process, or the zygote: pickles and file descriptors over a socket.

Both ends are processes of one user, started by this library. Nothing that comes from elsewhere is ever unpickled.
"""

from __future__ import annotations

import array
import collections
import os
import pickle
import select
import socket
import struct
from typing import Any

_HEADER = struct.Struct("<QB")  # size of the pickle, number of descriptors
_MOST_DESCRIPTORS = 16  # with one message
_CHUNK_BYTES = 1 << 16  # a worker collects messages up to this size; the pool's thread reads this much at a time


class Closed(Exception):
    """The other process has closed its end of the channel, or is dead."""


class Channel:
    """Messages over a stream socket: pickled objects, and file descriptors from consumer to worker.

    The pool's thread talks to many workers and must not wait for any of them. It uses the methods with `nowait` in
    their names. The zygote and the workers have one channel each, and use the methods that wait.
    """

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self._buffer = bytearray()
        self._collected = b""  # by `send_later`
        self._unsent: collections.deque[tuple[memoryview, tuple[int, ...]]] = collections.deque()

    def send_nowait(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Send as much of a message as the socket takes now, and keep the rest for `send_rest`."""
        body = pickle.dumps(message, protocol=5)
        data = memoryview(_HEADER.pack(len(body), len(descriptors)) + body)
        # Duplicates: the caller may close its own descriptors before the message is sent.
        self._unsent.append((data, tuple(map(os.dup, descriptors))))
        self.send_rest()

    def send_rest(self) -> None:
        """Send as much as the socket takes now of what `send_nowait` has kept. Never waits."""
        try:
            while self._unsent:
                data, descriptors = self._unsent[0]
                count = self.socket.sendmsg([data], _ancillary(descriptors), socket.MSG_DONTWAIT)
                self._unsent[0] = data[count:], ()  # the descriptors went with the first byte; they must not go again
                if count == len(data):
                    self._unsent.popleft()
                for descriptor in descriptors:
                    os.close(descriptor)
        except BlockingIOError:
            pass
        except OSError as error:
            raise Closed(str(error)) from None

    def has_unsent(self) -> bool:
        """Return whether `send_rest` has something to send."""
        return bool(self._unsent)

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Send a message, after those of `send_later`. Wait until the socket has taken all of it."""
        self._collect(message, descriptors)
        self.flush()

    def send_later(self, message: Any) -> None:
        """Send a message together with the next one, or before `receive` has to wait.

        Each send wakes the other process, so it is faster to send two messages at once.
        """
        self._collect(message)
        if len(self._collected) > _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the messages of `send_later`."""
        data, self._collected = self._collected, b""
        self._send_all(data)

    def _collect(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Add a message to those that `flush` sends. A large message is sent at once, which saves a copy."""
        body = pickle.dumps(message, protocol=5)
        header = _HEADER.pack(len(body), len(descriptors))
        if descriptors:
            self.flush()
            self._send_all(header, descriptors)
            self._collected = body
        elif len(body) < _CHUNK_BYTES:
            self._collected += header + body
        else:
            self._collected += header
            self.flush()
            self._send_all(body)

    def _send_all(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        try:
            if descriptors:
                self.socket.sendmsg([data], _ancillary(descriptors))
            else:
                self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for the next message, and return it and its descriptors."""
        if self._collected and not self.wait_for_data(0.0):
            self.flush()
        try:
            # The descriptors of a message arrive with its first byte.
            first, descriptors, _, _ = socket.recv_fds(self.socket, _HEADER.size, _MOST_DESCRIPTORS)
            size, _ = _HEADER.unpack(first + self._receive_bytes(_HEADER.size - len(first)))
            body = self._receive_bytes(size)
        except OSError as error:
            raise Closed(str(error)) from None
        return pickle.loads(body), descriptors

    def _receive_bytes(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while len(view):
            count = self.socket.recv_into(view)
            if not count:
                raise Closed("end of file")
            view = view[count:]
        return data

    def wait_for_data(self, timeout_s: float) -> bool:
        """Wait until there is something to receive, or the other end is closed. Return False after the timeout."""
        poll = select.poll()  # not `select.select`, which refuses descriptors from 1024 on
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def receive_nowait(self) -> list[Any]:
        """Return all messages that have arrived completely. Never waits. Raise Closed if the other end is closed."""
        messages: list[Any] = []
        ended = False
        while True:
            try:
                data = self.socket.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                ended = True
                break
            self._buffer += data
            if len(data) < _CHUNK_BYTES:
                break  # the selector reports it if there is more, or the end: that saves a call for each message
        while len(self._buffer) >= _HEADER.size:
            size, _ = _HEADER.unpack_from(self._buffer)
            if len(self._buffer) < _HEADER.size + size:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[_HEADER.size : _HEADER.size + size]))
            del self._buffer[: _HEADER.size + size]
        if ended and not messages:  # messages that came before the end are returned first
            raise Closed("end of file")
        return messages

    def close(self) -> None:
        """Close the socket, and the duplicates of descriptors that were not sent."""
        self.socket.close()
        while self._unsent:
            for descriptor in self._unsent.popleft()[1]:
                os.close(descriptor)


def _ancillary(descriptors: tuple[int, ...]) -> list[tuple[int, int, bytes]]:
    """Return file descriptors in the form that `sendmsg` takes."""
    numbers = array.array("i", descriptors).tobytes()
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if descriptors else []
