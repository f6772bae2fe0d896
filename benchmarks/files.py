"""FILES: records of files at random positions and in order, beside Grain's sources and the formats' own libraries."""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bagz
import crc32c
import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

import bushel
from benchmarks.libraries import BUSHEL, GRAIN, exhaust, read_inline
from benchmarks.measure import Contender, Row, Settings, Timing, compare, require_same_elements, rows
from bushel._src.sources import file_access
from bushel.sources import ArrayRecordDataSource, BagzDataSource, FixedRecords

WITHIN = 1 / 1.15
"""As fast as the bare library, but for 15 %."""


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that goes away."""
    path = tempfile.mkdtemp(prefix="bushel-bench-")
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


def array_record(path: Path, count: int, size: int, options: str = "group_size:1,uncompressed") -> Path:
    """Records of random bytes, as images are once compressed; the first eight are the record's number."""
    writer = ArrayRecordWriter(str(path), options)
    for record in contents(count, size):
        writer.write(record)
    writer.close()
    return path


def contents(count: int, size: int) -> Iterator[bytes]:
    noise = np.random.default_rng(0).bytes(size)
    for number in range(count):
        yield struct.pack("<Q", number) + noise[8:]


def singles(source: Any, positions: list[int]) -> Contender:
    def run() -> int:
        for position in positions:
            source[position]
        return len(positions)

    return run


def blocks(read: Callable[[Any], Any], positions: list[np.ndarray]) -> Contender:
    def run() -> int:
        for block in positions:
            read(block)
        return sum(map(len, positions))

    return run


def array_record_single(settings: Settings) -> list[Row]:
    """Single reads in random order: ours do not grow with the file."""
    found = []
    for count in (1_000, 10_000, 100_000) if settings.quick else (1_000, 10_000, 100_000, 1_000_000):
        with folder() as place:
            path = array_record(place / "x.array_record", count, 1024 if count <= 100_000 else 16)
            ours, theirs = ArrayRecordDataSource(path), grain.sources.ArrayRecordDataSource(str(path))
            positions = np.random.default_rng(1).integers(0, count, settings.count(300, 20)).tolist()
            require_same_elements("records", (ours[p] for p in positions), (theirs[p] for p in positions))
            contenders = {"grain": singles(theirs, positions), "bushel": singles(ours, positions)}
            target = {"bushel": 50.0} if count >= 100_000 else {}
            found += compare(f"ArrayRecord [i], {count:,} records", contenders, settings, targets=target)
    return found


def array_record_batches(settings: Settings) -> list[Row]:
    """Batches of 64 records of 100 KB through a pipeline."""
    with folder() as place:
        path = array_record(place / "x.array_record", settings.count(2_000, 200), 102_400)

        def array(record: bytes) -> np.ndarray:
            return np.frombuffer(record, np.uint8)

        def pipeline(library: Any, source: Any) -> Any:
            ds = library.MapDataset.source(source)
            if library is GRAIN:
                ds = ds.map(array)
            return ds.seed(1).shuffle(seed=1).batch(64).to_iter_dataset(read_inline(library))

        theirs = pipeline(GRAIN, grain.sources.ArrayRecordDataSource(str(path)))
        ours = pipeline(BUSHEL, FixedRecords(ArrayRecordDataSource(path), dtype=np.uint8, shape=(102_400,)))
        require_same_elements("batches", ours, theirs)

        def run(ds: Any) -> Contender:
            def one() -> int:
                exhaust(ds)
                return settings.count(2_000, 200)

            return one

        contenders = {"grain": run(theirs), "bushel": run(ours)}
        return compare("ArrayRecord 64 x 100 KB", contenders, settings, targets={"bushel": 4.0})


def tfrecord_in_order(settings: Settings) -> list[Row]:
    """TFRecord from the first to the last: ours compares checksums, Grain's does not."""
    with folder() as place:
        count = settings.count(50_000, 2_000)
        path = tfrecord(place / "x.tfrecord", count, 1024)
        theirs = grain.experimental.TFRecordIterDataset(str(path))
        ours = bushel.experimental.TFRecordIterDataset(path)
        require_same_elements("records", ours, theirs)

        def run(ds: Any) -> Contender:
            def one() -> int:
                exhaust(ds)
                return count

            return one

        found = compare(
            "TFRecord in order, 1 KB", {"grain": run(theirs), "bushel": run(ours)}, settings, targets={"bushel": 1.0}
        )
        batched = {"grain": run(theirs.batch(256, batch_fn=list)), "bushel": run(ours.batch(256, batch_fn=list))}
        return found + compare("TFRecord in batches of 256", batched, settings)


