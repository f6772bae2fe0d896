"""Sources in memory: arrays, ragged arrays, ranges of integers, and lists that processes share."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel._src.base import checks, memory, trees
from bushel._src.base.blocks import Columns
from bushel._src.base.private_elements import copy_value
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.index import epochs
from bushel._src.sources.local_files import changed_error

_FEW_OF_EACH = 8  # so few records of each source are copied one by one


@public("bushel.sources")
@in_states("ArrayDataSource")
class ArrayDataSource:
    """A tree of arrays, one record per position of their first axis. Many records are read with one gather.

    The arrays are not copied: memory-mapped arrays stay on disk until they are read. A record is always a new copy, so
    a transformation may change it in place.

    >>> source = ArrayDataSource({"x": np.arange(6).reshape(3, 2), "y": [0, 1, 0]})
    >>> len(source), source[1]
    (3, {'x': array([2, 3]), 'y': np.int64(1)})
    """

    in_memory = True
    gives_new_records = True
    reads_in_place = True  # see FixedRecords

    def __init__(self, arrays: Any):
        self._tree = _to_arrays(arrays)
        self._leaves, self._rebuild = trees.flatten(self._tree)
        leaves = self._leaves
        if not leaves:
            raise ValueError(f"ArrayDataSource needs at least one array, got {trees.describe(arrays)}.")
        if any(leaf.ndim == 0 for leaf in leaves) or len({len(leaf) for leaf in leaves}) != 1:
            raise ValueError(
                "All arrays of an ArrayDataSource need the same first axis, one entry per record; "
                f"got {trees.describe(self._tree)}."
            )
        self._length = len(leaves[0])
        note_versions(leaves)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        place = checks.position(index, self._length)
        return self._rebuild([copy_value(leaf[place]) for leaf in self._leaves])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> Columns:
        """Return the records at `indices` as columns."""
        positions = checks.integers(indices)
        return Columns(self._rebuild([_gather(leaf, positions) for leaf in self._leaves]), len(positions))

    def element_spec(self) -> Any:
        """Return shape and dtype of each leaf of a record."""
        return trees.map_leaves(lambda leaf: ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self._tree)

    def fingerprint(self) -> Any:
        """Return the arrays themselves. The digest takes their shapes, dtypes and a sample of their bytes."""
        return self._tree

    def __reduce__(self) -> Any:
        return (_rebuild_source, (trees.map_leaves(pack_array, self._tree),))

    def __repr__(self) -> str:
        return f"ArrayDataSource({trees.describe(self._tree)})"


class JoinedArrays:
    """Many sources of arrays with the same structure, from which single records are read: see `join_arrays`."""

    def __init__(self, sources: Sequence[ArrayDataSource]):
        self._leaves = list(zip(*(source._leaves for source in sources), strict=True))
        self._rebuild = sources[0]._rebuild

    def gather(self, which: np.ndarray, positions: np.ndarray) -> Columns:
        """Record `positions[n]` of source `which[n]`, for each n, as columns."""
        count = len(which)
        rows_of_each = epochs.group(which)
        groups: list[tuple[int, Any, Any]]
        if count > _FEW_OF_EACH * len(rows_of_each):
            groups = [(number, rows, positions[rows]) for number, rows in rows_of_each.items()]
        else:
            groups = list(zip(which.tolist(), range(count), positions.tolist(), strict=True))
        columns = []
        for leaves in self._leaves:
            out = memory.output((count, *leaves[0].shape[1:]), leaves[0].dtype)
            for number, rows, here in groups:
                out[rows] = leaves[number][here]
            columns.append(out)
        return Columns(self._rebuild(columns), count)


def join_arrays(sources: Sequence[Any]) -> JoinedArrays | None:
    """Return sources of arrays as one, if all are of the same structure, shapes and dtypes; otherwise None.

    To read a few records of each of a thousand sources, one loop takes a tenth of the time of a call of each source.
    """
    if not all(type(source) is ArrayDataSource for source in sources):
        return None
    if any(leaf.dtype.hasobject for leaf in sources[0]._leaves):
        return None
    spec = sources[0].element_spec()
    return JoinedArrays(sources) if all(source.element_spec() == spec for source in sources) else None


@dataclasses.dataclass(frozen=True)
class InFile:
    """An array that is a part of a file. Another process gets the name of the file and maps it again."""

    name: str
    offset: int
    """The place of the first entry in the file. With negative strides, other entries lie before it."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    version: list[Any] | None
    """The version of the file; None if the array is writable, so that the file may change."""


