"""Workers die, by any signal and at any moment: nothing is lost, nothing is doubled, nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.processes import alive, descriptors, named_memory, workers, zygote
from helpers.waiting import SOON_S, read_in_time, wait_until
from helpers.worker_faults import WAYS_TO_END, OnceAt, TwiceAt, WaitsAt, kill_this_process
from helpers.worker_pools import image_of, jobs_of, numbers, open_on, worker_pool

import bushel
from bushel._src.engine.processes.executor import Processes
from bushel.experimental import FirstFitPackIterDataset
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


def large_bytes(x: int) -> bytes:
    return x.to_bytes(4, "little") * (1 << 20)


def tokens(x: int) -> dict[str, Any]:
    return {"tokens": np.arange(1 + x * 7919 % 97, dtype=np.int32) + x}


def packed(num_epochs: int | None = 1) -> Any:
    """Sequences read and filtered by workers, packed in order, and worked on by workers again."""
    positions = bushel.MapDataset.range(2500).seed(1).shuffle().repeat(num_epochs)
    sequences = positions.to_iter_dataset(bushel.ReadOptions(0, 0)).map(tokens).filter(lambda x: len(x["tokens"]) % 5)
    rows = FirstFitPackIterDataset(sequences, length_struct={"tokens": 256}, num_packing_bins=8)
    return rows.random_map(lambda x, rng: (time.sleep(0.0005), {**x, "noise": rng.random(64)})[1], seed=7).batch(4)


STREAMS = {
    "elements": lambda: bushel.MapDataset.range(3000).shuffle(seed=1).to_iter_dataset(),
    "images": lambda: numbers(1500).map(image_of),
    "batches": lambda: bushel.MapDataset.range(4000).map(image_of).batch(16).to_iter_dataset(),
    "batches of a stream": lambda: numbers(4000).map(image_of).batch(16),
    "counted after a filter": lambda: (
        numbers(3000).filter(lambda x: x % 3).random_map(lambda x, rng: (x, rng.integers(1 << 40)), seed=1)
    ),
    "batches after a filter": lambda: (
        numbers(4000)
        .filter(lambda x: x % 3)
        .random_map(lambda x, rng: rng.random((50, 50)) + x, seed=1)
        .batch(16)
        .map_with_index(lambda i, x: (i, x))
    ),
    "packed": lambda: packed(),
    "shuffled in windows": lambda: numbers(1500).filter(lambda x: x % 5).window_shuffle(40, seed=3).map(image_of),
    "bytes that are no array": lambda: numbers(40).map(large_bytes),
    "a mixture": lambda: bushel.IterDataset.mix(
        [numbers(900).filter(lambda x: x % 2).map_with_index(lambda i, x: (i, x)), numbers(900).batch(2)], [1, 2]
    ),
}


def run_with_kills(ds: Any, executor: Processes, kills: int, seed: int, *, at_least: int = 0) -> int:
    """Reads a stream while workers are killed, compares each element and state, and returns how many were killed.

    All workers are killed in the first turn.
    """
    rng, killed = random.Random(seed), 0
    with open_on(ds, None) as undisturbed, open_on(ds, executor) as it:
        for count, expected in enumerate(undisturbed, 1):
            if killed < kills and rng.random() < 0.3:
                # On a slow machine the elements may be in the buffer while the workers of the last turn are replaced.
                pids = sorted(wait_until(lambda: alive(executor.pids())))
                for pid in rng.sample(pids, min(rng.choice([1, 1, 2]), len(pids))) if killed else pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed += 1
            assert same(next(it), expected)
            assert it.get_state() == undisturbed.get_state()
            if killed >= kills and at_least and count >= at_least:
                return killed
        assert next(it, "end") == "end"
        assert next(undisturbed, "end") == "end"
        assert it.get_state() == undisturbed.get_state()
    return killed


@pytest.mark.parametrize("stream", STREAMS)
def test_killed_workers_lose_and_double_nothing(stream):
    with worker_pool() as executor:
        first = set(executor.pids())
        assert run_with_kills(STREAMS[stream](), executor, kills=6, seed=len(stream)) >= 4
        assert set(executor.pids()) != first
        wait_until(lambda: len(alive(executor.pids())) == 2)


@pytest.mark.parametrize("stream", ["batches", "batches after a filter"])
def test_killed_workers_lose_and_double_nothing_without_memfd(stream):
    with worker_pool(portable=True) as executor:
        assert run_with_kills(STREAMS[stream](), executor, kills=6, seed=1) >= 4


@contextlib.contextmanager
def killer(executor: Processes, kills: int, seed: int) -> Iterator[threading.Event]:
    """Kills workers at moments of its own, and twice the process that forks them."""
    done, leave = threading.Event(), threading.Event()

    def kill() -> None:
        rng = random.Random(seed)
        for number in range(kills):
            if leave.wait(rng.uniform(0.03, 0.12)):
                return
            victim = zygote() if number in (kills // 3, 2 * kills // 3) else rng.choice(executor.pids() or [None])
            if victim:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
        done.set()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        leave.set()
        thread.join(SOON_S)


def batches_of_images() -> Any:
    ds = bushel.MapDataset.range(5000).seed(1).shuffle().repeat().to_iter_dataset(bushel.ReadOptions(0, 0))
    ds = ds.filter(lambda x: x % 3).random_map(lambda x, rng: rng.integers(0, 255, (40, 40)) + x).map(image_of_image)
    return ds.batch(8)


CHAOS = {"batches": batches_of_images, "packed": lambda: packed(num_epochs=None)}


def check_chaos(ds: Any, kills: int, seed: int, *, by_thread: bool = False) -> None:
    before = workers()
    with worker_pool(3, budget_bytes=64 << 20) as executor:
        if by_thread:
            with killer(executor, kills, seed) as done, open_on(ds, executor) as it, open_on(ds, None) as undisturbed:
                while not done.is_set():
                    assert same(next(it), next(undisturbed))
                    assert it.get_state() == undisturbed.get_state()
        else:
            assert run_with_kills(ds, executor, kills, seed, at_least=100) >= kills
        supervisor = executor._supervisor
        wait_until(lambda: not any(worker.jobs for worker in supervisor.workers))
        assert supervisor.buffer.arena is not None
        wait_until(lambda: supervisor.buffer.arena.count_held() == 0)
        wait_until(lambda: len(alive(executor.pids())) == 3)
        assert not named_memory([os.getpid(), *executor.pids()])
    wait_until(lambda: workers() <= before)


def image_of_image(x: np.ndarray) -> dict[str, Any]:
    return {"x": x.astype(np.float32), "sum": int(x.sum())}


@pytest.mark.parametrize("stream", CHAOS)
def test_fifty_kills_lose_and_double_nothing(stream):
    check_chaos(CHAOS[stream](), kills=50, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by_thread", [False, True], ids=["between elements", "at any moment"])
@pytest.mark.parametrize("stream", CHAOS)
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_at_any_moment_lose_and_double_nothing(stream, seed, by_thread):
    check_chaos(CHAOS[stream](), kills=100, seed=seed, by_thread=by_thread)


def test_the_check_of_killed_workers_can_fail():
    class Forgetful(Processes):
        def wait(self, ticket: Any) -> Any:
            result, seconds = super().wait(ticket)
            result.rows, result.marks = list(result.rows)[1:], result.marks[1:]  # as if one had been lost
            return result, seconds

    executor = Forgetful(2)
    with contextlib.closing(executor), pytest.raises((AssertionError, StopIteration)):
        run_with_kills(STREAMS["elements"](), executor, kills=1, seed=0)


@pytest.mark.parametrize("way", WAYS_TO_END)
def test_a_worker_may_leave_in_any_way(tmp_path, way):
    ds = numbers(300).map(OnceAt(tmp_path, 137, WAYS_TO_END[way])).batch(4)
    with worker_pool() as executor, open_on(ds, executor) as it:
        assert [x for batch in it for x in batch.tolist()] == list(range(300))
    assert (tmp_path / "done").exists()


class DiesWhenPickled:
    """Kills the process that pickles it, once; what came before it in the block lies in the slot already."""

    def __init__(self, folder: Any):
        self.once = OnceAt(folder, 0, kill_this_process)

    def __reduce__(self) -> Any:
        self.once(0)
        return str, ("alive",)


def test_a_worker_may_die_while_it_writes_its_results(tmp_path):
    # Made in the worker: nobody else is to pickle it.
    ds = numbers(60).map(lambda x: (np.full(30_000, x), DiesWhenPickled(tmp_path) if x == 40 else "alive"))
    with worker_pool() as executor, open_on(ds, executor) as it:
        number = -1
        for number, (array, word) in enumerate(it):
            assert word == "alive"
            assert (array == number).all()
        assert number == 59
    assert (tmp_path / "done").exists()


COUNTED = {
    "elements": lambda: numbers(300),
    "counted": lambda: numbers(300).filter(lambda x: True).map_with_index(lambda i, x: i),
}


@pytest.mark.parametrize("stream", COUNTED)
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_all_workers_may_die(num_workers, stream):
    with worker_pool(num_workers) as executor, open_on(COUNTED[stream](), executor) as it:
        found = list(itertools.islice(it, 3))
        for _ in range(5):
            wait_until(lambda: len(alive(executor.pids())) == num_workers)
            for pid in executor.pids():
                with contextlib.suppress(ProcessLookupError):  # one of the last turn, dead a moment ago
                    os.kill(pid, signal.SIGKILL)
            found += read_in_time(itertools.islice(it, 20))
        found += read_in_time(it)
    assert found == list(range(300))


@pytest.mark.parametrize("stream", COUNTED)
def test_all_workers_die_in_one_moment(stream):
    with worker_pool(2) as executor, open_on(COUNTED[stream](), executor) as it:
        supervisor, victims = executor._supervisor, executor.pids()
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        it.start_prefetch()
        wait_until(lambda: jobs_of(executor) == [[0, 2], [1, 3]])
        with supervisor._lock:  # the pool's thread is kept from looking until both are dead
            supervisor._connections.wake()
            wait_until(lambda: not select.select([supervisor._connections._wake_reader], [], [], 0)[0])
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda pid=pid: not alive([pid]))
        assert read_in_time(it) == list(range(300))


@pytest.mark.parametrize("at", [0, 500, 999])
def test_a_block_that_killed_two_workers_is_counted_as_any_other(tmp_path, at):
    ds = numbers(1000).map(TwiceAt(tmp_path, at, kill_this_process)).filter(lambda x: x % 3)
    ds = ds.random_map(lambda x, rng: (x, rng.integers(1 << 40)), seed=1).map_with_index(lambda i, x: (i, x))
    with worker_pool() as executor, open_on(ds, executor) as it:
        found = list(it)
    assert (tmp_path / "two" / "done").exists()
    with open_on(ds, None) as it:  # now it kills nobody
        assert found == list(it)


def test_idle_workers_may_die():
    with worker_pool() as executor, open_on(numbers(10), executor) as it:
        victims = executor.pids()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not set(victims) & set(executor.pids()))
        assert list(it) == list(range(10))


def test_a_worker_dies_while_another_waits_for_its_counts(tmp_path):
    waits = WaitsAt(tmp_path)
    ds = numbers(100).filter(lambda x: True).map_with_index(lambda i, x: x).map(waits)
    with worker_pool() as executor, open_on(ds, executor) as it:
        it.start_prefetch()
        # One worker stands at element 0 and has element 2 before it; the other has done 1 and asks for 3.
        wait_until(lambda: jobs_of(executor) == [[0, 2], [3]])
        wait_until(waits.begun.exists)
        victim = next(worker.pid for worker in executor._supervisor.workers if worker.jobs[0].task.low == 0)
        waits.go_on.touch()
        os.kill(victim, signal.SIGKILL)
        assert read_in_time(it) == list(range(100))


def test_workers_that_die_waiting_have_not_died_of_an_element(tmp_path):
    waits = WaitsAt(tmp_path)
    ds = numbers(100).map(waits).filter(lambda x: True).map_with_index(lambda i, x: x)
    with worker_pool(2) as executor, open_on(ds, executor) as it:
        it.start_prefetch()
        supervisor = executor._supervisor
        for _ in range(8):  # all that time, element 1 has been computed and waits for the count of element 0
            waiting = wait_until(
                lambda: [worker for worker in supervisor.workers if worker.jobs and worker.jobs[0].count_request]
            )
            os.kill(waiting[0].pid, signal.SIGKILL)
            wait_until(lambda worker=waiting[0]: worker not in supervisor.workers)
        waits.go_on.touch()
        assert read_in_time(it) == list(range(100))


@pytest.mark.parametrize("how", ["os.system", "os.fork"])
def test_a_killed_worker_is_noticed_though_its_child_lives(tmp_path, how):
    children = tmp_path / "children"

    def leave_a_child() -> None:
        if how == "os.system":
            os.system(f"sleep 600 & echo $! > {children}")
        else:
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            children.write_text(str(child))
        kill_this_process()

    ds = numbers(100).map(OnceAt(tmp_path, 30, leave_a_child))
    try:
        with worker_pool() as executor, open_on(ds, executor) as it:
            assert read_in_time(it) == list(range(100))
    finally:
        if children.exists():
            os.kill(int(children.read_text()), signal.SIGKILL)


def test_workers_that_die_before_they_have_begun_are_an_error(monkeypatch):
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    before = workers()
    with worker_pool(init=lambda index, count: kill_this_process()) as executor, open_on(numbers(20), executor) as it:
        says = (
            r"Worker processes keep dying before they finish anything: worker_init_fn=\S+ killed \d+ worker "
            r"processes one after the other\. .*\. The last one was killed by SIGKILL\."
        )
        with pytest.raises(bushel.WorkerDied, match=says):
            read_in_time(it)
        thread = executor._supervisor._thread
    wait_until(lambda: not thread.is_alive())
    assert not died
    wait_until(lambda: workers() <= before)


def test_faults_leave_no_files_open():
    def once(number: int) -> None:
        with worker_pool() as executor:
            run_with_kills(STREAMS["batches"](), executor, kills=4, seed=number)

    once(0)
    before = wait_until(descriptors)
    for number in range(1, 4):
        once(number)
    wait_until(lambda: descriptors() <= before)


def test_states_taken_among_faults_are_json_and_restore_anywhere():
    ds = STREAMS["counted after a filter"]()
    with open_on(ds, None) as it:
        expected = list(it)
    with worker_pool() as executor, open_on(ds, executor) as it:
        found = list(itertools.islice(it, 100))
        for pid in executor.pids():
            os.kill(pid, signal.SIGKILL)
        saved = json.loads(json.dumps(it.get_state()))
    with open_on(ds, None) as it:
        it.set_state(saved)
        assert found + list(it) == expected
