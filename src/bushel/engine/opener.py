"""Opens streams: builds the cursors of a graph, and decides what of it runs where."""

from __future__ import annotations

import contextvars
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from bushel.base.blocks import Block
from bushel.base.options import DatasetOptions, ExecutionTrackingMode, ReadOptions
from bushel.engine.delivery import BlockCursor, Switched
from bushel.engine.inline import ElementsCursor, UntilSlow
from bushel.engine.observe import Observer
from bushel.engine.program import Misfit, Program, first_that_asks
from bushel.engine.stages import StageCursor, WholeCursor
from bushel.engine.tasks import FORKED, Executor, Threads, cores, in_worker
from bushel.engine.whole import StreamProgram
from bushel.graph.custom import CustomStream
from bushel.graph.elementwise import Elementwise, FilterWatch
from bushel.graph.leaves import Source
from bushel.graph.node import MapNode, Node
from bushel.graph.options import WithOptions, options_of
from bushel.graph.ordered import BatchCursor, BatchStream
from bushel.graph.streams import (
    Ahead,
    Cursor,
    Elements,
    Pulled,
    Same,
    SeedStream,
    Skips,
    State,
    StreamNode,
    aside,
    counted,
    restore,
)


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
    observer = observer or Observer()
    outer = _outer.get()
    if outer is None:
        options = options_of(node)
        if options.execution_tracking_mode is ExecutionTrackingMode.STAGE_TIMING:
            node = observer.watching(node)
        observer.skips = _skips_of(options)
        opener = _Opener(options, observer, read_options)
    else:
        opener = outer.inside(options_of(node), read_options)
        observer.skips = opener.skips
    if executor is None:
        cursor = opener.open(node)
    else:
        cursor = opener.running_ahead(node, opener.observer.executor(executor), 2 * executor.parallelism)
    if opener.skips is not None and (outer is None or outer.skips is None):  # else they are counted in its state
        cursor = _SkippingCursor(cursor, opener.skips)
    return observer.outlet(cursor) if outer is None else cursor


_outer: contextvars.ContextVar[_Opener | None] = contextvars.ContextVar("outer", default=None)
"""Who opens a user's own dataset just now. It opens what it draws from as streams of their own, which belong to the
same pipeline: they have its options, its executor and its count of skips; but to the report it is one stage."""


def _skips_of(options: DatasetOptions) -> Skips | None:
    return Skips(options.skip_limit) if options.on_error == "skip" else None


def open_alone(node: StreamNode, options: DatasetOptions, skips: Skips | None) -> Cursor:
    """A cursor for a worker that runs a stream whole: marks for workers mean nothing there."""
    observer = Observer()
    observer.skips = skips
    return _Opener(options, observer, None, alone=True).open(node)


