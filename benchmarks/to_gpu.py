"""From the host to a GPU: `ds.to_device` beside a bare copy of mapped memory and a plain prefetch thread.

Run on a machine with a GPU: `python -m benchmarks.to_gpu`. Names of sections as arguments run only these.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import mmap
import os
import platform
import queue
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bushel

SHAPE = (224, 224, 3)
BATCH = 256
BATCH_BYTES = BATCH * 224 * 224 * 3
GB = 1e9

rows: list[dict[str, Any]] = []


def note(section: str, what: str, value: float, unit: str, floor: float | None = None) -> None:
    rows.append({"section": section, "what": what, "value": round(value, 3), "unit": unit, "bare": floor})
    beside = "" if floor is None else f"   (bare: {floor:.2f}, {value / floor:.2f} of it)"
    print(f"{section:12} {what:58} {value:9.2f} {unit}{beside}", flush=True)


def images(records: int = 4096) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (records, *SHAPE), dtype=np.uint8)


def pipeline(pixels: np.ndarray, workers: int, **options: Any) -> bushel.IterDataset[Any]:
    source = bushel.sources.ArrayDataSource(pixels)
    ds = bushel.MapDataset.source(source).seed(0).shuffle().repeat().batch(BATCH, drop_remainder=True).to_iter_dataset()
    return ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=workers, **options)) if workers else ds


_kept: list[Any] = []


def mapped_ring(count: int, size: int) -> list[np.ndarray]:
    """Arrays in memory that the GPU reads by itself. It is kept: mapped memory must not be given back to the system."""
    step = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, count * step)
    whole = np.frombuffer(memory, np.uint8)
    whole[:] = 1
    _kept.append(memory)
    client = jax.devices()[0].client
    client.dma_map(ctypes.addressof(ctypes.c_char.from_buffer(memory)), count * step)
    return [whole[number * step : number * step + size] for number in range(count)]


def bare_copy(arrays: list[np.ndarray], count: int, depth: int = 4) -> float:
    """GB/s of `jax.device_put` of ready arrays, `depth` of them in flight."""
    device, flying = jax.devices()[0], deque[Any]()
    for number in range(8):
        jax.block_until_ready(jax.device_put(arrays[number % len(arrays)], device))
    begun = time.perf_counter()
    for number in range(count):
        flying.append(jax.device_put(arrays[number % len(arrays)], device))
        if len(flying) >= depth:
            flying.popleft().block_until_ready()
    jax.block_until_ready(list(flying))
    return count * arrays[0].nbytes / GB / (time.perf_counter() - begun)


def drain(it: Iterator[Any], seconds: float) -> tuple[float, float]:
    """GB/s of an iterator, and the CPU time of this process as a share of the wall time."""
    count, begun, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begun < seconds:
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(jax.block_until_ready(next(it))))
        count += size
    took = time.perf_counter() - begun
    return count / GB / took, (time.process_time() - cpu) / took


def in_flight(host: Iterator[Any], depth: int = 4) -> Iterator[Any]:
    """A plain loop with `jax.device_put`, some batches ahead."""
    device, flying = jax.devices()[0], deque[Any]()
    for batch in host:
        flying.append(jax.device_put(batch, device))
        if len(flying) > depth:
            yield flying.popleft()


def thread_times() -> dict[str, float]:
    """CPU seconds of each thread of this process, by name."""
    spent: dict[str, float] = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat") as file:
                name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        ticks = sum(map(int, rest.split()[11:13]))
        spent[name] = spent.get(name, 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return spent


def through_a_thread(host: Iterable[Any], depth: int = 2) -> Iterator[Any]:
    """What people write without a library: a thread that calls `jax.device_put`, and a queue."""
    ready: queue.Queue[Any] = queue.Queue(depth)
    device = jax.devices()[0]

    def run() -> None:
        for batch in host:
            ready.put(jax.device_put(batch, device))

    threading.Thread(target=run, daemon=True).start()
    while True:
        yield ready.get()


def ready() -> None:
    """Slabs that workers have filled, on their way to the GPU; beside a bare copy of mapped memory."""
    floor = bare_copy(mapped_ring(8, BATCH_BYTES), 200)
    pageable = bare_copy([np.ones(BATCH_BYTES, np.uint8) for _ in range(8)], 100)
    note("ready", "bare device_put, mapped memory, 4 in flight", floor, "GB/s")
    note("ready", "bare device_put, ordinary memory, 4 in flight", pageable, "GB/s")
    ds = pipeline(images(), 8, per_worker_buffer_size=8, budget_bytes=4 << 30)
    with iter(ds.to_device(buffer_size=4)) as it:
        for _ in range(300):
            next(it)
        rates = []
        for _ in range(7):
            time.sleep(3)  # the workers fill all slots that they may, and stop
            for _ in range(5):
                next(it)
            count, begun = 40, time.perf_counter()
            for _ in range(count):
                jax.block_until_ready(next(it))
            rates.append(count * BATCH_BYTES / GB / (time.perf_counter() - begun))
        note("ready", "to_device, slabs that are ready", statistics.median(rates), "GB/s", floor)
        print(it.report(), flush=True)


def workers() -> None:
    """An array in memory, shuffled: what the workers make, and what arrives on the GPU."""
    pixels = images()
    reused = np.empty((BATCH, *SHAPE), np.uint8)
    order = np.random.default_rng(0).permutation(len(pixels))
    took = []
    for number in range(40):
        index = order[(number * BATCH) % len(pixels) :][:BATCH]
        begun = time.perf_counter()
        for row, position in enumerate(index.tolist()):
            reused[row] = pixels[position]
        took.append(time.perf_counter() - begun)
    note("workers", "a plain copy of rows, one process", BATCH_BYTES / GB / statistics.median(took), "GB/s")
    took.clear()
    for number in range(40):
        index = order[(number * BATCH) % len(pixels) :][:BATCH]
        begun = time.perf_counter()
        pixels.take(index, axis=0, out=reused, mode="clip")
        took.append(time.perf_counter() - begun)
    note("workers", "numpy take into reused memory, one process", BATCH_BYTES / GB / statistics.median(took), "GB/s")
    for count in (1, 2, 4, 8, 14):
        with iter(pipeline(pixels, count)) as it:
            drain(it, 3)
            made, _ = drain(it, 4)
        note("workers", f"{count} workers, nothing done with the batches", made, "GB/s")
        with iter(pipeline(pixels, count).to_device()) as it:
            next(it)
            first, _ = drain(it, 1)
            drain(it, 2)
            before = thread_times()
            steady, cpu = drain(it, 4)
            spent = {name: seconds - before.get(name, 0) for name, seconds in thread_times().items()}
            print({name: round(seconds / 4, 2) for name, seconds in spent.items() if seconds > 0.02}, flush=True)
        note("workers", f"{count} workers, on the GPU", steady, "GB/s", made)
        note("workers", f"{count} workers, on the GPU, CPU of the consumer", cpu, "cores")
        note("workers", f"{count} workers, on the GPU, first second", first, "GB/s", steady)
    with iter(pipeline(pixels, 8)) as host:
        it = through_a_thread(host)
        drain(it, 2)
        steady, cpu = drain(it, 4)
        note("workers", "8 workers, a plain prefetch thread instead", steady, "GB/s")
        note("workers", "8 workers, a plain prefetch thread, CPU of the consumer", cpu, "cores")


def inline() -> None:
    """Without workers: the consumer makes the batches."""
    pixels = images()
    with iter(pipeline(pixels, 0).to_device()) as it:
        drain(it, 2)
        steady, cpu = drain(it, 5)
        note("inline", "in-process, on the GPU", steady, "GB/s")
        note("inline", "in-process, CPU", cpu, "cores")
    it = through_a_thread(iter(pipeline(pixels, 0)))
    drain(it, 2)
    note("inline", "in-process, a plain prefetch thread instead", drain(it, 5)[0], "GB/s")


def small() -> None:
    """Batches of 1 MiB."""
    floor = bare_copy(mapped_ring(8, 1 << 20), 4000)
    note("small", "bare device_put of 1 MiB, mapped memory", floor, "GB/s")
    ordinary = bare_copy([np.ones(1 << 20, np.uint8) for _ in range(8)], 4000)
    note("small", "bare device_put of 1 MiB, ordinary memory", ordinary, "GB/s")
    pixels = np.ones((1 << 15, 1 << 13), np.uint8)
    source = bushel.sources.ArrayDataSource(pixels)
    for count in (0, 2, 6):
        ds = bushel.MapDataset.source(source).repeat().batch(128).to_iter_dataset()
        ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=count)) if count else ds
        with iter(ds) as it:
            drain(it, 1)
            made, _ = drain(it, 2)
        with iter(ds) as it:
            bare = in_flight(it)
            drain(bare, 1)
            plain, _ = drain(bare, 3)
        with iter(ds.to_device(buffer_size=4)) as it:
            drain(it, 1)
            what = f"{count} workers, on the GPU; bare: device_put of the same batches ({made:.1f} made)"
            note("small", what, drain(it, 3)[0], "GB/s", plain)


def make_step(seconds: float) -> tuple[Callable[[Any, Any], Any], Any]:
    """A step that takes about so long on the GPU and reads the whole batch."""
    weights = jnp.ones((4096, 4096), jnp.bfloat16)

    def timed(step: Any, state: Any, batch: Any) -> float:
        jax.block_until_ready(step(state, batch))
        begun = time.perf_counter()
        for _ in range(20):
            state = step(state, batch)
        jax.block_until_ready(state)
        return (time.perf_counter() - begun) / 20

    batch = jnp.ones((BATCH, *SHAPE), jnp.uint8)
    loops = 8
    while True:

        @jax.jit
        def step(state: Any, batch: Any, loops: int = loops) -> Any:
            scale = (batch.astype(jnp.float32).mean() * 1e-9).astype(jnp.bfloat16)
            return jax.lax.fori_loop(0, loops, lambda _, x: (x @ weights) * 1e-4 + scale, state)

        took = timed(step, weights, batch)
        if took >= 0.95 * seconds:
            return step, weights
        loops = max(loops + 1, int(loops * seconds / took))


def step() -> None:
    """A training step of about 12 ms on batches of 38 MB: how long it waits."""
    step, state = make_step(0.012)
    pixels, batch = images(), jnp.ones((BATCH, *SHAPE), jnp.uint8)

    def run(batches: Callable[[], Any], count: int = 300) -> float:
        now = state
        begun = time.perf_counter()
        for number in range(count):
            now = step(now, batches())
            if number % 2:  # as programs do that log: not further ahead than two steps
                jax.block_until_ready(now)
        jax.block_until_ready(now)
        return (time.perf_counter() - begun) / count

    run(lambda: batch, 50)
    for count in (2, 6, 14):
        with iter(pipeline(pixels, count).to_device()) as it:
            fetch = functools.partial(next, it)
            run(fetch, 60)
            took = [(run(lambda: batch, 100), run(fetch, 200)) for _ in range(3)]
            bare, fed = statistics.median(a for a, _ in took), statistics.median(b for _, b in took)
            what = f"{count} workers: step alone {1e3 * bare:.2f} ms, fed {1e3 * fed:.2f} ms; waits"
            note("step", what, 100 * (fed - bare) / fed, "%")
            print(it.report(), flush=True)
        with iter(pipeline(pixels, count)) as host:
            step_through = functools.partial(next, through_a_thread(host))
            run(step_through, 60)
            fed = run(step_through, 200)
            note("step", f"{count} workers, a plain prefetch thread instead; waits", 100 * (fed - bare) / fed, "%")


class Jpegs:
    """Records that are decoded and cropped: the usual work of workers."""

    def __init__(self, files: list[bytes]):
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> bytes:
        return self._files[index]


def decode(file: bytes) -> np.ndarray:
    import simplejpeg

    return simplejpeg.decode_jpeg(file)[16:240, 16:240]


def jpeg() -> None:
    """JPEGs through 14 workers, and a step that takes a tenth longer than the workers need for a batch."""
    import simplejpeg

    smooth = np.random.default_rng(0).integers(0, 255, (64, 8, 8, 3), dtype=np.uint8)
    files = [simplejpeg.encode_jpeg(np.ascontiguousarray(image.repeat(32, 0).repeat(32, 1))) for image in smooth]
    ds = bushel.MapDataset.source(Jpegs(files * 32)).seed(0).shuffle().repeat().map(decode).batch(BATCH)
    fed = ds.to_iter_dataset().mp_prefetch(bushel.MultiprocessingOptions(num_workers=14))
    with iter(fed) as it:
        drain(it, 3)
        made, _ = drain(it, 4)
    note("jpeg", f"14 workers decode {made * GB / (224 * 224 * 3):,.0f} images/s", made, "GB/s")
    step, state = make_step(1.1 * BATCH_BYTES / GB / made)
    batch = jnp.ones((BATCH, *SHAPE), jnp.uint8)
    with iter(fed.to_device()) as it:
        for _ in range(30):
            next(it)
        took: list[float] = []
        for _ in range(3):
            for feed in (lambda: batch, functools.partial(next, it)):
                now, begun = state, time.perf_counter()
                for _ in range(60):
                    now = jax.block_until_ready(step(now, feed()))
                took.append((time.perf_counter() - begun) / 60)
        bare, mine = statistics.median(took[0::2]), statistics.median(took[1::2])
        what = f"step alone {1e3 * bare:.1f} ms, fed {1e3 * mine:.1f} ms; waits"
        note("jpeg", what, 100 * (mine - bare) / mine, "%")


class Rows:
    """Rows of an array, one at a time: the source that Grain's documents show."""

    def __init__(self, pixels: np.ndarray):
        self._pixels = pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._pixels[index]


