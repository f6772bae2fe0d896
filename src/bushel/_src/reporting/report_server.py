"""Serves the report of a running iterator to programs of this machine.

Also reports over time, memory of processes, and errors of ports.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import hmac
import http.server
import io
import json
import logging
import os
import platform
import resource
import secrets
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from bushel._src.base import checks, redact
from bushel._src.base.public import public
from bushel._src.datasets.iterator import DatasetIterator
from bushel._src.engine.measurements import count_cores
from bushel._src.engine.report import Report, judge
from bushel._src.loaders.data_loader import DataLoaderIterator


def measure_memory() -> tuple[int, int]:
    """Return bytes in memory of this process, and of all processes below it.

    Shared memory counts here and not there, since workers and consumer share it. On systems without /proc the first
    number is the most that this process has used so far, and the second is 0.
    """
    try:
        own = _read_field("self", "VmRSS")
        return own, sum(_read_field(str(pid), "RssAnon") for pid in _list_descendants(os.getpid()))
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, 0


def _read_field(process: str, name: str) -> int:
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            for line in file:
                if line.startswith(name.encode() + b":"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        if process == "self":
            raise
    return 0  # the process has ended meanwhile


def _list_descendants(process: int) -> list[int]:
    found: list[int] = []
    for child in _list_children(process):
        found += [child, *_list_descendants(child)]
    return found


def _list_children(process: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return children
    for thread in threads:
        try:
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
        except OSError:  # the thread has ended, or the system does not list children
            continue
    return children


FORMAT = "bushel report"
VERSION = 1
_SAMPLES = 600
_RECENT_S = 60.0
"""How much of the past the verdict of a running iterator is about."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    """Figures at one moment. Elements and times are counted from the beginning."""

    at_s: float
    elements: int
    waited_s: float
    busy_s: float
    workers: int
    ready: int
    skipped: int
    own_bytes: int
    worker_bytes: int


class History:
    """Samples of an iterator's report. If there are too many, every second one goes, and the next come half as often.

    Args:
      name: what the iterator is called.
      read: returns the report as it is now.
      interval_s: the time between two samples at the beginning.
    """

    def __init__(self, name: str, read: Callable[[], Report], interval_s: float = 1.0):
        self._name, self._read = name, read
        self._begun, self._begun_at = time.monotonic(), time.time()
        self._samples: list[_Sample] = []
        self._recent: collections.deque[tuple[float, Report]] = collections.deque()
        self.interval_s = interval_s

    def sample(self) -> Report:
        """Take a sample. Return the report that it is made of."""
        report = self._read()
        now = time.monotonic() - self._begun
        elements, waited_s = _count_elements(report)
        own_bytes, worker_bytes = measure_memory()
        self._samples.append(
            _Sample(
                at_s=now,
                elements=elements,
                waited_s=waited_s,
                busy_s=sum(pool.busy_s for pool in report.pools),
                workers=sum(pool.size for pool in report.pools),
                ready=sum(pool.ready_now for pool in report.pools),
                skipped=report.skipped,
                own_bytes=own_bytes,
                worker_bytes=worker_bytes,
            )
        )
        if len(self._samples) > _SAMPLES:
            self._samples = self._samples[::2]
            self.interval_s *= 2
        if not self._recent or now - self._recent[-1][0] >= _RECENT_S / 12:
            self._recent.append((now, report))
        while len(self._recent) > 2 and now - self._recent[1][0] > _RECENT_S:
            self._recent.popleft()
        return report

    def describe(self, *, finished: bool = False) -> dict[str, Any]:
        """Return all of it as JSON data: the report as it is now, and the samples so far."""
        report = self._read() if self._samples else self.sample()
        begun_at, earlier = self._recent[0]
        recent = report.since(earlier) if report.elements > earlier.elements else report
        verdict = judge(recent)
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self._name,
            "machine": socket.gethostname(),
            "process": os.getpid(),
            "program": redact.base_name(sys.argv[0] if sys.argv else ""),
            "python": platform.python_version(),
            "cores": count_cores(),
            "began_at": self._begun_at,
            "age_s": time.monotonic() - self._begun,
            "interval_s": self.interval_s,
            "finished": finished,
            "verdict": {
                "sentence": verdict.sentence,
                "bound": verdict.bound,
                "more_workers": verdict.more_workers,
                "seconds": self._samples[-1].at_s - (begun_at if recent is not report else 0.0),
            },
            "report": describe_report(report),
            "series": self._describe_series(),
        }

    def _describe_series(self) -> dict[str, list[Any]]:
        pairs = list(zip(self._samples, self._samples[1:]))
        return {
            "at_s": [round(after.at_s, 3) for _, after in pairs],
            "elements_per_s": [_rate(a.elements, b.elements, a, b) for a, b in pairs],
            "waiting": [min(1.0, _rate(a.waited_s, b.waited_s, a, b)) for a, b in pairs],
            "busy_workers": [_rate(a.busy_s, b.busy_s, a, b) for a, b in pairs],
            "workers": [b.workers for _, b in pairs],
            "ready": [b.ready for _, b in pairs],
            "skipped": [b.skipped for _, b in pairs],
            "own_bytes": [b.own_bytes for _, b in pairs],
            "worker_bytes": [b.worker_bytes for _, b in pairs],
        }


def describe_report(report: Report) -> dict[str, Any]:
    """Return a report as JSON data, with its verdict and its text."""
    data = dataclasses.asdict(report)
    elements, waited_s = _count_elements(report)
    return data | {"elements": elements, "waited_s": waited_s, "verdict": report.verdict, "text": str(report)}


def _count_elements(report: Report) -> tuple[int, float]:
    """Return elements delivered, and the seconds that the step waited for them.

    Transfers are counted without timing, too.
    """
    if report.timed or not report.transfers:
        return report.elements, report.waited_s
    last = report.transfers[-1]
    return last.elements, last.waited_s


def _rate(before: float, after: float, first: _Sample, second: _Sample) -> float:
    return round(max(0.0, after - before) / max(second.at_s - first.at_s, 1e-6), 4)


def load_snapshot(data: bytes | str, where: str) -> dict[str, Any]:
    """Read what `History.describe` has made, from a server or from a file.

    Args:
      data: the JSON text.
      where: where it comes from, for errors.
    """
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, Mapping) or found.get("format") != FORMAT:
        raise ValueError(f"{where} does not hold the report of a Bushel iterator.")
    if found.get("version") != VERSION:
        raise ValueError(
            f"{where} was written by another version of Bushel (version {found.get('version')!r} of the format, and "
            f"this one reads {VERSION}). Use the same version for both."
        )
    return dict(found)


_HIGHEST = 65535


@contextlib.contextmanager
def taking_port(host: str, port: int) -> Iterator[None]:
    """Check a port, and explains why the block cannot listen on it.

    >>> with taking_port("127.0.0.1", 70_000):
    ...     pass
    Traceback (most recent call last):
    ValueError: port must be a number from 0 to 65535, where 0 takes a free one; got 70000.
    """
    if not 0 <= checks.integer(port, "port") <= _HIGHEST:
        raise ValueError(f"port must be a number from 0 to {_HIGHEST}, where 0 takes a free one; got {port}.")
    try:
        yield
    except socket.gaierror as error:
        raise OSError(f"{host} is not an address of this machine: {error.strerror}.") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"Port {port} of {host} is in use, perhaps by another page of Bushel's. Choose another port, or 0 for "
                "a free one."
            ) from error
        if error.errno == errno.EACCES:
            raise PermissionError(
                f"Port {port} of {host} may not be used by this user: choose one above 1023."
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise OSError(f"{host} is not an address of this machine.") from error
        raise


logger = logging.getLogger("bushel")

TOKEN_HEADER = "X-Bushel-Token"
PATH = "/report"
_REQUEST_S = 2.0
"""How long a request may take as a whole, however its bytes arrive. The answer may take as long again."""
_REQUEST_BYTES = 16 << 10
"""The most bytes of a request. Bushel's own has some 200."""
_CLIENTS = 8
"""The most clients at a time. One more, and the one that came first is sent away."""
_NAMES = ("127.0.0.1", "localhost", "[::1]")


