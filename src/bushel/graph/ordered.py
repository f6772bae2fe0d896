"""Operations on streams that depend on order: batch, flat_map, mix, zip."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block, Columns
from bushel.base.checks import INFINITE
from bushel.base.errors import RowFailed, StateMismatch, add_note, in_words, inside, located
from bushel.base.ownership import own
from bushel.graph.batch import BatchFn, derive_batch_spec, format_batch_call, is_ours, make_batch, may_keep
from bushel.graph.elementwise import Elementwise
from bushel.graph.node import Node
from bushel.graph.operation import FLAT_MAP_ALL, format_call
from bushel.graph.streams import (
    Cursor,
    OneParent,
    Opener,
    Skips,
    State,
    StreamNode,
    Through,
    aside,
    count_listed,
    counted,
    field,
    pull_several,
    restore,
)
from bushel.index import mix


@dataclasses.dataclass(frozen=True, eq=False)
class BatchStream(OneParent):
    """Batches of consecutive elements; the last one may be smaller."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: BatchFn | None = None

    @functools.cached_property
    def shares(self) -> bool:
        """Whether a batch could be an object that the user's function keeps."""
        return may_keep(self.batch_fn)

    def open(self, opener: Opener) -> Cursor:
        return BatchCursor(opener.open(self.parent), self, opener.skips)

    @property
    def length(self) -> int | None:
        elements = self.parent.length
        if elements is None or elements >= INFINITE:
            return elements
        return elements // self.batch_size if self.drop_remainder else -(-elements // self.batch_size)

    def element_spec(self) -> Any:
        return derive_batch_spec(self.parent.element_spec(), self.batch_size, self.drop_remainder, self.batch_fn)

    def call(self) -> str:
        return format_batch_call(self.batch_size, self.drop_remainder, self.batch_fn)


class BatchCursor(Through):
    """Cuts batches of what its parent gives."""

    def __init__(self, parent: Cursor, node: BatchStream, skips: Skips | None = None):
        super().__init__(parent)
        self.node = node
        self.skips = skips
        self.ended = False

    def pull(self, count: int) -> Block:
        batches: list[Any] = []
        while len(batches) < count:
            elements = self._gather()
            if elements is None:
                break
            try:
                batches.append(make_batch(elements, self.node.batch_fn))
            except Exception as error:
                error = located(error, f"bushel: {self.node.call()} failed.")
                if self.skips is None:
                    raise RowFailed(len(batches), error) from error
                self.skips.add("a batch", in_words(error))
            del elements
        return own(batches) if self.node.shares else batches

    def _gather(self) -> Block | None:
        missing = self.node.batch_size
        parts: list[Block] = []
        read = self.parent.look if is_ours(self.node.batch_fn) else self.parent.pull  # stacking copies all rows
        while missing and not self.ended:
            block = pull_several(self.parent, missing, self.skips, read)
            if len(block):
                parts.append(block)
                missing -= len(block)
            else:
                self.ended = True  # a parent is asked past its end just once
        if not parts or (missing and self.node.drop_remainder):
            return None
        return blocks.joined(parts)

    def set_state(self, state: State) -> None:
        super().set_state(state)
        self.ended = False

    def mark(self) -> Any:
        return self.parent.mark(), self.ended

    def rewind(self, mark: Any) -> None:
        parent, self.ended = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Any) -> State:
        return self.parent.state_of(mark[0])

    def get_next_index(self) -> int:
        return -(-self.parent.get_next_index() // self.node.batch_size)

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index * self.node.batch_size)
        self.ended = False


@dataclasses.dataclass(frozen=True, eq=False)
class FlatMapStream(OneParent):
    """The elements that each element becomes, one after the other."""

    transform: Any

    def open(self, opener: Opener) -> Cursor:
        return _FlatMapCursor(opener.open(_Parts(self.parent, self.transform)), opener.skips)

    def element_spec(self) -> Any:
        raise NotImplementedError("The shapes after flat_map are not known without running it.")

    def call(self) -> str:
        return format_call("flat_map", self.transform)


@dataclasses.dataclass(frozen=True, eq=False)
class _Parts(Elementwise):
    """What each element becomes, as a list: this is the user's work, and can be done ahead."""

    kind = FLAT_MAP_ALL


