"""`ray_prefetch` beside `mp_prefetch` with as many workers, and beside Ray Data, on one machine.

    python -m benchmarks.ray_cluster                  # as many workers as there are cores
    python -m benchmarks.ray_cluster --workers 8 --seconds 10 --save

All three run the same function on the same batches. A rate is that of a long run without its start, which is what a
run of one batch takes. Contenders take turns. With `--save` the table is written to benchmarks/results/ray.md.
Ray Data needs pyarrow and pandas.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import platform
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is imported, which reads its settings then
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray

import bushel
from bushel.engine.actors.executor import Actors
from bushel.engine.processes import Processes
from bushel.engine.program import Program
from bushel.engine.tasks import Executor, Ledger, Task

RESULTS = Path(__file__).parent / "results" / "ray.md"
ENDLESS = 1 << 40


@dataclasses.dataclass(frozen=True)
class Workload:
    """A function of a batch of numbers, the size of a batch, and what we aim for."""

    name: str
    what: str
    function: Callable[[np.ndarray], dict[str, np.ndarray]]
    batch_size: int
    of_processes: float | None
    """Target: our rate over that of `mp_prefetch`."""
    of_ray_data: float
    """Target: our rate over that of Ray Data."""


def small_rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """80 bytes per row, with some arithmetic."""
    rows = numbers[:, None] * np.arange(16, dtype=np.float32)
    return {"number": numbers, "row": (rows - rows.mean(axis=1, keepdims=True)).astype(np.float32)}


def slow_rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """1 ms of work for each row."""
    until = time.perf_counter() + 1e-3 * len(numbers)
    while time.perf_counter() < until:
        pass
    return {"number": numbers, "row": np.zeros((len(numbers), 64), np.float32)}


def large_rows(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """1.5 MB per row, which cost little to make."""
    rows = np.empty((len(numbers), 512, 768), np.float32)
    rows[:] = numbers[:, None, None]
    return {"number": numbers, "row": rows}


WORKLOADS = [
    Workload("small records", "72 bytes per row, batches of 256", small_rows, 256, 0.5, 2.0),
    Workload("1 ms of work per row", "264 bytes per row, batches of 16", slow_rows, 16, 0.9, 1.0),
    Workload("large records", "1.5 MB per row, batches of 4", large_rows, 4, None, 1.0),
]


def pipeline(workload: Workload, rows: int) -> Any:
    return bushel.MapDataset.range(rows).batch(workload.batch_size).map(workload.function).to_iter_dataset()


@contextlib.contextmanager
def with_processes(workload: Workload, workers: int, rows: int) -> Iterator[Iterator[Any]]:
    with iter(pipeline(workload, rows).mp_prefetch(bushel.MultiprocessingOptions(workers))) as batches:
        yield batches


@contextlib.contextmanager
def with_actors(workload: Workload, workers: int, rows: int) -> Iterator[Iterator[Any]]:
    with iter(pipeline(workload, rows).ray_prefetch(bushel.RayOptions(num_workers=workers))) as batches:
        yield batches


@contextlib.contextmanager
def with_ray_data(workload: Workload, workers: int, rows: int) -> Iterator[Iterator[Any]]:
    """Ray Data with its defaults: a range, `map_batches` in `workers` tasks at a time, `iter_batches`."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    function = workload.function

    def mapped(batch: Any) -> Any:
        return function(batch["id"])

    tasks = ray.data.TaskPoolStrategy(size=workers)
    ds = ray.data.range(rows).map_batches(mapped, batch_size=workload.batch_size, compute=tasks)
    yield iter(ds.iter_batches(batch_size=workload.batch_size, batch_format="numpy"))


CONTENDERS = {"mp_prefetch": with_processes, "ray_prefetch": with_actors, "Ray Data": with_ray_data}


def measure_run(workload: Workload, contender: str, workers: int, rows: int) -> float:
    """Seconds of a whole run, its start included."""
    begun = time.perf_counter()
    with CONTENDERS[contender](workload, workers, rows) as batches:
        count = sum(len(batch["number"]) for batch in batches)
        took_s = time.perf_counter() - begun
    assert count == rows, f"{contender} gave {count} of {rows} rows"
    return took_s


