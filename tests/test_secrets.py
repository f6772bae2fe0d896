"""A secret of an address or of the options of a store never shows: not in texts, states, metrics, logs or files.

Every source that takes a path is opened by a signed URL with a password and from a store whose driver repeats all it
knows in its errors. What is seen of it, while it works and when it fails, is searched for the secret.
"""

import contextlib
import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
import traceback
import typing
import warnings
import zipfile
from pathlib import Path

import cloudpickle
import fsspec
import h5py
import numpy as np
import prometheus_client
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
import zarr
from helpers.error_text import all_text_of
from helpers.golden_trajectories import GOLDEN
from helpers.record_formats import bag, tfrecord, written
from helpers.servers import Web

import bushel
import bushel.prometheus
from bushel import DataLoader, MapDataset, MultiprocessingOptions, samplers, sources
from bushel._src import cli
from bushel._src.sources import file_access, saved_elements
from bushel._src.state.identity import fingerprint, identify
from bushel.experimental import (
    DatasetOptions,
    ExecutionTrackingMode,
    ParquetIterDataset,
    TFRecordIterDataset,
    WebDatasetIterDataset,
    WithOptionsIterDataset,
)
from bushel.trajectory import DatasetConfig, make_dataset_from_rlds

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

MARKER = "Zq7mArKeRx9"
RECORDS = [bytes([number]) * 40 for number in range(30)]
QUICK = {"retries": 0, "timeout_s": 2}
TIMED = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)


def arrow(path):
    with pa.ipc.new_file(path, pa.schema({"id": pa.int64()})) as writer:
        writer.write_table(pa.table({"id": range(30)}), max_chunksize=10)


def tar(path):
    with webdataset.TarWriter(str(path)) as writer:
        for number, record in enumerate(RECORDS):
            writer.write({"__key__": f"{number:04d}", "bin": record})


def hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(30))


def folder_of_tfds(path):
    with zipfile.ZipFile(Path(__file__).parent / "data" / "tfds_mine.zip") as archive:
        archive.extractall(path)


def arrays(path, **options):
    return sources.ArrayDataSource(sources.load_arrays(path, **options))


def fixed(path, **options):
    return sources.FixedRecords(sources.BagzDataSource(path, **options), dtype=np.uint8, shape=(40,))


def loader(path, **options):
    source = sources.TFRecordDataSource(path, **options)
    return DataLoader(data_source=source, sampler=samplers.SequentialSampler(len(source)), worker_count=0)


# What it is called, how it is written, how it is opened.
FILES = {
    "ArrayRecordDataSource": ("x.array_record", None, sources.ArrayRecordDataSource),
    "TFRecordDataSource": ("x.tfrecord", lambda path: tfrecord(path, RECORDS), sources.TFRecordDataSource),
    "BagzDataSource": ("x.bagz", lambda path: bag(path, RECORDS), sources.BagzDataSource),
    "FixedRecords": ("y.bag", lambda path: bag(path, RECORDS), fixed),
    "LineDataSource": ("x.txt", lambda path: path.write_text("line\n" * 30), sources.LineDataSource),
    "FileDataSource": ("x.bin", lambda path: path.write_bytes(b"content" * 9), sources.FileDataSource),
    "ArrowDataSource": ("x.arrow", arrow, sources.ArrowDataSource),
    "ParquetDataSource": (
        "x.parquet",
        lambda path: pq.write_table(pa.table({"id": range(30)}), path, row_group_size=10),
        sources.ParquetDataSource,
    ),
    "HDF5DataSource": ("x.hdf5", hdf5, sources.HDF5DataSource),
    "load_arrays": ("x.npy", lambda path: np.save(path, np.arange(30)), arrays),
    "open": ("v.bagz", lambda path: bag(path, RECORDS), sources.open),
    "DataLoader": ("z.tfrecord", lambda path: tfrecord(path, RECORDS), loader),
    "TFRecordIterDataset": ("w.tfrecord", lambda path: tfrecord(path, RECORDS), TFRecordIterDataset),
    "ParquetIterDataset": (
        "w.parquet",
        lambda path: pq.write_table(pa.table({"id": range(30)}), path),
        ParquetIterDataset,
    ),
    "WebDatasetIterDataset": ("x.tar", tar, WebDatasetIterDataset),
}
FOLDERS = {
    "ZarrDataSource": (
        "x.zarr",
        lambda path: zarr.save_array(path, np.arange(30)),
        sources.ZarrDataSource,
    ),
    "SavedDataSource": (
        "saved",
        lambda path: MapDataset.range(30).map(lambda x: {"x": np.full(2, x)}).save(str(path), format="bagz"),
        saved_elements.SavedDataSource,
    ),
    "TFDSDataSource": (
        "tfds",
        folder_of_tfds,
        lambda path, **options: sources.TFDSDataSource(path, split="train", **options),
    ),
}
ELSEWHERE = {"LanceDataSource", "check_checksums", "convert", "file_fingerprint", "write_checksums"}
"""What has a test of its own below."""


