"""Writes elements as rows of Parquet files, and reads them back. Nested dicts become columns `a.b`, arrays lists.

An array with more or less than one axis gets a second column, `name.shape`. Elements that rows cannot hold are an
error; records of bytes (`sources/element_records.py`) can hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bushel._src.base.errors import DamagedFile
from bushel._src.base.pickling import whole_text
from bushel._src.sources.element_records import Layout, encode, parse_dtype
from bushel._src.sources.optional_packages import import_package

_ROWS_PER_GROUP = 1000
_GROUP_BYTES = 64 << 20
_PYTHON = {"int": "int64", "float": "float64", "bool": "bool_", "str": "string", "bytes": "binary"}
_SHAPE = ".shape"


def list_columns(layout: Layout, path: str | None = None) -> Iterator[tuple[str, Layout]]:
    """The names of the columns of a layout, and the layout of each."""
    match layout:
        case {"dict": parts}:
            if path is None and not any(True for _ in _list_leaves(layout)):
                raise TypeError(f"The element has no values: a Parquet file without columns has no rows. {_INSTEAD}")
            for key, part in parts.items():
                if "." in key:
                    raise TypeError(f"The key {key!r} has a dot, which separates the parts of column names: rename it.")
                yield from list_columns(part, _join(path, key))
        case {"list": _} | {"tuple": _}:
            raise TypeError(
                f"{path or 'The element'} is a list or a tuple, which has no names for Parquet columns. {_INSTEAD}"
            )
        case _ if path is None:
            raise TypeError(f"Only an element that is a dict has names for Parquet columns. {_INSTEAD}")
        case _:
            yield path, layout


def _join(path: str | None, key: str) -> str:
    return key if path is None else f"{path}.{key}"


def _list_leaves(layout: Layout) -> Iterator[Layout]:
    if isinstance(layout, dict) and "dict" in layout:
        for part in layout["dict"].values():
            yield from _list_leaves(part)
    else:
        yield layout


_INSTEAD = 'Map it to a dict of arrays, numbers and texts, or save it with format="bag".'


def _arrow_type(arrow: Any, leaf: Layout, path: str) -> Any:
    if isinstance(leaf, str):
        return arrow.null() if leaf == "None" else getattr(arrow, _PYTHON[leaf])()
    ((form, text),) = leaf.items()
    dtype = parse_dtype(text)
    try:
        inner = {"U": arrow.string, "S": arrow.binary}[dtype.kind]() if dtype.kind in "US" else None
        inner = inner or arrow.from_numpy_dtype(dtype.newbyteorder("="))
    except (arrow.ArrowNotImplementedError, NotImplementedError):
        raise TypeError(f"{path} has the dtype {dtype}, which Parquet does not have. {_INSTEAD}") from None
    return inner if form == "scalar" else arrow.list_(inner)


class RowWriter:
    """Writes elements of one layout to a Parquet file. The first element decides which arrays get a shape column."""

    def __init__(self, path: str, layout: Layout, first: Any):
        self._arrow = import_package("pyarrow", "parquet", "Saved Parquet files")
        parquet = import_package("pyarrow.parquet", "parquet", "Saved Parquet files")
        self._layout, self._leaves = layout, dict(list_columns(layout))
        row = dict(_iterate_values(first, layout))
        self._shaped = {
            name for name, leaf in self._leaves.items() if _is_array(leaf) and np.asarray(row[name]).ndim != 1
        }
        fields = [(name, _arrow_type(self._arrow, leaf, name)) for name, leaf in self._leaves.items()]
        fields += [(name + _SHAPE, self._arrow.list_(self._arrow.int64())) for name in sorted(self._shaped)]
        self._schema = self._arrow.schema(fields)
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd", write_page_checksum=True)
        self._rows: list[dict[str, Any]] = []
        self._held_bytes = 0

    def write(self, element: Any) -> int:
        """Writes an element. Returns the approximate number of bytes that it takes."""
        size = len(encode(element, self._layout))  # raises an error if the layout differs
        row: dict[str, Any] = {}
        for name, value in _iterate_values(element, self._layout):
            if _is_array(self._leaves[name]):
                array = np.asarray(value)
                if name in self._shaped:
                    row[name + _SHAPE] = list(array.shape)
                elif array.ndim != 1:
                    raise ValueError(
                        f"{name} has {array.ndim} axes, but it had one axis in the first element. A Parquet column "
                        "needs the same number of axes in all elements. Reshape it, or save with "
                        'format="bag".'
                    )
                value = array.astype(array.dtype.newbyteorder("="), copy=False).ravel()
                value = value.tolist() if array.dtype.kind in "US" else value
            elif isinstance(value, (np.str_, np.bytes_)):
                value = whole_text(value)
            elif isinstance(value, np.generic):
                value = value.item()
            row[name] = value
        self._rows.append(row)
        self._held_bytes += size
        if len(self._rows) == _ROWS_PER_GROUP or self._held_bytes > _GROUP_BYTES:
            self._flush()
        return size

    def _flush(self) -> None:
        columns = [self._make_column(field) for field in self._schema]
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._held_bytes = [], 0

    def _make_column(self, field: Any) -> Any:
        try:
            return self._arrow.array([row[field.name] for row in self._rows], field.type)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{field.name} holds a text that is not valid Unicode ({error.reason}), which Parquet cannot store. "
                'Save it as bytes, or with format="bag".'
            ) from None

    def close(self) -> None:
        """Completes the file."""
        if self._rows:
            self._flush()
        self._writer.close()


def _is_array(leaf: Layout) -> bool:
    return isinstance(leaf, dict) and "array" in leaf


def _iterate_values(element: Any, layout: Layout, path: str | None = None) -> Iterator[tuple[str, Any]]:
    if isinstance(layout, dict) and "dict" in layout:
        for key, part in layout["dict"].items():
            yield from _iterate_values(element[key], part, _join(path, key))
    else:
        yield path or "", element


def decode_row(row: dict[str, Any], layout: Layout, path: str | None = None) -> Any:
    """Restores the element of a row."""
    if isinstance(layout, dict) and "dict" in layout:
        return {key: decode_row(row, part, _join(path, key)) for key, part in layout["dict"].items()}
    if layout == "None":
        return None
    try:
        path = path or ""
        return _decode_value(row[path], row.get(path + _SHAPE), layout)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(f"column {path!r} does not match its layout {layout!r}: {error!r}.") from None


def _decode_value(value: Any, shape: Any, leaf: Layout) -> Any:
    if isinstance(leaf, str):
        value = value.item() if isinstance(value, np.generic) else value
        return {"int": int, "float": float, "bool": bool, "str": str, "bytes": bytes}[leaf](value)
    ((form, text),) = leaf.items()
    dtype = parse_dtype(text)
    if form == "scalar":
        return np.asarray(value).astype(dtype)[()] if dtype.kind not in "US" else dtype.type(value)
    array = np.array(list(value), dtype) if dtype.kind in "US" else np.asarray(value).astype(dtype)
    return array if shape is None else array.reshape([int(length) for length in shape])
