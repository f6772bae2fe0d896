"""Files behind URLs: S3, GCS, Azure and HTTP through obstore, every other store through fsspec.

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
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel.base import checks
from bushel.base.errors import DamagedFile
from bushel.sources import cache
from bushel.sources.needs import package
from bushel.sources.stores import File, Options, is_url, local

T = TypeVar("T")

_WEB = ("http", "https")
_OBJECT_STORES = {"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", *_WEB}
_WHOLE = re.compile(r"\?|//|%2f", re.IGNORECASE)
"""What a web address has that the name of an object cannot say."""
_HEADLESS = re.compile(r"status code: (403|405|501)")
"""How web servers answer that tell nothing about a file without sending it; signed addresses are for GET alone."""
_OURS = ("timeout_s", "retries", "cache_dir", "cache_bytes")
_LONGEST_S = 1_000_000
_RETRIES = 8
_LONGEST_PAUSE_S = 10
_MERGE_BYTES = 64 * 1024
"""Ranges nearer than this are one request: a gap costs less than a round trip."""
_AT_A_TIME = 10
"""Requests that one call of obstore has in flight."""
_CALLS = 8
"""Calls at a time, for reads of more ranges than one call has in flight."""


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
        raise ValueError(f"cache_dir must be a local folder, got {folder!r}.")
    if limit is not None:
        checks.positive(limit, "cache_bytes")
        if folder is None:
            raise ValueError(f"cache_bytes={limit} needs a cache_dir to keep the copies in.")
    return settings


def _opened(url: str, settings: dict[str, Any]) -> File:
    scheme = url.partition("://")[0]
    return _Object(url, settings) if scheme in _OBJECT_STORES else _FsspecFile(url, settings)


def listed(prefix: str, options: Options | None, *, deep: bool) -> list[str]:
    """The URLs of objects whose names begin with a prefix; those in folders below its own only if `deep`."""
    settings = _checked(options)
    scheme = prefix.partition("://")[0]
    if scheme not in _OBJECT_STORES:
        return [url for url in _found(prefix, settings, deep=deep) if url.startswith(prefix)]
    if scheme in _WEB:
        raise ValueError(f"{prefix}*: a web server cannot list its files. Name each of them.")
    root, key = _split(prefix)
    folder = key.rpartition("/")[0] or None  # stores list whole folders
    store = _store(root, _frozen(settings))
    if deep:
        entries = _attempts(lambda: [entry for page in store.list(prefix=folder) for entry in page], prefix)
    else:
        entries = _attempts(lambda: store.list_with_delimiter(prefix=folder)["objects"], prefix)
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
    try:
        return json.dumps({key: value for key, value in settings.items() if not key.startswith("cache_")})
    except TypeError:
        raise TypeError(f"Options of a store are plain values (str, int, float, bool), got {settings!r}.") from None


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
            f"{name}: this process was forked from one that had read from an object store, whose connections do not "
            "survive that. Use `mp_prefetch`, whose workers start clean, or the start method 'spawn'."
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
    if root.startswith(_WEB):
        if settings:
            raise ValueError(f"{root}: a web server takes no options of its own, got {', '.join(settings)}.")
        return obstore.HTTPStore.from_url(root, client_options=client, retry_config=retry)
    try:
        return obstore.from_url(root, client_options=client, retry_config=retry, **settings)
    except Exception as error:
        raise ValueError(f"{root} cannot be opened with these options: {_first_line(error)}") from None


@functools.cache
def _threads() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(_CALLS, "bushel-ranges")


_TRIES = 3


def _attempts(request: Callable[[], T], name: str) -> T:
    """What a request gives. A body that broke off is asked for again, a few times."""
    for attempt in range(_TRIES):
        answer, failure = _interruptible(request)
        try:
            if failure is None:
                return answer
            raise failure
        except FileNotFoundError:
            raise FileNotFoundError(f"{name} does not exist.") from None
        except Exception as error:
            if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
                raise PermissionError(f"{name} may not be read: {_first_line(error)}") from None
            if "empty path segment" in str(error):
                raise ValueError(
                    f"{name}: {_first_line(error)}. Objects with an empty part (//) in their names cannot be read or "
                    "listed: rename them, or name a folder without any."
                ) from None
            if attempt + 1 == _TRIES or "decoding response body" not in str(error):
                raise OSError(f"{name} could not be read: {_first_line(error)}") from error
    raise AssertionError("unreachable")


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


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


class _Object(File):
    """An object of a store that obstore knows."""

    together = True

    def __init__(self, url: str, settings: dict[str, Any]):
        self.name = url
        root, self._key = _split(url)
        if not self._key.strip("/") and not url.startswith(_WEB):
            raise IsADirectoryError(f"{url} is a bucket, not a file. Name the files in it, for example {root}/*.")
        self._store = _store(root, _frozen(settings))
        meta = _attempts(self._head, url)
        self.size = meta["size"]
        modified = meta.get("last_modified")  # obstore's word for none is 1970
        self._tag = meta.get("e_tag") or (modified.isoformat() if modified and modified.timestamp() else None)

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

    def _parts(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Any]:
        if not len(starts):
            return []
        asked = [(start, length) for start, length in zip(starts, lengths) if length]
        for start, length in asked:
            if start + length > self.size:
                raise self.short(start, length, max(0, self.size - start))
        parts = iter(self._fetched(asked))
        found = [next(parts) if length else b"" for length in lengths]
        for start, length, part in zip(starts, lengths, found):
            if len(part) != length:
                raise self.short(start, length, len(part))
        return found

    def _fetched(self, asked: list[tuple[int, int]]) -> list[Any]:
        """Ranges with something in them. Those of one call are merged by obstore, which asks for ten at a time."""
        if not asked:
            return []
        _refuse_after_fork(self.name)
        starts, lengths = [start for start, _ in asked], [length for _, length in asked]
        lows, _, which = _merged(np.asarray(starts), np.asarray(lengths))
        if len(lows) <= _AT_A_TIME:
            return self._get(starts, lengths)
        found: list[Any] = [None] * len(asked)
        numbers = np.asarray(which) // _AT_A_TIME
        rows = [np.flatnonzero(numbers == number).tolist() for number in range(int(numbers.max()) + 1)]
        parts = _threads().map(
            lambda chosen: self._get([starts[n] for n in chosen], [lengths[n] for n in chosen]), rows
        )
        for chosen, got in zip(rows, parts):
            for number, part in zip(chosen, got):
                found[number] = part
        return found

    def _get(self, starts: list[int], lengths: list[int]) -> list[Any]:
        return _attempts(
            lambda: self._store.get_ranges(self._key, starts=starts, lengths=lengths, coalesce=_MERGE_BYTES), self.name
        )

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        _scatter(self._parts([start], [sum(map(len, buffers))])[0], buffers)

    def version(self) -> list[Any]:
        name = self._key or urllib.parse.unquote(urllib.parse.urlsplit(self.name).path)  # a query may change
        return [name.rpartition("/")[2], self.size, self._tag]


def _fsspec(url: str, settings: dict[str, Any]) -> tuple[Any, str]:
    """The fsspec driver of a URL, and what it calls the file."""
    core = package("fsspec.core", "fsspec", f"URLs such as {url}")
    scheme = url.partition("://")[0]

    def connected() -> tuple[Any, str]:
        try:
            return core.url_to_fs(url, **_drivers(settings))
        except (ValueError, ImportError) as error:
            raise ValueError(f"{url}: no store is known for {scheme}:// ({error}).") from None

    system, path = _repeated(connected, url, settings)
    system.invalidate_cache()  # drivers remember listings, and would not see what was written since
    return system, path


def _drivers(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are meant for the fsspec driver."""
    return {key: value for key, value in settings.items() if key not in _OURS}


