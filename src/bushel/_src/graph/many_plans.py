"""Plans of elements that belong to many nodes, such as the parts of a mixture, and operations of many nodes at once.

Of a thousand parts each serves few elements of a batch. A step that all parts have in common, such as a shuffle or a
`map`, then takes less time for all elements together than part by part: parts with the same function take one loop.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import RowFailed
from bushel._src.graph.node import Computed, MapNode, Moved, Plan, PlanMany, describe_failure, merge_origins
from bushel._src.graph.operation import BlockOperation, WithTransform, mark_missing
from bushel._src.index import epochs


def plan_many(nodes: Sequence[MapNode]) -> PlanMany:
    """Return a function that plans elements of many nodes in one call: nodes of one class take each step together."""
    kinds: dict[type[MapNode], list[int]] = {}
    for number, node in enumerate(nodes):
        kinds.setdefault(type(node), []).append(number)
    if len(nodes) == 1:
        return lambda which, indices: nodes[0].plan(indices)
    if len(kinds) > 1:
        return _plan_kinds(nodes, list(kinds.values()))
    (kind,) = kinds
    if not issubclass(kind, Moved):
        return kind.join_plans(nodes) or functools.partial(plan_each, nodes)
    moved = [node for node in nodes if isinstance(node, Moved)]
    find = kind.join_positions(nodes) or functools.partial(find_each, moved)
    plan_parents = plan_many([node.parent for node in moved])

    def plan(which: np.ndarray, indices: np.ndarray) -> Plan:
        positions = find(which, indices)
        if positions.dtype == object:  # past 64 bits, where the nodes above may not compute together
            return plan_each(nodes, which, indices)
        return plan_parents(which, positions)

    return plan


def plan_each(nodes: Sequence[MapNode], which: np.ndarray, indices: np.ndarray) -> Plan:
    """Plan the elements of each node for itself."""
    rows = epochs.group(which)
    return _merge_plans(which, rows, {number: nodes[number].plan(indices[here]) for number, here in rows.items()})


def _plan_kinds(nodes: Sequence[MapNode], groups: list[list[int]]) -> PlanMany:
    """Plan the elements of each group of nodes together."""
    group_of, place = np.empty((2, len(nodes)), dtype=np.int64)
    for number, group in enumerate(groups):
        group_of[group], place[group] = number, np.arange(len(group))
    planners = [plan_many([nodes[number] for number in group]) for group in groups]

    def plan(which: np.ndarray, indices: np.ndarray) -> Plan:
        groups_of_rows = group_of[which]
        rows = epochs.group(groups_of_rows)
        plans = {number: planners[number](place[which[here]], indices[here]) for number, here in rows.items()}
        return _merge_plans(groups_of_rows, rows, plans)

    return plan


def find_each(nodes: Sequence[Moved], which: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return positions in the parents, for nodes that cannot compute them together."""
    found = [(here, nodes[number].find_positions(indices[here])) for number, here in epochs.group(which).items()]
    wide = any(positions.dtype == object for _, positions in found)
    merged = np.empty(len(indices), dtype=object if wide else np.int64)
    for here, positions in found:
        merged[here] = positions
    return merged


def _merge_plans(which: np.ndarray, rows: dict[int, np.ndarray], plans: dict[int, Plan]) -> Plan:
    """Return one plan of the rows that several plans serve."""
    if len(plans) == 1:
        (plan,) = plans.values()
        return plan
    computed = [plan.values for plan in plans.values() if isinstance(plan, Computed)]
    numbers = [values for values in computed if isinstance(values, np.ndarray)]
    if len(numbers) < len(plans):
        return _Selected(which, rows, plans)
    merged = np.empty(len(which), dtype=np.int64)
    for here, values in zip(rows.values(), numbers):
        merged[here] = values
    return Computed(merged)


