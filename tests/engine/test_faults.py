"""What may go wrong with worker processes, each with its good end: nothing lost, nothing doubled, nothing left.

The cases are those in which Grain hung, lost elements or left processes and shared memory behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import importlib.util
import itertools
import json
import os
import random
import select
import signal
import sys
import sysconfig
import textwrap
import threading
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.processes import (
    alive,
    descriptors,
    memory_of,
    named_memory,
    offspring,
    run_script,
    start_script,
    workers,
    zygote,
)
from helpers.waiting import SOON_S, wait_until

import bushel
from bushel.engine.pool.activity import Doing
from bushel.engine.pool.blame import FEWEST_DEATHS
from bushel.engine.pool.result_buffer import ResultBuffer
from bushel.engine.processes.executor import Processes
from bushel.experimental import FirstFitPackIterDataset, get_next_index, set_next_index
from bushel.iterator import PipelineIterator
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

TWO = bushel.MultiprocessingOptions(num_workers=2)


@contextlib.contextmanager
def pool(num_workers: int = 2, **options: Any) -> Iterator[Processes]:
    executor = Processes(num_workers, **options)
    try:
        yield executor
    finally:
        executor.close()


def opened(ds: Any, executor: Processes | None) -> PipelineIterator[Any]:
    return PipelineIterator(ds._node, bushel.ReadOptions(0, 0), executor)


def numbers(length: int) -> Any:
    return bushel.MapDataset.range(length).to_iter_dataset(bushel.ReadOptions(0, 0))


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


class Once:
    """The identity, but for one element, the first time it is seen by anyone: then the deed is done."""

    def __init__(self, folder: Any, at: int, deed: Any):
        self.mark, self.at, self.deed = str(folder / "done"), at, deed

    def __call__(self, x: Any) -> Any:
        if x == self.at:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                self.deed()
        return x


class Always:
    """The identity, but for one element: then the deed is done."""

    def __init__(self, at: int, deed: Any):
        self.at, self.deed = at, deed

    def __call__(self, x: Any) -> Any:
        if x == self.at:
            self.deed()
        return x


class Waits:
    """The identity, but for one element: that one waits until a file is there."""

    def __init__(self, folder: Any, at: int = 0):
        self.begun, self.go_on, self.at = folder / "begun", folder / "go on", at

    def __call__(self, x: Any) -> Any:
        if x == self.at:
            self.begun.touch()
            while not self.go_on.exists():
                time.sleep(0.002)
        return x


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(600)


def spin() -> None:
    while True:
        pass


def stop_myself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def run_in_c() -> None:
    ctypes.PyDLL(None).sleep(600)  # without letting go of the interpreter lock


WAYS_TO_LEAVE = {
    "SIGKILL": kill_myself,
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "SIGBUS": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(3)": lambda: os._exit(3),
}

# ---------------------------------------------------------------------------------------------------------------------
# Workers die: nothing is lost, nothing is doubled


def image(x: int) -> dict[str, Any]:
    return {"image": np.full((64, 64), x, np.int32), "label": x}


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
    "images": lambda: numbers(1500).map(image),
    "batches": lambda: bushel.MapDataset.range(4000).map(image).batch(16).to_iter_dataset(),
    "batches of a stream": lambda: numbers(4000).map(image).batch(16),
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
    "shuffled in windows": lambda: numbers(1500).filter(lambda x: x % 5).window_shuffle(40, seed=3).map(image),
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
    with opened(ds, None) as undisturbed, opened(ds, executor) as it:
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
    with pool() as executor:
        first = set(executor.pids())
        assert run_with_kills(STREAMS[stream](), executor, kills=6, seed=len(stream)) >= 4
        assert set(executor.pids()) != first
        wait_until(lambda: len(alive(executor.pids())) == 2)


@pytest.mark.parametrize("stream", ["batches", "batches after a filter"])
def test_the_same_holds_without_memfd(stream):
    with pool(portable=True) as executor:
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
    with pool(3, budget_bytes=64 << 20) as executor:
        if by_thread:
            with killer(executor, kills, seed) as done, opened(ds, executor) as it, opened(ds, None) as undisturbed:
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
def test_chaos(stream):
    check_chaos(CHAOS[stream](), kills=50, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by_thread", [False, True], ids=["between elements", "at any moment"])
@pytest.mark.parametrize("stream", CHAOS)
@pytest.mark.parametrize("seed", range(3))
def test_much_chaos(stream, seed, by_thread):
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


@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
def test_a_worker_may_leave_in_any_way(tmp_path, way):
    ds = numbers(300).map(Once(tmp_path, 137, WAYS_TO_LEAVE[way])).batch(4)
    with pool() as executor, opened(ds, executor) as it:
        assert [x for batch in it for x in batch.tolist()] == list(range(300))
    assert (tmp_path / "done").exists()


class DiesWhenPickled:
    """Kills the process that pickles it, once; what came before it in the block lies in the slot already."""

    def __init__(self, folder: Any):
        self.once = Once(folder, 0, kill_myself)

    def __reduce__(self) -> Any:
        self.once(0)
        return str, ("alive",)


def test_a_worker_may_die_while_it_writes_its_results(tmp_path):
    # Made in the worker: nobody else is to pickle it.
    ds = numbers(60).map(lambda x: (np.full(30_000, x), DiesWhenPickled(tmp_path) if x == 40 else "alive"))
    with pool() as executor, opened(ds, executor) as it:
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


def jobs_of(executor: Processes) -> list[list[int]]:
    """The first elements of the blocks that each worker has before it."""
    with executor._supervisor._lock:
        return sorted([job.task.low for job in worker.jobs] for worker in executor._supervisor.workers)


@pytest.mark.parametrize("stream", COUNTED)
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_all_workers_may_die(num_workers, stream):
    with pool(num_workers) as executor, opened(COUNTED[stream](), executor) as it:
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
    with pool(2) as executor, opened(COUNTED[stream](), executor) as it:
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


class Twice:
    """The identity, but for one element, the first two times it is seen by anyone: then the deed is done."""

    def __init__(self, folder: Any, at: int, deed: Any):
        self.one, self.two = (Once(folder / name, at, deed) for name in ("one", "two"))

    def __call__(self, x: Any) -> Any:
        return self.two(self.one(x))


@pytest.mark.parametrize("at", [0, 500, 999])
def test_a_block_that_killed_two_workers_is_counted_as_any_other(tmp_path, at):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    ds = numbers(1000).map(Twice(tmp_path, at, kill_myself)).filter(lambda x: x % 3)
    ds = ds.random_map(lambda x, rng: (x, rng.integers(1 << 40)), seed=1).map_with_index(lambda i, x: (i, x))
    with pool() as executor, opened(ds, executor) as it:
        found = list(it)
    assert (tmp_path / "two" / "done").exists()
    with opened(ds, None) as it:  # now it kills nobody
        assert found == list(it)


def test_idle_workers_may_die():
    with pool() as executor, opened(numbers(10), executor) as it:
        victims = executor.pids()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not set(victims) & set(executor.pids()))
        assert list(it) == list(range(10))


def test_a_worker_dies_while_another_waits_for_its_counts(tmp_path):
    waits = Waits(tmp_path)
    ds = numbers(100).filter(lambda x: True).map_with_index(lambda i, x: x).map(waits)
    with pool() as executor, opened(ds, executor) as it:
        it.start_prefetch()
        # One worker stands at element 0 and has element 2 before it; the other has done 1 and asks for 3.
        wait_until(lambda: jobs_of(executor) == [[0, 2], [3]])
        wait_until(waits.begun.exists)
        victim = next(worker.pid for worker in executor._supervisor.workers if worker.jobs[0].task.low == 0)
        waits.go_on.touch()
        os.kill(victim, signal.SIGKILL)
        assert read_in_time(it) == list(range(100))


def read_in_time(it: Any, timeout_s: float = SOON_S) -> list[Any]:
    """All that is left, read by a thread that may hang."""
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(list(it))
        except Exception as error:
            found.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout_s)
    assert found, f"nothing within {timeout_s} s"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def test_workers_that_die_waiting_have_not_died_of_an_element(tmp_path):
    waits = Waits(tmp_path)
    ds = numbers(100).map(waits).filter(lambda x: True).map_with_index(lambda i, x: x)
    with pool(2) as executor, opened(ds, executor) as it:
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
        kill_myself()

    ds = numbers(100).map(Once(tmp_path, 30, leave_a_child))
    try:
        with pool() as executor, opened(ds, executor) as it:
            assert read_in_time(it) == list(range(100))
    finally:
        if children.exists():
            os.kill(int(children.read_text()), signal.SIGKILL)


def test_workers_that_die_before_they_have_begun_are_an_error(monkeypatch):
    died: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    before = workers()
    with pool(init=lambda index, count: kill_myself()) as executor, opened(numbers(20), executor) as it:
        says = (
            r"Worker processes keep dying before they finish anything: worker_init_fn=\S+ killed \d+ worker "
            r"processes one after the other\. .*; the last one was killed by SIGKILL\."
        )
        with pytest.raises(bushel.WorkerDied, match=says):
            read_in_time(it)
        thread = executor._supervisor._thread
    wait_until(lambda: not thread.is_alive())
    assert not died
    wait_until(lambda: workers() <= before)


# ---------------------------------------------------------------------------------------------------------------------
# A record that kills its worker every time


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
    r"likely to be the cause; the last one "
)


@pytest.mark.parametrize("way", ["SIGKILL", "os._exit(0)"])
@pytest.mark.parametrize("stream", POISONED)
def test_a_record_that_kills_every_worker_is_named(stream, way):
    make, named, before = POISONED[stream]
    ds = make(Always(77, WAYS_TO_LEAVE[way]))
    with pool() as executor, opened(ds, executor) as it:
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
    ds = numbers(4000).map(Always(77, kill_myself)).filter(lambda x: x % 2).map(Always(3001, kill_myself))
    ds = ds.map_with_index(lambda i, x: (i, x)).with_options(on_error="skip")
    with pool(num_workers) as executor, opened(ds, executor) as it:
        assert read_in_time(it) == list(enumerate(x for x in range(1, 4000, 2) if x not in (77, 3001)))
        assert it.skipped == 2


@pytest.mark.parametrize("begun_again", [False, True], ids=["at once", "after the old block has begun again"])
@pytest.mark.parametrize("deaths", [1, 2])
def test_deaths_in_blocks_that_nobody_waits_for_any_more_count_too(deaths, begun_again, tmp_path):
    """After `set_state` the same records come in new blocks: workers that died over the old ones died of them, too."""
    waiting, allowances = tmp_path / "waiting", tmp_path / "allowances"
    allowances.mkdir()

    def wait_and_die() -> None:
        waiting.touch()
        while not (allowed := list(allowances.iterdir())):
            time.sleep(0.002)
        waiting.unlink()
        allowed[0].unlink()
        kill_myself()

    def allow(count: int) -> None:
        for number in range(count):
            (allowances / str(number)).touch()

    with pool(1) as executor, opened(numbers(1000).map(Always(600, wait_and_die)), executor) as it:
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
            rows = rows.map_with_index(lambda i, x: (i, x)).map(lambda x: (x[0], Always(at, deed)(x[1])))
        else:
            rows = rows.map_with_index(lambda i, x: (i, Always(at, deed)(x)))
        return rows.with_options(on_error="skip")

    with opened(made(raises(ValueError)), None) as it:
        expected = list(it), it.get_state()["parent"]  # the rest knows the function
    # With a timeout all that workers can do is left to them.
    with pool(timeout_s=60.0) as executor, opened(made(kill_myself), executor) as it:
        assert (read_in_time(it), it.get_state()["parent"]) == expected
        assert it.skipped == 1


class KillsWhenPickled:
    def __reduce__(self) -> Any:
        kill_myself()
        return str, ()


def test_a_record_that_kills_when_it_is_sent_is_the_one_that_is_skipped():
    ds = numbers(2000).map(lambda x: KillsWhenPickled() if x == 1234 else x).with_options(on_error="skip")
    with pool() as executor, opened(ds, executor) as it:
        assert read_in_time(it) == [x for x in range(2000) if x != 1234]
        assert it.skipped == 1


def test_a_batch_that_kills_when_it_is_sent_is_the_one_that_is_named():
    ds = numbers(2000).map(lambda x: KillsWhenPickled() if x == 1234 else x).batch(4, batch_fn=list)
    with pool() as executor, opened(ds, executor) as it:
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
    waits = Waits(tmp_path)
    with pool(2) as executor, opened(numbers(100).map(waits), executor) as it:
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
        (tmp_path / str(at) / "one").mkdir(parents=True)
        (tmp_path / str(at) / "two").mkdir()
        ds = ds.map(Twice(tmp_path / str(at), at, kill_myself))
    with pool(1) as executor, opened(ds, executor) as it:
        assert read_in_time(it) == list(range(1000))
        assert executor.report().deaths == 4


def test_a_fault_of_the_worker_itself_is_told_the_first_time(capfd):
    def break_the_worker(index: int, count: int) -> None:
        def fail(*_: Any) -> None:
            raise KeyError("a fault in the worker's loop")

        from bushel.engine.processes import worker

        worker._Worker._get_slot = fail

    with pool(2, init=break_the_worker) as executor, opened(numbers(100), executor) as it:
        with pytest.raises(KeyError, match="a fault in the worker's loop") as caught:
            read_in_time(it)
        assert "a worker process failed at 'task', which is a fault of Bushel's" in notes(caught.value)
        assert executor.report().deaths <= 1
    assert "Traceback" not in capfd.readouterr().err


def test_past_a_record_that_kills_every_worker_the_stream_goes_on():
    with pool() as executor, opened(numbers(40).map(Always(7, kill_myself)), executor) as it:
        assert list(itertools.islice(it, 7)) == list(range(7))
        with pytest.raises(bushel.WorkerDied):
            next(it)
        set_next_index(it, get_next_index(it) + 1)
        assert list(it) == list(range(8, 40))


def test_the_error_names_the_record_and_not_only_the_place():
    ds = bushel.MapDataset.source([3, 1, 4, 1, 5, 9, 2, 6]).shuffle(seed=5).map(Always(9, kill_myself))
    with opened(ds.to_iter_dataset(), None) as it:
        assert it.get_state()["next_index"] == 0
    with pool() as executor, opened(ds.to_iter_dataset(), executor) as it:
        with pytest.raises(bushel.WorkerDied, match=r"record 5 of ") as caught:
            list(it)
        assert f"element {it.get_state()['next_index']} of the output" in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Errors of the user's functions


class Wrong(Exception):
    """An error of the user's own."""


