"""How cost grows with records, parts of a mixture and workers. Draws docs/cost.svg and writes results/cost.json.

`python -m benchmarks.cost` takes a few minutes; `--quick` looks whether it works, and writes nothing. Times are CPU
time: of this process, or of all processes together where there are workers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.libraries import BUSHEL, GRAIN, forget_epoch_tables, read_inline
from benchmarks.workers import descendants, own_bytes, with_workers

RESULTS = Path(__file__).parent / "results" / "cost.json"
PICTURE = Path(__file__).parent.parent / "docs" / "cost.svg"
BATCH = 256
Points = dict[str, list[tuple[float, float]]]
"""For each line of a plot, its points."""


class Source:
    """Records as users write them: a length, and one record at a time."""

    def __init__(self, records: np.ndarray):
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.records[index]


def median_s(run: Callable[[], Any], repetitions: int) -> float:
    """CPU seconds of one run, the median after a first run that does not count."""
    run()
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def by_records(repetitions: int) -> Points:
    """Microseconds per element of a shuffled range in batches: in order, and batches at random places."""
    found: Points = {"bushel, in order": [], "bushel, random batches": [], "grain, in order": []}
    rng = np.random.default_rng(0)
    for power in range(3, 10):
        count = 10**power
        for library in (BUSHEL, GRAIN):
            dataset = library.MapDataset.range(count).shuffle(seed=1).batch(BATCH)
            few = min(len(dataset), 40)

            def in_order(dataset: Any = dataset, few: int = few, library: ModuleType = library) -> None:
                forget_epoch_tables()
                iterator = iter(dataset.to_iter_dataset(read_inline(library)))
                for _ in range(few):
                    next(iterator)

            name = "bushel" if library is BUSHEL else "grain"
            found[f"{name}, in order"].append((count, median_s(in_order, repetitions) / few / min(count, BATCH) * 1e6))
        ours = BUSHEL.MapDataset.range(count).shuffle(seed=1).batch(BATCH)

        def at_random(dataset: Any = ours) -> None:
            for index in rng.integers(0, len(dataset), 20).tolist():
                dataset[index]

        found["bushel, random batches"].append((count, median_s(at_random, repetitions) / 20 / BATCH * 1e6))
    return found


def by_parts(repetitions: int, most: int) -> Points:
    """Milliseconds of one batch of 256 from a mixture of shuffled data sets: in order, and at random places."""
    found: Points = {"bushel, random batches": [], "bushel, in order": [], "grain, random batches": []}
    rng = np.random.default_rng(0)
    for power in range(5):
        count = 10**power
        if count > most:
            break
        arrays = [np.full((1000, 4), number, np.float32) for number in range(count)]
        weights = rng.uniform(1, 3, count).tolist()
        for library in (BUSHEL, GRAIN):
            if library is GRAIN and count > 1000:  # a batch takes half a second there
                continue
            make = BUSHEL.sources.ArrayDataSource if library is BUSHEL else Source
            parts = [library.MapDataset.source(make(a)).shuffle(seed=n).repeat() for n, a in enumerate(arrays)]
            dataset = library.MapDataset.mix(parts, weights).batch(BATCH)

            def at_random(dataset: Any = dataset, most: int = 3 * count) -> None:
                dataset[int(rng.integers(0, most))]

            name = "bushel" if library is BUSHEL else "grain"
            found[f"{name}, random batches"].append((count, median_s(at_random, repetitions) * 1e3))
            if library is BUSHEL:
                iterator = iter(dataset.to_iter_dataset(read_inline(library)))
                found["bushel, in order"].append((count, median_s(lambda: next(iterator), 40) * 1e3))  # noqa: B023
    return found


def by_workers(repetitions: int, most: int) -> tuple[Points, Points]:
    """CPU seconds of all processes per million elements, and the memory that a worker has to itself, in MB."""
    spent: Points = {"bushel": [], "grain": []}
    memory: Points = {"bushel": [], "grain": []}
    for count in (1, 2, 4, 8):
        if count > most:
            break
        for library in (BUSHEL, GRAIN):
            name = "bushel" if library is BUSHEL else "grain"
            dataset = library.MapDataset.range(10_000_000).shuffle(seed=1).map(square).batch(BATCH)
            before = descendants(os.getpid())
            iterator = iter(with_workers(library, dataset.to_iter_dataset(read_inline(library)), count))
            for _ in range(30):
                next(iterator)
            workers = descendants(os.getpid()) - before
            times = []
            for _ in range(repetitions):
                start = spent_by(workers) + time.process_time()
                for _ in range(60):
                    next(iterator)
                times.append((spent_by(workers) + time.process_time() - start) / 60 / BATCH)
            own = sorted((own_bytes(pid) for pid in workers), reverse=True)[:count]
            iterator.close()
            spent[name].append((count, statistics.median(times) * 1e6))
            memory[name].append((count, sum(own) / len(own) / 1e6))
    return spent, memory


def square(x: int) -> np.ndarray:
    """A little work for each element."""
    return np.arange(16) * x


def spent_by(processes: set[int]) -> float:
    """CPU seconds that processes have used."""
    total = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def draw(plots: dict[str, Points]) -> None:
    """All plots as one picture."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bushel", "font.size": 9})
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), constrained_layout=True)
    labels = {
        "records": ("records in the data set", "CPU microseconds per element"),
        "parts": ("data sets in the mixture", "CPU milliseconds per batch of 256"),
        "workers": ("worker processes", "CPU microseconds per element, all processes"),
        "memory": ("worker processes", "MB that one worker has to itself"),
    }
    for axis, (name, points) in zip(axes.flat, plots.items(), strict=True):
        for label, line in points.items():
            axis.plot(*zip(*line, strict=True), marker="o", label=label)
        axis.set_xlabel(labels[name][0])
        axis.set_ylabel(labels[name][1])
        axis.set_xscale("log", base=10 if name in ("records", "parts") else 2)
        axis.set_yscale("log" if name != "memory" else "linear")
        axis.set_ylim(bottom=0 if name == "memory" else None)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Measures, and writes the figures and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw-only", action="store_true", help="draw results/cost.json again")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--workers", type=int, default=max(2, os.cpu_count() or 2), help="the most workers to start")
    options = parser.parse_args()
    if options.draw_only:
        draw(json.loads(RESULTS.read_text(encoding="utf-8"))["plots"])
        return
    repetitions = 2 if options.quick else options.repetitions
    plots: dict[str, Points] = {"records": by_records(repetitions)}
    plots["parts"] = by_parts(repetitions, 100 if options.quick else 10_000)
    plots["workers"], plots["memory"] = by_workers(repetitions, 2 if options.quick else options.workers)
    for name, points in plots.items():
        for label, line in points.items():
            print(f"{name}, {label}: " + ", ".join(f"{x:g}: {y:.3g}" for x, y in line))
    if not options.quick:
        facts = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "cores": os.cpu_count(), "plots": plots}
        RESULTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        draw(plots)


if __name__ == "__main__":
    main()
