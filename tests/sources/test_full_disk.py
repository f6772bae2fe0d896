"""Disks that become full: writers of record files name the file, and leave nothing that looks whole.

Files that the library writes for itself are in test_own_files.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "programs" / "fill_disk.py"
WRITERS = [
    *(f"convert {ending}" for ending in ("tfrecord", "array_record", "bag", "bagz", "parquet")),
    *("rlds tfrecord", "rlds array_record"),
    "copy of a remote file",
]
LARGEST_FILE_BYTES = 100_000
DISK = "mount -t tmpfs -o size=128k tmpfs {0}"


def outcomes(command: list[str]) -> dict[str, tuple[str, list[str]]]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """What came of each writer where no file may grow beyond a limit: so it is on every system."""
    folder = tmp_path_factory.mktemp("limited") / "out"
    folder.mkdir()
    return outcomes([sys.executable, str(PROGRAM), str(folder), str(LARGEST_FILE_BYTES)])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What came of each writer on a disk of 128 KiB. It takes rights that not everybody has."""
    folder = tmp_path_factory.mktemp("small") / "out"
    folder.mkdir()
    mount = DISK.format(folder)
    if sys.platform != "linux" or subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    return outcomes(["unshare", "-m", "sh", "-c", f"{mount} && exec {sys.executable} '{PROGRAM}' {folder} 0"])


def check(error: str, left: list[str]) -> None:
    reasons = ("File too large", "No space left on device", "is the disk full?")
    assert any(reason in error for reason in reasons), error
    assert "out/" in error or "/out (" in error, f"no file is named: {error}"
    assert [path for path in left if not path.endswith(".lock")] == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_cannot_grow_is_named_and_not_left(name, limited):
    check(*limited[name])


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_told_with_the_file_and_nothing_is_left(name, small):
    check(*small[name])


def test_the_program_runs_every_writer_that_is_asked_about(limited):
    assert sorted(limited) == sorted(WRITERS)


def test_a_file_that_is_left_or_not_named_is_noticed():
    with pytest.raises(AssertionError):
        check("writing out/x failed: No space left on device", ["x.tfrecord"])
    with pytest.raises(AssertionError):
        check("[Errno 28] No space left on device", [])
