"""Files behind URLs: S3, GCS, Azure and HTTP through obstore; every other store through `fsspec_files.py`.

Many ranges are requested at once, and ranges near each other become one request. obstore repeats failed requests with
growing pauses. It does not repeat all of them, so this module does. obstore's errors are texts: a first line with the
request and the answer, then the details of the connection. The first part of this module says which of them are worth
repeating, and what to tell the user.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import queue
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.background import start_thread
from bushel._src.base.late_imports import import_package
from bushel._src.sources import fsspec_files, remote_requests
from bushel._src.sources.fsspec_files import DriverFile, first_line, missing_file_error
from bushel._src.sources.local_files import File, changed_error
from bushel._src.sources.paths import Options, expand_path, is_url
from bushel._src.sources.remote_requests import get_threads, merge_ranges, scatter
from bushel._src.sources.shard_journals import final_name

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SAYS = re.compile(r"<Message>([^<]{1,200})</Message>")
_REPEATED = re.compile(r", after (\d+) retries")
_BROKEN = re.compile(r"HTTP error|error sending request|decoding response body|response body error")
_LOST_UPLOAD = re.compile(r"uploadId=|<Code>NoSuchUpload</Code>")

_RETRY_LATER = "Bushel has repeated the request. Try again later, or raise `retries` in the options of the store."
_STATUSES = {
    400: (
        "the store does not accept the request",
        "Check the address, the region and the other options of the store.",
    ),
    404: ("the object is not there any more", "Make the source again."),
    405: ("the store does not allow this request", "Check that the address is that of an object store."),
    408: ("the store has waited too long for the request", _RETRY_LATER),
    409: (
        "another process changes the same object",
        "Let only one process write to an address, and run this again.",
    ),
    411: (
        "the store does not accept this kind of upload",
        "Check that the address is that of an object store.",
    ),
    412: ("the object has changed meanwhile", "Let only one process write to an address, and run this again."),
    413: ("the store does not accept files of this size", "Write smaller files (more shards)."),
    416: ("the object is shorter than it was when it was opened", "Make the source again."),
    429: ("the store gets too many requests", f"{_RETRY_LATER} Use fewer workers."),
    501: ("the store does not know this request", "Check that the address is that of an object store."),
    503: ("the store is overloaded", f"{_RETRY_LATER} Use fewer workers."),
    507: ("the store has no room", "Remove objects, or ask for a larger quota."),
}
"""The cause by the status of the answer, to which the store's own words are added, and the way out."""
_CONNECTIONS = (
    (r"dns error", "the name of the server cannot be found. Check the address, the region and the network."),
    (r"ConnectionRefused", "no server answers at this address. Check the endpoint and the network."),
    (
        r"certificate|InvalidContentType|InvalidMessage|UnknownIssuer|AlertReceived|\bTls\b",
        "the encrypted connection (TLS) cannot be made. Check that the endpoint speaks https, and its certificate.",
    ),
    (
        r"kind: Timeout|TimedOut",
        "the server did not answer in time. Raise `timeout_s` or `retries` in the options of the store.",
    ),
    (r"IncompleteBody|UnexpectedEof|body error|response body", f"the answer ended early. {_RETRY_LATER}"),
    (r"ConnectionReset|BrokenPipe|Interrupted", f"the server broke the connection. {_RETRY_LATER}"),
)


def is_panic(failure: BaseException) -> bool:
    """Return whether obstore, which is written in Rust, has panicked.

    Python has no class for that which could be imported.
    """
    return type(failure).__name__ == "PanicException"


def is_worth_repeating(failure: BaseException) -> bool:
    """Return whether a connection broke and obstore did not repeat the request, because it may have been done.

    Every request that Bushel makes can be done twice. So it is repeated, an upload as a whole.
    """
    text = str(failure)
    return is_unclear_upload(failure) or (bool(_BROKEN.search(first_line(failure))) and not _REPEATED.search(text))


def is_unclear_upload(failure: BaseException) -> bool:
    """Return whether an upload in parts ended unclear: its end was requested, and the store does not know the upload
    now.

    The answer to the first request was lost then, and obstore's second request, or its clean-up, fails.
    """
    return isinstance(failure, FileNotFoundError) and bool(_LOST_UPLOAD.search(str(failure)))


