"""The interface of an open file, files of this machine, and pools of open handles.

For files behind URLs see `object_stores.py`.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import io
import mmap
import operator
import os
import stat
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.sources.shard_journals import final_name

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


_OPEN_AT_ONCE = 256
_BUFFERS_AT_ONCE = 512  # of one call of preadv; every system accepts at least 1024
LARGE_BYTES = 16 << 10
"""From this size on, allocating new memory costs more than reading into a buffer that is used again."""


class File(abc.ABC):
    """An open file or object of a store. Any thread may read any range of it."""

    name: str
    """The name that messages and versions show: the final one, also if the file still has a temporary name. It contains
    no secrets."""
    address: str
    """The path or URL that was opened. It may contain secrets, so no message shows it."""
    size: int
    costs_round_trip: ClassVar[bool]
    """Whether a read costs a network round trip. If so, callers should request many ranges together."""

    @abc.abstractmethod
    def read(self, start: int, length: int) -> bytes:
        """Return exactly `length` bytes from byte `start` on, or raise an error."""

    @abc.abstractmethod
    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Return the bytes of many ranges, in the given order."""

    @abc.abstractmethod
    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        """Fill writable buffers, one after the other, with the bytes from `start` on."""

    @abc.abstractmethod
    def version(self) -> list[Any]:
        """Return a value that changes when the content changes: name, size and modification time, or the store's
        ETag.
        """

    @abc.abstractmethod
    def check_unchanged(self) -> None:
        """Raise DamagedFile if the file was replaced since it was opened. Do nothing if every read checks this."""

    def short_read_error(self, start: int, wanted: int, got: int) -> DamagedFile:
        """Return the error to raise if a read returned fewer bytes than it should."""
        return DamagedFile(
            f"{self.name} ended early: a read of {wanted} bytes at byte {start} returned {got}. The file had "
            f"{self.size} bytes when it was opened; it has been cut short or replaced since then."
        )


def changed_error(name: str, was: list[Any], now: list[Any]) -> DamagedFile:
    """Return the error to raise for a file that has changed since its source was made."""
    return DamagedFile(
        f"{redact.show(name)} has changed: it was {was} (name, size, time or ETag) when the source was made, and it is "
        f"{now} now. Make the source again."
    )


def find_version(path: str) -> list[Any] | None:
    """Return the present version of a file of this machine, as `LocalFile.version` has it; None if it does not
    exist.
    """
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    return [os.path.basename(final_name(path)), facts.st_size, facts.st_mtime_ns]


class _Descriptor:
    """An open file descriptor. It is closed when the last reader drops its reference, never in the middle of a read."""

    memory: mmap.mmap | None = None  # the mapped file

    def __init__(self, path: str):
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(
        self, close: Callable[[int], None] = os.close
    ) -> None:  # when Python exits, the module `os` may be gone already
        if "number" in vars(self):  # it is missing if os.open failed
            close(self.number)


