"""Weighted draws, weighted shuffles and sorted epochs: their laws, epoch by epoch."""

from __future__ import annotations

import collections
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel.experimental import DatasetOptions, ExecutionTrackingMode, WithOptionsIterDataset
from bushel.testing import same

weights_of = st.lists(st.integers(0, 20) | st.just(0), min_size=1, max_size=30)
seeds = st.integers(0, 2**32 - 1)


def epoch(ds, number) -> list[Any]:
    length = len(ds)
    return [ds[index] for index in range(number * length, (number + 1) * length)]


@settings(max_examples=80, deadline=None)
@given(weights=weights_of, seed=seeds, number=st.integers(-2, 6), shuffled=st.booleans())
def test_draws_keep_to_their_shares_in_every_epoch(weights, seed, number, shuffled):
    assume(any(weights))
    ds = MapDataset.range(len(weights))
    column = ds.column(lambda x: weights[x])
    drawn = (ds.shuffle(3) if shuffled else ds).sample(column, seed=seed)
    assert len(drawn) == len(weights)
    counts = collections.Counter(epoch(drawn, number))
    for record, weight in enumerate(weights):
        share = weight * len(weights) / sum(weights)
        assert math.floor(share) <= counts[record] <= math.ceil(share)


def test_draws_with_equal_weights_are_a_shuffle():
    found = [epoch(MapDataset.range(50).sample(np.ones(50), seed=3), number) for number in range(3)]
    assert all(sorted(one) == list(range(50)) for one in found)
    assert found[0] != found[1] != found[2]


def test_draws_have_the_right_mean_over_epochs():
    weights = np.array([0.1, 0.35, 1.0, 0.05, 2.5])
    drawn = MapDataset.range(5).sample(weights, seed=11)
    counts = np.bincount(drawn.get(np.arange(5 * 300)), minlength=5)
    assert np.abs(counts / counts.sum() - weights / weights.sum()).max() < 0.02


@settings(max_examples=60, deadline=None)
@given(weights=weights_of, seed=seeds, number=st.integers(-2, 6))
def test_without_replacement_each_comes_once(weights, seed, number):
    assume(any(weights))
    ds = MapDataset.range(len(weights))
    found = ds.shuffle(1).sample(ds.column(lambda x: weights[x]), seed=seed, replacement=False)
    assert sorted(epoch(found, number)) == [record for record, weight in enumerate(weights) if weight]


def test_without_replacement_heavy_ones_come_early():
    weights = [1, 3]
    ds = MapDataset.range(2).sample(weights, seed=5, replacement=False)
    first = np.mean(ds.get(2 * np.arange(2000)))
    assert abs(first - 0.75) < 0.04


@settings(max_examples=80, deadline=None)
@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=30), number=st.integers(-2, 6), shuffled=st.booleans())
def test_order_by_sorts_every_epoch(values, number, shuffled):
    ds = MapDataset.range(len(values))
    before = ds.shuffle(8) if shuffled else ds
    found = epoch(before.order_by(ds.column(lambda x: values[x])), number)
    assert found == sorted(epoch(before, number), key=lambda x: values[x])


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 60), noise=st.floats(0, 0.9), seed=seeds, number=st.integers(0, 3))
def test_noise_moves_elements_so_far_and_no_further(length, noise, seed, number):
    ds = MapDataset.range(length)
    found = epoch(ds.order_by(np.arange(length), noise=noise, seed=seed if noise else None), number)
    assert sorted(found) == list(range(length))
    furthest = noise / (1 - noise) * length
    assert all(abs(place - value) <= furthest + 1e-6 for place, value in enumerate(found))


