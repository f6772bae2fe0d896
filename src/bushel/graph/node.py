"""The contract of map nodes: plan indices first, then take blocks of what was planned.

`plan(indices)` does all index arithmetic at once and reads nothing. `take(low, high)` of the plan reads and runs
user functions for just these rows. So arithmetic can run ahead while the user's code never does.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bushel.base.blocks import Block, Columns, rows_of
from bushel.base.errors import RowFailed, located
from bushel.index import seeds, words


class Plan(abc.ABC):
    """Some elements of a node, planned and not yet read."""

    @abc.abstractmethod
    def take(self, low: int, high: int) -> Block:
        """Reads rows [low, high) of the plan. May be called from several threads.

        The rows are the caller's own: a user's function may write into them. Raises RowFailed, with the row counted
        from `low`, where a record cannot be read or a user's function fails.
        """

    def look(self, low: int, high: int) -> Block:
        """Like `take`, for a caller that only reads the rows and then drops them, such as one that stacks a batch.

        Rows of a list may belong to somebody else, such as a source. Columns are the caller's own, as with `take`.
        """
        return self.take(low, high)

    def entries(self, low: int, high: int, names: tuple[str | None, ...]) -> list[list[Any]]:
        """For each name the entries of that name of rows [low, high); for None the rows themselves.

        For one who only looks and keeps nothing: arrays may belong to the source.
        """
        rows = rows_of(self.take(low, high))
        return [rows if name is None else [row[name] for row in rows] for name in names]


def take_in_order(take: Callable[[int, int], Block], low: int, high: int) -> Block:
    """`take(low, high)` of a plan. If rows fail, the error is that of the first of them.

    Operations work on whole blocks, one operation after the other. So the first that fails in a block need not have
    failed at the first row that fails: the rows before it are taken again one by one, which tells.
    """
    try:
        return take(low, high)
    except RowFailed as failed:
        for row in range(low, low + failed.row):
            try:
                take(row, row + 1)
            except RowFailed as earlier:
                raise RowFailed(row - low, earlier.error) from earlier.error
        raise


@dataclasses.dataclass(slots=True)
class Reckoned(Plan):
    """Elements that are numbers and follow from their indices by arithmetic: known when they are planned."""

    values: np.ndarray | dict[str, np.ndarray]
    """Numbers; or several of each element, for a function that only looks at them."""

    def take(self, low: int, high: int) -> Block:
        if isinstance(self.values, np.ndarray):
            return Columns(self.values[low:high].copy(), high - low)
        return Columns({name: column[low:high] for name, column in self.values.items()}, high - low)


class InTwoSteps(abc.ABC):
    """A vectorized function that reckons first and reads then. Reckoning is done when elements are planned, for many
    of them at once, where what it is given is known by then.
    """

    @abc.abstractmethod
    def ahead(self, values: Any) -> dict[str, np.ndarray]:
        """What `after` needs to know of each element: arrays by name, made by arithmetic alone."""

    @abc.abstractmethod
    def after(self, known: Any) -> Any:
        """The elements themselves. What is known stays as it is: it is shared by all rows that were planned."""

    def __call__(self, values: Any) -> Any:
        return self.after(self.ahead(values))


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where elements come from: `indices` of a source, as it reads in messages."""

    source: str
    indices: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'record' if len(self.indices) == 1 else 'records'} {_listed(self.indices)} of {self.source}"


class Epochs(enum.IntEnum):
    """How the epochs of a node compare, by the records they are made of. The weaker of two is their `min`."""

    DIFFERENT = 0  # an epoch may have other records than the one before
    SHUFFLED = 1  # the same records, each epoch in an order of its own
    SAME = 2  # the same records in the same order


class InPlace(enum.Enum):
    """Whether elements may lie where results do from their beginning, in memory that is written again later.

    They may if they are made with `memory.output` of what was taken `memory.apart`: then no function of the user's
    sees them, and no cache keeps them.
    """

    NEVER = enum.auto()
    AS_ROWS = enum.auto()  # one by one
    AS_COLUMNS = enum.auto()  # many as one array, which a batch only cuts


MadeOf = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of what some elements are made: (which of them, which parent, position in that parent), one line per part."""


class Node(abc.ABC):
    """What map nodes and stream nodes share: parents, a place in the pipeline, a name."""

    @property
    @abc.abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The nodes this one draws from."""

    @abc.abstractmethod
    def call(self) -> str:
        """The node as the user wrote it, e.g. `batch(128, drop_remainder=True)`."""

    @abc.abstractmethod
    def element_spec(self) -> Any:
        """A tree of ShapeDtypeStruct, known without reading; an error says why where it is not known."""

    @property
    def seed_for_children(self) -> int | None:
        """The seed set by this very node, for operations after it."""
        return None

    @property
    def seeded_by(self) -> tuple[Node, ...]:
        """The nodes whose seeds reach the operations after this one."""
        return self.parents

    @property
    def transparent(self) -> bool:
        """Whether this node says only how its parent runs: it is no part of what the pipeline is."""
        return False

    @property
    def takes_a_place(self) -> bool:
        """Whether it counts where seeds follow from places."""
        return not self.transparent

    @property
    def joins(self) -> bool:
        """Whether this node draws from several others, or could: it then reads as `mix([...])`."""
        return False

    @property
    def own_class(self) -> type | None:
        """The user's class that this node stands for, where its code is part of what the node is."""
        return None

    def parameters(self) -> dict[str, Any]:
        """What tells this node from another of its kind, parents and options of running apart."""
        if not dataclasses.is_dataclass(self):
            return {}
        fields = [field for field in dataclasses.fields(self) if field.metadata.get("identity", True)]
        own = {field.name: getattr(self, field.name) for field in fields}
        return {name: value for name, value in own.items() if not _is_structure(value)}

    @property
    def sparse(self) -> bool:
        """Whether elements may be missing because an operation here or above drops some."""
        return any(parent.sparse for parent in self.parents)


