"""Pools of worker processes: what runs in them, what they see of the consumer, and that nothing of them stays."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from helpers.processes import alive, descriptors, run_script, workers, zygote
from helpers.waiting import SOON_S, read_in_time, wait_until
from helpers.worker_pools import numbers, open_on, worker_pool

import bushel
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.processes.zygote import STARTER
from bushel.experimental import multithread_prefetch, set_next_index
from bushel.testing import same

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

HERE = os.getpid()
FROM_HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def options(num_workers: int = 2, **more: Any) -> bushel.MultiprocessingOptions:
    return bushel.MultiprocessingOptions(num_workers=num_workers, **more)


def end_zygote() -> None:
    """Kills the zygote, if there is one, so that the next pool starts another."""
    first = zygote()
    if first is not None:
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not alive([first]))


def process(*_: Any) -> int:
    return os.getpid()


# ---------------------------------------------------------------------------------------------------------------------
# What runs where


IN_WORKERS = {
    "map of a MapDataset": lambda: bushel.MapDataset.range(60).map(process).to_iter_dataset(),
    "map": lambda: numbers(60).map(process),
    "random_map": lambda: numbers(60).random_map(process, seed=1),
    "map after a filter": lambda: numbers(60).filter(lambda x: x % 2).map(process),
    "random_map after a filter": lambda: numbers(60).filter(lambda x: x % 2).random_map(process, seed=1),
    "map_with_index after a filter": lambda: numbers(60).filter(lambda x: x % 2).map_with_index(process),
    "map after a filter of a MapDataset": lambda: (
        bushel.MapDataset.range(60).filter(lambda x: x % 2).to_iter_dataset().map(process)
    ),
    "the filter itself": lambda: numbers(60).map_with_index(lambda i, x: x).filter(lambda x: os.getpid() != HERE),
    "batch_fn": lambda: numbers(60).batch(2, batch_fn=process),
    "batch_fn of a MapDataset": lambda: bushel.MapDataset.range(60).batch(2, batch_fn=process).to_iter_dataset(),
    "map of batches": lambda: numbers(60).batch(2).map(process),
    "random_map of batches": lambda: numbers(60).batch(2).random_map(process, seed=1),
    "parts of a mixture": lambda: bushel.IterDataset.mix([numbers(60).map(process), numbers(60).map(process)]),
    "sources": lambda: bushel.MapDataset.source(TellsItsProcess()).to_iter_dataset(),
}


class TellsItsProcess:
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with worker_pool() as executor:
        yield executor


@pytest.mark.parametrize("what", IN_WORKERS)
def test_work_is_done_by_workers(two, what):
    with open_on(IN_WORKERS[what](), two) as it:
        found = list(it)
    assert len(found) >= 20
    if what == "the filter itself":
        return  # it let all through, so it ran elsewhere
    assert set(found) <= set(two.pids())
    assert HERE not in two.pids()


def test_what_comes_after_the_mark_runs_here():
    with iter(numbers(20).map(process).mp_prefetch(options()).map(lambda pid: (pid, os.getpid()))) as it:
        for there, here in it:
            assert there != here == HERE


def test_all_workers_take_part():
    with iter(numbers(40).map(lambda x: time.sleep(0.01) or os.getpid()).mp_prefetch(options(3))) as it:
        assert len(set(it)) == 3


def test_without_workers_it_runs_here():
    before = workers()
    assert set(numbers(20).map(process).mp_prefetch(options(0))) == {HERE}
    assert workers() <= before


def test_marks_inside_one_another_share_one_pool():
    before = workers()
    part = numbers(40).map(process).mp_prefetch(options(2))
    with iter(bushel.IterDataset.mix([part, part]).mp_prefetch(options(3))) as it:
        found = set(it)
        assert len(workers() - before) == 3
        assert found <= workers() - before


MARKED = {
    "mp_prefetch": lambda ds: ds.to_iter_dataset().mp_prefetch(options(2)),
    "mp_prefetch that finds the number": lambda ds: ds.to_iter_dataset().mp_prefetch(),
    "a DataLoader": lambda ds: bushel.DataLoader(
        data_source=ds, sampler=bushel.SequentialSampler(len(ds)), worker_count=2
    ),
}


@pytest.mark.parametrize("mark", MARKED)
def test_a_worker_has_no_workers(two, mark):
    def processes(x: int) -> tuple[int, set[int]]:
        with iter(MARKED[mark](bushel.MapDataset.range(5).map(process))) as it:
            return os.getpid(), set(it)

    with open_on(numbers(10).map(processes), two) as it:
        assert all(inside == {outside} for outside, inside in it)


def test_a_module_that_starts_workers_while_they_import_it(tmp_path):
    (tmp_path / "starting.py").write_text(
        """
