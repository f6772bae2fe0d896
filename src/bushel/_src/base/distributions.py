"""Tells whether a file belongs to an installed library: a distribution that comes from an index, or a wheel.

The user's own code may lie in site-packages, too: a package that was installed from a local folder or a repository, or
a module that somebody copied there. So the records of what was installed decide, and not the folder.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders that packages are installed in."""


def is_installed_library(file: str, module: str) -> bool:
    """Whether the file of a module is a part of a distribution that was not made from a local folder or a repository.

    >>> import numpy
    >>> is_installed_library(numpy.__file__, "numpy")
    True
    >>> is_installed_library("/home/me/train.py", "train")
    False
    """
    folder = _find_root(os.path.abspath(file), module)
    if not _list_distributions(folder):
        return False
    path = os.path.relpath(os.path.abspath(file), folder).replace(os.sep, "/")
    return any(not _is_own_distribution(folder, name) for name in _find_owners(folder, path))


def _find_root(path: str, module: str) -> str:
    """The folder from which Python imports a module: the one that holds its outermost package."""
    package = os.path.splitext(os.path.basename(path))[0] == "__init__"
    folder = os.path.dirname(path)
    for _ in range(module.count(".") + package):
        folder = os.path.dirname(folder)
    for part in sorted(INSTALLED, reverse=True):  # also where the name of the module does not say how deep it lies
        marker = f"{os.sep}{part}{os.sep}"
        if marker in path:
            return path[: path.rindex(marker) + len(marker) - 1]
    return folder


@functools.lru_cache(maxsize=256)
def _list_distributions(folder: str) -> tuple[str, ...]:
    """The names of the folders that describe what is installed in a folder."""
    # Beside modules that are nowhere installed, an .egg-info says that somebody works on them.
    kinds = (".dist-info", ".egg-info") if os.path.basename(folder) in INSTALLED else (".dist-info",)
    try:
        return tuple(sorted(name for name in os.listdir(folder) if name.endswith(kinds)))
    except OSError:
        return ()


def _find_owners(folder: str, path: str) -> Iterator[str]:
    """The distributions that have installed a file, those with a similar name first."""
    top = path.partition("/")[0].partition(".")[0]
    wanted = _plain_name(top)
    similar = [name for name in _list_distributions(folder) if _plain_name(name.partition("-")[0]) == wanted]
    yield from _keep_owners(folder, path, similar)
    yield from _keep_owners(folder, path, _find_distributions_with(folder, path.partition("/")[0]))


def _keep_owners(folder: str, path: str, names: Iterable[str]) -> Iterator[str]:
    top = path.partition("/")[0].partition(".")[0]
    for name in names:
        files = _list_files(folder, name)
        # A distribution of the operating system has no list of its files.
        if path in files if files else top in _read(os.path.join(folder, name, "top_level.txt")).split():
            yield name


@functools.lru_cache(maxsize=1024)
def _find_distributions_with(folder: str, first: str) -> tuple[str, ...]:
    """The distributions that have installed something under a name. Reads the records of all: some 100 ms."""
    found = []
    for name in _list_distributions(folder):
        record = _read(os.path.join(folder, name, "RECORD"))
        if not record or f"\n{first}/" in record or f"\n{first}," in record:
            found.append(name)
    return tuple(found)


@functools.lru_cache(maxsize=64)
def _list_files(folder: str, name: str) -> frozenset[str]:
    """The paths in the RECORD of a distribution, as it has them: relative to the folder, with slashes."""
    lines = _read(os.path.join(folder, name, "RECORD")).splitlines()
    return frozenset(line.rsplit(",", 2)[0].strip('"') for line in lines if line)


def _read(path: str) -> str:
    """The text of a file after an empty line; nothing if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return f"\n{file.read()}"
    except OSError:
        return ""


@functools.lru_cache(maxsize=1024)
def _is_own_distribution(folder: str, name: str) -> bool:
    """Whether a distribution was installed from a local folder or a repository (PEP 610)."""
    origin = _read_origin(folder, name)
    if "dir_info" in origin or "vcs_info" in origin:
        # conda leaves in its packages in which folder it has built them.
        return _read(os.path.join(folder, name, "INSTALLER")).strip() != "conda"
    return False


def _read_origin(folder: str, name: str) -> dict[str, Any]:
    text = _read(os.path.join(folder, name, "direct_url.json"))
    try:
        origin = json.loads(text) if text else {}
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}


@functools.lru_cache(maxsize=1024)
def find_build(file: str, module: str) -> str:
    """What tells the content of a library from other versions, if it was installed from an archive on this machine.

    That may be a library, or the user's own package that was built as a wheel. Empty for all others.
    """
    folder = _find_root(os.path.abspath(file), module)
    if not _list_archives(folder):
        return ""
    path = os.path.relpath(os.path.abspath(file), folder).replace(os.sep, "/")
    for name in _find_owners(folder, path):
        if name in _list_archives(folder):
            lines = _read(os.path.join(folder, name, "RECORD")).splitlines()
            code = sorted(line for line in lines if "sha256=" in line and not line.startswith(name))
            return hashlib.blake2b("\n".join(code).encode(), digest_size=8).hexdigest()
    return ""


@functools.lru_cache(maxsize=256)
def _list_archives(folder: str) -> frozenset[str]:
    """The distributions that were installed from an archive on this machine."""
    names = _list_distributions(folder)
    origins = {name: _read_origin(folder, name) for name in names}
    return frozenset(
        name
        for name, origin in origins.items()
        if "archive_info" in origin and str(origin.get("url")).startswith("file:")
    )


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
