"""What both kinds of dataset share: printing, saving, transformations given as objects, and seeds.

The kinds themselves are in `map_dataset.py` and `iter_dataset.py`; both import this module, and it imports neither.
"""

from __future__ import annotations

import abc
import copy
import functools
import inspect
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import numpy as np

from bushel._src.base import checks, code_inspection, hints, trees
from bushel._src.base import transforms as tf
from bushel._src.base.blocks import Block
from bushel._src.base.errors import RowFailed, add_note, remove_library_frames
from bushel._src.base.late_imports import Lazy
from bushel._src.base.options import MultiprocessingOptions, WorkerOptions, find_job_options, read_workers
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress, Written
from bushel._src.base.state_names import in_states, overridable
from bushel._src.datasets.iterator import DatasetIterator, PipelineIterator
from bushel._src.graph import graph_text, node, streams
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.streams import StreamNode
from bushel._src.state import identity

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from bushel._src.datasets import saving
    from bushel._src.display import show_element as shown
    from bushel._src.sources import element_tables
else:
    element_tables = Lazy("bushel._src.sources.element_tables")
    shown = Lazy("bushel._src.display.show_element")
    saving = Lazy("bushel._src.datasets.saving")

R = TypeVar("R")
P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)

logger = logging.getLogger("bushel")

_SEED_LIMIT = 1 << 32


