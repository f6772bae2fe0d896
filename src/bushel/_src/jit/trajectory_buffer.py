"""`TrajectoryBuffer`: keeps steps in order and draws sequences of them. Also returns over several steps."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bushel._src.base import checks
from bushel._src.base.public import public
from bushel._src.jit.replay_buffer import count_items
from bushel._src.jit.source import Tree
from bushel._src.jit.uint32 import to_key


class TrajectoryState(NamedTuple):
    """The steps of several actors: leaves are (actors, capacity, ...). All actors write at the same slot, `place`."""

    steps: Tree
    held: jax.Array
    place: jax.Array


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class TrajectoryBuffer:
    """A buffer of the newest `capacity` steps of each actor, which draws sequences of `length` successive steps.

    A sequence has steps of one actor only, and no gap. Sequences begin at every `period`-th step, counted from the very
    first step that was added; `period` must divide the capacity.

    >>> buffer = TrajectoryBuffer(actors=1, capacity=4, length=2)
    >>> state = buffer.init(jnp.int32(0))
    >>> state = buffer.add(state, jnp.arange(6)[None])
    >>> sequences, _ = buffer.sample(state, 0, 32)
    >>> sorted(set(map(tuple, sequences.tolist())))
    [(2, 3), (3, 4), (4, 5)]
    """

    actors: int
    capacity: int
    length: int
    period: int = 1

    def __post_init__(self) -> None:
        for name in ("actors", "capacity", "length", "period"):
            checks.positive(getattr(self, name), name)
        if self.length > self.capacity:
            raise ValueError(f"Sequences of {self.length} steps do not fit a capacity of {self.capacity}.")
        if self.capacity % self.period:
            raise ValueError(f"period must divide the capacity {self.capacity}, got {self.period}.")

    def init(self, example: Tree) -> TrajectoryState:
        """Return an empty buffer for steps like `example`."""
        steps = jax.tree.map(
            lambda leaf: jnp.zeros((self.actors, self.capacity, *jnp.shape(leaf)), getattr(leaf, "dtype", None)),
            example,
        )
        return TrajectoryState(steps, jnp.int32(0), jnp.int32(0))

    def add(self, state: TrajectoryState, steps: Tree) -> TrajectoryState:
        """Return the state with the next steps of all actors added: leaves are (actors, time, ...)."""
        count = count_items(state.steps, steps, axis=1)
        if count > self.capacity:
            steps = jax.tree.map(lambda leaf: leaf[:, count - self.capacity :], steps)
        kept = min(count, self.capacity)
        place = (state.place + count - kept + jnp.arange(kept)) % self.capacity
        new = jax.tree.map(lambda old, leaf: old.at[:, place].set(leaf), state.steps, steps)
        return TrajectoryState(
            new, jnp.minimum(state.held + count, self.capacity), (state.place + count) % self.capacity
        )

    def can_sample(self, state: TrajectoryState) -> jax.Array:
        """Return whether the buffer has a whole sequence."""
        return self._count_sequences(state)[1] > 0

    def _count_sequences(self, state: TrajectoryState) -> tuple[jax.Array, jax.Array]:
        """Return the first slot where a sequence may begin, and how many sequences each actor has."""
        oldest = (state.place - state.held) % self.capacity
        first = oldest + (-oldest) % self.period
        return first, jnp.maximum(0, (oldest + state.held - self.length - first) // self.period + 1)

    def sample(self, state: TrajectoryState, key: Any, size: int) -> tuple[Tree, tuple[jax.Array, jax.Array]]:
        """Draw `size` sequences, leaves (size, length, ...); return them with their actors and their first slots."""
        actor_key, sequence_key = jax.random.split(to_key(key))
        actor = jax.random.randint(actor_key, (size,), 0, self.actors)
        first, count = self._count_sequences(state)
        start = first + self.period * jax.random.randint(sequence_key, (size,), 0, jnp.maximum(count, 1))
        place = (start[:, None] + jnp.arange(self.length)) % self.capacity
        return jax.tree.map(lambda leaf: leaf[actor[:, None], place], state.steps), (actor, start % self.capacity)


@public("bushel.jit")
def n_step_return(rewards: jax.Array, dones: jax.Array, discount: float) -> tuple[jax.Array, jax.Array]:
    """Return the discounted sum of rewards over the last axis, up to the end of the episode, and a last factor.

    The factor is `discount**n`, or 0 if the episode ended. Multiply the value of the state after the n steps by it.

    >>> total, rest = n_step_return(jnp.ones(3), jnp.array([False, False, False]), 0.5)
    >>> float(total), float(rest)
    (1.75, 0.125)
    >>> total, rest = n_step_return(jnp.ones(3), jnp.array([False, True, False]), 0.5)
    >>> float(total), float(rest)
    (1.5, 0.0)
    """
    alive = jnp.cumprod(1 - dones.astype(rewards.dtype), axis=-1)
    alive_before = jnp.concatenate([jnp.ones_like(alive[..., :1]), alive[..., :-1]], axis=-1)
    factors = discount ** jnp.arange(rewards.shape[-1])
    return (rewards * alive_before * factors).sum(-1), alive[..., -1] * discount ** rewards.shape[-1]
