"""What a transform is: something that is called with a source and gives a source. The transforms are elsewhere."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import jax

from bushel.base import trees
from bushel.jit.batches import Batches, batches_of
from bushel.jit.nodes import child, node
from bushel.jit.protocol import Address, Indexed, Prepared, Source, Tree, is_source, sample_keys, specs_of
from bushel.jit.words import as_key


class Transform(abc.ABC):
    """A stage of a pipeline. `Transform(...)(source)` and `Transform(source, ...)` both give a source."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A stage; or, if the first argument is a source, that source with the stage behind it."""
        if args and is_source(args[0]):
            return cls(*args[1:], **kwargs)(args[0])
        if "inner" in kwargs:
            inner = kwargs.pop("inner")
            return cls(*args, **kwargs)(inner)
        return super().__new__(cls)

    @abc.abstractmethod
    def __call__(self, inner: Source) -> Source:
        """The source whose elements are those of `inner`, transformed."""


class Elementwise(Transform):
    """A transform of one element at a time, wherever it stands: before a batch it sees records, after it batches."""

    random: bool = False

    @abc.abstractmethod
    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        """The element and its mask after the transform; `keys` is one key per entry of the mask, if it is random."""

    @abc.abstractmethod
    def check(self, spec: Tree) -> None:
        """Raises if the transform cannot take elements of this spec."""

    def __call__(self, inner: Source) -> Source:
        self.check(inner.element_spec())
        made = Applied(inner, self) if isinstance(inner, Indexed) else AppliedStream(inner, self)
        made.element_spec()  # raises here, with the user's own traceback, what would raise in the first step
        return made


def checked_spec(spec: Tree, override: Tree, what: str) -> Tree:
    """`spec`, once it is clear that it is what the user said it would be."""
    if override is None:
        return spec
    same = jax.tree.structure(spec) == jax.tree.structure(override) and all(
        (a.shape, a.dtype) == (tuple(b.shape), b.dtype)
        for a, b in zip(jax.tree.leaves(spec), jax.tree.leaves(override), strict=True)
    )
    if not same:
        raise ValueError(
            f"{what} gives {trees.describe(spec)}, but element_spec_override says {trees.describe(override)}. "
            "Specs are inferred: leave the override out."
        )
    return spec


@node
class Applied(Indexed):
    """Elements of an indexed source, each transformed."""

    inner: Any = child()
    transform: Any = child()

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    def specs(self) -> tuple[Tree, Any]:
        value, mask = self.inner.specs()
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), self.shape)) if self._random else None
        return jax.eval_shape(self.transform.apply, value, mask, keys)

    @property
    def groups(self) -> int:
        return self.inner.groups

    def batched(self, size: int, remainder: str) -> Batches:
        return batches_of(self, size, remainder)

    def span(self, count: int) -> int:
        return self.inner.span(count)

    def first_epoch(self, epoch: Any, position: Any) -> Any:
        return self.inner.first_epoch(epoch, position)

    def tables(self, seed: Any, epoch: Any, span: int) -> Any:
        return self.inner.tables(seed, epoch, span)

    def locate(self, seed: Any, prepared: Prepared, epoch: Any, position: Any) -> Address:
        return self.inner.locate(seed, prepared, epoch, position)

    def element(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner.element(address)
        return self.transform.apply(value, mask, self._keys(address))

    def elements(self, address: Address) -> tuple[Tree, jax.Array]:
        value, mask = self.inner.elements(address)
        return jax.vmap(self.transform.apply)(value, mask, self._keys(address))

    @property
    def _random(self) -> bool:
        return self.transform.random

    def _keys(self, address: Address) -> jax.Array | None:
        return sample_keys(address, _depth(self)) if self._random else None


def _depth(source: Any) -> int:
    """How many stages a source has: sets the keys of one random transform apart from another's."""
    return 1 + _depth(source.inner) if isinstance(source, (Applied, Batches)) else 0


class StreamState(NamedTuple):
    """The state of a transformed stream: that of the source, and a key if the transform is random."""

    inner_state: Any
    key: Any = None


@node
class AppliedStream:
    """Elements of a source that can only go on, each transformed."""

    inner: Any = child()
    transform: Any = child()

    @property
    def steps_per_epoch(self) -> int:
        return self.inner.steps_per_epoch

    def element_spec(self) -> Tree:
        return specs_of(self)[0]

    def init_state(self, key: Any = None) -> StreamState:
        own = jax.random.fold_in(as_key(key), 1) if self.transform.random else None
        return StreamState(self.inner.init_state(key), own)

    def next(self, state: StreamState) -> tuple[Tree, jax.Array, StreamState]:
        value, mask, inner_state = self.inner.next(state.inner_state)
        key, keys = state.key, None
        if self.transform.random:
            key, drawn = jax.random.split(state.key)
            keys = jax.random.split(drawn, mask.shape)
        value, mask = self.transform.apply(value, mask, keys)
        return value, mask, StreamState(inner_state, key)