def note_versions(leaves: Iterable[np.ndarray]) -> None:
    """Remember the versions of the files that arrays are parts of, so that a replaced file is recognized later."""
    for leaf in leaves:
        mapped = _find_map(leaf)
        if mapped is not None and not hasattr(mapped, _NOTE):
            setattr(mapped, _NOTE, _read_map_version(mapped))


_NOTE = "_bushel_version"


def _find_map(leaf: np.ndarray) -> np.memmap[Any, Any] | None:
    """Return the memory map that an array is a part of: the outermost one, which knows its offset in the file."""
    mapped: np.memmap[Any, Any] | None = None
    owner: Any = leaf
    while isinstance(owner, np.ndarray):
        mapped = owner if isinstance(owner, np.memmap) else mapped
        owner = owner.base
    return mapped


def _read_map_version(mapped: np.memmap[Any, Any]) -> list[Any] | None:
    with contextlib.suppress(OSError):  # the file was removed; its memory can still be read
        return _read_version(str(mapped.filename)) if mapped.filename and mapped.mode == "r" else None


def _read_version(name: str) -> list[Any]:
    facts = os.stat(name)
    return [os.path.basename(name), facts.st_size, facts.st_mtime_ns]


def pack_array(leaf: np.ndarray) -> np.ndarray | InFile:
    """Return what is pickled in place of an array: the name and place in a file if the array is a part of one."""
    if type(leaf) not in (np.ndarray, np.memmap):
        return leaf  # a subclass may hold more than the entries, such as a mask
    mapped = _find_map(leaf)
    if mapped is None or not mapped.filename or mapped.mode == "c" or leaf.dtype.hasobject or not leaf.size:
        return leaf  # it is in memory, or it has changes that are not in the file
    first, start = (array.__array_interface__["data"][0] for array in (leaf, mapped))
    place = mapped.offset + first - start
    note_versions([leaf])
    return InFile(str(mapped.filename), place, leaf.shape, leaf.dtype, leaf.strides, getattr(mapped, _NOTE))


def unpack_array(leaf: np.ndarray | InFile) -> np.ndarray:
    """Return the array that `pack_array` has described."""
    if not isinstance(leaf, InFile):
        return leaf
    if leaf.version is not None and (now := _read_version(leaf.name)) != leaf.version:
        raise changed_error(leaf.name, leaf.version, now)
    reach = [stride * (size - 1) for stride, size in zip(leaf.strides, leaf.shape)]
    before, after = -sum(min(0, far) for far in reach), sum(max(0, far) for far in reach) + leaf.dtype.itemsize
    part = np.memmap(leaf.name, dtype=np.uint8, mode="r", offset=leaf.offset - before, shape=(before + after,))
    return np.ndarray(leaf.shape, leaf.dtype, buffer=part, offset=before, strides=leaf.strides)


def _rebuild_source(tree: Any) -> ArrayDataSource:
    return ArrayDataSource(trees.map_leaves(unpack_array, tree))


def _to_arrays(tree: Any) -> Any:
    # A list is data here, not a container: {"y": [0, 1, 0]} is one column.
    if isinstance(tree, list):
        return np.asarray(tree)
    parts = trees.children(tree)
    if parts is None:
        array = np.asarray(tree)
        return array.view(np.ndarray) if isinstance(array, np.ndarray) else array
    return parts[1](_to_arrays(part) for part in parts[0])


def _gather(leaf: np.ndarray, positions: np.ndarray) -> np.ndarray:
    if leaf.dtype.hasobject:
        return copy_value(leaf.take(positions, axis=0))
    row_bytes = leaf.nbytes // len(leaf) if len(leaf) else 0
    if row_bytes * len(positions) < memory.WORTH_ALIGNING:
        return leaf.take(positions, axis=0)
    out = memory.output((len(positions), *leaf.shape[1:]), leaf.dtype)
    # The positions are checked, so "clip" changes nothing. With it, NumPy needs no second buffer.
    return leaf.take(checks.positions(positions, len(leaf)), axis=0, out=out, mode="clip")


