"""One pass over a data set, for facts that must be known once. It runs here first, and in workers if it takes long."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from bushel._src.base import checks
from bushel._src.base.options import MultiprocessingOptions, RayOptions, ReadOptions, WorkerOptions, find_job_options
from bushel._src.base.shown_text import Progress
from bushel._src.base.state_names import in_states
from bushel._src.datasets.iter_dataset import IterDataset
from bushel._src.datasets.map_dataset import MapDataset
from bushel._src.trajectory.data_utils import to_numpy

_INLINE_S = 0.5  # starting a pool of workers takes longer than this


def is_endless(ds: MapDataset[Any]) -> bool:
    """Return whether a dataset has no end.

    Batches and shards of an endless dataset, whose length is smaller, count too.
    """
    return checks.is_endless(len(ds))


def prefetch(stream: IterDataset[Any], options: WorkerOptions) -> IterDataset[Any]:
    """Return the stream, prefetched by worker processes or by actors of a Ray cluster."""
    return stream.ray_prefetch(options) if isinstance(options, RayOptions) else stream.mp_prefetch(options)


def iterate_once(ds: MapDataset[Any], what: str, options: WorkerOptions | None = None) -> Iterator[Any]:
    """Yield the elements of one epoch in order. A bar on the terminal shows the progress.

    Elements that are None are left out, as in every iteration. `evaluate_once` says which elements are present.

    Args:
      ds: a dataset with an end.
      what: the name of the work, for the bar on the terminal.
      options: worker processes or actors. By default processes, one per core, started after half a second.
    """
    if is_endless(ds):
        raise ValueError(f"{what}: this needs all elements once, but the dataset is endless. Do it before repeat().")
    with Progress(what, len(ds)) as progress:
        yield from _iterate(ds, options, progress)


def _iterate(ds: MapDataset[Any], options: WorkerOptions | None, progress: Progress) -> Iterator[Any]:
    stream = ds.to_iter_dataset(ReadOptions(0, 0))
    count, state, start = 0, None, time.monotonic()
    while True:
        inline = options is None and state is None
        chosen = MultiprocessingOptions(0) if inline else options or find_job_options()
        with iter(prefetch(stream, chosen or MultiprocessingOptions(os.cpu_count() or 1))) as elements:
            if state is not None:
                elements.set_state(state)
            for element in elements:
                count += 1
                progress.show(count)
                yield element
                if inline and time.monotonic() - start > _INLINE_S:
                    state = elements.get_state()  # the workers continue from here
                    break
            else:
                return


@in_states("numbered_episodes")
@dataclasses.dataclass(frozen=True)
class _Numbered:
    """A function's value with the number of its element. The numbers show which elements were left out."""

    function: Callable[[Any], Any]
    what: str

    def __call__(self, number: int, element: Any) -> tuple[int, Any]:
        value = self.function(element)
        if value is None:
            raise ValueError(f"{self.what} returned None for element {number}; did you forget a return?")
        return number, to_numpy(value)


def evaluate_once(ds: MapDataset[Any], function: Callable[[Any], Any], what: str) -> Iterator[tuple[int, Any]]:
    """Return pairs (number of an element, `function` of it) for all elements that are not None."""
    return iterate_once(ds.map_with_index(_Numbered(function, what)), what)
