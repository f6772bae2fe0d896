"""Damaged files: cut short, a byte changed, another format. Never other records without a word, never a hang."""

import os
import pickle
import random
import shutil

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.case_counts import cases
from helpers.record_formats import FORMATS, opened, written
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import DamagedFile, MapDataset
from bushel.sources import (
    ArrayDataSource,
    ArrowDataSource,
    HDF5DataSource,
    ParquetDataSource,
    RaggedDataSource,
    load_arrays,
)

RECORDS = [random.Random(number).randbytes(number * 37 % 3_000) for number in range(30)]
CHECKED = [name for name in FORMATS if not name.startswith("bag")]


@pytest.fixture(scope="module", params=FORMATS)
def stored(request, tmp_path_factory):
    return request.param, written(tmp_path_factory.mktemp("files"), request.param, RECORDS)


@pytest.fixture(scope="module", params=CHECKED)
def checked(request, tmp_path_factory):
    return request.param, written(tmp_path_factory.mktemp("files"), request.param, RECORDS)


def read_all(name, path, **options):
    """Every record: equal, or a DamagedFile that names the file. Returns how many were damaged."""
    try:
        source = opened(name, path, **options)
    except DamagedFile as error:
        assert path.name in str(error)
        return len(RECORDS)
    damaged = 0
    assert len(source) == len(RECORDS)
    try:
        assert source.__getitems__(range(len(RECORDS))) == RECORDS
        return 0
    except DamagedFile:
        pass
    for index, record in enumerate(RECORDS):
        try:
            assert source[index] == record
        except DamagedFile as error:
            assert path.name in str(error)
            damaged += 1
    return damaged


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_file_cut_short_is_never_read_as_whole(stored, data, tmp_path_factory):
    name, path = stored
    size = path.stat().st_size
    copy = tmp_path_factory.mktemp("cut") / path.name
    shutil.copy(path, copy)
    length = data.draw(st.integers(0, size - 1))
    with open(copy, "r+b") as file:
        file.truncate(length)
    try:
        source = opened(name, copy)
    except DamagedFile as error:
        assert copy.name in str(error)
        return
    # What has no end mark may have been cut between two records: then it is shorter, and says so by its length.
    assert len(source) < len(RECORDS)
    if name == "tfrecord":
        assert list(source) == RECORDS[: len(source)]
    else:
        assert length == 0 or name.startswith("bag")


@settings(max_examples=cases(12, 25), deadline=None)
@given(data=st.data())
def test_a_changed_byte_is_reported_or_harmless_where_there_are_checksums(checked, data, tmp_path_factory):
    name, path = checked
    copy = tmp_path_factory.mktemp("flip") / path.name
    content = bytearray(path.read_bytes())
    used = len(content) if name == "tfrecord" else sum(map(len, RECORDS))
    place = data.draw(st.integers(0, min(used, len(content)) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    copy.write_bytes(content)
    read_all(name, copy, verify=True)


@pytest.mark.parametrize("name", CHECKED)
def test_a_changed_byte_of_a_record_is_reported(name, tmp_path):
    path = written(tmp_path, name, RECORDS)
    content = path.read_bytes()
    place = content.find(RECORDS[20][:8])
    if place < 0:  # compressed: somewhere in the data
        place = 10_000
    damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    path.write_bytes(damaged)
    assert read_all(name, path, verify=True) >= 1


@pytest.mark.parametrize("name", [name for name in CHECKED if name.startswith("array")])
def test_a_changed_index_is_reported_without_hashes_too(name, tmp_path):
    path = written(tmp_path, name, RECORDS)
    content = bytearray(path.read_bytes())
    rng = random.Random(0)
    end = len(content) - 65536
    used = max(place for place in range(end) if content[place])
    for _ in range(40):
        place = rng.randrange(used - 150, used)  # the footer's data
        changed = content.copy()
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        read_all(name, path)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("content", [b"x", b"hello world " * 20_000, bytes(200_000), b"\xff" * 200_000])
def test_a_file_of_another_format_is_refused(name, content, tmp_path):
    path = tmp_path / f"other.{FORMATS[name][0]}"
    path.write_bytes(content)
    if name.startswith("bag") and not any(content):
        assert len(opened(name, path)) == len(content) // 8  # as the format has it: as many records without content
        return
    with pytest.raises(DamagedFile, match=f"other.{FORMATS[name][0]}"):
        list(opened(name, path))


def test_a_damaged_record_fails_alone(tmp_path):
    path = written(tmp_path, "tfrecord", RECORDS)
    content = bytearray(path.read_bytes())
    content[content.find(RECORDS[20])] ^= 1
    path.write_bytes(content)
    ds = MapDataset.source(opened("tfrecord", path))
    it = iter(ds.to_iter_dataset())
    assert [next(it) for _ in range(20)] == RECORDS[:20]
    with pytest.raises(DamagedFile, match="record 20 is damaged: its content does not match its checksum") as raised:
        next(it)
    assert "record 20 of TFRecordDataSource(records.tfrecord: 30 records)" in "".join(raised.value.__notes__)
    assert ds[21] == RECORDS[21]
    with pytest.raises(DamagedFile, match="record 20"):
        ds.get([1, 20, 3])


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_records_can_be_skipped(workers, tmp_path):
    path = written(tmp_path, "tfrecord", RECORDS)
    content = bytearray(path.read_bytes())
    content[content.find(RECORDS[20])] ^= 1
    path.write_bytes(content)
    ds = MapDataset.source(opened("tfrecord", path)).to_iter_dataset().with_options(on_error="skip", skip_limit=1)
    if workers:
        ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=workers))
    with iter(ds) as it:
        assert list(it) == RECORDS[:20] + RECORDS[21:]


