"""Sources over arrays that are already in memory, on the host's side of jit or on a device. One gather per leaf."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel.base import trees
from bushel.base.blocks import Columns
from bushel.jit.nodes import child, node
from bushel.jit.order import kept_by, mixed_by, order_of, weighted_by
from bushel.jit.protocol import Address, Tree
from bushel.jit.records import Records, Store

_PACKED_FROM = 32  # bytes of a row; packing shorter ones gains nothing


@node
class Column:
    """One array of rows. On CPU, rows of small numbers are stored as 32-bit words: XLA gathers those faster."""

    stored: jax.Array = child()
    shape: tuple[int, ...] = ()
    dtype: Any = None

    def take(self, records: jax.Array) -> jax.Array:
        """The rows of these records."""
        rows = jnp.take(self.stored, records, axis=0, mode="clip")
        if rows.dtype == self.dtype:
            return rows
        return jax.lax.bitcast_convert_type(rows, self.dtype).reshape(len(records), *self.shape)


def column(array: Any, *, device: Any = None) -> Column:
    """An array as a column, on `device` or where it is. NumPy's goes to JAX's default device."""
    if not isinstance(array, jax.Array) or _is_elsewhere(array):
        array = _in_range(np.asarray(array))
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    small = isinstance(array.dtype, np.dtype) and array.dtype.kind in "iuf" and array.dtype.itemsize < 4
    packable = small and row_bytes % 4 == 0 and row_bytes >= _PACKED_FROM and _on_cpu(array, device)
    shape, dtype = tuple(array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype)
    if packable:
        if isinstance(array, np.ndarray):
            array = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint32)
        else:
            array = jax.lax.bitcast_convert_type(
                array.reshape(len(array), row_bytes // 4, 4 // array.dtype.itemsize), jnp.uint32
            )
    stored = jax.device_put(array, device) if device is not None else jnp.asarray(array)
    return Column(stored, shape, dtype)


def _in_range(array: np.ndarray) -> np.ndarray:
    """An array whose whole numbers JAX can hold: without its 64-bit types it would cut them off without a word."""
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and held != array.dtype and array.size:
        limits = np.iinfo(held)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ValueError(
                f"Numbers from {array.min()} to {array.max()} do not fit {held}, which JAX makes of {array.dtype}. "
                "Enable jax_enable_x64, or make them smaller."
            )
    return array


def _is_elsewhere(array: jax.Array) -> bool:
    """Whether an array lies on another device than JAX's default one and is bound to none.

    A compiled program would move it to the default device in every call. So it goes there once, and now.
    """
    bound = getattr(array, "committed", True)
    return not bound and array.devices() != jnp.zeros(()).devices()


def _on_cpu(array: Any, device: Any) -> bool:
    if device is not None:
        return getattr(device, "platform", None) == "cpu"
    if isinstance(array, jax.Array):
        return len(array.devices()) == 1 and next(iter(array.devices())).platform == "cpu"
    return next(iter(jnp.zeros(()).devices())).platform == "cpu"  # where an array goes that nobody places


def columns(data: Tree, *, device: Any = None) -> tuple[Tree, int]:
    """A tree of arrays as a tree of columns, and how many rows they have."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError(f"A source needs at least one array, got {trees.describe(data)}.")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"A source takes a tree of arrays, got {trees.describe(data)}.")
        if not isinstance(leaf, jax.Array) and np.dtype(leaf.dtype).kind not in "biufcV":
            raise TypeError(f"A source takes arrays of numbers, got {trees.describe(data)}.")
    if any(not leaf.shape for leaf in leaves) or len({leaf.shape[0] for leaf in leaves}) != 1:
        raise ValueError(f"All arrays of a source have one row per record, got {trees.describe(data)}.")
    return jax.tree.map(lambda leaf: column(leaf, device=device), data), int(leaves[0].shape[0])


def is_column(value: Any) -> bool:
    """Whether a part of a tree is a column."""
    return isinstance(value, Column)


@node
class Arrays(Store):
    """Records that are rows of arrays."""

    columns: Tree = child()

    @property
    def groups(self) -> int:
        return 1

    def spec(self) -> Tree:
        return jax.tree.map(
            lambda column: jax.ShapeDtypeStruct(column.shape, column.dtype), self.columns, is_leaf=is_column
        )

    def take(self, address: Address) -> Tree:
        return self.rows(address.record)

    def rows(self, records: jax.Array) -> Tree:
        """The rows of these records."""
        return jax.tree.map(lambda column: column.take(records), self.columns, is_leaf=is_column)


