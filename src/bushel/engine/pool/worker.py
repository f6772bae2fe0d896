"""What worker processes and actors share: how a result is packed for the consumer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from bushel.base import blocks
from bushel.engine.pool import wire
from bushel.engine.pool.exceptions import pack_error
from bushel.engine.pool.results import ResultDetails, convert_rows
from bushel.engine.program import Announce, Program, Result
from bushel.engine.stream_program import StreamProgram

T = TypeVar("T")

NO_ACCELERATOR = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"}
"""Variables in the environment of a worker. Without them, each worker would take memory of the accelerator."""


def pack_result(
    program: Program | StreamProgram, result: Result, pack: Callable[[Any], T], row_by_row: bool
) -> tuple[T, ResultDetails]:
    """A result as it is sent. Without the rows that cannot be pickled, which fail like elements."""
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
    failure = None if result.failure is None else pack_error(result.failure)
    rest = result.skipped, _pickle_states(program, result), result.stays, result.tally, result.work_s
    return packed, ResultDetails(result.marks, result.after, failure, *rest)


def pack_each_row(program: Program | StreamProgram, low: int, result: Result, announce: Announce) -> None:
    """Announces and packs each row by itself, and throws the packed row away.

    If the pickling of a row kills the process, this row is blamed, and not the element that was computed last.
    """
    for row, end in zip(blocks.rows_of(result.rows), result.marks[:, 0].tolist()):
        announce(low if program.unit > 1 else end - 1, end)
        with contextlib.suppress(Exception):  # raised again when the whole block is packed
            wire.pack(row, None)
        low = end


def _pickle_states(program: Program | StreamProgram, result: Result) -> bytes | None:
    """The states of a stream that is run whole. A user's own stream may have any object in its state."""
    if result.states is None:
        return None
    try:
        return wire.dumps_for_consumer(result.states)
    except Exception as error:
        operation = program.operations()[0].call()
        raise TypeError(f"bushel: the state of {operation} cannot be sent from a worker process: {error}") from error


def _check_row(row: Any) -> Any:
    """The row itself, if it can be packed."""
    wire.pack(row, None)
    return row


def _explain_unpicklable(which: str, reason: Exception) -> Exception:
    return TypeError(f"bushel: {which} cannot be sent from a worker process: {reason}")
