"""How much of a stream there is, and in what portions: limit, repeat, rebatch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bushel.base import blocks, checks, trees
from bushel.base.blocks import Block
from bushel.base.checks import INFINITE
from bushel.base.errors import RowFailed, StateMismatch, located
from bushel.base.specs import ShapeDtypeStruct
from bushel.graph.streams import Cursor, OneParent, Opener, Skips, State, Through, aside, counted, restore


@dataclasses.dataclass(frozen=True, eq=False)
class Limit(OneParent):
    """The first `count` elements."""

    count: int

    def __post_init__(self) -> None:
        checks.positive(self.count, "count")

    def open(self, opener: Opener) -> Cursor:
        return _LimitCursor(opener.open(self.parent), self)

    @property
    def length(self) -> int | None:
        whole = self.parent.length
        return None if whole is None else min(whole, self.count)

    def call(self) -> str:
        return f"limit({self.count})"


class _LimitCursor(Through):
    def __init__(self, parent: Cursor, node: Limit):
        super().__init__(parent)
        self.node = node
        self.given = 0

    def pull(self, count: int) -> Block:
        left = self.node.count - self.given
        if left <= 0:
            return []
        block = self.parent.pull(min(count, left))
        self.given += len(block)
        return block

    def trace(self, row: int) -> Any:
        return self.parent.trace(row)

    def get_state(self) -> State:
        return {"parent": self.parent.get_state(), "count_elements_read": self.given}

    def set_state(self, state: State) -> None:
        given = counted(state, "count_elements_read", most=self.node.count)
        restore(self.parent, state, "parent")
        self.given = given

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent",)

    def mark(self) -> Any:
        return self.parent.mark(), self.given

    def rewind(self, mark: Any) -> None:
        parent, self.given = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Any) -> State:
        parent, given = mark
        return {"parent": self.parent.state_of(parent), "count_elements_read": given}

    def get_next_index(self) -> int:
        return self.given

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)
        self.given = index


@dataclasses.dataclass(frozen=True, eq=False)
class RepeatStream(OneParent):
    """The same elements over and over: `num_epochs` times, or endlessly."""

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


class _RepeatCursor(Through):
    def __init__(self, parent: Cursor, node: RepeatStream):
        super().__init__(parent)
        self.node = node
        self.start = parent.get_state()
        self.epoch = 0
        self.fresh = False  # at the start of an epoch after the first, nothing read of it yet

    def pull(self, count: int) -> Block:
        while self.epoch != self.node.num_epochs:
            block = self.parent.pull(count)
            if len(block):
                self.fresh = False
                return block
            if self.fresh:  # a whole epoch without an element: so are all others
                self.epoch = self.epoch if self.node.num_epochs is None else self.node.num_epochs
                return []
            self.epoch += 1
            if self.epoch != self.node.num_epochs:
                self.parent.set_state(self.start)
                self.fresh = True
        return []

    def trace(self, row: int) -> Any:
        return self.parent.trace(row)

    def get_state(self) -> State:
        return {"parent": self.parent.get_state(), "epoch": self.epoch}

    def set_state(self, state: State) -> None:
        epoch = counted(state, "epoch", *[] if self.node.num_epochs is None else [self.node.num_epochs])
        restore(self.parent, state, "parent")
        self.epoch, self.fresh = epoch, False

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent",)

    def mark(self) -> Any:
        return self.parent.mark(), self.epoch, self.fresh

    def rewind(self, mark: Any) -> None:
        parent, self.epoch, self.fresh = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Any) -> State:
        parent, epoch, _ = mark
        return {"parent": self.parent.state_of(parent), "epoch": epoch}


@dataclasses.dataclass(frozen=True, eq=False)
class Rebatch(OneParent):
    """Batches of another size, cut from those that come."""

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
    """Its state is the parent's before the batch now being cut, and how much of that one is gone."""

    def __init__(self, parent: Cursor, node: Rebatch, skips: Skips | None):
        self.parents = (parent,)
        self.parent = parent
        self.node = node
        self.skips = skips
        self.before = parent.get_state()
        self.batch: Any = None
        self.size = 0
        self.row = 0
        self.behind = False  # the batch has to be read again
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
            raise RowFailed(0, located(error, f"bushel: {self.node.placed()} failed.")) from error

    def _read(self) -> bool:
        """Goes on to the next batch, or to what is left of one that a state was in the middle of."""
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
        """Reads the batch that a state was in the middle of."""
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
        raise RowFailed(0, located(error, f"bushel: {self.node.placed()} failed."))

    def mark(self) -> Any:
        return self.parent.mark(), (self.before, self.batch, self.size, self.row, self.behind, self.ended)

    def rewind(self, mark: Any) -> None:
        parent, (before, batch, size, row, behind, ended) = mark
        if row < size:  # a function may have written into the part that it was given: the batch is read anew
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