def explain_failure(failure: BaseException, name: str, secrets: list[str], deed: str) -> BaseException:
    """Return the error to raise in place of an error of obstore, without the secrets that its text may contain.

    `deed` is the verb of the message: "read", "listed", "written" or "removed".
    """
    if is_panic(failure):
        return OSError(
            f"{name} could not be {deed}: obstore has failed ({first_line(redact.scrub(failure, secrets))}). Check the "
            "options of the store, or install another version of obstore."
        )
    if not isinstance(failure, Exception):
        return failure
    cause = redact.scrub(failure, secrets)
    text = str(cause)
    code = _CODE.search(text)
    if code and code[1] == "NoSuchBucket":
        return missing_file_error(name, deed, "the bucket does not exist")
    if is_unclear_upload(failure):
        error = OSError(
            f"{name} could not be written: the store has received all parts, but no answer says that it has put them "
            "together. Write it again; raise `timeout_s` in the options of the store if this happens again."
        )
    elif isinstance(failure, FileNotFoundError) or _find_status(text) == 404:
        return missing_file_error(name, deed)
    elif type(failure).__name__ == "UnauthenticatedError" or _find_status(text) == 401:
        return PermissionError(
            f"{name} may not be {deed}: the store does not accept the credentials{_cite(text)}. Check the key or token "
            "in the environment or in the options of the store: it may be missing, wrong or expired."
        )
    elif type(failure).__name__ == "PermissionDeniedError" or _find_status(text) == 403:
        return PermissionError(
            f"{name} may not be {deed}: the store refuses it{_cite(text)}. Use credentials that are allowed to, or ask "
            "the owner of the store."
        )
    elif "empty path segment" in first_line(cause):
        return ValueError(
            f"{name}: {first_line(cause)}. Objects with an empty part (//) in their names can be neither read nor "
            "listed. Rename them, or name a folder without such objects."
        )
    else:
        error = OSError(f"{name} could not be {deed}: {_explain(text)}")
    error.__cause__ = cause
    return error


def _find_status(text: str) -> int | None:
    status = _STATUS.search(text)
    return int(status[1]) if status else None


def _explain(text: str) -> str:
    """Return the cause, as a clause that begins with a small letter, and after its full stop the way out."""
    status = _find_status(text)
    if status in _STATUSES:
        cause, way_out = _STATUSES[status]
        return f"{cause}{_cite(text)}. {way_out}"
    if (status is not None and status >= 500) or "<Code>InternalError</Code>" in text:
        return f"the store failed{_cite(text)}. {_RETRY_LATER}"
    if "incorrectly configured region" in text:
        return "the store sends the request elsewhere. Check the region and the endpoint in the options of the store."
    if status is None:
        for pattern, sentence in _CONNECTIONS:
            if re.search(pattern, text):
                return sentence
    return f"{first_line(Exception(text)).rstrip('.')}."


def _cite(text: str) -> str:
    """Return the status of the answer and the store's own words, in brackets; empty if there are none."""
    code, says = _CODE.search(text), _SAYS.search(text)
    parts = [str(_find_status(text) or ""), code[1] if code else ""]
    head = " ".join(part for part in parts if part)
    words = f"{head}: {says[1].strip().rstrip('.')}" if says else head
    return f" ({words})" if words else ""


T = TypeVar("T")

_WEB = ("http", "https")
_OBJECT_STORES = {"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", *_WEB}
_WHOLE = re.compile(r"\?|//|%2f", re.IGNORECASE)
"""Parts of a web address that obstore could not restore from the name of an object."""
_HEADLESS = re.compile(r"status code: (403|405|501)")
"""Answers of web servers that do not allow HEAD requests. A signed address, for example, allows only GET."""
_LONGEST_S = 1_000_000
_RETRIES = 8
_LONGEST_PAUSE_S = 10
_REQUESTS = 128
"""The most requests in flight, for all reads together. Each one waits in a thread: obstore's own function for many
ranges does not return the version of the object that they came from."""


def open_url(url: str, options: Options | None) -> File:
    """Open an object. It is read from its store, or from a copy on disk if the options name a `cache_dir`."""
    settings = _check_options(options)
    file = _open_object(url, settings)
    folder = settings.get("cache_dir")
    return file if folder is None else remote_requests.open_copy(file, expand_path(folder), settings.get("cache_bytes"))


def _check_options(options: Options | None) -> dict[str, Any]:
    """Return the options as a dict. Raise an error if one of our own options has a wrong value."""
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
    """obstore's store of a URL, the object's name in it, and the checked options; None if fsspec serves this URL."""
    settings = _check_options(options)
    if url.partition("://")[0] not in _OBJECT_STORES:
        return None
    root, key = _split_url(url)
    return _get_store(root, _freeze_options(settings)), key, settings


