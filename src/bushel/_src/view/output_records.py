"""Which records make up the outputs of a pipeline: shares of mixtures, and how far records move. Nothing is read.

`graph/origins.py` answers the same question for one element, as objects. Here the answer is arrays, by arithmetic, so
that many thousands of batches can be counted.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import RowFailed
from bushel._src.graph.mixtures import ExactMix, MixToTheLast
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.reindex import Concatenate, Mix, Repeat, Select
from bushel._src.graph.source_nodes import SourceNode, name_source
from bushel._src.graph.stream_ops import BatchStream, Elementwise, MixStream
from bushel._src.graph.streams import Elements, SeedStream, StreamNode
from bushel._src.index import epochs, mix
from bushel._src.trajectory.samples import SampleIndex, SampleOrigins


class NotTraceable(ValueError):
    """The records of an output depend on what was read before it, so arithmetic alone does not give them."""


@dataclasses.dataclass(frozen=True, eq=False)
class TracedRecords:
    """The records of one source in some outputs, in the order in which they are delivered."""

    leaf: MapNode
    component: tuple[int, ...]
    """Which dataset of each mixture, concatenation or zip the records come through."""
    rows: np.ndarray
    """For each record, which of the outputs it is a part of."""
    indices: np.ndarray
    """For each record its index in the source. From the second epoch on, it is the number + epoch * length."""


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """The elements that a mixture or a concatenation contributes to some outputs."""

    node: Select | MixStream
    component: tuple[int, ...]
    rows: np.ndarray
    """For each element, which of the outputs it is a part of."""
    positions: np.ndarray
    """For each element its position in the mixture."""
    which: np.ndarray
    """For each element, which dataset of the mixture it comes from."""


@dataclasses.dataclass(eq=False)
class Trace:
    """What some outputs of a pipeline are made of."""

    outputs: int
    """How many outputs there are. Fewer than were asked for where the pipeline ends."""
    records: list[TracedRecords] = dataclasses.field(default_factory=list)
    choices: list[Choices] = dataclasses.field(default_factory=list)
    before_filter: str | None = None
    """The first filter that may still remove elements. The counts are those before it."""


def count_outputs(node: Node) -> int | None:
    """Return how many elements a pipeline has; INFINITE for no end; None where that is not known without reading."""
    if isinstance(node, MapNode):
        return node.length
    if isinstance(node, MixStream):
        return _count_mixed(node)
    if isinstance(node, BatchStream):
        count = count_outputs(node.parent)
        if count is None or count >= INFINITE:
            return count
        return count // node.batch_size if node.drop_remainder else -(-count // node.batch_size)
    if _keeps_order(node):
        return count_outputs(node.parents[0])
    return node.length if isinstance(node, StreamNode) else None


def _keeps_order(node: Node) -> bool:
    """Return whether a node of a stream has one element for each of its parent's, in their order."""
    return node.transparent or isinstance(node, SeedStream) or (isinstance(node, Elementwise) and not node.drops)


def _count_mixed(node: MixStream) -> int | None:
    """Return the length of a mixture of streams. It ends where it needs an element of a stream that has ended."""
    total = sum(node.weights)
    which, within = mix.mixed(epochs.ranging(0, total), node.weights)  # one period of the pattern
    ends = [INFINITE]
    for number, (part, weight) in enumerate(zip(node.parts, node.weights, strict=True)):
        length = count_outputs(part)
        if length is None:
            return None
        if length < INFINITE:
            periods, rest = divmod(length, weight)
            place = int(np.flatnonzero((which == number) & (within == rest))[0])
            ends.append(periods * total + place)
    return min(ends)


