"""What goes between consumer and workers: framed messages over a socket, and blocks with their arrays in a slot.

Peers are processes of one user that this library has started; nothing else is ever unpickled.
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
from collections.abc import Iterator
from typing import Any, ClassVar, cast

import cloudpickle
import numpy as np

from bushel.base import memory as memory_of
from bushel.base.memory import ALIGNMENT
from bushel.engine.homeless import send_by_value
from bushel.engine.slabs import Slot

IN_BAND_BYTES = 4096
"""Arrays below this travel inside the message: a kept label must not hold a whole slot."""

_HEADER = struct.Struct("<QB")
_PIECE_BYTES = 1 << 16


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """Messages over a stream socket: pickled objects, and descriptors from consumer to worker."""

    def __init__(self, sock: socket.socket):
        self.socket = sock
        self._buffer = bytearray()
        self._posted = b""
        self._unsent: collections.deque[tuple[memoryview, tuple[int, ...]]] = collections.deque()

    def offer(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message as far as it is taken now, and keeps the rest for `push`. Never waits."""
        body = pickle.dumps(message, protocol=5)
        data = memoryview(_HEADER.pack(len(body), len(descriptors)) + body)
        self._unsent.append((data, tuple(map(os.dup, descriptors))))
        self.push()

    def push(self) -> None:
        """Sends of what was offered as much as is taken now. Never waits."""
        try:
            while self._unsent:
                data, descriptors = self._unsent[0]
                count = self.socket.sendmsg([data], _rights(descriptors), socket.MSG_DONTWAIT)
                self._unsent[0] = data[count:], ()
                if count == len(data):
                    self._unsent.popleft()
                for descriptor in descriptors:
                    os.close(descriptor)
        except BlockingIOError:
            pass
        except OSError as error:
            raise Closed(str(error)) from None

    def is_stuck(self) -> bool:
        """Whether something that was offered could not be sent yet."""
        return bool(self._unsent)

    def send(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a message, after those that were posted; waits until it is taken."""
        self._put(message, descriptors)
        self.flush()

    def post(self, message: Any) -> None:
        """Sends a message along with the next one, or before this side has to wait: each piece wakes the other side."""
        self._put(message)
        if len(self._posted) > _PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Sends what was posted."""
        posted, self._posted = self._posted, b""
        self._send_all(posted)

    def _put(self, message: Any, descriptors: tuple[int, ...] = ()) -> None:
        """Adds a message to what was posted. A large one is not copied once more, but sent."""
        body = pickle.dumps(message, protocol=5)
        header = _HEADER.pack(len(body), len(descriptors))
        if descriptors:
            self.flush()
            self._send_all(header, descriptors)
            self._posted = body
        elif len(body) < _PIECE_BYTES:
            self._posted += header + body
        else:
            self._posted += header
            self.flush()
            self._send_all(body)

    def _send_all(self, data: bytes, descriptors: tuple[int, ...] = ()) -> None:
        try:
            if descriptors:
                self.socket.sendmsg([data], _rights(descriptors))
            else:
                self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self) -> tuple[Any, list[int]]:
        """The next message and its descriptors; waits for it."""
        if self._posted and not self.has_news(0.0):
            self.flush()
        descriptors: list[int] = []
        header = b""
        while len(header) < _HEADER.size:
            try:
                data, ancillary, _, _ = self.socket.recvmsg(_HEADER.size - len(header), socket.CMSG_SPACE(4 * 16))
            except OSError as error:
                raise Closed(str(error)) from None
            if not data:
                raise Closed("end of file")
            for _, kind, payload in ancillary:
                if kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
                    descriptors.extend(numbers)
            header += data
        size, _ = _HEADER.unpack(header)
        body = bytearray(size)
        view, done = memoryview(body), 0
        while done < size:
            try:
                count = self.socket.recv_into(view[done:])
            except OSError as error:
                raise Closed(str(error)) from None
            if not count:
                raise Closed("end of file")
            done += count
        return pickle.loads(body), descriptors

    def has_news(self, timeout_s: float) -> bool:
        """Whether anything, or the end, has arrived or arrives within the time."""
        poll = select.poll()  # `select` itself refuses descriptors from 1024 on
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def arrived(self) -> list[Any]:
        """All messages that are whole by now; never waits. Raises Closed at the end of file."""
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
                break  # what else there is, or the end, is heard next time
        while len(self._buffer) >= _HEADER.size:
            size, _ = _HEADER.unpack_from(self._buffer)
            if len(self._buffer) < _HEADER.size + size:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[_HEADER.size : _HEADER.size + size]))
            del self._buffer[: _HEADER.size + size]
        if ended and not messages:
            raise Closed("end of file")
        return messages

    def close(self) -> None:
        self.socket.close()
        while self._unsent:
            for descriptor in self._unsent.popleft()[1]:
                os.close(descriptor)