def peer() -> None:
    """Grain's own `device_put` on the same work, with fewer records, since each of its workers gets a copy of them."""
    import grain
    from absl import flags

    flags.FLAGS(["benchmark"])
    pixels = images(1024)

    def build(library: Any, workers: int) -> Any:
        ds = library.MapDataset.source(Rows(pixels)).seed(0).shuffle().repeat().batch(BATCH, drop_remainder=True)
        ds = ds.to_iter_dataset(library.ReadOptions(0, 0))
        if workers:
            ds = ds.mp_prefetch(library.MultiprocessingOptions(num_workers=workers))
        return library.experimental.device_put(ds, jax.devices()[0])

    for workers in (0, 8):
        for name, library in (("Grain", grain), ("Bushel", bushel)):
            it = iter(build(library, workers))
            next(it)
            drain(it, 3)
            rate, cpu = drain(it, 4)
            note("peer", f"{name}'s experimental.device_put, {workers} workers", rate, "GB/s")
            note("peer", f"{name}'s experimental.device_put, {workers} workers, CPU of the consumer", cpu, "cores")
            del it


SECTIONS = {
    "ready": ready,
    "workers": workers,
    "inline": inline,
    "small": small,
    "step": step,
    "jpeg": jpeg,
    "peer": peer,
}


def main() -> None:
    logging.basicConfig(level=logging.INFO)  # says where memory cannot be mapped
    chosen = sys.argv[1:] or list(SECTIONS)
    device = jax.devices()[0]
    print(f"{device.device_kind}, {os.cpu_count()} cores, JAX {jax.__version__}, Python {platform.python_version()}")
    for name in chosen:
        SECTIONS[name]()
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
