"""Results and exceptions on their way from a worker to the consumer, and rows that fail on the way.

Worker processes and actors share this code.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
import pickle
import types
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import add_note, describe_error, is_library_file, locate_error
from bushel._src.engine import measurements
from bushel._src.engine.measurements import Tally
from bushel._src.engine.pool import wire
from bushel._src.engine.program import Announce, Program, Result
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.graph import hidden_randomness


def pack_error(error: BaseException) -> tuple[bytes, str]:
    """Return an exception as a pickle, empty if it cannot be pickled, and as text with the user's part of the
    traceback.
    """
    add_note(error, f"bushel: in worker process {os.getpid()}.")
    import traceback  # here: errors are rare, and a worker process begins sooner without it

    stack = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library_file(frame.filename)]
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
    """Return the exception that a worker has raised; a RuntimeError with its text if the exception cannot be rebuilt
    here.
    """
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
    """Return a traceback through frames of another process: (file, function, line) each, the outermost first.

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
    """Return the statement `raise StopIteration` in a given line.

    It has no columns, so that Python underlines nothing.
    """
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
    """Pickle an exception so that it is rebuilt without its own `__init__`, whose arguments it may not have kept.

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
    """Return the base class of an exception that is Python's own and says what its objects look like in memory.

    Of several bases, as of a RuntimeError that is an OSError too, only this one can make such an object.
    """
    while kind.__module__ != "builtins":
        kind = kind.__base__
    return kind


def _rebuild_exception(kind: Any, args: tuple[Any, ...], attributes: dict[str, Any], lost: list[str]) -> BaseException:
    base = _find_builtin_base(kind)
    error = base.__new__(kind, *args)
    base.__init__(error, *args)
    error.__dict__.update(attributes)
    if lost:
        add_note(error, f"bushel: of this exception, {', '.join(lost)} could not be sent.")
    return error


Details = tuple[Any, ...]
"""All of a Result but its rows, as a worker sends it: see `pack_details`."""


def pack_details(program: Program | StreamProgram, result: Result) -> Details:
    """Return all of a result but its rows, as values that are pickled fast.

    Arrays are sent as their bytes: numpy's own pickles take ten times as long as everything else in the message.
    """
    marks = result.marks.astype(np.int64, copy=False)
    failure = None if result.failure is None else pack_error(result.failure)
    stays = [stay if isinstance(stay, int) else bytes(stay) for stay in result.stays]
    fields = result.after, failure, result.skipped, _pickle_states(program, result), stays
    warned = hidden_randomness.take_collected()
    return marks.tobytes(), marks.shape[1], *fields, result.tally, result.work_s, warned


def _pickle_states(program: Program | StreamProgram, result: Result) -> bytes | None:
    """Return the states of a stream that is run whole. A user's own stream may have any object in its state."""
    if result.states is None:
        return None
    try:
        return wire.dumps_for_consumer(result.states)
    except Exception as error:
        operation = program.list_operations()[0].call()
        raise TypeError(f"bushel: the state of {operation} cannot be sent from a worker process: {error}") from error


def unpack_result(rows: Block, size_bytes: int, details: Details) -> Result:
    """Return the result that a worker has sent as rows and details."""
    marks, columns, after, failure, skipped, states, stays, tally, work_s, warned = details
    hidden_randomness.warn_once(warned)
    return Result(
        rows,
        np.frombuffer(marks, dtype=np.int64).reshape(-1, columns),
        after,
        None if failure is None else unpack_error(*failure),
        skipped,
        None if states is None else pickle.loads(states),
        [stay if isinstance(stay, int) else list(map(bool, stay)) for stay in stays],
        tally,
        work_s,
        size_bytes,
    )


def has_failed(details: Details) -> bool:
    """Return whether the result with these details ends with an error."""
    return details[3] is not None


def join_results(results: list[Result]) -> Result:
    """Return the result of a block from the results of its rows, in order. Only the last one may have an error."""
    if len(results) == 1:
        return results[0]
    total: Tally = {}
    for result in results:
        measurements.add(total, result.tally or {})
    judged = [result.stays for result in results if result.stays]  # a result with an error has none
    return Result(
        blocks.join([result.rows for result in results]),
        np.concatenate([result.marks for result in results]),
        results[-1].after if results[-1].failure is None else results[-2].after,
        results[-1].failure,
        [skipped for result in results for skipped in result.skipped],
        stays=[_join_stays(one) for one in zip(*judged)],
        tally=None if results[0].tally is None else total,
        work_s=sum(result.work_s for result in results),
        size_bytes=sum(result.size_bytes or 0 for result in results),
    )


