"""Hosts that share data, with a state that restores on another number of hosts.

They share positions of a MapDataset, or datasets of an interleave.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import StateMismatch, inside
from bushel._src.base.options import DatasetOptions, ReadOptions, ShardOptions, WorkerOptions
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.iterator import DatasetIterator, PipelineIterator, get_next_index
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.engine.opener import open_alone
from bushel._src.engine.report import Report
from bushel._src.graph.batch import BatchElements
from bushel._src.graph.cursors import State, read_count
from bushel._src.graph.interleave import Interleave, check_entry, join_states, pick_entries, split_state
from bushel._src.graph.limit_and_rebatch import RepeatStream
from bushel._src.graph.map_ops import MapElementsWithIndex
from bushel._src.graph.node import Epochs, MapNode, Node, replace_parents, skip_transparent
from bushel._src.graph.origins import ElementOrigin
from bushel._src.graph.reindex import Reindex, Slice
from bushel._src.graph.stream_ops import BatchStream, Elementwise
from bushel._src.graph.streams import Ahead, Elements, SeedStream, StreamNode, WithOptions, options_of
from bushel._src.index import epochs
from bushel._src.state import identity, state_forms
from bushel._src.state.checkpoint_files import SHARD_COUNT, SHARD_INDEX

logger = logging.getLogger("bushel")


class ElasticIterDatasetIterator(DatasetIterator[Any]):
    """One host's batches of an interleave: host h of H reads datasets h, h + H, h + 2H ... of it.

    It is the `base_iterator` of an `ElasticIterator` over an IterDataset; see there for the arguments.
    """

    _has_shard_states = True

    def __init__(
        self,
        ds: IterDataset[Any],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: WorkerOptions | None = None,
        drop_remainder: bool = False,
        options: DatasetOptions | None = None,
    ):
        super().__init__()
        checks.not_negative(global_batch_size, "global_batch_size")
        self._pipeline: StreamNode = ds._node
        self._all_datasets, above = _find_interleave(self._pipeline)
        self._shard_options = shard_options
        self._datasets = _take_shard(self._all_datasets, shard_options)
        stream: StreamNode = _with_interleave(self._pipeline, self._datasets)
        if global_batch_size:
            stream = BatchStream(stream, global_batch_size // shard_options.shard_count, drop_remainder)
        if multiprocessing_options is not None:
            stream = Ahead(stream, multiprocessing_options)
        if options is not None:
            stream = WithOptions(stream, options)
        self._options = options_of(stream)
        # What lies around the interleave's state in that of the whole stream: for each operation that counts its
        # elements, from the last one to the first, the entry that holds the count.
        counts = [node.count_key for node in above if isinstance(node, Elementwise) and node.count_key is not None]
        self._counts = ["skipped", *counts] if self._options.on_error == "skip" else counts
        self._identity = identity.identify(self._pipeline)
        self._start_states: dict[int, State] = {}
        self._iterator: PipelineIterator[Any] = PipelineIterator(stream, read_options)

    @property
    def shard_options(self) -> ShardOptions:
        """Which host this is, and of how many."""
        return self._shard_options

    def __next__(self) -> Any:
        self._assert_not_closed()
        return next(self._iterator)

    def get_state(self) -> State:
        """Return the position of this host, for the same host of as many. See `get_shard_states` for another number."""
        host = {SHARD_INDEX: self._shard_options.shard_index, SHARD_COUNT: self._shard_options.shard_count}
        return state_forms.seal({**self._position(), **host}, self._identity)

    def _position(self) -> State:
        return state_forms.unseal(self._iterator.get_state(), [], check=False)

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Go to a position that the same host of as many has saved, with any global batch size."""
        position = state_forms.unseal(state, self._identity, check=check)
        index, count = position.pop(SHARD_INDEX, None), position.pop(SHARD_COUNT, None)
        here = self._shard_options
        if (index, count) not in ((None, None), (here.shard_index, here.shard_count)):
            raise StateMismatch(
                f"This state was saved by host {index} of {count}; this is host {here.shard_index} of "
                f"{here.shard_count}, which reads other datasets. Restore what get_shard_states() returned on all "
                "hosts with set_shard_states(); a checkpoint of Orbax has it, too.",
                SHARD_INDEX if count == here.shard_count else SHARD_COUNT,
            )
        self._iterator.set_state(position, check=False)

    def get_shard_states(self) -> dict[int, State]:
        """Return the state of each dataset that this host reads, by its number in the whole interleave."""
        position = self._position()
        for _ in self._counts:
            position = position["parent"]
        entries = split_state(position, self._datasets.count, self._start_state)
        numbers = range(self._shard_options.shard_index, self._all_datasets.count, self._shard_options.shard_count)
        return {
            number: state_forms.seal(entry, self._identity_of(number))
            for number, entry in zip(numbers, entries, strict=True)
        }

    def set_shard_states(self, shard_states: Mapping[Any, Any], *, check: bool = True) -> None:
        """Go to the position that these states describe, whichever hosts have saved them.

        Args:
          shard_states: what `get_shard_states` returned: at least the states of the datasets that this host reads, and
            those of others may be there, too. Numbers may have become texts, as in JSON.
          check: False restores states of another pipeline as far as their form fits.
        """
        here = self._shard_options
        picked = pick_entries(shard_states, here.shard_index, here.shard_count, self._all_datasets.count)
        entries: list[State] = []
        without_identity = 0
        for number, entry in picked.items():
            known = isinstance(entry, Mapping) and state_forms.KEY in entry
            without_identity += not known
            with inside(number):
                expected = self._identity_of(number)
                inner = state_forms.unseal(entry, expected, check=check and known, method="set_shard_states")
                entries.append(check_entry(inner))
        if without_identity and check:
            logger.warning(
                "%d of these shard states carry no identity (Grain wrote them): they are restored without a check.",
                without_identity,
            )
        position = join_states(entries, self._datasets.cycle_length)
        for key in reversed(self._counts):
            position = {"parent": position, key: 0}  # counts begin again, as in Grain
        self._iterator.set_state(position, check=False)

    def _start_state(self, number: int) -> State:
        """Return the state of one of this host's datasets before its first element."""
        if number not in self._start_states:
            stream = self._datasets.stream(number)
            if stream is None:  # a filter has dropped it
                return {}
            cursor = open_alone(stream, self._options, None)
            self._start_states[number] = cursor.get_state()
            cursor.close()
        return self._start_states[number]

    def _identity_of(self, number: int) -> list[Any]:
        """Return what a state of dataset `number` belongs to: that dataset and what is done to its elements.

        The other datasets and the cycle length are no part of it.
        """
        parts = self._all_datasets.parts
        dataset = identity.identify(parts if isinstance(parts, MapNode) else parts[number])

        def after(node: Node) -> list[Any]:
            node = skip_transparent(node)
            if isinstance(node, Interleave):
                return dataset
            (parent,) = node.parents
            return [*identity.identify_node(node), [after(parent)]]

        return after(self._pipeline)

    def start_prefetch(self) -> None:
        self._iterator.start_prefetch()

    def report(self) -> Report:
        """Return where the time went since the start: see `bushel.Report`."""
        return self._iterator.report()

    @property
    def skipped(self) -> int:
        return self._iterator.skipped

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if "_iterator" in vars(self):
                self._iterator.close()


