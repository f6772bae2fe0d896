"""DataLoaders as data, built with Bushel or with Grain: sources, samplers, shards, operations.

Worker processes load this module, so it is light: no Grain, no Hypothesis.
"""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np


class Words:
    """A source of one's own, with a repr: of the same records in both libraries."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": np.full(2, index, dtype=np.int64), "i": index}

    def __repr__(self) -> str:
        return f"Words({self.count})"


def add(element: Any) -> Any:
    return {**element, "x": element["x"] + 1}


def double(element: Any) -> Any:
    return {**element, "i": element["i"] * 2}


def jitter(element: Any, rng: np.random.Generator) -> Any:
    return {**element, "x": element["x"] + rng.random(2)}


def flip(element: Any, rng: np.random.Generator) -> Any:
    return {**element, "x": element["x"][::-1] if rng.random() < 0.5 else element["x"]}


def keep(element: Any) -> bool:
    return int(np.sum(element["i"])) % 3 != 0


def split(element: Any) -> list[Any]:
    return [{**element, "part": part} for part in range(int(np.sum(element["i"])) % 3)]


FUNCTIONS = {"map": (add, double), "random_map": (jitter, flip), "np_random_map": (jitter,), "filter": (keep,)}
BASES = {"map": "Map", "random_map": "RandomMap", "np_random_map": "TfRandomMap", "filter": "Filter"}


def operation(lib: ModuleType, name: str, argument: Any) -> Any:
    """One operation of either library."""
    if name == "batch":
        size, drop = argument
        return lib.transforms.Batch(size, drop_remainder=drop)
    if name == "lists":
        return lib.transforms.Batch(argument, batch_fn=list)
    if name == "flat_map":

        class Split(lib.experimental.FlatMapTransform):
            max_fan_out = 2
            flat_map = staticmethod(split)

        return Split()
    function = FUNCTIONS[name][argument]
    kind = getattr(lib.transforms, BASES[name])
    return type(function.__name__, (kind,), {name: staticmethod(function)})()


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that a loader is made of."""

    records: int
    shuffle: bool = False
    seed: int | None = 0
    epochs: int | None = 1
    sequential: bool = False
    shard: tuple[int, int, bool] | None = None
    shards_the_loader: bool = False
    operations: tuple[tuple[str, Any], ...] = ()

    def build(self, lib: ModuleType, **arguments: Any) -> Any:
        shard = lib.sharding.NoSharding() if self.shard is None else lib.sharding.ShardOptions(*self.shard)
        inner = lib.sharding.NoSharding() if self.shards_the_loader else shard
        if self.sequential:
            sampler = lib.samplers.SequentialSampler(self.records, inner, self.seed)
        else:
            sampler = lib.samplers.IndexSampler(self.records, inner, self.shuffle, self.epochs, self.seed)
        if lib.__name__ == "grain":
            arguments.setdefault("read_options", lib.ReadOptions(0, 0))
        return lib.DataLoader(
            data_source=Words(self.records),
            sampler=sampler,
            operations=[operation(lib, *entry) for entry in self.operations],
            shard_options=shard if self.shards_the_loader else None,
            **arguments,
        )


class EveryOther:
    """A sampler of one's own: every other record, backwards."""

    def __init__(self, count: int, metadata: Any):
        self.count = count
        self.metadata = metadata

    def __getitem__(self, index: int) -> Any:
        if index >= self.count // 2:
            raise IndexError(index)
        return self.metadata(
            index=index, record_key=self.count - 1 - 2 * index, rng=np.random.Generator(np.random.Philox(key=index))
        )


class EveryOtherWithLength(EveryOther):
    """The same, and it knows how long it is."""

    def __len__(self) -> int:
        return self.count // 2


def pairs(records: Any) -> Any:
    """An operation of one's own that holds a record back."""
    held = None
    for record in records:
        if held is None:
            held = record
        else:
            yield type(record)(record.metadata, (held.data["i"], record.data["i"]))
            held = None


def pass_on(records: Any) -> Any:
    """An operation of one's own that keeps nothing."""
    yield from records


def digit(x: int, rng: np.random.Generator) -> int:
    """A number with a random last digit."""
    return x * 10 + int(rng.integers(10))
