"""Sources in memory: arrays by column, and ranges. What comes out is the caller's own."""

import pickle
from typing import NamedTuple

import grain
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel.sources import ArrayDataSource, Columns, RandomAccessDataSource, RangeDataSource
from bushel.testing import same


class Point(NamedTuple):
    x: np.ndarray
    y: np.ndarray


TREES = {
    "array": np.arange(12.0).reshape(6, 2),
    "dict": {"image": np.arange(24, dtype=np.uint8).reshape(6, 2, 2), "label": np.arange(6)},
    "tuple": (np.arange(6), np.arange(6.0)),
    "named tuple": Point(np.arange(6), np.arange(12).reshape(6, 2)),
    "nested": {"a": {"b": np.arange(6)}, "c": (np.arange(6), {"d": np.arange(6)})},
    "strings": {"text": np.array(["aa", "bb", "cc", "dd", "ee", "ff"])},
    "objects": {"any": np.array([None, "a", 1, 2.5, [1], {}], dtype=object)},
    "bools": np.array([True, False] * 3),
}


def record(tree, index):
    """Record `index` of a tree, the plain way."""
    if isinstance(tree, dict):
        return {key: record(value, index) for key, value in tree.items()}
    if isinstance(tree, tuple):
        parts = [record(value, index) for value in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree[index]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_record_is_one_entry_of_each_array(tree):
    source = ArrayDataSource(tree)
    assert len(source) == 6
    for index in range(-6, 6):
        assert same(source[index], record(tree, index))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@given(indices=st.lists(st.integers(0, 5), max_size=10))
def test_many_records_are_those_one_by_one(tree, indices):
    source = ArrayDataSource(tree)
    block = source.__getitems__(indices)
    assert isinstance(block, Columns)
    assert len(block) == len(indices)
    assert same(block.rows(), [source[index] for index in indices])


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_pipelines_give_what_a_list_of_records_gives(tree):
    if tree is TREES["objects"]:
        pytest.skip("a record None is a missing element")
    columns, rows = MapDataset.source(ArrayDataSource(tree)), MapDataset.source([record(tree, n) for n in range(6)])
    for build in (
        lambda ds: ds,
        lambda ds: ds.seed(1).shuffle().repeat(2),
        lambda ds: ds.seed(1).shuffle().batch(4),
        lambda ds: ds.map(lambda x: x).batch(4),
        lambda ds: MapDataset.concatenate([ds, ds[::2]]).batch(5),
    ):
        assert same(list(build(columns)), list(build(rows)))


def test_lists_given_to_ArrayDataSource_are_columns():
    source = ArrayDataSource({"x": [1, 2, 3], "y": [[1, 2], [3, 4], [5, 6]]})
    assert same(source[1], {"x": np.int64(2), "y": np.array([3, 4])})


def test_arrays_are_not_copied_on_the_way_in():
    array = np.zeros((100, 10))
    source = ArrayDataSource({"x": array})
    array[3] = 7
    assert source[3]["x"].tolist() == [7] * 10


def test_a_memory_mapped_array_stays_on_disk(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(20).reshape(10, 2))
    ds = MapDataset.source(ArrayDataSource(np.load(path, mmap_mode="r")))
    assert ds[3].tolist() == [6, 7]
    assert type(ds[3]) is np.ndarray
    assert ds.batch(2)[4].tolist() == [[16, 17], [18, 19]]


def test_a_jax_array_is_taken():
    jnp = pytest.importorskip("jax.numpy")
    source = ArrayDataSource({"x": jnp.arange(6).reshape(3, 2)})
    assert type(source[1]["x"]) is np.ndarray
    assert source[1]["x"].tolist() == [2, 3]


# What comes out may be changed; what is inside does not change with it.

WAYS_OUT = {
    "element": lambda ds: ds[2]["x"],
    "taken": lambda ds: ds._get_block([2, 1]).tree["x"],
    "batch": lambda ds: ds.batch(2)[1]["x"],
    "iterated": lambda ds: list(ds)[2]["x"],
    "iterated batch": lambda ds: list(ds.batch(2))[1]["x"],
    "whole batch": lambda ds: ds.batch(4)[0]["x"],
    "slice": lambda ds: ds[2:][0]["x"],
    "stream batch": lambda ds: list(ds.to_iter_dataset().batch(2))[1]["x"],
    "mix": lambda ds: list(MapDataset.mix([ds, ds]))[4]["x"],
    "zip": lambda ds: bushel.experimental.ZipMapDataset([ds, ds])[2][0]["x"],
}


@pytest.mark.parametrize("way", WAYS_OUT.values(), ids=WAYS_OUT)
def test_changing_what_came_out_changes_nothing_inside(way):
    array = np.arange(16.0).reshape(4, 4)
    ds = MapDataset.source(ArrayDataSource({"x": array}))
    out = way(ds)
    assert out.flags.writeable
    out[...] = -1
    assert array.tolist() == np.arange(16.0).reshape(4, 4).tolist()
    assert same(list(ds), [{"x": row} for row in np.arange(16.0).reshape(4, 4)])


def test_elements_do_not_share_memory_with_each_other():
    ds = MapDataset.source(ArrayDataSource(np.arange(8.0).reshape(4, 2)))
    for elements in ([ds[1], ds[1]], list(ds), list(ds.repeat(2)), list(ds.batch(2).repeat(2))):
        for number, element in enumerate(elements):
            for other in elements[number + 1 :]:
                assert not np.shares_memory(element, other)


def test_a_map_that_changes_its_element_in_place_does_no_harm():
    array = np.zeros((4, 2))

    def fill(x):
        x[...] = 1
        return x

    ds = MapDataset.source(ArrayDataSource(array)).map(fill)
    assert all(x.tolist() == [1, 1] for x in ds)
    assert not array.any()


def test_large_batches_are_aligned_for_jax():
    ds = MapDataset.source(ArrayDataSource(np.zeros((100, 1000), np.float32))).shuffle(seed=1)
    for batch in (ds.batch(50)[0], next(iter(ds.to_iter_dataset().batch(50))), ds.map(lambda x: x).batch(50)[0]):
        assert batch.__array_interface__["data"][0] % 64 == 0


def test_no_records_at_all():
    ds = MapDataset.source(ArrayDataSource({"x": np.zeros((0, 3))}))
    assert len(ds) == 0
    assert list(ds) == list(ds.batch(2)) == []
    with pytest.raises(IndexError, match="is empty: it has no element 0"):
        ds[0]


BAD = {
    "nothing": (lambda: ArrayDataSource({}), "ArrayDataSource needs at least one array, got {}."),
    "unequal lengths": (
        lambda: ArrayDataSource({"x": np.zeros((3, 2)), "y": np.zeros(4)}),
        "All arrays of an ArrayDataSource need the same first axis, one entry per record; "
        "got {'x': float64[3, 2], 'y': float64[4]}.",
    ),
    "a number": (
        lambda: ArrayDataSource({"x": 3}),
        "All arrays of an ArrayDataSource need the same first axis, one entry per record; got {'x': int64[]}.",
    ),
}


@pytest.mark.parametrize(("build", "sentence"), BAD.values(), ids=BAD)
def test_bad_arrays_are_refused_in_a_sentence(build, sentence):
    with pytest.raises(ValueError) as raised:
        build()
    assert str(raised.value) == sentence


def test_bad_indices_are_refused_in_a_sentence():
    source = ArrayDataSource(np.arange(3))
    with pytest.raises(IndexError, match="index 3 is out of range for 3 records"):
        source[3]
    with pytest.raises(IndexError, match="index -4 is out of range for 3 records"):
        source[-4]
    with pytest.raises(TypeError, match=r"index must be an integer, got 1\.0 of type float"):
        source[1.0]


@pytest.mark.parametrize("source", [ArrayDataSource({"x": np.arange(3)}), RangeDataSource(1, 9, 3)], ids=repr)
def test_sources_pickle_and_are_sources(source):
    copy = pickle.loads(pickle.dumps(source))
    assert isinstance(source, RandomAccessDataSource)
    assert same([copy[n] for n in range(len(copy))], [source[n] for n in range(len(source))])
    assert repr(copy) == repr(source)


def test_sources_in_memory_print_as_they_were_written():
    assert repr(ArrayDataSource({"x": np.zeros((3, 2), np.float32)})) == "ArrayDataSource({'x': float32[3, 2]})"
    assert repr(RangeDataSource(0, 6, 2)) == repr(grain.sources.RangeDataSource(0, 6, 2))


@given(start=st.integers(-20, 20), stop=st.integers(-20, 20), step=st.integers(-5, 5).filter(bool))
def test_a_range_source_is_a_range(start, stop, step):
    source = RangeDataSource(start, stop, step)
    assert [source[n] for n in range(len(source))] == list(range(start, stop, step))
    assert list(MapDataset.source(source)) == list(range(start, stop, step))


def test_columns_know_which_elements_are_missing():
    columns = Columns({"x": np.array([1, 3])}, 3, np.array([True, False, True]))
    assert columns.rows() == [{"x": 1}, None, {"x": 3}]
    assert len(columns) == 3
    assert columns.dense().rows() == [{"x": 1}, {"x": 3}]
    assert columns.slice(1, 3).rows() == [None, {"x": 3}]


def test_a_source_of_ones_own_may_answer_in_columns():
    class Squares:
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return np.int64(index**2)

        def __getitems__(self, indices):
            return Columns(np.asarray(indices) ** 2, len(indices))

    ds = MapDataset.source(Squares()).shuffle(seed=1)
    assert same(list(ds.batch(10)), list(MapDataset.source(np.arange(100) ** 2).shuffle(seed=1).batch(10)))
    assert ds[3] == Squares()[int(MapDataset.range(100).shuffle(seed=1)[3])]


def test_grains_name_for_many_reads_is_honoured():
    asked = []

    class Bulk:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            raise AssertionError("read one by one")

        def _getitems(self, indices):
            asked.append(list(indices))
            return [int(index) for index in indices]

    assert MapDataset.source(Bulk()).batch(5)[1].tolist() == [5, 6, 7, 8, 9]
    assert asked == [[5, 6, 7, 8, 9]]


class LikeTFDS:
    """A source that asks of its indices what the data sources of TFDS ask."""

    def __len__(self):
        return 20

    def __getitem__(self, record_key):
        if not isinstance(record_key, int):
            raise ValueError(f"Record key should be an integer, got {type(record_key)}")
        return record_key

    def __getitems__(self, record_keys):
        if not record_keys:
            return []
        return [self[key] for key in record_keys]


class LikeTorch:
    """A dataset whose records lie under their numbers in a dict, and which is handed lists by PyTorch."""

    def __init__(self):
        self.records = {f"{number}.jpg": number for number in range(20)}

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.records[f"{index!r}.jpg"]

    def __getitems__(self, indices):
        assert type(indices) is list
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [LikeTFDS, LikeTorch])
def test_sources_of_others_get_python_ints_in_a_list(kind):
    ds = MapDataset.source(kind())
    assert [ds[index] for index in (0, np.int64(3), -1)] == [0, 3, 19]
    for size in (1, 2, 20):
        assert np.concatenate(list(ds.batch(size))).tolist() == list(range(20))
    order = list(MapDataset.range(20).shuffle(seed=1))
    assert list(ds.shuffle(seed=1)) == order
    assert ds.get(np.array([4, 2])) == [4, 2]
    assert list(ds.shuffle(seed=1).to_iter_dataset().batch(7, batch_fn=list)) == [order[:7], order[7:14], order[14:]]


