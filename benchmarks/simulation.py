"""1,024 hosts with 8 workers each over 10^12 records, by index arithmetic alone: no data, no cluster.

    python -m benchmarks.simulation                   # about a minute; --save writes benchmarks/results/simulation.md

It opens the iterator of every host and asks each for its part of some global batches, near the beginning, in the middle
and at the end of the epoch. Every record of a global batch must come to exactly one host, and on that host to exactly
one worker. Then the run stops at 1,024 hosts and continues with 768.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

import bushel
from bushel._src.index import epochs
from bushel.experimental import ElasticIterator
from bushel.sharding import ShardOptions

RESULTS = Path(__file__).parent / "results" / "simulation.md"
RECORDS = 10**12
GLOBAL_BATCH = 24_576  # a multiple of 1,024 and of 768
WORKERS = 8
STEPS = RECORDS // GLOBAL_BATCH


def records() -> Any:
    """Every record once in an epoch, in a shuffled order. A record is its number."""
    return bushel.MapDataset.range(RECORDS).seed(0).shuffle()


def open_hosts(count: int) -> list[Any]:
    """The iterators of all hosts."""
    reading = bushel.ReadOptions(0, 0)
    return [
        ElasticIterator(
            records(), GLOBAL_BATCH, ShardOptions(shard_index=host, shard_count=count), read_options=reading
        )
        for host in range(count)
    ]


def state_at(step: int) -> dict[str, Any]:
    """The state before a global batch, as a run that has come there would have saved it."""
    host = open_hosts(1)[0]
    state = host.get_state()
    after_one = (next(host), host.get_state())[1]
    names = [name for name in state if state[name] != after_one[name]]
    assert len(names) == 1 and state[names[0]] == 0, f"{state} {after_one}"
    return {**state, names[0]: step * after_one[names[0]]}


def check_step(hosts: list[Any], state: dict[str, Any], step: int) -> dict[str, Any]:
    """Asks all hosts for their part of a global batch, and checks it. Returns the state after it, which all share."""
    expected = records().get(np.arange(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH))
    parts, states = [], []
    for number, host in enumerate(hosts):
        host.set_state(state)
        parts.append(next(host))
        states.append(host.get_state())
        if number in (0, len(hosts) // 2, len(hosts) - 1):
            check_workers(parts[-1], step, number, len(hosts))
    found = np.concatenate(parts)
    assert len(np.unique(found)) == len(found) == GLOBAL_BATCH, "a record came twice"
    assert np.array_equal(np.sort(found), np.sort(expected)), "the records are not those of this batch"
    assert all(state == states[0] for state in states), "the hosts have different states"
    return states[0]


def check_workers(part: np.ndarray, step: int, host: int, hosts: int) -> None:
    """Cuts the rows of a host into blocks, as its workers get them: together they are the host's part, in order."""
    size = GLOBAL_BATCH // hosts
    blocks = np.array_split(np.arange(step * size, (step + 1) * size), WORKERS)
    made = [records().get(epochs.shard(block, index=host, count=hosts)) for block in blocks if len(block)]
    assert np.array_equal(np.concatenate(made), part)


def time_host(host: Any, state: dict[str, Any]) -> float:
    """Seconds that a host takes for its part of a global batch: the least of several tries."""
    seconds = []
    for _ in range(9):
        host.set_state(state)
        begun = time.perf_counter()
        next(host)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1024)
    parser.add_argument("--hosts-after", type=int, default=768)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    begun = time.perf_counter()
    lines = []
    steps = [0, 1, STEPS // 1000, STEPS // 2, STEPS - 1]
    counts = [1, 64, options.hosts]
    for count in counts:
        hosts = open_hosts(count)
        for step in steps:
            state = state_at(step)
            check_step(hosts, state, step)
            host_s = time_host(hosts[0], state)
            row_s = host_s / (GLOBAL_BATCH // count)
            lines.append(f"| {count:,} | {step:,} | {1e6 * host_s:,.0f} us | {1e9 * row_s:,.0f} ns |")
            print(lines[-1], flush=True)
    stop = STEPS // 3
    saved = check_step(open_hosts(options.hosts), state_at(stop), stop)
    after = open_hosts(options.hosts_after)
    saved = check_step(after, saved, stop + 1)
    check_step(after, saved, stop + 2)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    text = f"""\
# 1,024 hosts with 8 workers each over 10^12 records

{time.strftime("%Y-%m-%d")}, one process on {os.cpu_count()} cores ({platform.machine()}),
Python {platform.python_version()}; {time.perf_counter() - begun:.0f} s in all, {memory_mb:,.0f} MB of memory.
`python -m benchmarks.simulation --save` writes this file.

Global batches of {GLOBAL_BATCH:,} records, {STEPS:,} of them in the epoch. In each step of the table every record
of the global batch came to exactly one host, the hosts had one and the same state after it, and the rows of a host were
the same when {WORKERS} workers computed them in blocks. The time is that of one host for its part of a batch. It
depends on how many rows the part has (a batch costs some hundred microseconds by itself), and not on the step.

| hosts | global batch | one host, its part | per record |
| --- | --- | --- | --- |
{chr(10).join(lines)}

A run of {options.hosts:,} hosts was stopped after global batch {stop:,} and continued with {options.hosts_after:,}
hosts from the state of one of them: the next global batches were those of the run that nobody stopped.
"""
    print(text)
    if options.save:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
