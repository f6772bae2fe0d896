"""Operations on single elements of a stream: map, map_with_index, random_map, filter, and their one cursor.

What they do to a block is in operation.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from bushel.base import blocks
from bushel.base.blocks import Block
from bushel.base.errors import RowFailed, in_words
from bushel.base.options import DatasetOptions
from bushel.base.ownership import copied_block, own_block
from bushel.graph import operation
from bushel.graph.node import Origin
from bushel.graph.operation import Kind, Operation, keep_rows
from bushel.graph.streams import Cursor, OneParent, Opener, Skips, State, Through, counted, restore

logger = logging.getLogger("bushel")


@dataclasses.dataclass(frozen=True, eq=False)
class Elementwise(OneParent):
    """An operation on single elements. It may count them, and it may drop some; it never looks at two at a time."""

    transform: Any

    kind: ClassVar[Kind]

    @functools.cached_property
    def operation(self) -> Operation:
        """What is done to a block."""
        return Operation.of(self.kind, **self.parameters())

    @property
    def count_key(self) -> str | None:
        """Where the state keeps how many elements came before, for operations that depend on it."""
        return self.kind.count_key

    @property
    def drops(self) -> bool:
        """Whether elements may be dropped."""
        return self.kind.drops

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function."""
        return self.operation.function

    @property
    def writes(self) -> bool:
        """Whether the user's function could change the element that it is given."""
        return self.operation.writes

    @property
    def shares(self) -> bool:
        """Whether the user's function could return an object that it keeps."""
        return self.operation.shares

    def run(self, block: Block, first: int, where: Callable[[int], str]) -> tuple[Block, np.ndarray | None]:
        """The operation on a block whose first element is number `first` of the stream.

        Returns what stays, and one bool per element that came in, or None where all of them stay. Raises RowFailed.
        """
        made, kept = self.operation.run(block, range(first, first + len(block)), where)
        return (made, None) if kept is None else (keep_rows(made, kept), np.array(kept))

    def open(self, opener: Opener) -> Cursor:
        return ElementwiseCursor(opener.open(self.parent), self, opener.options, opener.skips)

    @property
    def length(self) -> int | None:
        return None if self.drops else self.parent.length

    def element_spec(self) -> Any:
        return self.operation.derive_spec(self.parent)

    def call(self) -> str:
        return self.operation.call()

    def describe(self) -> str:
        return self.operation.describe()


@dataclasses.dataclass(frozen=True, eq=False)
class MapStream(Elementwise):
    """`transform` of each element; None stays None."""

    vectorized: bool = False
    kind = operation.MAP


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexStream(Elementwise):
    """`transform(how many came before, element)`."""

    kind = operation.MAP_WITH_INDEX


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapStream(Elementwise):
    """`transform(element, rng)` with a generator that belongs to how many elements came before."""

    seed: int
    kind = operation.RANDOM_MAP


@dataclasses.dataclass(frozen=True, eq=False)
class FilterStream(Elementwise):
    """Only the elements for which `transform` returns True."""

    vectorized: bool = False
    kind = operation.FILTER_ALL


