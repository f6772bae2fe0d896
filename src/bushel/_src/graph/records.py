"""Records that can only be read in order, as leaves of a stream."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel._src.base.blocks import Block
from bushel._src.base.errors import DamagedFile, RowFailed, describe_error, locate_error
from bushel._src.base.state_names import find_name, in_states
from bushel._src.graph.closing import CLOSED, InUse
from bushel._src.graph.cursors import Cursor, Mark
from bushel._src.graph.node import Node
from bushel._src.graph.skips import Skips
from bushel._src.graph.state_fields import State, read_count, read_field
from bushel._src.graph.streams import Opener, Ordered, StreamNode
from bushel._src.sources.protocol import SequentialReader, SequentialSource


@in_states("records")
@dataclasses.dataclass(frozen=True, eq=False)
class Records(StreamNode, Ordered):
    """The records of one source that is read in order."""

    source: SequentialSource
    name: str

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()

    def open(self, opener: Opener) -> Cursor:
        return _ReaderCursor(self, opener.skips)

    def parameters(self) -> dict[str, Any]:
        return {"kind": find_name(type(self.source)) or type(self.source).__name__, "source": self.source.fingerprint()}

    def element_spec(self) -> Any:
        raise NotImplementedError(f"The shapes of {self.name} are not known without reading it.")

    def call(self) -> str:
        return self.name


class _ReaderCursor(Cursor):
    """Opens its reader when the first record is asked for."""

    def __init__(self, node: Records, skips: Skips | None):
        self._node = node
        self._skips = skips
        self._opened: SequentialReader | None = None
        self._in_use = InUse()

    @property
    def _reader(self) -> SequentialReader:
        if self._opened is None:
            try:
                self._begin(self._node.source.open())
            except _UNREADABLE as error:
                if self._skips is None:
                    raise
                self._begin(_Unopened(error))
        assert self._opened is not None
        return self._opened

    def _begin(self, reader: SequentialReader | None) -> None:
        self._opened = reader
        self._in_use.hold(reader)

    def pull(self, count: int) -> Block:
        in_use = self._in_use
        in_use.users += 1  # as `with` does, in a fifth of the time: this is done for every element
        try:
            if in_use.is_closed:
                raise ValueError(CLOSED)
            while True:
                try:
                    reader = self._opened or self._reader
                    block = reader.read(count)
                    self.at_hand = reader.at_hand
                    return block
                except Exception as error:
                    self._leave_out(locate_error(error, f"bushel: reading {self._node.name} failed."))
        finally:
            in_use.users -= 1
            if in_use.is_closed:
                in_use.close()

    def _leave_out(self, error: Exception) -> None:
        """Skips records that cannot be read. Raises if skipping was not asked for, or is not possible."""
        lost = self._reader.skip() if self._skips is not None and isinstance(error, _UNREADABLE) else 0
        if self._skips is None or not lost:
            raise RowFailed(0, error) from error
        which = f"{'a record' if lost == 1 else f'{lost} records'} of {self._node.name}"
        self._skips.add(which, describe_error(error), lost)

    def mark(self) -> Mark:
        return (self._opened or self._reader).get_state()

    def rewind(self, mark: Mark) -> None:
        with self._in_use:
            if _Unopened.KEY in mark:
                self._begin(_Unopened(None) if mark[_Unopened.KEY] else None)
                self.at_hand = iter(())
                return
            if self._opened is None or isinstance(self._opened, _Unopened):
                self._begin(self._node.source.open())  # there is no position in a file that cannot be opened
            reader = self._reader
            reader.set_state(mark)
            self.at_hand = reader.at_hand

    def state_of(self, mark: Mark) -> State:
        return mark

    def mark_of(self, state: State) -> Mark:
        if self._skips is not None and isinstance(state, dict) and _Unopened.KEY in state:
            return {_Unopened.KEY: read_count(state, _Unopened.KEY)}
        with self._in_use:
            if self._opened is None or isinstance(self._opened, _Unopened):
                self._begin(self._node.source.open())
            for name, value in self._reader.get_state().items():
                read_field(state, name, type(value))
        return state

    def close(self) -> None:
        self._in_use.close()
        self.at_hand = iter(())


_UNREADABLE = (DamagedFile, OSError)
"""Errors of a file itself, which are skipped on request. Any other error is a mistake in the program."""


class _Unopened(SequentialReader):
    """Stands for the reader of a file that could not be opened: it fails once, as if the file were one record."""

    KEY = "unopened_left_out"

    def __init__(self, error: Exception | None):
        self._error = error  # None once it was skipped

    def read(self, count: int) -> Block:
        if self._error is not None:
            raise self._error
        return []

    def skip(self) -> int:
        self._error = None
        return 1

    def get_state(self) -> State:
        return {self.KEY: int(self._error is None)}

    def set_state(self, state: State) -> None:
        """Does nothing: the cursor makes a new object of this class for each position, before or after the failure."""

    def close(self) -> None:
        """Nothing is open."""
