"""The page docs/command_line.md: what it shows is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

from bushel import cli

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
