"""Makes elements private: a private element shares no memory with anything else."""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import enum
import functools
import io
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

import numpy as np

from bushel._src.base.records import Record

IMMUTABLE = frozenset(
    {int, float, complex, bool, str, bytes, type(None), range, type(Ellipsis)}
    | {kind for kind in np.sctypeDict.values() if not issubclass(kind, (np.void, np.object_))}
)
"""Types whose objects cannot be changed: they are never copied."""

_all_immutable = IMMUTABLE.issuperset

COUNTS = "t" not in getattr(sys, "abiflags", "")
"""Whether reference counts are exact. Python without a GIL splits them; there every element is copied."""

# What `sys.getrefcount` says of an object that only one container holds. `map` calls it from C, so that the result
# does not depend on how a version of Python treats local variables.
FRESH = next(map(getrefcount, [object()]))


def _count_base(value: np.ndarray) -> int:
    """Return the references to the base of an array, and one of this call. No variable may hold the base."""
    return getrefcount(value.base)


_VIEW = np.zeros(2)[:1]
_FRESH_BASE = _count_base(_VIEW)  # of the memory of a view, which the view alone holds

_NONE = type(None)
_OWNS, _WRITES = 0x0004, 0x0400
_OWNS_AND_WRITES = _OWNS | _WRITES
"""Bits of `array.flags.num`: the array has memory of its own, and can be written."""


def make_private(rows: list[Any], *, received: bool = False) -> list[Any]:
    """Return the rows, with a copy in place of each object that something else refers to.

    Only the list may hold the rows.

    >>> kept = np.zeros(2)
    >>> row, = make_private([{"kept": kept, "fresh": np.zeros(2)}])
    >>> row["kept"] += 1
    >>> kept
    array([0., 0.])

    Args:
      rows: the elements; the list itself changes.
      received: whether the rows were unpickled from a message. The memory that their arrays look into then belongs to
        these arrays, although a memoryview holds it.
    """
    if len(rows) == 1 and type(rows[0]) is dict and COUNTS:  # the usual case: a shorter way through what follows
        (count,) = map(getrefcount, rows)
        if count > FRESH:
            rows[0] = copy_value(rows[0])
        else:
            _make_entries_private(rows[0], received)
        return rows
    if _all_immutable(map(type, rows)):
        return rows
    if not COUNTS:
        rows[:] = map(copy_value, rows)
        return rows
    for place, count in enumerate(list(map(getrefcount, rows))):
        row = rows[place]
        kind = type(row)
        if kind in IMMUTABLE:
            continue
        if count > FRESH:
            rows[place] = copy_value(row)
        elif kind is dict:
            _make_entries_private(row, received)
        elif kind is not np.ndarray:
            rows[place] = make_fresh_private(row, received)
        elif not _is_private_array(row, received):
            rows[place] = copy_value(row)
    return rows


def copy_value(value: Any) -> Any:
    """Return a copy that shares no memory with `value`, in which no two leaves share memory.

    Raises a TypeError that names the class of an object that cannot be copied.
    """
    try:
        return _copy(value)
    except RecursionError:  # a container that contains itself
        return _copy_object(value)


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is dict:
        if _all_immutable(map(type, value.values())):
            return value.copy()
        return {key: part if type(part) in IMMUTABLE else _copy(part) for key, part in value.items()}
    if kind is np.ndarray:
        return _copy_array(value)
    if kind is list or kind is tuple:
        return kind(value) if _all_immutable(map(type, value)) else kind([_copy(part) for part in value])
    return _find_copier(kind)(value)


def _copy_array(value: np.ndarray) -> np.ndarray:
    return _copy_objects(value) if value.dtype.hasobject else value.copy("K")


def _make_entries_private(entries: dict[Any, Any], received: bool) -> None:
    """Copy the values of a dict that something else refers to. Only the caller holds the dict."""
    if _all_immutable(map(type, entries.values())):
        return
    # The counts come first: the tuple of `items` is one more reference to the value.
    for count, (key, value) in zip(list(map(getrefcount, entries.values())), entries.items()):
        kind = type(value)
        if kind in IMMUTABLE:
            continue
        if kind is np.ndarray:
            if count > FRESH or not _is_private_array(value, received):
                entries[key] = _copy_array(value)
        elif count > FRESH:
            entries[key] = copy_value(value)
        else:
            entries[key] = make_fresh_private(value, received)


