"""The public functions and methods, their arguments, and the types of these."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / "docs" / "_ext")]
public_names = importlib.import_module("public_names")


def methods_of(kind: type) -> Iterable[tuple[str, Any]]:
    for name in dir(kind):
        if not name.startswith("_") or name in ("__init__", "__new__", "__call__"):
            raw = inspect.getattr_static(kind, name)
            yield name, getattr(raw, "__func__", raw)


@functools.cache
def public_functions() -> dict[str, Callable[..., Any]]:
    """Every function and method of a public module that is Bushel's own, by the first public name that it has."""
    found: dict[int, tuple[str, Any]] = {}
    for name in public_names.homes().values():
        own = [("", name.value)] if not inspect.isclass(name.value) else methods_of(name.value)
        for method, function in own:
            if callable(function) and str(getattr(function, "__module__", None)).startswith("bushel"):
                found.setdefault(id(function), (f"{name.full}.{method}".rstrip("."), function))
    return dict(found.values())


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """The names that a caller may write. `*args` and `**options` have none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a class without a signature of its own
        return []
    return [entry.name for entry in parameters if entry.kind not in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD)]


@functools.cache
def names_for_types(module: types.ModuleType) -> dict[str, Any]:
    """The names that annotations of a module may use: its own, and those that it imports for type checkers alone."""
    names = dict(vars(module))
    if getattr(module, "__file__", None) is None:
        return names
    for statement in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            block = ast.Module([part for part in statement.body if not isinstance(part, ast.If)], [])
            exec(compile(block, module.__file__, "exec"), names)
    return names


def types_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the arguments that have one, and of what is returned, as `return`."""
    inner = inspect.unwrap(function)
    annotations = dict(getattr(inner, "__annotations__", {}))
    if not any(isinstance(annotation, str) for annotation in annotations.values()):
        return annotations
    modules = [sys.modules[inner.__module__], *_modules_of_class(inner)]
    names: Mapping[str, Any] = functools.reduce(lambda known, module: names_for_types(module) | known, modules, {})
    return {name: eval(text, dict(names)) if isinstance(text, str) else text for name, text in annotations.items()}


def _modules_of_class(function: Callable[..., Any]) -> list[types.ModuleType]:
    """The modules of a class and its bases, of which a dataclass has inherited its fields."""
    module = sys.modules[function.__module__]
    kind: Any = module
    for part in function.__qualname__.split(".")[:-1]:
        kind = getattr(kind, part, None)
    return [sys.modules[base.__module__] for base in kind.__mro__] if isinstance(kind, type) else []
