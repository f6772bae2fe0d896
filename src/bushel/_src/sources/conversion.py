"""Converts record files to another format: in parallel, and verified. After an error no output file is left.

All new shards are complete under temporary names. Then a journal is written: from this moment on the new shards count.
Then all old shards are removed, each new shard gets its final name, and the journal is removed. Old and new shards are
never under the final names together, also for programs that do not know the journal.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.errors import DamagedFile, add_note, writing
from bushel._src.base.public import public
from bushel._src.base.shown_text import Progress, Shown, Written
from bushel._src.sources import (
    bagz,
    conversion_workers,
    file_access,
    folders,
    record_files,
    record_writers,
    shard_journals,
)
from bushel._src.sources.array_record import ArrayRecordDataSource
from bushel._src.sources.bagz import BagzDataSource
from bushel._src.sources.folders import Folder
from bushel._src.sources.parquet import ParquetRecords
from bushel._src.sources.paths import Options, Path, is_url, only_this_process_sees
from bushel._src.sources.plain_files import LineDataSource
from bushel._src.sources.shard_journals import Journal, find_target, journal_name
from bushel._src.sources.tfrecord import TFRecordDataSource, TFRecordStream


def find_shards(folder: Folder, target: str, names: Sequence[str]) -> list[str]:
    """Return the files that the new files of a target replace: those with the same names, and shards of another
    number.
    """
    if list(names) == [target]:
        return [target] if folder.exists(target) else []
    return [name for name in folder.names() if find_target(name) == target]


def read_journal(folder: Folder, target: str) -> Journal | None:
    """Return the journal of a switch that has not ended; None if there is none."""
    name = journal_name(target)
    try:
        return Journal.parse(folder.read(name), folder.shown(name))
    except FileNotFoundError:
        return None


def finish_switch(folder: Folder, target: str) -> Journal | None:
    """Complete a switch that was interrupted. Return its journal; None if there was none."""
    if read_journal(folder, target) is None:  # without a lock: nearly always there is nothing to do
        return None
    with _locked(folder, target):
        journal = read_journal(folder, target)  # another process may have completed it
        if journal is not None:
            _switch(folder, target, journal)
        return journal


def replace_shards(
    folder: Folder, target: str, names: Sequence[str], mark: str, identity: str, check: Callable[[list[str]], None]
) -> None:
    """Give files their final names. They are complete under these names and `mark`.

    Args:
      folder: the folder of the files.
      target: the name that the user gave.
      names: the final names.
      mark: what the temporary names have after the final ones.
      identity: a digest of what the files are made of.
      check: is called with the files that will be replaced, and may raise.
    """
    if list(names) == [target]:  # one file: its new name replaces the old file at once
        with discarding(folder, names, mark):
            check(find_shards(folder, target, names))
            folder.rename(target + mark, target)
        return
    with _locked(folder, target):
        with discarding(folder, names, mark):
            other = read_journal(folder, target)  # of a process that ran at the same time
            if other is not None:
                _switch(folder, target, other)
            old = find_shards(folder, target, names)
            check(old)
            for name in names:
                folder.sync(name + mark)
        journal = Journal(tuple(names), tuple(old), mark, identity)
        _write_journal(folder, target, journal)
        _switch(folder, target, journal)


@contextlib.contextmanager
def discarding(folder: Folder, names: Sequence[str], mark: str) -> Iterator[None]:
    """After an error in the block, removes the files under temporary names."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is reported, not one of the clean-up
            folder.remove(name + mark for name in names)
        raise


def _write_journal(folder: Folder, target: str, journal: Journal) -> None:
    name = journal_name(target)
    try:
        folder.write(name, journal.encode())
    except BaseException as error:
        # A store may have written the journal, and only the answer was lost. The new files may be removed only if it
        # is certain that no journal names them.
        try:
            folder.remove([name])
        except Exception:
            add_note(
                error,
                f"bushel: perhaps {folder.shown(name)} was written. If so, the new files count, and Bushel reads them "
                "under their temporary names. Run the same conversion again to complete it.",
            )
            raise error from None
        with discarding(folder, journal.new, journal.mark):
            raise


def _switch(folder: Folder, target: str, journal: Journal) -> None:
    """Do what a journal says. It may have been done in part, so each step can be done again."""
    where = folder.shown(journal_name(target))
    try:
        staged = {name for name in journal.new if folder.exists(name + journal.mark)}
        lost = [name for name in journal.new if name not in staged and not folder.exists(name)]
        if not lost:
            _rename(folder, journal, staged)
            folder.remove([journal_name(target)])
    except BaseException as error:
        add_note(
            error,
            f"bushel: all {len(journal.new)} new files are complete, but some may still have temporary names. {where} "
            "says where they are, and Bushel reads them from there. Run the same conversion again to complete it.",
        )
        raise
    if lost:
        raise DamagedFile(
            f"{folder.shown(lost[0])} is missing: an interrupted conversion had completed it, and it was removed since "
            f"then. Remove {where}, and convert again."
        )