import os, sys
import bushel
depth = int(os.environ.get("BUSHEL_TEST_DEPTH", 0))
print("imported at depth", depth, flush=True)
if depth == 3:
    raise SystemExit("stopped by the test")
os.environ["BUSHEL_TEST_DEPTH"] = str(depth + 1)

def double(x):
    return 2 * x

ds = bushel.MapDataset.range(10).map(double).to_iter_dataset()
it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1)))
first = [next(it), next(it)]
"""
    )
    (tmp_path / "program.py").write_text("import starting\nprint(starting.first)\nstarting.it.close()\n")
    ended = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=SOON_S, env=FROM_HERE
    )
    assert ended.stdout.splitlines() == ["imported at depth 0", "imported at depth 1", "[0, 2]"], ended.stderr


def test_threads_of_multithread_prefetch_belong_to_this_process():
    with iter(multithread_prefetch(numbers(40).map(process), num_threads=2, buffer_size=3)) as it:
        assert set(it) == {HERE}


def test_work_begins_when_it_is_asked_for(tmp_path):
    def note(x: int) -> int:
        (tmp_path / str(x)).touch()
        return x

    with iter(numbers(20).map(note).mp_prefetch(options())) as it:
        assert not list(tmp_path.iterdir())
        it.start_prefetch()
        wait_until(lambda: (tmp_path / "0").exists())
        assert it.get_state()["next_index"] == 0
        assert list(it) == list(range(20))


def test_workers_do_not_run_ahead_of_a_consumer_that_waits(tmp_path):
    count = tmp_path / "count"
    count.touch()

    def large(x: int) -> np.ndarray:
        with count.open("ab") as file:
            file.write(b".")
        return np.full(1 << 19, x)  # 4 MiB

    with iter(numbers(500).map(large).mp_prefetch(options(2, budget_bytes=64 << 20))) as it:
        assert next(it)[0] == 0
        wait_until(lambda: count.stat().st_size >= 3)
        seen, steady_since = 0, time.monotonic()
        while time.monotonic() - steady_since < 0.3:
            if count.stat().st_size != seen:
                seen, steady_since = count.stat().st_size, time.monotonic()
        assert seen <= 1 + 2 * 3 + 2  # blocks of one element: three for each worker
        assert next(it)[0] == 1


# ---------------------------------------------------------------------------------------------------------------------
# What workers see


def test_workers_see_no_accelerator_and_no_jax():
    import jax

    assert float(jax.numpy.arange(4).sum()) == 6  # the consumer uses it

    def look(x: int) -> tuple[Any, ...]:
        return os.environ["JAX_PLATFORMS"], os.environ["CUDA_VISIBLE_DEVICES"], sorted(sys.modules)

    end_zygote()  # so that a new one starts with JAX at work here
    with iter(numbers(10).map(look).mp_prefetch(options())) as it:
        for platforms, devices, modules in it:
            assert (platforms, devices) == ("cpu", "-1")
            assert "numpy" in modules and "bushel" in modules
            assert not {"jax", "jaxlib", "orbax", "grain", "pytest", "hypothesis"} & set(modules)


@pytest.mark.slow
def test_a_pipeline_may_use_jax_in_workers():
    def with_jax(x: int) -> Any:
        import jax

        return jax.numpy.full(5, x), jax.devices()[0].platform

    with iter(numbers(6).map(with_jax).mp_prefetch(options())) as it:
        for number, (array, platform) in enumerate(it):
            assert array.tolist() == [number] * 5
            assert platform == "cpu"


def test_the_environment_of_the_consumer_holds_in_workers(monkeypatch, tmp_path):
    def look(x: int) -> Any:
        return os.environ.get("BUSHEL_TEST"), os.getcwd(), sys.path[0], os.environ.get("JAX_PLATFORMS")

    def seen() -> Any:
        with iter(numbers(5).map(look).mp_prefetch(options())) as it:
            (found,) = set(it)
        return found

    monkeypatch.setenv("BUSHEL_TEST", "one")
    assert seen()[0] == "one"
    monkeypatch.setenv("BUSHEL_TEST", "two")
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    assert seen() == ("two", str(tmp_path), str(tmp_path / "modules"), "cpu")
    monkeypatch.delenv("BUSHEL_TEST")
    assert seen()[0] is None


def test_a_folder_that_is_gone_is_not_needed(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with iter(numbers(5).map(lambda x: x + 1).mp_prefetch(options())) as it:
        assert list(it) == [1, 2, 3, 4, 5]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_large_copies_of_workers_go_past_the_cache_and_programs_they_start_know_nothing_of_it(monkeypatch):
    def look(x: int) -> Any:
        begun_with = Path("/proc/self/environ").read_bytes().decode()
        return begun_with.replace("\0", ":"), os.environ.get("GLIBC_TUNABLES")  # the C library splits it in place

    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")  # first: a pool still open may start the next zygote
    end_zygote()
    with iter(numbers(3).map(look).mp_prefetch(options())) as it:
        begun_with, now = next(it)
    tunables = begun_with.partition(":GLIBC_TUNABLES=")[2]
    assert tunables.startswith("glibc.cpu.x86_non_temporal_threshold=0x100000:")
    assert ":glibc.malloc.check=0:" in tunables  # the user's own come last
    assert now == "glibc.malloc.check=0"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told to keep memory")
@pytest.mark.parametrize(
    "setting", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
def test_workers_keep_the_memory_of_a_block_for_the_next_one_unless_the_user_says_otherwise(setting, monkeypatch):
    def make_image(x: int) -> dict[str, Any]:
        return {
            "image": np.full(150_000, x % 251, np.uint8),
            "faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        }

    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    end_zygote()
    with iter(numbers(64 * 24).map(make_image).batch(64).mp_prefetch(options(1))) as it:
        faults = [batch["faults"] for batch in it]
    pages = 150_000 // os.sysconf("SC_PAGE_SIZE")
    each = np.median([after[0] - before[0] for before, after in itertools.pairwise(faults[8:])]) / 64
    assert each > pages / 2 if setting else each < pages / 8


def test_modules_beside_the_consumer_can_be_imported(monkeypatch, tmp_path):
    (tmp_path / "beside_the_consumer.py").write_text("def seven(x): return 7 + x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import beside_the_consumer  # pyright: ignore[reportMissingImports]

    with iter(numbers(3).map(beside_the_consumer.seven).mp_prefetch(options())) as it:
        assert list(it) == [7, 8, 9]


def test_workers_are_told_who_they_are():
    def init(index: int, count: int) -> None:
        os.environ["BUSHEL_WORKER"] = f"{index} of {count}"

    def look(x: int) -> Any:
        time.sleep(0.005)
        return os.environ["BUSHEL_WORKER"], os.getpid()

    with worker_pool(3, init=init) as executor, open_on(numbers(10**6).map(look), executor) as it:
        seen: dict[str, int] = {}
        while len(seen) < 3:
            seen.update([next(it)])
        assert set(seen) == {"0 of 3", "1 of 3", "2 of 3"}
        assert len(set(seen.values())) == 3
        victim = seen["1 of 3"]
        os.kill(victim, signal.SIGKILL)
        again: dict[str, int] = {}
        while again.get("1 of 3", victim) == victim:
            again.update([next(it)])
            assert set(again) <= set(seen)


def test_what_a_worker_was_given_at_its_start_is_there_for_each_task():
    def init(index: int, count: int) -> None:
        import builtins

        builtins.bushel_test = []

    def append(x: int) -> int:
        import builtins

        builtins.bushel_test.append(x)
        return len(builtins.bushel_test)

    with worker_pool(1, init=init) as executor, open_on(numbers(50).map(append), executor) as it:
        assert list(it) == list(range(1, 51))


@pytest.mark.parametrize("when", ["at once", "after the workers have failed"])
def test_a_failing_start_of_workers_is_an_error(when):
    def init(index: int, count: int) -> None:
        raise LookupError(f"worker {index} has no licence")

    before = workers()
    with iter(numbers(20).mp_prefetch(options(), worker_init_fn=init)) as it:
        if when != "at once":
            wait_until(lambda: workers() <= before)
        for _ in range(2):
            outcome = in_time(lambda: next(it))
            assert isinstance(outcome, LookupError), outcome
            told = chain(outcome)
            assert "has no licence" in told and "worker_init_fn failed" in told, told
    wait_until(lambda: workers() <= before)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), BaseException("b")], ids=repr)
def test_a_start_of_workers_that_raises_what_is_no_exception_is_an_error(error, capfd):
    def init(index: int, count: int) -> None:
        raise error

    with iter(numbers(20).mp_prefetch(options(), worker_init_fn=init)) as it:
        outcome = in_time(lambda: next(it))
    assert isinstance(outcome, RuntimeError)
    assert str(outcome) == f"worker_init_fn failed. It raised {error!r}."
    assert capfd.readouterr().err == ""


def test_a_start_that_kills_workers_is_named():
    with iter(numbers(20).mp_prefetch(options(1), worker_init_fn=leave)) as it:
        outcome = in_time(lambda: next(it))
    assert isinstance(outcome, bushel.WorkerDied)
    assert "worker_init_fn=leave killed" in str(outcome)
    assert "so no kill from outside is likely to be the cause. The last one ended with exit code 7." in str(outcome)


def leave(index: int, count: int) -> None:
    os._exit(7)


def in_time(function: Any, timeout_s: float = SOON_S) -> Any:
    """What a call that may hang returns, or the error it raises."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(timeout_s)
    assert found, f"nothing within {timeout_s} s"
    return found[0]


