"""Exact mixtures: in every prefix each part is within one element of its share, whatever the weights do."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from helpers.case_counts import cases
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bushel._src.base.checks import INFINITE
from bushel._src.index.mix import LONGEST_PERIOD, Quotas, Stretches, exact_mixture, whole_numbers


@st.composite
def schedules(draw):
    parts = draw(st.integers(1, 6))
    weights = st.lists(st.integers(0, 40) | st.integers(0, 3), min_size=parts, max_size=parts).filter(any).map(tuple)
    starts = [0, *sorted(set(draw(st.lists(st.integers(1, 400), max_size=4))))]
    return [(start, draw(weights)) for start in starts]


def shares(stages, count):
    """The quota of each part after each of the first positions."""
    found = [[Fraction(0)] * len(stages[0][1])]
    for position in range(count):
        weights = [weights for start, weights in stages if start <= position][-1]
        found.append([low + Fraction(weight, sum(weights)) for low, weight in zip(found[-1], weights, strict=True)])
    return found


@settings(max_examples=cases(50, 120), deadline=None)
@given(stages=schedules())
@example([(0, (5, 3, 2))])
@example([(0, (1, 1, 1, 1, 1)), (2, (0, 0, 0, 1, 1)), (3, (1, 0, 0, 0, 0))])
@example([(0, (2, 2, 2, 2, 2)), (3, (1, 0, 0, 1, 0)), (6, (0, 1, 1, 0, 0)), (9, (1, 1, 1, 1, 6))])
def test_every_prefix_is_within_one_of_its_shares(stages):
    count = 700
    which, index = Quotas(stages).mixed(np.arange(count))
    quotas = shares(stages, count)
    given = [0] * len(stages[0][1])
    for position, (part, number) in enumerate(zip(which.tolist(), index.tolist(), strict=True)):
        assert number == given[part]  # each part in order, none left out
        given[part] += 1
        assert all(abs(have - share) < 1 for have, share in zip(given, quotas[position + 1], strict=True))


@settings(max_examples=40, deadline=None)
@given(stages=schedules(), data=st.data())
def test_positions_are_looked_up_in_any_order(stages, data):
    quotas = Quotas(stages)
    which, index = quotas.mixed(np.arange(1500))
    some = np.array(data.draw(st.lists(st.integers(0, 1499), min_size=1, max_size=30)))
    again = pickle.loads(pickle.dumps(quotas)).mixed(some)
    assert again[0].tolist() == which[some].tolist() and again[1].tolist() == index[some].tolist()


@settings(max_examples=40, deadline=None)
@given(stages=schedules(), lengths=st.data())
def test_a_mixture_is_as_long_as_its_parts_last(stages, lengths):
    parts = len(stages[0][1])
    sizes = lengths.draw(st.lists(st.integers(1, 60) | st.just(INFINITE), min_size=parts, max_size=parts))
    quotas = Quotas(stages)
    found = quotas.length(sizes)
    which, index = quotas.mixed(np.arange(min(found, 20_000) + 1))
    inside = index < np.array(sizes)[which]
    assert inside[:-1].all()
    if found < 20_000:
        assert not inside[-1]


def test_far_positions_are_exact():
    weights = (7, 2, 1)
    quotas = Quotas([(0, weights)])
    which, index = quotas.mixed(np.arange(10**17, 10**17 + 50))
    assert which.tolist() == quotas.mixed(np.arange(50))[0].tolist()
    for part, weight in enumerate(weights):
        assert index[which == part][0] == 10**16 * weight
    beyond = quotas.mixed(np.array([2**70 * 10 + place for place in range(10)], dtype=object))
    assert beyond[0].tolist() == which[:10].tolist()
    assert [int(beyond[1][beyond[0] == part][0]) for part in range(3)] == [2**70 * weight for weight in weights]
    before = quotas.mixed(np.arange(-10, 0))
    assert before[0].tolist() == which[:10].tolist() and before[1].min() == -7


def test_after_a_long_schedule_shares_are_exact():
    stages = [(0, (3, 1)), (10_000_001, (1, 3)), (20_000_000, (0, 1)), (20_000_007, (1, 1))]
    which, index = Quotas(stages).mixed(np.arange(20_000_000, 20_000_200))
    expected = Fraction(10_000_001 * 3, 4) + Fraction(9_999_999, 4)
    (first,) = np.flatnonzero(which == 0)[:1]
    assert abs(int(index[first]) - expected) < 2
    assert np.count_nonzero(which[:7] == 0) <= 1  # what it was owed, and no more


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e4) | st.integers(0, 10**5), min_size=1, max_size=6))
@example([0.7, 0.2, 0.1])
@example([1 / 3, 1 / 3, 1 / 3])
@example([0.1, 0.7, 1e-3])
def test_weights_become_whole_numbers_of_the_same_proportions(weights):
    assume(any(weights))
    total = sum(weights)
    try:
        numbers = whole_numbers(weights)
    except ValueError:
        assert min(weight for weight in weights if weight) / total < 1e-6
        return
    for weight, number in zip(weights, numbers, strict=True):
        assert math.isclose(weight / total, number / sum(numbers), abs_tol=1e-12) and bool(weight) == bool(number)


def test_weights_as_they_are_written():
    assert whole_numbers([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert whole_numbers([1 / 3, 2 / 3]) == (1, 2)
    assert whole_numbers([1_000_003, 77]) == (1_000_003, 77)
    assert whole_numbers([2.0, 0.0]) == (1, 0)
    with pytest.raises(ValueError, match=r"The weight 1e-07 is less than 1 in 1,048,576 of the sum of \[1.0, 1e-07\]"):
        whole_numbers([1.0, 1e-7])


long_weights = st.lists(st.integers(1, 10**9) | st.just(0), min_size=2, max_size=5).filter(
    lambda w: sum(w) > LONGEST_PERIOD and min(x for x in w if x) * 2000 > sum(w)
)


@settings(max_examples=25, deadline=None)
@given(weights=long_weights.map(tuple), start=st.integers(0, 10**12))
@example(weights=(1_000_003, 999_983, 7919), start=10**9)
def test_weights_of_any_size_keep_their_shares_however_far(weights, start):
    mixture = exact_mixture([(0, weights)])
    assert isinstance(mixture, Stretches)
    for first in (0, start):
        which, index = mixture.mixed(np.arange(first, first + 6000))
        ends = np.arange(first + 1, first + 6001)
        for part, weight in enumerate(weights):
            here = which == part
            assert (np.diff(index[here]) == 1).all()
            if not weight:
                assert not here.any()
                continue
            # How many of the part have come after each position: one more than the index of the last one.
            given_before = index[here][0]
            counts = given_before + np.cumsum(here)
            shares = [Fraction(int(end) * weight, sum(weights)) for end in ends[::97]]
            assert all(abs(int(have) - share) < 2 for have, share in zip(counts[::97], shares, strict=True))


def test_by_size_nothing_is_left_over_however_large():
    lengths = (3_000_017, 50_021, 1_999)
    mixture = exact_mixture([(0, lengths)])
    found = mixture.length(lengths)
    assert sum(lengths) - 10 < found <= sum(lengths)
    far = mixture.mixed(np.array([found - 1, found]))
    assert far[1][1] == lengths[far[0][1]]
    again = pickle.loads(pickle.dumps(mixture)).mixed(np.arange(0, found, 9973))
    assert again[1].tolist() == mixture.mixed(np.arange(0, found, 9973))[1].tolist()
