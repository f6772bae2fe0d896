"""Several functions of single elements in one loop: a row goes through all of them before the next row begins.

One loop for each function would keep all rows of a block alive between two functions. One loop for all of them is
faster, since Python uses the memory of an element again for the next one. Python has no fast way to call a list of
functions in turn, so the loop is written as source code, for each sequence of maps and filters once.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_FILE = "<bushel: steps of one loop>"
_FIRST_LINE = 4
"""The line of the source code that calls the first function. Each function has a line of its own."""

RunSteps = Callable[[Iterator[Any], Sequence[Callable[[Any], Any]]], list[Any]]
"""(rows, functions) -> the rows after all functions; None for a row that is missing, or that a filter drops."""


@functools.lru_cache(maxsize=256)
def compile_steps(drops: tuple[bool, ...]) -> RunSteps:
    """The loop over rows that calls functions in turn: maps, and filters where `drops` says so.

    >>> run = compile_steps((False, True))
    >>> run(iter([1, None, 3]), [lambda x: x + 1, lambda x: x > 2])
    [None, None, 4]
    """
    names = ", ".join(f"f{number}" for number in range(len(drops)))
    calls = [
        f"and f{number}(x)" if drop else f"and (x := f{number}(x)) is not None" for number, drop in enumerate(drops)
    ]
    lines = ["def run_steps(rows, functions):", f"    {names}, = functions", "    return [x if (x := row) is not None"]
    source = "\n".join([*lines, *(f"        {call}" for call in calls), "        else None for row in rows]"])
    namespace: dict[str, Any] = {}
    exec(compile(source, _FILE, "exec"), namespace)
    return namespace["run_steps"]


def find_failed_step(error: BaseException) -> int:
    """The number of the function that has raised an error inside such a loop."""
    line, trace = 0, error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
        trace = trace.tb_next
    # The first frames of the loop count: a function of the user's may run a pipeline, too.
    while isinstance(trace, types.TracebackType) and trace.tb_frame.f_code.co_filename == _FILE:
        line, trace = trace.tb_lineno, trace.tb_next
    return line - _FIRST_LINE
