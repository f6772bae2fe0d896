"""`tf.train.Example` messages, decoded and encoded without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from bushel.sources import varints

_BYTES, _FLOAT, _INT64 = 1, 2, 3


def decode_example(record: bytes) -> dict[str, Any]:
    """The features of a `tf.train.Example`: int64 and float32 arrays, and lists of bytes.

    >>> decode_example(encode_example({"x": [1, 2], "y": 0.5, "name": b"a"}))
    {'name': [b'a'], 'x': array([1, 2]), 'y': array([0.5], dtype=float32)}
    """
    found: dict[str, Any] = {}
    try:
        for number, features in _fields(memoryview(record)):
            if number == 1:
                for kind, entry in _fields(features):
                    if kind == 1:
                        _put(entry, found)
    except (IndexError, ValueError, TypeError, struct.error) as error:
        raise ValueError(f"This record of {len(record)} bytes is no tf.train.Example ({error}).") from error
    return found


def _put(entry: memoryview, found: dict[str, Any]) -> None:
    """One entry of the map of features: name and value."""
    name, feature = "", memoryview(b"")
    for number, value in _fields(entry):
        if number == 1:
            name = bytes(value).decode()
        elif number == 2:
            feature = value
    found[name] = []
    for kind, value in _fields(feature):  # one of three kinds
        found[name] = _values(kind, value)


def _values(kind: int, message: memoryview) -> Any:
    if kind == _BYTES:
        return [bytes(value) for number, value in _fields(message) if number == 1]
    parts: list[Any] = []
    for number, value in _fields(message):
        if number != 1:
            continue
        if kind == _FLOAT:
            parts.append(np.frombuffer(value, "<f4"))
        elif isinstance(value, int):
            parts.append(np.array([value], np.uint64).view(np.int64))
        else:
            parts.append(varints.many(value)[0].view(np.int64))
    dtype = np.float32 if kind == _FLOAT else np.int64
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _fields(message: memoryview) -> list[tuple[int, Any]]:
    """Number and value of each field: an int, or the bytes of it."""
    found: list[tuple[int, Any]] = []
    place, size = 0, len(message)
    while place < size:
        tag, place = varints.one(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = varints.one(message, place)
            found.append((tag >> 3, value))
            continue
        if kind == 2:
            length, place = varints.one(message, place)
        elif kind == 5 or kind == 1:
            length = 4 if kind == 5 else 8
        else:
            raise ValueError(f"a field of kind {kind}")
        if place + length > size:
            raise ValueError("a field that ends after the record does")
        found.append((tag >> 3, message[place : place + length]))
        place += length
    return found


def encode_example(features: Mapping[str, Any]) -> bytes:
    """A `tf.train.Example` of numbers, arrays (flattened), bytes, strings, and lists of these.

    >>> encode_example({"x": 1}).hex()
    '0a0c0a0a0a017812051a030a0101'
    """
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, _feature(name, features[name]))) for name in sorted(features)
    )
    return _field(1, b"".join(entries))


def _feature(name: str, value: Any) -> bytes:
    items = value if isinstance(value, (list, tuple)) else [value]
    if items and all(isinstance(item, (bytes, str)) for item in items):
        encoded = [item.encode() if isinstance(item, str) else item for item in items]
        return _field(_BYTES, b"".join(_field(1, item) for item in encoded))
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind in "biu":
        numbers = array.astype(np.int64).view(np.uint64).tolist()
        return _field(_INT64, _field(1, b"".join(map(varints.encoded, numbers))))
    if array.dtype.kind == "f":
        return _field(_FLOAT, _field(1, array.astype("<f4").tobytes()))
    raise TypeError(f"Feature {name!r} must be numbers, bytes or strings, got {array.dtype} of {value!r}.")


def _field(number: int, content: bytes) -> bytes:
    return varints.encoded(number << 3 | 2) + varints.encoded(len(content)) + content
