"""The report of an iterator of this process, for `bushel.view(ds)` and `bushel.view(it)`. No server of its own.

`attachment.py` reads the reports of other programs.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from bushel._src.datasets import iterator as iterators
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.engine.report import Report
from bushel._src.graph.node import Node
from bushel._src.graph.streams import StreamNode
from bushel._src.reporting.history import History

_INTERVAL_S = 1.0
_viewers_own: weakref.WeakSet[PipelineIterator[Any]] = weakref.WeakSet()


class NothingRuns(OSError):
    """There is no iterator to look at."""


class RunningHere:
    """The iterator that runs now, with its report over time. A sample is taken when the page asks, once per second.

    The iterator is not held. When it is gone, the last report stays.

    Args:
      name: what the page calls it.
      find: returns the iterator to look at; None if there is none.
      comes_first: whether the page opens with it.
    """

    is_live = True

    def __init__(self, name: str, find: Callable[[], Any], *, comes_first: bool = False):
        self.name, self.comes_first = name, comes_first
        self._find = find
        self._lock = threading.Lock()
        self._shown: weakref.ref[Any] | None = None
        self._history: History | None = None
        self._sampled = 0.0
        self._last: dict[str, Any] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there is, or was, an iterator to look at."""
        return self._last is not None or self._find() is not None

    def read(self) -> dict[str, Any]:
        """The report as it is now: see `History.describe`. Raises NothingRuns if there is none."""
        with self._lock:
            found = self._find()
            if found is not None and (self._shown is None or self._shown() is not found):
                self._watch(found)
            shown = None if self._shown is None else self._shown()
            if shown is not None and self._history is not None:
                if time.monotonic() - self._sampled >= self._history.interval_s:
                    self._history.sample()
                    self._sampled = time.monotonic()
                self._last = self._history.describe(finished=_is_closed(shown))
            elif self._last is not None:
                self._last["finished"] = True  # the iterator was collected
            if self._last is None:
                raise NothingRuns("No iterator of this data set runs in this process.")
            return self._last

    def _watch(self, iterator: Any) -> None:
        reference = weakref.ref(iterator)

        def report() -> Report:
            watched = reference()
            assert watched is not None  # `read` holds it meanwhile
            return watched.report()

        self._shown, self._sampled = reference, time.monotonic()
        self._history = History(self.name, report, _INTERVAL_S)
        self._history.sample()


def _is_closed(iterator: Any) -> bool:
    return bool(getattr(iterator, "_closed", False))


def watch_iterator(iterator: Any, name: str) -> RunningHere:
    """The report of one iterator."""
    reference = weakref.ref(iterator)
    return RunningHere(name, reference, comes_first=True)


def watch_dataset(node: Node, name: str) -> RunningHere:
    """The report of the last iterator that reads a dataset, or another dataset that was made from it."""
    return RunningHere(name, lambda: find_iterator(node))


def find_iterator(node: Node) -> PipelineIterator[Any] | None:
    """The last opened iterator whose pipeline contains a node, and that is not closed.

    >>> import bushel
    >>> ds = bushel.MapDataset.range(3)
    >>> find_iterator(ds._node) is None
    True
    >>> it = iter(ds.batch(2))
    >>> find_iterator(ds._node) is it
    True
    """
    for reference in reversed(iterators.opened.valuerefs()):
        found = reference()
        if found is None or found in _viewers_own or _is_closed(found):
            continue
        if _contains(found._node, node):
            return found
    return None


def _contains(last: Node, node: Node) -> bool:
    todo, seen = [last], {id(last)}
    while todo:
        one = todo.pop()
        if one is node:
            return True
        for parent in one.parents:
            if id(parent) not in seen:
                seen.add(id(parent))
                todo.append(parent)
    return False


def open_unlisted(stream: StreamNode) -> PipelineIterator[Any]:
    """An iterator of the viewer itself, which must not be shown as one that runs."""
    own: PipelineIterator[Any] = PipelineIterator(stream)
    _viewers_own.add(own)
    return own
