"""A worker process: receives tasks, runs them and sends the results. It ends when its channel is closed."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import mmap
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from bushel._src.base import blocks, grain_names
from bushel._src.base.background import must_end
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.results import (
    call_init,
    forget_program,
    has_failed,
    pack_broken,
    pack_each_row,
    pack_error,
    pack_result,
)
from bushel._src.engine.processes.channel import Channel, Closed
from bushel._src.engine.processes.shared_areas import Whereabouts, load_object, write_stack_on_signal
from bushel._src.engine.program import CountBefore, Misfit, Program
from bushel._src.engine.shared_memory import Slot
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import Aborted, Doing, become_worker, run_task

_MADV_POPULATE_WRITE = 23  # Python's mmap has no name for it
_WORTH_POPULATING = 1 << 20


def main(descriptor: int) -> None:
    """Serve one channel until it is closed.

    Args:
      descriptor: of the channel's socket.
    """
    become_worker()
    # A process that the user's function starts must not keep the channel open after this worker has died.
    os.set_inheritable(descriptor, False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Workers are killed in the end: text that is still in a buffer would be lost.
        sys.stdout.reconfigure(line_buffering=True)
    with contextlib.suppress(Closed):
        _ProcessWorker(Channel(socket.socket(fileno=descriptor))).serve()


class _ProcessWorker:
    """The state of the worker process. `_on_<kind>` handles a message of that kind."""

    def __init__(self, channel: Channel):
        self._channel = channel
        self._whereabouts: Whereabouts  # the pool sends it before anything else
        self._programs: dict[int, Program | StreamProgram] = {}
        self._arena: tuple[mmap.mmap, int] | None = None
        self._slots: dict[int, Slot] = {}
        self._largest_bytes = 0  # of the results in this arena
        # Messages that came while a task waited for its count.
        self._backlog: collections.deque[tuple[Any, list[int]]] = collections.deque()

    def serve(self) -> None:
        while True:
            (kind, *arguments), descriptors = self._backlog.popleft() if self._backlog else self._channel.receive()
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            if kind != "task":
                # A task sends the last answer with its first message. Other kinds send nothing, and may take long.
                self._channel.flush()
            try:
                getattr(self, f"_on_{kind}")(*arguments, *descriptors)
            except (Closed, SystemExit):
                raise
            except BaseException as error:
                # Errors of the user's functions are caught further in. Any other worker would fail in the same way.
                self._give_up(f"A worker process failed at {kind!r}, which is a fault of Bushel's.", error)

    def _on_whereabouts(self, descriptor: int) -> None:
        self._whereabouts = Whereabouts(descriptor)

    def _on_stacks(self, descriptor: int) -> None:
        write_stack_on_signal(descriptor)

    def _on_setup(
        self, folder: str, path: list[str], variables: dict[str, str], init: bytes, index: int, count: int
    ) -> None:
        """Make the environment of this process that of the consumer, and call the user's `worker_init_fn`."""
        with contextlib.suppress(OSError):  # the folder may be gone
            os.chdir(folder)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(variables)
        grain_names.install_where_asked()
        self._whereabouts.begin(Doing.INIT)
        try:
            call_init(init, index, count)
        except BaseException as error:
            self._give_up("worker_init_fn failed.", error)
        self._whereabouts.end()

    def _on_program(self, number: int, size: int, extents: list[tuple[int, int]], descriptor: int) -> None:
        self._whereabouts.begin(Doing.LOADING, number)
        try:
            with wire.track_pipeline_classes():
                self._programs[number] = load_object(descriptor, size, extents)
        except BaseException as error:
            self._give_up("A worker process cannot load the pipeline.", error)
        self._whereabouts.end()

    def _give_up(self, sentence: str, error: BaseException) -> NoReturn:
        """Send the consumer an error that ends the pool, and ends this worker."""
        self._channel.send(pack_broken(sentence, error))
        raise Closed from None

    def _on_forget(self, number: int) -> None:
        forget_program(self._programs, number)

    def _on_arena(self, slot_bytes: int, descriptor: int) -> None:
        self._slots.clear()  # they look into the old arena
        self._largest_bytes = 0
        self._arena = (mmap.mmap(descriptor, 0), slot_bytes)
        os.close(descriptor)

    def _get_slot(self, number: int | None) -> Slot | None:
        """Return the slot of that number, empty; None if the task has none."""
        if number is None or self._arena is None:
            return None
        if number not in self._slots:
            shared, size = self._arena
            if self._largest_bytes >= _WORTH_POPULATING and sys.platform == "linux":
                with contextlib.suppress(OSError):  # a kernel before 5.14
                    # All pages at once: that takes half the time of a page fault for each.
                    shared.madvise(_MADV_POPULATE_WRITE, number * size, min(self._largest_bytes, size))
            self._slots[number] = Slot(memoryview(shared)[number * size : (number + 1) * size])
        slot = self._slots[number]
        slot.reset()
        return slot

    def _on_task(
        self,
        task: int,
        program: int,
        low: int,
        high: int,
        counts: list[int] | None,
        slot_number: int | None,
        careful: bool,
        row_by_row: bool,
        given: Any,
        descriptor: int | None = None,
    ) -> None:
        """Run a task and send its result.

        Args:
          careful: whether a worker has died over these positions. Then this one runs row by row and says which row it
            is at, so that the pool knows which one kills. It sends each row as soon as it has it, so that a worker
            that dies loses one row and not the block.
          given: (size, places, first position) of the rows in `descriptor`, or the start of a stream.
        """
        self._channel.send(("begun", task))
        start = time.perf_counter()
        runs, where = self._programs[program], self._whereabouts
        pack = functools.partial(pack_result, runs, row_by_row=row_by_row)
        slot = self._get_slot(slot_number)
        answer: tuple[Any, ...]
        try:
            first = low
            if descriptor is not None:
                *given, first = given
                given = load_object(descriptor, *given)
            elif given is not None:
                given = given[0], pickle.loads(given[1])
            if careful and isinstance(runs, Program):
                self._run_rows(task, runs, low, high, counts, given, first, pack)
                answer = ("rows", task)
            else:
                allocator = None if slot is None else slot.make_array
                count_before = self._make_count_before(task, counts, "count")
                announce = functools.partial(where.begin, Doing.ROW, task) if careful else None
                where.begin(Doing.BLOCK, task, low, high)
                result = run_task(runs, low, high, count_before, announce, given, allocator)
                if announce is not None:
                    pack_each_row(runs, low, result, announce)
                    where.begin(Doing.BLOCK, task, low, high)
                packed, details = pack(result, functools.partial(wire.pack, slot=slot))
                self._largest_bytes = max(self._largest_bytes, packed.slot_bytes)
                del result  # frees the rows while their copies are being sent
                answer = ("done", task, packed, details, time.perf_counter() - start)
        except Aborted:
            answer = ("aborted", task)
        except Misfit:
            answer = ("misfit", task)
        except BaseException as error:
            if must_end(error):
                raise
            answer = ("failed", task, *pack_error(error))
        where.end()
        self._channel.send_later(answer)  # in one message with the "begun" of the next task, if that is there

    def _run_rows(
        self,
        task: int,
        program: Program,
        low: int,
        high: int,
        counts: list[int] | None,
        given: Any,
        first: int,
        pack: Callable[..., Any],
    ) -> None:
        """Run a task row by row, with nothing else in between, and send each row, until one fails."""
        where = self._whereabouts
        while low < high:
            start = time.perf_counter()
            end = min(low + program.unit, high)
            rows = None if given is None else blocks.slice_block(given, low - first, end - first)
            count_before = self._make_count_before(task, counts, "ask")
            where.begin(Doing.ROW, task, low, end)
            result = run_task(program, low, end, count_before, where.move, rows)
            packed, details = pack(result, functools.partial(wire.pack, slot=None))
            where.end()
            self._channel.send(("row", task, end, packed, details, result.after, time.perf_counter() - start))
            if has_failed(details):
                break
            low, counts = end, result.after

    def _make_count_before(self, task: int, counts: list[int] | None, kind: str) -> CountBefore:
        """Return a function that returns how many elements have reached a counting step before a block or row.

        Args:
          counts: these numbers, if they are known; otherwise the pool is asked, with a message of that `kind`.
        """

        def count_before(step: int, count: int) -> int:
            self._whereabouts.count(step + 1)
            if counts is not None:
                return counts[step]
            doing = self._whereabouts.pause()
            self._channel.send((kind, task, step, count))
            while (reply := self._channel.receive())[0][0] not in ("before", "abort"):
                self._backlog.append(reply)  # the next task, which was sent before the count
            if reply[0][0] == "abort":
                raise Aborted
            self._whereabouts.resume(doing)
            return reply[0][1]

        return count_before
