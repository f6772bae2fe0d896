"""Observation: figures that are right wherever the work is done, and nothing at all where it is off."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers import strategies
from helpers.recipes import as_stream
from helpers.stepped_executor import Stepped
from helpers.waiting import SOON_S
from helpers.worker_pools import open_on
from hypothesis import HealthCheck, given, settings

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.measurements import Pool, Stage, Watched, number_stages
from bushel._src.engine.opener import open_stream
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.program import PlannedInput, Program, Result, run
from bushel._src.engine.program_delivery import PositionDelivery
from bushel._src.engine.report import Report
from bushel._src.engine.tasks import ExecutorAround, Threads, Ticket
from bushel._src.engine.timing_wrappers import Observer
from bushel._src.graph.node import Node
from bushel.engine import Executor
from bushel.experimental import (
    DatasetOptions,
    ExecutionTrackingMode,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
)
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

TIMED = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)


def timed(ds: Any) -> Any:
    return WithOptionsIterDataset(ds, TIMED)


@pytest.fixture(scope="module")
def warm() -> Iterator[dict[str, Executor | None]]:
    executors = {"stepped": Stepped(1), "threads": Threads(2), "processes": Processes(2)}
    yield {"inline": None, **executors}
    for executor in executors.values():
        executor.close()


def told(it: Any, most: int) -> tuple[list[Any], list[str], Any]:
    elements, states = [], []
    try:
        for element in itertools.islice(it, most):
            elements.append(element)
            states.append(json.dumps(it.get_state()))
    except Exception as error:
        return elements, states, (type(error), str(error), getattr(error, "__notes__", []))
    return elements, states, None


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(recipe=strategies.recipes())
def test_timing_changes_neither_elements_nor_states_nor_errors(warm, recipe):
    ds = as_stream(recipe, bushel)
    for name, executor in warm.items():
        with PipelineIterator(ds._node, bushel.ReadOptions(0, 0), executor) as it:
            expected = told(it, 25)
        with PipelineIterator(timed(ds)._node, bushel.ReadOptions(0, 0), executor) as it:
            found = told(it, 25)
            report = it.report()
        assert same(found[0], expected[0]), name
        assert found[1] == expected[1], name
        assert (found[2] is None) == (expected[2] is None), name
        assert found[2] is None or found[2][:2] == expected[2][:2], name
        assert report.elements == len(found[0])
        assert not found[0] or report.stages


# What is counted, wherever it runs.

WHERE = {"inline": "consumer", "stepped": "workers", "threads": "threads", "processes": "workers"}


@pytest.mark.parametrize("name", WHERE)
def test_every_stage_counts_its_elements_and_bytes(warm, name):
    ds = (
        bushel.MapDataset.range(60)
        .seed(3)
        .shuffle()
        .map(lambda x: np.full(100, x, np.uint8))
        .to_iter_dataset()
        .filter(lambda x: x[0] % 3 == 0)
        .random_map(lambda x, rng: x)
        .batch(4)
    )
    with PipelineIterator(timed(ds)._node, bushel.ReadOptions(0, 0), warm[name]) as it:
        batches = list(it)
        report = it.report()
    assert len(batches) == 5
    found = [(stage.call.partition("(")[0], stage.where, stage.elements, stage.size_bytes) for stage in report.stages]
    ahead = WHERE[name]
    between = ("to_iter_dataset", "consumer", 60, 6000) if name == "inline" else ("delivery", "consumer", 20, 2000)
    expected = [
        ("range", ahead, 60, 0),
        ("shuffle", ahead, 60, 0),
        ("map", ahead, 60, 6000),
        ("filter", ahead, 20, 2000),
        ("random_map", ahead, 20, 2000),
        ("batch", "consumer", 5, 2000),
    ]
    expected.insert(3 if name == "inline" else 5, between)
    assert found == expected


def test_missing_elements_are_not_counted_and_columns_are():
    source = bushel.sources.ArrayDataSource(np.arange(50, dtype=np.int64))
    ds = bushel.MapDataset.source(source).filter(lambda xs: xs < 7, vectorized=True).to_iter_dataset().batch(7)
    it = iter(timed(ds))
    assert len(list(it)) == 1
    stages = {stage.call.partition("(")[0]: (stage.elements, stage.size_bytes) for stage in it.report().stages}
    assert stages == {"source": (50, 400), "filter": (7, 56), "to_iter_dataset": (7, 56), "batch": (1, 56)}


def test_a_part_that_is_used_twice_is_one_stage():
    numbers = bushel.MapDataset.range(10).map(abs)
    it = iter(timed(bushel.MapDataset.concatenate([numbers, numbers]).to_iter_dataset()))
    assert len(list(it)) == 20
    assert [stage.elements for stage in it.report().stages if stage.call == "map(abs)"] == [20]


def test_a_users_own_dataset_is_one_stage():
    class Doubled(bushel.MapDataset):
        def __len__(self):
            return len(self._parent)

        def __getitem__(self, index):
            return 2 * self._parent[index]

    it = iter(timed(Doubled(bushel.MapDataset.range(5)).map(abs).to_iter_dataset()))
    assert list(it) == [0, 2, 4, 6, 8]
    assert [stage.call for stage in it.report().stages] == ["pipe(Doubled)", "map(abs)", "to_iter_dataset()"]


def wait(x: Any) -> Any:
    time.sleep(0.002)
    return x


THREADED = {
    "at the end": (lambda ds: ds, {"range": "thread", "map": "thread", "to_iter_dataset": "thread"}),
    "before a batch": (
        lambda ds: ds.batch(5),
        {"range": "thread", "map": "thread", "to_iter_dataset": "thread", "batch": "consumer"},
    ),
}


@pytest.mark.parametrize("name", THREADED)
def test_what_a_thread_pulls_is_timed(name):
    after, expected = THREADED[name]
    ds = bushel.MapDataset.range(40).map(wait).to_iter_dataset(bushel.ReadOptions(0, 0))
    with iter(timed(after(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2)))) as it:
        list(it)
        report = it.report()
    assert {stage.call.partition("(")[0]: stage.where for stage in report.stages} == expected
    assert [stage.elements for stage in report.stages if stage.where == "thread"] == [40, 40, 40]
    (pool,) = report.pools
    assert str(pool) == "1 thread" and pool.busy_s >= 40 * 0.002 and pool.wait_s > report.waited_s / 2
    assert " of the time of one thread" in report.verdict
    assert "put .mp_prefetch() before the ThreadPrefetchIterDataset" in report.verdict
    assert report.slowest is not None and report.slowest.call.startswith("map(wait")


def test_of_several_pools_the_busiest_is_named_as_the_limit():
    ds = bushel.MapDataset.range(60).map(wait).to_iter_dataset()
    ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1)).map(abs)
    ds = ThreadPrefetchIterDataset(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2), prefetch_buffer_size=2)
    with iter(timed(ds)) as it:
        list(it)
        report = it.report()
    assert sorted(map(str, report.pools)) == ["1 thread", "1 thread", "1 worker"]
    assert report.slowest is not None
    assert (report.slowest.call.partition(" ")[0], report.slowest.where) == ("map(wait)", "workers")


class Passed(bushel.IterDataset):
    """The elements of another, by an iterator of one's own."""

    def __iter__(self) -> Any:
        return _PassedIterator(self._parent.__iter__())