def fail_at_23(x: int) -> int:
    if x == 23:
        raise Wrong(f"I cannot take {x}")
    return x


WHERE = {
    "map": lambda: bushel.MapDataset.range(100).shuffle(seed=3).map(fail_at_23).to_iter_dataset(),
    "map of a stream": lambda: bushel.MapDataset.range(100).shuffle(seed=3).to_iter_dataset().map(fail_at_23),
    "random_map after a filter": lambda: (
        bushel.MapDataset.range(100)
        .shuffle(seed=3)
        .to_iter_dataset()
        .filter(lambda x: x % 5)
        .random_map(lambda x, rng: fail_at_23(x), seed=1)
    ),
    "filter": lambda: bushel.MapDataset.range(100).shuffle(seed=3).to_iter_dataset().filter(fail_at_23),
}


@pytest.mark.parametrize("where", WHERE)
def test_an_error_has_its_type_and_tells_everything(where):
    with opened(WHERE[where](), None) as it, pytest.raises(Wrong):
        list(it)
    place = it.get_state()
    position = place.get("next_index", place.get("parent", {}).get("next_index"))
    with pool() as executor, opened(WHERE[where](), executor) as it:
        errors = []
        for _ in range(2):
            with pytest.raises(Wrong) as caught:
                list(it)
            errors.append(caught.value)
            assert str(caught.value) == "I cannot take 23"
            assert it.get_state() == place
        told = notes(errors[-1])
        assert f"{where.split()[0]}(" in told and "failed at its element" in told
        assert f"element {position}" in told
        assert "record 23 of range(100)" in told
        processes = [int(word.rstrip(".:")) for word in told.partition("in worker process ")[2].split()[:1]]
        assert set(processes) <= set(executor.pids()) and processes
        frames = traceback.extract_tb(errors[-1].__traceback__)
        assert (frames[-1].filename, frames[-1].name) == (__file__, "fail_at_23")
        assert frames[-1].line is not None and frames[-1].line.startswith("raise Wrong(f")
        assert os.path.dirname(bushel.__file__) not in told
        assert told.count("record 23") == 1 and told.count("in worker process") == 1


