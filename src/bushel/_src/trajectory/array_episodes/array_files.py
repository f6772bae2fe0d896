"""Arrays in HDF5 and `.npz` files by path and name. Each process keeps the files open that it has read last.

What is open belongs to the process and not to an object: objects that name files can be pickled, compared and sent to
workers. A process that was forked opens its files again, since two processes must not share a position in a file.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, OtherFile
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access, local_files, paths
from bushel._src.sources.array_files import load_arrays
from bushel._src.sources.hdf5 import check_chunks
from bushel._src.sources.hdf5_links import check_inside
from bushel._src.sources.optional_packages import import_package

_OPEN_FILES = 64
_KEPT_BYTES = 256 << 20

Kind = Literal["hdf5", "npz"]


@in_states("array_file")
@dataclasses.dataclass(frozen=True, eq=False)
class ArrayFile:
    """The address of a file with named arrays. It is opened when an array of it is read.

    Args:
      kind: the format.
      path: a path or URL.
      version: name, size and time, or the tag of the store. A file with another version is refused.
      options: the options of the store.
    """

    kind: Kind
    path: str
    version: Any = None
    options: redact.Options = dataclasses.field(default_factory=redact.Options)

    @property
    def shown(self) -> str:
        """What messages call the file."""
        return redact.show(self.path)

    def open(self) -> Any:
        """The open file: names lead to arrays, in an HDF5 file also to groups."""
        return _pool().open(self).content

    def array(self, name: str) -> Any:
        """An array of the file, which is read by slices. A name that is not there raises KeyError."""
        return _pool().open(self).array(name)


def list_datasets(group: Any, file: Any) -> dict[str, Any]:
    """All datasets of a group of an open HDF5 file, by their paths in it. One that lies in another file is an error."""
    found: dict[str, Any] = {}
    group.visititems(lambda name, item: found.__setitem__(name, item) if hasattr(item, "shape") else None)
    for name, item in found.items():
        check_inside(item, name, file)
    return found


def find_versions(kind: Kind, paths: list[str], options: redact.Options) -> list[ArrayFile]:
    """The files with the versions that they have now."""
    return [ArrayFile(kind, path, file_access.fingerprint_files([path], options)[0], options) for path in paths]


class _Open:
    """An open file, with those of its arrays that were read before."""

    def __init__(self, file: ArrayFile):
        self._is_hdf5 = file.kind == "hdf5"
        self._is_local_hdf5 = self._is_hdf5 and not paths.is_url(file.path)
        self._shown = file.shown
        self.content: Any = (
            _open_hdf5(file) if file.kind == "hdf5" else load_arrays(file.path, storage_options=file.options)
        )
        self._arrays: dict[str, Any] = {}

    def array(self, name: str) -> Any:
        array = self._arrays.get(name)
        if array is None:
            array = self.content[name]
            if not hasattr(array, "shape"):
                raise KeyError(f"{name!r} is a group")
            if self._is_hdf5:
                check_inside(array, name, self.content)
            if self._is_local_hdf5:
                with describing_damage(self._shown):
                    check_chunks(array, name)
            self._arrays[name] = array
        return array

    @property
    def memory_bytes(self) -> int:
        """The bytes of arrays that are in memory: those of a compressed `.npz` file."""
        if not isinstance(self.content, dict):
            return 0
        return sum(array.nbytes for array in self.content.values() if not isinstance(array, np.memmap))


def _open_hdf5(file: ArrayFile) -> Any:
    h5py = import_package("h5py", "hdf5", "HDF5 files")
    content = file_access.open_file(file.path, file.options)
    place = local_files.as_stream(content) if paths.is_url(file.path) else file.path
    with describing_damage(file.shown):
        return h5py.File(place, "r")


@contextlib.contextmanager
def describing_damage(shown: str, kind: str = "HDF5") -> Iterator[None]:
    """Turns whatever error a damaged file leads to into a `DamagedFile` that names the file."""
    try:
        yield
    except (ImportError, DamagedFile):
        raise
    except OtherFile as error:
        raise OtherFile(f"{shown}: {error}") from None
    except Exception as error:
        raise DamagedFile(f"{shown} is not a complete {kind} file: {error}") from error


class _Pool:
    """The open files of this process, at most 64 of them, and at most 256 MiB of arrays that are not mapped.

    A file is closed when the last `ArrayFile` that has opened it is gone: HDF5 refuses to write to a file that the same
    process has open, and a user may want to make a data set again.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, _Open] = collections.OrderedDict()
        self._users: dict[str, set[int]] = {}
        self._released: collections.deque[tuple[str, int]] = collections.deque()
        """Users that are gone, and have not been taken out of `_users`."""

    def open(self, file: ArrayFile) -> _Open:
        key = json.dumps([file.kind, file.path, file.version, dict(file.options)], default=str)
        try:
            with self._lock:
                self._forget_released()  # this file may have got the id of one that is gone
                users = self._users.setdefault(key, set())
                if id(file) not in users:
                    users.add(id(file))
                    weakref.finalize(file, self._release, key, id(file)).atexit = False
                opened = self._open.pop(key, None)
                if opened is None:
                    _check_version(file)
                    opened = _Open(file)
                self._open[key] = opened
                while len(self._open) > 1 and (len(self._open) > _OPEN_FILES or self._memory_bytes() > _KEPT_BYTES):
                    self._open.popitem(last=False)  # it is closed when nobody reads it any more
                return opened
        finally:
            self._close_released()

    def _release(self, key: str, user: int) -> None:
        """Called when an `ArrayFile` is gone: at any time, also in a thread that is in the middle of `open`."""
        self._released.append((key, user))
        self._close_released()

    def _close_released(self) -> None:
        # If another call holds the lock, that call does this as soon as it has released the lock.
        while self._released and self._lock.acquire(blocking=False):
            try:
                self._forget_released()
            finally:
                self._lock.release()

    def _forget_released(self) -> None:
        while self._released:
            key, user = self._released.popleft()
            users = self._users.get(key, set())
            users.discard(user)
            if not users:
                self._users.pop(key, None)
                self._open.pop(key, None)

    def _memory_bytes(self) -> int:
        return sum(opened.memory_bytes for opened in self._open.values())


def _check_version(file: ArrayFile) -> None:
    if file.version is None:
        return
    now = file_access.fingerprint_files([file.path], file.options)[0]
    if now != file.version:
        raise local_files.changed_error(file.path, file.version, now)


_shared = _Pool()


def _pool() -> _Pool:
    global _shared
    if _shared.process != os.getpid():
        _shared = _Pool()
    return _shared
