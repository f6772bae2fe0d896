"""The operations on single elements: map, map_with_index, random_map, filter, flat_map. What each does to a block.

Map nodes (map_ops.py), streams (stream_ops.py) and DataLoaders (loader_ops.py) run the same operations. They differ in
what becomes of an element that a filter drops: on the map side it is missing, a stream leaves it out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from bushel._src.base import blocks, transforms, trees
from bushel._src.base.blocks import Block, Columns, make_answer_private, make_block_private
from bushel._src.base.errors import RowFailed, locate_error
from bushel._src.base.private_elements import IMMUTABLE, copy_value, make_private
from bushel._src.base.read_only_calls import ReadOnlyFunction, RowsOfKnownTypes, find_reading
from bushel._src.base.rng import RngPool
from bushel._src.graph.hidden_randomness import Watch
from bushel._src.graph.node import InTwoSteps, Node, OneParentMap, raise_for_row

CallEach = Callable[[Iterator[Any], "BlockOperation", Sequence[int]], list[Any]]
"""(rows, the operation, numbers of the rows) -> what the user's function returns for each row."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What all operations of one kind have in common."""

    name: str
    """The method of a dataset that builds it."""
    find_function: Callable[[Any], Callable[..., Any]]
    """The user's function in a transformation, which may be an object with a method of that name."""
    call_each: CallEach
    count_key: str | None = None
    """Where the state of a stream keeps how many elements came before, for operations that depend on it."""
    drops: bool = False
    """Whether the function decides which elements stay."""
    splits: bool = False
    """Whether the function returns several elements for one. They may share memory."""


