"""Workers that somebody kills, ten a second, lose nothing and blame no element. Elements that do kill are named.

`BUSHEL_STORM_KILLS=100000 pytest -m slow tests/engine/test_storm.py` makes a longer storm than `make test-all`.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.processes import alive, named_memory, workers, zygote
from helpers.waiting import SOON_S, wait_until
from helpers.worker_pools import open_on

import bushel
from bushel._src.engine.pool import supervisor
from bushel._src.engine.processes.executor import Processes
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

KILLS = int(os.environ.get("BUSHEL_STORM_KILLS", "10000"))
PER_S = 10.0
ELEMENT_S = 0.002


def numbers(length: int, *, seed: int = 1) -> Any:
    positions = bushel.MapDataset.range(length).seed(seed).shuffle().repeat()
    return positions.to_iter_dataset(bushel.ReadOptions(0, 0))


class Takes:
    """A function of numbers that takes a while."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __call__(self, x: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return {"x": np.full(20, x), "label": x}


def mixture(f: Takes) -> Any:
    parts = [numbers(900, seed=2).filter(lambda x: x % 2), numbers(1100, seed=3)]
    return bushel.IterDataset.mix(parts, [1, 2]).window_shuffle(40, seed=3).map(f)


STORMS: dict[str, Callable[[Takes], Any]] = {
    "map": lambda f: numbers(5000).map(f),
    "counted after a filter": lambda f: (
        numbers(5000)
        .filter(lambda x: x % 3)
        .map(f)
        .random_map(lambda x, rng: {**x, "noise": rng.integers(1 << 40)}, seed=1)
        .map_with_index(lambda i, x: (i, x))
    ),
    "batch": lambda f: numbers(5000).map(f).batch(8),
    "mixture, window shuffle, map": mixture,
    "flat_map": lambda f: numbers(5000).map(f).flat_map(lambda x: [x] * (x["label"] % 3)),
}


@contextlib.contextmanager
def storm(executor: Processes, kills: int, seed: int, per_s: float = PER_S) -> Iterator[collections.Counter[str]]:
    """Kills workers at moments of its own: most by SIGKILL, some by SIGTERM, some are stopped for a while, and at times
    the process that forks them. Yields what was done so far.
    """
    done: collections.Counter[str] = collections.Counter()
    leave = threading.Event()

    def kill() -> None:
        rng, killed = random.Random(seed), set[int]()
        while done.total() < kills and not leave.wait(rng.expovariate(per_s)):
            way = rng.choices(["SIGKILL", "SIGTERM", "SIGSTOP", "zygote"], [80, 8, 10, 2])[0]
            victim = zygote() if way == "zygote" else rng.choice(executor.pids() or [None])
            if victim is None or victim in killed:  # on a busy machine the pool sees some deaths late
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL if way == "zygote" else signal.Signals[way])
                done[way] += 1
                if way == "SIGSTOP":
                    leave.wait(rng.uniform(0, 0.1))
                    os.kill(victim, signal.SIGCONT)
                else:
                    killed.add(victim)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        leave.set()
        thread.join(SOON_S)


def check_storm(make: Callable[[Takes], Any], num_workers: int, skip: bool, kills: int, seed: int) -> None:
    """Compares each element with that of an undisturbed run, until so many workers were killed or stopped."""
    before, memory_before = workers(), named_memory([os.getpid()])
    options = {"on_error": "skip"} if skip else {}
    stormy, undisturbed = (make(Takes(seconds)).with_options(**options) for seconds in (ELEMENT_S, 0.0))
    with contextlib.closing(Processes(num_workers)) as executor:
        with (
            storm(executor, kills, seed) as done,
            open_on(stormy, executor) as it,
            open_on(undisturbed, None) as expected,
        ):
            while done.total() < kills:
                assert same(next(it), next(expected))
            for _ in range(50):
                assert same(next(it), next(expected))
            assert it.get_state() is not None
            if skip:
                assert it.skipped == 0
        pool = executor._supervisor
        wait_until(lambda: not any(worker.jobs for worker in pool.workers))
        wait_until(lambda: len(alive(executor.pids())) == num_workers)
        assert named_memory([os.getpid(), *executor.pids()]) <= memory_before
        assert executor.report().deaths >= kills // 2
    wait_until(lambda: workers() <= before)


