"""How far long work is: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time


class Progress:
    """A line on a terminal that says how far work is, of how much if that is known; quiet elsewhere.

    >>> progress = Progress("column length", 1000)
    >>> progress.show(250)
    >>> progress.end()
    """

    def __init__(self, name: str, total: int | None):
        self._name, self._total = name, total
        self._begun = self._shown = 0.0
        self._first = 0

    def show(self, done: int) -> None:
        """Says that so much is done, but not all the time."""
        now = time.monotonic()
        if not self._begun:
            self._begun, self._first = now, done
        if now - self._shown < 0.2 and done != self._total:
            return
        self._shown = now
        if self._total is None:
            self.say(f"{done:,}")
            return
        fresh, spent = done - self._first, now - self._begun
        left = f", {spent * (self._total - done) / fresh:.0f} s left" if fresh and spent > 1 else ""
        self.say(f"{done:,} of {self._total:,} ({done / max(1, self._total):.0%}){left}")

    def say(self, text: str) -> None:
        """Puts a text in place of the line."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{self._name}: {text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Leaves the line."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")
