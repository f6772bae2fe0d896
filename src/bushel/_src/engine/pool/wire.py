"""Messages between consumer and workers: pickles of any object, and blocks whose large arrays are in a slot.

Definitions that workers could not import are sent by value.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import io
import os
import pickle
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, cast

import cloudpickle
import numpy as np

from bushel._src.base import memory as base_memory
from bushel._src.base.exact_values import TEXT_REDUCERS, DispatchTable
from bushel._src.base.memory import ALIGNMENT
from bushel._src.base.private_elements import build_view
from bushel._src.base.public import load_door
from bushel._src.engine.shared_memory import Slot


def send_by_value(name: Any) -> None:
    """Make cloudpickle send what module `name` defines by value, if no import would find the module."""
    module = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
    if module is not None and not _is_module_importable(name.partition(".")[0], _get_file(name), tuple(sys.path)):
        cloudpickle.register_pickle_by_value(module)


def _get_file(name: str) -> str | None:
    """Return the file of a top-level module; None for a module inside a package."""
    return None if "." in name else getattr(sys.modules[name], "__file__", None)


@functools.lru_cache(maxsize=4096)
def _is_module_importable(name: str, file: str | None, path: tuple[str, ...]) -> bool:
    """Return whether an import of a top-level module or package would find it, in `file` if that is known.

    `path` is `sys.path`; it is an argument so that the cache forgets its answers when the path changes. Modules inside
    a package are not searched for: the package may create them when it is imported.
    """
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    spec = next((spec for find in finders if find is not None and (spec := find(name, None)) is not None), None)
    if spec is None or file is None or spec.origin is None:
        return spec is not None
    try:
        # Another file of the same name is another module: a worker would import the wrong one.
        return os.path.samefile(spec.origin, file)
    except OSError:  # a module inside a zip archive, or one that is built in, has no file to compare
        return True


_CACHED = type(functools.lru_cache(len))
_NAMED: tuple[Any, ...] = tuple(
    getattr(typing, name) for name in ("NewType", "ParamSpec", "TypeVarTuple", "TypeAliasType") if hasattr(typing, name)
)
KINDS: tuple[Any, ...] = (_CACHED, functools.cached_property, *_NAMED)
"""The types of these definitions. A function made by `functools.singledispatch` is one, too."""


def reduce_definition(value: Any) -> Any:
    """Return what `__reduce__` would return for a definition that no worker can import.

    NotImplemented for other objects.
    """
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
    """Return whether a worker finds an object by its name."""
    found = cloudpickle.cloudpickle._lookup_module_and_qualname(value, name=_get_name(value))
    return found is not None and not cloudpickle.cloudpickle._is_registered_pickle_by_value(found[0])


def _get_name(value: Any) -> str:
    return getattr(value, "__qualname__", value.__name__)


def _list_arguments(value: Any) -> tuple[Any, ...]:
    """Return what the type of a definition for type checkers takes, behind the name."""
    if isinstance(value, typing.NewType):
        return (value.__supertype__,)
    return (value.__value__,) if hasattr(value, "__value__") else ()


def _build_cached(function: Callable[..., Any], size: int | None, typed: bool) -> Any:
    """Return a cached function with an empty cache: each worker fills its own."""
    return functools.lru_cache(size, typed)(function)


def _build_dispatch(registry: dict[type, Callable[..., Any]]) -> Any:
    dispatch = functools.singledispatch(registry.pop(object))
    for kind, function in registry.items():
        dispatch.register(kind, function)
    return dispatch


IN_BAND_BYTES = 4096
"""Smaller arrays are sent inside the message. Otherwise a label that the user keeps would hold a whole slot."""


def _reduce_array(array: np.ndarray) -> Any:
    """Pickle an array with its data as one out-of-band buffer, for all strides and nearly all dtypes.

    numpy itself does that only for contiguous arrays of its own dtypes. It copies others into the pickle.
    """
    dtype = array.dtype
    if dtype.kind in "biufc" and array.flags.c_contiguous and array.size and not dtype.metadata:
        # The usual case, in half the time that numpy's own pickle takes.
        return _build_array, (pickle.PickleBuffer(array.data), dtype.str, array.shape)
    if dtype.hasobject or not dtype.itemsize:
        return array.__reduce_ex__(5)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = np.ascontiguousarray(array)
    if dtype.kind in "biufcSU" and not dtype.metadata:
        return array.__reduce_ex__(5)
    # Dates, bfloat16 and other dtypes have no buffer protocol; their bytes have.
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _build_array, (pickle.PickleBuffer(flat.data), dtype, array.shape)


def _build_array(buffer: Any, dtype: np.dtype[Any] | str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(buffer, dtype=np.uint8).view(dtype).reshape(shape)


def _reduce_view(view: memoryview) -> Any:
    """Pickle a memoryview as one that can be written. cloudpickle would make bytes of it."""
    return build_view, (bytearray(view.tobytes()), view.format, view.shape)


_REDUCERS: dict[Any, Any] = {np.ndarray: _reduce_array, memoryview: _reduce_view, **TEXT_REDUCERS}


class _PlainPickler(pickle.Pickler):
    """Python's own pickler, in C and fast, with our way to reduce arrays and texts."""

    dispatch_table: ClassVar[Any] = DispatchTable(_REDUCERS)


