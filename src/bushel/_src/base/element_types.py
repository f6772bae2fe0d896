"""Types in the signatures of datasets: functions, transformations as objects, and what `batch` makes of elements.

Only type checkers load this module. docs/typing.md says what users may expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, final

import numpy as np

In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

Leaf: TypeAlias = np.ndarray | np.generic | complex | str | bytes
"""What `batch` stacks into an array. A type checker takes `int`, `float` and `bool` for `complex` too."""

Key = TypeVar("Key")
Value = TypeVar("Value")
LeafType = TypeVar("LeafType", bound=Leaf)


@final
class _Nothing:
    """A type without values."""


Unknown = TypeVar("Unknown", bound=_Nothing)
"""Matches only `Any`. An overload with it comes first, since `Any` would match the overload for leaves as well.

It must be a type variable: with `Never` in its place pyright gives up at elements of type `dict[str, Any]`.
"""


class MapObject(Protocol[In_contra, Out_co]):
    """A `Map`, by the types of its method."""

    def map(self, element: In_contra, /) -> Out_co:
        """Return the new element."""
        ...


class MapWithIndexObject(Protocol[In_contra, Out_co]):
    """A `MapWithIndex`, by the types of its method."""

    def map_with_index(self, index: int, element: In_contra, /) -> Out_co:
        """Return the new element at `index`."""
        ...


class RandomMapObject(Protocol[In_contra, Out_co]):
    """A `RandomMap`, by the types of its method."""

    def random_map(self, element: In_contra, rng: np.random.Generator, /) -> Out_co:
        """Return the new element."""
        ...


class FilterObject(Protocol[In_contra]):
    """A `Filter`, by the types of its method."""

    def filter(self, element: In_contra, /) -> object:
        """Return a true value to keep the element."""
        ...


class FlatMapObject(Protocol[In_contra, Out_co]):
    """A `FlatMap`, by the types of its method."""

    @property
    def max_fan_out(self) -> int:
        """The largest number of elements that one element becomes."""
        ...

    def flat_map(self, element: In_contra, /) -> Iterable[Out_co]:
        """Return the elements that `element` becomes."""
        ...


class TableLike(Protocol):
    """An Arrow table, or a frame of pandas or polars: its records are its rows, although `table[i]` is a column."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give the columns to another Arrow library."""
        ...


# A function may return None in place of an element, which iteration then leaves out. So None is no part of the type of
# the elements that follow.
MapFunction: TypeAlias = Callable[[In], Out | None] | MapObject[In, Out | None]
MapWithIndexFunction: TypeAlias = Callable[[int, In], Out | None] | MapWithIndexObject[In, Out | None]
RandomMapFunction: TypeAlias = Callable[[In, np.random.Generator], Out | None] | RandomMapObject[In, Out | None]
FilterFunction: TypeAlias = Callable[[In], object] | FilterObject[In]
FlatMapFunction: TypeAlias = Callable[[In], Iterable[Out]] | FlatMapObject[In, Out]
BatchFunction: TypeAlias = Callable[[Sequence[In]], Out]
VectorizedFunction: TypeAlias = Callable[[Any], Any] | MapObject[Any, Any]
VectorizedFilter: TypeAlias = Callable[[Any], Any] | FilterObject[Any]
