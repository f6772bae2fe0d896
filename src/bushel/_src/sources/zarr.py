"""Zarr stores as sources, through the `zarr` package: rows of arrays, or groups as records."""

from __future__ import annotations

import fnmatch
import re
import struct
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import redact
from bushel._src.base.errors import DamagedFile
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.sources import file_access
from bushel._src.sources.array_stores import ArrayFormat, ArrayStoreSource, find_stores
from bushel._src.sources.paths import Options, Paths, is_url

_METADATA = ("zarr.json", ".zgroup", ".zarray")
_IS_ARRAY = re.compile(rb'"node_type"\s*:\s*"array"')
_CHUNK = re.compile(r"c|\d+(\.\d+)*")  # what an array's folder holds beside its metadata, in both versions of Zarr
_BLOSC = struct.Struct("<12xI")  # the header of a chunk that Blosc has compressed: its size, header included


@public("bushel.sources")
@in_states("ZarrDataSource")
class ZarrDataSource(ArrayStoreSource):
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

    _failures: _Watch | None = None

    def open_arrays(self, names: list[str] | None) -> dict[str, Any]:
        zarr = import_package("zarr", "zarr", "Zarr stores")
        watch = _Watch(self.name, self.path, self.options)
        watched = _watch_store(self._open_store(), watch)
        try:
            store = self._call_guarded(lambda: zarr.open(watched, mode="r"))
            arrays = (
                self._call_guarded(lambda: _list_arrays(store)) if isinstance(store, zarr.Group) else {"array": store}
            )
            watch.check(list(arrays.values()))
            self._check_orphans(watch)
        except FileNotFoundError:
            if watch.failure is not None:
                raise watch.failure from None
            if self.path.endswith(".zip"):
                raise FileNotFoundError(
                    f"{self.name} is not a Zarr store: it has no metadata of one. Zipped stores are not supported: "
                    "unzip it."
                ) from None
            raise FileNotFoundError(f"{self.name} is not a Zarr store: it has no metadata of one.") from None
        except (ImportError, PermissionError, DamagedFile):
            raise
        except Exception as error:  # damaged metadata can cause any error
            if watch.failure is not None:
                raise watch.failure from None
            raise DamagedFile(f"{self.name} is not a complete Zarr store: {error}") from error
        self._failures = watch
        return arrays if names is None else {name: arrays[name] for name in names if name in arrays}

    def take_store_failure(self) -> BaseException | None:
        return None if self._failures is None else self._failures.take_failure()

    def _check_orphans(self, watch: _Watch) -> None:
        """Raise an error if a folder holds chunks, but no metadata: Zarr leaves such an array out without an error."""
        for folder in sorted(watch.without_metadata):
            inside = self._call_guarded(lambda folder=folder: _list_folder(self._open_store(), folder))
            if any(map(_CHUNK.fullmatch, inside)):
                raise DamagedFile(
                    f"{self.name}: the folder {folder!r} holds chunks of an array, but not its metadata. Was a file "
                    "removed, or is the copy incomplete? Copy it again, or remove the folder."
                )

    def _call_guarded(self, call: Any) -> Any:
        return redact.call_guarded(call, self.path, self.options)

    def _open_store(self) -> Any:
        """Return the store as an object of the `zarr` package."""
        if not is_url(self.path):
            return import_package("zarr.storage", "zarr", "Zarr stores").LocalStore(self.path, read_only=True)
        from bushel._src.sources import object_stores  # loaded when it is needed: most programs read local files

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
    """Return all arrays of a Zarr group and of the groups inside it, by their paths."""
    arrays = {f"{prefix}{name}": array for name, array in group.arrays()}
    for name, inner in group.groups():
        arrays |= _list_arrays(inner, f"{prefix}{name}/")
    return dict(sorted(arrays.items()))


def _list_folder(store: Any, folder: str) -> list[str]:
    sync = import_package("zarr.core.sync", "zarr", "Zarr stores").sync

    async def collect() -> list[str]:
        return [name async for name in store.list_dir(folder)]

    return sync(collect())


class _Watch:
    """Checks what a Zarr store returns: that no array's metadata is ignored, and that no chunk was cut short."""

    def __init__(self, name: str, path: str, options: Options | None):
        self._name, self._path, self._options = name, path, options
        self.without_metadata: set[str] = set()
        """The folders that were asked for metadata and have none."""
        self.failure: BaseException | None = None
        """How the store has failed, if it has."""
        self._arrays: set[str] = set()
        self._blosc: tuple[str, ...] = ()

    def check(self, arrays: list[Any]) -> None:
        """Raise an error if metadata of an array was read, but Zarr did not list the array.

        Zarr leaves out arrays whose metadata it cannot read. Without this check they would be missing without an error.
        """
        lost = self._arrays - {array.path for array in arrays}
        if lost:
            raise DamagedFile(f"{self._name}: the metadata of the array {min(lost)!r} is damaged.")
        packed = [array.path for array in arrays if array.shards is None and _uses_blosc(array)]
        self._blosc = tuple(f"{path}/" if path else "" for path in packed)

    def explain(self, error: Exception, key: str, deed: str) -> BaseException:
        """Return the error to raise in place of an error of the store."""
        if not is_url(self._path):
            return error
        from bushel._src.sources import object_stores

        name = f"{self._name}/{key}" if key else self._name
        secrets = redact.secrets_of(self._path, self._options)
        self.failure = object_stores.explain_failure(error, name, secrets, deed)
        return self.failure

    def take_failure(self) -> BaseException | None:
        """Return how the store has failed since the last call."""
        failure, self.failure = self.failure, None
        return failure

    def see(self, key: str, data: Any, whole: bool) -> None:
        """Check what was read under a key. `whole` says whether `data` is all of it, or a part."""
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
    """Return whether a stored chunk is the direct output of Blosc: no other codec came after it."""
    return bool(array.compressors) and "Blosc" in type(array.compressors[-1]).__name__


def _watch_store(store: Any, watch: _Watch) -> Any:
    """Return a Zarr store that shows `watch` everything that is read from it, and its failures."""
    storage = import_package("zarr.storage", "zarr", "Zarr stores")
    found: set[str] = set()  # the folders whose metadata were read

    class Watched(storage.WrapperStore):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            try:
                data = await self._store.get(key, prototype, byte_range)
            except Exception as error:
                raise watch.explain(error, key, "read") from error
            folder, _, name = key.rpartition("/")
            if data is not None:
                watch.see(key, data, byte_range is None)
                if name in _METADATA:
                    found.add(folder)
                    watch.without_metadata.discard(folder)
            elif name in _METADATA and folder not in found:
                watch.without_metadata.add(folder)
            return data

        async def list_dir(self, prefix: str) -> AsyncGenerator[str, None]:
            try:
                async for name in self._store.list_dir(prefix):
                    yield name
            except Exception as error:
                raise watch.explain(error, prefix, "listed") from error

    return Watched(store)
