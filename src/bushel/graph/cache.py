"""A stream whose elements are kept once it has been read to its end. Where they are kept: stores.py."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import DamagedFile, StateMismatch
from bushel.graph.stores import Kept, Recording, Store
from bushel.graph.streams import (
    Cursor,
    LeftOut,
    OneParent,
    Opener,
    Skips,
    State,
    aside,
    count_listed,
    counted,
    field,
    listing_skips,
    restore,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Cache(OneParent):
    """The parent's elements, which are kept once they have been read to the end.

    `key` returns the name under which they are kept: the identity of the pipeline when an iterator is made.
    """

    store: Store = dataclasses.field(metadata={"identity": False})
    key: Callable[[], str] = dataclasses.field(metadata={"identity": False})

    def open(self, opener: Opener) -> Cursor:
        return _CacheCursor(opener.open(self.parent), self, opener.skips)

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        return "cache()"


class _CacheCursor(Cursor):
    """Its state holds the parent's state, also while elements come from the cache, so that it restores without it."""

    def __init__(self, parent: Cursor, node: Cache, skips: Skips | None):
        self.parents = (parent,)
        self.parent = parent
        self.skips = skips
        self.store, self.key = node.store, node.key()
        self.start = parent.get_state()
        self.kept: Kept | None = None
        self.recording: Recording | None = None
        self.begin(0, self.start)

    def begin(self, position: int, here: State) -> None:
        """Goes to a position, where the parent's state is `here`."""
        self.abandon()
        self.position, self.here = position, here
        self.kept = self.store.find(self.key)
        if self.kept is not None and self.kept.skipped and self.skips is None:
            self.kept = (
                None  # elements were skipped when it was recorded, and here failures raise: read the stream again
            )
        self.behind = False  # the state has the position, but not the parent's state at that position
        self.ended = False

    def pull(self, count: int) -> Block:
        if self.kept is not None:
            try:
                return self._from_kept(self.kept, count)
            except DamagedFile as error:
                self._forget(self.kept, error)
                self.parent.set_state(self.here)  # goes on without the cache, from the same position
        if self.behind:
            with aside(self.skips):
                self._catch_up()
        rows: list[Any] = []
        if self.position == 0 and self.here == self.start and self.recording is None:
            self.recording = self.store.record(self.key, self.start)
        while len(rows) < count and not self.ended:
            rows += self._read(count - len(rows))
        return rows

    def _from_kept(self, kept: Kept, count: int) -> Block:
        if self.position > len(kept):
            raise self._beyond(self.position, len(kept))
        if self.ended:
            return []
        last = min(len(kept), self.position + count)
        rows = [kept.element(number) for number in range(self.position, last)]
        here = kept.state(last) if rows else kept.end
        # A skipped element counts when the next row is delivered, or at the end, as when the stream itself is read.
        places = range(self.position, last) if rows else [last]
        for place in places if kept.skipped else ():
            count_listed(self.skips, kept.skipped.get(place, []))
        self.position, self.here, self.ended = last, here, not rows
        return rows

    def _forget(self, kept: Kept, error: DamagedFile) -> None:
        """Drops a damaged cache. The next pass over the whole stream records it again."""
        warnings.warn(f"A cache is damaged. Its elements are computed, and kept, again: {error}", stacklevel=2)
        self.store.forget(self.key, kept)
        self.kept = None

    def _read(self, count: int) -> list[Any]:
        """Some elements of the parent. A recording takes one at a time, since it keeps the state after each."""
        skipped: list[LeftOut] = []
        if self.recording is None:
            rows = blocks.rows_of(self.parent.pull(count))
        else:
            with listing_skips(self.skips) as skipped:
                rows = blocks.rows_of(self.parent.pull(1))
        self.here = self.parent.get_state()
        self.position += len(rows)
        self.ended = not rows
        if self.recording is not None:
            try:
                if rows:
                    self.recording.add(rows[0], self.here, skipped)
                else:
                    self.recording.finish(self.here, skipped)
                    self.recording = None
            except OSError as error:  # for example a full disk: the elements themselves are good
                self.abandon()
                warnings.warn(f"This pass is not cached: {error}", stacklevel=2)
        return rows

    def _catch_up(self) -> None:
        self.parent.set_state(self.start)
        position, self.position, self.behind = self.position, 0, False
        self.recording = self.store.record(self.key, self.start)
        while self.position < position:
            if not self._read(1):
                raise self._beyond(position, self.position)

    def _beyond(self, position: int, length: int) -> StateMismatch:
        return StateMismatch(
            f"This state is after element {position} of a stream that has {length}. Was it saved with other data?",
            "position",
        )

    def abandon(self) -> None:
        if self.recording is not None:
            self.recording.abandon()
            self.recording = None

    def mark(self) -> Any:
        return self.parent.mark(), self.recording, (self.position, self.here, self.kept, self.behind, self.ended)

    def rewind(self, mark: Any) -> None:
        parent, recording, (self.position, self.here, self.kept, self.behind, self.ended) = mark
        self.parent.rewind(parent)
        if self.recording is not recording:
            self.abandon()  # it began or ended after the mark: the rest of this pass is not recorded
        elif recording is not None:
            recording.back_to(self.position)

    def state_of(self, mark: Any) -> State:
        *_, (position, here, _, behind, _) = mark
        return {"parent": here, "position": position, "cache_filled": behind}

    def get_state(self) -> State:
        return {"parent": self.here, "position": self.position, "cache_filled": self.behind}

    def set_state(self, state: State) -> None:
        position, filled = counted(state, "position"), field(state, "cache_filled", bool)
        here = field(state, "parent", dict)
        kept = self.store.find(self.key)
        if kept is not None and position > len(kept):
            raise self._beyond(position, len(kept))
        restore(self.parent, state, "parent")
        self.begin(position, here)
        if (
            filled and self.kept is not None
        ):  # a state of Grain's: the parent's state in it is not the one at this position
            try:
                self.here = self.kept.state(min(position, len(self.kept)))
            except DamagedFile as error:
                self._forget(self.kept, error)
        self.behind = filled and self.kept is None
        if self.kept is not None and position == len(self.kept):
            # If the state is that of the end, the elements skipped after the last one are in its count already.
            self.ended = position in self.kept.skipped and _same(here, self.kept.end)

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent",)

    def catch_up(self) -> None:
        if self.kept is not None:
            return
        super().catch_up()
        if self.behind:
            with aside(self.skips):
                self._catch_up()

    def start_prefetch(self) -> None:
        if self.kept is None:
            super().start_prefetch()

    def close(self) -> None:
        self.abandon()
        super().close()


def _same(one: State, other: State) -> bool:
    """Whether two states are equal, also where one was read from a JSON file."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
