"""Packing as arithmetic: lengths of sequences in, positions in rows of fixed length out. Tokens: graph/pack_stream.py.

Lengths are arrays of shape (sequences, features), since an element may have several sequences that must all fit the
same row. A feature has a capacity: how long its rows are.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from bushel._src.base import checks

STRATEGIES = ("first_fit", "best_fit")


@dataclasses.dataclass(frozen=True, eq=False)
class SequencePositions:
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
    >>> bins.put([[6, 7, 4, 3, 1]])  # the last one fits in no bin
    4
    >>> bins.positions().rows.tolist(), bins.positions().starts[:, 0].tolist()
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
        checks.choice(strategy, STRATEGIES, "strategy")
        self._capacities = np.asarray(capacities, dtype=np.int64)
        self._count = count
        self._best = strategy == "best_fit"
        self._alignments = None if alignments is None else np.asarray(alignments, dtype=np.int64)
        self._most = most
        # Room is below zero in a row where nothing may come any more.
        self._has_one_number = len(self._capacities) == 1 and self._alignments is None
        if not self._has_one_number:
            self._free = np.repeat(self._capacities[:, None], count, axis=1)
        elif self._best:
            self._sorted_room = [int(self._capacities[0]) * count + row for row in range(count)]
        else:
            self._most_room = _make_tree(int(self._capacities[0]), count)
        self._members = [0] * count
        self._used = 0
        self._rows: list[int] = []
        self._lengths: list[list[int]] = [[] for _ in self._capacities]

    @property
    def used(self) -> int:
        """How many rows hold a sequence. They are the first ones."""
        return self._used

    @property
    def empty(self) -> int:
        """How many rows hold none. So many sequences, at least, will still find a row."""
        return self._count - self._used

    def put(self, columns: Sequence[Sequence[int]] | np.ndarray, first: int = 0) -> int:
        """Put sequences into rows, one after the other. Return the number of the first that fits in no row.

        No length may be above its capacity: see `too_long`.

        Args:
          columns: for each feature, the lengths of all sequences.
          first: the sequence to begin with.
        """
        placed = len(self._rows)
        if self._has_one_number:
            lengths = columns[0].tolist() if isinstance(columns, np.ndarray) else columns[0]
            (self._put_best if self._best else self._put_first)(lengths, first)
        else:
            self._put(np.asarray(columns, dtype=np.int64), first)
        last = first + len(self._rows) - placed
        for mine, column in zip(self._lengths, columns):
            mine.extend(column[first:last])
        return last

    def _put(self, columns: np.ndarray, first: int) -> None:
        for number in range(first, columns.shape[1]):
            needs = columns[:, number]
            fits = np.all(self._free >= needs[:, None], axis=0)
            row = self._fullest(fits, self._free.sum(axis=0)) if self._best else int(fits.argmax())
            if not fits[row]:
                return
            self._rows.append(row)
            self._members[row] += 1
            self._free[:, row] -= needs if self._alignments is None else _up_to(needs, self._alignments)
            if self._members[row] == self._most:
                self._free[:, row] = -1
            self._used = max(self._used, row + 1)

    # With one feature, the room of a row is one number. Most of the time that packing takes is in these loops. NumPy
    # would take longer to look at all rows than Python takes to look at the few that count.

    def _put_first(self, lengths: Sequence[int], first: int) -> None:
        """First fit, by a tree: an entry has the most room in the two entries below it, down to single rows."""
        room, rows, members, most, used = self._most_room, self._rows, self._members, self._most, self._used
        leaves = len(room) // 2
        for number in range(first, len(lengths)):
            length = lengths[number]
            if room[1] < length:
                break
            at = 1
            while at < leaves:
                at *= 2
                if room[at] < length:
                    at += 1
            row = at - leaves
            rows.append(row)
            members[row] += 1
            left = room[at] = -1 if members[row] == most else room[at] - length
            while at > 1:
                beside = room[at ^ 1]
                left = beside if beside > left else left
                at //= 2
                if room[at] == left:
                    break
                room[at] = left
            if row == used:
                used += 1
        self._used = used

    def _put_best(self, lengths: Sequence[int], first: int) -> None:
        """Best fit, by a sorted list. For each row that is not closed it has (room * number of rows + row)."""
        room, rows, members, most, used = self._sorted_room, self._rows, self._members, self._most, self._used
        count = self._count
        for number in range(first, len(lengths)):
            takes = lengths[number] * count
            index = bisect.bisect_left(room, takes)
            if index == len(room):
                break
            had = room.pop(index)
            row = had % count
            rows.append(row)
            members[row] += 1
            if members[row] != most:
                bisect.insort(room, had - takes)
            if row == used:
                used += 1
        self._used = used

    def _fullest(self, fits: np.ndarray, free: np.ndarray) -> int:
        """Return the first of the rows with least room among those where it fits."""
        return int(np.where(fits, free, _MANY).argmin())

    def positions(self) -> SequencePositions:
        """Return where the sequences so far went."""
        rows = np.array(self._rows, dtype=np.int64)
        takes = np.array(self._lengths, dtype=np.int64)
        if self._alignments is not None:
            takes = _up_to(takes, self._alignments[:, None])
        order = np.argsort(rows, kind="stable")
        firsts = np.searchsorted(rows[order], rows[order])
        before = np.cumsum(takes[:, order], axis=1) - takes[:, order]
        segments, starts = np.empty_like(rows), np.empty(takes.shape[::-1], dtype=np.int64)
        segments[order] = np.arange(len(rows)) - firsts + 1
        starts[order] = (before - before[:, firsts]).T
        return SequencePositions(rows, starts, segments)


_MANY = np.iinfo(np.int64).max


def _make_tree(room: int, count: int) -> list[int]:
    """Return a tree for `_put_first`: entry n is above the entries 2n and 2n + 1, and the last half are single
    rows.
    """
    leaves = 1 << (count - 1).bit_length()
    tree = [-1] * leaves + [room] * count + [-1] * (leaves - count)
    for at in range(leaves - 1, 0, -1):
        tree[at] = max(tree[2 * at], tree[2 * at + 1])
    return tree


def _up_to(lengths: np.ndarray, alignments: np.ndarray) -> np.ndarray:
    """Return what sequences take where all begin at multiples of something."""
    return -(-lengths // alignments) * alignments


def too_long(lengths: np.ndarray, capacities: Sequence[int] | np.ndarray) -> int | None:
    """Return the first sequence that is longer than a row in some feature; None if none is."""
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
) -> SequencePositions:
    """Place all sequences, `bins` rows at a time: where one fits in none of them, new ones are begun with it.

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
    columns = lengths.T.tolist() if lengths.shape[1] == 1 else lengths.T
    parts: list[SequencePositions] = []
    first = row = 0
    while first < len(lengths):
        group = Bins(capacities, bins, strategy=strategy, alignments=alignments, most=most)
        first = group.put(columns, first)
        placed = group.positions()
        parts.append(dataclasses.replace(placed, rows=placed.rows + row))
        row += group.used
    if not parts:
        parts.append(Bins(capacities, bins).positions())
    return SequencePositions(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))


