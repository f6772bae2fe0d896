"""Imports packages that only some formats need. If one is missing, the error says how to install it."""

from __future__ import annotations

import importlib
from types import ModuleType

from bushel.base.install import install_command


def import_package(name: str, extra: str, why: str) -> ModuleType:
    """Imports the module `name`. If it is missing, the error contains the `pip install` command.

    >>> import_package("json", "nothing", "JSON files").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        if getattr(error, "name", root) not in (
            root,
            name,
        ):  # the package is installed, but something that it imports is not
            raise
        raise ImportError(f"{why} need the package {root!r}: {install_command(extra)}", name=name) from error
