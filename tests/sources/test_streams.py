"""Records in order: TFRecord as Grain reads it, tar shards, iterables; resumed anywhere, refused when damaged."""

import gzip
import io
import random
import shutil
import tarfile
import threading
import zlib

import braceexpand
import grain
import pytest
from helpers.record_formats import written
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel import DamagedFile, MapDataset
from bushel._src.sources.webdataset import expand_braces
from bushel.experimental import TFRecordIterDataset, WebDatasetIterDataset
from bushel.sources import TFRecordDataSource
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor

RECORDS = [random.Random(number).randbytes(number * 3_001 % 90_000) for number in range(60)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tfrecord"), "tfrecord", RECORDS)


PACKED = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "two gzips": lambda b: gzip.compress(b[:99]) + gzip.compress(b[99:]),
}


@pytest.fixture(scope="module", params=["plain", *PACKED])
def tfrecord(request, plain, tmp_path_factory):
    """A TFRecord file, compressed or not."""
    if request.param == "plain":
        return plain
    path = tmp_path_factory.mktemp("packed") / "records.gz"
    path.write_bytes(PACKED[request.param](plain.read_bytes()))
    return path


def grains(path):
    return grain.experimental.TFRecordIterDataset(str(path))


def test_a_stream_is_grains_element_by_element_and_state_by_state(plain):
    ours, theirs = iter(TFRecordIterDataset(plain)), iter(grains(plain))
    for _ in RECORDS:
        assert {"reader_offset": ours.get_state()["reader_offset"]} == theirs.get_state()
        assert next(ours) == next(theirs)
    assert {"reader_offset": ours.get_state()["reader_offset"]} == theirs.get_state()
    with pytest.raises(StopIteration):
        next(ours)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.integers(-3, 20), max_size=12))
def test_states_hold_however_an_iterator_goes_back_and_forth(plain, steps):
    ours, theirs = iter(TFRecordIterDataset(plain)), iter(grains(plain))
    saved = [ours.get_state()]
    for step in steps:
        if step <= 0:  # back to a state that was saved
            back = saved[step % len(saved)]
            ours.set_state(back)
            theirs.set_state({"reader_offset": back["reader_offset"]})
        for _ in range(step):
            assert next(ours, None) == next(theirs, None)
        assert ours.get_state()["reader_offset"] == theirs.get_state()["reader_offset"]
        saved.append(ours.get_state())


def test_damage_is_reported_at_its_record_and_resumed_there(plain, tmp_path):
    content = bytearray(plain.read_bytes())
    content[content.find(RECORDS[37])] ^= 1
    path = tmp_path / "damaged.tfrecord"
    path.write_bytes(content)
    it, theirs = iter(TFRecordIterDataset(path)), iter(grains(plain))
    for record in RECORDS[:37]:
        assert next(it) == next(theirs) == record
    offset = theirs.get_state()["reader_offset"]
    for _ in range(2):
        with pytest.raises(DamagedFile, match=rf"does not match its checksum \(record 37, at byte {offset}\)"):
            next(it)
        assert it.get_state()["reader_offset"] == offset
    theirs.set_state({"reader_offset": offset})
    next(theirs)
    it.set_state(theirs.get_state())  # who knows what he does goes past it
    assert list(it) == RECORDS[38:]


def test_a_failing_function_leaves_a_stream_before_its_record(plain):
    fails = [True]

    def length(record):
        if len(record) == len(RECORDS[31]) and fails:
            raise ValueError(fails.pop())
        return len(record)

    it = iter(TFRecordIterDataset(plain).map(length))
    found = [next(it) for _ in range(31)]
    with pytest.raises(ValueError, match="True"):
        next(it)
    assert found + list(it) == [len(record) for record in RECORDS]


def test_threads_share_a_stream(plain):
    it, found = iter(TFRecordIterDataset(plain)), []

    def take():
        found.extend(iter(lambda: next(it, None), None))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted(RECORDS)


@pytest.mark.parametrize("at", [0, 1, 31, 60])
def test_a_state_moves_both_ways(plain, at):
    ours, theirs = iter(TFRecordIterDataset(plain)), iter(grains(plain))
    for _ in range(at):
        next(ours)
        next(theirs)
    from_grain, from_bushel = iter(TFRecordIterDataset(plain)), iter(grains(plain))
    from_grain.set_state(theirs.get_state())
    from_bushel.set_state(ours.get_state())
    assert list(from_grain) == list(from_bushel) == RECORDS[at:]


