"""CRC32C, the checksum in TFRecord files: computed in C by a package if one is installed, otherwise with NumPy."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base.errors import BushelWarning
from bushel._src.base.install import install_command
from bushel._src.sources.optional_packages import import_package

Checksum = Callable[[Any], int]
"""A function from bytes to their CRC32C. TFRecord files hold it `mask`."""

_FEW_BYTES = 500  # for fewer bytes, a loop over bytes is faster
_warned = False


def get_fast_checksum() -> Checksum:
    """A fast checksum function. If no package has one, the error contains the `pip install` command."""
    found = _find_fast()
    if found is None:
        return import_package("crc32c", "tfrecord", "Checksums of TFRecord files (or verify=False)").crc32c
    return found


def get_checksum() -> Checksum:
    """A fast checksum if a package computes one, otherwise the slow one: TFRecord files must have checksums."""
    return _find_fast() or compute_slowly


def decide_verify(verify: bool | None) -> bool:
    """Whether to compare records with their checksums. None: yes if a package is installed, else no, with a warning."""
    global _warned
    if verify is not None:
        if verify:
            get_fast_checksum()
        return bool(verify)
    if _find_fast() is not None:
        return True
    if not _warned:
        _warned = True
        warnings.warn(
            "TFRecord files are read without comparing their checksums, so damage may go unnoticed: no package that "
            f"computes CRC32C is installed. Install one: {install_command('tfrecord')}. "
            "With verify=False there is no warning.",
            BushelWarning,
            stacklevel=3,
        )
    return False


def _find_fast() -> Checksum | None:
    """The checksum function of an installed package, or None."""
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
    return lambda data: value(data if isinstance(data, bytes) else bytes(data))  # it accepts no other buffers


def compute_slowly(data: bytes | bytearray | memoryview) -> int:
    """CRC32C with NumPy: about 0.1 ms for a record of 1 KB, and 50 MB/s for large ones.

    >>> hex(compute_slowly(b"123456789"))
    '0xe3069283'
    """
    content = bytes(data)
    if len(content) < _FEW_BYTES:
        crc = 0xFFFFFFFF
        for byte in content:
            crc = _TABLE[crc & 255 ^ byte] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    # The checksum begins with all bits set. This is the same as beginning with 0 and inverting the first 4 bytes. With
    # a beginning of 0, zero bytes in front change nothing, so the data can be padded there.
    first = int.from_bytes(content[:4], "little") ^ 0xFFFFFFFF
    words = np.frombuffer(bytes(-len(content) % 4) + first.to_bytes(4, "little") + content[4:], "<u4")
    level = 0
    while len(words) > 1:  # two neighbours are combined into one
        if len(words) % 2:
            words = np.concatenate((np.zeros(1, np.uint32), words))
        words = _append_zeros(words[::2], level) ^ words[1::2]
        level += 1
    return int(_append_zeros(words, 0)[0]) ^ 0xFFFFFFFF


def _append_zeros(states: np.ndarray, level: int) -> np.ndarray:
    """The states of the checksum after 4 * 2**level more zero bytes."""
    first, second, third, fourth = _make_zero_tables(level)
    return first[states & 255] ^ second[states >> 8 & 255] ^ third[states >> 16 & 255] ^ fourth[states >> 24]


@functools.cache
def _make_zero_tables(level: int) -> list[np.ndarray]:
    """Tables of what each byte of a state (the lowest first) adds to the state after 4 * 2**level zero bytes."""
    if level == 0:
        return _CHANGES[4:]  # as if the state were the next 4 bytes
    bytes_of_states = [np.arange(256, dtype=np.uint32) << np.uint32(shift) for shift in (0, 8, 16, 24)]
    return [_append_zeros(_append_zeros(states, level - 1), level - 1) for states in bytes_of_states]


def mask(crc: int) -> int:
    """A checksum in the form that TFRecord files hold."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def compute_length_checksums(lengths: np.ndarray) -> np.ndarray:
    """The masked checksums of many lengths: the checksum of 0, changed by each byte. Needs no package."""
    crc = np.full(len(lengths), _NO_LENGTH, np.uint32)
    rest = lengths.astype(np.uint64)
    for changes in _CHANGES:
        if not rest.any():
            break
        crc ^= changes[(rest & np.uint64(255)).astype(np.intp)]
        rest >>= np.uint64(8)
    return (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)


def _make_tables() -> tuple[int, list[np.ndarray]]:
    """The CRC32C of eight zero bytes, and for each of these bytes a table of what its 256 values change."""
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = last >> 1 ^ (last & 1) * np.uint32(0x82F63B78)
    changes, zeros = [last], np.array([0xFFFFFFFF], np.uint32)
    for _ in range(8):
        changes.append(last[changes[-1] & 255] ^ changes[-1] >> 8)  # one more byte after it
        zeros = last[zeros & 255] ^ zeros >> 8
    return zeros.item() ^ 0xFFFFFFFF, changes[7::-1]


_NO_LENGTH, _CHANGES = _make_tables()
_TABLE: list[int] = _CHANGES[-1].tolist()  # of the last byte: the usual table of the algorithm
