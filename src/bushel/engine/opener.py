"""Opens streams: builds the cursors of a graph, and decides what of it runs where."""

from __future__ import annotations

import contextvars
import dataclasses
import os

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed
from bushel.base.options import DatasetOptions, ExecutionTrackingMode, ReadOptions
from bushel.engine.delivery import BlockCursor
from bushel.engine.inline import Inline
from bushel.engine.observe import Observer
from bushel.engine.program import Misfit, Program
from bushel.engine.tasks import Executor, Threads, cores
from bushel.graph.elementwise import Elementwise, FilterWatch
from bushel.graph.leaves import Source
from bushel.graph.node import MapNode, Node, Origin
from bushel.graph.options import WithOptions, options_of
from bushel.graph.ordered import BatchStream
from bushel.graph.streams import Ahead, Cursor, Elements, Same, SeedStream, State, StreamNode, field


def open_stream(
    node: StreamNode,
    read_options: ReadOptions | None = None,
    executor: Executor | None = None,
    observer: Observer | None = None,
) -> Cursor:
    """A cursor at the start of a stream.

    Args:
      node: the stream.
      read_options: stand for those of every node, if given.
      executor: runs all that can run ahead, if given, as if the whole stream were marked with `mp_prefetch`.
      observer: learns what the stream takes, if its options ask for that.
    """
    options = _outside.get().merge(options_of(node))
    observer = observer or Observer()
    if options.execution_tracking_mode is ExecutionTrackingMode.STAGE_TIMING:
        node = observer.watching(node)
    opener = _Opener(options, observer, read_options)
    before = _outside.set(_UNTIMED.merge(options))
    try:
        if executor is None:
            return observer.outlet(opener.open(node))
        return observer.outlet(opener.running_ahead(node, observer.executor(executor), 2 * executor.parallelism))
    finally:
        _outside.reset(before)


_UNTIMED = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.DISABLED)
_UNCHOSEN = DatasetOptions()
_outside: contextvars.ContextVar[DatasetOptions] = contextvars.ContextVar("outside", default=_UNCHOSEN)
"""Options of the stream that is being opened. A user's own dataset opens what it draws from as streams of their own,
which belong to the same pipeline; but to the report it is one stage."""


@dataclasses.dataclass(frozen=True)
class _Opener:
    options: DatasetOptions
    observer: Observer
    read_options: ReadOptions | None
    executor: Executor | None = None
    blocks_ahead: int = 0

    def open(self, node: StreamNode) -> Cursor:
        if self.executor is not None:
            chain = _chain_above(node)
            if chain is not None:
                return _ChainCursor(*chain, self.executor, self.blocks_ahead, self.options, self.observer)
        return self.observer.cursor(node, node.open(self))

    def elements(self, node: Elements) -> Cursor:
        options = self.read_options or node.read_options or default_options(node.parent)
        if not options.threaded:
            return ElementsCursor(node, self.options)
        executor = self.observer.executor(Threads(options.num_threads))
        program = Program(node.parent, node.allow_nones)
        size = options.prefetch_buffer_size
        cursor = BlockCursor(program, executor, self.options, ahead=size, most=size)
        return _Owner(self.observer.delivery(cursor), executor)

    def ahead(self, node: Ahead) -> Cursor:
        if self.executor is not None:  # one mark inside another: one pool serves both
            return self.open(node.parent)
        options = node.options
        num_workers = cores() if options.num_workers is None else options.num_workers
        blocks_ahead = num_workers * (2 + options.per_worker_buffer_size)
        if node.threads:
            executor: Executor = Threads(num_workers)
        else:
            # Loaded when it is needed: sockets, subprocesses and cloudpickle are a fifth of what `import bushel` costs.
            from bushel.engine.processes import DEFAULT_BUDGET_BYTES, Processes

            executor = Processes(
                num_workers,
                init=node.init,
                budget_bytes=options.budget_bytes or DEFAULT_BUDGET_BYTES,
                timeout_s=options.timeout_s,
                at_first=1 if options.num_workers is None else None,
            )
            if options.num_workers is None:
                from bushel.engine.autotune import Tuned

                executor = Tuned(executor)
        executor = self.observer.executor(executor)
        return _Owner(self.running_ahead(node.parent, executor, blocks_ahead), executor)

    def running_ahead(self, node: StreamNode, executor: Executor, blocks_ahead: int) -> Cursor:
        return dataclasses.replace(self, executor=executor, blocks_ahead=blocks_ahead).open(node)


def default_options(node: MapNode) -> ReadOptions:
    """Without options: threads where records come from outside memory, none where all are in it."""
    return ReadOptions(0, 0) if _in_memory(node) else ReadOptions()


def _in_memory(node: Node) -> bool:
    if isinstance(node, Source):
        known = isinstance(node.source, (list, tuple, str, bytes, range, np.ndarray))
        return known or getattr(node.source, "in_memory", False)
    return all(_in_memory(parent) for parent in node.parents)


