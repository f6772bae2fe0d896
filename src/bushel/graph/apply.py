"""Per-element operations: map, map_with_index, random_map, filter, flat_map. Missing elements stay missing."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bushel.base import blocks, checks, transforms, trees
from bushel.base.blocks import Block, Columns
from bushel.base.effects import may_share, may_write
from bushel.base.errors import RowFailed, located
from bushel.base.ownership import copied, own, own_columns
from bushel.base.rng import RngPool
from bushel.graph.node import Epochs, InTwoSteps, MadeOf, MapNode, Node, Plan, Reckoned, each, merged, one_each, told
from bushel.index import words


def spec_after(transform: Any, parent: Node) -> Any:
    """The element spec after a transformation that can tell it."""
    if not hasattr(transform, "output_spec"):
        name = transforms.short_name(transform)
        raise ValueError(
            f"Cannot infer element spec for transform {name} because it does not implement `output_spec` method. "
            f"Implement `{name}.output_spec(self, input_spec)`, which returns a tree of ShapeDtypeStruct."
        )
    return transform.output_spec(parent.element_spec())


def call_of(operation: str, transform: Any, **options: Any) -> str:
    """How an operation with a user's transformation reads: `map(normalise, vectorized=True)`."""
    shown = [transforms.short_name(transform), *(f"{name}={value}" for name, value in options.items())]
    return f"{operation}({', '.join(shown)})"


def placed(operation: str, transform: Any) -> str:
    """The same in a message: `map(normalise @ train.py:12)`."""
    return f"{operation}({transforms.place(transform)})"


def mapped_columns(function: Callable[[Any], Any], block: Block, node: Node) -> Block:
    """A function of whole columns on a block; it sees no missing elements and keeps their number."""
    columns = blocks.as_columns(block)
    if columns is None:
        # Rows of several kinds, or none at all: each is a block of its own, so that no other changes its dtype.
        rows = [
            row if row is None else mapped_columns(function, Columns(blocks.stack([row]), 1), node)
            for row in blocks.rows_of(block)
        ]
        return [row if row is None else blocks.rows_of(row)[0] for row in rows]
    count = columns.dense().length
    if not count:
        return [None] * len(block)
    result = function(columns.tree)

    def as_column(leaf: Any) -> np.ndarray:
        column = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
        if column.ndim == 0 or len(column) != count:
            raise ValueError(
                f"{node.call()} is vectorized: it got arrays with {count} elements and must return arrays with as "
                f"many; it returned {trees.describe(result)}."
            )
        return column

    return Columns(trees.map_leaves(as_column, result), columns.length, columns.present)


def verdicts_of(function: Callable[[Any], Any], block: Block, node: Node) -> np.ndarray:
    """What a filter of whole columns says, one bool per element; what is missing is refused unseen."""
    verdicts = mapped_columns(function, block, node)
    kept = np.zeros(len(block), dtype=bool)
    for place, verdict in enumerate(blocks.rows_of(verdicts)):
        if verdict is not None:
            if not isinstance(verdict, (bool, np.bool_, np.number)):
                raise ValueError(
                    f"{node.call()} is vectorized: it must return one bool per element; "
                    f"for one it returned {trees.describe(verdict)}."
                )
            kept[place] = bool(verdict)
    return kept


def each_with(
    function: Callable[[Any, Any], Any], rows: list[Any], seconds: Iterable[Any], where: Callable[[int], str]
) -> list[Any]:
    """`function(row, second)` of every row that is there."""
    pairs = [None if row is None else (row, second) for row, second in zip(rows, seconds, strict=True)]
    del rows
    return each(lambda pair: function(*pair), pairs, where)


@dataclasses.dataclass(frozen=True, eq=False)
class _PerElement(MapNode):
    """What the operations of this file share: one parent, one transformation, one element for one."""

    parent: MapNode
    transform: Any

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return (self.parent,)

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return self.parent.length

    @functools.cached_property
    def writes(self) -> bool:
        """Whether the function could change the element that it is given."""
        return may_write(self.function)

    @functools.cached_property
    def shares(self) -> bool:
        """Whether the function could return an object that it keeps."""
        return may_share(self.function)

    @functools.cached_property
    @abc.abstractmethod
    def function(self) -> Callable[..., Any]:
        """The user's function."""

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return one_each(indices)

    @property
    def one_to_one(self) -> bool:
        return True

    @property
    def epochs(self) -> Epochs:
        return self.parent.epochs

    def element_spec(self) -> Any:
        return spec_after(self.transform, self.parent)

    def where(self, operation: str, indices: np.ndarray, low: int) -> Callable[[int], str]:
        """Tells where row `row` of a take from `low` failed."""

        def where(row: int) -> str:
            index = int(indices[low + row])
            return told(placed(operation, self.transform), index, self.origins(index))

        return where

    def where_among(self, operation: str, indices: np.ndarray) -> str:
        """Tells which elements a function of whole columns had when it failed."""
        origins = merged(origin for index in indices.tolist() for origin in self.origins(index))
        return told(placed(operation, self.transform), indices.tolist(), origins)


