"""A line on a terminal that says how far a long task is. Quiet where nobody looks."""

from __future__ import annotations

import sys
import time


class Progress:
    """How much of a task is done, and how long the rest will take.

    >>> progress = Progress("index of episodes", 3)
    >>> for done in range(4):
    ...     progress.show(done)
    >>> progress.end()
    """

    def __init__(self, task: str, total: int):
        self._task, self._total = task, total
        self._begun = self._shown = 0.0
        self._first = 0

    def show(self, done: int) -> None:
        """Tells that `done` of all are done, now and then, and always at the end."""
        now = time.monotonic()
        if not self._begun:
            self._begun, self._first = now, done
        if now - self._shown < 0.2 and done < self._total:
            return
        self._shown = now
        fresh, spent = done - self._first, now - self._begun
        left = f", {spent * (self._total - done) / fresh:.0f} s left" if fresh and spent > 1 else ""
        self.say(f"{done:,} of {self._total:,} ({done / max(1, self._total):.0%}){left}")

    def say(self, text: str) -> None:
        """Replaces the line."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{self._task}: {text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Leaves the line as it is."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")
