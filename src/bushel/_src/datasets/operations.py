"""Operations on streams that are classes in Grain: each one builds a node and is the dataset of that node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from bushel._src.base import trees
from bushel._src.base.public import public
from bushel._src.datasets.iter_dataset import IterDataset, IterPipeline
from bushel._src.datasets.map_dataset import MapDataset, MapPipeline
from bushel._src.graph.concat_split import BOSHandling, ConcatThenSplit
from bushel._src.graph.interleave import Interleave
from bushel._src.graph.ordered import ZipStream
from bushel._src.graph.pack_stream import Pack
from bushel._src.graph.portions import Limit, Rebatch, RepeatStream
from bushel._src.graph.reindex import WindowShuffle
from bushel._src.graph.streams import StreamNode
from bushel._src.graph.windows import WindowShuffleStream

T = TypeVar("T")


def _find_stream(parent: Any) -> StreamNode:
    """The node of the stream that an operation reads; a MapDataset becomes a stream."""
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
    """Checks that an iterator restored from any state of `ds` gives the same elements, and that states have one form.

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
