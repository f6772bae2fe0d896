"""Elements that fail are skipped, if that is wanted: all others come, in order, and the count is part of the state."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.case_counts import cases
from helpers.stepped_executor import Stepped
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base.errors import TooManySkipped
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor, Threads
from bushel.experimental import FlatMapIterDataset, FlatMapTransform, ThreadPrefetchIterDataset
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

EXECUTORS = {
    "inline": lambda: None,
    "stepped": lambda: Stepped(1),
    "threads": lambda: Threads(2),
    "processes": lambda: Processes(2),
}

laws = settings(max_examples=cases(12, 40), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def warm() -> Iterator[dict[str, Executor | None]]:
    executors = {name: make() for name, make in EXECUTORS.items()}
    yield executors
    for executor in executors.values():
        if executor is not None:
            executor.close()


def opened(ds: Any, executor: Executor | None, **options: Any) -> PipelineIterator[Any]:
    return PipelineIterator(ds.with_options(on_error="skip", **options)._node, bushel.ReadOptions(0, 0), executor)


class FailAt:
    """The identity, but for some numbers."""

    def __init__(self, bad: Any):
        self.bad = frozenset(bad)

    def __call__(self, x: Any, *_: Any) -> Any:
        if int(np.max(x)) in self.bad:
            raise ValueError(f"no {x}")
        return x


class Accept(FailAt):
    """Says yes to all numbers, but for some at which it fails."""

    def __call__(self, x: Any, *_: Any) -> Any:
        return super().__call__(x) is not None


class Split(FlatMapTransform):
    max_fan_out = 2

    def __init__(self, bad: Any):
        self.fail = FailAt(bad)

    def flat_map(self, x: Any) -> list[Any]:
        return [self.fail(x)] * (1 + x % 2)


def shuffled(length: int) -> Any:
    return bushel.MapDataset.range(length).shuffle(seed=5)


LENGTH = 60
PLACES = {
    "map": lambda bad: shuffled(LENGTH).map(FailAt(bad)).to_iter_dataset(),
    "map of a stream": lambda bad: shuffled(LENGTH).to_iter_dataset().map(FailAt(bad)),
    "filter": lambda bad: shuffled(LENGTH).to_iter_dataset().filter(Accept(bad)),
    "random_map": lambda bad: shuffled(LENGTH).to_iter_dataset().random_map(FailAt(bad), seed=1),
    "after a mixture": lambda bad: bushel.IterDataset.mix([shuffled(LENGTH).to_iter_dataset()]).map(FailAt(bad)),
    "before a mixture": lambda bad: bushel.IterDataset.mix([shuffled(LENGTH).to_iter_dataset().map(FailAt(bad))]),
    "before rows that are drawn ahead": lambda bad: bushel.IterDataset.mix(
        [shuffled(LENGTH).to_iter_dataset().map(FailAt(bad))]
    ).map(FailAt([])),
    "before and among rows that are drawn ahead": lambda bad: bushel.IterDataset.mix(
        [shuffled(LENGTH).map(FailAt([x for x in bad if x % 2])).to_iter_dataset()]
    ).map(FailAt(bad)),
    "before a thread": lambda bad: ThreadPrefetchIterDataset(
        shuffled(LENGTH).to_iter_dataset().map(FailAt(bad)), prefetch_buffer_size=3
    ),
}


def run(it: Any) -> tuple[list[Any], list[str]]:
    elements, states = [], [json.dumps(it.get_state())]
    for element in it:
        elements.append(element)
        states.append(json.dumps(it.get_state()))
    return elements, [*states, json.dumps(it.get_state())]


@pytest.mark.parametrize("place", PLACES)
@laws
@given(bad=st.sets(st.integers(0, LENGTH - 1)), batch=st.integers(0, 4), start=st.integers(0, 40))
@example(bad={4, 6, 10, 15, 20, 35, 37, 39, 54}, batch=4, start=0)  # a row fails, and one is skipped right behind it
def test_all_others_come_with_the_same_states_on_every_executor(warm, place, bad, batch, start):
    ds = PLACES[place](bad)
    good = [x for x in shuffled(LENGTH) if x not in bad]
    if batch:
        ds = ds.batch(batch)
        good = [np.array(good[at : at + batch]) for at in range(0, len(good), batch)]
    expected = None
    for name, executor in warm.items():
        with opened(ds, executor) as it:
            found = run(it)
            assert it.skipped == len(bad), name
        assert same(found[0], good), name
        expected = expected or found
        assert found[1] == expected[1], name
        start %= len(good) + 1
        with opened(ds, executor) as it:
            it.set_state(json.loads(expected[1][start]))
            again = run(it)
            assert it.skipped == len(bad)
        assert same(again[0], good[start:]), name
        assert again[1] == expected[1][start:], name


@pytest.mark.parametrize("name", EXECUTORS)
def test_counts_that_an_operation_depends_on_include_what_failed_there(warm, name):
    ds = bushel.MapDataset.range(20).to_iter_dataset().map(FailAt([3])).map_with_index(lambda i, x: FailAt([7])((i, x)))
    with opened(ds, warm[name]) as it:
        found = list(it)
        assert it.skipped == 2
    # Element 3 never came to map_with_index; element 7 came, as number 6, and failed there.
    assert found == [(x - (x > 3), x) for x in range(20) if x not in (3, 7)]


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_batch_of_a_map_dataset_is_skipped_whole(warm, name):
    ds = bushel.MapDataset.range(20).map(FailAt([7])).batch(5).to_iter_dataset()
    with opened(ds, warm[name]) as it:
        assert [batch.tolist() for batch in it] == [list(range(low, low + 5)) for low in (0, 10, 15)]
        assert it.skipped == 1


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_function_that_makes_batches_or_parts_may_fail(warm, name):
    def total(rows: list[int]) -> int:
        return FailAt([9])(max(rows)) and sum(rows)

    ds = bushel.MapDataset.range(20).to_iter_dataset().batch(5, batch_fn=total)
    with opened(ds, warm[name]) as it:
        assert list(it) == [10, 60, 85]
        assert it.skipped == 1
    ds = FlatMapIterDataset(bushel.MapDataset.range(6).to_iter_dataset(), Split([3]))
    with opened(ds, warm[name]) as it:
        assert list(it) == [0, 1, 1, 2, 4, 5, 5]


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("place", PLACES)
def test_beyond_the_limit_it_raises_in_its_place_and_again(warm, name, place):
    order = list(shuffled(LENGTH))
    bad = [order[5], order[20], order[40]]
    with opened(PLACES[place](bad), warm[name], skip_limit=2) as it:
        found = [next(it) for _ in range(38)]
        assert found == [x for x in order[:40] if x not in bad]
        before = it.get_state()
        for _ in range(2):
            with pytest.raises(TooManySkipped, match=rf"2 elements were skipped already.*\n.*no {order[40]}"):
                next(it)
            assert it.get_state() == before and it.skipped == 2
        raised_limit = PLACES[place](bad)
    with opened(raised_limit, warm[name], skip_limit=3) as it:
        it.set_state(before)
        assert list(it) == order[41:]


@pytest.mark.parametrize("at", [0, 17])
def test_an_element_that_kills_workers_is_skipped_too(at):
    def kill(x: int) -> int:
        if x == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    ds = bushel.MapDataset.range(40).map(kill).to_iter_dataset().map(FailAt([3, 30])).batch(4)
    executor = Processes(2)
    with opened(ds, executor) as it:
        found = np.concatenate(list(it)).tolist()
        assert it.skipped == 3
    executor.close()
    assert found == [x for x in range(40) if x not in (3, at, 30)]


def test_a_state_of_a_run_that_did_not_skip_goes_on_with_one_that_does(warm):
    ds = bushel.MapDataset.range(20).map(FailAt([10])).to_iter_dataset()
    with iter(ds) as it, pytest.raises(ValueError, match="no 10"):
        list(it)
    state = it.get_state()
    with opened(ds, None) as skipping:
        skipping.set_state(state)
        assert list(skipping) == list(range(11, 20))


@pytest.mark.parametrize("name", EXECUTORS)
def test_the_first_skip_and_each_tenfold_number_are_logged(warm, name, caplog):
    ds = bushel.MapDataset.range(200).map(FailAt(range(150))).to_iter_dataset()
    with caplog.at_level(logging.WARNING, "bushel"), opened(ds, warm[name]) as it:
        list(it)
    told = [record.getMessage() for record in caplog.records if "Skipped" in record.getMessage()]
    assert [message.partition("\n")[0] for message in told] == [
        "Skipped element 0 of the output (1 skipped so far): ValueError: no 0",
        "Skipped element 9 of the output (10 skipped so far): ValueError: no 9",
        "Skipped element 99 of the output (100 skipped so far): ValueError: no 99",
    ]
    assert "ValueError: no 0" in told[0] and "made of record 0" in told[0]


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"skip_limit": -1}, {"skip_limit": 1.5}])
def test_bad_options_are_refused(options):
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        bushel.MapDataset.range(3).to_iter_dataset().with_options(**options)


class LockAt(FailAt):
    """The identity, but for some numbers, in whose place comes what cannot leave a process."""

    def __call__(self, x: Any, *_: Any) -> Any:
        return threading.Lock() if int(np.max(x)) in self.bad else x


class Counting(bushel.DatasetIterator[int]):
    def __init__(self) -> None:
        super().__init__()
        self.row = 0

    def __next__(self) -> int:
        if self.row == LENGTH:
            raise StopIteration
        self.row += 1
        return self.row - 1

    def get_state(self) -> dict[str, Any]:
        return {"row": self.row}

    def set_state(self, state: dict[str, Any], *, check: bool = True) -> None:
        self.row = state["row"]


class OfCounting(bushel.IterDataset[int]):
    def __iter__(self) -> Counting:
        return Counting()


UNSENDABLE = {
    "map": lambda bad: numbers(LENGTH).map(LockAt(bad)),
    "batches": lambda bad: bushel.MapDataset.range(LENGTH).batch(2).map(LockAt(bad)).map(first_of).to_iter_dataset(),
    "counted": lambda bad: numbers(LENGTH).filter(lambda x: True).map_with_index(lambda i, x: x).map(LockAt(bad)),
    "a stream run whole": lambda bad: bushel.IterDataset.mix([OfCounting().map(LockAt(bad))]),
}


def numbers(length: int) -> Any:
    return bushel.MapDataset.range(length).to_iter_dataset()


def first_of(x: Any) -> Any:
    return int(x[0]) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("stream", UNSENDABLE)
@pytest.mark.parametrize("bad", [{0}, {1}, {LENGTH - 1}, {7, 8, 9, 31}, set(range(LENGTH)), set(range(1, LENGTH, 2))])
def test_elements_that_cannot_be_sent_are_skipped(warm, stream, bad):
    ds = UNSENDABLE[stream](bad)
    good = [x for x in range(LENGTH) if x not in bad]
    if stream == "batches":
        good = [x for x in range(0, LENGTH, 2) if x + 1 not in bad]
    count = (LENGTH // 2 if stream == "batches" else LENGTH) - len(good)
    with opened(ds, warm["processes"]) as it:
        found, states = run(it)
        assert found == good
        assert it.skipped == count
    for number in {0, len(good) // 2, len(good)}:
        with opened(ds, warm["processes"]) as it:
            it.set_state(json.loads(states[number]))
            assert list(it) == good[number:]


def test_elements_that_cannot_be_sent_count_for_the_limit(warm):
    with (
        opened(UNSENDABLE["map"]({3, 5, 7}), warm["processes"], skip_limit=2) as it,
        pytest.raises(TooManySkipped, match="cannot be sent from a worker process"),
    ):
        list(it)
