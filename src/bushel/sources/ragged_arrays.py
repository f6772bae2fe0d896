"""Sequences of different lengths in one long array: a ragged column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bushel.base import checks, trees
from bushel.base.ownership import copy_value
from bushel.base.specs import ShapeDtypeStruct
from bushel.base.state_names import in_states
from bushel.sources import memory_sources


@in_states("ragged_sequences")
class Sequences(list[np.ndarray]):
    """Arrays of one dtype that differ in the length of the first axis only, with these lengths."""

    def __init__(self, arrays: Iterable[np.ndarray], lengths: np.ndarray):
        super().__init__(arrays)
        self.lengths = lengths


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
        memory_sources.note_versions([*self._leaves, self._offsets])

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
        """The records at `indices`, each a new copy."""
        columns = self._slice_all(checks.positions(indices, len(self)))
        return self._make_records([list(map(copy_value, views)) for views in columns])

    def _look(self, positions: np.ndarray) -> list[Any]:
        """The records at `positions`, as views of the source's own memory, for who only reads them."""
        return self._make_records(self._slice_all(positions))

    def _slice_all(self, positions: np.ndarray) -> list[Sequences]:
        """For each leaf, its views at `positions`."""
        return [self._slice_views(leaf, positions) for leaf in self._leaves]

    def _make_records(self, columns: Sequence[list[np.ndarray]]) -> list[Any]:
        """Records from the entries of each leaf."""
        if type(self._tree) is dict and len(columns) == len(self._tree) == 1:  # tokens alone: a third of the time
            (name,) = self._tree
            return [{name: entry} for entry in columns[0]]
        return [self._rebuild(entries) for entries in zip(*columns, strict=True)]

    def _has(self, names: Sequence[str | None]) -> bool:
        """Whether records are dicts of arrays with these names. The name None stands for a record that is an array."""
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
        """Shape and dtype of each leaf of a record; the first axis is None."""
        return trees.map_leaves(lambda leaf: ShapeDtypeStruct((None, *leaf.shape[1:]), leaf.dtype), self._tree)

    def fingerprint(self) -> Any:
        """The arrays themselves. The digest takes their shapes, dtypes and a sample of their bytes."""
        return [self._tree, self._offsets]

    def __reduce__(self) -> Any:
        return _rebuild_source, (
            trees.map_leaves(memory_sources.pack_array, self._tree),
            memory_sources.pack_array(self._offsets),
        )

    def __repr__(self) -> str:
        return f"RaggedDataSource({len(self)} sequences of {trees.describe(self._tree)})"


def _rebuild_source(values: Any, offsets: Any) -> RaggedDataSource:
    return RaggedDataSource(trees.map_leaves(memory_sources.unpack_array, values), memory_sources.unpack_array(offsets))
