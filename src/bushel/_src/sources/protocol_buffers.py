"""Protocol buffers: integers of variable length, and `tf.train.Example` messages, without TensorFlow."""

from __future__ import annotations

import array
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bushel._src.base.public import public


def decode_varint(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Decode the integer at `place`. Return it and the index of the byte after it.

    >>> decode_varint(bytes([0xAC, 0x02, 0x07]), 0)
    (300, 2)
    """
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("an integer of more than 64 bits")


def encode_varint(value: int) -> bytes:
    """Encode an integer in as few bytes as possible.

    >>> encode_varint(300).hex()
    'ac02'
    """
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def decode_varints(data: bytes | memoryview) -> tuple[np.ndarray, np.ndarray]:
    """Decode all integers of a buffer. Return them as uint64, and the index of the byte after each.

    >>> values, ends = decode_varints(bytes([0xAC, 0x02, 0x07]))
    >>> values.tolist(), ends.tolist()
    ([300, 7], [2, 3])
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80) + 1
    if not len(ends) or ends[-1] != len(raw):
        if len(raw):
            raise ValueError("integers of which the last one ends early")
        return np.zeros(0, np.uint64), ends
    starts = np.concatenate(([0], ends[:-1]))
    lengths = ends - starts
    if lengths.max() > 10:
        raise ValueError("an integer of more than 64 bits")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max())):
        there = np.flatnonzero(lengths > place) if place else slice(None)
        part = (raw[starts[there] + place] & 0x7F).astype(np.uint64)
        values[there] |= part << np.uint64(7 * place)
    return values, ends


_BYTES, _FLOAT, _INT64 = 1, 2, 3
_LARGEST = (1 << 63) - 1
_VALUE = 1 << 3 | 2  # the tag of each value in a list of bytes


class Located(NamedTuple):
    """A feature of a record: the range of its entry, and its numbers, or the place of each of its byte strings."""

    low: int
    high: int
    numbers: np.ndarray | None
    places: np.ndarray | None
    """The start of each value in the record, and its size: two columns of int64."""


@public("bushel.sources")
def decode_example(record: bytes) -> dict[str, Any]:
    """Return the features of a `tf.train.Example`: int64 and float32 arrays, and list of bytes.

    >>> decode_example(encode_example({"x": [1, 2], "y": 0.5, "name": b"a"}))
    {'name': [b'a'], 'x': array([1, 2]), 'y': array([0.5], dtype=float32)}
    """
    return {name: _decode_feature(record, feature) for name, feature in locate_example(record).items()}


def _decode_feature(record: bytes, feature: Located) -> Any:
    if feature.numbers is not None:
        return feature.numbers
    return [] if feature.places is None else slice_record(record, feature.places)


def slice_record(record: bytes, places: np.ndarray) -> list[bytes]:
    """Return the parts of a record at `places`, which are rows of start and size.

    >>> slice_record(b"abcdef", np.array([[1, 2], [5, 1]]))
    [b'bc', b'f']
    """
    return [bytes(record[start : start + size]) for start, size in places.tolist()]


def locate_example(record: bytes) -> dict[str, Located]:
    """Return the features of a `tf.train.Example`: its numbers, and the places of its byte strings, which are not read.

    >>> locate_example(encode_example({"x": [1, 2], "name": [b"a", b"bc"]}))["name"].places.tolist()
    [[16, 1], [19, 2]]
    """
    found: dict[str, Located] = {}
    try:
        for number, low, high in _parse_fields(record, 0, len(record)):
            if number == 2:
                raise ValueError("it has a field 2, as in a tf.train.SequenceExample")
            if number != 1:
                raise ValueError(f"it has a field {number}, which an Example does not have")
            place = low
            for kind, begin, end in _parse_fields(record, low, high):
                if kind == 1:
                    name, feature = _parse_entry(record, place, begin, end)
                    found[name] = feature
                place = end
    except (IndexError, ValueError, TypeError, struct.error) as error:
        raise ValueError(f"This record of {len(record)} bytes is not a tf.train.Example ({error}).") from error
    return found


def _parse_entry(record: bytes, place: int, low: int, high: int) -> tuple[str, Located]:
    """Decode one entry of the map of features: its name and its value."""
    name, numbers, places = "", None, None
    for number, begin, end in _parse_fields(record, low, high):
        if number == 1:
            name = bytes(record[begin:end]).decode()
        elif number == 2:
            for kind, first, last in _parse_fields(record, begin, end):  # one of three kinds
                if kind == _BYTES:
                    numbers, places = None, _find_values(record, first, last)
                else:
                    numbers, places = _decode_numbers(record, kind, first, last), None
    return name, Located(place, high, numbers, places)


