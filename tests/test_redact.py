"""What is shown of addresses, options and the texts of others holds no secret, and still says which file is meant."""

import base64
import os
import pickle
import urllib.parse

import pytest
from helpers.error_text import all_text_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bushel._src.base import redact
from bushel.sources import file_fingerprint

MARKER = "Zq7mArKeRx9"
HOSTS = ["host", "127.0.0.1:8080", "[::1]:80", "bucket", "account.blob.core.windows.net"]
SCHEMES = ["http", "https", "HTTPS", "s3", "S3", "gs", "az", "abfss", "ftp", "memory", "hf", "file"]
NAMES = [
    "sig",
    "X-Amz-Signature",
    "X-Goog-Credential",
    "AWSAccessKeyId",
    "se",
    "token",
    "Key-Pair-Id",
    "x-oss-signature",
]


def encoded(text, times):
    for _ in range(times):
        text = urllib.parse.quote(text, safe="")
    return text


@st.composite
def addresses(draw):
    """URLs with the marker wherever a URL may hold a secret."""
    scheme, host = draw(st.sampled_from(SCHEMES)), draw(st.sampled_from(HOSTS))
    noise = draw(st.sampled_from(["", "a+b", "x/y", "==", "%2F", "-_"]))
    secret = f"{noise}{MARKER}{draw(st.sampled_from(['', '/z', '=', '%3D', '+']))}"
    user = draw(st.sampled_from(["", f"user:{secret}@", f"{MARKER}:pw@", f"AKIA:{MARKER}/a@", f"me%3A{MARKER}%40"]))
    times = draw(st.integers(0, 2))
    parameter = f"{draw(st.sampled_from(NAMES))}={secret}"
    query = draw(
        st.sampled_from(["", f"?{parameter}", f"?id=3&{parameter}", f"#{parameter}", f"?{parameter}#{secret}"])
    )
    if scheme.lower().startswith("http"):
        query = draw(st.sampled_from([query, f"?{secret}", f"#{secret}"]))
    folder = draw(st.sampled_from(["", "a/", "date=2025/", "we ird/", "a@b/"])) if not user else ""
    return f"{scheme}://{user}{host}/{folder}train.bag{encoded(query, times)}"


@settings(max_examples=150, deadline=None)
@example("s3://key:Zq7mArKeRx9@bucket/x")
@example("https://h/p?sig=Zq7mArKeRx9#frag")
@example("https://h/p%3Fsig%3DZq7mArKeRx9")
@example("file://user:Zq7mArKeRx9@host/")
@example("zip://x.csv::https://u:Zq7mArKeRx9@h/p?a=Zq7mArKeRx9")
@example("https://h/p;jsessionid=1;token=Zq7mArKeRx9/x")
@example("https://objectstorage.eu.oraclecloud.com/p/Zq7mArKeRx9/n/space/b/bucket/o/train.bag")
@given(addresses())
def test_no_view_of_an_address_holds_a_secret(url):
    known = redact.secrets_of(url) if " " in url else []  # nobody can tell where such a URL ends in a text
    views = [redact.show(url), redact.remove_query(url), redact.identify_path(url), redact.base_name(url)]
    views += [
        redact.object_name(url),
        redact.clean(f"GET ({url}) failed", known),
        redact.clean(repr([url, b"x", url.encode()]), known),
    ]
    views += [str(file_fingerprint(url)), repr(redact.Options({"url": url})), redact.clean(url, redact.secrets_of(url))]
    assert [view for view in views if MARKER in view] == []


@given(addresses())
def test_what_is_clean_stays_as_it_is(url):
    text = f"could not read {url}, Authorization: Bearer abcdef"
    for secrets in ([], redact.secrets_of(url)):
        clean = redact.clean(text, secrets)
        assert redact.clean(clean, secrets) == clean
    assert redact.show(redact.show(url)) == redact.show(url)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_is_accepted(text):
    for view in (
        redact.show,
        redact.remove_query,
        redact.identify_path,
        redact.base_name,
        redact.object_name,
        redact.clean,
    ):
        assert isinstance(view(text), str)
    assert redact.clean(f"<{text}>", redact.secrets_of(text, {"a": [text], "b": text.encode()})) is not None


PLAIN = [
    "/data/train-?.bag",
    "s3://bucket/train-*.bag",
    "s3://bucket/part-?.bag",
    "gs://b/a@b/x.bag",
    "abfss://container@account.dfs.core.windows.net/x",
    "http://127.0.0.1:8080/a@b.bag",
    "memory://folder/we ird.bag",
    "relative/name@3.bagz",
    "hf://datasets/me/x#1",
]


