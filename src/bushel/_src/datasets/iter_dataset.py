"""IterDataset: a dataset that is read in order. Each method builds a stream node and wraps it."""

from __future__ import annotations

import abc
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, Unpack, overload

import numpy as np

from bushel._src.base import checks, hints
from bushel._src.base import transforms as tf
from bushel._src.base.errors import BushelDeprecationWarning, BushelWarning
from bushel._src.base.hints import explains_arguments, renamed_arguments, show_as
from bushel._src.base.late_imports import Lazy, install_command
from bushel._src.base.options import DatasetOptions, MultiprocessingOptions, OptionValues, RayOptions, read_workers
from bushel._src.base.public import load_doors, public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.base_dataset import (
    Dataset,
    DatasetMeta,
    apply_all,
    check_flat_map,
    check_transform,
    derive_random_map_seed,
    derive_seed,
    name_kind,
    wrap,
)
from bushel._src.datasets.iterator import DatasetIterator, PipelineIterator
from bushel._src.engine.tasks import Executor
from bushel._src.graph import stream_ops, streams, user_datasets
from bushel._src.graph.streams import StreamNode, WithOptions, options_of
from bushel._src.index import mix as mix_index
from bushel._src.state import identity
from bushel._src.state.digest import digest

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from bushel._src.base.element_types import (
        BatchFunction,
        FilterFunction,
        FlatMapFunction,
        FlatMapObject,
        Key,
        Leaf,
        LeafType,
        MapFunction,
        MapWithIndexFunction,
        RandomMapFunction,
        Unknown,
        Value,
        VectorizedFilter,
        VectorizedFunction,
    )
    from bushel._src.datasets import global_arrays
    from bushel._src.graph import cache, cache_stores, limit_and_rebatch, source_nodes, stream_ops
    from bushel._src.sources import user_sources
else:
    global_arrays = Lazy("bushel._src.datasets.global_arrays")
    cache = Lazy("bushel._src.graph.cache")
    user_sources = Lazy("bushel._src.sources.user_sources")
    limit_and_rebatch = Lazy("bushel._src.graph.limit_and_rebatch")
    source_nodes = Lazy("bushel._src.graph.source_nodes")
    cache_stores = Lazy("bushel._src.graph.cache_stores")
    stream_ops = Lazy("bushel._src.graph.stream_ops")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")


