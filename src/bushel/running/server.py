"""Serves the report of a running iterator to programs of this machine.

One thread takes samples and accepts clients. Each client has a thread of its own, which ends after `_REQUEST_S` at the
latest, so that no client keeps another one waiting. `history.py` has the samples.
"""

from __future__ import annotations

import collections
import contextlib
import hmac
import http.server
import io
import json
import logging
import secrets
import socket
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Self

from bushel.base import checks
from bushel.data_loader import DataLoaderIterator
from bushel.engine.report import Report
from bushel.iterator import DatasetIterator
from bushel.running.history import History
from bushel.running.ports import taking_port

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


def serve_report(iterator: Any, *, name: str = "train", port: int = 0, interval_s: float = 1.0) -> ReportServer:
    """Lets `bushel view --attach` look at this iterator while it runs. Returns the server, whose `url` to pass there.

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
        """Ends the thread and closes the port. Closing again does nothing."""
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
        """The status and the body for a request."""
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
        """Ends `handle_request` in the other thread."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server_port), timeout=1):
            pass

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers a client in a thread of its own. Called by the thread that accepts clients."""
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
        """The status and the body for a request."""
        owner = self._owner()
        return GONE if owner is None else owner._answer(headers, path)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a client that goes away is not the training program's trouble."""


def _hang_up(client: socket.socket) -> None:
    """Ends a connection. The thread that reads from it sees the end."""
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
