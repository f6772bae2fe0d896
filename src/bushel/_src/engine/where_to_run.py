"""Where a stage runs: in threads or in worker processes, decided by measured times, or as a test says."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Sequence

import numpy as np

from bushel._src.engine.delivery import MOST_POSITIONS
from bushel._src.engine.measurements import SMALL_WAIT_SHARE, Pool, count_cores
from bushel._src.engine.pool.autotune import LEAST_GAIN, Tuner
from bushel._src.engine.program import Result
from bushel._src.engine.tasks import ExecutorAround, Task, Threads, Ticket
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.user_datasets import CustomStream

SLOW_S = 100e-6
"""If elements take longer than this, threads may compute them: handing over an element costs about half as much."""

COMPUTED_S = 0.05
"""The consumer must have computed for so long before threads are tried. A small job is done by then."""

WAITS_IN_A_ROW = 2
"""After so many slow pulls in a row that waited for most of their time, all threads are tried at once."""

FEW = 2
"""How many threads are tried for elements that compute. They may share the GIL, so that more are no faster."""

SHORT_BLOCK_S = 2e-3
"""How long the blocks of elements that compute should take, for threads that nobody asked for."""

_SINGLE_PULLS = 4
_LONGER = 4
_LONGEST_PAUSE_S = 10.0
_MANY_WINDOWS = 8

_FIRST_WINDOW_S = 0.01
_WINDOW_S = 0.025
"""How long a trial is measured at least, and later windows. They also last for two blocks of each thread at least."""

_MAX_STRETCH = 32
_CPU_PRICE = 3
_BLOCK_BYTES = (
    1 << 20
)  # nobody has asked for these threads, so what they hold must be small beside the consumer's memory


@dataclasses.dataclass(slots=True)
class Speed:
    """How long the rows of some positions took, and for how much of this time their threads have run."""

    positions: int = 0
    seconds: float = 0.0
    busy_s: float = 0.0
    away_s: float = 0.0
    """How long the consumer did something else meanwhile."""

    def add(self, positions: int, seconds: float, busy_s: float) -> None:
        self.positions += positions
        self.seconds += seconds
        self.busy_s += busy_s

    @property
    def rate(self) -> float:
        """Positions per second."""
        return self.positions / max(self.seconds, 1e-9)

    @property
    def away_share(self) -> float:
        """The share of its time that the consumer did something else, if it computes the rows itself."""
        return self.away_s / max(self.seconds + self.away_s, 1e-9)

    @property
    def busy_each_s(self) -> float:
        """The CPU time of a position."""
        return self.busy_s / max(self.positions, 1)


class Trials:
    """Decides, from the pulls that the consumer computes itself, when to try threads.

    If pulls wait, as for a disk or a server, all threads are tried after two of them: what helps is many requests at a
    time. If pulls compute, two threads are tried after 50 ms of computing. After a trial that gained nothing, the
    consumer computes four times as long until the next one. So trials take a small share of any job.

    >>> trials = Trials(most=16)
    >>> [trials.record(1, seconds=4e-3, busy_s=1e-4) for _ in range(2)]
    [0, 16]
    >>> trials.alone.rate
    250.0
    """

    def __init__(self, most: int, slow_s: float = SLOW_S, computed_s: float = COMPUTED_S):
        self._most = most
        self._slow_s, self._computed_s = slow_s, computed_s
        self._pulls = 0
        self.pull_size = 1
        """How many positions the next pull should compute at most: a single one until the speed is known, and no more
        than fit into the time until the next trial, since a batch of slow elements may take seconds."""
        self._pause_s = computed_s
        self.alone = Speed()
        """When a trial begins: what the consumer has computed since the last one."""
        self._waiting = Speed()  # the slow pulls in a row that have waited
        self.waits = 0
        """How many these are. After the first, delivery asks the system whether the next pull has waited."""

    def record(self, positions: int, seconds: float, busy_s: float, waited: bool = True, away_s: float = 0.0) -> int:
        """Return how many threads to try now; 0 if the consumer computes the next rows, too.

        Args:
          positions: how many positions a pull has computed.
          seconds: how long it took.
          busy_s: for how much of this time its thread has run.
          waited: whether the thread has waited for something, as far as that is known. On a busy machine a thread may
            run for little of the time although it waits for nothing but a core.
          away_s: how long the consumer did something else before the pull.
        """
        self._pulls += 1
        if seconds > self._slow_s * positions and waited and busy_s < seconds / 2:
            self.waits += 1
            self._waiting.add(positions, seconds, busy_s)
            if self.waits >= WAITS_IN_A_ROW:
                self.alone = self._waiting
                return self._most
        elif self.waits:
            self.waits, self._waiting = 0, Speed()
        alone = self.alone
        if self._pulls > 1:  # the first pull may open files and load code
            alone.positions += positions  # not `add`: this runs for every element
            alone.seconds += seconds
            alone.busy_s += busy_s
            alone.away_s += away_s
        if alone.seconds < self._pause_s:
            if self._pulls >= _SINGLE_PULLS:
                slow = seconds > self._slow_s * positions
                self.pull_size = 1 + int((self._pause_s - alone.seconds) * alone.rate) if slow else MOST_POSITIONS
            return 0
        if alone.seconds > self._slow_s * alone.positions:
            return min(FEW, self._most)
        self.alone = Speed()
        return 0

    def end_trial(self, threads: TriedThreads) -> None:
        """Record that the threads have stopped, because the consumer alone is as fast."""
        if threads.windows > _MANY_WINDOWS:  # they gained something, and then the data changed
            self._pause_s = self._computed_s
        else:
            self._pause_s = max(min(_LONGER * self._pause_s, _LONGEST_PAUSE_S), 2 * _LONGER * threads.lasted_s)
        self.alone, self._waiting, self.waits = Speed(), Speed(), 0


def count_waits() -> tuple[int, int]:
    """Return how often this thread has waited, and how often it lost its core; zeros if the system does not tell."""
    of_this_thread = getattr(resource, "RUSAGE_THREAD", None)  # Linux has it, macOS has not
    if of_this_thread is None:
        return 0, 0
    usage = resource.getrusage(of_this_thread)
    return usage.ru_nvcsw, usage.ru_nivcsw


class Clock:
    """What delivery measures the consumer's thread with."""

    perf_counter = staticmethod(time.perf_counter)
    thread_time = staticmethod(time.thread_time)
    count_waits = staticmethod(count_waits)


