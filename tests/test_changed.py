"""Which tests `make quick` runs: those of the files that differ from branch `main`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from changed import LIBRARY, ROOT, changed_files, find_tests

MODULES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / LIBRARY).rglob("*.py"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/bushel/iterator.py", ["tests/test_iterator.py", "tests/test_layers.py"]),
        ("src/bushel/state/envelope.py", ["tests/state", "tests/test_layers.py"]),
        ("src/bushel/base/redact.py", ["tests/base", "tests/test_layers.py", "tests/test_redact.py"]),
        ("tests/graph/test_pack.py", ["tests/graph/test_pack.py"]),
        ("tests/changed.py", ["tests/test_changed.py"]),
        ("tests/trajectory/golden/README.md", ["tests/trajectory"]),
        ("examples/digits.py", ["tests/test_examples.py"]),
        ("docs/workers.md", ["tests/test_docs.py"]),
        ("src/bushel/index/deleted.py", ["tests/index", "tests/test_layers.py"]),
        ("tests/test_deleted.py", []),
        ("LICENSE", []),
    ],
)
def test_a_changed_file_has_these_tests(changed, expected):
    assert find_tests([changed]) == expected


def test_every_module_has_tests_beyond_the_layers():
    assert [module for module in MODULES if not set(find_tests([module])) - {"tests/test_layers.py"}] == []


def test_a_helper_has_the_tests_that_import_it():
    tests = find_tests(["tests/recipes.py"])
    assert "tests/test_equal_to_grain.py" in tests and "tests/test_layers.py" not in tests
    assert "tests/jit/test_mesh.py" in find_tests(["tests/jit/mesh_cases.py"])  # it runs this file as a program


def test_a_file_in_a_listed_folder_is_not_listed_again():
    assert find_tests(["src/bushel/index/mix.py", "tests/index/test_mix.py"]) == ["tests/index", "tests/test_layers.py"]


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_changed_are_committed_uncommitted_new_and_deleted_files(tmp_path):
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    for name in ("same", "committed", "edited", "deleted", "of main"):
        (tmp_path / name).write_text("before")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    assert changed_files(tmp_path) == set()
    git(tmp_path, "checkout", "--quiet", "-b", "mine")
    (tmp_path / "committed").write_text("after")
    git(tmp_path, "commit", "--quiet", "-am", "two")
    git(tmp_path, "checkout", "--quiet", "main")
    (tmp_path / "of main").write_text("main moved on")
    git(tmp_path, "commit", "--quiet", "-am", "three")
    git(tmp_path, "checkout", "--quiet", "mine")
    (tmp_path / "edited").write_text("after")
    (tmp_path / "deleted").unlink()
    for name in ("new ü", "ignored"):
        (tmp_path / name).write_text("new")
    assert changed_files(tmp_path) == {"committed", "edited", "deleted", "new ü"}


def test_without_a_branch_main_it_is_what_was_not_committed(tmp_path):
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk")
    (tmp_path / "a").write_text("before")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    (tmp_path / "a").write_text("after")
    assert changed_files(tmp_path) == {"a"}


def test_outside_a_repository_git_says_so(tmp_path):
    with pytest.raises(SystemExit, match="not a git repository"):
        changed_files(tmp_path)