def _open_object(url: str, settings: dict[str, Any]) -> File:
    scheme = url.partition("://")[0]
    return _Object(url, settings) if scheme in _OBJECT_STORES else DriverFile(url, settings)


def list_urls(prefix: str, options: Options | None, *, deep: bool) -> list[str]:
    """Return the URLs of objects whose names begin with a prefix.

    Objects in deeper folders are listed only if `deep`.
    """
    settings = _check_options(options)
    scheme = prefix.partition("://")[0]
    if scheme not in _OBJECT_STORES:
        return [url for url in fsspec_files.list_files(prefix, settings, deep=deep) if url.startswith(prefix)]
    if scheme in _WEB:
        raise ValueError(f"{redact.show(prefix)}*: a web server cannot list its files. Name each file.")
    root, key = _split_url(prefix)
    folder = key.rpartition("/")[0] or None  # stores can only list whole folders
    store = _get_store(root, _freeze_options(settings))
    if deep:
        entries = request_with_retries(
            lambda: [entry for page in store.list(prefix=folder) for entry in page], prefix, settings, "listed"
        )
        # A program that made a folder has left an empty object "folder/". obstore lists it without its slash.
        entries = [one for one in entries if one["size"] or not _is_folder_marker(store, root, one["path"], settings)]
    else:
        entries = request_with_retries(
            lambda: store.list_with_delimiter(prefix=folder)["objects"], prefix, settings, "listed"
        )
    return [f"{root}/{entry['path']}" for entry in entries]


def _is_folder_marker(store: Any, root: str, path: str, settings: dict[str, Any]) -> bool:
    """Return whether an empty object of a listing stands for a folder: an object of the listed name does not exist."""
    if path.endswith("_$folder$"):  # as Hadoop names them
        return True
    try:
        request_with_retries(lambda: store.head(path), f"{root}/{path}", settings)
    except FileNotFoundError:
        return True
    return False


def _split_url(url: str) -> tuple[str, str]:
    """Split a URL into its store and the name of an object in the store.

    The name of an object may contain any character. The path of a web address is decoded, because obstore encodes it
    again. If that would not restore the path, or if a query follows, the whole address is the store, and the name is
    empty.
    """
    scheme, _, rest = url.partition("://")
    host, _, key = rest.partition("/")
    if scheme in _WEB:
        key = key.partition("#")[0]
        if _WHOLE.search(key):
            return f"{scheme}://{host}/{key}", ""
        key = urllib.parse.unquote(key)
    return f"{scheme}://{host}", key


def _freeze_options(settings: dict[str, Any]) -> str:
    """Return the options as text, a key of the cache of stores: files with the same options share one store."""
    kept = {key: value for key, value in settings.items() if not str(key).startswith("cache_")}
    odd = [f"{key!r} ({type(value).__name__})" for key, value in kept.items() if not _is_plain(value)]
    if odd:
        raise TypeError(
            f"Options of a store are plain values (str, int, float, bool, and lists and dicts of them); "
            f"these are not: {redact.clean(', '.join(odd))}."
        )
    return json.dumps(kept)


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_process: int | None = None
"""The process that has used obstore. Its threads do not survive a fork: a forked child would wait for them forever."""


def _get_store(root: str, frozen: str) -> Any:
    _refuse_after_fork(root)
    settings = tuple(
        sorted(entry for entry in os.environ.items() if entry[0].startswith(("AWS_", "GOOGLE_", "AZURE_")))
    )
    return _make_store(root, frozen, settings)


def _refuse_after_fork(name: str) -> None:
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise RuntimeError(
            f"{redact.show(name)} cannot be read: this process was forked from one that has used an object store, and "
            "connections do not survive a fork. Use `mp_prefetch`, whose workers start in a clean process, or the "
            "start method 'spawn'."
        )


_CLIENT_OPTIONS = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers"),
    *("http1_only", "http2_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_max_frame_size"),
    *("http2_keep_alive_while_idle", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate"),
    *("proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout", "timeout", "user_agent"),
}
"""Options of the connection and not of the store. obstore panics if it gets one of them as an option of the store."""
_PREFIX = re.compile(r"^(aws|google|azure)_")


def _take_client_options(settings: dict[str, Any], shown: str) -> dict[str, Any]:
    """Take the options of the connection out of `settings`, and return them as obstore wants them."""
    found = settings.pop("client_options", {})
    if not isinstance(found, dict):
        raise ValueError(
            f"{shown} cannot be opened with these options: client_options must be a dict, got {type(found).__name__}."
        )
    found = dict(found)
    for key in list(settings):
        name = _PREFIX.sub("", key.lower())
        if name in _CLIENT_OPTIONS:
            found[name] = settings.pop(key)
    for name, value in found.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = f"{value}s" if name.endswith(("timeout", "interval")) else str(value)
    return found


