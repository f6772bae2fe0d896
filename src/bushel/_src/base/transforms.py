"""Transformations as classes, with Grain's names and methods, and the names of transformations in messages."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states


@public("bushel.transforms")
@in_states("Map")
class Map(abc.ABC):
    """One element in, one element out.

    >>> class AddOne(Map):
    ...     def map(self, element):
    ...         return element + 1
    >>> AddOne().map(1)
    2
    """

    @abc.abstractmethod
    def map(self, element: Any, /) -> Any:
        """Return the new element."""


@public("bushel.transforms")
@in_states("RandomMap")
class RandomMap(abc.ABC):
    """One element and a generator of its own in, one element out.

    >>> import bushel
    >>> class Jitter(RandomMap):
    ...     def random_map(self, element, rng):
    ...         return element + rng.integers(10)
    >>> list(bushel.MapDataset.range(3).seed(1).random_map(Jitter()))
    [np.int64(0), np.int64(4), np.int64(10)]
    """

    @abc.abstractmethod
    def random_map(self, element: Any, rng: np.random.Generator, /) -> Any:
        """Return the new element. All randomness must come from `rng`."""


@public("bushel.transforms")
@in_states("MapWithIndex")
class MapWithIndex(abc.ABC):
    """One element and its index in, one element out.

    >>> import bushel
    >>> class Numbered(MapWithIndex):
    ...     def map_with_index(self, index, element):
    ...         return index, element
    >>> list(bushel.MapDataset.source(["a", "b"]).map_with_index(Numbered()))
    [(0, 'a'), (1, 'b')]
    """

    @abc.abstractmethod
    def map_with_index(self, index: int, element: Any, /) -> Any:
        """Return the new element at `index`."""


@public("bushel.transforms")
@in_states("TfRandomMap")
class TfRandomMap(abc.ABC):
    """Grain's older spelling of a random map; for `DataLoader` operations only."""

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator, /) -> Any:
        """Return the new element. All randomness must come from `rng`."""


@public("bushel.transforms")
@in_states("Filter")
class Filter(abc.ABC):
    """Decides which elements are kept.

    >>> import bushel
    >>> class Even(Filter):
    ...     def filter(self, element):
    ...         return element % 2 == 0
    >>> list(bushel.MapDataset.range(5).filter(Even()))
    [0, 2, 4]
    """

    @abc.abstractmethod
    def filter(self, element: Any, /) -> bool:
        """Return True to keep an element."""


@public("bushel.transforms")
@in_states("FlatMap")
class FlatMap(abc.ABC):
    """One element in, up to `max_fan_out` elements out.

    >>> import bushel
    >>> class Letters(FlatMap):
    ...     max_fan_out = 3
    ...     def flat_map(self, element):
    ...         return list(element)
    >>> list(bushel.experimental.FlatMapMapDataset(bushel.MapDataset.source(["ab", "cde"]), Letters()))
    ['a', 'b', 'c', 'd', 'e']
    """

    max_fan_out: int

    @abc.abstractmethod
    def flat_map(self, element: Any, /) -> Sequence[Any]:
        """Return the elements that `element` becomes."""


@public("bushel")
@in_states("Batch")
@dataclasses.dataclass(frozen=True)
class Batch:
    """Batching as a transformation, for `ds.apply([...])` and the operations of a `DataLoader`.

    Args:
      batch_size: elements in a batch.
      drop_remainder: leave out the last batch if it is smaller.
      batch_fn: makes a batch of a list of elements; by default they are stacked, leaf by leaf.

    >>> import bushel
    >>> list(bushel.MapDataset.range(5).apply([Batch(2, drop_remainder=True)]))
    [array([0, 1]), array([2, 3])]
    """

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None


@public("bushel.transforms")
@in_states("DatasetSelectionMap")
class DatasetSelectionMap(abc.ABC):
    """Routes each index to (which dataset, index in it). Must be stateless and picklable."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the length of the resulting dataset."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the dataset that serves `index`, and the index in that dataset."""


Transformation = Batch | Map | RandomMap | TfRandomMap | Filter | FlatMap | MapWithIndex
"""Any of the transformation classes: the type of what `ds.apply` and a `DataLoader` take."""
Transformations = Sequence[Transformation]
"""Transformations that are applied one after the other."""


def method(transform: Any, kind: type, name: str) -> Callable[..., Any]:
    """Return the function to call: the method of a transform class, or the callable itself."""
    if isinstance(transform, kind):
        return getattr(transform, name)
    if callable(transform):
        return transform
    raise TypeError(
        f"`{name}` takes a function or a {kind.__name__} transformation, "
        f"got {transform!r} of type {type(transform).__name__}.{_suggest_function(transform, name)}"
    )


def _suggest_function(value: Any, name: str) -> str:
    """Return what to write instead of something that is not a function."""
    if isinstance(value, str):
        return f" Write `{name}(lambda element: element[{value!r}])`."
    if name == "filter":
        return " For a column, or one bool for each element, write `where(...)`."
    if isinstance(value, (list, tuple)) and name == "map":
        return " For several functions write `.map(first).map(second)`."
    return ""


def short_name(transform: Any) -> str:
    """Return the name of a transformation in a printed pipeline: that of a function, or the repr of an object that has
    one.
    """
    named = getattr(transform, "__name__", None)
    if named is not None:
        return named
    if hasattr(transform, "func"):  # functools.partial
        return f"partial({short_name(transform.func)})"
    return show_value(transform)


def show_value(value: Any) -> str:
    """Return the repr of an object whose class defines one, else the name of the class; without addresses and
    secrets.
    """
    if type(value).__repr__ is object.__repr__:
        return type(value).__name__
    return redact.clean(remove_addresses(repr(value)))


def remove_addresses(text: str) -> str:
    """Return a repr that is the same in every process: without addresses, and with the members of sets sorted.

    >>> remove_addresses("Source(<Decoder object at 0x7f3a2c01>, labels={'b', 'a'}, seed=0xff, buffer=0x7f3a2c01d2e0)")
    "Source(<Decoder object>, labels={'a', 'b'}, seed=0xff, buffer=)"
    """
    if "0x" in text:
        text = re.sub(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{8,16}\b", "", text)
    if "{" not in text:
        return text
    return re.sub(r"\{([^{}:]*)\}", lambda found: f"{{{', '.join(sorted(found[1].split(', ')))}}}", text)


def locate_transform(transform: Any) -> str:
    """Return `name @ file:line` of a transformation, as far as it is known."""
    name = short_name(transform)
    code = getattr(inspect.unwrap(transform) if callable(transform) else transform, "__code__", None)
    if code is None:
        for owner in ("map", "random_map", "map_with_index", "filter", "flat_map", "__call__"):
            code = getattr(getattr(type(transform), owner, None), "__code__", None)
            if code is not None:
                break
        else:
            return name
    parts = code.co_filename.split(os.sep)
    return f"{name} @ {'/'.join(parts[-3:])}:{code.co_firstlineno}"
