"""HDF5 files as sources, through the `h5py` package: rows of datasets, or groups as records.

An HDF5 file can name any other file of the machine (external storage, external links, virtual datasets), and the HDF5
library reads it without a word. So a data set of a stranger could bring private files into records. What lies in other
files is refused here.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base.errors import DamagedFile, OtherFile
from bushel._src.base.hints import explains_arguments
from bushel._src.base.late_imports import import_package
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.index import epochs
from bushel._src.sources import file_access
from bushel._src.sources.array_stores import ArrayFormat, ArrayStoreSource
from bushel._src.sources.local_files import as_stream, changed_error
from bushel._src.sources.paths import Options, Paths, is_url

_HERE = "."  # the name of the file itself in a virtual dataset


def check_inside(item: Any, name: str, root: Any) -> None:
    """Raise OtherFile if a dataset or group is not wholly in the file that was opened.

    Args:
      item: the dataset or group, which a link may have led to.
      name: its name, for the message.
      root: the file that was opened, or a group that was checked.
    """
    _check(item, name, root, set())


def check_link(group: Any, name: str) -> None:
    """Raise OtherFile if an entry of a group is a link to another file. That file is not opened."""
    h5py = import_package("h5py", "hdf5", "HDF5 files")
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        raise _error(f"{name!r} is a link to {link.path!r} of the file {link.filename!r}.")


def _check(item: Any, name: str, root: Any, seen: set[str]) -> None:
    h5py = import_package("h5py", "hdf5", "HDF5 files")
    if h5py.h5o.get_info(item.id).fileno != h5py.h5o.get_info(root.id).fileno:
        raise _error(f"{name!r} lies in the file {item.file.filename!r}, to which a link leads.")
    if not isinstance(item, h5py.Dataset):
        return
    properties = item.id.get_create_plist()
    if properties.get_external_count():
        raise _error(f"The values of {name!r} lie in the file {item.external[0][0]!r}.")
    if properties.get_layout() != h5py.h5d.VIRTUAL:
        return
    for source in item.virtual_sources():
        if source.file_name != _HERE:
            raise _error(f"{name!r} is a virtual dataset with values of the file {source.file_name!r}.")
        if "%" in source.dset_name:
            raise _error(
                f"{name!r} is a virtual dataset of all datasets {source.dset_name!r}, which cannot be checked."
            )
        if source.dset_name not in seen:
            seen.add(source.dset_name)
            inner = item.file.get(source.dset_name)
            if inner is not None:  # otherwise its values are the fill value
                _check(inner, source.dset_name, root, seen)


def _error(sentence: str) -> OtherFile:
    return OtherFile(
        f"{sentence} A file of a stranger could name any file of this machine, so Bushel does not follow such names. "
        "If you trust it, pass allow_other_files=True to HDF5DataSource, or write all values into one file (with "
        "h5repack, or h5py's `copy` with expand_external=True)."
    )


_ENDINGS = (".h5", ".hdf5")
_CHECKSUM_BYTES = 4


@public("bushel.sources")
@in_states("HDF5DataSource")
class HDF5DataSource(ArrayStoreSource):
    """Datasets of HDF5 files: a record is a dict with one entry of each dataset, by its path inside the file.

    With `group`, a record is a whole group, such as an episode of a robot: a dict of its datasets as arrays of any
    length, by their paths inside the group. Groups are sorted by their names, and numbers in the names by their value:
    "demo_2" comes before "demo_10".

    Args:
      paths: one or many files, patterns or URLs. A folder stands for its files that end in ".h5" or ".hdf5".
      columns: read only these datasets, such as "train/images". A link may be named too. By default all datasets are
        read, each once.
      group: which groups are records, such as `data/*`. `/` makes each whole file a record.
      allow_other_files: read also datasets that lie in other files: those with external storage, those behind external
        links, and virtual datasets. Such a file can name any file of this machine, so by default they are an error.
      storage_options: options of the store that holds the files.

    >>> import os, tempfile, h5py
    >>> path = os.path.join(tempfile.mkdtemp(), "demos.h5")
    >>> with h5py.File(path, "w") as file:
    ...     file["data/demo_0/actions"], file["data/demo_1/actions"] = [1, 2], [3, 4, 5]
    >>> HDF5DataSource(path, group="data/*")[1]
    {'actions': array([3, 4, 5])}
    """

    @explains_arguments('Write `HDF5DataSource(paths, columns=["train/x"])`.')
    def __init__(
        self,
        paths: Paths,
        *,
        columns: Sequence[str] | None = None,
        group: str | None = None,
        allow_other_files: bool = False,
        storage_options: Options | None = None,
    ):
        make = functools.partial(HDF5Format, allow_other_files=bool(allow_other_files))
        super().__init__(_find_files(paths, storage_options), make, columns, group, storage_options)


def _find_files(paths: Any, options: Options | None) -> list[str]:
    files: list[str] = []
    for path in file_access.find_files(paths, options):
        if is_url(path) or not os.path.isdir(path):
            files.append(path)
            continue
        inside = sorted(entry.path for entry in os.scandir(path) if entry.name.endswith(_ENDINGS))
        if not inside:
            raise FileNotFoundError(f"The folder {path} has no file that ends in {' or '.join(_ENDINGS)}.")
        files += inside
    return files


class HDF5Format(ArrayFormat):
    """How one HDF5 file is opened and read."""

    _version: list[Any] | None = None  # of the file when the source was made

    def __init__(self, path: str, options: Options | None, *, allow_other_files: bool = False):
        super().__init__(path, options)
        self._allow = allow_other_files

    def _open_file(self) -> Any:
        """Return the file, which must be the one that the source was made of. h5py keeps it open while a dataset is in
        use.
        """
        h5py = import_package("h5py", "hdf5", "HDF5 files")
        content = file_access.open_file(self.path, self.options)
        self._version = self._version or content.version()
        if content.version() != self._version:
            raise changed_error(self.path, self._version, content.version())
        place = as_stream(content) if is_url(self.path) else self.path
        with self._report_damage():
            return h5py.File(place, "r")

    @contextlib.contextmanager
    def _report_damage(self) -> Iterator[None]:
        """Turn the errors that damaged metadata cause into a `DamagedFile`."""
        try:
            yield
        except OtherFile as error:
            raise OtherFile(f"{self.name}: {error}") from None
        except Exception as error:
            raise DamagedFile(f"{self.name} is not a complete HDF5 file: {error}") from error

    def open_arrays(self, names: list[str] | None) -> dict[str, Any]:
        file = self._open_file()
        with self._report_damage():
            return self.list_arrays(file, names)

    def open_groups(self, pattern: list[str]) -> dict[str, Any]:
        file = self._open_file()
        with self._report_damage():
            return dict(self._match_groups(file, pattern, "", file))

    def list_arrays(self, group: Any, names: list[str] | None) -> dict[str, Any]:
        h5py = import_package("h5py", "hdf5", "HDF5 files")
        items: dict[str, Any] = {}
        if names is None:
            group.visititems(items.__setitem__)
        else:
            items = {name: group.get(name) for name in names}  # also follows links, which a visit leaves out
        arrays = {name: item for name, item in items.items() if isinstance(item, h5py.Dataset)}
        if not self._allow:
            for name, array in arrays.items():
                check_inside(array, name, group)
        if not is_url(self.path):  # over a network, reading the index of the chunks would take many requests
            for name, array in arrays.items():
                check_chunks(array, name)
        return arrays

    def read_rows(self, array: Any, positions: np.ndarray) -> np.ndarray:
        if not len(positions):
            return array[:0]
        wanted, back = epochs.find_distinct(positions)  # h5py needs increasing positions, each once
        low, high = int(wanted[0]), int(wanted[-1]) + 1
        # One read of a range is much cheaper than a read of single rows, even if some rows of the range are dropped.
        part = array[low:high][wanted - low] if high - low <= 2 * len(wanted) else array[wanted]
        return part[back]

    def fingerprint_arrays(self, names: list[str] | None, arrays: dict[str, Any]) -> Any:
        return [file_access.fingerprint_files([self.path], self.options), names]

    def fingerprint_groups(self, names: list[str] | None, pattern: str, groups: list[tuple[str, Any]]) -> Any:
        return [self.fingerprint_arrays(names, {}), pattern]

    def _match_groups(self, group: Any, pattern: list[str], path: str, file: Any) -> Iterator[tuple[str, Any]]:
        if not pattern:
            yield path, group
            return
        for name in group:
            if fnmatch.fnmatchcase(name, pattern[0]):
                if not self._allow:
                    check_link(group, name)
                inner = group.get(name)  # None for a broken link
                if hasattr(inner, "keys"):
                    if not self._allow:
                        check_inside(inner, name, file)
                    yield from self._match_groups(inner, pattern[1:], f"{path}/{name}" if path else name, file)


def check_chunks(array: Any, name: str) -> None:
    """Refuse a dataset with checksums if the index of its chunks is impossible: the index itself has no checksum.

    The HDF5 library does not check the index. It skips the checksum of a chunk if the chunk's entry says so, and it
    crashes the process if a chunk is too short for its checksum.
    """
    if not array.fletcher32 or not hasattr(array.id, "chunk_iter"):
        return
    properties = array.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    unchecked = 1 << filters.index(import_package("h5py.h5z", "hdf5", "HDF5 files").FILTER_FLETCHER32)

    size = array.file.id.get_filesize()  # of the file that holds the dataset: a link may lead into another file
    entries: list[Any] = []
    array.id.chunk_iter(entries.append)
    if not entries:
        return
    offsets, masks, addresses, sizes = (np.array(column) for column in zip(*entries))
    repeated = [len(np.unique(column, axis=0)) < len(entries) for column in (offsets, addresses)]
    bad = (masks & unchecked != 0) | (sizes <= _CHECKSUM_BYTES) | (addresses > size) | (sizes > size - addresses)
    bad |= (offsets >= array.shape).any(axis=1) | (offsets % array.chunks != 0).any(axis=1)
    if any(repeated) or bad.any():
        where = f"the chunk at {entries[int(bad.argmax())][0]}" if bad.any() else "two chunks"
        raise ValueError(f"the entry of {where} of {name!r} is damaged")
