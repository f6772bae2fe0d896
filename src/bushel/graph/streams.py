"""Streams: what comes after `to_iter_dataset`. A node describes, a cursor runs; cursors hand over blocks.

A cursor never pulls more than it was asked for, so the state of a chain is that of what was delivered. State
formats are Grain's, node for node.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bushel.base import blocks, transforms
from bushel.base.blocks import Block
from bushel.base.checks import INFINITE
from bushel.base.errors import RowFailed, StateMismatch, located
from bushel.base.options import ReadOptions
from bushel.base.rng import Generators
from bushel.graph.apply import call_of, each_with, filtered, mapped_columns, placed, spec_after
from bushel.graph.batch import BatchFn, batch_call, batched_spec, make_batch
from bushel.graph.node import MapNode, Node, Origin, each, told
from bushel.index import mix

State = dict[str, Any]
logger = logging.getLogger("bushel")


class Cursor(abc.ABC):
    """A position in a stream."""

    parents: tuple[Cursor, ...] = ()

    @abc.abstractmethod
    def pull(self, count: int) -> Block:
        """Up to `count` elements; none at all only at the end. Raises the user's own error where one fails."""

    @abc.abstractmethod
    def get_state(self) -> State: ...

    @abc.abstractmethod
    def set_state(self, state: State) -> None: ...

    def get_next_index(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} has no index of its next element.")

    def set_next_index(self, index: int) -> None:
        raise NotImplementedError(f"{type(self).__name__} cannot seek: what comes next depends on what came before.")

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        """Index and origins of row `row` of the last pull, where they are known."""
        return None

    def start_prefetch(self) -> None:
        for parent in self.parents:
            parent.start_prefetch()

    def close(self) -> None:
        for parent in self.parents:
            parent.close()


def field(state: Any, name: str, kind: type) -> Any:
    """Entry `name` of a state, checked."""
    if not isinstance(state, Mapping) or name not in state:
        has = f"has the keys {sorted(map(str, state))}" if isinstance(state, Mapping) else f"is {state!r}"
        raise StateMismatch(
            f"This iterator's state needs an entry {name!r}; the given one {has}. Was it saved by another pipeline?"
        )
    value = state[name]
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise StateMismatch(f"Entry {name!r} of an iterator's state must be of type {kind.__name__}, got {value!r}.")
    return value


def counted(state: Any, name: str) -> int:
    """Entry `name` of a state, a number of elements."""
    number = field(state, name, int)
    if not 0 <= number <= INFINITE:
        raise StateMismatch(f"Entry {name!r} of an iterator's state counts elements; {number} is no such number.")
    return number


class Opener(Protocol):
    """Who opens nodes: the engine. It alone knows how elements of a map node are computed."""

    def open(self, node: StreamNode) -> Cursor: ...

    def elements(self, node: Elements) -> Cursor: ...


class StreamNode(Node):
    """A node that can only be read in order."""

    @abc.abstractmethod
    def open(self, opener: Opener) -> Cursor:
        """A cursor at the start; parents are opened through `opener`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Elements(StreamNode):
    """The elements of a map node in order, without the missing ones."""

    parent: MapNode
    read_options: ReadOptions | None = dataclasses.field(default=None, metadata={"identity": False})
    allow_nones: bool = False

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    def open(self, opener: Opener) -> Cursor:
        return opener.elements(self)

    def element_spec(self) -> Any:
        return self.parent.element_spec()

    def call(self) -> str:
        return f"to_iter_dataset({'allow_nones=True' if self.allow_nones else ''})"


@dataclasses.dataclass(frozen=True, eq=False)
class _OneParent(StreamNode):
    parent: StreamNode

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)


class _Through(Cursor):
    """A cursor with one parent whose state is the parent's."""

    def __init__(self, parent: Cursor):
        self.parent = parent
        self.parents = (parent,)

    def get_state(self) -> State:
        return self.parent.get_state()

    def set_state(self, state: State) -> None:
        self.parent.set_state(state)

    def where(self, what: str) -> Callable[[int], str]:
        def where(row: int) -> str:
            known = self.parent.trace(row)
            return told(what, *known) if known else f"bushel: {what} failed."

        return where


