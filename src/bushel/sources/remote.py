"""Files behind URLs: S3, GCS, Azure and HTTP through obstore; every other store through `drivers.py`.

Many ranges are asked for at once, near ones merged into one request. obstore repeats failed requests with
growing pauses; what it does not repeat, a body that ends early, is repeated here.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import json
import os
import queue
import re
import threading
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel.base import checks, redact
from bushel.sources import cache, drivers
from bushel.sources.drivers import DriverFile, first_line, missing
from bushel.sources.local_files import File, changed
from bushel.sources.needs import package
from bushel.sources.paths import Options, is_url, local
from bushel.sources.ranges import merged, scatter

T = TypeVar("T")

_WEB = ("http", "https")
_OBJECT_STORES = {"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", *_WEB}
_WHOLE = re.compile(r"\?|//|%2f", re.IGNORECASE)
"""What a web address has that the name of an object cannot say."""
_HEADLESS = re.compile(r"status code: (403|405|501)")
"""How web servers answer that tell nothing about a file without sending it; signed addresses are for GET alone."""
_LONGEST_S = 1_000_000
_RETRIES = 8
_LONGEST_PAUSE_S = 10
_REQUESTS = 128
"""Requests in flight, for all reads together. Each waits in a thread, as obstore has no way to ask for many ranges and
tell which version of an object they came from."""


def open_url(url: str, options: Options | None) -> File:
    """An object, read from its store, or from a copy on disk where the options name a `cache_dir`."""
    settings = _checked(options)
    file = _opened(url, settings)
    folder = settings.get("cache_dir")
    return file if folder is None else cache.kept(file, local(folder), settings.get("cache_bytes"))


def _checked(options: Options | None) -> dict[str, Any]:
    """Options, those that are ours with good values."""
    settings = dict(options or {})
    checks.not_negative(settings.get("retries", 0), "retries")
    timeout, folder, limit = (settings.get(name) for name in ("timeout_s", "cache_dir", "cache_bytes"))
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise TypeError(f"timeout_s must be a number of seconds, got {timeout!r} of type {type(timeout).__name__}.")
    if timeout is not None and not 0 < timeout < _LONGEST_S:
        raise ValueError(f"timeout_s must be a number of seconds between 0 and {_LONGEST_S:,}, got {timeout}.")
    if folder is not None and (not isinstance(folder, (str, os.PathLike)) or is_url(folder)):
        raise ValueError(f"cache_dir must be a local folder, got {redact.clean(repr(folder))}.")
    if limit is not None:
        checks.positive(limit, "cache_bytes")
        if folder is None:
            raise ValueError(f"cache_bytes={limit} needs a cache_dir to keep the copies in.")
    return settings


def connect(url: str, options: Options | None) -> tuple[Any, str, dict[str, Any]] | None:
    """obstore's store of a URL, the name of the object in it, and the checked options; None for a store of fsspec."""
    settings = _checked(options)
    if url.partition("://")[0] not in _OBJECT_STORES:
        return None
    root, key = _split(url)
    return _store(root, _frozen(settings)), key, settings


def _opened(url: str, settings: dict[str, Any]) -> File:
    scheme = url.partition("://")[0]
    return _Object(url, settings) if scheme in _OBJECT_STORES else DriverFile(url, settings)


def listed(prefix: str, options: Options | None, *, deep: bool) -> list[str]:
    """The URLs of objects whose names begin with a prefix; those in folders below its own only if `deep`."""
    settings = _checked(options)
    scheme = prefix.partition("://")[0]
    if scheme not in _OBJECT_STORES:
        return [url for url in drivers.listed(prefix, settings, deep=deep) if url.startswith(prefix)]
    if scheme in _WEB:
        raise ValueError(f"{redact.show(prefix)}*: a web server cannot list its files. Name each of them.")
    root, key = _split(prefix)
    folder = key.rpartition("/")[0] or None  # stores list whole folders
    store = _store(root, _frozen(settings))
    if deep:
        entries = attempt(lambda: [entry for page in store.list(prefix=folder) for entry in page], prefix, settings)
    else:
        entries = attempt(lambda: store.list_with_delimiter(prefix=folder)["objects"], prefix, settings)
    return [f"{root}/{entry['path']}" for entry in entries]


def _split(url: str) -> tuple[str, str]:
    """A URL as its store and the name of an object in it.

    Names of objects may hold any sign. Of web addresses the path is decoded, as stores encode it again; where that
    would not give it back, or a query follows, the address itself is the store, and the name empty.
    """
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if scheme in _WEB:
        key = key.partition("#")[0]
        if _WHOLE.search(key):
            return f"{scheme}://{host}/{key}", ""
        key = urllib.parse.unquote(key)
    return f"{scheme}://{host}", key


