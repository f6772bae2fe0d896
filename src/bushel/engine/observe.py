"""Observation from outside: wrappers around cursors and executors of a stream whose stages are timed.

A stream that is not timed has none of them.
"""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import Future
from typing import Any

from bushel.base.blocks import Block
from bushel.engine import tally
from bushel.engine.delivery import Delivery
from bushel.engine.dma import DmaMapper
from bushel.engine.program import Result
from bushel.engine.pulling import ThreadedCursor
from bushel.engine.report import DELIVERY, THREAD, Pool, Report, Skip, Stage
from bushel.engine.tally import Tally
from bushel.engine.tasks import Executor, Task, Ticket, awaited
from bushel.engine.transfer import Put, TransferCursor, TransferTimes
from bushel.graph.cursors import Cursor, Same
from bushel.graph.node import Node
from bushel.graph.skips import Skips
from bushel.graph.streams import StreamNode

_DELIVERY = -1


class Observer:
    """What is known of an open stream: what its stages take, if they are timed, and in any case its pools."""

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

    def watching(self, node: StreamNode) -> StreamNode:
        """The same stream, with stages that are timed from now on."""
        self._timed = True
        return tally.number_stages(node, self._stages)

    def of_part(self, skips: Skips | None) -> Observer:
        """For a stream that a user's dataset draws from: its pools belong here, what it skips goes to `skips`."""
        part = copy.copy(self)
        part.skips = skips
        return part

    def cursor(self, node: StreamNode, cursor: Cursor, *, marked: bool = False) -> Cursor:
        """The cursor of a node, timed under the number that the node has.

        It is `marked` where it could be computed ahead by an executor, and is not.
        """
        number = tally.number_of(node)
        if number is None:
            return cursor
        if marked:
            self._marked.add(number)
        return _TimedCursor(cursor, number)

    def delivery(self, cursor: Delivery) -> Cursor:
        """A cursor that puts results in order, timed."""
        return _TimedDelivery(cursor) if self._timed else cursor

    def stream_delivery(self, cursor: Cursor) -> Cursor:
        """A cursor that takes the rows of a stream from a worker, timed."""
        return _TimedCursor(cursor, _DELIVERY) if self._timed else cursor

    def executor(self, executor: Executor) -> Executor:
        """An executor of this stream; it is watched where stages are timed."""
        known = _WatchedExecutor(executor) if self._timed else executor
        self._pools.append(known)
        return known

    def pulled(self, cursor: Cursor, size: int) -> Cursor:
        """The rows of a cursor, pulled ahead by a thread; what that does is timed too."""
        if not self._timed:
            return ThreadedCursor(cursor, size, self.skips)
        thread = _WatchedThread(cursor)
        self._pools.append(thread)
        return _AwaitedCursor(ThreadedCursor(thread, size, self.skips), thread)

    def to_device(self, cursor: Cursor, put: Put, size: int, place: str, mapper: DmaMapper | None) -> Cursor:
        """The rows of a cursor on devices. Its figures are taken in any case."""
        times = TransferTimes(place, mapper)
        self._transfers.append(times)
        return TransferCursor(cursor, put, size, times, lambda sent: self.pulled(sent, size), self.skips, mapper)

    def outlet(self, cursor: Cursor) -> Cursor:
        """The last cursor of the stream, the one that the consumer asks."""
        return _Outlet(cursor, self) if self._timed else cursor

    def pull(self, cursor: Cursor, count: int) -> Block:
        """Pulls for the consumer, and enters what it took."""
        begun = time.perf_counter()
        if self._first is None:
            self._first = begun
        try:
            with tally.taken(self._tally):
                block = cursor.pull(count)
        finally:
            self._last = time.perf_counter()
            self._waited_s += self._last - begun
        self._elements += len(block)
        return block

    def report(self) -> Report:
        """All figures as they are now. May be asked from any thread, also while an element is being waited for."""
        tallies: dict[str, Tally] = {"consumer": self._tally.copy()}
        for pool in self._pools:
            if isinstance(pool, _WatchedExecutor | _WatchedThread):
                tally.add(tallies.setdefault(pool.kind, {}), pool.tally.copy())
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
            pools=tuple(_pool_of(pool) for pool in self._pools),
            elements=self._elements,
            elapsed_s=0.0 if self._first is None else self._last - self._first,
            waited_s=self._waited_s,
            transfers=tuple(times.report() for times in self._transfers),
            skipped=0 if self.skips is None else self.skips.count,
            skips=() if self.skips is None else tuple(Skip(*note) for note in list(self.skips.latest)),
        )

    def _call(self, number: int) -> str:
        return DELIVERY if number == _DELIVERY else self._stages[number].call()


class _TimedCursor(Same):
    """A cursor whose pulls are timed."""

    def __init__(self, cursor: Cursor, number: int):
        super().__init__(cursor)
        self._number = number

    def pull(self, count: int) -> Block:
        with tally.timed(self._number) as stage:
            block = self.parent.pull(count)
            stage.made(block)
        return block


