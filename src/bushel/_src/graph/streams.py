"""Stream nodes: what comes after `to_iter_dataset`. A node describes; its cursor (cursors.py) runs."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Protocol

from bushel._src.base import checks
from bushel._src.base.options import (
    DatasetOptions,
    MultiprocessingOptions,
    RayOptions,
    ReadOptions,
    WorkerOptions,
    jax_process,
)
from bushel._src.base.state_names import in_states, overridable
from bushel._src.graph.cursors import Cursor, Skips
from bushel._src.graph.node import MapNode, Node


class Opener(Protocol):
    """Opens nodes. The engine implements it, since it alone knows how elements of a map node are computed."""

    @property
    def options(self) -> DatasetOptions:
        """The options of the whole pipeline."""
        ...

    @property
    def skips(self) -> Skips | None:
        """Where elements that fail are counted and left out; None where they raise."""
        ...

    @property
    def ahead_of_turn(self) -> bool:
        """Whether streams that are read side by side should be begun before their turn, for workers to compute."""
        ...

    def open(self, node: StreamNode, *, copied: bool = False) -> Cursor:
        """Return a cursor at the start of a stream.

        If the elements are `copied`, the caller only reads them, and copies what it hands on, as a stage that packs
        sequences into rows does. They need not be private then, and may belong to a source.
        """
        ...

    def open_part(self, node: StreamNode) -> Cursor:
        """Open one of several streams that are read side by side: each may be run by a worker of its own."""
        ...

    def open_users_dataset(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Return the iterator of a user's own dataset. The datasets that it draws from are part of this pipeline."""
        ...

    def open_users_dataset_apart(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Return another such iterator, to look something up: no worker computes for it, and its skips are not
        counted.
        """
        ...


class StreamNode(Node):
    """A node that can only be read in order."""

    @property
    @overridable
    def length(self) -> int | None:
        """How many elements the stream has if no element is missing; None where that is not known without reading."""
        return None


class Ordered(abc.ABC):
    """A stream node whose elements depend on their neighbours. Its cursor runs once, in the consumer.

    The other stream nodes are run by the engine: per-element operations and batches are steps of its programs.
    """

    @abc.abstractmethod
    def open(self, opener: Opener) -> Cursor:
        """Return a cursor at the start. It opens its parents with `opener`."""


@in_states("to_iter_dataset")
@dataclasses.dataclass(frozen=True, eq=False)
class Elements(StreamNode):
    """The elements of a map node in order, without the missing ones."""

    parent: MapNode
    read_options: ReadOptions | None = dataclasses.field(default=None, metadata={"identity": False})
    allow_nones: bool = False

    moves = True

    def __post_init__(self) -> None:
        if self.read_options is not None:
            checks.instance(self.read_options, ReadOptions, "read_options", "ReadOptions(num_threads=...)")

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    @property
    def length(self) -> int | None:
        return None if self.parent.sparse and not self.allow_nones else self.parent.length

    def call(self) -> str:
        return f"to_iter_dataset({'allow_nones=True' if self.allow_nones else ''})"


@dataclasses.dataclass(frozen=True, eq=False)
class OneParent(StreamNode):
    """A stream node that draws from one other."""

    parent: StreamNode

    keeps_length: ClassVar[bool] = False
    """Whether it has one element for each of the parent's."""

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    @property
    @overridable
    def length(self) -> int | None:
        """By default that of the parent where it `keeps_length`; otherwise it is not known."""
        return self.parent.length if self.keeps_length else None


@dataclasses.dataclass(frozen=True, eq=False)
class SeveralStreams(StreamNode):
    """A stream node that draws from several others."""

    parts: tuple[StreamNode, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.parts

    @property
    def joins(self) -> bool:
        return True


@dataclasses.dataclass(frozen=True, eq=False)
class Ahead(OneParent):
    """Says that everything above is computed ahead by workers; the elements are the parent's."""

    options: WorkerOptions
    threads: bool = False
    init: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.options, RayOptions):
            way_out = "MultiprocessingOptions(num_workers=...)"
            checks.instance(self.options, MultiprocessingOptions, "options of mp_prefetch", way_out)
        if self.init is not None and not callable(self.init):
            raise TypeError(f"worker_init_fn must be a function of (worker index, worker count), got {self.init!r}.")

    transparent = True
    moves = True
    counts_for_seeds = False
    keeps_length = True

    def call(self) -> str:
        name = "multithread_prefetch" if self.threads else "mp_prefetch"
        if isinstance(self.options, RayOptions):
            name = "ray_prefetch"
        return f"{name}({'' if self.options.num_workers is None else f'num_workers={self.options.num_workers}'})"


@dataclasses.dataclass(frozen=True, eq=False)
class Pulled(OneParent):
    """Says that a thread pulls up to `size` elements ahead, whatever the stream; the elements are the parent's."""

    size: int

    transparent = True
    moves = True
    keeps_length = True

    def call(self) -> str:
        return f"pipe(ThreadPrefetchIterDataset, prefetch_buffer_size={self.size})"


class RowsForDevices(Protocol):
    """Which rows of each batch this process reads, and how they become arrays: see `datasets/global_arrays.py`."""

    @property
    def is_global(self) -> bool:
        """Whether several processes read the same batches together, each the rows of its own devices."""
        ...

    def restrict(self, stream: StreamNode) -> StreamNode:
        """Return the stream with only the rows that this process needs."""
        ...

    def assemble(self, element: Any) -> Any:
        """Start to copy an element of that stream to the devices, and returns it there."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class ToDevice(OneParent):
    """Says that a thread puts up to `buffer` elements on devices ahead; the elements are the parent's."""

    where: Any
    buffer: int
    unsupported: str
    rows: RowsForDevices | None = None
    """What this process reads of each batch; None where each array of the parent goes to `where` as it is."""

    transparent = True
    counts_for_seeds = False

    @property
    def length(self) -> int | None:
        return (self.parent if self.rows is None else self.rows.restrict(self.parent)).length

    def call(self) -> str:
        return f"to_device({self.where!r})"


@in_states("stream_seed")
@dataclasses.dataclass(frozen=True, eq=False)
class SeedStream(OneParent):
    """Changes nothing but the seeds of what follows."""

    seed: int

    moves = True
    keeps_length = True

    @property
    def seed_for_children(self) -> int | None:
        return self.seed

    def call(self) -> str:
        return f"seed({self.seed})"


@dataclasses.dataclass(frozen=True, eq=False)
class WithOptions(OneParent):
    """The elements of its parent; `options` hold for the whole pipeline, before and after this place."""

    options: DatasetOptions

    transparent = True  # and it counts for seeds, as in Grain: a seed after it would differ otherwise
    moves = True
    keeps_length = True

    def call(self) -> str:
        return f"pipe(WithOptionsIterDataset, {self.options})"


_NONE_CHOSEN = DatasetOptions()


def options_of(node: StreamNode) -> DatasetOptions:
    """Return the options of a whole pipeline. Of two `WithOptions` the later one holds; of two parts, the first."""
    options = node.options if type(node) is WithOptions else _NONE_CHOSEN
    for parent in node.parents if type(node) is not Elements else ():  # nothing before a stream has any
        if isinstance(parent, StreamNode):
            options = options.merge(options_of(parent))
    return options


def reads_global_batches(node: Node) -> bool:
    """Return whether all processes read the same batches together, so that each may restore the state of any other.

    A process that is alone has the batches that several would read together.
    """
    if isinstance(node, ToDevice):
        return (node.rows is not None and node.rows.is_global) or jax_process()[1] == 1
    return any(reads_global_batches(parent) for parent in node.parents if isinstance(parent, StreamNode))
