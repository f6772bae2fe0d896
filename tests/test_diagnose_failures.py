"""A failed test fails the run; the diagnosis says whether it fails alone, too, and whether that is known."""

from __future__ import annotations

import datetime
import json
import pathlib
import subprocess
import sys

import pytest
from tools.diagnose_failures import FEW, UNSTEADY, read_unsteady

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "tools" / "diagnose_failures.py"
PASSES = "def test(): pass"
FAILS = "def test(): assert False"
FAILS_THE_THIRD_TIME = """
import pathlib

def test():
    with open("runs", "a") as file:
        file.write("x")
    assert pathlib.Path("runs").stat().st_size < 3
"""


def diagnose(folder: pathlib.Path, *failed: str) -> str:
    """What the program prints in a folder whose last run of pytest had these failed tests."""
    for number, text in enumerate(failed):
        (folder / f"test_{number}.py").write_text(text)
    # As pyproject.toml has it: to load the plugins of all packages takes seconds, in each run of pytest.
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload -p xdist\n")
    cache = folder / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({f"test_{number}.py::test": True for number in range(len(failed))}))
    done = subprocess.run([sys.executable, SCRIPT], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == ("The run has passed." in done.stdout)
    return done.stdout


def test_the_diagnosis_says_of_each_failed_test_how_often_it_passes_alone(tmp_path):
    printed = diagnose(tmp_path, PASSES, FAILS, FAILS_THE_THIRD_TIME)
    assert printed.endswith(
        "The run has failed. What the failed tests do alone:\n"
        "  test_0.py::test passed 3 times alone, so it depends on how busy the machine is\n"
        "  test_1.py::test failed 3 of 3 times alone\n"
        "  test_2.py::test failed 1 of 3 times alone\n"
    )


def test_a_test_in_the_list_of_unsteady_ones_is_named_with_date_and_reason(tmp_path):
    (tmp_path / UNSTEADY).parent.mkdir()
    (tmp_path / UNSTEADY).write_text("# a comment\n2026-11-19 test_0.py::test: waits for a thread\n")
    printed = diagnose(tmp_path, PASSES)
    assert printed.endswith("how busy the machine is (known since 2026-11-19: waits for a thread)\n")


def test_a_run_passes_if_its_failed_tests_pass_alone(tmp_path):
    assert "The run has passed." in diagnose(tmp_path, PASSES)


def test_a_test_in_the_list_may_fail_alone_sometimes_but_not_always(tmp_path):
    (tmp_path / UNSTEADY).parent.mkdir()
    (tmp_path / UNSTEADY).write_text("2026-11-19 test_0.py::test: waits for a thread\n")
    assert "The run has passed." in diagnose(tmp_path, FAILS_THE_THIRD_TIME)


def test_many_failed_tests_are_not_run_again(tmp_path):
    assert diagnose(tmp_path, *[PASSES] * (FEW + 1)) == (
        f"{FEW + 1} tests failed. They are not run again: that is done for {FEW} at most.\n"
    )


def test_without_the_notes_of_pytest_there_is_nothing_to_say(tmp_path):
    assert subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, check=False).stdout == b""


@pytest.mark.parametrize("target", ["parallel-tests", "test-newest"])
def test_the_diagnosis_decides_whether_the_run_has_failed(target):
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition(f"\n{target}:")[2].partition("\n\n")[0]
    assert "diagnose_failures.py; }" in recipe


def test_the_list_of_unsteady_tests_has_a_date_a_test_and_a_reason_in_each_line():
    for test, (date, reason) in read_unsteady((ROOT / UNSTEADY).read_text(encoding="utf-8")).items():
        datetime.date.fromisoformat(date)
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")
        assert reason