def chain(error: BaseException) -> str:
    """All that an error and its causes say."""
    told = []
    while isinstance(error, BaseException):
        told += [repr(error), *getattr(error, "__notes__", ())]
        error = error.__cause__  # type: ignore[assignment]
    return "\n".join(told)


# ---------------------------------------------------------------------------------------------------------------------
# Memory


def anonymous_mb() -> float:
    """Memory of this process alone. (Pages of a shared file are none of it, even while nobody else looks.)"""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith("Anonymous:")]
    return int(kilobytes) / 1e3


def test_arrays_in_memory_are_shared_by_all_workers():
    arrays = {"x": np.ones((50_000, 1000), np.float32), "y": np.arange(50_000)}  # 200 MB

    def look(row: Any) -> Any:
        size_mb = anonymous_mb() if row["y"] % 100 == 0 else 0.0
        return float(row["x"].sum()), os.getpid(), size_mb

    ds = bushel.MapDataset.source(bushel.sources.ArrayDataSource(arrays)).seed(1).shuffle()[:5000]
    with iter(ds.map(look).to_iter_dataset().mp_prefetch(options(3))) as it:
        seen: dict[int, float] = {}
        for total, pid, size_mb in it:
            assert total == 1000
            seen[pid] = max(size_mb, seen.get(pid, 0))
    assert len(seen) > 1
    assert 0 < max(seen.values()) < 60