@dataclasses.dataclass(frozen=True, eq=False)
class SeedStream(_OneParent):
    """Changes nothing but the seeds of what follows."""

    seed: int

    def open(self, opener: Opener) -> Cursor:
        return opener.open(self.parent)

    @property
    def seed_for_children(self) -> int | None:
        return self.seed

    def element_spec(self) -> Any:
        return self.parent.element_spec()

    def call(self) -> str:
        return f"seed({self.seed})"


@dataclasses.dataclass(frozen=True, eq=False)
class MapStream(_OneParent):
    """`transform` of each element; None stays None."""

    transform: Any
    vectorized: bool = False

    def open(self, opener: Opener) -> Cursor:
        return _MapCursor(opener.open(self.parent), self)

    @functools.cached_property
    def function(self) -> Callable[[Any], Any]:
        return transforms.method(self.transform, transforms.Map, "map")

    def element_spec(self) -> Any:
        return spec_after(self.transform, self.parent)

    def call(self) -> str:
        return call_of("map", self.transform, **({"vectorized": True} if self.vectorized else {}))


class _MapCursor(_Through):
    def __init__(self, parent: Cursor, node: MapStream):
        super().__init__(parent)
        self.node = node

    def pull(self, count: int) -> Block:
        block = self.parent.pull(count)
        where = self.where(placed("map", self.node.transform)) if len(block) else str
        if not self.node.vectorized or not len(block):
            return each(self.node.function, blocks.rows_of(block), where)
        try:
            return mapped_columns(self.node.function, block, self.node.call())
        except Exception as error:
            raise located(error, where(0)) from None

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self.parent.trace(row)

    def get_next_index(self) -> int:
        return self.parent.get_next_index()

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)


class _Counting(_Through):
    """A cursor that counts elements, under `key` in its state."""

    key: str

    def __init__(self, parent: Cursor):
        super().__init__(parent)
        self.count = 0

    def get_state(self) -> State:
        return {"parent": self.parent.get_state(), self.key: self.count}

    def set_state(self, state: State) -> None:
        count = counted(state, self.key)
        self.parent.set_state(field(state, "parent", dict))
        self.count = count

    def with_count(self, function: Callable[[Any, int], Any], count: int, what: str) -> Block:
        rows = blocks.rows_of(self.parent.pull(count))
        made = each_with(function, rows, range(self.count, self.count + len(rows)), self.where(what))
        self.count += len(rows)
        return made

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self.parent.trace(row)

    def get_next_index(self) -> int:
        return self.count

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)
        self.count = index


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexStream(_OneParent):
    """`transform(how many came before, element)`."""

    transform: Any

    def open(self, opener: Opener) -> Cursor:
        return _MapWithIndexCursor(opener.open(self.parent), self)

    @functools.cached_property
    def function(self) -> Callable[[int, Any], Any]:
        return transforms.method(self.transform, transforms.MapWithIndex, "map_with_index")

    def element_spec(self) -> Any:
        return spec_after(self.transform, self.parent)

    def call(self) -> str:
        return call_of("map_with_index", self.transform)


class _MapWithIndexCursor(_Counting):
    key = "counter"

    def __init__(self, parent: Cursor, node: MapWithIndexStream):
        super().__init__(parent)
        self.node = node

    def pull(self, count: int) -> Block:
        function = self.node.function
        return self.with_count(lambda row, n: function(n, row), count, placed("map_with_index", self.node.transform))


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapStream(_OneParent):
    """`transform(element, rng)` with a generator that belongs to how many elements came before."""

    transform: Any
    seed: int

    def open(self, opener: Opener) -> Cursor:
        return _RandomMapCursor(opener.open(self.parent), self)

    @functools.cached_property
    def function(self) -> Callable[[Any, np.random.Generator], Any]:
        return transforms.method(self.transform, transforms.RandomMap, "random_map")

    def element_spec(self) -> Any:
        return spec_after(self.transform, self.parent)

    def call(self) -> str:
        return call_of("random_map", self.transform, seed=self.seed)


class _RandomMapCursor(_Counting):
    key = "index_for_rng"

    def __init__(self, parent: Cursor, node: RandomMapStream):
        super().__init__(parent)
        self.node = node
        self.generators = Generators(node.seed)

    def pull(self, count: int) -> Block:
        function, generators = self.node.function, self.generators
        return self.with_count(
            lambda row, n: function(row, generators.at(n)), count, placed("random_map", self.node.transform)
        )