def test_elements_before_an_error_are_there_and_those_after_it_too():
    with pool() as executor, opened(numbers(100).map(fail_at_23), executor) as it:
        assert list(itertools.islice(it, 23)) == list(range(23))
        with pytest.raises(Wrong):
            next(it)
        set_next_index(it, 24)
        assert list(it) == list(range(24, 100))


def test_an_error_that_passes_is_gone_at_the_next_try(tmp_path):
    def fail() -> None:
        raise OSError("for a moment")

    with pool() as executor, opened(numbers(100).map(Once(tmp_path, 50, fail)), executor) as it:
        found: list[int] = []
        with contextlib.suppress(OSError):
            found.extend(it)
        found += it
    # A function that fails is run again to find the element at fault: by then it may have mended.
    assert found == list(range(100))


class HoldsALock(Exception):
    def __init__(self, message: str):
        super().__init__(message)
        self.lock = threading.Lock()
        self.message = message


class TakesTwo(ValueError):
    """Pickles well, and cannot be built again."""

    def __init__(self, path: str, why: str):
        super().__init__(f"{path}: {why}")
        self.path = path


class SaysMore(Exception):
    """Pickles well, and says something else when it was built again."""

    def __init__(self, path: str, why: str = "unknown"):
        super().__init__(f"{path}: {why}")


class NamedOnly(KeyError):
    def __init__(self, *, key: str):
        super().__init__(key, "is missing")


class OfTheSystem(OSError):
    def __init__(self, path: str, why: str, number: int):
        super().__init__(number, why, path)
        self.path = path


