"""Delivery: one order, one state, whoever computes the blocks and in whatever order they are done."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers import strategies
from helpers.case_counts import cases
from helpers.places_to_run import DECISIONS, places
from helpers.recipes import Facts, Leaf, Recipe, as_stream
from helpers.stepped_executor import Stepped
from helpers.waiting import SOON_S
from helpers.worker_pools import numbers, open_on
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import bushel
from bushel import experimental as ex
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.delivery import BLOCK_S, MOST_POSITIONS, Placement, Sizer
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.program import Program, Result
from bushel._src.engine.program_delivery import PositionDelivery
from bushel._src.engine.tasks import Executor, Ledger, Task, Threads, Ticket, run_task
from bushel.experimental import DatasetOptions, get_next_index, set_next_index
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


class Careful(Stepped):
    """Runs blocks element by element, as after the death of workers."""

    def submit(self, task: Task) -> Ticket:
        return super().submit(_CarefulTask(*(getattr(task, field.name) for field in dataclasses.fields(task))))


class _CarefulTask(Task):
    def run(self) -> Result:
        announced: list[tuple[int, int]] = []
        announce = lambda *at: announced.append(at)  # noqa: E731
        result = run_task(self.program, self.low, self.high, self.count_before, announce, self.given)
        assert all(self.low <= low < high <= self.high for low, high in announced)
        return result


INLINE = "inline"
EXECUTORS = {
    "stepped 0": lambda: Stepped(0),
    "stepped 1": lambda: Stepped(1, parallelism=2),
    "stepped 2": lambda: Stepped(2, parallelism=5),
    "element by element": lambda: Careful(3),
    "3 threads": lambda: Threads(3),
    "1 process": lambda: Processes(1),
    "2 processes": lambda: Processes(2),
    "3 processes": lambda: Processes(3),
    "5 processes": lambda: Processes(5),
    "2 processes, portable": lambda: Processes(2, portable=True),
    "2 processes, no room": lambda: Processes(2, budget_bytes=1),
}
names = st.sampled_from([INLINE, *EXECUTORS])


laws = settings(
    max_examples=cases(25, 50),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
many = settings(laws, max_examples=500)


@pytest.fixture(scope="module")
def warm() -> Iterator[dict[str, Executor | None]]:
    """One executor of each kind, for all pipelines."""
    executors = {name: make() for name, make in EXECUTORS.items()}
    yield {INLINE: None, **executors}
    for executor in executors.values():
        executor.close()


def opened(recipe: Recipe | Any, executor: Executor | None, place: str = "as measured") -> PipelineIterator[Any]:
    ds = as_stream(recipe, bushel) if isinstance(recipe, Recipe) else recipe
    return open_on(ds, executor, DECISIONS[place])


def state_of(it: Any) -> str:
    return json.dumps(it.get_state())


def told(it: Any, most: int) -> tuple[list[Any], list[str], Any]:
    """Elements, the states around them, and what ended it: the error, if any."""
    elements, states = [], [state_of(it)]
    try:
        for element in itertools.islice(it, most):
            elements.append(element)
            states.append(state_of(it))
    except Exception as error:
        return elements, [*states, state_of(it)], (type(error), str(error), notes_of(error))
    return elements, [*states, state_of(it)], None


def notes_of(error: Exception) -> list[str]:
    """What is said of the place of an error, but for the worker."""
    return [note for note in getattr(error, "__notes__", []) if not note.startswith("bushel: in worker process")]


def place_of(it: Any) -> int | None:
    try:
        return get_next_index(it)
    except NotImplementedError:
        return None


# ---------------------------------------------------------------------------------------------------------------------
# Laws: the same stream and the same states, on anything


def check_same_stream(recipe: Recipe, warm: dict[str, Executor | None], place: str, most: int = 25) -> None:
    with opened(recipe, None) as it:
        expected = told(it, most)
    for name, executor in warm.items():
        with opened(recipe, executor, place) as it:
            found = told(it, most)
        assert same(found[0], expected[0]), f"with {name}: {found[0]} instead of {expected[0]}"
        assert found[1:] == expected[1:], f"with {name}"


@laws
@given(recipe=strategies.recipes(), place=places)
def test_elements_and_states_are_the_same_on_every_executor(warm, recipe, place):
    check_same_stream(recipe, warm, place)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@many
@given(recipe=strategies.recipes(), place=places)
def test_many_pipelines_are_the_same_on_every_executor(warm, recipe, place):
    check_same_stream(recipe, warm, place, most=60)


def check_goes_on(
    recipe: Recipe, one: Executor | None, other: Executor | None, place: str, cut: int, most: int = 25
) -> None:
    with opened(recipe, None) as it:
        elements, states, failed = told(it, most)
    cut %= len(elements) + 1
    with opened(recipe, one, place) as it:
        assert len(list(itertools.islice(it, cut))) == cut
        saved = state_of(it)
    with opened(recipe, other, place) as it:
        it.set_state(json.loads(saved))
        found = told(it, most - cut)
    assert same(found[0], elements[cut:])
    assert found[1:] == (states[cut:], failed)


@laws
@given(recipe=strategies.recipes(), one=names, other=names, cut=st.integers(0, 25), place=places)
def test_a_state_of_one_executor_goes_on_with_any_other(warm, recipe, one, other, cut, place):
    check_goes_on(recipe, warm[one], warm[other], place, cut)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@many
@given(recipe=strategies.recipes(), one=names, other=names, cut=st.integers(0, 60), place=places)
def test_many_states_of_one_executor_go_on_with_any_other(warm, recipe, one, other, cut, place):
    check_goes_on(recipe, warm[one], warm[other], place, cut, most=60)


@laws
@given(
    recipe=strategies.recipes(), name=names, jumps=st.lists(st.integers(0, 25), min_size=1, max_size=4), place=places
)
def test_going_back_and_forth_reads_the_same_again(warm, recipe, name, jumps, place):
    with opened(recipe, None) as it:
        elements, states, _ = told(it, 25)
    with opened(recipe, warm[name], place) as it:
        for jump in jumps:  # each time, blocks of another place are under way
            jump %= len(elements) + 1
            it.set_state(json.loads(states[jump]))
            assert state_of(it) == states[jump]
            found = list(itertools.islice(it, min(7, len(elements) - jump)))
            assert same(found, elements[jump : jump + 7])


@laws
@given(recipe=strategies.recipes(), name=names)
def test_the_next_index_is_the_same_on_every_executor(warm, recipe, name):
    with opened(recipe, None) as one, opened(recipe, warm[name]) as other:
        for _ in range(8):
            assert place_of(other) == place_of(one)
            try:
                if next(one, None) is None:
                    break
            except Exception:
                break
            next(other)


@laws
@given(recipe=strategies.recipes(), name=names, index=st.integers(0, 12))
def test_seeking_by_index_leads_to_the_same_place(warm, recipe, name, index):
    def sought(executor: Executor | None) -> Any:
        with opened(recipe, executor) as it:
            try:
                set_next_index(it, index)
            except (NotImplementedError, IndexError) as error:
                return type(error)
            return told(it, 5)

    expected, found = sought(None), sought(warm[name])
    if isinstance(expected, type):
        assert found is expected
        return
    assert same(found[0], expected[0])
    assert found[1:] == expected[1:]


@laws
@given(
    one=strategies.recipes(),
    other=strategies.recipes(),
    name=names.filter(lambda name: name != INLINE),
    turns=st.lists(st.booleans(), max_size=30),
)
def test_iterators_that_share_an_executor_do_not_meet(warm, one, other, name, turns):
    parts = (one, other)
    expected = []
    for recipe in parts:
        with opened(recipe, None) as it:
            expected.append(told(it, len(turns)))
    with opened(one, warm[name]) as first, opened(other, warm[name]) as second:
        its, found = (first, second), ([], [])
        for turn in map(int, turns):
            if len(found[turn]) < len(expected[turn][0]):
                found[turn].append(next(its[turn]))
                assert state_of(its[turn]) == expected[turn][1][len(found[turn])]
    for turn in (0, 1):
        assert same(found[turn], expected[turn][0][: len(found[turn])])


def test_the_laws_can_fail(warm):
    class Last(Stepped):
        """Gives the rows of a block in the wrong order."""

        def wait(self, ticket: Ticket) -> Any:
            result, seconds = super().wait(ticket)
            result.rows = list(result.rows)[::-1]
            return result, seconds

    recipe = Recipe(Leaf("range", (40,)), (), Facts(40))
    with pytest.raises(AssertionError, match="with wrong"):
        check_same_stream(recipe, {"wrong": Last()}, "as measured")

    class Lost(Stepped):
        """Forgets where the stream stands after the rows of a block."""

        def wait(self, ticket: Ticket) -> Any:
            result, seconds = super().wait(ticket)
            result.marks = result.marks * 0
            return result, seconds

    with pytest.raises(AssertionError, match="with lost"):
        check_same_stream(recipe, {"lost": Lost()}, "as measured")


# ---------------------------------------------------------------------------------------------------------------------
# States past the end, and of elements that leave no trace


def pair(i: int, x: Any) -> Any:
    return i, x


ENDINGS = {
    "a remainder that is dropped": lambda: numbers(10).map_with_index(pair).batch(4, drop_remainder=True),
    "a last element that is dropped": lambda: numbers(10).map_with_index(pair).filter(lambda x: x[1] < 7),
    "all dropped": lambda: numbers(10).filter(lambda x: False).map_with_index(pair),
    "all missing": lambda: bushel.MapDataset.range(10).map(lambda x: None).to_iter_dataset().map_with_index(pair),
    "nothing at all": lambda: bushel.MapDataset.range(10)[10:].to_iter_dataset().batch(3).map_with_index(pair),
    "counts before and after a filter": lambda: (
        numbers(23).map_with_index(pair).filter(lambda x: x[0] % 3).random_map(lambda x, rng: rng.integers(9), seed=1)
    ),
    "batches of batches": lambda: numbers(50).batch(3).map_with_index(pair).batch(2, drop_remainder=True),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_state_past_the_end_is_the_same_on_every_executor(warm, ending):
    ds = ENDINGS[ending]()
    with opened(ds, None) as it:
        expected = told(it, 100)
        assert next(it, "end") == "end"
    for name, executor in warm.items():
        with opened(ds, executor) as it:
            found = told(it, 100)
            assert same(found[0], expected[0]), name
            assert found[1:] == expected[1:], name
            assert next(it, "end") == "end", name
            assert state_of(it) == expected[1][-1], name


PLACES = {
    "elements": lambda ds: ds,
    "batches": lambda ds: ds.batch(4),
    "counted": lambda ds: ds.map_with_index(pair),
    "counted, then batched": lambda ds: ds.map_with_index(pair).batch(4),
    "batched, then counted": lambda ds: ds.batch(4).map_with_index(pair),
    "counted between two batches": lambda ds: ds.batch(2).map_with_index(pair).batch(3),
}


@pytest.mark.parametrize("kind", PLACES)
def test_the_next_index_counts_what_comes_out(warm, kind):
    for name, executor in warm.items():
        with opened(PLACES[kind](numbers(40)), executor) as it:
            for number in range(4):
                assert get_next_index(it) == number, name
                next(it)


# ---------------------------------------------------------------------------------------------------------------------
# Missing elements where every one was counted on


def none_after(limit: int) -> Any:
    return lambda x: None if x >= limit and x % 5 == 0 else x


@pytest.mark.parametrize("limit", [0, 3, 40, 199])
def test_a_missing_element_changes_where_batches_are_cut_and_nothing_else(warm, limit):
    ds = bushel.MapDataset.range(200).map(none_after(limit)).to_iter_dataset().batch(8).map_with_index(pair)
    with opened(ds, None) as it:
        expected = told(it, 100)
    for name, executor in warm.items():
        with opened(ds, executor) as it:
            found = told(it, 100)
            assert same(found[0], expected[0]), name
            assert found[1:] == expected[1:], name
            it.set_state(json.loads(expected[1][0]))  # and again from the start, where all seemed to be there
            assert same(list(itertools.islice(it, 3)), expected[0][:3]), name


def test_a_mixture_of_counted_and_uncounted_parts(warm):
    ds = bushel.IterDataset.mix([numbers(300), numbers(300).filter(lambda x: x % 2).map_with_index(pair)])
    with opened(ds, None) as it:
        expected = told(it, 1000)
    for name, executor in warm.items():
        with opened(ds, executor) as it:
            found = told(it, 1000)
        assert found == expected, name


# ---------------------------------------------------------------------------------------------------------------------
# Closing one iterator of many


@pytest.mark.parametrize("name", EXECUTORS)
def test_closing_an_iterator_leaves_the_executor_to_others(warm, name):
    ds = numbers(600).filter(lambda x: x % 2).random_map(lambda x, rng: (x, rng.integers(100)), seed=1)
    with opened(ds, None) as it:
        expected = list(it)
    with opened(ds, warm[name]) as stays:
        found = list(itertools.islice(stays, 10))
        for _ in range(3):
            leaves = opened(ds, warm[name])
            assert next(leaves) == expected[0]
            leaves.close()
            with pytest.raises(ValueError, match="closed iterator"):
                next(leaves)
            found += itertools.islice(stays, 10)
        found += stays
    assert found == expected


@pytest.mark.parametrize("name", [name for name in EXECUTORS if "thread" in name or "process" in name])
def test_threads_of_the_user_may_share_an_executor(warm, name):
    ds = numbers(400).filter(lambda x: x % 3).random_map(lambda x, rng: (x, rng.integers(100)), seed=1)
    with opened(ds, None) as it:
        expected = list(it)
    found: dict[int, list[Any]] = {}

    def read(number: int) -> None:
        with opened(ds, warm[name]) as it:
            found[number] = list(it)

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert [found.get(number) == expected for number in range(4)] == [True] * 4


# ---------------------------------------------------------------------------------------------------------------------
# How far ahead, and in which portions


class Noting(Stepped):
    """Notes what is submitted and what is waited for."""

    def __init__(self, seed: int = 0, parallelism: int = 3):
        super().__init__(seed, parallelism)
        self.submitted: list[Task] = []
        self.open = 0
        self.most_open = 0
        self.forgotten = 0

    def submit(self, task: Task) -> Ticket:
        self.submitted.append(task)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        return super().submit(task)

    def wait(self, ticket: Ticket) -> Any:
        answer = super().wait(ticket)
        self.open -= 1
        return answer

    def forget(self, tickets: list[Ticket]) -> None:
        self.forgotten += len(tickets)
        self.open -= len(tickets)
        super().forget(tickets)


def program_of(length: int, *steps: Any) -> Program:
    return Program(bushel.MapDataset.range(length)._node, steps=tuple(steps))


def delivery_of(length: int, executor: Executor, ahead: int, most: int = MOST_POSITIONS) -> PositionDelivery:
    return PositionDelivery(program_of(length), Placement(executor, ahead, most), DatasetOptions(), None)


@given(
    length=st.integers(0, 500),
    ahead=st.integers(1, 8),
    most=st.integers(1, 300),
    parallelism=st.integers(1, 4),
    pulls=st.lists(st.integers(1, 50), max_size=40),
)
def test_blocks_cover_the_positions_once_and_in_bounds(length, ahead, most, parallelism, pulls):
    executor = Noting(length, parallelism)
    cursor = delivery_of(length, executor, ahead, most)
    found: list[int] = []
    for count in itertools.chain(pulls, itertools.repeat(7)):
        block = list(cursor.pull(count))
        assert len(block) <= count
        assert cursor.get_state() == {"next_index": len(found) + len(block)}
        if not block:
            break
        found += block
        reserved = executor.submitted[-1].high - len(found)
        assert reserved <= most + max(task.high - task.low for task in executor.submitted)
    assert found == list(range(length))
    edges = [(task.low, task.high) for task in executor.submitted]
    assert [low for low, _ in edges] == [0, *(high for _, high in edges)][: len(edges)]
    assert all(0 < high - low <= most for low, high in edges)
    assert executor.most_open <= ahead
    assert executor.open == 0 and executor.forgotten == 0


@given(st.integers(1, 64), st.integers(1, 1 << 20), st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1 << 30))))
def test_block_sizes_are_whole_units_within_bounds(unit, most, blocks):
    sizer = Sizer(unit, most, 8 << 20)
    for seconds, size_bytes in blocks:
        before = sizer.choose_size()
        sizer.learn(before, seconds, size_bytes)
        after = sizer.choose_size()
        assert after % unit == 0
        assert unit <= after <= max(unit, most, 8 * unit)
        assert after <= 8 * before


def test_blocks_grow_where_elements_are_small_and_shrink_where_they_are_not():
    sizer = Sizer(1, 1 << 20, 8 << 20)
    for _ in range(20):
        sizer.learn(sizer.choose_size(), 1e-6 * sizer.choose_size(), 8 * sizer.choose_size())
    assert sizer.choose_size() == pytest.approx(BLOCK_S / 1e-6, rel=0.5)
    sizer.learn(sizer.choose_size(), 1e-3 * sizer.choose_size(), 8)
    assert sizer.choose_size() <= 1.01 * BLOCK_S / 1e-3
    for _ in range(20):
        sizer.learn(sizer.choose_size(), 1e-9, (8 << 20) // 16 * sizer.choose_size())
    assert sizer.choose_size() == 16
    sizer.learn(sizer.choose_size(), 60.0, 0)
    assert sizer.choose_size() == 1


@given(st.integers(1, 64), st.integers(1, 500), st.integers(1, 500), st.lists(st.floats(0, 10)))
def test_records_that_are_requested_together_stay_together_however_long_they_take(unit, most, least, times):
    sizer = Sizer(unit, most, 8 << 20, least)
    for seconds in [0.0, *times]:
        assert sizer.choose_size() % unit == 0
        assert max(unit, most) >= sizer.choose_size() >= max(1, min(least, most) // unit) * unit
        sizer.learn(sizer.choose_size(), seconds, sizer.choose_size())
    one_row_bytes = 8 << 20  # as large as a block may be
    sizer.learn(sizer.choose_size(), 0.0, one_row_bytes * sizer.choose_size() // unit)
    assert sizer.choose_size() == unit


def test_what_was_computed_ahead_is_forgotten_on_a_jump_and_on_closing():
    executor = Noting()
    cursor = delivery_of(1000, executor, 4)
    assert list(cursor.pull(1)) == [0]
    assert executor.open == 4
    cursor.set_state({"next_index": 500})
    assert executor.open == 0 and executor.forgotten == 4
    assert list(cursor.pull(1)) == [500]
    cursor.close()
    assert executor.open == 0


def test_nothing_runs_before_it_is_asked_for():
    executor = Noting()
    cursor = delivery_of(1000, executor, 4)
    assert not executor.submitted
    cursor.start_prefetch()
    assert len(executor.submitted) == 4
    assert cursor.get_state() == {"next_index": 0}


def test_an_executor_may_stretch_how_far_ahead_it_works(monkeypatch):
    executor = Noting()
    cursor = delivery_of(1000, executor, 2)
    monkeypatch.setattr(executor, "stretch", lambda: 3)
    cursor.start_prefetch()
    assert executor.open == 6
    monkeypatch.setattr(executor, "stretch", lambda: 1)
    found: list[Any] = []
    while executor.open > 2:
        found += list(cursor.pull(50))
    assert found == list(range(len(found)))
    assert executor.most_open == 6


# ---------------------------------------------------------------------------------------------------------------------
# Counts of blocks before


@given(
    start=st.integers(0, 10**12),
    counts=st.lists(st.integers(0, 1000), max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_a_ledger_tells_sums_as_soon_as_they_are_known(start, counts, order):
    ledger = Ledger([start])
    numbers = list(range(len(counts)))
    order.shuffle(numbers)
    known: set[int] = set()
    for number in numbers:
        ledger.report(0, number, counts[number])
        ledger.report(0, number, counts[number])  # a block that is run again says it again
        known.add(number)
        for block in range(len(counts) + 1):
            whole = all(before in known for before in range(block))
            assert ledger.before(0, block) == (start + sum(counts[:block]) if whole else None)


def test_steps_of_a_ledger_are_apart():
    ledger = Ledger([5, 7])
    ledger.report(1, 0, 3)
    assert (ledger.before(0, 1), ledger.before(1, 1)) == (None, 10)


# ---------------------------------------------------------------------------------------------------------------------
# Errors


class Breaks:
    """Fails for the elements in `at`."""

    def __init__(self, *at: int):
        self.at = set(at)

    def __call__(self, x: int) -> int:
        if x in self.at:
            raise OSError(f"cannot read {x} now")
        return x


FAILING = {
    "map": lambda f: bushel.MapDataset.range(200).map(f).to_iter_dataset(),
    "map after a filter": lambda f: numbers(200).filter(lambda x: x != 3).map(f),
    "counted after a filter": lambda f: numbers(200).filter(lambda x: x != 3).map_with_index(lambda i, x: f(x)),
    "batches": lambda f: numbers(200).map(f).batch(4),
    "batches after a filter": lambda f: numbers(200).filter(lambda x: x != 3).map(f).batch(4),
    "map batches": lambda f: bushel.MapDataset.range(200).map(f).batch(4).to_iter_dataset(),
    "random map of batches": lambda f: numbers(200).map(f).batch(4).random_map(lambda x, rng: x, seed=1),
}

FAILING_LATE = {
    "after a batch": lambda f: numbers(200).batch(2).map(lambda batch: [f(int(x)) for x in batch]),
    "after a batch of what a filter left": lambda f: (
        numbers(200).filter(lambda x: x != 3).batch(1).map(lambda x: f(int(x[0])))
    ),
    "after a window": lambda f: ex.WindowShuffleIterDataset(numbers(200), window_size=1, seed=0).map(f),
    "in a mixture": lambda f: bushel.IterDataset.mix([numbers(200).map(f), numbers(200)]),
}


@pytest.mark.parametrize("where", FAILING)
@pytest.mark.parametrize("at", [(0,), (7, 8), (150, 199)])
def test_an_error_comes_in_its_place_and_again_until_it_is_stepped_over(warm, where, at):
    ds = FAILING[where](Breaks(*at))
    with opened(ds, None) as it:
        expected = told(it, 300)
    assert expected[2] is not None
    for name, executor in warm.items():
        with opened(ds, executor) as it:
            found = told(it, 300)
            assert same(found[0], expected[0]), name
            assert found[1:] == expected[1:], name
            with pytest.raises(OSError, match=f"cannot read {at[0]} now"):  # it stands where it stood, and tries again
                next(it)
            assert state_of(it) == expected[1][-1], name


@pytest.mark.parametrize("place", DECISIONS)
@pytest.mark.parametrize("where", FAILING_LATE)
def test_an_error_says_the_same_wherever_the_work_is_done(warm, where, place):
    """No number where there is none to be had: positions in the engine count from the last state that was set."""
    ds = FAILING_LATE[where](Breaks(41))
    with opened(ds, None) as it:
        _, states, error = told(it, 300)
    assert error is not None and error[2]
    for name, executor in warm.items():
        with opened(ds, executor, place) as it:
            assert told(it, 300)[1:] == (states, error), name
        with opened(ds, executor, place) as it:
            it.set_state(json.loads(states[-3]))
            assert told(it, 300)[2] == error, name


@settings(laws, max_examples=25)
@given(
    where=st.sampled_from(sorted(FAILING)),
    at=st.sets(st.integers(0, 199), min_size=1, max_size=3),
    name=names,
)
@example(where="map", at={0, 1, 2}, name="2 processes")
def test_all_but_the_failing_elements_can_be_had(warm, where, at, name):
    ds = FAILING[where](Breaks(*at))

    def survivors(executor: Executor | None) -> list[Any]:
        found = []
        with opened(ds, executor) as it:
            while True:
                try:
                    found.extend(it)
                    return found
                except OSError:
                    state = json.loads(state_of(it))
                    inner = state
                    while "next_index" not in inner:
                        inner = inner["parent"]
                    inner["next_index"] += 1
                    it.set_state(state)

    assert same(survivors(warm[name]), survivors(None))


def test_a_block_is_one_array_where_a_batch_is_cut_of_it(warm):
    """Batches after a filter are cut here, of columns that were stacked by the executor."""
    ds = bushel.MapDataset.source(bushel.sources.ArrayDataSource({"x": np.arange(300.0).reshape(100, 3)}))
    ds = ds.to_iter_dataset().filter(lambda row: row["x"][0] % 2 == 0).batch(5)
    with opened(ds, None) as it:
        expected = list(it)
    for name, executor in warm.items():
        with opened(ds, executor) as it:
            found = list(it)
        assert same(found, expected), name
        assert all(batch["x"].flags.writeable for batch in found), name


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["stepped 1", "3 threads", "1 process", "2 processes", "3 processes"])
def test_a_block_that_fails_before_it_has_counted_keeps_nobody_waiting(warm, name):
    def fails(x: int) -> int:
        if x == 2:
            raise ValueError("no 2")
        return x

    def drawn(x: int, rng: np.random.Generator) -> int:
        return x

    # Blocks of the first stream wait for the counts of the one that fails, and the second is behind them in the pool.
    first = bushel.MapDataset.range(60).map(fails).to_iter_dataset().filter(lambda x: True).random_map(drawn, seed=1)
    others = [bushel.MapDataset.range(30).to_iter_dataset() for _ in range(3)]
    with opened(bushel.experimental.InterleaveIterDataset([first, *others], cycle_length=4), warm[name]) as it:
        assert [next(it) for _ in range(8)] == [0] * 4 + [1] * 4
        with pytest.raises(ValueError, match="no 2"):
            next(it)


class FailsAt:
    """The identity, but for some numbers; of a batch, the first counts."""

    def __init__(self, name: str, bad: Any):
        self.name, self.bad = name, frozenset(bad)

    def __call__(self, x: Any) -> Any:
        if int(np.ravel(x)[0]) in self.bad:
            raise ValueError(f"{self.name} fails at {np.ravel(x)[0]}")
        return x


def until_it_fails(elements: Any) -> tuple[list[Any], str | None]:
    found: list[Any] = []
    try:
        for element in elements:
            found.append(np.ravel(element).tolist())
    except ValueError as error:
        return found, str(error)
    return found, None


def in_batches(elements: Any, size: int) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(elements, size)):
        yield batch


@settings(laws, max_examples=100)
@given(
    bad=st.lists(st.sets(st.integers(0, 59), max_size=3), min_size=4, max_size=4),
    size=st.integers(1, 9),
    name=names,
    of_map=st.booleans(),
)
@example(bad=[{5}, {3}, set(), set()], size=8, name=INLINE, of_map=False)
@example(bad=[set(), {5}, {3}, set()], size=8, name="stepped 1", of_map=False)
@example(bad=[{59}, {58}, {57}, {54}], size=3, name="stepped 1", of_map=False)
@example(bad=[{6}, {5}, set(), set()], size=9, name=INLINE, of_map=True)
def test_the_first_element_that_fails_is_told_in_whatever_step_it_fails(warm, bad, size, name, of_map):
    one, two, three, of_batches = (FailsAt(f"step {number}", some) for number, some in enumerate(bad))
    # Element after element through all steps, as Python's own iterators go; a batch is made when it is full.
    expected = until_it_fails(map(of_batches, in_batches(map(three, map(two, map(one, iter(range(60))))), size)))
    ds: Any = bushel.MapDataset.range(60).map(one)
    if not of_map:
        ds = ds.to_iter_dataset()
    ds = ds.map(two).map(three).batch(size).map(of_batches)
    with opened(ds.to_iter_dataset() if of_map else ds, warm[name]) as it:
        assert until_it_fails(it) == expected
    if of_map and expected[1] is not None:
        with pytest.raises(ValueError, match=rf"^{expected[1]}\b"):
            ds.get(range(len(ds)))


def test_the_state_of_a_last_batch_is_behind_what_a_batch_before_it_dropped():
    ds = bushel.MapDataset.range(8).to_iter_dataset().batch(5, drop_remainder=True).batch(2)
    with iter(ds) as it:
        expected = next(it).tolist(), it.get_state()
    for executor in (Stepped(1), Threads(2)):
        with ds.iterate_on(executor) as it:
            assert (next(it).tolist(), it.get_state()) == expected
            assert next(it, None) is None
