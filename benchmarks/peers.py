"""The same six works on what users would pick instead of Bushel: Grain, torch, SPDL, Ray Data and others.

`PYTHONPATH=src:. python benchmarks/peers.py` prints one table in Markdown, and `--save NAME` also writes
results/NAME.md. A library that is not installed is left out. Each library runs each work in a process of its own,
without workers, in the form that its documentation shows for data in memory. Times are CPU time of the process
with its threads (Ray: on the wall, since its work is in other processes): the median of several runs after the first.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import importlib
import importlib.util
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"w1a": 20_000, "w1b": 20_000, "w2": 20_000, "w4": 4_000, "w5": 6_000, "w6": 128}
BATCHES = {"w1a": 128, "w1b": 128, "w2": 256, "w4": 16, "w5": 64, "w6": 32}
WHAT = {
    "w1a": "28 x 28 images, normalised by the batch",
    "w1b": "the same, image by image",
    "w2": "small dicts, five maps, a filter",
    "w4": "token sequences, cut and padded to 2,048",
    "w5": "windows of trajectories, 64 x 64 images",
    "w6": "elements of 1.5 MB",
}
PACKAGES = {
    "bushel": "bushel",
    "grain": "grain",
    "torch": "torch",
    "spdl": "spdl",
    "ray": "ray",
    "datasets": "datasets",
    "webdataset": "webdataset",
}
Batch = dict[str, np.ndarray]


# The works: records by index, and what is done to each record or batch. They are the same for every library.


class Work:
    """Records by index, a function of one record, and a function of a batch."""

    def __init__(self, name: str):
        rng = np.random.default_rng(0)
        self.name, self.count, self.batch = name, SIZES[name], BATCHES[name]
        if name in ("w1a", "w1b"):
            self.images = rng.integers(0, 256, (self.count, 28, 28), dtype=np.uint8)
        elif name == "w4":
            lengths = np.clip(rng.exponential(300, self.count), 8, 2048).astype(int)
            self.tokens = [rng.integers(1, 32_000, length, dtype=np.int32) for length in lengths]
        elif name == "w5":
            self.frames = rng.integers(0, 256, (self.count + 52, 64, 64, 3), dtype=np.uint8)
            self.actions = rng.normal(size=(self.count + 52, 7)).astype(np.float32)
        elif name == "w6":
            self.large = rng.integers(0, 256, (8, 1_500_000), dtype=np.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = int(index)
        if self.name in ("w1a", "w1b"):
            return {"image": self.images[index], "label": index % 10}
        if self.name == "w2":
            return {"a": index, "b": index * 0.5, "c": index % 7, "d": float(index % 3)}
        if self.name == "w4":
            return {"tokens": self.tokens[index]}
        if self.name == "w5":
            return {"image": self.frames[index : index + 2], "action": self.actions[index + 2 : index + 52]}
        return {"x": self.large[index % 8]}

    def change(self, record: dict[str, Any]) -> dict[str, Any]:
        """The function of one record."""
        if self.name == "w1b":
            return {"image": record["image"].astype(np.float32) / 255, "label": record["label"]}
        if self.name == "w2":
            record = {**record, "a": record["a"] + 1}
            record = {**record, "b": record["b"] * 2}
            record = {**record, "c": record["c"] - 1}
            record = {**record, "d": record["d"] + 1.0}
            return {**record, "a": record["a"] * 2}
        if self.name == "w4":
            padded = np.zeros(2048, np.int32)
            padded[: len(record["tokens"])] = record["tokens"]
            return {"tokens": padded}
        return record

    def keep(self, record: dict[str, Any]) -> bool:
        """The filter."""
        return self.name != "w2" or record["c"] != 3

    def finish(self, batch: Batch) -> Batch:
        """The function of one batch."""
        if self.name == "w1a":
            return {"image": batch["image"].astype(np.float32) / 255, "label": batch["label"]}
        return batch


def stack(records: list[dict[str, Any]]) -> Batch:
    """A batch of records, for libraries that leave this to the user."""
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def group(records: Iterable[Any], size: int) -> Iterator[Batch]:
    """Batches of a stream of records, for libraries that leave this to the user."""
    gathered: list[Any] = []
    for record in records:
        gathered.append(record)
        if len(gathered) == size:
            yield stack(gathered)
            gathered = []
    if gathered:
        yield stack(gathered)


# Each library: a function that returns an iterable of batches, shuffled where the library can.


def grain_form(library: Any, work: Work, source: Any) -> Iterable[Batch]:
    """Grain and Bushel have one API."""
    dataset = library.MapDataset.source(source).seed(0).shuffle()
    if work.name in ("w1b", "w2", "w4"):
        dataset = dataset.map(work.change)
    if work.name == "w2":
        dataset = dataset.filter(work.keep)
    if work.name == "w1a":
        return dataset.batch(work.batch).map(work.finish).to_iter_dataset(inline(library))
    return dataset.to_iter_dataset(inline(library)).batch(work.batch)


def inline(library: Any) -> Any:
    """No threads: Grain's default of 16 is ten times slower on such work."""
    return library.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def run_bushel(work: Work) -> Iterable[Batch]:
    bushel: Any = importlib.import_module("bushel")

    return grain_form(bushel, work, work)


