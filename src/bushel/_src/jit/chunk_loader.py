"""`ChunkLoader`: for data larger than the device. It sends the next chunks while the device works on one."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from bushel._src.base import checks, trees
from bushel._src.base.errors import StateMismatch
from bushel._src.base.public import public
from bushel._src.jit.array_source import stack_rows
from bushel._src.jit.source import Tree

Body = Callable[[Any, Tree], tuple[Any, Any]]


@public("bushel.jit")
class Chunk(NamedTuple):
    """Several batches on the device, stacked: leaves are (batches, ...). `first` is the number of the first batch."""

    batches: Tree
    first: int


@public("bushel.jit")
@dataclasses.dataclass(frozen=True, eq=False)
class ChunkLoader:
    """Batches of a host data set, sent to the device in chunks. A thread reads and sends chunks ahead.

    There is no callback inside the compiled program.

    Args:
      dataset: a `bushel.MapDataset` of batches of one shape (`.batch(n, drop_remainder=True)`), or any object with
        `__len__` and `get`.
      batches_per_chunk: how many batches are sent at a time.
      buffer_size: how many chunks are prepared beyond the one that the device works on. The device holds up to
        `buffer_size` + 2.
      device: a device or a sharding for the chunks; by default JAX chooses.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(20).seed(0).shuffle().batch(2)
    >>> loader = ChunkLoader(ds, batches_per_chunk=4)
    >>> _, total, _ = loader.scan_epoch(0, 0, lambda total, batch: (total + batch.sum(), None))
    >>> int(total)
    190
    """

    dataset: Any
    batches_per_chunk: int
    _: dataclasses.KW_ONLY
    buffer_size: int = 1
    device: Any = None

    def __post_init__(self) -> None:
        if not hasattr(self.dataset, "get") or not hasattr(self.dataset, "__len__"):
            raise TypeError(
                "ChunkLoader takes a data set with `get` and `__len__`, such as bushel.MapDataset; "
                f"got {type(self.dataset).__name__}."
            )
        if len(self.dataset) == 0:
            raise ValueError("ChunkLoader needs at least one batch, got an empty data set.")
        checks.positive(self.batches_per_chunk, "batches_per_chunk")
        checks.positive(self.buffer_size, "buffer_size")

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch: the length of the data set."""
        return len(self.dataset)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """Iterate over chunks of the batches `start` to `stop`, by default to the end of the epoch of `start`.

        Batches are counted from the first epoch on, as `next_index` in the state of a host iterator.
        """
        if start < 0:
            raise ValueError(f"start must not be negative, got {start}.")
        if stop is None:
            stop = (start // self.steps_per_epoch + 1) * self.steps_per_epoch
        closed = threading.Event()
        pool = ThreadPoolExecutor(1, thread_name_prefix="bushel-chunks")
        try:
            loads: list[Future[Chunk]] = []
            for low in range(start, stop, self.batches_per_chunk):
                high = min(low + self.batches_per_chunk, stop)
                loads.append(pool.submit(self._load, closed, low, high))
                if len(loads) > self.buffer_size:
                    yield loads.pop(0).result()
            while loads:
                yield loads.pop(0).result()
        finally:
            closed.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _load(self, closed: threading.Event, low: int, high: int) -> Chunk:
        if closed.is_set():  # the pool cannot cancel a task that its thread has just taken
            raise RuntimeError("The iterator over chunks was closed.")
        read = getattr(self.dataset, "_get_block", self.dataset.get)  # a MapDataset has columns where it can
        stacked = jax.tree.map(np.asarray, stack_rows(read(np.arange(low, high))))
        for leaf in jax.tree.leaves(stacked):
            if leaf.dtype.kind not in "biufcV":
                raise TypeError(f"Batches must be arrays of numbers, got {trees.describe(stacked)}.")
        return Chunk(jax.device_put(stacked, self.device), low)

    def scan_epoch(self, state: int, carry: Any, body_fn: Body) -> tuple[int, Any, Any]:
        """Run `body_fn(carry, batch) -> (carry, output)` on the batches from number `state` to the end of its epoch.

        Returns the number of the next batch, the carry and the outputs. Each chunk is one `lax.scan`, which is compiled
        once, and once more if the last chunk is shorter.
        """
        if isinstance(state, bool) or not isinstance(state, (int, np.integer)):
            raise StateMismatch(f"The state of a ChunkLoader must be the number of the next batch, got {state!r}.")
        outputs = []
        for chunk in self.chunks(int(state)):
            carry, output = _scan_chunk(body_fn, carry, chunk.batches)
            outputs.append(output)
        outputs = jax.tree.map(lambda *parts: jax.numpy.concatenate(parts), *outputs)
        return (int(state) // self.steps_per_epoch + 1) * self.steps_per_epoch, carry, outputs


@functools.partial(jax.jit, static_argnums=0)
def _scan_chunk(body_fn: Body, carry: Any, batches: Tree) -> tuple[Any, Any]:
    return jax.lax.scan(body_fn, carry, batches)
