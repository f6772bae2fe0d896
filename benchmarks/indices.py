"""INDEX and MIX: index arithmetic alone, in blocks as Bushel's engine asks for it, against Grain's one at a time."""

from __future__ import annotations

import statistics
import time
from types import ModuleType
from typing import Any

import grain.experimental
import numpy as np
from grain._src.python.dataset.transformations.mix import SelectionWithProportionsMap

from benchmarks.libraries import BUSHEL, GRAIN, exhaust, forget_epoch_tables, read_inline
from benchmarks.measure import Contender, Row, Settings, compare, require_same, require_same_elements
from bushel._src.index.mix import integer_weights, mixed
from bushel._src.index.shuffle import SMALL, epoch_table, shuffle

BLOCK = 8192
LENGTHS = {
    "1_000": 1_000,
    "2**16-1": 2**16 - 1,
    "2**16": 2**16,
    "2**20": 2**20,
    "10**6": 10**6,
    "10**7": 10**7,
    "2**28+1": 2**28 + 1,
    "10**9": 10**9,
    "2**32": 2**32,
    "2**40": 2**40,
}
NO_PERMUTATION_IN_GRAIN = {2**28 + 1}  # its cipher is too narrow there, and values come twice; Bushel's is right
SEED = 7
WEIGHTS = (0.5, 0.3, 0.2)


def index(settings: Settings) -> list[Row]:
    """The shuffle of positions, at lengths around the places where its cost could change."""
    return [row for name, length in LENGTHS.items() for row in _shuffle_at(name, length, settings)]


def _shuffle_at(name: str, length: int, settings: Settings) -> list[Row]:
    if length < SMALL:  # whole epochs, since each has a table to pay for
        positions = np.arange(length * max(1, BLOCK // length))
    else:
        positions = length // 3 + np.arange(min(settings.count(4 * BLOCK, BLOCK), length // 2))
    blocks = [positions[low : low + BLOCK] for low in range(0, len(positions), BLOCK)]
    note = f"domain/length {cipher_domain(length) / length:.2f}"
    if length in NO_PERMUTATION_IN_GRAIN:
        note += "; values not compared: Grain's is no permutation here"
    else:
        for epoch in (0, 1):
            ours = shuffle(positions + epoch * length, length=length, seed=SEED).tolist()
            theirs = [_grains(position, length) for position in (positions + epoch * length).tolist()]
            require_same(f"INDEX {name}, epoch {epoch}", ours, theirs)

    def grain_one_by_one() -> int:
        one = grain.experimental.index_shuffle
        epochs, places = (part.tolist() for part in np.divmod(positions, length))
        last = length - 1
        for epoch, place in zip(epochs, places):
            one(place, max_index=last, seed=SEED + epoch, rounds=4)
        return len(places)

    def bushel_in_blocks() -> int:
        for block in blocks:
            shuffle(block, length=length, seed=SEED)
        return len(positions)

    def bushel_with_new_tables() -> int:
        forget_epoch_tables()
        return bushel_in_blocks()

    contenders: dict[str, Contender] = {"grain": grain_one_by_one}
    if length < SMALL:
        contenders |= {"bushel": bushel_with_new_tables, "bushel, table kept": bushel_in_blocks}
        note += f"; table {_table_ms(length):.2f} ms"
    else:
        contenders["bushel"] = bushel_in_blocks
    return compare(f"INDEX {name}", contenders, settings, notes={"bushel": note})


def cipher_domain(length: int) -> int:
    """Size of the cipher's block: 1 to 4 times the length from 2**16 on, and so many steps a walk takes on average."""
    bits = max(16, (length - 1).bit_length())
    return 1 << (bits + bits % 2)


def _grains(position: int, length: int) -> int:
    epoch, place = divmod(position, length)
    shuffled = grain.experimental.index_shuffle(place, max_index=length - 1, seed=SEED + epoch, rounds=4)
    return shuffled + epoch * length


def _table_ms(length: int) -> float:
    """What an epoch's table costs, once."""
    found = []
    for seed in range(9):
        forget_epoch_tables()
        begun = time.perf_counter()
        epoch_table(length, seed)
        found.append(time.perf_counter() - begun)
    return statistics.median(found) * 1e3


def mix(settings: Settings) -> list[Row]:
    """A mixture of three: its arithmetic alone, and a whole list of it."""
    return [*_mix_arithmetic(settings), *_mix_of_ranges(settings)]


def _mix_arithmetic(settings: Settings) -> list[Row]:
    count = settings.count(4 * BLOCK, BLOCK)
    positions = 10**7 + np.arange(count)
    places = positions.tolist()
    endless: Any = [range(2**60)] * len(WEIGHTS)
    theirs = SelectionWithProportionsMap(endless, WEIGHTS)
    weights = integer_weights(WEIGHTS)
    which, index_in = mixed(positions, weights)
    require_same("MIX arithmetic", list(zip(which.tolist(), index_in.tolist())), [theirs[place] for place in places])

    def grain_one_by_one() -> int:
        for place in places:
            theirs[place]
        return count

    def bushel_in_blocks() -> int:
        for low in range(0, count, BLOCK):
            mixed(positions[low : low + BLOCK], weights)
        return count

    return compare("MIX arithmetic", {"grain": grain_one_by_one, "bushel": bushel_in_blocks}, settings)


def _mix_of_ranges(settings: Settings) -> list[Row]:
    unit = settings.count(2_000, 200)

    def mixture(library: ModuleType) -> Any:
        parts = [
            library.MapDataset.range(5 * unit),
            library.MapDataset.range(3 * unit),
            library.MapDataset.range(2 * unit),
        ]
        return library.MapDataset.mix(parts, WEIGHTS)

    def stream(library: ModuleType, dataset: Any) -> Any:
        return dataset.to_iter_dataset(read_inline(library))

    theirs, ours = mixture(GRAIN), mixture(BUSHEL)
    require_same_elements("MIX of ranges", stream(BUSHEL, ours), stream(GRAIN, theirs))
    require_same_elements("MIX of ranges, two epochs", stream(BUSHEL, ours.repeat(2)), stream(GRAIN, theirs.repeat(2)))

    def listed(library: ModuleType, dataset: Any) -> Contender:
        def run() -> int:
            exhaust(stream(library, dataset))
            return len(dataset)

        return run

    return compare("MIX list of ranges", {"grain": listed(GRAIN, theirs), "bushel": listed(BUSHEL, ours)}, settings)
