"""Reads what objects hold, without running anything of their classes: attributes, contents, tables in memory."""

from __future__ import annotations

import _thread
import collections
import functools
import gc
import io
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base.code_inspection import is_users_code, is_users_file
from bushel._src.base.state_names import rename_keys

SAMPLES = 64  # elements of a long sequence, or rows of a large array, that a sampled digest reads
FULL_BYTES = 4 << 20
"""A sampled digest reads arrays, and texts in lists, up to this size in full."""
READS_FILES = {"h5py", "zarr", "tensorstore", "dask", "netCDF4", "h5netcdf", "tables", "lance", "tiledb", "blosc2"}
"""Libraries whose arrays are read when they are asked for their values: a terabyte, perhaps."""
_HANDLES: tuple[type, ...] = (
    io.IOBase, threading.Thread, threading.Condition, threading.Event, _thread._local, type(threading.Lock()),
    type(threading.RLock()), types.GeneratorType, types.FrameType, types.CoroutineType,
)  # fmt: skip
describe: list[Callable[[Any], Any]] = []
"""Functions of higher layers. Each returns plain data that stand for an object it knows, or None."""


def find_description(value: Any) -> Any:
    for function in describe:
        found = function(value)
        if found is not None:
            return found
    return None


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object has, without running anything of its class; of ours, by the keys of
    states.
    """
    kind = type(value)
    attributes = dict(value.__dict__) if isinstance(getattr(value, "__dict__", None), dict) else {}
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, functools.cached_property):
                attributes.pop(name, None)  # it follows from the others, and may not be computed yet
            elif isinstance(member, types.MemberDescriptorType) and not name.startswith("__"):
                try:
                    attributes.setdefault(name, member.__get__(value))
                except (AttributeError, TypeError):
                    continue
    return rename_keys(kind, attributes)


def read_attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def has_plain_attribute(holder: Any, name: str) -> bool:
    """Return whether `holder.name` is an entry of its `__dict__`, and nothing runs when it is read."""
    kind = type(holder)
    return (
        (kind is types.SimpleNamespace or kind.__getattribute__ is object.__getattribute__)
        and name in getattr(holder, "__dict__", {})
        and not any(name in vars(base) and hasattr(vars(base)[name], "__set__") for base in kind.__mro__)
        and find_description(holder) is None
    )


def function_of(member: Any) -> Any:
    for part in ("__func__", "fget", "func"):
        if hasattr(member, part):
            return getattr(member, part)
    return member if isinstance(member, types.FunctionType) else None


def names_of_module(kind: type) -> dict[str, Any]:
    """Return the names of the module of a class. A class of a script has a method or two that know them."""
    methods = [member for member in vars(kind).values() if isinstance(member, types.FunctionType)]
    loaded = sys.modules.get(kind.__module__)
    return methods[0].__globals__ if methods else {} if loaded is None else vars(loaded)


def folder_of(names: dict[str, Any]) -> str:
    """Return the folder of a module with a separator after it; nothing if the module has no file."""
    file = names.get("__file__")
    if not isinstance(file, str):
        return ""
    folder = os.path.dirname(os.path.abspath(file))
    return "" if folder == os.sep else folder + os.sep


def is_iterator(value: Any) -> bool:
    """Return whether reading an object would consume it."""
    kind = type(value)
    return hasattr(kind, "__next__") and hasattr(kind, "__iter__")


def is_open_handle(value: Any) -> bool:
    """Return whether a value is an open file, a lock, a thread, a generator or a frame."""
    return isinstance(value, _HANDLES)


def is_masked(value: Any) -> bool:
    """Return whether a value is a masked array.

    Before anyone has loaded numpy.ma, which takes 10 ms, no value can be one.
    """
    return "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def is_builtin(function: Any) -> bool:
    return isinstance(function, (types.BuiltinFunctionType, types.MethodDescriptorType, np.ufunc)) or (
        type(function).__module__ == "builtins"
        and type(function).__name__ in ("method-wrapper", "wrapper_descriptor", "classmethod_descriptor")
    )


def is_users_module(module: types.ModuleType) -> bool:
    return is_users_code(types.FunctionType(_EMPTY, vars(module)))


_EMPTY = compile("", "", "exec")


def is_users_callable(value: Any) -> bool:
    while not isinstance(value, types.FunctionType):
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, types.MethodType):
            value = value.__func__
        elif (inner := read_attribute(value, "__wrapped__")) is not None:
            value = inner
        else:
            return is_users_code(type(value)) and not is_builtin(value)
    return is_users_code(value)


def is_found_by_name(value: Any) -> bool:
    """Return whether an object of a library is what its module has under its name, and was not made for the user.

    `functools.wraps` gives a wrapper the name and the module of the user's function. So the module must be a library's.
    """
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None) or ""
    found: Any = sys.modules.get(module)
    if found is None or is_users_file(module, getattr(found, "__file__", None)):
        return False
    for part in name.split(".") if isinstance(name, str) else [""]:
        found = getattr(found, part, None) if found is not None else None
    return found is value


def show_int(value: int) -> str:
    """Its digits. Python refuses to write very large numbers in decimal."""
    return int.__repr__(value) if int.bit_length(value) <= 2048 else hex(value)


def read_content(value: Any) -> Any:
    """Return what a type written in C keeps for an object, or for one of a class that inherits from it; None if
    unknown.
    """
    kind = type(value)
    if issubclass(kind, (io.BytesIO, io.StringIO)):
        base: Any = io.BytesIO if issubclass(kind, io.BytesIO) else io.StringIO
        return base.getvalue(value)
    if issubclass(kind, collections.deque):
        return [object.__getattribute__(value, "maxlen"), list(collections.deque.__iter__(value))]
    if issubclass(kind, BaseException):
        return [object.__getattribute__(value, "args"), dict(object.__getattribute__(value, "__dict__"))]
    for base in kind.__mro__:
        name = f"{base.__module__.lstrip('_')}.{base.__qualname__}"
        if name in _CONTENTS:
            return _CONTENTS[name](value, base)
    return None


_CONTENTS: dict[str, Callable[[Any, Any], Any]] = {
    "array.array": lambda value, base: [base.typecode.__get__(value), memoryview(value).tobytes()],
    "ctypes._CData": lambda value, base: base.__reduce__(value)[1][1],  # an error if it holds addresses
    "datetime.date": lambda value, base: base.__reduce__(value)[1:],
    "datetime.datetime": lambda value, base: base.__reduce_ex__(value, 4)[1:],
    "datetime.time": lambda value, base: base.__reduce_ex__(value, 4)[1:],
    "datetime.timedelta": lambda value, base: base.__reduce__(value)[1:],
    "decimal.Decimal": lambda value, base: base.__reduce__(value)[1:],
    "functools.KeyWrapper": lambda value, base: find_inside(value),
    "struct.Struct": lambda value, base: base.format.__get__(value),
    "jaxlib._jax.pytree.PyTreeDef": lambda value, base: [value.node_data(), value.children()],
}
"""By type, how to read what it keeps. No method of a class of the user's own is called."""


