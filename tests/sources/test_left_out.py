"""Damaged files read in order, with on_error="skip": what can be read comes, what cannot is counted, once."""

import io
import json
import os
import random
import struct
import tarfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.record_formats import written
from helpers.stepped_executor import Stepped
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import DamagedFile
from bushel._src.base.errors import TooManySkipped
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel.experimental import ParquetIterDataset, TFRecordIterDataset, WebDatasetIterDataset

RECORDS = [b"%04d" % number + random.Random(number).randbytes(number * 3_001 % 9_000) for number in range(60)]


def tfrecord(path, number):
    return written(path, "tfrecord", RECORDS[number::3], f"part-{number}")


def packed(path, number):
    file = tfrecord(path, number)
    file.write_bytes(zlib.compress(file.read_bytes()))
    return file


def parquet(path, number):
    file = path / f"part-{number}.parquet"
    table = pa.table({"n": range(number, 60, 3), "raw": RECORDS[number::3]})
    options = {"row_group_size": 4, "write_page_checksum": True, "compression": "none", "use_dictionary": False}
    pq.write_table(table, file, **options)
    return file


def tar(path, number):
    file = path / f"part-{number}.tar"
    with tarfile.open(file, "w") as archive:
        for place, record in enumerate(RECORDS[number::3]):
            for ending, content in {"txt": b"%d" % place, "raw": record}.items():
                member = tarfile.TarInfo(f"{number}-{place}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file


WAYS = {
    "tfrecord": (tfrecord, TFRecordIterDataset),
    "compressed": (packed, TFRecordIterDataset),
    "parquet": (parquet, ParquetIterDataset),
    "tar": (tar, WebDatasetIterDataset),
}


@pytest.fixture(scope="module")
def executors():
    executors = {"inline": None, "stepped": Stepped(1), "processes": Processes(2)}
    yield executors
    for executor in filter(None, executors.values()):
        executor.close()


def opened(ds, executor=None, **options):
    return PipelineIterator(ds.with_options(on_error="skip", **options)._node, bushel.ReadOptions(0, 0), executor)


def run(it):
    """What comes, as text, and the state before each of it and after all."""
    rows, states = [], [json.dumps(it.get_state())]
    for row in it:
        rows.append(repr(row))
        states.append(json.dumps(it.get_state()))
    return rows, [*states[:-1], json.dumps(it.get_state())]


def changed(path, places, cut=None):
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 1 + place % 255
    path.write_bytes(content[:cut])


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_executor_leaves_the_same_records_out_also_after_a_restart(executors, way, data, tmp_path_factory):
    write, dataset = WAYS[way]
    folder = tmp_path_factory.mktemp("parts")
    paths = [write(folder, number) for number in range(3)]
    everything = {repr(row) for row in dataset(paths)}
    for path in paths[:2]:
        size = path.stat().st_size
        cut = data.draw(st.none() | st.integers(0, size))
        changed(path, data.draw(st.sets(st.integers(0, size - 1), max_size=3)), cut)
    ds = dataset(paths)
    with opened(ds) as it:
        rows, states = run(it)
        skipped = it.skipped
    whole = [repr(row) for row in dataset(paths[2])]
    assert [row for row in rows if row in set(whole)] == whole  # the file that is not damaged, in its order
    if way in ("tfrecord", "compressed"):
        assert set(rows) <= everything
    for name, executor in executors.items():
        with opened(ds, executor) as it:
            assert run(it) == (rows, states), name
            assert it.skipped == skipped
        start = data.draw(st.integers(0, len(rows)))
        with opened(ds, executor) as it:
            it.set_state(json.loads(states[start]))
            assert run(it) == (rows[start:], states[start:]), name
            assert it.skipped == skipped


def offsets(records):
    return np.cumsum([0] + [len(record) + 16 for record in records]).tolist()


def test_damaged_records_of_a_tfrecord_file_are_left_out_one_by_one(tmp_path, caplog):
    path = tfrecord(tmp_path, 0)
    starts = offsets(RECORDS[0::3])
    changed(path, [starts[10] + 14, starts[11] + 14, starts[19] + 14])
    with opened(TFRecordIterDataset(path)) as it:
        assert list(it) == [*RECORDS[0:30:3], *RECORDS[36:57:3]]
        assert it.skipped == 3
    message = rf"a record does not match its checksum \(record 10, at byte {starts[10]}\)"
    assert f"(record 10, at byte {starts[10]})" in caplog.text
    it = iter(TFRecordIterDataset(path))
    for _ in range(10):
        next(it)
    for _ in range(2):
        with pytest.raises(DamagedFile, match=message):
            next(it)
    with opened(TFRecordIterDataset(path), skip_limit=2) as it:
        assert len([next(it) for _ in range(17)]) == 17
        before = it.get_state()
        for _ in range(2):
            with pytest.raises(TooManySkipped, match=r"2 elements were skipped already.*\n.*at byte"):
                next(it)
            assert it.get_state() == before


def test_going_back_over_a_file_that_has_ended_counts_nothing_twice(tmp_path):
    paths = [
        written(tmp_path, "tfrecord", [b"bad", b"first"], "0"),
        written(tmp_path, "tfrecord", [b"second", b"bad", b"third"], "1"),
    ]
    changed(paths[0], [12])
    changed(paths[1], [len(b"second") + 16 + 12])
    with opened(TFRecordIterDataset(paths), skip_limit=1) as it:
        assert [next(it), next(it)] == [b"first", b"second"]
        before = it.get_state()
        for _ in range(2):  # the first file ends on the way to what is one too many: it is opened again
            with pytest.raises(TooManySkipped, match="1 elements were skipped already"):
                next(it)
            assert it.get_state() == before and it.skipped == 1
    with opened(TFRecordIterDataset(paths), skip_limit=2) as it:
        it.set_state(before)
        assert list(it) == [b"third"]


@pytest.mark.parametrize("byte", range(12))
def test_every_byte_of_a_length_and_its_checksum_is_checked(byte, tmp_path):
    path = tfrecord(tmp_path, 0)
    place = offsets(RECORDS[0::3])[10]
    changed(path, [place + byte])
    found = []
    with pytest.raises(DamagedFile, match=rf"a length does not match its checksum, .* \(record 10, at byte {place}\)"):
        for record in TFRecordIterDataset(path):
            found.append(record)
    assert found == RECORDS[0:30:3]
    with opened(TFRecordIterDataset(path)) as it:  # where the next record begins is not known
        assert list(it) == found
        assert it.skipped == 1


def test_a_row_group_is_counted_by_its_rows(tmp_path):
    path = parquet(tmp_path, 0)
    column = pq.ParquetFile(path).metadata.row_group(2).column(1)
    changed(path, [column.data_page_offset + column.total_compressed_size - 20])
    with opened(ParquetIterDataset(path)) as it:
        assert [row["n"] for row in it] == [*range(0, 24, 3), *range(36, 60, 3)]
        assert it.skipped == 4
    with opened(ParquetIterDataset(path), skip_limit=3) as it:
        assert [next(it)["n"] for _ in range(8)] == [*range(0, 24, 3)]
        with pytest.raises(
            TooManySkipped, match=r"4 records of .* failed, and 0 elements .* already, and skip_limit is 3"
        ):
            next(it)


def test_a_sample_with_a_member_twice_is_left_out_alone(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("a.txt", "b.txt", "b.txt", "c.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(name[:1].encode()))
    with opened(WebDatasetIterDataset(path)) as it:
        assert [sample["txt"] for sample in it] == [b"a", b"b", b"c"]
        assert it.skipped == 1


@pytest.mark.parametrize("header", [b"0 path=x\n", b"x path=x\n", b"99 path=x\n", b"10 size=x\n"])
def test_an_extended_header_of_a_tar_file_that_is_none(header, tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        extended, member = tarfile.TarInfo("extended"), tarfile.TarInfo("a.txt")
        extended.type, extended.size = tarfile.XHDTYPE, len(header)
        archive.addfile(extended, io.BytesIO(header))
        archive.addfile(member)
    with pytest.raises(DamagedFile, match=r"x\.tar is damaged at byte 512: an extended header is damaged"):
        list(WebDatasetIterDataset(path))


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_cannot_be_opened_is_left_out_as_one(way, tmp_path, executors):
    write, dataset = WAYS[way]
    paths = [write(tmp_path, number) for number in range(3)]
    ds = dataset(paths)
    expected = [repr(row) for row in dataset(paths[1:])]
    paths[0].write_bytes(b"no such format " * 1000)
    for name, executor in executors.items():
        with opened(ds, executor) as it:
            rows, states = run(it)
            assert it.skipped == 1, name
        assert sorted(rows) == sorted(expected)
        for place, state in enumerate(states):
            with opened(ds, executor) as it:
                it.set_state(json.loads(state))
                assert [repr(row) for row in it] == rows[place:]
                assert it.skipped == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_left_out(tmp_path):
    paths = [tfrecord(tmp_path, number) for number in range(2)]
    paths[0].chmod(0)
    with opened(TFRecordIterDataset(paths)) as it:
        assert list(it) == RECORDS[1::3]
        assert it.skipped == 1


def test_a_file_that_is_gone_is_left_out(tmp_path):
    paths = [tfrecord(tmp_path, number) for number in range(2)]
    it = opened(TFRecordIterDataset(paths))
    paths[0].unlink()
    assert list(it) == RECORDS[1::3]
    assert it.skipped == 1


def test_a_mistake_of_the_program_is_raised_and_not_skipped(tmp_path):
    paths = [parquet(tmp_path, number) for number in range(2)]
    with pytest.raises(ValueError, match="has no column 'nothing'"):
        next(opened(ParquetIterDataset(paths, columns=["nothing"])))


def test_an_iterable_that_fails_has_ended_and_is_raised():
    def numbers():
        yield 1
        raise OSError("gone")

    it = opened(bushel.IterDataset.source(numbers))
    assert next(it) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            next(it)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("length", [0x78, 0x178, 0x9C78, 0x8B1F])
def test_a_length_that_looks_like_compression_is_a_length(length, verify, tmp_path):
    beginning = struct.pack("<Q", length)[:2]
    assert beginning[:1] == b"\x78" or beginning == b"\x1f\x8b"
    records = [bytes(length), b"after"]
    path = written(tmp_path, "tfrecord", records)
    assert list(TFRecordIterDataset(path, verify=verify)) == records
