"""A stream that a thread pulls ahead: the same elements and states, in the same place after an error."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import grain
import pytest
from helpers import strategies
from helpers.processes import run_script
from helpers.recipes import as_stream
from helpers.waiting import SOON_S, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel import experimental as ex
from bushel.testing import check_resumes_anywhere, same

laws = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def pulling_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "bushel-pull"}


def run(it: Any, most: int) -> tuple[list[Any], list[Any], Any]:
    elements, states = [], [it.get_state()]
    try:
        for element in itertools.islice(it, most):
            elements.append(element)
            states.append(it.get_state())
    except Exception as error:
        return elements, states, (type(error), str(error))
    return elements, [*states, it.get_state()], None


@laws
@given(recipe=strategies.stream_recipes(), size=st.integers(0, 5), start=st.integers(0, 20))
def test_elements_and_states_are_those_of_the_stream(recipe, size, start):
    ds = as_stream(recipe, bushel)
    with iter(ds) as it:
        elements, states, failed = run(it, 20)
    pulled = ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=size)
    with iter(pulled) as it:
        found = run(it, 20)
    assert same(found[0], elements) and found[1:] == (states, failed)
    start %= len(elements) + 1
    for begin in (lambda: iter(pulled), lambda: ex.ThreadPrefetchDatasetIterator(iter(ds), size)):
        with begin() as it:
            next(it, None) if elements else None
            it.set_state(json.loads(json.dumps(states[start])))
            assert it.get_state() == states[start]
            found = run(it, 20 - start)
        assert same(found[0], elements[start:]) and found[1:] == (states[start:], failed)


def test_values_and_states_are_grains_and_move_both_ways():
    def build(lib: Any) -> Any:
        ds = lib.MapDataset.range(30).seed(3).to_iter_dataset()
        pulled = lib.experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3)
        return pulled.random_map(lambda x, rng: (x, rng.random())).batch(4)

    theirs = iter(build(grain))
    with iter(build(bushel)) as ours:
        for _ in range(3):
            assert same(next(ours), next(theirs))
        state = theirs.get_state()
        assert {key: value for key, value in ours.get_state().items() if key != "bushel"} == state
    with iter(build(bushel)) as ours:
        ours.set_state(state)
        assert same(list(ours), list(theirs))


def test_what_it_pulls_is_bounded():
    pulled: list[int] = []
    ds = bushel.MapDataset.range(100).map(lambda x: pulled.append(x) or x).to_iter_dataset(bushel.ReadOptions(0, 0))
    with iter(ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=4)) as it:
        assert not pulling_threads() and not pulled
        it.start_prefetch()
        wait_until(lambda: len(pulled) == 4)
        next(it)
        wait_until(lambda: len(pulled) == 5)
        time.sleep(0.05)
        assert len(pulled) == 5


class Own:
    """An iterator that knows nothing of Bushel."""

    def __init__(self) -> None:
        self.position = 0
        self.fail_at = -1

    def __iter__(self) -> Own:
        return self

    def __next__(self) -> int:
        if self.position == self.fail_at:
            raise OSError("not now")
        self.position += 1
        return self.position

    def get_state(self) -> Any:
        return {"position": self.position}

    def set_state(self, state: Any) -> None:
        self.position = state["position"]


def test_any_iterator_with_a_state_can_be_pulled_ahead():
    own = Own()
    with ex.ThreadPrefetchDatasetIterator(own, 3) as it:
        assert [next(it) for _ in range(5)] == [1, 2, 3, 4, 5]
        assert it.get_state() == {"position": 5}
        own_fails_from = 20
        own.fail_at = own_fails_from
        assert list(itertools.islice(it, 15)) == list(range(6, 21))
        for _ in range(2):
            with pytest.raises(OSError, match="not now"):
                next(it)
        assert it.get_state() == {"position": 20}
        own.fail_at = -1
        assert next(it) == 21


def test_a_thread_that_pulls_from_workers_resumes_anywhere():
    ds = bushel.MapDataset.range(30).to_iter_dataset().filter(lambda x: x % 3).batch(2)
    ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))
    check_resumes_anywhere(ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2), max_elements=6)


def test_closing_returns_although_the_stream_is_stuck():
    stuck = threading.Event()

    class Stuck(Own):
        def __next__(self) -> int:
            stuck.wait(600)
            return super().__next__()

    it = ex.ThreadPrefetchDatasetIterator(Stuck(), 2)
    it.start_prefetch()
    begun = time.monotonic()
    it.close()
    assert time.monotonic() - begun < SOON_S
    with pytest.raises(ValueError, match="closed"):
        next(it)
    stuck.set()
    wait_until(lambda: not pulling_threads())


def test_no_thread_outlives_its_iterator():
    it = iter(ex.ThreadPrefetchIterDataset(bushel.MapDataset.range(100).to_iter_dataset(), prefetch_buffer_size=2))
    next(it)
    assert pulling_threads()
    del it
    gc.collect()
    wait_until(lambda: not pulling_threads())


@pytest.mark.parametrize("size", [-1, 1.5, "2"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises((ValueError, TypeError), match="prefetch_buffer_size must be"):
        ex.ThreadPrefetchIterDataset(bushel.MapDataset.range(3).to_iter_dataset(), prefetch_buffer_size=size)


FORKING = ("-W", "ignore::DeprecationWarning")  # from Python 3.12 on, it warns of forks beside threads


@pytest.mark.parametrize(
    "made",
    ["iter(ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3))", "ex.ThreadPrefetchDatasetIterator(iter(ds), 3)"],
)
def test_a_forked_child_gets_an_error_and_does_no_harm(tmp_path, made):
    script = f"""
        import gc, os, signal, sys, time
        import bushel
        from bushel import experimental as ex

        ds = bushel.MapDataset.range(200).map(lambda x: time.sleep(1e-3) or x).to_iter_dataset(bushel.ReadOptions(0, 0))
        it = {made}
        found = [next(it) for _ in range(20)]
        child = os.fork()
        if not child:
            signal.alarm(100)
            for deed in (lambda: next(it), lambda: next(it), lambda: it.set_state(it.get_state())):
                try:
                    deed()
                except RuntimeError as error:
                    print(error, flush=True)
            it.close()
            del it
            gc.collect()
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        found += it
        print(found == list(range(200)))
    """
    code, out, err = run_script(tmp_path, script, *FORKING)
    assert (code, err) == (0, "")
    *said, ended, whole = out.splitlines()
    assert [line.startswith("This iterator belongs to the process that forked") for line in said] == [True] * 3
    assert (ended, whole) == ("7", "True")


# ---------------------------------------------------------------------------------------------------------------------
# Closing while a thread reads


class Gate:
    """A generator that waits at its third element, and tells how often it was closed, and in which thread."""

    def __init__(self) -> None:
        self.inside, self.open, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.closings: list[str] = []

    def elements(self) -> Iterator[int]:
        try:
            for number in range(100):
                if number == 2:
                    self.inside.set()
                    assert self.open.wait(SOON_S)
                yield number
        finally:
            self.closings.append(threading.current_thread().name)
            self.closed.set()


class OwnStream(bushel.IterDataset):
    """A dataset of the user's own class whose iterator cannot be closed while it is at work."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def __iter__(self) -> OwnIterator:
        return OwnIterator(self.gate)