class TriedThreads(ExecutorAround):
    """Threads whose number follows from what they gain. They are 0 if the consumer alone is as fast.

    Delivery may send two blocks for each thread, and more if these do not last for a step of the consumer.
    """

    def __init__(
        self,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
        threads: Threads | None = None,
        cores: int | None = None,
        least_gain: float = LEAST_GAIN,
    ):
        self._least_gain = least_gain
        self._threads = threads or Threads(most, at_first=0)
        super().__init__(self._threads)
        self.block_bytes = _BLOCK_BYTES
        self._clock = clock
        self._cores = count_cores() if cores is None else cores
        self._under_way = 0  # tickets that delivery waits for
        self._before_resize = 0  # those of them that were submitted before the number of threads changed
        self._tuner = Tuner(most, kind="threads", at_first=0)

    def begin_trial(self, size: int, alone: Speed) -> None:
        """Start so many threads. `alone` is the speed of the consumer without them."""
        self._alone = alone
        # Only threads that wait gain from being more than there are cores.
        self._for_waiting = size == self.parallelism
        most = self.parallelism if self._for_waiting else min(self.parallelism, max(FEW, self._cores))
        self._tuner = Tuner(most, 1, size, _MAX_STRETCH, "threads", alone.rate, self._least_gain)
        self._threads.resize(size)
        self._under_way = self._before_resize = 0
        self._began = self._clock()
        self.windows = 0
        self._begin_window(self._began, _FIRST_WINDOW_S)

    def _begin_window(self, now: float, window_s: float) -> None:
        self._window_start, self._window_s = now, window_s
        self._waited_s = 0.0
        self._blocks = 0
        self._speed = Speed()

    def _find_least_gain(self, speed: Speed) -> float:
        """Return how many times as fast the threads must be for the CPU time that they take.

        Elements that compute leave little to gain, and on a busy machine two threads are faster because other programs
        get less: a tenth more CPU time must make them faster by three tenths. Elements that wait gain many times more.
        """
        alone = self._alone
        cost = speed.busy_each_s / max(alone.busy_each_s, 1e-9)
        return max(self._least_gain, cost if self._for_waiting else 1 + _CPU_PRICE * (cost - 1))

    def _is_long_enough(self, elapsed_s: float) -> bool:
        """Return whether a window tells something. A short one may lie inside of one `next`, and threads gain the most
        while the consumer does something else.
        """
        alone = self._alone
        away_share = 1 - self._waited_s / max(elapsed_s, 1e-9)
        typical = alone.away_share < SMALL_WAIT_SHARE or away_share > alone.away_share / 2
        return elapsed_s >= (self._window_s if typical else alone.seconds + alone.away_s)

    @property
    def lasted_s(self) -> float:
        """The seconds since the trial began."""
        return self._clock() - self._began

    def report(self) -> Pool:
        return dataclasses.replace(self._threads.report(), size=self._tuner.workers, why=self._tuner.why)

    def stretch(self) -> int:
        return self._tuner.stretch * self._tuner.workers

    def submit(self, task: Task) -> Ticket:
        self._under_way += 1
        return self._threads.submit(task)

    def forget(self, tickets: list[Ticket]) -> None:
        self._under_way = self._before_resize = 0
        self._threads.forget(tickets)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        begun = self._clock()
        result, seconds = self._threads.wait(ticket)
        now = self._clock()
        self._under_way -= 1
        if self._before_resize > 0:  # says nothing about the threads that there are now
            self._before_resize -= 1
            self._begin_window(now, _WINDOW_S)
            return result, seconds
        self._waited_s += now - begun
        speed, tuner, elapsed_s = self._speed, self._tuner, now - self._window_start
        speed.add(ticket.task.high - ticket.task.low, seconds, ticket.busy_s)
        self._blocks += 1
        if tuner.workers and self._blocks >= 2 * tuner.workers and self._is_long_enough(elapsed_s):
            size = tuner.judge(
                rate=speed.positions / elapsed_s,
                waiting=self._waited_s / elapsed_s,
                busy=min(1.0, speed.seconds / (elapsed_s * tuner.workers)),
                least_gain=self._find_least_gain(speed),
            )
            if size != self._threads.size:
                self._threads.resize(size)
                self._before_resize = self._under_way
            self.windows += 1
            self._begin_window(now, _WINDOW_S)
        return result, seconds


