"""Quantiles of a stream of numbers: exact within a budget of memory, with a known error beyond it. They can merge."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_LEAST_ROWS = 1024


class Quantiles:
    """The quantiles of each column of rows of float32 numbers.

    Up to `budget_bytes` all rows are kept, and quantiles equal those of `np.quantile`. Beyond that rows are sorted and
    every second one is dropped. The others then count as two rows, later as four, and so on. `rank_error` bounds the
    error: the rank of a result among all rows differs from the exact rank by at most that many rows. With K rows kept
      of
    n it is below (n / K) * levels * (levels + 1), where levels is about log2(n / K) + 3: for a hundred times
    the budget of ten million rows, less than one in 90,000.

    >>> quantiles = Quantiles(1)
    >>> quantiles.add(np.arange(101, dtype=np.float32)[:, None])
    >>> quantiles.at(0.99).tolist(), quantiles.rank_error
    ([99.0], 0)
    """

    def __init__(self, width: int, budget_bytes: int = 1 << 28):
        self.width = width
        self.count = 0
        self.rank_error = 0
        self._most_rows = max(_LEAST_ROWS, budget_bytes // (4 * max(1, width)))
        self._levels: list[list[np.ndarray]] = []  # arrays of rows; a row of level h counts as 2**h rows
        self._sizes: list[int] = []  # number of rows of each level
        # Whether the next compaction of a level keeps the second row of each pair. This alternates.
        self._later: list[bool] = []
        self._add_level()

    @property
    def rows_kept(self) -> int:
        """The number of rows in memory."""
        return sum(self._sizes)

    @property
    def levels(self) -> int:
        """The number of levels; 1 as long as all rows are kept."""
        return len(self._levels)

    def add(self, rows: np.ndarray) -> None:
        """Adds rows, float32[n, width]."""
        self._check(rows.shape[-1])
        # A copy, since `rows` may be a view that keeps a large array in memory.
        self._put(0, [np.array(rows, np.float32)])
        self.count += len(rows)
        self._compact()

    def absorb(self, other: Quantiles) -> None:
        """Adds all rows of another object."""
        self._check(other.width)
        for level, pieces in enumerate(other._levels):
            if level == len(self._levels):
                self._add_level()
            self._put(level, pieces)
        self.count += other.count
        self.rank_error += other.rank_error
        self._compact()

    def joined(self) -> Quantiles:
        """The quantiles of all numbers together, as one column."""
        whole = Quantiles(1, 4 * self.width * self._most_rows)
        whole.rank_error = self.rank_error * self.width
        whole.count = self.count * self.width
        for level, pieces in enumerate(self._levels):
            if level == len(whole._levels):
                whole._add_level()
            whole._put(level, [piece.reshape(-1, 1) for piece in pieces])
        return whole

    def at(self, share: ArrayLike) -> np.ndarray:
        """The quantile of each column, float64[width]; for several shares, one row for each share."""
        if not self.count:
            raise ValueError("There are no rows to compute quantiles from.")
        shares = np.asarray(share, np.float64)
        values = np.concatenate([piece for pieces in self._levels for piece in pieces])
        if len(self._levels) == 1:
            columns = [np.quantile(column.astype(np.float64), shares) for column in values.T]
        else:
            weights = np.repeat(1 << np.arange(len(self._sizes)), self._sizes)
            columns = [_select_ranks(column, weights, shares * (self.count - 1)) for column in values.T]
        return np.stack(columns, axis=-1).astype(np.float64) if columns else np.empty((*shares.shape, 0))

    def _check(self, width: int) -> None:
        if width != self.width:
            raise ValueError(f"Rows of {width} numbers cannot be added to rows of {self.width}.")

    def _put(self, level: int, pieces: list[np.ndarray]) -> None:
        self._levels[level].extend(pieces)
        self._sizes[level] += sum(map(len, pieces))

    def _add_level(self) -> None:
        self._levels.append([])
        self._sizes.append(0)
        self._later.append(False)

    def _compact(self) -> None:
        """Halves levels, the lowest large one first, until the rows fit."""
        while self.rows_kept > self._most_rows:
            # At least one level is larger than this, since the sum of all sizes is too large.
            large = self._most_rows // (len(self._levels) + 1)
            level = next(level for level in range(len(self._levels)) if self._sizes[level] > large)
            if level + 1 == len(self._levels):
                self._add_level()
            rows = np.sort(np.concatenate(self._levels[level]), axis=0)
            pairs = len(rows) // 2 * 2
            self._levels[level], self._sizes[level] = [], 0
            self._put(level, [rows[pairs:].copy()])
            self._put(level + 1, [rows[int(self._later[level]) : pairs : 2].copy()])
            self._later[level] = not self._later[level]
            # Half of the rows below any number stay, give or take half a row, and each counts double.
            # So a rank changes by at most one row of this level.
            self.rank_error += 1 << level


def _select_ranks(values: np.ndarray, weights: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The values at these ranks, where each value counts as many times as its weight."""
    order = np.argsort(values)
    return values[order[np.searchsorted(np.cumsum(weights[order]), ranks, side="right")]]
