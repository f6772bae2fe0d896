"""The contract of cursors. A cursor runs a stream node: it hands out the node's elements in order.

A position is one value, the *mark*. The state that a user saves follows from the mark, and a mark from a state.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.contract import optional
from bushel._src.base.errors import StateMismatch, inside
from bushel._src.graph.node import Origin
from bushel._src.graph.skips import Skips, collect_skips, count_collected
from bushel._src.graph.state_fields import State, read_count, read_field

N = TypeVar("N")
"""The class of the node that a cursor runs."""

Mark = Any
"""A position of one cursor. Only the cursor that made it, or that has read it from a state, understands it."""


END: Any = object()
"""What `make_rows` is given instead of a row at the end of a stream."""


class Cursor(abc.ABC):
    """Hands out the elements of a stream. A cursor of one's own needs the five abstract methods."""

    parents: tuple[Cursor, ...] = ()

    places: tuple[tuple[str | int, ...], ...] = ()
    """Where the state of each parent lies in the state of this cursor: a path of keys. By default they are the same."""

    at_hand: Iterator[Any] = iter(())
    """The next elements, as far as they are read already. Taking one moves the cursor, as a pull of one does."""

    @abc.abstractmethod
    def pull(self, count: int) -> Block:
        """Returns up to `count` elements; none at all only at the end of the stream.

        The elements belong to the caller: a user's function may write into them. If an element fails, the elements
        before it are returned, and the next call raises its error. A cursor never reads more of its parents than it
        needs for these elements; otherwise the marks of its parents would be ahead of the elements it has returned.
        """

    @abc.abstractmethod
    def mark(self) -> Mark:
        """The position after the elements that were handed out. It must be cheap: it is taken before every element."""

    @abc.abstractmethod
    def rewind(self, mark: Mark) -> None:
        """Goes to a position. Reads no elements; see `catch_up`."""

    @abc.abstractmethod
    def state_of(self, mark: Mark) -> State:
        """The state that describes a position. It may be asked for while another thread is in `pull`."""

    @abc.abstractmethod
    def mark_of(self, state: State) -> Mark:
        """The position that a state describes. Raises StateMismatch if the state is not one of this cursor."""

    def get_state(self) -> State:
        """The state at the present position."""
        return self.state_of(self.mark())

    def set_state(self, state: State) -> None:
        """Goes to the position that a state describes."""
        self.rewind(self.mark_of(state))

    @optional
    def catch_up(self) -> None:
        """Reads again the elements that the position needs, such as the window that it is in the middle of.

        Without this call the next `pull` does it. Raises StateMismatch if the data does not have what the state says.
        """
        for number, parent in enumerate(self.parents):
            with inside(*(self.places[number] if self.places else ())):
                parent.catch_up()

    @optional
    def get_next_index(self) -> int:
        """The index of the next element, for streams whose elements have one."""
        raise NotImplementedError(f"{type(self).__name__} has no index of its next element.")

    @optional
    def set_next_index(self, index: int) -> None:
        """Goes to the element with this index, without reading."""
        raise NotImplementedError(f"{type(self).__name__} cannot seek: what comes next depends on what came before.")

    @optional
    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        """Index and records of row `row` of the last pull, if they are known: for messages."""
        return None

    @optional
    def marks_of_rows(self) -> list[Mark] | None:
        """The position after each row of the last pull, if they are known; by default they are not."""
        return None

    @optional
    def is_ready(self) -> bool:
        """Whether `pull` can begin at once. False while it would wait for a worker or a thread."""
        return all(parent.is_ready() for parent in self.parents)

    @optional
    def start_prefetch(self) -> None:
        """Starts to work ahead, where this cursor or one before it does so."""
        for parent in self.parents:
            parent.start_prefetch()

    @optional
    def close(self) -> None:
        """Frees what the cursor holds. May be called from another thread, also while this one is in `pull`."""
        for parent in self.parents:
            parent.close()


def pull_exactly(parent: Cursor, count: int) -> Block:
    """The next `count` elements of a cursor, fewer only at its end. After that it is not asked again here."""
    parts: list[Block] = []
    while count:
        part = parent.pull(count)
        if not len(part):
            break
        parts.append(part)
        count -= len(part)
    return blocks.join(parts) if parts else []


def make_rows(cursor: Cursor, count: int, make: Callable[[], Any], skips: Skips | None) -> list[Any]:
    """Up to `count` rows that `make` gives for `cursor`, one after the other, until it gives END.

    If a row fails, the rows before it are returned and the cursor stands before the row that failed.
    """
    if count == 1:
        row = make()
        return [] if row is END else [row]
    before = cursor.mark()
    rows: list[Any] = []
    failed = False
    with collect_skips(skips) as skipped:
        try:
            while len(rows) < count and (row := make()) is not END:
                rows.append(row)
        except Exception:
            if not rows:
                raise
            failed = True
            cursor.rewind(before)
    if failed:
        # Without the row that failed. Rows are made again, since marks are too dear to be taken before each row.
        return make_rows(cursor, len(rows), make, skips)
    count_collected(skips, skipped)
    return rows


class Over(Cursor, Generic[N]):
    """A cursor with one parent, whose state lies in its own state under `parent_key`.

    Args:
      parent: the cursor that it draws from.
      node: the node that it runs, if a node stands for it.
      skips: where elements that fail are counted; None where they raise.
    """

    parent_key: ClassVar[str] = "parent"

    def __init__(self, parent: Cursor, node: Any = None, skips: Skips | None = None):
        self.parent = parent
        self.node: N = node
        self.skips = skips
        self.parents = (parent,)
        self.places = ((self.parent_key,),)

    def parent_mark_of(self, state: State) -> Mark:
        """The parent's position in a state of this cursor."""
        inner = read_field(state, self.parent_key, dict)
        with inside(self.parent_key):
            return self.parent.mark_of(inner)


