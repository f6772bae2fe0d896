"""Arrays in HDF5 files and Zarr stores: one record per position of their first axis, read in columns."""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import checks, trees
from bushel.base.blocks import Columns
from bushel.base.errors import DamagedFile
from bushel.base.specs import ShapeDtypeStruct
from bushel.sources import stores
from bushel.sources.needs import package
from bushel.sources.stores import Options, Path


class _ArrayStore(abc.ABC):
    """Named arrays of one length in a store. Opened where it is used: a pickle holds the path."""

    def __init__(self, path: Path, names: Sequence[str] | None, storage_options: Options | None):
        self._path = stores.local(path)
        self._options = dict(storage_options or {})
        self._names = None if names is None else list(names)
        self._forget()
        arrays = self._opened()
        lengths = {name: array.shape[0] if array.shape else None for name, array in arrays.items()}
        if not arrays or None in lengths.values() or len(set(lengths.values())) != 1:
            raise ValueError(
                f"{self._path}: all arrays need the same first axis, one entry per record; their lengths are "
                f"{lengths}. Choose some by their names."
            )
        self._length = int(next(iter(arrays.values())).shape[0])

    @abc.abstractmethod
    def _open(self, names: list[str] | None) -> dict[str, Any]:
        """Arrays by name: all of them, or those of `names` that there are."""

    @abc.abstractmethod
    def _read(self, array: Any, positions: np.ndarray) -> np.ndarray:
        """Entries of an array; positions may repeat and be in any order."""

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[str, Any] | None = None

    def _opened(self) -> dict[str, Any]:
        with self._lock:
            if self._arrays is None:
                found = self._open(self._names)
                for name in self._names or ():
                    if name not in found:
                        known = ", ".join(map(repr, self._open(None)))
                        raise ValueError(f"{self._path} has no array {name!r}; it has {known}.")
                self._arrays = found
            return self._arrays

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        place = checks.integer(index, "index")
        if not -self._length <= place < self._length:
            raise IndexError(f"index {place} is out of range for {self._length} records")
        return self.__getitems__([place % self._length]).rows()[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """The records at `indices` as columns."""
        positions = checks.positions(indices, self._length)
        found: dict[str, np.ndarray] = {}
        for name, array in self._opened().items():
            try:
                found[name] = self._read(array, positions)
            except ImportError:
                raise
            except Exception as error:  # the libraries raise whatever their decoders do
                raise DamagedFile(f"{self._path}: the array {name!r} cannot be read: {error}") from error
        return Columns(found, len(positions))

    def element_spec(self) -> Any:
        """Shape and dtype of each array of a record."""
        return trees.map_leaves(lambda array: ShapeDtypeStruct(tuple(array.shape[1:]), array.dtype), self._opened())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_arrays")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({os.path.basename(self._path)}: {self._length} records)"


class HDF5DataSource(_ArrayStore):
    """Datasets of an HDF5 file: a record is a dict with one entry of each, by its path inside the file.

    Args:
      path: a file or URL.
      names: only these datasets, such as "train/images", by any name that leads to them; all by default, each once.
      storage_options: of the store where the file lies.
    """

    _version: list[Any] | None = None  # of the file when the source was made

    def __init__(self, path: Path, names: Sequence[str] | None = None, *, storage_options: Options | None = None):
        super().__init__(path, names, storage_options)

    def _open(self, names: list[str] | None) -> dict[str, Any]:
        h5py = package("h5py", "hdf5", "HDF5 files")
        content = stores.open_file(self._path, self._options)
        self._version = self._version or content.version()
        if content.version() != self._version:
            raise stores.changed(self._path, self._version, content.version())
        place = stores.stream(content) if stores.is_url(self._path) else self._path
        found: dict[str, Any] = {}
        try:
            file = h5py.File(place, "r")
            if names is None:
                file.visititems(found.__setitem__)
            else:
                found = {name: file.get(name) for name in names}  # links too, which a visit leaves out
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise DamagedFile(f"{self._path} is no complete HDF5 file: {error}") from error
        return {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}

    def _read(self, array: Any, positions: np.ndarray) -> np.ndarray:
        if not len(positions):
            return array[:0]
        wanted, back = np.unique(positions, return_inverse=True)  # h5py takes positions that grow, each once
        low, high = int(wanted[0]), int(wanted[-1]) + 1
        # A read of a stretch is far cheaper than one of single rows.
        part = array[low:high][wanted - low] if high - low <= 2 * len(wanted) else array[wanted]
        return part[back]

    def fingerprint(self) -> Any:
        return [stores.fingerprint([self._path], self._options), self._names]


class ZarrDataSource(_ArrayStore):
    """Arrays of a Zarr group, or one array under the name "array": a record is a dict with one entry of each.

    Args:
      path: a folder or URL.
      names: only these arrays; all by default.
      storage_options: of the store where it lies.
    """

    def __init__(self, path: Path, names: Sequence[str] | None = None, *, storage_options: Options | None = None):
        super().__init__(path, names, storage_options)

    def _open(self, names: list[str] | None) -> dict[str, Any]:
        zarr = package("zarr", "zarr", "Zarr stores")
        place: Any = self._path
        if stores.is_url(self._path):
            from bushel.sources import remote

            place = remote.zarr_store(self._path, self._options)
        try:
            store = zarr.open(place, mode="r")
            found = _members(store) if isinstance(store, zarr.Group) else {"array": store}
        except FileNotFoundError:
            how = " A zipped store is not read: unzip it." if self._path.endswith(".zip") else ""
            raise FileNotFoundError(f"{self._path} is no Zarr store: there is no metadata of one.{how}") from None
        except (ImportError, PermissionError):
            raise
        except Exception as error:  # whatever damaged metadata lead to
            raise DamagedFile(f"{self._path} is no complete Zarr store: {error}") from error
        return found if names is None else {name: found[name] for name in names if name in found}

    def _read(self, array: Any, positions: np.ndarray) -> np.ndarray:
        return array.oindex[positions] if len(positions) else array[:0]

    def fingerprint(self) -> Any:
        arrays = self._opened()
        metadata = [
            "/".join(
                filter(None, (self._path, array.path, "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"))
            )
            for array in arrays.values()
        ]
        return [os.path.basename(self._path), list(arrays), stores.fingerprint(metadata, self._options)]


def _members(group: Any, prefix: str = "") -> dict[str, Any]:
    found = {f"{prefix}{name}": array for name, array in group.arrays()}
    for name, inner in group.groups():
        found |= _members(inner, f"{prefix}{name}/")
    return dict(sorted(found.items()))
