"""The contract of cursors. A cursor runs a stream node: it hands out the node's elements in order.

Also what cursors share: entries of states that users restore, elements that failed and were skipped, and closing what
another thread may be using.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import StateMismatch, TooManySkipped, inside
from bushel._src.base.state_names import overridable
from bushel._src.graph.node import Origin

State = dict[str, Any]
"""The position of a stream as plain JSON data, in Grain's form."""

MOST_COUNTED = 1 << 62
"""No stream has given more elements, and sums with this number still fit into 64 bits."""


def read_field(state: Any, name: str, kind: type) -> Any:
    """Return entry `name` of a state; StateMismatch if it is missing or of another type than `kind`."""
    if not isinstance(state, Mapping) or name not in state:
        if isinstance(state, Mapping) and "iterators_in_use_states" in state:
            raise StateMismatch(
                "This state was written by Grain with worker processes: it holds one position per worker and "
                "describes no position in the one sequence that this pipeline gives. Save it in Grain without workers.",
                name,
            )
        if isinstance(state, Mapping):
            raise StateMismatch(
                f"This iterator's state needs an entry {name!r}; the given one has the keys {sorted(map(str, state))}. "
                "Was it saved by another pipeline?",
                name,
            )
        raise StateMismatch(
            f"This iterator's state needs an entry {name!r}; the given one is {state!r}. Was it saved by another "
            "pipeline?",
            name,
        )
    return check_type(state[name], kind, name)


def check_type(value: Any, kind: type, *place: str | int) -> Any:
    """Return a value of a state, if it is of type `kind`. Numbers of NumPy become Python's."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        shown = repr(value) if len(repr(value)) <= 200 else f"{repr(value)[:200]}..."
        raise StateMismatch(
            f"Entry {place[-1]!r} of an iterator's state must be of type {kind.__name__}, got {shown}.", *place
        )
    return value


def read_count(state: Any, name: str, most: int = MOST_COUNTED) -> int:
    """Return entry `name` of a state, which is a number of elements: between 0 and `most`."""
    number = read_field(state, name, int)
    if not 0 <= number <= most:
        limit = "" if most == MOST_COUNTED else f" There are {most} at most."
        raise StateMismatch(
            f"Entry {name!r} of an iterator's state counts elements; {number} is no such number.{limit}", name
        )
    return number


def as_number(key: Any) -> Any:
    """Return a key of a state that was a number before JSON turned it into a text; any other key as it is."""
    return int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 20 else key


logger = logging.getLogger("bushel")

SkipNote = tuple[str, str, int]
"""Elements that failed together: which ones, their error as text, and how many they are."""


_LATEST = 50


class Skips:
    """Counts the elements of one stream that failed and were skipped.

    The count is part of the state, so it belongs to the elements that were delivered. A cursor that reads ahead of
    the consumer therefore collects its skips (`collect_skips`), and counts them when it delivers the next element.
    A cursor that reads elements again, after a restore, collects their skips and drops them.
    """

    def __init__(self, limit: int | None):
        self.limit = limit
        self.count = 0
        self._lock = threading.Lock()
        self.collected: dict[int, list[SkipNote]] = {}
        """By thread: the list into which that thread's skips go instead of the count."""
        self.latest: collections.deque[SkipNote] = collections.deque(maxlen=_LATEST)
        """The skips that were counted last, for reports. They are not part of the state."""

    def add(self, which: str, error: str, number: int = 1) -> None:
        """Count elements that failed, or collects them. Logs the first, the tenth, the hundredth skip.

        Raises TooManySkipped if there are more than the limit.
        """
        collected = self.collected.get(threading.get_ident())
        if collected is not None:
            before = sum(note[2] for note in collected) if self.limit is not None else 0
            collected.append((which, error, number))
            # Collected skips are checked against the limit, too: a stream of nothing but failures would never end.
            self._check_limit(which, error, before, number)
            return
        with self._lock:  # two threads could otherwise add to the same count
            before, count = self.count, self.count + number
            self._check_limit(which, error, before, number)
            self.count = count
            self.latest.append((which, error, number))
        if not before or len(str(count)) > len(str(before)):
            logger.warning("Skipped %s (%d skipped so far): %s", which, count, error)

    def _check_limit(self, which: str, error: str, before: int, number: int) -> None:
        if self.limit is not None and before + number > self.limit:
            allowed = "as many as skip_limit allows" if before == self.limit else f"and skip_limit is {self.limit}"
            raise TooManySkipped(
                f"{which} failed, and {before} elements were skipped already, {allowed}. It failed with\n{error}"
            )


