"""Classes that are JAX pytrees: fields made with `child()` are traced, all other attributes are static.

This module traces nothing itself; see source.py for the sources that are built with it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

T = TypeVar("T")


def child(**options: Any) -> Any:
    """Declare a dataclass field that holds arrays, or objects that contain arrays.

    `options` are those of `dataclasses.field`.
    """
    return dataclasses.field(metadata={"child": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, child))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Turn a subclass of `Pytree` into a frozen dataclass that is compared by identity.

    A `__repr__` that the class or one of its bases defines is kept.
    """
    return dataclasses.dataclass(frozen=True, eq=False, repr=cls.__repr__ is object.__repr__)(cls)


class Pytree:
    """Base of the classes that JAX may take apart. Subclasses are registered with JAX when they are defined.

    So a user's subclass of a source is a pytree too. Its own attributes are static: JAX compiles again when they
    change.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_node(cls, _flatten, functools.partial(_unflatten, cls))


@functools.cache
def _list_children(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls) if field.metadata.get("child"))


def _flatten(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    children = _list_children(type(value))
    static = tuple((name, Static(entry)) for name, entry in vars(value).items() if name not in children)
    return tuple(getattr(value, name) for name in children), static


def _unflatten(cls: type[T], static: tuple[Any, ...], children: Any) -> T:
    # The constructor does not run: its checks need real arrays, and inside `jit` the children are tracers.
    names = _list_children(cls)
    return build(cls, **{name: entry.value for name, entry in static}, **dict(zip(names, children, strict=True)))


def build(cls: type[T], **attributes: Any) -> T:
    """Create an instance with these attributes without running its constructor."""
    value = object.__new__(cls)
    set_attributes(value, **attributes)
    return value


def set_attributes(value: Any, **attributes: Any) -> None:
    """Set attributes of a frozen dataclass, for use in its own constructor."""
    value.__dict__.update(attributes)


class Static:
    """A static value in the structure of a pytree.

    Two of them are equal if they hold the same object, or objects of one type that are hashable and equal. JAX
    compares structures to decide whether it must compile again, and values such as dicts cannot be hashed.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Static):
            return False
        if self.value is other.value:
            return True
        if type(self.value) is not type(other.value) or not _is_hashable(self.value):
            return False
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value) if _is_hashable(self.value) else id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def is_array(value: Any) -> bool:
    """Return whether JAX can take a leaf as an argument of a compiled program: an array, not a Python object."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic))
