"""Python in the middle of a compiled program: sources that read from disk, and callbacks on batches.

The functions run while XLA waits for them. They must not compute with JAX: on CPU the computation may need the very
thread that waits, and nothing goes on. So they get NumPy arrays, and a JAX array that comes back is refused.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from bushel.base import checks, trees
from bushel.index import seeds, shuffle
from bushel.jit.nodes import node
from bushel.jit.order import order_of
from bushel.jit.protocol import Address, Tree, stacked_spec
from bushel.jit.records import Records, Store
from bushel.jit.transform import Elementwise


@node
class Disk(Store):
    """Records that a Python function reads when they are needed: one callback per batch."""

    reader: Any
    record_spec: Any

    @property
    def groups(self) -> int:
        return 1

    def spec(self) -> Tree:
        return self.record_spec

    def take(self, address: Address) -> Tree:
        spec = stacked_spec(self.record_spec, len(address.record))
        last = (address.seed[-1], address.epoch[-1], address.position[-1])
        return io_callback(self.reader, spec, address.record, address.valid, *last)


class Reader:
    """Reads records by number, and those that will be asked for next, on one thread of its own.

    The order is arithmetic, so what comes next is known here too. Nothing but time depends on what was read ahead.
    """

    def __init__(self, sample_fn: Callable[[int], Tree], spec: Tree, length: int, shuffled: bool, ahead: int):
        self._sample_fn = sample_fn
        self._spec = spec
        self._length = length
        self._shuffled = shuffled
        self._ahead = ahead
        self._pending: dict[int, Future[Tree]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, record: Any, valid: Any, seed: Any, epoch: Any, position: Any) -> Tree:
        wanted = [int(number) for number in np.asarray(record)[np.asarray(valid)]]
        coming = self._coming(int(seed), int(epoch), int(position))
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="bushel-disk")
                weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            reads = [self._read(number) for number in wanted]
            kept = set(coming)
            for number in [number for number in self._pending if number not in kept]:
                future = self._pending.pop(number)
                if number not in wanted:
                    future.cancel()
            for number in coming:
                self._read(number)
        rows = [future.result() for future in reads]
        blank = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._spec)
        left = iter(rows)
        placed = [next(left) if real else blank for real in np.asarray(valid)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *placed)

    def _read(self, number: int) -> Future[Tree]:
        if number not in self._pending:
            assert self._pool is not None
            self._pending[number] = self._pool.submit(self._sample, number)
        return self._pending[number]

    def _coming(self, seed: int, epoch: int, position: int) -> list[int]:
        """The records after `position`, to the end of its epoch."""
        following = np.arange(position + 1, min(position + 1 + self._ahead, self._length))
        if not self._shuffled or not following.size:
            return following.tolist()
        own = (seeds.derive([(seed, 1)]) + epoch) & 0xFFFFFFFF
        return shuffle.permute(following, length=self._length, seed=own).tolist()

    def _sample(self, number: int) -> Tree:
        return as_numpy(self._sample_fn(number), self._spec, f"sample_fn({number})")


def as_numpy(value: Tree, spec: Tree, what: str) -> Tree:
    """What a user's function returned, as NumPy arrays of the promised kind."""
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
        raise TypeError(
            f"{what} returned a JAX array. Inside a callback JAX may wait for itself forever: compute with NumPy."
        )
    value = jax.tree.map(np.asarray, value)
    if jax.tree.structure(value) == jax.tree.structure(spec):
        pairs = list(zip(jax.tree.leaves(value), jax.tree.leaves(spec), strict=True))
        if all(leaf.shape == tuple(wanted.shape) for leaf, wanted in pairs):
            fitting = [
                leaf.astype(wanted.dtype) if np.can_cast(leaf.dtype, wanted.dtype, "same_kind") else None
                for leaf, wanted in pairs
            ]
            if all(leaf is not None for leaf in fitting):
                return jax.tree.unflatten(jax.tree.structure(spec), fitting)
    raise ValueError(f"{what} returned {trees.describe(value)}, but the spec is {trees.describe(spec)}.")


def DiskSource(
    length: int,
    sample_fn: Callable[[int], Tree],
    sample_spec: Tree = None,
    ordering: str = "shuffle",
    prefetch_size: int = 64,
) -> Records:
    """Records that `sample_fn(number)` reads: from disk, a data base, anywhere.

    `sample_fn` runs on a thread of its own, one call at a time, and must return NumPy arrays.

    Args:
      sample_spec: shapes and dtypes of a record; by default those of `sample_fn(0)`.
      prefetch_size: how many records are read ahead of those that were asked for.

    >>> source = DiskSource(3, lambda n: np.float32(n * n), ordering="sequential")
    >>> value, mask, state = source.next(source.init_state())
    >>> float(source.next(state)[0])
    1.0
    """
    length = checks.positive(length, "length")
    checks.positive(prefetch_size, "prefetch_size")
    if sample_spec is None:
        example = sample_fn(0)
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(example)):
            as_numpy(example, None, "sample_fn(0)")
        sample_spec = jax.tree.map(lambda leaf: _spec(np.asarray(leaf)), example)
    order = order_of(ordering, length)
    spec = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(tuple(leaf.shape), _dtype(leaf.dtype)), sample_spec)
    if not jax.tree.leaves(spec):
        raise ValueError("A record needs at least one array, got an empty sample_spec.")
    reader = Reader(sample_fn, spec, length, ordering == "shuffle", prefetch_size)
    return Records(Disk(reader, spec), order)


def _spec(array: np.ndarray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, _dtype(array.dtype))


def _dtype(dtype: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(dtype)


@dataclasses.dataclass(frozen=True)
class HostCallbackTransform(Elementwise):
    """Calls `fn(value, mask)` on the host for each element, with NumPy arrays: to log, to show, or to change it.

    What `fn` returns replaces the element; None leaves it as it is. Calls come in no fixed order, and XLA waits for
    each one.

    Args:
      element_spec_override: shapes and dtypes of what `fn` returns, where they differ from those of the element.
    """

    fn: Callable[[Tree, np.ndarray], Tree | None]
    element_spec_override: Tree = None

    def check(self, spec: Tree) -> None:
        if not callable(self.fn):
            raise TypeError(f"HostCallbackTransform takes a function, got {self.fn!r}.")

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        override = self.element_spec_override
        spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), value if override is None else override
        )

        def call(value: Tree, mask: Any) -> Tree:
            value = jax.tree.map(np.asarray, value)
            made = self.fn(value, np.asarray(mask))
            return value if made is None else as_numpy(made, spec, "The function of HostCallbackTransform")

        return io_callback(call, spec, value, mask), mask