def test_records_come_back_however_they_are_compressed(tfrecord):
    assert list(TFRecordIterDataset(tfrecord)) == RECORDS
    assert list(TFRecordIterDataset(tfrecord, verify=False)) == RECORDS
    assert list(TFRecordIterDataset(tfrecord).map(len).batch(7, batch_fn=list)) == [
        [len(record) for record in RECORDS[low : low + 7]] for low in range(0, 60, 7)
    ]


def test_a_stream_resumes_anywhere(tfrecord):
    check_resumes_anywhere(TFRecordIterDataset(tfrecord).map(lambda record: record[:8]).batch(9, batch_fn=list))


def test_many_files_are_read_in_turn_as_grain_does(tmp_path):
    paths = [
        str(written(tmp_path, "tfrecord", [b"%d-%d" % (n, k) for k in range(n % 5)], f"{n:02d}")) for n in range(20)
    ]
    ours = TFRecordIterDataset(str(tmp_path / "*.tfrecord"))
    theirs = grain.experimental.InterleaveIterDataset([grains(path) for path in paths], cycle_length=16)
    assert list(ours) == list(theirs)
    check_resumes_anywhere(ours)


def test_streams_are_the_same_for_any_executor(tmp_path, plain):
    for number in range(3):
        written(tmp_path, "tfrecord", RECORDS[number::3], f"part-{number}")
    several = TFRecordIterDataset(str(tmp_path / "part-*.tfrecord"))
    check_same_for_any_executor(several.map(lambda record: record[:5]).batch(8, batch_fn=list))
    check_same_for_any_executor(TFRecordIterDataset(plain).map(len).filter(lambda length: length % 2).batch(8))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_is_reported_and_what_was_before_it_comes_first(tfrecord, data, tmp_path_factory):
    content = bytearray(tfrecord.read_bytes())
    cut = data.draw(st.booleans())
    place = data.draw(st.integers(0, len(content) - 1))
    if cut:
        del content[place:]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    copy = tmp_path_factory.mktemp("damaged") / "copy.tfrecord"
    copy.write_bytes(content)
    found = []
    it = iter(TFRecordIterDataset(copy))
    try:
        for record in it:
            found.append(record)
    except DamagedFile as error:
        assert "copy.tfrecord" in str(error)
        with pytest.raises(DamagedFile):  # it stays where it is
            next(it)
    assert found == RECORDS[: len(found)]


def test_a_compressed_file_cannot_be_read_at_any_position(tmp_path, plain):
    path = tmp_path / "packed.tfrecord"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(DamagedFile, match="is compressed, so it can only be read in order: use TFRecordIter"):
        TFRecordDataSource(path)


def test_the_index_of_a_large_file_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("BUSHEL_CACHE_DIR", str(tmp_path / "cache"))
    path = written(tmp_path, "tfrecord", RECORDS)
    assert list(TFRecordDataSource(path)) == RECORDS
    (kept,) = (tmp_path / "cache" / "tfrecord").iterdir()
    read = []
    real = bushel._src.sources.tfrecord._scan_offsets
    monkeypatch.setattr(
        bushel._src.sources.tfrecord, "_scan_offsets", lambda *words: read.append(words) or real(*words)
    )
    assert list(TFRecordDataSource(path)) == RECORDS
    assert not read
    damaged = bytearray(kept.read_bytes())
    damaged[-3] ^= 1
    kept.write_bytes(damaged)
    with pytest.warns(
        UserWarning, match="do not fit their checksum. The TFRecord file that it belongs to is scanned again"
    ):
        assert list(TFRecordDataSource(path)) == RECORDS
    assert len(read) == 1
    written(tmp_path, "tfrecord", RECORDS[::-1])  # so is that of another file of the same name
    assert list(TFRecordDataSource(path)) == RECORDS[::-1]
    assert len(read) == 2


