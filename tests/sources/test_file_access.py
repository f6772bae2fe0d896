"""Files wherever they lie: local, on S3 and GCS servers, behind HTTP, in any fsspec store; and bad servers."""

import concurrent.futures
import glob
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import warnings

import numpy as np
import pytest
from helpers.record_formats import FORMATS, opened, written
from helpers.servers import BUCKET, Web, gcs, s3
from helpers.waiting import wait_until
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bushel import DamagedFile, MapDataset, MultiprocessingOptions, ReadOptions
from bushel._src.sources import file_access, local_files
from bushel._src.sources.local_files import read_each
from bushel.sources import BagzDataSource, FileDataSource, FixedRecords, LineDataSource, ParquetDataSource, load_arrays

CONTENT = random.Random(0).randbytes(1_000_000)
RECORDS = [random.Random(number).randbytes(number * 97 % 5_000) for number in range(50)]
QUICK = {"timeout_s": 1, "retries": 1}


@pytest.fixture(scope="module")
def put(tmp_path_factory):
    """Puts objects into an S3 server, which holds one."""
    with s3(tmp_path_factory.mktemp("account")) as put:
        put("plain/content.bin", CONTENT)
        yield put


@pytest.fixture(scope="module")
def put_gcs():
    """The same for a GCS server."""
    with gcs() as put:
        put("plain/content.bin", CONTENT)
        yield put


schemes = pytest.mark.parametrize("scheme", ["s3", "gs", "gcs"])


def url(scheme, key):
    return f"{scheme}://{BUCKET}/{key}"


@schemes
@settings(max_examples=10, deadline=None)
@given(ranges=st.lists(st.tuples(st.integers(0, 900_000), st.integers(0, 100_000)), max_size=8))
def test_ranges_of_an_object(put, put_gcs, scheme, ranges):
    file = file_access.open_file(url(scheme, "plain/content.bin"))
    assert file.size == len(CONTENT)
    starts, lengths = [low for low, _ in ranges], [length for _, length in ranges]
    assert file.read_many(starts, lengths) == [CONTENT[low : low + length] for low, length in ranges]


@pytest.mark.parametrize("path", ["s3://bushels", "s3://bushels/", "memory://folder", "memory://folder/"])
def test_a_bucket_or_folder_is_no_file(put, path):
    import fsspec

    fsspec.filesystem("memory").pipe("/folder/x.bag", b"")
    with pytest.raises(IsADirectoryError, match="not a file"):
        BagzDataSource(path)


@pytest.mark.filterwarnings("error")
def test_names_with_brackets_and_schemes_in_capitals(put, tmp_path):
    put("brackets/[1].bag", written(tmp_path, "bag", [b"x"]).read_bytes())
    for path in ("brackets/[1].bag", "brackets/[[]1].bag", "brackets/[!a]1*"):
        assert file_access.find_files(url("s3", path)) == [url("s3", "brackets/[1].bag")]
        assert list(BagzDataSource(url("S3", path))) == [b"x"]


@schemes
def test_a_missing_object_is_an_error_that_names_it(put, put_gcs, scheme):
    with pytest.raises(FileNotFoundError, match=r"none\.bag does not exist"):
        BagzDataSource(url(scheme, "none.bag"))
    with pytest.raises(FileNotFoundError, match="No file matches"):
        BagzDataSource(url(scheme, "none-*.bag"))


def test_what_was_written_since_is_seen(put_gcs, tmp_path):
    """gcsfs remembers listings: the second one must not be the first."""
    for count in (1, 2):
        content = written(tmp_path, "bag", RECORDS[:count]).read_bytes()
        for part in range(count):
            put_gcs(f"new/part-{part}.bag", content)
        assert list(BagzDataSource(url("gcs", "new/part-*.bag"))) == RECORDS[:count] * count


def test_what_may_not_be_read(put):
    put("private.bag", b"", public=False)
    with pytest.raises(PermissionError, match=r"private\.bag may not be read"):
        BagzDataSource(url("gs", "private.bag"))


