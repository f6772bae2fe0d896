"""Copies records that a source or a cache keeps, before a user's function may write into them.

A source may return an object that it keeps: an entry of a list, a view of an array, a value of a cache. A function that
writes into such an object would change what the next epoch reads, and the output would depend on the number of workers.
So every record that enters a pipeline is made private here. An object that nothing else refers to is private already:
CPython counts the references to each object, and a new object has exactly one, from the container that it is in.
"""

from __future__ import annotations

import array
import collections
import copy
import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Mapping
from sys import getrefcount
from typing import Any

import numpy as np

from bushel.base.blocks import Block, Columns
from bushel.base.records import Record

IMMUTABLE = frozenset(
    {int, float, complex, bool, str, bytes, type(None), range, slice, type(Ellipsis)}
    | {kind for kind in np.sctypeDict.values() if not issubclass(kind, (np.void, np.object_))}
)
"""Types whose objects cannot be changed: they are never copied."""

_all_immutable = IMMUTABLE.issuperset

_COUNTS = "t" not in getattr(sys, "abiflags", "")
"""Whether reference counts are exact. Python without a GIL splits them; there every record is copied."""

# What `sys.getrefcount` says of an object that only one container holds. `map` calls it from C, so that the result
# does not depend on how a version of Python treats local variables.
_FRESH = next(map(getrefcount, [object()]))
_VIEW = np.zeros(2)[:1]
_FRESH_BASE = getrefcount(_VIEW.base)  # of the memory of a view, which the view alone holds
_NONE = type(None)


def own(rows: list[Any]) -> list[Any]:
    """The rows, with a copy in place of each object that something else refers to. Only the list may hold the rows.

    >>> kept = np.zeros(2)
    >>> row, = own([{"kept": kept, "fresh": np.zeros(2)}])
    >>> row["kept"] += 1
    >>> kept
    array([0., 0.])
    """
    if not _COUNTS:
        return list(map(copy_value, rows))
    counts = list(map(getrefcount, rows))
    for place, row in enumerate(rows):
        if type(row) not in IMMUTABLE:
            if counts[place] > _FRESH:
                rows[place] = copy_value(row)
            elif type(row) is dict:
                _own_entries(row)
            else:
                rows[place] = _own_inside(row)
    return rows


def own_columns(block: Columns) -> Columns:
    """Columns with a copy in place of each array that something else refers to. Only the caller may hold the block."""
    if not _COUNTS:
        return dataclasses.replace(block, tree=copy_value(block.tree))
    (count,) = map(getrefcount, [block.tree])
    kept = count > _FRESH + 1  # the block holds the tree, too
    return dataclasses.replace(block, tree=copy_value(block.tree) if kept else _own_inside(block.tree))


def own_block(block: Block) -> Block:
    """A block with a copy in place of each object that something else refers to. Only the caller may hold the block."""
    return own_columns(block) if isinstance(block, Columns) else own(block)


def copy_block(block: Block) -> Block:
    """A copy of a block that shares no object with it that a function could write into."""
    if isinstance(block, Columns):
        return dataclasses.replace(block, tree=copy_value(block.tree))
    return list(map(copy_value, block))


def copy_value(value: Any) -> Any:
    """A copy that shares no object with `value` that a function could write into.

    Containers, arrays, dataclasses and objects that say how they are copied (`__deepcopy__`) are copied. An object of
    any other class is not copied: a copy of a tokenizer or of an open file would do harm.
    """
    kind = type(value)
    if kind is dict:
        if _all_immutable(map(type, value.values())):
            return value.copy()
        return {key: part if type(part) in IMMUTABLE else copy_value(part) for key, part in value.items()}
    if kind is np.ndarray:
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy("K")
    if kind in IMMUTABLE:
        return value
    if kind is list or kind is tuple:
        return kind(value) if _all_immutable(map(type, value)) else kind([copy_value(part) for part in value])
    return _copier(kind)(value)


