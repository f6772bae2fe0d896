"""What a worker does, or has done when it died. How workers say so is in processes/ and actors/."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Doing(enum.IntEnum):
    """What a worker does. Only during the last two can a death be the fault of one thing that it does."""

    NOTHING_ALONE = 0
    """It starts, waits for a job or a count, receives a job, or sends a result."""
    BLOCK = 1
    """It computes a block of many rows, or packs it."""
    INIT = 2
    """It runs the user's `worker_init_fn`."""
    LOADING = 3
    """It loads a program, which may import the user's modules."""
    ROW = 4
    """It computes or pickles one row, and nothing else."""


class Activity(NamedTuple):
    """What a worker does, or has done when it died. It says so in memory that survives it. Times are monotonic."""

    doing: Doing
    job: int = -1
    """The number of the job; of the program, while it is being loaded."""
    row: tuple[int, int] = (0, 0)
    """The positions of the row."""
    place: tuple[int, int] = (0, 0)
    """The positions in the row that it computes: those of one element, or of a batch."""
    counted: int = 0
    """How many counting steps the row has reached."""
    row_since: float = 0.0
    """When it began with the row, with loading, or with `worker_init_fn`."""
    since: float = 0.0
    """When it began with the place."""