class _IterDatasetMeta(DatasetMeta):
    """Functions that create an IterDataset: `IterDataset.mix(...)`. Instances do not have them."""

    @explains_arguments("Write `IterDataset.source(iterable)`.")
    def source(cls, iterable: Iterable[T] | Callable[[], Iterable[T]]) -> IterDataset[T]:
        """Return any iterable as a dataset whose iterators can be saved.

        An iterable with `state_dict` and `load_state_dict` (a Hugging Face stream, a loader of torchdata) resumes with
        them. Any other iterable is read again from the start, up to the position. For records that can be read at any
        position, `MapDataset.source` shuffles and resumes better.

        Args:
          iterable: an object that can be iterated several times, or a function that returns an iterable.

        >>> ds = IterDataset.source(lambda: (x * x for x in range(4)))
        >>> it = iter(ds)
        >>> next(it), next(it), it.get_state()["elements_read"]
        (0, 1, 2)
        """
        source = user_sources.IterableStream(iterable)
        return IterPipeline(source_nodes.RecordStream(source, f"source({source.name})"))

    @explains_arguments("Write `IterDataset.mix([a, b], weights=[2, 1])`.")
    def mix(
        cls,
        datasets: Sequence[IterDataset[T]] | Mapping[str, IterDataset[T]],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> IterDataset[T]:
        """Return elements of several streams in proportion to `weights`. It ends when the first stream ends.

        With a mapping, states are restored by key, so that weights and datasets may change between runs.

        >>> from bushel import MapDataset
        >>> a, b = (MapDataset.range(n, n + 3).to_iter_dataset() for n in (0, 10))
        >>> list(IterDataset.mix([a, b], [2, 1]))
        [0, 1, 10, 2]
        """
        keys: tuple[str, ...] | None = None
        if isinstance(datasets, Mapping):
            keys = tuple(sorted(datasets))
            if weights is not None:
                if not isinstance(weights, Mapping) or set(weights) != set(keys):
                    raise ValueError(f"Datasets by key need weights with the same keys {list(keys)}, got {weights!r}.")
                weights = [weights[key] for key in keys]
            datasets = [datasets[key] for key in keys]
        parts = _nodes_of(datasets, "mix")
        if not parts:
            raise ValueError("IterDataset.mix needs at least one dataset.")
        checked = checks.weights(weights, len(parts))  # type: ignore[arg-type]
        integers = mix_index.integer_weights(checked or [1.0] * len(parts))
        return IterPipeline(stream_ops.MixStream(parts, integers, keys))


@public("bushel")
@in_states("IterDataset")
class IterDataset(Dataset[T_co], metaclass=_IterDatasetMeta):
    """A dataset that is read in order. Its iterators can be saved and restored.

    To write one of your own, subclass it and implement `__iter__`, which returns a `DatasetIterator`.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 3).batch(2)
    >>> [batch.tolist() for batch in ds]
    [[1, 2], [4, 5]]
    """

    def __init__(self, parents: Any = ()):
        self._parents = (parents,) if isinstance(parents, Dataset) else tuple(parents)

    @functools.cached_property
    def _node(self) -> StreamNode:  # type: ignore[override]
        return user_datasets.CustomStream(self)

    @property
    def parents(self) -> tuple[Any, ...]:
        """The datasets that this one reads."""
        return tuple(getattr(self, "_parents", ()))

    @property
    def _parent(self) -> Any:
        (parent,) = self.parents
        return parent

    @staticmethod
    def _explain_method_of_other_kind(name: str) -> str:
        if name == "to_iter_dataset":
            return f"An IterDataset has no `{name}`. {hints.ITER_DATASET[name]}"
        instead = f" {hints.ITER_DATASET[name]}" if name in hints.ITER_DATASET else ""
        return f"An IterDataset has no `{name}`, a MapDataset has: call it before `to_iter_dataset()`.{instead}"

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T_co]:
        """Return an iterator at the start."""

    def __len__(self) -> int:
        """Return how many elements an iterator gives. Raise TypeError if that is not known without reading.

        If a function returns None in place of an element, there are fewer. An endless stream has no length.

        >>> from bushel import MapDataset
        >>> len(MapDataset.range(10).to_iter_dataset().map(str).batch(4))
        3
        """
        length = self._node.length
        if length is None or options_of(self._node).on_error == "skip":
            raise TypeError(
                f"The length of this IterDataset is not known without reading it: {self!r} may drop elements, or is "
                "read until it ends. On a MapDataset, `where` and `pack` return datasets with a length."
            )
        if checks.is_endless(length):
            raise TypeError(f"This IterDataset has no end: {self!r}. Its first elements are `.take(n)`.")
        return length

    if not TYPE_CHECKING:
        __getitem__ = hints.Unsupported(
            "A stream is read in order, so it has no `stream[i]`. Write `ds[i]` on the MapDataset before "
            "`to_iter_dataset()`, or take the first elements: `list(stream.take(n))`."
        )

    def __bool__(self) -> bool:
        return True  # also if it has no elements: `if ds:` asks whether there is a dataset

    def apply(self, transformations: tf.Transformation | tf.Transformations) -> IterDataset[Any]:
        """Return one transformation after the other, each by its kind.

        >>> from bushel import MapDataset, transforms
        >>> list(MapDataset.range(4).to_iter_dataset().apply([transforms.Batch(2)]))
        [array([0, 1]), array([2, 3])]
        """
        return apply_all(self, transformations)

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: BatchFunction[T_co, S]
    ) -> IterDataset[S]: ...

    # Elements of type Any, of which nothing is known.
    @overload
    def batch(
        self: IterDataset[Unknown], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> IterDataset[Any]: ...

    @overload
    def batch(
        self: IterDataset[Leaf], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> IterDataset[np.ndarray]: ...

    @overload
    def batch(
        self: IterDataset[dict[Key, Unknown]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> IterDataset[dict[Key, Any]]: ...

    @overload
    def batch(
        self: IterDataset[dict[Key, LeafType]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> IterDataset[dict[Key, np.ndarray]]: ...

    @overload
    def batch(
        self: IterDataset[dict[Key, Value]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> IterDataset[dict[Key, Any]]: ...

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: BatchFunction[T_co, Any] | None = None
    ) -> IterDataset[Any]: ...

    @explains_arguments("Write `ds.batch(4)`.")
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: BatchFunction[T_co, Any] | None = None
    ) -> IterDataset[Any]:
        """Return batches of consecutive elements, their leaves stacked along a new first axis.

        Args:
          batch_size: how many elements make a batch.
          drop_remainder: leaves out the last batch if it is smaller.
          batch_fn: makes a batch from a list of elements; by default they are stacked.

        >>> from bushel import MapDataset
        >>> [batch.tolist() for batch in MapDataset.range(5).to_iter_dataset().batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        size = checks.positive(batch_size, "batch_size")
        return IterPipeline(stream_ops.BatchStream(self._node, size, bool(drop_remainder), batch_fn))

    @overload
    def filter(
        self, transform: Callable[[T_co], TypeGuard[S]], *, vectorized: Literal[False] = False
    ) -> IterDataset[S]: ...

    @overload
    def filter(
        self, transform: Callable[[T_co], TypeIs[S]], *, vectorized: Literal[False] = False
    ) -> IterDataset[S]: ...

    @overload
    def filter(self, transform: FilterFunction[T_co], *, vectorized: Literal[False] = False) -> IterDataset[T_co]: ...

    @overload
    def filter(self, transform: VectorizedFilter, *, vectorized: bool) -> IterDataset[T_co]: ...

    @explains_arguments("Write `ds.filter(function)`.")
    def filter(self, transform: Any, *, vectorized: bool = False) -> IterDataset[Any]:
        """Only the elements for which `transform` returns True. Warns if it drops nearly all elements.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 3 == 0))
        [0, 3]
        """
        return IterPipeline(
            stream_ops.FilterStream(self._node, check_transform(transform, tf.Filter, "filter"), vectorized)
        )

    @overload
    def map(self, transform: MapFunction[T_co, S], *, vectorized: Literal[False] = False) -> IterDataset[S]: ...

    @overload
    def map(self, transform: VectorizedFunction, *, vectorized: bool) -> IterDataset[Any]: ...

    @explains_arguments("Write `ds.map(function)`.")
    def map(self, transform: Any, *, vectorized: bool = False) -> IterDataset[Any]:
        """Return `transform` of each element; see `MapDataset.map`.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(3).to_iter_dataset().map(lambda x: x * 10))
        [0, 10, 20]
        """
        return IterPipeline(stream_ops.MapStream(self._node, check_transform(transform, tf.Map, "map"), vectorized))

    @explains_arguments("Write `ds.map_with_index(function)`.")
    def map_with_index(self, transform: MapWithIndexFunction[T_co, S]) -> IterDataset[S]:
        """Return `transform(n, element)`, where n is the number of elements before it.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(4, 6).to_iter_dataset().map_with_index(lambda i, x: (i, x)))
        [(0, 4), (1, 5)]
        """
        checked = check_transform(transform, tf.MapWithIndex, "map_with_index")
        return IterPipeline(stream_ops.MapWithIndexStream(self._node, checked))

    @explains_arguments("Write `ds.random_map(function, seed=0)`.")
    def random_map(self, transform: RandomMapFunction[T_co, S], *, seed: int | None = None) -> IterDataset[S]:
        """Return `transform(element, rng)`.

        The random generator depends only on the seed and the number of elements before.

        Args:
          transform: a function of an element and a generator, or a RandomMap.
          seed: for this operation alone; by default it follows from `ds.seed(...)` and the place in the pipeline.

        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(3).to_iter_dataset().seed(0).random_map(lambda x, rng: x + rng.random())
        >>> list(ds) == list(ds)
        True
        """
        chosen = derive_random_map_seed(self, seed)
        checked = check_transform(transform, tf.RandomMap, "random_map")
        return IterPipeline(stream_ops.RandomMapStream(self._node, checked, chosen))

    @explains_arguments("Write `ds.flat_map(function)`.")
    def flat_map(self, transform: FlatMapFunction[T_co, S]) -> IterDataset[S]:
        """Split each element into several, which come one after the other.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(4).to_iter_dataset().flat_map(lambda x: [x] * x))
        [1, 2, 2, 3, 3, 3]
        """
        return IterPipeline(stream_ops.FlatMapStream(self._node, check_transform(transform, tf.FlatMap, "flat_map")))

    def limit(self, count: int) -> IterDataset[T_co]:
        """Return the first `count` elements: the same as `take`, under Grain's word.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(5).to_iter_dataset().limit(2))
        [0, 1]
        """
        return IterPipeline(limit_and_rebatch.Limit(self._node, count))

    def take(self, count: int) -> IterDataset[T_co]:
        """Return the first `count` elements, as a dataset.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(5).to_iter_dataset().take(2))
        [0, 1]
        """
        return IterPipeline(limit_and_rebatch.Limit(self._node, count))

    def skip(self, count: int) -> IterDataset[T_co]:
        """Return all elements but the first `count`, which are computed and dropped.

        `MapDataset.skip` computes nothing.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(5).to_iter_dataset().skip(3))
        [3, 4]
        """
        return IterPipeline(limit_and_rebatch.Skip(self._node, count))

    def unbatch(self) -> IterDataset[Any]:
        """Return the rows of batches, one by one: each element must be a tree of arrays that share a first axis.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(5).map(lambda x: {"x": x}).batch(2).to_iter_dataset().unbatch().take(3))
        [{'x': np.int64(0)}, {'x': np.int64(1)}, {'x': np.int64(2)}]
        """
        return IterPipeline(stream_ops.FlatMapStream(self._node, limit_and_rebatch.unbatch))

    @explains_arguments(
        "Write `ds.repeat(num_epochs)`.", count="Write `num_epochs={0}`.", epochs="Write `num_epochs={0}`."
    )
    def repeat(self, num_epochs: int | None = None) -> IterDataset[T_co]:
        """Return the same elements `num_epochs` times, or endlessly.

        All epochs are the same: nothing is shuffled again.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(2).to_iter_dataset().repeat(2))
        [0, 1, 0, 1]
        """
        return IterPipeline(limit_and_rebatch.RepeatStream(self._node, num_epochs))

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> IterDataset[T_co]:
        """Return batches of another size, cut from the batches of this stream.

        >>> from bushel import MapDataset
        >>> [batch.tolist() for batch in MapDataset.range(6).batch(4).to_iter_dataset().rebatch(3)]
        [[0, 1, 2], [3, 4, 5]]
        """
        return IterPipeline(limit_and_rebatch.Rebatch(self._node, batch_size, bool(drop_remainder)))

    @explains_arguments("Write `ds.window_shuffle(1000, seed=0)`.", buffer_size="Write `window_size={0}`.")
    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> IterDataset[T_co]:
        """Return shuffle inside windows of `window_size` consecutive elements.

        `MapDataset.shuffle` needs no window and mixes better. This is for data that can only be read in order.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(8).to_iter_dataset().window_shuffle(4, seed=3))
        [1, 0, 3, 2, 7, 6, 4, 5]
        """
        return IterPipeline(
            stream_ops.WindowShuffleStream(self._node, window_size, derive_seed(self, seed, "window_shuffle"))
        )

    @overload
    def zip(self, a: IterDataset[A], /, *, strict: bool = True) -> IterDataset[tuple[T_co, A]]: ...

    @overload
    def zip(
        self, a: IterDataset[A], b: IterDataset[B], /, *, strict: bool = True
    ) -> IterDataset[tuple[T_co, A, B]]: ...

    @overload
    def zip(
        self, a: IterDataset[A], b: IterDataset[B], c: IterDataset[C], /, *, strict: bool = True
    ) -> IterDataset[tuple[T_co, A, B, C]]: ...

    @overload
    def zip(
        self, a: IterDataset[A], b: IterDataset[B], c: IterDataset[C], d: IterDataset[D], /, *, strict: bool = True
    ) -> IterDataset[tuple[T_co, A, B, C, D]]: ...

    @overload
    def zip(
        self,
        a: IterDataset[A],
        b: IterDataset[B],
        c: IterDataset[C],
        d: IterDataset[D],
        e: IterDataset[E],
        /,
        *,
        strict: bool = True,
    ) -> IterDataset[tuple[T_co, A, B, C, D, E]]: ...

    # Six others or more, or `*others`. An overload that also took fewer would leave mypy with two answers for them.
    @overload
    def zip(
        self,
        a: IterDataset[Any],
        b: IterDataset[Any],
        c: IterDataset[Any],
        d: IterDataset[Any],
        e: IterDataset[Any],
        f: IterDataset[Any],
        /,
        *others: IterDataset[Any],
        strict: bool = True,
    ) -> IterDataset[tuple[Any, ...]]: ...

    def zip(self, *others: IterDataset[Any], strict: bool = True) -> IterDataset[Any]:
        """Return tuples of the elements at the same place in this stream and others.

        Args:
          others: the other streams.
          strict: False ends with the shortest stream. True raises an error if the lengths differ.

        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(2).to_iter_dataset()
        >>> list(ds.zip(ds.map(str)))
        [(0, '0'), (1, '1')]
        """
        return IterPipeline(stream_ops.ZipStream((self._node, *_nodes_of(others, "zip")), bool(strict)))

    @explains_arguments("Write `stream.cache(folder)`.", path="Write `cache_dir={0}`.", folder="Write `cache_dir={0}`.")
    def cache(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        trust_source: bool = False,
    ) -> IterDataset[T_co]:
        """Return the same elements, computed once and then kept. The dataset must have an end.

        The first iterator that reads to the end fills the cache, and later iterators read from it. The cache belongs to
        this pipeline: if a function or the data before it change, it is filled again. Operations that should differ
        between epochs must come after it.

        Args:
          cache_dir: keeps elements in files there, pickled, for other processes and later runs; None keeps them in
            memory. It may be an address in a store, such as "s3://bucket/cache". Use only folders that you trust:
            loading a pickle can run code.
          storage_options: of the store.
          trust_source: says that the data never change, where the source cannot tell. With a folder, a source of your
            own that reads files and has no `fingerprint()` is an error otherwise.

        >>> from bushel import MapDataset
        >>> calls = []
        >>> ds = MapDataset.range(3).to_iter_dataset().map(lambda x: calls.append(x) or x * 10).cache()
        >>> list(ds), list(ds), len(calls)
        ([0, 10, 20], [0, 10, 20], 3)
        """
        parent = self._node
        if parent.length is not None and checks.is_endless(parent.length):
            raise ValueError(f"{parent.call()} has no end, so it cannot be kept. Call `cache` before `repeat`.")
        if cache_dir is None:
            given = {"storage_options": storage_options is not None, "trust_source": trust_source}
            checks.unused(given, "without cache_dir, since elements are kept in memory", "Write cache(cache_dir)")
        store = cache_stores.CacheMemory() if cache_dir is None else cache_stores.CacheFiles(cache_dir, storage_options)
        return IterPipeline(cache.Cache(parent, store, _CacheKey(parent, cache_dir is not None, trust_source)))

    @explains_arguments(
        "Write `stream.mp_prefetch(4)`.",
        workers="Write `stream.mp_prefetch({0})`.",
        num_proc="Write `stream.mp_prefetch({0})`.",
    )
    def mp_prefetch(
        self,
        options: MultiprocessingOptions | int | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
        *,
        num_workers: int | None = None,
    ) -> IterDataset[T_co]:
        """Return the same elements in the same order, prefetched by worker processes.

        The number of workers never changes the output, and a state can be restored with another number of workers. The
        program needs no `if __name__ == "__main__"`. Workers see no accelerator. If a worker dies, another one computes
        its elements again. If this contains another `mp_prefetch`, only the outer one starts workers.

        Args:
          options: how many workers: `mp_prefetch(4)`; or MultiprocessingOptions, which have their limits, too. By
            default as many as are useful, at most one per core.
          worker_init_fn: called as worker_init_fn(worker index, worker count) in each worker before its first element.
            The count is the largest number of workers there may be.
          sequential_slice: ignored: it exists because Grain has it.
          num_workers: how many workers, where no options are given.

        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
        >>> with iter(ds.mp_prefetch(num_workers=2)) as it:
        ...     list(it)
        [0, 1, 4, 9]
        """
        del sequential_slice
        if isinstance(options, RayOptions):
            raise TypeError("mp_prefetch takes MultiprocessingOptions. For actors of a Ray cluster use ray_prefetch.")
        if options is not None and num_workers is not None:
            raise TypeError(f"mp_prefetch takes options or num_workers, not both; got {options!r} and {num_workers!r}.")
        chosen = read_workers(num_workers if options is None else options) or MultiprocessingOptions(num_workers=None)
        if worker_init_fn is not None and chosen.num_workers == 0:
            told = "worker_init_fn has no effect without workers. Write `mp_prefetch(4, worker_init_fn)`."
            warnings.warn(told, BushelWarning, stacklevel=2)
        return IterPipeline(streams.Ahead(self._node, chosen, False, worker_init_fn))

    @explains_arguments(
        "Write `stream.ray_prefetch(bushel.RayOptions(num_workers=4))`.",
        num_workers="Write `stream.ray_prefetch(bushel.RayOptions(num_workers={0}))`.",
    )
    def ray_prefetch(
        self, options: RayOptions | None = None, worker_init_fn: Callable[[int, int], None] | None = None
    ) -> IterDataset[T_co]:
        """Return the same elements in the same order, prefetched by actors of a Ray cluster, on any of its machines.

        Everything else is as with `mp_prefetch`, and the states of both are interchangeable. Call `ray.init` before you
        iterate; Bushel starts no cluster. See docs/many_machines.md.

        Args:
          options: how many actors, what each of them needs, and their limits; by default as many as are useful.
          worker_init_fn: called as worker_init_fn(actor index, actor count) in each actor before its first element.
        """
        options = RayOptions() if options is None else options
        checks.instance(options, RayOptions, "options of ray_prefetch", "RayOptions(num_workers=...)")
        return IterPipeline(streams.Ahead(self._node, options, False, worker_init_fn))

    def prefetch(self, multiprocessing_options: MultiprocessingOptions | int) -> IterDataset[T_co]:
        """Return the same elements. A thread computes up to this many of them in advance: `prefetch(2)`.

        With MultiprocessingOptions it is `mp_prefetch`, under Grain's older name.

        >>> from bushel import MapDataset
        >>> list(MapDataset.range(3).to_iter_dataset().prefetch(2))
        [0, 1, 2]
        """
        if not isinstance(multiprocessing_options, MultiprocessingOptions):
            return ThreadPrefetchIterDataset(self, prefetch_buffer_size=multiprocessing_options)
        warnings.warn("Please use `mp_prefetch` instead.", BushelDeprecationWarning, stacklevel=2)
        return self.mp_prefetch(multiprocessing_options)

    @renamed_arguments(where="device", buffer="buffer_size")
    @explains_arguments("Write `ds.to_device(device)`.")
    def to_device(
        self,
        device: Any = None,
        *,
        buffer_size: int = 2,
        unsupported: Literal["keep", "raise"] = "keep",
        remainder: Literal["drop", "pad"] | None = None,
    ) -> IterDataset[Any]:
        """Return the same elements as arrays on accelerators, copied there while the step before uses another element.

        It is the last operation, after `mp_prefetch`. A GPU reads batches that workers or Bushel itself have made from
        their memory by itself, at the speed of its link. `next` returns an element when it is on the device;
        `it.report()` says how long that took. States are those of the pipeline without `to_device`.

        With a sharding over the devices of several processes, an element is one global `jax.Array` per leaf. All
        processes build the same pipeline. Each of them reads only the rows that its own devices need, if the pipeline
        has random access and ends in `batch` or `bucket`; otherwise it computes whole batches and keeps its rows. All
        processes have the same state, which any number of processes can restore.

        Args:
          device: a device, a `jax.sharding.Sharding`, or a tree of them that has the structure of an element or of the
            upper part of one; by default JAX's default device.
          buffer_size: how many elements wait on the device, besides the one in use. 0: none, and no thread.
          unsupported: what becomes of leaves that JAX cannot hold, such as texts. "keep" leaves them on the host beside
            the arrays; "raise" raises a TypeError that names them. A global array cannot hold them: with several
            processes, or with `remainder`, they are refused in any case.
          remainder: what becomes of a last batch that is smaller. "drop" leaves it out. "pad" fills it up with copies
            of its first row, and gives pairs (batch, mask) throughout: the mask is False for rows that were filled in.
            By default it comes as it is, and is an error if the devices cannot share its rows equally.

        >>> import jax
        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(4).batch(2).to_device(jax.devices()[0])
        >>> [batch.devices() == {jax.devices()[0]} for batch in ds]
        [True, True]
        """
        try:
            import jax  # noqa: F401
        except ImportError as error:
            raise ImportError(f"to_device needs JAX: {install_command('jax')}") from error
        checks.choice(unsupported, ("keep", "raise"), "unsupported")
        checks.not_negative(buffer_size, "buffer_size")
        if remainder is None and not global_arrays.spans_processes(device):
            return IterPipeline(streams.ToDevice(self._node, device, buffer_size, unsupported))
        rows = global_arrays.rows_for(self._node, device, remainder)
        return IterPipeline(streams.ToDevice(self._node, device, buffer_size, unsupported, rows))

    def seed(self, seed: int) -> IterDataset[T_co]:
        """Return seed the operations that follow: each derives a seed from this one and from its place in the
        pipeline.
        """
        return IterPipeline(streams.SeedStream(self._node, checks.seed(seed)))

    def iterate_on(self, executor: Executor) -> DatasetIterator[T_co]:
        """Return an iterator whose elements are computed by your own executor: see `bushel.engine.Executor`."""
        way_out = "pass an instance of a class of yours that has submit, wait, forget and close"
        checks.instance(executor, Executor, "executor of iterate_on", way_out)
        load_doors()  # it may send programs to other processes
        return PipelineIterator(self._node, executor=executor)

    def with_options(self, **options: Unpack[OptionValues]) -> IterDataset[T_co]:
        """Return the same stream with options for the whole pipeline: see `bushel.DatasetOptions`.

        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(5).map(lambda x: 6 // (x - 2)).to_iter_dataset()
        >>> list(ds.with_options(on_error="skip", skip_limit=1))
        [-3, -6, 6, 3]
        """
        return WithOptionsIterDataset(self, DatasetOptions(**options))


@in_states("IterPipeline")
@show_as("IterDataset")
class IterPipeline(IterDataset[T_co]):
    """A stream node as a dataset."""

    _shown_as = "IterDataset"

    def __init__(self, stream_node: StreamNode):
        self._node = stream_node

    @property
    def _parents(self) -> tuple[Any, ...]:
        return tuple(wrap(parent) for parent in self._node.parents)

    def __iter__(self) -> DatasetIterator[T_co]:
        return PipelineIterator(self._node)

    @property
    def _element_spec(self) -> Any:
        return self._node.element_spec()


@wrap.register(StreamNode)
def _wrap_stream_node(stream_node: StreamNode) -> IterDataset[Any]:
    return stream_node.dataset if isinstance(stream_node, user_datasets.CustomStream) else IterPipeline(stream_node)


@public("bushel.experimental")
class FlatMapIterDataset(IterPipeline[T_co]):
    """Splits each element of a stream into several, which come one after the other."""

    def __init__(self, parent: IterDataset[T], transform: FlatMapObject[T, T_co]):
        super().__init__(stream_ops.FlatMapStream(parent._node, check_flat_map(transform)))


@public("bushel.experimental")
class ThreadPrefetchIterDataset(IterPipeline[T_co]):
    """The same elements, prefetched by one thread. It works with any stream, also with a class of your own.

    Args:
      parent: the stream.
      prefetch_buffer_size: how many elements to prefetch; 0 for none.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(4).to_iter_dataset()
    >>> list(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2))
    [0, 1, 2, 3]
    """

    def __init__(self, parent: IterDataset[T_co], *, prefetch_buffer_size: int):
        size = checks.not_negative(prefetch_buffer_size, "prefetch_buffer_size")
        super().__init__(streams.Pulled(parent._node, size))


@public("bushel.experimental")
class WithOptionsIterDataset(IterPipeline[T_co]):
    """The same stream with options for the whole pipeline, for the operations before and after it.

    If a pipeline has several, they are merged: for each option the last one that was chosen counts.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(10).to_iter_dataset().filter(lambda x: x > 7)
    >>> list(WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.99)))
    [8, 9]
    """

    def __init__(self, parent: IterDataset[T_co], options: DatasetOptions):
        if not isinstance(parent, IterDataset):
            raise TypeError(f"WithOptionsIterDataset takes an IterDataset, got {name_kind(parent)}.")
        if not isinstance(options, DatasetOptions):
            raise TypeError(f"WithOptionsIterDataset takes DatasetOptions, got {options!r}.")
        super().__init__(WithOptions(parent._node, options))
        self.options = options


@public("bushel.experimental")
def multithread_prefetch(
    ds: IterDataset[T], num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset[T]:
    """Return the same elements in the same order, prefetched by threads: for work that releases the GIL.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
    >>> list(multithread_prefetch(ds, num_threads=2, buffer_size=4))
    [0, 1, 4, 9]
    """
    del sequential_slice
    checks.instance(ds, IterDataset, "The dataset of multithread_prefetch", "use to_iter_dataset() before")
    threads = checks.not_negative(num_threads, "num_threads")
    size = checks.not_negative(buffer_size, "buffer_size")
    options = MultiprocessingOptions(num_workers=threads, per_worker_buffer_size=max(1, size))
    return IterPipeline(streams.Ahead(ds._node, options, True))


def _nodes_of(datasets: Sequence[Any], what: str) -> tuple[StreamNode, ...]:
    if isinstance(datasets, Dataset):
        raise TypeError(f"IterDataset.{what} takes a list of datasets: write `IterDataset.{what}([a, b])`.")
    for dataset in datasets:
        if not isinstance(dataset, IterDataset):
            way_out = "Call `to_iter_dataset()` on it." if isinstance(dataset, Dataset) else _MAKE_STREAM
            raise TypeError(f"IterDataset.{what} takes IterDatasets, got {name_kind(dataset)}. {way_out}")
    return tuple(dataset._node for dataset in datasets)


class _CacheKey:
    """The name under which a cache keeps the elements of a pipeline. It is found out when it is first needed."""

    def __init__(self, node: StreamNode, on_disk: bool, trust_source: bool):
        self._node, self._on_disk, self._trust_source = node, on_disk, trust_source
        self._name: str | None = None

    def __call__(self) -> str:
        if self._name is None:
            if self._on_disk:
                method = "cache(folder)"
                self._name = identity.identify_in_full(self._node, trust_source=self._trust_source, method=method)
            else:
                self._name = digest(identity.identify(self._node), identity.PYTHON)
        return self._name

    def __getstate__(self) -> dict[str, Any]:
        self()  # another process may see other data, and functions that have run
        return vars(self)


_MAKE_STREAM = "Write `MapDataset.source(records).to_iter_dataset()` for records."