class _CloudPickler(cloudpickle.Pickler):
    """cloudpickle, with our way to reduce arrays and texts, and with care for classes that are sent by value.

    A worker has a copy of such a class. It sends the class back by its number, so that objects of the class that reach
    the consumer have the consumer's own class, and `isinstance` holds. Modules that no import finds are sent by value.
    """

    dispatch_table: ClassVar[Any] = collections.ChainMap[Any, Any](
        _REDUCERS, cast(Any, cloudpickle.Pickler.dispatch_table)
    )
    reduce_first: Callable[[Any], Any] | None = None
    """Reduces an object before anything else does, or returns NotImplemented."""

    def reducer_override(self, obj: Any) -> Any:
        if self.reduce_first is not None and (reduced := self.reduce_first(obj)) is not NotImplemented:
            return reduced
        number = _CLASS_NUMBERS.get(obj) if isinstance(obj, type) else None
        if number in _from_pipelines:
            return _get_class, (number,)
        if isinstance(obj, (type, types.FunctionType)):
            load_door(obj)
            send_by_value(obj.__module__)
            if (reduced := reduce_definition(obj)) is not NotImplemented:
                return reduced
            return _keep_slots(obj, super().reducer_override(obj))
        elif isinstance(obj, KINDS):
            send_by_value(getattr(obj, "__module__", None))
            if (reduced := reduce_definition(obj)) is not NotImplemented:
                return reduced
        elif isinstance(obj, types.ModuleType):
            send_by_value(obj.__name__)
        return super().reducer_override(obj)


def _keep_slots(kind: Any, reduced: Any) -> Any:
    """Return what cloudpickle makes of a class, with its `__slots__`.

    cloudpickle sets them when the class is complete, so that they do nothing. An object of such a class could not come
    back from a worker, because it would have a `__dict__` there.
    """
    if reduced is NotImplemented or reduced[0] is not cloudpickle.cloudpickle._make_skeleton_class:
        return reduced
    if "__slots__" not in vars(kind) or issubclass(kind, tuple):  # NamedTuple refuses them
        return reduced
    build, (metaclass, name, bases, namespace, *more), *rest = reduced
    return build, (metaclass, name, bases, {**namespace, "__slots__": kind.__slots__}, *more), *rest


# cloudpickle gives each class that it sends by value a number, and both processes remember the numbers.
_CLASS_NUMBERS = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS
_CLASSES = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
_from_pipelines: set[str] = set()


@contextlib.contextmanager
def track_pipeline_classes() -> Iterator[None]:
    """In a worker: record that the classes which are loaded inside this context come from the consumer.

    Only those are sent back by number. A class that was made in the worker is unknown to the consumer.
    """
    before = set(_CLASS_NUMBERS.values())
    yield
    _from_pipelines.update(set(_CLASS_NUMBERS.values()) - before)


def list_sent_classes() -> list[type]:
    """In the consumer: the classes that workers may send by number. Keep the list as long as workers run."""
    return list(_CLASSES.values())


def _get_class(number: str) -> type:
    return _CLASSES[number]


def dumps(value: Any, buffer_callback: Any = None, reduce_first: Callable[[Any], Any] | None = None) -> bytes:
    """Return pickle any object for another process, also lambdas and classes of the user's main module.

    Args:
      reduce_first: object -> what `__reduce__` would return, or NotImplemented for the usual way.
    """
    with io.BytesIO() as file:
        pickler = _CloudPickler(file, protocol=5, buffer_callback=buffer_callback)
        pickler.reduce_first = reduce_first
        pickler.dump(value)
        return file.getvalue()


@dataclasses.dataclass(slots=True)
class Packed:
    """An object as a message: its pickle, and its large arrays either in a slot or as copies in the message."""

    pickled: bytes
    extents: list[tuple[int, int]] | None
    """(offset, size) of each large array in the slot; None if the arrays are in `copies`."""
    copies: list[bytes] | list[memoryview]
    """The large arrays, if they are not in the slot. A memoryview is aligned already."""
    size_bytes: int
    """How many bytes the pickle and the large arrays have."""
    slot_bytes: int
    """How large a slot must be for it, with everything that was allocated there while it was computed."""

    @property
    def heap_bytes(self) -> int:
        """How many of its bytes are not in a slot."""
        return len(self.pickled) + sum(map(len, self.copies))

    def __reduce__(self) -> Any:  # faster than that of a dataclass with slots, which lists its fields each time
        return Packed, (self.pickled, self.extents, self.copies, self.size_bytes, self.slot_bytes)


