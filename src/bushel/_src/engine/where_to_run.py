"""Decides where work runs that could run in several places: in the consumer, in threads or in workers.

The output never depends on it. By default a pipeline decides by measuring. Tests pass decisions of their own to
`PipelineIterator`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from bushel._src.engine.thread_trials import Clock, Trials, TriedThreads
from bushel._src.graph.custom import CustomStream
from bushel._src.graph.node import MapNode, Node

SHIP_S = 200e-6
"""A row is sent to a worker if the work on it takes longer than this, and than sending its bytes."""


def are_worth_sending(row_seconds: Sequence[float]) -> bool:
    """Return whether rows should go to workers.

    Args:
      row_seconds: how long each of the first rows took, beyond the time in which its bytes are sent.

    >>> are_worth_sending([0.3, 1e-3, 1e-3]), are_worth_sending([0.3, 1e-5, 1e-5])
    (True, False)
    """
    return float(np.median(row_seconds)) > SHIP_S  # the median: the first rows may load code and open files


def has_opaque_leaf(node: Node) -> bool:
    """Return whether a part of a stream can only be read in order, by one reader."""
    if isinstance(node, (MapNode, CustomStream)):
        return isinstance(node, CustomStream)
    return not node.parents or any(has_opaque_leaf(parent) for parent in node.parents)


@dataclasses.dataclass(frozen=True)
class WhereToRun:
    """The decisions of one pipeline. By default they follow from what is measured while it runs."""

    tried_rows: int = 8
    """So many rows after an ordered stage are computed in the executor and measured, before `sends_rows` decides."""
    sends_rows: Callable[[Sequence[float]], bool] = are_worth_sending
    """Whether the executor computes the later rows, too; otherwise the consumer does."""
    sends_stream: Callable[[Node], bool] = has_opaque_leaf
    """Whether a worker runs a part of a stream as a whole, such as one source of a mixture."""
    make_trials: Callable[[int], Trials] = Trials
    """Makes what decides when threads are tried that nobody asked for, from the largest number of threads."""
    make_threads: Callable[[int], TriedThreads] = TriedThreads
    """Makes these threads, which decide whether they stay."""
    clock: Clock = dataclasses.field(default_factory=Clock)
    """What measures the consumer, for the trials of threads."""


MEASURED = WhereToRun()
