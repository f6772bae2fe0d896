"""Says of a class or function by which public module, its door, users import it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
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


def load_door(thing: Any) -> None:
    """Import the door of a public class or function, if nothing has imported it yet.

    Pickles name an object by its door. cloudpickle looks the name up among the modules that are loaded; of what it does
    not find there it would send a copy, and objects of the copy are no instances of the class.
    """
    key = (getattr(thing, "__module__", None), getattr(thing, "__qualname__", None))
    if key in _MODULES and key[0] not in sys.modules:
        importlib.import_module(str(key[0]))


def load_doors() -> None:
    """Import the doors of all public objects that are loaded: before code of the user's pickles some of them."""
    for door in {door for door, _ in _MODULES}:
        importlib.import_module(door)
