"""Reads the user's code for digests: functions with their globals and closures, classes, and modules."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from bushel._src.base.code_inspection import find_reads, is_users_code, is_users_file, read_behaviour
from bushel._src.base.state_names import find_name, list_bases
from bushel._src.state.digest_notes import Notes, Sink, may_read_outside, put
from bushel._src.state.object_contents import (
    folder_of,
    function_of,
    has_plain_attribute,
    is_builtin,
    is_found_by_name,
    is_users_module,
    names_of_module,
    read_attribute,
)

_CONSTRUCTORS = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__", "__repr__"}
_NOT_BEHAVIOUR = {
    "__module__", "__dict__", "__weakref__", "__doc__", "__firstlineno__", "__static_attributes__", "__annotations__",
    "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "__qualname__",
    "__name__", "__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__type_params__",
    "__dataclass_fields__", "__slotnames__", "__dataclass_params__", "__classdictcell__", "__builtins__",
    "__protocol_attrs__", "__pydantic_core_schema__", "__pydantic_serializer__", "__pydantic_validator__",
    "_is_protocol", "_is_runtime_protocol", "__non_callable_proto_members__", "__subclasshook__", "__wrapped__",
}  # fmt: skip
"""Attributes of classes and wrappers that are words, or that Python or pydantic makes from the others."""
_OF_THE_FILE = {
    "__name__", "__file__", "__spec__", "__package__", "__doc__", "__builtins__", "__loader__", "__path__",
    "__cached__",
}  # fmt: skip
_WITHOUT_VALUE = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


@dataclasses.dataclass(frozen=True)
class _Named:
    """An attribute of a module of a library."""

    module: str
    name: str


class CodeReader:
    """Reads functions, classes and modules into sinks. `feed` reads the values that they hold."""

    def __init__(self, notes: Notes, feed: Callable[[Sink, Any, int], None]):
        self._notes, self._feed = notes, feed

    def feed_function(self, sink: Sink, function: types.FunctionType) -> None:
        """Put a function into a sink: of the user's, its code and what it reads; of a library, its name."""
        name = function.__qualname__
        if is_users_code(function) or function.__code__.co_filename.startswith("<doctest "):
            self._notes.refer(
                sink, id(function), function, name, "function", lambda inner: self._read_function(inner, function)
            )
        elif (constant := find_name(function)) is not None:
            self._notes.name_library(sink, "bushel", constant)
        elif is_found_by_name(function):
            self._notes.name_library(sink, function.__module__, name)
        elif hasattr(function, "registry") and hasattr(function, "dispatch"):  # functools.singledispatch
            registry: Any = vars(function)["registry"]
            entries = sorted(((kind.__qualname__, each) for kind, each in registry.items()), key=lambda entry: entry[0])
            put(sink, "dispatch", str(len(entries)))
            for kind, each in entries:
                put(sink, "for", kind)
                self._feed(sink, each, 0)
        else:  # made by a function of a library, such as jax.vmap: what it was made from counts
            key = id(function)
            self._notes.refer(sink, key, function, name, "wrapper", lambda inner: self._read_wrapper(inner, function))

    def _read_wrapper(self, sink: Sink, function: types.FunctionType) -> None:
        self._notes.name_library(sink, function.__globals__.get("__name__") or "", function.__code__.co_qualname)
        self._read_cells(sink, function)
        for value in (function.__defaults__, function.__kwdefaults__):
            self._feed(sink, value, 1)
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self._feed(sink, wrapped, 1)

    def _read_function(self, sink: Sink, function: types.FunctionType) -> None:
        sink.folder = folder_of(function.__globals__)
        self.feed_code(sink, function.__code__, 0)
        defaults, names = function.__defaults__ or (), function.__code__.co_varnames[: function.__code__.co_argcount]
        for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            self.feed_named(
                sink, (id(function), "default", name), f"{function.__qualname__}({name}=...)", "default", value
            )
        for name, value in sorted((function.__kwdefaults__ or {}).items()):
            self.feed_named(
                sink, (id(function), "default", name), f"{function.__qualname__}({name}=...)", "default", value
            )
        self._read_cells(sink, function)
        for name, value in sorted(vars(function).items()):
            if name == "__wrapped__":
                self._feed(sink, value, 1)
            elif name not in _NOT_BEHAVIOUR:
                self.feed_named(sink, (id(function), name), f"{function.__qualname__}.{name}", "attribute", value)
        self._read_globals(sink, function.__code__, function.__globals__)

    def _read_cells(self, sink: Sink, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # a cell that is still empty
                put(sink, "empty", name)
                continue
            if name == "__class__" and isinstance(value, type) and sink.name.startswith(f"{value.__qualname__}."):
                put(sink, "class", "its own")  # of a method that calls super(): its class is read anyway
                self.refer_class(sink, value, constructed=False)
                continue
            self.feed_named(sink, id(cell), name, "closure", value)

    def feed_named(self, sink: Sink, key: Any, name: str, kind: str, value: Any) -> None:
        """A value that has a name: a part of its own, unless it is a function or class, which has a name itself."""
        put(sink, "name", name.rpartition(".")[2])
        if issubclass(type(value), (types.FunctionType, type, types.ModuleType)) or is_builtin(value):
            self._feed(sink, value, 1)
        else:
            self._notes.refer(sink, key, value, name, kind, lambda inner: self._feed(inner, value, 1))

    def _read_globals(self, sink: Sink, code: types.CodeType, names: dict[str, Any]) -> None:
        reads = find_reads(code)
        found: dict[str, tuple[Any, Any]] = {}
        for path in reads.paths:
            name, *rest = path
            if name not in names:
                if sink.may_run and may_read_outside(f"builtins.{name}"):
                    self._notes.outside.add(name)
                continue  # a built-in, or not there yet
            if name in _OF_THE_FILE:
                continue
            found.setdefault(*self._resolve(sink, names, name, rest))
        for name, (key, value) in sorted(found.items()):
            self._read_global(sink, key, name, value, names)
        for module, level, taken in reads.imports:
            self._read_import(sink, module, level, taken, names)

    def _resolve(self, sink: Sink, names: dict[str, Any], name: str, rest: list[str]) -> tuple[str, tuple[Any, Any]]:
        """Return the value at the end of a path of names, as far as it can be told without running anything of the
        user's.
        """
        value, key, path = names[name], (id(names), name), name
        while rest:
            holder = value
            if isinstance(holder, types.ModuleType):
                if not is_users_module(holder):
                    return ".".join((path, *rest)), (key, _Named(holder.__name__, ".".join(rest)))
                if rest[0] not in vars(holder):
                    break
                value = vars(holder)[rest[0]]
            elif isinstance(holder, type) or not has_plain_attribute(holder, rest[0]):
                break
            else:
                value = vars(holder)[rest[0]]
            key, path = (id(vars(holder)), rest[0]), f"{path}.{rest.pop(0)}"
            self._notes.keep(holder)
        return path, (key, value)

    def _read_global(self, sink: Sink, key: Any, name: str, value: Any, names: dict[str, Any]) -> None:
        put(sink, "global", name)
        if type(value) is _Named:
            self._notes.name_library(sink, value.module, value.name)
        elif issubclass(type(value), (types.FunctionType, type, types.ModuleType)) or is_builtin(value):
            self._feed(sink, value, 1)
        else:
            self._notes.refer(sink, key, value, name, "global", lambda inner: self._feed(inner, value, 0))

    def _read_import(self, sink: Sink, module: str, level: int, taken: tuple[str, ...], names: dict[str, Any]) -> None:
        """A module that a function imports when it runs: the code of the whole module counts if it is the user's."""
        for name in list_modules(module, level, taken, names):
            own = find_users_module(name)
            if own is None:
                self._notes.name_library(sink, name, "")
            else:
                self._refer_module(sink, own)

    def _refer_module(self, sink: Sink, own: UsersModule) -> None:
        def read(inner: Sink) -> None:
            code = own.code
            if code is None:
                self._notes.miss(inner, own, "its source cannot be read")
                return
            self.feed_code(inner, code, 0)
            for module, level, taken in find_reads(code).imports:
                self._read_import(inner, module, level, taken, {"__package__": own.package, "__name__": own.name})

        self._notes.note_outside(sink, f"import {own.name}")
        self._notes.refer(sink, ("module", own.name), own, f"module {own.name.rpartition('.')[2]}", "module", read)

    def feed_module(self, sink: Sink, module: types.ModuleType) -> None:
        """Put a module into a sink: of the user's, its code; of a library, its name."""
        is_own_module = is_users_module(module)
        own = find_users_module(module.__name__) if is_own_module else None
        if is_own_module and own is None:  # it was made at run time
            attributes = {name: value for name, value in vars(module).items() if not name.startswith("__")}
            read = functools.partial(self.feed_attributes, attributes=attributes, depth=0)
            self._notes.refer(sink, id(module), module, "module", "module", read)
        elif own is None:
            put(sink, "module", module.__name__.partition(".")[0])
            self._notes.libraries.add(module.__name__)
            if sink.may_run and may_read_outside(f"{module.__name__}."):
                self._notes.outside.add(module.__name__)
        else:
            self._refer_module(sink, own)

    def feed_code(self, sink: Sink, code: types.CodeType, depth: int) -> None:
        """Put the instructions, names and constants of code into a sink."""
        behaviour = read_behaviour(code)
        put(sink, "code", behaviour.instructions)
        put(sink, "names", repr(behaviour.names))
        for constant in behaviour.constants:
            self._feed(sink, constant, depth + 1)

    def feed_class_value(self, sink: Sink, kind: type) -> None:
        """Put a class into a sink that is itself a value."""
        if is_users_code(kind):
            self.refer_class(sink, kind)
        else:
            self._notes.name_class(sink, kind)

    def refer_class(self, sink: Sink, kind: type, *, constructed: bool = True) -> None:
        """The code and the attributes of a user's class and its bases.

        With `constructed`, code may make objects of this class later, so its constructor may still run.
        """
        for base in list_bases(kind):
            if is_users_code(base):
                self._notes.refer(
                    sink, id(base), base, base.__qualname__, "class", functools.partial(self._read_class, kind=base)
                )
                if constructed and sink.may_run:
                    self._construct(base)
            elif base is not object:
                self._notes.name_class(sink, base)

    def _construct(self, kind: type) -> None:
        for name in _CONSTRUCTORS:
            function = vars(kind).get(name)
            if isinstance(function, types.FunctionType) and is_users_code(function):
                for path in find_reads(function.__code__).paths:
                    self._note_construction(function, path)

    def _note_construction(self, function: types.FunctionType, path: tuple[str, ...]) -> None:
        """Note what a constructor reads that may still run. It is followed by name only, one step far."""
        value = function.__globals__.get(path[0])
        if path[0] not in function.__globals__:
            text = f"builtins.{path[0]}"
        elif isinstance(value, types.ModuleType) and not is_users_module(value):
            text = f"{value.__name__.partition('.')[0]}.{'.'.join(path[1:])}"
        elif isinstance(value, types.FunctionType) and is_users_code(value):
            text = "builtins.open"  # what it calls is not known here
        else:
            return
        if may_read_outside(text):
            self._notes.outside.add(f"{function.__qualname__} reads {'.'.join(path)}")

    def _read_class(self, sink: Sink, kind: type) -> None:
        sink.folder = folder_of(names_of_module(kind))
        if type(kind) is not type and is_users_code(type(kind)):
            self.refer_class(sink, type(kind))
        for name, field in vars(kind).get("__dataclass_fields__", {}).items():
            if field.metadata:
                put(sink, "metadata", name)
                self._feed(sink, dict(field.metadata), 1)
        members = vars(kind)
        if issubclass(kind, enum.Enum):
            for member in kind.__members__.values():
                put(sink, "member", member.name)
                self._feed(sink, member.value, 1)
            members = {name: value for name, value in members.items() if isinstance(value, _FUNCTIONS)}
            members = {name: value for name, value in members.items() if is_users_code(function_of(value) or kind)}
        for name, value in sorted(members.items()):
            if name in _NOT_BEHAVIOUR or isinstance(value, _WITHOUT_VALUE) or name.startswith("_abc_"):
                continue
            if type(value).__name__ == "_tuplegetter":  # a field of a named tuple
                continue
            self._read_member(sink, kind, name, value)

    def _read_member(self, sink: Sink, kind: type, name: str, value: Any) -> None:
        put(sink, "member", name)
        parts = [value]
        if not is_users_code(type(value)):
            inner = [read_attribute(value, part) for part in ("__func__", "fget", "fset", "fdel", "func", "dispatcher")]
            found = [part for part in inner if part is not None]
            if isinstance(value, functools.partialmethod):
                found += [value.args, value.keywords]
            if isinstance(value, (staticmethod, classmethod, property)) or found:
                put(sink, "kind", type(value).__name__)
                parts = found or [value]
        for part in parts:
            if isinstance(part, types.FunctionType):
                label = f"{kind.__qualname__}.{name}"
                may_run = name not in _CONSTRUCTORS
                if is_users_code(part):
                    read = functools.partial(self._read_function, function=part)
                    self._notes.refer(sink, id(part), part, label, "method", read, may_run=may_run)
                else:
                    self._feed(sink, part, 1)
            else:
                self.feed_named(
                    sink, (id(kind), name, id(part)), f"{kind.__qualname__}.{name}", "class attribute", part
                )

    def feed_attributes(self, sink: Sink, attributes: dict[str, Any], depth: int) -> None:
        """Put attributes into a sink, but those that are words."""
        for name in sorted(attributes, key=str):
            if name not in _NOT_BEHAVIOUR:
                put(sink, "field", str(name))
                self._feed(sink, attributes[name], depth + 1)


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
    return UsersModule(name, file) if is_users_file(name, file) else None


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
