"""Autotuning: it finds the number of workers, stays with it, and nobody can tell from the output."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
from helpers import strategies
from helpers.recipes import as_stream
from helpers.waiting import SOON_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.measurements import SMALL_WAIT_SHARE
from bushel._src.engine.pool.autotune import MAX_STRETCH, Tuned, Tuner
from bushel._src.engine.processes.executor import Processes, ProcessSupervisor
from bushel._src.engine.program import Result
from bushel._src.engine.tasks import Ticket
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


def two_of_three(x: int) -> bool:
    time.sleep(0.0002)
    return x % 3 > 0


def moved(x: int, rng: Any) -> int:
    return x + int(rng.integers(1000))


# The judgement, on machines that are formulas.


class Machine:
    """Each worker makes `each` rows a second, all together `at_most`; the consumer could take `demand`."""

    def __init__(self, each: float, at_most: float, demand: float, seed: int):
        self.each, self.at_most, self.demand = each, at_most, demand
        self.noise = random.Random(seed)

    def supply(self, workers: int) -> float:
        return min(self.each * workers, self.at_most)

    def rate(self, workers: int) -> float:
        return min(self.supply(workers), self.demand)

    def window(self, workers: int) -> dict[str, float]:
        rate = self.rate(workers)
        busy = rate / self.supply(workers)
        return {
            "rate": rate * self.noise.uniform(0.98, 1.02),
            "waiting": max(0.0, 1 - rate / self.demand),
            "busy": busy,
        }


@settings(max_examples=300, deadline=None)
@given(
    most=st.integers(1, 64),
    each=st.floats(10, 1000),
    limit=st.floats(0.7, 100),
    demand=st.floats(0.2, 100),
    seed=st.integers(0, 99),
)
def test_the_tuner_settles_on_workers_that_gain_something(most, each, limit, demand, seed):
    machine = Machine(each, at_most=limit * each, demand=demand * each, seed=seed)
    tuner = Tuner(most)
    history = [tuner.judge(**machine.window(tuner.workers)) for _ in range(40)]
    best = machine.rate(most)
    enough = next(n for n in range(1, most + 1) if machine.rate(n) >= (1 - SMALL_WAIT_SHARE) * best)
    settled = max(set(history[-20:]), key=history[-20:].count)
    assert machine.rate(settled) >= (1 - SMALL_WAIT_SHARE) * best * 0.98, (
        f"settled on {settled}, {enough} would do: {history}"
    )
    assert settled <= math.ceil(1.35 * enough) + 1, f"settled on {settled}, {enough} would do: {history}"
    changes = sum(a != b for a, b in itertools.pairwise(history[-20:]))
    assert changes <= 4, history
    assert str(settled) in tuner.why or "waits" in tuner.why


def test_the_tuner_tries_again_when_the_data_changes():
    tuner = Tuner(4)
    easy, hard = Machine(100, 400, 50, 0), Machine(10, 40, 50, 0)
    for _ in range(20):
        tuner.judge(**easy.window(tuner.workers))
    assert tuner.workers == 1
    for _ in range(20):
        tuner.judge(**hard.window(tuner.workers))
    assert tuner.workers == 4


def test_workers_that_rest_while_the_consumer_waits_work_further_ahead():
    tuner = Tuner(4)
    held_up = {"rate": 100.0, "waiting": 0.5, "busy": 0.4}
    assert [(tuner.judge(**held_up), tuner.stretch) for _ in range(3)] == [(1, 2), (1, 4), (2, 4)]
    busy, waiting = Tuner(4), Tuner(4)
    busy.judge(rate=100, waiting=0.5, busy=0.95)
    waiting.judge(rate=100, waiting=0.05, busy=0.4)
    assert (busy.stretch, waiting.stretch) == (1, 1)


# The pool: growing and parking.


class Fickle(Tuned):
    """Changes its mind all the time."""

    def __init__(self, pool: Processes, seed: int):
        super().__init__(pool)
        self._random = random.Random(seed)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        self._pool.resize(self._random.randint(1, self.parallelism))
        return self._pool.wait(ticket)

    def stretch(self) -> int:
        return self._random.randint(1, MAX_STRETCH)


@pytest.fixture(scope="module")
def fickle() -> Iterator[Fickle]:
    executor = Fickle(Processes(4, at_first=1), seed=1)
    yield executor
    executor.close()


def told(it: Any, most: int) -> tuple[list[Any], list[str], str | None]:
    """Elements, the states after them, and the error that ended it, if any: a zip of unequal streams has one."""
    elements, states = [], []
    try:
        for element in itertools.islice(it, most):
            elements.append(element)
            states.append(json.dumps(it.get_state()))
    except ValueError as error:
        return elements, states, str(error)
    return elements, states, None


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(recipe=strategies.recipes())
def test_the_output_does_not_depend_on_it(fickle, recipe):
    ds = as_stream(recipe, bushel)
    with PipelineIterator(ds._node, bushel.ReadOptions(0, 0)) as it:
        expected = told(it, 40)
    with PipelineIterator(ds._node, bushel.ReadOptions(0, 0), fickle) as it:
        found = told(it, 40)
    assert same(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_workers_that_die_while_others_are_parked_lose_nothing():
    # A block of a dead worker may be waited for by a later one on a worker that is not parked.
    ds = bushel.MapDataset.range(1500).to_iter_dataset().filter(two_of_three).random_map(moved, seed=1)
    chance = random.Random(5)
    for seed in range(2):
        executor = Fickle(Processes(4, at_first=4), seed)
        found = []
        with PipelineIterator(ds._node, None, executor) as it:
            for number, element in enumerate(it):
                found.append(element)
                if number % 60 == 0:
                    with contextlib.suppress(ProcessLookupError, IndexError):
                        os.kill(chance.choice(executor._pool.pids()), signal.SIGKILL)
        executor.close()
        assert found == list(ds)


def test_parked_workers_get_nothing_to_do_until_they_are_needed():
    def who(x: int) -> int:
        time.sleep(0.002)
        return os.getpid()

    pool = Processes(3, at_first=1)
    ds = bushel.MapDataset.range(10**6).map(who).to_iter_dataset()
    with PipelineIterator(ds._node, None, pool) as it:

        def workers_until(count: int) -> None:
            deadline = time.monotonic() + SOON_S
            while len({next(it) for _ in range(100)}) != count:
                assert time.monotonic() < deadline

        workers_until(1)
        assert len(pool.pids()) == 1
        pool.resize(3)
        workers_until(3)
        assert pool.all_have_finished_one()
        pool.resize(2)
        workers_until(2)
        assert len(pool.pids()) == 3
        pool.resize(99)
        workers_until(3)
    pool.close()


def test_as_many_workers_as_the_system_allows_will_do(monkeypatch, caplog):
    start = ProcessSupervisor._start_worker

    def no_room(supervisor: ProcessSupervisor, index: int) -> None:
        if index:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(supervisor, index)

    monkeypatch.setattr(ProcessSupervisor, "_start_worker", no_room)
    pool = Processes(3, at_first=1)
    ds = bushel.MapDataset.range(100).to_iter_dataset()
    with PipelineIterator(ds._node, None, pool) as it:
        head = [next(it)]
        pool.resize(3)
        assert head + list(it) == list(range(100))
    pool.close()
    assert "No more than 1 worker processes could be started" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# The whole, live. Bounded in time; nothing is said about speed.


def slow(x: int) -> int:
    time.sleep(0.003)
    return x


@pytest.mark.parametrize("ds", ["mp_prefetch()", "num_workers=None"])
def test_a_slow_map_gets_more_workers(monkeypatch, ds):
    monkeypatch.setattr("bushel._src.engine.opener.count_cores", lambda: 3)
    stream = bushel.MapDataset.range(1_000_000).map(slow).to_iter_dataset()
    none = bushel.MultiprocessingOptions(num_workers=None)
    stream = stream.mp_prefetch() if ds == "mp_prefetch()" else stream.mp_prefetch(none)
    with iter(stream) as it:
        deadline = time.monotonic() + SOON_S
        elements = iter(it)
        pool = None
        for expected, element in enumerate(elements):
            assert element == expected
            (pool,) = it.report().pools
            if pool.size > 1 and "times as fast as" in pool.why:
                break
            assert time.monotonic() < deadline, pool
        assert pool and f"{pool.size} workers, chosen by Bushel: " in str(it.report())


def mostly_quick(x: int) -> int:
    time.sleep(0.2 if x % 40 == 0 else 0.001)
    return x


def test_slow_elements_that_hold_up_the_others_make_it_work_further_ahead(monkeypatch):
    monkeypatch.setattr("bushel._src.engine.pool.autotune.WINDOW_S", 0.1)
    executor = Tuned(Processes(3))
    executor._tuner.workers = 3
    stream = bushel.MapDataset.range(1_000_000).map(mostly_quick).to_iter_dataset()
    deadline = time.monotonic() + SOON_S
    with PipelineIterator(stream._node, None, executor) as it:
        for expected, element in enumerate(it):
            assert element == expected
            assert time.monotonic() < deadline, executor.report()
            if executor.stretch() > 1:
                break
    executor.close()


def test_a_consumer_that_is_the_limit_gets_one_worker(monkeypatch):
    judged: list[int] = []
    judge = Tuner.judge

    def noted(tuner: Tuner, **window: float) -> int:
        judged.append(judge(tuner, **window))
        return judged[-1]

    monkeypatch.setattr(Tuner, "judge", noted)
    monkeypatch.setattr("bushel._src.engine.opener.count_cores", lambda: 3)
    monkeypatch.setattr("bushel._src.engine.pool.autotune.WINDOW_S", 0.1)
    deadline = time.monotonic() + SOON_S
    with iter(bushel.MapDataset.range(1_000_000).batch(4).to_iter_dataset().mp_prefetch()) as it:
        while judged[-5:] != [1] * 5:
            next(it)
            time.sleep(0.005)
            assert time.monotonic() < deadline, judged
        (pool,) = it.report().pools
    assert pool.size == 1
    assert "the consumer waits " in pool.why


def test_the_number_of_workers_is_left_out_of_the_repr_if_it_is_chosen_later():
    ds = bushel.MapDataset.range(3).to_iter_dataset().mp_prefetch()
    assert repr(ds).endswith(".mp_prefetch()")
    assert bushel.MultiprocessingOptions().num_workers == 0  # as in Grain
