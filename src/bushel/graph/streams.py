"""Streams: what comes after `to_iter_dataset`. A node describes, a cursor runs; cursors hand over blocks.

A cursor never pulls more than it was asked for, so the state of a chain is that of what was delivered. State
formats are Grain's, node for node.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from bushel.base import checks
from bushel.base.blocks import Block
from bushel.base.errors import StateMismatch, TooManySkipped, WorkerDied, inside
from bushel.base.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from bushel.graph.node import MapNode, Node, Origin, describe_failure

logger = logging.getLogger("bushel")

State = dict[str, Any]


class Cursor(abc.ABC):
    """A position in a stream."""

    parents: tuple[Cursor, ...] = ()

    at_hand: Iterator[Any] = iter(())
    """The elements that come next, as far as they are there already: taking one is a pull of one that cannot fail."""

    @abc.abstractmethod
    def pull(self, count: int) -> Block:
        """Up to `count` elements; none at all only at the end.

        The elements are the caller's own: a user's function may write into them. Raises the user's own error where an
        element fails, or RowFailed around it.
        """

    def look(self, count: int) -> Block:
        """Like `pull`, for a caller that only reads the elements and then drops them, such as one that stacks a batch.

        Rows of a list may belong to somebody else, such as a source. Columns are the caller's own, as with `pull`.
        """
        return self.pull(count)

    @abc.abstractmethod
    def get_state(self) -> State: ...

    @abc.abstractmethod
    def set_state(self, state: State) -> None:
        """Goes to a state. Reads nothing: see `catch_up`. Raises StateMismatch for what is no state of this cursor."""

    def place_of(self, number: int) -> tuple[str | int, ...]:
        """Where the state of parent `number` lies in this cursor's own state; nowhere if both are the same."""
        return ()

    def catch_up(self) -> None:
        """Reads again what the state that was set stands for, such as the window that it is in the middle of.

        Without this call the next `pull` does so. Raises StateMismatch where the data do not have what the state says.
        """
        for number, parent in enumerate(self.parents):
            with inside(*self.place_of(number)):
                parent.catch_up()

    def mark(self) -> Any:
        """Remembers this position for `rewind`, as cheaply as it can: it is taken before every element."""
        return self.get_state()

    def rewind(self, mark: Any) -> None:
        """Goes back to a mark of this very cursor, after an error."""
        self.set_state(mark)

    def state_of(self, mark: Any) -> State:
        """The state at a mark of this very cursor. It may be asked in the middle of a pull: the mark alone counts."""
        return mark

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
        if isinstance(state, Mapping) and "iterators_in_use_states" in state:
            raise StateMismatch(
                "This state was written by Grain with worker processes: it holds one position per worker and "
                "describes no position in the one sequence that this pipeline gives. Save it in Grain without workers.",
                name,
            )
        has = f"has the keys {sorted(map(str, state))}" if isinstance(state, Mapping) else f"is {state!r}"
        raise StateMismatch(
            f"This iterator's state needs an entry {name!r}; the given one {has}. Was it saved by another pipeline?",
            name,
        )
    return checked(state[name], kind, name)


def checked(value: Any, kind: type, *place: str | int) -> Any:
    """A value of a state, of the given type. Numbers of NumPy become Python's."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        shown = repr(value) if len(repr(value)) <= 200 else f"{repr(value)[:200]}..."
        raise StateMismatch(
            f"Entry {place[-1]!r} of an iterator's state must be of type {kind.__name__}, got {shown}.", *place
        )
    return value


MOST_COUNTED = 1 << 62
"""No stream has given more elements, and 64-bit words have room for sums with it."""


def counted(state: Any, name: str, most: int = MOST_COUNTED) -> int:
    """Entry `name` of a state, a number of elements."""
    number = field(state, name, int)
    if not 0 <= number <= most:
        limit = "" if most == MOST_COUNTED else f" There are {most} at most."
        raise StateMismatch(
            f"Entry {name!r} of an iterator's state counts elements; {number} is no such number.{limit}", name
        )
    return number


def restore(parent: Cursor, state: Any, name: str) -> None:
    """Sets the state of a parent, which is entry `name` of its child's state."""
    inner = field(state, name, dict)
    with inside(name):
        parent.set_state(inner)


