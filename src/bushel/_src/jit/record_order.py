"""The order of records: from (seed, epoch, position) to the number of a record. And sources in such an order."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bushel._src.base import checks, trees
from bushel._src.index import mix, shuffle
from bushel._src.jit.source import Address, IndexedSource, PrecomputedEpochs, Pytree, Tree, child, pytree_dataclass
from bushel._src.jit.uint32 import LIMIT, count_epochs, derive_seed, multiply_divide

Ordering = Literal["sequential", "shuffle"]

TABLE_BELOW = 1 << 12
"""Below this length an epoch's permutation is a table: computing single entries takes too many steps there.

On a CPU, the entries of a batch take about as long as the batch's share of a table, unless the batch is tiny. On an
accelerator every 32 steps are a kernel, and reading a table pays off for a step alone; a scan is as fast without.
"""

_WALK_FROM = 1 << 10
"""From this length on computing single entries is cheaper, where a table would not outlive the step."""


class RecordOrder(Pytree, abc.ABC):
    """A map from (seed, epoch, position) to a record; `epoch` and `position` are uint32 arrays of one shape."""

    length: int
    """The number of positions in an epoch."""

    shards: int = 1
    """The number of shards that take turns in the order."""

    @abc.abstractmethod
    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        """Compute what is worth computing once for `count` epochs from `epoch` on, or return None."""

    @abc.abstractmethod
    def find_records(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> jax.Array:
        """Return the numbers of the records at these positions, as int32."""


@pytree_dataclass
class Sequential(RecordOrder):
    """Records in the order of their numbers."""

    length: int

    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return None

    def find_records(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> jax.Array:
        return position.astype(jnp.int32)


@pytree_dataclass
class Shuffled(RecordOrder):
    """Records in another random order in every epoch: the order of `.seed(s).shuffle()` on the host."""

    length: int

    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        if self.length >= TABLE_BELOW:
            return None
        return compute_permutations(self.length, derive_seed(seed) + epoch + jnp.arange(count, dtype=jnp.uint32))

    def find_records(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> jax.Array:
        if tables.tables is None:
            return shuffle.walk(position, length=self.length, seed=derive_seed(seed) + epoch, xp=jnp)
        return tables.tables[(epoch - tables.first).astype(jnp.int32), position].astype(jnp.int32)


@pytree_dataclass
class Filtered(RecordOrder):
    """The records that `kept` lists, in the order that `order` gives to the entries of the list."""

    length: int
    order: RecordOrder = child()
    kept: jax.Array = child()

    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return self.order.compute_tables(seed, epoch, count)

    def find_records(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> jax.Array:
        return self.kept[self.order.find_records(seed, tables, epoch, position)]


@pytree_dataclass
class Weighted(RecordOrder):
    """Records drawn with replacement, with probabilities in proportion to their weights.

    `bounds[i]` is the share of the records 0 to i, scaled to 2**32 - 1. A draw depends on (seed, epoch, position).
    """

    length: int
    bounds: jax.Array = child()

    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return None

    def find_records(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> jax.Array:
        # A permutation of the numbers below 2**31 draws no number twice in an epoch.
        seed = derive_seed(seed) + epoch
        draw = shuffle.walk(position, length=1 << 31, seed=seed, xp=jnp).astype(jnp.uint32) * 2
        return jnp.searchsorted(self.bounds, draw, side="right").astype(jnp.int32)


@pytree_dataclass
class Mixed(RecordOrder):
    """Several orders mixed by weight, as in `MapDataset.mix`. The records of part k begin at `offsets[k]`."""

    length: int
    orders: tuple[RecordOrder, ...] = child()
    offsets: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    def compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        parts = []
        for number, order in enumerate(self.orders):
            # During one epoch of the mixture a part advances by at most one epoch of its own. It can begin in the
            # middle of one, so `count` epochs of the mixture touch at most `count` + 2 epochs of the part.
            first = self._find_part_epoch(number, epoch)
            tables = order.compute_tables(seed, first, count + 2)
            parts.append(None if tables is None else PrecomputedEpochs(first, tables))
        return None if all(part is None for part in parts) else tuple(parts)

    def _find_part_epoch(self, number: int, epoch: Any) -> jax.Array:
        """Return the epoch that part `number` has reached when `epoch` of the mixture begins."""
        remaining = sum(self.weights)
        period, before = multiply_divide(epoch, self.length, remaining)
        for weight in self.weights[:number]:
            before = before * (remaining - weight) // remaining
            remaining -= weight
        weight = self.weights[number]
        drawn = before - before * (remaining - weight) // remaining
        return multiply_divide(period, weight, self.orders[number].length, plus=drawn)[0]

    def find_records(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> jax.Array:
        total = sum(self.weights)
        period, within = multiply_divide(epoch, self.length, total, plus=position)
        which, count = mix.mixed(within.astype(jnp.int32), self.weights, xp=jnp)
        result = jnp.zeros_like(which)
        for number, order in enumerate(self.orders):
            part_epoch, part_position = multiply_divide(
                period, self.weights[number], order.length, plus=jnp.where(which == number, count, 0)
            )
            part_tables = None if tables.tables is None else tables.tables[number]
            part_tables = PrecomputedEpochs(part_epoch, None) if part_tables is None else part_tables
            records = order.find_records(seed, part_tables, part_epoch, part_position) + self.offsets[number]
            result = jnp.where(which == number, records, result)
        return result


def compute_permutations(length: int, seeds: jax.Array) -> jax.Array:
    """Compute one permutation of [0, length) for each seed, as uint16: `length` is below `TABLE_BELOW`."""
    return jax.lax.map(lambda seed: shuffle.epoch_table(length, seed, jnp).astype(jnp.uint16), seeds)


def permute_growing(position: Any, *, length: Any, seed: Any) -> jax.Array:
    """Permute positions in [0, length) for a traced length, for exact epochs over data that grow.

    The permutation is the one that `.shuffle(seed=...)` has on the host for this length. The result for a position at
    or beyond the length has no meaning.
    """
    inside = jnp.where(position < length, position, 0)
    return jax.lax.cond(
        length < _WALK_FROM,
        lambda: shuffle.epoch_table(length, seed, jnp)[inside],
        lambda: shuffle.walk(inside, length=jnp.maximum(length, _WALK_FROM), seed=seed, xp=jnp),
    )


def make_order(ordering: Ordering, length: int) -> RecordOrder:
    """Return the order that the user asked for by name.

    >>> make_order("shuffle", 10).length
    10
    """
    if length > LIMIT:
        raise ValueError(f"Inside jit a source can have at most 2**31 elements, got {length}.")
    if length < 1:
        raise ValueError("A source needs at least one element, got none.")
    checks.choice(ordering, Ordering, "ordering")
    if ordering == "sequential":
        return Sequential(length)
    return Shuffled(length)


def make_filtered_order(ordering: Ordering, mask: Any, length: int) -> Filtered:
    """Return the order of the records where `mask` is True."""
    mask = np.asarray(mask)
    if mask.dtype != np.bool_ or mask.shape != (length,):
        raise ValueError(f"where= takes one boolean for each of {length} records, got {mask.dtype}{list(mask.shape)}.")
    kept = np.flatnonzero(mask).astype(np.int32)
    if not kept.size:
        raise ValueError(f"where= keeps none of the {length} records.")
    return Filtered(len(kept), make_order(ordering, len(kept)), jnp.asarray(kept))


def make_weighted_order(weights: Any, length: int) -> Weighted:
    """Return the order that draws record i with a probability in proportion to `weights[i]`."""
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (length,):
        raise ValueError(f"weights= takes one number for each of {length} records, got shape {list(shares.shape)}.")
    if not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum() > 0:
        raise ValueError("weights= takes finite numbers that are not negative, and at least one above zero.")
    ends = np.cumsum(shares)
    bounds = np.floor(ends / ends[-1] * 0xFFFFFFFF).astype(np.uint32)
    last = int(np.flatnonzero(shares)[-1])
    bounds[last:] = 0xFFFFFFFF  # rounding must not let a draw fall behind the last record that has a weight
    return Weighted(length, jnp.asarray(bounds))


def make_mixed_order(orders: Sequence[RecordOrder], offsets: Sequence[int], weights: Sequence[float] | None) -> Mixed:
    """Return the order of a mixture. The weights become integers in the same way as on the host."""
    checked = checks.weights(weights, len(orders))
    integers = (1,) * len(orders) if checked is None else mix.integer_weights(checked)
    if sum(integers) > 1 << 15:
        raise ValueError(
            f"Inside jit a mixture computes in 32 bits: its integer weights {list(integers)} may sum to at most "
            "2**15. Choose weights that are less unequal."
        )
    length = mix.mixed_length([order.length for order in orders], integers)
    return Mixed(length, tuple(orders), tuple(offsets), integers)


class OrderedRecords(IndexedSource):
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

    def _locate(self, seed: Any, tables: PrecomputedEpochs, epoch: Any, position: Any) -> Address:
        records = self.order.find_records(seed, tables, epoch, position)
        seed, epoch, position = (jnp.broadcast_to(part, records.shape) for part in (seed, epoch, position))
        return Address(seed, epoch, position, records, jnp.ones(records.shape, bool))

    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self._read_elements(address.reshape(1))
        return jax.tree.map(lambda leaf: leaf[0], value), mask[0]

    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        return self._read_records(address), address.valid
