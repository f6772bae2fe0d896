"""Elements of a stream at any position: by seeking where the stream can, else by reading forward from a saved state."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import threading
import time
from typing import Any

from bushel.base.options import DatasetOptions
from bushel.graph.explain import Explanation
from bushel.graph.node import Node, replace_parents
from bushel.graph.streams import Ahead, Pulled, StreamNode, ToDevice, WithOptions
from bushel.iterator import PipelineIterator

BUDGET_S = 2.0
"""How long one request may read forward. The page then shows how far it is, and asks again."""

_KEPT_ELEMENTS = 16
_KEPT_STATES = 256


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a stream was read on the way to an element."""

    at: int
    wanted: int


def without_workers(node: Node) -> Any:
    """The same stream computed in this process: without worker processes, threads that read ahead, and devices."""
    while isinstance(node, (Ahead, Pulled, ToDevice)):
        node = node.parent
    return replace_parents(node, without_workers) if isinstance(node, StreamNode) else node


class StreamReader:
    """Reads elements of a stream by position. Several threads may use it.

    Args:
      node: the stream.
      state: the position that counts as the start, for example that of a checkpoint.
      skips: leaves out elements that fail. Otherwise a stream that cannot seek ends at the first of them.
    """

    def __init__(self, node: StreamNode, state: Any = None, *, skips: bool = False):
        stream = without_workers(node)
        if skips:
            stream = WithOptions(stream, DatasetOptions(on_error="skip"))
        self._iterator: PipelineIterator[Any] = PipelineIterator(stream)
        self._lock = threading.RLock()
        self._length = node.length
        if state is not None:
            self._iterator.set_state(state)
        self.is_seekable = self._can_seek()
        self._position = self._iterator._get_next_index() if self.is_seekable else 0
        self._end: int | None = None
        self._elements: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._states: dict[int, Any] = {}

    def _can_seek(self) -> bool:
        try:
            self._iterator._set_next_index(self._iterator._get_next_index())
        except Exception:  # the iterator of a user's own dataset may raise anything
            return False
        return True

    def read(self, index: int, reading: Any) -> Any:
        """The element at `index` as a `Reading`. Raises the error of an element that fails."""
        with self._lock:
            if index in self._elements:
                return reading(index, self._elements[index])
            if self._end is not None and index >= self._end:
                return reading(index, ended=self._end)
            try:
                self._go_to(index)
            except IndexError:  # past the end of a stream that can seek
                return reading(index, ended=self._length)
            deadline = time.monotonic() + BUDGET_S
            while self._position <= index:
                position = self._position
                try:
                    element = self._next()
                except StopIteration:
                    self._end = position
                    return reading(index, ended=position)
                if position == index:
                    return reading(index, element)
                if time.monotonic() > deadline:
                    return reading(index, progress=Progress(self._position, index))
            raise AssertionError("A stream has passed the element that it was to read.")

    def explain(self, index: int) -> Explanation:
        """The source records of the element at `index`."""
        with self._lock:
            if not self.is_seekable:
                raise ValueError(
                    "The elements of this stream depend on what was read before them, so Bushel does not know their "
                    "records without reading. Look at an earlier step, or use `pack` and `where` on the MapDataset."
                )
            self._go_to(index)
            explanations = self._iterator.explain(1)
            if not explanations:
                raise ValueError(f"The stream ends before element {index}.")
            return explanations[0]

    def _next(self) -> Any:
        if not self.is_seekable and self._position not in self._states:
            self._states[self._position] = self._iterator.get_state()
            if len(self._states) > _KEPT_STATES:  # keep the first, and every second of the others
                kept = sorted(self._states)[::2]
                self._states = {position: self._states[position] for position in kept}
        element = next(self._iterator)
        self._elements[self._position] = element
        if len(self._elements) > _KEPT_ELEMENTS:
            self._elements.popitem(last=False)
        self._position += 1
        return element

    def _go_to(self, index: int) -> None:
        """Moves the iterator to `index`, or to the last known position before it."""
        if self.is_seekable:
            if self._position != index:
                self._iterator._set_next_index(index)
                self._position = index
            return
        known = sorted(self._states)
        nearest = known[bisect.bisect_right(known, index) - 1] if known else 0
        if index < self._position or nearest > self._position:
            self._iterator.set_state(self._states[nearest])
            self._position = nearest

    def close(self) -> None:
        """Closes the iterator."""
        self._iterator.close()
