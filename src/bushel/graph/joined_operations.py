"""A per-element operation of many map nodes at once: a `map` on each part of a mixture.

The parts are read together, and each function is called for the rows of its parts. A thousand parts with the same
function then take one loop for a batch, and not one for each part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block, Columns
from bushel.base.errors import RowFailed
from bushel.base.ownership import own_block
from bushel.graph.many_plans import merge_rows, plan_many
from bushel.graph.node import Plan, describe_failure, merge_origins
from bushel.graph.operation import Operation, WithTransform, mark_missing
from bushel.index import words


class JoinedOperations:
    """The operations of many nodes of one class, which differ in their functions alone."""

    def __init__(self, nodes: Sequence[WithTransform]):
        self.nodes = nodes
        self._plan_parents = plan_many([node.parent for node in nodes])
        numbers: dict[tuple[int, int | None, bool], int] = {}
        self.operations: list[Operation] = []
        """The operations that differ. Parts with the same function object and seed have one operation."""
        found = []
        for operation in (node.operation for node in nodes):
            key = id(operation.transform), operation.seed, operation.vectorized
            if key not in numbers:
                numbers[key] = len(numbers)
                self.operations.append(operation)
            found.append(numbers[key])
        self.operation_of = np.array(found)
        self.vectorized = any(operation.vectorized for operation in self.operations)
        self.counts = self.operations[0].kind.count_key is not None
        self.writes = any(operation.writes for operation in self.operations)
        self.shares = any(operation.shares for operation in self.operations)

    def plan(self, which: np.ndarray, indices: np.ndarray) -> Plan:
        """Plans the elements at `indices` of the nodes `which`."""
        return _ByManyOperations(self, which, indices, self._plan_parents(which, indices))


@dataclasses.dataclass(slots=True)
class _ByManyOperations(Plan):
    """Elements that the operations of many nodes make one for one."""

    joined: JoinedOperations
    which: np.ndarray
    indices: np.ndarray
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        joined = self.joined
        block = self.parent.read(low, high, private or joined.writes)
        which = self.which[low:high]
        if len(joined.operations) == 1 and (isinstance(block, Columns) or not joined.vectorized):
            made = self._run(joined.operations[0], block, low, np.arange(high - low))
        else:
            made = self._run_each(block, low, which)
        return own_block(made) if joined.shares and (private or isinstance(made, Columns)) else made

    def _run_each(self, block: Block, low: int, which: np.ndarray) -> Block:
        """Runs each operation on its rows."""
        joined = self.joined
        # Rows of one part are likely to be of one kind, and a vectorized function needs such rows to stack them.
        keys = which if joined.vectorized and not isinstance(block, Columns) else joined.operation_of[which]
        rows = blocks.rows_of(block)
        parts: list[tuple[np.ndarray, Block]] = []
        for here in words.group(keys).values():
            operation = joined.operations[joined.operation_of[which[here[0]]]]
            try:
                parts.append((here, self._run(operation, [rows[row] for row in here.tolist()], low, here)))
            except RowFailed as failed:
                raise RowFailed(int(here[failed.row]), failed.error) from failed.error
        return merge_rows(parts, len(which))

    def _run(self, operation: Operation, block: Block, low: int, here: np.ndarray) -> Block:
        """Runs an operation on the rows `low + here` of the plan."""

        def where(row: int) -> str:
            # A vectorized function fails for the whole block. The error does not say which element caused it.
            failed = low + (here if operation.vectorized else here[row : row + 1])
            nodes = [self.joined.nodes[number] for number in self.which[failed].tolist()]
            indices = self.indices[failed].tolist()
            if len(indices) == 1:
                return nodes[0].describe_failure(*indices)
            origins = [origin for node, index in zip(nodes, indices) for origin in node.parent.origins(index)]
            return describe_failure(operation.describe(), indices, merge_origins(origins))

        numbers = self.indices[low + here].tolist() if self.joined.counts else ()
        made, kept = operation.run(block, numbers, where)
        return made if kept is None else mark_missing(made, kept)