Step = Elementwise | BatchStream


def _chain_above(node: StreamNode) -> tuple[Elements, list[Step]] | None:
    """The run of operations from elements of a map node down to `node`; None where something else is among them."""
    steps: list[Step] = []
    while not isinstance(node, Elements):
        if isinstance(node, (Elementwise, BatchStream)):
            steps.append(node)
        elif not isinstance(node, (SeedStream, Ahead, WithOptions)):
            return None
        node = node.parent
    return node, steps[::-1]


class _ChainCursor(Cursor):
    """A run of operations in blocks.

    Batches are made by the executor as long as no element is missing: then every batch is known by arithmetic.
    Where elements may be missing, batches are cut here, of rows that the executor has made.
    """

    def __init__(
        self,
        elements: Elements,
        steps: list[Step],
        executor: Executor,
        blocks_ahead: int,
        options: DatasetOptions,
        observer: Observer,
    ):
        self._elements, self._steps = elements, steps
        self._executor, self._ahead = executor, blocks_ahead
        self._options, self._observer = options, observer
        whole = Program(elements.parent, elements.allow_nones, tuple(steps))
        self._inner = self._cut_here() if whole.sparse else self._in_blocks(whole)

    def _in_blocks(self, program: Program) -> Cursor:
        return self._observer.delivery(BlockCursor(program, self._executor, self._options, ahead=self._ahead))

    def _cut_here(self) -> Cursor:
        kinds = [isinstance(step, BatchStream) for step in self._steps]
        cut = kinds.index(True) if True in kinds else len(kinds)
        rest = self._steps[cut:]
        as_columns = bool(rest) and isinstance(rest[0], BatchStream) and rest[0].batch_fn is None
        steps = tuple(self._steps[:cut])
        program = Program(self._elements.parent, self._elements.allow_nones, steps, as_columns, may_miss=True)
        cursor = self._in_blocks(program)
        for step in rest:
            cursor = self._observer.cursor(step, step.open(_Over(cursor, self._options)))
        return cursor

    def pull(self, count: int) -> Block:
        try:
            return self._inner.pull(count)
        except Misfit:
            # The first missing element of a pipeline that seemed to have them all: from here on, batches are cut here.
            state = self._inner.get_state()
            self._inner.close()
            self._inner = self._cut_here()
            self._inner.set_state(state)
            return self._inner.pull(count)

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self._inner.trace(row)

    def get_state(self) -> State:
        return self._inner.get_state()

    def set_state(self, state: State) -> None:
        self._inner.set_state(state)

    def get_next_index(self) -> int:
        return self._inner.get_next_index()

    def set_next_index(self, index: int) -> None:
        self._inner.set_next_index(index)

    def start_prefetch(self) -> None:
        self._inner.start_prefetch()

    def close(self) -> None:
        self._inner.close()


@dataclasses.dataclass(frozen=True)
class _Over:
    """An opener for the next operation over a cursor that is open already."""

    cursor: Cursor
    options: DatasetOptions

    def open(self, node: StreamNode) -> Cursor:
        return self.cursor

    def elements(self, node: Elements) -> Cursor:
        return self.cursor

    def ahead(self, node: Ahead) -> Cursor:
        return self.cursor


class _Owner(Same):
    """A cursor that ends its executor when it is closed."""

    def __init__(self, cursor: Cursor, executor: Executor):
        super().__init__(cursor)
        self._executor = executor
        self._process = os.getpid()

    def pull(self, count: int) -> Block:
        if os.getpid() != self._process:
            raise RuntimeError(
                "This iterator belongs to the process that forked this one. Make a new iterator here, or fork before."
            )
        return self.parent.pull(count)

    def close(self) -> None:
        if os.getpid() == self._process:  # a forked child leaves all to its parent
            super().close()
            self._executor.close()


class ElementsCursor(Cursor):
    """The elements of a map node in order, computed when they are asked for. Its state is one number."""

    def __init__(self, node: Elements, options: DatasetOptions):
        self._node = node
        self._inline = Inline(node.parent)
        self._length = node.parent.length
        self._position = 0
        self._last: tuple[int, Block] = (0, [])
        self._watch = FilterWatch(node.parent.call(), options)

    def pull(self, count: int) -> Block:
        while self._position < self._length:
            first = self._position
            try:
                block = self._inline.take(first, min(count, self._length - first))
            except RowFailed as failed:
                failed.error.add_note(f"bushel: this was element {first + failed.row} of the output.")
                raise
            self._position = first + len(block)
            self._last = (first, block)
            kept = block if self._node.allow_nones else blocks.dense(block)
            stays = blocks.presence(block) if 0 < len(kept) < len(block) else None
            self._watch.count(len(block), len(kept), stays)
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
