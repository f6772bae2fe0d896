"""Functions that draw from random generators of their own are named once, and no others."""

from __future__ import annotations

import functools
import random
import sys
import threading
import warnings

import cloudpickle
import jax
import numpy as np
import pytest

import bushel
from bushel._src.graph import hidden_randomness
from bushel._src.graph.hidden_randomness import _follows, _read_position

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

RNG = np.random.default_rng(3)
TABLE = np.arange(100)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(hidden_randomness, "_told", set())


class Augment:
    def __init__(self, make):
        self.settings = {"rng": make()}

    def __call__(self, x):
        return x + self.settings["rng"].random()


class AsMap(bushel.transforms.Map):
    def __init__(self):
        self._rng = np.random.RandomState(1)

    def map(self, x):
        return x + self._rng.rand()


class MakesItLater:
    rng = None

    def __call__(self, x):
        if self.rng is None:
            self.rng = np.random.default_rng()
        return x + self.rng.random()


class Composition:
    def __init__(self, *steps):
        self.words = {str(number): number for number in range(1000)}
        self.steps = list(steps)

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


def with_default(x, rng=np.random.default_rng(1)):  # noqa: B008
    return x + rng.random()


def of_a_closure(rng):
    return lambda x: x + rng.integers(10)


def helper():
    return np.random.rand()


DRAWING = {
    "np.random": lambda x: x + np.random.rand(),
    "np.random, a picture": lambda x: x + np.random.normal(size=(224, 224, 3)).sum(),
    "random": lambda x: x + random.random(),
    "a helper": lambda x: x + helper(),
    "a method of the module": lambda x: random.choice([x, x]),
    "a global": lambda x: x + RNG.random(),
    "a closure": of_a_closure(np.random.default_rng(1)),
    "Philox": of_a_closure(np.random.Generator(np.random.Philox(1))),
    "a default": with_default,
    "an attribute": Augment(lambda: np.random.default_rng(1)),
    "a RandomState": Augment(lambda: random.Random(1)),
    "a partial": functools.partial(lambda rng, x: x + rng.random(), random.Random(1)),
    "a Map": AsMap(),
    "made in the first call": MakesItLater(),
    "deep inside": Composition(Composition(Composition(Augment(lambda: np.random.default_rng(1))))),
}


def seeded_by_index(x):
    rng = np.random.default_rng(x)
    return x + rng.random()


def seeds_the_global(x):
    np.random.seed(x)
    random.seed(x)
    return x + np.random.rand() + random.random()


class SeedsItsOwn:
    def __init__(self):
        self.rng = np.random.RandomState(1)

    def __call__(self, x):
        self.rng.seed(x)
        return x + self.rng.rand(3).sum()


KEY = jax.random.key(0)
QUIET = {
    "plain": lambda x: x + 1,
    "seeded by its element": seeded_by_index,
    "seeds the global ones": seeds_the_global,
    "seeds its own": SeedsItsOwn(),
    "a key of JAX": lambda x: x + jax.random.uniform(jax.random.fold_in(KEY, x)),
    "holds one and does not draw": lambda x: x if RNG is not None else RNG.random(),
}


@pytest.fixture(autouse=True)
def no_other_calls(monkeypatch):
    """A thread that another test has left may be stuck in a call, and calls at the same time say nothing."""
    monkeypatch.setattr(hidden_randomness, "_running", [])


def texts_of(ds):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(ds)
    return [str(one.message) for one in caught if "draws from" in str(one.message)]


def pipelines(f):
    yield bushel.MapDataset.range(40).map(f)
    yield bushel.MapDataset.range(40).map(lambda x: x).map(f).filter(lambda x: True)
    yield bushel.MapDataset.range(40).map(f).to_iter_dataset(bushel.ReadOptions(2, 8))
    yield bushel.MapDataset.range(40).to_iter_dataset().map(f).batch(4)


@pytest.mark.parametrize("name", DRAWING)
def test_a_function_that_draws_is_named_once(name):
    for ds in pipelines(DRAWING[name]):
        hidden_randomness._told.clear()
        (text,) = texts_of(ds)
        assert text.startswith("map(") and "Use random_map: it passes a generator" in text
        assert not texts_of(ds)


@pytest.mark.parametrize("name", ["np.random", "an attribute", "a helper"])
def test_a_function_is_warned_of_once_also_with_workers(name):
    ds = bushel.MapDataset.range(60).map(DRAWING[name]).to_iter_dataset()
    (text,) = texts_of(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
    assert text.startswith("map(") and "random_map" in text


@pytest.mark.parametrize("name", QUIET)
def test_a_function_that_does_not_draw_is_not_named(name):
    for ds in pipelines(QUIET[name]):
        assert not texts_of(ds)


def test_a_random_map_that_draws_from_what_it_is_given_is_not_named():
    ds = bushel.MapDataset.range(40).random_map(lambda x, rng: x + rng.random(), seed=1)
    assert not texts_of(ds)
    (text,) = texts_of(bushel.MapDataset.range(40).random_map(lambda x, rng: x + np.random.rand(), seed=1))
    assert text.startswith("random_map(")


def test_a_thread_that_draws_meanwhile_is_not_the_function():
    stop, drawn = threading.Event(), threading.Event()

    def draw():
        while not stop.is_set():
            np.random.rand()
            random.random()
            drawn.set()

    def waits(x):
        drawn.clear()
        drawn.wait(10)
        return x

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for ds in pipelines(waits):
            assert not texts_of(ds)
        assert texts_of(bushel.MapDataset.range(9).map(DRAWING["np.random"]))  # its code says so
    finally:
        stop.set()
        thread.join()


def test_nothing_is_watched_after_the_first_elements():
    node = bushel.MapDataset.range(1000).map(lambda x: x + 1)._node
    operation = node.operation
    assert operation.watched() is not operation
    assert [operation.watched().function(1) for _ in range(hidden_randomness.CALLS)][-1] == 2
    assert operation.watched() is operation


@pytest.mark.parametrize("make", [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox])
@pytest.mark.parametrize("count", [1, 2, 623, 624, 625, 100_000])
def test_a_position_follows_from_another_by_drawing_alone(make, count):
    rng = np.random.Generator(make(5))
    was = _read_position(rng)
    rng.random(count)
    assert _follows(was, _read_position(rng))
    other = np.random.Generator(make(6))
    other.random(count)
    assert not _follows(was, _read_position(other))
