"""Public modules, the doors: by which one users import a class or function, and how a door loads what it exports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ForwardRef, TypeVar

T = TypeVar("T")

_MODULES: dict[tuple[str, str], str] = {}
"""The module that defines a public object, by its door and its name there."""


def public(door: str, name: str | None = None) -> Callable[[T], T]:
    """Give a class or function the address that users know: in tracebacks, reprs, pickles and the reference.

    Args:
      door: the public module that exports it, such as "bushel.sources".
      name: its name there, if it is another one.

    >>> @public("bushel.testing")
    ... def check(): ...
    >>> check.__module__, find_module(check)
    ('bushel.testing', 'bushel._src.base.public')
    """

    def mark(thing: T) -> T:
        of: Any = thing  # functions that JAX has compiled are marked, too
        defined = of.__module__
        of.__module__ = door
        if name is not None:
            of.__name__ = of.__qualname__ = name
        _MODULES[door, of.__qualname__] = defined
        if isinstance(of, type):
            _keep_annotations(of, defined)
        return thing

    return mark


def _keep_annotations(kind: type, module: str) -> None:
    """Make `typing.get_type_hints` look names up where the class is defined, and not in its door."""
    written = vars(kind).get("__annotations__", {})
    for name, text in written.items():
        text = text.__forward_arg__ if isinstance(text, ForwardRef) else text  # of a NamedTuple
        if isinstance(text, str):
            written[name] = ForwardRef(text, is_argument=False, module=module, is_class=True)


def find_module(thing: Any) -> str:
    """Return the name of the module that defines a class or function, behind its door.

    >>> find_module(int)
    'builtins'
    """
    module = getattr(thing, "__module__", None) or ""
    return _MODULES.get((module, getattr(thing, "__qualname__", "")), module)


def open_door(
    door: str, exported: Sequence[str], modules: Mapping[str, str], extras: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a public module.

    Args:
      door: the public module, its `__name__`.
      exported: its `__all__`.
      modules: private modules below `bushel._src`, each with the names that it defines, separated by spaces; a name
        that the door gives another one is written `defined=exported`. Other names are modules below the door.
      extras: names that need an extra, such as JAX. They are not in `__all__`, so that `import *` needs none.
    """
    homes = {}
    for module, listed in modules.items():
        for defined, _, other in (name.partition("=") for name in listed.split()):
            homes[other or defined] = (f"bushel._src.{module}", defined)
    known = {*exported, *extras}

    def load(name: str) -> Any:
        if name not in known:
            from bushel._src.base import hints  # here: a program that has its names right does not need it

            raise hints.no_attribute(hints.missing_in_module(door, name, [*exported, *extras]), name)
        if name not in homes:
            return importlib.import_module(f"{door}.{name}")
        module, defined = homes[name]
        value = getattr(importlib.import_module(module), defined)
        setattr(sys.modules[door], name, value)
        return value

    def names() -> list[str]:
        return sorted({name for name in vars(sys.modules[door]) if name.startswith("__")} | known)

    return load, names