def trace_outputs(node: Node, indices: np.ndarray) -> Trace:
    """Return trace the outputs at `indices` of a pipeline to the records of its sources.

    Raises NotTraceable for a stream whose elements depend on what was read before.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.mix([MapDataset.range(9), MapDataset.range(3)], [3, 1]).batch(4)
    >>> found = trace_outputs(ds._node, np.arange(2))
    >>> [(one.component, one.indices.tolist()) for one in found.records]
    [((0,), [0, 1, 2, 3, 4, 5]), ((1,), [0, 1])]

    Args:
      node: the last node of the pipeline.
      indices: positions of outputs, in growing order. Positions after the end are left out.
    """
    indices = np.asarray(indices, dtype=np.int64)
    inside = indices < _length(node)
    indices = indices[inside]
    found = Trace(len(indices))
    try:
        _walk(node, np.arange(len(indices)), indices, (), found)
    except RowFailed as failed:  # a user's function that selects datasets
        raise failed.error from None
    return found


def _length(node: Node) -> int:
    length = count_outputs(node)
    return INFINITE if length is None else length  # where it is not known, `_walk` says why


def _walk(node: Node, rows: np.ndarray, indices: np.ndarray, component: tuple[int, ...], found: Trace) -> None:
    if isinstance(node, MapNode):
        _walk_map(node, rows, indices, component, found)
        return
    inside = indices < _length(node)  # a last batch may be smaller
    rows, indices = rows[inside], indices[inside]
    if isinstance(node, Elements):
        if node.parent.sparse and not node.allow_nones:
            raise NotTraceable(
                "A filter removes elements, so the position of an element is not known without reading those before "
                "it. Filter with `where`, which computes the filter once."
            )
        _walk(node.parent, rows, indices, component, found)
    elif isinstance(node, BatchStream):
        size = node.batch_size
        parts = (indices[:, None] * size + np.arange(size)).reshape(-1)
        _walk(node.parent, np.repeat(rows, size), parts, component, found)
    elif isinstance(node, MixStream):
        if count_outputs(node) is None:
            raise NotTraceable(
                f"{node.call()} ends with its first part that ends, and how long a part is is not known without "
                "reading. Filter with `where`, which computes the filter once."
            )
        which, positions = mix.mixed(indices, node.weights)
        found.choices.append(Choices(node, component, rows, indices, which))
        for number, part in enumerate(node.parts):
            here = which == number
            _walk(part, rows[here], positions[here], (*component, number), found)
    elif _keeps_order(node):
        _walk(node.parents[0], rows, indices, component, found)
    else:
        raise NotTraceable(f"What comes after {node.call()} depends on what was read before, so it is not known ahead.")


def _walk_map(node: MapNode, rows: np.ndarray, indices: np.ndarray, component: tuple[int, ...], found: Trace) -> None:
    if node.drops and found.before_filter is None:
        found.before_filter = node.call()
    if not len(indices):
        return
    made, which, positions = node.made_of(indices)
    if not len(made):  # a source, or a user's own dataset: only its author knows what it reads
        found.records.append(TracedRecords(node, component, rows, indices))
        return
    rows = rows[made]
    if isinstance(node, Select):
        found.choices.append(Choices(node, component, rows, indices, which))
    for number, parent in enumerate(node.parents):
        here = slice(None) if len(node.parents) == 1 else which == number
        path = (*component, number) if node.joins else component
        _walk(parent, rows[here], positions[here], path, found)


def first_outputs(count: int) -> np.ndarray:
    """Return the positions of the first `count` outputs."""
    return epochs.ranging(0, count)


def count_records(node: Node) -> int:
    """Return how many records one output of a pipeline is made of, roughly: to limit how many outputs are traced."""
    if isinstance(node, MapNode):
        return max(1, node.fan_in)
    per_output = node.batch_size if isinstance(node, BatchStream) else 1
    return per_output * max(map(count_records, node.parents), default=1)


SHARE_POINTS = 120
"""The curves of shares have at most so many points."""


