"""Packing as arithmetic: lengths of sequences in, places in rows of fixed length out. No tokens: see graph/fill.py.

Lengths are arrays of shape (sequences, features), since an element may have several sequences that must all fit the
same row. A feature has a capacity: how long its rows are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

STRATEGIES = ("first_fit", "best_fit")


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """Where sequences go: one entry per sequence, in the order in which they came.

    `rows` numbers the rows through; `starts` has shape (sequences, features); `segments` counts the sequences of a
    row from 1.
    """

    rows: np.ndarray
    starts: np.ndarray
    segments: np.ndarray


class Bins:
    """Rows that are being filled, all at the same time.

    >>> bins = Bins([10], 2)
    >>> bins.place(np.array([[6], [7], [4], [3], [1]]))  # the last one fits in no bin
    4
    >>> bins.placement().rows.tolist(), bins.placement().starts[:, 0].tolist()
    ([0, 1, 0, 1], [0, 0, 6, 7])

    Args:
      capacities: how long a row is, for each feature.
      count: how many rows there are.
      strategy: "first_fit" takes the first row where a sequence fits, "best_fit" the fullest one.
      alignments: sequences start at multiples of these, one for each feature.
      most: so many sequences go into one row, at most.
    """

    def __init__(
        self,
        capacities: Sequence[int] | np.ndarray,
        count: int,
        *,
        strategy: str = "first_fit",
        alignments: Sequence[int] | np.ndarray | None = None,
        most: int | None = None,
    ):
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}.")
        self._capacities = np.asarray(capacities, dtype=np.int64)
        self._count = count
        self._best = strategy == "best_fit"
        self._alignments = None if alignments is None else np.asarray(alignments, dtype=np.int64)
        self._most = most
        self._filled = np.zeros((len(self._capacities), count), dtype=np.int64)
        self._free = self._filled + self._capacities[:, None]  # below zero where nothing may come any more
        self._members = [0] * count
        self._used = 0
        self._rows: list[int] = []
        self._starts: list[Any] = []
        self._segments: list[int] = []

    @property
    def used(self) -> int:
        """How many rows hold a sequence. They are the first ones."""
        return self._used

    @property
    def empty(self) -> int:
        """How many rows hold none. So many sequences, at least, will still find a place."""
        return self._count - self._used

    def place(self, lengths: np.ndarray) -> int:
        """Places sequences one after the other, up to the first that fits in no row; returns how many that were.

        No length may be above its capacity: see `too_long`.
        """
        if lengths.shape[1] == 1 and self._alignments is None:
            return self._place_one_feature(lengths[:, 0].tolist())
        for number, needs in enumerate(lengths):
            fits = (self._free >= needs[:, None]).all(axis=0)
            row = self._choose(fits, self._filled.sum(axis=0) if self._best else None)
            if row is None:
                return number
            start = self._filled[:, row].copy()
            end = start + needs
            if self._alignments is not None:
                end = -(-end // self._alignments) * self._alignments
            self._filled[:, row] = end
            self._enter(row, start, self._capacities - end)
        return len(lengths)

    def _place_one_feature(self, lengths: list[int]) -> int:
        filled, free, capacity = self._filled[0], self._free[0], int(self._capacities[0])
        for number, length in enumerate(lengths):
            row = self._choose(free >= length, filled if self._best else None)
            if row is None:
                return number
            start = int(filled[row])
            end = start + length
            filled[row] = end
            self._enter(row, start, capacity - end)
        return len(lengths)

    def _choose(self, fits: np.ndarray, filled: np.ndarray | None) -> int | None:
        """The first row where it fits, or the first of the fullest ones."""
        row = int(fits.argmax() if filled is None else np.where(fits, filled, -1).argmax())
        return row if fits[row] else None

    def _enter(self, row: int, start: Any, free: Any) -> None:
        members = self._members[row] = self._members[row] + 1
        self._free[:, row] = -1 if members == self._most else free
        if row == self._used:
            self._used += 1
        self._rows.append(row)
        self._starts.append(start)
        self._segments.append(members)

    def placement(self) -> Placement:
        """Where the sequences placed so far went."""
        starts = np.array(self._starts, dtype=np.int64).reshape(len(self._rows), len(self._capacities))
        return Placement(np.array(self._rows, dtype=np.int64), starts, np.array(self._segments, dtype=np.int64))


def too_long(lengths: np.ndarray, capacities: Sequence[int] | np.ndarray) -> int | None:
    """The first sequence that is longer than a row in some feature; None if all can be placed."""
    above = (lengths > np.asarray(capacities)).any(axis=1)
    return int(above.argmax()) if above.any() else None


def fit(
    lengths: np.ndarray,
    capacities: Sequence[int] | np.ndarray,
    bins: int,
    *,
    strategy: str = "first_fit",
    alignments: Sequence[int] | np.ndarray | None = None,
    most: int | None = None,
) -> Placement:
    """Places all sequences, `bins` rows at a time: where one fits in none of them, new ones are begun with it.

    >>> fit(np.array([[6], [7], [4], [3], [1]]), [10], 2).rows.tolist()
    [0, 1, 0, 1, 2]
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    wrong = too_long(lengths, capacities)
    if wrong is not None:
        raise ValueError(
            f"Sequence {wrong} has lengths {lengths[wrong].tolist()} and rows have {np.asarray(capacities).tolist()}. "
            "Truncate it, or make rows longer."
        )
    parts: list[Placement] = []
    first = row = 0
    while first < len(lengths):
        group = Bins(capacities, bins, strategy=strategy, alignments=alignments, most=most)
        first += group.place(lengths[first:])
        placed = group.placement()
        parts.append(dataclasses.replace(placed, rows=placed.rows + row))
        row += group.used
    if not parts:
        parts.append(Bins(capacities, bins).placement())
    return Placement(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


_NAMES = [field.name for field in dataclasses.fields(Placement)]


@dataclasses.dataclass(frozen=True, eq=False)
class Pieces(Placement):
    """Where pieces of sequences go: of which sequence, from where in it, how much of it.

    `offsets` and `sizes` have shape (pieces, features), as `starts`.
    """

    sequences: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray


def concat_split(lengths: np.ndarray, capacities: Sequence[int] | np.ndarray) -> Pieces:
    """Sequences one after the other, cut where a row is full; only the last row may have room left.

    With several features a row ends when the first of them is full; the others then have room left.

    >>> pieces = concat_split(np.array([[3], [6], [2]]), [4])
    >>> pieces.rows.tolist(), pieces.sequences.tolist(), pieces.sizes[:, 0].tolist()
    ([0, 0, 1, 2, 2], [0, 1, 1, 1, 2], [3, 1, 4, 1, 2])
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    capacities = np.asarray(capacities, dtype=np.int64)
    if lengths.shape[1] == 1:
        return _concat_split_one(lengths[:, 0], int(capacities[0]))
    found: list[tuple[int, np.ndarray, np.ndarray, int, np.ndarray]] = []
    filled, row = np.zeros_like(capacities), 0
    for number, length in enumerate(lengths):
        offset = np.zeros_like(length)
        while True:
            taken = np.minimum(length - offset, capacities - filled)
            over = bool((taken < length - offset).any())
            if taken.any() or not over:
                found.append((row, filled, taken, number, offset))
            if not over:
                filled = filled + taken
                break
            offset, filled, row = offset + taken, np.zeros_like(capacities), row + 1
    shape = (len(found), len(capacities))
    rows, starts, sizes, sequences, offsets = zip(*found, strict=True) if found else ([],) * 5
    return _pieces(
        np.array(rows, dtype=np.int64),
        np.array(starts, dtype=np.int64).reshape(shape),
        np.array(sequences, dtype=np.int64),
        np.array(offsets, dtype=np.int64).reshape(shape),
        np.array(sizes, dtype=np.int64).reshape(shape),
    )


def _concat_split_one(lengths: np.ndarray, capacity: int) -> Pieces:
    """The same for one feature, by arithmetic alone."""
    ends = np.cumsum(lengths)
    begins = ends - lengths
    # An empty sequence still goes into a row that is full: only one that needs room begins a new row.
    first = np.where((lengths == 0) & (begins > 0), begins - 1, begins) // capacity
    last = np.where(lengths > 0, ends - 1, begins) // capacity
    counts = np.where(lengths > 0, last - first + 1, 1)
    edges = np.cumsum(counts) - counts
    sequences = np.repeat(np.arange(len(lengths)), counts)
    rows = first[sequences] + np.arange(len(sequences)) - edges[sequences]
    low = np.maximum(begins[sequences], rows * capacity)
    high = np.minimum(ends[sequences], (rows + 1) * capacity)
    starts, offsets, sizes = low - rows * capacity, low - begins[sequences], high - low
    return _pieces(rows, starts[:, None], sequences, offsets[:, None], sizes[:, None])


def _pieces(
    rows: np.ndarray, starts: np.ndarray, sequences: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
) -> Pieces:
    segments = np.arange(len(rows)) - np.searchsorted(rows, rows) + 1
    return Pieces(rows, starts, segments, sequences, offsets, sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Rows of one feature as runs, from the first cell to the last: gap, piece, gap, piece, ..., gap.

    `order` lists the pieces as they lie; `runs` has the lengths of all runs, gaps at even places.
    """

    rows: int
    length: int
    order: np.ndarray
    runs: np.ndarray
    _segments: np.ndarray

    def segment_ids(self) -> np.ndarray:
        """Which sequence of its row each cell belongs to, from 1; 0 in gaps. Shape (rows, length), int32."""
        ids = np.zeros(len(self.runs), dtype=np.int32)
        ids[1::2] = self._segments[self.order]
        return np.repeat(ids, self.runs).reshape(self.rows, self.length)

    def positions(self) -> np.ndarray:
        """Where in its piece each cell is, from 0; 0 in gaps. Shape (rows, length), int32."""
        begins = (np.cumsum(self.runs) - self.runs).astype(np.int32)
        cells = np.arange(self.rows * self.length, dtype=np.int32)
        cells -= np.repeat(begins, self.runs)
        held = np.zeros(len(self.runs), dtype=np.int32)
        held[1::2] = 1
        cells *= np.repeat(held, self.runs)
        return cells.reshape(self.rows, self.length)


def layout(
    rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray, segments: np.ndarray, *, count: int, length: int
) -> Layout:
    """Pieces of one feature (their rows, starts, sizes and segments, in any order) laid out in `count` rows.

    >>> laid = layout(np.array([1, 0]), np.array([0, 1]), np.array([2, 2]), np.array([1, 1]), count=2, length=4)
    >>> laid.runs.tolist(), laid.order.tolist()
    ([1, 2, 1, 2, 2], [1, 0])
    >>> laid.positions().tolist()
    [[0, 0, 1, 0], [0, 1, 0, 0]]
    """
    begins = rows * length + starts
    order = np.lexsort((sizes, begins))  # of two at the same cell, the empty one comes first
    begins, ends = begins[order], (begins + sizes)[order]
    runs = np.empty(2 * len(order) + 1, dtype=np.int64)
    runs[1::2] = ends - begins
    runs[0:-1:2] = begins
    runs[2:-1:2] -= ends[:-1]
    runs[-1] = count * length - (ends[-1] if len(ends) else 0)
    return Layout(count, length, order, runs, segments)