@public("bushel.sources")
@in_states("RangeDataSource")
class RangeDataSource:
    """The integers of a range as records.

    >>> list(RangeDataSource(0, 6, 2))
    [0, 2, 4]
    """

    in_memory = True
    gives_new_records = True

    def __init__(self, start: int, stop: int, step: int):
        self._range = range(start, stop, step)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: int) -> int:
        return self._range[index]

    def __repr__(self) -> str:
        numbers = self._range
        return f"RangeDataSource(start={numbers.start}, stop={numbers.stop}, step={numbers.step})"

    def fingerprint(self) -> Any:
        numbers = self._range
        return [numbers.start, numbers.stop, numbers.step]


@in_states("ragged_sequences")
class Sequences(list[np.ndarray]):
    """Arrays of one dtype that differ in the length of the first axis only, with these lengths."""

    def __init__(self, arrays: Iterable[np.ndarray], lengths: np.ndarray):
        super().__init__(arrays)
        self.lengths = lengths


@public("bushel.sources")
@in_states("RaggedDataSource")
class RaggedDataSource:
    """Sequences of different lengths, end to end: record i is `values[offsets[i]:offsets[i + 1]]`.

    `values` may be a tree of arrays that are cut at the same places, such as tokens and their types. The arrays are not
    copied: memory-mapped arrays stay on disk. A record is a new copy.

    >>> source = RaggedDataSource({"tokens": np.arange(6)}, offsets=[0, 2, 2, 6])
    >>> len(source), source[2], source.lengths.tolist()
    (3, {'tokens': array([2, 3, 4, 5])}, [2, 0, 4])
    """

    in_memory = True
    gives_new_records = True

    def __init__(self, values: Any, offsets: Sequence[int] | np.ndarray):
        self._tree = trees.map_leaves(lambda leaf: np.asarray(leaf), values)
        self._leaves, self._rebuild = trees.flatten(self._tree)
        self._offsets = np.asarray(offsets)
        if not self._leaves or any(leaf.ndim == 0 for leaf in self._leaves) or len(set(map(len, self._leaves))) != 1:
            raise ValueError(
                "All values of a RaggedDataSource need a first axis of the same length, the sequences end to end; "
                f"got {trees.describe(self._tree)}."
            )
        if self._offsets.ndim != 1 or not len(self._offsets) or self._offsets.dtype.kind not in "iu":
            raise ValueError(f"offsets must be a list of integers, got {trees.describe(self._offsets)}.")
        total = len(self._leaves[0])
        if self._offsets[0] != 0 or self._offsets[-1] != total or (self.lengths < 0).any():
            raise ValueError(
                f"offsets must begin with 0, never decrease, and end with {total}, the number of values; "
                f"they go from {self._offsets[0]} to {self._offsets[-1]}."
            )
        note_versions([*self._leaves, self._offsets])

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence, for `ds.pack` and `ds.bucket`. No sequence is read."""
        return np.diff(self._offsets.astype(np.int64, copy=False))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Any:
        place = checks.position(index, len(self))
        low, high = self._offsets[place], self._offsets[place + 1]
        return self._rebuild([copy_value(leaf[low:high]) for leaf in self._leaves])

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Any]:
        """Return the records at `indices`, each a new copy."""
        columns = self._slice_all(checks.positions(indices, len(self)))
        return self._make_records([list(map(copy_value, views)) for views in columns])

    def _look(self, positions: np.ndarray) -> list[Any]:
        """Return the records at `positions`, as views of the source's own memory, for who only reads them."""
        return self._make_records(self._slice_all(positions))

    def _slice_all(self, positions: np.ndarray) -> list[Sequences]:
        """For each leaf, its views at `positions`."""
        return [self._slice_views(leaf, positions) for leaf in self._leaves]

    def _make_records(self, columns: Sequence[list[np.ndarray]]) -> list[Any]:
        """Return records from the entries of each leaf."""
        if type(self._tree) is dict and len(columns) == len(self._tree) == 1:  # tokens alone: a third of the time
            (name,) = self._tree
            return [{name: entry} for entry in columns[0]]
        return [self._rebuild(entries) for entries in zip(*columns, strict=True)]

    def _has(self, names: Sequence[str | None]) -> bool:
        """Return whether records are dicts of arrays with these names.

        The name None stands for a record that is an array.
        """
        tree: Any = {None: self._tree} if isinstance(self._tree, np.ndarray) else self._tree
        return isinstance(tree, dict) and all(isinstance(tree.get(name), np.ndarray) for name in names)

    def _entries(self, indices: np.ndarray, names: Sequence[str | None]) -> list[Sequences]:
        """For each name, the entries of the records at `indices`, as views of the source's own memory."""
        return [self._slice_views(self._tree if name is None else self._tree[name], indices) for name in names]

    def _slice_views(self, leaf: np.ndarray, positions: np.ndarray) -> Sequences:
        lows, highs = self._offsets[positions], self._offsets[positions + 1]
        cuts = zip(lows.tolist(), highs.tolist(), strict=True)
        return Sequences([leaf[low:high] for low, high in cuts], highs - lows)

    def element_spec(self) -> Any:
        """Return shape and dtype of each leaf of a record; the first axis is None."""
        return trees.map_leaves(lambda leaf: ShapeDtypeStruct((None, *leaf.shape[1:]), leaf.dtype), self._tree)

    def fingerprint(self) -> Any:
        """Return the arrays themselves. The digest takes their shapes, dtypes and a sample of their bytes."""
        return [self._tree, self._offsets]

    def __reduce__(self) -> Any:
        return _rebuild_ragged_source, (
            trees.map_leaves(pack_array, self._tree),
            pack_array(self._offsets),
        )

    def __repr__(self) -> str:
        return f"RaggedDataSource({len(self)} sequences of {trees.describe(self._tree)})"


