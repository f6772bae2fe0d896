"""Encodes elements of any pipeline (trees of arrays, numbers and texts) as records of bytes, and decodes them.

All elements have one layout, which says what the parts of an element are. The layout is plain JSON and is stored once
for all records. A record holds only the values, and the shapes of its arrays.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np

from bushel._src.base import trees
from bushel._src.base.errors import DamagedFile
from bushel._src.base.pickling import whole_text

Layout = Any
"""`{"dict": {key: layout}}`, `{"list": [layout]}`, `{"tuple": [layout]}`, `{"array": dtype}`, `{"scalar": dtype}`, or
the name of a Python type: "int", "float", "bool", "str", "bytes", "None"."""

_PYTHON = {int: "int", float: "float", bool: "bool", str: "str", bytes: "bytes", type(None): "None"}
_LENGTH = struct.Struct("<Q")
_NUMBERS = {"int": struct.Struct("<q"), "float": struct.Struct("<d"), "bool": struct.Struct("<?")}


def infer_layout(element: Any, path: str = "the element") -> Layout:
    """The layout of an element.

    >>> infer_layout({"image": np.zeros((2, 2), np.uint8), "label": 3})
    {'dict': {'image': {'array': '|u1'}, 'label': 'int'}}
    """
    kind = type(element)
    if kind is dict:
        for key in element:
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r}: keys must be texts to be saved.")
        return {"dict": {key: infer_layout(part, f"{path}[{key!r}]") for key, part in element.items()}}
    if kind is list or kind is tuple:
        parts = [infer_layout(part, f"{path}[{number}]") for number, part in enumerate(element)]
        return {kind.__name__: parts}
    if kind in _PYTHON:
        return _PYTHON[kind]
    _refuse_mask(element, path)
    if isinstance(element, np.generic):
        return {"scalar": _show_dtype(element.dtype, path)}
    if hasattr(element, "__array__") and hasattr(element, "dtype"):
        return {"array": _show_dtype(np.asarray(element).dtype, path)}
    raise TypeError(
        f"{path} is of type {kind.__name__}, which cannot be saved: first map it to dicts, lists and tuples of arrays, "
        "numbers, texts and bytes."
    )


def _refuse_mask(value: Any, path: str) -> None:
    """Raises an error for a masked array, of which only the data would be saved, without the mask."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{path} is a masked array, whose mask cannot be saved: map it to an array with `x.filled(value)`, and "
            "save `np.ma.getmaskarray(x)` under a key of its own."
        )


def _show_dtype(dtype: np.dtype, path: str) -> str:
    if dtype.hasobject or dtype.names is not None or dtype.type is np.void:
        raise TypeError(f"{path} has the dtype {dtype}, which cannot be saved: first map it to another dtype.")
    if dtype.kind in "US":
        return dtype.kind  # each record states the length of its texts
    return dtype.str if dtype.kind != "V" else dtype.name  # types of ml_dtypes, such as bfloat16, are known by name


def parse_dtype(text: str) -> np.dtype:
    """The dtype that a layout names."""
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes  # registers its types with NumPy

        return np.dtype(getattr(ml_dtypes, text, text))


def encode(element: Any, layout: Layout) -> bytes:
    """Encodes an element as a record. Raises ValueError if the element has another layout.

    >>> decode(encode((1, "a"), {"tuple": ["int", "str"]}), {"tuple": ["int", "str"]})
    (1, 'a')
    """
    parts: list[bytes] = []
    _append(element, layout, "the element", parts)
    return b"".join(parts)


def _append(value: Any, layout: Layout, path: str, parts: list[bytes]) -> None:
    if isinstance(layout, str):
        _append_python(value, layout, path, parts)
        return
    ((form, inner),) = layout.items()
    if form == "dict":
        if type(value) is not dict or value.keys() != inner.keys():
            raise _mismatch_error(value, path, f"a dict with the keys {list(inner)}")
        for key, below in inner.items():
            _append(value[key], below, f"{path}[{key!r}]", parts)
    elif form in ("list", "tuple"):
        if type(value).__name__ != form or len(value) != len(inner):
            raise _mismatch_error(value, path, f"a {form} of {len(inner)}")
        for number, below in enumerate(inner):
            _append(value[number], below, f"{path}[{number}]", parts)
    else:
        if isinstance(value, np.ma.MaskedArray):
            raise _mismatch_error(value, path, f"{inner}[...] without a mask")
        array, dtype = np.asarray(value), parse_dtype(inner)
        same = array.dtype.kind == dtype.kind if dtype.kind in "US" else array.dtype == dtype
        if isinstance(value, np.generic) != (form == "scalar") or not same:
            raise _mismatch_error(value, path, f"{inner}[...]" if form == "array" else f"a number of {inner}")
        if isinstance(value, (np.str_, np.bytes_)):
            _append_text(value, parts)
            return
        if dtype.kind in "US":
            array = array.astype(f"<U{max(1, array.dtype.itemsize // 4)}" if dtype.kind == "U" else array.dtype)
            parts.append(_LENGTH.pack(array.dtype.itemsize))
        if form == "array":
            parts.append(struct.pack(f"<B{array.ndim}Q", array.ndim, *array.shape))
        parts.append(array.tobytes())


