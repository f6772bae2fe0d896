"""Exact mixtures: in every prefix each part has its share of elements, to within one. Weights may change on the way.

The share of a part after k elements is its quota, a line with the slope of its weight, bent where weights change.
Element j of a part may come once its quota exceeds j - 1, and must have come when its quota reaches j. In no stretch
must more elements come than it has places, so taking the most urgent first always succeeds.

Urgency is worked out for one period of the weights, and until the pattern of a period comes again; from then on, until
the weights change, any position is a look-up.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from bushel.base.checks import INFINITE
from bushel.index import words

LONGEST_PERIOD = 1 << 20
_ROUNDED_PERIOD = 1 << 17
_NEVER = math.inf

Stage = tuple[int, tuple[int, ...]]
"""From this position on, these integer weights."""


def whole_numbers(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights as whole numbers: in the very proportions, if these are of small numbers, else to 1 in 131,072.

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
    numbers = [number // divisor for number in numbers]
    if sum(numbers) <= LONGEST_PERIOD:
        return tuple(numbers)
    total = sum(numbers)
    rounded = [round(Fraction(number * _ROUNDED_PERIOD, total)) for number in numbers]
    for weight, number in zip(weights, rounded, strict=True):
        if weight and not number:
            raise ValueError(
                f"The weight {weight} is less than 1 in {2 * _ROUNDED_PERIOD:,} of the sum of {list(weights)}: "
                "too little for exact shares. Leave this dataset out, or mix without `exact`."
            )
    return tuple(rounded)


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
        self._tables = [np.array(run.table, dtype=np.int32) for run in runs]
        self._ends = np.cumsum([len(table) for table in self._tables])
        self._sizes = np.array([len(table) for table in self._tables])
        self._which = np.concatenate(self._tables)
        self._before = np.array([run.before for run in runs])
        self._per_pass = np.array([np.bincount(table, minlength=quotas.count) for table in self._tables])
        self._rank = np.concatenate([_ranks(table) for table in self._tables])

    def mixed(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the mixture -> (which part, index in it). Before 0 it is as if the first period went on."""
        if positions.dtype == object:
            run = np.searchsorted(self._starts, [min(position, INFINITE) for position in positions], side="right") - 1
        else:
            run = np.searchsorted(self._starts, positions, side="right") - 1
        run = np.maximum(run, 0)
        offset, size = positions - self._starts[run], self._sizes[run]
        passes, place = offset // size, words.narrowed(offset % size) + (self._ends - self._sizes)[run]
        which = self._which[place].astype(np.int64)
        return which, self._before[run, which] + passes * self._per_pass[run, which] + self._rank[place]

    def length(self, lengths: Sequence[int]) -> int:
        """How long the mixture runs before a part would have to give more elements than it has."""
        return min(
            (self._position_of(part, length) for part, length in enumerate(lengths) if length < INFINITE),
            default=INFINITE,
        )

    def _position_of(self, part: int, index: int) -> int:
        """Where element `index` of a part comes; INFINITE if it never does."""
        run = int(np.searchsorted(self._before[:, part], index, side="right")) - 1
        if not self._per_pass[run, part]:
            return INFINITE
        passes, rank = divmod(index - int(self._before[run, part]), int(self._per_pass[run, part]))
        place = int(np.flatnonzero(self._tables[run] == part)[rank])
        return min(INFINITE, int(self._starts[run]) + passes * len(self._tables[run]) + place)


def _ranks(table: np.ndarray) -> np.ndarray:
    """The how-manieth of its part each entry is."""
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
        """The first position after which the quota of a part is `quota` or more."""
        stage = 0
        if len(self._starts) > 1:
            stage = max(0, bisect.bisect_left(self._heights, quota, key=lambda heights: heights[part]) - 1)
        slope, missing = self._slopes[stage][part], quota - self._heights[stage][part]
        return self._starts[stage] - (-missing // slope) if slope else _NEVER

    def runs(self, stage: int) -> list[_Run]:
        """The stage as runs. To be asked stage after stage: each begins with what the ones before have given."""
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
        """The positions [low, high), each given to the part whose next element must come first of those that may."""
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