def test_a_worker_that_writes_into_a_shared_array_writes_into_its_own():
    array = np.zeros((1000, 1000))

    def write(x: int) -> tuple[float, float]:
        array[x] += 1
        return float(array[x].sum()), float(array.sum())

    with iter(numbers(1000).map(write).mp_prefetch(options(3))) as it:
        found = list(it)
    assert {mine for mine, _ in found} == {1000.0}
    assert array.sum() == 0


def test_pools_one_after_the_other_leave_nothing_open():
    def once() -> None:
        with iter(numbers(64).map(lambda x: np.full(10_000, x)).batch(8).mp_prefetch(options())) as it:
            assert len(list(it)) == 8

    once()
    gc.collect()
    before, threads, processes = descriptors(), threading.active_count(), workers()
    for _ in range(10):
        once()
    gc.collect()
    wait_until(lambda: descriptors() <= before)
    wait_until(lambda: threading.active_count() <= threads)
    wait_until(lambda: workers() <= processes)


def test_iterators_of_one_pool_leave_nothing_open():
    with worker_pool() as executor:

        def once(number: int) -> None:
            with open_on(numbers(64).map(lambda x: np.full(10_000, x + number)).batch(8), executor) as it:
                assert len(list(it)) == 8

        once(0)
        wait_until(lambda: not any(worker.jobs for worker in executor._supervisor.workers))
        before = descriptors()
        in_worker = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in executor.pids()}
        for number in range(1, 20):
            once(number)
        gc.collect()
        wait_until(lambda: descriptors() <= before + 2)
        for pid, count in in_worker.items():  # the arena may have come later
            wait_until(lambda pid=pid, count=count: len(os.listdir(f"/proc/{pid}/fd")) <= count + 1)


