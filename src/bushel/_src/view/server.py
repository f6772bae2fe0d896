"""The server of the page: Starlette and uvicorn, on the loopback address, with checks of who asks.

`Guard` refuses requests from other hosts, other origins and without the token. `build_app` joins the panels' functions
and the files of the page. `RequestActivity` says for how long a request runs, and which step of the pipeline computes
for it. Nothing is measured for that: when the page asks, it looks at which functions the threads of the requests are
in.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import inspect
import ipaddress
import json
import math
import os
import secrets
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bushel._src.base.code_inspection import is_users_frame
from bushel._src.base.errors import describe_error
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import find_module
from bushel._src.graph.node import Node
from bushel._src.graph.operation import BlockOperation
from bushel._src.reporting.report_server import taking_port
from bushel._src.view import panels
from bushel._src.view.session import BadQuery, Query, Session

_FRONT = (
    "bushel._src.datasets.map_dataset",
    "bushel._src.datasets.iter_dataset",
    "bushel._src.datasets.base_dataset",
    "typing",
    "abc",
    "collections.abc",
)
"""Modules of classes that users derive from. Their methods are on the stack of every read."""


class RequestActivity:
    """The requests that a server is answering.

    Args:
      session: what the page looks at.
    """

    def __init__(self, session: Session):
        self._session = session
        self._requests: dict[str, tuple[int, float]] = {}

    @contextlib.contextmanager
    def watch(self, name: str) -> Iterator[None]:
        """A block that answers the request of this name, in this thread. Without a name nothing is kept."""
        if not name:
            yield
            return
        self._requests[name] = threading.get_ident(), time.monotonic()
        try:
            yield
        finally:
            self._requests.pop(name, None)

    def describe(self) -> dict[str, dict[str, Any]]:
        """For each request how many seconds it takes so far, and the step that computes for it, as far as is known."""
        frames, now = sys._current_frames(), time.monotonic()
        return {
            name: {"seconds": now - begun} | self._find_step(frames.get(thread))
            for name, (thread, begun) in list(self._requests.items())
        }

    def _find_step(self, frame: types.FrameType | None) -> dict[str, Any]:
        """Return the step whose function is the innermost one of a stack, and the line of the user's code there."""
        while frame is not None:
            number = self._codes.get(frame.f_code)
            if number is not None:
                call = self._session.steps[number].node.call()
                where = ""
                if is_users_frame(frame):
                    where = f"line {frame.f_lineno} of {os.path.basename(frame.f_code.co_filename)}"
                return {"step": number, "call": call, "where": where}
            frame = frame.f_back
        return {"step": None, "call": "", "where": ""}

    @functools.cached_property
    def _codes(self) -> dict[types.CodeType, int]:
        """The code of the functions and sources of the steps, and the numbers of the steps."""
        found: dict[types.CodeType, int] = {}
        for step in self._session.steps:
            for code in list_codes(step.node):
                found.setdefault(code, step.number)
        return found


def list_codes(node: Node) -> Iterator[types.CodeType]:
    """Yield the code that a node calls: of the user's functions and objects, and of its source.

    >>> import bushel
    >>> square = lambda x: x * x
    >>> list(list_codes(bushel.MapDataset.range(3).map(square)._node)) == [square.__code__]
    True
    """
    for value in list(vars(node).values()):
        parts = (value.function, value.transform) if isinstance(value, BlockOperation) else (value,)
        for part in parts:
            yield from dict.fromkeys(_codes_of(part))


def _codes_of(value: Any) -> Iterator[types.CodeType]:
    if isinstance(value, functools.partial):
        yield from _codes_of(value.func)
    elif isinstance(value, types.MethodType):
        yield from _codes_of(value.__func__)
        yield from _codes_of(value.__self__)
    elif isinstance(value, types.FunctionType):
        yield inspect.unwrap(value).__code__
        yield value.__code__
    elif not isinstance(value, (Node, type, str, bytes, int, float, tuple, list, dict, types.NoneType)):
        for one in type(value).__mro__[:-1]:
            if find_module(one) not in _FRONT and one.__module__.partition(".")[0] not in ("numpy", "builtins"):
                yield from (part.__code__ for part in vars(one).values() if isinstance(part, types.FunctionType))


PAGE = Path(__file__).parent / "page"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _policy(embeddable: bool) -> str:
    """Return the content security policy: only files of this server run or load; the data may hold anything."""
    frames = "http://127.0.0.1:* http://localhost:* vscode-webview:" if embeddable else "'none'"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; "
        f"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
    )


