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
from typing import Any, ForwardRef

from bushel._src.base.public import find_module

sys.path[:0] = [str(Path(__file__).parents[2] / "docs" / "_ext")]
public_names = importlib.import_module("public_names")


def methods_of(kind: type) -> Iterable[tuple[str, Any]]:
    for name in dir(kind):
        if not name.startswith("_") or name in ("__init__", "__new__", "__call__"):
            raw = inspect.getattr_static(kind, name)
            yield name, getattr(raw, "__func__", raw)


RESULTS = [
    "bushel.Column",
    "bushel.Description",
    "bushel.ElementOrigin",
    "bushel.IdentityExplanation",
    "bushel.IdentityPart",
    "bushel.PackedMapDataset",
    "bushel.Pool",
    "bushel.Report",
    "bushel.ReportServer",
    "bushel.ShownElement",
    "bushel.SkippedElements",
    "bushel.SourceRecord",
    "bushel.Stage",
    "bushel.Transfer",
    "bushel.Written",
    "bushel.device.Keys",
    "bushel.device.LoaderOnDevice",
    "bushel.jit.CompiledIterator",
    "bushel.trajectory.LeRobotFeature",
    "bushel.trajectory.LoaderIterator",
    "bushel.trajectory.TrajectoryLoader",
    "bushel.view.View",
]
"""Classes whose objects only Bushel makes. Their constructors are not public."""


@functools.cache
def public_functions() -> dict[str, Callable[..., Any]]:
    """Every function and method of a public module that is Bushel's own, by the first public name that it has."""
    return {name: function for name, function in _all_functions().items() if not _makes_result(name)}


def constructors_of_results() -> dict[str, Callable[..., Any]]:
    """The constructors that are not public. The fields of a dataclass are their arguments."""
    return {name: function for name, function in _all_functions().items() if _makes_result(name)}


def _makes_result(name: str) -> bool:
    kind, _, method = name.rpartition(".")
    return method in ("__init__", "__new__") and kind in RESULTS


@functools.cache
def _all_functions() -> dict[str, Callable[..., Any]]:
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
    if not any(isinstance(annotation, (str, ForwardRef)) for annotation in annotations.values()):
        return annotations
    modules = [sys.modules[find_module(inner)], *_modules_of_class(inner)]
    names: Mapping[str, Any] = functools.reduce(lambda known, module: names_for_types(module) | known, modules, {})
    return {name: _evaluate(kind, dict(names)) for name, kind in annotations.items()}


def _evaluate(kind: Any, names: dict[str, Any]) -> Any:
    if isinstance(kind, ForwardRef):  # of a class that shows the name of its door
        module = kind.__forward_module__
        names = names | names_for_types(sys.modules[module]) if isinstance(module, str) else names
        kind = kind.__forward_arg__
    return eval(kind, names) if isinstance(kind, str) else kind


def _modules_of_class(function: Callable[..., Any]) -> list[types.ModuleType]:
    """The modules of a class and its bases, of which a dataclass has inherited its fields."""
    kind: Any = sys.modules[find_module(function)]
    for part in function.__qualname__.split(".")[:-1]:
        kind = getattr(kind, part, None)
    return [sys.modules[find_module(base)] for base in kind.__mro__] if isinstance(kind, type) else []