class FilterWatch:
    """Warns when nearly everything is dropped: a filter that is almost never true is mostly a mistake.

    Checked every 1,000 elements or so, as in Grain; at most one warning a minute.
    """

    WINDOW = 1000
    EVERY_S = 60.0

    def __init__(self, what: str, warn_ratio: float | None = 0.9):
        self._what = what
        self._warn_ratio = warn_ratio or float("inf")
        self._seen = 0
        self._dropped = 0
        self._quiet_until = 0.0

    def count(self, total: int, kept: int) -> None:
        """Counts `total` elements, of which `kept` stayed."""
        self._seen += total
        self._dropped += total - kept
        if self._seen >= self.WINDOW:
            self._judge()
            self._seen = self._dropped = 0

    def _judge(self) -> None:
        if self._dropped / self._seen >= self._warn_ratio and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + self.EVERY_S
            logger.warning(
                "%s dropped %.2f %% of the last %d elements. Please check the filter; if it is meant, "
                "filtering the data once before training is cheaper.",
                self._what,
                100 * self._dropped / self._seen,
                self._seen,
            )


@dataclasses.dataclass(frozen=True, eq=False)
class FilterStream(_OneParent):
    """Only the elements for which `transform` says yes."""

    transform: Any
    vectorized: bool = False

    def open(self, opener: Opener) -> Cursor:
        return _FilterCursor(opener.open(self.parent), self)

    @functools.cached_property
    def function(self) -> Callable[[Any], Any]:
        return transforms.method(self.transform, transforms.Filter, "filter")

    def element_spec(self) -> Any:
        return self.parent.element_spec()

    def call(self) -> str:
        return call_of("filter", self.transform, **({"vectorized": True} if self.vectorized else {}))


class _FilterCursor(_Through):
    def __init__(self, parent: Cursor, node: FilterStream):
        super().__init__(parent)
        self.node = node
        self.watch = FilterWatch(node.call())
        self.last: Block = []

    def pull(self, count: int) -> Block:
        while len(block := self.parent.pull(count)):
            where = self.where(placed("filter", self.node.transform))
            self.last = filtered(self.node.function, block, self.node.vectorized, self.node.call(), where)
            kept = blocks.dense(self.last)
            self.watch.count(len(block), len(kept))
            if len(kept):
                return kept
        return []

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self.parent.trace(blocks.place_of(self.last, row))


@dataclasses.dataclass(frozen=True, eq=False)
class BatchStream(_OneParent):
    """Batches of consecutive elements; the last one may be smaller."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: BatchFn | None = None

    def open(self, opener: Opener) -> Cursor:
        return _BatchCursor(opener.open(self.parent), self)

    def element_spec(self) -> Any:
        return batched_spec(self.parent.element_spec(), self.batch_size, self.drop_remainder, self.batch_fn)

    def call(self) -> str:
        return batch_call(self.batch_size, self.drop_remainder, self.batch_fn)


class _BatchCursor(_Through):
    def __init__(self, parent: Cursor, node: BatchStream):
        super().__init__(parent)
        self.node = node

    def pull(self, count: int) -> Block:
        batches: list[Any] = []
        for _ in range(count):
            elements = self._gather()
            if elements is None:
                break
            try:
                batches.append(make_batch(elements, self.node.batch_fn))
            except Exception as error:
                raise located(error, f"bushel: {self.node.call()} failed.") from None
        return batches

    def _gather(self) -> Block | None:
        missing = self.node.batch_size
        parts: list[Block] = []
        while missing and len(block := self.parent.pull(missing)):
            parts.append(block)
            missing -= len(block)
        if not parts or (missing and self.node.drop_remainder):
            return None
        return blocks.joined(parts)

    def get_next_index(self) -> int:
        return -(-self.parent.get_next_index() // self.node.batch_size)

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index * self.node.batch_size)


@dataclasses.dataclass(frozen=True, eq=False)
class FlatMapStream(_OneParent):
    """The elements that each element becomes, one after the other."""

    transform: transforms.FlatMap

    def open(self, opener: Opener) -> Cursor:
        return _FlatMapCursor(opener.open(self.parent), self)

    def element_spec(self) -> Any:
        raise NotImplementedError("The shapes after flat_map are not known without running it.")

    def call(self) -> str:
        return call_of("flat_map", self.transform)


class _FlatMapCursor(_Through):
    """Its state is the parent's before the element now being handed out, and how much of that one is gone."""

    def __init__(self, parent: Cursor, node: FlatMapStream):
        super().__init__(parent)
        self.node = node
        self.before = parent.get_state()
        self.parts: Sequence[Any] = ()
        self.position = 0
        self.restored = False

    def pull(self, count: int) -> Block:
        if self.restored:
            # The element is split again only now, so that setting a state reads nothing.
            self.restored = False
            position = self.position
            self.parts = self._split() or ()
            self.position = min(position, len(self.parts))
        while self.position >= len(self.parts):
            parts = self._split()
            if parts is None:
                return []
            self.parts, self.position = parts, 0
        taken = self.parts[self.position : self.position + count]
        self.position += len(taken)
        return list(taken)

    def _split(self) -> Sequence[Any] | None:
        self.before = self.parent.get_state()
        rows = blocks.rows_of(self.parent.pull(1))
        if not rows:
            return None
        parts = each(
            lambda row: list(self.node.transform.flat_map(row)),
            rows,
            self.where(placed("flat_map", self.node.transform)),
        )
        return parts[0]

    def get_state(self) -> State:
        return {"parent": self.before, "next_index_in_buffer": self.position}

    def set_state(self, state: State) -> None:
        position = counted(state, "next_index_in_buffer")
        self.parent.set_state(field(state, "parent", dict))
        self.before = self.parent.get_state()
        self.parts, self.position, self.restored = (), position, True