def make_fresh_private(value: Any, received: bool) -> Any:
    """Return `value`, whose parts are copied where something else refers to them.

    Only the caller holds `value` itself.
    """
    kind = type(value)
    if kind is np.ndarray:
        return value if _is_private_array(value, received) else copy_value(value)
    if kind is dict:
        _make_entries_private(value, received)
        return value
    if kind is list:
        return make_private(value, received=received)
    if kind is tuple or _is_named_tuple(kind):
        if _all_immutable(map(type, value)):
            return value
        counts = list(map(getrefcount, value))
        parts = [
            part
            if type(part) in IMMUTABLE
            else copy_value(part)
            if count > FRESH
            else make_fresh_private(part, received)
            for part, count in zip(value, counts)
        ]
        return tuple.__new__(kind, parts) if any(map(operator.is_not, parts, value)) else value
    if kind is Record:
        value.data = make_private([_take_data(value)], received=received)[0]
        return value
    if _is_private(value, received):
        return value
    with contextlib.suppress(_NotCopied):
        return copy_value(value)
    _make_children_private(value, received)  # it has a lock or a generator, for example
    return value


def _make_children_private(value: Any, received: bool) -> None:
    """Copy the parts of an object to which something else refers. Only the caller holds the object itself."""
    parts = list(list_children(value))
    counts = list(map(getrefcount, map(operator.itemgetter(0), parts)))
    while parts:
        (part, put), count = parts.pop(), counts.pop()
        if type(part) in IMMUTABLE or _is_passed(type(part)):
            continue
        private_part = (
            copy_value(part) if count > FRESH + 1 else make_fresh_private(part, received)
        )  # `parts` has held it, too
        if private_part is not part:
            put(private_part)


def _take_data(record: Record[Any]) -> Any:
    """Return the data of a record, which the record then no longer holds."""
    data, record.data = record.data, None
    return data


def _is_private_array(value: np.ndarray, received: bool) -> bool:
    """Return whether nothing else refers to the memory of an exact array, and it can be written.

    Only the caller holds it.
    """
    kind = type(value.base)
    if kind is _NONE:
        is_private = value.flags.num & _OWNS_AND_WRITES == _OWNS_AND_WRITES
    elif kind is np.ndarray:
        if _count_base(value) > _FRESH_BASE:
            return False
        base: Any = value.base
        # NumPy unpickles a large array as a view of an array that looks into the message, or into a slot of its own.
        is_new = base.flags.num & _OWNS if base.base is None else received and type(base.base) is memoryview
        is_private = bool(is_new) and not getweakrefcount(base) and bool(value.flags.num & _WRITES)
    else:
        is_alone = kind is bytearray and _count_base(value) <= _FRESH_BASE
        is_private = (is_alone or (received and kind is memoryview)) and bool(value.flags.num & _WRITES)
    return is_private and not value.dtype.hasobject and not getweakrefcount(value)


