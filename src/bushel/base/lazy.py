"""Modules that are loaded when they are used: `import bushel` must stay quick, and few programs need all of it."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)
