"""Many records by their positions: what a list has at the same indices, or refused as a list would."""

import h5py
import lance
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
import zarr
from helpers.record_formats import FORMATS, written
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel._src.base import blocks, checks
from bushel.sources import (
    ArrayDataSource,
    ArrowDataSource,
    FileDataSource,
    FixedRecords,
    HDF5DataSource,
    LanceDataSource,
    LineDataSource,
    ParquetDataSource,
    RaggedDataSource,
    ZarrDataSource,
)
from bushel.testing import same

COUNT = 7
VALUES = np.arange(COUNT)
RECORDS = [bytes([number]) * 4 for number in range(12)]


def record_file(name, part):
    def made(folder):
        path = written(folder, name, RECORDS if part else RECORDS[:COUNT])
        return FORMATS[name][2](f"{path}[3:10]" if part else path)

    return made


def two_parts(folder):
    path = written(folder, "bag", RECORDS)
    return FORMATS["bag"][2]([f"{path}[0:3]", f"{path}[5:9]"])


def parquet(folder):
    pq.write_table(pa.table({"x": VALUES}), folder / "x.parquet", row_group_size=3)
    return ParquetDataSource(folder / "x.parquet")


def arrow(folder):
    table = pa.table({"x": VALUES})
    with pyarrow.ipc.new_file(folder / "x.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=3)
    return ArrowDataSource(folder / "x.arrow")


def hdf5(folder):
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = VALUES
    return HDF5DataSource(folder / "x.h5")


def zarr_array(folder):
    zarr.save(str(folder / "x.zarr"), VALUES)
    return ZarrDataSource(folder / "x.zarr")


def lance_rows(folder):
    lance.write_dataset(pa.table({"x": VALUES}), str(folder / "x.lance"))
    return LanceDataSource(folder / "x.lance")


def lines(folder):
    (folder / "x.txt").write_text("".join(f"{number}\n" for number in VALUES))
    return LineDataSource(folder / "x.txt")


def files(folder):
    for number in VALUES:
        (folder / f"{number}.bin").write_bytes(bytes([number]))
    return FileDataSource(f"{folder}/*.bin")


SOURCES = {
    **{name: record_file(name, part=False) for name in FORMATS},
    **{f"part of {name}": record_file(name, part=True) for name in FORMATS},
    "parts of files": two_parts,
    "arrays of records": lambda folder: FixedRecords(record_file("bag", part=True)(folder), dtype=np.uint8, shape=(4,)),
    "parquet": parquet,
    "arrow": arrow,
    "hdf5": hdf5,
    "zarr": zarr_array,
    "lance": lance_rows,
    "lines": lines,
    "files": files,
    "array": lambda folder: ArrayDataSource({"x": VALUES}),
    "large array": lambda folder: ArrayDataSource(np.repeat(VALUES[:, None], 100_000, 1)),
    "ragged": lambda folder: RaggedDataSource(VALUES, np.arange(COUNT + 1)),
}


@pytest.fixture(scope="module", params=SOURCES)
def source(request, tmp_path_factory):
    made = SOURCES[request.param](tmp_path_factory.mktemp("data"))
    assert len(made) == COUNT
    return made


def rows(block):
    return block.rows() if isinstance(block, blocks.Columns) else list(block)


@settings(max_examples=25, deadline=None)
@given(indices=st.lists(st.integers(-COUNT - 2, COUNT + 1), max_size=12), array=st.booleans())
def test_many_records_are_those_that_a_list_has(source, indices, array):
    asked = np.array(indices, np.int64) if array else indices
    if all(-COUNT <= index < COUNT for index in indices):
        assert same(rows(source.__getitems__(asked)), [source[index] for index in indices])
    else:
        with pytest.raises(IndexError, match=f"is out of (range for {COUNT} records|bounds .* size {COUNT})"):
            source.__getitems__(asked)


@pytest.mark.parametrize("indices", [[0.9], np.array([True, False]), [[0, 1], [2, 3]], ["0"], [None]], ids=str)
def test_what_is_no_list_of_integers_is_refused(source, indices):
    with pytest.raises(TypeError, match="Indices must be integers on one axis"):
        source.__getitems__(indices)


@settings(deadline=None)
@given(length=st.integers(0, 5), indices=st.lists(st.integers(-7, 7), max_size=5))
def test_positions_are_those_of_a_list(length, indices):
    try:
        expected = [list(range(length))[index] for index in indices]
    except IndexError:
        with pytest.raises(IndexError, match=f"is out of range for {length} records"):
            checks.positions(indices, length)
    else:
        found = checks.positions(indices, length)
        assert found.tolist() == expected and found.dtype == np.int64


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", ">i8"])
def test_positions_of_any_integers(dtype):
    assert checks.positions(np.array([3, 0], dtype), 4).tolist() == [3, 0]


def test_numbers_beyond_int64_are_out_of_range_and_do_not_wrap():
    with pytest.raises(IndexError, match=f"index {2**64 - 1} is out of range"):
        checks.positions(np.array([2**64 - 1], np.uint64), 4)