@dataclasses.dataclass(frozen=True)
class _Opener:
    options: DatasetOptions
    observer: Observer
    read_options: ReadOptions | None
    executor: Executor | None = None
    blocks_ahead: int = 0
    alone: bool = False
    pools: _Pools = dataclasses.field(default_factory=lambda: _Pools())

    @property
    def skips(self) -> Skips | None:
        return self.observer.skips

    @property
    def ahead_of_turn(self) -> bool:
        return self.executor is not None

    def open(self, node: StreamNode) -> Cursor:
        if self.executor is None:
            return self.observer.cursor(node, node.open(self))
        base, steps = _steps_above(node)
        if isinstance(base, Elements):
            return _ChainCursor(base, steps, self)
        return self.over(self.observer.cursor(base, base.open(self), marked=True), steps)

    def part(self, node: StreamNode) -> Cursor:
        if self.executor is None or not _has_opaque_leaf(node):
            return self.open(node)
        program = StreamProgram(node, open_alone, self.options, skip=self.skips is not None)
        return self.observer.delivery(WholeCursor(program, self.executor, self.skips))

    def own(self, dataset: Iterable[Any]) -> Iterator[Any]:
        def opened() -> Iterator[Any]:
            _outer.set(self)
            return iter(dataset)

        return contextvars.copy_context().run(opened)  # whatever interrupts it, nothing of it stays

    def own_apart(self, dataset: Iterable[Any]) -> Iterator[Any]:
        observer = self.observer.of_part(None if self.skips is None else Skips(None))
        return dataclasses.replace(self, observer=observer, executor=None, alone=True).own(dataset)

    def inside(self, options: DatasetOptions, read_options: ReadOptions | None) -> _Opener:
        """Opens a stream that a user's own dataset draws from."""
        options = self.options.merge(options)
        observer = self.observer.of_part(self.skips or _skips_of(options))
        return dataclasses.replace(self, options=options, observer=observer, read_options=read_options)

    def over(self, cursor: Cursor, steps: list[Step]) -> Cursor:
        """Operations on rows that come from the consumer's side: batches are cut there, the rest may go to workers."""
        assert self.executor is not None
        for elementwise, run in itertools.groupby(steps, key=lambda step: isinstance(step, Elementwise)):
            if elementwise:
                for stage in self._stages(cast("list[Elementwise]", list(run))):
                    cursor = StageCursor(cursor, stage, self.executor, self.blocks_ahead, self.options, self.observer)
            else:
                for step in run:
                    batches = BatchCursor(cursor, cast(BatchStream, step), self.skips)
                    cursor = self.observer.cursor(step, batches, marked=True)
        return cursor

    def _stages(self, steps: list[Elementwise]) -> list[list[Elementwise]]:
        """The steps as one stage; as several, where no task may ask how many elements came before it."""
        assert self.executor is not None
        stages = []
        while steps:
            cut = len(steps)
            if not self.executor.shares_counts:
                cut = first_that_asks(steps, False, self.skips is not None)
            stages.append(steps[:cut])
            steps = steps[cut:]
        return stages

    def in_blocks(self, program: Program) -> Cursor:
        """The rows of a program, computed by the executor."""
        assert self.executor is not None
        cursor = BlockCursor(program, self.executor, self.options, ahead=self.blocks_ahead, skips=self.skips)
        return self.observer.delivery(cursor)

    def elements(self, node: Elements) -> Cursor:
        options = self.read_options or node.read_options
        if options is not None and options.threaded:
            return self._in_threads(node, options)
        cursor = ElementsCursor(node, self.options, self.skips)
        if options is not None or _in_memory(node.parent):
            return cursor
        return UntilSlow(cursor, lambda: self._in_threads(node, default_options(node.parent), [cursor.watch]))

    def _in_threads(self, node: Elements, options: ReadOptions, watches: Sequence[FilterWatch] | None = None) -> Cursor:
        executor = self.observer.executor(Threads(options.num_threads))
        program = Program(node.parent, node.allow_nones, skip=self.skips is not None)
        size = options.prefetch_buffer_size
        cursor = BlockCursor(program, executor, self.options, ahead=size, most=size, skips=self.skips, watches=watches)
        return _Owner(self.observer.delivery(cursor), executor.close)

    def ahead(self, node: Ahead) -> Cursor:
        if self.executor is not None or self.alone:  # one mark inside another: one pool serves both
            return self.open(node.parent)
        if in_worker() and not node.threads:  # a user's dataset in there has it, or a module that is being imported
            return self.open(node.parent)
        num_workers = cores() if node.options.num_workers is None else node.options.num_workers
        blocks_ahead = num_workers * (2 + node.options.per_worker_buffer_size)
        pool = self.pools.hold(node, lambda: self.observer.executor(_executor(node, num_workers)))
        return _Owner(self.running_ahead(node.parent, pool.executor, blocks_ahead), pool.let_go)

    def pulled(self, node: Pulled) -> Cursor:
        return self.observer.pulled(self.open(node.parent), node.size)

    def running_ahead(self, node: StreamNode, executor: Executor, blocks_ahead: int) -> Cursor:
        return dataclasses.replace(self, executor=executor, blocks_ahead=blocks_ahead).open(node)


def _executor(node: Ahead, num_workers: int) -> Executor:
    """Those whom a mark asks for."""
    if node.threads:
        return Threads(num_workers)
    # Loaded when it is needed: sockets, subprocesses and cloudpickle are a fifth of what `import bushel` costs.
    from bushel.engine.processes import DEFAULT_BUDGET_BYTES, Processes

    executor = Processes(
        num_workers,
        init=node.init,
        budget_bytes=node.options.budget_bytes or DEFAULT_BUDGET_BYTES,
        timeout_s=node.options.timeout_s,
        at_first=1 if node.options.num_workers is None else None,
    )
    if node.options.num_workers is not None:
        return executor
    from bushel.engine.autotune import Tuned

    return Tuned(executor)


