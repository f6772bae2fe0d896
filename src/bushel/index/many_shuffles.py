"""Many shuffles at once: indices of a mixture, each of which belongs to one of a thousand shuffled data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel.index import shuffle, words

_FEW = 12  # so few walks are faster one by one, in Python integers, than as arrays
_Keys = Any  # arrays of round keys, one for each round
_Encrypt = Callable[[np.ndarray, _Keys, Any], np.ndarray]


class ManyShuffles:
    """Shuffles of `lengths[n]` elements by `seeds[n]`, computed for indices of all of them in one call.

    >>> both = ManyShuffles([10, 70_000], [42, 1])
    >>> both.shuffle(np.array([0, 1, 0]), np.array([3, 3, 13])).tolist()
    [9, 69474, 11]
    """

    def __init__(self, lengths: Sequence[int], seeds: Sequence[int]):
        self._lengths, self._seeds = np.array(lengths), np.array(seeds)
        self._halves = np.array([shuffle.half_bits(length) for length in lengths], dtype=np.uint64)

    def shuffle(self, which: np.ndarray, i: np.ndarray) -> np.ndarray:
        """Position `i[n]` of shuffle `which[n]` -> the shuffled position; both are int64 arrays of one length."""
        rows = words.group(which)
        if len(which) > _FEW * len(rows):
            found = np.empty_like(i)
            for number, here in rows.items():
                length, seed = int(self._lengths[number]), int(self._seeds[number])
                found[here] = shuffle.shuffle(i[here], length=length, seed=seed)
            return found
        return self._shuffle_each(which, i)

    def _shuffle_each(self, which: np.ndarray, i: np.ndarray) -> np.ndarray:
        lengths = self._lengths[which]
        epoch, position = np.divmod(i, lengths)
        seeds = (self._seeds[which] + epoch) & 0xFFFFFFFF
        shuffled = np.empty_like(position)
        rows = []  # those for which there is no table
        for row, (length, seed, place) in enumerate(zip(lengths.tolist(), seeds.tolist(), position.tolist())):
            table = shuffle.find_table(length, seed) if length < shuffle.SMALL else None
            if table is None:
                rows.append(row)
            else:
                shuffled[row] = table[place]
        if rows:
            halves = self._halves[which]
            small = halves == 8
            for group, encrypt in ((small, _encrypt_bytes), (~small, shuffle.encrypt)):
                here = np.array(rows)[group[rows]]
                if here.size:
                    shuffled[here] = _walk(position[here], lengths[here], seeds[here], halves[here], encrypt)
        return shuffled + epoch * lengths


def _walk(
    position: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, halves: np.ndarray, encrypt: _Encrypt
) -> np.ndarray:
    """The cipher of each seed, again and again until the value falls below the length."""
    keys = np.stack(shuffle.round_keys(seeds.astype(np.uint32), shuffle.ROUNDS, np)).astype(np.uint64)
    limits, x = lengths.astype(np.uint64), position.astype(np.uint64)
    walked = np.empty_like(position)
    rows = np.arange(len(position))
    while rows.size > _FEW:
        x = encrypt(x, keys, halves)
        outside = np.flatnonzero(x >= limits)
        walked[rows] = x.view(np.int64)  # a row that is outside is written again
        if outside.size < rows.size:
            rows, x, keys, limits, halves = (
                rows[outside],
                x[outside],
                keys[:, outside],
                limits[outside],
                halves[outside],
            )
    columns = zip(rows.tolist(), x.tolist(), keys.T.tolist(), halves.tolist(), limits.tolist(), strict=True)
    for row, value, its_keys, half, limit in columns:
        walked[row] = shuffle.walk_one(value, its_keys, half, limit)
    return walked


_STIRRED = shuffle.stir_byte(np.arange(256, dtype=np.uint8)).astype(np.uint64)


def _encrypt_bytes(x: np.ndarray, keys: _Keys, half: Any) -> np.ndarray:
    """`shuffle.encrypt` for words of 8 bits, of which a table holds the round function."""
    left, right = (x >> 8).view(np.int64), (x & 255).view(np.int64)
    bytes_of_keys = (np.asarray(keys) & 255).view(np.int64)
    stirred = _STIRRED.view(np.int64)
    for a, b in zip(bytes_of_keys[::2], bytes_of_keys[1::2], strict=True):
        left = left ^ stirred.take(right) ^ a
        right = right ^ stirred.take(left) ^ b
    return ((left << 8) | right).view(np.uint64)
