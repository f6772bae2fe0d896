"""Arrays of rows in memory that JAX owns, and the gather that reads some of their rows. One gather per array."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel._src.base import trees
from bushel._src.jit.pytree import Pytree, child, pytree_dataclass

Tree = Any

_PACKED_BYTES = (32, 3000)  # packing shorter or longer rows gains nothing


@pytree_dataclass
class Column(Pytree):
    """One array of rows. On CPU, small images of 8-bit and 16-bit numbers are stored as uint32."""

    stored: jax.Array = child()
    shape: tuple[int, ...] = ()
    dtype: Any = None

    def take(self, records: jax.Array) -> jax.Array:
        """Return the rows of these records."""
        rows = jnp.take(self.stored, records, axis=0, mode="clip")
        if rows.dtype == self.dtype:
            return rows
        return jax.lax.bitcast_convert_type(rows, self.dtype).reshape(len(records), *self.shape)


def make_columns(data: Tree) -> tuple[Tree, int]:
    """Check a tree of arrays; return it as a tree of columns, and the number of rows.

    Arrays of NumPy go to JAX's default device. Arrays of JAX stay where they are.
    """
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError(f"A source needs at least one array, got {trees.describe(data)}.")
    for leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(
                f"A source takes a tree of arrays, got {trees.describe(data)}. Write `np.array(...)` for numbers in a "
                "list, and `ds.batch(len(ds))[0]` for the elements of a MapDataset."
            )
        if not isinstance(leaf, jax.Array) and np.dtype(leaf.dtype).kind not in "biufcV":
            raise TypeError(f"A source takes arrays of numbers, got {trees.describe(data)}.")
    count = count_rows(data)
    return jax.tree.map(_make_column, data), count


def count_rows(data: Tree) -> int:
    """Return the number of rows, which must be the same for all arrays of `data`."""
    counts = {int(leaf.shape[0]) if getattr(leaf, "shape", ()) else -1 for leaf in jax.tree.leaves(data)}
    if len(counts) != 1 or -1 in counts:
        raise ValueError(f"All arrays of a source must have one row per record, got {trees.describe(data)}.")
    return counts.pop()


def _make_column(array: Any) -> Column:
    if not isinstance(array, jax.Array) or _is_elsewhere(array):
        array = _check_range(np.asarray(array))
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    packable = _is_faster_packed(array.shape[1:], array.dtype) and _is_on_cpu(array)
    shape, dtype = tuple(array.shape[1:]), jax.dtypes.canonicalize_dtype(array.dtype)
    if packable:
        if isinstance(array, np.ndarray):
            array = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint32)
        else:
            array = jax.lax.bitcast_convert_type(
                array.reshape(len(array), row_bytes // 4, 4 // array.dtype.itemsize), jnp.uint32
            )
    return Column(jnp.asarray(array), shape, dtype)


def _is_faster_packed(shape: tuple[int, ...], dtype: Any) -> bool:
    """Return whether XLA on CPU reads rows of this shape faster as words of 32 bits.

    It compiles loops over small images of 8-bit or 16-bit numbers badly: packed, 28 x 28 bytes take half the time. Rows
    of one axis, large rows, and rows whose words would span two pixels (as of 32 x 32 x 3) are up to four times slower.
    """
    if not isinstance(dtype, np.dtype) or dtype.kind not in "iuf" or dtype.itemsize >= 4:
        return False
    axes = [size for size in shape if size != 1]
    small = _PACKED_BYTES[0] <= dtype.itemsize * math.prod(axes) <= _PACKED_BYTES[1]
    return len(axes) > 1 and small and axes[-1] * dtype.itemsize % 4 == 0


def _check_range(array: np.ndarray) -> np.ndarray:
    """Return the array if JAX can hold its integers. Without its 64-bit types, JAX would cut them off silently."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and dtype != array.dtype and array.size:
        limits = np.iinfo(dtype)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise ValueError(
                f"JAX converts {array.dtype} to {dtype}, but numbers from {array.min()} to {array.max()} do not fit "
                f"{dtype}. Set jax_enable_x64, or make the numbers smaller."
            )
    return array


def _is_elsewhere(array: jax.Array) -> bool:
    """Return whether an array is on another device than JAX's default one, and not committed to that device.

    Every call of a compiled program would move such an array to the default device. So the column moves it once.
    """
    committed = array.committed if hasattr(array, "committed") else getattr(array, "_committed", True)
    return not committed and array.devices() != _get_default_devices()


def _is_on_cpu(array: Any) -> bool:
    devices = array.devices() if isinstance(array, jax.Array) else _get_default_devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def _get_default_devices() -> set[Any]:
    return jnp.zeros(()).devices()


def is_column(value: Any) -> bool:
    """Return whether a part of a tree is a column."""
    return isinstance(value, Column)


def get_row_spec(columns: Tree) -> Tree:
    """Return the shapes and dtypes of one row."""
    return jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape, column.dtype), columns, is_leaf=is_column)


def take_rows(columns: Tree, records: jax.Array) -> Tree:
    """Return the rows of these records, from all columns."""
    return jax.tree.map(lambda column: column.take(records), columns, is_leaf=is_column)
