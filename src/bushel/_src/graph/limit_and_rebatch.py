"""How much of a stream there is, and in what portions: limit, skip, repeat, rebatch, unbatch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import RowFailed, locate_error
from bushel._src.base.state_names import in_states
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.graph.cursors import END, Cursor, GroupCursor, Mark, Over, State, make_rows, read_count
from bushel._src.graph.streams import OneParent, Opener, Ordered

_DROPPED_AT_ONCE = 64  # elements that `skip` drops are in memory together


@in_states("stream_limit")
@dataclasses.dataclass(frozen=True, eq=False)
class Limit(OneParent, Ordered):
    """The first `count` elements."""

    count: int

    moves = True

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


class _LimitCursor(Over[Limit]):
    def __init__(self, parent: Cursor, node: Limit):
        super().__init__(parent, node)
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

    def mark(self) -> Mark:
        return self.parent.mark(), self.given

    def rewind(self, mark: Mark) -> None:
        parent, self.given = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Mark) -> State:
        parent, given = mark
        return {"parent": self.parent.state_of(parent), "count_elements_read": given}

    def mark_of(self, state: State) -> Mark:
        given = read_count(state, "count_elements_read", self.node.count)
        return self.parent_mark_of(state), given

    def get_next_index(self) -> int:
        return self.given

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index)
        self.given = index


@in_states("stream_skip")
@dataclasses.dataclass(frozen=True, eq=False)
class Skip(OneParent, Ordered):
    """All elements but the first `count`."""

    count: int

    moves = True

    def __post_init__(self) -> None:
        checks.not_negative(self.count, "count")

    def open(self, opener: Opener) -> Cursor:
        return _SkipCursor(opener.open(self.parent), self)

    @property
    def length(self) -> int | None:
        whole = self.parent.length
        return whole if whole is None or checks.is_endless(whole) else max(0, whole - self.count)

    def call(self) -> str:
        return f"skip({self.count})"


class _SkipCursor(Over[Skip]):
    def __init__(self, parent: Cursor, node: Skip):
        super().__init__(parent, node)
        self.left = node.count
        """How many elements have yet to be dropped."""

    def pull(self, count: int) -> Block:
        while self.left:
            dropped = len(self.parent.pull(min(self.left, _DROPPED_AT_ONCE)))
            if not dropped:
                return []
            self.left -= dropped
        return self.parent.pull(count)

    def trace(self, row: int) -> Any:
        return self.parent.trace(row)

    def mark(self) -> Mark:
        return self.parent.mark(), self.left

    def rewind(self, mark: Mark) -> None:
        parent, self.left = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Mark) -> State:
        parent, left = mark
        return {"parent": self.parent.state_of(parent), "left_to_skip": left}

    def mark_of(self, state: State) -> Mark:
        left = read_count(state, "left_to_skip", self.node.count)
        return self.parent_mark_of(state), left

    def get_next_index(self) -> int:
        return self.parent.get_next_index() - self.node.count + self.left

    def set_next_index(self, index: int) -> None:
        self.parent.set_next_index(index + self.node.count)
        self.left = 0


@in_states("stream_repeat")
@dataclasses.dataclass(frozen=True, eq=False)
class RepeatStream(OneParent, Ordered):
    """The same elements over and over: `num_epochs` times, or endlessly."""

    num_epochs: int | None = None

    moves = True

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


class _RepeatCursor(Over[RepeatStream]):
    def __init__(self, parent: Cursor, node: RepeatStream):
        super().__init__(parent, node)
        self.start = parent.mark()
        self.epoch = 0
        self.fresh = False  # at the start of an epoch after the first, nothing read of it yet

    def pull(self, count: int) -> Block:
        while self.epoch != self.node.num_epochs:
            block = self.parent.pull(count)
            if len(block):
                self.fresh = False
                return block
            if self.fresh:  # this epoch has no element, so no other has one
                self.epoch = self.epoch if self.node.num_epochs is None else self.node.num_epochs
                return []
            self.epoch += 1
            if self.epoch != self.node.num_epochs:
                self.parent.rewind(self.start)
                self.fresh = True
        return []

    def trace(self, row: int) -> Any:
        return self.parent.trace(row)

    def mark(self) -> Mark:
        return self.parent.mark(), self.epoch, self.fresh

    def rewind(self, mark: Mark) -> None:
        parent, self.epoch, self.fresh = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Mark) -> State:
        parent, epoch, _ = mark
        return {"parent": self.parent.state_of(parent), "epoch": epoch}

    def mark_of(self, state: State) -> Mark:
        epoch = read_count(state, "epoch", *[] if self.node.num_epochs is None else [self.node.num_epochs])
        return self.parent_mark_of(state), epoch, False


@in_states("stream_rebatch")
@dataclasses.dataclass(frozen=True, eq=False)
class Rebatch(OneParent, Ordered):
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


class _RebatchCursor(GroupCursor[Rebatch]):
    """A group is the rows of one batch of the parent's."""

    given_key, group_name = "batch_idx", "a batch"
    keeps_given_at_end = True

    def pull(self, count: int) -> Block:
        return make_rows(self, count, self._next_batch, self.skips)

    def _next_batch(self) -> Any:
        missing = self.node.batch_size
        parts: list[Any] = []
        while missing and (rows := self.next_rows(missing)):
            assert isinstance(rows, Columns)
            parts.append(rows.tree)
            missing -= len(rows)
        if not parts or (missing and self.node.drop_remainder):
            return END
        if len(parts) == 1:
            return parts[0]
        try:
            return trees.map_leaves(lambda *leaves: np.concatenate(leaves), *parts)
        except ValueError as error:
            raise RowFailed(0, locate_error(error, f"bushel: {self.node.describe()} failed.")) from error

    def read_group(self) -> Block | None:
        rows = blocks.rows_of(self.read_parent(1))
        return Columns(rows[0], self._count_rows(rows[0])) if rows else None

    def _count_rows(self, batch: Any) -> int:
        count = count_rows(batch)
        if count is not None:
            return count
        error = ValueError(
            f"rebatch needs trees of arrays that share a first axis, not an empty one; got {trees.describe(batch)}."
        )
        raise RowFailed(0, locate_error(error, f"bushel: {self.node.describe()} failed."))


def count_rows(batch: Any) -> int | None:
    """Return how many rows a batch has; None if its arrays do not share a first axis, or have no rows."""
    sizes = {np.shape(leaf)[:1] for leaf in trees.leaves(batch)}
    return sizes.pop()[0] or None if len(sizes) == 1 and () not in sizes else None


@in_states("unbatch")
def unbatch(batch: Any) -> list[Any]:
    """Return the rows of a batch."""
    count = count_rows(batch)
    if count is None:
        raise ValueError(
            f"unbatch needs trees of arrays that share a first axis, not an empty one; got {trees.describe(batch)}."
        )
    return blocks.rows_of(Columns(batch, count))