# Indices: what a changed byte in them leads to is told with the file's name, and never fewer records without a word.


def changes(path, low, high):
    """Files with one byte of [low, high) changed, bytes that are zero left alone."""
    content = path.read_bytes()
    for place in range(low, high):
        for value in {content[place] ^ 2, 255} - {content[place]}:
            if content[place]:
                path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
                yield place, value


def test_a_changed_byte_of_an_array_record_index_is_told(tmp_path):
    path = written(tmp_path, "array_record plain", records := [b"%06d" % number for number in range(20)])
    for changed in changes(path, 1_000, path.stat().st_size):
        try:
            source = opened("array_record plain", path)
            assert len(source) == len(records), changed
            [source[index] for index in range(len(source))]
        except DamagedFile as error:
            assert path.name in str(error)


def test_a_changed_byte_of_a_parquet_footer_loses_no_row(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(23)}), path, row_group_size=7, store_schema=False, write_statistics=False)
    size = path.stat().st_size
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
    for changed in changes(path, size - 8 - footer, size):
        try:
            source = ParquetDataSource(path)
        except DamagedFile as error:
            assert path.name in str(error)
            continue
        try:
            assert len(list(source)) == 23, changed
        except DamagedFile as error:
            assert path.name in str(error)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_changed_byte_of_an_archive_loses_no_array(save, tmp_path):
    save(tmp_path / "x.npz", a=np.arange(20), b=np.arange(20) * 2)
    for changed in changes(tmp_path / "x.npz", 0, (tmp_path / "x.npz").stat().st_size):
        try:
            assert set(load_arrays(tmp_path / "x.npz")) == {"a", "b"}, changed
        except DamagedFile as error:
            assert "x.npz" in str(error)


# Files that are replaced.


def write_arrow(path, values):
    table = pa.table({"x": values})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def write_hdf5(path, values):
    with h5py.File(path, "w") as file:
        file["x"] = values


REPLACED = {
    "parquet": (lambda path, values: pq.write_table(pa.table({"x": values}), path), ParquetDataSource),
    "arrow": (write_arrow, ArrowDataSource),
    "h5": (write_hdf5, HDF5DataSource),
    "npy": (np.save, lambda path: ArrayDataSource(load_arrays(path))),
    "ragged.npy": (np.save, lambda path: RaggedDataSource(load_arrays(path), [0, 5, 20])),
}


@pytest.mark.parametrize("ending", REPLACED)
def test_a_file_that_was_replaced_is_not_read_elsewhere(ending, tmp_path):
    """A worker that opens it later must not mix what is new with what others have read."""
    write, source = REPLACED[ending]
    path, other = tmp_path / f"x.{ending}", tmp_path / f"new.{ending}"
    write(path, np.arange(20))
    made = source(path)
    sent = pickle.dumps(made)
    assert repr(pickle.loads(sent)[1]) == repr(made[1])
    write(other, np.arange(20) + 1000)
    os.utime(other, ns=(0, path.stat().st_mtime_ns + 1))
    os.replace(other, path)
    with pytest.raises(DamagedFile, match=r"when the source was made, and it is .* now. Make the source again"):
        pickle.loads(sent)[1]
    with pytest.raises(DamagedFile, match="when the source was made"):
        pickle.loads(pickle.dumps(made))[1]  # packed after that, from what was mapped or read before


@pytest.mark.parametrize("source", [ParquetDataSource, ArrowDataSource, HDF5DataSource])
def test_a_pipe_is_no_file(source, tmp_path):
    os.mkfifo(tmp_path / "x")
    with pytest.raises(ValueError, match="is not a regular file"):
        source(tmp_path / "x")
