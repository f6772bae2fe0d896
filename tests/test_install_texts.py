"""No text sends a user to the distribution `bushel`, a different program. One place says how to install ours."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from bushel.base import install

ROOT = Path(__file__).parent.parent
TEXTS = {".md", ".py", ".toml", ".txt", ".yml", ".yaml", ".html", ".js", ".ipynb", ".cfg", ""}
COMMANDS = {"README.md", "docs/install.md", "src/bushel/base/install.py"}
"""The files with the commands that install Bushel. A release changes them, and no other file."""

# `bushel` as a requirement: after the verb of an installer, or with extras. A path to a clone is right, and so is
# `bushel-data`.
WRONG_NAME = re.compile(
    r"""(?:pip3?|pipx|uv|poetry|conda|mamba)\ (?:pip\ )?(?:install|add|run\ --with)\ [^\n`]*?(?<![\w/.-])bushel(?![\w-])
        | (?<![\w/.-])bushel\[[a-z]""",
    re.VERBOSE,
)


def text_files() -> list[Path]:
    """The files of the repository that people read, except this one."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout.decode()
    names = listed.split("\0") if listed else [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")]
    files = [ROOT / name for name in names if name and not name.startswith(".venv")]
    return [file for file in files if file.suffix in TEXTS and file.is_file() and file != Path(__file__)]


def test_no_text_installs_the_other_program():
    found = []
    for file in text_files():
        for match in WRONG_NAME.finditer(file.read_text(encoding="utf-8", errors="replace")):
            found.append(f"{file.relative_to(ROOT)}: {match[0]}")
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("pip install bushel", True),
        ("`pip install bushel`", True),
        ('pip install "bushel[jax]" matplotlib', True),
        ("pip install -U 'bushel[jax]'", True),
        ("pip install flax bushel", True),
        ("uv add bushel", True),
        ("uv pip install bushel==0.1", True),
        ("Needs `bushel[view]`.", True),
        ("pip install bushel-data", False),
        ("pip install 'bushel-data[jax]'", False),
        ("pip install path/to/bushel", False),
        ("pip install 'path/to/bushel[jax]'", False),
        ('pip install -e ".[jax]"', False),
        ("`pip install flax`, then `bushel view`", False),
        ("bushel.view(ds)", False),
    ],
)
def test_the_guard_sees_the_wrong_name_and_no_other(text, is_wrong):
    assert bool(WRONG_NAME.search(text)) == is_wrong


def test_one_place_has_the_commands_that_install():
    """Other texts name an extra, and link to docs/install.md. Errors get the command from `install_command`."""
    pattern = re.compile(r"path/to/bushel|pip install [\"']?bushel-data")
    here = {str(file.relative_to(ROOT)) for file in text_files() if pattern.search(file.read_text("utf-8", "replace"))}
    assert here - {"CHANGELOG.md"} == COMMANDS
    for name in ("README.md", "docs/install.md"):
        commands = re.findall(r"^pip install [\"']?([^\s\"'\[]+)", (ROOT / name).read_text("utf-8"), re.MULTILINE)
        assert set(commands) - {"-e"} == {install.INSTALLED_FROM}, name


def test_pip_knows_the_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == install.DISTRIBUTION
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    developing = {"test", "test-libraries", "docs", "bench"}
    table = set(re.findall(r"`([a-z0-9-]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert table == set(project["optional-dependencies"]) - developing


def test_errors_get_the_command_from_one_place(monkeypatch):
    from bushel.sources.optional_packages import import_package

    monkeypatch.setattr(install, "INSTALLED_FROM", "somewhere/else")
    message = r"Such files need the package 'no_such': pip install 'somewhere/else\[jax\]'"
    with pytest.raises(ImportError, match=message):
        import_package("no_such", "jax", "Such files")
