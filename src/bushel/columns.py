"""Computes columns: one pass over all records, with workers, resumable, saved under the identity of the pipeline.

`graph/columns.py` says what a column is and how it follows its records.
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
from bushel.graph.columns import Column, NoneMissing, Part, computed_on
from bushel.graph.node import MapNode
from bushel.graph.streams import Ahead, Elements
from bushel.iterator import PipelineIterator
from bushel.state.digest import digest
from bushel.state.identity import PYTHON, freeze, functions_digest, identity

_FORMAT = 3  # columns of format 2 could hold wrong values if elements of the data set were missing
_INLINE_S = 0.3  # for shorter work, starting workers takes longer than it saves
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
    freeze(node)  # the nodes computed below may be copies of its nodes, with the same functions
    parts = []
    for record, made in computed_on(node):
        values = _compute(Map(made, function, vectorized), folder, options)
        values.setflags(write=False)
        parts.append(Part(record, values))
    return Column(tuple(parts))


def _compute(node: Map, folder: Path | None, options: MultiprocessingOptions | None) -> np.ndarray:
    progress = Progress(f"column {transforms.short_name(node.transform)}", node.length)
    if folder is None:
        return _join(list(_compute_pieces(node, 0, options, progress)), node)
    name = digest(_FORMAT, PYTHON, identity(node), functions_digest(node))
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f"{name}.npy"
    values = _load_if_whole(whole, node.length, warn=False)
    if values is None:
        with _lock(folder / f"{name}.lock", progress):
            values = _load_if_whole(whole, node.length)  # another process may have computed it meanwhile
            if values is None:
                _save(whole, folder / f"{name}.parts", node, options, progress)
                values = _load(whole, node.length, verify=False)
    return values


def _piece_size(length: int) -> int:
    """How many values are computed at a time. It depends on the length only, so that a later run can continue."""
    return min(max(-(-length // _PIECES), 64), 1 << 16)


def _compute_pieces(
    node: Map, begin: int, options: MultiprocessingOptions | None, progress: Progress
) -> Iterator[np.ndarray]:
    """Values from piece `begin` on, piece by piece: first in this process, then in workers if it takes long."""
    checked = Map(NoneMissing(node.parent), _refuse_none(node), node.vectorized)
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
                    values = _to_values(piece, node)
                    if len(values) != end - at * batches.batch_size:  # else values would belong to other records
                        raise RuntimeError(
                            f"{len(values)} values were computed for elements {at * batches.batch_size} to {end}."
                        )
                    at += 1
                    progress.show(end)
                    yield values
                    if here and time.monotonic() - started > _INLINE_S:
                        break
                else:
                    if at < batches.length:  # another try would end in the same place
                        raise RuntimeError(f"Only {at} of {batches.length} pieces were computed.")
            except PipelineNotSent as error:
                add_note(error, "bushel: options=MultiprocessingOptions(num_workers=0) computes it in this process.")
                raise
    progress.end()


def _refuse_none(node: Map) -> Callable[[Any], Any]:
    function = transforms.method(node.transform, transforms.Map, "map")

    @functools.wraps(function)
    def value(element: Any) -> Any:
        result = function(element)
        if result is None:
            raise ValueError(f"{transforms.short_name(node.transform)} returned None; a column needs a value for each.")
        return result

    return value


def _to_values(piece: Any, node: Map) -> np.ndarray:
    """A batch of results as one array. A dict of arrays becomes a structured array with one field per key."""
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
        f"{transforms.short_name(node.transform)} returned {trees.describe(piece)} for several elements."
    )


def _join(pieces: list[np.ndarray], node: Map) -> np.ndarray:
    return np.concatenate(pieces, dtype=_find_common_dtype(pieces, node)) if pieces else np.zeros(0)


def _find_common_dtype(pieces: list[np.ndarray], node: Map) -> np.dtype[Any]:
    kinds = list(dict.fromkeys((piece.dtype, piece.shape[1:]) for piece in pieces))
    try:
        if len({shape for _, shape in kinds}) > 1:
            raise TypeError
        return functools.reduce(np.promote_types, (kind for kind, _ in kinds))
    except TypeError:
        described = " and ".join(f"{kind}{list(shape)}" for kind, shape in kinds)
        raise TypeError(
            f"A column needs values of one type and shape; "
            f"{transforms.short_name(node.transform)} returned {described}."
        ) from None


def _save(whole: Path, parts: Path, node: Map, options: MultiprocessingOptions | None, progress: Progress) -> None:
    """Computes the missing values part by part, then joins the parts. Only the complete file gets the final name."""
    parts.mkdir(exist_ok=True)
    size = _piece_size(node.length)
    done = _find_parts(parts, node.length, size)
    for path in set(parts.iterdir()) - {path for _, _, path in done}:
        path.unlink()  # damaged, or after a damaged one: it will be computed again under another name
    begin, saved = done[-1][1] if done else 0, time.monotonic()
    first = -(-begin // size)
    waiting: list[np.ndarray] = []

    def flush() -> None:
        nonlocal begin, saved
        if waiting:
            joined = _join(waiting, node)
            end = begin + len(joined)
            sealed.write_array(parts / f"{begin:015d}-{end:015d}.npy", joined)
            begin, saved = end, time.monotonic()
            waiting.clear()

    try:
        for piece in _compute_pieces(node, first, options, progress):
            waiting.append(piece)
            if time.monotonic() - saved > _SAVE_EVERY_S:
                flush()
    finally:
        flush()  # after an error or Ctrl-C, too: the next run continues from there
    pieces = [sealed.read_array(path, verify=False) for _, _, path in _find_parts(parts, node.length, size)]
    values = _join(pieces, node)
    if len(values) != node.length:
        raise OSError(f"Only {len(values)} of {node.length} values can be read back from {parts}. Is the disk full?")
    sealed.write_array(whole, values)
    shutil.rmtree(parts)


def _find_parts(parts: Path, length: int, size: int) -> list[tuple[int, int, Path]]:
    """The saved parts from the first record up to the first gap: (begin, end, file)."""
    done = []
    end = 0
    for path in sorted(parts.glob("*-*.npy")):
        bounds = _PART.fullmatch(path.stem)
        begin, stop = (int(number) for number in bounds.groups()) if bounds else (-1, -1)
        if begin != end or (stop % size and stop != length):
            break
        if _load_if_whole(path, stop - begin) is None:  # this part and all later ones are computed again
            break
        done.append((begin, stop, path))
        end = stop
    return done


def _load_if_whole(path: Path, length: int, *, warn: bool = True) -> np.ndarray | None:
    """The values of a saved file; None if the file is missing or damaged, so that they must be computed."""
    try:
        return _load(path, length, verify=True)
    except FileNotFoundError:
        return None
    except (DamagedFile, OSError) as error:
        if warn:
            warnings.warn(f"The saved column {path} cannot be used and is computed again: {error}", stacklevel=2)
        return None


def _load(path: Path, length: int, *, verify: bool) -> np.ndarray:
    values = sealed.read_array(path, verify=verify)
    if values.ndim == 0 or len(values) != length:
        raise DamagedFile(f"It should hold {length} values, and holds {trees.describe(values)}.")
    return values


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Lets one process at a time compute a column. If that process dies, the system releases the lock."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process, which computes it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
        path.unlink(missing_ok=True)  # after an error it stays: the column is not complete