def ArraySource(
    data: Tree,
    ordering: str = "shuffle",
    *,
    where: Any = None,
    weights: Any = None,
) -> Records:
    """Records that are rows of arrays, in sequence or shuffled.

    With `ordering="shuffle"` the order is that of `MapDataset.source(...).seed(s).shuffle()` on the host, in every
    epoch, for `init_state(s)`.

    Args:
      data: a tree of arrays with one row per record. They stay on their device; NumPy's go to the default one.
      where: one boolean per record: the others are left out.
      weights: one number per record: records are then drawn with replacement, as many as there are per epoch.

    >>> source = ArraySource({"x": np.arange(4) * 10}, ordering="sequential")
    >>> value, mask, state = source.next(source.init_state(0))
    >>> int(value["x"]), bool(mask)
    (0, True)
    """
    stored, length = columns(data)
    if weights is not None and where is not None:
        raise ValueError("Give where= or weights=, not both: a weight of zero leaves a record out.")
    if where is not None:
        return Records(Arrays(stored), kept_by(ordering, where, length))
    if weights is not None:
        return Records(Arrays(stored), weighted_by(weights, length))
    return Records(Arrays(stored), order_of(ordering, length))


def mix(sources: Sequence[Records], weights: Sequence[float] | None = None) -> Records:
    """Records of several array sources in proportion to `weights`, in the fixed pattern of `MapDataset.mix`.

    The arrays are put together once, so that a batch is still one gather per leaf. An epoch ends when the first
    source has been used up; in the next, each goes on where it was, shuffled anew when it begins again.

    >>> ones, tens = (ArraySource(np.arange(1, 5) * k, "sequential") for k in (1, 10))
    >>> mixed = mix([ones, tens], [1, 1])
    >>> state = mixed.init_state()
    >>> for _ in range(4):
    ...     value, _, state = mixed.next(state)
    ...     print(value)
    1
    10
    2
    20
    """
    sources = list(sources)
    if not sources or not all(isinstance(source, Records) and isinstance(source.store, Arrays) for source in sources):
        raise TypeError(f"mix takes array sources, got {[type(source).__name__ for source in sources]}.")
    specs = [source.element_spec() for source in sources]
    for number, spec in enumerate(specs):
        if jax.tree.structure(spec) != jax.tree.structure(specs[0]) or jax.tree.leaves(spec) != jax.tree.leaves(
            specs[0]
        ):
            raise ValueError(
                f"Sources of a mixture have elements of one kind, but source 0 has {trees.describe(specs[0])} and "
                f"source {number} has {trees.describe(spec)}."
            )
    sizes = [len(jax.tree.leaves(source.store.columns)[0]) for source in sources]
    offsets = [sum(sizes[:number]) for number in range(len(sizes))]
    order = mixed_by([source.order for source in sources], offsets, weights)
    whole = jax.tree.map(
        lambda *parts: dataclasses.replace(parts[0], stored=jnp.concatenate([part.stored for part in parts])),
        *(source.store.columns for source in sources),
        is_leaf=is_column,
    )
    return Records(Arrays(whole), order)


def dataset_to_jax(dataset: Any, storage_device: Any = "cpu") -> Tree:
    """All elements of a data set, stacked into arrays that JAX owns.

    Args:
      dataset: anything with `__len__` and `__getitem__`; one that has `take` (as `bushel.MapDataset`) or `arrays`
        is read at once.
      storage_device: "cpu" for the host's memory, a `jax.Device`, or None for JAX's default device.

    >>> dataset_to_jax([{"x": 1, "y": 2.0}, {"x": 3, "y": 4.0}])["x"].tolist()
    [1, 3]
    """
    device = jax.devices(storage_device)[0] if isinstance(storage_device, str) else storage_device
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"dataset_to_jax takes a data set with __len__ and __getitem__, got {type(dataset).__name__}.")
    if len(dataset) == 0:
        raise ValueError("dataset_to_jax needs at least one element, got an empty data set.")
    if hasattr(dataset, "arrays"):
        stacked = dataset.arrays()
    else:
        stacked = stack_rows(
            dataset.take(range(len(dataset))) if hasattr(dataset, "take") else [dataset[i] for i in range(len(dataset))]
        )
    with jax.default_device(device):
        return jax.tree.map(jnp.asarray, stacked)


def stack_rows(block: Any) -> Tree:
    """A block of a host data set as one tree of arrays: its columns, or its rows stacked."""
    if isinstance(block, Columns):
        if block.present is None:
            return block.tree
        block = block.rows()
    first = block[0]
    for number, row in enumerate(block):
        if row is None or jax.tree.structure(row) != jax.tree.structure(first):
            raise ValueError(
                f"Elements must be of one kind to be stacked: element 0 is {trees.describe(first)}, element {number} "
                f"is {trees.describe(row)}."
            )
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(row), strict=True):
            if np.shape(a) != np.shape(b):
                raise ValueError(
                    f"Elements must have one shape to be stacked: element 0 is {trees.describe(first)}, element "
                    f"{number} is {trees.describe(row)}."
                )
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *block)
