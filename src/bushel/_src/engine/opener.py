"""Opens streams: builds the cursors of a graph, and decides what of it runs where.

Also how many records are read together where a read costs a network round trip.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np

from bushel._src.base.blocks import Block
from bushel._src.base.errors import BushelWarning
from bushel._src.base.options import DatasetOptions, ExecutionTrackingMode, RayOptions, ReadOptions
from bushel._src.engine.delivery import Placement
from bushel._src.engine.measurements import count_cores
from bushel._src.engine.program import Misfit, Program, find_step_that_asks
from bushel._src.engine.program_delivery import PositionDelivery, StreamDelivery
from bushel._src.engine.shared_memory import DmaMapper
from bushel._src.engine.stream_program import StreamProgram
from bushel._src.engine.tasks import FORKED, Executor, Threads, in_worker
from bushel._src.engine.timing_wrappers import Observer
from bushel._src.engine.transfer import HostMemory, InHostMemory
from bushel._src.engine.upstream_delivery import UpstreamDelivery
from bushel._src.engine.where_to_run import MEASURED, TriedThreads, WhereToRun
from bushel._src.graph.batch import is_made_by_library
from bushel._src.graph.cursors import Cursor, Mark, Over, Same, Skips, State, collect_skips, read_count
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.source_nodes import SourceNode
from bushel._src.graph.stream_ops import BatchCursor, BatchStream, Step
from bushel._src.graph.streams import (
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
from bushel._src.sources.user_sources import get_batch_reader


def open_stream(
    node: StreamNode,
    read_options: ReadOptions | None = None,
    executor: Executor | None = None,
    observer: Observer | None = None,
    where: WhereToRun = MEASURED,
) -> Cursor:
    """Return a cursor at the start of a stream.

    Args:
      node: the stream.
      read_options: used in place of the options of every node, if given.
      executor: computes all that can be computed ahead, if given, as if the stream ended with an `mp_prefetch`.
      observer: measures the stages, if the options of the stream ask for that.
      where: decides where work runs. A stream inside another one follows the decisions of the outer one.
    """
    observer = observer or Observer()
    outer = _outer.get()
    if outer is None:
        options = options_of(node)
        if options.execution_tracking_mode is ExecutionTrackingMode.STAGE_TIMING:
            node = observer.time_stages(node)
        observer.skips = _make_skips(options)
        opener = _Opener(options, observer, read_options, where)
    else:
        opener = outer.make_inner(options_of(node), read_options)
        observer.skips = opener.skips
    if executor is None:
        cursor = opener.open(node)
    else:
        watched = opener.observer.watch_executor(executor)
        cursor = opener.open_ahead(node, Placement(watched, 2 * executor.parallelism))
    # If the outer stream skips elements, its own state has the count.
    if opener.skips is not None and (outer is None or outer.skips is None):
        cursor = _SkippingCursor(cursor, opener.skips)
    return observer.watch_output(cursor) if outer is None else cursor


_outer: contextvars.ContextVar[_Opener | None] = contextvars.ContextVar("outer", default=None)
"""The opener of the pipeline, while it calls `iter` on a dataset of the user's own class.

