"""Lance data sets as sources, through the `lance` package: rows at any position."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.blocks import Block
from bushel._src.base.errors import DamagedFile
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.index import epochs
from bushel._src.sources.array_stores import JoinedStores, RecordStore, find_stores
from bushel._src.sources.paths import Options, Paths, is_url
from bushel._src.sources.table_rows import ArrowRows

T = TypeVar("T")

_OF_LANCE = ("_rowid", "_rowaddr")  # columns that Lance adds to every data set


@public("bushel.sources")
@in_states("LanceDataSource")
class LanceDataSource(JoinedStores):
    """Rows of Lance data sets as dicts, at any position. A null is None, or NaN in a column of floats.

    Args:
      paths: one or many folders or URLs that the `lance` package can open, or patterns of local folders.
      columns: read only these columns; all by default.
      version: the version to read, if there is only one data set. By default it is the latest version when the source
        is made, and the source keeps to it.
      storage_options: options of the store, as the `lance` package takes them.
    """

    @explains_arguments('Write `LanceDataSource(paths, columns=["text"])`.')
    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        storage_options: Options | None = None,
    ):
        found = _find_data_sets(paths)
        if version is not None and len(found) > 1:
            raise ValueError(f"A version belongs to one Lance data set, but these paths name {len(found)} data sets.")

        def build(path: str) -> LanceStore:
            return LanceStore(path, columns, version, storage_options)

        super().__init__(found, build)


def _find_data_sets(paths: Any) -> list[str]:
    """Return the data sets that paths and patterns name."""
    found = find_stores(paths, None, ("_versions/*.manifest",), "Lance data set", local_patterns=True)
    for path in found:
        if is_url(path) and "*" in path:  # the options are for Lance's own client, which cannot list files
            raise ValueError(
                f"{redact.show(path)}: only local Lance data sets can be named by a pattern. Name each URL."
            )
    return found


class LanceStore(RecordStore):
    """Rows of one Lance data set."""

    def __init__(self, path: str, columns: Sequence[str] | None, version: int | None, storage_options: Options | None):
        self._columns = None if columns is None else list(columns)
        self._options, self._version = redact.Options(storage_options or {}), version
        self._name = redact.show(path)
        super().__init__(path)

    def _count(self) -> int:
        data = self._get_open()
        known, self._version, count = self._call_lance(
            "its manifest is damaged", lambda: (dict(_column_types(data.schema)), data.version, data.count_rows())
        )
        for name in self._columns or ():
            if name not in known and name not in _OF_LANCE:
                raise ValueError(f"{self._name} has no column {name!r}; its columns are {', '.join(map(repr, known))}.")
        return count

    def _open(self) -> Any:
        lance = import_package("lance", "lance", "Lance data sets")
        options = dict(self._options) or None
        try:
            return self._call_lance(
                "it is not a complete Lance data set",
                lambda: lance.dataset(self._path, version=self._version, storage_options=options),
            )
        except DamagedFile as error:
            if "was not found" not in str(error):
                raise
            if self._version is not None:
                raise FileNotFoundError(
                    f"{self._name} is not a Lance data set with a version {self._version}: {error.__cause__}"
                ) from error
            raise FileNotFoundError(f"{self._name} is not a Lance data set: {error.__cause__}") from error

    def _call_lance(self, what: str, call: Callable[[], T]) -> T:
        """Return what a call of the `lance` package returns. Any error becomes a `DamagedFile` without secrets.

        A panic in the package's Rust code is not an `Exception`. Without this it would end a worker process.
        """
        try:
            return redact.call_guarded(call, self._path, self._options)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise DamagedFile(f"{self._name}: {what}: {error}") from error

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._read_rows([checks.position(index, self._length)]).row(0)

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """Return the rows at `indices`, read in one call."""
        places = checks.positions(indices, self._length)
        if not len(places):
            return []
        wanted, back = epochs.find_distinct(places)
        return self._read_rows(wanted.tolist()).take(back)

    def _read_rows(self, places: list[int]) -> ArrowRows:
        data = self._get_open()

        def take_rows() -> Any:
            table = data.take(places, columns=self._columns)
            table.validate(full=True)  # a wrong offset in the data would crash the process
            return table

        table = self._call_lance(f"rows {places[:8]} cannot be read", take_rows)
        if table.num_rows != len(places):
            raise DamagedFile(f"{self._name}: Lance returned {table.num_rows} rows instead of {len(places)}.")
        return ArrowRows(table, self._name, chosen=True)

    def fingerprint(self) -> Any:
        data = self._get_open()

        def list_files() -> list[str]:  # the name of each file is unique: Lance chooses it at random
            return sorted(file.path for part in data.get_fragments() for file in part.data_files())

        files = self._call_lance("its files cannot be listed", list_files)
        digest = hashlib.blake2b("\n".join(files).encode(), digest_size=16).hexdigest()
        return [redact.object_name(self._path), self._version, self._length, self._columns, digest]

    def layout(self) -> dict[str, str]:
        data = self._get_open()
        types = self._call_lance("its manifest is damaged", lambda: dict(_column_types(data.schema)))
        return types if self._columns is None else {name: types.get(name, "") for name in self._columns}


def _column_types(fields: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and types of columns. A column inside another one is named "outer.inner"."""
    for field in fields:
        yield f"{before}{field.name}", str(field.type)
        if hasattr(field.type, "fields"):
            yield from _column_types(field.type.fields, f"{before}{field.name}.")
