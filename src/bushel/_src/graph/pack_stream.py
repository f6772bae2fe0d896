"""Packing of a stream's sequences into rows, several rows at a time. Where each goes is decided by index/packing.py."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks, memory, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import RowFailed, StateMismatch, locate_error
from bushel._src.base.state_names import in_states
from bushel._src.graph.cursors import Cursor, GroupCursor, Mark, Skips, State, read_count
from bushel._src.graph.streams import OneParent, Opener, Ordered
from bushel._src.index import epochs
from bushel._src.index.packing import Bins, Layout, layout, too_long


@in_states("stream_pack")
@dataclasses.dataclass(frozen=True, eq=False)
class Pack(OneParent, Ordered):
    """Rows of fixed length made of whole sequences: first fit or best fit, `num_packing_bins` rows at a time.

    When a sequence fits in none of the rows, they are handed out and new ones begun with it.
    """

    strategy: str
    length_struct: Mapping[str, Any]
    num_packing_bins: int
    seed: int = 0
    shuffle_bins: bool = True
    shuffle_bins_group_by_feature: str | None = None
    meta_features: tuple[str, ...] = ()
    pack_alignment_struct: Any = None
    padding_struct: Any = None
    max_sequences_per_bin: int | None = None

    no_spec = "The shapes of packed elements are not known without reading one."

    def __post_init__(self) -> None:
        checks.positive(self.num_packing_bins, "num_packing_bins")
        checks.seed(self.seed)
        if self.max_sequences_per_bin is not None:
            checks.positive(self.max_sequences_per_bin, "max_sequences_per_bin")
        features = PackedFeatures(self)
        group = self.shuffle_bins_group_by_feature
        if group is not None and group not in features.struct:
            raise ValueError(
                f"shuffle_bins_group_by_feature names {group!r}; the packed features are {list(features.struct)}."
            )

    def open(self, opener: Opener) -> Cursor:
        # Tokens are copied into rows. Entries that are kept in lists are handed on without a copy.
        copied = not PackedFeatures(self).loose
        return _PackCursor(opener.open(self.parent, copied=copied), self, opener.skips)

    def call(self) -> str:
        name = {"first_fit": "FirstFitPackIterDataset", "best_fit": "BestFitPackIterDataset"}[self.strategy]
        return f"pipe({name}, length_struct={dict(self.length_struct)}, num_packing_bins={self.num_packing_bins})"


class PackedFeatures:
    """The sequences of an element: which there are, how long their rows are, and how to take them out of elements."""

    def __init__(self, node: Pack):
        self.struct = check_lengths(node.length_struct)
        self.meta = node.meta_features
        self.loose = [name for name in self.meta if name not in self.struct]  # kept in lists, as they are
        self.capacities: list[int] = trees.leaves(self.struct)
        for name, value in self.struct.items():
            if name not in self.meta and trees.children(value) is not None:
                raise ValueError(
                    f"length_struct has a tree at {name!r}: {value!r}. Trees of sequences get no segment ids; name "
                    f"{name!r} in meta_features, or flatten it."
                )
        alignments = self._match("pack_alignment_struct", node.pack_alignment_struct)
        self.alignments = alignments and [checks.positive(value, "An alignment") for value in alignments]
        self.paddings = self._match("padding_struct", node.padding_struct) or [None] * len(self.capacities)
        places = np.cumsum([0] + [len(trees.leaves(value)) for value in self.struct.values()]).tolist()
        self.numbered = {n: p for n, p in zip(self.struct, places) if n not in self.meta}  # those with segment ids
        is_flat = all(trees.children(value) is None for value in self.struct.values())
        self._flat = tuple(self.struct) if is_flat else None

    def _match(self, what: str, struct: Any) -> list[Any] | None:
        if struct is None:
            return None
        try:
            return leaves_up_to(self.struct, struct)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{what} must have the structure of length_struct {self.struct}, got {struct}.") from error

    def take(self, rows: list[Any]) -> list[list[Any]]:
        """For each feature the sequences of all rows; a number is a sequence of one."""
        if self._flat is not None:
            columns = [[row[key] for row in rows] for key in self._flat]
        else:
            columns = [list(column) for column in zip(*(leaves_up_to(self.struct, row) for row in rows), strict=True)]
        return [column if _are_sequences(column) else list(map(as_sequence, column)) for column in columns]

    def build(self, values: list[Any]) -> dict[str, Any]:
        """Return the leaves in the structure of length_struct."""
        return dict(trees.flatten(self.struct)[1](values))


def check_lengths(struct: Any) -> dict[str, Any]:
    """Return a length_struct: a mapping whose leaves are positive integers."""
    if not isinstance(struct, Mapping) or not trees.leaves(struct):
        raise ValueError(f"length_struct must map the features to the lengths of their rows, got {struct!r}.")
    return {
        name: trees.map_leaves(lambda leaf, name=name: checks.positive(leaf, f"length_struct at {name!r}"), value)
        for name, value in struct.items()
    }


def leaves_up_to(struct: Any, element: Any) -> list[Any]:
    """Return the entries of an element at the places where `struct` has leaves."""
    if isinstance(struct, Mapping):
        return [leaf for key, value in struct.items() for leaf in leaves_up_to(value, element[key])]
    if isinstance(struct, (list, tuple)):
        return [leaf for place, value in enumerate(struct) for leaf in leaves_up_to(value, element[place])]
    return [element]


def _are_sequences(column: list[Any]) -> bool:
    return set(map(type, column)) == {np.ndarray} and all(map(_DIMENSIONS, column))


_DIMENSIONS = operator.attrgetter("ndim")


def as_sequence(value: Any) -> np.ndarray:
    """Return a sequence as an array: lists and tuples become arrays, a number becomes a sequence of one."""
    if type(value) is np.ndarray and value.ndim:
        return value
    if isinstance(value, int):
        return np.array([value], np.int64)
    if not isinstance(value, (list, tuple, str, bytes, np.generic, numbers.Number)) and not hasattr(value, "__array__"):
        raise TypeError(
            f"A sequence to pack must be an array, a list, a tuple or a number, got {value!r} of type "
            f"{type(value).__name__}."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"A sequence to pack must have entries of one shape, got {value!r}: {error}") from None
    return array if array.ndim else array.reshape(1)


def fill_rows(laid: Layout, pieces: Sequence[np.ndarray], like: np.ndarray, padding: Any = None) -> np.ndarray:
    """Return the rows of one feature: all pieces are copied to their places at once, with `padding` (or zeros) in the
    gaps.

    >>> from bushel._src.index.packing import layout
    >>> laid = layout(np.array([1, 0]), np.array([0, 1]), np.array([2, 2]), np.array([1, 1]), count=2, length=4)
    >>> pieces = [np.array([7, 8]), np.array([5, 6])]
    >>> fill_rows(laid, pieces, pieces[0]).tolist()
    [[0, 5, 6, 0], [7, 8, 0, 0]]

    Args:
      laid: where the pieces go.
      pieces: arrays with as many entries along the first axis as `laid` says, in the order it was made from.
      like: an array whose dtype and axes after the first are those of the rows; other dtypes are cast to it.
      padding: what fills the gaps; zeros if None.
    """
    inner, dtype = like.shape[1:], like.dtype
    gaps = laid.runs[::2].tolist()
    pad = np.zeros((max(gaps), *inner), like.dtype)
    if padding is not None:
        pad[...] = padding
    order = laid.order.tolist()
    runs_of_tokens: list[np.ndarray] = []
    if not any(gaps):
        runs_of_tokens = [pieces[number] for number in order]
    else:
        for gap, number in zip(gaps, order):
            if gap:
                runs_of_tokens.append(pad[:gap])
            runs_of_tokens.append(pieces[number])
        runs_of_tokens.append(pad[: gaps[-1]])
    alike = all([part.dtype is dtype and part.ndim == like.ndim for part in runs_of_tokens])
    if alike and dtype.kind in "biufc" and (not inner or all([part.shape[1:] == inner for part in runs_of_tokens])):
        with contextlib.suppress(TypeError):  # a piece that is a view with gaps
            return memory.join(runs_of_tokens, (laid.rows, laid.length, *inner), dtype)
    out = memory.empty((laid.rows, laid.length, *inner), like.dtype)
    np.concatenate(runs_of_tokens, out=out.reshape(-1, *inner), casting="unsafe")
    return out


class _PackCursor(GroupCursor[Pack]):
    """A group is the rows that are packed together; `extra` is how many rows were given in all.

    `beyond` is the first sequence that found no place in the group, with the parent's position before it.
    """

    given_key, extra_key, group_name = "next_row", "counter", "a group of packed rows"

    def __init__(self, parent: Cursor, node: Pack, skips: Skips | None):
        super().__init__(parent, node, skips, extra=0)
        self.features = PackedFeatures(node)

    def pull(self, count: int) -> Block:
        rows = self.next_rows(count)
        self.extra += len(rows)
        if len(rows) and self.given == len(self.group):
            # Grain's state after the last row of a group is that before the first row of the next one.
            self.before, self.group, self.given = self.beyond[0], [], 0
        return rows

    def position_before_group(self) -> tuple[Mark, int]:
        return self.before, self.extra

    def read_group(self) -> Block | None:
        before, elements = self.beyond or (self.before, [])
        if self.behind and not self.given:  # only the first sequence after the last group had been read
            self.beyond = before, blocks.rows_of(self.read_parent(1))
            return []
        node, features = self.node, self.features
        bins = Bins(
            features.capacities,
            node.num_packing_bins,
            strategy=node.strategy,
            alignments=features.alignments,
            most=node.max_sequences_per_bin,
        )
        sequences: list[list[np.ndarray]] = [[] for _ in features.capacities]
        lengths: list[list[int]] = [[] for _ in features.capacities]
        loose: list[list[Any]] = [[] for _ in features.loose]
        while True:
            if not elements:
                before = self.parent.mark()
                # So many certainly find a place. If no row is empty, the next sequence may be the first without one.
                elements = blocks.rows_of(self.read_parent(bins.empty or 1))
            if not elements:
                break
            taken, others, sizes = self._measure(elements)
            placed = bins.put(sizes)  # all of several, or none of one
            if placed < len(elements):
                elements = elements[placed:]
                break
            for column, more in zip(sequences + lengths + loose, taken + sizes + others):
                column += more
            elements = []
        self.beyond = before, elements
        if self.behind and self.given >= bins.used:
            raise self.describe_mismatch(bins.used)
        return self._fill(bins, sequences, lengths, loose) if bins.used else None

    def _measure(self, rows: list[Any]) -> tuple[list[list[Any]], list[list[Any]], list[list[int]]]:
        """Return the sequences of some elements, their other entries, and how long the sequences are: by feature."""
        try:
            taken = self.features.take(rows)
            others = [[row[name] for row in rows] for name in self.features.loose]
            sizes = [list(map(len, column)) for column in taken]
            if any([max(column) > capacity for column, capacity in zip(sizes, self.features.capacities)]):
                wrong = too_long(np.array(sizes).T, self.features.capacities)
                has = self.features.build([column[wrong or 0] for column in sizes])
                raise ValueError(
                    f"A sequence is longer than its row: lengths {has}, rows of {self.features.struct}. "
                    "Truncate it before packing, or make rows longer."
                )
        except Exception as error:
            raise RowFailed(0, locate_error(error, f"bushel: {self.node.describe()} failed.")) from error
        return taken, others, sizes

    def _fill(
        self, bins: Bins, sequences: list[list[np.ndarray]], lengths: list[list[int]], loose: list[list[Any]]
    ) -> Block:
        """Return the rows of a group, in the order in which they are handed out."""
        node, features, placed = self.node, self.features, bins.positions()
        rows, order = placed.rows, None
        if node.shuffle_bins:
            # Seeded by how many rows came before these.
            order = np.random.default_rng(node.seed + self.extra - self.given).permuted(range(bins.used))
            if node.shuffle_bins_group_by_feature is None:
                rows = np.argsort(order)[rows]  # written in the order in which they are handed out
        layouts = [
            layout(rows, placed.starts[:, n], np.array(sizes), placed.segments, count=bins.used, length=capacity)
            for n, (sizes, capacity) in enumerate(zip(lengths, features.capacities, strict=True))
        ]
        try:
            values = [
                fill_rows(laid, some, some[0], padding)
                for laid, some, padding in zip(layouts, sequences, features.paddings, strict=True)
            ]
        except ValueError as error:
            shapes = [sorted({sequence.shape[1:] for sequence in some}) for some in sequences]
            where = f"bushel: {node.describe()} failed: inner shapes of sequences are {features.build(shapes)}."
            raise RowFailed(0, locate_error(error, where)) from error
        data = features.build(values)
        for name, number in features.numbered.items():
            data[f"{name}_segment_ids"] = layouts[number].segment_ids()
            data[f"{name}_positions"] = layouts[number].positions()
        if order is not None and node.shuffle_bins_group_by_feature is not None:
            order = _sort_by_group(data[node.shuffle_bins_group_by_feature], order)
            data = trees.map_leaves(lambda leaf: leaf[order], data)
            rows = np.argsort(order)[rows]
        packed = Columns(data, bins.used)
        return packed if not loose else _add_lists(packed, features.loose, loose, rows)

    def mark_of(self, state: State) -> Mark:
        given, counter = read_count(state, "next_row", self.node.num_packing_bins), read_count(state, "counter")
        if given > counter:
            raise StateMismatch(
                f"This state has given {counter} rows in all, and {given} of those packed last.", "next_row"
            )
        return super().mark_of(state)


def _sort_by_group(values: np.ndarray, shuffled: np.ndarray) -> np.ndarray:
    """Return rows by the mean of the different values other than zero in each, those of one mean as they were
    shuffled.
    """
    means = []
    for row in values:
        different, _ = epochs.find_distinct(row)
        count = np.count_nonzero(different)
        means.append(np.sum(different) / count if count else 0.0)
    return np.lexsort((shuffled, means))


def _add_lists(packed: Columns, names: Sequence[str], loose: list[list[Any]], rows: np.ndarray) -> list[Any]:
    """Return packed rows with the entries of their elements in lists."""
    made = packed.rows()
    for name, entries in zip(names, loose, strict=True):
        for row in made:
            row[name] = []
        for row, entry in zip(rows.tolist(), entries, strict=True):
            made[row][name].append(entry)
    return made