def tfrecord(path: Path, count: int, size: int) -> Path:
    def masked(data: bytes) -> bytes:
        crc = crc32c.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)

    with open(path, "wb") as file:
        for record in contents(count, size):
            length = struct.pack("<Q", len(record))
            file.write(length + masked(length) + record + masked(record))
    return path


def block_reads(settings: Settings) -> list[Row]:
    """64 records at random positions in one call. Here "Grain" is the format's own library at its best call."""
    found: list[Row] = []
    # Both sides are nearly as fast as each other: many short turns tell them apart, where a few long ones tell noise.
    turns = dataclasses.replace(settings, repetitions=5 * settings.repetitions, base_s=0.04, other_s=0.04)
    for size, count in ((1024, settings.count(50_000, 2_000)), (102_400, settings.count(3_000, 300))):
        with folder() as place:
            rng = np.random.default_rng(2)
            positions = [rng.integers(0, count, 64) for _ in range(settings.count(20, 2))]
            for name, ours, library, call in _libraries(place, count, size):
                expected = [bytes(record) for record in library(positions[0])]
                require_same_elements(name, ours.__getitems__(positions[0]), expected)
                contenders = {"grain": blocks(library, positions), "bushel": blocks(ours.__getitems__, positions)}
                title = f"{name}, blocks of 64 x {size // 1024} KB"
                found += compare(
                    title, contenders, turns, targets={"bushel": WITHIN}, notes={"bushel": f"against {call}"}
                )
    return found


def _libraries(place: Path, count: int, size: int) -> Iterator[tuple[str, Any, Callable[[Any], Any], str]]:
    path = array_record(place / "plain.array_record", count, size)
    reader = ArrayRecordReader(str(path), options="readahead_buffer_size:0", file_reader_buffer_size=32768)
    yield "ArrayRecord", ArrayRecordDataSource(path), lambda p: reader.read(p.tolist()), "array_record read([...])"
    packed = array_record(place / "zstd.array_record", count, size, "group_size:1")
    second = ArrayRecordReader(str(packed), options="readahead_buffer_size:0", file_reader_buffer_size=32768)
    yield (
        "ArrayRecord zstd",
        ArrayRecordDataSource(packed),
        lambda p: second.read(p.tolist()),
        "array_record read([...])",
    )
    for ending in ("bag", "bagz"):
        name = place / f"x.{ending}"
        with bagz.Writer(str(name)) as writer:
            for record in contents(count, size):
                writer.write(record)
        limits = bagz.LimitsStorage.IN_MEMORY
        options = bagz.Reader.Options(limits_storage=limits, max_parallelism=1)
        bag = bagz.Reader(str(name), options)
        yield (
            f"Bagz .{ending}",
            BagzDataSource(name),
            lambda p, bag=bag: bag.read_indices(p.tolist()),
            "bagz read_indices",
        )


def remote(settings: Settings) -> list[Row]:
    """64 ranges of 1 KB from a web server that takes its time: one by one, and as we ask for them."""
    content = np.random.default_rng(0).bytes(64 * 200_000)
    starts, lengths = list(range(0, len(content), 200_000)), [1024] * 64
    expected = [content[start : start + 1024] for start in starts]

    def timed(read: Callable[[], Any]) -> Timing:
        wall, cpu = time.perf_counter(), time.process_time()
        read()
        return Timing((time.perf_counter() - wall) / 64, (time.process_time() - cpu) / 64)

    found: list[Row] = []
    for latency_ms in (0, 20) if settings.quick else (0, 5, 20, 50):
        with slow_server(content, latency_ms / 1000) as url:
            file = file_access.open_file(f"{url}/x")
            require_same_elements("ranges", file.read_many(starts, lengths), expected)
            one, many = [], []
            for _ in range(max(2, settings.repetitions // 2)):
                one.append(timed(lambda file=file: [file.read(start, 1024) for start in starts]))
                many.append(timed(lambda file=file: file.read_many(starts, lengths)))
        per_second = f"against one by one; {1 / statistics.median(timing.wall_s for timing in many):,.0f} ranges/s"
        found += rows(f"HTTP, {latency_ms} ms latency", {"grain": one, "bushel": many}, notes={"bushel": per_second})
    return found


@contextmanager
def slow_server(content: bytes, latency_s: float) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer is held back for 40 ms

        def log_message(self, format: str, *words: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(200, len(content), b"")

        def do_GET(self) -> None:
            time.sleep(latency_s)
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            body = content[int(first) : int(last) + 1]
            self._answer(206, len(body), body, f"bytes {first}-{last}/{len(content)}")

        def _answer(self, status: int, length: int, body: bytes, content_range: str | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
            if content_range:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # with 5, who comes sixth waits for a second

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
