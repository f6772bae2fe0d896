"""Grain's DataLoader: its source, sampler and operations become nodes of an ordinary pipeline."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from bushel._src.base import checks, hints
from bushel._src.base import transforms as tf
from bushel._src.base.errors import BushelWarning
from bushel._src.base.hints import explains_arguments
from bushel._src.base.options import DatasetOptions, MultiprocessingOptions, NoSharding, ReadOptions, ShardOptions
from bushel._src.base.public import public
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.report import Report
from bushel._src.graph import graph_text, loader_ops
from bushel._src.graph.batch import BatchFn
from bushel._src.graph.node import Node
from bushel._src.graph.samplers import IndexSampler, Sampled, Sampler
from bushel._src.graph.source_nodes import SourceNode
from bushel._src.graph.stream_ops import BatchStream, FilterStream, FlatMapStream, MapStream
from bushel._src.graph.streams import Ahead, Elements, StreamNode, WithOptions
from bushel._src.sources.user_sources import as_source, check_source
from bushel._src.state import checkpoint_files, state_forms
from bushel._src.state import state_forms as loader_state
from bushel._src.state.state_forms import LoaderFacts

T = TypeVar("T")
logger = logging.getLogger("bushel")

_WITH_GENERATOR = (tf.RandomMap, tf.TfRandomMap)


_CALL = (
    "Write `bushel.load(source, batch_size=4)`, or `bushel.DataLoader(data_source=source, "
    "sampler=bushel.IndexSampler(len(source)), operations=[bushel.Batch(4)])`."
)


@public("bushel")
class DataLoader(Generic[T]):
    """Reads the records that a sampler chooses, and applies operations to them.

    The output is that of Grain's DataLoader without workers, whatever `worker_count` is.

    Args:
      data_source: records by position: a list, or anything with a length and `source[i]`.
      sampler: which record comes when: `IndexSampler`, `SequentialSampler`, or one of your own.
      operations: transformations, one after the other.
      worker_count: worker processes that prefetch. 0 computes in this process, None measures how many are useful.
      worker_buffer_size: how many blocks each worker may hold, beyond two.
      shard_options: which part of the sampler's order to read; by default the shard of the sampler.
      read_options: threads that prefetch; the output is the same for all choices.
      enable_profiling: times every stage, for `iterator.report()` and Prometheus.

    >>> sampler = IndexSampler(4, shuffle=True, num_epochs=1, seed=0)
    >>> loader = DataLoader(data_source=list("abcd"), sampler=sampler, operations=[tf.Batch(2)])
    >>> [batch.tolist() for batch in loader]
    [['a', 'd'], ['b', 'c']]
    """

    @explains_arguments(
        _CALL,
        batch_size="Write `operations=[bushel.Batch({0})]`, or `bushel.load(source, batch_size={0})`.",
        shuffle="Write `sampler=bushel.IndexSampler(len(source), shuffle={0}, seed=0)`, or `bushel.load(source, "
        "shuffle={0}, seed=0)`.",
        num_workers="Write `worker_count={0}`.",
        workers="Write `worker_count={0}`.",
        dataset="Write `data_source=...`.",
        source="Write `data_source=...`.",
        transforms="Write `operations=[...]`.",
        transformations="Write `operations=[...]`.",
        drop_last="Write `operations=[bushel.Batch(4, drop_remainder={0})]`.",
        collate_fn="Write `operations=[bushel.Batch(4, batch_fn=...)]`.",
        prefetch_factor="Write `worker_buffer_size={0}`.",
    )
    def __init__(
        self: DataLoader[Any],
        *,
        data_source: Any,
        sampler: Sampler,
        operations: Sequence[tf.Transformation | loader_ops.Operation] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        enable_profiling: bool = False,
    ):
        if not hasattr(data_source, "__getitem__") or not hasattr(data_source, "__len__"):
            raise TypeError(
                f"A DataLoader reads records by position: its data_source needs `__len__` and `__getitem__`, got "
                f"{type(data_source).__name__}. Data that can only be read in order go through the Dataset API: "
                "write or use an IterDataset, and its map, filter and batch."
            )
        if not isinstance(data_source, str):  # as in Grain, the letters of a str are records
            check_source(data_source, "The data_source of a DataLoader")
        data_source = as_source(data_source)
        if worker_count is not None:
            worker_count = checks.not_negative(worker_count, "worker_count")
        self._multiprocessing_options = MultiprocessingOptions(
            num_workers=worker_count,
            per_worker_buffer_size=max(1, checks.not_negative(worker_buffer_size, "worker_buffer_size")),
            enable_profiling=enable_profiling,
        )
        shard = _find_shard(sampler) if shard_options is None else shard_options
        if not isinstance(shard, ShardOptions):
            raise TypeError(f"shard_options must be ShardOptions, got {shard!r}.")
        if not isinstance(operations, Iterable):
            raise TypeError(f"The operations of a DataLoader are a list: write `operations=[{operations!r}]`.")
        operations = list(operations)
        node = _build_pipeline(data_source, sampler, shard, operations, read_options)
        self._facts = LoaderFacts(
            sampler=loader_state.text_of(sampler),
            data_source=loader_state.source_text(data_source),
            shard=shard,
            one_to_one=all(isinstance(operation, (tf.Map, *_WITH_GENERATOR)) for operation in operations),
            users_operation=_find_users_operation(node),
        )
        if enable_profiling:
            node = WithOptions(node, DatasetOptions(execution_tracking_mode="stage_timing"))
        self._node = Ahead(node, self._multiprocessing_options)

    @property
    def multiprocessing_options(self) -> MultiprocessingOptions:
        """How many workers there are, and within which limits they prefetch."""
        return self._multiprocessing_options

    def __iter__(self) -> DataLoaderIterator[T]:
        return DataLoaderIterator(self, state=None)

    if not TYPE_CHECKING:  # so that a type checker still reports missing names
        __next__ = hints.Unsupported(
            "A DataLoader is not an iterator. Write `it = iter(loader)` once, then `next(it)` for each element."
        )
        __getitem__ = hints.Unsupported(
            "A DataLoader is read in order. Write `bushel.MapDataset.source(source)[i]` for an element by its number."
        )

        def __dir__(self) -> list[str]:
            return hints.list_names(self)

        def __getattr__(self, name: str) -> Any:
            """Explain a name that is missing. Python calls this only for missing names."""
            hints.raise_missing(self, "DataLoader", name, hints.LOADER)

    def __repr__(self) -> str:
        return graph_text.text(self._node)

    def _repr_html_(self) -> str:
        return graph_text.describe(self._node)._repr_html_()


@public("bushel")
class DataLoaderIterator(Iterator[T]):
    """A position in a DataLoader. Its state is bytes, in Grain's form, and restores with any number of workers.

    It may be used from several threads, and as a context manager.

    >>> loader = load([10, 20, 30], num_epochs=1)
    >>> it = iter(loader)
    >>> first, state = next(it), it.get_state()
    >>> it = iter(loader)
    >>> it.set_state(state)
    >>> list(it)
    [20, 30]
    """

    def __init__(self, data_loader: DataLoader[T], state: dict[str, Any] | None, validate_state: bool = True):
        self._data_loader = data_loader
        self._iterator: PipelineIterator[T] = PipelineIterator(data_loader._node)
        if state is not None:
            with checkpoint_files.restored_by("validate_state=False to DataLoaderIterator"):
                self._restore(state, check=validate_state)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._iterator)

    def get_state(self) -> bytes:
        """Return the position as JSON, with the identity of the loader under the key "bushel"."""
        position = self._iterator.get_state()
        sealed = position.pop(state_forms.KEY)
        state = loader_state.to_grain_form(position, self._data_loader._facts)
        return json.dumps({**state, state_forms.KEY: sealed}).encode()

    def set_state(self, state: bytes, *, check: bool = True) -> None:
        """Go to a position of this loader, or of the same one built elsewhere, or of Grain's.

        Args:
          state: what `get_state` returned.
          check: False also restores the state of another loader, if it has the same entries.
        """
        self._restore(loader_state.parse_state(state), check=check)

    def _restore(self, state: dict[str, Any], *, check: bool) -> None:
        facts = self._data_loader._facts
        if state_forms.KEY not in state:
            position = loader_state.position_of(state, facts, check=check)
            with loader_state.reading_position(state):
                self._iterator.set_state(position, check=check)
            return
        # A state of Bushel's has an identity, which says more than the names of sampler and source.
        inner = state_forms.unseal(state, self._iterator.identity, check=check)
        position = loader_state.position_of(inner, facts, check=False)
        with loader_state.reading_position(state):
            self._iterator.set_state(position, check=False)

    def start_prefetch(self) -> None:
        """Start to prefetch before the first `next`, in a loader that prefetches."""
        self._iterator.start_prefetch()

    def report(self) -> Report:
        """Return where the time goes; see `bushel.Report`."""
        return self._iterator.report()

    @property
    def skipped(self) -> int:
        """How many elements failed and were left out so far."""
        return self._iterator.skipped

    def close(self) -> None:
        """End workers and threads. `next` raises ValueError afterwards; closing again does nothing."""
        self._iterator.close()

    async def save(self, directory: checkpoint_files.AwaitingCreation) -> checkpoint_files.Later:
        """Write the present state into a folder that Orbax creates."""
        return checkpoint_files.write_later(directory, checkpoint_files.texts_of(self))

    async def load(self, directory: checkpoint_files.Folder) -> checkpoint_files.Later:
        """Restore a state that `save` wrote, of this loader or of Grain's."""
        return checkpoint_files.restore_later(directory, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DataLoaderIterator: {self._iterator!r}>"


@public("bushel")
@explains_arguments(
    "Write `bushel.load(source, batch_size=4)`.",
    num_workers="Write `worker_count={0}`.",
    workers="Write `worker_count={0}`.",
    sampler="Write `bushel.DataLoader(data_source=..., sampler=...)`.",
    drop_last="Write `drop_remainder={0}`.",
    operations="Write `transformations=[...]`.",
    batch="Write `batch_size={0}`.",
)
def load(
    source: Any,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions = NoSharding(),  # noqa: B008
    transformations: tf.Transformations = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader[Any]:
    """Return a DataLoader with an IndexSampler over all records of a source, and batches if `batch_size` is given.

    >>> [batch.tolist() for batch in load([1, 2, 3], num_epochs=1, batch_size=2)]
    [[1, 2], [3]]
    """
    sampler = IndexSampler(len(source), shard_options, shuffle, num_epochs, seed)
    if drop_remainder and batch_size is None:
        told = (
            "drop_remainder has no effect without batch_size. Write `load(source, batch_size=4, drop_remainder=True)`."
        )
        warnings.warn(told, BushelWarning, stacklevel=2)
    batches = [] if batch_size is None else [tf.Batch(batch_size, drop_remainder=drop_remainder)]
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[*transformations, *batches],
        worker_count=worker_count,
        read_options=read_options,
    )


def _find_shard(sampler: Any) -> ShardOptions:
    own = getattr(sampler, "_shard_options", None)
    if not isinstance(own, ShardOptions):
        raise ValueError(
            f"{type(sampler).__name__} does not say which shard it samples: pass "
            "shard_options=bushel.sharding.NoSharding(), or ShardOptions(...), to the DataLoader."
        )
    return own


def _build_pipeline(
    source: Any, sampler: Any, shard: ShardOptions, operations: list[Any], read_options: ReadOptions | None
) -> StreamNode:
    """Build the nodes. Elements are records with metadata up to the last operation that needs it; then plain data."""
    needing = [number for number, operation in enumerate(operations) if _needs_metadata(operation)]
    last = needing[-1] + 1 if needing else 0
    sampled = Sampled(SourceNode(source), sampler, shard, as_records=last > 0)
    _check_length(sampled, source)
    node: StreamNode = Elements(sampled, read_options, allow_nones=True)
    for operation in operations[:last]:
        node = _apply_to_records(node, operation)
    if last:
        node = MapStream(node, loader_ops.data_of)
    for operation in operations[last:]:
        node = _apply_to_data(node, operation)
    return node


def _find_users_operation(node: Node) -> str | None:
    """Return the name of the last operation that the user wrote as a function on the iterator of records; None without
    one.
    """
    while not isinstance(node, loader_ops.Operate):
        if not node.parents:
            return None
        node = node.parents[0]
    return node.call()


def _check_length(sampled: Sampled, source: Any) -> None:
    sampler, shard, known_sampler = sampled.sampler, sampled.shard, sampled.known_sampler
    if isinstance(known_sampler, IndexSampler) and known_sampler.endless and not known_sampler.shard_size:
        raise ValueError(
            f"Shard {shard.shard_index} of {shard.shard_count} has no record to repeat without end: "
            f"{sampler!r} has fewer records than shards. Use fewer shards."
        )
    if known_sampler is not None and known_sampler.num_records > len(source):
        logger.warning("%r has more records than its source, which has %d: some come twice.", sampler, len(source))


def _needs_metadata(operation: Any) -> bool:
    if isinstance(operation, (tf.Map, tf.Filter, tf.FlatMap, tf.Batch)) or type(operation) is loader_ops.BatchOperation:
        return False
    if isinstance(operation, _WITH_GENERATOR) or (callable(operation) and not isinstance(operation, type)):
        return True
    raise TypeError(
        "The operations of a DataLoader are Map, RandomMap, Filter, FlatMap and Batch transformations, or functions "
        f"from an iterator of records to another; got {operation!r}."
    )


_LEGACY = {
    loader_ops.MapOperation: (loader_ops.MapRecords, "map_function"),
    loader_ops.RandomMapOperation: (loader_ops.RandomMapRecords, "random_map_function"),
    loader_ops.FilterOperation: (loader_ops.FilterRecords, "condition_function"),
}
"""Grain's older operations that apply a function to each record. Nodes take their place, so that they can resume."""


def _apply_to_records(node: StreamNode, operation: Any) -> StreamNode:
    if type(operation) in _LEGACY:
        kind, name = _LEGACY[type(operation)]
        return kind(node, getattr(operation, name))
    match operation:
        case tf.Map():
            return loader_ops.MapRecords(node, operation)
        case tf.RandomMap() | tf.TfRandomMap():
            return loader_ops.RandomMapRecords(node, operation)
        case tf.Filter():
            return loader_ops.FilterRecords(node, operation)
        case tf.FlatMap():
            return FlatMapStream(node, loader_ops.SplitRecords(operation))
        case tf.Batch() | loader_ops.BatchOperation():
            return _batch(node, operation, loader_ops.BatchRecords(operation.batch_fn))
        case _:
            return loader_ops.Operate(node, operation)


def _apply_to_data(node: StreamNode, operation: Any) -> StreamNode:
    match operation:
        case tf.Map():
            return loader_ops.MapData(node, operation)
        case tf.Filter():
            return FilterStream(node, operation)
        case tf.FlatMap():
            return FlatMapStream(node, operation)
        case _:
            return _batch(node, operation, operation.batch_fn)


def _batch(node: StreamNode, operation: Any, batch_fn: BatchFn | None) -> StreamNode:
    size = checks.positive(operation.batch_size, "batch_size")
    return BatchStream(node, size, bool(operation.drop_remainder), batch_fn)
