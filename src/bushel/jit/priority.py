"""Replay by priority: a sum tree over the places of a buffer, and a buffer that draws from it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bushel.base import checks
from bushel.jit import words
from bushel.jit.protocol import Tree
from bushel.jit.replay import ReplayBuffer, ReplayState, fitting


class SumTree(NamedTuple):
    """Numbers that are not negative, and their sums over halves, quarters and so on. `nodes[1]` is the whole."""

    nodes: jax.Array

    @property
    def leaves(self) -> jax.Array:
        """The numbers, with zeros up to a power of two."""
        return self.nodes[len(self.nodes) // 2 :]

    @property
    def total(self) -> jax.Array:
        """The sum of all."""
        return self.nodes[1]


def empty_tree(capacity: int) -> SumTree:
    """A tree of `capacity` zeros."""
    size = 1 << (checks.positive(capacity, "capacity") - 1).bit_length()
    return SumTree(jnp.zeros(2 * size, jnp.float32))


def with_values(tree: SumTree, place: jax.Array, values: jax.Array) -> SumTree:
    """The tree with other numbers at some places; where `place` is past the end nothing changes.

    Sums are added up anew from below, so rounding never piles up.
    """
    size = len(tree.nodes) // 2
    spot = jnp.where((place >= 0) & (place < size), place + size, 2 * size)
    nodes = tree.nodes.at[spot].set(values, mode="drop")
    for _ in range(size.bit_length() - 1):
        spot = jnp.where(spot < 2 * size, spot // 2, 2 * size)
        inside = jnp.minimum(spot, size - 1)
        nodes = nodes.at[spot].set(nodes[2 * inside] + nodes[2 * inside + 1], mode="drop")
    return SumTree(nodes)


def find(tree: SumTree, targets: jax.Array) -> jax.Array:
    """The place where the running sum passes each target. A place with a zero is never found, whatever the rounding.

    >>> tree = with_values(empty_tree(4), jnp.arange(4), jnp.array([1.0, 0.0, 2.0, 1.0]))
    >>> find(tree, jnp.array([0.0, 0.9, 1.0, 2.9, 3.0, 4.0])).tolist()
    [0, 0, 2, 2, 3, 3]
    """
    size = len(tree.nodes) // 2
    spot = jnp.ones(targets.shape, jnp.int32)
    for _ in range(size.bit_length() - 1):
        left, right = tree.nodes[2 * spot], tree.nodes[2 * spot + 1]
        go_right = ((targets >= left) & (right > 0)) | (left <= 0)
        targets = jnp.where(go_right, targets - left, targets)
        spot = 2 * spot + go_right
    return spot - size


class PriorityState(NamedTuple):
    """A buffer, the priorities of its places, and the largest that was ever given."""

    replay: ReplayState
    tree: SumTree
    largest: jax.Array


@dataclasses.dataclass(frozen=True)
class PrioritisedBuffer:
    """The newest `capacity` items, drawn as often as their priority to the power of `exponent` says.

    New items get the largest priority so far, so that each is drawn soon.
    """

    capacity: int
    exponent: float = 0.6

    def __post_init__(self) -> None:
        checks.positive(self.capacity, "capacity")
        if not self.exponent >= 0:
            raise ValueError(f"exponent must not be negative, got {self.exponent}.")

    @property
    def _buffer(self) -> ReplayBuffer:
        return ReplayBuffer(self.capacity)

    def init(self, example: Tree) -> PriorityState:
        """An empty buffer for items like `example`."""
        return PriorityState(self._buffer.init(example), empty_tree(self.capacity), jnp.float32(1))

    def add(self, state: PriorityState, items: Tree, priorities: jax.Array | None = None) -> PriorityState:
        """The state with a batch of items added."""
        size = fitting(state.replay.items, items)
        if size > self.capacity:
            raise ValueError(f"This buffer keeps {self.capacity} items, got {size} at once.")
        if priorities is None:
            priorities = jnp.full(size, state.largest)
        place = (state.replay.place + jnp.arange(size)) % self.capacity
        return self.update(state._replace(replay=self._buffer.add(state.replay, items)), place, priorities)

    def update(self, state: PriorityState, place: jax.Array, priorities: jax.Array) -> PriorityState:
        """The state with other priorities at these places. Those that are no number, or negative, count as zero."""
        priorities = jnp.where(priorities > 0, priorities, 0).astype(jnp.float32)
        tree = with_values(state.tree, place, jnp.where(priorities > 0, priorities**self.exponent, 0))
        return PriorityState(state.replay, tree, jnp.maximum(state.largest, priorities.max(initial=0)))

    def sample(self, state: PriorityState, key: Any, size: int) -> tuple[Tree, jax.Array, jax.Array]:
        """`size` items, their places, and the probability with which each was drawn: one from each `size`-th part."""
        within = jax.random.uniform(words.as_key(key), (size,))
        place = find(state.tree, (jnp.arange(size) + within) / size * state.tree.total)
        place = jnp.minimum(place, self.capacity - 1)
        chances = state.tree.leaves[place] / jnp.maximum(state.tree.total, jnp.finfo(jnp.float32).tiny)
        return self._buffer.take(state.replay, place), place, chances


def importance_weights(chances: jax.Array, count: Any, exponent: float) -> jax.Array:
    """Weights that undo the preference for some items, scaled so that the largest is 1.

    >>> importance_weights(jnp.array([0.5, 0.25]), 4, 1.0).tolist()
    [0.5, 1.0]
    """
    weights = (jnp.maximum(chances, jnp.finfo(jnp.float32).tiny) * count) ** -exponent
    return weights / weights.max()
