"""Bagz blocks copied from mapped memory: the records that reading gives, whatever happens to the file meanwhile."""

import gc
import os
import pickle
import random
import resource
import subprocess
import sys

import bagz
import numpy as np
import pytest
from helpers.record_formats import in_eight_threads, written
from hypothesis import given, settings
from hypothesis import strategies as st

from bushel import DamagedFile
from bushel._src.sources import local_files
from bushel._src.sources.bagz import MappedReads
from bushel.sources import BagzDataSource

RECORDS = [random.Random(number).randbytes(number * 997 % 20_000) for number in range(120)]  # some are empty
SCATTERED = np.random.default_rng(0).permutation(len(RECORDS))
linux = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="tells by /proc what is mapped")


@pytest.fixture(scope="module", params=["bag", "bagz"])
def path(request, tmp_path_factory):
    return written(tmp_path_factory.mktemp("mapped"), request.param, RECORDS)


def is_mapped(path):
    gc.collect()
    with open("/proc/self/maps") as maps:
        return any(line.rstrip().endswith(os.path.realpath(path)) for line in maps)


@settings(max_examples=60, deadline=None)
@given(indices=st.lists(st.integers(0, len(RECORDS) - 1), max_size=100))
def test_a_block_is_that_of_the_format_s_own_library(path, indices):
    options = bagz.Reader.Options(max_parallelism=1)
    theirs = bagz.Reader(str(path), options).read_indices(indices)
    assert BagzDataSource(path).__getitems__(indices) == list(theirs) == [RECORDS[index] for index in indices]


@linux
def test_scattered_blocks_are_mapped_and_small_or_ordered_ones_are_not(path):
    source = BagzDataSource(path)
    source.__getitems__(SCATTERED[:5])
    source.__getitems__(np.arange(50))
    assert not is_mapped(path)
    assert source.__getitems__(SCATTERED) == [RECORDS[index] for index in SCATTERED]
    assert is_mapped(path)


@linux
def test_a_map_goes_with_its_source(path):
    source = BagzDataSource(path)
    records = source.__getitems__(SCATTERED)
    copy = pickle.loads(pickle.dumps(source))
    source.close()
    assert not is_mapped(path)
    assert copy.__getitems__(SCATTERED) == source.__getitems__(SCATTERED) == records
    del copy, source
    assert not is_mapped(path)


@linux
def test_maps_are_as_few_as_descriptors(tmp_path):
    count = local_files._OPEN_AT_ONCE // 2 + 20
    for number in range(count):
        written(tmp_path, "bag", [b"%d-%d" % (number, k) for k in range(9)], f"{number:04d}")
    source = BagzDataSource(str(tmp_path / "*.bag"))
    order = np.random.default_rng(1).permutation(9 * count)
    assert source.__getitems__(order) == [b"%d-%d" % (index // 9, index % 9) for index in order.tolist()]
    held = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert len([name for name in held if name.startswith(str(tmp_path))]) <= local_files._OPEN_AT_ONCE


def test_eight_threads_share_one_map(path):
    source, wrong = BagzDataSource(path), []

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            indices = rng.integers(0, len(RECORDS), 40)
            if source.__getitems__(indices) != [RECORDS[index] for index in indices]:
                wrong.append(indices)

    in_eight_threads(read)
    assert not wrong


OTHER_BACKEND = """
import sys
import numpy as np
import zstandard
from bushel.sources import BagzDataSource

assert zstandard.backend == "cffi" and "buffer_types" not in zstandard.backend_features
source = BagzDataSource(sys.argv[1])
block = np.random.default_rng(0).permutation(len(source))
assert source.__getitems__(block) == [source[index] for index in block]
assert source._get_reader(0)._file._descriptor.memory is not None
"""


def test_the_other_half_of_zstandard_decompresses_too(tmp_path):
    pytest.importorskip("cffi")
    path = written(tmp_path, "bagz", RECORDS)
    subprocess.run(
        [sys.executable, "-c", OTHER_BACKEND, str(path)],
        check=True,
        timeout=250,
        env=os.environ | {"PYTHON_ZSTANDARD_IMPORT_POLICY": "cffi"},
    )


CUT_SHORT = """
import os, sys
import numpy as np
from bushel import DamagedFile
from bushel.sources import BagzDataSource

path, count = sys.argv[1], int(sys.argv[2])
source = BagzDataSource(path)
block = np.random.default_rng(0).permutation(count)
before = source.__getitems__(block)
os.truncate(path, 8192)
try:
    source.__getitems__(block)
except DamagedFile as error:
    print(error)
again = source.__getitems__(np.array([1, 0, 2, 1, 0, 2, 1, 0]))  # what lies before the cut is still there
assert again == [before[block.tolist().index(index)] for index in (1, 0, 2, 1, 0, 2, 1, 0)]
with open(path, "r+b") as file:
    file.truncate(0)
try:
    source.__getitems__(block)
except DamagedFile as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["bag", "bagz"])
def test_a_file_cut_short_under_its_map_is_an_error_and_not_the_end_of_the_process(name, tmp_path):
    path = written(tmp_path, name, RECORDS)
    done = subprocess.run(
        [sys.executable, "-c", CUT_SHORT, str(path), str(len(RECORDS))], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "ended early" in first
    assert "it has been cut short or replaced since" in first
    assert "ended early" in second


def test_the_damaged_record_of_a_block_is_named(tmp_path):
    path = written(tmp_path, "bagz", RECORDS)
    content = bytearray(path.read_bytes())
    start = int.from_bytes(content[-8:], "little")
    ends = np.frombuffer(bytes(content[start:]), "<u8")
    content[ends[69]] ^= 1  # the first byte of record 70: of zstd's own mark
    path.write_bytes(content)
    source = BagzDataSource(path)
    with pytest.raises(DamagedFile, match="record 70 is damaged: it cannot be decompressed"):
        source.__getitems__(SCATTERED)
    good = SCATTERED[SCATTERED != 70]
    assert source.__getitems__(good) == [RECORDS[index] for index in good]


def test_a_block_that_waits_for_the_disk_is_followed_by_reads(tmp_path):
    path, content = tmp_path / "cold", os.urandom(4 << 20)
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if not hasattr(os, "posix_fadvise"):
            pytest.skip("nothing here empties the system's cache")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)

    def copy(memory, spans):
        return [memory[start : start + length] for start, length in spans.tolist()]

    mapping = MappedReads(local_files.LocalFile(str(path)))
    cold, warm = np.array([[1 << 20, 100], [3 << 20, 100]]), np.array([[0, 100]])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    first = mapping.copy_block(copy, cold)
    if resource.getrusage(resource.RUSAGE_SELF).ru_majflt == before:
        pytest.skip("this file system keeps its files in memory")
    assert [mapping.copy_block(copy, warm) for _ in range(16)] == [None] * 16
    assert first == [content[1 << 20 :][:100], content[3 << 20 :][:100]]
    assert path.read_bytes() == content  # so that all of it is in memory
    assert all(mapping.copy_block(copy, warm) == [content[:100]] for _ in range(100))
