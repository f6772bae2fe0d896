"""Messages between consumer and workers: pickles over a socket, and blocks whose large arrays are in a slot.

Both ends are processes of one user, started by this library. Nothing that comes from elsewhere is ever unpickled.
"""

from __future__ import annotations

import array
import collections
import contextlib
import copyreg
import dataclasses
import io
import os
import pickle
import select
import socket
import struct
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import cloudpickle
import numpy as np

from bushel.base import memory as base_memory
from bushel.base.memory import ALIGNMENT
from bushel.engine.by_value import send_by_value
from bushel.engine.slabs import Slot

IN_BAND_BYTES = 4096
"""Smaller arrays are sent inside the message. Otherwise a label that the user keeps would hold a whole slot."""

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


def _reduce_array(array: np.ndarray) -> Any:
    """Pickles an array with its data as one out-of-band buffer, for all strides and nearly all dtypes.

    numpy itself does that only for contiguous arrays of its own dtypes. It copies others into the pickle.
    """
    dtype = array.dtype
    if dtype.kind in "biufc" and array.flags.c_contiguous and array.size and not dtype.metadata:
        # The usual case, in half the time that numpy's own pickle takes.
        return _build_array, (pickle.PickleBuffer(array.data), dtype.str, array.shape)
    if dtype.hasobject or not dtype.itemsize:
        return array.__reduce_ex__(5)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = np.ascontiguousarray(array)
    if dtype.kind in "biufcSU" and not dtype.metadata:
        return array.__reduce_ex__(5)
    # Dates, bfloat16 and other dtypes have no buffer protocol; their bytes have.
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _build_array, (pickle.PickleBuffer(flat.data), dtype, array.shape)


