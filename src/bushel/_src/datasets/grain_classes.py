"""Datasets that are classes in Grain, such as files that are read in order, and functions that take any dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from bushel._src.base import redact, trees
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.base_dataset import apply_all
from bushel._src.datasets.iter_dataset import IterDataset, IterPipeline
from bushel._src.datasets.map_dataset import MapDataset, MapPipeline
from bushel._src.graph.concat_split import BOSHandling, ConcatThenSplit
from bushel._src.graph.interleave import Interleave
from bushel._src.graph.limit_and_rebatch import Limit, Rebatch, RepeatStream
from bushel._src.graph.pack_stream import Pack
from bushel._src.graph.reindex import WindowShuffle
from bushel._src.graph.source_nodes import RecordStream
from bushel._src.graph.stream_ops import WindowShuffleStream, ZipStream
from bushel._src.graph.streams import StreamNode
from bushel._src.sources.protocol import SequentialSource

T = TypeVar("T")

_AT_A_TIME = 16  # files that are open at a time, as in Grain


@public("bushel.experimental")
class TFRecordIterDataset(IterPipeline[bytes]):
    """Records of TFRecord files, in order, as bytes. Files may be compressed with gzip or zlib.

    Args:
      path: a file, a pattern, a URL, or a list of them; several files are read in turn, 16 at a time.
      verify: checks lengths and records against their checksums. By default it does if a package that computes
        checksums is installed; otherwise it does not, and warns.
      storage_options: options of the store that holds the files.

    >>> list(TFRecordIterDataset("nothing-*.tfrecord"))
    Traceback (most recent call last):
    FileNotFoundError: No file matches 'nothing-*.tfrecord'.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        verify: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ):
        from bushel._src.sources import checksums
        from bushel._src.sources.tfrecord import TFRecordStream

        checked = checksums.decide_verify(verify)  # decided here, so that workers do the same as this process

        def source(name: str) -> SequentialSource:
            return TFRecordStream(name, checked, storage_options)

        super().__init__(_build_node(path, storage_options, "TFRecordIterDataset", source))


@public("bushel.experimental")
class ParquetIterDataset(IterPipeline[dict[str, Any]]):
    """Rows of Parquet files, in order, as dicts of NumPy values.

    Args:
      path: a file, a pattern, a URL, or a list of them; several files are read in turn, 16 at a time.
      columns: the columns to read; all by default.
      storage_options: options of the store that holds the files.
      **read_kwargs: arguments of `pyarrow.parquet.ParquetFile`.

    >>> import os, tempfile, pyarrow, pyarrow.parquet
    >>> path = os.path.join(tempfile.mkdtemp(), "words.parquet")
    >>> pyarrow.parquet.write_table(pyarrow.table({"word": ["a", "b"], "count": [3, 1]}), path)
    >>> list(ParquetIterDataset(path, columns=["count"]))
    [{'count': np.int64(3)}, {'count': np.int64(1)}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **read_kwargs: Any,
    ):
        from bushel._src.sources.parquet import ParquetStream

        def source(name: str) -> SequentialSource:
            return ParquetStream(name, columns, storage_options, read_kwargs)

        super().__init__(_build_node(path, storage_options, "ParquetIterDataset", source))


@public("bushel.experimental")
class WebDatasetIterDataset(IterPipeline[dict[str, Any]]):
    """Samples of WebDataset shards (tar files), in order: dicts of bytes by ending, such as "jpg", and `__key__`.

    Args:
      path: a file, a pattern, a URL, or a list of them; several files are read in turn, 16 at a time. Braces are
        expanded: "train-{000..009}.tar" is ten files, "{a,b}.tar" two.
      storage_options: options of the store that holds the files.

    >>> import io, os, tarfile, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "0.tar")
    >>> with tarfile.open(path, "w") as file:
    ...     for name, content in (("cat.txt", b"meow"), ("cat.cls", b"7")):
    ...         entry = tarfile.TarInfo(name)
    ...         entry.size = len(content)
    ...         file.addfile(entry, io.BytesIO(content))
    >>> list(WebDatasetIterDataset(path))
    [{'__key__': 'cat', 'txt': b'meow', 'cls': b'7'}]
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ):
        from bushel._src.sources.webdataset import WebDatasetStream, expand_braces

        def source(name: str) -> SequentialSource:
            return WebDatasetStream(name, storage_options)

        super().__init__(_build_node(expand_braces(path), storage_options, "WebDatasetIterDataset", source))


