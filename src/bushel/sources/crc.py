"""CRC32C, the checksum inside TFRecord files: by a package that computes it in C, or slowly without one."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.sources.needs import package

Checksum = Callable[[Any], int]
"""From bytes to their CRC32C. The format stores it `masked`."""

_FEW_BYTES = 500  # below, a loop over bytes is faster
_warned = False


def for_reading() -> Checksum:
    """A fast checksum. An error that names the `pip install` line if no package computes one."""
    found = _fast()
    if found is None:
        return package("crc32c", "tfrecord", "Checksums of TFRecord files (or verify=False)").crc32c
    return found


def for_writing() -> Checksum:
    """A fast checksum if a package computes one, otherwise the slow one: TFRecord files must have checksums."""
    return _fast() or slow


def can_verify(verify: bool | None) -> bool:
    """Whether records are compared with their checksums. None: if a package computes them, or else with a warning."""
    global _warned
    if verify is not None:
        if verify:
            for_reading()
        return bool(verify)
    if _fast() is not None:
        return True
    if not _warned:
        _warned = True
        warnings.warn(
            "TFRecord files are read without comparing their checksums, so that damage may go unnoticed: "
            "no package computes CRC32C. Install one: pip install 'bushel[tfrecord]'. "
            "verify=False reads without this warning.",
            stacklevel=3,
        )
    return False


def _fast() -> Checksum | None:
    """The function of an installed package."""
    try:
        return importlib.import_module("crc32c").crc32c
    except ImportError:
        pass
    try:
        google = importlib.import_module("google_crc32c")
    except ImportError:
        return None
    if google.implementation != "c":  # its Python code is as slow as ours
        return None
    value = google.value
    return lambda data: value(data if isinstance(data, bytes) else bytes(data))  # it refuses other buffers


def slow(data: bytes | bytearray | memoryview) -> int:
    """CRC32C with NumPy: about 0.1 ms for a record of 1 KB, and 50 MB/s for large ones.

    >>> hex(slow(b"123456789"))
    '0xe3069283'
    """
    content = bytes(data)
    if len(content) < _FEW_BYTES:
        crc = 0xFFFFFFFF
        for byte in content:
            crc = _TABLE[crc & 255 ^ byte] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    # A state that begins with all bits set is one that begins with 0, after the first 4 bytes were inverted. From
    # a state of 0 on, zero bytes in front change nothing.
    first = int.from_bytes(content[:4], "little") ^ 0xFFFFFFFF
    words = np.frombuffer(bytes(-len(content) % 4) + first.to_bytes(4, "little") + content[4:], "<u4")
    level = 0
    while len(words) > 1:  # two neighbours become one
        if len(words) % 2:
            words = np.concatenate((np.zeros(1, np.uint32), words))
        words = _after_zeros(words[::2], level) ^ words[1::2]
        level += 1
    return int(_after_zeros(words, 0)[0]) ^ 0xFFFFFFFF


def _after_zeros(states: np.ndarray, level: int) -> np.ndarray:
    """States of the checksum after 4 * 2**level more bytes, all zero."""
    first, second, third, fourth = _zero_tables(level)
    return first[states & 255] ^ second[states >> 8 & 255] ^ third[states >> 16 & 255] ^ fourth[states >> 24]


@functools.cache
def _zero_tables(level: int) -> list[np.ndarray]:
    """What each byte of a state, the lowest first, adds to the state after 4 * 2**level zero bytes."""
    if level == 0:
        return _CHANGES[4:]  # as if the state were the next 4 bytes
    bytes_of_states = [np.arange(256, dtype=np.uint32) << np.uint32(shift) for shift in (0, 8, 16, 24)]
    return [_after_zeros(_after_zeros(states, level - 1), level - 1) for states in bytes_of_states]


def masked(crc: int) -> int:
    """A checksum as the format stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def length_checksums(lengths: np.ndarray) -> np.ndarray:
    """The checksums of lengths as the format stores them, without a package: that of 0, and what each byte changes."""
    crc = np.full(len(lengths), _NO_LENGTH, np.uint32)
    rest = lengths.astype(np.uint64)
    for changes in _CHANGES:
        if not rest.any():
            break
        crc ^= changes[(rest & np.uint64(255)).astype(np.intp)]
        rest >>= np.uint64(8)
    return (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)


def _tables() -> tuple[int, list[np.ndarray]]:
    """CRC32C of eight zero bytes; and for each of them, the first one first, what each of its 256 values changes."""
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = last >> 1 ^ (last & 1) * np.uint32(0x82F63B78)
    changes, zeros = [last], np.array([0xFFFFFFFF], np.uint32)
    for _ in range(8):
        changes.append(last[changes[-1] & 255] ^ changes[-1] >> 8)  # one more byte after it
        zeros = last[zeros & 255] ^ zeros >> 8
    return zeros.item() ^ 0xFFFFFFFF, changes[7::-1]


_NO_LENGTH, _CHANGES = _tables()
_TABLE: list[int] = _CHANGES[-1].tolist()  # what the last byte changes: the table of the algorithm
