"""Operations on single elements of a map node: map, map_with_index, random_map, filter, flat_map.

Several functions of single elements run in one loop. What they do to a block is in operation.py.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks, transforms
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import RowFailed
from bushel._src.base.private_elements import copy_value, make_private
from bushel._src.base.read_only_calls import RowsOfKnownTypes, are_known
from bushel._src.base.state_names import in_states
from bushel._src.graph import operation
from bushel._src.graph.many_plans import JoinedOperations
from bushel._src.graph.node import (
    Computed,
    InTwoSteps,
    MadeOf,
    Plan,
    PlanMany,
    describe_failure,
    made_of_one_each,
    raise_for_row,
)
from bushel._src.graph.operation import BlockOperation, WithTransform
from bushel._src.index import epochs

_FILE = "<bushel: steps of one loop>"
_FIRST_LINE = 4
"""The line of the source code that calls the first function. Each function has a line of its own."""

_PRIVATE_FILE = "<bushel: private steps of one loop>"
_FIRST_PRIVATE_LINE = 10
"""The line that calls the first function where rows pass the gate. Each function has two lines."""

RunSteps = Callable[[Iterator[Any], Sequence[Callable[[Any], Any]]], list[Any]]
"""(rows, functions) -> the rows after all functions; None for a row that is missing, or that a filter drops."""

RunPrivateSteps = Callable[[list[Any], Sequence[Callable[[Any], Any]], bool], list[Any]]
"""The same for rows in reverse order, which are taken out of the list; and whether they are private already."""


@functools.lru_cache(maxsize=256)
def compile_steps(drops: tuple[bool, ...]) -> RunSteps:
    """Return the loop over rows that calls functions in turn: maps, and filters where `drops` says so.

    >>> run = compile_steps((False, True))
    >>> run(iter([1, None, 3]), [lambda x: x + 1, lambda x: x > 2])
    [None, None, 4]
    """
    names = ", ".join(f"f{number}" for number in range(len(drops)))
    calls = [
        f"and f{number}(x)" if drop else f"and (x := f{number}(x)) is not None" for number, drop in enumerate(drops)
    ]
    lines = ["def run_steps(rows, functions):", f"    {names}, = functions", "    return [x if (x := row) is not None"]
    source = "\n".join([*lines, *(f"        {call}" for call in calls), "        else None for row in rows]"])
    namespace: dict[str, Any] = {}
    exec(compile(source, _FILE, "exec"), namespace)
    return namespace["run_steps"]


@functools.lru_cache(maxsize=256)
def compile_private_steps(drops: tuple[bool, ...]) -> RunPrivateSteps:
    """Return the same loop for functions that may write into what they get, or keep it.

    The rows that it returns are private.

    A row passes the gate before the first function and after each function. Only then comes the next row, since a
    function may use one buffer for all rows.

    >>> kept = [1]
    >>> run = compile_private_steps((False, True))
    >>> found = run([3, None], [lambda x: kept, lambda x: True], True)
    >>> found, found[1] is kept
    ([None, [1]], False)
    """
    names = ", ".join(f"f{number}" for number in range(len(drops)))
    lines = [
        "def run_steps(rows, functions, is_private):",
        f"    {names}, = functions",
        "    made, take = [], rows.pop",
        "    while rows:",
        "        box = [take()]",
        "        if box[0] is None:",
        "            made.append(None)",
        "            continue",
        "        if not is_private: make_private(box)",
    ]
    assert len(lines) == _FIRST_PRIVATE_LINE - 1
    for number, drop in enumerate(drops):
        if drop:
            lines += [f"        if not f{number}(box[0]): made.append(None); continue", "        make_private(box)"]
        else:
            lines += [
                f"        box = make_private([f{number}(box.pop())])",
                "        if box[0] is None: made.append(None); continue",
            ]
    source = "\n".join([*lines, "        made += box", "    return made"])
    namespace: dict[str, Any] = {"make_private": make_private}
    exec(compile(source, _PRIVATE_FILE, "exec"), namespace)
    return namespace["run_steps"]


def find_failed_step(error: BaseException) -> int:
    """Return the number of the function that has raised an error inside such a loop."""
    line, trace = 0, error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename not in (_FILE, _PRIVATE_FILE):
        trace = trace.tb_next
    assert trace is not None
    # The first frames of the loop count: a function of the user's may run a pipeline, too.
    file = trace.tb_frame.f_code.co_filename
    while isinstance(trace, types.TracebackType) and trace.tb_frame.f_code.co_filename == file:
        line, trace = trace.tb_lineno, trace.tb_next
    return line - _FIRST_LINE if file == _FILE else max(0, line - _FIRST_PRIVATE_LINE) // 2


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
        step = _Step(self, self.operation)
        parent = self.parent
        if not isinstance(parent, _PerElement) or parent.operation.vectorized:
            return [step]
        return [*parent._steps, step]

    @functools.cached_property
    def _chains(self) -> list[_Chain]:
        """`_steps`, cut into groups: the steps of each group run in one loop."""
        chains: list[list[_Step]] = []
        for step in self._steps:
            last = chains[-1] if chains else []
            # A filter that comes first may get columns, which then stay columns.
            if last and step.can_join(last[-1]) and not last[0].drops:
                last.append(step)
            else:
                chains.append([step])
        return list(map(_Chain, chains))

    @functools.cached_property
    def _second_step(self) -> BlockOperation:
        function = self.operation.function
        assert isinstance(function, InTwoSteps)
        return dataclasses.replace(self.operation, function=function.after)

    def element_spec(self) -> Any:
        return self.operation.derive_spec(self.parent)


@in_states("map")
@dataclasses.dataclass(frozen=True, eq=False)
class MapElements(_PerElement):
    """`transform` of each element, or of whole columns where it is marked as vectorized."""

    vectorized: bool = False
    kind = operation.MAP


@in_states("map_with_index")
@dataclasses.dataclass(frozen=True, eq=False)
class MapElementsWithIndex(_PerElement):
    """`transform(index, element)`; the index counts on through epochs."""

    kind = operation.MAP_WITH_INDEX
    pure = False


@in_states("random_map")
@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapElements(_PerElement):
    """`transform(element, rng)` with a generator that belongs to the index."""

    seed: int
    kind = operation.RANDOM_MAP
    pure = False


@in_states("filter")
@dataclasses.dataclass(frozen=True, eq=False)
class FilterElements(_PerElement):
    """Elements for which `transform` returns False are missing: the length stays, the element is None."""

    vectorized: bool = False
    kind = operation.FILTER
    drops = True


@dataclasses.dataclass(eq=False)
class _Step:
    """One of several operations in a row, each of which calls a function with one element after the other."""

    node: _PerElement
    operation: BlockOperation

    def __post_init__(self) -> None:
        kind = self.operation.kind
        self.counts = kind.count_key is not None
        self.drops = kind.drops

    def can_join(self, before: _Step) -> bool:
        """Return whether this step can run in one loop with the one before: both only read, or both may write."""
        return not self.counts and not before.counts and self._only_reads == before._only_reads

    @property
    def _only_reads(self) -> bool:
        return self.operation.reading is not None


class _Chain:
    """Steps that run in one loop."""

    def __init__(self, steps: list[_Step]):
        self.steps = steps
        drops = tuple([step.drops for step in steps])
        readings = [step.operation.reading for step in steps]
        self._may_write = None in readings
        self._with_loads = [reading for reading in readings if reading is not None and reading.has_loads]
        self._run_reading, self._run_private = compile_steps(drops), compile_private_steps(drops)
        self.needs_private = steps[0].operation.needs_private
        """Whether the elements that it is given must be private, whatever is done with its result."""

    def _list_functions(self) -> list[Callable[..., Any]]:
        return [step.operation.watched().function for step in self.steps]

    def __len__(self) -> int:
        return len(self.steps)

    def run(self, rows: list[Any], where: Callable[[_Step, int], str], is_private: bool, private: bool) -> list[Any]:
        """Return the rows after all steps.

        See `BlockOperation.run` for the arguments. The list `rows` is empty afterwards.
        """
        count = len(rows)
        # For elements of known types such functions return known types, too. So one look at the rows is enough.
        only_reads = not self._may_write and are_known(rows)
        for reading in self._with_loads:
            only_reads = only_reads and reading.knows_loads()
        left: Any = iter(rows) if only_reads else rows
        try:
            if only_reads:
                made = self._run_reading(left, self._list_functions())
            else:
                rows.reverse()
                made = self._run_private(rows, self._list_functions(), is_private)
        except Exception as error:
            step = self.steps[find_failed_step(error)]
            raise_for_row(error, count, left, functools.partial(where, step))
        rows.clear()  # rows that functions have returned as they are would otherwise count as held by this list, too
        if not only_reads:
            return made
        return make_private(made) if private else RowsOfKnownTypes(made)


@dataclasses.dataclass(slots=True)
class _OneByOne(Plan):
    """Elements that operations make one for one, each of one element at a time."""

    chains: list[_Chain]
    indices: np.ndarray
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        is_private = self.chains[0].needs_private
        block = self.parent.read(low, high, is_private)
        for number, chain in enumerate(self.chains):
            wanted = private if number == len(self.chains) - 1 else self.chains[number + 1].needs_private
            (step, *others) = chain.steps
            where = functools.partial(self._describe_failure, low)
            if others or not (step.counts or isinstance(block, Columns)):
                is_private = is_private or isinstance(block, Columns)
                block = chain.run(blocks.rows_of(block), where, is_private, wanted)
            else:
                numbers = self.indices[low:high].tolist() if step.counts else ()
                block, kept = step.operation.run(
                    block, numbers, functools.partial(where, step), is_private=is_private, private=wanted
                )
                block = block if kept is None else operation.mark_missing(block, kept)
            is_private = wanted
        return block

    def _describe_failure(self, low: int, step: _Step, row: int) -> str:
        return step.node.describe_failure(int(self.indices[low + row]))


@dataclasses.dataclass(slots=True)
class _Vectorized(Plan):
    """Elements that an operation of whole columns makes one for one."""

    node: _PerElement
    operation: BlockOperation
    indices: np.ndarray
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        run = self.operation

        def where(row: int) -> str:
            # A vectorized function fails for the whole block. The error does not say which element caused it.
            return self.node.describe_failure(*self.indices[low:high].tolist())

        # A vectorized map gets its rows stacked, which copies them. A filter returns the very rows that it is given.
        is_private = run.kind.drops and private
        block = self.parent.read(low, high, is_private)
        block, kept = run.run(block, (), where, is_private=is_private, private=private)
        return block if kept is None else operation.mark_missing(block, kept)


@in_states("flat_map")
@dataclasses.dataclass(frozen=True, eq=False)
class FlatMapElements(WithTransform):
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
        element, split = epochs.split(indices, self.transform.max_fan_out)
        # Neighbours of one element share its row in the parent's plan, so that it is read and split once for all.
        starts = np.ones(len(indices), dtype=bool)
        np.not_equal(element[1:], element[:-1], out=starts[1:])
        return _FlatMapped(
            self, element[starts], (np.cumsum(starts) - 1).tolist(), split.tolist(), self.parent.plan(element[starts])
        )

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return made_of_one_each(epochs.split(indices, self.transform.max_fan_out)[0])


@dataclasses.dataclass(slots=True)
class _FlatMapped(Plan):
    """Parts of elements. Each element of the parent is split once, also where several rows are its parts."""

    node: FlatMapElements
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

        block = self.parent.take(first, end)
        return blocks.rows_of(self.node.operation.run(block, (), where, is_private=True, private=True)[0])
