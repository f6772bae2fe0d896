"""Splits: disjoint and complete in every epoch, with the sizes that were asked for, whatever comes before or after."""

from __future__ import annotations

import itertools
import warnings

import cloudpickle
import numpy as np
import pytest
from helpers.strategies import lengths, seeds
from hypothesis import given, reject
from hypothesis import strategies as st

import bushel
from bushel import MapDataset


@st.composite
def shares(draw, most=5):
    """Shares that sum to 1 as decimal numbers do, such as [0.7, 0.25, 0.05]."""
    parts = draw(st.lists(st.integers(1, 30), min_size=1, max_size=most))
    return [part / sum(parts) for part in parts]


def values_of(ds, epochs=1):
    """The elements of some epochs, epoch by epoch."""
    return [[ds[epoch * len(ds) + i] for i in range(len(ds))] for epoch in range(epochs)]


def split_if_possible(ds, wanted, **options):
    """The parts. Hypothesis draws again if a share is so small that its part would be empty, which is an error."""
    try:
        return ds.split(wanted, **options)
    except ValueError as error:
        assert "would be empty" in str(error)
    reject()


@given(length=lengths(), wanted=shares(), seed=seeds())
def test_parts_have_their_sizes_and_are_together_the_whole(length, wanted, seed):
    parts = split_if_possible(MapDataset.range(length), wanted, seed=seed)
    for share, part in zip(wanted, parts, strict=True):
        assert abs(len(part) - share * length) <= 1
    assert sorted(itertools.chain(*parts)) == list(range(length))


@given(data=st.data(), length=st.integers(2, 200), wanted=shares(3), seed=seeds())
def test_a_record_is_in_the_same_part_in_every_epoch(data, length, wanted, seed):
    """Whatever the order of the steps before the split is, and whatever comes after it."""
    ds = MapDataset.range(length)
    steps = {
        "map": lambda ds: ds.map(lambda x: x),
        "shuffle": lambda ds: ds.shuffle(seed=seed),
        "window_shuffle": lambda ds: ds.window_shuffle(3, seed=seed),
        "seed": lambda ds: ds.seed(5),
        "random_map": lambda ds: ds.random_map(lambda x, rng: x, seed=1),
        "filter": lambda ds: ds.filter(lambda x: True),
        "where": lambda ds: ds.where(np.arange(len(ds)) % 3 < 2) if ds._node.epochs == 2 else ds,
    }
    for step in data.draw(st.lists(st.sampled_from(sorted(steps)), max_size=4)):
        ds = steps[step](ds)
    ds = ds.repeat(data.draw(st.integers(1, 3)))
    parts = split_if_possible(ds, wanted, seed=seed)
    # Three epochs, of which the parts have as many as the whole: `repeat` makes one of several.
    parts = [part.shuffle(seed=seed) for part in parts]
    seen = [[set(epoch) for epoch in values_of(part, 3)] for part in parts]
    for sets in seen:
        assert sets[0] == sets[1] == sets[2]
    for one, other in itertools.combinations(seen, 2):
        assert not one[0] & other[0]
    assert set().union(*(sets[0] for sets in seen)) == set(ds)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), wanted=shares(3), seed=seeds(), data=st.data())
def test_no_group_is_in_two_parts(sizes, wanted, seed, data):
    groups = data.draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist()))
    ds = MapDataset.source(list(enumerate(groups))).shuffle(seed=seed)
    parts = split_if_possible(ds, wanted, seed=seed, by=lambda pair: pair[1])
    seen = [{group for _, group in part} for part in parts]
    assert sum(map(len, seen)) == len(sizes)
    assert sorted(itertools.chain(*parts)) == list(enumerate(groups))
    for share, part in zip(wanted, parts, strict=True):
        assert abs(len(part) - share * len(groups)) <= max(sizes) + 1


@given(
    keys=st.lists(st.text(min_size=1, alphabet="ab\u00e9\U0001f600"), min_size=1, max_size=60, unique=True),
    more=st.lists(st.text(min_size=1, alphabet="xyz"), max_size=30, unique=True),
    wanted=shares(3),
    seed=seeds(),
)
def test_hashed_parts_stay_when_data_are_added(keys, more, wanted, seed):
    before = split_if_possible(MapDataset.source(keys), wanted, by=lambda key: key, hashed=True, seed=seed)
    after = split_if_possible(MapDataset.source([*more, *keys]), wanted, by=lambda key: key, hashed=True, seed=seed)
    for old, new in zip(before, after, strict=True):
        assert set(old) == set(new) & set(keys)


