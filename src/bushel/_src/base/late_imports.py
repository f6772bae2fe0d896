"""Modules and packages that are imported when they are first used, and how to install those that are missing."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class Lazy:
    """A module that is imported when one of its attributes is first read."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


DISTRIBUTION = "bushel-data"
"""The name for pip. The distribution `bushel` on PyPI is a different program, by other authors."""

INSTALLED_FROM = "path/to/bushel"
"""What pip gets: the folder of a clone, since nothing is on PyPI yet. The first release sets it to `DISTRIBUTION`."""


def install_command(*extras: str) -> str:
    """Return the command that installs Bushel with these extras.

    >>> install_command("jax", "orbax")
    "pip install 'path/to/bushel[jax,orbax]'"
    """
    return f"pip install '{INSTALLED_FROM}[{','.join(extras)}]'"


_FOR_OLD_NUMPY = {"pyarrow": "pyarrow<26"}
"""Packages whose newest versions refuse NumPy 1.26, though pip installs them beside it, with those that take it."""


def import_package(name: str, extra: str, why: str) -> ModuleType:
    """Import the module `name`. If it is missing, the error contains the `pip install` command.

    >>> import_package("json", "nothing", "JSON files").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        if getattr(error, "name", root) in (root, name):
            raise ImportError(f"{why} need the package {root!r}: {install_command(extra)}", name=name) from error
        if error.name is None and root in _FOR_OLD_NUMPY:  # the package itself refuses what is installed
            older = _FOR_OLD_NUMPY[root]
            raise ImportError(f"{why} need another version of {root!r}: {error}. Run pip install '{older}'") from error
        raise  # the package is installed, but something that it imports is not
