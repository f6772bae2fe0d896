"""Sources whose records do not follow from the index alone are named once, and no others."""

from __future__ import annotations

import random
import sys
import warnings

import cloudpickle
import numpy as np
import pytest

import bushel
from bushel._src.graph import hidden_randomness

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(hidden_randomness, "_told", set())


class Sized:
    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.stream = iter(range(10**6))
        self.reads = 0

    def __len__(self):
        return 40


class DrawsFromTheGlobal(Sized):
    def __getitem__(self, index):
        return index + random.random()


class DrawsFromItsOwn(Sized):
    def __getitem__(self, index):
        return {"picture": np.zeros(4) + self.rng.random(), "label": index}


class DrawsManyAtOnce(Sized):
    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        return [index + np.random.rand() for index in indices]


class TakesTheNext(Sized):
    def __getitem__(self, index):
        return next(self.stream)


class CountsItsReads(Sized):
    def __getitem__(self, index):
        self.reads += 1
        return {"index": index, "reads": self.reads}


UNSTEADY = {
    DrawsFromTheGlobal: "DrawsFromTheGlobal draws from random",
    DrawsFromItsOwn: "DrawsFromItsOwn draws from a generator of its own, 'rng'",
    DrawsManyAtOnce: "DrawsManyAtOnce draws from np.random",
    TakesTheNext: "TakesTheNext does not use the index that it is given, and its records differ",
}


class Same(Sized):
    def __getitem__(self, index):
        return np.ones(3)


class Seeded(Sized):
    def __getitem__(self, index):
        return np.random.default_rng(index).random(3)


class SeedsItsOwn(Sized):
    def __getitem__(self, index):
        self.rng = np.random.default_rng(index)
        return self.rng.random()


class NotNumbers(Sized):
    def __getitem__(self, index):
        return {"nan": float("nan"), "array": np.array([np.nan, index]), "object": object(), "text": str(index)}


class ManyAtOnce(Sized):
    def __getitem__(self, index):
        raise NotImplementedError

    def __getitems__(self, indices):
        return [index * 2 for index in indices]


@pytest.fixture(autouse=True)
def no_other_calls(monkeypatch):
    """A thread that another test has left may be stuck in a call, and calls at the same time say nothing."""
    monkeypatch.setattr(hidden_randomness, "_running", [])


def texts_of(ds):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(ds)
    return [str(one.message) for one in caught]


def pipelines(kind):
    yield bushel.MapDataset.source(kind())
    yield bushel.MapDataset.source(kind()).shuffle(seed=1).repeat(2).batch(4)
    yield bushel.MapDataset.source(kind()).to_iter_dataset(bushel.ReadOptions(2, 8))
    yield bushel.MapDataset.mix([bushel.MapDataset.source(kind()), bushel.MapDataset.source(kind())])


@pytest.mark.parametrize("kind", UNSTEADY)
def test_an_unsteady_source_is_named_once(kind):
    for ds in pipelines(kind):
        hidden_randomness._told.clear()
        (text,) = texts_of(ds)
        assert text.startswith(UNSTEADY[kind]) and "with random_map" in text


@pytest.mark.parametrize("kind", [Same, Seeded, SeedsItsOwn, NotNumbers, ManyAtOnce])
def test_a_source_that_follows_its_index_is_not_named(kind):
    for ds in pipelines(kind):
        assert not texts_of(ds)


def test_two_reads_of_one_index_that_differ_are_named():
    ds = bushel.MapDataset.source(CountsItsReads())
    assert not texts_of(ds)
    (text,) = texts_of(ds)
    assert text.startswith("CountsItsReads gave two different records for index 0.")
    hidden_randomness._told.clear()
    assert len(texts_of(bushel.MapDataset.source(CountsItsReads()).repeat(2))) == 1


def test_workers_name_it_once_too():
    stream = bushel.MapDataset.source(DrawsFromItsOwn()).to_iter_dataset()
    (text,) = texts_of(stream.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
    assert text.startswith(UNSTEADY[DrawsFromItsOwn])


def test_no_record_is_read_twice_and_the_values_stay():
    source = CountsItsReads()
    assert [record["reads"] for record in bushel.MapDataset.source(source)] == list(range(1, 41))
    assert source.reads == 40