class ElementwiseCursor(Through):
    """Runs one operation on what its parent gives. It counts where the operation asks for it."""

    def __init__(self, parent: Cursor, node: Elementwise, options: DatasetOptions, skips: Skips | None):
        super().__init__(parent)
        self.node = node
        self.skips = skips
        self.count = 0
        self.kept: np.ndarray | None = None
        self.watch = FilterWatch(node.call(), options) if node.drops else None
        self.where_failed = self.where(node)

    def look(self, count: int) -> Block:
        return self.pull(count, look=True)

    def pull(self, count: int, look: bool = False) -> Block:
        read = self.parent.look if look and not self.node.writes else self.parent.pull
        while size := len(block := read(count)):
            made, self.kept = self._run(block)
            del block  # what the function has passed on is held by `made` alone
            self.count += size
            if self.watch is not None:
                self.watch.count(size, len(made), self.kept)
            if len(made):
                return own_block(made) if self.node.shares and not (look and type(made) is list) else made
        return []

    def _run(self, block: Block) -> tuple[Block, np.ndarray | None]:
        if self.skips is None:
            return self.node.run(block, self.count, self.where_failed)
        if getattr(self.node, "vectorized", False):
            # After a failure its elements are tried one by one: they must be as they were before.
            with contextlib.suppress(RowFailed):
                return self.node.run(copied_block(block), self.count, self.where_failed)
        made: list[Any] = []
        stays = np.zeros(len(block), dtype=bool)
        for row, element in enumerate(blocks.rows_of(block)):
            try:
                one, _ = self.node.run([element], self.count + row, lambda _, row=row: self.where_failed(row))
            except RowFailed as failed:
                self.skips.add(self._which(row), in_words(failed.error))
                continue
            made.extend(blocks.rows_of(one))
            stays[row] = len(one) > 0
        return made, stays

    def _which(self, row: int) -> str:
        """Row `row` of the parent's last pull in words, as workers call it."""
        known = self.parent.trace(row)
        return f"element {known[0]} of the output" if known else "an element"

    def get_state(self) -> State:
        if self.node.count_key is None:
            return self.parent.get_state()
        return {"parent": self.parent.get_state(), self.node.count_key: self.count}

    def set_state(self, state: State) -> None:
        if self.node.count_key is None:
            self.parent.set_state(state)
            return
        count = counted(state, self.node.count_key)
        restore(self.parent, state, "parent")
        self.count = count

    def place_of(self, number: int) -> tuple[str | int, ...]:
        return () if self.node.count_key is None else ("parent",)

    def mark(self) -> Any:
        return self.parent.mark(), self.count

    def rewind(self, mark: Any) -> None:
        parent, self.count = mark
        self.parent.rewind(parent)

    def state_of(self, mark: Any) -> State:
        parent, count = mark
        state = self.parent.state_of(parent)
        return state if self.node.count_key is None else {"parent": state, self.node.count_key: count}

    def trace(self, row: int) -> tuple[int, tuple[Origin, ...]] | None:
        return self.parent.trace(row if self.kept is None else int(np.flatnonzero(self.kept)[row]))

    def get_next_index(self) -> int:
        if self.node.drops:
            return super().get_next_index()
        return self.parent.get_next_index() if self.node.count_key is None else self.count

    def set_next_index(self, index: int) -> None:
        if self.node.drops:
            super().set_next_index(index)
        self.parent.set_next_index(index)
        self.count = index


class FilterWatch:
    """Warns of a filter that drops nearly everything, or refuses it: mostly that is a mistake.

    It judges by every 1,000 elements, as Grain does, and warns at most once a minute.
    """

    WINDOW = 1000
    EVERY_S = 60.0

    def __init__(self, what: str, options: DatasetOptions):
        self._what = what
        self._warn_ratio = options.filter_warn_threshold_ratio or float("inf")
        self._raise_ratio = options.filter_raise_threshold_ratio or float("inf")
        self._seen = 0
        self._dropped = 0
        self._quiet_until = 0.0
        self._verdict: str | None = None
        """What was said of the last elements, if they were too many."""

    def count(self, total: int, kept: int, stays: np.ndarray | None) -> None:
        """Counts `total` elements of which `kept` stayed; `stays` tells which, unless it was all or none."""
        if self._seen + total < self.WINDOW:
            self._seen += total
            self._dropped += total - kept
            return
        if stays is None:
            stays = np.full(total, bool(kept))
        if (found := self.judge(stays)) is not None:
            raise found[1]

    def judge(self, stays: np.ndarray | int) -> tuple[int, ValueError] | None:
        """Counts elements, one bool for each, or a number of elements that all stay.

        Returns the first of them at which too many had been dropped, with the error that says so.
        """
        if isinstance(stays, int):
            if not self._dropped:
                self._seen = (self._seen + stays) % self.WINDOW
                return None
            stays = np.ones(stays, dtype=bool)
        done = 0
        while done < len(stays):
            part = stays[done : done + max(1, self.WINDOW - self._seen)]
            done += len(part)
            self._seen += len(part)
            self._dropped += len(part) - int(np.count_nonzero(part))
            if self._seen >= self.WINDOW:
                if self._dropped / self._seen >= self._raise_ratio:
                    # Asked again it says so again, in the same words.
                    self._verdict = self._verdict or self._told("raise", self._raise_ratio)
                    return done - 1, ValueError(self._verdict)
                if self._dropped / self._seen >= self._warn_ratio and time.monotonic() >= self._quiet_until:
                    self._quiet_until = time.monotonic() + self.EVERY_S
                    logger.warning(self._told("warn", self._warn_ratio))
                self._seen = self._dropped = 0
                self._verdict = None
        return None

    def _told(self, what: str, ratio: float) -> str:
        return (
            f"{self._what} dropped {100 * self._dropped / self._seen:.2f} % of the last {self._seen} elements. Please "
            "check the filter; if it is meant, filtering the data once before training is cheaper. This is said from "
            f"{100 * ratio:g} % on: see DatasetOptions(filter_{what}_threshold_ratio=...), None for never."
        )
