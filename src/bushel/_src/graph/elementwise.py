"""Operations on single elements of a stream: map, map_with_index, random_map, filter. Programs run them.

What they do to a block is in operation.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel._src.base.contract import optional
from bushel._src.base.state_names import in_states
from bushel._src.graph import operation
from bushel._src.graph.operation import WithOperation
from bushel._src.graph.streams import OneParent


class Step(OneParent):
    """A stream node that a program runs: an operation on single elements, or a batch."""

    @property
    @optional
    def gathers(self) -> int:
        """How many elements become one; by default each stays alone."""
        return 1

    @property
    @optional
    def count_key(self) -> str | None:
        """Where the state keeps how many elements came before, for operations that depend on it; by default none do."""
        return None

    @property
    @optional
    def drops(self) -> bool:
        """Whether elements may be dropped; by default none are."""
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class Elementwise(WithOperation, Step):
    """An operation on single elements. It may count them, and it may drop some; it never looks at two at a time."""

    transform: Any

    @property
    def count_key(self) -> str | None:
        return self.kind.count_key

    @property
    def drops(self) -> bool:
        return self.kind.drops

    @property
    def length(self) -> int | None:
        return None if self.drops else self.parent.length

    def element_spec(self) -> Any:
        return self.operation.derive_spec(self.parent)


@in_states("stream_map")
@dataclasses.dataclass(frozen=True, eq=False)
class MapStream(Elementwise):
    """`transform` of each element; None stays None."""

    vectorized: bool = False
    kind = operation.MAP


@in_states("stream_map_with_index")
@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexStream(Elementwise):
    """`transform(how many came before, element)`."""

    kind = operation.MAP_WITH_INDEX


@in_states("stream_random_map")
@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapStream(Elementwise):
    """`transform(element, rng)` with a generator that belongs to how many elements came before."""

    seed: int
    kind = operation.RANDOM_MAP


@in_states("stream_filter")
@dataclasses.dataclass(frozen=True, eq=False)
class FilterStream(Elementwise):
    """Only the elements for which `transform` returns True."""

    vectorized: bool = False
    kind = operation.FILTER_ALL
