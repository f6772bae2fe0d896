"""Requests to remote files: near ranges become one request, and shared threads make many requests at once.

Many callers share the threads; no caller waits for more than its own requests. A `ThreadPoolExecutor` would do the same
with one Future per request, which costs more CPU time (`benchmarks/results/stores.md`).
"""

from __future__ import annotations

import collections
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from bushel._src.base.background import start_thread

_MERGE_BYTES = 64 * 1024
"""Ranges that are nearer than this become one request: reading the gap costs less than a round trip."""
_MERGED_BYTES = 4 << 20
"""About how large a request of merged ranges becomes. Several requests at once are faster than a very large one,
because stores limit the speed of each connection."""


def merge_ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[list[int], list[int], list[int]]:
    """Merge ranges that are near each other. Return starts and ends, and for each given range its merged one."""
    order = np.argsort(starts, kind="stable")
    begins = starts[order]
    ends = begins + lengths[order]
    apart = np.append(0, np.flatnonzero(begins[1:] > np.maximum.accumulate(ends)[:-1] + _MERGE_BYTES) + 1)
    # A group of near ranges is cut where a range begins in another section of the group than the range before it.
    group = apart.searchsorted(np.arange(len(order)), "right") - 1
    section = (begins - begins[apart][group]) // _MERGED_BYTES
    first = np.append(0, np.flatnonzero(np.diff(group) | np.diff(section)) + 1)
    which = np.empty(len(order), np.int64)
    which[order] = first.searchsorted(np.arange(len(order)), "right") - 1
    return begins[first].tolist(), np.maximum.reduceat(ends, first).tolist(), which.tolist()


def scatter(data: Any, buffers: Sequence[Any]) -> None:
    """Copy bytes into writable buffers, one after the other."""
    view = memoryview(data)
    for buffer, part in zip(buffers, _cut(view, buffers)):
        memoryview(buffer).cast("B")[:] = part


def _cut(view: memoryview, buffers: Sequence[Any]) -> Iterator[memoryview]:
    low = 0
    for buffer in buffers:
        yield view[low : low + len(buffer)]
        low += len(buffer)


T = TypeVar("T")


def get_threads(name: str, most: int) -> RequestThreads:
    """Return the threads of this name in this process.

    After a fork, the threads of the parent do not exist in the child.
    """
    return _make_threads(os.getpid(), name, most)


@functools.cache
def _make_threads(process: int, name: str, most: int) -> RequestThreads:
    del process
    return RequestThreads(name, most)


class RequestThreads:
    """Up to `most` threads, which are started when they are needed.

    >>> RequestThreads("doc", 2).map(len, ["a", "bb", "ccc"])
    [1, 2, 3]
    """

    def __init__(self, name: str, most: int):
        self._most, self._name = most, name
        self._work: queue.SimpleQueue[_SharedWork | None] = queue.SimpleQueue()
        self._started = 0
        self._starting = threading.RLock()  # a signal handler may read while this thread starts others
        self._idle = 0
        self._counting = threading.Lock()  # only the threads themselves take it

    def map(self, request: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """Return the results of `request` for each item, in order. Raise the error of the first item that has one."""
        if not len(items):
            return []
        helpers = min(len(items), self._most)
        work = _SharedWork(request, items, helpers)
        try:
            with self._starting:
                for _ in range(min(self._work.qsize() + helpers - self._idle, self._most - self._started)):
                    start_thread(f"{self._name}-{self._started}", self._end_one, self._run)
                    self._started += 1
            for _ in range(helpers):
                self._work.put(work)
            return work.wait()
        except BaseException:  # perhaps a signal: begin no other requests, and do not wait for those in flight
            work.give_up()
            raise

    def _end_one(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while True:
            self._count_idle(1)
            work = self._work.get()
            self._count_idle(-1)
            if work is None:
                return
            work.help()
            del work  # an idle thread keeps nothing alive

    def _count_idle(self, change: int) -> None:
        with self._counting:
            self._idle += change


class _SharedWork:
    """The items of one call. Each thread that helps takes the next item until none is left."""

    def __init__(self, request: Callable[[Any], Any], items: Sequence[Any], helpers: int):
        self._request, self._items = request, items
        self._rest = collections.deque(range(len(items)))
        self._results: list[Any] = [None] * len(items)
        self._failures: list[tuple[int, BaseException]] = []
        self._helpers = collections.deque(range(helpers))  # one for each thread that has not ended its help
        self._last = helpers - 1
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def help(self) -> None:
        number = 0
        try:
            while self._rest:
                try:
                    number = self._rest.popleft()
                except IndexError:  # another thread has taken the last one
                    break
                self._results[number] = self._request(self._items[number])
        except BaseException as error:
            self.give_up()
            self._failures.append((number, error))
        finally:
            if self._helpers.popleft() == self._last:  # the caller is woken once, not by every thread
                self._done.put(None)

    def wait(self) -> list[Any]:
        self._done.get()
        if self._failures:
            # Items are taken in order, so every item before one that failed was tried as well.
            raise min(self._failures, key=lambda failure: failure[0])[1]
        return self._results

    def give_up(self) -> None:
        """Let no thread begin another item."""
        self._rest.clear()