def _is_private(value: Any, received: bool) -> bool:
    """Return whether nothing else refers to the parts of an object that only the caller holds.

    Looks, and changes nothing.
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return True
    if kind is np.ndarray:
        return _is_private_array(value, received)
    if kind is dict:
        return _are_private(value.values(), received)
    if kind is list or kind is tuple or _is_named_tuple(kind):
        return _are_private(value, received)
    if getweakrefcount(value):
        return False
    if kind in _MEMORY:
        return True
    if not _has_no_hidden_state(kind):
        return False
    (count,) = map(getrefcount, [vars(value)])  # the object holds it, too, and other objects may
    return count <= FRESH + 1 and _are_private(vars(value).values(), received)


def _are_private(parts: Iterable[Any], received: bool) -> bool:
    if _all_immutable(map(type, parts)):
        return True
    # A list of the parts would be one more reference to each.
    counts = list(map(getrefcount, parts))
    return all(
        type(part) in IMMUTABLE or _is_passed(type(part)) or (count <= FRESH and _is_private(part, received))
        for count, part in zip(counts, parts)
    )


_MEMORY = frozenset({bytearray, array.array, io.BytesIO, io.StringIO, set, frozenset})
"""Types whose objects hold their memory alone. A view of the memory refers to the object."""


class _Plain:
    """A class without hidden state."""


@functools.lru_cache(maxsize=1024)
def _has_no_hidden_state(kind: type) -> bool:
    """Return whether all that objects of a class hold is in their `__dict__`, and the class does not say how to copy
    them.

    An object with slots, or with state in C, is larger than one of an empty class.
    """
    return (
        kind.__basicsize__ == _Plain.__basicsize__
        and not kind.__itemsize__
        and bool(kind.__dictoffset__)
        and not hasattr(kind, "__deepcopy__")
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
    )


@functools.lru_cache(maxsize=1024)
def _is_named_tuple(kind: type) -> bool:
    is_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return is_tuple and not kind.__dictoffset__ and kind.__basicsize__ == tuple.__basicsize__


class _NotCopied(TypeError):
    """An object cannot be copied."""


_PASSED = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    np.ufunc,
    np.dtype,
    enum.Enum,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Thread,
)
"""Classes of objects that are no data: they pass the gate as they are."""


@functools.lru_cache(maxsize=1024)
def _is_passed(kind: type) -> bool:
    """Return whether objects of a class pass as they are: they cannot be changed, or a copy of them would do harm."""
    if issubclass(kind, _PASSED) or getattr(kind, "_is_no_data", False) is True:
        return True
    if issubclass(kind, io.IOBase):  # an open file; but BytesIO and StringIO are memory
        return not issubclass(kind, (io.BytesIO, io.StringIO))
    if issubclass(kind, np.generic):
        return not issubclass(kind, np.void) and not kind.__dictoffset__
    package = kind.__module__.partition(".")[0]
    if package == "pyarrow":
        return True
    jax = sys.modules.get("jax")
    return jax is not None and package in ("jax", "jaxlib") and issubclass(kind, jax.Array)


@functools.lru_cache(maxsize=1024)
def _find_copier(kind: type) -> Callable[[Any], Any]:
    """Return the function that copies objects of a class. It returns objects that need no copy as they are."""
    if _is_passed(kind):
        return _pass
    if issubclass(kind, np.ndarray):
        return _copy_subclass
    if issubclass(kind, np.void):  # an entry of a structured array: it looks into the array
        return lambda value: _copy_object(value) if value.dtype.hasobject else value.copy()
    if kind is Record:
        return lambda record: Record(record.metadata, copy_value(record.data))
    if _is_named_tuple(kind):
        return lambda value: tuple.__new__(kind, map(_copy, value))
    if kind is memoryview:
        return _copy_view
    if kind is types.MappingProxyType:
        return lambda value: types.MappingProxyType(_copy(dict(value)))
    package = kind.__module__.partition(".")[0]
    if package == "PIL" and hasattr(kind, "copy"):
        return _copy_image
    if package == "torch" and kind.__name__ == "Tensor":
        return _copy_tensor
    if package == "pandas":
        return _copy_by_pickle
    if issubclass(kind, (dict, list, collections.deque)) and not hasattr(kind, "__deepcopy__"):
        return _copy_container
    return _copy_object


def _pass(value: Any) -> Any:
    return value


def _copy_objects(value: np.ndarray) -> np.ndarray:
    """Return a copy of an array of objects, and of the objects in it."""
    if value.dtype != object:  # a structured one, with objects in some of its fields
        return _copy_object(value)
    parts = value.reshape(-1).tolist()
    kinds = set(map(type, parts))
    if all(kind in IMMUTABLE or _is_passed(kind) for kind in kinds):
        return value.copy()
    copied = np.empty(value.size, object)
    for place, part in enumerate(parts):
        copied[place : place + 1] = _wrap(part if type(part) in IMMUTABLE else copy_value(part))
    return copied.reshape(value.shape)


def _wrap(part: Any) -> np.ndarray:
    """Return an array with one object: NumPy would otherwise take an array or a list for several."""
    wrapped = np.empty(1, object)
    wrapped[0] = part
    return wrapped


def _copy_subclass(value: np.ndarray) -> np.ndarray:
    """Return a copy of a memory map, of a masked array, or of an array of the user's own class with its attributes."""
    if value.dtype.hasobject or isinstance(value, np.ma.MaskedArray):  # `copy` would share the fill value
        return _copy_object(value)
    copied = value.copy()
    if not isinstance(value, np.memmap):
        for name, part in getattr(copied, "__dict__", {}).items():
            copied.__dict__[name] = copy_value(part)
    return copied


def _copy_view(value: memoryview) -> memoryview:
    return build_view(bytearray(value.tobytes()), value.format, value.shape)


def build_view(memory: bytearray, form: Any, shape: Any) -> memoryview:
    """Return a memoryview that can be written."""
    flat = memoryview(memory).cast(form)
    return flat if len(shape) == 1 else flat.cast("B").cast(form, shape)


