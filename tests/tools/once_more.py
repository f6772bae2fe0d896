"""Runs the tests that have just failed again, alone: `python tests/tools/once_more.py`, called by `make test`.

Many tests kill processes, start browsers and fill sockets, while other tests keep all cores busy. Such a test may fail
because of something that it did not foresee. So if few tests have failed, each of them runs three times more, with
nothing beside it, and must pass each time. Their names stay in the output: a test that fails under load has shown a
fault, in the test or in Bushel, and somebody should look for it.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

FEW = 3
TIMES = 3


def main() -> int:
    cache = pathlib.Path(".pytest_cache/v/cache/lastfailed")
    failed: list[str] = sorted(json.loads(cache.read_text())) if cache.exists() else []
    if not 0 < len(failed) <= FEW:
        return 1
    for _ in range(TIMES):
        command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *failed]
        if subprocess.run(command, check=False).returncode:
            return 1
    print(f"These tests failed while others ran beside them, and passed {TIMES} times alone. Please look into them:")
    print("\n".join(f"  {name}" for name in failed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
