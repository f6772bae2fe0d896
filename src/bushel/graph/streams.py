"""Stream nodes: what comes after `to_iter_dataset`. A node describes; its cursor (cursors.py) runs."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from bushel.base import checks
from bushel.base.contract import optional
from bushel.base.options import DatasetOptions, MultiprocessingOptions, RayOptions, ReadOptions, WorkerOptions
from bushel.graph.cursors import Cursor
from bushel.graph.node import MapNode, Node
from bushel.graph.skips import Skips


class Opener(Protocol):
    """Who opens nodes: the engine. It alone knows how elements of a map node are computed."""

    @property
    def options(self) -> DatasetOptions:
        """Those of the whole pipeline."""
        ...

    @property
    def skips(self) -> Skips | None:
        """Where elements that fail are counted and left out; None where they raise."""
        ...

    @property
    def ahead_of_turn(self) -> bool:
        """Whether streams that are read side by side should be begun before their turn: somebody can work on them."""
        ...

    def open(self, node: StreamNode) -> Cursor:
        """A cursor at the start of a stream."""
        ...

    def part(self, node: StreamNode) -> Cursor:
        """Opens one of several streams that are read side by side: each may be run by a worker of its own."""
        ...

    def own(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """The iterator of a user's own dataset: what it draws from is part of this pipeline."""
        ...

    def own_apart(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Another one, to find something out: nobody works for it, and what it skips is not counted."""
        ...


class StreamNode(Node):
    """A node that can only be read in order."""

    @property
    @optional
    def length(self) -> int | None:
        """How many elements the stream has if no element is missing; None where that is not known without reading."""
        return None


class Ordered(abc.ABC):
    """A stream node whose elements depend on their neighbours. Its cursor runs once, in the consumer.

    The other stream nodes are run by the engine: per-element operations and batches are steps of its programs.
    """

    @abc.abstractmethod
    def open(self, opener: Opener) -> Cursor:
        """A cursor at the start. It opens its parents with `opener`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Elements(StreamNode):
    """The elements of a map node in order, without the missing ones."""

    parent: MapNode
    read_options: ReadOptions | None = dataclasses.field(default=None, metadata={"identity": False})
    allow_nones: bool = False

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

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)


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
    takes_a_place = False

    @property
    def length(self) -> int | None:
        return self.parent.length

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

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        return f"pipe(ThreadPrefetchIterDataset, prefetch_buffer_size={self.size})"


@dataclasses.dataclass(frozen=True, eq=False)
class ToDevice(OneParent):
    """Says that a thread puts up to `buffer` elements on devices ahead; the elements are the parent's."""

    where: Any
    buffer: int
    unsupported: str

    transparent = True
    takes_a_place = False

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        return f"to_device({self.where!r})"


@dataclasses.dataclass(frozen=True, eq=False)
class SeedStream(OneParent):
    """Changes nothing but the seeds of what follows."""

    seed: int

    @property
    def length(self) -> int | None:
        return self.parent.length

    @property
    def seed_for_children(self) -> int | None:
        return self.seed

    def call(self) -> str:
        return f"seed({self.seed})"
