"""What is sent once: pipelines to workers, with their arrays in memory that all of them share; exceptions back."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import mmap
import os
import pickle
import traceback
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import PipelineNotSent, add_note, describe_error, is_ours, locate_error
from bushel.base.memory import ALIGNMENT
from bushel.engine import wire
from bushel.engine.program import Program, Result, Skipped
from bushel.engine.slabs import anonymous_file, write
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tally import Tally


def dumped(value: Any, what: str) -> bytes:
    """A small object for workers, or an error that says `what` cannot be sent."""
    try:
        return wire.dumps(value)
    except Exception as error:
        raise PipelineNotSent(f"{what} cannot be sent to worker processes: {error}") from error


@dataclasses.dataclass(slots=True)
class Told:
    """All of a Result but its rows, as it travels."""

    marks: np.ndarray
    after: list[int]
    failure: tuple[bytes, str] | BaseException | None
    skipped: list[Skipped]
    states: bytes | None
    stays: list[np.ndarray | int]
    tally: Tally | None
    work_s: float

    def __reduce__(self) -> Any:
        # Arrays as their bytes: numpy's own pickles take ten times as long as all the rest.
        stays = [stayed if isinstance(stayed, int) else stayed.tobytes() for stayed in self.stays]
        arrays = self.marks.astype(np.int64, copy=False).tobytes(), self.marks.shape[1], stays
        return _told, (*arrays, self.after, self.failure, self.skipped, self.states, self.tally, self.work_s)

    def with_rows(self, rows: Block, size_bytes: int) -> Result:
        failure = rebuilt(*self.failure) if isinstance(self.failure, tuple) else self.failure
        states = None if self.states is None else pickle.loads(self.states)
        rest = self.skipped, states, self.stays, self.tally, self.work_s, size_bytes
        return Result(rows, self.marks, self.after, failure, *rest)


def _told(marks: bytes, columns: int, stays: list[bytes | int], after: list[int], *rest: Any) -> Told:
    failure, skipped, states, tally, work_s = rest
    stayed = [stay if isinstance(stay, int) else np.frombuffer(stay, dtype=bool) for stay in stays]
    table = np.frombuffer(marks, dtype=np.int64).reshape(-1, columns)
    return Told(table, after, failure, skipped, states, stayed, tally, work_s)


def those_that_pass(
    attempt: Callable[[Any], Any],
    program: Program | StreamProgram,
    result: Result,
    explained: Callable[[str, Exception], Exception],
) -> Result:
    """What `attempt` makes of rows: of all it can, where others are skipped, or of those before the first it cannot.

    Args:
      explained: (which element, error of the attempt) -> the error to raise.
    """
    rows = blocks.rows_of(result.rows)
    keep: list[int] = []
    made: list[Any] = []
    skipped, failure = list(result.skipped), result.failure
    for number, row in enumerate(rows):
        try:
            made.append(attempt(row))
            keep.append(number)
        except Exception as reason:
            position = int(result.marks[number, 0]) - 1
            which = program.which(position, position + 1)
            failure = explained(which, reason)
            if not program.skip:
                break
            skipped.append((position, (which, describe_error(failure), 1)))
    states = result.states
    if states is not None and len(keep) < len(rows):
        kept = [states[0], *(states[number + 1] for number in keep)]
        if program.skip:
            kept += states[len(rows) + 1 :]
            kept[-1] = states[-1]  # there it goes on, after what was skipped
        states = kept
    return dataclasses.replace(
        result,
        rows=made,
        marks=result.marks[keep],
        failure=result.failure if program.skip else failure,
        skipped=sorted(skipped, key=lambda left_out: left_out[0]),
        states=states,
    )


def not_rebuilt(which: str, reason: Exception) -> Exception:
    """The error of an element of which its own class can make nothing here."""
    return locate_error(reason, f"bushel: {which} could not be rebuilt from what a worker process has sent.")


class Shared:
    """An object in a file that workers map: its pickle, and its arrays, which are not copied again."""

    def __init__(self, value: Any, *, portable: bool):
        pickled, buffers = wire.pickled(value, at_home=False)
        self.size = len(pickled)
        self.places: list[tuple[int, int]] = []
        end = self.size
        for buffer in buffers:
            start = -(-end // ALIGNMENT) * ALIGNMENT
            end = start + buffer.raw().nbytes
            self.places.append((start, buffer.raw().nbytes))
        self.descriptor = anonymous_file(max(end, 1), portable=portable)
        write(self.descriptor, pickled, 0)
        for buffer, (start, _) in zip(buffers, self.places, strict=True):
            write(self.descriptor, buffer.raw(), start)

    def __del__(self) -> None:
        descriptor = self.__dict__.get("descriptor")
        if descriptor is not None:
            os.close(descriptor)


def loaded(descriptor: int, size: int, places: list[tuple[int, int]]) -> Any:
    """The object of a `Shared`, in a worker. Private pages: shared by all workers until one writes, then its own."""
    view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    return pickle.loads(view[:size], buffers=[view[offset : offset + length] for offset, length in places])


def shared_program(program: Program | StreamProgram, *, portable: bool) -> Shared:
    """A program for workers, or an error that names what cannot be sent."""
    try:
        return Shared(program, portable=portable)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise PipelineNotSent(f"{_culprit(program)} cannot be sent to worker processes: {error}") from error


def shared_rows(rows: Any, *, portable: bool) -> Shared:
    """Rows for a task, or an error that says that they cannot be sent."""
    try:
        return Shared(rows, portable=portable)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise PipelineNotSent(f"Elements cannot be sent to worker processes: {error}") from error


def _culprit(program: Program | StreamProgram) -> str:
    """The first operation that cannot be pickled, as it was written."""
    for node in program.operations():
        for value in node.parameters().values():
            try:
                cloudpickle.dumps(value)
            except Exception:
                return node.call()
    return "The pipeline"


def not_importable(program: Program | StreamProgram, error: ImportError) -> str:
    """Which operation needs a module that workers do not find, and the way out."""
    name = (error.name or "").encode()

    def dumped(node: Any) -> bytes:
        return cloudpickle.dumps(list(node.parameters().values()), protocol=5, buffer_callback=lambda _: False)

    found = [node.call() for node in program.operations() if name in dumped(node)]
    needs = f"{found[0] if found else 'the pipeline'} needs {error.name or 'a module'}"
    return (
        f"bushel: {needs}, which workers cannot import. "
        "They search sys.path as it was when the iterator was made: put its folder there before. A part of a package "
        "that is in no folder goes along after cloudpickle.register_pickle_by_value(module)."
    )


def portable(error: BaseException) -> tuple[bytes, str]:
    """An exception as bytes if it can travel, and as text in any case, with the user's part of the traceback."""
    add_note(error, f"bushel: in worker process {os.getpid()}.")
    stack = traceback.extract_tb(error.__traceback__)
    frames = [(frame.filename, frame.name, frame.lineno or 0) for frame in stack if not is_ours(frame.filename)]
    text = "".join(traceback.format_list(frame for frame in stack if not is_ours(frame.filename)))
    shown = ("".join(traceback.format_exception_only(error)) + text).rstrip()
    for cause in (error.__cause__, None):
        for way in (wire.Pickler, _TakenApart):
            with contextlib.suppress(Exception):
                pickled = wire.dumps((error, getattr(error, "__notes__", []), cause, frames), kind=way)
                again = rebuilt(pickled, shown)  # some pickle well, and cannot be built again, or not as they were
                if type(again) is type(error) and _said(again) == _said(error):
                    return pickled, shown
    return b"", shown


