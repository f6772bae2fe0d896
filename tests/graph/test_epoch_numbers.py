"""The number of an epoch, and going to an element by its number: both against reading from the start."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bushel
from bushel import MapDataset
from bushel.testing import same

TWO = bushel.MultiprocessingOptions(num_workers=2)


def ten():
    return MapDataset.range(10).shuffle(seed=1).map(lambda x: x)


# Each pipeline with the number of its elements in one epoch, which is a whole number.
PIPELINES = {
    "not repeated": (lambda: ten(), 10),
    "repeat": (lambda: ten().repeat(), 10),
    "repeat last": (lambda: ten().batch(4).repeat(3), 3),
    "repeat before batch": (lambda: ten().repeat().batch(5), 2),
    "repeat of a mixture": (lambda: MapDataset.mix([ten(), ten()]).repeat(), 20),
    "repeat of a concatenation": (lambda: (ten() + ten()).repeat().batch(2), 10),
    "split": (lambda: ten().split([0.8, 0.2])[0].repeat(), 8),
    "where": (lambda: ten().where(lambda x: x > 3).repeat().batch(3), 2),
    "same epochs": (lambda: ten().repeat(4, reseed_each_epoch=False), 10),
    "steps of the stream": (lambda: ten().repeat().to_iter_dataset().map(str).batch(2).seed(1), 5),
    "random map": (lambda: ten().repeat().to_iter_dataset().random_map(lambda x, rng: x, seed=2), 10),
}
STREAMS_ONLY = {
    "repeat of a stream": (lambda: ten().to_iter_dataset().filter(lambda x: x > 3).repeat(3), 6),
    "windows of whole epochs": (lambda: ten().repeat().to_iter_dataset().window_shuffle(10, seed=1), 10),
}


def stream_of(build):
    ds = build()
    return ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds


@pytest.mark.parametrize("name", [*PIPELINES, *STREAMS_ONLY])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_is_the_number_of_epochs_that_are_over(name, workers):
    build, length = {**PIPELINES, **STREAMS_ONLY}[name]
    ds = stream_of(build).mp_prefetch(TWO) if workers else stream_of(build)
    with iter(ds) as it, iter(ds) as restored:
        for count in range(3 * length if name != "not repeated" else length):
            # A stream knows that an epoch has ended only when it is asked for more.
            later = count if name not in STREAMS_ONLY else max(0, count - 1)
            assert it.epoch in {count // length, later // length}
            restored.set_state(it.get_state())
            assert restored.epoch == it.epoch
            next(it)
            assert it.epoch >= count // length


@pytest.mark.parametrize("name", PIPELINES)
@given(steps=st.lists(st.integers(0, 25), min_size=1, max_size=4), read=st.integers(0, 3))
def test_a_sought_element_is_the_one_that_reading_gives(name, steps, read):
    ds = stream_of(PIPELINES[name][0])
    with iter(ds) as it:
        expected = list(itertools.islice(it, 30))
    with iter(ds) as it:
        for step in steps:
            if step > len(expected):
                with pytest.raises(IndexError, match=f"There is no element {step}"):
                    it.seek(step)
                return
            it.seek(step)
            assert same(list(itertools.islice(it, read)), expected[step : step + read])
        it.seek(steps[0])
        state, epoch = it.get_state(), it.epoch
    with iter(ds) as it:
        list(itertools.islice(it, steps[0]))
        assert it.get_state() == state and it.epoch == epoch


def test_an_iterator_can_seek_to_an_epoch_far_away():
    with iter(ten().batch(5).repeat()) as it:
        it.seek(2 * 10**15)
        assert it.epoch == 10**15 and sorted([*next(it), *next(it)]) == list(range(10))


@pytest.mark.parametrize(
    "ds",
    [
        ten().filter(lambda x: x > 3).to_iter_dataset(),
        ten().to_iter_dataset().filter(lambda x: x > 3),
        ten().to_iter_dataset().repeat(2),
        ten().to_iter_dataset().window_shuffle(4, seed=1).map(str),
        ten().filter(lambda x: x > 3).to_iter_dataset().batch(2).mp_prefetch(TWO),
    ],
    ids=repr,
)
def test_where_numbers_are_not_known_seek_says_so(ds):
    with iter(ds) as it:
        first = next(it)
        with pytest.raises(
            NotImplementedError, match="`seek` needs a pipeline that knows its elements by their number"
        ):
            it.seek(3)
        assert not same(first, next(it))  # it goes on as if nothing had happened


def test_what_is_no_step_is_refused():
    it = iter(ten())
    for wrong in (-1, 1.5, "2"):
        with pytest.raises((TypeError, ValueError), match="step must be"):
            it.seek(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ds",
    [
        MapDataset.mix([ten().repeat(), ten().repeat()]).to_iter_dataset(),
        bushel.IterDataset.mix([ten().to_iter_dataset(), ten().repeat().to_iter_dataset()]),
    ],
    ids=repr,
)
def test_where_parts_have_epochs_of_their_own_the_epoch_is_an_error(ds):
    with iter(ds) as it, pytest.raises(NotImplementedError, match="have no number: its parts have epochs of their own"):
        it.epoch  # noqa: B018


def test_iterators_that_are_not_bushels_have_no_epoch():
    class Own(bushel.DatasetIterator):
        def __next__(self):
            return 1

        def get_state(self):
            return {}

        def set_state(self, state, *, check: bool = True):
            pass

    with pytest.raises(NotImplementedError, match="Own does not know the number of its epoch"):
        Own().epoch  # noqa: B018
    with pytest.raises(NotImplementedError, match="`seek` needs"):
        Own().seek(1)