@dataclasses.dataclass(frozen=True, eq=False)
class MixStream(StreamNode):
    """Elements of several streams by weight; ends when the first of them does. Keys, where given, name the parts."""

    parts: tuple[StreamNode, ...]
    weights: tuple[int, ...]
    keys: tuple[str, ...] | None = None

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.parts

    def open(self, opener: Opener) -> Cursor:
        return _MixCursor(tuple(opener.open(part) for part in self.parts), self)

    def element_spec(self) -> Any:
        return self.parts[0].element_spec()

    def call(self) -> str:
        if self.keys is None:
            return f"mix(weights={list(self.weights)})"
        return f"mix(weights={dict(zip(self.keys, self.weights, strict=True))})"


class _MixCursor(Cursor):
    def __init__(self, parents: tuple[Cursor, ...], node: MixStream):
        self.parents = parents
        self.node = node
        self.index = 0
        self.stop = False

    def pull(self, count: int) -> Block:
        if self.stop:
            return []
        # One run of the same part at a time keeps its block whole; the caller asks again for the rest.
        which, _ = mix.mixed(np.arange(self.index, self.index + count), self.node.weights)
        other = np.flatnonzero(which != which[0])
        run = int(other[0]) if len(other) else count
        number = int(which[0])
        try:
            block = self.parents[number].pull(run)
        except Exception as error:
            unwrapped = error.error if isinstance(error, RowFailed) else error
            unwrapped.add_note(
                f"bushel: in part {self.node.keys[number] if self.node.keys else number} of {self.node.call()}."
            )
            raise
        if not len(block):
            self.stop = True
            self.index += 1  # as Grain counts: the element that was asked for and did not come
        self.index += len(block)
        return block

    def get_state(self) -> State:
        states = [parent.get_state() for parent in self.parents]
        parents = states if self.node.keys is None else dict(zip(self.node.keys, states, strict=True))
        return {"parents": parents, "index": self.index, "stop": self.stop}

    def set_state(self, state: State) -> None:
        keys = self.node.keys
        saved = field(state, "parents", list if keys is None else dict)
        index, stop = counted(state, "index"), field(state, "stop", bool)
        if keys is None:
            if len(saved) != len(self.parents):
                raise StateMismatch(
                    f"This state is of a mixture of {len(saved)} streams; this one has {len(self.parents)}."
                )
            for parent, parent_state in zip(self.parents, saved, strict=True):
                parent.set_state(parent_state)
        else:
            for key, parent in zip(keys, self.parents, strict=True):
                if key in saved:
                    parent.set_state(saved[key])
        self.index, self.stop = index, stop
