"""The contract of map nodes: plan indices first, then read blocks of what was planned.

`plan(indices)` does all index arithmetic at once and reads nothing. `read(low, high)` of the plan reads and runs the
user's functions for just these rows. So arithmetic can run ahead of the consumer while the user's code never does.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from bushel._src.base import rng
from bushel._src.base.blocks import Block, Columns, rows_of
from bushel._src.base.errors import RowFailed, locate_error
from bushel._src.base.state_names import overridable
from bushel._src.index import epochs


class Plan(abc.ABC):
    """Some elements of a node: their indices are worked out, and they are not read yet."""

    @abc.abstractmethod
    def read(self, low: int, high: int, private: bool) -> Block:
        """Read rows [low, high) of the plan. Several threads may call it at once.

        Raises RowFailed, with the row counted from `low`, where a record cannot be read or a user's function fails.

        Args:
          low: the first row.
          high: the row after the last.
          private: whether rows of a list must belong to the caller, so that a user's function may write into them.
            Otherwise the caller only reads the rows and then drops them, and a row may belong to a source that never
            changes it. Columns belong to the caller in both cases.
        """

    def take(self, low: int, high: int) -> Block:
        """Read rows [low, high) for a caller that may write into them."""
        return self.read(low, high, True)

    def look(self, low: int, high: int) -> Block:
        """Read rows [low, high) for a caller that only reads them, such as one that stacks a batch."""
        return self.read(low, high, False)

    @overridable
    def entries(self, low: int, high: int, names: tuple[str | None, ...]) -> list[list[Any]]:
        """For each name, the entries of that name in rows [low, high); for None, the rows themselves.

        The caller only reads them and keeps nothing: arrays may belong to the source.
        """
        rows = rows_of(self.look(low, high))
        return [rows if name is None else [row[name] for row in rows] for name in names]


def take_in_order(read: Callable[[int, int], Block], low: int, high: int) -> Block:
    """Return `read(low, high)` of a plan. If rows fail, the error is that of the first row that fails.

    Operations run on whole blocks, one operation after the other. An early operation that fails at row 7 hides a later
    one that would fail at row 3. So the rows before the failed one are read again, one by one.
    """
    try:
        return read(low, high)
    except RowFailed as failed:
        for row in range(low, low + failed.row):
            try:
                read(row, row + 1)
            except RowFailed as earlier:
                raise RowFailed(row - low, earlier.error) from earlier.error
        raise


def raise_for_row(
    error: Exception, count: int, left: Iterator[Any] | list[Any], where: Callable[[int], str]
) -> NoReturn:
    """Raise the RowFailed for an error in a loop over `count` rows, of which `left` has the rest.

    The row that failed follows from how many rows are left. So the loop itself need not count rows.
    """
    if isinstance(error, RowFailed):
        raise error
    row = count - operator.length_hint(left) - 1
    raise RowFailed(row, locate_error(error, where(row))) from error


def call_for_each(function: Callable[[int], Any], numbers: list[int], what: str) -> list[Any]:
    """Return `function(number)` for each number, where the user's function chooses elements; RowFailed says `what`
    failed.
    """
    left = iter(numbers)
    try:
        return [function(number) for number in left]
    except Exception as error:
        raise_for_row(error, len(numbers), left, lambda row: describe_failure(what, numbers[row], ()))


@dataclasses.dataclass(slots=True)
class Computed(Plan):
    """Elements that are numbers and follow from their indices by arithmetic, so that the plan holds them already."""

    values: np.ndarray | dict[str, np.ndarray]
    """Numbers; or several arrays by name, for a function that only reads them."""

    def read(self, low: int, high: int, private: bool) -> Block:
        if isinstance(self.values, np.ndarray):
            return Columns(self.values[low:high].copy(), high - low)
        return Columns({name: column[low:high] for name, column in self.values.items()}, high - low)


class InTwoSteps(abc.ABC):
    """A vectorized function that first computes what to read and then reads it.

    Where its input is known when elements are planned, the first step runs then, for many elements at once.
    """

    @abc.abstractmethod
    def ahead(self, values: Any) -> dict[str, np.ndarray]:
        """Return the first step: arrays by name, one entry per element, computed without reading."""

    @abc.abstractmethod
    def after(self, known: Any) -> Any:
        """Return the second step: the elements. It must not write into `known`, which all rows of a plan share."""

    @property
    @abc.abstractmethod
    def makes_new_arrays(self) -> bool:
        """Whether `after` returns new NumPy arrays only, each with one entry per element. They need no checks then."""

    def __call__(self, values: Any) -> Any:
        return self.after(self.ahead(values))


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where elements come from: `indices` of a source, as it reads in messages."""

    source: str
    indices: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'record' if len(self.indices) == 1 else 'records'} {_list_numbers(self.indices)} of {self.source}"


