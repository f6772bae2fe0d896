"""Requests to remote files, and copies of such files on the local disk.

Near ranges become one request, and shared threads make many requests at once. Copies are of whole files, within a limit
of bytes.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

import numpy as np

from bushel._src.base import redact
from bushel._src.base.background import start_thread
from bushel._src.base.errors import BushelWarning
from bushel._src.base.shown_text import Progress
from bushel._src.sources.local_files import File, LocalFile

T = TypeVar("T")

_CHUNK_BYTES = 4 << 20
_CHUNKS_AT_ONCE = 4
_warned_folders: set[str] = set()
"""Folders for which the warning about files without a version was given."""
_REQUESTS = 64
"""The most requests in flight for all copies together."""
_TIME_NS = 0
"""The modification time of every copy: a copy that is made again counts as the same file."""


def open_copy(file: File, folder: str, limit_bytes: int | None) -> File:
    """Open a copy of `file` in `folder`. If there is no copy yet, the file is copied first.

    If the copies take more than `limit_bytes`, those used longest ago are removed. Two kinds of file are read from
    their store, without a copy: those larger than the limit, and those whose store does not say when they change,
    because their copies could be out of date.
    """
    if limit_bytes is not None and file.size > limit_bytes:
        return file
    if file.version()[-1] is None:
        if folder not in _warned_folders:
            _warned_folders.add(folder)
            warnings.warn(
                f"{file.name}: its store sends neither an ETag nor a time, so an outdated copy could not be "
                f"recognized. The file is read without a copy in {folder}, and so are all other files of this kind.",
                BushelWarning,
                stacklevel=2,
            )
        return file
    os.makedirs(folder, exist_ok=True)
    return CachedFile(file, folder, limit_bytes)


class CachedFile(File):
    """A remote file that is read from a copy on disk. It has the name and version of the remote file."""

    costs_round_trip = False

    def __init__(self, file: File, folder: str, limit_bytes: int | None):
        self.name, self.address, self.size = file.name, file.address, file.size
        self._file, self._folder, self._limit = file, folder, limit_bytes
        digest = hashlib.blake2b(json.dumps([file.name, *file.version()]).encode(), digest_size=16).hexdigest()
        self._path = os.path.join(folder, f"{digest}.copy")
        self._copy = self._make_copy()

    def read(self, start: int, length: int) -> bytes:
        return self._read_copy(lambda copy: copy.read(start, length))

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return self._read_copy(lambda copy: copy.read_many(starts, lengths))

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        self._read_copy(lambda copy: copy.read_into(start, buffers))

    def check_unchanged(self) -> None:
        pass  # the name of a copy stands for one version

    def version(self) -> list[Any]:
        return self._file.version()

    def _read_copy(self, read: Callable[[LocalFile], T]) -> T:
        while True:
            try:
                return read(self._copy)
            except FileNotFoundError:  # the copy was removed to make room, and its descriptor was closed
                self._copy = self._make_copy()

    def _make_copy(self) -> LocalFile:
        while (copy := self._find_copy()) is None:
            with self._lock_folder():
                busy, part = self._reserve()
            if part is not None:
                return self._fetch(part)
            if busy is not None:  # another thread or process makes this copy, or uses the room for it
                _wait_for(busy)
        return copy

    def _find_copy(self) -> LocalFile | None:
        with contextlib.suppress(OSError):  # the folder may be read-only; its copies can still be used
            os.utime(self._path, ns=(time.time_ns(), _TIME_NS))  # the access time says when a copy was last used
        try:
            copy = self._open_copy()
        except FileNotFoundError:
            return None
        if copy.size == self.size:
            return copy
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        return None

    @contextlib.contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Hold the lock of the folder: no other process counts, removes or renames copies in the block."""
        with open(os.path.join(self._folder, ".lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _reserve(self) -> tuple[str | None, IO[bytes] | None]:
        """Reserve room for the copy. Return (path to wait for, None), (None, file to fill), or (None, None).

        The first form names an unfinished copy of another thread or process that must be completed first; the last form
        means that the copy exists by now. The process that fills a file holds its lock, so an unfinished copy without a
        lock was left by a killed process.
        """
        if os.path.exists(self._path):
            return None, None
        path_of_draft = f"{self._path}.part"
        copies: list[tuple[int, int, str]] = []
        filled: dict[str, int] = {}
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(".copy"):
                    copies.append((entry.stat().st_atime_ns, entry.stat().st_size, entry.path))
                elif entry.name.endswith(".part") and _is_being_filled(entry.path):
                    filled[entry.path] = entry.stat().st_size
        if path_of_draft in filled:
            return path_of_draft, None
        if self._limit is not None:
            room = self._limit - self.size - sum(filled.values())
            if room < 0:
                return next(iter(filled)), None
            _make_room(copies, room)
        part = open(path_of_draft, "wb", buffering=0)  # noqa: SIM115
        fcntl.flock(part, fcntl.LOCK_EX)
        try:
            part.truncate(self.size)
        except OSError as error:
            os.unlink(path_of_draft)
            raise self._no_room_error(error) from error
        return None, part

    def _fetch(self, part: IO[bytes]) -> LocalFile:
        with part:
            try:
                with Progress(f"copying {redact.base_name(self.name)}", self.size, unit="B", delay_s=1) as bar:
                    chunks = range(0, self.size, _CHUNK_BYTES)
                    for first in range(0, len(chunks), _CHUNKS_AT_ONCE):
                        threads = get_threads("bushel-copies", _REQUESTS)
                        for data in threads.map(self._read_chunk, chunks[first : first + _CHUNKS_AT_ONCE]):
                            self._write(part, data)
                            bar.show(part.tell())
                self._file.check_unchanged()  # otherwise the copy could be half of one object and half of another
                os.fsync(
                    part.fileno()
                )  # otherwise, after a power failure, the file could have the right size and contain zeros
                os.utime(part.name, ns=(time.time_ns(), _TIME_NS))
                with self._lock_folder():
                    os.replace(part.name, self._path)
                    return self._open_copy()
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part.name)
                raise
            finally:
                fcntl.flock(part, fcntl.LOCK_UN)  # a process that was forked meanwhile holds the same lock

    def _read_chunk(self, start: int) -> bytes:
        return self._file.read(start, min(_CHUNK_BYTES, self.size - start))

    def _write(self, part: IO[bytes], data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[part.write(left) :]
            except OSError as error:
                raise self._no_room_error(error) from error

    def _no_room_error(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"{self.name} ({self.size} bytes) could not be copied to {self._folder} ({error.strerror}). Make room "
            "there, set cache_bytes to the room there is, or name another cache_dir",
        )

    def _open_copy(self) -> LocalFile:
        return LocalFile(self._path, f"{self.name} (its copy {self._path})")


def _is_being_filled(path: str) -> bool:
    """Return whether a process is filling an unfinished copy. A copy that a killed process left is removed."""
    with open(path, "rb") as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    os.unlink(path)
    return False


def _wait_for(path: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as part:
        fcntl.flock(part, fcntl.LOCK_SH)


def _make_room(copies: list[tuple[int, int, str]], room_bytes: int) -> None:
    """Remove the copies used longest ago, until the others fit into `room_bytes`."""
    total = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if total <= room_bytes:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size


_MERGE_BYTES = 64 * 1024
"""Ranges that are nearer than this become one request: reading the gap costs less than a round trip."""
_MERGED_BYTES = 4 << 20
"""About how large a request of merged ranges becomes. Several requests at once are faster than a very large one,
because stores limit the speed of each connection."""


def merge_ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """Merge ranges that are near each other. Return starts and ends, and for each given range its merged one."""
    order = np.argsort(starts, kind="stable")
    begins = starts[order]
    ends = begins + lengths[order]
    apart = np.append(0, np.flatnonzero(begins[1:] > np.maximum.accumulate(ends)[:-1] + _MERGE_BYTES) + 1)
    # A group of near ranges is cut where a range begins in another section of the group than the range before it.
    group = apart.searchsorted(np.arange(len(order)), "right") - 1
    section = (begins - begins[apart][group]) // _MERGED_BYTES
    first = np.append(0, np.flatnonzero(np.diff(group) | np.diff(section)) + 1)
    which = np.empty(len(order), np.int64)
    which[order] = first.searchsorted(np.arange(len(order)), "right") - 1
    return begins[first].tolist(), np.maximum.reduceat(ends, first).tolist(), which.tolist()


def scatter(data: Any, buffers: Sequence[Any]) -> None:
    """Copy bytes into writable buffers, one after the other."""
    view = memoryview(data)
    for buffer, part in zip(buffers, _cut(view, buffers)):
        memoryview(buffer).cast("B")[:] = part


def _cut(view: memoryview, buffers: Sequence[Any]) -> Iterator[memoryview]:
    low = 0
    for buffer in buffers:
        yield view[low : low + len(buffer)]
        low += len(buffer)


def get_threads(name: str, most: int) -> RequestThreads:
    """Return the threads of this name in this process.

    After a fork, the threads of the parent do not exist in the child.
    """
    return _make_threads(os.getpid(), name, most)


@functools.cache
def _make_threads(process: int, name: str, most: int) -> RequestThreads:
    del process
    return RequestThreads(name, most)


class RequestThreads:
    """Up to `most` threads, which are started when they are needed.

    >>> RequestThreads("doc", 2).map(len, ["a", "bb", "ccc"])
    [1, 2, 3]
    """

    def __init__(self, name: str, most: int):
        self._most, self._name = most, name
        self._work: queue.SimpleQueue[_SharedWork | None] = queue.SimpleQueue()
        self._started = 0
        self._starting = threading.RLock()  # a signal handler may read while this thread starts others
        self._idle = 0
        self._counting = threading.Lock()  # only the threads themselves take it

    def map(self, request: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Return the results of `request` for each item, in order. Raise the error of the first item that has one."""
        if not len(items):
            return []
        helpers = min(len(items), self._most)
        work = _SharedWork(request, items, helpers)
        try:
            with self._starting:
                for _ in range(min(self._work.qsize() + helpers - self._idle, self._most - self._started)):
                    start_thread(f"{self._name}-{self._started}", self._end_one, self._run)
                    self._started += 1
            for _ in range(helpers):
                self._work.put(work)
            return work.wait()
        except BaseException:  # perhaps a signal: begin no other requests, and do not wait for those in flight
            work.give_up()
            raise

    def _end_one(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while True:
            self._count_idle(1)
            work = self._work.get()
            self._count_idle(-1)
            if work is None:
                return
            work.help()
            del work  # an idle thread keeps nothing alive

    def _count_idle(self, change: int) -> None:
        with self._counting:
            self._idle += change


class _SharedWork:
    """The items of one call. Each thread that helps takes the next item until none is left."""

    def __init__(self, request: Callable[[Any], Any], items: Sequence[Any], helpers: int):
        self._request, self._items = request, items
        self._rest = collections.deque(range(len(items)))
        self._results: list[Any] = [None] * len(items)
        self._failures: list[tuple[int, BaseException]] = []
        self._helpers = collections.deque(range(helpers))  # one for each thread that has not ended its help
        self._last = helpers - 1
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def help(self) -> None:
        number = 0
        try:
            while self._rest:
                try:
                    number = self._rest.popleft()
                except IndexError:  # another thread has taken the last one
                    break
                self._results[number] = self._request(self._items[number])
        except BaseException as error:
            self.give_up()
            self._failures.append((number, error))
        finally:
            if self._helpers.popleft() == self._last:  # the caller is woken once, not by every thread
                self._done.put(None)

    def wait(self) -> list[Any]:
        self._done.get()
        if self._failures:
            # Items are taken in order, so every item before one that failed was tried as well.
            raise min(self._failures, key=lambda failure: failure[0])[1]
        return self._results

    def give_up(self) -> None:
        """Let no thread begin another item."""
        self._rest.clear()
