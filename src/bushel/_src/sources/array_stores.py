"""Records of one HDF5 file or Zarr store: rows of its arrays, or its groups.

How each of the two formats is opened and read is in `hdf5.py` and `zarr.py`.
"""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import checks, redact, trees
from bushel._src.base.blocks import Columns
from bushel._src.base.contract import optional
from bushel._src.base.errors import DamagedFile, OtherFile
from bushel._src.base.specs import ShapeDtypeStruct
from bushel._src.sources.joined_stores import JoinedStores, Store
from bushel._src.sources.paths import Options

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
        """Arrays by name: all of them, or those of `names` that exist."""

    @abc.abstractmethod
    def open_groups(self, pattern: list[str]) -> dict[str, Any]:
        """The groups whose paths match `pattern`, by their paths."""

    @abc.abstractmethod
    def list_arrays(self, group: Any, names: list[str] | None) -> dict[str, Any]:
        """The arrays of a group by their paths in the group: all of them, or those of `names` that exist."""

    @abc.abstractmethod
    def read_rows(self, array: Any, positions: np.ndarray) -> np.ndarray:
        """Entries of an array. Positions may repeat and may be in any order."""

    @abc.abstractmethod
    def fingerprint_arrays(self, names: list[str] | None, arrays: dict[str, Any]) -> Any:
        """What distinguishes these arrays from others, without reading their values."""

    @abc.abstractmethod
    def fingerprint_groups(self, names: list[str] | None, pattern: str, groups: list[tuple[str, Any]]) -> Any:
        """What distinguishes these groups from others, without reading their values."""

    @optional
    def take_store_failure(self) -> BaseException | None:
        """How an object store has failed since the last call; None if it has not."""
        return None

    def read(self, call: Callable[[], T], what: str) -> T:
        """What `call` reads. Any error of the library becomes a `DamagedFile` that names `what`, without secrets."""
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


class ArrayStore(Store):
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
        """The records at `indices` as columns."""
        positions = checks.positions(indices, self._length)
        columns = {
            name: self._format.read(functools.partial(self._format.read_rows, array, positions), f"the array {name!r}")
            for name, array in self._get_open().items()
        }
        return Columns(columns, len(positions))

    def element_spec(self) -> Any:
        """Shape and dtype of each array of a record."""
        return trees.map_leaves(lambda array: ShapeDtypeStruct(tuple(array.shape[1:]), array.dtype), self._get_open())

    def layout(self) -> dict[str, str]:
        return {name: f"{array.dtype}{list(array.shape[1:])}" for name, array in self._get_open().items()}

    def fingerprint(self) -> Any:
        return self._format.fingerprint_arrays(self._names, self._get_open())


class GroupStore(Store):
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
        """The paths of the groups and the groups themselves, in the order of the records."""
        return sorted(self._format.open_groups(self._pattern).items(), key=lambda entry: _number_key(entry[0]))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._read(*self._get_open()[checks.position(index, self._length)])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """The groups at `indices`."""
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
    """A key that sorts names with numbers in them by the values of the numbers: "demo_2" before "demo_10"."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]


class ArraySource(JoinedStores):
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
        """Shape and dtype of each array of a record."""
        if self._group is not None:
            raise NotImplementedError(f"The records of {self!r} are groups, whose arrays may have any length.")
        store = self._get_store(0)
        assert isinstance(store, ArrayStore)
        return store.element_spec()