def _rebuild_ragged_source(values: Any, offsets: Any) -> RaggedDataSource:
    return RaggedDataSource(trees.map_leaves(unpack_array, values), unpack_array(offsets))


@public("bushel.sources")
@in_states("SharedMemoryDataSource")
class SharedMemoryDataSource:
    """A list of plain values in shared memory: int, float, bool, None, str and bytes.

    A str or bytes must not end with a zero byte. Each process calls `close` at the end, and the process that made the
    list calls `unlink`. For arrays use an ordinary source: worker processes share the arrays of a pipeline anyway.

    Args:
      elements: the values; None attaches to the shared memory `name`, which exists already.
      name: the name of the shared memory. By default the system chooses one.

    >>> source = SharedMemoryDataSource([1, "two", None])
    >>> source[1], len(source)
    ('two', 3)
    >>> source.close(), source.unlink()
    (None, None)
    """

    in_memory = True

    def __init__(self, elements: Sequence[Any] | None = None, *, name: str | None = None):
        # Imported here, because few programs use it.
        from multiprocessing import shared_memory

        if elements is None and name is None:
            raise ValueError("SharedMemoryDataSource needs elements, or the name of shared memory to attach to.")
        values = None if elements is None else list(elements)
        for number, value in enumerate(values or ()):
            if isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0"):
                raise ValueError(
                    f"Element {number} ends with a zero byte, which Python's ShareableList would cut off: "
                    f"{value[-20:]!r}. Append another byte, or pass the values as a list to `MapDataset.source`."
                )
        with _without_tracking() if values is None else contextlib.nullcontext():
            self._list = shared_memory.ShareableList(values, name=name)

    @property
    def shm(self) -> Any:
        """The `multiprocessing.shared_memory.SharedMemory` that holds the values."""
        return self._list.shm

    def __len__(self) -> int:
        return len(self._list)

    def __getitem__(self, index: int) -> Any:
        return self._list[index]

    def close(self) -> None:
        """Close the shared memory in this process."""
        self._list.shm.close()

    def unlink(self) -> None:
        """Remove the shared memory, for all processes."""
        self._list.shm.unlink()

    def fingerprint(self) -> Any:
        """Return the values. The name of the memory does not identify the data."""
        return [self._list[number] for number in range(len(self))]

    def __reduce__(self) -> Any:
        return (_attach, (self._list.shm.name,))

    def __repr__(self) -> str:
        return f"InMemoryDataSource(name={self._list.shm.name}, len={len(self)})"

    def _repr_in_grain(self) -> str:
        """Return the repr of Grain's source of these values, which Grain's DataLoader compares in states."""
        if type(self).__repr__ is not SharedMemoryDataSource.__repr__:
            return repr(self)  # a subclass has a repr of its own, in Grain too
        return f"{type(self).__name__}({self.fingerprint()}, name={self._list.shm.name!r})"


def _attach(name: str) -> SharedMemoryDataSource:
    return SharedMemoryDataSource(name=name)


@contextlib.contextmanager
def _without_tracking() -> Iterator[None]:
    """In the block, shared memory is not tracked. Otherwise Python would remove it when this process ends."""
    from multiprocessing import resource_tracker

    register = resource_tracker.register
    resource_tracker.register = lambda name, rtype: None
    try:
        yield
    finally:
        resource_tracker.register = register
