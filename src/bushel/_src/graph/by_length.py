"""Elements arranged by their lengths, by random access: packed rows of fixed length, and batches of similar lengths.

Which elements go where is planned once, from the lengths alone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bushel._src.base import blocks, checks, exact_values, memory, trees
from bushel._src.base.blocks import Block, Columns
from bushel._src.base.errors import RowFailed, locate_error
from bushel._src.base.state_names import in_states
from bushel._src.base.trees import ShapeDtypeStruct
from bushel._src.graph.batch import Batches, BatchFn
from bushel._src.graph.columns import Column
from bushel._src.graph.node import Epochs, InPlace, MadeOf, MapNode, OneParentMap, Plan, made_of_several
from bushel._src.graph.pack_stream import as_sequence
from bushel._src.graph.select import EpochTables, pick_by_epoch
from bushel._src.index import epochs, packing, shuffle
from bushel._src.sources.memory_sources import Sequences

STRATEGIES = (*packing.STRATEGIES, "concat_split")
BARE = "tokens"
"""The name of the one feature where elements are sequences themselves."""


@dataclasses.dataclass(frozen=True)
class PackOptions:
    """How sequences are packed."""

    length: Mapping[str, int] | int
    strategy: str
    window: int
    seed: int | None
    max_sequences: int | None

    @property
    def capacities(self) -> dict[str, int]:
        """How long a row is, for each feature."""
        return {BARE: self.length} if isinstance(self.length, int) else dict(self.length)


def check_options(length: Any, strategy: str, window: Any, seed: Any, max_sequences: Any) -> PackOptions:
    """Return options of packing. Raise an error for any that cannot be."""
    if isinstance(length, Mapping):
        if not length:
            raise ValueError("`pack` needs the length of a row for at least one feature, got none.")
        length = {str(name): checks.positive(size, f"The length of rows of {name!r}") for name, size in length.items()}
    else:
        length = checks.positive(length, "The length of a row")
    checks.choice(strategy, STRATEGIES, "strategy")
    if strategy == "concat_split":
        checks.unused({"window": window != 64}, 'with "concat_split", which fills one row at a time', "Leave it out")
    if max_sequences is not None:
        max_sequences = checks.positive(max_sequences, "max_sequences")
        if strategy == "concat_split":
            raise ValueError('max_sequences does not go with strategy="concat_split", which fills every row.')
    if seed is not None:
        seed = checks.seed(seed, below=shuffle.SEED_LIMIT)
    return PackOptions(length, strategy, checks.positive(window, "window"), seed, max_sequences)


@dataclasses.dataclass(frozen=True, eq=False)
class RowPlan:
    """All pieces of all rows, row by row: from which element, from where in it, how much of it, where it goes."""

    edges: np.ndarray
    """The pieces of row n are [edges[n], edges[n + 1])."""
    elements: np.ndarray
    segments: np.ndarray
    starts: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    """The last three have an entry per piece and feature."""
    lengths: np.ndarray
    """How long the elements are that the pieces are of, for each feature."""


def plan_rows(lengths: np.ndarray, options: PackOptions) -> RowPlan:
    """Decide where sequences go. `lengths` has the shape (sequences, features)."""
    capacities = list(options.capacities.values())
    order = np.arange(len(lengths))
    if options.seed is not None and len(lengths):
        order = shuffle.permute(order, length=len(lengths), seed=options.seed)
        lengths = lengths[order]
    if options.strategy == "concat_split":
        cut = packing.concat_split(lengths, capacities)
        placed, sequences, offsets, sizes = cut, cut.sequences, cut.offsets, cut.sizes
    else:
        placed = packing.fit(lengths, capacities, options.window, strategy=options.strategy, most=options.max_sequences)
        sequences, offsets, sizes = np.arange(len(lengths)), np.zeros_like(lengths), lengths
    by_row = np.argsort(placed.rows, kind="stable")
    count = int(placed.rows.max()) + 1 if len(placed.rows) else 0
    edges = np.searchsorted(placed.rows[by_row], np.arange(count + 1))
    return RowPlan(
        edges,
        order[sequences][by_row],
        placed.segments[by_row].astype(np.int32),
        *(_narrow(array[by_row]) for array in (placed.starts, offsets, sizes, lengths[sequences])),
    )


def _narrow(array: np.ndarray) -> np.ndarray:
    """As int32 where all numbers fit: plans are kept in memory and sent to workers."""
    return array.astype(np.int32) if not array.size or array.max() < 1 << 31 else array


@in_states("pack_rows", {"row_plan": "pieces"})
@dataclasses.dataclass(frozen=True, eq=False)
class PackedRows(OneParentMap):
    """Rows of fixed length made of the sequences of one epoch of the parent."""

    options: PackOptions
    row_plan: RowPlan
    digest: str
    """Of the lengths. The plan follows from the lengths and the options."""

    def find_length(self) -> int:
        return len(self.row_plan.edges) - 1

    @functools.cached_property
    def fan_in(self) -> int:  # type: ignore[override]
        return max(1, len(self.row_plan.elements) // max(1, self.length)) * self.parent.fan_in

    @property
    def in_place(self) -> InPlace:
        return InPlace.AS_COLUMNS

    @property
    def efficiency(self) -> dict[str, float]:
        """Which part of all cells holds a token, for each feature."""
        cells = np.array(list(self.options.capacities.values())) * max(1, self.length)
        held = self.row_plan.sizes.sum(axis=0, dtype=np.int64)
        return dict(zip(self.options.capacities, (held / cells).tolist(), strict=True))

    def plan(self, indices: np.ndarray) -> Plan:
        edges, pieces, elements = self._pieces_of(indices)
        # A long sequence may fill several rows in turn: it is read once for all of them.
        fresh = np.ones(len(elements), dtype=bool)
        np.not_equal(elements[1:], elements[:-1], out=fresh[1:])
        features = [_Feature.of(self, number, edges, pieces) for number in range(len(self.options.capacities))]
        return _Packed(self, indices, edges, features, np.cumsum(fresh) - 1, self.parent.plan(elements[fresh]))

    def made_of(self, indices: np.ndarray) -> MadeOf:
        edges, _, elements = self._pieces_of(indices)
        return made_of_several(edges, elements)

    def _pieces_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return where each row begins among the pieces of all of them, these pieces, and the elements they are of."""
        epoch, row = epochs.split(indices, self.length, to=self.parent.length)
        first = self.row_plan.edges[row]
        sizes = self.row_plan.edges[row + 1] - first
        edges, pieces = epochs.ranges(first, sizes)
        return edges, pieces, self.row_plan.elements[pieces] + np.repeat(epoch * self.parent.length, sizes)

    def element_spec(self) -> Any:
        spec = self.parent.element_spec()
        rows: dict[str, Any] = {}
        for name, length in self.options.capacities.items():
            leaf = spec if isinstance(self.options.length, int) else spec[name]
            rows[name] = ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype)
        for name, length in self.options.capacities.items():
            rows[f"{name}_segment_ids"] = rows[f"{name}_positions"] = ShapeDtypeStruct((length,), np.int32)
        return rows

    def parameters(self) -> dict[str, Any]:
        return {**vars(self.options), "lengths": self.digest}

    def call(self) -> str:
        options = self.options
        length = options.length if isinstance(options.length, int) else dict(options.length)
        seed = "" if options.seed is None else f", seed={options.seed}"
        full = min(self.efficiency.values())
        return f"pack({length}, {options.strategy}{seed}: {self.length} rows, {full:.1%} full)"


