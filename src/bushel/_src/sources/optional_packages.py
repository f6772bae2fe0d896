"""Imports packages that only some formats need. If one is missing, the error says how to install it."""

from __future__ import annotations

import importlib
from types import ModuleType

from bushel._src.base.install import install_command

_FOR_OLD_NUMPY = {"pyarrow": "pyarrow<26"}
"""Packages whose newest versions refuse NumPy 1.26, though pip installs them beside it, with those that take it."""


def import_package(name: str, extra: str, why: str) -> ModuleType:
    """Imports the module `name`. If it is missing, the error contains the `pip install` command.

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
