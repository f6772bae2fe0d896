"""Hosts as a view on one global position: a state that restores on another number of hosts."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import numpy as np

from bushel.base import checks
from bushel.base.errors import StateMismatch
from bushel.base.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from bushel.base.sharding import ShardOptions
from bushel.dataset import MapDataset
from bushel.engine import Report
from bushel.graph.apply import MapWithIndex
from bushel.graph.batch import Batch
from bushel.graph.explain import Explanation
from bushel.graph.node import MapNode
from bushel.graph.options import WithOptions
from bushel.graph.reindex import IndexMap, Reindex
from bushel.graph.state_fields import State, read_count
from bushel.graph.streams import Ahead, Elements, StreamNode
from bushel.index import epochs
from bushel.iterator import DatasetIterator, PipelineIterator, get_next_index
from bushel.state import envelope, identity

_POSITION = "global_next_index"


class ElasticIterator(DatasetIterator[Any]):
    """One host's rows of global batches, with a state that is the same on all hosts and restores on any number.

    Global batch n is the elements [n * global_batch_size, (n + 1) * global_batch_size) of the dataset; host h of H
    gets rows h, h + H, h + 2H ... of it. All hosts end after the same number of batches.

    Args:
      ds: elements that are neither batched nor sharded, and none of which a `filter` may drop.
      global_batch_size: rows of all hosts together; the number of hosts must divide it.
      shard_options: which host this is, and of how many.
      read_options: threads that read ahead.
      multiprocessing_options: workers that compute ahead.
      remainder: "drop" leaves out a last batch that would be smaller. "pad" fills it up with copies of an element,
        and gives pairs (batch, mask) throughout: the mask is False for what was filled in.
      options: of the pipeline, such as `DatasetOptions(execution_tracking_mode="stage_timing")` for `report()`.

    >>> import bushel
    >>> hosts = [bushel.sharding.ShardOptions(shard_index=h, shard_count=2) for h in range(2)]
    >>> ds = bushel.MapDataset.range(8)
    >>> [[batch.tolist() for batch in ElasticIterator(ds, 4, host)] for host in hosts]
    [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    >>> it = ElasticIterator(ds, 4, hosts[0])
    >>> _ = next(it)
    >>> alone = ElasticIterator(ds, 4, bushel.sharding.NoSharding())
    >>> alone.set_state(it.get_state())
    >>> [batch.tolist() for batch in alone]
    [[4, 5, 6, 7]]
    """

    _same_on_all_processes = True

    def __init__(
        self,
        ds: MapDataset[Any],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
        remainder: Literal["drop", "pad"] = "drop",
        options: DatasetOptions | None = None,
    ):
        super().__init__()
        if not isinstance(ds, MapDataset):
            raise TypeError(
                f"ElasticIterator takes a MapDataset, whose elements every host can find by index; got "
                f"{type(ds).__name__}. Leave out `to_iter_dataset`."
            )
        if ds._node.sparse:
            raise ValueError(
                "ElasticIterator does not support `filter` transformation, nor `flat_map`: a host would have to know "
                "how many elements the others have dropped. Drop them before, by `slice` with a list of positions."
            )
        if options is not None and options.on_error == "skip":
            raise ValueError(
                'ElasticIterator cannot leave out elements that fail (on_error="skip"): the other hosts would not know '
                "which ones, and rows would come twice. Leave them out before, with `where` or `slice`."
            )
        if remainder not in ("drop", "pad"):
            raise ValueError(f'remainder must be "drop" or "pad", got {remainder!r}.')
        self._hosts = _Hosts(
            checks.positive(global_batch_size, "global_batch_size"), shard_options, ds._node.length, remainder == "pad"
        )
        self._node: MapNode = ds._node
        self._read_options = read_options
        self._workers = multiprocessing_options
        self._options = options
        self._identity = identity.identity(self._node)
        self._start = 0
        self._iterator = self._opened(0)

    def _opened(self, start: int) -> PipelineIterator[Any]:
        stream = self._hosts.stream(self._node, start, self._read_options, self._workers)
        return PipelineIterator(stream if self._options is None else WithOptions(stream, self._options))

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._iterator)

    def get_state(self) -> State:
        """The global position, the same on all hosts that have taken as many batches."""
        done = self._start + get_next_index(self._iterator) * self._hosts.batch_size
        return envelope.seal({_POSITION: min(done, self._hosts.length)}, self._identity)

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Goes to a position that any host has saved, with any number of hosts and any global batch size."""
        position = read_count(envelope.unseal(state, self._identity, check=check), _POSITION)
        if position > self._hosts.length:
            raise StateMismatch(
                f"This state is at element {position}; the dataset has {self._hosts.length}. Was it saved with more?",
                _POSITION,
            )
        before, self._iterator = self._iterator, self._opened(position)
        self._start = position
        before.close()

    def start_prefetch(self) -> None:
        self._iterator.start_prefetch()

    def report(self) -> Report:
        """Where the time went since the start, or since the last `set_state`: see `bushel.Report`."""
        return self._iterator.report()

    @property
    def skipped(self) -> int:
        return self._iterator.skipped

    def explain(self, steps: int = 1) -> list[Explanation]:
        """Of which source records this host's rows of the next global batches are made. Nothing is read."""
        first = self._start // self._hosts.batch_size
        return [dataclasses.replace(step, index=first + step.index) for step in self._iterator.explain(steps)]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if "_iterator" in vars(self):
                self._iterator.close()


@dataclasses.dataclass(frozen=True)
class _Hosts:
    """Who gets what of the global batches of `length` elements."""

    batch_size: int
    shard: ShardOptions
    length: int
    pads: bool

    def __post_init__(self) -> None:
        if not isinstance(self.shard, ShardOptions):
            raise TypeError(f"shard_options must be ShardOptions, got {self.shard!r}.")
        if self.batch_size % self.shard.shard_count:
            raise ValueError(
                f"Global batch size {self.batch_size} is not divisible by shard count {self.shard.shard_count}: all "
                "hosts have equally many rows. Choose a number of hosts that divides it, or another batch size."
            )

    def stream(
        self, node: MapNode, start: int, read_options: ReadOptions | None, workers: MultiprocessingOptions | None
    ) -> StreamNode:
        """The batches of one host from a global position on."""
        rows = Reindex(node, _Rows(start, self))
        batches: MapNode = Batch(rows, self.batch_size // self.shard.shard_count)
        if self.pads:
            batches = MapWithIndex(batches, functools.partial(_with_mask, hosts=self, start=start))
        stream: StreamNode = Elements(batches, read_options)
        return stream if workers is None else Ahead(stream, workers)

    def batches_from(self, start: int) -> int:
        left = self.length - start
        return -(-left // self.batch_size) if self.pads else left // self.batch_size


@dataclasses.dataclass(frozen=True)
class _Rows(IndexMap):
    """Row of a host -> element of the dataset; past the end, the first element of the last batch stands in."""

    start: int
    hosts: _Hosts

    def length(self, parent_length: int) -> int:
        return self.hosts.batches_from(self.start) * (self.hosts.batch_size // self.hosts.shard.shard_count)

    def __call__(self, indices: np.ndarray, parent_length: int) -> np.ndarray:
        elements = self.start + _global(indices, self.hosts.shard)
        if not self.hosts.pads:
            return elements
        tail = self.start + (parent_length - self.start) // self.hosts.batch_size * self.hosts.batch_size
        return np.where(elements < parent_length, elements, tail)

    def call(self) -> str:
        return f"rows of shard {self.hosts.shard.shard_index} of {self.hosts.shard.shard_count}"


def _global(indices: Any, shard: ShardOptions) -> Any:
    return epochs.shard(indices, index=shard.shard_index, count=shard.shard_count)


def _with_mask(index: int, batch: Any, *, hosts: _Hosts, start: int) -> tuple[Any, np.ndarray]:
    size = hosts.batch_size // hosts.shard.shard_count
    elements = start + _global(index * size + np.arange(size), hosts.shard)
    return batch, elements < hosts.length
