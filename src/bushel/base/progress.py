"""Shows the progress of long work: one line on a terminal or in a notebook, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time

logger = logging.getLogger("bushel")

_REDRAW_S = 0.2
_FIRST_LOG_S = 5.0
"""Work that takes less time writes no log line."""
_LOG_EVERY_S = 30.0


class Progress:
    """Shows how much of some work is done, and of how much if that is known.

    On a terminal and in a notebook the line is drawn again in its place. Elsewhere the logger "bushel" gets a line at
    level INFO every half minute.

    >>> progress = Progress("column length", 1000)
    >>> progress.show(250)
    >>> progress.end()
    """

    def __init__(self, name: str, total: int | None):
        self._name, self._total = name, total
        self._begun: float | None = None
        self._next = 0.0
        self._first = 0
        self._width = 0

    def show(self, done: int) -> None:
        """Shows that `done` parts are done. Most calls draw nothing: it may be called for every part."""
        now = time.monotonic()
        drawn = _is_drawn()
        if self._begun is None:
            self._begun, self._first = now, done
            self._next = now if drawn else now + _FIRST_LOG_S
        if now < self._next and not (drawn and done == self._total):
            return
        self._next = now + (_REDRAW_S if drawn else _LOG_EVERY_S)
        self.say(self._text(done, now - self._begun))

    def _text(self, done: int, spent_s: float) -> str:
        if self._total is None:
            return f"{done:,}"
        fresh = done - self._first
        left = f", {spent_s * (self._total - done) / fresh:.0f} s left" if fresh and spent_s > 1 else ""
        return f"{done:,} of {self._total:,} ({done / max(1, self._total):.0%}){left}"

    def say(self, text: str) -> None:
        """Draws a text in place of the line, or logs it."""
        line = f"{self._name}: {text}"
        if not _is_drawn():
            logger.info("%s", line)
            return
        # Blanks cover the rest of a longer line: a notebook does not know the terminal code that clears a line.
        sys.stderr.write(f"\r{line.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        """Ends the line, so that other output begins on a new one."""
        if self._width and _is_drawn():
            sys.stderr.write("\n")
            self._width = 0


def _is_drawn() -> bool:
    """Whether a line can be drawn again in its place: on a terminal, or in a notebook."""
    shell = sys.modules.get("IPython")
    if shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell":
        return True
    return sys.stderr is not None and sys.stderr.isatty()
