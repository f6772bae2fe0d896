"""Servers on loopback: S3, both interfaces of GCS, Azure where it is installed, and a web server that misbehaves.

The stores run in a virtual environment of their own, which the Makefile makes: `servers.txt` says what is in it.
"""

import base64
import contextlib
import email.utils
import fcntl
import hmac
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from obstore.store import AzureStore

ROOT = Path(__file__).parents[2]
BUCKET = "bushels"  # letters only: GCS clients write a dash as %2D, which moto takes literally
MOTO = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Application
from moto.server import ThreadedMotoServer

SIGNED = "AWS4-HMAC-SHA256 Credential=key/20250101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Gcs(Application):
    # GCS's clients sign in with a token and copy by a header of their own, which moto does not understand. What they
    # write must be public, since they read without a token.
    def __call__(self, environ, start_response):
        if "HTTP_X_GOOG_COPY_SOURCE" in environ:
            environ["HTTP_X_AMZ_COPY_SOURCE"] = environ.pop("HTTP_X_GOOG_COPY_SOURCE")
        writes = environ["REQUEST_METHOD"] in ("DELETE", "POST", "PUT")
        if writes and environ.get("HTTP_AUTHORIZATION", "Bearer").startswith("Bearer"):
            environ["HTTP_AUTHORIZATION"] = SIGNED
            environ.setdefault("HTTP_X_AMZ_ACL", "public-read")
        return super().__call__(environ, start_response)


from moto.moto_server import threaded_moto_server
threaded_moto_server.DomainDispatcherApplication = Gcs
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
EMULATOR = """
import http.server, logging, sys
http.server.HTTPServer.request_queue_size = 128  # with 5, a sixth client at a time waits for a second
logging.disable(logging.CRITICAL)
from gcp_storage_emulator.server import create_server
with create_server("127.0.0.1", 0, in_memory=True, default_bucket=sys.argv[1]) as server:
    print(server._api._httpd.server_port, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def _running(program):
    """A server in a process of its own, as its address."""
    make = ["make", "--silent", f"PYTHON={sys.executable}", ".venv-servers/.installed"]
    with open(ROOT / "Makefile", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of pytest must not install at once
        subprocess.run(make, cwd=ROOT, check=True)
    python = str(ROOT / ".venv-servers" / "bin" / "python")
    server = subprocess.Popen([python, "-c", program, BUCKET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None and server.stdin is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(200)


@contextlib.contextmanager
def _environment(settings):
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _send(method, url, content, headers):
    headers = {"Content-Type": "application/octet-stream", **headers}
    with urllib.request.urlopen(urllib.request.Request(url, content, headers, method=method)) as answer:
        answer.read()


@contextlib.contextmanager
def s3(folder):
    """An S3 server with an empty bucket; the environment says where it is. Yields `put(key, content, public=True)`.

    GCS's XML interface is the same protocol: with `gs://` the same objects are read, unsigned, as public ones.
    """
    with _running(MOTO) as endpoint:
        account = folder / "account.json"
        keys = {"client_email": "", "private_key": "", "private_key_id": ""}
        account.write_text(json.dumps({"gcs_base_url": endpoint, "disable_oauth": True, **keys}))
        settings = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "GOOGLE_SERVICE_ACCOUNT": str(account),
        }

        def put(key, content, public=True):
            acl = {"x-amz-acl": "public-read" if public else "private"}
            _send("PUT", f"{endpoint}/{BUCKET}/{urllib.parse.quote(key)}", content, acl)

        _send("PUT", f"{endpoint}/{BUCKET}", b"", {})
        with _environment(settings):
            yield put


@contextlib.contextmanager
def gcs():
    """A server of GCS's JSON interface with an empty bucket, for `gcs://` through gcsfs. Yields `put(key, content)`."""
    with _running(EMULATOR) as endpoint:
        settings = {
            "STORAGE_EMULATOR_HOST": endpoint,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # or gcsfs asks a gRPC service first, for a minute
        }

        def put(key, content):
            name = urllib.parse.quote(key, safe="")
            _send("POST", f"{endpoint}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", content, {})

        with _environment(settings):
            yield put


