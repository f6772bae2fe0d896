"""Shuffles of a stream inside windows of consecutive elements."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bushel.base import blocks, checks, trees
from bushel.base.blocks import Block, Columns
from bushel.base.errors import StateMismatch
from bushel.graph.streams import Cursor, OneParent, Opener, Skips, State, aside, counted, pull_several, restore
from bushel.index import shuffle


@dataclasses.dataclass(frozen=True, eq=False)
class WindowShuffleStream(OneParent):
    """Each window of `window_size` elements in an order of its own."""

    window_size: int
    seed: int

    def __post_init__(self) -> None:
        checks.positive(self.window_size, "window_size")
        checks.seed(self.seed, below=shuffle.SEED_LIMIT)

    def open(self, opener: Opener) -> Cursor:
        return _WindowCursor(opener.open(self.parent), self, opener.skips)

    @property
    def length(self) -> int | None:
        return self.parent.length

    def call(self) -> str:
        return f"window_shuffle({self.window_size}, seed={self.seed})"


class _WindowCursor(Cursor):
    """Its state is the parent's before the window now being handed out, and how much of that one is gone."""

    def __init__(self, parent: Cursor, node: WindowShuffleStream, skips: Skips | None):
        self.parents = (parent,)
        self.parent = parent
        self.node = node
        self.skips = skips
        self.before = parent.get_state()
        self.window: Block = []
        self.number = 0
        self.row = 0
        self.behind = False  # the window has to be read again
        self.ended = False

    def pull(self, count: int) -> Block:
        if self.behind:
            self._read_again()
        while self.row >= len(self.window):
            if self.ended:
                return []
            self.before, self.row = self.parent.get_state(), 0
            self.window = self._read()
        low = self.row
        self.row = min(low + count, len(self.window))
        if self.row == len(self.window):
            self.number += 1
        return blocks.part_of(self.window, low, self.row)

    def _read_again(self) -> None:
        self.behind = False
        with aside(self.skips if self.number or self.row else None):  # but for the first, it was counted
            self.window = self._read()
        if self.row > len(self.window):
            raise StateMismatch(
                f"This state is after element {self.row} of a window that has {len(self.window)}. "
                "Was it saved with other data or another window_size?",
                "pos_in_window",
            )

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return ("parent_window_start_state",)

    def catch_up(self) -> None:
        super().catch_up()
        if self.behind and self.row:
            self._read_again()

    def _read(self) -> Block:
        """The next window, in its order."""
        missing = self.node.window_size
        parts: list[Block] = []
        while missing:
            part = pull_several(self.parent, missing, self.skips)
            if not len(part):
                self.ended = True
                break
            parts.append(part)
            missing -= len(part)
        if not parts:
            return []
        whole = blocks.joined(parts)
        seed = (self.node.seed + self.number) % shuffle.SEED_LIMIT
        order = shuffle.permute(np.arange(len(whole)), length=len(whole), seed=seed)[::-1]
        if isinstance(whole, Columns) and whole.present is None:
            return Columns(trees.map_leaves(lambda leaf: leaf[order], whole.tree), len(whole))
        rows = blocks.rows_of(whole)
        return [rows[place] for place in order.tolist()]

    def mark(self) -> Any:
        return self.parent.mark(), (self.before, self.window, self.number, self.row, self.behind, self.ended)

    def rewind(self, mark: Any) -> None:
        parent, (before, window, number, row, behind, ended) = mark
        if row < len(window):  # a function may have written into elements that it was given: they are read anew
            self.parent.set_state(before)
            window, behind, ended = [], True, False
        else:
            self.parent.rewind(parent)
        self.before, self.window, self.number = before, window, number
        self.row, self.behind, self.ended = row, behind, ended

    def state_of(self, mark: Any) -> State:
        _, (before, _, number, row, *_) = mark
        return {"parent_window_start_state": before, "window_index": number, "pos_in_window": row}

    def get_state(self) -> State:
        return {"parent_window_start_state": self.before, "window_index": self.number, "pos_in_window": self.row}

    def set_state(self, state: State) -> None:
        number, row = counted(state, "window_index"), counted(state, "pos_in_window", most=self.node.window_size)
        restore(self.parent, state, "parent_window_start_state")
        self.before, self.window = self.parent.get_state(), []
        self.number, self.row, self.behind, self.ended = number, row, True, False
