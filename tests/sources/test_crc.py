"""CRC32C of TFRecord files: the same by every package and without one; what happens where no package is installed."""

import subprocess
import sys

import crc32c
import google_crc32c
import numpy as np
import pytest
from helpers.record_formats import written
from hypothesis import example, given
from hypothesis import strategies as st

from bushel._src.sources import checksums
from bushel._src.sources.tfrecord import frame_record


@given(data=st.one_of(st.binary(max_size=300), st.randoms().map(lambda r: r.randbytes(r.randrange(400, 9000)))))
@example(data=b"")
@example(data=bytes(8))
def test_the_slow_checksum_is_that_of_the_packages(data):
    assert checksums.compute_slowly(data) == crc32c.crc32c(data) == google_crc32c.value(data)
    assert checksums.compute_slowly(memoryview(bytearray(data))) == checksums.compute_slowly(data)


@given(length=st.integers(0, 2**64 - 1))
def test_checksums_of_lengths_are_those_of_their_bytes(length):
    expected = checksums.mask(crc32c.crc32c(length.to_bytes(8, "little")))
    assert checksums.compute_length_checksums(np.array([length], np.uint64)).tolist() == [expected]


RECORDS = [bytes([number]) * (number * 37 % 1000) for number in range(60)]

# A program that cannot import some packages. `folder` has good.tfrecord with RECORDS, and bad.tfrecord with a changed
# byte in the last record.
PROGRAM = """
import sys, warnings
for name in {blocked!r}:
    sys.modules[name] = None  # as if it were not installed
import numpy as np
import bushel
from bushel._src.base.late_imports import install_command
from bushel.experimental import TFRecordIterDataset
from bushel import DamagedFile
from bushel.sources import TFRecordDataSource, convert
folder = {folder!r}
RECORDS = [bytes([number]) * (number * 37 % 1000) for number in range(60)]
def read(path, **options):
    return (
        list(TFRecordDataSource(path, **options)),
        list(TFRecordIterDataset(path, **options)),
        TFRecordDataSource(path, **options)[0],
    )
def attempt(read, *args, **options):
    try:
        return read(*args, **options)
    except (ImportError, DamagedFile) as error:
        return type(error).__name__ + ": " + str(error)
if __name__ == "__main__":
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        {body}
"""


def run(tmp_path, body, blocked):
    path = written(tmp_path, "tfrecord", RECORDS)
    content = bytearray(path.read_bytes())
    path.rename(tmp_path / "good.tfrecord")
    content[-10] ^= 1
    (tmp_path / "bad.tfrecord").write_bytes(content)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(blocked=blocked, folder=str(tmp_path), body="\n        ".join(body.splitlines())))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stderr


NONE = ["crc32c", "google_crc32c"]


def test_without_a_package_files_are_read_with_one_warning_and_not_checked(tmp_path):
    body = """\
for kind in (TFRecordDataSource, TFRecordIterDataset):
    said = attempt(kind, folder + "/good.tfrecord", verify=True)
    assert said.startswith("ImportError") and install_command("tfrecord") in said, said
assert not seen
for _ in range(2):
    assert read(folder + "/good.tfrecord") == (RECORDS, RECORDS, RECORDS[0])
assert len(seen) == 1, [str(w.message) for w in seen]
assert install_command("tfrecord") in str(seen[0].message)
assert seen[0].filename == __file__
assert len(attempt(read, folder + "/bad.tfrecord")[0]) == 60  # nobody looks at its checksum
assert read(folder + "/good.tfrecord", verify=False)[0] == RECORDS
assert len(seen) == 1"""
    run(tmp_path, body, NONE)


def test_workers_do_not_warn_again(tmp_path):
    body = """\
ds = TFRecordIterDataset(folder + "/good.tfrecord").map(len)
rows = bushel.MapDataset.source(TFRecordDataSource(folder + "/good.tfrecord")).map(len).to_iter_dataset()
for one in (ds, rows):
    with iter(one.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        assert list(it) == [len(record) for record in RECORDS]
assert len(seen) == 1"""
    assert "TFRecord" not in run(tmp_path, body, NONE)


def test_without_a_package_files_are_written_with_checksums(tmp_path):
    body = """\
convert(folder + "/good.tfrecord", folder + "/copy.tfrecord")
bushel.MapDataset.range(5).map(str).save(folder + "/saved", format="tfrecord")
assert list(bushel.MapDataset.source(bushel.sources.open(folder + "/saved"))) == list("01234")"""
    run(tmp_path, body, NONE)
    assert (tmp_path / "copy.tfrecord").read_bytes() == (tmp_path / "good.tfrecord").read_bytes()


@pytest.mark.parametrize("blocked", [["crc32c"], ["google_crc32c"]])
def test_any_package_of_checksums_will_do(blocked, tmp_path):
    body = """\
for options in ({}, {"verify": True}):
    assert read(folder + "/good.tfrecord", **options) == (RECORDS, RECORDS, RECORDS[0])
    said = attempt(read, folder + "/bad.tfrecord", **options)
    assert said.startswith("DamagedFile"), said
from bushel.sources import FixedRecords
same = FixedRecords(TFRecordDataSource(folder + "/even.tfrecord"), dtype=np.uint8, shape=(4,))
assert same.__getitems__([2, 0]).tree.tolist() == [[2] * 4, [0] * 4]
assert not seen, [str(w.message) for w in seen]"""
    (tmp_path / "even.tfrecord").write_bytes(
        b"".join(frame_record(bytes([n]) * 4, checksums.get_checksum()) for n in range(5))
    )
    run(tmp_path, body, blocked)


def test_googles_package_without_its_c_code_is_too_slow_to_read_with(monkeypatch):
    monkeypatch.setitem(sys.modules, "crc32c", None)
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    monkeypatch.setattr(checksums, "_warned", False)
    with pytest.warns(UserWarning, match=r"bushel\[tfrecord\]"):
        assert not checksums.decide_verify(None)
    assert checksums.get_checksum() is checksums.compute_slowly
