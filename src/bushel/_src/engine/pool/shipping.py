"""Pipelines on their way to workers: pickled once for all of them, and the errors of those that cannot be sent."""

from __future__ import annotations

import itertools
import queue
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import cloudpickle

from bushel._src.base.errors import PipelineNotSent
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.unpicklable import find_unpicklable, is_picklable
from bushel._src.engine.program import Program
from bushel._src.engine.stream_program import StreamProgram

T = TypeVar("T")


_MAKE_THERE = "Make it inside the function when the function first needs it, or in `worker_init_fn` of `mp_prefetch`."


def share(put: Callable[[Any], T], value: Any, describe: Callable[[], str]) -> T:
    """Return `put(value)`, which pickles an object for workers, or raise an error that says what cannot be sent."""
    try:
        return put(value)
    except (OSError, MemoryError):  # the machine has no room: the object itself is not at fault
        raise
    except Exception as error:
        cause = _find_cause(value)
        reason = f"{cause}. {_MAKE_THERE} ({error})" if cause else str(error)
        raise PipelineNotSent(f"{describe()} cannot be sent to worker processes: {reason}") from error


class ProgramTable(Generic[T]):
    """The programs that a pool's workers run, numbered, each in a memory that the workers can read.

    A program is kept only as long as somebody else holds it. Call `remove_collected` now and then.

    Args:
      put: puts a program into that memory.
    """

    def __init__(self, put: Callable[[Program | StreamProgram], T]):
        self._put = put
        self._shared: dict[int, T] = {}
        self._numbers: weakref.WeakKeyDictionary[Program | StreamProgram, int] = weakref.WeakKeyDictionary()
        self._unused_numbers = itertools.count()
        # A program is collected on any thread, at any moment. All that may be done there is to put its number here.
        self._collected: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._classes: list[type] = []

    def add(self, program: Program | StreamProgram) -> int:
        """The number of a program, which is added if it is new; or an error that names what cannot be sent."""
        number = self._numbers.get(program)
        if number is None:
            shared = share(self._put, program, lambda: _find_operation(program)[0])
            number = next(self._unused_numbers)
            self._shared[number] = shared
            # cloudpickle holds them weakly. Without this list a class could be gone when a result names it.
            self._classes = wire.list_sent_classes()
            self._numbers[program] = number
            weakref.finalize(program, self._collected.put, number).atexit = False
        return number

    def get(self, number: int) -> T:
        return self._shared[number]

    def remove_collected(self) -> list[int]:
        """Removes the programs that nobody holds any more. Returns their numbers."""
        numbers = []
        while not self._collected.empty():
            numbers.append(self._collected.get())
            del self._shared[numbers[-1]]
        return numbers

    def clear(self) -> None:
        """Frees the shared memory."""
        self._shared.clear()


def _find_operation(program: Program | StreamProgram) -> tuple[str, Any]:
    """The first operation that cannot be pickled, as the user wrote it, and the argument that cannot."""
    for node in program.list_operations():
        for value in node.parameters().values():
            if not is_picklable(value):
                return node.call(), value
    return "The pipeline", None


def _find_cause(value: Any) -> str:
    """Which value of the user's cannot be pickled, with its place in the user's code; "" where that is not known."""
    if isinstance(value, (Program, StreamProgram)):
        return find_unpicklable(_find_operation(value)[1])
    return find_unpicklable(value) if callable(value) else ""


def explain_import_error(program: Program | StreamProgram, error: ImportError) -> str:
    """Says which operation needs a module that workers cannot import, and what to do about it."""
    name = (error.name or "").encode()

    def pickle_parameters(node: Any) -> bytes:
        return cloudpickle.dumps(list(node.parameters().values()), protocol=5, buffer_callback=lambda _: False)

    calls = [node.call() for node in program.list_operations() if name in pickle_parameters(node)]
    needs = f"{calls[0] if calls else 'the pipeline'} needs {error.name or 'a module'}"
    return (
        f"bushel: {needs}, which workers cannot import. Workers search sys.path as it was when the iterator was made: "
        "add the folder of the module to sys.path before that. If the module has no file, call "
        "cloudpickle.register_pickle_by_value(module); then it is sent along."
    )