def find_efficiency(rows: MapNode) -> dict[str, float]:
    """For each feature of packed rows, the share of all cells that hold a token."""
    while not isinstance(rows, PackedRows):  # repeated without end
        (rows,) = rows.parents
    return rows.efficiency


@dataclasses.dataclass(slots=True)
class _Feature:
    """The rows of a plan in one feature, as runs: the pieces of a row, then its gap, then the next row."""

    name: str
    length: int
    lengths: np.ndarray
    offsets: np.ndarray
    ends: np.ndarray
    """How long the sequences are that pieces are of, and where in them pieces begin and end: an entry per piece."""
    whole: bool
    """Whether all pieces are whole sequences."""
    edges: np.ndarray
    """The runs of row n are [edges[n], edges[n + 1])."""
    runs: np.ndarray
    begins: np.ndarray
    numbers: np.ndarray
    """How long each run is, minus the cell of its row where it begins, which sequence of the row it is (0: a gap)."""

    @classmethod
    def of(cls, node: PackedRows, number: int, edges: np.ndarray, pieces: np.ndarray) -> _Feature:
        name, length = list(node.options.capacities.items())[number]
        plan, rows = node.row_plan, len(edges) - 1
        sizes, starts = plan.sizes[pieces, number], plan.starts[pieces, number]
        lengths, offsets = plan.lengths[pieces, number], plan.offsets[pieces, number]
        runs_of_pieces = np.arange(len(pieces)) + np.repeat(np.arange(rows), np.diff(edges))
        last = edges[1:] - 1
        gaps = edges[1:] + np.arange(rows)
        runs = np.empty(len(pieces) + rows, dtype=np.int64)
        begins, numbers = np.zeros((2, len(runs)), dtype=np.int32)
        runs[runs_of_pieces], runs[gaps] = sizes, length - starts[last] - sizes[last]
        begins[runs_of_pieces], numbers[runs_of_pieces] = -starts, plan.segments[pieces]
        whole = bool((sizes == lengths).all())
        return cls(
            name, length, lengths, offsets, offsets + sizes, whole, edges + np.arange(rows + 1), runs, begins, numbers
        )

    def tokens(self, entries: list[Any], which: np.ndarray, first: int, end: int) -> list[np.ndarray]:
        """Return pieces [first, end). Several may be of one entry: `which` says of which entry each is.

        Raises RowFailed, with the number of the piece as its row, where an entry is not as long as was planned.
        """
        if isinstance(entries, Sequences):
            have = entries.lengths
        else:
            if set(map(type, entries)) != {np.ndarray}:
                entries = list(map(as_sequence, entries))
            have = np.fromiter(map(len, entries), np.int64, len(entries))
        if len(entries) < end - first:
            entries, have = [entries[n] for n in which.tolist()], have[which]
        expected = self.lengths[first:end]
        if not (have == expected).all():
            wrong = int((have != expected).argmax())
            sentence = (
                f"{self.name} has {have[wrong]} entries, and rows were planned for {expected[wrong]}. Lengths must be "
                "those of the very elements that are packed: compute the column on this dataset."
            )
            raise RowFailed(first + wrong, ValueError(sentence))
        if self.whole:
            return entries
        cuts = zip(entries, self.offsets[first:end].tolist(), self.ends[first:end].tolist(), strict=True)
        return [sequence[begin:stop] for sequence, begin, stop in cuts]

    def rows(self, tokens: list[np.ndarray], low: int, high: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows [low, high) with these pieces, the numbers of their segments, and positions in these."""
        edges = self.edges[low : high + 1] - self.edges[low]
        here = slice(self.edges[low], self.edges[high])
        runs, shape = self.runs[here], (high - low, self.length)
        gaps = runs[edges[1:] - 1].tolist()
        like = tokens[0]
        pad = np.zeros((max(gaps), *like.shape[1:]), like.dtype)
        runs_of_tokens: list[np.ndarray] = []
        first = 0
        for row, (end, gap) in enumerate(zip(edges[1:].tolist(), gaps), start=1):
            runs_of_tokens += tokens[first : end - row]
            runs_of_tokens.append(pad[:gap])
            first = end - row
        filled = memory.output((*shape, *like.shape[1:]), like.dtype)
        np.concatenate(runs_of_tokens, out=filled.reshape(-1, *like.shape[1:]), casting="unsafe")
        positions = np.repeat(self.begins[here], runs).reshape(shape)
        positions += _count_up(self.length)
        for row, gap in enumerate(gaps):
            positions[row, self.length - gap :] = 0
        return filled, np.repeat(self.numbers[here], runs).reshape(shape), positions


@dataclasses.dataclass(slots=True)
class _Packed(Plan):
    node: PackedRows
    indices: np.ndarray
    edges: np.ndarray
    features: list[_Feature]
    reads: np.ndarray
    """For each piece, which element of the parent's plan it is of."""
    parent: Plan

    def read(self, low: int, high: int, private: bool) -> Block:
        first, end = int(self.edges[low]), int(self.edges[high])
        read = int(self.reads[first])
        bare = isinstance(self.node.options.length, int)
        names: tuple[str | None, ...] = (None,) if bare else tuple(feature.name for feature in self.features)
        try:
            entries = memory.call_apart(self.parent.entries, read, int(self.reads[end - 1]) + 1, names)
        except RowFailed as failed:
            piece = int(np.searchsorted(self.reads, read + failed.row))
            raise RowFailed(self._find_row(piece) - low, failed.error) from failed.error
        which = self.reads[first:end] - read
        try:
            tokens = [
                feature.tokens(some, which, first, end) for feature, some in zip(self.features, entries, strict=True)
            ]
        except RowFailed as failed:  # its row is a piece
            row = self._find_row(failed.row)
            where = self.node.describe_failure(int(self.indices[row]))
            raise RowFailed(row - low, locate_error(failed.error, where)) from None
        if all(map(_have_one_kind, tokens)):
            return self._columns(tokens, low, high)
        # Sequences of several kinds: a row is like its first one, whatever rows it is made together with.
        rows = []
        for row in range(low, high):
            begin, stop = int(self.edges[row]) - first, int(self.edges[row + 1]) - first
            rows.extend(self._columns([some[begin:stop] for some in tokens], row, row + 1).rows())
        return rows

    def _find_row(self, piece: int) -> int:
        return int(np.searchsorted(self.edges, piece, side="right")) - 1

    def _columns(self, tokens: list[list[np.ndarray]], low: int, high: int) -> Columns:
        data: dict[str, np.ndarray] = {}
        numbered: dict[str, np.ndarray] = {}
        for feature, some in zip(self.features, tokens, strict=True):
            name = feature.name
            data[name], numbered[f"{name}_segment_ids"], numbered[f"{name}_positions"] = feature.rows(some, low, high)
        return Columns(data | numbered, high - low)


@functools.lru_cache(maxsize=4)
def _count_up(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def _have_one_kind(sequences: list[np.ndarray]) -> bool:
    """Return whether sequences have one dtype, and one shape from the second axis on."""
    if isinstance(sequences, Sequences):
        return True
    kinds = set(map(operator.attrgetter("dtype", "ndim"), sequences))
    if len(kinds) > 1:
        return False
    return kinds.pop()[1] == 1 or len({sequence.shape[1:] for sequence in sequences}) == 1


@dataclasses.dataclass(frozen=True)
class BucketOptions:
    """How elements are put into buckets, and buckets into batches."""

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    seed: int
    drop_remainder: bool = False
    features: tuple[str, ...] | None = None
    padding: Any = 0
    batch_fn: BatchFn | None = None


@in_states("bucket")
@dataclasses.dataclass(frozen=True, eq=False)
class Bucket(Batches):
    """Batches whose elements are all of one bucket, in an order of their own in every epoch."""

    options: BucketOptions
    digest: str
    """Of the lengths."""
    counts: tuple[int, ...]
    """How many elements each bucket has. They are as many in every epoch, since all epochs have the same records."""
    orders: EpochTables
    """For each epoch, its elements by bucket."""
    lengths: Callable[[int], np.ndarray]
    """For each epoch, the lengths of its elements."""

    no_spec = "Batches of several buckets have several shapes: each its own boundary."

    def find_length(self) -> int:
        return len(self._batches[0])

    @property
    def fan_in(self) -> int:
        return max(self.options.batch_sizes) * self.parent.fan_in

    @property
    def epochs(self) -> Epochs:
        return Epochs.SHUFFLED if self.parent.epochs is Epochs.SAME else Epochs.DIFFERENT

    @functools.cached_property
    def _batches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First place of each batch among the elements sorted by bucket, its size, and its bucket."""
        options = self.options
        by_bucket = []
        begin = 0
        for bucket, (count, size) in enumerate(zip(self.counts, options.batch_sizes, strict=True)):
            starts = np.arange(begin, begin + (count // size * size if options.drop_remainder else count), size)
            sizes = np.minimum(size, begin + count - starts)
            by_bucket.append((starts, sizes, np.full(len(starts), bucket)))
            begin += count
        starts, sizes, buckets = (np.concatenate(arrays) for arrays in zip(*by_bucket, strict=True))
        return starts, sizes, buckets

    def members_of(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, Sequence[int]]:
        shuffled = shuffle.shuffle(indices, length=self.length, seed=self.options.seed)
        epoch, batch = epochs.split(shuffled, self.length, to=self.parent.length)
        first, sizes, buckets = (array[batch] for array in self._batches)
        edges, positions = epochs.ranges(first, sizes)
        epoch = np.repeat(epoch, sizes)
        positions = pick_by_epoch(epoch, positions, lambda number, some: self.orders(number)[some])
        return edges, positions + epoch * self.parent.length, buckets.tolist()

    def make(self, block: Block, kind: int) -> Any:
        options, rows = self.options, blocks.rows_of(block)
        if options.batch_fn is not None:
            return options.batch_fn(rows)
        fill = functools.partial(_stack, length=options.boundaries[kind], padding=options.padding)
        if options.features is None:
            return fill(rows)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return {n: fill(column) if n in options.features else blocks.stack(column) for n, column in columns.items()}

    def full_size(self, kind: int) -> int:
        return self.options.batch_sizes[kind]

    def count_cells(self, epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """For each bucket, how many cells of its batches hold data, by the lengths of the elements; and all cells."""
        starts, sizes, buckets = self._batches
        sums = np.concatenate([[0], np.cumsum(self.lengths(epoch)[self.orders(epoch)], dtype=np.int64)])
        real, cells = np.zeros((2, len(self.counts)), np.int64)
        np.add.at(real, buckets, sums[starts + sizes] - sums[starts])
        np.add.at(cells, buckets, sizes * np.array(self.options.boundaries)[buckets])
        return real, cells

    @property
    def batch_function(self) -> BatchFn | None:
        return self.options.batch_fn

    def parameters(self) -> dict[str, Any]:
        return {**vars(self.options), "lengths": self.digest}

    def call(self) -> str:
        return f"bucket({list(self.options.boundaries)}, {list(self.options.batch_sizes)}, seed={self.options.seed})"


def put_into_buckets(node: MapNode, column: Column, options: BucketOptions) -> Bucket:
    """Return batches of the elements of a node by their lengths, which are the values of `column`."""
    # Tables of later epochs, too, are made from the node that the column was computed on: the pipeline's may be a copy.
    lengths = functools.partial(column._of_epoch, node)
    find_buckets = functools.partial(_find_buckets, lengths, options.boundaries)
    counts = np.bincount(find_buckets(0), minlength=len(options.boundaries)).tolist()
    orders = EpochTables(functools.partial(_sort_by_bucket, find_buckets), one_for_all=node.epochs is Epochs.SAME)
    return Bucket(node, options, column._digest, tuple(counts), orders, lengths)


def _find_buckets(lengths: Callable[[int], np.ndarray], boundaries: tuple[int, ...], epoch: int) -> np.ndarray:
    return np.searchsorted(boundaries, lengths(epoch))


def _sort_by_bucket(find_buckets: Callable[[int], np.ndarray], epoch: int) -> np.ndarray:
    return np.argsort(find_buckets(epoch), kind="stable")


def _stack(rows: list[Any], length: int, padding: Any) -> Any:
    """Return stack rows; the first axis of each leaf is padded to `length`."""
    parts = trees.gather_children(rows)
    if parts is not None:
        return parts[1](_stack(column, length, padding) for column in parts[0])
    if not all(isinstance(row, np.ndarray) and row.ndim for row in rows):
        return blocks.stack(rows)
    longest = max(map(len, rows))
    if longest > length:
        raise ValueError(
            f"An array with {longest} entries is in the bucket of lengths up to {length}. Name in `features` what has "
            "the length of the column, and compute the column on the very elements that are bucketed."
        )
    out = memory.output((len(rows), length, *rows[0].shape[1:]), np.result_type(*rows))
    out[...] = padding
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
        if row.dtype != out.dtype and not exact_values.same_values(out[place, : len(row)], row):
            raise ValueError(
                f"Arrays of {row.dtype} and of other dtypes become {out.dtype} in one batch, which changes values of "
                f"element {place} of the batch. Give all elements one dtype before `bucket`."
            )
    return out


def check_sizes(boundaries: Sequence[int], batch_sizes: int | Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return boundaries that grow and a batch size for each of them. Raise for any others."""
    bounds = tuple(checks.positive(boundary, "A boundary of a bucket") for boundary in boundaries)
    if not bounds or any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValueError(f"Boundaries of buckets must grow, and there must be one, got {list(bounds)}.")
    sizes = [batch_sizes] * len(bounds) if isinstance(batch_sizes, int) else list(batch_sizes)
    if len(sizes) != len(bounds):
        raise ValueError(f"{len(bounds)} buckets need {len(bounds)} batch sizes, got {len(sizes)}: {sizes}.")
    return bounds, tuple(checks.positive(size, "A batch size") for size in sizes)
