"""The panel "Where it comes from": the source records of an element, their files, and its way through the pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.graph.map_ops import MapElementsWithIndex, RandomMapElements
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.origins import SourceRecord
from bushel._src.graph.source_nodes import SourceNode
from bushel._src.index import epochs
from bushel._src.sources.plain_files import FileDataSource
from bushel._src.sources.record_files import JoinedFiles
from bushel._src.sources.saved_elements import SavedDataSource
from bushel._src.sources.tfds import TFDSDataSource
from bushel._src.view.session import Query, Routes, Session


def find_file(source: Any, record: int) -> tuple[str, int] | None:
    """Return the file that holds a record, without secrets in its address, and the record's position in it.

    None for sources that do not know it, such as arrays in memory. Nothing is read.

    >>> find_file(["a", "b"], 1) is None
    True
    """
    if isinstance(source, (SavedDataSource, TFDSDataSource)):
        source = source._records
    if isinstance(source, JoinedFiles):
        number, place = source.locate(record)
        return redact.show(source.paths[number]), place
    if isinstance(source, FileDataSource):
        return redact.show(source.paths[record]), 0
    return None


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
    """Return the passages of an element, from the last step to the sources. By arithmetic: nothing is read.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(10)[::2].batch(2)
    >>> [(passage.node.call(), passage.indices) for passage in trace(ds._node, 1)]
    [('batch(2)', [1]), ('slice(slice(0, 10, 2))', [2, 3]), ('range(10)', [4, 6])]
    """
    passages: dict[int, Passage] = {}
    queue: list[tuple[MapNode, np.ndarray]] = [(node, epochs.array([index]))]
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
    """Return how a step draws random numbers or numbers its elements; "" for a step that does neither."""
    if isinstance(node, RandomMapElements):
        return f"draws from the generator of seed {node.seed} and this index"
    if isinstance(node, MapElementsWithIndex):
        return "gets this index"
    return ""


def describe_file(leaves: Iterable[Node], record: SourceRecord) -> dict[str, Any]:
    """Return the file that holds a source record, and its position there; empty if the source does not know it."""
    for leaf in leaves:
        if isinstance(leaf, SourceNode) and leaf.length and leaf.origin(0).source == record.source:
            found = find_file(leaf.source, record.record)
            if found is not None:
                return {"file": found[0], "in_file": found[1]}
            describe = getattr(leaf.source, "describe", None)
            if callable(describe):  # episodes of robots
                return {"file": str(describe(record.record)), "in_file": None}
    return {}


RECORDS = 200
"""How many records are listed."""


def routes(session: Session) -> Routes:
    """Record: what an element is made of."""

    def records(query: Query) -> dict[str, Any]:
        step = session.step(query.integer("step", -1))
        index = query.integer("index", 0, low=0)
        try:
            origin = session.origin(step.number, index)
        except (ValueError, IndexError) as reason:  # it is not known without reading, or there is no such element
            return {"index": index, "unknown": str(reason)}
        leaves = [one.node for one in session.steps if not one.parents]
        steps = find_steps(session)
        records = [
            {
                "source": record.source,
                "record": record.record,
                "epoch": record.epoch,
                "step": steps.get(record.source),
                "component": list(record.component),
                **describe_file(leaves, record),
            }
            for record in origin.records[:RECORDS]
        ]
        passages = describe_passages(session, step.node, index) if isinstance(step.node, MapNode) else []
        return {"index": index, "records": records, "count": len(origin.records), "passages": passages}

    return {"records": records}


def find_steps(session: Session) -> dict[str, int]:
    """Return the steps of the sources by the names that records have for them; without names that several sources
    share.
    """
    named: dict[str, list[int]] = {}
    for step in session.steps:
        if not step.parents and isinstance(step.node, MapNode) and step.length != 0:
            named.setdefault(step.node.origin(0).source, []).append(step.number)
    return {name: numbers[0] for name, numbers in named.items() if len(numbers) == 1}


def describe_passages(session: Session, node: MapNode, index: int) -> list[dict[str, Any]]:
    """Return the way of an element through the steps, from the last one to the sources."""
    numbers = {id(step.node): step.number for step in session.steps}
    return [
        {
            "step": numbers[id(passage.node)],
            "call": passage.node.call(),
            "indices": passage.indices,
            "count": passage.count,
            "draw": describe_draw(passage.node),
        }
        for passage in trace(node, index)
    ]
