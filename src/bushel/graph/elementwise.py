"""Per-element operations on streams: map, map_with_index, random_map, filter. Programs (engine/program.py) run them."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from bushel.base import blocks, transforms
from bushel.base.blocks import Block, Columns
from bushel.base.effects import may_share, may_write
from bushel.base.errors import RowFailed, located
from bushel.base.rng import RngPool
from bushel.graph.apply import call_of, each_with, mapped_columns, placed, spec_after, verdicts_of
from bushel.graph.node import each
from bushel.graph.streams import OneParent


@dataclasses.dataclass(frozen=True, eq=False)
class Elementwise(OneParent):
    """An operation on single elements. It may count them, and it may drop some; it never looks at two at a time."""

    transform: Any

    operation: ClassVar[str] = ""
    """The method of IterDataset that builds it."""

    count_key: ClassVar[str | None] = None
    """Where the state keeps how many elements came before, for operations that depend on it."""

    drops: ClassVar[bool] = False
    """Whether elements may be dropped."""

    @functools.cached_property
    def writes(self) -> bool:
        """Whether the user's function could change the element that it is given."""
        return may_write(getattr(self, "function", None))

    @functools.cached_property
    def shares(self) -> bool:
        """Whether the user's function could return an object that it keeps."""
        return not self.drops and may_share(self.transform)

    @abc.abstractmethod
    def run(self, block: Block, first: int, where: Callable[[int], str]) -> tuple[Block, np.ndarray | None]:
        """The operation on a block whose first element is number `first` of the stream.

        Returns what stays, and one bool per element that came in, or None where all of them stay. Raises RowFailed.
        """

    @property
    def length(self) -> int | None:
        return None if self.drops else self.parent.length

    def element_spec(self) -> Any:
        return spec_after(self.transform, self.parent)

    def call(self) -> str:
        return call_of(self.operation, self.transform)

    def placed(self) -> str:
        """The operation in a message: `map(normalise @ train.py:12)`."""
        return placed(self.operation, self.transform)


@dataclasses.dataclass(frozen=True, eq=False)
class MapStream(Elementwise):
    """`transform` of each element; None stays None."""

    vectorized: bool = False
    operation = "map"

    def run(self, block: Block, first: int, where: Callable[[int], str]) -> tuple[Block, np.ndarray | None]:
        if not self.vectorized:
            return each(self.function, blocks.rows_of(block), where), None
        try:
            return mapped_columns(self.function, block, self), None
        except Exception as error:
            raise RowFailed(0, located(error, where(0))) from error

    @functools.cached_property
    def function(self) -> Callable[[Any], Any]:
        return transforms.method(self.transform, transforms.Map, "map")

    def call(self) -> str:
        return call_of("map", self.transform, **({"vectorized": True} if self.vectorized else {}))


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexStream(Elementwise):
    """`transform(how many came before, element)`."""

    operation = "map_with_index"
    count_key = "counter"

    def run(self, block: Block, first: int, where: Callable[[int], str]) -> tuple[Block, np.ndarray | None]:
        function, rows = self.function, blocks.rows_of(block)
        numbers = range(first, first + len(rows))
        return each_with(lambda row, number: function(number, row), rows, numbers, where), None

    @functools.cached_property
    def function(self) -> Callable[[int, Any], Any]:
        return transforms.method(self.transform, transforms.MapWithIndex, "map_with_index")


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapStream(Elementwise):
    """`transform(element, rng)` with a generator that belongs to how many elements came before."""

    seed: int
    operation = "random_map"
    count_key = "index_for_rng"

    def run(self, block: Block, first: int, where: Callable[[int], str]) -> tuple[Block, np.ndarray | None]:
        function, rows = self.function, blocks.rows_of(block)
        numbers = range(first, first + len(rows))
        generators = self.pool.borrow()
        try:
            return each_with(lambda row, number: function(row, generators.at(number)), rows, numbers, where), None
        finally:
            self.pool.give_back(generators)

    @functools.cached_property
    def function(self) -> Callable[[Any, np.random.Generator], Any]:
        return transforms.method(self.transform, transforms.RandomMap, "random_map")

    @functools.cached_property
    def pool(self) -> RngPool:
        return RngPool(self.seed)

    def call(self) -> str:
        return call_of("random_map", self.transform, seed=self.seed)


@dataclasses.dataclass(frozen=True, eq=False)
class FilterStream(Elementwise):
    """Only the elements for which `transform` says yes."""

    vectorized: bool = False
    operation = "filter"
    drops = True

    def run(self, block: Block, first: int, where: Callable[[int], str]) -> tuple[Block, np.ndarray | None]:
        if self.vectorized:
            try:
                kept = verdicts_of(self.function, block, self)
            except Exception as error:
                raise RowFailed(0, located(error, where(0))) from error
        else:
            verdicts = each(self.function, blocks.rows_of(block), where, also_none=True)
            kept = np.array(list(map(bool, verdicts)), dtype=bool)
        if kept.all():
            return block, None
        if isinstance(block, Columns) and block.present is None:
            return block.where(kept).dense(), kept
        return [row for row, stays in zip(blocks.rows_of(block), kept.tolist()) if stays], kept

    @functools.cached_property
    def function(self) -> Callable[[Any], Any]:
        return transforms.method(self.transform, transforms.Filter, "filter")

    def element_spec(self) -> Any:
        return self.parent.element_spec()

    def call(self) -> str:
        return call_of("filter", self.transform, **({"vectorized": True} if self.vectorized else {}))