def test_the_record_that_fails_among_many_is_found_by_python_ints():
    class Bad(LikeTFDS):
        def __getitems__(self, record_keys):
            if not record_keys or 3 in record_keys:
                raise ValueError("no record three")
            return super().__getitems__(record_keys)

    with pytest.raises(ValueError, match="no record three") as failure:
        MapDataset.source(Bad()).batch(5)[0]
    assert "record 3" in str(failure.value.__notes__)


def test_own_sources_get_arrays(monkeypatch):
    kinds = []
    read = ArrayDataSource.__getitems__

    def watched(self, indices):
        kinds.append(type(indices))
        return read(self, indices)

    watched.__module__ = read.__module__
    monkeypatch.setattr(ArrayDataSource, "__getitems__", watched)
    assert MapDataset.source(ArrayDataSource(np.arange(20))).batch(5)[1].tolist() == [5, 6, 7, 8, 9]
    assert set(kinds) == {np.ndarray}


def test_mapped_arrays_are_sent_by_the_name_of_their_file(tmp_path):
    path = tmp_path / "big.npy"
    np.save(path, np.arange(3_000_000).reshape(-1, 3))
    whole = np.load(path, mmap_mode="r")
    source = ArrayDataSource({"x": whole[10:], "y": np.arange(len(whole) - 10)})
    sent = pickle.dumps(ArrayDataSource(whole[10:]))
    assert len(sent) < 1000
    again = pickle.loads(pickle.dumps(source))
    assert isinstance(again, ArrayDataSource)
    for place in (0, 7, len(source) - 1):
        assert same(again[place], source[place])


def test_arrays_in_memory_are_sent_whole():
    source = ArrayDataSource({"x": np.arange(12.0).reshape(4, 3).T, "y": (np.arange(3),)})
    again = pickle.loads(pickle.dumps(source))
    assert same([again[place] for place in range(3)], [source[place] for place in range(3)])
