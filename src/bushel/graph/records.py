"""Records that can only be read in order, as leaves of a stream."""

from __future__ import annotations

import dataclasses
from typing import Any

from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, located
from bushel.graph.node import Node
from bushel.graph.streams import Cursor, Opener, State, StreamNode, field
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
            reader = self._opened or self._reader
            block = reader.read(count)
        except Exception as error:
            raise RowFailed(0, located(error, f"bushel: reading {self._node.name} failed.")) from error
        self.at_hand = reader.at_hand
        return block

    def get_state(self) -> State:
        return (self._opened or self._reader).get_state()

    def mark(self) -> Any:  # without a detour: it is taken before every element
        return (self._opened or self._reader).get_state()

    def set_state(self, state: State) -> None:
        for name, value in self._reader.get_state().items():
            field(state, name, type(value))
        self._reader.set_state(state)
        self.at_hand = self._reader.at_hand

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self.at_hand = iter(())