@public("bushel.experimental")
class IterableIterDataset(IterPipeline[T]):
    """`IterDataset.source(iterable)` as a class, like those of files. New programs need no second name: use `source`.

    >>> list(IterableIterDataset([1, 2]))
    [1, 2]
    """

    def __init__(self, iterable: Iterable[T] | Callable[[], Iterable[T]]):
        super().__init__(IterDataset.source(iterable)._node)


@in_states("no_files")
class _NoFiles(SequentialSource):
    """A pattern that matched no file. As in Grain, the error comes when an iterator is made."""

    def __init__(self, message: str):
        self._message = message

    def open(self) -> NoReturn:
        raise FileNotFoundError(self._message)

    def fingerprint(self) -> NoReturn:
        raise FileNotFoundError(self._message)


def _build_node(
    path: Any, options: Mapping[str, Any] | None, name: str, source: Callable[[str], SequentialSource]
) -> StreamNode:
    from bushel._src.sources import file_access

    try:
        paths = file_access.find_files(path, options)
    except FileNotFoundError as error:  # a pattern that matches nothing
        return RecordStream(_NoFiles(str(error)), name)
    files = tuple(RecordStream(source(entry), f"{name}({redact.base_name(entry)})") for entry in paths)
    return files[0] if len(files) == 1 else Interleave(files, _AT_A_TIME)


def _find_stream(parent: Any) -> StreamNode:
    """Return the node of the stream that an operation reads; a MapDataset becomes a stream."""
    return _as_iter_dataset(parent)._node


def _as_iter_dataset(dataset: Any) -> IterDataset[Any]:
    if isinstance(dataset, MapDataset):
        return dataset.to_iter_dataset()
    if not isinstance(dataset, IterDataset):
        raise TypeError(f"An operation on streams takes an IterDataset, got {dataset!r}.")
    return dataset


def _check_names(names: Collection[str], what: str) -> tuple[str, ...]:
    if isinstance(names, str):
        raise TypeError(f"{what} must be a collection of names, got the string {names!r}.")
    return tuple(names)


class _PackDataset(IterPipeline[Any]):
    """What both packers share. A subclass says which row a sequence goes into."""

    _strategy: ClassVar[str]

    def __init__(
        self,
        parent: IterDataset[Any],
        *,
        length_struct: Any,
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Any = None,
        padding_struct: Any = None,
        max_sequences_per_bin: int | None = None,
    ):
        super().__init__(
            Pack(
                _find_stream(parent),
                self._strategy,
                length_struct,
                num_packing_bins,
                seed,
                bool(shuffle_bins),
                shuffle_bins_group_by_feature,
                _check_names(meta_features, "meta_features"),
                pack_alignment_struct,
                padding_struct,
                max_sequences_per_bin,
            )
        )


@public("bushel.experimental")
class FirstFitPackIterDataset(_PackDataset):
    """Sequences packed into rows of fixed length: each goes into the first row of several where it fits.

    `num_packing_bins` rows are filled at the same time. When a sequence fits into none of them, all of them are
    returned, and the sequence begins new ones. For each feature `x` of `length_struct` a row also has `x_segment_ids`
    (1, 2, ... by sequence, 0 for padding) and `x_positions`.

    >>> import numpy as np
    >>> ds = MapDataset.source([{"x": np.full(n, n)} for n in (3, 4, 2, 1)]).to_iter_dataset()
    >>> packed = FirstFitPackIterDataset(ds, length_struct={"x": 5}, num_packing_bins=2, shuffle_bins=False)
    >>> [row["x"].tolist() for row in packed]
    [[3, 3, 3, 2, 2], [4, 4, 4, 4, 1]]

    Args:
      parent: a dataset of elements with sequences.
      length_struct: how long the rows of each feature are.
      num_packing_bins: how many rows are filled at a time. More rows leave less padding.
      seed: for the order of rows.
      shuffle_bins: returns the rows that were filled together in a random order.
      shuffle_bins_group_by_feature: sorts them by the mean of this feature; rows with equal means stay in random order.
      meta_features: features without segment ids and positions. Those without a length become lists of values.
      pack_alignment_struct: sequences of a feature start at multiples of this number.
      padding_struct: the padding values, by default zeros.
      max_sequences_per_bin: the largest number of sequences in a row.
    """

    _strategy = "first_fit"


