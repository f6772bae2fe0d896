"""Times a stream from outside: wrappers around the cursors and executors of a stream whose stages are timed."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from concurrent.futures import Future
from typing import Any

from bushel._src.base.blocks import Block
from bushel._src.engine import measurements
from bushel._src.engine.delivery import Delivery
from bushel._src.engine.measurements import DELIVERY, THREAD, Pool, SkippedElements, Stage, Tally
from bushel._src.engine.program import Result
from bushel._src.engine.report import Report
from bushel._src.engine.shared_memory import DmaMapper
from bushel._src.engine.tasks import Executor, ExecutorAround, Task, Ticket, wait_and_check
from bushel._src.engine.threaded_cursor import ThreadedCursor
from bushel._src.engine.transfer import Put, TransferCursor, TransferTimes
from bushel._src.graph.cursors import Cursor, Same, Skips
from bushel._src.graph.node import Node
from bushel._src.graph.streams import StreamNode

_DELIVERY = -1


class Observer:
    """The figures of an open stream: its pools, transfers and skips; and the times of its stages, if they are timed."""

    def __init__(self) -> None:
        self.skips: Skips | None = None
        self._timed = False
        self._stages: list[Node] = []
        self._marked: set[int] = set()
        self._tally: Tally = {}
        self._pools: list[Executor | _WatchedThread] = []
        self._transfers: list[TransferTimes] = []
        self._elements = 0
        self._first: float | None = None
        self._last = 0.0
        self._waited_s = 0.0

    def time_stages(self, node: StreamNode) -> StreamNode:
        """Return a copy of a stream whose stages are timed."""
        self._timed = True
        return measurements.number_stages(node, self._stages)

    def make_inner(self, skips: Skips | None) -> Observer:
        """Return an observer for a stream inside a user's dataset. Its pools count here; `skips` counts its skips."""
        part = copy.copy(self)
        part.skips = skips
        return part

    def watch_cursor(self, node: StreamNode, cursor: Cursor, *, marked: bool = False) -> Cursor:
        """Return a cursor whose pulls are timed as those of a node.

        Args:
          marked: whether a prefetch follows the node, and the node runs in the consumer all the same.
        """
        number = measurements.get_number(node)
        if number is None:
            return cursor
        if marked:
            self._marked.add(number)
        return _TimedCursor(cursor, number)

    def watch_delivery(self, cursor: Delivery) -> Cursor:
        """Return a cursor that times how long the results of an executor take to unpack and put into order."""
        return _TimedDelivery(cursor) if self._timed else cursor

    def watch_stream(self, cursor: Cursor) -> Cursor:
        """Return a cursor that times how long the rows of a whole stream in a worker take to unpack."""
        return _TimedCursor(cursor, _DELIVERY) if self._timed else cursor

    def watch_executor(self, executor: Executor) -> Executor:
        """Return an executor of this stream. It is measured if stages are timed."""
        watched = _WatchedExecutor(executor) if self._timed else executor
        self._pools.append(watched)
        return watched

    def pull_ahead(self, cursor: Cursor, size: int) -> Cursor:
        """Return a cursor whose rows a thread pulls ahead. The stages in that thread are timed, too."""
        if not self._timed:
            return ThreadedCursor(cursor, size, self.skips)
        thread = _WatchedThread(cursor)
        self._pools.append(thread)
        return _AwaitedCursor(ThreadedCursor(thread, size, self.skips), thread)

    def send_to_device(self, cursor: Cursor, put: Put, size: int, place: str, mapper: DmaMapper | None) -> Cursor:
        """Return a cursor that copies rows to devices. Its transfers are measured even if stages are not timed."""
        times = TransferTimes(place, mapper)
        self._transfers.append(times)
        return TransferCursor(cursor, put, size, times, lambda sent: self.pull_ahead(sent, size), self.skips, mapper)

    def watch_output(self, cursor: Cursor) -> Cursor:
        """Return the last cursor of the stream, from which the consumer pulls."""
        return _Outlet(cursor, self) if self._timed else cursor

    def pull(self, cursor: Cursor, count: int) -> Block:
        """Pull for the consumer, and measure how long it waits."""
        begun = time.perf_counter()
        if self._first is None:
            self._first = begun
        try:
            with measurements.measure_into(self._tally):
                block = cursor.pull(count)
        finally:
            self._last = time.perf_counter()
            self._waited_s += self._last - begun
        self._elements += len(block)
        return block

    def report(self) -> Report:
        """Return all figures as they are now. Any thread may call this, also while the consumer waits in `next`."""
        tallies: dict[str, Tally] = {"consumer": self._tally.copy()}
        for pool in self._pools:
            if isinstance(pool, _WatchedExecutor | _WatchedThread):
                measurements.add(tallies.setdefault(pool.kind, {}), pool.tally.copy())
        stages = [
            Stage(number, self._call(number), where, int(count), seconds, int(size), number in self._marked)
            for where, spent in tallies.items()
            for number, (count, seconds, size) in spent.items()
        ]
        # Delivery stands between the stages that ran ahead and those that the consumer runs after them.
        last_ahead = max((stage.number for stage in stages if stage.where not in ("consumer", THREAD)), default=0)
        stages.sort(key=lambda stage: last_ahead + 0.5 if stage.number == _DELIVERY else stage.number)
        return Report(
            timed=self._timed,
            stages=tuple(stages),
            pools=tuple(pool.report() for pool in self._pools),
            elements=self._elements,
            elapsed_s=0.0 if self._first is None else self._last - self._first,
            waited_s=self._waited_s,
            transfers=tuple(times.report() for times in self._transfers),
            skipped=0 if self.skips is None else self.skips.count,
            skips=() if self.skips is None else tuple(SkippedElements(*note) for note in list(self.skips.latest)),
        )

    def _call(self, number: int) -> str:
        return DELIVERY if number == _DELIVERY else self._stages[number].call()


