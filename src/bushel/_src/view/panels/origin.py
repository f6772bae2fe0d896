"""The panel "Where it comes from": the source records of an element, their files, and its way through the pipeline."""

from __future__ import annotations

from typing import Any

from bushel._src.graph.node import MapNode
from bushel._src.view.queries import Query, Routes
from bushel._src.view.session import Session
from bushel._src.view.tracing import describe_draw, describe_file, trace

RECORDS = 200
"""How many records are listed."""


def routes(session: Session) -> Routes:
    """`records`: what an element is made of."""

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
    """The steps of the sources by the names that records have for them; without names that several sources share."""
    named: dict[str, list[int]] = {}
    for step in session.steps:
        if not step.parents and isinstance(step.node, MapNode) and step.length != 0:
            named.setdefault(step.node.origin(0).source, []).append(step.number)
    return {name: numbers[0] for name, numbers in named.items() if len(numbers) == 1}


def describe_passages(session: Session, node: MapNode, index: int) -> list[dict[str, Any]]:
    """The way of an element through the steps, from the last one to the sources."""
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