class _FlatMapCursor(Through):
    """Hands out the parts of each list that its parent gives.

    Its state is the parent's before the list now being handed out, and how much of that one is gone.
    """

    def __init__(self, parent: Cursor, skips: Skips | None):
        super().__init__(parent)
        self.skips = skips
        self.before = parent.get_state()
        self.parts: Sequence[Any] = ()
        self.position = 0
        self.restored = False
        self.ended = False

    def pull(self, count: int) -> Block:
        if self.restored:
            self._split_again()
        while not self.ended and self.position >= len(self.parts):
            self.parts = self._split()
            if not self.ended:
                self.position = 0
        if self.ended:
            return []
        taken = self.parts[self.position : self.position + count]
        self.position += len(taken)
        return list(taken)

    def _split_again(self) -> None:
        self.restored = False
        with aside(self.skips if self.position else None):
            self.parts = self._split()
        if self.position > len(self.parts) and not self.ended:
            raise StateMismatch(
                f"This state is after part {self.position} of an element that flat_map makes {len(self.parts)} of. "
                "Was it saved with other data?",
                "next_index_in_buffer",
            )

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent",)

    def catch_up(self) -> None:
        super().catch_up()
        if self.restored and self.position:
            self._split_again()

    def _split(self) -> Sequence[Any]:
        self.before = self.parent.get_state()
        rows = blocks.rows_of(self.parent.pull(1))
        if not rows:
            self.ended = True  # a parent is asked past its end just once, as the state would show
            return ()
        return rows[0]

    def mark(self) -> Any:
        return self.parent.mark(), (self.before, self.parts, self.position, self.restored, self.ended)

    def rewind(self, mark: Any) -> None:
        parent, (before, parts, position, restored, ended) = mark
        if position < len(parts):  # a function may have written into parts that it was given: they are made anew
            self.parent.set_state(before)
            parts, restored = (), True
        else:
            self.parent.rewind(parent)
        self.before, self.parts, self.position, self.restored, self.ended = before, parts, position, restored, ended

    def state_of(self, mark: Any) -> State:
        _, (before, _, position, *_) = mark
        return {"parent": before, "next_index_in_buffer": position}

    def get_state(self) -> State:
        return {"parent": self.before, "next_index_in_buffer": self.position}

    def set_state(self, state: State) -> None:
        position = counted(state, "next_index_in_buffer")
        restore(self.parent, state, "parent")
        self.before = self.parent.get_state()
        self.parts, self.position, self.restored, self.ended = (), position, True, False


@dataclasses.dataclass(frozen=True, eq=False)
class MixStream(StreamNode):
    """Elements of several streams by weight; ends when the first of them does. Keys, where given, name the parts."""

    parts: tuple[StreamNode, ...]
    weights: tuple[int, ...]
    keys: tuple[str, ...] | None = None

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.parts

    @property
    def joins(self) -> bool:
        return True

    def open(self, opener: Opener) -> Cursor:
        return _MixCursor(tuple(opener.part(part) for part in self.parts), self)

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

    def mark(self) -> Any:
        return [parent.mark() for parent in self.parents], self.index, self.stop

    def rewind(self, mark: Any) -> None:
        marks, self.index, self.stop = mark
        for parent, parent_mark in zip(self.parents, marks, strict=True):
            parent.rewind(parent_mark)

    def state_of(self, mark: Any) -> State:
        marks, index, stop = mark
        states = [parent.state_of(parent_mark) for parent, parent_mark in zip(self.parents, marks, strict=True)]
        return self._state(states, index, stop)

    def get_state(self) -> State:
        return self._state([parent.get_state() for parent in self.parents], self.index, self.stop)

    def _state(self, states: list[State], index: int, stop: bool) -> State:
        parents = states if self.node.keys is None else dict(zip(self.node.keys, states, strict=True))
        return {"parents": parents, "index": index, "stop": stop}

    def set_state(self, state: State) -> None:
        keys = self.node.keys
        saved = field(state, "parents", list if keys is None else dict)
        index, stop = counted(state, "index"), field(state, "stop", bool)
        if keys is None and len(saved) != len(self.parents):
            raise StateMismatch(
                f"This state is of a mixture of {len(saved)} streams; this one has {len(self.parents)}.", "parents"
            )
        for number, parent in enumerate(self.parents):
            key = number if keys is None else keys[number]
            if keys is None or key in saved:
                with inside("parents", key):
                    parent.set_state(saved[key])
        self.index, self.stop = index, stop

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parents", number if self.node.keys is None else self.node.keys[number])


