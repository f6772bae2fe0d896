"""How much of a dataset there is: take, skip, limit, unbatch, a + b, and many elements at once with `get`."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same


def count_up(count=20):
    return MapDataset.range(count).map(lambda x: {"x": x})


@given(length=st.integers(0, 30), first=st.integers(0, 40), second=st.integers(0, 40))
def test_both_kinds_take_and_skip_as_slices_do(length, first, second):
    expected = list(range(length))[first:][:second]
    ds = MapDataset.range(length)
    assert list(ds.skip(first).take(second)) == list(ds.skip(first).limit(second)) == expected
    stream = ds.to_iter_dataset().filter(lambda x: True).skip(first)
    assert list(stream.take(second) if second else []) == expected
    assert list(ds.to_iter_dataset().skip(first)) == list(range(length))[first:]


@given(st.integers(0, 70), st.integers(1, 9))
def test_a_stream_that_skips_resumes_anywhere(count, size):
    ds = MapDataset.range(80).to_iter_dataset().filter(lambda x: x % 3 > 0).skip(count).batch(size)
    assert same(list(ds), list(MapDataset.source([x for x in range(80) if x % 3 > 0][count:]).batch(size)))
    check_resumes_anywhere(ds, max_elements=6)


STREAMS = {
    "skip": lambda: count_up().to_iter_dataset().skip(5),
    "skip behind a window": lambda: count_up().to_iter_dataset().window_shuffle(4, seed=1).skip(6),
    "skip above the end": lambda: count_up().to_iter_dataset().skip(99),
    "skip in every epoch": lambda: count_up(5).to_iter_dataset().skip(3).repeat(3),
    "unbatch": lambda: count_up().batch(6).to_iter_dataset().unbatch(),
    "batches of another size": lambda: count_up().batch(6).to_iter_dataset().unbatch().batch(4),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_keep_the_laws(name):
    check_resumes_anywhere(STREAMS[name](), max_elements=25)
    check_same_for_any_executor(STREAMS[name](), max_elements=25)


def test_a_stream_that_skips_knows_its_length_and_seeks():
    ds = MapDataset.range(10).to_iter_dataset().skip(3)
    assert len(ds) == 7 and len(ds.skip(9)) == 0
    with iter(ds) as it:
        bushel.experimental.set_next_index(it, 4)
        assert next(it) == 7 and bushel.experimental.get_next_index(it) == 5
    with iter(ds) as it:
        assert bushel.experimental.get_next_index(it) == 0 and next(it) == 3
    endless = MapDataset.range(3).repeat().to_iter_dataset().skip(4)
    assert list(itertools.islice(endless, 3)) == [1, 2, 0]


def test_unbatch_gives_the_elements_back():
    ds = MapDataset.source([{"a": np.arange(3) + n, "b": np.float32(n)} for n in range(7)])
    assert same(list(ds.batch(3).to_iter_dataset().unbatch()), list(ds))
    for wrong in (lambda x: {"a": np.zeros(2), "b": np.zeros(3)}, lambda x: {}, lambda x: 5):
        with pytest.raises(ValueError, match="unbatch needs trees of arrays that share a first axis"):
            list(MapDataset.range(2).map(wrong).to_iter_dataset().unbatch())


def test_rows_of_a_batch_share_no_memory():
    first, second = MapDataset.source([np.zeros(3), np.ones(3)]).batch(2).to_iter_dataset().unbatch()
    first += 5
    assert second.tolist() == [1, 1, 1] and not np.shares_memory(first, second)


def test_a_sum_is_one_dataset_after_the_other():
    a, b = MapDataset.range(3).shuffle(seed=0), MapDataset.source(["a", "b"])
    assert list(a + b) == list(MapDataset.concatenate([a, b]))
    assert list(a + b + a) == [*a, *b, *a] and repr(a + b) == repr(MapDataset.concatenate([a, b]))
    for wrong in ([1], a.to_iter_dataset(), 0):
        with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+: 'MapDataset' and"):
            a + wrong  # type: ignore[operator]


@given(st.lists(st.integers(0, 99), max_size=20))
def test_get_is_a_list_of_what_each_index_gives(indices):
    arrays = MapDataset.source(bushel.sources.ArrayDataSource({"x": np.arange(20)}))
    for ds in (arrays.shuffle(seed=1), arrays.map(dict), arrays.filter(lambda row: row["x"] % 2 > 0), arrays.batch(3)):
        found = ds.get(indices)
        assert type(found) is list and same(found, [ds[index] for index in indices])


def test_what_is_no_count_is_refused():
    for ds in (MapDataset.range(5), MapDataset.range(5).to_iter_dataset()):
        for wrong in (-1, 1.5, True, "3", None):
            with pytest.raises((TypeError, ValueError), match="count must be"):
                ds.skip(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Write `ds.get\(indices\)`"):
        MapDataset.range(5).take([1, 2])  # type: ignore[arg-type]
