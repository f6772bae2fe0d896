"""Elements chosen by a column: where, sample, order_by, and split into parts without a common record.

Index arithmetic, with exact lengths. Warns of slices that let validation records into training.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import itertools
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import checks
from bushel._src.base.checks import INFINITE
from bushel._src.base.errors import BushelWarning
from bushel._src.base.state_names import in_states, name_of, overridable
from bushel._src.graph import map_ops, reindex
from bushel._src.graph.columns import Column, NodeValues
from bushel._src.graph.node import Epochs, MapNode, Moved, replace_parents
from bushel._src.graph.reindex import Reindex, Repeat
from bushel._src.index import epochs, shuffle

_KEPT_EPOCHS = 4


class EpochTables:
    """A table per epoch, of which the last few are kept. A table for all epochs is pickled with the pipeline."""

    def __init__(self, make: Callable[[int], Any], one_for_all: bool, tables: dict[int, Any] | None = None):
        self._make, self._one_for_all = make, one_for_all
        self._tables: dict[int, Any] = tables or {}
        self._lock = threading.Lock()

    def __call__(self, epoch: int) -> Any:
        epoch = 0 if self._one_for_all else epoch
        table = self._tables.get(epoch)
        if table is not None:
            return table
        with self._lock:
            if epoch not in self._tables:  # another thread may have made it meanwhile
                table = self._make(epoch)
                while len(self._tables) >= _KEPT_EPOCHS:
                    del self._tables[next(iter(self._tables))]
                self._tables[epoch] = table
            return self._tables[epoch]

    def __reduce__(self) -> Any:
        return EpochTables, (self._make, self._one_for_all, self._tables if self._one_for_all else None)


def pick_by_epoch(epoch: np.ndarray, offset: np.ndarray, pick: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return `pick(epoch, offsets)` of all offsets, each with its own epoch."""
    if not len(epoch):
        return offset
    first = int(epoch[0])
    if (epoch == first).all():
        return pick(first, offset)
    picked = np.empty_like(offset)
    for number in epochs.find_distinct(epoch)[0].tolist():
        here = epoch == number
        picked[here] = pick(number, offset[here])
    return picked


class Rule(abc.ABC):
    """How the positions of an epoch follow from the values of its elements."""

    steady_length: ClassVar[bool] = True
    """Whether an epoch after the rule is as long as the one before it, whatever the values are."""

    @abc.abstractmethod
    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        """Return the table of one epoch, which is kept: one entry per element after the rule."""

    @overridable
    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        """Return places in the epoch after the rule -> places in the epoch before it; by default the table lists
        them.
        """
        return table[offsets]

    @property
    @overridable
    def reseeds(self) -> bool:
        """Whether the table differs from epoch to epoch although the values do not; by default not."""
        return False

    @abc.abstractmethod
    def epochs(self, parent: Epochs) -> Epochs:
        """Return how epochs compare after the rule if the parent's compare as `parent` says."""

    @abc.abstractmethod
    def call(self, column: Column, length: int) -> str:
        """Return the operation as it reads, over `length` elements."""


@in_states("where")
@dataclasses.dataclass(frozen=True)
class Where(Rule):
    """The elements with a true value, in order."""

    steady_length = False

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return np.flatnonzero(values)

    def epochs(self, parent: Epochs) -> Epochs:
        return parent

    def call(self, column: Column, length: int) -> str:
        return f"where(mask of {length})"


@in_states("sample")
@dataclasses.dataclass(frozen=True)
class Draw(Rule):
    """Elements drawn again and again, in proportion to their values."""

    seed: int

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return np.cumsum(values, dtype=np.float64)

    def pick(self, table: np.ndarray, offsets: np.ndarray, epoch: int) -> np.ndarray:
        return shuffle.drawn(offsets, table, seed=self.seed, epoch=epoch)

    def epochs(self, parent: Epochs) -> Epochs:
        return Epochs.DIFFERENT

    def call(self, column: Column, length: int) -> str:
        return f"sample(weights of {length}, seed={self.seed})"


@in_states("sample_without_replacement")
@dataclasses.dataclass(frozen=True)
class WeightedShuffle(Rule):
    """Each element with a value above zero once per epoch, those with large values early."""

    seed: int

    steady_length = False

    @property
    def reseeds(self) -> bool:
        return True

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return shuffle.weighted_order(values, seed=self.seed, epoch=epoch)

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED)

    def call(self, column: Column, length: int) -> str:
        return f"sample(weights of {length}, seed={self.seed}, replacement=False)"