def _find_values(record: bytes, place: int, end: int) -> np.ndarray:
    """Return the places of the values of a list of byte strings: goes from length to length."""
    found = array.array("q")
    while place < end:
        tag = record[place]
        size = record[place + 1]
        place += 2
        if size > 0x7F:
            size, place = decode_varint(record, place - 1)
        if tag != _VALUE:
            raise ValueError(f"a list of bytes has a field {tag >> 3} of kind {tag & 7}")
        found.append(place)
        found.append(size)
        place += size
    if place != end:
        raise ValueError("a value ends after its list")
    return np.array(found, np.int64).reshape(-1, 2)


def _decode_numbers(record: bytes, kind: int, low: int, high: int) -> np.ndarray:
    parts: list[np.ndarray] = []
    for number, begin, end in _parse_fields(record, low, high):
        if number != 1:
            continue
        if kind == _FLOAT:
            parts.append(np.frombuffer(memoryview(record)[begin:end], "<f4"))
        else:
            parts.append(decode_varints(memoryview(record)[begin:end])[0].view(np.int64))
    dtype = np.float32 if kind == _FLOAT else np.int64
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _parse_fields(record: bytes, place: int, end: int) -> list[tuple[int, int, int]]:
    """For each field of the message in [place, end): its number, and the start and end of its value."""
    found: list[tuple[int, int, int]] = []
    while place < end:
        tag, place = decode_varint(record, place)
        kind, low = tag & 7, place
        if kind == 0:
            _, place = decode_varint(record, place)
        elif kind == 2:
            length, low = decode_varint(record, place)
            place = low + length
        elif kind == 5 or kind == 1:
            place += 4 if kind == 5 else 8
        else:
            raise ValueError(f"it has a field of the unknown kind {kind}")
        if place > end:
            raise ValueError("a field ends after the record")
        found.append((tag >> 3, low, place))
    return found


@public("bushel.sources")
def encode_example(features: Mapping[str, Any]) -> bytes:
    """Encode numbers, arrays (flattened), bytes, strings, and lists or arrays of these as a `tf.train.Example`.

    Floats are rounded to float32, because a message has no other floats. Numbers beyond float32 or int64 are errors.

    >>> encode_example({"x": 1}).hex()
    '0a0c0a0a0a017812051a030a0101'
    """
    entries = (
        _encode_field(1, _encode_field(1, name.encode()) + _encode_field(2, _encode_feature(name, features[name])))
        for name in sorted(features)
    )
    return _encode_field(1, b"".join(entries))


def _encode_feature(name: str, value: Any) -> bytes:
    parts: Any = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(item, np.ma.MaskedArray) for item in parts):
        raise TypeError(
            f"Feature {name!r} is a masked array, whose mask a tf.train.Example cannot hold. Pass `x.filled(value)`, "
            "and `np.ma.getmaskarray(x)` as another feature."
        )
    texts = isinstance(value, np.ndarray) and (value.dtype.hasobject or value.dtype.kind in "SU")
    whole: Any = value
    items: Any = whole.ravel().tolist() if texts else parts
    if (items or texts) and all(isinstance(item, (bytes, str, bytearray, memoryview)) for item in items):
        encoded = [item.encode() if isinstance(item, str) else bytes(item) for item in items]
        return _encode_field(_BYTES, b"".join(_encode_field(1, item) for item in encoded))
    array = np.asarray(value).reshape(-1)
    if array.dtype.kind in "biu":
        if array.dtype == np.uint64 and (array > _LARGEST).any():
            raise _range_error(name, array.max(), "int64")
        numbers = array.astype(np.int64).view(np.uint64).tolist()
        return _encode_field(_INT64, _encode_field(1, b"".join(map(encode_varint, numbers))))
    if array.dtype.kind == "f":
        if items and all(
            isinstance(item, (int, np.integer)) for item in items
        ):  # integers so large that NumPy turns them into floats
            raise _range_error(name, max(items), "int64")
        with np.errstate(over="ignore"):
            floats = array.astype("<f4")
        beyond = np.isinf(floats) & np.isfinite(array)
        if beyond.any():
            raise _range_error(name, array[beyond][0], "float32")
        return _encode_field(_FLOAT, _encode_field(1, floats.tobytes()))
    raise TypeError(f"Feature {name!r} must be numbers, bytes or strings, got {array.dtype} of {value!r}.")


def _range_error(name: str, number: Any, kind: str) -> ValueError:
    return ValueError(
        f"Feature {name!r} holds {number}, which does not fit into {kind}, the type of a tf.train.Example."
    )


def _encode_field(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content