@dataclasses.dataclass(frozen=True, eq=False)
class ZipStream(StreamNode):
    """Tuples of the elements of several streams; with `strict`, streams of different lengths are an error."""

    parts: tuple[StreamNode, ...]
    strict: bool = True

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("At least one parent must be provided.")

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.parts

    @property
    def joins(self) -> bool:
        return True

    def open(self, opener: Opener) -> Cursor:
        return _ZipCursor(tuple(opener.part(part) for part in self.parts), self, opener.skips)

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
        self.node = node
        self.skips = skips
        self.ended = False

    def pull(self, count: int) -> Block:
        if count > 1 and not self.ended and (block := self._together(count)) is not None:
            return block
        rows: list[Block] = []
        while len(rows) < count and not self.ended:
            block = self._one()
            if len(block):
                rows.append(block)
            else:
                self.ended = True  # else a longer stream would lose one more element each time it is asked
        return blocks.joined(rows) if rows else []

    def _together(self, count: int) -> Block | None:
        """The next `count` tuples, each stream read in one go. None where a stream ends or fails among them.

        Then they are read tuple by tuple, so that nothing is read beyond the end of the shortest stream.
        """
        before = self.mark()
        with aside(self.skips) as failed:
            try:
                found = [self._exactly(parent, count) for parent in self.parents]
            except Exception:
                found = [None]
            if None in found:
                self.rewind(before)
                return None
        count_listed(self.skips, failed)
        return _zipped([block for block in found if block is not None], count)

    def _exactly(self, parent: Cursor, count: int) -> Block | None:
        parts: list[Block] = []
        while count:
            part = parent.pull(count)
            if not len(part):
                return None
            parts.append(part)
            count -= len(part)
        return blocks.joined(parts)

    def _one(self) -> Block:
        found: list[Block] = []
        for number, parent in enumerate(self.parents):
            block = parent.pull(1)
            if not len(block):
                if self.node.strict:
                    self._check_ends(number)
                return []
            found.append(block)
        return _zipped(found, 1)

    def _check_ends(self, number: int) -> None:
        """Stream `number` has ended before those after it were asked: all of them must have."""
        if number:
            raise ValueError(_unequal(number, "shorter"))
        for other, parent in enumerate(self.parents[1:], 1):
            if len(parent.pull(1)):
                raise ValueError(_unequal(other, "longer"))

    def mark(self) -> Any:
        return [parent.mark() for parent in self.parents], self.ended

    def rewind(self, mark: Any) -> None:
        marks, self.ended = mark
        for parent, parent_mark in zip(self.parents, marks, strict=True):
            parent.rewind(parent_mark)

    def state_of(self, mark: Any) -> State:
        marks, ended = mark
        return self._state([parent.state_of(at) for parent, at in zip(self.parents, marks, strict=True)], ended)

    def get_state(self) -> State:
        return self._state([parent.get_state() for parent in self.parents], self.ended)

    def _state(self, states: list[State], ended: bool) -> State:
        # Grain's, and at the end one entry more: a longer stream must not be read further by whoever restores it.
        return {"parents": states, "ended": True} if ended and not self.node.strict else {"parents": states}

    def set_state(self, state: State) -> None:
        saved = field(state, "parents", list)
        ended = "ended" in state and field(state, "ended", bool)
        if len(saved) != len(self.parents):
            raise StateMismatch(
                f"This state is of a zip of {len(saved)} streams; this one has {len(self.parents)}.", "parents"
            )
        for number, (parent, parent_state) in enumerate(zip(self.parents, saved, strict=True)):
            with inside("parents", number):
                parent.set_state(parent_state)
        self.ended = ended

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parents", number)


def _unequal(number: int, how: str) -> str:
    others = "stream 1" if number == 1 else f"streams 1 to {number}"
    return f"zip: stream {number + 1} is {how} than {others}. Pass strict=False to end with the shortest."


def _zipped(found: list[Block], count: int) -> Block:
    columns = [block.tree for block in found if isinstance(block, Columns) and block.present is None]
    if len(columns) == len(found):
        return Columns(tuple(columns), count)
    return list(zip(*map(blocks.rows_of, found), strict=True))