SHIP_S = 200e-6
"""A row is sent to a worker if the work on it takes longer than this, and than sending its bytes."""


def are_worth_sending(row_seconds: Sequence[float]) -> bool:
    """Return whether rows should go to workers.

    Args:
      row_seconds: how long each of the first rows took, beyond the time in which its bytes are sent.

    >>> are_worth_sending([0.3, 1e-3, 1e-3]), are_worth_sending([0.3, 1e-5, 1e-5])
    (True, False)
    """
    return float(np.median(row_seconds)) > SHIP_S  # the median: the first rows may load code and open files


def has_opaque_leaf(node: Node) -> bool:
    """Return whether a part of a stream can only be read in order, by one reader."""
    if isinstance(node, (MapNode, CustomStream)):
        return isinstance(node, CustomStream)
    return not node.parents or any(has_opaque_leaf(parent) for parent in node.parents)


@dataclasses.dataclass(frozen=True)
class WhereToRun:
    """The decisions of one pipeline. By default they follow from what is measured while it runs."""

    tried_rows: int = 8
    """So many rows after an ordered stage are computed in the executor and measured, before `sends_rows` decides."""
    sends_rows: Callable[[Sequence[float]], bool] = are_worth_sending
    """Whether the executor computes the later rows, too; otherwise the consumer does."""
    sends_stream: Callable[[Node], bool] = has_opaque_leaf
    """Whether a worker runs a part of a stream as a whole, such as one source of a mixture."""
    make_trials: Callable[[int], Trials] = Trials
    """Makes what decides when threads are tried that nobody asked for, from the largest number of threads."""
    make_threads: Callable[[int], TriedThreads] = TriedThreads
    """Makes these threads, which decide whether they stay."""
    clock: Clock = dataclasses.field(default_factory=Clock)
    """What measures the consumer, for the trials of threads."""


MEASURED = WhereToRun()
