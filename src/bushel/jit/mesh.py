"""Data spread over the devices of a mesh: each gives its own rows of a batch, and nothing goes between them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bushel.base import trees
from bushel.index import shuffle
from bushel.jit import words
from bushel.jit.arrays import Arrays, Column
from bushel.jit.nodes import child, node
from bushel.jit.order import TABLE_BELOW, Order, order_of
from bushel.jit.protocol import Address, Prepared, Tree
from bushel.jit.records import Records, Store

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:  # before JAX 0.6
    from jax.experimental.shard_map import shard_map

_APART = 0x9E3779B9
"""What lies between the seeds of two shards. Those of two epochs are 1 apart."""


@node
class TurnByTurn(Order):
    """Shards in turn, each in its own order: position p is the (p // shards)-th of shard p % shards.

    Shard k has the order of `.shuffle(seed=derived + k * 0x9E3779B9)` of its rows on the host, where `derived` is the
    seed of `.seed(s).shuffle()`.
    """

    length: int
    shards: int
    shuffled: bool

    @property
    def _rows(self) -> int:
        return self.length // self.shards

    def _seed(self, seed: Any, shard: Any) -> jax.Array:
        return words.derive(seed) + words.word(shard) * words.word(_APART)

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        if not self.shuffled or self._rows >= TABLE_BELOW:
            return None
        seeds = self._seed(seed, jnp.arange(self.shards))[None] + epoch + jnp.arange(span, dtype=jnp.uint32)[:, None]
        one = jax.lax.map(lambda each: shuffle.epoch_table(self._rows, each, jnp).astype(jnp.uint16), seeds.reshape(-1))
        return one.reshape(span, self.shards, self._rows)

    def records(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> jax.Array:
        shard, turn = position % self.shards, position // self.shards
        if not self.shuffled:
            row = turn.astype(jnp.int32)
        elif prepared.tables is None:
            row = shuffle.walk(turn, length=self._rows, seed=self._seed(seed, shard) + epoch, xp=jnp)
        else:
            row = prepared.tables[(epoch - prepared.first).astype(jnp.int32), shard, turn].astype(jnp.int32)
        return shard.astype(jnp.int32) * self._rows + row


@node
class ShardedArrays(Store):
    """Rows that lie on the devices of one axis of a mesh, as many on each; every device gathers its own."""

    columns: Tree = child()
    mesh: Mesh
    axis: str
    rows: int

    @property
    def groups(self) -> int:
        return self.mesh.shape[self.axis]

    def spec(self) -> Tree:
        return Arrays(self.columns).spec()

    def take(self, address: Address) -> Tree:
        def local(columns: Tree, records: jax.Array) -> Tree:
            return Arrays(columns).rows(records - jax.lax.axis_index(self.axis) * self.rows)

        over = PartitionSpec(self.axis)
        return shard_map(local, mesh=self.mesh, in_specs=(over, over), out_specs=over)(self.columns, address.record)


@node
class ScatteredArrays(Store):
    """Rows that lie on the devices of a mesh and go to any of them: batches mix all rows, devices exchange them."""

    columns: Tree = child()
    sharding: Any

    @property
    def groups(self) -> int:
        return 1

    def spec(self) -> Tree:
        return Arrays(self.columns).spec()

    def take(self, address: Address) -> Tree:
        rows = Arrays(self.columns).rows(address.record)
        return jax.lax.with_sharding_constraint(rows, self.sharding)


def ShardedSource(
    data: Tree, mesh: Mesh, axis: str = "data", ordering: str = "shuffle", *, exchange: bool = False
) -> Records:
    """Rows of arrays spread over the devices of one axis of a mesh. Batches are spread in the same way.

    Each device shuffles its own rows and gives its part of every batch, so that no data goes between devices. The size
    of a batch must be a multiple of the number of devices.

    Args:
      data: a tree of arrays; rows are spread evenly over the axis, if they are not already.
      exchange: shuffle all rows together instead, in the order of `.seed(s).shuffle()` on the host. Then devices
        send each other rows in every step.
    """
    if axis not in mesh.shape:
        raise ValueError(f"The mesh has the axes {list(mesh.shape)}, not {axis!r}.")
    shards = mesh.shape[axis]
    leaves = jax.tree.leaves(data)
    counts = {int(leaf.shape[0]) if getattr(leaf, "shape", ()) else -1 for leaf in leaves}
    if len(counts) != 1 or -1 in counts:
        raise ValueError(f"All arrays of a source have one row per record, got {trees.describe(data)}.")
    count = counts.pop()
    if count % shards:
        raise ValueError(
            f"{count} rows cannot be spread evenly over {shards} devices. Leave out the last {count % shards}, "
            "or add rows and tell them apart by a column of your own."
        )
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    columns = jax.tree.map(lambda leaf: _column(jax.device_put(leaf, sharding)), data)
    order = order_of(ordering, count)
    if exchange:
        return Records(ScatteredArrays(columns, sharding), order)
    return Records(
        ShardedArrays(columns, mesh, axis, count // shards), TurnByTurn(count, shards, ordering == "shuffle")
    )


def _column(array: jax.Array) -> Column:
    return Column(array, tuple(array.shape[1:]), array.dtype)
