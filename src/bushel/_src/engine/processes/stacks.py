"""The stacks of worker processes: a worker writes its stack into a file when it receives a signal.

So it can answer whatever it is stuck in, and needs no thread for that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
import weakref

from bushel._src.engine.slabs import make_anonymous_file
from bushel._src.engine.stall import hide_library

_ANSWER_S = 1.0
_STACK_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
_LAST_LINES = (b" in <module>\n", b"  ...\n")  # of the outermost frame; of a stack with more than 100 frames


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
        return hide_library(lines[1:]) if lines else "  (the worker does not answer)"


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
