"""Finds the globals that a function reads, and tells whether code is the user's own. For digests: state/digest.py."""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any

from bushel._src.base.bytecode import find_reads
from bushel._src.base.distributions import INSTALLED, is_installed_library


def globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The globals that a function and its inner functions read, by name; for a module, the attribute that is read.

    >>> def area(radius):
    ...     return math.pi * radius ** SQUARED
    >>> area = types.FunctionType(area.__code__, {"math": __import__("math"), "SQUARED": 2})
    >>> globals_of(area)
    [('SQUARED', 2), ('math.pi', 3.141592653589793)]
    """
    found: dict[str, Any] = {}
    for path in find_reads(function.__code__).paths:
        name, *rest = path
        if name not in function.__globals__:
            continue  # a built-in
        value = function.__globals__[name]
        while rest and isinstance(value, types.ModuleType) and hasattr(value, rest[0]):
            value, name = getattr(value, rest[0]), f"{name}.{rest.pop(0)}"
        found[name] = value
    return sorted(found.items())


def is_own(function_or_class: Any) -> bool:
    """Whether a function or class is the user's own: not of the standard library, an installed library, or Bushel.

    What was installed from a local folder or a repository is the user's own, and so is a module that belongs to no
    distribution, wherever it lies.

    >>> is_own(types.SimpleNamespace), is_own(functools.wraps)
    (False, False)
    """
    if isinstance(function_or_class, types.FunctionType):
        module = function_or_class.__globals__
    else:
        module = vars(sys.modules.get(function_or_class.__module__, types.ModuleType("")))
    return _is_own(module.get("__name__") or "", module.get("__file__"))


def is_own_file(module: str, file: str | None) -> bool:
    """Whether a module, by its name and file, is the user's own. A notebook has no file."""
    return _is_own(module, file)


def is_own_frame(frame: types.FrameType) -> bool:
    """Whether a frame of a traceback runs the user's own code."""
    names = frame.f_globals
    is_import = frame.f_code.co_filename.startswith("<frozen ")  # Python's own machinery of imports
    return not is_import and _is_own(names.get("__name__") or "", names.get("__file__"))


@functools.lru_cache(maxsize=4096)
def _is_own(name: str, file: str | None) -> bool:
    top = name.partition(".")[0]
    if top in ("bushel", *sys.builtin_module_names):
        return False
    if file is None:  # a notebook, or code that was made at run time
        return top not in sys.stdlib_module_names or top == "__main__"
    path = os.path.abspath(file)
    if not INSTALLED & set(path.split(os.sep)):
        import sysconfig  # here: every worker imports this module, and few look at a function

        folders = [os.path.join(sysconfig.get_path(kind), "") for kind in ("stdlib", "platstdlib")]
        if path.startswith(tuple(folders)):
            return False
    return not is_installed_library(path, name)
