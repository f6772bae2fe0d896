"""Workers end with their consumer, however it ends, and closing waits for none of them."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time

import cloudpickle
import pytest
from helpers.processes import alive, named_memory, offspring, read_line, run_script, start_script, workers, zygote
from helpers.waiting import SOON_S, wait_until
from helpers.worker_faults import AlwaysAt, hold_the_interpreter_lock, sleep_for_ever, spin_for_ever, stop_this_process
from helpers.worker_pools import TWO, image_of, numbers, open_on, worker_pool

from bushel._src.engine.processes.executor import Processes

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


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


def script_of(*parts: str) -> str:
    return "\n".join(map(textwrap.dedent, parts))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_workers_end_when_the_consumer_is_killed(tmp_path, number):
    ending = """
        print("ready", flush=True)
        list(it)
    """
    with start_script(tmp_path, script_of(STREAMING, ending)) as child:
        assert read_line(child) == "ready"
        mine = offspring(child.pid)
        assert len(mine) == 3  # two workers and the process that forks them
        assert not named_memory([child.pid, *mine])  # so that nothing can stay there
        child.send_signal(number)
        assert child.wait(SOON_S) == -number
        wait_until(lambda: not alive(mine))
        assert child.stderr.read() == ""


def test_workers_that_were_not_forked_end_when_the_consumer_is_killed(tmp_path):
    ending = """
        from bushel._src.engine.processes.executor import Processes
        from bushel._src.datasets.iterator import PipelineIterator
        it.close()
        executor = Processes(2, portable=True)
        it = PipelineIterator(ds._node, None, executor)
        next(it)
        print(*executor.pids(), flush=True)
        list(it)
    """
    with start_script(tmp_path, script_of(STREAMING, ending)) as child:
        mine = set(map(int, read_line(child).split()))
        assert len(alive(mine)) == 2
        child.kill()
        child.wait(SOON_S)
        wait_until(lambda: not alive(mine))


def test_workers_that_were_not_forked_are_gone_after_closing():
    with worker_pool(portable=True) as executor:
        mine = executor.pids()
        assert zygote() not in mine and len(alive(mine)) == 2
        with open_on(numbers(10), executor) as it:
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


def test_workers_end_with_the_consumer_though_its_child_lives(tmp_path):
    ending = """
        child = os.fork()
        if not child:
            os.close(1), os.close(2)
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)
        list(it)
    """
    with start_script(tmp_path, script_of(STREAMING, ending)) as script:
        child = int(read_line(script))
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
    with start_script(tmp_path, script_of(STREAMING, ending)) as child:
        assert read_line(child) == "ready"
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
    returned, out, err = run_script(tmp_path, script_of(STREAMING, text, ""), "-X", "dev")  # not in 600 s
    assert returned == code
    assert out == ""
    if ending == "fails":
        assert err.count("Traceback") == 1 and err.rstrip().endswith("RuntimeError: by design")
    else:
        assert err == ""


@pytest.mark.parametrize(
    "action",
    [sleep_for_ever, spin_for_ever, stop_this_process, hold_the_interpreter_lock],
    ids=lambda action: action.__name__,
)
def test_close_does_not_wait_for_workers(action):
    executor = Processes(2)
    it = open_on(numbers(60).map(AlwaysAt(0, action)), executor)
    it.start_prefetch()
    pids = executor.pids()
    wait_until(lambda: any(worker.jobs for worker in executor._supervisor.workers))
    begun = time.monotonic()
    it.close()
    executor.close()
    assert time.monotonic() - begun < SOON_S
    wait_until(lambda: not alive(pids))


def test_close_does_not_wait_for_a_worker_that_is_stopped_from_outside():
    with iter(numbers(10_000).map(image_of).mp_prefetch(TWO)) as it:
        next(it)
        mine = wait_until(workers)
        for pid in mine:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
    assert time.monotonic() - begun < SOON_S
    wait_until(lambda: not alive(mine))


def test_close_does_not_wait_for_a_worker_that_cannot_be_replaced(monkeypatch):
    monkeypatch.setattr(
        "bushel._src.engine.processes.zygote._is_stopped", lambda pid: False
    )  # else it is replaced soon
    executor = Processes(2)
    it = open_on(numbers(1000).map(lambda x: time.sleep(0.01) or x), executor)
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
