"""Long work shows how far it is: a bar on a terminal, log lines elsewhere, or calls of a function."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers.terminals import BARS_AT_ONCE, last_drawn, run_on_terminal

import bushel
from bushel._src.base import shown_text as module
from bushel._src.base.shown_text import Progress, on_progress, without_progress
from bushel._src.trajectory.episode_conversion import convert_episodes
from bushel._src.trajectory.single_pass import iterate_once
from bushel.trajectory import RLDSBuilder, get_dataset_statistics

COLUMN = f"{BARS_AT_ONCE}import bushel\nbushel.MapDataset.range(500).column(lambda x: x * x)"


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


@pytest.fixture
def terminal(monkeypatch, capsys):
    monkeypatch.setattr(module, "_is_drawn", lambda: True)
    monkeypatch.setattr(module, "BAR_AFTER_S", 0)
    return capsys


def work(clock, *, until=100, step_s=1.0):
    with Progress("column length", until) as progress:
        for done in range(until + 1):
            progress.show(done)
            clock.now += step_s


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


def test_on_a_terminal_a_bar_is_drawn():
    code, out, screen = run_on_terminal("-c", COLUMN)
    assert (code, out) == (0, "")
    (line,) = last_drawn(screen)
    assert line.startswith("column <lambda>: 100%|█") and "500/500" in line and "records/s" in line
    assert "0/500" in screen and screen.endswith("\n")


def test_a_terminal_without_a_size_has_a_bar_too():
    _, _, screen = run_on_terminal("-c", COLUMN, columns=0)
    assert "500/500" in screen


def test_in_a_pipe_nothing_is_shown():
    child = subprocess.run([sys.executable, "-c", COLUMN], capture_output=True, text=True, check=True)
    assert (child.stdout, child.stderr) == ("", "")


def test_tqdm_can_be_turned_off_from_outside():
    code, out, screen = run_on_terminal("-c", COLUMN, env={"TQDM_DISABLE": "1"})
    assert (code, out, screen) == (0, "", "")


def test_a_bar_ends_its_line_after_an_error():
    script = f"{BARS_AT_ONCE}import bushel\nbushel.MapDataset.range(500).column(lambda x: 1 // (x - 70))"
    code, _, screen = run_on_terminal("-c", script)
    assert code == 1
    assert any(line.startswith("column <lambda>:") and "/500" in line for line in last_drawn(screen))
    assert "Traceback (most recent call last):" in last_drawn(screen)


def test_a_bar_starts_no_thread_and_no_process(terminal):
    before = set(threading.enumerate())
    with Progress("work", 3) as progress:
        progress.show(1)
        assert set(threading.enumerate()) <= before  # one that another test has left may end meanwhile
        import tqdm

        assert type(progress._bar)._lock is not getattr(tqdm.tqdm, "_lock", None)


def test_a_text_stands_beside_the_bar(terminal):
    with Progress("work", 10) as progress:
        progress.say("waiting for another process")
        progress.show(10)
    assert "waiting for another process" in terminal.readouterr().err


def test_the_total_may_be_known_late(terminal):
    with Progress("work", None, unit="records") as progress:
        progress.show(0)
        progress.show(3, 4)
    assert "3/4" in terminal.readouterr().err and progress.total == 4


def test_bytes_have_units(terminal):
    with Progress("download", 3_000_000, unit="B") as progress:
        progress.show(3_000_000)
    assert "3.00M/3.00M" in terminal.readouterr().err


def test_quick_work_draws_no_bar_where_it_may_be_late(terminal):
    with Progress("offsets", 10, delay_s=60) as progress:
        for done in range(11):
            progress.show(done)
    assert terminal.readouterr().err.strip() == ""


def test_a_bar_appears_when_the_work_has_taken_a_second(clock, monkeypatch, capsys):
    monkeypatch.setattr(module, "_is_drawn", lambda: True)
    with Progress("work", 10) as progress:
        progress.show(0)
        clock.now += 0.9
        progress.show(4)
        assert capsys.readouterr().err == ""
        clock.now += 0.2
        progress.show(5)
        assert "5/10" in capsys.readouterr().err


def test_in_a_notebook_the_bar_is_drawn_without_a_terminal(monkeypatch, capsys):
    class ZMQInteractiveShell:
        pass

    class Shell:
        get_ipython = ZMQInteractiveShell

    monkeypatch.setitem(sys.modules, "IPython", Shell)
    monkeypatch.setattr(module, "BAR_AFTER_S", 0)
    with Progress("work", 2) as progress:
        progress.show(1)
        progress.show(2)
    assert "2/2" in capsys.readouterr().err


def test_a_function_is_called_instead_of_a_bar(terminal):
    seen = []
    with on_progress(lambda *facts: seen.append(facts)):
        bushel.MapDataset.range(3).column(float)
    assert seen == [("column float", 0, 3), ("column float", 3, 3)]
    with on_progress(None):
        bushel.MapDataset.range(3).column(float)
    assert terminal.readouterr().err == ""
    bushel.MapDataset.range(3).column(float)
    assert "3/3" in terminal.readouterr().err


def test_an_error_of_the_function_stops_the_work():
    def stop(name, done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"), on_progress(stop):
        bushel.MapDataset.range(3).column(float)


def test_the_function_of_one_operation_goes_before_that_of_the_block():
    seen, own = [], []
    with on_progress(lambda *facts: seen.append(facts)):
        with Progress("work", 2, shown=lambda *facts: own.append(facts)) as progress:
            progress.show(2)
        with Progress("work", 2, shown=False) as progress:
            progress.show(2)
        without_progress(lambda: Progress("part", 1).show(1))()
    assert (seen, own) == ([], [(2, 2)])


SAVING = """
import sys, bushel
def read(x):
    from bushel._src.base.shown_text import Progress
    with Progress("inside a worker", 1) as progress:
        progress.show(1)
    return x
