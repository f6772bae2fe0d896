"""What a source is: the protocol that users implement, and the base of sources that compute any element directly.

record_source.py has the sources that own records, record_order.py the orders in which records come.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from bushel.jit.pytree import Pytree
from bushel.jit.uint32 import to_seed, to_uint32

Tree = Any


@runtime_checkable
class Source(Protocol):
    """An object that gives one element after the other inside `jax.jit`. Implement it for a source of your own.

    `next` returns the element, a mask that is False where the element is padding, and the next state. The state is
    any pytree. If your source is not a pytree, it becomes a constant of the compiled program. Register it as a
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
        """The number of elements in an epoch."""
        ...

    def init_state(self, key: Any = None) -> Any:
        """Return the state before the first element."""
        ...

    def next(self, state: Any) -> tuple[Tree, jax.Array, Any]:
        """Return the next element, its mask, and the state after it."""
        ...

    def element_spec(self) -> Tree:
        """Return the shapes and dtypes of an element, as `jax.ShapeDtypeStruct`."""
        ...


class Address(NamedTuple):
    """The records that elements are made of. All arrays have one shape, that of the elements' records."""

    seed: jax.Array
    epoch: jax.Array
    position: jax.Array
    record: jax.Array
    valid: jax.Array

    def reshape(self, *shape: int) -> Address:
        """Return the address with all arrays in another shape."""
        return Address(*(part.reshape(shape) for part in self))


class EpochTables(NamedTuple):
    """What a record order computed in advance for the epochs from `first` on. It is never part of a checkpoint."""

    first: Any
    tables: Any


class IndexedState(NamedTuple):
    """The state of an indexed source: three 32-bit integers, however long the data are.

    For data below 2**12 elements, `tables` also holds the permutations of the epochs from the one of the next record
    on, because a lookup is cheaper there than computing it. The three integers determine them.

    The integers are one array, and the class is a named tuple: a call of a compiled program takes about a microsecond
    for each array that goes in or out, and JAX takes a named tuple apart without running Python.
    """

    numbers: jax.Array
    """(seed, epoch, position) as uint32."""
    tables: Any = None

    @property
    def seed(self) -> jax.Array:
        """The seed of the order."""
        return self.numbers[..., 0]

    @property
    def epoch(self) -> jax.Array:
        """The epoch of the next element."""
        return self.numbers[..., 1]

    @property
    def position(self) -> jax.Array:
        """The number of the next element within its epoch."""
        return self.numbers[..., 2]


