"""MapDataset: a dataset whose elements are a function of their index. Each method builds a map node and wraps it."""

from __future__ import annotations

import abc
import builtins
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import numpy as np

from bushel.base import blocks, checks
from bushel.base import transforms as tf
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, add_note, without_our_frames
from bushel.base.hooks import Stats
from bushel.base.lazy import Lazy
from bushel.base.options import MultiprocessingOptions, ReadOptions
from bushel.base_dataset import (
    Dataset,
    L,
    apply_all,
    check_flat_map,
    check_transform,
    derive_random_map_seed,
    derive_seed,
    name_kind,
    wrap,
)
from bushel.graph import apply, batch, custom, leaves, reindex, streams
from bushel.graph.node import MapNode
from bushel.index import mix as mix_index
from bushel.index import words
from bushel.iter_dataset import IterDataset, IterPipeline
from bushel.iterator import DatasetIterator
from bushel.sources.given import as_source, check_source
from bushel.sources.protocol import RandomAccessDataSource
from bushel.state import identity

if TYPE_CHECKING:
    from bushel import columns, record_values
    from bushel.graph import bucket, explain, mixtures, pack, select
    from bushel.graph.columns import Column
    from bushel.graph.explain import Explanation
else:
    columns = Lazy("bushel.columns")
    record_values = Lazy("bushel.record_values")
    bucket = Lazy("bushel.graph.bucket")
    explain = Lazy("bushel.graph.explain")
    mixtures = Lazy("bushel.graph.mixtures")
    pack = Lazy("bushel.graph.pack")
    select = Lazy("bushel.graph.select")

T = TypeVar("T")
S = TypeVar("S")
K = TypeVar("K")


class _MapDatasetMeta(abc.ABCMeta):
    """Ways to begin a MapDataset. They live on the class alone, not on its instances."""

    @overload
    def source(cls, source: RandomAccessDataSource[T]) -> MapDataset[T]: ...

    @overload
    def source(cls, source: Any) -> MapDataset[Any]: ...

    def source(cls, source: Any) -> MapDataset[Any]:
        """A dataset of the records of a source: a list, or anything with a length and `source[i]`.

        Records of an Arrow table and of a pandas or polars frame are their rows, as dicts. A source may keep its
        records: they are copied before a function can write into them.

        >>> list(MapDataset.source(["a", "b", "c"]))
        ['a', 'b', 'c']
        """
        check_source(source, "A source")
        return MapPipeline(leaves.Source(as_source(source)))

    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """A dataset of integers, with the arguments of the built-in `range`.

        >>> list(MapDataset.range(2, 8, 3))
        [2, 5]
        """
        first, last = (0, start) if stop is None else (start, stop)
        first, last, step = (checks.integer(v, n) for v, n in ((first, "start"), (last, "stop"), (step, "step")))
        if step == 0:
            raise ValueError("step of a range must not be zero.")
        return MapPipeline(leaves.Range(first, last, step))

    def mix(
        cls,
        datasets: Sequence[MapDataset[T]],
        weights: mixtures.Weights | None = None,
        *,
        exact: bool = False,
        temperature: float | None = None,
        when_exhausted: Literal["stop", "restart", "continue"] = "stop",
    ) -> MapDataset[T]:
        """Elements of several datasets in proportion to `weights`, in a fixed pattern, until the first runs out.

        Shuffle the datasets before mixing, and repeat them if the mixture should be endless. Plain weights follow
        Grain's rule, which rounds them. With any other argument, with a schedule or with "size", shares are exact: in
        every prefix each dataset is within one element of its share.

        Args:
          datasets: what to mix.
          weights: a number for each dataset; or a schedule, `[(0, weights), (100_000, other weights)]`, by position in
            the mixture; or "size", in proportion to lengths. Exact weights may be zero.
          exact: keeps shares exact in every prefix.
          temperature: with "size", weights are lengths to the power of 1 / temperature: above 1 flattens them.
          when_exhausted: "stop" ends the mixture when a dataset would run out; "restart" goes on with its next epoch,
            shuffled anew where it shuffles, without end; "continue" with the other datasets, until none is left.

        >>> list(MapDataset.mix([MapDataset.range(5), MapDataset.range(7, 10)]))
        [0, 7, 1, 8, 2, 9]
        >>> parts = [MapDataset.range(4), MapDataset.range(10, 12)]
        >>> list(MapDataset.mix(parts, [(0, [1, 0]), (2, [1, 1])], when_exhausted="restart")[:8])
        [0, 1, 2, 10, 3, 11, 0, 10]
        """
        nodes = _nodes_of(datasets, "mix")
        if exact or temperature is not None or when_exhausted != "stop" or mixtures.is_special(weights):
            return MapPipeline(mixtures.exact(nodes, weights, temperature, when_exhausted))
        for number, part in enumerate(nodes):
            if part.length == 0:
                raise ValueError(
                    f"All datasets must have positive length for mixing, but the dataset at index {number} "
                    f"({part.call()}) has length 0."
                )
        checked = checks.weights(weights, len(nodes))  # type: ignore[arg-type]
        integers = (1,) * len(nodes) if checked is None else mix_index.integer_weights(checked)
        return MapPipeline(reindex.Select(nodes, reindex.Mix(integers)))

    def select_from_datasets(
        cls, datasets: Sequence[MapDataset[T]], selection_map: tf.DatasetSelectionMap
    ) -> MapDataset[T]:
        """Elements of several datasets as `selection_map` routes them: index -> (which dataset, index in it)."""
        nodes = _nodes_of(datasets, "select_from_datasets")
        return MapPipeline(reindex.Select(nodes, reindex.SelectByUser(selection_map)))

    def concatenate(cls, datasets: Sequence[MapDataset[T]]) -> MapDataset[T]:
        """Datasets one after the other; epoch n of the whole is epoch n of each.

        >>> list(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(5, 7)]))
        [0, 1, 2, 5, 6]
        """
        nodes = _nodes_of(datasets, "concatenate")
        for part in nodes:
            if part.length >= checks.INFINITE:
                raise ValueError(f"Cannot concatenate infinite datasets. {part.call()} is infinite.")
        return MapPipeline(reindex.Select(nodes, reindex.Concatenate()))