def test_a_copy_on_disk_within_its_limit(put, tmp_path):
    limit = {"cache_dir": str(tmp_path / "copies"), "cache_bytes": 1_500_000}
    put("cached/one", CONTENT)
    put("cached/two", CONTENT[::-1])
    put("cached/large", CONTENT * 2)

    def copies():
        return sorted(os.path.getsize(path) for path in glob.glob(str(tmp_path / "copies" / "*")))

    first = file_access.open_file(url("s3", "cached/one"), limit)
    assert first.read(10, 20) == CONTENT[10:30]
    assert copies() == [len(CONTENT)]
    put("cached/one", CONTENT[:500_000])  # another version: another copy
    assert file_access.open_file(url("s3", "cached/one"), limit).read(0, 10) == CONTENT[:10]
    assert copies() == [500_000, len(CONTENT)]
    assert file_access.open_file(url("s3", "cached/two"), limit).read(0, 10) == CONTENT[::-1][:10]
    assert sum(copies()) <= limit["cache_bytes"]
    assert first.read(10, 20) == CONTENT[10:30]  # who holds an evicted copy still reads it
    assert file_access.open_file(url("s3", "cached/large"), limit).size == 2_000_000
    assert sum(copies()) <= limit["cache_bytes"]
    with pytest.raises(ValueError, match="cache_bytes must be positive, but got 0"):
        file_access.open_file(url("s3", "cached/one"), limit | {"cache_bytes": 0})
    with pytest.raises(ValueError, match="cache_bytes=5 needs a cache_dir"):
        file_access.open_file(url("s3", "cached/one"), {"cache_bytes": 5})


def endings(folder):
    return sorted(os.path.splitext(path)[1] for path in glob.glob(f"{folder}/*"))


def small_bags(put, folder, count):
    """Files of one record each, as a pattern and the records."""
    records = [f"record {number:03d}".encode() for number in range(count)]
    for number, record in enumerate(records):
        put(f"{folder.name}/{number:03d}.bag", written(folder, "bag", [record]).read_bytes())
    return url("s3", f"{folder.name}/*.bag"), records


def test_a_cache_smaller_than_the_data(put, tmp_path, monkeypatch):
    """Copies and descriptors go all the time; nobody who reads sees it."""
    monkeypatch.setattr(local_files, "_OPEN_AT_ONCE", 4)
    pattern, records = small_bags(put, tmp_path, 40)
    limit = 3 * written(tmp_path, "bag", records[:1]).stat().st_size
    options = {"cache_dir": str(tmp_path / "copies"), "cache_bytes": limit}

    def fits():
        return 0 < sum(path.stat().st_size for path in tmp_path.glob("copies/*")) <= limit

    source = BagzDataSource(pattern, storage_options=options)
    assert fits()
    assert list(source) == source.__getitems__(range(40)) == records
    rows = np.empty((40, 10), np.uint8)
    source.read_into(range(40), rows)
    assert [row.tobytes() for row in rows] == records
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source.__getitem__, list(range(40)) * 4)) == records * 4
    source.close()
    assert list(source) == list(pickle.loads(pickle.dumps(source))) == records
    workers = MapDataset.source(source).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=2))
    with iter(workers) as iterator:
        assert list(iterator) == records
    assert fits()


def test_pieces_of_a_copy_are_asked_together(tmp_path):
    content = CONTENT * 21  # five pieces and a part of one
    with Web(content, latency_s=0.2) as web:
        file = file_access.open_file(f"{web.url}/x", {"cache_dir": str(tmp_path)})
        assert web.most_at_once > 1
        assert sum(high - low for low, high in web.ranges) == len(content)
        assert file.read(0, file.size) == content


@pytest.mark.parametrize("room", [None, 3])
def test_a_copy_is_fetched_once_however_many_ask(room, tmp_path):
    with Web(CONTENT, latency_s=0.1) as web:
        options = {"cache_dir": str(tmp_path)} | ({"cache_bytes": room * len(CONTENT)} if room else {})
        names = [f"{web.url}/{number}" for number in range(4)] * 4
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            files = list(pool.map(lambda name: file_access.open_file(name, options), names))
        assert [file.read(7, 9) for file in files] == [CONTENT[7:16]] * 16
        assert endings(tmp_path) == [".copy"] * (room or 4)
        assert room or web.requests == 4
        requests = web.requests
        file_access.fingerprint_files(names, options)
        assert web.requests == requests  # what a file is can be told without a copy


def test_what_a_killed_process_has_begun_to_copy_is_no_copy(tmp_path):
    program = (
        "import sys; from bushel._src.sources.file_access import open_file; "
        "open_file(sys.argv[1], {'cache_dir': sys.argv[2]})"
    )
    with Web(CONTENT, lambda number: "hang" if number == 0 else "ok") as web:
        child = subprocess.Popen([sys.executable, "-c", program, f"{web.url}/x", str(tmp_path)])
        wait_until(lambda: web.requests and endings(tmp_path))
        assert endings(tmp_path) == [".part"]
        child.kill()
        child.wait()
        options = {"cache_dir": str(tmp_path), "cache_bytes": len(CONTENT)}
        assert file_access.open_file(f"{web.url}/x", options).read(0, 9) == CONTENT[:9]
        assert endings(tmp_path) == [".copy"]


