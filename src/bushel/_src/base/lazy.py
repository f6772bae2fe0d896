"""Modules that are imported when they are first used, so that `import bushel` is quick."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """A module that is imported when one of its attributes is first read."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
