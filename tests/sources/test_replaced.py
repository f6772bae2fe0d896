"""An object that is replaced while it is read is refused: on S3, GCS by both interfaces, behind HTTP, by fsspec."""

import contextlib
import random
import threading

import fsspec
import pytest
from helpers.record_formats import bag, written
from helpers.servers import BUCKET, Web, gcs, s3

from bushel import DamagedFile, MapDataset, MultiprocessingOptions
from bushel._src.sources import file_access, fsspec_files
from bushel._src.sources.local_files import as_stream
from bushel.sources import BagzDataSource

OLD, NEW = (random.Random(seed).randbytes(1_000_000) for seed in (1, 2))
QUICK = {"timeout_s": 2, "retries": 0}


@pytest.fixture(scope="module")
def put_s3(tmp_path_factory):
    with s3(tmp_path_factory.mktemp("account")) as put:
        yield put


@pytest.fixture(scope="module")
def put_gcs():
    with gcs() as put:
        yield put


@pytest.fixture
def put(request, scheme):
    return request.getfixturevalue("put_gcs" if scheme == "gcs" else "put_s3")


schemes = pytest.mark.parametrize("scheme", ["s3", "gs", "gcs"])
READS = {
    "one range": lambda file: file.read(10, 100),
    "near ranges": lambda file: file.read_many([10, 500], [100, 100]),
    "far ranges": lambda file: file.read_many([10, 400_000, 900_000], [100, 100, 100]),
    "into memory": lambda file: file.read_into(10, [bytearray(100), bytearray(5)]),
    "as a stream": lambda file: as_stream(file).read(2_000_000),
}


@schemes
@pytest.mark.parametrize("how", READS)
def test_an_object_that_is_replaced_is_refused(put, scheme, how, monkeypatch):
    monkeypatch.setattr(fsspec_files, "_CHECK_S", 0)
    key, read = f"replaced/{how}.bin", READS[how]
    put(key, OLD)
    file = file_access.open_file(f"{scheme}://{BUCKET}/{key}")
    was = file.version()
    read(file)
    put(key, OLD)  # the same content again: nothing has changed for a reader, and S3 gives the same ETag
    if scheme != "gcs":
        read(file)
    put(key, NEW)
    with pytest.raises(DamagedFile, match=f"{scheme}://{BUCKET}/.* now. Make the source again") as error:
        read(file)
    now = file_access.open_file(f"{scheme}://{BUCKET}/{key}").version()
    assert str(was) in str(error.value)
    assert str(now) in str(error.value)
    assert was != now


@schemes
def test_an_object_that_is_replaced_by_a_shorter_one(put, scheme, monkeypatch):
    monkeypatch.setattr(fsspec_files, "_CHECK_S", 1_000)  # the size tells without a question
    put("shorter.bin", OLD)
    file = file_access.open_file(f"{scheme}://{BUCKET}/shorter.bin", QUICK)
    put("shorter.bin", OLD[:1000])
    with pytest.raises(DamagedFile, match="when the source was made, and it is"):
        file.read(500_000, 100)


def test_a_pipeline_over_an_object_that_is_replaced(put_s3, tmp_path):
    """The first records are read before, the next ones after. Workers say the same."""
    records = [number.to_bytes(1, "little") * 1_000 for number in range(200)]
    put_s3("pipeline.bag", written(tmp_path, "bag", records).read_bytes())
    source = BagzDataSource(f"s3://{BUCKET}/pipeline.bag")
    ds = MapDataset.source(source)
    assert ds[0] == records[0]
    put_s3("pipeline.bag", written(tmp_path, "bag", records[::-1]).read_bytes())
    with pytest.raises(DamagedFile, match="when the source was made, and it is"):
        ds[1]
    parallel = ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=1))
    with (
        contextlib.closing(iter(parallel)) as it,
        pytest.raises(DamagedFile, match="when the source was made, and it is"),
    ):
        next(it)


# What a web server tells: an ETag, a time, the size, or nothing.

