"""Warnings when no result arrives for long: which worker or thread computes what, since when, and where in the code.

None of this runs while results arrive. A worker writes its stack into a file when it receives a signal, so it can
answer whatever it is stuck in, and needs no thread for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

logger = logging.getLogger("bushel")

STALL_S = 60.0
"""After this time without a result there is a warning, and again after each such time."""

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


def wait_for_result(done: Future[Any], describe: Callable[[], str | None]) -> Any:
    """The result of a future, however long it takes. Warns now and then with what `describe` returns, if anything."""
    waited_s = 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            return done.result(STALL_S)
        # The TimeoutError may be the result itself, raised by the user's function.
        if done.done():
            return done.result()
        waited_s += STALL_S
        warn(waited_s, describe())


def warn(waited_s: float, description: str | None) -> None:
    """Logs for how long no result has arrived, unless there is no description."""
    if description is not None:
        logger.warning("No result has arrived for %.4g s. %s", waited_s, description)


def describe_threads(threads: Iterable[threading.Thread], idle: str) -> str | None:
    """Where threads are in the code, without those whose innermost function is named `idle`.

    None if one of them is inside `wait_for_result`: then it warns itself, and knows more.
    """
    frames = sys._current_frames()
    lines = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if frame is None or frame.f_code.co_name == idle:
            continue
        import traceback

        stack = [outer for outer, _ in traceback.walk_stack(frame)]
        if any(outer.f_code is wait_for_result.__code__ for outer in stack):
            return None
        calls = [f'  File "{at.f_code.co_filename}", line {at.f_lineno} in {at.f_code.co_name}' for at in stack]
        lines.append(f"Thread {thread.name} is at:\n{hide_library(calls)}")
    return "\n".join(lines) or "No thread is computing it."


def hide_library(lines: list[str]) -> str:
    """The lines of a stack that are not in this library; all of them if there are no others."""
    return "\n".join([line for line in lines if _PACKAGE not in line] or lines)
