"""Which tests `make quick` runs: those of the files that differ from branch `main`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tools.changed import ENGINE_TESTS, LIBRARY, ROOT, changed_files, find_files_to_type_check, find_tests

MODULES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / LIBRARY).rglob("*.py"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/bushel/_src/datasets/iterator.py", ["tests/test_iterator.py", "tests/test_layers.py"]),
        ("src/bushel/_src/state/state_forms.py", ["tests/state", "tests/test_layers.py"]),
        ("src/bushel/_src/base/redact.py", ["tests/base", "tests/test_layers.py", "tests/test_redact.py"]),
        ("src/bushel/_src/engine/measurements.py", ["tests/engine", "tests/test_layers.py"]),
        ("tests/graph/test_pack.py", ["tests/graph/test_pack.py"]),
        ("tests/tools/changed.py", ["tests/test_changed.py"]),
        ("tests/trajectory/golden/README.md", ["tests/trajectory"]),
        ("examples/digits.py", ["tests/test_examples.py"]),
        ("docs/workers.md", ["tests/test_docs.py", "tests/test_site.py"]),
        ("docs/_ext/public_names.py", ["tests/test_docs.py", "tests/test_site.py"]),
        (
            "docs/design/layers.md",
            ["tests/test_design_tables.py", "tests/test_docs.py", "tests/test_layers.py", "tests/test_site.py"],
        ),
        ("benchmarks/run.py", ["tests/test_benchmarks.py"]),
        ("benchmarks/results/all.md", ["tests/test_docs.py"]),
        ("CONTRIBUTING.md", ["tests/test_docs.py"]),
        ("src/bushel/_src/index/deleted.py", ["tests/index", "tests/test_layers.py"]),
        ("tests/test_deleted.py", []),
        ("LICENSE", []),
    ],
)
def test_a_changed_file_has_these_tests(changed, expected):
    assert find_tests([changed]) == expected


def test_every_module_has_tests_beyond_the_layers():
    assert [module for module in MODULES if not set(find_tests([module])) - {"tests/test_layers.py"}] == []


def test_a_helper_has_the_tests_that_import_it():
    tests = find_tests(["tests/helpers/recipes.py"])
    assert "tests/test_equal_to_grain.py" in tests and "tests/test_layers.py" not in tests
    assert "tests/jit/test_mesh.py" in find_tests(["tests/programs/mesh_cases.py"])  # it runs this file as a program
    assert "tests/sources/test_fuzz.py" in find_tests(["tests/helpers/record_formats.py"])  # by way of two others
    assert "tests/view" in find_tests(["tests/helpers/browser.py"])  # by way of its conftest.py


def test_a_file_in_a_listed_folder_is_not_listed_again():
    assert find_tests(["src/bushel/_src/index/mix.py", "tests/index/test_mix.py"]) == [
        "tests/index",
        "tests/test_layers.py",
    ]


@pytest.mark.parametrize("name", sorted(ENGINE_TESTS))
def test_the_table_of_the_engine_names_modules_and_tests(name):
    path = LIBRARY / "engine" / (name if (ROOT / LIBRARY / "engine" / name).is_dir() else f"{name}.py")
    assert (ROOT / path).exists()
    assert [test for test in ENGINE_TESTS[name] if not (ROOT / f"tests/engine/test_{test}.py").is_file()] == []
    tests = find_tests([str(path) if path.suffix else f"{path}/any_module.py"])
    assert {f"tests/engine/test_{test}.py" for test in ENGINE_TESTS[name]} <= set(tests)
    assert "tests/engine" not in tests


@pytest.mark.parametrize(
    ("changed", "among", "not_among"),
    [
        (
            "src/bushel/_src/engine/pool/wire.py",
            ["src/bushel/_src/engine/processes/worker.py", "tests/engine/test_wire.py"],
            ["tests/helpers/recipes.py"],
        ),
        ("src/bushel/engine/deleted.py", [], ["src/bushel/engine/deleted.py"]),
        ("src/bushel/_src/base/__init__.py", ["src/bushel/_src/base/__init__.py"], []),
        (
            "tests/helpers/recipes.py",
            ["tests/helpers/recipes.py", "tests/test_equal_to_grain.py"],
            ["tests/test_layers.py"],
        ),
        ("pyproject.toml", ["src", "tests", "examples", "benchmarks"], []),
        ("docs/workers.md", [], ["docs/workers.md"]),
    ],
)
def test_pyright_checks_a_changed_file_and_those_that_import_it(changed, among, not_among):
    files = find_files_to_type_check([changed])
    assert set(among) <= set(files) and not set(not_among) & set(files)


@pytest.mark.parametrize(
    "statement",
    [
        "from bushel._src.base.trees import leaves",
        "import bushel._src.base.trees",
        "    from bushel._src.base import trees",
        "from bushel._src.base import errors, trees",
        "from bushel._src.base import (\n    errors,\n    trees,\n)",
    ],
)
def test_an_import_is_found_however_it_is_written(statement, tmp_path):
    file = tmp_path / "src" / "bushel" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"import os\n{statement}\n")
    assert find_files_to_type_check(["src/bushel/_src/base/trees.py"], tmp_path) == ["src/bushel/a.py"]
    for other in ("src/bushel/base/tree.py", "src/bushel/base/leaves.py", "src/bushel/trees.py"):
        assert find_files_to_type_check([other], tmp_path) == []


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