@pytest.mark.slow
@pytest.mark.timeout(max(900, KILLS))
@pytest.mark.parametrize("skip", [False, True], ids=["raise", "skip"])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
@pytest.mark.parametrize("stream", STORMS)
def test_a_storm_of_kills_blames_no_element(stream, num_workers, skip):
    kills = KILLS // (8 * len(STORMS))
    check_storm(STORMS[stream], num_workers, skip, kills, seed=hash((num_workers, skip)))


@pytest.mark.parametrize(("stream", "num_workers"), [("counted after a filter", 1), ("batch", 2)])
def test_a_few_seconds_of_the_storm(stream, num_workers):
    check_storm(STORMS[stream], num_workers, True, kills=40, seed=1)


# ---------------------------------------------------------------------------------------------------------------------
# Elements that do kill


def run_out_of_memory() -> None:
    """Takes more memory than the process may have. C code that does not check what malloc gives it then dies."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
    malloc = ctypes.CDLL(None).malloc
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p  # without argtypes, 1 << 40 would become 0
    ctypes.memset(malloc(1 << 62) or 0, 0, 16)  # so much that it fails also where the system does not hold the limit


def raise_a_signal(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


DEEDS: list[Callable[[], Any]] = [
    raise_a_signal(signal.SIGKILL),
    os.abort,
    run_out_of_memory,
    lambda: os._exit(0),
    lambda: os._exit(9),
    lambda: ctypes.string_at(0),
    lambda: os._exit(3),
    raise_a_signal(signal.SIGTERM),
]


class Kills:
    """A function of numbers that kills its process at some of them, each in another way."""

    def __init__(self, places: list[int]):
        self.places = places

    def __call__(self, x: int) -> int:
        if x in self.places:
            DEEDS[self.places.index(x) % len(DEEDS)]()
        return x


def quietly(index: int, count: int) -> None:
    """Lets a worker leave no core file and print no stack when it dies of a segmentation fault."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def plain(length: int) -> Any:
    return bushel.MapDataset.range(length).to_iter_dataset(bushel.ReadOptions(0, 0))


KILLERS: dict[str, Callable[[Any, int], Any]] = {
    "map": lambda f, length: plain(length).map(f),
    "batch": lambda f, length: plain(length).map(f).batch(8).map(lambda x: x.tolist()),
    "counted after a filter": lambda f, length: (
        plain(length).filter(lambda x: x % 3 != 1).map(f).map_with_index(lambda i, x: x)
    ),
    "map of records, shuffled": lambda f, length: (
        bushel.MapDataset.range(length).shuffle(seed=4).map(f).to_iter_dataset(bushel.ReadOptions(0, 0))
    ),
}


def check_killers(make: Callable[[Any, int], Any], length: int, places: list[int], num_workers: int) -> None:
    """All elements at `places` are skipped, and no other; without skipping, each is raised at its place."""
    harmless = make(lambda x: x, length).map(lambda x: x)
    with open_on(harmless, None) as it:
        flat = [x for one in it for x in (one if isinstance(one, list) else [one])]
    ds = make(Kills(places), length)
    with contextlib.closing(Processes(num_workers, init=quietly)) as executor:
        with open_on(ds.with_options(on_error="skip", skip_limit=len(places)), executor) as it:
            found = [x for one in it for x in (one if isinstance(one, list) else [one])]
            assert it.skipped == len(places)
        assert found == [x for x in flat if x not in places]
    wait_until(lambda: not workers())


