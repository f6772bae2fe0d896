"""Types of elements, as pyright and mypy infer them for users. The programs that they check are in `tests/typing`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "typing"
# In no program is one of these types stated. mypy reads packages that it finds, and some of them are large.
NOT_READ = ["jax", "ray", "orbax", "flax", "tensorflow", "torch", "pyarrow", "h5py", "zarr", "prometheus_client"]


def read_small_programs() -> dict[str, tuple[str, str, int]]:
    """For each program in small_programs.txt: its text, the text with the mistake, and the line of the mistake."""
    programs = {}
    for part in (FOLDER / "small_programs.txt").read_text(encoding="utf-8").split("\n== ")[1:]:
        name, _, text = part.partition("\n")
        lines = text.strip().splitlines()
        (place,) = [number for number, line in enumerate(lines) if line.lstrip().startswith("# wrong: ")]
        mistake = lines.pop(place).replace("# wrong: ", "")
        marked = [number for number, line in enumerate(lines) if line.endswith("  # here")]
        wrong = [*lines[:place], mistake, *lines[place + 1 :]]
        programs[name] = ("\n".join(lines) + "\n", "\n".join(wrong) + "\n", (marked or [place])[0] + 1)
    return programs


SMALL = read_small_programs()


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with the programs, and with a copy of one that has one wrong statement."""
    folder = tmp_path_factory.mktemp("programs")
    for file in FOLDER.glob("*.py*"):
        (folder / file.name.removesuffix(".txt")).write_bytes(file.read_bytes())
    right = (FOLDER / "elements.py").read_text(encoding="utf-8")
    wrong = right.replace("(numbers, MapDataset[int])", "(numbers, MapDataset[str])")
    assert wrong != right
    (folder / "wrong.py").write_text(wrong, encoding="utf-8")
    for name, (right, wrong, _) in SMALL.items():
        (folder / f"right_{name}.py").write_text(right, encoding="utf-8")
        (folder / f"wrong_{name}.py").write_text(wrong, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pyright(programs):
    """What pyright says: (file, line, rule, message), with the rules that it has by default."""
    (programs / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", programs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=programs)
    output = json.loads(done.stdout)
    assert output["summary"]["filesAnalyzed"] == len(list(programs.glob("*.py")))
    return [
        (Path(entry["file"]).name, entry["range"]["start"]["line"] + 1, entry.get("rule", ""), entry["message"])
        for entry in output["generalDiagnostics"]
    ]


@pytest.fixture(scope="module")
def mypy(programs, pytestconfig):
    """What mypy says: (file, line, code, message), with all its rules. It keeps what it learns for the next run."""
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\nignore_missing_imports = true\n" for name in NOT_READ)
    (programs / "mypy.ini").write_text(f"[mypy]\nstrict = true\n{skipped}")
    cache = pytestconfig.cache.mkdir("mypy")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", cache, "--output", "json"]
    files = sorted(file.name for file in programs.glob("*.py"))
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False, cwd=programs)
    assert done.stderr == ""
    entries = map(json.loads, done.stdout.splitlines())
    return [(Path(entry["file"]).name, entry["line"], entry["code"], entry["message"]) for entry in entries]


@pytest.fixture(params=["pyright", "mypy"])
def checker(request):
    """The name of a type checker, and what it says."""
    return request.param, request.getfixturevalue(request.param)


@pytest.mark.parametrize("file", ["elements.py", "own_classes.py"])
def test_elements_have_the_types_that_are_stated(checker, file):
    assert [entry for entry in checker[1] if entry[0] == file] == []


def test_there_are_thirty_small_programs():
    assert len(SMALL) >= 30


@pytest.mark.parametrize("name", SMALL)
def test_small_programs_are_accepted(checker, name):
    assert [entry for entry in checker[1] if entry[0] == f"right_{name}.py"] == []


@pytest.mark.parametrize("name", SMALL)
def test_a_mistake_in_a_small_program_is_found(checker, name):
    lines = {line for file, line, *_ in checker[1] if file == f"wrong_{name}.py"}
    assert SMALL[name][2] in lines


@pytest.mark.parametrize("name", SMALL)
def test_small_programs_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(SMALL[name][0], name, "exec"), {"__name__": f"program_{name}"})


def test_a_wrong_statement_is_found(checker):
    assert len([entry for entry in checker[1] if entry[0] == "wrong.py"]) == 1


def test_mistakes_are_found(checker):
    name, entries = checker
    lines = (FOLDER / "mistakes.py.txt").read_text(encoding="utf-8").splitlines()
    marks = ((number, re.search(rf"# expect: .*\b{name}=(\S+)", line)) for number, line in enumerate(lines, 1))
    expected = {number: mark[1] for number, mark in marks if mark}
    assert len(expected) > 30
    found: dict[int, set[str]] = {}
    for file, number, rule, _ in entries:
        if file == "mistakes.py":
            found.setdefault(number, set()).add(rule)
    assert found.keys() == expected.keys()
    assert {number: rule for number, rule in expected.items() if rule not in found[number]} == {}


def test_the_transcript_of_a_program(checker):
    name, entries = checker
    lines = [f"{number}: {clean(message)}" for file, number, _, message in entries if file == "program.py"]
    kept = (FOLDER / "program.transcript").read_text(encoding="utf-8").split("== ")
    transcripts = dict(part.split("\n", 1) for part in kept if part)
    assert "\n".join(lines) == transcripts[name].strip()


def clean(message: str) -> str:
    """The first line of a message, with the plain name of `np.ndarray`: its parameters depend on NumPy's version."""
    message = re.sub(
        r"(numpy\.)?ndarray\[((tuple|_AnyShape|numpy\.)?[\w.]*(\[[\w., ]*\])?(, )?)*\]", "ndarray", message
    )
    return re.sub(r"bushel\.[\w.]*_dataset\.", "", message.partition("\n")[0])
