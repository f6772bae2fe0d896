"""Waiting that takes long is told: for whom, at which element, where in the code; and only then."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from helpers.waiting import wait_until
from helpers.worker_pools import numbers, open_on

import bushel
from bushel import experimental as ex
from bushel._src.engine import tasks
from bushel._src.engine.processes import shared_areas
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.tasks import Threads

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr(tasks, "STALL_S", 0.3)
    monkeypatch.setattr(shared_areas, "_ANSWER_S", 10.0)  # a busy machine takes its time
    with caplog.at_level(logging.WARNING, "bushel"):
        yield


class Stuck:
    """Element 3 does not come until enough has been told of it."""

    def __init__(self, folder: Path):
        self.gate = folder / "gate"
        self.gate.touch()

    def __call__(self, x: int) -> int:
        if x == 3:
            lies_here(self.gate)
        return x


def lies_here(gate: Path) -> None:
    while os.access(gate, os.F_OK):  # written in C: `Path.exists` would be in the stack now and then
        time.sleep(0.01)


def read(
    it: Iterator[Any],
    caplog: Any,
    *,
    until: str,
    times: int,
    then: Callable[[], Any],
    but_not: str = "nothing",
    elements: range = range(8),
) -> list[str]:
    """Reads to the end; calls `then` when `until` was told so many `times`, and returns what was told with it.

    On a busy machine other workers may be at work when the first warnings come: messages with `but_not` do not count.
    """

    def told() -> list[str]:
        messages = map(logging.LogRecord.getMessage, list(caplog.records))
        return [message for message in messages if until in message and not re.search(but_not, message)]

    def watch() -> None:
        wait_until(lambda: len(told()) >= times)
        then()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    assert list(it) == list(elements)
    watching.join()
    return told()


@pytest.mark.parametrize("portable", [False, True])
def test_a_worker_that_is_stuck_is_named_with_its_stack(caplog, portable, tmp_path):
    stuck, executor = Stuck(tmp_path), Processes(2, portable=portable)
    with open_on(numbers(8).map(stuck), executor) as it:
        but_not = r"Worker [^$]*Worker"  # the other one has something to do, too
        first, second, *_ = read(it, caplog, until="lies_here", times=2, then=stuck.gate.unlink, but_not=but_not)
        pids = executor.pids()
    executor.close()
    waited = [float(message.removeprefix("No result has arrived for ").split()[0]) for message in (first, second)]
    turns = (waited[1] - waited[0]) / 0.3  # once every so often
    assert turns == pytest.approx(max(round(turns), 1))
    lines = first.splitlines()
    assert any(f"s. Worker {number} (process {pid}) has been computing " in lines[0] for number, pid in enumerate(pids))
    assert re.search(r"(elements \d to \d|element 3) of the output for \d+\.\d s:$", lines[0])
    assert "in lies_here" in lines[1] and "in __call__" in lines[2]
    assert not [line for line in lines if "/bushel/engine/" in line]


def test_a_stack_has_the_letters_of_file_names(caplog, tmp_path):
    stuck, executor = Stuck(tmp_path), Processes(1)
    scope: dict[str, Any] = {"stuck": stuck}
    exec(compile("def waits(x):\n    return stuck(x)\n", "/data/b\u00f6x/\u6570\u636e.py", "exec"), scope)
    with open_on(numbers(8).map(scope["waits"]), executor) as it:
        first, *_ = read(it, caplog, until="lies_here", times=1, then=stuck.gate.unlink)
    executor.close()
    assert 'File "/data/b\u00f6x/\u6570\u636e.py", line 2 in waits' in first


def stopped_at_three(x: int) -> int:
    if x == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return x


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_worker_that_cannot_answer_is_named(caplog, monkeypatch):
    monkeypatch.setattr(shared_areas, "_ANSWER_S", 0.3)
    executor = Processes(1)
    with open_on(numbers(8).map(stopped_at_three), executor) as it:
        (pid,) = executor.pids()

        def stopped() -> bool:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        def wake() -> None:
            wait_until(stopped)
            os.kill(pid, signal.SIGCONT)

        first, *_ = read(it, caplog, until="(the worker does not answer)", times=1, then=wake)
    executor.close()
    assert f"Worker 0 (process {pid}) has been computing " in first and first.endswith(
        ":\n  (the worker does not answer)"
    )


def test_a_worker_is_none_the_worse_for_being_asked(caplog, tmp_path):
    stuck, executor = Stuck(tmp_path), Processes(1)
    with open_on(numbers(8).map(stuck), executor) as it:
        before = executor.pids()
        read(it, caplog, until="lies_here", times=1, then=stuck.gate.unlink)
        assert executor.pids() == before
    executor.close()


def test_a_worker_that_finishes_while_it_is_asked_is_no_error(caplog, monkeypatch, tmp_path):
    stuck, executor = Stuck(tmp_path), Processes(1)
    ask = executor._supervisor._stacks.read

    def too_late(pid: int) -> str:
        found = ask(pid)
        stuck.gate.unlink(missing_ok=True)
        wait_until(lambda: executor._supervisor.workers[0].busy_since is None)
        return found

    monkeypatch.setattr(executor._supervisor._stacks, "read", too_late)
    with open_on(numbers(4).map(stuck), executor) as it:
        assert list(it) == list(range(4))
    executor.close()
    assert "has been computing " in caplog.text and "lies_here" in caplog.text


def test_a_stuck_thread_is_named_with_its_stack(caplog, tmp_path):
    stuck = Stuck(tmp_path)
    with open_on(numbers(8).map(stuck), executor := Threads(2)) as it:
        but_not = r"Thread bushel-read[^$]*Thread bushel-read"
        first, *_ = read(it, caplog, until="lies_here", times=1, then=stuck.gate.unlink, but_not=but_not)
    executor.close()
    assert first.startswith("No result has arrived for ") and " s. Thread bushel-read-" in first
    assert "in lies_here\n" in first and "/bushel/engine/" not in first


def test_a_thread_that_pulls_ahead_is_named_once(caplog, monkeypatch, tmp_path):
    stuck = Stuck(tmp_path)
    with open_on(ex.ThreadPrefetchIterDataset(numbers(8).map(stuck), prefetch_buffer_size=2)) as it:
        first, *_ = read(it, caplog, until="lies_here", times=1, then=stuck.gate.unlink)
    assert " s. Thread bushel-pull is at:\n" in first
    caplog.clear()
    stuck = Stuck(tmp_path)
    ds = numbers(8).map(stuck).mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))
    with open_on(ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=1)) as it:
        monkeypatch.setattr(tasks, "STALL_S", 600.0)
        assert next(it) == 0  # before that the thread starts a worker, and does not yet wait for it
        monkeypatch.setattr(tasks, "STALL_S", 0.3)
        first, *_ = read(it, caplog, until="lies_here", times=1, then=stuck.gate.unlink, elements=range(1, 8))
    assert "Worker 0" in first and "Thread" not in caplog.text  # the worker is what it waits for


def test_nothing_is_said_while_elements_come(caplog, monkeypatch):
    monkeypatch.setattr(tasks, "STALL_S", 30.0)
    executor = Processes(1)
    with open_on(numbers(150).map(lambda x: time.sleep(0.02) or x), executor) as it:
        assert next(it) == 0  # the worker has started
        monkeypatch.setattr(tasks, "STALL_S", 2.0)
        assert list(it) == list(range(1, 150))  # longer than that in all
    executor.close()
    assert not caplog.records


def test_a_timeout_of_the_users_own_is_no_stall(caplog, monkeypatch):
    monkeypatch.setattr(tasks, "STALL_S", 30.0)

    def late(x: int) -> int:
        raise TimeoutError("the server is slow")

    for executor in (Threads(1), Processes(1)):
        with open_on(numbers(4).map(late), executor) as it, pytest.raises(TimeoutError, match="the server is slow"):
            next(it)
        executor.close()
    assert not caplog.records


def test_the_file_of_stacks_is_closed_when_modules_are_gone(monkeypatch):
    stack_file = shared_areas.Stacks(portable=False)
    descriptor = stack_file.descriptor
    with monkeypatch.context() as gone:
        gone.setattr(shared_areas, "os", None)
        del stack_file
        gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
