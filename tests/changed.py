"""Prints the tests of what has changed since branch `main`; `make quick` runs them. `make test` runs all tests.

Changed are the files that differ from the commit at which this branch left `main`: committed, uncommitted, new.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
LIBRARY = PurePosixPath("src/bushel")
OF_EVERY_MODULE = "tests/test_layers.py"
OF_THE_PUBLIC_NAMES = ("tests/test_names.py", "tests/test_arguments.py", "tests/test_kinds.py")
"""For a module that no test is named after: all of them are reached by what is public."""


def changed_files(root: Path = ROOT) -> set[str]:
    """The paths of the files that differ from `main`, relative to the repository; those that were deleted too."""
    base = "HEAD"
    for branch in ("main", "origin/main"):
        found = _git(root, "merge-base", "HEAD", branch)
        if found.returncode == 0:
            base = found.stdout.strip()
            break
    names = set()
    for command in (["ls-files", "--others", "--exclude-standard", "-z"], ["diff", "--name-only", "-z", base]):
        listed = _git(root, *command)
        if listed.returncode:
            raise SystemExit(f"git {' '.join(command)} failed: {listed.stderr.strip()}")
        names |= set(listed.stdout.split("\0")) - {""}
    return names


def find_tests(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """The test files and test folders that belong to changed files. A file inside a listed folder is not listed."""
    tests: set[str] = set()
    for name in changed:
        tests |= set(_tests_of_one(PurePosixPath(name), root))
    tests = {test for test in tests if (root / test).exists()}
    return sorted(test for test in tests if not any(str(folder) in tests for folder in PurePosixPath(test).parents))


def _tests_of_one(path: PurePosixPath, root: Path) -> list[str]:
    if path.is_relative_to(LIBRARY) and path.suffix == ".py":
        package = path.relative_to(LIBRARY).parent.parts[:1]
        named = [str(test.relative_to(root)) for test in (root / "tests").rglob(f"test_{path.stem}.py")]
        named += [f"tests/{name}" for name in package] + [f"tests/test_{name}.py" for name in package]
        if not any((root / test).exists() for test in named):
            named += OF_THE_PUBLIC_NAMES
        return [OF_EVERY_MODULE, *named]
    top, *more = path.parts
    if top == "tests" and path.suffix == ".py":
        if path.stem.startswith("test_"):
            return [str(path)]
        return _tests_that_import(path, root)
    if top == "tests" and len(more) > 1:
        return [f"tests/{more[0]}"]  # data beside tests, such as golden outputs
    if top in ("examples", "benchmarks"):
        return [f"tests/test_{top}.py"]
    if path.suffix == ".md":
        return ["tests/test_docs.py"]
    return []


def _tests_that_import(helper: PurePosixPath, root: Path) -> list[str]:
    """The test files that import a helper by its plain name, and those that run it as a program."""
    used = re.compile(rf"^\s*(from|import) {re.escape(helper.stem)}\b|\b{re.escape(helper.name)}\b", re.MULTILINE)
    tests = sorted((root / "tests").rglob("test_*.py"))
    return [str(test.relative_to(root)) for test in tests if used.search(test.read_text(encoding="utf-8"))]


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, encoding="utf-8")


if __name__ == "__main__":
    sys.stdout.write("".join(f"{test}\n" for test in find_tests(changed_files())))