def _repeated(call: Callable[[], T], name: str, settings: dict[str, Any]) -> T:
    """What a driver gives. It is asked again, with pauses that grow, as long as its store fails."""
    pause_s, retries = 0.1, settings.get("retries", _RETRIES)
    for attempt in range(retries + 1):
        try:
            return call()
        except FileNotFoundError:
            raise FileNotFoundError(f"{name} does not exist.") from None
        except PermissionError as error:
            raise PermissionError(f"{name} may not be read: {_first_line(error)}") from error
        except (IsADirectoryError, NotADirectoryError) as error:
            raise type(error)(f"{name} is no file: {_first_line(error)}") from error
        except OSError as error:
            if attempt == retries:
                raise OSError(f"{name} could not be read: {_first_line(error)}") from error
        except (ValueError, ImportError):
            raise
        except Exception as error:  # a driver's own, or a mistake in it: it would fail again
            raise OSError(f"{name} could not be read: {type(error).__name__}: {_first_line(error)}") from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("unreachable")


def _found(prefix: str, settings: dict[str, Any], *, deep: bool) -> list[str]:
    """The URLs of files in the folder of a prefix."""
    folder = prefix[: prefix.rfind("/") + 1]
    system, path = _fsspec(folder, settings)
    if deep and _has_find(system):
        names = _repeated(lambda: system.find(path), folder, settings)
    else:
        names = _walked(system, path, folder, settings, deep=deep)
    inside = f"{path.rstrip('/')}/" if path else ""
    return [folder + name.removeprefix(inside) for name in names if name.startswith(inside)]


