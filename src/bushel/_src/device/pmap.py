"""Batches for `jax.pmap`: arrays with a leading axis, one entry for each device of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.datasets import global_arrays
from bushel._src.datasets.dataset import IterDataset, MapDataset
from bushel._src.datasets.iter_dataset import IterPipeline
from bushel._src.graph import streams
from bushel._src.graph.streams import StreamNode


@public("bushel.device")
def for_pmap(
    ds: MapDataset[Any] | IterDataset[Any],
    devices: Sequence[Any] | None = None,
    *,
    buffer_size: int = 2,
    remainder: Literal["drop", "pad"] | None = None,
) -> IterDataset[Any]:
    """The batches of a dataset for `jax.pmap`: a batch of n rows on d devices becomes arrays of shape (d, n / d, ...).

    With several processes all of them build the same pipeline, and n counts the rows of all processes together. Each
    process reads the rows of its own devices, as with `to_device`, and its arrays have one entry for each of them.

    Args:
      ds: batches, with as many rows as all devices can share equally.
      devices: the devices of all processes, in the order in which they take the rows; by default `jax.devices()`.
      buffer_size: how many batches wait on the devices, besides the one in use.
      remainder: what becomes of a last batch that is smaller: see `IterDataset.to_device`.

    >>> import jax, bushel
    >>> ds = bushel.MapDataset.range(6).batch(3)
    >>> [jax.pmap(lambda x: x + 1)(batch).tolist() for batch in bushel.device.for_pmap(ds, jax.devices()[:1])]
    [[[1, 2, 3]], [[4, 5, 6]]]
    """
    import jax

    stream = ds.to_iter_dataset() if isinstance(ds, MapDataset) else ds
    if not isinstance(stream, IterDataset):
        raise TypeError(f"for_pmap takes a MapDataset or an IterDataset, got {ds!r}.")
    mesh = jax.sharding.Mesh(np.array(jax.devices() if devices is None else list(devices)), ("device",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    rows = _LeadingAxis(global_arrays.rows_for(stream._node, where, remainder))
    checks.not_negative(buffer_size, "buffer_size")
    return IterPipeline(streams.ToDevice(stream._node, where, buffer_size, "raise", rows))


class _LeadingAxis:
    """The rows of this process as arrays with a leading axis, made out of global arrays that are cut by rows."""

    def __init__(self, rows: global_arrays.GlobalRows):
        self._rows = rows
        self.is_global = rows.is_global

    def restrict(self, stream: StreamNode) -> StreamNode:
        return self._rows.restrict(stream)

    def assemble(self, element: Any) -> Any:
        import jax

        return jax.tree.map(_split, self._rows.assemble(element))


def _split(array: Any) -> Any:
    """The pieces of a global array that are on the devices of this process, one beside the other."""
    import jax

    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    mesh = jax.sharding.Mesh(np.array([shard.device for shard in shards]), ("device",))
    where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    pieces = [shard.data[None] for shard in shards]
    return jax.make_array_from_single_device_arrays((len(pieces), *shards[0].data.shape), where, pieces)
