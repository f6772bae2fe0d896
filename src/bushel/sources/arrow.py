"""Arrow IPC files (also called Feather 2), mapped into memory: record batches at any position."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import checks
from bushel.base.blocks import Block
from bushel.base.errors import DamagedFile
from bushel.sources import stores
from bushel.sources.arrow_rows import ArrowRows, gathered
from bushel.sources.needs import package
from bushel.sources.stores import Options


class ArrowDataSource:
    """Rows of Arrow IPC files as dicts, at any position. Local files are mapped: what is not read stays on disk.

    Args:
      paths: one or many files in the file format (not the stream format), patterns or URLs.
      columns: only these; all by default.
      storage_options: of the store where the files lie. Remote files are read whole into memory.
    """

    def __init__(self, paths: Any, columns: Sequence[str] | None = None, *, storage_options: Options | None = None):
        self._options = dict(storage_options or {})
        self._columns = None if columns is None else list(columns)
        self._paths = stores.find(paths, self._options)
        self._open()

    def _open(self) -> None:
        self._batches = [rows for path in self._paths for rows in _batches(path, self._options, self._columns)]
        self._ends = np.cumsum([rows.length for rows in self._batches], dtype=np.int64)
        self._length = int(self._ends[-1]) if len(self._ends) else 0

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their rows."""
        return list(self._paths)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = checks.integer(index, "index")
        if not -self._length <= place < self._length:
            raise IndexError(f"index {place} is out of range for {self._length} records")
        place %= self._length
        number = int(self._ends.searchsorted(place, "right"))
        return self._batches[number].row(place - (int(self._ends[number - 1]) if number else 0))

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """The rows at `indices` (each in [0, len))."""
        return gathered(np.asarray(indices, np.int64), self._ends, lambda number: self._batches[number])

    def fingerprint(self) -> Any:
        return [stores.fingerprint(self._paths, self._options), self._columns]

    def __reduce__(self) -> Any:
        return _again, (self._paths, self._columns, self._options)

    def __repr__(self) -> str:
        more = f" and {len(self._paths) - 1} more" if len(self._paths) > 1 else ""
        return f"ArrowDataSource({os.path.basename(self._paths[0])}{more}: {self._length} records)"


def _again(paths: list[str], columns: list[str] | None, options: dict[str, Any]) -> ArrowDataSource:
    return ArrowDataSource(paths, columns, storage_options=options)


def _batches(path: str, options: Options | None, columns: Sequence[str] | None) -> list[ArrowRows]:
    arrow = package("pyarrow", "parquet", "Arrow files")
    ipc = package("pyarrow.ipc", "parquet", "Arrow files")
    if stores.is_url(path):
        file = stores.open_file(path, options)
        content = arrow.py_buffer(file.read(0, file.size))
    else:
        stores.open_file(path)  # for the words where it cannot be read
        content = arrow.memory_map(path)
    try:
        reader = ipc.open_file(content)
        for name in columns or ():
            if name not in reader.schema.names:
                known = ", ".join(map(repr, reader.schema.names))
                raise KeyError(f"{path} has no column {name!r}; its columns are {known}.")
        found = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return [ArrowRows(batch.select(columns) if columns is not None else batch) for batch in found]
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} is no complete Arrow file: {error}") from error
