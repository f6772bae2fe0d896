"""Columns follow records: through shuffles, slices, mixtures, maps and repeats, in every epoch."""

from __future__ import annotations

import sys

import cloudpickle
import numpy as np
import pytest
from helpers.reordering_pipelines import epoch, moved
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel._src.base.checks import INFINITE
from bushel._src.graph.node import Epochs

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


def fact(record) -> int:
    name, number = record
    return (number * 7 + name * 3) % 11


EPOCHS = [0, 1, 2, 5, -1]


@settings(max_examples=80, deadline=None)
@given(ds=moved())
def test_what_a_node_says_of_its_epochs_is_true(ds):
    first = epoch(ds, 0)
    for number in EPOCHS:
        found = epoch(ds, number)
        if ds._node.epochs is Epochs.SAME:
            assert found == first
        elif ds._node.epochs is Epochs.SHUFFLED:
            assert sorted(found) == sorted(first)


@settings(max_examples=80, deadline=None)
@given(ds=moved(), data=st.data())
def test_a_column_follows_its_records(ds, data):
    column = ds.column(fact)
    below = data.draw(st.sampled_from([ds, ds.shuffle(5), ds.shuffle(6)[::2], ds.map(str)[:1], ds.repeat(2)]))
    assert column._reaches(below._node)
    indices = np.array(data.draw(st.lists(st.integers(-100, 2000), min_size=1, max_size=20)))
    records = [ds._node.take(np.array([i]))[0] for i in positions_above(below, ds, indices)]
    assert column._at(below._node, indices).tolist() == [fact(record) for record in records]


def positions_above(below, ds, indices):
    """Where the elements of `below` at `indices` stand in `ds`, one by one."""
    node, found = below._node, indices
    while node is not ds._node:
        _, _, found = node.made_of(found)
        (node,) = node.parents
    return found.tolist()


@settings(max_examples=80, deadline=None)
@given(ds=moved(), threshold=st.integers(0, 11))
def test_where_is_the_list_comprehension_in_every_epoch(ds, threshold):
    column = ds.column(fact)
    assume(ds._node.epochs is not Epochs.DIFFERENT)
    kept = ds.where(column < threshold)
    for number in EPOCHS:
        expected = [record for record in epoch(ds, number) if fact(record) < threshold]
        assert len(kept) == len(expected)
        if expected:
            assert epoch(kept, number) == expected


def test_where_knows_lengths_that_vary():
    ds = MapDataset.range(10)
    mask = ds.column(lambda x: x < 5)
    with pytest.raises(ValueError, match=r"Epochs of slice\(slice\(0, 4\)\) are made of different records, so after"):
        ds.shuffle(1)[:4].where(mask)
    with pytest.raises(ValueError, match="on each part of a mixture before mixing"):
        MapDataset.mix([ds, ds.shuffle(2)]).where(mask)
    assert len(ds.shuffle(1)[:4].repeat(3, reseed_each_epoch=False).where(mask)) % 3 == 0


def test_where_works_on_an_endless_dataset():
    ds = MapDataset.range(6).shuffle(4)
    endless = ds.repeat().where(ds.column(lambda x: x % 2 == 0))
    assert len(endless) == INFINITE
    found = [endless[i] for i in range(9)]
    assert found == [x for n in range(3) for x in epoch(ds, n) if x in (0, 2, 4)]
    with pytest.raises(ValueError, match="has no end, so it has no epochs to choose from"):
        MapDataset.mix([ds.repeat(), ds.repeat()]).where(ds.column(lambda x: x > 0))


def test_a_column_is_computed_once_per_record_and_above_a_shuffle():
    calls = []

    def counted(x):
        calls.append(x)
        return x

    ds = MapDataset.range(7).shuffle(1).map(lambda x: x * 10).repeat(3)
    column = ds.column(counted)
    assert sorted(calls) == [0, 10, 20, 30, 40, 50, 60]
    assert np.asarray(column).tolist() == sorted(calls)


@pytest.mark.parametrize(
    ("ds", "reason"),
    [
        (MapDataset.range(4).random_map(lambda x, rng: x, seed=1), "gives other elements in every epoch"),
        (MapDataset.range(4).map_with_index(lambda i, x: i), "gives other elements in every epoch"),
        (MapDataset.range(4).random_map(lambda x, rng: x, seed=1).map(str)[:3], "Compute the column before it"),
        (MapDataset.range(4).shuffle(1).batch(2), r"batch\(2\) is made of other records in every epoch"),
        (MapDataset.range(4).filter(bool), "elements may be missing"),
        (MapDataset.range(4).filter(bool).shuffle(1), "filter with `where`, which leaves none missing"),
    ],
)
def test_where_no_column_can_be_right_it_is_refused(ds, reason):
    with pytest.raises(ValueError, match=reason):
        ds.column(lambda x: 1)


