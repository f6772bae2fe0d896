"""The page docs/command_line.md: what it shows is what the commands print."""

import os
import re
import shlex
import socket
from pathlib import Path

import pytest

import bushel
from bushel._src import cli

PAGE = Path(__file__).parent.parent / "docs" / "command_line.md"
TEXT = PAGE.read_text(encoding="utf-8")
SETUP = re.search(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SAMPLES = [
    (command, expected)
    for block in re.findall(r"^```console\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    for command, expected in re.findall(r"^\$ bushel (.*?)\n(.*?)(?=^\$|\Z)", block, re.MULTILINE | re.DOTALL)
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert SETUP is not None
        exec(compile(SETUP.group(1), str(PAGE), "exec"), {})
    return folder


def matches(expected, text):
    """Whether a text is as expected, where "..." stands for anything, and a row of blanks for any other."""
    words = [r"\s+".join(map(re.escape, part.split())) for part in expected.split("...")]
    return re.fullmatch(r"\s*" + r"\s*.*?\s*".join(words) + r"\s*", text, re.DOTALL) is not None


@pytest.mark.parametrize(("command", "expected"), SAMPLES, ids=[command for command, _ in SAMPLES])
def test_the_samples_of_the_page(command, expected, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    assert matches(expected, printed), printed


def test_a_wrong_sample_is_found():
    assert matches("a ... b\n  c", "a x y b c\n") and not matches("a ... b", "a x") and not matches("a", "a b")


def test_every_command_is_on_the_page(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert len(commands) >= 8 and all(f"`bushel {command}`" in TEXT for command in commands)


@pytest.mark.parametrize("command", ["view", "inspect", "stats", "bench", "report"])
def test_a_target_that_is_none(command, tmp_path, capsys):
    assert cli.main([command, str(tmp_path / "nothing.bagz")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("bushel: ") and "nothing.bagz" in error and "Traceback" not in error


PIPELINES = """
import sys

import bushel


def fail(x):
    raise {error}


def make():
    raise {error}


ds = bushel.MapDataset.range(10).map(fail)
"""


@pytest.mark.parametrize("error", ["ValueError('no <data>')", "RuntimeError('no <data>')", "SystemExit('no <data>')"])
@pytest.mark.parametrize("name", ["ds", "make"])
@pytest.mark.parametrize("command", ["stats", "bench"])
def test_an_error_of_the_users_code_is_shown_with_its_line_and_without_ours(command, name, error, tmp_path, capsys):
    (tmp_path / "failing.py").write_text(PIPELINES.format(error=error))
    assert cli.main([command, f"{tmp_path}/failing.py:{name}", "--quiet"]) == 1
    shown = capsys.readouterr().err
    assert re.search(rf'failing.py", line {8 if name == "ds" else 12}, in {"fail" if name == "ds" else "make"}', shown)
    assert f"{error.partition('(')[0]}: no <data>" in shown and f"bushel{os.sep}cli" not in shown
    if name == "ds" and "SystemExit" not in error:
        assert "failed at its element 0" in shown


@pytest.mark.parametrize("command", ["view", "inspect", "stats", "bench", "report"])
def test_folders_without_data(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "notes" / "readme.md").write_text("x")
    for ending in ("csv", "parquet"):
        (tmp_path / "mixed" / f"x.{ending}").write_text("x")
    for folder, sentence in {
        "notes": "notes has 1 file, and none of a format that Bushel reads. Name a file, or a pattern",
        "nothing": "nothing has no files. Name a file, or a pattern",
        "mixed": "mixed has files of several formats",
        "missing": "missing does not exist.",
    }.items():
        assert cli.main([command, folder]) == 1
        assert f"bushel: {sentence}" in capsys.readouterr().err


def test_ports_that_cannot_be_taken(tmp_path, capsys):
    (tmp_path / "x.txt").write_text("x")
    words = ["view", str(tmp_path / "x.txt"), "--no-browser", "--port"]
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main([*words, str(port)]) == 1
        assert f"bushel: Port {port} of 127.0.0.1 is in use, perhaps by another page" in capsys.readouterr().err
        it = iter(bushel.MapDataset.range(3))
        with pytest.raises(OSError, match=f"Port {port} of 127.0.0.1 is in use"):
            bushel.serve_report(it, port=port)
    assert cli.main([*words, "70000"]) == 1
    assert "port must be a number from 0 to 65535" in capsys.readouterr().err
    assert cli.main([*words, "0", "--host", "192.0.2.1"]) == 1  # an address for documents, which no machine has
    assert "192.0.2.1 is not an address of this machine" in capsys.readouterr().err
