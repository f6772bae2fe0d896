"""Sequences of steps: a buffer that keeps them in order and gives out pieces, and returns over several steps."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bushel.base import checks, trees
from bushel.jit import words
from bushel.jit.protocol import Tree


class TrajectoryState(NamedTuple):
    """Steps of several actors side by side: leaves are (actors, capacity, ...). All write at one place."""

    steps: Tree
    held: jax.Array
    place: jax.Array


@dataclasses.dataclass(frozen=True)
class TrajectoryBuffer:
    """The newest `capacity` steps of each of `actors`, given out as pieces of `length` successive steps.

    A piece never goes over the place where writing goes on, and never from one actor to another. Pieces begin at every
    `period`-th step since the beginning of time, if `period` divides the capacity.

    >>> buffer = TrajectoryBuffer(actors=1, capacity=4, length=2)
    >>> state = buffer.init(jnp.int32(0))
    >>> state = buffer.add(state, jnp.arange(6)[None])
    >>> pieces, _ = buffer.sample(state, 0, 32)
    >>> sorted(set(map(tuple, pieces.tolist())))
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
            raise ValueError(f"Pieces of {self.length} steps do not fit a capacity of {self.capacity}.")
        if self.capacity % self.period:
            raise ValueError(f"period must divide the capacity {self.capacity}, got {self.period}.")

    def init(self, example: Tree) -> TrajectoryState:
        """An empty buffer for steps like `example`."""
        steps = jax.tree.map(
            lambda leaf: jnp.zeros((self.actors, self.capacity, *jnp.shape(leaf)), getattr(leaf, "dtype", None)),
            example,
        )
        return TrajectoryState(steps, jnp.int32(0), jnp.int32(0))

    def add(self, state: TrajectoryState, steps: Tree) -> TrajectoryState:
        """The state with the next steps of all actors: leaves (actors, time, ...)."""
        added = {leaf.shape[1] if leaf.ndim > 1 else -1 for leaf in jax.tree.leaves(steps)}
        fits = jax.tree.structure(steps) == jax.tree.structure(state.steps) and all(
            (new.shape[0], *new.shape[2:]) == (old.shape[0], *old.shape[2:]) and new.dtype == old.dtype
            for old, new in zip(jax.tree.leaves(state.steps), jax.tree.leaves(steps), strict=True)
        )
        if not fits or len(added) != 1:
            raise ValueError(
                f"This buffer keeps {trees.describe(state.steps)} (actors, steps, ...), got {trees.describe(steps)}."
            )
        count = added.pop()
        if count > self.capacity:
            steps = jax.tree.map(lambda leaf: leaf[:, count - self.capacity :], steps)
        kept = min(count, self.capacity)
        place = (state.place + count - kept + jnp.arange(kept)) % self.capacity
        new = jax.tree.map(lambda old, leaf: old.at[:, place].set(leaf), state.steps, steps)
        return TrajectoryState(
            new, jnp.minimum(state.held + count, self.capacity), (state.place + count) % self.capacity
        )

    def can_sample(self, state: TrajectoryState) -> jax.Array:
        """Whether there is a whole piece."""
        return self._pieces(state)[1] > 0

    def _pieces(self, state: TrajectoryState) -> tuple[jax.Array, jax.Array]:
        """The oldest step that a piece may begin with, and how many pieces there are."""
        oldest = (state.place - state.held) % self.capacity
        first = oldest + (-oldest) % self.period
        return first, jnp.maximum(0, (oldest + state.held - self.length - first) // self.period + 1)

    def sample(self, state: TrajectoryState, key: Any, size: int) -> tuple[Tree, tuple[jax.Array, jax.Array]]:
        """`size` pieces, leaves (size, length, ...), and where each comes from: its actor and its first place."""
        actor_key, piece_key = jax.random.split(words.as_key(key))
        actor = jax.random.randint(actor_key, (size,), 0, self.actors)
        first, pieces = self._pieces(state)
        start = first + self.period * jax.random.randint(piece_key, (size,), 0, jnp.maximum(pieces, 1))
        place = (start[:, None] + jnp.arange(self.length)) % self.capacity
        return jax.tree.map(lambda leaf: leaf[actor[:, None], place], state.steps), (actor, start % self.capacity)


def n_step_return(rewards: jax.Array, dones: jax.Array, discount: float) -> tuple[jax.Array, jax.Array]:
    """The discounted sum of rewards over the last axis, up to the end of the episode, and what discounts the rest.

    The second is `discount**n`, or 0 where the episode ended: multiply the value of the state after it.

    >>> total, rest = n_step_return(jnp.ones(3), jnp.array([False, False, False]), 0.5)
    >>> float(total), float(rest)
    (1.75, 0.125)
    >>> total, rest = n_step_return(jnp.ones(3), jnp.array([False, True, False]), 0.5)
    >>> float(total), float(rest)
    (1.5, 0.0)
    """
    going_on = jnp.cumprod(1 - dones.astype(rewards.dtype), axis=-1)
    before = jnp.concatenate([jnp.ones_like(going_on[..., :1]), going_on[..., :-1]], axis=-1)
    factors = discount ** jnp.arange(rewards.shape[-1])
    return (rewards * before * factors).sum(-1), going_on[..., -1] * discount ** rewards.shape[-1]
