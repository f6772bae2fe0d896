"""W2: small records from a list, five trivial maps, a filter, a stream in batches of 256. Overhead and little else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.libraries import BUSHEL, GRAIN, exhaust, read_inline
from benchmarks.measure import Contender, Row, Settings, compare, require_same_elements

RECORDS = 60_000
BATCH = 256

Record = dict[str, Any]


def make_records(count: int) -> list[Record]:
    return [{"a": i, "b": i * 0.5, "c": i % 7, "d": float(i % 3)} for i in range(count)]


def raise_a(x: Record) -> Record:
    return {**x, "a": x["a"] + 1}


def double_b(x: Record) -> Record:
    return {**x, "b": x["b"] * 2}


def lower_c(x: Record) -> Record:
    return {**x, "c": x["c"] - 1}


def raise_d(x: Record) -> Record:
    return {**x, "d": x["d"] + 1.0}


def double_a(x: Record) -> Record:
    return {**x, "a": x["a"] * 2}


def keep(x: Record) -> bool:
    return x["c"] != 3  # six of seven


MAPS = (raise_a, double_b, lower_c, raise_d, double_a)


def w2(settings: Settings) -> list[Row]:
    """Maps and a filter on Python scalars."""
    records = make_records(settings.count(RECORDS, 6_000))

    def elements(library: ModuleType) -> Any:
        dataset = library.MapDataset.source(records)
        for function in MAPS:
            dataset = dataset.map(function)
        return dataset.filter(keep)

    def stream(library: ModuleType, dataset: Any) -> Any:
        return dataset.to_iter_dataset(read_inline(library)).batch(BATCH)

    def start(library: ModuleType) -> Any:
        return itertools.islice(stream(library, elements(library)), 20)

    def into_epoch_two(library: ModuleType) -> Any:
        batches_per_epoch = len(records) // BATCH
        return itertools.islice(stream(library, elements(library).repeat(2)), batches_per_epoch + 20)

    require_same_elements("W2", start(BUSHEL), start(GRAIN))
    require_same_elements("W2, two epochs", into_epoch_two(BUSHEL), into_epoch_two(GRAIN))

    def epoch(library: ModuleType) -> Contender:
        dataset = stream(library, elements(library))

        def run() -> int:
            exhaust(dataset)
            return len(records)

        return run

    def kept_records() -> Iterator[Record]:
        for record in records:
            for function in MAPS:
                record = function(record)
            if keep(record):
                yield record

    def plain_loop() -> int:
        kept = kept_records()
        while rows := list(itertools.islice(kept, BATCH)):
            for name in rows[0]:
                np.array([row[name] for row in rows])
        return len(records)

    def calls_alone() -> int:
        exhaust(kept_records())
        return len(records)

    contenders = {
        "grain": epoch(GRAIN),
        "bushel": epoch(BUSHEL),
        "plain loop, np.array": plain_loop,
        "floor: maps and filter alone": calls_alone,
    }
    return compare("W2", contenders, settings, targets={"bushel": 12})
