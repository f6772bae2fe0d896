"""RA: single elements in random order, `ds[i]`, through a shuffle and a map. Nothing can be done in blocks here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

import bushel
from benchmarks.images import Images, make_images, normalise
from benchmarks.libraries import BUSHEL, GRAIN
from benchmarks.measure import Contender, Row, Settings, compare, require_same_elements

RECORDS = 60_000
LONG = 10**7


def identity(x: Any) -> Any:
    return x


def ra(settings: Settings) -> list[Row]:
    """Single random accesses, of one epoch and of many."""
    arrays = make_images(RECORDS)
    rng = np.random.default_rng(1)
    count = settings.count(2_000, 200)
    near = rng.integers(0, RECORDS, count).tolist()
    far = (rng.integers(0, RECORDS, 200) + RECORDS * np.arange(200)).tolist()  # more epochs than Bushel keeps tables
    long = rng.integers(0, LONG, count).tolist()

    def images(library: ModuleType, source: Any) -> Any:
        return library.MapDataset.source(source).seed(0).shuffle().map(normalise)

    def numbers(library: ModuleType) -> Any:
        return library.MapDataset.range(LONG).seed(0).shuffle().map(identity)

    theirs = images(GRAIN, Images(arrays))
    by_record = images(BUSHEL, Images(arrays))
    by_column = images(BUSHEL, bushel.sources.ArrayDataSource(arrays))
    return [
        *_compared("RA same source", theirs, by_record, near, settings),
        *_compared("RA ArrayDataSource", theirs, by_column, near, settings),
        *_compared("RA range(10**7)", numbers(GRAIN), numbers(BUSHEL), long, settings),
        *_compared("RA new epoch each", theirs, by_record, far, settings, note="no two accesses in one epoch"),
    ]


def _compared(
    workload: str, theirs: Any, ours: Any, indices: list[int], settings: Settings, note: str = ""
) -> list[Row]:
    sample = indices[:100] + [index + len(theirs) for index in indices[:100]]
    require_same_elements(workload, (ours[index] for index in sample), (theirs[index] for index in sample))

    def accesses(dataset: Any) -> Contender:
        def run() -> int:
            for index in indices:
                dataset[index]
            return len(indices)

        return run

    contenders = {"grain": accesses(theirs), "bushel": accesses(ours)}
    return compare(workload, contenders, settings, targets={"bushel": 1}, notes={"bushel": note})