@pytest.mark.parametrize("path", PLAIN)
def test_names_without_secrets_are_shown_as_they_are(path):
    assert redact.show(path) == redact.remove_query(path) == redact.identify_path(path) == path
    assert file_fingerprint(path) == [path]  # fingerprints of earlier states
    assert redact.secrets_of(path) == []
    assert redact.base_name(path) == redact.object_name(path) == path.rpartition("/")[2]


TEXTS = {
    "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=ZZZ;EndpointSuffix=core.windows.net": "AccountName=me",
    "SharedAccessSignature=sv=2021&sig=ZZZ;": "SharedAccessSignature",
    "{'aws_secret_access_key': 'ZZZ', 'region': 'eu'}": "'region': 'eu'",
    '{"sas_token": "ZZZ"}': "sas_token",
    "Authorization: AWS4-HMAC-SHA256 Credential=ZZZ/2025, Signature=ZZZ": "Authorization",
    "authorization='Bearer ZZZ'": "authorization",
    "header Bearer ZZZ was refused": "was refused",
    "<Code>NotMatching</Code><AWSAccessKeyId>ZZZ</AWSAccessKeyId><StringToSign>ZZZ</StringToSign>": "NotMatching",
    "key AKIAZZZZZZZZZZZZZZZZ is unknown": "is unknown",
    "connect to postgres://me:ZZZ@db/x failed": "@db/x failed",
    "url=https%3A%2F%2Fh%2Fp%3Fsig%3DZZZ&x": "https",
    "X-Goog-Signature=ZZZ": "X-Goog-Signature",
    "password: ZZZ": "password",
}


@pytest.mark.parametrize(("text", "kept"), TEXTS.items())
def test_secrets_in_the_texts_of_others(text, kept):
    clean = redact.clean(text.replace("ZZZ", "ZZZZZZZZ"))
    assert "ZZZ" not in clean
    assert kept in clean


@pytest.mark.parametrize(
    "text", ["pack(tokens=2048, pad_token=0)", "map(tokenize @ a/b.py:12)", "LineDataSource(x.txt: 3 records)", "5: ok"]
)
def test_texts_without_secrets_are_not_changed(text):
    assert redact.clean(text) == text


PARTS = [
    "a.",
    "26",
    "3Fsecret",
    "http://",
    "?",
    "s3://b/?",
    "<Sign",
    "%25",
    "::a",
    "x-amz-",
    ";a",
    "u:p@",
    "sig=",
    "...",
]


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_long_texts_of_servers_are_cleaned_in_time(part):
    """None of them takes time that grows with the square of their length: that would end at the limit for tests."""
    for text in (part * 50_000, f"http://{part * 50_000}", f"s3://{part * 50_000}", f"see {part * 50_000} there"):
        assert isinstance(redact.clean(text), str)
        assert isinstance(redact.object_name(text), str)


class Credential:
    def __init__(self):
        self.inner = {"deep": [MARKER]}


