"""A worker process: takes tasks from its channel, runs them, answers. It ends when the channel does."""

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

import numpy as np

from bushel.base import alias, blocks
from bushel.base.memory import Allocator
from bushel.engine import shipping, stall, wire
from bushel.engine.program import Announce, Misfit, Program, Result
from bushel.engine.shipping import Told
from bushel.engine.slabs import Slot
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tasks import become_worker, run_task
from bushel.engine.wire import Channel, Packed


def main(descriptor: int) -> None:
    """Serves one channel until it ends."""
    become_worker()
    os.set_inheritable(descriptor, False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # workers are killed in the end, and what they keep is lost
    with contextlib.suppress(wire.Closed):
        _Worker(Channel(socket.socket(fileno=descriptor))).serve()


class _Worker:
    def __init__(self, channel: Channel):
        self._channel = channel
        self._programs: dict[int, Program | StreamProgram] = {}
        self._arena: tuple[mmap.mmap, int] | None = None
        self._slots: dict[int, Slot] = {}
        self._backlog: collections.deque[tuple[Any, list[int]]] = collections.deque()

    def serve(self) -> None:
        while True:
            (kind, *arguments), descriptors = self._backlog.popleft() if self._backlog else self._channel.receive()
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            if kind != "task":
                self._channel.flush()
            try:
                getattr(self, f"_on_{kind}")(*arguments, *descriptors)
            except (wire.Closed, SystemExit):
                raise
            except BaseException as error:  # no function of the user's: another worker would fail in the same way
                self._give_up(f"a worker process failed at {kind!r}, which is a fault of Bushel's", error)

    def _on_stacks(self, descriptor: int) -> None:
        stall.answer(descriptor)

    def _on_setup(
        self, folder: str, path: list[str], variables: dict[str, str], init: bytes, index: int, count: int
    ) -> None:
        with contextlib.suppress(OSError):
            os.chdir(folder)
        sys.path[:] = path
        os.environ.clear()
        os.environ.update(variables)
        alias.install_where_asked()
        try:
            function = pickle.loads(init)
            if function is not None:
                function(index, count)
        except BaseException as error:
            self._give_up("worker_init_fn failed", error)

    def _on_program(self, number: int, size: int, places: list[tuple[int, int]], descriptor: int) -> None:
        try:
            with wire.loading_a_pipeline():
                self._programs[number] = shipping.loaded(descriptor, size, places)
        except BaseException as error:
            self._give_up("a worker cannot load the pipeline", error)

    def _give_up(self, what: str, error: BaseException) -> NoReturn:
        if not isinstance(error, Exception):  # the consumer is neither to leave for it nor to be interrupted
            stopped = RuntimeError(f"{what}: it raised {type(error).__name__}({', '.join(map(repr, error.args))}).")
            error = stopped.with_traceback(error.__traceback__)
        self._channel.send(("broken", what, *shipping.portable(error)))
        raise wire.Closed from None

    def _on_forget(self, number: int) -> None:
        program = self._programs.pop(number, None)
        if isinstance(program, StreamProgram):
            program.close()

    def _on_arena(self, slot_bytes: int, descriptor: int) -> None:
        self._slots.clear()
        self._arena = (mmap.mmap(descriptor, 0), slot_bytes)
        os.close(descriptor)

    def _slot(self, number: int | None) -> Slot | None:
        if number is None or self._arena is None:
            return None
        if number not in self._slots:
            shared, size = self._arena
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
        slot: int | None,
        careful: bool,
        one_by_one: bool,
        given: Any,
        descriptor: int | None = None,
    ) -> None:
        self._channel.send(("begun", task))
        begun = time.perf_counter()
        place = self._slot(slot)

        def count_before(step: int, count: int) -> int:
            if counts is not None:
                return counts[step]
            self._channel.send(("count", task, step, count))
            while (reply := self._channel.receive())[0][0] not in ("before", "abort"):
                self._backlog.append(reply)  # the next task came before the answer
            if reply[0][0] == "abort":
                raise _Abort
            return reply[0][1]

        try:
            if descriptor is not None:
                given = shipping.loaded(descriptor, *given)
            elif given is not None:
                given = given[0], pickle.loads(given[1])
            # Announced, it is known which element it was that killed the process.
            announce = functools.partial(self._announce, task) if careful else None
            in_place = None if place is None else _in(place)
            result = run_task(self._programs[program], low, high, count_before, announce, given, in_place)
            if announce is not None:
                _try_to_pack(self._programs[program], low, result, announce)
            packed, told = _packed(self._programs[program], result, place, one_by_one)
            del result  # what is sent as a copy is not kept meanwhile
            answer: tuple[Any, ...] = ("done", task, packed, told, time.perf_counter() - begun)
        except _Abort:
            answer = ("aborted", task)
        except Misfit:
            answer = ("misfit", task)
        except SystemExit:
            raise  # it leaves, as any process that says so
        except BaseException as error:
            answer = ("failed", task, *shipping.portable(error))
        self._channel.post(answer)  # if the next task is there, word of its beginning goes along

    def _announce(self, task: int, low: int, high: int) -> None:
        self._channel.send(("at", task, low, high))


class _Abort(Exception):
    """The consumer no longer wants the block that waits for its counts."""


def _in(slot: Slot) -> Allocator:
    """Arrays in a slot, as long as they fit."""

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> np.ndarray | None:
        offset = slot.place(size)
        if offset is None:
            return None
        return np.frombuffer(slot.part(offset, size), dtype=dtype).reshape(shape)

    return empty


def _packed(
    program: Program | StreamProgram, result: Result, place: Slot | None, one_by_one: bool
) -> tuple[Packed, Told]:
    try:
        packed = wire.pack(result.rows, place)
    except Exception:
        before = len(result.rows)
        result = shipping.those_that_pass(_sendable, program, result, _not_sendable)
        if len(result.rows) == before:
            raise  # it is not the rows
        packed = wire.pack(result.rows, None)
    if one_by_one:
        packed = wire.pack([wire.for_home(row) for row in blocks.rows_of(result.rows)], None)
    failure = None if result.failure is None else shipping.portable(result.failure)
    rest = result.skipped, _states_of(program, result), result.stays, result.tally, result.work_s
    return packed, Told(result.marks, result.after, failure, *rest)


def _try_to_pack(program: Program | StreamProgram, low: int, result: Result, announce: Announce) -> None:
    """Packs each row alone, announced: if its pickling kills the process, the last element is not blamed for it."""
    for row, end in zip(blocks.rows_of(result.rows), result.marks[:, 0].tolist()):
        announce(low if program.unit > 1 else end - 1, end)
        with contextlib.suppress(Exception):  # told when all are packed
            wire.pack(row, None)
        low = end


def _states_of(program: Program | StreamProgram, result: Result) -> bytes | None:
    """A user's own stream may have anything in its state."""
    if result.states is None:
        return None
    try:
        return wire.for_home(result.states)
    except Exception as error:
        operation = program.operations()[0].call()
        raise TypeError(f"bushel: the state of {operation} cannot be sent from a worker process: {error}") from error


def _sendable(row: Any) -> Any:
    wire.pack(row, None)
    return row


def _not_sendable(which: str, reason: Exception) -> Exception:
    return TypeError(f"bushel: {which} cannot be sent from a worker process: {reason}")