def run_bushel_arrays(work: Work) -> Iterable[Batch]:
    """Bushel, told that the records are rows of arrays."""
    bushel: Any = importlib.import_module("bushel")

    source: Any = work
    if work.name in ("w1a", "w1b"):
        labels = np.arange(work.count) % 10
        source = bushel.sources.ArrayDataSource({"image": work.images, "label": labels})
    return grain_form(bushel, work, source)


def run_grain(work: Work) -> Iterable[Batch]:
    grain: Any = importlib.import_module("grain")

    return grain_form(grain, work, work)


def run_torch(work: Work) -> Iterable[Batch]:
    data: Any = importlib.import_module("torch.utils.data")

    class Dataset(data.Dataset):
        def __len__(self) -> int:
            return len(work)

        def __getitem__(self, index: int) -> Any:
            return work.change(work[index])

    def collate(records: list[Any]) -> Batch:
        return work.finish(stack([record for record in records if work.keep(record)]))

    return data.DataLoader(Dataset(), work.batch, shuffle=True, collate_fn=collate, num_workers=0)


def run_spdl(work: Work) -> Iterable[Batch]:
    pipelines: Any = importlib.import_module("spdl.pipeline")

    order = np.random.default_rng(0).permutation(len(work)).tolist()
    chunks = [order[low : low + work.batch] for low in range(0, len(order), work.batch)]

    def make(indices: list[int]) -> Batch:
        records = [work.change(work[index]) for index in indices]
        return work.finish(stack([record for record in records if work.keep(record)]))

    pipeline = pipelines.PipelineBuilder().add_source(chunks).pipe(make, concurrency=2).add_sink(4).build(num_threads=2)
    with pipeline.auto_stop():
        yield from pipeline


def run_ray(work: Work) -> Iterable[Batch]:
    ray: Any = importlib.import_module("ray")
    importlib.import_module("ray.data")

    order = np.random.default_rng(0).permutation(len(work))
    held = ray.put(work)

    def make(batch: Batch) -> Batch:
        here = ray.get(held)
        records = [here.change(here[index]) for index in batch["item"].tolist()]
        return here.finish(stack([record for record in records if here.keep(record)]))

    indices = ray.data.from_items([int(index) for index in order])
    return indices.map_batches(make, batch_size=work.batch).iter_batches(batch_size=work.batch)


@functools.cache
def make_hf_dataset(work: Work) -> Any:
    """The records as a data set of Hugging Face, made once."""
    datasets: Any = importlib.import_module("datasets")
    columns: dict[str, list[Any]] = {}
    for index in range(len(work)):
        for name, value in work[index].items():
            columns.setdefault(name, []).append(value)
    return datasets.Dataset.from_dict(columns).with_format("numpy").shuffle(seed=0)


def run_datasets(work: Work) -> Iterable[Batch]:
    held = make_hf_dataset(work)
    if work.name in ("w1a", "w5", "w6"):
        for batch in held.iter(work.batch):
            yield work.finish(batch)
    else:
        yield from group((record for record in map(work.change, held) if work.keep(record)), work.batch)


@functools.cache
def write_tar(work: Work) -> str:
    """The records in a tar file, written once and removed when the process ends."""
    path = Path(tempfile.gettempdir()) / f"bushel-peers-{work.name}-{os.getpid()}.tar"
    atexit.register(path.unlink)
    with tarfile.open(path, "w") as shard:
        for index in range(len(work)):
            content = io.BytesIO()
            np.savez(content, **work[index])
            info = tarfile.TarInfo(f"{index:08}.npz")
            info.size = content.getbuffer().nbytes
            shard.addfile(info, io.BytesIO(content.getvalue()))
    return str(path)


