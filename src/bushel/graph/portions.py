"""How much of a stream comes out, and in what portions: limit, repeat, rebatch."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from bushel.base import blocks, checks, trees
from bushel.base.blocks import Block
from bushel.base.checks import INFINITE
from bushel.base.errors import RowFailed, StateMismatch, located
from bushel.base.specs import ShapeDtypeStruct
from bushel.graph.streams import Cursor, OneParent, Opener, Skips, State, aside, counted, restore


@dataclasses.dataclass(frozen=True, eq=False)
class Limit(OneParent):
    """The first `count` elements."""

    count: int

    def __post_init__(self) -> None:
        checks.positive(self.count, "count")

    def open(self, opener: Opener) -> Cursor:
        return _LimitCursor(opener.open(self.parent), self.count)

    @property
    def length(self) -> int | None:
        whole = self.parent.length
        return None if whole is None else min(whole, self.count)

    def call(self) -> str:
        return f"limit({self.count})"


class _CountingCursor(Cursor):
    """A cursor over one other whose state is the parent's and one number, under the name `key`."""

    key: ClassVar[str]

    def __init__(self, parent: Cursor, most: int | None):
        self.parent = parent
        self.parents = (parent,)
        self.most = most
        """The largest number that a state may have; None for no limit."""
        self.count = 0

    def trace(self, row: int) -> Any:
        return self.parent.trace(row)

    def get_state(self) -> State:
        return {"parent": self.parent.get_state(), self.key: self.count}

    def set_state(self, state: State) -> None:
        count = counted(state, self.key, *[] if self.most is None else [self.most])
        restore(self.parent, state, "parent")
        self.count = count

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent",)

    def mark(self) -> Any:
        return self.parent.mark(), self.count

    def rewind(self, mark: Any) -> None:
        parent, self.count = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Any) -> State:
        parent, count = mark
        return {"parent": self.parent.state_of(parent), self.key: count}


class _LimitCursor(_CountingCursor):
    """Its number is how many elements it has given."""

    key = "count_elements_read"

    def __init__(self, parent: Cursor, limit: int):
        super().__init__(parent, limit)
        self.limit = limit

    def pull(self, count: int) -> Block:
        left = self.limit - self.count
        if left <= 0:
            return []
        block = self.parent.pull(min(count, left))
        self.count += len(block)
        return block

    def get_next_index(self) -> int:
        return self.count

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)
        self.count = index


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatStream(OneParent):
    """The same elements again and again: `num_epochs` times, or without end."""

    num_epochs: int | None = None

    def __post_init__(self) -> None:
        if self.num_epochs is not None:
            checks.positive(self.num_epochs, "num_epochs")

    def open(self, opener: Opener) -> Cursor:
        return _RepeatCursor(opener.open(self.parent), self)

    @property
    def length(self) -> int | None:
        once = self.parent.length
        if not once:
            return once
        return INFINITE if self.num_epochs is None else min(INFINITE, once * self.num_epochs)

    def call(self) -> str:
        return f"repeat({'' if self.num_epochs is None else self.num_epochs})"


class _RepeatCursor(_CountingCursor):
    """Its number is that of the epoch."""

    key = "epoch"

    def __init__(self, parent: Cursor, node: RepeatStream):
        super().__init__(parent, node.num_epochs)
        self.start = parent.get_state()

    def pull(self, count: int) -> Block:
        whole_epoch = False
        while self.count != self.most:
            block = self.parent.pull(count)
            if len(block):
                return block
            if whole_epoch:  # it had no element, and so will all others
                self.count = self.count if self.most is None else self.most
                return []
            self.count += 1
            if self.count != self.most:
                self.parent.set_state(self.start)
                whole_epoch = True
        return []


@dataclasses.dataclass(frozen=True, eq=False)
class Rebatch(OneParent):
    """Batches of another size, cut from the parent's batches."""

    batch_size: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        checks.positive(self.batch_size, "batch_size")

    def open(self, opener: Opener) -> Cursor:
        return _RebatchCursor(opener.open(self.parent), self, opener.skips)

    def element_spec(self) -> Any:
        size = self.batch_size
        return trees.map_leaves(
            lambda leaf: ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), self.parent.element_spec()
        )

    def call(self) -> str:
        return f"rebatch({self.batch_size}{', drop_remainder=True' if self.drop_remainder else ''})"


