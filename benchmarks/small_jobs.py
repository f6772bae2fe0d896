"""What a new user measures first: 10, 30 and 100 batches without any option, beside no threads and 16 threads.

    python -m benchmarks.small_jobs                      # about five minutes; exit code 1 if a target is missed
    python -m benchmarks.small_jobs --peers --save       # with Grain at its defaults; writes results/small_jobs.md

Each run has a process of its own, and the ways take turns. A cell is CPU and wall time since `iter()`, the median of
the turns. All ways must give the same batches: each run prints checksums of some. The wall clock decides which of no
threads and 16 threads is the better one; the default may take 15 % longer than it and 15 % more CPU time, and 12 ms
more, which is how exactly times of this length repeat. It may not be slower than Grain. For local files its memory may
be 1.5 times that of no threads. `store` is a server on loopback that answers after 20 ms, and `waiting` a user's class
that waits. On a busy machine wall times say little: `--cpu` compares CPU time and memory alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 16
STOPS = (10, 30, 100)
WAYS = ("default", "0 threads", "16 threads")
ALLOWED = 1.15
"""The default may take this many times as long as the better of the two others."""
SLACK_MS = 12.0
MEMORY = 1.5
"""The default may have this many times the memory of no threads."""
LATENCY_S = 0.02

Runs = dict[str, list[dict[str, Any]]]
"""The runs of a job, for each way and for "Grain"."""


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


class RldsFrames:
    """Decoded frames of an RLDS data set, one by one."""

    def __init__(self, folder: str):
        from bushel._src.trajectory.episode_builder import open_episodes

        source: Any = open_episodes("robot", folder, format="rlds").episodes()
        self.episodes = source.index(progress=False)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, Any]:
        from bushel._src.trajectory.encoded_images import read_all
        from bushel.trajectory import decode_image

        episode, step = divmod(index, 500)
        (image,) = read_all(self.episodes[episode]["observation"]["image"][step : step + 1].tolist())
        return {"image": decode_image(image), "label": index}


def write_data(folder: Path, jobs: Sequence[str]) -> None:
    rng = np.random.default_rng(0)
    writers = {"array_record": _write_array_record, "parquet": _write_parquet, "rlds": _write_rlds}
    writers |= {"lerobot": _write_lerobot, "store": _write_bag}
    for job in jobs:
        if job in writers:
            writers[job](folder, rng)
    for name, side, count in (("jpeg", 64, 2048), ("photos", 256, 2048)):
        if name not in jobs:
            continue
        import simplejpeg

        (folder / name).mkdir()
        for number in range(count):
            smooth = rng.integers(0, 256, (8, 8, 3), np.uint8).repeat(side // 8, 0).repeat(side // 8, 1)
            (folder / name / f"{number:05}.jpg").write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(smooth)))


def _write_array_record(folder: Path, rng: np.random.Generator) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "records.array_record"), "group_size:1")
    for _ in range(4096):
        writer.write(rng.bytes(1024))
    writer.close()


def _write_parquet(folder: Path, rng: np.random.Generator) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {name: rng.random(4096) for name in "abcd"}
    parquet.write_table(pyarrow.table(columns), folder / "rows.parquet", row_group_size=512)


def _write_rlds(folder: Path, rng: np.random.Generator) -> None:
    from benchmarks.robot_formats import write

    write("rlds", str(folder), 1000, 128)


def _write_lerobot(folder: Path, rng: np.random.Generator) -> None:
    from bushel.trajectory import convert_episodes

    (folder / "recorded").mkdir()
    for episode in range(8):
        images = rng.integers(0, 256, (100, 12, 16, 3), np.uint8).repeat(8, 1).repeat(8, 2)
        state = rng.random((100, 7), np.float32)
        np.savez(folder / "recorded" / f"{episode}.npz", front=images, state=state, action=state)
    convert_episodes(
        folder / "recorded", folder / "lerobot", format="lerobot", source_format="npz", fps=10, task="move"
    )


def _write_bag(folder: Path, rng: np.random.Generator) -> None:
    from benchmarks.stores import _write_bag

    _write_bag(folder / "records.bag", 4096, 4096)


JOBS = (
    *("jpeg", "photos", "array_record", "parquet", "rlds", "lerobot"),
    *("computed", "list", "waiting", "store"),
)
LOCAL = JOBS[:6]
PEER_JOBS = ("jpeg", "photos", "array_record", "computed", "list", "waiting")
"""Those that Grain reads, too, with the same source."""


def make_source(library: Any, job: str, folder: str) -> Any:
    if job in ("jpeg", "photos"):
        return Jpegs(os.path.join(folder, job))
    if job == "array_record":
        return library.sources.ArrayRecordDataSource(os.path.join(folder, "records.array_record"))
    if job == "parquet":
        return library.sources.ParquetDataSource(os.path.join(folder, "rows.parquet"))
    if job == "rlds":
        return RldsFrames(folder)
    if job == "lerobot":
        from bushel.trajectory import LeRobotSource

        return LeRobotSource(os.path.join(folder, "lerobot"), float_images=False)
    if job == "store":
        return library.sources.BagzDataSource(os.environ["SMALL_JOBS_URL"])
    if job == "list":
        return [{"x": np.full(64, number, np.float32), "label": number} for number in range(4096)]
    return {"computed": Computed, "waiting": Waiting}[job]()


def parse(record: Any) -> Any:
    return np.frombuffer(record, np.uint8).astype(np.float32) if isinstance(record, bytes) else record


def check_sum(batch: Any) -> int:
    """A checksum of all arrays of a batch."""
    parts = [batch[key] for key in sorted(batch)] if isinstance(batch, dict) else [batch]
    return zlib.crc32(
        b"".join(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode() for part in parts)
    )


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
    kept = []
    cpu, wall, marks = time.process_time(), time.perf_counter(), {}
    batches = iter(ds)
    for number in itertools.count(1):
        batch = next(batches)
        if number in STOPS:
            marks[number] = (1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall))
            kept.append(batch)
        if number == STOPS[-1]:
            break
    memory = _measure_memory()
    print(json.dumps({"marks": marks, "memory": memory, "sums": [check_sum(batch) for batch in kept]}), flush=True)
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
    parser.add_argument("--cpu", action="store_true", help="check CPU time and memory alone, for a busy machine")
    parser.add_argument("--save", action="store_true", help="write results/small_jobs.md")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(*arguments.child)
    lines, missed = _describe_machine(), []
    lines += ["| job | | " + " | ".join(f"{stop} batches" for stop in STOPS) + " | MB |"]
    lines += ["| --- | --- | " + "--- | " * (len(STOPS) + 1)]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        write_data(Path(folder), arguments.jobs)
        if "store" in arguments.jobs:
            from benchmarks.stores import _server

            os.environ["SMALL_JOBS_URL"] = stack.enter_context(_server(Path(folder) / "records.bag", LATENCY_S))
        for job in arguments.jobs:
            runs = measure_job(job, arguments.peers, arguments.repetitions, folder)
            lines += [make_row(job, way, each) for way, each in runs.items()]
            missed += find_missed(job, runs, not arguments.cpu)
            print(*lines[-len(runs) :], sep="\n", flush=True)
    lines += ["", *([f"Missed: {line}" for line in missed] or ["All targets are met."])]
    if arguments.save:
        target = Path(__file__).parent / "results" / "small_jobs.md"
        target.write_text("\n".join(["# Small jobs", "", *lines, ""]), encoding="utf-8")
    print(lines[0], *(missed or lines[-1:]), sep="\n")
    sys.exit(1 if missed else 0)


def _describe_machine() -> list[str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0]
    what = f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"
    return [
        f"{time.strftime('%Y-%m-%d')}, {what}, load {load:.1f} at the start; `python -m benchmarks.small_jobs --save`.",
        "",
        f'CPU and wall milliseconds since `iter()`, batches of {SIZE}. "Default" is a pipeline without any option. It',
        "should be within 15 % of the better of no threads and 16 threads, never behind Grain, and take at most 1.5",
        "times the memory of no threads. On a busy machine only CPU time and memory say something.",
        "",
    ]


def measure_job(job: str, peers: bool, repetitions: int, folder: str) -> Runs:
    """The runs of a job. The ways take turns."""
    runs: Runs = {way: [] for way in WAYS}
    if peers and job in PEER_JOBS:
        runs["Grain"] = []
    for _ in range(repetitions):
        for way in runs:
            library, option = ("grain", "default") if way == "Grain" else ("bushel", way)
            runs[way].append(measure(library, job, option, folder))
    if len({tuple(run["sums"]) for each in runs.values() for run in each}) > 1:
        raise AssertionError(f"The batches of {job} differ: {runs}")
    return runs


def take_median(runs: list[dict[str, Any]], stop: int) -> tuple[float, float]:
    """CPU and wall time at a stop."""
    cpu, wall = (statistics.median(run["marks"][str(stop)][at] for run in runs) for at in (0, 1))
    return cpu, wall


def make_row(job: str, way: str, runs: list[dict[str, Any]]) -> str:
    cells = ["{:.0f}/{:.0f}".format(*take_median(runs, stop)) for stop in STOPS]
    return f"| {job} | {way} | {' | '.join(cells)} | {statistics.median(run['memory'] for run in runs):.0f} |"


def find_missed(job: str, runs: Runs, with_wall: bool = True) -> list[str]:
    """A line for each target that the default misses."""
    missed = []
    for stop in STOPS:
        found = {way: take_median(each, stop) for way, each in runs.items()}
        own = found["default"]
        better = min(found["0 threads"], found["16 threads"], key=lambda times: times[1])
        for at, kind in enumerate(("CPU", "wall")[: 2 if with_wall else 1]):
            if own[at] > ALLOWED * better[at] + SLACK_MS:
                missed.append(f"{job}, {stop} batches: {own[at]:.0f} ms {kind}, the better one {better[at]:.0f}")
            if "Grain" in found and own[at] > found["Grain"][at] + SLACK_MS:
                missed.append(f"{job}, {stop} batches: {own[at]:.0f} ms {kind}, Grain {found['Grain'][at]:.0f}")
    memory, least = (statistics.median(run["memory"] for run in runs[way]) for way in ("default", "0 threads"))
    if job in LOCAL and memory > MEMORY * least:
        missed.append(f"{job}: {memory:.0f} MB, without threads {least:.0f}")
    return missed


if __name__ == "__main__":
    main()
