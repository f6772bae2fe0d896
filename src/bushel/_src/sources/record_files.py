"""Several files that are read as one source: which of them holds a record, and what the formats of records share.

How one file is read is left to the formats. Tables and stores use the first part too.
"""

from __future__ import annotations

import abc
import concurrent.futures
import copy
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from bushel._src.base import blocks, checks, redact
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import DamagedFile
from bushel._src.base.shown_text import Progress, without_progress
from bushel._src.sources import file_access
from bushel._src.sources.local_files import File, changed_error
from bushel._src.sources.paths import Options, is_url, paths_type_error
from bushel._src.sources.remote_requests import get_threads
from bushel._src.sources.shard_journals import final_name


class Reopened(abc.ABC):
    """An object that opens files when it needs them. A pickle leaves the open files out; the copy opens its own."""

    _not_pickled: ClassVar[tuple[str, ...]]
    """The attributes that `_forget_open` sets."""

    @abc.abstractmethod
    def _forget_open(self) -> None:
        """Begin without open files: for a new object, or for one that comes out of a pickle."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._not_pickled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget_open()


class JoinedFiles(Reopened):
    """The records of one or many files, one file after the other. Base of the sources for each format."""

    _paths: list[str]
    _length: int

    @property
    def paths(self) -> list[str]:
        """The files or folders, in the order of their records."""
        return list(self._paths)

    @abc.abstractmethod
    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the file that holds a record, and the record's position among those of the file."""

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_files(self._paths)}: {self._length} records)"


def name_files(paths: list[str]) -> str:
    """Return a short text for several files: the name of the first one, and how many more there are.

    >>> name_files(["/data/a.bagz", "/data/b.bagz"])
    'a.bagz and 1 more'
    """
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{redact.base_name(final_name(paths[0]))}{more}"


def find_part(position: int, ends: np.ndarray) -> tuple[int, int]:
    """Return the part that holds a record, and the record's position in that part.

    Args:
      position: of the record among those of all parts.
      ends: for each part, how many records it and the parts before it have.

    >>> find_part(3, np.array([2, 2, 5]))
    (2, 1)
    """
    number = int(ends.searchsorted(position, "right"))
    return number, position - (int(ends[number - 1]) if number else 0)