def test_every_source_that_takes_a_path_is_here():
    taking = set()
    for name in sources.__all__:
        kind = getattr(sources, name)
        if (
            callable(kind)
            and kind not in (typing.Any,)
            and {"path", "paths", "folder", "sources"} & set(_parameters(kind))
        ):
            taking.add(name)
    assert taking == ({*FILES, *FOLDERS} & set(sources.__all__) | ELSEWHERE) - {"FixedRecords"}


def _parameters(kind):
    try:
        return inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return ()


class OwnText(OSError):
    """As aiohttp's errors: its text does not come from its arguments."""

    def __init__(self, url):
        super().__init__()
        self.url = url

    def __str__(self):
        return f"500, url={self.url}"

    def __reduce__(self):
        return OwnText, (self.url,)


class Hush(fsspec.AbstractFileSystem):
    """A store of files in memory that repeats all it knows when it is told to fail, as careless drivers do."""

    protocol = "hush"
    cachable = False
    files: typing.ClassVar[dict[str, bytes]] = {}
    manner = "ok"

    def _known(self, path):
        said = f"GET hush://{path}?sig={MARKER} with {self.storage_options} failed.\nAuthorization: Bearer {MARKER}"
        if Hush.manner == "own text":
            raise OwnText(f"hush://{path}?sig={MARKER}")
        if Hush.manner in ("error", "denied", "odd", "value"):
            raise {"error": OSError, "denied": PermissionError, "odd": RuntimeError, "value": ValueError}[Hush.manner](
                said
            )
        name = path.partition("@")[2].partition("/")[2] or path
        if name not in Hush.files or Hush.manner == "missing":
            raise FileNotFoundError(2, said, f"hush://{path}")
        return Hush.files[name]

    def info(self, path, **_):
        path = self._strip_protocol(path)
        return {"name": path, "type": "file", "size": len(self._known(path)), "ETag": "one"}

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path)
        inside = path.partition("@")[2].partition("/")[2]
        names = [name for name in Hush.files if name.startswith(inside)]
        if not names or Hush.manner != "ok":
            self._known(f"{path}/*")
        return [self.info(f"{path.rstrip('/')}{name.removeprefix(inside)}") if detail else name for name in names]

    def cat_file(self, path, start=None, end=None, **_):
        return self._known(self._strip_protocol(path))[start:end]


fsspec.register_implementation("hush", Hush, clobber=True)


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """All files by their paths."""
    base = tmp_path_factory.mktemp("secrets")
    for name, (file, write, _) in {**FILES, **FOLDERS}.items():
        if write is None:
            written(base, "array_record plain", RECORDS, "x")
        else:
            write(base / file)
        assert (base / file).exists(), name
    found = {f"/{path.relative_to(base)}": path.read_bytes() for path in base.rglob("*") if path.is_file()}
    Hush.files = {name[1:]: content for name, content in found.items()}
    return found