def _join_stays(stays: tuple[list[bool] | int, ...]) -> list[bool] | int:
    """Return which elements of all results have stayed in one step; their number if all of them have."""
    if all(isinstance(stayed, int) for stayed in stays):
        return sum(stayed for stayed in stays if isinstance(stayed, int))
    return [stay for stayed in stays for stay in ([True] * stayed if isinstance(stayed, int) else stayed)]


def convert_rows(
    convert: Callable[[Any], Any],
    program: Program | StreamProgram,
    result: Result,
    explain: Callable[[str, Exception], Exception],
) -> Result:
    """Return the result with `convert(row)` in place of each row.

    A row that cannot be converted fails like its element.

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
            which = program.describe_elements(position, position + 1)
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
    """Return the error of a class that cannot rebuild an element from its pickle, with a note that names the
    element.
    """
    return locate_error(reason, f"bushel: {which} could not be rebuilt from the pickle that a worker process has sent.")


T = TypeVar("T")

NO_ACCELERATOR = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
"""Variables in the environment of a worker. Without them, each worker would take memory of the accelerator."""

KEPT_BYTES, LARGEST_KEPT = 256 << 20, 32 << 20
"""How much freed memory a worker keeps for its next block, and the largest array whose memory is kept. With glibc only.

A block of images frees many megabytes at once. By default glibc returns them to the system, and the next block pays for
every page again: three quarters of the time of a worker that only makes arrays of 150 KB.
"""


def keeps_default_memory() -> bool:
    """Return whether the user leaves it to us how the C library keeps memory."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." not in tunables and not any(name.startswith("MALLOC_") for name in os.environ)


def call_init(pickled: bytes, index: int, count: int) -> None:
    """Call the user's `worker_init_fn`, if there is one."""
    function = pickle.loads(pickled)
    if function is not None:
        function(index, count)


def forget_program(programs: dict[int, Program | StreamProgram], number: int) -> None:
    """Remove a program that the worker will not need again."""
    program = programs.pop(number, None)
    if isinstance(program, StreamProgram):
        program.close()


def pack_broken(sentence: str, error: BaseException) -> tuple[str, str, bytes, str]:
    """Return the message that ends the pool with an error which any other worker would meet, too.

    Args:
      sentence: what has failed, and where, as a whole sentence.
      error: the error that a call has raised.
    """
    if not isinstance(error, Exception):  # a SystemExit or KeyboardInterrupt would end the consumer
        stopped = RuntimeError(f"{sentence} It raised {type(error).__name__}({', '.join(map(repr, error.args))}).")
        error = stopped.with_traceback(error.__traceback__)
    return "broken", sentence, *pack_error(error)


def pack_result(
    program: Program | StreamProgram, result: Result, pack: Callable[[Any], T], *, row_by_row: bool
) -> tuple[T, Details]:
    """Return a result as it is sent. Without the rows that cannot be pickled, which fail like elements."""
    try:
        packed = pack(result.rows)
    except Exception:
        before = len(result.rows)
        result = convert_rows(_check_row, program, result, _explain_unpicklable)
        if len(result.rows) == before:
            raise  # each row can be pickled by itself, so the error has another cause
        packed = pack(result.rows)
    if row_by_row:
        packed = pack([wire.dumps_for_consumer(row) for row in blocks.rows_of(result.rows)])
    return packed, pack_details(program, result)


def pack_each_row(program: Program | StreamProgram, low: int, result: Result, announce: Announce) -> None:
    """Announce and pack each row by itself, and throw the packed row away.

    If the pickling of a row kills the process, this row is blamed, and not the element that was computed last.
    """
    for row, end in zip(blocks.rows_of(result.rows), result.marks[:, 0].tolist()):
        announce(low if program.unit > 1 else end - 1, end)
        with contextlib.suppress(Exception):  # raised again when the whole block is packed
            wire.pack(row, None)
        low = end


def _check_row(row: Any) -> Any:
    """Return the row itself, if it can be packed."""
    wire.pack(row, None)
    return row


def _explain_unpicklable(which: str, reason: Exception) -> Exception:
    return TypeError(f"bushel: {which} cannot be sent from a worker process: {reason}")
