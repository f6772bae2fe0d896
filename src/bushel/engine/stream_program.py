"""Streams that are run whole, by one worker: files read in order, datasets of users, with all that is done to them.

Such a stream goes on only from a state. Its tasks come one after the other, each from the state that the one before
has ended at, so any worker can take over; the one that has it open goes on without seeking.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bushel.base import blocks
from bushel.base.errors import RowFailed
from bushel.base.options import DatasetOptions
from bushel.engine import tally
from bushel.engine.program import Announce, Result, Skipped
from bushel.engine.tally import Tally
from bushel.graph.cursors import Cursor
from bushel.graph.node import Node, Origin
from bushel.graph.skips import Skips, collect_skips
from bushel.graph.state_fields import State
from bushel.graph.streams import StreamNode

OpenStream = Callable[[StreamNode, DatasetOptions, Skips | None], Cursor]

Start = tuple[int, State | None]
"""Which run of a stream it is, and the state it goes on from; None is its beginning."""


@dataclasses.dataclass(eq=False)
class StreamProgram:
    """The rows of a stream, each with the state after it."""

    node: StreamNode
    open: OpenStream
    options: DatasetOptions
    skip: bool = False
    unit: int = 1

    def __post_init__(self) -> None:
        # The open stream, while no task has it: one that was given up may still be under way in another thread.
        self._idle: collections.deque[_Open] = collections.deque()
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": collections.deque()}

    def operations(self) -> list[Node]:
        """All that is done, the last first."""
        found: list[Node] = [self.node]
        for node in found:
            found.extend(node.parents)
        return found

    def which(self, low: int, high: int) -> str:
        """The elements of rows [low, high), in words. Rows count from the last state, so their number says nothing."""
        return f"an element of {self.node.describe()}"

    def origins(self, position: int) -> tuple[Origin, ...]:
        """Not known: the stream would have to be read."""
        return ()

    def run(self, low: int, high: int, start: Start, announce: Announce | None) -> Result:
        """Rows [low, high) of a run, as far as there are so many. Where the stream has ended, a last state says so."""
        if tally.number_of(self.node) is None:
            return self._run(low, high, start, announce)
        spent: Tally = {}
        with tally.taken(spent):
            result = self._run(low, high, start, announce)
        return dataclasses.replace(result, tally=spent)

    def _run(self, low: int, high: int, start: Start, announce: Announce | None) -> Result:
        serial, state = start
        opened = self._at_row((serial, low), state)
        cursor, skips = opened.cursor, opened.skips
        rows: list[Any] = []
        states = [cursor.get_state()]
        failure: BaseException | None = None
        skipped: list[Skipped] = []
        for number in range(low, high):
            if announce is not None:
                announce(number, number + 1)
            block = []
            with collect_skips(skips) as skip_notes:
                try:
                    block = cursor.pull(1)
                except RowFailed as failed:
                    failure = failed.error
                except SystemExit:
                    raise
                except BaseException as error:
                    failure = error
            skipped.extend((number, one) for one in skip_notes)
            if failure is not None:
                break
            states.append(cursor.get_state())
            if not len(block):
                break
            rows.extend(blocks.rows_of(block))
        opened.at = (serial, low + len(rows)) if failure is None else None
        self._idle.append(opened)
        if self._closed:
            self.close()
        marks = np.arange(low + 1, low + 1 + len(rows))[:, None]
        return Result(rows, marks, [], failure, skipped, states)

    def beginning(self) -> State:
        """The state at the beginning, by opening the stream here."""
        cursor = self.open(self.node, self.options, Skips(None) if self.skip else None)
        try:
            return cursor.get_state()
        finally:
            cursor.close()

    def close(self) -> None:
        """Lets go of what the stream holds; a task that is under way does so at its end."""
        self._closed = True
        for opened in self._taken():
            opened.cursor.close()

    def _at_row(self, at: tuple[int, int], state: State | None) -> _Open:
        """The open stream for one task alone."""
        found = None
        for opened in self._taken():
            if opened.at == at:
                found = opened
            else:
                opened.cursor.close()
        if found is None:
            skips = Skips(self.options.skip_limit) if self.skip else None
            found = _Open(self.open(self.node, self.options, skips), skips)
            if state is not None:
                found.cursor.set_state(state)
                found.cursor.catch_up()
        return found

    def _taken(self) -> Iterator[_Open]:
        with contextlib.suppress(IndexError):
            while True:
                yield self._idle.pop()


@dataclasses.dataclass(slots=True, eq=False)
class _Open:
    """An open stream, and at which row of which run it stands, where that is known."""

    cursor: Cursor
    skips: Skips | None
    at: tuple[int, int] | None = None
