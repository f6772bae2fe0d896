"""Tests that fail in the parallel run get a second chance, alone; a test that fails again fails for good."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "tools" / "once_more.py"
PASSES = "def test(): pass"
FAILS = "def test(): assert False"
FAILS_THE_THIRD_TIME = """
import pathlib

def test():
    with open("runs", "a") as file:
        file.write("x")
    assert pathlib.Path("runs").stat().st_size < 3
"""


@pytest.mark.parametrize(
    ("failed", "ends_well"),
    [
        ([PASSES], True),
        ([PASSES] * 3, True),
        ([PASSES] * 4, False),  # so many that the machine is no excuse
        ([FAILS], False),
        ([PASSES, FAILS], False),
        ([FAILS_THE_THIRD_TIME], False),
        ([], False),  # pytest failed, but not because of a test
    ],
)
def test_few_tests_that_failed_must_pass_three_times_alone(tmp_path, failed, ends_well):
    for number, text in enumerate(failed):
        (tmp_path / f"test_{number}.py").write_text(text)
    # As pyproject.toml has it: to load the plugins of all packages takes seconds, in each run of pytest.
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload -p xdist\n")
    cache = tmp_path / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({f"test_{number}.py::test": True for number in range(len(failed))}))
    done = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == ends_well, done.stdout
    for number in range(len(failed)):
        assert (f"\n  test_{number}.py::test" in done.stdout) == ends_well  # they are named, so that somebody looks


def test_without_the_notes_of_pytest_nothing_is_excused(tmp_path):
    assert subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, check=False).returncode == 1