def _find_interleave(node: StreamNode) -> tuple[Interleave, list[Node]]:
    """Return the interleave that a pipeline begins with, and the operations after it, from the last one to the
    first.
    """
    above: list[Node] = []
    found: Node = node
    while not isinstance(found, Interleave):
        if not found.transparent and not isinstance(found, (Elementwise, BatchStream, SeedStream)):
            raise ValueError(_explain_refusal(found))
        above.append(found)
        (found,) = found.parents
    if found.count >= INFINITE:
        raise ValueError("ElasticIterator cannot share endlessly many datasets among hosts. Repeat each dataset.")
    return found, above


def _explain_refusal(node: Node) -> str:
    if _has_interleave(node):
        return (
            f"ElasticIterator does not support `{node.call()}` after an interleave: it keeps elements or a position of "
            "its own, which would be lost when another host goes on. Apply it to each dataset before the interleave, "
            "or to what the iterator gives."
            + (" For several epochs, interleave `datasets * num_epochs`." if isinstance(node, RepeatStream) else "")
        )
    way_out = " Leave out `to_iter_dataset`: a MapDataset needs no interleave." if isinstance(node, Elements) else ""
    return (
        "ElasticIterator takes a MapDataset, or an IterDataset that begins with an InterleaveIterDataset, of whose "
        f"datasets each host reads some. This one has `{node.call()}` in its place.{way_out}"
    )


