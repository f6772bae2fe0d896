"""Many data sets in one index space: position -> (which data set, index in it), for whole arrays.

Mixtures are exact: in every prefix each part has its share of elements, to within one. Weights may change on the way.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np

from bushel._src.base.checks import INFINITE
from bushel._src.index import epochs

LONGEST_PERIOD = 1 << 20
_ROUNDED_PERIOD = 1 << 17
_SHORTEST_STRETCH = 1 << 12
_NEVER = math.inf

Stage = tuple[int, tuple[int, ...]]
"""From this position on, these integer weights."""


def whole_numbers(weights: Sequence[float]) -> tuple[int, ...]:
    """Return weights as whole numbers in the very same proportions.

    A decimal counts as it is written, 0.1 as one tenth.

    >>> whole_numbers([0.5, 0.3, 0.2]), whole_numbers([1 / 3, 2 / 3])
    ((5, 3, 2), (1, 2))
    """
    least = min(weight for weight in weights if weight)
    exact = [Fraction(weight) if isinstance(weight, int) else Fraction(repr(weight)) for weight in weights]
    if max(weights) / least < LONGEST_PERIOD:
        ratios = [Fraction(weight / least).limit_denominator(1000) for weight in weights]
        if all(float(ratio) == weight / least for ratio, weight in zip(ratios, weights, strict=True)):
            exact = ratios  # thirds and the like have no finite decimal
    scale = math.lcm(*(weight.denominator for weight in exact))
    numbers = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*numbers)
    for weight, number in zip(weights, numbers, strict=True):
        if number and number * LONGEST_PERIOD < sum(numbers):
            raise ValueError(
                f"The weight {weight} is less than 1 in {LONGEST_PERIOD:,} of the sum of {list(weights)}: "
                "too little for exact shares. Leave this dataset out, or mix without `exact`."
            )
    return tuple(number // divisor for number in numbers)


def exact_mixture(stages: Sequence[Stage]) -> Quotas | Stretches:
    """Return the mixture of stages of weights, by the rule that suits them."""
    if len(stages) == 1 and sum(stages[0][1]) > LONGEST_PERIOD:
        return Stretches(stages[0][1])
    return Quotas([(start, _rounded(weights)) for start, weights in stages])


def _rounded(weights: tuple[int, ...]) -> tuple[int, ...]:
    """Return weights as they are, if their period is short enough for a table, else to 1 in 131,072, and none lost."""
    total = sum(weights)
    if total <= LONGEST_PERIOD:
        return weights
    return tuple(max(1, round(Fraction(w * _ROUNDED_PERIOD, total))) if w else 0 for w in weights)


@dataclasses.dataclass(slots=True)
class _Run:
    """A stretch of the mixture that goes through one table of parts again and again."""

    start: int
    table: list[int]
    before: list[int]
    """How many elements of each part come before it."""


class Quotas:
    """The exact mixture of stages of weights: position -> (which part, index in it).

    >>> which, index = Quotas([(0, (5, 3, 2))]).mixed(np.arange(10))
    >>> which.tolist(), index.tolist()
    ([0, 1, 0, 2, 0, 1, 0, 1, 0, 2], [0, 0, 1, 0, 2, 1, 3, 2, 4, 1])
    """

    def __init__(self, stages: Sequence[Stage]):
        quotas = _Lines(stages)
        runs = [run for stage in range(len(stages)) for run in quotas.runs(stage)]
        self._starts = np.array([run.start for run in runs])
        tables = [np.array(run.table, dtype=np.int32) for run in runs]
        self._sizes = np.array([len(table) for table in tables])
        self._ends = np.cumsum(self._sizes)
        self._which = np.concatenate(tables)
        self._before = np.array([run.before for run in runs])
        self._per_pass = np.array([np.bincount(table, minlength=quotas.count) for table in tables])
        self._rank = np.concatenate([_ranks(table) for table in tables])

    def mixed(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions of the mixture -> (which part, index in it).

        Before 0 it is as if the first period went on.
        """
        if positions.dtype == object:
            run = np.searchsorted(self._starts, [min(position, INFINITE) for position in positions], side="right") - 1
        else:
            run = np.searchsorted(self._starts, positions, side="right") - 1
        run = np.maximum(run, 0)
        offset, size = positions - self._starts[run], self._sizes[run]
        passes, place = offset // size, epochs.narrowed(offset % size) + (self._ends - self._sizes)[run]
        which = self._which[place].astype(np.int64)
        return which, self._before[run, which] + passes * self._per_pass[run, which] + self._rank[place]

    def length(self, lengths: Sequence[int]) -> int:
        """Return how long the mixture runs before a part would have to give more elements than it has."""
        return min(
            (self._position_of(part, length) for part, length in enumerate(lengths) if length < INFINITE),
            default=INFINITE,
        )

    def _position_of(self, part: int, index: int) -> int:
        """Return where element `index` of a part comes; INFINITE if it never does."""
        run = int(np.searchsorted(self._before[:, part], index, side="right")) - 1
        if not self._per_pass[run, part]:
            return INFINITE
        passes, rank = divmod(index - int(self._before[run, part]), int(self._per_pass[run, part]))
        end, size = int(self._ends[run]), int(self._sizes[run])
        place = int(np.flatnonzero(self._which[end - size : end] == part)[rank])
        return min(INFINITE, int(self._starts[run]) + passes * size + place)


