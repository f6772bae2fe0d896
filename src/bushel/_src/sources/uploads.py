"""Writes objects to stores: uploads, renames and removals, through obstore or an fsspec driver.

A reader sees a whole object or none: a large object is sent in parts, and the store shows it when the last part has
arrived. The order in which the files of a data set are written is decided in `folders.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from typing import Any

from bushel._src.base import redact
from bushel._src.sources import fsspec_files, object_stores
from bushel._src.sources.local_files import File
from bushel._src.sources.paths import Options

_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4  # so an upload holds about 32 MB at most
_MOST_PARTS = 9_000  # S3 accepts 10,000
_COPY_BYTES = 5 << 30
"""S3 copies larger objects only in parts, which obstore does not do."""
_WHOLE = {"abfs", "abfss", "adl", "az", "gcs", "gs", "oci", "oss", "s3", "s3a"}
"""Schemes whose fsspec drivers show only complete objects. With others, a file is written under another name first."""


def check_address(url: str) -> None:
    """Raise an error for addresses to which nothing can be written."""
    if url.startswith(("http://", "https://")):
        raise ValueError(
            f"{redact.show(url)} cannot be written: web servers accept no files. Name a local folder, or a store such "
            "as s3://bucket/folder or gs://bucket/folder."
        )


def upload(path: str, url: str, options: Options | None) -> None:
    """Copy a local file to a store. The file is read in parts, so a large file needs no more memory."""
    check_address(url)
    connected = object_stores.connect(url, options)
    if connected is None:
        _upload_by_driver(path, url, dict(options or {}))
        return
    store, key, settings = connected
    size = os.path.getsize(path)
    part = max(_PART_BYTES, -(-size // _MOST_PARTS))
    # The version of the object that an upload in parts replaces. It tells a new object from an old one if the last
    # answer of the upload is lost.
    before = _find_version(store, key, url, settings) if size > part else None
    with open(path, "rb") as file:  # closing it, also after Ctrl-C, ends an unfinished upload

        def put() -> None:
            file.seek(0)
            try:
                store.put(key, file, chunk_size=part, max_concurrency=_PARTS_AT_ONCE)
            except FileNotFoundError as error:
                if not object_stores.is_unclear_upload(error):
                    raise
                now = _find_version(store, key, url, settings)
                if now is None or now == before or now[0] != size:
                    raise

        object_stores.request_with_retries(put, url, settings, "written")


def _find_version(store: Any, key: str, url: str, settings: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the size, ETag and time of an object; None if it does not exist, or may not be read."""
    try:
        found = object_stores.request_with_retries(lambda: store.head(key), url, settings)
    except (FileNotFoundError, PermissionError):
        return None
    return found["size"], found.get("e_tag"), str(found.get("last_modified"))


def _upload_by_driver(path: str, url: str, settings: dict[str, Any]) -> None:
    system, target = fsspec_files.connect(url, settings)
    folder, _, name = target.rpartition("/")
    whole = url.partition("://")[0] in _WHOLE
    written = target if whole else f"{folder}/.{name[:40]}.{os.urandom(6).hex()}.writing"

    def put() -> None:
        if not whole and folder:
            with contextlib.suppress(NotImplementedError):
                system.makedirs(folder, exist_ok=True)
        system.put_file(path, written)

    fsspec_files.call_with_retries(put, url, settings, "written")
    if not whole:
        _move(system, written, target, url, settings)
    system.invalidate_cache()
    there = fsspec_files.call_with_retries(lambda: system.info(target), url, settings, "written").get("size")
    if there != os.path.getsize(path):
        raise OSError(
            f"{redact.show(url)} could not be written: its store has {there} of {os.path.getsize(path)} bytes."
        )


def rename(url: str, target: str, options: Options | None) -> None:
    """Rename an object of a store: the store copies it, then the old object is removed."""
    connected = object_stores.connect(url, options)
    if connected is None:
        settings = dict(options or {})
        system, old = fsspec_files.connect(url, settings)
        _, new = fsspec_files.connect(target, settings)
        if url.partition("://")[0] in _WHOLE:
            fsspec_files.call_with_retries(lambda: system.cp_file(old, new), target, settings, "written")
            fsspec_files.call_with_retries(lambda: system.rm_file(old), url, settings, "removed")
        else:
            _move(system, old, new, target, settings)
        system.invalidate_cache()
        return
    store, old, settings = connected
    _, new, _ = object_stores.connect(target, options) or connected
    file = object_stores.open_url(url, options)
    if file.size <= _COPY_BYTES:
        object_stores.request_with_retries(lambda: store.copy(old, new), target, settings, "written")
    else:
        _copy_through_disk(file, target, options)
    remove([url], options)


def _move(system: Any, old: str, new: str, url: str, settings: dict[str, Any]) -> None:
    """Rename a file by a driver. If an answer was lost, and the file has its new name, the rename has succeeded."""
    tried = False

    def move() -> None:
        nonlocal tried
        try:
            system.mv(old, new)
        except FileNotFoundError:
            system.invalidate_cache()
            if not tried or system.exists(old) or not system.exists(new):
                raise
        except Exception:
            tried = True
            raise

    fsspec_files.call_with_retries(move, url, settings, "written")


def _copy_through_disk(file: File, target: str, options: Options | None) -> None:
    with tempfile.TemporaryDirectory(prefix="bushel-") as folder:
        path = os.path.join(folder, "copy")
        with open(path, "xb") as copy:
            for low in range(0, file.size, _PART_BYTES):
                copy.write(file.read(low, min(_PART_BYTES, file.size - low)))
        upload(path, target, options)


def remove(urls: list[str], options: Options | None) -> None:
    """Remove objects. Objects that do not exist are ignored."""
    for url in urls:
        connected = object_stores.connect(url, options)
        if connected is None:
            settings = dict(options or {})
            system, path = fsspec_files.connect(url, settings)
            with contextlib.suppress(FileNotFoundError):
                fsspec_files.call_with_retries(functools.partial(system.rm_file, path), url, settings, "removed")
            system.invalidate_cache()
        else:
            store, key, settings = connected
            with contextlib.suppress(FileNotFoundError):
                object_stores.request_with_retries(functools.partial(store.delete, key), url, settings, "removed")
