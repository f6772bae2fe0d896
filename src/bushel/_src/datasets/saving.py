"""`ds.save`: writes the elements of a pipeline to files, sharded and resumable. `sources/saved_elements.py` reads them.

`sources/folders.py` writes the files, to a local folder or to a store.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from bushel._src.base import checked_files, checks, redact
from bushel._src.base.checks import is_endless
from bushel._src.base.errors import DamagedFile, SavedByAnotherPipeline, writing
from bushel._src.base.options import MultiprocessingOptions, WorkerOptions, find_job_options, read_workers
from bushel._src.base.shown_text import Progress, Written
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.graph.streams import Ahead, StreamNode
from bushel._src.sources import folders, record_writers, saved_elements
from bushel._src.sources.folders import Folder
from bushel._src.sources.paths import Options
from bushel._src.sources.saved_elements import MANIFEST, PROGRESS, Layout, Manifest, RowWriter
from bushel._src.state.digest import digest
from bushel._src.state.identity import identify_in_full

Format = Literal["array_record", "bag", "bagz", "parquet", "rlds", "tfrecord"]
SHARD_BYTES = 256 << 20
"""The approximate size of a file if the user does not say how many files to write."""

INFO = "dataset_info.json"
"""The file that makes a folder a data set of TFDS, such as an RLDS data set."""

_ELSEWHERE = {"rlds": "bushel._src.trajectory.episode_targets"}
"""Formats of higher layers: modules with a function `form(folder)`, imported when the format is used."""
_RECORDS = {
    "bag": record_writers.BagWriter,
    "array_record": record_writers.ArrayRecordWriter,
    "bagz": record_writers.BagWriter,
    "tfrecord": record_writers.TFRecordWriter,
}
FORMATS = (*_RECORDS, "parquet", *_ELSEWHERE)


def save(
    node: StreamNode,
    path: str | os.PathLike[str],
    *,
    format: Format = "bag",
    shards: int | None = None,
    workers: int | WorkerOptions | None = None,
    overwrite: bool = False,
    storage_options: Options | None = None,
    trust_source: bool = False,
) -> Written:
    """Save all elements of a stream; see `MapDataset.save`."""
    checks.choice(format, FORMATS, "format")
    folder = folders.open_folder(path, storage_options)
    length = node.length
    if length is not None and is_endless(length):
        raise ValueError("An endless dataset cannot be saved: leave out `repeat()`, or take a part with `take(count)`.")
    per_shard = None
    if shards is not None:
        if length is None:
            raise ValueError(
                "shards can only be given if the length of the dataset is known without reading it. Leave shards out: "
                f"each file then has about {SHARD_BYTES >> 20} MB."
            )
        per_shard = max(1, -(-length // checks.positive(shards, "shards")))
    # A new node, so that saving does not count as a pass of the user over the dataset: see graph/usage_warnings.py.
    chosen = read_workers(workers) or find_job_options() or MultiprocessingOptions()
    identity = digest(identify_in_full(node, trust_source=trust_source, method="save"), per_shard)
    with PipelineIterator(Ahead(node, chosen)) as iterator:
        work = _SavingRun(folder, format, _form(format, folder.address), identity)
        if not work.begin(overwrite=overwrite):
            return work.written()
        if work.state is not None:
            iterator.set_state(work.state)
        with Progress(f"saving {redact.base_name(folder.address)}", length, unit="elements") as progress:
            _write_all(iterator, work, per_shard, progress)
    work.finish()
    return work.written()


def _write_all(iterator: PipelineIterator[Any], work: _SavingRun, per_shard: int | None, progress: Progress) -> None:
    done = sum(work.files.counts)
    left = iter(iterator)
    for first in left:
        with work.new_file(first) as shard:
            shard.write(first, done)
            progress.show(done + 1)
            while shard.count != per_shard and (per_shard is not None or shard.size_bytes < SHARD_BYTES):
                try:
                    element = next(left)
                except StopIteration:
                    break
                shard.write(element, done + shard.count)
                progress.show(done + shard.count)
        done += shard.count
        work.keep(shard, iterator.get_state())
    work.skipped = iterator.skipped


class ElementWriter(Protocol):
    """Writes elements to one file."""

    def write(self, element: Any) -> int:
        """Write an element. Return the approximate number of bytes that it takes."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """The complete files of a folder: names, numbers of elements, and approximate sizes in bytes."""

    names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def __add__(self, more: ShardFiles) -> ShardFiles:
        return ShardFiles(self.names + more.names, self.counts + more.counts, self.sizes + more.sizes)


class Form(abc.ABC):
    """One format: how elements are written to files, and which other files make the folder readable."""

    layout: Any = None
    """What all elements have in common, as plain JSON. The first element sets it; a resumed run restores it."""

    @abc.abstractmethod
    def file_name(self, number: int) -> str:
        """Return the name of the file of elements with this number."""

    @abc.abstractmethod
    def belongs(self, name: str) -> bool:
        """Return whether a file with this name was written by `save`."""

    @abc.abstractmethod
    def open(self, path: str, first: Any) -> ElementWriter:
        """Open a new file, whose first element will be `first`."""

    @abc.abstractmethod
    def finish(self, folder: Folder, files: ShardFiles, identity: str, skipped: int) -> None:
        """Write the files that make the folder readable. Readers look for the last of them."""


class _ElementForm(Form):
    """Elements of any kind, in files that `bushel.json` describes."""

    def __init__(self, format: str):
        self._format = format

    def file_name(self, number: int) -> str:
        return f"part-{number:05d}.{self._format}"

    def belongs(self, name: str) -> bool:
        return name == MANIFEST or name.startswith("part-")

    def open(self, path: str, first: Any) -> ElementWriter:
        if self.layout is None:
            self.layout = saved_elements.infer_layout(first)
        if self._format == "parquet":
            return RowWriter(path, self.layout, first)
        compress = self._format != "bag"  # a TFRecord file is never compressed: one that is can only be read in order
        return _RecordFile(_RECORDS[self._format](path, compress), self.layout)

    def finish(self, folder: Folder, files: ShardFiles, identity: str, skipped: int) -> None:
        layout = {"dict": {}} if self.layout is None else self.layout
        made = Manifest(self._format, files.names, files.counts, layout, identity, skipped)
        folder.write(MANIFEST, checked_files.json_bytes(made.content()))


class _RecordFile:
    """Encodes elements as records and writes them to a file of records."""

    def __init__(self, writer: record_writers.RecordWriter, layout: Layout):
        self._writer, self._layout = writer, layout

    def write(self, element: Any) -> int:
        record = saved_elements.encode(element, self._layout)
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
    """A file that is being written, and how much is in it."""

    name: str
    shown: str
    writer: ElementWriter
    count: int = 0
    size_bytes: int = 0

    def write(self, element: Any, number: int) -> None:
        try:
            with writing(self.shown):
                self.size_bytes += self.writer.write(element)
        except ValueError as error:
            raise ValueError(f"Element {number} cannot be saved with the others: {error}") from None
        self.count += 1


class _SavingRun:
    """The folder while it is written: its complete files, and the state of the pipeline after the last of them.

    A file gets its name when it is complete, and it counts when `.saving.json` lists it. Files that a killed run has
    written after that are written again.
    """

    def __init__(self, folder: Folder, format: Format, form: Form, identity: str):
        self._folder, self._format, self._form, self._identity = folder, format, form, identity
        self.files = ShardFiles()
        self.state: Any = None
        self.skipped = 0

    def written(self) -> Written:
        files = tuple(self._folder.path(name) for name in self.files.names)
        return Written(self._folder.address, files, sum(self.files.counts), self.skipped)

    def begin(self, *, overwrite: bool) -> bool:
        """Read the state of the folder. Return False if the folder already has all of these elements."""
        saved = [name for name in (MANIFEST, PROGRESS) if self._folder.exists(name)]
        if not saved and self._folder.exists(INFO):
            raise FileExistsError(
                f"{self._folder.name} has a data set that `save` did not write ({INFO}). Save to another folder."
            )
        if overwrite:
            self._remove_saved(saved)
        elif MANIFEST in saved:
            manifest = Manifest.parse(self._folder.read(MANIFEST), self._folder.shown(MANIFEST))
            self._compare(manifest.identity, manifest.format)
            self.files, self.skipped = ShardFiles(manifest.files, manifest.counts), manifest.skipped
            return False
        elif saved:
            return self._go_on(checked_files.parse_json(self._folder.read(PROGRESS), self._folder.shown(PROGRESS)))
        return True

    def _go_on(self, kept: dict[str, Any]) -> bool:
        self._compare(kept["identity"], kept["format"], interrupted=not kept.get("finished"))
        names, counts = kept["files"], kept["counts"]
        self.files = ShardFiles(tuple(names), tuple(counts), tuple(kept.get("sizes", [0] * len(names))))
        self._form.layout, self.state, self.skipped = kept["layout"], kept["state"], kept["skipped"]
        half = [name for name in self._folder.names() if name.startswith(".") and name.endswith(checked_files.WRITING)]
        self._folder.remove(half)  # left by a run that was killed
        return not kept.get("finished")

    def _compare(self, identity: str, format: str, *, interrupted: bool = False) -> None:
        if (identity, format) == (self._identity, self._format):
            return
        if interrupted:
            raise SavedByAnotherPipeline(
                f"{self._folder.name} has some elements of another pipeline, or of other data, whose saving was "
                "interrupted. Pass overwrite=True to begin again."
            )
        raise SavedByAnotherPipeline(
            f"{self._folder.name} has elements of another pipeline, or of another format or number of shards, or from "
            "other data. Pass overwrite=True to replace them, or save to another folder."
        )

    def _remove_saved(self, saved: list[str]) -> None:
        """Remove the files that `save` has written. The files that make the folder readable are removed first."""
        formats: set[Any] = {self._format}
        for name in saved:
            with contextlib.suppress(DamagedFile):
                formats.add(checked_files.parse_json(self._folder.read(name), name, needs_checksum=False).get("format"))
        forms = [_form(format, self._folder.address) for format in formats if format in FORMATS]
        names = [name for name in self._folder.names() if any(form.belongs(name.lstrip(".")) for form in forms)]
        self._folder.remove(sorted(names, key=lambda name: name not in (MANIFEST, INFO)))
        self._folder.remove([PROGRESS])

    @contextlib.contextmanager
    def new_file(self, first: Any) -> Iterator[_Shard]:
        """A new file. It gets its name when the block ends, and is removed after an error."""
        name = self._form.file_name(len(self.files.names))
        shown = self._folder.shown(name)
        with self._folder.new_file(name) as path:
            with writing(shown):
                shard = _Shard(name, shown, self._form.open(path, first))
            try:
                yield shard
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is reported, not one of the clean-up
                    shard.writer.close()
                raise
            with writing(shown):
                shard.writer.close()

    def keep(self, shard: _Shard, state: Any) -> None:
        """List a file as complete. If the run is killed after this, the next run goes on from `state`."""
        self.files += ShardFiles((shard.name,), (shard.count,), (shard.size_bytes,))
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
            "skipped": self.skipped,
            "finished": finished,
        }
        self._folder.write(PROGRESS, checked_files.json_bytes(kept))

    def finish(self) -> None:
        """Write the files that make the folder readable. Unless one is `bushel.json`, `.saving.json` stays."""
        self._form.finish(self._folder, self.files, self._identity, self.skipped)
        if self._form.belongs(MANIFEST):
            self._folder.remove([PROGRESS])
        else:
            self._write_progress(finished=True)
