"""Hosts that share data, with a state that restores on another number of hosts.

Hosts of a MapDataset are a view on one global position. `elastic_streams.py` has hosts that share the datasets of an
interleave.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import StateMismatch
from bushel._src.base.options import DatasetOptions, ReadOptions, WorkerOptions
from bushel._src.base.public import public
from bushel._src.base.sharding import ShardOptions
from bushel._src.base.state_names import in_states
from bushel._src.datasets.dataset import IterDataset, MapDataset
from bushel._src.datasets.iterator import DatasetIterator, PipelineIterator, get_next_index
from bushel._src.engine.report import Report
from bushel._src.graph.apply import MapWithIndex
from bushel._src.graph.batch import Batch
from bushel._src.graph.node import Epochs, MapNode
from bushel._src.graph.origins import ElementOrigin
from bushel._src.graph.reindex import Reindex
from bushel._src.graph.state_fields import State, read_count
from bushel._src.graph.streams import Ahead, Elements, StreamNode, WithOptions
from bushel._src.index import epochs
from bushel._src.loaders.elastic_streams import ElasticIterDatasetIterator
from bushel._src.state import envelope, identity

_POSITION = "global_next_index"


@public("bushel")
class ElasticIterator(DatasetIterator[Any]):
    """One host's batches of data that all hosts share, with a state that restores on another number of hosts.

    **Of a MapDataset** global batch n is the elements [n * global_batch_size, (n + 1) * global_batch_size); host h of H
    gets rows h, h + H, h + 2H ... of it. All hosts end after the same number of batches, and have the same state:

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

    **Of an IterDataset that begins with an `InterleaveIterDataset`** host h of H reads datasets h, h + H, h + 2H ... of
    the interleave, as many of them at a time as its `cycle_length` says. A host ends when its datasets end, and
    `get_state` is the state of that host alone. For another number of hosts there is one state for each dataset:

    >>> parts = [bushel.MapDataset.range(n, n + 4) for n in (0, 10, 20)]
    >>> stream = bushel.experimental.InterleaveIterDataset(parts, cycle_length=2)
    >>> its = [ElasticIterator(stream, 4, host) for host in hosts]
    >>> [next(it).tolist() for it in its]
    [[0, 20], [10, 11]]
    >>> states = its[0].get_shard_states() | its[1].get_shard_states()
    >>> alone = ElasticIterator(stream, 4, bushel.sharding.NoSharding())
    >>> alone.set_shard_states(states)
    >>> [batch.tolist() for batch in alone]
    [[1, 12, 2, 13], [3, 21, 22, 23]]

    Args:
      ds: elements that are neither batched nor sharded. Of a MapDataset, none that a `filter` may drop. Of an
        IterDataset, an interleave and, after it, operations on single elements (`map`, `filter` ...) and `batch`.
      global_batch_size: rows of all hosts together; the number of hosts must divide it. 0 gives the elements of an
        IterDataset one by one.
      shard_options: which host this is, and of how many.
      read_options: threads that read ahead.
      multiprocessing_options: workers that compute ahead.
      remainder: what becomes of a last batch that would be smaller. "drop" leaves it out, which is the default for a
        MapDataset. "pad" fills it up with copies of an element, and gives pairs (batch, mask) throughout: the mask is
        False for what was filled in. By default the last batch of each host of an interleave is smaller.
      options: of the pipeline, such as `DatasetOptions(execution_tracking_mode="stage_timing")` for `report()`.
    """

    def __init__(
        self,
        ds: MapDataset[Any] | IterDataset[Any],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: WorkerOptions | None = None,
        remainder: Literal["drop", "pad"] | None = None,
        options: DatasetOptions | None = None,
    ):
        super().__init__()
        if not isinstance(ds, (MapDataset, IterDataset)):
            raise TypeError(
                f"ElasticIterator takes a MapDataset, or an IterDataset that begins with an InterleaveIterDataset; got "
                f"{type(ds).__name__}."
            )
        if remainder is not None:
            checks.choice(remainder, ("drop", "pad"), "remainder")
        _check_hosts(global_batch_size, shard_options)
        self._base: _ElasticMapDatasetIterator | ElasticIterDatasetIterator
        if isinstance(ds, MapDataset):
            self._base = _ElasticMapDatasetIterator(
                ds,
                global_batch_size,
                shard_options,
                read_options=read_options,
                multiprocessing_options=multiprocessing_options,
                pads=remainder == "pad",
                options=options,
            )
        else:
            if remainder == "pad":
                raise ValueError(
                    'remainder="pad" is for a MapDataset, whose hosts end together. The hosts of an interleave end '
                    'when their datasets do: leave `remainder` out for a smaller last batch, or drop it with "drop".'
                )
            self._base = ElasticIterDatasetIterator(
                ds,
                global_batch_size,
                shard_options,
                read_options=read_options,
                multiprocessing_options=multiprocessing_options,
                drop_remainder=remainder == "drop",
                options=options,
            )
        self._same_on_all_processes = self._base._same_on_all_processes
        self._has_shard_states = self._base._has_shard_states

    @property
    def base_iterator(self) -> DatasetIterator[Any]:
        """The iterator that does the work: one kind for a MapDataset, another for an interleave."""
        return self._base

    @property
    def shard_options(self) -> ShardOptions:
        """Which host this is, and of how many."""
        return self._base.shard_options

    def __next__(self) -> Any:
        return next(self._base)

    def get_state(self) -> State:
        """The position: of a MapDataset the same on all hosts that have taken as many batches, else of this host."""
        return self._base.get_state()

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Goes to a saved position.

        Of a MapDataset any host may have saved it, with any number of hosts and any global batch size. Of an interleave
        it must be the same host of as many; see `set_shard_states` for another number.
        """
        self._base.set_state(state, check=check)

    def get_shard_states(self) -> dict[int, State]:
        """The state of each dataset of an interleave that this host reads, by its number in the whole interleave.

        The states of all hosts together describe all data. They are plain JSON data.
        """
        return self._of_interleave("get_shard_states").get_shard_states()

    def set_shard_states(self, shard_states: Mapping[Any, Any], *, check: bool = True) -> None:
        """Goes on where these states of single datasets say, with any number of hosts, batch size and cycle length.

        No element is lost and none comes twice; each dataset goes on in its order. In which order the datasets take
        turns is not saved: a host begins with the first of its datasets that have not ended.

        Args:
          shard_states: what `get_shard_states` returned on all hosts, as one dict. The states of the datasets that this
            host reads are enough. Numbers may have become texts, as in JSON.
          check: False restores states of another pipeline as far as their form fits.
        """
        self._of_interleave("set_shard_states").set_shard_states(shard_states, check=check)

    def _of_interleave(self, method: str) -> ElasticIterDatasetIterator:
        if not isinstance(self._base, ElasticIterDatasetIterator):
            raise NotImplementedError(
                f"{method} is only supported for IterDataset-based ElasticIterator. This one is over a MapDataset: the "
                "state of any host fits any number of hosts. Use get_state and set_state."
            )
        return self._base

    def start_prefetch(self) -> None:
        self._base.start_prefetch()

    def report(self) -> Report:
        """Where the time went since the start, or, of a MapDataset, since the last `set_state`: see `bushel.Report`."""
        return self._base.report()

    @property
    def skipped(self) -> int:
        return self._base.skipped

    def origins(self, steps: int = 1) -> list[ElementOrigin]:
        """Of which source records this host's rows of the next global batches are made. Nothing is read."""
        return self._base.origins(steps)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if "_base" in vars(self):
                self._base.close()