def _frozen(settings: dict[str, Any]) -> str:
    """Options as text, so that one store serves all files with the same ones."""
    kept = {key: value for key, value in settings.items() if not str(key).startswith("cache_")}
    odd = [f"{key!r} ({type(value).__name__})" for key, value in kept.items() if not _plain(value)]
    if odd:
        raise TypeError(
            f"Options of a store are plain values (str, int, float, bool, and lists and dicts of them); "
            f"these are not: {redact.clean(', '.join(odd))}."
        )
    return json.dumps(kept)


def _plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_process: int | None = None
"""The process that has used obstore: its threads do not survive a fork, and a child would wait for them forever."""


def _store(root: str, frozen: str) -> Any:
    _refuse_after_fork(root)
    settings = tuple(
        sorted(entry for entry in os.environ.items() if entry[0].startswith(("AWS_", "GOOGLE_", "AZURE_")))
    )
    return _store_of(root, frozen, settings)


def _refuse_after_fork(name: str) -> None:
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise RuntimeError(
            f"{redact.show(name)}: this process was forked from one that had read from an object store, whose "
            "connections do not survive that. Use `mp_prefetch`, whose workers start clean, or the start method "
            "'spawn'."
        )


@functools.lru_cache(maxsize=64)
def _store_of(root: str, frozen: str, environment: tuple[tuple[str, str], ...]) -> Any:
    del environment  # read by the store itself; another one makes another store
    obstore = package("obstore.store", "cloud", "Files in object stores")
    settings = json.loads(frozen)
    timeout = datetime.timedelta(seconds=settings.pop("timeout_s", 30))
    retry = {
        "max_retries": settings.pop("retries", _RETRIES),
        "retry_timeout": datetime.timedelta(seconds=180),
        "backoff": {
            "init_backoff": datetime.timedelta(milliseconds=100),
            "max_backoff": datetime.timedelta(seconds=_LONGEST_PAUSE_S),
        },
    }
    connect = min(timeout, datetime.timedelta(seconds=10))
    # Whoever names an endpoint with http:// means it; without one, all addresses are https.
    client = {"timeout": timeout, "connect_timeout": connect, "allow_http": True}
    web = root.startswith(_WEB)
    if web and settings:
        raise ValueError(f"{redact.show(root)}: a web server takes no options of its own, got {', '.join(settings)}.")
    make = obstore.HTTPStore.from_url if web else obstore.from_url
    try:
        return redact.call_guarded(
            lambda: make(root, client_options=client, retry_config=retry, **settings), root, settings
        )
    except Exception as error:
        why = first_line(error)
        raise ValueError(f"{redact.show(root)} cannot be opened with these options: {why}") from None


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(_REQUESTS, "bushel-ranges")


_TRIES = 3


def attempt(request: Callable[[], T], url: str, settings: dict[str, Any], deed: str = "read") -> T:
    """What a request gives. A body that broke off is asked for again, a few times.

    `deed` is what errors say that could not be done to the object: "read" or "written".
    """
    for attempt in range(_TRIES):
        answer, failure = _interruptible(request)
        if failure is None:
            return answer
        if attempt + 1 == _TRIES or "decoding response body" not in str(failure):
            raise _explained(failure, redact.show(url), redact.secrets_of(url, settings), deed)
    raise AssertionError("unreachable")


def _explained(failure: BaseException, name: str, secrets: list[str], deed: str) -> BaseException:
    """The error to raise for one of obstore, without the secrets that its text may hold."""
    if not isinstance(failure, Exception):
        return failure
    if isinstance(failure, FileNotFoundError) or "<Code>NoSuchBucket</Code>" in str(failure):
        return missing(name, deed)
    cause = redact.scrub(failure, secrets)
    why = first_line(cause)
    if type(failure).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return PermissionError(f"{name} may not be {deed}: {why}")
    if "empty path segment" in why:
        return ValueError(
            f"{name}: {why}. Objects with an empty part (//) in their names cannot be read or listed: rename them, or "
            "name a folder without any."
        )
    error = OSError(f"{name} could not be {deed}: {why}")
    error.__cause__ = cause
    return error


