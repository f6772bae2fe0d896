"""Results on their way from a worker to the consumer: all of a result but its rows, and rows that fail on the way."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import describe_error, locate_error
from bushel._src.engine import tally
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.exceptions import pack_error, unpack_error
from bushel._src.engine.program import Program, Result
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tally import Tally
from bushel._src.graph import hidden_randomness

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
    """The states of a stream that is run whole. A user's own stream may have any object in its state."""
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


def join_results(parts: list[Result]) -> Result:
    """Return the result of a block whose rows were computed in parts. Only the last part may have an error."""
    if len(parts) == 1:
        return parts[0]
    total: Tally = {}
    for part in parts:
        tally.add(total, part.tally or {})
    judged = [part.stays for part in parts if part.stays]  # a part that failed has none
    return Result(
        blocks.join([part.rows for part in parts]),
        np.concatenate([part.marks for part in parts]),
        parts[-1].after if parts[-1].failure is None else parts[-2].after,
        parts[-1].failure,
        [skipped for part in parts for skipped in part.skipped],
        stays=[_join_stays(one) for one in zip(*judged)],
        tally=None if parts[0].tally is None else total,
        work_s=sum(part.work_s for part in parts),
        size_bytes=sum(part.size_bytes or 0 for part in parts),
    )


def _join_stays(stays: tuple[list[bool] | int, ...]) -> list[bool] | int:
    """Which elements of all parts have stayed in one step; their number if all of them have."""
    if all(isinstance(part, int) for part in stays):
        return sum(part for part in stays if isinstance(part, int))
    return [stay for part in stays for stay in ([True] * part if isinstance(part, int) else part)]


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
    """The error of a class that cannot rebuild an element from its pickle, with a note that names the element."""
    return locate_error(reason, f"bushel: {which} could not be rebuilt from the pickle that a worker process has sent.")