@functools.lru_cache(maxsize=64)
def _make_store(root: str, frozen: str, environment: tuple[tuple[str, str], ...]) -> Any:
    del environment  # the store reads it; as an argument, it makes a new store when the environment changes
    obstore = import_package("obstore.store", "cloud", "Files in object stores")
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
    # http:// is used only if the user names an endpoint with it; the addresses of the stores themselves are https.
    client: dict[str, Any] = {"timeout": timeout, "connect_timeout": connect, "allow_http": True}
    if "retry_config" in settings:
        raise ValueError(f"{redact.show(root)}: pass retries=... and timeout_s=... instead of retry_config.")
    web = root.startswith(_WEB)
    make = obstore.HTTPStore.from_url if web else obstore.from_url
    client |= _take_client_options(settings, redact.show(root))
    if web and settings:
        raise ValueError(
            f"{redact.show(root)} is behind a web server, which has no options of its own, got {', '.join(settings)}."
        )
    try:
        return redact.call_guarded(
            lambda: make(root, client_options=client, retry_config=retry, **settings), root, settings
        )
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        why = first_line(error).rstrip(".")
        raise ValueError(f"{redact.show(root)} cannot be opened with these options: {why}.") from None


def request_with_retries(request: Callable[[], T], url: str, settings: dict[str, Any], deed: str = "read") -> T:
    """Return the result of a request. If the connection breaks, the request is repeated, with growing pauses.

    obstore repeats most requests itself. It does not repeat those that may have been done, or whose answer ends early:
    this function repeats them, so `request` must be one that can be done twice. `deed` is the verb of the error
    messages: "read", "listed", "written" or "removed".
    """
    pause_s, retries = 0.1, settings.get("retries", _RETRIES)
    for attempt in range(retries + 1):
        answer, failure = _call_interruptibly(request)
        if failure is None:
            return answer
        if attempt == retries or not is_worth_repeating(failure):
            raise explain_failure(failure, redact.show(url), redact.secrets_of(url, settings), deed)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("unreachable")