class LocalFile(File):
    """A file of this machine. Each read names its position, so that threads do not disturb each other.

    At most 256 file descriptors are open at a time. Beyond that the oldest one is closed, and the file is opened again
    when it is needed. `name` is shown in messages; by default it is the path.
    """

    costs_round_trip = False
    _open: ClassVar[collections.deque[weakref.ref[LocalFile]]] = collections.deque()
    _lock = threading.Lock()

    def __init__(self, path: str, name: str | None = None):
        self.name, self.address, self._path = name or final_name(path), path, path
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(f"{path} is a folder, not a file. Name the files in it, for example {path}/*.")
        if not stat.S_ISREG(kind):  # opening a pipe would wait for its writer
            raise ValueError(f"{path} is not a regular file, so it cannot be read at any position.")
        self._descriptor: _Descriptor | None = _Descriptor(path)
        facts = os.fstat(self._descriptor.number)
        self.size, self._time = facts.st_size, facts.st_mtime_ns
        self._remember()

    def _remember(self) -> None:
        with LocalFile._lock:
            files = LocalFile._open
            files.append(weakref.ref(self))
            while len(files) > _OPEN_AT_ONCE:
                oldest = files.popleft()()
                if oldest is not None:
                    oldest._descriptor = None

    def _reopen(self) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = _Descriptor(self._path)
            facts = os.fstat(descriptor.number)
            if (facts.st_size, facts.st_mtime_ns) != (self.size, self._time):
                raise DamagedFile(f"{self.name} has changed since it was opened. Make the source again.")
            self._descriptor = descriptor
            self._remember()
        return descriptor

    def read(self, start: int, length: int) -> bytes:
        descriptor = self._descriptor or self._reopen()
        data = os.pread(descriptor.number, length, start)
        return data if len(data) == length else self._read_rest(descriptor, data, start, length)

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        descriptor = self._descriptor or self._reopen()
        number, pread = descriptor.number, os.pread
        if len(starts) > 1 and (wanted := sum(lengths)) < LARGE_BYTES * len(starts):
            low = min(starts)
            span = max(map(operator.add, starts, lengths)) - low
            if (
                span <= 2 * wanted and len(whole := pread(number, span, low)) == span
            ):  # the ranges lie side by side: one read for all
                return [whole[start - low : start - low + length] for start, length in zip(starts, lengths)]
        found = [pread(number, length, start) for start, length in zip(starts, lengths)]
        if list(map(len, found)) != list(lengths):
            return [self.read(start, length) for start, length in zip(starts, lengths)]
        return found

    def _read_rest(self, descriptor: _Descriptor, data: bytes, start: int, length: int) -> bytes:
        parts, got = [data], len(data)
        while got < length:  # the system returns at most 2 GiB at a time
            part = os.pread(descriptor.number, length - got, start + got)
            if not part:
                raise self.short_read_error(start, length, got)
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def map_memory(self) -> mmap.mmap | None:
        """Return the file as mapped memory, or None if it cannot be mapped. Read it at once, and keep no reference.

        Reading mapped memory behind the end of a file kills the process. So every call asks for the size. If the file
        has become shorter, the caller gets None and uses `read`, which raises an error. If the file is cut short after
        this call and before the caller reads the memory, nothing can prevent the crash.
        """
        descriptor = self._descriptor or self._reopen()
        memory = descriptor.memory
        if memory is None:
            try:
                memory = mmap.mmap(descriptor.number, self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError):  # the file system cannot map files, or the file is empty
                return None
            memory.madvise(mmap.MADV_RANDOM)  # otherwise each page that is not in memory may fetch megabytes
            descriptor.memory = memory
            self._remember()  # a second time: the map has a file descriptor of its own
        # The cheapest way to get the size. It moves the position of the descriptor, which no read uses.
        return memory if os.lseek(descriptor.number, 0, os.SEEK_END) >= self.size else None

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        if len(buffers) > _BUFFERS_AT_ONCE:
            head, rest = buffers[:_BUFFERS_AT_ONCE], buffers[_BUFFERS_AT_ONCE:]
            self.read_into(start, head)
            return self.read_into(start + sum(map(len, head)), rest)
        descriptor = self._descriptor or self._reopen()
        wanted = sum(map(len, buffers))
        got = os.preadv(descriptor.number, buffers, start)
        if got != wanted:
            self._read_rest_into(descriptor, start, got, buffers)

    def _read_rest_into(self, descriptor: _Descriptor, start: int, got: int, buffers: Sequence[Any]) -> None:
        low = 0
        for buffer in buffers:
            high = low + len(buffer)
            while got < high:
                count = os.preadv(descriptor.number, [memoryview(buffer)[max(got - low, 0) :]], start + got)
                if not count:
                    raise self.short_read_error(start, sum(map(len, buffers)), got)
                got += count
            low = high

    def check_unchanged(self) -> None:
        pass  # the descriptor belongs to the file that was opened, even if its name belongs to another file now

    def version(self) -> list[Any]:
        return [os.path.basename(self.name), self.size, self._time]


def read_each(file: File, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of many ranges. Large ranges of a local file share one buffer: use each before the next one."""
    largest = max(lengths, default=0)
    if file.costs_round_trip or largest < LARGE_BYTES:
        yield from file.read_many(starts, lengths)
        return
    buffer = memoryview(bytearray(largest))
    for start, length in zip(starts, lengths):
        part = buffer[:length]
        file.read_into(start, [part])
        yield part


def as_stream(file: File) -> io.BufferedIOBase:
    """Return an open file as a Python file object with `read` and `seek`."""
    return io.BufferedReader(FileStream(file), 1 << 20)


class FileStream(io.RawIOBase):
    """An open file with a position, as Python's own file objects have."""

    def __init__(self, file: File):
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = (0, self._position, self._file.size)[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._file.size - self._position))
        if count:
            self._file.read_into(self._position, [memoryview(buffer)[:count]])
            self._position += count
        return count
