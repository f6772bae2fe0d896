"""The panel "Mixture and order": shares, packing, and how far records move. All by arithmetic, unless it says so."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from bushel._src.datasets.base_dataset import wrap
from bushel._src.graph.concat_split import ConcatThenSplit
from bushel._src.graph.node import Node
from bushel._src.graph.pack_stream import Pack
from bushel._src.view import output_records, padding
from bushel._src.view.padding import FeaturePacking, Packing
from bushel._src.view.session import BadQuery, Query, Routes, Session

OUTPUTS = 100
"""How many outputs are counted if the page does not say it."""
RECORDS = 2_000_000
"""At most so many records are traced for one request."""
READ = 64
"""How many outputs are read to measure the packing of a stream, or the padding of batches."""


def about(session: Session) -> dict[str, Any]:
    """Return whether there is a pipeline."""
    return {"applies": bool(session.steps), "outputs": OUTPUTS}


def routes(session: Session) -> Routes:
    """`shares`, `order`, `packing`; `packing_read` and `padding_read` measure what they read."""

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
                for shares in output_records.measure_shares(found)
            ],
        }

    def order(query: Query) -> dict[str, Any]:
        try:
            found, count = trace_first(query)
            maps = output_records.map_positions(find_node(query))
        except output_records.NotTraceable as error:
            return {"reason": str(error), "sources": []}
        orders = output_records.measure_order(found)
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
            "packings": [_describe_packing(one) for one in padding.describe_packing(node)],
            "buckets": [dataclasses.asdict(one) for one in padding.describe_buckets(node)],
            "padded": [{"step": step, "call": session.steps[step].node.call()} for step in find_padded(node)],
            "readable": bool(padding.find_nodes(node, Pack) or padding.find_nodes(node, ConcatThenSplit)),
            "read": READ,
        }

    def find_padded(node: Node) -> list[int]:
        numbers = {id(step.node): step.number for step in session.steps}
        return [numbers[id(one)] for one in padding.find_nodes(node, Node) if padding.may_pad(one)]

    def read_packing(query: Query) -> dict[str, Any]:
        elements = list(_read_elements(session, query))
        found = padding.measure_packing(elements)
        return {"packing": None if found is None else _describe_packing(found), "outputs": len(elements)}

    def read_padding(query: Query) -> dict[str, Any]:
        watched = padding.watch_padding(find_node(query))
        if watched is None:
            raise BadQuery("This step makes no batches that are padded.")
        counter, outputs = padding.PaddingCounter(), 0
        with contextlib.closing(Session(wrap(watched))) as own:
            for element in _read_elements(own, query, step=-1):
                counter.add(element)
                outputs += 1
        leaves = [
            {"name": name, "real": cells.real, "cells": cells.total, "share": cells.share}
            for name, cells in counter.leaves.items()
        ]
        return {"leaves": leaves, "outputs": outputs}

    return {
        "shares": shares,
        "order": order,
        "packing": describe_packings,
        "packing_read": read_packing,
        "padding_read": read_padding,
    }


def _read_elements(session: Session, query: Query, step: int | None = None) -> Iterator[Any]:
    """Yield some elements of the first epoch after a step, without those that fail.

    A stream that takes long ends earlier.
    """
    chosen = query.integer("step", -1) if step is None else step
    first, count = query.integer("index", 0, low=0), query.integer("outputs", READ, low=1, high=1000)
    length = session.step(chosen).length
    for index in range(first, first + count if length is None else min(first + count, length)):
        reading = session.read(chosen, index)
        if reading.ended is not None or reading.progress is not None:
            return
        if reading.has_element:
            yield reading.element


def _describe_packing(one: Packing) -> dict[str, Any]:
    return {"call": one.call, "exact": one.exact, "features": list(map(_describe_feature, one.features))}


def _describe_feature(feature: FeaturePacking) -> dict[str, Any]:
    return dataclasses.asdict(feature) | {"efficiency": feature.efficiency}
