"""Sources and arrays in shared memory: seen by name in other processes, and gone when they should be."""

import multiprocessing
import os
import pickle
import subprocess
import sys

import grain
import numpy as np
import pytest

import bushel
from bushel.multiprocessing import SharedMemoryArray
from bushel.sources import SharedMemoryDataSource

VALUES = [1, 2.5, True, None, "text", b"bytes"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm")


@pytest.fixture
def source():
    made = SharedMemoryDataSource(VALUES)
    yield made
    made.close()
    made.unlink()


def test_a_source_has_its_values(source):
    assert [source[index] for index in range(len(source))] == VALUES
    theirs = grain.sources.SharedMemoryDataSource(name=source.shm.name)
    assert list(theirs) == VALUES
    with pytest.raises(IndexError):
        source[6]


def test_workers_read_the_same_memory_and_do_not_remove_it(source):
    ds = bushel.MapDataset.source(source).repeat(5).to_iter_dataset()
    for _ in range(2):  # workers that end take nothing with them
        with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
            assert list(it) == [value for value in VALUES * 5 if value is not None]
    assert source[4] == "text"


def test_a_process_that_attached_and_ended_leaves_it(source):
    program = f"from bushel.sources import SharedMemoryDataSource as S; s = S(name={source.shm.name!r}); print(s[4])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=True)
    assert (done.stdout, done.stderr) == ("text\n", "")
    assert SharedMemoryDataSource(name=source.shm.name)[4] == "text"


def test_an_array_in_shared_memory_is_identified_by_its_values(source):
    other = SharedMemoryDataSource(VALUES)
    state = iter(bushel.MapDataset.source(source)).get_state()
    iter(bushel.MapDataset.source(other)).set_state(state)
    other.close()
    other.unlink()


@pytest.mark.parametrize("value", ["b\0", b"a\0\0", b"\0"])
def test_what_would_lose_its_last_bytes_is_refused(value):
    with pytest.raises(ValueError, match=r"Element 1 ends with a zero byte, .* pass the values as a list"):
        SharedMemoryDataSource(["", value])


def test_zero_bytes_inside_stay():
    inside = SharedMemoryDataSource(["a\0b", b"\0a", "", b""])
    assert list(inside) == ["a\0b", b"\0a", "", b""]
    inside.close()
    inside.unlink()


def test_nothing_to_share_is_told():
    with pytest.raises(ValueError, match="needs elements, or the name"):
        SharedMemoryDataSource()
    with pytest.raises(FileNotFoundError):
        SharedMemoryDataSource(name="bushel_nowhere")


# Arrays.


def names():
    return set(os.listdir("/dev/shm"))


def doubled(metadata):
    SharedMemoryArray.from_metadata(metadata)[:] *= 2


def test_an_array_is_shared_with_another_process():
    array = SharedMemoryArray((3, 2), dtype=np.int64)
    array[:] = np.arange(6).reshape(3, 2)
    process = multiprocessing.get_context("spawn").Process(target=doubled, args=(array.metadata,))
    process.start()
    process.join(60)
    assert array.tolist() == [[0, 2], [4, 6], [8, 10]]
    array.unlink_on_del()


@linux
def test_the_last_one_removes_the_memory():
    before = names()
    array = SharedMemoryArray((4,), dtype=np.float32)
    array[:] = 1
    other = SharedMemoryArray.from_metadata(array.metadata)
    part = other[1:3]
    other.unlink_on_del()
    del other
    assert names() - before  # a part is still looked at
    assert part.sum() == 2
    del part
    assert names() == before
    assert array.sum() == 4  # mapped here as long as it is used


@linux
def test_metadata_alone_can_remove_it():
    before = names()
    metadata = SharedMemoryArray((4,)).metadata
    assert names() - before
    metadata.close_and_unlink_shm()
    assert names() == before


def test_results_are_plain_arrays_and_parts_are_pickled_by_value():
    array = SharedMemoryArray((4,), dtype=np.int64)
    array[:] = np.arange(4)
    assert type(array + 1) is np.ndarray and type(array.sum()) is np.int64
    assert pickle.loads(pickle.dumps(array[1:3])).tolist() == [1, 2]
    assert SharedMemoryArray((0, 3)).size == 0
    array.unlink_on_del()
