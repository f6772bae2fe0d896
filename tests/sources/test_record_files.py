"""Files of records: written by the format's own library, read back equal, in every way that a pipeline reads."""

import os
import pickle
import random

import bagz
import grain
import numpy as np
import pytest
from helpers.record_formats import FORMATS, array_record, opened, read_by_eight_threads, written
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import DamagedFile, MapDataset
from bushel._src.sources import array_record as riegeli
from bushel._src.sources import checksums, local_files, tfrecord
from bushel._src.sources.local_files import File
from bushel.sources import ArrayRecordDataSource, BagzDataSource, FixedRecords, TFRecordDataSource
from bushel.testing import check_resumes_anywhere

SIZES = [0, 1, 10, 100, 1_000, 70_000, 200_000]


def some_records(count=60, seed=0):
    """Records of many sizes, some that compress well and some that do not."""
    rng = random.Random(seed)
    return [
        rng.randbytes(rng.choice(SIZES)) if rng.random() < 0.7 else bytes([number % 256]) * rng.randrange(100_000)
        for number in range(count)
    ]


RECORDS = some_records()
every_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module", params=FORMATS)
def stored(request, tmp_path_factory):
    """(format, path) of a file with RECORDS."""
    return request.param, written(tmp_path_factory.mktemp("files"), request.param, RECORDS)


def test_records_come_back(stored):
    source = opened(*stored)
    assert len(source) == len(RECORDS)
    assert [source[index] for index in range(-len(RECORDS), len(RECORDS))] == RECORDS * 2
    assert list(source) == RECORDS


@settings(max_examples=20, deadline=None)
@given(indices=st.lists(st.integers(0, len(RECORDS) - 1), max_size=30))
def test_many_records_are_those_one_by_one(stored, indices):
    assert opened(*stored).__getitems__(indices) == [RECORDS[index] for index in indices]


@settings(max_examples=200, deadline=None)
@given(block=st.integers(0, 3), place=st.integers(-40, 40), length=st.integers(0, 3 * riegeli.BLOCK))
def test_block_headers_are_counted_and_left_out(block, place, length):
    start = max(0, block * riegeli.BLOCK + place)
    content = length - riegeli.count_header_bytes(start, length)
    assert content == len(riegeli.remove_block_headers(bytes(length), start))
    buffers = riegeli.split_around_headers(start, [memoryview(bytearray(content))])
    assert content <= sum(map(len, buffers)) <= length


@every_format
@settings(max_examples=15, deadline=None)
@given(
    parts=st.lists(st.lists(st.binary(max_size=50), max_size=5), min_size=1, max_size=4),
    data=st.data(),
)
def test_many_files_are_one_index_space(name, parts, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    paths = [written(folder, name, part, f"part-{number}") for number, part in enumerate(parts)]
    whole = [record for part in parts for record in part]
    source = opened(name, paths)
    assert list(source) == whole
    assert list(opened(name, str(folder / "part-*"))) == whole
    if whole:
        indices = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=10))
        assert source.__getitems__(indices) == [whole[index] for index in indices]


def test_files_without_records_are_empty_sources(tmp_path):
    for name in FORMATS:
        source = opened(name, written(tmp_path, name, []))
        assert len(source) == 0
        assert list(source) == source.__getitems__([]) == []
        with pytest.raises(IndexError, match="index 0 is out of range for 0 records"):
            source[0]


def test_pipelines_read_shuffle_slice_and_resume(stored):
    ds = MapDataset.source(opened(*stored))
    assert list(ds) == RECORDS
    assert list(ds[5:50:3]) == RECORDS[5:50:3]
    order = list(MapDataset.range(len(RECORDS)).shuffle(seed=3))
    assert list(ds.shuffle(seed=3)) == [RECORDS[index] for index in order]
    check_resumes_anywhere(ds.shuffle(seed=3).map(len).batch(7).to_iter_dataset())


