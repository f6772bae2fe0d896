"""Packages that only some formats need: imported when they are used, with the way to get those that are missing."""

from __future__ import annotations

import importlib
from types import ModuleType


def package(name: str, extra: str, why: str) -> ModuleType:
    """The module `name`, or an error that names the `pip install` line.

    >>> package("json", "nothing", "JSON files").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        if getattr(error, "name", root) not in (root, name):  # it is there, and something it needs is not
            raise
        raise ImportError(f"{why} need the package {root!r}: pip install 'bushel[{extra}]'", name=name) from error
