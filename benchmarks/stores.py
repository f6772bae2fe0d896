"""Records behind a slow server: Bushel beside bare clients that have as many requests in flight.

    python -m benchmarks.stores            # a table in Markdown, about three minutes
    python -m benchmarks.stores --quick    # does it all work?

The server runs in a process of its own and waits 20 ms before each answer. The records lie in one Bagz file, and are
read in random order. No two of them are near enough to become one request, so all clients send the same requests. All
clients must get the same records: they are compared before anything is timed.

The bare clients only request ranges. They neither compare the version of each answer nor repeat an answer that ends
early. The faster one of them is the measure. Clients take turns. Speed and `time / bare` are those of the fastest turn
of each, since other programs on the machine only make turns slower. `median of turns` is the median of the ratios
within a turn; on an idle machine both should meet the target. `CPU us` is the median CPU time of this process for one
record.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import json
import mmap
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import bushel
from benchmarks.libraries import machine
from bushel._src.sources import file_access, object_stores
from bushel.sources import BagzDataSource

WORKS = {1024: 4096, 32 * 1024: 2048, 256 * 1024: 2048, 2**20: 768}
"""Bytes of a record: how many records are read."""
APART_BYTES = 64 * 1024
"""Ranges nearer than this become one request of Bushel's."""
WITHIN = 1.3
"""The target: this many times the time of the bare client."""
BATCH = 64

_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d+)", re.IGNORECASE)
_ABOUT = b'ETag: "1"\r\nLast-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nAccept-Ranges: bytes\r\n\r\n'


class _Connection(asyncio.Protocol):
    """The server's side of a connection. Callbacks, not streams: these take a third of the CPU time."""

    def __init__(self, content: memoryview, latency_s: float):
        self._content, self._latency_s = content, latency_s
        self._asked = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._asked += data
        if self._asked.endswith(b"\r\n\r\n"):
            asyncio.get_running_loop().call_later(self._latency_s, self._answer, self._asked)
            self._asked = b""

    def _answer(self, request: bytes) -> None:
        wanted = _RANGE.search(request)
        if wanted is None:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(self._content) + _ABOUT)
            return
        first, last = int(wanted[1]), int(wanted[2])
        place = (last + 1 - first, first, last, len(self._content))
        head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n" % place
        body = self._content[first : last + 1]
        if len(body) < 65536:  # one packet more costs more than a copy
            self._transport.write(head + _ABOUT + body)
        else:
            self._transport.write(head + _ABOUT)
            self._transport.write(body)


async def _serve(path: str, latency_s: float) -> None:
    with open(path, "rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(content, latency_s), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def _server(path: Path, latency_s: float) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.stores", "--serve", str(path), str(latency_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/{path.name}"
        finally:
            process.kill()


def _write_bag(path: Path, size: int, count: int) -> None:
    """Writes `count` records of `size` random bytes."""
    with path.open("wb") as file:
        file.write(np.random.default_rng(0).bytes(count * size))
        file.write(np.arange(size, count * size + 1, size, dtype="<u8").tobytes())


class _Bare:
    """Clients that only request ranges, with as many requests in flight as Bushel has."""

    def __init__(self, url: str, size: int):
        connection = object_stores.connect(url, None)
        assert connection is not None
        self._store, self._key, _ = connection
        self._size = size
        self._threads = concurrent.futures.ThreadPoolExecutor(object_stores._REQUESTS)

    def read_in_threads(self, starts: Sequence[int]) -> list[bytes]:
        def read(start: int) -> bytes:
            return bytes(self._store.get_range(self._key, start=start, length=self._size))

        return list(self._threads.map(read, starts))

    def read_in_coroutines(self, starts: Sequence[int]) -> list[bytes]:
        async def read_all() -> list[bytes]:
            records, rest = [b""] * len(starts), iter(enumerate(starts))

            async def read() -> None:
                for number, start in rest:
                    data = await self._store.get_range_async(self._key, start=start, length=self._size)
                    records[number] = bytes(data)

            await asyncio.gather(*(read() for _ in range(object_stores._REQUESTS)))
            return records

        return asyncio.run(read_all())


def _measure(size: int, wanted: int, latency_s: float, repetitions: int, folder: Path) -> list[str]:
    path = folder / f"{size}.bag"
    step = APART_BYTES // size + 2
    _write_bag(path, size, wanted * step)

    def shuffled(source: Any) -> bushel.MapDataset:
        return bushel.MapDataset.source(source).slice(slice(None, None, step)).shuffle(seed=1)

    def flatten(batches: Any) -> list[bytes]:
        return [record for batch in batches for record in batch]

    with _server(path, latency_s) as url:
        rows = list(shuffled(range(wanted * step)))
        starts = [row * size for row in rows]
        bare, file, source = _Bare(url, size), file_access.open_file(url), BagzDataSource(url)
        clients: dict[str, Callable[[], list[bytes]]] = {
            "bare, threads": lambda: bare.read_in_threads(starts),
            "bare, asyncio": lambda: bare.read_in_coroutines(starts),
            "bushel, ranges of a file": lambda: file.read_many(starts, [size] * len(starts)),
            "bushel, records of a source": lambda: source.__getitems__(rows),
            "bushel, pipeline, batches by index": lambda: flatten(
                shuffled(source).batch(BATCH, batch_fn=list).to_iter_dataset()
            ),
            "bushel, pipeline, batches of a stream": lambda: flatten(
                shuffled(source).to_iter_dataset().batch(BATCH, batch_fn=list)
            ),
        }
        expected = clients["bare, threads"]()
        for name, client in clients.items():
            if client() != expected:
                raise AssertionError(f"{name} has read other records.")
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
        for number in range(repetitions):
            for name in list(clients)[:: 1 if number % 2 else -1]:
                wall, cpu = time.perf_counter(), time.process_time()
                clients[name]()
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    path.unlink()
    fastest = {name: min(wall for wall, _ in each) for name, each in times.items()}
    bare_name = min((name for name in times if name.startswith("bare")), key=lambda name: fastest[name])
    lines = []
    for name, each in times.items():
        ratio = fastest[name] / fastest[bare_name]
        turns, cpus = (
            statistics.median(one[kind] / other[kind] for one, other in zip(each, times[bare_name], strict=True))
            for kind in (0, 1)
        )
        verdict = "" if name.startswith("bare") else "met" if ratio <= WITHIN else "MISSED"
        rate, cpu = wanted / fastest[name], statistics.median(cpu for _, cpu in each)
        lines.append(
            f"| {size // 1024} KB | {name} | {rate:,.0f} | {rate * size / 1e6:,.0f} | {ratio:.2f} | {verdict} "
            f"| {turns:.2f} | {cpu / wanted * 1e6:,.0f} | {cpus:.2f} |"
        )
    return lines


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, metavar=("FILE", "SECONDS"), help="be the server")
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a quarter of the records, two repetitions")
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(options.serve[0], float(options.serve[1])))
        return
    lines = [
        f"Records of one file behind a server that answers after {options.latency_ms:g} ms, "
        f"{object_stores._REQUESTS} requests in flight.",
        "",
        f"| record | client | records/s | MB/s | time / bare | target {WITHIN} | median of turns "
        "| CPU us | CPU / bare |",
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for size, wanted in WORKS.items():
            count, repetitions = (wanted // 4, 2) if options.quick else (wanted, options.repetitions)
            lines += _measure(size, count, options.latency_ms / 1000, repetitions, Path(folder))
    print(json.dumps(machine()), "", *lines, sep="\n")


if __name__ == "__main__":
    main()