LeftOut = tuple[str, str, int]
"""Elements that failed as one: which, their error in words, and how many."""


class Skips:
    """Counts the elements that failed and were left out, within a limit.

    The count belongs to what was delivered, as a state does. So who reads before anyone has asked puts `aside` what
    fails meanwhile, and counts it when the row is handed over that came after it; who reads again counts nothing again.
    """

    def __init__(self, limit: int | None):
        self.limit = limit
        self.count = 0
        self.aside: dict[int, list[LeftOut]] = {}
        """Where threads that do not count now put what fails: see the function `aside`."""

    def add(self, which: str, error: str, number: int = 1) -> None:
        """One more, or `number` that failed as one. Tells of the first, the tenth, the hundredth ..."""
        listed = self.aside.get(threading.get_ident())
        if listed is not None:
            listed.append((which, error, number))
        before = self.count if listed is None else len(listed) - 1  # that alone may be too many, to no end
        count = before + number
        if self.limit is not None and count > self.limit:
            allowed = "as many as skip_limit allows" if before == self.limit else f"and skip_limit is {self.limit}"
            raise TooManySkipped(
                f"{which} failed, and {before} elements were skipped already, {allowed}. It failed with\n{error}"
            )
        if listed is None:
            self.count = count
            if not before or len(str(count)) > len(str(before)):
                logger.warning("Skipped %s, the %d. of this stream:\n%s", which, count, error)

    def mark(self) -> int:
        """Remembers for `rewind` what this thread has counted or listed."""
        listed = self.aside.get(threading.get_ident())
        return self.count if listed is None else len(listed)

    def rewind(self, mark: int) -> None:
        """Forgets what this thread has counted or listed since a mark."""
        listed = self.aside.get(threading.get_ident())
        if listed is None:
            self.count = mark
        else:
            del listed[mark:]


@contextlib.contextmanager
def aside(skips: Skips | None) -> Iterator[list[LeftOut]]:
    """What fails meanwhile in this thread is not counted but listed, for `count_listed` when its turn has come."""
    listed: list[LeftOut] = []
    if skips is None:
        yield listed
        return
    thread = threading.get_ident()
    before = skips.aside.get(thread)
    try:
        skips.aside[thread] = listed
        yield listed
    finally:
        if before is None:
            skips.aside.pop(thread, None)
        else:
            skips.aside[thread] = before


def count_listed(skips: Skips | None, listed: list[LeftOut]) -> None:
    """Counts what was put aside."""
    for left_out in listed:
        assert skips is not None
        skips.add(*left_out)


@contextlib.contextmanager
def listing_skips(skips: Skips | None) -> Iterator[list[LeftOut]]:
    """Lists what fails meanwhile in this thread, and counts it at the end."""
    too_many: TooManySkipped | None = None
    with aside(skips) as listed:
        try:
            yield listed
        except TooManySkipped as error:
            too_many = error
    count_listed(skips, listed)  # where there are too many it says so, with the number that were skipped before
    if too_many is not None:
        raise too_many