class Unnamed(Exception):
    """Builds itself without arguments that are kept."""

    def __new__(cls, one: int, two: int) -> Any:
        return super().__new__(cls, one)

    def __init__(self, one: int, two: int):
        self.two = two

    def __str__(self) -> str:
        return f"{self.args} and {self.two}"


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Refuses attributes, so notes too."""

    code: int


HOME = os.getpid()


class OnlyThere(Exception):
    """Can be built in a worker and not at home."""

    def __reduce__(self) -> Any:
        return _only_there, (HOME,)


def _only_there(home: int) -> OnlyThere:
    if os.getpid() == home:
        raise OSError("not here")
    return OnlyThere()


class CannotBeShown(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_one(error: Any) -> Any:
    def fail(x: int) -> int:
        if x == 5:
            raise error()
        return x

    return fail


ERRORS = {
    "plain": lambda: ValueError("x", 3),
    "takes two": lambda: TakesTwo("a.jpg", "truncated"),
    "says more": lambda: SaysMore("a.jpg", "truncated"),
    "by name only": lambda: NamedOnly(key="x"),
    "of the system": lambda: OfTheSystem("a.jpg", "gone", 5),
    "with its own __new__": lambda: Unnamed(1, 2),
    "a frozen dataclass": lambda: Frozen(7),
    "of a decoder": lambda: UnicodeDecodeError("utf-8", b"abc", 0, 1, "odd"),
    "of json": lambda: json.JSONDecodeError("odd", "text", 1),
    "a group": lambda: ExceptionGroup("several", [ValueError(1), TakesTwo("b.jpg", "empty")]),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_the_same_with_workers_and_without(error):
    caught = []
    with pool() as executor:
        for where in (None, executor):
            with opened(numbers(9).map(raise_one(ERRORS[error])), where) as it:
                assert list(itertools.islice(it, 5)) == list(range(5))
                with pytest.raises(Exception) as info:
                    next(it)
                caught.append(info.value)
    here, there = caught
    assert type(there) is type(here)
    assert str(there) == str(here)
    attributes = [{k: v for k, v in vars(error).items() if k != "__notes__"} for error in caught]
    assert attributes[0] == attributes[1]
    if error == "a group":
        assert repr(there) == repr(here)
    else:
        assert there.args == here.args
    if error == "of the system":
        assert (there.errno, there.strerror, there.filename) == (5, "gone", "a.jpg")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_that_cannot_be_shown_can_be_skipped(num_workers, caplog):
    ds = bushel.MapDataset.range(9).map(raise_one(CannotBeShown)).to_iter_dataset().with_options(on_error="skip")
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers))) as it:
        assert list(it) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert "CannotBeShown: (its `__str__` failed)" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_that_refuses_attributes_has_its_notes_and_can_be_skipped(num_workers):
    ds = bushel.MapDataset.range(9).map(raise_one(lambda: Frozen(7))).to_iter_dataset()
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers))) as it, pytest.raises(Frozen) as info:
        list(it)
    assert info.value.code == 7
    assert "failed at its element 5" in notes(info.value) and "element 5 of the output" in notes(info.value)
    skipping = ds.with_options(on_error="skip")
    with iter(skipping.mp_prefetch(bushel.MultiprocessingOptions(num_workers))) as it:
        assert list(it) == [0, 1, 2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (lambda: HoldsALock("held tight"), HoldsALock, "held tight"),
        (lambda: ValueError(threading.Lock()), ValueError, "<unlocked"),
        (
            lambda: ValueError(1, threading.Lock()),
            RuntimeError,
            "could not be sent. It said:\nValueError: (1, <unlocked",
        ),
        (CannotBeShown, CannotBeShown, ""),
        (OnlyThere, RuntimeError, "could not be sent. It said:\n"),
    ],
    ids=["holds a lock", "is made of a lock", "is made of a lock and more", "cannot be shown", "only there"],
)
def test_an_error_that_cannot_travel_is_told(error, kind, said):
    with pool() as executor, opened(numbers(9).map(raise_one(error)), executor) as it:
        assert list(itertools.islice(it, 5)) == list(range(5))
        for _ in range(2):
            with pytest.raises(kind) as caught:
                next(it)
            text = f"{BaseException.__str__(caught.value)}\n{notes(caught.value)}"
            assert said in text
            assert "record 5 of range(9)" in text
            assert "in worker process" in text
            if kind is HoldsALock:
                assert caught.value.message == said and "lock could not be sent" in text


class Stop(BaseException):
    """No Exception, so that nobody takes it for one."""


class Own(bushel.DatasetIterator[int]):
    """A stream of a user's own, which fails at an element."""

    def __init__(self, error: Any):
        super().__init__()
        self.row, self.error = 0, error

    def __next__(self) -> int:
        if self.row == 20:
            raise self.error()
        self.row += 1
        return self.row - 1

    def get_state(self) -> dict[str, Any]:
        return {"row": self.row}

    def set_state(self, state: dict[str, Any], *, check: bool = True) -> None:
        self.row = state["row"]


class OfOwn(bushel.IterDataset[int]):
    def __init__(self, error: Any):
        super().__init__()
        self.error = error

    def __iter__(self) -> Own:
        return Own(self.error)


STOPPED = {
    "map": lambda error: numbers(100).map(Always(40, raises(error))),
    "batches": lambda error: numbers(100).map(Always(40, raises(error))).batch(6).map(lambda x: x.tolist()),
    "counted": lambda error: (
        numbers(100).filter(lambda x: x % 3).map_with_index(lambda i, x: (i, x)).map(Always((26, 40), raises(error)))
    ),
    "a stream run whole": lambda error: bushel.IterDataset.mix([OfOwn(error), OfOwn(error)]),
}


def raises(error: Any) -> Any:
    def deed() -> None:
        raise error()

    return deed


