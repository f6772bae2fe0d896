"""Warnings when no result arrives for long: which worker or thread computes what, since when, and where in the code.

None of this runs while results arrive. A worker writes its stack into a file when it receives a signal, so it can
answer whatever it is stuck in, and needs no thread for that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from bushel.engine.slabs import make_anonymous_file

logger = logging.getLogger("bushel")

STALL_S = 60.0
"""After this time without a result there is a warning, and again after each such time."""

_ANSWER_S = 1.0
_STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
_LAST_LINES = (b" in <module>\n", b"  ...\n")  # of the outermost frame; of a stack with more than 100 frames
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


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
        lines.append(f"Thread {thread.name} is at:\n{_hide_library(calls)}")
    return "\n".join(lines) or "No thread is computing it."


def _hide_library(lines: list[str]) -> str:
    """The lines of a stack that are not in this library; all of them if there are no others."""
    return "\n".join([line for line in lines if _PACKAGE not in line] or lines)


class Stacks:
    """A file into which workers write their stack, one worker at a time, when they are asked."""

    def __init__(self, *, portable: bool):
        self.descriptor = make_anonymous_file(0, portable=portable)
        weakref.finalize(self, os.close, self.descriptor).atexit = False  # the pool's thread may still be sending it

    def read(self, pid: int) -> str:
        """The stack of a worker, innermost frame first. Asks the worker and waits a moment for the answer."""
        os.ftruncate(self.descriptor, 0)
        # All processes share one offset into the file. Without this the worker would write behind the last answer.
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _STACK_SIGNAL)
        answer, deadline = b"", time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline:
            before, answer = answer, os.pread(self.descriptor, 1 << 16, 0)
            # faulthandler writes line by line, and on a busy machine it may be interrupted for long. So it is not
            # enough that the file has stopped to grow: the last line must be that of the outermost frame.
            if answer == before and answer.endswith(_LAST_LINES):
                break
            time.sleep(0.02)
        lines = _unescape(answer.decode(errors="replace")).splitlines()
        return _hide_library(lines[1:]) if lines else "  (the worker does not answer)"


def _unescape(text: str) -> str:
    """A stack with the letters of file names that are not ASCII. faulthandler writes them as \\xf6 or \\u6570."""
    escape = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"
    return re.sub(escape, lambda found: chr(int(found[found.lastindex or 0], 16)), text)


def write_stack_on_signal(descriptor: int) -> None:
    """In a worker: from now on the signal of `Stacks` makes it write its stack into the file.

    faulthandler writes it from C, so it works while the user's code holds the GIL. A handler written in Python would
    have to wait.
    """
    faulthandler.register(_STACK_SIGNAL, file=descriptor, all_threads=False, chain=False)
