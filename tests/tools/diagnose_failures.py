"""Says of each test that has just failed whether it fails alone, too: `make test` calls this after a run that failed.

It changes nothing about the result: a test that fails is a failure. Many tests kill processes, start browsers and fill
sockets while other tests keep all cores busy. If a test fails there and passes alone, only a busy machine shows the
fault, and so far it was nearly always one of Bushel's. `tests/unsteady.txt` lists the tests of which that is known.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

FEW = 3
TIMES = 3
UNSTEADY = pathlib.Path("tests/unsteady.txt")


def main() -> None:
    cache = pathlib.Path(".pytest_cache/v/cache/lastfailed")
    failed: list[str] = sorted(json.loads(cache.read_text())) if cache.exists() else []
    if len(failed) > FEW:
        print(f"{len(failed)} tests failed. They are not run again: that is done for {FEW} at most.")
        return
    known = read_unsteady(UNSTEADY.read_text(encoding="utf-8")) if UNSTEADY.exists() else {}
    lines = [f"  {test} {run_alone(test)}{describe_known(test, known)}" for test in failed]
    if failed:
        print("\n".join(["The run has failed. What the failed tests do alone:", *lines]))


def run_alone(test: str) -> str:
    """Runs a test several times with nothing beside it, and says how often it passed."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", test]
    passed = 0
    for _ in range(TIMES):
        passed += subprocess.run(command, check=False).returncode == 0
    if passed == TIMES:
        return f"passed {TIMES} times alone, so it depends on how busy the machine is"
    return f"failed {TIMES - passed} of {TIMES} times alone"


def describe_known(test: str, known: dict[str, tuple[str, str]]) -> str:
    function = test.partition("[")[0]
    if function not in known:
        return ""
    date, reason = known[function]
    return f" (known since {date}: {reason})"


def read_unsteady(text: str) -> dict[str, tuple[str, str]]:
    """The date and the reason of each test in the list; each line is `date test: reason`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = {}
    for line in lines:
        date, _, rest = line.partition(" ")
        test, _, reason = rest.partition(": ")
        found[test] = date, reason
    return found


if __name__ == "__main__":
    main()