class _Pools:
    """The pools of one iterator: marks that ask for the same share one, and its budget."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[_Pool] = []

    def hold(self, mark: Ahead, make: Callable[[], Executor]) -> _Pool:
        """The pool for a mark, open until all who hold it have let it go."""
        with self._lock:
            pool = next((pool for pool in self._open if pool.serves(mark)), None)
            if pool is None:
                pool = _Pool(self, mark, make())
                self._open.append(pool)
            pool.holders += 1
            return pool

    def let_go(self, pool: _Pool) -> None:
        with self._lock:
            pool.holders -= 1
            if pool.holders:
                return
            self._open.remove(pool)
        pool.executor.close()


class _Pool:
    def __init__(self, pools: _Pools, mark: Ahead, executor: Executor):
        self._pools, self._mark = pools, mark
        self.executor = executor
        self.holders = 0

    def serves(self, mark: Ahead) -> bool:
        mine = self._mark
        return mine.threads == mark.threads and mine.options == mark.options and mine.init is mark.init

    def let_go(self) -> None:
        self._pools.let_go(self)


def default_options(node: MapNode) -> ReadOptions:
    """Without options: threads where records come from outside memory (once that proves slow), else none."""
    return ReadOptions(0, 0) if _in_memory(node) else ReadOptions()


def _in_memory(node: Node) -> bool:
    if isinstance(node, Source):
        known = isinstance(node.source, (list, tuple, str, bytes, range, np.ndarray))
        return known or getattr(node.source, "in_memory", False)
    return all(_in_memory(parent) for parent in node.parents)


Step = Elementwise | BatchStream


def _steps_above(node: StreamNode) -> tuple[StreamNode, list[Step]]:
    """The run of operations that ends with `node`, and the stream that it begins from."""
    steps: list[Step] = []
    while isinstance(node, (Elementwise, BatchStream, SeedStream, Ahead, WithOptions)):
        if isinstance(node, (Elementwise, BatchStream)):
            steps.append(node)
        node = node.parent
    return node, steps[::-1]


def _has_opaque_leaf(node: Node) -> bool:
    """Whether something of a stream can only be read in order, by one reader."""
    if isinstance(node, (MapNode, CustomStream)):
        return isinstance(node, CustomStream)
    return not node.parents or any(_has_opaque_leaf(parent) for parent in node.parents)


class _ChainCursor(Switched):
    """A run of operations in blocks.

    Batches are made by the executor as long as no element is missing: then every batch is known by arithmetic.
    Where elements may be missing, batches are cut here, of rows that the executor has made.
    """

    def __init__(self, elements: Elements, steps: list[Step], opener: _Opener):
        self._elements, self._steps, self._opener = elements, steps, opener
        whole = self._program(steps)
        self._inner = self._cut_here() if whole.sparse else opener.in_blocks(whole)

    def _program(self, steps: list[Step], **more: bool) -> Program:
        skip = self._opener.skips is not None
        return Program(self._elements.parent, self._elements.allow_nones, tuple(steps), skip=skip, **more)

    def _cut_here(self) -> Cursor:
        kinds = [isinstance(step, BatchStream) for step in self._steps]
        cut = kinds.index(True) if True in kinds else len(kinds)
        assert self._opener.executor is not None
        if not self._opener.executor.shares_counts:
            cut = first_that_asks(self._steps[:cut], True, self._opener.skips is not None)
        rest = self._steps[cut:]
        as_columns = bool(rest) and isinstance(rest[0], BatchStream) and rest[0].batch_fn is None
        program = self._program(self._steps[:cut], as_columns=as_columns, may_miss=True)
        return self._opener.over(self._opener.in_blocks(program), rest)

    def pull(self, count: int) -> Block:
        try:
            return self._inner.pull(count)
        except Misfit:
            # The first missing element of a pipeline that seemed to have them all: from here on, batches are cut here.
            whole, cut = self._inner, self._cut_here()
            cut.set_state(whole.get_state())
            self._inner = cut
            whole.close()
            return cut.pull(count)


class _SkippingCursor(Same):
    """Keeps in its state how many elements were left out."""

    def __init__(self, parent: Cursor, skips: Skips):
        super().__init__(parent)
        self._skips = skips

    def pull(self, count: int) -> Block:
        return self.parent.pull(count)

    def get_state(self) -> State:
        return {"parent": self.parent.get_state(), "skipped": self._skips.count}

    def set_state(self, state: State) -> None:
        if "skipped" not in state:  # of a run that did not skip
            state = {"parent": state, "skipped": 0}
        count = counted(state, "skipped")
        with aside(self._skips):
            restore(self.parent, state, "parent")
        self._skips.count = count

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent",)

    def catch_up(self) -> None:
        with aside(self._skips):  # all of it was counted
            super().catch_up()

    def mark(self) -> Any:
        return self.parent.mark(), self._skips.count

    def rewind(self, mark: Any) -> None:
        parent, count = mark
        with aside(self._skips):  # going back may read again
            self.parent.rewind(parent)
        self._skips.count = count

    def state_of(self, mark: Any) -> State:
        parent, count = mark
        return {"parent": self.parent.state_of(parent), "skipped": count}


class _Owner(Same):
    """A cursor that ends what it has of an executor when it is closed."""

    def __init__(self, cursor: Cursor, end: Callable[[], None]):
        super().__init__(cursor)
        self._end: Callable[[], None] | None = end
        self._process = os.getpid()

    def pull(self, count: int) -> Block:
        if os.getpid() != self._process:
            raise RuntimeError(FORKED)
        return self.parent.pull(count)

    def close(self) -> None:
        if os.getpid() == self._process:  # a forked child leaves all to its parent
            super().close()
            end, self._end = self._end, None
            if end is not None:
                end()
