"""Operations on streams: on single elements, and those that depend on order: batch, flat_map, mix, zip.

Programs run operations on single elements. A shuffle inside windows depends on order, too.
"""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np

from bushel._src.base import blocks, checks, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import RowFailed, StateMismatch, add_note, describe_error, inside, locate_error
from bushel._src.base.private_elements import make_private
from bushel._src.base.state_names import in_states, overridable
from bushel._src.graph import operation
from bushel._src.graph.batch import BatchFn, derive_batch_spec, format_batch_call, is_made_by_library, make_batch
from bushel._src.graph.cursors import (
    END,
    Cursor,
    GroupCursor,
    Mark,
    Skips,
    State,
    collect_skips,
    count_collected,
    make_rows,
    pull_exactly,
    read_count,
    read_field,
)
from bushel._src.graph.operation import FLAT_MAP_ALL, WithOperation, format_call
from bushel._src.graph.reindex import zip_blocks
from bushel._src.graph.streams import OneParent, Opener, Ordered, SeveralStreams
from bushel._src.index import mix, shuffle


class Step(OneParent):
    """A stream node that a program runs: an operation on single elements, or a batch."""

    @property
    @overridable
    def gathers(self) -> int:
        """How many elements become one; by default each stays alone."""
        return 1

    @property
    @overridable
    def count_key(self) -> str | None:
        """Where the state keeps how many elements came before, for operations that depend on it; by default none do."""
        return None

    @property
    @overridable
    def drops(self) -> bool:
        """Whether elements may be dropped; by default none are."""
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class Elementwise(WithOperation, Step):
    """An operation on single elements. It may count them, and it may drop some; it never looks at two at a time."""

    transform: Any

    @property
    def count_key(self) -> str | None:
        return self.kind.count_key

    @property
    def drops(self) -> bool:
        return self.kind.drops

    @property
    def length(self) -> int | None:
        return None if self.drops else self.parent.length

    def element_spec(self) -> Any:
        return self.operation.derive_spec(self.parent)


@in_states("stream_map")
@dataclasses.dataclass(frozen=True, eq=False)
class MapStream(Elementwise):
    """`transform` of each element; None stays None."""

    vectorized: bool = False
    kind = operation.MAP


@in_states("stream_map_with_index")
@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexStream(Elementwise):
    """`transform(how many came before, element)`."""

    kind = operation.MAP_WITH_INDEX


@in_states("stream_random_map")
@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapStream(Elementwise):
    """`transform(element, rng)` with a generator that belongs to how many elements came before."""

    seed: int
    kind = operation.RANDOM_MAP


@in_states("stream_filter")
@dataclasses.dataclass(frozen=True, eq=False)
class FilterStream(Elementwise):
    """Only the elements for which `transform` returns True."""

    vectorized: bool = False
    kind = operation.FILTER_ALL


@in_states("stream_batch")
@final
@dataclasses.dataclass(frozen=True, eq=False)
class BatchStream(Step):
    """Batches of consecutive elements; the last one may be smaller."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: BatchFn | None = None

    @property
    def gathers(self) -> int:
        return self.batch_size

    @property
    def length(self) -> int | None:
        elements = self.parent.length
        return elements if elements is None or elements >= INFINITE else self.count_batches(elements)

    def count_batches(self, elements: int) -> int:
        """Return how many batches so many elements make."""
        return elements // self.batch_size if self.drop_remainder else -(-elements // self.batch_size)

    def element_spec(self) -> Any:
        return derive_batch_spec(self.parent.element_spec(), self.batch_size, self.drop_remainder, self.batch_fn)

    def call(self) -> str:
        return format_batch_call(self.batch_size, self.drop_remainder, self.batch_fn)


class BatchCursor(Cursor):
    """Cuts batches of what its parent gives, where a program cannot make them: after a filter, or an ordered stage."""

    def __init__(self, parent: Cursor, node: BatchStream, skips: Skips | None):
        self.parent = parent
        self.parents = (parent,)
        self.node = node
        self.skips = skips
        self.ended = False

    def pull(self, count: int) -> Block:
        return make_rows(self, count, self._next_batch, self.skips)

    def _next_batch(self) -> Any:
        batch_fn = self.node.batch_fn
        while (elements := self._gather()) is not None:
            gathered = [elements]
            del elements  # the gate counts who holds what a batch is made of
            try:
                batch = [make_batch(gathered.pop(), batch_fn)]
                return batch[0] if is_made_by_library(batch_fn) else make_private(batch)[0]
            except Exception as error:
                error = locate_error(error, f"bushel: {self.node.call()} failed.")
                if self.skips is None:
                    raise RowFailed(0, error) from error
                self.skips.add("a batch", describe_error(error))
        return END

    def _gather(self) -> Block | None:
        size = self.node.batch_size
        elements: Block = [] if self.ended else pull_exactly(self.parent, size)
        self.ended = self.ended or len(elements) < size  # a parent is asked past its end just once
        return None if not len(elements) or (len(elements) < size and self.node.drop_remainder) else elements

    def mark(self) -> Mark:
        return self.parent.mark(), self.ended

    def rewind(self, mark: Mark) -> None:
        parent, self.ended = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Mark) -> State:
        return self.parent.state_of(mark[0])

    def mark_of(self, state: State) -> Mark:
        return self.parent.mark_of(state), False

    def get_next_index(self) -> int:
        return -(-self.parent.get_next_index() // self.node.batch_size)

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index * self.node.batch_size)
        self.ended = False


@in_states("stream_flat_map")
@dataclasses.dataclass(frozen=True, eq=False)
class FlatMapStream(OneParent, Ordered):
    """The elements that each element becomes, one after the other."""

    transform: Any

    no_spec = "The shapes after flat_map are not known without running it."

    def open(self, opener: Opener) -> Cursor:
        return _FlatMapCursor(opener.open(_ElementsOfEach(self.parent, self.transform)), self, opener.skips)

    def call(self) -> str:
        return format_call("flat_map", self.transform)


@in_states("stream_flat_map_parts")
@dataclasses.dataclass(frozen=True, eq=False)
class _ElementsOfEach(Elementwise):
    """The list of parts of each element. It calls the user's function, as a step of a program: workers can do it."""

    kind = FLAT_MAP_ALL


