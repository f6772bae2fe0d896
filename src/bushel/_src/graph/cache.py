"""A stream that is read once and then kept. Where it is kept: stores.py."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

from bushel._src.base import blocks
from bushel._src.base.blocks import Block
from bushel._src.base.errors import BushelWarning, DamagedFile, StateMismatch
from bushel._src.base.state_names import in_states
from bushel._src.graph.cache_stores import CachedElements, CacheStore, Kept, Recording
from bushel._src.graph.cursors import (
    Cursor,
    Mark,
    Over,
    SkipNote,
    Skips,
    State,
    collect_skips,
    collect_then_count,
    count_collected,
    read_count,
    read_field,
)
from bushel._src.graph.streams import OneParent, Opener, Ordered


@in_states("cache")
@dataclasses.dataclass(frozen=True, eq=False)
class Cache(OneParent, Ordered):
    """The parent's elements, which are kept once they were read to the end.

    `key` returns the name under which they are kept: the identity of the pipeline when an iterator is made.
    """

    store: CacheStore = dataclasses.field(metadata={"identity": False})
    key: Callable[[], str] = dataclasses.field(metadata={"identity": False})

    keeps_length = True

    def open(self, opener: Opener) -> Cursor:
        return _CacheCursor(opener.open(self.parent), self, opener.skips)

    def call(self) -> str:
        return "cache()"


class _CacheCursor(Over[Cache]):
    """Its state holds the parent's, whether the parent was read or not: it restores with and without the cache.

    The kept elements and the recording are no part of a position. Going back therefore never gives them up: elements
    that were recorded are read back, and are not computed again.
    """

    def __init__(self, parent: Cursor, node: Cache, skips: Skips | None):
        super().__init__(parent, node, skips)
        self.store, self.name = node.store, node.key()
        self.start = self.here = parent.get_state()
        self.position = 0
        self.parent_at: int | None = 0
        """How many elements lie before the parent's position; None if it has to be set to `here` first."""
        self.kept = self._find_kept()
        self.recording: Recording | None = None
        self.ended = False
        self.behind = False
        """Whether the parent's position is not known, and has to be found by reading from the start."""

    def _find_kept(self) -> Kept | None:
        """Return the elements that are kept already, if they can be used."""
        kept = self.store.find(self.name)
        # If elements were skipped when they were read, and failures raise here, the stream has to be read again.
        return None if kept is not None and kept.skipped and self.skips is None else kept

    def pull(self, count: int) -> Block:
        if self.kept is not None:
            try:
                return self._read_kept(self.kept, count)
            except DamagedFile as error:
                self._forget(self.kept, error)  # reads the parent instead, from the same position
        if self.behind:
            self._catch_up()
        rows: list[Any] = []
        if self.position == 0 and self.here == self.start and self.recording is None:
            self.recording = self.store.record(self.name, self.start)
        while len(rows) < count and not self.ended:
            rows += self._read(count - len(rows))
        return rows

    def _read_kept(self, kept: Kept, count: int) -> Block:
        if self.position > len(kept):
            raise self._describe_mismatch(self.position, len(kept))
        if self.ended:
            return []
        if self.position == len(kept):
            count_collected(self.skips, kept.skipped.get(self.position, []))
            self.here, self.ended = kept.end, True
            return []
        return self._read_back(kept, count)

    def _read_back(self, elements: CachedElements, count: int) -> list[Any]:
        """Return the next elements, of those that were read before. A skipped element counts with the row after it."""
        last = min(len(elements), self.position + count)
        rows = [elements.element(number) for number in range(self.position, last)]
        here = elements.state(last)
        for place in range(self.position, last) if elements.skipped else ():
            count_collected(self.skips, elements.skipped.get(place, []))
        self.position, self.here, self.behind = last, here, False
        return rows

    def _forget(self, kept: Kept, error: DamagedFile) -> None:
        """Stop using the kept elements, which are damaged. The next whole pass records them again."""
        warnings.warn(
            f"A cache is damaged. Its elements are computed, and kept, again: {error}", BushelWarning, stacklevel=2
        )
        self.store.forget(self.name, kept)
        self.kept, self.parent_at = None, None

    def _read(self, count: int) -> list[Any]:
        """Read up to `count` elements of the recording or of the parent.

        It reads only one of the parent while they are recorded, since each needs its state.
        """
        if self.recording is not None and self.position < len(self.recording):
            try:
                return self._read_back(self.recording, count)
            except DamagedFile as error:
                self._abandon_damaged(error)
        if self.parent_at != self.position:
            self.parent.set_state(self.here)
        skipped: list[SkipNote] = []
        self.parent_at = None  # unless the next lines succeed
        if self.recording is None:
            rows = blocks.rows_of(self.parent.pull(count))
        else:
            with collect_then_count(self.skips) as skipped:
                rows = blocks.rows_of(self.parent.pull(1))
        self.here = self.parent.get_state()
        self.parent_at = self.position = self.position + len(rows)
        self.ended = not rows
        if self.recording is not None:
            try:
                if rows:
                    self.recording.add(rows[0], self.here, skipped)
                else:
                    self.recording.finish(self.here, skipped)
                    self.recording = None
                    self.kept = self._find_kept()
            except OSError as error:  # such as a full disk: the elements themselves are good
                self.abandon()
                warnings.warn(f"This pass is not cached: {error}", BushelWarning, stacklevel=2)
        return rows

    def _catch_up(self) -> None:
        """Read from the start up to the position. The skipped elements on the way were counted before."""
        self.parent.set_state(self.start)
        position, self.position, self.behind = self.position, 0, False
        self.here, self.parent_at = self.start, 0
        self.recording = self.store.record(self.name, self.start)
        with collect_skips(self.skips):
            while self.position < position:
                if not self._read(1):
                    raise self._describe_mismatch(position, self.position)

    def _describe_mismatch(self, position: int, length: int) -> StateMismatch:
        return StateMismatch(
            f"This state is after element {position} of a stream that has {length}. Was it saved with other data?",
            "position",
        )

    def abandon(self) -> None:
        if self.recording is not None:
            self.recording.abandon()
            self.recording = None

    def _abandon_damaged(self, error: DamagedFile) -> None:
        """Give up a recording whose files cannot be read back. The parent is read instead."""
        self.abandon()
        self.parent_at = None
        warnings.warn(f"This pass is not cached: {error}", BushelWarning, stacklevel=2)

    def mark(self) -> Mark:
        return self.position, self.here, self.behind, self.ended

    def rewind(self, mark: Mark) -> None:
        self.position, self.here, self.behind, self.ended = mark
        if self.kept is None and self.position == 0:
            self.kept = self._find_kept()  # another iterator may have read the stream to its end
        if self.recording is not None and (self.kept is not None or not self._is_recorded(self.recording)):
            self.abandon()
        if self.kept is None and self.recording is None:
            self.parent.set_state(self.start if self.behind else self.here)
            self.parent_at = None if self.behind else self.position

    def _is_recorded(self, recording: Recording) -> bool:
        """Return whether the elements before the position are those of the recording: it then goes on from there."""
        if self.position > len(recording):
            return False
        try:
            state = recording.state(self.position)
        except DamagedFile as error:
            self._abandon_damaged(error)
            return False
        if self.behind:
            self.here, self.behind = state, False
        return self.here == state or _are_equal(self.here, state)

    def state_of(self, mark: Mark) -> State:
        position, here, behind, _ = mark
        return {"parent": here, "position": position, "cache_filled": behind}

    def mark_of(self, state: State) -> Mark:
        position, filled = read_count(state, "position"), read_field(state, "cache_filled", bool)
        here = read_field(state, "parent", dict)
        self.parent_mark_of(state)  # checks it
        kept = self.kept = self._find_kept()
        if kept is not None and position > len(kept):
            raise self._describe_mismatch(position, len(kept))
        ended = False
        if kept is not None and position == len(kept):
            # Elements that were skipped after the last one are counted at the end. So the state of the end is told
            # from the state after the last element, which has the same position.
            ended = position in kept.skipped and _are_equal(here, kept.end)
        if filled and kept is not None:  # a state of Grain's: `here` is not the parent's position there
            try:
                here = kept.state(min(position, len(kept)))
            except DamagedFile as error:
                self._forget(kept, error)
                kept = None
        return position, here, filled and kept is None, ended

    def catch_up(self) -> None:
        if self.kept is not None:
            return
        super().catch_up()
        if self.behind:
            self._catch_up()

    def start_prefetch(self) -> None:
        if self.kept is None:
            super().start_prefetch()

    def close(self) -> None:
        self.abandon()
        super().close()


def _are_equal(one: State, other: State) -> bool:
    """Return whether two states are the same, also where one of them came from a file."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
