"""Element types through classes that a user has written. Each line states what pyright and mypy infer."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, SupportsIndex, TypeVar, assert_type, overload

import numpy as np

import bushel
from bushel import DatasetIterator, IterDataset, MapDataset, transforms

T = TypeVar("T")


class Show(transforms.Map):
    def map(self, element: int) -> str:
        return str(element)


class Jitter(transforms.RandomMap):
    def random_map(self, element: int, rng: np.random.Generator) -> float:
        return element + rng.random()


class Number(transforms.MapWithIndex):
    def map_with_index(self, index: int, element: str) -> tuple[int, str]:
        return index, element


class Even(transforms.Filter):
    def filter(self, element: int) -> bool:
        return element % 2 == 0


class Letters(transforms.FlatMap):
    max_fan_out = 3

    def flat_map(self, element: str) -> list[str]:
        return list(element)


class Untyped(transforms.Map):
    def map(self, features: Any) -> Any:  # a parameter may have any name
        return features


class Twice(MapDataset[T]):
    """A dataset that gives each element of another one two times."""

    def __init__(self, parent: MapDataset[T]):
        super().__init__(parent)
        self.parent = parent

    def __len__(self) -> int:
        return 2 * len(self.parent)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> MapDataset[T]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> T | MapDataset[T]:
        return self.slice(index) if isinstance(index, slice) else self.parent[operator.index(index) // 2]


class CountIterator(DatasetIterator[int]):
    position = 0

    def __next__(self) -> int:
        self.position += 1
        return self.position

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position}

    def set_state(self, state: dict[str, Any], *, check: bool = True) -> None:
        self.position = state["position"]


class Count(IterDataset[int]):
    def __iter__(self) -> CountIterator:
        return CountIterator()


numbers = MapDataset.range(3)
assert_type(numbers.map(Show()), MapDataset[str])
assert_type(numbers.to_iter_dataset().map(Show()), IterDataset[str])
assert_type(numbers.map(Show()).map_with_index(Number()), MapDataset[tuple[int, str]])
assert_type(numbers.seed(1).random_map(Jitter()), MapDataset[float])
assert_type(numbers.filter(Even()), MapDataset[int])
assert_type(numbers.to_iter_dataset().filter(Even()), IterDataset[int])
assert_type(numbers.map(Show()).to_iter_dataset().flat_map(Letters()), IterDataset[str])
assert_type(numbers.map(Show()).flat_map(Letters()), MapDataset[str])
assert_type(numbers.map(Untyped()), MapDataset[Any])
assert_type(numbers.apply([Show(), transforms.Batch(2)]), MapDataset[Any])

assert_type(Twice(numbers), Twice[int])
assert_type(Twice(numbers).shuffle(1), MapDataset[int])
assert_type(Twice(numbers)[0], int)
assert_type(iter(Twice(numbers)), DatasetIterator[int])
assert_type(Count().limit(3).map(str), IterDataset[str])
assert_type(next(iter(Count())), int)

assert_type(bushel.experimental.LimitIterDataset(Count(), 3), bushel.experimental.LimitIterDataset[int])
assert_type(bushel.experimental.FlatMapMapDataset(numbers.map(str), Letters())[0], str)
assert_type(bushel.experimental.ZipMapDataset([numbers, numbers])[0], tuple[Any, ...])
assert_type(bushel.experimental.multithread_prefetch(Count(), 2, 4), IterDataset[int])


def elements(ds: MapDataset[T]) -> Iterator[T]:
    """A user's generic function."""
    yield from ds.shuffle(1).to_iter_dataset().limit(2)


assert_type(list(elements(numbers)), list[int])
