"""Whatever the pipeline, the budget and the size of its rows: a run never stops, and gives what one process gives.

Every run here has a watchdog: one that hangs is ended, and fails with the stacks of all threads and what the pool of
workers was waiting for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.stepped_executor import Stepped
from helpers.waiting import wait_until
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import bushel
from bushel import experimental as ex
from bushel._src.engine import opener
from bushel._src.engine.processes.executor import SUPERVISORS, Processes
from bushel._src.engine.program import Program
from bushel._src.engine.tasks import Ledger, Task, Threads
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

HANGS_S = 200.0
"""A run that takes longer hangs: each of them takes less than a second on an idle machine."""


# ---------------------------------------------------------------------------------------------------------------------
# The watchdog


def stacks() -> str:
    """Where every thread of this process is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-8:])}"
        for ident, frame in sys._current_frames().items()
    )


def books() -> str:
    """What the workers of every pool hold, and what waits for them."""
    lines = []
    for supervisor in list(SUPERVISORS):
        lines += [
            f"worker {worker.index} holds {[describe(job) for job in worker.jobs]}" for worker in supervisor.workers
        ]
        lines.append(f"waiting: {[describe(job) for job in supervisor._waiting]}")
    return "\n".join(lines)


def describe(job: Any) -> str:
    asks = f", asks for {job.count_request}" if job.count_request else ""
    return f"job {job.number} (block {job.task.number}, urgent={job.urgent}{asks})"


def run_watched(work: Callable[[], Any], close: Callable[[], None], timeout_s: float = HANGS_S) -> Any:
    """What `work` returns. If it hangs, `close` is called and the test fails with the stacks of all threads."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        report = f"{books()}\n{stacks()}"
        close()
        pytest.fail(f"Nothing has come for {timeout_s} s.\n{report}")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def test_the_watchdog_can_fail():
    stuck = threading.Event()
    with pytest.raises(pytest.fail.Exception, match=r"(?s)Nothing has come for 0.1 s.*stuck.wait"):
        run_watched(lambda: stuck.wait(), stuck.set, timeout_s=0.1)
    assert stuck.is_set()


# ---------------------------------------------------------------------------------------------------------------------
# Random pipelines


class Own(bushel.IterDataset):
    """A stream of a class that the library does not know: it is run whole, by one worker."""

    def __init__(self, first: int, length: int, size: int, as_bytes: bool, sleep_s: float):
        super().__init__()
        self.about = (first, length, size, as_bytes, sleep_s)

    def __iter__(self) -> OwnIterator:
        return OwnIterator(*self.about)


class OwnIterator(bushel.DatasetIterator):
    def __init__(self, first: int, length: int, size: int, as_bytes: bool, sleep_s: float):
        super().__init__()
        self.first, self.length, self.size, self.as_bytes, self.sleep_s = first, length, size, as_bytes, sleep_s
        self.at = 0

    def __next__(self) -> Any:
        if self.at == self.length:
            raise StopIteration
        time.sleep(self.sleep_s)
        self.at += 1
        return row(self.first + self.at, self.size, self.as_bytes)

    def get_state(self) -> Any:
        return {"at": self.at}

    def set_state(self, state: Any, *, check: bool = True) -> None:
        self.at = state["at"]


def row(number: int, size: int, as_bytes: bool) -> dict[str, Any]:
    data = np.full(size, number % 251, np.uint8)
    return {"n": number, "data": data.tobytes() if as_bytes else data}


def make_row(number: int, size: int, as_bytes: bool, sleep_s: float) -> dict[str, Any]:
    time.sleep(sleep_s)
    return row(number, size, as_bytes)


class Works:
    """A function of a row that takes its time, and fails or drops some of them."""

    def __init__(self, what: str, sleep_s: float, every: int, fails: bool):
        self.what, self.sleep_s, self.every, self.fails = what, sleep_s, every, fails

    def __call__(self, *arguments: Any) -> Any:
        time.sleep(self.sleep_s)
        kind, x = self.what, arguments[1] if self.what == "map_with_index" else arguments[0]
        if kind == "batch":
            return {"n": sum(one["n"] for one in x), "data": x[0]["data"]}
        if self.fails and x["n"] % 7 == self.every:
            raise ValueError(f"row {x['n']} fails")
        if kind == "filter":
            return x["n"] % self.every != 0
        if kind == "flat_map":
            return [{**x, "n": 3 * x["n"] + part} for part in range(x["n"] % (1 + self.every))]
        if kind == "random_map":
            return {**x, "n": x["n"] + int(arguments[1].integers(0, 100))}
        if kind == "map_with_index":
            return {**x, "n": x["n"] + 1000 * arguments[0]}
        return {**x, "n": x["n"] + 1}


@dataclasses.dataclass(frozen=True)
class Step:
    what: str
    sleep_s: float
    every: int
    fails: bool = False


@dataclasses.dataclass(frozen=True)
class Leaf:
    how: str
    streams: int
    length: int
    size: int
    as_bytes: bool
    sleep_s: float
    steps: tuple[Step, ...] = ()
    """Of each stream, before they are joined."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    leaf: Leaf
    steps: tuple[Step, ...]


