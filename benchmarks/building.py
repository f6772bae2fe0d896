"""BUILD: what a pipeline costs before its first element: building it, opening an iterator, and both for many parts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.libraries import BUSHEL, GRAIN, read_inline
from benchmarks.measure import Contender, Row, Settings, compare, require_same

RECORDS = list(range(1_000))
COUNT = 200


def add_one(x: int) -> int:
    return x + 1


def is_even(x: int) -> bool:
    return x % 2 == 0


def build(library: ModuleType) -> Any:
    """A pipeline of six operations over a list."""
    ds = library.MapDataset.source(RECORDS).shuffle(seed=1).map(add_one).filter(is_even)
    return ds.to_iter_dataset(read_inline(library)).batch(32)


def building(settings: Settings) -> list[Row]:
    """Builds a pipeline, opens an iterator of it, and reads the first batch; each timed by itself."""
    require_same("BUILD, first batch", next(iter(build(BUSHEL))), next(iter(build(GRAIN))))

    def builds(library: ModuleType) -> Contender:
        return _repeat(lambda: build(library))

    def opens(library: ModuleType) -> Contender:
        dataset = build(library)
        return _repeat(lambda: iter(dataset))

    def starts(library: ModuleType) -> Contender:
        return _repeat(lambda: next(iter(build(library))))

    return [
        *compare("BUILD pipeline", {"grain": builds(GRAIN), "bushel": builds(BUSHEL)}, settings),
        *compare("BUILD iterator", {"grain": opens(GRAIN), "bushel": opens(BUSHEL)}, settings),
        *compare(
            "BUILD first batch",
            {"grain": starts(GRAIN), "bushel": starts(BUSHEL)},
            settings,
            notes={"bushel": "build, open and read one batch: Bushel takes the identity here"},
        ),
    ]


def _repeat(action: Any) -> Contender:
    def run() -> int:
        for _ in range(COUNT):
            action()
        return COUNT

    return run
