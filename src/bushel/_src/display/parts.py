"""Parts of an element: one row of a batch, an entry by its path, and what an object holds."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import trees


def open_container(value: Any) -> tuple[str, dict[str, Any]] | None:
    """The kind of a container ("dict" or "list") and its entries by name; None for a leaf.

    >>> open_container((1, 2))
    ('list', {'0': 1, '1': 2})
    """
    if isinstance(value, Mapping):
        names = [key if isinstance(key, str) else repr(key) for key in value]
        if len(set(names)) < len(names):  # such as 1 and "1"
            names = [repr(key) for key in value]
        return "dict", dict(zip(names, [part for _, part in value.items()], strict=True))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "dict", dict(zip(getattr(value, "_fields"), value, strict=True))  # noqa: B009
    if isinstance(value, (list, tuple)):
        return "list", {str(number): part for number, part in enumerate(value)}
    if isinstance(value, np.ndarray) and value.dtype.names:
        return "dict", {name: value[name] for name in value.dtype.names}
    if isinstance(value, (np.ndarray, np.generic, str, bytes, bytearray)) or hasattr(value, "__array__"):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "dict", {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    children = trees.children(value) if value is not None else None
    if children is not None:
        return "list", {str(number): part for number, part in enumerate(children[0])}
    return None


def find_part(element: Any, path: Sequence[str]) -> Any:
    """The part of an element at a path of names; numbers are places in arrays and lists. Raises KeyError."""
    for name in path:
        opened = open_container(element)
        if opened is not None:
            element = opened[1][name]
        elif np.ndim(element) and name.isdigit() and int(name) < len(element):
            element = element[int(name)]
        else:
            raise KeyError(name)
    return element


def find_batch_size(element: Any) -> int | None:
    """How many rows a batch has: the length of the first axis, if all arrays agree; None for other elements."""
    sizes: collections.Counter[int] = collections.Counter()
    for leaf in trees.leaves(element):
        shape = getattr(leaf, "shape", None)
        if not shape:
            return None
        sizes[shape[0]] += 1
    return next(iter(sizes)) if len(sizes) == 1 else None


def take_row(element: Any, row: int) -> Any:
    """One row of a batch, as a tree of the same form."""
    return trees.map_leaves(lambda leaf: leaf[row], element)
