"""Columns: one small value per record, which follows the record through the pipeline. bushel/columns.py computes them.

A column belongs to the elements of nodes that are the same in every epoch. Index arithmetic finds the value of an
element after shuffles, slices, mixtures and maps, in any epoch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from bushel._src.base import blocks, hints
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import RowFailed, locate_error
from bushel._src.base.exact_values import remove_padding
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.graph.batch import Batches
from bushel._src.graph.column_values import SortedValuesOfRange, calculate, join_arrays, sort_arrays, sort_values
from bushel._src.graph.map_ops import MapElements
from bushel._src.graph.node import Epochs, MapNode, Plan, Transparent, describe_failure
from bushel._src.graph.reindex import Repeat, Seed
from bushel._src.graph.user_datasets import CustomMap
from bushel._src.index import epochs
from bushel._src.sources import memory_sources

_STRIDE = 1 << 17  # this many positions of an epoch are followed at once: arrays of them stay in the cache


@dataclasses.dataclass(frozen=True, eq=False)
class NodeValues:
    """`values[i]` belongs to the element `i` of `node`, in every epoch."""

    node: MapNode
    values: np.ndarray

    def __reduce__(self) -> Any:
        return _unpickle_values, (self.node, memory_sources.pack_array(self.values))


def _unpickle_values(node: MapNode, values: Any) -> NodeValues:
    return NodeValues(node, np.asarray(memory_sources.unpack_array(values)))


@public("bushel")
class Column(NDArrayOperatorsMixin):
    """One value for each record of a dataset, as `ds.column(...)` returns it.

    Arithmetic works as with an array, and the result belongs to the same records: `lengths > 10` is a mask for `where`.
    Integers are exact, as Python's are: a result that its dtype cannot hold gets a wider one, or is an error.
    If values have several fields, `column["field"]` is the column of one. `column[i]` is the value of record `i`, and
    `np.asarray(column)` returns all values.

    >>> import bushel
    >>> words = bushel.MapDataset.source(["fig", "banana", "kiwi"])
    >>> lengths = words.column(len)
    >>> np.asarray(lengths).tolist(), np.asarray(lengths > 3).tolist()
    ([3, 6, 4], [False, True, True])
    """

    def __init__(self, values_by_node: tuple[NodeValues, ...]):
        self._values_by_node = values_by_node

    @property
    def values(self) -> np.ndarray:
        """The values, record by record; those of several datasets one after the other."""
        first, *others = (node_values.values for node_values in self._values_by_node)
        return np.concatenate([first, *others]) if others else first  # all of one dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a value."""
        return self._values_by_node[0].values.dtype

    @functools.cached_property
    def _digest(self) -> str:
        """A digest of all values. In the identity of a pipeline it stands for the column."""
        digest = hashlib.blake2b(digest_size=8)
        for node_values in self._values_by_node:
            digest.update(f"{node_values.values.dtype.descr}{node_values.values.shape}".encode())
            for _, values in remove_padding(node_values.values):
                digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data if values.size else b"")
        return digest.hexdigest()

    def __len__(self) -> int:
        return sum(len(node_values.values) for node_values in self._values_by_node)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is None:  # `np.array(copy=None)` is new in NumPy 2
            return np.asarray(self.values, dtype)
        return np.array(self.values, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":  # such as np.maximum.reduce, of all values
            return getattr(ufunc, method)(*(v.values if isinstance(v, Column) else v for v in inputs), **options)
        if options:
            return NotImplemented
        columns = [value for value in inputs if isinstance(value, Column)]
        if any(
            [node_values.node for node_values in column._values_by_node]
            != [node_values.node for node_values in self._values_by_node]
            for column in columns
        ):
            raise ValueError(
                f"{ufunc.__name__} of columns of different records. Compute both columns on the same dataset."
            )
        for value in inputs:
            if not isinstance(value, Column) and np.ndim(value):
                raise ValueError(
                    f"{ufunc.__name__} of a column and {np.shape(value)} other values: which record each of them "
                    "belongs to is not known. Calculate with numbers and columns, or with np.asarray(column)."
                )
        made = [
            calculate(ufunc, [v._values_by_node[number].values if isinstance(v, Column) else v for v in inputs])
            for number in range(len(self._values_by_node))
        ]
        results = [self._with_values(join_arrays(arrays, ufunc.__name__)) for arrays in zip(*made, strict=True)]
        return results[0] if ufunc.nout == 1 else tuple(results)

    @overload
    def __getitem__(self, field: str) -> Column: ...

    @overload
    def __getitem__(self, field: int) -> Any: ...

    def __getitem__(self, field: Any) -> Any:
        if isinstance(field, (int, np.integer)) and not isinstance(field, bool):
            return self._value_of_record(int(field))
        if not isinstance(field, str) or field not in (self.dtype.names or ()):
            fields = f"it has the fields {list(self.dtype.names)}" if self.dtype.names else "it has none"
            raise KeyError(
                f"column[{field!r}] takes the name of a field; {fields}. It also takes the number of a record. "
                "For all values use np.asarray(column)."
            )
        return self._with_values([node_values.values[field] for node_values in self._values_by_node])

    def _value_of_record(self, number: int) -> Any:
        length = len(self)
        if not -length <= number < length:
            raise IndexError(f"column[{number}]: the column has {length:,} values.")
        left = number % length
        for node_values in self._values_by_node:
            if left < len(node_values.values):
                return node_values.values[left]
            left -= len(node_values.values)
        raise AssertionError("unreachable")

    if not TYPE_CHECKING:  # so that a type checker still reports missing names

        def __getattr__(self, name: str) -> Any:
            """Explain a name that is missing. Python calls this only for missing names."""
            hints.raise_missing(self, "Column", name, hints.COLUMN)

    def __repr__(self) -> str:
        return f"Column({len(self):,} x {self.dtype})"

    def _with_values(self, arrays: Sequence[np.ndarray]) -> Column:
        return Column(
            tuple(
                NodeValues(node_values.node, array)
                for node_values, array in zip(self._values_by_node, arrays, strict=True)
            )
        )

    # How the values of a node's elements are found.

    def _reaches(self, node: MapNode) -> bool:
        """Return whether every element of `node` is made of one record with a value here."""
        if self._values_of(node) is not None:
            return True
        return node.one_to_one and all(map(self._reaches, node.parents))

    def _at(self, node: MapNode, indices: np.ndarray) -> np.ndarray:
        """Return the values of the elements of `node` at `indices`, in any epoch."""
        node_values = self._values_of(node)
        if node_values is not None:
            return node_values.values[epochs.narrowed(indices % len(node_values.values))]
        _, which, positions = node.made_of(indices)
        if len(node.parents) == 1:
            return self._at(node.parents[0], positions)
        values = np.zeros((len(indices), *self._values_by_node[0].values.shape[1:]), self.dtype)
        for number, parent in enumerate(node.parents):
            here = which == number
            if here.any():
                values[here] = self._at(parent, positions[here])
        return values

    def _of_epoch(self, node: MapNode, epoch: int) -> np.ndarray:
        """Return the values of one epoch of `node`, in its order."""
        length = node.length
        strides = [range(low, min(low + _STRIDE, length)) for low in range(0, length, _STRIDE)]
        first = epoch * length
        if not strides:
            return np.zeros((0, *self._values_by_node[0].values.shape[1:]), self.dtype)
        return np.concatenate([self._at(node, epochs.ranging(first + s.start, first + s.stop)) for s in strides])

    def _values_of(self, node: MapNode) -> NodeValues | None:
        return next((node_values for node_values in self._values_by_node if node_values.node is node), None)


@dataclasses.dataclass(frozen=True, eq=False)
class NoneMissing(Transparent):
    """The parent's elements. A missing one is an error, since a column could hold no value in its place."""

    moves = True

    def plan(self, indices: np.ndarray) -> Plan:
        return _NoneMissing(self, indices, self.parent.plan(indices))


@dataclasses.dataclass(slots=True)
class _NoneMissing(Plan):
    node: NoneMissing
    indices: np.ndarray
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        block = self.parent.read(low, high, private)
        missing = np.flatnonzero(np.logical_not(blocks.presence(block)))
        if not len(missing):
            return block
        row, index = int(missing[0]), int(self.indices[low + missing[0]])
        error = ValueError(
            f"A column has one value per element, and element {index} of {self.node.call()} is missing: it is None. "
            "Compute the column on a dataset where no element is missing, such as the one before the function that "
            "returned None."
        )
        raise RowFailed(row, locate_error(error, describe_failure("column", index, self.node.origins(index))))


@in_states("column_pieces")
@dataclasses.dataclass(frozen=True, eq=False)
class SortedValues(Batches):
    """The parent's elements, which are values of a column, in ranges: how many, and the values by their type."""

    size: int

    no_spec = "The values of a column have no type before all of them are known."

    def find_length(self) -> int:
        return -(-self.parent.length // self.size)

    @property
    def fan_in(self) -> int:
        return self.size * self.parent.fan_in

    @property
    def epochs(self) -> Epochs:
        return self.parent.epochs.after_cutting()

    def members_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        first, end = epochs.batched(indices, batch_size=self.size, length=self.length, parent_length=self.parent.length)
        return *epochs.ranges(first, epochs.narrowed(end - first)), range(len(indices))

    def make(self, block: Block, kind: int) -> tuple[int, SortedValuesOfRange]:
        if isinstance(block, Columns) and block.present is None:
            return len(block), sort_arrays(block.tree)
        rows = blocks.rows_of(block)
        return len(rows), sort_values(rows)

    def full_size(self, kind: int) -> int:
        return self.size

    @property
    def batch_function(self) -> None:
        return None

    def call(self) -> str:
        return f"values({self.size})"


def find_records(node: MapNode) -> list[tuple[MapNode, MapNode]]:
    """Return where a column of `node` is computed: pairs of (the node whose records have values, the node the values
    are of).

    The former are the nearest finite ancestors that are the same in every epoch. The latter are these with the maps
    after them, since a map makes the same of a record wherever the record stands.
    """
    if isinstance(node, (Seed, Repeat)):
        return find_records(node.parent)
    if node.length < INFINITE and _is_steady(node):
        if node.sparse:
            raise ValueError(
                f"A column has one value per element, and after {node.call()} elements may be missing. "
                "Compute it before the filter, or filter with `where`, which leaves none missing."
            )
        return [(node, node)]
    if isinstance(node, MapElements):
        pairs = find_records(node.parent)
        return [(record, dataclasses.replace(node, parent=mapped)) for record, mapped in pairs]
    if not node.moves:
        raise ValueError(_explain_refusal(node))
    by_record: dict[int, tuple[MapNode, MapNode]] = {}
    for record, mapped in (pair for parent in node.parents for pair in find_records(parent)):
        known = by_record.setdefault(id(record), (record, mapped))[1]
        if _maps_between(record, known) != _maps_between(record, mapped):
            raise ValueError(
                f"Elements of {record.call()} come to {node.call()} in several ways, through different maps, so there "
                "is no one value for each. Compute a column on each part, and use it before the parts are put together."
            )
    return list(by_record.values())


def _maps_between(record: MapNode, mapped: MapNode) -> list[Any]:
    """Return the functions of the maps that lead from a record to what its value is computed of."""
    functions = []
    while mapped is not record:
        assert isinstance(mapped, MapElements)
        functions.append(mapped.transform)
        mapped = mapped.parent
    return functions


def _explain_refusal(node: MapNode) -> str:
    if isinstance(node, CustomMap):
        return (
            f"{node.call()} is a dataset of your own, which may give other elements in every epoch. "
            "If it does not, wrap it: MapDataset.source(dataset) reads the same elements in every epoch."
        )
    if not node.pure:
        return (
            f"{node.call()} gives other elements in every epoch, so after it there is no one value per record. "
            "Compute the column before it."
        )
    return (
        f"{node.call()} is made of other records in every epoch, so there is no one value for each of its elements. "
        "Compute the column before it."
    )


def _is_steady(node: MapNode) -> bool:
    """Return whether the elements of `node` are the same in every epoch, also where they depend on chance or on
    indices.
    """
    if isinstance(node, Repeat) and not node.reseed_each_epoch:
        return True
    return node.pure and node.epochs is Epochs.SAME and all(map(_is_steady, node.parents))