def _append_text(text: np.str_ | np.bytes_, parts: list[bytes]) -> None:
    """Appends a text with the zeros at its end, which an array of it would not have."""
    whole = whole_text(text)
    data = whole.encode("utf-32-le", "surrogatepass") if isinstance(whole, str) else whole
    parts += [_LENGTH.pack(len(data)), data]


def _append_python(value: Any, kind: str, path: str, parts: list[bytes]) -> None:
    if _PYTHON.get(type(value)) != kind:
        raise _mismatch_error(value, path, kind)
    if kind in _NUMBERS:
        try:
            parts.append(_NUMBERS[kind].pack(value))
        except struct.error:
            raise ValueError(f"{path} is {value}, which does not fit into 64 bits: save it as text.") from None
    elif kind != "None":
        data = value.encode("utf-8", "surrogatepass") if kind == "str" else value
        parts += [_LENGTH.pack(len(data)), data]


def _mismatch_error(value: Any, path: str, expected: str) -> ValueError:
    return ValueError(
        f"{path} is {trees.describe(value)}, but it was {expected} in the first element. All elements that are saved "
        "together need the same keys and dtypes; shapes may differ."
    )


def decode(record: bytes | memoryview, layout: Layout) -> Any:
    """Decodes the element of a record."""
    reader = _Reader(memoryview(record))
    element = reader.read(layout)
    if reader.place != len(reader.data):
        raise DamagedFile(f"A record has {len(reader.data)} bytes, but its element ends after {reader.place} bytes.")
    return element


class _Reader:
    """Reads values from a record, one after the other."""

    def __init__(self, data: memoryview):
        self.data, self.place = data, 0

    def read(self, layout: Layout) -> Any:
        if isinstance(layout, str):
            return self._read_python(layout)
        ((form, inner),) = layout.items()
        if form == "dict":
            return {key: self.read(below) for key, below in inner.items()}
        if form == "list":
            return [self.read(below) for below in inner]
        if form == "tuple":
            return tuple([self.read(below) for below in inner])
        dtype = parse_dtype(inner)
        if dtype.kind in "US":
            dtype = self._read_text_dtype(dtype.kind, form)
        if form == "scalar" and dtype.kind in "US":
            return self._read_text(dtype)
        if form == "scalar":
            return np.frombuffer(self._read_bytes(dtype.itemsize), dtype)[0]
        (ndim,) = struct.unpack("<B", self._read_bytes(1))
        shape = struct.unpack(f"<{ndim}Q", self._read_bytes(8 * ndim))
        size = dtype.itemsize
        for length in shape:  # with Python's integers, which cannot overflow, in case the shape is damaged
            size *= length
        return np.frombuffer(self._read_bytes(size), dtype).reshape(shape).copy()

    def _read_text_dtype(self, kind: str, form: str) -> np.dtype:
        size = _LENGTH.unpack(self._read_bytes(8))[0]
        if not (form == "array") <= size < 1 << 31:
            raise DamagedFile(f"A record has an array whose texts have {size} bytes.")
        return np.dtype(f"<U{size // 4}" if kind == "U" else f"S{size}")

    def _read_text(self, dtype: np.dtype) -> np.str_ | np.bytes_:
        data = bytes(self._read_bytes(dtype.itemsize))
        if dtype.kind == "S":
            return np.bytes_(data)
        try:
            text = data.decode("utf-32-le", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DamagedFile(f"A text in a record is not UTF-32: {error}.") from None
        return np.str_(text)

    def _read_python(self, kind: str) -> Any:
        if kind == "None":
            return None
        if kind in _NUMBERS:
            return _NUMBERS[kind].unpack(self._read_bytes(_NUMBERS[kind].size))[0]
        data = bytes(self._read_bytes(_LENGTH.unpack(self._read_bytes(8))[0]))
        if kind == "bytes":
            return data
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DamagedFile(f"A text in a record is not UTF-8: {error}.") from None

    def _read_bytes(self, count: int) -> memoryview:
        begin = self.place
        if count > len(self.data) - begin:
            raise DamagedFile(f"A record ends after {len(self.data)} bytes, in the middle of its element.")
        self.place += count
        return self.data[begin : self.place]


def check_layout(layout: Any, where: str) -> Layout:
    """Checks a layout that was read from a file, and returns it."""
    match layout:
        case "int" | "float" | "bool" | "str" | "bytes" | "None":
            return layout
        case {"dict": dict(parts), **rest} if not rest:
            for key, part in parts.items():
                check_layout(part, f"{where}[{key!r}]")
            return layout
        case {"list": list(parts), **rest} | {"tuple": list(parts), **rest} if not rest:
            for number, part in enumerate(parts):
                check_layout(part, f"{where}[{number}]")
            return layout
        case {"array": str(text), **rest} | {"scalar": str(text), **rest} if not rest:
            with contextlib.suppress(TypeError, ImportError, ValueError):
                if not parse_dtype(text).hasobject:
                    return layout
    raise DamagedFile(f"{where} is not a layout of elements: {layout!r}.")