def test_a_dataset_of_ones_own_is_wrapped():
    class Own(MapDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index % 3

    with pytest.raises(ValueError, match=r"wrap it: MapDataset\.source\(dataset\)"):
        Own().column(lambda x: x)
    assert np.asarray(MapDataset.source(Own()).column(lambda x: x)).tolist() == [0, 1, 2]


def test_batches_of_the_same_elements_have_columns():
    ds = MapDataset.range(10).batch(4)
    sums = ds.column(lambda batch: batch.sum())
    assert np.asarray(sums).tolist() == [6, 22, 17]
    assert [b.tolist() for b in ds.shuffle(3).where(sums > 6).order_by(sums)] == [[8, 9], [4, 5, 6, 7]]


def test_records_that_come_through_different_maps_have_no_one_value():
    ds = MapDataset.range(4).shuffle(1)
    with pytest.raises(ValueError, match=r"come to mix.* in several ways, through different maps"):
        MapDataset.mix([ds.map(lambda x: x), ds.map(lambda x: -x)]).column(lambda x: x)
    doubled = ds.map(lambda x: 2 * x)
    both = MapDataset.mix([doubled, doubled.shuffle(2)])
    assert np.asarray(both.column(lambda x: x)).tolist() == [0, 2, 4, 6]


def test_a_column_after_a_filter_of_shuffled_elements():
    ds = MapDataset.range(10).shuffle(1)
    kept = ds.where(ds.column(lambda x: x % 2 == 0))
    column = kept.column(lambda x: x * x)
    assert list(kept.order_by(column)) == [0, 2, 4, 6, 8]


def test_a_column_of_other_elements_is_refused():
    ds = MapDataset.range(4)
    column = ds.map(lambda x: x + 1).column(lambda x: x)
    with pytest.raises(ValueError, match=r"`where` got a column of the elements of map\(<lambda>\)"):
        ds.where(column > 1)
    with pytest.raises(ValueError, match=r"not every element of mix"):
        MapDataset.mix([ds, MapDataset.range(9)]).order_by(ds.column(lambda x: x))


def test_a_pipeline_built_twice_has_the_same_columns():
    def build():
        return MapDataset.source([3, 1, 2]).map(lambda x: x * 2)

    column = build().column(lambda x: x)
    assert list(build().shuffle(1).order_by(column)) == [2, 4, 6]


def test_arithmetic_with_columns_is_that_of_numpy():
    ds = MapDataset.range(5)
    a, b = ds.column(lambda x: x), ds.column(lambda x: x * x)
    assert np.asarray((a > 1) & (b < 10)).tolist() == [False, False, True, True, False]
    assert np.asarray(np.sqrt(b) - a).tolist() == [0, 0, 0, 0, 0]
    assert np.asarray(-a + 2 * b).tolist() == [0, 1, 6, 15, 28]
    with pytest.raises(ValueError, match="add of columns of different records"):
        _ = a + MapDataset.range(5).map(str).column(int)
    with pytest.raises(ValueError, match=r"less of a column and \(5,\) other values"):
        np.less(a, np.arange(5))
    assert (np.max(b), np.mean(a), np.quantile(a, 0.5)) == (16, 2, 2)
    assert repr(a) == "Column(5 x int64)"


def test_a_number_is_the_value_of_that_record():
    first, second = MapDataset.range(3), MapDataset.range(10, 15)
    column = MapDataset.concatenate([first, second]).column(lambda x: x * 2)
    assert [column[number] for number in range(-8, 8)] == [0, 2, 4, 20, 22, 24, 26, 28] * 2
    assert column[np.int64(3)] == 20 and list(column) == [0, 2, 4, 20, 22, 24, 26, 28]
    fields = first.column(lambda x: {"a": x, "b": str(x)})
    assert fields[2]["b"] == "2" and fields["a"][1] == 1
    for number in (8, -9):
        with pytest.raises(IndexError, match=rf"column\[{number}\]: the column has 8 values"):
            column[number]
    with pytest.raises(KeyError, match=r"it has none\. It also takes the number of a record"):
        column["a"]


def test_columns_of_records_have_fields():
    ds = MapDataset.range(3)
    column = ds.column(lambda x: {"square": x * x, "odd": x % 2 == 1})
    assert np.asarray(column["square"]).tolist() == [0, 1, 4]
    assert list(ds.where(column["odd"])) == [1]
    with pytest.raises(KeyError, match=r"it has the fields \['square', 'odd'\]"):
        column["cube"]
    with pytest.raises(TypeError, match="one bool per element"):
        ds.where(column)


def test_arrays_go_by_position():
    ds = MapDataset.range(4)
    assert list(ds.where([True, False, False, True]).repeat(2)) == [0, 3, 0, 3]
    assert list(ds.repeat().where(np.array([True, False, False, True]))[:5]) == [0, 3, 0, 3, 0]
    with pytest.raises(ValueError, match="the same position holds another record in every epoch"):
        ds.shuffle(1).where([True, False, False, True])
    with pytest.raises(ValueError, match=r"one value for each of the 4 elements of range\(4\); got bool\[2\]"):
        ds.where([True, False])
    with pytest.raises(TypeError, match=r"one bool per element, such as `lengths > 10`; got values of int64"):
        ds.where([1, 0, 0, 1])


def test_a_pipeline_with_a_column_goes_to_other_processes():
    ds = MapDataset.range(30).shuffle(1)
    kept = ds.where(ds.column(lambda x: x % 2 == 0)).batch(4).repeat(2)
    assert len(kept) == 8
    bushel.testing.check_same_for_any_executor(kept)
    bushel.testing.check_resumes_anywhere(kept)
    options = bushel.MultiprocessingOptions(num_workers=2)
    with iter(kept.to_iter_dataset().mp_prefetch(options)) as it:
        assert bushel.testing.same(list(it), list(kept))
