"""The loader inside jit on CPU: against the bare gather of XLA, against cyreal, at many lengths, and many at once.

`python -m benchmarks.jit` prints tables in Markdown; `--save NAME` also writes results/NAME.md. Needs cyreal==0.2.1.
The second table is that of jit_gather.py, which says what exactly is compared there.
"""

from __future__ import annotations

import argparse
import functools
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import cyreal.loader
import cyreal.sources
import cyreal.transforms
import jax
import jax.numpy as jnp
import numpy as np

from bushel._src.jit.array_source import take_rows
from bushel.jit import ArraySource, BatchTransform, DataLoader

ROWS, SIZE = 60_000, 128
STEPS = ROWS // SIZE
SEED = 0

Line = tuple[str, float, str, str]
"""What was measured, in milliseconds, against what, and whether a target was met."""


def consume(carry: Any, batch: Any) -> Any:
    """Work that needs every byte of a batch: nothing of it is dead code."""
    return carry[0] ^ batch["image"], carry[1] + batch["label"]


def blank(size: int = SIZE) -> tuple[jax.Array, jax.Array]:
    """The carry before the first batch."""
    return jnp.zeros((size, 28, 28), jnp.uint8), jnp.zeros(size, jnp.int32)


def images() -> dict[str, np.ndarray]:
    """As many images as MNIST has, of its shape."""
    rng = np.random.default_rng(SEED)
    return {
        "image": rng.integers(0, 256, (ROWS, 28, 28), np.uint8),
        "label": rng.integers(0, 10, ROWS).astype(np.int32),
    }


