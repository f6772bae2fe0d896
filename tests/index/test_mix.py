"""Mixtures and concatenations as index arithmetic: the vectorised form against the plain one, and their laws."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grain._src.python.dataset.transformations import mix as grain_mix
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bushel._src.base.checks import INFINITE
from bushel._src.index.mix import concatenated, integer_weights, mixed, mixed_length


def plainly_mixed(k: int, weights: tuple[int, ...]) -> tuple[int, int]:
    """Grain's recurrence in Python's integers: the data set at which the count of its elements goes up."""
    remaining = sum(weights)
    low, high = k, k + 1
    for which, weight in enumerate(weights):
        next_low, next_high = low * (remaining - weight) // remaining, high * (remaining - weight) // remaining
        before, after = low - next_low, high - next_high
        if before != after:
            return which, after - 1
        remaining -= weight
        low, high = next_low, next_high
    raise AssertionError("no data set gives this element")


small_weights = st.lists(st.integers(1, 500), min_size=1, max_size=6).map(tuple)
large_weights = st.lists(st.integers(1, 4 * 10**9), min_size=2, max_size=4).map(tuple)
positions = st.lists(
    st.one_of(
        st.integers(0, 5000),
        st.integers(-5000, -1),
        st.integers(2**40, 2**62),
        st.integers(-(2**62), -(2**40)),
    ),
    min_size=1,
    max_size=30,
)


# ---------------------------------------------------------------------------------------------------------------------
# mix


many_weights = st.lists(st.integers(1, 40), min_size=17, max_size=80).map(tuple)


@settings(max_examples=50, deadline=None)
@given(weights=many_weights | small_weights)
def test_the_table_of_a_period_is_the_plain_recurrence(weights):
    ks = np.arange(2 * sum(weights))
    which, index = mixed(ks, weights)
    assert list(zip(which.tolist(), index.tolist(), strict=True)) == [plainly_mixed(k, weights) for k in ks.tolist()]


@settings(max_examples=50, deadline=None)
@given(weights=small_weights, factor=st.integers(2, 10**7), ks=positions)
def test_only_proportions_count(weights, factor, ks):
    larger = tuple(weight * factor for weight in weights)
    for one, other in zip(mixed(np.array(ks), weights), mixed(np.array(ks), larger), strict=True):
        assert one.tolist() == other.tolist()
    assert plainly_mixed(ks[0], weights) == plainly_mixed(ks[0], larger)


@settings(max_examples=200, deadline=None)
@given(weights=small_weights | large_weights, ks=positions)
@example(weights=(1,), ks=[0, -1, 2**62])
@example(weights=(1_500_000_000, 1_500_000_000), ks=[0, 2_999_999_999, 3 * 10**9, 2**62])
@example(weights=(1_500_000_000, 1_500_000_001), ks=[0, 2_999_999_999, 3 * 10**9, 2**62])
@example(weights=(4 * 10**9, 1, 4 * 10**9), ks=[4 * 10**9, 8 * 10**9, 8 * 10**9 + 1, 2**62])
def test_whole_arrays_are_the_plain_recurrence(weights, ks):
    which, index = mixed(np.array(ks), weights)
    assert which.dtype == np.int64
    assert list(zip(which.tolist(), index.tolist(), strict=True)) == [plainly_mixed(k, weights) for k in ks]


@settings(max_examples=50, deadline=None)
@given(weights=small_weights, k=st.integers(0, 10**6))
def test_the_plain_recurrence_is_grains(weights, k):
    assert plainly_mixed(k, weights) == grain_mix._dataset_and_key_of_next_element(k, weights)


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.integers(1, 60), min_size=1, max_size=5).map(tuple), periods=st.integers(1, 3))
def test_each_data_set_is_read_in_order_and_by_its_weight(weights, periods):
    total = sum(weights) * periods
    which, index = mixed(np.arange(total), weights)
    for number, weight in enumerate(weights):
        assert index[which == number].tolist() == list(range(weight * periods))


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.integers(1, 60), min_size=2, max_size=5).map(tuple))
def test_no_prefix_is_far_from_its_shares(weights):
    total = sum(weights)
    which, _ = mixed(np.arange(total), weights)
    for number, weight in enumerate(weights):
        seen = np.cumsum(which == number)
        assert (np.abs(seen - np.arange(1, total + 1) * weight / total) < len(weights)).all()


def test_what_goes_in_is_not_changed():
    here = np.arange(50)
    mixed(here, (3, 2))
    assert (here == np.arange(50)).all()


@pytest.mark.parametrize("weights", [(1,), (1, 1), (233, 100), (100, 1_000, 7, 31_661)])
def test_under_jax_it_is_the_same(weights):
    assert not jax.config.jax_enable_x64
    ks = np.array([0, 1, 2, 99, 100, 332, 333, 334, 32_767, 32_768, 10**6, 2**31 - 1], dtype=np.int32)
    which, index = jax.jit(lambda k: mixed(k, weights, jnp))(ks)
    assert which.dtype == index.dtype == jnp.int32
    ours = mixed(ks.astype(np.int64), weights)
    assert np.asarray(which).tolist() == ours[0].tolist()
    assert np.asarray(index).tolist() == ours[1].tolist()


def test_under_jax_large_weights_are_refused():
    with pytest.raises(ValueError, match=r"weights must sum to at most 2\*\*15, got 32769"):
        mixed(jnp.arange(3), (2**15, 1), jnp)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1e-4, 1e4) | st.integers(1, 1000), min_size=1, max_size=5))
@example([0.7, 0.3])
@example([1.0, 1.0, 1.0])
def test_integer_weights_are_grains(weights):
    ours = integer_weights(weights)
    assert list(ours) == list(grain_mix._float_to_int_proportions(weights))
    assert all(type(weight) is int for weight in ours) and min(ours) in (99, 100)


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 10**6) | st.just(INFINITE), min_size=1, max_size=4))
def test_the_length_of_a_mixture_is_grains(lengths):
    theirs = grain_mix.SelectionWithProportionsMap([StubOfLength(length) for length in lengths])
    assert mixed_length(lengths, (1,) * len(lengths)) == len(theirs)


@settings(max_examples=100, deadline=None)
@given(
    parts=st.lists(st.tuples(st.integers(1, 10**6) | st.just(INFINITE), st.floats(0.01, 100)), min_size=1, max_size=4)
)
def test_the_length_of_a_weighted_mixture_is_grains(parts):
    lengths, weights = zip(*parts, strict=True)
    theirs = grain_mix.SelectionWithProportionsMap([StubOfLength(length) for length in lengths], weights)
    assert mixed_length(lengths, integer_weights(weights)) == len(theirs)


class StubOfLength:
    def __init__(self, length: int):
        self._length = length

    def __len__(self) -> int:
        return self._length


# ---------------------------------------------------------------------------------------------------------------------
# concatenate


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=5), epochs=st.integers(1, 3))
def test_one_after_the_other_epoch_by_epoch(lengths, epochs):
    assume(sum(lengths))
    expected = [
        (which, epoch * length + place)
        for epoch in range(epochs)
        for which, length in enumerate(lengths)
        for place in range(length)
    ]
    which, index = concatenated(np.arange(sum(lengths) * epochs), np.array(lengths), np.cumsum(lengths))
    assert list(zip(which.tolist(), index.tolist(), strict=True)) == expected


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 2**40), min_size=1, max_size=5),
    places=st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=10),
)
def test_far_and_negative_positions(lengths, places):
    total = sum(lengths)
    assume(total)
    which, index = concatenated(np.array(places), np.array(lengths), np.cumsum(lengths))
    starts = list(itertools.accumulate(lengths, initial=0))
    for place, number, found in zip(places, which.tolist(), index.tolist(), strict=True):
        epoch, position = divmod(place, total)
        assert starts[number] <= position < starts[number + 1]
        assert found == position - starts[number] + epoch * lengths[number]
