"""W6, W2 and W1b with worker processes, as many on either side; and the first batch of a fresh process."""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from absl import flags

import bushel
from benchmarks.images import BATCH as IMAGES_BATCH
from benchmarks.images import Images, make_images, normalise
from benchmarks.libraries import BUSHEL, GRAIN, read_inline
from benchmarks.measure import Contender, Row, Settings, Timing, compare, require_same_elements, rows
from benchmarks.records import BATCH as RECORDS_BATCH
from benchmarks.records import MAPS, keep, make_records

LARGE_BATCH = 32
SETTLE_S = 0.4


class LargeArrays:
    """1.5 MB of float32 per record, always the same few: reading costs nothing, moving does."""

    def __init__(self, length: int):
        self.length = length
        self.arrays = [np.random.default_rng(seed).random((512, 768), dtype=np.float32) for seed in range(8)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray:
        return self.arrays[index % len(self.arrays)]


def parse_flags() -> None:
    """Grain's workers need parsed flags."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def with_workers(library: ModuleType, dataset: Any, count: int) -> Any:
    """The stream of an endless dataset with so many workers."""
    parse_flags()
    if not count:
        return dataset
    return dataset.mp_prefetch(library.MultiprocessingOptions(num_workers=count))


class Running:
    """A contender that goes on with one iterator, so that workers are started once. Used as a context manager."""

    def __init__(self, stream: Any, batches: int, batch_size: int):
        self._stream, self._batches, self._batch_size = stream, batches, batch_size
        self._iterator: Iterator[Any] | None = None

    def __call__(self) -> int:
        if self._iterator is None:
            self._iterator = iter(self._stream)
        left = self._batches
        while left:
            for _ in itertools.islice(self._iterator, left):
                left -= 1
            if left:  # torch's loaders are not endless
                self._iterator = iter(self._stream)
        return self._batches * self._batch_size

    def close(self) -> None:
        if hasattr(self._iterator, "close"):
            self._iterator.close()  # type: ignore[union-attr]
        self._iterator = None  # torch ends its workers with the iterator


def measured(
    name: str,
    contenders: dict[str, Contender],
    settings: Settings,
    targets: dict[str, float],
    notes: dict[str, str] | None = None,
) -> list[Row]:
    """Compares contenders once all is quiet around them, and ends their workers."""
    try:
        return compare(name, contenders, settings, targets=targets, notes=notes, before=_settle)
    finally:
        for contender in contenders.values():
            if isinstance(contender, Running):
                contender.close()


def _settle(contender: Contender) -> None:
    """Lets the workers of others finish what they have begun; what its own have made ahead does not count."""
    time.sleep(SETTLE_S)
    contender()


def _large(library: ModuleType, workers: int) -> Any:
    dataset = library.MapDataset.source(LargeArrays(4000)).batch(LARGE_BATCH).repeat()
    return with_workers(library, dataset.to_iter_dataset(read_inline(library)), workers)


def w6(settings: Settings) -> list[Row]:
    """Large elements: how fast bytes get from a worker into the consumer's hands."""
    some = settings.count(16, 4)
    require_same_elements("W6", itertools.islice(_large(BUSHEL, 2), 6), itertools.islice(_large(GRAIN, 0), 6))

    def running(library: ModuleType, workers: int) -> Running:
        return Running(_large(library, workers), some, LARGE_BATCH)

    source = LargeArrays(4000)

    def memcpy_into(out: np.ndarray) -> Contender:
        def run() -> int:
            for _ in range(some):
                for row in range(LARGE_BATCH):
                    out[row] = source[row]
            return some * LARGE_BATCH

        return run

    shape, size = (LARGE_BATCH, 512, 768), LARGE_BATCH * 512 * 768 * 4
    memcpy = memcpy_into(np.empty(shape, np.float32))
    shared = memcpy_into(np.frombuffer(mmap.mmap(-1, size), np.float32).reshape(shape))

    found = []
    for workers, target in ((1, 6.0), (2, 4.0)):
        contenders: dict[str, Contender] = {
            "grain": running(GRAIN, workers),
            "bushel": running(BUSHEL, workers),
            "torch DataLoader": Running(torch_loader(source, LARGE_BATCH, workers), some, LARGE_BATCH),
        }
        found += measured(f"W6, workers {workers}", contenders, settings, {"bushel": target})
    against_memcpy = {"grain": memcpy, "bushel": running(BUSHEL, 1), "memcpy into shared memory": shared}
    note = {"bushel": "the column Grain is a memcpy into place"}
    found += measured("W6, workers 1, memcpy", against_memcpy, settings, {"bushel": 0.85}, note)
    against_none = {"grain": running(GRAIN, 0), "bushel": running(BUSHEL, 2), "floor: memcpy into place": memcpy}
    found += measured("W6, Grain without workers", against_none, settings, {"bushel": 1.5})
    return found


def w2_workers(settings: Settings) -> list[Row]:
    """Trivial maps and a filter on small records, two workers each."""
    records = make_records(60_000)

    def stream(library: ModuleType) -> Any:
        dataset = library.MapDataset.source(records).repeat()
        for function in MAPS:
            dataset = dataset.map(function)
        return with_workers(library, dataset.filter(keep).to_iter_dataset(read_inline(library)).batch(RECORDS_BATCH), 2)

    contenders: dict[str, Contender] = {
        "grain": Running(stream(GRAIN), settings.count(40, 4), RECORDS_BATCH),
        "bushel": Running(stream(BUSHEL), settings.count(300, 8), RECORDS_BATCH),
    }
    # Grain's batches depend on its workers, ours do not: what is compared is the number of elements.
    return measured("W2, workers 2", contenders, settings, {"bushel": 15})


def w1_workers(settings: Settings) -> list[Row]:
    """A map of each image, two workers each."""
    arrays = make_images(60_000)

    def stream(library: ModuleType) -> Any:
        source = bushel.sources.ArrayDataSource(arrays) if library is BUSHEL else Images(arrays)
        dataset = library.MapDataset.source(source).seed(0).shuffle().map(normalise).batch(IMAGES_BATCH).repeat()
        return with_workers(library, dataset.to_iter_dataset(read_inline(library)), 2)

    theirs = ({name: np.array(leaf) for name, leaf in batch.items()} for batch in itertools.islice(stream(GRAIN), 20))
    require_same_elements("W1b, workers 2", itertools.islice(stream(BUSHEL), 20), theirs)
    contenders: dict[str, Contender] = {
        "grain": Running(stream(GRAIN), settings.count(100, 4), IMAGES_BATCH),
        "bushel": Running(stream(BUSHEL), settings.count(400, 8), IMAGES_BATCH),
    }
    return measured("W1b, workers 2", contenders, settings, {"bushel": 7})


def torch_loader(source: Any, batch_size: int, workers: int) -> Any:
    """torch's DataLoader over a source of arrays, with its own way of making batches."""
    import torch  # pyright: ignore[reportMissingImports]

    class AsTensors(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(source)

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(source[index])

    return torch.utils.data.DataLoader(AsTensors(), batch_size=batch_size, num_workers=workers)


def memory(settings: Settings) -> list[Row]:
    """What a worker takes for itself (USS), while it serves a small pipeline."""
    found: dict[str, list[Timing]] = {"grain": [], "bushel": []}
    for name in found:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.workers", name, "memory"], capture_output=True, text=True, check=True
        )
        found[name].append(Timing(float(done.stdout.split()[-1]), 1.0))
    return rows("MEMORY, per worker", found, notes={"bushel": "the times are MiB of one worker's own"})


def _memory_of(library: ModuleType) -> None:
    dataset = library.MapDataset.range(10_000_000).shuffle(seed=1).batch(32)
    stream = with_workers(library, dataset.to_iter_dataset(read_inline(library)), 2)
    before = descendants(os.getpid())
    iterator = iter(stream)
    for _ in range(50):
        next(iterator)
    workers = sorted((own_bytes(pid) for pid in descendants(os.getpid()) - before), reverse=True)[:2]
    print(sum(workers) / len(workers) / 2**20)
    iterator.close()


def descendants(process: int) -> set[int]:
    children = {
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if int(path.read_text().rpartition(")")[2].split()[1]) == process
    }
    return children.union(*map(descendants, children))


def own_bytes(process: int) -> int:
    """Memory that would be free if the process ended."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def first_batch(settings: Settings) -> list[Row]:
    """From `iter` to the first batch of two workers, in fresh processes that have imported the library."""
    timings: dict[str, list[Timing]] = {"grain": [], "bushel": []}
    for repetition in range(settings.repetitions):
        for name in ("bushel", "grain") if repetition % 2 else ("grain", "bushel"):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.workers", name], capture_output=True, text=True, check=True
            )
            wall, cpu = map(float, done.stdout.split()[-2:])
            timings[name].append(Timing(wall, cpu))
    return rows(
        "FIRST BATCH, workers 2", timings, notes={"bushel": "seconds to the first batch; wanted: at most 0.3 s"}
    )


def _first_batch_of(library: ModuleType) -> None:
    dataset = library.MapDataset.range(10_000).shuffle(seed=1).batch(32)
    stream = with_workers(library, dataset.to_iter_dataset(read_inline(library)), 2)
    wall, cpu = time.perf_counter(), time.process_time()
    iterator = iter(stream)
    next(iterator)
    print(time.perf_counter() - wall, time.process_time() - cpu)
    iterator.close()


if __name__ == "__main__":
    (_memory_of if "memory" in sys.argv else _first_batch_of)(GRAIN if sys.argv[1] == "grain" else BUSHEL)