@in_states("order_by")
@dataclasses.dataclass(frozen=True)
class OrderBy(Rule):
    """Each epoch sorted by value, with some noise."""

    noise: float
    seed: int

    @property
    def reseeds(self) -> bool:
        return self.noise > 0

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return shuffle.sorted_order(values, noise=self.noise, seed=self.seed, epoch=epoch)

    def epochs(self, parent: Epochs) -> Epochs:
        return min(parent, Epochs.SHUFFLED) if self.noise else parent

    def call(self, column: Column, length: int) -> str:
        noise = f", noise={self.noise:g}, seed={self.seed}" if self.noise else ""
        return f"order_by({column.dtype} of {length}{noise})"


@in_states("chosen")
@dataclasses.dataclass(frozen=True, eq=False)
class Chosen(Moved):
    """The elements of one parent as a rule on a column chooses them, epoch by epoch."""

    column: Column
    rule: Rule
    tables: EpochTables

    def find_length(self) -> int:
        return len(self.tables(0))

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        epoch, offset = epochs.split(indices, self.length, to=self.parent.length)
        positions = pick_by_epoch(epoch, offset, lambda number, some: self.rule.pick(self.tables(number), some, number))
        return positions + epoch * self.parent.length

    @property
    def epochs(self) -> Epochs:
        return self.rule.epochs(self.parent.epochs)

    def parameters(self) -> dict[str, Any]:
        return {"operation": name_of(type(self.rule)), **vars(self.rule), "column": self.column._digest}

    def call(self) -> str:
        return self.rule.call(self.column, self.parent.length)


def _make_table(node: MapNode, column: Column, rule: Rule, epoch: int) -> np.ndarray:
    """Return the table of an epoch. `node` is the one that the column was computed on: the pipeline's may be a copy."""
    return rule.table(column._of_epoch(node, epoch), epoch)


def under_endless_repeat(node: MapNode, build: Callable[[MapNode], MapNode]) -> MapNode:
    """Return `build(node)`.

    Where the node is an endless repeat, `build` gets one epoch of it, and the result is repeated.
    """
    if node.length < INFINITE:
        return build(node)
    if not isinstance(node, Repeat):
        raise ValueError(
            f"{node.call()} has no end, so it has no epochs to choose from. Choose before you mix or repeat."
        )
    epoch = node.parent if node.reseed_each_epoch else Repeat(node.parent, 1, False)
    return Repeat(build(epoch), None, True)


def choose(node: MapNode, column: Column, rule: Rule) -> MapNode:
    """Return the elements of a node that a rule on a column chooses. Raise if epochs would differ in length."""
    if not rule.steady_length and node.epochs is Epochs.DIFFERENT:
        raise ValueError(
            f"Epochs of {node.call()} are made of different records, so after `{rule.call(column, node.length)}` "
            "each would have another length. Do it earlier: before slicing a shuffled dataset, and on each part of a "
            "mixture before mixing."
        )
    same = node.epochs is Epochs.SAME and not rule.reseeds
    make = functools.partial(_make_table, node, column, rule)
    return Chosen(node, column, rule, EpochTables(make, one_for_all=same))


_HASHED_AT_ONCE = 1 << 16


@in_states("split_part")
@dataclasses.dataclass(frozen=True, eq=False)
class SplitPart(Reindex):
    """The elements from place `start` to `stop` of one shuffled order, which is the same in every epoch."""

    start: int
    stop: int
    seed: int
    shown: str = dataclasses.field(metadata={"identity": False})

    def find_length(self) -> int:
        return self.stop - self.start

    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        length = self.parent.length
        epoch, offset = epochs.split(indices, self.length, to=length)
        return shuffle.permute(self.start + offset, length=length, seed=self.seed) + epoch * length

    def call(self) -> str:
        return self.shown


@in_states("split_by_value")
@dataclasses.dataclass(frozen=True)
class OfPart(Rule):
    """The elements whose value is the number of one part, in order."""

    number: int

    steady_length = False

    def table(self, values: np.ndarray, epoch: int) -> np.ndarray:
        return np.flatnonzero(values == self.number)

    def epochs(self, parent: Epochs) -> Epochs:
        return parent

    def call(self, column: Column, length: int) -> str:
        return f"split(by=values of {length})[{self.number}]"