class Epochs(enum.IntEnum):
    """How the epochs of a node compare, by the records they are made of. The weaker of two is their `min`."""

    DIFFERENT = 0  # an epoch may have other records than the one before
    SHUFFLED = 1  # the same records, each epoch in an order of its own
    SAME = 2  # the same records in the same order

    def after_cutting(self) -> Epochs:
        """Return how epochs compare after each was cut by position: sections of shuffled epochs have different
        records.
        """
        return self if self is Epochs.SAME else Epochs.DIFFERENT


class InPlace(enum.Enum):
    """Whether a node may write its elements straight into the memory of results, which is used again later.

    It may if it allocates them with `memory.output` and reads its own input inside `memory.apart`: then no function of
    the user's sees that memory, and no cache keeps it.
    """

    NEVER = enum.auto()
    AS_ROWS = enum.auto()  # one by one
    AS_COLUMNS = enum.auto()  # many as one array, which a batch only cuts


FindMany = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Finds positions for many nodes at once: (which node, index in it) -> position in the parent of that node."""

PlanMany = Callable[[np.ndarray, np.ndarray], Plan]
"""Plans elements of many nodes at once: (which node, index in it) -> a plan of all of them, in order."""

MadeOf = tuple[np.ndarray, np.ndarray, np.ndarray]
"""What some elements are made of: (which element, which parent, position in that parent), one entry per part."""


class Node(abc.ABC):
    """What map nodes and stream nodes share: parents, a place in the pipeline, a name."""

    transparent: ClassVar[bool] = False
    """Whether this node only says how its parent runs. It is then no part of the pipeline's identity."""

    moves: ClassVar[bool] = False
    """Whether its elements are those of its parents, at other indices. A map node is then `one_to_one` too."""

    counts_for_seeds: ClassVar[bool] = True
    """Whether this node counts where an operation's seed is derived from its place in the pipeline."""

    @property
    @abc.abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The nodes this one draws from."""

    @abc.abstractmethod
    def call(self) -> str:
        """Return the node as the user wrote it, e.g. `batch(128, drop_remainder=True)`."""

    @overridable
    def describe(self) -> str:
        """Return the node as it reads in an error message; by default as the user wrote it."""
        return self.call()

    no_spec: ClassVar[str] = ""
    """Why the shapes of the elements are not known without reading one; empty where they are known."""

    @overridable
    def element_spec(self) -> Any:
        """Return a tree of ShapeDtypeStruct, known without reading; by default that of the first parent.

        Raises an error that says why where shapes are not known.
        """
        if self.no_spec:
            raise NotImplementedError(self.no_spec)
        return self.parents[0].element_spec()

    @property
    @overridable
    def seed_for_children(self) -> int | None:
        """The seed that this node sets for the operations after it; by default none."""
        return None

    @property
    @overridable
    def seeded_by(self) -> tuple[Node, ...]:
        """The nodes whose seeds reach the operations after this one; by default the parents."""
        return self.parents

    @property
    @overridable
    def joins(self) -> bool:
        """Whether this node reads as a call with a list of datasets, such as `mix([...])`; by default not."""
        return False

    @property
    @overridable
    def users_class(self) -> type | None:
        """The user's class that this node stands for, where its code is part of the identity; by default none."""
        return None

    @overridable
    def parameters(self) -> dict[str, Any]:
        """Return what distinguishes this node from another of its kind; by default its fields.

        Parents, and fields marked `identity=False` (options of running), are left out.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self) if dataclasses.is_dataclass(self) else ():
            value = getattr(self, field.name)
            if field.metadata.get("identity", True) and not _is_structure(value):
                values[field.name] = value
        return values


def _is_structure(value: Any) -> bool:
    return isinstance(value[0] if isinstance(value, tuple) and value else value, Node)


_is_sparse = operator.attrgetter("sparse")


class MapNode(Node):
    """A node whose elements are a function of their index. Epoch n is the indices [n * length, (n + 1) * length).

    A map node says how long an epoch is, how elements are planned, what they are made of and how epochs compare.
    """

    drops: ClassVar[bool] = False
    """Whether elements of this node may be missing although those of its parents are not."""

    one_to_one: ClassVar[bool] = False
    """Whether each element is made of exactly one element of one parent."""

    pure: ClassVar[bool] = True
    """Whether an element follows from what it is made of alone, and not from its index or from chance."""

    splits: ClassVar[bool] = False
    """Whether several elements are parts of one element of the parent. Those planned together compute it once."""

    @property
    @abc.abstractmethod
    def parents(self) -> tuple[MapNode, ...]: ...

    @abc.abstractmethod
    def find_length(self) -> int:
        """Return how many elements one epoch has; INFINITE for an endless node. It is asked once: see `length`."""

    @abc.abstractmethod
    def plan(self, indices: np.ndarray) -> Plan:
        """Plan the elements at `indices` (int64, any order, any epoch)."""

    @abc.abstractmethod
    def made_of(self, indices: np.ndarray) -> MadeOf:
        """Return which elements of the parents the ones at `indices` are made of, by arithmetic alone; none for a
        leaf.
        """

    @property
    @abc.abstractmethod
    def epochs(self) -> Epochs:
        """How epochs compare, by the records they are made of."""

    @classmethod
    @overridable
    def join_plans(cls, nodes: Sequence[Any]) -> PlanMany | None:
        """Return `plan` of many nodes of this class in one call; by default None: each node makes a plan of its own."""
        return None

    @overridable
    def origin(self, index: int) -> Origin:
        """Return the source record at `index`, for a node that is made of no others; by default named after the
        node.
        """
        return Origin(self.call(), (index % self.length,))

    @property
    @overridable
    def in_place(self) -> InPlace:
        """Whether this node may write its elements into the memory of results; by default never."""
        return InPlace.NEVER

    @property
    @overridable
    def fan_in(self) -> int:
        """How many source records one element is made of, roughly: a plan of many covers fewer elements.

        By default as many as an element of its parents.
        """
        return max((parent.fan_in for parent in self.parents), default=1)

    @functools.cached_property
    def length(self) -> int:
        """Elements of one epoch; INFINITE for an endless node."""
        return self.find_length()

    @functools.cached_property
    def sparse(self) -> bool:
        """Whether elements may be missing because this node or one above it drops some."""
        return self.drops or True in map(_is_sparse, self.parents)

    @functools.cached_property
    def has_splits(self) -> bool:
        """Whether this node or one above it makes several elements of one."""
        return self.splits or any(parent.has_splits for parent in self.parents)

    def origins(self, index: int) -> tuple[Origin, ...]:
        """Return which source records make up the element at `index`, by arithmetic alone."""
        rows, which, positions = self.made_of(epochs.array([index]))
        if not len(rows):
            return (self.origin(index),)
        parts = zip(which.tolist(), positions.tolist(), strict=True)
        origins = tuple(origin for part, position in parts for origin in self.parents[part].origins(position))
        return merge_origins(origins) if len(self.parents) == 1 and len(which) > 1 else origins

    def describe_failure(self, *indices: int) -> str:
        """Return the note on an error: this operation failed at its element `indices[0]`, or at one of several."""
        if len(indices) == 1:
            return describe_failure(self.describe(), indices[0], self.origins(indices[0]))
        origins = merge_origins(origin for index in indices for origin in self.origins(index))
        return describe_failure(self.describe(), list(indices), origins)

    def take(self, indices: np.ndarray) -> Block:
        """Return the elements at `indices`, as a block. Raise RowFailed for the first that fails."""
        return take_in_order(self.plan(indices).take, 0, len(indices))


class Leaf(MapNode):
    """A map node that draws from no other."""

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return ()

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return made_of_nothing()

    @property
    def epochs(self) -> Epochs:
        return Epochs.SAME


@dataclasses.dataclass(frozen=True, eq=False)
class OneParentMap(MapNode):
    """A map node that draws from one other. By default it has one element for each of the parent's."""

    parent: MapNode

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return (self.parent,)

    @overridable
    def find_length(self) -> int:
        """By default that of the parent."""
        return self.parent.length

    @overridable
    def made_of(self, indices: np.ndarray) -> MadeOf:
        """By default each element is made of the parent's element at the same index."""
        return made_of_one_each(indices)

    @property
    @overridable
    def epochs(self) -> Epochs:
        """By default as those of the parent."""
        return self.parent.epochs