class Places:
    """Where a source lies: by a signed URL with a password, or in the store that repeats all it knows."""

    def __init__(self, web):
        self.web = web

    def of(self, place, name, file):
        if place == "hush":
            secret = {"token": MARKER, "deep": {"inside": [MARKER, {"key": MARKER}]}}
            return f"hush://me:{MARKER}@vault/{file}", {**QUICK, **secret}
        address = f"http://me:{MARKER}@{self.web.url.removeprefix('http://')}/{file}"
        signed = f"?X-Amz-Signature={MARKER}&id=3&X-Amz-Credential=AKIA/{MARKER}/s3#{MARKER}"
        return address + ("" if name in FOLDERS else signed), dict(QUICK)

    def behave(self, manner):
        Hush.manner = manner
        self.web.behave = lambda number: {"odd": "error", "value": "error", "own text": "error"}.get(manner, manner)
        self.web.head = {"ok": 200, "denied": 403, "missing": 404}.get(manner, 500)


@pytest.fixture
def places(contents):
    with Web(dict(contents)) as web:
        yield Places(web)
    Hush.manner = "ok"


@contextlib.contextmanager
def watched(caplog, tmp_path, monkeypatch):
    """Collects what is seen. The folders that the library writes to are searched at the end, names and contents."""
    seen = []
    monkeypatch.setenv("BUSHEL_CACHE_DIR", str(tmp_path / "cache"))
    caplog.set_level(logging.DEBUG, "bushel")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield seen
    seen += [str(warning.message) for warning in warned]
    seen += [
        record.getMessage() + str(record.exc_info) for record in caplog.records if record.name.startswith("bushel")
    ]
    for path in tmp_path.rglob("*"):
        seen.append(str(path.relative_to(tmp_path)))
        if path.is_file():
            seen.append(path.read_bytes().decode("latin-1"))
    assert seen
    assert [text for text in seen if MARKER in text] == []


def look(source, seen):
    """All that can be seen of a source and of the pipelines over it. Reads it."""
    seen += [repr(source), str(source), f"{source}", f"{source!r}"]
    if isinstance(source, DataLoader):
        it = iter(source)
        next(it)
        state = it.get_state()
        seen += [repr(it), state.decode() if isinstance(state, bytes) else json.dumps(state)]
        return
    if hasattr(source, "__getitem__") and not isinstance(source, bushel.IterDataset):
        seen.append(repr(fingerprint(source)))
        ds = MapDataset.source(source).shuffle(seed=1).map(lambda element: element)
        seen += [repr(ds), str(ds), str(ds.origin(0)), repr(ds.origin(0)), json.dumps(identify(ds._node))]
        seen.append(repr(ds[0]))
        stream = ds.to_iter_dataset()
    else:
        stream = source
    timed = WithOptionsIterDataset(stream, TIMED)
    registry = prometheus_client.CollectorRegistry()
    with contextlib.closing(iter(timed)) as it:
        bushel.prometheus.export(it, registry=registry)
        next(it)
        seen += [repr(it), json.dumps(it.get_state()), str(it.report()), repr(it.report()), repr(stream), str(stream)]
        for _ in it:
            pass
        seen.append(prometheus_client.generate_latest(registry).decode())
        it.set_state(it.get_state())
        with contextlib.suppress(NotImplementedError, ValueError):  # of a file that is read in order
            seen += map(str, it.origins(1))


CASES = [(place, name) for place in ("web", "hush") for name in {**FILES, **FOLDERS}]


def opening(places, place, name):
    file, _, kind = {**FILES, **FOLDERS}[name]
    url, options = places.of(place, name, file)
    return lambda **more: kind(url, storage_options={**options, **more})


@pytest.mark.parametrize(("place", "name"), CASES)
def test_nothing_shows_while_it_works(places, place, name, caplog, tmp_path, monkeypatch):
    with watched(caplog, tmp_path, monkeypatch) as seen:
        make = opening(places, place, name)
        look(make(), seen)
        if name != "ZarrDataSource":  # it has no copies
            look(make(cache_dir=str(tmp_path / "copies")), seen)


