"""Many shuffles at once: indices of a mixture, each of which belongs to one of a thousand shuffled data sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bushel._src.index import shuffle, small_domain, words

_FEW = 12  # so few walks are faster one by one, in Python integers, than as arrays
_FEW_SMALL = 60  # the same for lengths below 2**16
_STEPS = 8  # so many steps of all values cost less than to look which values have arrived


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
            without_table = np.zeros(len(which), dtype=bool)
            without_table[rows] = True
            if (here := np.flatnonzero(without_table & (halves == 8))).size:
                shuffled[here] = _walk_small(position[here], lengths[here], seeds[here])
            if (here := np.flatnonzero(without_table & (halves > 8))).size:
                shuffled[here] = _walk(position[here], lengths[here], seeds[here], halves[here])
        return shuffled + epoch * lengths


def _walk(position: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """The cipher of each seed, again and again until the value falls below the length."""
    keys = np.stack(_keys_of(seeds))
    limits, x = lengths.astype(np.uint64), position.astype(np.uint64)
    walked = np.empty_like(position)
    rows = np.arange(len(position))
    while rows.size > _FEW:
        x = shuffle.encrypt(x, keys, halves)  # type: ignore[arg-type]
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


def _walk_small(position: np.ndarray, lengths: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """`_walk` for lengths below 2**16, where a step is two look-ups in a table."""
    keys = [key.view(np.int64) for key in _keys_of(seeds)]
    table = small_domain.two_rounds()

    def step(x: np.ndarray, before: np.ndarray, between: np.ndarray, after: np.ndarray) -> np.ndarray:
        return table.take(table.take(x ^ before) ^ between) ^ after

    parts = np.stack(small_domain.split_keys(keys))
    walked = step(position, *parts)
    rows = np.flatnonzero(walked >= lengths)
    while rows.size > _FEW_SMALL:
        x, own_parts, limits = walked[rows], parts[:, rows], lengths[rows]
        for _ in range(_STEPS):
            x = np.where(x >= limits, step(x, *own_parts), x)
        walked[rows] = x
        rows = rows[x >= limits]
    for row, own_keys in zip(rows.tolist(), np.stack(keys)[:, rows].T.tolist(), strict=True):
        walked[row] = small_domain.walk_one(int(walked[row]), own_keys, int(lengths[row]))
    return walked


def _keys_of(seeds: np.ndarray) -> list[np.ndarray]:
    return [key.astype(np.uint64) for key in shuffle.round_keys(seeds.astype(np.uint32), shuffle.ROUNDS, np)]
