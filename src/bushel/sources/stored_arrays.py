"""HDF5 files and Zarr stores as sources: many of them as one index space, and groups as records."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bushel.base import checks
from bushel.base.errors import DamagedFile
from bushel.sources import stores
from bushel.sources.array_stores import ArrayStore, HDF5Store, ZarrStore
from bushel.sources.joined import JoinedStores, find_stores
from bushel.sources.stores import Options

_HDF5_ENDINGS = (".h5", ".hdf5")
_ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray")


class _ArraysSource(JoinedStores):
    """Arrays of many stores."""

    _group: str | None

    def element_spec(self) -> Any:
        """Shape and dtype of each array of a record."""
        if self._group is not None:
            raise NotImplementedError(f"The records of {self!r} are groups, whose arrays may have any length.")
        store = self._store(0)
        assert isinstance(store, ArrayStore)
        return store.element_spec()


class HDF5DataSource(_ArraysSource):
    """Datasets of HDF5 files: a record is a dict with one entry of each, by its path inside the file.

    With `group`, a record is a whole group, such as an episode of a robot: a dict of its datasets as arrays of any
    length, by their paths inside the group. Groups come in the order of their names, numbers in them by their value:
    "demo_2" before "demo_10".

    Args:
      paths: one or many files, patterns or URLs. A folder stands for its files that end in ".h5" or ".hdf5".
      names: only these datasets, such as "train/images", by any name that leads to them; all by default, each once.
      group: the groups that are records, such as "data/*"; "/" makes each whole file a record.
      storage_options: of the store where the files lie.

    >>> import os, tempfile, h5py
    >>> path = os.path.join(tempfile.mkdtemp(), "demos.h5")
    >>> with h5py.File(path, "w") as file:
    ...     file["data/demo_0/actions"], file["data/demo_1/actions"] = [1, 2], [3, 4, 5]
    >>> HDF5DataSource(path, group="data/*")[1]
    {'actions': array([3, 4, 5])}
    """

    def __init__(
        self,
        paths: Any,
        names: Sequence[str] | None = None,
        *,
        group: str | None = None,
        storage_options: Options | None = None,
    ):
        self._group = _checked_group(group)
        if group is None:
            build = functools.partial(HDF5Store, names=names, storage_options=storage_options)
        else:
            build = functools.partial(HDF5Groups, group=group, names=names, storage_options=storage_options)
        super().__init__(_hdf5_files(paths, storage_options), build)


class ZarrDataSource(_ArraysSource):
    """Arrays of Zarr groups, or one array under the name "array": a record is a dict with one entry of each.

    With `group`, a record is a whole group of a store: see `HDF5DataSource`.

    Args:
      paths: one or many folders, patterns or URLs, each of a Zarr store.
      names: only these arrays; all by default.
      group: the groups that are records, such as "data/*"; "/" makes each whole store a record.
      storage_options: of the store where they lie.
    """

    def __init__(
        self,
        paths: Any,
        names: Sequence[str] | None = None,
        *,
        group: str | None = None,
        storage_options: Options | None = None,
    ):
        self._group = _checked_group(group)
        if group is None:
            build = functools.partial(ZarrStore, names=names, storage_options=storage_options)
        else:
            build = functools.partial(ZarrGroups, group=group, names=names, storage_options=storage_options)
        super().__init__(find_stores(paths, storage_options, _ZARR_METADATA, "Zarr store"), build)


def _checked_group(group: Any) -> str | None:
    if group is not None and not isinstance(group, str):
        raise TypeError(f"group is a path inside the file such as 'data/*', or None, got {group!r}.")
    return group


def _hdf5_files(paths: Any, options: Options | None) -> list[str]:
    found: list[str] = []
    for path in stores.find(paths, options):
        if stores.is_url(path) or not os.path.isdir(path):
            found.append(path)
            continue
        inside = sorted(entry.path for entry in os.scandir(path) if entry.name.endswith(_HDF5_ENDINGS))
        if not inside:
            raise FileNotFoundError(f"The folder {path} has no file that ends in {' or '.join(_HDF5_ENDINGS)}.")
        found += inside
    return found


class _Groups(ArrayStore):
    """Groups of one store as records."""

    def __init__(self, path: str, group: str, names: Sequence[str] | None, storage_options: Options | None):
        self._pattern = [part for part in group.split("/") if part]
        super().__init__(path, names, storage_options)

    def _count(self) -> int:
        groups = self._opened()
        if not groups:
            raise ValueError(f"{self._name} has no group that matches {'/'.join(self._pattern)!r}.")
        return len(groups)

    def _open_checked(self) -> dict[Any, Any]:
        """The paths of groups and the groups themselves, by their positions."""
        groups = self._open_groups()
        return dict(enumerate((name, groups[name]) for name in sorted(groups, key=_by_numbers)))

    def _open_groups(self) -> dict[str, Any]:
        """The groups that match, by their paths."""
        raise NotImplementedError

    def _arrays_of(self, group: Any) -> dict[str, Any]:
        """The arrays of a group by their paths inside of it: all, or those of `names` that there are."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups at `indices`."""
        groups = self._opened()
        return [self._record(*groups[place]) for place in checks.positions(indices, len(self)).tolist()]

    def _record(self, name: str, group: Any) -> dict[str, Any]:
        try:
            arrays = self._arrays_of(group)
            record = self._guarded(lambda: {inner: array[()] for inner, array in arrays.items()})
        except ImportError:
            raise
        except Exception as error:  # the libraries raise whatever their decoders do
            raise DamagedFile(f"{self._name}: the group {name!r} cannot be read: {error}") from error
        for wanted in self._names or ():
            if wanted not in record:
                raise ValueError(f"{self._name}: the group {name!r} has no array {wanted!r}.")
        return record

    def layout(self) -> dict[str, str]:
        return {}


