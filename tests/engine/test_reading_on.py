"""Batches after a filter that the consumer computes itself: one block fills a batch, and nothing is computed ahead."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.engine.program import Runner

HERE = bushel.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def batches(stays, size, touch=lambda x: x, **options):
    """Batches of the positions at which `stays` is True. `touch` sees each position before the filter does."""
    ds = bushel.MapDataset.source(list(range(len(stays)))).map(touch).map(lambda x: x).filter(lambda x: stays[x])
    return ds.to_iter_dataset(HERE).batch(size).with_options(**options)


def split_kept(stays, size):
    kept = [position for position, stay in enumerate(stays) if stay]
    return [kept[start : start + size] for start in range(0, len(kept), size)]


verdicts = st.lists(st.sampled_from([True, True, True, False]), min_size=1, max_size=80)


@settings(max_examples=150, deadline=None)
@given(stays=verdicts, size=st.integers(1, 20))
def test_a_batch_takes_the_elements_up_to_its_last_one_each_once(stays, size):
    seen = []
    it = iter(batches(stays, size, lambda x: seen.append(x) or x))
    expected = split_kept(stays, size)
    for batch in expected:
        assert next(it).tolist() == batch
        # A batch that is full ends with its last element. The last batch also looks for elements that are not there.
        end = batch[-1] + 1 if len(batch) == size else len(stays)
        assert seen == list(range(end))
        assert it.get_state()["next_index"] == end
    assert list(it) == []


@settings(max_examples=60, deadline=None)
@given(stays=verdicts, size=st.integers(1, 20), data=st.data())
def test_a_state_goes_on_with_the_next_batch(stays, size, data):
    expected = split_kept(stays, size)
    taken = data.draw(st.integers(0, len(expected)))
    it = iter(batches(stays, size))
    for _ in range(taken):
        next(it)
    other = iter(batches(stays, size))
    other.set_state(it.get_state())
    assert [batch.tolist() for batch in other] == expected[taken:]


class Failure(Exception):
    pass


@settings(max_examples=100, deadline=None)
@given(stays=verdicts, size=st.integers(1, 20), once=st.booleans(), data=st.data())
def test_an_error_comes_with_the_batch_of_its_element(stays, size, once, data):
    bad = data.draw(st.integers(0, len(stays) - 1))
    left = [1] if once else [1 << 30]

    def fail(x):
        if x == bad and left[0]:
            left[0] -= 1
            raise Failure(x)
        return x

    # The batches that are full before the element that fails.
    whole = [batch for batch in split_kept(stays, size) if len(batch) == size and batch[-1] < bad]
    it = iter(batches(stays, size, fail))
    for batch in whole:
        assert next(it).tolist() == batch
    with pytest.raises(Failure) as caught:
        next(it)
    assert f"bushel: this was element {bad} of the output." in caught.value.__notes__
    if once:  # it is tried again, and now succeeds
        assert [batch.tolist() for batch in it] == split_kept(stays, size)[len(whole) :]


@settings(max_examples=60, deadline=None)
@given(stays=verdicts, size=st.integers(1, 20), data=st.data())
def test_an_element_that_fails_is_skipped_and_counted(stays, size, data):
    bad = data.draw(st.integers(0, len(stays) - 1))

    def fail(x):
        if x == bad:
            raise Failure(x)
        return x

    without = [stay and position != bad for position, stay in enumerate(stays)]
    it = iter(batches(stays, size, fail, on_error="skip"))
    for batch in split_kept(without, size):
        assert next(it).tolist() == batch
        end = batch[-1] + 1 if len(batch) == size else len(stays)
        assert it.skipped == (bad < end)
    assert list(it) == []


def test_one_block_fills_a_batch(monkeypatch):
    blocks = []
    make = Runner.make

    def noted(self, low, high, *limit):
        rows = make(self, low, high, *limit)
        blocks.append((low, self.high))
        return rows

    monkeypatch.setattr(Runner, "make", noted)
    it = iter(batches([x % 7 != 3 for x in range(700)], 256))
    first, second = next(it), next(it)
    assert blocks == [(0, int(first[-1]) + 1), (int(first[-1]) + 1, int(second[-1]) + 1)]


def test_a_filter_that_drops_everything_is_still_refused():
    nothing = bushel.MapDataset.source([1]).repeat().filter(lambda x: False).to_iter_dataset(HERE).batch(1000)
    with pytest.raises(ValueError, match=r"dropped 100\.00 % of the last 1000 elements"):
        next(iter(nothing.with_options(filter_raise_threshold_ratio=1.0)))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 2500), first=st.integers(0, 1200), ratio=st.sampled_from([0.3, 0.5, 0.9]))
def test_filters_are_judged_at_the_same_element_for_any_size_of_a_batch(size, first, ratio):
    """From element `first` on, nine of ten are dropped."""
    stays = [x < first or x % 10 == 0 for x in range(4000)]
    dropped = [sum(not stay for stay in stays[start : start + 1000]) for start in range(0, 4000, 1000)]
    refused = next(1000 * (window + 1) for window in range(4) if dropped[window] >= 1000 * ratio)
    whole = [batch for batch in split_kept(stays, size) if len(batch) == size and batch[-1] < refused - 1]
    it = iter(batches(stays, size, filter_raise_threshold_ratio=ratio))
    for batch in whole:
        assert next(it).tolist() == batch
    with pytest.raises(ValueError, match=r"of the last 1000 elements"):
        next(it)
