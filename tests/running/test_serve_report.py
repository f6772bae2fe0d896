"""The report of a running iterator: served to those who know the token, and to nobody else."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
from helpers.browser import run_training
from helpers.waiting import SOON_S, wait_until

import bushel
from bushel._src import cli
from bushel._src.reporting.report_server import History, load_snapshot, measure_memory
from bushel._src.view.attachment import Attachment


@pytest.fixture
def training(tmp_path):
    """The URL of a program that trains in another process."""
    with run_training(tmp_path) as child:
        yield child.url


def timed(length=10**6):
    ds = bushel.MapDataset.range(length).to_iter_dataset()
    return iter(ds.with_options(execution_tracking_mode="stage_timing"))


def ask(server, path="/report", *, method="GET", host=None, **headers):
    parts = urllib.parse.urlsplit(server.url)
    token = urllib.parse.parse_qs(parts.fragment)["token"][0]
    given = {"Host": host or parts.netloc, "X-Bushel-Token": token} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name: value for name, value in given.items() if value is not None})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_another_process_is_attached_to(training):
    attachment = Attachment(training)
    deadline = time.monotonic() + SOON_S
    while True:
        found = attachment.read()
        enough = found["report"]["elements"] > 20 and len(found["series"]["at_s"]) > 5 and found["report"]["skipped"]
        if enough or time.monotonic() > deadline:
            break
    assert enough, found["report"]["text"]
    assert found["name"] == "my run" and found["program"] == "train.py" and found["process"] != os.getpid()
    assert found["verdict"]["bound"] == "input" and "map(decode)" in found["verdict"]["sentence"]
    assert [pool["size"] for pool in found["report"]["pools"]] == [2]
    assert "record 30 is <b>broken</b>" in found["report"]["skips"][0]["error"]
    series = found["series"]
    assert len({len(values) for values in series.values()}) == 1
    assert max(series["elements_per_s"]) > 0 and max(series["waiting"]) > 0.1 and max(series["busy_workers"]) > 0
    assert min(series["own_bytes"]) > 10**6 and max(series["worker_bytes"]) > 10**6


def test_the_command_attaches(training):
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "bushel", "view", "--attach", training, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        try:
            assert line.startswith("the program at 127.0.0.1:") and training.partition("token=")[2] not in line
            page = urllib.parse.urlsplit(line.split()[-1])
            connection = http.client.HTTPConnection(page.netloc, timeout=120)
            with contextlib.closing(connection):
                token = urllib.parse.parse_qs(page.fragment)["token"][0]
                connection.request("GET", "/api/running/snapshot", headers={"X-Bushel-Token": token})
                assert json.loads(connection.getresponse().read())["name"] == "my run"
        finally:
            child.terminate()


def test_attach_needs_a_target_or_an_address(capsys):
    assert cli.main(["view"]) == 1
    assert "Name a target, or a running program with --attach" in capsys.readouterr().err
    assert cli.main(["view", "--attach", "http://127.0.0.1:80/"]) == 1
    assert "--attach takes the URL" in capsys.readouterr().err


def test_nothing_but_the_report_is_served_and_only_to_those_who_know_the_token():
    it = timed()
    next(it)
    with bushel.serve_report(it) as server:
        status, body = ask(server)
        assert status == 200 and json.loads(body)["report"]["elements"] == 1
        assert ask(server, X_Bushel_Token="x" * 32)[0] == 401
        assert ask(server, X_Bushel_Token=None)[0] == 401
        assert ask(server, X_Bushel_Token="é")[0] == 401
        assert ask(server, Origin="http://127.0.0.1:1")[0] == 403
        assert ask(server, host="evil.example:80")[0] == 403
        assert ask(server, "/")[0] == 404
        assert ask(server, "/report?x=../../etc/passwd")[0] == 404
        assert ask(server, "/../../etc/passwd")[0] == 404
        assert ask(server, method="POST")[0] == 501
        assert ask(server)[0] == 200
        assert server.url.partition("token=")[2] not in repr(server)


def test_the_report_server_listens_on_the_loopback_address_alone():
    it = timed()
    with bushel.serve_report(it) as server:
        assert server._server.server_address[0] == "127.0.0.1"


def test_a_silent_client_does_not_stop_the_others():
    it = timed()
    with bushel.serve_report(it) as server, socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server)[0] == 200


class SlowClient:
    """Sends a request without a token byte by byte, for ever, until the server hangs up."""

    def __init__(self, server, request=b"GET /report HTTP/1.1\r\nX: "):
        self.sent, self.ended, self._begun = 0, threading.Event(), time.monotonic()
        self.lasted_s = 0.0
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.sendall(request)
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self):
        with contextlib.suppress(OSError), self._socket:
            self._socket.settimeout(0.02)
            while True:
                self._socket.sendall(b"a")
                self.sent += 1
                with contextlib.suppress(TimeoutError):
                    if not self._socket.recv(1000):
                        break
        self.lasted_s = time.monotonic() - self._begun
        self.ended.set()


@pytest.mark.parametrize("count", [1, 30])
def test_clients_that_send_byte_by_byte_do_not_stop_the_others(count):
    it = timed()
    with bushel.serve_report(it) as server:
        slow = [SlowClient(server) for _ in range(count)]
        wait_until(lambda: all(client.sent for client in slow[-8:]))
        for _ in range(5):
            assert ask(server)[0] == 200
        for client in slow:
            assert client.ended.wait(SOON_S) and client.sent
        assert ask(server)[0] == 200
    assert next(it) == 0


@pytest.mark.parametrize(
    "request_", [b"GET /report HTTP/1.1\r\nX: " + b"a" * 10**6, b"GET /" + b"a" * 10**6, b"X: a\r\n" * 10**5]
)
def test_a_request_that_is_too_long_is_not_read(request_):
    it = timed()
    with bushel.serve_report(it) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(SOON_S)
        with contextlib.suppress(ConnectionError):
            client.sendall(request_)
            while client.recv(1000):  # until the server hangs up
                pass
        assert ask(server)[0] == 200


def test_clients_that_wait_end_with_the_server():
    it = timed()
    server = bushel.serve_report(it)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(SOON_S)
        client.sendall(b"GET")
        assert ask(server)[0] == 200
        server.close()
        with contextlib.suppress(ConnectionError):
            assert client.recv(1) == b""


def test_the_port_closes_with_the_server_and_with_the_iterator():
    it = timed()
    server = bushel.serve_report(it, interval_s=0.01)
    port, thread = server.port, server._thread
    del it
    gc.collect()
    thread.join(SOON_S)
    assert not thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    it = timed()
    server = bushel.serve_report(it)
    server.close()
    server.close()
    assert not server._thread.is_alive() and next(it) == 0


def test_a_closed_iterator_is_called_finished():
    it = timed(5)
    with bushel.serve_report(it) as server:
        list(it)
        assert json.loads(ask(server)[1])["finished"] is False
        it.close()
        assert json.loads(ask(server)[1])["finished"] is True


def test_a_pipeline_that_is_not_timed_says_how_to_time_it():
    it = iter(bushel.MapDataset.range(9))
    with bushel.serve_report(it) as server:
        assert "stage_timing" in json.loads(ask(server)[1])["verdict"]["sentence"]


def test_loaders_are_served_too():
    source = bushel.sources.RangeDataSource(0, 50, 1)
    sampler = bushel.SequentialSampler(num_records=50)
    it = iter(bushel.DataLoader(data_source=source, sampler=sampler, enable_profiling=True))
    next(it)
    with bushel.serve_report(it) as server:
        assert json.loads(ask(server)[1])["report"]["elements"] == 1


@pytest.mark.parametrize("wrong", [5, iter([1]), bushel.MapDataset.range(3)])
def test_what_has_no_report(wrong):
    with pytest.raises(TypeError, match="serve_report takes an iterator of a Bushel dataset, got"):
        bushel.serve_report(wrong)


@pytest.mark.parametrize("interval_s", [0, -1, float("nan")])
def test_wrong_intervals(interval_s):
    with pytest.raises(ValueError, match="interval_s"):
        bushel.serve_report(timed(), interval_s=interval_s)


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1:80/",
        "https://127.0.0.1:80/#token=x",
        "http:///#token=x",
        "http://user@127.0.0.1:80/#token=x",
    ],
)
def test_addresses_that_are_none(place):
    with pytest.raises(ValueError, match="--attach takes the URL"):
        Attachment(place)


def test_a_program_that_has_ended(training):
    it = timed()
    with bushel.serve_report(it) as server:
        attachment = Attachment(server.url)
        wrong = Attachment(server.url[:-3] + "xyz")
        assert attachment.read()["name"] == "train"
        with pytest.raises(ConnectionError, match="refuses: The token is missing or wrong"):
            wrong.read()
    with pytest.raises(ConnectionError, match=r"does not answer .* It may have ended"):
        attachment.read()


def test_redirects_and_proxies_do_not_get_the_token(monkeypatch):
    asked = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(10_000).decode())
                connection.sendall(b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(ConnectionError, match="does not answer"):
        Attachment("http://127.0.0.1:9/#token=secret").read()
    assert asked == []
    for _ in range(2):
        with pytest.raises(ConnectionError, match="refuses: status 302"):
            Attachment(f"http://127.0.0.1:{listener.getsockname()[1]}/#token=secret").read()
    thread.join(SOON_S)
    listener.close()
    assert len(asked) == 2


def test_a_file_that_is_no_profile(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"x\.json does not hold the report of a Bushel iterator"):
        Attachment(path)
    path.write_text('{"format": "bushel report", "version": 99}')
    with pytest.raises(ValueError, match="another version of Bushel"):
        Attachment(path)
    with pytest.raises(ValueError, match="does not hold"):
        load_snapshot(b"\xff\x00", "x")


def test_a_long_run_keeps_a_bounded_number_of_samples(monkeypatch):
    monkeypatch.setattr(
        "bushel._src.reporting.report_server.measure_memory", lambda: (1, 1)
    )  # which asks all processes
    it = timed()
    history = History("train", it.report, interval_s=1.0)
    for _ in range(2000):
        history.sample()
    assert len(history._samples) <= 600 and history.interval_s > 1.0
    found = history.describe()
    assert found["series"]["at_s"] == sorted(found["series"]["at_s"])
    assert json.loads(json.dumps(found))["report"]["timed"] is True


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")
def test_memory_of_this_process_and_of_its_children():
    code = "import sys; x = bytearray(60_000_000); print(1, flush=True); sys.stdin.read()"
    own, before = measure_memory()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        _, after = measure_memory()
        child.stdin.close()
    assert own > 10**7 and after - before > 50_000_000