def pull_several(parent: Cursor, count: int, skips: Skips | None, read: Callable[[int], Block] | None = None) -> Block:
    """Up to `count` elements of `parent`, for a cursor that needs all of them; none at all only at the end.

    They are read with `read`, which is the parent's `pull` unless it is given.

    Operations work on whole blocks, one operation after the other. So the first that fails in a block need not have
    failed at the first element that fails. After an error the elements are read again one by one, and the error is
    that of the first element that fails then; or still the first error, if it was one that comes and goes.
    """
    read = read or parent.pull
    if count == 1:
        return read(1)
    before, skipped = parent.mark(), None if skips is None else skips.mark()
    try:
        return read(count)
    except WorkerDied:
        raise  # workers compute in order, and others would die over the same element
    except Exception as error:
        failure = error
    with aside(skips):
        parent.rewind(before)
    if skips is not None and skipped is not None:
        skips.rewind(skipped)
    while count and len(read(1)):
        count -= 1
    raise failure


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

    def open(self, node: StreamNode) -> Cursor: ...

    def part(self, node: StreamNode) -> Cursor:
        """Opens one of several streams that are read side by side: each may be run by a worker of its own."""
        ...

    def own(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """The iterator of a user's own dataset: what it draws from is part of this pipeline."""
        ...

    def own_apart(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Another one, to find something out: nobody works for it, and what it skips is not counted."""
        ...

    def elements(self, node: Elements) -> Cursor: ...

    def ahead(self, node: Ahead) -> Cursor: ...

    def pulled(self, node: Pulled) -> Cursor: ...


class StreamNode(Node):
    """A node that can only be read in order."""

    @abc.abstractmethod
    def open(self, opener: Opener) -> Cursor:
        """A cursor at the start; parents are opened through `opener`."""

    @property
    def length(self) -> int | None:
        """How many elements the stream has if no element is missing; None where that is not known without reading."""
        return None

    def describe(self) -> str:
        """The operation as it reads in a message."""
        return self.call()


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

    def open(self, opener: Opener) -> Cursor:
        return opener.elements(self)

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


class Through(Cursor):
    """A cursor with one parent whose state is the parent's."""

    def __init__(self, parent: Cursor):
        self.parent = parent
        self.parents = (parent,)

    def get_state(self) -> State:
        return self.parent.get_state()

    def set_state(self, state: State) -> None:
        self.parent.set_state(state)

    def mark(self) -> Any:
        return self.parent.mark()

    def rewind(self, mark: Any) -> None:
        self.parent.rewind(mark)

    def state_of(self, mark: Any) -> State:
        return self.parent.state_of(mark)

    def where(self, node: StreamNode) -> Callable[[int], str]:
        """Tells where row `row` of the parent's last pull failed in `node`."""

        def where(row: int) -> str:
            known = self.parent.trace(row)
            return describe_failure(node.describe(), *known) if known else f"bushel: {node.describe()} failed."

        return where


class Same(Through):
    """A cursor whose elements are its parent's, one for one."""

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self.parent.trace(row)

    def get_next_index(self) -> int:
        return self.parent.get_next_index()

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)


@dataclasses.dataclass(frozen=True, eq=False)
class Ahead(OneParent):
    """Says that everything above is computed ahead by workers; the elements are the parent's."""

    options: MultiprocessingOptions
    threads: bool = False
    init: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        way_out = "MultiprocessingOptions(num_workers=...)"
        checks.instance(self.options, MultiprocessingOptions, "options of mp_prefetch", way_out)
        if self.init is not None and not callable(self.init):
            raise TypeError(f"worker_init_fn must be a function of (worker index, worker count), got {self.init!r}.")

    transparent = True
    takes_a_place = False

    def open(self, opener: Opener) -> Cursor:
        return opener.open(self.parent) if self.options.num_workers == 0 else opener.ahead(self)

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        name = "multithread_prefetch" if self.threads else "mp_prefetch"
        return f"{name}({'' if self.options.num_workers is None else f'num_workers={self.options.num_workers}'})"


@dataclasses.dataclass(frozen=True, eq=False)
class Pulled(OneParent):
    """Says that a thread pulls up to `size` elements ahead, whatever the stream; the elements are the parent's."""

    size: int

    transparent = True  # and it takes a place, as in Grain

    def open(self, opener: Opener) -> Cursor:
        return opener.pulled(self) if self.size else opener.open(self.parent)

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        return f"pipe(ThreadPrefetchIterDataset, prefetch_buffer_size={self.size})"


@dataclasses.dataclass(frozen=True, eq=False)
class SeedStream(OneParent):
    """Changes nothing but the seeds of what follows."""

    seed: int

    def open(self, opener: Opener) -> Cursor:
        return opener.open(self.parent)

    @property
    def length(self) -> int | None:
        return self.parent.length

    @property
    def seed_for_children(self) -> int | None:
        return self.seed

    def call(self) -> str:
        return f"seed({self.seed})"