def medians(contenders: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Milliseconds of each contender, the median of runs in turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        jax.block_until_ready(run())
    for number in range(repetitions):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            jax.block_until_ready(contenders[name]())
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def epochs(repetitions: int) -> list[Line]:
    """A shuffled epoch: our scan and our steps, the bare gather with its indices given, and cyreal."""
    data = images()
    loader = DataLoader([ArraySource(data), BatchTransform(SIZE, remainder="drop")])
    theirs = cyreal.loader.DataLoader(
        [
            cyreal.sources.ArraySource(jax.tree.map(jnp.asarray, data)),
            cyreal.transforms.BatchTransform(SIZE, drop_last=True),
        ]
    )
    arrays = jax.tree.map(jnp.asarray, data)
    order = np.random.default_rng(1).permutation(ROWS)[: STEPS * SIZE].reshape(STEPS, SIZE).astype(np.int32)
    records = jnp.asarray(order)

    @jax.jit
    def gather(arrays: Any, records: jax.Array, carry: Any) -> Any:
        def step(carry: Any, chosen: jax.Array) -> Any:
            return consume(carry, jax.tree.map(lambda leaf: leaf[chosen], arrays)), None

        return jax.lax.scan(step, carry, records)[0]

    @jax.jit
    def gather_step(arrays: Any, chosen: jax.Array, carry: Any) -> Any:
        return consume(carry, jax.tree.map(lambda leaf: leaf[chosen], arrays))

    @jax.jit
    def our_step(loader: DataLoader, state: Any, carry: Any) -> Any:
        batch, state, _ = loader.next_batch(state)
        return state, consume(carry, batch)

    @jax.jit
    def their_step(state: Any, carry: Any) -> Any:
        batch, state, _ = theirs.next(state)
        return state, consume(carry, batch)

    def body(carry: Any, batch: Any, mask: Any) -> Any:
        return consume(carry, batch), None

    their_scan = jax.jit(lambda state, carry: theirs.scan_epoch(state, carry, body))
    state, their_state = loader.init_state(SEED), theirs.init_state(jax.random.key(SEED))
    rows = list(records)

    def stepped(step: Callable[..., Any], state: Any) -> Any:
        carry = blank()
        for _ in range(STEPS):
            state, carry = step(state, carry)
        return carry

    def gathered() -> Any:
        carry = blank()
        for chosen in rows:
            carry = gather_step(arrays, chosen, carry)
        return carry

    found = medians(
        {
            "gather": lambda: gather(arrays, records, blank()),
            "bushel": lambda: loader.scan_epoch(state, blank(), body)[1],
            "gather, steps": gathered,
            "bushel, steps": lambda: stepped(lambda state, carry: our_step(loader, state, carry), state),
        },
        repetitions,
    )
    found |= medians(
        {
            "cyreal": lambda: their_scan(their_state, blank())[1],
            "cyreal, steps": lambda: stepped(their_step, their_state),
        },
        max(2, repetitions // 4),
    )
    ours, bare, other = found["bushel"], found["gather"], found["cyreal"]
    return [
        ("bare gather of XLA, one scan", bare, "", ""),
        ("`scan_epoch`", ours, f"{bare / ours:.2f} of the bare gather's speed", told(bare / ours >= 0.9, ">= 0.9")),
        ("cyreal, jitted `scan_epoch`", other, f"ours is {other / ours:.1f} x", told(other / ours >= 15, ">= 15")),
        ("bare gather of XLA, one call per step", found["gather, steps"], "", ""),
        (
            "`next_batch`, one call per step",
            found["bushel, steps"],
            f"{found['gather, steps'] / found['bushel, steps']:.2f} of the bare gather's speed",
            "",
        ),
        (
            "cyreal, one call per step",
            found["cyreal, steps"],
            f"ours is {found['cyreal, steps'] / found['bushel, steps']:.1f} x",
            "",
        ),
    ]


def lengths(repetitions: int) -> list[Line]:
    """The order alone, 1,000 steps of 128 records, at several lengths. A gather would add the misses of the cache.

    The cipher's domain is up to four times the length, and a record takes as many rounds: see benchmarks/README.md.
    """
    runs, rounds = {}, {}
    for length in (2**16, 2**16 + 1, 2**18, 2**20 - 1, 10**7, 10**8):
        source = BatchTransform(SIZE, remainder="drop")(ArraySource(np.zeros(length, np.int8)))

        @jax.jit
        def run(source: Any, state: Any) -> Any:
            def step(loop: Any, _: None) -> Any:
                state, total = loop
                return (source.advance(state), total + source.locate_next(state).record), None

            return jax.lax.scan(step, (state, jnp.zeros(SIZE, jnp.int32)), length=1000)[0][1]

        state = source.init_state(SEED)
        name = f"{length:,}"
        rounds[name] = 4 ** max(8, -(-(length - 1).bit_length() // 2)) / length
        runs[name] = lambda run=run, source=source, state=state: run(source, state)
    found = medians(runs, repetitions)
    return [
        (
            f"order alone, 1,000 steps over {name} rows",
            ms,
            f"{ms * 1e6 / (1000 * SIZE):.0f} ns per record, domain/length {rounds[name]:.2f}",
            "",
        )
        for name, ms in found.items()
    ]


def many(repetitions: int, loaders: int = 64, steps: int = 50) -> list[Line]:
    """64 loaders under vmap, each with a seed of its own, against their gathers with indices given."""
    data = images()
    loader = DataLoader([ArraySource(data), BatchTransform(SIZE, remainder="drop")])
    states = jax.vmap(loader.init_state)(jax.random.split(jax.random.key(SEED), loaders))
    columns = cast(Any, loader.source).inner.columns
    records = jnp.asarray(np.random.default_rng(2).integers(0, ROWS, (steps, loaders, SIZE)).astype(np.int32))
    carry = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (loaders, *leaf.shape)), blank())

    @jax.jit
    def ours(loader: DataLoader, states: Any, carry: Any) -> Any:
        def step(loop: Any, _: None) -> Any:
            batch, states, _mask = jax.vmap(loader.next_batch)(loop[0])
            return (states, consume(loop[1], batch)), None

        return jax.lax.scan(step, (states, carry), length=steps)[0][1]

    @jax.jit
    def gathers(columns: Any, records: jax.Array, carry: Any) -> Any:
        def step(carry: Any, chosen: jax.Array) -> Any:
            return consume(carry, jax.vmap(functools.partial(take_rows, columns))(chosen)), None

        return jax.lax.scan(step, carry, records)[0]

    found = medians(
        {"gathers": lambda: gathers(columns, records, carry), "bushel": lambda: ours(loader, states, carry)},
        repetitions,
    )
    ratio = found["bushel"] / found["gathers"]
    return [
        (f"gathers alone, {loaders} x {SIZE} rows, {steps} steps", found["gathers"], "", ""),
        (f"{loaders} loaders under vmap", found["bushel"], f"{ratio:.2f} x its gathers", told(ratio <= 1.3, "<= 1.3")),
    ]


def told(met: bool, target: str) -> str:
    """A target, and whether it was met."""
    return f"{target}: {'met' if met else 'MISSED'}"


def report(repetitions: int) -> str:
    """All tables."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "numpy", "cyreal"))
    now = datetime.now(UTC)
    lines = [
        "# The loader inside jit, on a CPU",
        "",
        f"{now:%Y-%m-%d}, `python -m benchmarks.jit`. {platform.machine()}, CPU, {versions}, "
        f"Python {platform.python_version()}.",
        "",
        f"Epochs are of {ROWS:,} x 28 x 28 uint8 images and int32 labels, batches of {SIZE}, every byte used. The bare",
        "gather is XLA's gather with given indices: a loader that also computes the order can hardly be faster.",
        "A ratio above 1 in the third column means that Bushel is faster.",
        "",
        "| what | ms | | target |",
        "| --- | ---: | --- | --- |",
    ]
    for part in (epochs, lengths, many):
        lines += [f"| {name} | {ms:.1f} | {note} | {target} |" for name, ms, note, target in part(repetitions)]
    lines += ["", "## Beside the bare gather", "", "CPU time, both sides in turns on one CPU.", "", *run_pinned()]
    return "\n".join(lines) + "\n"


def run_pinned() -> list[str]:
    """The table of jit_gather.py, from a process of its own: JAX has started its threads in this one."""
    command = [sys.executable, "-m", "benchmarks.jit_gather"]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8").stdout
    return [line for line in text.splitlines() if line.startswith("|")]


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--save")
    options = parser.parse_args()
    text = report(options.repetitions)
    print(text)
    if options.save:
        (Path(__file__).parent / "results" / f"{options.save}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
