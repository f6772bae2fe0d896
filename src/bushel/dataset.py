"""MapDataset and IterDataset: the fluent API. Each method builds a node of the graph and wraps it."""

from __future__ import annotations

import abc
import builtins
import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import numpy as np

from bushel.base import blocks, checks
from bushel.base import transforms as tf
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, add_note, without_our_frames
from bushel.base.hooks import Stats
from bushel.base.lazy import Lazy
from bushel.base.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from bushel.engine import Executor
from bushel.graph import apply, batch, custom, elementwise, leaves, node, ordered, reindex, show, streams
from bushel.graph.node import MapNode, Node
from bushel.graph.options import WithOptions, options_of
from bushel.graph.streams import StreamNode
from bushel.index import mix as mix_index
from bushel.index import words
from bushel.iterator import DatasetIterator, PipelineIterator
from bushel.sources.given import as_source, check_source
from bushel.sources.protocol import RandomAccessDataSource
from bushel.state import identity
from bushel.state.digest import digest

if TYPE_CHECKING:
    from bushel import choosing, columns, saving
    from bushel.graph import bucket, cache, explain, mixtures, pack_plan, portions, select, stores, windows
    from bushel.graph.columns import Column
    from bushel.graph.explain import Explanation
else:
    choosing = Lazy("bushel.choosing")
    columns = Lazy("bushel.columns")
    saving = Lazy("bushel.saving")
    bucket = Lazy("bushel.graph.bucket")
    cache = Lazy("bushel.graph.cache")
    explain = Lazy("bushel.graph.explain")
    mixtures = Lazy("bushel.graph.mixtures")
    pack_plan = Lazy("bushel.graph.pack_plan")
    portions = Lazy("bushel.graph.portions")
    select = Lazy("bushel.graph.select")
    stores = Lazy("bushel.graph.stores")
    windows = Lazy("bushel.graph.windows")

T = TypeVar("T")
S = TypeVar("S")
R = TypeVar("R")
K = TypeVar("K")

L = TypeVar("L", bound=np.ndarray | np.generic | int | float)
"""What `batch` stacks into an array, as far as types can say: see the overloads of `batch`."""

_SEED_LIMIT = 1 << 32


