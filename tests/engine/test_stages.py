"""Work after an ordered operation: heavy work goes to workers again, streams of files are run by one worker each."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.places_to_run import ROWS_COME_HOME
from helpers.stepped_executor import Stepped
from helpers.waiting import wait_until
from helpers.worker_pools import open_on

import bushel
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Threads
from bushel._src.engine.where_to_run import SHIP_S, WhereToRun, are_worth_sending
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

HERE = os.getpid()
HEAVY_S = 1e-3


@pytest.fixture(scope="module")
def pool() -> Iterator[Processes]:
    executor = Processes(2)
    yield executor
    executor.close()


def numbers(length: int) -> Any:
    return bushel.MapDataset.range(length).to_iter_dataset()


def heavy(x: Any) -> Any:
    time.sleep(HEAVY_S)
    return x, os.getpid()


def light(x: Any) -> Any:
    return x, os.getpid()


class Lines(bushel.IterDataset):
    """A stream that can only be read in order, as of a file."""

    def __init__(self, name: int, length: int, fail_at: int | None = None, odd: Any = None):
        super().__init__()
        self.name, self.length, self.fail_at = name, length, fail_at
        self.odd = odd  # makes one more entry of the state

    def __iter__(self) -> Any:
        return _LinesIterator(self)


class _LinesIterator(bushel.DatasetIterator):
    def __init__(self, lines: Lines):
        super().__init__()
        self.lines, self.position = lines, 0

    def __next__(self) -> Any:
        if self.position == self.lines.length:
            raise StopIteration
        if self.position == self.lines.fail_at:
            raise OSError(f"line {self.position} of {self.lines.name} cannot be read")
        self.position += 1
        return {"name": self.lines.name, "line": self.position, "row": np.full(600, self.position)}

    def get_state(self) -> Any:
        return {"line": self.position} | ({"odd": self.lines.odd()} if self.lines.odd is not None else {})

    def set_state(self, state: Any, *, check: bool = True) -> None:
        self.position = state["line"]
        if self.lines.odd is not None:
            assert type(state["odd"]).__name__ == type(self.lines.odd()).__name__


def lines(*lengths: int, **more: Any) -> Any:
    return bushel.IterDataset.mix([Lines(name, length, **more) for name, length in enumerate(lengths)])


AFTER = {
    "a mixture": lambda: bushel.IterDataset.mix([numbers(60), numbers(60).filter(lambda x: x % 2)]),
    "a batch of what a filter left": lambda: numbers(300).filter(lambda x: x % 3).batch(2),
    "a stream of the user's": lambda: Lines(0, 60),
}


@pytest.mark.parametrize("after", AFTER)
def test_heavy_work_goes_to_workers(pool, after):
    with open_on(AFTER[after](), None) as it:
        expected = list(it)
    with open_on(AFTER[after]().map(heavy), pool) as it:  # a busy machine only makes it heavier
        found = list(it)
    assert same([element for element, _ in found], expected)
    assert {process for _, process in found} <= set(pool.pids())


@pytest.mark.parametrize("after", AFTER)
def test_work_that_is_not_worth_sending_comes_home_after_the_first_rows(pool, after):
    with open_on(AFTER[after](), None) as it:
        expected = list(it)
    with open_on(AFTER[after]().map(light), pool, ROWS_COME_HOME) as it:
        found = list(it)
    assert same([element for element, _ in found], expected)
    where = [process for _, process in found]
    out = where.index(HERE)
    assert 8 <= out <= 20 and set(where[:out]) <= set(pool.pids())  # measured there
    assert set(where[out:]) == {HERE}


@pytest.mark.parametrize("work", [heavy, light])
def test_the_seconds_of_the_first_rows_decide(pool, work):
    asked: list[list[float]] = []
    where = WhereToRun(sends_rows=lambda seconds: bool(asked.append(list(seconds))))
    with open_on(AFTER["a mixture"]().map(work), pool, where) as it:
        list(it)
    (row_seconds,) = asked  # once
    assert 8 <= len(row_seconds) <= 20
    if work is heavy:
        assert all(seconds > HEAVY_S / 2 for seconds in row_seconds)


def test_what_sending_takes_is_not_time_of_the_work(pool):
    asked: list[list[float]] = []
    where = WhereToRun(sends_rows=lambda seconds: bool(asked.append(list(seconds))))
    blank = numbers(30).window_shuffle(4, seed=1).map(lambda x: np.empty(16 << 20, np.uint8))  # 34 ms to send
    with open_on(blank, pool, where) as it:
        list(it)
    assert np.median(asked[0]) < 0


@pytest.mark.parametrize(
    ("seconds", "worth"),
    [
        ([1e-3] * 8, True),
        ([1e-5] * 8, False),
        ([0.1, 0.1, *[1e-5] * 6], False),  # slow at first: code is loaded, files are opened
        ([1e-5, 1e-5, *[1e-3] * 6], True),
        ([SHIP_S] * 8, False),
        ([-0.5] * 8, False),  # to send their bytes takes longer than the work
    ],
)
def test_rows_are_worth_sending_if_most_of_them_take_long(seconds, worth):
    assert are_worth_sending(seconds) is worth


def test_with_a_limit_of_time_light_work_stays_with_the_workers():
    executor = Processes(2, timeout_s=600)
    with open_on(AFTER["a mixture"]().map(light), executor, ROWS_COME_HOME) as it:
        assert {process for _, process in it} <= set(executor.pids())
    executor.close()


def load(index: int, count: int) -> None:
    sys._loaded = str


def use(x: Any) -> Any:
    return sys._loaded(x)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("num_workers", [2, None])
def test_work_that_workers_are_prepared_for_stays_with_them_however_light(after, num_workers):
    options = bushel.MultiprocessingOptions(num_workers=num_workers)
    with iter(AFTER[after]().map(use).mp_prefetch(options, worker_init_fn=load)) as it:
        found = list(it)
    assert same(found, list(AFTER[after]().map(str)))


def poisoned(x: Any) -> Any:
    if x[0] == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return light(x)


def hanging(x: Any) -> Any:
    if x[0] == 60:
        time.sleep(600)
    return light(x)


def test_a_row_that_kills_its_process_does_so_in_a_worker(pool):
    with open_on(numbers(300).filter(lambda x: True).batch(2).map(poisoned), pool) as it:
        assert [int(x[0]) for x, _ in itertools.islice(it, 4)] == [0, 2, 4, 6]
        state = it.get_state()
        with pytest.raises(bushel.WorkerDied, match=r"Computing an element of map\(poisoned @ .*\) killed"):
            next(it)
        assert it.get_state() == state


def test_a_row_that_takes_too_long_is_given_up_however_light_the_others():
    executor = Processes(2, timeout_s=2.0)
    with open_on(numbers(300).filter(lambda x: True).batch(2).map(hanging), executor) as it:
        assert len(list(itertools.islice(it, 30))) == 30
        with pytest.raises(bushel.WorkerDied, match=r"Computing an element of map\(hanging @ .*\) took longer than"):
            next(it)
    executor.close()


def test_an_element_of_a_stream_that_takes_too_long_has_no_number():
    executor = Processes(2, timeout_s=2.0)
    ds = bushel.IterDataset.mix([Lines(0, 30).map(_hanging_line), Lines(1, 30)])
    says = r"Computing an element of map\(_hanging_line @ .*\) took longer"
    with open_on(ds, executor) as it, pytest.raises(bushel.WorkerDied, match=says):
        list(it)
    executor.close()


def _hanging_line(element: Any) -> Any:
    if element["line"] == 7:
        time.sleep(600)
    return element


@pytest.mark.parametrize("work", [light, heavy])
def test_the_next_index_is_known_wherever_the_work_is_done(pool, work):
    ds = numbers(60).pipe(bushel.experimental.LimitIterDataset, count=50).map(work)
    with open_on(ds, pool) as it:
        for number in range(30):
            assert bushel.experimental.get_next_index(it) == number
            next(it)
        bushel.experimental.set_next_index(it, 5)
        assert next(it)[0] == 5 and bushel.experimental.get_next_index(it) == 6


def test_the_function_of_flat_map_runs_in_workers(pool):
    class Split(bushel.experimental.FlatMapTransform):
        max_fan_out = 3

        def flat_map(self, x: int) -> list[Any]:
            return [(x, part, os.getpid()) for part in range(x % 4)]

    ds = bushel.experimental.FlatMapIterDataset(numbers(50), Split())
    with open_on(ds, pool) as it:
        found = list(it)
    assert [(x, part) for x, part, _ in found] == [(x, part) for x in range(50) for part in range(x % 4)]
    assert {process for *_, process in found} <= set(pool.pids())


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("make", [Stepped, lambda: Threads(2), lambda: Processes(2)])
def test_states_are_the_same_before_and_after_work_goes_to_workers(after, make):
    ds = AFTER[after]().random_map(lambda x, rng: (time.sleep(HEAVY_S), x, rng.random())[1:], seed=5)
    with open_on(ds, None) as it:
        expected, states = [], [it.get_state()]
        for element in it:
            expected.append(element)
            states.append(it.get_state())
    executor = make()
    for start in (0, 3, 8, 20):
        with open_on(ds, executor) as it:
            it.set_state(json.loads(json.dumps(states[start])))
            found, seen = [], []
            for element in it:
                found.append(element)
                seen.append(it.get_state())
        assert same(found, expected[start:])
        assert seen == states[start + 1 :]
    executor.close()


def test_threads_take_elements_that_cannot_be_sent():
    with open_on(_Locks(40).map(lambda pair: heavy(pair[0])), executor := Threads(2)) as it:
        assert [x for x, _ in it] == list(range(40))
    executor.close()


class _Locks(Lines):
    def __init__(self, length: int):
        super().__init__(0, length)

    def __iter__(self) -> Any:
        class It(_LinesIterator):
            def __next__(self) -> Any:
                return super().__next__()["line"] - 1, threading.Lock()

        return It(self)


def test_heavy_work_on_elements_that_cannot_be_sent_stays_in_the_consumer(pool, caplog):
    with caplog.at_level(logging.WARNING, "bushel"), open_on(_Locks(40).map(lambda pair: heavy(pair[0])), pool) as it:
        found = list(it)
    assert [x for x, _ in found] == list(range(40))
    assert {process for _, process in found} == {HERE}
    assert "stays in this process: Elements cannot be sent to worker processes" in caplog.text


# ---------------------------------------------------------------------------------------------------------------------
# Streams that are run whole


def test_streams_of_a_mixture_are_run_by_workers_each_by_one(pool):
    ds = lines(40, 40, 40, 40)
    marked = bushel.IterDataset.mix([Lines(name, 40).map(light) for name in range(4)])
    with open_on(marked, pool) as it:
        found = list(it)
    with open_on(ds, None) as it:
        assert same([element for element, _ in found], list(it))
    homes = [{process for element, process in found if element["name"] == name} for name in range(4)]
    assert all(len(home) == 1 for home in homes)
    assert set.union(*homes) == set(pool.pids())


@pytest.mark.parametrize("make", [Stepped, lambda: Threads(2), lambda: Processes(2)])
def test_whole_streams_resume_anywhere(make):
    ds = lines(9, 14, 30).filter(lambda x: x["line"] % 4).batch(2)
    with open_on(ds, None) as it:
        expected, states = [], [it.get_state()]
        for element in it:
            expected.append(element)
            states.append(it.get_state())
        states.append(it.get_state())  # past the end
    executor = make()
    for start in range(len(expected) + 1):
        with open_on(ds, executor) as it:
            it.set_state(json.loads(json.dumps(states[start])))
            assert it.get_state() == states[start]
            found, seen = [], []
            for element in it:
                found.append(element)
                seen.append(it.get_state())
            assert [*seen, it.get_state()] == states[start + 1 :]
        assert same(found, expected[start:])
    executor.close()


def test_a_stream_goes_on_though_its_worker_is_parked():
    executor = Processes(2)
    with open_on(lines(3000, 3000), executor) as it:
        found = list(itertools.islice(it, 10))
        executor.resize(1)
        found.extend(it)
    executor.close()
    with open_on(lines(3000, 3000), None) as it:
        assert same(found, list(it))


def test_an_error_of_a_whole_stream_comes_in_its_place_and_again(pool):
    with open_on(lines(30, 30, fail_at=7), pool) as it:
        assert len(list(itertools.islice(it, 14))) == 14
        before = it.get_state()
        for _ in range(2):
            with pytest.raises(OSError, match="line 7 of 0 cannot be read"):
                next(it)
            assert it.get_state() == before


class Odd:
    """Of a module that workers cannot import."""


class NotSent:
    def __deepcopy__(self, memo: Any) -> NotSent:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


@pytest.mark.parametrize("odd", [Odd, lambda: lambda: 0, lambda: {1: np.zeros(3000)}], ids=["class", "lambda", "array"])
def test_states_may_hold_what_pickle_cannot_name(pool, odd):
    ds = lines(30, 40, odd=odd)
    with open_on(ds, None) as it:
        expected = list(it)
    with open_on(ds, pool) as it:
        found = list(itertools.islice(it, 9))
        state = it.get_state()
        assert same([*found, *it], expected)
        it.set_state(state)
        assert same(list(it), expected[9:])


def test_a_state_that_cannot_be_sent_is_an_error(pool):
    said = r"the state of .* cannot be sent from a worker process: it stays here"
    with open_on(lines(30, 40, odd=NotSent), pool) as it, pytest.raises(TypeError, match=said):
        next(it)
    with open_on(lines(30, 40), pool) as it:
        assert len(list(it)) > 30  # the workers are still there


class Unreadable:
    """Pickles well, and cannot be built again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_an_element_of_a_whole_stream_that_cannot_be_rebuilt(pool):
    def unreadable(x: Any) -> Any:
        return Unreadable() if x["line"] == 8 else x["line"]

    ds = bushel.IterDataset.mix([Lines(name, 30).map(unreadable) for name in range(2)])
    with open_on(ds, pool) as it:
        assert list(itertools.islice(it, 14)) == [1 + x // 2 for x in range(14)]
        for _ in range(2):
            with pytest.raises(ValueError, match="no number") as info:
                next(it)
            assert "could not be rebuilt" in "".join(info.value.__notes__)
    with open_on(ds.with_options(on_error="skip"), pool) as it:
        assert list(it) == [1 + x // 2 for x in range(60) if x // 2 != 7]
        assert it.skipped == 2


def test_whole_streams_survive_their_workers():
    ds = bushel.IterDataset.mix([Lines(name, 300).map(heavy) for name in range(3)])
    with open_on(lines(300, 300, 300), None) as it:
        expected = list(it)
    with Killing(every=40) as killing, open_on(ds, killing.executor) as it:
        found = [element for element, _ in killing.through(it)]
    assert same(found, expected)
    assert killing.kills > 5


def test_rows_sent_out_survive_workers():
    ds = bushel.IterDataset.mix([numbers(400), numbers(400)]).random_map(
        lambda x, rng: (heavy(x)[0], rng.random()), seed=3
    )
    with open_on(ds, None) as it:
        expected = list(it)
    with Killing(every=40) as killing, open_on(ds, killing.executor) as it:
        assert same(list(killing.through(it)), expected)
    assert killing.kills > 5


class Killing:
    """Two workers, one of which is killed with every so many elements, once it has done something."""

    def __init__(self, every: int):
        self.executor = Processes(2)
        self.kills = 0
        self._every = every

    def through(self, it: Iterator[Any]) -> Iterator[Any]:
        for number, element in enumerate(it):
            if number % self._every == 0:
                self._kill()
            yield element

    def _kill(self) -> None:
        for worker in [worker for worker in self.executor._supervisor.workers if worker.has_finished][:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
                self.kills += 1

    def __enter__(self) -> Killing:
        return self

    def __exit__(self, *error: Any) -> None:
        self.executor.close()


def test_closing_lets_streams_go(pool, tmp_path):
    class Open(Lines):
        def __iter__(self) -> Any:
            class It(_LinesIterator):
                def close(self) -> None:
                    (tmp_path / f"closed {os.getpid()}").touch()

            return It(self)

    with open_on(bushel.IterDataset.mix([Open(0, 10), Open(1, 10)]), pool) as it:
        assert len(list(itertools.islice(it, 2))) == 2
    del it
    with open_on(numbers(100).map(light), pool) as it:  # workers hear of it with what comes next
        list(it)
    homes = {f"closed {pid}" for pid in pool.pids()}
    assert wait_until(lambda: {path.name for path in tmp_path.iterdir()} == homes)
