"""HighwayHash of ArrayRecord files: the same in C and in NumPy; checked by default where the package is installed."""

import itertools
import os
import pickle
import random
import sys
import types

import numpy as np
import pytest
from helpers.record_formats import written
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bushel import DamagedFile
from bushel._src.sources import checksums, local_files
from bushel.sources import ArrayRecordDataSource

RECORDS = [bytes([number]) * 400 for number in range(9)]


@pytest.fixture
def installed(monkeypatch):
    """Gives a function that puts a module in the place of the package, or None for no package."""

    def install(hashed):
        module = None if hashed is None else types.SimpleNamespace(highwayhash_64=hashed)
        monkeypatch.setitem(sys.modules, "highwayhash", module)
        monkeypatch.setitem(sys.modules, "highwayhash._highwayhash", None)  # or the real one is found, where it is
        checksums.find_c_function.cache_clear()

    yield install
    monkeypatch.undo()
    checksums.find_c_function.cache_clear()


def damaged(tmp_path):
    path = written(tmp_path, "array_record plain", RECORDS)
    change_byte(path, path.read_bytes().index(RECORDS[5]) + 7)
    return path


def change_byte(path, place):
    """Changes one byte of a file, but neither its size nor its time, so that it seems to be the same file."""
    times = path.stat()
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@settings(deadline=None)
@given(messages=st.lists(st.one_of(st.binary(max_size=100), st.integers(0, 3000).map(bytes)), max_size=5))
@example(messages=[bytes(range(size)) for size in range(70)])
def test_the_package_and_numpy_give_the_same(messages):
    pytest.importorskip("highwayhash", reason="the extra `highway` needs a C compiler")
    assert checksums.find_c_function() is not None
    assert checksums.compute_hashes(messages) == checksums.hash_with_numpy(messages).tolist()
    views = [memoryview(bytearray(message)) for message in messages]
    assert checksums.compute_hashes(views) == checksums.hash_with_numpy(messages).tolist()


def test_hashes_are_checked_by_default_with_the_package(tmp_path):
    pytest.importorskip("highwayhash", reason="the extra `highway` needs a C compiler")
    check_default(damaged(tmp_path), noticed=True)


def test_hashes_are_checked_by_default_with_a_function_that_computes_them(installed, tmp_path):
    asked = []

    def hashed(key, message):
        assert key == b"Riegeli/records\n" * 2
        assert type(message) is bytes  # the package takes nothing else
        asked.append(message)
        return checksums.hash_with_numpy([message]).tobytes()

    installed(hashed)
    check_default(damaged(tmp_path), noticed=True)
    assert RECORDS[4] in {message[-400:] for message in asked}
    assert checksums.compute_hashes([]) == []


def test_hashes_are_not_checked_by_default_without_the_package(installed, tmp_path):
    path = damaged(tmp_path)
    for hashed in (None, lambda key, message: bytes(8)):  # another package of this name is none
        installed(hashed)
        check_default(path, noticed=False)
    with pytest.raises(DamagedFile, match="record 5 is damaged: its content does not match its hash"):
        ArrayRecordDataSource(path, verify=True)[5]


def check_default(path, noticed):
    """Whether a source with default options notices the damage of record 5. Others are read in any case."""
    source, unchecked = ArrayRecordDataSource(path), ArrayRecordDataSource(path, verify=False)
    assert source[4] == RECORDS[4] and source.__getitems__([8, 0]) == [RECORDS[8], RECORDS[0]]
    assert unchecked[5] != RECORDS[5]
    if not noticed:
        assert source.__getitems__([5, 1]) == unchecked.__getitems__([5, 1])
        return
    for read in (
        lambda: source[5],
        lambda: source.__getitems__([5, 1]),
        lambda: source.read_into([5], np.empty((1, 400), np.uint8)),
    ):
        with pytest.raises(DamagedFile, match="record 5 is damaged: its content does not match its hash"):
            read()


@pytest.fixture
def with_package(installed):
    """As if the package were installed."""
    installed(lambda key, message: checksums.hash_with_numpy([message]).tobytes())


def read_alone(source):
    return [source[number] for number in range(len(source))]


def read_together(source):
    return source.__getitems__(range(len(source)))


def read_into_rows(source):
    rows = np.empty((len(source), len(source[0])), np.uint8)
    source.read_into(range(len(source)), rows)
    return [row.tobytes() for row in rows]


READS = [read_alone, read_together, read_into_rows]
LARGE = [random.Random(number).randbytes(17_000) for number in range(6)]  # read into one buffer


CASES = [
    *itertools.product(["array_record plain", "array_record plain groups"], [RECORDS], READS, READS),
    *itertools.product(["array_record plain"], [LARGE], [read_together], [read_together, read_into_rows]),
]


