"""Computing columns: once over all records, in parallel, resumable, saved under the pipeline's identity.

What a column is and how it follows its records is in `graph/columns.py`.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bushel._src.base import checks, sealed, transforms, trees
from bushel._src.base.errors import BushelWarning, DamagedFile, PipelineNotSent, add_note
from bushel._src.base.options import MultiprocessingOptions, WorkerOptions, find_job_options, read_workers
from bushel._src.base.progress import Progress
from bushel._src.base.state_names import in_states
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.graph.apply import Map
from bushel._src.graph.column_values import Piece, ValueType, join_arrays, sort_arrays
from bushel._src.graph.columns import Column, NoneMissing, Part, SortedValues, find_records
from bushel._src.graph.node import MapNode
from bushel._src.graph.streams import Ahead, Elements
from bushel._src.sources import output_folders
from bushel._src.sources.output_folders import Folder
from bushel._src.state.digest import digest
from bushel._src.state.identity import freeze, identify_in_full

_FORMAT = 5  # before, integers could become floats, and data in memory were compared by samples
_INLINE_S = 0.3  # what takes no longer is not worth a pool of workers
_SAVE_EVERY_S = 1.0
_PIECES = 1024
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
    """The column of `function` over the records of `node`; see `MapDataset.column`."""
    options = read_workers(workers)
    folder = None if cache_dir is None else output_folders.open_folder(cache_dir, storage_options)
    freeze(node)  # the nodes computed below may be copies of its nodes, with the same functions
    records, arrays = [], []
    for record, made in find_records(node):
        if checks.is_endless(made.length):
            raise ValueError(f"{made.call()} has no end, so it has no column. Call `column` before `repeat`.")
        records.append(record)
        arrays.append(_computed(Map(made, function, vectorized), folder, options, trust_source))
    arrays = join_arrays(arrays, transforms.short_name(function))
    for values in arrays:
        values.setflags(write=False)
    return Column(tuple(map(Part, records, arrays)))


def _computed(node: Map, folder: Folder | None, options: WorkerOptions | None, trust_source: bool) -> np.ndarray:
    with Progress(f"column {transforms.short_name(node.transform)}", node.length, unit="records") as progress:
        return _compute_values(node, folder, options, progress, trust_source)


def _compute_values(
    node: Map, folder: Folder | None, options: WorkerOptions | None, progress: Progress, trust_source: bool
) -> np.ndarray:
    if folder is None:
        known, pieces = _new_type(node), []
        for begin, count, piece in _pieces(node, 0, options, progress):
            known = known.extend(begin, piece)
            pieces.append((count, piece))
        return known.join(pieces)
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


def _piece_size(length: int) -> int:
    """Elements of a piece, in which values are computed. It depends on the length alone, so that any run can go on."""
    return min(max(-(-length // _PIECES), 64), 1 << 16)


def _new_type(node: Map) -> ValueType:
    return ValueType(transforms.short_name(node.transform))


def _pieces(
    node: Map, begin: int, options: WorkerOptions | None, progress: Progress
) -> Iterator[tuple[int, int, Piece]]:
    """Values from piece `begin` on: here as long as that is quick, then in worker processes.

    Gives the first element of each piece, how many it has, and its values.
    """
    checked = Map(NoneMissing(node.parent), _WithAValue(node.transform), node.vectorized)
    size = _piece_size(node.length)
    batches = SortedValues(checked, size)
    at, started = begin, time.monotonic()
    progress.show(min(begin * size, node.length))
    while at < batches.length:
        here = options is None and at == begin
        chosen = MultiprocessingOptions(0) if here else options or find_job_options()
        chosen = chosen or MultiprocessingOptions(os.cpu_count() or 1)
        with PipelineIterator[Any](Ahead(Elements(batches), chosen)) as pieces:
            pieces._set_next_index(at)
            try:
                for count, piece in pieces:
                    end = min((at + 1) * size, node.length)
                    if count != end - at * size:  # a value would stand for another record
                        raise RuntimeError(f"{count} values came for elements {at * size} to {end}.")
                    at += 1
                    progress.show(end)
                    # The caller keeps all pieces. Those of workers lie in shared memory, which would be full soon.
                    yield end - count, count, piece if here else trees.map_leaves(copy.copy, piece)
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


def _save(folder: Folder, whole: str, parts: str, node: Map, options: WorkerOptions | None, progress: Progress) -> None:
    """Computes what is missing, part by part, then puts the parts together. Only what is whole has its name.

    In a store two processes may compute the same column at the same time. Their values are the same, and neither
    removes a part that the other may still need.
    """
    size = _piece_size(node.length)
    done = _parts_done(folder, parts, node.length, size)
    if folder.on_disk:
        # Torn ones, and those after a torn one: they would stand in the way of what is computed again.
        folder.remove(set(folder.names(parts)) - {name for name, _, _ in done})
    known = _new_type(node)
    pieces: list[tuple[int, Piece]] = []
    begin = 0
    for _, end, values in done:
        pieces.append((end - begin, sort_arrays(values)))
        known = known.extend(begin, pieces[-1][1])
        begin = end
    saved = time.monotonic()
    first = -(-begin // size)
    waiting: list[tuple[int, Piece]] = []

    def flush() -> None:
        nonlocal begin, saved
        if waiting:
            joined = known.join(waiting)
            end = begin + len(joined)
            name = f"{parts}/{begin:015d}-{end:015d}.npy"
            with folder.replacing(name) as file:
                sealed.put_array(file, joined)
            # Mapped from disk, the values of a long column need no memory until they are put together.
            kept = _loaded(folder, name, end - begin, verify=False) if folder.on_disk else joined
            pieces.append((end - begin, sort_arrays(kept)))
            begin, saved = end, time.monotonic()
            waiting.clear()

    try:
        for start, count, piece in _pieces(node, first, options, progress):
            known = known.extend(start, piece)
            waiting.append((count, piece))
            if time.monotonic() - saved > _SAVE_EVERY_S:
                flush()
    finally:
        flush()  # also what was computed before an error, or before Ctrl-C
    with folder.replacing(whole) as file:
        sealed.put_array(file, known.join(pieces))
    folder.remove(folder.names(parts))
    if folder.on_disk:
        shutil.rmtree(folder.path(parts), ignore_errors=True)


def _parts_done(folder: Folder, parts: str, length: int, size: int) -> list[tuple[str, int, np.ndarray]]:
    """The saved parts from the first record on without a gap: the name of each, where it ends, and its values."""
    found = []
    end = 0
    for name in folder.names(parts):
        bounds = _PART.fullmatch(name.removeprefix(f"{parts}/"))
        begin, stop = (int(number) for number in bounds.groups()) if bounds else (-1, -1)
        if begin < end and not folder.on_disk:  # of another process, or not ours
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
    """The values of a file that is there and whole; None where they have to be computed (again)."""
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