class MapDataset(Dataset, Generic[T], metaclass=_MapDatasetMeta):
    """A dataset whose elements are a function of their index.

    Nothing is read until an element is asked for: by `ds[i]`, by `ds.take(indices)` or by iteration. One epoch has
    `len(ds)` elements; indices past it are the next epochs, shuffled anew where the pipeline shuffles. None stands
    for an element that a `filter` dropped; iteration leaves it out.

    To write an operation of your own, subclass it: implement `__len__` and `__getitem__`, and pass the dataset you
    draw from to `super().__init__`.

    >>> ds = MapDataset.range(10).seed(42).shuffle().map(lambda x: x * 10).batch(4)
    >>> ds[0].tolist(), len(ds)
    ([10, 70, 60, 90], 3)
    """

    _stats = Stats()

    def __init__(self, parents: MapDataset[Any] | Sequence[MapDataset[Any]] = ()):
        self._parents = (parents,) if isinstance(parents, MapDataset) else tuple(parents)

    @functools.cached_property
    def _node(self) -> MapNode:  # type: ignore[override]
        return custom.CustomMap(self)

    @property
    def parents(self) -> tuple[MapDataset[Any], ...]:
        """The datasets that this one draws from."""
        return tuple(getattr(self, "_parents", ()))

    @property
    def _parent(self) -> MapDataset[Any]:
        (parent,) = self.parents
        return parent

    @staticmethod
    def _explain_method_of_other_kind(name: str) -> str:
        return f"A MapDataset has no `{name}`, an IterDataset has: write `ds.to_iter_dataset().{name}(...)`."

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of elements in one epoch; `sys.maxsize` for an endless dataset."""

    @overload
    def __getitem__(self, index: builtins.slice) -> MapDataset[T]: ...

    @overload
    def __getitem__(self, index: int) -> T | None: ...

    @abc.abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Returns the element at `index`, or a dataset of a slice."""

    def __iter__(self) -> DatasetIterator[T]:
        return self.to_iter_dataset().__iter__()

    def take(self, indices: Sequence[int] | np.ndarray) -> Block:
        """Many elements at once, as a block: a list, or `bushel.sources.Columns` where the pipeline works on arrays.

        >>> MapDataset.range(5).map(lambda x: x + 1).take([4, 0])
        [5, 1]
        """
        positions = np.asarray(indices)
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            raise TypeError(f"take needs a list of integers, got {indices!r}.")
        if not positions.size:
            return []
        return _take(self._node, positions.astype(np.int64))

    def apply(self, transformations: tf.Transformation | tf.Transformations) -> MapDataset[Any]:
        """One transformation after the other, each by its kind.

        >>> MapDataset.range(3).apply([tf.Batch(2)])[0].tolist()
        [0, 1]
        """
        return apply_all(self, transformations)

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: Callable[[Sequence[T]], S]
    ) -> MapDataset[S]: ...

    @overload
    def batch(
        self: MapDataset[L], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> MapDataset[np.ndarray]: ...

    @overload
    def batch(
        self: MapDataset[dict[K, L]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> MapDataset[dict[K, np.ndarray]]: ...

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: Callable[[Sequence[T]], Any] | None = None
    ) -> MapDataset[Any]: ...

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[T]], Any] | None = None,
    ) -> MapDataset[Any]:
        """Batches of consecutive elements, their leaves stacked along a new first axis.

        Batches do not straddle epochs: the last one of an epoch may be smaller. Repeat before batching if they should.

        Args:
          batch_size: how many elements make a batch.
          drop_remainder: leaves out a last batch that would be smaller.
          batch_fn: makes a batch of a list of elements, instead of stacking.

        >>> [b.tolist() for b in MapDataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]
        """
        size = checks.positive(batch_size, "batch_size")
        culprit = _find_sparse_step(self._node)
        if culprit is not None:
            raise ValueError(
                f"`MapDataset.batch` can not follow `MapDataset.{culprit}` because it can discard elements. Convert "
                "`MapDataset` to `IterDataset` with `to_iter_dataset()` before calling `batch`."
            )
        return MapPipeline(batch.Batch(self._node, size, bool(drop_remainder), batch_fn))

    def filter(self, transform: tf.Filter | Callable[[T], bool], *, vectorized: bool = False) -> MapDataset[T]:
        """Only the elements for which `transform` says yes; the others become None and are left out in iteration.

        The length does not change, since it is not known without reading. A `vectorized` filter gets a tree of
        arrays with a leading axis and returns one bool per element.

        >>> ds = MapDataset.range(5).filter(lambda x: x % 2 == 0)
        >>> ds[1], list(ds)
        (None, [0, 2, 4])
        """
        return MapPipeline(apply.Filter(self._node, check_transform(transform, tf.Filter, "filter"), vectorized))

    def map(self, transform: tf.Map | Callable[[T], S], *, vectorized: bool = False) -> MapDataset[S]:
        """`transform` of each element.

        A `vectorized` function gets many elements at once, as a tree of arrays with a leading axis, and returns
        one with as many. How many there are is not its business: its result for an element must not depend on that.

        >>> list(MapDataset.range(3).map(lambda x: x + 10))
        [10, 11, 12]
        >>> list(MapDataset.range(3).map(lambda xs: xs * 2, vectorized=True))
        [np.int64(0), np.int64(2), np.int64(4)]
        """
        return MapPipeline(apply.Map(self._node, check_transform(transform, tf.Map, "map"), vectorized))

    def map_with_index(self, transform: tf.MapWithIndex | Callable[[int, T], S]) -> MapDataset[S]:
        """`transform(index, element)`. The index counts on through epochs.

        >>> list(MapDataset.source(["a", "b"]).map_with_index(lambda i, x: f"{x}{i}"))
        ['a0', 'b1']
        """
        return MapPipeline(
            apply.MapWithIndex(self._node, check_transform(transform, tf.MapWithIndex, "map_with_index"))
        )

    def random_map(
        self, transform: tf.RandomMap | Callable[[T, np.random.Generator], S], *, seed: int | None = None
    ) -> MapDataset[S]:
        """`transform(element, rng)`, with a generator that belongs to the element's index and to nothing else.

        The generator is reused afterwards: do not keep it.

        Args:
          transform: a function of an element and a generator, or a RandomMap.
          seed: for this operation alone; by default it follows from `ds.seed(...)` above and the place here.

        >>> ds = MapDataset.range(2).seed(7).random_map(lambda x, rng: x + rng.integers(10))
        >>> list(ds) == list(ds)
        True
        """
        chosen = derive_random_map_seed(self, seed)
        return MapPipeline(apply.RandomMap(self._node, check_transform(transform, tf.RandomMap, "random_map"), chosen))

    def seed(self, seed: int) -> MapDataset[T]:
        """Seeds the operations that follow: each derives its own seed from this one and its place.

        Adding an operation before a shuffle changes the shuffle's seed; give it a seed of its own to avoid that.
        """
        return MapPipeline(reindex.Reindex(self._node, reindex.Seed(checks.seed(seed))))

    def shuffle(self, seed: int | None = None) -> MapDataset[T]:
        """All elements in an order of its own for every epoch, as a function of the index: no buffer, no list.

        Args:
          seed: in [0, 2**32); by default it follows from `ds.seed(...)` above and the place here.

        >>> list(MapDataset.range(10).shuffle(seed=42))
        [8, 6, 7, 9, 0, 5, 1, 2, 4, 3]
        """
        return MapPipeline(reindex.Reindex(self._node, reindex.Shuffle(derive_seed(self, seed, "shuffle"))))

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> MapDataset[T]:
        """Each window of `window_size` consecutive elements in an order of its own: what is near stays near.

        The last window of an epoch may be smaller; no window reaches into the next epoch.

        >>> list(MapDataset.range(8).window_shuffle(4, seed=3))
        [2, 3, 0, 1, 5, 4, 6, 7]
        """
        return MapPipeline(
            reindex.Reindex(self._node, reindex.WindowShuffle(window_size, derive_seed(self, seed, "window_shuffle")))
        )

    def zip(self, *others: MapDataset[Any]) -> MapDataset[Any]:
        """Tuples of an element of this dataset and of those at the same index of others, all of one length.

        >>> list(MapDataset.range(2).zip(MapDataset.source(["a", "b"])))
        [(0, 'a'), (1, 'b')]
        """
        return ZipMapDataset([self, *others])

    def flat_map(self, transform: tf.FlatMap) -> MapDataset[Any]:
        """The elements that each element becomes, at most `transform.max_fan_out` of them; others are missing."""
        return FlatMapMapDataset(self, transform)

    def slice(self, sl: builtins.slice | Sequence[int]) -> MapDataset[T]:
        """The elements of a slice, or at a list of positions. `ds[a:b:c]` is `ds.slice(slice(a, b, c))`.

        `ds[index::count]` is how one shard of several is taken.

        >>> list(MapDataset.range(10)[1::4]), list(MapDataset.range(10).slice([3, 3, 7]))
        ([1, 5, 9], [3, 3, 7])
        """
        length = self._node.length
        if isinstance(sl, builtins.slice):
            if sl.step == 0:
                raise ValueError(f"A slice needs a step other than zero, got {sl}.")
            return MapPipeline(reindex.Reindex(self._node, reindex.Slice(*sl.indices(length))))
        return MapPipeline(reindex.Reindex(self._node, reindex.Listed(_check_positions(sl, length))))

    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> MapDataset[T]:
        """`num_epochs` epochs, or endlessly many.

        Args:
          num_epochs: None for no end; `len(ds)` is then `sys.maxsize`.
          reseed_each_epoch: False repeats the first epoch as it is, random operations included.

        >>> list(MapDataset.range(2).repeat(2))
        [0, 1, 0, 1]
        """
        if num_epochs is not None:
            num_epochs = checks.positive(num_epochs, "num_epochs")
        if self._node.length >= checks.INFINITE:
            raise ValueError(f"Repeating already infinite dataset {self._node.call()} does nothing.")
        return MapPipeline(reindex.Reindex(self._node, reindex.Repeat(num_epochs, bool(reseed_each_epoch))))

    def column(
        self,
        function: Callable[[T], Any],
        *,
        cache: str | os.PathLike[str] | None = None,
        options: MultiprocessingOptions | None = None,
        vectorized: bool = False,
    ) -> Column:
        """One small value for each record: computed once, over all of them, for `where`, `pack`, `sample` and others.

        A column belongs to records, not to positions. It is computed on the nearest dataset above that is the same in
        every epoch, and follows its records through shuffles, slices, mixtures and maps. A missing element (None)
        is an error.

        Args:
          function: gives a number, a small array of one shape, or a flat dict of them.
          cache: a folder to save it in, under the identity of the pipeline and the function. An interrupted
            computation goes on where it was. Source data that change where a fingerprint does not look are not
            noticed: remove the files then.
          options: worker processes; by default one per core if it takes longer than a moment. The values are the
            same for any number of them.
          vectorized: the function takes a tree of arrays with a leading axis and returns one value per element.

        >>> words = MapDataset.source(["fig", "banana", "kiwi"]).seed(1).shuffle()
        >>> lengths = words.column(len)
        >>> sorted(words.where(lengths > 3))
        ['banana', 'kiwi']
        """
        checked = check_transform(function, tf.Map, "column")
        return columns.column(self._node, checked, cache=cache, options=options, vectorized=vectorized)

    def where(self, mask: Column | np.ndarray | Sequence[bool]) -> MapDataset[T]:
        """Only the elements whose `mask` is true, densely: no gaps, an exact length, random access.

        Unlike `filter` it may be followed by everything: batches, shuffles, shards, mixtures with exact shares. Before
        a shuffle it costs nothing per epoch; after one, each epoch's kept positions are worked out once.

        >>> ds = MapDataset.range(6)
        >>> list(ds.where(ds.column(lambda x: x % 3 == 0)))
        [0, 3]
        """
        return _choose(self._node, record_values.check_mask, mask, select.Where())

    def sample(
        self, weights: Column | np.ndarray | Sequence[float], seed: int | None = None, *, replacement: bool = True
    ) -> MapDataset[T]:
        """Elements in proportion to `weights`, in an order that is a function of the index.

        With replacement an epoch has as many draws as the dataset has elements, spread evenly: an element with a share
        of s of all weights comes floor(s * n) or ceil(s * n) times in every epoch of n. Without, each element with a
        weight above zero comes once per epoch, and heavy ones come early.

        >>> ds = MapDataset.range(4)
        >>> sorted(ds.sample([1, 0, 2, 1], seed=0))
        [0, 2, 2, 3]
        """
        chosen_seed = derive_seed(self, seed, "sample")
        rule = select.Draw(chosen_seed) if replacement else select.WeightedShuffle(chosen_seed)
        return _choose(self._node, record_values.check_weights, weights, rule)

    def order_by(
        self, values: Column | np.ndarray | Sequence[float], *, noise: float = 0.0, seed: int | None = None
    ) -> MapDataset[T]:
        """Each epoch sorted by `values`, small ones first: a curriculum. For large ones first, `order_by(-column)`.

        Args:
          values: a column, or one number per element.
          noise: from 0, sorted, to 1, shuffled: how much of an element's place is chance, drawn anew in every epoch.
          seed: for the noise; by default it follows from `ds.seed(...)` above and the place here.

        >>> ds = MapDataset.source(["banana", "fig", "kiwi"])
        >>> list(ds.order_by(ds.column(len)))
        ['fig', 'kiwi', 'banana']
        """
        if not 0 <= noise <= 1:
            raise ValueError(f"noise must be between 0 (sorted) and 1 (shuffled), got {noise!r}.")
        rule = select.OrderBy(float(noise), derive_seed(self, seed, "order_by") if noise else 0)
        return _choose(self._node, record_values.check_sortable, values, rule)

    def pack(
        self,
        lengths: Column | np.ndarray | Sequence[int] | Mapping[str, Any],
        length: int | Mapping[str, int],
        *,
        strategy: Literal["first_fit", "best_fit", "concat_split"] = "first_fit",
        window: int = 64,
        seed: int | None = None,
        max_sequences: int | None = None,
    ) -> PackedMapDataset:
        """Rows of fixed length made of several sequences, by random access: the plan is made once, from lengths.

        A row is a dict. For each feature it has the sequences, zeros after them, and as Grain's packers give them
        `{feature}_segment_ids`, which count sequences from 1, and `{feature}_positions`, which count within each.
        Shuffle the rows, not what is packed: a shuffled dataset has another number of rows in every epoch.

        Args:
          lengths: how long each sequence is; for several features, a column with fields or a dict of columns.
          length: how long a row is. A number, where elements are sequences themselves (the feature is then called
            "tokens"); else for each feature that is packed. Other features are left out.
          strategy: "first_fit" and "best_fit" keep sequences whole, "concat_split" cuts them where a row is full.
          window: so many rows are filled at the same time: more of them leave less room, and take longer to plan.
          seed: packs the elements in a shuffled order, the same for all epochs; without it, as they come.
          max_sequences: so many sequences go into one row, at most; not with "concat_split".

        >>> ds = MapDataset.source([np.array([1, 2, 3]), np.array([4, 5]), np.array([6])])
        >>> packed = ds.pack(ds.column(len), 4)
        >>> packed[0]["tokens"].tolist(), packed[0]["tokens_segment_ids"].tolist(), packed.efficiency
        ([1, 2, 3, 6], [1, 1, 1, 2], {'tokens': 0.75})
        """
        options = pack.checked(length, strategy, window, seed, max_sequences)
        return PackedMapDataset(
            select.under_endless_repeat(self._node, lambda inner: record_values.pack_rows(inner, lengths, options))
        )

    def bucket(
        self,
        lengths: Column | np.ndarray | Sequence[int],
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        seed: int | None = None,
        drop_remainder: bool = False,
        features: Sequence[str] | None = None,
        padding: Any = 0,
        batch_fn: Callable[[Sequence[T]], Any] | None = None,
    ) -> MapDataset[Any]:
        """Batches of elements of like lengths, filled up to the boundary of their bucket: one shape per bucket.

        The batches of all buckets come in an order that is shuffled anew in every epoch. Which elements share a batch
        follows from the order of the dataset: shuffle it before.

        Args:
          lengths: a column, or one whole number per element.
          boundaries: the largest length of each bucket.
          batch_sizes: how many elements make a batch: one number, or one per bucket.
          seed: for the order of batches; by default it follows from `ds.seed(...)` above and the place here.
          drop_remainder: leaves out a last batch of a bucket that would be smaller.
          features: what is filled up to the boundary; by default all arrays.
          padding: what they are filled up with.
          batch_fn: makes a batch of a list of elements, instead of filling up and stacking.

        >>> ds = MapDataset.source([np.ones(n, int) for n in (1, 4, 2, 3)])
        >>> sorted(batch.tolist() for batch in ds.bucket(ds.column(len), [2, 4], 2, seed=0))
        [[[1, 0], [1, 1]], [[1, 1, 1, 1], [1, 1, 1, 0]]]
        """
        bounds, sizes = bucket.checked_sizes(boundaries, batch_sizes)
        chosen = derive_seed(self, seed, "bucket")
        named = None if features is None else tuple(features)
        options = bucket.BucketOptions(bounds, sizes, chosen, bool(drop_remainder), named, padding, batch_fn)
        return MapPipeline(
            select.under_endless_repeat(self._node, lambda inner: record_values.bucket_batches(inner, lengths, options))
        )

    def explain(self, index: int) -> Explanation:
        """Of which source records element `index` is made, of which component and epoch. Nothing is read.

        `iterator.explain(steps)` tells the same of an iterator's next elements.

        >>> ds = MapDataset.mix([MapDataset.range(5), MapDataset.source(["a", "b"])]).batch(3)
        >>> print(ds.explain(1))
        element 1 is made of
          record 1 of list of 2, epoch 0, component 1
        """
        position = checks.integer(index, "index")
        if self._node.length == 0:
            raise IndexError(f"{self._node.call()} is empty: it has no element {position}.")
        return explain.explain(self._node, words.array([position]))[0]

    def to_iter_dataset(self, read_options: ReadOptions | None = None, *, allow_nones: bool = False) -> IterDataset[T]:
        """The same elements in order, as a stream.

        Args:
          read_options: threads that read ahead. By default there are none, until elements that are not known to be in
            memory take longer than 0.1 ms each: then Grain's 16 threads and 500 elements. The output is the same for
            all of them.
          allow_nones: keeps the elements that a filter dropped, as None.
        """
        return IterPipeline(streams.Elements(self._node, read_options, bool(allow_nones)))


