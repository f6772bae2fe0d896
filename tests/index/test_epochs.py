"""Epochs, slices, shards and lists of positions: each against the same thing done to a plain Python list."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.strategies import slices
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bushel._src.index.epochs import batched, first_epoch, listed, shard, strided


def epoch_of(length: int, number: int) -> list[int]:
    """The positions that epoch `number` of a data set of `length` has."""
    return list(range(length * number, length * (number + 1)))


any_slice = st.integers(1, 40).flatmap(lambda length: st.tuples(st.just(length), slices(length)))


@settings(deadline=None)
@given(any_slice, st.integers(-3, 4))
@example((10, slice(None, None, -1)), 1)
@example((10, slice(7, 2, -2)), -1)
@example((10, slice(-3, None, 2)), 2)
def test_a_slice_of_each_epoch_is_the_slice_of_that_epoch(case, epoch):
    length, by = case
    start, stop, step = by.indices(length)
    count = len(range(start, stop, step))
    assume(count)
    here = np.arange(count) + epoch * count
    there = strided(here, start=start, step=step, length=count, parent_length=length)
    assert there.tolist() == epoch_of(length, epoch)[by]


@settings(deadline=None)
@given(st.lists(st.integers(0, 19), min_size=1, max_size=30), st.integers(-3, 4))
def test_a_list_of_positions_is_taken_from_each_epoch(chosen, epoch):
    here = np.arange(len(chosen)) + epoch * len(chosen)
    there = listed(here, np.array(chosen), parent_length=20)
    assert there.tolist() == [epoch_of(20, epoch)[position] for position in chosen]


@settings(deadline=None)
@given(length=st.integers(1, 30), epoch=st.integers(-3, 4))
def test_without_reseeding_every_epoch_is_the_first(length, epoch):
    assert first_epoch(np.array(epoch_of(length, epoch)), length=length).tolist() == epoch_of(length, 0)


@settings(deadline=None)
@given(count=st.integers(1, 9), each=st.integers(1, 9))
def test_shards_share_out_every_position_once(count, each):
    parts = [shard(np.arange(each), index=index, count=count).tolist() for index in range(count)]
    assert sorted(itertools.chain(*parts)) == list(range(count * each))


@settings(deadline=None)
@given(count=st.integers(1, 9), index=st.integers(0, 8), i=st.integers(0, 100))
def test_a_shard_is_a_slice(count, index, i):
    assume(index < count)
    length = 1000 * count
    assert shard(i, index=index, count=count) == strided(i, start=index, step=count, length=1000, parent_length=length)


@settings(deadline=None)
@given(length=st.integers(1, 40), size=st.integers(1, 9), drop=st.booleans(), epoch=st.integers(-3, 4))
def test_batches_of_each_epoch_are_cut_from_that_epoch(length, size, drop, epoch):
    positions = epoch_of(length, epoch)
    expected = [positions[low : low + size] for low in range(0, length, size)]
    if drop:
        expected = [batch for batch in expected if len(batch) == size]
    assume(expected)
    here = np.arange(len(expected)) + epoch * len(expected)
    first, end = batched(here, batch_size=size, length=len(expected), parent_length=length)
    assert [list(range(low, high)) for low, high in zip(first, end, strict=True)] == expected


@pytest.mark.parametrize(
    "arithmetic",
    [
        lambda i: first_epoch(i, length=7),
        lambda i: strided(i, start=1, step=2, length=3, parent_length=7),
        lambda i: strided(i, start=6, step=-2, length=3, parent_length=7),
        lambda i: listed(i, np.array([4, 4, 0]) if isinstance(i, np.ndarray) else [4, 4, 0], parent_length=7),
        lambda i: batched(i, batch_size=4, length=2, parent_length=7)[0],
        lambda i: batched(i, batch_size=4, length=2, parent_length=7)[1],
        lambda i: strided(i, start=0, step=1, length=10, parent_length=2**63 - 1),
    ],
)
def test_python_integers_and_arrays_agree(arithmetic):
    near = [0, 1, 2, 3, 6, 7, 20, 10**12, -1, -8]
    far = [2**62, 2**63 - 1, -(2**62), 5]  # what becomes of them may need more than 64 bits
    for numbers in (near, far, *([number] for number in near + far)):
        before = np.array(numbers)
        assert arithmetic(before).tolist() == [int(arithmetic(number)) for number in numbers]
        assert before.tolist() == numbers
