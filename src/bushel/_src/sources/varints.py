"""Variable-length integers of protocol buffers: decodes one, or a whole array of them, and encodes one."""

from __future__ import annotations

import numpy as np


def decode(data: bytes | memoryview, place: int) -> tuple[int, int]:
    """Decodes the integer at `place`. Returns it and the index of the byte after it.

    >>> decode(bytes([0xAC, 0x02, 0x07]), 0)
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


def encode(value: int) -> bytes:
    """Encodes an integer in as few bytes as possible.

    >>> encode(300).hex()
    'ac02'
    """
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def decode_many(data: bytes | memoryview) -> tuple[np.ndarray, np.ndarray]:
    """Decodes all integers of a buffer. Returns them as uint64, and the index of the byte after each.

    >>> values, ends = decode_many(bytes([0xAC, 0x02, 0x07]))
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