class _TimedCursor(Same):
    """A cursor whose pulls are timed."""

    def __init__(self, cursor: Cursor, number: int):
        super().__init__(cursor)
        self._number = number

    def pull(self, count: int) -> Block:
        with measurements.timed(self._number) as made:
            made.append(self.parent.pull(count))
        return made[0]


class _TimedDelivery(Same):
    """A delivery whose work on the results of an executor is timed. Steps that run in the consumer time themselves."""

    def __init__(self, cursor: Delivery):
        super().__init__(cursor)
        self._delivery = cursor

    def pull(self, count: int) -> Block:
        with measurements.timed(None if self._delivery.is_here else _DELIVERY) as made:
            made.append(self._delivery.pull(count))
        return made[0]


class _Outlet(Same):
    """The last cursor of a stream. It measures how long the consumer waits."""

    def __init__(self, cursor: Cursor, observer: Observer):
        super().__init__(cursor)
        self._observer = observer

    def pull(self, count: int) -> Block:
        return self._observer.pull(self.parent, count)


class _WatchedThread(Same):
    """The cursor that a thread pulls ahead. Its stages have a tally of their own."""

    kind = THREAD

    def __init__(self, cursor: Cursor):
        super().__init__(cursor)
        self.tally: Tally = {}
        self.wait_s = 0.0
        self.asked = 0
        self.ready = 0
        self.ready_now = 0

    def pull(self, count: int) -> Block:
        with measurements.measure_into(self.tally):
            return self.parent.pull(count)

    def report(self) -> Pool:
        """Return the thread's figures. It is busy while its stages compute, and not while it waits for others."""
        busy_s = sum(seconds for _, seconds, _ in self.tally.copy().values())
        return Pool(THREAD, 1, "", busy_s, self.wait_s, self.ready / max(1, self.asked), self.ready_now)


class _AwaitedCursor(Same):
    """The rows that a thread has pulled. Measures how long the consumer waits for them; no stage gets this time."""

    def __init__(self, cursor: ThreadedCursor, thread: _WatchedThread):
        super().__init__(cursor)
        self._cursor, self._thread = cursor, thread

    def pull(self, count: int) -> Block:
        begun, thread = time.perf_counter(), self._thread
        thread.asked += 1
        thread.ready += self._cursor.count_ready()
        try:
            return self._cursor.pull(count)
        finally:
            waited_s = time.perf_counter() - begun
            thread.ready_now = self._cursor.count_ready()
            thread.wait_s += waited_s
            measurements.exclude(waited_s)


class _WatchedExecutor(ExecutorAround):
    """An executor whose results bring the times of their stages. Measures how long the consumer waits for results."""

    def __init__(self, executor: Executor):
        super().__init__(executor)
        self.tally: Tally = {}
        self._busy_s = 0.0
        self._wait_s = 0.0
        self._ready_blocks = 0
        self._blocks = 0
        self._under_way: dict[Future[Any], float | None] = {}
        """When each result arrived; None before. The key is the future: a result must not be part of a cycle."""
        self._lock = threading.Lock()

    def submit(self, task: Task) -> Ticket:
        ticket = self._executor.submit(task)
        self._under_way[ticket.done] = None
        ticket.done.add_done_callback(self._done)
        return ticket

    def _done(self, done: Future[Any]) -> None:
        with self._lock:  # otherwise `_remove` on another thread could come between these two lines
            if done in self._under_way:
                self._under_way[done] = time.perf_counter()

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        begun, ran_before_s = time.perf_counter(), time.thread_time()
        self._ready_blocks += self._count_ready()
        self._blocks += 1
        try:
            result, seconds = wait_and_check(self._executor, ticket)
        finally:
            now, ran_s = time.perf_counter(), time.thread_time() - ran_before_s
            done = self._remove(ticket) or now
            # When the result has arrived, this thread unpacks it. On a busy machine it may get a core for that only
            # later: what it waits for a core is waiting, too, and says nothing about delivery.
            waited_s = max(0.0, done - begun, now - begun - ran_s)
            self._wait_s += waited_s
            measurements.exclude(waited_s)
        self._busy_s += seconds
        measurements.add(self.tally, result.tally or {})
        return result, seconds

    def _count_ready(self) -> int:
        """Return how many results have arrived that the consumer has not asked for."""
        return sum(done is not None for done in list(self._under_way.values()))

    def forget(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self._remove(ticket)
        self._executor.forget(tickets)

    def _remove(self, ticket: Ticket) -> float | None:
        with self._lock:
            return self._under_way.pop(ticket.done, None)

    def report(self) -> Pool:
        ready = self._ready_blocks / max(1, self._blocks)
        figures = {"busy_s": self._busy_s, "wait_s": self._wait_s, "ready_blocks": ready}
        return dataclasses.replace(self._executor.report(), **figures, ready_now=self._count_ready())
