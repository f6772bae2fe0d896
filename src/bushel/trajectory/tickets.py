"""Tickets: whole numbers that stand for samples. They are shuffled, filtered and mixed in place of the samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.base.specs import ShapeDtypeStruct
from bushel.graph.node import Computed, Leaf, Origin, Plan
from bushel.index import words
from bushel.map_dataset import MapDataset, MapPipeline


@dataclasses.dataclass(frozen=True, eq=False)
class _Tickets(Leaf):
    """The numbers [first, first + count) of `total` that one epoch has; those of epoch e with e * total added."""

    count: int
    first: int
    total: int
    told: Callable[[int, int], Origin] | None = dataclasses.field(metadata={"identity": False})
    """What a sample is made of, by its number and its epoch."""

    def find_length(self) -> int:
        return self.count

    def plan(self, indices: np.ndarray) -> Plan:
        epochs, numbers = words.split(indices, self.count, to=self.total)
        return Computed(words.narrowed(epochs * self.total + (numbers + self.first)))

    def origin(self, index: int) -> Origin:
        epoch, number = divmod(index, self.count)
        return Origin(self.call(), (number,)) if self.told is None else self.told(number, epoch)

    def element_spec(self) -> Any:
        return ShapeDtypeStruct(shape=(), dtype=np.int64)

    def call(self) -> str:
        return f"samples({self.count})"


def tickets(
    count: int, first: int = 0, total: int | None = None, told: Callable[[int, int], Origin] | None = None
) -> MapDataset[Any]:
    """The tickets of `count` samples, from number `first` on of `total` that all data sets have together.

    >>> [int(ticket) for ticket in tickets(2, first=3, total=5).repeat(2)]
    [3, 4, 8, 9]
    """
    return MapPipeline(_Tickets(count, first, count if total is None else total, told))
