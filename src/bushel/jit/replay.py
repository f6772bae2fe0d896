"""Replay buffers as pure functions: items are kept in arrays of fixed size, first in first out or as a reservoir.

Priorities are in priority.py, sequences of steps in trajectories.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bushel.base import checks, trees
from bushel.jit import words
from bushel.jit.nodes import child, node
from bushel.jit.order import growing
from bushel.jit.protocol import Source, Tree, specs_of, stacked_spec
from bushel.jit.transform import Transform


class ReplayState(NamedTuple):
    """What a buffer holds. `seen` counts all items that ever came, modulo 2**32."""

    items: Tree
    held: jax.Array
    place: jax.Array
    seen: jax.Array


@dataclasses.dataclass(frozen=True)
class ReplayBuffer:
    """Keeps the newest `capacity` items, or with `write="reservoir"` a fair sample of all that ever came.

    >>> buffer = ReplayBuffer(4)
    >>> state = buffer.init({"x": jnp.int32(0)})
    >>> state = buffer.add(state, {"x": jnp.arange(6)})
    >>> state.items["x"].tolist(), int(state.held)
    ([4, 5, 2, 3], 4)
    """

    capacity: int
    write: str = "fifo"

    def __post_init__(self) -> None:
        checks.positive(self.capacity, "capacity")
        if self.write not in ("fifo", "reservoir"):
            raise ValueError(f"write is 'fifo' or 'reservoir', got {self.write!r}.")

    def init(self, example: Tree) -> ReplayState:
        """An empty buffer for items like `example`, or like specs of shapes and dtypes."""
        zero = jnp.int32(0)
        items = jax.tree.map(
            lambda leaf: jnp.zeros((self.capacity, *jnp.shape(leaf)), getattr(leaf, "dtype", None)), example
        )
        if not jax.tree.leaves(items):
            raise ValueError(f"A buffer keeps arrays, got {trees.describe(example)}.")
        return ReplayState(items, zero, zero, jnp.uint32(0))

    def add(self, state: ReplayState, items: Tree, mask: jax.Array | None = None, key: Any = None) -> ReplayState:
        """The state with a batch of items added, all but those where `mask` is False. A reservoir needs a key."""
        size = fitting(state.items, items)
        mask = jnp.ones(size, bool) if mask is None else mask
        number = jnp.cumsum(mask) - mask  # how many real items come before each in this batch
        added = mask.sum()
        if self.write == "fifo":
            mask = mask & (number >= added - self.capacity)  # of more items than there is place for, the last
            slot = (state.place + number) % self.capacity
        else:
            if key is None:
                raise ValueError("A reservoir decides by chance which item makes room: add needs a key.")
            drawn = draw_below(words.as_key(key), state.seen + words.word(number) + 1)
            filling = state.held + number < self.capacity
            slot = jnp.where(filling, state.held + number, drawn.astype(jnp.int32))
            mask = mask & (filling | (drawn < self.capacity))
            mask = mask & _last_of_each(jnp.where(mask, slot, -1))
        slot = jnp.where(mask, slot, self.capacity)  # out of bounds: dropped
        kept = jax.tree.map(lambda old, new: old.at[slot].set(new, mode="drop"), state.items, items)
        count = jnp.minimum(state.held + added, self.capacity).astype(jnp.int32)
        place = ((state.place + added) % self.capacity).astype(jnp.int32)
        return ReplayState(kept, count, place, state.seen + words.word(added))

    def sample(self, state: ReplayState, key: Any, size: int) -> tuple[Tree, jax.Array]:
        """`size` items drawn with replacement, all with one probability, and their places."""
        place = jax.random.randint(words.as_key(key), (size,), 0, jnp.maximum(state.held, 1))
        return self.take(state, place), place

    def take(self, state: ReplayState, place: jax.Array) -> Tree:
        """The items at these places."""
        return jax.tree.map(lambda leaf: leaf[place], state.items)

    def steps_per_epoch(self, state: ReplayState, size: int) -> jax.Array:
        """How many batches of `size` an epoch over what is there now has: a traced number."""
        return -(-state.held // size)

    def epoch_batch(self, state: ReplayState, step: Any, size: int, key: Any = None, epoch: Any = 0) -> Any:
        """Batch `step` of an epoch over what is in the buffer now: each item once, in an order of its own.

        Returns the batch and its mask. The buffer may grow from epoch to epoch; nothing is compiled again.
        """
        position = words.word(step) * size + jnp.arange(size, dtype=jnp.uint32)
        seed = words.derive(words.seed_of(key)) + words.word(epoch)
        place = growing(position, length=words.word(state.held), seed=seed)
        return self.take(state, place), position < words.word(state.held)


def fitting(kept: Tree, items: Tree) -> int:
    """How many items there are, once it is clear that a buffer can keep them."""
    ours, theirs = jax.tree.structure(kept), jax.tree.structure(items)
    same = ours == theirs and all(
        new.ndim and new.shape[1:] == old.shape[1:] and new.dtype == old.dtype
        for old, new in zip(jax.tree.leaves(kept), jax.tree.leaves(items), strict=True)
    )
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(items) if leaf.ndim}
    if not same or len(sizes) != 1:
        raise ValueError(f"This buffer keeps {trees.describe(kept)}, got a batch of {trees.describe(items)}.")
    return sizes.pop()


def draw_below(key: jax.Array, limits: jax.Array) -> jax.Array:
    """A random word below each of `limits`."""
    return jax.random.randint(key, limits.shape, jnp.uint32(0), limits, dtype=jnp.uint32)


def _last_of_each(slot: jax.Array) -> jax.Array:
    """Where no later item goes to the same slot: with several for one, XLA does not say which is written."""
    later = jnp.triu(slot[:, None] == slot[None, :], k=1)
    return ~later.any(axis=1)


class BufferState(NamedTuple):
    """The state of a buffered pipeline."""

    inner_state: Any
    buffer: ReplayState
    read: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class BufferTransform(Transform):
    """Keeps elements as they come and gives out what it holds: one comes in, `sample_size` go out.

    Until `prefill` elements are there, each goes through as it came, alone in its row; the mask tells.

    Args:
      mode: "sequential" walks through the buffer in a circle, "shuffled" draws at random.
      write_mode: "fifo" or "reservoir".
    """

    capacity: int
    prefill: int
    sample_size: int = 1
    mode: str = "sequential"
    write_mode: str = "fifo"

    def __post_init__(self) -> None:
        checks.positive(self.prefill, "prefill")
        checks.positive(self.sample_size, "sample_size")
        ReplayBuffer(self.capacity, self.write_mode)
        if not self.sample_size <= self.prefill <= self.capacity:
            raise ValueError(
                f"A buffer needs sample_size <= prefill <= capacity, got {self.sample_size}, {self.prefill} and "
                f"{self.capacity}."
            )
        if self.mode not in ("sequential", "shuffled"):
            raise ValueError(f"mode is 'sequential' or 'shuffled', got {self.mode!r}.")

    def __call__(self, inner: Source) -> Source:
        return Buffered(inner, self)


@node
class Buffered:
    """Elements of a source by way of a buffer."""

    inner: Any = child()
    settings: BufferTransform = dataclasses.field(default=BufferTransform(1, 1))

    @property
    def steps_per_epoch(self) -> int:
        return self.inner.steps_per_epoch

    @property
    def _buffer(self) -> ReplayBuffer:
        return ReplayBuffer(self.settings.capacity, self.settings.write_mode)

    def element_spec(self) -> Tree:
        spec = specs_of(self.inner)[0]
        return spec if self.settings.sample_size == 1 else stacked_spec(spec, self.settings.sample_size)

    def init_state(self, key: Any = None) -> BufferState:
        buffer = self._buffer.init(specs_of(self.inner)[0])
        return BufferState(self.inner.init_state(key), buffer, jnp.int32(0), jax.random.fold_in(words.as_key(key), 1))

    def next(self, state: BufferState) -> tuple[Tree, jax.Array, BufferState]:
        value, mask, inner_state = self.inner.next(state.inner_state)
        mask = jnp.asarray(mask).all()
        key, write_key, read_key = jax.random.split(state.key, 3)
        row = jax.tree.map(lambda leaf: leaf[None], value)
        buffer = self._buffer.add(state.buffer, row, mask[None], write_key)
        size, count = self.settings.sample_size, jnp.maximum(buffer.held, 1)
        if self.settings.mode == "sequential":
            place = (state.read + jnp.arange(size)) % count
        else:
            place = jax.random.randint(read_key, (size,), 0, count)
        ready = state.buffer.held >= self.settings.prefill
        read = state.read
        if self.settings.mode == "sequential":
            read = jnp.where(ready, (state.read + size) % count, state.read)
        held = self._buffer.take(buffer, place)
        alone = jax.tree.map(lambda leaf, new: jnp.zeros_like(leaf).at[0].set(new), held, value)
        out = jax.tree.map(lambda a, b: jnp.where(ready, a, b), held, alone)
        real = jnp.where(ready, True, mask & (jnp.arange(size) == 0))
        if size == 1:
            out, real = jax.tree.map(lambda leaf: leaf[0], out), real[0]
        return out, real, BufferState(inner_state, buffer, read, key)
