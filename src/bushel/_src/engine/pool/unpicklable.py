"""Finds which value of the user's cannot be pickled: the variable of a function, and the line that reads it."""

from __future__ import annotations

import dis
import functools
import os
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

from bushel._src.base import following, transforms

_DEPTH = 4
"""So many functions and objects are followed, one inside the other."""


def find_unpicklable(value: Any) -> str:
    """Where in a function or object the value is that cannot be pickled, as part of a sentence; "" if nobody knows.

    >>> import threading
    >>> lock = threading.Lock()
    >>> def count(element, kept=lock): ...
    >>> find_unpicklable(count)
    'the default of `kept` in count is a lock'
    """
    return _find(value, _DEPTH)


def _find(value: Any, depth: int) -> str:
    if not depth or is_picklable(value):
        return ""
    for part, place in _list_parts(value):
        if not is_picklable(part):
            return _find(part, depth - 1) or f"{place} is {_describe(part)}"
    return ""


def _list_parts(value: Any) -> Iterator[tuple[Any, str]]:
    """The values that a function or object holds, each with the place where the user wrote it."""
    if isinstance(value, functools.partial):
        yield value.func, f"the function of {transforms.short_name(value)}"
        for number, argument in enumerate(value.args):
            yield argument, f"argument {number} of {transforms.short_name(value)}"
        for name, argument in value.keywords.items():
            yield argument, f"the argument `{name}` of {transforms.short_name(value)}"
    elif isinstance(value, types.MethodType):
        yield value.__self__, f"the object of {value.__qualname__}"
    elif isinstance(value, types.FunctionType):
        yield from _list_variables(value)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield part, f"the entry {key!r}"
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield part, f"item {number}"
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        for name, part in vars(value).items():
            yield part, f"`self.{name}` of {type(value).__name__}"


def _list_variables(function: types.FunctionType) -> Iterator[tuple[Any, str]]:
    name = function.__name__
    code = function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
        yield value, f"the variable `{variable}`{_find_line(code, variable)}"
    for variable, value in following.globals_of(function):
        yield value, f"the variable `{variable}`{_find_line(code, variable.partition('.')[0])}"
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for variable, value in [*zip(names, defaults), *(function.__kwdefaults__ or {}).items()]:
        yield value, f"the default of `{variable}` in {name}"


def _find_line(code: types.CodeType, variable: str) -> str:
    """Where a function reads a variable: ", in line 12 of train.py,"; "" if that is not known."""
    for inner in _list_code(code):
        for instruction in dis.get_instructions(inner):
            line = None if instruction.positions is None else instruction.positions.lineno
            if line is not None and instruction.argval == variable and instruction.opname.startswith("LOAD"):
                return f", which {code.co_name} reads in line {line} of {os.path.basename(code.co_filename)},"
    return ""


def _list_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_code(constant)


def _describe(value: Any) -> str:
    """A value in a sentence: "a lock", "an object of type Connection"."""
    kind = type(value)
    if kind.__module__ in ("_thread", "threading") and "lock" in kind.__name__.lower():
        return "a lock"
    if kind.__module__ == "_io":
        return "an open file"
    if isinstance(value, types.GeneratorType):
        return "a generator"
    return f"an object of type {kind.__qualname__}"


def is_picklable(value: Any) -> bool:
    """Whether an object can be sent to workers."""
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