class Moved(OneParentMap):
    """The parent's elements at other indices: a subclass says which."""

    one_to_one = True
    moves = True

    @abc.abstractmethod
    def find_positions(self, indices: np.ndarray) -> np.ndarray:
        """Return where in the parent the elements at `indices` are."""

    @classmethod
    @overridable
    def join_positions(cls, nodes: Sequence[Any]) -> FindMany | None:
        """Return `find_positions` of many nodes of this class in one call; by default None: each node is asked."""
        return None

    def plan(self, indices: np.ndarray) -> Plan:
        return self.parent.plan(self.find_positions(indices))

    def made_of(self, indices: np.ndarray) -> MadeOf:
        return made_of_one_each(self.find_positions(indices))

    @property
    def in_place(self) -> InPlace:
        return self.parent.in_place


class Transparent(OneParentMap):
    """A map node that says how its parent is read. It does not count for seeds, and reads as the parent in messages."""

    transparent = True
    counts_for_seeds = False
    one_to_one = True

    def call(self) -> str:
        return self.parent.call()


@dataclasses.dataclass(frozen=True, eq=False)
class SeveralParents(MapNode):
    """A map node that draws from several others."""

    parts: tuple[MapNode, ...]

    @property
    def parents(self) -> tuple[MapNode, ...]:
        return self.parts

    @property
    def joins(self) -> bool:
        return True


