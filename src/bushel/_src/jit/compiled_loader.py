"""`DataLoader`: a pipeline with its arrays, and the ways to run it: step by step, at any step, or a whole epoch."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bushel._src.base import hints
from bushel._src.base.errors import StateMismatch
from bushel._src.base.hints import explains_arguments
from bushel._src.base.public import public
from bushel._src.jit.common_transforms import MapTransform
from bushel._src.jit.source import IndexedSource, IndexedState, Source, Static, Tree, build, is_array, is_source
from bushel._src.jit.uint32 import to_key, to_seed, to_uint32
from bushel._src.state import state_forms

_CHUNK_RECORDS = 1 << 16  # how many records scan_epoch locates at once
_NUMBERS = ("seed", "epoch", "position")  # of a saved state, in the order of `IndexedState.numbers`
_DERIVED = ("next", "_parts")  # attributes of a loader that are computed from the others
_NOT_STATIC = ("source", *_DERIVED)

Body = Callable[[Any, Tree, jax.Array], tuple[Any, Any]]


@public("bushel.jit")
class LoaderState(NamedTuple):
    """The state of a loader. `inner_state` is the state of its pipeline."""

    inner_state: Any


class _LoaderParts:
    """The attribute `_parts` of a loader: its arrays, and everything else as structure. This makes it a pytree.

    JAX asks for the parts in every call of a compiled program, and compares the structure with that of the last call.
    So they are kept if the source is an indexed one, which is frozen: the same object is equal at once. A source of the
    user's may change between two calls.
    """

    def __get__(self, loader: DataLoader | None, owner: type[DataLoader]) -> Any:
        if loader is None:
            return self
        leaves, structure = jax.tree.flatten(loader.source)
        constants = tuple(None if is_array(leaf) else Static(leaf) for leaf in leaves)
        others = tuple((name, Static(value)) for name, value in vars(loader).items() if name not in _NOT_STATIC)
        parts = tuple(leaf for leaf in leaves if is_array(leaf)), (structure, constants, others)
        if isinstance(loader.source, IndexedSource):
            vars(loader)["_parts"] = parts  # Python looks here first, since this descriptor has no __set__
        return parts


_CALL = "Write `DataLoader([source, BatchTransform(4)])`."
_LOOP = (
    "Write `for batch, mask in loader.iterate(loader.init_state(0)): ...` in Python, or "
    "`loader.scan_epoch(state, carry, body)` for a whole epoch in one compiled loop."
)


@public("bushel.jit")
class DataLoader:
    """A source and the transforms after it, run inside `jax.jit`.

    The loader is a pytree whose leaves are the arrays of its sources. Pass it to a jitted function as an argument:
    then the data are arguments of the compiled program, and not constants in it.

    Args:
      pipeline: a source, or a list of a source and transforms.
      batch_transform: a function that is applied to each batch, last of all.

    >>> import numpy as np
    >>> from bushel.jit import ArraySource, BatchTransform
    >>> loader = DataLoader([ArraySource(np.arange(6), "sequential"), BatchTransform(3)])
    >>> batch, state, mask = loader.next_batch(loader.init_state(0))
    >>> batch.tolist(), mask.tolist()
    ([0, 1, 2], [True, True, True])
    """

    @explains_arguments(
        _CALL,
        batch_size="Write `DataLoader([source, BatchTransform({0})])`.",
        shuffle='Write `ArraySource(arrays, ordering="shuffle")`.',
        num_workers="Leave it out: the data are on the device, and the loader is a part of the compiled program.",
        drop_last='Write `BatchTransform(4, remainder="drop")`.',
        collate_fn="Write `batch_transform=...`: a function of a batch.",
    )
    def __init__(self, pipeline: Source | Sequence[Any], batch_transform: Callable[[Tree], Tree] | None = None):
        self.source: Any = _compose(pipeline)
        if batch_transform is not None and not callable(batch_transform):
            raise TypeError(f"batch_transform must be a function of a batch, got {batch_transform!r}. {_CALL}")
        if batch_transform is not None:
            self.source = MapTransform(functools.partial(_call_without_mask, batch_transform))(self.source)

    _parts = _LoaderParts()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _register(cls)  # JAX does not take a subclass of a pytree for a pytree

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self).pop("_parts", None)  # other attributes are part of the structure
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        vars(self).pop("_parts", None)
        super().__delattr__(name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in _DERIVED}

    @classmethod
    def _assemble(cls, static: Any, arrays: Any) -> DataLoader:
        """Return the loader with these arrays: the reverse of `_parts`."""
        structure, constants, others = static
        remaining = iter(arrays)
        source = structure.unflatten(next(remaining) if each is None else each.value for each in constants)
        loader = build(cls, source=source, **{name: each.value for name, each in others})
        if isinstance(source, IndexedSource):
            # `lower` puts descriptions of arrays in their place, which `_LoaderParts` would take for constants.
            vars(loader)["_parts"] = tuple(arrays), static
        return loader

    if not TYPE_CHECKING:  # so that a type checker still reports missing names
        __next__ = hints.Unsupported(f"A loader of bushel.jit has no position of its own. {_LOOP}")
        __getitem__ = hints.Unsupported("Write `batch, mask = loader.batch_at(step, seed)` for a batch by its number.")

        def __iter__(self) -> Any:
            raise TypeError(f"A loader of bushel.jit has no position of its own. {_LOOP}")

        def __dir__(self) -> list[str]:
            return hints.list_names(self)

        def __getattr__(self, name: str) -> Any:
            """Explain a name that is missing. Python calls this only for missing names."""
            hints.raise_missing(self, type(self).__name__, name, hints.JIT_LOADER)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, steps_per_epoch={self.steps_per_epoch})"

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self.source.steps_per_epoch

    def element_spec(self) -> Tree:
        """Return the shapes and dtypes of a batch."""
        return self.source.element_spec()

    def init_state(self, key: Any = None) -> LoaderState:
        """Return the state before the first batch.

        Args:
          key: an int seed, or a key of `jax.random`, possibly traced. The int s and `jax.random.key(s)` both give the
            order of `.seed(s).shuffle()` on the host.
        """
        if isinstance(self.source, IndexedSource):
            return _make_state(self, to_seed(key), to_uint32(0), to_uint32(0))
        return LoaderState(self.source.init_state(to_key(key)))

    def next_batch(self, state: LoaderState) -> tuple[Tree, LoaderState, jax.Array]:
        """Return the next batch, the state after it, and the mask, which is False where a row is padding."""
        return _next_batch(self, _check_state(self, state))

    @functools.cached_property
    def next(self) -> Callable[[LoaderState], tuple[Tree, LoaderState, jax.Array]]:
        """`next_batch`, always as the same object: a bound method is new each time, and `jax.jit` compiles it anew."""
        return functools.partial(type(self).next_batch, self)

    def batch_at(self, step: Any, key: Any = None, *, epoch: Any = 0) -> tuple[Tree, jax.Array]:
        """Return batch number `step` from the beginning of `epoch`, and its mask, without computing those before.

        `step` may be traced, and may be beyond the end of the epoch.
        """
        return _read_batch(self, to_seed(key), *self._find_position(step, epoch, "batch_at"))

    def state_at(self, step: Any, key: Any = None, *, epoch: Any = 0) -> LoaderState:
        """Return the state before batch number `step` of `epoch`: to begin, resume or skip to any step."""
        return _make_state(self, to_seed(key), *self._find_position(step, epoch, "state_at"))

    def _find_position(self, step: Any, epoch: Any, method: str) -> tuple[jax.Array, jax.Array]:
        """Return the epoch and the position of batch number `step` from the beginning of `epoch`."""
        length = self._require_indexed(method).length
        epochs, position = divmod(step if isinstance(step, int) else to_uint32(step), length)
        return to_uint32(epoch) + to_uint32(epochs), to_uint32(position)

    def _require_indexed(self, method: str) -> IndexedSource:
        if isinstance(self.source, IndexedSource):
            return self.source
        raise TypeError(
            f"{method} needs a source that computes any element directly. {type(self.source).__name__} can only be "
            "read in order."
        )

    def iterate(self, state: LoaderState, *, steps: int | None = None) -> CompiledIterator:
        """Return a Python iterator over (batch, mask), for an epoch or for `steps` batches.

        Its attribute `state` is the state after the last batch that it returned.
        """
        if steps is not None and steps < 0:
            raise ValueError(f"steps must not be negative, got {steps}.")
        return CompiledIterator(self, state, self.steps_per_epoch if steps is None else steps)

    def scan_epoch(self, state: Any, carry: Any, body_fn: Callable[..., Any], unroll: int | bool = 1) -> Any:
        """Run a whole epoch in one `jax.lax.scan`, with `body_fn(carry, batch, mask) -> (carry, output)` per batch.

        Returns `(state, carry, outputs)`. JAX compiles the scan once for each `body_fn`, so pass the same function
        every time.

        If your `body_fn(carry, _)` calls `next_batch` itself, put the loader's state into the carry and pass None as
        second argument: `(carry, outputs) = loader.scan_epoch(carry_with_state, None, body_fn)`.
        """
        if not isinstance(state, LoaderState):
            if carry is not None:
                raise TypeError(
                    f"scan_epoch takes the state that init_state returned, got {type(state).__name__}. "
                    "If the state is inside a carry of your own, pass that carry first and None second."
                )
            return jax.lax.scan(body_fn, state, None, length=self.steps_per_epoch, unroll=unroll)
        return _scan_epoch(self, _check_state(self, state), carry, body_fn, unroll)

    def to_host_state(self, state: LoaderState) -> dict[str, Any]:
        """Return the state for an iterator of the same pipeline on the host, for `iterator.set_state`.

        The loader does not know that pipeline, so `set_state` cannot compare it with this loader.
        """
        source = self._require_indexed("to_host_state")
        _, epoch, position = _list_numbers(_check_state(self, state))
        return state_forms.seal_for_host({"next_index": epoch * source.length + position})

    def from_host_state(self, state: Mapping[str, Any], key: Any = None) -> LoaderState:
        """Convert `iterator.get_state()` of the same pipeline on the host, with seed `key`, to a loader's state."""
        number: Any = state.get("next_index") if isinstance(state, Mapping) else None
        if not _is_integer(number) or number < 0:
            raise StateMismatch(
                "from_host_state takes the state of a host iterator over batches, which has an integer next_index; "
                f"got {state!r}."
            )
        return self.state_at(int(number), key)

    def save(self, state: LoaderState) -> dict[str, int]:
        """Return the state as three integers, for a checkpoint in JSON or any other format."""
        self._require_indexed("save")
        return dict(zip(_NUMBERS, _list_numbers(_check_state(self, state)), strict=True))

    def restore(self, saved: Mapping[str, int]) -> LoaderState:
        """Return the state that `save` was called with."""
        source = self._require_indexed("restore")
        if not isinstance(saved, Mapping) or set(saved) != set(_NUMBERS):
            raise StateMismatch(f"restore takes what save returned, a dict of seed, epoch and position; got {saved!r}.")
        for name, value in saved.items():
            if not _is_integer(value) or not 0 <= value < 1 << 32:
                raise StateMismatch(
                    f"Entry {name!r} of a saved state must be an integer from 0 to 2**32-1, got {value!r}.", name
                )
        if not 0 <= saved["position"] < source.length:
            raise StateMismatch(
                f"This state is at batch {saved['position']} of its epoch, but an epoch of this loader has "
                f"{source.length} batches. The state belongs to another loader.",
                "position",
            )
        return _make_state(self, *(to_uint32(int(saved[name])) for name in _NUMBERS))


