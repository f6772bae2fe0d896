"""Arrays in one HDF5 file or Zarr store: one record per position of their first axis, read in columns."""

from __future__ import annotations

import abc
import contextlib
import functools
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel.base import checks, redact, trees
from bushel.base.blocks import Columns
from bushel.base.errors import DamagedFile
from bushel.base.specs import ShapeDtypeStruct
from bushel.sources import stores
from bushel.sources.joined import Store
from bushel.sources.needs import package
from bushel.sources.stores import Options, Path

T = TypeVar("T")


class ArrayStore(Store):
    """Named arrays of one length in a store. Opened where it is used: a pickle holds the path."""

    def __init__(self, path: Path, names: Sequence[str] | None, storage_options: Options | None):
        self._path = stores.local(path)
        self._name = redact.show(self._path)
        self._options = redact.Options(storage_options or {})
        self._names = None if names is None else list(names)
        self._forget()
        self._length = self._count()

    def _count(self) -> int:
        """How many records there are."""
        arrays = self._opened()
        lengths = {name: array.shape[0] if array.shape else None for name, array in arrays.items()}
        if not arrays or None in lengths.values() or len(set(lengths.values())) != 1:
            raise ValueError(
                f"{self._name}: all arrays need the same first axis, one entry per record; their lengths are "
                f"{lengths}. Choose some by their names, or pass group='data/*' to make each such group a record."
            )
        return int(next(iter(arrays.values())).shape[0])

    @abc.abstractmethod
    def _open(self, names: list[str] | None) -> dict[str, Any]:
        """Arrays by name: all of them, or those of `names` that there are."""

    @abc.abstractmethod
    def _read(self, array: Any, positions: np.ndarray) -> np.ndarray:
        """Entries of an array; positions may repeat and be in any order."""

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._arrays: dict[Any, Any] | None = None

    def _opened(self) -> dict[Any, Any]:
        with self._lock:
            if self._arrays is None:
                self._arrays = self._open_checked()
            return self._arrays

    def _open_checked(self) -> dict[Any, Any]:
        found = self._open(self._names)
        for name in self._names or ():
            if name not in found:
                known = ", ".join(map(repr, self._open(None)))
                raise ValueError(f"{self._name} has no array {name!r}; it has {known}.")
        return found

    def close(self) -> None:
        with self._lock:
            self._arrays = None  # who reads them now holds them

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
                found[name] = self._guarded(functools.partial(self._read, array, positions))
            except ImportError:
                raise
            except Exception as error:  # the libraries raise whatever their decoders do
                raise DamagedFile(f"{self._name}: the array {name!r} cannot be read: {error}") from error
        return Columns(found, len(positions))

    def _guarded(self, call: Callable[[], T]) -> T:
        return redact.call_guarded(call, self._path, self._options)

    def element_spec(self) -> Any:
        """Shape and dtype of each array of a record."""
        return trees.map_leaves(lambda array: ShapeDtypeStruct(tuple(array.shape[1:]), array.dtype), self._opened())

    def layout(self) -> dict[str, str]:
        return {name: f"{array.dtype}{list(array.shape[1:])}" for name, array in self._opened().items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_arrays")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redact.base_name(self._path)}: {self._length} records)"


class HDF5Store(ArrayStore):
    """Datasets of an HDF5 file."""

    _version: list[Any] | None = None  # of the file when the source was made

    def _open_file(self) -> Any:
        """The file, which must be the one that the source was made of. It stays open as long as something of it is."""
        h5py = package("h5py", "hdf5", "HDF5 files")
        content = stores.open_file(self._path, self._options)
        self._version = self._version or content.version()
        if content.version() != self._version:
            raise stores.changed(self._path, self._version, content.version())
        place = stores.stream(content) if stores.is_url(self._path) else self._path
        with self._describing_damage():
            return h5py.File(place, "r")

    @contextlib.contextmanager
    def _describing_damage(self) -> Iterator[None]:
        """Turns whatever damaged metadata lead to into a `DamagedFile`."""
        try:
            yield
        except Exception as error:
            raise DamagedFile(f"{self._name} is no complete HDF5 file: {error}") from error

    def _open(self, names: list[str] | None) -> dict[str, Any]:
        file = self._open_file()
        with self._describing_damage():
            return self._datasets(file, names)

    def _datasets(self, group: Any, names: list[str] | None) -> dict[str, Any]:
        """Datasets of a group or file: all of them, or those of `names` that there are."""
        h5py = package("h5py", "hdf5", "HDF5 files")
        found: dict[str, Any] = {}
        if names is None:
            group.visititems(found.__setitem__)
        else:
            found = {name: group.get(name) for name in names}  # links too, which a visit leaves out
        found = {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}
        if not stores.is_url(self._path):  # where to walk through the index would take many requests
            for name, array in found.items():
                check_chunks(array, name)
        return found

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


_CHECKSUM_BYTES = 4


def check_chunks(array: Any, name: str) -> None:
    """Refuses a data set with checksums if the index of its chunks, which has none, says what cannot be.

    The library does not look: it skips the checksum of a chunk whose entry says so, and ends the process over a chunk
    that is too short for its checksum.
    """
    if not array.fletcher32 or not hasattr(array.id, "chunk_iter"):
        return
    properties = array.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    unchecked = 1 << filters.index(package("h5py.h5z", "hdf5", "HDF5 files").FILTER_FLETCHER32)

    size = array.file.id.get_filesize()  # a link may lead into another file
    entries: list[Any] = []
    array.id.chunk_iter(entries.append)
    if not entries:
        return
    offsets, masks, addresses, sizes = (np.array(column) for column in zip(*entries))
    again = [len(np.unique(column, axis=0)) < len(entries) for column in (offsets, addresses)]
    bad = (masks & unchecked != 0) | (sizes <= _CHECKSUM_BYTES) | (addresses > size) | (sizes > size - addresses)
    bad |= (offsets >= array.shape).any(axis=1) | (offsets % array.chunks != 0).any(axis=1)
    if any(again) or bad.any():
        where = f"the chunk at {entries[int(bad.argmax())][0]}" if bad.any() else "two chunks"
        raise ValueError(f"the entry of {where} of {name!r} is damaged")


class ZarrStore(ArrayStore):
    """Arrays of a Zarr group, or one array under the name "array"."""

    def _open(self, names: list[str] | None) -> dict[str, Any]:
        zarr = package("zarr", "zarr", "Zarr stores")
        watched = _watched_store(self._stored(), _Watch(self._name))
        try:
            store = self._guarded(lambda: zarr.open(watched, mode="r"))
            found = self._guarded(lambda: _members(store)) if isinstance(store, zarr.Group) else {"array": store}
            watched.watch.check(list(found.values()))
        except FileNotFoundError:
            how = " A zipped store is not read: unzip it." if self._path.endswith(".zip") else ""
            raise FileNotFoundError(f"{self._name} is no Zarr store: there is no metadata of one.{how}") from None
        except (ImportError, PermissionError, DamagedFile):
            raise
        except Exception as error:  # whatever damaged metadata lead to
            raise DamagedFile(f"{self._name} is no complete Zarr store: {error}") from error
        return found if names is None else {name: found[name] for name in names if name in found}

    def _stored(self) -> Any:
        """The store as Zarr has it."""
        if not stores.is_url(self._path):
            return package("zarr.storage", "zarr", "Zarr stores").LocalStore(self._path, read_only=True)
        from bushel.sources import remote

        return remote.zarr_store(self._path, self._options)

    def _read(self, array: Any, positions: np.ndarray) -> np.ndarray:
        return array.oindex[positions] if len(positions) else array[:0]

    def fingerprint(self) -> Any:
        return self._describe(self._opened())

    def _describe(self, arrays: dict[str, Any]) -> list[Any]:
        """What tells these arrays from others: their names, and the files that hold their metadata."""
        metadata = [
            "/".join(
                filter(None, (self._path, array.path, "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"))
            )
            for array in arrays.values()
        ]
        return [redact.object_name(self._path), list(arrays), stores.fingerprint(metadata, self._options)]


def _members(group: Any, prefix: str = "") -> dict[str, Any]:
    found = {f"{prefix}{name}": array for name, array in group.arrays()}
    for name, inner in group.groups():
        found |= _members(inner, f"{prefix}{name}/")
    return dict(sorted(found.items()))


_IS_ARRAY = re.compile(rb'"node_type"\s*:\s*"array"')
_BLOSC = struct.Struct("<12xI")  # the header of a chunk that Blosc has compressed: its size, with the header


class _Watch:
    """Looks at what a Zarr store gives: at metadata that do not lead to an array, and at chunks that were cut short."""

    def __init__(self, name: str):
        self._name = name
        self._arrays: set[str] = set()
        self._blosc: tuple[str, ...] = ()

    def check(self, found: list[Any]) -> None:
        """Refuses metadata of an array that is not among those found: Zarr leaves out what it cannot read."""
        lost = self._arrays - {array.path for array in found}
        if lost:
            raise DamagedFile(f"{self._name}: the metadata of the array {min(lost)!r} are damaged.")
        packed = [array.path for array in found if array.shards is None and _is_packed_by_blosc(array)]
        self._blosc = tuple(f"{path}/" if path else "" for path in packed)

    def see(self, key: str, data: Any, whole: bool) -> None:
        """Looks at what was read under a key: all of it, or a part."""
        folder, _, name = key.rpartition("/")
        if name in (".zarray", "zarr.json"):
            if name == ".zarray" or _IS_ARRAY.search(data.to_bytes()):
                self._arrays.add(folder)
        elif whole and not name.startswith(".z") and self._blosc and key.startswith(self._blosc):
            size = _BLOSC.unpack(data[:16].to_bytes())[0] if len(data) >= 16 else 16
            if len(data) != size:  # Blosc does not look, and would give what lies in memory behind the chunk
                raise DamagedFile(f"{self._name}: the chunk {key} has {len(data)} bytes, and {size} by its header.")


def _is_packed_by_blosc(array: Any) -> bool:
    """Whether a stored chunk is what Blosc gave: no other codec came after it."""
    return bool(array.compressors) and "Blosc" in type(array.compressors[-1]).__name__


def _watched_store(store: Any, watch: _Watch) -> Any:
    storage = package("zarr.storage", "zarr", "Zarr stores")

    class Watched(storage.WrapperStore):
        def __init__(self, store: Any):
            super().__init__(store)
            self.watch = watch

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            data = await self._store.get(key, prototype, byte_range)
            if data is not None:
                watch.see(key, data, byte_range is None)
            return data

    return Watched(store)
