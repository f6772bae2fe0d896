"""The way of an element through the pipeline: its index after each step, the records and files, and the draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from bushel._src.graph.apply import MapWithIndex, RandomMap
from bushel._src.graph.leaves import Source
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.origins import SourceRecord
from bushel._src.index import words
from bushel._src.sources.record_places import find_file

SHOWN = 64
"""How many elements of a step are listed."""
FOLLOWED = 100_000
"""How many elements of a step are followed to the steps before it."""


@dataclasses.dataclass
class Passage:
    """What one step has to do with an element."""

    node: MapNode
    indices: list[int]
    """Which elements of the step the element is made of, in its order; the first ones, if they are many."""
    count: int
    """How many they are."""


def trace(node: MapNode, index: int) -> list[Passage]:
    """The passages of an element, from the last step to the sources. By arithmetic: nothing is read.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(10)[::2].batch(2)
    >>> [(passage.node.call(), passage.indices) for passage in trace(ds._node, 1)]
    [('batch(2)', [1]), ('slice(slice(0, 10, 2))', [2, 3]), ('range(10)', [4, 6])]
    """
    passages: dict[int, Passage] = {}
    queue: list[tuple[MapNode, np.ndarray]] = [(node, words.array([index]))]
    for here, indices in queue:  # the queue grows while it is read
        known = passages.setdefault(id(here), Passage(here, [], 0))
        known.indices = [*known.indices, *indices[:SHOWN].tolist()][:SHOWN]
        known.count += len(indices)
        rows, which, positions = here.made_of(indices[:FOLLOWED])
        if not len(rows):
            continue
        for number, parent in enumerate(here.parents):
            chosen = positions[which == number]
            if len(chosen):
                queue.append((parent, chosen))
    return list(passages.values())


def describe_draw(node: MapNode) -> str:
    """How a step draws random numbers or numbers its elements; "" for a step that does neither."""
    if isinstance(node, RandomMap):
        return f"draws from the generator of seed {node.seed} and this index"
    if isinstance(node, MapWithIndex):
        return "gets this index"
    return ""


def describe_file(leaves: Iterable[Node], record: SourceRecord) -> dict[str, Any]:
    """The file that holds a source record, and its position there; empty if the source does not know it."""
    for leaf in leaves:
        if isinstance(leaf, Source) and leaf.length and leaf.origin(0).source == record.source:
            found = find_file(leaf.source, record.record)
            if found is not None:
                return {"file": found[0], "in_file": found[1]}
            describe = getattr(leaf.source, "describe", None)
            if callable(describe):  # episodes of robots
                return {"file": str(describe(record.record)), "in_file": None}
    return {}