def _register(cls: type[DataLoader]) -> None:
    """Make a class of loaders a pytree. `attrgetter` runs no Python code where the parts are kept."""
    jax.tree_util.register_pytree_node(cls, operator.attrgetter("_parts"), cls._assemble)


_register(DataLoader)


@public("bushel.jit")
class CompiledIterator(Iterator[tuple[Tree, jax.Array]]):
    """Batches and masks, one by one. `state` is the state after the last batch that the iterator returned."""

    def __init__(self, loader: DataLoader, state: LoaderState, steps: int):
        self.state = state
        self._loader = loader
        self._remaining = steps

    def __next__(self) -> tuple[Tree, jax.Array]:
        if self._remaining <= 0:
            raise StopIteration
        batch, self.state, mask = self._loader.next_batch(self.state)
        self._remaining -= 1
        return batch, mask


def _call_without_mask(fn: Callable[[Tree], Tree], batch: Tree, mask: jax.Array) -> Tree:
    return fn(batch)


def _compose(pipeline: Any) -> Any:
    """Apply the transforms of a pipeline to its source, one after the other."""
    if is_source(pipeline):
        return pipeline
    if not isinstance(pipeline, Sequence) or isinstance(pipeline, (str, bytes)):
        raise TypeError(f"A pipeline must be a source, or a list of a source and transforms; got {pipeline!r}.")
    if not pipeline:
        raise ValueError("A pipeline needs a source, got an empty list.")
    source, *stages = pipeline
    if not is_source(source):
        raise TypeError(f"A pipeline must begin with a source, such as `ArraySource(arrays)`, got {source!r}.")
    for number, stage in enumerate(stages, start=1):
        if not callable(stage):
            raise TypeError(f"Stage {number} of the pipeline must be a transform, got {stage!r}.")
        source = stage(source)
        if not is_source(source):
            raise TypeError(f"Stage {number} of the pipeline must return a source: {stage!r} returned {source!r}.")
    return source


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_state(loader: DataLoader, state: Any) -> LoaderState:
    if not isinstance(state, LoaderState):
        raise TypeError(f"A loader takes the state that its init_state returned, got {type(state).__name__}.")
    if isinstance(loader.source, IndexedSource) and not isinstance(state.inner_state, IndexedState):
        raise TypeError("This state belongs to another loader.")
    return state


