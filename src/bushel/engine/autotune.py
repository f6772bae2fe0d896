"""The number of workers and how far they work ahead, found while running. The output depends on neither."""

from __future__ import annotations

import math
import time

from bushel.engine.processes import Processes
from bushel.engine.program import Result
from bushel.engine.report import BUSY, HARDLY
from bushel.engine.tasks import Executor, Task, Ticket

WINDOW_S = 0.5
"""So long it measures before it judges, and for two blocks of each worker at least."""

WARM_S = 10.0
"""So long it waits for new workers to have finished something: what they import may take its time."""

FURTHEST = 4
"""So many times as far ahead as usual they work at most."""


class Tuner:
    """Judges one window of measurements after the other, and says how many workers should work.

    More are tried while the consumer waits, and kept as far as they bring something. Those that have nothing to do
    are parked. After a try that brought nothing it rests, longer each time, since the data may change. Where workers
    rest although the consumer waits, a slow block or a burst of demand holds them up: they work further ahead.

    >>> tuner = Tuner(most=8)
    >>> tuner.judge(rate=100, waiting=0.9, busy=1.0)
    2
    >>> tuner.judge(rate=195, waiting=0.02, busy=0.9)
    2
    >>> tuner.why
    '2 give 1.95 times as much as 1; the consumer waits 2 % of its time'
    """

    def __init__(self, most: int):
        self.most = most
        self.workers = 1
        self.stretch = 1
        self.why = "nothing is measured yet"
        self._tried_from: tuple[int, float] | None = None
        self._gained = ""
        self._rest = 0
        self._next_rest = 8
        self._idle = 0

    def judge(self, *, rate: float, waiting: float, busy: float) -> int:
        """The number of workers for the next window.

        Args:
          rate: rows per second in this window.
          waiting: the share of it that the consumer waited.
          busy: the share of it that the workers worked.
        """
        self._rest = max(0, self._rest - 1)
        if self._tried_from is not None:
            self._judge_try(rate)
        waits = f"the consumer waits {100 * waiting:.0f} % of its time"
        if waiting > HARDLY:
            self._idle = 0
            if busy < BUSY and self.stretch < FURTHEST:
                self.stretch *= 2
                self.why = f"{waits} and workers rest meanwhile, so they work further ahead"
                return self.workers
            if self.workers < self.most and not self._rest:
                self._tried_from = self.workers, rate
                self.workers = min(self.most, 2 * self.workers)
                self.why = f"{waits}, so more are tried"
                return self.workers
            bound = "there are no more cores" if self.workers == self.most else self._gained
        else:
            needed = max(1, math.ceil(1.2 * busy * self.workers))
            self._idle = self._idle + 1 if needed < self.workers else 0
            if self._idle >= 3:
                self._gained = f"{self.workers} were busy {100 * busy:.0f} % of the time"
                self.workers, self._idle, self._rest = needed, 0, self._next_rest
            bound = self._gained
        self.why = "; ".join(dict.fromkeys(filter(None, [self._gained, bound, waits])))
        return self.workers

    def _judge_try(self, rate: float) -> None:
        """Keeps as many workers as the gain speaks for: each must bring at least a tenth of its share."""
        assert self._tried_from is not None
        (count, before), self._tried_from = self._tried_from, None
        gain = rate / before
        useful = min(self.workers, max(count, math.ceil(count * gain - 0.1)))
        self._gained = f"{self.workers} give {gain:.2f} times as much as {count}"
        if useful < self.workers:
            self._rest, self._next_rest = self._next_rest, 2 * self._next_rest
        self.workers = useful


class Tuned(Executor):
    """Worker processes of which as many work as bring something."""

    shares_counts = True

    def __init__(self, pool: Processes):
        self.parallelism = pool.parallelism
        self.block_bytes = pool.block_bytes
        self.keeps_all = pool.keeps_all
        self._pool = pool
        self._tuner = Tuner(pool.parallelism)
        self._resized = math.inf
        self._begin(0.0)

    def _begin(self, now: float) -> None:
        """Begins a window."""
        self._begun = now
        self._waited_s = self._busy_s = 0.0
        self._rows = self._blocks = 0

    def members(self) -> tuple[int, str]:
        return self._tuner.workers, self._tuner.why

    def deaths(self) -> int:
        return self._pool.deaths()

    def stretch(self) -> int:
        return self._tuner.stretch

    def submit(self, task: Task) -> Ticket:
        return self._pool.submit(task)

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        asked = time.perf_counter()
        result, seconds = self._pool.wait(ticket)
        now = time.perf_counter()
        warming = now - self._resized < WARM_S and not self._pool.all_have_served()
        if warming or not self._begun:
            self._begin(now)  # with the first result, and when new workers have begun
            return result, seconds
        self._waited_s += now - asked
        self._busy_s += seconds
        self._rows += len(result.rows)
        self._blocks += 1
        elapsed_s = now - self._begun
        if elapsed_s >= WINDOW_S and self._blocks >= 2 * self._tuner.workers and self._rows:
            busy = min(1.0, self._busy_s / (elapsed_s * self._tuner.workers))
            workers = self._tuner.judge(rate=self._rows / elapsed_s, waiting=self._waited_s / elapsed_s, busy=busy)
            self._pool.resize(workers)
            self._resized = now
            self._begin(now)
        return result, seconds

    def forget(self, tickets: list[Ticket]) -> None:
        self._pool.forget(tickets)

    def close(self) -> None:
        self._pool.close()
