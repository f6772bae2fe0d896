"""Functions that are given as callables, or by name in a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bushel.state.digest import whole_digest
from bushel.trajectory.spec import ModuleSpec

Function = Callable[..., Any] | Mapping[str, Any] | str
"""A callable, or what names one: a ModuleSpec, or "module:name"."""


def instantiated(function: Function) -> Callable[..., Any]:
    """The callable that is meant.

    >>> instantiated("math:floor")(2.5)
    2
    """
    spec = _spec(function)
    return ModuleSpec.instantiate(spec) if isinstance(spec, Mapping) else spec


def listed(functions: Sequence[Function] | Function | None) -> tuple[Function, ...]:
    """Functions as a tuple: None is none of them, and one alone is one.

    >>> listed(None), listed("math:floor")
    ((), ('math:floor',))
    """
    if functions is None:
        return ()
    return (functions,) if callable(functions) or isinstance(functions, (str, Mapping)) else tuple(functions)


def named(function: Function) -> str:
    """A text that tells a function from others: how it is called, and a digest of its code and of what it reads."""
    spec = _spec(function)
    called = ModuleSpec.to_string(spec) if isinstance(spec, Mapping) else _name(spec)
    return f"{called}#{whole_digest(instantiated(spec))}"


def _spec(function: Function) -> Callable[..., Any] | Mapping[str, Any]:
    return ModuleSpec.create(function) if isinstance(function, str) else function


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