def _is_structure(value: Any) -> bool:
    return isinstance(value[0] if isinstance(value, tuple) and value else value, Node)


class MapNode(Node):
    """A node whose elements are a function of their index. Epoch n is the indices [n * length, (n + 1) * length)."""

    @property
    @abc.abstractmethod
    def parents(self) -> tuple[MapNode, ...]: ...

    @property
    @abc.abstractmethod
    def length(self) -> int:
        """Elements of one epoch; INFINITE for an endless node."""

    @abc.abstractmethod
    def plan(self, indices: np.ndarray) -> Plan:
        """Plans the elements at `indices` (int64, any order, any epoch)."""

    def made_of(self, indices: np.ndarray) -> MadeOf:
        """Of which elements of the parents the ones at `indices` are made, by arithmetic alone; a leaf of none."""
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing

    def origins(self, index: int) -> tuple[Origin, ...]:
        """Which source records make up the element at `index`, by arithmetic alone."""
        _, which, positions = self.made_of(words.array([index]))
        parts = zip(which.tolist(), positions.tolist(), strict=True)
        found = tuple(origin for part, position in parts for origin in self.parents[part].origins(position))
        return merged(found) if len(self.parents) == 1 and len(which) > 1 else found

    @property
    def one_to_one(self) -> bool:
        """Whether each element is made of exactly one element of one parent."""
        return self.moves

    @property
    def moves(self) -> bool:
        """Whether its elements are those of its parents, elsewhere."""
        return False

    @property
    def epochs(self) -> Epochs:
        """How epochs compare, by the records they are made of."""
        return Epochs.DIFFERENT

    @property
    def in_place(self) -> InPlace:
        """Whether its elements may be made where results lie."""
        return InPlace.NEVER

    @property
    def pure(self) -> bool:
        """Whether an element is a function of what it is made of: not of its index, not of chance."""
        return True

    @property
    def fan_in(self) -> int:
        """How many source records one element is made of, roughly: decides how far a plan reaches ahead."""
        return max((parent.fan_in for parent in self.parents), default=1)

    def take(self, indices: np.ndarray) -> Block:
        """The elements at `indices`, as a block. Raises RowFailed for the first that fails."""
        return take_in_order(self.plan(indices).take, 0, len(indices))


def one_each(indices: np.ndarray) -> MadeOf:
    """What elements are made of where each is made of the one parent's element at the same index."""
    rows = np.arange(len(indices))
    return rows, np.zeros_like(rows), indices


def default_seed(nodes: tuple[Node, ...], depth: int = 1) -> int | None:
    """The seed that an operation below `nodes` gets from the seeds set above it; None where there is none.

    Breadth first, so that the seed depends on the shape of the pipeline alone; a path ends at its first seed.
    """
    found: list[tuple[int, int]] = []
    queue: list[tuple[Node, int]] = [(node, depth) for node in nodes]
    for node, depth in queue:  # the queue grows while it is read
        while not node.takes_a_place:
            (node,) = node.parents
        seed = node.seed_for_children
        if seed is not None:
            found.append((seed, depth))
        else:
            queue.extend((parent, depth + 1) for parent in node.seeded_by)
    return seeds.derive(found) if found else None


def opaque(node: Node) -> Node:
    """The node itself, or the one whose running it describes."""
    while node.transparent:
        (node,) = node.parents
    return node


def rewired(node: Node, change: Callable[[Node], Node]) -> Any:
    """A copy of a node that draws from `change` of its parents; what a user's own dataset draws from stays."""
    if not dataclasses.is_dataclass(node):
        return node
    fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.init}
    parents = {name: _changed(value, change) for name, value in fields.items() if _is_structure(value)}
    return dataclasses.replace(node, **parents)


def _changed(value: Any, change: Callable[[Node], Node]) -> Any:
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)


def each(
    function: Callable[[Any], Any], rows: list[Any], where: Callable[[int], str], *, also_none: bool = False
) -> list[Any]:
    """`function` of every row that is there; a failure becomes a RowFailed that says `where(row)`."""
    count = len(rows)
    left: Iterator[Any] = iter(rows)
    del rows  # once they are used up, nobody holds them here: `ownership.own` may have to count who does
    try:
        if also_none:
            return [function(row) for row in left]
        return [None if row is None else function(row) for row in left]
    except RowFailed:
        raise
    except Exception as error:
        # How far the iterator got tells the row, at no cost per row.
        row = count - operator.length_hint(left) - 1
        raise RowFailed(row, located(error, where(row))) from error


def told(what: str, index: int | list[int], origins: tuple[Origin, ...]) -> str:
    """The note on an error: which transformation, at which of its elements, made of which records."""
    made_of = "; ".join(map(str, origins))
    numbers = [index] if isinstance(index, int) else index
    at = f"its element {numbers[0]}" if len(numbers) == 1 else f"one of its elements {_listed(numbers)}"
    return f"bushel: {what} failed at {at}" + (f", made of {made_of}." if made_of else ".")


def merged(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """Origins with one entry per source."""
    found: dict[str, tuple[int, ...]] = {}
    for origin in origins:
        found[origin.source] = found.get(origin.source, ()) + origin.indices
    return tuple(Origin(source, indices) for source, indices in found.items())


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