@contextlib.contextmanager
def collect_skips(skips: Skips | None) -> Iterator[list[SkipNote]]:
    """While this is open, skips of this thread go into the list that it yields, and are not counted."""
    collected: list[SkipNote] = []
    if skips is None:
        yield collected
        return
    thread = threading.get_ident()
    outer = skips.collected.get(thread)
    try:
        skips.collected[thread] = collected
        yield collected
    finally:
        if outer is None:
            skips.collected.pop(thread, None)
        else:
            skips.collected[thread] = outer


def count_collected(skips: Skips | None, collected: list[SkipNote]) -> None:
    """Count skips that were collected before."""
    for note in collected:
        assert skips is not None
        skips.add(*note)


@contextlib.contextmanager
def collect_then_count(skips: Skips | None) -> Iterator[list[SkipNote]]:
    """Collect the skips of this thread, and count them at the end."""
    too_many: TooManySkipped | None = None
    with collect_skips(skips) as collected:
        try:
            yield collected
        except TooManySkipped as error:
            too_many = error
    count_collected(skips, collected)  # raises by itself if there are too many, with the right number
    if too_many is not None:
        raise too_many


CLOSED = "This iterator was closed while its next element was being computed."


class InUse:
    """Closes an iterator once, and never while it is in use: the thread that uses it closes it when it is done.

    One thread at a time uses an iterator. Any thread may close it, and so may a signal handler or the garbage collector
    in the middle of `__next__`. Python refuses to close a generator that is running ("generator already executing"),
    and a user's own `close` is not made for it. `close` returns at once and never waits for the user of the iterator.
    Using the iterator after that is a ValueError.

    >>> def numbers():
    ...     try:
    ...         yield 1
    ...     finally:
    ...         print("closed")
    >>> iterator = numbers()
    >>> in_use = InUse(iterator)
    >>> with in_use:
    ...     _ = next(iterator)
    ...     in_use.close()
    ...     print("still in use")
    still in use
    closed
    """

    __slots__ = ("_held", "is_closed", "users")

    def __init__(self, iterator: Any = None):
        self._held = [iterator]  # taken out by the thread that closes it: only one `pop` succeeds
        self.users = 0
        self.is_closed = False
        """Whether `close` was called: the iterator is closed, or will be when its user is done."""

    def hold(self, iterator: Any) -> None:
        """Hold another iterator from now on. Only for the thread that uses it."""
        self._held = [iterator]

    def __enter__(self) -> None:
        self.users += 1
        if self.is_closed:
            self.users -= 1
            raise ValueError(CLOSED)

    def __exit__(self, *_: object) -> None:
        self.users -= 1
        if self.is_closed and not self.users:
            self.close()

    def close(self) -> None:
        """Close the iterator, now or when its user is done. Calling it again does nothing."""
        # This comes before the look at `users`. A thread that begins to use the iterator meanwhile either sees
        # `is_closed`, or is counted in `users`.
        self.is_closed = True
        iterator = None
        if not self.users:
            with contextlib.suppress(IndexError):
                iterator = self._held.pop()
        getattr(iterator, "close", lambda: None)()


N = TypeVar("N")
"""The class of the node that a cursor runs."""

Mark = Any
"""A position of one cursor. Only the cursor that made it, or that has read it from a state, understands it."""


END: Any = object()
"""What `make_rows` is given instead of a row at the end of a stream."""