def attempted(act, seen):
    """What an error shows. An action that should fail must."""
    try:
        act()
    except Exception as error:
        seen.append(all_text_of(error))
        seen += traceback.format_exception(error)
        return True
    return False


@pytest.mark.parametrize(("place", "name"), CASES)
def test_nothing_shows_when_it_fails(places, place, name, caplog, tmp_path, monkeypatch):
    with watched(caplog, tmp_path, monkeypatch) as seen:
        make = opening(places, place, name)
        for manner in ("missing", "error", "denied", "odd", "value", "own text"):
            places.behave(manner)
            assert attempted(lambda: look(make(), seen), seen), manner
        places.behave("ok")
        good = make()
        for manner in ("error", "own text"):
            places.behave(manner)
            if name != "load_arrays":  # which has read all
                assert attempted(lambda: look(pickle.loads(pickle.dumps(good)), seen), seen)
        places.behave("ok")
        spoil(places, lambda content: content[: len(content) // 2 + 3])
        if name not in ("FileDataSource", "LineDataSource"):  # all bytes are good ones
            assert attempted(lambda: look(make(), seen), seen)
        if name != "load_arrays":
            attempted(lambda: look(good, seen), seen)  # whether it fails depends on what it holds already


def spoil(places, change):
    before = places.web.content
    places.web.content = {name: change(content) for name, content in before.items()}
    Hush.files = {name[1:]: content for name, content in places.web.content.items()}


@pytest.fixture(autouse=True)
def whole_files(contents):
    Hush.files = {name[1:]: content for name, content in contents.items()}


def test_workers_get_the_secrets_and_show_none(places, caplog, tmp_path, monkeypatch):
    """The server answers only requests that are signed, so that a worker without the signature would fail."""
    with watched(caplog, tmp_path, monkeypatch) as seen:
        url, options = places.of("web", "", "x.tfrecord")
        ds = MapDataset.source(sources.TFRecordDataSource(url, storage_options=options)).to_iter_dataset()
        with contextlib.closing(iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))) as it:
            assert list(it) == RECORDS
            seen.append(repr(it))
        assert all(MARKER in address for address in places.web.addresses)
        places.behave("denied")
        with contextlib.closing(iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=1)))) as it:
            assert attempted(lambda: list(it), seen)


class Own:
    """A source of the user's own, whose repr shows where it reads."""

    def __init__(self, url):
        self.paths = [url]

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index

    def __repr__(self):
        return f"Own({self.paths[0]!r}, secret_key='{MARKER}')"


class Fetch(bushel.transforms.Map):
    def __init__(self, url):
        self._url = url

    def map(self, element):
        return element

    def __repr__(self):
        return f"Fetch({self._url})"


@pytest.mark.parametrize("again", [False, True])
def test_what_users_show_of_their_own(again, caplog, tmp_path, monkeypatch):
    """Pipelines and states show no secret of a user's own repr, and a new signature makes no other pipeline."""
    with watched(caplog, tmp_path, monkeypatch) as seen:
        source = Own(f"https://me:{MARKER}@host/x?sig={MARKER}")
        loading = DataLoader(data_source=source, sampler=samplers.SequentialSampler(9), worker_count=0)
        seen.append(iter(loading).get_state().decode())
        ds = MapDataset.source(source).map(Fetch(f"https://host/x?sig={MARKER}"))
        seen += [repr(ds), str(ds.origin(3)), json.dumps(iter(ds).get_state())]
        if again:
            other = MapDataset.source(Own(f"https://you:else@host/x?sig=other{MARKER}"))
            iter(other).set_state(iter(MapDataset.source(source)).get_state())


# Trajectories.


@pytest.fixture(scope="module")
def robots():
    base = GOLDEN / "tfds"
    return {f"/{path.relative_to(base)}": path.read_bytes() for path in base.rglob("*") if path.is_file()}


