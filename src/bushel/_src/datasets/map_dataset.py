"""MapDataset: a dataset whose elements are a function of their index. Each method builds a map node and wraps it."""

from __future__ import annotations

import abc
import builtins
import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, SupportsIndex, TypeGuard, TypeVar, overload

import numpy as np

from bushel._src.base import blocks, checks, hints
from bushel._src.base import transforms as tf
from bushel._src.base.blocks import Block
from bushel._src.base.errors import BushelWarning
from bushel._src.base.grain_names import Stats
from bushel._src.base.hints import explains_arguments, renamed_arguments, show_as
from bushel._src.base.late_imports import Lazy
from bushel._src.base.options import ReadOptions, WorkerOptions
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.base_dataset import (
    Dataset,
    DatasetMeta,
    apply_all,
    check_count,
    check_flat_map,
    check_indices,
    check_transform,
    derive_random_map_seed,
    derive_seed,
    name_kind,
    take_elements,
    wrap,
)
from bushel._src.datasets.iter_dataset import A, B, C, D, E, IterDataset, IterPipeline, S, T, T_co
from bushel._src.datasets.iterator import DatasetIterator
from bushel._src.graph import batch, map_ops, reindex, source_nodes, streams, user_datasets
from bushel._src.graph.node import MapNode
from bushel._src.index import epochs
from bushel._src.sources.user_sources import RandomAccessDataSource, as_source, check_source

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from bushel._src.base.element_types import (
        BatchFunction,
        FilterFunction,
        FlatMapObject,
        Key,
        Leaf,
        LeafType,
        MapFunction,
        MapWithIndexFunction,
        RandomMapFunction,
        TableLike,
        Unknown,
        Value,
        VectorizedFilter,
        VectorizedFunction,
    )
    from bushel._src.datasets import computed_columns
    from bushel._src.graph import by_length, mixtures, origins, select
    from bushel._src.graph.columns import Column
    from bushel._src.graph.origins import ElementOrigin
else:
    computed_columns = Lazy("bushel._src.datasets.computed_columns")
    by_length = Lazy("bushel._src.graph.by_length")
    mixtures = Lazy("bushel._src.graph.mixtures")
    origins = Lazy("bushel._src.graph.origins")
    select = Lazy("bushel._src.graph.select")

K = TypeVar("K")


class _MapDatasetMeta(DatasetMeta):
    """Functions that create a MapDataset: `MapDataset.source(...)`. Instances do not have them."""

    @overload
    def source(cls, source: TableLike) -> MapDataset[dict[Any, Any]]: ...

    @overload
    def source(cls, source: RandomAccessDataSource[T]) -> MapDataset[T]: ...

    @explains_arguments("Write `MapDataset.source(records)`.")
    def source(cls, source: Any) -> MapDataset[Any]:
        """Return a dataset of the records of a source: a list, or anything with a length and `source[i]`.

        The records of an Arrow table or of a pandas or polars frame are its rows, as dicts. A source may keep its
        records: Bushel copies them before a function can write into them.

        >>> list(MapDataset.source(["a", "b", "c"]))
        ['a', 'b', 'c']
        """
        check_source(source, "A source")
        return MapPipeline(source_nodes.SourceNode(as_source(source)))

    @explains_arguments("Write `MapDataset.range(stop)` or `MapDataset.range(start, stop, step)`.")
    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """Return a dataset of integers, with the arguments of the built-in `range`.

        >>> list(MapDataset.range(2, 8, 3))
        [2, 5]
        """
        first, last = (0, start) if stop is None else (start, stop)
        first, last, step = (checks.integer(v, n) for v, n in ((first, "start"), (last, "stop"), (step, "step")))
        if step == 0:
            raise ValueError("step of a range must not be zero.")
        return MapPipeline(source_nodes.Range(first, last, step))

    @explains_arguments("Write `MapDataset.mix([a, b], weights=[2, 1])`.")
    def mix(
        cls,
        datasets: Sequence[MapDataset[T]],
        weights: mixtures.Weights | None = None,
        *,
        exact: bool = False,
        temperature: float | None = None,
        when_exhausted: Literal["stop", "restart", "continue"] = "stop",
    ) -> MapDataset[T]:
        """Return elements of several datasets in proportion to `weights`, in a fixed pattern, until the first runs out.

        Shuffle the datasets before mixing. Repeat them if the mixture should be endless. Numbers as weights follow
        Grain's rule, which rounds them. With `exact=True`, a schedule or "size" the shares are exact: in every prefix
        of the mixture each dataset is within one element of its share. The order is then another one.

        Args:
          datasets: the datasets to mix.
          weights: a number for each dataset; or a schedule, `[(0, weights), (100_000, other weights)]`, by position in
            the mixture; or "size", in proportion to lengths. Exact weights may be zero.
          exact: keeps shares exact in every prefix. A schedule and "size" always do.
          temperature: with "size", weights are lengths to the power of 1 / temperature. Above 1 they become more equal.
          when_exhausted: what happens when a dataset has no element left. "stop" ends the mixture. "restart" continues
            with the next epoch of that dataset, and the mixture has no end. "continue" goes on with the other datasets.
            Both need exact shares.

        >>> list(MapDataset.mix([MapDataset.range(5), MapDataset.range(7, 10)]))
        [0, 7, 1, 8, 2, 9]
        >>> parts = [MapDataset.range(4), MapDataset.range(10, 12)]
        >>> list(MapDataset.mix(parts, [(0, [1, 0]), (2, [1, 1])], when_exhausted="restart")[:8])
        [0, 1, 2, 10, 3, 11, 0, 10]
        """
        nodes = _nodes_of(datasets, "mix")
        return MapPipeline(mixtures.mix(nodes, weights, exact, temperature, when_exhausted))

    def select_from_datasets(
        cls, datasets: Sequence[MapDataset[T]], selection_map: tf.DatasetSelectionMap
    ) -> MapDataset[T]:
        """Return elements of several datasets. `selection_map` gives for each index the dataset and the index in it."""
        nodes = _nodes_of(datasets, "select_from_datasets")
        return MapPipeline(reindex.SelectByUser(nodes, selection_map))

    @explains_arguments("Write `MapDataset.concatenate([a, b])`.")
    def concatenate(cls, datasets: Sequence[MapDataset[T]]) -> MapDataset[T]:
        """Return datasets one after the other; epoch n of the whole is epoch n of each.

        >>> list(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(5, 7)]))
        [0, 1, 2, 5, 6]
        """
        return MapPipeline(reindex.concatenate(_nodes_of(datasets, "concatenate")))


