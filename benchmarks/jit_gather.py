"""The loader inside jit beside the bare gather of XLA on CPU: one call per step, and one scan for an epoch.

`PYTHONPATH=src python benchmarks/jit_gather.py` prints a table in Markdown. Needs JAX and NumPy alone.

The two sides of a row differ in where the records of a batch come from, and in nothing else:

- The bare gather is given the permutation of the epoch as an array of int32. A step cuts `size` entries out of it at a
  position, gathers these rows with `jnp.take(..., mode="clip")`, and returns the next position.
- The loader computes the entries from its state, gathers, and returns the next state.

Both steps then combine the batch with a carry of the same shape, by an exclusive or, and return the carry. So all bytes
are used. This also keeps the comparison fair. XLA runs a program of fewer than 1,000 operations on the calling thread,
and all others on a thread of its own. A bare gather alone is such a program, and no training step is. Neither side
donates an argument. Before a row is measured, both sides must give the same batches.

The process is pinned to one CPU, on Linux, before JAX starts its threads. A figure is the median of the CPU time of all
threads, over rounds in which both sides take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bushel._src.base import rng
from bushel._src.index import shuffle
from bushel.jit import ArraySource, BatchTransform, DataLoader

CASES = [(60_000, 784), (60_000, 64), (60_000, 16), (20_000, 64), (1_000_000, 64)]
SIZES = (128, 1024)
SEED = 0
CALLS = 200
"""How many steps a round has, at most, where each step is a call."""


def pin() -> None:
    """Let this process run on one CPU alone, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def measure(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """CPU seconds of each contender, the median of rounds in turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            start = time.process_time()
            jax.block_until_ready(contenders[name]())
            times[name].append(time.process_time() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def compare(length: int, row_bytes: int, size: int, rounds: int) -> list[str]:
    """Two lines of the table: one call per step, and one scan."""
    rows = np.random.default_rng(SEED).integers(0, 256, (length, row_bytes), np.uint8)
    permutation = shuffle.permute(np.arange(length), length=length, seed=rng.derive([(SEED, 1)]))
    data, order, blank = jnp.asarray(rows), jnp.asarray(permutation.astype(np.int32)), jnp.zeros_like(rows[:size])
    loader = DataLoader([ArraySource(data), BatchTransform(size, remainder="drop")])
    start, steps = loader.init_state(SEED), loader.steps_per_epoch

    def take(data: jax.Array, order: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
        records = jax.lax.dynamic_slice(order, (position * size,), (size,))
        return jnp.take(data, records, axis=0, mode="clip"), jnp.where(position + 1 == steps, 0, position + 1)

    @jax.jit
    def bare_step(data: jax.Array, order: jax.Array, position: jax.Array, carry: jax.Array) -> Any:
        batch, position = take(data, order, position)
        return position, carry ^ batch

    @jax.jit
    def bare_scan(data: jax.Array, order: jax.Array, position: jax.Array, carry: jax.Array) -> Any:
        def step(loop: Any, _: None) -> Any:
            batch, position = take(data, order, loop[0])
            return (position, loop[1] ^ batch), None

        return jax.lax.scan(step, (position, carry), length=steps)[0]

    @jax.jit
    def our_step(loader: DataLoader, state: Any, carry: jax.Array) -> Any:
        batch, state, _ = loader.next_batch(state)
        return state, carry ^ batch

    def body(carry: jax.Array, batch: jax.Array, mask: jax.Array) -> Any:
        return carry ^ batch, None

    first = jnp.int32(0)
    calls = min(CALLS, steps)

    def run_bare_steps() -> jax.Array:
        position, carry = first, blank
        for _ in range(calls):
            position, carry = bare_step(data, order, position, carry)
        return carry

    def run_our_steps() -> jax.Array:
        state, carry = start, blank
        for _ in range(calls):
            state, carry = our_step(loader, state, carry)
        return carry

    contenders = {
        "bare steps": run_bare_steps,
        "our steps": run_our_steps,
        "bare scan": lambda: bare_scan(data, order, first, blank)[1],
        "our scan": lambda: loader.scan_epoch(start, blank, body)[1],
    }
    for step in (0, 1, steps - 1):
        batch, _ = loader.batch_at(step, SEED)
        assert (batch == jax.jit(take)(data, order, jnp.int32(step))[0]).all(), "the batches differ"
    results = {name: run() for name, run in contenders.items()}
    assert (results["bare steps"] == results["our steps"]).all(), "the steps differ"
    assert (results["bare scan"] == results["our scan"]).all(), "the scans differ"
    found = measure(contenders, rounds)
    return [
        f"| {length:,} x {row_bytes} B | {size:,} | {label} | {found[f'bare {way}'] / count * 1e6:.1f} "
        f"| {found[f'our {way}'] / count * 1e6:.1f} | {found[f'bare {way}'] / found[f'our {way}']:.2f} |"
        for way, label, count in (("steps", "one call per step", calls), ("scan", "`scan_epoch`", steps))
    ]


def table(rounds: int) -> list[str]:
    """The whole table, in Markdown."""
    lines = [
        "| rows | batch | way | bare gather, us per step | Bushel, us per step | of the bare gather's speed |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for length, row_bytes in CASES:
        for size in SIZES:
            lines += compare(length, row_bytes, size, rounds)
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    pin()
    print(f"JAX {jax.__version__}, CPU time of one CPU.\n")
    print("\n".join(table(options.rounds)))


if __name__ == "__main__":
    main()