Read = Callable[[int, int], Block]
"""`take` or `look` of a plan."""


@dataclasses.dataclass(slots=True)
class _Applied(Plan):
    """Elements that a function of single elements makes."""

    node: _PerElement
    indices: np.ndarray
    parent: Plan

    def take(self, low: int, high: int) -> Block:
        made = self.apply(self.parent.take, low, high)
        return own(made) if self.node.shares else made

    def look(self, low: int, high: int) -> Block:
        return self.apply(self.parent.take if self.node.writes else self.parent.look, low, high)

    @abc.abstractmethod
    def apply(self, read: Read, low: int, high: int) -> list[Any]:
        """The function of rows [low, high), which `read` reads."""


@dataclasses.dataclass(frozen=True, eq=False)
class Map(_PerElement):
    """`transform` of each element, or of whole columns where it is marked as vectorized."""

    vectorized: bool = False

    def plan(self, indices: np.ndarray) -> Plan:
        parent, function = self.parent.plan(indices), self.function
        if self.vectorized and isinstance(parent, Reckoned) and isinstance(function, InTwoSteps):
            parent, function = Reckoned(function.ahead(parent.values)), function.after
        return _Mapped(self, indices, parent, function, self.vectorized)

    @functools.cached_property
    def function(self) -> Callable[[Any], Any]:
        return transforms.method(self.transform, transforms.Map, "map")

    def call(self) -> str:
        return call_of("map", self.transform, **({"vectorized": True} if self.vectorized else {}))


@dataclasses.dataclass(slots=True)
class _Mapped(_Applied):
    function: Callable[[Any], Any]
    vectorized: bool

    def take(self, low: int, high: int) -> Block:
        return self._columns(low, high) if self.vectorized else _Applied.take(self, low, high)

    def look(self, low: int, high: int) -> Block:
        return self._columns(low, high) if self.vectorized else _Applied.look(self, low, high)

    def apply(self, read: Read, low: int, high: int) -> list[Any]:
        return each(self.function, blocks.rows_of(read(low, high)), self.node.where("map", self.indices, low))

    def _columns(self, low: int, high: int) -> Block:
        block = self.parent.look(low, high)  # rows are stacked, which copies them
        try:
            made = mapped_columns(self.function, block, self.node)
        except Exception as error:
            where = self.node.where_among("map", self.indices[low:high])
            raise RowFailed(0, located(error, where)) from error
        if not self.node.shares:
            return made
        return own_columns(made) if isinstance(made, Columns) else own(made)


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndex(_PerElement):
    """`transform(index, element)`; the index counts on through epochs."""

    def plan(self, indices: np.ndarray) -> Plan:
        return _MappedWithIndex(self, indices, self.parent.plan(indices))

    @functools.cached_property
    def function(self) -> Callable[[int, Any], Any]:
        return transforms.method(self.transform, transforms.MapWithIndex, "map_with_index")

    @property
    def pure(self) -> bool:
        return False

    def call(self) -> str:
        return call_of("map_with_index", self.transform)


@dataclasses.dataclass(slots=True)
class _MappedWithIndex(_Applied):
    def apply(self, read: Read, low: int, high: int) -> list[Any]:
        function = self.node.function
        indices = self.indices[low:high].tolist()
        where = self.node.where("map_with_index", self.indices, low)
        return each_with(lambda row, index: function(index, row), blocks.rows_of(read(low, high)), indices, where)


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMap(_PerElement):
    """`transform(element, rng)` with a generator that belongs to the index."""

    seed: int

    def plan(self, indices: np.ndarray) -> Plan:
        return _RandomlyMapped(self, indices, self.parent.plan(indices), self.pool)

    @functools.cached_property
    def function(self) -> Callable[[Any, np.random.Generator], Any]:
        return transforms.method(self.transform, transforms.RandomMap, "random_map")

    @property
    def pure(self) -> bool:
        return False

    @functools.cached_property
    def pool(self) -> RngPool:
        return RngPool(self.seed)

    def call(self) -> str:
        return call_of("random_map", self.transform, seed=self.seed)


@dataclasses.dataclass(slots=True)
class _RandomlyMapped(_Applied):
    pool: RngPool

    def apply(self, read: Read, low: int, high: int) -> list[Any]:
        function, rows = self.node.function, [blocks.rows_of(read(low, high))]
        indices = self.indices[low:high].tolist()
        where = self.node.where("random_map", self.indices, low)
        generators = self.pool.borrow()
        try:
            return each_with(lambda row, index: function(row, generators.at(index)), rows.pop(), indices, where)
        finally:
            self.pool.give_back(generators)