@dataclasses.dataclass(frozen=True)
class MixturePart:
    """One dataset of a mixture."""

    name: str
    target: float | None
    """The share that the weights ask for; None where a user's function chooses."""
    elements: int
    """How many elements of the outputs are its own."""
    actual: float
    """Its share of the elements."""
    length: int | None
    """How many elements one epoch of it has, before it is repeated; None if that is not known."""
    epochs: float | None
    """How many epochs of it have been used; None if its length is not known."""
    curve: list[float]
    """Its share of all elements up to each of the outputs that `MixtureShares.outputs` lists."""


@dataclasses.dataclass(frozen=True)
class MixtureShares:
    """A mixture, or a concatenation, over the first outputs of a pipeline."""

    call: str
    component: tuple[int, ...]
    elements: int
    outputs: list[int]
    """After how many outputs the curves have their points."""
    parts: list[MixturePart]

    @property
    def largest_gap(self) -> float:
        """The largest difference between a target share and the actual share, in elements."""
        gaps = [abs(part.elements - part.target * self.elements) for part in self.parts if part.target is not None]
        return max(gaps, default=0.0)


def measure_shares(found: Trace) -> list[MixtureShares]:
    """Return the shares of each mixture that the traced outputs come through, the outermost first.

    >>> from bushel import MapDataset
    >>> from bushel._src.view.output_records import trace_outputs
    >>> ds = MapDataset.mix([MapDataset.range(900), MapDataset.range(300)], [3, 1]).batch(40)
    >>> (shares,) = measure_shares(trace_outputs(ds._node, np.arange(10)))
    >>> [(part.target, part.elements, part.actual) for part in shares.parts]
    [(0.75, 300, 0.75), (0.25, 100, 0.25)]
    """
    return [_measure_mixture(choices, found.outputs) for choices in found.choices]


def _measure_mixture(choices: Choices, outputs: int) -> MixtureShares:
    node, count = choices.node, len(choices.node.parents)
    elements = np.bincount(choices.which, minlength=count)
    target = _target_shares(node, choices.positions)
    # After each point the number of elements up to there, of each part.
    points = np.unique(np.linspace(1, max(outputs, 1), min(SHARE_POINTS, max(outputs, 1))).round().astype(np.int64))
    ends = np.searchsorted(choices.rows, points - 1, side="right")
    running = np.stack([np.searchsorted(np.flatnonzero(choices.which == number), ends) for number in range(count)])
    curves = running / np.maximum(ends, 1)
    parts = []
    for number, (name, parent) in enumerate(zip(name_parts(node), node.parents, strict=True)):
        length = _epoch_length(parent)
        used = int(elements[number])
        parts.append(
            MixturePart(
                name=name,
                target=None if target is None else float(target[number]),
                elements=used,
                actual=used / max(1, int(elements.sum())),
                length=length,
                epochs=used / length if length else None,
                curve=np.round(curves[number], 6).tolist(),
            )
        )
    return MixtureShares(node.call(), choices.component, int(elements.sum()), points.tolist(), parts)


def _epoch_length(node: Node) -> int | None:
    while isinstance(node, Repeat):
        node = node.parent
    length = count_outputs(node)
    return None if length is None or length >= INFINITE else length


def _target_shares(node: Select | MixStream, positions: np.ndarray) -> np.ndarray | None:
    """Return the shares that the weights of a mixture ask for at these positions; None where a user's function
    chooses.
    """
    weights: Any
    if isinstance(node, ExactMix):
        if not len(positions):
            return np.zeros(len(node.parts))
        starts = [start for start, _ in node.stages]
        # How many of the positions lie in each stage of the schedule.
        counts = np.bincount(np.searchsorted(starts, positions, side="right") - 1, minlength=len(starts))
        shares = [np.array(numbers, dtype=np.float64) / sum(numbers) for _, numbers in node.stages]
        return np.average(shares, axis=0, weights=counts)
    if isinstance(node, (Mix, MixToTheLast, MixStream)):
        weights = node.weights
    elif isinstance(node, Concatenate):
        weights = node.lengths
    else:
        return None
    total = sum(weights)
    return np.array([weight / total for weight in weights]) if total else np.zeros(len(weights))


