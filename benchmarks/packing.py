"""W4: token sequences of mean length 300, shuffled, packed into rows of 2,048 as a stream, in batches of 16 rows.

And the other operations on streams that look at several elements: window shuffle and interleave.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.libraries import BUSHEL, GRAIN, exhaust, forget_epoch_tables, read_inline
from benchmarks.measure import Contender, Row, Settings, compare, require_same_elements

SEQUENCES = 20_000
MEAN, LENGTH, BATCH, BINS = 300, 2_048, 16, 64

Record = dict[str, Any]


class Tokens:
    """Sequences one by one, as a source of the user's own gives them."""

    def __init__(self, count: int):
        rng = np.random.default_rng(0)
        # Lengths as in text: many short ones, some that have to be cut to a row.
        lengths = np.clip(rng.lognormal(np.log(MEAN) - 0.405, 0.9, count).astype(int), 1, LENGTH)
        ends = np.cumsum(lengths)
        flat = rng.integers(1, 50_000, int(ends[-1]), dtype=np.int32)
        self._sequences = np.split(flat, ends[:-1])

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> Record:
        return {"tokens": self._sequences[index]}


def w4(settings: Settings) -> list[Row]:
    """Packers of streams, per packed row."""
    source = Tokens(settings.count(SEQUENCES, 2_000))
    packers = ("FirstFitPackIterDataset", "BestFitPackIterDataset", "ConcatThenSplitIterDataset")
    found: list[Row] = []
    for name in packers:
        found += _packed(source, name, settings)
    return found


def _packed(source: Tokens, name: str, settings: Settings) -> list[Row]:
    def stream(library: ModuleType) -> Any:
        dataset = library.MapDataset.source(source).seed(1).shuffle().to_iter_dataset(read_inline(library))
        more = {} if name.startswith("Concat") else {"num_packing_bins": BINS}
        packed = getattr(library.experimental, name)(dataset, length_struct={"tokens": LENGTH}, **more)
        return packed.batch(BATCH)

    def sorted_keys(library: ModuleType) -> Any:
        return ({key: batch[key] for key in sorted(batch)} for batch in stream(library))

    batches = require_same_elements(f"W4, {name}", sorted_keys(BUSHEL), sorted_keys(GRAIN))
    rows = sum(len(batch["tokens"]) for batch in stream(BUSHEL))
    held = sum(int((batch["tokens_segment_ids"] > 0).sum()) for batch in stream(BUSHEL)) / (rows * LENGTH)

    def epoch(library: ModuleType) -> Contender:
        dataset = stream(library)

        def run() -> int:
            forget_epoch_tables()
            exhaust(dataset)
            return rows

        return run

    contenders = {"grain": epoch(GRAIN), "bushel": epoch(BUSHEL)}
    if name.startswith("FirstFit"):
        contenders["floor: reading alone"] = _reading_alone(source, rows)
    note = f"{batches} batches, {held:.1%} of cells filled"
    targets = {"bushel": 13.0} if name.startswith("FirstFit") else {"bushel": 1.0}
    return compare(f"W4 {name.partition('Iter')[0]}", contenders, settings, targets=targets, notes={"bushel": note})


def _reading_alone(source: Tokens, rows: int) -> Contender:
    def run() -> int:
        forget_epoch_tables()
        exhaust(BUSHEL.MapDataset.source(source).seed(1).shuffle().to_iter_dataset(read_inline(BUSHEL)))
        return rows

    return run


def windows(settings: Settings) -> list[Row]:
    """Window shuffles of a stream, and random access through one; per element."""
    count = settings.count(10_000, 1_000)
    found: list[Row] = []
    for size in (100, 1_000):

        def stream(library: ModuleType, size: int = size) -> Any:
            elements = library.MapDataset.range(count).to_iter_dataset(read_inline(library))
            return library.experimental.WindowShuffleIterDataset(elements, window_size=size, seed=3)

        def elements(library: ModuleType, size: int = size) -> Any:
            shuffled = library.experimental.WindowShuffleMapDataset(
                library.MapDataset.range(count), window_size=size, seed=3
            )
            return shuffled.to_iter_dataset(read_inline(library))

        for what, build in (("stream", stream), ("map", elements)):
            require_same_elements(f"window shuffle, {what}", build(BUSHEL), build(GRAIN))

            def run(library: ModuleType, build: Any = build) -> Contender:
                def once() -> int:
                    forget_epoch_tables()
                    exhaust(build(library))
                    return count

                return once

            contenders = {"grain": run(GRAIN), "bushel": run(BUSHEL)}
            found += compare(f"WINDOW {size}, {what}", contenders, settings, targets={"bushel": 1})
    return found


def interleave(settings: Settings) -> list[Row]:
    """An interleave of eight streams, four at a time, in batches; per element."""
    count = settings.count(4_000, 400)

    def stream(library: ModuleType) -> Any:
        parts = [
            library.MapDataset.range(n * count, (n + 1) * count).to_iter_dataset(read_inline(library)) for n in range(8)
        ]
        return library.experimental.InterleaveIterDataset(parts, cycle_length=4).batch(64)

    require_same_elements("INTERLEAVE", stream(BUSHEL), stream(GRAIN))

    def epoch(library: ModuleType) -> Contender:
        def run() -> int:
            with_end = itertools.chain(stream(library))
            exhaust(with_end)
            return 8 * count

        return run

    contenders = {"grain": epoch(GRAIN), "bushel": epoch(BUSHEL)}
    return compare("INTERLEAVE", contenders, settings, targets={"bushel": 1})
