"""What runs in worker processes and in actors: the user's `worker_init_fn`, and how results are packed."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from bushel._src.base import blocks
from bushel._src.engine.pool import wire
from bushel._src.engine.pool.exceptions import pack_error
from bushel._src.engine.pool.results import Details, convert_rows, pack_details
from bushel._src.engine.program import Announce, Program, Result
from bushel._src.engine.stream_program import StreamProgram

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


def pack_broken(what: str, error: BaseException, where: str = "") -> tuple[str, str, bytes, str]:
    """Return the message that ends the pool with an error which any other worker would meet, too.

    Args:
      what: what has failed, as the beginning of a sentence.
      where: the place of the worker, which the message adds to `what`.
    """
    if not isinstance(error, Exception):  # a SystemExit or KeyboardInterrupt would end the consumer
        stopped = RuntimeError(f"{what}: it raised {type(error).__name__}({', '.join(map(repr, error.args))}).")
        error = stopped.with_traceback(error.__traceback__)
    return "broken", what + where, *pack_error(error)


def pack_result(
    program: Program | StreamProgram, result: Result, pack: Callable[[Any], T], *, row_by_row: bool
) -> tuple[T, Details]:
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
    return packed, pack_details(program, result)


def pack_each_row(program: Program | StreamProgram, low: int, result: Result, announce: Announce) -> None:
    """Announces and packs each row by itself, and throws the packed row away.

    If the pickling of a row kills the process, this row is blamed, and not the element that was computed last.
    """
    for row, end in zip(blocks.rows_of(result.rows), result.marks[:, 0].tolist()):
        announce(low if program.unit > 1 else end - 1, end)
        with contextlib.suppress(Exception):  # raised again when the whole block is packed
            wire.pack(row, None)
        low = end


def _check_row(row: Any) -> Any:
    """The row itself, if it can be packed."""
    wire.pack(row, None)
    return row


def _explain_unpicklable(which: str, reason: Exception) -> Exception:
    return TypeError(f"bushel: {which} cannot be sent from a worker process: {reason}")
