"""`ray_prefetch` beside `mp_prefetch` with as many workers, and beside Ray Data, on one machine.

    python -m benchmarks.ray_cluster                  # as many workers as there are cores
    python -m benchmarks.ray_cluster --workers 8 --seconds 10 --save
    python -m benchmarks.ray_cluster --only large --seconds 3 --repetitions 1

All three run the same function on the same batches. A row's time is the difference of a long run and a short one,
divided by their rows: the start of a run does not count. Contenders take turns. CPU time is that of this process, of
Ray's processes and of all workers. It says more than a rate while other programs use the machine. With `--save` the
table is written to benchmarks/results/ray.md. Ray Data needs pyarrow and pandas.
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
from typing import Any, NamedTuple

os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is imported, which reads its settings then
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray

import bushel
from bushel._src.engine.actors.executor import Actors
from bushel._src.engine.processes.executor import Processes
from bushel._src.engine.program import Program
from bushel._src.engine.tasks import Executor, Ledger, Task

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
    """1 ms of work for each row, as CPU time: a task that waits for a core meanwhile gains nothing."""
    until = time.thread_time() + 1e-3 * len(numbers)
    while time.thread_time() < until:
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


class Cost(NamedTuple):
    """What a run takes: seconds on the clock, and CPU seconds of this process and all processes below it."""

    wall_s: float
    cpu_s: float


def count_cpu_s() -> float:
    """CPU seconds so far of this process and of all processes below it; NaN where there is no /proc."""
    used: dict[int, float] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process that has just ended
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            used[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # ended children included
    below = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(used[number] for number in below) if used else float("nan")


def measure_run(workload: Workload, contender: str, workers: int, rows: int) -> Cost:
    """What a whole run takes, from its start to its last row."""
    begun, used_s, count = time.perf_counter(), count_cpu_s(), 0
    with CONTENDERS[contender](workload, workers, rows) as batches:
        for batch in batches:
            count += len(batch["number"])
        cost = Cost(time.perf_counter() - begun, count_cpu_s() - used_s)
    assert count == rows, f"{contender} gave {count} of {rows} rows"
    return cost


def measure_row(workload: Workload, contender: str, workers: int, seconds: float) -> Cost:
    """What one more row takes: the difference of a long run and a short one, so that the start does not count.

    To measure a part of one run would not do: Ray Data computes far ahead, so the work for the last rows may be done
    before the first rows are read.
    """
    rows = 256 * workload.batch_size
    measure_run(workload, contender, workers, rows)  # the first run of a contender also imports modules
    while (short := measure_run(workload, contender, workers, rows)).wall_s < seconds / 3:
        rows *= int(min(8.0, max(2.0, seconds / 3 / max(short.wall_s, 0.1))))
    long = measure_run(workload, contender, workers, 3 * rows)
    return Cost((long.wall_s - short.wall_s) / (2 * rows), (long.cpu_s - short.cpu_s) / (2 * rows))


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
    costs: dict[str, list[Cost]] = {name: [] for name in CONTENDERS}
    for repetition in range(repetitions):
        for name in CONTENDERS if repetition % 2 == 0 else reversed(CONTENDERS):
            cost = measure_row(workload, name, workers, seconds)
            costs[name].append(cost)
            told = f"{1 / cost.wall_s:,.0f} rows/s, {1e6 * cost.cpu_s:,.1f} CPU-us per row"
            print(f"{workload.name}, {name}: {told}", flush=True)
    rates = {name: 1 / statistics.median(cost.wall_s for cost in found) for name, found in costs.items()}
    used_us = {name: 1e6 * statistics.median(cost.cpu_s for cost in found) for name, found in costs.items()}
    ours = rates["ray_prefetch"]
    row_bytes = sum(array.nbytes for array in workload.function(np.arange(1)).values())
    ratios = {name: ours / rates[name] for name in ("mp_prefetch", "Ray Data")}
    targets = {"mp_prefetch": workload.of_processes, "Ray Data": workload.of_ray_data}
    missed = [
        f"{workload.name}: {ratio:.2f} of {name}, target {targets[name]}"
        for name, ratio in ratios.items()
        if (target := targets[name]) is not None and ratio < target
    ]
    told = [f"{ratios[name]:.2f}" + ("" if targets[name] is None else f" ({targets[name]})") for name in ratios]
    rates_told = [f"{rates[name]:,.0f}" for name in CONTENDERS]
    used_told = " / ".join(f"{used_us[name]:,.4g}" for name in CONTENDERS)
    cells = [workload.name, workload.what, *rates_told, f"{ours * row_bytes / 1e6:,.0f} MB/s", *told, used_told]
    return f"| {' | '.join(cells)} |", missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=10.0, help="a run takes at least so long")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--store-gb", type=float, default=1.0, help="the size of Ray's object store")
    parser.add_argument("--only", default="", help="measures the workloads whose names contain this")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    store_bytes = int(options.store_gb * (1 << 30))
    ray.init(
        num_cpus=options.workers, object_store_memory=store_bytes, include_dashboard=False, logging_level=logging.ERROR
    )
    try:
        with contextlib.closing(Processes(1)) as processes, contextlib.closing(Actors(1)) as actors:
            block_s = {"mp_prefetch": measure_block(processes, 300), "ray_prefetch": measure_block(actors, 300)}
        lines, missed = [], []
        for workload in [workload for workload in WORKLOADS if options.only in workload.name]:
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
Rates are rows per second. Ratios are ours over theirs, with the target in brackets. CPU time is that of all processes,
for the three in their order. `python -m benchmarks.ray_cluster --save` writes this file.
The load of the machine was {load:.1f} before the run.

| workload | rows | mp_prefetch | ray_prefetch | Ray Data | ray_prefetch | of mp_prefetch | of Ray Data | CPU-us a row |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
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