CHANGES = {
    "tag": ({"tag": '"two"'}, "one.*two"),
    "weak tag": ({"tag": 'W/"two"'}, 'W/"one".*W/"two"'),
    "time": ({"modified": "Thu, 02 Jan 2025 00:00:00 GMT"}, "2025-01-01.*2025-01-02"),
    "size": ({"content": NEW + b"x"}, "1000000.*1000001"),
    "shorter": ({"content": NEW[:5]}, "1000000.* 5"),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("head", [200, 405])
def test_what_a_web_server_tells(how, head):
    with Web(OLD, head=head) as web:
        web.tag = {"tag": '"one"', "weak tag": 'W/"one"'}.get(how)
        web.modified = web.modified if how in ("tag", "time") else None
        file = file_access.open_file(f"{web.url}/x?sig=secret", QUICK)
        for start in (0, 500_000):
            assert file.read(start, 10) == OLD[start : start + 10]
        changes, told = CHANGES[how]
        vars(web).update({"content": NEW, **changes})
        with pytest.raises(
            DamagedFile, match=f"/x\\?\\.\\.\\. has changed: it was .*{told}.*now. Make the source again"
        ):
            file.read(500_000, 10)


def test_a_time_may_differ_where_the_tag_is_the_same():
    with Web(OLD) as web:  # as those of several machines behind one address do
        file = file_access.open_file(f"{web.url}/x", QUICK)
        web.modified = "Thu, 02 Jan 2025 00:00:00 GMT"
        assert file.read(5, 5) == OLD[5:10]


def test_the_check_costs_no_request():
    with Web(OLD * 8) as web:
        file = file_access.open_file(f"{web.url}/x", QUICK)
        heads, web.head = web.head, 500  # a HEAD from here on would fail
        starts = list(range(0, 8_000_000, 100_000))
        assert file.read_many(starts, [10] * 80) == [(OLD * 8)[start : start + 10] for start in starts]
        assert (web.requests, heads) == (80, 200)


def test_a_copy_is_never_of_two_objects(tmp_path):
    """The object is replaced between the two requests that a copy takes."""
    content = OLD * 20
    with Web(content) as web:

        def behave(number):
            if number == 1:
                web.tag, web.content = '"two"', NEW * 20
            return "ok"

        web.behave = behave
        with pytest.raises(DamagedFile, match="when the source was made, and it is"):
            file_access.open_file(f"{web.url}/x", {**QUICK, "cache_dir": tmp_path})
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
        copy = file_access.open_file(f"{web.url}/x", {**QUICK, "cache_dir": tmp_path})
        assert copy.read(0, copy.size) == NEW * 20


def test_a_copy_of_any_store_is_never_of_two_objects(tmp_path, monkeypatch):
    monkeypatch.setattr(fsspec_files, "_CHECK_S", 1_000)
    memory = fsspec.filesystem("memory")
    memory.pipe("/copied/x.bin", OLD * 20)
    replaced = threading.Event()
    plain = type(memory).cat_file

    def cat_file(self, path, start=None, end=None, **more):
        data = plain(self, path, start, end, **more)
        if not replaced.is_set():
            replaced.set()
            memory.pipe("/copied/x.bin", NEW * 20)
        return data

    monkeypatch.setattr(type(memory), "cat_file", cat_file)
    with pytest.raises(DamagedFile, match="when the source was made, and it is"):
        file_access.open_file("memory://copied/x.bin", {"cache_dir": tmp_path})
    assert replaced.is_set()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_signed_again_it_is_the_same_object(tmp_path):
    """A state that was saved with one signature is restored with the next; another object is refused."""
    path = tmp_path / "x.bag"
    bag(path, [bytes([number]) for number in range(9)])
    with Web(path.read_bytes()) as web:

        def stream(query):
            return iter(MapDataset.source(BagzDataSource(f"{web.url}/x.bag?{query}")).shuffle(seed=3).to_iter_dataset())

        first = stream("id=3&X-Amz-Signature=aaaaaaaa&X-Amz-Date=1")
        for _ in range(4):
            next(first)
        again = stream("X-Amz-Date=2&id=3&X-Amz-Signature=bbbbbbbb")
        again.set_state(first.get_state())
        assert list(again) == list(first)
        with pytest.raises(ValueError, match="other data"):
            stream("id=4&X-Amz-Signature=aaaaaaaa&X-Amz-Date=1").set_state(first.get_state())
        options = {"cache_dir": tmp_path / "copies"}
        for query in ("id=3&sig=aaaaaaaa", "id=3&sig=bbbbbbbb", "id=4&sig=aaaaaaaa"):
            file_access.open_file(f"{web.url}/x.bag?{query}", options)
        assert len(list((tmp_path / "copies").glob("*.copy"))) == 2
