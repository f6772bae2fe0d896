"""One pass over a data set, for what must be known once: in this process while that is quick, then in workers."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from bushel.base import checks
from bushel.base.options import MultiprocessingOptions, ReadOptions
from bushel.base.progress import Progress
from bushel.dataset import MapDataset
from bushel.trajectory.arrays import to_numpy

_INLINE_S = 0.5  # what takes no longer is not worth a pool of workers


def is_endless(ds: MapDataset[Any]) -> bool:
    """Whether a dataset has no end: also the batches or a shard of one that has none, which are a part of infinity."""
    return len(ds) >= checks.INFINITE >> 16


def results(ds: MapDataset[Any], what: str, options: MultiprocessingOptions | None = None) -> Iterator[Any]:
    """The elements of one epoch in order, with a line on the terminal that says how far it is.

    Elements that are None are left out, as in any iteration: `verdicts` tells which are there.

    Args:
      ds: a dataset with an end.
      what: the name of the work, for that line.
      options: worker processes; by default one per core if it takes longer than a moment.
    """
    if is_endless(ds):
        raise ValueError(f"{what}: this needs all elements once, but the dataset is endless. Do it before repeat().")
    progress = Progress(what, len(ds))
    stream = ds.to_iter_dataset(ReadOptions(0, 0))
    count, state, begun = 0, None, time.monotonic()
    while True:
        here = options is None and state is None
        chosen = MultiprocessingOptions(0) if here else options or MultiprocessingOptions(os.cpu_count() or 1)
        with iter(stream.mp_prefetch(chosen)) as elements:
            if state is not None:
                elements.set_state(state)
            for element in elements:
                count += 1
                progress.show(count)
                yield element
                if here and time.monotonic() - begun > _INLINE_S:
                    state = elements.get_state()
                    break
            else:
                break
    progress.end()


@dataclasses.dataclass(frozen=True)
class _Numbered:
    """A function's value with the number of its element, so that one which never comes is missed. None is refused."""

    function: Callable[[Any], Any]
    what: str

    def __call__(self, number: int, element: Any) -> tuple[int, Any]:
        value = self.function(element)
        if value is None:
            raise ValueError(f"{self.what} returned None for element {number}; did you forget a return?")
        return number, to_numpy(value)


def verdicts(ds: MapDataset[Any], function: Callable[[Any], Any], what: str) -> Iterator[tuple[int, Any]]:
    """The number of each element that is not None, and `function` of it, which must return something."""
    return results(ds.map_with_index(_Numbered(function, what)), what)