def test_no_copy_of_what_cannot_be_told_from_an_older_one(tmp_path):
    with Web(b"old", told=False) as web:
        for content in (b"old", b"new"):
            web.content = content
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                file = file_access.open_file(f"{web.url}/x", {"cache_dir": str(tmp_path)})
            assert (file.read(0, 3), endings(tmp_path)) == (content, [])
            assert [str(warning.message).partition(": ")[2][:40] for warning in said] == (
                ["its store sends neither an ETag nor a ti"] if content == b"old" else []
            )


def test_a_disk_that_is_full(tmp_path):
    """A limit on the sizes of files, as the system's answer is of the same kind."""
    program = (
        "import resource, sys; from bushel._src.sources import file_access\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\n"
        "try: file_access.open_file(sys.argv[1], {'cache_dir': sys.argv[2]})\n"
        "except OSError as error: print(error)"
    )
    with Web(CONTENT) as web:
        words = [sys.executable, "-c", program, f"{web.url}/x", str(tmp_path)]
        said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=250).stdout
    assert f"{web.url}/x (1000000 bytes) could not be copied to {tmp_path} (File too large). Make room" in said
    assert endings(tmp_path) == []


def test_a_copy_that_was_cut_is_named_after_its_file(put, tmp_path):
    put("plain/cut.bag", written(tmp_path, "bag", RECORDS).read_bytes())
    source = BagzDataSource(url("s3", "plain/cut.bag"), storage_options={"cache_dir": str(tmp_path)})
    (copy,) = tmp_path.glob("*.copy")
    os.truncate(copy, 10)
    with pytest.raises(DamagedFile, match=rf"s3://bushels/plain/cut\.bag \(its copy {copy}\) ended early"):
        source[5]
    source.close()
    assert source[5] == RECORDS[5]  # opened again: the copy is made anew


# Patterns: those of a store mean what they mean on disk.


@settings(max_examples=200, deadline=None)
@example(names=["a/a"], pattern="**")
@example(names=["a/b/a", "a"], pattern="a**/b/a")
@given(
    names=st.lists(st.from_regex(r"[ab]{1,2}(/[ab]{1,2}){0,2}", fullmatch=True), max_size=8),
    pattern=st.from_regex(r"(\*\*/)?[ab*?]{1,3}(/[ab*?]{1,3}){0,2}", fullmatch=True),
)
def test_patterns_mean_what_they_mean_on_disk(names, pattern, tmp_path_factory):
    import re

    folder = tmp_path_factory.mktemp("names")
    for name in names:
        path = folder / f"{name}.x"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    expected = {
        os.path.relpath(p, folder) for p in glob.glob(f"{folder}/{pattern}.x", recursive=True) if os.path.isfile(p)
    }
    fits = re.compile(file_access.translate_pattern(f"{pattern}.x"))
    assert {f"{name}.x" for name in names if fits.fullmatch(f"{name}.x")} == expected


# HTTP, and servers that misbehave.


def test_records_behind_http(tmp_path):
    content = written(tmp_path, "bag", RECORDS).read_bytes()
    with Web(content) as web:
        source = BagzDataSource(f"{web.url}/records.bag")
        assert source.__getitems__([3, 40, 7]) == [RECORDS[3], RECORDS[40], RECORDS[7]]
        with pytest.raises(ValueError, match="a web server cannot list its files"):
            BagzDataSource(f"{web.url}/*.bag")


ADDRESSES = {
    "/a%20b.bag": "/a%20b.bag",
    "/a b.bag": "/a%20b.bag",
    "/a+b~c.bag": "/a+b~c.bag",
    "/%C3%BC/x.bag": "/%C3%BC/x.bag",
    "/x[1].bag": "/x[1].bag",
    "/x.bag#part": "/x.bag",
    "/x.bag?sig=a/b%2Fc+d&e=*": "/x.bag?sig=a/b%2Fc+d&e=*",
    "/a%2Fb//x.bag": "/a%2Fb//x.bag",
}


