"""Files of any store that has an fsspec driver. Failed requests are repeated, with growing pauses."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.late_imports import import_package
from bushel._src.sources.local_files import File, changed_error
from bushel._src.sources.remote_requests import merge_ranges, scatter
from bushel._src.sources.shard_journals import final_name

T = TypeVar("T")

_BUSHELS_OPTIONS = ("timeout_s", "retries", "cache_dir", "cache_bytes")
_RETRIES = 8
_LONGEST_PAUSE_S = 10
_CHECK_S = 60
"""After so many seconds the store is asked whether the file is still the same. A driver's response does not say which
version of the file it came from."""


def connect(url: str, settings: dict[str, Any]) -> tuple[Any, str]:
    """Return the fsspec driver of a URL, and the driver's name for the file."""
    core = import_package("fsspec.core", "fsspec", f"URLs such as {redact.show(url)}")
    scheme = url.partition("://")[0]

    def open_driver() -> tuple[Any, str]:
        try:
            return redact.call_guarded(lambda: core.url_to_fs(url, **driver_options(settings)), url, settings)
        except (ValueError, ImportError) as error:
            raise ValueError(f"{redact.show(url)}: fsspec has no driver for {scheme}:// ({error}).") from None

    system, path = call_with_retries(open_driver, url, settings)
    system.invalidate_cache()  # drivers cache listings, and would miss files that were written later
    return system, path