class _RebatchCursor(Cursor):
    """Its state is the parent's before the batch that is being cut, and how many rows of that batch were delivered."""

    def __init__(self, parent: Cursor, node: Rebatch, skips: Skips | None):
        self.parents = (parent,)
        self.parent = parent
        self.node = node
        self.skips = skips
        self.before = parent.get_state()
        self.batch: Any = None
        self.size = 0
        self.row = 0
        self.behind = False  # the batch must be read again, since only its state is known
        self.ended = False

    def pull(self, count: int) -> Block:
        batches: list[Any] = []
        while len(batches) < count and (batch := self._cut()) is not None:
            batches.append(batch)
        return batches

    def _cut(self) -> Any:
        missing = self.node.batch_size
        parts: list[Any] = []
        while missing and (self.row < self.size or self._read()):
            low = self.row
            self.row = min(self.size, low + missing)
            parts.append(trees.map_leaves(lambda leaf, low=low: leaf[low : self.row], self.batch))
            missing -= self.row - low
        if not parts or (missing and self.node.drop_remainder):
            return None
        if len(parts) == 1:
            return parts[0]
        try:
            return trees.map_leaves(lambda *leaves: np.concatenate(leaves), *parts)
        except ValueError as error:
            raise RowFailed(0, located(error, f"bushel: {self.node.describe()} failed.")) from error

    def _read(self) -> bool:
        """Goes on to the next batch; after `set_state`, to the rest of the batch that the state points into."""
        while not self.ended:
            if self.behind:
                self._read_again()
            else:
                self.before = self.parent.get_state()
                if self._next_batch():
                    self.row = 0
            if self.row < self.size and not self.ended:
                return True
        return False

    def _next_batch(self) -> bool:
        rows = blocks.rows_of(self.parent.pull(1))
        if rows:
            self.batch, self.size = rows[0], self._size_of(rows[0])
        self.ended = not rows
        return not self.ended

    def _read_again(self) -> None:
        """Reads the batch again that the state was in the middle of."""
        with aside(self.skips if self.row else None):
            there = self._next_batch()
        self.behind = False
        if there and self.row > self.size:
            raise StateMismatch(
                f"This state is after element {self.row} of a batch of {self.size}. Was it saved with other data?",
                "batch_idx",
            )

    def _size_of(self, batch: Any) -> int:
        sizes = {np.shape(leaf)[:1] for leaf in trees.leaves(batch)}
        if len(sizes) == 1 and (size := sizes.pop()) and size[0]:
            return size[0]
        error = ValueError(
            f"rebatch needs trees of arrays that share a first axis, not an empty one; got {trees.describe(batch)}."
        )
        raise RowFailed(0, located(error, f"bushel: {self.node.describe()} failed."))

    def mark(self) -> Any:
        return self.parent.mark(), (self.before, self.batch, self.size, self.row, self.behind, self.ended)

    def rewind(self, mark: Any) -> None:
        parent, (before, batch, size, row, behind, ended) = mark
        if row < size:  # a function may have written into the rows it was given, so the batch is read again
            self.parent.set_state(before)
            batch, size, behind, ended = None, 0, True, False
        else:
            self.parent.rewind(parent)
        self.before, self.batch, self.size = before, batch, size
        self.row, self.behind, self.ended = row, behind, ended

    def state_of(self, mark: Any) -> State:
        _, (before, _, _, row, *_) = mark
        return {"parent": before, "batch_idx": row}

    def get_state(self) -> State:
        return {"parent": self.before, "batch_idx": self.row}

    def set_state(self, state: State) -> None:
        row = counted(state, "batch_idx")
        restore(self.parent, state, "parent")
        self.before = self.parent.get_state()
        self.batch, self.size, self.row, self.behind, self.ended = None, 0, row, True, False

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent",)

    def catch_up(self) -> None:
        super().catch_up()
        if self.behind and self.row:
            self._read_again()
