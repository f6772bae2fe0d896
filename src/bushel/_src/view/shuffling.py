"""How far a pipeline moves the records of a source away from their neighbours. By arithmetic: nothing is read."""

from __future__ import annotations

import dataclasses

import numpy as np

from bushel._src.base.checks import INFINITE
from bushel._src.graph.node import MapNode, Node
from bushel._src.view.mixture import name_source_of
from bushel._src.view.output_records import Records, Trace, count_outputs, trace_outputs

MEDIAN = 1 - 0.5**0.5
"""The median distance of two records that are drawn at random, as a part of the length: 29.3 %."""

ENDLESS = 1 << 48
"""Batches of an endless pipeline have a length, too: the largest whole number, divided by the size of a batch."""

ENOUGH = 15
"""Fewer distances say little about a shuffle."""

POINTS = 1500
"""The map of positions has at most so many points."""


@dataclasses.dataclass(frozen=True)
class Order:
    """The order in which the records of one source come."""

    source: str
    component: tuple[int, ...]
    length: int
    """How many records the source has."""
    records: int
    """How many of them were looked at, in the order in which they are delivered."""
    distance: float
    """The median distance in the source of two records that come one after the other."""
    expected: float
    """What this distance is for records that are drawn at random from the whole source."""
    adjacent: float
    """The share of records that come directly after a neighbour of theirs in the source."""
    together: float | None
    """The share of the records of a batch that have a neighbour of theirs in it; None if outputs are no batches."""
    reach: int
    """How far from its place in the source a record is, at most: a window or a buffer is not larger than this."""
    histogram: tuple[list[int], list[int]]
    """Distances between records that come one after the other: (lower edges, counts). Each bin is twice as wide."""
    verdict: str


@dataclasses.dataclass(frozen=True)
class OrderMap:
    """Where in a source the outputs of a pipeline come from, over a whole epoch of the pipeline."""

    source: str
    component: tuple[int, ...]
    length: int
    outputs: list[int]
    positions: list[int]


def measure_order(found: Trace) -> list[Order]:
    """The order of each source in the traced outputs.

    >>> from bushel import MapDataset
    >>> from bushel._src.view.output_records import first_outputs
    >>> def order(ds):
    ...     return measure_order(trace_outputs(ds._node, first_outputs(1000)))[0]
    >>> order(MapDataset.range(5000)).adjacent
    1.0
    >>> shuffled = order(MapDataset.range(5000).shuffle(seed=1))
    >>> shuffled.adjacent < 0.01, 0.9 < shuffled.distance / shuffled.expected < 1.1
    (True, True)
    """
    batched = sum(len(part.rows) for part in found.records) > found.outputs
    return [_measure(part, batched) for part in found.records if len(part.indices)]


def _measure(part: Records, batched: bool) -> Order:
    length = part.leaf.length
    epoch, position = np.divmod(part.indices, max(1, min(length, INFINITE)))
    same = epoch[1:] == epoch[:-1]
    steps = np.abs(np.diff(position))[same]
    distance = float(np.median(steps)) if len(steps) else 0.0
    adjacent = float((steps == 1).mean()) if len(steps) else 0.0
    reach = _find_reach(epoch, position)
    return Order(
        source=name_source_of(part.leaf),
        component=part.component,
        length=length,
        records=len(position),
        distance=distance,
        expected=MEDIAN * length,
        adjacent=adjacent,
        together=_count_together(part.rows, part.indices) if batched else None,
        reach=reach,
        histogram=_bins(steps),
        verdict=_judge(length, steps, adjacent, reach),
    )


def _find_reach(epoch: np.ndarray, position: np.ndarray) -> int:
    """The largest distance between the place of a record in the source and its turn among the records of its epoch.

    0 if the epochs are mixed up, so that records have no turn.
    """
    if not len(epoch) or np.any(np.diff(epoch) < 0):
        return 0
    moved = position - (np.arange(len(epoch)) - np.searchsorted(epoch, epoch))
    return int(np.abs(moved - int(np.median(moved))).max())  # a slice moves all records alike, which is no shuffle


def _count_together(rows: np.ndarray, indices: np.ndarray) -> float:
    """The share of records with a neighbour of theirs in the same output."""
    order = np.lexsort((indices, rows))
    near = (np.diff(rows[order]) == 0) & (np.abs(np.diff(indices[order])) == 1)
    with_neighbour = np.zeros(len(rows), dtype=bool)
    with_neighbour[1:] |= near
    with_neighbour[:-1] |= near
    return float(with_neighbour.mean())


def _bins(steps: np.ndarray) -> tuple[list[int], list[int]]:
    """Counts of distances in [0, 1), [1, 2), [2, 4), [4, 8), ..."""
    if not len(steps):
        return [], []
    # The number of binary digits of a distance is the number of its bin.
    digits = np.where(steps > 0, np.frexp(steps.astype(np.float64))[1], 0)
    counts = np.bincount(digits)
    return [0, *(1 << digit for digit in range(len(counts) - 1))], counts.tolist()


def _judge(length: int, steps: np.ndarray, adjacent: float, reach: int) -> str:
    """One sentence about the order."""
    if len(steps) < 2:
        return f"{len(steps) + 1} of {length:,} records: too few to say."
    distance, expected = float(np.median(steps)), MEDIAN * length
    if adjacent > 0.99:
        return "In the order of the source: each record comes directly after its neighbour."
    if (steps == steps[0]).all():
        return f"In the order of the source: each record is {steps[0]:,} places from the one before."
    if len(steps) < ENOUGH:
        return f"{len(steps) + 1} of {length:,} records: too few to say how well they are shuffled."
    apart = f"records that come one after the other are {distance:,.0f} apart in the source (median)"
    chance = f"records drawn at random are {expected:,.0f} apart"
    if adjacent > 0.5:
        return f"Hardly shuffled: {adjacent:.0%} of the records come directly after a neighbour."
    if 0 < reach < length // 2 and distance < 0.5 * expected:
        return f"Shuffled within a part of the source, at most {reach:,} places away: {apart}; {chance}."
    if distance < 0.2 * expected:
        return f"Neighbours stay together, in rows or in groups that are shuffled as a whole: {apart}; {chance}."
    return f"Shuffled over the whole source: {apart}; {chance}."


def map_positions(node: Node, points: int = POINTS) -> list[OrderMap]:
    """Where outputs come from: evenly spaced outputs of one epoch of the pipeline, and their records.

    For a pipeline without an end these are the first outputs.
    """
    length = count_outputs(node)
    fan_in = node.fan_in if isinstance(node, MapNode) else 1
    count = max(points // 10, points // max(1, fan_in))  # a batch has many records
    if length is None or length >= ENDLESS:
        outputs = np.arange(count)
    else:
        outputs = np.unique(np.linspace(0, max(0, length - 1), min(count, max(1, length))).astype(np.int64))
    found = trace_outputs(node, outputs)
    outputs = outputs[: found.outputs]
    maps = []
    for part in found.records:
        if not len(part.indices):
            continue
        keep = slice(None, None, -(-len(part.indices) // points))
        maps.append(
            OrderMap(
                name_source_of(part.leaf),
                part.component,
                part.leaf.length,
                outputs[part.rows[keep]].tolist(),
                (part.indices[keep] % max(1, part.leaf.length)).tolist(),
            )
        )
    return maps
