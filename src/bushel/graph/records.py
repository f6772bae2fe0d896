"""Records that can only be read in order, as leaves of a stream: one file, or many interleaved."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel.base.blocks import Block, rows_of
from bushel.base.errors import RowFailed, StateMismatch, located
from bushel.graph.node import Node
from bushel.graph.streams import Cursor, Opener, State, StreamNode, counted, field
from bushel.sources.protocol import SequentialReader, SequentialSource


@dataclasses.dataclass(frozen=True, eq=False)
class Records(StreamNode):
    """The records of one source that is read in order."""

    source: SequentialSource
    name: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    def open(self, opener: Opener) -> Cursor:
        return _ReaderCursor(self)

    def parameters(self) -> dict[str, Any]:
        return {"kind": type(self.source).__name__, "source": self.source.fingerprint()}

    def element_spec(self) -> Any:
        raise NotImplementedError(f"The shapes of {self.name} are not known without reading it.")

    def call(self) -> str:
        return self.name


class _ReaderCursor(Cursor):
    """Opens its reader when the first record is asked for."""

    def __init__(self, node: Records):
        self._node = node
        self._opened: SequentialReader | None = None

    @property
    def _reader(self) -> SequentialReader:
        if self._opened is None:
            self._opened = self._node.source.open()
        return self._opened

    def pull(self, count: int) -> Block:
        try:
            return (self._opened or self._reader).read(count)
        except Exception as error:
            raise RowFailed(0, located(error, f"bushel: reading {self._node.name} failed.")) from error

    def get_state(self) -> State:
        return (self._opened or self._reader).get_state()

    def set_state(self, state: State) -> None:
        for name, value in self._reader.get_state().items():
            field(state, name, type(value))
        self._reader.set_state(state)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Interleaved(StreamNode):
    """Files in turn, one record of each: at most `cycle_length` of them at a time, the next one where one ends."""

    files: tuple[Records, ...]
    cycle_length: int

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.files

    @property
    def joins(self) -> bool:
        return True

    def open(self, opener: Opener) -> Cursor:
        return _InterleavedCursor(self)

    def element_spec(self) -> Any:
        return self.files[0].element_spec()

    def call(self) -> str:
        return f"interleave(cycle_length={self.cycle_length})"


class _InterleavedCursor(Cursor):
    """Its state has the form of Grain's interleave."""

    def __init__(self, node: Interleaved):
        self._node = node
        self._size = min(node.cycle_length, len(node.files))
        self._begin()

    def _begin(self) -> None:
        self._slots: list[_ReaderCursor | None] = [None] * self._size
        self._files = list(range(self._size))  # which file each slot reads, or read last
        self._ended: list[State | None] = [None] * self._size
        self._turn = 0
        self._next_file = 0

    def pull(self, count: int) -> Block:
        rows: list[Any] = []
        while len(rows) < count:
            slot = self._turn
            cursor = self._slots[slot]
            if cursor is None:
                if self._next_file < len(self._node.files):
                    self._start(slot)
                    continue
                if not any(self._slots):
                    break
            else:
                try:
                    block = rows_of(cursor.pull(1))
                except RowFailed as failed:
                    if rows:
                        break
                    raise failed
                if block:
                    rows += block
                else:
                    self._ended[slot], self._slots[slot] = cursor.get_state(), None
                    cursor.close()
            self._turn = (slot + 1) % self._size
        return rows

    def _start(self, slot: int) -> _ReaderCursor:
        cursor = _ReaderCursor(self._node.files[self._next_file])
        self._slots[slot], self._files[slot], self._ended[slot] = cursor, self._next_file, None
        self._next_file += 1
        return cursor

    def get_state(self) -> State:
        states: list[State | None] = [None] * self._size
        for slot in range(self._size):
            cursor = self._slots[slot]
            if cursor is None and self._ended[slot] is None and self._next_file < len(self._node.files):
                cursor = self._start(slot)
            states[slot] = cursor.get_state() if cursor is not None else self._ended[slot]
        return {
            "next_index_in_cycle": self._turn,
            "next_index_in_datasets": self._next_file,
            "iterators_in_use_indices": list(self._files),
            "iterators_in_use_states": states,
            "exhausted": [int(state is not None) for state in self._ended],
            "future_states": {},
        }

    def set_state(self, state: State) -> None:
        turn, next_file = counted(state, "next_index_in_cycle"), counted(state, "next_index_in_datasets")
        files, states = field(state, "iterators_in_use_indices", list), field(state, "iterators_in_use_states", list)
        ended = field(state, "exhausted", list)
        count = len(self._node.files)
        if not len(files) == len(states) == len(ended) == self._size or turn >= self._size or next_file > count:
            raise StateMismatch(
                f"This state reads {len(files)} files at a time and stands at file {next_file}; this iterator reads "
                f"{self._size} at a time of {count} files."
            )
        if state.get("future_states"):
            raise StateMismatch("This state was made by a change of the number of hosts, which only Grain can restore.")
        for cursor in filter(None, self._slots):
            cursor.close()
        self._begin()
        for slot, (file, inner, end) in enumerate(zip(files, states, ended)):
            if not (isinstance(file, int) and 0 <= file < count):
                raise StateMismatch(f"This state reads file {file}; there are {count}.")
            self._files[slot] = file
            if inner is not None and end:
                self._ended[slot] = inner
            elif inner is not None:
                self._slots[slot] = cursor = _ReaderCursor(self._node.files[file])
                cursor.set_state(inner)
        self._turn, self._next_file = turn, next_file

    def close(self) -> None:
        for cursor in filter(None, self._slots):
            cursor.close()
