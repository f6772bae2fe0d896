"""W4 by random access: token sequences of mean length 300, packed into rows of 2,048, in batches of 16."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.libraries import BUSHEL, GRAIN, exhaust, forget_epoch_tables, read_inline
from benchmarks.measure import (
    Contender,
    OutputsDiffer,
    Row,
    Settings,
    Timing,
    compare,
    least,
    require_same_elements,
    rows,
)

SEQUENCES = 12_000
MEAN = 300
LENGTH = 2_048
BINS = 64
SEED = 7
BATCH = 16


class Opaque:
    """A source that says nothing of how its records lie: one Python call per record."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray):
        self._values, self._offsets = values, offsets.tolist()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"tokens": self._values[self._offsets[index] : self._offsets[index + 1]]}


def make_tokens(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.exponential(MEAN, count), 8, LENGTH).astype(np.int64)
    return generator.integers(1, 32_000, lengths.sum(), dtype=np.int32), np.concatenate([[0], np.cumsum(lengths)])


def w4_pack(settings: Settings) -> list[Row]:
    """Grain's packer of a stream against rows that are planned once, over an opaque source and over a ragged column.

    In order, both sides give the same rows. Shuffled, Grain shuffles sequences and packs them as they come; ours are
    packed in one shuffled order, and the rows shuffled anew in every epoch.
    """
    values, offsets = make_tokens(settings.count(SEQUENCES, 1_000))
    opaque = Opaque(values, offsets)
    ragged = BUSHEL.sources.RaggedDataSource({"tokens": values}, offsets)
    lengths = np.diff(offsets)

    def theirs(shuffled: bool) -> Any:
        elements = GRAIN.MapDataset.source(opaque)
        stream = (elements.shuffle(seed=SEED) if shuffled else elements).to_iter_dataset(read_inline(GRAIN))
        packed = GRAIN.experimental.FirstFitPackIterDataset(
            stream, length_struct={"tokens": LENGTH}, num_packing_bins=BINS, shuffle_bins=False
        )
        return packed.batch(BATCH)

    def ours(source: Any, shuffled: bool) -> Any:
        elements = BUSHEL.MapDataset.source(source)
        packed = elements.pack(lengths, {"tokens": LENGTH}, window=BINS, seed=SEED if shuffled else None)
        rows = packed.shuffle(seed=SEED) if shuffled else packed
        return rows.batch(BATCH).to_iter_dataset(read_inline(BUSHEL))

    def first_batches(batches: Any) -> list[Any]:
        return [dict(sorted(batch.items())) for batch in itertools.islice(batches, 40)]  # Grain's batch sorts keys

    for source in (opaque, ragged):
        require_same_elements("W4 rows", first_batches(ours(source, False)), first_batches(theirs(False)))
    _require_same_tokens(ours(ragged, True), theirs(True))

    def passes(dataset: Any) -> Contender:
        def run() -> int:
            forget_epoch_tables()
            exhaust(dataset)
            return len(lengths)

        return run

    def planned_anew() -> int:
        forget_epoch_tables()
        exhaust(ours(ragged, True))
        return len(lengths)

    targets = {"bushel, opaque source": 13.0, "bushel, ragged column": 30.0}
    return [
        *compare(
            "W4 packed, shuffled",
            {
                "grain": passes(theirs(True)),
                "bushel, opaque source": passes(ours(opaque, True)),
                "bushel, ragged column": passes(ours(ragged, True)),
                "bushel, ragged column, planned in every pass": planned_anew,
            },
            settings,
            targets=targets,
        ),
        *compare(
            "W4 packed, in order",
            {
                "grain": passes(theirs(False)),
                "bushel, opaque source": passes(ours(opaque, False)),
                "bushel, ragged column": passes(ours(ragged, False)),
            },
            settings,
        ),
    ]


def _require_same_tokens(ours: Any, theirs: Any) -> None:
    """An epoch of both holds the same tokens, and nearly as many rows."""
    counts = []
    for batches in (ours, theirs):
        tokens = np.concatenate([batch["tokens"] for batch in batches])
        counts.append((np.bincount(tokens[tokens > 0]).tolist(), len(tokens)))
    if counts[0][0] != counts[1][0] or abs(counts[0][1] / counts[1][1] - 1) > 0.01:
        raise OutputsDiffer(f"W4 shuffled: other tokens, or {counts[0][1]} rows against {counts[1][1]}.")


def mix_of_three(settings: Settings) -> list[Row]:
    """What a mixture of three adds to the cost of an element, one by one and in batches."""
    unit = settings.count(4_000, 400)
    weights = (0.5, 0.3, 0.2)

    def parts(library: ModuleType) -> list[Any]:
        return [library.MapDataset.source(np.arange(int(10 * unit * weight))) for weight in weights]

    def mixture(library: ModuleType) -> Any:
        return library.MapDataset.mix(parts(library), weights)

    def plain(library: ModuleType) -> Any:
        return library.MapDataset.source(np.arange(10 * unit))

    require_same_elements("MIX of three", mixture(BUSHEL), mixture(GRAIN).to_iter_dataset(read_inline(GRAIN)))

    def timings(library: ModuleType, size: int | None) -> tuple[Contender, Contender]:
        def timed(dataset: Any) -> Contender:
            batched = dataset if size is None else dataset.batch(size)
            stream = batched.to_iter_dataset(read_inline(library))

            def run() -> int:
                exhaust(stream)
                return len(dataset)

            return run

        return timed(mixture(library)), timed(plain(library))

    found = []
    for name, size in (("one by one", None), ("in batches of 256", 256)):
        (theirs, without), (ours, ours_without) = timings(GRAIN, size), timings(BUSHEL, size)
        # The overhead is a difference of two times: all four are timed in turns, and the least of each is taken.
        contenders = {"grain": theirs, "without": without, "bushel": ours, "ours without": ours_without}
        taken = [least(contenders, settings) for _ in range(settings.repetitions)]
        overhead = {
            "grain": [_less(times["grain"], times["without"]) for times in taken],
            "bushel": [_less(times["bushel"], times["ours without"]) for times in taken],
        }
        targets = {"bushel": 10.0} if size else None
        found += rows(f"MIX of three, overhead {name}", overhead, targets=targets)
    return found


def _less(whole: Timing, without: Timing) -> Timing:
    return Timing(max(1e-9, whole.wall_s - without.wall_s), max(1e-9, whole.cpu_s - without.cpu_s))
