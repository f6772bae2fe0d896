"""Caches that are being filled: a folder under a temporary name, or objects that no index names yet.

A folder on disk holds a lock, by which other processes know that a process still fills it. The kernel releases the
lock when that process ends, also if it is killed. Process numbers would not do: containers that share a folder have
process numbers of their own. A store has no locks: there, objects that no index names are removed when they are old.
"""

from __future__ import annotations

import abc
import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from bushel._src.base import sealed
from bushel._src.sources import output_folders
from bushel._src.sources.output_folders import Folder

INDEX = "index.json"
_PREFIX, _BEGUN = ".part-", ".begun-"
_LOCK = ".lock"
_FORGOTTEN_S = 7 * 24 * 3600.0
"""A folder whose lock does not say whether its process is alive is removed after so long without a change."""


def temporary_name() -> str:
    """A name that no other process gives to a folder."""
    return f"{_PREFIX}{socket.gethostname()}-{secrets.token_hex(8)}"


class Part(abc.ABC):
    """The files of a cache that is being filled. Nobody else reads them before they are published."""

    folder: Folder
    under: str
    """Where in the folder the files are: what their names begin with."""

    @abc.abstractmethod
    def publish(self, index: dict[str, Any]) -> None:
        """Writes the index, by which others find the files; unless another process has published the same meanwhile."""

    @abc.abstractmethod
    def remove(self) -> None:
        """Removes the files."""


def begin(folder: Folder, key: str) -> Part:
    """A part that becomes the cache `key` in a folder. Removes the parts that killed processes have left there."""
    if not folder.on_disk:
        _remove_old(folder, key)
        return _PartObjects(folder, key)
    parent = Path(folder.address)
    parent.mkdir(parents=True, exist_ok=True)
    remove_forgotten(parent)
    return PartFolder(parent, parent / key)


def remove_cache(folder: Folder, key: str) -> None:
    """Removes a cache. First it removes the name or the index by which other processes find the cache."""
    if folder.on_disk:
        renamed = Path(folder.address) / temporary_name()
        os.rename(Path(folder.address) / key, renamed)
        shutil.rmtree(renamed, ignore_errors=True)
    else:
        folder.remove([f"{key}/{INDEX}"])
        folder.remove(folder.names(key, deep=True))


class PartFolder(Part):
    """A folder under a temporary name, which gets its own name once it is complete."""

    def __init__(self, parent: Path, target: Path):
        name = temporary_name()
        begun = parent / name.replace(_PREFIX, _BEGUN)  # others look only at folders that have their lock already
        begun.mkdir()
        self._lock: int | None = os.open(begun / _LOCK, os.O_CREAT | os.O_RDWR, 0o666)
        self._process = os.getpid()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # this file system has no locks
            (begun / _LOCK).unlink()
        self.path, self._target = parent / name, target
        begun.rename(self.path)
        self.folder, self.under = output_folders.open_folder(self.path), ""

    def publish(self, index: dict[str, Any]) -> None:
        self.folder.write(INDEX, sealed.json_bytes(index))
        try:
            self._rename()
        except OSError:
            if (self._target / INDEX).exists():  # another process was faster
                self.remove()
                return
            shutil.rmtree(self._target, ignore_errors=True)  # a folder whose index is gone is of no use
            self._rename()

    def _rename(self) -> None:
        (self.path / _LOCK).unlink(missing_ok=True)
        os.rename(self.path, self._target)
        self._release()  # not before: a process that gets the lock would remove the folder as a forgotten one

    def remove(self) -> None:
        """Removes the folder with all that is in it. A forked child, which has a copy of this, removes nothing."""
        if self._process == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def remove_forgotten(parent: Path) -> None:
    """Removes the folders of processes that were killed while they filled them."""
    for pattern in (f"{_PREFIX}*", f"{_BEGUN}*"):
        for folder in parent.glob(pattern):
            with contextlib.suppress(OSError):  # another process has removed it, or it belongs to another user
                _remove_if_forgotten(folder)


def _remove_if_forgotten(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        lock = None
    try:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises an OSError if a process holds it
        # Some network file systems keep locks on one machine alone: the lock of another machine's process looks free.
        own = lock is not None and folder.name.startswith(f"{_PREFIX}{socket.gethostname()}-")
        if own or time.time() - _last_change(folder) > _FORGOTTEN_S:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _last_change(folder: Path) -> float:
    return max(entry.stat().st_mtime for entry in [folder, *folder.iterdir()])


class _PartObjects(Part):
    """Objects in a folder of their own, which the index names: a store cannot rename a folder."""

    def __init__(self, folder: Folder, key: str):
        self.folder, self._key = folder, key
        self._own = f"{int(time.time())}-{secrets.token_hex(8)}"
        self.under = f"{key}/{self._own}/"
        self._process = os.getpid()

    def publish(self, index: dict[str, Any]) -> None:
        if self.folder.exists(f"{self._key}/{INDEX}"):  # another process was faster
            self.remove()
        else:
            self.folder.write(f"{self._key}/{INDEX}", sealed.json_bytes({**index, "folder": self._own}))

    def remove(self) -> None:
        if self._process == os.getpid():
            with contextlib.suppress(OSError):  # they are removed later, when they are old
                self.folder.remove(self.folder.names(self.under.rstrip("/")))


def _remove_old(folder: Folder, key: str) -> None:
    """Removes the objects of a cache without an index that were begun long ago."""
    if folder.exists(f"{key}/{INDEX}"):
        return
    old = []
    for name in folder.names(key, deep=True):
        begun = name.removeprefix(f"{key}/").partition("-")[0]
        if begun.isdigit() and time.time() - int(begun) > _FORGOTTEN_S:
            old.append(name)
    folder.remove(old)
