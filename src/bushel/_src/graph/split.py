"""Datasets split into parts without a common record: by shares of all records, by groups, or by a hash of a key.

The parts of single records are index arithmetic: a part is a range of places in one shuffled order, which is the same
in every epoch. For parts by groups a column holds the number of the part of each record; graph/select.py chooses by it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import warnings
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from bushel._src.base import checks
from bushel._src.base.errors import BushelWarning
from bushel._src.base.state_names import in_states
from bushel._src.graph import apply, reindex
from bushel._src.graph.columns import Column, Part
from bushel._src.graph.node import Epochs, MapNode, replace_parents
from bushel._src.graph.reindex import Reindex
from bushel._src.graph.select import Rule, choose
from bushel._src.index import shuffle, words

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
        epoch, offset = words.split(indices, self.length, to=length)
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
class Shares:
    """How large each part should be: shares that sum to 1, or counts of elements."""

    given: tuple[float, ...]
    counts: bool

    def find_edges(self, length: int) -> list[int]:
        """Where each part begins and the last one ends, among `length` elements. Raises if a part would be empty."""
        if self.counts and sum(self.given) != length:
            raise ValueError(
                f"The counts {list(self.given)} sum to {sum(self.given):,}, and there are {length:,} elements. Give a "
                "count for each part, or shares such as [0.9, 0.1]."
            )
        # A float stands for the decimal number that it prints as: 0.7 of 10 elements are 7, not 6.
        sums = [sum(map(_as_fraction, self.given[:n])) for n in range(len(self.given) + 1)]
        edges = [math.floor(length * sum_ / (sums[-1] or 1) + Fraction(1, 2)) for sum_ in sums]
        self.refuse_empty_parts([high - low for low, high in itertools.pairwise(edges)], "")
        return edges

    def refuse_empty_parts(self, sizes: Sequence[int], why: str) -> None:
        """Raises if a part with a share above zero has no element: nobody wants an empty validation set."""
        for number, (share, size) in enumerate(zip(self.given, sizes, strict=True)):
            if share and not size:
                raise ValueError(
                    f"Part {number} with the share {share:g} of {sum(sizes):,} elements would be empty{why}. Give it a "
                    "larger share, or 0 if it should be empty."
                )


def check_shares(shares: Sequence[float]) -> Shares:
    """Shares of the parts, checked: not negative, with the sum 1; or whole numbers, which count elements."""
    given = tuple(shares)
    if not given:
        raise ValueError("`split` needs a share for each part, such as [0.9, 0.1].")
    for share in given:
        if isinstance(share, bool) or not isinstance(share, (int, float, np.integer, np.floating)):
            raise TypeError(f"`split` takes shares such as [0.9, 0.1], or counts; got {share!r} among them.")
        if not 0 <= share < math.inf:
            raise ValueError(f"Shares for `split` must not be negative and must be finite; got {share!r}.")
    if all(isinstance(share, (int, np.integer)) for share in given):
        return Shares(tuple(int(share) for share in given), counts=True)
    if abs(math.fsum(given) - 1) > 1e-6:
        raise ValueError(f"The shares {list(given)} sum to {math.fsum(given):g}. The shares for `split` must sum to 1.")
    return Shares(tuple(float(share) for share in given), counts=False)


def split_by_place(node: MapNode, shares: Shares, seed: int) -> list[MapNode]:
    """One node for each part, of single elements of `node`."""
    edges = shares.find_edges(node.length)
    shown = f"split({list(shares.given)}, seed={seed})"
    return [
        SplitPart(node, low, high, seed, f"{shown}[{number}]")
        for number, (low, high) in enumerate(itertools.pairwise(edges))
    ]


def split_by_group(node: MapNode, groups: np.ndarray, shares: Shares, seed: int, hashed: bool) -> list[MapNode]:
    """One node for each part. Elements with the same entry in `groups` are in the same part."""
    distinct, which = words.find_distinct(groups)
    sizes = np.bincount(which, minlength=len(distinct))
    if hashed:
        part_of_group = _choose_by_hash(distinct, shares, seed)
    else:
        part_of_group = _fill_in_order(sizes, shares, seed)
    parts = part_of_group[which]
    found = np.bincount(parts, minlength=len(shares.given)).tolist()
    shares.refuse_empty_parts(found, f": there are {len(distinct):,} groups")
    column = Column((Part(node, parts.astype(np.uint8 if len(shares.given) < 256 else np.int64)),))
    return [choose(node, column, OfPart(number)) for number in range(len(shares.given))]


def _fill_in_order(sizes: np.ndarray, shares: Shares, seed: int) -> np.ndarray:
    """The part of each group: the groups are laid end to end in a shuffled order, and the middle of each decides.

    So a part is larger or smaller than its share by less than the largest group.
    """
    edges = shares.find_edges(int(sizes.sum()))
    count = len(sizes)
    order = shuffle.permute(np.arange(count), length=count, seed=seed) if count else np.arange(0)
    ends = np.cumsum(sizes[order])
    middles = 2 * ends - sizes[order]  # twice the middle, so that it is a whole number
    parts = np.empty(count, dtype=np.int64)
    parts[order] = np.searchsorted(2 * np.array(edges[1:-1], dtype=np.int64), middles, side="right")
    return parts


def _choose_by_hash(distinct: np.ndarray, shares: Shares, seed: int) -> np.ndarray:
    """The part of each group, by a hash of its value and the seed alone, so that it stays when groups are added."""
    ends = np.cumsum(shares.given)
    ends[max(np.flatnonzero(shares.given)) :] = np.inf  # rounding must leave no value without a part
    parts = np.empty(len(distinct), dtype=np.int64)
    for low in range(0, len(distinct), _HASHED_AT_ONCE):
        values = distinct[low : low + _HASHED_AT_ONCE]
        hashes = np.fromiter((_hash(value, seed) for value in _as_texts(values)), dtype=np.uint64, count=len(values))
        parts[low : low + len(values)] = np.searchsorted(ends, hashes / 2.0**64, side="right")
    return parts


def _as_texts(values: np.ndarray) -> list[str] | list[bytes]:
    """Values as texts that do not depend on how wide their dtype is, which may change when data are added."""
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
    apply.Map,
    apply.RandomMap,
    apply.Filter,
)
"""Operations that may come before or after a split. Where their parent is shuffled, the split is put before them."""


def find_records(node: MapNode) -> MapNode:
    """Where a dataset is split: at the nearest node before `node` whose epochs are made of the same records in order.

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


def put_in_place(node: MapNode, records: MapNode, part: MapNode) -> MapNode:
    """A copy of the pipeline that ends in `node`, with `part` in place of its step `records`."""
    if node is records:
        return part
    return replace_parents(node, lambda parent: put_in_place(parent, records, part))  # type: ignore[arg-type]


def warn_of_leak(node: MapNode) -> None:
    """Warns the caller of `repeat` if each epoch of `node` has another part of a shuffled dataset."""
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
    """Whether a slice is one piece of a dataset that is shuffled anew in every epoch, and not all of it."""
    reshuffled = cut.parent.epochs is not Epochs.SAME
    piece = cut.step == 1 and 0 < cut.length < cut.parent.length
    return reshuffled and piece and any(isinstance(step, reindex.Shuffle) for step in _list_steps(cut.parent))


def _list_steps(node: MapNode) -> list[MapNode]:
    """A node and all that it is made of. What comes before a repeat of one and the same epoch is left out."""
    steps, known = [node], {id(node)}
    for step in steps:  # the list grows while it is read
        if isinstance(step, reindex.Repeat) and not step.reseed_each_epoch:
            continue
        new = [parent for parent in step.parents if id(parent) not in known]
        known.update(map(id, new))
        steps.extend(new)
    return steps
