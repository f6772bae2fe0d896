"""What Parquet and Arrow files have in common: rows at any position, decoded one part of a file at a time."""

from __future__ import annotations

import abc
import collections
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.blocks import Block
from bushel._src.base.errors import DamagedFile
from bushel._src.sources import file_access
from bushel._src.sources.arrow_rows import ArrowRows
from bushel._src.sources.joined_files import JoinedFiles, find_part, gather_from_parts
from bushel._src.sources.local_files import File, changed_error
from bushel._src.sources.paths import Options

UNREADABLE = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""The errors that pyarrow raises for damaged files."""


def check_names(path: str, schema: Any, inner: Iterable[str], columns: Sequence[str] | None) -> None:
    """Raises an error if a wanted column does not exist, or if two columns have one name: a dict would lose one.

    Fields of a column that is a struct are such names, too.

    Args:
      path: the name of the file, for messages.
      schema: pyarrow's schema of the file.
      inner: these names, and those of nested columns, such as "outer.inner".
      columns: the wanted columns; all if None.
    """
    names: list[str] = schema.names
    known = set(inner)
    for name in columns or ():
        if name not in known:
            raise ValueError(f"{path} has no column {name!r}; its columns are {', '.join(map(repr, names))}.")
    for name in names if columns is None else columns:
        if names.count(name) > 1:
            raise ValueError(f"{path} has {names.count(name)} columns {name!r}: choose other columns, or rename them.")
    wanted = None if columns is None else {part for name in columns for part in (name, name.partition(".")[0])}
    for field in schema:
        if wanted is None or field.name in wanted:
            _check_fields(path, field.name, field.type)


def _check_fields(path: str, name: str, kind: Any) -> None:
    """Raises an error if a struct in a column has two fields of one name."""
    if hasattr(kind, "storage_type"):
        kind = kind.storage_type
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = [field.name for field in fields]
    if str(kind).startswith("struct"):
        for field in fields:
            if (count := names.count(field.name)) > 1:
                raise ValueError(
                    f"{path}: the column {name!r} has {count} fields {field.name!r}: choose other columns, or rename "
                    "them."
                )
    for field in fields:
        _check_fields(path, f"{name}.{field.name}", field.type)


class TableSource(JoinedFiles):
    """Rows of table files as dicts. A pickle holds paths; the copy opens the files when it reads them."""

    _not_pickled = ("_rows", "_files")
    part: ClassVar[str]
    """The word for a part of a file in messages."""

    def __init__(self, paths: Any, columns: Sequence[str] | None, cache_bytes: int, storage_options: Options | None):
        self._options = redact.Options(storage_options or {})
        self._columns = None if columns is None else list(columns)
        self._cache_bytes = checks.positive(cache_bytes, "cache_bytes")
        self._paths = file_access.find_files(paths, self._options)
        self._versions: dict[int, list[Any]] = {}  # of each file when the source was made
        self._forget_open()
        lengths = [self._part_lengths(number) for number in range(len(self._paths))]
        file_access.check_together(self._paths, [self._versions[number] for number in range(len(self._paths))])
        self._parts = [(number, part) for number, parts in enumerate(lengths) for part in range(len(parts))]
        self._ends = np.cumsum([length for parts in lengths for length in parts], dtype=np.int64)
        self._length = int(self._ends[-1]) if len(self._ends) else 0

    @abc.abstractmethod
    def _make_file_cache(self) -> Any:
        """A new, empty container of open files."""

    @abc.abstractmethod
    def _part_lengths(self, number: int) -> list[int]:
        """The number of rows of each part of a file."""

    @abc.abstractmethod
    def _read_part(self, number: int, part: int) -> Any:
        """Decodes one part of a file. Any thread may call it."""

    def _forget_open(self) -> None:
        self._rows = _PartCache(self._cache_bytes, self._decode_part)
        self._files = self._make_file_cache()

    def _open_unchanged(self, number: int) -> File:
        """Opens a file. Raises an error if it has changed since the source was made."""
        file = file_access.open_file(self._paths[number], self._options)
        version = file.version()
        if (was := self._versions.setdefault(number, version)) != version:
            raise changed_error(self._paths[number], was, version)
        return file

    def _decode_part(self, place: int) -> ArrowRows:
        number, part = self._parts[place]
        rows = ArrowRows(self._read_part(number, part), redact.show(self._paths[number]))
        expected = int(self._ends[place]) - (int(self._ends[place - 1]) if place else 0)
        if rows.length != expected:
            raise DamagedFile(
                f"{redact.show(self._paths[number])}: {self.part} {part} had {expected} rows when the source was made, "
                f"and it has {rows.length} now."
            )
        return rows

    def locate(self, index: int) -> tuple[int, int]:
        place, row = find_part(index, self._ends)
        number, part = self._parts[place]
        if part:  # the rows of the file's earlier parts come before it
            row += int(self._ends[place - 1]) - (int(self._ends[place - part - 1]) if place > part else 0)
        return number, row

    def __getitem__(self, index: int) -> dict[str, Any]:
        place, row = find_part(checks.position(index, self._length), self._ends)
        return self._rows(place).row(row)

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """The rows at `indices`. Each part of a file that holds some of them is decoded once."""
        places = checks.positions(indices, self._length)
        if not len(places):
            return []
        return gather_from_parts(places, self._ends, lambda place, within: self._rows(place).take(within))

    def fingerprint(self) -> Any:
        return [file_access.fingerprint_files(self._paths, self._options), self._columns]


class _PartCache:
    """A cache of decoded parts by number. Beyond a limit of bytes, the part used longest ago is dropped."""

    def __init__(self, limit_bytes: int, decode: Callable[[int], ArrowRows]):
        self._limit, self._decode = limit_bytes, decode
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[int, ArrowRows] = collections.OrderedDict()
        self._bytes = 0

    def __call__(self, number: int) -> ArrowRows:
        with self._lock:
            rows = self._kept.get(number)
            if rows is not None:
                self._kept.move_to_end(number)
                return rows
        rows = self._decode(number)  # without the lock, so that several threads can decode at the same time
        with self._lock:
            if number not in self._kept:
                self._kept[number] = rows
                self._bytes += rows.nbytes
            while self._bytes > self._limit and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return rows