class _TimedDelivery(Same):
    """Rows of an executor: putting them in order is timed. Rows that are computed here time themselves."""

    def __init__(self, cursor: Delivery):
        super().__init__(cursor)
        self._delivery = cursor

    def pull(self, count: int) -> Block:
        if self._delivery.is_here:
            return self._delivery.pull(count)
        with tally.timed(_DELIVERY) as stage:
            block = self._delivery.pull(count)
            stage.made(block)
        return block


class _Outlet(Same):
    """What the consumer asks: its waiting is counted."""

    def __init__(self, cursor: Cursor, observer: Observer):
        super().__init__(cursor)
        self._observer = observer

    def pull(self, count: int) -> Block:
        return self._observer.pull(self.parent, count)


class _WatchedThread(Same):
    """What a thread pulls: its stages are timed apart from the consumer's."""

    kind = THREAD

    def __init__(self, cursor: Cursor):
        super().__init__(cursor)
        self.tally: Tally = {}
        self.wait_s = 0.0
        self.asked = 0
        self.ready = 0
        self.ready_now = 0

    def pull(self, count: int) -> Block:
        with tally.taken(self.tally):
            return self.parent.pull(count)

    def pool(self) -> Pool:
        """Its figures. It is busy with its stages, and not when it waits for others."""
        busy_s = sum(seconds for _, seconds, _ in self.tally.copy().values())
        return Pool(THREAD, 1, "", busy_s, self.wait_s, self.ready / max(1, self.asked), self.ready_now)


class _AwaitedCursor(Same):
    """The rows that a thread has pulled: waiting for it is counted, and belongs to no stage."""

    def __init__(self, cursor: ThreadedCursor, thread: _WatchedThread):
        super().__init__(cursor)
        self._cursor, self._thread = cursor, thread

    def pull(self, count: int) -> Block:
        begun, thread = time.perf_counter(), self._thread
        thread.asked += 1
        thread.ready += self._cursor.ready()
        try:
            return self._cursor.pull(count)
        finally:
            waited_s = time.perf_counter() - begun
            thread.ready_now = self._cursor.ready()
            thread.wait_s += waited_s
            tally.set_aside(waited_s)


class _WatchedExecutor(Executor):
    """An executor whose results bring what their stages took; counts how long they were waited for."""

    def __init__(self, executor: Executor):
        self._executor = executor
        self.parallelism = executor.parallelism
        self.block_bytes = executor.block_bytes
        self.kind = executor.kind
        self.keeps_all = executor.keeps_all
        self.shares_counts = executor.shares_counts
        self.tally: Tally = {}
        self.busy_s = 0.0
        self.wait_s = 0.0
        self.ready_blocks = 0
        self.blocks = 0
        self._under_way: dict[Future[Any], float | None] = {}
        """When each result was there, None before. By its future: a result must not be part of a cycle."""
        self._lock = threading.Lock()

    def members(self) -> tuple[int, str]:
        return self._executor.members()

    def deaths(self) -> int:
        return self._executor.deaths()

    def describe_nodes(self) -> tuple[str, ...]:
        return self._executor.describe_nodes()

    def stretch(self) -> int:
        return self._executor.stretch()

    def submit(self, task: Task) -> Ticket:
        ticket = self._executor.submit(task)
        self._under_way[ticket.done] = None
        ticket.done.add_done_callback(self._done)
        return ticket

    def _done(self, done: Future[Any]) -> None:
        with self._lock:  # whoever waited may be taking it out just now
            if done in self._under_way:
                self._under_way[done] = time.perf_counter()

    def wait(self, ticket: Ticket) -> tuple[Result, float]:
        begun = time.perf_counter()
        self.ready_blocks += self.ready_now()
        self.blocks += 1
        try:
            result, seconds = awaited(self._executor, ticket)
        finally:
            done = self._taken_out(ticket) or time.perf_counter()
            waited_s = max(0.0, done - begun)
            self.wait_s += waited_s
            tally.set_aside(waited_s)
        self.busy_s += seconds
        tally.add(self.tally, result.tally or {})
        return result, seconds

    def ready_now(self) -> int:
        """How many results are there that nobody has asked for."""
        return sum(done is not None for done in list(self._under_way.values()))

    def forget(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self._taken_out(ticket)
        self._executor.forget(tickets)

    def _taken_out(self, ticket: Ticket) -> float | None:
        with self._lock:
            return self._under_way.pop(ticket.done, None)

    def close(self) -> None:
        self._executor.close()


def _pool_of(executor: Executor | _WatchedThread) -> Pool:
    if isinstance(executor, _WatchedThread):
        return executor.pool()
    size, why = executor.members()
    deaths, nodes = executor.deaths(), executor.describe_nodes()
    if not isinstance(executor, _WatchedExecutor):
        return Pool(executor.kind, size, why, deaths=deaths, nodes=nodes)
    ready = executor.ready_blocks / max(1, executor.blocks)
    return Pool(executor.kind, size, why, executor.busy_s, executor.wait_s, ready, executor.ready_now(), deaths, nodes)
