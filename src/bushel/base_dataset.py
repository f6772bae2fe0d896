"""What both kinds of dataset share: printing, saving, transformations given as objects, and seeds.

The kinds themselves are in `map_dataset.py` and `iter_dataset.py`; both import this module, and it imports neither.
"""

from __future__ import annotations

import abc
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from bushel.base import checks
from bushel.base import transforms as tf
from bushel.base.contract import optional
from bushel.base.lazy import Lazy
from bushel.base.options import MultiprocessingOptions, WorkerOptions
from bushel.graph import node, show, streams
from bushel.graph.node import MapNode, Node
from bushel.graph.streams import StreamNode
from bushel.iterator import PipelineIterator

if TYPE_CHECKING:
    from bushel import display, saving
else:
    display = Lazy("bushel.display")
    saving = Lazy("bushel.saving")

R = TypeVar("R")
P = ParamSpec("P")

_SEED_LIMIT = 1 << 32


class Dataset(abc.ABC):
    """What MapDataset and IterDataset share. They are its only direct subclasses, which `name_kind` relies on."""

    _is_no_data = True  # an element may be a dataset, as for an interleave: see base/ownership.py

    @property
    @abc.abstractmethod
    def _node(self) -> Any:
        """The node of the graph that this dataset stands for."""

    @staticmethod
    @abc.abstractmethod
    def _explain_method_of_other_kind(name: str) -> str:
        """The text of an AttributeError for a method that only the other kind of dataset has."""

    def pipe(self, func: Callable[Concatenate[Self, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`func(self, *args, **kwargs)`, so that functions on datasets chain like methods.

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

    @property
    @optional
    def _element_spec(self) -> Any:
        raise NotImplementedError(f"The shapes of {type(self).__name__} are not known: it defines no `_element_spec`.")

    def __repr__(self) -> str:
        return show.text(self._node)

    def _repr_html_(self) -> str:
        return show.describe(self._node)._repr_html_()

    def describe(self) -> show.Description:
        """The steps of the pipeline with lengths and shapes. It reads one element if shapes are not known otherwise.

        A notebook shows a dataset as the same table, without reading. If a step fails, its row shows the error.

        >>> import numpy as np
        >>> from bushel import MapDataset
        >>> print(MapDataset.range(10).map(lambda x: {"x": np.full(2, x)}).batch(4).describe())
        step           length  element
        range(10)      10      int64[]
        map(<lambda>)  10      {'x': int64[2]}
        batch(4)       3       {'x': int64[4, 2]}
        """
        return show.describe(self._node, _read_first_element)

    def show(self, index: int = 0, *, tokenizer: Any = None) -> display.ShownElement:
        """One element to look at: a notebook draws it, a terminal lists its parts. `bushel.view(ds)` shows them all.

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
        return display.ShownElement(_read_element(self._node, checks.integer(index, "index")), index, tokenizer)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        format: saving.Format = "array_record",
        shards: int | None = None,
        options: WorkerOptions | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        trust_source: bool = False,
    ) -> list[str]:
        """Writes all elements into files in a folder. `bushel.sources.open(folder)` reads the same elements back.

        Elements are trees of dicts, lists and tuples with arrays, numbers, texts and bytes, all with the same keys and
        dtypes. If the run is interrupted, the next one continues after the last complete file.

        Args:
          path: the folder, which is created if it does not exist, or an address in a store ("s3://bucket/folder").
          format: the format of the files. Other programs can read the columns of "parquet". "rlds" is for episodes,
            dicts with "steps", and makes a folder that TFDS reads. The other formats hold records of bytes.
          shards: how many files; by default files of about 256 MB.
          options: worker processes that compute the elements.
          overwrite: replaces the files of an earlier `save`.
          storage_options: of the store, such as its region.
          trust_source: says that the data never change, where the source cannot tell. A source of your own that reads
            files and has no `fingerprint()` is an error otherwise.

        >>> import tempfile
        >>> from bushel import MapDataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> files = MapDataset.range(10).map(lambda x: {"x": x}).save(folder.name, format="bagz", shards=2)
        >>> [os.path.basename(file) for file in files]
        ['part-00000.bagz', 'part-00001.bagz']
        >>> folder.cleanup()
        """
        node = self._node
        stream = streams.Elements(node) if isinstance(node, MapNode) else node
        return saving.save(
            stream,
            path,
            format=format,
            shards=shards,
            options=options,
            overwrite=overwrite,
            storage_options=storage_options,
            trust_source=trust_source,
        )

    if not TYPE_CHECKING:  # so that a type checker still reports missing names

        def __getattr__(self, name: str) -> Any:
            """Explains a method that only the other kind of dataset has. Python calls this only for missing names."""
            if any(name in kind.__dict__ for kind in type(self).__mro__):
                return object.__getattribute__(self, name)  # a property has failed: this raises its error again
            raise AttributeError(_explain_missing(self, name), name=name, obj=self)


def name_kind(value: Any) -> str:
    """What a user would call a value: "a MapDataset" or "an IterDataset" for any class of these, else its own class."""
    kind = next((kind for kind in Dataset.__subclasses__() if isinstance(value, kind)), type(value))
    return f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"


def _explain_missing(dataset: Dataset, name: str) -> str:
    """The text of an AttributeError. Where the other kind of dataset has the method, it says how to get there."""
    others = [kind for kind in Dataset.__subclasses__() if not isinstance(dataset, kind)]
    if name.startswith("_") or not any(hasattr(kind, name) for kind in others):
        return f"{name_kind(dataset).partition(' ')[2]!r} object has no attribute {name!r}"
    return dataset._explain_method_of_other_kind(name)


@functools.singledispatch
def wrap(any_node: Node) -> Any:
    """The dataset of a node. Each kind of dataset registers itself for its kind of node."""
    raise TypeError(f"{any_node!r} is neither a MapNode nor a StreamNode.")


def _read_first_element(any_node: Node) -> Any:
    """Reads the first element after a step of a pipeline that is not missing; None where there is none."""
    stream = streams.Elements(any_node) if isinstance(any_node, MapNode) else any_node
    assert isinstance(stream, StreamNode)
    # A new node, so that this is not counted as a pass over the user's dataset: see graph/passes.py.
    with PipelineIterator(streams.Ahead(stream, MultiprocessingOptions())) as elements:
        return next(elements, None)


def _read_element(any_node: Node, index: int) -> Any:
    """Reads the element at `index` after a step. Raises IndexError past the end of a stream."""
    if isinstance(any_node, MapNode):
        return wrap(any_node)[index]
    assert isinstance(any_node, StreamNode)
    # A new node, so that this is not counted as a pass over the user's dataset: see graph/passes.py.
    with PipelineIterator(streams.Ahead(any_node, MultiprocessingOptions())) as elements:
        try:
            elements._set_next_index(index)
        except NotImplementedError:
            for _ in itertools.islice(elements, index):
                pass
        for element in elements:
            return element
    raise IndexError(f"{any_node.call()} ends before element {index}.")


def check_transform(transform: Any, kind: type, name: str) -> Any:
    """Returns `transform`, unless it is neither a function nor a transformation of this kind."""
    tf.method(transform, kind, name)
    return transform


def check_flat_map(transform: Any) -> tf.FlatMap:
    """Returns `transform`, unless it is not a FlatMap."""
    if not isinstance(transform, tf.FlatMap):
        raise TypeError(
            f"`flat_map` takes a FlatMap transformation, which says its max_fan_out; "
            f"got {transform!r} of type {type(transform).__name__}."
        )
    return transform


def derive_random_map_seed(dataset: Dataset, seed: int | None) -> int:
    """The seed of a `random_map` after `dataset`: the given one, or the one that follows from `ds.seed(...)`."""
    chosen = node.default_seed((dataset._node,)) if seed is None else seed
    if chosen is None:
        raise ValueError(
            "`random_map` requires a seed. Please either provide it with `ds.seed(seed)` before any random "
            "transformations or pass it directly with `ds.random_map(transform, seed=seed)`."
        )
    return checks.seed(chosen)


def derive_seed(dataset: Dataset, seed: int | None, what: str) -> int:
    """The seed of the operation `what` after `dataset`: the given one, or the one that follows from `ds.seed(...)`."""
    chosen = node.default_seed((dataset._node,)) if seed is None else seed
    if chosen is None:
        raise ValueError(f"`{what}` requires a seed. Please provide it with `ds.seed(seed)` or `{what}(seed=...)`.")
    return checks.seed(chosen, below=_SEED_LIMIT)


def apply_all(dataset: Any, transformations: Any) -> Any:
    """One transformation after the other, each by its kind."""
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
                raise NotImplementedError(f"Transformation type: {transform} is not supported.")
    return dataset
