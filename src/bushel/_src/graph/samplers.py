"""Samplers, and the node that reads the records they choose. The arithmetic is Grain's, on whole arrays."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import numpy as np

from bushel._src.base import blocks, checks
from bushel._src.base.blocks import Block
from bushel._src.base.options import NoSharding, ShardOptions, even_split
from bushel._src.base.public import public
from bushel._src.base.records import Record, RecordMetadata
from bushel._src.base.rng import make_generator
from bushel._src.base.state_names import in_states
from bushel._src.base.transforms import short_name, show_value
from bushel._src.graph.node import Epochs, MadeOf, OneParentMap, Plan, call_for_each, made_of_one_each
from bushel._src.index import epochs, shuffle


@public("bushel")
class Sampler(Protocol):
    """A sampler says which record to read for a global index, and has a random generator for it.

    It may have a `__len__`. Without one, its length is found by search: past its end it must raise IndexError.
    """

    def __getitem__(self, index: int, /) -> RecordMetadata:
        """Return the metadata of the record at a global index."""
        ...


@public("bushel")
@in_states(
    "SequentialSampler",
    {
        "_shard_options": "SequentialSampler.shard_options",
        "_seed": "SequentialSampler.seed",
        "_max_index": "SequentialSampler.length",
    },
)
class SequentialSampler:
    """Records in their order, once.

    >>> [SequentialSampler(3)[i].record_key for i in range(3)]
    [0, 1, 2]
    """

    def __init__(self, num_records: int, shard_options: ShardOptions = NoSharding(), seed: int | None = None):  # noqa: B008
        self.num_records = _check_count(num_records)
        self._shard_options = _check_shard(shard_options)
        self._seed = None if seed is None else checks.seed(seed, what="seed")
        over = self.num_records % shard_options.shard_count if shard_options.drop_remainder else 0
        self._max_index = self.num_records - over

    def __len__(self) -> int:
        return self._max_index

    def __getitem__(self, index: int) -> RecordMetadata:
        return _look_up(self, index)

    def record_keys(self, indices: np.ndarray) -> np.ndarray:
        """Return places in the source for many global indices."""
        return indices

    def __repr__(self) -> str:
        return f"SequentialSampler(num_records={self.num_records}, shard_options={self._shard_options!r})"


@public("bushel")
@in_states(
    "IndexSampler",
    {
        "_shard_options": "IndexSampler.shard_options",
        "_shuffle": "IndexSampler.shuffle",
        "_num_epochs": "IndexSampler.num_epochs",
        "_seed": "IndexSampler.seed",
        "_first": "IndexSampler.first",
    },
)
class IndexSampler:
    """Records of one shard, shuffled inside it if asked for, for some epochs or without end.

    Shards are consecutive parts of the source. For a shuffle over all of it, shard the loader and not the sampler, or
    use `MapDataset.shuffle`.

    Args:
      num_records: how many records the source has.
      shard_options: the part to sample from.
      shuffle: every epoch in an order of its own; needs a seed.
      num_epochs: None for no end.
      seed: for the shuffle, and for the generator of each record.

    >>> [IndexSampler(5, shuffle=True, num_epochs=1, seed=0)[i].record_key for i in range(5)]
    [0, 4, 1, 2, 3]
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ):
        self.num_records = _check_count(num_records)
        self._shard_options = _check_shard(shard_options)
        self._shuffle = bool(shuffle)
        self._num_epochs = None if num_epochs is None else checks.positive(num_epochs, "num_epochs")
        if shuffle and seed is None:
            raise ValueError("Shuffling requires a seed. Write `shuffle=True, seed=0`.")
        self._seed = None if seed is None else checks.seed(seed, what="seed", below=1 << 32)
        self._first, end = even_split(self.num_records, shard_options)
        self.shard_size = end - self._first

    def __len__(self) -> int:
        return checks.INFINITE if self._max_index is None else self._max_index

    @functools.cached_property
    def _max_index(self) -> int | None:
        if self._num_epochs is None:
            return None
        options = self._shard_options
        per_epoch = self.shard_size * options.shard_count if options.drop_remainder else self.num_records
        return per_epoch * self._num_epochs

    def __getitem__(self, index: int) -> RecordMetadata:
        return _look_up(self, index)

    def record_keys(self, indices: np.ndarray) -> np.ndarray:
        """Return places in the source for many global indices."""
        positions = indices // self._shard_options.shard_count
        if self._shuffle:
            assert self._seed is not None
            positions = shuffle.shuffle(positions, length=self.shard_size, seed=self._seed)
        return epochs.narrowed(epochs.first_epoch(positions, length=self.shard_size)) + self._first

    @property
    def endless(self) -> bool:
        """Whether there is always another epoch."""
        return self._num_epochs is None

    def shard_length(self) -> int:
        """Return how many records its own shard gives, all epochs together."""
        if self._num_epochs is None:
            return checks.INFINITE // self._shard_options.shard_count
        return self.shard_size * self._num_epochs

    def __repr__(self) -> str:
        return (
            f"IndexSampler(num_records={self.num_records}, shard_options={self._shard_options!r}, "
            f"shuffle={self._shuffle}, num_epochs={self._num_epochs}, seed={self._seed})"
        )