@pytest.mark.parametrize("stream", STOPPED)
@pytest.mark.parametrize("error", [Stop, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_what_is_no_exception_is_raised_where_it_belongs(stream, error, capfd):
    def read(it: Any) -> list[Any]:
        found = []
        while True:
            try:
                found.append(next(it))
            except error:
                return found

    with opened(STOPPED[stream](error), None) as it:
        expected = read(it)
        assert len(expected) > 5
    with pool() as executor, opened(STOPPED[stream](error), executor) as it:
        pids = executor.pids()
        assert read(it) == expected
        with pytest.raises(error):
            next(it)
        assert executor.pids() == pids
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("code", [3, None, "bye"])
@pytest.mark.parametrize("in_workers", [False, True])
def test_a_function_that_calls_sys_exit_ends_the_program_and_no_worker(in_workers, code, on_error, capfd):
    ds = numbers(90).map(Always(5, lambda: sys.exit(code))).with_options(on_error=on_error)
    with contextlib.ExitStack() as stack:
        executor = stack.enter_context(pool()) if in_workers else None
        it = stack.enter_context(opened(ds, executor))
        assert list(itertools.islice(it, 5)) == list(range(5))
        for _ in range(2):  # it stands where it stood, and is not skipped
            with pytest.raises(SystemExit) as caught:
                next(it)
            assert caught.value.code == code
            assert "bushel: raised while element 5 of the output was computed." in notes(caught.value)
        assert it.skipped == 0
        assert executor is None or executor.report().deaths == 0
    assert capfd.readouterr() == ("", "")


def test_a_program_whose_function_calls_sys_exit_in_a_worker_ends_with_that_code(tmp_path):
    script = """
        import sys
        import bushel

        def leave(x):
            return sys.exit(7) if x == 30 else x

        if __name__ == "__main__":
            ds = bushel.MapDataset.range(100).map(leave).to_iter_dataset()
            for x in ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)):
                print(x)
    """
    code, out, err = run_script(tmp_path, script)
    assert (code, out.split(), err) == (7, [str(x) for x in range(30)], "")


def test_a_worker_whose_signal_handler_calls_sys_exit_is_replaced(tmp_path):
    """The signal came from outside: the element that the worker happened to compute has nothing to do with it."""

    def die_by_signal(x: int) -> int:
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
        return Once(tmp_path, 37, lambda: os.kill(os.getpid(), signal.SIGUSR1))(x)

    with pool() as executor, opened(numbers(100).map(die_by_signal), executor) as it:
        assert list(it) == list(range(100))
        assert executor.report().deaths == 1


def test_a_cause_that_cannot_travel_does_not_cost_the_type():
    def fail(x: int) -> int:
        try:
            raise HoldsALock("below")
        except HoldsALock as below:
            raise Wrong("above") from below

    with pool() as executor, opened(numbers(9).map(fail), executor) as it:
        with pytest.raises(Wrong, match="above") as caught:
            next(it)
        assert "record 0 of range(9)" in notes(caught.value)


def test_a_cause_travels_along():
    def fail(x: int) -> int:
        try:
            return {}["missing"]
        except KeyError as error:
            raise Wrong("above") from error

    with pool() as executor, opened(numbers(9).map(fail), executor) as it:
        with pytest.raises(Wrong, match="above") as caught:
            next(it)
        assert isinstance(caught.value.__cause__, KeyError)


def test_stop_iteration_of_a_function_does_not_end_the_data():
    with pool() as executor, opened(numbers(9).map(raise_one(StopIteration)), executor) as it:
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(it)
        assert it.get_state()["next_index"] == 5


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be sent


UNSENDABLE = {
    "a lock": lambda: threading.Lock(),
    "a generator": lambda: (x for x in ()),
    "a lock in a tree": lambda: {"x": np.zeros(10_000), "y": [threading.Lock()]},
}


@pytest.mark.parametrize("what", UNSENDABLE)
@pytest.mark.parametrize("at", [0, 41])
def test_an_element_that_cannot_be_sent_is_an_error_and_not_lost(what, at):
    make = UNSENDABLE[what]
    ds = bushel.MapDataset.range(100).shuffle(seed=1).to_iter_dataset().map(lambda x: (x, None))
    record = [x for x, _ in ds][at]
    bad = ds.map(lambda pair: make() if pair[0] == record else pair)
    with pool() as executor, opened(bad, executor) as it:
        assert [x for x, _ in itertools.islice(it, at)] == [x for x, _ in ds][:at]
        state = it.get_state()
        for _ in range(2):
            with pytest.raises(TypeError, match=f"element {at} of the output cannot be sent from a worker process"):
                next(it)
            assert it.get_state() == state
        set_next_index(it, at + 1)
        assert [x for x, _ in it] == [x for x, _ in ds][at + 1 :]


def test_a_batch_that_cannot_be_sent_is_an_error_and_not_lost():
    ds = numbers(40).batch(4).map(lambda x: threading.Lock() if x[0] == 20 else x.tolist())
    with pool() as executor, opened(ds, executor) as it:
        assert [x[0] for x in itertools.islice(it, 5)] == [0, 4, 8, 12, 16]
        with pytest.raises(TypeError, match="cannot be sent from a worker process"):
            next(it)
        set_next_index(it, 6)
        assert [x[0] for x in it] == [24, 28, 32, 36]


class Unreadable:
    """Pickles well, and cannot be built again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_an_element_that_cannot_be_rebuilt_is_an_error():
    ds = numbers(60).map(lambda x: Unreadable() if x == 50 else x)
    with pool() as executor, opened(ds, executor) as it:
        found: list[int] = []
        with pytest.raises(ValueError, match="no number") as info:
            found.extend(it)
        assert found == list(range(50))
        assert "element 50 of the output could not be rebuilt" in notes(info.value)
        with pytest.raises(ValueError, match="no number"):
            list(it)
        set_next_index(it, 51)
        assert list(it) == list(range(51, 60))


@pytest.mark.parametrize("random", [False, True])
def test_an_element_that_cannot_be_rebuilt_can_be_skipped(random):
    def unreadable(x: int, *_: Any) -> Any:
        return Unreadable() if x % 20 == 7 else x

    ds = numbers(60).filter(lambda x: x % 3)
    ds = ds.random_map(unreadable, seed=1) if random else ds.map(unreadable)  # the one asks how many came before
    with pool() as executor, opened(ds.with_options(on_error="skip"), executor) as it:
        assert list(it) == [x for x in range(60) if x % 3 and x % 20 != 7]
        assert it.skipped == 2  # 27 was filtered out


def test_lambdas_and_local_classes_travel():
    class Local:
        def __init__(self, x: int):
            self.x = x

    ds = numbers(20).map(lambda x: (Local(x), lambda: x))
    with pool() as executor, opened(ds, executor) as it:
        for number, (local, function) in enumerate(it):
            assert type(local) is Local and local.x == function() == number


def test_classes_made_in_workers_travel():
    """Each block brings its own: the consumer may have let go of those before, or never have looked at them."""

    def make(x: int) -> Any:
        import builtins

        if not hasattr(builtins, "bushel_made"):
            builtins.bushel_made = type("Made", (), {"twice": lambda self: 2 * self.x})
        made = builtins.bushel_made()
        made.x = x
        return made

    with pool() as executor, opened(numbers(300).map(make), executor) as it:
        it.start_prefetch()
        for number in range(300):
            if number in (0, 5, 50, 100):
                wait_until(lambda: not any(worker.jobs for worker in executor._supervisor.workers))
                it.set_state(it.get_state())  # what was computed ahead is never looked at
                with opened(numbers(10), executor) as other:  # and workers load another pipeline
                    assert list(other) == list(range(10))
            assert next(it).twice() == 2 * number
            if number % 40 == 0:
                gc.collect()


def test_classes_that_are_gone_here_travel(tmp_path):
    script = """
        import gc
        import bushel

        class Thing:
            def __init__(self, x): self.x = x
            def old(self): return self.x

        ds = bushel.MapDataset.range(300).map(lambda x: Thing(x)).to_iter_dataset()
        it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
        next(it)

        class Thing:  # as in a notebook, where a cell is run again
            pass

        gc.collect()
        found = []
        for thing in it:
            found.append(thing.old())
            gc.collect(0)
        print(found == list(range(1, 300)))
    """
    assert run_script(tmp_path, script) == (0, "True\n", "")


class HasALock:
    """A source that cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return index


lock = threading.Lock()


def holds_a_lock(x: int) -> Any:
    return x if lock else None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: numbers(5).map(lambda x: x).map(holds_a_lock).batch(2), r"map\(holds_a_lock\)"),
        (lambda: bushel.MapDataset.range(5).filter(holds_a_lock).to_iter_dataset(), r"filter\(holds_a_lock\)"),
        (lambda: bushel.MapDataset.source(HasALock()).map(lambda x: x).to_iter_dataset(), "HasALock"),
        (lambda: numbers(5).batch(2, batch_fn=holds_a_lock), r"batch\(2, batch_fn=holds_a_lock\)"),
    ],
    ids=["map", "filter of a MapDataset", "source", "batch_fn"],
)
def test_a_pipeline_that_cannot_be_sent_is_an_error_that_names_the_operation(make, named):
    with iter(make().mp_prefetch(TWO)) as it:
        for _ in range(2):
            with pytest.raises(bushel.PipelineNotSent, match=f"{named}.* cannot be sent to worker processes"):
                next(it)


