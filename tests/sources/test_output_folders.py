"""Writing to stores: what is written there is what is written on disk, and half of it is never taken for the whole.

`s3://` is moto's server, `gs://` obstore's client of the XML interface that moto speaks too, `gcs://` gcsfs and
gcp-storage-emulator, `memory://` fsspec's own store.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from helpers.servers import BUCKET, gcs, s3

import bushel
from bushel import MapDataset
from bushel._src.base import checked_files
from bushel._src.sources import folders
from bushel._src.trajectory.rlds.reader import RLDSBuilder
from bushel.sources import check_checksums, convert, write_checksums
from bushel.testing import same
from bushel.trajectory import get_dataset_statistics, load_statistics, save_statistics, write_rlds

SCHEMES = ["s3", "gs", "gcs", "memory"]
SECRET = "very-secret-key-0123456789"
every_store = pytest.mark.parametrize("scheme", SCHEMES)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    with s3(tmp_path_factory.mktemp("servers")), gcs():
        yield


@pytest.fixture
def base(servers, scheme):
    """An address of a store where nothing is yet."""
    return f"{scheme}://{BUCKET}/{uuid.uuid4().hex}"


def files_in(place) -> dict[str, bytes]:
    """The content of every file below a local folder or an address."""
    folder = folders.open_folder(place)
    return {name: folder.read(name) for name in folder.names(deep=True)}


# The door itself.


@pytest.mark.parametrize("scheme", [*SCHEMES, "local"])
def test_files_are_written_read_listed_renamed_and_removed(servers, scheme, tmp_path):
    base = str(tmp_path / "new") if scheme == "local" else f"{scheme}://{BUCKET}/{uuid.uuid4().hex}/new"
    folder = folders.open_folder(base)
    assert folder.names() == [] and not folder.exists("a")
    folder.write("a", b"")
    folder.write("below/b c", b"b")
    with folder.new_file("c") as path:
        Path(path).write_bytes(b"c" * 100)
    assert files_in(base) == {"a": b"", "below/b c": b"b", "c": b"c" * 100}
    assert folder.names() == ["a", "c"] and folder.names("below") == ["below/b c"]
    assert folder.exists("a")
    folder.write("a", b"again")
    folder.rename("c", "below/b c")
    assert files_in(base) == {"a": b"again", "below/b c": b"c" * 100}
    folder.remove(["a", "nothing"])
    assert files_in(base) == {"below/b c": b"c" * 100}
    with pytest.raises(FileNotFoundError):
        folder.read("a")


@pytest.mark.parametrize("scheme", [*SCHEMES, "local"])
def test_a_file_whose_writing_fails_is_not_there(servers, scheme, tmp_path):
    base = str(tmp_path / "new") if scheme == "local" else f"{scheme}://{BUCKET}/{uuid.uuid4().hex}/new"
    folder = folders.open_folder(base)
    folder.write("x", b"old")
    with pytest.raises(KeyError), folder.replacing("x") as file:
        file.write(b"new")
        raise KeyError
    with pytest.raises(KeyError), folder.new_file("y") as path:
        Path(path).write_bytes(b"new")
        raise KeyError
    assert files_in(base) == {"x": b"old"}


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # of gcsfs
@pytest.mark.parametrize("scheme", ["s3", "gs", "gcs"])
def test_a_large_object_goes_in_parts_and_is_renamed_also_where_the_store_does_not_copy_it(base, monkeypatch):
    monkeypatch.setattr(folders, "_COPY_BYTES", 1000)
    content = np.random.default_rng(0).bytes(17 << 20)
    folder = folders.open_folder(base)
    folder.write("x", content)
    folder.rename("x", "y")
    assert folder.names() == ["y"] and folder.read("y") == content


def test_nothing_of_an_upload_stays_on_this_machine(servers, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders.open_folder(f"s3://{BUCKET}/{uuid.uuid4().hex}").write("x", b"x")
    with pytest.raises(FileNotFoundError):
        folders.open_folder("s3://nobucket").write("x", b"x")
    assert list(tmp_path.iterdir()) == []


# What is written in a store is what is written on disk.


def rich(number):
    return {"x": np.full((number % 5, 3), number, np.float32), "name": "ä" * (number % 4), "data": b"q" * number}


def episode(number):
    steps = {
        "action": np.full((number + 2, 2), number, np.float32),
        "image": np.full((number + 2, 4, 4, 3), number, "u1"),
    }
    return {"steps": steps, "episode_metadata": {"name": f"episode {number}", "success": number % 2 == 0}}


def numbered(length, make):
    return MapDataset.range(length).map(make)


@pytest.mark.parametrize(
    ("scheme", "format"),
    [
        pytest.param(scheme, format, marks=() if scheme == "s3" or format in ("bagz", "rlds") else pytest.mark.slow)
        for scheme in SCHEMES
        for format in ("array_record", "bagz", "parquet", "rlds", "tfrecord")
    ],
)
def test_saved_elements_are_those_on_disk_byte_for_byte(base, format, tmp_path):
    ds = numbered(12, episode if format == "rlds" else rich)
    here, there = tmp_path / "mine", f"{base}/mine"
    ds.save(here, format=format, shards=3)
    files = ds.save(there, format=format, shards=3)
    assert files_in(there) == files_in(here)
    assert all(file.startswith(there) for file in files.files) and len(files.files) == 3
    assert same(list(MapDataset.source(bushel.sources.open(there))), list(MapDataset.source(bushel.sources.open(here))))
    if format != "rlds":  # of which texts come back as bytes
        assert same(list(MapDataset.source(bushel.sources.open(there))), list(ds))
    assert ds.save(there, format=format, shards=3) == files
    with pytest.raises(FileExistsError, match="has elements of another pipeline"):
        numbered(11, episode if format == "rlds" else rich).save(there, format=format, shards=3)
    ds.save(there, format=format, shards=2, overwrite=True)
    assert len([name for name in files_in(there) if re.search(r"part-|mine-train", name)]) == 2
    assert len(bushel.sources.open(there)) == 12


@every_store
@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_an_rlds_data_set_is_that_on_disk_byte_for_byte(base, file_format, tmp_path):
    splits = {"train": [episode(n) for n in range(5)], "val": [episode(7)]}
    write_rlds(splits, name="arm", data_dir=tmp_path, shards=2, file_format=file_format)
    folder = write_rlds(splits, name="arm", data_dir=base, shards=2, file_format=file_format).path
    assert folder == f"{base}/arm/1.0.0"
    assert files_in(base) == files_in(tmp_path)
    builder = RLDSBuilder("arm", base)
    assert len(builder.episodes("train")) == 5 and len(builder.episodes("val")) == 1
    with pytest.raises(FileExistsError, match="exists already"):
        write_rlds(splits, name="arm", data_dir=base)
    with pytest.raises(ValueError, match="different leaves"):
        write_rlds({"train": [episode(1), {"steps": {"b": np.zeros(3)}}]}, name="arm", data_dir=base, version="2.0.0")
    assert files_in(base) == files_in(tmp_path)  # nothing of the second one is left


@pytest.mark.parametrize(
    ("scheme", "ending", "workers"),
    [("s3", ending, 1) for ending in ("array_record", "tfrecord", "bag", "bagz", "parquet")]
    + [("s3", "bagz", 2), ("gs", "tfrecord", 1), ("gcs", "array_record", 1), ("memory", "bag", 1)],
)
def test_converted_files_are_those_on_disk_byte_for_byte(base, ending, workers, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"line {n}\n" for n in range(100)))
    here = convert(tmp_path / "in.txt", tmp_path / "out" / f"x.{ending}", shards=2, workers=workers)
    there = convert(tmp_path / "in.txt", f"{base}/x.{ending}", shards=2, workers=workers)
    assert [path.rpartition("/")[2] for path in there.files] == [os.path.basename(path) for path in here.files]
    assert files_in(base) == files_in(tmp_path / "out")
    with pytest.raises(FileExistsError, match="exists already"):
        convert(tmp_path / "in.txt", f"{base}/x.{ending}", shards=2, workers=1)
    convert(there.files, f"{base}/x.{ending}", shards=2, workers=1, overwrite=True)  # from the store into it
    assert files_in(base) == files_in(tmp_path / "out")


@pytest.mark.parametrize("scheme", ["s3"])
def test_the_command_converts_to_a_store(base, tmp_path):
    (tmp_path / "in.txt").write_text("a\nb\n")
    command = [sys.executable, "-m", "bushel", "convert", "--target-storage-option", "region=us-east-1"]
    done = subprocess.run([*command, tmp_path / "in.txt", f"{base}/x.bag"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 records, 0.0 MB in 1 file\n"), done.stderr
    assert list(bushel.sources.open(f"{base}/x.bag")) == [b"a", b"b"]


class Log:
    """Numbers that a function was called with, in a file: the function itself does not change by its calls."""

    def __init__(self, path):
        self.path = str(path)

    def note(self, number):
        with open(self.path, "a") as file:
            file.write(f"{number}\n")
        return number

    def read(self):
        return [int(line) for line in Path(self.path).read_text().split()]


@every_store
def test_a_cache_is_filled_once_and_found_again(base, tmp_path):
    log = Log(tmp_path / "log")

    def pipeline(folder):
        return MapDataset.range(30).map(log.note).map(rich).to_iter_dataset().cache(folder)

    expected = list(pipeline(tmp_path / "cache"))
    assert same(list(pipeline(base)), expected) and same(list(pipeline(base)), expected)
    assert len(log.read()) == 60
    there, here = files_in(base), files_in(tmp_path / "cache")
    chunks = [[content for name, content in files.items() if "chunk" in name] for files in (there, here)]
    assert chunks[0] == chunks[1] != []
    iterator = iter(pipeline(base))
    for _ in range(7):
        next(iterator)
    again = iter(pipeline(base))
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    assert same(list(again), expected[7:]) and len(log.read()) == 60
    # A damaged one is filled again.
    (name,) = [name for name in there if "chunk" in name]
    folders.open_folder(base).write(name, there[name][:-1])
    with pytest.warns(UserWarning, match="A cache is damaged"):
        assert same(list(pipeline(base)), expected)
    assert len(log.read()) == 90
    assert same(list(pipeline(base)), expected) and len(log.read()) == 90
    assert [name for name in files_in(base) if name.endswith("index.json")] == [
        name for name in there if name.endswith("index.json")
    ]


@pytest.mark.parametrize("scheme", ["s3", "memory"])
def test_what_killed_processes_left_of_a_cache_is_removed_when_it_is_old(base):
    ds = MapDataset.range(3).to_iter_dataset().cache(base)
    list(ds)
    (index,) = [name for name in files_in(base) if name.endswith("index.json")]
    folder, key = folders.open_folder(base), index.partition("/")[0]
    folder.remove(files_in(base))
    folder.write(f"{key}/1000-abc/chunk-000000.pickle", b"old")
    folder.write(f"{key}/9000000000-abc/chunk-000000.pickle", b"of somebody who is at work")
    list(MapDataset.range(3).to_iter_dataset().cache(base))
    names = list(files_in(base))
    assert f"{key}/1000-abc/chunk-000000.pickle" not in names
    assert f"{key}/9000000000-abc/chunk-000000.pickle" in names and index in names


@every_store
def test_a_column_is_the_file_on_disk_and_goes_on_after_an_error(base, tmp_path):
    log, works = Log(tmp_path / "log"), str(tmp_path / "works")
    options = bushel.MultiprocessingOptions(num_workers=0)

    def value(x):
        if log.note(x) == 150 and not os.path.exists(works):
            raise RuntimeError("stopped")
        return {"square": x * x, "half": x / 2}

    def column(folder):
        return np.asarray(MapDataset.range(300).column(value, cache_dir=folder, workers=options)).tolist()

    with pytest.raises(RuntimeError, match="stopped"):
        column(base)
    assert [name.rpartition("/")[2] for name in files_in(base)] == ["000000000000000-000000000000128.npy"]
    Path(works).touch()
    before = len(log.read())
    found = column(base)
    assert log.read()[before:] == list(range(128, 300))
    assert column(tmp_path / "column") == found
    assert files_in(base) == files_in(tmp_path / "column") and len(files_in(base)) == 1
    before = len(log.read())
    assert column(base) == found and len(log.read()) == before


TRAJECTORIES = [
    {"observation": {"arm": np.eye(5)[: n + 2]}, "action": np.arange(4.0 * n + 8).reshape(-1, 4)} for n in range(3)
]


@every_store
@pytest.mark.parametrize("compat", [None, "crossformer"])
def test_statistics_are_the_files_on_disk_and_are_found_again(base, compat, tmp_path):
    def statistics(folder, trajectories=TRAJECTORIES):
        return get_dataset_statistics(trajectories, ["arm"], ["mine"], folder, progress=False, compat=compat)

    here = statistics(tmp_path)
    assert statistics(base) == here
    assert files_in(base) == files_in(tmp_path) and len(files_in(base)) == (1 if compat is None else 2)
    assert statistics(base, trajectories=[]) == here  # known: nothing is computed
    save_statistics(f"{base}/mine.json", here)
    assert load_statistics(f"{base}/mine.json") == here
    with pytest.raises(ValueError, match="is damaged: its content does not fit its checksum"):
        data = folders.open_folder(base).read("mine.json")
        folders.open_folder(base).write("mine.json", data.replace(b"3", b"4", 1))
        load_statistics(f"{base}/mine.json")


@pytest.mark.parametrize("scheme", ["s3", "memory"])
def test_an_index_of_episodes_and_checksums_lie_in_a_store(base):
    write_rlds({"train": [episode(n) for n in range(3)]}, name="arm", data_dir=base)
    lengths = RLDSBuilder("arm", base).episodes("train").index(cache_dir=f"{base}/index").lengths()
    assert lengths.tolist() == [2, 3, 4]
    (name,) = folders.open_folder(f"{base}/index").names()
    assert name.endswith(".npz")
    write_checksums(f"{base}/index/{name}")
    check_checksums(f"{base}/index/{name}")


@pytest.mark.parametrize("scheme", ["s3", "memory"])
def test_two_processes_may_compute_the_same_column(base, tmp_path):
    """Parts of another process, which overlap with ours or end elsewhere, do no harm and stay until the end."""
    options = bushel.MultiprocessingOptions(num_workers=0)

    def square(x):
        return x * x

    MapDataset.range(300).column(square, cache_dir=tmp_path, workers=options)
    (whole,) = files_in(tmp_path)
    folder, parts = folders.open_folder(base), whole.replace(".npy", ".parts")
    for begin, end in ((0, 64), (0, 128), (64, 192)):
        with folder.replacing(f"{parts}/{begin:015d}-{end:015d}.npy") as file:
            checked_files.put_array(file, np.arange(begin, end) ** 2)
    found = MapDataset.range(300).column(square, cache_dir=base, workers=options)
    assert np.asarray(found).tolist() == [x * x for x in range(300)]
    assert files_in(base) == files_in(tmp_path)


# A writer that is killed.

PROGRAM = """
import os, signal, sys
import numpy as np
import bushel
from bushel._src.sources import folders
from bushel.sources import convert
from bushel.trajectory import write_rlds

