"""What an open file is, and files of this machine. Files behind URLs: see `remote.py` and `drivers.py`."""

from __future__ import annotations

import abc
import collections
import io
import mmap
import operator
import os
import stat
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from bushel.base import redact
from bushel.base.errors import DamagedFile

_OPEN_AT_ONCE = 256
_BUFFERS_AT_ONCE = 512  # the system takes at least 1024
LARGE_BYTES = 16 << 10
"""From this size on, fresh memory for what is read costs more than reading it into a buffer that is used again."""


class File(abc.ABC):
    """One file or object: its size, and reads at any place from any thread."""

    name: str
    """What messages call it: without the secrets of an address."""
    address: str
    """What it was opened by, to open others beside it. It may hold secrets: no message shows it."""
    size: int
    together: ClassVar[bool]
    """Whether a read costs a round trip, so that many ranges should be asked for together."""

    @abc.abstractmethod
    def read(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes from `start` on, or an error: never fewer."""

    @abc.abstractmethod
    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Many ranges, in the order asked for."""

    @abc.abstractmethod
    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        """Fills writable buffers, one after the other, from `start` on."""

    @abc.abstractmethod
    def version(self) -> list[Any]:
        """What changes when the content does: name, size and time, or the store's own tag."""

    @abc.abstractmethod
    def check_unchanged(self) -> None:
        """Raises DamagedFile if the file was replaced since it was opened, where reads do not notice it themselves."""

    def short(self, start: int, wanted: int, got: int) -> DamagedFile:
        """The error for a read that came back short."""
        return DamagedFile(
            f"{self.name} ended early: {wanted} bytes were asked for at byte {start}, {got} came back. It had "
            f"{self.size} bytes when it was opened; it was cut short or replaced since."
        )


def changed(name: str, was: list[Any], now: list[Any]) -> DamagedFile:
    """The error for a file that is not what it was when its source was made."""
    return DamagedFile(
        f"{redact.show(name)} was {was} (name, size, time or ETag) when the source was made, and is {now} now. Make "
        "the source again."
    )


class _Descriptor:
    """An open file descriptor, closed when the last one who reads from it lets go."""

    memory: mmap.mmap | None = None  # the file mapped

    def __init__(self, path: str):
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at exit `os` may be gone
        if "number" in vars(self):  # not where opening failed
            close(self.number)


class LocalFile(File):
    """A file of this machine, read by position, so that threads do not meet.

    Descriptors are few: beyond 256 of them the oldest is given back, and opened again when it is needed. `name` is what
    messages call it, its path by default.
    """

    together = False
    _open: ClassVar[collections.deque[weakref.ref[LocalFile]]] = collections.deque()
    _lock = threading.Lock()

    def __init__(self, path: str, name: str | None = None):
        self.name, self.address, self._path = name or path, path, path
        kind = os.stat(path).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(f"{path} is a folder, not a file. Name the files in it, for example {path}/*.")
        if not stat.S_ISREG(kind):  # a pipe would be waited for
            raise ValueError(f"{path} is not a regular file, so that it cannot be read at any place.")
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

    def _opened(self) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = _Descriptor(self._path)
            facts = os.fstat(descriptor.number)
            if (facts.st_size, facts.st_mtime_ns) != (self.size, self._time):
                raise DamagedFile(f"{self.name} was changed while it was being read. Open the source again.")
            self._descriptor = descriptor
            self._remember()
        return descriptor

    def read(self, start: int, length: int) -> bytes:
        descriptor = self._descriptor or self._opened()
        data = os.pread(descriptor.number, length, start)
        return data if len(data) == length else self._rest(descriptor, data, start, length)

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        descriptor = self._descriptor or self._opened()
        number, pread = descriptor.number, os.pread
        if len(starts) > 1 and (wanted := sum(lengths)) < LARGE_BYTES * len(starts):
            low = min(starts)
            span = max(map(operator.add, starts, lengths)) - low
            if span <= 2 * wanted and len(whole := pread(number, span, low)) == span:  # side by side: one read for all
                return [whole[start - low : start - low + length] for start, length in zip(starts, lengths)]
        found = [pread(number, length, start) for start, length in zip(starts, lengths)]
        if list(map(len, found)) != list(lengths):
            return [self.read(start, length) for start, length in zip(starts, lengths)]
        return found

    def _rest(self, descriptor: _Descriptor, data: bytes, start: int, length: int) -> bytes:
        parts, got = [data], len(data)
        while got < length:  # the system gives at most 2 GiB at a time
            part = os.pread(descriptor.number, length - got, start + got)
            if not part:
                raise self.short(start, length, got)
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def mapped(self) -> mmap.mmap | None:
        """The file as memory, to be read at once and not kept; None where it cannot be mapped, or not any more.

        To touch memory behind the end of a file ends the process. So the size is asked for in every call, and a file
        that has become shorter is left to `read`, which tells. Against one that is cut short after this call and before
        its memory is read there is no help.
        """
        descriptor = self._descriptor or self._opened()
        memory = descriptor.memory
        if memory is None:
            try:
                memory = mmap.mmap(descriptor.number, self.size, access=mmap.ACCESS_READ)
            except (OSError, ValueError):  # a file system that cannot, an empty file
                return None
            memory.madvise(mmap.MADV_RANDOM)  # or each page that is missing may fetch megabytes
            descriptor.memory = memory
            self._remember()  # once more: the map holds a descriptor of its own
        # The cheapest question for the size; all reads name their place, so that nobody minds where it leaves off.
        return memory if os.lseek(descriptor.number, 0, os.SEEK_END) >= self.size else None

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        if len(buffers) > _BUFFERS_AT_ONCE:
            head, rest = buffers[:_BUFFERS_AT_ONCE], buffers[_BUFFERS_AT_ONCE:]
            self.read_into(start, head)
            return self.read_into(start + sum(map(len, head)), rest)
        descriptor = self._descriptor or self._opened()
        wanted = sum(map(len, buffers))
        got = os.preadv(descriptor.number, buffers, start)
        if got != wanted:
            self._rest_into(descriptor, start, got, buffers)

    def _rest_into(self, descriptor: _Descriptor, start: int, got: int, buffers: Sequence[Any]) -> None:
        low = 0
        for buffer in buffers:
            high = low + len(buffer)
            while got < high:
                count = os.preadv(descriptor.number, [memoryview(buffer)[max(got - low, 0) :]], start + got)
                if not count:
                    raise self.short(start, sum(map(len, buffers)), got)
                got += count
            low = high

    def check_unchanged(self) -> None:
        pass  # the descriptor is that of the file which was opened

    def version(self) -> list[Any]:
        return [os.path.basename(self.name), self.size, self._time]


def read_each(file: File, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes | memoryview]:
    """Many ranges, each good until the next one is asked for: large ones of a local file share one buffer."""
    largest = max(lengths, default=0)
    if file.together or largest < LARGE_BYTES:
        yield from file.read_many(starts, lengths)
        return
    buffer = memoryview(bytearray(largest))
    for start, length in zip(starts, lengths):
        part = buffer[:length]
        file.read_into(start, [part])
        yield part


def stream(file: File) -> io.BufferedIOBase:
    """An open file as such an object."""
    return io.BufferedReader(Readable(file), 1 << 20)


class Readable(io.RawIOBase):
    """A file with a position, as Python's own files have."""

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