def _list_numbers(state: LoaderState) -> list[int]:
    """Return seed, epoch and position of a loader's state, with one copy from the device."""
    return [int(number) for number in np.asarray(state.inner_state.numbers)]


@jax.jit
def _next_batch(loader: DataLoader, state: LoaderState) -> tuple[Tree, LoaderState, jax.Array]:
    value, mask, inner_state = loader.source.next(state.inner_state)
    return value, LoaderState(inner_state), mask


@jax.jit
def _make_state(loader: DataLoader, seed: jax.Array, epoch: jax.Array, position: jax.Array) -> LoaderState:
    return LoaderState(loader.source._make_state(seed, epoch, position))


@jax.jit
def _read_batch(loader: DataLoader, seed: Any, epoch: Any, position: Any) -> tuple[Tree, jax.Array]:
    source = loader.source
    return source._read_element(source._locate_next(source._make_state(seed, epoch, position)))


@functools.partial(jax.jit, static_argnums=(3, 4))
def _scan_epoch(loader: DataLoader, state: LoaderState, carry: Any, body_fn: Body, unroll: int | bool) -> Any:
    source = loader.source
    if isinstance(source, IndexedSource):
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


def _scan_indexed(source: IndexedSource, state: IndexedState, carry: Any, body_fn: Body, unroll: int | bool) -> Any:
    """Run an epoch in chunks: locate the records of many batches at once, then gather one batch after the other.

    A chunk has a fixed number of records, so that the memory for their addresses does not grow with the data.
    """
    steps = source.length
    size = min(steps, max(1, _CHUNK_RECORDS // math.prod(source.shape)))
    first = source._find_record_epoch(state.epoch, state.position)
    tables = source._prepare_tables(state.seed, first, steps)

    def locate(numbers: jax.Array) -> Any:
        position = state.position + numbers
        over = position >= steps
        return source._locate(state.seed, tables, state.epoch + over, jnp.where(over, position - steps, position))

    def step(carry: Any, address: Any) -> Any:
        value, mask = source._read_element(address)
        return body_fn(carry, value, mask)

    def run_chunk(carry: Any, start: jax.Array) -> Any:
        addresses = locate(start + jnp.arange(size, dtype=jnp.uint32))
        return jax.lax.scan(step, carry, addresses, unroll=unroll)

    whole, rest = divmod(steps, size)
    if whole == 1:  # without a loop around it: a loop of one turn costs as much as several steps on a GPU
        carry, outputs = run_chunk(carry, jnp.uint32(0))
    else:
        carry, outputs = jax.lax.scan(run_chunk, carry, jnp.arange(whole, dtype=jnp.uint32) * size)
        outputs = jax.tree.map(lambda leaf: leaf.reshape(whole * size, *leaf.shape[2:]), outputs)
    if rest:
        addresses = locate(whole * size + jnp.arange(rest, dtype=jnp.uint32))
        carry, more = jax.lax.scan(step, carry, addresses, unroll=unroll)
        outputs = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), outputs, more)
    end = source._make_state(state.seed, state.epoch + 1, state.position)
    return LoaderState(end), carry, outputs