@pytest.mark.parametrize(("given", "sent"), ADDRESSES.items())
def test_web_addresses_are_sent_as_they_are(given, sent, tmp_path):
    with Web(written(tmp_path, "bag", RECORDS).read_bytes()) as web:
        source = BagzDataSource(f"{web.url}{given}")
        assert (source[3], web.addresses) == (RECORDS[3], {sent})
        assert (
            source.versions[0][0][0].partition("?")[0]
            == urllib.parse.unquote(sent.partition("?")[0]).rpartition("/")[2]
        )


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_web_server_that_only_sends_files(status):
    """Signed addresses are often for GET alone."""
    with Web(CONTENT, head=status) as web:
        file = file_access.open_file(f"{web.url}/content?signature=1", QUICK)
        assert (file.size, file.read(5, 20)) == (len(CONTENT), CONTENT[5:25])
    with Web(CONTENT, lambda number: "missing", head=status) as web, pytest.raises(FileNotFoundError):
        file_access.open_file(f"{web.url}/content", QUICK)


@pytest.mark.parametrize("name", ["we#ird", "we ird", "we%20ird", "q?u=1", "\u00fc+x"])
def test_objects_may_have_any_sign_in_their_names(put, name, tmp_path):
    put(f"signs/{name}.bag", written(tmp_path, "bag", [name.encode()]).read_bytes())
    assert list(BagzDataSource(url("s3", f"signs/{name}.bag"))) == [name.encode()]
    assert name.encode() in list(BagzDataSource(url("s3", "signs/*.bag")))


def test_an_object_with_an_empty_part_in_its_name(put, tmp_path):
    """obstore knows no such names: what lies beside it is found, and the rest is a sentence."""
    content = written(tmp_path, "bag", [b"x"]).read_bytes()
    for key in ("empty/1.bag", "empty/2.bag", "empty/folder//3.bag"):
        put(key, content)
    assert file_access.find_files(url("s3", "empty/*.bag")) == [url("s3", "empty/1.bag"), url("s3", "empty/2.bag")]
    for bad in ("empty/**/*.bag", "empty/folder//3.bag"):
        with pytest.raises(ValueError, match=r"Objects with an empty part \(//\) in their names can be neither read"):
            BagzDataSource(url("s3", bad))


def test_near_ranges_are_one_request():
    with Web(CONTENT) as web:
        file = file_access.open_file(f"{web.url}/content")
        starts = [100, 5_000, 20_000, 900_000]
        assert file.read_many(starts, [50] * 4) == [CONTENT[start : start + 50] for start in starts]
        assert sorted(web.ranges) == [(100, 20_050), (900_000, 900_050)]


@pytest.mark.parametrize("manner", ["error", "half"])
def test_a_server_that_fails_now_and_then_is_asked_again(manner):
    with Web(CONTENT, lambda number: manner if number % 2 == 0 else "ok") as web:
        file = file_access.open_file(f"{web.url}/content", {"timeout_s": 5, "retries": 4})
        for start in (0, 400_000, 800_000):
            assert file.read(start, 10_000) == CONTENT[start : start + 10_000]


@pytest.mark.parametrize("manner", ["error", "half", "hang", "missing"])
def test_a_server_that_always_fails_is_an_error_in_time(manner):
    with Web(CONTENT, lambda number: manner) as web:
        file = file_access.open_file(f"{web.url}/content", QUICK)
        begun = time.monotonic()
        with pytest.raises((OSError, DamagedFile), match=f"{web.url}/content"):
            file.read(0, 1000)
        assert time.monotonic() - begun < 100


def test_ctrl_c_while_a_server_does_not_answer():
    """At once, and the next request is not in the way of the one that was given up."""
    with Web(CONTENT, lambda number: "hang" if number == 0 else "ok") as web:
        file = file_access.open_file(f"{web.url}/content")

        def interrupt() -> None:
            wait_until(lambda: web.requests)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            file.read(0, 1000)
        assert file.read(0, 1000) == CONTENT[:1000]


@pytest.mark.parametrize("error", [TimeoutError, SystemExit, Exception])
def test_an_answer_that_was_given_up_is_nobody_elses(error):
    """A handler may raise anything. The answer to that request is on its way; the next one asks for other bytes."""

    def give_up(number, frame):
        raise error("given up")

    with Web(CONTENT, latency_s=0.3) as web:
        file = file_access.open_file(f"{web.url}/content")
        before = signal.signal(signal.SIGALRM, give_up)
        try:
            with pytest.raises(error, match="given up"):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                file.read(0, 1000)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        for start in (5000, 7000):
            assert file.read(start, 1000) == CONTENT[start : start + 1000]