@public("bushel.experimental")
class BestFitPackIterDataset(_PackDataset):
    """Sequences packed into rows of fixed length: each goes into the fullest row of several where it fits.

    See FirstFitPackIterDataset for the arguments.

    >>> import numpy as np
    >>> ds = MapDataset.source([{"x": np.full(n, n)} for n in (3, 4, 1, 2)]).to_iter_dataset()
    >>> packed = BestFitPackIterDataset(ds, length_struct={"x": 5}, num_packing_bins=2, shuffle_bins=False)
    >>> [row["x"].tolist() for row in packed]
    [[3, 3, 3, 2, 2], [4, 4, 4, 4, 1]]
    """

    _strategy = "best_fit"


@public("bushel.experimental")
class ConcatThenSplitIterDataset(IterPipeline[Any]):
    """All sequences one after the other, cut into rows of fixed length; the rest of a cut sequence begins the next row.

    With one feature only the last row has padding. With several, a row ends when the first of them is full.

    >>> import numpy as np
    >>> ds = MapDataset.source([{"x": np.full(n, n)} for n in (3, 4, 2)]).to_iter_dataset()
    >>> [row["x"].tolist() for row in ConcatThenSplitIterDataset(ds, length_struct={"x": 5})]
    [[3, 3, 3, 4, 4], [4, 4, 2, 2, 0]]

    Args:
      parent: a dataset of flat dicts with the keys of `length_struct`.
      length_struct: how long the rows of each feature are.
      meta_features: features that are never cut. Each part of a cut element has them, without segment ids.
      split_full_length_features: False returns an element that fills a whole row as it is, after the row being filled.
      bos_handling: whether the first token of each sequence is replaced.
      bos_features: the features in which it is replaced.
      bos_token_id: the token that replaces it.
    """

    def __init__(
        self,
        parent: IterDataset[Any],
        *,
        length_struct: Mapping[str, int],
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ):
        super().__init__(
            ConcatThenSplit(
                _find_stream(parent),
                length_struct,
                _check_names(meta_features, "meta_features"),
                bool(split_full_length_features),
                bos_handling,
                _check_names(bos_features, "bos_features"),
                bos_token_id,
            )
        )


@public("bushel.experimental")
class LimitIterDataset(IterPipeline[T]):
    """The first `count` elements: `ds.limit(count)`.

    >>> list(LimitIterDataset(MapDataset.range(5).to_iter_dataset(), 2))
    [0, 1]
    """

    def __init__(self, parent: IterDataset[T], count: int):
        super().__init__(Limit(_find_stream(parent), count))


@public("bushel.experimental")
class RepeatIterDataset(IterPipeline[T]):
    """The same elements `num_epochs` times, or endlessly. All epochs are the same: nothing is shuffled again.

    >>> list(RepeatIterDataset(MapDataset.range(2).to_iter_dataset(), 2))
    [0, 1, 0, 1]
    """

    def __init__(self, parent: IterDataset[T], num_epochs: int | None = None):
        super().__init__(RepeatStream(_find_stream(parent), num_epochs))


