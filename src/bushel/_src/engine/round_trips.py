"""How many records are read together where a read costs a network round trip. See also `sources/object_stores.py`."""

from __future__ import annotations

from bushel._src.graph.leaves import Source
from bushel._src.graph.node import MapNode, Node
from bushel._src.sources.protocol import get_batch_reader

_TOGETHER = 256
"""Records that all threads or workers read at a time: twice as many as an object store gets requests, so that others
are requested while some are handed over."""


def costs_round_trips(node: Node) -> bool:
    """Whether a source of the graph says that a read costs a round trip, and can read many records at a time."""
    if type(node) is Source and getattr(node.source, "costs_round_trip", False) is True:
        return get_batch_reader(node.source) is not None
    return any(costs_round_trips(parent) for parent in node.parents)


def count_together(node: MapNode, parallelism: int) -> int:
    """How many elements of a map node each thread or worker should read at a time, at least."""
    if not node.length or not costs_round_trips(node):
        return 1
    records = sum(len(origin.indices) for origin in node.origins(0))
    return max(1, _TOGETHER // (max(1, parallelism) * max(1, records)))
