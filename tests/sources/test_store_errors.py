"""Every failure of a store is one sentence with the cause and the way out, for every kind of request."""

import re
import socket

import numpy as np
import pytest
from helpers.failing_s3_server import BUCKET, SLOW_FAULTS, fault_store

from bushel._src.base.errors import DamagedFile
from bushel._src.sources import file_access, folders, object_stores
from bushel.sources import LineDataSource, ZarrDataSource

REPEATED = "Bushel has repeated the request. Try again later, or raise `retries` in the options of the store."
GONE = "Correct the address: the file or its bucket is missing."
CREATE = "Create it first, or correct the address."
KEYS = "Check the key or token in the environment or in the options of the store: it may be missing, wrong or expired."
ALLOWED = "Use credentials that are allowed to, or ask the owner of the store."
ALONE = "Let only one process write to an address, and run this again."


@pytest.fixture
def store(tmp_path, monkeypatch):
    with fault_store(tmp_path, monkeypatch) as store:
        store.objects["x/a"] = b"content"
        yield store


OPTIONS = {"retries": 1, "timeout_s": 20}


def do(deed, **options):
    """Makes a request that begins with this kind of request of S3."""
    base, options = f"s3://{BUCKET}/x", {**OPTIONS, **options}
    if deed == "HEAD":
        file_access.open_file(f"{base}/a", options)
    elif deed == "GET":
        file = file_access.open_file(f"{base}/a", options)
        file.read(0, file.size)
    elif deed == "LIST":
        file_access.find_files(f"{base}/*", options)
    elif deed == "PUT":
        folders.open_folder(base, options).write("b", b"b")
    elif deed == "COPY":
        folders.open_folder(base, options).rename("a", "b")
    elif deed == "DELETE":
        folders.open_folder(base, options).remove(["a"])
    else:  # BEGIN, PART, COMPLETE
        folders.open_folder(base, options).write("b", b"b" * 1000)


SHOWN = {"HEAD": "a", "GET": "a", "LIST": "", "PUT": "b", "COPY": "b", "DELETE": "a"}
VERBS = {"HEAD": "read", "GET": "read", "LIST": "listed", "DELETE": "removed"}
BODIES = ("GET", "LIST", "PUT", "COPY", "DELETE", "BEGIN", "PART", "COMPLETE")
"""Requests whose answer has a text. An answer to HEAD has none."""

SENTENCES = {
    (400, "InvalidRequest"): (
        OSError,
        "could not be {verb}: the store does not accept the request ({cited}). Check the address, the region and the "
        "other options of the store.",
    ),
    (401, "InvalidToken"): (
        PermissionError,
        "may not be {verb}: the store does not accept the credentials ({cited}). " + KEYS,
    ),
    (403, "AccessDenied"): (PermissionError, "may not be {verb}: the store refuses it ({cited}). " + ALLOWED),
    (409, "OperationAborted"): (
        OSError,
        "could not be {verb}: another process changes the same object ({cited}). " + ALONE,
    ),
    (412, "PreconditionFailed"): (
        OSError,
        "could not be {verb}: the object has changed meanwhile ({cited}). " + ALONE,
    ),
    (429, "TooManyRequests"): (
        OSError,
        "could not be {verb}: the store gets too many requests ({cited}). " + REPEATED + " Use fewer workers.",
    ),
    (500, "InternalError"): (OSError, "could not be {verb}: the store failed ({cited}). " + REPEATED),
    (502, "BadGateway"): (OSError, "could not be {verb}: the store failed ({cited}). " + REPEATED),
    (503, "SlowDown"): (
        OSError,
        "could not be {verb}: the store is overloaded ({cited}). " + REPEATED + " Use fewer workers.",
    ),
    (507, "NoRoom"): (
        OSError,
        "could not be {verb}: the store has no room ({cited}). Remove objects, or ask for a larger quota.",
    ),
    "reset before": (OSError, "could not be {verb}: the server broke the connection. " + REPEATED),
}


@pytest.mark.parametrize("deed", ["HEAD", *BODIES])
def test_each_failure_is_one_sentence(deed, store, monkeypatch):
    if deed in ("BEGIN", "PART", "COMPLETE"):
        monkeypatch.setattr(folders, "_PART_BYTES", 400)
    verb, name = VERBS.get(deed, "written"), SHOWN.get(deed, "b")
    for fault, (kind, sentence) in SENTENCES.items():
        store.objects["x/a"] = b"content"
        store.reset(lambda number, line, fault=fault: fault if line.startswith(deed) else None)
        with pytest.raises(kind) as error:
            do(deed)
        status, code = fault if isinstance(fault, tuple) else ("", "")
        cited = f"{status}" if deed == "HEAD" else f"{status} {code}: {code} it says"
        assert str(error.value) == f"s3://{BUCKET}/x/{name} " + sentence.format(verb=verb, cited=cited), (deed, fault)
        repeats = len([line for line in store.log if line.startswith(deed)])
        final = isinstance(fault, tuple) and fault[0] < 429
        assert repeats >= 1 + (not final), (deed, fault, store.log)


