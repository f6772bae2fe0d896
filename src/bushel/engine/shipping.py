"""Objects that are pickled once: pipelines for workers, with their arrays in shared memory; results and errors back."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import mmap
import os
import pickle
import queue
import types
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import cloudpickle
import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import PipelineNotSent, add_note, describe_error, is_ours, locate_error
from bushel.base.memory import ALIGNMENT
from bushel.engine import wire
from bushel.engine.program import Program, Result, Skipped
from bushel.engine.slabs import make_anonymous_file, write_all
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tally import Tally

T = TypeVar("T")

# Results on their way to the consumer.


@dataclasses.dataclass(slots=True)
class ResultDetails:
    """All of a Result but its rows, as a worker sends it."""

    marks: np.ndarray
    after: list[int]
    failure: tuple[bytes, str] | BaseException | None
    skipped: list[Skipped]
    states: bytes | None
    stays: list[list[bool] | int]
    tally: Tally | None
    work_s: float

    def __reduce__(self) -> Any:
        # Sends arrays as their bytes: numpy's own pickles take ten times as long as everything else in the message.
        stays = [stay if isinstance(stay, int) else bytes(stay) for stay in self.stays]
        arrays = self.marks.astype(np.int64, copy=False).tobytes(), self.marks.shape[1], stays
        return _load_details, (*arrays, self.after, self.failure, self.skipped, self.states, self.tally, self.work_s)

    def to_result(self, rows: Block, size_bytes: int) -> Result:
        failure = unpack_error(*self.failure) if isinstance(self.failure, tuple) else self.failure
        states = None if self.states is None else pickle.loads(self.states)
        rest = self.skipped, states, self.stays, self.tally, self.work_s, size_bytes
        return Result(rows, self.marks, self.after, failure, *rest)


def _load_details(marks: bytes, columns: int, stays: list[bytes | int], after: list[int], *rest: Any) -> ResultDetails:
    failure, skipped, states, tally, work_s = rest
    stay_lists = [stay if isinstance(stay, int) else list(map(bool, stay)) for stay in stays]
    table = np.frombuffer(marks, dtype=np.int64).reshape(-1, columns)
    return ResultDetails(table, after, failure, skipped, states, stay_lists, tally, work_s)


def convert_rows(
    convert: Callable[[Any], Any],
    program: Program | StreamProgram,
    result: Result,
    explain: Callable[[str, Exception], Exception],
) -> Result:
    """The result with `convert(row)` in place of each row. A row that cannot be converted fails like its element.

    If the program skips elements that fail, the row is left out and counted as skipped. If not, the result ends before
    the row, with the error.

    Args:
      explain: (which element, error of `convert`) -> the error to raise.
    """
    rows = blocks.rows_of(result.rows)
    keep: list[int] = []
    converted: list[Any] = []
    skipped, failure = list(result.skipped), result.failure
    for number, row in enumerate(rows):
        try:
            converted.append(convert(row))
            keep.append(number)
        except Exception as reason:
            position = int(result.marks[number, 0]) - 1
            which = program.which(position, position + 1)
            failure = explain(which, reason)
            if not program.skip:
                break
            skipped.append((position, (which, describe_error(failure), 1)))
    states = result.states
    if states is not None and len(keep) < len(rows):
        kept = [states[0], *(states[number + 1] for number in keep)]
        if program.skip:
            kept += states[len(rows) + 1 :]
            kept[-1] = states[-1]  # the stream continues there, after the rows that were left out
        states = kept
    return dataclasses.replace(
        result,
        rows=converted,
        marks=result.marks[keep],
        failure=result.failure if program.skip else failure,
        skipped=sorted(skipped, key=lambda element: element[0]),
        states=states,
    )


def locate_rebuild_error(which: str, reason: Exception) -> Exception:
    """The error of a class that cannot rebuild an element from its pickle, with a note that names the element."""
    return locate_error(reason, f"bushel: {which} could not be rebuilt from the pickle that a worker process has sent.")


# Pipelines and rows on their way to workers.


def pickle_for_workers(value: Any, what: str) -> bytes:
    """Pickles a small object, or raises an error that says that `what` cannot be sent."""
    try:
        return wire.dumps(value)
    except Exception as error:
        raise PipelineNotSent(f"{what} cannot be sent to worker processes: {error}") from error


class SharedObject:
    """An object in shared memory: its pickle and its large arrays, which workers map and do not copy."""

    def __init__(self, value: Any, *, portable: bool):
        pickled, buffers = wire.pickle_with_buffers(value, for_consumer=False)
        self.size = len(pickled)
        self.places: list[tuple[int, int]] = []
        end = self.size
        for buffer in buffers:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + buffer.raw().nbytes
            self.places.append((start, buffer.raw().nbytes))
        self.descriptor = make_anonymous_file(max(end, 1), portable=portable)
        # Not at exit: the pool's thread may still be sending this descriptor, whose number another file could get.
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        write_all(self.descriptor, pickled, 0)
        for buffer, (start, _) in zip(buffers, self.places, strict=True):
            write_all(self.descriptor, buffer.raw(), start)


def load_shared(descriptor: int, size: int, places: list[tuple[int, int]]) -> Any:
    """The object of a `SharedObject`, in a worker. Closes the descriptor.

    The mapping is copy-on-write: workers share its pages, and a function that writes into an array changes only the
    page of its own worker.
    """
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    return pickle.loads(view[:size], buffers=[view[offset : offset + length] for offset, length in places])


def share_rows(rows: Any, *, portable: bool) -> SharedObject:
    """Rows for a task, in shared memory; or an error that says that they cannot be sent."""
    return _share(functools.partial(SharedObject, portable=portable), rows, lambda: "Elements")


def _share(share: Callable[[Any], T], value: Any, describe: Callable[[], str]) -> T:
    try:
        return share(value)
    except (OSError, MemoryError):  # the machine has no room: the object itself is not at fault
        raise
    except Exception as error:
        raise PipelineNotSent(f"{describe()} cannot be sent to worker processes: {error}") from error


class ProgramTable(Generic[T]):
    """The programs that a pool's workers run, numbered, each in a memory that the workers can read.

    A program is kept only as long as somebody else holds it. Call `remove_collected` now and then.

    Args:
      share: puts a program into that memory.
    """

    def __init__(self, share: Callable[[Program | StreamProgram], T]):
        self._share = share
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
            shared = _share(self._share, program, lambda: _find_unpicklable(program))
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


def _find_unpicklable(program: Program | StreamProgram) -> str:
    """The first operation that cannot be pickled, as the user wrote it."""
    for node in program.operations():
        for value in node.parameters().values():
            try:
                cloudpickle.dumps(value)
            except Exception:
                return node.call()
    return "The pipeline"


def explain_import_error(program: Program | StreamProgram, error: ImportError) -> str:
    """Says which operation needs a module that workers cannot import, and what to do about it."""
    name = (error.name or "").encode()

    def pickle_parameters(node: Any) -> bytes:
        return cloudpickle.dumps(list(node.parameters().values()), protocol=5, buffer_callback=lambda _: False)

    calls = [node.call() for node in program.operations() if name in pickle_parameters(node)]
    needs = f"{calls[0] if calls else 'the pipeline'} needs {error.name or 'a module'}"
    return (
        f"bushel: {needs}, which workers cannot import. Workers search sys.path as it was when the iterator was made: "
        "add the folder of the module to sys.path before that. If the module has no file, call "
        "cloudpickle.register_pickle_by_value(module); then it is sent along."
    )


# Errors on their way to the consumer.


def pack_error(error: BaseException) -> tuple[bytes, str]:
    """An exception as a pickle, empty if it cannot be pickled, and as text with the user's part of the traceback."""
    add_note(error, f"bushel: in worker process {os.getpid()}.")
    import traceback  # here: errors are rare, and a worker process begins sooner without it

    stack = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    frames = [(frame.filename, frame.name, frame.lineno or 0) for frame in stack]
    text = "".join([*traceback.format_exception_only(error), *traceback.format_list(stack)]).rstrip()
    for cause in (error.__cause__, None):
        for reduce_first in (None, _reduce_exception):
            with contextlib.suppress(Exception):
                value = (error, getattr(error, "__notes__", []), cause, frames)
                pickled = wire.dumps(value, reduce_first=reduce_first)
                # Some exceptions can be pickled, but their pickle cannot be loaded, or gives a different exception.
                again = unpack_error(pickled, text)
                if type(again) is type(error) and _format(again) == _format(error):
                    return pickled, text
    return b"", text