def _copy_image(image: Any) -> Any:
    """Return a copy of a Pillow image that keeps `format`, which `image.copy()` drops."""
    copied_image = image.copy()
    copied_image.format = image.format
    return copied_image


def _copy_tensor(tensor: Any) -> Any:
    """Return a copy of a PyTorch tensor. A deep copy would copy all of the memory that the tensor looks into."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _copy_by_pickle(value: Any) -> Any:
    """Return a copy with the objects in it: a deep copy of a pandas frame would share them."""
    import pickle

    return pickle.loads(pickle.dumps(value, protocol=5))


def _copy_object(value: Any, copier: Callable[[Any], Any] | None = None) -> Any:
    """Return a copy of any object, by default a deep one.

    Raises a TypeError that names its class if it cannot be copied.
    """
    try:
        return (copier or _deep_copy)(value)
    except Exception as error:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise _NotCopied(
            f"An element contains an object of class {name}, to which something else refers. It cannot be copied "
            f"({type(error).__name__}: {error}). Elements must be private, so that a function may write into them. "
            "Return a new object for each element, or leave it out of the elements. If the object may be shared, give "
            "its class a method `__deepcopy__(self, memo)` that returns `self`."
        ) from error


def _deep_copy(value: Any) -> Any:
    """Return a deep copy in which no array, list, dict or image is twice.

    Objects of the user's classes that are in it twice stay as they are, since they may point at each other.
    """
    memo: dict[int, Any] = {}
    memo[id(memo)] = _Copied(memo)
    return copy.deepcopy(value, memo)


class _Copied(list[Any]):
    """The objects that `copy.deepcopy` has copied: it keeps them alive in `memo[id(memo)]`, when each copy is complete.

    The memo forgets the copy of an array, list or dict. So the next one that is the same object gets a copy of its own.
    """

    def __init__(self, memo: dict[int, Any]):
        self._memo = memo

    def append(self, original: Any) -> None:
        super().append(original)
        if isinstance(original, _LEAVES) or type(original).__module__.partition(".")[0] in _DATA_PACKAGES:
            self._memo.pop(id(original), None)


_LEAVES = (
    np.ndarray, np.void, bytearray, array.array, io.BytesIO, list, tuple, dict, set, collections.deque,
    collections.UserList, collections.UserDict, collections.ChainMap, types.SimpleNamespace,
)  # fmt: skip
_DATA_PACKAGES = frozenset({"PIL", "pandas", "scipy", "torch"})


def _copy_container(value: Any) -> Any:
    """Return a copy of a list, dict or deque of a class of its own, in which each part is copied by itself."""
    copied = _copy_object(value, copy.copy)
    if copied is value:  # the class says that it needs no copy, but its parts do
        return _copy_object(value)
    for part, put in list_children(copied):
        put(_copy(part))
    if isinstance(value, dict):
        _join_attributes(value, copied)
    return copied


def _join_attributes(value: dict[Any, Any], copied: dict[Any, Any]) -> None:
    """Make attributes of a copy its entries again, where the entries of a dict are its attributes, too.

    With `self.__dict__ = self`, each entry is an attribute. Pickle makes two dicts of that, with the same objects.
    """
    attributes = getattr(value, "__dict__", {})
    names = [name for name, part in attributes.items() if dict.get(value, name, attributes) is part]
    if attributes is value or (names and len(names) == len(attributes) == len(value)):
        object.__setattr__(copied, "__dict__", copied)
    elif names:
        vars(copied).update((name, dict.__getitem__(copied, name)) for name in names)


def list_children(value: Any) -> Iterator[tuple[Any, Callable[[Any], None]]]:
    """Yield the parts of an object that can be replaced, each with the function that does it."""
    if isinstance(value, type):
        return
    if isinstance(value, dict):
        for key, part in list(dict.items(value)):
            yield part, functools.partial(dict.__setitem__, value, key)
    elif isinstance(value, (list, collections.deque)):
        kind = list if isinstance(value, list) else collections.deque
        for place, part in enumerate(list(value)):
            yield part, functools.partial(kind.__setitem__, value, place)
    elif isinstance(value, np.ndarray) and value.dtype == object:
        for index in np.ndindex(value.shape):
            yield value[index], functools.partial(value.__setitem__, index)
    for name, part in list(getattr(value, "__dict__", {}).items()):
        yield part, functools.partial(vars(value).__setitem__, name)
    for base in type(value).__mro__:
        for name, slot in list(vars(base).items()) if "__slots__" in vars(base) else []:
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                yield getattr(value, name), functools.partial(slot.__set__, value)