def test_trajectories_of_a_url(robots, caplog, tmp_path, monkeypatch):
    keys = {"image_obs_keys": {"primary": "image"}, "proprio_obs_keys": {"arm": "state"}}
    with watched(caplog, tmp_path, monkeypatch) as seen, Web(robots) as web:
        data_dir = f"http://me:{MARKER}@{web.url.removeprefix('http://')}"
        seen.append(repr(DatasetConfig(name="synth_rlds", data_dir=data_dir, storage_options={"key": MARKER})))

        def read():
            ds, statistics = make_dataset_from_rlds(
                "synth_rlds:1.0.0", data_dir, train=True, storage_options=QUICK, **keys
            )
            seen.extend([repr(ds), json.dumps(statistics, default=str), repr(ds.dataset), str(ds.dataset.origin(0))])
            with contextlib.closing(iter(ds.dataset.to_iter_dataset())) as it:
                next(it)
                seen.extend([repr(it), json.dumps(it.get_state())])

        read()
        read()  # from the table on disk
        web.behave = lambda number: "denied"
        assert attempted(read, seen)
        web.head = 404
        assert attempted(read, seen)
        assert attempted(lambda: DatasetConfig(name=[data_dir], data_dir=data_dir), seen)


# The rest of `bushel.sources`, and the command line.


def test_lance_checksums_and_conversion(places, caplog, tmp_path, monkeypatch):
    with watched(caplog, tmp_path, monkeypatch) as seen:
        web, options = places.of("web", "", "x.tfrecord")
        hush, secret = places.of("hush", "", "x.tfrecord")
        keys = {"aws_secret_access_key": MARKER, "aws_access_key_id": MARKER, "aws_region": "eu", "allow_http": "true"}
        keys |= {"aws_endpoint": places.web.url, "client_max_retries": "0"}
        places.behave("denied")
        for act in (
            lambda: sources.LanceDataSource(f"s3://key:{MARKER}@bucket/x.lance", storage_options=keys),
            lambda: sources.check_checksums(web, storage_options=options),
            lambda: sources.check_checksums(hush, storage_options=secret),
            lambda: sources.write_checksums([web]),
            lambda: sources.convert(web, tmp_path / "x.bag", storage_options=options),
            lambda: sources.convert([hush], tmp_path / "x.bag", storage_options=secret),
            lambda: sources.convert(f"{web}.unknown", tmp_path / "x.bag"),
            lambda: sources.convert(hush, web, storage_options=secret),
            lambda: MapDataset.source(web),
            lambda: file_access.open_file(web, {**options, "wrong": MARKER}),
            lambda: file_access.open_file("s3://bucket/x", {"secret_access_key": MARKER, "odd": object()}),
            lambda: file_access.open_file("s3://bucket/x", {"secret_access_key": MARKER, "nested": {"a": {MARKER}}}),
            lambda: file_access.open_file("s3://bucket/x", {"secret_access_key": MARKER, "wrong": "x"}),
            lambda: file_access.open_file("az://c/x", {"account_name": "a", "account_key": MARKER}),
            lambda: file_access.open_file("gs://c/x", {"service_account_key": MARKER}),
            lambda: file_access.open_file(f"{web}", {"cache_dir": web}),
        ):
            assert attempted(act, seen)
        seen.append(repr(sources.file_fingerprint([web, hush])))
        places.behave("ok")
        assert sources.convert(web, tmp_path / "x.bag", storage_options=options).files == (str(tmp_path / "x.bag"),)
        assert list(sources.BagzDataSource(tmp_path / "x.bag")) == RECORDS


def test_denied_by_s3_whose_answer_repeats_the_signature(places, caplog, tmp_path, monkeypatch):
    keys = {"secret_access_key": MARKER, "access_key_id": f"{MARKER}id", "session_token": f"{MARKER}token"}
    options = {**keys, **QUICK, "region": "eu", "endpoint": places.web.url}
    with watched(caplog, tmp_path, monkeypatch) as seen:
        places.behave("denied")
        for path in ("s3://bucket/x.tfrecord", "s3://bucket/*.tfrecord", f"s3://key:{MARKER}@bucket/x.tfrecord"):
            assert attempted(lambda path=path: sources.TFRecordDataSource(path, storage_options=options), seen)
        assert attempted(lambda: sources.ZarrDataSource("s3://bucket/x.zarr", storage_options=options), seen)