def unpack_error(pickled: bytes, text: str) -> BaseException:
    """The exception that a worker has raised; a RuntimeError with its text if the exception cannot be rebuilt here."""
    substitute = RuntimeError(f"An exception in a worker process could not be sent. It said:\n{text}")
    if not pickled:
        return substitute
    try:
        error, notes, cause, frames = pickle.loads(pickled)
    except Exception:
        return substitute
    for note in notes:
        if note not in getattr(error, "__notes__", []):
            add_note(error, note)
    BaseException.__setattr__(error, "__cause__", cause)  # the class itself may refuse to set attributes
    return BaseException.with_traceback(error, _build_traceback(frames))


def _build_traceback(frames: list[tuple[str, str, int]]) -> types.TracebackType | None:
    """A traceback through frames of another process: (file, function, line) each, the outermost first.

    Python makes traceback frames only from code that runs. So for each frame a statement is compiled under the right
    file, function and line, and raises StopIteration there. These frames have no local variables.
    """
    trace = None
    for filename, name, line in reversed(frames):
        code = compile(_parse_raise(line), filename, "exec").replace(co_name=name, co_qualname=name)
        try:
            exec(code, {"__file__": filename})
        except StopIteration as stopped:
            assert stopped.__traceback__ is not None and stopped.__traceback__.tb_next is not None
            inner = stopped.__traceback__.tb_next
            trace = types.TracebackType(trace, inner.tb_frame, inner.tb_lasti, inner.tb_lineno)
    return trace


