"""Mixtures of datasets with exact shares, schedules, temperature and zero weights."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel._src.base.checks import INFINITE


def parts(*lengths, shuffled=True):
    made = [MapDataset.range(1000 * n, 1000 * n + length) for n, length in enumerate(lengths)]
    return [part.shuffle(7) if shuffled else part for part in made]


def part_of(element):
    return element // 1000


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0, 0.1, 0.25, 1, 1.5, 3, 1 / 3]), min_size=1, max_size=4),
    lengths=st.data(),
    kept=st.integers(1, 3),
)
def test_shares_are_exact_after_dense_filters(weights, lengths, kept):
    assume(any(weights))
    sizes = lengths.draw(st.lists(st.integers(3, 60), min_size=len(weights), max_size=len(weights)))
    filtered = [ds.where(ds.column(lambda x: x % kept == 0)) for ds in parts(*sizes)]
    assume(all(map(len, filtered)))
    mixture = MapDataset.mix(filtered, weights, exact=True)
    found = [part_of(element) for element in mixture]
    shares = np.array(weights) / sum(weights)
    counts = np.zeros(len(weights))
    for number, part in enumerate(found, start=1):
        counts[part] += 1
        assert (np.abs(counts - number * shares) < 1 + 1e-9).all()
    # It ends because a part has: one more element would begin an epoch anew.
    part, index = (int(array[0]) for array in mixture._node.choose(np.array([len(found)])))
    assert index == len(filtered[part])


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0, 0.1, 0.25, 1, 1.5, 3, 1 / 3]), min_size=1, max_size=4),
    data=st.data(),
)
def test_a_mixture_that_continues_gives_every_element_once(weights, data):
    assume(any(weights))
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=len(weights), max_size=len(weights)))
    mixture = MapDataset.mix(parts(*sizes), weights, exact=True, when_exhausted="continue")
    expected = {x for part, weight in zip(parts(*sizes), weights) if weight for x in part}
    found = list(mixture)
    assert len(found) == len(mixture) == len(expected) and set(found) == expected
    # It is the mixture that stops, and then the mixture of what is left.
    first = list(MapDataset.mix(parts(*sizes), weights, exact=True))
    assert found[: len(first)] == first
    counts = [sum(part_of(x) == number for x in first) for number in range(len(sizes))]
    rest = [part[count:] for part, count in zip(parts(*sizes), counts)]
    left = [(part, weight) for part, weight in zip(rest, weights) if len(part) and weight]
    assert len(left) < sum(map(bool, weights))
    if left:
        assert found[len(first) :] == list(MapDataset.mix(*zip(*left), exact=True, when_exhausted="continue"))
    again = mixture.repeat(2)
    assert list(again[: len(found)]) == found and set(again[len(found) :]) == expected


def test_a_mixture_continues_without_end_with_a_part_that_has_none():
    mixture = MapDataset.mix(
        [MapDataset.range(3).repeat(), MapDataset.range(1000, 1002)], exact=True, when_exhausted="continue"
    )
    assert len(mixture) == INFINITE
    assert [part_of(mixture[n]) for n in (*range(8), 10**12)] == [0, 1, 0, 1, 0, 0, 0, 0, 0]
    assert [int(mixture[n]) for n in range(4, 8)] == [2, 0, 1, 2]
    with pytest.raises(ValueError, match='when_exhausted="continue" goes with one set of weights, not with a schedule'):
        MapDataset.mix(parts(3, 3), [(0, [1, 0]), (2, [1, 1])], when_exhausted="continue")


def test_where_parts_run_out_is_found_without_counting():
    large = 10**9
    mixture = MapDataset.mix(
        [MapDataset.range(large), MapDataset.range(10)], [1, 3], exact=True, when_exhausted="continue"
    )
    assert len(mixture) == large + 10 and int(mixture[len(mixture) - 1]) == large - 1


def test_a_schedule_changes_weights_by_position():
    ds = MapDataset.mix(parts(400, 400), [(0, [1, 0]), (50, [1, 3]), (150, [0, 1])], when_exhausted="restart")
    found = [part_of(ds[i]) for i in range(250)]
    assert found[:49].count(1) == 0 and found[50:150].count(1) == 75 and found[151:].count(0) == 0


def test_by_size_everything_ends_together():
    ds = MapDataset.mix(parts(30, 10, 5), "size")
    assert len(ds) == 45 and len(set(ds)) == 45
    hot = MapDataset.mix(parts(1000, 10), "size", temperature=2.0, when_exhausted="restart")
    share = np.mean([part_of(x) for x in hot[:5000]])
    assert abs(share - 10**0.5 / (10**0.5 + 1000**0.5)) < 1e-3


def test_restart_goes_on_with_the_next_epoch_shuffled_anew():
    ds = MapDataset.mix(parts(4, 30), [1, 1], exact=True, when_exhausted="restart")
    assert len(ds) == INFINITE
    small = [x for x in ds[:24] if part_of(x) == 0]
    assert [sorted(small[n : n + 4]) for n in (0, 4, 8)] == [[0, 1, 2, 3]] * 3
    assert small[:4] != small[4:8]


def test_zero_weights_give_nothing_and_may_be_empty():
    ds = MapDataset.mix([*parts(5, 5), MapDataset.range(0)], [1, 0, 0], exact=True)
    assert sorted(ds) == [0, 1, 2, 3, 4]


def test_plain_weights_stay_grains():
    plain = MapDataset.mix(parts(10, 10), [0.7, 0.3])
    assert "exact" not in repr(plain)
    with pytest.raises(ValueError, match="Must specify all non-zero proportions"):
        MapDataset.mix(parts(3, 3), [1, 0])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (dict(weights="sizes"), "weights must be numbers, a schedule or \"size\", got 'sizes'"),
        (dict(weights=[1, 1], temperature=2), 'temperature goes with weights="size"'),
        (dict(weights="size", temperature=0), "temperature must be above zero and finite, got 0"),
        (dict(weights=[1, 1], when_exhausted="loop"), '"stop", "restart" or "continue", got \'loop\''),
        (dict(weights=[1, 1], when_exhausted="restart"), 'when_exhausted="restart" needs exact=True'),
        (dict(when_exhausted="continue"), 'when_exhausted="continue" needs exact=True'),
        (dict(weights=[(5, [1, 1])]), r"must begin with 0 and grow, got \[5\]"),
        (dict(weights=[(0, [1, 1]), (0, [1, 2])]), r"must begin with 0 and grow, got \[0, 0\]"),
        (dict(weights=[(0, [1, 1]), 3]), r"A schedule is a list of \(position, weights\); got 3 in it"),
        (dict(weights=[(0, [1, 1, 1])]), "A mixture of 2 datasets needs 2 weights, got 3"),
        (dict(weights=[0, 0], exact=True), "At least one weight of a mixture must be above zero"),
        (dict(weights=[1, -1], exact=True), "must be positive"),
        (dict(weights=[1, 1e-9], exact=True), "too little for exact shares"),
    ],
)
def test_what_is_wrong_is_told(arguments, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        MapDataset.mix(parts(3, 3), **arguments)


def test_an_empty_or_endless_part_is_told():
    with pytest.raises(ValueError, match=r"the one at index 1 \(range\(0\)\) has none"):
        MapDataset.mix([MapDataset.range(3), MapDataset.range(0)], exact=True)
    with pytest.raises(ValueError, match="the dataset at index 0 has no end"):
        MapDataset.mix([MapDataset.range(3).repeat(), MapDataset.range(4)], "size")


def test_a_mixture_resumes_anywhere_and_its_weights_are_part_of_the_identity():
    ds = MapDataset.mix(parts(30, 20, 10), [(0, [1, 1, 1]), (20, [3, 2, 1])], when_exhausted="restart")
    batches = ds[:60].batch(4)
    bushel.testing.check_resumes_anywhere(batches)
    bushel.testing.check_same_for_any_executor(batches)
    with iter(batches.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
        assert bushel.testing.same(list(it), list(batches))
    state = iter(ds).get_state()
    other = MapDataset.mix(parts(30, 20, 10), [(0, [1, 1, 1]), (21, [3, 2, 1])], when_exhausted="restart")
    with pytest.raises(bushel.StateMismatch):
        iter(other).set_state(state)
    assert list(itertools.islice(ds, 3)) == [ds[0], ds[1], ds[2]]


def test_shards_have_the_shares_of_the_whole():
    ds = MapDataset.mix(parts(60, 30), [2, 1], exact=True)
    shards = [list(ds[n::3]) for n in range(3)]
    assert sorted(itertools.chain(*shards)) == sorted(ds)