@pytest.mark.parametrize("stream", KILLERS)
def test_elements_that_kill_are_skipped_and_no_other(stream):
    check_killers(KILLERS[stream], 300, {"batch": [56, 57]}.get(stream, [149, 150]), 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("stream", KILLERS)
def test_many_elements_that_kill_are_skipped_and_no_other(stream, num_workers):
    """Two hundred in all: alone, next to each other, and several in one block."""
    rng = random.Random(num_workers)
    places = {0, 1499, *range(600, 606), *range(700, 712, 3)}
    while len(places) < 17:
        places.add(3 * rng.randrange(500) + rng.choice([0, 2]))
    check_killers(KILLERS[stream], 1500, sorted(x for x in places if x % 3 != 1), num_workers)


@pytest.mark.slow
@pytest.mark.parametrize("deed", range(len(DEEDS)))
def test_every_way_to_kill_is_named_at_its_place(deed):
    def kills(x: int) -> int:
        if x in (20, 21):
            DEEDS[deed]()
        return x

    with contextlib.closing(Processes(2, init=quietly)) as executor, open_on(plain(40).map(kills), executor) as it:
        assert list(itertools.islice(it, 20)) == list(range(20))
        for _ in range(2):  # it stands where it stood, and tries again
            with pytest.raises(bushel.WorkerDied, match=r"Computing element 20 of the output .* killed") as caught:
                next(it)
            assert caught.value.at == (20, 21)


class KillsAtFirst:
    """A function that kills its process the first times that it sees some numbers, and never again."""

    def __init__(self, folder: Any, times: int):
        self.folder, self.times = folder, times

    def __call__(self, x: int) -> int:
        for time_ in range(self.times if x % 50 == 7 else 0):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.folder / f"{x}-{time_}", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return x


@pytest.mark.parametrize("skip", [False, True], ids=["raise", "skip"])
def test_an_element_that_kills_at_first_is_not_blamed(tmp_path, skip):
    ds = plain(200).map(KillsAtFirst(tmp_path, 3)).with_options(**({"on_error": "skip"} if skip else {}))
    with contextlib.closing(Processes(2)) as executor, open_on(ds, executor) as it:
        assert list(it) == list(range(200))
    assert len(os.listdir(tmp_path)) == 12


# ---------------------------------------------------------------------------------------------------------------------
# No progress at all


def test_workers_that_die_for_long_and_finish_nothing_are_an_error_that_blames_nobody(monkeypatch):
    monkeypatch.setattr(supervisor, "STUCK_S", 0.5)
    with (
        contextlib.closing(Processes(1)) as executor,
        open_on(plain(10).map(lambda x: time.sleep(600)), executor) as it,
    ):
        stop = threading.Event()

        def kill_all() -> None:
            while not stop.wait(0.002):
                for pid in executor.pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=kill_all, daemon=True)
        thread.start()
        says = (
            r"Worker processes keep dying before they finish anything \(\d+ deaths in \d+ s\)\. No death is proven to "
            r"be the fault of an element\. Find out what kills them, such as a limit of memory or another program, and "
            r"make a new iterator from the last state\. The last one was killed by SIGKILL\."
        )
        try:
            with pytest.raises(bushel.WorkerDied, match=says) as caught:
                next(it)
        finally:
            stop.set()
            thread.join(SOON_S)
        assert caught.value.at is None


def test_deaths_of_idle_workers_never_end_a_run(monkeypatch):
    monkeypatch.setattr(supervisor, "STUCK_S", 0.0)
    with contextlib.closing(Processes(2)) as executor, open_on(plain(10), executor) as it:
        for deaths in range(50):
            wait_until(lambda deaths=deaths: executor.report().deaths >= deaths)
            os.kill(wait_until(lambda: sorted(alive(executor.pids())))[0], signal.SIGKILL)
        assert list(it) == list(range(10))
