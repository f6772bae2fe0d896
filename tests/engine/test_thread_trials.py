"""Threads that nobody asked for: they cost little where they do not help, and are there soon where they do.

Most tests run the real delivery on a machine that is a formula, with a clock of its own: nothing here measures time.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bushel
from bushel.engine import opener
from bushel.engine import position_delivery as positions
from bushel.engine.program import Result
from bushel.engine.tasks import Executor, Task, Ticket
from bushel.engine.thread_trials import COMPUTED_S, FEW, Speed, Trials, TriedThreads

BATCH = 16


@dataclasses.dataclass
class Machine:
    """A clock, and records that are computed by formula.

    Args:
      each_s: how long a record takes by itself.
      waits: the share of this time in which it waits and needs no core.
      locked: the share of its computing in which it holds the GIL.
      cores: how many cores there are.
      sharing: how many times the CPU time a record takes when several threads share the GIL.
      step_s: how long the consumer takes for a batch, without a core.
    """

    each_s: float
    waits: float = 0.0
    locked: float = 1.0
    cores: int = 2
    sharing: float = 1.6
    step_s: float = 0.0
    now: float = 0.0
    busy: float = 0.0
    """CPU time of all threads."""
    in_threads: bool = False
    most_threads: int = 0

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.busy

    def cost(self, threads: int) -> float:
        """The CPU time of a record, if so many threads compute."""
        return self.each_s * (1 - self.waits) * (1 + (self.sharing - 1) * self.locked * (threads > 1))

    def rate(self, threads: int) -> float:
        """Records per second of all threads."""
        cpu_s, alone_s = self.cost(threads), self.each_s * self.waits + self.cost(threads)
        limits = [threads / alone_s]
        if cpu_s:
            limits += [self.cores / cpu_s]
            if self.locked:
                limits += [1 / (cpu_s * self.locked)]
        return min(limits)

    # A source of records. The consumer's time passes here; that of threads passes in `wait`.

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        if not self.in_threads:
            self.now += self.each_s
            self.busy += self.each_s * (1 - self.waits)
        return index


HANDING_OVER_S = 40e-6


class Formula(Executor):
    """Threads of a machine: `size` servers with one queue, on the machine's clock."""

    kind = "threads"
    shares_counts = True

    def __init__(self, machine: Machine, most: int):
        self.machine, self.parallelism = machine, most
        self.resize(most)

    def resize(self, size: int) -> None:
        self.size = size
        self.machine.most_threads = max(self.machine.most_threads, size)
        self._free = [self.machine.now] * size
        self._ends: dict[int, float] = {}

    def submit(self, task: Task) -> Ticket:
        machine, ticket = self.machine, Ticket(task, Future())
        machine.in_threads = True
        result = task.run()
        machine.in_threads = False
        count = task.high - task.low
        machine.busy += count * machine.cost(self.size) + HANDING_OVER_S
        seconds = count * self.size / machine.rate(self.size)
        at = self._free.index(min(self._free))
        self._free[at] = max(machine.now, self._free[at]) + HANDING_OVER_S + seconds
        ticket.busy_s = count * machine.cost(self.size)
        ticket.done.set_result((result, seconds))
        self._ends[id(ticket)] = self._free[at]
        return ticket

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        self.machine.now = max(self.machine.now, self._ends.pop(id(ticket), 0.0))
        return ticket.done.result()

    def forget(self, tickets: list[Ticket]) -> None:
        pass

    def close(self) -> None:
        pass


def run(machine: Machine, options: bushel.ReadOptions | None, batches: int) -> Machine:
    """The machine after so many batches."""

    def tried(most: int) -> TriedThreads:
        return TriedThreads(most, machine.perf_counter, Formula(machine, most))  # type: ignore[arg-type]

    ds = bushel.MapDataset.source(machine).to_iter_dataset(options).batch(BATCH)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "time", machine)
        patch.setattr(positions, "count_waits", lambda: 0)
        patch.setattr(opener, "TriedThreads", tried)
        patch.setattr(opener, "Threads", lambda most: Formula(machine, most))
        with iter(ds) as it:
            for number, batch in enumerate(itertools.islice(it, batches)):
                assert batch.tolist() == list(range(BATCH * number, BATCH * number + BATCH))
                machine.now += machine.step_s
    return machine


works = st.builds(
    dict,
    each_s=st.floats(20e-6, 20e-3),
    waits=st.sampled_from([0.0, 0.0, 0.9, 0.99]),
    locked=st.sampled_from([0.0, 0.2, 0.7, 1.0]),
    cores=st.sampled_from([1, 2, 16]),
    sharing=st.floats(1.0, 2.5),
)


@settings(max_examples=150, deadline=None)
@given(work=works, batches=st.sampled_from([10, 30, 100]))
def test_the_default_is_about_as_fast_as_the_better_of_no_threads_and_16(work, batches):
    """The law of benchmarks/small_jobs.py. A few milliseconds are what it takes to see which of them is the better."""
    alone = run(Machine(**work), bushel.ReadOptions(0, 0), batches)
    in_threads = run(Machine(**work), bushel.ReadOptions(16, 500), batches)
    default = run(Machine(**work), None, batches)
    better = min(alone, in_threads, key=lambda machine: machine.now)
    found = (default.now, default.busy), (alone.now, alone.busy), (in_threads.now, in_threads.busy)
    seen_s = 3 * work["each_s"]  # the first records are computed one by one
    assert default.now <= 1.15 * better.now + seen_s + 0.1, found
    assert default.busy <= 1.15 * better.busy + seen_s + 0.02, found