Such a dataset opens its parents as streams, by `open_stream`. These streams belong to the same pipeline: they use its
options, its executor and its count of skipped elements. The report shows the dataset as one stage.
"""


def _make_skips(options: DatasetOptions) -> Skips | None:
    if options.on_error == "skip":
        return Skips(options.skip_limit)
    if options.skip_limit is not None:
        told = f'skip_limit={options.skip_limit} has no effect without on_error="skip".'
        warnings.warn(told, BushelWarning, stacklevel=2)
    return None


def open_alone(node: StreamNode, options: DatasetOptions, skips: Skips | None) -> Cursor:
    """Return a cursor for a worker that runs a whole stream. An `mp_prefetch` inside this stream is ignored."""
    observer = Observer()
    observer.skips = skips
    return _Opener(options, observer, None, alone=True).open(node)


@dataclasses.dataclass(eq=False)
class _Opener:
    """Opens the nodes of one pipeline. An opener never changes: a copy of it opens a part that runs elsewhere."""

    options: DatasetOptions
    observer: Observer
    read_options: ReadOptions | None
    where: WhereToRun = MEASURED
    placement: Placement | None = None
    """Where elements are computed ahead; None if the consumer computes them when it asks for them."""
    alone: bool = False
    """Whether a worker runs the whole stream, and starts no workers or threads of its own."""
    host_memory: HostMemory | None = None
    """The memory for elements that go to a device."""
    mapper: DmaMapper | None = None
    """Maps the memory of elements that go to a GPU."""
    pools: _Pools = dataclasses.field(default_factory=lambda: _Pools())

    @property
    def skips(self) -> Skips | None:
        return self.observer.skips

    @property
    def ahead_of_turn(self) -> bool:
        return self.placement is not None

    def open(self, node: StreamNode, *, copied: bool = False) -> Cursor:
        base, steps = split_steps(node, self._is_ignored)
        if type(base) is Elements:
            return self._open_elements(base, steps, copied)
        return self.open_steps(self._open_base(base), steps)

    def _is_ignored(self, node: StreamNode) -> bool:
        """Return whether a node asks for workers or threads that exist already, or that it cannot have."""
        if type(node) is Pulled:
            return not node.size
        if type(node) is not Ahead:
            return False
        if self.placement is not None or self.alone or node.options.num_workers == 0:
            return True  # if an `mp_prefetch` contains another one, only the outer one starts workers
        # A worker starts no workers. A user's dataset in a worker may ask for some, or a module that it imports.
        return in_worker() and not node.threads

    def _open_base(self, node: StreamNode) -> Cursor:
        if isinstance(node, Ahead):
            if (kept := _find_kept_actors(node)) is not None:
                return self.open_ahead(node.parent, _make_placement(node, self.observer.watch_executor(kept)))
            pool = self.pools.hold(node, lambda: self.observer.watch_executor(_start_executor(node, self.mapper)))
            return _Owner(
                self.open_ahead(node.parent, _make_placement(node, pool.executor)), lambda: self.pools.let_go(pool)
            )
        if isinstance(node, Pulled):
            return self.observer.pull_ahead(self._open_in_host_memory(node.parent), node.size)
        if isinstance(node, ToDevice):
            return self._open_on_device(node)
        assert isinstance(node, Ordered)
        return self.observer.watch_cursor(node, node.open(self), marked=self.placement is not None)

    def _open_on_device(self, node: ToDevice) -> Cursor:
        if self.placement is not None or self.alone:
            raise ValueError(
                f"Workers cannot use the device, so {node.call()} must come after mp_prefetch: "
                "write ds.mp_prefetch(...).to_device(...)."
            )
        if node.rows is not None and node.rows.is_global and self.skips is not None:
            raise ValueError(
                'Batches that several processes read together cannot skip elements that fail (on_error="skip"): the '
                "other processes would not know which ones. Leave them out before, with `where` or `slice`."
            )
        # Imported here, because they import JAX.
        from bushel._src.engine import shared_memory, transfer

        devices = transfer.find_devices(node.where)
        if node.rows is None:
            stream = node.parent
            put = transfer.make_put(devices[0] if node.where is None else node.where, node.unsupported)
        else:
            stream, put = node.rows.restrict(node.parent), node.rows.assemble
        mapper = shared_memory.find_mapper(devices)
        # For the elements on the device, those on their way, and one that is being made.
        host_memory = HostMemory(_HOST_BYTES, 2 * node.buffer + 4, mapper)
        parent = dataclasses.replace(self, host_memory=host_memory, mapper=mapper)._open_in_host_memory(stream)
        return self.observer.send_to_device(parent, put, node.buffer, transfer.name_devices(devices), mapper)

    def _open_in_host_memory(self, node: StreamNode) -> Cursor:
        """Open a stream. If its elements go to a device, they are made in slots of memory that are used again.

        If a thread pulls the stream ahead, that thread takes the slots.
        """
        if self.host_memory is None or isinstance(node, Pulled):
            return self.open(node)
        return InHostMemory(dataclasses.replace(self, host_memory=None).open(node), self.host_memory)

    def _open_elements(self, node: Elements, steps: list[Step], copied: bool) -> Cursor:
        options = self.read_options or node.read_options
        in_memory = _is_in_memory(node.parent) if options is None else not options.threaded
        if self.placement is not None or in_memory:
            return self._open_chain(node, steps, copied)
        # Threads compute only the elements of the map node. The user's functions after it may not be safe in threads.
        started = contextlib.ExitStack()

        def start_threads() -> tuple[TriedThreads, Placement]:
            threads = self.where.make_threads(ReadOptions().num_threads)
            executor = self.observer.watch_executor(threads)
            started.callback(executor.close)
            most = ReadOptions().prefetch_buffer_size
            return threads, Placement(executor, 2, most, budget_bytes=_UNASKED_BYTES)

        program = self._make_program(node, [], stacked_next=copied and not steps)
        if options is None and not costs_round_trips(node.parent):
            cursor = PositionDelivery(program, None, self.options, self.skips, start_threads, self.where)
        else:
            chosen = options or ReadOptions()
            executor = self.observer.watch_executor(Threads(chosen.num_threads))
            started.callback(executor.close)
            least = count_together(node.parent, chosen.num_threads)
            # Nobody has asked for these threads, so they must not fill the memory: 500 elements may be 500 batches.
            budget_bytes = _UNASKED_BYTES if options is None else None
            ahead = chosen.prefetch_buffer_size
            placement = Placement(executor, ahead, ahead, least, budget_bytes)
            cursor = PositionDelivery(program, placement, self.options, self.skips)
        return self.open_steps(_Owner(self.observer.watch_delivery(cursor), started.close), steps)

    def _open_chain(self, node: Elements, steps: list[Step], copied: bool) -> Cursor:
        """Open the elements of a map node and the steps after them: as one program, if no element can be missing."""
        holes = node.parent.sparse and not node.allow_nones
        if holes or self.skips is not None or any([step.drops for step in steps]):
            return self._cut_in_consumer(node, steps, copied)
        program = self._make_program(node, steps, stacked_next=copied)
        whole = self._deliver(program)
        if program.unit == 1 and not program.counting:
            return whole
        return _ChainCursor(whole, lambda: self._cut_in_consumer(node, steps, copied))

    def _cut_in_consumer(self, node: Elements, steps: list[Step], copied: bool) -> Cursor:
        """Open the elements of a map node and its steps if some may be missing: the consumer cuts batches."""
        cut = next((place for place, step in enumerate(steps) if type(step) is BatchStream), len(steps))
        if not self._shares_counts():
            cut = find_step_that_asks(steps[:cut], True, self.skips is not None)
        following = steps[cut] if cut < len(steps) else None
        stacked_next = (
            copied if following is None else type(following) is BatchStream and is_made_by_library(following.batch_fn)
        )
        rows = self._make_program(node, steps[:cut], stacked_next=stacked_next, may_miss=True)
        return self.open_steps(self._deliver(rows), steps[cut:])

    def _make_program(self, node: Elements | None, steps: list[Step], **options: bool) -> Program:
        """Return a program over the elements of a map node; if `node` is None, over rows that tasks bring along."""
        skip = self.skips is not None
        if node is None:
            return Program(None, True, tuple(steps), skip=skip)
        return Program(node.parent, node.allow_nones, tuple(steps), skip=skip, reading=node, **options)

    def _deliver(self, program: Program) -> Cursor:
        """Return a cursor over the rows of a program over a map node."""
        placement = self.placement
        if placement is not None and program.node is not None:
            least = count_together(program.node, placement.executor.parallelism)
            placement = dataclasses.replace(placement, least=least)
        return self.observer.watch_delivery(PositionDelivery(program, placement, self.options, self.skips))

    def open_part(self, node: StreamNode) -> Cursor:
        if self.placement is None or not self.where.sends_stream(node):
            return self.open(node)
        program = StreamProgram(node, open_alone, self.options, skip=self.skips is not None)
        return self.observer.watch_stream(StreamDelivery(program, self.placement.executor, self.skips))

    def open_users_dataset(self, dataset: Iterable[Any]) -> Iterator[Any]:
        def call_iter() -> Iterator[Any]:
            _outer.set(self)
            return iter(dataset)

        # In a copy of the context: however `iter` ends, also by Ctrl-C, `_outer` is then what it was before.
        return contextvars.copy_context().run(call_iter)

    def open_users_dataset_apart(self, dataset: Iterable[Any]) -> Iterator[Any]:
        observer = self.observer.make_inner(None if self.observer.skips is None else Skips(None))
        return dataclasses.replace(self, observer=observer, placement=None, alone=True).open_users_dataset(dataset)

    def make_inner(self, options: DatasetOptions, read_options: ReadOptions | None) -> _Opener:
        """Return an opener for a stream that a dataset of the user's own class reads."""
        options = self.options.merge(options)
        observer = self.observer.make_inner(self.skips or _make_skips(options))
        return dataclasses.replace(self, options=options, observer=observer, read_options=read_options)

    def open_steps(self, cursor: Cursor, steps: list[Step]) -> Cursor:
        """Return a cursor that applies steps to the rows of another one. The consumer cuts the batches."""
        for is_batch, run in itertools.groupby(steps, key=_is_batch):
            if is_batch:
                for step in run:
                    batches = BatchCursor(cursor, cast(BatchStream, step), self.skips)
                    cursor = self.observer.watch_cursor(step, batches, marked=self.placement is not None)
            else:
                for stage in self._stages(list(run)):
                    program = self._make_program(None, stage)
                    drawn = UpstreamDelivery(cursor, program, self.placement, self.options, self.skips, self.where)
                    cursor = self.observer.watch_delivery(drawn)
        return cursor

    def _stages(self, steps: list[Step]) -> Iterator[list[Step]]:
        """Yield all steps as one stage; as several, if a task cannot ask how many elements came before it."""
        while steps:
            cut = len(steps) if self._shares_counts() else find_step_that_asks(steps, False, self.skips is not None)
            yield steps[:cut]
            steps = steps[cut:]

    def _shares_counts(self) -> bool:
        return self.placement is None or self.placement.executor.shares_counts

    def open_ahead(self, node: StreamNode, placement: Placement) -> Cursor:
        """Open a stream whose elements an executor computes ahead."""
        return dataclasses.replace(self, placement=placement).open(node)


