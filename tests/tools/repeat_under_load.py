"""Runs the parallel tests several times on a machine that other processes keep busy, and lists what failed.

    python tests/tools/repeat_under_load.py --runs 10 --load 10 --out /tmp/runs
    python tests/tools/repeat_under_load.py --runs 50 --load 20 tests/test_interrupts.py

A load of 10 means that ten threads want a core at any moment: tests, their workers, and as many processes that only
count as are missing. The exit code is 1 if a run has failed. `summary.txt` in the folder has a line for each run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNTS = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"
"""A program that keeps one core busy, until its parent is gone."""
LOOK_EVERY_S = 0.2


@contextlib.contextmanager
def keep_busy(load: int) -> Iterator[None]:
    """Let `load` threads want a core, whatever else runs: processes that count are stopped and continued."""
    command = [sys.executable, "-c", COUNTS, str(os.getpid())]
    counting = [subprocess.Popen(command) for _ in range(load)]
    leave = threading.Event()

    def adjust() -> None:
        running = load
        while not leave.wait(LOOK_EVERY_S):
            missing = load - count_runnable()
            while missing > 0 and running < load:
                counting[running].send_signal(signal.SIGCONT)
                running, missing = running + 1, missing - 1
            while missing < 0 and running > 0:
                running, missing = running - 1, missing + 1
                counting[running].send_signal(signal.SIGSTOP)

    thread = threading.Thread(target=adjust, daemon=True)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join()
        for process in counting:
            process.kill()
            process.wait()


def count_runnable() -> int:
    """How many threads of this machine want a core now, without the one that asks."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1


def run_tests(tests: list[str], processes: int, output: Path) -> str:
    """Runs the tests once, and returns a line that says how the run ended."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(processes), "--dist", "worksteal"]
    command += ["-m", "not slow and not serial", "-rfE", *tests]
    begun = time.monotonic()
    with output.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    text = output.read_text(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, flags=re.MULTILINE)
    crashed = re.findall(r"worker '?gw\d+'? crashed while running '?([^'\n]+)", text)
    said = ", ".join([*failed, *(f"a process of pytest ended in {test}" for test in crashed)])
    return f"exit code {code}, {time.monotonic() - begun:.0f} s{f': {said}' if said else ''}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files or tests; all by default")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--load", type=int, default=10)
    parser.add_argument("--processes", type=int, default=min(4, 1 + (os.cpu_count() or 1)), help="processes of pytest")
    parser.add_argument("--out", type=Path, help="a folder for the output of each run")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="runs_under_load_"))
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    with keep_busy(options.load):
        for number in range(1, options.runs + 1):
            said = run_tests(options.tests, options.processes, out / f"run_{number}.txt")
            lines.append(f"run {number} of {options.runs} at load {options.load}: {said}")
            print(lines[-1], flush=True)
            (out / "summary.txt").write_text("\n".join(lines) + "\n")
    good = sum("exit code 0," in line for line in lines)
    print(f"{good} of {options.runs} runs passed. The output is in {out}.")
    return 0 if good == options.runs else 1


if __name__ == "__main__":
    sys.exit(main())