def test_what_is_not_there_is_told_from_a_bucket_that_is_not_there(store):
    with pytest.raises(FileNotFoundError, match=re.escape(f"s3://{BUCKET}/x/none does not exist. {GONE}")):
        file_access.open_file(f"s3://{BUCKET}/x/none", OPTIONS)
    with pytest.raises(FileNotFoundError, match=r"s3://nobucket/x does not exist\. " + re.escape(GONE)):
        file_access.open_file("s3://nobucket/x", OPTIONS)
    told = re.escape(f"s3://nobucket/ could not be listed: the bucket does not exist. {CREATE}")
    with pytest.raises(FileNotFoundError, match=told):
        file_access.find_files("s3://nobucket/*", OPTIONS)
    told = re.escape(f"s3://nobucket/x could not be written: the bucket does not exist. {CREATE}")
    with pytest.raises(FileNotFoundError, match=told):
        folders.open_folder("s3://nobucket", OPTIONS).write("x", b"x")
    folders.open_folder(f"s3://{BUCKET}", OPTIONS).remove(["none"])  # what is not there is removed already


def test_a_name_that_no_server_has_is_named(tmp_path):
    options = {"endpoint": "http://no-such-host.invalid", "retries": 0, "timeout_s": 20}
    told = r"s3://b/x could not be read: the name of the server cannot be found\. Check the address, the region and the"
    with pytest.raises(OSError, match=told):
        file_access.open_file("s3://b/x", {**options, **KEYPAIR})


KEYPAIR = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}


def test_a_server_that_is_not_there_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        options = {"endpoint": f"http://127.0.0.1:{taken.getsockname()[1]}", "retries": 0, **KEYPAIR}
        told = r"s3://b/x could not be read: no server answers at this address\. Check the endpoint and the network\."
        with pytest.raises(OSError, match=told):
            file_access.open_file("s3://b/x", options)


def test_an_endpoint_that_does_not_speak_https_is_named(store):
    options = {"endpoint": store.endpoint.replace("http:", "https:"), "retries": 0, **KEYPAIR}
    told = r"s3://b/x could not be read: the encrypted connection \(TLS\) cannot be made\. Check that the endpoint"
    with pytest.raises(OSError, match=told):
        file_access.open_file("s3://b/x", options)


@pytest.mark.parametrize("fault", SLOW_FAULTS)
@pytest.mark.parametrize("deed", ["HEAD", "PUT", "DELETE"])
def test_a_server_that_does_not_answer_is_named(deed, fault, store):
    store.reset(lambda number, line: fault)
    with pytest.raises(OSError) as error:
        do(deed, retries=0, timeout_s=0.2)
    verb, name = VERBS.get(deed, "written"), SHOWN[deed]
    assert str(error.value) == (
        f"s3://{BUCKET}/x/{name} could not be {verb}: the server did not answer in time. Raise `timeout_s` or "
        "`retries` in the options of the store."
    )


# Answers that are lost: the store has done it, and the client does not know.


@pytest.mark.parametrize("fault", ["reset after", "half answer", "500 after"])
@pytest.mark.parametrize("deed", ["PUT", "COPY", "DELETE", "BEGIN", "PART", "COMPLETE", "LIST"])
def test_a_lost_answer_is_no_failure(deed, fault, store, monkeypatch):
    if deed in ("BEGIN", "PART", "COMPLETE"):
        monkeypatch.setattr(folders, "_PART_BYTES", 400)
    hit = []

    def lose_first(number, line):
        if line.startswith(deed) and not hit:
            hit.append(line)
            return fault
        return None

    store.reset(lose_first)
    do(deed)
    assert hit
    expected = {
        "PUT": {"x/a": b"content", "x/b": b"b"},
        "COPY": {"x/b": b"content"},
        "DELETE": {},
        "LIST": {"x/a": b"content"},
    }
    assert store.objects == expected.get(deed, {"x/a": b"content", "x/b": b"b" * 1000})


def test_the_end_of_an_upload_whose_answers_are_all_lost_is_seen_by_the_object(store, monkeypatch):
    """The object is there: an upload is not sent again, and it is no error."""
    monkeypatch.setattr(folders, "_PART_BYTES", 400)
    store.objects["x/b"] = b"c" * 1000  # the same size as the new object
    store.reset(lambda number, line: "reset after" if line.startswith("COMPLETE") else None)
    do("COMPLETE")
    assert store.objects["x/b"] == b"b" * 1000
    assert len([line for line in store.log if line.startswith("BEGIN")]) == 1


def test_an_upload_that_the_store_has_forgotten_is_an_error_that_says_so(store, monkeypatch):
    monkeypatch.setattr(folders, "_PART_BYTES", 400)
    store.objects["x/b"] = b"c" * 1000
    store.reset(lambda number, line: (404, "NoSuchUpload") if line.startswith("COMPLETE") else None)
    told = (
        f"s3://{BUCKET}/x/b could not be written: the store has received all parts, but no answer says that it has put "
        "them together. Write it again; raise `timeout_s` in the options of the store if this happens again."
    )
    with pytest.raises(OSError, match=re.escape(told)):
        do("COMPLETE")
    assert store.objects["x/b"] == b"c" * 1000


