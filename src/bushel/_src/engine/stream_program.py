"""Streams that one worker runs as a whole: files that are read in order, and datasets of users, with all their steps.

Such a stream can start only at a state. Its tasks run one after the other, and each starts at the state at which the
one before has ended. So any worker can take over. The worker that has the stream open continues without seeking.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bushel._src.base import blocks
from bushel._src.base.background import must_end
from bushel._src.base.options import DatasetOptions
from bushel._src.engine import measurements
from bushel._src.engine.measurements import Tally
from bushel._src.engine.program import Announce, Result, Skipped, get_user_error
from bushel._src.graph.cursors import Cursor, Skips, State, collect_skips
from bushel._src.graph.node import Node, Origin
from bushel._src.graph.streams import StreamNode

OpenStream = Callable[[StreamNode, DatasetOptions, Skips | None], Cursor]

Start = tuple[int, State | None]
"""The number of a run of the stream, and the state at which it starts; None is the beginning of the stream."""


@dataclasses.dataclass(eq=False)
class StreamProgram:
    """The rows of a stream, each with the state after it."""

    node: StreamNode
    open: OpenStream
    options: DatasetOptions
    skip: bool = False
    unit: int = 1

    def __post_init__(self) -> None:
        # The open stream, while no task uses it. A queue: a task that was dropped may still run in another thread.
        self._idle: collections.deque[_OpenRun] = collections.deque()
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": collections.deque()}

    def list_operations(self) -> list[Node]:
        """Return all nodes of the stream, the last operation first."""
        nodes: list[Node] = [self.node]
        for node in nodes:  # the list grows while it is read
            nodes.extend(node.parents)
        return nodes

    def describe_elements(self, low: int, high: int) -> str:
        """Return words for the elements of rows [low, high). Rows count from the last state, so they have no number."""
        return f"an element of {self.node.describe()}"

    def origins(self, position: int) -> tuple[Origin, ...]:
        """Return no records: they are not known, because the stream would have to be read."""
        return ()

    def run(self, low: int, high: int, start: Start, announce: Announce | None) -> Result:
        """Return rows [low, high) of a run; fewer at the end of the stream, with one more state after the last row."""
        if measurements.get_number(self.node) is None:
            return self._run(low, high, start, announce)
        spent: Tally = {}
        with measurements.measure_into(spent):
            result = self._run(low, high, start, announce)
        return dataclasses.replace(result, tally=spent)

    def _run(self, low: int, high: int, start: Start, announce: Announce | None) -> Result:
        run, state = start
        opened = self._open_at((run, low), state)
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
                except BaseException as error:
                    if must_end(error):
                        raise
                    failure = get_user_error(error)
            skipped.extend((number, one) for one in skip_notes)
            if failure is not None:
                break
            states.append(cursor.get_state())
            if not len(block):
                break
            rows.extend(blocks.rows_of(block))
        opened.at = (run, low + len(rows)) if failure is None else None
        self._idle.append(opened)
        if self._closed:
            self.close()
        marks = np.arange(low + 1, low + 1 + len(rows))[:, None]
        return Result(rows, marks, [], failure, skipped, states)

    def get_first_state(self) -> State:
        """Return the state at the beginning. Open the stream in this process for that."""
        cursor = self.open(self.node, self.options, Skips(None) if self.skip else None)
        try:
            return cursor.get_state()
        finally:
            cursor.close()

    def close(self) -> None:
        """Close the open stream. A task that is running closes it at its end."""
        self._closed = True
        for opened in self._pop_idle():
            opened.cursor.close()

    def _open_at(self, at: tuple[int, int], state: State | None) -> _OpenRun:
        """Return the stream at a row of a run, for one task alone. Open it at `state` if it is not open there."""
        stream = None
        for opened in self._pop_idle():
            if opened.at == at:
                stream = opened
            else:
                opened.cursor.close()
        if stream is None:
            skips = Skips(self.options.skip_limit) if self.skip else None
            stream = _OpenRun(self.open(self.node, self.options, skips), skips)
            if state is not None:
                stream.cursor.set_state(state)
                stream.cursor.catch_up()
        return stream

    def _pop_idle(self) -> Iterator[_OpenRun]:
        with contextlib.suppress(IndexError):
            while True:
                yield self._idle.pop()


@dataclasses.dataclass(slots=True, eq=False)
class _OpenRun:
    """An open stream, and the run and the row at which it stands; None after an error."""

    cursor: Cursor
    skips: Skips | None
    at: tuple[int, int] | None = None
