"""How far long work is, on one line of the terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    """A line on a terminal that says how far it is; quiet elsewhere."""

    def __init__(self, name: str, total: int):
        self._name, self._total = name, total
        self._begun = self._shown = 0.0
        self._first = 0

    def show(self, done: int) -> None:
        """So many of all are done."""
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
        """Any other news."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{self._name}: {text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Nothing more is to come."""
        if sys.stderr.isatty():
            sys.stderr.write("\n")