def test_a_handler_may_read_while_a_read_is_waited_for():
    found = []
    with Web(CONTENT, latency_s=0.3) as web:
        file = file_access.open_file(f"{web.url}/content")
        before = signal.signal(signal.SIGALRM, lambda number, frame: found.append(file.read(9000, 500)))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert file.read(0, 1000) == CONTENT[:1000]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert found == [CONTENT[9000:9500]]
        assert file.read(100, 10) == CONTENT[100:110]


def test_no_server_at_all():
    with Web(b"") as web:
        gone = web.url
    with pytest.raises(OSError, match="could not be read"):
        file_access.open_file(f"{gone}/content", {"timeout_s": 1, "retries": 0})


@pytest.mark.parametrize("count", [10, 60])
def test_requests_are_in_flight_together(count):
    """Reads far apart, 0.2 s each on the server: together, not one after the other."""
    content = CONTENT * 8
    with Web(content, latency_s=0.2) as web:
        file = file_access.open_file(f"{web.url}/content")
        starts = list(range(0, count * 100_000, 100_000))[::-1]
        found = file.read_many(starts, [10] * count)
        assert web.most_at_once > 4
        assert found == [content[start : start + 10] for start in starts]
        assert web.requests == count


@pytest.mark.parametrize("name", ["bag", "array_record plain"])
def test_many_files_are_asked_together(name, tmp_path):
    """Large records of eight files on a server that takes 0.2 s to answer: a read of each is one wait for all."""
    records = [number.to_bytes(1, "little") * 100_000 for number in range(6)]
    with Web(written(tmp_path, name, records).read_bytes()) as web:
        source = opened(name, [f"{web.url}/{number}.{FORMATS[name][0]}" for number in range(8)])
        web.latency_s = 0.2
        indices = [6 * number + (5 * number) % 6 for number in range(8)] * 2
        wanted = [records[index % 6] for index in indices]
        assert source.__getitems__(indices) == wanted
        assert web.most_at_once > 4
        web.most_at_once = 0
        rows = FixedRecords(source, dtype=np.uint8, shape=(100_000,)).__getitems__(indices)
        assert web.most_at_once > 4
        assert [row.tobytes() for row in rows.tree] == wanted


def test_records_of_more_files_than_threads_of_a_pipeline_are_asked_together(tmp_path):
    with Web(written(tmp_path, "bag", RECORDS).read_bytes()) as web:
        source = BagzDataSource([f"{web.url}/{number}.bag" for number in range(40)])
        web.latency_s = 0.2
        indices = [50 * number + number for number in range(40)]
        assert source.__getitems__(indices) == RECORDS[:40]
        assert web.most_at_once > 20


def stretched(tmp_path, count):
    """A file of small records that are too far apart to become one request, and the positions of these."""
    records = [bytes(70_000) if number % 2 else number.to_bytes(2, "little") for number in range(2 * count)]
    return written(tmp_path, "bag", records).read_bytes(), slice(None, None, 2), records[::2]


@pytest.mark.parametrize("how", ["by default", "ReadOptions", "a filter", "workers and a filter", "pairs"])
def test_a_pipeline_of_records_keeps_many_requests_in_flight(how, tmp_path):
    """One record in each thread, or in each worker, would be 16 or 2 at a time."""
    content, places, records = stretched(tmp_path, 300)
    with Web(content) as web:
        source = BagzDataSource(f"{web.url}/x.bag")
        web.latency_s, web.most_at_once = 0.3, 0
        elements = MapDataset.source(source).slice(places)
        if how == "pairs":
            elements, records = elements.batch(2, batch_fn=list), [records[low : low + 2] for low in range(0, 300, 2)]
        ds = elements.to_iter_dataset(ReadOptions() if how == "ReadOptions" else None)
        if "filter" in how:
            ds = ds.filter(lambda record: True)
        if "workers" in how:
            ds = ds.mp_prefetch(MultiprocessingOptions(num_workers=2))
        with iter(ds) as it:
            assert list(it) == records
        assert web.most_at_once > 24
        assert web.requests < 320


class Slow:
    """A source of the user's own. It notes how many records are asked for together."""

    costs_round_trip = True

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index

    def __getitems__(self, indices):
        self.asked.append(len(indices))
        return list(indices)