class Same(Cursor):
    """A cursor whose positions are those of its one parent. By default its states are the parent's, too."""

    def __init__(self, parent: Cursor):
        self.parent = parent
        self.parents = (parent,)

    def mark(self) -> Mark:
        return self.parent.mark()

    def rewind(self, mark: Mark) -> None:
        self.parent.rewind(mark)

    @optional
    def state_of(self, mark: Mark) -> State:
        """By default the state of the parent."""
        return self.parent.state_of(mark)

    @optional
    def mark_of(self, state: State) -> Mark:
        """By default the parent's position in its state."""
        return self.parent.mark_of(state)

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self.parent.trace(row)

    def marks_of_rows(self) -> list[Mark] | None:
        return self.parent.marks_of_rows()

    def get_next_index(self) -> int:
        return self.parent.get_next_index()

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)


class GroupCursor(Over[N]):
    """A cursor that makes rows in groups and hands them out one by one: a window, packed rows, parts of an element.

    A position is the parent's position before the group, how many rows of the group were given, and `extra`, which
    belongs to the subclass. Going to a position in the middle of a group makes the group again: a user's function may
    have written into the rows that it got.
    """

    given_key: ClassVar[str]
    """Where the state keeps how many rows of the group were given."""

    extra_key: ClassVar[str | None] = None
    """Where the state keeps `extra`, if that is a number."""

    group_name: ClassVar[str]
    """What a group is, for messages."""

    keeps_given_at_end: ClassVar[bool] = False
    """Whether `given` keeps its value of the last group at the end of the stream. Some of Grain's states have it so."""

    def __init__(self, parent: Cursor, node: N, skips: Skips | None, extra: Any = None):
        super().__init__(parent, node, skips)
        self.before: Mark = parent.mark()
        self.group: Block = []
        self.given = 0
        self.extra = extra
        self.beyond: Any = None
        """The part of the parent's elements that the subclass has read beyond the group; None if there is none."""
        self.waiting: list[Any] = []
        """Whole elements that the subclass has read beyond that, if it reads many at a time."""
        self.waiting_at: list[Mark] = []
        """The parent's position before each of them."""
        self.ended = False
        """Whether the parent has no more elements."""
        self.behind = False
        """Whether the group at this position has yet to be made again."""

    @abc.abstractmethod
    def read_group(self) -> Block | None:
        """Reads of the parent what a group needs, and makes it; None at the end of the stream.

        While `behind` is set it makes the group of the present position again, not the next one.
        """

    @optional
    def position_before_group(self) -> tuple[Mark, Any]:
        """The parent's position before what the next group is made of, and `extra` there; by default where it is."""
        return self.parent.mark(), self.extra

    def describe_mismatch(self, rows: int) -> StateMismatch:
        """The error for a state in the middle of a group that has only `rows` rows here."""
        return StateMismatch(
            f"This state is after row {self.given} of {self.group_name}, which has {rows}. "
            "Was it saved with other data or other arguments?",
            self.given_key,
        )

    def read_parent(self, count: int) -> Block:
        """The next `count` elements of the parent, fewer only at its end. After that it is not asked again."""
        rows: Block = [] if self.ended else pull_exactly(self.parent, count)
        self.ended = self.ended or len(rows) < count
        return rows

    def next_rows(self, count: int) -> Block:
        """Up to `count` rows of the present group, or of the next one; none at the end."""
        if self.behind:
            self._read_again()
        while self.given >= len(self.group):
            if self.ended:
                return []
            before, extra = self.position_before_group()
            group = self.read_group()
            self.before, self.extra = before, extra
            self.ended = self.ended or group is None
            self.given = self.given if group is None and self.keeps_given_at_end else 0
            self.group = [] if group is None else group
        low = self.given
        self.given = min(low + count, len(self.group))
        return blocks.take_part(self.group, low, self.given)

    def catch_up(self) -> None:
        super().catch_up()
        if self.behind:
            self._read_again()

    def _read_again(self) -> None:
        with collect_skips(self.skips):  # they were counted when the group was made first
            group = self.read_group()
        self.group = [] if group is None else group
        self.behind, self.ended = False, self.ended or group is None
        if self.given > len(self.group) and not (group is None and self.keeps_given_at_end):
            raise self.describe_mismatch(len(self.group))

    def mark(self) -> Mark:
        return self.before, self.given, self.extra

    def rewind(self, mark: Mark) -> None:
        self.before, self.given, self.extra = mark
        self.parent.rewind(self.before)
        self.group, self.beyond, self.ended = [], None, False
        self.waiting, self.waiting_at = [], []
        self.behind = bool(self.given or self.extra)

    @optional
    def state_of(self, mark: Mark) -> State:
        """By default the parent's state before the group, `given`, and `extra` where there is a key for it."""
        before, given, extra = mark
        state = {self.parent_key: self.parent.state_of(before), self.given_key: given}
        return state if self.extra_key is None else {**state, self.extra_key: extra}

    @optional
    def mark_of(self, state: State) -> Mark:
        """By default the position in a state that has what the default `state_of` gives it."""
        extra = None if self.extra_key is None else read_count(state, self.extra_key)
        given = read_count(state, self.given_key)
        return self.parent_mark_of(state), given, extra