def _parse_raise(line: int) -> ast.Module:
    """The statement `raise StopIteration` in a given line. It has no columns, so that Python underlines nothing."""
    tree = ast.parse("raise StopIteration")
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = node.end_lineno = max(1, line)
            node.col_offset = node.end_col_offset = -1
    return tree


def _format(error: BaseException) -> str | None:
    try:
        return str(error)
    except Exception:
        return None


def _reduce_exception(obj: Any) -> Any:
    """Pickles an exception so that it is rebuilt without its own `__init__`, whose arguments it may not have kept.

    Attributes and arguments that cannot be pickled are left out, and a note names them.
    """
    if not isinstance(obj, BaseException):
        return NotImplemented
    attributes, lost = {}, []
    for name, value in vars(obj).items():
        try:
            wire.dumps(value)
            attributes[name] = value
        except Exception:
            lost.append(name)
    args = list(_find_builtin_base(type(obj)).__reduce__(obj)[1])
    for number, value in enumerate(args):
        try:
            wire.dumps(value, reduce_first=_reduce_exception)  # the arguments of an ExceptionGroup are exceptions
        except Exception:
            args[number] = str(value)
            lost.append(f"args[{number}]")
    return _rebuild_exception, (type(obj), tuple(args), attributes, lost)


def _find_builtin_base(kind: Any) -> Any:
    """The nearest base class of an exception that is Python's own."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _rebuild_exception(kind: Any, args: tuple[Any, ...], attributes: dict[str, Any], lost: list[str]) -> BaseException:
    base = _find_builtin_base(kind)
    error = base.__new__(kind, *args)
    base.__init__(error, *args)
    error.__dict__.update(attributes)
    if lost:
        add_note(error, f"bushel: of this exception, {', '.join(lost)} could not be sent.")
    return error