PER_ELEMENT = ["filter", "map", "random_map", "map_with_index", "flat_map", "batch"]
ORDERED = ["window_shuffle", "mix", "prefetch", "pack"]
SLEEPS = [0.0, 0.0, 0.0005, 0.002]


@st.composite
def steps(draw: st.DrawFn, kinds: list[str]) -> Step:
    what = draw(st.sampled_from(kinds))
    fails = what != "batch" and what in PER_ELEMENT and draw(st.integers(0, 3)) == 0
    return Step(what, draw(st.sampled_from(SLEEPS)), draw(st.integers(2, 4)), fails)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    size = draw(st.sampled_from([1, 100, 12_000, 60_000, 300_000]))
    how = draw(st.sampled_from(["interleave", "interleave", "interleave", "mix", "zip", "range", "mixed ranges"]))
    length = draw(st.integers(1, 12 if size > 100_000 else 40))
    about = (draw(st.integers(1, 5)), length, size, draw(st.booleans()), draw(st.sampled_from(SLEEPS)))
    inner = draw(st.lists(steps(PER_ELEMENT), max_size=2))
    outer = draw(st.lists(steps([*PER_ELEMENT, *ORDERED]), max_size=4))
    if any(step.what == "pack" for step in outer):  # its rows are of another kind: it comes last
        outer = [step for step in outer if step.what != "pack"] + [Step("pack", 0.0, 2)]
    return Pipeline(Leaf(how, *about, tuple(inner)), tuple(outer))


def build(pipeline: Pipeline) -> Any:
    leaf = pipeline.leaf

    def stream(number: int) -> Any:
        first = 1000 * number
        if leaf.how in ("range", "mixed ranges"):
            make = functools.partial(make_row, size=leaf.size, as_bytes=leaf.as_bytes, sleep_s=leaf.sleep_s)
            ds = bushel.MapDataset.range(first, first + leaf.length).map(make)
            ds = ds.to_iter_dataset(bushel.ReadOptions(0, 0))
        else:
            ds = Own(first, leaf.length, leaf.size, leaf.as_bytes, leaf.sleep_s)
        for step in leaf.steps:
            ds = add(ds, step)
        return ds

    streams = [stream(number) for number in range(1 if leaf.how == "range" else leaf.streams)]
    match leaf.how:
        case "interleave":
            ds = ex.InterleaveIterDataset(streams, cycle_length=max(1, leaf.streams - 1))
        case "mix" | "mixed ranges":
            ds = bushel.IterDataset.mix(streams, [1 + number for number in range(len(streams))])
        case "zip":
            ds = streams[0].zip(*streams[1:], strict=False).map(lambda rows: rows[0]) if streams[1:] else streams[0]
        case _:
            ds = streams[0]
    for step in pipeline.steps:
        ds = add(ds, step)
    return ds.with_options(on_error="skip")


def add(ds: Any, step: Step) -> Any:
    work = Works(step.what, step.sleep_s, step.every, step.fails)
    match step.what:
        case "random_map":
            return ds.random_map(work, seed=3)
        case "batch":
            return ds.batch(step.every, batch_fn=work)
        case "window_shuffle":
            return ds.window_shuffle(2 * step.every, seed=5)
        case "mix":
            return bushel.IterDataset.mix([ds, Own(7, 20, 5, False, 0.0)], [step.every, 1])
        case "prefetch":
            return ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=step.every)
        case "pack":
            lengths = {"tokens": 8, "n": 8}
            ds = ds.map(lambda x: {"tokens": np.frombuffer(x["data"], np.uint8)[:4], "n": np.array([x["n"]])})
            return ex.FirstFitPackIterDataset(ds, length_struct=lengths, num_packing_bins=step.every)
        case what:
            return getattr(ds, what)(work)


def elements(it: Any, most: int = 400) -> tuple[list[Any], int]:
    with it:
        return list(itertools.islice(it, most)), it.skipped


def check(ds: Any, ahead: Any) -> None:
    """The elements and skips of `ahead`, which somebody computes ahead, are those of `ds`."""
    expected = elements(iter(ds))
    it = iter(ahead)
    found = run_watched(lambda: elements(it), it.close)
    assert same(found[0], expected[0])
    assert found[1] == expected[1]


# ---------------------------------------------------------------------------------------------------------------------
# Examples that once hung


def blocks_of(ds: Any, size: int) -> Iterator[Task]:
    """The blocks of a stream as tasks, the first of them first."""
    base, steps_above = opener.split_steps(ds._node, lambda node: False)
    program = Program(base.parent, base.allow_nones, tuple(steps_above))
    ledger = Ledger([0] * len(program.counting))
    for number in itertools.count():
        counts = None if program.counting else []
        yield Task(program, size * number, size * (number + 1), number, counts, ledger)


def wait_for_file(path: str, x: int) -> int:
    while not os.path.exists(path):
        time.sleep(0.002)
    return x


