"""Long work says how far it is: in place where a line can be drawn, in the log elsewhere."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from bushel.base import progress as module
from bushel.base.progress import Progress


class Clock:
    """Stands for `time.monotonic`: the test says how late it is."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def work(clock, *, until=100, step_s=1.0):
    progress = Progress("column length", until)
    for done in range(until + 1):
        progress.show(done)
        clock.now += step_s
    progress.end()


def test_without_a_terminal_there_is_a_log_line_now_and_then(clock, capsys, caplog):
    with caplog.at_level(logging.INFO, "bushel"):
        work(clock)
    assert caplog.messages == [
        "column length: 5 of 100 (5%), 95 s left",
        "column length: 35 of 100 (35%), 65 s left",
        "column length: 65 of 100 (65%), 35 s left",
        "column length: 95 of 100 (95%), 5 s left",
    ]
    assert capsys.readouterr().err == ""


def test_short_work_leaves_no_log_line(clock, capsys, caplog):
    with caplog.at_level(logging.INFO, "bushel"):
        work(clock, step_s=0.01)
    assert caplog.messages == [] and capsys.readouterr().err == ""


def test_in_a_notebook_the_line_is_drawn_in_its_place(clock, capsys, caplog, monkeypatch):
    class ZMQInteractiveShell:
        pass

    shell = types.SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    with caplog.at_level(logging.INFO, "bushel"):
        work(clock, until=2)
    lines = capsys.readouterr().err.split("\r")
    assert lines[0] == "" and lines[1:] == [
        "column length: 0 of 2 (0%)",
        "column length: 1 of 2 (50%)",
        "column length: 2 of 2 (100%), 0 s left\n",
    ]
    assert caplog.messages == []


def test_a_shorter_line_covers_a_longer_one(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress("work", 10)
    progress.say("a long text")
    progress.say("short")
    progress.end()
    assert capsys.readouterr().err == "\rwork: a long text\rwork: short      \n"
