"""Orders of an epoch as arithmetic: keyed permutations of [0, length), and orders that follow values.

They are computed, not stored, also for many data sets at once. Weighted draws and sorted epochs follow values.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from bushel._src.base.public import public
from bushel._src.index import cipher16, epochs

ROUNDS = 4
SMALL = cipher16.SIZE
"""Below this length an epoch is tabulated. It is also the cipher's smallest domain."""

SEED_LIMIT = 1 << 32
_FEW = 12  # so few indices are faster one by one, in Python integers, than as arrays
_TABLE_BITS = 16  # up to words of so many bits, a round is one look-up in a table that stays in the cache
_WORD = 0xFFFFFFFF
_KEPT_BYTES = 32 << 20  # of tables of epochs: 250 of the largest, or a thousand of 16,000 elements
_ENTRY_BYTES = 400  # what a table takes beside its entries, roughly
_MOST_COUNTED = 100_000
STEPS_PER_TURN = 32  # of the loop in a traced walk on an accelerator; more make the program longer and gain little
_STEPS_PER_TURN_ON_CPU = 4  # in words of 16 bits; looking whether all values have arrived takes as long as half a step


def shuffle(i: Any, *, length: int, seed: int) -> np.ndarray:
    """Return positions of an endless run of epochs -> shuffled positions, each epoch in its own order.

    >>> shuffle(np.arange(10), length=10, seed=42).tolist()
    [8, 6, 7, 9, 0, 5, 1, 2, 4, 3]
    """
    if i.size <= _FEW:
        return epochs.array([_shuffle_one(n, length, seed) for n in i.tolist()])
    epoch, position = epochs.split(i, length, to=length)
    first = int(epoch[0])
    if (epoch == first).all():
        shuffled = permute(position, length=length, seed=(seed + first) & _WORD)
        return shuffled + first * length if epoch.dtype != object else shuffled.astype(object) + first * length
    shuffled = np.empty_like(position)
    for number in epochs.find_distinct(epoch)[0].tolist():
        here = epoch == number
        shuffled[here] = permute(position[here], length=length, seed=(seed + number) & _WORD)
    return shuffled + epoch * length


