"""Objects that users pass as a source: checks them, and turns tables in memory into sources of rows.

`table[i]` is a column, although `len(table)` counts rows, so a table is not a source by itself. No table package is
imported here: the module name of an object's class says what the object is.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.sources.optional_packages import import_package


def check_source(source: Any, what: str) -> None:
    """Raises an error for an object without records by position. `what` begins the message, such as "A source"."""
    name = type(source).__name__
    if _get_package(source) == "pyarrow" and hasattr(source, "to_table") and not hasattr(source, "__getitem__"):
        raise TypeError(
            f"{what} is read by position, and pyarrow's {name} has no positions. Pass `dataset.to_table()` if it fits "
            "into memory, or its files to bushel.sources.ParquetDataSource."
        )
    if not hasattr(source, "__getitem__") or not hasattr(source, "__len__"):
        raise TypeError(f"{what} needs `__len__` and `__getitem__`, got {name}. {_make_source(source)}")
    if isinstance(source, str):
        raise TypeError(
            f"{what} holds records, but {redact.clean(repr(source))} is a str. If it names files, open them: "
            "`bushel.MapDataset.source(bushel.sources.open(path))`. If its characters are the records, pass list(text)."
        )
    if isinstance(source, Mapping) and isinstance(next(iter(source), 0), str):
        names = ", ".join(map(repr, list(source)[:8]))
        raise TypeError(
            f"{what} is read by position from 0 on, but this {name} has the keys {names}. "
            "Pass one of its values, or, for columns of arrays, bushel.sources.ArrayDataSource(...)."
        )


def _make_source(value: Any) -> str:
    """What to write so that a value without records by position can be read."""
    if isinstance(value, (types.GeneratorType, types.FunctionType)):
        return (
            "Write `bushel.IterDataset.source(function)` for a function that returns a generator, or "
            "`list(...)` of it if the records fit into memory."
        )
    if isinstance(value, (set, frozenset)):
        return "A set has no order: pass `sorted(...)` of it."
    if hasattr(value, "_node"):
        return "It is a dataset already: use it without `source`."
    if isinstance(value, Iterable):
        return (
            "Pass `list(...)` of it if the records fit into memory. For data that can only be read in order, write an "
            "IterDataset, or `bushel.IterDataset.source(iterable)`."
        )
    return "Pass a list, an array, or a source of bushel.sources. For data that is read in order, write an IterDataset."


def as_source(source: Any) -> Any:
    """The rows of a table in memory as a source. Any other source is returned unchanged."""
    family, kind = _get_package(source), type(source).__name__
    if family not in ("pyarrow", "pandas", "polars"):
        return source
    from bushel._src.sources import tables_in_memory  # loaded when it is needed: few programs need it

    if family == "pyarrow" and kind in ("Table", "RecordBatch"):
        return tables_in_memory.ArrowTableSource(source)
    if family == "polars" and kind == "DataFrame":
        return tables_in_memory.ArrowTableSource(
            import_package("pyarrow", "parquet", "Rows of a polars frame").table(source)
        )
    if family == "polars" and kind == "LazyFrame":
        raise TypeError("A source holds records, but a LazyFrame of polars is only a plan. Pass `frame.collect()`.")
    if family == "pandas" and hasattr(source, "iloc"):
        if hasattr(source, "columns"):
            return tables_in_memory.PandasSource(source)
        _check_labels(source)
    return source


def _get_package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _check_labels(series: Any) -> None:
    """Raises an error for a pandas Series whose labels are not its positions: `series[i]` looks up labels."""
    index = series.index
    if not np.array_equal(np.asarray(index), np.arange(len(index))):
        shown = ", ".join(map(repr, index[:4].tolist()))
        raise ValueError(
            f"A source is read by position, but this Series is read by labels ({shown}, ...), not 0, 1, 2, ... "
            "Pass `series.to_numpy()`, or `series.reset_index(drop=True)`."
        )
