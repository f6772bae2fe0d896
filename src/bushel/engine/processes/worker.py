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
from typing import Any, NoReturn

from bushel.base import alias
from bushel.engine.pool import wire
from bushel.engine.pool.exceptions import pack_error
from bushel.engine.pool.worker import call_init, forget_program, pack_broken, pack_each_row, pack_result
from bushel.engine.processes.channel import Channel, Closed
from bushel.engine.processes.stacks import write_stack_on_signal
from bushel.engine.processes.store import load_shared
from bushel.engine.program import Misfit, Program
from bushel.engine.slabs import Slot
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tasks import Aborted, become_worker, run_task

_MADV_POPULATE_WRITE = 23  # Python's mmap has no name for it
_WORTH_POPULATING = 1 << 20


def main(descriptor: int) -> None:
    """Serves one channel until it is closed.

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
        _Worker(Channel(socket.socket(fileno=descriptor))).serve()


class _Worker:
    """The state of the worker process. `_on_<kind>` handles a message of that kind."""

    def __init__(self, channel: Channel):
        self._channel = channel
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
                self._give_up(f"a worker process failed at {kind!r}, which is a fault of Bushel's", error)

    def _on_stacks(self, descriptor: int) -> None:
        write_stack_on_signal(descriptor)

    def _on_setup(
        self, folder: str, path: list[str], variables: dict[str, str], init: bytes, index: int, count: int
    ) -> None:
        """Makes the environment of this process that of the consumer, and calls the user's `worker_init_fn`."""
        with contextlib.suppress(OSError):  # the folder may be gone
            os.chdir(folder)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(variables)
        alias.install_where_asked()
        try:
            call_init(init, index, count)
        except BaseException as error:
            self._give_up("worker_init_fn failed", error)

    def _on_program(self, number: int, size: int, places: list[tuple[int, int]], descriptor: int) -> None:
        try:
            with wire.track_pipeline_classes():
                self._programs[number] = load_shared(descriptor, size, places)
        except BaseException as error:
            self._give_up("a worker cannot load the pipeline", error)

    def _give_up(self, what: str, error: BaseException) -> NoReturn:
        """Sends the consumer an error that ends the pool, and ends this worker."""
        self._channel.send(pack_broken(what, error))
        raise Closed from None

    def _on_forget(self, number: int) -> None:
        forget_program(self._programs, number)

    def _on_arena(self, slot_bytes: int, descriptor: int) -> None:
        self._slots.clear()  # they look into the old arena
        self._largest_bytes = 0
        self._arena = (mmap.mmap(descriptor, 0), slot_bytes)
        os.close(descriptor)

    def _get_slot(self, number: int | None) -> Slot | None:
        """The slot of that number, empty; None if the task has none."""
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
        announces: bool,
        row_by_row: bool,
        given: Any,
        descriptor: int | None = None,
    ) -> None:
        self._channel.send(("begun", task))
        start = time.perf_counter()
        slot = self._get_slot(slot_number)

        def count_before(step: int, count: int) -> int:
            if counts is not None:
                return counts[step]
            self._channel.send(("count", task, step, count))
            while (reply := self._channel.receive())[0][0] not in ("before", "abort"):
                self._backlog.append(reply)  # the next task, which was sent before the count
            if reply[0][0] == "abort":
                raise Aborted
            return reply[0][1]

        def announce(low: int, high: int) -> None:
            self._channel.send(("at", task, low, high))

        try:
            if descriptor is not None:
                given = load_shared(descriptor, *given)
            elif given is not None:
                given = given[0], pickle.loads(given[1])
            # A worker has died over this block. It announces each element, so that the pool knows which one kills.
            announcing = announce if announces else None
            in_place = None if slot is None else slot.make_array
            result = run_task(self._programs[program], low, high, count_before, announcing, given, in_place)
            if announces:
                pack_each_row(self._programs[program], low, result, announce)
            pack = functools.partial(wire.pack, slot=slot)
            packed, details = pack_result(self._programs[program], result, pack, row_by_row)
            self._largest_bytes = max(self._largest_bytes, packed.slot_bytes)
            del result  # frees the rows while their copies are being sent
            answer: tuple[Any, ...] = ("done", task, packed, details, time.perf_counter() - start)
        except Aborted:
            answer = ("aborted", task)
        except Misfit:
            answer = ("misfit", task)
        except SystemExit:
            raise  # the user's function has called sys.exit, so the process ends
        except BaseException as error:
            answer = ("failed", task, *pack_error(error))
        self._channel.send_later(answer)  # in one message with the "begun" of the next task, if that is there
