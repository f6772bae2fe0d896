"""HASHES: what the hashes of ArrayRecord files cost, alone and inside pipelines. Needs the package `highwayhash-cffi`.

`python -m benchmarks.hashes`. The four ways to read take turns. The table has microseconds of CPU time for each record,
and of time on the wall for cold reads, since a read that waits for a disk takes no CPU time.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import simplejpeg
from array_record.python.array_record_module import ArrayRecordWriter

import bushel
from bushel._src.base.late_imports import install_command
from bushel._src.sources import checksums
from bushel.sources import ArrayRecordDataSource, FixedRecords, decode_image

BLOCK = 64
WAYS = ("off", "first", "again", "every")
"""Without checks; the default, first pass over a file; the default, second pass; `verify=True`."""


@dataclasses.dataclass(frozen=True)
class Work:
    """A way to read all records of a source once, in random order. Returns how many were read."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[ArrayRecordDataSource], int]
    cold: bool = False


def write_records(path: Path, records: Iterable[bytes]) -> None:
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for record in records:
        writer.write(record)
    writer.close()


def write_noise(size: int, total_bytes: int) -> Callable[[Path], None]:
    rng = np.random.default_rng(0)
    return lambda path: write_records(path, (rng.bytes(size) for _ in range(total_bytes // size // BLOCK * BLOCK)))


def write_photos(path: Path) -> None:
    """JPEG files of about 90 KB: smooth shapes with noise, 512 x 512."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:512, 0:512] / 512
    photos = []
    for _ in range(16):
        waves = [np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in rng.uniform(0, 6, (3, 3))]
        pixels = 127 + 90 * np.stack(waves, axis=-1) + rng.normal(0, 12, (512, 512, 3))
        photos.append(simplejpeg.encode_jpeg(np.clip(pixels, 0, 255).astype(np.uint8), quality=78))
    write_records(path, photos * 12)


def read_blocks(source: ArrayRecordDataSource) -> int:
    order = np.random.default_rng(1).permutation(len(source)).reshape(-1, BLOCK)
    for block in order:
        source.__getitems__(block)
    return order.size


def read_singles(source: ArrayRecordDataSource) -> int:
    order = np.random.default_rng(1).permutation(len(source)).tolist()
    for index in order:
        source[index]
    return len(order)


def read_photos(source: ArrayRecordDataSource) -> int:
    return _exhaust(bushel.MapDataset.source(source).shuffle(seed=1).map(decode_image).batch(16), 16)


def read_parsed(source: ArrayRecordDataSource) -> int:
    return _exhaust(bushel.MapDataset.source(source).shuffle(seed=1).map(parse).batch(BLOCK), BLOCK)


def read_fixed(source: ArrayRecordDataSource) -> int:
    records = FixedRecords(source, dtype=np.uint8, shape=(1024,))
    return _exhaust(bushel.MapDataset.source(records).shuffle(seed=1).batch(BLOCK), BLOCK)


def parse(record: bytes) -> dict[str, np.ndarray]:
    """What users write for records of fixed parts: views, one of them converted."""
    return {
        "tokens": np.frombuffer(record, np.uint16, 400).astype(np.int32),
        "label": np.frombuffer(record, np.int32, 1, 800),
        "weights": np.frombuffer(record, np.uint8, 200, 804) * np.float32(1 / 255),
    }


def _exhaust(ds: bushel.MapDataset, size: int) -> int:
    batches = sum(1 for _ in ds.to_iter_dataset())
    return batches * size


WORKS = [
    Work("blocks of 64 x 1 KB", write_noise(1024, 20 << 20), read_blocks),
    Work("blocks of 64 x 100 KB", write_noise(102_400, 100 << 20), read_blocks),
    Work("[i], 1 KB", write_noise(1024, 5 << 20), read_singles),
    Work("FixedRecords, batches of 64 x 1 KB", write_noise(1024, 20 << 20), read_fixed),
    Work("parse to three arrays, batches of 64 x 1 KB", write_noise(1024, 10 << 20), read_parsed),
    Work("decode JPEG of 90 KB, batches of 16", write_photos, read_photos),
    Work("cold, [i], 1 KB", write_noise(1024, 5 << 20), read_singles, cold=True),
    Work("cold, blocks of 64 x 100 KB", write_noise(102_400, 100 << 20), read_blocks, cold=True),
]


def measure(work: Work, repetitions: int) -> dict[str, list[float]]:
    """Microseconds for each record, one entry per repetition."""
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="bushel-bench-") as folder:
        path = Path(folder, "x.array_record")
        work.write(path)
        work.read(ArrayRecordDataSource(path, verify=False))  # warm-up
        for repetition in range(repetitions):
            default = ArrayRecordDataSource(path)
            sources = {
                "off": ArrayRecordDataSource(path, verify=False),
                "first": default,
                "again": default,
                "every": ArrayRecordDataSource(path, verify=True),
            }
            order = ["off", "first", "again", "every"] if repetition % 2 else ["every", "first", "again", "off"]
            for way in order:
                taken[way].append(_time_us(work, path, sources[way]))
    return taken


def _time_us(work: Work, path: Path, source: ArrayRecordDataSource) -> float:
    clock = time.process_time
    if work.cold:
        drop_from_memory(path)
        clock = time.perf_counter
    begun = clock()
    count = work.read(source)
    return (clock() - begun) / count * 1e6


def drop_from_memory(path: Path) -> None:
    """Asks the system to forget the content of a file, so that the next read comes from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def describe_hash() -> str:
    """How fast the hash function itself is."""
    hash_all = checksums.find_c_function()
    assert hash_all is not None
    lines = []
    for size in (32, 1024, 102_400):
        messages = [np.random.default_rng(seed).bytes(size) for seed in range(16)]
        least = min(_time_hashes_us(hash_all, messages) for _ in range(30))
        lines.append(f"{size:,} bytes in {least:.2f} us")
    return "The hash function alone: " + ", ".join(lines) + "."


def _time_hashes_us(hash_all: Callable[[list[bytes]], list[int]], messages: list[bytes]) -> float:
    passes = 1 + 2_000_000 // sum(map(len, messages))
    begun = time.process_time()
    for _ in range(passes):
        hash_all(messages)
    return (time.process_time() - begun) / passes / len(messages) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--only", nargs="+", default=[], help="parts of the names of works")
    options = parser.parse_args()
    if checksums.find_c_function() is None:
        raise SystemExit(f"This benchmark needs the C function: {install_command('highway')}.")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()}\n{describe_hash()}\n")
    print("| work | off | default, first pass | default, later passes | `verify=True` |")
    print("| --- | --- | --- | --- | --- |")
    for work in WORKS:
        if options.only and not any(part in work.name for part in options.only):
            continue
        if work.cold and not hasattr(os, "posix_fadvise"):
            print(f"| {work.name} | not on this system |")
            continue
        taken = measure(work, options.repetitions)
        cells = [f"{statistics.median(taken['off']):.2f}"]
        for way in WAYS[1:]:
            more = statistics.median(a / b - 1 for a, b in zip(taken[way], taken["off"], strict=True))
            cells.append(f"{statistics.median(taken[way]):.2f} ({more:+.0%})")
        print(f"| {work.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
