"""Random pipelines in trouble: functions that raise or return None, limits, caches, tiny budgets, states moved around.

Whoever computes the elements, what comes out is the same: elements and their order, errors and their places, what
`next` gives after an error, how many elements were skipped, and the states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import itertools
import json
import logging
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
from helpers import recipes, strategies
from helpers.case_counts import cases
from helpers.places_to_run import DECISIONS
from helpers.recipes import Recipe
from helpers.stepped_executor import Stepped
from helpers.worker_pools import open_on
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base.blocks import rows_of
from bushel._src.base.errors import TooManySkipped
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor, Threads
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

MOST = 30
"""Elements that are read of a pipeline."""

BUDGETS = (1, 1 << 10, 1 << 16)
"""Bytes of shared memory that pools have: from none at all to a little."""

HANGS_S = 120.0

EXECUTORS: dict[str, Any] = {
    "stepped": lambda: Stepped(1, parallelism=2),
    "stepped, in order": lambda: Stepped(0),
    "threads": lambda: Threads(3),
    **{f"{count} processes": lambda count=count: Processes(count) for count in (1, 2, 3, 4)},
    **{f"2 processes, {size} bytes": lambda size=size: Processes(2, budget_bytes=size) for size in BUDGETS},
}


class Pools:
    """One executor of each kind for all pipelines, made when it is first used, and made anew after a hang."""

    def __init__(self) -> None:
        self._open: dict[str, Executor] = {}

    def __getitem__(self, name: str | None) -> Executor | None:
        if name is None:
            return None
        if name not in self._open:
            self._open[name] = EXECUTORS[name]()
        return self._open[name]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


@pytest.fixture(scope="module")
def pools() -> Iterator[Pools]:
    pools = Pools()
    yield pools
    pools.close()


class Hang(BaseException):
    """Nothing came for too long. It is no Exception, so that nothing of the library takes it for a user's error."""


@contextlib.contextmanager
def watchdog(pools: Pools) -> Iterator[None]:
    """What takes too long fails, with the stacks of all threads."""
    main = threading.get_ident()

    def bark(*_: Any) -> None:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            raise Hang(f"Nothing within {HANGS_S} s.\n{file.read()}")

    before = signal.signal(signal.SIGUSR1, bark)
    timer = threading.Timer(HANGS_S, signal.pthread_kill, [main, signal.SIGUSR1])
    timer.daemon = True
    timer.start()
    try:
        yield
    except Hang:
        with contextlib.suppress(Exception):
            pools.close()
        raise
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def built(recipe: Recipe, options: dict[str, Any]) -> Iterator[Any]:
    """The stream of a recipe, with caches of its own."""
    # A worker that was given up may write into a cache for a moment longer.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        ds = recipes.as_stream(recipe, bushel)
        yield ds.with_options(**options) if options else ds


@dataclasses.dataclass
class Event:
    """What one call of `next` gave, and what the iterator says afterwards."""

    kind: str
    value: Any
    skipped: int
    state: str


def in_words(error: Exception) -> tuple[str, str]:
    """The type of an error and its message. Of too many skipped elements: how many, and the user's own error."""
    said = str(error)
    if isinstance(error, TooManySkipped):  # which element it was, and of which records it is made, not all can say
        said = "\n".join(said.partition(" failed, and ")[2].splitlines()[:2])
    if said.startswith("Expected all input elements to have the same structure"):
        # Workers stack rows of one kind before they are cut into batches, so that a float is told as a float64[].
        said = said.splitlines()[0]
    return type(error).__name__, said


def events(it: PipelineIterator[Any], most: int = MOST) -> list[Event]:
    """What an iterator gives until it has ended or failed; both are asked twice."""
    found = [Event("start", None, it.skipped, json.dumps(it.get_state()))]
    last = 0
    while last < 2 and len(found) <= most:
        try:
            kind, value = "element", next(it)
        except StopIteration:
            kind, value, last = "end", None, last + 1
        except Exception as error:
            kind, value, last = "error", in_words(error), last + 1
        found.append(Event(kind, value, it.skipped, json.dumps(it.get_state())))
    return found


