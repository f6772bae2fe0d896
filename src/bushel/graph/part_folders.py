"""Folders that are being filled: each holds a lock, by which other processes know that somebody is still at work.

The kernel releases the lock when the process ends, however it ends. Process numbers could not tell: containers that
share a folder have process numbers of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import time
from pathlib import Path

_PREFIX, _BEGUN = ".part-", ".begun-"
_LOCK = ".lock"
_FORGOTTEN_S = 7 * 24 * 3600.0
"""A folder whose lock tells nothing is removed once nobody has changed it for so long."""


def temporary_name() -> str:
    """A name that no other process gives to a folder."""
    return f"{_PREFIX}{socket.gethostname()}-{secrets.token_hex(8)}"


class PartFolder:
    """A folder under a temporary name, which gets its own name once it is complete."""

    def __init__(self, parent: Path):
        name = temporary_name()
        begun = parent / name.replace(_PREFIX, _BEGUN)  # others look only at folders that have their lock already
        begun.mkdir()
        self._lock: int | None = os.open(begun / _LOCK, os.O_CREAT | os.O_RDWR, 0o666)
        self._process = os.getpid()
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # this file system has no locks
            (begun / _LOCK).unlink()
        self.path = parent / name
        begun.rename(self.path)

    def rename(self, target: Path) -> None:
        """Gives the folder its own name. Raises OSError where there is such a folder already."""
        (self.path / _LOCK).unlink(missing_ok=True)
        os.rename(self.path, target)
        self._release()  # not before: whoever gets the lock takes the folder for a forgotten one

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
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises an OSError where somebody holds it
        # Some network file systems keep locks on one machine alone: the lock of another machine's process looks free.
        own = lock is not None and folder.name.startswith(f"{_PREFIX}{socket.gethostname()}-")
        if own or time.time() - _last_change(folder) > _FORGOTTEN_S:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _last_change(folder: Path) -> float:
    return max(entry.stat().st_mtime for entry in [folder, *folder.iterdir()])
