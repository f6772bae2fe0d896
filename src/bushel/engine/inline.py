"""Elements of a map node computed when they are asked for. Only index arithmetic runs ahead."""

from __future__ import annotations

import numpy as np

from bushel.base.blocks import Block
from bushel.graph.node import MapNode, Plan

PLAN_AHEAD = 8192
"""So many source indices are worked out at once: index arithmetic costs nanoseconds in bulk, microseconds alone."""

_FIRST_PLAN = 64


class Inline:
    """Consecutive elements of one map node, from any position on; plans grow as they are used up."""

    def __init__(self, node: MapNode):
        self._node = node
        self._most = max(1, PLAN_AHEAD // node.fan_in)
        self._size = min(_FIRST_PLAN, self._most)
        self._plan: Plan | None = None
        self._start = self._end = 0

    def take(self, position: int, count: int) -> Block:
        """`count` elements from `position` on. Raises RowFailed, with the row counted from `position`."""
        if self._plan is None or position < self._start or position + count > self._end:
            end = min(self._node.length, position + max(count, self._size))
            self._plan = self._node.plan(np.arange(position, end))
            self._start, self._end = position, end
            self._size = min(self._most, 2 * self._size)
        low = position - self._start
        return self._plan.take(low, low + count)