Pickled = tuple[bytes, list[pickle.PickleBuffer]]
"""An object as a pickle, and its large arrays as buffers beside the pickle."""


def pickle_for_consumer(value: Any, in_band_bytes: float = IN_BAND_BYTES) -> Pickled:
    """Pickle an object in a worker. Arrays with fewer than `in_band_bytes` bytes become part of the pickle.

    Python's own pickler is tried first: it is faster, and sends functions and classes by name. The consumer knows
    these names.
    """
    buffers: list[pickle.PickleBuffer] = []
    keep = _make_buffer_callback(buffers, in_band_bytes)
    try:
        with io.BytesIO() as file:
            _PlainPickler(file, protocol=5, buffer_callback=keep).dump(value)
            return file.getvalue(), buffers
    except Exception:  # a lambda, or a class that was sent by value
        buffers.clear()
        return dumps(value, keep), buffers


def pickle_for_worker(value: Any) -> Pickled:
    """Pickle an object in the consumer. A worker has not run the user's main module, so no name in it can be sent."""
    buffers: list[pickle.PickleBuffer] = []
    return dumps(value, _make_buffer_callback(buffers, IN_BAND_BYTES)), buffers


def _make_buffer_callback(buffers: list[pickle.PickleBuffer], in_band_bytes: float) -> Callable[[Any], bool]:
    """Return a callback for pickle that adds large arrays to `buffers` and leaves small ones in the pickle."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < in_band_bytes:
            return True
        buffers.append(buffer)
        return False

    return keep


def dumps_for_consumer(value: Any) -> bytes:
    """Pickle an object in a worker, with its arrays inside the pickle."""
    return pickle_for_consumer(value, in_band_bytes=float("inf"))[0]


def lay_out(sizes: Iterable[int], start: int = 0) -> tuple[list[tuple[int, int]], int]:
    """Return (offset, size) of buffers that lie one after the other, each aligned, and the end of the last one."""
    extents, end = [], start
    for size in sizes:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        extents.append((offset, size))
        end = offset + size
    return extents, end


def pack(value: Any, slot: Slot | None) -> Packed:
    """Pack an object for the consumer. Its large arrays go into the slot, all of them or none.

    An array that was made in the slot stays where it is and is not copied.
    """
    body, buffers = pickle_for_consumer(value)
    size = sum(buffer.raw().nbytes for buffer in buffers)
    wanted = size + ALIGNMENT * len(buffers) + (0 if slot is None else slot.used)
    extents = _copy_into_slot(buffers, slot) if slot is not None else None
    if slot is not None and extents is not None:
        wanted = slot.used  # without the arrays that were made there, which `size` counts once more
    copies = [] if extents is not None else [bytes(buffer.raw()) for buffer in buffers]
    return Packed(body, extents, copies, size + len(body), wanted)


def _copy_into_slot(buffers: list[pickle.PickleBuffer], slot: Slot) -> list[tuple[int, int]] | None:
    """Return (offset, size) of each buffer in the slot; None if they do not fit."""
    extents: list[tuple[int, int]] = []
    for buffer in buffers:
        raw = buffer.raw()
        flat = np.frombuffer(raw, dtype=np.uint8)
        offset = slot.find_offset(flat.__array_interface__["data"][0], raw.nbytes)
        if offset is None:
            offset = slot.allocate(raw.nbytes)
            if offset is None:
                return None
            np.frombuffer(slot.view(offset, raw.nbytes), dtype=np.uint8)[:] = flat
        extents.append((offset, raw.nbytes))
    return extents


def unpack(packed: Packed, memory: memoryview | None) -> Any:
    """Return the object again. Its large arrays look into `memory`, the slot, or into aligned copies."""
    if packed.extents is None:
        buffers = [data if isinstance(data, memoryview) else copy_aligned(data) for data in packed.copies]
        return pickle.loads(packed.pickled, buffers=buffers)
    if not packed.extents:
        return pickle.loads(packed.pickled)
    assert memory is not None
    return pickle.loads(packed.pickled, buffers=[memory[offset : offset + size] for offset, size in packed.extents])


def copy_aligned(data: Any) -> memoryview:
    """Copy bytes to where JAX on a CPU can use them without another copy."""
    array = base_memory.empty((len(data),), np.uint8)
    array[:] = np.frombuffer(data, dtype=np.uint8)
    return array.data
