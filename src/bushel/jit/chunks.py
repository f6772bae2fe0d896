"""Data larger than the device: chunks of a host data set go to the device while it works on the ones before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from bushel.base import checks, trees
from bushel.base.errors import StateMismatch
from bushel.jit.arrays import stack_rows
from bushel.jit.protocol import Tree

Body = Callable[[Any, Tree], tuple[Any, Any]]


class Chunk(NamedTuple):
    """Several batches on the device, leaves (batches, ...), and the number of the first."""

    batches: Tree
    first: int


class ChunkLoader:
    """Batches of a host data set, on the device in chunks: the next chunks are read and sent while one is worked on.

    There is no callback inside the compiled program. `dataset` is a `bushel.MapDataset` of batches of one shape
    (`.batch(n, drop_remainder=True)`), or anything with `__len__` and `take`.

    Args:
      batches_per_chunk: how many batches are sent at a time.
      ahead: how many chunks are prepared beyond the one that is worked on. The device holds up to `ahead` + 2.
      device: a device or a sharding for the chunks; by default JAX's own choice.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(20).seed(0).shuffle().batch(2)
    >>> loader = ChunkLoader(ds, batches_per_chunk=4)
    >>> _, total, _ = loader.scan_epoch(0, 0, lambda total, batch: (total + batch.sum(), None))
    >>> int(total)
    190
    """

    def __init__(self, dataset: Any, batches_per_chunk: int, *, ahead: int = 1, device: Any = None):
        if not hasattr(dataset, "take") or not hasattr(dataset, "__len__"):
            raise TypeError(
                f"ChunkLoader takes a data set with `take` and `__len__`, as bushel.MapDataset; "
                f"got {type(dataset).__name__}."
            )
        if len(dataset) == 0:
            raise ValueError("ChunkLoader needs at least one batch, got an empty data set.")
        self._dataset = dataset
        self._size = checks.positive(batches_per_chunk, "batches_per_chunk")
        self._ahead = checks.positive(ahead, "ahead")
        self._device = device
        self._scans: dict[Any, Any] = {}

    @property
    def steps_per_epoch(self) -> int:
        """How many batches the data set has: its `len`."""
        return len(self._dataset)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """Chunks of batches from number `start` to `stop`, by default to the end of the epoch that `start` is in.

        Numbers go on from epoch to epoch, as `next_index` in the state of a host iterator.
        """
        if start < 0:
            raise ValueError(f"start must not be negative, got {start}.")
        if stop is None:
            stop = (start // self.steps_per_epoch + 1) * self.steps_per_epoch
        bounds = [(low, min(low + self._size, stop)) for low in range(start, stop, self._size)]
        stopped = threading.Event()
        pool = ThreadPoolExecutor(1, thread_name_prefix="bushel-chunks")
        try:
            waiting: list[Future[Chunk]] = []
            for bound in bounds:
                waiting.append(pool.submit(self._load, stopped, *bound))
                if len(waiting) > self._ahead:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _load(self, stopped: threading.Event, low: int, high: int) -> Chunk:
        if stopped.is_set():
            raise RuntimeError("The iterator over chunks was closed.")
        stacked = jax.tree.map(np.asarray, stack_rows(self._dataset.take(np.arange(low, high))))
        for leaf in jax.tree.leaves(stacked):
            if leaf.dtype.kind not in "biufcV":
                raise TypeError(f"Batches must be arrays of numbers, got {trees.describe(stacked)}.")
        return Chunk(jax.device_put(stacked, self._device), low)

    def scan_epoch(self, state: int, carry: Any, body_fn: Body) -> tuple[int, Any, Any]:
        """The batches from number `state` to the end of its epoch: `body_fn(carry, batch) -> (carry, output)`.

        Returns the number of the next batch, the carry and the outputs. One `lax.scan` per chunk, compiled for whole
        chunks and once more for the last, if that is shorter.
        """
        if isinstance(state, bool) or not isinstance(state, (int, np.integer)):
            raise StateMismatch(f"The state of a ChunkLoader is the number of the next batch, got {state!r}.")
        scan = self._scans.get(body_fn)
        if scan is None:
            scan = self._scans[body_fn] = jax.jit(lambda carry, batches: jax.lax.scan(body_fn, carry, batches))
        outputs = []
        for chunk in self.chunks(int(state)):
            carry, output = scan(carry, chunk.batches)
            outputs.append(output)
        joined = jax.tree.map(lambda *parts: jax.numpy.concatenate(parts), *outputs)
        return (int(state) // self.steps_per_epoch + 1) * self.steps_per_epoch, carry, joined
