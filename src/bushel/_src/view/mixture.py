"""Shares of the datasets of each mixture: target, and actual over the first outputs. Nothing is read or decoded."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bushel._src.base.checks import INFINITE
from bushel._src.graph.leaves import Source, name_source
from bushel._src.graph.mixtures import ExactMix, MixToTheLast
from bushel._src.graph.node import Node
from bushel._src.graph.ordered import MixStream
from bushel._src.graph.reindex import Concatenate, Mix, Repeat, Select
from bushel._src.trajectory.sample_index import SampleIndex
from bushel._src.trajectory.samples import SampleOrigins
from bushel._src.view.output_records import Choices, Trace, count_outputs

POINTS = 120
"""The curves of shares have at most so many points."""


@dataclasses.dataclass(frozen=True)
class Part:
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
    """Its share of all elements up to each of the outputs that `Shares.outputs` lists."""


@dataclasses.dataclass(frozen=True)
class Shares:
    """A mixture, or a concatenation, over the first outputs of a pipeline."""

    call: str
    component: tuple[int, ...]
    elements: int
    outputs: list[int]
    """After how many outputs the curves have their points."""
    parts: list[Part]

    @property
    def largest_gap(self) -> float:
        """The largest difference between a target share and the actual share, in elements."""
        gaps = [abs(part.elements - part.target * self.elements) for part in self.parts if part.target is not None]
        return max(gaps, default=0.0)


def measure_shares(found: Trace) -> list[Shares]:
    """The shares of each mixture that the traced outputs come through, the outermost first.

    >>> from bushel import MapDataset
    >>> from bushel._src.view.output_records import trace_outputs
    >>> ds = MapDataset.mix([MapDataset.range(900), MapDataset.range(300)], [3, 1]).batch(40)
    >>> (shares,) = measure_shares(trace_outputs(ds._node, np.arange(10)))
    >>> [(part.target, part.elements, part.actual) for part in shares.parts]
    [(0.75, 300, 0.75), (0.25, 100, 0.25)]
    """
    return [_measure(choices, found.outputs) for choices in found.choices]


def _measure(choices: Choices, outputs: int) -> Shares:
    node, count = choices.node, len(choices.node.parents)
    elements = np.bincount(choices.which, minlength=count)
    target = _target_shares(node, choices.positions)
    # After each point the number of elements up to there, of each part.
    points = np.unique(np.linspace(1, max(outputs, 1), min(POINTS, max(outputs, 1))).round().astype(np.int64))
    ends = np.searchsorted(choices.rows, points - 1, side="right")
    running = np.stack([np.searchsorted(np.flatnonzero(choices.which == number), ends) for number in range(count)])
    curves = running / np.maximum(ends, 1)
    parts = []
    for number, (name, parent) in enumerate(zip(name_parts(node), node.parents, strict=True)):
        length = _epoch_length(parent)
        used = int(elements[number])
        parts.append(
            Part(
                name=name,
                target=None if target is None else float(target[number]),
                elements=used,
                actual=used / max(1, int(elements.sum())),
                length=length,
                epochs=used / length if length else None,
                curve=np.round(curves[number], 6).tolist(),
            )
        )
    return Shares(node.call(), choices.component, int(elements.sum()), points.tolist(), parts)


def _epoch_length(node: Node) -> int | None:
    while isinstance(node, Repeat):
        node = node.parent
    length = count_outputs(node)
    return None if length is None or length >= INFINITE else length


def _target_shares(node: Select | MixStream, positions: np.ndarray) -> np.ndarray | None:
    """The shares that the weights of a mixture ask for at these positions; None where a user's function chooses."""
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
    """Names for the datasets of a mixture, all different: the name of the data set or of the source where it has one.

    >>> from bushel import MapDataset
    >>> name_parts(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(3).shuffle(seed=1)])._node)
    ['0: range(3)', '1: range(3)']
    """
    names = [name_source_of(parent) for parent in node.parents]
    if isinstance(node, MixStream) and node.keys is not None:
        names = list(node.keys)
    return names if len(set(names)) == len(names) else [f"{number}: {name}" for number, name in enumerate(names)]


def name_source_of(node: Node) -> str:
    """The name of the source that a pipeline reads, or how many sources it has."""
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
    return name_source(leaf.source) if isinstance(leaf, Source) else leaf.call()
