"""What a source is: the protocol that anyone may implement, and sources that are a function of a position.

How positions become records is in order.py; how records become arrays in arrays.py.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from bushel.jit import words
from bushel.jit.nodes import child, node

Tree = Any


@runtime_checkable
class Source(Protocol):
    """Anything that gives one element after the other, inside `jax.jit`. Implement this for a source of your own.

    `next` returns the element, a mask that is False where it is padding, and the state after it. The state is any
    pytree. An object that is no pytree itself is taken as a constant of the compiled program; register it as a
    pytree if it holds large arrays.

    >>> class Countdown:
    ...     steps_per_epoch = 3
    ...     def init_state(self, key=None):
    ...         return jnp.int32(3)
    ...     def next(self, state):
    ...         return state, jnp.bool_(True), jnp.where(state == 1, 3, state - 1)
    ...     def element_spec(self):
    ...         return jax.ShapeDtypeStruct((), jnp.int32)
    >>> isinstance(Countdown(), Source)
    True
    """

    @property
    def steps_per_epoch(self) -> int:
        """How many elements make an epoch."""
        ...

    def init_state(self, key: Any = None) -> Any:
        """The state before the first element."""
        ...

    def next(self, state: Any) -> tuple[Tree, jax.Array, Any]:
        """The next element, its mask, and the state after it."""
        ...

    def element_spec(self) -> Tree:
        """Shapes and dtypes of an element, as `jax.ShapeDtypeStruct`."""
        ...


class Address(NamedTuple):
    """Which records make up elements: arrays of one shape, however elements are nested."""

    seed: jax.Array
    epoch: jax.Array
    position: jax.Array
    record: jax.Array
    valid: jax.Array

    def reshaped(self, *shape: int) -> Address:
        return Address(*(part.reshape(shape) for part in self))


class Prepared(NamedTuple):
    """What an order has computed for some epochs, from `first` on. Derived, never part of a checkpoint."""

    first: Any
    tables: Any


@node
class Position:
    """The state of an indexed source: a few words, whatever the length of the data.

    `prepared` holds permutations of short data (below 2**15 elements), where looking one up is cheaper than
    computing it. It follows from the words.
    """

    seed: jax.Array = child()
    epoch: jax.Array = child()
    position: jax.Array = child()
    prepared: Prepared | None = child(default=None)


class Indexed(abc.ABC):
    """A source whose element is a function of (seed, epoch, position): any element, in any order, at one cost.

    Positions count elements of this source within an epoch. Arguments `epoch` and `position` are words of any
    shape; an `Address` that comes back has this shape in front.
    """

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """Elements in an epoch."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """How records are nested in an element: () for one record, (n,) for a batch of n."""

    @property
    @abc.abstractmethod
    def groups(self) -> int:
        """How many shards take turns in the order of elements; their rows lie together in a batch. 1 for none."""

    @abc.abstractmethod
    def specs(self) -> tuple[Tree, Any]:
        """Shapes and dtypes of one element and of its mask."""

    @abc.abstractmethod
    def batched(self, size: int, remainder: str) -> Indexed:
        """Batches of this source; `remainder` is "pad", "drop" or "wrap"."""

    @abc.abstractmethod
    def span(self, count: int) -> int:
        """How many epochs of the records `count` consecutive elements may touch."""

    @abc.abstractmethod
    def first_epoch(self, epoch: Any, position: Any) -> Any:
        """The epoch of the first record of an element."""

    @abc.abstractmethod
    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        """What `span` epochs of the records, from `epoch` on, need and is dear to compute; None for nothing."""

    @abc.abstractmethod
    def locate(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> Address:
        """Which records elements are made of: arithmetic, no data."""

    @abc.abstractmethod
    def element(self, address: Address) -> tuple[Tree, jax.Array]:
        """One element and its mask."""

    @abc.abstractmethod
    def elements(self, address: Address) -> tuple[Tree, jax.Array]:
        """Several elements, stacked: `address` has one more axis in front."""

    @property
    def steps_per_epoch(self) -> int:
        """How many elements make an epoch."""
        return self.length

    def element_spec(self) -> Tree:
        """Shapes and dtypes of one element."""
        return self.specs()[0]

    def init_state(self, key: Any = None) -> Position:
        """The state before the first element. An int s, or `jax.random.key(s)`, is `.seed(s)` of a host pipeline."""
        return self.at(words.seed_of(key), 0, 0)

    def at(self, seed: Any, epoch: Any, position: Any) -> Position:
        """The state before the element at `position` of `epoch`."""
        epoch, position = words.word(epoch), words.word(position)
        return Position(words.word(seed), epoch, position, self.prepare(seed, self.first_epoch(epoch, position), 1))

    def prepare(self, seed: Any, first: Any, count: int) -> Prepared | None:
        """Tables for `count` elements, the first of them in epoch `first` of the records."""
        tables = self.tables(seed, first, self.span(count))
        return None if tables is None else Prepared(words.word(first), tables)

    def advanced(self, state: Position) -> Position:
        """The state one element later."""
        last = state.position + 1 >= self.length
        epoch = state.epoch + last
        position = jnp.where(last, words.word(0), state.position + 1)
        prepared = state.prepared
        if prepared is not None:
            prepared = _refreshed(self, prepared, state.seed, self.first_epoch(epoch, position))
        return Position(state.seed, epoch, position, prepared)

    def address(self, state: Position) -> Address:
        """The records of the element that comes next."""
        prepared = state.prepared or Prepared(self.first_epoch(state.epoch, state.position), None)
        return self.locate(state.seed, prepared, state.epoch, state.position)

    def next(self, state: Position) -> tuple[Tree, jax.Array, Position]:
        """The next element, its mask, and the state after it."""
        value, mask = self.element(self.address(state))
        return value, mask, self.advanced(state)


def _refreshed(source: Indexed, prepared: Prepared, seed: Any, first: Any) -> Prepared:
    """`prepared` for epochs from `first` on: computed again only where they have changed.

    Under vmap a `lax.cond` on a batched value computes both sides every time. So the rule for batches asks once
    whether any of them has changed.
    """

    def compute(prepared: Prepared, seed: Any, first: Any) -> Prepared:
        return Prepared(first, source.tables(seed, first, source.span(1)))

    @custom_vmap
    def refresh(prepared: Prepared, seed: Any, first: Any) -> Prepared:
        return jax.lax.cond(prepared.first != first, compute, lambda old, *_: old, prepared, seed, first)

    @refresh.def_vmap
    def _(size: int, batched: Any, *operands: Any) -> tuple[Any, Any]:
        old, seeds, firsts = jax.tree.map(
            lambda value, is_batched: value if is_batched else jnp.broadcast_to(value, (size, *value.shape)),
            operands,
            tuple(batched),
        )
        changed = (old.first != firsts).any()
        new = jax.lax.cond(changed, jax.vmap(compute), lambda old, *_: old, old, seeds, firsts)
        return new, jax.tree.map(lambda _: True, new)

    return refresh(prepared, seed, words.word(first))


def sample_keys(address: Address, salt: int) -> jax.Array:
    """A key for each record of `address` that belongs to (seed, epoch, record), and to the `salt` of its user."""

    def one(seed: Any, epoch: Any, record: Any) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), salt)
        return jax.random.fold_in(jax.random.fold_in(key, epoch), record)

    for _ in address.record.shape:
        one = jax.vmap(one)
    return one(address.seed, address.epoch, address.record)


def stacked_spec(spec: Tree, size: int) -> Tree:
    """The spec of `size` elements, stacked."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), spec)


def is_source(value: Any) -> bool:
    """Whether `value` can begin a pipeline."""
    return not isinstance(value, type) and isinstance(value, Source)


def specs_of(source: Source) -> tuple[Tree, Any]:
    """Shapes and dtypes of an element of any source, and of its mask."""
    if isinstance(source, Indexed):
        return source.specs()
    return jax.eval_shape(lambda: source.next(source.init_state(jax.random.key(0)))[:2])