_UNASKED_BYTES = 1 << 30
"""How large the elements may be together that threads prefetch without `ReadOptions`."""

_HOST_BYTES = 1 << 30
"""How many bytes all slots may have in which the consumer makes elements for a device."""


def _make_placement(node: Ahead, executor: Executor) -> Placement:
    """Return the placement for an `mp_prefetch` node: each worker may have two blocks, and those of its buffer."""
    return Placement(executor, executor.parallelism * (2 + node.options.per_worker_buffer_size))


def _start_executor(node: Ahead, mapper: DmaMapper | None) -> Executor:
    """Return the executor that an `mp_prefetch` node asks for."""
    if isinstance(node.options, RayOptions):
        from bushel._src.engine.actors.executor import start_actors

        return start_actors(node.options, node.init, mapper)
    num_workers = count_cores() if node.options.num_workers is None else node.options.num_workers
    if node.threads:
        return Threads(num_workers)
    # Imported when they are needed: sockets, subprocesses and cloudpickle are a fifth of the time of `import bushel`.
    from bushel._src.engine.processes.zygote import FORKS, STARTER

    with STARTER.starting(fork=FORKS):
        from bushel._src.engine.processes.executor import DEFAULT_BUDGET_BYTES, Processes

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
    from bushel._src.engine.pool.autotune import Tuned

    return Tuned(executor)


