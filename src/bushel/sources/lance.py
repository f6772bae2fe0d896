"""Lance data sets, through the `lance` package: rows at any position."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel.base import checks, redact
from bushel.base.blocks import Block
from bushel.base.errors import DamagedFile
from bushel.sources.arrow_rows import ArrowRows
from bushel.sources.needs import package
from bushel.sources.stores import Options, Path

T = TypeVar("T")

_OF_LANCE = ("_rowid", "_rowaddr")  # columns that every data set has


class LanceDataSource:
    """Rows of a Lance data set as dicts, at any position. A null is None, in columns of floats NaN.

    Args:
      path: a folder or a URL that the `lance` package knows.
      columns: only these; all by default.
      version: of the data set; the latest when the source is made, and the same one from then on.
      storage_options: of the store, as the `lance` package has them.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str] | None = None,
        *,
        version: int | None = None,
        storage_options: Options | None = None,
    ):
        self._path, self._columns = os.fspath(path), None if columns is None else list(columns)
        self._options, self._version = redact.Options(storage_options or {}), version
        self._name = redact.shown(self._path)
        self._forget()
        data = self._opened()
        facts = self._told("its manifest is damaged", lambda: (_names(data.schema), data.version, data.count_rows()))
        known, (self._version, self._length) = list(facts[0]), facts[1:]
        for name in self._columns or ():
            if name not in known and name not in _OF_LANCE:
                raise ValueError(f"{self._name} has no column {name!r}; its columns are {', '.join(map(repr, known))}.")

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._data: Any = None

    def _opened(self) -> Any:
        with self._lock:
            if self._data is None:
                lance = package("lance", "lance", "Lance data sets")
                options = dict(self._options) or None
                try:
                    self._data = self._told(
                        "it is no complete Lance data set",
                        lambda: lance.dataset(self._path, version=self._version, storage_options=options),
                    )
                except DamagedFile as error:
                    if "was not found" not in str(error):
                        raise
                    which = "" if self._version is None else f" with a version {self._version}"
                    raise FileNotFoundError(f"{self._name} is no Lance data set{which}: {error.__cause__}") from error
            return self._data

    def _told(self, what: str, call: Callable[[], T]) -> T:
        """What a call of the package gives; whatever it raises as a `DamagedFile`, without secrets.

        A panic of the package is no `Exception`, and would end workers.
        """
        try:
            return redact.guarded(call, self._path, self._options)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise DamagedFile(f"{self._name}: {what}: {error}") from error

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = checks.integer(index, "index")
        if not -self._length <= place < self._length:
            raise IndexError(f"index {place} is out of range for {self._length} records")
        return self._rows([place % self._length]).row(0)

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """The rows at `indices`, in one call."""
        places = checks.positions(indices, self._length)
        if not len(places):
            return []
        wanted, back = np.unique(places, return_inverse=True)
        return self._rows(wanted.tolist()).take(back)

    def _rows(self, places: list[int]) -> ArrowRows:
        data = self._opened()

        def taken() -> Any:
            found = data.take(places, columns=self._columns)
            found.validate(full=True)  # to follow a wrong offset would end the process
            return found

        table = self._told(f"rows {places[:8]} cannot be read", taken)
        if table.num_rows != len(places):
            raise DamagedFile(f"{self._name}: {len(places)} rows were asked for, and {table.num_rows} came.")
        return ArrowRows(table, self._name, chosen=True)

    def fingerprint(self) -> Any:
        data = self._opened()

        def names() -> list[str]:  # Lance gives each file a name of its own
            return sorted(file.path for part in data.get_fragments() for file in part.data_files())

        files = self._told("its files cannot be listed", names)
        digest = hashlib.blake2b("\n".join(files).encode(), digest_size=16).hexdigest()
        return [redact.object_name(self._path), self._version, self._length, self._columns, digest]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_data")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"LanceDataSource({redact.base_name(self._path)}: {self._length} records)"


def _names(fields: Any, before: str = "") -> Iterator[str]:
    """The names of columns; those inside of others have theirs before a dot."""
    for field in fields:
        yield f"{before}{field.name}"
        if hasattr(field.type, "fields"):
            yield from _names(field.type.fields, f"{before}{field.name}.")
