"""What Grain has as classes and functions beside methods of datasets: files in order, operations, good settings."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from bushel._src.base import checks, redact, trees
from bushel._src.base.options import MultiprocessingOptions, ReadOptions
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.datasets.base_dataset import apply_all
from bushel._src.datasets.iter_dataset import IterDataset, IterPipeline
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.datasets.map_dataset import MapDataset, MapPipeline
from bushel._src.engine.measurements import count_cores
from bushel._src.engine.opener import choose_read_options
from bushel._src.graph.concat_split import BOSHandling, ConcatThenSplit
from bushel._src.graph.interleave import Interleave
from bushel._src.graph.limit_and_rebatch import Limit, Rebatch, RepeatStream
from bushel._src.graph.node import Node, replace_parents
from bushel._src.graph.pack_stream import Pack
from bushel._src.graph.reindex import WindowShuffle
from bushel._src.graph.source_nodes import RecordStream
from bushel._src.graph.stream_ops import WindowShuffleStream, ZipStream
from bushel._src.graph.streams import Ahead, Elements, StreamNode
from bushel._src.sources.user_sources import SequentialSource

logger = logging.getLogger("bushel")

HANDING_OVER_S = 20e-6
"""About how long it takes to send one element from a worker to the consumer, in seconds."""

MOST_AHEAD = 1000
"""The largest number of elements to prefetch by default, as in Grain."""


@public("bushel.experimental")
@dataclasses.dataclass(slots=True)
class PerformanceConfig:
    """What `pick_performance_config` recommends: for `mp_prefetch`, and for `to_iter_dataset`."""

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


@public("bushel.experimental")
def pick_performance_config(
    ds: IterDataset[Any],
    *,
    ram_budget_mb: float | None,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Return settings that fit a memory budget, from the size and the time of a few elements.

    It computes the first elements in this process. As in Grain, it recommends as many workers as elements fit into the
    budget, at most one per core, and as many prefetched records as fit. In addition:

    - if an element takes less time than sending it (20 µs), there are no workers;
    - the budget also limits the shared memory of the workers;
    - threads prefetch only if records come from files or object stores.

    `mp_prefetch()` without options measures the best number of workers while training runs.

    Args:
      ds: the pipeline, with or without `mp_prefetch`.
      ram_budget_mb: in units of 2**20 bytes; None for no limit.
      max_workers: None for one per core.
      max_buffer_size: None for 1,000 records.
      samples_to_check: how many elements are computed.

    >>> from bushel import MapDataset
    >>> ds = MapDataset.range(100).map(lambda x: time.sleep(0.001) or x).to_iter_dataset()
    >>> config = pick_performance_config(ds, ram_budget_mb=64, max_workers=2, max_buffer_size=None)
    >>> config.multiprocessing_options.num_workers
    2
    """
    if not isinstance(ds, IterDataset):
        raise TypeError(
            f"pick_performance_config takes an IterDataset, got {type(ds).__name__}: use to_iter_dataset()."
        )
    if ram_budget_mb is not None and not checks.number(ram_budget_mb, "ram_budget_mb") > 0:
        raise ValueError(f"ram_budget_mb must be positive, or None for no limit; got {ram_budget_mb}.")
    most_workers = count_cores() if max_workers is None else _check_not_negative(max_workers, "max_workers")
    most_ahead = MOST_AHEAD if max_buffer_size is None else _check_not_negative(max_buffer_size, "max_buffer_size")
    samples = checks.positive(samples_to_check, "samples_to_check")
    budget = math.inf if ram_budget_mb is None else ram_budget_mb * 2**20
    node = _remove_workers(ds._node)
    workers = int(min(_count_workers(budget, *_measure(node, samples)), most_workers))
    ahead = min(_count_prefetched_records(node, budget, samples), most_ahead)
    threads = max((choose_read_options(part.parent).num_threads for part in _find_elements(node)), default=0)
    return PerformanceConfig(
        MultiprocessingOptions(
            num_workers=workers,
            budget_bytes=max(1, int(budget)) if workers and ram_budget_mb is not None else None,
        ),
        ReadOptions(num_threads=int(min(ahead, threads)), prefetch_buffer_size=int(ahead)),
    )


def _count_workers(budget: float, size: float, seconds: float) -> float:
    """Return how many workers: none if sending an element takes longer than computing it, else as many as elements
    fit.
    """
    if not size:
        return math.inf
    return 0 if seconds < HANDING_OVER_S else budget / size


def _measure(node: StreamNode, samples: int) -> tuple[float, float]:
    """Mean bytes and median seconds of the first elements; zeros if there are no elements."""
    sizes, times = [], []
    with PipelineIterator(node, ReadOptions(0, 0)) as it:
        begun = time.perf_counter()
        for element in itertools.islice(it, samples):
            times.append(time.perf_counter() - begun)
            sizes.append(measure_bytes(element))
            begun = time.perf_counter()
    if not sizes:
        logger.warning("There is no element to measure: the most workers and the largest prefetch are recommended.")
        return 0.0, 0.0
    return statistics.fmean(sizes), statistics.median(times)


def _count_prefetched_records(node: StreamNode, budget: float, samples: int) -> float:
    """Return how many records of each MapDataset in the pipeline fit into the budget, if all of them prefetch."""
    parts = _find_elements(node)
    if not parts:
        return math.inf
    samples_each = math.ceil(samples / len(parts))
    sizes = [size for part in parts if (size := _measure(part, samples_each)[0])]
    return budget / (statistics.fmean(sizes) * len(parts)) if sizes else math.inf


def _find_elements(node: Node) -> list[Elements]:
    if isinstance(node, Elements):
        return [node]
    return [part for parent in node.parents for part in _find_elements(parent)]


def _remove_workers(node: Any) -> Any:
    return _remove_workers(node.parent) if isinstance(node, Ahead) else replace_parents(node, _remove_workers)


def measure_bytes(element: Any) -> int:
    """Return the size of an element in bytes: `nbytes` of arrays, `sys.getsizeof` of other leaves."""
    leaves: Iterable[Any] = trees.leaves(element)
    return sum(leaf.nbytes if hasattr(leaf, "nbytes") else sys.getsizeof(leaf) for leaf in leaves)


def _check_not_negative(value: Any, what: str) -> int:
    number = checks.integer(value, what)
    if number < 0:
        raise ValueError(f"{what} must be non-negative, got {number}.")
    return number


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