AZURITE = shutil.which("azurite-blob")  # `npm install -g azurite`: 360 MB, too large for every run of the tests
AZURE_ACCOUNT = "devstoreaccount1"  # azurite's own, with a key that everybody knows
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextlib.contextmanager
def azure(folder):
    """Azurite with an empty container. Yields `put(key, content)`."""
    assert AZURITE is not None
    options = ["--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    with subprocess.Popen([AZURITE, *options], stdout=subprocess.PIPE, text=True, cwd=folder) as server:
        try:
            assert server.stdout is not None
            endpoint = next(line.split()[-1] for line in server.stdout if "successfully listens on" in line)
            settings = {
                "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
                "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{AZURE_ACCOUNT}",
            }
            _send("PUT", f"{endpoint}/{AZURE_ACCOUNT}/{BUCKET}?restype=container", b"", _signed_by_azure())
            with _environment(settings):
                store = AzureStore(BUCKET, client_options={"allow_http": True})
                yield store.put
        finally:
            server.terminate()


def _signed_by_azure():
    """Headers of the request that makes a container."""
    now = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    fields = ["PUT", *[""] * 4, "application/octet-stream", *[""] * 6, *(f"{name}:{now[name]}" for name in now)]
    text = "\n".join([*fields, f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}", "restype:container"])
    signature = hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")
    return {**now, "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}"}


class Web:
    """A web server for some bytes, or for a dict of files by their paths, with ranges, that can be told to fail.

    `behave` is called with the number of the request (HEAD requests not counted) and returns "ok", "error" (500),
    "half" (announces all, sends half), "hang" (answers nothing), "missing" (404) or "denied" (403, and its text repeats
    the whole request, as S3 does with signatures). HEAD requests are answered with the status `head`. Unless `told`,
    nothing says when the content changes. `tag` is the ETag, `modified` the time. `addresses` are those that were asked
    for, `most_at_once` tells how many requests it had in hand.
    """

    tag: str | None = '"one"'
    encoding: str | None = None  # what the header Content-Encoding says
    modified: str | None = "Wed, 01 Jan 2025 00:00:00 GMT"

    def __init__(self, content, behave=lambda number: "ok", latency_s=0.0, head=200, told=True):
        self.content, self.behave, self.latency_s, self.head = content, behave, latency_s, head
        self.addresses = set()
        self.requests = self.most_at_once = self._in_hand = 0
        self.ranges = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each answer is held back for 40 ms

            def log_message(self, format, *args):
                pass

            def do_HEAD(self):
                web.addresses.add(self.path)
                content = web.file(self.path)
                if web.head == 403:
                    self._denied()
                elif content is None:
                    self._headers(404, 0)
                else:
                    self._headers(web.head, len(content))

            def do_GET(self):
                web.addresses.add(self.path)
                content = web.file(self.path)
                low, high = 0, len(content or b"")
                asked = self.headers.get("Range")
                if asked:
                    first, _, last = asked.removeprefix("bytes=").partition("-")
                    low, high = int(first), int(last or high - 1) + 1
                with web._lock:
                    number = web.requests
                    web.requests += 1
                    web.ranges.append((low, high))
                    web._in_hand += 1
                    web.most_at_once = max(web.most_at_once, web._in_hand)
                time.sleep(web.latency_s)
                with web._lock:
                    web._in_hand -= 1
                manner = web.behave(number)
                if manner == "hang":
                    web._over.wait(20)
                    self.close_connection = True
                    return
                if manner == "denied":
                    self._denied()
                    return
                if manner in ("error", "missing") or content is None:
                    self._headers(500 if manner == "error" else 404, 0)
                    return
                body = content[low:high]
                if asked and not body:
                    self._headers(416, 0, f"bytes */{len(content)}")
                    return
                self._headers(206 if asked else 200, len(body), f"bytes {low}-{low + len(body) - 1}/{len(content)}")
                if manner == "half":
                    body = body[: len(body) // 2]
                    self.close_connection = True
                self.wfile.write(body)

            def _denied(self):
                asked = "".join(f"<{name}>{value}</{name}>" for name, value in self.headers.items())
                body = f"<Error><Code>AccessDenied</Code><Resource>{self.path}</Resource>{asked}</Error>".encode()
                self._headers(403, len(body))
                if self.command != "HEAD":
                    self.wfile.write(body)

            def _headers(self, status, length, content_range=None):
                self.send_response(status)
                self.send_header("Content-Length", str(length))
                if told and web.tag is not None:
                    self.send_header("ETag", web.tag)
                if told and web.modified is not None:
                    self.send_header("Last-Modified", web.modified)
                self.send_header("Accept-Ranges", "bytes")
                if web.encoding is not None:
                    self.send_header("Content-Encoding", web.encoding)
                if content_range:
                    self.send_header("Content-Range", content_range)
                self.end_headers()

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # with 5, who comes sixth waits for a second

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def file(self, address):
        """The content behind an address, or None."""
        if not isinstance(self.content, dict):
            return self.content
        return self.content.get(urllib.parse.unquote(address.partition("?")[0]))

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
