"""Each Python file says in its first line what it owns, so that a list of the files can be printed at any time."""

import subprocess
import sys

import pytest
from tools import list_modules

FOLDERS = ["src/bushel", "tests", "benchmarks", "examples"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_file_says_what_it_owns(folder):
    files = list(list_modules.first_lines(list_modules.ROOT / folder))
    assert files
    silent = [path for path, line in files if not line.endswith((".", "?"))]
    assert not silent, "These files need a docstring whose first line is one sentence."


def test_a_file_without_a_sentence_is_found(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "b.py").write_text("x = 1\n")
    (tmp_path / "a.py").write_text('"""What all need.\n\nMore words."""\n')
    (tmp_path / "inner" / "c.py").write_text('"""Inside."""\n')
    assert dict(list_modules.first_lines(tmp_path)) == {"a.py": "What all need.", "b.py": "", "inner/c.py": "Inside."}
    assert list_modules.list_modules(tmp_path) == "a.py        What all need.\nb.py\n\ninner/c.py  Inside.\n"


def test_the_command_names_every_file_of_a_folder():
    command = [sys.executable, list_modules.__file__, "tests", "examples"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for folder in ("tests", "examples"):
        for file in (list_modules.ROOT / folder).rglob("*.py"):
            assert f"\n{file.relative_to(list_modules.ROOT / folder).as_posix()} " in printed
    command[-1] = "nowhere"
    refused = subprocess.run(command, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr) == (1, "nowhere is no folder of this repository.\n")