@public("bushel")
@in_states("Dataset", {"_parents": None, "_node": None})
class Dataset(abc.ABC, Generic[T_co]):
    """What both kinds of dataset are: for functions that take a MapDataset or an IterDataset.

    To write a dataset of your own, subclass one of these two.

    >>> import bushel
    >>> def count_words(texts: bushel.Dataset[str]) -> int:
    ...     return sum(len(text.split()) for text in texts)
    >>> ds = bushel.MapDataset.source(["a b", "c"])
    >>> count_words(ds), count_words(ds.to_iter_dataset())
    (3, 3)
    """

    # MapDataset and IterDataset are its only direct subclasses, which `name_kind` relies on.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Dataset in cls.__bases__ and cls.__module__.partition(".")[0] != "bushel":
            raise TypeError(
                f"{cls.__name__} is neither kind of dataset. Write `class {cls.__name__}(bushel.MapDataset)` for "
                f"elements by index, `class {cls.__name__}(bushel.IterDataset)` for a stream. Records with `__len__` "
                "and `__getitem__` need no subclass: `bushel.MapDataset.source(records)`."
            )

    _is_no_data = True  # an element may be a dataset, as for an interleave: see base/private_elements.py

    @property
    @abc.abstractmethod
    def _node(self) -> Any:
        """The node of the graph that this dataset stands for."""

    @staticmethod
    @abc.abstractmethod
    def _explain_method_of_other_kind(name: str) -> str:
        """Return the text of an AttributeError for a method that only the other kind of dataset has."""

    def pipe(self, func: Callable[Concatenate[Self, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return `func(self, *args, **kwargs)`, so that functions on datasets chain like methods.

        >>> from bushel import MapDataset
        >>> def every_other(ds, start=0):
        ...     return ds[start::2]
        >>> list(MapDataset.range(6).pipe(every_other, start=1))
        [1, 3, 5]
        """
        return func(self, *args, **kwargs)

    @property
    def _default_seed(self) -> int | None:
        """The seed that an operation at this place gets from an earlier `ds.seed(...)`."""
        return node.default_seed((self._node,), depth=0)

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T_co]:
        """Return an iterator at the start."""

    def element_spec(self) -> Any:
        """Return shapes and dtypes of the elements, as a tree of `ShapeDtypeStruct` objects. Nothing is read.

        An operation with a function of yours raises NotImplementedError, unless its transformation has a method
        `output_spec(input_spec)`; `describe` reads an element where shapes are not known.

        >>> from bushel import MapDataset
        >>> MapDataset.range(5).batch(2, drop_remainder=True).element_spec()
        ShapeDtypeStruct(shape=(2,), dtype=<class 'numpy.int64'>)
        """
        return self._element_spec

    @property
    @overridable
    def _element_spec(self) -> Any:
        raise NotImplementedError(f"The shapes of {type(self).__name__} are not known: it defines no `_element_spec`.")

    def __repr__(self) -> str:
        return graph_text.text(self._node)

    def _repr_html_(self) -> str:
        return graph_text.describe(self._node)._repr_html_()

    def describe(self) -> graph_text.Description:
        """Return the steps of the pipeline with lengths and shapes.

        It reads one element if shapes are not known otherwise.

        A notebook shows a dataset as the same table, without reading. If a step fails, its row shows the error.

        >>> import numpy as np
        >>> from bushel import MapDataset
        >>> print(MapDataset.range(10).map(lambda x: {"x": np.full(2, x)}).batch(4).describe())
        step           length  element
        range(10)      10      int64[]
        map(<lambda>)  10      {'x': int64[2]}
        batch(4)       3       {'x': int64[4, 2]}
        """
        return graph_text.describe(self._node, _read_first_element)

    def show(self, index: int = 0, *, tokenizer: Any = None) -> shown.ShownElement:
        """Return one element to look at: a notebook draws it, a terminal lists its parts.

        `bushel.view(ds)` shows them all.

        Args:
          index: which element. A stream that cannot seek is read from its beginning up to it.
          tokenizer: an object with `decode(ids)`, for rows of tokens.

        >>> from bushel import MapDataset
        >>> MapDataset.range(10).map(lambda x: {"x": x, "square": x * x}).show(3)
        element 3
        part    type  value
        x       int   3
        square  int   9
        """
        return shown.ShownElement(_read_element(self._node, checks.integer(index, "index")), index, tokenizer)

    @hints.renamed_arguments(options="workers")
    def save(
        self,
        path: str | os.PathLike[str],
        *,
        format: saving.Format = "bag",
        shards: int | None = None,
        workers: int | WorkerOptions | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        trust_source: bool = False,
    ) -> Written:
        """Write all elements into files in a folder. `bushel.sources.open(folder)` reads the same elements back.

        Elements are trees of dicts, lists and tuples with arrays, numbers, texts and bytes, all with the same keys and
        dtypes. If the run is interrupted, the next one continues after the last complete file.

        Args:
          path: the folder, which is created if it does not exist, or an address in a store ("s3://bucket/folder").
          format: the format of the files. "bag", records without compression, needs no other package. "bagz" and
            "array_record" are compressed. Other programs can read the columns of "parquet". "rlds" is for episodes,
            dicts with "steps", and makes a folder that TFDS reads.
          shards: how many files; by default files of about 256 MB.
          workers: how many worker processes compute the elements, or their options; by default this process does.
          overwrite: replaces the files of an earlier `save`.
          storage_options: of the store, such as its region.
          trust_source: says that the data never change, where the source cannot tell. A source of your own that reads
            files and has no `fingerprint()` is an error otherwise.

        >>> import tempfile
        >>> from bushel import MapDataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> written = MapDataset.range(10).map(lambda x: {"x": x}).save(folder.name, shards=2)
        >>> [os.path.basename(file) for file in written.files]
        ['part-00000.bag', 'part-00001.bag']
        >>> folder.cleanup()
        """
        node = self._node
        stream = streams.Elements(node) if isinstance(node, MapNode) else node
        return saving.save(
            stream,
            path,
            format=format,
            shards=shards,
            workers=workers,
            overwrite=overwrite,
            storage_options=storage_options,
            trust_source=trust_source,
        )

    def to_arrow(self, *, workers: int | WorkerOptions | None = None) -> pyarrow.Table:
        """Return all elements as a table of pyarrow, in memory. `MapDataset.source(table)` reads it.

        A dict has a column for each key, a nested one `a.b` for each value. Arrays are lists. Any other element is the
        value of a column `value`. A table of the first elements is `ds.take(1000).to_arrow()`.

        Args:
          workers: how many worker processes compute the elements, or their options; by default this process does.

        >>> from bushel import MapDataset
        >>> table = MapDataset.source(["a", "bcd"]).map(lambda text: {"text": text, "length": len(text)}).to_arrow()
        >>> table.column_names, table["length"].to_pylist()
        (['text', 'length'], [1, 3])
        """
        return element_tables.make_arrow_table(element_tables.read_columns(self._read_once("to_arrow", workers)))

    def to_pandas(self, *, workers: int | WorkerOptions | None = None) -> pandas.DataFrame:
        """Return all elements as a frame of pandas, in memory. `MapDataset.source(frame)` reads it.

        A dict has a column for each key, a nested one `a.b` for each value. An array is one object of its column. Any
        other element is the value of a column `value`. A frame of the first elements is `ds.take(1000).to_pandas()`.

        Args:
          workers: how many worker processes compute the elements, or their options; by default this process does.

        >>> from bushel import MapDataset
        >>> frame = MapDataset.range(4).map(lambda x: {"x": x, "even": x % 2 == 0}).to_pandas()
        >>> frame.groupby("even")["x"].sum().to_dict()
        {False: 4, True: 2}
        """
        return element_tables.make_pandas_frame(element_tables.read_columns(self._read_once("to_pandas", workers)))

    def _read_once(self, method: str, workers: int | WorkerOptions | None) -> Iterator[Any]:
        """Yield the elements in order, for a `method` that needs all of them."""
        any_node = self._node
        stream = streams.Elements(any_node) if isinstance(any_node, MapNode) else any_node
        if stream.length is not None and checks.is_endless(stream.length):
            raise ValueError(
                f"{method}: an endless dataset is no table. Leave out `repeat()`, or take a part with `take(count)`."
            )
        options = read_workers(workers) or find_job_options() or MultiprocessingOptions()
        # A new node, so that this does not count as a pass of the user over the dataset: see graph/usage_warnings.py.
        with (
            PipelineIterator[Any](streams.Ahead(stream, options)) as elements,
            Progress(method, stream.length, unit="elements") as progress,
        ):
            for count, element in enumerate(elements, 1):
                progress.show(count)
                # The elements of workers lie in shared memory, which the elements of a long table would fill.
                yield element if options.num_workers == 0 else trees.map_leaves(copy.copy, element)

    if not TYPE_CHECKING:  # so that a type checker still reports missing names
        __next__ = hints.Unsupported(
            "A dataset is not an iterator. Write `it = iter(ds)` once, then `next(it)` for each element."
        )

        def __dir__(self) -> list[str]:
            return hints.list_names(self)

        def __getattr__(self, name: str) -> Any:
            """Explain a name that is missing. Python calls this only for missing names."""
            kind, others, ways_out = _kinds_of(self)
            of_other_kind = not name.startswith("_") and any(_has(other, name) for other in others)
            if of_other_kind and not _has(type(self), name):
                raise hints.no_attribute(self._explain_method_of_other_kind(name), name)
            hints.raise_missing(self, kind, name, ways_out, hints.DATASET)


def name_kind(value: Any) -> str:
    """Return what a user would call a value:

    "a MapDataset" or "an IterDataset" for any class of these, else its own class.
    """
    return name_kind_of(next((kind for kind in Dataset.__subclasses__() if isinstance(value, kind)), type(value)))


def name_kind_of(kind: type) -> str:
    """Return the name of a class with its article."""
    return f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"


def _has(kind: type, name: str) -> bool:
    """Return whether instances of a class have a name. `hasattr(kind, name)` also finds functions of its metaclass."""
    return any(name in each.__dict__ for each in kind.__mro__)


def _kinds_of(dataset: Dataset) -> tuple[str, list[type[Dataset]], Mapping[str, str]]:
    """Return the name of the kind of a dataset, the other kinds, and the ways out for names that this kind has not."""
    others = [kind for kind in Dataset.__subclasses__() if not isinstance(dataset, kind)]
    name = name_kind(dataset).partition(" ")[2]
    return name, others, hints.ITER_DATASET if name == "IterDataset" else hints.MAP_DATASET


class DatasetMeta(abc.ABCMeta):
    """What the metaclasses of both kinds share: what they say of names and calls that do not exist."""

    if not TYPE_CHECKING:  # a type checker knows what a class makes, and reports missing names

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls.__abstractmethods__:
                raise TypeError(_explain_abstract(cls))
            return super().__call__(*args, **kwargs)

        @property
        def __signature__(cls) -> inspect.Signature:
            """The arguments of `__init__`, which `__call__` would hide."""
            whole = inspect.signature(cls.__init__)  # type: ignore[misc]
            return whole.replace(parameters=list(whole.parameters.values())[1:])

        def __repr__(cls) -> str:
            shown = cls.__dict__.get("_shown_as")
            return super().__repr__() if shown is None else f"<class 'bushel.{shown}'>"

        def __getattr__(cls, name: str) -> Any:
            """Explain functions such as `from_tensor_slices`, which make a dataset in other libraries."""
            kind = next((kind for kind in Dataset.__subclasses__() if issubclass(cls, kind)), cls)
            of_kind = hints.ITER_DATASET if kind.__name__ == "IterDataset" else {}
            ways_out = {key: text.format("bushel.MapDataset") for key, text in hints.CLASS.items()}
            text = hints.missing(cls.__name__, name, (ways_out, of_kind), _names_of(cls, name))
            raise hints.no_attribute(text.replace(f"{cls.__name__!r} object", f"type object {cls.__name__!r}"), name)


def _names_of(kind: type, name: str) -> list[str]:
    return [] if name.startswith("_") else [*dir(kind), *dir(type(kind))]


def _explain_abstract(kind: type) -> str:
    """Return what to write instead of `MapDataset([1, 2, 3])`, or into a subclass that lacks methods."""
    methods = " and ".join(f"`{name}`" for name in sorted(kind.__abstractmethods__))
    if kind not in Dataset.__subclasses__():
        return (
            f"{kind.__name__} is abstract as long as it lacks {methods}: write the method{'s' * (' and ' in methods)}."
        )
    stream = ".to_iter_dataset()" if kind.__name__ == "IterDataset" else ""
    return (
        f"{kind.__name__} is abstract. Write `bushel.MapDataset.source(records){stream}` for {name_kind_of(kind)} of "
        f"records, or a subclass with {methods} for one of your own."
    )


@functools.singledispatch
def wrap(any_node: Node) -> Any:
    """Return the dataset of a node. Each kind of dataset registers itself for its kind of node."""
    raise TypeError(f"{any_node!r} is neither a MapNode nor a StreamNode.")


def _read_first_element(any_node: Node) -> Any:
    """Read the first element after a step of a pipeline that is not missing; None where there is none."""
    stream = streams.Elements(any_node) if isinstance(any_node, MapNode) else any_node
    assert isinstance(stream, StreamNode)
    # A new node, so that this is not counted as a pass over the user's dataset: see graph/usage_warnings.py.
    with PipelineIterator(streams.Ahead(stream, MultiprocessingOptions())) as elements:
        return next(elements, None)


def _read_element(any_node: Node, index: int) -> Any:
    """Read the element at `index` after a step. Raise IndexError past the end of a stream."""
    if isinstance(any_node, MapNode):
        return wrap(any_node)[index]
    assert isinstance(any_node, StreamNode)
    # A new node, so that this is not counted as a pass over the user's dataset: see graph/usage_warnings.py.
    with PipelineIterator(streams.Ahead(any_node, MultiprocessingOptions())) as elements:
        try:
            elements._set_next_index(index)
        except NotImplementedError:
            for _ in itertools.islice(elements, index):
                pass
        for element in elements:
            return element
    raise IndexError(f"{any_node.call()} ends before element {index}.")


def take_elements(map_node: MapNode, indices: np.ndarray) -> Block:
    """Return the elements of a map node at these indices, of which there is at least one.

    An error names its element.
    """
    if map_node.length == 0:
        raise IndexError(f"{map_node.call()} is empty: it has no element {int(indices[0])}.")
    if identity.NODE_IDENTITY not in map_node.__dict__:
        identity.freeze(map_node)
    try:
        return map_node.take(indices)
    except RowFailed as failed:
        error = failed.error
        add_note(error, f"bushel: this was element {int(indices[failed.row])} of the dataset.")
    raise remove_library_frames(error)


def check_indices(indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the indices of `get` as an array, if they are whole numbers."""
    positions = np.asarray(indices)
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
        first = f" The first {indices} elements are `ds.take({indices})`." if isinstance(indices, int) else ""
        raise TypeError(f"get needs a list of integers, got {indices!r}.{first}")
    return positions.astype(np.int64)


def check_count(count: Any, what: str) -> int:
    """Return `count` of `take`, `limit` or `skip`; a list of indices, which `get` takes, is refused."""
    if isinstance(count, (list, tuple, range, np.ndarray)):
        raise TypeError(f"{what} takes a number, got {count!r}. Write `ds.get(indices)` for the elements at indices.")
    return checks.not_negative(count, "count")


def check_transform(transform: Any, kind: type, name: str) -> Any:
    """Return `transform`, unless it is neither a function nor a transformation of this kind."""
    function = tf.method(transform, kind, name)
    if (arguments := code_inspection.explain_arguments(function, _ARGUMENTS[name][0])) is not None:
        shown = tf.short_name(transform)
        other = {
            "map": " `map_with_index` also gives the index, `random_map` a random generator.",
            "map_with_index": " `map` gives the element alone.",
            "random_map": " `map` gives the element alone.",
        }.get(name, "")
        raise TypeError(f"`{name}` calls `{_ARGUMENTS[name][1]}`, but {shown} takes {arguments}.{other}")
    if name in _RETURNING and code_inspection.never_returns(function):
        logger.warning(
            "%s(%s): your function returns None for every element, since it has no `return` with a value: "
            "forgot `return`?",
            name,
            tf.locate_transform(transform),
        )
    return transform


_VALUES = ("column", "where", "sample", "order_by", "pack", "bucket", "split")
"""Operations that take a function whose results are values of records."""
_ARGUMENTS = {
    **dict.fromkeys(("filter", "flat_map", "map", *_VALUES), (1, "function(element)")),
    "map_with_index": (2, "function(index, element)"),
    "random_map": (2, "function(element, rng)"),
}
"""How many arguments each operation gives to the user's function, and how such a call reads."""
_RETURNING = ("map", "map_with_index", "random_map", "filter", *_VALUES)
"""Operations to which a function that always returns None is of no use."""


def check_values(values: Any, what: str) -> Any:
    """Return values of records for the operation `what`; a function is refused if it cannot be called with an
    element.
    """
    is_function = callable(values) or isinstance(values, tf.Map)
    return check_transform(values, tf.Map, what) if is_function else values


def check_flat_map(transform: Any) -> tf.FlatMap:
    """Return `transform`, unless it is not a FlatMap."""
    if not isinstance(transform, tf.FlatMap):
        raise TypeError(
            f"`flat_map` takes a FlatMap transformation, which says its max_fan_out; "
            f"got {transform!r} of type {type(transform).__name__}."
        )
    return transform


def derive_random_map_seed(dataset: Dataset, seed: int | None) -> int:
    """Return the seed of a `random_map` after `dataset`: the given one, or the one that follows from `ds.seed(...)`."""
    chosen = node.default_seed((dataset._node,)) if seed is None else seed
    if chosen is None:
        raise ValueError(
            "`random_map` requires a seed. Please either provide it with `ds.seed(seed)` before any random "
            "transformations or pass it directly with `ds.random_map(transform, seed=seed)`."
        )
    return checks.seed(chosen)


def derive_seed(dataset: Dataset, seed: int | None, what: str) -> int:
    """Return the seed of the operation `what` after `dataset`: the given one, or the one that follows from
    `ds.seed(...)`.
    """
    chosen = node.default_seed((dataset._node,)) if seed is None else seed
    if chosen is None:
        raise ValueError(f"`{what}` requires a seed. Please provide it with `ds.seed(seed)` or `{what}(seed=...)`.")
    return checks.seed(chosen, below=_SEED_LIMIT)


def apply_all(dataset: Any, transformations: Any) -> Any:
    """Return one transformation after the other, each by its kind."""
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
                dataset = dataset.flat_map(transform)
            case tf.Filter():
                dataset = dataset.filter(transform)
            case _:
                instead = " For a function write `ds.map(function)`." if callable(transform) else ""
                raise NotImplementedError(f"Transformation type: {tf.short_name(transform)} is not supported.{instead}")
    return dataset
