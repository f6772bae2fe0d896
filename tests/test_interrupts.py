"""Ctrl-C and signal handlers in the middle of an element: nothing is lost, and the state is that of what was delivered.

A signal can come between any two lines. A tracer stands for it here: it acts at the line that a test has drawn.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import linecache
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from helpers import strategies
from helpers.recipes import as_stream
from helpers.stepped_executor import Stepped
from helpers.waiting import wait_until
from helpers.worker_pools import open_on
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import bushel
from bushel import experimental as ex
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Executor, Threads
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

laws = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
PACKAGE = str(Path(bushel.__file__).parent)
MOST = 9


@contextlib.contextmanager
def at_line(number: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Calls `act` once, before the line of Bushel's that is the `number`-th to run. Yields how many have run.

    Where Python itself hears no signal it does not act: between the body of a `with` and its end, and between the last
    lines of `next`.
    """
    seen = [0]

    def trace(frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        if code.co_qualname == "_CursorIterator.__next__":
            return trace if event == "call" else None
        if event == "line" and not linecache.getline(code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            seen[0] += 1
            if seen[0] == number:
                act()
        return trace

    before = sys.gettrace()
    gc.disable()  # nothing is heard in the finalizer of an iterator of before
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)
        gc.enable()


def interrupt() -> None:
    raise KeyboardInterrupt


def elements_of(ds: Any) -> list[Any]:
    with open_on(ds) as it:
        try:
            return list(itertools.islice(it, MOST))
        except Exception:
            assume(False)
            raise


def check_interrupted(ds: Any, line: int, executor: Executor | None = None) -> bool:
    """Interrupts a run at its `line`-th line, and goes on. Returns whether there are so many."""
    expected = elements_of(ds)
    found: list[Any] = []
    with open_on(ds, executor) as it:
        left, interrupted = line, False
        while len(found) < len(expected) and not interrupted:
            with at_line(left, interrupt) as lines:
                try:
                    found.append(next(it))
                except KeyboardInterrupt:
                    interrupted = True
            left -= lines[0]
        state, delivered = it.get_state(), len(found)
        found += itertools.islice(it, MOST - delivered)
    assert same(found, expected)
    check_goes_on(ds, state, expected[delivered:])
    return interrupted


def check_asked(ds: Any, line: int, executor: Executor | None = None) -> bool:
    """Asks for the state at the `line`-th line of a run. Returns whether there are so many."""
    expected = elements_of(ds)
    found: list[Any] = []
    told: list[Any] = []
    with open_on(ds, executor) as it:

        def ask() -> None:
            told.append((it.get_state(), len(found)))

        left = line
        while len(found) < len(expected):
            with at_line(left, ask) as lines:
                element = next(it)
            found.append(element)
            left -= lines[0]
    assert same(found, expected)
    for state, delivered in told:
        check_goes_on(ds, state, expected[delivered:])
    return bool(told)


def check_goes_on(ds: Any, state: Any, expected: list[Any]) -> None:
    with open_on(ds) as it:
        it.set_state(json.loads(json.dumps(state)))
        assert same(list(itertools.islice(it, len(expected))), expected)


@laws
@given(recipe=strategies.stream_recipes(), line=st.integers(1, 2000))
def test_an_interrupt_at_any_line_loses_nothing(recipe, line):
    check_interrupted(as_stream(recipe, bushel), line)


@laws
@given(recipe=strategies.stream_recipes(), line=st.integers(1, 2000))
def test_a_state_asked_for_at_any_line_is_that_of_what_was_delivered(recipe, line):
    check_asked(as_stream(recipe, bushel), line)


class Counted(bushel.IterDataset):
    """A stream of a user's own, which keeps its position in a way that is wrong in the middle of an element."""

    def __iter__(self) -> Any:
        return _CountedIterator()


class _CountedIterator(bushel.DatasetIterator):
    def __init__(self) -> None:
        super().__init__()
        self.position = 0

    def __next__(self) -> Any:
        self.position += 1
        for _ in range(3 * same([], [])):  # lines of Bushel's, for the tracer
            pass
        if self.position > MOST:
            raise StopIteration
        return self.position

    def get_state(self) -> Any:
        return {"position": self.position}

    def set_state(self, state: Any, *, check: bool = True) -> None:
        self.position = state["position"]


def numbers(length: int = 40) -> Any:
    return bushel.MapDataset.range(length).to_iter_dataset(bushel.ReadOptions(0, 0))


def none_at_seven(x: int) -> int | None:
    return None if x == 7 else x


class Split(ex.FlatMapTransform):
    max_fan_out = 3

    def flat_map(self, x: int) -> list[int]:
        return [x] * (x % 3)


def fails_at_five(x: int) -> int:
    return 1 // (x - 5) and x


PIPELINES = {
    "elements": lambda: numbers(),
    "map batches": lambda: bushel.MapDataset.range(40).batch(3).to_iter_dataset(),
    "batches": lambda: numbers().map(lambda x: x + 1).batch(3),
    "batches with a hole": lambda: bushel.MapDataset.range(40).map(none_at_seven).to_iter_dataset().batch(3),
    "counted after a filter": lambda: numbers().filter(lambda x: x % 3).random_map(lambda x, r: r.random(), seed=1),
    "batches after a filter": lambda: numbers().filter(lambda x: x % 3).batch(2).map(lambda x: x + 1),
    "a mixture": lambda: bushel.IterDataset.mix([numbers(), numbers().filter(lambda x: x % 2)], [2, 1]),
    "a zip": lambda: ex.ZipIterDataset([numbers(), numbers()]),
    "a flat map": lambda: numbers().pipe(ex.FlatMapIterDataset, Split()),
    "a window": lambda: ex.WindowShuffleIterDataset(numbers(), window_size=4, seed=1),
    "an interleave": lambda: ex.InterleaveIterDataset([numbers(3), numbers(2), numbers(9)], cycle_length=2),
    "an epoch after another": lambda: numbers(5).pipe(ex.RepeatIterDataset, num_epochs=3),
    "a limit": lambda: numbers().pipe(ex.LimitIterDataset, count=9),
    "other batches": lambda: numbers().batch(3).pipe(ex.RebatchIterDataset, batch_size=2),
    "a stream of the user's": lambda: Counted(),
    "streams of the user's": lambda: bushel.IterDataset.mix([Counted(), Counted()]),
    "elements that are skipped": lambda: numbers().map(fails_at_five).with_options(on_error="skip"),
    "pulled by a thread": lambda: ex.ThreadPrefetchIterDataset(numbers(), prefetch_buffer_size=2),
    "streams of the user's in turn": lambda: ex.InterleaveIterDataset([Counted(), Counted()], cycle_length=1),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the tracer acts in a __del__, too
@pytest.mark.parametrize("make", [lambda: None, Stepped], ids=["here", "stepped"])
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("check", [check_interrupted, check_asked])
def test_every_line_of_every_kind_of_stream(check, name, make):
    line = 1
    while check(PIPELINES[name](), line, make()):
        line += 1 + line // 6  # most of the later lines are those of the first elements, again
    assert line > 20  # there were some


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the tracer acts in a __del__, too
def test_a_stream_whose_opening_was_interrupted_leaves_the_next_one_alone():
    def interrupt() -> None:
        raise KeyboardInterrupt

    class Drawn(bushel.IterDataset):
        def __iter__(self) -> Any:
            return iter(numbers().map(lambda x: x + 1))

    line, stopped = 1, True
    while stopped:
        stopped = False
        with at_line(line, interrupt):
            try:
                iter(Drawn().batch(2).with_options(on_error="skip"))
            except KeyboardInterrupt:
                stopped = True
        with pytest.raises(ZeroDivisionError):  # it has none of the options of the other
            list(numbers().map(fails_at_five))
        line += 1
    assert line > 20


# ---------------------------------------------------------------------------------------------------------------------
# Real signals


class Signalling:
    """A thread that sends this one a signal every so often. The signal acts while `armed` is true.

    An interrupt disarms first. So none is raised behind the `try` that a test arms it in: there it would end pytest.
    """

    def __init__(self, every_s: float, act: Callable[[], None]):
        self._every_s, self._act = every_s, act
        self._done = threading.Event()
        self._to = threading.get_ident()
        self.armed = False

    @classmethod
    def interrupting(cls, every_s: float) -> Signalling:
        """Raises a KeyboardInterrupt, one each time that it was armed."""
        signalling = cls(every_s, lambda: signalling.interrupt())
        return signalling

    def interrupt(self) -> None:
        self.armed = False
        raise KeyboardInterrupt

    def _send(self) -> None:
        while not self._done.wait(self._every_s):
            signal.pthread_kill(self._to, signal.SIGUSR1)

    def _hear(self, *_: Any) -> None:
        if self.armed:
            self._act()

    def __enter__(self) -> Signalling:
        self._before = signal.signal(signal.SIGUSR1, self._hear)
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.armed = False
        self._done.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)


def slow(x: Any) -> Any:
    time.sleep(0.004)
    return x


def slow_and_random(x: Any, rng: Any) -> Any:
    time.sleep(0.004)
    return x, rng.random()


SLOW = {
    "batches": lambda: numbers(60).map(slow).batch(4),
    "batches after a filter": lambda: numbers(60).map(slow).filter(lambda x: x % 2).batch(4),
    "counted after a filter": lambda: numbers(60).filter(lambda x: x % 2).random_map(slow_and_random, seed=1),
    "work after an ordered operation": lambda: numbers(60).filter(lambda x: x % 2).batch(2).map(slow),
    "pulled by a thread": lambda: ex.ThreadPrefetchIterDataset(numbers(60).map(slow).batch(4), prefetch_buffer_size=2),
}
EXECUTORS = {"here": lambda: None, "threads": lambda: Threads(2), "processes": lambda: Processes(2)}


@pytest.mark.parametrize("where", EXECUTORS)
@pytest.mark.parametrize("name", SLOW)
def test_reading_on_after_ctrl_c_loses_nothing(name, where):
    with open_on(SLOW[name]()) as it:
        expected = list(it)
    executor = EXECUTORS[where]()

    def count_interrupts() -> int:
        found, interrupts, ended = [], 0, False
        with open_on(SLOW[name](), executor) as it, Signalling.interrupting(0.02) as signalling:
            while not ended:
                try:
                    signalling.armed = interrupts < 5
                    for element in it:
                        found.append(element)
                    signalling.armed = False
                    ended = True
                except KeyboardInterrupt:
                    interrupts += 1
        assert same(found, expected)
        return interrupts

    wait_until(count_interrupts)  # on a busy machine the signals of the first run may come too late
    if executor is not None:
        executor.close()


@pytest.mark.parametrize("where", EXECUTORS)
@pytest.mark.parametrize("name", SLOW)
def test_a_signal_handler_is_told_the_state_before_the_element_under_way(name, where):
    with open_on(SLOW[name]()) as it:
        expected = list(it)
    executor = EXECUTORS[where]()

    def ask_for_states() -> list[tuple[Any, int]]:
        """The states that a handler has asked for, and how many elements were delivered then."""
        found: list[Any] = []
        asked: list[tuple[Any, int]] = []
        with (
            open_on(SLOW[name](), executor) as it,
            Signalling(0.02, lambda: asked.append((it.get_state(), len(found)))) as signalling,
        ):
            signalling.armed = True
            for element in it:
                found.append(element)
        assert same(found, expected)
        return asked

    asked = wait_until(ask_for_states)  # on a busy machine the signals of the first run may come too late
    for state, delivered in asked[:: 1 + len(asked) // 5]:
        with open_on(SLOW[name]()) as it:
            it.set_state(state)
            rest = list(it)
            # The handler may have run after `next` had returned, and before the element was counted here.
            assert same(rest, expected[delivered:]) or same(rest, expected[delivered + 1 :])
    if executor is not None:
        executor.close()


def test_ctrl_c_does_not_wait_for_what_is_under_way():
    free = threading.Event()
    stuck = numbers(4).map(lambda x: free.wait(600) and x)
    begun = time.monotonic()
    with open_on(ex.ThreadPrefetchIterDataset(stuck, prefetch_buffer_size=1)) as it:
        with Signalling.interrupting(0.1) as signalling, pytest.raises(KeyboardInterrupt):
            signalling.armed = True
            next(it)
        assert time.monotonic() - begun < 300
        assert it.get_state()["next_index"] == 0
        free.set()
        assert list(it) == [0, 1, 2, 3]


def test_an_iterator_cannot_be_moved_from_inside_one_of_its_elements():
    its: list[Any] = []

    def meddling(x: int) -> int:
        if x == 2 and its:
            next(its[0])
        return x

    ds = numbers(5).map(meddling)
    its.append(open_on(ds))
    assert [next(its[0]), next(its[0])] == [0, 1]
    with pytest.raises(RuntimeError, match="A function of the pipeline cannot move it meanwhile"):
        next(its[0])
    it = its.pop()
    assert list(it) == [2, 3, 4]
