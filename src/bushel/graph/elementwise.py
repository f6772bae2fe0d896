"""Operations on single elements of a stream: map, map_with_index, random_map, filter. Programs run them.

What they do to a block is in operation.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from bushel.base.blocks import Block
from bushel.graph import operation
from bushel.graph.operation import Kind, Operation, keep_rows
from bushel.graph.streams import OneParent


@dataclasses.dataclass(frozen=True, eq=False)
class Elementwise(OneParent):
    """An operation on single elements. It may count them, and it may drop some; it never looks at two at a time."""

    transform: Any

    kind: ClassVar[Kind]

    @functools.cached_property
    def operation(self) -> Operation:
        """What is done to a block."""
        return Operation.of(self.kind, **self.parameters())

    @property
    def count_key(self) -> str | None:
        """Where the state keeps how many elements came before, for operations that depend on it."""
        return self.kind.count_key

    @property
    def drops(self) -> bool:
        """Whether elements may be dropped."""
        return self.kind.drops

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function."""
        return self.operation.function

    @property
    def writes(self) -> bool:
        """Whether the user's function could change the element that it is given."""
        return self.operation.writes

    @property
    def shares(self) -> bool:
        """Whether the user's function could return an object that it keeps."""
        return self.operation.shares

    def run(self, block: Block, first: int, where: Callable[[int], str]) -> tuple[Block, np.ndarray | None]:
        """The operation on a block whose first element is number `first` of the stream.

        Returns what stays, and one bool per element that came in, or None where all of them stay. Raises RowFailed.
        """
        made, kept = self.operation.run(block, range(first, first + len(block)), where)
        return (made, None) if kept is None else (keep_rows(made, kept), np.array(kept))

    @property
    def length(self) -> int | None:
        return None if self.drops else self.parent.length

    def element_spec(self) -> Any:
        return self.operation.derive_spec(self.parent)

    def call(self) -> str:
        return self.operation.call()

    def describe(self) -> str:
        return self.operation.describe()


@dataclasses.dataclass(frozen=True, eq=False)
class MapStream(Elementwise):
    """`transform` of each element; None stays None."""

    vectorized: bool = False
    kind = operation.MAP


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexStream(Elementwise):
    """`transform(how many came before, element)`."""

    kind = operation.MAP_WITH_INDEX


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapStream(Elementwise):
    """`transform(element, rng)` with a generator that belongs to how many elements came before."""

    seed: int
    kind = operation.RANDOM_MAP


@dataclasses.dataclass(frozen=True, eq=False)
class FilterStream(Elementwise):
    """Only the elements for which `transform` returns True."""

    vectorized: bool = False
    kind = operation.FILTER_ALL