def _rename(folder: Folder, journal: Journal, staged: set[str]) -> None:
    folder.sync("")
    # A file under a final name is an old one as long as the new one still has its temporary name. All old files go
    # before the first new one comes: a program that does not know the journal misses files, but mixes none.
    folder.remove(name for name in journal.old if name not in journal.new or name in staged)
    for name in journal.new:
        if name in staged:
            folder.rename(name + journal.mark, name)
    folder.sync("")


def _locked(folder: Folder, target: str) -> contextlib.AbstractContextManager[None]:
    return folder.locked(f".{target}.lock", lambda: None)


_AT_ONCE = 512
_AT_ONCE_BYTES = 16 << 20
_FILES_AT_ONCE = 16
_ENDING = re.compile(r"\.([a-z_0-9]+)(?:-\d+-of-\d+)?(\.gz|\.zst|\.bz2|\.xz)?$")
_SAME = {"tfrecords": "tfrecord", "tfrec": "tfrecord"}
_WRITERS: dict[str, tuple[Callable[[str, bool], record_writers.RecordWriter], bool]] = {
    "array_record": (record_writers.ArrayRecordWriter, True),
    "tfrecord": (record_writers.TFRecordWriter, False),
    "bag": (record_writers.BagWriter, False),
    "bagz": (record_writers.BagWriter, True),
    "parquet": (record_writers.ParquetWriter, True),
}
FORMATS = (*_WRITERS, "jsonl", "txt")
"""The formats that can be read."""
WrittenFormat = Literal["array_record", "tfrecord", "bag", "bagz", "parquet"]
SourceFormat = Literal["array_record", "tfrecord", "bag", "bagz", "parquet", "jsonl", "txt"]

RunAll = Callable[[Sequence[conversion_workers.WorkerJob], int, Callable[[int], None]], None]
"""Runs jobs with so many workers, and calls a function now and then with how much is done."""


class FileRecords(Protocol):
    """The records of one file, as `convert` reads them."""

    def count(self) -> int:
        """Return the number of records."""
        ...

    def read_blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        """Return the records from `low` to `high` - 1, in blocks."""
        ...