@dataclasses.dataclass(frozen=True, eq=False)
class Filter(_PerElement):
    """Elements for which `transform` says no are missing: the length stays, the element is None."""

    vectorized: bool = False

    def plan(self, indices: np.ndarray) -> Plan:
        return _Filtered(self, indices, self.parent.plan(indices))

    @functools.cached_property
    def function(self) -> Callable[[Any], Any]:
        return transforms.method(self.transform, transforms.Filter, "filter")

    def marked(self, block: Block, where: Callable[[int], str]) -> Block:
        """The block with those elements missing for which the filter says no."""
        rows = blocks.rows_of(block)
        verdicts = each(self.function, rows, where)
        if isinstance(block, Columns):
            kept = [bool(verdict) for row, verdict in zip(rows, verdicts) if row is not None]
            return block.where(np.array(kept, dtype=bool))
        return [row if verdict else None for row, verdict in zip(rows, verdicts)]

    def marked_columns(self, block: Block) -> Block:
        """The same by a filter of whole columns."""
        kept = verdicts_of(self.function, block, self)
        if isinstance(block, Columns):
            return block.where(kept if block.present is None else kept[block.present])
        return [row if stays else None for row, stays in zip(block, kept.tolist())]

    @property
    def sparse(self) -> bool:
        return True

    def element_spec(self) -> Any:
        return self.parent.element_spec()

    def call(self) -> str:
        return call_of("filter", self.transform, **({"vectorized": True} if self.vectorized else {}))


@dataclasses.dataclass(slots=True)
class _Filtered(Plan):
    node: Filter
    indices: np.ndarray
    parent: Plan

    def take(self, low: int, high: int) -> Block:
        return self._filter(self.parent.take(low, high), low, high)

    def look(self, low: int, high: int) -> Block:
        read = self.parent.take if self.node.writes else self.parent.look
        return self._filter(read(low, high), low, high)

    def _filter(self, block: Block, low: int, high: int) -> Block:
        if not self.node.vectorized:
            return self.node.marked(block, self.node.where("filter", self.indices, low))
        try:
            return self.node.marked_columns(block)
        except Exception as error:
            where = self.node.where_among("filter", self.indices[low:high])
            raise RowFailed(0, located(error, where)) from error


@dataclasses.dataclass(frozen=True, eq=False)
class FlatMap(MapNode):
    """Up to `max_fan_out` elements for each one; those that are not there are missing."""

    parent: MapNode
    transform: transforms.FlatMap

    def __post_init__(self) -> None:
        checks.positive(self.transform.max_fan_out, f"max_fan_out of {transforms.short_name(self.transform)}")

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return (self.parent,)

    @functools.cached_property
    def length(self) -> int:  # type: ignore[override]
        return min(checks.INFINITE, self.parent.length * self.transform.max_fan_out)

    @property
    def sparse(self) -> bool:
        return True

    def plan(self, indices: np.ndarray) -> Plan:
        element, split = words.split(indices, self.transform.max_fan_out)
        # Neighbours of one element share its plan row, so that it is read and split once for all of them.
        starts = np.ones(len(indices), dtype=bool)
        np.not_equal(element[1:], element[:-1], out=starts[1:])
        return _FlatMapped(
            self, element[starts], (np.cumsum(starts) - 1).tolist(), split.tolist(), self.parent.plan(element[starts])
        )

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return one_each(words.split(indices, self.transform.max_fan_out)[0])

    @property
    def epochs(self) -> Epochs:
        return self.parent.epochs

    def element_spec(self) -> Any:
        raise NotImplementedError("The shapes after flat_map are not known without running it.")

    def call(self) -> str:
        return call_of("flat_map", self.transform)


@dataclasses.dataclass(slots=True)
class _FlatMapped(Plan):
    node: FlatMap
    elements: np.ndarray
    parent_rows: list[int]
    splits: list[int]
    parent: Plan
    last: tuple[int, Sequence[Any] | None] = (-1, None)

    def take(self, low: int, high: int) -> Block:
        first, end = self.parent_rows[low], self.parent_rows[high - 1] + 1
        row, parts = self.last  # of the take before: iteration one by one splits each element once
        found = {first: parts} if row == first else {}
        fresh = first + len(found)
        try:
            found.update(zip(range(fresh, end), self._split(fresh, end), strict=True))
        except RowFailed as failed:
            at = self.parent_rows.index(fresh + failed.row, low)
            raise RowFailed(at - low, failed.error) from failed.error
        self.last = (end - 1, found[end - 1])
        # Copies: the parts of one element may share memory, and `last` holds some of them.
        return [
            None if (parts := found[row]) is None or split >= len(parts) else copied(parts[split])
            for row, split in zip(self.parent_rows[low:high], self.splits[low:high], strict=True)
        ]

    def _split(self, first: int, end: int) -> list[Any]:
        if first == end:
            return []
        node = self.node

        def where(row: int) -> str:
            element = int(self.elements[first + row])
            return told(placed("flat_map", node.transform), element, node.parent.origins(element))

        return each(functools.partial(split_of, node.transform), blocks.rows_of(self.parent.take(first, end)), where)


def split_of(transform: transforms.FlatMap, element: Any) -> Sequence[Any]:
    """The parts of one element, not more than promised."""
    parts = transform.flat_map(element)
    if not isinstance(parts, Sequence):
        parts = list(parts)
    if len(parts) > transform.max_fan_out:
        raise ValueError(
            f"flat_map gave {len(parts)} elements for one, more than its max_fan_out of {transform.max_fan_out}. "
            "Raise max_fan_out of the transformation, or split less."
        )
    return parts
