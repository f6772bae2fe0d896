"""Sources that own records and give them one by one in an order: the beginning of every indexed pipeline.

The sources themselves are in array_source.py, window_source.py, sharded_source.py and host_callbacks.py.
"""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp

from bushel.base import trees
from bushel.jit.record_order import RecordOrder
from bushel.jit.source import Address, EpochTables, IndexedSource, Tree
from bushel.jit.uint32 import count_epochs


class RecordSource(IndexedSource):
    """Records, one by one, in an order. A subclass says what a record is and how to read several."""

    order: RecordOrder

    @abc.abstractmethod
    def _get_record_spec(self) -> Tree:
        """Return the shapes and dtypes of one record."""

    @abc.abstractmethod
    def _read_records(self, address: Address) -> Tree:
        """Return the records at an address with one axis, stacked."""

    def __repr__(self) -> str:
        order = type(self.order).__name__
        return f"{type(self).__name__}({trees.describe(self._get_record_spec())}, length={self.length}, order={order})"

    @property
    def length(self) -> int:
        return self.order.length

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    @property
    def shards(self) -> int:
        return self.order.shards

    @property
    def depth(self) -> int:
        return 0

    def _get_specs(self) -> tuple[Tree, Any]:
        return self._get_record_spec(), jax.ShapeDtypeStruct((), bool)

    def _count_record_epochs(self, count: int) -> int:
        return count_epochs(count, self.length)

    def _find_record_epoch(self, epoch: Any, position: Any) -> Any:
        return epoch

    def _compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return self.order.compute_tables(seed, epoch, count)

    def _locate(self, seed: Any, tables: EpochTables, epoch: Any, position: Any) -> Address:
        records = self.order.find_records(seed, tables, epoch, position)
        seed, epoch, position = (jnp.broadcast_to(part, records.shape) for part in (seed, epoch, position))
        return Address(seed, epoch, position, records, jnp.ones(records.shape, bool))

    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self._read_elements(address.reshape(1))
        return jax.tree.map(lambda leaf: leaf[0], value), mask[0]

    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        return self._read_records(address), address.valid