def test_a_worker_init_fn_that_cannot_be_sent_is_an_error():
    before = workers()
    with pytest.raises(bushel.PipelineNotSent, match="worker_init_fn cannot be sent"):
        iter(numbers(5).mp_prefetch(TWO, worker_init_fn=lambda index, count: lock.acquire()))
    assert workers() <= before


def test_a_function_of_a_module_that_workers_cannot_import_names_the_way_out(monkeypatch):
    module = types.ModuleType("json.of_no_folder")
    exec("def double(x):\n    return 2 * x", vars(module))
    monkeypatch.setitem(sys.modules, "json.of_no_folder", module)
    ds = numbers(5).map(lambda x: x).map(module.double)
    with iter(ds.mp_prefetch(TWO)) as it:
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError) as caught:
                next(it)
            (way_out,) = [note for note in caught.value.__notes__ if "workers cannot import" in note]
            assert way_out.startswith("bushel: map(double) needs json.of_no_folder, which workers cannot import.")
            assert "cloudpickle.register_pickle_by_value" in way_out
    cloudpickle.register_pickle_by_value(module)
    with iter(ds.mp_prefetch(TWO)) as it:
        assert list(it) == [0, 2, 4, 6, 8]
    cloudpickle.unregister_pickle_by_value(module)


LOADED = """
import of_another_file

SCALE = 2

class Scaled:
    def __init__(self, x):
        self.x = x

def scaled(x):
    return Scaled(SCALE * x + of_another_file.ONE)

def value(scaled):
    return scaled.x if isinstance(scaled, Scaled) else "another class"

def told(index, count):
    import bushel.base.options
    bushel.base.options.told = SCALE
"""


@pytest.mark.parametrize("name", ["of_no_folder", "colorsys", "of_no_folder.at_all"])
def test_what_is_loaded_from_a_file_goes_along(name, tmp_path, monkeypatch):
    def loaded(name, text):
        path = tmp_path / f"{name} here.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    other = loaded("of_another_file", "ONE = 1")
    module = loaded(name, LOADED)
    try:
        ds = numbers(5).map(module.scaled).map(module.value)
        with iter(ds.mp_prefetch(TWO, worker_init_fn=module.told)) as it:
            assert list(it) == [1, 3, 5, 7, 9]
        with iter(numbers(2).map(module.scaled).mp_prefetch(TWO)) as it:
            assert [type(element) for element in it] == [module.Scaled] * 2
    finally:
        for one in (other, module):
            cloudpickle.unregister_pickle_by_value(one)


class Unloadable:
    """A function that pickles and cannot be built again."""

    def __call__(self, x: int) -> int:
        return x

    def __reduce__(self) -> Any:
        return int, ("no function",)


def test_a_pipeline_that_cannot_be_loaded_is_an_error():
    with iter(numbers(5).map(Unloadable()).mp_prefetch(TWO)) as it:
        for _ in range(2):
            with pytest.raises(Exception, match=r"no function|have ended"):
                next(it)


# ---------------------------------------------------------------------------------------------------------------------
# Memory

ROW = np.zeros(125_000, np.int64)

FAST = {
    "elements": lambda: bushel.MapDataset.range(10**6).map(lambda x: ROW + x).to_iter_dataset(),
    "batches": lambda: bushel.MapDataset.range(10**6).map(lambda x: ROW + x).batch(4).to_iter_dataset(),
    "batches after a filter": lambda: numbers(10**6).map(lambda x: ROW + x).filter(lambda row: row[0] % 3).batch(4),
}


@pytest.mark.parametrize("stream", FAST)
def test_workers_that_are_faster_than_the_consumer_stay_within_the_budget(stream, caplog):
    budget, more = 64 << 20, 32 << 20  # what is in the making in two workers, as docs/workers.md says
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        more += 32 << 20  # whose allocator keeps what the first blocks, which came as copies, have taken
    with pool(budget_bytes=budget) as executor:
        with opened(numbers(100), executor) as it:
            list(it)
        family = [os.getpid(), *offspring()]
        before, most = memory_of(family), 0
        with opened(FAST[stream](), executor) as it:
            for number in range(120):
                next(it)
                time.sleep(0.005)
                if number % 8 == 7:
                    most = max(most, memory_of(family))
    assert most - before < budget + more
    assert most - before > 5 << 20  # it was seen at all
    assert "shared memory" not in caplog.text  # nobody holds anything


MANY = {
    "bytes": lambda x: b"x" * (1 << 20),
    "text": lambda x: "x" * (1 << 20),
    "an object with an array": lambda x: Holder(np.zeros(1 << 20, np.uint8)),
    "arrays that do not fit into the budget twice": lambda x: np.zeros(12 << 20, np.uint8),
    "small arrays": lambda x: np.zeros(900, np.int32),
    "lists": lambda x: list(range(x, x + 10_000)),
}


class Holder:
    """No tree, so that nobody sees what is in it."""

    def __init__(self, array: np.ndarray):
        self.array = array


