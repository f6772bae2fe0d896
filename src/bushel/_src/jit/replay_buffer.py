"""Replay buffers as pure functions over arrays of fixed size: uniform, by priority, or of sequences.

`PrioritisedBuffer` has a sum tree, `TrajectoryBuffer` returns over several steps. `BufferTransform` is a stage with a
buffer.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from bushel._src.base import checks, trees
from bushel._src.base.public import public
from bushel._src.jit.record_order import permute_growing
from bushel._src.jit.source import Pytree, Source, Transform, Tree, child, find_specs, pytree_dataclass, stack_spec
from bushel._src.jit.uint32 import derive_seed, to_key, to_seed, to_uint32


@public("bushel.jit")
class ReplayState(NamedTuple):
    """The items of a buffer. The first `held` slots are in use, and `place` is the slot that is written next.

    `seen` counts all items that were ever added, modulo 2**32.
    """

    items: Tree
    held: jax.Array
    place: jax.Array
    seen: jax.Array


@public("bushel.jit")
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


@public("bushel.jit")
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


@public("bushel.jit")
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


@public("bushel.jit")
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
