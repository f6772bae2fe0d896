"""Warns of filters that drop nearly all elements, and of a second pass in the same shuffled order."""

from __future__ import annotations

import logging
import time
import warnings
import weakref
from typing import TYPE_CHECKING

from bushel._src.base import code_inspection
from bushel._src.base.errors import BushelWarning
from bushel._src.base.late_imports import Lazy
from bushel._src.base.options import DatasetOptions
from bushel._src.graph import reindex
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.operation import WithOperation
from bushel._src.graph.streams import Elements, StreamNode

logger = logging.getLogger("bushel")


class FilterWatch:
    """Warns of a filter that drops nearly everything, or refuses it: mostly that is a mistake.

    It judges by every 1,000 elements, as Grain does, and warns at most once a minute.
    """

    WINDOW = 1000
    ENOUGH = 8
    """After so many elements, all of them None, it is likely that a function lacks a `return`."""
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
        self._none: int | None = 0 if not seen and isinstance(node, MapNode) and not node.sparse else None
        """How many elements there were so far, if all were None and no filter has dropped them; None otherwise."""

    def judge(self, stays: list[bool] | int) -> tuple[int, ValueError] | None:
        """Return count elements, one bool for each, or a number of elements that all stay.

        Returns the first of them at which too many had been dropped, with the error that says so.
        """
        count, kept = (stays, stays) if isinstance(stays, int) else (len(stays), stays.count(True))
        if self._none is not None:
            self._look_for_none(count, kept)
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

    def _look_for_none(self, count: int, kept: int) -> None:
        """Warn once if a map returns None for all of the first elements: mostly its function lacks a `return`."""
        if kept or self.seen > self.dropped or self._none is None:
            self._none = None
            return
        self._none += count * self._node.fan_in if isinstance(self._node, MapNode) else count
        if self._none >= self.ENOUGH:
            functions = _list_functions(self._node)
            if functions and not any(code_inspection.never_returns(node.operation.function) for node in functions):
                logger.warning(
                    "%s: your function returned None for the first %d elements: forgot `return`? An element that is "
                    "None is left out.",
                    " or ".join(node.describe() for node in functions),
                    self._none,
                )
            self._none = None

    def _describe(self, what: str, ratio: float) -> str:
        way_out = "Please check the filter; if it is meant, filtering the data once before training is cheaper."
        name = self._node.call()
        if isinstance(self._node, MapNode):
            dropping = _list_filters(self._node)
            if dropping:
                name = " or ".join(node.call() for node in dropping)
            elif functions := _list_functions(self._node):
                name = " or ".join(node.describe() for node in functions)
                way_out = "No filter did: your function returned None for them. Forgot `return`?"
        return (
            f"{name} dropped {100 * self.dropped / self.seen:.2f} % of the last {self.seen} elements. "
            f"{way_out} This is said "
            f"from {100 * ratio:g} % on: see DatasetOptions(filter_{what}_threshold_ratio=...), None for never."
        )


def _list_filters(node: Node) -> list[Node]:
    """Return the operations before `node`, and itself, that drop elements. The last one comes first."""
    here = [node] if isinstance(node, MapNode) and node.drops else []
    return here + [found for parent in node.parents for found in _list_filters(parent)]


def _list_functions(node: Node) -> list[WithOperation]:
    """Return the operations before `node`, and itself, that run a function of the user's. The last one comes first."""
    here = [node] if isinstance(node, WithOperation) else []
    return here + [found for parent in node.parents for found in _list_functions(parent)]


if TYPE_CHECKING:
    from bushel._src.graph import limit_and_rebatch
else:
    limit_and_rebatch = Lazy("bushel._src.graph.limit_and_rebatch")

_finished: weakref.WeakSet[Node] = weakref.WeakSet()
"""Datasets that an iterator has read to the end."""

_warned: weakref.WeakSet[Node] = weakref.WeakSet()


class Passes:
    """The passes over the dataset of one iterator, by this iterator and by others in this process."""

    def __init__(self, stream: StreamNode):
        # `iter(ds)` of a MapDataset makes a new stream node each time, around the same map node.
        self._dataset: Node = stream.parent if isinstance(stream, Elements) else stream

    def finish(self) -> None:
        """Note that the end was reached."""
        _finished.add(self._dataset)

    @property
    def repeat_the_order(self) -> bool:
        """Whether the dataset is shuffled, is not repeated, and was read to its end before."""
        node = self._dataset
        return node in _finished and node not in _warned and _shuffles_once(node)

    def warn_of_same_order(self) -> None:
        """Warn the caller of `next`, once for each dataset."""
        _warned.add(self._dataset)
        warnings.warn(
            "This shuffled dataset was read to its end before, and a new iterator gives the same order again, as in "
            "Grain. For a new order every epoch, loop once over `ds.repeat(num_epochs)`, or keep one iterator of "
            "`ds.repeat()`, which does not end.",
            BushelWarning,
            stacklevel=3,
        )


def _shuffles_once(node: Node) -> bool:
    shuffled = False
    nodes = [node]
    for step in nodes:  # the list grows while it is read
        if isinstance(step, (reindex.Repeat, limit_and_rebatch.RepeatStream)):
            return False
        shuffled = shuffled or isinstance(step, reindex.Shuffle)
        nodes.extend(step.parents)
    return shuffled