class _Dataset:
    """What both kinds of dataset share."""

    @property
    def _node(self) -> Any:
        raise NotImplementedError

    def pipe(self, func: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """`func(self, *args, **kwargs)`, so that functions on datasets chain like methods."""
        return func(self, *args, **kwargs)

    @property
    def _default_seed(self) -> int | None:
        """The seed an operation at this place gets from `ds.seed(...)` above it."""
        return node.default_seed((self._node,), depth=0)

    @property
    def _element_spec(self) -> Any:
        raise NotImplementedError(f"The shapes of {type(self).__name__} are not known: it defines no `_element_spec`.")

    def __repr__(self) -> str:
        return show.text(self._node)

    def _repr_html_(self) -> str:
        return show.describe(self._node)._repr_html_()

    def describe(self) -> show.Description:
        """The steps of the pipeline, with lengths and shapes. Reads one element where shapes are not known otherwise.

        A notebook shows a dataset as the same table, without reading. A step that fails says so in its row.

        >>> print(MapDataset.range(10).map(lambda x: {"x": np.full(2, x)}).batch(4).describe())
        step           length  element
        range(10)      10      int64[]
        map(<lambda>)  10      {'x': int64[2]}
        batch(4)       3       {'x': int64[4, 2]}
        """
        return show.describe(self._node, _first_element)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        format: saving.Format = "array_record",
        shards: int | None = None,
        options: MultiprocessingOptions | None = None,
        overwrite: bool = False,
    ) -> list[str]:
        """Writes all elements into files in a folder; `bushel.sources.open(folder)` reads them back as they were.

        Elements are trees of dicts, lists and tuples with arrays, numbers, texts and bytes, all with the same keys and
        dtypes. A run that is stopped goes on after its last complete file when it is started again.

        Args:
          path: the folder. It is made where it is missing.
          format: of the files. "parquet" has columns that other programs read; the others hold records of bytes.
          shards: how many files; by default files of about 256 MB.
          options: worker processes that compute the elements.
          overwrite: replaces what another `save` has written there.

        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> files = MapDataset.range(10).map(lambda x: {"x": x}).save(folder.name, format="bagz", shards=2)
        >>> [os.path.basename(file) for file in files]
        ['part-00000.bagz', 'part-00001.bagz']
        >>> folder.cleanup()
        """
        node = self._node
        stream = streams.Elements(node) if isinstance(node, MapNode) else node
        return saving.save(stream, path, format=format, shards=shards, options=options, overwrite=overwrite)

    if not TYPE_CHECKING:  # a type checker should go on to report names that are not there

        def __getattr__(self, name: str) -> Any:
            """Explains a method that only the other kind of dataset has; Python asks here for missing names alone."""
            if any(name in kind.__dict__ for kind in type(self).__mro__):
                return object.__getattribute__(self, name)  # a property that failed: raises its own error again
            raise AttributeError(_explain_missing(self, name), name=name, obj=self)


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
        return _MapPipeline(leaves.Source(as_source(source)))

    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """A dataset of integers, with the arguments of the built-in `range`.

        >>> list(MapDataset.range(2, 8, 3))
        [2, 5]
        """
        first, last = (0, start) if stop is None else (start, stop)
        first, last, step = (checks.integer(v, n) for v, n in ((first, "start"), (last, "stop"), (step, "step")))
        if step == 0:
            raise ValueError("step of a range must not be zero.")
        return _MapPipeline(leaves.Range(first, last, step))

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
        nodes = _map_nodes(datasets, "mix")
        if exact or temperature is not None or when_exhausted != "stop" or mixtures.is_special(weights):
            return _MapPipeline(mixtures.mix_exactly(nodes, weights, temperature, when_exhausted))
        for number, part in enumerate(nodes):
            if part.length == 0:
                raise ValueError(
                    f"All datasets must have positive length for mixing, but the dataset at index {number} "
                    f"({part.call()}) has length 0."
                )
        checked = checks.weights(weights, len(nodes))  # type: ignore[arg-type]
        integers = (1,) * len(nodes) if checked is None else mix_index.integer_weights(checked)
        return _MapPipeline(reindex.Select(nodes, reindex.Mix(integers)))

    def select_from_datasets(
        cls, datasets: Sequence[MapDataset[T]], selection_map: tf.DatasetSelectionMap
    ) -> MapDataset[T]:
        """Elements of several datasets as `selection_map` routes them: index -> (which dataset, index in it)."""
        nodes = _map_nodes(datasets, "select_from_datasets")
        return _MapPipeline(reindex.Select(nodes, reindex.SelectByUser(selection_map)))

    def concatenate(cls, datasets: Sequence[MapDataset[T]]) -> MapDataset[T]:
        """Datasets one after the other; epoch n of the whole is epoch n of each.

        >>> list(MapDataset.concatenate([MapDataset.range(3), MapDataset.range(5, 7)]))
        [0, 1, 2, 5, 6]
        """
        nodes = _map_nodes(datasets, "concatenate")
        for part in nodes:
            if part.length >= checks.INFINITE:
                raise ValueError(f"Cannot concatenate infinite datasets. {part.call()} is infinite.")
        return _MapPipeline(reindex.Select(nodes, reindex.Concatenate()))


