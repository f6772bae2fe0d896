"""HDF5 files, Zarr stores and Lance data sets, many of which are read as one source.

Here a store is one such file or folder, which holds many records.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, redact
from bushel._src.base.blocks import Block
from bushel._src.sources import file_access
from bushel._src.sources.joined_files import JoinedFiles, Reopened, find_part, gather_from_parts
from bushel._src.sources.paths import Options, expand_path, is_url, paths_type_error

_OPENED_TOGETHER = 16
_OPEN_AT_ONCE = 128  # each open HDF5 file takes a file descriptor
_WILD = re.compile(r"[*?\[]")


class Store(Reopened):
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
        """Opens the store and returns its content, in whatever form the subclass reads it."""

    @abc.abstractmethod
    def _count(self) -> int:
        """The number of records. Raises an error if the store cannot be read as the user has asked."""

    def _get_open(self) -> Any:
        """The content of the store, which is opened unless it is open already."""
        with self._lock:
            if self._content is None:
                self._content = self._open()
            return self._content

    def close(self) -> None:
        """Closes the store. Reads that have begun hold the content until they end; the next read opens it again."""
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
        """The type of each entry of a record, as text. Entries whose type differs between records are left out."""


class JoinedStores(JoinedFiles):
    """The records of one or many stores, one store after the other. Base of the sources for each format.

    Args:
      paths: of the stores.
      build: makes the store of a path.
    """

    _not_pickled = ("_lock", "_recent")

    def __init__(self, paths: Sequence[str], build: Callable[[str], Store]):
        self._paths = list(paths)

        def build_and_close(path: str) -> tuple[Store, dict[str, str]]:
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

    def _get_store(self, number: int) -> Store:
        """A store that is about to be read. If too many stores are open, the one read longest ago is closed."""
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
        """The records at `indices`. Each store that holds some of them is read once."""
        if len(self._stores) == 1:
            return self._stores[0].__getitems__(indices)
        places = checks.positions(indices, self._length)
        if not len(places):
            return self._stores[0].__getitems__(places)
        return gather_from_parts(
            places, self._ends, lambda number, within: self._get_store(number).__getitems__(within)
        )

    def fingerprint(self) -> Any:
        """What distinguishes these stores from others, without reading their records."""
        prints = [self._get_store(number).fingerprint() for number in range(len(self._stores))]
        return prints[0] if len(prints) == 1 else prints


def _check_layout(first: str, expected: dict[str, str], path: str, found: dict[str, str]) -> None:
    """Raises an error if the records of two stores have different entries: they could not be put into one batch."""
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
    """The folders that paths and patterns name; those of one pattern are sorted. A pattern without a match is an error.

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
    """The folders that match a pattern and contain a file that matches `marker`."""
    try:
        files = file_access.find_files(f"{pattern}/{marker}", options)
    except FileNotFoundError:
        return []
    return [file.rsplit("/", marker.count("/") + 1)[0] for file in files]