@pytest.mark.parametrize("name", ["TFRecordIterDataset", "ParquetIterDataset"])
@pytest.mark.parametrize("path", ["none", "none-*", "", ["none", "nil"]], ids=str)
def test_files_that_are_missing_are_reported_where_grain_reports_them(name, path, tmp_path):
    paths = [str(tmp_path / one) for one in path] if isinstance(path, list) else str(tmp_path / path)
    raised = []
    for experimental in (bushel.experimental, grain.experimental):
        ds = getattr(experimental, name)(paths).map(len)  # no error yet
        with pytest.raises((OSError, TypeError)) as failure:
            next(iter(ds))
        raised.append(failure.type)
    ours, theirs = raised
    if theirs is TypeError:  # Grain's stream of TFRecord files takes no list
        theirs = FileNotFoundError
    assert issubclass(ours, theirs)


def test_a_file_may_be_written_after_its_dataset_was_made(plain, tmp_path):
    ds = TFRecordIterDataset(tmp_path / "later.tfrecord")
    with pytest.raises(FileNotFoundError, match=r"later\.tfrecord"):
        next(iter(ds))
    shutil.copy(plain, tmp_path / "later.tfrecord")
    assert list(ds) == RECORDS


def test_a_state_outside_of_the_file_is_refused(plain):
    it = iter(TFRecordIterDataset(plain))
    with pytest.raises(bushel.StateMismatch, match="The state is at byte 100000000 of"):
        it.set_state(it.get_state() | {"reader_offset": 10**8})
    with pytest.raises(bushel.StateMismatch, match="must be of type int"):
        it.set_state(it.get_state() | {"reader_offset": "x"})
    assert next(it) == RECORDS[0]


# Tar shards.


def shard(path, samples, format=tarfile.PAX_FORMAT):
    """By Python's own tarfile, with which webdataset writes."""
    with tarfile.open(path, "w", format=format) as tar:
        for key, parts in samples:
            for ending, content in parts.items():
                member = tarfile.TarInfo(f"{key}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


SAMPLES = [
    (f"folder{number % 2}/{'long' * (number % 60)}{number:04d}", {"jpg": b"j" * (number * 31), "json": b"%d" % number})
    for number in range(60)
]
WHOLE = [{"__key__": key, **parts} for key, parts in SAMPLES]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_samples_of_a_tar_file(format, tmp_path):
    samples = SAMPLES if format != tarfile.USTAR_FORMAT else SAMPLES[:20]
    ds = WebDatasetIterDataset(shard(tmp_path / "x.tar", samples, format))
    assert list(ds) == WHOLE[: len(samples)]
    check_resumes_anywhere(ds.batch(7, batch_fn=list))


def test_samples_of_many_tar_files(tmp_path):
    for number in range(3):
        shard(tmp_path / f"{number}.tar", SAMPLES[20 * number : 20 * number + 20])
    ds = WebDatasetIterDataset(str(tmp_path / "*.tar"))
    assert list(ds) == [WHOLE[20 * file + place] for place in range(20) for file in range(3)]
    check_resumes_anywhere(ds.map(lambda sample: sample["json"]).batch(16, batch_fn=list))


@settings(max_examples=50, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["a", "/x-", "{0..3}", "{08..11}", "{000..002}", "{9..11}", "{3..1}", "{p,q}", "{,s}", "{z}"]),
        max_size=4,
    )
)
def test_braces_are_written_out_as_webdataset_does(parts):
    text = "".join(parts) + ".tar"
    assert expand_braces(text) == list(braceexpand.braceexpand(text))
    assert expand_braces([text, "b.tar"]) == [*braceexpand.braceexpand(text), "b.tar"]


def test_shards_named_with_braces(tmp_path):
    for number in range(3):
        shard(tmp_path / f"x-{number:03d}.tar", SAMPLES[20 * number : 20 * number + 20])
    ds = WebDatasetIterDataset(str(tmp_path / "x-{000..002}.tar"))
    assert sorted(sample["json"] for sample in ds) == sorted(parts["json"] for _, parts in SAMPLES)
    shard(tmp_path / "{1,2}.tar", SAMPLES[:5])  # a name with braces of its own
    assert len(list(WebDatasetIterDataset(tmp_path / "{1,2}.tar"))) == 5
    with pytest.raises(FileNotFoundError, match=r"x-003\.tar"):
        list(WebDatasetIterDataset(str(tmp_path / "x-{000..003}.tar")))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_tar_file_cut_short_is_reported(data, tmp_path_factory):
    path = shard(tmp_path_factory.mktemp("tar") / "x.tar", SAMPLES[:20])
    content = path.read_bytes()
    used = len(content.rstrip(b"\0"))
    path.write_bytes(content[: data.draw(st.integers(0, used))])
    found = []
    with pytest.raises(DamagedFile, match=r"x\.tar is damaged at byte \d+"):
        for sample in WebDatasetIterDataset(path):
            found.append(sample)
    assert found == WHOLE[: len(found)]