class Cursor(abc.ABC):
    """Hands out the elements of a stream. A cursor of one's own needs the five abstract methods."""

    parents: tuple[Cursor, ...] = ()

    state_paths: tuple[tuple[str | int, ...], ...] = ()
    """Where the state of each parent lies in the state of this cursor: a path of keys. By default they are the same."""

    at_hand: Iterator[Any] = iter(())
    """The next elements, as far as they are read already. Taking one moves the cursor, as a pull of one does."""

    @abc.abstractmethod
    def pull(self, count: int) -> Block:
        """Return up to `count` elements; none at all only at the end of the stream.

        The elements belong to the caller: a user's function may write into them. If an element fails, the elements
        before it are returned, and the next call raises its error. A cursor never reads more of its parents than it
        needs for these elements; otherwise the marks of its parents would be ahead of the elements it has returned.
        """

    @abc.abstractmethod
    def mark(self) -> Mark:
        """Return the position after the elements that were handed out.

        It must be cheap: it is taken before every element.
        """

    @abc.abstractmethod
    def rewind(self, mark: Mark) -> None:
        """Go to a position. Read no elements; see `catch_up`."""

    @abc.abstractmethod
    def state_of(self, mark: Mark) -> State:
        """Return the state that describes a position. It may be asked for while another thread is in `pull`."""

    @abc.abstractmethod
    def mark_of(self, state: State) -> Mark:
        """Return the position that a state describes. Raise StateMismatch if the state is not one of this cursor."""

    def get_state(self) -> State:
        """Return the state at the present position."""
        return self.state_of(self.mark())

    def set_state(self, state: State) -> None:
        """Go to the position that a state describes."""
        self.rewind(self.mark_of(state))

    @overridable
    def catch_up(self) -> None:
        """Read again the elements that the position needs, such as the window that it is in the middle of.

        Without this call the next `pull` does it. Raises StateMismatch if the data does not have what the state says.
        """
        for number, parent in enumerate(self.parents):
            with inside(*(self.state_paths[number] if self.state_paths else ())):
                parent.catch_up()

    @overridable
    def get_next_index(self) -> int:
        """Return the index of the next element, for streams whose elements have one."""
        raise NotImplementedError(f"{type(self).__name__} has no index of its next element.")

    @overridable
    def set_next_index(self, index: int) -> None:
        """Go to the element with this index, without reading."""
        raise NotImplementedError(f"{type(self).__name__} cannot seek: what comes next depends on what came before.")

    @overridable
    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        """Return index and records of row `row` of the last pull, if they are known: for messages."""
        return None

    @overridable
    def marks_of_rows(self) -> list[Mark] | None:
        """Return the position after each row of the last pull, if they are known; by default they are not."""
        return None

    @overridable
    def is_ready(self) -> bool:
        """Return whether `pull` can begin at once. False while it would wait for a worker or a thread."""
        return all(parent.is_ready() for parent in self.parents)

    @overridable
    def start_prefetch(self) -> None:
        """Start to work ahead, where this cursor or one before it does so."""
        for parent in self.parents:
            parent.start_prefetch()

    @overridable
    def close(self) -> None:
        """Free what the cursor holds. May be called from another thread, also while this one is in `pull`."""
        for parent in self.parents:
            parent.close()


def pull_exactly(parent: Cursor, count: int) -> Block:
    """Return the next `count` elements of a cursor, fewer only at its end. After that it is not asked again here."""
    parts: list[Block] = []
    while count:
        part = parent.pull(count)
        if not len(part):
            break
        parts.append(part)
        count -= len(part)
    return blocks.join(parts) if parts else []


def make_rows(cursor: Cursor, count: int, make: Callable[[], Any], skips: Skips | None) -> list[Any]:
    """Return up to `count` rows that `make` gives for `cursor`, one after the other, until it gives END.

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
        self.state_paths = ((self.parent_key,),)

    def parent_mark_of(self, state: State) -> Mark:
        """Return the parent's position in a state of this cursor."""
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

    @overridable
    def state_of(self, mark: Mark) -> State:
        """By default the state of the parent."""
        return self.parent.state_of(mark)

    @overridable
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
        """Read of the parent what a group needs, and make it; None at the end of the stream.

        While `behind` is set it makes the group of the present position again, not the next one.
        """

    @overridable
    def position_before_group(self) -> tuple[Mark, Any]:
        """Return the parent's position before what the next group is made of, and `extra` there; by default where it
        is.
        """
        return self.parent.mark(), self.extra

    def describe_mismatch(self, rows: int) -> StateMismatch:
        """Return the error for a state in the middle of a group that has only `rows` rows here."""
        return StateMismatch(
            f"This state is after row {self.given} of {self.group_name}, which has {rows}. "
            "Was it saved with other data or other arguments?",
            self.given_key,
        )

    def read_parent(self, count: int) -> Block:
        """Return the next `count` elements of the parent, fewer only at its end. After that it is not asked again."""
        rows: Block = [] if self.ended else pull_exactly(self.parent, count)
        self.ended = self.ended or len(rows) < count
        return rows

    def next_rows(self, count: int) -> Block:
        """Return up to `count` rows of the present group, or of the next one; none at the end."""
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
        return blocks.take_slice(self.group, low, self.given)

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

    @overridable
    def state_of(self, mark: Mark) -> State:
        """By default the parent's state before the group, `given`, and `extra` where there is a key for it."""
        before, given, extra = mark
        state = {self.parent_key: self.parent.state_of(before), self.given_key: given}
        return state if self.extra_key is None else {**state, self.extra_key: extra}

    @overridable
    def mark_of(self, state: State) -> Mark:
        """By default the position in a state that has what the default `state_of` gives it."""
        extra = None if self.extra_key is None else read_count(state, self.extra_key)
        given = read_count(state, self.given_key)
        return self.parent_mark_of(state), given, extra
