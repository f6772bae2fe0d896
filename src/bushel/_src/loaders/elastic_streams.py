"""Hosts that share the datasets of an interleave: each dataset has a state of its own, which moves between hosts.

`bushel._src.loaders.elastic` has the class that users make, and the other way to share, by positions of a MapDataset.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from bushel._src.base import checks
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import StateMismatch, inside
from bushel._src.base.options import DatasetOptions, ReadOptions, WorkerOptions
from bushel._src.base.sharding import ShardOptions
from bushel._src.datasets.dataset import IterDataset
from bushel._src.datasets.iterator import DatasetIterator, PipelineIterator
from bushel._src.engine.opener import open_alone
from bushel._src.engine.report import Report
from bushel._src.graph.elementwise import Elementwise
from bushel._src.graph.interleave import Interleave
from bushel._src.graph.node import MapNode, Node, replace_parents, skip_transparent
from bushel._src.graph.ordered import BatchStream
from bushel._src.graph.portions import RepeatStream
from bushel._src.graph.reindex import Slice
from bushel._src.graph.shard_states import check_entry, join_states, pick_entries, split_state
from bushel._src.graph.state_fields import State
from bushel._src.graph.streams import Ahead, Elements, SeedStream, StreamNode, WithOptions, options_of
from bushel._src.state import envelope, identity
from bushel._src.state.files import SHARD_COUNT, SHARD_INDEX

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
        self._datasets = _take_share(self._all_datasets, shard_options)
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
        """The position of this host, for the same host of as many. See `get_shard_states` for another number."""
        host = {SHARD_INDEX: self._shard_options.shard_index, SHARD_COUNT: self._shard_options.shard_count}
        return envelope.seal({**self._position(), **host}, self._identity)

    def _position(self) -> State:
        return envelope.unseal(self._iterator.get_state(), [], check=False)

    def set_state(self, state: State, *, check: bool = True) -> None:
        """Goes to a position that the same host of as many has saved, with any global batch size."""
        position = envelope.unseal(state, self._identity, check=check)
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
        """The state of each dataset that this host reads, by its number in the whole interleave."""
        position = self._position()
        for _ in self._counts:
            position = position["parent"]
        entries = split_state(position, self._datasets.count, self._start_state)
        numbers = range(self._shard_options.shard_index, self._all_datasets.count, self._shard_options.shard_count)
        return {
            number: envelope.seal(entry, self._identity_of(number))
            for number, entry in zip(numbers, entries, strict=True)
        }

    def set_shard_states(self, shard_states: Mapping[Any, Any], *, check: bool = True) -> None:
        """Goes to the position that these states describe, whichever hosts have saved them.

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
            known = isinstance(entry, Mapping) and envelope.KEY in entry
            without_identity += not known
            with inside(number):
                expected = self._identity_of(number)
                inner = envelope.unseal(entry, expected, check=check and known, method="set_shard_states")
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
        """The state of one of this host's datasets before its first element."""
        if number not in self._start_states:
            stream = self._datasets.stream(number)
            if stream is None:  # a filter has dropped it
                return {}
            cursor = open_alone(stream, self._options, None)
            self._start_states[number] = cursor.get_state()
            cursor.close()
        return self._start_states[number]

    def _identity_of(self, number: int) -> list[Any]:
        """What a state of dataset `number` belongs to: that dataset and what is done to its elements.

        The other datasets and the cycle length are no part of it.
        """
        parts = self._all_datasets.parts
        dataset = identity.identify(parts if isinstance(parts, MapNode) else parts[number])

        def after(node: Node) -> list[Any]:
            node = skip_transparent(node)
            if isinstance(node, Interleave):
                return dataset
            (parent,) = node.parents
            return [*identity.own_part(node), [after(parent)]]

        return after(self._pipeline)

    def start_prefetch(self) -> None:
        self._iterator.start_prefetch()

    def report(self) -> Report:
        """Where the time went since the start: see `bushel.Report`."""
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
    """The interleave that a pipeline begins with, and the operations after it, from the last one to the first."""
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


def _take_share(interleave: Interleave, shard: ShardOptions) -> Interleave:
    """The same interleave of the datasets of one host."""
    count, parts = interleave.count, interleave.parts
    if count < shard.shard_count:
        raise ValueError(
            f"ElasticIterator cannot share {count} interleaved datasets among {shard.shard_count} hosts: some hosts "
            f"would have none. Use at most {count} hosts, or more datasets."
        )
    if isinstance(parts, MapNode):
        share = Slice(parts, shard.shard_index, count, shard.shard_count)
        return Interleave(share, interleave.cycle_length)
    return Interleave(parts[shard.shard_index :: shard.shard_count], interleave.cycle_length)


def _with_interleave(node: Node, interleave: Interleave) -> Any:
    """A pipeline with another interleave in place of the one that it begins with."""
    if isinstance(node, Interleave):
        return interleave
    return replace_parents(node, lambda parent: _with_interleave(parent, interleave))