_NAMES = [field.name for field in dataclasses.fields(SequencePositions)]


@dataclasses.dataclass(frozen=True, eq=False)
class PiecePositions(SequencePositions):
    """Where pieces of sequences go: of which sequence, from where in it, how much of it.

    `offsets` and `sizes` have shape (pieces, features), as `starts`.
    """

    sequences: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray


def concat_split(lengths: np.ndarray, capacities: Sequence[int] | np.ndarray) -> PiecePositions:
    """Return sequences one after the other, cut where a row is full; only the last row may have room left.

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


def _concat_split_one(lengths: np.ndarray, capacity: int) -> PiecePositions:
    """Return the same for one feature, by arithmetic alone."""
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
) -> PiecePositions:
    segments = np.arange(len(rows)) - np.searchsorted(rows, rows) + 1
    return PiecePositions(rows, starts, segments, sequences, offsets, sizes)


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
        """Return which sequence of its row each cell belongs to, from 1; 0 in gaps. Shape (rows, length), int32."""
        ids = np.zeros(len(self.runs), dtype=np.int32)
        ids[1::2] = self._segments[self.order]
        return np.repeat(ids, self.runs).reshape(self.rows, self.length)

    def positions(self) -> np.ndarray:
        """Return where in its piece each cell is, from 0; 0 in gaps. Shape (rows, length), int32."""
        begins = np.cumsum(self.runs) - self.runs
        positions = np.repeat(begins.astype(np.int32), self.runs)
        np.subtract(_counting(self.rows * self.length), positions, out=positions)
        gaps = self.runs[::2]
        inside = np.cumsum(gaps)
        if inside[-1]:
            positions[np.repeat(begins[::2] - inside + gaps, gaps) + np.arange(inside[-1])] = 0
        return positions.reshape(self.rows, self.length)


@functools.lru_cache(maxsize=8)
def _counting(count: int) -> np.ndarray:
    """0, 1, 2, ..., kept: memory that is not touched anew costs nothing."""
    numbers = np.arange(count, dtype=np.int32)
    numbers.setflags(write=False)
    return numbers


def layout(
    rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray, segments: np.ndarray, *, count: int, length: int
) -> Layout:
    """Return pieces of one feature (their rows, starts, sizes and segments, in any order) laid out in `count` rows.

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