def find_inside(value: Any) -> list[Any]:
    """Return the objects that an object written in C holds, but its type."""
    return [inside for inside in gc.get_referents(value) if inside is not type(value)]


def is_in_memory(value: Any) -> bool:
    """Return whether an object of a library is an array or a table in memory."""
    top = type(value).__module__.lstrip("_").partition(".")[0]
    if top in ("jax", "jaxlib", "numpy", "torch"):
        return hasattr(value, "__array__") and hasattr(value, "dtype")
    return isinstance(value, (collections.deque, collections.UserList)) or top == "array" or is_table(value, top)


def is_table(value: Any, top: str) -> bool:
    name = type(value).__name__
    if top == "pyarrow":
        return name in ("Table", "RecordBatch") or all(hasattr(value, each) for each in ("type", "to_pylist", "slice"))
    if top == "pandas":
        return hasattr(value, "to_numpy")
    return top == "polars" and name in ("DataFrame", "Series")


def take_samples(table: Any, top: str) -> Any:
    """Return some rows of a large table, for a sampled digest; the table itself if it is small."""
    if top == "pandas":
        size: Any = table.memory_usage()
        small, rows = np.sum(size) <= FULL_BYTES, getattr(table, "iloc", table)
    elif top == "polars":
        small, rows = table.estimated_size() <= FULL_BYTES, table
    else:
        small, rows = table.nbytes <= FULL_BYTES, None
    if small:
        return table
    places = np.linspace(0, len(table) - 1, SAMPLES).astype(int).tolist()
    return table.take(places) if rows is None else rows[places]


def read_table(value: Any, top: str) -> Any:
    """Return the values of a table in memory of pandas, polars or pyarrow; None for anything else."""
    if not is_table(value, top):
        return None
    name = type(value).__name__
    if top == "pandas" and name == "DataFrame":
        return [
            list(value.columns),
            _read_pandas(value.index),
            [_read_pandas(value.iloc[:, n]) for n in range(value.shape[1])],
        ]
    if top == "pandas" and name == "Series":
        return [value.name, _read_pandas(value.index), _read_pandas(value)]
    if top == "pandas" and hasattr(value, "to_numpy"):
        return _read_pandas(value)
    if top == "polars" and name in ("DataFrame", "Series"):
        value = value.to_arrow()
        top, name = "pyarrow", type(value).__name__
    if top == "pyarrow" and name in ("Table", "RecordBatch"):
        return [str(value.schema.remove_metadata()), [_read_arrow(column) for column in value.columns]]
    if top == "pyarrow" and hasattr(value, "type") and hasattr(value, "to_pylist") and hasattr(value, "slice"):
        return _read_arrow(value)
    return None


def _read_pandas(column: Any) -> list[Any]:
    kind = column.dtype  # of categories, the values do not say the codes
    known = [kind.categories.to_numpy(), kind.ordered] if hasattr(kind, "categories") else str(kind)
    return [known, column.to_numpy()]


def _read_arrow(column: Any) -> list[bytes]:
    """Return the values of a column in Arrow's format, cut in pieces of one size, so that chunks and slices do not
    count.
    """
    import pyarrow  # the column is one of its objects

    pieces = []
    for at in range(0, max(1, len(column)), 1 << 16):
        piece = column.slice(at, 1 << 16)
        piece = piece.combine_chunks() if isinstance(piece, pyarrow.ChunkedArray) else piece
        if isinstance(piece, pyarrow.ChunkedArray):
            piece = pyarrow.concat_arrays(piece.chunks) if piece.num_chunks else pyarrow.array([], piece.type)
        piece = pyarrow.concat_arrays([piece, piece.slice(0, 0)])
        batch = pyarrow.record_batch([piece], names=["values"])
        pieces.append(batch.serialize().to_pybytes())
    return pieces


def to_numpy(value: Any) -> np.ndarray:
    """Return an array of JAX or PyTorch in memory of this process."""
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu().contiguous()
        try:
            return np.asarray(value)
        except TypeError:  # a type that NumPy does not know, such as bfloat16
            import torch  # type: ignore[import-not-found]  # the value is one of its arrays

            return np.asarray(value.view(torch.uint8))
    try:
        return np.asarray(value)
    except TypeError:
        from jax import random  # keys for random numbers

        return np.asarray(random.key_data(value))