def made_of_nothing() -> MadeOf:
    """Return what elements are made of where they are made of no parent's elements."""
    none = np.zeros(0, dtype=np.int64)
    return none, none, none


def made_of_one_each(positions: np.ndarray) -> MadeOf:
    """Return what elements are made of where each is made of one element of the one parent."""
    rows = np.arange(len(positions))
    return rows, np.zeros_like(rows), positions


def made_of_several(edges: np.ndarray, positions: np.ndarray) -> MadeOf:
    """Return what elements are made of where element n is made of the one parent's `positions[edges[n]:edges[n +
    1]]`.
    """
    rows = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return rows, np.zeros_like(rows), positions


def default_seed(nodes: tuple[Node, ...], depth: int = 1) -> int | None:
    """Return the seed that an operation after `nodes` derives from the seeds set before it; None where none is set.

    The search goes breadth first, so that the seed depends on the shape of the pipeline alone. Each path ends at the
    first seed it meets.
    """
    set_before: list[tuple[int, int]] = []
    queue: list[tuple[Node, int]] = [(node, depth) for node in nodes]
    for node, depth in queue:  # the queue grows while it is read
        while not node.counts_for_seeds:
            (node,) = node.parents
        seed = node.seed_for_children
        if seed is not None:
            set_before.append((seed, depth))
        else:
            queue.extend((parent, depth + 1) for parent in node.seeded_by)
    return rng.derive(set_before) if set_before else None


def skip_transparent(node: Node) -> Node:
    """Return the node itself; for one that only says how its parent runs, that parent."""
    while node.transparent:
        (node,) = node.parents
    return node


def replace_parents(node: Node, change: Callable[[Node], Node]) -> Any:
    """Return a copy of a node that draws from `change(parent)` for each parent. A user's own dataset stays as it is."""
    if not dataclasses.is_dataclass(node):
        return node
    fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.init}
    parents = {
        name: tuple(map(change, value)) if isinstance(value, tuple) else change(value)
        for name, value in fields.items()
        if _is_structure(value)
    }
    return dataclasses.replace(node, **parents)


def describe_failure(what: str, index: int | list[int], origins: tuple[Origin, ...]) -> str:
    """Return the note on an error: which transformation failed, at which of its elements, made of which records."""
    made_of = "; ".join(map(str, origins))
    numbers = [index] if isinstance(index, int) else index
    at = f"its element {numbers[0]}" if len(numbers) == 1 else f"one of its elements {_list_numbers(numbers)}"
    return f"bushel: {what} failed at {at}" + (f", made of {made_of}." if made_of else ".")


def merge_origins(origins: Iterable[Origin]) -> tuple[Origin, ...]:
    """Return origins with one entry per source."""
    by_source: dict[str, tuple[int, ...]] = {}
    for origin in origins:
        by_source[origin.source] = by_source.get(origin.source, ()) + origin.indices
    return tuple(Origin(source, indices) for source, indices in by_source.items())


def _list_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
