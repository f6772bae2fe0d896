"""The start of worker processes: whatever interrupts it, and whatever the consumer's surroundings are."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from helpers.processes import alive, parents, run_script, workers
from helpers.processes import zygote as zygote_here
from helpers.waiting import SOON_S, wait_until
from helpers.worker_pools import TWO, image_of, numbers

import bushel
from bushel._src.engine.processes import channel, zygote
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.processes.zygote import Starter

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import the tests

NEVER_S = 1e5


@pytest.fixture
def starter() -> Iterator[Starter]:
    """One of its own, so that no other test's workers are at stake."""
    made = Starter()
    yield made
    made._kill_zygote()


# ---------------------------------------------------------------------------------------------------------------------
# Interrupts


@contextlib.contextmanager
def interrupted_at(line: int) -> Iterator[list[str]]:
    """Raises KeyboardInterrupt before the given line that is run of the two modules; says where that was.

    Not at a `with` or a `try`: these do nothing before they hold, so that no signal is ever handled there.
    """
    files, seen, where = {zygote.__file__, channel.__file__}, itertools.count(), []

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
    assert starter.describe_end(pid) == "ended with exit code 0"


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # an interrupt right after a socket was made
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
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
    assert {place.partition(":")[0] for place in places} >= {"_request", "receive"}


def test_a_question_that_is_interrupted_does_not_change_the_next_answer(starter):
    first, pid = starter.start(fork=True)
    first.close()
    wait_until(lambda: not alive([pid]))
    for line in range(0, 12, 3):
        with interrupted_at(line) as where, contextlib.suppress(KeyboardInterrupt):
            starter.describe_end(pid)
        assert where
        check_start(starter)


def test_a_zygote_that_does_not_answer_is_replaced(starter, monkeypatch):
    check_start(starter)
    first = starter._process.pid
    os.kill(first, signal.SIGSTOP)
    start = zygote._start_python

    def start_and_be_patient(*arguments: Any) -> Any:
        monkeypatch.setattr(zygote, "ANSWER_S", NEVER_S)
        return start(*arguments)

    monkeypatch.setattr(zygote, "_start_python", start_and_be_patient)
    monkeypatch.setattr(zygote, "ANSWER_S", 2.0)
    monkeypatch.setattr(zygote, "_is_stopped", lambda pid: False)  # as if it were at work
    check_start(starter)
    assert starter._process.pid != first and not alive([first])


def test_a_zygote_that_was_stopped_is_noticed_and_replaced(starter, monkeypatch):
    monkeypatch.setattr(zygote, "ANSWER_S", NEVER_S)
    check_start(starter)
    first = starter._process.pid
    os.kill(first, signal.SIGSTOP)
    check_start(starter)
    assert starter._process.pid != first and not alive([first])


def test_a_zygote_that_goes_on_after_a_short_stop_is_kept(starter, monkeypatch):
    check_start(starter)
    first = starter._process.pid
    os.kill(first, signal.SIGSTOP)
    is_stopped = zygote._is_stopped
    wait_until(lambda: is_stopped(first))
    seen: list[bool] = []

    def look_and_wake(pid: int) -> bool:
        seen.append(is_stopped(pid))
        os.kill(pid, signal.SIGCONT)
        return seen[-1]

    monkeypatch.setattr(zygote, "_is_stopped", look_and_wake)
    check_start(starter)
    assert seen[0]
    assert starter._process.pid == first and not is_stopped(first)


def test_a_stopped_zygote_and_a_dead_worker_do_not_stop_a_run(monkeypatch):
    monkeypatch.setattr(zygote, "ANSWER_S", NEVER_S)
    ds = numbers(400).map(lambda x: time.sleep(0.002) or x)
    with iter(ds.mp_prefetch(options(2))) as it:
        found = [next(it) for _ in range(20)]
        first = zygote_here()
        os.kill(first, signal.SIGSTOP)
        os.kill(min(workers()), signal.SIGKILL)
        found += it
        assert zygote_here() not in (None, first) and not alive([first])
    assert found == list(range(400))


@contextlib.contextmanager
def signalling(how: int, times: int) -> Iterator[list[int]]:
    """Sends a signal to each new zygote, as soon as there is one; a list of those that got it."""
    hit: list[int] = []
    start = zygote._start_python

    def start_and_attack(*arguments: Any) -> Any:
        process = start(*arguments)
        if len(hit) < times:
            hit.append(process.pid)
            os.kill(process.pid, how)
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote, "_start_python", start_and_attack)
        yield hit


# SIGINT either kills Python or makes it end with exit code 1, as it has come far or not: once, that is no error.
@pytest.mark.parametrize(
    ("how", "times"), [(signal.SIGTERM, 3), (signal.SIGINT, 1), (signal.SIGKILL, 3), (signal.SIGSTOP, 1)]
)
def test_a_zygote_that_gets_a_signal_while_it_starts_is_started_again(starter, how, times):
    with signalling(how, times) as hit:
        check_start(starter)
    assert starter._process is not None and starter._process.pid not in hit
    assert len(hit) == times and not alive(hit)


def test_a_zygote_that_is_killed_every_time_is_an_error_after_some_starts(starter):
    said = r"helper process that forks its workers\. It was killed by SIGKILL\. It was started 10 times in a row\."
    with signalling(signal.SIGKILL, times=100) as hit, pytest.raises(RuntimeError, match=said):
        starter.start(fork=True)
    assert len(hit) == zygote.MAX_STARTS and not alive(hit)
    check_start(starter)