@pytest.mark.parametrize("name", ["array_record zstd", "tfrecord", "bagz"])
def test_two_worker_processes_read_the_same(name, tmp_path):
    source = opened(name, [written(tmp_path, name, RECORDS), written(tmp_path, name, RECORDS[::-1], "more")])
    ds = MapDataset.source(source).shuffle(seed=1).map(lambda record: (len(record), record[:10])).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as workers:
        assert list(workers) == list(ds)


def test_a_pickle_holds_paths_and_no_records(stored):
    source = opened(*stored)
    sent = pickle.dumps(source)
    assert len(sent) < 1_000
    assert list(pickle.loads(sent)) == RECORDS


def test_eight_threads_read_the_right_records(stored):
    name, path = stored
    read_by_eight_threads(opened(name, [path, path]), RECORDS * 2)


def test_a_source_closes_and_opens_again(stored):
    with opened(*stored) as source:
        assert source[3] == RECORDS[3]
    assert source[4] == RECORDS[4]


def test_more_files_than_descriptors(tmp_path):
    count = local_files._OPEN_AT_ONCE + 50
    for number in range(count):
        written(tmp_path, "bag", [b"%d" % number], f"{number:04d}")
    source = BagzDataSource(str(tmp_path / "*.bag"))
    if os.path.isdir("/proc/self/fd"):
        held = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        assert len([path for path in held if path.startswith(str(tmp_path))]) <= local_files._OPEN_AT_ONCE
    assert list(source) == [b"%d" % number for number in range(count)]
    assert [source[index] for index in range(count)] == list(source)


# Parts of files, as Grain and TFDS name them.


def test_a_part_of_a_file_is_read_by_its_bounds(stored):
    name, path = stored
    assert list(opened(name, f"{path}[5:9]")) == RECORDS[5:9]

    class Instruction:
        filename, skip, take, examples_in_shard = str(path), 2, 3, len(RECORDS)

    source = opened(name, [Instruction(), f"{path}[0:1]"])
    assert list(source) == RECORDS[2:5] + RECORDS[:1]
    with pytest.raises(ValueError, match=rf"has {len(RECORDS)} records, so it has no part \[50:70\]"):
        opened(name, f"{path}[50:70]")


def test_a_file_written_transposed_is_told(tmp_path):
    array_record("group_size:2,transpose")(tmp_path / "x.array_record", [b"a", b"b"])
    with pytest.raises(
        DamagedFile, match="was written with the option 'transpose', which only the package array_record can read"
    ):
        ArrayRecordDataSource(tmp_path / "x.array_record")[0]


def test_grains_own_source_reads_the_same(tmp_path):
    path = written(tmp_path, "array_record zstd", RECORDS)
    ours, theirs = ArrayRecordDataSource(path), grain.sources.ArrayRecordDataSource(str(path))
    assert [ours[index] for index in range(len(ours))] == [theirs[index] for index in range(len(theirs))]
    pipeline = [m.MapDataset.source(s).seed(3).shuffle().repeat(2) for m, s in ((bushel, ours), (grain, theirs))]
    assert list(pipeline[0]) == list(pipeline[1])


# Records of one size, read into place.


