"""Computing columns: once over all records, in parallel, resumable, saved under the pipeline's identity.

What a column is and how it follows its records is in `graph/columns.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bushel.base import transforms, trees
from bushel.base.errors import PipelineNotSent
from bushel.base.options import MultiprocessingOptions
from bushel.graph.apply import Map
from bushel.graph.batch import Batch
from bushel.graph.bucket import Bucket, BucketOptions
from bushel.graph.columns import Column, Part, computed_on
from bushel.graph.node import Epochs, MapNode
from bushel.graph.pack import PackedRows, PackOptions, planned
from bushel.graph.streams import Ahead, Elements
from bushel.iterator import PipelineIterator
from bushel.state.digest import digest
from bushel.state.identity import PYTHON, identity

_FORMAT = 1
_INLINE_S = 0.3  # what takes no longer is not worth a pool of workers
_SAVE_EVERY_S = 1.0
_PIECES = 1024


def column(
    node: MapNode,
    function: Any,
    *,
    cache: str | os.PathLike[str] | None = None,
    options: MultiprocessingOptions | None = None,
    vectorized: bool = False,
) -> Column:
    """The column of `function` over the records of `node`; see `MapDataset.column`."""
    folder = None if cache is None else Path(cache)
    parts = []
    for record, made in computed_on(node):
        values = _computed(Map(made, function, vectorized), folder, options)
        values.setflags(write=False)
        parts.append(Part(record, values))
    return Column(tuple(parts))


def bound(values: Any, node: MapNode, what: str) -> Column:
    """`values` as a column that reaches all elements of `node`: one already, or an array with an entry per element."""
    if not isinstance(values, Column):
        return _by_position(values, node, what)
    if values.reaches(node):
        return values
    # The pipeline may have been built a second time: then the column belongs to nodes of the same identity.
    known = [(identity(part.node), part.values) for part in values.parts]
    found = [
        Part(above, part_values) for above in _ancestors(node) for same, part_values in known if identity(above) == same
    ]
    again = Column(tuple(found))
    if found and again.reaches(node):
        return again
    homes = " and ".join(part.node.call() for part in values.parts)
    raise ValueError(
        f"`{what}` got a column of the elements of {homes}, and not every element of {node.call()} is made of one of "
        "them. Compute the column on this dataset, or on one that it is made of."
    )


def mask(values: Any, node: MapNode) -> Column:
    """A column of bools, for `where`."""
    column = bound(values, node, "where")
    if column.dtype != bool or any(part.values.ndim != 1 for part in column.parts):
        raise TypeError(f"`where` takes one bool per element, such as `lengths > 10`; got values of {_kind(column)}.")
    return column


def weights(values: Any, node: MapNode) -> Column:
    """A column of weights, for `sample`."""
    column = _numbers(values, node, "sample")
    found = column.values
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError(
            "Weights for `sample` must be finite, not negative, and not all zero; "
            f"they range from {found.min()} to {found.max()}."
        )
    return column


def sortable(values: Any, node: MapNode) -> Column:
    """A column of numbers without NaN, for `order_by`."""
    column = _numbers(values, node, "order_by")
    unknown = np.flatnonzero(np.isnan(column.values))
    if len(unknown):
        raise ValueError(f"`order_by` cannot place {len(unknown)} values that are NaN, the first at {unknown[0]}.")
    return column


def packed(node: MapNode, values: Any, options: PackOptions) -> PackedRows:
    """Rows packed of the elements of `node`, whose lengths are `values`."""
    if node.epochs is not Epochs.SAME:
        raise ValueError(
            f"After {node.call()} every epoch has another order, and packed in that order it would have another number "
            "of rows. Pack first, then shuffle the rows; `pack(seed=...)` packs elements in a shuffled order."
        )
    columns = [_lengths(values, node, name) for name in options.capacities]
    found = np.stack([column.of_epoch(node, 0) for column in columns], axis=1).astype(np.int64)
    if options.strategy != "concat_split":
        for number, (name, capacity) in enumerate(options.capacities.items()):
            above = np.flatnonzero(found[:, number] > capacity)
            if len(above):
                raise ValueError(
                    f"{len(above)} of {len(found)} sequences are longer than their row of {capacity}, the first is "
                    f"element {above[0]} with {found[above[0], number]} ({name}). Truncate them, leave them out with "
                    '`where(lengths <= ...)`, or cut them with strategy="concat_split".'
                )
    return PackedRows(node, options, planned(found, options), digest([column.digest for column in columns]))


def bucketed(node: MapNode, values: Any, options: BucketOptions) -> Bucket:
    """Batches of like lengths of the elements of `node`, whose lengths are `values`."""
    if node.epochs is Epochs.DIFFERENT:
        raise ValueError(
            f"Epochs of {node.call()} are made of different records, so each would have another number of batches. "
            "Put elements into buckets before slicing a shuffled dataset, and on each part before mixing."
        )
    column = _whole_numbers(bound(values, node, "bucket"), "bucket")
    longest = int(column.values.max()) if len(column) else 0
    if longest > options.boundaries[-1]:
        raise ValueError(
            f"A sequence has length {longest}, above the last boundary {options.boundaries[-1]}. Add a boundary, "
            "truncate it, or leave it out with `where(lengths <= ...)`."
        )
    return Bucket(node, column, options)


def _lengths(values: Any, node: MapNode, name: str) -> Column:
    """The lengths of one feature: `values` itself, or its entry or field of that name."""
    if isinstance(values, Mapping):
        if name not in values:
            raise ValueError(f"`pack` needs lengths of {name!r}; it got lengths of {sorted(values)}.")
        values = values[name]
    column = bound(values, node, "pack")
    return _whole_numbers(column[name] if column.dtype.names and name in column.dtype.names else column, "pack")


def _whole_numbers(column: Column, what: str) -> Column:
    if column.dtype.kind not in "iu" or any(part.values.ndim != 1 for part in column.parts):
        raise TypeError(f"`{what}` takes one whole number per element as its length; got values of {_kind(column)}.")
    least = min((int(part.values.min()) for part in column.parts if len(part.values)), default=0)
    if least < 0:
        raise ValueError(f"`{what}` got a negative length, {least}.")
    return column


def _numbers(values: Any, node: MapNode, what: str) -> Column:
    column = bound(values, node, what)
    if column.dtype.kind not in "biuf" or any(part.values.ndim != 1 for part in column.parts):
        raise TypeError(f"`{what}` takes one number per element; got values of {_kind(column)}.")
    return column


def _kind(column: Column) -> str:
    return f"{column.dtype}{list(column.parts[0].values.shape[1:]) or ''}"


def _by_position(values: Any, node: MapNode, what: str) -> Column:
    array = np.asarray(values)
    if node.epochs is not Epochs.SAME:
        raise ValueError(
            f"`{what}` got an array, which goes by position, but after {node.call()} the same position holds another "
            "record in every epoch. Use a column, `ds.column(function)`, which belongs to records, or do it before."
        )
    if array.ndim == 0 or len(array) != node.length:
        raise ValueError(
            f"`{what}` needs a column, or one value for each of the {node.length} elements of {node.call()}; "
            f"got {trees.describe(array)}."
        )
    return Column((Part(node, array),))


def _ancestors(node: MapNode) -> list[MapNode]:
    return [node, *(above for parent in node.parents for above in _ancestors(parent))]


def _computed(node: Map, folder: Path | None, options: MultiprocessingOptions | None) -> np.ndarray:
    progress = _Progress(transforms.short_name(node.transform), node.length)
    if folder is None:
        return _joined(list(_pieces(node, 0, options, progress)), node)
    name = digest(_FORMAT, PYTHON, identity(node))
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f"{name}.npy"
    if not whole.exists():
        with _locked(folder / f"{name}.lock", progress):
            if not whole.exists():  # another process may have made it meanwhile
                _save(whole, folder / f"{name}.parts", node, options, progress)
    return _loaded(whole, node.length)


def _piece_size(length: int) -> int:
    """Elements of a piece, in which values are computed. It depends on the length alone, so that any run can go on."""
    return min(max(-(-length // _PIECES), 64), 1 << 16)


def _pieces(node: Map, begin: int, options: MultiprocessingOptions | None, progress: _Progress) -> Iterator[np.ndarray]:
    """Values from piece `begin` on, piece by piece: here as long as that is quick, then in worker processes."""
    checked = Map(node.parent, _with_a_value(node), node.vectorized)
    batches = Batch(checked, _piece_size(node.length))
    at, started = begin, time.monotonic()
    progress.show(min(begin * batches.batch_size, node.length))
    while at < batches.length:
        here = options is None and at == begin
        chosen = MultiprocessingOptions(0) if here else options or MultiprocessingOptions(os.cpu_count() or 1)
        with PipelineIterator[Any](Ahead(Elements(batches), chosen)) as pieces:
            pieces._set_next_index(at)
            try:
                for piece in pieces:
                    at += 1
                    progress.show(min(at * batches.batch_size, node.length))
                    yield _as_values(piece, node)
                    if here and time.monotonic() - started > _INLINE_S:
                        break
            except PipelineNotSent as error:
                error.add_note("bushel: options=MultiprocessingOptions(num_workers=0) computes it in this process.")
                raise
    progress.end()


def _with_a_value(node: Map) -> Callable[[Any], Any]:
    function = transforms.method(node.transform, transforms.Map, "map")

    @functools.wraps(function)
    def value(element: Any) -> Any:
        found = function(element)
        if found is None:
            raise ValueError(f"{transforms.short_name(node.transform)} returned None; a column needs a value for each.")
        return found

    return value


def _as_values(piece: Any, node: Map) -> np.ndarray:
    """A batch of results as one array: a dict of numbers becomes a record with fields."""
    if isinstance(piece, np.ndarray) and piece.dtype.kind in "biufcSUmMV":
        return piece
    if isinstance(piece, dict) and all(isinstance(v, np.ndarray) and not v.dtype.hasobject for v in piece.values()):
        kinds = np.dtype([(str(name), leaf.dtype, leaf.shape[1:]) for name, leaf in piece.items()])
        records = np.empty(len(next(iter(piece.values()))), kinds)
        for name, leaf in piece.items():
            records[str(name)] = leaf
        return records
    raise TypeError(
        f"A column needs a number, a small array of one shape, or a flat dict of them for each element; "
        f"{transforms.short_name(node.transform)} gave {trees.describe(piece)} for several."
    )


def _joined(pieces: list[np.ndarray], node: Map) -> np.ndarray:
    return np.concatenate(pieces, dtype=_common(pieces, node)) if pieces else np.zeros(0)


def _common(pieces: list[np.ndarray], node: Map) -> np.dtype[Any]:
    kinds = list(dict.fromkeys((piece.dtype, piece.shape[1:]) for piece in pieces))
    try:
        if len({shape for _, shape in kinds}) > 1:
            raise TypeError
        return functools.reduce(np.promote_types, (kind for kind, _ in kinds))
    except TypeError:
        told = " and ".join(f"{kind}{list(shape)}" for kind, shape in kinds)
        raise TypeError(
            f"A column needs values of one type and shape; {transforms.short_name(node.transform)} gave {told}."
        ) from None


def _save(whole: Path, parts: Path, node: Map, options: MultiprocessingOptions | None, progress: _Progress) -> None:
    """Computes what is missing, part by part, then puts the parts together. Only what is whole has its name."""
    parts.mkdir(exist_ok=True)
    size = _piece_size(node.length)
    done = _parts_done(parts, node.length, size)
    begin, saved = done[-1][1] if done else 0, time.monotonic()
    first = -(-begin // size)
    waiting: list[np.ndarray] = []

    def flush() -> None:
        nonlocal begin, saved
        if waiting:
            joined = _joined(waiting, node)
            end = begin + len(joined)
            _write(parts / f"{begin:015d}-{end:015d}.npy", joined)
            begin, saved = end, time.monotonic()
            waiting.clear()

    try:
        for piece in _pieces(node, first, options, progress):
            waiting.append(piece)
            if time.monotonic() - saved > _SAVE_EVERY_S:
                flush()
    finally:
        flush()  # also what was computed before an error, or before Ctrl-C
    pieces = [np.load(path, mmap_mode="r") for _, _, path in _parts_done(parts, node.length, size)]
    _write(whole, _joined(pieces, node))
    shutil.rmtree(parts)


def _parts_done(parts: Path, length: int, size: int) -> list[tuple[int, int, Path]]:
    """The saved parts from the first record on without a gap: (begin, end, file)."""
    found = []
    end = 0
    for path in sorted(parts.glob("*-*.npy")):
        begin, stop = (int(number) for number in path.stem.split("-"))
        if begin != end or (stop % size and stop != length):
            break
        try:
            _loaded(path, stop - begin)
        except ValueError:  # torn when the machine went down: it is computed again, and all after it
            break
        found.append((begin, stop, path))
        end = stop
    return found


def _write(path: Path, values: np.ndarray) -> None:
    """Writes a file that has its name only once all of it is there."""
    temporary = path.with_suffix(".writing")
    with temporary.open("wb") as file:
        np.save(file, values, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _loaded(path: Path, length: int) -> np.ndarray:
    try:
        values = np.load(path, mmap_mode="r" if length else None, allow_pickle=False)
        if values.ndim == 0 or len(values) != length:
            raise ValueError(f"it holds {trees.describe(values)}")
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(
            f"The saved column {path} should hold {length} values and cannot be read: {error}. "
            "Remove the file, and it is computed again."
        ) from error
    return np.asarray(values)


@contextlib.contextmanager
def _locked(path: Path, progress: _Progress) -> Iterator[None]:
    """One process computes; others wait for it. A process that dies gives the lock back."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that computes it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        path.unlink(missing_ok=True)  # not after an error: what is not whole is still to be locked


class _Progress:
    """A line on a terminal that says how far it is; quiet elsewhere."""

    def __init__(self, name: str, total: int):
        self._name, self._total = name, total
        self._begun = self._shown = 0.0
        self._first = 0

    def show(self, done: int) -> None:
        now = time.monotonic()
        if not self._begun:
            self._begun, self._first = now, done
        if now - self._shown < 0.2 and done < self._total:
            return
        self._shown = now
        fresh, spent = done - self._first, now - self._begun
        left = f", {spent * (self._total - done) / fresh:.0f} s left" if fresh and spent > 1 else ""
        self.say(f"{done:,} of {self._total:,} ({done / max(1, self._total):.0%}){left}")

    def say(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[Kcolumn {self._name}: {text}")
            sys.stderr.flush()

    def end(self) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
