"""`ReplayBuffer`, a replay buffer as pure functions over arrays of fixed size, and `BufferTransform`, a stage with one.

Draws by priority are in prioritised_buffer.py, sequences of steps in trajectory_buffer.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from bushel.base import checks, trees
from bushel.jit.pytree import Pytree, child, pytree_dataclass
from bushel.jit.record_order import permute_growing
from bushel.jit.source import Source, Tree, find_specs, stack_spec
from bushel.jit.transform_base import Transform
from bushel.jit.uint32 import derive_seed, to_key, to_seed, to_uint32


class ReplayState(NamedTuple):
    """The items of a buffer. The first `held` slots are in use, and `place` is the slot that is written next.

    `seen` counts all items that were ever added, modulo 2**32.
    """

    items: Tree
    held: jax.Array
    place: jax.Array
    seen: jax.Array


@dataclasses.dataclass(frozen=True)
class ReplayBuffer:
    """A buffer of the newest `capacity` items, or with `write="reservoir"` of a uniform sample of all items so far.

    >>> buffer = ReplayBuffer(4)
    >>> state = buffer.init({"x": jnp.int32(0)})
    >>> state = buffer.add(state, {"x": jnp.arange(6)})
    >>> state.items["x"].tolist(), int(state.held)
    ([4, 5, 2, 3], 4)
    """

    capacity: int
    write: Literal["fifo", "reservoir"] = "fifo"

    def __post_init__(self) -> None:
        checks.positive(self.capacity, "capacity")
        checks.choice(self.write, ("fifo", "reservoir"), "write")

    def init(self, example: Tree) -> ReplayState:
        """Return an empty buffer for items like `example`, which may also be a tree of `jax.ShapeDtypeStruct`."""
        zero = jnp.int32(0)
        items = jax.tree.map(
            lambda leaf: jnp.zeros((self.capacity, *jnp.shape(leaf)), getattr(leaf, "dtype", None)), example
        )
        if not jax.tree.leaves(items):
            raise ValueError(f"A buffer needs items with at least one array, got {trees.describe(example)}.")
        return ReplayState(items, zero, zero, jnp.uint32(0))

    def add(self, state: ReplayState, items: Tree, mask: jax.Array | None = None, key: Any = None) -> ReplayState:
        """Return the state with a batch of items added, without those where `mask` is False. Reservoirs need a key."""
        size = count_items(state.items, items)
        mask = jnp.ones(size, bool) if mask is None else mask
        number = jnp.cumsum(mask) - mask  # how many real items of this batch come before each item
        added = mask.sum()
        if self.write == "fifo":
            mask = mask & (number >= added - self.capacity)  # of more items than the capacity, only the last are kept
            slot = (state.place + number) % self.capacity
        else:
            if key is None:
                raise ValueError("A reservoir replaces random items, so add needs a key.")
            drawn = draw_below(to_key(key), state.seen + to_uint32(number) + 1)
            filling = state.held + number < self.capacity
            slot = jnp.where(filling, state.held + number, drawn.astype(jnp.int32))
            mask = mask & (filling | (drawn < self.capacity))
            mask = mask & _is_last_of_slot(jnp.where(mask, slot, -1))
        slot = jnp.where(mask, slot, self.capacity)  # a slot out of bounds is not written
        kept = jax.tree.map(lambda old, new: old.at[slot].set(new, mode="drop"), state.items, items)
        count = jnp.minimum(state.held + added, self.capacity).astype(jnp.int32)
        place = ((state.place + added) % self.capacity).astype(jnp.int32)
        return ReplayState(kept, count, place, state.seen + to_uint32(added))

    def sample(self, state: ReplayState, key: Any, size: int) -> tuple[Tree, jax.Array]:
        """Draw `size` items with replacement, each with the same probability; return them and their slots."""
        place = jax.random.randint(to_key(key), (size,), 0, jnp.maximum(state.held, 1))
        return self.take(state, place), place

    def take(self, state: ReplayState, place: jax.Array) -> Tree:
        """Return the items in these slots."""
        return jax.tree.map(lambda leaf: leaf[place], state.items)

    def steps_per_epoch(self, state: ReplayState, size: int) -> jax.Array:
        """Return the number of batches of `size` items in an epoch over the current items, as a traced number."""
        return -(-state.held // size)

    def epoch_batch(self, state: ReplayState, step: Any, size: int, key: Any = None, epoch: Any = 0) -> Any:
        """Return batch `step` of an epoch over the current items, and its mask. Each item comes once in an epoch.

        Every epoch has another random order. The buffer may grow from epoch to epoch; JAX does not compile again.
        """
        position = to_uint32(step) * size + jnp.arange(size, dtype=jnp.uint32)
        seed = derive_seed(to_seed(key)) + to_uint32(epoch)
        place = permute_growing(position, length=to_uint32(state.held), seed=seed)
        return self.take(state, place), position < to_uint32(state.held)


def count_items(kept: Tree, items: Tree, axis: int = 0) -> int:
    """Return the number of new items along `axis`. Raise an error if a buffer of `kept` items cannot hold them."""

    def drop_axis(shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[:axis] + shape[axis + 1 :]

    same = jax.tree.structure(kept) == jax.tree.structure(items) and all(
        new.ndim > axis and drop_axis(new.shape) == drop_axis(old.shape) and new.dtype == old.dtype
        for old, new in zip(jax.tree.leaves(kept), jax.tree.leaves(items), strict=True)
    )
    sizes = {leaf.shape[axis] for leaf in jax.tree.leaves(items) if leaf.ndim > axis}
    if not same or len(sizes) != 1:
        raise ValueError(f"This buffer holds {trees.describe(kept)}, got a batch of {trees.describe(items)}.")
    return sizes.pop()


def draw_below(key: jax.Array, limits: jax.Array) -> jax.Array:
    """Draw a random uint32 below each of `limits`."""
    return jax.random.randint(key, limits.shape, jnp.uint32(0), limits, dtype=jnp.uint32)


def _is_last_of_slot(slot: jax.Array) -> jax.Array:
    """Return a mask that is False where a later item has the same slot: XLA does not say which one it would write."""
    later = jnp.triu(slot[:, None] == slot[None, :], k=1)
    return ~later.any(axis=1)


class BufferState(NamedTuple):
    """The state of a stage with a buffer. `read` is the slot that a sequential buffer returns next."""

    inner_state: Any
    buffer: ReplayState
    read: jax.Array
    key: jax.Array


@dataclasses.dataclass(frozen=True)
class BufferTransform(Transform):
    """Put each element into a buffer and return `sample_size` elements of the buffer.

    Until the buffer has `prefill` elements, each result is the new element alone: the mask is False for all other rows.

    Args:
      capacity: the most elements that the buffer holds.
      prefill: how many elements the buffer needs before it is read.
      sample_size: how many elements are returned for each new one.
      mode: "sequential" reads the buffer slot by slot, from the start again after the end; "shuffled" draws at random.
      write_mode: "fifo" replaces the oldest element, "reservoir" keeps a uniform sample of all elements.
    """

    capacity: int
    prefill: int
    sample_size: int = 1
    mode: Literal["sequential", "shuffled"] = "sequential"
    write_mode: Literal["fifo", "reservoir"] = "fifo"

    def __post_init__(self) -> None:
        checks.positive(self.prefill, "prefill")
        checks.positive(self.sample_size, "sample_size")
        checks.choice(self.write_mode, ("fifo", "reservoir"), "write_mode")
        ReplayBuffer(self.capacity, self.write_mode)
        if not self.sample_size <= self.prefill <= self.capacity:
            raise ValueError(
                f"A buffer needs sample_size <= prefill <= capacity, got {self.sample_size}, {self.prefill} and "
                f"{self.capacity}."
            )
        checks.choice(self.mode, ("sequential", "shuffled"), "mode")

    def __call__(self, inner: Source) -> Source:
        return BufferedStream(inner, self)


@pytree_dataclass
class BufferedStream(Pytree):
    """The elements of a source, read through a buffer."""

    inner: Any = child()
    settings: BufferTransform

    @property
    def steps_per_epoch(self) -> int:
        return self.inner.steps_per_epoch

    @property
    def _buffer(self) -> ReplayBuffer:
        return ReplayBuffer(self.settings.capacity, self.settings.write_mode)

    def element_spec(self) -> Tree:
        return self._get_specs()[0]

    def _get_specs(self) -> tuple[Tree, Any]:
        spec, size = (find_specs(self.inner)[0], jax.ShapeDtypeStruct((), bool)), self.settings.sample_size
        return spec if size == 1 else stack_spec(spec, size)

    def init_state(self, key: Any = None) -> BufferState:
        buffer = self._buffer.init(find_specs(self.inner)[0])
        return BufferState(self.inner.init_state(key), buffer, jnp.int32(0), jax.random.fold_in(to_key(key), 1))

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