def _rights(descriptors: tuple[int, ...]) -> list[tuple[int, int, bytes]]:
    """Descriptors as what goes along with a message."""
    numbers = array.array("i", descriptors).tobytes()
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if descriptors else []


def _reduced(array: np.ndarray) -> Any:
    """An array for the pickle: as one piece of memory in any case, whatever its strides and its dtype."""
    dtype = array.dtype
    if dtype.kind in "biufc" and array.flags.c_contiguous and array.size and not dtype.metadata:
        # Half of what numpy's own way costs.
        return _array_of, (pickle.PickleBuffer(array.data), dtype.str, array.shape)
    if dtype.hasobject or not dtype.itemsize:
        return array.__reduce_ex__(5)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = np.ascontiguousarray(array)
    if dtype.kind in "biufcSU" and not dtype.metadata:
        return array.__reduce_ex__(5)
    # Dates, bfloat16 and such cannot be exported as they are: their bytes can.
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _array_of, (pickle.PickleBuffer(flat.data), dtype, array.shape)


def _array_of(buffer: Any, dtype: np.dtype[Any] | str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(buffer, dtype=np.uint8).view(dtype).reshape(shape)


_ARRAYS: dict[Any, Any] = {np.ndarray: _reduced}


class _Registered(dict[Any, Any]):
    """How types are reduced: as said here, else as everybody has registered them."""

    def __missing__(self, kind: Any) -> Any:
        return copyreg.dispatch_table[kind]


class _Plain(pickle.Pickler):
    """Pickle itself, but for arrays."""

    dispatch_table: ClassVar[Any] = _Registered(_ARRAYS)


class Pickler(cloudpickle.Pickler):
    """Sends classes that came with a pipeline by their number: at home they are themselves, in a worker copies.

    What is defined in a module that no import finds travels by value.
    """

    dispatch_table: ClassVar[Any] = collections.ChainMap[Any, Any](
        _ARRAYS, cast(Any, cloudpickle.Pickler.dispatch_table)
    )

    def reducer_override(self, obj: Any) -> Any:
        number = _CLASS_NUMBERS.get(obj) if isinstance(obj, type) else None
        if number in _from_pipelines:
            return _class_numbered, (number,)
        if isinstance(obj, (type, types.FunctionType)):
            send_by_value(obj.__module__)
        elif isinstance(obj, types.ModuleType):
            send_by_value(obj.__name__)
        return super().reducer_override(obj)


# cloudpickle remembers which class it has sent by value under which number, on both sides.
_CLASS_NUMBERS = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS
_CLASSES = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
_from_pipelines: set[str] = set()


@contextlib.contextmanager
def loading_a_pipeline() -> Iterator[None]:
    """In a worker: classes that become known meanwhile are the consumer's. Those made here before are not."""
    before = set(_CLASS_NUMBERS.values())
    yield
    _from_pipelines.update(set(_CLASS_NUMBERS.values()) - before)


def classes_sent() -> list[type]:
    """In the consumer: the classes that workers may send by number. Keep them."""
    return list(_CLASSES.values())


def _class_numbered(number: str) -> type:
    return _CLASSES[number]


def dumps(value: Any, buffer_callback: Any = None, kind: type[pickle.Pickler] = Pickler) -> bytes:
    """Pickles what pickle cannot name as well: lambdas, and classes of the user's main module."""
    with io.BytesIO() as file:
        kind(file, protocol=5, buffer_callback=buffer_callback).dump(value)
        return file.getvalue()


def for_home(value: Any) -> bytes:
    """Pickles for the consumer, where what pickle can name is known by its name."""
    try:
        return dumps(value, kind=_Plain)
    except Exception:
        return dumps(value)


@dataclasses.dataclass(slots=True)
class Packed:
    """An object as a message: what is no large array pickled, large arrays by place in a slot or beside it."""

    pickled: bytes
    places: list[tuple[int, int]] | None
    """(offset, size) of each large array in the slot; None where they travel in `beside`."""
    beside: list[bytes]
    size_bytes: int
    """What it takes as a message."""
    slot_bytes: int
    """What a slot needs to hold it, with all that was made there on the way."""

    @property
    def heap_bytes(self) -> int:
        """What of it does not lie in a slot."""
        return len(self.pickled) + sum(map(len, self.beside))

    def __reduce__(self) -> Any:  # a dataclass would find out its fields each time
        return Packed, (self.pickled, self.places, self.beside, self.size_bytes, self.slot_bytes)


def pickled(value: Any, *, at_home: bool) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """An object as a pickle, and its large arrays beside it.

    With `at_home` it goes home to the consumer, where what pickle can name is known by its name; a worker knows
    nothing of the user's main module.
    """
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < IN_BAND_BYTES:
            return True  # in band
        buffers.append(buffer)
        return False

    if at_home:
        try:
            return dumps(value, keep, _Plain), buffers
        except Exception:  # a class of the user's main module, a lambda: what pickle cannot name, cloudpickle can
            buffers.clear()
    return dumps(value, keep), buffers


def pack(value: Any, slot: Slot | None) -> Packed:
    """Packs an object; its large arrays go into the slot if they fit, all or none. Those made in it stay there."""
    body, buffers = pickled(value, at_home=True)
    size = sum(buffer.raw().nbytes for buffer in buffers)
    wanted = size + ALIGNMENT * len(buffers) + (0 if slot is None else slot.used)
    places = _placed(buffers, slot) if slot is not None else None
    if slot is not None and places is not None:
        wanted = slot.used  # what was made there needs no other place
    beside = [] if places is not None else [bytes(buffer.raw()) for buffer in buffers]
    return Packed(body, places, beside, size + len(body), wanted)


def _placed(buffers: list[pickle.PickleBuffer], slot: Slot) -> list[tuple[int, int]] | None:
    places: list[tuple[int, int]] = []
    for buffer in buffers:
        raw = buffer.raw()
        flat = np.frombuffer(raw, dtype=np.uint8)
        offset = slot.offset_of(flat.__array_interface__["data"][0], raw.nbytes)
        if offset is None:
            offset = slot.place(raw.nbytes)
            if offset is None:
                return None
            np.frombuffer(slot.part(offset, raw.nbytes), dtype=np.uint8)[:] = flat
        places.append((offset, raw.nbytes))
    return places


def _aligned(part: bytes) -> memoryview:
    array = memory_of.empty((len(part),), np.uint8)
    array[:] = np.frombuffer(part, dtype=np.uint8)
    return array.data


def unpack(packed: Packed, memory: memoryview | None) -> Any:
    """The object again. Its large arrays look into `memory`, or into bytes of their own."""
    if packed.places is None:
        return pickle.loads(packed.pickled, buffers=[_aligned(part) for part in packed.beside])
    if not packed.places:
        return pickle.loads(packed.pickled)
    assert memory is not None
    return pickle.loads(packed.pickled, buffers=[memory[offset : offset + size] for offset, size in packed.places])
