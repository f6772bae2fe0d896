"""`ShardedSource`: rows distributed over the devices of a mesh. Each device gathers its own rows of a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bushel.index import shuffle
from bushel.jit.device_columns import Column, count_rows, get_row_spec, take_rows
from bushel.jit.pytree import child, pytree_dataclass, set_attributes
from bushel.jit.record_order import TABLE_BELOW, Ordering, RecordOrder, compute_permutations, make_order
from bushel.jit.record_source import RecordSource
from bushel.jit.source import Address, EpochTables, Tree
from bushel.jit.uint32 import derive_seed, to_uint32

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:  # before JAX 0.6
    from jax.experimental.shard_map import shard_map

_SEED_STEP = 0x9E3779B9
"""The difference between the seeds of two shards. It is large, because the seeds of two epochs differ by 1."""


@pytree_dataclass
class RoundRobin(RecordOrder):
    """The shards take turns, each in its own order: position p is element p // shards of shard p % shards.

    Shard k has the order of `.shuffle(seed=derived + k * 0x9E3779B9)` over its own rows on the host, where `derived` is
    the seed that `.seed(s).shuffle()` uses.
    """

    length: int
    shuffled: bool
    shards: int = 1

    @property
    def _shard_length(self) -> int:
        return self.length // self.shards

    def _derive_shard_seed(self, seed: Any, shard: Any) -> jax.Array:
        return derive_seed(seed) + to_uint32(shard) * to_uint32(_SEED_STEP)

    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        if not self.shuffled or self._shard_length >= TABLE_BELOW:
            return None
        shard_seeds = self._derive_shard_seed(seed, jnp.arange(self.shards))
        seeds = shard_seeds[None] + epoch + jnp.arange(count, dtype=jnp.uint32)[:, None]
        tables = compute_permutations(self._shard_length, seeds.reshape(-1))
        return tables.reshape(count, self.shards, self._shard_length)

    def find_records(self, seed: Any, tables: EpochTables, epoch: Any, position: Any) -> jax.Array:
        shard, turn = position % self.shards, position // self.shards
        if not self.shuffled:
            row = turn.astype(jnp.int32)
        elif tables.tables is None:
            shard_seed = self._derive_shard_seed(seed, shard) + epoch
            row = shuffle.walk(turn, length=self._shard_length, seed=shard_seed, xp=jnp)
        else:
            row = tables.tables[(epoch - tables.first).astype(jnp.int32), shard, turn].astype(jnp.int32)
        return shard.astype(jnp.int32) * self._shard_length + row


@pytree_dataclass
class ShardedSource(RecordSource):
    """Rows of arrays, distributed over the devices of one axis of a mesh. Batches are distributed in the same way.

    Each device shuffles its own rows and gathers its own part of every batch, so devices send no data to each other.
    The batch size must be a multiple of the number of devices.

    Args:
      data: a tree of arrays. Their rows are distributed evenly over the axis, unless they already are.
      mesh: the devices.
      axis: the name of the mesh's axis.
      ordering: "shuffle" or "sequential".
      exchange: shuffle all rows together, in the order of `.seed(s).shuffle()` on the host. Devices then send rows to
        each other in every step.
    """

    columns: Tree = child()
    order: RecordOrder = child()
    mesh: Mesh
    axis: str
    exchange: bool

    def __init__(
        self, data: Tree, mesh: Mesh, axis: str = "data", ordering: Ordering = "shuffle", *, exchange: bool = False
    ):
        if axis not in mesh.shape:
            raise ValueError(f"The mesh has the axes {list(mesh.shape)}, not {axis!r}.")
        shards, count = mesh.shape[axis], count_rows(data)
        if count % shards:
            raise ValueError(
                f"{count} rows cannot be distributed evenly over {shards} devices. Leave out the last "
                f"{count % shards}, or add rows, and mark them in a column of your own."
            )
        order = make_order(ordering, count)
        sharding = NamedSharding(mesh, PartitionSpec(axis))
        set_attributes(
            self,
            columns=jax.tree.map(lambda leaf: _put_column(leaf, sharding), data),
            order=order if exchange else RoundRobin(count, ordering == "shuffle", shards),
            mesh=mesh,
            axis=axis,
            exchange=exchange,
        )

    def _get_record_spec(self) -> Tree:
        return get_row_spec(self.columns)

    def _read_records(self, address: Address) -> Tree:
        over = PartitionSpec(self.axis)
        if self.exchange:
            rows = take_rows(self.columns, address.record)
            return jax.lax.with_sharding_constraint(rows, NamedSharding(self.mesh, over))

        def take_own_rows(columns: Tree, records: jax.Array) -> Tree:
            first = jax.lax.axis_index(self.axis) * (self.length // self.shards)
            return take_rows(columns, records - first)

        gather = shard_map(take_own_rows, mesh=self.mesh, in_specs=(over, over), out_specs=over)
        return gather(self.columns, address.record)


def _put_column(array: Any, sharding: NamedSharding) -> Column:
    array = jax.device_put(array, sharding)
    return Column(array, tuple(array.shape[1:]), array.dtype)
