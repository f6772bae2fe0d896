"""Functions that are given as callables, or by name in a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bushel.state.digest import digest
from bushel.trajectory.spec import ModuleSpec

Function = Callable[..., Any] | Mapping[str, Any]
"""A callable, or a ModuleSpec that names one."""


def instantiated(function: Function) -> Callable[..., Any]:
    """The callable that is meant."""
    return ModuleSpec.instantiate(function) if isinstance(function, Mapping) else function


def named(function: Function) -> str:
    """A text that tells a function from others: how it is called, and a digest of its code."""
    called = ModuleSpec.to_string(function) if isinstance(function, Mapping) else _name(function)
    return f"{called}#{digest(instantiated(function))}"


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