class _FlatMapCursor(GroupCursor[FlatMapStream]):
    """A group is the list of parts of one element."""

    given_key, group_name = "next_index_in_buffer", "what flat_map makes of an element"
    keeps_given_at_end = True

    def pull(self, count: int) -> Block:
        return self.next_rows(count)

    def read_group(self) -> Block | None:
        rows = blocks.rows_of(self.read_parent(1))
        return rows[0] if rows else None


@in_states("stream_mix")
@dataclasses.dataclass(frozen=True, eq=False)
class MixStream(SeveralStreams, Ordered):
    """Elements of several streams by weight; ends when the first of them does. Keys, where given, name the parts."""

    weights: tuple[int, ...]
    keys: tuple[str, ...] | None = None

    moves = True

    def open(self, opener: Opener) -> Cursor:
        return _MixCursor(tuple(opener.open_part(part) for part in self.parts), self)

    def call(self) -> str:
        if self.keys is None:
            return f"mix(weights={list(self.weights)})"
        return f"mix(weights={dict(zip(self.keys, self.weights, strict=True))})"


class _MixCursor(Cursor):
    def __init__(self, parents: tuple[Cursor, ...], node: MixStream):
        self.parents = parents
        self.state_paths = tuple(("parents", key) for key in node.keys or range(len(parents)))
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
            add_note(
                unwrapped,
                f"bushel: in part {self.node.keys[number] if self.node.keys else number} of {self.node.call()}.",
            )
            raise
        if not len(block):
            self.stop = True
            self.index += 1  # as Grain counts: the element that was asked for and did not come
        self.index += len(block)
        return block

    def mark(self) -> Mark:
        return [parent.mark() for parent in self.parents], self.index, self.stop

    def rewind(self, mark: Mark) -> None:
        marks, self.index, self.stop = mark
        for parent, at in zip(self.parents, marks, strict=True):
            parent.rewind(at)

    def state_of(self, mark: Mark) -> State:
        marks, index, stop = mark
        states = [parent.state_of(at) for parent, at in zip(self.parents, marks, strict=True)]
        parents = states if self.node.keys is None else dict(zip(self.node.keys, states, strict=True))
        return {"parents": parents, "index": index, "stop": stop}

    def mark_of(self, state: State) -> Mark:
        keys = self.node.keys
        saved = read_field(state, "parents", list if keys is None else dict)
        index, stop = read_count(state, "index"), read_field(state, "stop", bool)
        if keys is None:
            return read_marks(self.parents, saved, "mixture"), index, stop
        marks = []
        for key, parent in zip(keys, self.parents, strict=True):
            with inside("parents", key):
                # A part that the state does not know stays where it is.
                marks.append(parent.mark_of(saved[key]) if key in saved else parent.mark())
        return marks, index, stop


def read_marks(parents: tuple[Cursor, ...], states: list[Any], what: str) -> list[Mark]:
    """Return the positions of several parents, whose states are the list under "parents"."""
    if len(states) != len(parents):
        raise StateMismatch(
            f"This state is of a {what} of {len(states)} streams; this one has {len(parents)}.", "parents"
        )
    marks = []
    for number, (parent, state) in enumerate(zip(parents, states, strict=True)):
        with inside("parents", number):
            marks.append(parent.mark_of(state))
    return marks


@in_states("stream_zip")
@dataclasses.dataclass(frozen=True, eq=False)
class ZipStream(SeveralStreams, Ordered):
    """Tuples of the elements of several streams; with `strict`, streams of different lengths are an error."""

    strict: bool = True

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("At least one parent must be provided.")

    def open(self, opener: Opener) -> Cursor:
        return _ZipCursor(tuple(opener.open_part(part) for part in self.parts), self, opener.skips)

    @property
    def length(self) -> int | None:
        lengths = [part.length for part in self.parts]
        return None if None in lengths else min(length for length in lengths if length is not None)

    def element_spec(self) -> Any:
        return tuple(part.element_spec() for part in self.parts)

    def call(self) -> str:
        return "zip" if self.strict else "zip(strict=False)"


