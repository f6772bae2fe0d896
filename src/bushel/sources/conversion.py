"""Record files of one format into those of another: in parallel, verified, and complete or not there at all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from bushel.base import checks, redact
from bushel.base.errors import DamagedFile, writing
from bushel.sources import bagz, clean_workers, records, stores, writers
from bushel.sources import writing as places
from bushel.sources.array_record import ArrayRecordDataSource
from bushel.sources.bagz import BagzDataSource
from bushel.sources.lines import LineDataSource
from bushel.sources.parquet_records import ParquetRecords
from bushel.sources.stores import Options, Path
from bushel.sources.tfrecord import TFRecordDataSource
from bushel.sources.tfrecord_stream import TFRecordStream
from bushel.sources.writing import Folder

_AT_ONCE = 512
_AT_ONCE_BYTES = 16 << 20
_FILES_AT_ONCE = 16
_ENDING = re.compile(r"\.([a-z_0-9]+)(?:-\d+-of-\d+)?(\.gz)?$")
_SAME = {"tfrecords": "tfrecord", "tfrec": "tfrecord"}
_WRITERS: dict[str, tuple[Callable[[str, bool], writers.Writer], bool]] = {
    "array_record": (writers.ArrayRecordWriter, True),
    "tfrecord": (writers.TFRecordWriter, False),
    "bag": (writers.BagWriter, False),
    "bagz": (writers.BagWriter, True),
    "parquet": (writers.ParquetWriter, True),
}
FORMATS = (*_WRITERS, "jsonl", "txt")
"""What can be read."""

Report = Callable[[int, int], None]
"""Called now and then with how many records are done, and how many there are."""

RunAll = Callable[[Sequence[clean_workers.Job], int, Callable[[int], None]], None]
"""Runs jobs with so many workers, and calls a function now and then with how much is done."""


class Records(Protocol):
    """The records of one file, as `convert` reads them."""

    def count(self) -> int:
        """How many there are."""
        ...

    def blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        """Records [low, high), some at a time."""
        ...


class _AnyPosition(Records):
    """Records of a source, as many at a time as fit into some megabytes."""

    def __init__(self, source: records.RecordSource):
        self._source = source

    def count(self) -> int:
        return len(self._source)

    def blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        read = _hashed(self._source) if isinstance(self._source, ArrayRecordDataSource) else _reads(self._source)
        size = 16
        while low < high:
            block = read(low, min(low + size, high))
            yield block
            low += len(block)
            size = min(_AT_ONCE, 1 + _AT_ONCE_BYTES * len(block) // (1 + sum(map(len, block))))


Read = Callable[[int, int], list[bytes]]


def _reads(source: records.RecordSource) -> Read:
    return lambda low, high: source.__getitems__(np.arange(low, high))


def _hashed(source: ArrayRecordDataSource) -> Read:
    """Reads that check hashes: by the `array_record` package where it can, since NumPy takes 80 ms for a megabyte."""
    own, (path,) = _reads(source), source.paths
    if stores.is_url(path):
        return own
    try:
        module = importlib.import_module("array_record.python.array_record_module")
        reader = module.ArrayRecordReader(path, "readahead_buffer_size:0")
    except (ImportError, RuntimeError):
        return own

    def read(low: int, high: int) -> list[bytes]:
        try:
            return reader.read(low, high)
        except Exception:
            return own(low, high)  # which tells what is damaged

    return read


class _InOrder(Records):
    """Records of a compressed TFRecord file: to count them, or to reach one, those before it are decompressed."""

    def __init__(self, stream: TFRecordStream):
        self._stream = stream

    def count(self) -> int:
        return sum(len(block) for _, block in self._all())

    def blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        for place, block in self._all():
            if place + len(block) > low:
                yield block[max(low - place, 0) : high - place]
            if place + len(block) >= high:
                return

    def _all(self) -> Iterator[tuple[int, list[bytes]]]:
        reader, place = self._stream.open(), 0
        while block := reader.read(_AT_ONCE):
            yield place, block
            place += len(block)


@dataclasses.dataclass(frozen=True, repr=False)
class _Reading:
    """How files are opened."""

    kind: str
    options: Options | None = None
    round_floats: bool = False

    def version(self, path: str) -> list[Any]:
        """What changes when the content of a file does, or of one of those that "name@3.bag" stands for."""
        paths = bagz.all_shards(path, self.options) if self.kind in ("bag", "bagz") else [path]
        return [part for version in stores.fingerprint(paths, self.options) for part in version]

    def open(self, path: str) -> Records:
        if self.kind == "parquet":
            return ParquetRecords(path, self.options, self.round_floats)
        if self.kind == "tfrecord":
            stream = TFRecordStream(path, storage_options=self.options)
            if stream.open().compressed:
                return _InOrder(stream)
        return _AnyPosition(self._source(path))

    def _source(self, path: str) -> records.RecordSource:
        options = self.options
        if self.kind == "array_record":
            return ArrayRecordDataSource(path, verify=True, storage_options=options)
        if self.kind == "tfrecord":
            return TFRecordDataSource(path, storage_options=options)
        if self.kind in ("bag", "bagz"):
            return BagzDataSource(path, compressed=self.kind == "bagz", storage_options=options)
        return LineDataSource(path, storage_options=options)


@dataclasses.dataclass(frozen=True, repr=False)
class _Piece:
    """Records [low, high) of a file, and which version of it they were counted in."""

    path: str
    low: int
    high: int
    version: list[Any]

    def check(self, reading: _Reading) -> None:
        if (now := reading.version(self.path)) != self.version:
            raise DamagedFile(
                f"{redact.show(self.path)} was {self.version} (name, size, time) when its records were counted, and "
                f"is {now} now. Convert it again, when nobody writes to it."
            )


@dataclasses.dataclass(frozen=True, repr=False)
class _Part:
    """What one process does: pieces of the sources into one file."""

    reading: _Reading
    pieces: tuple[_Piece, ...]
    folder: Folder
    name: str
    kind: str
    verify: bool

    @property
    def count(self) -> int:
        return sum(piece.high - piece.low for piece in self.pieces)

    def run(self) -> Iterator[int]:
        """Writes the file, and yields how many records each step wrote."""
        return _written(self)

    @property
    def shown(self) -> str:
        """What messages call the file."""
        return self.folder.shown(self.name)

    def describe(self) -> str:
        return f"wrote {self.shown}"


def convert(
    sources: Path | Sequence[Path],
    target: Path,
    *,
    source_format: str | None = None,
    shards: int | None = None,
    workers: int = 1,
    verify: bool = True,
    overwrite: bool = False,
    round_floats: bool = False,
    storage_options: Options | None = None,
    target_options: Options | None = None,
    report: Report | None = None,
    run_all: RunAll = clean_workers.run_all,
) -> list[str]:
    """Converts record files; the endings of the names say which formats. Returns the files it has made.

    Args:
      sources: paths, patterns or URLs of ArrayRecord, TFRecord, Bagz, Parquet or text files, or "file[3:7]" for a part.
      target: the file to make, here or in a store ("s3://bucket/train.bagz"); with several shards, "name.ending"
        becomes "name-00000-of-00008.ending". A file for a store is made in the folder of temporary files first, so
        there must be room for one shard per worker.
      source_format: of sources whose names do not say it: "tfrecord", "parquet" and so on.
      shards: how many files; as many as there are workers by default.
      workers: processes that write at the same time. A script that calls this needs no `if __name__ == "__main__"`.
      verify: reads back what was written and compares it.
      overwrite: replaces files that are there.
      round_floats: float64 columns of Parquet files become float32, which is all that `tf.train.Example` has. Without
        it, numbers that would change are refused.
      storage_options: of the store where the sources lie.
      target_options: of the store where the target lies; by default the same.
      report: is told how far it is.
      run_all: (jobs, workers, report) -> None, which runs all jobs. Other machines may run them if the target lies
        where all of them can write, and the sources where all can read: see `bushel.ray.convert`.
    """
    found = records.shards(sources, storage_options)
    reading = _Reading(_source_kind([path for path, _, _ in found], source_format), storage_options, round_floats)
    folder, text = places.file(target, storage_options if target_options is None else target_options)
    shown, kind = folder.shown(text), _kind(text)
    if kind not in _WRITERS or text.endswith(".gz"):
        raise ValueError(f"{shown} cannot be written: its name should end in {_endings(_WRITERS)}.")
    if kind in ("bag", "bagz") and bagz.all_shards(text, None) != [text]:
        raise ValueError(
            f"{shown} is a name for several files, by which they are read. Give one without @, and shards."
        )
    workers = checks.positive(workers, "workers")
    count = checks.positive(workers if shards is None else shards, "shards")
    names = _shard_names(text, count)
    for name in names:
        if os.path.isdir(folder.path(name)):
            raise IsADirectoryError(
                f"{folder.path(name)} is a folder, and cannot be replaced by a file. Remove it first."
            )
        if not overwrite and folder.exists(name):
            raise FileExistsError(
                f"{folder.shown(name)} is there already. Pass overwrite=True (--overwrite) to replace it."
            )
    ranges = _ranges(found, reading)
    total = sum(piece.high - piece.low for piece in ranges)
    bounds = np.linspace(0, total, count + 1).astype(int).tolist()
    mark = f".{os.getpid()}-{threading.get_ident()}.part"
    try:
        with folder.drafting():
            parts = [
                _Part(reading, tuple(_pieces(ranges, low, high)), folder, name + mark, kind, verify)
                for name, low, high in zip(names, bounds, bounds[1:])
            ]
            _run(parts, workers, total, report or (lambda done, of: None), run_all)
            if missing := [part.shown for part in parts if not folder.exists(part.name)]:
                raise FileNotFoundError(
                    f"{missing[0]} was written, but this process cannot see it. If other machines wrote it, the target "
                    "must lie in a store, or on a disk that all machines share."
                )
        for name in names:  # not before all of them are complete
            folder.rename(name + mark, name)
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong first is what matters
            folder.remove(name + mark for name in names)
        raise
    return [folder.path(name) for name in names]


def _kind(path: str) -> str | None:
    """The format that a name stands for. Of compressed files, TFRecord alone is known."""
    ending = _ENDING.search(redact.remove_query(path))
    kind = _SAME.get(ending.group(1), ending.group(1)) if ending else None
    return None if ending and ending.group(2) and kind != "tfrecord" else kind


def _source_kind(paths: list[str], given: str | None) -> str:
    if given is not None:
        if given not in FORMATS:
            raise ValueError(f"source_format must be one of {', '.join(FORMATS)}, got {given!r}.")
        return given
    kinds: set[str] = set()
    for path in paths:
        kind = _kind(path)
        if kind not in FORMATS:
            raise ValueError(
                f"{redact.show(path)} cannot be read: its name should end in {_endings(FORMATS)}. If it is such a "
                "file, say so with source_format (--from)."
            )
        kinds.add(kind)
    if len(kinds) != 1:
        raise ValueError(f"The sources are of several formats ({', '.join(sorted(kinds))}): convert them one by one.")
    return kinds.pop()


def _endings(formats: Iterable[str]) -> str:
    return f"one of {', '.join(f'.{name}' for name in formats)}"


def _ranges(found: list[records.Shard], reading: _Reading) -> list[_Piece]:
    """The records of each source that are wanted. Their files are counted some at a time."""

    def counted(shard: records.Shard) -> _Piece:
        version = reading.version(shard[0])
        return _Piece(shard[0], *records.part_of(shard, reading.open(shard[0]).count()), version)

    with concurrent.futures.ThreadPoolExecutor(min(_FILES_AT_ONCE, len(found))) as pool:
        return list(pool.map(counted, found))


def _pieces(ranges: list[_Piece], low: int, high: int) -> Iterator[_Piece]:
    """Where records [low, high) of all sources lie."""
    begin = 0
    for piece in ranges:
        count = piece.high - piece.low
        first, last = max(low - begin, 0), min(high - begin, count)
        if first < last:
            yield dataclasses.replace(piece, low=piece.low + first, high=piece.low + last)
        begin += count


def _shard_names(target: str, count: int) -> list[str]:
    if count == 1:
        return [target]
    stem, dot, ending = target.rpartition(".")
    return [f"{stem}-{number:05d}-of-{count:05d}{dot}{ending}" for number in range(count)]


def _run(parts: list[_Part], workers: int, total: int, report: Report, run_all: RunAll) -> None:
    report(0, total)
    if workers > 1 or run_all is not clean_workers.run_all:
        run_all(parts, workers, lambda done: report(done, total))
        return
    done = 0
    for part in parts:
        for count in part.run():
            done += count
            report(done, total)


def _written(part: _Part) -> Iterator[int]:
    """Writes a part, and yields how many records each step wrote."""
    kind, compress = _WRITERS[part.kind]
    digest = 0
    with part.folder.new_file(part.name, draft=True) as path:
        with writing(part.shown):
            writer = kind(path, compress)
        try:
            for block in _blocks(part):
                with writing(part.shown):
                    for record in block:
                        writer.write(record)
                        digest = _digest(digest, record)
                yield len(block)
            with writing(part.shown):
                writer.close()
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong first is what matters
                writer.close()
            raise
    if part.verify:
        _verify(part, digest)


def _blocks(part: _Part) -> Iterator[list[bytes]]:
    """The records of a part, some at a time."""
    for piece in part.pieces:
        left = piece.high - piece.low
        found = part.reading.open(piece.path)
        piece.check(part.reading)
        for block in found.blocks(piece.low, piece.high):
            left -= len(block)
            yield block
        piece.check(part.reading)
        if left:
            raise DamagedFile(f"{redact.show(piece.path)} was changed while it was read: it has {left} records less.")


def _verify(part: _Part, digest: int) -> None:
    again = _Reading(part.kind, part.folder.options).open(part.folder.path(part.name))
    found, count = 0, again.count()
    for block in again.blocks(0, count):
        for record in block:
            found = _digest(found, record)
    if count != part.count or found != digest:
        raise DamagedFile(
            f"{part.shown}: what was written is not what was read back: {part.count} records, then {count}. Is the "
            "disk full, or failing?"
        )


def _digest(digest: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(len(record).to_bytes(8, "little"), digest))