def split_by_part(positions: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each part that holds some of the records: its number, the positions in it, and their rows in `positions`.

    >>> [(number, within.tolist(), rows.tolist()) for number, within, rows in split_by_part(
    ...     np.array([4, 0, 3]), np.array([2, 5]))]
    [(0, [0], [1]), (1, [2, 1], [0, 2])]
    """
    if not len(positions):
        return
    numbers = ends.searchsorted(positions, "right")
    within = positions - np.concatenate(([0], ends))[numbers]
    order = np.argsort(numbers, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        yield int(numbers[rows[0]]), within[rows], rows


def gather_from_parts(
    positions: np.ndarray, ends: np.ndarray, read: Callable[[int, np.ndarray], Block]
) -> list[Any] | Columns:
    """Return the records at `positions` as one block.

    `read` gets the number of a part and positions in it, once per part.
    """
    numbers, within, rows = zip(*split_by_part(positions, ends))
    block = blocks.join([read(number, places) for number, places in zip(numbers, within)])
    back = np.argsort(np.concatenate(rows))
    if isinstance(block, Columns):
        return Columns({name: column[back] for name, column in block.tree.items()}, len(positions))
    return [block[place] for place in back.tolist()]


T = TypeVar("T")

_FILES_AT_ONCE = 16
_REMOTE_FILES_AT_ONCE = 128
_SLICE = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


class RecordReader(abc.ABC):
    """Reads the records of one file. Any thread may call it."""

    count: int

    @abc.abstractmethod
    def read(self, position: int) -> bytes:
        """Return one record."""

    @abc.abstractmethod
    def read_many(self, positions: np.ndarray) -> list[bytes]:
        """Return many records, in the given order. Negative positions count from the end."""

    @abc.abstractmethod
    def read_into(self, positions: np.ndarray, rows: memoryview, size: int) -> None:
        """Write records of exactly `size` bytes into `rows`, one after the other."""


def copy_records(records: Sequence[bytes], rows: memoryview, size: int, name: str, positions: np.ndarray) -> None:
    """Copy records into rows, for formats that cannot read directly into a row."""
    for place, record in enumerate(records):
        if len(record) != size:
            raise ValueError(
                f"{name}: record {positions[place]} has {len(record)} bytes and cannot fill a row of {size} bytes."
            )
        rows[place * size : (place + 1) * size] = record


class JoinedRecords(JoinedFiles):
    """Records of one or many files, by position. Base of the sources for each format.

    A source may be pickled, and many threads may use it. A pickle holds no open files: the copy opens its own when it
    needs them. Used as a context manager, a source closes its files at the end.
    """

    _not_pickled = ("_lock", "_readers")

    def __init__(self, paths: Any, storage_options: Options | None = None):
        self._options = redact.Options(storage_options or {})
        self._shards = parse_shards(paths, self._options)
        self._paths = [path for path, _, _ in self._shards]
        self._versions: dict[int, list[Any]] = {}  # of each file when the source was made
        self.costs_round_trip = any(map(is_url, self._paths)) and "cache_dir" not in self._options
        self._forget_open()
        counts = self._count_records()
        file_access.check_together(self._paths, [self._versions[number] for number in range(len(self._paths))])
        bounds = [resolve_shard(shard, count) for shard, count in zip(self._shards, counts)]
        self._totals = counts  # what each file held when the source was made
        self._starts = np.array([start for start, _ in bounds], np.int64)
        self._ends = np.cumsum([stop - start for start, stop in bounds])
        self._length = int(self._ends[-1])

    @abc.abstractmethod
    def _make_reader(self, file: File) -> RecordReader:
        """Make the reader of one file."""

    def _forget_open(self) -> None:
        self._lock = threading.Lock()
        self._readers: list[RecordReader | None] = [None] * len(self._shards)

    def _count_records(self) -> list[int]:
        if len(self._shards) == 1:
            return [self._get_reader(0).count]
        bar = Progress("opening files", len(self._shards), unit="files", delay_s=1)
        at_once = _REMOTE_FILES_AT_ONCE if self.costs_round_trip else _FILES_AT_ONCE
        with bar, concurrent.futures.ThreadPoolExecutor(min(at_once, len(self._shards))) as pool:
            counts = []
            for reader in pool.map(without_progress(self._get_reader), range(len(self._shards))):
                counts.append(reader.count)
                bar.show(len(counts))
            return counts

    def _get_reader(self, number: int) -> RecordReader:
        reader = self._readers[number]
        if reader is not None:
            return reader
        file = file_access.open_file(self._paths[number], self._options)
        reader = self._make_reader(file)
        known = getattr(self, "_totals", None)
        if known is not None and reader.count != known[number]:
            raise DamagedFile(
                f"{file.name} had {known[number]} records when the source was made, and it has {reader.count} now. "
                "Make the source again."
            )
        version = file.version()
        with self._lock:
            if (was := self._versions.setdefault(number, version)) != version:
                raise changed_error(self._paths[number], was, version)
            self._readers[number] = reader
        return reader

    @property
    def versions(self) -> list[Any]:
        """The fingerprint of each file, from the time when the source was made. Opens no file."""
        return [[self._versions[number], start, stop] for number, (_, start, stop) in enumerate(self._shards)]

    def file(self, number: int) -> Self:
        """Return the records of one file, as a source of its own. Open no file."""
        one = copy.copy(self)
        vars(one).update(
            _shards=[self._shards[number]],
            _paths=[self._paths[number]],
            _versions={0: self._versions[number]},
            _totals=[self._totals[number]],
            _starts=self._starts[number : number + 1],
            _length=int(np.diff(self._ends, prepend=0)[number]),
        )
        one._ends = np.array([one._length])
        one._forget_open()
        return one

    def __getitem__(self, index: int) -> bytes:
        number, place = 0, checks.position(index, self._length)
        if len(self._ends) > 1:
            number, place = self.locate(place)
        return (self._readers[number] or self._get_reader(number)).read(place + int(self._starts[number]))

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Return the records at `indices`, read together."""
        if len(self._ends) == 1:
            if self._length < self._totals[0]:
                return self._get_reader(0).read_many(checks.positions(indices, self._length) + self._starts.item(0))
            # The source is one whole file, so the reader itself checks the indices.
            return (self._readers[0] or self._get_reader(0)).read_many(checks.integers(indices))
        places = checks.positions(indices, self._length)
        found: list[Any] = [None] * len(places)
        parts = list(self._split_by_file(places))
        # A remote read costs a round trip, so remote files are read at the same time.
        several = map_in_threads if self.costs_round_trip and len(parts) > 1 else map
        for (_, _, rows), records in zip(parts, several(self._read_part, parts)):
            for row, record in zip(rows.tolist(), records):
                found[row] = record
        return found

    def _read_part(self, part: tuple[int, np.ndarray, np.ndarray]) -> list[bytes]:
        """Return the records of one file, for a part of `_split_by_file`."""
        number, positions, _ = part
        return self._get_reader(number).read_many(positions)

    def read_into(self, indices: Sequence[int] | np.ndarray, out: np.ndarray) -> None:
        """Read records directly into the rows of an array. Each record must have the size of a row."""
        places = checks.positions(indices, self._length)
        if not out.flags.c_contiguous or out.dtype.hasobject or len(out) != len(places):
            raise ValueError(f"read_into needs a contiguous array of {len(places)} rows, got {out.dtype}{out.shape}.")
        if not len(places):
            return
        rows: Any = out.reshape(-1).view(np.uint8)
        rows = memoryview(rows)
        size = out.nbytes // len(out)
        if self.costs_round_trip:
            return copy_records(self.__getitems__(places), rows, size, repr(self), places)
        for number, positions, where in self._split_by_file(places):
            reader = self._get_reader(number)
            if len(where) == len(places):
                reader.read_into(positions, rows, size)
            else:
                for position, row in zip(positions, where.tolist()):
                    reader.read_into(np.array([position]), rows[row * size : (row + 1) * size], size)

    def _split_by_file(self, places: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each file that holds some of the records: its number, the positions in it, and their rows."""
        for number, within, rows in split_by_part(places, self._ends):
            yield number, within + self._starts[number], rows

    def __iter__(self) -> Iterator[bytes]:
        for low in range(0, self._length, 256):
            yield from self.__getitems__(np.arange(low, min(low + 256, self._length)))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the number of the file that holds a record, and the record's position among those of the file."""
        return find_part(index, self._ends)

    def fingerprint(self) -> Any:
        """Return name, size and time (or ETag) of each file, and which part of it is read."""
        files = file_access.fingerprint_files(self._paths, self._options)
        return [[version, start, stop] for version, (_, start, stop) in zip(files, self._shards)]

    def close(self) -> None:
        """Close the files. A later read opens them again."""
        self._forget_open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def map_in_threads(read: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """As `map`, but with up to 128 calls at the same time. For reads that cost network round trips."""
    return get_threads("bushel-files", _REMOTE_FILES_AT_ONCE).map(read, items)


Shard = tuple[str, int, int | None]


def parse_shards(paths: Any, options: Options | None) -> list[Shard]:
    """Parse paths, patterns, "file[3:7]" and TFDS's file instructions into tuples (path, start, stop)."""
    if isinstance(paths, (str, bytes, os.PathLike)) or _is_instruction(paths):
        paths = [paths]
    elif not isinstance(paths, Iterable):
        raise paths_type_error(paths)
    found: list[Shard] = []
    for path in paths:
        if _is_instruction(path):
            name = file_access.find_shard(os.fspath(path.filename))
            found.append((name, int(path.skip), int(path.skip) + int(path.take)))
        elif isinstance(path, (str, os.PathLike)) and (part := _SLICE.fullmatch(os.fspath(path))):
            found.append((file_access.find_shard(part.group(1)), int(part.group(2)), int(part.group(3))))
        else:
            found += [(match, 0, None) for match in file_access.find_files([path], options)]
    if not found:
        raise ValueError("No paths were given: a source needs at least one file.")
    return found


def _is_instruction(path: Any) -> bool:
    return all(hasattr(path, name) for name in ("filename", "skip", "take"))


def resolve_shard(shard: Shard, count: int) -> tuple[int, int]:
    """Return the first record, and the one after the last, that a shard takes of a file with `count` records."""
    path, start, stop = shard
    stop = count if stop is None else stop
    if not 0 <= start <= stop <= count:
        raise ValueError(f"{redact.show(path)} has {count} records, so it has no part [{start}:{stop}].")
    return start, stop
