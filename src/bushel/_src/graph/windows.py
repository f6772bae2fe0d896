"""Shuffles of a stream inside windows of consecutive elements."""

from __future__ import annotations

import dataclasses

import numpy as np

from bushel._src.base import blocks, checks, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.state_names import in_states
from bushel._src.graph.cursors import Cursor, GroupCursor, Mark
from bushel._src.graph.state_fields import State, read_count
from bushel._src.graph.streams import OneParent, Opener, Ordered
from bushel._src.index import shuffle


@in_states("stream_window_shuffle")
@dataclasses.dataclass(frozen=True, eq=False)
class WindowShuffleStream(OneParent, Ordered):
    """Each window of `window_size` elements in an order of its own."""

    window_size: int
    seed: int

    keeps_length = True

    def __post_init__(self) -> None:
        checks.positive(self.window_size, "window_size")
        checks.seed(self.seed, below=shuffle.SEED_LIMIT)

    def open(self, opener: Opener) -> Cursor:
        return _WindowCursor(opener.open(self.parent), self, opener.skips, extra=0)

    def call(self) -> str:
        return f"window_shuffle({self.window_size}, seed={self.seed})"


class _WindowCursor(GroupCursor[WindowShuffleStream]):
    """A group is one window in its order; `extra` is the number of windows that were given whole."""

    parent_key, given_key, extra_key = "parent_window_start_state", "pos_in_window", "window_index"
    group_name = "a window"

    def pull(self, count: int) -> Block:
        rows = self.next_rows(count)
        if len(rows) and self.given == len(self.group):
            self.extra += 1
        return rows

    def read_group(self) -> Block | None:
        whole = self.read_parent(self.node.window_size)
        if not len(whole):
            return None
        seed = (self.node.seed + self.extra) % shuffle.SEED_LIMIT
        order = shuffle.permute(np.arange(len(whole)), length=len(whole), seed=seed)[::-1]
        if isinstance(whole, Columns) and whole.present is None:
            return Columns(trees.map_leaves(lambda leaf: leaf[order], whole.tree), len(whole))
        rows = blocks.rows_of(whole)
        return [rows[place] for place in order.tolist()]

    def mark_of(self, state: State) -> Mark:
        read_count(state, self.given_key, self.node.window_size)  # checks it
        return super().mark_of(state)
