"""HDF5 files, Zarr stores and Lance data sets: many of them as one source, with rows or groups as records.

Here a store is one such file or folder, which holds many records. How each format is opened and read is in `hdf5.py`,
`zarr.py` and `lance.py`.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import checks, redact, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import DamagedFile, OtherFile
from bushel._src.base.state_names import overridable
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.sources import file_access
from bushel._src.sources.paths import Options, expand_path, is_url, paths_type_error
from bushel._src.sources.record_files import JoinedFiles, Reopened, find_part, gather_from_parts

_OPENED_TOGETHER = 16
_OPEN_AT_ONCE = 128  # each open HDF5 file takes a file descriptor
_WILD = re.compile(r"[*?\[]")


class RecordStore(Reopened):
    """One store: records at any position, read from any thread. It is opened when it is first used.

    A subclass sets what it needs and then calls `__init__`, which opens the store and counts its records.
    """

    _not_pickled = ("_lock", "_content")

    def __init__(self, path: str):
        self._path = path
        self._forget_open()
        self._length = self._count()

    def _forget_open(self) -> None:
        self._lock = threading.Lock()
        self._content: Any = None

    @abc.abstractmethod
    def _open(self) -> Any:
        """Open the store and return its content, in whatever form the subclass reads it."""

    @abc.abstractmethod
    def _count(self) -> int:
        """Return the number of records. Raise an error if the store cannot be read as the user has asked."""

    def _get_open(self) -> Any:
        """Return the content of the store, which is opened unless it is open already."""
        with self._lock:
            if self._content is None:
                self._content = self._open()
            return self._content

    def close(self) -> None:
        """Close the store. Read that have begun hold the content until they end; the next read opens it again."""
        with self._lock:
            self._content = None

    def __len__(self) -> int:
        return self._length

    @abc.abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @abc.abstractmethod
    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block: ...

    @abc.abstractmethod
    def fingerprint(self) -> Any: ...

    @abc.abstractmethod
    def layout(self) -> dict[str, str]:
        """Return the type of each entry of a record, as text.

        Entries whose type differs between records are left out.
        """


class JoinedStores(JoinedFiles):
    """The records of one or many stores, one store after the other. Base of the sources for each format.

    Args:
      paths: of the stores.
      build: makes the store of a path.
    """

    _not_pickled = ("_lock", "_recent")

    def __init__(self, paths: Sequence[str], build: Callable[[str], RecordStore]):
        self._paths = list(paths)

        def build_and_close(path: str) -> tuple[RecordStore, dict[str, str]]:
            store = build(path)
            layout = store.layout()
            if len(paths) > _OPEN_AT_ONCE:
                store.close()
            return store, layout

        if len(paths) == 1:
            built = [build_and_close(paths[0])]
        else:
            with concurrent.futures.ThreadPoolExecutor(min(_OPENED_TOGETHER, len(paths))) as pool:
                built = list(pool.map(build_and_close, paths))
        self._stores = [store for store, _ in built]
        for path, (_, layout) in zip(paths, built):
            _check_layout(paths[0], built[0][1], path, layout)
        self._ends = np.cumsum([len(store) for store in self._stores])
        self._length = int(self._ends[-1])
        self._forget_open()

    def _forget_open(self) -> None:
        self._lock = threading.Lock()
        self._recent: collections.OrderedDict[int, None] = collections.OrderedDict()

    def _get_store(self, number: int) -> RecordStore:
        """Return a store that is about to be read. If too many stores are open, the one read longest ago is closed."""
        if len(self._stores) > _OPEN_AT_ONCE:
            with self._lock:
                self._recent[number] = None
                self._recent.move_to_end(number)
                oldest = self._recent.popitem(last=False)[0] if len(self._recent) > _OPEN_AT_ONCE else None
            if oldest is not None:
                self._stores[oldest].close()
        return self._stores[number]

    def locate(self, index: int) -> tuple[int, int]:
        return find_part(index, self._ends)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, within = find_part(checks.position(index, self._length), self._ends)
        return self._get_store(number)[within]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Block:
        """Return the records at `indices`. Each store that holds some of them is read once."""
        if len(self._stores) == 1:
            return self._stores[0].__getitems__(indices)
        places = checks.positions(indices, self._length)
        if not len(places):
            return self._stores[0].__getitems__(places)
        return gather_from_parts(
            places, self._ends, lambda number, within: self._get_store(number).__getitems__(within)
        )

    def fingerprint(self) -> Any:
        """Return what distinguishes these stores from others, without reading their records."""
        prints = [self._get_store(number).fingerprint() for number in range(len(self._stores))]
        return prints[0] if len(prints) == 1 else prints


def _check_layout(first: str, expected: dict[str, str], path: str, found: dict[str, str]) -> None:
    """Raise an error if the records of two stores have different entries: they could not be put into one batch."""
    for name in sorted({*expected, *found}):
        here, there = found.get(name), expected.get(name)
        if here != there:
            raise ValueError(
                f"{redact.show(path)} and {redact.show(first)} cannot be read as one source: {name!r} is "
                f"{here or 'missing'} in the former and {there or 'missing'} in the latter. Name the entries that both "
                "have, or make two sources."
            )


def find_stores(
    paths: Any, options: Options | None, markers: Sequence[str], what: str, *, local_patterns: bool = False
) -> list[str]:
    """Return the folders that paths and patterns name; those of one pattern are sorted.

    A pattern without a match is an error.

    Args:
      paths: one or many paths, patterns or URLs.
      options: options of the object store that holds them.
      markers: a folder must contain a file of one of these names; they may be patterns too.
      what: the word for such a folder in messages.
      local_patterns: only local paths may be patterns; URLs are returned unchanged.
    """
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]
    elif not isinstance(paths, Iterable):
        raise paths_type_error(paths)
    found: list[str] = []
    for path in paths:
        text = expand_path(path).rstrip("/") or "/"
        if is_url(text):
            plain = local_patterns or text.startswith(("http://", "https://"))  # a web server cannot list files
        else:
            plain = os.path.exists(text)
        if plain or not _WILD.search(text):
            found.append(text)
            continue
        matches = {folder for marker in markers for folder in _find_folders_with(text, marker, options)}
        if not matches:
            raise FileNotFoundError(f"No {what} matches {redact.show(text)!r}.")
        found += sorted(matches)
    if not found:
        raise ValueError("No paths were given: a source needs at least one.")
    return found


def _find_folders_with(pattern: str, marker: str, options: Options | None) -> list[str]:
    """Return the folders that match a pattern and contain a file that matches `marker`."""
    try:
        files = file_access.find_files(f"{pattern}/{marker}", options)
    except FileNotFoundError:
        return []
    return [file.rsplit("/", marker.count("/") + 1)[0] for file in files]


T = TypeVar("T")


class ArrayFormat(abc.ABC):
    """How arrays and groups of one store are opened and read. Holds no open file, so that it can be pickled."""

    def __init__(self, path: str, options: Options | None):
        self.path = path
        self.name = redact.show(path)
        """What messages call the store."""
        self.options = redact.Options(options or {})

    @abc.abstractmethod
    def open_arrays(self, names: list[str] | None) -> dict[str, Any]:
        """Return arrays by name: all of them, or those of `names` that exist."""

    @abc.abstractmethod
    def open_groups(self, pattern: list[str]) -> dict[str, Any]:
        """Return the groups whose paths match `pattern`, by their paths."""

    @abc.abstractmethod
    def list_arrays(self, group: Any, names: list[str] | None) -> dict[str, Any]:
        """Return the arrays of a group by their paths in the group: all of them, or those of `names` that exist."""

    @abc.abstractmethod
    def read_rows(self, array: Any, positions: np.ndarray) -> np.ndarray:
        """Return entries of an array. Positions may repeat and may be in any order."""

    @abc.abstractmethod
    def fingerprint_arrays(self, names: list[str] | None, arrays: dict[str, Any]) -> Any:
        """Return what distinguishes these arrays from others, without reading their values."""

    @abc.abstractmethod
    def fingerprint_groups(self, names: list[str] | None, pattern: str, groups: list[tuple[str, Any]]) -> Any:
        """Return what distinguishes these groups from others, without reading their values."""

    @overridable
    def take_store_failure(self) -> BaseException | None:
        """Return how an object store has failed since the last call; None if it has not."""
        return None

    def read(self, call: Callable[[], T], what: str) -> T:
        """Return what `call` reads.

        Any error of the library becomes a `DamagedFile` that names `what`, without secrets.
        """
        try:
            return redact.call_guarded(call, self.path, self.options)
        except ImportError:
            raise
        except OtherFile as error:
            raise OtherFile(f"{self.name}: {error}") from None
        except Exception as error:  # h5py and zarr let through every error of their decoders
            if (failure := self.take_store_failure()) is not None:
                raise failure from None
            raise DamagedFile(f"{self.name}: {what} cannot be read: {error}") from error


class ArrayStore(RecordStore):
    """Named arrays of one length in a store: a record is one entry of each."""

    def __init__(self, layout: ArrayFormat, names: Sequence[str] | None):
        self._format = layout
        self._names = None if names is None else list(names)
        super().__init__(layout.path)

    def _count(self) -> int:
        arrays = self._get_open()
        lengths = {name: array.shape[0] if array.shape else None for name, array in arrays.items()}
        if not arrays or None in lengths.values() or len(set(lengths.values())) != 1:
            raise ValueError(
                f"{self._format.name}: all arrays need the same first axis, one entry per record; their lengths are "
                f"{lengths}. Choose some by their names, or pass group='data/*' to make each such group a record."
            )
        return int(next(iter(arrays.values())).shape[0])

    def _open(self) -> dict[str, Any]:
        arrays = self._format.open_arrays(self._names)
        for name in self._names or ():
            if name not in arrays:
                known = ", ".join(map(repr, self._format.open_arrays(None)))
                raise ValueError(f"{self._format.name} has no array {name!r}; it has {known}.")
        return arrays

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([checks.position(index, self._length)]).rows()[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """Return the records at `indices` as columns."""
        positions = checks.positions(indices, self._length)
        columns = {
            name: self._format.read(functools.partial(self._format.read_rows, array, positions), f"the array {name!r}")
            for name, array in self._get_open().items()
        }
        return Columns(columns, len(positions))

    def element_spec(self) -> Any:
        """Return shape and dtype of each array of a record."""
        return trees.map_leaves(lambda array: ShapeDtypeStruct(tuple(array.shape[1:]), array.dtype), self._get_open())

    def layout(self) -> dict[str, str]:
        return {name: f"{array.dtype}{list(array.shape[1:])}" for name, array in self._get_open().items()}

    def fingerprint(self) -> Any:
        return self._format.fingerprint_arrays(self._names, self._get_open())


class GroupStore(RecordStore):
    """Groups of one store as records: a record is a dict of all arrays of a group."""

    def __init__(self, layout: ArrayFormat, names: Sequence[str] | None, pattern: str):
        self._format = layout
        self._names = None if names is None else list(names)
        self._pattern = [part for part in pattern.split("/") if part]
        super().__init__(layout.path)

    def _count(self) -> int:
        groups = self._get_open()
        if not groups:
            raise ValueError(f"{self._format.name} has no group that matches {'/'.join(self._pattern)!r}.")
        return len(groups)

    def _open(self) -> list[tuple[str, Any]]:
        """Return the paths of the groups and the groups themselves, in the order of the records."""
        return sorted(self._format.open_groups(self._pattern).items(), key=lambda entry: _number_key(entry[0]))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._read(*self._get_open()[checks.position(index, self._length)])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the groups at `indices`."""
        groups = self._get_open()
        return [self._read(*groups[place]) for place in checks.positions(indices, self._length).tolist()]

    def _read(self, name: str, group: Any) -> dict[str, Any]:
        def read_arrays() -> dict[str, Any]:
            arrays = self._format.list_arrays(group, self._names)
            return {inner: array[()] for inner, array in arrays.items()}

        record = self._format.read(read_arrays, f"the group {name!r}")
        for wanted in self._names or ():
            if wanted not in record:
                raise ValueError(f"{self._format.name}: the group {name!r} has no array {wanted!r}.")
        return record

    def layout(self) -> dict[str, str]:
        return {}

    def fingerprint(self) -> Any:
        return self._format.fingerprint_groups(self._names, "/".join(self._pattern), self._get_open())


def _number_key(name: str) -> list[Any]:
    """Return a key that sorts names with numbers in them by the values of the numbers: "demo_2" before "demo_10"."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]


class ArrayStoreSource(JoinedStores):
    """Rows of arrays, or groups, of many stores of one format."""

    def __init__(
        self,
        paths: list[str],
        make_format: Callable[[str, Options | None], ArrayFormat],
        names: Sequence[str] | None,
        group: str | None,
        options: Options | None,
    ):
        if group is not None and not isinstance(group, str):
            raise TypeError(f"group is a path inside the file such as 'data/*', or None, got {group!r}.")
        self._group = group

        def open_store(path: str) -> ArrayStore | GroupStore:
            layout = make_format(path, options)
            return ArrayStore(layout, names) if group is None else GroupStore(layout, names, group)

        super().__init__(paths, open_store)

    def element_spec(self) -> Any:
        """Return shape and dtype of each array of a record."""
        if self._group is not None:
            raise NotImplementedError(f"The records of {self!r} are groups, whose arrays may have any length.")
        store = self._get_store(0)
        assert isinstance(store, ArrayStore)
        return store.element_spec()
