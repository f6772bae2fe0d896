"""The cipher of shuffle.py on its smallest domain, 2**16 values: all values at once, and walks of single values."""

from __future__ import annotations

import array
import functools
from collections.abc import Sequence

import numpy as np

SIZE = 1 << 16
_STEPS = 8  # so many steps of all values cost less than to look which values have arrived
_SHRINK = (
    8  # the domain gets smaller by this factor at a time; by less, more turns are needed, and by more, longer ones
)
_NUMBERS = np.arange(SIZE)

_spare: list[np.ndarray] = []
"""Memory for `make_table`. The system gives new memory for each array of this size, and clearing it takes long."""


def make_table(keys: Sequence[int], length: int) -> np.ndarray:
    """Return the permutation of [0, length), for a length below 2**16."""
    try:
        memory = _spare.pop()
    except IndexError:  # another thread uses it, or this is the first table
        memory = np.empty((2, SIZE), dtype=np.intp)
    jumps, other = memory
    encrypt_all(keys, jumps)
    size = SIZE
    while size > length:
        size = length if size < 2 * _SHRINK * length else size // _SHRINK
        _induce(jumps, other[:size])
        jumps, other = other[:size], jumps
    table = jumps.astype(np.uint16)
    table.setflags(write=False)
    _spare.append(memory)
    return table


def _induce(jumps: np.ndarray, landed: np.ndarray) -> None:
    """Follow a permutation from each of the first values, until it comes back to one of them.

    Args:
      jumps: the permutation. It is changed.
      landed: where the first `len(landed)` values come back to is written here.
    """
    size = len(landed)
    landed[:] = jumps[:size]
    jumps[:size] = _NUMBERS[:size]  # a value that has arrived stays where it is
    outside = np.flatnonzero(landed >= size)
    at = landed[outside]
    while outside.size:
        for _ in range(_STEPS):
            at = jumps.take(at)
        landed[outside] = at
        left = np.flatnonzero(at >= size)
        outside, at = outside[left], at[left]


def encrypt_all(keys: Sequence[int], out: np.ndarray) -> None:
    """Write what the cipher makes of each of the 2**16 values."""
    a, b, c, d = (np.uint8(key & 255) for key in keys)
    numbers = np.arange(256, dtype=np.uint8)
    left = numbers[:, None] ^ (_stir_bytes(numbers) ^ a)
    right = numbers ^ b ^ _stir_bytes(left)
    left ^= c
    left ^= _stir_bytes(right)
    right ^= d
    right ^= _stir_bytes(left)
    both = left.astype(np.uint16)
    both <<= np.uint16(8)
    both |= right
    out[:] = both.reshape(-1)


def _stir_bytes(words: np.ndarray) -> np.ndarray:
    """SIMON's round function of words of 8 bits, where the rotation by 8 is none. It computes eight words at once."""
    eight = words.view(np.uint64)
    by_1 = (eight << np.uint64(1)) & _repeat_byte(0xFE)
    by_1 |= (eight >> np.uint64(7)) & _repeat_byte(0x01)
    by_1 &= eight
    by_1 ^= (eight << np.uint64(2)) & _repeat_byte(0xFC)
    by_1 ^= (eight >> np.uint64(6)) & _repeat_byte(0x03)
    return by_1.view(np.uint8)


@functools.cache
def _repeat_byte(byte: int) -> np.uint64:
    return np.uint64(byte * 0x0101010101010101)


@functools.cache
def two_rounds() -> np.ndarray:
    """Return what two rounds without keys make of each value.

    The cipher is four rounds. The key of the first round can be added before the two, and that of the second after
    them. So a step of the cipher is two look-ups: see `split_keys`.
    """
    table = np.empty(SIZE, dtype=np.int64)
    left = np.arange(256, dtype=np.uint8)[:, None] ^ _stir_bytes(np.arange(256, dtype=np.uint8))
    right = np.arange(256, dtype=np.uint8) ^ _stir_bytes(left)
    table[:] = (left.astype(np.int64) << 8 | right).reshape(-1)
    table.setflags(write=False)
    return table


@functools.cache
def _two_rounds_as_numbers() -> array.array[int]:
    return array.array("H", two_rounds().astype(np.uint16).tobytes())


def split_keys(keys: Sequence[np.ndarray] | Sequence[int]) -> tuple:
    """Return the keys to add before, between and after two look-ups in `two_rounds`, of numbers or of arrays of
    them.
    """
    a, b, c, d = (key & 255 for key in keys)
    return a << 8, c << 8 | b, d


def walk_one(x: int, keys: Sequence[int], length: int) -> int:
    """Return the first value below the length that the cipher comes to from `x`."""
    before, between, after = split_keys(keys)
    table = _two_rounds_as_numbers()
    while True:
        x = table[table[x ^ before] ^ between] ^ after
        if x < length:
            return x