def rebuilt(pickled: bytes, shown: str) -> BaseException:
    """An exception of a worker as it was, or its text where it could not travel or cannot be built here."""
    told = RuntimeError(f"An exception in a worker process could not be sent. It said:\n{shown}")
    if not pickled:
        return told
    try:
        error, notes, cause, frames = pickle.loads(pickled)
    except Exception:
        return told
    for note in notes:
        if note not in getattr(error, "__notes__", []):
            add_note(error, note)
    BaseException.__setattr__(error, "__cause__", cause)  # whatever the class says of attributes
    return BaseException.with_traceback(error, _traceback_of(frames))


def _traceback_of(frames: list[tuple[str, str, int]]) -> types.TracebackType | None:
    """A traceback through frames of another process: (file, function, line) each, the outermost first.

    Its frames have the right names and files, and no local variables.
    """
    trace = None
    for filename, name, line in reversed(frames):
        code = compile(_raise_in_line(line), filename, "exec").replace(co_name=name, co_qualname=name)
        try:
            exec(code, {"__file__": filename})
        except StopIteration as stopped:
            assert stopped.__traceback__ is not None and stopped.__traceback__.tb_next is not None
            inner = stopped.__traceback__.tb_next
            trace = types.TracebackType(trace, inner.tb_frame, inner.tb_lasti, inner.tb_lineno)
    return trace


def _raise_in_line(line: int) -> ast.Module:
    """The statement `raise StopIteration` as if it stood in a line; without columns, so that none are marked."""
    tree = ast.parse("raise StopIteration")
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.lineno = node.end_lineno = max(1, line)
            node.col_offset = node.end_col_offset = -1
    return tree


def _said(error: BaseException) -> str | None:
    try:
        return str(error)
    except Exception:
        return None


class _TakenApart(wire.Pickler):
    """Sends exceptions to be put together without their own `__init__`: it may ask for more than they keep."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return super().reducer_override(obj)
        kept, lost = {}, []
        for name, value in vars(obj).items():
            try:
                wire.dumps(value)
                kept[name] = value
            except Exception:
                lost.append(name)
        args = list(_builtin(type(obj)).__reduce__(obj)[1])
        for number, value in enumerate(args):
            try:
                wire.dumps(value, kind=_TakenApart)  # a group has exceptions among them
            except Exception:
                args[number] = str(value)
                lost.append(f"args[{number}]")
        return _put_together, (type(obj), tuple(args), kept, lost)


def _builtin(kind: Any) -> Any:
    """The class of Python's own that an exception is made of."""
    return next(above for above in kind.__mro__ if above.__module__ == "builtins")


def _put_together(kind: Any, args: tuple[Any, ...], kept: dict[str, Any], lost: list[str]) -> BaseException:
    base = _builtin(kind)
    error = base.__new__(kind, *args)
    base.__init__(error, *args)
    error.__dict__.update(kept)
    if lost:
        add_note(error, f"bushel: of this exception, {', '.join(lost)} could not be sent.")
    return error