what, base, deadly = sys.argv[1], sys.argv[2], int(sys.argv[3])
puts = 0
upload = folders.upload

def counted(*arguments):
    global puts
    puts += 1
    if puts == deadly:  # when the file is complete, and nothing of it is sent
        os.kill(os.getpid(), signal.SIGKILL)
    upload(*arguments)

folders.upload = counted

def episode(number):
    return {"steps": {"action": np.full((3, 2), number, np.float32)}}

def element(number):
    return {"x": number}

numbers = bushel.MapDataset.range(40)
workers = bushel.MultiprocessingOptions(num_workers=0)
if what == "save":
    numbers.map(element).save(base, format="bagz", shards=4)
elif what == "save rlds":
    numbers.map(episode).save(base, format="rlds", shards=4)
elif what == "write_rlds":
    write_rlds({"train": [episode(number) for number in range(40)]}, name="arm", data_dir=base, shards=4)
elif what == "convert":
    convert(os.path.join(os.path.dirname(__file__), "in.txt"), base + "/x.bag", shards=4, workers=1)
elif what == "cache":
    list(numbers.to_iter_dataset().map(element).cache(base))
elif what == "column":
    numbers.column(lambda x: x * x, cache_dir=base, workers=workers)
print(puts)
"""


def run(tmp_path, what, base, deadly):
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(40)))
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), what, base, str(deadly)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def opened(what, base):
    """How many elements can be read; None if nothing opens."""
    try:
        if what == "write_rlds":
            return len(RLDSBuilder("arm", base).episodes("train"))
        if what == "convert":
            return len(bushel.sources.open(f"{base}/x-*.bag"))
        if what in ("cache", "column"):
            whole = [
                name for name in folders.open_folder(base).names(deep=True) if re.search(r"index.json|\w{8}.npy", name)
            ]
            return 40 if [name for name in whole if "parts/" not in name] else None
        return len(bushel.sources.open(base))
    except (FileNotFoundError, ValueError):
        return None


UPLOADS = {"save": 9, "save rlds": 11, "write_rlds": 6, "convert": 5, "cache": 2, "column": 2}
"""How many objects each writes: files, `.saving.json` after each of them, manifests, a journal."""


@pytest.mark.parametrize(
    ("what", "deadly"),
    [
        *(
            pytest.param(
                what, count, id=f"{what}, at the last object", marks=pytest.mark.slow if what == "column" else ()
            )
            for what, count in UPLOADS.items()
        ),
        *(
            pytest.param(what, number, id=f"{what}, at object {number}", marks=pytest.mark.slow)
            for what, count in UPLOADS.items()
            for number in range(1, count)
        ),
    ],
)
def test_a_killed_writer_leaves_nothing_that_opens_and_the_next_one_completes_it(servers, tmp_path, what, deadly):
    base = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    killed = run(tmp_path, what, base, deadly)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    # The last object of "save rlds" tells later runs that all is done; the data set is complete before it.
    complete = what == "save rlds" and deadly == UPLOADS[what]
    assert opened(what, base) == (40 if complete else None)
    again = run(tmp_path, what, base, 0)
    assert again.returncode == 0, again.stderr
    assert opened(what, base) == 40
    if what.startswith("save"):  # files that `.saving.json` has are not written again
        kept = (deadly - 1) // 2 if deadly <= 8 else 4
        assert int(again.stdout) == UPLOADS[what] - 2 * kept


KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from bushel._src.sources import folders

class Deadly:
    def __init__(self, path, mode):
        self.file, self.reads = open(path, mode), 0
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
    def seek(self, *place):
        return self.file.seek(*place)
    def tell(self):
        return self.file.tell()
    def read(self, size):
        self.reads += 1
        if self.reads == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.file.read(size)

folders.open = lambda path, mode="r": Deadly(path, mode) if mode == "rb" else open(path, mode)
folders.open_folder(sys.argv[1]).write("x", bytes(200 << 20))
"""


