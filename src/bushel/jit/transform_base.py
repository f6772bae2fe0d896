"""What a transform is: a stage that is called with a source and returns a source.

The transforms themselves are in common_transforms.py, image_augmentation.py, host_callbacks.py and replay_buffer.py.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Self, overload

import jax

from bushel.base import trees
from bushel.jit.pytree import Pytree, child, pytree_dataclass
from bushel.jit.source import Address, EpochTables, IndexedSource, Source, Tree, find_specs, is_source, make_sample_keys
from bushel.jit.uint32 import to_key


class Transform(abc.ABC):
    """A stage of a pipeline. `SomeTransform(...)(source)` and `SomeTransform(source, ...)` both return a source."""

    @overload
    def __new__(cls, source: Source, /, *args: Any, **options: Any) -> Source: ...  # type: ignore[overload-overlap]
    @overload
    def __new__(cls, *args: Any, inner: Source, **options: Any) -> Source: ...
    @overload
    def __new__(cls, *args: Any, **options: Any) -> Self: ...
    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Create a stage; or, if the first argument or `inner` is a source, apply the new stage to that source."""
        if args and is_source(args[0]):
            return cls(*args[1:], **options)(args[0])
        if "inner" in options:
            inner = options.pop("inner")
            return cls(*args, **options)(inner)
        return super().__new__(cls)

    @abc.abstractmethod
    def __call__(self, inner: Source) -> Source:
        """Return a source that gives the elements of `inner`, transformed."""


def check_callable(fn: Any, transform: Transform) -> None:
    """Raise an error if the user gave `transform` something else than a function."""
    if not callable(fn):
        raise TypeError(f"{type(transform).__name__} takes a function, got {fn!r}.")


class ElementTransform(Transform):
    """A transform of one element at a time: of records before a `BatchTransform`, of batches after it."""

    random: bool = False
    """Whether `apply` needs random keys."""

    @abc.abstractmethod
    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        """Return the transformed element and its mask. If `random`, `keys` has one key for each entry of the mask."""

    @abc.abstractmethod
    def check(self, spec: Tree) -> None:
        """Raise an error if the transform cannot take elements of this spec."""

    def __call__(self, inner: Source) -> Source:
        self.check(inner.element_spec())
        source = TransformedSource(inner, self) if isinstance(inner, IndexedSource) else TransformedStream(inner, self)
        source.element_spec()  # an error of the user's function is raised here, and not in the first step
        return source


def check_spec(spec: Tree, override: Tree, name: str) -> Tree:
    """Return `spec`. Raise an error if the user gave an `element_spec_override` that differs from it."""
    if override is None:
        return spec
    same = jax.tree.structure(spec) == jax.tree.structure(override) and all(
        (a.shape, a.dtype) == (tuple(b.shape), b.dtype)
        for a, b in zip(jax.tree.leaves(spec), jax.tree.leaves(override), strict=True)
    )
    if not same:
        raise ValueError(
            f"{name} returns {trees.describe(spec)}, but element_spec_override says {trees.describe(override)}. "
            "Leave the override out: shapes and dtypes are inferred."
        )
    return spec


@pytree_dataclass
class TransformedSource(IndexedSource):
    """The elements of an indexed source, each transformed."""

    inner: IndexedSource = child()
    transform: ElementTransform = child()

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    @property
    def shards(self) -> int:
        return self.inner.shards

    @property
    def depth(self) -> int:
        return 1 + self.inner.depth

    def _get_specs(self) -> tuple[Tree, Any]:
        value, mask = self.inner._get_specs()
        keys = (
            jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.shape)) if self.transform.random else None
        )
        return jax.eval_shape(self.transform.apply, value, mask, keys)

    def _count_record_epochs(self, count: int) -> int:
        return self.inner._count_record_epochs(count)

    def _find_record_epoch(self, epoch: Any, position: Any) -> Any:
        return self.inner._find_record_epoch(epoch, position)

    def _compute_tables(self, seed: Any, epoch: Any, count: int) -> Any:
        return self.inner._compute_tables(seed, epoch, count)

    def _locate(self, seed: Any, tables: EpochTables, epoch: Any, position: Any) -> Address:
        return self.inner._locate(seed, tables, epoch, position)

    def _read_element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner._read_element(address)
        return self.transform.apply(value, mask, self._make_keys(address))

    def _read_elements(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner._read_elements(address)
        return jax.vmap(self.transform.apply)(value, mask, self._make_keys(address))

    def _make_keys(self, address: Address) -> jax.Array | None:
        return make_sample_keys(address, self.depth) if self.transform.random else None


class StreamState(NamedTuple):
    """The state of a transformed stream: the state of its source, and a key if the transform is random."""

    inner_state: Any
    key: Any = None


@pytree_dataclass
class TransformedStream(Pytree):
    """The elements of a source that can only be read in order, each transformed."""

    inner: Any = child()
    transform: ElementTransform = child()

    @property
    def steps_per_epoch(self) -> int:
        return self.inner.steps_per_epoch

    def element_spec(self) -> Tree:
        return self._get_specs()[0]

    def _get_specs(self) -> tuple[Tree, Any]:
        value, mask = find_specs(self.inner)
        keys = (
            jax.eval_shape(lambda: jax.random.split(jax.random.key(0), mask.shape)) if self.transform.random else None
        )
        return jax.eval_shape(self.transform.apply, value, mask, keys)

    def init_state(self, key: Any = None) -> StreamState:
        own_key = jax.random.fold_in(to_key(key), 1) if self.transform.random else None
        return StreamState(self.inner.init_state(key), own_key)

    def next(self, state: StreamState) -> tuple[Tree, jax.Array, StreamState]:
        value, mask, inner_state = self.inner.next(state.inner_state)
        key, keys = state.key, None
        if self.transform.random:
            key, sample_key = jax.random.split(state.key)
            keys = jax.random.split(sample_key, mask.shape)
        value, mask = self.transform.apply(value, mask, keys)
        return value, mask, StreamState(inner_state, key)