def _own_entries(entries: dict[Any, Any]) -> None:
    """Copies the values of a dict that something else refers to. Only the caller holds the dict."""
    rest = False
    for key, value in entries.items():  # first the usual records: numbers, and views of arrays that the source keeps
        kind = type(value)
        if kind not in IMMUTABLE:
            if kind is np.ndarray and type(value.base) is np.ndarray and getrefcount(value.base) > _FRESH_BASE:
                entries[key] = copy_value(value)
            else:
                rest = True
    if rest:
        value = None  # this variable would count as another reference to the last value
        for key, count in zip(list(entries), list(map(getrefcount, entries.values()))):
            if type(entries[key]) not in IMMUTABLE:
                entries[key] = copy_value(entries[key]) if count > _FRESH else _own_inside(entries[key])


def _own_inside(value: Any) -> Any:
    """`value`, whose parts are copied where something else refers to them. Only the caller holds `value` itself."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return value if _owns_memory(value) else copy_value(value)
    if isinstance(value, dict):
        _own_entries(value)
    elif isinstance(value, list):
        own(value)
    elif isinstance(value, tuple):
        parts = [
            part if type(part) in IMMUTABLE else copy_value(part) if count > _FRESH else _own_inside(part)
            for part, count in zip(value, list(map(getrefcount, value)))
        ]
        if any(map(operator.is_not, parts, value)):
            return kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    elif kind is Record:
        value.data = own([value.data])[0]
    elif hasattr(value, "__dict__") and dataclasses.is_dataclass(kind):
        _own_entries(vars(value))
    elif isinstance(value, np.void) or dataclasses.is_dataclass(kind) or hasattr(kind, "__deepcopy__"):
        return copy_value(value)  # an entry of an array, fields in slots, a tensor: each may be a view of memory in use
    return value


def _owns_memory(value: np.ndarray) -> bool:
    """Whether nothing else refers to the memory of an array. Only the caller holds the array itself."""
    kind = type(value.base)
    if kind is _NONE:
        return not value.dtype.hasobject
    if kind is np.ndarray:
        return getrefcount(value.base) <= _FRESH_BASE and value.base.base is None  # type: ignore[union-attr]
    if kind is bytearray:  # a batch, see `memory.join`
        return getrefcount(value.base) <= _FRESH_BASE
    return kind is bytes  # nobody can write into it. Any other object may be a view of memory in use


_CONTAINERS = (dict, list, tuple, set, bytearray, collections.deque, collections.UserDict, collections.UserList)


@functools.lru_cache(maxsize=1024)
def _copier(kind: type) -> Callable[[Any], Any]:
    """The function that copies objects of a class. It returns objects that need no copy as they are."""
    if issubclass(kind, np.ndarray):
        return lambda value: copy.deepcopy(value) if value.dtype.hasobject else value.copy()
    if issubclass(kind, np.void):  # an entry of a structured array: it looks into the array
        return lambda value: value.copy()
    if kind is Record:
        return lambda record: Record(record.metadata, copy_value(record.data))
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return lambda value: kind._make(map(copy_value, value))  # type: ignore[attr-defined]
    package = kind.__module__.partition(".")[0]
    if package in ("jax", "jaxlib"):
        return lambda value: value  # their arrays cannot be changed
    if package == "PIL" and hasattr(kind, "copy"):
        return _copy_image
    known = (*_CONTAINERS, Mapping, array.array)
    if issubclass(kind, known) or dataclasses.is_dataclass(kind) or hasattr(kind, "__deepcopy__"):
        return _deeply
    return lambda value: value


def _deeply(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # a part of it cannot be copied: a lock, an open file
        return value


def _copy_image(image: Any) -> Any:
    """A copy of a Pillow image that keeps `format`, which `image.copy()` drops."""
    copied_image = image.copy()
    copied_image.format = image.format
    return copied_image