@public("bushel.experimental")
class RebatchIterDataset(IterPipeline[T]):
    """Batches of another size: `ds.rebatch(batch_size)`.

    >>> ds = MapDataset.range(6).batch(4).to_iter_dataset()
    >>> [batch.tolist() for batch in RebatchIterDataset(ds, 3)]
    [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(self, parent: IterDataset[T], batch_size: int, drop_remainder: bool = False):
        super().__init__(Rebatch(_find_stream(parent), batch_size, bool(drop_remainder)))


@public("bushel.experimental")
class CacheIterDataset(IterPipeline[T]):
    """The same elements, computed once and then kept in memory for all iterators: `ds.cache()`.

    >>> ds = CacheIterDataset(MapDataset.range(3).map(lambda x: print("computed", x) or x).to_iter_dataset())
    >>> sum(ds), sum(ds)
    computed 0
    computed 1
    computed 2
    (3, 3)
    """

    def __init__(self, parent: IterDataset[T]):
        super().__init__(_as_iter_dataset(parent).cache()._node)


@public("bushel.experimental")
class WindowShuffleMapDataset(MapPipeline[T]):
    """Each window of consecutive elements in an order of its own: `ds.window_shuffle(window_size, seed=seed)`.

    >>> list(WindowShuffleMapDataset(MapDataset.range(6), window_size=3, seed=1))
    [1, 2, 0, 3, 5, 4]
    """

    def __init__(self, parent: MapDataset[T], *, window_size: int, seed: int):
        super().__init__(WindowShuffle(parent._node, window_size, seed))


@public("bushel.experimental")
class WindowShuffleIterDataset(IterPipeline[T]):
    """Each window of consecutive elements in an order of its own: `ds.window_shuffle(window_size, seed=seed)`.

    >>> list(WindowShuffleIterDataset(MapDataset.range(6).to_iter_dataset(), window_size=3, seed=1))
    [0, 2, 1, 4, 5, 3]
    """

    def __init__(self, parent: IterDataset[T], *, window_size: int, seed: int):
        super().__init__(WindowShuffleStream(_find_stream(parent), window_size, seed))


@public("bushel.experimental")
class ZipIterDataset(IterPipeline[Any]):
    """Tuples of the elements of several streams: `ds.zip(other, ...)`.

    >>> a, b = (MapDataset.range(n, n + 2).to_iter_dataset() for n in (0, 10))
    >>> list(ZipIterDataset([a, b]))
    [(0, 10), (1, 11)]

    Args:
      parents: the streams.
      strict: False ends with the shortest stream; otherwise different lengths are an error.
    """

    def __init__(self, parents: Sequence[IterDataset[Any]], *, strict: bool = True):
        super().__init__(ZipStream(tuple(map(_find_stream, parents)), bool(strict)))


@public("bushel.experimental")
class InterleaveIterDataset(IterPipeline[T]):
    """One element of each of `cycle_length` datasets in turn. When one ends, the next dataset takes its place.

    >>> a, b, c = (MapDataset.range(n, n + 2) for n in (0, 10, 20))
    >>> list(InterleaveIterDataset([a, b, c], cycle_length=2))
    [0, 10, 1, 11, 20, 21]

    Args:
      datasets: the datasets; or a MapDataset of datasets, each of which is made only when it is read.
      cycle_length: how many datasets are read at a time.
      num_make_iter_threads: ignored, as the next two: Grain has them. Use `mp_prefetch` to read ahead.
      make_iter_buffer_size: ignored.
      iter_buffer_size: ignored.
    """

    def __init__(
        self,
        datasets: Sequence[IterDataset[T] | MapDataset[T]] | MapDataset[Any],
        *,
        cycle_length: int,
        num_make_iter_threads: int = 1,
        make_iter_buffer_size: int = 1,
        iter_buffer_size: int = 1,
    ):
        del num_make_iter_threads, make_iter_buffer_size, iter_buffer_size
        parts = datasets._node if isinstance(datasets, MapDataset) else tuple(map(_find_stream, datasets))
        super().__init__(Interleave(parts, cycle_length))


@public("bushel.experimental")
def assert_equal_output_after_checkpoint(ds: Any) -> None:
    """Check that an iterator restored from any state of `ds` gives the same elements, and that states have one form.

    It reads all of `ds` once per element, so `ds` should be short. `bushel.testing.check_resumes_anywhere` says more.

    >>> assert_equal_output_after_checkpoint(MapDataset.range(9).batch(2).to_iter_dataset())
    """
    states: list[Any] = []
    expected: list[Any] = []
    iterator = iter(ds)
    while True:
        states.append(iterator.get_state())
        form, first = trees.map_leaves(type, states[-1]), trees.map_leaves(type, states[0])
        np.testing.assert_equal(form, first, f"After {len(expected)} elements the state has another form.")
        try:
            expected.append(next(iterator))
        except StopIteration:
            break
    assert expected, "The dataset has no elements, so nothing was checked."
    for taken, state in enumerate(states[:-1]):
        iterator = iter(ds)
        iterator.set_state(state)
        np.testing.assert_equal(iterator.get_state(), state, f"set_state changed the state after {taken} elements.")
        np.testing.assert_equal(list(iterator), expected[taken:], f"After {taken} elements, other elements follow.")


@public("bushel.experimental")
def get_element_spec(ds: MapDataset[Any] | IterDataset[Any]) -> Any:
    """Return shapes and dtypes of a dataset's elements, without reading any.

    >>> get_element_spec(MapDataset.range(5).batch(2, drop_remainder=True))
    ShapeDtypeStruct(shape=(2,), dtype=<class 'numpy.int64'>)
    """
    return ds._element_spec


@public("bushel.experimental")
def apply_transformations(ds: Any, transformations: Any) -> Any:
    """Return `ds.apply(transformations)`, under Grain's older name.

    >>> from bushel.transforms import Batch
    >>> list(apply_transformations(MapDataset.range(4), [Batch(2)]))
    [array([0, 1]), array([2, 3])]
    """
    return apply_all(ds, transformations)
