"""How many elements were skipped is told alike by every executor, after each element, and after a restart anywhere."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.case_counts import cases
from helpers.places_to_run import DECISIONS
from helpers.stepped_executor import Stepped
from helpers.worker_pools import open_on
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel import experimental
from bushel._src.base.errors import TooManySkipped
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor, Threads
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

EXECUTORS = {
    "inline": lambda: None,
    "stepped": lambda: Stepped(1),
    "threads": lambda: Threads(3),
    "1 worker": lambda: Processes(1),
    "2 workers": lambda: Processes(2),
    "3 workers": lambda: Processes(3),
}

laws = settings(max_examples=cases(15, 40), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def warm() -> Iterator[dict[str, Executor | None]]:
    executors = {name: make() for name, make in EXECUTORS.items()}
    yield executors
    for executor in executors.values():
        if executor is not None:
            executor.close()


def total(x: Any) -> int:
    """The sum of all numbers in an element."""
    if isinstance(x, (dict, list, tuple)):
        return sum(map(total, x.values() if isinstance(x, dict) else x))
    return int(np.sum(x))


class Fails:
    """A function of an element that fails at some of them."""

    def __init__(self, salt: int):
        self.salt = salt

    def check(self, x: Any) -> int:
        number = (7 * total(x) + self.salt) % 11
        if self.salt and number < 2:
            raise ValueError(f"no {total(x)}")
        return number


class Mapped(Fails):
    def __call__(self, x: Any) -> Any:
        self.check(x)
        return x


class Kept(Fails):
    def __call__(self, x: Any) -> bool:
        return self.check(x) < 8


class Random(Fails):
    def __call__(self, x: Any, rng: np.random.Generator) -> int:
        self.check(x)
        return total(x) + int(rng.integers(5))


class AsSequence(Fails):
    def __call__(self, x: Any) -> dict[str, np.ndarray]:
        return {"t": np.full(1 + self.check(x) % 4, total(x))}


class Repeated(Fails, experimental.FlatMapTransform):
    max_fan_out = 3

    def flat_map(self, x: Any) -> list[Any]:
        return [total(x)] * (self.check(x) % 4)


class AsNumber(Fails):
    def __call__(self, x: Any) -> int:
        self.check(x)
        return total(x)


class Counting(bushel.DatasetIterator[int]):
    def __init__(self) -> None:
        super().__init__()
        self.row = 0

    def __next__(self) -> int:
        if self.row == 30:
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


def numbers(salt: int) -> Any:
    return bushel.MapDataset.range(40).map(Mapped(salt)).to_iter_dataset()


LEAVES = {
    "range": numbers,
    "shuffle": lambda salt: bushel.MapDataset.range(40).shuffle(seed=salt).map(Mapped(salt)).to_iter_dataset(),
    "own": lambda salt: OfCounting().map(Mapped(salt)),
}
STEPS = {
    "map": lambda ds, salt: ds.map(Mapped(salt)),
    "filter": lambda ds, salt: ds.filter(Kept(salt)),
    "random_map": lambda ds, salt: ds.random_map(Random(salt), seed=salt),
    "batch": lambda ds, salt: ds.map(AsNumber(salt)).batch(1 + salt % 4),
    "flat_map": lambda ds, salt: experimental.FlatMapIterDataset(ds, Repeated(salt)),
    "mix": lambda ds, salt: bushel.IterDataset.mix([ds, numbers(salt)], [0.6, 0.4]),
    "mix own": lambda ds, salt: bushel.IterDataset.mix([OfCounting().map(Mapped(salt)), ds]),
    "zip": lambda ds, salt: ds.zip(numbers(salt), strict=False),
    "interleave": lambda ds, salt: experimental.InterleaveIterDataset([ds, numbers(salt)], cycle_length=2),
    "window": lambda ds, salt: experimental.WindowShuffleIterDataset(ds, window_size=2 + salt, seed=salt),
    "first_fit": lambda ds, salt: experimental.FirstFitPackIterDataset(
        ds.map(AsSequence(salt)), length_struct={"t": 7}, num_packing_bins=1 + salt % 3
    ),
    "best_fit": lambda ds, salt: experimental.BestFitPackIterDataset(
        ds.map(AsSequence(salt)), length_struct={"t": 7}, num_packing_bins=1 + salt % 3
    ),
    "concat": lambda ds, salt: experimental.ConcatThenSplitIterDataset(
        ds.map(AsSequence(salt)), length_struct={"t": 5}
    ),
    "rebatch": lambda ds, salt: ds.map(AsNumber(salt)).batch(3).rebatch(2),
    "repeat": lambda ds, salt: ds.repeat(2),
    "cache": lambda ds, salt: ds.cache(),  # full from the second iterator on
    "a thread": lambda ds, salt: experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3),
}


@st.composite
def pipelines(draw: Any) -> Any:
    """Any leaf, and some steps after it; functions with salt 0 do not fail."""
    ds = LEAVES[draw(st.sampled_from(sorted(LEAVES)))](draw(st.integers(0, 10)))
    for step, salt in draw(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 10)), max_size=4)):
        ds = STEPS[step](ds, salt)
    return ds


def opened(ds: Any, executor: Executor | None, place: str = "as measured", **options: Any) -> PipelineIterator[Any]:
    return open_on(ds.with_options(on_error="skip", **options), executor, DECISIONS[place])


def run(it: Any) -> tuple[list[Any], list[int], list[str]]:
    """The elements of an iterator; before each of them and at the end, how many were skipped, and the state."""
    elements, counts, states = [], [it.skipped], [json.dumps(it.get_state())]
    for element in it:
        elements.append(element)
        counts.append(it.skipped)
        states.append(json.dumps(it.get_state()))
    return elements, [*counts, it.skipped], [*states, json.dumps(it.get_state())]


@laws
@given(ds=pipelines(), start=st.integers(0, 200), place=st.sampled_from(["as measured", "rows go out after eight"]))
def test_counts_are_the_same_on_every_executor_and_after_a_restart(warm, ds, start, place):
    check_counts(warm, ds, start, place)


def check_counts(warm: dict[str, Executor | None], ds: Any, start: int, place: str) -> None:
    with opened(ds, None) as it:
        elements, counts, states = run(it)
    assert [json.loads(state)["skipped"] for state in states] == counts
    start %= len(states) - 1  # an iterator that has said that it is at its end is not asked to go on
    for name, executor in warm.items():
        with opened(ds, executor, place) as it:
            found = run(it)
            assert same(found[0], elements), name
            assert found[1:] == (counts, states), name
        with opened(ds, executor, place) as it:
            it.set_state(json.loads(states[start]))
            found = run(it)
            assert same(found[0], elements[start:]), name
            assert found[1:] == (counts[start:], states[start:]), name


def until_too_many(it: Any, shipped: bool) -> tuple[int, list[str]]:
    """After how many elements there were too many failures, and what was said, asked twice; or that there were not.

    Work that comes home goes operation by operation through the elements of a batch, so that of several that fail there
    another may be named: then it is left out which one it was.
    """
    number, told = 0, []
    while len(told) < 2:
        try:
            for _ in it:
                number += 1
            return number, ["the end"]
        except TooManySkipped as error:
            said = str(error).partition(" failed, and ")[2].splitlines()
            told.append(f"{said[: 1 + shipped]} {it.skipped}")
    return number, told


@laws
@given(
    ds=pipelines(),
    limit=st.integers(0, 30),
    start=st.integers(0, 200),
    place=st.sampled_from(["as measured", "rows go out after eight"]),
)
def test_the_skip_limit_is_reached_at_the_same_element_on_every_executor(warm, ds, limit, start, place):
    check_limit(warm, ds, limit, start, place)


def check_limit(warm: dict[str, Executor | None], ds: Any, limit: int, start: int, place: str) -> None:
    shipped = place == "rows go out after eight"
    with opened(ds, None, skip_limit=limit) as it:
        expected = until_too_many(it, shipped)
    start %= expected[0] + 1
    for name, executor in warm.items():
        with opened(ds, executor, place, skip_limit=limit) as it:
            found = until_too_many(it, shipped)
            assert found[0] == expected[0], name
            assert len(set(found[1])) == 1, name
        with opened(ds, executor, place, skip_limit=limit) as it:
            for _ in range(start):
                next(it)
            state = it.get_state()
        with opened(ds, executor, place, skip_limit=limit) as it:
            it.set_state(state)
            assert until_too_many(it, shipped) == (found[0] - start, found[1]), name


BAD = 14


def raises() -> None:
    raise ValueError("bad")


def kills() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    time.sleep(600)


class At:
    """The identity, but for one element, at which it does something else."""

    def __init__(self, do: Any):
        self.do = do

    def __call__(self, x: Any, *_: Any) -> Any:
        if total(x) == BAD:
            self.do()
        return x


def drawn(x: int, rng: np.random.Generator) -> tuple[int, int]:
    return x, int(rng.integers(1000))


FATAL_STEPS = {
    "map": lambda ds, bad: ds.map(bad),
    "filter": lambda ds, bad: ds.filter(lambda x: bad(x) is not None),
    "random_map": lambda ds, bad: ds.random_map(bad, seed=9),
}
FATAL_LEAVES = {
    "elements": lambda: bushel.MapDataset.range(30).to_iter_dataset(),
    "given rows": lambda: experimental.WindowShuffleIterDataset(
        bushel.MapDataset.range(30).to_iter_dataset().map(Mapped(3)), window_size=4, seed=1
    ),
}


# A shorter limit would hit the other elements, too, on a machine that is busy.
HANGS = [("map", "given rows"), ("random_map", "elements")]
FATAL = [
    pytest.param(
        do, timeout_s, step, leaf, marks=[pytest.mark.slow] if do is hangs and (step, leaf) not in HANGS else []
    )
    for do, timeout_s in ((kills, None), (hangs, 2.0))
    for step in FATAL_STEPS
    for leaf in FATAL_LEAVES
]


@pytest.mark.parametrize(("do", "timeout_s", "step", "leaf"), FATAL)
def test_an_element_that_kills_or_hangs_is_left_out_as_if_it_had_raised(leaf, step, do, timeout_s):
    def pipeline(do: Any) -> Any:
        ds = FATAL_LEAVES[leaf]().filter(lambda x: x % 4 != 1).random_map(lambda x, rng: x, seed=1)
        return FATAL_STEPS[step](ds, At(do)).random_map(drawn, seed=2).filter(lambda pair: pair[0] % 3 != 1)

    with opened(pipeline(raises), None) as it:
        elements, counts, states = run(it)
    executor = Processes(2, timeout_s=timeout_s)
    with opened(pipeline(do), executor, "rows go out after eight") as it:
        found = run(it)
    executor.close()
    there = list(FATAL_LEAVES[leaf]().with_options(on_error="skip"))
    assert BAD in there and counts[-1] == 30 - len(there) + 1
    assert found[:2] == (elements, counts)
    assert [position(state) for state in found[2]] == [position(state) for state in states]


def position(state: str) -> Any:
    """A state without the identity of its pipeline."""
    return {key: value for key, value in json.loads(state).items() if key != "bushel"}


def test_an_interrupt_in_the_middle_of_a_window_counts_no_skip_again():
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]

    def fail_at_three(x: int) -> int:
        if x == 3:
            raise ValueError("three")
        return x

    def interrupt(x: int) -> int:
        if x == 5 and interrupts:
            raise interrupts.pop()
        return x

    ds = bushel.MapDataset.range(20).map(fail_at_three).to_iter_dataset().window_shuffle(8, seed=1).map(interrupt)
    it, elements = iter(ds.with_options(on_error="skip")), []
    while len(elements) < 19:
        try:
            elements.append(next(it))
        except KeyboardInterrupt:
            continue  # the window is made again, with the element that fails
    assert sorted(elements) == [x for x in range(20) if x != 3]
    assert not interrupts and it.skipped == 1