def measure_rate(workload: Workload, contender: str, workers: int, seconds: float) -> float:
    """Rows per second of a run, without its start: that is what a run of one batch takes."""
    start_s = measure_run(workload, contender, workers, workload.batch_size)
    rows = 64 * workload.batch_size
    while True:
        took_s = measure_run(workload, contender, workers, rows) - start_s
        if took_s >= seconds:
            return (rows - workload.batch_size) / took_s
        rows *= int(min(8.0, max(2.0, 1.3 * seconds / max(took_s, 0.1))))


def measure_block(executor: Executor, blocks: int) -> float:
    """Seconds for one block that holds next to nothing, one after the other: submit, compute, wait."""
    program = Program(bushel.MapDataset.range(ENDLESS)._node)
    for at in range(20):
        executor.wait(executor.submit(Task(program, at, at + 1, at, [], Ledger([]))))
    begun = time.perf_counter()
    for at in range(blocks):
        executor.wait(executor.submit(Task(program, at, at + 1, at, [], Ledger([]))))
    return (time.perf_counter() - begun) / blocks


def compare(workload: Workload, workers: int, seconds: float, repetitions: int) -> tuple[str, list[str]]:
    """A row of the table, and the targets that were missed."""
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for repetition in range(repetitions):
        for name in CONTENDERS if repetition % 2 == 0 else reversed(CONTENDERS):
            rates[name].append(measure_rate(workload, name, workers, seconds))
            print(f"{workload.name}, {name}: {rates[name][-1]:,.0f} rows/s", flush=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ours = medians["ray_prefetch"]
    row_bytes = sum(array.nbytes for array in workload.function(np.arange(1)).values())
    ratios = {name: ours / medians[name] for name in ("mp_prefetch", "Ray Data")}
    targets = {"mp_prefetch": workload.of_processes, "Ray Data": workload.of_ray_data}
    missed = [
        f"{workload.name}: {ratio:.2f} of {name}, target {targets[name]}"
        for name, ratio in ratios.items()
        if (target := targets[name]) is not None and ratio < target
    ]
    told = [f"{ratios[name]:.2f}" + ("" if targets[name] is None else f" ({targets[name]})") for name in ratios]
    rates_told = [f"{medians[name]:,.0f}" for name in CONTENDERS]
    cells = [workload.name, workload.what, *rates_told, f"{ours * row_bytes / 1e6:,.0f} MB/s", *told]
    return f"| {' | '.join(cells)} |", missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=10.0, help="a run takes at least so long")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--store-gb", type=float, default=1.0, help="the size of Ray's object store")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    store_bytes = int(options.store_gb * (1 << 30))
    ray.init(
        num_cpus=options.workers, object_store_memory=store_bytes, include_dashboard=False, logging_level=logging.ERROR
    )
    try:
        with contextlib.closing(Processes(1)) as processes, contextlib.closing(Actors(1)) as actors:
            block_s = {"mp_prefetch": measure_block(processes, 300), "ray_prefetch": measure_block(actors, 300)}
        lines, missed = [], []
        for workload in WORKLOADS:
            line, not_met = compare(workload, options.workers, options.seconds, options.repetitions)
            lines.append(line)
            missed += not_met
    finally:
        ray.shutdown()
    blocks = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in block_s.items())
    table = f"""\
# ray_prefetch beside mp_prefetch and Ray Data

{time.strftime("%Y-%m-%d")}, {os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()},
Ray {ray.__version__}, NumPy {np.__version__}; {options.workers} workers, actors or tasks;
medians of {options.repetitions} runs of at least {options.seconds:g} s.
Rates are rows per second. Ratios are ours over theirs, with the target in brackets. `python -m
benchmarks.ray_cluster --save` writes this file.

| workload | rows | mp_prefetch | ray_prefetch | Ray Data | ray_prefetch | of mp_prefetch | of Ray Data |
| --- | --- | --- | --- | --- | --- | --- | --- |
{chr(10).join(lines)}

Blocks with next to nothing in them, one after the other: {blocks} each.

Missed targets: {"; ".join(missed) or "none"}.
"""
    print(table)
    if options.save:
        RESULTS.write_text(table)
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