def test_a_source_of_ones_own_is_asked_for_many_records_together():
    source = Slow()
    assert list(MapDataset.source(source).map(lambda x: x + 1).to_iter_dataset()) == list(range(1, 1001))
    assert sorted(source.asked)[1] >= 15  # the last block is smaller
    source.asked.clear()
    batches = MapDataset.source(source).batch(100, batch_fn=list)
    assert list(batches.to_iter_dataset()) == [list(range(low, low + 100)) for low in range(0, 1000, 100)]
    assert source.asked[0] == 100  # a batch is many records already; later blocks may grow, since this source is quick
    source.costs_round_trip = False
    source.asked.clear()
    assert list(MapDataset.source(source).to_iter_dataset()) == list(range(1000))
    assert source.asked[:4] == [1] * 4  # the speed of such a source is measured first


def test_whole_files_are_asked_together():
    with Web(CONTENT, latency_s=0.1) as web:
        ds = MapDataset.source(FileDataSource([f"{web.url}/{number}" for number in range(32)]))
        batch = ds.batch(32, batch_fn=list)[0]
        assert web.most_at_once > 4
        assert batch == [{"path": f"{web.url}/{number}", "content": CONTENT} for number in range(32)]


def test_one_of_many_requests_that_fails_is_an_error():
    with Web(CONTENT * 8, lambda number: "missing" if number == 30 else "ok") as web:
        file = file_access.open_file(f"{web.url}/content", QUICK)
        with pytest.raises(FileNotFoundError, match=f"{web.url}/content does not exist"):
            file.read_many(list(range(0, 6_000_000, 100_000)), [10] * 60)


def test_a_forked_process_says_so_instead_of_waiting():
    with Web(CONTENT) as web:
        file = file_access.open_file(f"{web.url}/content")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                file.read(0, 10)
                os.write(write, b"read")
            except BaseException as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as words:
            said = words.read()
        os.waitpid(child, 0)
    assert "this process was forked from one that has used an object store" in said


def test_options_of_a_store_must_be_plain_values():
    with pytest.raises(TypeError, match="Options of a store are plain values"):
        file_access.open_file("s3://bucket/key", {"thing": object()})


BAD_OPTIONS = {
    "timeout_s": [("x", "timeout_s must be a number of seconds, got 'x' of type str"), (True, "got True of type bool")]
    + [(bad, f"timeout_s must be a number of seconds between 0 and 1,000,000, got {bad}") for bad in (0, -1, np.nan)],
    "retries": [
        (-1, "retries must be greater than or equal to 0, got -1"),
        ("3", "retries must be an integer, got '3'"),
    ],
    "cache_dir": [
        (123, "cache_dir must be a local folder, got 123"),
        ("s3://b/c", "must be a local folder, got 's3://b"),
    ],
    "cache_bytes": [
        ("1GB", "cache_bytes must be an integer, got '1GB'"),
        (0, "cache_bytes must be positive, but got 0"),
    ],
    "nonsense": [(1, "nonsense")],
}


@pytest.mark.parametrize(("name", "value", "sentence"), [(n, v, s) for n, bad in BAD_OPTIONS.items() for v, s in bad])
def test_bad_options_get_a_sentence(put, name, value, sentence, tmp_path):
    for place in (url("s3", "plain/content.bin"), url("s3", "plain/*"), "http://127.0.0.1:9/x"):
        with pytest.raises((ValueError, TypeError), match=sentence):
            BagzDataSource(place, storage_options={"cache_dir": tmp_path, name: value})


# Other stores.