@dataclasses.dataclass(slots=True)
class _Selected(Plan):
    which: np.ndarray
    rows: dict[int, np.ndarray]
    """For each plan that serves some rows, these rows, in order."""
    plans: dict[int, Plan]
    singles: tuple[list[int], list[int]] | None = None
    """For each row its plan and its place in that plan, once rows are read one by one."""

    def read(self, low: int, high: int, private: bool) -> Block:
        if high - low == 1:
            if self.singles is None:
                self.singles = self._find_singles()
            which, places = self.singles
            place = places[low]
            return self.plans[which[low]].read(place, place + 1, private)
        parts: list[tuple[np.ndarray, Block]] = []
        edges = np.array((low, high))
        for number, rows in self.rows.items():
            first, last = rows.searchsorted(edges).tolist()
            if first == last:
                continue
            here = rows[first:last] - low
            try:
                parts.append((here, self.plans[number].read(first, last, private)))
            except RowFailed as failed:
                raise RowFailed(int(here[failed.row]), failed.error) from failed.error
        return merge_rows(parts, high - low)

    def _find_singles(self) -> tuple[list[int], list[int]]:
        places = np.empty(len(self.which), dtype=np.int64)
        for rows in self.rows.values():
            places[rows] = np.arange(len(rows))
        return self.which.tolist(), places.tolist()


def merge_rows(parts: list[tuple[np.ndarray, Block]], count: int) -> Block:
    """Return one block of `count` rows, of blocks that each come with the places of their rows."""
    if len(parts) == 1:
        return parts[0][1]
    columns = [block for _, block in parts if isinstance(block, Columns)]
    if len(columns) == len(parts) and blocks.are_alike(columns) and all(c.present is None for c in columns):
        return _scatter(columns, [here for here, _ in parts], count)
    merged: list[Any] = [None] * count
    for here, block in parts:
        for place, row in zip(here.tolist(), blocks.rows_of(block), strict=True):
            merged[place] = row
    return merged


def _scatter(columns: list[Columns], places: list[np.ndarray], length: int) -> Columns:
    def scatter(*leaves: np.ndarray) -> np.ndarray:
        out = np.empty((length, *leaves[0].shape[1:]), leaves[0].dtype)
        for leaf, place in zip(leaves, places, strict=True):
            out[place] = leaf
        return out

    return Columns(trees.map_leaves(scatter, *(block.tree for block in columns)), length)


class JoinedOperations:
    """The operations of many nodes of one class, which differ in their functions alone."""

    def __init__(self, nodes: Sequence[WithTransform]):
        self.nodes = nodes
        self._plan_parents = plan_many([node.parent for node in nodes])
        numbers: dict[tuple[int, int | None, bool], int] = {}
        self.operations: list[BlockOperation] = []
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
        self.needs_private = any(operation.needs_private for operation in self.operations)

    def plan(self, which: np.ndarray, indices: np.ndarray) -> Plan:
        """Plan the elements at `indices` of the nodes `which`."""
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
        is_private = joined.needs_private
        block = self.parent.read(low, high, is_private)
        which = self.which[low:high]
        if len(joined.operations) == 1 and (isinstance(block, Columns) or not joined.vectorized):
            return self._run(joined.operations[0], block, low, np.arange(high - low), is_private, private)
        return self._run_each(block, low, which, is_private, private)

    def _run_each(self, block: Block, low: int, which: np.ndarray, is_private: bool, private: bool) -> Block:
        """Run each operation on its rows."""
        joined = self.joined
        # Rows of one part are likely to be of one kind, and a vectorized function needs such rows to stack them.
        keys = which if joined.vectorized and not isinstance(block, Columns) else joined.operation_of[which]
        is_private = is_private or isinstance(block, Columns)
        rows = blocks.rows_of(block)
        parts: list[tuple[np.ndarray, Block]] = []
        for here in epochs.group(keys).values():
            operation = joined.operations[joined.operation_of[which[here[0]]]]
            rows_here = [rows[row] for row in here.tolist()]
            for row in here.tolist():
                rows[row] = None  # otherwise a row that the function returns as it is would be held twice
            try:
                parts.append((here, self._run(operation, rows_here, low, here, is_private, private)))
            except RowFailed as failed:
                raise RowFailed(int(here[failed.row]), failed.error) from failed.error
        return merge_rows(parts, len(which))

    def _run(
        self, operation: BlockOperation, block: Block, low: int, here: np.ndarray, is_private: bool, private: bool
    ) -> Block:
        """Run an operation on the rows `low + here` of the plan."""

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
        made, kept = operation.run(block, numbers, where, is_private=is_private, private=private)
        return made if kept is None else mark_missing(made, kept)