class _Requests:
    """A thread that makes one request after the other for somebody who waits. Queues alone: a Future costs twice."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.process = os.getpid()
        threading.Thread(target=self._run, name="bushel-requests", daemon=True).start()

    def ask(self, request: Callable[[], T]) -> tuple[T, BaseException | None]:
        """What a request gives, or its error. Raises only what a signal raises, and must not be asked again then."""
        self._asked.put(request)
        return self._answers.get()

    def end(self) -> None:
        """After the request under way, if there is one."""
        self._asked.put(None)

    def _run(self) -> None:
        while (request := self._asked.get()) is not None:
            self._answers.put(_answer(request))
            del request


_idle: _Requests | None = None


def _interruptible(request: Callable[[], T]) -> tuple[T, BaseException | None]:
    """What a request gives, or its error; raises what a signal raises.

    Signals are heard in the main thread, but not inside of obstore: there another thread makes the request.
    """
    global _idle
    if threading.current_thread() is not threading.main_thread():
        return _answer(request)
    # Taken, so that nobody meets a thread whose answer is still to come: the handler of a signal may come by here.
    requests, _idle = _idle, None
    if requests is None or requests.process != os.getpid():
        requests = _Requests()
    try:
        found = requests.ask(request)
    except BaseException:  # the request may be under way for long
        requests.end()
        raise
    if _idle is None:
        _idle = requests
    else:
        requests.end()
    return found


def _answer(request: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return request(), None
    except BaseException as error:
        return None, error


class _Object(File):
    """An object of a store that obstore knows. An answer about another version of it than the first is an error."""

    together = True

    def __init__(self, url: str, settings: dict[str, Any]):
        self.name, self.address = redact.show(url), url
        self._settings = settings
        root, self._key = _split(url)
        if not self._key.strip("/") and not url.startswith(_WEB):
            example = f"{redact.show(root)}/*"
            raise IsADirectoryError(
                f"{self.name} is a bucket, not a file. Name the files in it, for example {example}."
            )
        self._store = _store(root, _frozen(settings))
        meta = attempt(self._head, url, settings)
        self.size, self._tags = meta["size"], _tags(meta)

    def _head(self) -> Any:
        try:
            return self._store.head(self._key)
        except Exception as error:
            if not self.name.startswith(_WEB) or not _HEADLESS.search(str(error)):
                raise
            return self._store.get(self._key, options={"range": (0, 1)}).meta

    def read(self, start: int, length: int) -> bytes:
        return self.read_many([start], [length])[0]

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return [bytes(part) for part in self._parts(starts, lengths)]

    def _parts(self, starts: Sequence[int], lengths: Sequence[int]) -> list[memoryview]:
        if not len(starts):
            return []
        for start, length in zip(starts, lengths):
            if length and start + length > self.size:
                raise self.short(start, length, max(0, self.size - start))
        _refuse_after_fork(self.name)
        lows, highs, which = merged(np.asarray(starts), np.asarray(lengths))
        several = _threads().map if len(lows) > 1 else map
        parts = list(several(self._get, lows, highs))
        places = [start - lows[number] for start, number in zip(starts, which)]
        return [parts[number][place : place + length] for number, place, length in zip(which, places, lengths)]

    def _get(self, low: int, high: int) -> memoryview:
        """The bytes of one range, of the version that was opened."""
        if low == high:
            return memoryview(b"")

        def answer() -> tuple[Any, Any]:
            result = self._store.get(self._key, options={"range": (low, high)})
            return result.meta, result.bytes()

        try:
            meta, data = attempt(answer, self.address, self._settings)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:  # perhaps because another object lies there, which has no such range
            now, failure = _interruptible(self._head)
            if failure is None:
                self._compare(now, error)
            raise
        self._compare(meta)
        if len(data) != high - low:
            raise self.short(low, high - low, len(data))
        return memoryview(data)

    def _compare(self, meta: Any, cause: Exception | None = None) -> None:
        """Refuses an object that was replaced: with another ETag, or, where there is none, another size or time."""
        size, tags = meta["size"], _tags(meta)
        differ = next((tags[kind] != tag for kind, tag in self._tags.items() if kind in tags), False)
        if differ or size != self.size:
            was, now = self.version(), [self.version()[0], size, next(iter(tags.values()), None)]
            raise changed(self.name, was, now) from cause

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        scatter(self._parts([start], [sum(map(len, buffers))])[0], buffers)

    def check_unchanged(self) -> None:
        pass  # every answer is compared

    def version(self) -> list[Any]:
        return [redact.object_name(self.address), self.size, next(iter(self._tags.values()), None)]


def _tags(meta: Any) -> dict[str, str]:
    """What a store says of an object that changes with its content, the best first."""
    modified = meta.get("last_modified")  # obstore's word for none is 1970
    tags = {"etag": meta.get("e_tag"), "time": modified.isoformat() if modified and modified.timestamp() else None}
    return {kind: tag for kind, tag in tags.items() if tag}


def zarr_store(url: str, options: Options | None) -> Any:
    """Everything below a URL as a store of the `zarr` package."""
    storage = package("zarr", "zarr", "Zarr stores").storage
    settings = _checked(options)
    if url.partition("://")[0] in _OBJECT_STORES:
        return storage.ObjectStore(_store(url.rstrip("/"), _frozen(settings)), read_only=True)
    drivers.connect(url, settings)  # for the words where there is no driver
    options = drivers.for_driver(settings)
    return redact.call_guarded(
        lambda: storage.FsspecStore.from_url(url, storage_options=options, read_only=True), url, settings
    )
