"""A small S3 server in this process that fails when it is told to: one fault at one request, of every kind.

It speaks the part of S3's protocol that Bushel's clients use: objects, ranges, copies, lists, and uploads in parts. The
XML interface of GCS is the same protocol, so `gs://` works too. Signatures are not checked. For protocol details that
this server does not know, `servers.py` has moto.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import hashlib
import itertools
import json
import re
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, unescape

BUCKET = "shelf"

FAULTS = ("reset before", "reset after", "half answer", "500 before", "500 after", "503 before", "429 before")
"""What may go wrong with one request. "before": the store has not done it. "after": it has, and the answer is lost."""

SLOW_FAULTS = ("silent before", "silent after")
"""Faults that a client notices only after its timeout."""


class FaultStore:
    """The server. Objects are in `objects`, by name; `log` has a line for each request.

    `fault(number, line)` says what goes wrong with a request: None, one of the faults above, or a tuple (status, XML
    code) for an answer without the deed. `number` counts the requests since `reset`; `line` is "PUT name", "COPY name",
    "DELETE name", "HEAD name", "GET name", "LIST prefix", "BEGIN name", "PART name", "COMPLETE name" or "ABORT name".
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, int] = {}
        self.clock = itertools.count()
        self.parts: dict[str, dict[int, bytes]] = {}
        self.log: list[str] = []
        self.fault: Callable[[int, str], Any] = lambda number, line: None
        self.lock = threading.RLock()
        self.over = threading.Event()
        store = self

        class Handler(_Handler):
            server_store = store

        class Server(ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the client has gone, or this server has hung up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def reset(self, fault: Callable[[int, str], Any] = lambda number, line: None) -> None:
        """Begins to count requests again, with another fault."""
        with self.lock:
            self.log, self.fault = [], fault

    def settings(self, folder: Path) -> dict[str, str]:
        """The environment in which `s3://` and `gs://` lead to this server."""
        account = folder / "account.json"
        keys = {"client_email": "", "private_key": "", "private_key_id": ""}
        account.write_text(json.dumps({"gcs_base_url": self.endpoint, "disable_oauth": True, **keys}))
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "GOOGLE_SERVICE_ACCOUNT": str(account),
        }

    def __enter__(self) -> FaultStore:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def fault_store(folder: Path, monkeypatch: Any) -> Iterator[FaultStore]:
    """A running server with an empty bucket; the environment leads to it."""
    with FaultStore() as store:
        for name, value in store.settings(folder).items():
            monkeypatch.setenv(name, value)
        yield store


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_store: FaultStore

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _serve(self) -> None:
        store = self.server_store
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        bucket, _, name = urllib.parse.unquote(url.path).lstrip("/").partition("/")
        body = self._read_body()
        if self.command == "POST" and "delete" in query:  # S3 removes several objects with one request
            name = ",".join(map(unescape, re.findall("<Key>(.*?)</Key>", body.decode())))
        line = f"{self._name_deed(name, query)} {name or query.get('prefix', '')}"
        with store.lock:
            number = len(store.log)
            store.log.append(line)
        fault = store.fault(number, line)
        if isinstance(fault, tuple):
            self._fail(*fault)
            return
        if bucket != BUCKET:
            self._fail(404, "NoSuchBucket")
            return
        if fault == "reset before":
            self._hang_up()
            return
        if fault == "silent before":
            store.over.wait(30)
            self.close_connection = True
            return
        if isinstance(fault, str) and fault.endswith(" before"):
            status = int(fault.partition(" ")[0])
            self._fail(status, {429: "SlowDown", 503: "SlowDown"}.get(status, "InternalError"))
            return
        with store.lock:
            status, headers, content = self._do(line.partition(" ")[0], name, query, body)
            if name in store.objects and line.startswith(("PUT", "COPY", "COMPLETE")):
                store.times[name] = 1_700_000_000 + next(store.clock)
        if fault == "reset after":
            self._hang_up()
        elif fault == "silent after":
            store.over.wait(30)
            self.close_connection = True
        elif fault == "500 after":
            self._fail(500, "InternalError")
        else:
            self._answer(status, headers, content, half=fault == "half answer")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _name_deed(self, name: str, query: dict[str, str]) -> str:
        if not name:
            return "LIST" if self.command == "GET" else f"BUCKET-{self.command}"
        if self.command == "POST" and "delete" in query:
            return "DELETE"
        if self.command == "POST":
            return "BEGIN" if "uploads" in query else "COMPLETE"
        if self.command == "PUT":
            copied = "x-amz-copy-source" in self.headers or "x-goog-copy-source" in self.headers
            return "PART" if "partNumber" in query else "COPY" if copied else "PUT"
        if self.command == "DELETE" and "uploadId" in query:
            return "ABORT"
        return self.command

    def _do(self, deed: str, name: str, query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        store = self.server_store
        if deed == "LIST":
            return 200, {}, self._list(query)
        if deed == "PUT":
            store.objects[name] = body
            return 200, {"ETag": _tag(body)}, b""
        if deed == "COPY":
            given = self.headers.get("x-amz-copy-source") or self.headers.get("x-goog-copy-source") or ""
            source = urllib.parse.unquote(given).lstrip("/").partition("/")[2]
            if source not in store.objects:
                return 404, {}, _error("NoSuchKey")
            store.objects[name] = store.objects[source]
            tag = _tag(store.objects[name])
            return 200, {}, f"<CopyObjectResult><ETag>{escape(tag)}</ETag></CopyObjectResult>".encode()
        if deed == "BEGIN":
            upload = str(len(store.parts) + 1)
            store.parts[upload] = {}
            text = f"<Bucket>{BUCKET}</Bucket><Key>{escape(name)}</Key><UploadId>{upload}</UploadId>"
            return 200, {}, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode()
        if deed in ("PART", "COMPLETE", "ABORT"):
            return self._do_upload(deed, name, query, body)
        if deed == "DELETE" and self.command == "POST":
            for one in name.split(","):
                store.objects.pop(one, None)
            done = "".join(f"<Deleted><Key>{escape(one)}</Key></Deleted>" for one in name.split(","))
            return 200, {}, f"<DeleteResult>{done}</DeleteResult>".encode()
        if name not in store.objects:
            return (204, {}, b"") if deed == "DELETE" else (404, {}, _error("NoSuchKey"))
        if deed == "DELETE":
            del store.objects[name]
            return 204, {}, b""
        content = store.objects[name]
        headers = {
            "ETag": _tag(content),
            "Last-Modified": email.utils.formatdate(store.times.get(name, 0), usegmt=True),
            "Accept-Ranges": "bytes",
        }
        asked = self.headers.get("Range")
        if asked is None:
            return 200, headers, content
        first, _, last = asked.removeprefix("bytes=").partition("-")
        low, high = int(first), min(int(last or len(content) - 1) + 1, len(content))
        headers["Content-Range"] = f"bytes {low}-{high - 1}/{len(content)}"
        return 206, headers, content[low:high]

    def _do_upload(self, deed: str, name: str, query: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        store = self.server_store
        parts = store.parts.get(query["uploadId"])
        if parts is None:
            return 404, {}, _error("NoSuchUpload")
        if deed == "PART":
            parts[int(query["partNumber"])] = body
            return 200, {"ETag": _tag(body)}, b""
        del store.parts[query["uploadId"]]
        if deed == "ABORT":
            return 204, {}, b""
        store.objects[name] = b"".join(parts[number] for number in sorted(parts))
        tag = f'"{hashlib.md5(store.objects[name]).hexdigest()}-{len(parts)}"'
        text = f"<Key>{escape(name)}</Key><ETag>{escape(tag)}</ETag>"
        return 200, {}, f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>".encode()

    def _list(self, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        entries, folders = [], set()
        for name, content in sorted(self.server_store.objects.items()):
            if not name.startswith(prefix):
                continue
            rest = name.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            modified = datetime.datetime.fromtimestamp(self.server_store.times.get(name, 0), datetime.UTC)
            time = modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            entries.append(
                f"<Contents><Key>{escape(name)}</Key><LastModified>{time}</LastModified><ETag>{escape(_tag(content))}"
                f"</ETag><Size>{len(content)}</Size></Contents>"
            )
        below = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders))
        head = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{head}{''.join(entries)}{below}</ListBucketResult>".encode()

    def _answer(self, status: int, headers: dict[str, str], content: bytes, half: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        if half and not content:
            self._hang_up()  # there is no half of nothing
            return
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if half else content)
        if half:
            self.close_connection = True

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, {}, _error(code))

    def _hang_up(self) -> None:
        """Ends the connection with a reset, as a proxy or a dying server does."""
        self.close_connection = True
        self._headers_buffer: list[bytes] = []
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code} it says</Message></Error>".encode()
