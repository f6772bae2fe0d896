"""Executors: where the elements of a map node are computed. They differ in that alone, never in the output."""

from __future__ import annotations

import abc
import collections
import dataclasses
import queue
import threading
import time
import weakref
from concurrent.futures import Future

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed
from bushel.graph.node import MapNode, Plan

PLAN_AHEAD = 8192
"""So many source indices are worked out at once: index arithmetic costs nanoseconds in bulk, microseconds alone."""

_FIRST_PLAN = 64
_TASK_S = 2e-3  # a task for a thread should last about so long, to outweigh handing it over


class Executor(abc.ABC):
    """Gives consecutive elements of one map node, from any position on."""

    @abc.abstractmethod
    def take(self, position: int, count: int) -> Block:
        """At least one and at most `count` elements from `position` on (all of them within the node's length).

        Raises RowFailed, with the row counted from `position`. Asked again after that, it computes again.
        """

    @abc.abstractmethod
    def start(self, position: int) -> None:
        """Begins to work ahead from `position`, where the executor does so at all."""

    @abc.abstractmethod
    def discard(self) -> None:
        """Forgets what was computed ahead."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends all work; blocks that are under way are abandoned."""


class Planner:
    """Plans of consecutive elements, in growing steps."""

    def __init__(self, node: MapNode):
        self._node = node
        self._most = max(1, PLAN_AHEAD // node.fan_in)
        self._size = min(_FIRST_PLAN, self._most)
        self._plan: Plan | None = None
        self._start = self._end = 0

    def at(self, position: int, count: int) -> tuple[Plan, int]:
        """A plan that holds `count` elements from `position` on, and where in it they start."""
        if self._plan is None or position < self._start or position + count > self._end:
            end = min(self._node.length, position + max(count, self._size))
            self._plan = self._node.plan(np.arange(position, end))
            self._start, self._end = position, end
            self._size = min(self._most, 2 * self._size)
        return self._plan, position - self._start


class Inline(Executor):
    """Computes what is asked for, when it is asked for. Only index arithmetic runs ahead."""

    def __init__(self, node: MapNode):
        self._planner = Planner(node)

    def take(self, position: int, count: int) -> Block:
        plan, low = self._planner.at(position, count)
        return plan.take(low, low + count)

    def start(self, position: int) -> None:
        pass

    def discard(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclasses.dataclass(slots=True)
class _Task:
    low: int
    high: int
    result: Future[tuple[Block, float]]


class Threads(Executor):
    """Computes ahead in threads, up to `buffer_size` elements; hands over in order.

    Tasks hold as many elements as fit a few milliseconds, so that cheap elements do not drown in hand-overs.
    """

    def __init__(self, node: MapNode, num_threads: int, buffer_size: int):
        self._node = node
        self._planner = Planner(node)
        self._num_threads = num_threads
        self._buffer_size = buffer_size
        self._chunk = 1
        self._most = max(1, buffer_size // num_threads)
        self._tasks: collections.deque[_Task] = collections.deque()
        self._next = 0  # first element that no task holds
        self._work: queue.SimpleQueue[tuple[_Task, Plan, int] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _stop, self._work, num_threads)

    def take(self, position: int, count: int) -> Block:
        self.start(position)
        task = self._tasks[0]
        try:
            block, seconds = task.result.result()
        except RowFailed:
            # The block is given up, and its elements are computed one by one from here: each fails for itself.
            self.discard()
            plan, low = self._planner.at(position, 1)
            return plan.take(low, low + 1)
        except BaseException:
            self.discard()
            raise
        self._learn(seconds / (task.high - task.low))
        high = min(task.high, position + count)
        if high == task.high:
            self._tasks.popleft()
            self._fill()
        return blocks.part_of(block, position - task.low, high - task.low)

    def start(self, position: int) -> None:
        if not self._tasks or not self._tasks[0].low <= position < self._tasks[0].high:
            self.discard()
            self._next = position
        self._fill()

    def discard(self) -> None:
        for task in self._tasks:
            task.result.cancel()
        self._tasks.clear()

    def close(self) -> None:
        self.discard()
        self._finalizer()

    def _learn(self, seconds_each: float) -> None:
        self._chunk = max(1, min(self._most, int(_TASK_S / max(seconds_each, 1e-7))))

    def _fill(self) -> None:
        if not self._threads:
            for number in range(self._num_threads):
                thread = threading.Thread(target=_serve, args=(self._work,), name=f"bushel-read-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        held = self._next - self._tasks[0].low if self._tasks else 0
        while held < self._buffer_size and self._next < self._node.length:
            count = min(self._chunk, self._buffer_size - held, self._node.length - self._next)
            plan, low = self._planner.at(self._next, count)
            task = _Task(self._next, self._next + count, Future())
            self._tasks.append(task)
            self._work.put((task, plan, low))
            self._next += count
            held += count


def _serve(work: queue.SimpleQueue[tuple[_Task, Plan, int] | None]) -> None:
    while (item := work.get()) is not None:
        task, plan, low = item
        if task.result.set_running_or_notify_cancel():
            begun = time.perf_counter()
            try:
                block = plan.take(low, low + task.high - task.low)
            except BaseException as error:
                task.result.set_exception(error)
            else:
                task.result.set_result((block, time.perf_counter() - begun))
        del item, task, plan  # an idle thread keeps nothing alive


def _stop(work: queue.SimpleQueue[tuple[_Task, Plan, int] | None], num_threads: int) -> None:
    for _ in range(num_threads):
        work.put(None)
