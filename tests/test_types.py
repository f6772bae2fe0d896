"""Types of elements, as a type checker infers them for users."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parent / "typing" / "elements.py"


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The errors that pyright finds in the file, and in a copy with one wrong statement, by the name of the file."""
    wrong = tmp_path_factory.mktemp("typing") / "wrong.py"
    right = FILE.read_text(encoding="utf-8")
    text = right.replace("MapDataset.range(3), MapDataset[int]", "MapDataset.range(3), MapDataset[str]")
    assert text != right
    wrong.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(FILE), str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = json.loads(done.stdout)
    assert output["summary"]["filesAnalyzed"] == 2
    errors: dict[str, list[str]] = {FILE.name: [], wrong.name: []}
    for entry in output["generalDiagnostics"]:
        errors[Path(entry["file"]).name].append(f"{entry['range']['start']['line'] + 1}: {entry['message']}")
    return errors


def test_elements_have_the_types_that_are_stated(errors):
    assert errors["elements.py"] == []


def test_a_wrong_statement_is_found(errors):
    assert len(errors["wrong.py"]) == 1