def test_a_zygote_that_cannot_start_is_tried_twice(starter, monkeypatch, capfd):
    monkeypatch.setattr(zygote.background, "search_path", lambda: [])
    with pytest.raises(RuntimeError, match=r"\. It ended with exit code 1\. It was started 2 times in a row\."):
        starter.start(fork=True)
    assert capfd.readouterr().err.count("ModuleNotFoundError") >= 2
    monkeypatch.undo()
    check_start(starter)


def test_a_zygote_ends_its_workers_without_a_word():
    code = """
import sys, time
from bushel._src.engine.processes import zygote

def kill_and_see(pid, kill=zygote.kill):  # it hears of the end while others are still to be killed
    kill(pid)
    time.sleep(0.05)

zygote.kill = kill_and_see
zygote.main(int(sys.argv[1]))
"""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", code, str(theirs.fileno())]
    with theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
        control = channel.Channel(ours)
        ends = [socket.socketpair() for _ in range(3)]
        pids = []
        for number, (_, end) in enumerate(ends):
            control.send(("fork", number), (end.fileno(),))
            pids.append(control.receive()[0][1])
        control.close()
        theirs.close()
        assert process.communicate(timeout=SOON_S)[1] == b""
        assert process.returncode == 0 and not alive(pids)
        for end in (end for pair in ends for end in pair):
            end.close()


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


# ---------------------------------------------------------------------------------------------------------------------
# Surroundings


def options(num_workers: int = 2) -> bushel.MultiprocessingOptions:
    return bushel.MultiprocessingOptions(num_workers=num_workers)


def test_entries_of_the_path_that_are_no_text_are_passed_over(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path, b"bytes", None])
    for portable in (False, True):
        with contextlib.closing(Processes(1, portable=portable)) as executor:
            with numbers(3).map(lambda x: sys.path).iterate_on(executor) as it:
                seen = list(it)
            assert seen == [[entry for entry in sys.path if isinstance(entry, str)]] * 3
    made = Starter()
    try:
        check_start(made)  # a process of its own has read that path
    finally:
        made._kill_zygote()


def test_workers_that_start_later_see_what_the_first_ones_saw(monkeypatch, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    monkeypatch.setenv("BUSHEL_TEST", "one")
    Path("file").write_text("here")

    def look(x: int) -> Any:
        time.sleep(0.002)
        return Path("file").read_text(), os.environ["BUSHEL_TEST"], sys.path[0], os.getpid()

    with contextlib.closing(Processes(2, at_first=1)) as executor, numbers(10**6).map(look).iterate_on(executor) as it:
        first = next(it)
        monkeypatch.chdir(tmp_path / "two")
        monkeypatch.setenv("BUSHEL_TEST", "two")
        monkeypatch.syspath_prepend(str(tmp_path / "modules"))
        executor.resize(2)
        os.kill(first[-1], signal.SIGKILL)
        others: set[int] = set()
        while len(others) < 2:  # until both have done something
            *rest, pid = next(it)
            assert tuple(rest) == first[:3]
            others |= {pid} - {first[-1]}


def test_random_numbers_differ_between_workers(tmp_path):
    script = """
        import os, random, sys, time, warnings
        import numpy as np
        import bushel

        warnings.filterwarnings("ignore", message=".* draws from ")

        def draw(x):
            time.sleep(0.005)
            return os.getpid(), float(np.random.rand()), random.random()

        ds = bushel.MapDataset.range(40).map(draw).to_iter_dataset()
        seen = []
        for _ in range(3):
            seen += ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=4))
            time.sleep(0.3)  # the process that forks workers loads more meanwhile
        print(len({pid for pid, _, _ in seen}) > 6, [len(set(drawn)) for drawn in list(zip(*seen))[1:]])
    """
    assert run_script(tmp_path, script) == (0, "True [120, 120]\n", "")


def test_what_workers_print_is_seen(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = """
        import sys
        import bushel
        from bushel._src.engine.processes.executor import Processes

        def tell(x):
            print("seen", x)
            return x

        ds = bushel.MapDataset.range(5).map(tell).to_iter_dataset()
        for portable in (False, True):
            with ds.iterate_on(Processes(2, portable=portable)) as it:
                assert list(it) == list(range(5))
    """
    code, out, err = run_script(tmp_path, script)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(2 * [f"seen {x}" for x in range(5)])


def test_the_zygote_may_be_killed():
    with iter(numbers(3000).map(image_of).batch(4).mp_prefetch(TWO)) as it:
        found = [int(next(it)["label"][0]) for _ in range(5)]
        first = zygote_here()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not alive([first]))
        found += [int(batch["label"][0]) for batch in it]
    assert found == list(range(0, 3000, 4))
    with iter(numbers(100).mp_prefetch(TWO)) as it:  # and the next pool works
        assert list(it) == list(range(100))
    assert zygote_here() not in (None, first)


TWO_POOLS_CLOSED = """
    import os, time
    import bushel

    ds = bushel.MapDataset.range(40).map(lambda x: time.sleep(0.01) or x).to_iter_dataset()
    two = bushel.MultiprocessingOptions(num_workers=2)

    def children(pid):
        "Also those that have ended and that nobody has waited for."
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
    assert run_script(tmp_path, TWO_POOLS_CLOSED) == (0, "4\nTrue\n780\nTrue\n780\n", "")
