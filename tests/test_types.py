"""Types of elements, as a type checker infers them for users."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parent / "typing" / "elements.py"


def errors_in(path):
    """What pyright says of a file, an error a line."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    return [f"{entry['range']['start']['line'] + 1}: {entry['message']}" for entry in found["generalDiagnostics"]]


def test_elements_have_the_types_that_are_stated():
    assert errors_in(FILE) == []


def test_a_wrong_statement_is_found(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        FILE.read_text().replace("MapDataset.range(3), MapDataset[int]", "MapDataset.range(3), MapDataset[str]")
    )
    assert len(errors_in(wrong)) == 1