if TYPE_CHECKING:

    class _OfAnyClass(Protocol):
        """The type `MapDataset` itself, and no subclass of it.

        `_accepts` takes an object of the class that it is called on. That of MapDataset takes any MapDataset, that of a
        subclass only its own. So a checker leaves out an overload of `self: _OfAnyClass` where it compares a subclass
        with its base: `def __getitem__(self, index: int)` is enough for a dataset of a user's own.
        """

        def _accepts(self, other: MapDataset[Any], /) -> None: ...


@public("bushel")
@in_states("MapDataset")
class MapDataset(Dataset[T_co], metaclass=_MapDatasetMeta):
    """A dataset whose elements are a function of their index.

    Nothing is read before you ask for an element: with `ds[i]`, with `ds.get(indices)` or by iteration. One epoch has
    `len(ds)` elements. Larger indices are the following epochs, each in a new order if the pipeline shuffles. If a
    `filter` dropped an element, `ds[i]` is None, and iteration leaves it out.

    To write an operation of your own, subclass MapDataset: implement `__len__` and `__getitem__`, and pass the dataset
    that you read to `super().__init__`.

    >>> ds = MapDataset.range(10).seed(42).shuffle().map(lambda x: x * 10).batch(4)
    >>> ds[0].tolist(), len(ds)
    ([10, 70, 60, 90], 3)
    """

    _stats = Stats()

    def __init__(self, parents: MapDataset[Any] | Sequence[MapDataset[Any]] = ()):
        self._parents = (parents,) if isinstance(parents, MapDataset) else tuple(parents)

    @functools.cached_property
    def _node(self) -> MapNode:  # type: ignore[override]
        return user_datasets.CustomMap(self)

    @property
    def parents(self) -> tuple[MapDataset[Any], ...]:
        """The datasets that this one reads."""
        return tuple(getattr(self, "_parents", ()))

    @property
    def _parent(self) -> MapDataset[Any]:
        (parent,) = self.parents
        return parent

    @staticmethod
    def _explain_method_of_other_kind(name: str) -> str:
        instead = f" {hints.MAP_DATASET[name]}" if name in hints.MAP_DATASET else ""
        return f"A MapDataset has no `{name}`, an IterDataset has: write `ds.to_iter_dataset().{name}(...)`.{instead}"

    @abc.abstractmethod
    def __len__(self) -> int:
        """Return the number of elements in one epoch; `sys.maxsize` for an endless dataset."""

    if TYPE_CHECKING:

        def _accepts(self, other: Self, /) -> None: ...

    @overload
    def __getitem__(self, index: int) -> T_co: ...

    # NumPy's integers, and slices. Checkers do not ask for them in a subclass: see `_OfAnyClass`.
    @overload
    def __getitem__(self: _OfAnyClass, index: SupportsIndex) -> T_co: ...

    @overload
    def __getitem__(self: _OfAnyClass, index: builtins.slice) -> MapDataset[T_co]: ...

    @abc.abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return the element at `index`, or a dataset of a slice."""

    def __iter__(self) -> DatasetIterator[T_co]:
        return self.to_iter_dataset().__iter__()

    def get(self, indices: Sequence[int] | np.ndarray) -> list[T_co]:
        """Return the elements at these indices, as a list. It reads them together, which is faster than one by one.

        The indices come in any order and may be of any epoch. A missing element is None.

        >>> MapDataset.range(5).map(lambda x: x + 1).get([4, 0])
        [5, 1]
        """
        return blocks.rows_of(self._get_block(indices))

    def _get_block(self, indices: Sequence[int] | np.ndarray) -> Block:
        """Return the elements at these indices: a list, or `Columns` if the pipeline works on whole arrays."""
        positions = check_indices(indices)
        return take_elements(self._node, positions) if positions.size else []

    def take(self, count: int) -> MapDataset[T_co]:
        """Return the first `count` elements, as a dataset: `ds[:count]`. For elements at some indices, see `get`.

        >>> list(MapDataset.range(10).take(3)), list(MapDataset.range(10).skip(8))
        ([0, 1, 2], [8, 9])
        """
        return self.slice(builtins.slice(check_count(count, "take")))

    def limit(self, count: int) -> MapDataset[T_co]:
        """Return the first `count` elements: the same as `take`, under the word that Grain has for streams.

        >>> list(MapDataset.range(10).limit(3))
        [0, 1, 2]
        """
        return self.slice(builtins.slice(check_count(count, "limit")))

    def skip(self, count: int) -> MapDataset[T_co]:
        """Return all elements but the first `count`, without reading those: `ds[count:]`.

        >>> list(MapDataset.range(5).skip(3))
        [3, 4]
        """
        return self.slice(builtins.slice(check_count(count, "skip"), None))

    def __add__(self, other: MapDataset[S]) -> MapDataset[T_co | S]:
        """Return the elements of this dataset and then those of another: `MapDataset.concatenate([self, other])`.

        >>> list(MapDataset.range(2) + MapDataset.source(["a"]))
        [0, 1, 'a']
        """
        if not isinstance(other, MapDataset):
            return NotImplemented
        return MapDataset.concatenate([self, other])

    def apply(self, transformations: tf.Transformation | tf.Transformations) -> MapDataset[Any]:
        """Return one transformation after the other, each by its kind.

        >>> MapDataset.range(3).apply([tf.Batch(2)])[0].tolist()
        [0, 1]
        """
        return apply_all(self, transformations)

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: BatchFunction[T_co, S]
    ) -> MapDataset[S]: ...

    # Elements of type Any, of which nothing is known.
    @overload
    def batch(
        self: MapDataset[Unknown], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> MapDataset[Any]: ...

    @overload
    def batch(
        self: MapDataset[Leaf], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> MapDataset[np.ndarray]: ...

    @overload
    def batch(
        self: MapDataset[dict[Key, Unknown]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> MapDataset[dict[Key, Any]]: ...

    @overload
    def batch(
        self: MapDataset[dict[Key, LeafType]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> MapDataset[dict[Key, np.ndarray]]: ...

    @overload
    def batch(
        self: MapDataset[dict[Key, Value]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> MapDataset[dict[Key, Any]]: ...

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: BatchFunction[T_co, Any] | None = None
    ) -> MapDataset[Any]: ...

    @explains_arguments("Write `ds.batch(4)`.")
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: BatchFunction[T_co, Any] | None = None
    ) -> MapDataset[Any]:
        """Return batches of consecutive elements, their leaves stacked along a new first axis.

        No batch has elements of two epochs: the last batch of an epoch may be smaller. To fill it from the next epoch,
        call `repeat` before `batch`.

        Args:
          batch_size: how many elements make a batch.
          drop_remainder: leaves out the last batch if it is smaller.
          batch_fn: makes a batch from a list of elements; by default they are stacked.

        >>> [b.tolist() for b in MapDataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        size = checks.positive(batch_size, "batch_size")
        batch.check_dense(self._node)
        return MapPipeline(batch.BatchElements(self._node, size, bool(drop_remainder), batch_fn))

    @overload
    def filter(
        self, transform: Callable[[T_co], TypeGuard[S]], *, vectorized: Literal[False] = False
    ) -> MapDataset[S]: ...

    @overload
    def filter(
        self, transform: Callable[[T_co], TypeIs[S]], *, vectorized: Literal[False] = False
    ) -> MapDataset[S]: ...

    @overload
    def filter(self, transform: FilterFunction[T_co], *, vectorized: Literal[False] = False) -> MapDataset[T_co]: ...

    @overload
    def filter(self, transform: VectorizedFilter, *, vectorized: bool) -> MapDataset[T_co]: ...

    @explains_arguments("Write `ds.filter(function)`.")
    def filter(self, transform: Any, *, vectorized: bool = False) -> MapDataset[Any]:
        """Only the elements for which `transform` returns True. The others are None, and iteration leaves them out.

        The length does not change, since the number of dropped elements is not known without reading. A `vectorized`
        filter gets a tree of arrays with a leading axis and returns one bool per element.

        >>> ds = MapDataset.range(5).filter(lambda x: x % 2 == 0)
        >>> ds[1], list(ds)
        (None, [0, 2, 4])
        """
        checked = check_transform(transform, tf.Filter, "filter")
        return MapPipeline(map_ops.FilterElements(self._node, checked, vectorized))

    @overload
    def map(self, transform: MapFunction[T_co, S], *, vectorized: Literal[False] = False) -> MapDataset[S]: ...

    @overload
    def map(self, transform: VectorizedFunction, *, vectorized: bool) -> MapDataset[Any]: ...

    @explains_arguments("Write `ds.map(function)`.")
    def map(self, transform: Any, *, vectorized: bool = False) -> MapDataset[Any]:
        """Return `transform` of each element.

        A `vectorized` function gets many elements at once, as a tree of arrays with a leading axis, and returns such a
        tree with as many elements. Its result for an element must not depend on how many elements it gets.

        >>> list(MapDataset.range(3).map(lambda x: x + 10))
        [10, 11, 12]
        >>> list(MapDataset.range(3).map(lambda xs: xs * 2, vectorized=True))
        [np.int64(0), np.int64(2), np.int64(4)]
        """
        return MapPipeline(map_ops.MapElements(self._node, check_transform(transform, tf.Map, "map"), vectorized))

    @explains_arguments("Write `ds.map_with_index(function)`.")
    def map_with_index(self, transform: MapWithIndexFunction[T_co, S]) -> MapDataset[S]:
        """Return `transform(index, element)`. The index continues to count in later epochs.

        >>> list(MapDataset.source(["a", "b"]).map_with_index(lambda i, x: f"{x}{i}"))
        ['a0', 'b1']
        """
        checked = check_transform(transform, tf.MapWithIndex, "map_with_index")
        return MapPipeline(map_ops.MapElementsWithIndex(self._node, checked))

    @explains_arguments("Write `ds.random_map(function, seed=0)`.")
    def random_map(self, transform: RandomMapFunction[T_co, S], *, seed: int | None = None) -> MapDataset[S]:
        """Return `transform(element, rng)`.

        The random generator depends on the seed and on the index of the element only.

        Do not keep the generator: it is used again for other elements.

        Args:
          transform: a function of an element and a generator, or a RandomMap.
          seed: for this operation alone; by default it follows from `ds.seed(...)` and the place in the pipeline.

        >>> ds = MapDataset.range(2).seed(7).random_map(lambda x, rng: x + rng.integers(10))
        >>> list(ds) == list(ds)
        True
        """
        chosen = derive_random_map_seed(self, seed)
        checked = check_transform(transform, tf.RandomMap, "random_map")
        return MapPipeline(map_ops.RandomMapElements(self._node, checked, chosen))

    def seed(self, seed: int) -> MapDataset[T_co]:
        """Return seed the operations that follow: each derives a seed from this one and from its place in the pipeline.

        If you add an operation before a shuffle, the seed of the shuffle changes. `shuffle(seed=...)` avoids that.

        >>> from bushel import MapDataset
        >>> ds = MapDataset.range(4).seed(1).shuffle()
        >>> list(ds) == list(MapDataset.range(4).seed(1).shuffle())
        True
        """
        return MapPipeline(reindex.Seed(self._node, checks.seed(seed)))

    @explains_arguments("Write `ds.shuffle(seed=0)`: it shuffles all elements, without a buffer.")
    def shuffle(self, seed: int | None = None) -> MapDataset[T_co]:
        """Return all elements in random order, another order in every epoch. It computes the order: there is no buffer.

        Args:
          seed: in [0, 2**32); by default it follows from `ds.seed(...)` and the place in the pipeline.

        >>> list(MapDataset.range(10).shuffle(seed=42))
        [8, 6, 7, 9, 0, 5, 1, 2, 4, 3]
        """
        if isinstance(seed, bool):
            raise TypeError(f"Seed must be an integer, got {seed} of type bool. Write `ds.shuffle(seed=0)`.")
        return MapPipeline(reindex.Shuffle(self._node, derive_seed(self, seed, "shuffle")))

    @explains_arguments("Write `ds.window_shuffle(1000, seed=0)`.", buffer_size="Write `window_size={0}`.")
    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> MapDataset[T_co]:
        """Return shuffle inside windows of `window_size` consecutive elements, so that elements stay near their place.

        The last window of an epoch may be smaller: no window has elements of two epochs.

        >>> list(MapDataset.range(8).window_shuffle(4, seed=3))
        [2, 3, 0, 1, 5, 4, 6, 7]
        """
        return MapPipeline(reindex.WindowShuffle(self._node, window_size, derive_seed(self, seed, "window_shuffle")))

    @overload
    def zip(self, a: MapDataset[A], /) -> MapDataset[tuple[T_co, A]]: ...

    @overload
    def zip(self, a: MapDataset[A], b: MapDataset[B], /) -> MapDataset[tuple[T_co, A, B]]: ...

    @overload
    def zip(self, a: MapDataset[A], b: MapDataset[B], c: MapDataset[C], /) -> MapDataset[tuple[T_co, A, B, C]]: ...

    @overload
    def zip(
        self, a: MapDataset[A], b: MapDataset[B], c: MapDataset[C], d: MapDataset[D], /
    ) -> MapDataset[tuple[T_co, A, B, C, D]]: ...

    @overload
    def zip(
        self, a: MapDataset[A], b: MapDataset[B], c: MapDataset[C], d: MapDataset[D], e: MapDataset[E], /
    ) -> MapDataset[tuple[T_co, A, B, C, D, E]]: ...

    # Six others or more, or `*others`. An overload that also took fewer would leave mypy with two answers for them.
    @overload
    def zip(
        self,
        a: MapDataset[Any],
        b: MapDataset[Any],
        c: MapDataset[Any],
        d: MapDataset[Any],
        e: MapDataset[Any],
        f: MapDataset[Any],
        /,
        *others: MapDataset[Any],
    ) -> MapDataset[tuple[Any, ...]]: ...

    def zip(self, *others: MapDataset[Any]) -> MapDataset[Any]:
        """Return tuples of the elements at the same index of this dataset and others, which must have the same length.

        >>> list(MapDataset.range(2).zip(MapDataset.source(["a", "b"])))
        [(0, 'a'), (1, 'b')]
        """
        return ZipMapDataset([self, *others])

    @explains_arguments("Write `ds.flat_map(function)`.")
    def flat_map(self, transform: FlatMapObject[T_co, S]) -> MapDataset[S]:
        """Split each element into up to `transform.max_fan_out` elements. If there are fewer, the rest are missing.

        >>> from bushel import transforms
        >>> class Words(transforms.FlatMap):
        ...     max_fan_out = 3
        ...     def flat_map(self, text):
        ...         return text.split()
        >>> list(MapDataset.source(["a b", "c"]).flat_map(Words()))
        ['a', 'b', 'c']
        """
        return FlatMapMapDataset(self, transform)

    @explains_arguments("Write `ds[a:b]`, `ds[a:b:step]`, or `ds.slice([positions])`.")
    def slice(self, sl: builtins.slice | Sequence[int]) -> MapDataset[T_co]:
        """Return the elements of a slice, or at a list of positions. `ds[a:b:c]` is `ds.slice(slice(a, b, c))`.

        `ds[index::count]` is shard `index` of `count` shards.

        >>> list(MapDataset.range(10)[1::4]), list(MapDataset.range(10).slice([3, 3, 7]))
        ([1, 5, 9], [3, 3, 7])
        """
        return MapPipeline(reindex.select_positions(self._node, sl))

    @overload
    def split(
        self,
        shares: Mapping[K, float],
        *,
        seed: int = 0,
        by: Callable[[T_co], Any] | Column | np.ndarray | Sequence[Any] | None = None,
        hashed: bool = False,
    ) -> dict[K, MapDataset[T_co]]: ...

    @overload
    def split(
        self,
        shares: Sequence[float],
        *,
        seed: int = 0,
        by: Callable[[T_co], Any] | Column | np.ndarray | Sequence[Any] | None = None,
        hashed: bool = False,
    ) -> tuple[MapDataset[T_co], ...]: ...

    @explains_arguments(
        "Write `train, validation = ds.split([0.9, 0.1])`.",
        groups="Write `by={0}`.",
        random_state="Write `seed={0}`.",
        test_size="Write `ds.split([0.9, 0.1])`.",
    )
    def split(
        self,
        shares: Any,
        *,
        seed: int = 0,
        by: Callable[[T_co], Any] | Column | np.ndarray | Sequence[Any] | None = None,
        hashed: bool = False,
    ) -> Any:
        """Return parts without a common record, such as a train and a validation set.

        Together they are the whole dataset.

        A record is in the same part in every epoch, also if the dataset is shuffled: then the records are split before
        the shuffle, and each part is shuffled by itself. A part of a dataset that is not shuffled has its records in a
        random order, which is the same in every epoch.

        Args:
          shares: the share of each part, with the sum 1; or how many elements each part has. A dict gives the parts
            names, and the parts come back in a dict.
          seed: another seed gives another split. It does not follow from `ds.seed(...)`: an operation that you add
            must not move records from one part to another.
          by: keeps records together: a function of an element, a column, or one value per element. Records with the
            same value, such as the number of an episode, are in the same part. Sizes then differ from the shares by
            less than the largest group.
          hashed: decides by a hash of the value of `by` alone. So a record stays in its part if data are added. Sizes
            are then only close to the shares.

        >>> train, validation = MapDataset.range(10).split([0.8, 0.2])
        >>> len(train), sorted([*train, *validation])
        (8, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
        >>> parts = MapDataset.range(10).split({"train": 0.6, "test": 0.4}, by=lambda x: x // 5)
        >>> list(parts["test"])
        [5, 6, 7, 8, 9]
        """
        parts = computed_columns.split_records(self._node, shares, seed, by, hashed)
        datasets = [MapPipeline[T_co](part) for part in parts]
        return dict(zip(shares, datasets, strict=True)) if isinstance(shares, Mapping) else tuple(datasets)

    @explains_arguments(
        "Write `ds.repeat(num_epochs)`.", count="Write `num_epochs={0}`.", epochs="Write `num_epochs={0}`."
    )
    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> MapDataset[T_co]:
        """Return `num_epochs` epochs, or endlessly many.

        Args:
          num_epochs: None for no end; `len(ds)` is then `sys.maxsize`.
          reseed_each_epoch: False repeats the first epoch as it is, random operations included.

        >>> list(MapDataset.range(2).repeat(2))
        [0, 1, 0, 1]
        """
        repeated = reindex.repeat(self._node, num_epochs, bool(reseed_each_epoch))
        if reseed_each_epoch and num_epochs != 1:
            select.warn_of_leak(self._node)
        return MapPipeline(repeated)

    @renamed_arguments(cache="cache_dir", options="workers")
    @explains_arguments("Write `ds.column(function)`.")
    def column(
        self,
        function: Callable[[T_co], Any],
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        workers: int | WorkerOptions | None = None,
        vectorized: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        trust_source: bool = False,
    ) -> Column:
        """Return one small value for each record, computed once: for `where`, `pack`, `sample` and others.

        A column belongs to records, not to positions: it follows its records through shuffles, slices, mixtures and
        maps. It is computed on the nearest earlier dataset that is the same in every epoch. A missing element (None) is
        an error.

        Args:
          function: returns a number, a small array of one shape, or a flat dict of them.
          cache_dir: a folder to save the column in, here or in a store ("s3://bucket/columns"), under the identity of
            the pipeline and the function, with all data in memory. An interrupted computation continues where it was.
          workers: the number of worker processes, or their options; by default one per core, if it takes longer than
            0.3 seconds. The values do not depend on the number of workers.
          vectorized: the function takes a tree of arrays with a leading axis and returns one value per element.
          storage_options: of the store where `cache` lies.
          trust_source: says that the data never change, where the source cannot tell. With `cache`, a source of your
            own that reads files and has no `fingerprint()` is an error otherwise.

        >>> words = MapDataset.source(["fig", "banana", "kiwi"]).seed(1).shuffle()
        >>> lengths = words.column(len)
        >>> sorted(words.where(lengths > 3))
        ['banana', 'kiwi']
        """
        checked = check_transform(function, tf.Map, "column")
        return computed_columns.column(
            self._node,
            checked,
            cache_dir=cache_dir,
            workers=workers,
            vectorized=vectorized,
            storage_options=storage_options,
            trust_source=trust_source,
        )

    @explains_arguments("Write `ds.where(function)`.")
    def where(self, mask: Callable[[T_co], Any] | Column | np.ndarray | Sequence[bool]) -> MapDataset[T_co]:
        """Only the elements whose `mask` is True, without gaps: the length is exact, and random access works.

        Unlike `filter` it can be followed by any operation: batches, shuffles, shards, mixtures with exact shares.
        Before a shuffle it costs nothing per epoch. After a shuffle the kept positions of each epoch are computed once.

        Args:
          mask: a function that returns a bool; a column of bools, such as `lengths > 10`; or one bool per element. A
            function is called once for each record, now, and the values stay in memory. `ds.column(function)` gives
            the same values for several operations, and can keep them in files.

        >>> list(MapDataset.range(6).where(lambda x: x % 3 == 0))
        [0, 3]
        """
        return MapPipeline(computed_columns.choose_elements(self._node, mask, "where", select.Where()))

    @explains_arguments("Write `ds.sample(weights, seed=0)`.")
    def sample(
        self,
        weights: Callable[[T_co], Any] | Column | np.ndarray | Sequence[float],
        *,
        seed: int | None = None,
        replacement: bool = True,
    ) -> MapDataset[T_co]:
        """Return draw elements in proportion to `weights`.

        With replacement an epoch has as many draws as the dataset has elements, spread evenly: an element with the
        share s of all weights comes floor(s * n) or ceil(s * n) times in an epoch of n draws. Without replacement each
        element with a weight above zero comes once per epoch, and elements with large weights tend to come early.

        Args:
          weights: a function of an element, a column, or one number per element: see `where`.
          seed: by default it follows from `ds.seed(...)` and the place in the pipeline.
          replacement: whether an element may come several times in an epoch.

        >>> ds = MapDataset.range(4)
        >>> sorted(ds.sample([1, 0, 2, 1], seed=0))
        [0, 2, 2, 3]
        """
        chosen_seed = derive_seed(self, seed, "sample")
        rule = select.Draw(chosen_seed) if replacement else select.WeightedShuffle(chosen_seed)
        return MapPipeline(computed_columns.choose_elements(self._node, weights, "sample", rule))

    @explains_arguments(
        "Write `ds.order_by(function)`.", reverse="Write `ds.order_by(-column)` for large values first."
    )
    def order_by(
        self,
        values: Callable[[T_co], Any] | Column | np.ndarray | Sequence[float],
        *,
        noise: float = 0.0,
        seed: int | None = None,
    ) -> MapDataset[T_co]:
        """Return each epoch sorted by `values`, small ones first: a curriculum.

        For large ones first, `order_by(-column)`.

        Args:
          values: a function of an element, a column, or one number per element: see `where`.
          noise: how random the order is, from 0 (sorted) to 1 (shuffled). It is drawn again in every epoch.
          seed: for the noise; by default it follows from `ds.seed(...)` and the place in the pipeline.

        >>> list(MapDataset.source(["banana", "fig", "kiwi"]).order_by(len))
        ['fig', 'kiwi', 'banana']
        """
        if not 0 <= noise <= 1:
            raise ValueError(f"noise must be between 0 (sorted) and 1 (shuffled), got {noise!r}.")
        if seed is not None and not noise:  # no error: a program may try several values of noise with one seed
            warnings.warn("seed has no effect without noise. Write noise=1 to shuffle.", BushelWarning, stacklevel=2)
        rule = select.OrderBy(float(noise), derive_seed(self, seed, "order_by") if noise else 0)
        return MapPipeline(computed_columns.choose_elements(self._node, values, "order_by", rule))

    @explains_arguments("Write `ds.pack(len, length)`.", max_length="Write `length={0}`.")
    def pack(
        self,
        lengths: Callable[[T_co], Any] | Column | np.ndarray | Sequence[int] | Mapping[str, Any],
        length: int | Mapping[str, int],
        *,
        strategy: Literal["first_fit", "best_fit", "concat_split"] = "first_fit",
        window: int = 64,
        seed: int | None = None,
        max_sequences: int | None = None,
    ) -> PackedMapDataset:
        """Pack several sequences into each row of a fixed length, by random access. Rows are planned once.

        A row is a dict. For each feature it has the sequences, padded with zeros. As in Grain's packers it also has
        `{feature}_segment_ids`, which count the sequences from 1, and `{feature}_positions`, which count inside each
        sequence. Shuffle the rows, not the sequences: shuffled sequences need another number of rows in every epoch.

        Args:
          lengths: how long each sequence is: a function of an element, a column, or one number per element, as for
            `where`. For several features the function returns a dict, or each feature has its own in a dict.
          length: how long a row is. A number if the elements are sequences (the feature is then called "tokens"), else
            a dict with a number for each feature to pack. Other features are left out.
          strategy: "first_fit" and "best_fit" keep sequences whole, "concat_split" cuts them where a row is full.
          window: how many rows are filled at the same time. More rows leave less padding, and take longer to plan.
          seed: packs the elements in a random order, the same in all epochs. By default they are packed in order.
          max_sequences: the largest number of sequences in a row; not with "concat_split".

        >>> ds = MapDataset.source([np.array([1, 2, 3]), np.array([4, 5]), np.array([6])])
        >>> packed = ds.pack(len, 4)
        >>> packed[0]["tokens"].tolist(), packed[0]["tokens_segment_ids"].tolist(), packed.efficiency
        ([1, 2, 3, 6], [1, 1, 1, 2], {'tokens': 0.75})
        """
        options = (length, strategy, window, seed, max_sequences)
        return PackedMapDataset(computed_columns.pack_elements(self._node, lengths, *options))

    @explains_arguments("Write `ds.bucket(len, boundaries, batch_sizes, seed=0)`.")
    def bucket(
        self,
        lengths: Callable[[T_co], Any] | Column | np.ndarray | Sequence[int],
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        seed: int | None = None,
        drop_remainder: bool = False,
        features: Sequence[str] | None = None,
        padding: Any = 0,
        batch_fn: Callable[[Sequence[T_co]], Any] | None = None,
    ) -> MapDataset[Any]:
        """Return batches of elements with similar lengths, padded to the boundary of their bucket: one shape per
        bucket.

        The batches of all buckets are shuffled together, in another order in every epoch. The order of the dataset
        decides which elements share a batch: shuffle it before.

        Args:
          lengths: a function of an element, a column, or one whole number per element: see `where`.
          boundaries: the largest length of each bucket.
          batch_sizes: how many elements make a batch: one number, or one per bucket.
          seed: for the order of batches; by default it follows from `ds.seed(...)` and the place in the pipeline.
          drop_remainder: leaves out the last batch of a bucket if it is smaller.
          features: the features to pad; by default all arrays.
          padding: the padding value.
          batch_fn: makes a batch from a list of elements; by default they are padded and stacked.

        >>> ds = MapDataset.source([np.ones(n, int) for n in (1, 4, 2, 3)])
        >>> sorted(batch.tolist() for batch in ds.bucket(len, [2, 4], 2, seed=0))
        [[[1, 0], [1, 1]], [[1, 1, 1, 1], [1, 1, 1, 0]]]
        """
        batches = computed_columns.bucket_elements(
            self._node,
            lengths,
            boundaries,
            batch_sizes,
            derive_seed=lambda: derive_seed(self, seed, "bucket"),
            drop_remainder=drop_remainder,
            features=features,
            padding=padding,
            batch_fn=batch_fn,
        )
        return MapPipeline(batches)

    def origin(self, index: int) -> ElementOrigin:
        """Return the source records that element `index` is made of, with their component and epoch. Nothing is read.

        `iterator.origins(steps)` does the same for the next elements of an iterator.

        >>> ds = MapDataset.mix([MapDataset.range(5), MapDataset.source(["a", "b"])]).batch(3)
        >>> print(ds.origin(1))
        element 1 is made of
          record 1 of list of 2, epoch 0, component 1
        """
        position = checks.integer(index, "index")
        if self._node.length == 0:
            raise IndexError(f"{self._node.call()} is empty: it has no element {position}.")
        return origins.find_origins(self._node, epochs.array([position]))[0]

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
        """Return the elements in order, as arrays on accelerators: see `IterDataset.to_device`.

        >>> batch = next(iter(MapDataset.range(8).batch(4).to_device()))
        >>> type(batch).__name__, batch.tolist()
        ('ArrayImpl', [0, 1, 2, 3])
        """
        stream = self.to_iter_dataset()
        return stream.to_device(device, buffer_size=buffer_size, unsupported=unsupported, remainder=remainder)

    @overload
    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: Literal[False] = False
    ) -> IterDataset[T_co]: ...

    @overload
    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool
    ) -> IterDataset[T_co | None]: ...

    @explains_arguments(
        "Write `ds.to_iter_dataset()`.",
        num_threads="Write `ds.to_iter_dataset(bushel.ReadOptions(num_threads={0}))`.",
    )
    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> IterDataset[Any]:
        """Return the same elements in order, as a stream.

        Args:
          read_options: threads that prefetch. By default there are none at first. If elements that may come from files
            wait for longer than 0.1 ms each, 16 threads prefetch up to 500 elements, as in Grain. If they compute, two
            threads are tried after 50 ms, more follow while they gain something, and none stay if the consumer alone is
            as fast. For files in a store 16 threads begin at once. Without `read_options`, prefetched elements take
            about 1 GiB at most. The output is the same.
          allow_nones: keeps the elements that a filter dropped, as None.

        >>> list(MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 2 == 0).batch(2))
        [array([0, 2]), array([4])]
        """
        return IterPipeline(streams.Elements(self._node, read_options, bool(allow_nones)))


