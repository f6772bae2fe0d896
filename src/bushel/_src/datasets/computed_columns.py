"""Columns of a dataset: computed once, in parallel and resumable, or given by the user as values of records.

Values for `where`, `sample`, `order_by`, `pack` and `bucket` are checked here.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checked_files, checks, transforms, trees
from bushel._src.base.errors import BushelWarning, DamagedFile, PipelineNotSent, add_note
from bushel._src.base.options import MultiprocessingOptions, WorkerOptions, find_job_options, read_workers
from bushel._src.base.shown_text import Progress
from bushel._src.base.state_names import in_states
from bushel._src.base.transforms import Map
from bushel._src.datasets.base_dataset import check_values
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.graph import by_length, select
from bushel._src.graph.by_length import Bucket, BucketOptions, PackedRows, PackOptions, plan_rows
from bushel._src.graph.column_values import SortedValuesOfRange, ValueType, collect_values, join_arrays, sort_arrays
from bushel._src.graph.columns import Column, NodeValues, NoneMissing, SortedValues, find_records
from bushel._src.graph.map_ops import MapElements
from bushel._src.graph.node import Epochs, MapNode
from bushel._src.graph.streams import Ahead, Elements
from bushel._src.sources import folders
from bushel._src.sources.folders import Folder
from bushel._src.state.digest import digest
from bushel._src.state.identity import freeze, identify, identify_in_full

_FORMAT = 5  # before, integers could become floats, and data in memory were compared by samples
_INLINE_S = 0.3  # what takes no longer is not worth a pool of workers
_SAVE_EVERY_S = 1.0
_RANGES = 1024
_PART = re.compile(r"(\d{1,18})-(\d{1,18})\.npy")  # the name of a file with some of the values


def column(
    node: MapNode,
    function: Any,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    workers: int | WorkerOptions | None = None,
    vectorized: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    trust_source: bool = False,
) -> Column:
    """Return the column of `function` over the records of `node`; see `MapDataset.column`."""
    if cache_dir is None:
        given = {"storage_options": storage_options is not None, "trust_source": trust_source}
        checks.unused(given, "without cache_dir, since nothing is kept", "Write cache_dir=folder")
    options = read_workers(workers)
    folder = None if cache_dir is None else folders.open_folder(cache_dir, storage_options)
    freeze(node)  # the nodes computed below may be copies of its nodes, with the same functions
    records, arrays = [], []
    for record, made in find_records(node):
        if checks.is_endless(made.length):
            raise ValueError(f"{made.call()} has no end, so it has no column. Call `column` before `repeat`.")
        records.append(record)
        arrays.append(_computed(MapElements(made, function, vectorized), folder, options, trust_source))
    arrays = join_arrays(arrays, transforms.short_name(function))
    for values in arrays:
        values.setflags(write=False)
    return Column(tuple(map(NodeValues, records, arrays)))


def _computed(
    node: MapElements, folder: Folder | None, options: WorkerOptions | None, trust_source: bool
) -> np.ndarray:
    with Progress(f"column {transforms.short_name(node.transform)}", node.length, unit="records") as progress:
        return _compute_values(node, folder, options, progress, trust_source)


def _compute_values(
    node: MapElements, folder: Folder | None, options: WorkerOptions | None, progress: Progress, trust_source: bool
) -> np.ndarray:
    if folder is None:
        known, ranges = _new_type(node), []
        for begin, count, sorted_values in _ranges(node, 0, options, progress):
            known = known.extend(begin, sorted_values)
            ranges.append((count, sorted_values))
        return known.join(ranges)
    name = digest(_FORMAT, identify_in_full(node, trust_source=trust_source, method="column(cache_dir=...)"))
    whole = f"{name}.npy"
    values = _kept(folder, whole, node.length, warn=False)
    if values is None:
        with folder.locked(f"{name}.lock", lambda: progress.say("waiting for another process that computes it")):
            values = _kept(folder, whole, node.length)  # another process may have made it meanwhile
            if values is None:
                _save(folder, whole, f"{name}.parts", node, options, progress)
                values = _loaded(folder, whole, node.length, verify=False)
    return values


def _range_size(length: int) -> int:
    """Return how many elements a range has, in which values are computed.

    It depends on the length alone, so that any run can go on.
    """
    return min(max(-(-length // _RANGES), 64), 1 << 16)


def _new_type(node: MapElements) -> ValueType:
    return ValueType(transforms.short_name(node.transform))


def _ranges(
    node: MapElements, begin: int, options: WorkerOptions | None, progress: Progress
) -> Iterator[tuple[int, int, SortedValuesOfRange]]:
    """Yield values from range `begin` on: here as long as that is quick, then in worker processes.

    Gives the first element of each range, how many it has, and its values.
    """
    checked = MapElements(NoneMissing(node.parent), _WithAValue(node.transform), node.vectorized)
    size = _range_size(node.length)
    batches = SortedValues(checked, size)
    at, started = begin, time.monotonic()
    progress.show(min(begin * size, node.length))
    while at < batches.length:
        here = options is None and at == begin
        chosen = MultiprocessingOptions(0) if here else options or find_job_options()
        chosen = chosen or MultiprocessingOptions(os.cpu_count() or 1)
        with PipelineIterator[Any](Ahead(Elements(batches), chosen)) as ranges:
            ranges._set_next_index(at)
            try:
                for count, sorted_values in ranges:
                    end = min((at + 1) * size, node.length)
                    if count != end - at * size:  # a value would stand for another record
                        raise RuntimeError(f"{count} values came for elements {at * size} to {end}.")
                    at += 1
                    progress.show(end)
                    # The caller keeps all ranges. Those of workers lie in shared memory, which would be full soon.
                    yield end - count, count, sorted_values if here else trees.map_leaves(copy.copy, sorted_values)
                    if here and time.monotonic() - started > _INLINE_S:
                        break
                else:
                    if at < batches.length:  # asking again would give the same
                        raise RuntimeError(f"The values ended after piece {at} of {batches.length}.")
            except PipelineNotSent as error:
                add_note(error, "bushel: workers=0 computes it in this process.")
                raise


@in_states("column_value", {"_transform": "column_value.transform", "_function": None})
class _WithAValue:
    """The user's function, which must return a value for each element. In messages it has the name of the function."""

    def __init__(self, transform: Any):
        self._transform = transform
        self._function = transforms.method(transform, transforms.Map, "map")
        functools.update_wrapper(self, self._function, updated=())

    def __call__(self, element: Any) -> Any:
        found = self._function(element)
        if found is None:
            name = transforms.short_name(self._transform)
            raise ValueError(f"{name} returned None; a column needs a value for each.")
        return found