def test_hashed_parts_do_not_depend_on_the_dtype_of_the_keys():
    few = {"a": 0.5, "b": 0.5}
    small = np.arange(100, dtype=np.uint8)
    for other in (small.astype(np.int64), small.astype(str), small.astype("<U9")):
        expected = MapDataset.range(100).split(few, by=small, hashed=True)
        found = MapDataset.range(100).split(few, by=other, hashed=True)
        assert list(expected["a"]) == list(found["a"])


def test_hashed_parts_are_close_to_their_shares():
    train, rest = MapDataset.range(20_000).split([0.9, 0.1], by=np.arange(20_000), hashed=True)
    assert 1850 < len(rest) < 2150 and len(train) + len(rest) == 20_000


def test_the_parts_of_a_split_stay_the_same_from_release_to_release():
    """A new release must not move records from one part to another."""
    ds = MapDataset.range(20)
    assert sorted(ds.split([0.8, 0.2])[1]) == [0, 3, 11, 16]
    assert sorted(ds.split([0.8, 0.2], seed=7)[1]) == [5, 11, 15, 17]
    assert sorted(ds.split([0.7, 0.3], by=lambda x: x // 4)[1]) == [8, 9, 10, 11, 12, 13, 14, 15]
    assert sorted(ds.split([0.7, 0.3], by=str, hashed=True)[1]) == [3, 7, 8, 14, 17, 18, 19]


def test_each_kind_of_value_says_the_groups():
    ds = MapDataset.range(6).shuffle(seed=0)
    column = ds.column(lambda x: x // 2)
    by_function = ds.split([0.5, 0.5], by=lambda x: x // 2)
    assert [list(part) for part in ds.split([0.5, 0.5], by=column)] == [list(part) for part in by_function]
    plain = MapDataset.range(6)
    by_array = plain.split([0.5, 0.5], by=[0, 0, 1, 1, 2, 2])
    assert [set(part) for part in by_array] == [set(part) for part in by_function]
    dates = np.array(["2026-01-01", "2026-01-01", "2026-01-02", "2026-01-03", "2026-01-03", "2026-01-03"], "M8[D]")
    for options in ({}, {"hashed": True, "seed": 1}):
        first, second = plain.split([0.5, 0.5], by=dates, **options)
        assert not {str(dates[x]) for x in first} & {str(dates[x]) for x in second}


def test_a_split_has_the_asked_names_and_numbers_of_records():
    parts = MapDataset.range(10).split({"train": 7, "validation": 2, "test": 1})
    assert list(parts) == ["train", "validation", "test"]
    assert [len(part) for part in parts.values()] == [7, 2, 1]
    train, nothing = MapDataset.range(10).split([1.0, 0.0])
    assert len(train) == 10 and len(nothing) == 0
    assert [len(part) for part in MapDataset.range(1000).split([0.7, 0.2, 0.1])] == [700, 200, 100]
    assert [len(part) for part in MapDataset.range(3).split([1 / 3] * 3)] == [1, 1, 1]


def test_a_part_of_a_long_dataset_is_arithmetic():
    train, rest = MapDataset.range(1 << 40).shuffle(seed=3).split([0.999, 0.001])
    assert len(train) + len(rest) == 1 << 40
    far = 10 * len(rest) + 5
    assert train[far] != rest[far] and len(cloudpickle.dumps(train._node)) < 5_000


def test_elements_stay_what_they_are_where_the_index_matters():
    """`map_with_index` before the split counts records, not places in a part."""
    labels = [10 * n for n in range(10)]
    ds = MapDataset.range(10).map_with_index(lambda i, x: (x, labels[i % 10]))
    for part in ds.split([0.5, 0.5]):
        assert all(label == 10 * x for x, label in part)


@pytest.mark.parametrize("by", [None, lambda x: x // 3])
def test_parts_are_resumed_and_sent_to_workers(by):
    for part in MapDataset.range(40).shuffle(seed=1).split([0.75, 0.25], by=by):
        ds = part.batch(3).repeat(2)
        bushel.experimental.assert_equal_output_after_checkpoint(ds.to_iter_dataset())
        with iter(ds.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as batches:
            assert bushel.testing.same(list(batches), list(ds))


def test_the_state_of_one_part_is_refused_by_another():
    ds = MapDataset.range(20)
    train, rest = ds.split([0.5, 0.5])
    other, _ = ds.split([0.5, 0.5], seed=1)
    state = iter(train).get_state()
    iter(ds.split({"a": 0.5, "b": 0.5})["a"]).set_state(state)
    for wrong in (rest, other):
        with pytest.raises(bushel.StateMismatch):
            iter(wrong).set_state(state)


def test_a_split_prints_as_it_was_written():
    train, _ = MapDataset.range(10).shuffle(seed=1).map(lambda x: x).split([0.8, 0.2])
    assert repr(train) == "MapDataset.range(10).split([0.8, 0.2], seed=0)[0].shuffle(seed=1).map(<lambda>)"
    assert list(eval(repr(MapDataset.range(10).split([0.8, 0.2])[0]))) == list(
        MapDataset.range(10).split([0.8, 0.2])[0]
    )


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda ds: ds.split([0.9, 0.2]), r"The shares \[0.9, 0.2\] sum to 1.1"),
        (lambda ds: ds.split([9, 2]), r"The counts \[9, 2\] sum to 11, and there are 10 elements"),
        (lambda ds: ds.split([1.5, -0.5]), "must not be negative"),
        (lambda ds: ds.split([0.5, float("nan")]), "must be finite"),
        (lambda ds: ds.split([]), "needs a share for each part"),
        (lambda ds: ds.split([True, 0.5]), "got True among them"),
        (lambda ds: ds.split(0.9), "takes the shares of the parts"),
        (lambda ds: ds.split("ab"), "takes the shares of the parts"),
        (lambda ds: ds.split([0.99, 0.01]), "Part 1 with the share 0.01 of 10 elements would be empty"),
        (lambda ds: ds.split([0.9, 0.1], by=lambda x: x // 5), r"would be empty\. There are only 2 groups\."),
        (lambda ds: ds.split([0.9, 0.1], hashed=True), "needs a value for each record"),
        (lambda ds: ds.split([9, 1], by=str, hashed=True), "needs shares such as"),
        (lambda ds: ds.split([0.9, 0.1], by=float), "one whole number, text or date per element"),
        (lambda ds: ds.split([0.9, 0.1], by="user"), "not the name of an entry"),
        (lambda ds: ds.shuffle(seed=0).split([0.9, 0.1], by=[0] * 10), "which goes by position"),
        (lambda ds: ds.shuffle(seed=0).batch(2).split([0.5, 0.5]), "before batches and slices of a shuffled dataset"),
        (lambda ds: ds.repeat(2).map(str).split([0.5, 0.5]), "Call `split` before `repeat`"),
        (lambda ds: MapDataset.concatenate([ds, ds.repeat(3)]).split([0.5, 0.5]), "Call `split` before `repeat`"),
        (lambda ds: MapDataset.mix([ds, ds]).split([0.5, 0.5]), "each part of a mixture"),
        (lambda ds: ds.random_map(lambda x, rng: x, seed=0).split([0.5, 0.5], by=str), "gives other elements"),
        (lambda ds: ds.split([0.5, 0.5], lambda x: x), "This is not how MapDataset.split is called"),
    ],
)
def test_what_cannot_be_split_is_refused(wrong, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        wrong(MapDataset.range(10))


@pytest.mark.parametrize(
    "leaking",
    [
        lambda ds: ds.shuffle(seed=0)[:8].repeat(3),
        lambda ds: ds.shuffle(seed=0)[8:].repeat(),
        lambda ds: ds.shuffle(seed=0).map(str)[:8].batch(2).repeat(2),
        lambda ds: ds.shuffle(seed=0).batch(2)[:2].shuffle(seed=1).repeat(2),
        lambda ds: MapDataset.mix([ds.shuffle(seed=0)[:8], ds]).repeat(2),
    ],
)
def test_a_slice_that_lets_validation_records_into_training_is_warned_of(leaking):
    with pytest.warns(UserWarning, match=r"ds.split\(\[0.9, 0.1\]\)") as caught:
        leaking(MapDataset.range(10))
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "right",
    [
        lambda ds: ds.shuffle(seed=0)[:8],
        lambda ds: ds.shuffle(seed=0)[:8].repeat(1),
        lambda ds: ds.shuffle(seed=0)[:8].repeat(3, reseed_each_epoch=False),
        lambda ds: ds.shuffle(seed=0).repeat(1, reseed_each_epoch=False)[:8].repeat(3),
        lambda ds: ds.shuffle(seed=0)[:].repeat(3),
        lambda ds: ds.shuffle(seed=0)[1::2].repeat(3),
        lambda ds: ds.shuffle(seed=0).slice(range(8)).repeat(3),
        lambda ds: ds[:8].shuffle(seed=0).repeat(3),
        lambda ds: ds.shuffle(seed=0).split([0.8, 0.2])[0].repeat(3),
        lambda ds: ds.map(str)[:8].repeat(3),
    ],
)
def test_what_leaks_nothing_is_not_warned_of(right):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right(MapDataset.range(10))
