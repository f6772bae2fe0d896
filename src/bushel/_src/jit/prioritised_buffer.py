"""`PrioritisedBuffer`: a replay buffer that draws items by priority, with a sum tree over its slots."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.jit.replay_buffer import ReplayBuffer, ReplayState, count_items
from bushel._src.jit.source import Tree
from bushel._src.jit.uint32 import to_key


class SumTree(NamedTuple):
    """Numbers that are not negative, and their sums over halves, quarters and so on. `nodes[1]` is the sum of all."""

    nodes: jax.Array

    @property
    def leaves(self) -> jax.Array:
        """The numbers, followed by zeros up to a power of two."""
        return self.nodes[len(self.nodes) // 2 :]

    @property
    def total(self) -> jax.Array:
        """The sum of all numbers."""
        return self.nodes[1]


def make_tree(capacity: int) -> SumTree:
    """Return a tree of `capacity` zeros."""
    size = 1 << (checks.positive(capacity, "capacity") - 1).bit_length()
    return SumTree(jnp.zeros(2 * size, jnp.float32))


def set_values(tree: SumTree, slot: jax.Array, values: jax.Array) -> SumTree:
    """Return the tree with other numbers in some slots. A slot outside the tree is ignored.

    Each sum is computed again from its two parts, so that rounding errors do not accumulate.
    """
    size = len(tree.nodes) // 2
    node = jnp.where((slot >= 0) & (slot < size), slot + size, 2 * size)
    nodes = tree.nodes.at[node].set(values, mode="drop")
    for _ in range(size.bit_length() - 1):
        node = jnp.where(node < 2 * size, node // 2, 2 * size)
        inside = jnp.minimum(node, size - 1)
        nodes = nodes.at[node].set(nodes[2 * inside] + nodes[2 * inside + 1], mode="drop")
    return SumTree(nodes)


def find_slots(tree: SumTree, targets: jax.Array) -> jax.Array:
    """Return the slot where the running sum passes each target. A slot with a zero is never returned.

    >>> tree = set_values(make_tree(4), jnp.arange(4), jnp.array([1.0, 0.0, 2.0, 1.0]))
    >>> find_slots(tree, jnp.array([0.0, 0.9, 1.0, 2.9, 3.0, 4.0])).tolist()
    [0, 0, 2, 2, 3, 3]
    """
    size = len(tree.nodes) // 2
    node = jnp.ones(targets.shape, jnp.int32)
    for _ in range(size.bit_length() - 1):
        left, right = tree.nodes[2 * node], tree.nodes[2 * node + 1]
        # Rounding can leave a target at or above the whole sum: never turn to a side whose sum is zero.
        go_right = ((targets >= left) & (right > 0)) | (left <= 0)
        targets = jnp.where(go_right, targets - left, targets)
        node = 2 * node + go_right
    return node - size


class PriorityState(NamedTuple):
    """A replay buffer, the priorities of its slots, and the largest priority that an item ever had."""

    replay: ReplayState
    tree: SumTree
    largest: jax.Array


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class PrioritisedBuffer:
    """A buffer of the newest `capacity` items, which draws each in proportion to its priority ** `exponent`.

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
        """Return an empty buffer for items like `example`."""
        return PriorityState(self._buffer.init(example), make_tree(self.capacity), jnp.float32(1))

    def add(self, state: PriorityState, items: Tree, priorities: jax.Array | None = None) -> PriorityState:
        """Return the state with a batch of items added."""
        size = count_items(state.replay.items, items)
        if size > self.capacity:
            raise ValueError(f"This buffer has a capacity of {self.capacity} items, got {size} at once.")
        if priorities is None:
            priorities = jnp.full(size, state.largest)
        slot = (state.replay.place + jnp.arange(size)) % self.capacity
        return self.update(state._replace(replay=self._buffer.add(state.replay, items)), slot, priorities)

    def update(self, state: PriorityState, place: jax.Array, priorities: jax.Array) -> PriorityState:
        """Return the state with other priorities in these slots. A priority that is NaN or negative counts as zero."""
        priorities = jnp.where(priorities > 0, priorities, 0).astype(jnp.float32)
        tree = set_values(state.tree, place, jnp.where(priorities > 0, priorities**self.exponent, 0))
        return PriorityState(state.replay, tree, jnp.maximum(state.largest, priorities.max(initial=0)))

    def sample(self, state: PriorityState, key: Any, size: int) -> tuple[Tree, jax.Array, jax.Array]:
        """Draw `size` items; return them, their slots, and the probability of each draw.

        The draws are stratified: one from each of `size` equal parts of the total priority.
        """
        within = jax.random.uniform(to_key(key), (size,))
        place = find_slots(state.tree, (jnp.arange(size) + within) / size * state.tree.total)
        place = jnp.minimum(place, self.capacity - 1)
        chances = state.tree.leaves[place] / jnp.maximum(state.tree.total, jnp.finfo(jnp.float32).tiny)
        return self._buffer.take(state.replay, place), place, chances


def importance_weights(chances: jax.Array, count: Any, exponent: float) -> jax.Array:
    """Return the weights that correct the bias of prioritised draws, scaled so that the largest is 1.

    Args:
      chances: the probabilities that `sample` returned.
      count: the number of items in the buffer.
      exponent: 0 for no correction, 1 for the full correction.

    >>> importance_weights(jnp.array([0.5, 0.25]), 4, 1.0).tolist()
    [0.5, 1.0]
    """
    weights = (jnp.maximum(chances, jnp.finfo(jnp.float32).tiny) * count) ** -exponent
    return weights / weights.max()