class OwnIterator(bushel.DatasetIterator):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.elements = gate.elements()
        self.at = 0

    def __next__(self) -> int:
        self.at += 1
        return next(self.elements)

    def get_state(self) -> Any:
        return {"at": self.at}

    def set_state(self, state: Any, *, check: bool = True) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.elements.close()


READ = {
    "a generator": lambda gate: bushel.IterDataset.source(gate.elements),
    "a dataset of the user's own": lambda gate: OwnStream(gate).map(lambda x: x),
    "in an interleave": lambda gate: ex.InterleaveIterDataset([OwnStream(gate)], cycle_length=1),
}
AHEAD = {
    "prefetch": lambda ds: ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=8),
    "prefetch of prefetch": lambda ds: ex.ThreadPrefetchIterDataset(
        ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=8), prefetch_buffer_size=3
    ),
    "threads": lambda ds: ex.multithread_prefetch(ds, num_threads=2, buffer_size=4),
}


@pytest.mark.parametrize("ahead", ["prefetch", "prefetch of prefetch"])
@pytest.mark.parametrize("read", READ)
def test_leaving_a_with_block_leaves_the_closing_to_the_thread_that_reads(read, ahead):
    gate = Gate()
    with iter(AHEAD[ahead](READ[read](gate))) as it:
        assert next(it) == 0
        assert gate.inside.wait(SOON_S)
    assert not gate.closings
    gate.open.set()
    assert gate.closed.wait(SOON_S)
    wait_until(lambda: not pulling_threads())
    assert gate.closings == ["bushel-pull"]


@pytest.mark.parametrize("read", READ)
def test_an_iterator_may_be_closed_while_another_thread_asks_it_for_an_element(read):
    gate = Gate()
    it = iter(READ[read](gate))
    found: list[Any] = []

    def consume() -> None:
        with contextlib.suppress(ValueError):
            found.extend(it)

    consumer = threading.Thread(target=consume, name="consumer")
    consumer.start()
    assert gate.inside.wait(SOON_S)
    it.close()
    assert not gate.closings
    gate.open.set()
    consumer.join(SOON_S)
    assert gate.closings == ["consumer"]
    with pytest.raises(ValueError, match="closed"):
        next(it)


@pytest.mark.parametrize("read", READ)
def test_a_signal_handler_may_close_what_it_interrupts(read):
    gate = Gate()
    gate.open.set()
    it = iter(READ[read](gate))

    def close(*_: Any) -> None:
        it.close()

    class Interrupts(threading.Event):
        def set(self) -> None:
            signal.raise_signal(signal.SIGUSR1)

    gate.inside = Interrupts()
    before = signal.signal(signal.SIGUSR1, close)
    try:
        with pytest.raises(ValueError, match="closed"):
            for _ in range(10):
                next(it)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(gate.closings) == 1


def test_an_iterator_that_is_forgotten_while_its_thread_reads_is_closed_by_the_thread():
    gate = Gate()
    it = iter(AHEAD["prefetch"](READ["a generator"](gate)))
    next(it)
    assert gate.inside.wait(SOON_S)
    del it
    gc.collect()
    gate.open.set()
    assert gate.closed.wait(SOON_S)
    wait_until(lambda: not pulling_threads())
    assert len(gate.closings) == 1


@pytest.mark.parametrize("ahead", AHEAD)
@pytest.mark.parametrize("read", READ)
def test_a_with_block_may_be_left_at_any_moment(read, ahead):
    for number in range(10):
        gate = Gate()
        gate.open.set()
        with iter(AHEAD[ahead](READ[read](gate))) as it:
            for _ in range(number):
                next(it)
        assert not number or gate.closed.wait(SOON_S)
        assert len(gate.closings) <= 1
