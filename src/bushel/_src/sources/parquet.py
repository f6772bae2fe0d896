"""Parquet files: rows at any position, in order, or as records of bytes for `bushel convert`. pyarrow decodes them.

How much memory the columns of a file would take is found in its metadata, before any of them is decoded. A value that
would change in a record of bytes is an error.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile, StateMismatch, TooLarge
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.local_files import File, HandlePool, as_stream
from bushel._src.sources.paths import Options, Paths, is_url
from bushel._src.sources.protocol_buffers import encode_example
from bushel._src.sources.size_limits import SMALL_BYTES, check_expansion, get_limits
from bushel._src.sources.table_rows import UNREADABLE, TableSource, check_names, get_storage_type, to_array, to_storage
from bushel._src.sources.user_sources import SequentialReader

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_WIDEST = 8
_TRAILER_BYTES = 8  # the length of the footer, and the name of the format

_files: weakref.WeakKeyDictionary[Any, File] = weakref.WeakKeyDictionary()


def remember_footer(parquet_file: Any, file: File) -> None:
    """Remember which file pyarrow has opened as `parquet_file`, for `check_sizes`."""
    _files[parquet_file] = file


def check_sizes(parquet_file: Any, path: str, number: int, columns: Sequence[str] | None) -> None:
    """Raise TooLarge if a column of a row group would take far more memory than it takes in the file.

    Args:
      parquet_file: an open `pyarrow.parquet.ParquetFile`.
      path: its name, for messages.
      number: the row group.
      columns: the wanted columns; all if None.
    """
    schema, group = parquet_file.schema, parquet_file.metadata.row_group(number)
    wanted = [place for place in range(len(schema)) if _is_wanted(schema.column(place).path, columns)]
    most = min(SMALL_BYTES, get_limits().record_bytes)
    if max(group.total_byte_size, _WIDEST * group.num_rows) <= most and not any(
        schema.column(place).max_repetition_level or schema.column(place).length > _WIDEST for place in wanted
    ):
        return
    if _is_signed(parquet_file):
        return
    for place in wanted:
        chunk, column = group.column(place), schema.column(place)
        width = _WIDTHS.get(chunk.physical_type) or max(0, column.length)
        size = max(chunk.total_uncompressed_size, chunk.num_values * width)
        try:
            check_expansion(size, chunk.total_compressed_size, group.num_rows)
        except TooLarge as error:
            raise TooLarge(f"{path}: the column {column.path!r} of row group {number} is not read: {error}") from None


def _is_wanted(name: str, columns: Sequence[str] | None) -> bool:
    return columns is None or any(name == one or name.startswith(f"{one}.") for one in columns)


def _is_signed(parquet_file: Any) -> bool:
    """Return whether some columns may be encrypted: their footer is signed, so it is longer than its content.

    pyarrow ends the process if it is asked about the size of an encrypted column.
    """
    file = _files[parquet_file]
    trailer = file.read(file.size - _TRAILER_BYTES, _TRAILER_BYTES)
    return int.from_bytes(trailer[:4], "little") != parquet_file.metadata.serialized_size


_FILES_AT_ONCE = 16
_IDLE_AT_MOST = 16  # idle handles of one file
_DECRYPT = "Pass decryption_properties to `ParquetIterDataset`, choose other columns, or decrypt the file first."


def open_parquet(file: File, settings: dict[str, Any]) -> Any:
    """Open a `pyarrow.parquet.ParquetFile`. Pages with checksums are compared with them."""
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
    """Return the number of rows of each row group."""
    return [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]


def read_group(file: Any, path: str, number: int, columns: Sequence[str] | None) -> Any:
    """Read a row group as a table. The table is validated: strings are valid UTF-8, for example."""
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
    """Raise an error for columns that do not exist, which pyarrow would silently leave out."""
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


_ROWS = 64
_LARGEST = (1 << 63) - 1


class ParquetRecords:
    """The rows of one Parquet file as records of bytes.

    If the only column is `record`, of bytes or text, its values are the records. Other rows become a
    `tf.train.Example`, in which nulls are left out. The type of a column decides what it becomes, so that all rows and
    files agree.
    """

    def __init__(self, path: str, options: Options | None, round_floats: bool):
        file = file_access.open_file(path, options)
        self._path, self._round = file.name, round_floats
        self._file = open_parquet(file, {})
        check_columns(self._file, self._path, None)
        schema = self._file.schema_arrow
        self._ends = np.cumsum(get_group_lengths(self._file), dtype=int)
        self._dtypes = {field.name: self._choose_dtype(field) for field in schema}
        self._bare = self._dtypes == {"record": object} and not _is_list(get_storage_type(schema.types[0]))

    def count(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read_blocks(self, low: int, high: int) -> Iterator[list[bytes]]:
        """Yield the records from `low` to `high` - 1, in blocks."""
        first, last = self._ends.searchsorted([low, high - 1], "right").tolist()
        for number in range(first, last + 1) if low < high else ():
            found = read_group(self._file, self._path, number, None)
            table = found.from_arrays([to_storage(column) for column in found.columns], names=found.schema.names)
            end = int(self._ends[number])
            if table.num_rows != end - (begin := int(self._ends[number - 1]) if number else 0):
                raise DamagedFile(
                    f"{self._path}: row group {number} has {table.num_rows} rows instead of {end - begin}."
                )
            self._check_values(table, begin)
            for start in range(max(low, begin), min(high, end), _ROWS):
                rows = table.slice(start - begin, min(_ROWS, high - start))
                yield self._encode_rows({name: column.to_pylist() for name, column in zip(table.schema.names, rows)})

    def _encode_rows(self, columns: dict[str, list[Any]]) -> list[bytes]:
        if self._bare:
            return [value.encode() if isinstance(value, str) else value for value in columns["record"]]
        rows = zip(*columns.values())
        with np.errstate(over="ignore"):  # if floats are rounded, large ones become infinite
            return [
                encode_example(
                    {name: np.array(v, self._dtypes[name]) for name, v in zip(columns, row) if v is not None}
                )
                for row in rows
            ]

    def _choose_dtype(self, field: Any) -> Any:
        """Return the type of a column in a `tf.train.Example`: int64, float32, or object for bytes and text."""
        types = import_package("pyarrow", "parquet", "Parquet files").types
        plain = get_storage_type(field.type)
        kind = plain.value_type if _is_list(plain) else plain
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if types.is_integer(kind) or types.is_boolean(kind):
            return np.int64
        if types.is_floating(kind) or types.is_null(kind):
            return np.float32
        texts = types.is_string, types.is_large_string
        if any(fits(kind) for fits in (*texts, types.is_binary, types.is_large_binary, types.is_fixed_size_binary)):
            return object
        raise ValueError(
            f"{self._path}: column {field.name!r} is of type {plain}, but a tf.train.Example holds only numbers, "
            "bytes, text and lists of these. Cast the column with pyarrow, or leave it out, and convert that file."
        )

    def _check_values(self, table: Any, begin: int) -> None:
        """Raise an error for values that a record cannot hold."""
        compute = import_package("pyarrow.compute", "parquet", "Parquet files")
        types = import_package("pyarrow", "parquet", "Parquet files").types
        for name, column in zip(table.schema.names, table.columns):
            shown = f"{self._path}: column {name!r}"
            if self._bare and column.null_count:
                row = begin + compute.index(column.is_null(), True).as_py()
                raise ValueError(f"{shown} is null in row {row}, so this row has no record. Leave the row out.")
            values = compute.list_flatten(column) if _is_list(column.type) else column
            if values is not column and values.null_count:
                raise ValueError(f"{shown} has nulls inside lists, which a tf.train.Example cannot hold. Fill them.")
            kind = values.type.value_type if types.is_dictionary(values.type) else values.type
            if types.is_uint64(kind) and (largest := compute.max(values.cast(kind)).as_py() or 0) > _LARGEST:
                raise ValueError(
                    f"{shown} holds {largest}, which does not fit into int64, the type of a tf.train.Example. Cast it "
                    "to text."
                )
            if types.is_float64(kind) and not self._round:
                numbers = values.cast(kind).drop_null().to_numpy()
                with np.errstate(over="ignore"):
                    lost = numbers[(numbers.astype(np.float32) != numbers) & ~np.isnan(numbers)]
                if len(lost):
                    raise ValueError(
                        f"{shown} holds float64 numbers such as {lost[0]}, but a tf.train.Example has float32 numbers. "
                        "To round them, pass round_floats=True (--round-floats)."
                    )


def _is_list(kind: Any) -> bool:
    types = import_package("pyarrow", "parquet", "Parquet files").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
