"""What two threads give over none, with and without a GIL: images (W1b), small records (W2), and plain Python.

`PYTHONPATH=src python benchmarks/free_threads.py` prints a table in Markdown. It needs only the core's packages (NumPy,
cloudpickle and tqdm), so that it runs on a free-threaded Python, for which many packages have no wheels.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np

import bushel
import bushel.testing
from bushel.experimental import ThreadPrefetchIterDataset, multithread_prefetch

Build = Callable[[int], "bushel.IterDataset[Any]"]
"""An endless stream whose elements are read by so many threads; 0 is in-process."""


def normalise(x: dict[str, Any]) -> dict[str, Any]:
    return {"image": x["image"].astype(np.float32) / 255, "label": x["label"]}


def images(threads: int) -> bushel.IterDataset[Any]:
    """W1b: images of 28 x 28, shuffled, normalised one by one, in batches of 128."""
    rng = np.random.default_rng(0)
    arrays = {
        "image": rng.integers(0, 256, (12_800, 28, 28), dtype=np.uint8),
        "label": rng.integers(0, 10, 12_800, dtype=np.int64),
    }
    source = bushel.sources.ArrayDataSource(arrays)
    ds = bushel.MapDataset.source(source).seed(0).shuffle().map(normalise).batch(128)
    return ds.repeat().to_iter_dataset(bushel.ReadOptions(threads, 16 if threads else 0))


def records(threads: int) -> bushel.IterDataset[Any]:
    """W2: records of four scalars, five maps, a filter, a stream in batches of 256."""
    ds = bushel.MapDataset.source([{"a": i, "b": i * 0.5, "c": i % 7, "d": float(i % 3)} for i in range(25_600)])
    ds = ds.map(lambda x: {**x, "a": x["a"] + 1}).map(lambda x: {**x, "b": x["b"] * 2})
    ds = ds.map(lambda x: {**x, "c": x["c"] - 1}).map(lambda x: {**x, "d": x["d"] + 1.0})
    ds = ds.map(lambda x: {**x, "a": x["a"] * 2}).filter(lambda x: x["c"] != 3)
    return ds.repeat().to_iter_dataset(bushel.ReadOptions(threads, 1024 if threads else 0)).batch(256)


def spell(x: int) -> np.ndarray:
    """Plain Python that holds a GIL all the time, some 20 us of it."""
    word, total = f"{x:x}" * 40, 0
    codes = []
    for letter in word:
        total = (31 * total + ord(letter)) & 0xFFFF
        codes.append(total)
    return np.array(codes[:32], np.int32)


def words(threads: int) -> bushel.IterDataset[Any]:
    """Plain Python: a tokenizer of a kind on every element, batches of 32."""
    ds = bushel.MapDataset.range(1 << 16, 2 << 16).seed(0).shuffle().map(spell).batch(32)
    return ds.repeat().to_iter_dataset(bushel.ReadOptions(threads, 16 if threads else 0))


WORKLOADS: dict[str, tuple[Build, int, int]] = {  # with the size of a batch, and how many are one pass
    "W1b, images": (images, 128, 400),
    "W2, records": (records, 256, 200),
    "plain Python": (words, 32, 300),
}

WAYS: dict[str, Callable[[Build], bushel.IterDataset[Any]]] = {
    "in-process": lambda build: build(0),
    "ReadOptions, 2 threads": lambda build: build(2),
    "multithread_prefetch, 2 threads": lambda build: multithread_prefetch(build(0), num_threads=2, buffer_size=1),
    "ThreadPrefetchIterDataset": lambda build: ThreadPrefetchIterDataset(build(0), prefetch_buffer_size=8),
    "mp_prefetch, 2 workers": lambda build: build(0).mp_prefetch(bushel.MultiprocessingOptions(num_workers=2)),
}


def passed(iterator: Iterator[Any], batches: int, size: int) -> tuple[float, float]:
    """Microseconds per element of one pass: on the wall, and of this process on all its cores."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in itertools.islice(iterator, batches):
        pass
    count = batches * size
    return 1e6 * (time.perf_counter() - wall) / count, 1e6 * (time.process_time() - cpu) / count


def compared(name: str, repetitions: int) -> list[str]:
    """The lines of one workload: all ways in turns, first checked to give the same."""
    build, size, batches = WORKLOADS[name]
    streams = {way: make(build) for way, make in WAYS.items()}
    first = {way: list(itertools.islice(stream, 5)) for way, stream in streams.items()}
    for way, found in first.items():
        if not all(map(bushel.testing.same, found, first["in-process"])):
            sys.exit(f"{name}: {way} gives other elements than in-process.")
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(repetitions):
        for way in list(WAYS)[:: -1 if number % 2 else 1]:
            with iter(streams[way]) as iterator:
                passed(iterator, batches // 5, size)  # workers start, and blocks find their size
                times[way].append(passed(iterator, batches, size))
    lines = []
    for way, taken in times.items():
        ratio = statistics.median(base[0] / one[0] for base, one in zip(times["in-process"], taken, strict=True))
        cores = max(cpu / wall for wall, cpu in taken)
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        lines.append(f"| {name} | {way} | {wall:.2f} | {ratio:.2f} | {cpu:.2f} | {cores:.2f} |")
    return lines


def bare() -> float:
    """How many times as fast two bare threads of plain Python are as one after the other: what the machine gives."""

    def work() -> None:
        for x in range(20_000):
            spell(x)

    def timed(together: bool) -> float:
        begun = time.perf_counter()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
            if not together:
                thread.join()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begun

    return statistics.median(timed(False) / timed(True) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    arguments = parser.parse_args()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()} {'with' if gil else 'without'} "
        f"a GIL, NumPy {np.__version__}, {os.cpu_count()} cores. "
        f"Two bare threads of plain Python: {bare():.2f} times as fast as one after the other.\n"
    )
    print("| workload | how | us per element | times as fast | CPU us | cores at most |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name in arguments.only:
        print("\n".join(compared(name, arguments.repetitions)))


if __name__ == "__main__":
    main()
