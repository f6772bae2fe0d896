"""Executors differ in where elements are computed, never in what comes out, and they leave nothing behind."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers import recipes, strategies
from helpers.case_counts import cases
from helpers.recipes import Recipe, build
from helpers.waiting import SOON_S, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.base.blocks import rows_of
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine import opener, where_to_run
from bushel._src.engine.program import Program
from bushel._src.engine.tasks import Ledger, Task, Threads
from bushel._src.engine.where_to_run import Trials, TriedThreads, WhereToRun
from bushel.engine import Executor, Ticket
from bushel.testing import check_resumes_anywhere, check_same_for_any_executor, same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

EXECUTORS = [(0, 0), (1, 1), (3, 7), (16, 500)]
executors = pytest.mark.parametrize("executor", EXECUTORS, ids=["inline", "1 thread", "3 threads", "16 threads"])
threaded = pytest.mark.parametrize("executor", EXECUTORS[1:], ids=["1 thread", "3 threads", "16 threads"])

laws = settings(
    max_examples=cases(50, 100),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


ALL_ARE_SLOW = WhereToRun(
    make_trials=lambda most: Trials(most, slow_s=0.0, computed_s=0.0),
    make_threads=lambda most: TriedThreads(most, least_gain=0.0),
)
"""Lets threads read from the fourth element on, however quick the elements are."""


def opened(ds: Any, executor: tuple[int, int]) -> Any:
    """An iterator of a MapDataset that runs on an executor."""
    return iter(ds.to_iter_dataset(bushel.ReadOptions(*executor)))


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("bushel-read")}


def assert_end_soon(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(SOON_S)
    assert not [thread for thread in threads if thread.is_alive()]


class Counting:
    """The identity, and how often it was called with what; safe for threads."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, x: Any) -> Any:
        with self._changed:
            self.seen.append(x)
            self._changed.notify_all()
        return x

    def wait_for(self, count: int, timeout: float = SOON_S) -> bool:
        """Whether it is called `count` times within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.seen) >= count, timeout)


# ---------------------------------------------------------------------------------------------------------------------
# Laws: any executor, any place to stop


def told(it: Any, most: int) -> tuple[list[Any], list[str], Any]:
    """Elements, states, and the type of the error that ended it, if any."""
    elements, states = [], [json.dumps(it.get_state())]
    try:
        for element in itertools.islice(it, most):
            elements.append(element)
            states.append(json.dumps(it.get_state()))
    except Exception as error:
        return elements, [*states, json.dumps(it.get_state())], type(error)
    return elements, [*states, json.dumps(it.get_state())], None


def stream(recipe: Recipe, executor: tuple[int, int]) -> Any:
    threads, buffer = executor
    built = build(recipe, bushel, threads=threads, buffer=buffer)
    return built if recipe.facts.stream else built.to_iter_dataset(bushel.ReadOptions(threads, buffer))


@laws
@given(recipe=strategies.recipes(), executor=st.sampled_from([(1, 1), (2, 3), (3, 7)]))
def test_threads_change_neither_elements_nor_states(recipe, executor):
    with iter(stream(recipe, (0, 0))) as one, iter(stream(recipe, executor)) as other:
        other.start_prefetch()
        inline, in_threads = told(one, 30), told(other, 30)
    assert same(in_threads[0], inline[0])
    assert in_threads[1:] == inline[1:]


@laws
@given(recipe=strategies.recipes())
def test_a_run_resumed_anywhere_goes_on_unchanged(recipe):
    ds = stream(recipe, (0, 0))
    if told(iter(ds), 12)[2] is None:
        check_resumes_anywhere(ds, max_elements=12)


@laws
@given(recipe=strategies.recipes(), cut=st.integers(0, 30))
def test_a_resumed_run_has_the_states_of_the_uninterrupted_one(recipe, cut):
    ds = stream(recipe, (0, 0))
    elements, states, failed = told(iter(ds), 30)
    cut %= len(elements) + 1
    again = iter(ds)
    again.set_state(json.loads(states[cut]))
    resumed = told(again, 30 - cut)
    assert same(resumed[0], elements[cut:])
    assert resumed[1:] == (states[cut:], failed)


@laws
@given(
    recipe=strategies.recipes(),
    executor=st.sampled_from([(0, 0), (0, 0), (2, 5)]),
    when=st.sets(st.integers(0, 20), min_size=1, max_size=4),
)
def test_setting_the_state_it_has_changes_nothing(recipe, executor, when):
    ds = stream(recipe, executor)
    with iter(ds) as one, iter(ds) as other:
        expected = told(one, 20)
        elements: list[Any] = []
        for number in range(len(expected[0])):
            if number in when:
                other.set_state(other.get_state())
            assert json.dumps(other.get_state()) == expected[1][number]
            elements.append(next(other))
    assert same(elements, expected[0])


@laws
@given(recipe=strategies.recipes(), there=st.integers(0, 20), back=st.integers(0, 20))
def test_going_back_reads_the_same_again(recipe, there, back):
    ds = stream(recipe, (2, 5))
    elements, states, _ = told(iter(ds), 20)
    there, back = (place % (len(elements) + 1) for place in (there, back))
    with iter(ds) as it:
        for place in (there, back):
            it.set_state(json.loads(states[place]))
            found = list(itertools.islice(it, len(elements) - place))
            assert same(found, elements[place:])


@laws
@given(recipe=strategies.map_recipes(), size=st.none() | st.integers(1, 5))
def test_elements_that_prove_slow_come_from_threads_unchanged(recipe, size):
    ds = build(recipe, bushel)

    def batches(**options: Any) -> Any:
        stream = ds.to_iter_dataset(**options)
        return stream if size is None else stream.batch(size, batch_fn=list)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opener, "_is_in_memory", lambda node: False)
        here, slow = batches(read_options=bushel.ReadOptions(0, 0)), batches()
        with iter(here) as one, PipelineIterator(slow._node, where=ALL_ARE_SLOW) as other:
            computed_here, proved_slow = told(one, 30), told(other, 30)
    assert same(proved_slow[0], computed_here[0])
    assert proved_slow[1:] == computed_here[1:]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(laws, max_examples=300)
@given(recipe=strategies.recipes())
def test_many_pipelines_are_the_same_on_every_executor(recipe):
    ds = stream(recipe, (0, 0))
    if told(iter(ds), 40)[2] is None:
        check_same_for_any_executor(ds, max_elements=40)


@executors
def test_two_iterators_do_not_know_each_other(executor):
    ds = bushel.MapDataset.range(50).shuffle(seed=1).random_map(recipes.moved, seed=2)
    expected = list(ds)
    one, other = opened(ds, executor), opened(ds, executor)
    found: tuple[list[Any], list[Any]] = ([], [])
    for number in range(50):
        found[0].append(next(one))
        if number % 3 == 0:
            found[1].append(next(other))
    found[1].extend(other)
    assert found == (expected, expected)


# ---------------------------------------------------------------------------------------------------------------------
# In-process, user functions run for what was asked, and for nothing else


def test_nothing_runs_before_it_is_asked_for():
    f = Counting()
    ds = bushel.MapDataset.range(100).shuffle(seed=1).map(f).batch(4).repeat()
    it = opened(ds, (0, 0))
    state = it.get_state()
    it.set_state(state)
    it.start_prefetch()
    bushel.experimental.set_next_index(it, 7)
    assert len(ds) and repr(ds) and repr(it)
    assert f.seen == []


def test_one_element_is_one_call():
    f = Counting()
    it = opened(bushel.MapDataset.range(1000).shuffle(seed=1).map(f), (0, 0))
    for asked in range(1, 130):  # past the first plans
        element = next(it)
        assert len(f.seen) == asked
        assert f.seen[-1] == element


def test_one_batch_is_as_many_calls_as_it_has_rows():
    f = Counting()
    it = opened(bushel.MapDataset.range(1000).shuffle(seed=1).map(f).batch(4), (0, 0))
    for asked in range(1, 20):
        assert next(it).tolist() == f.seen[-4:]
        assert len(f.seen) == 4 * asked


def test_a_stream_without_threads_computes_no_more_than_a_batch_needs():
    read, kept, seen = Counting(), Counting(), Counting()
    ds = bushel.MapDataset.range(100).map(read).to_iter_dataset(bushel.ReadOptions(0, 0))
    it = iter(ds.filter(lambda x: kept(x) % 2 == 1).map(seen).batch(3))
    assert next(it).tolist() == [1, 3, 5]
    assert (read.seen, kept.seen, seen.seen) == (list(range(6)), list(range(6)), [1, 3, 5])
    assert next(it).tolist() == [7, 9, 11]
    assert (read.seen, kept.seen) == (list(range(12)), list(range(12)))


def test_a_mixture_of_streams_reads_only_its_turn():
    left, right = Counting(), Counting()
    parts = [bushel.MapDataset.range(50).map(f).to_iter_dataset(bushel.ReadOptions(0, 0)) for f in (left, right)]
    it = iter(bushel.IterDataset.mix(parts, [3, 1]))
    found = [next(it) for _ in range(8)]
    assert sorted(found) == sorted(left.seen + right.seen)
    assert (len(left.seen), len(right.seen)) == (6, 2)


def test_single_access_and_take_read_what_was_asked():
    f = Counting()
    ds = bushel.MapDataset.range(100).map(f)
    assert ds[7] == 7 and f.seen == [7]
    ds.get([5, 3, 5])
    assert f.seen == [7, 5, 3, 5]
    assert ds.batch(3)[2].tolist() == [6, 7, 8] and f.seen[4:] == [6, 7, 8]


def test_a_part_of_a_mixture_that_is_not_asked_is_not_read():
    left, right = Counting(), Counting()
    ds = bushel.MapDataset.mix([bushel.MapDataset.range(9).map(left), bushel.MapDataset.range(9).map(right)])
    assert [ds[i] for i in (0, 2, 4)] == [0, 1, 2]
    assert (left.seen, right.seen) == ([0, 1, 2], [])


def test_an_element_is_split_once():
    f = Counting()
    split = recipes.as_class("flat_map", lambda x: [f(x)] * 3, bushel)
    ds = bushel.experimental.FlatMapMapDataset(bushel.MapDataset.range(5), split)
    assert len(list(opened(ds, (0, 0)))) == 15
    assert f.seen == list(range(5))


def test_a_selection_map_is_a_function_of_the_user_too():
    asked, read = Counting(), Counting()

    class Backwards(bushel.transforms.DatasetSelectionMap):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            return 0, 99 - asked(index)

    ds = bushel.MapDataset.select_from_datasets([bushel.MapDataset.range(100).map(read)], Backwards())
    it = opened(ds, (0, 0))
    assert [next(it), next(it)] == [99, 98]
    assert (asked.seen, read.seen) == ([0, 1], [99, 98])


# ---------------------------------------------------------------------------------------------------------------------
# Threads run ahead, but not far


@pytest.mark.parametrize("executor", [(1, 1), (1, 4), (3, 7), (4, 16), (8, 3)])
def test_threads_run_ahead_by_the_buffer_and_no_further(executor):
    f = Counting()
    with opened(bushel.MapDataset.range(1000).map(f), executor) as it:
        for delivered in range(4):
            if delivered:
                next(it)
            else:
                it.start_prefetch()
            allowed = delivered + executor[1]
            block = max(1, executor[1] // (2 * executor[0]))  # at most: room for less is left as it is
            assert f.wait_for(allowed - block if delivered else allowed)
            assert not f.wait_for(allowed + 1, timeout=0.05)
    assert len(set(f.seen)) == len(f.seen)


def test_the_check_of_running_ahead_can_fail():
    f = Counting()
    with opened(bushel.MapDataset.range(1000).map(f), (3, 8)) as it:
        it.start_prefetch()
        assert f.wait_for(8)
        assert not f.wait_for(9, timeout=0.05)
        for _ in range(5):
            next(it)
        assert f.wait_for(9)


@threaded
def test_start_prefetch_reads_before_the_first_element_is_asked_for(executor):
    f = Counting()
    with opened(bushel.MapDataset.range(10).map(f), executor) as it:
        it.start_prefetch()
        assert f.wait_for(1)
        assert it.get_state()["next_index"] == 0
        it.start_prefetch()  # again changes nothing
        assert list(it) == list(range(10))
    assert sorted(f.seen) == list(range(10))


@threaded
def test_several_elements_are_computed_at_once(executor):
    together = threading.Barrier(min(executor), timeout=SOON_S)

    def meet(x):
        together.wait()
        return x

    with opened(bushel.MapDataset.range(min(executor)).map(meet), executor) as it:
        assert list(it) == list(range(min(executor)))


def test_inline_runs_in_the_callers_thread_and_starts_none():
    before = reading_threads()
    ds = bushel.MapDataset.range(5).map(lambda x: threading.current_thread())
    assert set(opened(ds, (0, 0))) == {threading.current_thread()}
    assert set(opened(ds, (0, 5))) | set(opened(ds, (5, 0))) == {threading.current_thread()}
    assert reading_threads() <= before


# ---------------------------------------------------------------------------------------------------------------------
# Errors


class Breaks:
    """Fails for the elements in `at`, until they are taken out of it."""

    def __init__(self, *at: int):
        self.at = set(at)

    def __call__(self, x: int) -> int:
        if x in self.at:
            raise OSError(f"cannot read {x} now")
        return x


WHERE = {
    "map": lambda f, e: opened(bushel.MapDataset.range(20).map(f), e),
    "filter": lambda f, e: opened(bushel.MapDataset.range(20).filter(lambda x: f(x) >= 0), e),
    "random_map": lambda f, e: opened(bushel.MapDataset.range(20).random_map(lambda x, rng: f(x), seed=1), e),
    "mix": lambda f, e: opened(
        bushel.MapDataset.mix([bushel.MapDataset.range(0, 20, 2).map(f), bushel.MapDataset.range(1, 20, 2).map(f)]), e
    ),
    "selection map": lambda f, e: opened(
        bushel.MapDataset.select_from_datasets([bushel.MapDataset.range(20)], Selects(f)), e
    ),
    "source": lambda f, e: opened(bushel.MapDataset.source(Reads(f)), e),
    "source of many": lambda f, e: opened(bushel.MapDataset.source(ReadsMany(f)), e),
    "stream map": lambda f, e: iter(
        bushel.MapDataset.range(20).to_iter_dataset(bushel.ReadOptions(*e)).map(f).map_with_index(lambda i, x: x)
    ),
}


class Reads:
    def __init__(self, f):
        self.f = f

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.f(index)


class Selects(bushel.transforms.DatasetSelectionMap):
    def __init__(self, f):
        self.f = f

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return 0, self.f(index)


class ReadsMany(Reads):
    def __getitems__(self, indices):
        return [self.f(int(index)) for index in indices]


@executors
@pytest.mark.parametrize("where", WHERE)
def test_what_came_before_an_error_is_delivered_and_what_comes_after_is_not_lost(where, executor):
    f = Breaks(5, 6, 13, 19)
    with WHERE[where](f, executor) as it:
        found: list[Any] = []
        for broken in (5, 6, 13, 19):
            found += [next(it) for _ in range(broken - len(found))]
            assert found == list(range(broken))
            before = it.get_state()
            for _ in range(2):  # it fails as long as it is broken
                with pytest.raises(OSError, match=f"cannot read {broken} now"):
                    next(it)
                assert it.get_state() == before
            f.at.discard(broken)  # repaired
        found += list(it)
    assert found == list(range(20))


@executors
def test_an_error_in_a_batch_delivers_the_batches_before(executor):
    f = Breaks(9)
    with opened(bushel.MapDataset.range(20).map(f).batch(4), executor) as it:
        assert [next(it).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        before = it.get_state()
        with pytest.raises(OSError, match="cannot read 9 now"):
            next(it)
        assert it.get_state() == before
        f.at.clear()
        assert [batch.tolist() for batch in it] == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]


def test_an_error_in_an_iterator_of_the_user_loses_nothing_either():
    f = Breaks(9)

    class Numbers(bushel.IterDataset):
        def __iter__(self):
            return NumbersIterator()

    class NumbersIterator(bushel.DatasetIterator):
        def __init__(self):
            super().__init__()
            self.at = 0

        def __next__(self):
            if self.at == 20:
                raise StopIteration
            element = f(self.at)
            self.at += 1
            return element

        def get_state(self):
            return {"at": self.at}

        def set_state(self, state, *, check: bool = True):
            self.at = state["at"]

    with iter(Numbers().map(recipes.double).batch(4)) as it:
        assert [next(it).tolist() for _ in range(2)] == [[0, 2, 4, 6], [8, 10, 12, 14]]
        before = it.get_state()
        for _ in range(2):
            with pytest.raises(OSError, match="cannot read 9 now"):
                next(it)
            assert it.get_state() == before
        f.at.clear()
        assert [batch.tolist() for batch in it] == [[16, 18, 20, 22], [24, 26, 28, 30], [32, 34, 36, 38]]


@executors
def test_an_error_may_be_stepped_over(executor):
    with opened(bushel.MapDataset.range(8).map(Breaks(2, 5)), executor) as it:
        found = []
        while True:
            try:
                found.extend(it)
                break
            except OSError:
                bushel.experimental.set_next_index(it, bushel.experimental.get_next_index(it) + 1)
    assert found == [0, 1, 3, 4, 6, 7]


@executors
def test_an_error_says_which_element_it_was(executor):
    with opened(bushel.MapDataset.range(20).shuffle(seed=1).map(Breaks(7)), executor) as it:
        with pytest.raises(OSError) as caught:
            list(it)
        place = it.get_state()["next_index"]
    notes = "\n".join(caught.value.__notes__)
    assert f"element {place} of the output" in notes
    assert "record 7 of range(20)" in notes
    assert notes.count("of the output") == 1


@threaded
def test_what_is_no_exception_of_the_pipeline_gets_through(executor):
    def interrupt(x):
        if x == 3:
            raise KeyboardInterrupt
        return x

    with opened(bushel.MapDataset.range(6).map(interrupt), executor) as it:
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(KeyboardInterrupt):
            next(it)


# ---------------------------------------------------------------------------------------------------------------------
# Nothing is left behind


@threaded
def test_close_ends_the_threads(executor):
    before = reading_threads()
    it = opened(bushel.MapDataset.range(1000), executor)
    next(it)
    started = reading_threads() - before
    assert len(started) == executor[0]
    it.close()
    assert_end_soon(started)
    it.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(it)


@threaded
def test_dropping_an_iterator_ends_its_threads(executor):
    before = reading_threads()
    it = opened(bushel.MapDataset.range(1000), executor)
    next(it)
    started = reading_threads() - before
    assert len(started) == executor[0]
    del it
    gc.collect()
    assert_end_soon(started)


def test_an_iterator_read_to_its_end_or_lost_in_an_error_leaves_no_threads():
    before = reading_threads()
    ds = bushel.MapDataset.range(30).map(Breaks(20))
    for _ in range(10):
        with pytest.raises(OSError):
            list(opened(ds, (2, 4)))
        assert len(list(opened(ds[:20], (2, 4)))) == 20
    gc.collect()
    assert_end_soon(reading_threads() - before)


def test_parts_of_a_mixture_end_too():
    before = reading_threads()
    parts = [bushel.MapDataset.range(50).to_iter_dataset(bushel.ReadOptions(2, 4)) for _ in range(3)]
    with iter(bushel.IterDataset.mix(parts).map(recipes.double).batch(2)) as it:
        next(it)
        started = reading_threads() - before
        assert started
    assert_end_soon(started)


def test_close_does_not_wait_for_what_is_being_read():
    begun, go_on = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        assert go_on.wait(SOON_S)
        return x

    before = reading_threads()
    it = opened(bushel.MapDataset.range(100).map(slow), (2, 8))
    it.start_prefetch()
    assert begun.wait(SOON_S)
    started = reading_threads() - before
    at = time.monotonic()
    it.close()
    assert time.monotonic() - at < SOON_S / 2  # the read waits for SOON_S
    go_on.set()
    assert_end_soon(started)


@pytest.mark.parametrize("waits_for", ["a read under way", "a read not begun"])
def test_close_while_another_thread_waits(waits_for):
    begun, go_on = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        assert go_on.wait(SOON_S)
        return x

    it = opened(bushel.MapDataset.range(100).map(slow), (1, 8))
    it.start_prefetch()
    assert begun.wait(SOON_S)
    if waits_for == "a read not begun":
        bushel.experimental.set_next_index(it, 50)  # its read stands behind the one under way
    outcomes: list[Any] = []
    asking = threading.Event()

    def read() -> None:
        asking.set()
        try:
            outcomes.append(next(it))
        except BaseException as error:
            outcomes.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert asking.wait(SOON_S)
    closer = threading.Thread(target=it.close)
    closer.start()
    closer.join(SOON_S)
    assert not closer.is_alive()
    go_on.set()
    reader.join(SOON_S)
    assert not reader.is_alive()
    (outcome,) = outcomes
    assert outcome in (0, 50) or (isinstance(outcome, ValueError) and "closed" in str(outcome)), repr(outcome)


def test_what_was_computed_ahead_is_let_go():
    class Heavy:
        pass

    gc.collect()
    it = opened(bushel.MapDataset.range(20).map(lambda x: Heavy()), (2, 8))
    next(it)
    it.close()
    del it
    deadline = time.monotonic() + SOON_S
    while any(isinstance(thing, Heavy) for thing in gc.get_objects()) and time.monotonic() < deadline:
        gc.collect()
    assert not any(isinstance(thing, Heavy) for thing in gc.get_objects())


SLOW_READS = """
    import time
    import bushel

    class Slow:
        def __len__(self): return 1000
        def __getitem__(self, index):
            if index > 2: time.sleep(600)
            return index

    it = iter(bushel.MapDataset.source(Slow()).to_iter_dataset(bushel.ReadOptions(4, 16)))
    print(next(it), next(it))
