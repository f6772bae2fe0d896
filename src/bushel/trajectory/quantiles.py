"""Quantiles of more numbers than fit into memory: exact within a budget, with a known error beyond it. They merge."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_LEAST_ROWS = 1024


class Quantiles:
    """Rows of float32 numbers, of which any quantile of each column can be told.

    Up to `budget_bytes` all rows are kept and quantiles are those of `np.quantile`. Beyond it rows are sorted and every
    second one is dropped, the others standing for two, then for four, and so on. `rank_error` counts what that can have
    cost: an answer's rank among all rows is at most so many places away from the one asked for. With K rows kept of n
    it is below (n / K) * levels * (levels + 1), where levels is about log2(n / K) + 3: for a hundred times
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
        self._levels: list[list[np.ndarray]] = []  # pieces of rows; one of level h stands for 2**h rows
        self._sizes: list[int] = []  # rows of each level
        self._later: list[bool] = []  # whether the next compaction of a level keeps the later of two: in turns
        self._add_level()

    @property
    def rows_kept(self) -> int:
        """How many rows are in memory."""
        return sum(self._sizes)

    @property
    def levels(self) -> int:
        """How many kinds of rows there are; one as long as all rows are kept."""
        return len(self._levels)

    def add(self, rows: np.ndarray) -> None:
        """Adds rows, float32[n, width]."""
        self._check(rows.shape[-1])
        self._put(0, [np.array(rows, np.float32)])  # a copy: they may be part of something large
        self.count += len(rows)
        self._compact()

    def absorb(self, other: Quantiles) -> None:
        """Adds all rows of another one."""
        self._check(other.width)
        for level, pieces in enumerate(other._levels):
            if level == len(self._levels):
                self._add_level()
            self._put(level, pieces)
        self.count += other.count
        self.rank_error += other.rank_error
        self._compact()

    def at(self, share: ArrayLike) -> np.ndarray:
        """The quantile of each column, float64[width]; for several shares, that for each of them."""
        if not self.count:
            raise ValueError("There are no rows to take quantiles of.")
        shares = np.asarray(share, np.float64)
        values = np.concatenate([piece for pieces in self._levels for piece in pieces])
        if len(self._levels) == 1:
            columns = [np.quantile(column.astype(np.float64), shares) for column in values.T]
        else:
            weights = np.repeat(1 << np.arange(len(self._sizes)), self._sizes)
            columns = [_weighted(column, weights, shares * (self.count - 1)) for column in values.T]
        return np.stack(columns, axis=-1).astype(np.float64) if columns else np.empty((*shares.shape, 0))

    def _check(self, width: int) -> None:
        if width != self.width:
            raise ValueError(f"Rows of {width} numbers cannot join rows of {self.width}.")

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
            large = self._most_rows // (len(self._levels) + 1)  # some level is, since all together are too many
            level = next(level for level in range(len(self._levels)) if self._sizes[level] > large)
            if level + 1 == len(self._levels):
                self._add_level()
            rows = np.sort(np.concatenate(self._levels[level]), axis=0)
            pairs = len(rows) // 2 * 2
            self._levels[level], self._sizes[level] = [], 0
            self._put(level, [rows[pairs:].copy()])
            self._put(level + 1, [rows[int(self._later[level]) : pairs : 2].copy()])
            self._later[level] = not self._later[level]
            # Of the rows below any number those kept are half, or half a row more or less, and count double.
            self.rank_error += 1 << level


def _weighted(values: np.ndarray, weights: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The values at these ranks, if each stands for as many as its weight."""
    order = np.argsort(values)
    return values[order[np.searchsorted(np.cumsum(weights[order]), ranks, side="right")]]