@in_states("split_shares")
@dataclasses.dataclass(frozen=True)
class SplitSizes:
    """How large each part should be: shares that sum to 1, or counts of elements."""

    given: tuple[float, ...]
    counts: bool

    def find_edges(self, length: int) -> list[int]:
        """Return where each part begins and the last one ends, among `length` elements.

        Raises if a part would be empty.
        """
        if self.counts and sum(self.given) != length:
            raise ValueError(
                f"The counts {list(self.given)} sum to {sum(self.given):,}, and there are {length:,} elements. Give a "
                "count for each part, or shares such as [0.9, 0.1]."
            )
        # A float stands for the decimal number that it prints as: 0.7 of 10 elements are 7, not 6.
        sums = [sum(map(_as_fraction, self.given[:n])) for n in range(len(self.given) + 1)]
        edges = [math.floor(length * sum_ / (sums[-1] or 1) + Fraction(1, 2)) for sum_ in sums]
        self.refuse_empty_parts([high - low for low, high in itertools.pairwise(edges)])
        return edges

    def refuse_empty_parts(self, sizes: Sequence[int], groups: int | None = None) -> None:
        """Raise if a part with a share above zero has no element: nobody wants an empty validation set."""
        for number, (share, size) in enumerate(zip(self.given, sizes, strict=True)):
            if share and not size:
                sentences = [
                    f"Part {number} with the share {share:g} of {sum(sizes):,} elements would be empty.",
                    "Give it a larger share, or 0 if it should be empty.",
                ]
                if groups is not None:
                    sentences.insert(1, f"There are only {groups:,} groups.")
                raise ValueError(" ".join(sentences))


def check_split_sizes(shares: Sequence[float]) -> SplitSizes:
    """Return shares of the parts, checked: not negative, with the sum 1; or whole numbers, which count elements."""
    given = tuple(shares)
    if not given:
        raise ValueError("`split` needs a share for each part, such as [0.9, 0.1].")
    for share in given:
        if isinstance(share, bool) or not isinstance(share, (int, float, np.integer, np.floating)):
            raise TypeError(f"`split` takes shares such as [0.9, 0.1], or counts; got {share!r} among them.")
        if not 0 <= share < math.inf:
            raise ValueError(f"Shares for `split` must not be negative and must be finite; got {share!r}.")
    if all(isinstance(share, (int, np.integer)) for share in given):
        return SplitSizes(tuple(int(share) for share in given), counts=True)
    if abs(math.fsum(given) - 1) > 1e-6:
        raise ValueError(f"The shares {list(given)} sum to {math.fsum(given):g}. The shares for `split` must sum to 1.")
    return SplitSizes(tuple(float(share) for share in given), counts=False)


def split_by_position(node: MapNode, split_sizes: SplitSizes, seed: int) -> list[MapNode]:
    """Return one node for each part, of single elements of `node`."""
    edges = split_sizes.find_edges(node.length)
    shown = f"split({list(split_sizes.given)}, seed={seed})"
    return [
        SplitPart(node, low, high, seed, f"{shown}[{number}]")
        for number, (low, high) in enumerate(itertools.pairwise(edges))
    ]


def split_by_group(
    node: MapNode, groups: np.ndarray, split_sizes: SplitSizes, seed: int, hashed: bool
) -> list[MapNode]:
    """Return one node for each part. Elements with the same entry in `groups` are in the same part."""
    distinct, which = epochs.find_distinct(groups)
    sizes = np.bincount(which, minlength=len(distinct))
    if hashed:
        part_of_group = _choose_by_hash(distinct, split_sizes, seed)
    else:
        part_of_group = _fill_in_order(sizes, split_sizes, seed)
    parts = part_of_group[which]
    found = np.bincount(parts, minlength=len(split_sizes.given)).tolist()
    split_sizes.refuse_empty_parts(found, groups=len(distinct))
    column = Column((NodeValues(node, parts.astype(np.uint8 if len(split_sizes.given) < 256 else np.int64)),))
    return [choose(node, column, OfPart(number)) for number in range(len(split_sizes.given))]


def _fill_in_order(sizes: np.ndarray, split_sizes: SplitSizes, seed: int) -> np.ndarray:
    """Return the part of each group: the groups are laid end to end in a shuffled order, and the middle of each
    decides.

    So a part is larger or smaller than its share by less than the largest group.
    """
    edges = split_sizes.find_edges(int(sizes.sum()))
    count = len(sizes)
    order = shuffle.permute(np.arange(count), length=count, seed=seed) if count else np.arange(0)
    ends = np.cumsum(sizes[order])
    middles = 2 * ends - sizes[order]  # twice the middle, so that it is a whole number
    parts = np.empty(count, dtype=np.int64)
    parts[order] = np.searchsorted(2 * np.array(edges[1:-1], dtype=np.int64), middles, side="right")
    return parts


