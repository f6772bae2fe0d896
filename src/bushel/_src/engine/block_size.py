"""How many positions a block should hold, learned from the blocks before."""

from __future__ import annotations

from bushel._src.engine.program import Result
from bushel._src.engine.tally import size_of

BLOCK_S = 20e-3
"""How long a block should take to compute: much longer than handing it over, much shorter than anyone notices."""

MOST_POSITIONS = 1 << 20
"""How many positions may be computed ahead, if nothing else sets a bound."""


class Sizer:
    """Chooses how many positions a block should hold. Small records are sent many at a time.

    Args:
      unit: positions that make one row. A block holds whole multiples of it.
      most: how many positions a block may hold.
      block_bytes: how many bytes the rows of a block should have at most.
      least: positions that are requested together, however long that takes, as far as `most` and `block_bytes` allow.
      block_s: how long a block should take to compute.
    """

    def __init__(self, unit: int, most: int, block_bytes: int, least: int = 1, block_s: float = BLOCK_S):
        self._unit = unit
        self._most = max(1, most // unit)  # in units
        self._block_bytes, self._block_s = block_bytes, block_s
        self._least = self._units = max(1, min(least // unit, self._most))
        self._bytes_each: float | None = None  # bytes of the rows of a position, once a block was seen

    def choose_size(self) -> int:
        """Return the number of positions of the next block."""
        return self._units * self._unit

    def count_within(self, budget_bytes: int) -> int | None:
        """Return how many positions fit into a budget; None before the first block has told their size."""
        return None if self._bytes_each is None else int(budget_bytes / max(self._bytes_each, 1e-9))

    def learn(self, positions: int, seconds: float, size_bytes: int | None) -> None:
        """Learn from a block. If it has no rows, it has no size, and blocks do not grow."""
        if size_bytes is not None or self._bytes_each is None:  # rows that were dropped hold no memory
            self._bytes_each = (size_bytes or 0) / positions
        units = max(1, positions // self._unit)
        by_time = self._block_s * units / max(seconds, 1e-9)
        by_bytes = self._units if size_bytes is None else self._block_bytes * units / max(size_bytes, 1)
        # At most eight times as large as the last one: the first block is not typical, because it loads code.
        wanted = int(min(max(by_time, self._least), by_bytes, 8 * self._units))
        self._units = max(1, min(wanted, self._most))


def measure_result(result: Result) -> int:
    """Return the bytes of the rows of a result: those that a worker has sent, or an estimate."""
    return size_of(result.rows) if result.size_bytes is None else result.size_bytes