def test_a_block_that_was_held_back_is_not_overtaken_by_blocks_that_need_its_count(tmp_path):
    """Without room a block was held back, later urgent work passed it, and then its successor took its worker."""
    large = bushel.MapDataset.range(100).map(lambda x: bytes(100_000)).to_iter_dataset()
    gate = str(tmp_path / "gate")
    gated = bushel.MapDataset.range(100).map(functools.partial(wait_for_file, gate)).to_iter_dataset()
    counting = bushel.MapDataset.range(100).to_iter_dataset().filter(lambda x: x % 2).random_map(lambda x, _: x, seed=1)
    fillers, urgent, asking = blocks_of(large, 1), blocks_of(gated, 1), blocks_of(counting, 4)
    with contextlib.closing(Processes(1, budget_bytes=150_000)) as pool:
        tickets = [pool.submit(next(fillers)) for _ in range(2)]
        pool._supervisor.mark_urgent(tickets[1])
        for ticket in tickets:
            ticket.done.result(HANGS_S)  # two results of 100 kB wait for the consumer: there is no room
        first = pool.submit(next(asking))
        passing = pool.submit(next(urgent))
        pool._supervisor.mark_urgent(passing)
        wait_until(lambda: passing.assigned)
        for ticket in tickets:
            pool.wait(ticket)  # and now there is room
        second = pool.submit(next(asking))
        with pool._supervisor._lock:
            pool._supervisor._assign_jobs()  # now, and not when the gate is open
        with open(gate, "w"):
            pass
        rows = run_watched(lambda: [list(pool.wait(ticket)[0].rows) for ticket in (passing, first, second)], pool.close)
    assert rows == [[0], [1, 3], [5, 7]]


def fail_at_four(x: int) -> int:
    if x == 4:
        raise ValueError("four fails")
    return x


def slowly(x: int) -> int:
    time.sleep(0.02)
    return x


EXECUTORS = {"threads": lambda: Threads(2), "workers": lambda: Processes(2), "here": Stepped}


@pytest.mark.parametrize("where", EXECUTORS)
def test_blocks_after_one_that_failed_do_not_hold_the_workers_that_another_stream_needs(where):
    """The block with the error never reported its count: the blocks after it waited for that, in all of the workers."""

    def numbers(rest: int) -> Any:
        return bushel.MapDataset.range(80).to_iter_dataset(bushel.ReadOptions(0, 0)).filter(lambda x: x % 2 == rest)

    failing = numbers(0).map(fail_at_four).random_map(lambda x, _: x, seed=1)
    other = numbers(1).map(slowly).random_map(lambda x, _: x, seed=1)
    ds = bushel.IterDataset.mix([failing, other], [1, 20])
    with contextlib.closing(EXECUTORS[where]()) as executor:
        found = run_watched(lambda: until_error(ds.iterate_on(executor)), executor.close)
    assert found == until_error(iter(ds)) and len(found) > 10


def until_error(it: Any) -> list[Any]:
    found: list[Any] = []
    with it, pytest.raises(ValueError, match="four fails"):
        found.extend(it)
    return found


laws = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink what hangs would take hours
)
budgets = st.integers(1, 1 << 22) | st.integers(0, 22).map(lambda bits: 1 << bits)
workers = st.builds(
    bushel.MultiprocessingOptions,
    num_workers=st.integers(1, 4),
    per_worker_buffer_size=st.integers(1, 6),
    budget_bytes=budgets,
    timeout_s=st.sampled_from([None, 1000]),  # where it is set, light work stays with the workers
)


HUNG = Pipeline(
    Leaf("interleave", streams=5, length=10, size=12_000, as_bytes=False, sleep_s=0.004),
    (Step("random_map", 0.002, 2), Step("flat_map", 0.0005, 4, fails=True)),
)


@settings(laws, max_examples=15)
@given(pipeline=pipelines(), options=workers)
@example(pipeline=HUNG, options=bushel.MultiprocessingOptions(3, 1, budget_bytes=20_000))
@example(pipeline=HUNG, options=bushel.MultiprocessingOptions(3, 2, budget_bytes=20_000))
@example(pipeline=HUNG, options=bushel.MultiprocessingOptions(3, 5, budget_bytes=20_000))
def test_no_budget_stops_workers(pipeline, options):
    ds = build(pipeline)
    check(ds, ds.mp_prefetch(options))


@settings(laws, max_examples=15)
@given(pipeline=pipelines(), threads=st.integers(1, 4), buffer=st.integers(1, 20))
def test_no_pipeline_stops_threads(pipeline, threads, buffer):
    ds = build(pipeline)
    check(ds, ex.multithread_prefetch(ds, num_threads=threads, buffer_size=buffer))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(laws, max_examples=700)
@given(pipeline=pipelines(), options=workers)
def test_no_budget_stops_workers_in_many_pipelines(pipeline, options):
    ds = build(pipeline)
    check(ds, ds.mp_prefetch(options))
