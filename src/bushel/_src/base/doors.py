"""Public modules that load what they export when it is first used, so that importing them is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


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
