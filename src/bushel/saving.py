"""Saving the elements of a pipeline in files, sharded and resumable: `ds.save`. `sources/saved.py` reads them back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from bushel.base import checks, sealed
from bushel.base.checks import INFINITE
from bushel.base.errors import writing
from bushel.base.options import MultiprocessingOptions
from bushel.base.progress import Progress
from bushel.graph.streams import Ahead, StreamNode
from bushel.iterator import PipelineIterator
from bushel.sources import elements, writers
from bushel.sources.element_rows import RowWriter
from bushel.sources.elements import Layout
from bushel.sources.saved import MANIFEST, Manifest
from bushel.state.digest import digest

Format = Literal["array_record", "bagz", "parquet", "tfrecord"]
SHARD_BYTES = 256 << 20
"""About how large a file becomes where the number of files is not given."""

_PROGRESS = ".saving.json"
_RECORDS = {
    "array_record": writers.ArrayRecordWriter,
    "bagz": writers.BagWriter,
    "tfrecord": writers.TFRecordWriter,
}


def save(
    node: StreamNode,
    path: str | os.PathLike[str],
    *,
    format: Format = "array_record",
    shards: int | None = None,
    options: MultiprocessingOptions | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Saves all elements of a stream; see `MapDataset.save`. Returns the files."""
    if format not in (*_RECORDS, "parquet"):
        raise ValueError(f"format must be one of {', '.join([*_RECORDS, 'parquet'])}; got {format!r}.")
    folder = os.fspath(path)
    if "://" in folder:
        raise ValueError(f"save writes to local folders; copy the folder to {folder} afterwards.")
    length = node.length
    if length is not None and length >= INFINITE:
        raise ValueError("An endless dataset cannot be saved: leave out `repeat()`, or limit it with `limit(count)`.")
    per_shard = None
    if shards is not None:
        if length is None:
            raise ValueError(
                "shards needs a dataset whose length is known without reading. Leave it out: files then have about "
                f"{SHARD_BYTES >> 20} MB each."
            )
        per_shard = max(1, -(-length // checks.positive(shards, "shards")))
    # A node of its own, so that saving does not count as a pass of the user's: see graph/passes.py.
    with PipelineIterator(Ahead(node, MultiprocessingOptions() if options is None else options)) as iterator:
        work = _Work(folder, format, digest(iterator.identity, per_shard))
        if not work.begin(overwrite=overwrite):
            return work.paths()
        if work.state is not None:
            iterator.set_state(work.state)
        progress = Progress(f"saving {os.path.basename(folder)}", length)
        _write_all(iterator, work, per_shard, progress)
        progress.end()
    work.finish()
    return work.paths()


def _write_all(iterator: PipelineIterator[Any], work: _Work, per_shard: int | None, progress: Progress) -> None:
    done = sum(work.counts)
    left = iter(iterator)
    for first in left:
        if work.layout is None:
            work.layout = elements.layout_of(first)
        with work.new_file(first) as shard:
            shard.write(first, done)
            while shard.count != per_shard and (per_shard is not None or shard.size_bytes < SHARD_BYTES):
                try:
                    element = next(left)
                except StopIteration:
                    break
                shard.write(element, done + shard.count)
                progress.show(done + shard.count)
        done += shard.count
        work.keep(shard, iterator.get_state())


class _Writer(Protocol):
    def write(self, element: Any) -> int: ...

    def close(self) -> None: ...


class _RecordFile:
    """A file of records that takes elements."""

    def __init__(self, writer: writers.Writer, layout: Layout):
        self._writer, self._layout = writer, layout

    def write(self, element: Any) -> int:
        record = elements.encode(element, self._layout)
        self._writer.write(record)
        return len(record)

    def close(self) -> None:
        self._writer.close()


@dataclasses.dataclass
class _Shard:
    """A file that is being written."""

    path: str
    writer: _Writer
    count: int = 0
    size_bytes: int = 0

    def write(self, element: Any, number: int) -> None:
        try:
            with writing(self.path):
                self.size_bytes += self.writer.write(element)
        except ValueError as error:
            raise ValueError(f"Element {number} cannot be saved with the others: {error}") from None
        self.count += 1


class _Work:
    """The folder while it is written: finished files, and after each of them the state to go on from.

    A file has a name of its own once it is complete, and counts once `.saving.json` has it: what a killed run left
    behind it is written again.
    """

    def __init__(self, folder: str, format: Format, identity: str):
        self._folder, self._format, self._identity = folder, format, identity
        self.files: list[str] = []
        self.counts: list[int] = []
        self.layout: Layout | None = None
        self.state: Any = None

    def paths(self) -> list[str]:
        return [os.path.join(self._folder, name) for name in self.files]

    def begin(self, *, overwrite: bool) -> bool:
        """Looks at what is in the folder; False where it has these very elements already."""
        manifest, progress = (os.path.join(self._folder, name) for name in (MANIFEST, _PROGRESS))
        if overwrite:
            _remove_saved(self._folder)
        elif os.path.exists(manifest):
            with open(manifest, "rb") as file:
                saved = Manifest.parse(file.read(), manifest)
            if (saved.identity, saved.format) != (self._identity, self._format):
                raise FileExistsError(
                    f"{self._folder} has elements of another pipeline, format or number of shards. Pass overwrite=True "
                    "to replace them, or save to another folder."
                )
            self.files, self.counts = list(saved.files), list(saved.counts)
            return False
        elif os.path.exists(progress):
            kept = sealed.read_json(progress)
            if (kept["identity"], kept["format"]) != (self._identity, self._format):
                raise FileExistsError(
                    f"{self._folder} has a part of the elements of another pipeline, whose saving was interrupted. "
                    "Pass overwrite=True to begin anew."
                )
            self.files, self.counts, self.layout, self.state = (
                kept["files"],
                kept["counts"],
                kept["layout"],
                kept["state"],
            )
        os.makedirs(self._folder, exist_ok=True)
        return True

    @contextlib.contextmanager
    def new_file(self, first: Any) -> Iterator[_Shard]:
        """A file under a temporary name, which gets its own when it is complete, and is removed where that fails."""
        name = f"part-{len(self.files):05d}.{self._format}"
        path, temporary = os.path.join(self._folder, name), os.path.join(self._folder, f".{name}")
        try:
            with writing(path):
                shard = _Shard(path, self._writer(temporary, first))
            try:
                yield shard
            except BaseException:
                with contextlib.suppress(Exception):  # what went wrong first is what matters
                    shard.writer.close()
                raise
            with writing(path):
                shard.writer.close()
                os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(temporary)
            raise

    def _writer(self, path: str, first: Any) -> _Writer:
        if self._format == "parquet":
            return RowWriter(path, self.layout, first)
        return _RecordFile(_RECORDS[self._format](path, True), self.layout)  # compressed, where the format can be

    def keep(self, shard: _Shard, state: Any) -> None:
        """Counts a file as done: a run that is killed after this goes on from `state`."""
        self.files.append(os.path.basename(shard.path))
        self.counts.append(shard.count)
        kept = {
            "identity": self._identity,
            "format": self._format,
            "files": self.files,
            "counts": self.counts,
            "layout": self.layout,
            "state": state,
        }
        sealed.write_json(os.path.join(self._folder, _PROGRESS), kept)

    def finish(self) -> None:
        """Writes the manifest: from now on the folder can be read."""
        layout = {"dict": {}} if self.layout is None else self.layout
        made = Manifest(self._format, tuple(self.files), tuple(self.counts), layout, self._identity)
        sealed.write_json(os.path.join(self._folder, MANIFEST), made.content())
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self._folder, _PROGRESS))


def _remove_saved(folder: str) -> None:
    """Removes what a save has written, and nothing else that lies in the folder."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name in (MANIFEST, _PROGRESS) or name.lstrip(".").startswith("part-"):
            path = os.path.join(folder, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
