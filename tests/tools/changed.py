"""Prints what `make quick` checks: the tests of what has changed since branch `main`, or the files for pyright.

Changed are the files that differ from the commit at which this branch left `main`: committed, uncommitted, new.
`make test` runs all tests, and pyright on all files.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
LIBRARY = PurePosixPath("src/bushel/_src")
OF_EVERY_MODULE = "tests/test_layers.py"
OF_THE_PUBLIC_NAMES = ("tests/test_names.py", "tests/test_arguments.py", "tests/test_kinds.py")
"""For a module that no test is named after: all of them are reached by what is public."""
CHECKED_FOLDERS = ("src", "tests", "examples", "benchmarks")
"""What pyright checks in `make test`."""

OF_WORKERS = (
    *("delivery", "end_of_consumer", "errors_of_functions", "killed_workers", "memory_budget", "processes"),
    *("records_that_kill", "slabs", "stall", "timeouts", "unsendable", "wire", "zygote"),
)
OF_DELIVERY = (
    "delivery",
    "executors",
    "in_place",
    "progress",
    "pulling",
    "skip_counts",
    "stages",
    "thread_trials",
    "trouble",
)
ENGINE_TESTS = dict.fromkeys(("pool", "processes", "shared_memory"), OF_WORKERS) | dict.fromkeys(
    (
        *("delivery", "opener", "program", "program_delivery", "stream_program", "tasks"),
        *("threaded_cursor", "upstream_delivery", "where_to_run"),
    ),
    OF_DELIVERY,
)
"""The tests in `tests/engine` of a module or package in `src/bushel/_src/engine`.

All of them would take `make quick` two minutes. One that is not named here has all tests of the folder.
"""


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
        part = path.relative_to(LIBRARY).with_suffix("").parts[1:2] if package == ("engine",) else ()
        if part and part[0] in ENGINE_TESTS:
            named += [f"tests/engine/test_{name}.py" for name in ENGINE_TESTS[part[0]]]
        else:
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
    if str(path) == "docs/design/layers.md":
        return [OF_EVERY_MODULE, "tests/test_design_tables.py", "tests/test_docs.py", "tests/test_site.py"]
    if top in ("examples", "benchmarks") and path.suffix != ".md":
        return [f"tests/test_{top}.py"]
    if top == "docs" and path.suffix in (".md", ".py"):
        return ["tests/test_docs.py", "tests/test_site.py"]
    if path.suffix == ".md":
        return ["tests/test_docs.py"]
    return []


def find_files_to_type_check(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """The changed Python files, and the files that import one of them; all folders if the settings have changed."""
    paths = {PurePosixPath(name) for name in changed}
    if PurePosixPath("pyproject.toml") in paths:
        return list(CHECKED_FOLDERS)
    paths = {path for path in paths if path.suffix == ".py" and path.parts[0] in CHECKED_FOLDERS}
    if not paths:
        return []
    imports = re.compile("|".join(_pattern_of_imports(path) for path in sorted(paths)), re.MULTILINE)
    files = {str(path) for path in paths if (root / path).exists()}
    for folder in CHECKED_FOLDERS:
        for file in (root / folder).rglob("*.py"):
            if imports.search(file.read_text(encoding="utf-8")):
                files.add(file.relative_to(root).as_posix())
    return sorted(files)


def _pattern_of_imports(path: PurePosixPath) -> str:
    """A regular expression for the statements that import this file, by its dotted name or from its package."""
    parts = (path.parent if path.name == "__init__.py" else path.with_suffix("")).parts
    if parts[0] != "benchmarks":
        parts = parts[1:]  # what is in src and in tests is imported without the name of that folder
    *package, name = map(re.escape, parts)
    above = r"\.".join(package)
    if not above:
        return rf"^\s*(?:from|import) {name}(?:\s|$|,)"
    from_package = rf"^\s*from {above} import (?:\([^)]*|[^\n(]*)\b{name}\b"
    return rf"^\s*(?:from|import) {above}\.{name}(?:\s|$|,)|{from_package}"


def _tests_that_import(helper: PurePosixPath, root: Path) -> list[str]:
    """The test files that import a helper or run it as a program, also by way of another helper or a conftest.py."""
    if helper.name == "conftest.py":
        return [str(helper.parent)]
    used = re.compile(rf'{_pattern_of_imports(helper)}|"{re.escape(helper.name)}"', re.MULTILINE)
    tests: set[str] = set()
    for path in (root / "tests").rglob("*.py"):
        name = PurePosixPath(path.relative_to(root).as_posix())
        if name != helper and used.search(path.read_text(encoding="utf-8")):
            tests |= {str(name)} if path.stem.startswith("test_") else set(_tests_that_import(name, root))
    return sorted(tests)


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, encoding="utf-8")


if __name__ == "__main__":
    find = find_files_to_type_check if "--types" in sys.argv[1:] else find_tests
    sys.stdout.write("".join(f"{path}\n" for path in find(changed_files())))