bushel.MapDataset.range(40).map(read).save(sys.argv[1], format="tfrecord", workers=bushel.MultiprocessingOptions(2))
"""


def test_workers_draw_no_bars(tmp_path):
    code, _, screen = run_on_terminal("-c", BARS_AT_ONCE + SAVING, tmp_path / "saved")
    assert code == 0, screen
    (line,) = last_drawn(screen)
    assert line.startswith("saving saved: 100%") and "40/40" in line


def test_a_closed_standard_error_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("work", 2) as progress:
        progress.show(2)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress("work", 2) as progress:
        progress.show(2)


@pytest.mark.filterwarnings("ignore:TFRecord files are read without")  # where no package computes checksums
def test_every_long_operation_of_files_tells_how_far_it_is(tmp_path):
    """Columns, saved data sets, offsets, conversions, statistics and tables, all through one function."""
    seen: dict[str, tuple[int, int | None]] = {}
    (tmp_path / "x.txt").write_text("a\n" * 50)
    (tmp_path / "arm").mkdir()
    np.savez(tmp_path / "arm" / "0.npz", state=np.zeros((5, 3)), action=np.zeros((5, 2)))
    ds = bushel.MapDataset.range(7)
    with on_progress(lambda name, done, total: seen.update({name: (done, total)})):
        ds.column(float)
        ds.save(tmp_path / "saved", format="tfrecord")
        bushel.sources.convert(tmp_path / "x.txt", tmp_path / "y.tfrecord")
        bushel.sources.open(tmp_path / "y.tfrecord")
        convert_episodes(tmp_path / "arm", tmp_path / "rlds" / "arm", format="rlds")
        RLDSBuilder("arm", tmp_path / "rlds").episodes().index(cache_dir=tmp_path / "index")
        get_dataset_statistics([{"observation": {}, "action": np.zeros((5, 2))}], [], ["all"], tmp_path / "statistics")
        list(iterate_once(ds, "a pass"))
    assert {name: facts[0] == facts[1] for name, facts in seen.items()} == dict.fromkeys(seen, True)
    assert set(seen) >= {
        "column float",
        "saving saved",
        "lines of x.txt",
        "converting to y.tfrecord",
        "offsets of y.tfrecord",
        "converting to arm",
        "index of episodes",
        "statistics",
        "a pass",
    }
