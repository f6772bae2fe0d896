"""Damaged files: cut short, a byte changed, another format. Never other records without a word, never a hang."""

import random
import shutil

import pytest
from formats import FORMATS, opened, written
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel.sources import DamagedFile

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


@settings(max_examples=25, deadline=None)
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
    with pytest.raises(DamagedFile, match="record 20 is damaged: its content does not fit its checksum") as raised:
        next(it)
    assert "record 20 of TFRecordDataSource(records.tfrecord: 30 records)" in "".join(raised.value.__notes__)
    assert ds[21] == RECORDS[21]
    with pytest.raises(DamagedFile, match="record 20"):
        ds.take([1, 20, 3])


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
