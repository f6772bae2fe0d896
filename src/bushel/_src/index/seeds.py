"""Seeds that an operation gets from its place in the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def derive(seeds_and_depths: Sequence[tuple[int, int]]) -> int:
    """The seed of an operation, from the seeds above it and how far away they are, nearest first.

    >>> derive([(42, 1)])
    3329053876
    """
    entropy = [number for pair in seeds_and_depths for number in pair]
    return int(np.random.SeedSequence(entropy).generate_state(1, dtype=np.uint32)[0])