ODD = [
    "s3://key:{}@bucket/x",
    "https://127.0.0.1:1/p?sig={}#frag",
    "HTTPS://127.0.0.1:1/p?sig={}",
    "https://127.0.0.1:1/p%3Fsig%3D{}",
    "https://127.0.0.1:1/*.bag?sig={}",
    "https://127.0.0.1:1/x.bag?sig={}[0:3]",
    "file://user:{}@host/x",
    "FILE://user:{}@host/x",
    "nostore://u:{}@host/x?sig={}",
    "ftp://u:{}@127.0.0.1:1/x",
    "github://o:{}@main/x",
    "simplecache::https://u:{}@127.0.0.1:1/x?sig={}",
    "name@*.bagz?sig={}",
    "https://u:{}@127.0.0.1:1/name@*.bagz?sig={}",
    "az://c/x-?.bag?sv=1&sig={}",
]


@pytest.mark.parametrize("url", ODD)
@pytest.mark.parametrize("form", ["text", "list", "nested", "bytes", "path"])
def test_odd_addresses_in_every_form(url, form, caplog, tmp_path, monkeypatch):
    url = url.replace("{}", MARKER)
    forms = {"text": url, "list": ["/dev/null", url], "nested": [[url]], "bytes": url.encode(), "path": Path(url)}
    if url.startswith("name") and form == "path":
        pytest.skip("a local name")
    with watched(caplog, tmp_path, monkeypatch) as seen:
        for kind in (sources.BagzDataSource, sources.FileDataSource, sources.ParquetDataSource, WebDatasetIterDataset):
            failed = attempted(lambda kind=kind: look(kind(forms[form], storage_options=QUICK), seen), seen)
            assert failed


def bushel_command(*words):
    return subprocess.run(
        [sys.executable, "-m", "bushel", *map(str, words)], capture_output=True, text=True, timeout=250, check=False
    )


def test_the_command_line_shows_none(places, capsys, tmp_path):
    web, _ = places.of("web", "", "x.tfrecord")
    target = tmp_path / "x.bag"
    gone = f"http://me:{MARKER}@127.0.0.1:1/x.tfrecord?sig={MARKER}"
    quick = ["--storage-option", "retries=0", "--storage-option", "timeout_s=1", "--quiet"]
    for words, code in (
        (["convert", web, target, "--workers", "1"], 0),
        (["convert", gone, target, "--overwrite", *quick], 1),
        (["convert", web, target, "--storage-option", f"secret={MARKER}", "--overwrite"], 1),
        (["convert", web, target, "--storage-option", MARKER], 1),
        (["convert", web, f"s3://me:{MARKER}@b/x.bag"], 1),
        (["convert", web, target, "--optoin", f"secret={MARKER}"], 2),
        (["convert", web, target, f"--optoin=secret={MARKER}"], 2),
        (["convert", web, target, "--shards", web], 2),
        ([web], 2),
        (["convert", "--help", web], 0),
    ):
        try:
            ended = cli.main(list(map(str, words)))
        except SystemExit as exit:
            ended = exit.code
        said = capsys.readouterr()
        assert (ended, MARKER in said.out + said.err) == (code, False), (words, said)
    assert os.path.exists(target)


def test_tracebacks_of_programs_show_none(places, tmp_path):
    web, _ = places.of("web", "", "gone.tfrecord")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom bushel.sources import TFRecordDataSource\n"
        f"try:\n    raise KeyError({web!r})\nexcept KeyError:\n    TFRecordDataSource({web!r})\n"
    )
    ended = bushel_command("run", program, web)
    assert ended.returncode == 1
    assert "gone.tfrecord?... does not exist" in ended.stderr
    assert MARKER not in ended.stdout + ended.stderr