class MapDataset(_Dataset, Generic[T], metaclass=_MapDatasetMeta):
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
        return _taken(self._node, positions.astype(np.int64))

    def apply(self, transformations: tf.Transformation | tf.Transformations) -> MapDataset[Any]:
        """One transformation after the other, each by its kind.

        >>> MapDataset.range(3).apply([tf.Batch(2)])[0].tolist()
        [0, 1]
        """
        return _applied(self, transformations)

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
        culprit = _sparse_step(self._node)
        if culprit is not None:
            raise ValueError(
                f"`MapDataset.batch` can not follow `MapDataset.{culprit}` because it can discard elements. Convert "
                "`MapDataset` to `IterDataset` with `to_iter_dataset()` before calling `batch`."
            )
        return _MapPipeline(batch.Batch(self._node, size, bool(drop_remainder), batch_fn))

    def filter(self, transform: tf.Filter | Callable[[T], bool], *, vectorized: bool = False) -> MapDataset[T]:
        """Only the elements for which `transform` says yes; the others become None and are left out in iteration.

        The length does not change, since it is not known without reading. A `vectorized` filter gets a tree of
        arrays with a leading axis and returns one bool per element.

        >>> ds = MapDataset.range(5).filter(lambda x: x % 2 == 0)
        >>> ds[1], list(ds)
        (None, [0, 2, 4])
        """
        return _MapPipeline(apply.Filter(self._node, _checked(transform, tf.Filter, "filter"), vectorized))

    def map(self, transform: tf.Map | Callable[[T], S], *, vectorized: bool = False) -> MapDataset[S]:
        """`transform` of each element.

        A `vectorized` function gets many elements at once, as a tree of arrays with a leading axis, and returns
        one with as many. How many there are is not its business: its result for an element must not depend on that.

        >>> list(MapDataset.range(3).map(lambda x: x + 10))
        [10, 11, 12]
        >>> list(MapDataset.range(3).map(lambda xs: xs * 2, vectorized=True))
        [np.int64(0), np.int64(2), np.int64(4)]
        """
        return _MapPipeline(apply.Map(self._node, _checked(transform, tf.Map, "map"), vectorized))

    def map_with_index(self, transform: tf.MapWithIndex | Callable[[int, T], S]) -> MapDataset[S]:
        """`transform(index, element)`. The index counts on through epochs.

        >>> list(MapDataset.source(["a", "b"]).map_with_index(lambda i, x: f"{x}{i}"))
        ['a0', 'b1']
        """
        return _MapPipeline(apply.MapWithIndex(self._node, _checked(transform, tf.MapWithIndex, "map_with_index")))

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
        chosen = _random_map_seed(self, seed)
        return _MapPipeline(apply.RandomMap(self._node, _checked(transform, tf.RandomMap, "random_map"), chosen))

    def seed(self, seed: int) -> MapDataset[T]:
        """Seeds the operations that follow: each derives its own seed from this one and its place.

        Adding an operation before a shuffle changes the shuffle's seed; give it a seed of its own to avoid that.
        """
        return _MapPipeline(reindex.Reindex(self._node, reindex.Seed(checks.seed(seed))))

    def shuffle(self, seed: int | None = None) -> MapDataset[T]:
        """All elements in an order of its own for every epoch, as a function of the index: no buffer, no list.

        Args:
          seed: in [0, 2**32); by default it follows from `ds.seed(...)` above and the place here.

        >>> list(MapDataset.range(10).shuffle(seed=42))
        [8, 6, 7, 9, 0, 5, 1, 2, 4, 3]
        """
        return _MapPipeline(reindex.Reindex(self._node, reindex.Shuffle(_needed_seed(self, seed, "shuffle"))))

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> MapDataset[T]:
        """Each window of `window_size` consecutive elements in an order of its own: what is near stays near.

        The last window of an epoch may be smaller; no window reaches into the next epoch.

        >>> list(MapDataset.range(8).window_shuffle(4, seed=3))
        [2, 3, 0, 1, 5, 4, 6, 7]
        """
        return _MapPipeline(
            reindex.Reindex(self._node, reindex.WindowShuffle(window_size, _needed_seed(self, seed, "window_shuffle")))
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
            return _MapPipeline(reindex.Reindex(self._node, reindex.Slice(*sl.indices(length))))
        return _MapPipeline(reindex.Reindex(self._node, reindex.Listed(_positions(sl, length))))

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
        return _MapPipeline(reindex.Reindex(self._node, reindex.Repeat(num_epochs, bool(reseed_each_epoch))))

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
        checked = _checked(function, tf.Map, "column")
        return columns.column(self._node, checked, cache=cache, options=options, vectorized=vectorized)

    def where(self, mask: Column | np.ndarray | Sequence[bool]) -> MapDataset[T]:
        """Only the elements whose `mask` is true, densely: no gaps, an exact length, random access.

        Unlike `filter` it may be followed by everything: batches, shuffles, shards, mixtures with exact shares. Before
        a shuffle it costs nothing per epoch; after one, each epoch's kept positions are worked out once.

        >>> ds = MapDataset.range(6)
        >>> list(ds.where(ds.column(lambda x: x % 3 == 0)))
        [0, 3]
        """
        return _chosen(self._node, choosing.mask, mask, select.Where())

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
        chosen_seed = _needed_seed(self, seed, "sample")
        rule = select.Draw(chosen_seed) if replacement else select.WeightedShuffle(chosen_seed)
        return _chosen(self._node, choosing.weights, weights, rule)

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
        rule = select.OrderBy(float(noise), _needed_seed(self, seed, "order_by") if noise else 0)
        return _chosen(self._node, choosing.sortable, values, rule)

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
        options = pack_plan.check_options(length, strategy, window, seed, max_sequences)
        return PackedMapDataset(
            select.under_endless_repeat(self._node, lambda inner: choosing.packed(inner, lengths, options))
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
        bounds, sizes = bucket.check_sizes(boundaries, batch_sizes)
        chosen = _needed_seed(self, seed, "bucket")
        named = None if features is None else tuple(features)
        options = bucket.BucketOptions(bounds, sizes, chosen, bool(drop_remainder), named, padding, batch_fn)
        return _MapPipeline(
            select.under_endless_repeat(self._node, lambda inner: choosing.bucketed(inner, lengths, options))
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
        return _IterPipeline(streams.Elements(self._node, read_options, bool(allow_nones)))


def _cache_key(node: StreamNode, functions: str) -> str:
    return digest(identity.identity(node), identity.PYTHON, functions)


class _MapPipeline(MapDataset[T]):
    """A map node as a dataset."""

    def __init__(self, map_node: MapNode):
        self._node = map_node
        if map_node.parents:  # a source's data are looked at when an iterator is made, not before
            identity.own_part(map_node)

    @property
    def parents(self) -> tuple[MapDataset[Any], ...]:
        return tuple(_as_map_dataset(parent) for parent in self._node.parents)

    @property
    def _parents(self) -> tuple[MapDataset[Any], ...]:
        return self.parents

    def __len__(self) -> int:
        return self._node.length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, builtins.slice):
            return self.slice(index)
        position = words.array([checks.integer(index, "index")])
        return blocks.rows_of(_taken(self._node, position))[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        return blocks.rows_of(self.take(indices))

    @property
    def _element_spec(self) -> Any:
        return self._node.element_spec()


class _IterDatasetMeta(abc.ABCMeta):
    """Ways to begin an IterDataset."""

    def mix(
        cls,
        datasets: Sequence[IterDataset[T]] | Mapping[str, IterDataset[T]],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> IterDataset[T]:
        """Elements of several streams in proportion to `weights`; it ends when the first of them does.

        With a mapping, a state restores by key: weights and datasets may change between runs.

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
        parts = _stream_nodes(datasets, "mix")
        if not parts:
            raise ValueError("IterDataset.mix needs at least one dataset.")
        checked = checks.weights(weights, len(parts))  # type: ignore[arg-type]
        integers = mix_index.integer_weights(checked or [1.0] * len(parts))
        return _IterPipeline(ordered.MixStream(parts, integers, keys))


class IterDataset(_Dataset, Iterable[T], metaclass=_IterDatasetMeta):
    """A dataset that is read in order. Its iterators can be saved and restored.

    To write one of your own, subclass it and implement `__iter__`, which returns a `DatasetIterator`.

    >>> ds = MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 3).batch(2)
    >>> [batch.tolist() for batch in ds]
    [[1, 2], [4, 5]]
    """

    def __init__(self, parents: Any = ()):
        self._parents = (parents,) if isinstance(parents, (MapDataset, IterDataset)) else tuple(parents)

    @functools.cached_property
    def _node(self) -> StreamNode:  # type: ignore[override]
        return custom.CustomStream(self)

    @property
    def parents(self) -> tuple[MapDataset[Any] | IterDataset[Any], ...]:
        """The datasets that this one draws from."""
        return tuple(getattr(self, "_parents", ()))

    @property
    def _parent(self) -> Any:
        (parent,) = self.parents
        return parent

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T]:
        """Returns an iterator at the start."""

    def __len__(self) -> int:
        """Returns how many elements an iterator gives, where that is known without reading; a TypeError elsewhere.

        The number holds if no function returns None in place of an element. An endless stream has `sys.maxsize`.

        >>> len(MapDataset.range(10).to_iter_dataset().map(str).batch(4))
        3
        """
        length = self._node.length
        if length is None or options_of(self._node).on_error == "skip":
            raise TypeError(
                f"The length of this IterDataset is not known without reading it: {self!r} may drop elements, or is "
                "read until it ends. On a MapDataset, `where` and `pack` give data sets with a length."
            )
        return length

    def __bool__(self) -> bool:
        return True  # whatever its length: `if ds:` asks whether there is a dataset

    def apply(self, transformations: tf.Transformation | tf.Transformations) -> IterDataset[Any]:
        """One transformation after the other, each by its kind."""
        return _applied(self, transformations)

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: Callable[[Sequence[T]], S]
    ) -> IterDataset[S]: ...

    @overload
    def batch(
        self: IterDataset[L], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> IterDataset[np.ndarray]: ...

    @overload
    def batch(
        self: IterDataset[dict[K, L]], batch_size: int, *, drop_remainder: bool = False, batch_fn: None = None
    ) -> IterDataset[dict[K, np.ndarray]]: ...

    @overload
    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: Callable[[Sequence[T]], Any] | None = None
    ) -> IterDataset[Any]: ...

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[T]], Any] | None = None,
    ) -> IterDataset[Any]:
        """Batches of consecutive elements, their leaves stacked along a new first axis.

        Args:
          batch_size: how many elements make a batch.
          drop_remainder: leaves out a last batch that would be smaller.
          batch_fn: makes a batch of a list of elements, instead of stacking.
        """
        size = checks.positive(batch_size, "batch_size")
        return _IterPipeline(ordered.BatchStream(self._node, size, bool(drop_remainder), batch_fn))

    def filter(self, transform: tf.Filter | Callable[[T], bool], *, vectorized: bool = False) -> IterDataset[T]:
        """Only the elements for which `transform` says yes. Warns if it drops nearly everything."""
        return _IterPipeline(elementwise.FilterStream(self._node, _checked(transform, tf.Filter, "filter"), vectorized))

    def map(self, transform: tf.Map | Callable[[T], S], *, vectorized: bool = False) -> IterDataset[S]:
        """`transform` of each element; see `MapDataset.map`."""
        return _IterPipeline(elementwise.MapStream(self._node, _checked(transform, tf.Map, "map"), vectorized))

    def map_with_index(self, transform: tf.MapWithIndex | Callable[[int, T], S]) -> IterDataset[S]:
        """`transform(n, element)`, where n is the number of elements before it.

        >>> list(MapDataset.range(4, 6).to_iter_dataset().map_with_index(lambda i, x: (i, x)))
        [(0, 4), (1, 5)]
        """
        checked = _checked(transform, tf.MapWithIndex, "map_with_index")
        return _IterPipeline(elementwise.MapWithIndexStream(self._node, checked))

    def random_map(
        self, transform: tf.RandomMap | Callable[[T, np.random.Generator], S], *, seed: int | None = None
    ) -> IterDataset[S]:
        """`transform(element, rng)`, with a generator that belongs to the number of elements before it.

        Args:
          transform: a function of an element and a generator, or a RandomMap.
          seed: for this operation alone; by default it follows from `ds.seed(...)` above and the place here.
        """
        chosen = _random_map_seed(self, seed)
        checked = _checked(transform, tf.RandomMap, "random_map")
        return _IterPipeline(elementwise.RandomMapStream(self._node, checked, chosen))

    def flat_map(self, transform: tf.FlatMap | Callable[[T], Iterable[S]]) -> IterDataset[S]:
        """The elements that each element becomes, one after the other.

        >>> list(MapDataset.range(4).to_iter_dataset().flat_map(lambda x: [x] * x))
        [1, 2, 2, 3, 3, 3]
        """
        return _IterPipeline(ordered.FlatMapStream(self._node, _checked(transform, tf.FlatMap, "flat_map")))

    def limit(self, count: int) -> IterDataset[T]:
        """The first `count` elements.

        >>> list(MapDataset.range(5).to_iter_dataset().limit(2))
        [0, 1]
        """
        return _IterPipeline(portions.Limit(self._node, count))

    def repeat(self, num_epochs: int | None = None) -> IterDataset[T]:
        """The same elements `num_epochs` times, or endlessly. All epochs are alike: nothing is shuffled anew.

        >>> list(MapDataset.range(2).to_iter_dataset().repeat(2))
        [0, 1, 0, 1]
        """
        return _IterPipeline(portions.RepeatStream(self._node, num_epochs))

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> IterDataset[T]:
        """Batches of another size, cut from those that come.

        >>> [batch.tolist() for batch in MapDataset.range(6).batch(4).to_iter_dataset().rebatch(3)]
        [[0, 1, 2], [3, 4, 5]]
        """
        return _IterPipeline(portions.Rebatch(self._node, batch_size, bool(drop_remainder)))

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> IterDataset[T]:
        """Each window of `window_size` consecutive elements in an order of its own.

        A shuffle of a MapDataset needs no window and is better; this is for what can only be read in order.

        >>> list(MapDataset.range(8).to_iter_dataset().window_shuffle(4, seed=3))
        [1, 0, 3, 2, 7, 6, 4, 5]
        """
        return _IterPipeline(
            windows.WindowShuffleStream(self._node, window_size, _needed_seed(self, seed, "window_shuffle"))
        )

    def zip(self, *others: IterDataset[Any], strict: bool = True) -> IterDataset[Any]:
        """Tuples of an element of this dataset and of those at the same place in others.

        Args:
          others: read along with this one.
          strict: False ends with the shortest; otherwise different lengths are an error.

        >>> ds = MapDataset.range(2).to_iter_dataset()
        >>> list(ds.zip(ds.map(str)))
        [(0, '0'), (1, '1')]
        """
        return _IterPipeline(ordered.ZipStream((self._node, *_stream_nodes(others, "zip")), bool(strict)))

    def cache(self, folder: str | os.PathLike[str] | None = None) -> IterDataset[T]:
        """The same elements, which are computed once and then kept; for datasets that have an end.

        The first iterator that reads to the end fills the cache, and all later ones read from it. It belongs to this
        very pipeline: with another function or other data above, it is filled anew. Place it before what should be
        different in each epoch.

        Args:
          folder: keeps elements in files there, pickled, for other processes and later runs; None keeps them in
            memory. Use only folders that you trust: loading a pickle can run code.

        >>> calls = []
        >>> ds = MapDataset.range(3).to_iter_dataset().map(lambda x: calls.append(x) or x * 10).cache()
        >>> list(ds), list(ds), len(calls)
        ([0, 10, 20], [0, 10, 20], 3)
        """
        parent = self._node
        store = stores.Memory() if folder is None else stores.Files(folder)
        # Taken now: a function may remember something while it runs.
        functions = "" if folder is None else identity.functions_digest(parent)
        key = functools.partial(_cache_key, parent, functions)
        return _IterPipeline(cache.Cache(parent, store, key))

    def mp_prefetch(
        self,
        options: MultiprocessingOptions | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
    ) -> IterDataset[T]:
        """The same elements in the same order, computed ahead by worker processes.

        The number of workers never changes the output, and a state of one number restores with any other. Workers
        need no `if __name__ == "__main__"`, see no accelerator, and may die: what they had is computed again.

        Args:
          options: how many workers, within which bounds; by default as many as bring something, up to one per core.
          worker_init_fn: called as worker_init_fn(worker index, worker count) in each worker before it begins; the
            count is the largest there may be.
          sequential_slice: accepted for Grain's sake; it changes nothing.

        >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
        >>> with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) as it:
        ...     list(it)
        [0, 1, 4, 9]
        """
        del sequential_slice
        chosen = MultiprocessingOptions(num_workers=None) if options is None else options
        return _IterPipeline(streams.Ahead(self._node, chosen, False, worker_init_fn))

    def prefetch(self, multiprocessing_options: MultiprocessingOptions | int) -> IterDataset[T]:
        """The same elements, so many of them computed ahead by a thread: `prefetch(2)`.

        With MultiprocessingOptions it is `mp_prefetch` under Grain's older name.

        >>> list(MapDataset.range(3).to_iter_dataset().prefetch(2))
        [0, 1, 2]
        """
        if not isinstance(multiprocessing_options, MultiprocessingOptions):
            return ThreadPrefetchIterDataset(self, prefetch_buffer_size=multiprocessing_options)
        warnings.warn("Please use `mp_prefetch` instead.", DeprecationWarning, stacklevel=2)
        return self.mp_prefetch(multiprocessing_options)

    def seed(self, seed: int) -> IterDataset[T]:
        """Seeds the operations that follow: each derives its own seed from this one and its place."""
        return _IterPipeline(streams.SeedStream(self._node, checks.seed(seed)))

    def iterate_on(self, executor: Executor) -> DatasetIterator[T]:
        """An iterator whose blocks are computed by an executor of your own: see `bushel.engine.Executor`."""
        way_out = "pass an instance of a class of yours that has submit, wait, forget and close"
        checks.instance(executor, Executor, "executor of iterate_on", way_out)
        return PipelineIterator(self._node, executor=executor)

    def with_options(self, **options: Any) -> IterDataset[T]:
        """The same stream with options, which hold for the whole pipeline: see `bushel.experimental.DatasetOptions`.

        >>> ds = MapDataset.range(5).map(lambda x: 6 // (x - 2)).to_iter_dataset()
        >>> list(ds.with_options(on_error="skip", skip_limit=1))
        [-3, -6, 6, 3]
        """
        return WithOptionsIterDataset(self, DatasetOptions(**options))


class _IterPipeline(IterDataset[T]):
    """A stream node as a dataset."""

    def __init__(self, stream_node: StreamNode):
        self._node = stream_node
        identity.own_part(stream_node)

    @property
    def parents(self) -> tuple[MapDataset[Any] | IterDataset[Any], ...]:
        return tuple(_as_dataset(parent) for parent in self._node.parents)

    @property
    def _parents(self) -> tuple[Any, ...]:
        return self.parents

    def __iter__(self) -> PipelineIterator[T]:
        return PipelineIterator(self._node)

    @property
    def _element_spec(self) -> Any:
        return self._node.element_spec()


class PackedMapDataset(_MapPipeline[dict[str, np.ndarray]]):
    """Packed rows, as `ds.pack(...)` gives them."""

    @property
    def efficiency(self) -> dict[str, float]:
        """Which part of all cells of the rows holds a token, for each feature."""
        rows = self._node
        while not isinstance(rows, pack_plan.PackedRows):  # repeated without end
            (rows,) = rows.parents
        return rows.efficiency


class ZipMapDataset(_MapPipeline[T]):
    """Tuples of the elements of several datasets of one length.

    >>> list(ZipMapDataset([MapDataset.range(2), MapDataset.source(["a", "b"])]))
    [(0, 'a'), (1, 'b')]
    """

    def __init__(self, parents: Sequence[MapDataset[Any]]):
        if not parents:
            raise ValueError("At least one parent must be provided.")
        nodes = _map_nodes(parents, "zip")
        lengths = [part.length for part in nodes]
        if len(set(lengths)) != 1:
            raise ValueError(f"All parents must have the same length. Got lengths {lengths}.")
        super().__init__(reindex.Zip(nodes))


class FlatMapMapDataset(_MapPipeline[T]):
    """The elements that each element becomes, at most `transform.max_fan_out` of them; others are missing."""

    def __init__(self, parent: MapDataset[Any], transform: tf.FlatMap):
        super().__init__(apply.FlatMap(parent._node, _flat_map(transform)))


class FlatMapIterDataset(_IterPipeline[T]):
    """The elements that each element of a stream becomes, one after the other."""

    def __init__(self, parent: IterDataset[Any], transform: tf.FlatMap):
        super().__init__(ordered.FlatMapStream(parent._node, _flat_map(transform)))


class ThreadPrefetchIterDataset(_IterPipeline[T]):
    """The same elements, pulled ahead by one thread: for any stream, a user's own as well.

    Args:
      parent: the stream.
      prefetch_buffer_size: how many elements may be held ready; 0 pulls none ahead.

    >>> ds = MapDataset.range(4).to_iter_dataset()
    >>> list(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2))
    [0, 1, 2, 3]
    """

    def __init__(self, parent: IterDataset[T], *, prefetch_buffer_size: int):
        size = checks.not_negative(prefetch_buffer_size, "prefetch_buffer_size")
        super().__init__(streams.Pulled(parent._node, size))


class WithOptionsIterDataset(_IterPipeline[T]):
    """The same stream with options, which hold for the whole pipeline: for what comes before and what comes after.

    Given several times, they are merged: the last choice of each option holds.

    >>> ds = MapDataset.range(10).to_iter_dataset().filter(lambda x: x > 7)
    >>> list(WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.99)))
    [8, 9]
    """

    def __init__(self, parent: IterDataset[T], options: DatasetOptions):
        if not isinstance(parent, IterDataset):
            raise TypeError(f"WithOptionsIterDataset takes an IterDataset, got {_kind(parent)}.")
        if not isinstance(options, DatasetOptions):
            raise TypeError(f"WithOptionsIterDataset takes DatasetOptions, got {options!r}.")
        super().__init__(WithOptions(parent._node, options))
        self.options = options


def multithread_prefetch(
    ds: IterDataset[T], num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset[T]:
    """The same elements in the same order, computed ahead by threads: for work that releases the GIL.

    >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
    >>> list(multithread_prefetch(ds, num_threads=2, buffer_size=4))
    [0, 1, 4, 9]
    """
    del sequential_slice
    checks.instance(ds, IterDataset, "The dataset of multithread_prefetch", "use to_iter_dataset() before")
    threads = checks.not_negative(num_threads, "num_threads")
    size = checks.not_negative(buffer_size, "buffer_size")
    options = MultiprocessingOptions(num_workers=threads, per_worker_buffer_size=max(1, size))
    return _IterPipeline(streams.Ahead(ds._node, options, True))


def _taken(map_node: MapNode, indices: np.ndarray) -> Block:
    if map_node.length == 0:
        raise IndexError(f"{map_node.call()} is empty: it has no element {int(indices[0])}.")
    try:
        return map_node.take(indices)
    except RowFailed as failed:
        error = failed.error
        add_note(error, f"bushel: this was element {int(indices[failed.row])} of the dataset.")
    raise without_our_frames(error)


def _first_element(any_node: Node) -> Any:
    """The first element after a step of a pipeline that is not missing; None where there is none."""
    stream = streams.Elements(any_node) if isinstance(any_node, MapNode) else any_node
    assert isinstance(stream, StreamNode)
    # A node of its own, so that looking at an element is no pass of the user's: see graph/passes.py.
    with PipelineIterator(streams.Ahead(stream, MultiprocessingOptions())) as elements:
        return next(elements, None)


def _map_nodes(datasets: Sequence[MapDataset[Any]], what: str) -> tuple[MapNode, ...]:
    if not datasets:
        raise ValueError(f"{what} needs at least one dataset.")
    for dataset in datasets:
        if not isinstance(dataset, MapDataset):
            raise TypeError(f"{what} takes MapDatasets, got {_kind(dataset)}.")
    return tuple(dataset._node for dataset in datasets)


def _stream_nodes(datasets: Sequence[Any], what: str) -> tuple[StreamNode, ...]:
    for dataset in datasets:
        if not isinstance(dataset, IterDataset):
            raise TypeError(f"IterDataset.{what} takes IterDatasets, got {_kind(dataset)}.")
    return tuple(dataset._node for dataset in datasets)


def _kind(dataset: Any) -> str:
    """What a user would call it: private classes go by the public one they are."""
    public = next((kind for kind in (MapDataset, IterDataset) if isinstance(dataset, kind)), type(dataset))
    return f"{'an' if public is IterDataset else 'a'} {public.__name__}"


def _explain_missing(dataset: _Dataset, name: str) -> str:
    """The text of an AttributeError: which kind of dataset has the method, and how to get there."""
    is_map = isinstance(dataset, MapDataset)
    other = IterDataset if is_map else MapDataset
    if name.startswith("_") or not hasattr(other, name):
        return f"{_kind(dataset).partition(' ')[2]!r} object has no attribute {name!r}"
    if is_map:
        return f"A MapDataset has no `{name}`, an IterDataset has: write `ds.to_iter_dataset().{name}(...)`."
    instead = " To shuffle within windows of a stream, use `window_shuffle`." if name == "shuffle" else ""
    return f"An IterDataset has no `{name}`, a MapDataset has: call it before `to_iter_dataset()`.{instead}"


def _as_map_dataset(map_node: MapNode) -> MapDataset[Any]:
    return map_node.dataset if isinstance(map_node, custom.CustomMap) else _MapPipeline(map_node)


def _as_dataset(any_node: Node) -> MapDataset[Any] | IterDataset[Any]:
    if isinstance(any_node, MapNode):
        return _as_map_dataset(any_node)
    assert isinstance(any_node, StreamNode)
    return any_node.dataset if isinstance(any_node, custom.CustomStream) else _IterPipeline(any_node)


def _checked(transform: Any, kind: type, name: str) -> Any:
    tf.method(transform, kind, name)  # refuses what cannot be called
    return transform


def _flat_map(transform: Any) -> tf.FlatMap:
    if not isinstance(transform, tf.FlatMap):
        raise TypeError(
            f"`flat_map` takes a FlatMap transformation, which says its max_fan_out; "
            f"got {transform!r} of type {type(transform).__name__}."
        )
    return transform


def _random_map_seed(dataset: _Dataset, seed: int | None) -> int:
    chosen = node.default_seed((dataset._node,)) if seed is None else seed
    if chosen is None:
        raise ValueError(
            "`random_map` requires a seed. Please either provide it with `ds.seed(seed)` before any random "
            "transformations or pass it directly with `ds.random_map(transform, seed=seed)`."
        )
    return checks.seed(chosen)


def _needed_seed(dataset: _Dataset, seed: int | None, what: str) -> int:
    chosen = node.default_seed((dataset._node,)) if seed is None else seed
    if chosen is None:
        raise ValueError(f"`{what}` requires a seed. Please provide it with `ds.seed(seed)` or `{what}(seed=...)`.")
    return checks.seed(chosen, below=_SEED_LIMIT)


def _chosen(
    map_node: MapNode, column_of: Callable[[Any, MapNode], Column], values: Any, rule: select.Rule
) -> MapDataset[Any]:
    def build(inner: MapNode) -> MapNode:
        return select.choose(inner, column_of(values, inner), rule)

    return _MapPipeline(select.under_endless_repeat(map_node, build))


def _sparse_step(map_node: MapNode) -> str | None:
    """The operation that makes a node sparse, as it is called; None where every element is there."""
    if not map_node.sparse:
        return None
    for parent in map_node.parents:
        found = _sparse_step(parent)
        if found is not None:
            return found
    return map_node.call().partition("(")[0]


def _positions(positions: Any, length: int) -> np.ndarray:
    try:
        numbers = np.array([checks.integer(position, "a position") for position in positions], dtype=np.int64)
    except TypeError as error:
        raise TypeError(f"slice takes a slice or a sequence of integers; {error}") from None
    outside = numbers[(numbers < -length) | (numbers >= length)]
    if len(outside):
        raise IndexError(f"Position {outside[0]} is out of range for a dataset of length {length}.")
    return numbers % length if len(numbers) else numbers


def _applied(dataset: Any, transformations: Any) -> Any:
    if not isinstance(transformations, Sequence):
        transformations = (transformations,)
    for transform in transformations:
        match transform:
            case tf.Batch():
                dataset = dataset.batch(
                    transform.batch_size, drop_remainder=transform.drop_remainder, batch_fn=transform.batch_fn
                )
            case tf.Map():
                dataset = dataset.map(transform)
            case tf.RandomMap():
                dataset = dataset.random_map(transform)
            case tf.MapWithIndex():
                dataset = dataset.map_with_index(transform)
            case tf.FlatMap():
                if isinstance(dataset, MapDataset):
                    dataset = FlatMapMapDataset(dataset, transform)
                else:
                    dataset = FlatMapIterDataset(dataset, transform)
            case tf.Filter():
                dataset = dataset.filter(transform)
            case _:
                raise NotImplementedError(f"Transformation type: {transform} is not supported.")
    return dataset


def get_element_spec(ds: MapDataset[Any] | IterDataset[Any]) -> Any:
    """Shapes and dtypes of a dataset's elements, without reading any.

    >>> get_element_spec(MapDataset.range(5).batch(2, drop_remainder=True))
    ShapeDtypeStruct(shape=(2,), dtype=<class 'numpy.int64'>)
    """
    return ds._element_spec


def apply_transformations(ds: Any, transformations: Any) -> Any:
    """`ds.apply(transformations)`, under Grain's older name.

    >>> list(apply_transformations(MapDataset.range(4), [tf.Batch(2)]))
    [array([0, 1]), array([2, 3])]
    """
    return _applied(ds, transformations)
