"""Waiting that takes long is told: for whom, at which element, where in the code; and only then."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

import bushel
from bushel import experimental as ex
from bushel.engine import stall
from bushel.engine.processes import Processes
from bushel.engine.tasks import Threads
from bushel.iterator import PipelineIterator

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

STUCK_S = 0.8


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    monkeypatch.setattr(stall, "STALL_S", 0.3)
    monkeypatch.setattr(stall, "_ANSWER_S", 0.3)
    with caplog.at_level(logging.WARNING, "bushel"):
        yield


def numbers(length: int) -> Any:
    return bushel.MapDataset.range(length).to_iter_dataset(bushel.ReadOptions(0, 0))


def opened(ds: Any, executor: Any = None) -> PipelineIterator[Any]:
    return PipelineIterator(ds._node, bushel.ReadOptions(0, 0), executor)


def stuck_at_three(x: int) -> int:
    if x == 3:
        lies_here()
    return x


def lies_here() -> None:
    time.sleep(STUCK_S)


@pytest.mark.parametrize("portable", [False, True])
def test_a_worker_that_is_stuck_is_named_with_its_stack(caplog, portable):
    executor = Processes(2, portable=portable)
    with opened(numbers(8).map(stuck_at_three), executor) as it:
        assert list(it) == list(range(8))
        pids = executor.pids()
    executor.close()
    told = [record.getMessage() for record in caplog.records]
    first, *more = [message for message in told if "No worker has begun" not in message]  # they may be slow to start
    assert 1 <= len(more) <= 2  # once every so often
    assert first.startswith("Nothing has come for 0.3 s. Worker ")
    assert more[0].startswith("Nothing has come for 0.6 s.")
    assert any(f"(process {pid}) has been at element 3 of the output for 0." in first for pid in pids)
    lines = first.splitlines()
    assert "in lies_here" in lines[1] and "in stuck_at_three" in lines[2]
    assert not [line for line in lines if "/bushel/engine/" in line]


def stopped_at_three(x: int) -> int:
    if x == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return x


def test_a_worker_that_cannot_answer_is_named(caplog):
    executor = Processes(1)
    with opened(numbers(6).map(stopped_at_three), executor) as it:
        (pid,) = executor.pids()
        wake = threading.Timer(1.5, os.kill, (pid, signal.SIGCONT))
        wake.start()
        assert list(it) == [0, 1, 2, 3, 4, 5]
        wake.join()
    executor.close()
    first = caplog.records[0].getMessage()
    assert f"Worker 0 (process {pid}) has been at " in first and first.endswith(":\n  (it does not answer)")


def test_a_worker_is_none_the_worse_for_being_asked(caplog):
    executor = Processes(1)
    with opened(numbers(8).map(stuck_at_three), executor) as it:
        before = executor.pids()
        assert list(it) == list(range(8))
        assert executor.pids() == before
    executor.close()
    assert caplog.records


def test_a_stuck_thread_is_named_with_its_stack(caplog):
    with opened(numbers(8).map(stuck_at_three), executor := Threads(2)) as it:
        assert list(it) == list(range(8))
    executor.close()
    first = caplog.records[0].getMessage()
    assert first.startswith("Nothing has come for 0.3 s. Thread bushel-read-")
    assert "in lies_here\n" in first and "/bushel/engine/" not in first
    assert first.count("Thread bushel-read") == 1  # the other has nothing to do


def test_a_thread_that_pulls_ahead_is_named_once(caplog):
    with opened(ex.ThreadPrefetchIterDataset(numbers(8).map(stuck_at_three), prefetch_buffer_size=2)) as it:
        assert list(it) == list(range(8))
    assert "Nothing has come for 0.3 s. Thread bushel-pull is at:\n" in caplog.text and "in lies_here" in caplog.text
    caplog.clear()
    ds = numbers(8).map(stuck_at_three).mp_prefetch(bushel.MultiprocessingOptions(num_workers=1))
    with opened(ex.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2)) as it:
        assert list(it) == list(range(8))
    assert "Worker 0" in caplog.text and "Thread" not in caplog.text  # the worker is what it waits for


def test_nothing_is_said_while_elements_come(caplog):
    executor = Processes(1)
    with opened(numbers(40).map(lambda x: time.sleep(0.02) or x), executor) as it:
        assert list(it) == list(range(40))
    executor.close()
    assert not caplog.records


def test_a_timeout_of_the_users_own_is_no_stall(caplog):
    def late(x: int) -> int:
        raise TimeoutError("the server is slow")

    for executor in (Threads(1), Processes(1)):
        with opened(numbers(4).map(late), executor) as it, pytest.raises(TimeoutError, match="the server is slow"):
            next(it)
        executor.close()
    assert not caplog.records


def test_the_file_of_stacks_is_closed_at_exit_when_modules_are_gone(monkeypatch):
    stacks = stall.Stacks(portable=False)
    descriptor = stacks.descriptor
    with monkeypatch.context() as gone:
        gone.setattr(stall, "os", None)
        stacks.__del__()
    del stacks.descriptor  # it is closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