class _ZipCursor(Cursor):
    def __init__(self, parents: tuple[Cursor, ...], node: ZipStream, skips: Skips | None):
        self.parents = parents
        self.state_paths = tuple(("parents", number) for number in range(len(parents)))
        self.node = node
        self.skips = skips
        self.ended = False

    def pull(self, count: int) -> Block:
        if count > 1 and not self.ended and (block := self._pull_together(count)) is not None:
            return block
        rows = make_rows(self, count, self._next_tuple, self.skips)
        return blocks.join(rows) if rows else []

    def _pull_together(self, count: int) -> Block | None:
        """Return the next `count` tuples, with one pull of each stream. None if a stream ends or fails among them.

        The caller then reads tuple by tuple, so that nothing is read beyond the end of the shortest stream.
        """
        before = self.mark()
        with collect_skips(self.skips) as skipped:
            columns: list[Block]
            try:
                columns = [pull_exactly(parent, count) for parent in self.parents]
            except Exception:
                columns = [[]]
            if any(len(column) < count for column in columns):
                self.rewind(before)
                return None
        count_collected(self.skips, skipped)
        return zip_blocks(columns, count)

    def _next_tuple(self) -> Any:
        """Return the next tuple as a block of one, or END."""
        if self.ended:
            return END
        columns: list[Block] = []
        for number, parent in enumerate(self.parents):
            block = parent.pull(1)
            if not len(block):
                if self.node.strict:
                    self._check_ends(number)
                # Otherwise each further pull would take one more element from a longer stream.
                self.ended = True
                return END
            columns.append(block)
        return zip_blocks(columns, 1)

    def _check_ends(self, number: int) -> None:
        """Raise unless all streams have ended; stream `number` has, before those after it were asked."""
        if number:
            raise ValueError(_describe_lengths(number, "shorter"))
        for other, parent in enumerate(self.parents[1:], 1):
            if len(parent.pull(1)):
                raise ValueError(_describe_lengths(other, "longer"))

    def mark(self) -> Mark:
        return [parent.mark() for parent in self.parents], self.ended

    def rewind(self, mark: Mark) -> None:
        marks, self.ended = mark
        for parent, at in zip(self.parents, marks, strict=True):
            parent.rewind(at)

    def state_of(self, mark: Mark) -> State:
        marks, ended = mark
        states = [parent.state_of(at) for parent, at in zip(self.parents, marks, strict=True)]
        # Grain's state, and at the end one entry more: a longer stream must not be read further after a restore.
        return {"parents": states, "ended": True} if ended and not self.node.strict else {"parents": states}

    def mark_of(self, state: State) -> Mark:
        states = read_field(state, "parents", list)
        ended = "ended" in state and read_field(state, "ended", bool)
        return read_marks(self.parents, states, "zip"), ended


def _describe_lengths(number: int, how: str) -> str:
    others = "stream 1" if number == 1 else f"streams 1 to {number}"
    return f"zip: stream {number + 1} is {how} than {others}. Pass strict=False to end with the shortest."


@in_states("stream_window_shuffle")
@dataclasses.dataclass(frozen=True, eq=False)
class WindowShuffleStream(OneParent, Ordered):
    """Each window of `window_size` elements in an order of its own."""

    window_size: int
    seed: int

    keeps_length = True

    def __post_init__(self) -> None:
        checks.positive(self.window_size, "window_size")
        checks.seed(self.seed, below=shuffle.SEED_LIMIT)

    def open(self, opener: Opener) -> Cursor:
        return _WindowCursor(opener.open(self.parent), self, opener.skips, extra=0)

    def call(self) -> str:
        return f"window_shuffle({self.window_size}, seed={self.seed})"


class _WindowCursor(GroupCursor[WindowShuffleStream]):
    """A group is one window in its order; `extra` is the number of windows that were given whole."""

    parent_key, given_key, extra_key = "parent_window_start_state", "pos_in_window", "window_index"
    group_name = "a window"

    def pull(self, count: int) -> Block:
        rows = self.next_rows(count)
        if len(rows) and self.given == len(self.group):
            self.extra += 1
        return rows

    def read_group(self) -> Block | None:
        whole = self.read_parent(self.node.window_size)
        if not len(whole):
            return None
        seed = (self.node.seed + self.extra) % shuffle.SEED_LIMIT
        order = shuffle.permute(np.arange(len(whole)), length=len(whole), seed=seed)[::-1]
        if isinstance(whole, Columns) and whole.present is None:
            return Columns(trees.map_leaves(lambda leaf: leaf[order], whole.tree), len(whole))
        rows = blocks.rows_of(whole)
        return [rows[place] for place in order.tolist()]

    def mark_of(self, state: State) -> Mark:
        read_count(state, self.given_key, self.node.window_size)  # checks it
        return super().mark_of(state)