class _PassedIterator(bushel.DatasetIterator):
    def __next__(self) -> Any:
        return next(self._parent)

    def get_state(self) -> Any:
        return self._parent.get_state()

    def set_state(self, state: Any, *, check: bool = True) -> None:
        self._parent.set_state(state)


def test_the_verdict_names_the_workers_behind_a_users_own_dataset():
    marked = (
        bushel.MapDataset.range(60)
        .map(wait)
        .to_iter_dataset()
        .mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))
    )
    with iter(timed(Passed(marked).batch(5))) as it:
        list(it)
        report = it.report()
    assert [stage.call for stage in report.stages] == ["pipe(Passed)", "delivery", "batch(5)"]
    assert "input-bound: the step waits for the workers " in report.verdict


def test_an_operation_before_a_prefetch_that_stays_in_the_consumer_is_marked():
    ds = (
        Passed(bushel.MapDataset.range(60).to_iter_dataset())
        .mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))
        .batch(2)
    )
    with iter(timed(ds)) as it:
        list(it)
        marked = {stage.call: stage.marked for stage in it.report().stages}
    assert marked["pipe(Passed)"] and not marked["batch(2)"]


class Clock:
    """A clock that only goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float, value: Any) -> Any:
        self.now += seconds
        return value


def test_time_is_charged_to_the_stage_that_took_it(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    ds = (
        bushel.MapDataset.range(8)
        .map(lambda x: clock.spend(1.0, x))
        .random_map(lambda x, rng: clock.spend(0.5, x), seed=1)
        .to_iter_dataset()
        .filter(lambda x: clock.spend(0.25, x % 2 == 0))
        .batch(2, batch_fn=lambda rows: clock.spend(2.0, rows))
    )
    it = iter(timed(ds))
    for _ in it:
        clock.spend(10.0, None)
    report = it.report()
    assert {stage.call.partition("(")[0]: stage.self_s for stage in report.stages} == {
        "range": 0.0,
        "map": 8.0,
        "random_map": 4.0,
        "to_iter_dataset": 0.0,
        "filter": 2.0,
        "batch": 4.0,
    }
    assert (report.elements, report.waited_s, report.elapsed_s) == (2, 18.0, 38.0)
    assert report.slowest is not None and report.slowest.call.startswith("map(")


def slow(x: int) -> int:
    time.sleep(0.004)
    return x


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_time_in_workers_comes_back_with_the_results(warm, name):
    ds = bushel.MapDataset.range(60).map(abs).map(slow).to_iter_dataset()
    with PipelineIterator(timed(ds)._node, None, warm[name]) as it:
        assert len(list(it)) == 60
        report = it.report()
    spent = {stage.call: stage.self_s for stage in report.stages}
    assert spent["map(slow)"] >= 60 * 0.004
    (pool,) = report.pools
    assert pool.busy_s >= spent["map(slow)"]
    assert (pool.kind, pool.size) == (WHERE[name], 2)
    assert 0 < pool.wait_s <= report.waited_s <= report.elapsed_s
    assert report.slowest is not None and report.slowest.call == "map(slow)"
    assert spent["delivery"] < report.waited_s  # waiting is no work


class Descheduled(ExecutorAround):
    """Another executor, after whose results the consumer gets no core for a while."""

    waits = 0

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        answer = self._executor.wait(ticket)
        self.waits += 1
        time.sleep(0.02)
        return answer


def test_a_consumer_that_gets_no_core_has_waited_and_delivery_has_not_worked():
    """The result has arrived, but the machine is busy: "let the workers make larger batches" would be wrong advice."""
    ds = bushel.MapDataset.range(20).map(slow).to_iter_dataset()
    with contextlib.closing(Descheduled(Threads(2))) as executor, open_on(timed(ds), executor) as it:
        list(it)
        report = it.report()
    assert report.pools[0].wait_s >= executor.waits * 0.02
    assert report.slowest is not None and report.slowest.call == "map(slow)"


def test_timed_results_are_let_go_of(caplog):
    ds = bushel.MapDataset.range(300).map(lambda x: np.full((64, 1024), x, np.float32)).batch(4).to_iter_dataset()
    options = bushel.MultiprocessingOptions(num_workers=1, budget_bytes=32 << 20)
    with iter(timed(ds.mp_prefetch(options))) as it:
        assert sum(1 for _ in it) == 75
    assert not caplog.records  # nothing about memory that is held


def test_a_report_can_be_asked_while_an_element_is_waited_for():
    asked, go_on = threading.Event(), threading.Event()

    def wait(x: int) -> int:
        if x == 3:
            asked.set()
            assert go_on.wait(SOON_S)
        return x

    it = iter(timed(bushel.MapDataset.range(5).map(wait).to_iter_dataset()))
    thread = threading.Thread(target=lambda: list(it))
    thread.start()
    assert asked.wait(SOON_S)
    report = it.report()
    go_on.set()
    thread.join(100)
    assert report.elements == 3
    assert it.report().elements == 5


PROGRAMS = {
    "batches": lambda ds: ds.map(abs).batch(4),
    "batches elsewhere": lambda ds: ds.batch(4).seed(1).shuffle().repeat(2),
    "a function of batches": lambda ds: ds.batch(4).map(abs),
    "vectorized": lambda ds: ds.map(abs, vectorized=True).batch(4),
    "a filter": lambda ds: ds.filter(bool),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_timed_program_is_run_in_the_same_way(name):
    node = PROGRAMS[name](bushel.MapDataset.range(100))._node
    plain, watched = Program(node), Program(number_stages(node, []))
    for what in ("unit", "sparse", "takes_in_place"):
        assert getattr(plain, what) == getattr(watched, what), what
    assert [dropper.call() for dropper in plain.droppers] == [dropper.call() for dropper in watched.droppers]
    assert watched.node.fan_in == node.fan_in
    assert watched.node.origins(7) == node.origins(7)


# Off, there is nothing of it.


def nodes(node: Node) -> list[Node]:
    return [node, *(above for parent in node.parents for above in nodes(parent))]


def test_without_timing_there_is_no_wrapper():
    ds = bushel.MapDataset.range(10).map(abs).to_iter_dataset()
    cursor = open_stream(ds._node)
    assert type(cursor) is PositionDelivery
    assert cursor._program.node is ds._node.parent
    assert not any(isinstance(node, Watched) for node in nodes(ds._node))
    executor, observer = Stepped(), Observer()
    chain = open_stream(ds._node, None, executor, observer)
    assert chain._placement.executor is executor  # type: ignore[attr-defined]
    node = ds._node.parent
    assert run(Program(node), PlannedInput(node), 0, 10, lambda *_: 0).tally is None


def test_a_report_without_timing_says_how_to_get_it():
    it = iter(bushel.MapDataset.range(10).to_iter_dataset())
    list(it)
    report = it.report()
    assert not report.timed and not report.stages
    assert str(report) == (
        "Stages are not timed. To time them, iterate over "
        'ds.with_options(execution_tracking_mode="stage_timing"), where ds is the IterDataset.'
    )


# What the report says.


def report_of(*, waited: float, stages: list[Stage], pools: tuple[Pool, ...] = ()) -> Report:
    return Report(True, tuple(stages), pools, elements=100, elapsed_s=10.0, waited_s=waited)


HERE = [Stage(0, "range(100)", "consumer", 100, 0.1, 0), Stage(1, "map(decode)", "consumer", 100, 8.0, 2_500_000)]
AHEAD = [Stage(0, "map(decode)", "workers", 100, 15.0, 0), Stage(-1, "delivery", "consumer", 100, 0.2, 0)]
LATE = [*AHEAD, Stage(1, "map(crop)", "consumer", 100, 7.0, 0)]
IN_ORDER = [*AHEAD, Stage(1, "pack(...)", "consumer", 100, 7.0, 0, marked=True)]

VERDICTS = [
    (
        report_of(waited=0.5, stages=HERE),
        "compute-bound: the step waits for data 5 % of its time, so",
    ),
    (
        report_of(waited=9.0, stages=HERE),
        "input-bound: map(decode) takes 99 % of consumer time: put .mp_prefetch() after it, so that workers",
    ),
    (
        report_of(waited=8.0, stages=AHEAD, pools=(Pool("workers", 2, "", 19.0, 7.5),)),
        "input-bound: map(decode) takes 100 % of worker time; to keep up with the step would take 11 workers, and",
    ),
    (
        report_of(waited=8.0, stages=AHEAD, pools=(Pool("workers", 8, "", 79.0, 7.5),)),
        "would take 44 workers, and there are 8 cores: make it cheaper, or store its output.",
    ),
    (
        report_of(waited=8.0, stages=AHEAD, pools=(Pool("workers", 2, "", 6.0, 7.5),)),
        "but the workers are busy only 30 % of the time: let them work further ahead",
    ),
    (
        report_of(waited=8.0, stages=LATE, pools=(Pool("threads", 2, "", 6.0, 1.0),)),
        "input-bound: map(crop) takes 97 % of consumer time; 4 workers would do: put .mp_prefetch() after it.",
    ),
    (
        report_of(waited=8.0, stages=IN_ORDER, pools=(Pool("workers", 2, "", 6.0, 1.0),)),
        "pack(...) takes 97 % of consumer time, and it needs its elements in order: make it cheaper, or move its work",
    ),
    (
        report_of(waited=8.0, stages=AHEAD, pools=(Pool("workers", 2, "", 6.0, 1.0),)),
        "delivery takes 100 % of consumer time: let the workers make larger batches of arrays.",
    ),
    (Report(True, (), (), 0, 0.0, 0.0), "No element has been delivered in this time."),
]


@pytest.mark.parametrize(("report", "sentence"), VERDICTS)
def test_the_verdict_of_a_report_says_what_limits_it(monkeypatch, report, sentence):
    monkeypatch.setattr("bushel._src.engine.report.count_cores", lambda: 8)
    assert sentence in report.verdict
    assert str(report).endswith(report.verdict)


def test_a_report_prints_as_a_table():
    pools = (Pool("workers", 1, "a 2nd gave nothing", 6.0, 1.0, 2.5),)
    assert str(report_of(waited=0.5, stages=HERE, pools=pools)).splitlines()[:7] == [
        "stage        where     elements  self time  share   bytes",
        "range(100)   consumer       100    0.100 s    1 %     0 B",
        "map(decode)  consumer       100    8.000 s   99 %  2.5 MB",
        "",
        "100 elements in 10.00 s; 0.50 s of it in next() (5 %).",
        "1 worker: busy 60 % of the time, waited for 1.00 s, 2.5 blocks ready when the next was needed.",
        "",
    ]
    assert "1 worker, chosen by Bushel: a 2nd gave nothing." in str(report_of(waited=0.5, stages=HERE, pools=pools))
