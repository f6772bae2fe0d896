"""Elements as one table in memory: of pyarrow for `ds.to_arrow()`, of pandas for `ds.to_pandas()`.

`sources/table_rows.py` reads such tables, and `sources/saved_elements.py` writes Parquet files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bushel._src.base.late_imports import import_package

if TYPE_CHECKING:
    import pandas
    import pyarrow

VALUE = "value"
"""The name of the only column if the elements are no dicts."""


def read_columns(elements: Iterable[Any]) -> dict[str, list[Any]]:
    """Return the values of each column. A nested dict has a column `a.b` for each value; a missing key gives None.

    >>> read_columns([{"a": {"b": 1}}, {"a": {"b": 2}, "c": "x"}])
    {'a.b': [1, 2], 'c': [None, 'x']}
    """
    columns: dict[str, list[Any]] = {}
    for count, element in enumerate(elements):
        row: dict[str, Any] = {}
        for name, value in _list_leaves(element, ""):
            if name in row:
                raise ValueError(f"Element {count} has two values for the column {name!r}. Rename one of its keys.")
            row[name] = value
        for name in row:
            if name not in columns:
                columns[name] = [None] * count
        for name, values in columns.items():
            values.append(row.get(name))
    return columns


def _list_leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield path or VALUE, value
        return
    for key, part in value.items():
        if not isinstance(key, str):
            raise TypeError(
                f"The key {key!r} is no text, and the name of a column is one. Map the element to other keys."
            )
        yield from _list_leaves(part, f"{path}.{key}" if path else key)


def make_arrow_table(columns: dict[str, list[Any]]) -> pyarrow.Table:
    """Return a table of pyarrow. Arrays are lists; arrays of one shape with several axes are lists of fixed sizes."""
    arrow = import_package("pyarrow", "parquet", "Tables of Arrow")
    return arrow.table({name: _make_arrow_column(arrow, name, values) for name, values in columns.items()})


def _make_arrow_column(arrow: Any, name: str, values: list[Any]) -> Any:
    try:
        numbers = _join_scalars(values)
        if numbers is not None:
            return arrow.array(numbers)
        if arrays := _join_arrays(values):
            return _make_lists(arrow, arrays)
        return arrow.array([value.tolist() if isinstance(value, np.ndarray) else value for value in values])
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, arrow.ArrowNotImplementedError) as error:
        raise TypeError(
            f"The values of {name!r} are no column of Arrow: {error}. Map the elements to arrays, numbers and texts."
        ) from error


def _make_lists(arrow: Any, arrays: list[np.ndarray]) -> Any:
    """Return the arrays as lists. All have one dtype, and the same shape except for the first axis."""
    inner = arrays[0].shape[1:]
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    values = arrow.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
    for size in reversed(inner):
        values = arrow.FixedSizeListArray.from_arrays(values, size)
    if len({len(array) for array in arrays}) == 1 and inner:
        return arrow.FixedSizeListArray.from_arrays(values, len(arrays[0]))
    ends = np.cumsum([0, *(len(array) for array in arrays)])
    kind = arrow.ListArray if ends[-1] < 1 << 31 else arrow.LargeListArray
    return kind.from_arrays(arrow.array(ends.astype(np.int32 if kind is arrow.ListArray else np.int64)), values)


def make_pandas_frame(columns: dict[str, list[Any]]) -> pandas.DataFrame:
    """Return a frame of pandas. An array with axes is one object of its column."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError("to_pandas needs the package 'pandas': pip install pandas", name="pandas") from error
    return pandas.DataFrame({name: _make_pandas_column(pandas, values) for name, values in columns.items()})


def _make_pandas_column(pandas: Any, values: list[Any]) -> Any:
    numbers = _join_scalars(values)
    if numbers is not None:
        return numbers
    column = pandas.Series(index=range(len(values)), dtype=object)
    if any(isinstance(value, (np.ndarray, list, tuple)) for value in values):
        column[:] = _as_objects(values)
        return column
    return pandas.Series(values)


def _as_objects(values: list[Any]) -> np.ndarray:
    objects = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):  # `objects[:] = values` would make one array of equal arrays
        objects[number] = value
    return objects


def _join_scalars(values: list[Any]) -> np.ndarray | None:
    """Return NumPy scalars, or arrays without an axis, of one dtype: as an array. Texts are left to the library."""
    first = values[0] if values else None
    if not isinstance(first, (np.generic, np.ndarray)) or first.ndim or first.dtype.kind not in "biufcmM":
        return None
    if all(getattr(value, "shape", None) == () and value.dtype == first.dtype for value in values):
        return np.array(values, first.dtype)
    return None


def _join_arrays(values: list[Any]) -> list[np.ndarray] | None:
    """Return the values as they are, if all are arrays of numbers with one dtype that differ in their first axis
    alone.
    """
    first = values[0] if values else None
    if not isinstance(first, np.ndarray) or not first.ndim or first.dtype.kind not in "biuf" or 0 in first.shape[1:]:
        return None
    alike = (
        isinstance(value, np.ndarray)
        and not isinstance(value, np.ma.MaskedArray)  # `tolist` gives None where its mask is True
        and value.dtype == first.dtype
        and value.ndim
        and value.shape[1:] == first.shape[1:]
        for value in values
    )
    return values if all(alike) else None
