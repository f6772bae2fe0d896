"""Parquet files: rows at any position, or in order. pyarrow decodes them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, StateMismatch
from bushel._src.base.hints import explains_arguments
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.arrow_rows import to_array, to_storage
from bushel._src.sources.handle_pool import HandlePool
from bushel._src.sources.local_files import File, as_stream
from bushel._src.sources.optional_packages import import_package
from bushel._src.sources.parquet_sizes import check_sizes, remember_footer
from bushel._src.sources.paths import Options, Paths, is_url
from bushel._src.sources.protocol import SequentialReader
from bushel._src.sources.table_files import UNREADABLE, TableSource, check_names

_FILES_AT_ONCE = 16
_IDLE_AT_MOST = 16  # idle handles of one file
_DECRYPT = "Pass decryption_properties to `ParquetIterDataset`, choose other columns, or decrypt the file first."


def open_parquet(file: File, settings: dict[str, Any]) -> Any:
    """Opens a `pyarrow.parquet.ParquetFile`. Pages with checksums are compared with them."""
    parquet = import_package("pyarrow.parquet", "parquet", "Parquet files")
    place = as_stream(file) if is_url(file.name) else file.address
    try:
        found = parquet.ParquetFile(place, **{"page_checksum_verification": True, **settings})
    except PermissionError:
        raise
    except UNREADABLE as error:
        if "encrypted" in str(error):
            raise ValueError(f"{file.name} is encrypted: {error}. {_DECRYPT}") from None
        raise DamagedFile(f"{file.name} is not a complete Parquet file: {error}") from error
    remember_footer(found, file)
    groups, stated = get_group_lengths(found), found.metadata.num_rows
    rows = sum(groups)
    if rows != stated or min(groups, default=0) < 0:
        raise DamagedFile(f"{file.name}: its row groups have {rows} rows together, but its metadata says {stated}.")
    return found


def get_group_lengths(file: Any) -> list[int]:
    """The number of rows of each row group."""
    return [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]


def read_group(file: Any, path: str, number: int, columns: Sequence[str] | None) -> Any:
    """Reads a row group as a table. The table is validated: strings are valid UTF-8, for example."""
    check_sizes(file, path, number, columns)
    try:
        found = file.read_row_group(number, columns=columns)
        found.validate(full=True)
    except UNREADABLE as error:
        if "Cannot decrypt" in str(error):
            raise ValueError(f"{path} has encrypted columns: {error}. {_DECRYPT}") from None
        raise DamagedFile(f"{path}: row group {number} cannot be read: {error}") from error
    stated = file.metadata.row_group(number).num_rows
    if found.num_rows != stated:
        raise DamagedFile(f"{path}: row group {number} has {found.num_rows} rows, but the metadata says {stated}.")
    return found


def check_columns(file: Any, path: str, columns: Sequence[str] | None) -> None:
    """Raises an error for columns that do not exist, which pyarrow would silently leave out."""
    schema = file.schema_arrow
    inner: set[str] = set(schema.names)
    for number in range(len(file.schema)):
        parts = file.schema.column(number).path.split(".")
        inner.update(".".join(parts[: count + 1]) for count in range(len(parts)))
    check_names(path, schema, inner, columns)


@public("bushel.sources")
@in_states("ParquetDataSource")
class ParquetDataSource(TableSource):
    """Rows of Parquet files as dicts, at any position.

    A read decodes the whole row group that holds the row, and keeps it in a cache of `cache_bytes`. Reads of rows near
    each other are therefore fast. A global shuffle decodes a row group for each row, unless the row groups are small or
    all of them fit into the cache: `bushel convert` makes files that can be shuffled fast.

    Args:
      paths: one or many files, patterns or URLs.
      columns: read only these columns; all by default.
      cache_bytes: the most bytes of decoded row groups that are kept.
      storage_options: options of the store that holds the files.

    >>> import os, tempfile, pyarrow, pyarrow.parquet
    >>> path = os.path.join(tempfile.mkdtemp(), "train.parquet")
    >>> pyarrow.parquet.write_table(pyarrow.table({"x": [1, 2, 3], "word": ["a", "b", "c"]}), path)
    >>> ParquetDataSource(path)[1]
    {'x': np.int64(2), 'word': 'b'}
    """

    part = "row group"

    @explains_arguments('Write `ParquetDataSource(paths, columns=["text"])`.')
    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        cache_bytes: int = 256 << 20,
        storage_options: Options | None = None,
    ):
        super().__init__(paths, columns, cache_bytes, storage_options)

    def _make_file_cache(self) -> Any:
        return _OpenFiles(lambda number: open_parquet(self._open_unchanged(number), {}))

    def _part_lengths(self, number: int) -> list[int]:
        file = open_parquet(self._open_unchanged(number), {})
        check_columns(file, redact.show(self._paths[number]), self._columns)
        return get_group_lengths(file)

    def _read_part(self, number: int, part: int) -> Any:
        with self._files.get_pool(number).lend() as file:
            return read_group(file, redact.show(self._paths[number]), part, self._columns)


class _OpenFiles:
    """A pool of `ParquetFile`s for each file, since threads must not share one. Files used longest ago are closed."""

    def __init__(self, open_file: Callable[[int], Any]):
        self._open_file = open_file
        self._lock = threading.Lock()
        self._pools: collections.OrderedDict[int, HandlePool[Any]] = collections.OrderedDict()

    def get_pool(self, number: int) -> HandlePool[Any]:
        with self._lock:
            if number not in self._pools:
                self._pools[number] = HandlePool(functools.partial(self._open_file, number), _IDLE_AT_MOST)
            self._pools.move_to_end(number)
            if len(self._pools) > _FILES_AT_ONCE:
                self._pools.popitem(last=False)
            return self._pools[number]


@in_states("parquet_stream")
@dataclasses.dataclass(frozen=True)
class ParquetStream:
    """The rows of one Parquet file, in order."""

    path: str
    columns: Sequence[str] | None
    storage_options: Options | None
    settings: dict[str, Any]

    def open(self) -> ParquetReader:
        return ParquetReader(self)

    def fingerprint(self) -> Any:
        columns = None if self.columns is None else list(self.columns)
        return [file_access.fingerprint_files([self.path], self.storage_options), columns]

    def __repr__(self) -> str:
        return f"ParquetStream({redact.base_name(self.path)})"


class ParquetReader(SequentialReader):
    """Reads a Parquet file in order. Its position is a row group and a row in it, as in Grain's state."""

    def __init__(self, stream: ParquetStream):
        self._stream = stream
        self._file = open_parquet(file_access.open_file(stream.path, stream.storage_options), stream.settings)
        check_columns(self._file, redact.show(stream.path), stream.columns)
        self._part_lengths = get_group_lengths(self._file)
        self._group = self._row = 0
        self._read: int | None = None  # the number of the row group in `_columns`
        self._columns: dict[str, np.ndarray] = {}

    def read(self, count: int) -> list[dict[str, Any]]:
        while self._group < len(self._part_lengths) and self._row >= self._part_lengths[self._group]:
            if self._group == len(self._part_lengths) - 1:
                return []
            self._group, self._row = self._group + 1, 0
        if not self._part_lengths:
            return []
        if self._read != self._group:
            table = read_group(self._file, redact.show(self._stream.path), self._group, self._stream.columns)
            self._columns = {
                name: to_array(to_storage(column)) for name, column in zip(table.schema.names, table.columns)
            }
            self._read = self._group
        names = tuple(self._columns)
        low, high = self._row, min(self._row + count, self._part_lengths[self._group])
        self._row = high
        if high == low + 1:
            return [{name: column[low] for name, column in self._columns.items()}]
        return [dict(zip(names, values)) for values in zip(*(column[low:high] for column in self._columns.values()))]

    def skip(self) -> int:
        rest = self._part_lengths[self._group] - self._row
        self._row += rest
        return rest

    def get_state(self) -> dict[str, Any]:
        return {"row_group": self._group, "index_within_row_group": self._row}

    def set_state(self, state: dict[str, Any]) -> None:
        number, row = state["row_group"], state["index_within_row_group"]
        known = len(self._part_lengths)
        if not 0 <= number < max(known, 1) or not 0 <= row <= (self._part_lengths[number] if known else 0):
            raise StateMismatch(
                f"The state is at row {row} of row group {number}, but {redact.show(self._stream.path)} has {known} "
                f"row groups of {', '.join(map(str, self._part_lengths[:8]))} rows."
            )
        self._group, self._row = number, row

    def close(self) -> None:
        self._read, self._columns = None, {}
