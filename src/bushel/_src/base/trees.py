"""Elements as trees: dicts, lists, tuples, None (a tree without leaves), and the pytrees that JAX knows.

Also shapes and dtypes of elements that are known without reading one.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from operator import countOf
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bushel._src.base.public import public

Rebuild = Callable[[Iterable[Any]], Any]

_LEAVES = frozenset({np.ndarray, int, float, complex, bool, str, bytes, bytearray})


def children(tree: Any) -> tuple[list[Any], Rebuild] | None:
    """Return the parts of a container, and a function that builds such a container from other parts; None for a
    leaf.
    """
    kind = type(tree)
    if kind in _LEAVES or isinstance(tree, np.generic):
        return None
    if kind is dict:
        keys = tuple(tree)
        return list(tree.values()), lambda parts: dict(zip(keys, parts, strict=True))
    if kind is tuple or kind is list:
        return list(tree), kind
    if tree is None:
        return [], lambda _: None
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(tree), lambda parts: kind(*parts)
    registered = _registered(tree)
    if registered is not None:
        return registered
    if isinstance(tree, collections.defaultdict):
        keys, factory = tuple(tree), tree.default_factory
        return list(tree.values()), lambda parts: kind(factory, zip(keys, parts, strict=True))
    if isinstance(tree, Mapping):
        keys = tuple(tree)
        return [tree[key] for key in keys], lambda parts: kind(zip(keys, parts, strict=True))
    if isinstance(tree, (list, tuple)):
        return list(tree), kind
    return None


def _registered(tree: Any) -> tuple[list[Any], Rebuild] | None:
    jax = sys.modules.get("jax")
    tree_util = getattr(jax, "tree_util", None)
    if tree_util is None or isinstance(tree, (dict, list, tuple)):
        return None
    parts, structure = tree_util.tree_flatten(tree, is_leaf=lambda part: part is not tree)
    if len(parts) == 1 and parts[0] is tree:
        return None
    return parts, structure.unflatten


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return `tree` with each leaf replaced by `function(leaf, and its counterparts in `others`)`."""
    if not others:  # a faster way for the usual trees
        if type(tree) is np.ndarray:
            return function(tree)
        if type(tree) is dict:
            return {
                key: function(part) if type(part) is np.ndarray else map_leaves(function, part)
                for key, part in tree.items()
            }
    parts = children(tree)
    if parts is None:
        if any(children(other) is not None for other in others):
            raise ValueError(f"{describe(tree)} against {', '.join(map(describe, others))}")
        return function(tree, *others)
    siblings = [_children_like(tree, parts[0], other) for other in others]
    return parts[1](map_leaves(function, *group) for group in zip(parts[0], *siblings, strict=True))


def flatten(tree: Any) -> tuple[list[Any], Rebuild]:
    """Return the leaves, and a function that builds a tree of the same structure from other leaves."""
    parts = children(tree)
    if parts is None:
        return [tree], lambda leaves: next(iter(leaves))
    inner, rebuild = parts
    if all(children(part) is None for part in inner):
        return inner, rebuild
    flat = [flatten(part) for part in inner]

    def build(leaves: Iterable[Any]) -> Any:
        left = iter(leaves)
        return rebuild([below(itertools.islice(left, len(part))) for part, below in flat])

    return [leaf for part, _ in flat for leaf in part], build


def leaves(tree: Any) -> list[Any]:
    """Return the leaves, in the order of the containers."""
    return flatten(tree)[0]


def gather_children(rows: list[Any]) -> tuple[list[list[Any]], Rebuild] | None:
    """For containers of one structure: their first parts, their second parts, and so on; None for leaves.

    Raises ValueError where structures differ.
    """
    first, count = rows[0], len(rows)
    if type(first) is dict and countOf(map(type, rows), dict) == count == countOf(map(len, rows), len(first)):
        try:
            columns = [[row[key] for row in rows] for key in first]
        except KeyError as missing:
            raise ValueError(f"not all elements have the key {missing}") from None
        keys = tuple(first)
        return columns, lambda parts: dict(zip(keys, parts, strict=True))
    parts = children(first)
    if parts is None:
        return None
    return list(map(list, zip(*(_children_like(first, parts[0], row) for row in rows), strict=True))), parts[1]


def _children_like(model: Any, model_parts: list[Any], other: Any) -> list[Any]:
    found = children(other)
    if found is None or type(other) is not type(model) or len(found[0]) != len(model_parts):
        raise ValueError(f"a {type(model).__name__} of {len(model_parts)} against {describe(other)}")
    if isinstance(model, Mapping):
        if set(model) != set(other):
            raise ValueError(f"keys {sorted(map(str, model))} against {sorted(map(str, other))}")
        return [other[key] for key in model]
    return found[0]


def describe(tree: Any) -> str:
    """Return a tree with shapes and dtypes for leaves, as it reads in messages.

    >>> describe({"image": np.zeros((28, 28), np.uint8), "label": 3})
    "{'image': uint8[28, 28], 'label': int}"
    """
    kind = type(tree)
    if isinstance(tree, Mapping):
        inner = ", ".join(f"{key!r}: {describe(value)}" for key, value in tree.items())
        return ("" if kind is dict else kind.__name__) + "{" + inner + "}"
    if isinstance(tree, (list, tuple)):
        inner = ", ".join(describe(value) for value in tree)
        shown = f"[{inner}]" if isinstance(tree, list) else f"({inner})"
        return shown if kind in (list, tuple) else kind.__name__ + shown
    if isinstance(tree, (np.str_, np.bytes_)):  # texts out of arrays read as other texts do
        return "str" if isinstance(tree, np.str_) else "bytes"
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return f"{np.dtype(tree.dtype) if isinstance(tree.dtype, type) else tree.dtype}{list(tree.shape)}"
    return "None" if tree is None else kind.__name__


@public("bushel.experimental")
@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a shape and a dtype; an unknown dimension is None."""

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> Any: ...


@public("bushel.experimental")
@dataclasses.dataclass(slots=True, frozen=True)
class ShapeDtypeStruct:
    """The shape and dtype of one leaf of an element.

    >>> ShapeDtypeStruct(shape=(None, 28, 28), dtype="uint8")
    ShapeDtypeStruct(shape=(None, 28, 28), dtype='uint8')
    """

    shape: tuple[int | None, ...]
    dtype: Any
