"""Makes `import grain` load Bushel, for programs that were written for Grain."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from bushel._src.base.config import config

VARIABLE = "BUSHEL_AS_GRAIN"
"""The environment variable that makes the workers of such a program do the same."""

MODULES = {
    "grain": "bushel",
    "grain.checkpoint": "bushel.checkpoint",
    "grain.constants": "bushel.constants",
    "grain.experimental": "bushel.experimental",
    "grain.multiprocessing": "bushel.multiprocessing",
    "grain.python": "bushel.python",
    "grain.python.experimental": "bushel.experimental",
    "grain.samplers": "bushel.samplers",
    "grain.sharding": "bushel.sharding",
    "grain.sources": "bushel.sources",
    "grain.transforms": "bushel.transforms",
}


def install() -> None:
    """Makes `import grain` load Bushel in this process from now on."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def install_where_asked() -> None:
    """Calls `install` if the environment variable is set."""
    if VARIABLE in os.environ:
        install()


class _Finder:
    """Finds Grain's modules, and loads Bushel's modules in their place: the same objects, not copies."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "grain":
            return None
        if fullname not in MODULES:
            raise ModuleNotFoundError(
                f"This program runs on Bushel, which replaces Grain's public modules. {fullname} is not one of them. "
                "Run it with plain Python to use Grain.",
                name=fullname,
            )
        return ModuleSpec(fullname, cast(Any, self))  # a loader by its methods: `importlib.abc` would load many modules

    def create_module(self, spec: ModuleSpec) -> Any:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import statement returns what is in sys.modules after this function.
        sys.modules[module.__name__] = importlib.import_module(MODULES[module.__name__])
        if module.__name__ == "grain":
            config.define_flags()
