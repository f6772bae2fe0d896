"""Record files of one format into those of another: in parallel, verified, and complete or not there at all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel.base import checks
from bushel.base.errors import DamagedFile
from bushel.sources import stores, writers
from bushel.sources.array_record import ArrayRecordDataSource
from bushel.sources.bagz import BagzDataSource
from bushel.sources.example import encode_example
from bushel.sources.lines import LineDataSource
from bushel.sources.parquet import ParquetDataSource
from bushel.sources.stores import Path
from bushel.sources.tfrecord import TFRecordDataSource

_BLOCK = 64
_READERS: dict[str, Callable[..., Any]] = {
    "array_record": lambda paths: ArrayRecordDataSource(paths, verify=True),
    "tfrecord": lambda paths: TFRecordDataSource(paths),
    "bag": lambda paths: BagzDataSource(paths, compressed=False),
    "bagz": lambda paths: BagzDataSource(paths, compressed=True),
    "parquet": lambda paths: ParquetRecords(paths),
    "jsonl": lambda paths: LineDataSource(paths),
    "txt": lambda paths: LineDataSource(paths),
}
_WRITERS: dict[str, tuple[Callable[[str, bool], writers.Writer], bool]] = {
    "array_record": (writers.ArrayRecordWriter, True),
    "tfrecord": (writers.TFRecordWriter, False),
    "bag": (writers.BagWriter, False),
    "bagz": (writers.BagWriter, True),
    "parquet": (writers.ParquetWriter, True),
}
_ENDING = re.compile(r"\.([a-z_0-9]+)(?:-\d+-of-\d+)?$")

Report = Callable[[int, int], None]
"""Called now and then with how many records are done, and how many there are."""


class ParquetRecords:
    """Rows of Parquet files as records of bytes: a column `record` as it is, other rows as `tf.train.Example`."""

    def __init__(self, paths: Sequence[str]):
        self._source = ParquetDataSource(paths)

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, indices: np.ndarray) -> list[bytes]:
        block = self._source.__getitems__(indices)
        rows = block if isinstance(block, list) else block.rows()
        return [row["record"] if tuple(row) == ("record",) else encode_example(_present(row)) for row in rows]


def _present(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class _Part:
    """What one process does: records [low, high) of the sources into one file."""

    sources: tuple[str, ...]
    low: int
    high: int
    path: str
    kind: str
    verify: bool


def convert(
    sources: Path | Sequence[Path],
    target: Path,
    *,
    shards: int | None = None,
    workers: int = 1,
    verify: bool = True,
    overwrite: bool = False,
    report: Report | None = None,
) -> list[str]:
    """Converts record files; the endings of the names say which formats. Returns the files it has made.

    Args:
      sources: paths, patterns or URLs of ArrayRecord, TFRecord, Bagz, Parquet or text files.
      target: the local file to make; with several shards, "name.ending" becomes "name-00000-of-00008.ending".
      shards: how many files; as many as there are workers by default.
      workers: processes that write at the same time. More than one need a main module that can be imported.
      verify: reads back what was written and compares it.
      overwrite: replaces files that are there.
      report: is told how far it is.
    """
    found = stores.find(sources)
    kinds = {_kind(path, _READERS, "read") for path in found}
    if len(kinds) != 1:
        raise ValueError(f"The sources are of several formats ({', '.join(sorted(kinds))}): convert them one by one.")
    text = stores.local(target)
    if stores.is_url(text):
        raise ValueError(f"{text} cannot be written: convert makes local files. Make one, then copy it to the store.")
    kind = _kind(text, _WRITERS, "written")
    workers = checks.positive(workers, "workers")
    count = checks.positive(workers if shards is None else shards, "shards")
    total = len(_READERS[kinds.pop()](found))
    paths = _shard_names(text, count)
    for path in paths:
        if os.path.exists(path) and not overwrite:
            raise FileExistsError(f"{path} is there already. Pass overwrite=True (--overwrite) to replace it.")
    os.makedirs(os.path.dirname(os.path.abspath(text)), exist_ok=True)
    bounds = np.linspace(0, total, count + 1).astype(int).tolist()
    mark = f".{os.getpid()}-{threading.get_ident()}.part"
    parts = [
        _Part(tuple(found), low, high, path + mark, kind, verify) for path, low, high in zip(paths, bounds, bounds[1:])
    ]
    try:
        _run(parts, workers, total, report or (lambda done, of: None))
        for path in paths:
            os.replace(path + mark, path)
    except BaseException:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + mark)
        raise
    return paths


def _kind(path: str, known: dict[str, Any], what: str) -> str:
    ending = _ENDING.search(path.rpartition("[")[0] if path.endswith("]") else path)
    if ending is None or ending.group(1) not in known:
        raise ValueError(f"{path} cannot be {what}: its name should end in one of {', '.join(f'.{k}' for k in known)}.")
    return ending.group(1)


def _shard_names(target: str, count: int) -> list[str]:
    if count == 1:
        return [target]
    stem, dot, ending = target.rpartition(".")
    return [f"{stem}-{number:05d}-of-{count:05d}{dot}{ending}" for number in range(count)]


def _run(parts: list[_Part], workers: int, total: int, report: Report) -> None:
    report(0, total)
    if workers == 1:
        done = 0
        for part in parts:
            for count in _written(part):
                done += count
                report(done, total)
        return
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    with concurrent.futures.ProcessPoolExecutor(
        min(workers, len(parts)), mp_context=context, initializer=_share, initargs=(counter,)
    ) as pool:
        futures = [pool.submit(_counted, part) for part in parts]
        try:
            pending = set(futures)
            while pending:
                ended, pending = concurrent.futures.wait(pending, 0.2, concurrent.futures.FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                report(int(counter.value), total)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_counter: Any = None


def _share(counter: Any) -> None:
    global _counter
    _counter = counter


def _counted(part: _Part) -> None:
    for count in _written(part):
        with _counter.get_lock():
            _counter.value += count


def _written(part: _Part) -> Iterator[int]:
    """Writes a part, and yields how many records each step wrote."""
    source = _READERS[_kind(part.sources[0], _READERS, "read")](list(part.sources))
    kind, compress = _WRITERS[part.kind]
    writer = kind(part.path, compress)
    digest = 0
    try:
        for low in range(part.low, part.high, _BLOCK):
            records = source.__getitems__(np.arange(low, min(low + _BLOCK, part.high)))
            for record in records:
                writer.write(record)
                digest = _digest(digest, record)
            yield len(records)
    finally:
        writer.close()
    if part.verify:
        _verify(part, digest)


def _verify(part: _Part, digest: int) -> None:
    again = _READERS[part.kind]([part.path])
    found = 0
    for low in range(0, len(again), _BLOCK):
        for record in again.__getitems__(np.arange(low, min(low + _BLOCK, len(again)))):
            found = _digest(found, record)
    if len(again) != part.high - part.low or found != digest:
        raise DamagedFile(
            f"{part.path}: what was written is not what was read back: {part.high - part.low} records, then "
            f"{len(again)}. Is the disk full, or failing?"
        )


def _digest(digest: int, record: bytes) -> int:
    return zlib.crc32(record, zlib.crc32(len(record).to_bytes(8, "little"), digest))