def test_noise_is_drawn_anew_in_every_epoch():
    ds = MapDataset.range(40).order_by(np.arange(40), noise=0.5, seed=1)
    assert epoch(ds, 0) != epoch(ds, 1) and epoch(ds, 0) == epoch(ds, 0)
    assert epoch(ds, 0)[:3] != list(range(3)) and np.mean(epoch(ds, 0)[:10]) < np.mean(epoch(ds, 0)[-10:])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            lambda ds: ds.sample([1, -1, 2], seed=0),
            "must be finite, not negative, and not all zero; they range from -1 to 2",
        ),
        (lambda ds: ds.sample([0, 0, 0], seed=0), "not all zero"),
        (lambda ds: ds.sample([1, np.nan, 2], seed=0), "must be finite"),
        (lambda ds: ds.sample([1, 1, 1]), "`sample` requires a seed"),
        (lambda ds: ds.sample(["a", "b", "c"], seed=0), "`sample` takes one number per element; got values of <U1"),
        (lambda ds: ds.order_by([1, np.nan, 2]), "cannot place 1 values that are NaN, the first at 1"),
        (lambda ds: ds.order_by([1, 2, 3], noise=2), r"noise must be between 0 \(sorted\) and 1 \(shuffled\), got 2"),
        (lambda ds: ds.order_by([1, 2, 3], noise=0.5), "`order_by` requires a seed"),
    ],
)
def test_what_is_wrong_is_told(wrong, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        wrong(MapDataset.range(3))


def test_selections_resume_anywhere_and_have_different_identities():
    ds = MapDataset.range(20).seed(5)
    weights = ds.column(lambda x: x + 1)
    for pipeline in (
        ds.shuffle().sample(weights).batch(3).repeat(2),
        ds.sample(weights, replacement=False).repeat(3),
        ds.shuffle().order_by(weights, noise=0.2).batch(4),
        ds.repeat().sample(weights)[:30],
    ):
        bushel.testing.check_resumes_anywhere(pipeline, max_elements=25)
        bushel.testing.check_same_for_any_executor(pipeline, max_elements=25)
    state = iter(ds.sample(weights)).get_state()
    with pytest.raises(bushel.StateMismatch, match="sample"):
        iter(ds.sample(weights * 2 + (weights > 3))).set_state(state)


def test_selections_are_the_same_when_stages_are_timed():
    timing = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)
    ds = MapDataset.source([np.full(n % 7 + 1, n) for n in range(40)]).seed(5).map(lambda x: x + 1)
    lengths, shuffled = ds.column(len), ds.shuffle()
    for pipeline in (
        shuffled.where(lengths > 2).repeat(3),
        ds.where(lengths > 2).sample(lengths),
        shuffled.order_by(lengths, noise=0.3).repeat(2),
        shuffled.bucket(lengths, [4, 8], 3).repeat(2),
        ds.pack(lengths, 12).shuffle(),
        MapDataset.mix([shuffled, ds.where(lengths == 1)], [2, 1], exact=True),
    ):
        expected = list(pipeline)
        stream = pipeline.to_iter_dataset()
        for watched in (stream, stream.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))):
            with iter(WithOptionsIterDataset(watched, timing)) as it:
                assert bushel.testing.same(list(it), expected)
                assert it.report()


WITH_VALUES = {
    "where": lambda ds, values: ds.where(values["odd"]),
    "sample": lambda ds, values: ds.sample(values["weight"], seed=2),
    "sample without replacement": lambda ds, values: ds.sample(values["weight"], seed=2, replacement=False),
    "order_by": lambda ds, values: ds.order_by(values["weight"]),
    "bucket": lambda ds, values: ds.bucket(values["length"], [3, 9], 2, seed=1, batch_fn=list),
}
VALUES = {"odd": lambda x: len(x) % 2 > 0, "weight": lambda x: int(x[0]) + 0.5, "length": len}


@pytest.mark.parametrize("name", WITH_VALUES)
@pytest.mark.parametrize("before", [lambda ds: ds, lambda ds: ds.shuffle(seed=3), lambda ds: ds.repeat()])
def test_a_function_is_as_good_as_its_column(name, before):
    ds = before(MapDataset.source([str(n) * (n % 7 + 1) for n in range(40)]).map(lambda text: text[:8]))
    columns = {key: ds.column(function) for key, function in VALUES.items()}
    build = WITH_VALUES[name]
    by_function, by_column = build(ds, VALUES), build(ds, columns)
    assert same(by_function.get(range(30)), by_column.get(range(30)))
    state = iter(by_column).get_state()
    iter(by_function).set_state(state)


def test_pack_takes_functions_of_one_feature_or_of_several():
    ds = MapDataset.source([{"a": np.arange(1 + n % 4), "b": np.arange(1 + n % 3)} for n in range(20)])
    length = {"a": 6, "b": 6}
    expected = list(ds.pack(ds.column(lambda row: {"a": len(row["a"]), "b": len(row["b"])}), length))
    calls = []

    def both(row):
        calls.append(row)
        return {"a": len(row["a"]), "b": len(row["b"])}

    assert same(list(ds.pack(both, length)), expected) and len(calls) == 20
    by_name = {"a": lambda row: len(row["a"]), "b": lambda row: len(row["b"])}
    assert same(list(ds.pack(by_name, length)), expected)


def test_a_function_is_called_once_for_each_record():
    calls = []

    def is_odd(x):
        calls.append(x)
        return x % 2 == 1

    ds = MapDataset.range(9).shuffle(seed=1).where(is_odd).repeat(3)
    assert sorted(ds) == [1, 1, 1, 3, 3, 3, 5, 5, 5, 7, 7, 7] and sorted(calls) == list(range(9))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda ds: ds.where(lambda x: x), "`where` takes one bool per element"),
        (lambda ds: ds.where(lambda: True), r"`where` calls `function\(element\)`, but <lambda> takes"),
        (lambda ds: ds.order_by(lambda x: None), "returned None; a column needs a value for each"),
        (lambda ds: ds.random_map(lambda x, rng: x, seed=0).where(bool), "gives other elements in every epoch"),
        (lambda ds: ds.filter(bool).where(bool), "after filter.* elements may be missing"),
    ],
)
def test_a_function_without_values_is_refused(wrong, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        wrong(MapDataset.range(5))
