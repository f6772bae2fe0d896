"""One pass over a data set, for what must be known once: in this process while that is quick, then in workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from bushel.base.options import MultiprocessingOptions, ReadOptions
from bushel.base.progress import Progress
from bushel.dataset import MapDataset

_INLINE_S = 0.5  # what takes no longer is not worth a pool of workers


def results(ds: MapDataset[Any], what: str, options: MultiprocessingOptions | None = None) -> Iterator[Any]:
    """The elements of one epoch in order, with a line on the terminal that says how far it is.

    Args:
      ds: a dataset with an end.
      what: the name of the work, for that line.
      options: worker processes; by default one per core if it takes longer than a moment.
    """
    progress = Progress(what, len(ds))
    at, begun = 0, time.monotonic()
    while at < len(ds):
        here = options is None and at == 0
        chosen = MultiprocessingOptions(0) if here else options or MultiprocessingOptions(os.cpu_count() or 1)
        with iter(ds[at:].to_iter_dataset(ReadOptions(0, 0)).mp_prefetch(chosen)) as elements:
            for element in elements:
                at += 1
                progress.show(at)
                yield element
                if here and time.monotonic() - begun > _INLINE_S:
                    break
    progress.end()