def _build_array(buffer: Any, dtype: np.dtype[Any] | str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(buffer, dtype=np.uint8).view(dtype).reshape(shape)


_REDUCE_ARRAYS: dict[Any, Any] = {np.ndarray: _reduce_array}


class _DispatchTable(dict[Any, Any]):
    """Functions that reduce types for pickle: those given here, otherwise those registered with `copyreg`."""

    def __missing__(self, kind: Any) -> Any:
        return copyreg.dispatch_table[kind]


class _PlainPickler(pickle.Pickler):
    """Python's own pickler, in C and fast, with our way to reduce arrays."""

    dispatch_table: ClassVar[Any] = _DispatchTable(_REDUCE_ARRAYS)


class _CloudPickler(cloudpickle.Pickler):
    """cloudpickle, with our way to reduce arrays, and with care for classes that are sent by value.

    A worker has a copy of such a class. It sends the class back by its number, so that objects of the class that reach
    the consumer have the consumer's own class, and `isinstance` holds. Modules that no import finds are sent by value.
    """

    dispatch_table: ClassVar[Any] = collections.ChainMap[Any, Any](
        _REDUCE_ARRAYS, cast(Any, cloudpickle.Pickler.dispatch_table)
    )
    reduce_first: Callable[[Any], Any] | None = None
    """Reduces an object before anything else does, or returns NotImplemented."""

    def reducer_override(self, obj: Any) -> Any:
        if self.reduce_first is not None and (reduced := self.reduce_first(obj)) is not NotImplemented:
            return reduced
        number = _CLASS_NUMBERS.get(obj) if isinstance(obj, type) else None
        if number in _from_pipelines:
            return _get_class, (number,)
        if isinstance(obj, (type, types.FunctionType)):
            send_by_value(obj.__module__)
        elif isinstance(obj, types.ModuleType):
            send_by_value(obj.__name__)
        return super().reducer_override(obj)


# cloudpickle gives each class that it sends by value a number, and both processes remember the numbers.
_CLASS_NUMBERS = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS
_CLASSES = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
_from_pipelines: set[str] = set()


@contextlib.contextmanager
def track_pipeline_classes() -> Iterator[None]:
    """In a worker: takes note that the classes which are loaded inside this context come from the consumer.

    Only those are sent back by number. A class that was made in the worker is unknown to the consumer.
    """
    before = set(_CLASS_NUMBERS.values())
    yield
    _from_pipelines.update(set(_CLASS_NUMBERS.values()) - before)


def list_sent_classes() -> list[type]:
    """In the consumer: the classes that workers may send by number. Keep the list as long as workers run."""
    return list(_CLASSES.values())


def _get_class(number: str) -> type:
    return _CLASSES[number]


def dumps(value: Any, buffer_callback: Any = None, reduce_first: Callable[[Any], Any] | None = None) -> bytes:
    """Pickles any object for another process, also lambdas and classes of the user's main module.

    Args:
      reduce_first: object -> what `__reduce__` would return, or NotImplemented for the usual way.
    """
    with io.BytesIO() as file:
        pickler = _CloudPickler(file, protocol=5, buffer_callback=buffer_callback)
        pickler.reduce_first = reduce_first
        pickler.dump(value)
        return file.getvalue()


@dataclasses.dataclass(slots=True)
class Packed:
    """An object as a message: its pickle, and its large arrays either in a slot or as copies in the message."""

    pickled: bytes
    places: list[tuple[int, int]] | None
    """(offset, size) of each large array in the slot; None if the arrays are in `copies`."""
    copies: list[bytes]
    size_bytes: int
    """How many bytes the pickle and the large arrays have."""
    slot_bytes: int
    """How large a slot must be for it, with everything that was allocated there while it was computed."""

    @property
    def heap_bytes(self) -> int:
        """How many of its bytes are not in a slot."""
        return len(self.pickled) + sum(map(len, self.copies))

    def __reduce__(self) -> Any:  # faster than that of a dataclass with slots, which lists its fields each time
        return Packed, (self.pickled, self.places, self.copies, self.size_bytes, self.slot_bytes)


def pickle_with_buffers(
    value: Any, *, for_consumer: bool, in_band_bytes: float = IN_BAND_BYTES
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """An object as a pickle, and its large arrays as buffers beside the pickle.

    Args:
      for_consumer: uses Python's own pickler if it can, which is faster and sends functions and classes by name. The
        consumer knows these names. A worker does not know those of the user's main module, which it has not run.
      in_band_bytes: smaller arrays become part of the pickle.
    """
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < in_band_bytes:
            return True
        buffers.append(buffer)
        return False

    if for_consumer:
        try:
            with io.BytesIO() as file:
                _PlainPickler(file, protocol=5, buffer_callback=keep).dump(value)
                return file.getvalue(), buffers
        except Exception:  # a lambda, or a class that was sent by value
            buffers.clear()
    return dumps(value, keep), buffers


def dumps_for_consumer(value: Any) -> bytes:
    """Pickles an object with its arrays inside the pickle."""
    return pickle_with_buffers(value, for_consumer=True, in_band_bytes=float("inf"))[0]


def pack(value: Any, slot: Slot | None) -> Packed:
    """Packs an object for the consumer. Its large arrays go into the slot, all of them or none.

    An array that was made in the slot stays where it is and is not copied.
    """
    body, buffers = pickle_with_buffers(value, for_consumer=True)
    size = sum(buffer.raw().nbytes for buffer in buffers)
    wanted = size + ALIGNMENT * len(buffers) + (0 if slot is None else slot.used)
    places = _copy_into_slot(buffers, slot) if slot is not None else None
    if slot is not None and places is not None:
        wanted = slot.used  # without the arrays that were made there, which `size` counts once more
    copies = [] if places is not None else [bytes(buffer.raw()) for buffer in buffers]
    return Packed(body, places, copies, size + len(body), wanted)


def _copy_into_slot(buffers: list[pickle.PickleBuffer], slot: Slot) -> list[tuple[int, int]] | None:
    """(offset, size) of each buffer in the slot; None if they do not fit."""
    places: list[tuple[int, int]] = []
    for buffer in buffers:
        raw = buffer.raw()
        flat = np.frombuffer(raw, dtype=np.uint8)
        offset = slot.find_offset(flat.__array_interface__["data"][0], raw.nbytes)
        if offset is None:
            offset = slot.allocate(raw.nbytes)
            if offset is None:
                return None
            np.frombuffer(slot.view(offset, raw.nbytes), dtype=np.uint8)[:] = flat
        places.append((offset, raw.nbytes))
    return places


def unpack(packed: Packed, memory: memoryview | None) -> Any:
    """The object again. Its large arrays look into `memory`, the slot's, or into aligned copies."""
    if packed.places is None:
        return pickle.loads(packed.pickled, buffers=[_copy_aligned(part) for part in packed.copies])
    if not packed.places:
        return pickle.loads(packed.pickled)
    assert memory is not None
    return pickle.loads(packed.pickled, buffers=[memory[offset : offset + size] for offset, size in packed.places])


def _copy_aligned(part: bytes) -> memoryview:
    array = base_memory.empty((len(part),), np.uint8)
    array[:] = np.frombuffer(part, dtype=np.uint8)
    return array.data
