"""No text sends a user to the distribution `bushel`, a different program. One place says how to install ours."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bushel._src.base import late_imports

ROOT = Path(__file__).parent.parent
TEXTS = {".md", ".py", ".toml", ".txt", ".yml", ".yaml", ".html", ".js", ".ipynb", ".cfg", ""}
COMMANDS = {"README.md", "docs/install.md", "src/bushel/_src/base/late_imports.py"}
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
        assert set(commands) - {"-e"} == {late_imports.INSTALLED_FROM}, name


def test_pip_knows_the_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == late_imports.DISTRIBUTION
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    developing = {"test", "test-libraries", "docs", "bench"}
    table = set(re.findall(r"`([a-z0-9-]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert table == set(project["optional-dependencies"]) - developing


def test_errors_get_the_command_from_one_place(monkeypatch):
    from bushel._src.base.late_imports import import_package

    monkeypatch.setattr(late_imports, "INSTALLED_FROM", "somewhere/else")
    message = r"Such files need the package 'no_such': pip install 'somewhere/else\[jax\]'"
    with pytest.raises(ImportError, match=message):
        import_package("no_such", "jax", "Such files")


def test_a_package_that_refuses_numpy_is_named_with_the_version_that_works(tmp_path):
    """pip installs pyarrow 26 beside NumPy 1.26, and pyarrow then refuses to be imported."""
    (tmp_path / "pyarrow.py").write_text("raise ImportError('pyarrow requires NumPy 2.0 or newer, found 1.26.4')\n")
    (tmp_path / "a.arrow").write_bytes(b"ARROW1")
    code = "import sys; sys.path.insert(0, '.'); import bushel; bushel.sources.ArrowDataSource('a.arrow')[0]"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: Arrow files need another version of 'pyarrow': pyarrow requires NumPy 2.0 or newer, found "
        "1.26.4. Run pip install 'pyarrow<26'"
    )


def list_packages_by_extra():
    """The calls of `import_package` in the code: (file, module, extra)."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_package":
                module, extra = node.args[:2]
                if isinstance(module, ast.Constant) and isinstance(extra, ast.Constant):
                    yield file.name, module.value.partition(".")[0], extra.value


def test_the_extra_that_an_error_names_brings_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    modules = {"pillow": "PIL", "pyyaml": "yaml", "pylance": "lance", "zstandard": "zstandard", "rerun-sdk": "rerun"}

    def bring(extra):
        """The modules that an extra brings, with those of the extras in it."""
        for need in extras[extra]:
            name = re.split(r"[\[<>=;]", need)[0].strip()
            if name == late_imports.DISTRIBUTION:
                for other in need.partition("[")[2].rstrip("]").split(","):
                    yield from bring(other)
            else:
                yield modules.get(name, name)
            if name == "tokenizers":  # it needs this package itself
                yield "huggingface_hub"

    found = list(list_packages_by_extra())
    assert len(found) > 60
    assert [each for each in found if each[1] not in bring(each[2])] == []