def window_shuffle(i: Any, *, length: int, window: int, seed: int) -> np.ndarray:
    """Return positions -> positions shuffled inside windows of `window` consecutive ones; no window reaches past its
    epoch.

    >>> window_shuffle(np.arange(8), length=8, window=3, seed=1).tolist()
    [1, 2, 0, 3, 5, 4, 6, 7]
    """
    epoch, position = epochs.split(i, length, to=length)
    number, offset = np.divmod(position, window)
    whole = length - length % window
    sizes = np.where(position < whole, window, length - whole)
    number = number + epoch * -(-length // window)  # counts on through epochs, and so does the seed
    if i.size <= _FEW:
        parts = zip(offset.tolist(), sizes.tolist(), number.tolist())
        return i - offset + np.array([_shuffle_one(n, size, (seed + k) & _WORD) for n, size, k in parts], np.int64)
    order = np.argsort(number, kind="stable")
    edges = np.flatnonzero(np.diff(number[order])) + 1
    shuffled = np.empty_like(offset)
    for here in np.split(order, edges):
        size, here_seed = int(sizes[here[0]]), (seed + int(number[here[0]])) & _WORD
        shuffled[here] = permute(offset[here], length=size, seed=here_seed)
    return i - offset + shuffled


def permute(i: Any, *, length: int, seed: Any, rounds: int = ROUNDS, xp: ModuleType = np) -> Any:
    """Return indices in [0, length) -> the indices they change places with, under `seed`.

    With `xp=jax.numpy` it can be traced, seed included, for any length up to 2**31, without 64-bit types.
    """
    if xp is not np:
        return _permute_traced(i, length=length, seed=seed, rounds=rounds, xp=xp)
    if length < SMALL and rounds == ROUNDS:
        return _host_table(length, int(seed)).take(i).astype(np.int64)
    cipher = _cipher(int(seed), rounds, half_bits(length))
    x = cipher(i)
    outside = np.flatnonzero(x.view(np.uint64) >= length)
    while outside.size:
        again = cipher(x[outside])
        x[outside] = again
        outside = outside[again.view(np.uint64) >= length]
    return x


def epoch_table(length: Any, seed: Any, xp: ModuleType = np) -> Any:
    """Return the whole permutation of [0, length) for a length below 2**16, as an array.

    A derived value: kept for a few epochs on the host, never part of a state. Under JAX it is found by pointer
    doubling over the cipher's domain, so that 10 records take hardly more work than 60,000. On a CPU walking takes
    half as long or less, since vectors do it, so there a table of a fixed length is walked.

    Under JAX the length may be traced too; the array then has `SMALL` entries, and those past the length mean nothing.
    """
    fixed = isinstance(length, int)
    if fixed and length >= SMALL:
        raise ValueError(f"epoch_table serves lengths below {SMALL}, got {length}; use permute.")
    if xp is np:
        return _host_table(length, seed)
    from jax import lax

    if fixed:
        walk_all = functools.partial(walk, xp.arange(length), length=length, xp=xp)
        return lax.platform_dependent(
            xp.asarray(seed),
            cpu=lambda seed: walk_all(seed=seed),
            default=lambda seed: _double_pointers(length, seed, xp),
        )
    return _double_pointers(length, seed, xp)


def _double_pointers(length: Any, seed: Any, xp: ModuleType) -> Any:
    """Return `epoch_table` under JAX, in about log2(2**16 / length) steps over the whole domain of the cipher."""
    from jax import lax

    jumps = encrypt(xp.arange(SMALL, dtype=xp.uint32), round_keys(seed, ROUNDS, xp), 8).astype(xp.int32)
    absorbing = xp.where(xp.arange(SMALL) < length, xp.arange(SMALL), jumps)

    def double(state: Any) -> Any:
        landed, absorbing = state
        return absorbing[landed], absorbing[absorbing]

    start = jumps[:length] if isinstance(length, int) else xp.where(xp.arange(SMALL) < length, jumps, 0)
    return lax.while_loop(lambda state: (state[0] >= length).any(), double, (start, absorbing))[0]


@public("bushel.experimental")
def index_shuffle(index: int, max_index: int, seed: int, rounds: int) -> int:
    """Return where `index` goes in a keyed permutation of [0, max_index], as Grain's function of this name.

    >>> index_shuffle(3, max_index=9, seed=42, rounds=4)
    9
    """
    if not 0 <= index <= max_index:
        raise ValueError(f"index must be in [0, max_index], but got index = {index} and max_index = {max_index}")
    if rounds % 2 or not 4 <= rounds <= 1024:
        raise ValueError(f"rounds must be an even integer between 4 and 1024, but got rounds = {rounds}")
    if not 0 <= seed <= _WORD:
        raise ValueError(f"seed must be between 0 and 2**32-1, but got seed = {seed}")
    length = max_index + 1
    if length < SMALL and rounds == ROUNDS:
        return int(epoch_table(length, seed)[index])
    return walk_one(index, _scalar_keys(seed, rounds), half_bits(length), length)


def round_keys(seed: Any, rounds: int, xp: ModuleType | None = None) -> tuple[Any, ...]:
    """Return the round keys of a seed: the words that C++'s `std::seed_seq{seed}` generates.

    `seed` is a Python int, or an array of uint32 (then so are the keys).
    """
    n = rounds
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q = p + t
    # JAX without x64 takes no Python integer above 2**31 beside a uint32: there, constants are words too.
    word: Any = int if xp is None else xp.uint32
    if xp is not None:
        seed = xp.asarray(seed).astype(xp.uint32)
    full = word(_WORD)
    words: list[Any] = [(seed & 0) | word(0x8B8B8B8B)] * n
    for k in range(n):
        here, ahead, far = k % n, (k + p) % n, (k + q) % n
        r1 = (_fold(words[here] ^ words[ahead] ^ words[k - 1]) * word(1664525)) & full
        r2 = (r1 + (1 if k == 0 else k % n)) & full
        if k == 1:
            r2 = (r2 + seed) & full
        words[ahead] = (words[ahead] + r1) & full
        words[far] = (words[far] + r2) & full
        words[here] = r2
    for k in range(n, 2 * n):
        here, ahead, far = k % n, (k + p) % n, (k + q) % n
        r3 = (_fold((words[here] + words[ahead] + words[(k - 1) % n]) & full) * word(1566083941)) & full
        r4 = (r3 - here) & full
        words[ahead] = words[ahead] ^ r3
        words[far] = words[far] ^ r4
        words[here] = r4
    return tuple(words)


def _fold(x: Any) -> Any:
    return x ^ (x >> 27)


def half_bits(length: int) -> int:
    """Return bits of a Feistel word: half of the smallest even block that holds every index of [0, length)."""
    # Grain takes ceil(log2(length - 1)), one bit short at length = 2**k + 1 for even k: there it is no permutation.
    bits = max(16, (length - 1).bit_length())
    return (bits + 1) // 2


def encrypt(x: Any, keys: Sequence[Any], half: Any) -> Any:
    """Return the cipher on blocks of two words of `half` bits each: one block, or arrays of blocks, keys and bits."""
    mask = ((half & 0) + 1 << half) - 1  # of the type of `half`, which may be an array
    left, right = x >> half, x & mask
    for a, b in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ _stir(right, half, mask) ^ (a & mask)
        right = right ^ _stir(left, half, mask) ^ (b & mask)
    return (left << half) | right


def _stir(w: Any, half: int, mask: int) -> Any:
    """SIMON's round function: rotations by 1, 8 and 2 of a word of `half` bits; masked once, at the end."""
    by_1 = (w << 1) | (w >> (half - 1))
    by_8 = (w << 8) | (w >> (half - 8))
    by_2 = (w << 2) | (w >> (half - 2))
    return ((by_1 & by_8) ^ by_2) & mask


@functools.lru_cache(maxsize=1024)
def _scalar_keys(seed: int, rounds: int) -> tuple[int, ...]:
    return round_keys(seed, rounds)


@functools.lru_cache(maxsize=8)
def _round_tables(seed: int, rounds: int, half: int) -> tuple[np.ndarray, ...]:
    """For each round, what a word contributes to the other one, key included."""
    stirred = _stir(np.arange(1 << half, dtype=np.int64), half, (1 << half) - 1)
    return tuple(stirred ^ (key & ((1 << half) - 1)) for key in _scalar_keys(seed, rounds))


def _encrypt_by_tables(x: np.ndarray, tables: tuple[np.ndarray, ...], half: int) -> np.ndarray:
    left, right = x >> half, x & ((1 << half) - 1)
    for a, b in zip(tables[::2], tables[1::2], strict=True):
        left ^= a.take(right)
        right ^= b.take(left)
    left <<= half
    left |= right
    return left


def _cipher(seed: int, rounds: int, half: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the cipher on int64 arrays; a 64-bit block may come out negative, read it as unsigned."""
    if half <= _TABLE_BITS:
        tables = _round_tables(seed, rounds, half)
        return lambda x: _encrypt_by_tables(x, tables, half)
    keys = _scalar_keys(seed, rounds)
    return lambda x: encrypt(x.astype(np.uint64), keys, half).view(np.int64)


def _shuffle_one(n: int, length: int, seed: int) -> int:
    epoch, position = divmod(n, length)
    seed = (seed + epoch) & _WORD
    if length < SMALL and (table := find_table(length, seed)) is not None:
        return int(table[position]) + epoch * length
    return walk_one(position, _scalar_keys(seed, ROUNDS), half_bits(length), length) + epoch * length


_steps_walked: dict[tuple[int, int], int] = {}


def find_table(length: int, seed: int) -> np.ndarray | None:
    """Return the table of an epoch if it is kept, or if so many single indices were asked for that it is the cheaper
    way.

    A table costs about as much as 4,000 steps of walking; an access takes SMALL / length steps on average. Who has
    asked for half as much is likely to ask for more.
    """
    table = _tables.find(length, seed)
    if table is not None:
        return table
    steps = _steps_walked.get((length, seed), 0) + SMALL // length
    if steps > 2000:
        _steps_walked.pop((length, seed), None)  # a table that is dropped has to be earned again
        return _tables.make(length, seed)
    if len(_steps_walked) > _MOST_COUNTED:
        _steps_walked.clear()
    _steps_walked[length, seed] = steps
    return None


def walk_one(x: int, keys: Sequence[int], half: int, length: int) -> int:
    """Return `encrypt` until below the length, for one Python integer, written out: it serves single accesses."""
    if half == 8 and len(keys) == ROUNDS:
        return cipher16.walk_one(x, keys, length)
    mask = (1 << half) - 1
    by_1, by_8, by_2 = half - 1, half - 8, half - 2
    while True:
        left, right = x >> half, x & mask
        for n in range(0, len(keys), 2):
            left ^= (
                ((right << 1 | right >> by_1) & (right << 8 | right >> by_8)) ^ (right << 2 | right >> by_2) ^ keys[n]
            ) & mask
            right ^= (
                ((left << 1 | left >> by_1) & (left << 8 | left >> by_8)) ^ (left << 2 | left >> by_2) ^ keys[n + 1]
            ) & mask
        x = left << half | right
        if x < length:
            return x


class _EpochTables:
    """Tables of epochs, up to a number of bytes. The oldest is dropped first."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int], np.ndarray] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, length: int, seed: int) -> np.ndarray | None:
        return self._tables.get((length, seed))

    def make(self, length: int, seed: int) -> np.ndarray:
        table = cipher16.make_table(_scalar_keys(seed, ROUNDS), length)
        with self._lock:
            if (length, seed) not in self._tables:  # another thread may have made it meanwhile
                self._tables[length, seed] = table
                self._bytes += table.nbytes + _ENTRY_BYTES
            while self._bytes > _KEPT_BYTES:
                self._bytes -= self._tables.pop(next(iter(self._tables))).nbytes + _ENTRY_BYTES
        return table

    def clear(self) -> None:
        with self._lock:
            self._tables.clear()
            self._bytes = 0


_tables = _EpochTables()


def _host_table(length: int, seed: int) -> np.ndarray:
    table = _tables.find(length, seed)
    return _tables.make(length, seed) if table is None else table


def forget_tables() -> None:
    """Drop all tables of epochs, as for a measurement that should pay for its own."""
    _tables.clear()
    _steps_walked.clear()


def _permute_traced(i: Any, *, length: int, seed: Any, rounds: int, xp: ModuleType) -> Any:
    if length < SMALL and rounds == ROUNDS and xp.ndim(seed) == 0:
        return epoch_table(length, seed, xp)[i]
    return walk(i, length=length, seed=seed, rounds=rounds, xp=xp)


def walk(i: Any, *, length: Any, seed: Any, rounds: int = ROUNDS, xp: ModuleType) -> Any:
    """`permute` under JAX without a table, and for a length that may be traced itself.

    It takes about SMALL / length times log(size of `i`) steps. On a CPU a table of all indices takes longer.

    On an accelerator the host reads after every turn of the loop whether another one is needed, which takes longer than
    many steps. So there a turn has as many steps as are likely to be enough, up to `STEPS_PER_TURN`.
    """
    from jax import lax

    turn, turn_on_cpu, word = 1, 1, xp.uint32
    keys = round_keys(seed, rounds, xp)
    if isinstance(length, int):
        if length > 1 << 31:
            raise ValueError(f"Under JAX a shuffle has 32-bit words: the length must be at most 2**31, got {length}.")
        half: Any = half_bits(length)
        turn = _likely_steps(xp.size(i), length)
        if length < SMALL:
            word = xp.uint16  # blocks of 16 bits: a vector unit works on twice as many at once
            turn_on_cpu = min(turn, _STEPS_PER_TURN_ON_CPU)
            keys = tuple((key & 0xFF).astype(word) * word(0x101) for key in keys)
        limit = word(length)
    else:
        limit = xp.asarray(length).astype(xp.uint32)
        bits = 32 - lax.clz(xp.maximum(limit, 1) - 1)
        half = (xp.maximum(bits, 16) + 1) // 2

    def step(x: Any) -> Any:
        return _encrypt_twins(x, keys) if word is xp.uint16 else encrypt(x, keys, half)

    def walk_in_turns(x: Any, steps: int) -> Any:
        def take_turn(x: Any) -> Any:
            return lax.fori_loop(0, steps, lambda _, x: xp.where(x >= limit, step(x), x), x, unroll=steps)

        return lax.while_loop(lambda x: (x >= limit).any(), take_turn, take_turn(x) if steps > 1 else x)

    x = step(xp.asarray(i).astype(word))
    if turn == turn_on_cpu:
        x = walk_in_turns(x, turn)
    else:
        in_long_turns = functools.partial(walk_in_turns, steps=turn)
        x = lax.platform_dependent(x, cpu=functools.partial(walk_in_turns, steps=turn_on_cpu), default=in_long_turns)
    return x.astype(xp.int32)


def _encrypt_twins(x: Any, keys: Sequence[Any]) -> Any:
    """Return `encrypt` on blocks of 16 bits, for vectors. The keys are bytes that are repeated in 16 bits.

    Each word of 8 bits is held twice in 16 bits. Rotating the 16 bits then rotates both copies. So no bits need to be
    masked, and a rotation is one instruction of some CPUs, which is not so for words of 8 bits.
    """
    left, right = (x & 0xFF00) | (x >> 8), (x << 8) | (x & 0xFF)
    for a, b in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ _stir_twins(right) ^ a
        right = right ^ _stir_twins(left) ^ b
    return (left & 0xFF00) | (right & 0xFF)


def _stir_twins(w: Any) -> Any:
    return (((w << 1) | (w >> 15)) & w) ^ ((w << 2) | (w >> 14))


def _likely_steps(count: int, length: int) -> int:
    """Return how many steps more than the first one bring all of `count` values below the length, in nine of ten
    cases.
    """
    outside = 1 - length / (1 << 2 * half_bits(length))
    return 1 if outside <= 0 else min(STEPS_PER_TURN, math.ceil(math.log(10 * max(1, count)) / -math.log(outside)))


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
        self._halves = np.array([half_bits(length) for length in lengths], dtype=np.uint64)

    def shuffle(self, which: np.ndarray, i: np.ndarray) -> np.ndarray:
        """Return position `i[n]` of shuffle `which[n]` -> the shuffled position; both are int64 arrays of one
        length.
        """
        rows = epochs.group(which)
        if len(which) > _FEW * len(rows):
            found = np.empty_like(i)
            for number, here in rows.items():
                length, seed = int(self._lengths[number]), int(self._seeds[number])
                found[here] = shuffle(i[here], length=length, seed=seed)
            return found
        return self._shuffle_each(which, i)

    def _shuffle_each(self, which: np.ndarray, i: np.ndarray) -> np.ndarray:
        lengths = self._lengths[which]
        epoch, position = np.divmod(i, lengths)
        seeds = (self._seeds[which] + epoch) & 0xFFFFFFFF
        shuffled = np.empty_like(position)
        rows = []  # those for which there is no table
        for row, (length, seed, place) in enumerate(zip(lengths.tolist(), seeds.tolist(), position.tolist())):
            table = find_table(length, seed) if length < SMALL else None
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
    """Return the cipher of each seed, again and again until the value falls below the length."""
    keys = np.stack(_keys_of(seeds))
    limits, x = lengths.astype(np.uint64), position.astype(np.uint64)
    walked = np.empty_like(position)
    rows = np.arange(len(position))
    while rows.size > _FEW:
        x = encrypt(x, keys, halves)  # type: ignore[arg-type]
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
        walked[row] = walk_one(value, its_keys, half, limit)
    return walked


def _walk_small(position: np.ndarray, lengths: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Return `_walk` for lengths below 2**16, where a step is two look-ups in a table."""
    keys = [key.view(np.int64) for key in _keys_of(seeds)]
    table = cipher16.two_rounds()

    def step(x: np.ndarray, before: np.ndarray, between: np.ndarray, after: np.ndarray) -> np.ndarray:
        return table.take(table.take(x ^ before) ^ between) ^ after

    parts = np.stack(cipher16.split_keys(keys))
    walked = step(position, *parts)
    rows = np.flatnonzero(walked >= lengths)
    while rows.size > _FEW_SMALL:
        x, own_parts, limits = walked[rows], parts[:, rows], lengths[rows]
        for _ in range(_STEPS):
            x = np.where(x >= limits, step(x, *own_parts), x)
        walked[rows] = x
        rows = rows[x >= limits]
    for row, own_keys in zip(rows.tolist(), np.stack(keys)[:, rows].T.tolist(), strict=True):
        walked[row] = cipher16.walk_one(int(walked[row]), own_keys, int(lengths[row]))
    return walked


def _keys_of(seeds: np.ndarray) -> list[np.ndarray]:
    return [key.astype(np.uint64) for key in round_keys(seeds.astype(np.uint32), ROUNDS, np)]


def drawn(offsets: np.ndarray, heights: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
    """Return places in an epoch of draws -> what is drawn, in proportion to weights whose running sum is `heights`.

    The epoch's draws are spread evenly over the weights, then shuffled. So an entry with a share of s of all weights
    comes floor(s * n) or ceil(s * n) times in every epoch of n draws.
    """
    count = len(heights)
    stratum = permute(offsets, length=count, seed=(seed + epoch) & _WORD)
    within = _generator(seed, epoch).random()
    points = (stratum + within) * (heights[-1] / count)
    last = np.searchsorted(heights, heights[-1])  # rounding may not take a point past the last entry with a weight
    return np.minimum(np.searchsorted(heights, points, side="right"), last)


def weighted_order(weights: np.ndarray, *, seed: int, epoch: int) -> np.ndarray:
    """Return all entries with a weight above zero, once each, heavy ones early: as if drawn one by one without
    replacement.
    """
    there = np.flatnonzero(weights)
    # An exponential clock for each entry, as fast as its weight: they ring in the order of such draws.
    clocks = _generator(seed, epoch).standard_exponential(len(weights))[there] / weights[there]
    return there[np.argsort(clocks, kind="stable")]


def sorted_order(values: np.ndarray, *, noise: float, seed: int, epoch: int) -> np.ndarray:
    """Return entries by value, small ones first; `noise` from 0 (sorted) to 1 (shuffled) says how much chance is in it.

    An entry's key is its rank as a fraction, weighed by 1 - noise, and a random fraction, weighed by noise.
    """
    order = np.argsort(values, kind="stable")
    if not noise:
        return order
    keys = np.empty(len(values))
    keys[order] = np.arange(len(values)) / max(1, len(values))
    keys = (1 - noise) * keys + noise * _generator(seed, epoch).random(len(values))
    return np.argsort(keys, kind="stable")


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=(seed & _WORD) | (epoch & ((1 << 96) - 1)) << 32))
