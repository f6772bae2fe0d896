"""Interleaves: many streams as one, of which a few are open at a time.

Also the state of an interleave as one state for each of its streams, and back, in Grain's forms.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import RowFailed, StateMismatch, inside, locate_error
from bushel._src.base.state_names import in_states
from bushel._src.graph.cursors import END, Cursor, Mark, State, as_number, check_type, make_rows, read_count, read_field
from bushel._src.graph.node import MapNode, Node
from bushel._src.graph.streams import Elements, Opener, Ordered, StreamNode

_STATES = "iterators_in_use_states"
_LATER = "future_states"


@in_states("interleave")
@dataclasses.dataclass(frozen=True, eq=False)
class Interleave(StreamNode, Ordered):
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
        """Return stream `number`; None where a filter has dropped it."""
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
    """Return the stream of a dataset, whichever kind it is."""
    node = getattr(dataset, "_node", None)
    if isinstance(node, MapNode):
        return Elements(node)
    if isinstance(node, StreamNode):
        return node
    raise TypeError(f"An interleave takes datasets, got {dataset!r} of type {type(dataset).__name__}.")


@dataclasses.dataclass(slots=True)
class _Slot:
    """A place in the cycle: which stream is there, and its cursor while it is open."""

    number: int
    cursor: Cursor | None = None
    ended_at: State | None = None
    """The state of the stream that has ended here."""

    def close(self) -> None:
        cursor, self.cursor = self.cursor, None  # at once: another thread may close it, too
        if cursor is not None:
            cursor.close()


class _InterleaveCursor(Cursor):
    """A position is the slots (stream, cursor and mark, or the state it ended at), the turn, and the next stream."""

    def __init__(self, node: Interleave, opener: Opener):
        self._node = node
        self._opener = opener
        self._slots = [_Slot(number) for number in range(min(node.cycle_length, node.count))]
        self._turn = 0
        self._next = 0
        self._later: dict[int, State | None] = {}
        """The states at which streams start that have not had their turn, if they do not start at their beginning; None
        for a stream that has ended. Never changed in place, since marks hold it.
        """

    def pull(self, count: int) -> Block:
        if self._opener.ahead_of_turn and not self._next:
            with contextlib.suppress(Exception):  # raised again when its turn has come
                self._begin_all()
        if len(self._slots) != 1:
            return blocks.join(make_rows(self, count, lambda: self._next_block(1), self._opener.skips) or [[]])
        block = self._next_block(count)  # a stream that is alone needs no turns
        return [] if block is END else block

    def _next_block(self, count: int) -> Any:
        """Return up to `count` elements of the stream whose turn it is, or END."""
        slots, empty = self._slots, 0
        while empty < len(slots):  # until all slots, one after the other, were empty
            slot = slots[self._turn]
            block: Block = []
            if slot.cursor is None and not self._begin_next(slot):
                empty += 1
            else:
                assert slot.cursor is not None
                block, empty = slot.cursor.pull(count), 0
                if not len(block):
                    slot.ended_at = slot.cursor.get_state()
                    slot.close()
            self._turn = (self._turn + 1) % len(slots)
            if len(block):
                return block
        return END

    def _begin_next(self, slot: _Slot) -> bool:
        """Put the next stream that is there into a slot; False if there is none left."""
        while self._next < self._node.count:
            number = self._next
            cursor = self._open_at_start(number, self._later)
            self._next += 1
            if cursor is not None:
                cursor.start_prefetch()
                slot.number, slot.cursor, slot.ended_at = number, cursor, None
                return True
        return False

    def _begin_all(self) -> None:
        for slot in self._slots:
            if slot.cursor is None and slot.ended_at is None:
                self._begin_next(slot)

    def _open_at_start(self, number: int, later: dict[int, State | None]) -> Cursor | None:
        """Return a cursor where stream `number` starts; None if a filter drops the stream or it has ended already."""
        start = later.get(number)
        if start is None and number in later:
            return None
        cursor = self._open(number)
        if cursor is not None and start is not None:
            try:
                with inside(_LATER, number):
                    cursor.set_state(start)
            except BaseException:
                cursor.close()
                raise
        return cursor

    def _open(self, number: int) -> Cursor | None:
        """Return a cursor at the start of stream `number`; None if a filter drops the stream."""
        try:
            stream = self._node.stream(number)
        except RowFailed as failed:
            raise failed.error from None
        except Exception as error:
            raise locate_error(error, f"bushel: {self._node.call()} failed at its dataset {number}.") from None
        return None if stream is None else self._opener.open_part(stream)

    def mark(self) -> Mark:
        slots = [(slot.number, slot.cursor, slot.cursor and slot.cursor.mark(), slot.ended_at) for slot in self._slots]
        return slots, self._turn, self._next, self._later

    def rewind(self, mark: Mark) -> None:
        slots, self._turn, self._next, self._later = mark
        for slot, (number, cursor, at, ended_at) in zip(self._slots, slots, strict=True):
            if slot.cursor is not cursor:
                slot.close()
                if cursor is not None and at is not None:
                    # The stream of that time has ended since, and its cursor is closed: its state is still known.
                    cursor, state = self._open(number), cursor.state_of(at)
                    assert cursor is not None
                    at = cursor.mark_of(state)
            slot.number, slot.cursor, slot.ended_at = number, cursor, ended_at
            if cursor is not None:
                cursor.rewind(at)

    def state_of(self, mark: Mark) -> State:
        slots, turn, following, later = mark
        numbers, states = [], []
        for number, cursor, at, ended_at in slots:
            state = ended_at if cursor is None else cursor.state_of(at)
            # As in Grain, a state has all streams of the cycle, also those whose turn has not come yet.
            while state is None and following < self._node.count:
                number, following = following, following + 1
                begun = self._open_at_start(number, later)
                if begun is not None:
                    state = begun.get_state()
                    begun.close()
            numbers.append(number)
            states.append(state)
        return {
            "next_index_in_cycle": turn,
            "next_index_in_datasets": following,
            "iterators_in_use_indices": numbers,
            _STATES: states,
            "exhausted": [int(ended_at is not None) for *_, ended_at in slots],
            _LATER: {number: start for number, start in later.items() if number >= following},
        }

    def mark_of(self, state: State) -> Mark:
        turn, following = read_count(state, "next_index_in_cycle"), read_count(state, "next_index_in_datasets")
        numbers, states = read_field(state, "iterators_in_use_indices", list), read_field(state, _STATES, list)
        numbers = [check_type(value, int, "iterators_in_use_indices", place) for place, value in enumerate(numbers)]
        ended = read_field(state, "exhausted", list)
        for place, value in enumerate(ended):
            if value not in (0, 1):
                raise StateMismatch(f"A stream has ended (1) or not (0), got {value!r}.", "exhausted", place)
        length = len(self._slots)
        fits = len(numbers) == len(states) == len(ended) == length
        if not fits or turn >= max(1, length):
            raise StateMismatch(
                f"This state is of an interleave of {len(numbers)} streams at a time; this one has {length}. "
                "Was it saved with another cycle_length, or by Grain with worker processes?",
                "next_index_in_cycle" if fits else _STATES,
            )
        if following > self._node.count or any(not 0 <= number < self._node.count for number in numbers):
            raise StateMismatch(
                f"This state has streams {numbers}, and {following} next; there are {self._node.count} here.",
                "iterators_in_use_indices",
            )
        later = _read_later_states(state, self._node.count)
        if self._node.joins:  # datasets that a function makes are not made before their turn, just for this check
            for number, start in later.items():
                if start is not None and (cursor := self._open_at_start(number, later)) is not None:
                    cursor.close()
        slots: list[Any] = []
        try:
            for place, (number, saved, has_ended) in enumerate(zip(numbers, states, ended, strict=True)):
                with inside(_STATES, place):
                    slots.append(self._read_slot(self._slots[place], number, saved, bool(has_ended)))
        except BaseException:
            for slot, (_, cursor, *_) in zip(self._slots, slots):
                if cursor is not None and cursor is not slot.cursor:
                    cursor.close()  # it was opened for a state that is not valid
            raise
        return slots, turn, following, later

    def _read_slot(self, slot: _Slot, number: int, saved: Any, has_ended: bool) -> Any:
        """Return one entry of the slots in a mark: for stream `number`, whose state is `saved`."""
        if has_ended or saved is None:
            return number, None, None, saved
        cursor = slot.cursor if slot.number == number and slot.cursor is not None else self._open(number)
        if cursor is None:
            raise StateMismatch(f"This state has a stream {number}, which a filter drops here.")
        try:
            return number, cursor, cursor.mark_of(saved), None
        except BaseException:
            if cursor is not slot.cursor:
                cursor.close()
            raise

    def catch_up(self) -> None:
        for number, slot in enumerate(self._slots):
            if slot.cursor is not None:
                with inside(_STATES, number):
                    slot.cursor.catch_up()

    def get_next_index(self) -> int:
        self._check_alone()
        cursor = self._slots[0].cursor
        return 0 if cursor is None else cursor.get_next_index()

    def set_next_index(self, index: int) -> None:
        self._check_alone()
        (slot,) = self._slots
        cursor = slot.cursor or self._open(0)
        assert cursor is not None
        cursor.set_next_index(index)
        slot.number, slot.cursor, slot.ended_at = 0, cursor, None
        self._next = 1

    def _check_alone(self) -> None:
        if self._node.count != 1:
            raise NotImplementedError("An interleave of several streams has no index of its next element.")

    def start_prefetch(self) -> None:
        for slot in self._slots:
            if slot.cursor is not None:
                slot.cursor.start_prefetch()

    def close(self) -> None:
        for slot in self._slots:
            slot.close()


def _read_later_states(state: State, count: int) -> dict[int, State | None]:
    """Return where streams start whose turn is still to come, by number."""
    saved = check_type(state.get(_LATER) or {}, dict, _LATER)
    later: dict[int, State | None] = {}
    for key, start in saved.items():
        number = as_number(key)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise StateMismatch(f"This state has a stream {key!r} whose turn comes later; there are {count}.", _LATER)
        later[number] = start
    return later


def split_state(state: State, count: int, start_of: Callable[[int], State]) -> list[State]:
    """Return one entry `{"exhausted": 0 or 1, "state": ...}` for each stream of an interleave.

    Args:
      state: what the interleave's cursor returned.
      count: how many streams it has.
      start_of: the state of stream `number` before its first element. As in Grain, it also stands in for the state of
        a stream that has ended and has left the cycle.
    """
    in_cycle = {
        number: {"exhausted": ended, "state": position}
        for number, position, ended in zip(
            state["iterators_in_use_indices"], state["iterators_in_use_states"], state["exhausted"], strict=True
        )
        if position is not None  # a place in the cycle for which no stream was left
    }
    later: Mapping[int, State | None] = state["future_states"]
    following: int = state["next_index_in_datasets"]

    def make_entry(number: int) -> State:
        if number in in_cycle:
            return in_cycle[number]
        position = later.get(number)
        if position is not None:
            return {"exhausted": 0, "state": position}
        return {"exhausted": int(number < following or number in later), "state": start_of(number)}

    return [make_entry(number) for number in range(count)]


def join_states(entries: Sequence[State], cycle_length: int) -> State:
    """Return the state of an interleave whose streams are at these entries, one for each stream.

    The first `cycle_length` streams that have not ended are in the cycle, the first of them comes next, and the others
    follow when one of these ends. No stream that has ended is read again. (Grain begins such a stream anew if its
    number is higher than those of the streams in the cycle.)
    """
    cycle_length = min(cycle_length, len(entries))
    active = [number for number, entry in enumerate(entries) if not entry["exhausted"]]
    ended = [number for number, entry in enumerate(entries) if entry["exhausted"]]
    in_cycle, waiting = active[:cycle_length], active[cycle_length:]
    # Streams that have ended fill the places that are left, so that the state has one entry for each place.
    filling = ended[: cycle_length - len(in_cycle)]
    following = waiting[0] if waiting else len(entries)
    later: dict[int, State | None] = {number: entries[number]["state"] for number in waiting}
    later |= {number: None for number in ended if number > following}
    return {
        "next_index_in_cycle": 0,
        "next_index_in_datasets": following,
        "iterators_in_use_indices": in_cycle + filling,
        "iterators_in_use_states": [entries[number]["state"] for number in in_cycle + filling],
        "exhausted": [0] * len(in_cycle) + [1] * len(filling),
        "future_states": dict(sorted(later.items())),
    }


def check_entry(entry: Any) -> State:
    """Return the entry of one stream. Raise StateMismatch if it has another form than those of `split_state`."""
    exhausted, position = read_field(entry, "exhausted", int), read_field(entry, "state", object)
    if exhausted not in (0, 1):
        raise StateMismatch(f"A stream has ended (1) or not (0), got {exhausted!r}.", "exhausted")
    if position is None:
        raise StateMismatch("The state of a stream must not be None.", "state")
    return {"exhausted": exhausted, "state": position}


def pick_entries(states: Any, first: int, step: int, count: int) -> dict[int, Any]:
    """Return the entries of streams first, first + step ..., of a mapping that may hold those of other hosts, too.

    Raises StateMismatch where one is missing, or where there are more than `count` streams in all.
    """
    if not isinstance(states, Mapping):
        raise StateMismatch(f"Shard states are what get_shard_states() returned, a dict; got {states!r}.")
    by_number = {check_type(as_number(key), int, repr(key)): entry for key, entry in states.items()}
    wanted = range(first, count, step)
    missing = [number for number in wanted if number not in by_number]
    unknown = sorted(number for number in by_number if not 0 <= number < count)
    if unknown:
        raise StateMismatch(
            f"These are states of shards {_list_numbers(unknown)}; the interleave has {count} datasets, 0 to "
            f"{count - 1}. Were they saved with more datasets?"
        )
    if missing:
        raise StateMismatch(
            f"Host {first} of {step} reads {len(wanted)} of the {count} datasets and needs a state for each; those of "
            f"{_list_numbers(missing)} are missing. Collect what get_shard_states() returned on all hosts."
        )
    return {number: by_number[number] for number in wanted}


def _list_numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown} ... ({len(numbers)} in all)"
