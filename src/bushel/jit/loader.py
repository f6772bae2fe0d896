"""The loader: a pipeline with its arrays, and the ways to run through it. A pytree that jit takes as an argument."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bushel.base.errors import StateMismatch
from bushel.jit import words
from bushel.jit.nodes import Held, is_array
from bushel.jit.protocol import Indexed, Position, Prepared, Source, Tree, is_source
from bushel.jit.transforms import MapTransform

_CHUNK = 1 << 16  # records whose positions are computed at a time in scan_epoch

Body = Callable[[Any, Tree, jax.Array], tuple[Any, Any]]


class LoaderState(NamedTuple):
    """Where a loader stands. `inner_state` is that of its pipeline."""

    inner_state: Any


@jax.tree_util.register_pytree_node_class
class DataLoader:
    """A source and transforms behind it, run inside `jax.jit`.

    The loader is a pytree whose leaves are the arrays of its sources: give it to a jitted function as an argument,
    and the data are arguments of the compiled program, not constants in it.

    Args:
      pipeline: a source, or a list of a source and transforms.
      batch_transform: a function of a batch, applied last.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource, BatchTransform
    >>> loader = DataLoader([ArraySource(np.arange(6), "sequential"), BatchTransform(3)])
    >>> batch, state, mask = loader.next_batch(loader.init_state(0))
    >>> batch.tolist(), mask.tolist()
    ([0, 1, 2], [True, True, True])
    """

    def __init__(self, pipeline: Source | Sequence[Any], batch_transform: Callable[[Tree], Tree] | None = None):
        self.source = _composed(pipeline)
        if batch_transform is not None:
            self.source = MapTransform(lambda batch, mask: batch_transform(batch))(self.source)

    def tree_flatten(self) -> tuple[list[Any], Any]:
        """The arrays, and everything else as structure."""
        leaves, structure = jax.tree.flatten(self.source)
        constants = tuple(None if is_array(leaf) else Held(leaf) for leaf in leaves)
        return [leaf for leaf in leaves if is_array(leaf)], (structure, constants)

    @classmethod
    def tree_unflatten(cls, held: Any, arrays: Any) -> DataLoader:
        """The loader with these arrays."""
        structure, constants = held
        left = iter(arrays)
        loader = object.__new__(cls)
        loader.source = structure.unflatten(next(left) if each is None else each.value for each in constants)
        return loader

    def __repr__(self) -> str:
        return f"DataLoader({type(self.source).__name__} of {self.steps_per_epoch} steps per epoch)"

    @property
    def steps_per_epoch(self) -> int:
        """How many batches make an epoch."""
        return self.source.steps_per_epoch

    def element_spec(self) -> Tree:
        """Shapes and dtypes of a batch."""
        return self.source.element_spec()

    def init_state(self, key: Any = None) -> LoaderState:
        """The state before the first batch.

        Args:
          key: an int seed, or a key of `jax.random`, possibly traced. The seed s and `jax.random.key(s)` give the
            order of `.seed(s).shuffle()` on the host.
        """
        if isinstance(self.source, Indexed):
            return _state_at(self, words.seed_of(key), words.word(0), words.word(0))
        return LoaderState(self.source.init_state(words.as_key(key)))

    def next_batch(self, state: LoaderState) -> tuple[Tree, LoaderState, jax.Array]:
        """The next batch, the state after it, and the mask: False where a row is padding."""
        return _next_batch(self, _state_of(self, state))

    @property
    def next(self) -> Callable[[LoaderState], tuple[Tree, LoaderState, jax.Array]]:
        """`next_batch`, as one object per loader, so that `jax.jit(loader.next)` is compiled once."""
        made = self.__dict__.get("_next")
        if made is None:
            made = self.__dict__["_next"] = functools.partial(DataLoader.next_batch, self)
        return made

    def batch_at(self, step: Any, key: Any = None, *, epoch: Any = 0) -> tuple[Tree, jax.Array]:
        """Batch number `step` from the beginning of `epoch`, and its mask, without the ones before.

        `step` may be traced, and may go past the end of the epoch.
        """
        value, mask = _element_at(self, words.seed_of(key), *self._place(step, epoch))
        return value, mask

    def state_at(self, step: Any, key: Any = None, *, epoch: Any = 0) -> LoaderState:
        """The state before batch number `step` of `epoch`: to begin, to resume or to skip anywhere."""
        return _state_at(self, words.seed_of(key), *self._place(step, epoch))

    def _place(self, step: Any, epoch: Any) -> tuple[jax.Array, jax.Array]:
        length = self._indexed("A batch by its number").length
        more, position = divmod(step if isinstance(step, int) else words.word(step), length)
        return words.word(epoch) + words.word(more), words.word(position)

    def _indexed(self, what: str) -> Indexed:
        if isinstance(self.source, Indexed):
            return self.source
        raise TypeError(
            f"{what} needs a source that is a function of a position; {type(self.source).__name__} can only go on."
        )

    def iterate(self, state: LoaderState, *, steps: int | None = None) -> LoaderIterator:
        """A Python iterator over (batch, mask), for an epoch or for `steps` batches; `.state` is where it stands."""
        if steps is not None and steps < 0:
            raise ValueError(f"steps must not be negative, got {steps}.")
        return LoaderIterator(self, state, self.steps_per_epoch if steps is None else steps)

    def scan_epoch(self, state: Any, carry: Any, body_fn: Callable[..., Any], unroll: int | bool = 1) -> Any:
        """A whole epoch in one `jax.lax.scan`: `body_fn(carry, batch, mask) -> (carry, output)` for each batch.

        Returns `(state, carry, outputs)`. It is compiled once for a loader's structure and a `body_fn`, so hand in
        the same function every time.

        A `body_fn(carry, _)` that calls `next_batch` itself is scanned with the loader's state inside the carry:
        `(carry, outputs) = loader.scan_epoch(carry_with_state, None, body_fn)`.
        """
        if not isinstance(state, LoaderState):
            if carry is not None:
                raise TypeError(
                    f"scan_epoch takes the state that init_state gave, got {type(state).__name__}. "
                    "With the state inside a carry of your own, give that carry first and None second."
                )
            return jax.lax.scan(body_fn, state, None, length=self.steps_per_epoch, unroll=unroll)
        return _scan_epoch(self, _state_of(self, state), carry, body_fn, unroll)

    def to_host_state(self, state: LoaderState) -> dict[str, int]:
        """The state for an iterator of the same pipeline on the host: `iterator.set_state(...)`."""
        place: Position = _state_of(self, state).inner_state
        return {"next_index": int(place.epoch) * self._indexed("to_host_state").length + int(place.position)}

    def from_host_state(self, state: Mapping[str, Any], key: Any = None) -> LoaderState:
        """The state that belongs to `iterator.get_state()` of the same pipeline on the host, with seed `key`."""
        number = state.get("next_index") if isinstance(state, Mapping) else None
        if not isinstance(number, (int, np.integer)) or isinstance(number, bool) or number < 0:
            raise StateMismatch(
                f"A loader resumes where a host iterator of batches stood: a state with next_index, got {state!r}."
            )
        return self.state_at(int(number), key)

    def save(self, state: LoaderState) -> dict[str, int]:
        """The state as three integers, for a checkpoint in JSON or anywhere else."""
        self._indexed("save")
        place: Position = _state_of(self, state).inner_state
        return {"seed": int(place.seed), "epoch": int(place.epoch), "position": int(place.position)}

    def restore(self, saved: Mapping[str, int]) -> LoaderState:
        """The state that `save` wrote."""
        source = self._indexed("restore")
        if not isinstance(saved, Mapping) or set(saved) != {"seed", "epoch", "position"}:
            raise StateMismatch(f"restore takes what save gave: seed, epoch and position; got {saved!r}.")
        for name, value in saved.items():
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if not whole or not 0 <= value < 1 << 32:
                raise StateMismatch(f"Entry {name!r} of a saved state is a number of 32 bits, got {value!r}.", name)
        if not 0 <= saved["position"] < source.length:
            raise StateMismatch(
                f"This state is at batch {saved['position']} of its epoch; here an epoch has {source.length} batches. "
                "It belongs to another loader.",
                "position",
            )
        return _state_at(self, *(words.word(int(saved[name])) for name in ("seed", "epoch", "position")))


class LoaderIterator(Iterator[tuple[Tree, jax.Array]]):
    """Batches and masks one by one; `state` belongs to what was delivered."""

    def __init__(self, loader: DataLoader, state: LoaderState, steps: int):
        self.state = state
        self._loader = loader
        self._left = steps

    def __next__(self) -> tuple[Tree, jax.Array]:
        if self._left <= 0:
            raise StopIteration
        batch, self.state, mask = self._loader.next_batch(self.state)
        self._left -= 1
        return batch, mask


def _composed(pipeline: Any) -> Any:
    """The source that a pipeline comes to."""
    if is_source(pipeline):
        return pipeline
    if not isinstance(pipeline, Sequence) or isinstance(pipeline, (str, bytes)):
        raise TypeError(f"A pipeline is a source, or a list of a source and transforms; got {pipeline!r}.")
    if not pipeline:
        raise ValueError("A pipeline needs a source, got an empty list.")
    source, *stages = pipeline
    if not is_source(source):
        raise TypeError(f"A pipeline begins with a source, got {source!r}.")
    for number, stage in enumerate(stages, start=1):
        if not callable(stage):
            raise TypeError(f"Stage {number} of the pipeline is no transform: {stage!r}.")
        made = stage(source)
        if not is_source(made):
            raise TypeError(f"Stage {number} of the pipeline gave no source: {stage!r} returned {made!r}.")
        source = made
    return source


def _state_of(loader: DataLoader, state: Any) -> LoaderState:
    if not isinstance(state, LoaderState):
        raise TypeError(f"A loader takes the state that its init_state gave, got {type(state).__name__}.")
    if isinstance(loader.source, Indexed) and not isinstance(state.inner_state, Position):
        raise TypeError("This state belongs to another loader.")
    return state


@jax.jit
def _next_batch(loader: DataLoader, state: LoaderState) -> tuple[Tree, LoaderState, jax.Array]:
    value, mask, inner_state = loader.source.next(state.inner_state)
    return value, LoaderState(inner_state), mask


@jax.jit
def _state_at(loader: DataLoader, seed: jax.Array, epoch: jax.Array, position: jax.Array) -> LoaderState:
    source: Any = loader.source
    return LoaderState(source.at(seed, epoch, position))


@jax.jit
def _element_at(loader: DataLoader, seed: Any, epoch: Any, position: Any) -> tuple[Tree, jax.Array]:
    source: Any = loader.source
    return source.element(source.address(source.at(seed, epoch, position)))


@functools.partial(jax.jit, static_argnums=(3, 4))
def _scan_epoch(loader: DataLoader, state: LoaderState, carry: Any, body_fn: Body, unroll: int | bool) -> Any:
    source = loader.source
    if isinstance(source, Indexed):
        return _scan_indexed(source, state.inner_state, carry, body_fn, unroll)

    def step(loop: Any, _: None) -> Any:
        inner_state, carry = loop
        value, mask, inner_state = source.next(inner_state)
        carry, output = body_fn(carry, value, mask)
        return (inner_state, carry), output

    (inner_state, carry), outputs = jax.lax.scan(
        step, (state.inner_state, carry), length=source.steps_per_epoch, unroll=unroll
    )
    return LoaderState(inner_state), carry, outputs


def _scan_indexed(source: Indexed, state: Position, carry: Any, body_fn: Body, unroll: int | bool) -> Any:
    """An epoch in chunks: the records of many batches are found at once, then batch by batch is gathered."""
    steps = source.length
    records = max(1, functools.reduce(lambda a, b: a * b, source.shape, 1))
    size = min(steps, max(1, _CHUNK // records))
    first = source.first_epoch(state.epoch, state.position)
    prepared = source.prepare(state.seed, first, steps) or Prepared(first, None)

    def locate(numbers: jax.Array) -> Any:
        position = state.position + numbers
        over = position >= steps
        return source.locate(state.seed, prepared, state.epoch + over, jnp.where(over, position - steps, position))

    def step(carry: Any, address: Any) -> Any:
        value, mask = source.element(address)
        return body_fn(carry, value, mask)

    def chunk(carry: Any, start: jax.Array) -> Any:
        addresses = locate(start + jnp.arange(size, dtype=jnp.uint32))
        return jax.lax.scan(step, carry, addresses, unroll=unroll)

    whole, rest = divmod(steps, size)
    carry, outputs = jax.lax.scan(chunk, carry, jnp.arange(whole, dtype=jnp.uint32) * size)
    outputs = jax.tree.map(lambda leaf: leaf.reshape(whole * size, *leaf.shape[2:]), outputs)
    if rest:
        addresses = locate(whole * size + jnp.arange(rest, dtype=jnp.uint32))
        carry, more = jax.lax.scan(step, carry, addresses, unroll=unroll)
        outputs = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), outputs, more)
    end = source.at(state.seed, state.epoch + 1, state.position)
    return LoaderState(end), carry, outputs
