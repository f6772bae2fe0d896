"""Copies of remote files on this machine's disk, within a limit of bytes. Whole files: formats read all over them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time

from bushel.base.errors import DamagedFile
from bushel.sources.stores import File, LocalFile

_PIECE_BYTES = 16 << 20


def kept(file: File, folder: str, limit_bytes: int | None) -> File:
    """`file` from a copy in `folder`; a copy that is not there yet is made.

    Copies that were used longest ago go first when there are more than `limit_bytes`. A file larger than the limit is
    read from where it is.
    """
    if limit_bytes is not None and limit_bytes <= 0:
        raise ValueError(f"cache_bytes must be positive, got {limit_bytes}.")
    if limit_bytes is not None and file.size > limit_bytes:
        return file
    os.makedirs(folder, exist_ok=True)
    digest = hashlib.blake2b(json.dumps([file.name, *file.version()]).encode(), digest_size=16).hexdigest()
    path = os.path.join(folder, f"{digest}.copy")
    copy = _found(path, file.size)
    if copy is None:
        if limit_bytes is not None:
            _make_room(folder, limit_bytes - file.size)
        _fetch(file, path)
        copy = _found(path, file.size)
        if copy is None:
            raise DamagedFile(f"The copy of {file.name} at {path} vanished while it was made. Is the folder in use?")
    return copy


def _found(path: str, size: int) -> LocalFile | None:
    try:
        copy = LocalFile(path)
    except FileNotFoundError:
        return None
    if copy.size != size:
        os.unlink(path)
        return None
    with contextlib.suppress(OSError):  # a folder that may only be read: its copies are good nevertheless
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))  # used now, not changed
    return copy


def _fetch(file: File, path: str) -> None:
    part = f"{path}.{os.getpid()}-{threading.get_ident()}.part"
    try:
        with open(part, "wb") as out:
            for start in range(0, file.size, _PIECE_BYTES):
                out.write(file.read(start, min(_PIECE_BYTES, file.size - start)))
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _make_room(folder: str, room_bytes: int) -> None:
    """Removes the copies that were used longest ago until the rest fit into `room_bytes`."""
    copies = []
    for entry in os.scandir(folder):
        with contextlib.suppress(FileNotFoundError):
            if entry.name.endswith(".copy"):
                stat = entry.stat()
                copies.append((stat.st_atime_ns, stat.st_size, entry.path))
    total = sum(size for _, size, _ in copies)
    for _, size, path in sorted(copies):
        if total <= room_bytes:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        total -= size