# ---------------------------------------------------------------------------------------------------------------------
# The end of a pool


def new_workers(before: set[int]) -> set[int]:
    return wait_until(lambda: workers() - before)


def test_closing_ends_the_workers():
    before = workers()
    it = iter(numbers(1000).mp_prefetch(options(3)))
    next(it)
    mine = new_workers(before)
    assert len(mine) == 3
    begun = time.monotonic()
    it.close()
    assert time.monotonic() - begun < SOON_S
    wait_until(lambda: not alive(mine))
    it.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(it)
    assert it.get_state()["next_index"] == 1


ENDS = {
    "a break": lambda ds: next(x for x in iter(ds) if x == 3),
    "the end of the data": list,
    "an error of the pipeline": lambda ds: failing(ds.map(lambda x: 1 // 0)),
    "a forgotten iterator": lambda ds: [next(iter(ds)), next(iter(ds))],
    "one that never ran": lambda ds: [iter(ds) and None],
    "a with block": lambda ds: with_block(ds),
    "a cycle": lambda ds: cycle(iter(ds)),
}


def failing(ds: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        list(ds)


def with_block(ds: Any) -> None:
    with contextlib.suppress(KeyError), iter(ds) as it:
        next(it)
        raise KeyError


def cycle(it: Any) -> None:
    next(it)
    around = [it]
    around.append(around)


@pytest.mark.parametrize("how", ENDS)
def test_the_workers_end_with(how):
    before = workers()
    ENDS[how](numbers(1000).mp_prefetch(options()))
    gc.collect()
    wait_until(lambda: workers() <= before)


def test_the_check_of_ended_workers_can_fail():
    before = workers()
    with iter(numbers(1000).mp_prefetch(options())) as it:
        next(it)
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: workers() <= before, 0.2)


def test_a_pool_may_be_collected_on_its_own_thread(capsys):
    executor = Processes(1)
    supervisor, (pid,) = executor._supervisor, executor.pids()
    it = open_on(numbers(100), executor)
    os.kill(pid, signal.SIGSTOP)
    it.start_prefetch()
    ticket = it._cursor._tickets[0]
    around = [it, executor]
    around.append(around)
    gc.collect()
    gc.disable()
    try:
        ticket.done.add_done_callback(lambda _: gc.collect())  # on the thread that hears the answer
        del it, executor, around
        os.kill(pid, signal.SIGCONT)
        supervisor._thread.join(SOON_S)
    finally:
        gc.enable()
    assert not supervisor._thread.is_alive()
    wait_until(lambda: not alive([pid]))
    assert capsys.readouterr().err == ""


def test_a_pool_that_cannot_start_leaves_nothing(monkeypatch):
    with worker_pool():
        pass
    gc.collect()
    before, open_before = workers(), descriptors()
    start, started = STARTER.start, []

    def fail_the_third_time(**how: Any) -> Any:
        if len(started) == 2:
            raise OSError("too many of them")
        started.append(start(**how))
        return started[-1]

    monkeypatch.setattr(STARTER, "start", fail_the_third_time)
    with pytest.raises(OSError, match="too many of them"):
        iter(numbers(5).mp_prefetch(options(4)))
    assert len(started) == 2
    started.clear()
    gc.collect()
    wait_until(lambda: workers() <= before)
    wait_until(lambda: descriptors() <= open_before)


@pytest.mark.parametrize("waits_for", ["a block under way", "a block not begun"])
def test_close_while_another_thread_waits(tmp_path, waits_for):
    def hang(x: int) -> int:
        (tmp_path / "begun").touch()
        if x < 50:
            time.sleep(600)
        return x

    it = iter(numbers(100).map(hang).mp_prefetch(options(1)))
    it.start_prefetch()
    wait_until((tmp_path / "begun").exists)
    if waits_for == "a block not begun":
        set_next_index(it, 60)  # stands behind the one that hangs
    outcomes: list[Any] = []
    asking = threading.Event()

    def read() -> None:
        asking.set()
        outcomes.append(in_time(lambda: next(it)))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert asking.wait(SOON_S)
    wait_until(lambda: is_held(it._lock))
    it.close()
    reader.join(SOON_S)
    (outcome,) = outcomes
    assert isinstance(outcome, ValueError) and "closed" in str(outcome)


def is_held(lock: Any) -> bool:
    free = lock.acquire(blocking=False)
    if free:
        lock.release()
    return not free


def test_several_threads_may_read_one_iterator():
    found: list[int] = []
    with iter(numbers(2000).map(lambda x: x).mp_prefetch(options())) as it:

        def read() -> None:
            found.extend(it)

        readers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(SOON_S)
    assert sorted(found) == list(range(2000))


FORKING = ("-W", "ignore::DeprecationWarning")  # from Python 3.12 on, it warns of forks beside threads


def test_a_forked_child_gets_an_error_and_does_no_harm(tmp_path):
    script = """
        import os, sys
        import bushel

        ds = bushel.MapDataset.range(10_000).map(lambda x: x).to_iter_dataset()
        it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)))
        found = [next(it) for _ in range(20)]
        child = os.fork()
        if not child:
            try:
                next(it)
            except RuntimeError as error:
                print(error, flush=True)
            it.close()
            with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))) as own:
                print(sum(1 for _ in own), flush=True)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        found += it
        print(found == list(range(10_000)))
    """
    code, out, err = run_script(tmp_path, script, *FORKING)
    assert err == ""
    assert code == 0
    first, *rest = out.splitlines()
    assert first.startswith("This iterator belongs to the process that forked this one.")
    assert rest == ["10000", "7", "True"]


def test_a_child_forked_at_any_moment_can_close(tmp_path):
    """The thread of the pool may hold its lock at that moment; in the child there is no such thread to let go of it."""
    script = """
        import os, signal, threading
        import bushel

        ds = bushel.MapDataset.range(100).to_iter_dataset()
        it = iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=1)))
        next(it)
        lock, held, go_on = it._observer._pools[0]._supervisor._lock, threading.Event(), threading.Event()

        def hold():
            with lock:
                held.set()
                go_on.wait()

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(100)
            it.close()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        go_on.set()
        print(len(list(it)))
    """
    assert run_script(tmp_path, script, *FORKING) == (0, "0\n99\n", "")


def test_a_program_with_many_open_files_has_workers_too(tmp_path):
    script = """
        import os, resource, time
        import bushel

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]  # numbers from 1024 on are too high for `select`
        ds = bushel.MapDataset.range(1000).to_iter_dataset().batch(10)
        with iter(ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))) as it:
            first = next(it)
            time.sleep(0.5)  # the process that forks workers looks for more to do meanwhile
            print(first.sum() + sum(batch.sum() for batch in it))
    """
    assert run_script(tmp_path, script) == (0, "499500\n", "")


# ---------------------------------------------------------------------------------------------------------------------
# Options


def test_a_small_budget_changes_nothing_but_the_way():
    ds = numbers(200).map(lambda x: {"x": np.full(5000, x), "y": x}).batch(4)
    with open_on(ds, None) as it:
        expected = list(it)
    for budget in (1, 1 << 20, 3 << 20, 1 << 30, 1 << 48, sys.maxsize, 1 << 80):
        with iter(ds.mp_prefetch(options(2, budget_bytes=budget))) as it:
            assert same(list(it), expected)


def test_shared_memory_keeps_within_the_budget():
    ds = numbers(100).map(lambda x: np.full(100_000 * (1 + x // 20), x))  # growing: 0.8 MB to 4 MB
    with worker_pool(2, budget_bytes=40 << 20) as executor, open_on(ds, executor) as it:
        for number, array in enumerate(it):
            assert array[0] == number
            arena = executor._supervisor.buffer.arena
            assert arena is None or arena.slots * arena.slot_bytes <= 40 << 20


def test_a_quiet_run_says_nothing(caplog, capfd):
    caplog.set_level(logging.WARNING)
    with iter(numbers(500).map(lambda x: np.full(3000, x)).batch(8).mp_prefetch(options())) as it:
        for _ in it:
            pass
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------------------------------------------------------
# Several marks in one iterator


def with_pid(x: Any) -> Any:
    time.sleep(1e-3)
    return x, os.getpid()


def marked(length: int, **more: Any) -> Any:
    return numbers(length).map(with_pid).mp_prefetch(bushel.MultiprocessingOptions(num_workers=2), **more)


def test_marks_that_ask_for_the_same_share_a_pool():
    before = workers()
    ds = bushel.IterDataset.mix([marked(60), marked(60)])
    with iter(ds) as it:
        found = list(it)
        assert len(it.report().pools) == 1
        mine = workers() - before
        assert {pid for _, pid in found} <= mine and len(mine) == 2
    assert [x for x, _ in found] == [x for x in range(60) for _ in range(2)]
    wait_until(lambda: not workers() & mine)


def test_marks_that_ask_for_something_else_have_pools_of_their_own():
    more = numbers(20).map(with_pid).mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))
    init = marked(20, worker_init_fn=lambda index, count: None)
    with iter(bushel.IterDataset.mix([marked(20), more, init, marked(20)])) as it:
        assert len(it.report().pools) == 3
        assert [x for x, _ in it] == [x for x in range(20) for _ in range(4)]


def test_a_part_that_ends_leaves_the_pool_to_the_others():
    before = workers()
    ds = bushel.experimental.InterleaveIterDataset([marked(5), marked(90), marked(3), marked(40)], cycle_length=2)
    plain = bushel.experimental.InterleaveIterDataset(
        [numbers(5), numbers(90), numbers(3), numbers(40)], cycle_length=2
    )
    with iter(ds) as it:
        found = list(it)
        assert len({pid for _, pid in found}) == 2  # the same two throughout
    assert [x for x, _ in found] == list(plain)
    wait_until(lambda: workers() <= before)


def test_iterators_have_pools_of_their_own():
    with iter(marked(40)) as one, iter(marked(40)) as other:
        first = {pid for _, pid in one}
        one.close()
        assert not first & {pid for _, pid in other}


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
