"""Finds the source of modules of the user's own without importing them. For digests of imports inside functions."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.machinery
import os
import sys
import types
from typing import Any

from bushel._src.base import code_inspection


@dataclasses.dataclass(frozen=True)
class UsersModule:
    """A module of the user's own."""

    name: str
    file: str

    @property
    def package(self) -> str:
        """The package that relative imports in this module start from."""
        return self.name if os.path.basename(self.file) == "__init__.py" else self.name.rpartition(".")[0]

    @functools.cached_property
    def code(self) -> types.CodeType | None:
        """The code of the whole module without annotations; None if it cannot be read."""
        try:
            with open(self.file, "rb") as file:
                tree = _WithoutAnnotations().visit(ast.parse(file.read(), self.file))
            return compile(tree, self.file, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            return None


class _WithoutAnnotations(ast.NodeTransformer):
    """Takes annotations away. In a class, one says that its name is a field: there, None remains of it."""

    _in_class = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if getattr(node, "body", None) == []:  # a lonely annotation was taken away
            vars(node)["body"] = [ast.copy_location(ast.Pass(), node)]
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if self._in_class:
            node.annotation = ast.copy_location(ast.Constant(None), node.annotation)
            return self.generic_visit(node)
        if node.value is None:
            return None
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._visit_inside(node, in_class=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._visit_inside(node, in_class=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self._visit_inside(node, in_class=False)

    def _visit_inside(self, node: ast.AST, *, in_class: bool) -> ast.AST:
        before, self._in_class = self._in_class, in_class
        self.generic_visit(node)
        self._in_class = before
        return node


def list_modules(module: str, level: int, taken: tuple[str, ...], names: dict[str, Any]) -> list[str]:
    """Return the modules that an import statement may load: the one it names, and those it takes from it."""
    if level:
        package = (names.get("__package__") or names.get("__name__") or "").split(".")
        base = package[: len(package) - level + 1]
        module = ".".join([*base, module] if module else base)
    if not module:
        return []
    parts = [module]
    for name in taken:
        inner = f"{module}.{name}"
        if name != "*" and find_users_module(inner) is not None:
            parts.append(inner)
    return parts


def find_users_module(name: str) -> UsersModule | None:
    """Return a module of the user's own with a source file; None for any other."""
    loaded = sys.modules.get(name)
    file = getattr(loaded, "__file__", None) if loaded is not None else _find_file(name)
    if not isinstance(file, str) or not file.endswith(".py"):
        return None
    # Asked as following.is_own asks, which knows modules by name and file.
    return UsersModule(name, file) if code_inspection.is_users_file(name, file) else None


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
