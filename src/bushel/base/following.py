"""Finds the globals that a function reads, and tells whether code is the user's own. For digests: state/digest.py."""

from __future__ import annotations

import dis
import functools
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_READS_OF_MODULES = {"LOAD_ATTR", "LOAD_METHOD"}


def globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The globals that a function and its inner functions read, by name; for a module, the attribute that is read.

    >>> def area(radius):
    ...     return math.pi * radius ** SQUARED
    >>> area = types.FunctionType(area.__code__, {"math": __import__("math"), "SQUARED": 2})
    >>> globals_of(area)
    [('SQUARED', 2), ('math.pi', 3.141592653589793)]
    """
    found: dict[str, Any] = {}
    for path in dict.fromkeys(_paths(function.__code__)):
        name, *rest = path
        if name not in function.__globals__:
            continue  # a built-in
        value = function.__globals__[name]
        while rest and isinstance(value, types.ModuleType) and hasattr(value, rest[0]):
            value, name = getattr(value, rest[0]), f"{name}.{rest.pop(0)}"
        found[name] = value
    return sorted(found.items())


def _paths(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Names of globals, each followed by the attributes that are read from it."""
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if path and instruction.opname in _READS_OF_MODULES:
            path = (*path, instruction.argval)
            continue
        if path:
            yield path
        path = (instruction.argval,) if instruction.opname in _READS else ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _paths(constant)


def is_own(function_or_class: Any) -> bool:
    """Whether a function or class is the user's own: not from the standard library, an installed package, or Bushel.

    >>> is_own(dis.Bytecode), is_own(dis.get_instructions)
    (False, False)
    """
    if isinstance(function_or_class, types.FunctionType):
        module = function_or_class.__globals__
    else:
        module = vars(sys.modules.get(function_or_class.__module__, types.ModuleType("")))
    return _is_own(module.get("__name__") or "", module.get("__file__"))


def is_own_frame(frame: types.FrameType) -> bool:
    """Whether a frame of a traceback runs the user's own code."""
    names = frame.f_globals
    is_import = frame.f_code.co_filename.startswith("<frozen ")  # Python's own machinery of imports
    return not is_import and _is_own(names.get("__name__") or "", names.get("__file__"))


@functools.lru_cache(maxsize=4096)
def _is_own(name: str, file: str | None) -> bool:
    if name.partition(".")[0] in ("bushel", *sys.builtin_module_names):
        return False
    if file is None:  # a notebook, or code that was made at run time
        return True
    path = os.path.abspath(file)
    if {"site-packages", "dist-packages"} & set(path.split(os.sep)):
        return False
    import sysconfig  # here: every worker imports this module, and few look at a function

    folders = [os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib")]
    return not path.startswith(tuple(folders))