OPTIONS = {
    "text": MARKER,
    "bytes": MARKER.encode(),
    "list": ["x", (MARKER,)],
    "dict": {"nested": {"a": MARKER}},
    "object": Credential(),
    "endpoint": f"http://me:{MARKER}@host:9000?sig={MARKER}",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_values_of_options_are_hidden_in_every_form(name):
    secrets = redact.secrets_of("s3://bucket/x", {name: OPTIONS[name]})
    forms = [MARKER, urllib.parse.quote(MARKER + "/="), base64.b64encode(MARKER.encode()).decode(), f"{MARKER}\n"]
    text = " | ".join(["the driver says", *forms, repr({"k": MARKER})])
    clean = redact.clean(text, secrets)
    assert MARKER not in clean
    assert base64.b64encode(MARKER.encode()).decode() not in clean
    assert "the driver says" in clean
    shown = redact.Options({name: OPTIONS[name]})
    assert f"{shown} {shown!r}" == f"{{{name}: ...}} {{{name}: ...}}"
    if name != "object":
        assert pickle.loads(pickle.dumps(shown)) == shown == {name: OPTIONS[name]}  # a worker needs them


def test_the_endpoint_of_a_store_stays_readable():
    secrets = redact.secrets_of("s3://b/x", {"endpoint": "http://10.0.0.1:9000", "region": "eu-west", "retries": "0"})
    text = "could not connect to http://10.0.0.1:9000 in eu-west after 0 retries"
    assert redact.clean(text, secrets) == text


# Errors.


class OwnText(OSError):
    """As aiohttp's: its text does not come from its arguments."""

    def __init__(self, url):
        self.url = url

    def __str__(self):
        return f"500, url={self.url}"


def failing(kind):
    url = f"https://me:{MARKER}@host/x?sig={MARKER}"
    match kind:
        case "plain":
            return OSError(f"GET {url} failed")
        case "file":
            return FileNotFoundError(2, f"no such thing as {url}", url)
        case "key":
            return KeyError(url)
        case "arguments":
            return ValueError("bad", {"url": url}, [MARKER])
        case "own text":
            return OwnText(url)
        case "notes":
            error = RuntimeError("x")
            error.add_note(f"while reading {url}")
            return error
        case "group":
            return ExceptionGroup(f"of {url}", [ValueError(MARKER), OSError(url)])


KINDS = ["plain", "file", "key", "arguments", "own text", "notes", "group"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("link", ["alone", "cause", "context"])
def test_errors_lose_their_secrets_and_those_they_are_chained_to(kind, link):
    error = failing(kind)
    if link != "alone":
        outer = RuntimeError("outside")
        try:
            try:
                raise error  # pyright: ignore[reportGeneralTypeIssues]
            except BaseException as inner:
                if link == "cause":
                    raise outer from inner
                raise outer  # noqa: B904
        except RuntimeError as raised:
            error = raised
    assert MARKER in all_text_of(error)
    clean = redact.scrub(error, [MARKER])
    told = all_text_of(clean)
    if kind == "group":  # Python lets nobody change the message of a group
        told = told.replace(f"of https://me:{MARKER}@host/x?sig={MARKER}", "")
    assert MARKER not in told
    assert isinstance(clean, RuntimeError) or type(clean) is type(error) or isinstance(clean, OSError)


def test_an_error_that_is_chained_to_itself():
    error = OSError(MARKER)
    error.__context__ = ValueError("x")
    error.__context__.__cause__ = error
    assert MARKER not in all_text_of(redact.scrub(error, [MARKER]))


# Identity.


@pytest.mark.parametrize("signed", ["X-Amz-Signature={}&X-Amz-Date={}", "sv=1&se={}&sig={}", "Expires={}&Signature={}"])
@pytest.mark.parametrize("chosen", ["", "versionId=7&", "id=3&file=a%2Fb&"])
def test_an_address_that_is_signed_again_is_the_same(signed, chosen):
    first, second = (f"https://h/a/x.bag?{chosen}{signed.format(n, n)}" for n in (1111, 2222))
    assert redact.object_name(first) == redact.object_name(second)
    assert (
        redact.identify_path(first) == redact.identify_path(second) != redact.identify_path(first.replace("/a/", "/b/"))
    )
    if chosen:
        others = [redact.object_name(f"https://h/a/x.bag?{signed.format(1, 1)}"), redact.object_name(f"{first}&id=4")]
        assert redact.object_name(first) not in others


def test_a_path_may_be_any_path_like():
    class Place(os.PathLike):
        def __fspath__(self):
            return f"https://h/x?sig={MARKER}"

    assert redact.show(Place()) == "https://h/x?..."


WORDS = [
    *[
        "=",
        ":",
        " ",
        "%3D",
        "%",
        "<",
        ">",
        "/",
        "://",
        "'",
        "&",
        ";",
        "...",
        "http",
        "s3",
        "abcdef",
        "0123456789ABCDEF",
    ],
    *["Authorization", "Bearer ", "SharedKey ", "AWS4-HMAC-SHA256 ", "AKIA", "ASIA", "SIG", "\u017fig", "to\u212aen"],
    *[
        "x-amz-date",
        "X-ms-version",
        "secretName",
        "passwd",
        "pwd",
        "passphrase",
        "accessKeyId",
        "account-key",
        "apikey",
    ],
    *["private_key", "session_token", "shared_access_signature", "credentials", "AWSAccessKeyId", "google_access_id"],
]


@settings(max_examples=500, deadline=None)
@given(text=st.lists(st.sampled_from(WORDS), max_size=8).map("".join))
def test_patterns_are_left_out_only_where_none_matches(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redact, "_may_match", lambda text: True)
        expected = redact.clean(text), redact.show(text)
    assert (redact.clean(text), redact.show(text)) == expected
