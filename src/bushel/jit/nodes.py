"""Frozen dataclasses that are pytrees: arrays are children, everything else is structure. Nothing is traced here."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

T = TypeVar("T")

CHILD = {"child": True}
"""Metadata of a field that holds arrays, or other nodes that may hold some."""


def child(**kwargs: Any) -> Any:
    """A field of a node that holds arrays, or nodes with arrays."""
    return dataclasses.field(metadata=CHILD, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, child))
def node(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass and a pytree. Fields with the metadata `CHILD` are children.

    A pytree is rebuilt without its checks: they ran when the user built it, and inside `jit` its arrays are tracers.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    children = tuple(field.name for field in fields if field.metadata.get("child"))
    structure = tuple(field.name for field in fields if not field.metadata.get("child"))

    def flatten(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(value, name) for name in children), tuple(Held(getattr(value, name)) for name in structure)

    def unflatten(held: tuple[Any, ...], parts: Any) -> Any:
        value = object.__new__(cls)
        for name, part in zip(structure, held, strict=True):
            object.__setattr__(value, name, part.value)
        for name, part in zip(children, parts, strict=True):
            object.__setattr__(value, name, part)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
    return cls


class Held:
    """A value as structure of a pytree: equal if it is the same object, or equal and hashable."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Held):
            return False
        if self.value is other.value:
            return True
        if type(self.value) is not type(other.value) or not _hashable(self.value):
            return False
        return bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value) if _hashable(self.value) else id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def is_array(value: Any) -> bool:
    """Whether JAX may take a leaf as an argument: an array of numbers, not a Python object."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic))