def _choose_by_hash(distinct: np.ndarray, split_sizes: SplitSizes, seed: int) -> np.ndarray:
    """Return the part of each group, by a hash of its value and the seed alone, so that it stays when groups are
    added.
    """
    ends = np.cumsum(split_sizes.given)
    ends[max(np.flatnonzero(split_sizes.given)) :] = np.inf  # rounding must leave no value without a part
    parts = np.empty(len(distinct), dtype=np.int64)
    for low in range(0, len(distinct), _HASHED_AT_ONCE):
        values = distinct[low : low + _HASHED_AT_ONCE]
        hashes = np.fromiter((_hash(value, seed) for value in _as_texts(values)), dtype=np.uint64, count=len(values))
        parts[low : low + len(values)] = np.searchsorted(ends, hashes / 2.0**64, side="right")
    return parts


def _as_texts(values: np.ndarray) -> list[str] | list[bytes]:
    """Return values as texts that do not depend on how wide their dtype is, which may change when data are added."""
    if values.dtype.kind == "S":
        return values.tolist()
    return values.astype(np.str_).tolist() if values.dtype.kind in "mM" else [str(value) for value in values.tolist()]


def _hash(value: str | bytes, seed: int) -> int:
    content = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(b"%d:" % seed + content, digest_size=8).digest(), "little")


def _as_fraction(share: float) -> Fraction:
    return Fraction(repr(share))


_BEFORE_SHUFFLES = (
    reindex.Seed,
    reindex.Shuffle,
    reindex.WindowShuffle,
    map_ops.MapElements,
    map_ops.RandomMapElements,
    map_ops.FilterElements,
)
"""Operations that may come before or after a split. Where their parent is shuffled, the split is put before them."""


def find_records(node: MapNode) -> MapNode:
    """Return where a dataset is split: at the nearest node before `node` whose epochs are made of the same records in
    order.

    Elements of an epoch after a shuffle cannot be split by position: each epoch would be split in another way.
    """
    while isinstance(node, (reindex.Seed, reindex.Repeat)):
        node = node.parent
    if any(isinstance(step, reindex.Repeat) for step in _list_steps(node)):
        raise ValueError(
            f"`split` after `repeat` could put one record into several parts, once for each epoch: {node.call()} "
            "comes after a `repeat`. Call `split` before `repeat`."
        )
    while node.epochs is not Epochs.SAME:
        if not isinstance(node, _BEFORE_SHUFFLES):
            raise ValueError(
                f"After {node.call()} an epoch has other records, or another order, than the one before, and the "
                "records of a part must be the same in every epoch. Call `split` earlier: before batches and slices of "
                "a shuffled dataset, and on each part of a mixture."
            )
        node = node.parent
    if checks.is_endless(node.length):
        raise ValueError(f"{node.call()} has no end, so it has no shares. Call `split` before what makes it endless.")
    return node


def replace_records(node: MapNode, records: MapNode, part: MapNode) -> MapNode:
    """Return a copy of the pipeline that ends in `node`, with `part` in place of its step `records`."""
    if node is records:
        return part
    return replace_parents(node, lambda parent: replace_records(parent, records, part))  # type: ignore[arg-type]


def warn_of_leak(node: MapNode) -> None:
    """Warn the caller of `repeat` if each epoch of `node` has another part of a shuffled dataset."""
    for step in _list_steps(node):
        if isinstance(step, reindex.Slice) and _leaks(step):
            warnings.warn(
                f"The slice [{step.start}:{step.stop}] of a shuffled dataset has other records in every epoch of "
                "`repeat`. If the rest of the dataset is a validation set, its records come into training. Write "
                "`train, validation = ds.split([0.9, 0.1])`, or slice before `shuffle`. If you want another sample in "
                f"every epoch, `.slice(range({step.start}, {step.stop}))` does not warn.",
                BushelWarning,
                stacklevel=4,
            )
            return


def _leaks(cut: reindex.Slice) -> bool:
    """Return whether a slice is one section of a dataset that is shuffled anew in every epoch, and not all of it."""
    reshuffled = cut.parent.epochs is not Epochs.SAME
    is_section = cut.step == 1 and 0 < cut.length < cut.parent.length
    return reshuffled and is_section and any(isinstance(step, reindex.Shuffle) for step in _list_steps(cut.parent))


def _list_steps(node: MapNode) -> list[MapNode]:
    """Return a node and all that it is made of. What comes before a repeat of one and the same epoch is left out."""
    steps, known = [node], {id(node)}
    for step in steps:  # the list grows while it is read
        if isinstance(step, reindex.Repeat) and not step.reseed_each_epoch:
            continue
        new = [parent for parent in step.parents if id(parent) not in known]
        known.update(map(id, new))
        steps.extend(new)
    return steps
