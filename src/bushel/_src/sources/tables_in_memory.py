"""Rows of tables in memory (Arrow tables, pandas frames) as records. For table files see `table_files.py`."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.ownership import copy_value
from bushel._src.base.state_names import in_states
from bushel._src.sources.arrow_rows import ArrowRows
from bushel._src.sources.table_files import check_names

_SAMPLES = 64
_SMALL_BYTES = 4 << 20


class TableInMemory(abc.ABC):
    """Rows of a table in memory, as dicts."""

    in_memory = True

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def _read_row(self, place: int) -> dict[Any, Any]:
        """One record. The caller may change it."""

    @abc.abstractmethod
    def _read_rows(self, places: np.ndarray) -> Block:
        """Many records. The caller may change them."""

    def __getitem__(self, index: int) -> dict[Any, Any]:
        return self._read_row(checks.position(index, len(self)))

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """The rows at `indices`."""
        return self._read_rows(checks.positions(indices, len(self)))

    def fingerprint(self) -> Any:
        """The number of rows, and all values of a small table, or a sample of rows."""
        if self._is_small():
            return [len(self), self.fingerprint_in_full()]
        places = np.unique(np.linspace(0, len(self) - 1, _SAMPLES).astype(np.int64)) if len(self) else []
        return [len(self), [self._read_row(int(place)) for place in places]]

    @abc.abstractmethod
    def _is_small(self) -> bool:
        """Whether it costs little to compare all values."""

    @abc.abstractmethod
    def fingerprint_in_full(self) -> Any:
        """All values, for what is kept on disk."""


@in_states("arrow_table")
class ArrowTableSource(TableInMemory):
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
class PandasSource(TableInMemory):
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
    """A column of a pandas frame as an array: of its own NumPy dtype (numbers, dates), otherwise of objects."""
    if isinstance(series.dtype, np.dtype) and series.dtype != object:
        return series.to_numpy()
    values = series.to_numpy(dtype=object, copy=True)
    values[series.isna().to_numpy()] = None
    return values