@dataclasses.dataclass(frozen=True, eq=False)
class BlockOperation:
    """A user's function as an operation on blocks."""

    kind: Kind
    transform: Any
    function: Callable[..., Any]
    vectorized: bool = False
    seed: int | None = None

    @classmethod
    def of(cls, kind: Kind, transform: Any, vectorized: bool = False, seed: int | None = None) -> BlockOperation:
        """Return the operation of a transformation: a function, or an object of one of the classes in
        base/transforms.py.
        """
        return cls(kind, transform, kind.find_function(transform), vectorized, seed)

    @functools.cached_property
    def _watch(self) -> tuple[Watch, BlockOperation]:
        watch = Watch(self.function, self.describe)
        return watch, dataclasses.replace(self, function=watch)

    def watched(self) -> BlockOperation:
        """This operation. Its function is watched for hidden randomness at first, and called directly after that."""
        watch, operation = self._watch
        return operation if watch.left > 0 else self

    @functools.cached_property
    def reading(self) -> ReadOnlyFunction | None:
        """The proof that the function only reads, for elements of known types; None if its code does not tell."""
        with_elements_alone = self.kind.count_key is None or self.kind.name == "map_with_index"
        return find_reading(self.function) if with_elements_alone and not self.kind.splits else None

    @property
    def needs_private(self) -> bool:
        """Whether the elements that it is given must be private, whatever is done with its result."""
        return self.reading is None and not self.vectorized  # a vectorized function gets a copy of the rows

    @functools.cached_property
    def _makes_new_arrays(self) -> bool:
        return isinstance(self.transform, InTwoSteps) and self.transform.makes_new_arrays

    @functools.cached_property
    def generators(self) -> RngPool:
        """The random generators of a `random_map`, one for each number of an element."""
        assert self.seed is not None
        return RngPool(self.seed)

    def call(self) -> str:
        """Return the operation as the user wrote it: `map(normalise, vectorized=True)`."""
        options = {"vectorized": True} if self.vectorized else {} if self.seed is None else {"seed": self.seed}
        return format_call(self.kind.name, self.transform, **options)

    def describe(self) -> str:
        """Return the operation as it reads in a message: `map(normalise @ train.py:12)`."""
        return f"{self.kind.name}({transforms.locate_transform(self.transform)})"

    def derive_spec(self, parent: Node) -> Any:
        """Return the element spec after this operation on the elements of `parent`."""
        if self.kind.drops:
            return parent.element_spec()
        if not hasattr(self.transform, "output_spec"):
            name = transforms.short_name(self.transform)
            raise ValueError(
                f"Cannot infer element spec for transform {name} because it does not implement `output_spec` method. "
                f"Implement `{name}.output_spec(self, input_spec)`, which returns a tree of ShapeDtypeStruct."
            )
        return self.transform.output_spec(parent.element_spec())

    def run(
        self, block: Block, numbers: Sequence[int], where: Callable[[int], str], *, is_private: bool, private: bool
    ) -> tuple[Block, list[bool] | None]:
        """Return the operation on a block.

        Returns a block with a row for each that came in. A filter returns the rows that it was given, and one bool per
        row: whether the row stays; None where all stay. Raises RowFailed.

        Args:
          block: the elements. A list is empty afterwards, unless it is what is returned.
          numbers: the number of each element in its dataset. Operations without a `count_key` do not look at it.
          where: says where row `row` of the block failed, for the note on the error.
          is_private: whether the elements are private. Columns always are.
          private: whether the rows that are returned must be private. Otherwise the caller only reads and drops them.
        """
        if self.vectorized:
            return self._run_vectorized(block, where, private and not is_private)
        kind = self.kind
        rows = blocks.rows_of(block)
        count = len(rows)
        if self.reading is not None and self.reading.proves(rows):
            left = iter(rows)
            try:
                made = kind.call_each(left, self, numbers)
            except Exception as error:
                raise_for_row(error, count, left, where)
            if not kind.drops:
                return make_private(made) if private else RowsOfKnownTypes(made), None
            if private and not is_private and not isinstance(block, Columns):
                make_private(block)
            return block, None if all(made) else made
        rows.reverse()
        try:
            return self._run_privately(rows, numbers, is_private or isinstance(block, Columns))
        except Exception as error:
            raise_for_row(error, count, rows, where)

    def _run_privately(
        self, rows: list[Any], numbers: Sequence[int], is_private: bool
    ) -> tuple[list[Any], list[bool] | None]:
        """Call the function with each row, and make what it returns private before the next call.

        The function may have kept what it got or returned, and may write into it at the next call.

        Args:
          rows: the rows, the last one first. They are taken out, so that nothing but the function can hold them.
          numbers: as for `run`.
          is_private: whether the rows are private.
        """
        operation, kind = self.watched(), self.kind
        function, call_each = operation.function, kind.call_each
        made: list[Any] = []
        stays: list[bool] = []
        calls_plainly, skips_missing = call_each in (_map, _map_all), call_each is _map
        for place in range(len(rows)):
            box = [rows.pop()]
            if not is_private:
                make_private(box)
            if calls_plainly:
                if box[0] is not None or not skips_missing:
                    box = [function(box.pop())]
                    if type(box[0]) not in IMMUTABLE:
                        make_private(box)
            elif kind.drops:
                stays += call_each(iter(box), operation, numbers[place : place + 1])
                make_private(box)
            else:
                box = make_private(call_each(iter([box.pop()]), operation, numbers[place : place + 1]))
            made += box
        return made, None if all(stays) else stays

    def _run_vectorized(
        self, block: Block, where: Callable[[int], str], must_be_private: bool
    ) -> tuple[Block, list[bool] | None]:
        try:
            if not self.kind.drops:
                made = self._run_columns(block)
                return made if self._makes_new_arrays else make_block_private(made), None
            verdicts = self._as_verdicts(self._run_columns(block))
            # The function has seen a copy, see `_run_columns`: neither its writes nor what it keeps reach the rows.
            rows = make_block_private(block) if must_be_private else block
        except Exception as error:
            raise RowFailed(0, locate_error(error, where(0))) from error
        return rows, None if all(verdicts) else verdicts

    def _run_columns(self, block: Block) -> Block:
        """Return the function of whole columns. It sees no missing elements, and must return one element for each.

        A filter gets a copy, since the rows that it sees are needed afterwards. A map takes the columns.
        """
        columns = blocks.as_columns(block)
        if columns is None:
            # Rows of several kinds, or none at all. Each row is a block of its own, so that no other changes its dtype.
            return [
                row
                if row is None
                else blocks.rows_of(make_block_private(self._run_columns(Columns(blocks.stack([row]), 1))))[0]
                for row in blocks.rows_of(block)
            ]
        count = columns.dense().length
        if not count:
            return [None] * len(block)
        tree = [columns.tree]
        if self.kind.drops and columns is block and (self.reading is None or not self.reading.proves(tree)):
            tree = [copy_value(columns.tree)]
        elif not self.kind.drops:
            object.__setattr__(columns, "tree", None)  # otherwise the columns would hold what the function returns
        result = self.watched().function(tree.pop())
        if self._makes_new_arrays:
            return Columns(result, columns.length, columns.present)

        def as_column(leaf: Any) -> np.ndarray:
            column = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
            if column.ndim == 0 or len(column) != count:
                raise ValueError(
                    f"{self.call()} is vectorized: it got arrays with {count} elements and must return arrays with as "
                    f"many; it returned {trees.describe(result)}."
                )
            return column

        return Columns(trees.map_leaves(as_column, result), columns.length, columns.present)

    def _as_verdicts(self, made: Block) -> list[bool]:
        """Return what a filter of whole columns has returned, as one bool per element.

        A missing element does not stay.
        """
        tree = made.tree if isinstance(made, Columns) and made.present is None else None
        if isinstance(tree, np.ndarray) and tree.dtype == bool and tree.ndim == 1:
            return tree.tolist()
        verdicts = blocks.rows_of(made)
        for verdict in verdicts:
            if not isinstance(verdict, (bool, np.bool_, np.number, types.NoneType)):
                raise ValueError(
                    f"{self.call()} is vectorized: it must return one bool per element; "
                    f"for one it returned {trees.describe(verdict)}."
                )
        return list(map(bool, verdicts))