@every_format
def test_records_of_one_size_are_arrays(name, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 50, 60, 11), np.uint8)
    records = [image.tobytes() for image in images]
    paths = [written(tmp_path, name, records[:12], "a"), written(tmp_path, name, records[12:], "b")]
    source = FixedRecords(opened(name, paths), dtype=np.uint8, shape=(50, 60, 11))
    assert np.array_equal(source[7], images[7])
    assert np.array_equal(source[-1], images[-1])
    ds = MapDataset.source(source).shuffle(seed=2)
    order = [int(index) for index in MapDataset.range(20).shuffle(seed=2)]
    for number, batch in enumerate(ds.batch(8)):
        assert np.array_equal(batch, images[order[8 * number : 8 * number + 8]])
    spec = bushel.experimental.get_element_spec(ds)
    assert (spec.shape, spec.dtype) == ((50, 60, 11), np.uint8)
    floats = FixedRecords(opened(name, paths), dtype="<f4", shape=(50 * 60 * 11 // 4,))
    assert floats[3].tobytes() == records[3]


@every_format
def test_a_record_of_another_size_is_refused(name, tmp_path):
    path = written(tmp_path, name, [b"12345678", b"123"])
    source = FixedRecords(opened(name, path), dtype=np.int64)
    assert source[0].tobytes() == b"12345678"
    with pytest.raises(ValueError, match=r"records\.\w+: record 1 has 3 bytes and cannot fill a row of 8 bytes"):
        source[1]
    with pytest.raises(ValueError, match=r"record 1 has 3 bytes"):
        source.__getitems__([0, 0, 1])


def test_very_large_records_are_read_into_place(tmp_path):
    record = random.Random(1).randbytes(60_000_000)  # more block headers than one system call takes buffers
    path = written(tmp_path, "array_record plain", [record])
    assert FixedRecords(ArrayRecordDataSource(path), dtype=np.uint8, shape=(60_000_000,))[0].tobytes() == record


@pytest.mark.parametrize("ending", ["bag", "bagz"])
def test_sets_of_bagz_shards_are_those_of_its_package(ending, tmp_path):
    for number in range(3):
        written(tmp_path, ending, [b"%d-%d" % (number, place) for place in range(4)], f"n-{number:05d}-of-00003")
    everything = list(bagz.Reader(str(tmp_path / f"n@*.{ending}")))
    assert list(bagz.Reader(str(tmp_path / f"n@3.{ending}"))) == everything
    for name in (f"n@*.{ending}", f"n@3.{ending}"):
        path = tmp_path / name
        assert list(BagzDataSource(path)) == list(BagzDataSource(str(path))) == everything
        assert list(BagzDataSource([path, tmp_path / f"n-00001-of-00003.{ending}"])) == everything + everything[4:8]
    with pytest.raises(FileNotFoundError, match="No file matches"):
        BagzDataSource(tmp_path / f"m@*.{ending}")
    (tmp_path / f"n-00001-of-00003.{ending}").unlink()
    for name in (f"n@*.{ending}", f"n@3.{ending}"):
        with pytest.raises(FileNotFoundError, match="n-00001-of-00003"):
            BagzDataSource(tmp_path / name)
    written(tmp_path, ending, [b"x"], "n-00000-of-00001")
    with pytest.raises(ValueError, match=r"there are sets of 1 and of 3 shards\. Write the number"):
        BagzDataSource(tmp_path / f"n@*.{ending}")


# Words for what is wrong.


def test_paths_that_are_none(tmp_path):
    for source in (ArrayRecordDataSource, TFRecordDataSource, BagzDataSource):
        with pytest.raises(FileNotFoundError, match=r"No file matches '.*none-\*'"):
            source(str(tmp_path / "none-*"))
        with pytest.raises(FileNotFoundError):
            source(tmp_path / "none")
        with pytest.raises(IsADirectoryError, match=r"is a folder, not a file. Name the files in it"):
            source(tmp_path)
        with pytest.raises(ValueError, match="No paths were given: a source needs at least one file"):
            source([])
        with pytest.raises(TypeError, match="paths must be a path or a list of paths, got 3 of type int"):
            source(3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = written(tmp_path, "bag", [b"x"])
    path.chmod(0)
    with pytest.raises(PermissionError):
        BagzDataSource(path)


def test_an_index_out_of_range_is_an_IndexError(stored):
    source = opened(*stored)
    with pytest.raises(IndexError, match=f"index {len(RECORDS)} is out of range for {len(RECORDS)} records"):
        source[len(RECORDS)]
    with pytest.raises(TypeError, match=r"index must be an integer, got 1\.0"):
        source[1.0]


def test_a_file_that_changed_is_noticed(tmp_path):
    path = written(tmp_path, "bag", [b"a", b"b"])
    source = pickle.loads(pickle.dumps(BagzDataSource(path)))
    written(tmp_path, "bag", [b"a", b"b", b"c"])
    with pytest.raises(DamagedFile, match="had 2 records when the source was made, and it has 3 now"):
        source[0]


def test_a_file_that_changed_since_a_source_was_sent_is_refused(stored, tmp_path):
    name, path = stored
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    sent = pickle.dumps(opened(name, copy))
    assert pickle.loads(sent)[0] == RECORDS[0]
    os.utime(copy, ns=(1, 1))
    with pytest.raises(DamagedFile, match=r"when the source was made, and it is .* now. Make the source again"):
        pickle.loads(sent)[0]


@every_format
def test_a_record_of_several_files_is_located_in_its_file(name, tmp_path):
    paths = [written(tmp_path, name, RECORDS[low : low + 20], f"part{low}") for low in (0, 20, 40)]
    source = opened(name, paths)
    for index in (0, 19, 20, 59):
        number, place = source.locate(index)
        assert source.file(number)[place] == RECORDS[index] and len(source.file(number)) == 20
    assert source.versions == source.fingerprint()
    assert source.file(1).versions == source.versions[1:2]


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_parts_of_records(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("parts")
    source = TFRecordDataSource([written(folder, "tfrecord", RECORDS[low : low + 30], f"{low}") for low in (0, 30)])
    rows = data.draw(st.lists(st.integers(0, len(RECORDS) - 1), max_size=10))
    starts = [data.draw(st.integers(0, len(RECORDS[row]))) for row in rows]
    sizes = [data.draw(st.integers(0, len(RECORDS[row]) - start)) for row, start in zip(rows, starts)]
    wanted = [RECORDS[row][start : start + size] for row, start, size in zip(rows, starts, sizes)]
    assert source.read_parts(rows, starts, sizes) == wanted
    with pytest.raises(DamagedFile, match=r"record 2 is damaged: it has \d+ bytes, but 9+ bytes from byte 0 on should"):
        source.read_parts([2], [0], [99999999])


class Counting(File):
    """A file somewhere else, that counts what is read of it."""

    def __init__(self, data):
        self.name, self.size, self._data, self.asked = "memory://file", len(data), data, []

    def read(self, start, length):
        self.asked.append(length)
        return self._data[start : start + length]

    def read_many(self, starts, lengths):
        return [self.read(start, length) for start, length in zip(starts, lengths)]

    def read_into(self, start, buffers):
        raise NotImplementedError

    def check_unchanged(self):
        pass

    def version(self):
        return [self.name, self.size]


@pytest.mark.parametrize(("size", "share"), [(100, 1.0), (6 << 20, 0.3)])
def test_remote_files_of_long_records_are_not_read_for_their_offsets(tmp_path, size, share):
    path = written(tmp_path, "tfrecord", [bytes(size)] * 12)
    file = Counting(path.read_bytes())
    bounds = tfrecord._scan_offsets(file, checksums.get_fast_checksum())
    assert np.diff(bounds).tolist() == [size + 16] * 12
    assert sum(file.asked) <= share * file.size and len(file.asked) <= 12


def test_a_state_knows_its_files(tmp_path):
    path = written(tmp_path, "bag", [b"a", b"b"])
    it = iter(MapDataset.source(BagzDataSource(path)))
    state = it.get_state()
    os.utime(path, ns=(1, 1))
    other = iter(MapDataset.source(BagzDataSource(path)))
    with pytest.raises(bushel.StateMismatch, match="same name, other data"):
        other.set_state(state)


def test_how_a_source_reads(tmp_path):
    paths = [written(tmp_path, "bag", [b"a"], stem) for stem in ("x", "y")]
    assert repr(BagzDataSource(paths[0])) == "BagzDataSource(x.bag: 1 records)"
    assert repr(BagzDataSource(paths)) == "BagzDataSource(x.bag and 1 more: 2 records)"
