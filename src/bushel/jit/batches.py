"""Batches of a source: located by arithmetic if the source is indexed, else collected one element after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bushel.jit.pytree import Pytree, child, pytree_dataclass
from bushel.jit.source import Address, EpochTables, IndexedSource, Source, Tree, find_specs, stack_spec
from bushel.jit.uint32 import count_epochs, multiply_divide, to_uint32


def count_batches(length: int, size: int, remainder: str) -> int:
    """Return the number of batches in an epoch of `length` elements.

    >>> [count_batches(10, 4, remainder) for remainder in ("pad", "drop", "wrap")]
    [3, 2, 3]
    """
    return length // size if remainder == "drop" else -(-length // size)


def make_batches(inner: Source, size: int, remainder: str) -> Source:
    """Return batches of any source. For `remainder` see `BatchTransform`."""
    if not isinstance(inner, IndexedSource):
        return BatchedStream(inner, size, remainder)
    if inner.shards > 1 and inner.shape:
        raise ValueError("Batches of a sharded source cannot be batched again. Use one BatchTransform.")
    if size % inner.shards:
        raise ValueError(f"batch_size must be a multiple of the {inner.shards} shards of the data, got {size}.")
    return BatchedSource(inner, size, remainder)


@pytree_dataclass
class BatchedSource(IndexedSource):
    """Batches of an indexed source."""

    inner: IndexedSource = child()
    size: int
    remainder: str

    @property
    def length(self) -> int:
        return count_batches(self.inner.length, self.size, self.remainder)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.inner.shape)

    @property
    def shards(self) -> int:
        return self.inner.shards

    @property
    def depth(self) -> int:
        return 1 + self.inner.depth

    def _get_specs(self) -> tuple[Tree, Any]:
        return stack_spec(self.inner._get_specs(), self.size)

    def _count_record_epochs(self, count: int) -> int:
        if self._wraps:
            return self.inner._count_record_epochs(count * self.size)
        epochs = count_epochs(count, self.length)
        if self.inner._count_record_epochs(1) == 1:
            return epochs
        return self.inner._count_record_epochs(epochs * self.inner.length)

    def _find_record_epoch(self, epoch: Any, position: Any) -> Any:
        return self.inner._find_record_epoch(*self._find_start(epoch, position))

    def _compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return self.inner._compute_tables(seed, epoch, count)

    def _locate(self, seed: Any, tables: EpochTables, epoch: Any, position: Any) -> Address:
        address = self._locate_rows(seed, tables, epoch, position)
        if self.shards == 1:
            return address
        # The order goes from shard to shard, but each device needs its rows side by side in the batch.
        grid = (*jnp.shape(position), self.size // self.shards, self.shards)
        return Address(*(jnp.swapaxes(part.reshape(grid), -1, -2).reshape(part.shape) for part in address))

    def _locate_rows(self, seed: Any, tables: EpochTables, epoch: Any, position: Any) -> Address:
        first_epoch, start = self._find_start(epoch, position)
        positions = start[..., None] + jnp.arange(self.size, dtype=jnp.uint32)
        length = self.inner.length
        if self._wraps:
            turns = positions // length
            return self.inner._locate(seed, tables, first_epoch[..., None] + turns, positions - turns * length)
        inside = positions < length
        # `first_epoch` has one entry for the whole batch, so its seed is derived once and not once per row.
        address = self.inner._locate(
            seed, tables, first_epoch[..., None], jnp.where(inside, positions, 0) if self._pads else positions
        )
        if not self._pads:
            return address
        extra = address.valid.ndim - inside.ndim
        return address._replace(valid=address.valid & inside.reshape(*inside.shape, *(1,) * extra))

    def _find_start(self, epoch: Any, position: Any) -> tuple[Any, Any]:
        """Return the epoch and the position of the first element of a batch."""
        epoch, position = to_uint32(epoch), to_uint32(position)
        if not self._wraps:
            return epoch, position * self.size
        return multiply_divide(epoch, self.length * self.size, self.inner.length, plus=position * self.size)

    @property
    def _wraps(self) -> bool:
        return self.remainder == "wrap" and self.inner.length % self.size != 0

    @property
    def _pads(self) -> bool:
        return self.remainder == "pad" and self.inner.length % self.size != 0

    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner._read_elements(address)
        return (zero_padding(value, mask) if self._pads else value), mask

    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        count = address.record.shape[0]
        rows = address.reshape(count * self.size, *address.record.shape[2:])
        return jax.tree.map(lambda leaf: leaf.reshape(count, self.size, *leaf.shape[1:]), self._read_element(rows))


def zero_padding(value: Tree, mask: jax.Array) -> Tree:
    """Return `value` with zeros in the rows that are padding."""
    present = mask.reshape(mask.shape[0], -1).any(axis=1)

    def zero(leaf: jax.Array) -> jax.Array:
        return jnp.where(present.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))

    return jax.tree.map(zero, value)


@pytree_dataclass
class BatchedStream(Pytree):
    """Batches of a source that can only be read in order. Their mask has one entry per element, as cyreal's.

    It is False for an element that has False anywhere in its own mask.
    """

    inner: Any = child()
    size: int
    remainder: str

    @property
    def steps_per_epoch(self) -> int:
        return count_batches(self.inner.steps_per_epoch, self.size, self.remainder)

    def element_spec(self) -> Tree:
        return stack_spec(self.inner.element_spec(), self.size)

    def init_state(self, key: Any = None) -> tuple[Any, jax.Array]:
        return self.inner.init_state(key), jnp.int32(0)

    def next(self, state: tuple[Any, jax.Array]) -> tuple[Tree, jax.Array, tuple[Any, jax.Array]]:
        inner_state, step = state
        length, size = self.inner.steps_per_epoch, self.size
        left = length - step * size if self.remainder != "wrap" else jnp.int32(size)

        def pull(inner_state: Any, row: jax.Array) -> tuple[Any, tuple[Tree, jax.Array]]:
            if self.remainder != "pad" or length % size == 0:
                return self._pull_element(inner_state)
            return jax.lax.cond(row < left, self._pull_element, self._make_padding, inner_state)

        inner_state, (value, mask) = jax.lax.scan(pull, inner_state, jnp.arange(size))
        step = (step + 1) % self.steps_per_epoch
        if self.remainder == "drop" and length % size:
            inner_state = jax.lax.cond(step == 0, self._skip_remainder, lambda state: state, inner_state)
        return value, mask, (inner_state, step)

    def _pull_element(self, inner_state: Any) -> tuple[Any, tuple[Tree, jax.Array]]:
        value, mask, inner_state = self.inner.next(inner_state)
        return inner_state, (value, jnp.asarray(mask).all())

    def _get_specs(self) -> tuple[Tree, Any]:
        value, mask = find_specs(self.inner)
        return stack_spec((value, jax.ShapeDtypeStruct((), mask.dtype)), self.size)

    def _make_padding(self, inner_state: Any) -> tuple[Any, tuple[Tree, jax.Array]]:
        _, element = jax.eval_shape(self._pull_element, inner_state)
        return inner_state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), element)

    def _skip_remainder(self, inner_state: Any) -> Any:
        count = self.inner.steps_per_epoch % self.size
        return jax.lax.fori_loop(0, count, lambda _, state: self.inner.next(state)[2], inner_state)
