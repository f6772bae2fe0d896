"""W1: 60,000 images of 28 x 28, shuffled, normalised and batched; f on the batch (W1a) or on each element (W1b)."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np

import bushel
from benchmarks.libraries import BUSHEL, GRAIN, exhaust, forget_epoch_tables, read_inline
from benchmarks.measure import Contender, Row, Settings, compare, require_same_elements

RECORDS = 60_000
BATCH = 128
BATCHES_OF_EPOCH_TWO = 20


class Images:
    """A source as users write it: a length, and one record at a time."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.arrays["image"][index], "label": self.arrays["label"][index]}


def make_images(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (count, 28, 28), dtype=np.uint8),
        "label": rng.integers(0, 10, count, dtype=np.int64),
    }


def normalise(x: dict[str, Any]) -> dict[str, Any]:
    return {"image": x["image"].astype(np.float32) / 255, "label": x["label"]}


def w1a(settings: Settings) -> list[Row]:
    """f on whole batches."""
    arrays = make_images(settings.count(RECORDS, 6_000))

    def pipeline(library: ModuleType, source: Any) -> Any:
        return library.MapDataset.source(source).seed(0).shuffle().batch(BATCH).map(normalise)

    def plain_numpy() -> int:
        order = np.random.default_rng(0).permutation(len(arrays["label"]))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            normalise({name: array[chosen] for name, array in arrays.items()})
        return len(order)

    return _compared("W1a", arrays, pipeline, {"floor: plain numpy": plain_numpy}, settings, target=30)


def w1b(settings: Settings) -> list[Row]:
    """f on each element, then batches."""
    arrays = make_images(settings.count(RECORDS, 6_000))

    def pipeline(library: ModuleType, source: Any) -> Any:
        return library.MapDataset.source(source).seed(0).shuffle().map(normalise).batch(BATCH)

    source = Images(arrays)

    def plain_loop() -> int:
        order = np.random.default_rng(0).permutation(len(source)).tolist()
        for start in range(0, len(order), BATCH):
            elements = [normalise(source[index]) for index in order[start : start + BATCH]]
            for name in arrays:
                np.stack([element[name] for element in elements])
        return len(order)

    def calls_alone() -> int:
        for index in np.random.default_rng(0).permutation(len(source)).tolist():
            normalise(source[index])
        return len(source)

    others = {"plain loop, np.stack": plain_loop, "floor: source and f alone": calls_alone}
    return _compared("W1b", arrays, pipeline, others, settings, target=6)


def _compared(
    workload: str,
    arrays: dict[str, np.ndarray],
    pipeline: Any,
    others: dict[str, Contender],
    settings: Settings,
    target: float,
) -> list[Row]:
    theirs = pipeline(GRAIN, Images(arrays))
    by_column = pipeline(BUSHEL, bushel.sources.ArrayDataSource(arrays))
    by_record = pipeline(BUSHEL, Images(arrays))
    for name, ours in (("ArrayDataSource", by_column), ("the same source", by_record)):
        require_same_elements(f"{workload}, {name}", _epoch_and_more(BUSHEL, ours), _epoch_and_more(GRAIN, theirs))

    def epoch(library: ModuleType, dataset: Any) -> Contender:
        def run() -> int:
            forget_epoch_tables()
            exhaust(dataset.to_iter_dataset(read_inline(library)))
            return len(arrays["label"])

        return run

    contenders = {
        "grain": epoch(GRAIN, theirs),
        "bushel": epoch(BUSHEL, by_column),
        "bushel, Grain's source": epoch(BUSHEL, by_record),
        **others,
    }
    return compare(workload, contenders, settings, targets={"bushel": target})


def _epoch_and_more(library: ModuleType, dataset: Any) -> Any:
    """All batches of the first epoch and the first ones of the second."""
    endless = dataset.repeat(2).to_iter_dataset(read_inline(library))
    return itertools.islice(endless, len(dataset) + BATCHES_OF_EPOCH_TWO)
