"""Operations on single elements of a map node: map, map_with_index, random_map, filter, flat_map.

What they do to a block is in operation.py. A missing element stays missing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel.base import blocks, checks, transforms
from bushel.base.blocks import Block, Columns
from bushel.base.errors import RowFailed
from bushel.base.ownership import copy_value, own_block
from bushel.graph import operation
from bushel.graph.fused_steps import compile_steps, find_failed_step
from bushel.graph.many_plans import JoinedOperations
from bushel.graph.node import (
    Computed,
    InTwoSteps,
    MadeOf,
    Plan,
    PlanMany,
    describe_failure,
    made_of_one_each,
    raise_for_row,
)
from bushel.graph.operation import Operation, WithTransform
from bushel.index import words


class _PerElement(WithTransform):
    """An operation that makes one element of one. It may drop some, which are missing then."""

    one_to_one = True

    def plan(self, indices: np.ndarray) -> Plan:
        run = self.operation
        if not run.vectorized:
            chains = self._chains
            return _OneByOne(chains, indices, chains[0].steps[0].node.parent.plan(indices))
        parent = self.parent.plan(indices)
        if isinstance(parent, Computed) and isinstance(run.function, InTwoSteps):
            return _Vectorized(self, self._second_step, indices, Computed(run.function.ahead(parent.values)))
        return _Vectorized(self, run, indices, parent)

    @classmethod
    def join_plans(cls, nodes: Sequence[_PerElement]) -> PlanMany | None:
        if any(isinstance(node.operation.function, InTwoSteps) for node in nodes):
            return None  # such a node computes its first step for all that it plans
        return JoinedOperations(nodes).plan

    @functools.cached_property
    def _steps(self) -> list[_Step]:
        """This operation, after those of the nodes above it that also work on single elements."""
        own = _Step(self, self.operation)
        parent = self.parent
        if not isinstance(parent, _PerElement) or parent.operation.vectorized:
            return [own]
        writes = self.operation.writes
        before = [dataclasses.replace(step, written_later=step.written_later or writes) for step in parent._steps]
        return [*before, own]

    @functools.cached_property
    def _chains(self) -> list[_Chain]:
        """`_steps`, cut into pieces: the steps of each piece run in one loop."""
        chains: list[list[_Step]] = []
        for step in self._steps:
            last = chains[-1] if chains else []
            # A filter that comes first may get columns, which then stay columns.
            if last and step.can_join and last[-1].can_join and not last[0].drops:
                last.append(step)
            else:
                chains.append([step])
        return list(map(_Chain, chains))

    @functools.cached_property
    def _second_step(self) -> Operation:
        function = self.operation.function
        assert isinstance(function, InTwoSteps)
        return dataclasses.replace(self.operation, function=function.after)

    def element_spec(self) -> Any:
        return self.operation.derive_spec(self.parent)


@dataclasses.dataclass(frozen=True, eq=False)
class Map(_PerElement):
    """`transform` of each element, or of whole columns where it is marked as vectorized."""

    vectorized: bool = False
    kind = operation.MAP


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndex(_PerElement):
    """`transform(index, element)`; the index counts on through epochs."""

    kind = operation.MAP_WITH_INDEX
    pure = False


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMap(_PerElement):
    """`transform(element, rng)` with a generator that belongs to the index."""

    seed: int
    kind = operation.RANDOM_MAP
    pure = False


@dataclasses.dataclass(frozen=True, eq=False)
class Filter(_PerElement):
    """Elements for which `transform` returns False are missing: the length stays, the element is None."""

    vectorized: bool = False
    kind = operation.FILTER
    drops = True


@dataclasses.dataclass(eq=False)
class _Step:
    """One of several operations in a row, each of which calls a function with one element after the other."""

    node: _PerElement
    operation: Operation
    written_later: bool = False
    """Whether an operation after this one could change the elements that it is given."""

    def __post_init__(self) -> None:
        kind = self.operation.kind
        self.call_each = kind.keep_each or kind.call_each
        self.counts = kind.count_key is not None
        self.drops = kind.drops
        self.shares = self.operation.shares
        self.needs_own = self.written_later or self.operation.writes
        """Whether the elements that it is given must belong to the pipeline, even if its result need not."""
        self.can_join = not self.counts and not self.shares
        """Whether nothing but calls of the function is needed between the step before and the step after."""


class _Chain:
    """Steps that run in one loop."""

    def __init__(self, steps: list[_Step]):
        self.steps = steps
        self.run = compile_steps(tuple([step.drops for step in steps]))

    def list_functions(self) -> list[Callable[..., Any]]:
        return [step.operation.watched().function for step in self.steps]

    def __len__(self) -> int:
        return len(self.steps)


@dataclasses.dataclass(slots=True)
class _OneByOne(Plan):
    """Elements that operations make one for one, each of one element at a time."""

    chains: list[_Chain]
    indices: np.ndarray
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        numbers = None
        block = self.parent.read(low, high, private or self.chains[0].steps[0].needs_own)
        for chain in self.chains:
            if len(chain.steps) > 1:
                block = self._run_chain(chain, low, blocks.rows_of(block))
                continue
            (step,) = chain.steps
            if step.counts:
                numbers = self.indices[low:high].tolist() if numbers is None else numbers
            if type(block) is not list:
                if step.drops:  # columns stay columns
                    where = functools.partial(self._describe_failure, step, low)
                    block, kept = step.operation.run(block, (), where)
                    block = block if kept is None else operation.mark_missing(block, kept)
                    continue
                block = blocks.rows_of(block)
            left, count = iter(block), len(block)
            try:
                block = step.call_each(left, step.operation.watched(), numbers or ())
            except Exception as error:
                raise_for_row(error, count, left, functools.partial(self._describe_failure, step, low))
            if step.shares and (private or step.written_later):
                block = own_block(block)
        return block

    def _run_chain(self, chain: _Chain, low: int, rows: list[Any]) -> list[Any]:
        left, count = iter(rows), len(rows)
        try:
            return chain.run(left, chain.list_functions())
        except Exception as error:
            step = chain.steps[find_failed_step(error)]
            raise_for_row(error, count, left, functools.partial(self._describe_failure, step, low))

    def _describe_failure(self, step: _Step, low: int, row: int) -> str:
        return step.node.describe_failure(int(self.indices[low + row]))


@dataclasses.dataclass(slots=True)
class _Vectorized(Plan):
    """Elements that an operation of whole columns makes one for one."""

    node: _PerElement
    operation: Operation
    indices: np.ndarray
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        run = self.operation

        def where(row: int) -> str:
            # A vectorized function fails for the whole block. The error does not say which element caused it.
            return self.node.describe_failure(*self.indices[low:high].tolist())

        # A vectorized map gets its rows stacked, which copies them. A filter returns the very rows that it is given.
        needs_own = run.kind.drops and (private or run.writes)
        block, kept = run.run(self.parent.read(low, high, needs_own), (), where)
        if kept is not None:
            return operation.mark_missing(block, kept)
        return own_block(block) if run.shares and (private or isinstance(block, Columns)) else block


@dataclasses.dataclass(frozen=True, eq=False)
class FlatMap(WithTransform):
    """Up to `max_fan_out` elements for each one; where there are fewer, the rest are missing."""

    kind = operation.FLAT_MAP
    drops = True
    splits = True

    no_spec = "The shapes after flat_map are not known without running it."

    def __post_init__(self) -> None:
        checks.positive(self.transform.max_fan_out, f"max_fan_out of {transforms.short_name(self.transform)}")

    def find_length(self) -> int:
        return min(checks.INFINITE, self.parent.length * self.transform.max_fan_out)

    def plan(self, indices: np.ndarray) -> Plan:
        element, split = words.split(indices, self.transform.max_fan_out)
        # Neighbours of one element share its row in the parent's plan, so that it is read and split once for all.
        starts = np.ones(len(indices), dtype=bool)
        np.not_equal(element[1:], element[:-1], out=starts[1:])
        return _FlatMapped(
            self, element[starts], (np.cumsum(starts) - 1).tolist(), split.tolist(), self.parent.plan(element[starts])
        )

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return made_of_one_each(words.split(indices, self.transform.max_fan_out)[0])


@dataclasses.dataclass(slots=True)
class _FlatMapped(Plan):
    """Parts of elements. Each element of the parent is split once, also where several rows are its parts."""

    node: FlatMap
    elements: np.ndarray
    parent_rows: list[int]
    splits: list[int]
    parent: Plan
    last: tuple[int, Sequence[Any] | None] = (-1, None)
    """The last row of the parent that was split, and its parts: the next read may need them, too."""

    def read(self, low: int, high: int, private: bool) -> Block:
        first, end = self.parent_rows[low], self.parent_rows[high - 1] + 1
        row, parts = self.last
        known = {first: parts} if row == first else {}
        fresh = first + len(known)
        try:
            known.update(zip(range(fresh, end), self._split(fresh, end), strict=True))
        except RowFailed as failed:
            at = self.parent_rows.index(fresh + failed.row, low)
            raise RowFailed(at - low, failed.error) from failed.error
        self.last = (end - 1, known[end - 1])
        # Copies: the parts of one element may share memory, and `last` holds some of them.
        return [
            None if (parts := known[row]) is None or split >= len(parts) else copy_value(parts[split])
            for row, split in zip(self.parent_rows[low:high], self.splits[low:high], strict=True)
        ]

    def _split(self, first: int, end: int) -> list[Any]:
        if first == end:
            return []

        def where(row: int) -> str:
            element = int(self.elements[first + row])
            return describe_failure(self.node.describe(), element, self.node.parent.origins(element))

        return blocks.rows_of(self.node.operation.run(self.parent.take(first, end), (), where)[0])