def name_parts(node: Node) -> list[str]:
    """Return names for the datasets of a mixture, all different: the name of the data set or of the source where it has
    one.

    >>> from bushel import MapDataset
    >>> name_parts(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(3).shuffle(seed=1)])._node)
    ['0: range(3)', '1: range(3)']
    """
    names = [name_source_of(parent) for parent in node.parents]
    if isinstance(node, MixStream) and node.keys is not None:
        names = list(node.keys)
    return names if len(set(names)) == len(names) else [f"{number}: {name}" for number, name in enumerate(names)]


def name_source_of(node: Node) -> str:
    """Return the name of the source that a pipeline reads, or how many sources it has."""
    leaves: list[Node] = []
    todo = [node]
    while todo:
        one = todo.pop(0)
        todo += one.parents
        if not one.parents:
            leaves.append(one)
    names = list(dict.fromkeys(map(_name_leaf, leaves)))
    return names[0] if len(names) == 1 else f"{len(names)} sources: {', '.join(names[:3])}{' ...' * (len(names) > 3)}"


def _name_leaf(leaf: Node) -> str:
    if isinstance(leaf, SampleIndex):
        origins = leaf.describe_sample
        return origins.samples.name if isinstance(origins, SampleOrigins) else leaf.call()
    return name_source(leaf.source) if isinstance(leaf, SourceNode) else leaf.call()


MEDIAN = 1 - 0.5**0.5
"""The median distance of two records that are drawn at random, as a part of the length: 29.3 %."""

ENDLESS = 1 << 48
"""Batches of an endless pipeline have a length, too: the largest whole number, divided by the size of a batch."""

ENOUGH = 15
"""Fewer distances say little about a shuffle."""

MAP_POINTS = 1500
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
    """Return the order of each source in the traced outputs.

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
    return [_measure_records(part, batched) for part in found.records if len(part.indices)]


def _measure_records(part: TracedRecords, batched: bool) -> Order:
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
    """Return the largest distance between the place of a record in the source and its turn among the records of its
    epoch.

    0 if the epochs are mixed up, so that records have no turn.
    """
    if not len(epoch) or np.any(np.diff(epoch) < 0):
        return 0
    moved = position - (np.arange(len(epoch)) - np.searchsorted(epoch, epoch))
    return int(np.abs(moved - int(np.median(moved))).max())  # a slice moves all records alike, which is no shuffle


def _count_together(rows: np.ndarray, indices: np.ndarray) -> float:
    """Return the share of records with a neighbour of theirs in the same output."""
    order = np.lexsort((indices, rows))
    near = (np.diff(rows[order]) == 0) & (np.abs(np.diff(indices[order])) == 1)
    with_neighbour = np.zeros(len(rows), dtype=bool)
    with_neighbour[1:] |= near
    with_neighbour[:-1] |= near
    return float(with_neighbour.mean())


def _bins(steps: np.ndarray) -> tuple[list[int], list[int]]:
    """Return count of distances in [0, 1), [1, 2), [2, 4), [4, 8), ..."""
    if not len(steps):
        return [], []
    # The number of binary digits of a distance is the number of its bin.
    digits = np.where(steps > 0, np.frexp(steps.astype(np.float64))[1], 0)
    counts = np.bincount(digits)
    return [0, *(1 << digit for digit in range(len(counts) - 1))], counts.tolist()


def _judge(length: int, steps: np.ndarray, adjacent: float, reach: int) -> str:
    """Return one sentence about the order."""
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


def map_positions(node: Node, points: int = MAP_POINTS) -> list[OrderMap]:
    """Return where outputs come from: evenly spaced outputs of one epoch of the pipeline, and their records.

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
