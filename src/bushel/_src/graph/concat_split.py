"""Sequences of a stream one after the other, cut where a row is full: packing without gaps where there is one feature.

An element with several features is cut in all of them where the first one is full.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import math
from collections.abc import Mapping
from operator import countOf
from typing import Any

import numpy as np

from bushel._src.base import blocks, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import RowFailed, StateMismatch, locate_error
from bushel._src.base.public import public
from bushel._src.base.state_names import in_states
from bushel._src.graph.cursors import (
    END,
    Cursor,
    GroupCursor,
    Mark,
    Skips,
    State,
    check_type,
    make_rows,
    read_count,
    read_field,
)
from bushel._src.graph.pack_stream import as_sequence, check_lengths, fill_rows
from bushel._src.graph.streams import OneParent, Opener, Ordered
from bushel._src.index.packing import Layout, PiecePositions, concat_split, layout

logger = logging.getLogger("bushel")


@public("bushel.experimental")
@in_states("BOSHandling")
class BOSHandling(enum.Enum):
    """Whether packing writes a token at the beginning of each sequence."""

    DO_NOTHING = enum.auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = enum.auto()


@in_states("concat_then_split")
@dataclasses.dataclass(frozen=True, eq=False)
class ConcatThenSplit(OneParent, Ordered):
    """Rows of fixed length, cut from all sequences one after the other."""

    length_struct: Mapping[str, int]
    meta_features: tuple[str, ...] = ()
    split_full_length_features: bool = True
    bos_handling: BOSHandling = BOSHandling.DO_NOTHING
    bos_features: tuple[str, ...] = ()
    bos_token_id: int | None = None

    no_spec = "The shapes of packed elements are not known without reading one."

    def __post_init__(self) -> None:
        for name, length in check_lengths(self.length_struct).items():
            if trees.children(length) is not None:
                raise ValueError(f"length_struct of concat-then-split is flat; at {name!r} it has {length!r}.")
        unused = self.bos_handling is BOSHandling.DO_NOTHING
        if unused and (self.bos_token_id is not None or self.bos_features):
            raise ValueError(
                f"bos_handling is {self.bos_handling}, so bos_token_id and bos_features must not be given; got "
                f"{self.bos_token_id!r} and {self.bos_features!r}."
            )
        if not unused and self.bos_token_id is None:
            raise ValueError(f"bos_handling {self.bos_handling} needs a bos_token_id.")
        both = set(self.meta_features) & set(self.bos_features)
        if both:
            raise ValueError(f"Features are either meta or get a BOS token; {sorted(both)} are named as both.")

    def open(self, opener: Opener) -> Cursor:
        return _ConcatCursor(opener.open(self.parent, copied=True), self, opener.skips)

    def call(self) -> str:
        return f"pipe(ConcatThenSplitIterDataset, length_struct={dict(self.length_struct)})"


_Cut = dict[str, tuple[int, int]]


@dataclasses.dataclass(slots=True, eq=False)
class _Piece:
    """An element or a stretch of one: of each feature, the tokens within its bounds.

    Features in `whole` are never cut: they come with each piece. `cut` describes a piece in a state.
    """

    before: Mark
    features: dict[str, np.ndarray]
    whole: frozenset[str]
    bounds: dict[str, tuple[int, int]]
    cut: _Cut | None = None

    def cut_to(self, cut: _Cut) -> _Piece:
        """Return the tokens within other bounds."""
        bounds = {name: own if name in self.whole else cut[name] for name, own in self.bounds.items()}
        return _Piece(self.before, self.features, self.whole, bounds, cut)

    def sizes(self) -> dict[str, int]:
        return {name: high - low for name, (low, high) in self.bounds.items()}


_Row = list[_Piece]
_TRIES = 3
_MOST_READ = 1024  # elements of one read: if nearly all of them are empty, a row needs many
_CUTS, _GIVEN = "remainder_slices", "elements_from_buffer_after_checkpoint"
_WHOLE = (-1, -1)  # in a state: no element has been cut


class _ConcatCursor(GroupCursor[ConcatThenSplit]):
    """A group is the rows that one reading fills; `extra` is the cut of the element that the first one begins with.

    `beyond` is the piece of an element that had no room in the group.
    """

    parent_key, given_key, group_name = "parent_state", _GIVEN, "a group of rows"

    def __init__(self, parent: Cursor, node: ConcatThenSplit, skips: Skips | None):
        super().__init__(parent, node, skips)
        self.lengths = check_lengths(node.length_struct)
        self.meta = frozenset(node.meta_features)
        self.cuttable = [name for name in self.lengths if name not in node.meta_features]
        self.warned = False
        self.by_arithmetic = len(self.lengths) == 1 and not self.meta and node.split_full_length_features
        """Whether all elements are cut alike, so that several rows can be made at once."""
        self.mean = 0.0
        """The mean length of the sequences that were read last."""
        self.unknown = 0
        """How often the parent did not know its position after each of several elements."""

    def pull(self, count: int) -> Block:
        # A skipped element counts with the row after it. So where elements may be skipped, rows are made one by one.
        if self.by_arithmetic and self.skips is None and not self.behind and self.given >= len(self.group):
            several = self._make_several(count)
            if several is not None:
                return several
        rows = make_rows(self, count, lambda: next(iter(blocks.rows_of(self.next_rows(1))), END), self.skips)
        if not rows and not len(self.group):
            self.before, self.extra = self.parent.mark(), None  # Grain's state at the end
        return self._fill(rows) if rows else []

    def _make_several(self, count: int) -> Columns | None:
        """Return `count` rows at once; if an element fails, those before it. None if that cannot be done.

        It cannot where the stream ends, or where an element is not like the others.
        """
        start = self.position_before_group()
        rows = _RowsOfOneFeature(self.lengths, self.beyond)
        known = rows.add(self.waiting, self.waiting_at)
        try:
            while known and (room := count * rows.length - rows.total) >= 0:
                before = len(self.waiting)
                # As many as are probably needed. What is too much waits for the next rows, with its positions.
                wanted = max(1, math.ceil(room / self.mean)) if self.mean else 1
                self._read_ahead(min(wanted, _MOST_READ))
                known = len(self.waiting) > before and rows.add(self.waiting[before:], self.waiting_at[before:])
                self.mean = rows.total / max(1, len(rows.sizes))
        except Exception:
            count = (rows.total - 1) // rows.length
            if count < 1:
                raise
        if not known or not rows.are_alike():
            return None
        if count > 1:
            last = rows.cut_before(count - 1)
            start = last.before, last.cut
        made, laid = rows.fill(count)
        data = {rows.name: made}
        self._add_details(data, rows.name, laid)
        self.beyond = rows.cut_before(count)
        used = rows.count_used(count)
        self.waiting, self.waiting_at = self.waiting[used:], self.waiting_at[used:]
        # As if the last row had been a group of its own, of which all is given.
        (self.before, self.extra), self.group, self.given = start, [[]], 1
        return Columns(data, count)

    def _read_ahead(self, count: int) -> None:
        """Read up to `count` elements, or one if the parent does not know its position after each."""
        before = self.parent.mark()
        rows = blocks.rows_of(self.parent.pull(count if self.unknown < _TRIES else 1))
        after: list[Mark] | None = []
        if len(rows) > 1 and (after := self.parent.marks_of_rows()) is None:
            self.unknown += 1
            self.parent.rewind(before)
            rows, after = blocks.rows_of(self.parent.pull(1)), []
        self.waiting += rows
        self.waiting_at += [before, *after[:-1]][: len(rows)]

    def position_before_group(self) -> tuple[Mark, _Cut | None]:
        if self.beyond is not None:
            return self.beyond.before, self.beyond.cut
        return (self.waiting_at[0] if self.waiting else self.parent.mark()), None

    def read_group(self) -> list[_Row] | None:
        """Read until a row is full. Rows that elements fill all alone come after it."""
        if self.behind and self.extra is not None:
            self.beyond = self._cut_again(self.extra)
        if self.behind and not self.given:
            return []
        alone: list[_Row] = []
        row: _Row = []
        room = dict(self.lengths)
        while True:
            piece, self.beyond = self.beyond or self._next_element(), None
            if piece is None:
                break
            if piece.cut is None and not self.node.split_full_length_features and self._is_full(piece):
                alone.append([piece])
                continue
            self.beyond = self._add(piece, row, room)
            if self.beyond is not None:
                break
        return [row, *alone] if row else alone or None

    def _cut_again(self, cut: _Cut) -> _Piece:
        """Return the piece of the next element that a state had left over."""
        whole = self._next_element()
        if whole is None:
            raise StateMismatch("This state is in the middle of an element that is not there any more.", _CUTS)
        for name, (low, high) in cut.items():
            length = len(whole.features[name])
            if name not in whole.whole and (low < 0 or high > length):
                raise StateMismatch(
                    f"This state has tokens {low} to {high} of feature {name!r} of an element, which has {length}. "
                    "Was it saved with other data?",
                    _CUTS,
                    name,
                )
        return whole.cut_to(cut)

    def _next_element(self) -> _Piece | None:
        if not self.waiting and not self.ended:
            self._read_ahead(1)
        if not self.waiting:
            self.ended = True
            return None
        before, element = self.waiting_at.pop(0), self.waiting.pop(0)
        try:
            if not isinstance(element, Mapping) or element.keys() != self.lengths.keys():
                raise ValueError(
                    f"Elements must be dicts with the keys of length_struct {sorted(self.lengths)}, got "
                    f"{trees.describe(element)}."
                )
            numbers = {name for name in self.lengths if np.ndim(element[name]) == 0}
            features = {name: as_sequence(element[name]) for name in self.lengths}
            bounds = {name: (0, len(feature)) for name, feature in features.items()}
            return _Piece(before, features, self.meta | numbers, bounds)
        except Exception as error:
            raise RowFailed(0, locate_error(error, f"bushel: {self.node.describe()} failed.")) from error

    def _is_full(self, piece: _Piece) -> bool:
        left = [self.lengths[name] - size for name, size in piece.sizes().items()]
        return min(left) == 0

    def _add(self, piece: _Piece, row: _Row, room: dict[str, int]) -> _Piece | None:
        """Add to a row as much of a piece as has room. Return the rest of the piece, or None."""
        sizes = piece.sizes()
        taken = {name: min(size, room[name]) for name, size in sizes.items()}
        rest = None
        if taken != sizes:
            for name in piece.whole:
                if taken[name] < sizes[name]:
                    self._report_limit(name, sizes[name], empty=not row)
                    return piece
            if not any(taken[name] for name in self.cuttable):
                return piece
            bounds = {name: piece.bounds[name] for name in self.cuttable}
            # A number, which comes with each piece, counts as gone with the first: so Grain's states have it.
            rest = piece.cut_to({name: (low + taken[name], high) for name, (low, high) in bounds.items()})
            piece = piece.cut_to({name: (low, low + taken[name]) for name, (low, _) in bounds.items()})
        row.append(piece)
        for name in room:
            room[name] -= taken[name]
        return rest

    def _report_limit(self, name: str, size: int, empty: bool) -> None:
        """Warn once that a feature that is never cut ends rows early. Raise if it does not fit an empty row."""
        if empty:
            error = ValueError(
                f"Meta feature {name!r} has {size} entries, its rows {self.lengths[name]}, and meta features are never "
                "cut. Make its rows longer."
            )
            raise RowFailed(0, locate_error(error, f"bushel: {self.node.describe()} failed."))
        if not self.warned:
            self.warned = True
            logger.warning(
                "Feature %r, which is never cut, ends a row of %s before others fill it. Give it a longer row.",
                name,
                self.node.call(),
            )

    def _fill(self, rows: list[_Row]) -> Block:
        """Return the rows as arrays: as columns if their sequences are of one kind, otherwise row by row."""
        kinds = {tuple(_get_kind(row[0].features[name]) for name in self.lengths) for row in rows}
        if len(kinds) == 1:
            return self._fill_columns(rows)
        return [element for row in rows for element in self._fill_columns([row]).rows()]

    def _fill_columns(self, rows: list[_Row]) -> Columns:
        pieces = [piece for row in rows for piece in row]
        numbers = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        segments = np.concatenate([np.arange(1, len(row) + 1) for row in rows])
        firsts = np.cumsum([0] + [len(row) for row in rows])[:-1]
        data: dict[str, np.ndarray] = {}
        for name, length in self.lengths.items():
            lows, highs = np.array([piece.bounds[name] for piece in pieces], dtype=np.int64).T
            sizes = highs - lows
            begins = np.cumsum(sizes) - sizes
            starts = begins - begins[firsts][numbers]
            laid = layout(numbers, starts, sizes, segments, count=len(rows), length=length)
            tokens = [piece.features[name][slice(*piece.bounds[name])] for piece in pieces]
            data[name] = fill_rows(laid, tokens, pieces[0].features[name])
            self._add_details(data, name, laid)
        return Columns(data, len(rows))

    def _add_details(self, data: dict[str, np.ndarray], name: str, laid: Layout) -> None:
        """Add segment ids and positions of a feature that is cut, and write the tokens that begin its sequences."""
        if name not in self.cuttable:
            return
        ids, positions = laid.segment_ids(), laid.positions()
        if name in self.node.bos_features:
            data[name][(ids > 0) & (positions == 0)] = self.node.bos_token_id
        data[f"{name}_segment_ids"], data[f"{name}_positions"] = ids, positions

    def state_of(self, mark: Mark) -> State:
        before, given, cut = mark
        cut = cut or dict.fromkeys(self.cuttable, _WHOLE)
        return {
            "parent_state": self.parent.state_of(before),
            _CUTS: {name: list(pair) for name, pair in cut.items()},
            _GIVEN: given,
        }

    def mark_of(self, state: State) -> Mark:
        given, cut = read_count(state, _GIVEN), self._read_cut(read_field(state, _CUTS, dict))
        return self.parent_mark_of(state), given, cut

    def _read_cut(self, saved: Mapping[str, Any]) -> _Cut | None:
        if set(saved) != set(self.cuttable):
            raise StateMismatch(
                f"This state has cuts {dict(saved)!r}; the features that can be cut are {self.cuttable}.", _CUTS
            )
        cut = {}
        for name, pair in saved.items():
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise StateMismatch(f"A cut is a pair of numbers; the one of {name!r} is {pair!r}.", _CUTS, name)
            low, high = (check_type(value, int, _CUTS, name, place) for place, value in enumerate(pair))
            if (low, high) != _WHOLE and not 0 <= low <= high:
                raise StateMismatch(f"Feature {name!r} has no tokens {low} to {high}.", _CUTS, name)
            cut[name] = (low, high)
        return None if all(pair == _WHOLE for pair in cut.values()) else cut


class _RowsOfOneFeature:
    """Several rows of one feature, cut by arithmetic from whole elements and, before them, a piece of one."""

    def __init__(self, lengths: Mapping[str, int], beyond: _Piece | None):
        ((self.name, self.length),) = lengths.items()
        self.beyond = beyond
        self.elements: list[Any] = []
        self.marks: list[Mark] = []
        self.sequences: list[np.ndarray] = []
        self.sizes: list[int] = []
        self.total = 0
        """How many tokens there are."""
        if beyond is not None:
            low, high = beyond.bounds[self.name]
            self.sequences.append(beyond.features[self.name][low:high])
            self.sizes.append(high - low)
            self.total = high - low

    def add(self, elements: list[Any], marks: list[Mark]) -> bool:
        """Add elements, with the position before each; False if they are not all dicts of one sequence."""
        name = self.name
        if not countOf(map(type, elements), dict) == len(elements) == countOf(map(len, elements), 1):
            return False
        sequences = [element.get(name) for element in elements]
        if countOf(map(type, sequences), np.ndarray) != len(sequences) or not all([one.ndim for one in sequences]):
            return False
        sizes = list(map(len, sequences))
        self.elements += elements
        self.marks += marks
        self.sequences += sequences
        self.sizes += sizes
        self.total += sum(sizes)
        return True

    def are_alike(self) -> bool:
        """Return whether all sequences have one dtype, and one shape after the first axis."""
        dtype, inner = _get_kind(self.sequences[0])
        if inner:
            return all([one.dtype == dtype and one.shape[1:] == inner for one in self.sequences])
        return all([(one.dtype is dtype or one.dtype == dtype) and one.ndim == 1 for one in self.sequences])

    @functools.cached_property
    def _pieces(self) -> PiecePositions:
        """Where all sequences that were added go. Asked for when there are enough of them."""
        return concat_split(np.array(self.sizes)[:, None], [self.length])

    def _find_next(self, rows: int) -> tuple[int, int]:
        """Return the sequence with the first token after so many rows, and how many of its tokens are before that
        one.
        """
        piece = int(np.searchsorted(self._pieces.rows, rows))
        return int(self._pieces.sequences[piece]), int(self._pieces.offsets[piece, 0])

    def cut_before(self, rows: int) -> _Piece:
        """Return what is left of an element after so many rows: all of it if it begins there."""
        number, used = self._find_next(rows)
        piece = self.beyond
        if piece is None or number:
            place = number - (piece is not None)
            bounds = {self.name: (0, self.sizes[number])}
            piece = _Piece(self.marks[place], self.elements[place], frozenset(), bounds)
        low, high = piece.bounds[self.name]
        return piece.cut_to({self.name: (low + used, high)}) if used else piece

    def count_used(self, rows: int) -> int:
        """Return how many of the elements that were added begin in so many rows, or right after them."""
        return self._find_next(rows)[0] + (self.beyond is None)

    def fill(self, count: int) -> tuple[np.ndarray, Layout]:
        """Return the first `count` rows, and how the pieces lie in them."""
        pieces = self._pieces
        end = int(np.searchsorted(pieces.rows, count))
        starts, taken, offsets = pieces.starts[:end, 0], pieces.sizes[:end, 0], pieces.offsets[:end, 0]
        numbers = pieces.sequences[:end]
        tokens = [self.sequences[number] for number in numbers.tolist()]
        for place in np.flatnonzero(taken != np.array(self.sizes)[numbers]).tolist():
            tokens[place] = tokens[place][offsets[place] : offsets[place] + taken[place]]
        laid = layout(pieces.rows[:end], starts, taken, pieces.segments[:end], count=count, length=self.length)
        return fill_rows(laid, tokens, self.sequences[0]), laid


def _get_kind(array: np.ndarray) -> tuple[Any, ...]:
    return array.dtype, array.shape[1:]
