"""The law of private elements: an element shares no memory with anything else, whatever lies between it and its source.

`tests/helpers/private_pipelines.py` draws the pipelines, and models what they must give.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.private_pipelines import InMessages, find_difference

import bushel
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor, Threads


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    executor = Processes(2)
    yield executor
    executor.close()


@pytest.mark.parametrize("first", range(0, 150, 25))
def test_elements_are_private_in_the_consumer(first):
    for seed in range(first, first + 25):
        assert find_difference(seed, None) is None


@pytest.mark.parametrize("first", range(1000, 1100, 25))
def test_elements_are_private_where_results_travel_in_messages(first):
    for seed in range(first, first + 25):
        assert find_difference(seed, InMessages()) is None


def test_elements_are_private_in_threads():
    executor = Threads(1)  # the functions write into what they keep, which two threads may not do at once
    try:
        for seed in range(2000, 2025):
            assert find_difference(seed, executor) is None
    finally:
        executor.close()


def test_elements_are_private_with_workers(workers):
    for seed in range(3000, 3025):
        assert find_difference(seed, workers) is None


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_elements_of_many_pipelines_are_private(workers):
    for seed in range(10_000, 30_000):
        executor = (None, InMessages(), None, workers if seed % 40 == 3 else InMessages())[seed % 4]
        assert find_difference(seed, executor) is None


def test_what_a_function_returns_that_only_reads_is_private():
    kept = [{"tokens": np.arange(5)}]
    ds = bushel.MapDataset.source(kept).map(lambda e: {"a": e["tokens"][:-1], "b": e["tokens"][1:], "c": e["tokens"]})
    for _ in range(3):
        element = ds[0]
        element["a"][:] = -1
        assert element["b"].tolist() == [1, 2, 3, 4] and element["c"].tolist() == [0, 1, 2, 3, 4]
        element["c"][:] = -1
    assert kept[0]["tokens"].tolist() == [0, 1, 2, 3, 4]


class Clipped:
    """Its method has the name of one that changes nothing."""

    def __init__(self) -> None:
        self.values = np.full(2, 8.0)

    def clip(self, low: float, high: float) -> float:
        self.values /= 2
        return float(self.values[0])


def test_a_method_of_a_class_of_the_users_may_write():
    ds = bushel.MapDataset.source([{"x": Clipped()}]).map(lambda e: e["x"].clip(0, 1))
    assert list(ds.repeat(3)) == [4.0] * 3 and ds.batch(1)[0].tolist() == [4.0]
