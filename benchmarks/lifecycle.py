"""IMPORT and STATE: what it costs to begin, and to begin again in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import grain.experimental

import bushel.experimental
from benchmarks.libraries import BUSHEL, GRAIN, read_inline
from benchmarks.measure import Contender, Row, Settings, Timing, compare, require_same, rows

LENGTH = 10**8
INDEX = 10**7

_IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def importing(settings: Settings) -> list[Row]:
    """Imports in fresh processes, after one that fills the caches of files."""
    modules = ("grain", "bushel", "numpy")
    for module in modules:
        _import_once(module)
    timings: dict[str, list[Timing]] = {module: [] for module in modules}
    for repetition in range(settings.repetitions):
        for module in reversed(modules) if repetition % 2 else modules:
            timings[module].append(_import_once(module))
    timings["floor: numpy alone"] = timings.pop("numpy")
    cpu = ", ".join(
        f"{name} {sorted(t.cpu_s for t in timings[name])[settings.repetitions // 2]:.2f}"
        for name in ("grain", "bushel")
    )
    return rows("IMPORT", timings, notes={"bushel": f"CPU seconds: {cpu}"})


def _import_once(module: str) -> Timing:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT.format(module=module)], capture_output=True, text=True, check=True
    )
    wall, cpu = map(float, done.stdout.split()[-2:])
    return Timing(wall, cpu)


def plus_one(x: int) -> int:
    return x + 1


def state(settings: Settings) -> list[Row]:
    """States at index 10**7 of a shuffled range: written, restored, and restored in a new iterator."""
    theirs, ours = _dataset(GRAIN), _dataset(BUSHEL)
    their_iterator, our_iterator = iter(theirs), iter(ours)
    grain.experimental.set_next_index(their_iterator, INDEX)
    bushel.experimental.set_next_index(our_iterator, INDEX)
    their_state, our_state = their_iterator.get_state(), our_iterator.get_state()
    our_state = json.loads(json.dumps(our_state))  # as a checkpoint would have it
    at = [[next(iterator) for _ in range(5)] for iterator in (our_iterator, their_iterator)]
    require_same("STATE, elements from the index on", *at)
    our_iterator.set_state(our_state)
    their_iterator.set_state(their_state)
    require_same("STATE, elements after set_state", [next(our_iterator) for _ in range(5)], at[1])
    require_same("STATE, elements after set_state", at[0], [next(their_iterator) for _ in range(5)])

    def get(iterator: Any) -> Contender:
        return _times(1_000, iterator.get_state)

    def put(iterator: Any, saved: Any) -> Contender:
        return _times(1_000, lambda: iterator.set_state(saved))

    def resume(dataset: Any, saved: Any) -> Contender:
        def once() -> None:
            iterator = iter(dataset)
            iterator.set_state(saved)
            next(iterator)

        return _times(20, once)

    return [
        *compare("STATE get_state", {"grain": get(their_iterator), "bushel": get(our_iterator)}, settings),
        *compare(
            "STATE set_state",
            {"grain": put(their_iterator, their_state), "bushel": put(our_iterator, our_state)},
            settings,
        ),
        *compare(
            "STATE resume",
            {"grain": resume(theirs, their_state), "bushel": resume(ours, our_state)},
            settings,
            notes={"bushel": "new iterator, set_state, first element"},
        ),
    ]


def _dataset(library: ModuleType) -> Any:
    return library.MapDataset.range(LENGTH).seed(0).shuffle().map(plus_one).to_iter_dataset(read_inline(library))


def _times(count: int, action: Any) -> Contender:
    def run() -> int:
        for _ in range(count):
            action()
        return count

    return run
