"""Rows of Arrow tables as records: dicts of NumPy values. Whole columns are converted at once if possible."""

from __future__ import annotations

from typing import Any

import numpy as np

from bushel._src.base.blocks import Block, Columns
from bushel._src.sources.optional_packages import import_package

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
        """One record."""
        return {
            name: column[place] if isinstance(column, np.ndarray) else _take_objects(column, [place])[0]
            for name, column in self._columns.items()
        }

    def take(self, places: np.ndarray) -> Block:
        """Many records: as columns if all values are numbers, otherwise as rows."""
        if self._numbers:
            return Columns({name: column[places] for name, column in self._columns.items()}, len(places))
        parts = [
            column[places] if isinstance(column, np.ndarray) else _take_objects(column, places)
            for column in self._columns.values()
        ]
        names = tuple(self._columns)
        return [dict(zip(names, values)) for values in zip(*parts)]


def to_storage(column: Any) -> Any:
    """A column without extension types that a Python package has registered: the plain values that lie in the file.

    `import datasets` registers such types, for arrays of two or more dimensions. What a file holds must not depend on
    which packages the program has imported. The extension types of pyarrow itself stay as they are.
    """
    plain = get_storage_type(column.type)
    return column if plain == column.type else column.cast(plain)


def get_storage_type(kind: Any) -> Any:
    """The type of `to_storage` of a column of this type."""
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
    """A column, cast if needed to a type of which pyarrow can take rows."""
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
    """Integers or booleans as NumPy scalars, nulls as None."""
    found = np.empty(len(column), object)
    found[:] = list(column.fill_null(False if boolean else 0).to_numpy(zero_copy_only=False))
    found[column.is_null().to_numpy(zero_copy_only=False)] = None
    return found


def _take_objects(column: Any, places: Any) -> np.ndarray:
    return to_array(column.take(np.asarray(places)))


def to_array(column: Any) -> np.ndarray:
    """A column as an array, as `to_numpy` returns it. Lists in it, also nested ones, become writable arrays."""
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
