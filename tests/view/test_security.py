"""Who may read from the viewer's server, and what it serves: other hosts, origins and paths are refused."""

import http.client
import json
import re
from urllib.parse import urlsplit

import pytest

import bushel
from bushel import MapDataset
from bushel._src.view.server import PAGE


@pytest.fixture(scope="module")
def view():
    with bushel.view(MapDataset.source(["secret <script>alert(1)</script>"])) as view:
        yield view


def ask(view, path, *, method="GET", host=None, token=True, **headers):
    """The status, headers and body of the answer to a request that is sent as it is."""
    address = urlsplit(view.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=250)
    connection.putrequest(method, path, skip_host=True)
    if host is not False:
        connection.putheader("Host", host or address.netloc)
    if token:
        connection.putheader("X-Bushel-Token", view.token if token is True else token)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def test_the_page_itself_may_read(view):
    status, _, body = ask(
        view, "/api/elements/read?index=0", Origin=view.url.split("/#")[0], Sec_Fetch_Site="same-origin"
    )
    assert status == 200 and "secret" in json.loads(body)["element"]["text"]


@pytest.mark.parametrize("path", ["/api/info", "/api/elements/read?index=0", "/api/pipeline/step", "/api/nothing"])
@pytest.mark.parametrize("token", [False, "wrong", "é"])
def test_data_need_the_token(view, path, token):
    status, _, body = ask(view, path, token=token)
    assert status == 401 and b"secret" not in body and "token" in json.loads(body)["error"]["message"]


def test_the_token_is_not_sent_in_the_address_and_not_taken_from_it(view):
    """Browsers do not send what comes after #, so that it is in no log and in no Referer."""
    assert urlsplit(view.url).fragment == f"token={view.token}"
    assert ask(view, f"/api/info?token={view.token}", token=False)[0] == 401


@pytest.mark.parametrize(
    "host", [False, "evil.example", "127.0.0.1.evil.example", "evil.example:80", "[evil]", "10.0.0.1", "localhost.evil"]
)
@pytest.mark.parametrize("path", ["/", "/app.js", "/api/info"])
def test_other_hosts_are_refused(view, host, path):
    """A name that an attacker's DNS has pointed at this machine would make its pages same-origin with ours."""
    status, _, body = ask(view, path, host=host)
    assert status in (400, 403) and b"secret" not in body  # uvicorn itself refuses a request without a host


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9999", "[::1]:80", "LOCALHOST:1"])
def test_own_names_are_taken_with_any_port(view, host):
    """With any port, since ssh may forward another one."""
    assert ask(view, "/api/info", host=host)[0] == 200


def test_two_host_headers_are_refused(view):
    assert ask(view, "/api/info", host="localhost", Host="evil.example")[0] in (400, 403)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
def test_other_origins_are_refused(view, origin):
    status, headers, body = ask(view, "/api/info", Origin=origin)
    assert status == 403 and b"secret" not in body
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_other_sites_are_refused(view, site):
    assert ask(view, "/api/info", Sec_Fetch_Site=site)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_allowed(view, method):
    assert ask(view, "/api/info", method=method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "/panels/../../server.py",
        "/....//server.py",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/vendor/..\\..\\server.py",
        "/panels/",
        "/panels/elements.js%00.html",
        "/README.md",
        "/vendor/uPlot.LICENSE",
    ],
)
def test_paths_cannot_be_walked(view, path):
    status, _, body = ask(view, path)
    assert status == 404 and body == b"There is no such file."


def test_every_answer_has_the_headers_of_security(view):
    for path in ("/", "/app.js", "/api/info", "/nothing", "/api/nothing"):
        _, headers, _ = ask(view, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self';" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
    _, headers, _ = ask(view, "/api/info", token=False)
    assert "default-src 'none'" in headers["content-security-policy"]


def test_arguments_that_make_no_sense_are_answered_with_a_sentence(view):
    for query in ("index=x", "index=-1", "step=99", "index=" + "9" * 500, "index=1e3"):
        status, _, body = ask(view, f"/api/elements/read?{query}")
        assert status == 400 and json.loads(body)["error"]["message"], query


def test_the_page_needs_nothing_from_outside():
    """It works offline, and nobody learns that it was opened."""
    files = [path for path in PAGE.rglob("*") if path.suffix in (".html", ".js", ".css", ".svg")]
    assert len(files) > 8
    for path in files:
        addresses = re.findall(r"https?://[^\s\"')]+", path.read_text())
        known = ("http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot")
        assert all(address.startswith(known) for address in addresses), path


def test_no_code_of_the_page_makes_html_from_texts():
    for path in PAGE.rglob("*.js"):
        if "vendor" not in path.parts:
            source = path.read_text()
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", source
            ), path


def test_the_server_listens_on_the_loopback_address_alone(view):
    assert view.url.startswith("http://127.0.0.1:")


def test_a_server_for_other_machines_takes_its_addresses_and_no_other_name():
    with bushel.view(MapDataset.range(3), host="0.0.0.0") as view:
        address = urlsplit(view.url)
        view_here = type("", (), {"url": f"http://127.0.0.1:{address.port}/#token={view.token}", "token": view.token})
        assert ask(view_here, "/api/info", host="192.168.1.7:80")[0] == 200
        assert ask(view_here, "/api/info", host="evil.example")[0] == 403
        assert ask(view_here, "/api/info", token=False)[0] == 401