class MapPipeline(MapDataset[T]):
    """A map node as a dataset."""

    def __init__(self, map_node: MapNode):
        self._node = map_node

    @property
    def _parents(self) -> tuple[MapDataset[Any], ...]:
        return tuple(wrap(parent) for parent in self._node.parents)

    def __len__(self) -> int:
        return self._node.length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, builtins.slice):
            return self.slice(index)
        position = words.array([checks.integer(index, "index")])
        return blocks.rows_of(_take(self._node, position))[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        return blocks.rows_of(self.take(indices))

    @property
    def _element_spec(self) -> Any:
        return self._node.element_spec()


@wrap.register(MapNode)
def _wrap_map_node(map_node: MapNode) -> MapDataset[Any]:
    return map_node.dataset if isinstance(map_node, custom.CustomMap) else MapPipeline(map_node)


class PackedMapDataset(MapPipeline[dict[str, np.ndarray]]):
    """Packed rows, as `ds.pack(...)` gives them."""

    @property
    def efficiency(self) -> dict[str, float]:
        """Which part of all cells of the rows holds a token, for each feature."""
        rows = self._node
        while not isinstance(rows, pack.PackedRows):  # repeated without end
            (rows,) = rows.parents
        return rows.efficiency


class ZipMapDataset(MapPipeline[T]):
    """Tuples of the elements of several datasets of one length.

    >>> list(ZipMapDataset([MapDataset.range(2), MapDataset.source(["a", "b"])]))
    [(0, 'a'), (1, 'b')]
    """

    def __init__(self, parents: Sequence[MapDataset[Any]]):
        if not parents:
            raise ValueError("At least one parent must be provided.")
        nodes = _nodes_of(parents, "zip")
        lengths = [part.length for part in nodes]
        if len(set(lengths)) != 1:
            raise ValueError(f"All parents must have the same length. Got lengths {lengths}.")
        super().__init__(reindex.Zip(nodes))


class FlatMapMapDataset(MapPipeline[T]):
    """The elements that each element becomes, at most `transform.max_fan_out` of them; others are missing."""

    def __init__(self, parent: MapDataset[Any], transform: tf.FlatMap):
        super().__init__(apply.FlatMap(parent._node, check_flat_map(transform)))


def _take(map_node: MapNode, indices: np.ndarray) -> Block:
    if map_node.length == 0:
        raise IndexError(f"{map_node.call()} is empty: it has no element {int(indices[0])}.")
    if identity.OWN_PART not in map_node.__dict__:
        identity.freeze(map_node)
    try:
        return map_node.take(indices)
    except RowFailed as failed:
        error = failed.error
        add_note(error, f"bushel: this was element {int(indices[failed.row])} of the dataset.")
    raise without_our_frames(error)


def _nodes_of(datasets: Sequence[MapDataset[Any]], what: str) -> tuple[MapNode, ...]:
    if not datasets:
        raise ValueError(f"{what} needs at least one dataset.")
    for dataset in datasets:
        if not isinstance(dataset, MapDataset):
            raise TypeError(f"{what} takes MapDatasets, got {name_kind(dataset)}.")
    return tuple(dataset._node for dataset in datasets)


def _choose(
    map_node: MapNode, column_of: Callable[[Any, MapNode], Column], values: Any, rule: select.Rule
) -> MapDataset[Any]:
    def build(inner: MapNode) -> MapNode:
        return select.chosen(inner, column_of(values, inner), rule)

    return MapPipeline(select.under_endless_repeat(map_node, build))


def _find_sparse_step(map_node: MapNode) -> str | None:
    """The operation that makes a node sparse, as it is called; None where every element is there."""
    if not map_node.sparse:
        return None
    for parent in map_node.parents:
        found = _find_sparse_step(parent)
        if found is not None:
            return found
    return map_node.call().partition("(")[0]


def _check_positions(positions: Any, length: int) -> np.ndarray:
    try:
        numbers = np.array([checks.integer(position, "a position") for position in positions], dtype=np.int64)
    except TypeError as error:
        raise TypeError(f"slice takes a slice or a sequence of integers; {error}") from None
    outside = numbers[(numbers < -length) | (numbers >= length)]
    if len(outside):
        raise IndexError(f"Position {outside[0]} is out of range for a dataset of length {length}.")
    return numbers % length if len(numbers) else numbers
