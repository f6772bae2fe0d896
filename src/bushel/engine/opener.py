"""Opens streams: builds the cursors of a graph, and decides what of it runs where."""

from __future__ import annotations

import contextvars
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np

from bushel.base.blocks import Block
from bushel.base.options import DatasetOptions, ExecutionTrackingMode, RayOptions, ReadOptions
from bushel.engine.delivery import Placement
from bushel.engine.dma import DmaMapper
from bushel.engine.drawn_delivery import DrawnDelivery
from bushel.engine.host_memory import HostMemory, InHostMemory
from bushel.engine.observe import Observer
from bushel.engine.position_delivery import PositionDelivery
from bushel.engine.program import Misfit, Program, first_that_asks
from bushel.engine.stream_delivery import StreamDelivery
from bushel.engine.stream_program import StreamProgram
from bushel.engine.tasks import FORKED, Executor, Threads, cores, in_worker
from bushel.graph.batch import is_ours
from bushel.graph.cursors import Cursor, Mark, Over, Same
from bushel.graph.custom import CustomStream
from bushel.graph.elementwise import Step
from bushel.graph.leaves import Source
from bushel.graph.node import MapNode, Node
from bushel.graph.ordered import BatchCursor, BatchStream
from bushel.graph.skips import Skips, collect_skips
from bushel.graph.state_fields import State, read_count
from bushel.graph.streams import (
    Ahead,
    Elements,
    Ordered,
    Pulled,
    SeedStream,
    StreamNode,
    ToDevice,
    WithOptions,
    options_of,
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


@dataclasses.dataclass(eq=False)
class _Opener:
    """Opens the nodes of one pipeline. It is not changed; parts of the pipeline are opened by copies of it."""

    options: DatasetOptions
    observer: Observer
    read_options: ReadOptions | None
    executor: Executor | None = None
    blocks_ahead: int = 0
    alone: bool = False
    host_memory: HostMemory | None = None
    """Where elements are made that go to a device."""
    mapper: DmaMapper | None = None
    """Maps the memory of elements that go to a GPU."""
    pools: _Pools = dataclasses.field(default_factory=lambda: _Pools())

    @property
    def skips(self) -> Skips | None:
        return self.observer.skips

    @property
    def ahead_of_turn(self) -> bool:
        return self.executor is not None

    def open(self, node: StreamNode, *, copied: bool = False) -> Cursor:
        base, steps = split_steps(node, self._is_ignored)
        if type(base) is Elements:
            return self._open_elements(base, steps, copied)
        return self.over(self._open_base(base), steps)

    def _is_ignored(self, node: StreamNode) -> bool:
        """Whether a node asks for workers or threads, and has them already or cannot have them."""
        if type(node) is Pulled:
            return not node.size
        if type(node) is not Ahead:
            return False
        if self.executor is not None or self.alone or node.options.num_workers == 0:
            return True  # of two `mp_prefetch`, one inside the other, the outer one serves both
        # A worker starts no workers: a user's dataset in there may ask for some, or a module that is being imported.
        return in_worker() and not node.threads

    def _open_base(self, node: StreamNode) -> Cursor:
        if isinstance(node, Ahead):
            if isinstance(node.options, RayOptions) and (kept := _find_kept_actors(node)) is not None:
                blocks_ahead = kept.parallelism * (2 + node.options.per_worker_buffer_size)
                return self.running_ahead(node.parent, self.observer.executor(kept), blocks_ahead)
            pool = self.pools.hold(node, lambda: self.observer.executor(_executor(node, self.mapper)))
            blocks_ahead = pool.executor.parallelism * (2 + node.options.per_worker_buffer_size)
            cursor = self.running_ahead(node.parent, pool.executor, blocks_ahead)
            return _Owner(cursor, lambda: self.pools.let_go(pool))
        if isinstance(node, Pulled):
            return self.observer.pulled(self._open_in_host_memory(node.parent), node.size)
        if isinstance(node, ToDevice):
            return self._open_on_device(node)
        assert isinstance(node, Ordered)
        return self.observer.cursor(node, node.open(self), marked=self.executor is not None)

    def _open_on_device(self, node: ToDevice) -> Cursor:
        if self.executor is not None or self.alone:
            raise ValueError(
                f"Workers cannot use the device, so {node.call()} must come after mp_prefetch: "
                "write ds.mp_prefetch(...).to_device(...)."
            )
        if node.rows is not None and node.rows.is_global and self.skips is not None:
            raise ValueError(
                'Batches that several processes read together cannot skip elements that fail (on_error="skip"): the '
                "other processes would not know which ones. Leave them out before, with `where` or `slice`."
            )
        # Loaded here: they need JAX.
        from bushel.engine import dma, transfer

        devices = transfer.find_devices(node.where)
        if node.rows is None:
            stream = node.parent
            put = transfer.make_put(devices[0] if node.where is None else node.where, node.unsupported)
        else:
            stream, put = node.rows.restrict(node.parent), node.rows.assemble
        mapper = dma.find_mapper(devices)
        # The elements on the device, one in the making, and those that are under way.
        host_memory = HostMemory(_HOST_BYTES, 2 * node.buffer + 4, mapper)
        parent = dataclasses.replace(self, host_memory=host_memory, mapper=mapper)._open_in_host_memory(stream)
        return self.observer.to_device(parent, put, node.buffer, transfer.name_devices(devices), mapper)

    def _open_in_host_memory(self, node: StreamNode) -> Cursor:
        """A stream whose elements go to a device, if they do: they are made in slots that are used again.

        If a thread computes the elements, the slots are handed out on that thread.
        """
        if self.host_memory is None or isinstance(node, Pulled):
            return self.open(node)
        return InHostMemory(dataclasses.replace(self, host_memory=None).open(node), self.host_memory)

    def _open_elements(self, node: Elements, steps: list[Step], copied: bool) -> Cursor:
        options = self.read_options or node.read_options
        in_memory = _in_memory(node.parent) if options is None else not options.threaded
        if self.executor is not None or in_memory:
            return self._open_chain(node, steps, copied)
        # Threads compute the elements of the map node alone: the steps after it may not be made for threads.
        executors: list[Executor] = []

        def in_threads() -> Placement:
            chosen = options or ReadOptions()
            executors.append(self.observer.executor(Threads(chosen.num_threads)))
            return Placement(executors[0], chosen.prefetch_buffer_size, chosen.prefetch_buffer_size)

        def end_threads() -> None:
            for executor in executors:
                executor.close()

        program = self._program(node, [], stacked_next=copied and not steps)
        if options is None:
            cursor = PositionDelivery(program, None, self.options, self.skips, in_threads)
        else:
            cursor = PositionDelivery(program, in_threads(), self.options, self.skips)
        return self.over(_Owner(self.observer.delivery(cursor), end_threads), steps)

    def _open_chain(self, node: Elements, steps: list[Step], copied: bool) -> Cursor:
        """The elements of a map node and the steps after them, as one program if no element can be missing."""
        holes = node.parent.sparse and not node.allow_nones
        if holes or self.skips is not None or any([step.drops for step in steps]):
            return self._cut_in_consumer(node, steps, copied)
        program = self._program(node, steps, stacked_next=copied)
        whole = self._in_order(program)
        if program.unit == 1 and not program.counting:
            return whole
        return _ChainCursor(whole, lambda: self._cut_in_consumer(node, steps, copied))

    def _cut_in_consumer(self, node: Elements, steps: list[Step], copied: bool) -> Cursor:
        """The elements of a map node and the steps after them, if some may be missing: the consumer cuts batches."""
        cut = next((place for place, step in enumerate(steps) if type(step) is BatchStream), len(steps))
        if self.executor is not None and not self.executor.shares_counts:
            cut = first_that_asks(steps[:cut], True, self.skips is not None)
        following = steps[cut] if cut < len(steps) else None
        stacked_next = copied if following is None else type(following) is BatchStream and is_ours(following.batch_fn)
        rows = self._program(node, steps[:cut], stacked_next=stacked_next, may_miss=True)
        return self.over(self._in_order(rows), steps[cut:])

    def _program(self, node: Elements | None, steps: list[Step], **options: bool) -> Program:
        """A program over the elements of a map node, or over rows that are given."""
        skip = self.skips is not None
        if node is None:
            return Program(None, True, tuple(steps), skip=skip)
        return Program(node.parent, node.allow_nones, tuple(steps), skip=skip, reading=node, **options)

    def _in_order(self, program: Program) -> Cursor:
        """The rows of a program over a map node."""
        return self.observer.delivery(PositionDelivery(program, self._placement(), self.options, self.skips))

    def _placement(self) -> Placement | None:
        """Who computes what can be computed ahead; None is the consumer, when it is asked for."""
        return None if self.executor is None else Placement(self.executor, self.blocks_ahead)

    def part(self, node: StreamNode) -> Cursor:
        if self.executor is None or not _has_opaque_leaf(node):
            return self.open(node)
        program = StreamProgram(node, open_alone, self.options, skip=self.skips is not None)
        return self.observer.stream_delivery(StreamDelivery(program, self.executor, self.observer.skips))

    def own(self, dataset: Iterable[Any]) -> Iterator[Any]:
        def opened() -> Iterator[Any]:
            _outer.set(self)
            return iter(dataset)

        return contextvars.copy_context().run(opened)  # whatever interrupts it, nothing of it stays

    def own_apart(self, dataset: Iterable[Any]) -> Iterator[Any]:
        observer = self.observer.of_part(None if self.observer.skips is None else Skips(None))
        return dataclasses.replace(self, observer=observer, executor=None, alone=True).own(dataset)

    def inside(self, options: DatasetOptions, read_options: ReadOptions | None) -> _Opener:
        """Opens a stream that a user's own dataset draws from."""
        options = self.options.merge(options)
        observer = self.observer.of_part(self.observer.skips or _skips_of(options))
        return dataclasses.replace(self, options=options, observer=observer, read_options=read_options)

    def over(self, cursor: Cursor, steps: list[Step]) -> Cursor:
        """Steps on the rows of a cursor. Batches are cut in the consumer; the rest may go to workers."""
        for is_batch, run in itertools.groupby(steps, key=_is_batch):
            if is_batch:
                for step in run:
                    batches = BatchCursor(cursor, cast(BatchStream, step), self.skips)
                    cursor = self.observer.cursor(step, batches, marked=self.executor is not None)
            else:
                for stage in self._stages(list(run)):
                    drawn = DrawnDelivery(
                        cursor, self._program(None, stage), self._placement(), self.options, self.skips
                    )
                    cursor = self.observer.delivery(drawn)
        return cursor

    def _stages(self, steps: list[Step]) -> Iterator[list[Step]]:
        """The steps as one stage; as several, if no task may ask how many elements came before it."""
        while steps:
            cut = len(steps)
            if self.executor is not None and not self.executor.shares_counts:
                cut = first_that_asks(steps, False, self.skips is not None)
            yield steps[:cut]
            steps = steps[cut:]

    def running_ahead(self, node: StreamNode, executor: Executor, blocks_ahead: int) -> Cursor:
        return dataclasses.replace(self, executor=executor, blocks_ahead=blocks_ahead).open(node)


_HOST_BYTES = 1 << 30
"""How large the slots may be together in which the consumer makes elements for a device."""


def _executor(node: Ahead, mapper: DmaMapper | None) -> Executor:
    """Those whom a mark asks for."""
    if isinstance(node.options, RayOptions):
        from bushel.engine.actors.executor import start_actors

        return start_actors(node.options, node.init, mapper)
    num_workers = cores() if node.options.num_workers is None else node.options.num_workers
    if node.threads:
        return Threads(num_workers)
    # Loaded when they are needed: sockets, subprocesses and cloudpickle are a fifth of what `import bushel` costs.
    from bushel.engine.processes.zygote import FORKS, STARTER

    with STARTER.starting(fork=FORKS):
        from bushel.engine.processes.executor import DEFAULT_BUDGET_BYTES, Processes

        executor = Processes(
            num_workers,
            init=node.init,
            budget_bytes=node.options.budget_bytes or DEFAULT_BUDGET_BYTES,
            timeout_s=node.options.timeout_s,
            at_first=1 if node.options.num_workers is None else None,
            mapper=mapper,
        )
    if node.options.num_workers is not None:
        return executor
    from bushel.engine.pool.autotune import Tuned

    return Tuned(executor)


def _find_kept_actors(node: Ahead) -> Executor | None:
    """The actors that a block around this iterator keeps for several of them, if they are what the mark asks for."""
    from bushel.engine.actors.executor import find_kept

    return find_kept(node.options) if isinstance(node.options, RayOptions) and node.init is None else None


@dataclasses.dataclass(eq=False)
class _Pool:
    """The executor of a mark, and how many cursors hold it."""

    mark: Ahead
    executor: Executor
    holders: int = 0

    def serves(self, mark: Ahead) -> bool:
        mine = self.mark
        return mine.threads == mark.threads and mine.options == mark.options and mine.init is mark.init


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
                pool = _Pool(mark, make())
                self._open.append(pool)
            pool.holders += 1
            return pool

    def let_go(self, pool: _Pool) -> None:
        """Closes a pool that nobody else holds."""
        with self._lock:
            pool.holders -= 1
            if pool.holders:
                return
            self._open.remove(pool)
        pool.executor.close()


def default_options(node: MapNode) -> ReadOptions:
    """Without options: threads where records come from outside memory (once that proves slow), else none."""
    return ReadOptions(0, 0) if _in_memory(node) else ReadOptions()


def _in_memory(node: Node) -> bool:
    for parent in node.parents:
        if not _in_memory(parent):
            return False
    if type(node) is not Source:
        return True
    source = node.source
    return type(source) in _MEMORY or isinstance(source, _MEMORY) or getattr(source, "in_memory", False)


_MEMORY = (list, tuple, str, bytes, range, np.ndarray)


def _is_batch(step: Step) -> bool:
    return type(step) is BatchStream


def split_steps(node: StreamNode, is_ignored: Callable[[StreamNode], bool]) -> tuple[StreamNode, list[Step]]:
    """The steps that end with `node`, in order, and the stream that they begin from."""
    steps: list[Step] = []
    while True:
        if isinstance(node, Step):
            steps.append(node)
        elif type(node) is not SeedStream and type(node) is not WithOptions and not is_ignored(node):
            return node, steps[::-1]
        node = node.parents[0]  # type: ignore[assignment]  # streams draw from streams, but for Elements


def _has_opaque_leaf(node: Node) -> bool:
    """Whether something of a stream can only be read in order, by one reader."""
    if isinstance(node, (MapNode, CustomStream)):
        return isinstance(node, CustomStream)
    return not node.parents or any(_has_opaque_leaf(parent) for parent in node.parents)


class _ChainCursor(Cursor):
    """The rows of a program that relies on all elements being there; goes on in another way if one is missing.

    As long as no element is missing, every batch is known by arithmetic, and the program makes batches. A `map` of the
    user's that returns None shows only on the way that elements are missing (`Misfit`). From then on batches are cut
    in the consumer. States are the same in both ways.
    """

    def __init__(self, whole: Cursor, cut_in_consumer: Callable[[], Cursor]):
        self._cut_in_consumer = cut_in_consumer
        self._go_on_with(whole)

    def _go_on_with(self, rows: Cursor) -> None:
        self._rows, self.parents = rows, (rows,)

    def pull(self, count: int) -> Block:
        try:
            return self._rows.pull(count)
        except Misfit:
            whole, cut = self._rows, self._cut_in_consumer()
            cut.set_state(whole.get_state())
            self._go_on_with(cut)
            whole.close()
            return cut.pull(count)

    def mark(self) -> Mark:
        return self._rows, self._rows.mark()

    def rewind(self, mark: Mark) -> None:
        rows, at = mark
        if rows is self._rows:
            rows.rewind(at)
        else:
            self._rows.set_state(rows.state_of(at))

    def state_of(self, mark: Mark) -> State:
        rows, at = mark
        return rows.state_of(at)

    def mark_of(self, state: State) -> Mark:
        return self._rows, self._rows.mark_of(state)

    def get_next_index(self) -> int:
        return self._rows.get_next_index()

    def set_next_index(self, index: int) -> None:
        self._rows.set_next_index(index)


class _SkippingCursor(Over):
    """Keeps in its state how many elements were skipped."""

    def __init__(self, parent: Cursor, skips: Skips):
        super().__init__(parent)
        self._skips = skips

    def pull(self, count: int) -> Block:
        return self.parent.pull(count)

    def mark(self) -> Mark:
        return self.parent.mark(), self._skips.count

    def rewind(self, mark: Mark) -> None:
        parent, count = mark
        with collect_skips(self._skips):  # going back may read again
            self.parent.rewind(parent)
        self._skips.count = count

    def state_of(self, mark: Mark) -> State:
        parent, count = mark
        return {"parent": self.parent.state_of(parent), "skipped": count}

    def mark_of(self, state: State) -> Mark:
        if isinstance(state, dict) and "skipped" not in state:  # of a run that did not skip
            return self.parent.mark_of(state), 0
        return self.parent_mark_of(state), read_count(state, "skipped")

    def catch_up(self) -> None:
        with collect_skips(self._skips):  # all of it was counted
            super().catch_up()

    def get_next_index(self) -> int:
        return self.parent.get_next_index()

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)


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
