"""The names by which states and caches know our classes, and the mark on methods that a subclass may override."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class StateName:
    """A class or a function, the name that states know it by, and the keys of its private attributes."""

    named: Any
    name: str
    keys: Mapping[str, str | None]


_entries: dict[int, StateName] = {}
"""By the id of the class, so that a lookup runs nothing of a user's metaclass. Our classes live as long as Python."""

unnamed: set[str] = set()
"""Classes and functions of the library that a digest has met and that have no constant. The tests refuse them."""


def in_states(name: str, keys: Mapping[str, str | None] | None = None) -> Callable[[_T], _T]:
    """Give a class or a function the name that states know it by.

    >>> @in_states("Example", {"_size": "Example.size", "_lock": None})
    ... class Operation:
    ...     pass
    >>> find_name(Operation)
    'Example'

    Args:
      name: it never changes, and no other class has it. For a public class, its public name.
      keys: of attributes whose own names are private: the key in a digest, or None for an attribute that follows from
        the others or does not change the output. A key holds the name of the class, so that an attribute of a user's
        subclass cannot have the same key.
    """

    def register(named: _T) -> _T:
        same = [entry.named for entry in _entries.values() if entry.name == name]
        assert not same, f"{named} and {same[0]} cannot both be {name!r} in states."
        _entries[id(named)] = StateName(named, name, dict(keys or {}))
        return named

    return register


def list_entries() -> list[StateName]:
    """Return all classes and functions of the loaded modules that have a constant."""
    return list(_entries.values())


def find_name(named: Any) -> str | None:
    """Return the constant of a class or function of the library; None for one of the user's or of another library."""
    entry = _entries.get(id(named))
    if entry is None and _is_of_library(named):
        unnamed.add(f"{named.__module__}.{named.__qualname__}")
    return None if entry is None else entry.name


def name_of(kind: type) -> str:
    """Return what a digest calls a class: the constant of a class of the library, otherwise the name in its program."""
    return find_name(kind) or kind.__qualname__


def list_bases(kind: type) -> list[type]:
    """Return the bases of a class, without those of the library that have no constant.

    Those with a constant stand for them.
    """
    bases = kind.__mro__
    if not any(id(base) in _entries for base in bases):
        return list(bases)
    return [base for base in bases if id(base) in _entries or not _is_of_library(base)]


def rename_keys(kind: type, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an object of this class, under the keys that digests know."""
    for base in kind.__mro__:
        entry = _entries.get(id(base))
        if entry is not None and entry.keys:
            keys = {name: entry.keys.get(name, name) for name in attributes}
            attributes = {key: attributes[name] for name, key in keys.items() if key is not None}
    return attributes


def _is_of_library(named: Any) -> bool:
    if type(named) is types.FunctionType:
        module = named.__globals__.get("__name__")
    else:
        module = named.__module__ if issubclass(type(named), type) else None  # nothing of an object's class is run
    return isinstance(module, str) and module.partition(".")[0] == "bushel"


Member = TypeVar("Member")


def overridable(member: Member) -> Member:
    """Mark a method that has a documented default. A subclass may replace it; no other method with a body may be
    replaced.
    """
    return member
