"""Interleaved timing: contenders take turns within every repetition, so that noise meets all of them alike.

Knows nothing of the libraries that are compared.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

BASE = "grain"
"""The contender that ratios are relative to."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and how often to measure."""

    repetitions: int = 7
    base_s: float = 0.3  # one timing of Grain lasts at least so long
    other_s: float = 0.15  # one timing of anything else
    quick: bool = False

    def count(self, full: int, quick: int) -> int:
        """`full`, or `quick` in a quick run."""
        return quick if self.quick else full


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per element, of the clock on the wall and of this process on all its cores."""

    wall_s: float
    cpu_s: float


Contender = Callable[[], int]
"""One pass with fresh iterators, which returns how many elements it went through."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: a contender against Grain. A ratio above 1 means faster than Grain."""

    workload: str
    contender: str
    grain_s: float
    contender_s: float
    ratio: float
    ratio_min: float
    ratio_max: float
    cpu_ratio: float
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the median ratio reaches the target; None where there is none."""
        return None if self.target is None else self.ratio >= self.target


def compare(
    workload: str,
    contenders: Mapping[str, Contender],
    settings: Settings,
    *,
    targets: Mapping[str, float] | None = None,
    notes: Mapping[str, str] | None = None,
    before: Callable[[Contender], None] = lambda contender: None,
) -> list[Row]:
    """Times the contenders in turn, the order reversed every other time; one row for each but Grain.

    `before` is called with a contender before each of its timings.
    """
    passes = {
        name: _passes(run, settings.base_s if name == BASE else settings.other_s) for name, run in contenders.items()
    }
    timings: dict[str, list[Timing]] = {name: [] for name in contenders}
    for repetition in range(settings.repetitions):
        names = list(contenders)
        for name in reversed(names) if repetition % 2 else names:
            before(contenders[name])
            timings[name].append(_timed(contenders[name], passes[name]))
    return rows(workload, timings, targets=targets, notes=notes)


def rows(
    workload: str,
    timings: Mapping[str, Sequence[Timing]],
    *,
    targets: Mapping[str, float] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Row]:
    """Timings as rows. A ratio is taken within one repetition; medians are taken of ratios."""
    base = timings[BASE]
    found = []
    for name, own in timings.items():
        if name == BASE:
            continue
        wall = [theirs.wall_s / ours.wall_s for theirs, ours in zip(base, own, strict=True)]
        cpu = [theirs.cpu_s / ours.cpu_s for theirs, ours in zip(base, own, strict=True)]
        found.append(
            Row(
                workload=workload,
                contender=name,
                grain_s=statistics.median(timing.wall_s for timing in base),
                contender_s=statistics.median(timing.wall_s for timing in own),
                ratio=statistics.median(wall),
                ratio_min=min(wall),
                ratio_max=max(wall),
                cpu_ratio=statistics.median(cpu),
                target=(targets or {}).get(name),
                note=(notes or {}).get(name, ""),
            )
        )
    return found


def _passes(run: Contender, at_least_s: float) -> int:
    """How many passes make a timing long enough. The first pass is the warm-up and counts for nothing."""
    run()
    begun = time.perf_counter()
    run()
    return max(1, math.ceil(at_least_s / (time.perf_counter() - begun)))


def least(contenders: Mapping[str, Contender], settings: Settings, turns: int = 5) -> dict[str, Timing]:
    """The least time of each contender over a few turns: steady enough for a difference of two to mean something."""
    passes = {name: _passes(run, settings.other_s) for name, run in contenders.items()}
    taken = [{name: _timed(run, passes[name]) for name, run in contenders.items()} for _ in range(turns)]
    return {
        name: Timing(min(turn[name].wall_s for turn in taken), min(turn[name].cpu_s for turn in taken))
        for name in contenders
    }


def _timed(run: Contender, passes: int) -> Timing:
    gc.collect()
    elements = 0
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(passes):
        elements += run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Timing(wall / elements, cpu / elements)


class OutputsDiffer(Exception):
    """Both sides do not give the same values: there is nothing to compare."""


def require_same_elements(what: str, ours: Iterable[Any], theirs: Iterable[Any]) -> int:
    """Compares two runs of elements, value by value, type by type; returns how many there were."""
    nothing = object()
    count = 0
    for count, (our, their) in enumerate(itertools.zip_longest(ours, theirs, fillvalue=nothing), start=1):
        if our is nothing or their is nothing:
            shorter = "Bushel" if our is nothing else "Grain"
            raise OutputsDiffer(f"{what}: {shorter} ends after {count - 1} elements, the other side goes on.")
        require_same(f"{what}, element {count - 1}", our, their)
    if not count:
        raise OutputsDiffer(f"{what}: neither side gave an element, so nothing was compared.")
    return count


def require_same(what: str, ours: Any, theirs: Any) -> None:
    """Raises OutputsDiffer unless both are the same tree, with the same types, dtypes, shapes and values."""
    if type(ours) is not type(theirs):
        raise OutputsDiffer(f"{what}: Bushel gives {type(ours).__name__}, Grain gives {type(theirs).__name__}.")
    if isinstance(ours, dict):
        if list(ours) != list(theirs):
            raise OutputsDiffer(f"{what}: Bushel has the keys {list(ours)}, Grain has {list(theirs)}.")
        for key in ours:
            require_same(f"{what}[{key!r}]", ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            raise OutputsDiffer(f"{what}: Bushel has {len(ours)} entries, Grain has {len(theirs)}.")
        for place, (our, their) in enumerate(zip(ours, theirs)):
            require_same(f"{what}[{place}]", our, their)
    elif isinstance(ours, np.ndarray):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            raise OutputsDiffer(
                f"{what}: Bushel gives {ours.dtype}{ours.shape}, Grain gives {theirs.dtype}{theirs.shape}."
            )
        if not np.array_equal(ours, theirs):
            raise OutputsDiffer(f"{what}: the values differ.")
    elif ours != theirs:
        raise OutputsDiffer(f"{what}: Bushel gives {ours!r}, Grain gives {theirs!r}.")
