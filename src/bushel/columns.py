"""Computing columns: once over all records, in parallel, resumable, saved under the pipeline's identity.

What a column is and how it follows its records is in `graph/columns.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bushel.base import sealed, transforms, trees
from bushel.base.errors import DamagedFile, PipelineNotSent, add_note
from bushel.base.options import MultiprocessingOptions
from bushel.base.progress import Progress
from bushel.graph.apply import Map
from bushel.graph.batch import Batch
from bushel.graph.columns import Column, NoneMissing, Part, find_records
from bushel.graph.node import MapNode
from bushel.graph.streams import Ahead, Elements
from bushel.iterator import PipelineIterator
from bushel.state.digest import digest
from bushel.state.identity import PYTHON, functions_digest, identity

_FORMAT = 3  # before, a column could hold values of other records, where elements of the data set were missing
_INLINE_S = 0.3  # what takes no longer is not worth a pool of workers
_SAVE_EVERY_S = 1.0
_PIECES = 1024
_PART = re.compile(r"(\d{1,18})-(\d{1,18})")  # the name of a file with some of the values


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
    for record, made in find_records(node):
        values = _computed(Map(made, function, vectorized), folder, options)
        values.setflags(write=False)
        parts.append(Part(record, values))
    return Column(tuple(parts))


def _computed(node: Map, folder: Path | None, options: MultiprocessingOptions | None) -> np.ndarray:
    progress = Progress(f"column {transforms.short_name(node.transform)}", node.length)
    if folder is None:
        return _joined(list(_pieces(node, 0, options, progress)), node)
    name = digest(_FORMAT, PYTHON, identity(node), functions_digest(node))
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f"{name}.npy"
    values = _kept(whole, node.length, warn=False)
    if values is None:
        with _locked(folder / f"{name}.lock", progress):
            values = _kept(whole, node.length)  # another process may have made it meanwhile
            if values is None:
                _save(whole, folder / f"{name}.parts", node, options, progress)
                values = _loaded(whole, node.length, verify=False)
    return values


def _piece_size(length: int) -> int:
    """Elements of a piece, in which values are computed. It depends on the length alone, so that any run can go on."""
    return min(max(-(-length // _PIECES), 64), 1 << 16)


def _pieces(node: Map, begin: int, options: MultiprocessingOptions | None, progress: Progress) -> Iterator[np.ndarray]:
    """Values from piece `begin` on, piece by piece: here as long as that is quick, then in worker processes."""
    checked = Map(NoneMissing(node.parent), _with_a_value(node), node.vectorized)
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
                    end = min((at + 1) * batches.batch_size, node.length)
                    values = _as_values(piece, node)
                    if len(values) != end - at * batches.batch_size:  # a value would stand for another record
                        raise RuntimeError(
                            f"{len(values)} values came for elements {at * batches.batch_size} to {end}."
                        )
                    at += 1
                    progress.show(end)
                    yield values
                    if here and time.monotonic() - started > _INLINE_S:
                        break
                else:
                    if at < batches.length:  # asking again would give the same
                        raise RuntimeError(f"The values ended after piece {at} of {batches.length}.")
            except PipelineNotSent as error:
                add_note(error, "bushel: options=MultiprocessingOptions(num_workers=0) computes it in this process.")
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
    fields: dict[Any, Any] = piece if isinstance(piece, dict) else {}
    if fields and all(isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject for leaf in fields.values()):
        kinds = np.dtype([(str(name), leaf.dtype, leaf.shape[1:]) for name, leaf in fields.items()])
        records = np.empty(len(next(iter(fields.values()))), kinds)
        for name, leaf in fields.items():
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


def _save(whole: Path, parts: Path, node: Map, options: MultiprocessingOptions | None, progress: Progress) -> None:
    """Computes what is missing, part by part, then puts the parts together. Only what is whole has its name."""
    parts.mkdir(exist_ok=True)
    size = _piece_size(node.length)
    done = _parts_done(parts, node.length, size)
    for path in set(parts.iterdir()) - {path for _, _, path in done}:
        path.unlink()  # torn, or after one that is: they would stand in the way of what is computed again
    begin, saved = done[-1][1] if done else 0, time.monotonic()
    first = -(-begin // size)
    waiting: list[np.ndarray] = []

    def flush() -> None:
        nonlocal begin, saved
        if waiting:
            joined = _joined(waiting, node)
            end = begin + len(joined)
            sealed.write_array(parts / f"{begin:015d}-{end:015d}.npy", joined)
            begin, saved = end, time.monotonic()
            waiting.clear()

    try:
        for piece in _pieces(node, first, options, progress):
            waiting.append(piece)
            if time.monotonic() - saved > _SAVE_EVERY_S:
                flush()
    finally:
        flush()  # also what was computed before an error, or before Ctrl-C
    pieces = [sealed.read_array(path, verify=False) for _, _, path in _parts_done(parts, node.length, size)]
    values = _joined(pieces, node)
    if len(values) != node.length:
        raise OSError(f"Of {node.length} values only {len(values)} can be read back from {parts}. Is the disk full?")
    sealed.write_array(whole, values)
    shutil.rmtree(parts)


def _parts_done(parts: Path, length: int, size: int) -> list[tuple[int, int, Path]]:
    """The saved parts from the first record on without a gap: (begin, end, file)."""
    found = []
    end = 0
    for path in sorted(parts.glob("*-*.npy")):
        bounds = _PART.fullmatch(path.stem)
        begin, stop = (int(number) for number in bounds.groups()) if bounds else (-1, -1)
        if begin != end or (stop % size and stop != length):
            break
        if _kept(path, stop - begin) is None:  # it is computed again, and all after it
            break
        found.append((begin, stop, path))
        end = stop
    return found


def _kept(path: Path, length: int, *, warn: bool = True) -> np.ndarray | None:
    """The values of a file that is there and whole; None where they have to be computed (again)."""
    try:
        return _loaded(path, length, verify=True)
    except FileNotFoundError:
        return None
    except (DamagedFile, OSError) as error:
        if warn:
            warnings.warn(f"The saved column {path} cannot be used and is computed again: {error}", stacklevel=2)
        return None


def _loaded(path: Path, length: int, *, verify: bool) -> np.ndarray:
    values = sealed.read_array(path, verify=verify)
    if values.ndim == 0 or len(values) != length:
        raise DamagedFile(f"It should hold {length} values, and holds {trees.describe(values)}.")
    return values


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """One process computes; others wait for it. A process that dies gives the lock back."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that computes it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        path.unlink(missing_ok=True)  # not after an error: what is not whole is still to be locked