def test_a_damaged_header_of_a_tar_file_is_reported(tmp_path):
    path = shard(tmp_path / "x.tar", SAMPLES[:20])
    content = bytearray(path.read_bytes())
    content[content.find(b"0010.jpg")] ^= 1
    path.write_bytes(content)
    found = []
    with pytest.raises(DamagedFile, match="the header of a member is damaged"):
        for sample in WebDatasetIterDataset(path):
            found.append(sample)
    assert found == WHOLE[:9]  # whether the tenth is complete is not known
    path.write_bytes(b"hello" * 1000)
    with pytest.raises(DamagedFile, match="it is not a tar file"):
        next(iter(WebDatasetIterDataset(path)))


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_member_with_holes_is_refused(format, tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=format) as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = 5
            if number == 1 and format == tarfile.GNU_FORMAT:
                member.type = tarfile.GNUTYPE_SPARSE
            elif number == 1:
                member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
            tar.addfile(member, io.BytesIO(b"12345"))
    iterator = iter(WebDatasetIterDataset(str(path)))
    with pytest.raises(DamagedFile, match=r"x\.tar has a sparse file before byte \d+, .* without -S"):
        list(iterator)


def test_a_contiguous_file_is_a_file(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("0.bin")
        member.size, member.type = 5, tarfile.CONTTYPE
        tar.addfile(member, io.BytesIO(b"12345"))
    assert list(WebDatasetIterDataset(str(path))) == [{"__key__": "0", "bin": b"12345"}]


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_compressed_tar_file_is_told(size, tmp_path):
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("0.bin")
        member.size = size
        tar.addfile(member, io.BytesIO(random.Random(0).randbytes(size)))
    with pytest.raises(DamagedFile, match=r"x\.tar\.gz is compressed with gzip, .* Decompress it"):
        list(WebDatasetIterDataset(str(path)))


def test_a_key_that_comes_twice_is_reported(tmp_path):
    path = shard(tmp_path / "x.tar", [("a", {"jpg": b"1"}), ("a", {"jpg": b"2"})])
    with pytest.raises(DamagedFile, match=r"sample 'a' has two members \.jpg"):
        list(WebDatasetIterDataset(path))


# Iterables.


class Counting:
    """An iterable with a state of its own, as Hugging Face's streams and torchdata's loaders have."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 20:
            self.at += 1
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


ITERABLES = {"list": list(range(1, 21)), "function": lambda: (n for n in range(1, 21)), "with a state": Counting()}


@pytest.mark.parametrize("iterable", ITERABLES.values(), ids=ITERABLES)
def test_any_iterable_is_a_stream_that_resumes(iterable):
    ds = bushel.IterDataset.source(iterable)
    assert list(ds) == list(ds) == list(range(1, 21))
    check_resumes_anywhere(ds)
    check_resumes_anywhere(ds.filter(lambda x: x % 3).batch(4))
    mixed = bushel.IterDataset.mix([ds, MapDataset.range(20).to_iter_dataset()])
    assert list(mixed)[:4] == [1, 0, 2, 1]


def test_what_can_be_read_once_only_is_refused():
    with pytest.raises(TypeError, match="generator can be read only once"):
        bushel.IterDataset.source(n for n in range(3))
    with pytest.raises(TypeError, match="Pass an iterable, or a function that returns one; got 3"):
        bushel.IterDataset.source(3)


def test_a_state_past_the_end_is_refused():
    it = iter(bushel.IterDataset.source([1, 2, 3]))
    with pytest.raises(bushel.StateMismatch, match="is after 9 elements, but there are only 3"):
        it.set_state(it.get_state() | {"elements_read": 9})