@pytest.mark.parametrize(("name", "records", "first", "second"), CASES, ids=range(len(CASES)))
def test_the_default_checks_a_local_record_once_and_true_checks_every_read(
    name, records, first, second, with_package, tmp_path
):
    path = written(tmp_path, name, records)
    once, always, never = (ArrayRecordDataSource(path, verify=verify) for verify in (None, True, False))
    for source in (once, always, never):
        assert first(source) == records
    change_byte(path, path.read_bytes().index(records[5]) + 7)
    new = second(never)
    assert new[:5] == records[:5] and new[5] != records[5]
    assert second(once) == new
    for source in (always, pickle.loads(pickle.dumps(once))):  # a copy is that of another process
        for _ in range(2):  # an error is not forgotten
            with pytest.raises(DamagedFile, match=r"\.array_record: .*5 is damaged: its content does not match"):
                second(source)


def test_only_the_records_that_were_read_count_as_checked(with_package, tmp_path):
    path = damaged(tmp_path)
    source = ArrayRecordDataSource(path)
    for _ in range(2):
        assert source.__getitems__([0, 1, -1]) == [RECORDS[0], RECORDS[1], RECORDS[8]]
        assert source[-2] == RECORDS[7]
        with pytest.raises(DamagedFile, match="record 5 is damaged"):
            source.__getitems__([0, 5])
        with pytest.raises(DamagedFile, match="record 5 is damaged"):
            source.__getitems__([1, -4])


@pytest.mark.parametrize("read", READS)
def test_a_remote_record_is_checked_in_every_read(read, with_package, tmp_path, monkeypatch):
    monkeypatch.setattr(local_files.LocalFile, "costs_round_trip", True)
    path = written(tmp_path, "array_record plain", RECORDS)
    source = ArrayRecordDataSource(path)
    assert read(source) == RECORDS
    change_byte(path, path.read_bytes().index(RECORDS[5]) + 7)
    with pytest.raises(DamagedFile, match="record 5 is damaged: its content does not match its hash"):
        read(source)


@pytest.mark.parametrize("name", ["array_record plain", "array_record zstd", "array_record plain groups"])
def test_a_changed_header_of_a_chunk_never_changes_a_record(name, tmp_path):
    """The hash of the header is not compared, so its fields must be compared with the index or the data."""
    records = [bytes([number]) * 100 for number in range(6)]
    check_changed_headers(written(tmp_path, name, records), records, READS, verify=True)


def test_a_changed_header_is_noticed_where_rows_are_read_without_hashes(tmp_path):
    path = written(tmp_path, "array_record plain", LARGE)
    check_changed_headers(path, LARGE, [read_into_rows], verify=False)


def check_changed_headers(path, records, reads, verify):
    """Changes each byte of the first header of a file. A read then gives the same records, or an error."""
    content = path.read_bytes()
    header, harmless = 64, 0  # of the first chunk after the signature of the file
    assert int.from_bytes(content[header + 24 : header + 32], "little") & 255 == 0x72
    for place in range(header, header + 40):
        change_byte(path, place)
        for read in reads:
            try:
                assert read(ArrayRecordDataSource(path, verify=verify)) == records, place
                harmless += 1
            except DamagedFile as error:
                assert path.name in str(error)
        path.write_bytes(content)
    # Bytes 0 to 7 are the hash of the header. With verify=False, bytes 16 to 23, the hash of the data, are not used
    # either. A stated size that is one too small does not matter then: the index gives the place and the size.
    assert harmless == (8 if verify else 17) * len(reads)


def test_records_that_cross_blocks_are_checked(tmp_path):
    """A chunk may be cut by a block header at any place: in its header, in its sizes, in its data, or at its start."""
    records = [random.Random(number).randbytes(number * 77 % 15_000) for number in range(600)]
    path = written(tmp_path, "array_record plain", records)
    checked, unchecked = ArrayRecordDataSource(path, verify=True), ArrayRecordDataSource(path, verify=False)
    assert checked.__getitems__(range(600)) == unchecked.__getitems__(range(600)) == records
    content = path.read_bytes()
    places = [block + offset for block in range(1 << 16, 60 << 16, 7 << 16) for offset in (-1, 24)]  # around a header
    noticed = 0
    for place in places:
        change_byte(path, place)
        try:
            assert checked.__getitems__(range(600)) == records, place
        except DamagedFile as error:
            assert "is damaged" in str(error)
            noticed += 1
        path.write_bytes(content)
    assert noticed >= len(places) - 2  # the hash of a chunk's header is not compared