def _check_hosts(global_batch_size: int, shard: ShardOptions) -> None:
    checks.integer(global_batch_size, "global_batch_size")
    if not isinstance(shard, ShardOptions):
        raise TypeError(f"shard_options must be ShardOptions, got {shard!r}.")
    if global_batch_size % shard.shard_count:
        raise ValueError(
            f"Global batch size {global_batch_size} is not divisible by shard count {shard.shard_count}: all "
            "hosts have equally many rows. Choose a number of hosts that divides it, or another batch size."
        )


class _ElasticMapDatasetIterator(DatasetIterator[Any]):
    """One host's rows of global batches of a MapDataset. Its state is one position, the same on all hosts."""

    _same_on_all_processes = True

    def __init__(
        self,
        ds: MapDataset[Any],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None,
        multiprocessing_options: WorkerOptions | None,
        pads: bool,
        options: DatasetOptions | None,
    ):
        super().__init__()
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
        batch_size = checks.positive(global_batch_size, "global_batch_size")
        self._hosts = _Hosts(batch_size, shard_options, ds._node.length, pads)
        self._node: MapNode = ds._node
        self._read_options = read_options
        self._workers = multiprocessing_options
        self._options = options
        self._identity = identity.identify(self._node)
        self._start = 0
        self._iterator = self._opened(0)

    def _opened(self, start: int) -> PipelineIterator[Any]:
        stream = self._hosts.stream(self._node, start, self._read_options, self._workers)
        return PipelineIterator(stream if self._options is None else WithOptions(stream, self._options))

    @property
    def shard_options(self) -> ShardOptions:
        """Which host this is, and of how many."""
        return self._hosts.shard

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

    def origins(self, steps: int = 1) -> list[ElementOrigin]:
        """Of which source records this host's rows of the next global batches are made. Nothing is read."""
        first = self._start // self._hosts.batch_size
        return [dataclasses.replace(step, index=first + step.index) for step in self._iterator.origins(steps)]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if "_iterator" in vars(self):
                self._iterator.close()


