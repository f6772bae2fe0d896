"""Lance data sets, through the `lance` package: rows at any position."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel.base import checks, redact
from bushel.base.blocks import Block
from bushel.base.errors import DamagedFile
from bushel.sources import stores
from bushel.sources.arrow_rows import ArrowRows
from bushel.sources.joined import JoinedStores, Store, find_stores
from bushel.sources.needs import package
from bushel.sources.stores import Options

T = TypeVar("T")

_OF_LANCE = ("_rowid", "_rowaddr")  # columns that every data set has


class LanceDataSource(JoinedStores):
    """Rows of Lance data sets as dicts, at any position. A null is None, in columns of floats NaN.

    Args:
      paths: one or many folders or URLs that the `lance` package knows; patterns of local folders.
      columns: only these; all by default.
      version: of a single data set; the latest when the source is made, and the same one from then on.
      storage_options: of the store, as the `lance` package has them.
    """

    def __init__(
        self,
        paths: Any,
        columns: Sequence[str] | None = None,
        *,
        version: int | None = None,
        storage_options: Options | None = None,
    ):
        found = _data_sets(paths)
        if version is not None and len(found) > 1:
            raise ValueError(f"A version belongs to one Lance data set, and these paths name {len(found)}.")

        def build(path: str) -> LanceStore:
            return LanceStore(path, columns, version, storage_options)

        super().__init__(found, build)


def _data_sets(paths: Any) -> list[str]:
    """The data sets that paths and patterns name."""
    found = find_stores(paths, None, ("_versions/*.manifest",), "Lance data set", local_patterns=True)
    for path in found:
        if stores.is_url(path) and "*" in path:  # the settings are those of Lance's own client, which lists nothing
            raise ValueError(f"{redact.show(path)}: patterns name local Lance data sets alone. Name each URL.")
    return found


class LanceStore(Store):
    """Rows of one Lance data set."""

    def __init__(self, path: str, columns: Sequence[str] | None, version: int | None, storage_options: Options | None):
        self._path, self._columns = path, None if columns is None else list(columns)
        self._options, self._version = redact.Options(storage_options or {}), version
        self._name = redact.show(self._path)
        self._forget()
        data = self._opened()
        facts = self._told(
            "its manifest is damaged", lambda: (dict(_types(data.schema)), data.version, data.count_rows())
        )
        known, self._version, self._length = facts
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
            return redact.call_guarded(call, self._path, self._options)
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

    def layout(self) -> dict[str, str]:
        data = self._opened()
        types = self._told("its manifest is damaged", lambda: dict(_types(data.schema)))
        return types if self._columns is None else {name: types.get(name, "") for name in self._columns}

    def close(self) -> None:
        with self._lock:
            self._data = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_data")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"LanceStore({redact.base_name(self._path)}: {self._length} records)"


def _types(fields: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """The names and types of columns; columns inside of others have the names of those before a dot."""
    for field in fields:
        yield f"{before}{field.name}", str(field.type)
        if hasattr(field.type, "fields"):
            yield from _types(field.type.fields, f"{before}{field.name}.")