@pytest.mark.parametrize("elements", MANY)
def test_whatever_the_elements_are_workers_stay_within_the_budget(tmp_path, elements):
    make, budget = MANY[elements], 16 << 20
    size = len(cloudpickle.dumps(make(0)))
    made = tmp_path / "made"

    def noted(x: int) -> Any:
        with made.open("ab") as file:
            file.write(b".")
        return make(x)

    options = bushel.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=100, budget_bytes=budget)
    with iter(numbers(10**6).map(noted).mp_prefetch(options)) as it:
        read = max(3, (8 << 20) // size)  # so many that blocks have grown
        for _ in range(read):
            next(it)
        seen, steady_since = 0, time.monotonic()
        while time.monotonic() - steady_since < 0.3:
            if made.stat().st_size != seen:
                seen, steady_since = made.stat().st_size, time.monotonic()
        block_bytes = it._observer._pools[0].block_bytes
    in_hand = 2 * 2 * max(size, block_bytes)  # what is in the making in two workers, as docs/workers.md says
    assert (seen - read) * size < budget + in_hand + block_bytes  # one is handed over in part


def test_whatever_goes_wrong_with_a_result_is_an_error(monkeypatch):
    def fail(*_: Any) -> None:
        raise MemoryError("no room for it")

    monkeypatch.setattr(ResultBuffer, "add_result", fail)
    raises = pytest.raises(MemoryError, match="no room for it")
    with pool(1) as executor, opened(numbers(20), executor) as it, raises:
        read_in_time(it)


# ---------------------------------------------------------------------------------------------------------------------
# Time


def test_a_record_that_takes_too_long_is_named():
    with pool(timeout_s=1.0) as executor, opened(numbers(60).map(Always(23, hang)), executor) as it:
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
    with pool(timeout_s=2.0) as executor, opened(numbers(3080).map(slow_at_the_end), executor) as it:
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
    monkeypatch.setattr("bushel.engine.processes.supervisor.time", clock)
    monkeypatch.setattr("bushel.engine.pool.supervisor.time", clock)
    return clock


def test_a_slow_start_is_no_timeout(tmp_path, clock):
    waits = Waits(tmp_path)
    with (
        pool(1, timeout_s=600.0, init=lambda index, count: waits(0) and None) as executor,
        opened(numbers(20), executor) as it,
    ):
        it.start_prefetch()
        wait_until(lambda: jobs_of(executor) != [[]])
        wait_until(waits.begun.exists)
        clock.let_pass(1000)
        waits.go_on.touch()
        assert read_in_time(it) == list(range(20))
        assert executor.report().deaths == 0


def test_waiting_for_the_consumer_is_no_timeout(clock):
    with pool(timeout_s=600.0) as executor, opened(numbers(2000).map(image), executor) as it:
        next(it)
        wait_until(lambda: not any(jobs_of(executor)))  # the buffer is full
        clock.let_pass(1000)
        next(it)
        assert executor.report().deaths == 0


def test_waiting_for_counts_of_another_is_no_timeout(tmp_path, clock):
    (tmp_path / "one").mkdir()
    one, other = Waits(tmp_path, 0), Waits(tmp_path / "one", 1)
    # Element 1 waits for the count of element 0, and is as slow itself: more than the limit in all, and less each.
    ds = numbers(200).map(one).filter(lambda x: True).map_with_index(lambda i, x: x).map(other)
    with pool(timeout_s=600.0) as executor, opened(ds, executor) as it:
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
    waits = Waits(tmp_path)
    with pool(1, timeout_s=600.0) as executor, opened(numbers(20).map(waits), executor) as it:
        it.start_prefetch()
        wait_until(lambda: any(worker.running for worker in executor._supervisor.workers))
        clock.let_pass(1000)
        waits.go_on.touch()
        assert read_in_time(it) == list(range(20))
        assert executor.report().deaths == 1


@pytest.mark.parametrize("deed", [hang, spin, stop_myself, run_in_c], ids=lambda deed: deed.__name__)
def test_close_does_not_wait_for_workers(deed):
    executor = Processes(2)
    it = opened(numbers(60).map(Always(0, deed)), executor)
    it.start_prefetch()
    pids = executor.pids()
    wait_until(lambda: any(worker.jobs for worker in executor._supervisor.workers))
    begun = time.monotonic()
    it.close()
    executor.close()
    assert time.monotonic() - begun < SOON_S
    wait_until(lambda: not alive(pids))


def test_close_does_not_wait_for_a_worker_that_is_stopped_from_outside():
    with iter(numbers(10_000).map(image).mp_prefetch(TWO)) as it:
        next(it)
        mine = wait_until(workers)
        for pid in mine:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
    assert time.monotonic() - begun < SOON_S
    wait_until(lambda: not alive(mine))


class LargeStates(bushel.DatasetIterator[bytes]):
    """Elements and states, each larger than what a socket holds."""

    def __init__(self) -> None:
        super().__init__()
        self.row = 0

    def __next__(self) -> bytes:
        if self.row == 15:
            raise StopIteration
        self.row += 1
        return b"z" * 300_000

    def get_state(self) -> dict[str, Any]:
        return {"row": self.row, "buffer": "x" * 300_000}

    def set_state(self, state: dict[str, Any], *, check: bool = True) -> None:
        self.row = state["row"]


class OfLargeStates(bushel.IterDataset[bytes]):
    def __iter__(self) -> LargeStates:
        return LargeStates()


def test_large_states_and_large_elements_do_not_wait_for_one_another():
    ds = bushel.IterDataset.mix([OfLargeStates() for _ in range(6)])
    with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))) as it:
        assert read_in_time(it) == [b"z" * 300_000] * 90


def test_close_does_not_wait_for_a_worker_that_cannot_be_replaced(monkeypatch):
    monkeypatch.setattr("bushel.engine.processes.zygote._is_stopped", lambda pid: False)  # else it is replaced soon
    executor = Processes(2)
    it = opened(numbers(1000).map(lambda x: time.sleep(0.01) or x), executor)
    next(it)
    pids, helper = executor.pids(), zygote()
    os.kill(helper, signal.SIGSTOP)
    try:
        os.kill(pids[0], signal.SIGKILL)
        wait_until(
            lambda: not executor._supervisor._lock.acquire(blocking=False) or executor._supervisor._lock.release()
        )
        begun = time.monotonic()
        it.close()
        executor.close()
        assert time.monotonic() - begun < SOON_S
        wait_until(lambda: not alive(pids))
    finally:
        os.kill(helper, signal.SIGCONT)
    wait_until(lambda: not executor._supervisor._thread.is_alive())


# ---------------------------------------------------------------------------------------------------------------------
# The end of the consumer

STREAMING = """
    import itertools, os, sys, time
    import numpy as np
    import bushel

    def work(x):
        if x > 50:
            time.sleep(600)
        return np.full(100_000, x)

    ds = bushel.MapDataset.range(1000).map(work).to_iter_dataset()
    it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
    kept = [next(it) for _ in range(20)]
"""


def said(child: Any) -> str:
    """The next line of a script."""
    line = child.stdout.readline()
    assert line, child.stderr.read()
    return line.strip()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_workers_go_with_the_consumer(tmp_path, number):
    ending = """
        print("ready", flush=True)
        list(it)
    """
    with start_script(tmp_path, dedented(STREAMING, ending)) as child:
        assert said(child) == "ready"
        mine = offspring(child.pid)
        assert len(mine) == 3  # two workers and the process that forks them
        assert not named_memory([child.pid, *mine])  # so that nothing can stay there
        child.send_signal(number)
        assert child.wait(SOON_S) == -number
        wait_until(lambda: not alive(mine))
        assert child.stderr.read() == ""


def test_workers_that_were_not_forked_go_with_the_consumer_too(tmp_path):
    ending = """
        from bushel.engine.processes.executor import Processes
        from bushel.iterator import PipelineIterator
        it.close()
        executor = Processes(2, portable=True)
        it = PipelineIterator(ds._node, None, executor)
        next(it)
        print(*executor.pids(), flush=True)
        list(it)
    """
    with start_script(tmp_path, dedented(STREAMING, ending)) as child:
        mine = set(map(int, said(child).split()))
        assert len(alive(mine)) == 2
        child.kill()
        child.wait(SOON_S)
        wait_until(lambda: not alive(mine))


def test_workers_that_were_not_forked_are_gone_after_closing():
    with pool(portable=True) as executor:
        mine = executor.pids()
        assert zygote() not in mine and len(alive(mine)) == 2
        with opened(numbers(10), executor) as it:
            assert list(it) == list(range(10))
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in mine))  # nor as zombies


def test_the_check_of_named_memory_can_fail():
    from multiprocessing import shared_memory

    segment = shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert named_memory([os.getpid()])
    finally:
        segment.close()
        segment.unlink()


