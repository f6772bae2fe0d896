"""`timeout_s` is for the time that a worker computes one element, and for nothing else."""

from __future__ import annotations

import itertools
import sys
import time

import cloudpickle
import pytest
from helpers.waiting import SOON_S, read_in_time, wait_until
from helpers.worker_faults import AlwaysAt, WaitsAt, sleep_for_ever
from helpers.worker_pools import image_of, jobs_of, numbers, open_on, worker_pool

import bushel
from bushel.experimental import set_next_index

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


def test_a_record_that_takes_too_long_is_named():
    with worker_pool(timeout_s=1.0) as executor, open_on(numbers(60).map(AlwaysAt(23, sleep_for_ever)), executor) as it:
        assert list(itertools.islice(it, 23)) == list(range(23))
        begun = time.monotonic()
        with pytest.raises(
            bushel.WorkerDied,
            match=r"element 23 of the output \(record 23 of range\(60\)\) took longer than timeout_s=1",
        ):
            next(it)
        assert time.monotonic() - begun < SOON_S
        set_next_index(it, 24)
        assert list(it) == list(range(24, 60))


def test_a_timeout_is_for_one_element():
    def slow_at_the_end(x: int) -> int:
        if x >= 3000:
            time.sleep(0.03)
        return x

    # A block of the fast ones, learned before, would take longer than the limit; no element does.
    with worker_pool(timeout_s=2.0) as executor, open_on(numbers(3080).map(slow_at_the_end), executor) as it:
        assert list(it) == list(range(3080))


class Clock:
    """Stands for the module `time` of the pool's thread. `let_pass` makes it later, in no time."""

    def __init__(self) -> None:
        self.added_s, self.read = 0.0, 0

    def monotonic(self) -> float:
        self.read += 1
        return time.monotonic() + self.added_s

    def let_pass(self, seconds: float) -> None:
        """Returns after the pool's thread has looked twice how late it is. With a limit it does so all the time."""
        self.added_s += seconds
        read = self.read
        wait_until(lambda: self.read > read + 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("bushel._src.engine.processes.executor.time", clock)
    monkeypatch.setattr("bushel._src.engine.pool.supervisor.time", clock)
    return clock


def test_a_slow_start_is_no_timeout(tmp_path, clock):
    waits = WaitsAt(tmp_path)
    with (
        worker_pool(1, timeout_s=600.0, init=lambda index, count: waits(0) and None) as executor,
        open_on(numbers(20), executor) as it,
    ):
        it.start_prefetch()
        wait_until(lambda: jobs_of(executor) != [[]])
        wait_until(waits.begun.exists)
        clock.let_pass(1000)
        waits.go_on.touch()
        assert read_in_time(it) == list(range(20))
        assert executor.report().deaths == 0


def test_waiting_for_the_consumer_is_no_timeout(clock):
    with worker_pool(timeout_s=600.0) as executor, open_on(numbers(2000).map(image_of), executor) as it:
        next(it)
        wait_until(lambda: not any(jobs_of(executor)))  # the buffer is full
        clock.let_pass(1000)
        next(it)
        assert executor.report().deaths == 0


def test_waiting_for_counts_of_another_is_no_timeout(tmp_path, clock):
    (tmp_path / "one").mkdir()
    one, other = WaitsAt(tmp_path, 0), WaitsAt(tmp_path / "one", 1)
    # Element 1 waits for the count of element 0, and is as slow itself: more than the limit in all, and less each.
    ds = numbers(200).map(one).filter(lambda x: True).map_with_index(lambda i, x: x).map(other)
    with worker_pool(timeout_s=600.0) as executor, open_on(ds, executor) as it:
        it.start_prefetch()
        both = executor._supervisor.workers
        wait_until(lambda: any(worker.jobs and worker.jobs[0].count_request for worker in both))
        wait_until(lambda: any(worker.jobs and worker.jobs[0].task.low == 0 and worker.running for worker in both))
        clock.let_pass(400)
        one.go_on.touch()
        wait_until(other.begun.exists)
        clock.let_pass(400)
        other.go_on.touch()
        assert read_in_time(it) == list(range(200))
        assert executor.report().deaths == 0


def test_the_checks_of_timeouts_can_fail(tmp_path, clock):
    waits = WaitsAt(tmp_path)
    with worker_pool(1, timeout_s=600.0) as executor, open_on(numbers(20).map(waits), executor) as it:
        it.start_prefetch()
        wait_until(lambda: any(worker.running for worker in executor._supervisor.workers))
        clock.let_pass(1000)
        waits.go_on.touch()
        assert read_in_time(it) == list(range(20))
        assert executor.report().deaths == 1
