"""Every file format, written by its own library, read from stores: S3, GCS through both of its interfaces, Azure.

`s3://` is moto's server. `gs://` is obstore's client of the XML interface, which moto speaks too; `gcs://` is gcsfs,
the client of the JSON interface, and gcp-storage-emulator; `az://` is Azurite, where it is installed.
"""

import contextlib
import dataclasses
import gzip
import pickle
import random
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import webdataset
import zarr
from helpers.record_formats import FORMATS, opened, table, tfrecord, written
from helpers.servers import AZURITE, BUCKET, azure, gcs, s3

import bushel
from bushel import IterDataset, MapDataset
from bushel.experimental import ParquetIterDataset, TFRecordIterDataset, WebDatasetIterDataset
from bushel.sources import (
    ArrayDataSource,
    ArrowDataSource,
    FileDataSource,
    HDF5DataSource,
    LanceDataSource,
    LineDataSource,
    ParquetDataSource,
    TFDSDataSource,
    ZarrDataSource,
    load_arrays,
)
from bushel.testing import check_resumes_anywhere, same

RECORDS = [random.Random(number).randbytes(number * 97 % 5_000) for number in range(50)]
ARRAYS = {"x": np.arange(120, dtype=np.float32).reshape(40, 3), "y": np.arange(40)}
ROWS = [{name: array[place] for name, array in ARRAYS.items()} for place in range(40)]
TFDS = Path(__file__).parent.parent / "data" / "tfds_mine.zip"


@dataclasses.dataclass(frozen=True)
class Format:
    """How its own library writes it, how we open what lies in a folder, and what we must then read."""

    write: Callable[[Path], Any]
    open: Callable[..., Any]
    expected: Callable[[str], list[Any]]


def records(name: str) -> Format:
    ending = FORMATS[name][0]

    def write(folder: Path) -> None:
        for part in range(2):
            written(folder, name, RECORDS[part::2], f"part-{part}")

    return Format(
        write,
        lambda base, **options: opened(name, f"{base}/part-*.{ending}", **options),
        lambda _: RECORDS[0::2] + RECORDS[1::2],
    )


def stream(folder: Path) -> None:
    tfrecord(folder / "x.tfrecord", RECORDS)
    (folder / "x.tfrecord.gz").write_bytes(gzip.compress((folder / "x.tfrecord").read_bytes()))


def arrow(folder: Path) -> None:
    with pa.ipc.new_file(folder / "x.arrow", table().schema) as writer:
        writer.write_table(table(), max_chunksize=10)


def tar(folder: Path) -> None:
    with webdataset.TarWriter(str(folder / "x.tar")) as writer:
        for number, record in enumerate(RECORDS):
            writer.write({"__key__": f"{number:04d}", "bin": record})


def hdf5(folder: Path) -> None:
    with h5py.File(folder / "x.hdf5", "w") as file:
        file.create_dataset("x", data=ARRAYS["x"], chunks=(10, 3), compression="gzip")
        file.create_dataset("y", data=ARRAYS["y"])


def zarr_group(folder: Path) -> None:
    group = zarr.open_group(folder / "x.zarr", mode="w")
    group.create_array("x", data=ARRAYS["x"], chunks=(10, 3))
    group.create_array("y", data=ARRAYS["y"], chunks=(20,))


def tfds(folder: Path) -> None:
    with zipfile.ZipFile(TFDS) as archive:
        archive.extractall(folder)


def tfds_rows(_: str) -> list[Any]:
    """As they are read from a folder: `test_tfds.py` holds these values."""
    with tempfile.TemporaryDirectory() as folder:
        tfds(Path(folder))
        return list(MapDataset.source(TFDSDataSource(folder, split="train")))


def files(folder: Path) -> None:
    for number, record in enumerate(RECORDS[1:]):  # the emulator takes no empty file
        (folder / f"{number:04d}.bin").write_bytes(record)


def file_rows(base: str) -> list[Any]:
    return [{"path": f"{base}/{number:04d}.bin", "content": record} for number, record in enumerate(RECORDS[1:])]


def table_rows(_: str) -> list[Any]:
    """As Grain reads them: `test_table_files.py` compares with it."""
    columns = {name: column.to_numpy() for name, column in zip(table().schema.names, table().columns)}
    return [{name: column[place] for name, column in columns.items()} for place in range(53)]