class WithOperation(Node):
    """A node that runs an operation: `kind` with the transformation that the node's fields say."""

    kind: ClassVar[Kind]

    @functools.cached_property
    def operation(self) -> BlockOperation:
        """What is done to a block."""
        return BlockOperation.of(self.kind, **self.parameters())

    def call(self) -> str:
        return self.operation.call()

    def describe(self) -> str:
        return self.operation.describe()


@dataclasses.dataclass(frozen=True, eq=False)
class WithTransform(WithOperation, OneParentMap):
    """A map node that runs an operation on the elements of its parent."""

    transform: Any


def keep_rows(block: Block, kept: list[bool]) -> Block:
    """Return the rows of a block that stay, for a stream."""
    if isinstance(block, Columns) and block.present is None:
        return block.where(np.array(kept)).dense()
    rows = itertools.compress(blocks.rows_of(block), kept)
    return RowsOfKnownTypes(rows) if type(block) is RowsOfKnownTypes else list(rows)


def mark_missing(block: Block, kept: list[bool]) -> Block:
    """Return the block with the rows missing that do not stay, for a map node."""
    if isinstance(block, Columns):
        stays = np.array(kept)
        return block.where(stays if block.present is None else stays[block.present])
    return [row if stays else None for row, stays in zip(block, kept)]


def format_call(operation: str, transform: Any, **options: Any) -> str:
    """Return how an operation with a user's transformation reads: `map(normalise, vectorized=True)`."""
    shown = [transforms.short_name(transform), *(f"{name}={value}" for name, value in options.items())]
    return f"{operation}({', '.join(shown)})"


# How the user's function is called for each row. A missing element, which is None, is not shown to it.


def _map(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    function = operation.function
    return [None if row is None else function(row) for row in rows]


def _map_with_index(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    function = operation.function
    return [None if row is None else function(number, row) for row, number in zip(rows, numbers)]


def _random_map(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    function = operation.function
    generators = operation.generators._borrow()
    try:
        return [None if row is None else function(row, generators.at(number)) for row, number in zip(rows, numbers)]
    finally:
        operation.generators._give_back(generators)


def _filter(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    function = operation.function
    return [True if row is not None and function(row) else False for row in rows]  # noqa: SIM210 (bool() is a call)


def _split(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    return [None if row is None else _split_element(row, operation.transform) for row in rows]


def _split_element(element: Any, transform: transforms.FlatMap) -> Sequence[Any]:
    parts = blocks.rows_of(make_answer_private([transform.flat_map(element)]))
    if len(parts) > transform.max_fan_out:
        raise ValueError(
            f"flat_map gave {len(parts)} elements for one, more than its max_fan_out of {transform.max_fan_out}. "
            "Raise max_fan_out of the transformation, or split less."
        )
    return parts


# In a stream None is an element like any other for a filter and a flat_map, and for every operation of a DataLoader.


def _map_all(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    function = operation.function
    return [function(row) for row in rows]


def _filter_all(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    function = operation.function
    return [True if function(row) else False for row in rows]  # noqa: SIM210


def _split_all(rows: Iterator[Any], operation: BlockOperation, numbers: Sequence[int]) -> list[Any]:
    function = operation.function
    return [blocks.rows_of(make_answer_private([function(row)])) for row in rows]


find_map = functools.partial(transforms.method, kind=transforms.Map, name="map")
find_filter = functools.partial(transforms.method, kind=transforms.Filter, name="filter")
_find_map_with_index = functools.partial(transforms.method, kind=transforms.MapWithIndex, name="map_with_index")
_find_random_map = functools.partial(transforms.method, kind=transforms.RandomMap, name="random_map")
_find_flat_map = functools.partial(transforms.method, kind=transforms.FlatMap, name="flat_map")

MAP = Kind("map", find_map, _map)
MAP_ALL = Kind("map", find_map, _map_all)
MAP_WITH_INDEX = Kind("map_with_index", _find_map_with_index, _map_with_index, count_key="counter")
RANDOM_MAP = Kind("random_map", _find_random_map, _random_map, count_key="index_for_rng")
FILTER = Kind("filter", find_filter, _filter, drops=True)
FILTER_ALL = Kind("filter", find_filter, _filter_all, drops=True)
FLAT_MAP = Kind("flat_map", _find_flat_map, _split, splits=True)
FLAT_MAP_ALL = Kind("flat_map", _find_flat_map, _split_all, splits=True)
