"""Arrow IPC files (also called Feather 2), mapped into memory: record batches at any position."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import checks
from bushel.base.blocks import Block
from bushel.base.errors import DamagedFile
from bushel.sources import stores
from bushel.sources.arrow_rows import ArrowRows, RowsCache, gathered
from bushel.sources.needs import package
from bushel.sources.stores import Options

_KEPT_BYTES = 256 << 20


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
        self._files = [_opened(path, self._options, self._columns) for path in self._paths]
        self._places = [(file, batch) for file in self._files for batch in range(len(file.lengths))]
        self._ends = np.cumsum([length for file in self._files for length in file.lengths], dtype=np.int64)
        self._length = int(self._ends[-1]) if len(self._ends) else 0
        self._rows = RowsCache(_KEPT_BYTES, self._decoded)

    def _decoded(self, number: int) -> ArrowRows:
        file, batch = self._places[number]
        return file.batch(batch)

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
        return self._rows(number).row(place - (int(self._ends[number - 1]) if number else 0))

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """The rows at `indices` (each in [0, len))."""
        return gathered(np.asarray(indices, np.int64), self._ends, self._rows)

    def fingerprint(self) -> Any:
        return [stores.fingerprint(self._paths, self._options), self._columns]

    def __reduce__(self) -> Any:
        return _again, (self._paths, self._columns, self._options)

    def __repr__(self) -> str:
        more = f" and {len(self._paths) - 1} more" if len(self._paths) > 1 else ""
        return f"ArrowDataSource({os.path.basename(self._paths[0])}{more}: {self._length} records)"


def _again(paths: list[str], columns: list[str] | None, options: dict[str, Any]) -> ArrowDataSource:
    return ArrowDataSource(paths, columns, storage_options=options)


class _ArrowFile:
    """One open file. Batches are taken from the map as they are asked for, and decompressed where they must be."""

    def __init__(self, path: str, content: Any, columns: Sequence[str] | None):
        ipc = package("pyarrow.ipc", "parquet", "Arrow files")
        self._path, self._columns = path, columns
        self._reader = ipc.open_file(content)
        self._lock = threading.Lock()
        names = self._reader.schema.names
        for name in columns or ():
            if name not in names:
                raise KeyError(f"{path} has no column {name!r}; its columns are {', '.join(map(repr, names))}.")
        # The lengths, from one column alone: others may be compressed, and large.
        narrow = ipc.open_file(content, options=ipc.IpcReadOptions(included_fields=[0] if names else []))
        self.lengths = [narrow.get_batch(number).num_rows for number in range(narrow.num_record_batches)]

    def batch(self, number: int) -> ArrowRows:
        try:
            with self._lock:
                found = self._reader.get_batch(number)
        except (OSError, ValueError) as error:
            raise DamagedFile(f"{self._path}: record batch {number} cannot be read: {error}") from error
        return ArrowRows(found if self._columns is None else found.select(self._columns))


def _opened(path: str, options: Options | None, columns: Sequence[str] | None) -> _ArrowFile:
    arrow = package("pyarrow", "parquet", "Arrow files")
    file = stores.open_file(path, options)
    try:
        content = arrow.py_buffer(file.read(0, file.size)) if stores.is_url(path) else arrow.memory_map(path)
        return _ArrowFile(path, content, columns)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} is no complete Arrow file: {error}") from error
