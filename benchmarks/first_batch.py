"""How long a fresh process waits for its first batch from worker processes, and where this time goes.

    python -m benchmarks.first_batch                       # 2 workers, small; and 8 workers with batches of 48 MB
    python -m benchmarks.first_batch --base /old/checkout  # an older version beside it
    python -m benchmarks.first_batch --workers 16 --repetitions 9

It is wall time, so the machine must be quiet, and should have as many cores as workers. Each measurement is a new
process that has imported Bushel. The sources are compiled first, as pip does when it installs a package.

The floors are a Python that imports NumPy, which the process that workers are forked from does first, and a copy
of 48 MB into shared memory that nobody has touched.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
LARGE_ROWS = 32
ROW = (512, 768)  # of float32: 1.5 MB


class LargeArrays:
    """1.5 MB per record: reading costs nothing, writing into a batch does."""

    def __init__(self) -> None:
        self.arrays = [np.full(ROW, number, np.float32) for number in range(8)]

    def __len__(self) -> int:
        return 4_000

    def __getitem__(self, index: int) -> np.ndarray:
        return self.arrays[index % len(self.arrays)]


def measure_once(what: str, workers: int) -> None:
    """Prints the seconds of `iter`, of the first `next`, and of the next 16 batches."""
    import bushel

    if what == "small":
        dataset = bushel.MapDataset.range(10_000).shuffle(seed=1).batch(32)
    else:
        dataset = bushel.MapDataset.source(LargeArrays()).batch(LARGE_ROWS)
    stream = dataset.to_iter_dataset(bushel.ReadOptions(0, 0))
    stream = stream.mp_prefetch(bushel.MultiprocessingOptions(num_workers=workers))
    times = [time.perf_counter()]
    iterator = iter(stream)
    times.append(time.perf_counter())
    next(iterator)
    times.append(time.perf_counter())
    for _ in range(16):
        next(iterator)
    times.append(time.perf_counter())
    print(*(after - before for before, after in itertools.pairwise(times)))
    iterator.close()


def measure(folder: Path, what: str, workers: int) -> list[float]:
    """As `measure_once`, in a new process with the sources in `folder`."""
    code = f"from benchmarks import first_batch; first_batch.measure_once({what!r}, {workers})"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables, cwd=ROOT
    )
    return [float(word) for word in done.stdout.split()]


def time_numpy() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True)
    return time.perf_counter() - begun


def time_fresh_copy() -> float:
    rows = LargeArrays()
    shape = (LARGE_ROWS, *ROW)
    begun = time.perf_counter()
    with mmap.mmap(-1, int(np.prod(shape)) * 4) as shared:
        out = np.frombuffer(shared, np.float32).reshape(shape)
        for number in range(LARGE_ROWS):
            out[number] = rows[number]
        del out
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(",")[0])
    parser.add_argument("--base", type=Path, help="the folder of another checkout of Bushel")
    parser.add_argument("--workers", type=int, default=8, help="with batches of 48 MB")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    versions = {"bushel": ROOT, **({} if options.base is None else {"base": options.base.resolve()})}
    for folder in versions.values():
        compileall.compile_dir(folder / "src", quiet=1)
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    print(f"python {sys.version.split()[0]}, cores {os.cpu_count()}, load {load}, medians of {options.repetitions}\n")
    numpy_s = statistics.median(time_numpy() for _ in range(options.repetitions))
    copy_s = statistics.median(time_fresh_copy() for _ in range(options.repetitions))
    print(f"floor: a Python that imports NumPy {numpy_s:.3f} s; 48 MB into fresh shared memory {copy_s:.3f} s\n")
    print("| work | version | iter | first next | first batch [min..max] | 16 more |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for what, workers in (("small", 2), ("large", options.workers)):
        taken: dict[str, list[list[float]]] = {label: [] for label in versions}
        for _ in range(options.repetitions):
            for label, folder in versions.items():
                taken[label].append(measure(folder, what, workers))
        for label, runs in taken.items():
            opened, waited, more = (statistics.median(column) for column in zip(*runs, strict=True))
            first = [run[0] + run[1] for run in runs]
            spread = f"{statistics.median(first):.3f} s [{min(first):.3f}..{max(first):.3f}]"
            name = f"{what}, {workers} workers"
            print(f"| {name} | {label} | {opened:.3f} | {waited:.3f} | {spread} | {more:.3f} |", flush=True)


if __name__ == "__main__":
    main()
