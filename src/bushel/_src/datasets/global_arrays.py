"""Global `jax.Array`s out of batches that several processes read together: each reads the rows of its own devices.

Which rows these are follows from the sharding. The pipelines that read only these rows are in `graph/local_rows.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import numpy as np

from bushel._src.base import checks, trees
from bushel._src.engine import transfer
from bushel._src.graph import local_rows
from bushel._src.graph.local_rows import Remainder, RowChoice
from bushel._src.graph.streams import StreamNode
from bushel._src.index import epochs
from bushel._src.index.epochs import DeviceRows

logger = logging.getLogger("bushel")


def spans_processes(where: Any) -> bool:
    """Return whether a sharding, or one in a tree of shardings, has devices of other processes."""
    return any(not sharding.is_fully_addressable for sharding in _shardings(where))


def _as_shardings(where: Any) -> Any:
    """Return what `to_device` takes, with a sharding in the place of each device; None is JAX's default device."""
    import jax

    def as_sharding(part: Any) -> Any:
        if isinstance(part, jax.sharding.Sharding):
            return part
        return jax.sharding.SingleDeviceSharding(transfer.find_devices(part)[0])

    return jax.tree.map(as_sharding, where, is_leaf=lambda part: part is None)


def _shardings(where: Any) -> list[Any]:
    import jax

    return [leaf for leaf in jax.tree.leaves(where) if isinstance(leaf, jax.sharding.Sharding)]


def rows_for(stream: StreamNode, where: Any, remainder: Remainder | None = None) -> GlobalRows:
    """Return what this process has to read of a pipeline's batches, and how that becomes global arrays.

    Args:
      stream: the whole pipeline, the same on all processes.
      where: a sharding or a device, or a tree of them like the upper part of an element.
      remainder: what becomes of a last batch that is smaller: "drop" leaves it out, "pad" fills it up.
    """
    if remainder is not None:
        checks.choice(remainder, ("drop", "pad"), "remainder")
    is_global, where = spans_processes(where), _as_shardings(where)
    choice = RowChoice(tuple(dict.fromkeys(map(device_rows_of, _shardings(where)))), remainder)
    _check_sizes(stream, choice)
    whole = local_rows.restrict_rows(stream, choice) is None
    if whole and is_global and choice.multiple > 1:
        logger.warning(
            "Every process computes whole batches and keeps the rows of its own devices, because of %s. To compute "
            "only these rows, use random access and let the pipeline end in `batch`: a `map` goes before it, with "
            "vectorized=True if its function takes arrays of many rows.",
            local_rows.find_obstacle(stream).call(),
        )
    return GlobalRows(where, choice, is_global=is_global, whole=whole)


def device_rows_of(sharding: Any, devices: Collection[Any] | None = None) -> DeviceRows:
    """Return the shards of the first axis that some devices hold; by default those of this process."""
    import jax

    devices = sharding.addressable_devices if devices is None else devices
    if not devices:
        raise ValueError(
            f"Process {jax.process_index()} has no device of {sharding}. Every process that reads batches needs one: "
            "build the mesh with devices of all processes."
        )
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return DeviceRows(1, (0,))
    rows = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*sharding.spec[:1]))
    # Cut as many rows as there are shards: each device then has one row, the number of its shard.
    count = _count_shards(rows)
    cut = rows.devices_indices_map((count,)).items()
    shards = {index[0].start or 0 for device, index in cut if device in devices}
    return DeviceRows(count, tuple(sorted(shards)))


def _count_shards(sharding: Any) -> int:
    """Into how many shards a NamedSharding cuts the first axis."""
    names = sharding.spec[0] if len(sharding.spec) else None
    names = () if names is None else names if isinstance(names, tuple) else (names,)
    return int(np.prod([sharding.mesh.shape[name] for name in names], dtype=np.int64))


def _check_sizes(stream: StreamNode, choice: RowChoice) -> None:
    """Raise where it is clear from the start that a batch cannot be cut, and not only after an epoch."""
    for batch in local_rows.find_batches(stream):
        if choice.remainder != "pad" and batch.batch_size % choice.multiple:
            raise ValueError(
                f"{batch.call()} cannot be cut into {choice.multiple} equal parts, as the sharding asks. Choose a "
                f'batch size that {choice.multiple} divides, or pass remainder="pad".'
            )
        tail = local_rows.tail_of(batch)
        if choice.remainder is None and tail and tail % choice.multiple and local_rows.keeps_all_batches(stream):
            raise ValueError(_explain_tail(tail, choice.multiple, f"The last batch of {batch.call()}"))