class _Requests:
    """A thread that makes requests for another thread, which waits. Two queues cost half as much as a Future."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.process = os.getpid()
        start_thread("bushel-requests", self.end, self._run)

    def ask(self, request: Callable[[], T]) -> tuple[T, BaseException | None]:
        """Return the result of a request, or its error.

        If a signal handler raises here, do not use this object again.
        """
        self._asked.put(request)
        return self._answers.get()

    def end(self) -> None:
        """End the thread after its present request."""
        self._asked.put(None)

    def _run(self) -> None:
        while (request := self._asked.get()) is not None:
            self._answers.put(_call_and_catch(request))
            del request


_idle: _Requests | None = None


def _call_interruptibly(request: Callable[[], T]) -> tuple[T, BaseException | None]:
    """Return the result of a request, or its error. Raise what a signal handler raises, such as KeyboardInterrupt.

    Python runs signal handlers in the main thread, but not while obstore waits. So in the main thread, another thread
    makes the request, and the main thread waits for it.
    """
    global _idle
    if threading.current_thread() is not threading.main_thread():
        return _call_and_catch(request)
    # Taken out of `_idle` while it is in use: a signal handler may call this function in the middle of a request.
    requests, _idle = _idle, None
    if requests is None or requests.process != os.getpid():
        requests = _Requests()
    try:
        found = requests.ask(request)
    except BaseException:  # a signal: do not wait for the request, which may take long
        requests.end()
        raise
    if _idle is None:
        _idle = requests
    else:
        requests.end()
    return found


def _call_and_catch(request: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return request(), None
    except BaseException as error:
        return None, error


class _Object(File):
    """An object of a store that obstore supports. A response about another version of the object is an error."""

    costs_round_trip = True

    def __init__(self, url: str, settings: dict[str, Any]):
        self.name, self.address = redact.show(final_name(url)), url
        self._settings = settings
        root, self._key = _split_url(url)
        if not self._key.strip("/") and not url.startswith(_WEB):
            example = f"{redact.show(root)}/*"
            raise IsADirectoryError(
                f"{self.name} is a bucket, not a file. Name the files in it, for example {example}."
            )
        self._store = _get_store(root, _freeze_options(settings))
        meta = request_with_retries(self._read_metadata, url, settings)
        self.size, self._tags = meta["size"], _read_tags(meta)

    def _read_metadata(self) -> Any:
        try:
            return self._store.head(self._key)
        except Exception as error:
            if not self.name.startswith(_WEB) or not _HEADLESS.search(str(error)):
                raise
            return self._store.get(self._key, options={"range": (0, 1)}).meta

    def read(self, start: int, length: int) -> bytes:
        return self.read_many([start], [length])[0]

    def read_many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        parts = self._read_parts(starts, lengths, bytes)
        wholes = [part.obj if type(part.obj) is bytes and len(part.obj) == len(part) else None for part in parts]
        return [bytes(part) if whole is None else whole for part, whole in zip(parts, wholes, strict=True)]

    def _read_parts(
        self, starts: Sequence[int], lengths: Sequence[int], convert: Callable[[Any], Any] = memoryview
    ) -> list[memoryview]:
        """Return the bytes of these ranges.

        Each request's thread converts its answer, while other requests still wait.
        """
        if not len(starts):
            return []
        for start, length in zip(starts, lengths):
            if length and start + length > self.size:
                raise self.short_read_error(start, length, max(0, self.size - start))
        _refuse_after_fork(self.name)
        lows, highs, which = merge_ranges(np.asarray(starts), np.asarray(lengths))
        if len(lows) < len(starts):  # merged: each part is cut out later, which copies it
            convert = memoryview

        def read(bounds: tuple[int, int]) -> memoryview:
            return memoryview(convert(self._read_range(*bounds)))

        ranges = list(zip(lows, highs))
        parts = [read(ranges[0])] if len(ranges) == 1 else get_threads("bushel-ranges", _REQUESTS).map(read, ranges)
        places = [start - lows[number] for start, number in zip(starts, which)]
        return [parts[number][place : place + length] for number, place, length in zip(which, places, lengths)]

    def _read_range(self, low: int, high: int) -> memoryview:
        """Return the bytes of one range of the version that was opened."""
        if low == high:
            return memoryview(b"")

        def answer() -> tuple[Any, Any]:
            result = self._store.get(self._key, options={"range": (low, high)})
            return result.meta, result.bytes()

        try:
            meta, data = request_with_retries(answer, self.address, self._settings)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:  # perhaps the object was replaced by a shorter one, which has no such range
            now, failure = _call_interruptibly(self._read_metadata)
            if failure is None:
                self._check_version(now, error)
            raise
        self._check_version(meta)
        if len(data) != high - low:
            raise self.short_read_error(low, high - low, len(data))
        return memoryview(data)

    def _check_version(self, meta: Any, cause: Exception | None = None) -> None:
        """Raise an error if the object was replaced: its size differs, or its ETag, or (without ETag) its time."""
        size, tags = meta["size"], _read_tags(meta)
        differ = next((tags[kind] != tag for kind, tag in self._tags.items() if kind in tags), False)
        if differ or size != self.size:
            was, now = self.version(), [self.version()[0], size, next(iter(tags.values()), None)]
            raise changed_error(self.name, was, now) from cause

    def read_into(self, start: int, buffers: Sequence[Any]) -> None:
        scatter(self._read_parts([start], [sum(map(len, buffers))])[0], buffers)

    def check_unchanged(self) -> None:
        pass  # every read compares the version

    def version(self) -> list[Any]:
        return [redact.object_name(final_name(self.address)), self.size, next(iter(self._tags.values()), None)]


def _read_tags(meta: Any) -> dict[str, str]:
    """Return what the store says about the version of an object, the most reliable value first."""
    modified = meta.get("last_modified")  # obstore returns 1970 if there is no time
    tags = {"etag": meta.get("e_tag"), "time": modified.isoformat() if modified and modified.timestamp() else None}
    return {kind: tag for kind, tag in tags.items() if tag}


def open_zarr_store(url: str, options: Options | None) -> Any:
    """Return all objects below a URL as a store of the `zarr` package."""
    storage = import_package("zarr", "zarr", "Zarr stores").storage
    settings = _check_options(options)
    if url.partition("://")[0] in _OBJECT_STORES:
        return storage.ObjectStore(_get_store(url.rstrip("/"), _freeze_options(settings)), read_only=True)
    fsspec_files.connect(url, settings)  # for our error message if there is no driver
    options = fsspec_files.driver_options(settings)
    return redact.call_guarded(
        lambda: storage.FsspecStore.from_url(url, storage_options=options, read_only=True), url, settings
    )
