"""Python functions that a compiled program calls: `DiskSource` reads records, `HostCallbackTransform` sees elements.

XLA waits while such a function runs. The function must not compute with JAX: on CPU, JAX may need the very thread that
waits for the function, and the program would hang. Functions therefore get NumPy arrays, and an error is raised if they
return an array of JAX.
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

from bushel._src.base import checks, rng, trees
from bushel._src.base.public import public
from bushel._src.index import shuffle
from bushel._src.jit.record_order import OrderedRecords, Ordering, RecordOrder, make_order
from bushel._src.jit.source import (
    Address,
    ElementTransform,
    Tree,
    check_callable,
    child,
    pytree_dataclass,
    set_attributes,
    stack_spec,
)


@public("bushel.jit")
@pytree_dataclass
class DiskSource(OrderedRecords):
    """Records that `sample_fn(number)` reads: from a disk, a database, or anywhere else.

    The compiled program makes one callback per batch. `sample_fn` runs on a thread of its own, one call at a time, and
    must return NumPy arrays.

    Args:
      length: the number of records.
      sample_fn: the function that returns the record with a given number.
      sample_spec: shapes and dtypes of a record; by default those of `sample_fn(0)`.
      ordering: "shuffle" or "sequential".
      prefetch_size: how many records are read ahead of those that the program asked for.

    >>> source = DiskSource(3, lambda n: np.float32(n * n), ordering="sequential")
    >>> value, mask, state = source.next(source.init_state())
    >>> float(source.next(state)[0])
    1.0
    """

    order: RecordOrder = child()
    reader: Reader
    record_spec: Tree

    def __init__(
        self,
        length: int,
        sample_fn: Callable[[int], Tree],
        sample_spec: Tree = None,
        ordering: Ordering = "shuffle",
        prefetch_size: int = 64,
    ):
        length = checks.positive(length, "length")
        checks.positive(prefetch_size, "prefetch_size")
        if sample_spec is None:
            sample_spec = _convert_to_numpy(sample_fn(0), "sample_fn(0)")
        order = make_order(ordering, length)
        spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(tuple(leaf.shape), jax.dtypes.canonicalize_dtype(leaf.dtype)), sample_spec
        )
        if not jax.tree.leaves(spec):
            raise ValueError("A record needs at least one array, got an empty sample_spec.")
        reader = Reader(sample_fn, spec, length, ordering == "shuffle", prefetch_size)
        set_attributes(self, order=order, reader=reader, record_spec=spec)

    def _get_record_spec(self) -> Tree:
        return self.record_spec

    def _read_records(self, address: Address) -> Tree:
        spec = stack_spec(self.record_spec, len(address.record))
        last = (address.seed[-1], address.epoch[-1], address.position[-1])
        return io_callback(self.reader, spec, address.record, address.valid, *last)


class Reader:
    """Reads records by number on one thread of its own, and prefetches the records that come next.

    The reader computes the order itself, so it knows which records come next. A wrong guess costs time, but does not
    change any result.
    """

    def __init__(self, sample_fn: Callable[[int], Tree], spec: Tree, length: int, shuffled: bool, prefetch_size: int):
        self._arguments = sample_fn, spec, length, shuffled, prefetch_size
        self._sample_fn, self._spec, self._length, self._shuffled, self._prefetch_size = self._arguments
        self._reads: dict[int, Future[Tree]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Reader, self._arguments  # the lock and the thread stay behind

    def __call__(self, record: Any, valid: Any, seed: Any, epoch: Any, position: Any) -> Tree:
        valid = np.asarray(valid)
        wanted = [int(number) for number in np.asarray(record)[valid]]
        upcoming = self._list_upcoming(int(seed), int(epoch), int(position))
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="bushel-disk")
                weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
            reads = [self._start_read(number) for number in wanted]
            for number in set(self._reads).difference(upcoming):
                read = self._reads.pop(number)
                if number not in wanted:  # prefetched for a position that the program has since left
                    read.cancel()
            for number in upcoming:
                self._start_read(number)
        rows = iter([read.result() for read in reads])
        padding = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._spec)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *(next(rows) if real else padding for real in valid))

    def _start_read(self, number: int) -> Future[Tree]:
        if number not in self._reads:
            assert self._pool is not None
            self._reads[number] = self._pool.submit(self._read_sample, number)
        return self._reads[number]

    def _list_upcoming(self, seed: int, epoch: int, position: int) -> list[int]:
        """Return the numbers of the records after `position`, at most to the end of the epoch."""
        following = np.arange(position + 1, min(position + 1 + self._prefetch_size, self._length))
        if not self._shuffled or not following.size:
            return following.tolist()
        epoch_seed = (rng.derive([(seed, 1)]) + epoch) & 0xFFFFFFFF
        return shuffle.permute(following, length=self._length, seed=epoch_seed).tolist()

    def _read_sample(self, number: int) -> Tree:
        return _fit_to_spec(self._sample_fn(number), self._spec, f"sample_fn({number})")


def _convert_to_numpy(value: Tree, name: str) -> Tree:
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value)):
        raise TypeError(
            f"{name} returned a JAX array. Compute with NumPy instead: inside a callback JAX may wait for itself "
            "forever."
        )
    return jax.tree.map(np.asarray, value)


def _fit_to_spec(value: Tree, spec: Tree, name: str) -> Tree:
    """Convert what the user's function returned to NumPy arrays, and check their shapes and dtypes."""
    value = _convert_to_numpy(value, name)
    if jax.tree.structure(value) == jax.tree.structure(spec):
        pairs = list(zip(jax.tree.leaves(value), jax.tree.leaves(spec), strict=True))
        if all(
            leaf.shape == tuple(wanted.shape) and np.can_cast(leaf.dtype, wanted.dtype, "same_kind")
            for leaf, wanted in pairs
        ):
            return jax.tree.unflatten(jax.tree.structure(spec), [leaf.astype(wanted.dtype) for leaf, wanted in pairs])
    raise ValueError(f"{name} returned {trees.describe(value)}, but the spec is {trees.describe(spec)}.")


@public("bushel.jit")
@dataclasses.dataclass(frozen=True)
class HostCallbackTransform(ElementTransform):
    """Call `fn(value, mask)` on the host for each element, with NumPy arrays: to log it, show it, or change it.

    What `fn` returns replaces the element; if it returns None, the element stays as it is. The calls have no fixed
    order, and XLA waits for each.

    Args:
      fn: the function.
      element_spec_override: shapes and dtypes of what `fn` returns, if they differ from those of the element.
    """

    fn: Callable[[Tree, np.ndarray], Tree | None]
    element_spec_override: Tree = None

    def check(self, spec: Tree) -> None:
        check_callable(self.fn, self)

    def apply(self, value: Tree, mask: jax.Array, keys: jax.Array | None) -> tuple[Tree, jax.Array]:
        override = self.element_spec_override
        spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), value if override is None else override
        )

        def call(value: Tree, mask: Any) -> Tree:
            value = jax.tree.map(np.asarray, value)
            result = self.fn(value, np.asarray(mask))
            return value if result is None else _fit_to_spec(result, spec, "The function of HostCallbackTransform")

        return io_callback(call, spec, value, mask), mask
