"""A thread that pulls any stream ahead, element by element, and keeps the position after each element."""

from __future__ import annotations

import collections
import os
import threading
import weakref
from typing import Any

from bushel._src.base import blocks
from bushel._src.base.background import start_thread
from bushel._src.base.blocks import Block
from bushel._src.engine import tasks
from bushel._src.engine.program import get_user_error
from bushel._src.engine.tasks import FORKED
from bushel._src.graph.cursors import CLOSED, Cursor, Mark, SkipNote, Skips, State, collect_skips, count_collected

_CLOSE_S = 1.0
_END = object()


class _Queue:
    """What the thread has pulled and the consumer has not: (row, position after it, skips before it).

    In place of a row there may be an error or the end of the stream.
    """

    def __init__(self, size: int):
        self.size = size
        self.ready: collections.deque[tuple[Any, Any, list[SkipNote]]] = collections.deque()
        self.changed = threading.Condition()
        self.stopped = False
        self.pulling = False
        """Whether the thread uses the parent now. No other thread may move the parent then."""
        self.process = os.getpid()

    def check_process(self) -> None:
        """Raise an error in a forked child: it has a copy of the queue, but not the thread that fills it."""
        if os.getpid() != self.process:
            raise RuntimeError(FORKED)

    def stop(self) -> None:
        if os.getpid() != self.process:
            return
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


class _Failed:
    def __init__(self, error: BaseException):
        self.error = error


class ThreadedCursor(Cursor):
    """The rows of another cursor. One thread pulls up to `size` of them ahead.

    Its state is that after the last row that the consumer has. The thread starts with the first pull, and ends with the
    cursor. A skipped element is counted when the consumer gets the row after it.
    """

    def __init__(self, parent: Cursor, size: int, skips: Skips | None = None):
        self.parents = (parent,)
        self._parent = parent
        self._size = size
        self._skips = skips
        self._mark = parent.mark()
        self._queue: _Queue | None = None
        self._thread: threading.Thread | None = None
        self._ended = False

    def pull(self, count: int) -> Block:
        if self._ended:
            return []
        queue = self._start()
        queue.check_process()
        rows: list[Any] = []
        skipped: list[SkipNote] = []
        waited_s = 0.0
        with queue.changed:
            while not queue.ready:
                if queue.stopped:
                    raise ValueError(CLOSED)
                if not queue.changed.wait(tasks.STALL_S):
                    waited_s += tasks.STALL_S
                    tasks.warn(waited_s, tasks.describe_threads(filter(None, [self._thread]), idle=""))
            while queue.ready and len(rows) < count and not isinstance(queue.ready[0][0], _Failed):
                row, self._mark, before = queue.ready.popleft()
                skipped += before
                if row is _END:
                    self._ended = True
                    break
                rows.append(row)
            queue.changed.notify_all()
            failed, _, before = queue.ready[0] if not rows and not self._ended else (None, None, [])
        count_collected(self._skips, skipped + before)
        if failed is not None:
            self._stop_thread()
            self._parent.rewind(self._mark)
            raise failed.error
        return rows

    def count_ready(self) -> int:
        """Return how many elements the thread has pulled that nobody has asked for."""
        queue = self._queue
        return 0 if queue is None else len(queue.ready)

    def is_ready(self) -> bool:
        return self.count_ready() > 0

    def _start(self) -> _Queue:
        queue = self._queue
        if queue is None:
            queue = _Queue(self._size)
            weakref.finalize(self, queue.stop).atexit = False
            self._queue = queue
            self._thread = start_thread("bushel-pull", queue.stop, _pull_ahead, self._parent, queue, self._skips)
        return queue

    def _stop_thread(self, timeout_s: float | None = None) -> None:
        """End the thread, after the element that it pulls now."""
        queue = self._queue  # a copy: another thread may call `close` meanwhile
        if queue is not None and self._thread is not threading.current_thread():
            queue.check_process()
            queue.stop()
            # Not by `join`: after Ctrl-C inside `join`, Python counts the thread as ended although it is alive.
            with queue.changed:
                queue.changed.wait_for(lambda: not queue.pulling, timeout_s)
        self._queue = self._thread = None

    def mark(self) -> Mark:
        return self._mark

    def rewind(self, mark: Mark) -> None:
        self._stop_thread()
        self._parent.rewind(mark)
        self._mark, self._ended = mark, False

    def state_of(self, mark: Mark) -> State:
        return self._parent.state_of(mark)

    def mark_of(self, state: State) -> Mark:
        self._stop_thread()
        return self._parent.mark_of(state)

    def catch_up(self) -> None:
        if self._queue is None:  # otherwise the thread is past this position already
            super().catch_up()

    def get_next_index(self) -> int:
        if self._queue is not None:
            self._stop_thread()
            self._parent.rewind(self._mark)  # the thread has moved the parent further
        return self._parent.get_next_index()

    def set_next_index(self, index: int) -> None:
        self._stop_thread()
        self._parent.set_next_index(index)
        self._mark, self._ended = self._parent.mark(), False

    def start_prefetch(self) -> None:
        if not self._ended:
            self._start()

    def close(self) -> None:
        queue = self._queue  # a copy: another thread may be in `pull`
        if queue is not None:
            if os.getpid() != queue.process:
                return  # in a forked child, everything belongs to the parent process
            queue.stop()
        self._parent.close()  # ends a pull of the thread that waits for workers
        self._stop_thread(_CLOSE_S)


def _pull_ahead(parent: Cursor, queue: _Queue, skips: Skips | None) -> None:
    while True:
        with queue.changed:
            while len(queue.ready) >= queue.size and not queue.stopped:
                queue.changed.wait()
            if queue.stopped:
                return
            queue.pulling = True
        item: tuple[Any, Any, list[SkipNote]]
        with collect_skips(skips) as skipped:
            try:
                block = parent.pull(1)
                item = (blocks.rows_of(block)[0] if len(block) else _END, parent.mark(), skipped)
            except BaseException as error:
                item = (_Failed(get_user_error(error)), None, skipped)
        with queue.changed:
            queue.ready.append(item)
            queue.pulling = False
            queue.changed.notify_all()
        if item[0] is _END or isinstance(item[0], _Failed):
            return
        del item
