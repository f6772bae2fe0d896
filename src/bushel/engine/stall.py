"""Says what is waited for when nothing comes: who works on it, since when, and where in the code.

Nothing of it runs while results come. Workers write their stack into a file when a signal asks for it, whatever they
are stuck in; no thread of theirs is needed for that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import FrameType
from typing import Any

from bushel.engine.slabs import anonymous_file

logger = logging.getLogger("bushel")

STALL_S = 60.0
"""When nothing has come for so long, and again every so long, it is said what is waited for."""

_ANSWER_S = 1.0
_ASK = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def result(done: Future[Any], told: Callable[[], str | None]) -> Any:
    """The result of a future, however long it takes; from time to time it is said what is `told` of it, if anything."""
    waited_s = 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            return done.result(STALL_S)
        if done.done():  # between the two, or its result is such an error
            return done.result()
        waited_s += STALL_S
        say(waited_s, told())


def say(waited_s: float, what: str | None) -> None:
    """Logs that nothing has come for so long, unless there is nothing to be told."""
    if what is not None:
        logger.warning("Nothing has come for %.4g s. %s", waited_s, what)


def of_threads(threads: Iterable[threading.Thread], idle: str) -> str | None:
    """Where threads are, but for those whose innermost function is `idle`; None if one of them says it itself."""
    frames = sys._current_frames()
    lines = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if frame is None or frame.f_code.co_name == idle:
            continue
        if any(outer.f_code is result.__code__ for outer in _outer(frame)):
            return None
        lines.append(f"Thread {thread.name} is at:\n{_stack(frame)}")
    return "\n".join(lines) or "No thread works on it."


def _outer(frame: FrameType) -> list[FrameType]:
    found = [frame]
    while (outer := found[-1].f_back) is not None:
        found.append(outer)
    return found


def _stack(frame: FrameType) -> str:
    lines = [f'  File "{at.f_code.co_filename}", line {at.f_lineno} in {at.f_code.co_name}' for at in _outer(frame)]
    return _without_ours(lines)


def _without_ours(lines: list[str]) -> str:
    theirs = [line for line in lines if _PACKAGE not in line]
    return "\n".join(theirs or lines)


class Stacks:
    """A file into which workers write where they are, one at a time, when they are asked."""

    def __init__(self, *, portable: bool):
        self.descriptor = anonymous_file(0, portable=portable)

    def of(self, pid: int) -> str:
        """The stack of a worker, innermost first; it may be too stuck to answer."""
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)  # of all who have this file
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _ASK)
        before, deadline = -1, time.monotonic() + _ANSWER_S
        while time.monotonic() < deadline and (not (size := os.fstat(self.descriptor).st_size) or size != before):
            before = size
            time.sleep(0.02)
        lines = os.pread(self.descriptor, 1 << 16, 0).decode(errors="replace").splitlines()
        return _without_ours(lines[1:]) if lines else "  (it does not answer)"

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at exit the modules are gone
        descriptor = self.__dict__.get("descriptor")
        if descriptor is not None:
            close(descriptor)


def answer(descriptor: int) -> None:
    """In a worker: from now on it writes its stack into a file when it is asked to."""
    import faulthandler

    faulthandler.register(_ASK, file=descriptor, all_threads=False, chain=False)
