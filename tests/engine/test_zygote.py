"""The start of worker processes: whatever interrupts it, and whatever the consumer's surroundings are."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
from watching import alive, parents, run_script, wait_until

from bushel.engine import wire, zygote
from bushel.engine.zygote import Starter

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests


@pytest.fixture
def starter() -> Iterator[Starter]:
    """One of its own, so that no other test's workers are at stake."""
    made = Starter()
    yield made
    made._drop()


# ---------------------------------------------------------------------------------------------------------------------
# Interrupts


@contextlib.contextmanager
def interrupted_at(line: int) -> Iterator[list[str]]:
    """Raises KeyboardInterrupt before the given line that is run of the two modules; says where that was.

    Not at a `with` or a `try`: these do nothing before they hold, so that no signal is ever handled there.
    """
    files, seen, where = {zygote.__file__, wire.__file__}, itertools.count(), []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        written = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not written.startswith(("with ", "try:")) and next(seen) == line:
            where.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield where
    finally:
        sys.settrace(before)


def check_start(starter: Starter) -> None:
    """A worker can be started, is the one it is said to be, and its end is told."""
    channel, pid = starter.start(fork=True)
    assert starter._process is not None and parents()[pid] == starter._process.pid
    channel.close()
    wait_until(lambda: not alive([pid]))
    assert starter.ended(pid) == "ended with exit code 0"


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_a_start_may_be_interrupted_anywhere(starter, step):
    check_start(starter)
    places = []
    for line in itertools.count(0, step):
        with interrupted_at(line) as where:
            try:
                starter.start(fork=True)
            except KeyboardInterrupt:
                assert where
        if not where:
            break
        places += where
        check_start(starter)
    assert {place.partition(":")[0] for place in places} >= {"_ask", "send", "receive"}


def test_a_question_that_is_interrupted_does_not_change_the_next_answer(starter):
    first, pid = starter.start(fork=True)
    first.close()
    wait_until(lambda: not alive([pid]))
    for line in range(0, 12, 3):
        with interrupted_at(line) as where, contextlib.suppress(KeyboardInterrupt):
            starter.ended(pid)
        assert where
        check_start(starter)


def test_a_zygote_that_does_not_answer_is_replaced(starter, monkeypatch):
    check_start(starter)
    first = starter._process.pid
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(zygote, "ANSWER_S", 2.0)
    begun = time.monotonic()
    check_start(starter)
    assert time.monotonic() - begun < 6
    assert starter._process.pid != first and not alive([first])


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_nobody_is_killed_but_workers(pid):
    with pytest.raises(ValueError, match=f"no worker process {pid}"):
        zygote.kill(pid)


INTERRUPTED = """
    import signal, sys
    import bushel

    def interrupt(*_): raise KeyboardInterrupt

    ds = bushel.MapDataset.range(20).map(lambda x: x + 1).to_iter_dataset()
    ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=2))
    signal.signal(signal.SIGALRM, interrupt)
    for number in range(1, 6):
        signal.setitimer(signal.ITIMER_REAL, number * 0.01)
        try:
            iter(ds)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
        print(sum(ds))
"""


def test_a_program_that_was_interrupted_goes_on(tmp_path):
    code, out, err = run_script(tmp_path, INTERRUPTED)
    assert (code, out, err) == (0, "210\n" * 5, "")
