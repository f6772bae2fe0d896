"""Warns of filters that drop nearly all elements, or refuses them."""

from __future__ import annotations

import logging
import time

from bushel.base.options import DatasetOptions
from bushel.graph.node import Node

logger = logging.getLogger("bushel")


class FilterWatch:
    """Warns of a filter that drops nearly everything, or refuses it: mostly that is a mistake.

    It judges by every 1,000 elements, as Grain does, and warns at most once a minute.
    """

    WINDOW = 1000
    EVERY_S = 60.0

    def __init__(self, node: Node, options: DatasetOptions, seen: int = 0):
        self._node = node
        self._warn_ratio = options.filter_warn_threshold_ratio or float("inf")
        self._raise_ratio = options.filter_raise_threshold_ratio or float("inf")
        self.seen = seen
        self.dropped = 0
        self._quiet_until = 0.0
        self._verdict: str | None = None
        """The error text for the last window, if too many of its elements were dropped."""

    def judge(self, stays: list[bool] | int) -> tuple[int, ValueError] | None:
        """Counts elements, one bool for each, or a number of elements that all stay.

        Returns the first of them at which too many had been dropped, with the error that says so.
        """
        count, kept = (stays, stays) if isinstance(stays, int) else (len(stays), stays.count(True))
        if not self.dropped and self.seen + count >= self.WINDOW:
            self.seen %= self.WINDOW  # windows in which nothing was dropped
        if self.seen + count < self.WINDOW or (kept == count and not self.dropped):
            self.seen += count
            self.dropped += count - kept
            return None
        if isinstance(stays, int):
            stays = [True] * stays
        done = 0
        while done < len(stays):
            part = stays[done : done + max(1, self.WINDOW - self.seen)]
            done += len(part)
            self.seen += len(part)
            self.dropped += part.count(False)
            if self.seen >= self.WINDOW:
                if self.dropped / self.seen >= self._raise_ratio:
                    # A consumer that asks again gets the same error, with the same numbers.
                    self._verdict = self._verdict or self._describe("raise", self._raise_ratio)
                    return done - 1, ValueError(self._verdict)
                if self.dropped / self.seen >= self._warn_ratio and time.monotonic() >= self._quiet_until:
                    self._quiet_until = time.monotonic() + self.EVERY_S
                    logger.warning(self._describe("warn", self._warn_ratio))
                self.seen = self.dropped = 0
                self._verdict = None
        return None

    def _describe(self, what: str, ratio: float) -> str:
        return (
            f"{self._node.call()} dropped {100 * self.dropped / self.seen:.2f} % of the last {self.seen} elements. "
            "Please check the filter; if it is meant, filtering the data once before training is cheaper. This is said "
            f"from {100 * ratio:g} % on: see DatasetOptions(filter_{what}_threshold_ratio=...), None for never."
        )