@in_states("MapPipeline")
@show_as("MapDataset")
class MapPipeline(MapDataset[T_co]):
    """A map node as a dataset."""

    _shown_as = "MapDataset"

    def __init__(self, map_node: MapNode):
        self._node = map_node

    @property
    def _parents(self) -> tuple[MapDataset[Any], ...]:
        return tuple(wrap(parent) for parent in self._node.parents)

    def __len__(self) -> int:
        length = self._node.length
        if checks.is_endless(length) and sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == "tqdm":
            # tqdm(ds.repeat()) asks for a total, which it would show, with a time left of 10**12 hours.
            raise TypeError("This dataset has no end, so a progress bar has no total.")
        return length

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...

    @overload
    def __getitem__(self, index: builtins.slice) -> MapDataset[T_co]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, builtins.slice):
            return self.slice(index)
        try:
            position = epochs.array([checks.integer(index, "index")])
        except TypeError as error:
            raise TypeError(f"{error} {hints.explain_index(index)}".rstrip()) from None
        return blocks.rows_of(take_elements(self._node, position))[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        return self.get(indices)

    @property
    def _element_spec(self) -> Any:
        return self._node.element_spec()


@wrap.register(MapNode)
def _wrap_map_node(map_node: MapNode) -> MapDataset[Any]:
    return map_node.dataset if isinstance(map_node, user_datasets.CustomMap) else MapPipeline(map_node)


@public("bushel")
class PackedMapDataset(MapPipeline[dict[str, np.ndarray]]):
    """Packed rows, as `ds.pack(...)` returns them."""

    @property
    def efficiency(self) -> dict[str, float]:
        """For each feature, the share of all cells of the rows that hold a token."""
        return by_length.find_efficiency(self._node)


@public("bushel.experimental")
class ZipMapDataset(MapPipeline[T_co]):
    """Tuples of the elements of several datasets of one length.

    >>> list(ZipMapDataset([MapDataset.range(2), MapDataset.source(["a", "b"])]))
    [(0, 'a'), (1, 'b')]
    """

    def __init__(self: ZipMapDataset[tuple[Any, ...]], parents: Sequence[MapDataset[Any]]):
        if not parents:
            raise ValueError("At least one parent must be provided.")
        super().__init__(reindex.zip_parts(_nodes_of(parents, "zip")))


@public("bushel.experimental")
class FlatMapMapDataset(MapPipeline[T_co]):
    """Splits each element into up to `transform.max_fan_out` elements. If there are fewer, the rest are missing."""

    def __init__(self, parent: MapDataset[T], transform: FlatMapObject[T, T_co]):
        super().__init__(map_ops.FlatMapElements(parent._node, check_flat_map(transform)))


def _nodes_of(datasets: Sequence[MapDataset[Any]], what: str) -> tuple[MapNode, ...]:
    if isinstance(datasets, Dataset):
        raise TypeError(f"{what} takes a list of datasets: write `MapDataset.{what}([a, b])`.")
    if not datasets:
        raise ValueError(f"{what} needs at least one dataset.")
    for dataset in datasets:
        if not isinstance(dataset, MapDataset):
            raise TypeError(f"{what} takes MapDatasets, got {name_kind(dataset)}. {_make_map_dataset(dataset)}")
    return tuple(dataset._node for dataset in datasets)


def _make_map_dataset(value: Any) -> str:
    """Return what to write so that a value that is no MapDataset becomes one."""
    if isinstance(value, IterDataset):
        return "Call `to_iter_dataset()` after it, or use the functions of IterDataset for streams."
    return "Write `MapDataset.source(records)` for records."
