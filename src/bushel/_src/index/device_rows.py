"""Which rows of a global batch the devices of one process need. Arithmetic only: no JAX, no data.

A sharding cuts the first axis of a batch into `count` equal parts, and gives each device one of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Share:
    """The parts of a batch that the devices of one process hold under one sharding.

    >>> Share(count=4, parts=(0, 3)).rows(8).tolist()
    [0, 1, 6, 7]
    """

    count: int
    """Into how many equal parts the rows are cut; 1 where every device has all rows."""
    parts: tuple[int, ...]
    """The parts of this process, in order, each once."""

    def rows(self, size: int) -> np.ndarray:
        """The rows of these parts in a batch of `size` rows, which `count` must divide."""
        length = size // self.count
        return (np.array(self.parts, dtype=np.int64)[:, None] * length + np.arange(length)).ravel()


def divisor(shares: Sequence[Share]) -> int:
    """The number that must divide the rows of a batch, so that all of these shardings can cut it.

    >>> divisor([Share(4, (0,)), Share(6, (0,)), Share(1, (0,))])
    12
    """
    return math.lcm(*(share.count for share in shares))


def union_of_rows(shares: Sequence[Share], size: int) -> np.ndarray:
    """The rows of a batch that at least one of several shardings needs on this process, in order.

    >>> union_of_rows([Share(4, (1,)), Share(2, (1,))], 8).tolist()
    [2, 3, 4, 5, 6, 7]
    """
    needed = np.zeros(size, dtype=bool)
    for share in shares:
        needed[share.rows(size)] = True
    return np.flatnonzero(needed)


def place_of(rows: np.ndarray, low: int, high: int) -> slice:
    """Where the rows [low, high) of a batch are in `rows`, which is sorted and has all of them.

    >>> place_of(np.array([2, 3, 6, 7]), 6, 8)
    slice(2, 4, None)
    """
    first = int(np.searchsorted(rows, low))
    return slice(first, first + high - low)


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `size`."""
    return -(-size // multiple) * multiple
