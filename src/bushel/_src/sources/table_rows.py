"""Rows of tables as records: of Arrow tables and pandas frames in memory, and what Parquet and Arrow files share.

Whole columns are converted to NumPy at once if possible. A file is decoded one part at a time.
"""

from __future__ import annotations

import abc
import collections
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import DamagedFile
from bushel._src.base.late_imports import import_package
from bushel._src.base.private_elements import copy_value
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.local_files import File, changed_error
from bushel._src.sources.paths import Options
from bushel._src.sources.record_files import JoinedFiles, find_part, gather_from_parts

_VIEWS = {"string_view": "large_string", "binary_view": "large_binary"}


class ArrowRows:
    """Some rows of a table. Columns of numbers are converted at once, other columns when a row is read.

    A value is what `to_numpy` of its whole column returns: numbers become NumPy scalars, strings str, lists arrays, and
    integers of a column with nulls floats. If the rows were `chosen` from a larger table, the dtype must not depend on
    the other rows: integers then stay integers, and a null is None. `path` is the name in messages.
    """

    def __init__(self, table: Any, path: str, *, chosen: bool = False):
        types = import_package("pyarrow", "parquet", "Parquet and Arrow files").types
        self.length = int(table.num_rows)
        self.nbytes = int(table.nbytes)
        self._columns: dict[str, Any] = {}
        self._numbers = True
        for name, column in zip(table.schema.names, table.columns):
            column = to_storage(column)
            if hasattr(column, "combine_chunks"):
                column = column.combine_chunks()
            column = _make_takeable(column, name, path)
            if chosen and column.null_count and (types.is_integer(column.type) or types.is_boolean(column.type)):
                self._columns[name] = _nulls_to_none(column, types.is_boolean(column.type))
                self._numbers = False
            elif types.is_primitive(column.type):
                self._columns[name] = column.to_numpy(zero_copy_only=False)
                self._numbers &= self._columns[name].dtype != object
            else:
                self._columns[name] = column
                self._numbers = False

    def row(self, place: int) -> dict[str, Any]:
        """Return one record."""
        return {
            name: column[place] if isinstance(column, np.ndarray) else _take_objects(column, [place])[0]
            for name, column in self._columns.items()
        }

    def take(self, places: np.ndarray) -> Block:
        """Return many records: as columns if all values are numbers, otherwise as rows."""
        if self._numbers:
            return Columns({name: column[places] for name, column in self._columns.items()}, len(places))
        parts = [
            column[places] if isinstance(column, np.ndarray) else _take_objects(column, places)
            for column in self._columns.values()
        ]
        names = tuple(self._columns)
        return [dict(zip(names, values)) for values in zip(*parts)]


def to_storage(column: Any) -> Any:
    """Return a column without extension types that a Python package has registered: the plain values that lie in the
    file.

    `import datasets` registers such types, for arrays of two or more dimensions. What a file holds must not depend on
    which packages the program has imported. The extension types of pyarrow itself stay as they are.
    """
    plain = get_storage_type(column.type)
    return column if plain == column.type else column.cast(plain)


def get_storage_type(kind: Any) -> Any:
    """Return the type of `to_storage` of a column of this type."""
    arrow = import_package("pyarrow", "parquet", "Parquet and Arrow files")
    types = arrow.types
    if isinstance(kind, arrow.ExtensionType):
        return get_storage_type(kind.storage_type)
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return arrow.struct([field.with_type(get_storage_type(field.type)) for field in fields])
    if types.is_map(kind):
        return arrow.map_(get_storage_type(kind.key_type), get_storage_type(kind.item_type), kind.keys_sorted)
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return kind
    inner = kind.value_field.with_type(get_storage_type(kind.value_type))
    if types.is_fixed_size_list(kind):
        return arrow.list_(inner, kind.list_size)
    return arrow.large_list(inner) if types.is_large_list(kind) else arrow.list_(inner)


def _make_takeable(column: Any, name: str, path: str) -> Any:
    """Return a column, cast if needed to a type of which pyarrow can take rows."""
    arrow = import_package("pyarrow", "parquet", "Parquet and Arrow files")
    kind = str(column.type)
    try:
        if kind in _VIEWS:
            return column.cast(_VIEWS[kind])
        if kind.startswith("run_end_encoded"):
            return import_package("pyarrow.compute", "parquet", "Arrow files").run_end_decode(column)
        if not arrow.types.is_primitive(column.type):
            _take_objects(column, np.zeros(0, np.int64))  # takes no rows, to find out whether pyarrow can
    except NotImplementedError as error:
        raise ValueError(
            f"{path}: column {name!r} is of type {kind}, of which pyarrow cannot take rows ({error}). Cast it to "
            "another type, or choose other columns."
        ) from None
    return column


def _nulls_to_none(column: Any, boolean: bool) -> np.ndarray:
    """Return integers or booleans as NumPy scalars, nulls as None."""
    found = np.empty(len(column), object)
    found[:] = list(column.fill_null(False if boolean else 0).to_numpy(zero_copy_only=False))
    found[column.is_null().to_numpy(zero_copy_only=False)] = None
    return found


def _take_objects(column: Any, places: Any) -> np.ndarray:
    return to_array(column.take(np.asarray(places)))


def to_array(column: Any) -> np.ndarray:
    """Return a column as an array, as `to_numpy` returns it. Lists in it, also nested ones, become writable arrays."""
    found = column.to_numpy(zero_copy_only=False)
    if found.dtype == object and import_package("pyarrow", "parquet", "Arrow files").types.is_nested(column.type):
        for place, value in enumerate(found):
            found[place] = _copy_lists(value)
    return found