class Guard:
    """An ASGI application around another: checks Host, Origin and token, and adds the headers of security."""

    def __init__(self, app: Any, token: str, host: str, embeddable: bool):
        self._app, self._token = app, token
        self._names = {*_LOOPBACK, host}
        self._addresses_too = host not in _LOOPBACK
        if self._addresses_too:
            self._names |= {socket.gethostname(), socket.getfqdn()}
        self._headers = [
            (b"content-security-policy", _policy(embeddable).encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no panel uses WebSockets
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        refusal = self._find_refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
            return
        status, sentence = refusal
        body = json.dumps({"error": {"message": sentence}}).encode()
        head = [(b"content-type", b"application/json")]
        await send_with_headers({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    def _find_refusal(self, scope: Any) -> tuple[int, str] | None:
        """Return the status and the sentence that a request is refused with; None if it may pass."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "This page only reads: use GET."
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        # An attacker whose DNS server points a name at this machine would make pages of the same origin as these.
        if len(hosts) != 1 or not self._is_name_of_server(hosts[0]):
            return 403, "This address is not one of the page's own: open the address that Bushel has printed."
        if any(origin != f"http://{hosts[0]}" for origin in headers.get("origin", [])):
            return 403, "Another site has asked for this. Only the page itself may."
        if scope["path"].startswith("/api/"):
            if headers.get("sec-fetch-site", ["same-origin"])[0] not in ("same-origin", "none"):
                return 403, "Another site has asked for this. Only the page itself may."
            given = headers.get("x-bushel-token", [""])[0]
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                return 401, "The token is missing or wrong: open the address that Bushel has printed."
        return None

    def _is_name_of_server(self, host: str) -> bool:
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._names:
            return True
        if self._addresses_too:  # an address cannot be pointed elsewhere by DNS
            with contextlib.suppress(ValueError):
                ipaddress.ip_address(name)
                return True
        return False


def build_app(session: Session, *, token: str, host: str = "127.0.0.1", embeddable: bool = False) -> Any:
    """Return the ASGI application of a session."""
    applications: Any = import_package("starlette.applications", "view", "Pages of the viewer")
    routing: Any = import_package("starlette.routing", "view", "Pages of the viewer")
    responses: Any = import_package("starlette.responses", "view", "Pages of the viewer")

    files = {path.relative_to(PAGE).as_posix(): path for path in PAGE.rglob("*") if path.suffix in _TYPES}

    def page(request: Any) -> Any:
        # A table of the files that exist, so that no path can lead out of the folder.
        path = files.get(request.path_params.get("path") or "index.html")
        if path is None:
            return responses.PlainTextResponse("There is no such file.", status_code=404)
        return responses.Response(path.read_bytes(), media_type=_TYPES[path.suffix])

    activity = RequestActivity(session)

    def answer_with(function: Callable[[Query], Any]) -> Callable[[Any], Any]:
        def endpoint(request: Any) -> Any:  # Starlette calls it in a thread, since it is not async
            with activity.watch(request.headers.get("x-bushel-request", "")[:40]):
                status, body = answer(function, Query(request.query_params))
            return responses.Response(to_json(body), status_code=status, media_type="application/json")

        return endpoint

    async def describe_activity(request: Any) -> Any:  # not in a thread: all threads may be busy
        return responses.Response(to_json(activity.describe()), media_type="application/json")

    routes = [
        routing.Route("/api/info", answer_with(lambda query: panels.describe_session(session))),
        routing.Route("/api/activity", describe_activity),
    ]
    for panel in panels.load():
        for name, function in panel.routes(session).items():
            routes.append(routing.Route(f"/api/{panel.name}/{name}", answer_with(function)))
    routes += [routing.Route("/", page), routing.Route("/{path:path}", page)]
    return Guard(applications.Starlette(routes=routes), token, host, embeddable)


def answer(function: Callable[[Query], Any], query: Query) -> tuple[int, Any]:
    """Return the status and the JSON data that a panel's function answers with. Its errors are part of the answer."""
    try:
        return 200, function(query)
    except BadQuery as error:
        return 400, {"error": {"message": str(error)}}
    except (Exception, SystemExit) as error:  # a user's function may call sys.exit
        return 500, {"error": {"message": describe_error(error)}}


def to_json(value: Any) -> bytes:
    """Return JSON of an answer.

    What JavaScript's numbers cannot hold becomes a text: infinities, NaN, large integers.
    """
    return json.dumps(_for_javascript(value), allow_nan=False, separators=(",", ":")).encode()


def _for_javascript(value: Any) -> Any:
    if hasattr(value, "item"):  # of NumPy
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and abs(value) > 1 << 53:
        return str(value)
    if isinstance(value, dict):
        return {str(key): _for_javascript(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_javascript(part) for part in value]
    return value


class Server:
    """Serves a session: in a thread (`start`), or in the caller until Ctrl-C (`run`)."""

    def __init__(self, session: Session, *, host: str = "127.0.0.1", port: int = 0, embeddable: bool = False):
        uvicorn: Any = import_package("uvicorn", "view", "Pages of the viewer")
        self._token = secrets.token_urlsafe(24)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with taking_port(host, port):
            self._socket = socket.create_server((host, port), family=family)
        self._host, self._port = host, self._socket.getsockname()[1]
        app = build_app(session, token=self._token, host=host, embeddable=embeddable)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
        )
        self._server: Any = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the page. The token is in the fragment, which browsers do not send: the page reads it."""
        shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self._host, self._host)
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self._port}/#token={self._token}"

    @property
    def token(self) -> str:
        """The token that requests for data carry, in the header `X-Bushel-Token`."""
        return self._token

    def start(self) -> None:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self.run, name="bushel-view", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Serve until `close` is called, or until Ctrl-C."""
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """Stop. Requests that are being answered are not waited for."""
        self._server.should_exit = self._server.force_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._socket.close()