CASES = {name: records(name) for name in FORMATS} | {
    "tfrecord in order": Format(
        stream, lambda base, **options: TFRecordIterDataset(f"{base}/x.tfrecord", **options), lambda _: RECORDS
    ),
    "tfrecord gzip": Format(
        stream, lambda base, **options: TFRecordIterDataset(f"{base}/x.tfrecord.gz", **options), lambda _: RECORDS
    ),
    "parquet": Format(
        lambda folder: pq.write_table(table(), folder / "x.parquet", row_group_size=10),
        lambda base, **options: ParquetDataSource(f"{base}/x.parquet", **options),
        table_rows,
    ),
    "parquet in order": Format(
        lambda folder: pq.write_table(table(), folder / "x.parquet", row_group_size=10),
        lambda base, **options: ParquetIterDataset(f"{base}/x.parquet", **options),
        table_rows,
    ),
    "arrow": Format(arrow, lambda base, **options: ArrowDataSource(f"{base}/*.arrow", **options), table_rows),
    "npy": Format(
        lambda folder: np.save(folder / "x.npy", ARRAYS["x"]),
        lambda base, **options: ArrayDataSource(load_arrays(f"{base}/x.npy", **options)),
        lambda _: list(ARRAYS["x"]),
    ),
    "npz": Format(
        lambda folder: np.savez(folder / "x.npz", **ARRAYS),
        lambda base, **options: ArrayDataSource(load_arrays(f"{base}/x.npz", **options)),
        lambda _: ROWS,
    ),
    "safetensors": Format(
        lambda folder: safetensors.numpy.save_file(ARRAYS, folder / "x.safetensors"),
        lambda base, **options: ArrayDataSource(load_arrays(f"{base}/x.safetensors", **options)),
        lambda _: ROWS,
    ),
    "hdf5": Format(hdf5, lambda base, **options: HDF5DataSource(f"{base}/x.hdf5", **options), lambda _: ROWS),
    "zarr": Format(zarr_group, lambda base, **options: ZarrDataSource(f"{base}/x.zarr", **options), lambda _: ROWS),
    "lance": Format(
        lambda folder: lance.write_dataset(table(), str(folder / "x.lance")),
        lambda base: LanceDataSource(f"{base}/x.lance", storage_options={"allow_http": "true"}),
        lambda _: [row | {"maybe": None if row["id"] % 5 == 0 else np.int32(row["id"])} for row in table_rows("")],
    ),
    "webdataset": Format(
        tar,
        lambda base, **options: WebDatasetIterDataset(f"{base}/x.tar", **options),
        lambda _: [{"__key__": f"{number:04d}", "bin": record} for number, record in enumerate(RECORDS)],
    ),
    "tfds": Format(
        tfds,
        lambda base, **options: TFDSDataSource(base, split="train", **options),
        tfds_rows,
    ),
    "lines": Format(
        lambda folder: (folder / "x.txt").write_text("".join(f"line {number}\n" for number in range(40))),
        lambda base, **options: LineDataSource(f"{base}/x.txt", **options),
        lambda _: [f"line {number}".encode() for number in range(40)],
    ),
    "files": Format(files, lambda base, **options: FileDataSource(f"{base}/*.bin", **options), file_rows),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Files of every format, in every store."""
    base = tmp_path_factory.mktemp("formats")
    with contextlib.ExitStack() as servers:
        puts = [servers.enter_context(s3(base)), servers.enter_context(gcs())]
        if AZURITE:
            puts.append(servers.enter_context(azure(base)))
        for name, case in CASES.items():
            folder = base / folder_of(name)
            folder.mkdir()
            case.write(folder)
            for path in folder.rglob("*"):
                if path.is_file():
                    for put in puts:
                        put(path.relative_to(base).as_posix(), path.read_bytes())
        yield


def folder_of(name: str) -> str:
    return name.replace(" ", "_")


def base_of(scheme: str, name: str) -> str:
    return f"{scheme}://{BUCKET}/{folder_of(name)}"


def dataset(source: Any) -> IterDataset:
    return source if isinstance(source, IterDataset) else MapDataset.source(source).to_iter_dataset()


no_azurite = pytest.mark.skipif(AZURITE is None, reason="needs azurite, a package of npm")
schemes = pytest.mark.parametrize("scheme", ["s3", "gs", "gcs", pytest.param("az", marks=no_azurite)])


@schemes
@pytest.mark.parametrize("name", CASES)
def test_every_format_is_read_from_every_store(stores, scheme, name):
    if (name, scheme) == ("lance", "gcs"):
        pytest.skip("Lance reads by itself, and does not know gcs://")
    case, base = CASES[name], base_of(scheme, name)
    source, expected = case.open(base), case.expected(base)
    assert same(list(dataset(source)), expected)
    if isinstance(source, IterDataset):
        return
    assert len(source) == len(expected)
    again = pickle.loads(pickle.dumps(source))
    places = [7, 3, 3, len(expected) - 1]
    assert same([again[place] for place in places], [expected[place] for place in places])


@pytest.mark.parametrize("scheme", ["s3", "gcs"])
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("lance", "zarr")])
def test_every_format_is_read_from_a_copy(stores, scheme, name, tmp_path):
    """The first time copies are made, the second time they are there; the state is that of the remote files."""
    case, base = CASES[name], base_of(scheme, name)
    expected, source = case.expected(base), None
    for _ in range(2):
        source = case.open(base, storage_options={"cache_dir": str(tmp_path / "copies")})
        assert same(list(dataset(source)), expected)
        assert list(tmp_path.glob("copies/*.copy"))
    if not isinstance(source, ArrayDataSource):  # which knows its arrays, not their files
        iterator = iter(dataset(source))
        next(iterator)
        remote = iter(dataset(case.open(base)))
        remote.set_state(iterator.get_state())
        assert same(list(remote), expected[1:])


@schemes
@pytest.mark.parametrize("name", ["array_record zstd", "bagz", "parquet in order", "hdf5", "zarr", "tfds"])
def test_two_worker_processes_read_from_every_store(stores, scheme, name):
    case, base = CASES[name], base_of(scheme, name)
    with iter(dataset(case.open(base)).mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as workers:
        assert same(list(workers), case.expected(base))


@schemes
@pytest.mark.parametrize("name", ["bag", "parquet in order"])
def test_a_pipeline_over_a_store_resumes(stores, scheme, name):
    ds = dataset(CASES[name].open(base_of(scheme, name)))
    check_resumes_anywhere(ds.map(lambda element: len(element)).batch(20))
