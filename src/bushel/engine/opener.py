"""Opens streams: builds the cursors of a graph, and gives each map node below them an executor."""

from __future__ import annotations

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed
from bushel.base.options import ReadOptions
from bushel.engine.executors import Executor, Inline, Threads
from bushel.graph.elementwise import FilterWatch
from bushel.graph.leaves import Source
from bushel.graph.node import MapNode, Node, Origin
from bushel.graph.streams import Cursor, Elements, State, StreamNode, field


def open_stream(node: StreamNode, read_options: ReadOptions | None = None) -> Cursor:
    """A cursor at the start of a stream; `read_options`, if given, stand for those of every node."""
    return _Opener(read_options).open(node)


class _Opener:
    def __init__(self, read_options: ReadOptions | None):
        self._read_options = read_options

    def open(self, node: StreamNode) -> Cursor:
        return node.open(self)

    def elements(self, node: Elements) -> Cursor:
        return ElementsCursor(node, executor_for(node.parent, self._read_options or node.read_options))


def executor_for(node: MapNode, options: ReadOptions | None) -> Executor:
    """The executor that the options ask for; without options, threads where records come from outside memory."""
    if options is None:
        options = ReadOptions(0, 0) if _in_memory(node) else ReadOptions()
    if options.threaded:
        return Threads(node, options.num_threads, options.prefetch_buffer_size)
    return Inline(node)


def _in_memory(node: Node) -> bool:
    if isinstance(node, Source):
        known = isinstance(node.source, (list, tuple, str, bytes, range, np.ndarray))
        return known or getattr(node.source, "in_memory", False)
    return all(_in_memory(parent) for parent in node.parents)


class ElementsCursor(Cursor):
    """The elements of a map node in order. Its state is one number."""

    def __init__(self, node: Elements, executor: Executor):
        self._node = node
        self._executor = executor
        self._length = node.parent.length
        self._position = 0
        self._last: tuple[int, Block] = (0, [])
        self._watch = FilterWatch(node.parent.call())

    def pull(self, count: int) -> Block:
        while self._position < self._length:
            first = self._position
            try:
                block = self._executor.take(first, min(count, self._length - first))
            except RowFailed as failed:
                failed.error.add_note(f"bushel: this was element {first + failed.row} of the output.")
                raise failed.error from failed.error.__cause__
            self._position = first + len(block)
            self._last = (first, block)
            kept = block if self._node.allow_nones else blocks.dense(block)
            self._watch.count(len(block), len(kept))
            if len(kept):
                return kept
        return []

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        first, block = self._last
        index = first + (row if self._node.allow_nones else blocks.place_of(block, row))
        return index, self._node.parent.origins(index)

    def get_state(self) -> State:
        return {"next_index": self._position}

    def set_state(self, state: State) -> None:
        self.set_next_index(field(state, "next_index", int))

    def get_next_index(self) -> int:
        return self._position

    def set_next_index(self, index: int) -> None:
        if not 0 <= index <= self._length:
            raise IndexError(f"Checkpoint `next_index` {index} is out of range for dataset of length {self._length}.")
        self._position = index
        self._executor.discard()

    def start_prefetch(self) -> None:
        if self._position < self._length:
            self._executor.start(self._position)

    def close(self) -> None:
        self._executor.close()