def _has_find(system: Any) -> bool:
    """Whether a driver finds files in its own way. fsspec's leaves out, without a word, what it fails to list."""
    spec, asyn = (package(f"fsspec.{name}", "fsspec", "Files in stores") for name in ("spec", "asyn"))
    general = (None, spec.AbstractFileSystem.find, asyn.AsyncFileSystem._find)
    return any(getattr(type(system), name, None) not in general for name in ("find", "_find"))


def _walked(system: Any, path: str, url: str, settings: dict[str, Any], *, deep: bool) -> list[str]:
    folders, found = [path], []
    while folders:
        folder = folders.pop()
        try:
            entries = _repeated(functools.partial(system.ls, folder, detail=True), f"{url}: {folder}", settings)
        except FileNotFoundError:  # there is none, or not any more
            continue
        for entry in entries:
            name = entry["name"].rstrip("/")
            if entry["type"] != "directory":
                found.append(name)
            elif deep and name != folder:
                folders.append(name)
    return found


_TAGS = ("ETag", "etag", "mtime", "created", "updated", "LastModified", "last_modified", "modified", "modify")


class _FsspecFile(File):
    """A file of any store that has an fsspec driver."""

    together = True

    def __init__(self, url: str, settings: dict[str, Any]):
        self.name = url
        self._settings = settings
        self._system, self._path = _fsspec(url, settings)
        info = _repeated(lambda: self._system.info(self._path), url, settings)
        if info.get("type") == "directory":
            raise IsADirectoryError(f"{url} is a folder, not a file. Name the files in it, for example {url}/*.")
        if info.get("size") is None:
            raise DamagedFile(f"{url}: its store does not tell how large it is.")
        self.size = int(info["size"])
        self._tag = next((str(info[key]) for key in _TAGS if info.get(key) is not None), None)

    def read(self, start: int, length: int) -> bytes:
        return self.read_many([start], [length])[0]

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        if not len(starts):
            return []
        lows, highs, which = _merged(np.asarray(starts), np.asarray(lengths))
        parts = _repeated(
            lambda: self._system.cat_ranges([self._path] * len(lows), lows, highs, on_error="raise"),
            self.name,
            self._settings,
        )
        for low, high, part in zip(lows, highs, parts):
            if len(part) != high - low:
                raise self.short(low, high - low, len(part))
        if len(parts) == len(starts):
            return [parts[number] for number in which]
        places = [start - lows[number] for start, number in zip(starts, which)]
        return [parts[number][place : place + length] for number, place, length in zip(which, places, lengths)]

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        _scatter(self.read(start, sum(map(len, buffers))), buffers)

    def version(self) -> list[Any]:
        return [self._path.rpartition("/")[2], self.size, self._tag]


def _merged(starts: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """Ranges that hold the given ones, near ones merged: begins, ends, and which of them each of the given is in."""
    order = np.argsort(starts, kind="stable")
    begins = starts[order]
    ends = np.maximum.accumulate(begins + lengths[order])
    apart = np.flatnonzero(begins[1:] > ends[:-1] + _MERGE_BYTES) + 1
    which = np.empty(len(order), np.int64)
    which[order] = apart.searchsorted(np.arange(len(order)), "right")
    return begins[np.append(0, apart)].tolist(), ends[np.append(apart, len(order)) - 1].tolist(), which.tolist()


def _scatter(data: Any, buffers: Sequence[Any]) -> None:
    view = memoryview(data)
    for buffer, part in zip(buffers, _pieces(view, buffers)):
        memoryview(buffer).cast("B")[:] = part


def _pieces(view: memoryview, buffers: Sequence[Any]) -> Iterator[memoryview]:
    low = 0
    for buffer in buffers:
        yield view[low : low + len(buffer)]
        low += len(buffer)


def zarr_store(url: str, options: Options | None) -> Any:
    """Everything below a URL as a store of the `zarr` package."""
    storage = package("zarr", "zarr", "Zarr stores").storage
    settings = _checked(options)
    if url.partition("://")[0] in _OBJECT_STORES:
        return storage.ObjectStore(_store(url.rstrip("/"), _frozen(settings)), read_only=True)
    _fsspec(url, settings)  # for the words where there is no driver
    return storage.FsspecStore.from_url(url, storage_options=_drivers(settings), read_only=True)