def _find_kept_actors(node: Ahead) -> Executor | None:
    """Return the actors that `keeping_actors` has started, if they are those that a `ray_prefetch` node asks for."""
    if not isinstance(node.options, RayOptions) or node.init is not None:
        return None
    from bushel._src.engine.actors.executor import find_kept

    return find_kept(node.options)


@dataclasses.dataclass(eq=False)
class _SharedPool:
    """An executor, the `mp_prefetch` node that asked for it first, and how many cursors use it."""

    node: Ahead
    executor: Executor
    holders: int = 0

    def serves(self, node: Ahead) -> bool:
        """Return whether another node asks for the same executor."""
        mine = self.node
        return mine.threads == node.threads and mine.options == node.options and mine.init is node.init


class _Pools:
    """The executors of one iterator. Nodes that ask for the same executor share it, and its memory budget."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[_SharedPool] = []

    def hold(self, node: Ahead, start: Callable[[], Executor]) -> _SharedPool:
        """Return the pool for a node. It is closed when each cursor that holds it has called `let_go`."""
        with self._lock:
            pool = next((pool for pool in self._open if pool.serves(node)), None)
            if pool is None:
                pool = _SharedPool(node, start())
                self._open.append(pool)
            pool.holders += 1
            return pool

    def let_go(self, pool: _SharedPool) -> None:
        """Close a pool, unless another cursor holds it."""
        with self._lock:
            pool.holders -= 1
            if pool.holders:
                return
            self._open.remove(pool)
        pool.executor.close()


def choose_read_options(node: MapNode) -> ReadOptions:
    """Return the options of a node for which the user gives none: no threads if its records are in memory."""
    return ReadOptions(0, 0) if _is_in_memory(node) else ReadOptions()


def _is_in_memory(node: Node) -> bool:
    for parent in node.parents:
        if not _is_in_memory(parent):
            return False
    if type(node) is not SourceNode:
        return True
    source = node.source
    return type(source) in _MEMORY or isinstance(source, _MEMORY) or getattr(source, "in_memory", False)


_MEMORY = (list, tuple, str, bytes, range, np.ndarray)


def _is_batch(step: Step) -> bool:
    return type(step) is BatchStream


def split_steps(node: StreamNode, is_ignored: Callable[[StreamNode], bool]) -> tuple[StreamNode, list[Step]]:
    """Return the stream that the steps before `node` begin from, and these steps, the first one first."""
    steps: list[Step] = []
    while True:
        if isinstance(node, Step):
            steps.append(node)
        elif type(node) is not SeedStream and type(node) is not WithOptions and not is_ignored(node):
            return node, steps[::-1]
        node = node.parents[0]  # type: ignore[assignment]  # streams draw from streams, but for Elements


class _ChainCursor(Cursor):
    """The rows of a program whose batches rely on all elements being there; or of another cursor, once one is missing.

    While no element is missing, the positions of every batch are known, and workers make whole batches. If a user's
    `map` returns None, an element is missing, and the program raises `Misfit`. From then on the consumer cuts the
    batches. Both ways have the same states.
    """

    def __init__(self, whole: Cursor, cut_in_consumer: Callable[[], Cursor]):
        self._cut_in_consumer = cut_in_consumer
        self._continue_with(whole)

    def _continue_with(self, rows: Cursor) -> None:
        self._rows, self.parents = rows, (rows,)

    def pull(self, count: int) -> Block:
        try:
            return self._rows.pull(count)
        except Misfit:
            whole, cut = self._rows, self._cut_in_consumer()
            cut.set_state(whole.get_state())
            self._continue_with(cut)
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
    """Adds the number of skipped elements to the state."""

    def __init__(self, parent: Cursor, skips: Skips):
        super().__init__(parent)
        self._skips = skips

    def pull(self, count: int) -> Block:
        return self.parent.pull(count)

    def mark(self) -> Mark:
        return self.parent.mark(), self._skips.count

    def rewind(self, mark: Mark) -> None:
        parent, count = mark
        with collect_skips(self._skips):  # a parent may read elements again, whose skips were counted before
            self.parent.rewind(parent)
        self._skips.count = count

    def state_of(self, mark: Mark) -> State:
        parent, count = mark
        return {"parent": self.parent.state_of(parent), "skipped": count}

    def mark_of(self, state: State) -> Mark:
        if isinstance(state, dict) and "skipped" not in state:  # the state of a run without `on_error="skip"`
            return self.parent.mark_of(state), 0
        return self.parent_mark_of(state), read_count(state, "skipped")

    def catch_up(self) -> None:
        with collect_skips(self._skips):  # these skips were counted before the state was saved
            super().catch_up()

    def get_next_index(self) -> int:
        return self.parent.get_next_index()

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)


class _Owner(Same):
    """A cursor that closes its executor when it is closed."""

    def __init__(self, cursor: Cursor, end: Callable[[], None]):
        super().__init__(cursor)
        self._end: Callable[[], None] | None = end
        self._process = os.getpid()

    def pull(self, count: int) -> Block:
        if os.getpid() != self._process:
            raise RuntimeError(FORKED)
        return self.parent.pull(count)

    def close(self) -> None:
        if os.getpid() == self._process:  # in a forked child, the workers belong to the parent process
            super().close()
            end, self._end = self._end, None
            if end is not None:
                end()


_TOGETHER = 256
"""Records that all threads or workers read at a time: twice as many as an object store gets requests, so that others
are requested while some are handed over."""


def costs_round_trips(node: Node) -> bool:
    """Return whether a source of the graph says that a read costs a round trip, and can read many records at a time."""
    if type(node) is SourceNode and getattr(node.source, "costs_round_trip", False) is True:
        return get_batch_reader(node.source) is not None
    return any(costs_round_trips(parent) for parent in node.parents)


def count_together(node: MapNode, parallelism: int) -> int:
    """Return how many elements of a map node each thread or worker should read at a time, at least."""
    if not node.length or not costs_round_trips(node):
        return 1
    records = sum(len(origin.indices) for origin in node.origins(0))
    return max(1, _TOGETHER // (max(1, parallelism) * max(1, records)))