@pytest.mark.parametrize("scheme", ["s3", pytest.param("gs", marks=pytest.mark.slow)])
def test_a_writer_that_is_killed_between_the_parts_of_an_object_leaves_no_object(base):
    killed = subprocess.run([sys.executable, "-c", KILLED_IN_THE_MIDDLE, base], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert files_in(base) == {}


# Stores that refuse.


class Refusing:
    """A store that has nothing and takes nothing: it answers with a status, and repeats the request, as S3 does."""

    def __init__(self, status):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format, *args):
                pass

            def answer(self, code, body=b""):
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_HEAD(self):
                self.answer(404)

            def do_GET(self):
                listing = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"
                self.answer(200 if "list-type" in self.path else 404, listing if "list-type" in self.path else b"")

            def do_PUT(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                told = "".join(f"{name}: {value}; " for name, value in self.headers.items())
                self.answer(status, f"<Error><Code>Refused</Code>{told}{SECRET}</Error>".encode())

            do_POST = do_PUT

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.options = {
            "endpoint": f"http://127.0.0.1:{self._server.server_port}",
            "access_key_id": "my-access-key-id",
            "secret_access_key": SECRET,
            "session_token": f"token-{SECRET}",
            "region": "us-east-1",
            "retries": 1,
        }

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def write_with(what, base, options, tmp_path):
    (tmp_path / "in.txt").write_text("a\nb\n")
    if what == "save":
        numbered(3, rich).save(f"{base}/saved", format="bagz", storage_options=options)
    elif what == "save rlds":
        numbered(3, episode).save(f"{base}/rlds", format="rlds", storage_options=options)
    elif what == "write_rlds":
        write_rlds({"train": [episode(1)]}, name="arm", data_dir=base, storage_options=options)
    elif what == "convert":
        convert(tmp_path / "in.txt", f"{base}/x.bag", target_storage_options=options)
    elif what == "convert in workers":
        convert(tmp_path / "in.txt", f"{base}/x.bag", shards=2, workers=2, target_storage_options=options)
    elif what == "column":
        MapDataset.range(3).column(lambda x: x, cache_dir=f"{base}/columns", storage_options=options)
    elif what == "statistics":
        save_statistics(f"{base}/x.json", {"action": {"mean": [0.0], "std": [1.0]}}, storage_options=options)
    elif what == "large":
        folders.open_folder(base, options).write("x", bytes(9 << 20))


WRITERS = [
    *("save", "save rlds", "write_rlds", "convert", "column", "statistics", "large"),
    pytest.param("convert in workers", marks=pytest.mark.slow),
]


def all_texts(error):
    texts = []
    while error is not None:
        texts += [str(error), repr(error), *getattr(error, "__notes__", [])]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


@pytest.mark.parametrize(
    ("status", "kind", "words"), [(403, PermissionError, "may not be written"), (507, OSError, "could not be written")]
)
@pytest.mark.parametrize("what", WRITERS)
def test_a_refused_object_is_an_error_without_secrets(what, status, kind, words, tmp_path):
    with Refusing(status) as store, pytest.raises(kind) as refused:
        write_with(what, "s3://refusing/data", store.options, tmp_path)
    assert "s3://refusing/data" in str(refused.value) and words in str(refused.value)
    text = all_texts(refused.value)
    assert SECRET not in text and "my-access-key-id" not in text


def test_a_pass_that_cannot_be_cached_gives_its_elements_and_says_so():
    with Refusing(403) as store:
        ds = MapDataset.range(5).to_iter_dataset().cache("s3://refusing/cache", storage_options=store.options)
        with pytest.warns(
            UserWarning, match="This pass is not cached: s3://refusing/cache/.* may not be written"
        ) as told:
            assert list(ds) == [0, 1, 2, 3, 4]
    assert SECRET not in str([str(warning.message) for warning in told])


def test_statistics_that_cannot_be_kept_there_are_kept_here(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("BUSHEL_CACHE_DIR", str(tmp_path))
    with Refusing(507) as store:
        for save_dir in ("s3://refusing/statistics", "https://me:pass@host/statistics"):
            found = get_dataset_statistics(
                TRAJECTORIES, [], [save_dir], save_dir, progress=False, storage_options=store.options
            )
            assert found["num_trajectories"] == 3
    assert len(list(tmp_path.rglob("dataset_statistics_*.json"))) == 2
    assert "cannot be written to s3://refusing/statistics/dataset_statistics_" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("scheme", ["s3", "gcs"])
@pytest.mark.parametrize("what", WRITERS)
def test_a_bucket_that_is_not_there_is_named(servers, scheme, what, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=rf"{scheme}://nobucket.* could not be written: the bucket (or folder )?does not exist"
    ):
        write_with(what, f"{scheme}://nobucket/data", {}, tmp_path)


def test_what_cannot_be_written_at_all_is_refused_before_any_work(tmp_path, monkeypatch):
    for what in ("save", "save rlds", "write_rlds", "convert", "column", "statistics", "large"):
        with pytest.raises(ValueError, match=r"https://\.\.\.@host/.* cannot be written: web servers accept no files"):
            write_with(what, "https://me:password@host/data", {}, tmp_path)
    monkeypatch.setenv("BUSHEL_CACHE_DIR", "s3://bucket/cache")
    with pytest.raises(ValueError, match=r"BUSHEL_CACHE_DIR must name a local folder.*it is 's3://bucket/cache'"):
        get_dataset_statistics(TRAJECTORIES, [], ["mine"], progress=False)


def test_no_room_for_a_file_on_its_way_names_the_folder(tmp_path, monkeypatch):
    """The folder of temporary files cannot take it: a real error of the system, where a file may not grow."""
    import resource

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as full:
            folders.open_folder("memory://full").write("x", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "set TMPDIR to a folder with more room" in full.value.__notes__[0]
    assert files_in("memory://full") == {} and list(tmp_path.iterdir()) == []


# Drivers that lie.


def test_a_driver_that_loses_bytes_is_noticed():
    import fsspec

    class Lossy(fsspec.AbstractFileSystem):
        protocol = "lossy"

        def put_file(self, lpath, rpath, *_, **__):
            pass

        def mv(self, path1, path2, *_, **__):
            pass

        def info(self, path, **_):
            return {"name": path, "size": 1, "type": "file"}

    fsspec.register_implementation("lossy", Lossy, clobber=True)
    with pytest.raises(OSError, match="lossy://a/x could not be written: its store has 1 of 5 bytes"):
        folders.open_folder("lossy://a").write("x", b"12345")


def test_no_store_makes_a_local_folder_by_accident(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(), contextlib.suppress(OSError, ValueError):
        warnings.simplefilter("ignore")
        numbered(3, rich).save("memory://somewhere/x", format="bagz")
        MapDataset.range(3).column(lambda x: x, cache_dir="memory://somewhere/y")
        list(MapDataset.range(3).to_iter_dataset().cache("memory://somewhere/z"))
    assert list(tmp_path.iterdir()) == []