def run_webdataset(work: Work) -> Iterable[Batch]:
    webdataset: Any = importlib.import_module("webdataset")

    def decode(sample: dict[str, Any]) -> dict[str, Any]:
        with np.load(io.BytesIO(sample["npz"])) as arrays:
            return work.change({name: arrays[name] for name in arrays.files})

    samples = webdataset.WebDataset(write_tar(work), shardshuffle=False, empty_check=False).shuffle(1000).map(decode)
    return map(work.finish, group(filter(work.keep, samples), work.batch))


LIBRARIES: dict[str, tuple[str, Callable[[Work], Iterable[Batch]]]] = {
    "bushel": ("bushel", run_bushel),
    "bushel, ArrayDataSource": ("bushel", run_bushel_arrays),
    "grain": ("grain", run_grain),
    "torch DataLoader": ("torch", run_torch),
    "SPDL, 2 threads": ("spdl", run_spdl),
    "Ray Data": ("ray", run_ray),
    "HF datasets, numpy": ("datasets", run_datasets),
    "webdataset, npz in tar": ("webdataset", run_webdataset),
}


def count_records(work: Work) -> int:
    """How many records an epoch of a work gives."""
    return sum(work.keep(work.change(work[index])) for index in range(len(work))) if work.name == "w2" else len(work)


def measure(label: str, name: str, repetitions: int) -> dict[str, float]:
    """Seconds per record of one library on one work, after a check that all records came; and memory."""
    import resource

    work, run = Work(name), LIBRARIES[label][1]
    clock = time.perf_counter if label == "Ray Data" else time.process_time
    times = []
    for _ in range(repetitions + 1):
        batches = iter(run(work))
        first = next(batches)  # what is built once is not counted: shards, tables, the cluster
        start, count = clock(), 0
        seen = len(next(iter(first.values())))
        for batch in batches:
            count += len(next(iter(batch.values())))
        times.append((clock() - start) / max(1, count))
        expected = count_records(work)
        if count + seen != expected:
            raise ValueError(f"{label} gave {count + seen} records of {name}, not {expected}.")
    return {
        "seconds": statistics.median(times[1:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run_apart(label: str, name: str, repetitions: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--one", label, name, "--repetitions", str(repetitions)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return {"error": "not done after 300 s"}
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def report(works: list[str], without: list[str], repetitions: int) -> str:
    """The table: microseconds per record, and the memory."""
    wanted = {label: package for label, (package, _) in LIBRARIES.items() if package not in without}
    installed = {label: package for label, package in wanted.items() if importlib.util.find_spec(package)}
    versions = sorted({f"{PACKAGES[package]} {find_version(package)}" for package in installed.values()})
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; {', '.join(versions)}.",
        "",
        f"Microseconds of CPU time per record, the median of {repetitions} epochs (Ray Data: on the wall). Less is "
        "better; bold is the best of the row. Memory is the largest of the process, in MB.",
        "",
        "| work | " + " | ".join(installed) + " |",
        "| --- | " + " | ".join("---:" for _ in installed) + " |",
    ]
    errors = []
    for name in works:
        found = {}
        for label in installed:
            found[label] = run_apart(label, name, repetitions)
            print(f"{name} {label}: {found[label]}", file=sys.stderr, flush=True)
            if "error" in found[label]:
                errors.append(f"- {name}, {label}: {found[label]['error']}")
        best = min((each["seconds"] for each in found.values() if "seconds" in each), default=0.0)
        cells = [show(each, best) for each in found.values()]
        lines.append(f"| {name}: {WHAT[name]} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *errors]) + "\n"


def show(found: dict[str, Any], best: float) -> str:
    if "seconds" not in found:
        return "failed"
    text = f"{found['seconds'] * 1e6:.3g}"
    text = f"**{text}**" if found["seconds"] == best else text
    return f"{text} ({found['memory']:.0f} MB)"


def find_version(package: str) -> str:
    try:
        return version(PACKAGES[package])
    except Exception:  # a package that is read from its source folder has no version
        return "(source)"


def main() -> None:
    """Measures all works with all installed libraries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "WORK"))
    parser.add_argument("--only", nargs="+", choices=list(SIZES))
    parser.add_argument("--without", nargs="+", default=[], choices=sorted(PACKAGES))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--save")
    options = parser.parse_args()
    if options.one:
        label, work = options.one
        print(json.dumps(measure(label, work, options.repetitions)))
        return
    text = report(options.only or list(SIZES), options.without, options.repetitions)
    print(text)
    if options.save:
        (Path(__file__).parent / "results" / f"{options.save}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
