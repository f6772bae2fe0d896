"""Where every indexed pipeline begins: records of a store, in an order. Stores and orders are elsewhere."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp

from bushel.jit import words
from bushel.jit.batches import Batches, batches_of
from bushel.jit.nodes import child, node
from bushel.jit.order import Order
from bushel.jit.protocol import Address, Indexed, Prepared, Tree


class Store(abc.ABC):
    """Records by their number."""

    @property
    @abc.abstractmethod
    def groups(self) -> int:
        """How many shards hold the records, if each gives its own part of a batch; 1 for none."""

    @abc.abstractmethod
    def spec(self) -> Tree:
        """Shapes and dtypes of one record."""

    @abc.abstractmethod
    def take(self, address: Address) -> Tree:
        """The records at an address with one axis, stacked."""


@node
class Records(Indexed):
    """Records of a store, one by one, in an order."""

    store: Any = child()
    order: Order = child()

    @property
    def length(self) -> int:
        return self.order.length

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def specs(self) -> tuple[Tree, Any]:
        return self.store.spec(), jax.ShapeDtypeStruct((), bool)

    @property
    def groups(self) -> int:
        return self.store.groups

    def batched(self, size: int, remainder: str) -> Batches:
        return batches_of(self, size, remainder)

    def span(self, count: int) -> int:
        return words.epochs_touched(count, self.length)

    def first_epoch(self, epoch: Any, position: Any) -> Any:
        return epoch

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        return self.order.tables(seed, epoch, span)

    def locate(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> Address:
        records = self.order.records(seed, prepared, epoch, position)
        seed, epoch, position = (jnp.broadcast_to(word, records.shape) for word in (seed, epoch, position))
        return Address(seed, epoch, position, records, jnp.ones(records.shape, bool))

    def element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.elements(address.reshaped(1))
        return jax.tree.map(lambda leaf: leaf[0], value), mask[0]

    def elements(self, address: Address) -> tuple[Tree, jax.Array]:
        return self.store.take(address), address.valid
