"""W1 through a DataLoader: 60,000 images of 28 x 28, shuffled, normalised and batched, with 0 and with 2 workers."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import bushel
from benchmarks.images import BATCH, RECORDS, Images, make_images, normalise
from benchmarks.libraries import BUSHEL, GRAIN, exhaust, forget_epoch_tables, read_inline
from benchmarks.measure import Contender, Row, Settings, compare, require_same_elements
from benchmarks.workers import Running, measured, parse_flags


def _loader(library: ModuleType, source: Any, *, by_batch: bool, epochs: int | None, workers: int) -> Any:
    class Normalise(library.transforms.Map):
        def map(self, element: dict[str, Any]) -> dict[str, Any]:
            return normalise(element)

    batch = library.transforms.Batch(BATCH)
    return library.DataLoader(
        data_source=source,
        sampler=library.samplers.IndexSampler(len(source), shuffle=True, num_epochs=epochs, seed=0),
        operations=[batch, Normalise()] if by_batch else [Normalise(), batch],
        worker_count=workers,
        read_options=read_inline(library),
    )


def w1_loader(settings: Settings) -> list[Row]:
    """Without workers: f on whole batches, and f on each element."""
    arrays = make_images(settings.count(RECORDS, 6_000))
    columns, records = bushel.sources.ArrayDataSource(arrays), Images(arrays)
    found = []
    for name, by_batch in (("W1a, DataLoader", True), ("W1b, DataLoader", False)):

        def loader(library: ModuleType, source: Any, by_batch: bool = by_batch) -> Any:
            return _loader(library, source, by_batch=by_batch, epochs=1, workers=0)

        for source in (columns, records):
            ours, theirs = (itertools.islice(loader(*side), 60) for side in ((BUSHEL, source), (GRAIN, records)))
            require_same_elements(name, ours, theirs)

        def epoch(library: ModuleType, source: Any, loader: Any = loader) -> Contender:
            built = loader(library, source)

            def run() -> int:
                forget_epoch_tables()
                exhaust(built)
                return len(records)

            return run

        contenders = {
            "grain": epoch(GRAIN, records),
            "bushel": epoch(BUSHEL, columns),
            "bushel, Grain's source": epoch(BUSHEL, records),
        }
        found += compare(name, contenders, settings, targets={"bushel": 15})
    return found


def w1_loader_workers(settings: Settings) -> list[Row]:
    """Two workers each."""
    parse_flags()
    arrays = make_images(RECORDS)
    columns, records = bushel.sources.ArrayDataSource(arrays), Images(arrays)
    found = []
    for name, by_batch in (("W1a, DataLoader, workers 2", True), ("W1b, DataLoader, workers 2", False)):

        def stream(library: ModuleType, source: Any, workers: int = 2, by_batch: bool = by_batch) -> Any:
            return _loader(library, source, by_batch=by_batch, epochs=None, workers=workers)

        # Grain's batches depend on its workers; ours are those of no worker.
        ours, theirs = stream(BUSHEL, columns), stream(GRAIN, records, workers=0)
        require_same_elements(name, itertools.islice(ours, 20), itertools.islice(theirs, 20))
        contenders: dict[str, Contender] = {
            "grain": Running(stream(GRAIN, records), settings.count(60, 4), BATCH),
            "bushel": Running(stream(BUSHEL, columns), settings.count(400, 8), BATCH),
            "bushel, Grain's source": Running(stream(BUSHEL, records), settings.count(400, 8), BATCH),
        }
        found += measured(name, contenders, settings, {"bushel": 10})
    return found