def _explain_tail(size: int, multiple: int, what: str) -> str:
    return (
        f"{what} has {size} rows, which cannot be cut into {multiple} equal parts, as the sharding asks. Pass "
        'remainder="drop" to leave such a batch out, or remainder="pad" to fill it up and to get pairs (batch, mask).'
    )


class GlobalRows:
    """The rows of each batch that this process reads, and the global arrays that they become.

    Args:
      where: a sharding, or a tree of them.
      choice: which rows of a batch this process needs.
      is_global: whether several processes read the same batches together.
      whole: whether this process computes all rows of a batch, and then takes those that it needs.
    """

    def __init__(self, where: Any, choice: RowChoice, *, is_global: bool, whole: bool):
        self.is_global = is_global
        self._where, self._choice, self._whole = where, choice, whole
        self._sized = not whole or choice.remainder is not None
        """Whether elements are pairs of a batch and its sizes."""
        self._rows: dict[int, np.ndarray] = {}

    def restrict(self, stream: StreamNode) -> StreamNode:
        """Return the pipeline that this process runs. Its elements are for `assemble`."""
        if not self._whole:
            local = local_rows.restrict_rows(stream, self._choice)
            assert local is not None
            return local
        return local_rows.measure_batches(stream, self._choice) if self._sized else stream

    def assemble(self, element: Any) -> Any:
        """Return an element of that pipeline as global arrays; with padding, the pair of it and its mask.

        It starts copies to the devices of this process, and waits for no other process.
        """
        import jax

        size, total = 0, None
        if self._sized:
            element, sizes = element
            size, total = sizes.tolist()
            if total % self._choice.multiple:
                raise ValueError(_explain_tail(total, self._choice.multiple, "A batch"))
        leaves, structure = jax.tree.flatten(element)
        shardings = self._shardings_of(element, len(leaves))
        arrays = [_check_leaf(leaf, number, element) for number, leaf in enumerate(leaves)]
        there = structure.unflatten(
            [self._assemble(array, where, total) for array, where in zip(arrays, shardings, strict=True)]
        )
        if self._choice.remainder != "pad":
            return there
        assert total is not None
        return there, self._assemble(self._mask(size, total), self._mask_sharding(), total)

    def _shardings_of(self, element: Any, count: int) -> list[Any]:
        import jax

        if isinstance(self._where, jax.sharding.Sharding):
            return [self._where] * count
        return jax.tree.leaves(jax.tree.broadcast(self._where, element))

    def _mask(self, size: int, total: int) -> np.ndarray:
        rows = np.arange(total) if self._whole else self._local_rows(total)
        return rows < size

    def _mask_sharding(self) -> Any:
        """The mask is cut as the rows of the first sharding are."""
        import jax

        first = _shardings(self._where)[0]
        if not isinstance(first, jax.sharding.NamedSharding):
            return first
        return jax.sharding.NamedSharding(first.mesh, jax.sharding.PartitionSpec(*first.spec[:1]))

    def _local_rows(self, total: int) -> np.ndarray:
        rows = self._rows.get(total)
        if rows is None:
            rows = self._rows[total] = epochs.union_of_rows(self._choice.device_rows, total)
        return rows

    def _assemble(self, array: np.ndarray, sharding: Any, total: int | None) -> Any:
        """Return the global array of one leaf. Each device of this process gets its rows, of those that are here."""
        import jax

        shape = array.shape if self._whole or total is None else (total, *array.shape[1:])
        rows = None if len(array.shape) == 0 or len(array) == shape[0] else self._local_rows(shape[0])

        def find_rows(index: Any) -> np.ndarray:
            if rows is None:  # all rows are here
                return array[index]
            low, high, _ = index[0].indices(shape[0])
            return array[(epochs.slice_of(rows, low, high), *index[1:])]

        try:
            return jax.make_array_from_callback(shape, sharding, find_rows)
        except ValueError as error:
            raise ValueError(f"An array of shape {shape} does not fit {sharding}: {error}") from None


def _check_leaf(leaf: Any, number: int, element: Any) -> np.ndarray:
    """Return the leaf as an array of numbers. Raise TypeError, with its name, where JAX cannot hold it."""
    if transfer.fits_in_jax(leaf):
        return leaf if type(leaf) is np.ndarray else np.asarray(leaf)
    import jax

    path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(element)[0][number][0])
    raise TypeError(
        f"{path or 'The element'} is {trees.describe(leaf)}, which JAX cannot hold, so it cannot be part of a global "
        "array. Remove it with a `map` before `batch`, or turn it into numbers there."
    )