def driver_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options without those that Bushel itself uses."""
    return {key: value for key, value in settings.items() if key not in _BUSHELS_OPTIONS}


def call_with_retries(call: Callable[[], T], url: str, settings: dict[str, Any], deed: str = "read") -> T:
    """Return the result of a call of a driver. While the store fails, the call is repeated with growing pauses.

    `deed` is the verb of the error messages: "read", "written" or "removed".
    """
    pause_s, retries = 0.1, settings.get("retries", _RETRIES)
    for attempt in range(retries + 1):
        try:
            return call()
        except Exception as error:
            failure = error
        again = isinstance(failure, OSError) and not isinstance(failure, _FINAL)
        if (
            not again or attempt == retries
        ):  # not inside `except`: Python would chain the driver's error, which may contain secrets
            raise _explain_failure(failure, redact.show(url), redact.secrets_of(url, settings), deed)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("unreachable")


_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def missing_file_error(name: str, deed: str, why: str | None = None) -> FileNotFoundError:
    """Return the error to raise for a file that does not exist, or that cannot be written without its bucket."""
    if deed == "read" and why is None:
        return FileNotFoundError(f"{name} does not exist. Correct the address: the file or its bucket is missing.")
    why = "the bucket or folder does not exist" if why is None else why
    return FileNotFoundError(f"{name} could not be {deed}: {why}. Create it first, or correct the address.")


def _explain_failure(failure: Exception, name: str, secrets: list[str], deed: str) -> BaseException:
    """Return the error to raise in place of an error of a driver, without the secrets that its text may contain."""
    if isinstance(failure, FileNotFoundError):
        return missing_file_error(name, deed)
    cause = redact.scrub(failure, secrets)
    if isinstance(failure, (ValueError, ImportError)):
        return cause
    why = first_line(cause)
    if isinstance(failure, PermissionError):
        error = PermissionError(f"{name} may not be {deed}: {why}")
    elif isinstance(failure, (IsADirectoryError, NotADirectoryError)):
        error = type(failure)(f"{name} is not a file: {why}")
    elif isinstance(failure, OSError):
        error = OSError(f"{name} could not be {deed}: {why}")
    else:  # a type of the driver's own, or a bug in the driver
        error = OSError(f"{name} could not be {deed}: {type(failure).__name__}: {why}")
    error.__cause__ = cause
    return error


def list_files(prefix: str, settings: dict[str, Any], *, deep: bool) -> list[str]:
    """Return the URLs of the files in the folder of a prefix, and in deeper folders if `deep`."""
    folder = prefix[: prefix.rfind("/") + 1]
    system, path = connect(folder, settings)
    if deep and _has_find(system):
        names = call_with_retries(lambda: system.find(path), folder, settings)
    else:
        names = _walk(system, path, folder, settings, deep=deep)
    inside = f"{path.rstrip('/')}/" if path else ""
    return [folder + name.removeprefix(inside) for name in names if name.startswith(inside)]


def _has_find(system: Any) -> bool:
    """Return whether a driver has its own `find`. fsspec's general one leaves out folders that it fails to list,
    silently.
    """
    spec, asyn = (import_package(f"fsspec.{name}", "fsspec", "Files in stores") for name in ("spec", "asyn"))
    general = (None, spec.AbstractFileSystem.find, asyn.AsyncFileSystem._find)
    return any(getattr(type(system), name, None) not in general for name in ("find", "_find"))


def _walk(system: Any, path: str, url: str, settings: dict[str, Any], *, deep: bool) -> list[str]:
    folders, found = [path], []
    while folders:
        folder = folders.pop()
        try:
            entries = call_with_retries(functools.partial(system.ls, folder, detail=True), f"{url}: {folder}", settings)
        except FileNotFoundError:  # the folder does not exist, or does not exist any more
            continue
        for entry in entries:
            name = entry["name"].rstrip("/")
            if entry["type"] != "directory":
                found.append(name)
            elif deep and name != folder:
                folders.append(name)
    return found


_TAGS = ("ETag", "etag", "mtime", "created", "updated", "LastModified", "last_modified", "modified", "modify")


class DriverFile(File):
    """A file of any store that has an fsspec driver."""

    costs_round_trip = True

    def __init__(self, url: str, settings: dict[str, Any]):
        self.name, self.address = redact.show(final_name(url)), url
        self._settings = settings
        self._system, self._path = connect(url, settings)
        self.size, self._tag = self._read_facts()
        self._checked_s = time.monotonic()

    def _read_facts(self) -> tuple[int, str | None]:
        """Return the present size and version tag of the file."""
        info = call_with_retries(lambda: self._system.info(self._path), self.address, self._settings)
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{self.name} is a folder, not a file. Name the files in it, as in {self.name}/*.")
        if info.get("size") is None:
            raise DamagedFile(f"{self.name}: its store does not say how large it is.")
        return int(info["size"]), next((str(info[key]) for key in _TAGS if info.get(key) is not None), None)

    def read(self, start: int, length: int) -> bytes:
        return self.read_many([start], [length])[0]

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        if not len(starts):
            return []
        lows, highs, which = merge_ranges(np.asarray(starts), np.asarray(lengths))
        parts = call_with_retries(
            lambda: self._system.cat_ranges([self._path] * len(lows), lows, highs, on_error="raise"),
            self.address,
            self._settings,
        )
        whole = all(len(part) == high - low for low, high, part in zip(lows, highs, parts))
        if not whole or time.monotonic() - self._checked_s > _CHECK_S:
            self.check_unchanged()
        for low, high, part in zip(lows, highs, parts):
            if len(part) != high - low:
                raise self.short_read_error(low, high - low, len(part))
        if len(parts) == len(starts):
            return [parts[number] for number in which]
        places = [start - lows[number] for start, number in zip(starts, which)]
        return [parts[number][place : place + length] for number, place, length in zip(which, places, lengths)]

    def check_unchanged(self) -> None:
        self._system.invalidate_cache()  # drivers cache what they have listed
        size, tag = self._read_facts()
        if (size, tag) != (self.size, self._tag):
            raise changed_error(self.name, self.version(), [self.version()[0], size, tag])
        self._checked_s = time.monotonic()

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        scatter(self.read(start, sum(map(len, buffers))), buffers)

    def version(self) -> list[Any]:
        return [redact.object_name(final_name(self.address)), self.size, self._tag]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text. obstore and some drivers add many lines about the connection."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
