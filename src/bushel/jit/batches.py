"""Batches: several elements of a source as one, by arithmetic where the source is indexed, by a scan where not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bushel.jit import words
from bushel.jit.nodes import child, node
from bushel.jit.protocol import Address, Indexed, Prepared, Tree, stacked_spec


def batches_per_epoch(length: int, size: int, remainder: str) -> int:
    """How many batches an epoch of `length` elements has.

    >>> [batches_per_epoch(10, 4, remainder) for remainder in ("pad", "drop", "wrap")]
    [3, 2, 3]
    """
    return length // size if remainder == "drop" else -(-length // size)


@node
class Batches(Indexed):
    """Batches of an indexed source."""

    inner: Any = child()
    size: int = 0
    remainder: str = "wrap"

    @property
    def length(self) -> int:
        return batches_per_epoch(self.inner.length, self.size, self.remainder)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.inner.shape)

    def specs(self) -> tuple[Tree, Any]:
        return stacked_spec(self.inner.specs(), self.size)

    def span(self, count: int) -> int:
        if self._wraps:
            return self.inner.span(count * self.size)
        epochs = words.epochs_touched(count, self.length)
        return epochs if self.inner.span(1) == 1 else self.inner.span(epochs * self.inner.length)

    def first_epoch(self, epoch: Any, position: Any) -> Any:
        return self.inner.first_epoch(*self._start(epoch, position))

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        return self.inner.tables(seed, epoch, span)

    def locate(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> Address:
        address = self._located(seed, prepared, epoch, position)
        if self.groups == 1:
            return address
        front = jnp.shape(position)
        return Address(
            *(
                jnp.swapaxes(part.reshape(*front, self.size // self.groups, self.groups), -1, -2).reshape(part.shape)
                for part in address
            )
        )

    def _located(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> Address:
        own_epoch, start = self._start(epoch, position)
        positions = start[..., None] + jnp.arange(self.size, dtype=jnp.uint32)
        length = self.inner.length
        if self._wraps:
            turns = positions // length
            return self.inner.locate(seed, prepared, own_epoch[..., None] + turns, positions - turns * length)
        inside = positions < length
        # One epoch for the whole batch: its keys are computed once, not once per row.
        address = self.inner.locate(
            seed, prepared, own_epoch[..., None], jnp.where(inside, positions, 0) if self._pads else positions
        )
        if not self._pads:
            return address
        extra = address.valid.ndim - inside.ndim
        return address._replace(valid=address.valid & inside.reshape(*inside.shape, *(1,) * extra))

    def _start(self, epoch: Any, position: Any) -> tuple[Any, Any]:
        """Epoch and position of the first element of a batch."""
        epoch, position = words.word(epoch), words.word(position)
        if not self._wraps:
            return epoch, position * self.size
        first_epoch, start = words.multiply_divide(
            epoch, self.length * self.size, self.inner.length, plus=position * self.size
        )
        return first_epoch, start

    @property
    def _wraps(self) -> bool:
        return self.remainder == "wrap" and self.inner.length % self.size != 0

    @property
    def _pads(self) -> bool:
        return self.remainder == "pad" and self.inner.length % self.size != 0

    def element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner.elements(address)
        return (zeroed(value, mask) if self._pads else value), mask

    def elements(self, address: Address) -> tuple[Tree, jax.Array]:
        count = address.record.shape[0]
        flat = address.reshaped(count * self.size, *address.record.shape[2:])
        value, mask = self.inner.elements(flat)
        value = zeroed(value, mask) if self._pads else value
        return jax.tree.map(lambda leaf: leaf.reshape(count, self.size, *leaf.shape[1:]), (value, mask))

    @property
    def groups(self) -> int:
        return self.inner.groups

    def batched(self, size: int, remainder: str) -> Batches:
        if self.groups > 1:
            raise ValueError("Batches of a sharded source cannot be batched again. Use one BatchTransform.")
        return batches_of(self, size, remainder)


def batches_of(inner: Indexed, size: int, remainder: str) -> Batches:
    """Batches of an indexed source, once it is clear that its shards can share them."""
    if size % inner.groups:
        raise ValueError(f"batch_size must be a multiple of the {inner.groups} shards of the data, got {size}.")
    return Batches(inner, size, remainder)


def zeroed(value: Tree, mask: jax.Array) -> Tree:
    """`value` with zeros in the rows of padding."""
    present = mask.reshape(mask.shape[0], -1).any(axis=1)

    def one(leaf: jax.Array) -> jax.Array:
        return jnp.where(present.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))

    return jax.tree.map(one, value)


@node
class BatchedStream:
    """Batches of a source that can only go on: one element after the other."""

    inner: Any = child()
    size: int = 0
    remainder: str = "wrap"

    @property
    def steps_per_epoch(self) -> int:
        return batches_per_epoch(self.inner.steps_per_epoch, self.size, self.remainder)

    def element_spec(self) -> Tree:
        return stacked_spec(self.inner.element_spec(), self.size)

    def init_state(self, key: Any = None) -> tuple[Any, jax.Array]:
        return self.inner.init_state(key), jnp.int32(0)

    def next(self, state: tuple[Any, jax.Array]) -> tuple[Tree, jax.Array, tuple[Any, jax.Array]]:
        inner_state, step = state
        length, size = self.inner.steps_per_epoch, self.size
        left = length - step * size if self.remainder != "wrap" else jnp.int32(size)

        def pull(inner_state: Any, row: jax.Array) -> tuple[Any, tuple[Tree, jax.Array]]:
            if self.remainder != "pad" or length % size == 0:
                value, mask, inner_state = self.inner.next(inner_state)
                return inner_state, (value, mask)
            return jax.lax.cond(row < left, self._real, self._padding, inner_state)

        inner_state, (value, mask) = jax.lax.scan(pull, inner_state, jnp.arange(size))
        step = (step + 1) % self.steps_per_epoch
        if self.remainder == "drop" and length % size:
            inner_state = jax.lax.cond(step == 0, self._without_the_rest, lambda state: state, inner_state)
        return value, mask, (inner_state, step)

    def _real(self, inner_state: Any) -> tuple[Any, tuple[Tree, jax.Array]]:
        value, mask, inner_state = self.inner.next(inner_state)
        return inner_state, (value, mask)

    def _padding(self, inner_state: Any) -> tuple[Any, tuple[Tree, jax.Array]]:
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(self._real, inner_state))
        return inner_state, blank[1]

    def _without_the_rest(self, inner_state: Any) -> Any:
        rest = self.inner.steps_per_epoch % self.size
        return jax.lax.fori_loop(0, rest, lambda _, state: self.inner.next(state)[2], inner_state)