@public("bushel")
def serve_report(iterator: Any, *, name: str = "train", port: int = 0, interval_s: float = 1.0) -> ReportServer:
    """Let `bushel view --attach` look at this iterator while it runs. Return the server, whose `url` to pass there.

    The report is served to programs of this machine that know the token in the URL, and nothing else is. A daemon
    thread takes a sample of the report once per second, and accepts requests. The iterator is not held: when it is
    gone, the thread ends. For a process on another machine, forward the port: `ssh -L 8765:127.0.0.1:8765 machine`.

    Stages are timed, and elements are counted, if the options of the pipeline ask for it
    (`execution_tracking_mode="stage_timing"`).

    >>> import bushel
    >>> ds = bushel.MapDataset.range(100).to_iter_dataset().with_options(execution_tracking_mode="stage_timing")
    >>> it = iter(ds)
    >>> with bushel.serve_report(it) as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True

    Args:
      iterator: of a dataset, a loader, or another iterator of Bushel's with `report()`.
      name: what the page calls it.
      port: the port to listen on; 0 takes a free one.
      interval_s: the time between two samples. It grows when there are more than 600.
    """
    if not isinstance(iterator, (DatasetIterator, DataLoaderIterator)) and not hasattr(iterator, "report"):
        raise TypeError(f"serve_report takes an iterator of a Bushel dataset, got {type(iterator).__name__}.")
    iterator.report()  # raises here, and not in the thread, if this kind of iterator has none
    if not checks.number(interval_s, "interval_s") > 0:
        raise ValueError(f"interval_s must be positive, got {interval_s}.")
    return ReportServer(iterator, name, port, interval_s)


