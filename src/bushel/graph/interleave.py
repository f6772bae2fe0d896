"""Interleaves: many streams as one, of which a few are open at a time. They are opened through the engine, when their
turn comes, so that each can be computed ahead.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import numpy as np

from bushel.base import blocks, checks
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, StateMismatch, inside, located
from bushel.graph.node import MapNode, Node
from bushel.graph.streams import Cursor, Elements, Opener, State, StreamNode, checked, counted, field

_STATES = "iterators_in_use_states"
_LATER = "future_states"


@dataclasses.dataclass(frozen=True, eq=False)
class Interleave(StreamNode):
    """One element of each of `cycle_length` streams in turn; where one ends, the next not yet begun takes its place.

    The streams are `parts`, or the elements of a map node, which are datasets then and made only when their turn comes.
    """

    parts: tuple[StreamNode, ...] | MapNode
    cycle_length: int

    def __post_init__(self) -> None:
        checks.positive(self.cycle_length, "cycle_length")
        if not isinstance(self.parts, MapNode) and not self.parts:
            raise ValueError("An interleave needs at least one dataset.")

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parts,) if isinstance(self.parts, MapNode) else self.parts

    @property
    def seeded_by(self) -> tuple[Node, ...]:
        return ()  # as in Grain, whose interleave does not look at its datasets before their turn

    @property
    def joins(self) -> bool:
        return not isinstance(self.parts, MapNode)

    @property
    def count(self) -> int:
        """How many streams there are."""
        return self.parts.length if isinstance(self.parts, MapNode) else len(self.parts)

    def stream(self, number: int) -> StreamNode | None:
        """Stream `number`; None where a filter has dropped it."""
        if not isinstance(self.parts, MapNode):
            return self.parts[number]
        dataset = blocks.rows_of(self.parts.take(np.array([number])))[0]
        return None if dataset is None else as_stream(dataset)

    def open(self, opener: Opener) -> Cursor:
        return _InterleaveCursor(self, opener)

    def element_spec(self) -> Any:
        first = self.stream(0)
        if first is None:
            raise NotImplementedError("The shapes of an interleave are those of its first dataset, which is missing.")
        return first.element_spec()

    def call(self) -> str:
        if self.joins:
            return f"interleave(cycle_length={self.cycle_length})"
        return f"pipe(InterleaveIterDataset, cycle_length={self.cycle_length})"


def as_stream(dataset: Any) -> StreamNode:
    """The stream of a dataset, whichever kind it is."""
    node = getattr(dataset, "_node", None)
    if isinstance(node, MapNode):
        return Elements(node)
    if isinstance(node, StreamNode):
        return node
    raise TypeError(f"An interleave takes datasets, got {dataset!r} of type {type(dataset).__name__}.")


class _Slot:
    """A place in the cycle: which stream is there, and how far it was read since it was opened or set."""

    def __init__(self, number: int):
        self.put(number, None)

    def put(self, number: int, cursor: Cursor | None, opened_at: State | None = None) -> None:
        """Puts a stream here that has been opened, at a state or at its start."""
        self.number, self.cursor, self.opened_at = number, cursor, opened_at
        self.read = 0
        self.ended_at: State | None = None

    def saved(self) -> tuple[Any, ...]:
        return self.number, self.cursor, self.opened_at, self.read, self.ended_at

    def bring_back(self, saved: tuple[Any, ...]) -> None:
        self.number, self.cursor, self.opened_at, self.read, self.ended_at = saved

    def close(self) -> None:
        cursor, self.cursor = self.cursor, None  # at once: another thread may close it, too
        if cursor is not None:
            cursor.close()


class _InterleaveCursor(Cursor):
    def __init__(self, node: Interleave, opener: Opener):
        self._node = node
        self._opener = opener
        self._slots = [_Slot(number) for number in range(min(node.cycle_length, node.count))]
        self._turn = 0
        self._next = 0
        self._later: dict[int, State | None] = {}
        """Where streams start whose turn is still to come, other than at their beginning; None for one that has ended.
        Never changed in place: marks hold it.
        """

    def pull(self, count: int) -> Block:
        rows: list[Any] = []
        if self._opener.ahead_of_turn and not self._next:
            with contextlib.suppress(Exception):  # told when its turn has come
                self._begin_all()
        while len(rows) < count and self._slots:
            slot = self._slots[self._turn]
            if slot.cursor is None and not self._begin_next(slot):
                if all(other.cursor is None for other in self._slots):
                    break
                self._turn = (self._turn + 1) % len(self._slots)
                continue
            assert slot.cursor is not None
            # A stream that is alone needs no turns.
            block = slot.cursor.pull(count - len(rows) if len(self._slots) == 1 else 1)
            if len(block):
                slot.read += len(block)
                rows.extend(blocks.rows_of(block))
            else:
                slot.ended_at = slot.cursor.get_state()
                slot.close()
            self._turn = (self._turn + 1) % len(self._slots)
        return rows

    def _begin_next(self, slot: _Slot) -> bool:
        """Puts the next stream that is there into a slot; False where there is none left."""
        while self._next < self._node.count:
            number = self._next
            start = self._later.get(number)
            has_ended = start is None and number in self._later
            cursor = None if has_ended else self._opened_at(number, start)
            self._next += 1
            if cursor is not None:
                cursor.start_prefetch()
                slot.put(number, cursor, start)
                return True
        return False

    def _opened_at(self, number: int, start: State | None) -> Cursor | None:
        """Opens stream `number` at a state, or at its beginning; None where a filter has dropped the stream."""
        cursor = self._opened(number)
        if cursor is not None and start is not None:
            try:
                with inside(_LATER, number):
                    cursor.set_state(start)
            except BaseException:
                cursor.close()
                raise
        return cursor

    def _begin_all(self) -> None:
        for slot in self._slots:
            if slot.cursor is None and slot.ended_at is None:
                self._begin_next(slot)

    def _opened(self, number: int) -> Cursor | None:
        try:
            stream = self._node.stream(number)
        except RowFailed as failed:
            raise failed.error from None
        except Exception as error:
            raise located(error, f"bushel: {self._node.call()} failed at its dataset {number}.") from None
        return None if stream is None else self._opener.part(stream)

    def mark(self) -> Any:
        slots = [(slot.saved(), slot.cursor and slot.cursor.mark()) for slot in self._slots]
        return slots, self._turn, self._next, self._later

    def rewind(self, mark: Any) -> None:
        slots, self._turn, self._next, self._later = mark
        for slot, (before, cursor_mark) in zip(self._slots, slots, strict=True):
            now = slot.cursor
            slot.bring_back(before)
            if now is not None and now is not slot.cursor:
                now.close()
            if slot.cursor is not None and slot.cursor is now:
                slot.cursor.rewind(cursor_mark)
            elif slot.cursor is not None:
                slot.cursor = self._again(slot)  # it has ended since, and was closed

    def state_of(self, mark: Any) -> State:
        slots, turn, following, later = mark
        saved = [(number, cursor, ended_at, at) for (number, cursor, _, _, ended_at), at in slots]
        # A stream whose turn has not come yet has no state here, and is begun by whoever restores this.
        states = [ended_at if cursor is None else cursor.state_of(at) for _, cursor, ended_at, at in saved]
        ended = [ended_at is not None for _, _, ended_at, _ in saved]
        return _state(turn, following, [number for number, *_ in saved], states, ended, later)

    def _again(self, slot: _Slot) -> Cursor:
        """The stream of a slot opened anew, and read to where it was."""
        cursor = self._opened(slot.number)
        assert cursor is not None
        if slot.opened_at is not None:
            cursor.set_state(slot.opened_at)
        left = slot.read
        while left and (part := len(cursor.pull(left))):
            left -= part
        return cursor

    def get_state(self) -> State:
        self._begin_all()  # as in Grain: a state has all streams of the cycle, begun or not
        states = [slot.ended_at if slot.cursor is None else slot.cursor.get_state() for slot in self._slots]
        ended = [slot.ended_at is not None for slot in self._slots]
        return _state(self._turn, self._next, [slot.number for slot in self._slots], states, ended, self._later)

    def set_state(self, state: State) -> None:
        turn, following = counted(state, "next_index_in_cycle"), counted(state, "next_index_in_datasets")
        numbers, states = field(state, "iterators_in_use_indices", list), field(state, _STATES, list)
        numbers = [checked(value, int, "iterators_in_use_indices", place) for place, value in enumerate(numbers)]
        ended = field(state, "exhausted", list)
        for place, value in enumerate(ended):
            if value not in (0, 1):
                raise StateMismatch(f"A stream has ended (1) or not (0), got {value!r}.", "exhausted", place)
        length = len(self._slots)
        if not len(numbers) == len(states) == len(ended) == length or turn >= max(1, length):
            raise StateMismatch(
                f"This state is of an interleave of {len(numbers)} streams at a time; this one has {length}. "
                "Was it saved with another cycle_length, or by Grain with worker processes?",
                "next_index_in_cycle" if len(numbers) == len(states) == len(ended) == length else _STATES,
            )
        if following > self._node.count or any(not 0 <= number < self._node.count for number in numbers):
            raise StateMismatch(
                f"This state has streams {numbers}, and {following} next; there are {self._node.count} here.",
                "iterators_in_use_indices",
            )
        later = _later_states(state, self._node.count)
        if self._node.joins:  # datasets that a function makes are not made before their turn, just for this check
            for number, start in later.items():
                if start is not None and (cursor := self._opened_at(number, start)) is not None:
                    cursor.close()
        for slot, number, saved, gone in zip(self._slots, numbers, states, ended, strict=True):
            with inside(_STATES, self._slots.index(slot)):
                self._set_slot(slot, number, saved, bool(gone))
        self._turn, self._next, self._later = turn, following, later

    def _set_slot(self, slot: _Slot, number: int, saved: Any, gone: bool) -> None:
        if gone or saved is None:
            slot.close()
            slot.put(number, None)
            slot.ended_at = saved
            return
        if slot.number != number:
            slot.close()
        cursor = slot.cursor or self._opened(number)
        if cursor is None:
            raise StateMismatch(f"This state has a stream {number}, which a filter drops here.")
        slot.put(number, cursor, saved)
        cursor.set_state(saved)

    def catch_up(self) -> None:
        for number, slot in enumerate(self._slots):
            if slot.cursor is not None:
                with inside(_STATES, number):
                    slot.cursor.catch_up()

    def get_next_index(self) -> int:
        if self._node.count != 1:
            return super().get_next_index()
        cursor = self._slots[0].cursor
        return 0 if cursor is None else cursor.get_next_index()

    def set_next_index(self, index: int) -> None:
        if self._node.count != 1:
            super().set_next_index(index)
        (slot,) = self._slots
        cursor = slot.cursor or self._opened(0)
        assert cursor is not None
        cursor.set_next_index(index)
        slot.put(0, cursor, cursor.get_state())
        self._next = 1

    def start_prefetch(self) -> None:
        for slot in self._slots:
            if slot.cursor is not None:
                slot.cursor.start_prefetch()

    def close(self) -> None:
        for slot in self._slots:
            slot.close()


def _later_states(state: State, count: int) -> dict[int, State | None]:
    """Where streams start whose turn is still to come, by number. JSON has turned the numbers into texts."""
    saved = checked(state.get(_LATER) or {}, dict, _LATER)
    later: dict[int, State | None] = {}
    for key, start in saved.items():
        number = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise StateMismatch(f"This state has a stream {key!r} whose turn comes later; there are {count}.", _LATER)
        later[number] = start
    return later


def _state(
    turn: int,
    following: int,
    numbers: list[int],
    states: list[State | None],
    ended: list[bool],
    later: dict[int, State | None],
) -> State:
    return {
        "next_index_in_cycle": turn,
        "next_index_in_datasets": following,
        "iterators_in_use_indices": numbers,
        _STATES: states,
        "exhausted": [int(gone) for gone in ended],
        _LATER: {number: start for number, start in later.items() if number >= following},
    }