def _save(
    folder: Folder, whole: str, parts: str, node: MapElements, options: WorkerOptions | None, progress: Progress
) -> None:
    """Compute what is missing, part by part, then put the parts together. Only what is whole has its name.

    In a store two processes may compute the same column at the same time. Their values are the same, and neither
    removes a part that the other may still need.
    """
    size = _range_size(node.length)
    done = _parts_done(folder, parts, node.length, size)
    if folder.on_disk:
        # Torn ones, and those after a torn one: they would stand in the way of what is computed again.
        folder.remove(set(folder.names(parts)) - {name for name, _, _ in done})
    known = _new_type(node)
    ranges: list[tuple[int, SortedValuesOfRange]] = []
    begin = 0
    for _, end, values in done:
        ranges.append((end - begin, sort_arrays(values)))
        known = known.extend(begin, ranges[-1][1])
        begin = end
    saved = time.monotonic()
    first = -(-begin // size)
    waiting: list[tuple[int, SortedValuesOfRange]] = []

    def flush() -> None:
        nonlocal begin, saved
        if waiting:
            joined = known.join(waiting)
            end = begin + len(joined)
            name = f"{parts}/{begin:015d}-{end:015d}.npy"
            with folder.replacing(name) as file:
                checked_files.put_array(file, joined)
            # Mapped from disk, the values of a long column need no memory until they are put together.
            kept = _loaded(folder, name, end - begin, verify=False) if folder.on_disk else joined
            ranges.append((end - begin, sort_arrays(kept)))
            begin, saved = end, time.monotonic()
            waiting.clear()

    try:
        for start, count, sorted_values in _ranges(node, first, options, progress):
            known = known.extend(start, sorted_values)
            waiting.append((count, sorted_values))
            if time.monotonic() - saved > _SAVE_EVERY_S:
                flush()
    finally:
        flush()  # also what was computed before an error, or before Ctrl-C
    with folder.replacing(whole) as file:
        checked_files.put_array(file, known.join(ranges))
    folder.remove(folder.names(parts))
    if folder.on_disk:
        shutil.rmtree(folder.path(parts), ignore_errors=True)


def _parts_done(folder: Folder, parts: str, length: int, size: int) -> list[tuple[str, int, np.ndarray]]:
    """Return the saved parts from the first record on without a gap: the name of each, where it ends, and its
    values.
    """
    found = []
    end = 0
    for name in folder.names(parts):
        bounds = _PART.fullmatch(name.removeprefix(f"{parts}/"))
        begin, stop = (int(number) for number in bounds.groups()) if bounds else (-1, -1)
        if begin < end and not folder.on_disk:  # of another process, or of another program
            continue
        if begin != end or (stop % size and stop != length):
            break
        values = _kept(folder, name, stop - begin)
        if values is None:  # it is computed again, and all after it
            break
        found.append((name, stop, values))
        end = stop
    return found


def _kept(folder: Folder, name: str, length: int, *, warn: bool = True) -> np.ndarray | None:
    """Return the values of a file that is there and whole; None where they have to be computed (again)."""
    try:
        return _loaded(folder, name, length, verify=True)
    except FileNotFoundError:
        return None
    except (DamagedFile, OSError) as error:
        if isinstance(error, PermissionError) and not folder.on_disk:
            raise  # a store that may not be read will not be written either
        if warn:
            shown = folder.shown(name)
            warnings.warn(
                f"The saved column {shown} cannot be used and is computed again: {error}", BushelWarning, stacklevel=2
            )
        return None


def _loaded(folder: Folder, name: str, length: int, *, verify: bool) -> np.ndarray:
    values = folder.read_array(name, verify=verify)
    if values.ndim == 0 or len(values) != length:
        raise DamagedFile(f"It should hold {length} values, and holds {trees.describe(values)}.")
    return values


_MORE = {"pack": ", length", "bucket": ", boundaries, batch_sizes", "sample": ", seed=0"}
"""The further arguments of operations that take a column."""


def compute_values(values: Any, node: MapNode) -> Any:
    """Return `values`, or their column over the elements of `node` if they are a function of an element."""
    return column(node, values) if callable(values) or isinstance(values, Map) else values


def bind_column(values: Any, node: MapNode, what: str) -> Column:
    """Return `values` as a column with a value for every element of `node`.

    They are a function, a column, or an array with one entry per element. `what` names the operation in messages.
    """
    if isinstance(values, str):
        argument = "by=" if what == "split" else ""
        raise TypeError(
            f"`{what}` takes a function or a column, not the name of an entry: write "
            f"`ds.{what}({argument}lambda element: element[{values!r}]{_MORE.get(what, '')})`."
        )
    values = compute_values(values, node)
    if not isinstance(values, Column):
        return _column_by_position(values, node, what)
    if values._reaches(node):
        return values
    # The user may have built the pipeline a second time: then the column belongs to nodes of the same identity.
    known = [(identify(node_values.node), node_values.values) for node_values in values._values_by_node]
    of_ancestors = [
        NodeValues(above, part_values)
        for above in _ancestors(node)
        for same, part_values in known
        if identify(above) == same
    ]
    column = Column(tuple(of_ancestors))
    if of_ancestors and column._reaches(node):
        return column
    homes = " and ".join(node_values.node.call() for node_values in values._values_by_node)
    raise ValueError(
        f"`{what}` got a column of the elements of {homes}, and not every element of {node.call()} is made of one of "
        "them. Compute the column on this dataset, or on one that it is made of."
    )


def check_mask(values: Any, node: MapNode) -> Column:
    """Return `values` as a column of bools, for `where`."""
    column = bind_column(values, node, "where")
    if column.dtype != bool or any(part.values.ndim != 1 for part in column._values_by_node):
        raise TypeError(
            f"`where` takes one bool per element, such as `lengths > 10`; got values of {_type_of(column)}."
        )
    return column


def check_weights(values: Any, node: MapNode) -> Column:
    """Return `values` as a column of weights, for `sample`."""
    column = _check_numbers(values, node, "sample")
    weights = column.values
    if len(weights) and (not np.isfinite(weights).all() or (weights < 0).any() or not weights.any()):
        raise ValueError(
            "Weights for `sample` must be finite, not negative, and not all zero; "
            f"they range from {weights.min()} to {weights.max()}."
        )
    return column


def check_sortable(values: Any, node: MapNode) -> Column:
    """Return `values` as a column of numbers without NaN, for `order_by`."""
    column = _check_numbers(values, node, "order_by")
    unknown = np.flatnonzero(np.isnan(column.values))
    if len(unknown):
        raise ValueError(f"`order_by` cannot place {len(unknown)} values that are NaN, the first at {unknown[0]}.")
    return column


def check_groups(values: Any, node: MapNode, whole: MapNode) -> np.ndarray:
    """Return the value of each element of `node` by which `split` keeps elements together.

    `node` is the step of the pipeline `whole` that is split, where each epoch has the same elements in the same order.
    A function is called with the elements of `whole`.
    """
    values = compute_values(values, whole)
    if not isinstance(values, (Column, str)) and whole.epochs is not Epochs.SAME:
        raise ValueError(_explain_order("split", whole))
    column = bind_column(values, node, "split")
    if column.dtype.kind not in "biuSUmM" or any(part.values.ndim != 1 for part in column._values_by_node):
        raise TypeError(
            "`split(by=...)` takes one whole number, text or date per element, such as the number of an episode; got "
            f"values of {_type_of(column)}."
        )
    return column._of_epoch(node, 0)


def split_records(node: MapNode, shares: Any, seed: int, by: Any, hashed: bool) -> list[MapNode]:
    """Return the parts of a split, each as a copy of the pipeline that reads other records; see `MapDataset.split`."""
    if isinstance(shares, (str, bytes)) or not isinstance(shares, (Mapping, Sequence, np.ndarray)):
        raise TypeError(f"`split` takes the shares of the parts, such as [0.9, 0.1]; got {shares!r}.")
    checked = select.check_split_sizes(list(shares.values() if isinstance(shares, Mapping) else shares))
    chosen_seed = checks.seed(seed, below=1 << 32)
    if hashed and (by is None or checked.counts):
        needs = "a value for each record: write `by=function`" if by is None else "shares such as [0.9, 0.1]"
        raise ValueError(f"`split` with hashed=True needs {needs}.")
    records = select.find_records(node)
    if by is None:
        parts = select.split_by_position(records, checked, chosen_seed)
    else:
        groups = check_groups(check_values(by, "split"), records, node)
        parts = select.split_by_group(records, groups, checked, chosen_seed, hashed)
    return [select.replace_records(node, records, part) for part in parts]


_CHECKS = {"where": check_mask, "sample": check_weights, "order_by": check_sortable}


def choose_elements(node: MapNode, values: Any, what: str, rule: select.Rule) -> MapNode:
    """Return the elements that a rule chooses by their values, for the operation `what`:

    "where", "sample" or "order_by".
    """
    checked = check_values(values, what)

    def build(inner: MapNode) -> MapNode:
        return select.choose(inner, _CHECKS[what](checked, inner), rule)

    return select.under_endless_repeat(node, build)


def pack_elements(node: MapNode, lengths: Any, *options: Any) -> MapNode:
    """Return rows packed from the elements of a node, each epoch as the first if it repeats; see `MapDataset.pack`.

    `options` are the length of a row, the strategy, the window, the seed and the largest number of sequences.
    """
    if isinstance(lengths, Mapping):
        checked: Any = {name: check_values(values, "pack") for name, values in lengths.items()}
    else:
        checked = check_values(lengths, "pack")
    read = by_length.check_options(*options)
    return select.under_endless_repeat(node, lambda inner: pack_rows(inner, checked, read))


def pack_rows(node: MapNode, values: Any, options: PackOptions) -> PackedRows:
    """Return the node of rows that are packed from the elements of `node`. `values` are the lengths of the elements."""
    if node.epochs is not Epochs.SAME:
        raise ValueError(
            f"After {node.call()} every epoch has another order, and packed in that order it would have another number "
            "of rows. Pack first, then shuffle the rows; `pack(seed=...)` packs elements in a shuffled order."
        )
    values = compute_values(values, node)  # once, and not for each feature
    found = [_check_lengths(values, node, name) for name in options.capacities]
    lengths = np.stack([column._of_epoch(node, 0) for column in found], axis=1).astype(np.int64)
    if options.strategy != "concat_split":
        for number, (name, capacity) in enumerate(options.capacities.items()):
            above = np.flatnonzero(lengths[:, number] > capacity)
            if len(above):
                raise ValueError(
                    f"{len(above)} of {len(lengths)} sequences are longer than their row of {capacity}, the first is "
                    f"element {above[0]} with {lengths[above[0], number]} ({name}). Truncate them, leave them out with "
                    '`where(lengths <= ...)`, or cut them with strategy="concat_split".'
                )
    return PackedRows(node, options, plan_rows(lengths, options), digest([column._digest for column in found]))


def bucket_elements(
    node: MapNode,
    lengths: Any,
    boundaries: Sequence[int],
    batch_sizes: int | Sequence[int],
    *,
    derive_seed: Callable[[], int],
    drop_remainder: bool,
    features: Sequence[str] | None,
    padding: Any,
    batch_fn: Any,
) -> MapNode:
    """Return batches of the elements of a node with similar lengths; see `MapDataset.bucket`."""
    checked = check_values(lengths, "bucket")
    if batch_fn is not None:
        padded = isinstance(padding, Mapping) or padding != 0
        given = {"features": features is not None, "padding": padded}
        checks.unused(given, "with batch_fn, which makes the batch", "Pad inside batch_fn")
    bounds, sizes = by_length.check_sizes(boundaries, batch_sizes)
    named = None if features is None else tuple(features)
    options = BucketOptions(bounds, sizes, derive_seed(), bool(drop_remainder), named, padding, batch_fn)
    return select.under_endless_repeat(node, lambda inner: bucket_batches(inner, checked, options))


def bucket_batches(node: MapNode, values: Any, options: BucketOptions) -> Bucket:
    """Return the node of batches of elements with similar lengths.

    `values` are the lengths of the elements of `node`.
    """
    if node.epochs is Epochs.DIFFERENT:
        raise ValueError(
            f"Epochs of {node.call()} are made of different records, so each would have another number of batches. "
            "Put elements into buckets before slicing a shuffled dataset, and on each part before mixing."
        )
    column = _check_whole_numbers(bind_column(values, node, "bucket"), "bucket")
    longest = int(column.values.max()) if len(column) else 0
    if longest > options.boundaries[-1]:
        raise ValueError(
            f"A sequence has length {longest}, above the last boundary {options.boundaries[-1]}. Add a boundary, "
            "truncate it, or leave it out with `where(lengths <= ...)`."
        )
    return by_length.put_into_buckets(node, column, options)


def _check_lengths(values: Any, node: MapNode, name: str) -> Column:
    """Return the lengths of one feature: `values` itself, or its entry or field of that name."""
    if isinstance(values, Mapping):
        if name not in values:
            raise ValueError(f"`pack` needs lengths of {name!r}; it got lengths of {sorted(values)}.")
        values = values[name]
    column = bind_column(values, node, "pack")
    return _check_whole_numbers(column[name] if column.dtype.names and name in column.dtype.names else column, "pack")


def _check_whole_numbers(column: Column, what: str) -> Column:
    if column.dtype.kind not in "iu" or any(part.values.ndim != 1 for part in column._values_by_node):
        raise TypeError(f"`{what}` takes one whole number per element as its length; got values of {_type_of(column)}.")
    least = min((int(part.values.min()) for part in column._values_by_node if len(part.values)), default=0)
    if least < 0:
        raise ValueError(f"`{what}` got a negative length, {least}.")
    most = max((int(part.values.max()) for part in column._values_by_node if len(part.values)), default=0)
    if most > np.iinfo(np.int64).max:
        raise ValueError(f"`{what}` got a length of {most}, more than an int64 holds.")
    return column


def _check_numbers(values: Any, node: MapNode, what: str) -> Column:
    column = bind_column(values, node, what)
    if column.dtype.kind not in "biuf" or any(part.values.ndim != 1 for part in column._values_by_node):
        raise TypeError(f"`{what}` takes one number per element; got values of {_type_of(column)}.")
    return column


def _type_of(column: Column) -> str:
    return f"{column.dtype}{list(column._values_by_node[0].values.shape[1:]) or ''}"


def _column_by_position(values: Any, node: MapNode, what: str) -> Column:
    array = collect_values(values, "the argument")
    if node.epochs is not Epochs.SAME:
        raise ValueError(_explain_order(what, node))
    if array.ndim == 0 or len(array) != node.length:
        name = node.call()
        elements = (
            f"elements of {name}, which has no end"
            if checks.is_endless(node.length)
            else (f"{node.length:,} elements of {name}")
        )
        raise ValueError(
            f"`{what}` needs a function, a column, or one value for each of the {elements}; "
            f"got {trees.describe(array)}."
        )
    return Column((NodeValues(node, array),))


def _explain_order(what: str, node: MapNode) -> str:
    return (
        f"`{what}` got an array, which goes by position, but after {node.call()} the same position holds another "
        "record in every epoch. Use a column, `ds.column(function)`, which belongs to records, or do it before."
    )


def _ancestors(node: MapNode) -> list[MapNode]:
    return [node, *(above for parent in node.parents for above in _ancestors(parent))]
