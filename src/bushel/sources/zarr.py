"""Zarr stores as sources, through the `zarr` package: rows of arrays, or groups as records."""

from __future__ import annotations

import fnmatch
import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import redact
from bushel.base.errors import DamagedFile
from bushel.base.hints import explains_arguments
from bushel.base.state_names import in_states
from bushel.sources import file_access
from bushel.sources.array_stores import ArrayFormat, ArraySource
from bushel.sources.joined_stores import find_stores
from bushel.sources.optional_packages import import_package
from bushel.sources.paths import Options, Paths, is_url

_METADATA = ("zarr.json", ".zgroup", ".zarray")
_IS_ARRAY = re.compile(rb'"node_type"\s*:\s*"array"')
_BLOSC = struct.Struct("<12xI")  # the header of a chunk that Blosc has compressed: its size, header included


@in_states("ZarrDataSource")
class ZarrDataSource(ArraySource):
    """Arrays of Zarr groups, or a single array under the name "array": a record is a dict with one entry of each.

    With `group`, a record is a whole group of a store: see `HDF5DataSource`.

    Args:
      paths: one or many folders, patterns or URLs, each of a Zarr store.
      columns: read only these arrays; all by default.
      group: which groups are records, such as `data/*`. `/` makes each whole store a record.
      storage_options: options of the object store that holds the Zarr stores.

    >>> import os, tempfile, numpy as np, zarr
    >>> path = os.path.join(tempfile.mkdtemp(), "train.zarr")
    >>> group = zarr.open_group(path, mode="w")
    >>> group["x"] = np.arange(6).reshape(3, 2)
    >>> ZarrDataSource(path)[1]
    {'x': array([2, 3])}
    """

    @explains_arguments('Write `ZarrDataSource(paths, columns=["x"])`.')
    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        group: str | None = None,
        storage_options: Options | None = None,
    ):
        found = find_stores(paths, storage_options, _METADATA, "Zarr store")
        super().__init__(found, ZarrFormat, columns, group, storage_options)


class ZarrFormat(ArrayFormat):
    """How one Zarr store is opened and read."""

    def open_arrays(self, names: list[str] | None) -> dict[str, Any]:
        zarr = import_package("zarr", "zarr", "Zarr stores")
        watch = _Watch(self.name)
        watched = _watch_store(self._open_store(), watch)
        try:
            store = self._call_guarded(lambda: zarr.open(watched, mode="r"))
            arrays = (
                self._call_guarded(lambda: _list_arrays(store)) if isinstance(store, zarr.Group) else {"array": store}
            )
            watch.check(list(arrays.values()))
        except FileNotFoundError:
            how = " Zipped stores are not supported: unzip it." if self.path.endswith(".zip") else ""
            raise FileNotFoundError(f"{self.name} is not a Zarr store: it has no metadata of one.{how}") from None
        except (ImportError, PermissionError, DamagedFile):
            raise
        except Exception as error:  # damaged metadata can cause any error
            raise DamagedFile(f"{self.name} is not a complete Zarr store: {error}") from error
        return arrays if names is None else {name: arrays[name] for name in names if name in arrays}

    def _call_guarded(self, call: Any) -> Any:
        return redact.call_guarded(call, self.path, self.options)

    def _open_store(self) -> Any:
        """The store as an object of the `zarr` package."""
        if not is_url(self.path):
            return import_package("zarr.storage", "zarr", "Zarr stores").LocalStore(self.path, read_only=True)
        from bushel.sources import object_stores  # loaded when it is needed: most programs read local files

        return object_stores.open_zarr_store(self.path, self.options)

    def open_groups(self, pattern: list[str]) -> dict[str, Any]:
        depth = len(pattern)
        groups: dict[str, dict[str, Any]] = {}
        for name, array in self.open_arrays(None).items():
            parts = name.split("/")
            if len(parts) > depth and all(map(fnmatch.fnmatchcase, parts, pattern)):
                groups.setdefault("/".join(parts[:depth]), {})["/".join(parts[depth:])] = array
        return groups

    def list_arrays(self, group: Any, names: list[str] | None) -> dict[str, Any]:
        return group if names is None else {name: group[name] for name in names if name in group}

    def read_rows(self, array: Any, positions: np.ndarray) -> np.ndarray:
        return array.oindex[positions] if len(positions) else array[:0]

    def fingerprint_arrays(self, names: list[str] | None, arrays: dict[str, Any]) -> Any:
        metadata = [
            "/".join(
                filter(None, (self.path, array.path, "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"))
            )
            for array in arrays.values()
        ]
        return [redact.object_name(self.path), list(arrays), file_access.fingerprint_files(metadata, self.options)]

    def fingerprint_groups(self, names: list[str] | None, pattern: str, groups: list[tuple[str, Any]]) -> Any:
        arrays = {f"{name}/{inner}": array for name, group in groups for inner, array in group.items()}
        return [self.fingerprint_arrays(names, arrays), names, pattern]


def _list_arrays(group: Any, prefix: str = "") -> dict[str, Any]:
    """All arrays of a Zarr group and of the groups inside it, by their paths."""
    arrays = {f"{prefix}{name}": array for name, array in group.arrays()}
    for name, inner in group.groups():
        arrays |= _list_arrays(inner, f"{prefix}{name}/")
    return dict(sorted(arrays.items()))


class _Watch:
    """Checks what a Zarr store returns: that no array's metadata is ignored, and that no chunk was cut short."""

    def __init__(self, name: str):
        self._name = name
        self._arrays: set[str] = set()
        self._blosc: tuple[str, ...] = ()

    def check(self, arrays: list[Any]) -> None:
        """Raises an error if metadata of an array was read, but Zarr did not list the array.

        Zarr leaves out arrays whose metadata it cannot read. Without this check they would be missing without an error.
        """
        lost = self._arrays - {array.path for array in arrays}
        if lost:
            raise DamagedFile(f"{self._name}: the metadata of the array {min(lost)!r} is damaged.")
        packed = [array.path for array in arrays if array.shards is None and _uses_blosc(array)]
        self._blosc = tuple(f"{path}/" if path else "" for path in packed)

    def see(self, key: str, data: Any, whole: bool) -> None:
        """Checks what was read under a key. `whole` says whether `data` is all of it, or a part."""
        folder, _, name = key.rpartition("/")
        if name in (".zarray", "zarr.json"):
            if name == ".zarray" or _IS_ARRAY.search(data.to_bytes()):
                self._arrays.add(folder)
        elif whole and not name.startswith(".z") and self._blosc and key.startswith(self._blosc):
            size = _BLOSC.unpack(data[:16].to_bytes())[0] if len(data) >= 16 else 16
            if len(data) != size:  # Blosc does not check it, and would return memory that lies behind the chunk
                raise DamagedFile(
                    f"{self._name}: the chunk {key} has {len(data)} bytes, but its header says {size} bytes."
                )


def _uses_blosc(array: Any) -> bool:
    """Whether a stored chunk is the direct output of Blosc: no other codec came after it."""
    return bool(array.compressors) and "Blosc" in type(array.compressors[-1]).__name__


def _watch_store(store: Any, watch: _Watch) -> Any:
    """A Zarr store that shows `watch` everything that is read from it."""
    storage = import_package("zarr.storage", "zarr", "Zarr stores")

    class Watched(storage.WrapperStore):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            data = await self._store.get(key, prototype, byte_range)
            if data is not None:
                watch.see(key, data, byte_range is None)
            return data

    return Watched(store)