def test_files_in_any_store_of_fsspec_are_read(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for part in range(2):
        path = written(tmp_path, "bag", RECORDS[part::2], f"part-{part}")
        memory.pipe(f"/folder/part-{part}.bag", path.read_bytes())
    assert list(BagzDataSource("memory://folder/part-*.bag")) == RECORDS[0::2] + RECORDS[1::2]
    with pytest.raises(FileNotFoundError, match=r"memory://none\.bag does not exist"):
        BagzDataSource("memory://none.bag")
    with pytest.raises(ValueError, match="fsspec has no driver for nothing://"):
        BagzDataSource("nothing://x.bag")


@pytest.fixture
def vault():
    """A store of the user's own, with the three methods that are asked for, and the files that it holds."""
    import fsspec

    files, failures = {}, {}

    class Vault(fsspec.AbstractFileSystem):
        cut = 0
        failing = failures  # how often calls for a path fail from now on
        error = OSError("503 slow down")

        def info(self, path, **_):
            self._fail(path)
            if path not in files:
                raise FileNotFoundError(path)
            return {"name": path, "size": len(files[path]), "type": "file", "etag": str(hash(files[path]))}

        def cat_file(self, path, start=None, end=None, **_):
            self._fail(path)
            assert end is not None
            return files[path][start : end - self.cut]

        def ls(self, path, detail=True, **_):
            self._fail(path)
            inside = f"{path.rstrip('/')}/"
            below = {name.removeprefix(inside) for name in files if name.startswith(inside)}
            found = [self.info(inside + name) for name in sorted(below) if "/" not in name]
            folders = {name.partition("/")[0] for name in below if "/" in name}
            found += [{"name": inside + name, "size": 0, "type": "directory"} for name in sorted(folders)]
            return found if detail else [entry["name"] for entry in found]

        def _fail(self, path):
            if self.failing.get(path, 0):
                self.failing[path] -= 1
                raise self.error

    fsspec.register_implementation("vault", Vault, clobber=True)
    return Vault, files


def test_a_store_of_ones_own_needs_three_methods(vault, tmp_path):
    Vault, files = vault
    for part in range(2):
        path = written(tmp_path, "bag", RECORDS[part::2], f"part-{part}")
        files[f"folder/part-{part}.bag"] = path.read_bytes()
    source = BagzDataSource("vault://folder/part-*.bag")
    assert list(source) == RECORDS[0::2] + RECORDS[1::2]
    before = file_access.fingerprint_files(["vault://folder/part-0.bag"])
    files["folder/part-0.bag"] += b"more"
    assert file_access.fingerprint_files(["vault://folder/part-0.bag"]) != before
    with pytest.raises(FileNotFoundError, match=r"vault://folder/none\.bag does not exist"):
        BagzDataSource("vault://folder/none.bag")
    Vault.cut = 1
    with pytest.raises(DamagedFile, match=r"vault://folder/part-1\.bag ended early"):
        BagzDataSource("vault://folder/part-1.bag")


def test_a_folder_that_cannot_be_listed_is_an_error(vault):
    Vault, files = vault
    files.update({f"top/{folder}/x.txt": b"one\n" for folder in "abc"})
    found = [f"vault://top/{folder}/x.txt" for folder in "abc"]
    assert file_access.find_files("vault://top/**/*.txt") == found
    Vault.failing["top/b"] = 1
    assert file_access.find_files("vault://top/**/*.txt", {"retries": 1}) == found
    Vault.failing["top/b"] = 2
    with pytest.raises(OSError, match="vault://top/: top/b could not be read: 503 slow down"):
        file_access.find_files("vault://top/**/*.txt", {"retries": 1})
    Vault.failing["top"], Vault.error = 1, PermissionError("no")
    with pytest.raises(PermissionError, match="vault://top/: top may not be read: no"):
        file_access.find_files("vault://top/*.txt", {"retries": 0})


def test_a_store_that_fails_is_asked_again(vault):
    Vault, files = vault
    files["a.txt"] = b"one\n"
    Vault.failing["a.txt"] = 2
    file = file_access.open_file("vault://a.txt", {"retries": 2})
    Vault.failing["a.txt"] = 2
    assert file.read(0, 3) == b"one"
    Vault.failing["a.txt"] = 3
    with pytest.raises(OSError, match=r"vault://a\.txt could not be read: 503 slow down"):
        file.read(0, 3)
    Vault.failing["a.txt"], Vault.error = 1, KeyError("mistake")
    with pytest.raises(OSError, match=r"vault://a\.txt could not be read: KeyError: 'mistake'"):
        file.read(0, 3)


def test_urls_with_hosts_and_with_three_slashes(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"one\n")
    assert file_access.find_files(f"local://{tmp_path}/*.txt") == [f"local://{tmp_path}/x.txt"]
    assert file_access.open_file(f"local://{tmp_path}/x.txt").read(0, 3) == b"one"
    with pytest.raises(OSError, match=r"ftp://127\.0\.0\.1:9/x\.txt could not be read: .*refused"):
        file_access.open_file("ftp://127.0.0.1:9/x.txt", {"retries": 0})


def test_near_ranges_of_any_store_are_one_request(monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    asked = []
    read = MemoryFileSystem.cat_ranges

    def recorded(self, paths, starts, ends, **options):
        asked.extend(zip(starts, ends))
        return read(self, paths, starts, ends, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", recorded)
    MemoryFileSystem().pipe("/content", CONTENT)
    file = file_access.open_file("memory://content")
    starts, lengths = [900_000, 100, 20_000, 5_000, 5_010, 0], [50, 50, 50, 50, 10, 0]
    assert file.read_many(starts, lengths) == [CONTENT[low : low + size] for low, size in zip(starts, lengths)]
    assert asked == [(0, 20_050), (900_000, 900_050)]


def test_near_ranges_of_an_object_store_are_one_request():
    content = CONTENT * 12
    with Web(content) as web:
        file = file_access.open_file(f"{web.url}/content")
        starts, lengths = [900_000, 100, 20_000, 5_000, 5_010, 0], [50, 50, 50, 50, 10, 0]
        assert file.read_many(starts, lengths) == [content[low : low + size] for low, size in zip(starts, lengths)]
        assert sorted(web.ranges) == [(0, 20_050), (900_000, 900_050)]
        web.ranges.clear()
        neighbours = list(range(0, 12_000_000, 1000))
        found = file.read_many(neighbours[::-1], [1000] * len(neighbours))
        assert found == [content[low : low + 1000] for low in neighbours[::-1]]
        assert len(web.ranges) == 3  # several of a few megabytes, not one that a single connection must carry
        assert sum(high - low for low, high in web.ranges) == len(content)


# Local files.


@pytest.fixture(scope="module")
def file_of_content(tmp_path_factory):
    path = tmp_path_factory.mktemp("local") / "content"
    path.write_bytes(CONTENT)
    return file_access.open_file(path)


def test_a_local_file_cut_while_it_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    file = file_access.open_file(path)
    os.truncate(path, 100)
    for read in (
        lambda: file.read(50, 100),
        lambda: file.read_many([0, 50], [10, 100]),
        lambda: file.read_into(50, [bytearray(60), bytearray(40)]),
        lambda: list(read_each(file, [0, 50], [10, 100])),
    ):
        with pytest.raises(DamagedFile, match="ended early: a read of 100 bytes at byte 50 returned 50"):
            read()


@settings(max_examples=100, deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 900_000), st.integers(0, 40_000)), max_size=8),
    near=st.lists(st.tuples(st.integers(1_000, 3_000), st.integers(0, 700)), max_size=8),
)
def test_ranges_of_a_local_file(file_of_content, ranges, near):
    for asked in (ranges, near, ranges + near):
        starts, lengths = [low for low, _ in asked], [length for _, length in asked]
        expected = [CONTENT[low : low + length] for low, length in asked]
        assert file_of_content.read_many(starts, lengths) == expected
        assert [bytes(part) for part in read_each(file_of_content, starts, lengths)] == expected


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.bag")
    with pytest.raises(ValueError, match=r"pipe\.bag is not a regular file"):
        BagzDataSource(tmp_path / "pipe.bag")


