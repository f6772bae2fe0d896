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
_PIECE_BYTES = 1 << 16  # a worker collects messages up to this size; the pool's thread reads this much at a time


class Closed(Exception):
    """The other process has closed its end of the channel, or is dead."""


class Channel:
    """Messages over a stream socket: pickled objects, and file descriptors from consumer to worker.

    The pool's thread serves many workers and must not wait for any of them: it uses the methods with `nowait` in their
    name. The zygote and the workers have one channel and use those that wait.
    """

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self._buffer = bytearray()
        self._collected = b""  # by `send_later`
        self._unsent: collections.deque[tuple[memoryview, tuple[int, ...]]] = collections.deque()

    def send_nowait(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends as much of a message as the socket takes now. The rest is kept for `send_rest`."""
        body = pickle.dumps(message, protocol=5)
        data = memoryview(_HEADER.pack(len(body), len(descriptors)) + body)
        # Duplicates: the caller may close its own descriptors before the message is sent.
        self._unsent.append((data, tuple(map(os.dup, descriptors))))
        self.send_rest()

    def send_rest(self) -> None:
        """Sends as much as the socket takes now of what `send_nowait` has kept. Never waits."""
        try:
            while self._unsent:
                data, descriptors = self._unsent[0]
                count = self.socket.sendmsg([data], _ancillary(descriptors), socket.MSG_DONTWAIT)
                self._unsent[0] = data[count:], ()  # descriptors go with the first byte, and only once
                if count == len(data):
                    self._unsent.popleft()
                for descriptor in descriptors:
                    os.close(descriptor)
        except BlockingIOError:
            pass
        except OSError as error:
            raise Closed(str(error)) from None

    def has_unsent(self) -> bool:
        """Whether `send_rest` has something to send."""
        return bool(self._unsent)

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message, and before it those of `send_later`. Waits until the socket has taken all of it."""
        self._collect(message, descriptors)
        self.flush()

    def send_later(self, message: Any) -> None:
        """Sends a message together with the next one, or before `receive` has to wait.

        Each send wakes the other process, so it is faster to send two messages at once.
        """
        self._collect(message)
        if len(self._collected) > _PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Sends the messages of `send_later`."""
        data, self._collected = self._collected, b""
        self._send_all(data)

    def _collect(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Adds a message to those that are to be sent. A large message is sent at once, which saves a copy."""
        body = pickle.dumps(message, protocol=5)
        header = _HEADER.pack(len(body), len(descriptors))
        if descriptors:
            self.flush()
            self._send_all(header, descriptors)
            self._collected = body
        elif len(body) < _PIECE_BYTES:
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
        """The next message and its descriptors. Waits until it is there."""
        if self._collected and not self.wait_for_data(0.0):
            self.flush()
        descriptors: list[int] = []
        size, _ = _HEADER.unpack(self._receive_bytes(_HEADER.size, descriptors))
        return pickle.loads(self._receive_bytes(size, descriptors)), descriptors

    def _receive_bytes(self, size: int, descriptors: list[int]) -> bytearray:
        """The next bytes. Adds the file descriptors that come with them to the list."""
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            try:
                count, ancillary, _, _ = self.socket.recvmsg_into([view[done:]], socket.CMSG_SPACE(4 * 16))
            except OSError as error:
                raise Closed(str(error)) from None
            if not count:
                raise Closed("end of file")
            for _, kind, payload in ancillary:
                if kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                    descriptors.extend(numbers)
            done += count
        return data

    def wait_for_data(self, timeout_s: float) -> bool:
        """Waits until there is something to receive, or the other end is closed. Returns False after the timeout."""
        poll = select.poll()  # not `select.select`, which refuses descriptors from 1024 on
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def receive_nowait(self) -> list[Any]:
        """All messages that have arrived completely. Never waits. Raises Closed when the other end is closed."""
        messages: list[Any] = []
        ended = False
        while True:
            try:
                data = self.socket.recv(_PIECE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                ended = True
                break
            self._buffer += data
            if len(data) < _PIECE_BYTES:
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
        """Closes the socket, and the duplicates of descriptors that were not sent."""
        self.socket.close()
        while self._unsent:
            for descriptor in self._unsent.popleft()[1]:
                os.close(descriptor)


def _ancillary(descriptors: tuple[int, ...]) -> list[tuple[int, int, bytes]]:
    """File descriptors in the form that `sendmsg` takes."""
    numbers = array.array("i", descriptors).tobytes()
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if descriptors else []
