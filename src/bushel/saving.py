"""Saving the elements of a pipeline in files, sharded and resumable: `ds.save`. `sources/saved.py` reads them back.

Where files are written, here or in a store, is decided by `sources/writing.py`.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from bushel.base import checks, redact, sealed
from bushel.base.checks import INFINITE
from bushel.base.errors import DamagedFile, writing
from bushel.base.options import MultiprocessingOptions, WorkerOptions, find_job_options
from bushel.base.progress import Progress
from bushel.graph.streams import Ahead, StreamNode
from bushel.iterator import PipelineIterator
from bushel.sources import elements, writers
from bushel.sources import writing as places
from bushel.sources.element_rows import RowWriter
from bushel.sources.elements import Layout
from bushel.sources.saved import MANIFEST, Manifest
from bushel.sources.stores import Options
from bushel.sources.writing import Folder
from bushel.state.digest import digest

Format = Literal["array_record", "bagz", "parquet", "rlds", "tfrecord"]
SHARD_BYTES = 256 << 20
"""About how large a file becomes where the number of files is not given."""

INFO = "dataset_info.json"
"""What makes a folder an RLDS data set, or another one that TFDS reads."""

_PROGRESS = ".saving.json"
_ELSEWHERE = {"rlds": "bushel.trajectory.rlds.saved_episodes"}
"""Formats of higher layers: modules with a function `form(folder)`, loaded when such a format is asked for."""
_RECORDS = {
    "array_record": writers.ArrayRecordWriter,
    "bagz": writers.BagWriter,
    "tfrecord": writers.TFRecordWriter,
}
FORMATS = (*_RECORDS, "parquet", *_ELSEWHERE)


def save(
    node: StreamNode,
    path: str | os.PathLike[str],
    *,
    format: Format = "array_record",
    shards: int | None = None,
    options: WorkerOptions | None = None,
    overwrite: bool = False,
    storage_options: Options | None = None,
) -> list[str]:
    """Saves all elements of a stream; see `MapDataset.save`. Returns the files."""
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}.")
    folder = places.folder(path, storage_options)
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
    chosen = options or find_job_options() or MultiprocessingOptions()
    with PipelineIterator(Ahead(node, chosen)) as iterator:
        work = _Work(folder, format, _form(format, folder.address), digest(iterator.identity, per_shard))
        if not work.begin(overwrite=overwrite):
            return work.paths()
        if work.state is not None:
            iterator.set_state(work.state)
        progress = Progress(f"saving {redact.base_name(folder.address)}", length)
        _write_all(iterator, work, per_shard, progress)
        progress.end()
    work.finish()
    return work.paths()


def _write_all(iterator: PipelineIterator[Any], work: _Work, per_shard: int | None, progress: Progress) -> None:
    done = sum(work.files.counts)
    left = iter(iterator)
    for first in left:
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


class Writer(Protocol):
    """A file that takes elements."""

    def write(self, element: Any) -> int:
        """Writes an element; returns about how many bytes it takes."""
        ...

    def close(self) -> None:
        """Completes the file."""
        ...


@dataclasses.dataclass(frozen=True)
class Files:
    """The complete files of a folder: their names, how many elements each has, and about how many bytes these take."""

    names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def __add__(self, more: Files) -> Files:
        return Files(self.names + more.names, self.counts + more.counts, self.sizes + more.sizes)


class Form(abc.ABC):
    """How elements become files of one format, and which other files make a folder of them readable."""

    layout: Any = None
    """What all elements have in common, as JSON has it: known after the first, kept for a run that goes on."""

    @abc.abstractmethod
    def file_name(self, number: int) -> str:
        """The name of a file of elements."""

    @abc.abstractmethod
    def belongs(self, name: str) -> bool:
        """Whether a file with this name was written by `save`."""

    @abc.abstractmethod
    def open(self, path: str, first: Any) -> Writer:
        """A new file, whose first element will be `first`."""

    @abc.abstractmethod
    def finish(self, folder: Folder, files: Files, identity: str) -> None:
        """Writes the files that make the folder readable, the decisive one last."""


class _ElementForm(Form):
    """Elements of any kind, in files that `bushel.json` describes."""

    def __init__(self, format: str):
        self._format = format

    def file_name(self, number: int) -> str:
        return f"part-{number:05d}.{self._format}"

    def belongs(self, name: str) -> bool:
        return name == MANIFEST or name.startswith("part-")

    def open(self, path: str, first: Any) -> Writer:
        if self.layout is None:
            self.layout = elements.layout_of(first)
        if self._format == "parquet":
            return RowWriter(path, self.layout, first)
        return _RecordFile(_RECORDS[self._format](path, True), self.layout)  # compressed, where the format can be

    def finish(self, folder: Folder, files: Files, identity: str) -> None:
        layout = {"dict": {}} if self.layout is None else self.layout
        made = Manifest(self._format, files.names, files.counts, layout, identity)
        folder.write(MANIFEST, sealed.json_bytes(made.content()))


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


def _form(format: str, folder: str) -> Form:
    if format in _ELSEWHERE:
        return importlib.import_module(_ELSEWHERE[format]).form(folder)
    return _ElementForm(format)


@dataclasses.dataclass
class _Shard:
    """A file that is being written."""

    name: str
    shown: str
    writer: Writer
    count: int = 0
    size_bytes: int = 0

    def write(self, element: Any, number: int) -> None:
        try:
            with writing(self.shown):
                self.size_bytes += self.writer.write(element)
        except ValueError as error:
            raise ValueError(f"Element {number} cannot be saved with the others: {error}") from None
        self.count += 1


class _Work:
    """The folder while it is written: finished files, and after each of them the state to go on from.

    A file has a name of its own once it is complete, and counts once `.saving.json` has it: what a killed run left
    behind it is written again.
    """

    def __init__(self, folder: Folder, format: Format, form: Form, identity: str):
        self._folder, self._format, self._form, self._identity = folder, format, form, identity
        self.files = Files()
        self.state: Any = None

    def paths(self) -> list[str]:
        return [self._folder.path(name) for name in self.files.names]

    def begin(self, *, overwrite: bool) -> bool:
        """Looks at what is in the folder; False where it has these very elements already."""
        ours = [name for name in (MANIFEST, _PROGRESS) if self._folder.exists(name)]
        if not ours and self._folder.exists(INFO):
            raise FileExistsError(
                f"{self._folder.name} has a data set that `save` has not written ({INFO}). Save to another folder."
            )
        if overwrite:
            self._remove_saved(ours)
        elif MANIFEST in ours:
            saved = Manifest.parse(self._folder.read(MANIFEST), self._folder.shown(MANIFEST))
            self._compare(saved.identity, saved.format)
            self.files = Files(saved.files, saved.counts)
            return False
        elif ours:
            return self._go_on(sealed.parse_json(self._folder.read(_PROGRESS), self._folder.shown(_PROGRESS)))
        return True

    def _go_on(self, kept: dict[str, Any]) -> bool:
        self._compare(kept["identity"], kept["format"], interrupted=not kept.get("finished"))
        names, counts = kept["files"], kept["counts"]
        self.files = Files(tuple(names), tuple(counts), tuple(kept.get("sizes", [0] * len(names))))
        self._form.layout, self.state = kept["layout"], kept["state"]
        half = [name for name in self._folder.names() if name.startswith(".") and name.endswith(sealed.WRITING)]
        self._folder.remove(half)  # of a run that was killed
        return not kept.get("finished")

    def _compare(self, identity: str, format: str, *, interrupted: bool = False) -> None:
        if (identity, format) == (self._identity, self._format):
            return
        if interrupted:
            raise FileExistsError(
                f"{self._folder.name} has a part of the elements of another pipeline, whose saving was interrupted. "
                "Pass overwrite=True to begin anew."
            )
        raise FileExistsError(
            f"{self._folder.name} has elements of another pipeline, format or number of shards. Pass overwrite=True "
            "to replace them, or save to another folder."
        )

    def _remove_saved(self, ours: list[str]) -> None:
        """Removes what a save has written, and nothing else: first the files that make the others readable."""
        formats: set[Any] = {self._format}
        for name in ours:
            with contextlib.suppress(DamagedFile):
                formats.add(sealed.parse_json(self._folder.read(name), name, needs_checksum=False).get("format"))
        forms = [_form(format, self._folder.address) for format in formats if format in FORMATS]
        names = [name for name in self._folder.names() if any(form.belongs(name.lstrip(".")) for form in forms)]
        self._folder.remove(sorted(names, key=lambda name: name not in (MANIFEST, INFO)))
        self._folder.remove([_PROGRESS])

    @contextlib.contextmanager
    def new_file(self, first: Any) -> Iterator[_Shard]:
        """A file that gets its name when it is complete, and is removed where that fails."""
        name = self._form.file_name(len(self.files.names))
        shown = self._folder.shown(name)
        with self._folder.new_file(name) as path:
            with writing(shown):
                shard = _Shard(name, shown, self._form.open(path, first))
            try:
                yield shard
            except BaseException:
                with contextlib.suppress(Exception):  # what went wrong first is what matters
                    shard.writer.close()
                raise
            with writing(shown):
                shard.writer.close()

    def keep(self, shard: _Shard, state: Any) -> None:
        """Counts a file as done: a run that is killed after this goes on from `state`."""
        self.files += Files((shard.name,), (shard.count,), (shard.size_bytes,))
        self.state = state
        self._write_progress(finished=False)

    def _write_progress(self, *, finished: bool) -> None:
        kept = {
            "identity": self._identity,
            "format": self._format,
            "files": self.files.names,
            "counts": self.files.counts,
            "sizes": self.files.sizes,
            "layout": self._form.layout,
            "state": self.state,
            "finished": finished,
        }
        self._folder.write(_PROGRESS, sealed.json_bytes(kept))

    def finish(self) -> None:
        """Writes what makes the folder readable. Where that is no manifest of ours, `.saving.json` stays."""
        self._form.finish(self._folder, self.files, self._identity)
        if self._form.belongs(MANIFEST):
            self._folder.remove([_PROGRESS])
        else:
            self._write_progress(finished=True)