def check_same(found: list[Event], expected: list[Event], who: str) -> None:
    for number, (one, other) in enumerate(itertools.zip_longest(found, expected)):
        alike = one is not None and other is not None and one.kind == other.kind and same(one.value, other.value)
        assert alike, f"{who}: event {number} is {one} instead of {other}"
        assert (one.skipped, one.state) == (other.skipped, other.state), f"{who}: event {number} {one} for {other}"


def check_taken(recipe: Recipe, expected: list[Event]) -> None:
    """Random access, one by one and many at once, gives what iteration gives."""
    ds = recipes.build(recipe, bushel)
    given = [event.value for event in expected if event.kind == "element"]
    failed = next((event.value for event in expected if event.kind == "error"), None)
    try:
        rows = rows_of(ds.get(range(min(len(ds), MOST))))
    except Exception as error:
        assert failed is None or in_words(error) == failed
        return
    there = [row for row in rows if row is not None]
    assert len(ds) > MOST or failed is None
    assert same(there[: len(given)], given[: len(there)])


@dataclasses.dataclass(frozen=True)
class Plan:
    """A pipeline, its options, and how it is run."""

    recipe: Recipe
    options: dict[str, Any]
    names: list[str]
    place: str
    cuts: list[int]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    limits = st.sampled_from([None, None, None, 0, 2, 5, 12])
    skipping = st.builds(lambda limit: {"on_error": "skip", "skip_limit": limit}, limits)
    return Plan(
        draw(strategies.troubled_recipes()),
        draw(st.just({}) | skipping | skipping),
        draw(st.lists(st.sampled_from(sorted(EXECUTORS)), min_size=2, max_size=3, unique=True)),
        draw(st.sampled_from(sorted(DECISIONS))),
        draw(st.lists(st.integers(0, MOST), min_size=2, max_size=2)),
    )


def check(plan: Plan, pools: Pools) -> None:
    with built(plan.recipe, plan.options) as ds:
        with open_on(ds, None) as it:
            expected = events(it)
        with open_on(ds, None) as it:  # caches that are full tell the same
            check_same(events(it), expected, "a second time")
    elements = sum(event.kind == "element" for event in expected)
    if not plan.recipe.facts.stream and not plan.options:
        check_taken(plan.recipe, expected)
    where = DECISIONS[plan.place]
    for name, cut in zip(plan.names, itertools.cycle(plan.cuts)):
        cut %= elements + 1
        with built(plan.recipe, plan.options) as ds:
            with open_on(ds, pools[name], where) as it:
                check_same(events(it), expected, name)
            with open_on(ds, pools[name], where) as it:
                check_same(events(it), expected, f"{name}, a second time")
            with open_on(ds, pools[name], where) as it:
                it.set_state(json.loads(expected[cut].state))
                rest = events(it, MOST - cut)
                check_same(rest, _from(expected, cut), f"{name}, from element {cut} on")
    one, other = plan.names[:2]
    cut = plan.cuts[1] % (elements + 1)
    with built(plan.recipe, plan.options) as ds:
        with open_on(ds, pools[one], where) as it:
            for _ in range(cut):
                next(it)
            state = json.dumps(it.get_state())
        for name in (other, None):
            with open_on(ds, pools[name], where) as it:
                it.set_state(json.loads(state))
                check_same(events(it, MOST - cut), _from(expected, cut), f"from {one} to {name}, at {cut}")


def _from(expected: list[Event], cut: int) -> list[Event]:
    return [dataclasses.replace(expected[cut], kind="start", value=None), *expected[cut + 1 :]]


laws = settings(deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "bushel")


@settings(laws, max_examples=cases(30, 60))
@given(plan=plans())
def test_trouble_is_the_same_on_every_executor(pools, plan):
    with watchdog(pools):
        check(plan, pools)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@settings(laws, max_examples=5000)
@given(plan=plans())
def test_much_trouble_is_the_same_on_every_executor(pools, plan):
    with watchdog(pools):
        check(plan, pools)
