"""Elements of a stream at any position: by seeking where the stream can, else by reading forward from a saved state."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
import time
from typing import Any

from bushel._src.base import trees
from bushel._src.base.options import DatasetOptions
from bushel._src.datasets.iterator import PipelineIterator
from bushel._src.graph.node import Node, replace_parents
from bushel._src.graph.ordered import BatchStream
from bushel._src.graph.origins import ElementOrigin
from bushel._src.graph.streams import Ahead, Pulled, StreamNode, ToDevice, WithOptions
from bushel._src.view.own_process import open_unlisted

BUDGET_S = 2.0
"""How long one request may read forward. The page then shows how far it is, and asks again."""

_KEPT_ELEMENTS = 16
_KEPT_BYTES = 256 << 20
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


def can_seek(node: StreamNode, iterator: PipelineIterator[Any]) -> bool:
    """Whether an iterator goes to any element at once.

    Where a filter drops elements, the index of an iterator counts the dropped ones, too. The length is then not known.
    """
    if node.length is None:
        return False
    try:
        iterator._set_next_index(iterator._get_next_index())
    except Exception:  # the iterator of a user's own dataset may raise anything
        return False
    return True


def _measure(element: Any) -> int:
    return sum(getattr(leaf, "nbytes", 64) for leaf in trees.leaves(element))


def _makes_batches(node: Node) -> bool:
    return isinstance(node, BatchStream) or any(_makes_batches(parent) for parent in node.parents)


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
        self._stream, self._start = stream, state
        self._iterator = self._open()
        self._lock = threading.RLock()
        self._length = node.length
        self._batches = _makes_batches(stream)
        self.is_seekable = can_seek(node, self._iterator)
        self._position = self._iterator._get_next_index() if self.is_seekable else 0
        self._end: int | None = None
        self._elements: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._states: dict[int, Any] = {}

    def _open(self) -> PipelineIterator[Any]:
        iterator = open_unlisted(self._stream)
        if self._start is not None:
            iterator.set_state(self._start)
        return iterator

    def read(self, index: int, reading: Any) -> Any:
        """The element at `index` as a `Reading`. Raises the error of an element that fails."""
        # A single element may take for ever, for example behind a filter that drops all. Another request does not wait.
        if not self._lock.acquire(timeout=BUDGET_S):
            return reading(index, progress=Progress(self._position, index))
        try:
            if index in self._elements:
                return reading(index, self._elements[index])
            if self.is_seekable:
                found = self._read_by_seeking(index, reading)
                if found is not None:
                    return found
            return self._read_forward(index, reading)
        finally:
            self._lock.release()

    def _read_by_seeking(self, index: int, reading: Any) -> Any:
        """Goes to the element at once. Returns None if it turns out that the stream has to be read from its start."""
        if self._length is not None and index >= self._length:
            return reading(index, ended=self._length)
        self._seek(index)
        try:
            element = next(self._iterator)
        except StopIteration:
            self._position = -1
            return reading(index, missing=True)  # a function has returned None here, and for all after it
        try:
            after = self._iterator._get_next_index()
        except Exception:
            after = None
        if after is None or (after != index + 1 and self._batches):
            # A function has returned None, so that the batch took more elements than planned. Then only reading tells
            # which elements the batches before it have.
            self.is_seekable, self._position = False, 0
            self._elements.clear()
            self._iterator.close()
            self._iterator = self._open()
            return None
        self._keep(after - 1, element)
        self._position = after
        return reading(index, element) if after == index + 1 else reading(index, missing=True)

    def _read_forward(self, index: int, reading: Any) -> Any:
        """Reads from the last known position before the element, for some time."""
        if self._end is not None and index >= self._end:
            return reading(index, ended=self._end)
        self._go_back_to(index)
        deadline = time.monotonic() + BUDGET_S
        while True:
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

    def origin(self, index: int) -> ElementOrigin:
        """The source records of the element at `index`."""
        with self._lock:
            if not self.is_seekable:
                raise ValueError(
                    "The elements of this stream depend on what was read before them, so Bushel does not know their "
                    "records without reading. Look at an earlier step, or use `pack` and `where` on the MapDataset."
                )
            if self._length is None or index < self._length:
                self._seek(index)
                for origin in self._iterator.origins(1):
                    return origin
            raise ValueError(f"The stream ends before element {index}.")

    def _next(self) -> Any:
        """The next element, with the state before it kept."""
        if self._position not in self._states:
            with contextlib.suppress(Exception):  # the iterator of a user's own dataset may have no states
                self._states[self._position] = self._iterator.get_state()
            if len(self._states) > _KEPT_STATES:  # keep the first, and every second of the others
                kept = sorted(self._states)[::2]
                self._states = {position: self._states[position] for position in kept}
        element = next(self._iterator)
        self._keep(self._position, element)
        self._position += 1
        return element

    def _keep(self, position: int, element: Any) -> None:
        """Keeps an element, and forgets the oldest ones if they are many or large."""
        self._elements[position] = element
        sizes = [_measure(kept) for kept in self._elements.values()]
        while len(sizes) > 1 and (len(sizes) > _KEPT_ELEMENTS or sum(sizes) > _KEPT_BYTES):
            self._elements.popitem(last=False)
            sizes.pop(0)

    def _seek(self, index: int) -> None:
        if self._position != index:
            self._position = -1  # if seeking fails, the position is not known
            self._iterator._set_next_index(index)
            self._position = index

    def _go_back_to(self, index: int) -> None:
        """Moves the iterator to the last position before `index` that has a state, unless it is there already."""
        known = [position for position in self._states if position <= index]
        nearest = max(known, default=0)
        if index < self._position or nearest > self._position:
            if known:
                self._iterator.set_state(self._states[nearest])
            else:
                self._iterator.close()
                self._iterator = self._open()
            self._position = nearest

    def close(self) -> None:
        """Closes the iterator."""
        self._iterator.close()