def _has_interleave(node: Node) -> bool:
    return isinstance(node, Interleave) or any(map(_has_interleave, node.parents))


def _take_shard(interleave: Interleave, shard: ShardOptions) -> Interleave:
    """Return the same interleave of the datasets of one host."""
    count, parts = interleave.count, interleave.parts
    if count < shard.shard_count:
        raise ValueError(
            f"ElasticIterator cannot share {count} interleaved datasets among {shard.shard_count} hosts: some hosts "
            f"would have none. Use at most {count} hosts, or more datasets."
        )
    if isinstance(parts, MapNode):
        shard_of_parts = Slice(parts, shard.shard_index, count, shard.shard_count)
        return Interleave(shard_of_parts, interleave.cycle_length)
    return Interleave(parts[shard.shard_index :: shard.shard_count], interleave.cycle_length)


def _with_interleave(node: Node, interleave: Interleave) -> Any:
    """Return a pipeline with another interleave in place of the one that it begins with."""
    if isinstance(node, Interleave):
        return interleave
    return replace_parents(node, lambda parent: _with_interleave(parent, interleave))


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
        """Return the position: of a MapDataset the same on all hosts that have taken as many batches, else of this
        host.
        """
        return self._base.get_state()

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Go to a saved position.

        Of a MapDataset any host may have saved it, with any number of hosts and any global batch size. Of an interleave
        it must be the same host of as many; see `set_shard_states` for another number.
        """
        self._base.set_state(state, check=check)

    def get_shard_states(self) -> dict[int, State]:
        """Return the state of each dataset of an interleave that this host reads, by its number in the whole
        interleave.

        The states of all hosts together describe all data. They are plain JSON data.
        """
        return self._of_interleave("get_shard_states").get_shard_states()

    def set_shard_states(self, shard_states: Mapping[Any, Any], *, check: bool = True) -> None:
        """Go on where these states of single datasets say, with any number of hosts, batch size and cycle length.

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
        """Return where the time went since the start, or, of a MapDataset, since the last `set_state`: see
        `bushel.Report`.
        """
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
        """Return the global position, the same on all hosts that have taken as many batches."""
        done = self._start + get_next_index(self._iterator) * self._hosts.batch_size
        return state_forms.seal({_POSITION: min(done, self._hosts.length)}, self._identity)

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Go to a position that any host has saved, with any number of hosts and any global batch size."""
        position = read_count(state_forms.unseal(state, self._identity, check=check), _POSITION)
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
        """Return where the time went since the start, or since the last `set_state`: see `bushel.Report`."""
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
        """Return the batches of one host from a global position on."""
        rows = _HostRows(node, start, self)
        batches: MapNode = BatchElements(rows, self.batch_size // self.shard.shard_count)
        if self.pads:
            batches = MapElementsWithIndex(batches, functools.partial(_with_mask, hosts=self, start=start))
        stream: StreamNode = Elements(batches, read_options)
        return stream if workers is None else Ahead(stream, workers)

    def batches_from(self, start: int) -> int:
        left = self.length - start
        return -(-left // self.batch_size) if self.pads else left // self.batch_size


@in_states("elastic_rows")
@dataclasses.dataclass(frozen=True, eq=False)
class _HostRows(Reindex):
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