@in_states("elastic_hosts")
@dataclasses.dataclass(frozen=True)
class _Hosts:
    """Who gets what of the global batches of `length` elements."""

    batch_size: int
    shard: ShardOptions
    length: int
    pads: bool

    def stream(
        self, node: MapNode, start: int, read_options: ReadOptions | None, workers: WorkerOptions | None
    ) -> StreamNode:
        """The batches of one host from a global position on."""
        rows = _Rows(node, start, self)
        batches: MapNode = Batch(rows, self.batch_size // self.shard.shard_count)
        if self.pads:
            batches = MapWithIndex(batches, functools.partial(_with_mask, hosts=self, start=start))
        stream: StreamNode = Elements(batches, read_options)
        return stream if workers is None else Ahead(stream, workers)

    def batches_from(self, start: int) -> int:
        left = self.length - start
        return -(-left // self.batch_size) if self.pads else left // self.batch_size


@in_states("elastic_rows")
@dataclasses.dataclass(frozen=True, eq=False)
class _Rows(Reindex):
    """Row of a host -> element of the dataset; past the end, the first element of the last batch stands in."""

    start: int
    hosts: _Hosts

    def find_length(self) -> int:
        return self.hosts.batches_from(self.start) * (self.hosts.batch_size // self.hosts.shard.shard_count)

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        elements, parent_length = self.start + _global(indices, self.hosts.shard), self.parent.length
        if not self.hosts.pads:
            return elements
        tail = self.start + (parent_length - self.start) // self.hosts.batch_size * self.hosts.batch_size
        return np.where(elements < parent_length, elements, tail)

    @property
    def epochs(self) -> Epochs:
        return Epochs.DIFFERENT

    def call(self) -> str:
        return f"rows of shard {self.hosts.shard.shard_index} of {self.hosts.shard.shard_count}"


def _global(indices: Any, shard: ShardOptions) -> Any:
    return epochs.shard(indices, index=shard.shard_index, count=shard.shard_count)


@in_states("elastic_with_mask")
def _with_mask(index: int, batch: Any, *, hosts: _Hosts, start: int) -> tuple[Any, np.ndarray]:
    size = hosts.batch_size // hosts.shard.shard_count
    elements = start + _global(index * size + np.arange(size), hosts.shard)
    return batch, elements < hosts.length