class HDF5Groups(_Groups, HDF5Store):
    """Groups of an HDF5 file as records."""

    def _open_groups(self) -> dict[str, Any]:
        file = self._open_file()
        with self._describing_damage():
            return dict(_matching_groups(file, self._pattern, ""))

    def _arrays_of(self, group: Any) -> dict[str, Any]:
        return self._datasets(group, self._names)

    def fingerprint(self) -> Any:
        return [HDF5Store.fingerprint(self), "/".join(self._pattern)]


def _matching_groups(group: Any, pattern: list[str], path: str) -> Iterator[tuple[str, Any]]:
    if not pattern:
        yield path, group
        return
    for name in group:
        if fnmatch.fnmatchcase(name, pattern[0]):
            inner = group.get(name)  # None for a link that leads nowhere
            if hasattr(inner, "keys"):
                yield from _matching_groups(inner, pattern[1:], f"{path}/{name}" if path else name)


class ZarrGroups(_Groups, ZarrStore):
    """Groups of a Zarr store as records."""

    def _open_groups(self) -> dict[str, Any]:
        depth = len(self._pattern)
        groups: dict[str, dict[str, Any]] = {}
        for name, array in self._open(None).items():
            parts = name.split("/")
            if len(parts) > depth and all(map(fnmatch.fnmatchcase, parts, self._pattern)):
                groups.setdefault("/".join(parts[:depth]), {})["/".join(parts[depth:])] = array
        return groups

    def _arrays_of(self, group: Any) -> dict[str, Any]:
        return group if self._names is None else {name: group[name] for name in self._names if name in group}

    def fingerprint(self) -> Any:
        arrays = {f"{name}/{inner}": array for name, group in self._opened().values() for inner, array in group.items()}
        return [self._describe(arrays), self._names, "/".join(self._pattern)]


def _by_numbers(name: str) -> list[Any]:
    """A key that sorts names with numbers in them by the values of the numbers."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]