def test_descriptors_go_when_their_file_does(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    threads, descriptors = threading.active_count(), len(os.listdir("/dev/fd"))
    for _ in range(20):
        file_access.open_file(path).read(0, 10)
    # Fewer is right, too: what another test has left, such as the process that forks workers, may end meanwhile.
    assert threading.active_count() <= threads and len(os.listdir("/dev/fd")) <= descriptors


def test_a_path_with_signs_of_a_pattern_is_a_path_first(tmp_path):
    path = tmp_path / "odd[1].bag"
    written(tmp_path, "bag", [b"x"], "odd[1]")
    assert list(BagzDataSource(path)) == [b"x"]
    assert file_access.find_files(f"file://{path}") == [str(path)]


@pytest.mark.parametrize("name", ["a b", "ü", "50%", "a%20b"])
def test_a_file_url_with_signs_that_urls_write_otherwise(name, tmp_path):
    path = tmp_path / name / "x.txt"
    path.parent.mkdir()
    path.write_text("one\ntwo\n")
    for url in (path.as_uri(), f"file://{path}", path.as_uri().replace("x.txt", "*.txt")):
        assert list(LineDataSource(url)) == [b"one", b"two"]


@pytest.mark.parametrize("source", [BagzDataSource, LineDataSource, ParquetDataSource, FileDataSource, load_arrays])
def test_a_path_of_bytes_is_refused(source):
    with pytest.raises(TypeError, match=r"A path is a str or an os.PathLike, got b'x.bag' of type bytes"):
        source(b"x.bag")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path, "bag", [b"x"], "mine")
    assert list(BagzDataSource("~/mine.bag")) == list(BagzDataSource("~/m*.bag")) == [b"x"]


def test_a_missing_package_names_the_way_to_get_it():
    from bushel._src.base.late_imports import import_package, install_command

    message = f"Some files need the package 'no_such': {install_command('some')}"
    with pytest.raises(ImportError, match=re.escape(message)):
        import_package("no_such.module", "some", "Some files")
