"""A record that kills every worker that reads it: it is named or skipped, and no other record is blamed."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from typing import Any

import cloudpickle
import pytest
from helpers.error_text import notes_of
from helpers.waiting import SOON_S, read_in_time, wait_until
from helpers.worker_faults import WAYS_TO_END, AlwaysAt, TwiceAt, WaitsAt, kill_this_process, raising
from helpers.worker_pools import jobs_of, numbers, open_on, worker_pool

import bushel
from bushel._src.engine.pool.scheduling import FEWEST_DEATHS
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Doing
from bushel.experimental import get_next_index, set_next_index

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


POISONED = {
    "elements": (lambda f: numbers(200).map(f), "element 77", list(range(77))),
    "map elements": (lambda f: bushel.MapDataset.range(200).map(f).to_iter_dataset(), "element 77", list(range(77))),
    "batches": (
        lambda f: numbers(200).map(f).batch(4).map(lambda x: x.tolist()),
        "element 77",
        [list(range(x, x + 4)) for x in range(0, 76, 4)],
    ),
    "counted after a filter": (
        lambda f: numbers(200).filter(lambda x: x % 2).map_with_index(lambda i, x: f(x)),
        "element 77",
        list(range(1, 77, 2)),
    ),
}


PROOF = (
    r"killed \d+ worker processes one after the other\. Each of them died while it did nothing else\. The pauses "
    r"between them grew to \d\.\d\d s, and (no other worker|\d+ others?) died meanwhile, so no kill from outside is "
    r"likely to be the cause\. The last one "
)


@pytest.mark.parametrize("way", ["SIGKILL", "os._exit(0)"])
@pytest.mark.parametrize("stream", POISONED)
def test_a_record_that_kills_every_worker_is_named(stream, way):
    make, named, before = POISONED[stream]
    ds = make(AlwaysAt(77, WAYS_TO_END[way]))
    with worker_pool() as executor, open_on(ds, executor) as it:
        assert list(itertools.islice(it, len(before))) == before
        state = it.get_state()
        begun = time.monotonic()
        for _ in range(2 if stream == "elements" else 1):  # it stands where it stood, and tries again
            with pytest.raises(bushel.WorkerDied, match=PROOF) as caught:
                next(it)
            assert it.get_state() == state
            assert executor.report().deaths >= FEWEST_DEATHS
            message = str(caught.value)
            assert f"{named} of the output" in message
            assert "77" in message.partition("record")[2] and "of range(200)" in message
            assert {"SIGKILL": "was killed by SIGKILL", "os._exit(0)": "ended with exit code 0"}[way] in message
        assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize("num_workers", [1, 3])
def test_each_of_several_records_that_kill_is_skipped_alone(num_workers):
    ds = (
        numbers(4000)
        .map(AlwaysAt(77, kill_this_process))
        .filter(lambda x: x % 2)
        .map(AlwaysAt(3001, kill_this_process))
    )
    ds = ds.map_with_index(lambda i, x: (i, x)).with_options(on_error="skip")
    with worker_pool(num_workers) as executor, open_on(ds, executor) as it:
        assert read_in_time(it) == list(enumerate(x for x in range(1, 4000, 2) if x not in (77, 3001)))
        assert it.skipped == 2


@pytest.mark.parametrize("begun_again", [False, True], ids=["at once", "after the old block has begun again"])
@pytest.mark.parametrize("deaths", [1, 2])
def test_deaths_in_blocks_from_before_set_state_count(deaths, begun_again, tmp_path):
    """After `set_state` the same records come in new blocks: workers that died over the old ones died of them, too."""
    waiting, allowances = tmp_path / "waiting", tmp_path / "allowances"
    allowances.mkdir()

    def wait_and_die() -> None:
        waiting.touch()
        while not (allowed := list(allowances.iterdir())):
            time.sleep(0.002)
        waiting.unlink()
        allowed[0].unlink()
        kill_this_process()

    def allow(count: int) -> None:
        for number in range(count):
            (allowances / str(number)).touch()

    with worker_pool(1) as executor, open_on(numbers(1000).map(AlwaysAt(600, wait_and_die)), executor) as it:
        assert list(itertools.islice(it, 100)) == list(range(100))
        state = it.get_state()
        allow(deaths)
        wait_until(lambda: executor.report().deaths == deaths)
        if begun_again:
            wait_until(waiting.exists)
        it.set_state(state)
        allow(100)
        assert list(itertools.islice(it, 500)) == list(range(100, 600))
        with pytest.raises(bushel.WorkerDied, match=r"element 600 of the output .* killed \d+ worker processes"):
            next(it)


@pytest.mark.parametrize("at", [0, 7, 39])
@pytest.mark.parametrize("place", ["the counting step", "after it"])
def test_a_record_that_kills_in_a_stage_of_rows_is_counted_as_if_it_had_raised(at, place):
    def made(deed: Any) -> Any:
        rows = numbers(40).window_shuffle(5, seed=1)
        if place == "after it":
            rows = rows.map_with_index(lambda i, x: (i, x)).map(lambda x: (x[0], AlwaysAt(at, deed)(x[1])))
        else:
            rows = rows.map_with_index(lambda i, x: (i, AlwaysAt(at, deed)(x)))
        return rows.with_options(on_error="skip")

    with open_on(made(raising(ValueError)), None) as it:
        expected = list(it), it.get_state()["parent"]  # the rest knows the function
    # With a timeout all that workers can do is left to them.
    with worker_pool(timeout_s=60.0) as executor, open_on(made(kill_this_process), executor) as it:
        assert (read_in_time(it), it.get_state()["parent"]) == expected
        assert it.skipped == 1


class KillsWhenPickled:
    def __reduce__(self) -> Any:
        kill_this_process()
        return str, ()


def test_a_record_that_kills_when_it_is_sent_is_the_one_that_is_skipped():
    ds = numbers(2000).map(lambda x: KillsWhenPickled() if x == 1234 else x).with_options(on_error="skip")
    with worker_pool() as executor, open_on(ds, executor) as it:
        assert read_in_time(it) == [x for x in range(2000) if x != 1234]
        assert it.skipped == 1


def test_a_batch_that_kills_when_it_is_sent_is_the_one_that_is_named():
    ds = numbers(2000).map(lambda x: KillsWhenPickled() if x == 1234 else x).batch(4, batch_fn=list)
    with worker_pool() as executor, open_on(ds, executor) as it:
        assert list(itertools.islice(it, 308)) == [list(range(x, x + 4)) for x in range(0, 1232, 4)]
        with pytest.raises(bushel.WorkerDied, match="one of the elements 1232 to 1235 of the output"):
            next(it)


def kill_at(executor: Processes, low: int, *, alone: bool) -> None:
    """Kills the worker that is at the block from `low` on, once it has begun; with `alone`, once it runs row by row."""
    supervisor = executor._supervisor

    def at_work() -> list[Any]:
        with supervisor._lock:
            activities = [(worker, worker.whereabouts.read()) for worker in supervisor.workers]
            return [
                worker
                for worker, activity in activities
                if activity.doing is (Doing.ROW if alone else Doing.BLOCK) and activity.row[0] == low
            ]

    (worker,) = wait_until(at_work)
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: worker not in supervisor.workers)


def test_an_element_that_was_at_work_when_somebody_killed_workers_is_not_blamed(tmp_path):
    waits = WaitsAt(tmp_path)
    with worker_pool(2) as executor, open_on(numbers(100).map(waits), executor) as it:
        it.start_prefetch()
        wait_until(lambda: [0, 2] in jobs_of(executor) or [0] in jobs_of(executor))
        for turn in range(6):  # each time, the other worker dies as well
            kill_at(executor, 0, alone=turn > 0)
            idle = wait_until(lambda: [worker for worker in executor._supervisor.workers if not worker.jobs])[0]
            os.kill(idle.pid, signal.SIGKILL)
            wait_until(lambda idle=idle: idle not in executor._supervisor.workers)
        waits.go_on.touch()
        assert read_in_time(it) == list(range(100))


def test_deaths_at_different_elements_of_a_block_blame_none(tmp_path):
    ds = numbers(1000)
    for at in (600, 610):  # of 610, two deaths are seen after one at 600
        ds = ds.map(TwiceAt(tmp_path / str(at), at, kill_this_process))
    with worker_pool(1) as executor, open_on(ds, executor) as it:
        assert read_in_time(it) == list(range(1000))
        assert executor.report().deaths == 4


def test_a_fault_of_the_workers_own_code_is_raised_the_first_time(capfd):
    def break_the_worker(index: int, count: int) -> None:
        def fail(*_: Any) -> None:
            raise KeyError("a fault in the worker's loop")

        from bushel._src.engine.processes import worker

        worker._ProcessWorker._get_slot = fail

    with worker_pool(2, init=break_the_worker) as executor, open_on(numbers(100), executor) as it:
        with pytest.raises(KeyError, match="a fault in the worker's loop") as caught:
            read_in_time(it)
        assert "A worker process failed at 'task', which is a fault of Bushel's" in notes_of(caught.value)
        assert executor.report().deaths <= 1
    assert "Traceback" not in capfd.readouterr().err


def test_past_a_record_that_kills_every_worker_the_stream_goes_on():
    with worker_pool() as executor, open_on(numbers(40).map(AlwaysAt(7, kill_this_process)), executor) as it:
        assert list(itertools.islice(it, 7)) == list(range(7))
        with pytest.raises(bushel.WorkerDied):
            next(it)
        set_next_index(it, get_next_index(it) + 1)
        assert list(it) == list(range(8, 40))


def test_the_error_names_the_record_and_not_only_the_place():
    ds = bushel.MapDataset.source([3, 1, 4, 1, 5, 9, 2, 6]).shuffle(seed=5).map(AlwaysAt(9, kill_this_process))
    with open_on(ds.to_iter_dataset(), None) as it:
        assert it.get_state()["next_index"] == 0
    with worker_pool() as executor, open_on(ds.to_iter_dataset(), executor) as it:
        with pytest.raises(bushel.WorkerDied, match=r"record 5 of ") as caught:
            list(it)
        assert f"element {it.get_state()['next_index']} of the output" in str(caught.value)
