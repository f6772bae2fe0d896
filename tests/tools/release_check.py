"""`make release-check`: builds wheel and sdist, and checks them as a stranger would get them.

Needs `build` and `twine`. It exits with code 1 and a sentence if something is wrong with what would be published.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def load_install() -> ModuleType:
    """The module of this checkout that holds the name of the distribution, without the rest of Bushel."""
    spec = importlib.util.spec_from_file_location(
        "install", ROOT / "src" / "bushel" / "_src" / "base" / "late_imports.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


install = load_install()
NEEDED_IN_SDIST = ["CHANGELOG.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "pyproject.toml"]
NEEDED_FOLDERS = ["src/bushel", "tests", "docs", "examples"]
BARE = {"bushel-data", "cloudpickle", "tqdm", "numpy", "pip", "setuptools", "wheel"}
EXTRAS = {"robots": ("yaml", "tokenizers", "array_record", "PIL", "zstandard", "brotli", "cramjam", "crc32c")}
"""Extras that are tried, with the modules that each must bring. This one needs four others, one inside the other."""


class Wrong(Exception):
    """What is wrong with a release."""


def run(*command: str | Path, **options: object) -> str:
    """The output of a command that must not fail. It does not see this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(source: Path, target: Path, *kinds: str) -> None:
    """Builds from a folder into another one."""
    run(sys.executable, "-m", "build", *kinds, "--outdir", target, source)


def only(folder: Path, pattern: str) -> Path:
    """The one file of a folder that a pattern matches."""
    files = sorted(folder.glob(pattern))
    if len(files) != 1:
        raise Wrong(f"One {pattern} was expected in the folder of built files, got {[file.name for file in files]}.")
    return files[0]


def contents_of(wheel: Path) -> dict[str, bytes]:
    """The files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tracked_files() -> list[str]:
    """What git knows of this checkout."""
    return run("git", "-C", ROOT, "ls-files").splitlines()


def check_sdist(sdist: Path, folder: Path) -> Path:
    """Compares an sdist with the checkout, and unpacks it. Returns where it lies."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = only(folder, "*")
    names = {str(file.relative_to(unpacked)) for file in unpacked.rglob("*") if file.is_file()}
    tracked = set(tracked_files())
    missing = [name for name in NEEDED_IN_SDIST if name not in names]
    missing += sorted(name for name in tracked - names if name.startswith(tuple(f"{part}/" for part in NEEDED_FOLDERS)))
    if missing:
        raise Wrong(f"The sdist lacks {', '.join(missing[:10])} and {max(0, len(missing) - 10)} more.")
    extra = sorted(names - tracked - {"PKG-INFO"})
    if extra:
        raise Wrong(f"The sdist holds files that git does not know: {', '.join(extra[:10])}.")
    return unpacked


def check_wheel(wheel: Path) -> Message:
    """Compares a wheel with the package in the checkout. Returns its metadata."""
    files = contents_of(wheel)
    package = {name for name in files if ".dist-info/" not in name}
    expected = {name.removeprefix("src/") for name in tracked_files() if name.startswith("src/")}
    if package != expected:
        raise Wrong(f"The wheel differs from src/ in {sorted(package ^ expected)[:10]}.")
    if "bushel/py.typed" not in package:
        raise Wrong("The wheel lacks bushel/py.typed, without which type checkers ignore its types.")
    (metadata,) = (files[name] for name in files if name.endswith(".dist-info/METADATA"))
    if not any(name.endswith("/LICENSE") for name in files):
        raise Wrong("The wheel lacks the license.")
    return Parser().parsestr(metadata.decode())


