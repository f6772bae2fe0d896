"""Threads that nobody asked for: they cost little where they do not help, and are there soon where they do.

Most tests run the real delivery on a machine that is a formula, with a clock of its own: nothing here measures time.
"""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import Future

import pytest
from helpers.case_counts import cases
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import bushel
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine import opener
from bushel._src.engine import program_delivery as positions
from bushel._src.engine.program import Result
from bushel._src.engine.tasks import Executor, Task, Ticket
from bushel._src.engine.where_to_run import COMPUTED_S, FEW, Speed, Trials, TriedThreads, WhereToRun

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

    def count_waits(self) -> tuple[int, int]:
        return 0, 0  # the system does not tell

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
        self._free: list[float] = []  # when each server has done all that it was given
        self._ends: dict[int, float] = {}
        self.resize(most)

    def resize(self, size: int) -> None:
        self.size = size
        self.machine.most_threads = max(self.machine.most_threads, size)
        more = [self.machine.now] * max(0, size - len(self._free))
        self._free = sorted([*self._free, *more], reverse=True)[:size]

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
        return TriedThreads(most, machine.perf_counter, Formula(machine, most), machine.cores)  # type: ignore[arg-type]

    ds = bushel.MapDataset.source(machine).to_iter_dataset(options).batch(BATCH)
    where = WhereToRun(make_threads=tried, clock=machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opener, "Threads", lambda most: Formula(machine, most))
        with PipelineIterator(ds._node, where=where) as it:
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


@settings(
    max_examples=cases(20, 300), deadline=None, phases=[Phase.explicit, Phase.generate]
)  # shrinking takes minutes
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


@pytest.mark.parametrize("locked", [0.0, 1.0])
def test_threads_stay_if_the_consumer_waits_between_batches(locked):
    """As for an accelerator. They compute the next batch meanwhile, also if they share the GIL."""
    work = {"each_s": 1e-3, "locked": locked, "sharing": 1.1, "step_s": 0.02}
    alone, default = run(Machine(**work), bushel.ReadOptions(0, 0), 100), run(Machine(**work), None, 100)
    assert alone.now == pytest.approx(100 * (BATCH * 1e-3 + 0.02))
    assert default.now < 100 * 0.02 + 0.3  # the elements take no time of their own, once threads have started


def test_quick_elements_start_no_threads():
    assert run(Machine(each_s=20e-6), None, 100).most_threads == 0


def test_a_small_job_starts_no_threads():
    batches = int(COMPUTED_S / 1e-3 / BATCH)
    assert run(Machine(each_s=1e-3, locked=0.0, cores=16), None, batches).most_threads == 0
    assert run(Machine(each_s=1e-3, locked=0.0, cores=16), None, batches + 2).most_threads >= FEW


def test_trials_that_gain_nothing_take_a_small_share_of_any_job():
    for batches in (10, 100, 1000):
        alone = run(Machine(each_s=1e-3, sharing=2.5), bushel.ReadOptions(0, 0), batches)
        assert run(Machine(each_s=1e-3, sharing=2.5), None, batches).now < 1.15 * alone.now + 5e-3


# The decisions by themselves.


def record(trials: Trials, *pulls: tuple[float, float, bool]) -> list[int]:
    return [trials.record(1, seconds, busy_s, waited) for seconds, busy_s, waited in pulls]


WAITING, COMPUTING, QUICK = (4e-3, 1e-4, True), (4e-3, 4e-3, True), (1e-6, 1e-6, True)
PREEMPTED = (4e-3, 1e-4, False)
"""A pull that computes on a busy machine: its thread ran for little of the time, and waited for nothing but a core."""


def test_all_threads_are_tried_after_two_pulls_in_a_row_that_waited():
    assert record(Trials(16), WAITING, WAITING) == [0, 16]
    assert record(Trials(16), WAITING, QUICK, WAITING, QUICK, WAITING, WAITING) == [0] * 5 + [16]
    assert record(Trials(3), WAITING, WAITING) == [0, 3]


def test_waiting_for_a_core_is_computing():
    assert record(Trials(16), *[PREEMPTED] * 13) == [0] * 13
    assert record(Trials(16), *[PREEMPTED] * 14)[-1] == FEW == record(Trials(16), *[COMPUTING] * 14)[-1]


def test_the_first_pull_counts_only_if_it_waits():
    """It may open files and load code."""
    assert record(Trials(16), (10.0, 10.0, True), *[QUICK] * 20) == [0] * 21


def test_the_consumer_computes_longer_after_each_trial_that_gained_nothing():
    trials, threads = Trials(16), TriedThreads(16, lambda: 0.0, Formula(Machine(1.0), 16))  # type: ignore[arg-type]
    record(trials, COMPUTING)
    for factor in (1, 4, 16, 64):
        pulls = round(factor * COMPUTED_S / COMPUTING[0] + 0.5)
        assert record(trials, *[COMPUTING] * pulls) == [0] * (pulls - 1) + [FEW]
        threads.begin_trial(FEW, trials.alone)
        trials.end_trial(threads)


def test_a_pull_is_no_longer_than_the_time_until_the_next_trial():
    trials = Trials(16)
    for _ in range(12):
        assert trials.record(1, *COMPUTING) == 0
        assert trials.pull_size == 1 or trials.pull_size * COMPUTING[0] <= COMPUTED_S
    quick = Trials(16)
    record(quick, *[QUICK] * 4)
    assert quick.pull_size > 10**4


def test_threads_are_judged_by_what_the_consumer_waits_and_by_their_cpu_time():
    def judge(**window: float) -> int:
        machine = Machine(1.0)
        threads = TriedThreads(16, machine.perf_counter, Formula(machine, 16), 16)  # type: ignore[arg-type]
        threads.begin_trial(2, Speed(100, 1.0, 1.0))
        return threads._tuner.judge(**window)

    assert judge(rate=105.0, waiting=1.0, busy=1.0) == 0
    assert judge(rate=190.0, waiting=1.0, busy=1.0) == 8  # nearly twice as fast: more are tried
    assert judge(rate=150.0, waiting=1.0, busy=1.0, least_gain=1.3) == 4
    assert judge(rate=150.0, waiting=1.0, busy=1.0, least_gain=1.6) == 0  # faster, but for more CPU time than that
    assert judge(rate=20.0, waiting=0.05, busy=0.2) == 2  # a consumer that is busy with something else


def test_a_thread_that_lost_its_core_has_not_waited():
    assert not positions._has_waited((0, 0), (0, 1)) and not positions._has_waited((5, 1), (5, 3))
    assert positions._has_waited((5, 1), (6, 1))
    assert positions._has_waited((0, 0), (0, 0))  # the system does not tell