class _Gone(Exception):
    """The iterator has been collected."""


@public("bushel")
class ReportServer:
    """A report that is being served: see `serve_report`. As a context manager it ends with the block."""

    def __init__(self, iterator: Any, name: str, port: int, interval_s: float):
        reference = weakref.ref(iterator)
        self._is_closed = lambda: bool(getattr(reference(), "_closed", False))

        def read() -> Report:
            found = reference()
            if found is None:
                raise _Gone
            return found.report()

        self._token = secrets.token_urlsafe(24)
        self._history = History(name, read, interval_s)
        self._lock = threading.Lock()  # of the history
        self._closing = threading.Event()
        with taking_port("127.0.0.1", port):
            self._server = _Server(port, self)
        self._thread = threading.Thread(target=self._serve, name="bushel-report", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of this machine's loopback address."""
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        """The address for `bushel view --attach`, with the token. Who has it can read the report."""
        return f"http://127.0.0.1:{self.port}/#token={self._token}"

    def close(self) -> None:
        """End the thread and close the port. Closing again does nothing."""
        if not self._closing.is_set():
            self._closing.set()
            self._server.wake()
            if threading.current_thread() is not self._thread:
                self._thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<report of {self._history._name!r} on port {self.port}>"  # without the token: it may end up in a log

    def _serve(self) -> None:
        next_sample = time.monotonic()
        with self._server:
            while not self._closing.is_set():
                try:
                    if time.monotonic() >= next_sample:
                        with self._lock:
                            self._history.sample()
                        next_sample = time.monotonic() + self._history.interval_s
                    self._server.timeout = max(0.0, next_sample - time.monotonic())
                    self._server.handle_request()
                except _Gone:
                    return
                except Exception:  # a watcher never stops what it watches
                    logger.warning("The report of %r could not be served.", self._history._name, exc_info=True)
                    next_sample = time.monotonic() + 60

    def _answer(self, headers: Any, path: str) -> tuple[int, bytes]:
        """Return the status and the body for a request."""
        # Names that other machines point at this one would let their pages ask with the browser of a user of this one.
        hosts = headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].rpartition(":")[0] not in _NAMES or headers.get("Origin") is not None:
            return 403, b'{"error": "Only programs of this machine may ask, under its own name."}'
        if not hmac.compare_digest(headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            return (
                401,
                b'{"error": "The token is missing or wrong: pass the whole URL that serve_report has returned."}',
            )
        if path != PATH:
            return 404, b'{"error": "There is only /report here."}'
        try:
            with self._lock:
                found = self._history.describe(finished=self._is_closed())
        except _Gone:
            return GONE
        return 200, json.dumps(found, default=str).encode()


GONE = 404, b'{"error": "The iterator is gone."}'


class _Server(http.server.HTTPServer):
    """Listens on the loopback address alone, and gives each client a thread."""

    request_queue_size = 64

    def __init__(self, port: int, owner: ReportServer):
        self._owner = weakref.ref(owner)
        self._clients: collections.OrderedDict[int, socket.socket] = collections.OrderedDict()
        self._lock = threading.Lock()  # of the clients
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would look up the name of this machine, which may ask a name server.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def wake(self) -> None:
        """End `handle_request` in the other thread."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server_port), timeout=1):
            pass

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread of its own. Called by the thread that accepts clients."""
        with self._lock:
            self._clients[id(request)] = request
            if len(self._clients) > _CLIENTS:
                _hang_up(self._clients.popitem(last=False)[1])
        threading.Thread(target=self._answer_client, args=(request, client_address), daemon=True).start()

    def _answer_client(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._clients.pop(id(request), None)
            self.shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for client in self._clients.values():
                _hang_up(client)

    def _answer(self, headers: Any, path: str) -> tuple[int, bytes]:
        """Return the status and the body for a request."""
        owner = self._owner()
        return GONE if owner is None else owner._answer(headers, path)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away is not the training program's trouble."""


def _hang_up(client: socket.socket) -> None:
    """End a connection. The thread that reads from it sees the end."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class _Bounded(io.RawIOBase):
    """What a client sends, until a moment and up to a number of bytes."""

    def __init__(self, client: socket.socket):
        self._client = client
        self._until, self._left = time.monotonic() + _REQUEST_S, _REQUEST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        rest_s = self._until - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError("the request takes too long")
        if not self._left:
            raise ValueError("the request is too long")
        self._client.settimeout(rest_s)
        count = self._client.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server_version, sys_version = "bushel", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Bounded(self.connection))

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        status, body = self.server._answer(self.headers, self.path)
        self.connection.settimeout(_REQUEST_S)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