def dedented(*parts: str) -> str:
    return "\n".join(map(textwrap.dedent, parts))


def test_workers_go_with_the_consumer_though_its_child_lives(tmp_path):
    ending = """
        child = os.fork()
        if not child:
            os.close(1), os.close(2)
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
        list(it)
    """
    with start_script(tmp_path, dedented(STREAMING, ending)) as script:
        child = int(said(script))
        mine = offspring(script.pid) - {child}
        assert len(mine) == 3
        script.kill()
        try:
            wait_until(lambda: not alive(mine))
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("busy", ["waits for an element", "computes"])
def test_ctrl_c_ends_at_once_with_one_traceback(tmp_path, busy):
    ending = {
        "waits for an element": 'print("ready", flush=True)\nlist(it)\n',
        "computes": 'print("ready", flush=True)\nwhile True: pass\n',
    }[busy]
    with start_script(tmp_path, dedented(STREAMING, ending)) as child:
        assert said(child) == "ready"
        mine = offspring(child.pid)
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(SOON_S) != 0
        wait_until(lambda: not alive(mine))
        shown = child.stderr.read()
    assert shown.count("Traceback (most recent call last)") == 1
    assert shown.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in shown


ENDINGS = {
    "reads to the end": ("for x in itertools.islice(it, 20): pass\nit.close()", 0),
    "holds an open iterator": ("", 0),
    "holds it in a cycle": ("a = [it]; a.append(a); del it, a", 0),
    "has it at work": ("it.start_prefetch()", 0),
    "fails": ("raise RuntimeError('by design')", 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_without_a_word(tmp_path, ending):
    text, code = ENDINGS[ending]
    returned, out, err = run_script(tmp_path, dedented(STREAMING, text, ""), "-X", "dev")  # not in 600 s
    assert returned == code
    assert out == ""
    if ending == "fails":
        assert err.count("Traceback") == 1 and err.rstrip().endswith("RuntimeError: by design")
    else:
        assert err == ""


# ---------------------------------------------------------------------------------------------------------------------
# Scripts: no `if __name__ == "__main__"`, classes of their own


def test_classes_of_the_main_script_stay_as_they_are(tmp_path):
    script = """
        import collections, dataclasses, enum
        import bushel

        class Plain:
            registry = []
            mode = "old"
            def __init__(self, x): self.x = x

        @dataclasses.dataclass(frozen=True)
        class Data:
            x: int

        class Colour(enum.Enum):
            RED = 1

        Pair = collections.namedtuple("Pair", "x y")
        Other = collections.namedtuple("NotItsName", "x")

        class Outer:
            class Inner:
                pass

        class Mine(Exception):
            pass

        def make(x):
            if x == 150:
                error = Mine("mine")
                error.function = lambda: 7
                raise error
            return Plain(x), Data(x), Colour.RED, Pair(x, x), Other(x), Outer.Inner()

        ds = bushel.MapDataset.range(300).map(make).to_iter_dataset()
        it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
        next(it)
        Plain.mode, mine, method = "new", Plain.registry, Plain.__init__
        Plain.registry.append(1)
        try:
            for number, (plain, data, colour, pair, other, inner) in enumerate(it, 1):
                assert type(plain) is Plain and plain.x == number
                assert type(data) is Data and data == Data(number)
                assert colour is Colour.RED
                assert type(pair) is Pair and pair == (number, number)
                assert type(other) is Other and other.x == number
                assert type(inner) is Outer.Inner
        except Mine as error:
            print(number, type(error) is Mine, error, error.function())
        print(Plain.mode, Plain.registry, Plain.registry is mine, Plain.__init__ is method, __name__)
    """
    code, out, err = run_script(tmp_path, script)
    assert err == ""
    assert code == 0
    assert out.splitlines() == ["149 True mine 7", "new [1] True True __main__"]


def test_the_main_script_is_not_run_again(tmp_path):
    script = """
        import bushel
        print("once", flush=True)
        ds = bushel.MapDataset.range(5).map(lambda x: x * x).to_iter_dataset()
        print(list(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))))
    """
    assert run_script(tmp_path, script) == (0, "once\n[0, 1, 4, 9, 16]\n", "")


# ---------------------------------------------------------------------------------------------------------------------
# The process that forks workers


def test_the_zygote_may_be_killed():
    with iter(numbers(3000).map(image).batch(4).mp_prefetch(TWO)) as it:
        found = [int(next(it)["label"][0]) for _ in range(5)]
        first = zygote()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not alive([first]))
        found += [int(batch["label"][0]) for batch in it]
    assert found == list(range(0, 3000, 4))
    with iter(numbers(100).mp_prefetch(TWO)) as it:  # and the next pool works
        assert list(it) == list(range(100))
    assert zygote() not in (None, first)


CLOSED = """
    import os, time
    import bushel

    ds = bushel.MapDataset.range(40).map(lambda x: time.sleep(0.01) or x).to_iter_dataset()
    two = bushel.MultiprocessingOptions(num_workers=2)

    def children(pid):
        "The dead that nobody has waited for too."
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(name))
        return found

    def in_time(true):
        deadline = time.monotonic() + 100
        while not true() and time.monotonic() < deadline:
            time.sleep(0.01)
        return true()

    it = iter(ds.mp_prefetch(two))
    next(it)
    other = iter(ds.mp_prefetch(two))
    next(other)
    helper, = children(os.getpid())
    print(len(children(helper)))
    it.close()
    print(in_time(lambda: len(children(helper)) == 2))
    time.sleep(3)
    print(sum(other))
    other.close()
    print(in_time(lambda: not children(os.getpid())))
    with iter(ds.mp_prefetch(two)) as it:
        print(sum(it))
"""


def test_after_the_last_pool_there_is_no_process_left(tmp_path):
    assert run_script(tmp_path, CLOSED) == (0, "4\nTrue\n780\nTrue\n780\n", "")


def test_faults_leave_no_files_open():
    def once(number: int) -> None:
        with pool() as executor:
            run_with_kills(STREAMS["batches"](), executor, kills=4, seed=number)

    once(0)
    before = wait_until(descriptors)
    for number in range(1, 4):
        once(number)
    wait_until(lambda: descriptors() <= before)


def test_states_taken_among_faults_are_json_and_restore_anywhere():
    ds = STREAMS["counted after a filter"]()
    with opened(ds, None) as it:
        expected = list(it)
    with pool() as executor, opened(ds, executor) as it:
        found = list(itertools.islice(it, 100))
        for pid in executor.pids():
            os.kill(pid, signal.SIGKILL)
        saved = json.loads(json.dumps(it.get_state()))
    with opened(ds, None) as it:
        it.set_state(saved)
        assert found + list(it) == expected
