"""The panel "Mixture and order": shares, packing, and how far records move. All by arithmetic, unless it says so."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel.graph.concat_split import ConcatThenSplit
from bushel.graph.node import Node
from bushel.graph.pack_stream import Pack
from bushel.view import mixture, output_records, packing, shuffling
from bushel.view.packing import FeaturePacking, Packing
from bushel.view.queries import Query, Routes
from bushel.view.session import Session

OUTPUTS = 100
"""How many outputs are counted if the page does not say it."""
RECORDS = 2_000_000
"""At most so many records are traced for one request."""
READ = 64
"""How many outputs are read to measure the packing of a stream."""


def about(session: Session) -> dict[str, Any]:
    """Whether there is a pipeline."""
    return {"applies": bool(session.steps), "outputs": OUTPUTS}


def routes(session: Session) -> Routes:
    """`shares`, `order`, `packing`; `packing_read` measures packed rows of a stream by reading some of them."""

    def find_node(query: Query) -> Node:
        return session.step(query.integer("step", -1)).node

    def trace_first(query: Query) -> tuple[output_records.Trace, int]:
        node = find_node(query)
        asked = query.integer("outputs", OUTPUTS, low=1, high=10**9)
        count = min(asked, max(1, RECORDS // output_records.count_records(node)))
        return output_records.trace_outputs(node, output_records.first_outputs(count)), count

    def shares(query: Query) -> dict[str, Any]:
        try:
            found, count = trace_first(query)
        except output_records.NotTraceable as error:
            return {"reason": str(error), "mixtures": []}
        return {
            "reason": "",
            "outputs": found.outputs,
            "limit": count,
            "before_filter": found.before_filter,
            "mixtures": [
                dataclasses.asdict(shares) | {"largest_gap": shares.largest_gap}
                for shares in mixture.measure_shares(found)
            ],
        }

    def order(query: Query) -> dict[str, Any]:
        try:
            found, count = trace_first(query)
            maps = shuffling.map_positions(find_node(query))
        except output_records.NotTraceable as error:
            return {"reason": str(error), "sources": []}
        orders = shuffling.measure_order(found)
        by_component = {(one.component, one.source): one for one in maps}
        return {
            "reason": "",
            "outputs": found.outputs,
            "limit": count,
            "sources": [
                dataclasses.asdict(one)
                | {
                    "map": None
                    if (m := by_component.get((one.component, one.source))) is None
                    else dataclasses.asdict(m)
                }
                for one in orders
            ],
        }

    def describe_packings(query: Query) -> dict[str, Any]:
        node = find_node(query)
        return {
            "packings": [_describe_packing(one) for one in packing.describe_packing(node)],
            "buckets": [dataclasses.asdict(one) for one in packing.describe_buckets(node)],
            "readable": bool(packing.find_nodes(node, Pack) or packing.find_nodes(node, ConcatThenSplit)),
            "read": READ,
        }

    def read_packing(query: Query) -> dict[str, Any]:
        step, first = query.integer("step", -1), query.integer("index", 0, low=0)
        elements = []
        for index in range(first, first + query.integer("outputs", READ, low=1, high=1000)):
            reading = session.read(step, index)
            if reading.ended is not None or reading.progress is not None:
                break
            if reading.has_element:
                elements.append(reading.element)
        found = packing.measure_packing(elements)
        return {"packing": None if found is None else _describe_packing(found), "outputs": len(elements)}

    return {"shares": shares, "order": order, "packing": describe_packings, "packing_read": read_packing}


def _describe_packing(one: Packing) -> dict[str, Any]:
    return {"call": one.call, "exact": one.exact, "features": list(map(_describe_feature, one.features))}


def _describe_feature(feature: FeaturePacking) -> dict[str, Any]:
    return dataclasses.asdict(feature) | {"efficiency": feature.efficiency}
