"""What `make test-newest` tests with: the newest packages of all extras, on the newest supported Python.

python tests/tools/newest.py              the packages that users' extras need, for pip
python tests/tools/newest.py --python     the newest Python that is promised and found
python tests/tools/newest.py --versions   these packages with their versions, in the environment of this Python
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DEVELOPING = {"test", "test-libraries", "docs", "bench"}
"""The extras that only the tests, the site and the benchmarks need."""


def list_packages() -> list[str]:
    """The packages that the core and the extras of users need, without versions.

    What the tests need besides may ask for an older one: gymnax wants an older JAX. pip then installs the newest all
    the same, and warns.
    """
    extras = [needs for extra, needs in PROJECT["optional-dependencies"].items() if extra not in DEVELOPING]
    needs = [*PROJECT["dependencies"], *(need for extra in extras for need in extra)]
    names = (re.match(r"[\w-]+", need) for need in needs if "python_version" not in need)
    without = {PROJECT["name"], "highwayhash-cffi"}  # the second needs a C compiler
    return sorted({name[0] for name in names if name} - without)


def find_python() -> str:
    """The newest Python that pyproject.toml promises and this machine has; this one if there is no newer."""
    promised = (re.search(r":: 3\.(\d+)$", text) for text in PROJECT["classifiers"])
    for minor in sorted((int(found[1]) for found in promised if found), reverse=True):
        if minor <= sys.version_info.minor:
            break
        installed = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"), reverse=True)
        for python in [f"python3.{minor}", *map(str, installed)]:
            try:
                subprocess.run([python, "-m", "venv", "--help"], capture_output=True, check=True)
            except (OSError, subprocess.CalledProcessError):  # it is not there, or a launcher without that version
                continue
            return python
    return sys.executable


def describe_versions() -> str:
    """The versions of the packages that this Python imports."""
    found = {name: next(iter(importlib.metadata.Distribution.discover(name=name)), None) for name in list_packages()}
    lines = [f"{name} {found[name].version if found[name] else 'is not installed'}" for name in found]
    return "\n".join([f"Python {platform.python_version()}", *lines])


if __name__ == "__main__":
    asked = sys.argv[1:]
    print(find_python() if asked == ["--python"] else describe_versions() if asked else " ".join(list_packages()))