def check_metadata(metadata: Message, tag: str | None) -> None:
    """Compares metadata with pyproject.toml, the code, the changelog and, where there is one, the tag."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = metadata["Version"]
    code = (ROOT / "src" / "bushel" / "__init__.py").read_text(encoding="utf-8")
    parts = ", ".join(re.findall(r"\d+", version)[:3])
    if f'__version__ = "{version}"' not in code or f"__version_info__ = ({parts})" not in code:
        raise Wrong(f"__version__ and __version_info__ in src/bushel/__init__.py do not both say {version}.")
    if tag is not None and tag != f"v{version}":
        raise Wrong(f"The tag is {tag}, but the version is {version}.")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(rf"^## \[{re.escape(version)}\] - (.*)$", changelog, re.MULTILINE)
    if heading is None:
        raise Wrong(f"CHANGELOG.md has no section for {version}.")
    if tag is not None and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", heading[1]):
        raise Wrong(f"CHANGELOG.md must have the date of {version}, got {heading[1]!r}.")
    name = metadata["Name"]
    if not name == project["name"] == install.DISTRIBUTION:
        raise Wrong(
            f"The metadata call the distribution {name!r}, base/late_imports.py calls it {install.DISTRIBUTION!r}."
        )
    strangers = [text for text in metadata.get_all("Requires-Dist", []) if re.match(r"bushel(?!-data)", text)]
    if strangers:
        raise Wrong(f"Extras need the distribution `bushel`, which is a different program: {strangers}.")
    if tag is not None and install.INSTALLED_FROM != install.DISTRIBUTION:
        raise Wrong(
            f"src/bushel/_src/base/late_imports.py still says `pip install {install.INSTALLED_FROM}`. For a release, "
            "set INSTALLED_FROM to DISTRIBUTION, and change README.md and docs/install.md: a test compares them."
        )
    if set(metadata.get_all("Provides-Extra", [])) != set(project["optional-dependencies"]):
        raise Wrong("The extras in the metadata are not those of pyproject.toml.")
    urls = {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])}
    needed = {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    if not needed <= urls:
        raise Wrong(f"The metadata lacks the addresses {sorted(needed - urls)}.")
    for name in ("Summary", "Author", "Keywords", "License-Expression", "Requires-Python", "Classifier"):
        if not metadata[name]:
            raise Wrong(f"The metadata has no {name}.")
    relative = re.findall(r"\]\((?!https?:|#)[^)]*\)", str(metadata.get_payload()))
    if relative:
        raise Wrong(f"Links of the README on PyPI would be dead: {relative}.")


def install_by_name(wheel: Path, folder: Path, extras: str = "") -> Path:
    """Installs a wheel into a new venv as a user does, by its name and with extras. Returns the venv's Python.

    pip gets the wheel from its folder, and all else from the index.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    wanted = f"{install.DISTRIBUTION}{extras}=={wheel.name.split('-')[1]}"
    options = ("--quiet", "--disable-pip-version-check", "--find-links", wheel.parent)
    run(python, "-m", "pip", "install", *options, wanted)
    where = run(python, "-c", "import bushel; print(bushel.__path__[0])", cwd=folder).strip()
    for name, content in contents_of(wheel).items():
        if name.startswith("bushel/") and (Path(where).parent / name).read_bytes() != content:
            raise Wrong(f"pip install {wanted} did not install this wheel: {name} differs.")
    return python


def try_extras(wheel: Path, folder: Path) -> None:
    """Installs a wheel by its name with each extra of the table, and imports what the extra must bring."""
    for extra, modules in EXTRAS.items():
        python = install_by_name(wheel, folder / extra, f"[{extra}]")
        wanted = [name for name in modules if not (name == "zstandard" and sys.version_info >= (3, 14))]
        run(python, "-c", f"import bushel, {', '.join(wanted)}", cwd=folder)


def try_wheel(wheel: Path, folder: Path) -> str:
    """Installs a wheel without extras into a new venv, and runs the first example and the golden streams from it."""
    python = install_by_name(wheel, folder / "venv")
    listed = run(python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    installed = {line.partition("==")[0].lower() for line in listed.splitlines() if line}
    if installed - BARE:
        raise Wrong(f"A wheel without extras brought more than the core needs: {sorted(installed - BARE)}.")
    empty = folder / "empty"
    empty.mkdir()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    if example is None:
        raise Wrong("README.md has no Python example.")
    run(python, "-W", "error", "-c", example[1], cwd=empty)
    where = run(python, "-c", "import bushel; print(bushel.__file__)", cwd=empty)
    if "site-packages" not in where:
        raise Wrong(f"The example ran with {where.strip()}, and not with the wheel.")
    run(folder / "venv" / "bin" / "bushel", "--version", cwd=empty)
    return run(python, ROOT / "tests" / "helpers" / "golden_streams.py", cwd=empty).strip()


def main() -> int:
    """Runs all checks; says what was checked, or what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="the tag of the release, such as v0.2.0; the changelog then needs a date")
    parser.add_argument("--keep", type=Path, help="a folder for the checked wheel and sdist, to be published")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            build(ROOT, folder / "dist", "--wheel", "--sdist")
            wheel, sdist = only(folder / "dist", "*.whl"), only(folder / "dist", "*.tar.gz")
            run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
            unpacked = check_sdist(sdist, folder / "sdist")
            check_metadata(check_wheel(wheel), options.tag)
            build(unpacked, folder / "again", "--wheel")
            again = contents_of(only(folder / "again", "*.whl"))
            if again != contents_of(wheel):
                raise Wrong("The wheel that is built from the sdist is not the one that is built from the checkout.")
            streams = try_wheel(wheel, folder)
            try_extras(wheel, folder)
        except Wrong as wrong:
            print(wrong, file=sys.stderr)
            return 1
        print(
            f"{wheel.name} ({wheel.stat().st_size // 1024} KiB) and {sdist.name} ({sdist.stat().st_size // 1024} KiB):"
        )
        print("twine check, contents, metadata, the wheel from the sdist, README's first example: as they should be.")
        print(f"Installed by name without extras, and with {', '.join(EXTRAS)}: as they should be.")
        print(f"Golden streams from the wheel: {streams}")
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            for file in (wheel, sdist):
                file.replace(options.keep / file.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
