"""Copies of remote files on this machine's disk, within a limit of bytes. Whole files: formats read all over them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TypeVar

from bushel.sources.local_files import File, LocalFile

T = TypeVar("T")

_PIECE_BYTES = 16 << 20
_told: set[str] = set()
"""Folders that were said to stay without copies of some files."""
_TIME_NS = 0
"""When a copy was changed: its name tells the content, so that one which was made again is the same file."""


def kept(file: File, folder: str, limit_bytes: int | None) -> File:
    """`file` from a copy in `folder`; a copy that is not there yet is made.

    Copies that were used longest ago go first when there are more than `limit_bytes`. A file larger than the limit is
    read from where it is, as is one whose store does not tell when it changes: a copy of it might be an old one.
    """
    if limit_bytes is not None and file.size > limit_bytes:
        return file
    if file.version()[-1] is None:
        if folder not in _told:
            _told.add(folder)
            warnings.warn(
                f"{file.name}: its store sends neither ETag nor time, so that an old copy could not be told from the "
                f"file. It is read without a copy in {folder}, as are all others of this kind.",
                stacklevel=2,
            )
        return file
    os.makedirs(folder, exist_ok=True)
    return CachedFile(file, folder, limit_bytes)


class CachedFile(File):
    """A remote file under its own name and version, read from a copy. A copy that was removed is made again."""

    together = False

    def __init__(self, file: File, folder: str, limit_bytes: int | None):
        self.name, self.address, self.size = file.name, file.address, file.size
        self._file, self._folder, self._limit = file, folder, limit_bytes
        digest = hashlib.blake2b(json.dumps([file.name, *file.version()]).encode(), digest_size=16).hexdigest()
        self._path = os.path.join(folder, f"{digest}.copy")
        self._copy = self._made()

    def read(self, start: int, length: int) -> bytes:
        return self._from_copy(lambda copy: copy.read(start, length))

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return self._from_copy(lambda copy: copy.read_many(starts, lengths))

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        self._from_copy(lambda copy: copy.read_into(start, buffers))

    def check_unchanged(self) -> None:
        pass  # a copy belongs to one version

    def version(self) -> list[Any]:
        return self._file.version()

    def _from_copy(self, read: Callable[[LocalFile], T]) -> T:
        while True:
            try:
                return read(self._copy)
            except FileNotFoundError:  # it made room for others after its descriptor had been given back
                self._copy = self._made()

    def _made(self) -> LocalFile:
        while (copy := self._found()) is None:
            with self._alone():
                busy, part = self._reserved()
            if part is not None:
                return self._fetched(part)
            if busy is not None:  # another thread or process makes this copy, or takes the room
                _wait(busy)
        return copy

    def _found(self) -> LocalFile | None:
        with contextlib.suppress(OSError):  # a folder that may only be read: its copies are good nevertheless
            os.utime(self._path, ns=(time.time_ns(), _TIME_NS))  # used now
        try:
            copy = self._opened()
        except FileNotFoundError:
            return None
        if copy.size == self.size:
            return copy
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        return None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else counts, removes or names files of the folder meanwhile."""
        with open(os.path.join(self._folder, ".lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _reserved(self) -> tuple[str | None, IO[bytes] | None]:
        """Another's part that must be complete first, or a part of this file's own size to fill; none if it is there.

        Who fills a part holds its lock, so that a part without one is what a killed process left.
        """
        if os.path.exists(self._path):
            return None, None
        own = f"{self._path}.part"
        copies: list[tuple[int, int, str]] = []
        filled: dict[str, int] = {}
        for entry in os.scandir(self._folder):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(".copy"):
                    copies.append((entry.stat().st_atime_ns, entry.stat().st_size, entry.path))
                elif entry.name.endswith(".part") and _is_filled(entry.path):
                    filled[entry.path] = entry.stat().st_size
        if own in filled:
            return own, None
        if self._limit is not None:
            room = self._limit - self.size - sum(filled.values())
            if room < 0:
                return next(iter(filled)), None
            _make_room(copies, room)
        part = open(own, "wb", buffering=0)  # noqa: SIM115
        fcntl.flock(part, fcntl.LOCK_EX)
        try:
            part.truncate(self.size)
        except OSError as error:
            os.unlink(own)
            raise self._no_room(error) from error
        return None, part

    def _fetched(self, part: IO[bytes]) -> LocalFile:
        with part:
            try:
                for start in range(0, self.size, _PIECE_BYTES):
                    self._write(part, self._file.read(start, min(_PIECE_BYTES, self.size - start)))
                self._file.check_unchanged()  # or the copy might be half of one object and half of another
                os.fsync(part.fileno())  # or after a power failure the name might stand for zeros of the right size
                os.utime(part.name, ns=(time.time_ns(), _TIME_NS))
                with self._alone():
                    os.replace(part.name, self._path)
                    return self._opened()
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part.name)
                raise
            finally:
                fcntl.flock(part, fcntl.LOCK_UN)  # also for a process that was forked meanwhile

    def _write(self, part: IO[bytes], data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[part.write(left) :]
            except OSError as error:
                raise self._no_room(error) from error

    def _no_room(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"{self._folder}: no copy of {self.name}, {self.size} bytes, could be made ({error.strerror}). Make room "
            "there, set cache_bytes to what there is, or name another cache_dir",
        )

    def _opened(self) -> LocalFile:
        return LocalFile(self._path, f"{self.name} (its copy {self._path})")


def _is_filled(path: str) -> bool:
    """Whether somebody is filling a part. One that was left behind is removed."""
    with open(path, "rb") as part:
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    os.unlink(path)
    return False


def _wait(path: str) -> None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as part:
        fcntl.flock(part, fcntl.LOCK_SH)


def _make_room(copies: list[tuple[int, int, str]], room_bytes: int) -> None:
    """Removes the copies that were used longest ago until the rest fit into `room_bytes`."""
    total = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if total <= room_bytes:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