def _copy_lists(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    copy = value.copy()
    if copy.dtype == object:
        for place, inner in enumerate(value):
            copy[place] = _copy_lists(inner)
    return copy


UNREADABLE = (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""The errors that pyarrow raises for damaged files."""


def check_names(path: str, schema: Any, inner: Iterable[str], columns: Sequence[str] | None) -> None:
    """Raise an error if a wanted column does not exist, or if two columns have one name: a dict would lose one.

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
    """Raise an error if a struct in a column has two fields of one name."""
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
        """Return a new, empty container of open files."""

    @abc.abstractmethod
    def _part_lengths(self, number: int) -> list[int]:
        """Return the number of rows of each part of a file."""

    @abc.abstractmethod
    def _read_part(self, number: int, part: int) -> Any:
        """Decode one part of a file. Any thread may call it."""

    def _forget_open(self) -> None:
        self._rows = _PartCache(self._cache_bytes, self._decode_part)
        self._files = self._make_file_cache()

    def _open_unchanged(self, number: int) -> File:
        """Open a file. Raise an error if it has changed since the source was made."""
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
        """Return the rows at `indices`. Each part of a file that holds some of them is decoded once."""
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


_SAMPLES = 64
_SMALL_BYTES = 4 << 20


class MemoryTableSource(abc.ABC):
    """Rows of a table in memory, as dicts."""

    in_memory = True

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def _read_row(self, place: int) -> dict[Any, Any]:
        """Return one record. The caller may change it."""

    @abc.abstractmethod
    def _read_rows(self, places: np.ndarray) -> Block:
        """Return many records. The caller may change them."""

    def __getitem__(self, index: int) -> dict[Any, Any]:
        return self._read_row(checks.position(index, len(self)))

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """Return the rows at `indices`."""
        return self._read_rows(checks.positions(indices, len(self)))

    def fingerprint(self) -> Any:
        """Return the number of rows, and all values of a small table, or a sample of rows."""
        if self._is_small():
            return [len(self), self.fingerprint_in_full()]
        places = np.unique(np.linspace(0, len(self) - 1, _SAMPLES).astype(np.int64)) if len(self) else []
        return [len(self), [self._read_row(int(place)) for place in places]]

    @abc.abstractmethod
    def _is_small(self) -> bool:
        """Return whether it costs little to compare all values."""

    @abc.abstractmethod
    def fingerprint_in_full(self) -> Any:
        """Return all values, for what is kept on disk."""


@in_states("arrow_table")
class ArrowTableSource(MemoryTableSource):
    """Rows of an Arrow table or record batch as dicts, with the same values as rows of Parquet and Arrow files.

    >>> import pyarrow
    >>> ArrowTableSource(pyarrow.table({"x": [1, 2], "name": ["a", "b"]}))[1]
    {'x': np.int64(2), 'name': 'b'}
    """

    def __init__(self, table: Any):
        check_names("This table", table.schema, table.schema.names, None)
        self._table = table
        self._found = ArrowRows(table, "This table")

    def __len__(self) -> int:
        return self._found.length

    def _read_row(self, place: int) -> dict[str, Any]:
        return self._found.row(place)

    def _read_rows(self, places: np.ndarray) -> Block:
        return self._found.take(places)

    def _is_small(self) -> bool:
        return self._table.nbytes <= _SMALL_BYTES

    def fingerprint_in_full(self) -> Any:
        return self._table

    def __reduce__(self) -> Any:
        return ArrowTableSource, (self._table,)

    def __repr__(self) -> str:
        return f"{type(self._table).__name__}({len(self)} rows: {', '.join(self._table.schema.names)})"


@in_states("pandas_frame")
class PandasSource(MemoryTableSource):
    """Rows of a pandas frame as dicts, by position. Numbers are NumPy scalars; a missing value of another type is None.

    The index of the frame is left out. To keep it, pass `frame.reset_index()`, which makes it a column.

    >>> import pandas
    >>> PandasSource(pandas.DataFrame({"x": [1, 2], "name": ["a", "b"]}))[1]
    {'x': np.int64(2), 'name': 'b'}
    """

    def __init__(self, frame: Any):
        names = list(frame.columns)
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        if twice:
            raise ValueError(
                f"This frame has {names.count(twice[0])} columns {twice[0]!r}, but a record is a dict. Rename them: "
                "frame.columns = [...]."
            )
        if not names:
            raise ValueError("This frame has no columns.")
        self._length = len(frame)
        self._columns = {name: _to_array(frame.iloc[:, place]) for place, name in enumerate(names)}
        self._numbers = all(column.dtype != object for column in self._columns.values())

    def __len__(self) -> int:
        return self._length

    def _read_row(self, place: int) -> dict[Any, Any]:
        return {
            name: copy_value(column[place]) if column.dtype == object else column[place]
            for name, column in self._columns.items()
        }

    def _read_rows(self, places: np.ndarray) -> Block:
        if self._numbers:
            return Columns({name: column[places] for name, column in self._columns.items()}, len(places))
        return [self._read_row(place) for place in places.tolist()]

    def _is_small(self) -> bool:
        return all(column.nbytes <= _SMALL_BYTES for column in self._columns.values())

    def fingerprint_in_full(self) -> Any:
        return self._columns

    def __repr__(self) -> str:
        return f"DataFrame({len(self)} rows: {', '.join(map(str, self._columns))})"


def _to_array(series: Any) -> np.ndarray:
    """Return a column of a pandas frame as an array: of its own NumPy dtype (numbers, dates), otherwise of objects."""
    if isinstance(series.dtype, np.dtype) and series.dtype != object:
        return series.to_numpy()
    values = series.to_numpy(dtype=object, copy=True)
    values[series.isna().to_numpy()] = None
    return values
