"""The loader inside jit on an accelerator: against the bare gather, the memory's speed, and data already laid out.

`PYTHONPATH=src python benchmarks/jit_gpu.py` prints tables in Markdown. Needs JAX and NumPy alone.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel._src.index import shuffle
from bushel.jit import ArraySource, BatchTransform, DataLoader


def medians(contenders: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Seconds of each contender, the median of runs in turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        jax.block_until_ready(run())
    for number in range(repetitions):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            jax.block_until_ready(contenders[name]())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def samples(rows: int, shape: tuple[int, ...], size: int, repetitions: int) -> list[str]:
    """Samples per second of an epoch whose batches are all read: ours, the bare gather, and a plain copy."""
    data = jnp.asarray(np.random.default_rng(0).integers(0, 256, (rows, *shape), np.uint8))
    loader = DataLoader([ArraySource(data), BatchTransform(size, remainder="drop")])
    steps = rows // size
    order = np.random.default_rng(1).permutation(rows)[: steps * size].reshape(steps, size)
    records = jnp.asarray(order.astype(np.int32))
    blank = jnp.zeros((size, *shape), jnp.uint8)

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return carry ^ batch, None

    @jax.jit
    def gather(data: jax.Array, records: jax.Array) -> Any:
        return jax.lax.scan(lambda carry, chosen: (carry ^ data[chosen], None), blank, records)[0]

    @jax.jit
    def laid_out(data: jax.Array) -> Any:
        batches = data[: steps * size].reshape(steps, size, *shape)
        return jax.lax.scan(lambda carry, batch: (carry ^ batch, None), blank, batches)[0]

    @jax.jit
    def step(loader: DataLoader, state: Any, carry: Any) -> Any:
        batch, state, _ = loader.next_batch(state)
        return state, carry ^ batch

    copy = jax.jit(lambda data: data ^ jnp.uint8(1))
    state = loader.init_state(0)
    few = min(steps, 200)

    def stepped() -> Any:
        now, carry = state, blank
        for _ in range(few):
            now, carry = step(loader, now, carry)
        return carry

    found = medians(
        {
            "laid out": lambda: laid_out(data),
            "gather": lambda: gather(data, records),
            "bushel": lambda: loader.scan_epoch(state, blank, body)[1],
            "steps": stepped,
            "copy": lambda: copy(data),
        },
        repetitions,
    )
    row_bytes = int(np.prod(shape))
    bandwidth = 2 * data.nbytes / found["copy"]
    title = f"{rows:,} x {' x '.join(map(str, shape))} uint8, batches of {size}, {steps} steps"
    lines = [f"**{title}** (a plain copy moves {bandwidth / 1e9:.0f} GB/s)", ""]
    lines += [
        "| what | us per step | samples/s | GB/s read | of the bare gather |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, label in (
        ("laid out", "batches already laid out, one scan"),
        ("gather", "bare gather with indices given, one scan"),
        ("bushel", "`scan_epoch`, order and gather"),
        ("steps", "`next_batch`, one call per step"),
    ):
        number = few if name == "steps" else steps
        each = found[name] / number
        bare = found["gather"] / steps
        lines.append(
            f"| {label} | {each * 1e6:.1f} | {size / each:,.0f} | {size * row_bytes / each / 1e9:.1f} "
            f"| {bare / each:.2f} |"
        )
    return [*lines, ""]


def choices(rows: int, shape: tuple[int, ...], size: int, repetitions: int) -> list[str]:
    """How many steps of the shuffle one turn of its loop has, and how far the scan is unrolled: each beside the gather.

    A turn of 1 step is what the CPU does: after every step the host asks the device whether all values are in range.
    """
    data = jnp.asarray(np.random.default_rng(0).integers(0, 256, (rows, *shape), np.uint8))
    steps = rows // size
    order = np.random.default_rng(1).permutation(rows)[: steps * size].reshape(steps, size)
    records = jnp.asarray(order.astype(np.int32))
    blank = jnp.zeros((size, *shape), jnp.uint8)

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return carry ^ batch, None

    def gather(unroll: int) -> Callable[[], Any]:
        @jax.jit
        def run(data: jax.Array, records: jax.Array) -> Any:
            return jax.lax.scan(lambda carry, chosen: (carry ^ data[chosen], None), blank, records, unroll=unroll)[0]

        return lambda: run(data, records)

    def ours(turn: int, unroll: int) -> Callable[[], Any]:
        loader = DataLoader([ArraySource(data), BatchTransform(size, remainder="drop")])
        state = loader.init_state(0)
        # A jit of its own, so that a program compiled for another choice does not serve this one.
        run = jax.jit(lambda loader, state: loader.scan_epoch(state, blank, body, unroll)[1])
        previous, shuffle.STEPS_PER_TURN = shuffle.STEPS_PER_TURN, turn
        jax.clear_caches()
        try:
            jax.block_until_ready(run(loader, state))
        finally:
            shuffle.STEPS_PER_TURN = previous
        return lambda: run(loader, state)

    contenders: dict[str, Callable[[], Any]] = {}
    for unroll in (1, 4):
        for turn in (1, 2, 4, 8, 16):
            contenders[f"steps per turn {turn}, unroll {unroll}"] = ours(turn, unroll)
    for unroll in (1, 4):
        contenders[f"bare gather, unroll {unroll}"] = gather(unroll)
    found = medians(contenders, repetitions)
    lines = [f"**Choices: {rows:,} x {' x '.join(map(str, shape))} uint8, batches of {size}**", ""]
    lines += ["| what | us per step | of the bare gather |", "| --- | ---: | ---: |"]
    for name, seconds in found.items():
        bare = found[f"bare gather, {name.rpartition(', ')[2]}"]
        lines.append(f"| {name} | {seconds / steps * 1e6:.1f} | {bare / seconds:.2f} |")
    return [*lines, ""]


def convolved(params: Any, images: jax.Array) -> jax.Array:
    """A small CNN: three layers of convolutions, means of squares, one layer of weights."""
    x = images.astype(jnp.bfloat16) / 255
    for kernel in params["kernels"]:
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
    return (x.mean(axis=(1, 2)) @ params["head"]).astype(jnp.float32)


def training(rows: int, size: int, repetitions: int) -> list[str]:
    """An epoch of a small CNN on 32 x 32 x 3 images: with the loader inside, and on batches already laid out."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (rows, 32, 32, 3), np.uint8))
    labels = jnp.asarray(rng.integers(0, 10, rows).astype(np.int32))
    widths = [3, 64, 128, 256]
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "kernels": [
            jax.random.normal(key, (3, 3, a, b), jnp.bfloat16) / (9 * a) ** 0.5
            for key, a, b in zip(keys, widths[:-1], widths[1:], strict=False)
        ],
        "head": jax.random.normal(keys[3], (256, 10), jnp.bfloat16) / 16,
    }
    loader = DataLoader([ArraySource({"image": images, "label": labels}), BatchTransform(size, remainder="drop")])
    steps = rows // size

    def update(params: Any, batch: Any) -> tuple[Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            logits = jax.nn.log_softmax(convolved(params, batch["image"]))
            return -jnp.take_along_axis(logits, batch["label"][:, None], axis=1).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - (0.01 * g).astype(p.dtype), params, grads), value

    def body(params: Any, batch: Any, mask: Any) -> tuple[Any, jax.Array]:
        return update(params, batch)

    order = np.random.default_rng(1).permutation(rows)[: steps * size]
    laid = jax.tree.map(
        lambda leaf: leaf[jnp.asarray(order)].reshape(steps, size, *leaf.shape[1:]), {"image": images, "label": labels}
    )
    plain = jax.jit(lambda params, batches: jax.lax.scan(update, params, batches))
    state = loader.init_state(0)
    found = medians(
        {
            "laid out": lambda: plain(params, laid)[1],
            "bushel": lambda: loader.scan_epoch(state, params, body)[2],
        },
        repetitions,
    )
    over = found["bushel"] / found["laid out"] - 1
    verdict = "met" if over <= 0.03 else "MISSED"
    return [
        f"**Small CNN, {rows:,} x 32 x 32 x 3, batches of {size}, {steps} steps in one scan**",
        "",
        "| what | ms per epoch | us per step | |",
        "| --- | ---: | ---: | --- |",
        f"| batches already laid out | {found['laid out'] * 1e3:.1f} | {found['laid out'] / steps * 1e6:.0f} | |",
        f"| `scan_epoch` with the loader inside | {found['bushel'] * 1e3:.1f} | {found['bushel'] / steps * 1e6:.0f} "
        f"| {over * 100:+.1f} %, target <= 3 %: {verdict} |",
        "",
    ]


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="does it all work? (not for quoting)")
    parser.add_argument("--choices", action="store_true", help="also compare ways to run the shuffle")
    options = parser.parse_args()
    device = jax.devices()[0]
    print(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {device.device_kind}, JAX {jax.__version__}, "
        f"NumPy {np.__version__}, Python {platform.python_version()}.\n"
    )
    shrink = 50 if options.small else 1
    for rows, shape, size in (
        (60_000, (28, 28), 128),
        (60_000, (28, 28), 1024),
        (1_000_000, (64, 64, 3), 1024),
    ):
        print("\n".join(samples(rows // shrink, shape, size, options.repetitions)), flush=True)
    if options.choices:
        for rows, shape, size in ((60_000, (28, 28), 1024), (300_000, (28, 28), 1024)):
            print("\n".join(choices(rows // shrink, shape, size, options.repetitions)), flush=True)
    for rows, size in ((50_000, 128), (50_000, 512)):
        print("\n".join(training(rows // shrink, size, options.repetitions)), flush=True)


if __name__ == "__main__":
    main()
