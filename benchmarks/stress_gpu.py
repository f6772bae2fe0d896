"""Tries to break the memory of `to_device` on a GPU: every byte of many batches is compared on the device.

Iterators are closed, dropped and moved while copies are under way; workers are killed; arrays are kept; programs end in
the middle of a transfer. `python -m benchmarks.stress_gpu [batches]` prints what it did; any wrong byte, CUDA error or
hang ends it with an error.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bushel
from bushel._src.engine.processes.executor import SUPERVISORS

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the programs that this one starts use the same GPU

RECORDS, WIDTH = 4096, 16 << 10


def make_source() -> Any:
    numbers = np.arange(RECORDS, dtype=np.int32)
    pixels = ((numbers[:, None] * 31 + np.arange(WIDTH, dtype=np.int32) * 7) % 251).astype(np.uint8)
    return bushel.sources.ArrayDataSource({"number": numbers, "pixels": pixels})


@jax.jit
def count_wrong(batch: Any) -> Any:
    """How many bytes of a batch are not what they should be. The numbers travel in an array of their own."""
    expected = (batch["number"][:, None] * 31 + jnp.arange(WIDTH, dtype=jnp.int32) * 7) % 251
    return (expected.astype(jnp.uint8) != batch["pixels"]).sum()


def kill_a_worker() -> bool:
    for supervisor in list(SUPERVISORS):
        for worker in list(supervisor.workers):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
                return True
    return False


def run(total: int) -> None:
    chance = random.Random(0)
    source = make_source()
    done, opened, deaths, moved, kept_checked = 0, 0, 0, 0, 0
    begun = time.perf_counter()
    wrong: list[Any] = []
    while done < total:
        workers, size = chance.choice([0, 0, 1, 2, 4, 8]), chance.choice([16, 64, 256, 700])
        ds = bushel.MapDataset.source(source).seed(opened).shuffle().repeat().batch(size).to_iter_dataset()
        if chance.random() < 0.3:  # batches that the consumer cuts
            ds = bushel.MapDataset.source(source).seed(opened).shuffle().repeat().to_iter_dataset()
            ds = ds.filter(lambda record: record["number"] % 3 != 0).batch(size)
        if workers:
            budget = chance.choice([32 << 20, 256 << 20, 1 << 30])
            ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers=workers, budget_bytes=budget))
        it = iter(ds.to_device(buffer_size=chance.randrange(5)))
        opened += 1
        kept: list[Any] = []
        state = it.get_state()
        for number in range(chance.choice([1, 3, 20, 60, 150])):
            batch = next(it)
            wrong.append(count_wrong(batch))
            done += 1
            if chance.random() < 0.1:
                kept.append(batch)
            if workers and chance.random() < 0.01:
                deaths += kill_a_worker()
            if chance.random() < 0.02:
                it.set_state(state)  # what is under way is thrown away
                moved += 1
            if number % 7 == 0:
                state = it.get_state()
            del batch
        how = chance.choice(["close", "drop", "keep"])
        if how == "close":
            it.close()
        del it
        if how != "keep":
            gc.collect()
        wrong += [count_wrong(batch) for batch in kept]
        kept_checked += len(kept)
        bad = int(sum(wrong))
        assert bad == 0, f"{bad} wrong bytes in iterator {opened} ({workers} workers, batches of {size})"
        wrong.clear()
    print(
        f"{done:,} batches of {opened} iterators compared on the device, {kept_checked:,} of them again after their "
        f"iterator had gone: no wrong byte. {deaths} workers killed, {moved} jumps, "
        f"{time.perf_counter() - begun:.0f} s."
    )


CHILD = """
import os, sys, time
from benchmarks.stress_gpu import *
ds = bushel.MapDataset.source(make_source()).seed(0).shuffle().repeat().batch(512).to_iter_dataset()
if {workers}:
    ds = ds.mp_prefetch(bushel.MultiprocessingOptions(num_workers={workers}))
it = iter(ds.to_device(buffer_size=4))
for _ in range({batches}):
    batch = next(it)
{end}
"""

ENDS = {
    "falls off the end": "pass",
    "sys.exit": "sys.exit(3)",
    "error": "raise RuntimeError('by design')",
    "close": "it.close()",
    "close, keep a batch": "it.close(); print(int(count_wrong(batch)))",
    "Ctrl-C": "os.kill(os.getpid(), 2); time.sleep(60)",
}
CODES = {"sys.exit": 3, "error": 1, "Ctrl-C": -signal.SIGINT}


def run_programs() -> None:
    for how, end in ENDS.items():
        for workers in (0, 4):
            for batches in (1, 40):
                script = CHILD.format(workers=workers, batches=batches, end=end)
                begun = time.perf_counter()
                done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
                took = time.perf_counter() - begun
                lines = [line for line in done.stderr.splitlines() if "xla_bridge" not in line]
                assert done.returncode == CODES.get(how, 0), (how, workers, done.returncode, done.stderr)
                assert "CUDA" not in done.stderr and len([x for x in lines if "Traceback" in x]) <= 1, done.stderr
                print(f"program ends by {how!r} with {workers} workers after {batches} batches: {took:.1f} s in all")


if __name__ == "__main__":
    device = jax.devices()[0]
    print(f"{device.device_kind}, {os.cpu_count()} cores, JAX {jax.__version__}, {time.strftime('%Y-%m-%d')}")
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    run_programs()
