"""Several threads at once, with and without a GIL: nothing hangs, nothing is lost, nothing comes out different.

Those of exit, closing, seeking and joining failed before the code was made safe, with a GIL too. Others hold what is.
"""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.waiting import SOON_S

import bushel
from bushel._src.base.rng import RngPool
from bushel._src.engine.program import Program
from bushel._src.engine.tasks import Ledger, Task, Threads
from bushel._src.engine.timing_wrappers import _WatchedExecutor
from bushel._src.graph.cursors import Skips
from bushel._src.graph.source_nodes import Range
from bushel.experimental import ThreadPrefetchIterDataset, multithread_prefetch
from bushel.testing import same

THREADS = 4


def at_once(function: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What `function(number)` returns in each of several threads that begin together; raises what they raise."""
    start = threading.Barrier(threads)
    found: list[Any] = [None] * threads

    def run(number: int) -> None:
        start.wait()
        try:
            found[number] = (function(number), None)
        except BaseException as error:
            found[number] = (None, error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(SOON_S)
        assert not thread.is_alive(), "hangs"
    for _, error in found:
        if error is not None:
            raise error
    return [value for value, _ in found]


# ---------------------------------------------------------------------------------------------------------------------
# Whatever is made when it is first needed may be needed by all threads at once

LENGTHS = np.random.default_rng(0).integers(1, 9, 300)


def numbers() -> bushel.MapDataset[int]:
    return bushel.MapDataset.range(300).seed(7)


def records() -> bushel.MapDataset[Any]:
    return bushel.MapDataset.source([np.full(size, at) for at, size in enumerate(LENGTHS)])


PIPELINES: dict[str, Callable[[], bushel.MapDataset[Any]]] = {
    "shuffle": lambda: numbers().shuffle().repeat(3),
    "shuffle of many": lambda: bushel.MapDataset.range(70_001).seed(7).shuffle()[:300],
    "random_map": lambda: numbers().random_map(lambda x, rng: (x, rng.integers(1 << 30))),
    "batches": lambda: numbers().shuffle().map(lambda x: {"x": np.full(5, x)}).batch(8),
    "mix": lambda: bushel.MapDataset.mix([numbers().shuffle(), numbers().map(lambda x: -x)], [0.3, 0.7]),
    "exact mix": lambda: bushel.MapDataset.mix([numbers(), numbers().shuffle()], [0.301, 0.699], exact=True)[:300],
    "where": lambda: numbers().where(LENGTHS > 3).shuffle().repeat(2),
    "sample": lambda: numbers().sample(LENGTHS.astype(float), seed=3).repeat(3),
    "order_by": lambda: numbers().order_by(LENGTHS, noise=0.5).repeat(3),
    "pack": lambda: records().pack(LENGTHS, length=16),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_threads_that_begin_together_read_the_same(name):
    expected = [PIPELINES[name]()[index] for index in range(30)]
    for _ in range(10):
        ds = PIPELINES[name]()  # a new one: all that it keeps is made now
        for got in at_once(lambda number, ds=ds: [ds[index] for index in range(30)]):
            assert all(map(same, got, expected))


def test_files_that_must_be_opened_again_are_read_by_threads(tmp_path):
    paths = []
    for number in range(300):  # more than are held open
        paths.append(tmp_path / f"{number:03}.txt")
        paths[-1].write_text(f"{number} a\n{number} b\n")
    source = bushel.sources.LineDataSource(paths)

    def read(seed: int) -> None:
        order = random.Random(seed)
        for _ in range(1000):
            index = order.randrange(600)
            assert source[index] == f"{index // 2} {'ab'[index % 2]}".encode()

    at_once(read)


def test_generators_are_lent_to_one_thread_at_a_time():
    pool = RngPool(5)
    expected = [pool.acquire_rng(index).integers(1 << 60) for index in range(200)]

    def draw(_: int) -> list[int]:
        drawn = []
        for index in range(200):
            rng = pool.acquire_rng(index)
            drawn.append(rng.integers(1 << 60))
            pool.release_rng(rng)
        return drawn

    assert all(drawn == expected for drawn in at_once(draw))


# ---------------------------------------------------------------------------------------------------------------------
# Counting


def test_every_skipped_element_is_counted():
    skips = Skips(None)
    at_once(lambda _: [skips.add("an element", "as planned") for _ in range(20_000)])
    assert skips.count == THREADS * 20_000


def test_streams_that_are_pulled_by_threads_skip_together():
    def refuse(x: int) -> int:
        if x % 3 == 0:
            raise ValueError("as planned")
        return x

    parts = [bushel.MapDataset.range(300).map(refuse).to_iter_dataset() for _ in range(3)]
    ds = bushel.IterDataset.mix([ThreadPrefetchIterDataset(part, prefetch_buffer_size=50) for part in parts])
    with iter(ds.with_options(on_error="skip")) as it:
        assert len(list(it)) == 600
        assert it.skipped == 300


def test_iterators_that_share_threads_start_them_once(monkeypatch):
    begin, started = threading.Thread.start, []

    def slowly(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name.startswith("bushel-read"):
            started.append(thread)
            time.sleep(0.01)  # time for the others to look how many there are

    monkeypatch.setattr(threading.Thread, "start", slowly)
    executor, program = Threads(3), Program(Range(0, THREADS, 1))
    rows = at_once(lambda n: executor.wait(executor.submit(Task(program, n, n + 1, n, [], Ledger([]))))[0].rows)
    assert rows == [[0], [1], [2], [3]]
    assert len(started) == 3
    executor.close()


def test_nothing_of_a_watched_result_stays():
    executor = _WatchedExecutor(Threads(THREADS))
    program = Program(Range(0, 6_000, 1))
    for low in range(0, 6_000, 2):
        tickets = [executor.submit(Task(program, at, at + 1, at, [], Ledger([]))) for at in (low, low + 1)]
        assert [executor.wait(ticket)[0].rows for ticket in tickets] == [[low], [low + 1]]
    executor.close()
    assert executor.report().ready_now == 0
    assert not executor._under_way


# ---------------------------------------------------------------------------------------------------------------------
# One thread closes or seeks, others are at work


@pytest.mark.parametrize("how", ["threads", "a thread that pulls", "both"])
def test_closing_while_another_thread_asks(how):
    delays = random.Random(0)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        options = None if how == "a thread that pulls" else bushel.ReadOptions(2, 64)
        ds = bushel.MapDataset.range(10**6).to_iter_dataset(options)
        it = iter(ds if how == "threads" else ThreadPrefetchIterDataset(ds, prefetch_buffer_size=4))
        delay = delays.random() * 2e-3

        def use_or_close(number: int, it: Any = it, delay: float = delay) -> None:
            if number:
                time.sleep(delay)
                it.close()
                return
            with pytest.raises(ValueError, match="closed"):
                for _ in it:
                    pass

        at_once(use_or_close, threads=2)


class Numbers(bushel.IterDataset[int]):
    """Counts from a number on. Its iterators complain if two threads are in one of them at a time."""

    def __init__(self, first: int):
        super().__init__()
        self.first = first

    def __iter__(self) -> NumbersIterator:
        return NumbersIterator(self.first)


class NumbersIterator(bushel.DatasetIterator[int]):
    def __init__(self, first: int):
        super().__init__()
        self.first, self.place = first, 0
        self.lock = threading.Lock()

    def __next__(self) -> int:
        assert self.lock.acquire(blocking=False), "two threads at a time"
        try:
            time.sleep(2e-4)
            self.place += 1
            return self.first + self.place - 1
        finally:
            self.lock.release()

    def get_state(self) -> dict[str, int]:
        return {"place": self.place}

    def set_state(self, state: dict[str, int], *, check: bool = True) -> None:
        assert self.lock.acquire(blocking=False), "two threads at a time"
        self.place = state["place"]
        self.lock.release()


def test_seeking_while_a_thread_is_inside_the_stream():
    ds = bushel.IterDataset.mix([Numbers(0), Numbers(1_000_000)])
    states = []
    with iter(ds) as it:
        for _ in range(200):
            states.append(it.get_state())
            next(it)
    order = random.Random(0)
    with iter(multithread_prefetch(ds, num_threads=3, buffer_size=10)) as it:
        for _ in range(30):
            at = order.randrange(200)
            it.set_state(states[at])
            for place in range(at, at + order.randrange(1, 20)):
                assert next(it) == place // 2 + (1_000_000 if place % 2 else 0)


AT_WORK = """
    import sys
    sys.setswitchinterval(1e-6)
    import bushel
    from bushel.experimental import ThreadPrefetchIterDataset, multithread_prefetch
    ds = bushel.MapDataset.range(10**9).to_iter_dataset()
    its = [
        iter(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=10**8)),
        iter(multithread_prefetch(ds, num_threads=2, buffer_size=50)),
    ]
    for it in its:
        next(it)
"""


def test_a_program_ends_while_threads_are_at_work():
    # They stand still at the end, some with a lock in their hands: nobody may ask for it then.
    for _ in range(3):
        script = [sys.executable, "-c", textwrap.dedent(AT_WORK)]
        child = subprocess.run(script, capture_output=True, text=True, timeout=SOON_S)
        assert (child.returncode, child.stderr) == (0, "")