CONNECTION = ["allow_http", "ALLOW_HTTP", "aws_allow_http", "allow_invalid_certificates", "http1_only"]


@pytest.mark.parametrize("option", CONNECTION)
@pytest.mark.parametrize("value", ["true", True])
def test_options_of_the_connection_are_taken(option, value, store):
    file = file_access.open_file(f"s3://{BUCKET}/x/a", {**OPTIONS, option: value})
    assert file.read(0, file.size) == b"content"


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"allow_http": "maybe"}, 'failed to parse "maybe" as boolean'),
        ({"timeout": "soon"}, 'failed to parse "soon" as Duration'),
        ({"proxy_url": "::::"}, "builder error"),
        ({"client_options": 5}, "client_options must be a dict, got int"),
        ({"default_headers": {"a": "b\n"}}, "failed to parse header value"),
        ({"no_option": "1"}, "no_option"),
    ],
)
def test_wrong_options_are_an_error_of_python_that_names_them(scheme, options, says):
    account = {"account_name": "me"} if scheme == "az" else {}
    with pytest.raises(
        ValueError, match=re.escape(f"{scheme}://bucket cannot be opened with these options: ")
    ) as caught:
        file_access.open_file(f"{scheme}://bucket/x", {**account, **options})
    assert says in str(caught.value)


def test_a_panic_of_obstore_is_an_error_of_python():
    import obstore.store

    with pytest.raises(BaseException) as caught:
        obstore.store.from_url("s3://bucket", allow_http="true")
    assert not isinstance(caught.value, Exception), "if this fails, obstore no longer panics"
    error = object_stores.explain_failure(caught.value, "s3://bucket/x", [], "read")
    assert isinstance(error, OSError) and "s3://bucket/x could not be read: obstore has failed" in str(error)


@pytest.fixture
def zarr_store(store, tmp_path):
    """The same server, with the arrays "a" and "b" of a Zarr store."""
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "z"), mode="w")
    for name in "ab":
        group.create_array(name, shape=(10, 2), dtype="f4", chunks=(5, 2))[:] = np.arange(20).reshape(10, 2)
    for path in (tmp_path / "z").rglob("*"):
        if path.is_file():
            store.objects[path.relative_to(tmp_path).as_posix()] = path.read_bytes()
    return store


ZARR_FAULTS = {
    (401, "InvalidToken"): (PermissionError, "the store does not accept the credentials (401 InvalidToken"),
    (403, "AccessDenied"): (PermissionError, "the store refuses it (403 AccessDenied"),
    (500, "InternalError"): (OSError, "the store failed (500 InternalError"),
    (503, "SlowDown"): (OSError, "the store is overloaded (503 SlowDown"),
}


@pytest.mark.parametrize("at", ["GET z/zarr.json", "GET z/a/zarr.json", "GET z/a/c/0/0", "LIST z"])
@pytest.mark.parametrize("fault", ZARR_FAULTS, ids=str)
def test_a_failure_of_the_store_is_not_called_damage_of_zarr(at, fault, zarr_store):
    zarr_store.reset(lambda number, line: fault if line.startswith(at) else None)
    kind, sentence = ZARR_FAULTS[fault]
    with pytest.raises(kind, match=re.escape(sentence)) as error:
        ZarrDataSource(f"s3://{BUCKET}/z", storage_options=OPTIONS)[0]
    assert not isinstance(error.value, DamagedFile)


def test_an_array_of_zarr_without_metadata_is_not_left_out(zarr_store, tmp_path):
    del zarr_store.objects["z/a/zarr.json"]
    (tmp_path / "z" / "a" / "zarr.json").unlink()
    for path, options in ((f"s3://{BUCKET}/z", OPTIONS), (tmp_path / "z", None)):
        with (
            pytest.warns(UserWarning, match="not recognized"),
            pytest.raises(DamagedFile, match="the folder 'a' holds chunks of an array, but not its metadata"),
        ):
            ZarrDataSource(path, storage_options=options)


def test_a_folder_of_other_files_beside_the_arrays_of_zarr_is_allowed(zarr_store):
    zarr_store.objects["z/notes/readme.txt"] = b"recorded on a Monday"
    with pytest.warns(UserWarning, match="not recognized"):
        source = ZarrDataSource(f"s3://{BUCKET}/z", storage_options=OPTIONS)
    assert list(source[9]) == ["a", "b"]


def test_markers_of_folders_are_no_files(store):
    store.objects |= {
        "data/": b"",
        "data/sub/": b"",
        "data/empty/": b"",
        "data/old_$folder$": b"",
        "data/sub/x.jsonl": b"1\n2\n",
        "data/y.jsonl": b"3\n",
        "data/none.jsonl": b"",
    }
    found = file_access.find_files(f"s3://{BUCKET}/data/**", OPTIONS)
    assert found == [f"s3://{BUCKET}/data/{name}" for name in ("none.jsonl", "sub/x.jsonl", "y.jsonl")]
    assert list(LineDataSource(f"s3://{BUCKET}/data/**", storage_options=OPTIONS)) == [b"1", b"2", b"3"]
