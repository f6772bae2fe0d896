"""Definitions of a script that pickle sends by name alone, or not at all: reduced to what they are made of.

cloudpickle sends the functions and classes of the main module by value. A cached function, a `NewType` or a
`ParamSpec` beside them would still be looked up by its name, in a module that workers do not have.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable
from typing import Any

import cloudpickle

_CACHED = type(functools.lru_cache(len))
_NAMED: tuple[Any, ...] = tuple(
    getattr(typing, name) for name in ("NewType", "ParamSpec", "TypeVarTuple", "TypeAliasType") if hasattr(typing, name)
)
KINDS: tuple[Any, ...] = (_CACHED, functools.cached_property, *_NAMED)
"""The types of these definitions. A function made by `functools.singledispatch` is one, too."""


def reduce_definition(value: Any) -> Any:
    """What `__reduce__` would return for a definition that no worker can import. NotImplemented for other objects."""
    if isinstance(value, functools.cached_property):  # Python 3.11 keeps a lock in it
        return functools.cached_property, (value.func,), {"attrname": value.attrname}
    if isinstance(value, types.FunctionType):
        is_dispatch = value.__globals__ is vars(functools) and hasattr(value, "registry")
        if not is_dispatch or _is_importable(value):
            return NotImplemented
        return _build_dispatch, (dict(value.registry),)  # type: ignore[attr-defined]
    if not isinstance(value, KINDS) or _is_importable(value):
        return NotImplemented
    if isinstance(value, _CACHED):
        return _build_cached, (value.__wrapped__, *value.cache_parameters().values())
    return type(value), (value.__name__, *_list_arguments(value))


def _is_importable(value: Any) -> bool:
    """Whether a worker finds an object by its name."""
    found = cloudpickle.cloudpickle._lookup_module_and_qualname(value, name=_get_name(value))
    return found is not None and not cloudpickle.cloudpickle._is_registered_pickle_by_value(found[0])


def _get_name(value: Any) -> str:
    return getattr(value, "__qualname__", value.__name__)


def _list_arguments(value: Any) -> tuple[Any, ...]:
    """What the type of a definition for type checkers takes, behind the name."""
    if isinstance(value, typing.NewType):
        return (value.__supertype__,)
    return (value.__value__,) if hasattr(value, "__value__") else ()


def _build_cached(function: Callable[..., Any], size: int | None, typed: bool) -> Any:
    """A cached function with an empty cache: each worker fills its own."""
    return functools.lru_cache(size, typed)(function)


def _build_dispatch(registry: dict[type, Callable[..., Any]]) -> Any:
    dispatch = functools.singledispatch(registry.pop(object))
    for kind, function in registry.items():
        dispatch.register(kind, function)
    return dispatch
