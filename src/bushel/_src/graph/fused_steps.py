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

from bushel._src.base.ownership import own

_FILE = "<bushel: steps of one loop>"
_FIRST_LINE = 4
"""The line of the source code that calls the first function. Each function has a line of its own."""

_PRIVATE_FILE = "<bushel: private steps of one loop>"
_FIRST_PRIVATE_LINE = 10
"""The line that calls the first function where rows pass the gate. Each function has two lines."""

RunSteps = Callable[[Iterator[Any], Sequence[Callable[[Any], Any]]], list[Any]]
"""(rows, functions) -> the rows after all functions; None for a row that is missing, or that a filter drops."""

RunPrivateSteps = Callable[[list[Any], Sequence[Callable[[Any], Any]], bool], list[Any]]
"""The same for rows in reverse order, which are taken out of the list; and whether they are private already."""


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


@functools.lru_cache(maxsize=256)
def compile_private_steps(drops: tuple[bool, ...]) -> RunPrivateSteps:
    """The same loop for functions that may write into what they get, or keep it. The rows that it returns are private.

    A row passes the gate before the first function and after each function. Only then comes the next row, since a
    function may use one buffer for all rows.

    >>> kept = [1]
    >>> run = compile_private_steps((False, True))
    >>> found = run([3, None], [lambda x: kept, lambda x: True], True)
    >>> found, found[1] is kept
    ([None, [1]], False)
    """
    names = ", ".join(f"f{number}" for number in range(len(drops)))
    lines = [
        "def run_steps(rows, functions, owned):",
        f"    {names}, = functions",
        "    made, take = [], rows.pop",
        "    while rows:",
        "        box = [take()]",
        "        if box[0] is None:",
        "            made.append(None)",
        "            continue",
        "        if not owned: own(box)",
    ]
    assert len(lines) == _FIRST_PRIVATE_LINE - 1
    for number, drop in enumerate(drops):
        if drop:
            lines += [f"        if not f{number}(box[0]): made.append(None); continue", "        own(box)"]
        else:
            lines += [
                f"        box = own([f{number}(box.pop())])",
                "        if box[0] is None: made.append(None); continue",
            ]
    source = "\n".join([*lines, "        made += box", "    return made"])
    namespace: dict[str, Any] = {"own": own}
    exec(compile(source, _PRIVATE_FILE, "exec"), namespace)
    return namespace["run_steps"]


def find_failed_step(error: BaseException) -> int:
    """The number of the function that has raised an error inside such a loop."""
    line, trace = 0, error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename not in (_FILE, _PRIVATE_FILE):
        trace = trace.tb_next
    assert trace is not None
    # The first frames of the loop count: a function of the user's may run a pipeline, too.
    file = trace.tb_frame.f_code.co_filename
    while isinstance(trace, types.TracebackType) and trace.tb_frame.f_code.co_filename == file:
        line, trace = trace.tb_lineno, trace.tb_next
    return line - _FIRST_LINE if file == _FILE else max(0, line - _FIRST_PRIVATE_LINE) // 2