class Stretches:
    """The same for one set of weights with a period too long for a table, cut into stretches.

    Each stretch has a whole number of elements of each part, so that at its end each part is within one element of its
    share; inside it the mixture is that of these numbers. So each part is within two elements of its share in every
    prefix, however far. There are few different stretches, and a table is kept for each.
    """

    def __init__(self, weights: tuple[int, ...]):
        self._weights, self._total = weights, sum(weights)
        least = min(weight for weight in weights if weight)
        # At least one element of each part in a stretch on average, so that none ever has fewer than none.
        self._size = max(_SHORTEST_STRETCH, 1 << (-(-self._total // least) - 1).bit_length())
        self._tables: dict[tuple[int, ...], Quotas] = {}

    def mixed(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions of the mixture -> (which part, index in it)."""
        stretch, place = epochs.split(positions, self._size, to=self._size)
        which, index = np.empty_like(place), np.empty_like(stretch)
        for number in set(stretch.tolist()):
            here = np.flatnonzero(stretch == number)
            which[here], inside = self._table(number).mixed(place[here])
            index[here] = inside + epochs.array(self._before(number))[which[here]]
        return which, index

    def length(self, lengths: Sequence[int]) -> int:
        """Return how long the mixture runs before a part would have to give more elements than it has."""
        return min(
            (self._position_of(part, length) for part, length in enumerate(lengths) if length < INFINITE),
            default=INFINITE,
        )

    def _position_of(self, part: int, index: int) -> int:
        weight = self._weights[part]
        if not weight:
            return INFINITE
        stretch = max(0, index * self._total // (weight * self._size) - 2)
        while self._before(stretch + 1)[part] <= index:
            stretch += 1
        inside = self._table(stretch)._position_of(part, index - self._before(stretch)[part])
        return min(INFINITE, stretch * self._size + inside)

    def _before(self, stretch: int) -> tuple[int, ...]:
        """Return how many elements of each part come before a stretch: shares, rounded so that their sum is right."""
        end = stretch * self._size
        shares = [divmod(end * weight, self._total) for weight in self._weights]
        missing = end - sum(whole for whole, _ in shares)
        nearest = sorted(range(len(shares)), key=lambda part: (-shares[part][1], part))[:missing]
        return tuple(whole + (part in nearest) for part, (whole, _) in enumerate(shares))

    def _table(self, stretch: int) -> Quotas:
        now, then = self._before(stretch), self._before(stretch + 1)
        counts = tuple(after - before for before, after in zip(now, then, strict=True))
        if counts not in self._tables:
            self._tables[counts] = Quotas([(0, counts)])
        return self._tables[counts]


class ToTheLast:
    """Exact mixtures one after another: when a part has run out, the others go on without it, until none is left.

    >>> which, index = ToTheLast((1, 1), [4, 2]).mixed(np.arange(6))
    >>> which.tolist(), index.tolist()
    ([0, 1, 0, 1, 0, 0], [0, 0, 1, 1, 2, 3])
    """

    def __init__(self, weights: Sequence[int], lengths: Sequence[int]):
        self._lengths = np.array(lengths)
        self._mixtures: list[Quotas | Stretches] = []
        self._starts: list[int] = []
        self._given: list[np.ndarray] = []
        self.length = 0
        """How many elements all parts with a weight have together."""
        left = self._lengths
        while (alive := np.where(left > 0, weights, 0)).any() and self.length < INFINITE:
            mixture = exact_mixture([(0, tuple(alive.tolist()))])
            self._mixtures.append(mixture)
            self._starts.append(self.length)
            self._given.append(self._lengths - left)
            length = mixture.length(np.where(alive, left, INFINITE).tolist())
            if length < INFINITE:
                left = left - [_before(mixture, part, length) if weight else 0 for part, weight in enumerate(alive)]
            self.length = min(INFINITE, self.length + length)

    def mixed(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return positions of the mixture -> (which part, index in it).

        After the end come the next epochs of all parts.
        """
        epoch, place = epochs.split(positions, self.length, to=int(self._lengths.max()))
        run = np.searchsorted(self._starts, place, side="right") - 1
        which, index = np.empty_like(place), np.empty_like(place)
        for number in epochs.find_distinct(run)[0].tolist():
            here = np.flatnonzero(run == number)
            which[here], inside = self._mixtures[number].mixed(place[here] - self._starts[number])
            index[here] = inside + self._given[number][which[here]]
        return which, index + epoch * self._lengths[which] if np.any(epoch) else index


def _before(mixture: Quotas | Stretches, part: int, position: int) -> int:
    """Return how many elements of a part come before a position."""
    return bisect.bisect_left(range(position + 1), position, key=lambda index: mixture._position_of(part, index))


def _ranks(table: np.ndarray) -> np.ndarray:
    """Return the how-manieth of its part each entry is."""
    order = np.argsort(table, kind="stable")
    counts = np.bincount(table)
    ranks = np.empty(len(table), dtype=np.int64)
    ranks[order] = np.arange(len(table)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


class _Lines:
    """Quotas as bent lines, in units in which all of them are integers at every position."""

    def __init__(self, stages: Sequence[Stage]):
        self.count = len(stages[0][1])
        self._starts = [start for start, _ in stages]
        self._periods = [sum(weights) for _, weights in stages]
        self._one = math.lcm(*self._periods)
        self._slopes = [[w * (self._one // sum(weights)) for w in weights] for _, weights in stages]
        self._heights = [[0] * self.count]
        for number, end in enumerate(self._starts[1:]):
            rise = [slope * (end - self._starts[number]) for slope in self._slopes[number]]
            self._heights.append([low + up for low, up in zip(self._heights[-1], rise, strict=True)])
        self._given = [0] * self.count

    def _first(self, part: int, quota: int) -> float:
        """Return the first position after which the quota of a part is `quota` or more."""
        stage = 0
        if len(self._starts) > 1:
            stage = max(0, bisect.bisect_left(self._heights, quota, key=lambda heights: heights[part]) - 1)
        slope, missing = self._slopes[stage][part], quota - self._heights[stage][part]
        return self._starts[stage] - (-missing // slope) if slope else _NEVER

    def runs(self, stage: int) -> list[_Run]:
        """Return the stage as runs. To be asked stage after stage: each begins with what the ones before have given."""
        start, period = self._starts[stage], self._periods[stage]
        end = self._starts[stage + 1] if stage + 1 < len(self._starts) else None
        found: list[_Run] = []
        seen: dict[tuple[int, ...], int] = {}
        at = start
        # Within a period of the end, what is urgent depends on the weights to come: no pattern may reach there.
        while end is None or at + 2 * period <= end:
            ahead = tuple(
                given * self._one - low - slope * (at - start)
                for given, low, slope in zip(self._given, self._heights[stage], self._slopes[stage], strict=True)
            )
            if ahead in seen:
                first = seen[ahead]
                again = [part for run in found[first:] for part in run.table]
                found = [*found[:first], _Run(found[first].start, again, found[first].before)]
                if end is None:
                    return found
                per_pass = [now - before for now, before in zip(self._given, found[first].before, strict=True)]
                passes = (end - period - at) // len(again)
                self._given = [given + passes * more for given, more in zip(self._given, per_pass, strict=True)]
                at += passes * len(again)
                break
            seen[ahead] = len(found)
            found.append(self._most_urgent(at, at + period))
            at += period
        if end is not None and at < end:
            found.append(self._most_urgent(at, end))
        return found

    def _most_urgent(self, low: int, high: int) -> _Run:
        """Return the positions [low, high), each given to the part whose next element must come first of those that
        may.
        """
        given, one = self._given, self._one
        waiting = [(self._first(part, number * one + 1), part) for part, number in enumerate(given)]
        heapq.heapify(waiting)
        urgent: list[tuple[float, int]] = []
        run = _Run(low, [], list(given))
        for position in range(low, high):
            while waiting and waiting[0][0] <= position + 1:
                _, part = heapq.heappop(waiting)
                heapq.heappush(urgent, (self._first(part, (given[part] + 1) * one), part))
            _, part = heapq.heappop(urgent)
            run.table.append(part)
            given[part] += 1
            heapq.heappush(waiting, (self._first(part, given[part] * one + 1), part))
        return run


_TABULATED = 1 << 21
"""Periods up to this length are worked out once and looked up from then on. A thousand parts take 30 ms, ten thousand
0.7 s, which is as long as the recurrence takes for a few batches of random positions."""

_GROUP = 16  # so many parts at a time are taken out of the list of free positions

_LEAST = 100  # what the smallest weight becomes when weights are made integers


def integer_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return weights as integers, the smallest scaled to 100 and the rest cut off, as Grain does.

    >>> integer_weights([0.7, 0.3])
    (233, 100)
    """
    scale = _LEAST / min(weights)
    return tuple(int(weight * scale) for weight in weights)


def mixed_length(lengths: Sequence[int], weights: Sequence[int]) -> int:
    """Return how long the mixture runs before its first data set would repeat."""
    total = sum(weights)
    total_lengths = [length / (weight / total) for length, weight in zip(lengths, weights, strict=True)]
    return min(INFINITE, int(min(total_lengths)))


def mixed(k: Any, weights: Sequence[int], xp: ModuleType = np) -> tuple[Any, Any]:
    """Return positions of a mixture -> (which, index), by Grain's integer recurrence.

    The pattern repeats every sum(weights) positions, so the recurrence runs on the position within one period and
    never leaves 64 bits (32 under JAX) for any position.

    >>> which, index = mixed(np.arange(6), (233, 100))
    >>> which.tolist(), index.tolist()
    ([0, 0, 0, 1, 0, 0], [0, 1, 2, 0, 3, 4])
    """
    weights, total = _reduce(tuple(weights))
    if xp is not np and total > 1 << 15:
        raise ValueError(f"Under JAX a mixture has 32-bit words: weights must sum to at most 2**15, got {total}.")
    period, low = epochs.split(k, total, to=total) if xp is np else divmod(k, total)
    if xp is np and total <= _TABULATED:
        table, ranks, per_period = _table(weights)
        which, inside = table[low], ranks[low]
        return which.astype(np.int64), period * per_period[which] + inside
    which, per_period, inside = _recurrence(low, weights, xp)
    index = period * per_period + inside
    return (epochs.narrowed(which), index) if xp is np else (which, index)


@functools.lru_cache(maxsize=64)
def _reduce(weights: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the same proportions in the smallest integers, and their sum.

    The pattern is the same, its period is shorter.
    """
    divisor = math.gcd(*weights)
    reduced = tuple(weight // divisor for weight in weights)
    return reduced, sum(reduced)


@functools.lru_cache(maxsize=8)
def _table(weights: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each position of one period: which part it belongs to, and its rank among the part's; then all weights.

    Position x of the r that are left belongs to the next part, of weight w, if it is x = j * r // w, for some rank j.
    The others move up, to x * (r - w) // r. `free` lists the positions of the period that are left. Removing entries
    from it copies it, so it is done once for several parts: the ranks of a later one are moved back down through those
    before it in the group.
    """
    left = sum(weights)
    which, rank = np.empty(left, dtype=np.int32), np.empty(left, dtype=np.int32)
    free = np.arange(left, dtype=np.int32)
    for first in range(0, len(weights), _GROUP):
        stays = np.ones(left, dtype=bool)
        before: list[tuple[int, int]] = []
        for number, weight in enumerate(weights[first : first + _GROUP], start=first):
            ranks = np.arange(weight)
            places = ranks * left // weight
            for size, taken in reversed(before):
                places = ((places + 1) * size - 1) // (size - taken)
            stays[places] = False
            positions = free[places]
            which[positions], rank[positions] = number, ranks
            before.append((left, weight))
            left -= weight
        free = free[stays]
    return which, rank, np.array(weights)


def _recurrence(low: Any, weights: Sequence[int], xp: ModuleType) -> tuple[Any, Any, Any]:
    """Return positions of one period -> (which, its weight, index in its elements of this period)."""
    remaining = sum(weights)
    if remaining > 3_000_000_000:  # its square would not fit 64 bits
        low = low.astype(object)
    high = low + 1
    which = per_period = inside = xp.zeros_like(low)
    for number, weight in enumerate(weights):
        next_low = low * (remaining - weight) // remaining
        next_high = high * (remaining - weight) // remaining
        count = high - next_high
        here = (low - next_low) != count
        which, per_period = xp.where(here, number, which), xp.where(here, weight, per_period)
        inside = xp.where(here, count - 1, inside)
        remaining -= weight
        low, high = next_low, next_high
    return which, per_period, inside


def concatenated(i: Any, sizes: np.ndarray, ends: np.ndarray) -> tuple[Any, Any]:
    """Return positions of a concatenation -> (which, index); epoch n of the whole is epoch n of each part.

    `sizes` are the lengths of the parts as int64, and `ends` their running sum. The caller keeps both: to make them for
    each call would cost far more than the rest, if there are many parts.
    """
    epoch, position = epochs.split(i, int(ends[-1]), to=int(ends[-1]))
    which = np.searchsorted(ends, position, side="right")
    index = position - (ends - sizes)[which] + epoch * sizes[which]
    return which, index