"""


@pytest.mark.parametrize(
    ("ending", "code", "complaint"),
    [
        ("", 0, ""),
        ("it.close()", 0, ""),
        ("del it", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit(0)", 0, ""),
        ("raise RuntimeError('by design')", 1, "RuntimeError: by design"),
    ],
)
def test_the_interpreter_exits_at_once_and_without_a_word(ending, code, complaint):
    script = textwrap.dedent(SLOW_READS) + ending
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SOON_S)
    assert child.returncode == code
    assert child.stdout == "0 1\n"
    if complaint:
        assert child.stderr.rstrip().endswith(complaint)
        assert child.stderr.count("Traceback") == 1
    else:
        assert child.stderr == ""


# ---------------------------------------------------------------------------------------------------------------------
# Without options: threads where records come from outside and that proves slow, none where they are in memory


def test_threads_by_default_only_where_records_come_from_outside():
    def starts_threads(source: Any) -> bool:
        before = reading_threads()
        ds = bushel.MapDataset.source(source).map(recipes.double).to_iter_dataset()
        with PipelineIterator(ds._node, where=ALL_ARE_SLOW) as it:
            assert list(itertools.islice(it, 5))
            return bool(reading_threads() - before)

    assert starts_threads(Reads(lambda x: x))
    for source in ([1, 2], (1, 2), np.arange(3), range(3), list("abc"), bushel.sources.ArrayDataSource(np.arange(3))):
        assert not starts_threads(source)
    assert not starts_threads(bushel.sources.RangeDataSource(0, 3, 1))


class Outside:
    """Records that are not known to be in memory; those in `slow` take 2 ms on clocks of their own.

    Args:
      slow: positions of the slow records.
      computes: whether a slow record computes for its 2 ms, and does not wait.
    """

    def __init__(self, slow: range = range(0), computes: bool = False):
        self.slow, self.computes = slow, computes
        self.now = self.busy = 0.0
        self.highest = -1

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> int:
        self.now += 2e-3 if index in self.slow else 1e-6
        self.busy += 2e-3 if index in self.slow and self.computes else 1e-6
        self.highest = max(self.highest, index)
        return index

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.busy

    def count_waits(self) -> tuple[int, int]:
        return 0, 0  # the system does not tell


def threads_after(source: Outside, count: int, options: bushel.ReadOptions | None = None) -> int:
    """How many threads read for an iterator that has given so many elements."""
    before = reading_threads()
    ds = bushel.MapDataset.source(source).to_iter_dataset(options)
    with PipelineIterator(ds._node, where=WhereToRun(clock=source)) as it:
        assert list(itertools.islice(it, count)) == list(range(count))
        return len(reading_threads() - before)


def test_records_that_wait_are_read_by_threads_after_a_few():
    assert threads_after(Outside(range(300)), 2) == 0
    assert threads_after(Outside(range(300)), 3) == 16


def test_quick_records_are_read_when_they_are_asked_for():
    assert threads_after(Outside(), 300) == 0


def test_a_slow_record_now_and_then_changes_nothing():
    assert threads_after(Outside(range(0, 300, 40)), 300) == 0


def test_records_that_become_slow_are_read_by_threads_from_then_on():
    assert threads_after(Outside(range(100, 300)), 102) == 0
    assert threads_after(Outside(range(100, 300)), 103) == 16


def test_records_that_compute_are_read_by_two_threads_and_only_once_they_took_a_while():
    """A small job is done before that, and threads that share the GIL would make it slower."""
    enough = 1 + round(where_to_run.COMPUTED_S / 2e-3)  # the first record does not count
    assert threads_after(Outside(range(300), computes=True), enough) == 0
    assert threads_after(Outside(range(300), computes=True), enough + 1) == 2


def test_little_is_computed_ahead_of_a_consumer_that_may_stop_soon():
    """Two blocks of 2 ms for each thread, so that a job that ends has computed little in vain."""
    source = Outside(range(300), computes=True)
    taken = 2 + round(where_to_run.COMPUTED_S / 2e-3)
    ds = bushel.MapDataset.source(source).to_iter_dataset()
    with PipelineIterator(ds._node, where=WhereToRun(clock=source)) as it:
        assert list(itertools.islice(it, taken)) == list(range(taken))
        assert source.highest < taken + 4


def test_a_batch_of_records_that_wait_is_read_by_threads_already():
    source, before = Outside(range(300)), reading_threads()
    ds = bushel.MapDataset.source(source).to_iter_dataset().batch(20)
    with PipelineIterator(ds._node, where=WhereToRun(clock=source)) as it:
        assert next(it).tolist() == list(range(20))
        assert len(reading_threads() - before) == 16


def test_the_number_of_threads_can_change_while_they_work():
    threads = Threads(8, at_first=1)
    before = reading_threads()
    program = Program(bushel.MapDataset.range(10_000)._node)

    def compute(low: int) -> list[int]:
        tasks = [Task(program, at, at + 10, 0, [], Ledger([])) for at in range(low, low + 200, 10)]
        return [row for ticket in map(threads.submit, tasks) for row in rows_of(threads.wait(ticket)[0].rows)]

    for low, size in enumerate([1, 8, 2, 5, 1, 8]):
        threads.resize(size)
        assert compute(200 * low) == list(range(200 * low, 200 * low + 200))
        wait_until(lambda size=size: len(reading_threads() - before) == size)
    threads.close()
    wait_until(lambda: not reading_threads() - before)


def test_a_filter_that_drops_too_much_is_refused_at_the_same_element():
    ds = bushel.MapDataset.source(Outside()).repeat(10).filter(lambda x: x % 20 == 0)
    strict = bushel.experimental.DatasetOptions(filter_raise_threshold_ratio=0.9)
    outcomes = []
    for options in (bushel.ReadOptions(0, 0), None):
        stream = bushel.experimental.WithOptionsIterDataset(ds.to_iter_dataset(options), strict)
        with PipelineIterator(stream._node, where=ALL_ARE_SLOW) as it:
            outcomes.append(told(it, 1000))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][2] is ValueError


def test_explicit_options_are_taken_at_their_word():
    assert threads_after(Outside(), 5, bushel.ReadOptions(3, 9)) == 3
    assert threads_after(Outside(range(300)), 20, bushel.ReadOptions(0, 0)) == 0


class Remote:
    """Records of 1 MB, of which a read costs a round trip; knows how far they were read."""

    costs_round_trip = True

    def __init__(self) -> None:
        self.highest = -1

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> np.ndarray:
        self.highest = max(self.highest, index)
        return np.full(1 << 20, index % 256, np.uint8)

    def __getitems__(self, indices: Any) -> list[np.ndarray]:
        return [self[index] for index in indices]


@pytest.mark.parametrize(("options", "bounded"), [(None, True), (bushel.ReadOptions(16, 500), False)])
def test_threads_that_nobody_asked_for_hold_a_bounded_amount_of_memory(monkeypatch, options, bounded):
    monkeypatch.setattr(opener, "_UNASKED_BYTES", 24 << 20)
    source = Remote()
    furthest = 0
    with iter(bushel.MapDataset.source(source).to_iter_dataset(options)) as it:
        for number, element in enumerate(itertools.islice(it, 200)):
            assert element[0] == number % 256
            ahead = source.highest - number
            furthest = max(furthest, ahead)
            assert not bounded or ahead <= 24
    assert bounded or furthest > 24  # so that the law above can fail


# ---------------------------------------------------------------------------------------------------------------------
# Executors of one's own, whose tasks leave the process: written from docs/workers.md alone


class Pickling(Executor):
    """Runs each task and its result through a pickle, in this process."""

    keeps_all = True  # also what would come home because it is light

    def __init__(self, dumps: Any = cloudpickle.dumps):
        self.dumps = dumps

    def submit(self, task: Any) -> Ticket:
        done: Future[Any] = Future()
        try:
            result = pickle.loads(self.dumps(task)).run()
            done.set_result((pickle.loads(self.dumps(result)), 0.0))
        except Exception as error:
            done.set_exception(error)
        return Ticket(task, done)

    def wait(self, ticket: Ticket) -> Any:
        return ticket.done.result()

    def forget(self, tickets: list[Ticket]) -> None:
        pass

    def close(self) -> None:
        pass


PROGRAMS: dict[str, Any] = {}
"""In a process of the pool below: the programs that it has loaded, by their number."""


def run_pickled(number: str, program: bytes, task: bytes) -> bytes:
    begun = time.perf_counter()
    if number not in PROGRAMS:
        PROGRAMS[number] = pickle.loads(program)
    result = dataclasses.replace(pickle.loads(task), program=PROGRAMS[number]).run()
    return cloudpickle.dumps((result, time.perf_counter() - begun))


class InProcesses(Executor):
    """Sends tasks to a pool of the standard library; each program is pickled once."""

    keeps_all = True

    def __init__(self, pool: ProcessPoolExecutor, parallelism: int = 2):
        self.parallelism = parallelism
        self._pool = pool
        self._programs: weakref.WeakKeyDictionary[Any, tuple[str, bytes]] = weakref.WeakKeyDictionary()
        self.sent = 0

    def submit(self, task: Any) -> Ticket:
        if task.program not in self._programs:
            self._programs[task.program] = os.urandom(8).hex(), cloudpickle.dumps(task.program)
        number, program = self._programs[task.program]
        rest = cloudpickle.dumps(dataclasses.replace(task, program=None))
        self.sent += 1
        return Ticket(task, self._pool.submit(run_pickled, number, program, rest))  # type: ignore[arg-type]

    def wait(self, ticket: Ticket) -> Any:
        return pickle.loads(ticket.done.result())  # type: ignore[arg-type]

    def forget(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.done.cancel()

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def spawned() -> Any:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


def is_odd(x: Any) -> bool:
    return x % 2 == 1


def with_noise(x: Any, rng: np.random.Generator) -> Any:
    return x, int(rng.integers(1 << 40))


def no_threes(x: Any) -> bool:
    return x[0] % 3 > 0


def base() -> Any:
    return bushel.MapDataset.range(300).seed(3).shuffle().to_iter_dataset(bushel.ReadOptions(0, 0))


def as_pair(index: int, x: Any) -> Any:
    return index, x


def sometimes_none(x: Any) -> Any:
    return None if x % 7 == 0 else x


def sometimes_fails(x: Any) -> Any:
    if x % 50 == 7:
        raise ValueError(f"bad: {x}")
    return x


class Counts(bushel.DatasetIterator[int]):
    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def __next__(self) -> int:
        if self._next == 40:
            raise StopIteration
        self._next += 1
        return self._next

    def get_state(self) -> Any:
        return {"next": self._next}

    def set_state(self, state: Any, *, check: bool = True) -> None:
        self._next = state["next"]


class OfCounts(bushel.IterDataset[int]):
    def __iter__(self) -> Counts:
        return Counts()


LEAVING = {
    "map": lambda: base().map(abs),
    "filter": lambda: base().filter(is_odd).map(abs),
    "batch": lambda: base().map(abs).batch(7),
    "batch after filter": lambda: base().filter(is_odd).batch(7).map(np.sum),
    "window after filter": lambda: base().filter(is_odd).window_shuffle(20, seed=1).map(abs),
    "random_map": lambda: base().random_map(with_noise),
    "random_map after filter": lambda: base().filter(is_odd).random_map(with_noise),
    "counted twice": lambda: (
        base().filter(is_odd).random_map(with_noise).filter(no_threes).map_with_index(as_pair).batch(4, batch_fn=list)
    ),
    "counted after a batch": lambda: base().filter(is_odd).batch(4).random_map(with_noise).map_with_index(as_pair),
    "counted after an element that is missing": lambda: base().map(sometimes_none).random_map(with_noise),
    "counted and skipped": lambda: (
        base().map(sometimes_fails).random_map(with_noise).map_with_index(as_pair).with_options(on_error="skip")
    ),
    "fails": lambda: base().filter(is_odd).map(sometimes_fails).random_map(with_noise),
    "a mixture": lambda: bushel.IterDataset.mix([base().filter(is_odd).random_map(with_noise), base().map(abs)]),
    "a stream that is run whole": lambda: bushel.IterDataset.mix([OfCounts(), base().filter(is_odd)]),
}


@pytest.mark.parametrize("name", LEAVING)
def test_tasks_may_run_in_processes_of_ones_own(spawned, name):
    ds = LEAVING[name]()
    executor = InProcesses(spawned)
    with iter(ds) as here, ds.iterate_on(executor) as there:
        elements, states, error = told(here, 1000)
        found, states_there, error_there = told(there, 1000)
    assert same(found, elements) and error_there == error
    assert states_there == states
    assert executor.sent > 1
    middle = json.loads(states[len(elements) // 2])
    with ds.iterate_on(executor) as there:
        there.set_state(middle)
        found, states_there, error_there = told(there, 1000)
    assert same(found, elements[len(elements) // 2 :]) and error_there == error
    assert states_there == states[len(elements) // 2 :]


@pytest.mark.parametrize("name", LEAVING)
def test_pickle_alone_will_do_where_functions_have_names(name):
    ds = LEAVING[name]()
    with iter(ds) as here, ds.iterate_on(Pickling(pickle.dumps)) as there:
        expected, found = told(here, 1000), told(there, 1000)
        assert same(found[0], expected[0]) and found[1:] == expected[1:]


@laws
@given(recipe=strategies.recipes())
def test_tasks_of_any_pipeline_may_leave_the_process(recipe):
    ds = stream(recipe, (0, 0))
    with iter(ds) as here, ds.iterate_on(Pickling()) as there:
        expected, found = told(here, 60), told(there, 60)
        assert same(found[0], expected[0]) and found[1:] == expected[1:]


def test_a_task_that_asks_cannot_leave_and_says_what_to_do():
    class Shares(Pickling):
        shares_counts = True

    ds = base().filter(is_odd).random_map(with_noise)
    with ds.iterate_on(Shares()) as it, pytest.raises(TypeError, match="Set `shares_counts = False` in the class of"):
        next(it)
    with ds.iterate_on(Pickling()) as it:
        assert next(it) == next(iter(ds))
