"""Finds the source of modules of the user's own without importing them. For digests of imports inside functions."""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import os
import sys
import types
from typing import Any

from bushel.base import following


@dataclasses.dataclass(frozen=True)
class OwnModule:
    """A module of the user's own."""

    name: str
    file: str

    @property
    def package(self) -> str:
        """The package that relative imports in this module start from."""
        return self.name if os.path.basename(self.file) == "__init__.py" else self.name.rpartition(".")[0]

    @functools.cached_property
    def code(self) -> types.CodeType | None:
        """The code of the whole module; None if it cannot be read."""
        try:
            with open(self.file, "rb") as file:
                return compile(file.read(), self.file, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            return None


def list_modules(module: str, level: int, taken: tuple[str, ...], names: dict[str, Any]) -> list[str]:
    """The modules that an import statement may load: the one it names, and those it takes from it."""
    if level:
        package = (names.get("__package__") or names.get("__name__") or "").split(".")
        base = package[: len(package) - level + 1]
        module = ".".join([*base, module] if module else base)
    if not module:
        return []
    parts = [module]
    for name in taken:
        inner = f"{module}.{name}"
        if name != "*" and find_own(inner) is not None:
            parts.append(inner)
    return parts


def find_own(name: str) -> OwnModule | None:
    """A module of the user's own with a source file; None for any other."""
    loaded = sys.modules.get(name)
    file = getattr(loaded, "__file__", None) if loaded is not None else _find_file(name)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    # Asked as following.is_own asks, which knows modules by name and file.
    return OwnModule(name, file) if following.is_own_file(name, file) else None


def _find_file(name: str) -> str | None:
    path: Any = None
    found = None
    parts = name.split(".")
    for number in range(len(parts)):
        whole = ".".join(parts[: number + 1])
        if whole in sys.builtin_module_names:
            return None
        try:
            found = importlib.machinery.PathFinder.find_spec(whole, path)
        except (ImportError, ValueError, AttributeError):
            return None
        if found is None:
            return None
        path = found.submodule_search_locations
        if path is None and number < len(parts) - 1:
            return None
    return None if found is None else found.origin
