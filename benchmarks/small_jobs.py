"""What a new user measures first: 10, 30 and 100 batches without any option, beside no threads and 16 threads.

`python -m benchmarks.small_jobs` runs each job in processes of its own, in turns, and prints CPU and wall time since
`iter()`, and memory. `--save` writes results/small_jobs.md. With `--peers` Grain runs the same jobs at its defaults.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 16
STOPS = (10, 30, 100)
WAYS = ("default", "0 threads", "16 threads")
ALLOWED = 1.15
"""The default may take this many times as long as the better of the two others."""


class Computed:
    """Records that plain Python computes: 0.3 ms each."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        total = 0
        for number in range(6000):
            total += number ^ index
        return {"x": np.full(64, total, np.float32), "label": index}


class Waiting:
    """Records that take 4 ms of waiting, as from a slow disk or a server."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.004)
        return {"x": np.full(64, index, np.float32), "label": index}


class Jpegs:
    """A folder of small JPEGs, as a user's class reads it."""

    def __init__(self, folder: str):
        self.paths = sorted(map(str, Path(folder).glob("*.jpg")))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        import simplejpeg

        return {"image": simplejpeg.decode_jpeg(Path(self.paths[index]).read_bytes()), "label": index}


def write_data(folder: Path) -> None:
    import simplejpeg
    from array_record.python.array_record_module import ArrayRecordWriter

    rng = np.random.default_rng(0)
    for name, side, count in (("jpeg", 64, 2048), ("photos", 256, 2048)):
        (folder / name).mkdir()
        for number in range(count):
            smooth = rng.integers(0, 256, (8, 8, 3), np.uint8).repeat(side // 8, 0).repeat(side // 8, 1)
            (folder / name / f"{number:05}.jpg").write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(smooth)))
    writer = ArrayRecordWriter(str(folder / "records.array_record"), "group_size:1")
    for _ in range(4096):
        writer.write(rng.bytes(1024))
    writer.close()


JOBS = ("jpeg", "photos", "array_record", "computed", "waiting", "list")


def make_source(library: Any, job: str, folder: str) -> Any:
    if job in ("jpeg", "photos"):
        return Jpegs(os.path.join(folder, job))
    if job == "array_record":
        return library.sources.ArrayRecordDataSource(os.path.join(folder, "records.array_record"))
    if job == "list":
        return [{"x": np.full(64, number, np.float32), "label": number} for number in range(4096)]
    return {"computed": Computed, "waiting": Waiting}[job]()


def parse(record: Any) -> Any:
    return np.frombuffer(record, np.uint8).astype(np.float32) if isinstance(record, bytes) else record


def run_child(library: str, job: str, way: str, folder: str) -> None:
    """Runs one job and prints, for each stop, CPU and wall milliseconds since `iter()`, and the memory at the end."""
    if library == "grain":
        import grain as chosen
    else:
        import bushel as chosen
    options = {"default": None, "0 threads": (0, 0), "16 threads": (16, 500)}[way]
    ds = chosen.MapDataset.source(make_source(chosen, job, folder)).seed(0).shuffle().map(parse).repeat()
    read_options: Any = None if options is None else chosen.ReadOptions(*options)
    ds = (ds.to_iter_dataset() if read_options is None else ds.to_iter_dataset(read_options)).batch(SIZE)
    cpu, wall, marks = time.process_time(), time.perf_counter(), {}
    batches = iter(ds)
    for number in itertools.count(1):
        next(batches)
        if number in STOPS:
            marks[number] = (1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall))
        if number == STOPS[-1]:
            break
    print(json.dumps({"marks": marks, "memory": _measure_memory()}), flush=True)
    os._exit(0)


def _measure_memory() -> float:
    """The memory of this process in MB: PSS on Linux, else the largest resident set."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
        return int(text.split("Pss:")[1].split()[0]) / 1024
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def measure(library: str, job: str, way: str, folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.small_jobs", "--child", library, job, way, folder]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Small jobs by default, without threads, and with 16 threads.")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--jobs", nargs="*", default=JOBS)
    parser.add_argument("--peers", action="store_true", help="also run Grain, at its defaults")
    parser.add_argument("--save", action="store_true", help="write results/small_jobs.md")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(*arguments.child)
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        print(_make_table(arguments, folder))


def _make_table(arguments: argparse.Namespace, folder: str) -> str:
    runs = [("bushel", way) for way in WAYS] + ([("grain", "default")] if arguments.peers else [])
    lines = [
        "| job | | " + " | ".join(f"{stop} batches" for stop in STOPS) + " | MB |",
        "| --- | --- | " + " --- |" * (len(STOPS) + 1),
    ]
    for job in arguments.jobs:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {run: [] for run in runs}
        for _ in range(arguments.repetitions):
            for run in runs:
                found[run].append(measure(run[0], job, run[1], folder))
        for run in runs:
            cells = []
            for stop in STOPS:
                cpu, wall = (statistics.median(one["marks"][str(stop)][at] for one in found[run]) for at in (0, 1))
                cells.append(f"{cpu:.0f}/{wall:.0f}")
            memory = statistics.median(one["memory"] for one in found[run])
            name = run[1] if run[0] == "bushel" else "Grain"
            lines.append(f"| {job} | {name} | {' | '.join(cells)} | {memory:.0f} |")
    text = "\n".join(lines)
    if arguments.save:
        target = Path(__file__).parent / "results" / "small_jobs.md"
        target.write_text(f"# Small jobs\n\n{text}\n", encoding="utf-8")
    return text


if __name__ == "__main__":
    main()