class _SourceRecords(FileRecords):
    """Records of a source, in blocks of at most about 16 MB."""

    def __init__(self, source: record_files.JoinedRecords):
        self._open_source = source

    def count(self) -> int:
        return len(self._open_source)

    def read_blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        read = (
            _make_checked_read(self._open_source)
            if isinstance(self._open_source, ArrayRecordDataSource)
            else _make_read(self._open_source)
        )
        size = 16
        while low < high:
            block = read(low, min(low + size, high))
            yield block
            low += len(block)
            size = min(_AT_ONCE, 1 + _AT_ONCE_BYTES * len(block) // (1 + sum(map(len, block))))


Read = Callable[[int, int], list[bytes]]


def _make_read(source: record_files.JoinedRecords) -> Read:
    return lambda low, high: source.__getitems__(np.arange(low, high))


def _make_checked_read(source: ArrayRecordDataSource) -> Read:
    """Return a function that reads records and checks hashes. The `array_record` package does it if it is installed:
    NumPy takes 80 ms for a megabyte.
    """
    read_unchecked, (path,) = _make_read(source), source.paths
    if is_url(path):
        return read_unchecked
    try:
        module = importlib.import_module("array_record.python.array_record_module")
        reader = module.ArrayRecordReader(path, "readahead_buffer_size:0")
    except (ImportError, RuntimeError):
        return read_unchecked

    def read(low: int, high: int) -> list[bytes]:
        try:
            return reader.read(low, high)
        except Exception:
            return read_unchecked(low, high)  # its error names the damaged record

    return read


class _StreamRecords(FileRecords):
    """Records of a compressed TFRecord file. To count them, or to reach one, all records before it are decompressed."""

    def __init__(self, stream: TFRecordStream):
        self._stream = stream

    def count(self) -> int:
        return sum(len(block) for _, block in self._read_all())

    def read_blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        for place, block in self._read_all():
            if place + len(block) > low:
                yield block[max(low - place, 0) : high - place]
            if place + len(block) >= high:
                return

    def _read_all(self) -> Iterator[tuple[int, list[bytes]]]:
        reader, place = self._stream.open(), 0
        while block := reader.read(_AT_ONCE):
            yield place, block
            place += len(block)


@dataclasses.dataclass(frozen=True, repr=False)
class _Reading:
    """How source files are opened."""

    kind: str
    options: Options | None = None
    round_floats: bool = False

    def version(self, path: str) -> list[Any]:
        """Return a value that changes when the content of a file changes, or of one of the shards of "name@3.bag"."""
        paths = bagz.expand_shards(path, self.options) if self.kind in ("bag", "bagz") else [path]
        return [part for version in file_access.fingerprint_files(paths, self.options) for part in version]

    def open(self, path: str) -> FileRecords:
        if self.kind == "parquet":
            return ParquetRecords(path, self.options, self.round_floats)
        if self.kind == "tfrecord":
            stream = TFRecordStream(path, storage_options=self.options)
            if stream.open().compressed:
                return _StreamRecords(stream)
        return _SourceRecords(self._open_source(path))

    def _open_source(self, path: str) -> record_files.JoinedRecords:
        options = self.options
        if self.kind == "array_record":
            return ArrayRecordDataSource(path, verify=True, storage_options=options)
        if self.kind == "tfrecord":
            return TFRecordDataSource(path, storage_options=options)
        if self.kind in ("bag", "bagz"):
            return BagzDataSource(path, compressed=self.kind == "bagz", storage_options=options)
        return LineDataSource(path, storage_options=options)


@dataclasses.dataclass(frozen=True, repr=False)
class _RecordRange:
    """The records from `low` to `high` - 1 of a file, and the version of the file when they were counted."""

    path: str
    low: int
    high: int
    version: list[Any]

    def check(self, reading: _Reading) -> None:
        if (now := reading.version(self.path)) != self.version:
            raise DamagedFile(
                f"{redact.show(self.path)} has changed: it was {self.version} (name, size, time) when its records were "
                f"counted, and it is {now} now. Convert it again when no process writes to it."
            )


@dataclasses.dataclass(frozen=True, repr=False)
class _Part:
    """The work of one process: writes some ranges of the sources into one file."""

    reading: _Reading
    ranges: tuple[_RecordRange, ...]
    folder: Folder
    name: str
    kind: str
    verify: bool

    @property
    def count(self) -> int:
        return sum(record_range.high - record_range.low for record_range in self.ranges)

    def run(self) -> Iterator[int]:
        """Write the file. Yield the number of records of each step."""
        return _write_part(self)

    @property
    def shown(self) -> str:
        """The name of the file in messages."""
        return self.folder.shown(self.name)


@public("bushel.sources")
def convert(
    sources: Path | Sequence[Path],
    target: Path,
    *,
    format: WrittenFormat | None = None,
    source_format: SourceFormat | None = None,
    shards: int = 1,
    workers: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
    round_floats: bool = False,
    storage_options: Options | None = None,
    target_storage_options: Options | None = None,
    progress: Shown = True,
    _run_all: RunAll = conversion_workers.run_all,
) -> Written:
    """Converts record files to another format. The endings of the names say which formats.

    Args:
      sources: paths, patterns or URLs of ArrayRecord, TFRecord, Bagz, Parquet or text files, or "file[3:7]" for a part.
      target: the file to write, local or in a store ("s3://bucket/train.bagz"). With several shards, "name.ending"
        becomes "name-00000-of-00008.ending". A file for a store is first written to the folder for temporary files,
        which needs room for one shard per worker.
      format: the format of the target, if its name does not show it.
      source_format: the format of sources whose names do not show it: "tfrecord", "parquet" and so on.
      shards: the number of output files.
      workers: the number of processes that write, each of them one file at a time; by default one per core, and not
        more than files. A script that calls this needs no `if __name__ == "__main__"`.
      verify: whether to read the output files and compare them with the sources.
      overwrite: whether to replace existing files.
      round_floats: whether to round float64 columns of Parquet files to float32, the only floats of a
        `tf.train.Example`. Otherwise numbers that would change are an error.
      storage_options: options of the store that holds the sources.
      target_storage_options: options of the store that holds the target; by default the same.
      progress: whether to show a progress bar on a terminal; or a function that is called from time to time with
        the number of records done, and the number of all records.

    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "rows.jsonl"), "w") as file:
    ...     _ = file.write('{"x": 1}\\n{"x": 2}\\n')
    >>> written = convert(os.path.join(folder, "rows.jsonl"), os.path.join(folder, "rows.array_record"))
    >>> [os.path.basename(file) for file in written.files]
    ['rows.array_record']
    """
    found = record_files.parse_shards(sources, storage_options)
    reading = _Reading(_format_of_sources([path for path, _, _ in found], source_format), storage_options, round_floats)
    folder, text = folders.open_parent(
        target, storage_options if target_storage_options is None else target_storage_options
    )
    shown, kind = folder.shown(text), _format_of_target(text, format)
    if kind is None:
        raise ValueError(f"{shown} cannot be written: its name should end in {_list_endings(_WRITERS)}.")
    if kind in ("bag", "bagz") and bagz.expand_shards(text, None) != [text]:
        raise ValueError(f"{shown} is a name for reading several files. Write the target without @, and pass shards.")
    shards = checks.positive(shards, "shards")
    private = only_this_process_sees(target) or any(only_this_process_sees(path) for path, _, _ in found)
    workers = _count_workers(1 if workers is None and private else workers, shards)
    names = _shard_names(text, shards)
    for name in names:
        if os.path.isdir(folder.path(name)):
            raise IsADirectoryError(f"{folder.path(name)} is a folder, which a file cannot replace. Remove it first.")

    def check_old(old: list[str]) -> None:
        if old and not overwrite:
            raise _exists_error(folder, names, old)

    interrupted = read_journal(folder, text)
    if interrupted is None:
        check_old(find_shards(folder, text, names))
    ranges = _count_sources(found, reading)
    identity = _identify(ranges, reading, names)
    total = sum(record_range.high - record_range.low for record_range in ranges)
    made = Written(folder.path(text), tuple(folder.path(name) for name in names), total)
    if interrupted is not None:
        finish_switch(folder, text)
        if interrupted.identity == identity:  # an earlier run of the same command was killed after it had done the work
            return made
        check_old(find_shards(folder, text, names))
    bounds = np.linspace(0, total, shards + 1).astype(int).tolist()
    mark = shard_journals.make_mark()
    with discarding(folder, names, mark), folder.drafting():
        parts = [
            _Part(reading, tuple(_split_ranges(ranges, low, high)), folder, name + mark, kind, verify)
            for name, low, high in zip(names, bounds, bounds[1:])
        ]
        with Progress(f"converting to {redact.base_name(text)}", total, unit="records", shown=progress) as bar:
            _run_parts(parts, workers, bar, _run_all)
        if missing := [part.shown for part in parts if not folder.exists(part.name)]:
            raise FileNotFoundError(
                f"{missing[0]} was written, but this process cannot see it. If other machines wrote it, the target "
                "must lie in a store, or on a disk that all machines share."
            )
    replace_shards(folder, text, names, mark, identity, check_old)  # only when all files are complete
    return made


def _count_workers(given: int | None, shards: int) -> int:
    """Return how many processes write. A file is written by one process, so the number of files is a limit."""
    if given is None:
        return min(shards, os.cpu_count() or 1)
    if checks.positive(given, "workers") > shards:
        raise ValueError(
            f"workers={given} have no work with shards={shards}, because a process writes a whole file. Pass "
            f"shards={given} (--shards {given}) or more, or fewer workers."
        )
    return given


def _exists_error(folder: Folder, names: list[str], old: list[str]) -> FileExistsError:
    same = [name for name in old if name in names]
    if same:
        return FileExistsError(
            f"{folder.shown(same[0])} exists already. Pass overwrite=True (--overwrite) to replace it."
        )
    return FileExistsError(
        f"{folder.shown(old[0])} exists already: one of {len(old)} files of an earlier conversion to another number of "
        "shards. A pattern would find both. Pass overwrite=True (--overwrite) to replace them, or choose another name."
    )


def _identify(ranges: list[_RecordRange], reading: _Reading, names: list[str]) -> str:
    """Return a digest of what a conversion reads and writes."""
    described = [[record_range.version, record_range.low, record_range.high] for record_range in ranges]
    content = json.dumps([reading.kind, reading.round_floats, names, described], default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _format_of_name(path: str) -> str | None:
    """Return the format that a name's ending stands for, or None.

    Only text and TFRecord files may be compressed whole.
    """
    ending = _ENDING.search(shard_journals.final_name(redact.remove_query(path)))
    if ending is None:
        return None
    kind = _SAME.get(ending.group(1), ending.group(1))
    compressed = {None: True, ".gz": kind in ("tfrecord", "jsonl", "txt")}
    return kind if compressed.get(ending.group(2), kind in ("jsonl", "txt")) else None


def _format_of_target(text: str, given: str | None) -> str | None:
    """Return the format to write: the given one, which must be that of the name's ending, if the name has one; or
    None.
    """
    named = _format_of_name(text)
    if given is None:
        return named if named in _WRITERS and not text.endswith(".gz") else None
    checks.choice(given, _WRITERS, "format")
    if named in FORMATS and named != given:
        raise ValueError(f"{redact.show(text)} has the ending of {named}, but format is {given}: choose another name.")
    return given


def _format_of_sources(paths: list[str], given: str | None) -> str:
    if given is not None:
        return checks.choice(given, FORMATS, "source_format")
    kinds: set[str] = set()
    for path in paths:
        kind = _format_of_name(path)
        if kind not in FORMATS:
            raise ValueError(
                f"{redact.show(path)} cannot be read: its name should end in {_list_endings(FORMATS)}. If it is such a "
                "file, say so with source_format (--from)."
            )
        kinds.add(kind)
    if len(kinds) != 1:
        raise ValueError(f"The sources are of several formats ({', '.join(sorted(kinds))}): convert them one by one.")
    return kinds.pop()


def _list_endings(formats: Iterable[str]) -> str:
    return f"one of {', '.join(f'.{name}' for name in formats)}"


def _count_sources(found: list[record_files.Shard], reading: _Reading) -> list[_RecordRange]:
    """Return the records of each source. Several files are counted at the same time."""

    def count_source(shard: record_files.Shard) -> _RecordRange:
        version = reading.version(shard[0])
        return _RecordRange(shard[0], *record_files.resolve_shard(shard, reading.open(shard[0]).count()), version)

    with concurrent.futures.ThreadPoolExecutor(min(_FILES_AT_ONCE, len(found))) as pool:
        return list(pool.map(count_source, found))


def _split_ranges(ranges: list[_RecordRange], low: int, high: int) -> Iterator[_RecordRange]:
    """Yield the ranges of the sources that hold the records from `low` to `high` - 1."""
    begin = 0
    for record_range in ranges:
        count = record_range.high - record_range.low
        first, last = max(low - begin, 0), min(high - begin, count)
        if first < last:
            yield dataclasses.replace(record_range, low=record_range.low + first, high=record_range.low + last)
        begin += count


def _shard_names(target: str, count: int) -> list[str]:
    if count == 1:
        return [target]
    stem, dot, ending = target.rpartition(".")
    if not dot:
        raise ValueError(
            f"{redact.show(target)} needs an ending, such as {redact.show(target)}.bagz: of several files each gets a "
            "number before it."
        )
    return [f"{stem}-{number:05d}-of-{count:05d}{dot}{ending}" for number in range(count)]


def _run_parts(parts: list[_Part], workers: int, bar: Progress, run_all: RunAll) -> None:
    bar.show(0)
    if workers > 1 or run_all is not conversion_workers.run_all:
        run_all(parts, workers, bar.show)
        return
    done = 0
    for part in parts:
        for count in part.run():
            done += count
            bar.show(done)


def _write_part(part: _Part) -> Iterator[int]:
    """Write a part. Yield the number of records of each step."""
    kind, compress = _WRITERS[part.kind]
    digest = 0
    with part.folder.new_file(part.name, draft=True) as path:
        with writing(part.shown):
            writer = kind(path, compress)
        try:
            for block in _read_part(part):
                with writing(part.shown):
                    for record in block:
                        writer.write(record)
                        digest = _update_digest(digest, record)
                yield len(block)
            with writing(part.shown):
                writer.close()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is reported, not one of the clean-up
                writer.close()
            raise
    if part.verify:
        _verify(part, digest)


def _read_part(part: _Part) -> Iterator[list[bytes]]:
    """Yield the records of a part, in blocks."""
    for record_range in part.ranges:
        left = record_range.high - record_range.low
        found = part.reading.open(record_range.path)
        record_range.check(part.reading)
        for block in found.read_blocks(record_range.low, record_range.high):
            left -= len(block)
            yield block
        record_range.check(part.reading)
        if left:
            raise DamagedFile(
                f"{redact.show(record_range.path)} has changed while it was read: it has {left} records less."
            )


def _verify(part: _Part, digest: int) -> None:
    again = _Reading(part.kind, part.folder.options).open(part.folder.path(part.name))
    found, count = 0, again.count()
    for block in again.read_blocks(0, count):
        for record in block:
            found = _update_digest(found, record)
    if count != part.count or found != digest:
        raise DamagedFile(
            f"{part.shown}: {part.count} records were written, and other records ({count}) were read back. Is the disk "
            "full, or failing?"
        )


def _update_digest(digest: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(len(record).to_bytes(8, "little"), digest))