def _check_count(num_records: Any) -> int:
    count = checks.integer(num_records, "num_records")
    if count <= 0:
        raise ValueError(f"A sampler needs at least one record, got num_records={count}.")
    return count


def _check_shard(options: Any) -> ShardOptions:
    if not isinstance(options, ShardOptions):
        raise TypeError(f"shard_options must be ShardOptions, got {options!r}.")
    return options


def _look_up(sampler: SequentialSampler | IndexSampler, index: int) -> RecordMetadata:
    end = sampler._max_index
    if index < 0 or (end is not None and index >= end):
        raise IndexError(f"Index {index} is out of range for a sampler of {end} records.")
    key = int(sampler.record_keys(epochs.array([index]))[0])
    return RecordMetadata(index=index, record_key=key, rng=_make_generator(sampler._seed, index))


def _make_generator(seed: int | None, index: int) -> np.random.Generator | None:
    return None if seed is None else make_generator(seed + index)


@in_states("sampled")
@dataclasses.dataclass(frozen=True, eq=False)
class Sampled(OneParentMap):
    """The records of a source that a sampler chooses for one shard; as `Record`, with metadata, where asked for."""

    sampler: Any
    shard: ShardOptions
    as_records: bool = False

    def find_length(self) -> int:
        shard, known_sampler = self.shard, self.known_sampler
        if isinstance(known_sampler, IndexSampler):
            inner = known_sampler._shard_options
            if (inner.shard_index, inner.shard_count) == (shard.shard_index, shard.shard_count):
                return known_sampler.shard_length()
        total = _find_length(self.sampler)
        over = 0 if shard.drop_remainder or total >= checks.INFINITE else shard.shard_count - 1 - shard.shard_index
        return (total + over) // shard.shard_count

    @functools.cached_property
    def known_sampler(self) -> IndexSampler | SequentialSampler | None:
        """The sampler if it is Bushel's, whose record keys are arithmetic; None for a user's, which is called."""
        for kind in (IndexSampler, SequentialSampler):
            if isinstance(self.sampler, kind) and type(self.sampler).__getitem__ is kind.__getitem__:
                return self.sampler
        return None

    def plan(self, indices: np.ndarray) -> Plan:
        numbers = self._numbers(indices)
        if self.known_sampler is None:
            return _ChosenByUser(self, numbers.tolist())
        keys = self.known_sampler.record_keys(numbers)
        plan = self.parent.plan(keys)
        return (
            _WithMetadata(numbers.tolist(), keys.tolist(), self.known_sampler._seed, plan) if self.as_records else plan
        )

    def made_of(self, indices: np.ndarray) -> MadeOf:
        numbers = self._numbers(indices)
        if self.known_sampler is not None:
            return made_of_one_each(self.known_sampler.record_keys(numbers))
        return made_of_one_each(epochs.array([self.sampler[number].record_key for number in numbers.tolist()]))

    def _numbers(self, indices: np.ndarray) -> np.ndarray:
        """Return global indices of the sampler for elements of this shard."""
        return epochs.shard(indices, index=self.shard.shard_index, count=self.shard.shard_count)

    @property
    def epochs(self) -> Epochs:
        return Epochs.DIFFERENT

    def parameters(self) -> dict[str, Any]:
        # Under the name `transform` the identity includes the sampler's code and values too.
        return {"sampler": show_value(self.sampler), "shard": self.shard, "transform": self.sampler}

    def call(self) -> str:
        shard = "" if self.shard.shard_count == 1 else f", shard {self.shard.shard_index} of {self.shard.shard_count}"
        return f"sample({short_name(self.sampler)}{shard})"


@dataclasses.dataclass(slots=True)
class _WithMetadata(Plan):
    numbers: list[int]
    keys: list[int]
    seed: int | None
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        rows = blocks.rows_of(self.parent.read(low, high, private))
        return [
            Record(RecordMetadata(number, key, _make_generator(self.seed, number)), row)
            for number, key, row in zip(self.numbers[low:high], self.keys[low:high], rows)
        ]


@dataclasses.dataclass(slots=True)
class _ChosenByUser(Plan):
    """Records that a user's sampler chooses. It is called when rows are read and not ahead of that."""

    node: Sampled
    numbers: list[int]

    def read(self, low: int, high: int, private: bool) -> Block:
        chosen = call_for_each(self._call_sampler, self.numbers[low:high], self.node.call())
        keys = epochs.array([metadata.record_key for metadata in chosen])
        block = self.node.parent.plan(keys).read(0, len(chosen), private)
        if not self.node.as_records:
            return block
        return [Record(metadata, row) for metadata, row in zip(chosen, blocks.rows_of(block))]

    def _call_sampler(self, number: int) -> RecordMetadata:
        metadata = self.node.sampler[number]
        checks.integer(metadata.record_key, f"record_key of {metadata}")
        return metadata


def _find_length(sampler: Any) -> int:
    if hasattr(sampler, "__len__"):
        return len(sampler)
    low, high = 0, checks.INFINITE
    while low < high:
        middle = (low + high) // 2
        try:
            sampler[middle]
        except IndexError:
            high = middle
        else:
            low = middle + 1
    return low
