"""In which order records come: positions of epochs -> records, as arithmetic. No data but what an order is made of."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel.base import checks
from bushel.index import mix, shuffle
from bushel.jit import words
from bushel.jit.nodes import child, node
from bushel.jit.protocol import Prepared

TABLE_BELOW = 1 << 15
"""Below this length an epoch's permutation is looked up: walking the cipher takes too many steps there."""

_WALK_FROM = 1 << 10  # where no table can be kept, walking is the cheaper way from this length on


class Order(abc.ABC):
    """A map from (seed, epoch, position) to a record; `epoch` and `position` are words of any one shape."""

    length: int
    """Positions in an epoch."""

    @abc.abstractmethod
    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        """What `span` epochs from `epoch` on need and is dear to compute; None for nothing."""

    @abc.abstractmethod
    def records(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> jax.Array:
        """The records at these positions, as int32."""


@node
class Sequential(Order):
    """Records one after the other."""

    length: int

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        return None

    def records(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> jax.Array:
        return position.astype(jnp.int32)


@node
class Shuffled(Order):
    """Every epoch in an order of its own: that of `.seed(s).shuffle()` on the host, or of `.shuffle(seed=own_seed)`."""

    length: int
    own_seed: int | None = None

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        if self.length >= TABLE_BELOW:
            return None
        seeds = self._seed(seed) + epoch + jnp.arange(span, dtype=jnp.uint32)
        return jax.lax.map(lambda seed: shuffle.epoch_table(self.length, seed, jnp).astype(jnp.uint16), seeds)

    def records(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> jax.Array:
        if prepared.tables is None:
            return shuffle.walk(position, length=self.length, seed=self._seed(seed) + epoch, xp=jnp)
        return prepared.tables[(epoch - prepared.first).astype(jnp.int32), position].astype(jnp.int32)

    def _seed(self, seed: Any) -> jax.Array:
        return words.derive(seed) if self.own_seed is None else words.word(self.own_seed)


@node
class Kept(Order):
    """Some records only: those that `kept` lists, in the order of `order`."""

    order: Order = child()
    kept: jax.Array = child()

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.order.length

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        return self.order.tables(seed, epoch, span)

    def records(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> jax.Array:
        return self.kept[self.order.records(seed, prepared, epoch, position)]


@node
class Weighted(Order):
    """Records drawn with replacement, each as often as its weight says.

    `bounds[i]` is the share of records 0 to i, scaled to 2**32 - 1. A draw belongs to (seed, epoch, position).
    """

    length: int
    bounds: jax.Array = child()

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        return None

    def records(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> jax.Array:
        # Numbers below 2**31, none twice in an epoch.
        draw = shuffle.walk(position, length=1 << 31, seed=words.derive(seed) + epoch, xp=jnp).astype(jnp.uint32) * 2
        return jnp.searchsorted(self.bounds, draw, side="right").astype(jnp.int32)


@node
class Mixed(Order):
    """Several orders in one, by weight: `MapDataset.mix` of the host. Records of part k begin at `offsets[k]`."""

    orders: tuple[Order, ...] = child()
    offsets: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def length(self) -> int:  # type: ignore[override]
        return mix.mixed_length([order.length for order in self.orders], self.weights)

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        parts = []
        for number, order in enumerate(self.orders):
            # In one epoch of the mixture a part goes on by one epoch of its own at most, from the middle of one.
            first = self._part_epoch(number, epoch)
            tables = order.tables(seed, first, span + 2)
            parts.append(None if tables is None else Prepared(first, tables))
        return None if all(part is None for part in parts) else tuple(parts)

    def _part_epoch(self, number: int, epoch: Any) -> jax.Array:
        """The epoch that a part has reached when an epoch of the mixture begins."""
        remaining = sum(self.weights)
        period, before = words.multiply_divide(epoch, self.length, remaining)
        for weight in self.weights[:number]:
            before = before * (remaining - weight) // remaining
            remaining -= weight
        weight = self.weights[number]
        given = before - before * (remaining - weight) // remaining
        return words.multiply_divide(period, weight, self.orders[number].length, plus=given)[0]

    def records(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> jax.Array:
        total = sum(self.weights)
        period, low = words.multiply_divide(epoch, self.length, total, plus=position)
        which, count = mix.mixed(low.astype(jnp.int32), self.weights, xp=jnp)
        found = jnp.zeros_like(which)
        for number, order in enumerate(self.orders):
            own_epoch, own_position = words.multiply_divide(
                period, self.weights[number], order.length, plus=jnp.where(which == number, count, 0)
            )
            part = None if prepared.tables is None else prepared.tables[number]
            part = Prepared(own_epoch, None) if part is None else part
            records = order.records(seed, part, own_epoch, own_position) + self.offsets[number]
            found = jnp.where(which == number, records, found)
        return found


def growing(position: Any, *, length: Any, seed: Any) -> jax.Array:
    """A permutation of [0, length) for a length that is traced: exact epochs over data that grow.

    It is the one that `.shuffle(seed=...)` has on the host for this length. Past the length anything may come out.
    """
    inside = jnp.where(position < length, position, 0)
    return jax.lax.cond(
        length < _WALK_FROM,
        lambda: shuffle.epoch_table(length, seed, jnp)[inside],
        lambda: shuffle.walk(inside, length=jnp.maximum(length, _WALK_FROM), seed=seed, xp=jnp),
    )


def order_of(ordering: str, length: int) -> Order:
    """The order that a name stands for.

    >>> order_of("shuffle", 10).length
    10
    """
    if length > words.LIMIT:
        raise ValueError(f"Inside jit a source has at most 2**31 elements, got {length}.")
    if length < 1:
        raise ValueError("A source needs at least one element, got none.")
    if ordering == "sequential":
        return Sequential(length)
    if ordering == "shuffle":
        return Shuffled(length)
    raise ValueError(f"ordering is 'sequential' or 'shuffle', got {ordering!r}.")


def kept_by(ordering: str, mask: Any, length: int) -> Kept:
    """The order of the records where `mask` is True."""
    mask = np.asarray(mask)
    if mask.dtype != np.bool_ or mask.shape != (length,):
        raise ValueError(f"where= takes one boolean for each of {length} records, got {mask.dtype}{list(mask.shape)}.")
    kept = np.flatnonzero(mask).astype(np.int32)
    if not kept.size:
        raise ValueError(f"where= keeps none of the {length} records.")
    return Kept(order_of(ordering, len(kept)), jnp.asarray(kept))


def weighted_by(weights: Any, length: int) -> Weighted:
    """The order that draws record i with a probability proportional to `weights[i]`."""
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != (length,):
        raise ValueError(f"weights= takes one number for each of {length} records, got shape {list(shares.shape)}.")
    if not np.isfinite(shares).all() or (shares < 0).any() or not shares.sum() > 0:
        raise ValueError("weights= takes finite numbers that are not negative, and at least one above zero.")
    ends = np.cumsum(shares)
    bounds = np.floor(ends / ends[-1] * 0xFFFFFFFF).astype(np.uint32)
    last = int(np.flatnonzero(shares)[-1])
    bounds[last:] = 0xFFFFFFFF  # a rounded sum must not lead to a record without weight
    return Weighted(length, jnp.asarray(bounds))


def mixed_by(orders: Sequence[Order], offsets: Sequence[int], weights: Sequence[float] | None) -> Mixed:
    """The order of a mixture, with weights made integers as on the host."""
    checked = checks.weights(weights, len(orders))
    integers = (1,) * len(orders) if checked is None else mix.integer_weights(checked)
    if sum(integers) > 1 << 15:
        raise ValueError(
            f"Inside jit a mixture has 32-bit words: its integer weights {list(integers)} may sum to at most "
            "2**15. Make the shares less unequal."
        )
    return Mixed(tuple(orders), tuple(offsets), integers)