class IndexedSource(Pytree, abc.ABC):
    """A source that computes any element from (seed, epoch, position), at the same cost for each.

    A position is the number of an element of this source within an epoch. `epoch` and `position` may be uint32 arrays
    of any shape; the arrays of the `Address` then begin with this shape.
    """

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """The number of elements in an epoch."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the records in an element: () for one record, (n,) for a batch of n."""

    @property
    @abc.abstractmethod
    def shards(self) -> int:
        """The number of shards that contribute equally to each batch; 1 if the data are not sharded."""

    @property
    @abc.abstractmethod
    def depth(self) -> int:
        """The number of stages before this one. Each random stage mixes its depth into its keys."""

    @abc.abstractmethod
    def _get_specs(self) -> tuple[Tree, Any]:
        """Return the shapes and dtypes of one element and of its mask."""

    @abc.abstractmethod
    def _count_record_epochs(self, count: int) -> int:
        """Return how many epochs of the records `count` consecutive elements can touch."""

    @abc.abstractmethod
    def _find_record_epoch(self, epoch: Any, position: Any) -> Any:
        """Return the epoch of the records that the first record of an element belongs to."""

    @abc.abstractmethod
    def _compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        """Compute what is worth computing once for `count` epochs of the records from `epoch` on, or return None."""

    @abc.abstractmethod
    def _locate(self, seed: Any, tables: EpochTables, epoch: Any, position: Any) -> Address:
        """Compute which records the elements at these positions are made of. This reads no data."""

    @abc.abstractmethod
    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        """Return one element and its mask."""

    @abc.abstractmethod
    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        """Return several elements, stacked, and their masks: `address` has one more axis in front."""

    @property
    def steps_per_epoch(self) -> int:
        """The number of elements in an epoch."""
        return self.length

    def element_spec(self) -> Tree:
        """Return the shapes and dtypes of one element."""
        return self._get_specs()[0]

    def init_state(self, key: Any = None) -> IndexedState:
        """Return the state before the first element.

        The int s and `jax.random.key(s)` both give the order of `.seed(s).shuffle()` on the host.
        """
        return self._make_state(to_seed(key), 0, 0)

    def _make_state(self, seed: Any, epoch: Any, position: Any) -> IndexedState:
        """Return the state before the element at `position` of `epoch`."""
        seed, epoch, position = to_uint32(seed), to_uint32(epoch), to_uint32(position)
        tables = self._prepare_tables(seed, self._find_record_epoch(epoch, position), 1)
        return IndexedState(jnp.stack([seed, epoch, position]), tables.tables)

    def _prepare_tables(self, seed: Any, first: Any, count: int) -> EpochTables:
        """Compute the tables for `count` elements, the first of them in epoch `first` of the records."""
        return EpochTables(first, self._compute_tables(seed, first, self._count_record_epochs(count)))

    def _advance(self, state: IndexedState) -> IndexedState:
        """Return the state one element later."""
        seed, epoch, position = state.seed, state.epoch, state.position
        last = position + 1 >= self.length
        next_epoch, next_position = epoch + last, jnp.where(last, to_uint32(0), position + 1)
        tables = state.tables
        if tables is not None:
            old, new = self._find_record_epoch(epoch, position), self._find_record_epoch(next_epoch, next_position)
            tables = _refresh_tables(self, tables, seed, old, new)
        return IndexedState(jnp.stack([seed, next_epoch, next_position]), tables)

    def _locate_next(self, state: IndexedState) -> Address:
        """Compute which records the next element is made of."""
        tables = EpochTables(self._find_record_epoch(state.epoch, state.position), state.tables)
        return self._locate(state.seed, tables, state.epoch, state.position)

    def next(self, state: IndexedState) -> tuple[Tree, jax.Array, IndexedState]:
        """Return the next element, its mask, and the state after it."""
        value, mask = self._read_element(self._locate_next(state))
        return value, mask, self._advance(state)


def _refresh_tables(source: IndexedSource, tables: Any, seed: Any, old: Any, new: Any) -> Any:
    """Return the tables for the epochs from `new` on, given those from `old` on; compute them only if these differ.

    Under `vmap`, `lax.cond` on a batched condition computes both branches in every step. The rule for batches below
    therefore asks once whether any loader of the batch needs new tables.
    """

    def compute(_: Any, seed: Any, new: Any) -> Any:
        return source._compute_tables(seed, new, source._count_record_epochs(1))

    @custom_vmap
    def refresh(tables: Any, seed: Any, old: Any, new: Any) -> Any:
        return jax.lax.cond(old != new, compute, lambda kept, *_: kept, tables, seed, new)

    @refresh.def_vmap
    def _(size: int, batched: Any, *operands: Any) -> tuple[Any, Any]:
        tables, seeds, olds, news = jax.tree.map(
            lambda value, is_batched: value if is_batched else jnp.broadcast_to(value, (size, *value.shape)),
            operands,
            tuple(batched),
        )
        changed = (olds != news).any()
        result = jax.lax.cond(changed, jax.vmap(compute), lambda kept, *_: kept, tables, seeds, news)
        return result, jax.tree.map(lambda _: True, result)

    return refresh(tables, seed, old, new)


def make_sample_keys(address: Address, salt: int) -> jax.Array:
    """Make a random key for each record of `address`, from its seed, its epoch, its number and `salt`."""

    def make(seed: Any, epoch: Any, record: Any) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(seed), salt)
        return jax.random.fold_in(jax.random.fold_in(key, epoch), record)

    for _ in address.record.shape:
        make = jax.vmap(make)
    return make(address.seed, address.epoch, address.record)


def stack_spec(spec: Tree, size: int) -> Tree:
    """Return the spec of `size` elements, stacked."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), spec)


def is_source(value: Any) -> bool:
    """Return whether a pipeline can begin with `value`."""
    return not isinstance(value, type) and isinstance(value, Source)


def find_specs(source: Source) -> tuple[Tree, Any]:
    """Return the shapes and dtypes of an element of any source, and of its mask.

    Sources of ours know them. Another one is asked for an element, without computing it.
    """
    get_specs = getattr(source, "_get_specs", None)
    if get_specs is not None:
        return get_specs()
    return jax.eval_shape(lambda: source.next(source.init_state(jax.random.key(0)))[:2])
