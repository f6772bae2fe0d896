"""Results on their way from a worker to the consumer: all of a result but its rows, and rows that fail on the way."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import describe_error, locate_error
from bushel.engine.pool.exceptions import unpack_error
from bushel.engine.program import Program, Result, Skipped
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tally import Tally


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
