"""Says of each test that has just failed whether it fails alone, too: `make test` calls this after a run that failed.

Many tests kill processes, start browsers and fill sockets while other tests keep all cores busy. If a test fails there
and passes alone, only a busy machine shows the fault, and so far it was nearly always one of Bushel's.
`tests/unsteady.txt` lists the tests of which that is known.

Until ten runs under load have passed, the run passes if each of at most three failed tests passes alone three times, or
is in the list and passes alone at least once. After that a test that fails will be a failure.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

FEW = 3
TIMES = 3
UNSTEADY = pathlib.Path("tests/unsteady.txt")


def main() -> bool:
    """Says what the failed tests do alone. Returns whether the run has passed all the same."""
    cache = pathlib.Path(".pytest_cache/v/cache/lastfailed")
    failed: list[str] = sorted(json.loads(cache.read_text())) if cache.exists() else []
    if len(failed) > FEW:
        print(f"{len(failed)} tests failed. They are not run again: that is done for {FEW} at most.")
        return False
    known = read_unsteady(UNSTEADY.read_text(encoding="utf-8")) if UNSTEADY.exists() else {}
    passes = {test: count_passes(test) for test in failed}
    lines = [f"  {test} {describe_passes(count)}{describe_known(test, known)}" for test, count in passes.items()]
    steady = all(count == TIMES or (count and test.partition("[")[0] in known) for test, count in passes.items())
    if failed:
        print("\n".join([f"The run has {'passed' if steady else 'failed'}. What the failed tests do alone:", *lines]))
    return bool(failed) and steady


def count_passes(test: str) -> int:
    """Runs a test several times with nothing beside it, and counts how often it passes."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", test]
    return sum(subprocess.run(command, check=False).returncode == 0 for _ in range(TIMES))


def describe_passes(passed: int) -> str:
    """How often a test passed alone, as text."""
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
    sys.exit(0 if main() else 1)
